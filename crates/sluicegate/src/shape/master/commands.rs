//! The commands of the master's sockets (HAProxy management guide 9.4).

use std::fmt::Write as _;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Instant;

use parking_lot::Mutex;
use sluicegate_config::model::StatsLevel;
use sluicegate_proxy::cli::protocol::{Answer, Commands, Output, Request, Session};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};

use super::programs::Programs;
use super::{errand, version};
use crate::shape::channel;

/// The data shown by the commands.
pub struct Master {
    /// The worker process.
    worker: i32,
    /// The time of its fork.
    begun: Instant,
    programs: Arc<Mutex<Programs>>,
    /// The channel to the worker.
    channel: UnixStream,
    /// The channel through which a reload is requested.
    ask: mpsc::Sender<errand::Answer>,
    reloads: AtomicU32,
    failed: AtomicU32,
    /// The number of reloads since the worker last served a new configuration.
    behind: AtomicU32,
}

/// A command.
struct Command {
    name: &'static [&'static str],
    /// The help text; a command with an empty one is not listed.
    help: &'static str,
    level: StatsLevel,
    concerns: Concerns,
    run: Run,
}

/// The subject of a command, which decides which process answers it while a worker is selected.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Concerns {
    /// The selected process.
    Process,
    /// The session's rights: answered by the master, unless a prefix names a worker.
    Rights,
    /// The connection: answered by the master.
    Connection,
}

enum Run {
    Now(fn(&Master, &mut Session, &[Vec<u8>]) -> String),
    /// Takes no arguments, and waits for the end of the reload.
    Reload,
}

/// Every command, in the order of the help.
const COMMANDS: &[Command] = &[
    Command {
        name: &["operator"],
        help: "lower the level of the current CLI session to operator",
        level: StatsLevel::Operator,
        concerns: Concerns::Rights,
        run: Run::Now(|_, session, _| lower(session, StatsLevel::Operator)),
    },
    Command {
        name: &["show", "cli", "level"],
        help: "display the level of the current CLI session",
        level: StatsLevel::User,
        concerns: Concerns::Process,
        run: Run::Now(|_, session, _| format!("{}\n", level_word(session.rights.level))),
    },
    Command {
        name: &["show", "cli", "sockets"],
        help: "dump list of cli sockets",
        level: StatsLevel::Operator,
        concerns: Concerns::Process,
        run: Run::Now(|_, _, _| String::from("\n")),
    },
    Command {
        name: &["show", "proc"],
        help: "show processes status",
        level: StatsLevel::Operator,
        concerns: Concerns::Process,
        run: Run::Now(|master, _, _| master.show_proc()),
    },
    Command {
        name: &["show", "version"],
        help: "show version of the current process",
        level: StatsLevel::User,
        concerns: Concerns::Process,
        run: Run::Now(|_, _, _| format!("{}\n", version())),
    },
    Command {
        name: &["user"],
        help: "lower the level of the current CLI session to user",
        level: StatsLevel::User,
        concerns: Concerns::Rights,
        run: Run::Now(|_, session, _| lower(session, StatsLevel::User)),
    },
    Command {
        name: &["help"],
        help: "list matching or all commands",
        level: StatsLevel::User,
        concerns: Concerns::Process,
        run: Run::Now(|_, _, _| format!("The following commands are valid at this level:\n{}", list())),
    },
    Command {
        name: &["prompt"],
        help: "toggle interactive mode with prompt",
        level: StatsLevel::User,
        concerns: Concerns::Connection,
        run: Run::Now(prompt),
    },
    Command {
        name: &["quit"],
        help: "disconnect",
        level: StatsLevel::User,
        concerns: Concerns::Connection,
        run: Run::Now(|_, session, _| {
            session.quit = true;
            String::new()
        }),
    },
    Command {
        name: &["expert-mode"],
        help: "",
        level: StatsLevel::Admin,
        concerns: Concerns::Rights,
        run: Run::Now(|_, session, words| {
            session.rights.expert = is_on(words, session);
            String::new()
        }),
    },
    Command {
        name: &["experimental-mode"],
        help: "",
        level: StatsLevel::Admin,
        concerns: Concerns::Rights,
        run: Run::Now(|_, session, words| {
            session.rights.experimental = is_on(words, session);
            String::new()
        }),
    },
    Command {
        name: &["reload"],
        help: "reload haproxy",
        level: StatsLevel::Admin,
        concerns: Concerns::Process,
        run: Run::Reload,
    },
];

