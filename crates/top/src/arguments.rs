//! The command line.

use std::ffi::OsString;
use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt as _};

pub(crate) const HELP: &str = "\
usage: sluicegate top [OPTIONS] [SOCKET]

Shows a running process, Sluicegate's or HAProxy's, by its stats socket: a path, or HOST:PORT. Without one it is
/run/haproxy/admin.sock.

options:
  -i, --interval SECONDS  time between two looks (3)
  --once                  print one look as text, and end; so it is without a terminal
  -h, --help              this text

keys: Tab or 1 to 4 choose proxies, stores, engines, limits; arrows and page keys move; of a server: e enables, d
disables (maintenance), D drains, w sets the weight; c clears the counters; q ends.
";

/// Debian's socket.
const SOCKET: &str = "/run/haproxy/admin.sock";

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// A path, or `HOST:PORT`.
    pub(crate) socket: String,
    pub(crate) interval: Duration,
    pub(crate) once: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Help,
    Run(Options),
}

pub(crate) fn parse(words: Vec<OsString>) -> Result<Wanted, String> {
    let mut options = Options { socket: SOCKET.to_owned(), interval: Duration::from_secs(3), once: false };
    let mut parser = Parser::from_args(words);
    let mut has_socket = false;
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Arg::Short('h') | Arg::Long("help") => return Ok(Wanted::Help),
            Arg::Long("once") => options.once = true,
            Arg::Short('i') | Arg::Long("interval") => {
                let word = parser.value().and_then(|value| value.string()).map_err(|error| error.to_string())?;
                let seconds = word.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
                let seconds = seconds.ok_or(format!("--interval {word}: seconds from 0.1 to 3600 are expected"))?;
                options.interval = Duration::from_secs_f64(seconds);
            }
            // As hatop has it.
            Arg::Short('s') | Arg::Long("unix-socket") => {
                options.socket = parser.value().and_then(|value| value.string()).map_err(|error| error.to_string())?;
                has_socket = true;
            }
            Arg::Value(word) if !has_socket => {
                options.socket = word.string().map_err(|error| error.to_string())?;
                has_socket = true;
            }
            other => return Err(other.unexpected().to_string()),
        }
    }
    Ok(Wanted::Run(options))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Wanted, String> {
        parse(text.split_whitespace().map(OsString::from).collect())
    }

    #[test]
    fn words_are_options() {
        let of = |socket: &str, ms, once| {
            Ok(Wanted::Run(Options { socket: socket.into(), interval: Duration::from_millis(ms), once }))
        };
        assert_eq!(parsed(""), of(SOCKET, 3000, false));
        assert_eq!(parsed("/run/s -i 0.5 --once"), of("/run/s", 500, true));
        assert_eq!(parsed("-s /run/s"), of("/run/s", 3000, false));
        assert_eq!(parsed("127.0.0.1:9 --help"), Ok(Wanted::Help));
        for text in ["a b", "-i 0", "-i x", "-i", "--nosuch", "-s a b"] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }
}
