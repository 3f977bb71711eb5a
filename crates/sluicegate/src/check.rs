//! `sluicegate check` and `haproxy -c`: all steps of a start before the first socket is opened.

use std::process::ExitCode;

use sluicegate_proxy::server;

use crate::arguments::Service;
use crate::load::load;
use crate::report::Report;

/// The message about valid files without a listener. HAProxy's words and exit code, which deployment scripts
/// distinguish from an error.
pub const NO_LISTENER: &str = "Configuration file has no error but will not start (no listener) => exit(2).";

const VALID: &str = "Configuration file is valid";

/// Reports the errors; the returned exit code says whether a process could run with the files.
pub fn check(service: &Service) -> ExitCode {
    if service.as_haproxy { check_as_haproxy(service) } else { check_as_own(service) }
}

fn check_as_own(service: &Service) -> ExitCode {
    match load(service) {
        Ok(loaded) if !loaded.listens() => {
            eprintln!("{NO_LISTENER}");
            ExitCode::from(2)
        }
        Ok(_) => {
            eprintln!("{VALID}");
            ExitCode::SUCCESS
        }
        Err(count) => {
            eprintln!("{count} error{} found", if count == 1 { "" } else { "s" });
            ExitCode::FAILURE
        }
    }
}

/// Reports the result on standard output, as HAProxy does. It is printed with and without `-V`, as before HAProxy 2.8,
/// because older scripts that search for it are more common than scripts that expect no output.
fn check_as_haproxy(service: &Service) -> ExitCode {
    let Ok(loaded) = load(service) else { return ExitCode::FAILURE };
    let report = Report::new(service).quieted(service.is_quiet(&loaded.config.global));
    // A start would resolve the names of servers, so a check does.
    if !service.ignore_unresolvable {
        let missing = server::unresolvable(&loaded.config);
        missing.iter().for_each(|error| report.error(&error.to_string()));
        if !missing.is_empty() {
            return ExitCode::FAILURE;
        }
    }
    let (verdict, code) = if loaded.listens() { (VALID, ExitCode::SUCCESS) } else { (NO_LISTENER, ExitCode::from(2)) };
    if !report.is_quiet() {
        if loaded.warnings > 0 {
            println!("Warnings were found.");
        }
        println!("{verdict}");
    }
    code
}
