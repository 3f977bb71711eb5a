//! Measurements against real peers: CPU time and rates, alternating runs, medians and spread.
//!
//! The proxy under test runs alone on core 0; load generator, redis-server and the demo origin share core 1. If the
//! load generator is the limit, two fast proxies show the same rate, so the decisive result is the proxy's CPU time per
//! request, read from `/proc` before and after each run.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::child::{Guard, free_port, start, wait_for_port};
use crate::release;
use crate::run::{output, root};

const CONNECTIONS: u32 = 40;
const RUNS: usize = 5;
const SECONDS: u32 = 3;

/// `bench accounting [--runs N] [--seconds N] [--only WORD] [--write]`.
pub fn accounting(arguments: &[&str]) -> Result<(), String> {
    let options = Options::parse(arguments)?;
    let bench = Bench::new(&release::program(false)?)?;
    let mut setups = bench.setups()?;
    options.choose(&mut setups);
    let steal = stolen();
    let results = bench.alternate(&setups, 0..options.runs, options.seconds)?;
    let mut report = String::new();
    let _ = writeln!(report, "# Counting at the gate\n\n`cargo xtask bench accounting`\n\n{}\n", machine());
    let _ = writeln!(report, "{}", manner(options.runs, options.seconds, steal));
    report.push_str(&table(&setups, &results));
    let _ = writeln!(report, "\n{}", ratios(&setups, &results));
    if options.only.is_none() || options.only.as_deref() == Some("start") {
        let starts: Vec<Sample> = (0..options.runs).map(|_| bench.start_time()).collect::<Result<_, _>>()?;
        let _ = writeln!(report, "Start to first answer: {} ms.", spread(&each(&starts, |sample| sample.p50_ms), 1));
    }
    println!("\n{report}");
    if options.write {
        let path = root().join("docs/benchmarks/accounting.md");
        std::fs::write(&path, report).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

struct Options {
    runs: usize,
    seconds: u32,
    only: Option<String>,
    write: bool,
}

impl Options {
    fn parse(arguments: &[&str]) -> Result<Options, String> {
        let mut options = Options { runs: RUNS, seconds: SECONDS, only: None, write: false };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().map(|word| (*word).to_owned()).ok_or(format!("{word} wants a value"));
            match *word {
                "--runs" => options.runs = value()?.parse().map_err(|_| "--runs wants a number")?,
                "--seconds" => options.seconds = value()?.parse().map_err(|_| "--seconds wants a number")?,
                "--only" => options.only = Some(value()?),
                "--write" => options.write = true,
                other => return Err(format!("unknown: {other}")),
            }
        }
        Ok(options)
    }

    /// Keeps only the requested setups, and prints them.
    fn choose(&self, setups: &mut Vec<Setup>) {
        if let Some(only) = &self.only {
            setups.retain(|setup| setup.label().contains(only.as_str()));
        }
        println!("{}", machine());
        for setup in setups {
            println!("--- {}\n{}", setup.label(), setup.configuration.trim_end());
        }
    }
}

/// Returns the description of the measurement, for a report.
pub(crate) fn manner(runs: usize, seconds: u32, steal: u64) -> String {
    format!(
        "{runs} alternating runs of {seconds} s, {CONNECTIONS} keep-alive connections by wrk; medians (lowest–highest). The \
         proxy has one thread alone on core 0; wrk, the Redis servers and the origin share core 1. Steal during \
         the runs: {:.1} s.\n",
        (stolen() - steal) as f64 / 100.0
    )
}

/// Returns a row for each setup.
pub(crate) fn table(setups: &[Setup], results: &[Vec<Sample>]) -> String {
    let mut text = String::from(
        "| | req/s | p50 ms | p99 ms | CPU µs per request | core 1 busy % | errors |\n|---|---|---|---|---|---|---|\n",
    );
    for (setup, samples) in setups.iter().zip(results) {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} |",
            setup.label(),
            spread(&each(samples, |sample| sample.rate), 0),
            spread(&each(samples, |sample| sample.p50_ms), 2),
            spread(&each(samples, |sample| sample.p99_ms), 2),
            spread(&each(samples, |sample| sample.cpu_us), 2),
            spread(&each(samples, |sample| sample.others_busy), 0),
            samples.iter().map(|sample| sample.errors).sum::<u64>()
        );
    }
    text
}

/// The result of one run.
pub(crate) struct Sample {
    pub(crate) rate: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) cpu_us: f64,
    /// The percentage of its time for which the core of the load generator and the servers was busy.
    pub(crate) others_busy: f64,
    pub(crate) errors: u64,
}

/// A program and the configuration that it is measured with.
pub(crate) struct Setup {
    pub(crate) program: &'static str,
    pub(crate) name: &'static str,
    /// The path that is requested.
    pub(crate) path: &'static str,
    pub(crate) configuration: String,
}

