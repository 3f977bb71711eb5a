//! `sluicegate check`: everything that `run` does before it touches a socket.

use std::process::ExitCode;

use crate::arguments::Service;

/// Reports, and says by its exit code whether the files could run.
pub fn check(service: &Service) -> ExitCode {
    match crate::load::load(service) {
        // HAProxy's words and its exit code, which deployment scripts tell from an error.
        Ok(loaded) if !loaded.listens() => {
            eprintln!("Configuration file has no error but will not start (no listener) => exit(2).");
            ExitCode::from(2)
        }
        Ok(_) => {
            eprintln!("Configuration file is valid");
            ExitCode::SUCCESS
        }
        Err(count) => {
            eprintln!("{count} error{} found", if count == 1 { "" } else { "s" });
            ExitCode::FAILURE
        }
    }
}
