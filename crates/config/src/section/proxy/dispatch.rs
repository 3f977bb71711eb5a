//! `dispatch`, `transparent` and `option transparent`: backends without servers of their own.

use std::net::{IpAddr, Ipv4Addr};

use super::keywords::{option, row};
use super::{ProxyParser, ProxyReader, on};
use crate::address;
use crate::catalogue::Contexts;
use crate::model::{Position, ProxyKind, Server, ServerAddress, ServerPort};
use crate::names;
use crate::section::server::ServerSettings;
use crate::section::table::Row;
use crate::word::Line;

const BACK: Contexts = Contexts::BACK;

/// The name of the place in logs, where HAProxy has no server either.
const NAME: &str = "<NOSRV>";

/// The lines of a section about it.
#[derive(Clone, Debug, Default)]
pub(super) struct Dispatch {
    /// `dispatch`.
    address: Option<(ServerAddress, Position)>,
    /// `option transparent`.
    transparent: bool,
    /// Whether `balance` was given.
    pub(super) balanced: bool,
}

/// `dispatch`.
pub(super) const DISPATCH: Row<ProxyParser> = row(
    "dispatch",
    BACK.without(Contexts::DEFAULTS),
    1,
    1,
    "ADDRESS:PORT",
    "Where requests go that persistence sends to no server, without 'balance'; it is neither checked nor counted. A \
     'server' line is clearer.",
    |r, line| r.dispatch(line),
);

/// `option transparent`.
pub(super) const OPTION: Row<ProxyParser> = option(
    "option transparent",
    BACK,
    "Requests go where the client wanted to connect to, without 'balance' and 'dispatch'.",
    |r, line| r.settings.dispatch.transparent = on(line),
);

/// `transparent`.
pub(super) const TRANSPARENT: Row<ProxyParser> =
    row("transparent", BACK, 0, 0, "", "The same as 'option transparent'.", |r, _| {
        r.settings.dispatch.transparent = true
    });

impl ProxyReader<'_> {
    fn dispatch(&mut self, line: &Line) {
        let text = match names::numeric(line.address(1), self.loaded.files) {
            Ok(text) => text.into_owned(),
            Err(message) => {
                self.diagnostics.error(line.at(1), format!("'dispatch' : {message}"));
                return;
            }
        };
        match address::server(&text) {
            Ok(ServerAddress::Inet(_, ServerPort::Offset(_))) => {
                let message = format!("'dispatch' : missing port specification in '{}'", line.text(1));
                self.diagnostics.error(line.at(1), message).hint("write 'dispatch ADDRESS:PORT'");
            }
            Ok(address) => self.settings.dispatch.address = Some((address, line.at(0))),
            Err(problem) => {
                let at = line.within_address(1, problem.offset);
                self.diagnostics.error(at, format!("'dispatch' : {}", problem.message));
            }
        }
    }

    /// Makes the place of the lines, and reports what contradicts them, as HAProxy does.
    pub(super) fn finish_dispatch(&mut self) {
        let Dispatch { address, transparent, balanced } = std::mem::take(&mut self.settings.dispatch);
        let proxy = &mut self.settings.proxy;
        if proxy.kind == ProxyKind::Frontend {
            return;
        }
        let (kind, name) = (if self.section == "listen" { "proxy" } else { "backend" }, proxy.name.clone());
        if balanced && transparent {
            let message = format!("{kind} '{name}' cannot use both transparent and balance mode");
            self.diagnostics.error(proxy.at.clone(), message).hint("remove 'balance' or 'option transparent'");
            return;
        }
        if let (true, Some((_, at))) = (balanced, &address) {
            let message = format!("dispatch address of {kind} '{name}' will be ignored in balance mode");
            self.diagnostics.warning(at.clone(), message);
            return;
        }
        let anywhere = || ServerAddress::Inet(IpAddr::V4(Ipv4Addr::UNSPECIFIED), ServerPort::Offset(0));
        let place = match address {
            Some((address, at)) => Some((address, at)),
            None if transparent => Some((anywhere(), proxy.at.clone())),
            None => None,
        };
        let server = |(address, at)| ServerSettings::default().server(NAME.into(), address, at);
        let server = place.map(server).map(|server| Server { sid: 1, non_stick: true, ..server });
        proxy.dispatch = server.map(Box::new);
    }
}
