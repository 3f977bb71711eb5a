//! The load generators compared with widely used ones: CPU time of the generator per response.
//!
//! The server runs alone on core 0 and the generator on core 1, in alternating runs of the same length. If the server
//! is the limit, two good generators reach the same rate, so the rate is divided by the CPU time of the generator,
//! which is read from the scheduler's account of ended children (10 ms steps).

use std::fmt::Write as _;
use std::process::{Command, Stdio};

use crate::bench::{median, spread};
use crate::child::{Guard, free_port, start, wait_for_port};
use crate::peers::in_path;
use crate::report::{Measure, Options, Part, Report, number};

pub(crate) const HTTP_SELF: Report = Report { name: "http-self", title: "The load generators", parts: PARTS };

const PARTS: &[Measure] = &[("http", http), ("resp", resp), ("keys", keys), ("lag", lag), ("crowd", crowd)];

const SECONDS: u32 = 3;
/// The pipeline and the number of requests of a second: redis-benchmark has no option for a duration.
const REQUESTS: [(u32, u64); 2] = [(1, 100_000), (16, 1_000_000)];
/// The clients of RESP.
const CLIENTS: u64 = 50;
/// The arrivals per second of the open loop.
const RATE: u32 = 20_000;

/// The required ratio of our rate per CPU to the other generator's.
const WANTED_HTTP: f64 = 1.0;
const WANTED_RESP: f64 = 1.2;
/// The maximum send lag at p99, in µs.
const WANTED_LAG_US: f64 = 200.0;

/// Ten thousand connections, reduced so that a limit of 10,000 descriptors is enough; and few.
const CROWD: [usize; 2] = [9_800, 100];
/// The maximum memory of the generator for one of them, in KiB.
const WANTED_KIB: f64 = 3.0;

/// The generator of RESP that is compared if it is installed.
pub(crate) const MEMTIER: &str = "memtier_benchmark";

/// One run: responses per second, and the generator's CPU microseconds for each.
struct Run {
    rate: f64,
    cpu_us: f64,
}

/// A generator with its command line, and how its report tells the number of responses.
struct Generator {
    name: &'static str,
    words: Vec<String>,
    answers: Answers,
}

/// Where the number of responses is from.
enum Answers {
    /// wrk's report.
    Wrk,
    /// Our report.
    Ours,
    /// The command line.
    Stated(u64),
}

impl Answers {
    fn count(&self, text: &str) -> Option<f64> {
        match self {
            Answers::Wrk => text.lines().find_map(|line| line.trim().split_once(" requests in ")?.0.parse().ok()),
            Answers::Ours => number(text, "\"requests\": {\n    \"intended\"", "\"answered\": "),
            Answers::Stated(count) => Some(*count as f64),
        }
    }
}