impl Commands for Master {
    fn run<'a>(&'a self, mut request: Request, session: &'a mut Session, out: &'a mut Output) -> Answer<'a> {
        Box::pin(async move {
            let prefix = request.words.first().filter(|word| word.starts_with(b"@"));
            let prefix = prefix.map(|word| String::from_utf8_lossy(word).into_owned());
            // A prefix on its own chooses who answers from here on.
            let chosen = session.name.clone();
            let to = match &prefix {
                Some(prefix) => match self.target(prefix) {
                    Some(to) => {
                        request.words.remove(0);
                        to
                    }
                    None => {
                        out.push(format!(
                            "Can't find the target PID matching the prefix '{}'\n",
                            prefix.escape_debug()
                        ));
                        return Ok(());
                    }
                },
                None if chosen == MASTER || chosen.is_empty() => Target::Master,
                None => Target::Worker,
            };
            if prefix.is_some() && request.words.is_empty() {
                session.name = match to {
                    Target::Master => MASTER.to_owned(),
                    Target::Worker => self.worker.to_string(),
                };
                session.unanswered = true;
                return Ok(());
            }
            let command = Command::of(&request.words);
            let own = match command.map(|command| command.concerns) {
                Some(Concerns::Connection) => true,
                Some(Concerns::Rights) => prefix.is_none(),
                Some(Concerns::Process) | None => false,
            };
            match to {
                Target::Worker if !own => self.pass_on(&request, session, out).await,
                _ => self.answer(command, &request, session, out).await,
            }
        })
    }
}

/// The name in the prompt while the master answers.
const MASTER: &str = "master";

/// The target selected by a prefix.
enum Target {
    Master,
    Worker,
}

impl Master {
    /// Returns the commands of a master.
    pub fn new(
        (worker, begun): (i32, Instant),
        programs: Arc<Mutex<Programs>>,
        channel: UnixStream,
        ask: mpsc::Sender<errand::Answer>,
    ) -> Master {
        let (reloads, failed, behind) = Default::default();
        Master { worker, begun, programs, channel, ask, reloads, failed, behind }
    }

    /// Called when a reload has ended.
    pub fn count(&self, succeeded: bool) {
        if !succeeded {
            self.reloads.fetch_add(1, Relaxed);
            self.failed.fetch_add(1, Relaxed);
            self.behind.fetch_add(1, Relaxed);
        }
    }

    /// Records that the worker serves another configuration, whatever triggered it.
    pub fn served_anew(&self) {
        self.reloads.fetch_add(1, Relaxed);
        self.behind.store(0, Relaxed);
    }

    fn target(&self, prefix: &str) -> Option<Target> {
        let worker = ["@1".to_owned(), format!("@!{}", self.worker)];
        let own = ["@".to_owned(), "@0".to_owned(), "@master".to_owned(), format!("@!{}", std::process::id())];
        if worker.iter().any(|name| name == prefix) {
            Some(Target::Worker)
        } else {
            own.iter().any(|name| name == prefix).then_some(Target::Master)
        }
    }

    /// `reload`: answers once it has ended, and closes the connection, as HAProxy does.
    async fn reload(&self, session: &mut Session, out: &mut Output) -> io::Result<()> {
        let (answer, answered) = oneshot::channel();
        session.quit = true;
        match self.ask.try_send(answer) {
            Ok(()) => out.push(answered.await.unwrap_or_default()),
            Err(_) => out.push("Success=0\n--\ntoo many reloads are asked for\n"),
        }
        Ok(())
    }

