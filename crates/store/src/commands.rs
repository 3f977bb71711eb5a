//! All commands: look-ups among the rows of keys and values, of scripts and of the server.

#[cfg(test)]
pub(crate) mod gated;
mod renamed;

use sluicegate_wire::reply::Reply;

use crate::catalogue::{CommandSpec, Handler};
use crate::engine::without_connection;
pub(crate) use crate::server::rows::ROWS;
pub use renamed::rename;

/// Returns every row, by group; the rows of subcommands are in those of their containers.
pub fn all() -> impl Iterator<Item = &'static CommandSpec> {
    ROWS.commands().iter().copied()
}

/// Returns the command of this name, in any case.
pub fn find(name: &[u8]) -> Option<&'static CommandSpec> {
    ROWS.find(name).map(|row| row.spec)
}

/// The reason why a rule cannot call a command, as far as that is known before it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// There is no such command.
    Unknown(String),
    /// It has a wrong number of words, or no such subcommand.
    Malformed(String),
    /// It changes or needs a connection, which a rule has none of.
    NeedsConnection(String),
    /// It would wait for other clients.
    Waits(String),
}

/// Returns the reason why a rule cannot call a command with these words; `None` among them is a word computed at each
/// call.
pub fn unfit(words: &[Option<&[u8]>]) -> Option<Unfit> {
    let name = words.first().copied().flatten()?;
    let filled: Vec<&[u8]> = words.iter().map(|word| word.unwrap_or(b"?")).collect();
    let text = |text: &[u8]| {
        let text = String::from_utf8_lossy(text);
        let text = text.strip_prefix("ERR ").unwrap_or(&text);
        text.split(", with args beginning with").next().unwrap_or(text).to_owned()
    };
    let Some(found) = find(name) else {
        return ROWS.resolve(&filled).err().map(|message| Unfit::Unknown(text(&message)));
    };
    if matches!(found.handler, Handler::Container) && words.get(1) == Some(&None) {
        return None;
    }
    let spec = match ROWS.resolve(&filled) {
        Ok(spec) => spec,
        Err(message) => return Some(Unfit::Malformed(text(&message))),
    };
    if let Handler::Connection(command) = spec.handler {
        return match without_connection(command, &filled) {
            Reply::Error(message) => Some(Unfit::NeedsConnection(text(message.as_bytes()))),
            _ => None,
        };
    }
    let waits = spec.blocking.is_some_and(|blocking| blocking.waits(&filled));
    waits.then(|| Unfit::Waits(format!("{} is not allowed here: a rule must not wait for other clients", spec.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

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