impl Setup {
    pub(crate) fn label(&self) -> String {
        format!("{}: {}", self.program, self.name)
    }
}

/// Peers that run for the whole benchmark.
pub(crate) struct Bench {
    /// The program under test.
    program: PathBuf,
    directory: PathBuf,
    redis: Guard,
    pub(crate) redis_port: u16,
    _origin: Guard,
    origin_port: u16,
}

impl Bench {
    pub(crate) fn new(program: &Path) -> Result<Bench, String> {
        let directory = std::env::temp_dir().join(format!("sluicegate-bench-{}", std::process::id()));
        std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
        let (redis_port, origin_port) = (free_port()?, free_port()?);
        let port = redis_port.to_string();
        let arguments = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let redis = start(1, "redis-server", &arguments)?;
        let origin =
            start(1, &program.display().to_string(), &["origin", "--listen", &format!("127.0.0.1:{origin_port}")])?;
        wait_for_port(redis_port)?;
        wait_for_port(origin_port)?;
        Ok(Bench { program: program.to_owned(), directory, redis, redis_port, _origin: origin, origin_port })
    }

    /// Returns the methods of the post *HAProxy, Lua & Redis: Connection pool*, and those with the embedded store.
    pub(crate) fn setups(&self) -> Result<Vec<Setup>, String> {
        let mut setups = Vec::new();
        for program in ["haproxy", "sluicegate"] {
            setups.push(self.setup(program, "redirect", "/", "", "http-request redirect location /ok")?);
            setups.push(self.setup(program, "proxied", "/fast", "", &self.backend())?);
            for (name, script) in [
                ("new connection per request", "redis_lua_new.lua"),
                ("pool and redis-lua", "redis_lua_pool.lua"),
                ("pool, own protocol", "handwritten.lua"),
            ] {
                setups.push(self.lua(program, name, script)?);
            }
        }
        setups.push(self.lua("sluicegate", "Lua, embedded store", "embedded.lua")?);
        let rules = "http-request store-call main INCRBY %[src] 1\n    http-request redirect location /ok";
        setups.push(self.setup("sluicegate", "store-call, embedded store", "/", "", rules)?);
        Ok(setups)
    }

    pub(crate) fn backend(&self) -> String {
        format!("server origin 127.0.0.1:{}", self.origin_port)
    }

    pub(crate) fn lua(&self, program: &'static str, name: &'static str, script: &str) -> Result<Setup, String> {
        let path = root().join("examples/accounting").join(script);
        let global = format!(
            "lua-prepend-path /usr/share/lua/5.1/?.lua\n    lua-prepend-path {}/?.lua\n    lua-load {}\n",
            root().join("examples/accounting").display(),
            path.display()
        );
        let rules = "http-request lua.accounting\n    http-request redirect location /ok";
        self.setup(program, name, "/", &global, rules)
    }

    pub(crate) fn setup(
        &self,
        program: &'static str,
        name: &'static str,
        path: &'static str,
        global: &str,
        rules: &str,
    ) -> Result<Setup, String> {
        let store = if program == "sluicegate" { "\nstore main\n" } else { "" };
        let configuration = format!(
            "global\n    nbthread 1\n    setenv REDIS_PORT {redis}\n    setenv REDIS_HOST 127.0.0.1\n    {global}\n\
             defaults\n    mode http\n    timeout client 10m\n    timeout server 1m\n    timeout connect 1s\n{store}\n\
             listen bench\n    bind 127.0.0.1:PORT\n    {rules}\n",
            redis = self.redis_port
        );
        Ok(Setup { program, name, path, configuration })
    }

    /// Returns the file of a setup that listens on `port`.
    pub(crate) fn write(&self, setup: &Setup, port: u16) -> Result<PathBuf, String> {
        let file = self.directory.join("bench.cfg");
        std::fs::write(&file, setup.configuration.replace("PORT\n", &format!("{port}\n")))
            .map_err(|error| error.to_string())?;
        Ok(file)
    }

    /// Starts a program on core 0.
    pub(crate) fn start_proxy(&self, program: &str, file: &Path) -> Result<Guard, String> {
        let file = file.display().to_string();
        if program == "haproxy" {
            start(0, "/usr/sbin/haproxy", &["-db", "-q", "-f", &file])
        } else {
            start(0, &self.program.display().to_string(), &["run", &file])
        }
    }

