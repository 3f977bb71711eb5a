//! Servers that come while the process runs (`add server` of the stats socket; management guide 9.3).

use crate::address::{self, Transport};
use crate::catalogue::known::is_known;
use crate::catalogue::{Place, known};
use crate::diagnostic::{Diagnostics, Severity};
use crate::expression::{ExpressionReader, StoreNames};
use crate::model::{Config, Mode, Position, ProxyId, ProxyKind};
use crate::section::tls::{Loader, ServerLine};
use crate::word::bad_name_byte;
use crate::{MemoryFiles, suggest, track};

use super::{OPTIONS, ServerSettings, option_names, send_proxy, tls};

/// Options that HAProxy refuses, and those that need what only a file has.
const REFUSED: &[&str] = &[
    "enabled",
    "init-addr",
    "log-bufsize",
    "log-proto",
    "max-reuse",
    "namespace",
    "no-agent-check",
    "no-check",
    "no-check-reuse-pool",
    "no-check-ssl",
    "no-send-proxy-v2-ssl",
    "no-send-proxy-v2-ssl-cn",
    "no-ssl",
    "non-stick",
    "redir",
    "resolve-net",
    "resolve-opts",
    "resolve-prefer",
    "resolvers",
    "socks4",
    "source",
    "ssl-reuse",
    "stick",
    "tcp-ut",
    send_proxy::TLV,
];

/// Returns the configuration with one more server at the end of a backend, or the error, in HAProxy's words if it has
/// such an error. `words` are the address and options, as on a `server` line.
pub fn add_server(config: &Config, backend: ProxyId, name: &str, words: &[&str]) -> Result<Config, String> {
    if let Some(offset) = bad_name_byte(name) {
        let bad = name[offset..].chars().next().unwrap_or('?');
        return Err(format!("character '{bad}' is not permitted in server name '{name}'."));
    }
    let [place, options @ ..] = words else {
        return Err("'server' expects <name> and <addr>[:<port>] as arguments.".to_owned());
    };
    let proxy = &config.proxies[backend.0 as usize];
    if proxy.mode == Mode::Log {
        return Err("Dynamic servers cannot be used with log backends.".to_owned());
    }
    if proxy.servers.iter().any(|server| &*server.name == name) {
        return Err("Already exists a server with the same name in backend.".to_owned());
    }
    let (address, transport) = address::server_line(place).map_err(|problem| problem.message)?;
    if transport == Transport::Datagram {
        return Err(format!("'{place}' : a dynamic server gets no datagrams"));
    }
    let mut settings = ServerSettings::default();
    // No file is read while the process runs: what a server names has been loaded with the configuration.
    let files = MemoryFiles::new();
    let loader = Loader::of(&files, config);
    read(&mut settings, name, options, &loader)?;
    if settings.check
        && settings.port.is_none()
        && address.lacks_port()
        && let Some(what) = proxy.health.missing_port()
    {
        return Err(format!("server '{name}' {what}"));
    }
    if settings.agent.on && settings.agent.port.is_none() {
        return Err(format!("server {name} does not have agent port. Agent check has been disabled."));
    }
    if settings.check && settings.track.is_some() {
        return Err(format!("server '{name}' cannot have checks and track another server at the same time"));
    }
    if let Some(word) = &settings.track {
        let (place, target) = match word.rsplit_once('/') {
            Some((place, target)) => (place, target),
            None => (&*proxy.name, &**word),
        };
        let mut backends = config.proxies.iter().filter(|proxy| proxy.kind != ProxyKind::Frontend);
        let servers = backends.find(|proxy| &*proxy.name == place).map(|proxy| &proxy.servers);
        if servers.is_some_and(|servers| servers.iter().any(|server| &*server.name == target && server.dynamic)) {
            return Err(format!("unable to use {place}/{target} for tracking as it is a dynamic server."));
        }
    }
    if settings.tls.proto.is_some_and(|proto| !proto.fits(proxy.mode)) {
        return Err("MUX protocol is not usable for server.".to_owned());
    }
    let same = settings.sid.and_then(|id| proxy.servers.iter().find(|server| server.sid == id));
    if let Some(other) = same {
        let Position { file, line, .. } = &other.at;
        let id = other.sid;
        return Err(format!("'id' : custom id {id} already used at {file}:{line} ('server {}').", other.name));
    }
    let free = || (1..).find(|id| proxy.servers.iter().all(|server| server.sid != *id)).unwrap_or(0);
    let sid = settings.sid.unwrap_or_else(free);
    let tracks = settings.track.is_some();
    let at = Position { file: "stats socket".into(), line: 1, column: 1 };
    let mut diagnostics = Diagnostics::new();
    let checks_connect = proxy.health.connects_with_tls();
    let line = ServerLine { proxy: &proxy.name, name, at: &at, checks_connect };
    let tls = settings.tls.finish(&line, &loader, &mut diagnostics);
    first_error(&diagnostics)?;
    // Checks do not follow the server's `ssl`, as in HAProxy.
    let check_tls = settings.tls.check(true);
    settings.tcp.multipath = transport == Transport::Multipath;
    let mut server = settings.server(name.into(), address, at);
    (server.sid, server.dynamic, server.tls) = (sid, true, tls);
    if let Some(check) = &mut server.check {
        check.tls = check_tls;
    }
    let mut config = config.clone();
    config.proxies[backend.0 as usize].servers.push(server);
    if tracks {
        let mut diagnostics = Diagnostics::new();
        track::resolve(&mut config, &mut diagnostics);
        first_error(&diagnostics)?;
    }
    Ok(config)
}

