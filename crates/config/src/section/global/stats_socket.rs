//! `stats socket`, and the master's socket of the command line (`-S`), which accepts the same options.

use std::sync::Arc;

use crate::catalogue::{Contexts, known};
use crate::diagnostic::Diagnostics;
use crate::environment::Environment;
use crate::model::{Bind, Global, OfCommands, Proto, StatsLevel, StatsSocket};
use crate::section::bind;
use crate::section::bind::BindOption;
use crate::section::tls::{BindLine, BindWords, Loader, Reading};
use crate::word::{self, Line, Scope};
use crate::{Files, suggest};

/// Reads `stats socket ADDRESS [OPTION]…`, but for the words about TLS: see [`SecureLines`].
pub(super) fn stats_socket(line: &Line, files: &dyn Files, diagnostics: &mut Diagnostics) -> Option<StatsSocket> {
    socket(line, Kind::Stats, files, diagnostics)
}

/// The name of HAProxy's proxy of the stats sockets in messages.
const PROXY: &str = "GLOBAL";

/// Lines with words about TLS, and the indices of their sockets. The words become settings once the whole of `global`
/// and every `crt-store` is known.
#[derive(Debug, Default)]
pub(crate) struct SecureLines(Vec<(usize, Line)>);

impl SecureLines {
    /// Notes the line of the socket with this index, if it has such words.
    pub(super) fn note(&mut self, index: usize, line: &Line) {
        if (3..line.len()).any(|word| bind::is_about_tls(line.text(word))) {
            self.0.push((index, line.clone()));
        }
    }

    /// Gives the sockets their settings.
    pub(crate) fn apply(self, global: &mut Global, loader: &Loader<'_>, diagnostics: &mut Diagnostics) {
        for (index, line) in self.0 {
            let words = tls_words(&line, loader, diagnostics);
            let Some(socket) = global.stats_sockets.get_mut(index) else { continue };
            let bufsize = global.tune.bufsize;
            let shown = BindLine { proxy: PROXY, argument: line.text(2), at: &line.at(0), http: false, bufsize };
            socket.tls = words.finish(&shown, loader, diagnostics);
            if socket.tls.as_ref().is_some_and(|tls| tls.settings.generate.is_some()) {
                let message = "'generate-certificates' of 'stats socket' is not supported: it has few names";
                diagnostics.error(line.at(0), message);
            }
        }
    }
}

/// Reads the words about TLS of a line, whose other words were read before.
fn tls_words(line: &Line, loader: &Loader<'_>, diagnostics: &mut Diagnostics) -> BindWords {
    let mut words = BindWords::default();
    let mut next = 3;
    while next < line.len() {
        let Some((row, _)) = bind::OPTIONS.find(line.text(next), "") else {
            next += 1;
            continue;
        };
        let value = line.text(next + 1);
        let at = line.at(if row.max > 0 { next + 1 } else { next });
        let reading = Reading { loader, name: row.name, at: at.clone() };
        loader.stand_at(&at);
        let read = match row.parser {
            BindOption::Plain(_) => {
                next += 1 + row.max;
                continue;
            }
            BindOption::Tls(_, read) => read(&mut words, &reading, value),
            BindOption::Policy(_, read) => read(&mut words.policy, &reading, value),
        };
        for warning in loader.take_warnings() {
            diagnostics.warning(at.clone(), format!("'stats socket' : {warning}"));
        }
        if let Err(message) = read {
            diagnostics.error(at, format!("'stats socket' : {message}"));
            words.fail();
        }
        next += 1 + row.max;
    }
    words
}

/// The two kinds of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// `stats socket`.
    Stats,
    /// `-S`.
    Master,
}

impl Kind {
    /// Returns the index of the first word, which is the address.
    fn first(self) -> usize {
        match self {
            Kind::Stats => 2,
            Kind::Master => 0,
        }
    }

    /// Returns the name in messages.
    fn what(self) -> &'static str {
        match self {
            Kind::Stats => "stats socket",
            Kind::Master => "the master's socket",
        }
    }

    fn level(self) -> StatsLevel {
        match self {
            Kind::Stats => StatsLevel::default(),
            Kind::Master => StatsLevel::Admin,
        }
    }
}

