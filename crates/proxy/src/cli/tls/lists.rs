//! `show|add|del ssl crt-list`, `show ssl sni`.

use std::sync::Arc;

use sluicegate_config::AddedLine;
use sluicegate_config::model::{BindAddress, CrtList, ProxyKind, StatsLevel, TlsFiles, Worded};
use sluicegate_tls::listener::Listener;
use sluicegate_tls::pair::Pair;
use sluicegate_tls::policy::{Entry, Settings};
use sluicegate_tls::x509::KeyType;

use super::super::catalogue::{Call, Command, Run};
use super::super::general::delay;
use super::super::protocol::Answer;
use super::{dots, locked, uses};
use crate::date::unix_seconds;
use crate::running::{Place, Running, places};
use crate::tls::Loaded;

pub(super) const COMMANDS: &[Command] = &[
    Command {
        name: &["add", "ssl", "crt-list"],
        arguments: "<list> <cert> [opts]*",
        help: "add to crt-list file <list> a line <cert> or a payload",
        level: StatsLevel::Admin,
        run: Run::Now(add),
    },
    Command {
        name: &["del", "ssl", "crt-list"],
        arguments: "<list> <cert[:line]>",
        help: "delete a line <cert> from crt-list file <list>",
        level: StatsLevel::Admin,
        run: Run::Now(delete),
    },
    Command {
        name: &["show", "ssl", "crt-list"],
        arguments: "[-n] [<list>]",
        help: "show the list of crt-lists or the content of a crt-list file <list>",
        level: StatsLevel::Admin,
        run: Run::Long(show),
    },
    Command {
        name: &["show", "ssl", "sni"],
        arguments: "[-f <frontend>] [-A] [-t <offset>]",
        help: "display the list of SNI and their corresponding filename",
        level: StatsLevel::User,
        run: Run::Long(show_sni),
    },
];

/// Returns the name of a list as it is kept.
fn list_name(call: &Call<'_>, index: usize) -> String {
    call.arg(index).trim_end_matches('/').to_owned()
}

