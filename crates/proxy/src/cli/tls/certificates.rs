//! `show|new|set|commit|abort|del|dump ssl cert`.

use std::sync::Arc;

use sluicegate_config::model::StatsLevel;
use sluicegate_tls::ocsp;

use super::super::catalogue::{Call, Command, Run};
use super::super::protocol::Answer;
use super::{dots, locked, uses};
use crate::ocsp_update;
use crate::reload::{Part, take_over};
use crate::tls::Loaded;

pub(super) const COMMANDS: &[Command] = &[
    Command {
        name: &["abort", "ssl", "cert"],
        arguments: "<certfile>",
        help: "abort a transaction for a certificate file",
        level: StatsLevel::Admin,
        run: Run::Now(abort),
    },
    Command {
        name: &["commit", "ssl", "cert"],
        arguments: "<certfile>",
        help: "commit a certificate file",
        level: StatsLevel::Admin,
        run: Run::Now(commit),
    },
    Command {
        name: &["del", "ssl", "cert"],
        arguments: "<certfile>",
        help: "delete an unused certificate file",
        level: StatsLevel::Admin,
        run: Run::Now(delete),
    },
    Command {
        name: &["dump", "ssl", "cert"],
        arguments: "<certfile>",
        help: "dump the SSL certificates in PEM format",
        level: StatsLevel::Admin,
        run: Run::Now(dump),
    },
    Command {
        name: &["new", "ssl", "cert"],
        arguments: "<certfile>",
        help: "create a new certificate file to be used in a crt-list or a directory",
        level: StatsLevel::Admin,
        run: Run::Now(create),
    },
    Command {
        name: &["set", "ssl", "cert"],
        arguments: "<certfile> <payload>",
        help: "replace a certificate file",
        level: StatsLevel::Admin,
        run: Run::Now(set),
    },
    Command {
        name: &["show", "ssl", "cert"],
        arguments: "[<certfile>]",
        help: "display the SSL certificates used in memory, or the details of a file",
        level: StatsLevel::Operator,
        run: Run::Long(show),
    },
];

/// Returns the part that a name means by its end, and the name of the certificate.
fn part_of(name: &str) -> (Part, &str) {
    let part = name.rsplit_once('.').and_then(|(rest, end)| Some((Part::named(end)?, rest)));
    part.filter(|(part, _)| *part != Part::Pem).unwrap_or((Part::Pem, name))
}

fn create(call: &mut Call<'_>) {
    let name = call.arg(0).to_owned();
    if name.is_empty() {
        return call.say("'new ssl cert' expects a filename");
    }
    let Some(_turn) = locked(call, "Can't create a certificate!\n") else { return };
    let mut loaded = call.running.process.certificates.lock();
    if loaded.has_pair(&name) {
        drop(loaded);
        return call.say(format!("Certificate '{name}' already exists!"));
    }
    loaded.empty_pairs.insert(name.as_str().into());
    drop(loaded);
    call.notice(format!("New empty certificate store '{name}'!"));
}

fn set(call: &mut Call<'_>) {
    let name = call.arg(0).to_owned();
    let Some(payload) = call.payload.filter(|_| !name.is_empty()) else {
        return call.say("'set ssl cert' expects a filename and a certificate as a payload");
    };
    let Some(_turn) = locked(call, "Can't update the certificate!\n") else { return };
    match change(call, &name, payload) {
        Ok((path, true)) => call.notice(format!("Transaction created for certificate {path}!")),
        Ok((path, false)) => call.notice(format!("Transaction updated for certificate {path}!")),
        Err(message) => call.say(format!("{message}Can't update {name}!")),
    }
}

