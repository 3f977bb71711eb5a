//! `resolvers` (HAProxy configuration manual 5.3.2).

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::Files;
use crate::address;
use crate::catalogue::{Contexts, known};
use crate::diagnostic::Diagnostics;
use crate::model::{DnsFamilies, Hold, Nameserver, Resolvers};
use crate::names;
use crate::section::table::{self, Row, Table};
use crate::section::{Section, SectionKind};
use crate::unit::{self, TIME_HINT, TimeUnit};
use crate::word::Line;
use crate::word::bad_name_byte;

/// The system's own list of name servers.
const SYSTEM: &str = "/etc/resolv.conf";
/// The name of the implicit section.
const DEFAULT: &str = "default";
/// The maximum number of name servers of a section.
const NAMESERVERS: usize = 64;

/// The reader of a section's lines.
pub(crate) struct ResolversReader<'a> {
    section: Resolvers,
    files: &'a dyn Files,
    diagnostics: &'a mut Diagnostics,
}

pub(crate) type ResolversParser = fn(&mut ResolversReader<'_>, &Line);

const fn row(
    name: &'static str,
    arguments: usize,
    usage: &'static str,
    docs: &'static str,
    parser: ResolversParser,
) -> Row<ResolversParser> {
    Row { name, contexts: Contexts::RESOLVERS, min: arguments, max: arguments, usage, docs, parser }
}

/// The keywords of `resolvers`.
pub(crate) static KEYWORDS: Table<ResolversParser> = Table::new(&[
    row(
        "accepted_payload_size",
        1,
        "BYTES",
        "The maximum size of a UDP answer, announced in questions, 12 to 65535; 512.",
        |r, line| match unit::integer(line.text(1), 12, 65535) {
            Ok(bytes) => r.section.payload = bytes as u16,
            Err(message) => r.wrong(line, 1, message),
        },
    ),
    row(
        "hold",
        2,
        "valid|obsolete|nx|refused|timeout|other TIME",
        "The validity of results: the age up to which rules use an answer ('valid', 10 s), the time for which an \
         address missing from the answers is still used ('obsolete', 0), and the time for which a server stays in \
         service after answers without an address (30 s each).",
        |r, line| {
            let Some(time) = r.time(line, 2) else { return };
            let hold = &mut r.section.hold;
            let found = match line.text(1) {
                "valid" => &mut hold.valid,
                "obsolete" => &mut hold.obsolete,
                "nx" => &mut hold.nx,
                "refused" => &mut hold.refused,
                "timeout" => &mut hold.timeout,
                "other" => &mut hold.other,
                word => {
                    let message = format!("'{word}' is none of valid, obsolete, nx, refused, timeout, other");
                    return r.wrong(line, 1, message);
                }
            };
            *found = time;
        },
    ),
    row(
        "nameserver",
        2,
        "NAME [udp@|tcp@]ADDRESS:PORT",
        "A name server; all of a section are queried, and the first valid answer is used.",
        |r, line| r.nameserver(line),
    ),
    row(
        "parse-resolv-conf",
        0,
        "",
        "The name servers of /etc/resolv.conf, port 53, each named by its address.",
        |r, line| {
            let files = r.files;
            match system(files) {
                Ok(servers) => servers.into_iter().for_each(|server| r.add(line, server)),
                Err(error) => _ = r.diagnostics.error(line.at(0), format!("{SYSTEM}: {error}")),
            }
        },
    ),
    row("resolve_retries", 1, "N", "Maximum number of transmissions of a question; 3.", |r, line| match unit::integer(
        line.text(1),
        1,
        1000,
    ) {
        Ok(tries) => r.section.retries = tries as u32,
        Err(message) => r.wrong(line, 1, message),
    }),
    row("timeout resolve", 1, "TIME", "The interval between questions about a name; 1 s.", |r, line| {
        if let Some(time) = r.time(line, 2) {
            r.section.resolve = time.max(Duration::from_millis(1));
        }
    }),
    row("timeout retry", 1, "TIME", "The time after which an unanswered question is sent again; 1 s.", |r, line| {
        if let Some(time) = r.time(line, 2) {
            r.section.retry = time.max(Duration::from_millis(1));
        }
    }),
]);

/// Reads the `resolvers` sections. If none has the name `default`, a section of that name is added, with the name
/// servers of the system.
pub(crate) fn all(sections: &[Section], files: &dyn Files, diagnostics: &mut Diagnostics) -> Vec<Resolvers> {
    let mut found: Vec<Resolvers> = Vec::new();
    for section in sections.iter().filter(|section| section.kind == SectionKind::Resolvers) {
        if let Some(other) = found.iter().find(|other| other.name == section.name) {
            let at = other.at.as_ref().map_or(String::new(), |at| format!(" (declared at {}:{})", at.file, at.line));
            let message = format!("resolvers '{}' has same name as another resolvers{at}", section.name);
            diagnostics.error(section.at.clone(), message);
            continue;
        }
        let blank = Resolvers { at: Some(section.at.clone()), ..blank(section.name.clone()) };
        let mut reader = ResolversReader { section: blank, files, diagnostics };
        for line in &section.lines {
            match KEYWORDS.find(line.text(0), line.text(1)) {
                Some((row, words)) => {
                    if table::arity(row, words, line, reader.diagnostics) {
                        (row.parser)(&mut reader, line);
                    }
                }
                None => {
                    let context = Contexts::RESOLVERS;
                    table::unknown(&KEYWORDS, known::NONE, context, "resolvers", line, reader.diagnostics);
                }
            }
        }
        found.push(reader.section);
    }
    if !found.iter().any(|section| &*section.name == DEFAULT) {
        // The section exists even if the system has no list.
        found.push(Resolvers { nameservers: system(files).unwrap_or_default(), ..blank(DEFAULT.into()) });
    }
    found
}

fn blank(name: Arc<str>) -> Resolvers {
    let (second, half_minute) = (Duration::from_secs(1), Duration::from_secs(30));
    Resolvers {
        name,
        nameservers: Vec::new(),
        families: DnsFamilies::default(),
        retries: 3,
        resolve: second,
        retry: second,
        hold: Hold {
            valid: Duration::from_secs(10),
            obsolete: Duration::ZERO,
            nx: half_minute,
            refused: half_minute,
            timeout: half_minute,
            other: half_minute,
        },
        payload: 512,
        at: None,
    }
}

/// Returns the name servers of the system; as in the C library, lines that name none are ignored.
fn system(files: &dyn Files) -> std::io::Result<Vec<Nameserver>> {
    let text = files.read(Path::new(SYSTEM))?;
    let text = String::from_utf8_lossy(&text);
    let mut servers: Vec<Nameserver> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(word) = words.next().filter(|word| *word == "nameserver").and_then(|_| words.next()) else { continue };
        let Ok(ip) = word.parse::<IpAddr>() else { continue };
        if servers.iter().all(|server| &*server.name != word) && servers.len() < NAMESERVERS {
            servers.push(Nameserver { name: word.into(), address: SocketAddr::new(ip, 53), tcp: false });
        }
    }
    Ok(servers)
}

