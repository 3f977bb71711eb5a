//! The commands of the stats socket, one row of the catalogue each.

use std::io::Write as _;
use std::time::Duration;

use sluicegate_config::model::StatsLevel;

use crate::running::Running;
use crate::stats::{self, Filter};

/// Commands that are offered for one that is not known.
const SUGGESTIONS: usize = 5;

/// A client's state between lines.
#[derive(Debug)]
pub struct Session {
    /// What it may do.
    pub level: StatsLevel,
    /// Time without a byte after which it is closed.
    pub timeout: Duration,
    /// `prompt`: the connection stays.
    pub interactive: bool,
    /// `quit`.
    pub quit: bool,
}

/// What a command is given.
pub struct Call<'a> {
    /// Its words after its name.
    pub args: &'a [Vec<u8>],
    /// The client.
    pub session: &'a mut Session,
    /// The process.
    pub running: &'a Running,
    /// Where the answer goes; it ends with an empty line unless it is nothing but a prompt.
    pub out: &'a mut Vec<u8>,
}

/// A command.
pub struct Command {
    /// Its words.
    pub name: &'static [&'static str],
    /// Its arguments, as help shows them.
    pub arguments: &'static str,
    /// What it does, as help says it.
    pub help: &'static str,
    /// Who may use it.
    pub level: StatsLevel,
    /// Its code.
    pub run: fn(Call<'_>),
}

/// Every command; help shows them in this order.
pub const COMMANDS: &[Command] = &[
    Command {
        name: &["operator"],
        arguments: "",
        help: "lower the level of the current CLI session to operator",
        level: StatsLevel::Operator,
        run: |call| lower(call, StatsLevel::Operator),
    },
    Command {
        name: &["set", "timeout", "cli"],
        arguments: "<delay>",
        help: "change the timeout of this connection",
        level: StatsLevel::User,
        run: set_timeout,
    },
    Command {
        name: &["show", "cli", "level"],
        arguments: "",
        help: "display the level of the current CLI session",
        level: StatsLevel::User,
        run: show_level,
    },
    Command {
        name: &["show", "info"],
        arguments: "",
        help: "report information about the running process",
        level: StatsLevel::User,
        run: show_info,
    },
    Command {
        name: &["show", "stat"],
        arguments: "[<px> <type> <sid>] [no-maint|up]*",
        help: "report counters for each proxy and server",
        level: StatsLevel::User,
        run: show_stat,
    },
    Command {
        name: &["show", "version"],
        arguments: "",
        help: "show version of the current process",
        level: StatsLevel::User,
        run: |call| {
            call.out.extend_from_slice(stats::info::VERSION.as_bytes());
            call.out.extend_from_slice(b"\n\n");
        },
    },
    Command {
        name: &["user"],
        arguments: "",
        help: "lower the level of the current CLI session to user",
        level: StatsLevel::User,
        run: |call| lower(call, StatsLevel::User),
    },
    Command {
        name: &["help"],
        arguments: "[<command>]",
        help: "list matching or all commands",
        level: StatsLevel::User,
        run: help,
    },
    Command {
        name: &["prompt"],
        arguments: "",
        help: "toggle interactive mode with prompt",
        level: StatsLevel::User,
        run: |call| {
            call.session.interactive = !call.session.interactive;
            call.out.push(b'\n');
        },
    },
    Command {
        name: &["quit"],
        arguments: "",
        help: "disconnect",
        level: StatsLevel::User,
        run: |call| call.session.quit = true,
    },
];

/// Runs the commands of one line.
pub fn line(bytes: &[u8], session: &mut Session, running: &Running, out: &mut Vec<u8>) {
    let end = bytes.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r')).map_or(0, |last| last + 1);
    for words in split(&bytes[..end]) {
        if session.quit {
            return;
        }
        run(&words, session, running, out);
    }
}

/// A line's commands and their words. `;` separates commands, blanks separate words, a backslash takes the next byte
/// as it is.
fn split(line: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<Vec<u8>> = None;
    let mut bytes = line.iter().copied();
    while let Some(byte) = bytes.next() {
        let literal = match byte {
            b'\\' => bytes.next(),
            b' ' | b'\t' | b';' => None,
            other => Some(other),
        };
        match literal {
            Some(literal) => word.get_or_insert_default().push(literal),
            None => {
                if let (Some(word), Some(command)) = (word.take(), commands.last_mut()) {
                    command.push(word);
                }
                if byte == b';' {
                    commands.push(Vec::new());
                }
            }
        }
    }
    if let (Some(word), Some(command)) = (word, commands.last_mut()) {
        command.push(word);
    }
    // What follows a last separator is no command; an empty line asks for help.
    if commands.len() > 1 && commands.last().is_some_and(Vec::is_empty) {
        commands.pop();
    }
    commands
}

