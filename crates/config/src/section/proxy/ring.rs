//! `ring` sections (HAProxy configuration manual 12.5), and the rings of `log` lines whose target is a stream.
//!
//! A ring's servers are read like those of a backend, so a ring has a proxy of its own, which is in no list of proxies.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{ProxyReader, Settings};
use crate::catalogue::{Contexts, known};
use crate::diagnostic::Diagnostics;
use crate::limits;
use crate::model::{Config, LogAddress, LogTarget, LogWire, Position, Proxy, ProxyKind, Ring, Server};
use crate::section::server::{self, ServerSettings};
use crate::section::table::{self, MANY, Row, Table};
use crate::section::{Section, log};
use crate::suggest;
use crate::unit::{self, SIZE_HINT};
use crate::word::Line;

/// The reader of a section's lines.
pub(crate) struct RingReader<'r, 'a> {
    format: LogWire,
    max_len: Option<usize>,
    size: usize,
    backing: Option<PathBuf>,
    description: Option<Arc<str>>,
    proxy: &'r mut ProxyReader<'a>,
}

pub(crate) type RingParser = for<'r, 'a> fn(&mut RingReader<'r, 'a>, &Line);

const fn row(
    name: &'static str,
    (min, max): (usize, usize),
    usage: &'static str,
    docs: &'static str,
    parser: RingParser,
) -> Row<RingParser> {
    Row { name, contexts: Contexts::RING, min, max, usage, docs, parser }
}

/// The keywords of `ring`.
pub(crate) static KEYWORDS: Table<RingParser> = Table::new(&[
    row(
        "backing-file",
        (1, 1),
        "FILE",
        "Keeps the ring in this file, which has the layout of HAProxy's and is found there after a crash. A file with \
         messages in it is renamed to FILE.bak first. 'size' stands before it.",
        |r, line| match &r.backing {
            Some(other) => {
                let message = format!(
                    "'backing-file' already specified for ring '{}' (was '{}')",
                    r.proxy.settings.proxy.name,
                    other.display()
                );
                r.proxy.diagnostics.error(line.at(0), message);
            }
            None => r.backing = Some(line.text(1).into()),
        },
    ),
    row("description", (1, 1), "TEXT", "The description in 'show events'; the name by default.", |r, line| {
        r.description = Some(line.text(1).into());
    }),
    row(
        "format",
        (1, 1),
        "raw|iso|local|priority|rfc3164|rfc5424|short|timed",
        "The format of the messages, whatever the 'log' line has; raw.",
        |r, line| {
            if let Some(format) = log::wire(line, 1, r.proxy.diagnostics) {
                r.format = format;
            }
        },
    ),
    row(
        "maxlen",
        (1, 1),
        "BYTES",
        "The maximum length of a message with its header; the end of a longer one is cut off. Not set.",
        |r, line| match unit::leading_integer(line.text(1), 1, i64::from(u32::MAX)) {
            Ok(len) => r.max_len = Some(len as usize),
            Err(message) => {
                let message = format!("invalid size '{}' for new sink buffer: {message}", line.text(1));
                r.proxy.diagnostics.error(line.at(1), message);
            }
        },
    ),
    row(
        "server",
        (2, MANY),
        "NAME ADDRESS[:PORT] [OPTION]…",
        "A server that gets every message, by TCP or a unix stream, with 'log-proto' and the options of a backend's \
         server about its address, its source and TLS. Several servers get the same messages, at the speed of the slowest.",
        |r, line| server::server(r.proxy, line),
    ),
    row(
        "size",
        (1, 1),
        "BYTES",
        "The size of the buffer; the oldest messages make room for new ones. 16384.",
        |r, line| match unit::size(line.text(1), limits::RING_BYTES) {
            Ok(0) | Err(_) => {
                let message = format!("invalid size '{}' for new sink buffer", line.text(1));
                r.proxy.diagnostics.error(line.at(1), message).hint(SIZE_HINT);
            }
            Ok(_) if r.backing.is_some() => {
                let message = "cannot resize an already mapped file, please specify 'size' before 'backing-file'";
                r.proxy.diagnostics.error(line.at(0), message);
            }
            Ok(size) => r.size = size as usize,
        },
    ),
    row("timeout connect", (1, 1), "TIME", "The time limit of a connection attempt.", |r, line| {
        r.proxy.timeout(line, |t| &mut t.connect)
    }),
    row("timeout server", (1, 1), "TIME", "The time for which a server may leave messages unread.", |r, line| {
        r.proxy.timeout(line, |t| &mut t.server)
    }),
]);

