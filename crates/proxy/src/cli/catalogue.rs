//! The catalogue of commands: a row per command, in a file per theme, and the commands that scripts add at run time.
//!
//! A row has the required level and the way of answering: directly into the output's buffer, for replies of a bounded
//! size, or as a future that waits for the client between pieces. Scripts add commands through
//! [`Registry`](crate::script_commands::Registry) before the process serves; these stream their replies through an
//! [`Outlet`], from whichever thread they run on.

use std::io;
use std::sync::Arc;

use sluicegate_config::model::{SeverityOutput, StatsLevel};
use sluicegate_tls::x509::Secret;
use tokio::sync::mpsc;

use super::protocol::{Answer, Commands, Output, Request, Session};
use super::{
    cache, change, engines, errors, events, general, inside, limits, maps, peers, resolvers, servers, session, show,
    stores, tables, tls, traces,
};
use crate::running::Running;
use crate::script_commands::{Dynamic, Outlet};

/// The number of commands that are suggested for an unknown one.
const SUGGESTIONS: usize = 5;
/// The maximum number of pieces of a dynamic command's answer that wait for the client.
const PIECES: usize = 4;

/// The arguments and context of a command.
pub struct Call<'a> {
    /// The words after the command's name.
    pub args: &'a [Vec<u8>],
    /// The payload after `<<`.
    pub payload: Option<&'a [u8]>,
    /// The client.
    pub session: &'a mut Session,
    /// The process.
    pub running: &'a Arc<Running>,
    /// The output of the reply, without the empty line at its end.
    pub out: &'a mut Output,
}

impl Call<'_> {
    /// Returns an argument as text; empty if it is missing or not text.
    pub fn arg(&self, index: usize) -> &str {
        self.args.get(index).and_then(|word| std::str::from_utf8(word).ok()).unwrap_or("")
    }

    /// Answers with a message and a line feed.
    pub fn say(&mut self, line: impl AsRef<str>) {
        self.answer(line.as_ref());
    }

    /// Replies with a message, preceded by its severity if the client requested that. Listings and values are written
    /// to `out` instead.
    pub fn answer(&mut self, message: impl AsRef<[u8]>) {
        self.answer_as(severity_of(message.as_ref()), message);
    }

    /// Replies with a line about a change that was made.
    pub fn notice(&mut self, line: impl AsRef<str>) {
        self.answer_as((5, "notice"), line.as_ref());
    }

    /// Replies with a message of a severity. As in HAProxy it ends with one line feed, whatever it is given with.
    pub fn answer_as(&mut self, (number, name): (u8, &str), message: impl AsRef<[u8]>) {
        if self.session.severity != SeverityOutput::None {
            self.out.push(match self.session.severity {
                SeverityOutput::Number => format!("[{number}]: "),
                _ => format!("[{name}]: "),
            });
        }
        let message = message.as_ref();
        let end = message.iter().rposition(|byte| *byte != b'\n').map_or(0, |last| last + 1);
        self.out.push(&message[..end]);
        self.out.push("\n");
    }

    /// Returns whether the client has this level; if not, it gets an error.
    pub fn may(&mut self, level: StatsLevel) -> bool {
        let may = self.session.rights.level >= level;
        if !may {
            self.say("Permission denied");
        }
        may
    }
}

/// Returns the severity of a message as in HAProxy: any message that does not report a success is an error.
fn severity_of(message: &[u8]) -> (u8, &'static str) {
    const SUCCESSES: [&[u8]; 10] = [
        b"New server registered",
        b"Server deleted",
        b"New version created",
        b"Anonymized mode",
        b"Done.",
        b"Usage: ",
        b"admin",
        b"operator",
        b"user",
        crate::stats::info::VERSION.as_bytes(),
    ];
    const REMARKS: [&[u8]; 2] = [b"Frontend was ", b"All sockets are already "];
    let is_any = |starts: &[&[u8]]| starts.iter().any(|start| message.starts_with(start));
    if is_any(&SUCCESSES) || message.ends_with(b" is ON") || message.ends_with(b" is OFF") {
        (6, "info")
    } else if is_any(&REMARKS) {
        (5, "notice")
    } else {
        (3, "err")
    }
}

/// The way in which a command answers.
#[derive(Clone, Copy)]
pub enum Run {
    /// Immediately, with an answer of bounded size.
    Now(fn(&mut Call<'_>)),
    /// Piece by piece, or after a wait.
    Long(for<'a> fn(Call<'a>) -> Answer<'a>),
}

/// A command.
pub struct Command {
    /// Its words.
    pub name: &'static [&'static str],
    /// Its arguments, as help shows them.
    pub arguments: &'static str,
    /// The description in the help.
    pub help: &'static str,
    /// The required level.
    pub level: StatsLevel,
    /// Its code.
    pub run: Run,
}

impl Command {
    fn usage(&self) -> String {
        let mut usage = self.name.join(" ");
        if !self.arguments.is_empty() {
            usage.push(' ');
            usage.push_str(self.arguments);
        }
        usage
    }