    /// Passes a command to the worker, which answers it like its stats socket at this level.
    async fn pass_on(&self, request: &Request, session: &Session, out: &mut Output) -> io::Result<()> {
        let (ours, theirs) = UnixStream::pair()?;
        if channel::send(&self.channel, &theirs, session.rights).is_err() {
            out.push("the worker process does not take commands\n");
            return Ok(());
        }
        drop(theirs);
        ours.set_nonblocking(true)?;
        let mut worker = tokio::net::UnixStream::from_std(ours)?;
        worker.write_all(&line(request)).await?;
        worker.shutdown().await?;
        // The empty line behind the answer is this side's to write.
        let mut held = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let count = worker.read(&mut buffer).await?;
            if count == 0 {
                break;
            }
            out.push(&held);
            held.clear();
            held.extend_from_slice(&buffer[..count]);
            out.drain().await?;
        }
        out.push(held.strip_suffix(b"\n").unwrap_or(&held));
        Ok(())
    }

    async fn answer(
        &self,
        command: Option<&Command>,
        request: &Request,
        session: &mut Session,
        out: &mut Output,
    ) -> io::Result<()> {
        match command {
            Some(command) if session.rights.level < command.level => out.push("Permission denied\n"),
            Some(Command { run: Run::Now(run), .. }) => out.push(run(self, session, &request.words)),
            Some(Command { run: Run::Reload, .. }) => return self.reload(session, out).await,
            None => out.push(unknown(request)),
        }
        Ok(())
    }

    /// `show proc`: columns of 16 characters, as HAProxy's.
    fn show_proc(&self) -> String {
        let (reloads, failed) = (self.reloads.load(Relaxed), self.failed.load(Relaxed));
        let up = uptime(self.begun);
        let version = version();
        let mut text =
            format!("{:<16}{:<16}{:<16}{:<16}{:<15}\n", "#<PID>", "<type>", "<reloads>", "<uptime>", "<version>");
        // Writing to a string can't fail.
        let counts = format!("{reloads} [failed: {failed}]");
        let _ = writeln!(text, "{:<16}{:<16}{counts:<16}{up:<16}{version:<15}", std::process::id(), "master");
        text.push_str("# workers\n");
        let behind = self.behind.load(Relaxed);
        let _ = writeln!(text, "{:<16}{:<16}{behind:<16}{up:<16}{version:<15}", self.worker, "worker");
        self.programs.lock().show(&mut text);
        text
    }
}

/// Returns the time since a process was started, as `show proc` has it.
pub fn uptime(begun: Instant) -> String {
    let up = begun.elapsed().as_secs();
    format!("{}d{:02}h{:02}m{:02}s", up / 86_400, up / 3_600 % 24, up / 60 % 60, up % 60)
}

impl Command {
    /// Returns the command with which the words begin.
    fn of(words: &[Vec<u8>]) -> Option<&'static Command> {
        COMMANDS.iter().find(|command| {
            let named = words.len() >= command.name.len()
                && command.name.iter().zip(words).all(|(name, word)| name.as_bytes() == word);
            named && (words.len() == command.name.len() || !matches!(command.run, Run::Reload))
        })
    }
}

fn prompt(_: &Master, session: &mut Session, words: &[Vec<u8>]) -> String {
    if !session.set_prompt(&words[1..]) {
        return String::from(
            "Usage: prompt [help | i | p | timed]*\n  i: further lines, no prompt\n  p: further lines, each after a \
             prompt\n  timed: toggles the time since the start in the prompt\n",
        );
    }
    session.unanswered = true;
    String::new()
}

/// Returns whether a command switches a mode on; such a command has no answer.
fn is_on(words: &[Vec<u8>], session: &mut Session) -> bool {
    session.unanswered = true;
    words.get(1).is_some_and(|word| word == b"on")
}

/// Answers what is no command; an empty command has an empty answer.
fn unknown(request: &Request) -> String {
    let Some(given) = request.words.first() else { return String::new() };
    let given = String::from_utf8_lossy(given).escape_debug().to_string();
    format!("Unknown command: '{given}'. Please enter one of the following commands only:\n{}", list())
}

fn list() -> String {
    let prefixes = [
        ("@!<pid>", "send a command to the <pid> process"),
        ("@<relative pid>", "send a command to the <relative pid> process"),
        ("@master", "send a command to the master process"),
    ];
    let mut text = String::new();
    for (name, help) in prefixes {
        let _ = writeln!(text, "  {name:<40}: {help}");
    }
    for Command { name, help, .. } in COMMANDS.iter().filter(|command| !command.help.is_empty()) {
        let _ = writeln!(text, "  {:<40}: {help}", name.join(" "));
    }
    text
}

/// Returns a command in the form in which a client would write it.
fn line(request: &Request) -> Vec<u8> {
    let mut line = Vec::new();
    for word in &request.words {
        if !line.is_empty() {
            line.push(b' ');
        }
        for byte in word {
            if matches!(byte, b' ' | b'\t' | b';' | b'\\' | b'"' | b'\'' | b'<') {
                line.push(b'\\');
            }
            line.push(*byte);
        }
    }
    if let Some(payload) = &request.payload {
        line.extend_from_slice(b" <<\n");
        line.extend_from_slice(payload);
    }
    line.push(b'\n');
    line
}

