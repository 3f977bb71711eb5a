//! `peers` sections (HAProxy configuration manual 11.2).
//!
//! A section is read like a proxy: its `bind` options and its `server` options are those of proxies. The local peer is
//! the one that `localpeer` or `-L` names; its address is on its own line, or on a `bind` line.

use std::sync::Arc;

use super::{Loaded, ProxyNames, ProxyReader, Settings, error};
use crate::catalogue::{Contexts, known};
use crate::diagnostic::Diagnostics;
use crate::expression::StoreNames;
use crate::model::{
    Bind, BindAddress, Config, Global, Peers, Position, ProxyKind, ServerAddress, ServerPort, StickTable,
};
use crate::section::bind::{self, BindContext};
use crate::section::table::{self, MANY, Row, Table};
use crate::section::tls::BindWords;
use crate::section::{Section, SectionKind, server, stick};
use crate::suggest;
use crate::unit;
use crate::word::Line;

/// The reader of a section's lines.
pub(crate) struct PeersReader<'a, 'b> {
    reader: &'a mut ProxyReader<'b>,
    /// The name of the local peer.
    local_name: &'a str,
    local: Option<usize>,
    shards: u32,
    tables: Vec<StickTable>,
    bind: Bind,
    bind_words: BindWords,
    /// The address of the `bind` line as written.
    argument: Option<Arc<str>>,
    /// Whether there was a `peer` line.
    has_peer_line: bool,
    /// Lines of names that other lines have, and the errors about them.
    repeated: Vec<(Position, String)>,
}

pub(crate) type PeersParser = fn(&mut PeersReader<'_, '_>, &Line);

const fn row(
    name: &'static str,
    (min, max): (usize, usize),
    usage: &'static str,
    docs: &'static str,
    parser: PeersParser,
) -> Row<PeersParser> {
    Row { name, contexts: Contexts::PEERS, min, max, usage, docs, parser }
}

/// The keywords of `peers`.
pub(crate) static KEYWORDS: Table<PeersParser> = Table::new(&[
    row(
        "bind",
        (1, MANY),
        "ADDRESS [OPTION]…",
        "The address on which the local peer listens: one, and not together with 'peer' lines.",
        |r, line| r.bind(line),
    ),
    row("default-bind", (1, MANY), "OPTION…", "Options of the local peer's address.", |r, line| {
        r.bind_options(line, 1);
    }),
    row("default-server", (0, MANY), "OPTION…", "Options of all peers declared after it.", |r, line| {
        server::default_server(r.reader, line);
    }),
    row("disabled", (0, 0), "", "The section is not used: its tables are local.", |r, _| {
        r.reader.settings.proxy.disabled = true;
    }),
    row("enabled", (0, 0), "", "Undoes a 'disabled'.", |r, _| r.reader.settings.proxy.disabled = false),
    row(
        "log",
        (1, MANY),
        "global|TARGET [len N] [format FORMAT] [sample RANGES:N] FACILITY [LEVEL [MINLEVEL]]",
        "The destination of a line about each connection from a peer.",
        |r, line| r.reader.log(line),
    ),
    row(
        "peer",
        (1, MANY),
        "NAME ADDRESS:PORT [OPTION]…",
        "A node of the section. The one called like this process ('localpeer', '-L') is this process, which listens on \
         its address.",
        |r, line| r.peer(line),
    ),
    row(
        "server",
        (1, MANY),
        "NAME [ADDRESS:PORT] [OPTION]…",
        "Like 'peer'. The local one has no address: it is on the 'bind' line.",
        |r, line| r.peer(line),
    ),
    row(
        "shards",
        (1, 1),
        "N",
        "The number of parts into which keys are divided; each peer with 'shard' is sent one of them.",
        |r, line| match unit::integer(line.text(1), 1, i64::from(i32::MAX)) {
            Ok(shards) => r.shards = shards as u32,
            Err(message) => {
                r.reader.diagnostics.error(line.at(1), format!("'shards': {message}"));
            }
        },
    ),
    row(
        "table",
        (2, MANY),
        TABLE_OF_PEERS,
        "A table that rules name 'SECTION/NAME'; the options are those of 'stick-table', without 'peers'.",
        |r, line| {
            r.table(line);
        },
    ),
]);

/// The arguments of `table`.
const TABLE_OF_PEERS: &str = "NAME type T size N [OPTION]…";

