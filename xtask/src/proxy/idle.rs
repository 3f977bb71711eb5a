//! The cost of idle keep-alive connections: resident memory each, and the slowdown of busy ones.
//!
//! A run starts the program, measures busy connections alone, opens the idle ones, each with one request answered,
//! reads the growth of the resident set, and measures the busy ones again next to them.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;

use super::cpu::SECONDS;
use super::peer::{BOTH, Bench, CONNECTIONS, Peer};
use crate::bench::{median, resident_bytes, spread};
use crate::report::{Options, Part};

/// Ten thousand, reduced so that a limit of 20,000 descriptors also allows the busy ones.
const IDLE: usize = 9_800;
/// Connections that are opened together; fewer than any accept queue.
const AT_ONCE: usize = 100;

/// KiB of resident memory that an idle connection may cost.
const WANTED_KIB: f64 = 3.0;
/// The minimum ratio of the busy traffic's rates with and without idle connections.
const WANTED_RATE: f64 = 0.9;

struct Outcome {
    /// Growth of the resident set per idle connection, KiB.
    kib: f64,
    /// Rate with idle connections over the rate without.
    kept: f64,
    /// CPU time of a busy request with idle connections over that without.
    cpu: f64,
}

/// `idle`: connections that wait.
pub(super) fn idle(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("idle", "Idle connections");
    let bench = Bench::new(options)?;
    let _ = writeln!(
        part.text,
        "{IDLE} keep-alive connections after one request each, and {CONNECTIONS} busy ones without and with them.\n\n\
         | | KiB of RSS per idle connection | busy rate kept beside them | CPU of a busy request, times |\n|---|---|---|---|"
    );
    let cases = [("redirect", "/", "http-request redirect location /ok".to_owned()), {
        ("proxied", "/fast", format!("server origin {}", bench.origin()))
    }];
    for (name, path, rules) in &cases {
        let text = format!(
            "global\n    nbthread 1\ndefaults\n    mode http\n    timeout client 10m\n    timeout server 1m\n    \
             timeout connect 1s\nlisten www\n    bind 127.0.0.1:PORT\n    {rules}\n"
        );
        let mut results: [Vec<Outcome>; 2] = Default::default();
        for _ in options.rounds() {
            for (peer, outcomes) in BOTH.into_iter().zip(&mut results) {
                let outcome = measure(&bench, peer, &text, path)?;
                println!("{name:<10} {:<12} {:>6.2} KiB, {:>5.2} of the rate", peer.name(), outcome.kib, outcome.kept);
                outcomes.push(outcome);
            }
        }
        for (peer, outcomes) in BOTH.into_iter().zip(&results) {
            let figures: [fn(&Outcome) -> f64; 3] =
                [|outcome| outcome.kib, |outcome| outcome.kept, |outcome| outcome.cpu];
            let [kib, kept, cpu] = figures.map(|figure| outcomes.iter().map(figure).collect::<Vec<f64>>());
            let cells = [&kib, &kept, &cpu].map(|values| spread(values, 2));
            let row = format!("{}, {name}", peer.name());
            let _ = writeln!(part.text, "| {row} | {} |", cells.join(" | "));
            let columns = ["KiB", "busy rate kept", "CPU of a busy request, times"];
            let figures = vec![kib.clone(), kept.clone(), cpu];
            part.keep("idle connections", &columns, [row.as_str()].into_iter(), &[figures]);
            if peer == Peer::Ours {
                let goal = format!("KiB of an idle connection, {name}");
                part.goal(&goal, &format!("≤ {WANTED_KIB}"), median(&kib), |kib| kib <= WANTED_KIB);
                let goal = format!("rate kept beside them, {name}");
                part.goal(&goal, &format!("≥ {WANTED_RATE}"), median(&kept), |kept| kept >= WANTED_RATE);
            }
        }
    }
    Ok(part)
}

fn measure(bench: &Bench<'_>, peer: Peer, text: &str, path: &str) -> Result<Outcome, String> {
    let program = peer.start(bench, text)?;
    let connections = CONNECTIONS.to_string();
    let seconds = bench.options.seconds(SECONDS).to_string();
    let load = ["-c", &connections, "-d", &seconds, "-w", "500ms"];
    let alone = bench.load(&program, path, &load)?;
    let before = resident_bytes(program.id())?;
    let idle = open(program.port, path).map_err(|error| format!("{}: idle connections: {error}", peer.name()))?;
    let after = resident_bytes(program.id())?;
    let beside = bench.load(&program, path, &load)?;
    drop(idle);
    Ok(Outcome {
        kib: (after - before) / 1024.0 / IDLE as f64,
        kept: beside.rate / alone.rate,
        cpu: beside.cpu_us / alone.cpu_us,
    })
}

/// Returns the idle connections, each with one request answered. Many are opened at a time, to avoid a wait for each
/// single answer.
fn open(port: u16, path: &str) -> std::io::Result<Vec<TcpStream>> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: idle\r\n\r\n");
    let mut connections = Vec::with_capacity(IDLE);
    while connections.len() < IDLE {
        let mut some = Vec::with_capacity(AT_ONCE);
        for _ in 0..AT_ONCE {
            let mut stream = TcpStream::connect(("127.0.0.1", port))?;
            stream.write_all(request.as_bytes())?;
            some.push(stream);
        }
        for stream in &mut some {
            // The answers are smaller than a segment, so one read has all of one.
            let mut answer = [0; 1024];
            let count = stream.read(&mut answer)?;
            if !answer[..count].starts_with(b"HTTP/1.1 ") {
                return Err(std::io::Error::other(String::from_utf8_lossy(&answer[..count]).into_owned()));
            }
        }
        connections.append(&mut some);
    }
    Ok(connections)
}
