//! `show|new|set|add|commit|abort|del ssl ca-file` and `crl-file`.
//!
//! Both are bundles of one kind each; `ca-file` alone has `add`. The words of replies are HAProxy's, with its slips.

use std::sync::Arc;

use sluicegate_config::model::StatsLevel;
use sluicegate_tls::policy::{Policy, ServerSettings, Settings, Verify};
use sluicegate_tls::x509::Bundle;

use super::super::catalogue::{Call, Command, Run};
use super::super::protocol::Answer;
use super::{dots, locked};
use crate::reload::listeners;
use crate::running::{Running, tls_connectors};
use crate::tls::{BundleKind, Loaded};

pub(super) const COMMANDS: &[Command] = &[
    Command {
        name: &["abort", "ssl", "ca-file"],
        arguments: "<cafile>",
        help: "abort a transaction for a CA file",
        level: StatsLevel::Admin,
        run: Run::Now(|call| abort(call, BundleKind::Authorities)),
    },
    Command {
        name: &["abort", "ssl", "crl-file"],
        arguments: "<crlfile>",
        help: "abort a transaction for a CRL file",
        level: StatsLevel::Admin,
        run: Run::Now(|call| abort(call, BundleKind::Revocations)),
    },
    Command {
        name: &["add", "ssl", "ca-file"],
        arguments: "<cafile> <payload>",
        help: "add a certificate into the CA file",
        level: StatsLevel::Admin,
        run: Run::Now(|call| set(call, BundleKind::Authorities, true)),
    },
    Command {
        name: &["commit", "ssl", "ca-file"],
        arguments: "<cafile>",
        help: "commit a CA file",
        level: StatsLevel::Admin,
        run: Run::Now(|call| commit(call, BundleKind::Authorities)),
    },
    Command {
        name: &["commit", "ssl", "crl-file"],
        arguments: "<crlfile>",
        help: "commit a CRL file",
        level: StatsLevel::Admin,
        run: Run::Now(|call| commit(call, BundleKind::Revocations)),
    },
    Command {
        name: &["del", "ssl", "ca-file"],
        arguments: "<cafile>",
        help: "delete an unused CA file",
        level: StatsLevel::Admin,
        run: Run::Now(|call| delete(call, BundleKind::Authorities)),
    },
    Command {
        name: &["del", "ssl", "crl-file"],
        arguments: "<crlfile>",
        help: "delete an unused CRL file",
        level: StatsLevel::Admin,
        run: Run::Now(|call| delete(call, BundleKind::Revocations)),
    },
    Command {
        name: &["new", "ssl", "ca-file"],
        arguments: "<cafile>",
        help: "create a new CA file to be used in a crt-list",
        level: StatsLevel::Admin,
        run: Run::Now(|call| create(call, BundleKind::Authorities)),
    },
    Command {
        name: &["new", "ssl", "crl-file"],
        arguments: "<crlfile>",
        help: "create a new CRL file to be used in a crt-list",
        level: StatsLevel::Admin,
        run: Run::Now(|call| create(call, BundleKind::Revocations)),
    },
    Command {
        name: &["set", "ssl", "ca-file"],
        arguments: "<cafile> <payload>",
        help: "replace a CA file",
        level: StatsLevel::Admin,
        run: Run::Now(|call| set(call, BundleKind::Authorities, false)),
    },
    Command {
        name: &["set", "ssl", "crl-file"],
        arguments: "<crlfile> <payload>",
        help: "replace a CRL file",
        level: StatsLevel::Admin,
        run: Run::Now(|call| set(call, BundleKind::Revocations, false)),
    },
    Command {
        name: &["show", "ssl", "ca-file"],
        arguments: "[<cafile>[:<index>]]",
        help: "display the SSL CA files used in memory, or the details of a <cafile>, or a single certificate of index \
               <index> of a CA file <cafile>",
        level: StatsLevel::Operator,
        run: Run::Long(|call| show(call, BundleKind::Authorities)),
    },
    Command {
        name: &["show", "ssl", "crl-file"],
        arguments: "[<crlfile>[:<index>]]",
        help: "display the SSL CRL files used in memory, or the details of a <crlfile>, or a single CRL of index <index> \
               of CRL file <crlfile>",
        level: StatsLevel::Operator,
        run: Run::Long(|call| show(call, BundleKind::Revocations)),
    },
];

/// The word of a kind in commands, which is also that of messages before ` file`.
fn word(kind: BundleKind) -> (&'static str, &'static str) {
    match kind {
        BundleKind::Authorities => ("ca-file", "CA"),
        BundleKind::Revocations => ("crl-file", "CRL"),
    }
}