/// Reads the `peers` sections.
pub(super) fn all(
    sections: &[Section],
    global: &Global,
    (names, stores, errors, loaded): (&ProxyNames, &StoreNames<'_>, &error::Groups, &Loaded<'_>),
    diagnostics: &mut Diagnostics,
) -> Vec<Peers> {
    let local_name = loaded.environment.localpeer().to_owned();
    let mut found: Vec<Peers> = Vec::new();
    for section in sections.iter().filter(|section| section.kind == SectionKind::Peers) {
        if let Some(other) = found.iter().find(|other| *other.name() == section.name) {
            let Position { file, line, .. } = other.at();
            let name = &section.name;
            let message =
                format!("peers section '{name}' has the same name as another peers section declared at {file}:{line}");
            diagnostics.error(section.at.clone(), message);
            continue;
        }
        loaded.files.stand_at(&section.at);
        *stores.section.borrow_mut() = None;
        let mut settings = Settings::new();
        settings.start(section, Some(ProxyKind::Listen));
        let pages = error::PageReader { files: loaded.files, bufsize: global.tune.bufsize };
        let mut reader = ProxyReader {
            settings: &mut settings,
            context: Contexts::PEERS,
            section: "peers",
            names,
            stores,
            fcgi_apps: &super::fcgi::Apps::new(),
            errors,
            pages,
            loaded,
            diagnostics,
        };
        let peers = PeersReader {
            reader: &mut reader,
            local_name: &local_name,
            local: None,
            shards: 0,
            tables: Vec::new(),
            bind: Bind::blank(section.at.clone()),
            bind_words: BindWords::default(),
            argument: None,
            has_peer_line: false,
            repeated: Vec::new(),
        };
        let (local, shards, tables) = peers.read(section);
        reader.finish_binds(global.tune.bufsize);
        reader.finish_servers();
        let mut peers = Peers { proxy: settings.finish(global).proxy, local, shards, tables };
        finish(&mut peers, &local_name, diagnostics);
        found.push(peers);
    }
    found
}

/// Makes the last checks of a section.
fn finish(peers: &mut Peers, local_name: &str, diagnostics: &mut Diagnostics) {
    let (name, at) = (peers.name().clone(), peers.at().clone());
    server::finish::number(&mut peers.proxy.servers);
    if peers.proxy.disabled {
        return;
    }
    if !peers.is_active() {
        let message = format!("Removing incomplete section 'peers {name}' (no peer named '{local_name}').");
        let warning = diagnostics.warning(at.clone(), message);
        warning.hint("name this process with 'localpeer' or '-L', or add its address to the section");
    }
    let (local, shards) = (peers.local, peers.shards);
    let listens_with_tls = peers.bind().map(|bind| bind.tls.is_some());
    for (index, server) in peers.proxy.servers.iter_mut().enumerate() {
        let is_local = local == Some(index);
        if server.shard > 0 && is_local {
            let message = format!("Peers section '{name}': shard ignored for '{}' local peer", server.name);
            diagnostics.warning(server.at.clone(), message);
            server.shard = 0;
        } else if server.shard > shards {
            let message = format!(
                "Peers section '{name}': shard ignored for '{}' peer because {} shard value is greater than the section \
                 number of shards ({shards})",
                server.name, server.shard
            );
            diagnostics.warning(server.at.clone(), message);
            server.shard = 0;
        }
        let connects_with_tls = server.tls.as_ref().is_some_and(|tls| tls.enabled);
        if let (true, Some(listens_with_tls)) = (is_local, listens_with_tls)
            && connects_with_tls != listens_with_tls
        {
            let (listener, peer) = if listens_with_tls { ("a SSL", "a non-SSL") } else { ("a non-SSL", "a SSL") };
            let message = format!(
                "Peers section '{name}': local peer have {listener} listener and {peer} server configured at line {}:{}.",
                server.at.file, server.at.line
            );
            diagnostics.warning(server.at.clone(), message);
        }
    }
}