fn show(mut call: Call<'_>) -> Answer<'_> {
    Box::pin(async move {
        let numbered = call.arg(0) == "-n";
        let index = usize::from(numbered);
        if numbered && call.arg(index).is_empty() {
            call.say("'show ssl crt-list -n' expects a filename or a directory");
            return Ok(());
        }
        if call.arg(index).is_empty() {
            let loaded = call.running.process.certificates.lock();
            let names: String = loaded.files.crt_lists.keys().map(|name| format!("{name}\n")).collect();
            drop(loaded);
            call.out.push(names);
            return Ok(());
        }
        let name = list_name(&call, index);
        let list = call.running.process.certificates.lock().files.crt_lists.get(&*name).cloned();
        let Some(list) = list else {
            call.say("didn't find the specified filename");
            return Ok(());
        };
        call.out.push(format!("# {name}\n"));
        for line in &list.lines {
            let number = if numbered { format!(":{}", line.number) } else { String::new() };
            call.out.push(format!("{}{number}{}\n", line.pair.path, line.words()));
            call.out.drain().await?;
        }
        Ok(())
    })
}

/// Returns the `bind` lines that have a list.
fn places_of<'a>(running: &'a Running, list: &'a str) -> impl Iterator<Item = Place<'a>> {
    places(running)
        .filter(move |place| place.bind.tls.as_ref().is_some_and(|tls| tls.lists.iter().any(|name| **name == *list)))
}

/// Replaces the settings of several lines: all of them, or none.
fn replace(changes: Vec<(&Arc<Listener>, Settings)>) -> Result<(), String> {
    let mut before: Vec<(&Arc<Listener>, Arc<Settings>)> = Vec::new();
    for (listener, settings) in changes {
        let present = listener.settings();
        if let Err(message) = listener.replace(settings) {
            for (listener, settings) in before {
                // They were in use until now.
                let restored = listener.replace(Settings::clone(&settings));
                debug_assert!(restored.is_ok());
            }
            return Err(message);
        }
        before.push((listener, present));
    }
    Ok(())
}

fn add(call: &mut Call<'_>) {
    if call.arg(0).is_empty() || (call.payload.is_none() && call.arg(1).is_empty()) {
        return call.say("'add ssl crtlist' expects a filename and a certificate name");
    }
    let Some(_turn) = locked(call, "") else { return };
    let name = list_name(call, 0);
    let running = call.running;
    let mut loaded = running.process.certificates.lock();
    let addition = match addition(call, &loaded, &name) {
        Ok(addition) => addition,
        Err(message) => {
            drop(loaded);
            return call.say(format!("Can't edit the crt-list: {message}"));
        }
    };
    let Addition { list, line, pair, is_used } = addition;
    call.out.push(format!("Inserting certificate '{}' in crt-list '{name}'", pair.path));
    let number = list.last_number + 1;
    let mut count = 0;
    let changes: Result<Vec<_>, String> = places_of(running, &name)
        .map(|place| {
            count += 1;
            let mut settings = Settings::clone(&place.listener.settings());
            let at = &place.bind.at;
            let shown = place.bind.addresses.first().map(BindAddress::with_family).unwrap_or_default();
            let shown = shown.strip_prefix("ipv4@").or(shown.strip_prefix("ipv6@")).unwrap_or(&shown);
            let policy = line
                .policy(&settings.policy, &place.proxy.config.name, shown, at)
                .map_err(|message| format!("{message} at [{}:{}].", at.file, at.line))?;
            let filters = (!line.filters().is_empty()).then(|| line.filters().to_vec());
            let from = if list.is_directory { (at.file.clone(), at.line) } else { (list.name.clone(), number) };
            settings.entries.push(Entry { pair: pair.clone(), filters, policy, is_default: false, from });
            Ok((place.listener, settings))
        })
        .collect();
    match changes.and_then(replace) {
        Ok(()) => {
            let mut list = CrtList::clone(&list);
            list.lines.push(line.finish(pair.clone(), number));
            (list.last_number, list.is_edited) = (number, true);
            loaded.files.crt_lists.insert(list.name.clone(), Arc::new(list));
            let path: Arc<str> = pair.path.as_str().into();
            let (files, update) = line.files();
            let updates = &running.config.global.tls.ocsp_update;
            // The mode of a certificate that has files was settled when they were read.
            let by_default = updates.by_default && !updates.disabled && pair.file_digest().is_none();
            if update.unwrap_or(by_default) {
                loaded.files.ocsp_updates.insert(path.clone());
            } else if !is_used && !updates.by_default {
                // The first line about a certificate decides again.
                loaded.files.ocsp_updates.remove(&path);
            }
            if !is_used {
                loaded.files.worded.remove(&path);
                loaded.files.sources.insert(path.clone(), files.clone());
            }
            if line.names_files() {
                loaded.files.worded.entry(path.clone()).or_insert(Worded { in_store: false, update });
                loaded.files.named.insert(path, files);
            }
            running.process.ocsp.wake.notify_one();
            dots(call, count);
            call.out.push("\n");
            for warning in &line.warnings {
                call.out.push(format!("{warning}\n"));
            }
            call.out.push("Success!\n");
        }
        Err(message) => {
            dots(call, count);
            call.out.push(format!("\n{message}\nFailed!\n"));
        }
    }
}

/// A line that can be added to a list.
struct Addition {
    list: Arc<CrtList>,
    line: AddedLine,
    pair: Arc<Pair>,
    /// Whether a listener uses the certificate, or a list has it.
    is_used: bool,
}

/// Returns what a client wants to add; errors are HAProxy's texts.
fn addition(call: &Call<'_>, loaded: &Loaded, name: &str) -> Result<Addition, String> {
    let config = &call.running.config;
    let list = loaded.files.crt_lists.get(name).ok_or_else(|| format!("crt-list '{name}' does not exist!"))?.clone();
    let text = match call.payload {
        Some(payload) => String::from_utf8_lossy(payload.strip_suffix(b"\n").unwrap_or(payload)).into_owned(),
        None => call.arg(1).to_owned(),
    };
    if text.contains('\n') {
        return Err("only one line of payload is supported!".to_owned());
    }
    let line = AddedLine::parse(&text, config, &loaded.files)?
        .ok_or("'add ssl crtlist' should contain the certificate name in the payload")?;
    let path = line.written_path();
    if list.is_directory && path.rsplit_once('/').is_none_or(|(directory, _)| directory != name) {
        return Err(format!("'{name}' is a directory, certificate path '{path}' must contain the directory path"));
    }
    let path = line.path(config);
    let Some(pair) = loaded.files.pairs.get(&*path).cloned() else {
        return Err(match loaded.empty_pairs.contains(&*path) {
            true => format!("certificate '{path}' is empty!"),
            false => format!("certificate '{path}' does not exist!"),
        });
    };
    let default = config.global.tls.ocsp_update.by_default;
    let is_used = uses(call.running, &path) > 0 || loaded.files.crt_lists.values().any(|list| has(list, &path));
    if is_used && let Some(conflict) = conflict(&loaded.files, &path, &line, default) {
        return Err(format!("'{path}' is already instantiated with incompatible parameters:\n {conflict}"));
    }
    if line.has_acme() {
        return Err("'acme' and 'domains' are not supported in lines that are added at run time".to_owned());
    }
    if list.is_directory && has(&list, &path) {
        return Err("file already exists in this directory!".to_owned());
    }
    if list.is_directory && line.has_more() {
        return Err("this is a directory, SSL configuration, crt-store keywords and filters are not allowed".to_owned());
    }
    Ok(Addition { list, line, pair, is_used })
}

fn has(list: &CrtList, path: &str) -> bool {
    list.lines.iter().any(|line| line.pair.path == path)
}

/// Returns what a line about the files of a certificate in use says that the first such line did not; `default` is
/// `ocsp-update.mode`.
fn conflict(files: &TlsFiles, path: &str, line: &AddedLine, default: bool) -> Option<String> {
    let worded = files.worded.get(path);
    let mut found = Vec::new();
    match (worded, line.names_files()) {
        (None | Some(Worded { in_store: true, .. }), false) => return None,
        (None, true) => {
            found.push(
                "Can't use the certificate previously defined without any keyword with these keywords:".to_owned(),
            );
        }
        (Some(_), false) => {
            found.push("Can't use the certificate previously defined with keywords without these keywords:".to_owned());
        }
        (Some(_), true) => {}
    }
    let known = files.sources.get(path).cloned().unwrap_or_default();
    let (new, update) = line.files();
    for (name, old, new) in [
        ("key", &known.key, &new.key),
        ("ocsp", &known.ocsp, &new.ocsp),
        ("issuer", &known.issuer, &new.issuer),
        ("sctl", &known.sctl, &new.sctl),
    ] {
        if old != new {
            let shown = |file: &Option<String>| file.clone().unwrap_or_else(|| "(null)".to_owned());
            found.push(format!("- different parameter '{name}' : previously '{}' vs '{}'", shown(old), shown(new)));
        }
    }
    let old = worded.and_then(|worded| worded.update);
    if old.unwrap_or(default) != update.unwrap_or(default) {
        let mode = |on: bool| if on { "on" } else { "off" };
        let shown = |update: Option<bool>| match update {
            Some(on) => format!("'{}'", mode(on)),
            None => format!("'default' (ocsp-update.mode {})", mode(default)),
        };
        found.push(format!("- different parameter 'ocsp-update' : previously {} vs {}", shown(old), shown(update)));
    }
    (!found.is_empty()).then(|| found.join("\n"))
}

fn delete(call: &mut Call<'_>) {
    if call.arg(0).is_empty() || call.arg(1).is_empty() {
        return call.say("'del ssl crtlist' expects a filename and a certificate name");
    }
    let Some(_turn) = locked(call, "Can't delete!\n") else { return };
    let name = list_name(call, 0);
    let word = call.arg(1).to_owned();
    let running = call.running;
    let mut loaded = running.process.certificates.lock();
    let deleted = deletion(&loaded, &name, &word).and_then(|(list, index)| {
        let line = &list.lines[index];
        let number = (!list.is_directory || line.number > 0).then_some(line.number);
        without(running, &list, &line.pair.path, number)?;
        Ok((list, index))
    });
    let refused = match deleted {
        Ok((list, index)) => {
            let mut list = CrtList::clone(&list);
            list.lines.remove(index);
            list.is_edited = true;
            loaded.files.crt_lists.insert(list.name.clone(), Arc::new(list));
            running.process.ocsp.wake.notify_one();
            None
        }
        Err(message) => Some(message),
    };
    drop(loaded);
    let path = word.split(':').next().unwrap_or_default();
    match refused {
        Some(message) => call.say(format!("Can't delete the entry: {message}")),
        None => call.notice(format!("Entry '{path}' deleted in crtlist '{name}'!")),
    }
}

/// Returns the list and the index of the line that a client wants to delete; errors are HAProxy's texts.
fn deletion(loaded: &Loaded, name: &str, word: &str) -> Result<(Arc<CrtList>, usize), String> {
    let (path, number) = match word.split_once(':') {
        None => (word, 0),
        Some((path, digits)) => match digits.parse::<u32>() {
            Ok(number) => (path, number),
            Err(_) => return Err(format!("wrong line number after colons in '{word}'!")),
        },
    };
    let list = loaded.files.crt_lists.get(name).ok_or_else(|| format!("crt-list '{name}' does not exist!"))?;
    if loaded.empty_pairs.contains(path) {
        return Err(format!("certificate '{path}' is empty!"));
    }
    if !loaded.files.pairs.contains_key(path) {
        return Err(format!("certificate '{path}' does not exist!"));
    }
    let lines = || list.lines.iter().enumerate().filter(|(_, line)| line.pair.path == path);
    let numbers: Vec<String> = lines().map(|(_, line)| line.number.to_string()).collect();
    if numbers.is_empty() {
        return Err(format!("certificate '{path}' can't be found in crt-list '{name}'!"));
    }
    let numbers_text = numbers.join(", ");
    match lines().find(|(_, line)| number == 0 || line.number == number) {
        None => Err(format!(
            "found a certificate '{path}' but the line number is incorrect, please specify a correct line number \
             preceded by colons ({numbers_text})!"
        )),
        Some(_) if number == 0 && numbers.len() > 1 => Err(format!(
            "found the certificate '{path}' in several entries, please specify a line number preceded by colons \
             ({numbers_text})!"
        )),
        Some((index, _)) => Ok((list.clone(), index)),
    }
}

/// Takes the certificate of a list's line from the `bind` lines that have the list.
fn without(running: &Running, list: &CrtList, path: &str, number: Option<u32>) -> Result<(), String> {
    let mut defaults = String::new();
    let mut changes = Vec::new();
    for place in places_of(running, &list.name) {
        let at = &place.bind.at;
        let mut settings = Settings::clone(&place.listener.settings());
        let is_it = |entry: &Entry| {
            entry.pair.path == path
                && match list.is_directory {
                    true => entry.from == (at.file.clone(), at.line),
                    false => *entry.from.0 == *list.name && number == Some(entry.from.1),
                }
        };
        let Some(index) = settings.entries.iter().rposition(is_it) else { continue };
        if (index == 0 || settings.entries[index].is_default) && !settings.strict_sni {
            defaults.push_str(&format!("\t- {}:{}\n", at.file, at.line));
        }
        settings.entries.remove(index);
        changes.push((place.listener, settings));
    }
    if !defaults.is_empty() {
        return Err(format!(
            "certificate '{path}' cannot be deleted, it is used as default certificate by the following \
             frontends:\n{}",
            defaults.trim_end()
        ));
    }
    replace(changes)
}

/// Which names are printed.
struct Wanted {
    frontend: Option<String>,
    /// Certificates that have expired by this time, in seconds.
    expired_by: Option<i64>,
}

fn wanted(call: &Call<'_>) -> Result<Wanted, String> {
    let (mut frontend, mut expired, mut offset) = (None, false, 0);
    let mut next = 0;
    while !call.arg(next).is_empty() {
        let value = call.arg(next + 1);
        match call.arg(next) {
            "-f" if value.is_empty() => return Err("'-f' requires a frontend name!".to_owned()),
            "-f" => {
                let has_name = |proxy: &&Arc<crate::running::ProxyRun>| {
                    proxy.config.kind != ProxyKind::Backend && &*proxy.config.name == value
                };
                if !call.running.proxies.iter().any(|proxy| has_name(&proxy)) {
                    return Err("Couldn't find the specified frontend!".to_owned());
                }
                frontend = Some(value.to_owned());
                next += 1;
            }
            "-A" => expired = true,
            "-t" if value.is_empty() => return Err("'-t' requires an offset argument!".to_owned()),
            "-t" => {
                offset = offset_of(value)?;
                next += 1;
            }
            _ => {
                return Err("Invalid parameters, 'show ssl sni' only supports '-f', '-A' or '-t' options!".to_owned());
            }
        }
        next += 1;
    }
    Ok(Wanted { frontend, expired_by: expired.then(|| unix_seconds().saturating_add(offset)) })
}

/// Reads a number of seconds, or a number with a unit of time; errors are HAProxy's texts.
fn offset_of(text: &str) -> Result<i64, String> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let seconds = match (delay(text), &text[end..]) {
        // As in HAProxy, a part of a second counts as one.
        (Some(time), unit) if !unit.is_empty() => Some(time.as_secs() + u64::from(time.subsec_nanos() > 0)),
        (_, "") => text.parse().ok(),
        (None, "us" | "ms" | "s" | "m" | "h" | "d") if end > 0 => None,
        (_, rest) => {
            let letter = rest.chars().next().unwrap_or('?');
            return Err(format!("'-t {text}' : unexpected character '{letter}'"));
        }
    };
    match seconds.filter(|seconds| *seconds <= i32::MAX as u64) {
        None => Err(format!("offset overflow '{text}' (maximum value is 2147483647s or ~24855 days)")),
        Some(0) => Err("'-t' expects a positive value".to_owned()),
        Some(seconds) => Ok(seconds as i64),
    }
}

