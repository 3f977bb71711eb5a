//! Commands that MONITOR has shown, as `--monitor-input` takes them.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use crate::load::redis::words;

/// The largest file.
const MAX_BYTES: u64 = 1 << 30;

/// The placeholder of a command whose turn it is.
pub(super) const ANY: &str = "__monitor_line@__";
const ONE: &str = "__monitor_line";

/// The commands of a file, as words.
pub(super) struct Recorded {
    pub(super) commands: Vec<Vec<Vec<u8>>>,
    /// The lines of the file.
    pub(super) lines: usize,
}

/// The recorded commands that a `--command` stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placeholder {
    Any,
    /// The command of a number, from 1 on.
    One(usize),
}

/// Returns the placeholder that a command is; [`None`] if it is none.
pub(super) fn placeholder(text: &str) -> Option<Result<Placeholder, String>> {
    let rest = text.strip_prefix(ONE)?;
    let number = || rest.strip_suffix("__")?.parse().ok().filter(|number| *number > 0);
    Some(match (text, number()) {
        (ANY, _) => Ok(Placeholder::Any),
        (_, Some(number)) => Ok(Placeholder::One(number)),
        _ => Err(format!("--command {text}: {ONE}N__ or {ANY} is expected")),
    })
}

impl Recorded {
    /// Reads a file: what begins with a quotation mark is the command of a line, and lines without are none.
    pub(super) fn read(path: &Path) -> Result<Recorded, String> {
        let name = path.display();
        let file = std::fs::File::open(path).map_err(|error| format!("{name}: {error}"))?;
        let (mut commands, mut lines, mut bytes) = (Vec::new(), 0, 0);
        for line in BufReader::new(file.take(MAX_BYTES + 1)).split(b'\n') {
            let line = line.map_err(|error| format!("{name}: {error}"))?;
            (lines, bytes) = (lines + 1, bytes + line.len() as u64 + 1);
            if bytes > MAX_BYTES {
                return Err(format!("{name}: more than {MAX_BYTES} bytes are not read"));
            }
            let Some(start) = line.iter().position(|byte| *byte == b'"') else { continue };
            let text = String::from_utf8_lossy(&line[start..]);
            let words = words(text.trim_end_matches('\r')).map_err(|error| format!("{name}:{lines}: {error}"))?;
            commands.push(words);
        }
        match commands.is_empty() {
            true => Err(format!("{name}: there are no commands")),
            false => Ok(Recorded { commands, lines }),
        }
    }

    /// Returns the words of the command of a number, from 1 on.
    pub(super) fn command(&self, number: usize) -> Result<&[Vec<u8>], String> {
        let found = number.checked_sub(1).and_then(|index| self.commands.get(index));
        let last = self.commands.len();
        found.map(Vec::as_slice).ok_or_else(|| format!("{ONE}{number}__: there are {ONE}1__ to {ONE}{last}__"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_told_apart() {
        assert_eq!(placeholder("GET a"), None);
        assert_eq!(placeholder("__monitor_line@__"), Some(Ok(Placeholder::Any)));
        assert_eq!(placeholder("__monitor_line12__"), Some(Ok(Placeholder::One(12))));
        for wrong in
            ["__monitor_line0__", "__monitor_line__", "__monitor_line1", "__monitor_line1__ x", "__monitor_line-1__"]
        {
            assert!(placeholder(wrong).is_some_and(|found| found.is_err()), "{wrong}");
        }
    }

    #[test]
    fn commands_are_read_as_monitor_shows_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("recorded");
        let text = "OK\n1.2 [0 127.0.0.1:1] \"SET\" \"a\" \"x\\\"y\\x01\"\r\n\n1.3 [0 lua] \"get\" \"a\"\n";
        std::fs::write(&path, text).unwrap();
        let recorded = Recorded::read(&path).unwrap();
        assert_eq!((recorded.lines, recorded.commands.len()), (4, 2));
        assert_eq!(recorded.command(1).unwrap(), [b"SET".to_vec(), b"a".to_vec(), b"x\"y\x01".to_vec()]);
        assert_eq!(recorded.commands[1], [b"get".to_vec(), b"a".to_vec()]);
        assert!(recorded.command(3).is_err_and(|error| error.contains("__monitor_line1__ to __monitor_line2__")));
        for (text, fault) in [("OK\n", "there are no commands"), ("OK\n1 \"SET\" \"a\n", "recorded:2: ")] {
            std::fs::write(&path, text).unwrap();
            assert!(Recorded::read(&path).is_err_and(|error| error.contains(fault)), "{text}");
        }
        assert!(Recorded::read(&dir.path().join("none")).is_err());
    }
}
