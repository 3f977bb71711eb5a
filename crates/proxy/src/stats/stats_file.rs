//! `stats-file`: counters by `guid`, in HAProxy's form (management guide 9.5), which `dump stats-file` prints.
//!
//! A header names a side and its columns: `#fe guid,stot,…` for frontends and sockets, `#be guid,…` for backends and
//! servers. A line below has an identifier and a value for each column. What is not known (columns, identifiers, values
//! that are not numbers) is skipped without a word, as the file may be of another version; a line that cannot be one is
//! reported. Blank lines and those that begin with `//` are skipped.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::Arc;

use sluicegate_config::check_guid;
use sluicegate_config::model::{Proxy, ProxyKind};

use crate::counters::Figures;
use crate::listener;
use crate::running::{ProxyRun, Running};

/// The most columns of a header, and the most lines that are reported.
const COLUMNS_MAX: usize = 128;
const NOTES_MAX: usize = 20;

/// The columns of frontends and sockets, in the order of `show stat`.
const FRONT: &[&str] = &[
    "stot",
    "bin",
    "bout",
    "dreq",
    "dresp",
    "ereq",
    "hrsp_1xx",
    "hrsp_2xx",
    "hrsp_3xx",
    "hrsp_4xx",
    "hrsp_5xx",
    "hrsp_other",
    "req_tot",
    "comp_in",
    "comp_out",
    "comp_byp",
    "comp_rsp",
    "conn_tot",
    "intercepted",
    "dcon",
    "dses",
    "wrew",
    "cache_lookups",
    "cache_hits",
    "eint",
];

/// Those of backends and servers.
const BACK: &[&str] = &[
    "stot",
    "bin",
    "bout",
    "dreq",
    "dresp",
    "econ",
    "eresp",
    "wretr",
    "wredis",
    "lbtot",
    "hrsp_1xx",
    "hrsp_2xx",
    "hrsp_3xx",
    "hrsp_4xx",
    "hrsp_5xx",
    "hrsp_other",
    "req_tot",
    "cli_abrt",
    "srv_abrt",
    "comp_in",
    "comp_out",
    "comp_byp",
    "comp_rsp",
    "wrew",
    "connect",
    "reuse",
    "cache_lookups",
    "cache_hits",
    "eint",
];

/// A side of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Front,
    Back,
}

impl Side {
    fn columns(self) -> &'static [&'static str] {
        match self {
            Side::Front => FRONT,
            Side::Back => BACK,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Side::Front => "#fe",
            Side::Back => "#be",
        }
    }
}

