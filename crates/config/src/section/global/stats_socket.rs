//! `stats socket`, and the master's socket of the command line (`-S`), which accepts the same options.

use std::sync::Arc;

use crate::catalogue::known;
use crate::diagnostic::Diagnostics;
use crate::environment::Environment;
use crate::model::{StatsLevel, StatsSocket};
use crate::section::{bind, table};
use crate::word::{self, Line, Scope};
use crate::{Files, suggest};

const OPTIONS: &[&str] =
    &["expose-fd", "gid", "group", "id", "level", "mode", "name", "nice", "process", "shards", "thread", "uid", "user"];

/// Reads `stats socket ADDRESS [OPTION]…`.
pub(super) fn stats_socket(line: &Line, files: &dyn Files, diagnostics: &mut Diagnostics) -> Option<StatsSocket> {
    socket(line, 2, "stats socket", StatsLevel::default(), files, diagnostics)
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
    let socket =
        socket(&Line::new(file, 1, words), 0, "the master's socket", StatsLevel::Admin, files, &mut diagnostics);
    match (socket, diagnostics.iter().next()) {
        (Some(socket), None) => Ok(socket),
        (_, Some(found)) => Err(match &found.hint {
            Some(hint) => format!("{}; {hint}", found.message),
            None => found.message.clone(),
        }),
        (None, None) => Err(format!("'{argument}' is no address")),
    }
}

/// Reads the words from `first` on; `what` names the socket in messages.
fn socket(
    line: &Line,
    first: usize,
    what: &str,
    level: StatsLevel,
    files: &dyn Files,
    diagnostics: &mut Diagnostics,
) -> Option<StatsSocket> {
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
    let address = addresses.remove(0);
    let mut socket = StatsSocket { address, mode: None, level, user: None, group: None, expose: false, at: line.at(0) };
    let mut next = first + 1;
    while next < line.len() {
        let (name, value) = (line.text(next), line.text(next + 1));
        if !OPTIONS.contains(&name) {
            if known::is_known(known::STATS_SOCKET_OPTIONS, name) || bind::is_about_tls(name) {
                diagnostics.error(line.at(next), format!("'{name}' of '{what}' is not supported yet"));
            } else {
                let near = suggest::nearest(name, OPTIONS.iter().chain(known::STATS_SOCKET_OPTIONS).copied());
                let error = diagnostics.error(line.at(next), format!("unknown keyword '{name}' of '{what}'"));
                error.did_you_mean(near);
            }
            return None;
        }
        if next + 1 >= line.len() {
            diagnostics.error(line.at(next + 1), format!("'{name}' of '{what}' expects a value"));
            return None;
        }
        match name {
            "level" => {
                socket.level = match value {
                    "user" => StatsLevel::User,
                    "operator" => StatsLevel::Operator,
                    "admin" => StatsLevel::Admin,
                    other => {
                        let names = ["user", "operator", "admin"];
                        let message = format!("'level' only supports {} (got '{other}')", table::list(&names));
                        let near = suggest::nearest(other, names);
                        diagnostics.error(line.at(next + 1), message).did_you_mean(near);
                        return None;
                    }
                }
            }
            "mode" => match bind::octal(value) {
                Ok(mode) => socket.mode = Some(mode),
                Err(message) => {
                    diagnostics.error(line.at(next + 1), format!("'mode' of '{what}': {message}"));
                }
            },
            "expose-fd" if value == "listeners" => socket.expose = true,
            "expose-fd" => {
                let message = format!("'expose-fd' of '{what}' only supports 'listeners' (got '{value}')");
                diagnostics.error(line.at(next + 1), message);
                return None;
            }
            "user" | "uid" => socket.user = Some(value.to_owned()),
            "group" | "gid" => socket.group = Some(value.to_owned()),
            // A socket's name and number show in nothing that this process reports, and the control thread has them
            // all.
            _ => {}
        }
        next += 2;
    }
    Some(socket)
}
