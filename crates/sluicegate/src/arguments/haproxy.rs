//! The command line of a program called `haproxy` (HAProxy management guide 3).
//!
//! As in HAProxy, an option is recognized by its first letter, or first two (`-Ds` is `-D`). An unknown option
//! is refused with the usage text and exit code 1. The usage text lists options of HAProxy that do not apply to
//! this program: those that only disable a feature that does not exist here are accepted, those
//! that request such a feature are refused by name.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::Service;
use crate::files::Disk;

/// What the command line asks the program to do.
#[derive(Debug)]
pub enum Request {
    /// `-v`.
    Version,
    /// `-vv`: show the version and the build options.
    Build,
    /// `-cc CONDITION`.
    Condition(String),
    /// `-c`: check and exit.
    Check(Box<Service>),
    /// Serve.
    Run(Box<Service>),
}

/// The reason for refusing the arguments.
#[derive(Debug, PartialEq)]
pub enum Refused {
    /// The arguments are invalid: the message, if there is one, is shown, followed by the usage text.
    Usage(Option<String>),
    /// The arguments are valid but cannot be carried out: only the message is shown.
    Message(String),
}

/// The usage text, shown after the version lines.
pub const USAGE: &str = "\
usage: haproxy [-f FILE|DIRECTORY]… [OPTION]… [-- FILE…]

  -f FILE      reads this file, or the .cfg files of this directory by name; may be repeated
  -- FILE…     the same for all words that follow
  -C DIR       changes to this directory before anything else
  -c           checks the files and exits: 0 good, 1 errors, 2 nothing would listen
  -cc 'COND'   evaluates a condition as of '.if' and exits: 0 true, 1 false, 2 no condition
  -D           goes to the background
  -W           a master process watches the worker process
  -Ws          the same, and tells the service manager when it is ready
  -S ADDRESS[,OPTION]…
               the master's own socket, with options of 'bind'
  -d, -db      stays in the foreground, whatever the file says
  -p FILE      writes the process's number to this file
  -n N         connections of the whole process
  -N N         connections of each frontend that sets none
  -m MIB       memory of the process
  -L NAME      this machine's name among peers (HAPROXY_LOCALPEER)
  -q           prints nothing
  -V           says more, even with -q
  -v, -vv      the version; and how it is built
  -dS          copies large bodies, as with nosplice
  -dR          workers share listening sockets, as with noreuseport
  -dI          scripts may start programs, as with insecure-fork-wanted
  -dW          refuses to start after any warning
  -dD          says what is valid and probably not meant
  -dr          starts even if the name of a server can't be resolved
  -dV          verifies no certificates of servers, as with 'ssl-server-verify none'
  -sf PID…     a running service goes on with these files; one of another version hands its stores over;
               other processes finish what they do and end
  -st PID…     these processes end once this one has its sockets
  -x SOCKET    takes the listening sockets over from the process with this stats socket ('expose-fd listeners')

Taken, and change nothing, since they switch off what does not exist here: -de -dp -dk -dv -dG -dF -dZ
-dM[BYTE].
";

/// The maximum length of a host name on Linux.
const HOST_NAME_MAX: usize = 64;