/// Reads the argument of `-S`: an address and options of `bind`, separated by commas. The default level is `admin`, as
/// in HAProxy.
pub fn master_socket(argument: &str, files: &dyn Files, environment: &Environment) -> Result<StatsSocket, String> {
    let file: Arc<str> = "-S".into();
    let scope = Scope { env: environment, file: &file, line: 1, section: "" };
    let text = argument.replace(',', " ");
    let words = word::split(text.as_bytes(), &scope).map_err(|problem| problem.message)?;
    if words.is_empty() {
        return Err("an address was expected".to_owned());
    }
    let mut diagnostics = Diagnostics::new();
    let socket = socket(&Line::new(file, 1, words), Kind::Master, files, &mut diagnostics);
    match (socket, diagnostics.iter().next()) {
        (Some(socket), None) => Ok(socket),
        (_, Some(found)) => Err(match &found.hint {
            Some(hint) => format!("{}; {hint}", found.message),
            None => found.message.clone(),
        }),
        (None, None) => Err(format!("'{argument}' is no address")),
    }
}

/// Reads an address and its options. Those about TLS are skipped.
fn socket(line: &Line, kind: Kind, files: &dyn Files, diagnostics: &mut Diagnostics) -> Option<StatsSocket> {
    let (first, what, level) = (kind.first(), kind.what(), kind.level());
    let mut addresses = match bind::addresses(line, first, files) {
        Ok(addresses) => addresses,
        Err(problem) => {
            let message = format!("'{what}': {}", problem.message);
            let error = diagnostics.error(line.within_address(first, problem.offset), message);
            if let Some(hint) = problem.hint {
                error.hint(hint);
            }
            return None;
        }
    };
    if addresses.len() > 1 {
        diagnostics.error(line.at(first), format!("'{what}' takes one address")).hint("write a line for each");
        return None;
    }
    let mut bind = Bind::at(addresses.remove(0), line.at(0));
    if bind.is_reverse() {
        diagnostics.error(line.at(first), format!("'{what}': 'rhttp@' is possible in frontends only"));
        return None;
    }
    let mut next = first + 1;
    while next < line.len() {
        let (name, value) = (line.text(next), line.text(next + 1));
        let Some((row, _)) = bind::OPTIONS.find(name, "") else {
            if known::is_known(known::BIND_OPTIONS, name) {
                diagnostics.error(line.at(next), format!("'{name}' of '{what}' is not supported yet"));
            } else {
                let names = bind::OPTIONS.names(Contexts::BIND_OPTION).chain(known::BIND_OPTIONS.iter().copied());
                let near = suggest::nearest(name, names);
                let error = diagnostics.error(line.at(next), format!("unknown keyword '{name}' of '{what}'"));
                error.did_you_mean(near);
            }
            return None;
        };
        let is_missing = row.max > 0 && next + 1 >= line.len();
        match row.parser {
            BindOption::Tls(..) | BindOption::Policy(..) if kind == Kind::Master => {
                let error = diagnostics.error(line.at(next), format!("'{name}' of '{what}' is not supported"));
                error.hint("HAProxy has no certificates for this socket either: use 'stats socket … ssl'");
                return None;
            }
            BindOption::Tls(missing, _) | BindOption::Policy(missing, _) if is_missing => {
                diagnostics.error(line.at(next + 1), format!("'{what}' : '{name}' : {missing}"));
                return None;
            }
            BindOption::Tls(..) | BindOption::Policy(..) => {}
            BindOption::Plain(_) if is_missing => {
                diagnostics.error(line.at(next + 1), format!("'{name}' of '{what}' expects a value"));
                return None;
            }
            BindOption::Plain(read) => {
                let at = line.at(next + usize::from(row.max > 0));
                bind::note_namespace(&mut bind, name, value, &at);
                if let Err(message) = read(&mut bind, value) {
                    let near = suggest::nearest(value, row.usage.split('|'));
                    diagnostics.error(at, format!("'{name}' of '{what}': {message}")).did_you_mean(near);
                    return None;
                }
            }
        }
        next += 1 + row.max;
    }
    if bind.proto.is_some_and(|proto| proto != Proto::Raw) {
        diagnostics.error(line.at(first), format!("'proto' of '{what}' can only be none"));
    }
    let OfCommands { level: own, expose, severity } = bind.of_commands;
    Some(StatsSocket {
        address: bind.addresses.swap_remove(0),
        mode: bind.mode,
        level: own.unwrap_or(level),
        user: bind.user,
        group: bind.group,
        expose,
        severity,
        accept_proxy: bind.accept_proxy,
        maxconn: bind.maxconn,
        backlog: bind.backlog,
        v6only: bind.v6only,
        tcp: bind.tcp,
        tls: None,
        at: bind.at,
    })
}