fn matches(command: &Command, words: &[Vec<u8>]) -> bool {
    words.len() >= command.name.len() && command.name.iter().zip(words).all(|(name, word)| name.as_bytes() == word)
}

fn run(words: &[Vec<u8>], session: &mut Session, running: &Running, out: &mut Vec<u8>) {
    match COMMANDS.iter().find(|command| matches(command, words)) {
        Some(command) if session.level >= command.level => {
            (command.run)(Call { args: &words[command.name.len()..], session, running, out });
        }
        Some(_) => out.extend_from_slice(b"Permission denied\n\n"),
        None if words.is_empty() => help(Call { args: &[], session, running, out }),
        None => unknown(words, session.level, out),
    }
}

fn usage(command: &Command) -> String {
    let mut usage = command.name.join(" ");
    if !command.arguments.is_empty() {
        usage.push(' ');
        usage.push_str(command.arguments);
    }
    usage
}

fn list<'c>(commands: impl Iterator<Item = &'c Command>, out: &mut Vec<u8>) {
    for command in commands {
        // Writing to a vector can't fail.
        let _ = writeln!(out, "  {:<40}: {}", usage(command), command.help);
    }
    out.push(b'\n');
}

fn unknown(words: &[Vec<u8>], level: StatsLevel, out: &mut Vec<u8>) {
    let known = || COMMANDS.iter().filter(|command| level >= command.level);
    let mut near: Vec<_> = known().map(|command| (distance(command, words), command)).collect();
    near.sort_by_key(|(distance, _)| *distance);
    near.retain(|(distance, _)| *distance <= 4);
    near.truncate(SUGGESTIONS);
    out.extend_from_slice(b"Unknown command: '");
    out.extend(words[0].iter().map(|byte| if byte.is_ascii_graphic() { *byte } else { b'?' }));
    if near.is_empty() {
        out.extend_from_slice(b"'. Please enter one of the following commands only:\n");
        list(known(), out);
    } else {
        out.extend_from_slice(b"', but maybe one of the following ones is a better match:\n");
        let always = |command: &&Command| matches!(command.name, ["help" | "prompt" | "quit"]);
        let offered = near.iter().map(|(_, command)| *command).filter(|command| !always(command));
        list(offered.chain(known().filter(always)), out);
    }
}

