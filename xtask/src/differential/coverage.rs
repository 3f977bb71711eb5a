//! Coverage: the commands that ran, with the shapes of their replies and their errors.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::value::{Value, shape_of};

/// Counts of everything that both programs answered alike.
#[derive(Default)]
pub(super) struct Coverage {
    /// Names with a bar before the subcommand.
    known: BTreeSet<String>,
    rows: BTreeMap<String, Row>,
}

#[derive(Default)]
struct Row {
    shapes: BTreeMap<&'static str, u64>,
    errors: BTreeMap<&'static str, u64>,
}

impl Coverage {
    pub(super) fn new(known: impl IntoIterator<Item = String>) -> Coverage {
        Coverage { known: known.into_iter().collect(), rows: BTreeMap::new() }
    }

    /// Notes a reply by its bytes.
    pub(super) fn note(&mut self, words: &[Vec<u8>], reply: &[u8]) {
        let shape = shape_of(reply);
        self.add(words, shape, if shape == "error" { &reply[1..] } else { b"" });
    }

    /// Notes a reply, or a part of one.
    pub(super) fn note_value(&mut self, words: &[Vec<u8>], reply: &Value) {
        self.add(words, reply.shape(), &reply.text);
    }

    fn add(&mut self, words: &[Vec<u8>], shape: &'static str, text: &[u8]) {
        let Some(name) = self.name(words) else { return };
        let row = self.rows.entry(name).or_default();
        *match shape {
            "error" => row.errors.entry(error_class(text)).or_default(),
            shape => row.shapes.entry(shape).or_default(),
        } += 1;
    }

    fn name(&self, words: &[Vec<u8>]) -> Option<String> {
        let word = |at: usize| words.get(at).map(|word| String::from_utf8_lossy(word).to_ascii_lowercase());
        let name = word(0)?;
        let whole = word(1).map(|second| format!("{name}|{second}"));
        whole.filter(|whole| self.known.contains(whole)).or(self.known.contains(&name).then_some(name))
    }

    /// Returns the commands that never ran, or were refused every time.
    pub(super) fn missing(&self, left_out: impl Fn(&str) -> bool) -> Vec<String> {
        let is_container = |name: &str| self.known.iter().any(|other| other.starts_with(&format!("{name}|")));
        let wanted = self.known.iter().filter(|name| !left_out(name) && !is_container(name));
        let mut missing = Vec::new();
        for name in wanted {
            match self.rows.get(name) {
                None => missing.push(format!("{name} never ran")),
                Some(row) if row.shapes.is_empty() => missing.push(format!("{name} never succeeded")),
                Some(_) => {}
            }
        }
        missing
    }

    /// Returns a line for each command: the count of each shape and, after a bar, the count of each error.
    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        let width = self.rows.keys().map(String::len).max().unwrap_or(0);
        for (name, row) in &self.rows {
            let list = |counts: &BTreeMap<&str, u64>| {
                let cells: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
                cells.join(", ")
            };
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name:width$}  {} | {}", list(&row.shapes), list(&row.errors));
        }
        let cells: usize = self.rows.values().map(|row| row.shapes.len() + row.errors.len()).sum();
        let _ = writeln!(
            text,
            "{} commands, {cells} pairs of a command with a shape of reply or an error",
            self.rows.len()
        );
        text
    }
}

/// Returns the branch that an error stands for, by its text.
fn error_class(text: &[u8]) -> &'static str {
    const CLASSES: &[(&str, &str)] = &[
        ("WRONGTYPE", "wrong type"),
        ("wrong number of arguments", "arity"),
        ("unknown subcommand", "unknown subcommand"),
        ("unknown command", "unknown command"),
        ("syntax error", "syntax"),
        ("not an integer", "not an integer"),
        ("not a valid float", "not a float"),
        ("not a float", "not a float"),
        ("not a double", "not a float"),
        ("NaN", "not a number"),
        ("Infinity", "infinite"),
        ("would overflow", "overflow"),
        ("invalid expire", "invalid expire"),
        ("out of range", "out of range"),
        ("must be positive", "must be positive"),
        ("negative", "negative"),
        ("no such key", "no such key"),
        ("BUSYKEY", "key exists"),
        ("EXECABORT", "aborted"),
        ("DUMP payload", "payload"),
        ("Bad data format", "payload"),
        ("maximum allowed size", "too long"),
    ];
    let text = String::from_utf8_lossy(text);
    CLASSES.iter().find(|(part, _)| text.contains(part)).map_or("other", |row| row.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coverage(exchanges: &[(&str, &str)]) -> Coverage {
        let known = ["get", "set", "client", "client|id", "client|list", "debug"];
        let mut coverage = Coverage::new(known.map(str::to_owned));
        for (command, reply) in exchanges {
            let words: Vec<Vec<u8>> = command.split(' ').map(|word| word.as_bytes().to_vec()).collect();
            coverage.note(&words, reply.as_bytes());
        }
        coverage
    }

    /// Returns the names of missing commands, without reasons and without DEBUG.
    fn missing(exchanges: &[(&str, &str)]) -> Vec<String> {
        let missing = coverage(exchanges).missing(|name| name == "debug");
        missing.iter().map(|line| line.split([' ', ':']).next().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn a_command_that_stands_at_zero_is_missing() {
        assert_eq!(missing(&[]), ["client|id", "client|list", "get", "set"]);
        let most = [("GET k", "$-1\r\n"), ("CLIENT ID", ":7\r\n"), ("client list", "$0\r\n\r\n")];
        assert_eq!(missing(&most), ["set"]);
        // A command that was refused every time is not covered.
        assert_eq!(missing(&[&most[..], &[("SET k", "-ERR wrong number of arguments\r\n")]].concat()), ["set"]);
        assert_eq!(missing(&[&most[..], &[("SET k v", "+OK\r\n")]].concat()), [""; 0]);
    }

    #[test]
    fn shapes_and_errors_are_counted_by_command() {
        let table =
            coverage(&[("GET k", "$-1\r\n"), ("GET k", "-WRONGTYPE Operation\r\n"), ("nosuch", "-ERR\r\n")]).table();
        let row = table.lines().find(|line| line.contains("get")).expect("a row");
        assert!(row.contains("null 1") && row.contains("wrong type 1") && !table.contains("nosuch"), "{table}");
    }
}
