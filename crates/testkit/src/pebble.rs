//! Pebble: Let's Encrypt's test server of the protocol ACME.

use std::net::TcpStream;
use std::process::Command;

use crate::peer::newer_peer;
use crate::{Certificates, Program, free_port, wait_for};

/// A Pebble whose own certificate is `pebble` of the test's certificates, for `localhost`.
pub struct Pebble {
    /// The process.
    pub program: Program,
    /// The URL of its directory.
    pub directory: String,
}

impl Pebble {
    /// Starts a Pebble that resolves names at a name server, validates at a port, and issues certificates that are
    /// valid for `validity` seconds. It refuses `bad_nonces` percent of valid nonces.
    ///
    /// # Panics
    /// If it is not installed.
    pub fn start(certificates: &Certificates, names: &str, http_port: u16, validity: u64, bad_nonces: u32) -> Pebble {
        let nonces = bad_nonces.to_string();
        Pebble::start_with(certificates, names, http_port, validity, ("PEBBLE_WFE_NONCEREJECT", &nonces))
    }

    /// Starts a Pebble that accepts every challenge.
    ///
    /// # Panics
    /// If it is not installed.
    pub fn start_trusting(certificates: &Certificates, names: &str, validity: u64) -> Pebble {
        Pebble::start_with(certificates, names, 1, validity, ("PEBBLE_VA_ALWAYS_VALID", "1"))
    }

    fn start_with(
        certificates: &Certificates,
        names: &str,
        http_port: u16,
        validity: u64,
        variable: (&str, &str),
    ) -> Pebble {
        for _ in 0..5 {
            let port = free_port();
            let text = format!(
                r#"{{"pebble": {{"listenAddress": "127.0.0.1:{port}", "certificate": "{}", "privateKey": "{}",
                "httpPort": {http_port}, "tlsPort": {http_port}, "retryAfter": {{"authz": 1, "order": 1}},
                "keyAlgorithm": "ecdsa",
                "profiles": {{"default": {{"description": "x", "validityPeriod": {validity}}}}}}}}}"#,
                certificates.path("pebble.crt"),
                certificates.path("pebble.key"),
            );
            let file = certificates.path("pebble.json");
            std::fs::write(&file, text).expect("writable");
            let mut command = Command::new(newer_peer("pebble"));
            command.args(["-config", &file, "-dnsserver", names, "-strict"]);
            command.env("PEBBLE_VA_NOSLEEP", "1").env(variable.0, variable.1);
            command.env("PEBBLE_AUTHZREUSE", "0");
            let mut program = Program::start(command, &[]);
            // Pebble prints this before it listens.
            let listens = program.comes_to_print("ACME directory available at")
                && wait_for("pebble", || match TcpStream::connect(("127.0.0.1", port)) {
                    Ok(_) => Some(true),
                    Err(_) => (!program.is_running()).then_some(false),
                });
            if listens {
                return Pebble { program, directory: format!("https://localhost:{port}/dir") };
            }
        }
        panic!("pebble found no free port in five tries");
    }
}
