//! The command line: HAProxy's options if the program is called `haproxy`, its own verbs otherwise.

pub mod haproxy;
mod service;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use lexopt::prelude::{Long, Short, Value, ValueExt};

pub use service::{Mode, Service};

/// The action requested by the command line.
#[derive(Debug)]
pub enum Command {
    /// Print this text.
    Help(&'static str),
    /// Print the version.
    Version,
    /// Read the files and report errors, without any other effect.
    Check(Box<Service>),
    /// Rewrite a file for an old version of HAProxy.
    Migrate {
        /// The file, or `-`.
        file: PathBuf,
        /// Where the rewritten file goes; standard output by default.
        to: Option<PathBuf>,
    },
    /// Serve.
    Run(Box<Service>),
    /// Have a running service read its files again.
    Reload(u32),
    /// The demo server alone.
    Origin {
        /// The listening addresses.
        listen: Vec<SocketAddr>,
        /// The files of a certificate and its key, for TLS.
        certificate: Option<(PathBuf, PathBuf)>,
    },
    /// A store on its own, which reads these words itself.
    Store(Vec<OsString>),
    /// A load generator, which reads these words itself.
    Bench(Vec<OsString>),
    /// The view of a running process, which reads these words itself.
    Top(Vec<OsString>),
}

/// The program's own name.
pub const NAME: &str = "sluicegate";

const HELP: &str = "\
Sluicegate: a load balancer that remembers.

usage: sluicegate COMMAND

commands:
  run FILE…               start with these configuration files
  reload PID|PIDFILE      have a running service read its files again, without losing anything
  check FILE…             report every error and warning of these files, touch nothing
  migrate FILE            rewrite a file for an old version of HAProxy
  store [FILE] [--port N] a store on its own, for Redis clients; redis.conf and its options
  origin --listen ADDR…   a demo server: /fast /slow /bytes/N /echo /status/N /delay/MS
  bench http|redis|…      generate load and measure it; bench capacity, bench compare
  top [SOCKET]            a running process, live: proxies, servers, stores, engines, limits
  version                 print the version

`sluicegate COMMAND --help` says more.
";

const RUN: &str = "\
usage: sluicegate run [-q] [-f] FILE…

Starts with these configuration files, read one after the other. A folder stands for its files that end in .cfg, in
the order of their names. Runs in the foreground and prints a line for each address it listens on.

options:
  -q          print nothing

signals:
  TERM, INT   stop at once
  USR1        stop listening, finish what was begun, then stop

`sluicegate reload` has it read the files again.
";

const RELOAD: &str = "\
usage: sluicegate reload PID|PIDFILE

Has a running service read its files again, with the command line it was started with. Everything is checked first: with
an error nothing changes, and the exit code is 1. Connections, counters, stick tables, the state of servers and all keys
of the stores stay. Run it as root, or as the user who started the service.
";

const CHECK: &str = "\
usage: sluicegate check [-f] FILE…

Reports every error and warning of these files. Exits with 1 if there is an error, and with 2, as HAProxy does, if there
is none but nothing would listen. Opens no socket; host names that HAProxy
resolves while it reads a file are resolved. Lua files are run up to the end of their bodies, because the names they register are checked too.
";

const MIGRATE: &str = "\
usage: sluicegate migrate FILE [--output FILE]

Rewrites a configuration file for HAProxy 1.3 to 3.1 for HAProxy 3.2, and prints it: words that are not read any more are
replaced by what means the same, lines without such words stay as they are. A line for which there is nothing becomes a
comment, with a note on standard error, and the exit code is 1. '-' is standard input. The file itself is not changed.

options:
  -o, --output FILE   write to this file
";

const ORIGIN: &str = "\
usage: sluicegate origin --listen ADDRESS:PORT… [--tls-cert FILE [--tls-key FILE]]

A demo server for examples and load tests, in HTTP/1.1 and HTTP/2:
  /fast        \"I'm FAST!!!!\" at once
  /slow        \"I'm slooooow\" after 3 s
  /bytes/N     N bytes
  /echo        the request's body
  /status/N    an empty response of that status
  /delay/MS    an answer after so many milliseconds

options:
  --tls-cert FILE   use TLS, with this certificate and its chain in PEM
  --tls-key FILE    the certificate's key, unless it is in the same file
";

/// The commands.
const VERBS: &[&str] = &["bench", "check", "help", "migrate", "origin", "reload", "run", "store", "top", "version"];

/// Returns the reference to help for a refused command line: its subcommand's help, or the program's.
pub fn help_of(words: &[OsString]) -> String {
    let verb = words.first().and_then(|word| word.to_str()).filter(|word| VERBS.contains(word) && *word != "help");
    verb.map_or_else(|| format!("{NAME} --help"), |verb| format!("{NAME} {verb} --help"))
}

/// Returns the error about an option, with the nearest known one.
fn unexpected(argument: lexopt::Arg<'_>, known: &[&str]) -> lexopt::Error {
    let near = match &argument {
        Long(name) => sluicegate_config::nearest(name, known.iter().copied()).map(|near| format!("--{near}")),
        _ => None,
    };
    match near {
        Some(near) => format!("{}; did you mean '{near}'?", argument.unexpected()).into(),
        None => argument.unexpected(),
    }
}

/// Parses the words after the program's name.
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
        "run" => files(&mut parser, RUN, Command::Run),
        "check" => files(&mut parser, CHECK, Command::Check),
        "migrate" => migrate(&mut parser),
        "reload" => reload(&mut parser),
        "origin" => origin(&mut parser),
        "store" => Ok(Command::Store(parser.raw_args()?.collect())),
        "bench" => Ok(Command::Bench(parser.raw_args()?.collect())),
        "top" => Ok(Command::Top(parser.raw_args()?.collect())),
        other => {
            let near = sluicegate_config::nearest(other, VERBS.iter().copied());
            let near = near.map_or_else(String::new, |near| format!("; did you mean '{near}'?"));
            Err(format!("unknown command '{other}'{near}").into())
        }
    }
}