/// Parses the arguments after the program's name. `name` is the name under which it was called.
pub fn parse(name: &str, words: impl IntoIterator<Item = OsString>) -> Result<Request, Refused> {
    let mut words = words.into_iter().peekable();
    let mut service = Service { name: name.to_owned(), as_haproxy: true, ..Service::default() };
    let mut check = false;
    while let Some(word) = words.next() {
        let Some(flag) = word.as_bytes().strip_prefix(b"-") else { return Err(Refused::Usage(None)) };
        let (first, second) = (flag.first().copied().unwrap_or(0), flag.get(1).copied().unwrap_or(0));
        match (first, second) {
            (b'v', b'v') => return Ok(Request::Build),
            (b'v', _) => return Ok(Request::Version),
            (b'd', _) => debug(flag, &mut service)?,
            (b'V', _) => service.verbose = true,
            (b'q', _) => service.quiet = true,
            (b'c', b'c') => return Ok(Request::Condition(text(argument(&mut words)?))),
            (b'c', _) => check = true,
            (b'D', _) => service.daemon = true,
            (b'W', b's') => {
                service.master_worker = true;
                service.notify = true;
                service.foreground = true;
            }
            (b'W', _) => service.master_worker = true,
            (b'S', _) => service.master_sockets.push(master_socket(argument(&mut words)?)?),
            (b's', b'f' | b't') => {
                let pids = if second == b'f' { &mut service.finish } else { &mut service.terminate };
                // A list of process ids up to the next option. An empty list, as from `-sf $(cat PIDFILE)` with an
                // empty file, has no effect.
                while let Some(pid) = words.next_if(|word| !word.as_bytes().starts_with(b"-")) {
                    pids.push(process_number(&word, &pid)?);
                }
            }
            (b'x', _) => service.take_over = Some(argument(&mut words)?.into()),
            (b'-', 0) => service.files.extend(words.by_ref().map(PathBuf::from)),
            _ => with_argument(first, argument(&mut words)?, &mut service)?,
        }
    }
    if service.files.is_empty() {
        return Err(Refused::Usage(None));
    }
    // With `-c`, options that replace a running process are parsed but have no effect.
    let service = Box::new(service);
    Ok(if check { Request::Check(service) } else { Request::Run(service) })
}

/// Applies an option that starts with `-d`. HAProxy reads any such option that it does not know as `-d`; here it is an
/// error, because it is probably a typing error.
fn debug(flag: &[u8], service: &mut Service) -> Result<(), Refused> {
    match flag.get(1) {
        None => {
            service.debug = true;
            service.foreground = true;
        }
        Some(b'b') => service.foreground = true,
        Some(b'S') => service.no_splice = true,
        Some(b'R') => service.no_reuse_port = true,
        Some(b'I') => service.insecure_fork = true,
        Some(b'W') => service.zero_warning = true,
        Some(b'D') => service.diagnostics = true,
        Some(b'r') => service.ignore_unresolvable = true,
        Some(b'V') => service.no_server_verify = true,
        // These disable pollers, system calls and optimizations of HAProxy, or its memory checks. This program has no
        // corresponding feature to disable.
        Some(b'e' | b'p' | b'k' | b'v' | b'G' | b'F' | b'Z' | b'M') => {}
        Some(b'K' | b'L' | b'C' | b'X' | b't' | b'c') => {
            let option = String::from_utf8_lossy(flag);
            return Err(Refused::Message(format!(
                "'-{option}' is not supported: it shows or traces HAProxy's insides"
            )));
        }
        Some(_) => return Err(Refused::Usage(Some(format!("unknown option '-{}'", String::from_utf8_lossy(flag))))),
    }
    Ok(())
}

fn with_argument(option: u8, value: OsString, service: &mut Service) -> Result<(), Refused> {
    match option {
        b'f' => service.files.push(PathBuf::from(value)),
        b'C' => service.directory = Some(PathBuf::from(value)),
        b'p' => service.pidfile = Some(PathBuf::from(value)),
        b'n' => service.maxconn = number("-n", &value, u64::from(u32::MAX >> 1))?.map(|n| n as u32),
        b'N' => service.proxy_maxconn = number("-N", &value, u64::from(u32::MAX >> 1))?.map(|n| n as u32),
        b'm' => service.memory_mib = number("-m", &value, u64::MAX >> 20)?,
        b'L' => {
            let name = text(value);
            if name.len() > HOST_NAME_MAX || name.chars().any(|c| c.is_whitespace() || c.is_control()) {
                return Err(Refused::Message(format!("-L: '{name}' is no name of a machine")));
            }
            service.localpeer = (!name.is_empty()).then_some(name);
        }
        _ => return Err(Refused::Usage(Some(format!("unknown option '-{}'", char::from(option))))),
    }
    Ok(())
}

