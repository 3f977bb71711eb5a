//! The lines that declare servers.

use super::ProxyParser;
use super::keywords::row;
use crate::catalogue::Contexts;
use crate::model::StateSource;
use crate::section::server;
use crate::section::table::{MANY, Row};

const BACK: Contexts = Contexts::BACK;
const DECLARES: Contexts = BACK.without(Contexts::DEFAULTS);

pub(super) const DEFAULTS: Row<ProxyParser> =
    row("default-server", BACK, 0, MANY, "OPTION…", "Options of all servers declared after it.", |r, line| {
        server::default_server(r, line)
    });

pub(super) const STATE: Row<ProxyParser> = row(
    "load-server-state-from-file",
    BACK,
    1,
    1,
    "global|local|none",
    "The source of the servers' initial states: the file of 'server-state-file', the section's own, or only the \
     configuration, which is also the default without 'runtime-state-file'.",
    |r, line| {
        const SOURCES: [(&str, StateSource); 3] =
            [("global", StateSource::Global), ("local", StateSource::Local), ("none", StateSource::None)];
        if let Some(source) = r.one_of(line, 1, &SOURCES) {
            r.settings.proxy.state_source = source;
        }
    },
);

pub(super) const STATE_FILE: Row<ProxyParser> = row(
    "server-state-file-name",
    BACK,
    0,
    1,
    "[use-backend-name|FILE]",
    "The file of 'load-server-state-from-file local'; by default named after the section, in 'server-state-base'.",
    |r, line| {
        r.settings.proxy.state_file = match line.text(1) {
            "" | "use-backend-name" => None,
            name => Some(name.to_owned()),
        };
    },
);

pub(super) const SERVER: Row<ProxyParser> = row(
    "server",
    DECLARES,
    2,
    MANY,
    "NAME ADDRESS[:PORT] [OPTION]…",
    "A server. One with the address 'sockpair@N' gets an end of each connection over the inherited unix socket N; one with \
     'rhttp@' connects to this side, for reverse HTTP.",
    server::server,
);

pub(super) const TEMPLATE: Row<ProxyParser> = row(
    "server-template",
    DECLARES,
    3,
    MANY,
    "PREFIX N|LOW-HIGH ADDRESS[:PORT] [OPTION]…",
    "N servers, or as many as the range has, named by the prefix and a number; otherwise as 'server'.",
    server::template::template,
);