    /// Measures the setups in turn, repeatedly.
    pub(crate) fn alternate(
        &self,
        setups: &[Setup],
        rounds: impl Iterator<Item = usize>,
        seconds: u32,
    ) -> Result<Vec<Vec<Sample>>, String> {
        let mut results: Vec<Vec<Sample>> = setups.iter().map(|_| Vec::new()).collect();
        for round in rounds {
            for (setup, samples) in setups.iter().zip(&mut results) {
                let sample = self.measure(setup, seconds)?;
                println!(
                    "run {} {:<40} {:>8.0} req/s  p50 {:>7.2} ms  p99 {:>8.2} ms  {:>6.2} µs CPU/req  errors {}",
                    round + 1,
                    setup.label(),
                    sample.rate,
                    sample.p50_ms,
                    sample.p99_ms,
                    sample.cpu_us,
                    sample.errors
                );
                samples.push(sample);
            }
        }
        Ok(results)
    }

    fn measure(&self, setup: &Setup, seconds: u32) -> Result<Sample, String> {
        let port = free_port()?;
        let proxy = self.start_proxy(setup.program, &self.write(setup, port)?)?;
        wait_for_port(port)?;
        let url = format!("http://127.0.0.1:{port}{}", setup.path);
        wrk(&url, 1)?;
        busy(&proxy, &url, seconds)
    }

    /// Measures the time from exec to the first response.
    fn start_time(&self) -> Result<Sample, String> {
        let setup = self.lua("sluicegate", "start", "embedded.lua")?;
        let port = free_port()?;
        let file = self.write(&setup, port)?;
        let started = Instant::now();
        let _proxy = self.start_proxy("sluicegate", &file)?;
        let mut stream = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => break stream,
                Err(_) if started.elapsed() < Duration::from_secs(10) => std::thread::yield_now(),
                Err(error) => return Err(error.to_string()),
            }
        };
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").map_err(|error| error.to_string())?;
        let mut first = [0; 12];
        stream.read_exact(&mut first).map_err(|error| error.to_string())?;
        let p50_ms = started.elapsed().as_secs_f64() * 1000.0;
        Ok(Sample { rate: 0.0, p50_ms, p99_ms: 0.0, cpu_us: 0.0, others_busy: 0.0, errors: 0 })
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.redis.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

pub(crate) fn wrk(url: &str, seconds: u32) -> Result<Sample, String> {
    let duration = format!("{seconds}s");
    let connections = CONNECTIONS.to_string();
    let arguments = ["-c", "1", "wrk", "-t", "1", "-c", &connections, "-d", &duration, "--latency", url];
    let text = output("taskset", &arguments).ok_or("wrk failed")?;
    let mut sample = Sample { rate: 0.0, p50_ms: 0.0, p99_ms: 0.0, cpu_us: 0.0, others_busy: 0.0, errors: 0 };
    for line in BufReader::new(text.as_bytes()).lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["50%", time] => sample.p50_ms = milliseconds(time),
            ["99%", time] => sample.p99_ms = milliseconds(time),
            ["Requests/sec:", rate] => sample.rate = rate.parse().unwrap_or(0.0),
            ["Socket", "errors:", ..] => {
                sample.errors +=
                    words.iter().filter_map(|word| word.trim_end_matches(',').parse::<u64>().ok()).sum::<u64>()
            }
            ["Non-2xx", .., count] => sample.errors += count.parse::<u64>().unwrap_or(1),
            _ => {}
        }
    }
    Ok(sample)
}

/// Runs wrk, and returns its results and the proxy's CPU time.
pub(crate) fn busy(proxy: &Guard, url: &str, seconds: u32) -> Result<Sample, String> {
    let before = cpu_time_us(proxy.id());
    let (rested, passed) = rest_of_core_1();
    let mut sample = wrk(url, seconds)?;
    let (rested_then, passed_then) = rest_of_core_1();
    sample.others_busy = 100.0 * (1.0 - (rested_then - rested) / (passed_then - passed).max(1.0));
    let used = cpu_time_us(proxy.id()) - before;
    sample.cpu_us = used / (sample.rate * f64::from(seconds)).max(1.0);
    Ok(sample)
}

fn milliseconds(text: &str) -> f64 {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let value: f64 = digits.parse().unwrap_or(0.0);
    match &text[digits.len()..] {
        "us" => value / 1000.0,
        "s" => value * 1000.0,
        "m" => value * 60_000.0,
        _ => value,
    }
}

/// Returns the CPU time of a process from its scheduler statistics, summed over threads, in µs.
pub(crate) fn cpu_time_us(pid: u32) -> f64 {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return 0.0 };
    tasks
        .filter_map(Result::ok)
        .filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|text| text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok()))
        .sum::<f64>()
        / 1000.0
}

/// Returns the resident memory of a process.
pub(crate) fn resident_bytes(pid: u32) -> Result<f64, String> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let kib = text.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
    kib.map(|kib: f64| kib * 1024.0).ok_or(format!("{path} has no VmRSS"))
}

