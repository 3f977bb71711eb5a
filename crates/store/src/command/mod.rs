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

use sluicegate_wire::resp::{ReplySink, parse_i64};

use crate::catalogue::{CommandSpec, Handle};
use crate::refused::{DB_RANGE, NO_SUCH_KEY, NOT_INTEGER, Refused, SYNTAX, WRONG_TYPE, c_string};

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
