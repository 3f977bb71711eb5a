//! The commands of the master's sockets (HAProxy management guide 9.4).

use std::fmt::Write as _;
use std::io;
use std::time::Instant;

use sluicegate_config::model::StatsLevel;
use sluicegate_proxy::cli::protocol::{Answer, Commands, Mode, Output, Request, Session};

use super::version;
use crate::signals::NO_RELOAD;

/// What the commands can tell.
pub struct Master {
    /// The worker process.
    pub worker: i32,
    /// When it was forked.
    pub begun: Instant,
}

/// A command.
struct Command {
    name: &'static [&'static str],
    help: &'static str,
    level: StatsLevel,
    run: fn(&Master, &mut Session) -> String,
}

/// Every command, as help shows them.
const COMMANDS: &[Command] = &[
    Command {
        name: &["operator"],
        help: "lower the level of the current CLI session to operator",
        level: StatsLevel::Operator,
        run: |_, session| lower(session, StatsLevel::Operator),
    },
    Command {
        name: &["reload"],
        help: "reload haproxy (not available yet)",
        level: StatsLevel::Admin,
        run: |_, _| format!("{NO_RELOAD}.\n"),
    },
    Command {
        name: &["show", "cli", "level"],
        help: "display the level of the current CLI session",
        level: StatsLevel::User,
        run: |_, session| format!("{}\n", level_word(session.level)),
    },
    Command {
        name: &["show", "proc"],
        help: "show processes status",
        level: StatsLevel::Operator,
        run: |master, _| master.show_proc(),
    },
    Command {
        name: &["show", "version"],
        help: "show version of the current process",
        level: StatsLevel::User,
        run: |_, _| format!("{}\n", version()),
    },
    Command {
        name: &["user"],
        help: "lower the level of the current CLI session to user",
        level: StatsLevel::User,
        run: |_, session| lower(session, StatsLevel::User),
    },
    Command {
        name: &["help"],
        help: "list matching or all commands",
        level: StatsLevel::User,
        run: |_, _| format!("The following commands are valid at this level:\n{}", list()),
    },
    Command {
        name: &["prompt"],
        help: "toggle interactive mode with prompt",
        level: StatsLevel::User,
        run: |_, session| {
            session.mode = if session.mode == Mode::Prompt { Mode::Once } else { Mode::Prompt };
            String::new()
        },
    },
    Command {
        name: &["quit"],
        help: "disconnect",
        level: StatsLevel::User,
        run: |_, session| {
            session.quit = true;
            String::new()
        },
    },
];

impl Commands for Master {
    fn run<'a>(&'a self, request: Request, session: &'a mut Session, out: &'a mut Output) -> Answer<'a> {
        out.push(self.answer(&request, session));
        Box::pin(std::future::ready(io::Result::Ok(())))
    }
}

impl Master {
    fn answer(&self, request: &Request, session: &mut Session) -> String {
        let mut words: Vec<String> =
            request.words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        if let Some(to) = words.first().filter(|word| word.starts_with('@')).cloned() {
            words.remove(0);
            if !["@", "@0", "@master", &format!("@!{}", std::process::id())].contains(&to.as_str()) {
                return self.elsewhere(&to);
            }
            if words.is_empty() {
                return String::new();
            }
        }
        let fits = |command: &&Command| {
            words.len() >= command.name.len() && command.name.iter().zip(&words).all(|(name, word)| name == word)
        };
        match COMMANDS.iter().find(fits) {
            Some(command) if session.level < command.level => "Permission denied\n".to_owned(),
            Some(command) => (command.run)(self, session),
            None => {
                let given = words.first().map(|word| format!(": '{}'", word.escape_debug())).unwrap_or_default();
                format!("Unknown command{given}. Please enter one of the following commands only:\n{}", list())
            }
        }
    }

    /// A command for another process.
    fn elsewhere(&self, to: &str) -> String {
        if to == "@1" || to == format!("@!{}", self.worker) {
            return format!("'{to}': commands are not passed on to the worker yet; send them to its stats socket.\n");
        }
        format!("Can't find the target PID matching the prefix '{}'\n", to.escape_debug())
    }

    /// `show proc`: columns of 16 characters, as HAProxy's.
    fn show_proc(&self) -> String {
        let up = self.begun.elapsed().as_secs();
        let up = format!("{}d{:02}h{:02}m{:02}s", up / 86_400, up / 3_600 % 24, up / 60 % 60, up % 60);
        let version = version();
        let mut text =
            format!("{:<16}{:<16}{:<16}{:<16}{:<15}\n", "#<PID>", "<type>", "<reloads>", "<uptime>", "<version>");
        // Writing to a string can't fail.
        let _ =
            writeln!(text, "{:<16}{:<16}{:<16}{up:<16}{version:<15}", std::process::id(), "master", "0 [failed: 0]");
        text.push_str("# workers\n");
        let _ = writeln!(text, "{:<16}{:<16}{:<16}{up:<16}{version:<15}", self.worker, "worker", 0);
        text.push_str("# programs\n");
        text
    }
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
    for command in COMMANDS {
        let _ = writeln!(text, "  {:<40}: {}", command.name.join(" "), command.help);
    }
    text
}

fn level_word(level: StatsLevel) -> &'static str {
    match level {
        StatsLevel::User => "user",
        StatsLevel::Operator => "operator",
        StatsLevel::Admin => "admin",
    }
}

fn lower(session: &mut Session, level: StatsLevel) -> String {
    session.level = session.level.min(level);
    String::new()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sluicegate_proxy::cli::protocol::split;

    use super::*;

    fn ask(line: &str, level: StatsLevel) -> String {
        let master = Master { worker: 77, begun: Instant::now() };
        let mut session = Session::new(level, Duration::from_secs(1), master.begun);
        split(line.as_bytes()).iter().map(|request| master.answer(request, &mut session)).collect()
    }

    #[test]
    fn processes_are_shown_in_haproxys_columns() {
        let text = ask("show proc", StatsLevel::Admin);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "#<PID>          <type>          <reloads>       <uptime>        <version>      ");
        assert!(lines[1].contains("master          0 [failed: 0]   0d00h00m00s     3.2.0"), "{text}");
        assert_eq!((lines[2], lines[4]), ("# workers", "# programs"));
        assert!(lines[3].starts_with("77              worker          0               0d00h00m00s     "), "{text}");
    }

    #[test]
    fn levels_prefixes_and_mistakes() {
        let admin = StatsLevel::Admin;
        assert_eq!(ask("show proc", StatsLevel::User), "Permission denied\n");
        assert_eq!(ask("operator; show cli level; reload", admin), "operator\nPermission denied\n");
        assert!(ask("reload", admin).contains("not available yet"));
        assert!(ask("@1 show info", admin).contains("not passed on to the worker yet"));
        assert!(ask("@!77 show info", admin).contains("stats socket"));
        assert_eq!(ask("@2 x", admin), "Can't find the target PID matching the prefix '@2'\n");
        assert_eq!(ask("@master show cli level; @", admin), "admin\n");
        assert!(ask("frob", admin).starts_with("Unknown command: 'frob'. Please enter one of"));
        assert!(ask("help", admin).contains("  @!<pid>                                 : send a command"));
    }
}
