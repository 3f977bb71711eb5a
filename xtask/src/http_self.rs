//! The load generators compared with widely used ones: responses per second of the generator's own CPU time.
//!
//! The server runs alone on core 0 and the generator on core 1, in alternating runs of the same length. If the server
//! is the limit, two good generators reach the same rate, so the rate is divided by the CPU time of the generator,
//! which is read from the scheduler's account of ended children (10 ms steps).

use std::fmt::Write as _;
use std::process::{Command, Stdio};

use crate::bench::{machine, median, spread};
use crate::child::{free_port, start, wait_for_port};
use crate::release;
use crate::report::number;
use crate::run::root;

const RUNS: usize = 5;
const SECONDS: u32 = 3;
/// The pipeline and the number of requests of a run of redis-benchmark, which has no option for a duration.
const REQUESTS: [(u32, u64); 2] = [(1, 300_000), (16, 3_000_000)];
/// The arrivals per second of the open loop.
const RATE: u32 = 20_000;

/// The required ratio of our rate per CPU to the other generator's.
const WANTED_HTTP: f64 = 1.0;
const WANTED_RESP: f64 = 1.2;
/// The maximum send lag at p99, in µs.
const WANTED_LAG_US: f64 = 1000.0;

/// One run: responses per second, and the generator's CPU microseconds for each.
struct Run {
    rate: f64,
    cpu_us: f64,
}

