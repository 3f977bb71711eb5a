//! The cost of a log line: the same traffic with and without `option httplog`, alternating.
//!
//! The lines go to a unix datagram socket, as to a syslog daemon, whose reader discards them on core 1; the proxy,
//! its control thread that sends them included, has core 0 for itself. The figure is the proxy's CPU time per request,
//! so the kernel's part of sending a datagram counts and the reader's does not. As a second setup the lines go to a
//! file that keeps nothing, which leaves the program's own cost.

use std::fmt::Write as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use crate::bench::{Bench, Setup, busy, machine, median, on_core, spread, start_proxy, wrk};
use crate::child::{free_port, wait_for_port};
use crate::release;
use crate::run::root;

const RUNS: usize = 5;
const SECONDS: u32 = 3;

/// The maximum share of a request's CPU time for its line.
const WANTED: f64 = 0.06;

/// `bench logs [--runs N] [--write]`.
pub fn logs(arguments: &[&str]) -> Result<(), String> {
    let (mut runs, mut write) = (RUNS, false);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match *word {
            "--write" => write = true,
            "--runs" => runs = words.next().and_then(|count| count.parse().ok()).ok_or("--runs wants a number")?,
            other => return Err(format!("unknown: {other}")),
        }
    }
    release::program(false)?;
    let bench = Bench::new()?;
    let directory = std::env::temp_dir().join(format!("sluicegate-logs-{}", std::process::id()));
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let socket = directory.join("log");
    let reader = UnixDatagram::bind(&socket).map_err(|error| error.to_string())?;
    std::thread::spawn(move || discard(&reader));
    let outcome = measure_all(&bench, &socket, runs);
    let _ = std::fs::remove_dir_all(&directory);
    let report = outcome?;
    println!("\n{report}");
    if write {
        let path = root().join("docs/benchmarks/logs.md");
        std::fs::write(&path, report).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// Reads until the process ends, on the core of everything that is not measured.
fn discard(reader: &UnixDatagram) {
    on_core(1);
    let mut buffer = [0; 4096];
    while reader.recv(&mut buffer).is_ok() {}
}

fn measure_all(bench: &Bench, socket: &Path, runs: usize) -> Result<String, String> {
    let targets = [
        ("no log", String::new()),
        ("httplog to a socket", format!("log {} local0\n    option httplog\n    ", socket.display())),
        // The bench starts its proxies with stdout on /dev/null.
        ("httplog to nowhere", "log stdout format raw local0\n    option httplog\n    ".to_owned()),
    ];
    let mut report = format!(
        "# Log lines\n\n`cargo xtask bench logs`\n\n{}\n\n{runs} alternating runs of {SECONDS} s, 40 keep-alive connections by \
         wrk; medians (lowest–highest) of the proxy's CPU time per request, µs.\n\n| | {} |\n|---|---|---|---|\n",
        machine(),
        targets.each_ref().map(|(name, _)| *name).join(" | ")
    );
    let mut verdicts = String::new();
    for program in ["haproxy", "sluicegate"] {
        for (name, path, rules) in
            [("redirect", "/", "http-request redirect location /ok".to_owned()), ("proxied", "/fast", bench.backend())]
        {
            let setups =
                targets.each_ref().map(|(_, log)| bench.setup(program, name, path, "", &format!("{log}{rules}")));
            let setups: Vec<Setup> = setups.into_iter().collect::<Result<_, _>>()?;
            let mut samples: Vec<Vec<f64>> = targets.iter().map(|_| Vec::new()).collect();
            for _ in 0..runs {
                for (setup, samples) in setups.iter().zip(&mut samples) {
                    samples.push(cpu(bench, setup)?);
                }
            }
            let cells: Vec<String> = samples.iter().map(|samples| spread(samples, 2)).collect();
            println!("{program}, {name}: {}", cells.join(" | "));
            let _ = writeln!(report, "| {program}, {name} | {} |", cells.join(" | "));
            let plain = median(&samples[0]);
            for (samples, (target, _)) in samples.iter().zip(&targets).skip(1) {
                let cost = median(samples) / plain - 1.0;
                let verdict = match program {
                    "sluicegate" if cost <= WANTED => ", met",
                    "sluicegate" => ", **missed**",
                    _ => "",
                };
                let _ = writeln!(verdicts, "- {program}, {name}, {target}: {:+.1} %{verdict}", cost * 100.0);
            }
        }
    }
    let _ =
        write!(report, "\nWhat a line costs, of a request's CPU (wanted: at most {} %):\n\n{verdicts}", WANTED * 100.0);
    Ok(report)
}

fn cpu(bench: &Bench, setup: &Setup) -> Result<f64, String> {
    let port = free_port()?;
    let proxy = start_proxy(setup.program, &bench.write(setup, port)?)?;
    wait_for_port(port)?;
    let url = format!("http://127.0.0.1:{port}{}", setup.path);
    wrk(&url, 1)?;
    Ok(busy(&proxy, &url, SECONDS)?.cpu_us)
}