/// Binds the calling thread to a core.
pub(crate) fn on_core(core: usize) {
    // SAFETY: an all-zero set is a valid one, the set outlives both calls, and 0 means the calling thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// Returns the hundredths of a second that the hypervisor gave to other guests.
pub(crate) fn stolen() -> u64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    text.lines().next().and_then(|line| line.split_whitespace().nth(8)).and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Returns the idle time of core 1, and its total time since the machine's start, both in ticks.
fn rest_of_core_1() -> (f64, f64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("cpu1 ")).unwrap_or_default();
    let ticks: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    (ticks.iter().skip(3).take(2).sum(), ticks.iter().take(8).sum())
}

pub(crate) fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name\t: ")).unwrap_or("unknown").to_owned();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let first = |program: &str, argument: &str| {
        output(program, &[argument]).and_then(|text| text.lines().next().map(str::to_owned)).unwrap_or_default()
    };
    format!(
        "{model}, {cores} cores, Linux {}\n{}; {}; {}",
        first("uname", "-r"),
        first("/usr/sbin/haproxy", "-v"),
        first("redis-server", "--version"),
        first("rustc", "--version")
    )
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the median with the lowest and the highest value.
pub(crate) fn spread(values: &[f64], digits: usize) -> String {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    format!("{:.digits$} ({low:.digits$}–{high:.digits$})", median(values))
}

/// Returns one figure of all runs.
pub(crate) fn each(samples: &[Sample], figure: impl Fn(&Sample) -> f64) -> Vec<f64> {
    samples.iter().map(figure).collect()
}

/// A table of goals.
pub(crate) struct Goals(String);

impl Goals {
    pub(crate) fn new() -> Goals {
        Goals(String::from("| goal | wanted | measured | |\n|---|---|---|---|\n"))
    }

    pub(crate) fn row(&mut self, goal: &str, wanted: &str, value: f64, met: bool) {
        let _ = writeln!(self.0, "| {goal} | {wanted} | {value:.2} | {} |", if met { "met" } else { "**missed**" });
    }

    pub(crate) fn into_text(self) -> String {
        self.0
    }
}

/// Returns the samples of a setup, if it was measured.
pub(crate) fn find<'s>(
    setups: &[Setup],
    results: &'s [Vec<Sample>],
    program: &str,
    name: &str,
) -> Option<&'s Vec<Sample>> {
    setups.iter().position(|setup| setup.program == program && setup.name == name).map(|index| &results[index])
}

/// Returns the goals, each as measured / wanted.
fn ratios(setups: &[Setup], results: &[Vec<Sample>]) -> String {
    let find = |program: &str, name: &str| find(setups, results, program, name);
    let mut goals = Goals::new();
    let mut row = |goal: &str, wanted: &str, value: f64, met: bool| goals.row(goal, wanted, value, met);
    let rate = |samples: &Vec<Sample>| median(&each(samples, |sample| sample.rate));
    let cpu = |samples: &Vec<Sample>| median(&each(samples, |sample| sample.cpu_us));
    let p99 = |samples: &Vec<Sample>| median(&each(samples, |sample| sample.p99_ms));
    if let (Some(plain), Some(embedded)) = (find("sluicegate", "redirect"), find("sluicegate", "Lua, embedded store")) {
        let ratio = rate(embedded) / rate(plain);
        row("rate: Lua in the embedded store / no Lua", "≥ 0.85", ratio, ratio >= 0.85);
        let ratio = cpu(plain) / cpu(embedded);
        row("CPU: no Lua / Lua in the embedded store", "≥ 0.85", ratio, ratio >= 0.85);
        let ratio = p99(embedded) / p99(plain);
        row("p99: Lua in the embedded store / no Lua", "≤ 2", ratio, ratio <= 2.0);
    }
    if let (Some(plain), Some(call)) =
        (find("sluicegate", "redirect"), find("sluicegate", "store-call, embedded store"))
    {
        let ratio = rate(call) / rate(plain);
        row("rate: store-call / no call", "≥ 0.93", ratio, ratio >= 0.93);
        let ratio = cpu(plain) / cpu(call);
        row("CPU: no call / store-call", "≥ 0.93", ratio, ratio >= 0.93);
    }
    if let (Some(pool), Some(embedded)) =
        (find("haproxy", "pool and redis-lua"), find("sluicegate", "Lua, embedded store"))
    {
        let ratio = rate(embedded) / rate(pool);
        row("rate: Lua in the embedded store / haproxy with its pool", "≥ 3", ratio, ratio >= 3.0);
    }
    for name in ["redirect", "proxied"] {
        if let (Some(theirs), Some(ours)) = (find("haproxy", name), find("sluicegate", name)) {
            let ratio = cpu(ours) / cpu(theirs);
            row(&format!("CPU per request, {name}: ours / haproxy's"), "≤ 0.8", ratio, ratio <= 0.8);
        }
    }
    goals.into_text()
}