fn show_sni(mut call: Call<'_>) -> Answer<'_> {
    Box::pin(async move {
        let wanted = match wanted(&call) {
            Ok(wanted) => wanted,
            Err(message) => {
                call.say(message);
                return Ok(());
            }
        };
        call.out.push("# Frontend/Bind\tSNI\tNegative Filter\tType\tFilename\tNotAfter\tNotBefore\n");
        let running = call.running.clone();
        for place in places(&running) {
            let name = &place.proxy.config.name;
            if wanted.frontend.as_ref().is_some_and(|frontend| **frontend != **name) {
                continue;
            }
            let settings = place.listener.settings();
            for shown in names(&settings) {
                let leaf = shown.pair.leaf();
                if wanted.expired_by.is_some_and(|time| leaf.not_after().is_none_or(|end| end >= time)) {
                    continue;
                }
                let kind = match shown.pair.key_type() {
                    KeyType::Ecdsa(_) => "ecdsa",
                    KeyType::Rsa => "rsa",
                    _ => "dsa",
                };
                let negative = if shown.negative.is_empty() { "-" } else { &shown.negative };
                call.out.push(format!(
                    "{name}/{}:{}\t{}{}\t{negative}\t{kind}\t{}\t{}\t{}\n",
                    place.bind.at.file,
                    place.bind.at.line,
                    if shown.is_wild { "*" } else { "" },
                    shown.name,
                    shown.pair.path,
                    leaf.not_after_text(),
                    leaf.not_before_text(),
                ));
                call.out.drain().await?;
            }
        }
        Ok(())
    })
}

/// A name that a line answers for.
struct Shown<'a> {
    is_wild: bool,
    /// In lower case, behind the asterisk.
    name: String,
    /// The excluded names of its own line, each with its mark and a blank behind it.
    negative: String,
    pair: &'a Arc<Pair>,
}

