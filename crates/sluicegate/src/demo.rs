//! `sluicegate origin`: the demo server alone, a thread per core.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;

use sluicegate_bench::origin::{Tls, spawn, spawn_tls};

/// Runs the demo server until the process is terminated. `certificate`: the files of a certificate and its key.
pub fn origin(addresses: &[SocketAddr], certificate: Option<&(PathBuf, PathBuf)>) -> ExitCode {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let tls = match certificate.map(|(certificate, key)| Tls::new(certificate, key)).transpose() {
        Ok(tls) => tls,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let scheme = if tls.is_some() { "https" } else { "http" };
    for address in addresses {
        let started = TcpListener::bind(address).and_then(|listener| match &tls {
            None => spawn(listener, threads),
            Some(tls) => spawn_tls(listener, threads, tls.clone()),
        });
        if let Err(error) = started {
            eprintln!("error: cannot listen on {address} ({error})");
            return ExitCode::FAILURE;
        }
        eprintln!("origin on {scheme}://{address}: /fast /slow /bytes/N /echo /status/N /delay/MS");
    }
    loop {
        std::thread::park();
    }
}
