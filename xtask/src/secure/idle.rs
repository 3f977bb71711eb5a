//! Resident memory of idle connections in TLS and in HTTP/2.
//!
//! The load generator opens the connections and sends requests at a rate that leaves each idle for a whole period
//! after its request. Memory is read near the end of the second period, before the connections close.

use std::fmt::Write as _;
use std::time::Duration;

use super::handshakes::columns;
use super::material::{Key, bind, libraries};
use crate::bench::{median, resident_bytes};
use crate::child::start;
use crate::proxy::peer::{Bench, NEWER, Peer};
use crate::report::{Options, Part, ratios};

/// Ten thousand, reduced so that a limit of 20,000 descriptors allows both sides of a proxied connection.
const IDLE: u32 = 9_800;
/// Seconds between two requests of a connection.
const PERIOD: u32 = 10;

/// Returns the growth of the resident set for each connection, in KiB.
fn growth(bench: &Bench<'_>, peer: Peer, text: &str, load: &[&str]) -> Result<f64, String> {
    let program = peer.start(bench, text)?;
    // A few connections first, so that what exists once does not count.
    bench.load(&program, "/", &[&["-c", "5", "-n", "50"], load].concat())?;
    let before = resident_bytes(program.id())?;
    let (connections, rate) = (IDLE.to_string(), (IDLE / PERIOD).to_string());
    let duration = (3 * PERIOD).to_string();
    let url = program.url("/");
    let mut words = vec!["bench", "http", "-c", &connections, "-r", &rate, "-d", &duration];
    words.extend(["--connect-timeout", "60s"]);
    words.extend(load);
    words.extend(program.trust());
    words.push(&url);
    let open = || std::fs::read_dir(format!("/proc/{}/fd", program.id())).map_or(0, Iterator::count);
    let mut generator = start(1, &bench.options.program.display().to_string(), &words)?;
    // The duration begins when all connections are there.
    let mut waited = 0;
    while open() < IDLE as usize {
        std::thread::sleep(Duration::from_millis(200));
        waited += 1;
        if waited > 600 {
            return Err(format!("{}: {} of {IDLE} connections after two minutes", peer.name(), open()));
        }
    }
    std::thread::sleep(Duration::from_secs(u64::from(2 * PERIOD + PERIOD / 2)));
    let after = resident_bytes(program.id())?;
    let held = open();
    if held < IDLE as usize {
        return Err(format!("{}: {held} descriptors are left of {IDLE} connections", peer.name()));
    }
    generator.kill();
    Ok((after - before) / 1024.0 / f64::from(IDLE))
}

fn measure(part: &mut Part, bench: &Bench<'_>, cases: &[(&str, String, &[&str], f64)]) -> Result<(), String> {
    let _ = writeln!(
        part.text,
        "{} {IDLE} keep-alive connections, each with a request every {PERIOD} s that a rule answers; memory is read in \
         the third period.\n",
        libraries(bench)
    );
    let mut results = Vec::new();
    for (name, bind, load, aim) in cases {
        let text = format!(
            "global\n    nbthread 1\n    maxconn 9900\ndefaults\n    mode http\n    timeout client 10m\n    \
             timeout server 1m\n    timeout connect 1s\nlisten www\n    bind 127.0.0.1:PORT {bind}\n    \
             http-request redirect location /ok\n"
        );
        let mut kib = vec![Vec::new(), Vec::new()];
        for _ in bench.options.rounds() {
            for (peer, values) in NEWER.into_iter().zip(&mut kib) {
                let value = growth(bench, peer, &text, load)?;
                println!("{name:<16} {:<12} {value:>6.2} KiB", peer.name());
                values.push(value);
            }
        }
        let ratio = median(&ratios(&kib));
        part.goal(&format!("memory of a connection, {name}, ours / haproxy's"), "≤ 0.6", ratio, |ratio| ratio <= 0.6);
        let ours = median(&kib[1]);
        part.goal(&format!("KiB of a connection, {name}"), &format!("≤ {aim}"), ours, |kib| kib <= *aim);
        results.push(kib);
    }
    part.table("KiB of RSS per connection", &columns(), cases.iter().map(|case| case.0), &results);
    Ok(())
}

/// `idle` of TLS: keep-alive connections of HTTP/1.1 in TLS.
pub(super) fn tls(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("idle", "Idle TLS connections");
    let bench = Bench::new(options)?;
    let cases = [
        ("TLS 1.3", bind(&bench, Key::Ecdsa, "1.3", "http/1.1")?, &[][..], 12.0),
        ("TLS 1.2", bind(&bench, Key::Ecdsa, "1.2", "http/1.1")?, &[][..], 12.0),
    ];
    measure(&mut part, &bench, &cases)?;
    Ok(part)
}

/// `idle` of HTTP/2.
pub(super) fn h2(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("idle", "Idle HTTP/2 connections");
    let bench = Bench::new(options)?;
    let load: &[&str] = &["--http2"];
    let cases = [
        ("h2", String::from("proto h2"), load, 16.0),
        ("h2 in TLS 1.3", bind(&bench, Key::Ecdsa, "1.3", "h2")?, load, 16.0),
    ];
    measure(&mut part, &bench, &cases)?;
    Ok(part)
}