impl PeersReader<'_, '_> {
    /// Reads the lines of a section; returns the index of the local peer, the number of shards, and the tables.
    fn read(mut self, section: &Section) -> (Option<usize>, u32, Vec<StickTable>) {
        for line in &section.lines {
            let negated;
            let line = match line.text(0) {
                "no" if line.text(1) == "log" => {
                    negated = line.without_no();
                    &negated
                }
                _ => line,
            };
            match KEYWORDS.find(line.text(0), line.text(1)) {
                Some((row, words)) => {
                    let (min, max) = if line.negated { (0, MANY) } else { (row.min, row.max) };
                    if table::arity(&Row { min, max, ..row.bare() }, words, line, self.reader.diagnostics) {
                        (row.parser)(&mut self, line);
                    }
                }
                None => {
                    table::unknown(&KEYWORDS, known::NONE, Contexts::PEERS, "peers", line, self.reader.diagnostics);
                }
            }
        }
        if self.local.is_some() {
            for (at, message) in std::mem::take(&mut self.repeated) {
                self.reader.diagnostics.error(at, message);
            }
        }
        let settings = &mut *self.reader.settings;
        let address = self.bind.addresses.first().map(connected);
        if let (Some(argument), Some(address)) = (self.argument, address) {
            if let Some(local) = self.local {
                settings.proxy.servers[local].address = address;
            }
            settings.proxy.binds.push(self.bind);
            settings.bind_words.push((argument, self.bind_words));
        }
        (self.local, self.shards, self.tables)
    }

    fn bind_options(&mut self, line: &Line, start: usize) -> bool {
        let context = BindContext { section: "peers", loader: self.reader.loaded.tls };
        let into = (&mut self.bind, &mut self.bind_words);
        bind::options(line, start, into, &context, self.reader.diagnostics)
    }

    fn bind(&mut self, line: &Line) {
        if self.has_peer_line {
            self.mixed(line);
        } else if self.listen(line, 1) {
            self.bind_options(line, 2);
        }
    }

    fn mixed(&mut self, line: &Line) {
        let error = self.reader.diagnostics.error(line.at(0), "mixing \"peer\" and \"bind\" line is forbidden");
        error.hint("call the peers 'server', and the local one has no address");
    }

    /// Reads the address of the local peer, from a word of a line.
    fn listen(&mut self, line: &Line, index: usize) -> bool {
        let diagnostics = &mut *self.reader.diagnostics;
        if self.argument.is_some() {
            let Position { file, line: number, .. } = &self.bind.at;
            let message = format!(
                "One listener per \"peers\" section is authorized but another is already configured at [{file}:{number}]."
            );
            diagnostics.error(line.at(index), message);
            return false;
        }
        let context = BindContext { section: "peers", loader: self.reader.loaded.tls };
        bind::place(line, index, &mut self.bind, &context, diagnostics);
        self.bind.at = line.at(0);
        self.argument = Some(line.text(index).into());
        if self.bind.addresses.len() > 1 {
            let message = "Only one listener per \"peers\" section is authorized. Multiple listening addresses or port \
                           range are not supported.";
            diagnostics.error(line.at(index), message);
        }
        self.bind.addresses.len() == 1
    }

    /// Reads `peer NAME ADDRESS …` or `server NAME [ADDRESS] …`.
    fn peer(&mut self, line: &Line) {
        let (is_peer, name) = (line.text(0) == "peer", line.text(1));
        let is_local = name == self.local_name;
        if is_peer {
            if self.argument.is_some() && !self.has_peer_line {
                return self.mixed(line);
            }
            self.has_peer_line = true;
        }
        let servers = &self.reader.settings.proxy.servers;
        if let Some(other) = servers.iter().find(|server| &*server.name == name) {
            let message = format!(
                "Peer section '{}': another peer named '{name}' was already defined at line {}:{}, please use distinct \
                 names.",
                self.reader.settings.proxy.name, other.at.file, other.at.line
            );
            // As in HAProxy, it is no error in a section that is not used because this process is not in it.
            self.repeated.push((line.at(1), message));
            return;
        }
        let index = servers.len();
        // A local 'server' has the address of the 'bind' line, which may follow.
        let address = match (is_peer, is_local) {
            (false, true) => Some((ServerAddress::Inet([0, 0, 0, 0].into(), ServerPort::Fixed(0)), 2)),
            _ if line.len() < 3 => {
                let message =
                    format!("'{} {name}' : ignoring invalid peer definition (missing address:port)", line.text(0));
                self.reader.diagnostics.warning(line.at(2), message);
                None
            }
            _ => server::peer::address(self.reader, line, 2).map(|address| (address, 3)),
        };
        let Some((address, options)) = address else { return };
        if is_peer && is_local && !self.listen(line, 2) {
            return;
        }
        if let Some(word) = server::peer::declare(self.reader, line, address, options) {
            let message =
                format!("'{} {name}' : init_addr, resolvers, check and agent are ignored for peers.", line.text(0));
            self.reader.diagnostics.warning(line.at(0), message).hint(format!("leave out '{word}'"));
        }
        if is_local && self.reader.settings.proxy.servers.len() > index {
            self.local = Some(index);
        }
    }

