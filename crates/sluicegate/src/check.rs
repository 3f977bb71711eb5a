//! `sluicegate check`: everything that `run` does before it touches a socket.

use std::path::PathBuf;
use std::process::ExitCode;

/// Reports, and says by its exit code whether the files could run.
pub fn check(paths: &[PathBuf]) -> ExitCode {
    match crate::load::load(paths) {
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
