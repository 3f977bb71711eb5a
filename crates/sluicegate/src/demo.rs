//! `sluicegate origin`: the demo server alone, a thread per core.

use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;

/// Runs the demo server until the process is terminated.
pub fn origin(addresses: &[SocketAddr]) -> ExitCode {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    for address in addresses {
        let started =
            TcpListener::bind(address).and_then(|listener| sluicegate_bench::origin::spawn(listener, threads));
        if let Err(error) = started {
            eprintln!("error: cannot listen on {address} ({error})");
            return ExitCode::FAILURE;
        }
        eprintln!("origin on http://{address}: /fast /slow /bytes/N /echo /status/N /delay/MS");
    }
    loop {
        std::thread::park();
    }
}