fn files(
    parser: &mut lexopt::Parser,
    help: &'static str,
    command: fn(Box<Service>) -> Command,
) -> Result<Command, lexopt::Error> {
    let (mut files, mut quiet) = (Vec::new(), false);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("help") | Short('h') => return Ok(Command::Help(help)),
            Short('q') if help == RUN => quiet = true,
            // As HAProxy's: several files may follow one -f, up to the next option.
            Short('f') => {
                for value in parser.values()? {
                    files.push(PathBuf::from(value));
                }
            }
            Value(file) => files.push(PathBuf::from(file)),
            other => return Err(unexpected(other, &["help"])),
        }
    }
    if files.is_empty() {
        return Err("no configuration file".into());
    }
    // Sluicegate's own subcommand stays in the foreground, whatever the file says.
    Ok(command(Box::new(Service { name: String::from(NAME), files, quiet, foreground: true, ..Service::default() })))
}

/// Parses the arguments of a service, the program's name first: the arguments with which a running one was started.
pub fn service(words: impl IntoIterator<Item = OsString>) -> Result<Box<Service>, String> {
    let mut words = words.into_iter();
    let name = words.next().map(PathBuf::from);
    match name.as_ref().and_then(|path| path.file_name()) {
        Some(name) if name == "haproxy" => match haproxy::parse("haproxy", words) {
            Ok(haproxy::Request::Run(service)) => Ok(service),
            _ => Err(String::from("the service was not started to serve")),
        },
        _ => match parse(words) {
            Ok(Command::Run(service)) => Ok(service),
            _ => Err(String::from("the service was not started by 'sluicegate run'")),
        },
    }
}

fn migrate(parser: &mut lexopt::Parser) -> Result<Command, lexopt::Error> {
    let (mut file, mut to) = (None, None);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("help") | Short('h') => return Ok(Command::Help(MIGRATE)),
            Long("output") | Short('o') => to = Some(PathBuf::from(parser.value()?)),
            Value(word) if file.is_none() => file = Some(PathBuf::from(word)),
            other => return Err(unexpected(other, &["help", "output"])),
        }
    }
    let file = file.ok_or("no configuration file")?;
    Ok(Command::Migrate { file, to })
}

fn reload(parser: &mut lexopt::Parser) -> Result<Command, lexopt::Error> {
    let mut pid = None;
    while let Some(argument) = parser.next()? {
        match argument {
            Long("help") | Short('h') => return Ok(Command::Help(RELOAD)),
            Value(word) if pid.is_none() => pid = Some(process_number(&word)?),
            other => return Err(unexpected(other, &["help"])),
        }
    }
    pid.map(Command::Reload).ok_or_else(|| "which process? A number or a pidfile is missing".into())
}

/// Returns a process id, given directly or in a file.
fn process_number(word: &std::ffi::OsStr) -> Result<u32, String> {
    let shown = word.to_string_lossy();
    if let Ok(pid) = shown.parse() {
        return Ok(pid);
    }
    let text = std::fs::read_to_string(word).map_err(|error| format!("{shown}: {error}"))?;
    text.trim().parse().map_err(|_| format!("{shown}: there is no process number in it"))
}

