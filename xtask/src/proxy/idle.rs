//! What idle keep-alive connections cost: resident memory each, and what busy ones lose to them.
//!
//! A run starts the proxy, measures 40 busy connections alone, opens the idle ones, each with one request answered,
//! reads the growth of the resident set, and measures the busy ones again beside them.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;

use crate::bench::{Bench, Setup, busy, free_port, machine, spread, start_proxy, wait_for_port, wrk};
use crate::run::{root, run};

/// Ten thousand, less what a limit of 20,000 descriptors leaves no room for beside the busy ones.
const IDLE: usize = 9_800;
/// Connections that are opened together; fewer than any accept queue.
const AT_ONCE: usize = 100;
const RUNS: usize = 3;
const SECONDS: u32 = 3;

/// KiB of resident memory that an idle connection may cost.
const WANTED_KIB: f64 = 4.0;
/// The part of its rate that busy traffic must keep beside the idle connections.
const WANTED_RATE: f64 = 0.9;

struct Outcome {
    /// Growth of the resident set per idle connection, KiB.
    kib: f64,
    /// Rate beside idle connections over the rate without.
    kept: f64,
    /// CPU time of a busy request beside idle connections over that without.
    cpu: f64,
}

/// `bench idle [--write]`.
pub fn idle(arguments: &[&str]) -> Result<(), String> {
    let write = match arguments {
        [] => false,
        ["--write"] => true,
        other => return Err(format!("unknown: {}", other.join(" "))),
    };
    run("cargo", &["build", "--release", "-p", "sluicegate"])?;
    let bench = Bench::new()?;
    let mut setups = Vec::new();
    for program in ["haproxy", "sluicegate"] {
        setups.push(bench.setup(program, "redirect", "/", "", "http-request redirect location /ok")?);
        setups.push(bench.setup(program, "proxied", "/fast", "", &bench.backend())?);
    }
    let mut report = format!(
        "# Idle connections\n\n`cargo xtask bench idle`\n\n{}\n\n{IDLE} keep-alive connections after one request each, \
         and 40 busy ones by wrk without and with them; medians (lowest–highest) of {RUNS} alternating runs of {SECONDS} s.\n\n\
         | | KiB of RSS per idle connection | busy rate kept beside them | CPU of a busy request, times |\n|---|---|---|---|\n",
        machine()
    );
    let mut results: Vec<Vec<Outcome>> = setups.iter().map(|_| Vec::new()).collect();
    for _ in 0..RUNS {
        for (setup, outcomes) in setups.iter().zip(&mut results) {
            let outcome = measure(&bench, setup)?;
            println!("{:<24} {:>6.2} KiB each, {:>5.2} of the rate", setup.label(), outcome.kib, outcome.kept);
            outcomes.push(outcome);
        }
    }
    let mut missed = String::new();
    for (setup, outcomes) in setups.iter().zip(&results) {
        let kib: Vec<f64> = outcomes.iter().map(|outcome| outcome.kib).collect();
        let kept: Vec<f64> = outcomes.iter().map(|outcome| outcome.kept).collect();
        let cpu: Vec<f64> = outcomes.iter().map(|outcome| outcome.cpu).collect();
        let cells = [&kib, &kept, &cpu].map(|values| spread(values, 2));
        let _ = writeln!(report, "| {} | {} |", setup.label(), cells.join(" | "));
        if setup.program == "sluicegate" {
            for (what, met) in [
                (format!("≤ {WANTED_KIB} KiB"), crate::bench::median(&kib) <= WANTED_KIB),
                (format!("≥ {WANTED_RATE} of the rate"), crate::bench::median(&kept) >= WANTED_RATE),
            ] {
                let _ = writeln!(missed, "- {}: {what}: {}", setup.name, if met { "met" } else { "**missed**" });
            }
        }
    }
    let _ = write!(report, "\n{missed}");
    println!("\n{report}");
    if write {
        let path = root().join("docs/benchmarks/idle.md");
        std::fs::write(&path, report).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

fn measure(bench: &Bench, setup: &Setup) -> Result<Outcome, String> {
    let port = free_port()?;
    let proxy = start_proxy(setup.program, &bench.write(setup, port)?)?;
    wait_for_port(port)?;
    let url = format!("http://127.0.0.1:{port}{}", setup.path);
    wrk(&url, 1)?;
    let alone = busy(&proxy, &url, SECONDS)?;
    let before = rss_kib(proxy.id())?;
    let connections =
        open(port, setup.path).map_err(|error| format!("{}: idle connections: {error}", setup.label()))?;
    let after = rss_kib(proxy.id())?;
    let beside = busy(&proxy, &url, SECONDS)?;
    drop(connections);
    Ok(Outcome {
        kib: (after - before) / IDLE as f64,
        kept: beside.rate / alone.rate,
        cpu: beside.cpu_us / alone.cpu_us,
    })
}

/// The idle connections, each with one request answered; many at a time, so that nobody waits for each single answer.
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

fn rss_kib(pid: u32) -> Result<f64, String> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let value = text.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
    value.ok_or(format!("{path} has no VmRSS"))
}
