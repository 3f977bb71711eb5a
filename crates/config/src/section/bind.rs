//! `bind` lines and their options (HAProxy configuration manual 5.1).

use crate::Files;
use crate::address::{self, AddressError};
use crate::catalogue::known::is_known;
use crate::catalogue::{Contexts, known};
use crate::diagnostic::Diagnostics;
use crate::model::{Bind, BindAddress, BindTcp};
use crate::names;
use crate::section::table::{Row, Table};
use crate::suggest;
use crate::unit;
use crate::word::Line;

/// Reads an option's value into a bind; the message of an error is completed with the option's name.
pub(crate) type BindOption = fn(&mut Bind, &str) -> Result<(), String>;

/// Options behind a bind's addresses.
pub(crate) static OPTIONS: Table<BindOption> = Table::new(&[
    option(
        "accept-proxy",
        0,
        "",
        "Connections must begin with a PROXY protocol header, version 1 or 2, with the client's address; others are \
         closed.",
        |b, _| {
            b.accept_proxy = true;
            Ok(())
        },
    ),
    option("backlog", 1, "N", "Length of the kernel's accept queue; the frontend's maxconn by default.", |b, v| {
        b.backlog = Some(unit::leading_integer(v, 0, i64::from(i32::MAX))? as u32);
        Ok(())
    }),
    option("defer-accept", 0, "", "Connections are accepted once they have sent something.", |b, _| {
        b.tcp.defer_accept = true;
        Ok(())
    }),
    option("gid", 1, "GID", "Group of a unix socket, by number.", |b, v| {
        unit::leading_integer(v, 0, i64::from(u32::MAX))?;
        b.group = Some(v.to_owned());
        Ok(())
    }),
    option("group", 1, "NAME", "Group of a unix socket, by name.", |b, v| {
        b.group = Some(v.to_owned());
        Ok(())
    }),
    option("id", 1, "N", "The number of the line's first socket, as 'so_id' gives it.", |b, v| {
        b.id = Some(unit::integer(v, 1, i64::from(i32::MAX))? as u32);
        Ok(())
    }),
    option("interface", 1, "NAME", "Accepts connections from this interface only; needs a capability.", |b, v| {
        b.tcp.interface = Some(v.to_owned());
        Ok(())
    }),
    option("maxconn", 1, "N", "Maximum number of concurrent connections of these sockets.", |b, v| {
        b.maxconn = Some(unit::leading_integer(v, 1, i64::from(i32::MAX))? as u32);
        Ok(())
    }),
    option("mode", 1, "OCTAL", "Permissions of a unix socket.", |b, v| {
        b.mode = Some(octal(v)?);
        Ok(())
    }),
    option("mss", 1, "N", "The maximum segment size announced to clients.", |b, v| {
        b.tcp.mss = Some(unit::leading_integer(v, 1, 65_535)? as u32);
        Ok(())
    }),
    option("name", 1, "NAME", "A name for the line's sockets, as in statistics.", |b, v| {
        b.name = Some(v.to_owned());
        Ok(())
    }),
    option("nice", 1, "N", "No effect: it sets HAProxy's scheduling priority.", |_, v| {
        unit::leading_integer(v, -1024, 1024).map(|_| ())
    }),
    option("process", 1, "all|odd|even|NUMBER", ONE_PROCESS, |_, _| Ok(())),
    option("proto", 1, "h1|none", PROTO, |_, v| proto(v)),
    option("shards", 1, "N|by-thread|by-group", WORKERS, |_, _| Ok(())),
    option("tcp-ut", 1, "TIME", "Maximum time that sent data may stay unacknowledged.", |b, v| {
        b.tcp.user_timeout = Some(unit::time(v, unit::TimeUnit::Milliseconds)?);
        Ok(())
    }),
    option("thread", 1, "THREADS", WORKERS, |_, _| Ok(())),
    option("tfo", 0, "", "Clients may send data with their first packet (TCP fast open).", |b, _| {
        b.tcp.fast_open = true;
        Ok(())
    }),
    option(
        "transparent",
        0,
        "",
        "The address may be foreign: connections to other addresses that the system redirects here are accepted; needs \
         a capability.",
        |b, _| {
            b.tcp.transparent = true;
            Ok(())
        },
    ),
    option("uid", 1, "UID", "Owner of a unix socket, by number.", |b, v| {
        unit::leading_integer(v, 0, i64::from(u32::MAX))?;
        b.user = Some(v.to_owned());
        Ok(())
    }),
    option("user", 1, "NAME", "Owner of a unix socket, by name.", |b, v| {
        b.user = Some(v.to_owned());
        Ok(())
    }),
    option("v4v6", 0, "", "An IPv6 wildcard address accepts IPv4 as well.", |b, _| {
        b.v6only = Some(false);
        Ok(())
    }),
    option("v6only", 0, "", "An IPv6 wildcard address accepts IPv6 only.", |b, _| {
        b.v6only = Some(true);
        Ok(())
    }),
]);

