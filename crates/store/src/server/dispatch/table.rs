//! Every command and subcommand of a server by name: the catalogue with the additions of the server's own table.

use std::sync::LazyLock;

use super::By;
use crate::catalogue::{CommandSpec, Flags, Numbered, Rows};
use crate::memory::OOM;
use crate::server::rows::{self, ROWS, ServerCommand, Traits};

/// One row: a command or a subcommand.
pub(in crate::server) struct Row {
    pub spec: &'static CommandSpec,
    /// `get`, `client|list`.
    pub full_name: String,
    /// The rows of a container's subcommands.
    pub subcommands: std::ops::Range<u16>,
    local: Option<By>,
    pub traits: Traits,
    /// The smallest number of words that it takes, and how many more it may have.
    words: (usize, usize),
}

impl Row {
    /// Returns whether an error means that the command was refused for lack of memory, before it ran, or that its client
    /// lost the permission while it waited: Redis counts it as rejected.
    #[cold]
    pub fn was_refused(&self, error: &[u8]) -> bool {
        let is_denied = || self.spec.blocking.is_some() && error.starts_with(b"NOPERM ");
        self.spec.flags.has(Flags::DENYOOM) && error.trim_ascii_end() == OOM.as_bytes() || is_denied()
    }

    /// Returns whether it accepts this many words, as [`CommandSpec::takes`] does.
    #[inline]
    pub fn takes(&self, words: usize) -> bool {
        words.wrapping_sub(self.words.0) <= self.words.1
    }

    /// Returns its function, if the connection executes it.
    #[inline]
    pub fn local(&self) -> Option<By> {
        self.local
    }
}

/// Every command by name, with the number under which it is counted.
pub(in crate::server) struct Commands {
    rows: Vec<Row>,
    top: usize,
    catalogue: &'static Rows,
}

/// The commands of every server: the catalogue with the additions of the server's own table.
pub(in crate::server) static INDEX: LazyLock<Commands> = LazyLock::new(Commands::new);

impl Commands {
    fn new() -> Commands {
        let row = |spec: &'static CommandSpec, of_server: Option<&ServerCommand>, full_name: String| Row {
            spec,
            full_name,
            subcommands: 0..0,
            local: of_server.and_then(|command| command.by),
            traits: of_server.map_or(Traits::NONE, |command| command.traits),
            words: match usize::try_from(spec.arity) {
                Ok(exact) => (exact, 0),
                // Below any number, so that a smaller one does not wrap around into it.
                Err(_) => (spec.arity.unsigned_abs() as usize, usize::MAX / 2),
            },
        };
        let commands = ROWS.commands();
        let of_server = |spec: &CommandSpec| rows::COMMANDS.iter().find(|command| std::ptr::eq(&command.spec, spec));
        let mut rows: Vec<Row> = commands.iter().map(|spec| row(spec, of_server(spec), spec.name.to_owned())).collect();
        for (container, spec) in commands.iter().enumerate() {
            let from = rows.len() as u16;
            let of_server = of_server(spec).map_or(&[][..], |command| command.subcommands);
            for (place, sub) in spec.subcommands.iter().enumerate() {
                let mut row = row(sub, of_server.get(place), format!("{}|{}", spec.name, sub.name));
                row.traits.keeps_caching |= rows[container].traits.keeps_caching;
                rows.push(row);
            }
            rows[container].subcommands = from..rows.len() as u16;
        }
        Commands { rows, top: commands.len(), catalogue: &ROWS }
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the commands without subcommands, apart from those that `rename-command` has taken away.
    pub fn top(&self) -> Vec<&Row> {
        let rows = self.rows[..self.top].iter().zip(0..);
        rows.filter(|(_, number)| self.catalogue.is_spoken(*number)).map(|(row, _)| row).collect()
    }

    #[inline]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub fn subcommands(&self, row: &Row) -> &[Row] {
        &self.rows[usize::from(row.subcommands.start)..usize::from(row.subcommands.end)]
    }

    /// Returns the command that clients know by this name, in any case.
    #[inline]
    pub fn find(&self, name: &[u8]) -> Option<u16> {
        self.catalogue.spoken().find(name)
    }

    /// Returns the command of this name of its own, whatever clients call it.
    pub fn own(&self, name: &[u8]) -> Option<u16> {
        self.catalogue.find(name).map(|row| row.number)
    }

    /// Returns a command by `name` or `container|name`, as COMMAND INFO takes it.
    pub fn find_full(&self, name: &[u8]) -> Option<&Row> {
        let Some(bar) = name.iter().position(|byte| *byte == b'|') else {
            return self.find(name).map(|at| &self.rows[usize::from(at)]);
        };
        let container = self.find(&name[..bar])?;
        self.subcommand(container, &name[bar + 1..]).map(|at| &self.rows[usize::from(at)])
    }

    /// Returns the command of this container and this name, in any case.
    pub fn subcommand(&self, container: u16, name: &[u8]) -> Option<u16> {
        let container = Numbered { spec: self.rows[usize::from(container)].spec, number: container };
        self.catalogue.subcommand(container, name).map(|row| row.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Handler;

    #[test]
    fn every_row_has_somebody_who_carries_it_out() {
        for row in INDEX.rows() {
            let is_key_command =
                matches!(row.spec.handler, Handler::Keyspace(_) | Handler::Global(_) | Handler::Script(_));
            let is_container = !row.subcommands.is_empty();
            assert!(is_key_command != row.local.is_some() || is_container, "{}", row.full_name);
        }
    }

    #[test]
    fn rows_have_the_numbers_that_scripts_count_by() {
        let rows = &ROWS;
        assert_eq!(rows.count(), INDEX.len());
        for (number, row) in INDEX.rows().iter().enumerate() {
            let mut words = row.full_name.split('|').map(str::as_bytes);
            let found = words.next().and_then(|name| rows.find(name));
            let found = words.fold(found, |found, word| rows.subcommand(found?, word)).expect("a row");
            assert_eq!((found.spec.name, usize::from(found.number)), (row.spec.name, number));
            assert!((0..300).all(|words| row.takes(words) == row.spec.takes(words)), "{}", row.full_name);
        }
    }
}