    fn matches(&self, words: &[Vec<u8>]) -> bool {
        words.len() >= self.name.len() && self.name.iter().zip(words).all(|(name, word)| name.as_bytes() == word)
    }
}

/// Returns every built-in command, theme by theme.
pub fn commands() -> impl Iterator<Item = &'static Command> {
    let themes = [
        show::COMMANDS,
        errors::COMMANDS,
        events::COMMANDS,
        traces::COMMANDS,
        change::COMMANDS,
        maps::COMMANDS,
        tables::COMMANDS,
        engines::COMMANDS,
        stores::COMMANDS,
        limits::COMMANDS,
        cache::COMMANDS,
        resolvers::COMMANDS,
        peers::COMMANDS,
        servers::COMMANDS,
        session::COMMANDS,
        inside::COMMANDS,
        general::COMMANDS,
    ];
    themes.into_iter().chain(tls::COMMANDS).flatten()
}

/// Returns whether a built-in command begins with these words.
pub fn is_built_in(words: &[Vec<u8>]) -> bool {
    commands().any(|command| command.matches(words))
}

impl Commands for Arc<Running> {
    fn run<'a>(&'a self, request: Request, session: &'a mut Session, out: &'a mut Output) -> Answer<'a> {
        Box::pin(run(request, session, self, out))
    }
}

async fn run(request: Request, session: &mut Session, running: &Arc<Running>, out: &mut Output) -> io::Result<()> {
    let Request { words, payload } = request;
    // It may be a private key.
    let payload = payload.map(Secret::from);
    let found = commands().filter(|command| command.matches(&words)).max_by_key(|command| command.name.len());
    if let Some(command) = found {
        let args = &words[command.name.len()..];
        let mut call = Call { args, payload: payload.as_deref(), session, running, out };
        return match command.run {
            _ if !call.may(command.level) => Ok(()),
            Run::Now(run) => {
                run(&mut call);
                Ok(())
            }
            Run::Long(run) => run(call).await,
        };
    }
    match running.commands.find(&words) {
        Some(command) if session.rights.level >= command.level => dynamic(&command, words, out).await,
        Some(_) => {
            out.push("Permission denied\n");
            Ok(())
        }
        None => {
            unknown(&words, out.buffer());
            Ok(())
        }
    }
}

/// Passes the pieces of a dynamic command's answer on as they arrive.
async fn dynamic(command: &Dynamic, words: Vec<Vec<u8>>, out: &mut Output) -> io::Result<()> {
    let (pieces, mut received) = mpsc::channel(PIECES);
    let mut running = (command.handler)(words, Outlet(pieces));
    let mut done = false;
    loop {
        tokio::select! {
            piece = received.recv() => match piece {
                Some(piece) => {
                    out.push(piece);
                    out.drain().await?;
                }
                None if done => return Ok(()),
                // The command has dropped its outlet, but is still running.
                None => {
                    running.await;
                    return Ok(());
                }
            },
            () = &mut running, if !done => {
                done = true;
                // A remaining copy of the outlet does not keep the client connected.
                received.close();
            }
        }
    }
}

/// `help` and its arguments.
pub(super) fn help(call: &mut Call<'_>) {
    call.out.push("The following commands are valid at this level:\n");
    let asked = |name: &mut dyn Iterator<Item = &str>| {
        let mut args = call.args.iter();
        let fits = name.zip(args.by_ref()).all(|(name, word)| name.as_bytes().starts_with(word));
        fits && args.next().is_none()
    };
    let mut lines: Vec<Line> = Vec::new();
    for command in commands().filter(|command| is_last(command) || asked(&mut command.name.iter().copied())) {
        lines.push(Line::of(command));
    }
    for command in call.running.commands.all().iter() {
        if !command.usage.is_empty() && asked(&mut command.name.iter().map(String::as_str)) {
            lines.push(Line { last: 0, text: format!("  {}\n", command.usage) });
        }
    }
    list(lines, call.out.buffer());
}

/// A line of help and its position: `help`, `prompt` and `quit` come after all others.
struct Line {
    last: usize,
    text: String,
}

fn is_last(command: &Command) -> bool {
    matches!(command.name, ["help" | "prompt" | "quit"])
}

impl Line {
    fn of(command: &Command) -> Line {
        let text = format!("  {:<40}: {}\n", command.usage(), command.help);
        Line { last: usize::from(is_last(command)), text }
    }
}

fn list(mut lines: Vec<Line>, out: &mut Vec<u8>) {
    lines.sort_by(|one, other| (one.last, &one.text).cmp(&(other.last, &other.text)));
    lines.iter().for_each(|line| out.extend_from_slice(line.text.as_bytes()));
}

