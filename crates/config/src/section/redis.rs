//! `redis`: an engine in another process, and the limits of its use.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::Files;
use crate::address;
use crate::catalogue::Contexts;
use crate::diagnostic::Diagnostics;
use crate::model::{
    EngineAddress, EngineMode, EngineServer, EngineTls, OnError, Position, RedisSection, ServerAddress, ServerPort,
};
use crate::section::table::{self, Row, Table};
use crate::section::{Section, SectionKind};
use crate::suggest;
use crate::unit::{self, TimeUnit};
use crate::word::Line;

/// Redis's default port.
const PORT: u16 = 6379;
/// The default port of a sentinel.
const SENTINEL_PORT: u16 = 26379;
/// The usual file of the system's trusted authorities.
const SYSTEM_CA: &str = "/etc/ssl/certs/ca-certificates.crt";

/// A `redis` section while it is being read.
pub(crate) struct EngineReader<'d> {
    /// The servers, and whether the line of each names no port.
    servers: Vec<(EngineServer, bool)>,
    mode: &'static str,
    /// Keywords that belong to a mode or to `ssl`, by name: the line's position and the argument.
    parts: HashMap<&'static str, (Position, Part)>,
    files: &'d dyn Files,
    section: RedisSection,
    diagnostics: &'d mut Diagnostics,
}

