//! The cost of a log line: the same traffic with and without `option httplog`, alternating.
//!
//! The lines go to a unix datagram socket, as to a syslog daemon, whose reader discards them on core 1; the proxy,
//! its control thread that sends them included, has core 0 for itself. The figure is the proxy's CPU time per request,
//! so the kernel's part of sending a datagram counts and the reader's does not. As a second setup the lines go to a
//! file that keeps nothing, which leaves the program's own cost.

use std::fmt::Write as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use crate::bench::{Bench, Setup, busy, median, on_core, spread, wrk};
use crate::child::{free_port, wait_for_port};
use crate::report::{Options, Part, Report};

pub(crate) const LOGS: Report = Report { name: "logs", title: "Log lines", parts: &[("lines", lines)] };

const SECONDS: u32 = 3;

/// The maximum share of a request's CPU time for its line.
const WANTED: f64 = 0.06;

/// `bench logs [--runs N] [--profile NAME | --program PATH] [--write]`.
pub fn logs(arguments: &[&str]) -> Result<(), String> {
    LOGS.measure(arguments)
}

/// `lines`: a line for each request.
fn lines(options: &Options) -> Result<Part, String> {
    let bench = Bench::new(&options.program)?;
    let directory = std::env::temp_dir().join(format!("sluicegate-logs-{}", std::process::id()));
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let socket = directory.join("log");
    let reader = UnixDatagram::bind(&socket).map_err(|error| error.to_string())?;
    std::thread::spawn(move || discard(&reader));
    let outcome = measure_all(&bench, &socket, options);
    let _ = std::fs::remove_dir_all(&directory);
    outcome
}

/// Reads until the process ends, on the core of everything that is not measured.
fn discard(reader: &UnixDatagram) {
    on_core(1);
    let mut buffer = [0; 4096];
    while reader.recv(&mut buffer).is_ok() {}
}

fn measure_all(bench: &Bench, socket: &Path, options: &Options) -> Result<Part, String> {
    let mut part = Part::new("lines", "A line for each request");
    let targets = [
        ("no log", String::new()),
        ("httplog to a socket", format!("log {} local0\n    option httplog\n    ", socket.display())),
        // The bench starts its proxies with stdout on /dev/null.
        ("httplog to nowhere", "log stdout format raw local0\n    option httplog\n    ".to_owned()),
    ];
    let columns = targets.each_ref().map(|(name, _)| *name);
    let seconds = options.seconds(SECONDS);
    // `[program and setup]`
    let mut rows = Vec::new();
    for program in ["haproxy", "sluicegate"] {
        for (name, path, rules) in
            [("redirect", "/", "http-request redirect location /ok".to_owned()), ("proxied", "/fast", bench.backend())]
        {
            let setups =
                targets.each_ref().map(|(_, log)| bench.setup(program, name, path, "", &format!("{log}{rules}")));
            rows.push((program, name, setups.into_iter().collect::<Result<Vec<Setup>, _>>()?));
        }
    }
    // `[row][target][run]`
    let mut results = vec![vec![Vec::new(); targets.len()]; rows.len()];
    for round in options.rounds() {
        for ((program, name, setups), of_row) in rows.iter().zip(&mut results) {
            for (setup, samples) in setups.iter().zip(of_row.iter_mut()) {
                samples.push(cpu(bench, setup, seconds)?);
            }
            println!("run {} {program}, {name}: {of_row:.2?}", round + 1);
        }
    }
    let _ = writeln!(
        part.text,
        "Runs of {seconds} s, 40 keep-alive connections by wrk; the proxy's CPU time per request, µs.\n\n| | {} |\n\
         |---|---|---|---|",
        columns.join(" | ")
    );
    let names: Vec<String> = rows.iter().map(|(program, name, _)| format!("{program}, {name}")).collect();
    for (name, of_row) in names.iter().zip(&results) {
        let cells: Vec<String> = of_row.iter().map(|samples| spread(samples, 2)).collect();
        let _ = writeln!(part.text, "| {name} | {} |", cells.join(" | "));
    }
    part.keep("CPU µs per request", &columns, names.iter().map(String::as_str), &results);
    for (name, of_row) in names.iter().zip(&results) {
        for (samples, target) in of_row.iter().zip(columns).skip(1) {
            let cost = median(samples) / median(&of_row[0]) - 1.0;
            if name.starts_with("sluicegate") {
                let goal = format!("a line as a part of a request's CPU, {name}, {target}");
                part.goal(&goal, &format!("≤ {WANTED}"), cost, |cost| cost <= WANTED);
            } else {
                let _ = writeln!(part.text, "\n{name}, {target}: a line costs {:+.1} %.", cost * 100.0);
            }
        }
    }
    Ok(part)
}

fn cpu(bench: &Bench, setup: &Setup, seconds: u32) -> Result<f64, String> {
    let port = free_port()?;
    let proxy = bench.start_proxy(setup.program, &bench.write(setup, port)?)?;
    wait_for_port(port)?;
    let url = format!("http://127.0.0.1:{port}{}", setup.path);
    wrk(&url, 1)?;
    Ok(busy(&proxy, &url, seconds)?.cpu_us)
}
