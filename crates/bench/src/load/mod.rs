//! Load generators for HTTP/1 and RESP: `sluicegate bench http|redis`.
//!
//! | module | what |
//! |---|---|
//! | `arguments`, `plan` | words of the command line → what a run is to do, checked before anything is opened |
//! | `target`, `template`, `random` | where it goes; requests with places for keys; how those are drawn |
//! | `http`, `redis`, `protocol` | requests made ready, answers read to their end, by `wire` |
//! | `schedule`, `poller`, `reactor` | when requests are due; waiting; one thread with its connections |
//! | `stats`, `cpu` | what is counted and measured |
//! | `run`, `text`, `json` | threads, signals, reports |
//!
//! **Invariant:** nothing is hidden. A latency begins when the request was *meant* to be sent, every request ends in
//! exactly one count, and where the generator itself is the limit, the report says so.

mod arguments;
mod cpu;
mod http;
mod json;
mod plan;
mod poller;
mod protocol;
mod random;
mod reactor;
mod redis;
mod run;
mod schedule;
mod stats;
mod target;
mod template;
mod text;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

/// Runs `sluicegate bench WORDS…`: 0 if a request has worked, 1 if none has or the words are wrong, 130 when
/// interrupted. The report goes to standard output, live lines and errors to standard error.
pub fn command(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    match arguments::parse(words) {
        Ok(arguments::Command::Help(text)) => {
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Ok(arguments::Command::Run(plan)) => run::run(&plan),
        Err(message) => refuse(&message),
    }
}

fn refuse(message: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "error: {message}");
    ExitCode::FAILURE
}

/// Ends the process where its threads can't be waited for.
fn abort(code: i32, reason: &str) -> ! {
    let _ = writeln!(std::io::stderr(), "error: {reason}");
    std::process::exit(code)
}