/// The argument of a keyword that is checked when all lines are known.
enum Part {
    Flag,
    Text(String),
    User(Option<String>, String),
    File(Vec<u8>),
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
        "The user name; the default user if only a password is given.",
        |reader, line| {
            let user = (line.len() == 3).then(|| line.text(1).to_owned());
            reader.section.auth = Some((user, line.text(line.len() - 1).to_owned()));
        },
    ),
    row(
        "ca-file",
        (1, 1),
        "FILE",
        "The authorities that may have signed an engine's certificate, in PEM; `@system-ca`: those of the system.",
        |reader, line| reader.file("ca-file", line),
    ),
    row(
        "breaker",
        (1, 1),
        "N",
        "Failures in a row (5) after which commands fail immediately; after a pause of 20 to 500 ms one of them is let \
         through as a probe.",
        |reader, line| reader.number(line, 1, 1_000_000, |section| &mut section.breaker),
    ),
    row(
        "client-cache",
        (1, 1),
        "SIZE",
        "Size in bytes of the cache of replies, which engines invalidate when keys change (CLIENT TRACKING); for \
         commands that read one key. 0, the default: no cache.",
        |reader, line| match unit::size(line.text(1), 1 << 40) {
            Ok(bytes) => reader.section.client_cache = Some(bytes),
            Err(message) => {
                reader.diagnostics.error(line.at(1), message).hint(unit::SIZE_HINT);
            }
        },
    ),
    row("connect-rate", (1, 1), "N", "Maximum number of connection attempts per second (20).", |reader, line| {
        reader.number(line, 1, 1_000_000, |section| &mut section.connect_rate)
    }),
    row("crt", (1, 1), "FILE", "The client certificate presented to engines, with its key, in PEM.", |reader, line| {
        reader.file("crt", line)
    }),
    row("db", (1, 1), "N", "The database of rules, and of scripts that do not set one (0).", |reader, line| {
        if let Some(number) = reader.integer(line, 0, i64::from(u32::MAX)) {
            reader.section.db = number as u32;
        }
    }),
    row(
        "max-lifetime",
        (1, 1),
        "TIME",
        "Approximate maximum age of a connection (30m), varied by a tenth so that connections are not renewed \
         together; 0: unlimited.",
        |reader, line| reader.time(line, 1, |section| &mut section.max_lifetime),
    ),
    row(
        "maxconn",
        (1, 1),
        "N",
        "Maximum number of connections of the process (20), including those being opened. Each worker and database has \
         its own connection, as long as there are enough.",
        |reader, line| reader.number(line, 1, 100_000, |section| &mut section.maxconn),
    ),
    row(
        "maxqueue",
        (1, 1),
        "N",
        "Maximum number of commands that wait for a connection (1000); the next one fails with QUEUEFULL.",
        |reader, line| reader.number(line, 1, 10_000_000, |section| &mut section.maxqueue),
    ),
    row(
        "mode",
        (1, 1),
        "single | sentinel | cluster",
        "The role of the `server` lines: the engine itself; sentinels, which know the engine's address; or nodes of a \
         cluster, some of which are enough, since they know the others.",
        |reader, line| {
            const MODES: [&str; 3] = ["single", "sentinel", "cluster"];
            match MODES.into_iter().find(|mode| *mode == line.text(1)) {
                Some(mode) => reader.mode = mode,
                None => {
                    let near = suggest::nearest(line.text(1), MODES);
                    let message = format!("unknown mode '{}'", line.text(1));
                    reader.diagnostics.error(line.at(1), message).did_you_mean(near);
                }
            }
        },
    ),
    row(
        "on-error",
        (1, 1),
        "open | closed | value:V",
        "The result of a 'store-call' that fails and has no 'on-error' of its own.",
        |reader, line| {
            if let Some(on_error) = on_error(line, 1, reader.diagnostics) {
                reader.section.on_error = on_error;
            }
        },
    ),
    row(
        "read-from",
        (1, 1),
        "master | replica",
        "With `mode cluster` and `mode sentinel`: the target of read-only commands (master). Replicas may return older \
         data; a key is read from the same replica as long as that answers.",
        |reader, line| match line.text(1) {
            word @ ("master" | "replica") => reader.part("read-from", line, Part::Text(word.to_owned())),
            other => {
                let near = suggest::nearest(other, ["master", "replica"]);
                let message = format!("'read-from' expects 'master' or 'replica', not '{other}'");
                reader.diagnostics.error(line.at(1), message).did_you_mean(near);
            }
        },
    ),
    row("sentinel-auth", (1, 2), "[USER] PASSWORD", "The user name for the sentinels.", |reader, line| {
        let user = (line.len() == 3).then(|| line.text(1).to_owned());
        reader.part("sentinel-auth", line, Part::User(user, line.text(line.len() - 1).to_owned()));
    }),
    row("sentinel-master", (1, 1), "NAME", "The master's name in the sentinels' configuration.", |reader, line| {
        reader.part("sentinel-master", line, Part::Text(line.text(1).to_owned()))
    }),
    row(
        "server",
        (2, 2),
        "NAME ADDRESS",
        "The address of the engine: `HOST:PORT` (6379, a sentinel's 26379), or `unix@PATH` with `mode single`. Names \
         are resolved at each connect.",
        |reader, line| reader.server(line),
    ),
    row(
        "sni",
        (1, 1),
        "NAME",
        "The name that an engine's certificate must be valid for, also sent in the handshake (the address's).",
        |reader, line| reader.part("sni", line, Part::Text(line.text(1).to_owned())),
    ),
    row("ssl", (0, 0), "", "Connections are encrypted, including those to sentinels.", |reader, line| {
        reader.part("ssl", line, Part::Flag)
    }),
    row("timeout connect", (1, 1), "TIME", "Maximum time for connecting and the handshake (1s).", |reader, line| {
        reader.time(line, 2, |section| &mut section.timeout_connect)
    }),
    row(
        "timeout idle",
        (1, 1),
        "TIME",
        "Idle time after which a connection is closed (5m); 0: never.",
        |reader, line| reader.time(line, 2, |section| &mut section.timeout_idle),
    ),
    row(
        "timeout queue",
        (1, 1),
        "TIME",
        "Maximum time for which a command waits for a connection (1s); then it fails with QUEUETIMEOUT or, if the \
         engine cannot be reached, CONNECT.",
        |reader, line| reader.time(line, 2, |section| &mut section.timeout_queue),
    ),
    row(
        "timeout server",
        (1, 1),
        "TIME",
        "Maximum time from sending a command to its reply (1s); then it fails with TIMEOUT, and its connection is \
         replaced.",
        |reader, line| reader.time(line, 2, |section| &mut section.timeout_server),
    ),
    row(
        "verify",
        (1, 1),
        "required | none",
        "Whether an engine's certificate is verified: signed by an authority of `ca-file`, and valid for its name \
         (required).",
        |reader, line| match line.text(1) {
            word @ ("required" | "none") => reader.part("verify", line, Part::Text(word.to_owned())),
            other => {
                let near = suggest::nearest(other, ["required", "none"]);
                let message = format!("'verify' expects 'required' or 'none', not '{other}'");
                reader.diagnostics.error(line.at(1), message).did_you_mean(near);
            }
        },
    ),
]);