/// Answers what is no command by those that come near. As in HAProxy they begin with the words that are right, and are
/// sorted by their texts; an empty command has an empty answer.
fn unknown(words: &[Vec<u8>], out: &mut Vec<u8>) {
    let Some(first) = words.first() else { return };
    let right =
        |command: &Command| command.name.iter().zip(words).take_while(|(name, word)| name.as_bytes() == **word).count();
    let right_max = commands().map(right).max().unwrap_or(0);
    let fitting = || commands().filter(|command| !is_last(command) && right(command) == right_max);
    let mut near: Vec<(usize, &Command)> = Vec::new();
    if words.len() > right_max {
        near = fitting().map(|command| (distance(&command.name[right_max..], &words[right_max..]), command)).collect();
        // Behind a right word everything comes near.
        near.retain(|(distance, _)| right_max > 0 || *distance <= 4);
        near.sort_by_key(|(distance, _)| *distance);
        near.truncate(SUGGESTIONS);
    } else {
        near.extend(fitting().map(|command| (0, command)));
    }
    out.extend_from_slice(b"Unknown command: '");
    out.extend(first.iter().map(|byte| if byte.is_ascii_graphic() { *byte } else { b'?' }));
    let last = commands().filter(|command| is_last(command)).map(Line::of);
    if near.is_empty() {
        out.extend_from_slice(b"'. Please enter one of the following commands only:\n");
        list(fitting().map(Line::of).chain(last).collect(), out);
    } else {
        out.extend_from_slice(b"', but maybe one of the following ones is a better match:\n");
        list(near.into_iter().map(|(_, command)| Line::of(command)).chain(last).collect(), out);
    }
}

/// Returns the distance of the input from a command's words: their edit distances.
fn distance(name: &[&str], words: &[Vec<u8>]) -> usize {
    let missing = name.len().saturating_sub(words.len());
    let typed = name.iter().zip(words).map(|(name, word)| edits(name.as_bytes(), word));
    // Words that were not typed yet count less than words typed wrong.
    typed.sum::<usize>() + missing
}

fn edits(a: &[u8], b: &[u8]) -> usize {
    if b.len() > 64 {
        return b.len();
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, right) in b.iter().enumerate() {
            let change = diagonal + usize::from(left != right);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// Reads any bytes as a line: the number of its words is bounded, and it is answered or ignored, whatever it contains.
pub fn fuzz_line(data: &[u8]) {
    for request in super::protocol::split(data) {
        let words = request.words;
        assert!(words.iter().map(Vec::len).sum::<usize>() <= data.len());
        let known = commands().any(|command| command.matches(&words));
        if let (false, [_, ..]) = (known, &words[..]) {
            let mut out = Vec::new();
            unknown(&words, &mut out);
            assert!(out.ends_with(b"\n"));
        }
        for word in &words {
            let _ = std::str::from_utf8(word).ok().and_then(general::delay);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::script_commands::{Refused, Registry};

    proptest! {
        #[test]
        fn lines_of_any_bytes_are_answered(data in proptest::collection::vec(any::<u8>(), 0..300)) {
            fuzz_line(&data);
        }

        #[test]
        fn lines_of_near_commands_are_answered(data in "((show|set|help|stat|info|timeout|cli|quit|;|\\\\|[ -~]) ?){0,20}") {
            fuzz_line(data.as_bytes());
        }
    }

    #[test]
    fn unknown_commands_are_told_what_comes_near() {
        let answer = |line: &str| {
            let mut out = Vec::new();
            let words: Vec<_> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
            unknown(&words, &mut out);
            String::from_utf8(out).unwrap()
        };
        let near = answer("show stats");
        assert!(near.starts_with("Unknown command: 'show', but maybe one of the following ones is a better match:\n"));
        assert!(near.contains("\n  show stat [desc|json|no-maint|typed|up]*") && near.lines().count() == 9, "{near}");
        assert!(near.ends_with("  quit                                    : disconnect\n"));
        // Right words come first: what stands behind them is listed.
        let names = |line: &str| -> Vec<String> {
            let near = answer(line);
            let lines = near.lines().skip(1).filter(|line| !line.starts_with("  help") && !line.contains("toggle"));
            lines.filter_map(|line| line.split(['<', '[', ':']).next()).map(|name| name.trim().to_owned()).collect()
        };
        for line in ["acme", "acme ps", "acme nothing at all"] {
            assert_eq!(names(line), ["acme renew", "acme status", "quit"], "{line}");
        }
        assert_eq!(names("add ssl cert"), ["add ssl ca-file", "add ssl crt-list", "quit"]);
        assert_eq!(names("dump ssl"), ["dump ssl cert", "quit"]);
        let far = answer("gibberish\u{1}");
        assert!(far.starts_with("Unknown command: 'gibberish?'. Please enter one of the following commands only:\n"));
    }

    #[test]
    fn no_two_rows_share_their_words() {
        let mut names: Vec<_> = commands().map(|command| command.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn scripts_add_commands_but_not_over_others() {
        let registry = Registry::default();
        let command = |name: &str| Dynamic {
            name: name.split_whitespace().map(str::to_owned).collect(),
            usage: String::new(),
            level: StatsLevel::Admin,
            handler: Arc::new(|_, _| Box::pin(async {})),
        };
        assert_eq!(registry.add(command("show weather"), is_built_in), Ok(()));
        assert_eq!(registry.add(command("show weather all"), is_built_in), Err(Refused::Taken));
        assert_eq!(registry.add(command("show info"), is_built_in), Err(Refused::Taken));
        assert_eq!(registry.add(command(""), is_built_in), Err(Refused::Empty));
    }
}
