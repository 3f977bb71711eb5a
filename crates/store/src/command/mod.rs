//! The commands, a data type per file; each file ends in its catalogue rows.

mod bitfield;
pub(crate) mod bitmap;
mod combine;
pub(crate) mod database;
mod dump;
mod expire;
#[cfg(test)]
mod faulty;
mod field_expiry;
mod generic;
pub(crate) mod geo;
mod hash;
mod hyperloglog;
mod lcs;
mod limit;
mod list;
mod memory;
mod object;
mod publish;
mod scan;
mod set;
mod sort;
mod stick;
pub(crate) mod stream;
mod string;
mod throttle;
mod wait;
pub(crate) mod zset;

use std::borrow::Cow;

use sluicegate_wire::resp::{ReplySink, parse_i64};

use crate::catalogue::CommandSpec;
use crate::context::Ctx;
use crate::gate::Closed;
use crate::keyspace::Keyspace;

/// A command's function: reads and writes through the context, says exactly one reply.
///
/// The sink is called through a table: a command says one to three elements, at 2 ns each, and the catalogue can hold
/// only one function for both kinds of sink.
pub type Handle = fn(&mut Ctx<'_>, &mut dyn ReplySink);

/// The function of a command that has the whole keyspace for itself: words and database of the caller follow.
pub type GlobalHandle = fn(&Keyspace, &Closed<'_>, &[&[u8]], u32, &mut dyn ReplySink);

/// All rows, a table per file.
pub(crate) const TABLES: &[&[CommandSpec]] = &[
    string::COMMANDS,
    lcs::COMMANDS,
    generic::COMMANDS,
    expire::COMMANDS,
    bitmap::COMMANDS,
    bitfield::COMMANDS,
    set::COMMANDS,
    combine::COMMANDS,
    hash::COMMANDS,
    field_expiry::COMMANDS,
    list::COMMANDS,
    crate::script::command::COMMANDS,
    crate::script::function_command::COMMANDS,
    zset::change::COMMANDS,
    zset::range::COMMANDS,
    zset::pop::COMMANDS,
    zset::combine::COMMANDS,
    zset::pick::COMMANDS,
    stream::COMMANDS,
    geo::COMMANDS,
    geo::search::COMMANDS,
    hyperloglog::COMMANDS,
    object::COMMANDS,
    memory::COMMANDS,
    stick::COMMANDS,
    throttle::COMMANDS,
    limit::COMMANDS,
    dump::COMMANDS,
    sort::COMMANDS,
    publish::COMMANDS,
    database::COMMANDS,
    crate::server::COMMANDS,
    #[cfg(test)]
    faulty::COMMANDS,
];

pub(crate) const SYNTAX: &str = "ERR syntax error";
pub(crate) const NOT_INTEGER: &str = "ERR value is not an integer or out of range";
pub(crate) const NO_SUCH_KEY: &str = "ERR no such key";
pub(crate) const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
pub(crate) const DB_RANGE: &str = "ERR DB index is out of range";

/// Why a command ends with an error reply. Bytes: some errors repeat a word of the client's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused(Cow<'static, [u8]>);

impl From<&'static str> for Refused {
    fn from(text: &'static str) -> Refused {
        Refused(Cow::Borrowed(text.as_bytes()))
    }
}

impl From<String> for Refused {
    fn from(text: String) -> Refused {
        Refused(Cow::Owned(text.into_bytes()))
    }
}

impl From<Vec<u8>> for Refused {
    fn from(text: Vec<u8>) -> Refused {
        Refused(Cow::Owned(text))
    }
}

impl Refused {
    /// The reply's text.
    pub(crate) fn text(&self) -> &[u8] {
        &self.0
    }
}

/// An integer argument.
pub(crate) fn integer(word: &[u8]) -> Result<i64, Refused> {
    parse_i64(word).ok_or(NOT_INTEGER.into())
}

/// A 32-bit integer argument; `error` is what Redis says otherwise.
pub(crate) fn small_integer(word: &[u8], error: Option<&'static str>) -> Result<i32, Refused> {
    let Some(value) = parse_i64(word) else { return Err(error.unwrap_or(NOT_INTEGER).into()) };
    i32::try_from(value)
        .map_err(|_| error.unwrap_or("ERR value is out of range, value must between -2147483648 and 2147483647").into())
}

/// Redis's `%.*s`, by which errors repeat words: a C string, so it ends at a NUL.
pub(crate) fn c_string(bytes: &[u8], max: usize) -> &[u8] {
    let bytes = &bytes[..bytes.len().min(max)];
    &bytes[..memchr::memchr(0, bytes).unwrap_or(bytes.len())]
}

/// Whether a word is this option, in any case.
pub(crate) fn is(word: &[u8], option: &str) -> bool {
    word.eq_ignore_ascii_case(option.as_bytes())
}

/// Says the error, if there is one.
pub(crate) fn or_error(result: Result<(), Refused>, out: &mut dyn ReplySink) {
    if let Err(text) = result {
        out.error_bytes(text.text());
    }
}

/// A container's HELP.
pub(crate) fn help(name: &str, lines: &[&str], out: &mut dyn ReplySink) {
    out.array(lines.len() + 3);
    out.simple(&format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    lines.iter().for_each(|line| out.simple(line));
    out.simple("HELP");
    out.simple("    Prints this help.");
}