fn create(call: &mut Call<'_>, kind: BundleKind) {
    let (word, title) = word(kind);
    let name = call.arg(0).to_owned();
    if name.is_empty() {
        return call.say(format!("'new ssl {word}' expects a filename"));
    }
    let Some(_turn) = locked(call, &format!("Can't create a {title} file!\n")) else { return };
    let mut loaded = call.running.process.certificates.lock();
    let exists = loaded.bundle_kind(&name).is_some();
    if !exists {
        loaded.empty_bundles.insert(name.as_str().into(), kind);
    }
    drop(loaded);
    match exists {
        true => call.say(format!("{title} file '{name}' already exists!")),
        false => call.notice(format!("New {title} file created '{name}'!")),
    }
}

fn set(call: &mut Call<'_>, kind: BundleKind, adds: bool) {
    let (word, title) = word(kind);
    let name = call.arg(0).to_owned();
    let Some(payload) = call.payload.filter(|_| !name.is_empty()) else {
        let title = format!("{title}s");
        return call.say(format!("'set ssl {word}' expects a filename and {title} as a payload"));
    };
    let Some(_turn) = locked(call, &format!("Can't update the {title} file!\n")) else { return };
    let changed = change(&mut call.running.process.certificates.lock(), kind, &name, payload, adds);
    match changed {
        Ok(true) => call.notice(format!("transaction created for {title} {name}!")),
        Ok(false) => call.notice(format!("transaction updated for {title} {name}!")),
        Err(message) => call.say(format!("{message}\nCan't update {name}!")),
    }
}

/// Changes a bundle in a transaction; returns whether the transaction is new.
fn change(loaded: &mut Loaded, kind: BundleKind, name: &str, payload: &[u8], adds: bool) -> Result<bool, String> {
    let (_, title) = word(kind);
    if let Some(bundle) = loaded.bundle(kind).as_ref().filter(|bundle| bundle.path != name) {
        let about = &bundle.path;
        return Err(format!("The ongoing transaction is about '{about}' but you are trying to set '{name}'"));
    }
    if loaded.bundle_kind(name) != Some(kind) {
        return Err(format!("Can't replace a {title} file which is not referenced by the configuration!"));
    }
    let known = loaded.files.bundles.get(name).cloned();
    let file_digest = known.as_ref().and_then(|known| known.file_digest);
    let slot = loaded.bundle(kind);
    let before = slot.clone().or(known).filter(|_| adds);
    let mut bundle = Bundle::set(name, payload, before.as_deref()).ok_or("Invalid payload")?;
    bundle.file_digest = file_digest;
    Ok(slot.replace(Arc::new(bundle)).is_none())
}

fn commit(call: &mut Call<'_>, kind: BundleKind) {
    let (_, title) = word(kind);
    let name = call.arg(0).to_owned();
    if name.is_empty() {
        return call.say("'commit ssl ca-file' expects a filename");
    }
    let Some(_turn) = locked(call, &format!("Can't commit the {title} file!\n")) else { return };
    let mut loaded = call.running.process.certificates.lock();
    let refused = match loaded.bundle(kind).as_ref() {
        None => Some("No ongoing transaction! !".to_owned()),
        Some(bundle) if bundle.path != name => {
            Some(format!("The ongoing transaction is about '{}' but you are trying to set '{name}'", bundle.path))
        }
        Some(_) => None,
    };
    if let Some(message) = refused {
        drop(loaded);
        return call.say(format!("{message}\nCan't commit {name}!"));
    }
    let Some(bundle) = loaded.bundle(kind).take() else { return };
    call.out.push(format!("Committing {name}"));
    let count = uses(call.running, &name);
    match replace(call.running, &bundle) {
        Ok(()) => {
            dots(call, count);
            call.out.push("\nSuccess!\n");
            let name: Arc<str> = name.into();
            loaded.empty_bundles.remove(&name);
            if kind == BundleKind::Revocations {
                loaded.files.crl_files.insert(name.clone());
            }
            loaded.files.bundles.insert(name, bundle);
        }
        Err(message) => call.out.push(format!("\n{message}\nFailed!\n")),
    }
}

/// Calls a function for each bundle of a policy.
fn bundles(policy: &mut Policy) -> [&mut Option<Arc<Bundle>>; 3] {
    [&mut policy.ca, &mut policy.ca_verify, &mut policy.crl]
}

/// Replaces a bundle in a policy; returns whether it was there.
fn put(policy: &mut Policy, bundle: &Arc<Bundle>) -> bool {
    let mut is_there = false;
    for slot in bundles(policy) {
        if slot.as_ref().is_some_and(|known| known.path == bundle.path) {
            *slot = Some(bundle.clone());
            is_there = true;
        }
    }
    is_there
}