/// Reads the `redis` sections.
pub(crate) fn engines(sections: &[Section], files: &dyn Files, diagnostics: &mut Diagnostics) -> Vec<RedisSection> {
    let mut engines = Vec::new();
    for section in sections.iter().filter(|section| section.kind == SectionKind::Redis) {
        let mut reader = EngineReader {
            servers: Vec::new(),
            mode: "single",
            parts: HashMap::new(),
            files,
            section: RedisSection {
                client_cache: None,
                name: section.name.clone(),
                mode: EngineMode::Single,
                servers: Vec::new(),
                tls: None,
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
                None => table::unknown(&KEYWORDS, &[], Contexts::REDIS, "redis", line, reader.diagnostics),
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
        match self.diagnostics.duration(line.at(index), line.text(index), TimeUnit::Milliseconds) {
            Ok(time) => *field(&mut self.section) = Some(time),
            Err(message) => {
                self.diagnostics.error(line.at(index), message).hint(unit::TIME_HINT);
            }
        }
    }

    fn server(&mut self, line: &Line) {
        let name = line.text(1);
        if let Some(earlier) = self.servers.iter().map(|(server, _)| server).find(|server| server.name == name) {
            let message = format!("the server '{name}' was declared at {}:{}", earlier.at.file, earlier.at.line);
            self.diagnostics.error(line.at(1), message);
            return;
        }
        let address = match address::server(line.address(2)) {
            Ok(ServerAddress::Inet(ip, _)) if ip.is_unspecified() => {
                let message = format!("'{}' is no address of an engine", line.text(2));
                self.diagnostics.error(line.at(2), message).hint("write ADDRESS:PORT, for example '10.0.0.1:6379'");
                return;
            }
            Ok(address) => address,
            Err(error) => {
                let told = self.diagnostics.error(line.within_address(2, error.offset), error.message);
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
        let bare = matches!(
            address,
            ServerAddress::Inet(_, ServerPort::Offset(_)) | ServerAddress::Name(_, ServerPort::Offset(_))
        );
        let address = match address {
            ServerAddress::Inet(ip, given) => port(given).map(|port| EngineAddress::Tcp(ip.to_string(), port)),
            ServerAddress::Name(name, given) => port(given).map(|port| EngineAddress::Tcp(name, port)),
            ServerAddress::Unix(path) => Some(EngineAddress::Unix(path)),
            ServerAddress::Abstract(_) | ServerAddress::Sockpair(_) | ServerAddress::Reverse => None,
        };
        match address {
            Some(address) => {
                self.servers.push((EngineServer { name: name.to_owned(), address, at: line.at(1) }, bare));
            }
            None => {
                let message = format!("an engine can't be at '{}'", line.text(2));
                self.diagnostics.error(line.at(2), message).hint("write HOST:PORT or unix@PATH");
            }
        }
    }

    fn part(&mut self, name: &'static str, line: &Line, part: Part) {
        self.parts.insert(name, (line.at(0), part));
    }

    fn file(&mut self, name: &'static str, line: &Line) {
        let path = match line.text(1) {
            "@system-ca" if name == "ca-file" => SYSTEM_CA,
            path => path,
        };
        self.files.stand_at(&line.at(1));
        match self.files.read(Path::new(path)) {
            Ok(bytes) => self.part(name, line, Part::File(bytes)),
            Err(error) => {
                self.diagnostics.error(line.at(1), format!("'{name}': cannot read '{path}': {error}"));
                // Avoids a second error: the file counts as given, though its contents are unknown.
                self.part(name, line, Part::File(Vec::new()));
            }
        }
    }

    fn take(&mut self, name: &str) -> Option<(Position, Part)> {
        self.parts.remove(name)
    }

    fn take_text(&mut self, name: &str) -> Option<String> {
        match self.take(name) {
            Some((_, Part::Text(text))) => Some(text),
            _ => None,
        }
    }

    fn take_file(&mut self, name: &str) -> Option<Vec<u8>> {
        match self.take(name) {
            Some((_, Part::File(bytes))) => Some(bytes),
            _ => None,
        }
    }

    fn take_read_from(&mut self) -> bool {
        self.take_text("read-from").as_deref() == Some("replica")
    }

    fn mode(&mut self) -> EngineMode {
        match self.mode {
            "sentinel" => {
                let name = self.section.name.clone();
                let master = self.take_text("sentinel-master").unwrap_or_else(|| {
                    let message = format!("redis '{name}' is found through sentinels, but has no 'sentinel-master'");
                    let error = self.diagnostics.error(self.section.at.clone(), message);
                    error.hint("add 'sentinel-master NAME' with the name of 'sentinel monitor NAME …'");
                    String::new()
                });
                let auth = match self.take("sentinel-auth") {
                    Some((_, Part::User(user, password))) => Some((user, password)),
                    _ => None,
                };
                EngineMode::Sentinel { master, auth, from_replicas: self.take_read_from() }
            }
            "cluster" => {
                if self.section.db != 0 {
                    let message = format!("redis '{}': a cluster has database 0 only", self.section.name);
                    self.diagnostics.error(self.section.at.clone(), message);
                }
                EngineMode::Cluster { from_replicas: self.take_read_from() }
            }
            _ => EngineMode::Single,
        }
    }

    fn tls(&mut self) -> Option<EngineTls> {
        let (at, _) = self.take("ssl")?;
        let required = self.take_text("verify").as_deref() != Some("none");
        let authorities = self.take_file("ca-file");
        if required && authorities.is_none() {
            let message = "'ssl' verifies certificates, but no 'ca-file' says by whom they are signed";
            let error = self.diagnostics.error(at.clone(), message.to_owned());
            error.hint("add 'ca-file FILE', 'ca-file @system-ca' or 'verify none'");
        }
        Some(EngineTls {
            authorities: authorities.filter(|_| required),
            certificate: self.take_file("crt"),
            name: self.take_text("sni"),
            at,
        })
    }

    fn finish(mut self) -> RedisSection {
        let name: Arc<str> = self.section.name.clone();
        self.section.mode = self.mode();
        self.section.tls = self.tls();
        let mut unused: Vec<(&str, Position)> = self.parts.drain().map(|(word, (at, _))| (word, at)).collect();
        unused.sort_by_key(|(_, at)| at.line);
        for (word, at) in unused {
            let needed = match word {
                "sentinel-auth" | "sentinel-master" => "mode sentinel",
                "read-from" => "mode cluster' or 'mode sentinel",
                _ => "ssl",
            };
            self.diagnostics.error(at, format!("'{word}' has no effect without '{needed}'"));
        }
        for (mut server, bare) in std::mem::take(&mut self.servers) {
            match &mut server.address {
                EngineAddress::Tcp(_, port) if bare && self.mode == "sentinel" => *port = SENTINEL_PORT,
                EngineAddress::Tcp(..) => {}
                EngineAddress::Unix(_) if self.mode != "single" || self.section.tls.is_some() => {
                    let word = if self.mode == "single" { "ssl".to_owned() } else { format!("mode {}", self.mode) };
                    let message = format!("with '{word}' a server has HOST:PORT, not a unix socket");
                    self.diagnostics.error(server.at.clone(), message);
                }
                EngineAddress::Unix(_) => {}
            }
            self.section.servers.push(server);
        }
        match &self.section.servers[..] {
            [] => {
                let error = self.diagnostics.error(self.section.at.clone(), format!("redis '{name}' has no server"));
                error.hint("add 'server NAME HOST:PORT'");
            }
            [_, second, ..] if self.mode == "single" => {
                let message = format!("redis '{name}' has a second server: 'mode single' has one");
                let error = self.diagnostics.error(second.at.clone(), message);
                error.hint("add 'mode cluster' or 'mode sentinel' if that is what they are");
            }
            _ => {}
        }
        self.section
    }
}
