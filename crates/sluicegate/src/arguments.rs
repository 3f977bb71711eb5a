//! Words of the command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use lexopt::prelude::{Long, Short, Value, ValueExt};

/// What the user asks for.
#[derive(Debug, PartialEq)]
pub enum Command {
    /// Print this.
    Help(&'static str),
    /// Print the version.
    Version,
    /// Read files, report, touch nothing.
    Check {
        /// Files and folders in order.
        files: Vec<PathBuf>,
    },
    /// Serve.
    Run {
        /// Files and folders in order.
        files: Vec<PathBuf>,
    },
    /// The demo server alone.
    Origin {
        /// Where it listens.
        listen: Vec<SocketAddr>,
    },
}

const HELP: &str = "\
Sluicegate: a load balancer that remembers.

usage: sluicegate COMMAND

commands:
  run FILE…               start with these configuration files
  check FILE…             report every error and warning of these files, touch nothing
  origin --listen ADDR…   a demo server: /fast /slow /bytes/N /echo /status/N /delay/MS
  version                 print the version

`sluicegate COMMAND --help` says more.
";

const RUN: &str = "\
usage: sluicegate run [-f] FILE…

Starts with these configuration files, read one after the other. A folder stands for its files that end in .cfg, in
the order of their names. Runs in the foreground.

signals:
  TERM, INT   stop at once
  USR1        stop listening, finish what was begun, then stop
";

const CHECK: &str = "\
usage: sluicegate check [-f] FILE…

Reports every error and warning of these files. Exits with 1 if there is an error, and with 2, as HAProxy does, if there
is none but nothing would listen. Opens no socket and resolves no
name. Lua files are run up to the end of their bodies, because the names they register are checked too.
";

const ORIGIN: &str = "\
usage: sluicegate origin --listen ADDRESS:PORT…

A demo server for examples and load tests:
  /fast        \"I'm FAST!!!!\" at once
  /slow        \"I'm slooooow\" after 3 s
  /bytes/N     N bytes
  /echo        the request's body
  /status/N    an empty response of that status
  /delay/MS    an answer after so many milliseconds
";

/// Reads the words after the program's name.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Command, lexopt::Error> {
    let mut parser = lexopt::Parser::from_args(words);
    let verb = match parser.next()? {
        None | Some(Long("help") | Short('h')) => return Ok(Command::Help(HELP)),
        Some(Long("version") | Short('v')) => return Ok(Command::Version),
        Some(Value(word)) => word.string()?,
        Some(other) => return Err(other.unexpected()),
    };
    match verb.as_str() {
        "help" => Ok(Command::Help(HELP)),
        "version" => match parser.next()? {
            None => Ok(Command::Version),
            Some(Long("help") | Short('h')) => Ok(Command::Help("usage: sluicegate version\n")),
            Some(other) => Err(other.unexpected()),
        },
        "run" => files(&mut parser, RUN, |files| Command::Run { files }),
        "check" => files(&mut parser, CHECK, |files| Command::Check { files }),
        "origin" => origin(&mut parser),
        other => Err(format!("unknown command '{other}'").into()),
    }
}

fn files(
    parser: &mut lexopt::Parser,
    help: &'static str,
    command: fn(Vec<PathBuf>) -> Command,
) -> Result<Command, lexopt::Error> {
    let mut files = Vec::new();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("help") | Short('h') => return Ok(Command::Help(help)),
            // As HAProxy's: several files may follow one -f, up to the next option.
            Short('f') => {
                for value in parser.values()? {
                    files.push(PathBuf::from(value));
                }
            }
            Value(file) => files.push(PathBuf::from(file)),
            other => return Err(other.unexpected()),
        }
    }
    if files.is_empty() {
        return Err("no configuration file".into());
    }
    Ok(command(files))
}

fn origin(parser: &mut lexopt::Parser) -> Result<Command, lexopt::Error> {
    let mut listen = Vec::new();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("help") | Short('h') => return Ok(Command::Help(ORIGIN)),
            Long("listen") => {
                for value in parser.values()? {
                    listen.push(value.parse()?);
                }
            }
            other => return Err(other.unexpected()),
        }
    }
    if listen.is_empty() {
        return Err("--listen ADDRESS:PORT is missing".into());
    }
    Ok(Command::Origin { listen })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: Result<Command, &str>) {
        let found = parse(line.split_whitespace().map(OsString::from));
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{line}"),
            (Err(error), Err(text)) => assert_eq!(error.to_string(), text, "{line}"),
            (found, _) => panic!("{line}: {found:?}"),
        }
    }

    #[test]
    fn words() {
        let files = |names: &[&str]| names.iter().map(PathBuf::from).collect();
        check("", Ok(Command::Help(HELP)));
        check("--help", Ok(Command::Help(HELP)));
        check("version", Ok(Command::Version));
        check("--version", Ok(Command::Version));
        check("run a.cfg", Ok(Command::Run { files: files(&["a.cfg"]) }));
        check("run -f a.cfg b.cfg -f dir", Ok(Command::Run { files: files(&["a.cfg", "b.cfg", "dir"]) }));
        check("check -f a.cfg", Ok(Command::Check { files: files(&["a.cfg"]) }));
        check("run --help", Ok(Command::Help(RUN)));
        check("run", Err("no configuration file"));
        check("run -x", Err("invalid option '-x'"));
        check("walk", Err("unknown command 'walk'"));
        check("origin --listen 127.0.0.1:80", Ok(Command::Origin { listen: vec!["127.0.0.1:80".parse().unwrap()] }));
        check("origin", Err("--listen ADDRESS:PORT is missing"));
    }
}
