//! All commands: the rows of keys and values, of scripts and of the server, in the order in which they are listed.

#[cfg(test)]
mod gated;

use std::sync::LazyLock;

use crate::catalogue::{CommandSpec, Rows};
use crate::server::rows;
use crate::{command, script};

/// All rows, numbered.
pub(crate) static ROWS: LazyLock<Rows> = LazyLock::new(|| {
    let tables = command::BEFORE_SCRIPTS
        .iter()
        .chain(&[script::command::COMMANDS, script::function_command::COMMANDS])
        .chain(command::BEHIND_SCRIPTS)
        .chain(&[rows::COMMANDS]);
    #[cfg(test)]
    let tables = tables.chain(&[command::FAULTY]);
    Rows::new(tables.flat_map(|table| table.iter()))
});

/// Returns every row, by group; those of containers are in theirs.
pub fn all() -> impl Iterator<Item = &'static CommandSpec> {
    ROWS.commands().iter().copied()
}

/// Returns the command of this name, in any case.
pub fn find(name: &[u8]) -> Option<&'static CommandSpec> {
    ROWS.find(name).map(|row| row.spec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Handler;

    #[test]
    fn names_are_found_in_any_case() {
        assert_eq!(find(b"GeT").map(|spec| spec.name), Some("get"));
        assert!(find(b"nonsense").is_none());
        assert!(find(&[b'a'; 100]).is_none());
        assert!(find(b"").is_none());
    }

    #[test]
    fn every_row_is_known_by_its_number() {
        let subcommands = all().flat_map(|spec| spec.subcommands);
        for (number, spec) in all().chain(subcommands).enumerate() {
            assert_eq!(usize::from(ROWS.number(spec)), number, "{}", spec.name);
            assert!(std::ptr::eq(ROWS.spec(number as u16), spec));
        }
    }

    #[test]
    fn every_row_is_whole() {
        for spec in all() {
            assert!(!spec.summary.is_empty() && !spec.group.is_empty(), "{} says nothing", spec.name);
            assert_eq!(spec.name, spec.name.to_lowercase());
            assert!(!matches!(spec.handler, Handler::Container) || !spec.subcommands.is_empty(), "{}", spec.name);
            assert!(all().filter(|other| other.name == spec.name).count() == 1, "two rows are named {}", spec.name);
        }
    }
}
