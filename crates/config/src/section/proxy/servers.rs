//! The lines that declare servers.

use super::ProxyParser;
use super::keywords::row;
use crate::catalogue::Contexts;
use crate::section::server;
use crate::section::table::{MANY, Row};

const BACK: Contexts = Contexts::BACK;
const DECLARES: Contexts = BACK.without(Contexts::DEFAULTS);

pub(super) const DEFAULTS: Row<ProxyParser> =
    row("default-server", BACK, 1, MANY, "OPTION…", "Options of all servers declared after it.", |r, line| {
        server::default_server(r, line)
    });

pub(super) const SERVER: Row<ProxyParser> =
    row("server", DECLARES, 2, MANY, "NAME ADDRESS[:PORT] [OPTION]…", "A server.", server::server);

pub(super) const TEMPLATE: Row<ProxyParser> = row(
    "server-template",
    DECLARES,
    3,
    MANY,
    "PREFIX N|LOW-HIGH ADDRESS[:PORT] [OPTION]…",
    "As many servers as N, or as the range has, named by the prefix and a number; all else is as for 'server'.",
    server::template,
);
