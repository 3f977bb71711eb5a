//! The commands, a data type per file; each file ends in its catalogue rows.

#[cfg(test)]
pub(crate) mod asked;
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

use sluicegate_wire::resp::ReplySink;

pub(crate) use self::set::{EXPIRE_MEMBERS, SPEXPIREAT};
pub(crate) use crate::argument::{integer, is, small_integer};
use crate::catalogue::{CommandSpec, Handle};
use crate::refused::{DB_RANGE, NO_SUCH_KEY, NOT_INTEGER, Refused, SYNTAX, WRONG_TYPE, c_string};

/// The rows of this module, a table per file, up to the scripts' and behind them: the order in which they are listed.
pub(crate) const BEFORE_SCRIPTS: &[&[CommandSpec]] = &[
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
];
pub(crate) const BEHIND_SCRIPTS: &[&[CommandSpec]] = &[
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
];
/// Commands of tests.
#[cfg(test)]
pub(crate) const FAULTY: &[CommandSpec] = faulty::COMMANDS;

/// Writes the error, if there is one.
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
