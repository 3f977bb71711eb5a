//! Commands about the session itself: help, prompt, levels, timeouts.

use std::time::Duration;

use sluicegate_config::model::{SeverityOutput, StatsLevel};

use super::catalogue::{self, Call, Command, Run};
use super::protocol::Rights;

/// The commands of this module.
pub const COMMANDS: &[Command] = &[
    Command {
        name: &["experimental-mode"],
        arguments: "[on|off]",
        help: "show or change whether experimental commands are available",
        level: StatsLevel::Admin,
        run: Run::Now(|call| toggle(call, "experimental-mode", |rights| &mut rights.experimental)),
    },
    Command {
        name: &["expert-mode"],
        arguments: "[on|off]",
        help: "show or change whether expert commands are available",
        level: StatsLevel::Admin,
        run: Run::Now(|call| toggle(call, "expert-mode", |rights| &mut rights.expert)),
    },
    Command {
        name: &["operator"],
        arguments: "",
        help: "lower the level of the current CLI session to operator",
        level: StatsLevel::Operator,
        run: Run::Now(|call| lower(call, StatsLevel::Operator)),
    },
    Command {
        name: &["set", "timeout"],
        arguments: "[cli] <delay>",
        help: "change a timeout setting",
        level: StatsLevel::User,
        run: Run::Now(set_timeout),
    },
    Command {
        name: &["set", "severity-output"],
        arguments: "[none|number|string]",
        help: "set presence of severity level in feedback information",
        level: StatsLevel::User,
        run: Run::Now(set_severity_output),
    },
    Command {
        name: &["show", "cli", "level"],
        arguments: "",
        help: "display the level of the current CLI session",
        level: StatsLevel::User,
        run: Run::Now(|call| {
            let level = level_name(call.session.rights.level);
            call.say(level);
        }),
    },
    Command {
        name: &["user"],
        arguments: "",
        help: "lower the level of the current CLI session to user",
        level: StatsLevel::User,
        run: Run::Now(|call| lower(call, StatsLevel::User)),
    },
    Command {
        name: &["help"],
        arguments: "[<command>]",
        help: "list matching or all commands",
        level: StatsLevel::User,
        run: Run::Now(catalogue::help),
    },
    Command {
        name: &["prompt"],
        arguments: "[help | n | i | p | timed ]*",
        help: "toggle interactive mode with prompt",
        level: StatsLevel::User,
        run: Run::Now(prompt),
    },
    Command {
        name: &["quit"],
        arguments: "",
        help: "disconnect",
        level: StatsLevel::User,
        run: Run::Now(|call| call.session.quit = true),
    },
];

/// Returns the name of a level.
pub(super) fn level_name(level: StatsLevel) -> &'static str {
    match level {
        StatsLevel::User => "user",
        StatsLevel::Operator => "operator",
        StatsLevel::Admin => "admin",
    }
}

fn toggle(call: &mut Call<'_>, name: &str, field: fn(&mut Rights) -> &mut bool) {
    let wanted = match call.arg(0) {
        "" => {
            let state = if *field(&mut call.session.rights) { "ON" } else { "OFF" };
            return call.say(format!("{name} is {state}"));
        }
        word => word == "on",
    };
    *field(&mut call.session.rights) = wanted;
}

fn lower(call: &mut Call<'_>, level: StatsLevel) {
    let rights = &mut call.session.rights;
    rights.level = rights.level.min(level);
}

fn prompt(call: &mut Call<'_>) {
    if !call.session.set_prompt(call.args) {
        call.say(
            "Usage: prompt [help | n | i | p | timed]*\n  n: one line, then the connection is closed\n  i: further \
             lines, no prompt\n  p: further lines, each after a prompt\n  timed: toggles the time since the start in \
             the prompt",
        );
    }
}

fn set_severity_output(call: &mut Call<'_>) {
    call.session.severity = match call.arg(0) {
        "none" => SeverityOutput::None,
        "number" => SeverityOutput::Number,
        "string" => SeverityOutput::String,
        _ => return call.say("one of 'none', 'number', 'string' is a required argument"),
    };
}

fn set_timeout(call: &mut Call<'_>) {
    match (call.arg(0), call.arg(1)) {
        ("cli", "") => call.say("Expects an integer value."),
        ("cli", text) => match delay(text) {
            Some(timeout) => call.session.timeout = timeout,
            None => call.say("Invalid timeout value."),
        },
        _ => call.say("'set timeout' only supports 'cli'."),
    }
}

/// Parses a delay in HAProxy's notation, in seconds without a unit.
pub(super) fn delay(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok().filter(|number| *number > 0)?;
    let factor_ms = match &text[digits..] {
        // Less than a second is rounded up: this timeout is kept in seconds.
        "us" => return Some(Duration::from_secs(number.div_ceil(1_000_000))),
        "ms" => return Some(Duration::from_secs(number.div_ceil(1_000))),
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(factor_ms).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_seconds_without_a_unit() {
        assert_eq!(delay("60"), Some(Duration::from_secs(60)));
        assert_eq!(delay("5m"), Some(Duration::from_secs(300)));
        assert_eq!(delay("5ms"), Some(Duration::from_secs(1)));
        assert_eq!([delay("0"), delay("x"), delay("3y"), delay("")], [None; 4]);
    }

    #[test]
    fn levels_only_go_down() {
        assert!(StatsLevel::User < StatsLevel::Operator && StatsLevel::Operator < StatsLevel::Admin);
    }
}