pub(crate) const ONE_PROCESS: &str = "No effect: there is one process.";
/// The description of `proto`.
pub(crate) const PROTO: &str = "No effect: HTTP/1 is the only protocol, and h2 is refused.";
const WORKERS: &str = "No effect: each worker accepts from each socket.";

/// Checks the argument of `proto`.
pub(crate) fn proto(name: &str) -> Result<(), String> {
    match name {
        "h1" | "none" => Ok(()),
        "h2" | "fcgi" | "quic" | "spop" => Err(format!("'{name}' is not supported yet")),
        _ => Err(format!("'h1' or 'none' was expected, not '{name}'")),
    }
}

const fn option(
    name: &'static str,
    values: usize,
    usage: &'static str,
    docs: &'static str,
    parser: BindOption,
) -> Row<BindOption> {
    Row { name, contexts: Contexts::BIND_OPTION, min: values, max: values, usage, docs, parser }
}

/// Permissions in octal.
pub(crate) fn octal(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 && !text.starts_with('+') => Ok(mode),
        _ => Err(format!("permissions in octal were expected, not '{text}'")),
    }
}

/// Returns the addresses that a word lists, variables expanded and names resolved.
pub(crate) fn addresses(line: &Line, index: usize, files: &dyn Files) -> Result<Vec<BindAddress>, AddressError> {
    let text = line.address(index);
    match names::numeric(text, files) {
        Ok(text) => address::bind(&text),
        // A mistake that shows without the network, such as a missing port, comes first.
        Err(message) => match address::bind(text) {
            Err(error) if !error.message.starts_with("invalid address") => Err(error),
            _ => address::unresolved(message),
        },
    }
}

/// Reads `bind ADDRESS[,…] [OPTION…]`.
pub(crate) fn bind(line: &Line, files: &dyn Files, diagnostics: &mut Diagnostics) -> Option<Bind> {
    let mut bind = Bind {
        addresses: Vec::new(),
        name: None,
        maxconn: None,
        backlog: None,
        v6only: None,
        mode: None,
        user: None,
        group: None,
        tcp: BindTcp::NONE,
        id: None,
        accept_proxy: false,
        at: line.at(0),
    };
    match addresses(line, 1, files) {
        Ok(addresses) => bind.addresses = addresses,
        Err(problem) => {
            let error =
                diagnostics.error(line.within_address(1, problem.offset), format!("'bind': {}", problem.message));
            if let Some(hint) = problem.hint {
                error.hint(hint);
            }
        }
    }
    let mut next = 2;
    while next < line.len() {
        let word = line.text(next);
        let Some((row, _)) = OPTIONS.find(word, "") else {
            if is_known(known::BIND_OPTIONS, word) {
                diagnostics.error(line.at(next), format!("'{word}' of 'bind' is not supported yet"));
                // Whether values follow is not known, so the rest can't be read.
            } else {
                let names = OPTIONS.names(Contexts::BIND_OPTION).chain(known::BIND_OPTIONS.iter().copied());
                let near = suggest::nearest(word, names);
                diagnostics.error(line.at(next), format!("unknown keyword '{word}' of 'bind'")).did_you_mean(near);
            }
            return None;
        };
        if row.max > 0 && next + 1 >= line.len() {
            diagnostics.error(line.at(next + 1), format!("'{word}' of 'bind' expects {}", row.usage));
            return None;
        }
        match (row.parser)(&mut bind, line.text(next + 1)) {
            Err(message) => _ = diagnostics.error(line.at(next + 1), format!("'{word}' of 'bind': {message}")),
            Ok(()) if row.usage == "TIME" => diagnostics.behind_unit(line.at(next + 1), line.text(next + 1)),
            Ok(()) => {}
        }
        next += 1 + row.max;
    }
    if bind.addresses.is_empty() { None } else { Some(bind) }
}