/// Replaces a bundle wherever it is used.
fn replace(running: &Running, bundle: &Arc<Bundle>) -> Result<(), String> {
    for connector in tls_connectors(running) {
        let mut settings = ServerSettings::clone(&connector.settings());
        if put(&mut settings.policy, bundle) {
            connector.replace(settings)?;
        }
    }
    for listener in listeners(running) {
        let before = listener.settings();
        if !names(&before, &bundle.path) {
            continue;
        }
        let mut settings = Settings::clone(&before);
        put(&mut settings.policy, bundle);
        for policy in settings.entries.iter_mut().filter_map(|entry| entry.policy.as_mut()) {
            put(policy, bundle);
        }
        listener.replace(settings)?;
    }
    Ok(())
}

fn has(policy: &Policy, name: &str) -> bool {
    let bundles = [&policy.ca, &policy.ca_verify, &policy.crl];
    bundles.into_iter().flatten().any(|bundle| bundle.path == name)
}

/// Returns whether a line has a bundle anywhere.
fn names(settings: &Settings, name: &str) -> bool {
    let lines = settings.entries.iter().filter_map(|entry| entry.policy.as_ref());
    has(&settings.policy, name) || lines.into_iter().any(|policy| has(policy, name))
}

/// Returns by how many certificates of `bind` lines, and by how many servers, a bundle is used to verify peers.
fn uses(running: &Running, name: &str) -> usize {
    let verifies = |policy: &Policy| policy.verify.is_some_and(|verify| verify != Verify::None);
    let servers = tls_connectors(running).filter(|connector| {
        let settings = connector.settings();
        verifies(&settings.policy) && has(&settings.policy, name)
    });
    let certificates = listeners(running).into_iter().map(|listener| {
        let settings = listener.settings();
        let bind = &settings.policy;
        let is_used = |line: Option<&Policy>| {
            let verify = line.and_then(|line| line.verify).or(bind.verify).unwrap_or_default();
            let of = |bundle: fn(&Policy) -> &Option<Arc<Bundle>>| {
                let own = line.and_then(|line| bundle(line).as_ref());
                own.or(bundle(bind).as_ref()).is_some_and(|bundle| bundle.path == name)
            };
            verify != Verify::None
                && (of(|policy| &policy.ca) || of(|policy| &policy.ca_verify) || of(|policy| &policy.crl))
        };
        settings.entries.iter().filter(|entry| is_used(entry.policy.as_ref())).count()
    });
    servers.count() + certificates.sum::<usize>()
}

fn abort(call: &mut Call<'_>, kind: BundleKind) {
    let (word, _) = word(kind);
    let name = call.arg(0).to_owned();
    if name.is_empty() {
        return call.say(format!("'abort ssl {word}' expects a filename"));
    }
    let Some(_turn) = locked(call, "Can't abort!\n") else { return };
    let mut loaded = call.running.process.certificates.lock();
    let slot = loaded.bundle(kind);
    let refused = match slot {
        None => Some("No ongoing transaction!".to_owned()),
        Some(bundle) if bundle.path != name => Some(format!(
            "The ongoing transaction is about '{}' but you are trying to abort a transaction for '{name}'",
            bundle.path
        )),
        Some(_) => None,
    };
    if refused.is_none() {
        *slot = None;
    }
    drop(loaded);
    match refused {
        Some(message) => call.say(message),
        None => call.notice(format!("Transaction aborted for certificate '{name}'!")),
    }
}

fn delete(call: &mut Call<'_>, kind: BundleKind) {
    let (word, title) = word(kind);
    let name = call.arg(0).to_owned();
    if name.is_empty() {
        return call.say(format!("'del ssl {word}' expects a {title} file name"));
    }
    let Some(_turn) = locked(call, &format!("Can't delete the {title} file!\n")) else { return };
    let running = call.running;
    let mut loaded = running.process.certificates.lock();
    let found = loaded.bundle_kind(&name);
    let refused = if loaded.bundle(kind).as_ref().is_some_and(|bundle| bundle.path == name) {
        Some(format!("ongoing transaction for the {title} file '{name}'"))
    } else if found.is_none() {
        Some(format!("{title} file '{name}' doesn't exist!"))
    } else if kind == BundleKind::Authorities && uses(running, &name) > 0 {
        // HAProxy finds that out before the kind, here alone.
        Some(format!("{title} file '{name}' in use, can't be deleted!"))
    } else if found != Some(kind) {
        let other = if kind == BundleKind::Revocations { "CA" } else { "CRL" };
        Some(format!("'del ssl {word}' does not work on {other} files!"))
    } else if uses(running, &name) > 0 {
        Some(format!("{title} file '{name}' in use, can't be deleted!"))
    } else {
        None
    };
    if refused.is_none() {
        loaded.files.bundles.remove(&*name);
        loaded.files.crl_files.remove(&*name);
        loaded.empty_bundles.remove(&*name);
    }
    drop(loaded);
    match refused {
        Some(message) => call.say(format!("Can't remove the {title} file: {message}")),
        None => call.notice(format!("{title} file '{name}' deleted!")),
    }
}

