//! `redis`: an engine in another process, and the bounds of its use.

use std::sync::Arc;
use std::time::Duration;

use crate::address;
use crate::catalogue::Contexts;
use crate::diagnostic::Diagnostics;
use crate::model::{EngineAddress, EngineServer, OnError, RedisSection, ServerAddress, ServerPort};
use crate::section::table::{self, Row, Table};
use crate::section::{Section, SectionKind};
use crate::suggest;
use crate::unit::{self, TimeUnit};
use crate::word::Line;

/// Keywords that engines will have.
const LATER: &[&str] = &["ca-file", "client-cache", "crt", "read-from", "sentinel-master", "sni", "ssl", "verify"];

/// Redis's port where none is given.
const PORT: u16 = 6379;

/// A section while it is read.
pub(crate) struct EngineReader<'d> {
    servers: Vec<EngineServer>,
    section: RedisSection,
    diagnostics: &'d mut Diagnostics,
}

/// Reads one line.
pub(crate) type EngineParser = fn(&mut EngineReader<'_>, &Line);

const fn row(
    name: &'static str,
    (min, max): (usize, usize),
    usage: &'static str,
    docs: &'static str,
    parser: EngineParser,
) -> Row<EngineParser> {
    Row { name, contexts: Contexts::REDIS, min, max, usage, docs, parser }
}

/// The keywords of `redis`.
pub(crate) static KEYWORDS: Table<EngineParser> = Table::new(&[
    row(
        "auth",
        (1, 2),
        "[USER] PASSWORD",
        "Who asks; the default user where only a password is given.",
        |reader, line| {
            let user = (line.len() == 3).then(|| line.text(1).to_owned());
            reader.section.auth = Some((user, line.text(line.len() - 1).to_owned()));
        },
    ),
    row(
        "breaker",
        (1, 1),
        "N",
        "Failures in a row (5) after which commands fail at once; after a pause of 20 to 500 ms one of them is let \
         through to see whether the engine is back.",
        |reader, line| reader.number(line, 1, 1_000_000, |section| &mut section.breaker),
    ),
    row("connect-rate", (1, 1), "N", "Most attempts to connect in a second (20).", |reader, line| {
        reader.number(line, 1, 1_000_000, |section| &mut section.connect_rate)
    }),
    row("db", (1, 1), "N", "The database of rules, and of scripts that name none (0).", |reader, line| {
        if let Some(number) = reader.integer(line, 0, i64::from(u32::MAX)) {
            reader.section.db = number as u32;
        }
    }),
    row(
        "max-lifetime",
        (1, 1),
        "TIME",
        "About how old a connection gets (30m), a tenth more or less, so that they are not renewed together; 0: as old \
         as it likes.",
        |reader, line| reader.time(line, 1, |section| &mut section.max_lifetime),
    ),
    row(
        "maxconn",
        (1, 1),
        "N",
        "Most connections of the process (20), those that are being made included. Each worker and database has one of \
         its own, as long as there are enough.",
        |reader, line| reader.number(line, 1, 100_000, |section| &mut section.maxconn),
    ),
    row(
        "maxqueue",
        (1, 1),
        "N",
        "Most commands that wait for a connection (1000); the next one fails with QUEUEFULL.",
        |reader, line| reader.number(line, 1, 10_000_000, |section| &mut section.maxqueue),
    ),
    row("mode", (1, 1), "single", "What the engine is; Sentinel and Cluster are not available yet.", |reader, line| {
        match line.text(1) {
            "single" => {}
            mode @ ("sentinel" | "cluster") => {
                let message = format!("'mode {mode}' is not available yet");
                reader.diagnostics.error(line.at(1), message).hint("name one server with 'mode single'");
            }
            other => {
                let near = suggest::nearest(other, ["single", "sentinel", "cluster"]);
                let message = format!("unknown mode '{other}'");
                reader.diagnostics.error(line.at(1), message).did_you_mean(near);
            }
        }
    }),
    row(
        "on-error",
        (1, 1),
        "open | closed | value:V",
        "What a 'store-call' gets that can't be answered and says nothing itself.",
        |reader, line| {
            if let Some(on_error) = on_error(line, 1, reader.diagnostics) {
                reader.section.on_error = on_error;
            }
        },
    ),
    row(
        "server",
        (2, 2),
        "NAME ADDRESS",
        "Where the engine is: `HOST:PORT` (6379), or `unix@PATH`. Names are looked up at each connect.",
        |reader, line| reader.server(line),
    ),
    row("timeout connect", (1, 1), "TIME", "For connecting and the greeting (1s).", |reader, line| {
        reader.time(line, 2, |section| &mut section.timeout_connect)
    }),
    row(
        "timeout idle",
        (1, 1),
        "TIME",
        "A connection that nobody used for so long is closed (5m); 0: never.",
        |reader, line| reader.time(line, 2, |section| &mut section.timeout_idle),
    ),
    row(
        "timeout queue",
        (1, 1),
        "TIME",
        "How long a command waits for a connection (1s); then it fails with QUEUETIMEOUT or, where the engine can't be \
         reached, CONNECT.",
        |reader, line| reader.time(line, 2, |section| &mut section.timeout_queue),
    ),
    row(
        "timeout server",
        (1, 1),
        "TIME",
        "How long a command that was sent waits for its reply (1s); then it fails with TIMEOUT, and its connection is \
         renewed.",
        |reader, line| reader.time(line, 2, |section| &mut section.timeout_server),
    ),
]);

/// Types the `redis` sections.
pub(crate) fn engines(sections: &[Section], diagnostics: &mut Diagnostics) -> Vec<RedisSection> {
    let mut engines = Vec::new();
    for section in sections.iter().filter(|section| section.kind == SectionKind::Redis) {
        let empty =
            EngineServer { name: String::new(), address: EngineAddress::Tcp(String::new(), 0), at: section.at.clone() };
        let mut reader = EngineReader {
            servers: Vec::new(),
            section: RedisSection {
                name: section.name.clone(),
                server: empty,
                auth: None,
                db: 0,
                maxconn: None,
                maxqueue: None,
                timeout_connect: None,
                timeout_queue: None,
                timeout_server: None,
                timeout_idle: None,
                max_lifetime: None,
                connect_rate: None,
                breaker: None,
                on_error: OnError::default(),
                at: section.at.clone(),
            },
            diagnostics: &mut *diagnostics,
        };
        for line in &section.lines {
            match KEYWORDS.find(line.text(0), line.text(1)) {
                Some((row, words)) => {
                    if table::arity(row, words, line, reader.diagnostics) {
                        (row.parser)(&mut reader, line);
                    }
                }
                None => table::unknown(&KEYWORDS, LATER, Contexts::REDIS, "redis", line, reader.diagnostics),
            }
        }
        engines.push(reader.finish());
    }
    engines
}

/// `open`, `closed` or `value:V`.
pub(crate) fn on_error(line: &Line, index: usize, diagnostics: &mut Diagnostics) -> Option<OnError> {
    match line.text(index) {
        "open" => Some(OnError::Open),
        "closed" => Some(OnError::Closed),
        other => match other.strip_prefix("value:") {
            Some(value) => Some(OnError::Value(value.to_owned())),
            None => {
                let message = format!("'on-error' expects 'open', 'closed' or 'value:V', not '{other}'");
                let near = suggest::nearest(other, ["open", "closed"]);
                diagnostics.error(line.at(index), message).did_you_mean(near);
                None
            }
        },
    }
}

impl EngineReader<'_> {
    fn integer(&mut self, line: &Line, min: i64, max: i64) -> Option<i64> {
        match unit::integer(line.text(1), min, max) {
            Ok(number) => Some(number),
            Err(message) => {
                self.diagnostics.error(line.at(1), format!("'{}': {message}", line.text(0)));
                None
            }
        }
    }

    fn number(&mut self, line: &Line, min: i64, max: i64, field: fn(&mut RedisSection) -> &mut Option<u32>) {
        if let Some(number) = self.integer(line, min, max) {
            *field(&mut self.section) = Some(number as u32);
        }
    }

    fn time(&mut self, line: &Line, index: usize, field: fn(&mut RedisSection) -> &mut Option<Duration>) {
        match unit::time(line.text(index), TimeUnit::Milliseconds) {
            Ok(time) => *field(&mut self.section) = Some(time),
            Err(message) => {
                self.diagnostics.error(line.at(index), message).hint(unit::TIME_HINT);
            }
        }
    }

    fn server(&mut self, line: &Line) {
        let name = line.text(1);
        if let Some(earlier) = self.servers.iter().find(|server| server.name == name) {
            let message = format!("the server '{name}' was declared at {}:{}", earlier.at.file, earlier.at.line);
            self.diagnostics.error(line.at(1), message);
            return;
        }
        let address = match address::server(line.text(2)) {
            Ok(address) => address,
            Err(error) => {
                let told = self.diagnostics.error(line.within(2, error.offset), error.message);
                if let Some(hint) = error.hint {
                    told.hint(hint);
                }
                return;
            }
        };
        let port = |port: ServerPort| match port {
            ServerPort::Fixed(port) => Some(port),
            ServerPort::Offset(0) => Some(PORT),
            ServerPort::Offset(_) => None,
        };
        let address = match address {
            ServerAddress::Inet(ip, given) => port(given).map(|port| EngineAddress::Tcp(ip.to_string(), port)),
            ServerAddress::Name(name, given) => port(given).map(|port| EngineAddress::Tcp(name, port)),
            ServerAddress::Unix(path) => Some(EngineAddress::Unix(path)),
            ServerAddress::Abstract(_) => None,
        };
        match address {
            Some(address) => self.servers.push(EngineServer { name: name.to_owned(), address, at: line.at(1) }),
            None => {
                let message = format!("an engine can't be at '{}'", line.text(2));
                self.diagnostics.error(line.at(2), message).hint("write HOST:PORT or unix@PATH");
            }
        }
    }

    fn finish(mut self) -> RedisSection {
        let name: Arc<str> = self.section.name.clone();
        let mut servers = self.servers.into_iter();
        match servers.next() {
            Some(server) => self.section.server = server,
            None => {
                let error = self.diagnostics.error(self.section.at.clone(), format!("redis '{name}' has no server"));
                error.hint("add 'server NAME HOST:PORT'");
            }
        }
        if let Some(second) = servers.next() {
            let message = format!("redis '{name}' has a second server: 'mode single' has one");
            self.diagnostics.error(second.at, message);
        }
        self.section
    }
}