impl ResolversReader<'_> {
    fn wrong(&mut self, line: &Line, index: usize, message: impl std::fmt::Display) {
        self.diagnostics.error(line.at(index), format!("'{}': {message}", line.text(0)));
    }

    fn time(&mut self, line: &Line, index: usize) -> Option<Duration> {
        match self.diagnostics.duration(line.at(index), line.text(index), TimeUnit::Milliseconds) {
            Ok(time) => {
                let text = line.text(index);
                if unit::is_suspicious(text) {
                    let message = format!(
                        "'{} {} {text}' looks suspiciously small for a value in milliseconds. Please use an explicit \
                         unit ('{text}ms') if that was the intent",
                        line.text(0),
                        line.text(1)
                    );
                    self.diagnostics.warning(line.at(index), message);
                }
                Some(time)
            }
            Err(message) => {
                let message = format!("'{} {}': {message}", line.text(0), line.text(1));
                self.diagnostics.error(line.at(index), message).hint(TIME_HINT);
                None
            }
        }
    }

    fn nameserver(&mut self, line: &Line) {
        let name = line.text(1);
        if let Some(offset) = bad_name_byte(name) {
            let bad = name[offset..].chars().next().unwrap_or('?');
            let message = format!("character '{bad}' is not permitted in nameserver name '{name}'");
            self.diagnostics.error(line.within(1, offset), message);
            return;
        }
        let text = line.address(2);
        let read = match names::numeric(text, self.files) {
            Ok(text) => address::nameserver(&text),
            Err(message) => address::unresolved(message),
        };
        match read {
            Ok((address, tcp)) => self.add(line, Nameserver { name: name.into(), address, tcp }),
            Err(problem) => {
                let message = format!("'nameserver {name}': {}", problem.message);
                let error = self.diagnostics.error(line.within_address(2, problem.offset), message);
                if let Some(hint) = problem.hint {
                    error.hint(hint);
                }
            }
        }
    }

    fn add(&mut self, line: &Line, server: Nameserver) {
        let servers = &mut self.section.nameservers;
        if servers.iter().any(|other| other.name == server.name) {
            let message = format!("nameserver '{}' has same name as another nameserver", server.name);
            self.diagnostics.error(line.at(0), message);
        } else if servers.len() == NAMESERVERS {
            self.diagnostics.error(line.at(0), format!("more than {NAMESERVERS} name servers"));
        } else {
            servers.push(server);
        }
    }
}
