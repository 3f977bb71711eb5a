//! Load generators for HTTP/1 and RESP: `sluicegate bench http|redis`.
//!
//! | module | what |
//! |---|---|
//! | `arguments`, `plan` | words of the command line → what a run is to do, checked before anything is opened |
//! | `target`, `template`, `random` | where it goes; requests with places for keys; how those are drawn |
//! | `http`, `redis`, `protocol` | requests made ready, answers read to their end, by `wire` |
//! | `schedule`, `poller`, `reactor` | when requests are due; waiting; one thread with its connections |
//! | `stats`, `cpu` | what is counted and measured |
//! | `outcome`, `text`, `json`, `console` | results, reports, and where they are written |
//! | `run`, `reconnect` | threads, signals, a run and a comparison of two |
//!
//! **Invariant:** nothing is hidden. A latency begins when the request was *meant* to be sent, every request ends in
//! exactly one count, and where the generator itself is the limit, the report says so.

mod arguments;
mod console;
mod cpu;
mod http;
mod json;
mod outcome;
mod output;
mod plan;
mod poller;
mod protocol;
mod random;
mod reactor;
mod reconnect;
mod redis;
mod run;
mod schedule;
mod stats;
mod target;
mod template;
mod text;

pub use console::Console;

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs `sluicegate bench WORDS…`. The exit code is 0 if at least one request succeeded, 1 if every request failed or the
/// arguments are invalid, 130 when interrupted. The report goes to standard output, live lines and errors to standard error.
pub fn command(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    ExitCode::from(execute(words, &mut Console { out: &mut out, err: &mut err, takes_signals: true }))
}

/// As [`command`], for a program that wants the output itself; gives the exit code.
pub fn execute(words: impl IntoIterator<Item = OsString>, console: &mut Console<'_>) -> u8 {
    match arguments::parse(words) {
        Ok(arguments::Command::Help(text)) => match console.out.write_all(text.as_bytes()) {
            Ok(()) => 0,
            Err(_) => 1,
        },
        Ok(arguments::Command::Run(plan)) => run::run(&plan, console),
        Ok(arguments::Command::Reconnect(plan)) => reconnect::run(&plan, console),
        Err(message) => console.refuse(&message),
    }
}