/// Returns the message of the first error.
fn first_error(diagnostics: &Diagnostics) -> Result<(), String> {
    match diagnostics.iter().find(|found| found.severity == Severity::Error) {
        Some(found) => Err(format!("{}.", found.message)),
        None => Ok(()),
    }
}

/// Reads options of the server `name`.
fn read(settings: &mut ServerSettings, name: &str, options: &[&str], loader: &Loader<'_>) -> Result<(), String> {
    let mut words = options.iter();
    while let Some(word) = words.next() {
        let option = word.split('(').next().unwrap_or(word);
        if REFUSED.contains(&option) {
            return Err(format!("'{option}' option is not accepted for dynamic server"));
        }
        if let Some((row, _)) = tls::OPTIONS.find(word, "") {
            let value = match row.max {
                0 => "",
                _ => words.next().ok_or_else(|| tls::missing(row))?,
            };
            let at = Position { file: "stats socket".into(), line: 1, column: 1 };
            if matches!(row.name, "sni" | "pool-conn-name") {
                // Names in an expression, such as a store's, are looked up when it is evaluated.
                let stores = StoreNames { any_store: true, ..StoreNames::default() };
                let expressions = ExpressionReader { stores: &stores, place: Place::Balance, acl: false };
                settings.tls.name(row.name, value, &expressions, at).map_err(|(message, _)| message)?;
            } else {
                tls::read(settings, row, loader, at, value)?;
            }
            continue;
        }
        let Some((row, _)) = OPTIONS.find(word, "") else {
            if is_known(known::NEWER_SERVER_OPTIONS, word) {
                return Err(format!("'{word}' is newer than HAProxy 3.2"));
            }
            if is_known(known::SERVER_OPTIONS, word) {
                return Err(format!("'{word}' is not supported yet"));
            }
            let near = suggest::nearest(word, option_names());
            let near = near.map_or_else(|| ".".to_owned(), |near| format!("; did you mean '{near}' maybe ?"));
            return Err(format!("unknown keyword '{word}'{near}"));
        };
        let value = match row.max {
            0 => "",
            _ => words.next().ok_or_else(|| format!("'{word}' expects {}", row.usage))?,
        };
        (row.parser)(settings, value).map_err(|message| match (*word, value.parse::<i64>()) {
            ("weight", Ok(weight)) => format!("weight of server {name} is not within 0 and 256 ({weight}).."),
            ("id", _) => "'id' : custom id has to be > 0.".to_owned(),
            _ => format!("'{word}': {message}"),
        })?;
    }
    Ok(())
}