/// Returns the names of a line in HAProxy's order: those without an asterisk first, each kind sorted.
fn names(settings: &Settings) -> Vec<Shown<'_>> {
    let mut all: Vec<Shown<'_>> = Vec::new();
    for entry in &settings.entries {
        let first = all.len();
        let filters = entry.filters.as_deref().unwrap_or_else(|| entry.pair.names());
        let excluded = filters.iter().filter_map(|filter| filter.strip_prefix('!'));
        let excluded = excluded.filter(|name| !name.is_empty() && !name.starts_with('*'));
        let negative: String = excluded.map(|name| format!("!{} ", name.to_ascii_lowercase())).collect();
        let mut add = |is_wild: bool, name: &str| {
            let name = name.to_ascii_lowercase();
            // As in HAProxy, a line has a name once.
            if all[first..].iter().any(|known| known.is_wild == is_wild && known.name == name) {
                return;
            }
            let negative = if is_wild { negative.clone() } else { String::new() };
            all.push(Shown { is_wild, name, negative, pair: &entry.pair });
        };
        // A line has a default even if it may not be used.
        if entry.is_default && !filters.iter().any(|filter| filter == "*") {
            add(true, "");
        }
        for filter in filters.iter().filter(|filter| !filter.starts_with('!') && !filter.is_empty()) {
            match filter.strip_prefix('*') {
                Some(name) => add(true, name),
                None => add(false, filter),
            }
        }
    }
    all.sort_by(|one, other| (one.is_wild, &one.name).cmp(&(other.is_wild, &other.name)));
    all
}