/// `bench http-self [PART…] [--runs N] [--profile NAME | --program PATH] [--write]`.
pub fn http_self(arguments: &[&str]) -> Result<(), String> {
    HTTP_SELF.measure(arguments)
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn ours(options: &Options, text: &str, command: &[&str]) -> Generator {
    let mut all = vec![options.program.display().to_string()];
    all.extend(words(text));
    all.extend(command.iter().map(|word| (*word).to_owned()));
    Generator { name: "sluicegate bench", words: all, answers: Answers::Ours }
}

/// `http`: HTTP/1.1 beside wrk.
fn http(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("http", "HTTP");
    let (_origin, url) = origin(options)?;
    let seconds = options.seconds(SECONDS);
    let wrk = format!("wrk -t 1 -c 40 -d {seconds}s {url}");
    let generators = [
        Generator { name: "wrk", words: words(&wrk), answers: Answers::Wrk },
        ours(options, &format!("bench http -c 40 -d {seconds} --json {url}"), &[]),
    ];
    let _ = writeln!(part.text, "40 connections, {seconds} s a run.\n");
    compare(&mut part, options, "GET", &generators, WANTED_HTTP)?;
    Ok(part)
}

/// `resp`: RESP beside redis-benchmark and memtier_benchmark.
fn resp(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("resp", "RESP");
    sets(&mut part, options, 100_000)?;
    Ok(part)
}

/// `keys`: the same over ten million keys.
fn keys(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("keys", "RESP over ten million keys");
    sets(&mut part, options, options.keys.unwrap_or(10_000_000))?;
    Ok(part)
}

/// SETs over a number of keys, with and without a pipeline.
fn sets(part: &mut Part, options: &Options, keys: usize) -> Result<(), String> {
    let port = free_port()?.to_string();
    let arguments = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    let _redis = start(0, "redis-server", &arguments)?;
    wait_for_port(port.parse().map_err(|_| "no port")?)?;
    let has_memtier = in_path(MEMTIER);
    let without = if has_memtier { "" } else { " memtier_benchmark is not installed here." };
    let _ = writeln!(part.text, "SET of 32 bytes to redis-server, {CLIENTS} connections, {keys} keys.{without}\n");
    let data = "x".repeat(32);
    for (pipeline, requests) in REQUESTS {
        let each = requests * u64::from(options.seconds(SECONDS)) / CLIENTS;
        let count = each * CLIENTS;
        let mut generators = Vec::new();
        let text = format!(
            "redis-benchmark -p {port} -c {CLIENTS} -n {count} -P {pipeline} -r {keys} --csv SET key:__rand_int__ {data}"
        );
        generators.push(Generator { name: "redis-benchmark", words: words(&text), answers: Answers::Stated(count) });
        if has_memtier {
            let text = format!(
                "{MEMTIER} -p {port} -t 1 -c {CLIENTS} -n {each} --pipeline {pipeline} --ratio 1:0 -d 32 --key-maximum \
                 {keys} --hide-histogram"
            );
            generators.push(Generator { name: MEMTIER, words: words(&text), answers: Answers::Stated(count) });
        }
        let text = format!(
            "bench redis --server 127.0.0.1:{port} -c {CLIENTS} -n {count} -P {pipeline} --key-max {} --json",
            keys - 1
        );
        generators.push(ours(options, &text, &["SET __key__ __data__"]));
        compare(part, options, &format!("SET, pipeline {pipeline}"), &generators, WANTED_RESP)?;
    }
    Ok(())
}

/// `lag`: the time from the moment at which a request of an open loop is due to its sending.
fn lag(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("lag", "Moments of sending");
    let (_origin, url) = origin(options)?;
    let seconds = options.seconds(SECONDS);
    let text = format!("bench http -c 40 -r {RATE} -d {seconds} --json {url}");
    let generator = ours(options, &text, &[]);
    let mut lags = Vec::new();
    for round in options.rounds() {
        let text = on_core_1(&generator.words)?;
        let lag = number(&text, "\"send_lag_us\"", "\"p99\": ").ok_or("no send lag in the report")?;
        println!("run {} open loop: send lag {lag:.0} µs at p99", round + 1);
        lags.push(lag);
    }
    let _ = writeln!(
        part.text,
        "{RATE} requests a second are due on 40 connections, {seconds} s a run. From the moment at which a request is due \
         to its sending at p99, µs: {}.",
        spread(&lags, 0)
    );
    part.goal("send lag at p99, µs", &format!("≤ {WANTED_LAG_US}"), median(&lags), |lag| lag <= WANTED_LAG_US);
    part.keep("send lag at p99, µs", &["sluicegate bench"], ["p99"].into_iter(), &[vec![lags]]);
    Ok(part)
}

/// `crowd`: the memory of very many connections.
fn crowd(options: &Options) -> Result<Part, String> {
    let mut part = Part::new("crowd", "Memory of connections");
    let (_origin, url) = origin(options)?;
    let seconds = options.seconds(SECONDS);
    let most = |connections: usize| {
        let text = format!("bench http -c {connections} -d {seconds} --json {url}");
        peak_kib(&ours(options, &text, &[]).words)
    };
    let mut each = Vec::new();
    for round in options.rounds() {
        let [many, few] = CROWD;
        let kib = (most(many)? - most(few)?) / (many - few) as f64;
        println!("run {} {kib:.2} KiB a connection", round + 1);
        each.push(kib);
    }
    let _ = writeln!(
        part.text,
        "{} connections from one process, {seconds} s a run; the peak of its resident memory over that with {}, KiB for each \
         connection more: {}.",
        CROWD[0],
        CROWD[1],
        spread(&each, 2)
    );
    part.goal("KiB of the generator for a connection", &format!("≤ {WANTED_KIB}"), median(&each), |kib| {
        kib <= WANTED_KIB
    });
    part.keep("KiB a connection", &["sluicegate bench"], ["peak"].into_iter(), &[vec![each]]);
    Ok(part)
}

/// Runs a generator on core 1. Returns the peak of its resident memory in KiB.
fn peak_kib(words: &[String]) -> Result<f64, String> {
    let mut command = Command::new("taskset");
    command.args(["-c", "1"]).args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = Guard::new(command.spawn().map_err(|error| format!("{}: {error}", words[0]))?);
    let path = format!("/proc/{}/status", child.id());
    let mut peak = 0.0_f64;
    while !child.has_ended() {
        // The kernel keeps the peak; at the end there is none.
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        peak = peak.max(kib.unwrap_or(0.0));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    match child.wait()?.success() {
        true => Ok(peak),
        false => Err(format!("{} failed", words.join(" "))),
    }
}

/// Starts the origin; returns it with a URL.
fn origin(options: &Options) -> Result<(Guard, String), String> {
    let port = free_port()?;
    let listen = format!("127.0.0.1:{port}");
    let origin = start(0, &options.program.display().to_string(), &["origin", "--listen", &listen])?;
    wait_for_port(port)?;
    Ok((origin, format!("http://{listen}/fast")))
}

/// Alternating runs of generators, of which the last is ours: adds a table, and a goal for each other one.
fn compare(
    part: &mut Part,
    options: &Options,
    title: &str,
    generators: &[Generator],
    wanted: f64,
) -> Result<(), String> {
    let mut runs: Vec<Vec<Run>> = generators.iter().map(|_| Vec::new()).collect();
    for round in options.rounds() {
        for (generator, runs) in generators.iter().zip(&mut runs) {
            let run = measure(generator)?;
            println!(
                "run {} {title}: {:<18} {:>9.0} req/s {:>6.2} µs CPU/req",
                round + 1,
                generator.name,
                run.rate,
                run.cpu_us
            );
            runs.push(run);
        }
    }
    let figure = |runs: &[Run], figure: fn(&Run) -> f64| runs.iter().map(figure).collect::<Vec<f64>>();
    let _ = writeln!(part.text, "| {title} | req/s | CPU µs of the generator per request |\n|---|---|---|");
    let mut cpu = Vec::new();
    for (generator, runs) in generators.iter().zip(&runs) {
        let of_run = figure(runs, |run| run.cpu_us);
        let rates = spread(&figure(runs, |run| run.rate), 0);
        let _ = writeln!(part.text, "| {} | {rates} | {} |", generator.name, spread(&of_run, 3));
        cpu.push(of_run);
    }
    part.text.push('\n');
    let names: Vec<&str> = generators.iter().map(|generator| generator.name).collect();
    if let [others @ .., own] = &cpu[..] {
        for (name, theirs) in names.iter().zip(others) {
            let ratios: Vec<f64> = theirs.iter().zip(own).map(|(theirs, own)| theirs / own).collect();
            let goal = format!("{title}: rate at the same CPU / {name}'s");
            part.goal(&goal, &format!("≥ {wanted}"), median(&ratios), |ratio| ratio >= wanted);
        }
    }
    part.keep("CPU µs of the generator per request", &names, [title].into_iter(), &[cpu]);
    Ok(())
}

/// Runs a generator on core 1.
fn measure(generator: &Generator) -> Result<Run, String> {
    let before = children_s();
    let started = std::time::Instant::now();
    let text = on_core_1(&generator.words)?;
    let elapsed = started.elapsed().as_secs_f64();
    let cpu_s = children_s() - before;
    let count = generator.answers.count(&text).filter(|count| *count > 0.0);
    let count = count.ok_or_else(|| format!("{}: no count of answers in:\n{text}", generator.words.join(" ")))?;
    Ok(Run { rate: count / elapsed, cpu_us: cpu_s * 1e6 / count })
}

fn on_core_1(words: &[String]) -> Result<String, String> {
    let mut command = Command::new("timeout");
    // redis-benchmark retries for ever if no server listens.
    command.args(["120", "taskset", "-c", "1"]).args(words).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().map_err(|error| format!("{}: {error}", words[0]))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{} ended with {}", words.join(" "), output.status)),
    }
}

/// Returns the CPU seconds of all children that have ended and been waited for.
fn children_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(13) + ticks(14)) / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_counted() {
        assert_eq!(Answers::Wrk.count("Running 3s test\n  459738 requests in 3.00s, 60 MB read\n"), Some(459_738.0));
        let ours = "{\n  \"requests\": {\n    \"intended\": null,\n    \"answered\": 42,\n";
        assert_eq!((Answers::Ours.count(ours), Answers::Stated(7).count("")), (Some(42.0), Some(7.0)));
        assert_eq!((Answers::Wrk.count("no"), Answers::Ours.count("no")), (None, None));
    }
}