/// `bench http-self [--write]`.
pub fn http_self(arguments: &[&str]) -> Result<(), String> {
    let write = match arguments {
        [] => false,
        ["--write"] => true,
        other => return Err(format!("unknown: {}", other.join(" "))),
    };
    let program = release::program(false)?.display().to_string();
    let (origin_port, redis_port) = (free_port()?, free_port()?);
    let origin = start(0, &program, &["origin", "--listen", &format!("127.0.0.1:{origin_port}")])?;
    wait_for_port(origin_port)?;
    let mut report = format!(
        "# The load generators\n\n`cargo xtask bench http-self`\n\n{}\n\n{RUNS} alternating runs of {SECONDS} s; \
         medians (lowest–highest). The server has core 0, the generator core 1.\n\n\
         | | req/s | CPU µs of the generator per request |\n|---|---|---|\n",
        machine()
    );
    let mut verdict = String::new();

    let url = format!("http://127.0.0.1:{origin_port}/fast");
    let duration = SECONDS.to_string();
    let wrk_duration = format!("{SECONDS}s");
    let ours: Vec<&str> = vec![&program, "bench", "http", "-c", "40", "-d", &duration, "--json", &url];
    let wrk: Vec<&str> = vec!["wrk", "-t", "1", "-c", "40", "-d", &wrk_duration, &url];
    let http = compare("HTTP, 40 connections", "wrk", &wrk, wrk_answers, &ours)?;
    http.rows(&mut report);
    http.verdict(&mut verdict, WANTED_HTTP);

    let lags = (0..RUNS).map(|_| open_loop(&program, &url)).collect::<Result<Vec<_>, _>>()?;
    drop(origin);

    let port = redis_port.to_string();
    let arguments = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    let _redis = start(0, "redis-server", &arguments)?;
    wait_for_port(redis_port)?;
    let server = format!("127.0.0.1:{port}");
    let data = "x".repeat(32);
    for (pipeline, requests) in REQUESTS {
        let (pipeline, count) = (pipeline.to_string(), requests.to_string());
        let mut ours: Vec<&str> = vec![&program, "bench", "redis", "--server", &server, "-c", "50", "-n", &count];
        ours.extend(["-P", &pipeline, "--key-max", "99999", "--json", "SET __key__ __data__"]);
        let mut theirs: Vec<&str> = vec!["redis-benchmark", "-p", &port, "-c", "50", "-n", &count, "-P", &pipeline];
        theirs.extend(["-r", "100000", "--csv", "SET", "key:__rand_int__", &data]);
        let title = format!("RESP SET, 50 connections, pipeline {pipeline}");
        let answers = move |_: &str| Some(requests as f64);
        let resp = compare(&title, "redis-benchmark", &theirs, answers, &ours)?;
        resp.rows(&mut report);
        resp.verdict(&mut verdict, WANTED_RESP);
    }
    let met = if median(&lags) <= WANTED_LAG_US { "met" } else { "**missed**" };
    let lag =
        format!("open loop at {RATE}/s: p99 from intent to send {} µs (≤ {WANTED_LAG_US}: {met})", spread(&lags, 0));
    let _ = write!(report, "\n{verdict}- {lag}\n");
    println!("\n{report}");
    if write {
        let path = root().join("docs/benchmarks/http-self.md");
        std::fs::write(&path, report).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// Alternating runs of two generators.
struct Compared {
    title: String,
    other: &'static str,
    theirs: Vec<Run>,
    ours: Vec<Run>,
}

fn compare(
    title: &str,
    other: &'static str,
    theirs: &[&str],
    answers: impl Fn(&str) -> Option<f64>,
    ours: &[&str],
) -> Result<Compared, String> {
    let mut compared = Compared { title: title.to_owned(), other, theirs: Vec::new(), ours: Vec::new() };
    for round in 0..RUNS {
        compared.theirs.push(measure(theirs, &answers)?);
        compared.ours.push(measure(ours, |text| number(text, "\"requests\": {\n    \"intended\"", "\"answered\": "))?);
        for (name, run) in [(other, &compared.theirs[round]), ("sluicegate bench", &compared.ours[round])] {
            println!("run {} {title}: {name:<18} {:>9.0} req/s {:>6.2} µs CPU/req", round + 1, run.rate, run.cpu_us);
        }
    }
    Ok(compared)
}

impl Compared {
    fn rows(&self, report: &mut String) {
        for (name, runs) in [(self.other, &self.theirs), ("sluicegate bench", &self.ours)] {
            let rates: Vec<f64> = runs.iter().map(|run| run.rate).collect();
            let cpu: Vec<f64> = runs.iter().map(|run| run.cpu_us).collect();
            let _ = writeln!(report, "| {}: {name} | {} | {} |", self.title, spread(&rates, 0), spread(&cpu, 2));
        }
    }

    fn verdict(&self, out: &mut String, wanted: f64) {
        let ratios: Vec<f64> =
            self.theirs.iter().zip(&self.ours).map(|(theirs, ours)| theirs.cpu_us / ours.cpu_us).collect();
        let met = if median(&ratios) >= wanted { "met" } else { "**missed**" };
        let _ = writeln!(
            out,
            "- {}: {} times the rate of {} at the same CPU (≥ {wanted}: {met})",
            self.title,
            spread(&ratios, 2),
            self.other
        );
    }
}

/// Runs a generator on core 1.
fn measure(words: &[&str], answers: impl Fn(&str) -> Option<f64>) -> Result<Run, String> {
    let before = children_s();
    let started = std::time::Instant::now();
    let text = on_core_1(words)?;
    let elapsed = started.elapsed().as_secs_f64();
    let cpu_s = children_s() - before;
    let count = answers(&text).filter(|count| *count > 0.0);
    let count = count.ok_or_else(|| format!("{}: no count of answers in:\n{text}", words.join(" ")))?;
    Ok(Run { rate: count / elapsed, cpu_us: cpu_s * 1e6 / count })
}

fn on_core_1(words: &[&str]) -> Result<String, String> {
    let mut command = Command::new("timeout");
    // redis-benchmark retries for ever if no server listens.
    command.args(["120", "taskset", "-c", "1"]).args(words).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| format!("{}: {error}", words[0]))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{} ended with {}", words.join(" "), output.status)),
    }
}

/// Returns the send lag at p99 of an open loop, in µs.
fn open_loop(program: &str, url: &str) -> Result<f64, String> {
    let (rate, duration) = (RATE.to_string(), SECONDS.to_string());
    let text = on_core_1(&[program, "bench", "http", "-c", "40", "-r", &rate, "-d", &duration, "--json", url])?;
    let lag = number(&text, "\"send_lag_us\"", "\"p99\": ").ok_or("no send lag in the report")?;
    println!("open loop: send lag {lag:.0} µs at p99");
    Ok(lag)
}

fn wrk_answers(text: &str) -> Option<f64> {
    text.lines().find_map(|line| line.trim().split_once(" requests in ")?.0.parse().ok())
}

/// Returns the CPU seconds of all children that have ended and been waited for.
fn children_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(13) + ticks(14)) / 100.0
}