fn show(mut call: Call<'_>, kind: BundleKind) -> Answer<'_> {
    Box::pin(async move {
        let name = call.arg(0).to_owned();
        if name.is_empty() {
            list(&mut call, kind);
            return Ok(());
        }
        let Some((header, parts)) = details(&mut call, kind, &name) else { return Ok(()) };
        call.out.push(header);
        for part in parts {
            call.out.push(part);
            call.out.drain().await?;
        }
        Ok(())
    })
}

fn list(call: &mut Call<'_>, kind: BundleKind) {
    // As in HAProxy, lists have no count.
    let line = |name: &str, bundle: Option<&Bundle>| match kind {
        BundleKind::Authorities => {
            let count = bundle.map_or(0, |bundle| bundle.certificates.len() + bundle.crls.len());
            format!("{name} - {count} certificate(s)\n")
        }
        BundleKind::Revocations => format!("{name}\n"),
    };
    let mut loaded = call.running.process.certificates.lock();
    let mut text = String::new();
    if let Some(bundle) = loaded.bundle(kind) {
        text = format!("# transaction\n*{}", line(&bundle.path, Some(bundle)));
    }
    text.push_str("# filename\n");
    let mut names: Vec<&Arc<str>> = loaded.files.bundles.keys().chain(loaded.empty_bundles.keys()).collect();
    names.sort();
    for name in names.into_iter().filter(|name| loaded.bundle_kind(name) == Some(kind)) {
        text.push_str(&line(name, loaded.files.bundles.get(name).map(|bundle| &**bundle)));
    }
    drop(loaded);
    call.out.push(text);
}

/// Returns what is printed about a bundle: its head, and a text for each of its members.
fn details(call: &mut Call<'_>, kind: BundleKind, name: &str) -> Option<(String, Vec<Vec<u8>>)> {
    let (_, title) = word(kind);
    let (name, index) = match name.split_once(':') {
        None => (name, None),
        Some((before, digits)) => match digits.parse::<usize>() {
            Ok(index @ 1..) => (before, Some(index)),
            _ => {
                call.say(format!("wrong {title} index after colons in '{name}'!"));
                return None;
            }
        },
    };
    let (name, is_draft) = match name.strip_prefix('*') {
        Some(name) => (name, true),
        None => (name, false),
    };
    let name = name.strip_prefix('\\').unwrap_or(name);
    let mut loaded = call.running.process.certificates.lock();
    let is_known = loaded.bundle_kind(name) == Some(kind);
    let bundle = match is_draft {
        true => loaded.bundle(kind).as_ref().filter(|bundle| bundle.path == name).map(|bundle| Some(bundle.clone())),
        false => is_known.then(|| loaded.files.bundles.get(name).cloned()),
    };
    drop(loaded);
    let Some(bundle) = bundle else {
        call.say(format!("Can't display the {title} file : Not found!"));
        return None;
    };
    let status = match &bundle {
        None => "Empty",
        Some(_) if is_draft => "Uncommitted",
        Some(_) if uses(call.running, name) == 0 => "Unused",
        Some(_) => "Used",
    };
    let mark = if is_draft { "*" } else { "" };
    let header = format!("Filename: {mark}{name}\nStatus: {status}\n");
    let mut parts: Vec<Vec<u8>> = Vec::new();
    if let Some(bundle) = bundle {
        let wanted = |number: usize| index.is_none_or(|index| index == number);
        let part =
            |number: usize, what: &str, text: Vec<u8>| [format!(" \n{what} #{number}:\n").into_bytes(), text].concat();
        match kind {
            BundleKind::Authorities => {
                let numbered = (1..).zip(&bundle.certificates).filter(|(number, _)| wanted(*number));
                parts.extend(numbered.map(|(number, one)| part(number, "Certificate", one.details(&[], None))));
            }
            BundleKind::Revocations => {
                let numbered = (1..).zip(&bundle.crls).filter(|(number, _)| wanted(*number));
                parts.extend(numbered.map(|(number, one)| part(number, "Certificate Revocation List", one.details())));
            }
        }
    }
    // As in HAProxy the header of authorities belongs to the first part.
    let header = if parts.is_empty() && kind == BundleKind::Authorities { String::new() } else { header };
    Some((header, parts))
}
