//! `unix-bind`: defaults of unix sockets.

use super::Reading;
use crate::model::{Bind, BindAddress, StatsSocket, UnixBind};
use crate::section::bind;
use crate::word::Line;

const OPTIONS: [&str; 6] = ["gid", "group", "mode", "prefix", "uid", "user"];

/// Reads the line; settings that it does not name keep their values.
pub(super) fn unix_bind(r: &mut Reading<'_>, line: &Line) {
    let mut next = 1;
    while next < line.len() {
        let (name, value) = (line.text(next), line.text(next + 1));
        if !OPTIONS.contains(&name) {
            return r.one_of(line, next, &OPTIONS);
        }
        if next + 1 >= line.len() {
            r.diagnostics.error(line.at(next + 1), format!("'{name}' of 'unix-bind' expects a value"));
            return;
        }
        let unix = &mut r.reader.global.unix_bind;
        match name {
            "prefix" => unix.prefix = Some(value.to_owned()),
            "mode" => match bind::octal(value) {
                Ok(mode) => unix.mode = Some(mode),
                Err(message) => {
                    r.diagnostics.error(line.at(next + 1), format!("'mode' of 'unix-bind': {message}"));
                }
            },
            "user" | "uid" => unix.user = Some(value.to_owned()),
            _ => unix.group = Some(value.to_owned()),
        }
        next += 2;
    }
}

impl UnixBind {
    /// Gives a `bind` line the prefix, and the rights it does not set.
    pub(crate) fn apply(&self, bind: &mut Bind) {
        let mut unix = false;
        for address in &mut bind.addresses {
            if let BindAddress::Unix(path) = address {
                unix = true;
                if let Some(prefix) = &self.prefix {
                    // The prefix is text, not a directory: it may be the beginning of a file's name.
                    *path = format!("{prefix}{}", path.display()).into();
                }
            }
        }
        if unix {
            self.rights(&mut bind.mode, &mut bind.user, &mut bind.group);
        }
    }

    /// Gives a stats socket the rights it does not set. Its path has no prefix, as in HAProxy.
    pub(super) fn apply_to_stats(&self, socket: &mut StatsSocket) {
        if matches!(socket.address, BindAddress::Unix(_)) {
            self.rights(&mut socket.mode, &mut socket.user, &mut socket.group);
        }
    }

    fn rights(&self, mode: &mut Option<u32>, user: &mut Option<String>, group: &mut Option<String>) {
        *mode = mode.or(self.mode);
        *user = user.take().or_else(|| self.user.clone());
        *group = group.take().or_else(|| self.group.clone());
    }
}