/// Returns the argument of an option; a missing one is an error.
fn argument(words: &mut impl Iterator<Item = OsString>) -> Result<OsString, Refused> {
    words.next().ok_or(Refused::Usage(None))
}

fn text(word: OsString) -> String {
    String::from_utf8_lossy(&word.into_vec()).into_owned()
}

/// Parses a number; 0 means that the option is not set. HAProxy reads an invalid number as 0; here it is an error.
fn number(option: &str, value: &OsStr, max: u64) -> Result<Option<u64>, Refused> {
    let shown = value.to_string_lossy();
    match shown.trim().parse::<u64>() {
        Ok(0) => Ok(None),
        Ok(n) if n <= max => Ok(Some(n)),
        _ => Err(Refused::Message(format!("{option} expects a number from 0 to {max}, not '{shown}'"))),
    }
}

fn master_socket(value: OsString) -> Result<sluicegate_config::model::StatsSocket, Refused> {
    let environment = std::env::vars().collect();
    sluicegate_config::master_socket(&text(value), &Disk, &environment)
        .map_err(|message| Refused::Message(format!("-S: {message}")))
}

/// Parses a process id of `-sf` or `-st`.
fn process_number(option: &OsStr, word: &OsStr) -> Result<u32, Refused> {
    let (option, shown) = (option.to_string_lossy(), word.to_string_lossy());
    match shown.trim().parse::<i32>() {
        Ok(pid) if pid > 0 => Ok(pid.unsigned_abs()),
        Ok(_) => Err(Refused::Usage(None)),
        Err(_) => Err(Refused::Message(format!("{option} expects process numbers, not '{shown}'"))),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use sluicegate_config::model::{Global, StatsLevel};

    use super::super::Mode;
    use super::*;

    fn run(line: &str) -> Result<Request, Refused> {
        parse("haproxy", line.split_whitespace().map(OsString::from))
    }

    /// What a line sets, as words; the rest of the fields are at their defaults.
    #[track_caller]
    fn check(line: &str, expected: &str) {
        let (service, mut shown) = match run(line) {
            Ok(Request::Run(service)) => (service, String::from("run")),
            Ok(Request::Check(service)) => (service, String::from("check")),
            other => panic!("{line}: {other:?}"),
        };
        for file in &service.files {
            let _ = write!(shown, " {}", file.display());
        }
        for (name, set) in [
            ("quiet", service.quiet),
            ("verbose", service.verbose),
            ("debug", service.debug),
            ("no-splice", service.no_splice),
            ("no-reuse-port", service.no_reuse_port),
            ("insecure-fork", service.insecure_fork),
            ("zero-warning", service.zero_warning),
            ("diagnostics", service.diagnostics),
            ("unresolvable", service.ignore_unresolvable),
            ("no-server-verify", service.no_server_verify),
        ] {
            if set {
                let _ = write!(shown, " {name}");
            }
        }
        for (name, value) in [
            ("C", service.directory.as_ref().map(|path| path.display().to_string())),
            ("p", service.pidfile.as_ref().map(|path| path.display().to_string())),
            ("x", service.take_over.as_ref().map(|path| path.display().to_string())),
            ("n", service.maxconn.map(|n| n.to_string())),
            ("N", service.proxy_maxconn.map(|n| n.to_string())),
            ("m", service.memory_mib.map(|n| n.to_string())),
            ("L", service.localpeer.clone()),
        ] {
            if let Some(value) = value {
                let _ = write!(shown, " {name}={value}");
            }
        }
        for (name, pids) in [("finish", &service.finish), ("terminate", &service.terminate)] {
            if !pids.is_empty() {
                let _ = write!(shown, " {name}={pids:?}");
            }
        }
        assert_eq!(shown, expected, "{line}");
    }

    #[track_caller]
    fn refused(line: &str, part: &str) {
        match run(line) {
            Err(Refused::Usage(None)) => assert_eq!(part, "", "{line}"),
            Err(Refused::Usage(Some(text)) | Refused::Message(text)) => {
                assert!(!part.is_empty() && text.contains(part), "{line}: {text}");
            }
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn files_and_values() {
        check("-f a -f b -- c -d", "run a b c -d");
        check("-c -f a", "check a");
        check("-f a -C / -p /run/x.pid -n 10 -N 20 -m 30 -L me", "run a C=/ p=/run/x.pid n=10 N=20 m=30 L=me");
        check("-f a -n 0 -m 0", "run a");
        check("-f a -q -V -dW -dD -dr", "run a quiet verbose zero-warning diagnostics unresolvable");
        check("-f a -d", "run a debug");
        check("-sf -f a", "run a");
        check("-f a -sf", "run a");
        check("-f a -c -sf 1 2 -x /run/s", "check a x=/run/s finish=[1, 2]");
        check("-st 1 -f a -sf 2 -st 3", "run a finish=[2] terminate=[1, 3]");
        // HAProxy's letters decide, whatever follows them.
        check("-foo a -check -quiet", "check a quiet");
        check("-f a -de -dp -dk -dG -dZ -dM -dM0x50,tag -dF", "run a");
        check("-f a -dV", "run a no-server-verify");
        check("-f a -dI", "run a insecure-fork");
        check("-f a -dS", "run a no-splice");
    }

    #[test]
    fn mistakes() {
        for line in ["", "-c", "--", "a.cfg", "-f", "-f a -n", "-S", "-cc", "-f a b"] {
            refused(line, "");
        }
        refused("-Z x", "unknown option '-Z'");
        refused("--help x", "unknown option '--'");
        refused("-f a -dQ", "unknown option '-dQ'");
        refused("-f a -n many", "-n expects a number from 0 to 2147483647, not 'many'");
        refused("-f a -m -1", "-m expects");
        refused("-f a -sf 1x", "-sf expects process numbers, not '1x'");
        refused("-f a -sf 0", "");
        refused("-f a -x", "");
        check("-x /run/s -f a", "run a x=/run/s");
        refused("-f a -dKall", "'-dKall' is not supported");
        refused("-f a -S /run/s,frob", "unknown keyword 'frob'");
        refused("-f a -S 127.0.0.1:notaport", "-S: ");
        refused(&format!("-f a -L {}", "x".repeat(65)), "is no name");
    }

    #[test]
    fn what_ends_at_once() {
        assert!(matches!(run("-v -f nope"), Ok(Request::Version)));
        assert!(matches!(run("-c -vv"), Ok(Request::Build)));
        assert!(matches!(run("-cc 1"), Ok(Request::Condition(text)) if text == "1"));
    }

    #[test]
    fn modes() {
        let plain = Global::default();
        let daemon = Global { daemon: true, ..Global::default() };
        let master = Global { master_worker: true, daemon: true, ..Global::default() };
        let of = |line: &str, global: &Global| match run(line) {
            Ok(Request::Run(service)) => service.mode(global),
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(of("-f a", &plain), Mode::Foreground);
        assert_eq!(of("-f a", &daemon), Mode::Daemon);
        assert_eq!(of("-f a -db", &daemon), Mode::Foreground);
        assert_eq!(of("-f a -D -D -db", &plain), Mode::Daemon);
        assert_eq!(of("-f a -W", &plain), Mode::MasterWorker { daemon: false, notify: false });
        assert_eq!(of("-f a -W -Ws", &daemon), Mode::MasterWorker { daemon: false, notify: true });
        assert_eq!(of("-f a -Ws -D", &plain), Mode::MasterWorker { daemon: true, notify: true });
        assert_eq!(of("-f a", &master), Mode::MasterWorker { daemon: true, notify: false });
    }

    #[test]
    fn master_sockets() {
        let Ok(Request::Run(service)) = run("-f a -W -S /run/m.sock,mode,600,level,user -S 127.0.0.1:9999") else {
            panic!("refused")
        };
        let [first, second] = &service.master_sockets[..] else { panic!("two sockets") };
        assert_eq!((first.mode, first.level), (Some(0o600), StatsLevel::User));
        assert_eq!((second.mode, second.level), (None, StatsLevel::Admin));
    }
}