fn origin(parser: &mut lexopt::Parser) -> Result<Command, lexopt::Error> {
    let mut listen = Vec::new();
    let (mut certificate, mut key) = (None, None);
    while let Some(argument) = parser.next()? {
        match argument {
            Long("help") | Short('h') => return Ok(Command::Help(ORIGIN)),
            Long("listen") => {
                for value in parser.values()? {
                    listen.push(value.parse()?);
                }
            }
            Long("tls-cert") => certificate = Some(PathBuf::from(parser.value()?)),
            Long("tls-key") => key = Some(PathBuf::from(parser.value()?)),
            other => return Err(unexpected(other, &["help", "listen", "tls-cert", "tls-key"])),
        }
    }
    if listen.is_empty() {
        return Err("--listen ADDRESS:PORT is missing".into());
    }
    let certificate = match (certificate, key) {
        (None, None) => None,
        (Some(certificate), key) => Some((certificate.clone(), key.unwrap_or(certificate))),
        (None, Some(_)) => return Err("--tls-key wants a --tls-cert".into()),
    };
    Ok(Command::Origin { listen, certificate })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a line comes down to: a verb and its files or addresses, or the error.
    #[track_caller]
    fn check(line: &str, expected: &str) {
        let shown = match parse(line.split_whitespace().map(OsString::from)) {
            Ok(Command::Help(text)) => text.lines().find(|line| line.starts_with("usage")).unwrap_or("").to_owned(),
            Ok(Command::Version) => String::from("version"),
            Ok(Command::Check(service)) => format!("check {:?}", service.files),
            Ok(Command::Run(service)) => format!("run {:?}", service.files),
            Ok(Command::Reload(pid)) => format!("reload {pid}"),
            Ok(Command::Migrate { file, to }) => format!("migrate {file:?} {to:?}"),
            Ok(Command::Origin { listen, certificate: None }) => format!("origin {listen:?}"),
            Ok(Command::Origin { listen, certificate: Some(files) }) => format!("origin {listen:?} {files:?}"),
            Ok(Command::Store(words)) => format!("store {words:?}"),
            Ok(Command::Bench(words)) => format!("bench {words:?}"),
            Ok(Command::Top(words)) => format!("top {words:?}"),
            Err(error) => error.to_string(),
        };
        assert_eq!(shown, expected, "{line}");
    }

    #[test]
    fn words() {
        check("", "usage: sluicegate COMMAND");
        check("--help", "usage: sluicegate COMMAND");
        check("version", "version");
        check("--version", "version");
        check("run a.cfg", "run [\"a.cfg\"]");
        check("run -f a.cfg b.cfg -f dir", "run [\"a.cfg\", \"b.cfg\", \"dir\"]");
        check("check -f a.cfg", "check [\"a.cfg\"]");
        check("run --help", "usage: sluicegate run [-q] [-f] FILE…");
        check("check -q a.cfg", "invalid option '-q'");
        check("run", "no configuration file");
        check("run -x", "invalid option '-x'");
        check("reload 12", "reload 12");
        check("reload", "which process? A number or a pidfile is missing");
        check("reload /does/not/exist", "/does/not/exist: No such file or directory (os error 2)");
        check("migrate a.cfg", "migrate \"a.cfg\" None");
        check("migrate - -o b", "migrate \"-\" Some(\"b\")");
        check("migrate", "no configuration file");
        check("walk", "unknown command 'walk'");
        check("chek a.cfg", "unknown command 'chek'; did you mean 'check'?");
        check("origin --lisen x", "invalid option '--lisen'; did you mean '--listen'?");
        let help = |line: &str| help_of(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(help("origin --x"), "sluicegate origin --help");
        assert_eq!(help("orign"), "sluicegate --help");
        check("store a.conf --port 1", r#"store ["a.conf", "--port", "1"]"#);
        check("origin --listen 127.0.0.1:80", "origin [127.0.0.1:80]");
        check("origin", "--listen ADDRESS:PORT is missing");
        check("origin --listen 127.0.0.1:80 --tls-cert a", r#"origin [127.0.0.1:80] ("a", "a")"#);
        check("origin --tls-key b --listen 127.0.0.1:80 --tls-cert a", r#"origin [127.0.0.1:80] ("a", "b")"#);
        check("origin --listen 127.0.0.1:80 --tls-key b", "--tls-key wants a --tls-cert");
        check("bench http -c 1 --help", r#"bench ["http", "-c", "1", "--help"]"#);
    }
}