/// Returns the count that a column of a socket has: its sessions are its connections.
fn of_socket(column: &'static str) -> &'static str {
    if column == "stot" { "conn_tot" } else { column }
}

/// The columns of a header; [`None`] for one that is not known.
type Columns = Vec<Option<&'static str>>;

/// An object with an identifier.
enum Owner<'r> {
    Proxy(&'r ProxyRun),
    Server(&'r Figures),
    /// A socket of a frontend, with its key.
    Socket(&'r ProxyRun, Arc<str>),
}

/// Returns everything that has an identifier.
fn owners(running: &Running) -> HashMap<String, Owner<'_>> {
    let mut owners = HashMap::new();
    for proxy in &running.proxies {
        owners.extend(proxy.config.guid.iter().map(|guid| (guid.clone(), Owner::Proxy(proxy))));
        let servers = proxy.servers.iter().filter_map(|server| Some((server.config.guid.clone()?, server)));
        owners.extend(servers.map(|(guid, server)| (guid, Owner::Server(&server.shared.figures))));
    }
    for (proxy, names) in sockets(running) {
        owners.extend(names.into_iter().map(|(guid, key)| (guid, Owner::Socket(proxy, key))));
    }
    owners
}

/// Returns the identifiers and keys of the sockets of each frontend: the `guid-prefix` of the `bind` line, and a number.
fn sockets(running: &Running) -> impl Iterator<Item = (&ProxyRun, Vec<(String, Arc<str>)>)> {
    listener::addresses(running).into_iter().map(|(proxy, addresses)| {
        let (mut line, mut number) = (usize::MAX, 0);
        let mut names = Vec::new();
        for (bind, .., key) in addresses {
            number = if bind == line { number + 1 } else { 0 };
            line = bind;
            let prefix = proxy.config.binds[bind].guid_prefix.iter();
            names.extend(prefix.map(|prefix| (format!("{prefix}-{number}"), key.clone())));
        }
        (&**proxy, names)
    })
}

/// Sets the counters of the configuration's `stats-file`, before the workers begin. Returns messages about what was left
/// out.
pub fn preset(running: &Running, file: &dyn Fn(&Path) -> io::Result<Vec<u8>>) -> Vec<String> {
    let Some(path) = &running.config.global.stats_file else { return Vec::new() };
    match file(path) {
        Ok(contents) => read(running, path, &contents),
        Err(_) => vec![format!("Can't load stats-file '{}': cannot open file.", path.display())],
    }
}

fn read(running: &Running, path: &Path, contents: &[u8]) -> Vec<String> {
    let owners = owners(running);
    let invalid = || format!("Invalid stats-file format in file '{}'.", path.display());
    let mut notes = Vec::new();
    // The last header.
    let mut section: Option<(Side, Columns)> = None;
    let mut is_valid = false;
    for (index, line) in contents.split(|byte| *byte == b'\n').enumerate() {
        let (number, text) = (index + 1, String::from_utf8_lossy(line));
        let text = text.trim();
        if text.is_empty() || text.starts_with("//") {
            continue;
        }
        if notes.len() == NOTES_MAX {
            break;
        }
        if text.starts_with('#') {
            match header(text) {
                Ok(found) => section = found,
                Err(()) if is_valid => {
                    notes.push(format!("Ignored stats-file header line '{number}' in file '{}'.", path.display()));
                    section = None;
                }
                Err(()) => return vec![invalid()],
            }
            is_valid = true;
        } else if let Some((side, columns)) = &section {
            if entry(running, &owners, *side, columns, text).is_err() {
                notes.push(format!("Ignored stats-file line {number} in file '{}'.", path.display()));
            }
        } else if !is_valid {
            return vec![invalid()];
        }
    }
    notes
}

/// Reads a header: the side and the columns; [`None`] for a section that is not known.
fn header(text: &str) -> Result<Option<(Side, Columns)>, ()> {
    let (word, columns) = text.split_once(' ').ok_or(())?;
    let columns = columns.strip_suffix(',').ok_or(())?;
    if word == "#" {
        return Err(());
    }
    let Some(side) = [Side::Front, Side::Back].into_iter().find(|side| side.word() == word) else { return Ok(None) };
    let mut names = columns.split(',');
    if names.next() != Some("guid") {
        return Err(());
    }
    let known = |name| side.columns().iter().find(|known| **known == name).copied();
    Ok(Some((side, names.take(COLUMNS_MAX).map(known).collect())))
}

/// Sets the counters of one object.
fn entry(
    running: &Running,
    owners: &HashMap<String, Owner<'_>>,
    side: Side,
    columns: &[Option<&'static str>],
    text: &str,
) -> Result<(), ()> {
    let (guid, values) = text.split_once(',').unwrap_or((text, ""));
    if guid.is_empty() || check_guid(guid).is_err() {
        return Err(());
    }
    let Some(owner) = owners.get(guid) else { return Ok(()) };
    let socket;
    let figures = match (owner, side) {
        (Owner::Proxy(proxy), _) if !has(&proxy.config, side) => return Ok(()),
        (Owner::Proxy(proxy), Side::Front) => &proxy.frontend.figures,
        (Owner::Proxy(proxy), Side::Back) => &*proxy.backend.figures,
        (Owner::Server(figures), Side::Back) => figures,
        (Owner::Socket(proxy, key), Side::Front) => match listener::left_figures(running, &proxy.config.name, key) {
            Some(figures) => {
                socket = figures;
                &*socket
            }
            None => return Ok(()),
        },
        (Owner::Server(_) | Owner::Socket(..), _) => return Err(()),
    };
    let is_socket = matches!(owner, Owner::Socket(..));
    for (column, value) in columns.iter().zip(values.split(',')) {
        let (Some(column), Ok(value)) = (*column, value.parse()) else { continue };
        figures.preset(if is_socket { of_socket(column) } else { column }, value);
    }
    Ok(())
}

fn has(proxy: &Proxy, side: Side) -> bool {
    proxy.kind != if side == Side::Front { ProxyKind::Backend } else { ProxyKind::Frontend }
}

/// Returns the counters of all objects with an identifier, as `dump stats-file` prints them.
pub fn dump(running: &Running) -> String {
    let mut text = String::new();
    let proxies = |side| running.proxies.iter().filter(move |proxy| !proxy.config.disabled && has(&proxy.config, side));
    let mut names: HashMap<_, _> = sockets(running).map(|(proxy, names)| (proxy.id, names)).collect();
    begin(Side::Front, &mut text);
    for proxy in proxies(Side::Front) {
        put(proxy.config.guid.as_deref(), &proxy.frontend.figures, FRONT.iter().copied(), &mut text);
        let sockets = running.listeners_of(proxy.id);
        for (guid, key) in names.remove(&proxy.id).into_iter().flatten() {
            let socket = sockets.iter().find(|socket| *socket.key() == *key);
            if let Some(figures) = socket.and_then(|socket| socket.figures()) {
                put(Some(&guid), figures, FRONT.iter().map(|column| of_socket(column)), &mut text);
            }
        }
    }
    text.push('\n');
    begin(Side::Back, &mut text);
    for proxy in proxies(Side::Back) {
        for server in &proxy.servers {
            put(server.config.guid.as_deref(), &server.shared.figures, BACK.iter().copied(), &mut text);
        }
        put(proxy.config.guid.as_deref(), &proxy.backend.figures, BACK.iter().copied(), &mut text);
    }
    text
}

fn begin(side: Side, out: &mut String) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "{} guid,{},", side.word(), side.columns().join(","));
}

fn put(guid: Option<&str>, figures: &Figures, counts: impl Iterator<Item = &'static str>, out: &mut String) {
    let Some(guid) = guid else { return };
    let sums: HashMap<_, _> = figures.sums().collect();
    let _ = write!(out, "{guid},");
    for count in counts {
        let _ = write!(out, "{},", sums.get(count).copied().unwrap_or(0));
    }
    out.push('\n');
}
