//! The command line of redis-server: a file, options in the file's syntax, and a few options that print and exit.

use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use sluicegate_store::config::lines_of_words;
use sluicegate_store::server::{REDIS_VERSION, SLUICEGATE_VERSION};

/// The log message of a store without a configuration file.
pub const NO_FILE: &str = "Warning: no config file specified, using the default config. In order to specify a config \
file use redis-server /path/to/redis.conf";

/// `sluicegate store --help`, and that of redis-server.
pub const USAGE: &str = "\
usage: sluicegate store [/path/to/redis.conf] [--OPTION VALUE…]… [-]
       redis-server     the same, where the program is called by that name

A store on its own, for every Redis client. Options are the directives of redis.conf with two dashes before them; those
on the command line come after the file's. A single '-' at the end reads directives from standard input.

  --port N              the TCP port (6379; 0 for none)
  --bind ADDRESS…       where to listen (* -::*)
  --unixsocket PATH     a unix socket, with --unixsocketperm MODE
  --threads N           workers (0: as many as the machine has cores)
  --requirepass WORD    the password; without one, protected mode refuses other machines (--protected-mode no)
  --maxclients N, --timeout SECONDS, --databases N, --daemonize yes, --pidfile PATH, --logfile PATH, --loglevel LEVEL …
  -v, --version         print the version
  -h, --help            print this

RDB files are loaded and saved as in Redis; by default only under its name, or with a file, 'save' has save points.
'--replicaof HOST PORT' follows a master.
docs/reference/commands.md lists all commands and parameters.

signals:
  TERM, INT   stop; the exit code is 0
";

/// The action requested by the command line.
#[derive(Debug)]
pub enum Request {
    /// Print this text and exit with success.
    Print(String),
    /// Print this text to stderr and exit with failure.
    Refuse(String),
    /// Serve.
    Run(Run),
}

/// The parameters of starting a store.
#[derive(Debug)]
pub struct Run {
    /// The configuration file.
    pub file: Option<PathBuf>,
    /// Configuration lines that follow the file.
    pub lines: Vec<u8>,
    /// Whether there were arguments, so that the start was configured deliberately.
    pub is_told: bool,
    /// Whether the store is saved by default: under Redis's name, or with a file.
    pub saves: bool,
}

/// Parses the words after the program's name. `-` reads standard input.
pub fn parse(name: &str, mut words: Vec<Vec<u8>>) -> Request {
    let first = words.first().cloned().unwrap_or_default();
    match &first[..] {
        b"-v" | b"--version" => {
            return Request::Print(format!(
                "Redis server v={REDIS_VERSION} sha=00000000:0 malloc=mimalloc bits=64 build=sluicegate-{SLUICEGATE_VERSION}\n"
            ));
        }
        b"-h" | b"--help" => return Request::Print(USAGE.to_owned()),
        b"--check-system" | b"--test-memory" | b"--check-rdb" | b"--check-aof" => {
            return Request::Refuse(format!("{name}: {} is not available here\n", String::from_utf8_lossy(&first)));
        }
        _ => {}
    }
    if name == "redis-sentinel" || words.iter().any(|word| word == b"--sentinel") {
        return Request::Refuse(format!("{name}: sentinel mode is not supported\n"));
    }
    let is_told = !words.is_empty();
    let file = match &first[..] {
        b"" if words.is_empty() => None,
        word if word.starts_with(b"-") => None,
        _ => Some(PathBuf::from(std::ffi::OsStr::from_bytes(&words.remove(0)))),
    };
    let mut lines = Vec::new();
    // `-` may be the first word or the last one.
    let is_first = file.is_none() && first == b"-";
    if is_first || words.last().is_some_and(|word| word == b"-") {
        words.remove(if is_first { 0 } else { words.len() - 1 });
        if let Err(error) = std::io::stdin().lock().read_to_end(&mut lines) {
            return Request::Refuse(format!("{name}: can't read standard input: {error}\n"));
        }
    }
    if !words.is_empty() {
        lines.push(b'\n');
        lines.extend_from_slice(&lines_of_words(&words));
    }
    let saves = file.is_some() || name == "redis-server";
    Request::Run(Run { file, lines, is_told, saves })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: &str) {
        let words = line.split_whitespace().map(|word| word.as_bytes().to_vec()).collect();
        let shown = match parse("redis-server", words) {
            Request::Print(text) => text.split(' ').next().unwrap_or_default().to_owned(),
            Request::Refuse(text) => text,
            Request::Run(run) => format!("{:?} {}", run.file, String::from_utf8_lossy(&run.lines).escape_debug()),
        };
        assert_eq!(shown, expected, "{line}");
    }

    #[test]
    fn a_file_comes_first_and_options_become_lines() {
        check("", "None ");
        check("a.conf --port 0 --save", "Some(\"a.conf\") \\nport \\\"0\\\" \\nsave \\\"\\\"");
        check("--port 1", "None \\nport \\\"1\\\" ");
        check("a.conf", "Some(\"a.conf\") ");
        check("-v", "Redis");
        check("--help", "usage:");
        check("--check-system", "redis-server: --check-system is not available here\n");
        check("a.conf --sentinel", "redis-server: sentinel mode is not supported\n");
    }
}