    fn table(&mut self, line: &Line) {
        let proxy = &self.reader.settings.proxy;
        let Some(table) = stick::table_of_peers(line, &proxy.name, self.reader.diagnostics) else { return };
        if let Some(other) = self.tables.iter().find(|other| other.name == table.name) {
            let Position { file, line: number, .. } = &other.at;
            let message = format!(
                "stick-table name '{}' conflicts with table declared in peers '{}' at {file}:{number}.",
                line.text(1),
                proxy.name
            );
            self.reader.diagnostics.error(line.at(1), message);
            return;
        }
        self.tables.push(table);
    }
}

/// Returns the address at which a listening socket is reached from this machine.
fn connected(address: &BindAddress) -> ServerAddress {
    match address {
        BindAddress::Inet(host, port) => ServerAddress::Inet(*host, ServerPort::Fixed(*port)),
        BindAddress::Unix(path) => ServerAddress::Unix(path.clone()),
        BindAddress::Abstract(name) => ServerAddress::Abstract(name.clone()),
        // An inherited socket has no address here: nobody teaches the next process by it.
        BindAddress::Fd(_) | BindAddress::Sockpair(_) | BindAddress::Reverse(_) => {
            ServerAddress::Inet([0, 0, 0, 0].into(), ServerPort::Fixed(0))
        }
    }
}

/// Finds the section and the target of every table, and reports those that cannot be shared as their lines ask.
pub(crate) fn check(config: &mut Config, local_name: &str, diagnostics: &mut Diagnostics) {
    let tables: Vec<StickTable> = config.all_tables().cloned().collect();
    for table in &tables {
        if let Some(section) = table.peers.as_ref().filter(|_| !table.of_peers) {
            let name = &table.name;
            match config.peers.iter().find(|peers| peers.name() == section) {
                None => {
                    let near = suggest::nearest(section, config.peers.iter().map(|peers| &**peers.name()));
                    let message = format!("Proxy '{name}': unable to find sync peers '{section}'.");
                    diagnostics.error(table.at.clone(), message).did_you_mean(near);
                }
                Some(peers) if !peers.proxy.disabled && !has_lines(peers) => {
                    let message = format!(
                        "Proxy '{name}': unable to find local peer '{local_name}' in peers section '{section}'."
                    );
                    diagnostics.error(table.at.clone(), message);
                }
                Some(_) => {}
            }
        }
        let Some(target) = &table.write_to else { continue };
        let mut refuse = |message: String| {
            _ = diagnostics.error(table.at.clone(), format!("write-to: {message}"));
        };
        match tables.iter().find(|other| other.name == *target) {
            None => refuse(format!("table '{target}' doesn't exist")),
            Some(other) if other.write_to.is_some() => {
                refuse(format!("table '{target}' is already used as a source table"));
            }
            Some(other) if other.key.name() != table.key.name() => refuse(format!(
                "cannot mix table types ('{target}' has '{}' type and '{}' has '{}' type)",
                other.key.name(),
                table.name,
                table.key.name()
            )),
            Some(other) if other.key != table.key => refuse(format!(
                "cannot mix key sizes ('{target}' has '{}' key_size and '{}' has '{}' key_size)",
                other.key.shared_size(),
                table.name,
                table.key.shared_size()
            )),
            Some(_) => {}
        }
    }
    // Tables of sections that are not used are local.
    let unused: Vec<_> =
        config.peers.iter().filter(|peers| !peers.is_active()).map(|peers| peers.name().clone()).collect();
    for table in config.all_tables_mut() {
        if !table.of_peers && table.peers.as_ref().is_some_and(|section| unused.contains(section)) {
            (table.peers, table.aggregate) = (None, false);
        }
    }
}

/// Returns whether a section has a line of which HAProxy makes a proxy.
fn has_lines(peers: &Peers) -> bool {
    !peers.proxy.servers.is_empty() || !peers.proxy.binds.is_empty() || !peers.tables.is_empty()
}
