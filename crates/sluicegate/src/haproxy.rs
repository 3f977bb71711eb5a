//! The program under the name `haproxy`: its command line, version and exit codes (HAProxy management guide 3).

use std::ffi::OsString;
use std::process::ExitCode;

use crate::arguments::haproxy::{Refused, Request, USAGE, parse};
use crate::{check, serve};

/// Does what the words ask for.
pub fn main(name: &str, words: impl Iterator<Item = OsString>) -> ExitCode {
    match parse(name, words) {
        Ok(Request::Version) => {
            println!("{}", version());
            ExitCode::SUCCESS
        }
        Ok(Request::Build) => {
            println!("{}", version());
            ExitCode::SUCCESS
        }
        Ok(Request::Condition(text)) => {
            eprintln!("'-cc' is not supported yet: {text}");
            ExitCode::from(2)
        }
        Ok(Request::Check(service)) => check::check(&service),
        Ok(Request::Run(service)) => serve::run(&service),
        Err(Refused::Usage(message)) => {
            if let Some(message) = message {
                alert(&message);
            }
            println!("{}", version());
            eprint!("{USAGE}");
            ExitCode::FAILURE
        }
        Err(Refused::Message(message)) => {
            alert(&message);
            ExitCode::FAILURE
        }
    }
}

/// The first line of `-v`, which tools parse.
pub fn version() -> String {
    let (major, minor, patch) = sluicegate_config::BASELINE;
    format!("HAProxy version {major}.{minor}.{patch}-sluicegate{} - load balancer", env!("CARGO_PKG_VERSION"))
}

fn alert(message: &str) {
    eprintln!("[ALERT]    ({}) : {message}", std::process::id());
}