/// Reads a section. `before` are the rings that were read already.
pub(super) fn read(proxy: &mut ProxyReader<'_>, section: &Section, before: &[Ring]) -> Option<Ring> {
    let name = &section.name;
    if Ring::BUILT_IN.contains(&&**name) || before.iter().any(|ring| ring.name == *name) {
        proxy.diagnostics.error(section.at.clone(), format!("sink named '{name}' already exists"));
        return None;
    }
    let (format, size) = (LogWire::Raw, Ring::SIZE);
    let mut reader = RingReader { format, size, max_len: None, backing: None, description: None, proxy };
    for line in &section.lines {
        match KEYWORDS.find(line.text(0), line.text(1)) {
            Some((row, words)) => {
                if table::arity(row, words, line, reader.proxy.diagnostics) {
                    (row.parser)(&mut reader, line);
                }
            }
            None => {
                table::unknown(&KEYWORDS, known::NONE, Contexts::RING, "ring", line, reader.proxy.diagnostics);
            }
        }
    }
    let RingReader { format, mut max_len, size, backing, description, .. } = reader;
    let most = Ring::max_payload(size);
    if let Some(len) = max_len.filter(|len| *len > most) {
        let message = format!("ring '{name}' event max length '{len}' exceeds max payload size, forced to '{most}'");
        proxy.diagnostics.warning(section.at.clone(), message);
        max_len = Some(most);
    }
    proxy.finish_servers();
    for server in &mut proxy.settings.proxy.servers {
        if server.send_proxy.take().is_some() {
            let message = "'send-proxy*' server option is unsupported there, ignoring it";
            proxy.diagnostics.warning(server.at.clone(), message);
        }
    }
    server::finish::number(&mut proxy.settings.proxy.servers);
    Some(Ring {
        name: name.clone(),
        description: description.unwrap_or_else(|| name.clone()),
        format: Some(format),
        // Without `maxlen` a message is only cut where it would not fit.
        max_len: Some(max_len.unwrap_or(most)),
        size,
        backing,
        proxy: proxy.settings.proxy.clone(),
        backend: None,
        at: section.at.clone(),
    })
}

/// Returns the settings of the proxy that a section's servers belong to.
pub(super) fn settings(section: &Section) -> Settings {
    Settings { proxy: Proxy::new(section.name.clone(), ProxyKind::Backend, section.at.clone()), ..Settings::new() }
}

/// Finds the rings that `log` lines name, and gives those that name a stream a ring of their own.
pub(crate) fn resolve(config: &mut Config, diagnostics: &mut Diagnostics) {
    let mut made: Vec<(Position, Arc<str>)> = Vec::new();
    let names: Vec<Arc<str>> = config.rings.iter().map(|ring| ring.name.clone()).collect();
    let proxies = config.proxies.iter_mut().flat_map(Proxy::log_lists).map(|(owner, targets)| (Some(owner), targets));
    for (owner, targets) in [(None, &mut config.global.log)].into_iter().chain(proxies) {
        for target in targets {
            match &target.to {
                LogAddress::Ring(name) => unknown(owner.as_deref(), target, name, &names, diagnostics),
                LogAddress::Stream(_) => {
                    // Copies of a line, by `log global`, share its ring.
                    let known = made.iter().find(|(at, _)| *at == target.at).map(|(_, name)| name.clone());
                    let name = known.unwrap_or_else(|| {
                        let name: Arc<str> = format!("ring#{}", made.len() + 1).into();
                        config.rings.extend(implicit(&name, target));
                        made.push((target.at.clone(), name.clone()));
                        name
                    });
                    target.to = LogAddress::Ring(name);
                }
                _ => {}
            }
        }
    }
}

fn unknown(owner: Option<&str>, target: &LogTarget, name: &str, names: &[Arc<str>], diagnostics: &mut Diagnostics) {
    if names.iter().any(|known| **known == *name) || matches!(name, "buf0" | "dpapi") {
        return;
    }
    let kind = if Ring::BUILT_IN.contains(&name) { "incompatible ring" } else { "unknown ring named" };
    complain(owner, target, (&format!("{kind} '{name}'"), name), names.iter().map(|name| &**name), diagnostics);
}

/// Reports what a `log` line uses. `known` are the names that it could have.
pub(super) fn complain<'a>(
    owner: Option<&str>,
    target: &LogTarget,
    (what, name): (&str, &str),
    known: impl IntoIterator<Item = &'a str>,
    diagnostics: &mut Diagnostics,
) {
    let Position { file, line, .. } = &target.at;
    let message = match owner {
        None => format!("global log directive declared in file {file} at line '{line}' uses {what}"),
        Some(owner) => {
            format!("log directive declared in {owner} in file '{file}' at line {line} uses {what}")
        }
    };
    diagnostics.error(target.at.clone(), message).did_you_mean(suggest::nearest(name, known));
}

/// Returns the ring of a `log` line whose target is a stream.
fn implicit(name: &Arc<str>, target: &LogTarget) -> Option<Ring> {
    let LogAddress::Stream(address) = &target.to else { return None };
    let mut proxy = Proxy::new(name.clone(), ProxyKind::Backend, target.at.clone());
    proxy.timeouts.connect = Some(Duration::from_secs(1));
    proxy.timeouts.server = Some(Duration::from_secs(5));
    let server = ServerSettings::default().server(name.clone(), address.clone(), target.at.clone());
    proxy.servers.push(Server { sid: 1, ..server });
    let Position { file, line, .. } = &target.at;
    Some(Ring {
        name: name.clone(),
        description: format!("created from log directive declared into '{file}' at line {line}").into(),
        format: None,
        max_len: None,
        size: Ring::SIZE,
        backing: None,
        proxy,
        backend: None,
        at: target.at.clone(),
    })
}