/// Changes a part of a certificate in a transaction. Returns the certificate's name, and whether the transaction is new;
/// the lines of an error end by a line feed, as in HAProxy.
fn change(call: &Call<'_>, name: &str, payload: &[u8]) -> Result<(String, bool), String> {
    let without_extension = call.running.config.global.tls.extra_del_ext;
    let (part, path) = part_of(name);
    // `a.key` belongs to `a.crt` then.
    let longer = (part != Part::Pem && without_extension).then(|| format!("{path}.crt"));
    let mut loaded = call.running.process.certificates.lock();
    let before = match &loaded.pair {
        Some(draft) if draft.path() == path || Some(draft.path()) == longer.as_deref() => Some(draft.clone()),
        Some(draft) => {
            let about = draft.path();
            return Err(format!("The ongoing transaction is about '{about}' but you are trying to set '{path}'\n"));
        }
        None => loaded.draft(path).or_else(|| loaded.draft(longer.as_deref()?)),
    };
    let Some(mut draft) = before else {
        return Err("Can't replace a certificate which is not referenced by the configuration!\n".to_owned());
    };
    let changed = part.put(&mut draft, payload, &loaded.files.issuers, name);
    changed.map_err(|message| message + "Can't load the payload\n")?;
    let path = draft.path().to_owned();
    Ok((path, loaded.pair.replace(draft).is_none()))
}

fn commit(call: &mut Call<'_>) {
    let name = call.arg(0).to_owned();
    if name.is_empty() {
        return call.say("'commit ssl cert' expects a filename");
    }
    let Some(_turn) = locked(call, "Can't commit the certificate!\n") else { return };
    let running = call.running;
    let mut loaded = running.process.certificates.lock();
    let checked = match &loaded.pair {
        None => Err("No ongoing transaction! !".to_owned()),
        Some(draft) if draft.path() != name => {
            Err(format!("The ongoing transaction is about '{}' but you are trying to set '{name}'", draft.path()))
        }
        Some(draft) => draft.check(),
    };
    if let Err(message) = checked {
        drop(loaded);
        return call.say(format!("{message}\nCan't commit {name}!"));
    }
    let Some(draft) = loaded.pair.take() else { return };
    call.out.push(format!("Committing {name}"));
    match take_over(running, &mut loaded, draft) {
        Ok((pair, count)) => {
            dots(call, count);
            let warning = pair.warning().map(|warning| format!("{warning}.\n")).unwrap_or_default();
            call.out.push(format!("\n{warning}Success!\n"));
        }
        Err(message) => {
            // The first place fails.
            dots(call, uses(running, &name).min(1));
            call.out.push(format!("\n{message}\nFailed!\n"));
        }
    }
}

fn abort(call: &mut Call<'_>) {
    let name = call.arg(0).to_owned();
    if name.is_empty() {
        return call.say("'abort ssl cert' expects a filename");
    }
    let Some(_turn) = locked(call, "Can't abort!\n") else { return };
    let mut loaded = call.running.process.certificates.lock();
    let refused = match &loaded.pair {
        None => Some("No ongoing transaction!".to_owned()),
        Some(draft) if draft.path() != name => Some(format!(
            "The ongoing transaction is about '{}' but you are trying to abort a transaction for '{name}'",
            draft.path()
        )),
        Some(_) => None,
    };
    if refused.is_none() {
        loaded.pair = None;
    }
    drop(loaded);
    match refused {
        Some(message) => call.say(message),
        None => call.notice(format!("Transaction aborted for certificate '{name}'!")),
    }
}

fn delete(call: &mut Call<'_>) {
    let name = call.arg(0).to_owned();
    if name.is_empty() {
        return call.say("'del ssl cert' expects a certificate name");
    }
    let Some(_turn) = locked(call, "Can't delete the certificate!\n") else { return };
    let running = call.running;
    let mut loaded = running.process.certificates.lock();
    let refused = if loaded.pair.as_ref().is_some_and(|draft| draft.path() == name) {
        Some(format!("ongoing transaction for the certificate '{name}'"))
    } else if !loaded.has_pair(&name) {
        Some(format!("certificate '{name}' doesn't exist!"))
    } else if uses(running, &name) > 0 || is_listed(&loaded, &name) {
        Some(format!("certificate '{name}' in use, can't be deleted!"))
    } else {
        None
    };
    if refused.is_none() {
        loaded.files.pairs.remove(&*name);
        loaded.files.named.remove(&*name);
        loaded.files.sources.remove(&*name);
        loaded.files.ocsp_updates.remove(&*name);
        loaded.files.worded.remove(&*name);
        loaded.empty_pairs.remove(&*name);
    }
    drop(loaded);
    match refused {
        Some(message) => call.say(format!("Can't remove the certificate: {message}")),
        None => call.notice(format!("Certificate '{name}' deleted!")),
    }
}