fn level_word(level: StatsLevel) -> &'static str {
    match level {
        StatsLevel::User => "user",
        StatsLevel::Operator => "operator",
        StatsLevel::Admin => "admin",
    }
}

fn lower(session: &mut Session, level: StatsLevel) -> String {
    session.rights.level = session.rights.level.min(level);
    session.unanswered = true;
    String::new()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sluicegate_proxy::cli::protocol::{Rights, split};

    use super::*;

    fn master() -> Master {
        let (channel, _) = UnixStream::pair().unwrap();
        let report = crate::report::Report::new(&crate::arguments::Service::default());
        let programs = Arc::new(Mutex::new(Programs::start(Vec::new(), report)));
        Master::new((77, Instant::now()), programs, channel, mpsc::channel(1).0)
    }

    fn ask(master: &Master, line: &str, level: StatsLevel) -> String {
        let mut session = Session::new(Rights::of(level), Duration::from_secs(1), master.begun);
        let mut out = Output::new(Box::new(tokio::io::sink()), session.timeout);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for request in &split(line.as_bytes()) {
            let command = Command::of(&request.words);
            runtime.block_on(master.answer(command, request, &mut session, &mut out)).unwrap();
        }
        String::from_utf8(out.buffer().clone()).unwrap()
    }

    #[test]
    fn processes_are_shown_in_haproxys_columns() {
        let master = master();
        let text = ask(&master, "show proc", StatsLevel::Admin);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "#<PID>          <type>          <reloads>       <uptime>        <version>      ");
        assert!(lines[1].contains("master          0 [failed: 0]   0d00h00m00s     3.2.0"), "{text}");
        assert_eq!((lines[2], lines.len()), ("# workers", 4));
        assert!(lines[3].starts_with("77              worker          0               0d00h00m00s     "), "{text}");
        master.served_anew();
        master.count(true);
        master.count(false);
        let text = ask(&master, "show proc", StatsLevel::Admin);
        assert!(text.contains("master          2 [failed: 1]   0d00h"), "{text}");
        assert!(text.contains("77              worker          1               0d00h"), "{text}");
    }

    #[test]
    fn levels_and_mistakes() {
        let (master, admin) = (master(), StatsLevel::Admin);
        assert_eq!(ask(&master, "show proc", StatsLevel::User), "Permission denied\n");
        assert_eq!(ask(&master, "operator; show cli level", admin), "operator\n");
        assert_eq!(ask(&master, "expert-mode on", StatsLevel::Operator), "Permission denied\n");
        assert_eq!(ask(&master, "expert-mode on; experimental-mode on", admin), "");
        assert!(!ask(&master, "help", admin).contains("expert-mode"), "help does not list it");
        assert_eq!(ask(&master, "reload", StatsLevel::Operator), "Permission denied\n");
        assert!(ask(&master, "reload now", admin).starts_with("Unknown command: 'reload'"));
        assert_eq!(ask(&master, "", admin), "");
        assert!(ask(&master, "frob", admin).starts_with("Unknown command: 'frob'. Please enter one of"));
        assert!(ask(&master, "help", admin).contains("  @!<pid>                                 : send a command"));
    }

    #[test]
    fn prefixes_name_processes() {
        let master = master();
        for (prefix, worker) in [("@1", true), ("@!77", true), ("@", false), ("@0", false), ("@master", false)] {
            assert_eq!(matches!(master.target(prefix), Some(Target::Worker)), worker, "{prefix}");
            assert!(master.target(prefix).is_some(), "{prefix}");
        }
        assert!(master.target("@2").is_none() && master.target("@!78").is_none() && master.target("@x").is_none());
    }

    #[test]
    fn a_line_that_is_passed_on_means_the_same() {
        for text in ["show info typed", "set map #1 a\\ b c\\;d\\\\", "x \\<\\<"] {
            let [request] = &split(text.as_bytes())[..] else { panic!("{text}") };
            let line = line(request);
            assert_eq!(&split(line.strip_suffix(b"\n").unwrap()), std::slice::from_ref(request), "{text}");
        }
    }
}
