//! `sluicegate top`: proxies, servers, stores, engines and limits of a running process, live, over its stats socket.
//!
//! It asks what any client of the socket can ask, so it also shows a real haproxy, without what only Sluicegate has.

mod arguments;
mod ask;
mod figures;
mod run;
mod view;

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs `sluicegate top` with these words.
pub fn command(words: Vec<OsString>) -> ExitCode {
    let outcome = match arguments::parse(words) {
        Ok(arguments::Wanted::Help) => {
            print!("{}", arguments::HELP);
            return ExitCode::SUCCESS;
        }
        Ok(arguments::Wanted::Run(options)) => run::run(&options),
        Err(error) => Err(format!("{error}; sluicegate top --help lists the options")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