/// Returns whether a list has a certificate.
fn is_listed(loaded: &Loaded, name: &str) -> bool {
    loaded.files.crt_lists.values().any(|list| list.lines.iter().any(|line| line.pair.path == name))
}

const NOT_FOUND: &str = "Can't display the certificate: Not found or the certificate is a bundle!";

fn dump(call: &mut Call<'_>) {
    let name = call.arg(0).to_owned();
    let draft = {
        let loaded = call.running.process.certificates.lock();
        match name.strip_prefix('*') {
            Some(name) => loaded.pair.as_ref().filter(|draft| draft.path() == name).cloned(),
            None => loaded.draft(&name),
        }
    };
    let Some(draft) = draft else { return call.say(NOT_FOUND) };
    // As in HAProxy: without a key there is nothing.
    let (Some(key), Some(leaf)) = (draft.key().and_then(|key| key.to_pem()), draft.leaf()) else { return };
    call.out.push(&*key);
    for certificate in std::iter::once(leaf).chain(draft.chain()) {
        call.out.push(certificate.to_pem());
    }
}

fn show(mut call: Call<'_>) -> Answer<'_> {
    Box::pin(async move {
        let name = call.arg(0).to_owned();
        if !name.is_empty() {
            show_one(&mut call, &name);
            return Ok(());
        }
        let names: Vec<Arc<str>> = {
            let loaded = call.running.process.certificates.lock();
            if let Some(draft) = &loaded.pair {
                call.out.push(format!("# transaction\n*{}\n", draft.path()));
            }
            let mut names: Vec<_> = loaded.files.pairs.keys().chain(&loaded.empty_pairs).cloned().collect();
            names.sort();
            names
        };
        call.out.push("# filename\n");
        for name in names {
            call.out.push(format!("{name}\n"));
            call.out.drain().await?;
        }
        Ok(())
    })
}

/// Prints a certificate, the one of the transaction after `*`, or the OCSP response of one before `.ocsp`.
fn show_one(call: &mut Call<'_>, name: &str) {
    let (name, is_ocsp) = match name.strip_suffix(".ocsp") {
        Some(name) => (name, true),
        None => (name, false),
    };
    let (name, is_draft) = match name.strip_prefix('*') {
        Some(name) => (name, true),
        None => (name, false),
    };
    // A name that begins with an asterisk has this before it.
    let name = name.strip_prefix('\\').unwrap_or(name);
    let loaded = call.running.process.certificates.lock();
    let draft = match is_draft {
        true => loaded.pair.as_ref().filter(|draft| draft.path() == name).cloned(),
        false => loaded.draft(name),
    };
    let pair = loaded.files.pairs.get(name).cloned();
    let source = loaded.files.sources.get(name).cloned().unwrap_or_default();
    let updates = loaded.files.ocsp_updates.contains(name);
    drop(loaded);
    let Some(draft) = draft else { return call.say(NOT_FOUND) };
    if is_ocsp {
        let response = draft.ocsp().and_then(|response| ocsp::text(response).ok());
        return call.out.push(response.unwrap_or_default());
    }
    call.out.push(format!("Filename: {}{name}\n", if is_draft { "*" } else { "" }));
    for (title, file) in [
        ("Crt filename", source.crt),
        ("Key filename", source.key),
        ("OCSP filename", source.ocsp),
        ("OCSP Issuer filename", source.issuer),
        ("SCTL filename", source.sctl),
    ] {
        if let Some(file) = file {
            call.out.push(format!("{title}: {file}\n"));
        }
    }
    let status = match draft.leaf() {
        None => "Empty",
        Some(_) if is_draft => "Uncommitted",
        Some(_) if uses(call.running, name) == 0 => "Unused",
        Some(_) => "Used",
    };
    call.out.push(format!("Status: {status}\n"));
    if let Some(leaf) = draft.leaf() {
        call.out.push(leaf.details(draft.chain(), draft.chain_file()));
    }
    let key = match is_draft {
        true => draft.ocsp_key().map(<[u8]>::to_vec),
        false => pair.and_then(|pair| ocsp_update::key(&pair, updates)),
    };
    call.out.push(format!("OCSP Response Key: {}\n", ocsp::key_text(&key.unwrap_or_default())));
}