/// How far what was typed is from a command: the edit distances of its words.
fn distance(command: &Command, words: &[Vec<u8>]) -> usize {
    let missing = command.name.len().saturating_sub(words.len());
    let typed = command.name.iter().zip(words).map(|(name, word)| edits(name.as_bytes(), word));
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

fn help(call: Call<'_>) {
    let known = COMMANDS.iter().filter(|command| call.session.level >= command.level);
    call.out.extend_from_slice(b"The following commands are valid at this level:\n");
    let asked = |command: &&Command| {
        command.name.iter().zip(call.args).all(|(name, word)| name.as_bytes().starts_with(word))
            && call.args.len() <= command.name.len()
    };
    list(known.filter(asked), call.out);
}

fn lower(call: Call<'_>, level: StatsLevel) {
    call.session.level = call.session.level.min(level);
    call.out.push(b'\n');
}

fn show_level(call: Call<'_>) {
    let level = match call.session.level {
        StatsLevel::User => "user",
        StatsLevel::Operator => "operator",
        StatsLevel::Admin => "admin",
    };
    call.out.extend_from_slice(level.as_bytes());
    call.out.extend_from_slice(b"\n\n");
}

fn set_timeout(call: Call<'_>) {
    let seconds = call.args.first().and_then(|word| std::str::from_utf8(word).ok()).and_then(delay);
    match seconds {
        Some(timeout) => {
            call.session.timeout = timeout;
            call.out.push(b'\n');
        }
        None => call.out.extend_from_slice(b"Invalid timeout value.\n\n"),
    }
}

/// A delay as HAProxy writes it: seconds without a unit.
fn delay(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok().filter(|number| *number > 0)?;
    let factor_ms = match &text[digits..] {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(factor_ms).map(Duration::from_millis)
}

fn refuse_formats(call: &mut Call<'_>) -> bool {
    let refused = call.args.iter().find(|word| matches!(&word[..], b"typed" | b"json" | b"desc" | b"float"));
    let Some(word) = refused else { return false };
    let _ = writeln!(call.out, "Output format '{}' is not available yet.\n", String::from_utf8_lossy(word));
    true
}

fn show_info(mut call: Call<'_>) {
    if !refuse_formats(&mut call) {
        stats::info::show_info(call.running, call.out);
    }
}

fn show_stat(mut call: Call<'_>) {
    if refuse_formats(&mut call) {
        return;
    }
    match filter(call.args, call.running) {
        Ok(filter) => stats::show_stat(call.running, &filter, call.out),
        Err(message) => {
            let _ = writeln!(call.out, "{message}\n");
        }
    }
}

/// `[{<iid>|<proxy>} <type> <sid>] [no-maint] [up]`; -1 stands for any.
fn filter(args: &[Vec<u8>], running: &Running) -> Result<Filter, &'static str> {
    let mut filter = Filter::default();
    let mut flags = args;
    if let [proxy, types, server, rest @ ..] = args
        && let (Some(types), Some(server)) = (number(types), number(server))
    {
        flags = rest;
        filter.proxy = match number(proxy) {
            Some(iid) => u32::try_from(iid).ok(),
            None => {
                let named = running.proxies.iter().find(|known| known.config.name.as_bytes() == proxy);
                Some(named.ok_or("No such proxy.")?.config.uid)
            }
        };
        filter.types = u32::try_from(types).ok();
        filter.server = u32::try_from(server).ok();
    }
    filter.up = flags.iter().any(|word| word == b"up");
    filter.no_maint = flags.iter().any(|word| word == b"no-maint");
    Ok(filter)
}

fn number(word: &[u8]) -> Option<i64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// Any bytes as a line: it splits into a bounded number of words, and whatever they are, an answer or nothing comes.
pub fn fuzz_line(data: &[u8]) {
    for words in split(data) {
        assert!(words.iter().map(Vec::len).sum::<usize>() <= data.len());
        let known = COMMANDS.iter().any(|command| matches(command, &words));
        if let (false, [_, ..]) = (known, &words[..]) {
            let mut out = Vec::new();
            unknown(&words, StatsLevel::User, &mut out);
            assert!(out.ends_with(b"\n\n"));
        }
        for word in &words {
            let _ = std::str::from_utf8(word).ok().and_then(delay);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
    fn lines_split_into_commands_and_words() {
        let split = |line: &str| -> Vec<Vec<String>> {
            let text = |word: Vec<u8>| String::from_utf8(word).unwrap();
            super::split(line.as_bytes()).into_iter().map(|words| words.into_iter().map(text).collect()).collect()
        };
        assert_eq!(split("show  info; show\tstat ;"), [vec!["show", "info"], vec!["show", "stat"]]);
        assert_eq!(split(r"set x a\;b\ c\\"), [vec!["set", "x", r"a;b c\"]]);
        assert_eq!(split(""), [Vec::<String>::new()]);
        assert_eq!(split(r"x \"), [vec!["x"]]);
    }

    #[test]
    fn unknown_commands_are_told_what_comes_near() {
        let answer = |line: &str| {
            let mut out = Vec::new();
            let words: Vec<_> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
            unknown(&words, StatsLevel::Operator, &mut out);
            String::from_utf8(out).unwrap()
        };
        let near = answer("show stats");
        assert!(near.starts_with("Unknown command: 'show', but maybe one of the following ones is a better match:\n"));
        assert!(near.lines().nth(1).unwrap().starts_with("  show stat [<px> <type> <sid>]"), "{near}");
        assert!(near.ends_with("  quit                                    : disconnect\n\n"));
        let far = answer("gibberish\u{1}");
        assert!(far.starts_with("Unknown command: 'gibberish?'. Please enter one of the following commands only:\n"));
    }

    #[test]
    fn delays_are_seconds_without_a_unit() {
        assert_eq!(delay("60"), Some(Duration::from_secs(60)));
        assert_eq!(delay("5m"), Some(Duration::from_secs(300)));
        assert_eq!([delay("0"), delay("x"), delay("3y"), delay("")], [None; 4]);
    }

    #[test]
    fn levels_only_go_down() {
        assert!(StatsLevel::User < StatsLevel::Operator && StatsLevel::Operator < StatsLevel::Admin);
    }
}
