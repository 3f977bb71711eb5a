//! Comparison of the CPU time of two builds of Sluicegate.
//!
//! Both do the same work in alternating runs, each in a new process, since the memory layout differs from process to
//! process. A run yields the CPU time per request; the two runs of a round yield a ratio, which cancels most of the
//! machine's other activity. A load is worse only if the 95 % interval of the median ratio is above 1 and the median
//! above [`WORSE`].

use std::fmt::Write as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bench::{cpu_time_us, machine, on_core, stolen, wrk};
use crate::child::{Guard, free_port, start, wait_for_port};
use crate::run::{PACKAGED, built, root};

const RUNS: usize = 15;
const SECONDS: u32 = 2;
/// A median ratio up to this value does not count as worse.
const WORSE: f64 = 1.02;
/// The number of commands of one run over RESP, in pipelines of 16.
const COMMANDS: u32 = 1_000_000;

/// The work of the programs.
const LOADS: [(&str, Work); 7] = [
    ("redirect", Work::Http(0)),
    ("proxied, with rules and a log line", Work::Http(1)),
    ("Lua, embedded store", Work::Http(2)),
    ("store-call, embedded store", Work::Http(3)),
    ("SET of 32 bytes", Work::Resp(&["-d", "32", "SET", "key:__rand_int__", "__data__"])),
    ("GET of 32 bytes", Work::Resp(&["GET", "key:__rand_int__"])),
    ("EVAL of INCR", Work::Resp(&["EVAL", "return redis.call('INCR', KEYS[1])", "1", "key:{__rand_int__}"])),
];

#[derive(Clone, Copy)]
enum Work {
    /// Requests to one of the sections of the configuration.
    Http(usize),
    /// redis-benchmark with these arguments.
    Resp(&'static [&'static str]),
}

/// `bench compare BASE [PROGRAM] [--runs N] [--only WORD]`: checks whether `PROGRAM`, by default that of the packaged
/// profile, is worse than `BASE`.
///
/// # Errors
/// If a load is worse.
pub fn compare(words: &[&str]) -> Result<(), String> {
    let options = Options::parse(words)?;
    println!("{}", machine());
    let (place, steal) = (Place::new(&options.program)?, stolen());
    let mut report =
        String::from("| load | base, µs | now, µs | ratio | 95 % interval | |\n|---|---|---|---|---|---|\n");
    let mut worse = Vec::new();
    for (name, work) in LOADS.iter().filter(|(name, _)| options.only.as_ref().is_none_or(|only| name.contains(only))) {
        let mut rounds = Vec::new();
        for round in 0..options.runs {
            let measure = |program: &Path| place.measure(program, *work);
            // The first program of a round must not have an advantage over the second.
            let (base, now) = if round % 2 == 0 {
                let base = measure(&options.base)?;
                (base, measure(&options.program)?)
            } else {
                let now = measure(&options.program)?;
                (measure(&options.base)?, now)
            };
            println!("run {} {name:<36} {base:>8.3} µs {now:>8.3} µs  {:.3}", round + 1, now / base);
            rounds.push((base, now));
        }
        let middle = |values: Vec<f64>| interval(values)[1];
        let [low, ratio, high] = interval(rounds.iter().map(|(base, now)| now / base).collect());
        let is_worse = low > 1.0 && ratio > WORSE;
        let verdict = if is_worse { "**worse**" } else { "" };
        let _ = writeln!(
            report,
            "| {name} | {:.3} | {:.3} | {ratio:.3} | {low:.3}–{high:.3} | {verdict} |",
            middle(rounds.iter().map(|(base, _)| *base).collect()),
            middle(rounds.iter().map(|(_, now)| *now).collect()),
        );
        if is_worse {
            worse.push(format!("{name} by {:.1} %", (ratio - 1.0) * 100.0));
        }
    }
    println!("\n{} alternating runs; steal {:.1} s\n\n{report}", options.runs, (stolen() - steal) as f64 / 100.0);
    if worse.is_empty() { Ok(()) } else { Err(format!("more CPU time than the base: {}", worse.join(", "))) }
}

struct Options {
    base: PathBuf,
    program: PathBuf,
    runs: usize,
    only: Option<String>,
}

impl Options {
    fn parse(words: &[&str]) -> Result<Options, String> {
        let (mut programs, mut runs, mut only) = (Vec::new(), RUNS, None);
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} wants a value"));
            match *word {
                "--runs" => {
                    let number = value()?.parse().ok().filter(|runs| *runs >= FEWEST);
                    runs = number.ok_or(format!("--runs wants a number from {FEWEST} on"))?;
                }
                "--only" => only = Some((*value()?).to_owned()),
                path if !path.starts_with('-') => programs.push(PathBuf::from(path)),
                other => return Err(format!("unknown: {other}")),
            }
        }
        let mut programs = programs.into_iter();
        let base = programs.next().ok_or("the program to compare with is missing")?;
        let program = programs.next().unwrap_or_else(|| built(PACKAGED).join("sluicegate"));
        if let Some(more) = programs.next() {
            return Err(format!("unknown: {}", more.display()));
        }
        Ok(Options { base, program, runs, only })
    }
}

/// The minimum number of runs for a 95 % interval.
const FEWEST: usize = 6;

/// Returns the median of values with its 95 % interval by ranks, which assumes nothing of their distribution: the k-th
/// from below and the k-th from above with the greatest k such that fewer than k of n values lie below the true median
/// with a chance of at most 2.5 %.
fn interval(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let count = values.len();
    let mut chance = 0.5_f64.powi(count as i32);
    let (mut below, mut rank) = (chance, 0);
    while below <= 0.025 && rank < count / 2 {
        rank += 1;
        chance *= (count - rank + 1) as f64 / rank as f64;
        below += chance;
    }
    let lowest = rank.saturating_sub(1);
    let middle = (values[(count - 1) / 2] + values[count / 2]) / 2.0;
    [values[lowest], middle, values[count - 1 - lowest]]
}

/// The configuration that both programs run, and the servers behind it.
struct Place {
    folder: PathBuf,
    _origin: Guard,
    origin_port: u16,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Place {
    /// Starts the origin by `program`.
    fn new(program: &Path) -> Result<Place, String> {
        let folder = std::env::temp_dir().join(format!("sluicegate-compare-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let log = UnixDatagram::bind(folder.join("log")).map_err(|error| error.to_string())?;
        // The thread reads until the process ends.
        std::thread::spawn(move || {
            on_core(1);
            let mut line = [0; 4096];
            while log.recv(&mut line).is_ok() {}
        });
        let port = free_port()?;
        let origin = start(1, &program.display().to_string(), &["origin", "--listen", &format!("127.0.0.1:{port}")])?;
        wait_for_port(port)?;
        Ok(Place { folder, _origin: origin, origin_port: port })
    }

    /// Writes the file and returns the ports of its sections and of its store.
    fn file(&self) -> Result<(PathBuf, [u16; 5]), String> {
        let mut ports = [0; 5];
        for port in &mut ports {
            *port = free_port()?;
        }
        let [redirect, proxied, lua, call, store] = ports;
        let text = format!(
            "global\n    nbthread 1\n    lua-load {script}\n\
             defaults\n    mode http\n    timeout client 10m\n    timeout server 1m\n    timeout connect 1s\n\
             store main\n    bind 127.0.0.1:{store}\n\
             listen redirect\n    bind 127.0.0.1:{redirect}\n    http-request redirect location /ok\n\
             listen proxied\n    bind 127.0.0.1:{proxied}\n    log {log} format rfc3164 local0\n    option httplog\n    \
             option forwardfor\n    http-request set-header X-Client %[src]\n    http-request deny if {{ path_beg /admin }}\n    \
             http-response set-header X-Served yes\n    server origin 127.0.0.1:{origin}\n\
             listen lua\n    bind 127.0.0.1:{lua}\n    http-request lua.accounting\n    http-request redirect location /ok\n\
             listen call\n    bind 127.0.0.1:{call}\n    http-request store-call main INCRBY %[src] 1\n    \
             http-request redirect location /ok\n",
            script = root().join("examples/accounting/embedded.lua").display(),
            log = self.folder.join("log").display(),
            origin = self.origin_port,
        );
        let file = self.folder.join("compare.cfg");
        std::fs::write(&file, text).map_err(|error| error.to_string())?;
        Ok((file, ports))
    }

    /// Returns the CPU time per request of one run, in µs.
    fn measure(&self, program: &Path, work: Work) -> Result<f64, String> {
        let (file, ports) = self.file()?;
        let running = start(0, &program.display().to_string(), &["run", &file.display().to_string()])?;
        ports.iter().try_for_each(|port| wait_for_port(*port))?;
        let spent = |before: f64| cpu_time_us(running.id()) - before;
        match work {
            Work::Http(section) => {
                let url = format!("http://127.0.0.1:{}/fast", ports[section]);
                wrk(&url, 1)?;
                let before = cpu_time_us(running.id());
                let sample = wrk(&url, SECONDS)?;
                Ok(spent(before) / (sample.rate * f64::from(SECONDS)).max(1.0))
            }
            Work::Resp(words) => {
                benchmark(ports[4], COMMANDS / 10, words)?;
                let before = cpu_time_us(running.id());
                benchmark(ports[4], COMMANDS, words)?;
                Ok(spent(before) / f64::from(COMMANDS))
            }
        }
    }
}

/// Runs redis-benchmark on core 1.
fn benchmark(port: u16, commands: u32, words: &[&str]) -> Result<(), String> {
    let (port, commands) = (port.to_string(), commands.to_string());
    let mut command = Command::new("taskset");
    command.args([
        "-c",
        "1",
        "redis-benchmark",
        "-p",
        &port,
        "-n",
        &commands,
        "-c",
        "50",
        "-P",
        "16",
        "-r",
        "100000",
        "-q",
    ]);
    let output = command.args(words).output().map_err(|error| format!("redis-benchmark: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && !text.contains("Error") {
        return Ok(());
    }
    Err(format!("redis-benchmark {}: {text}", words.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_the_median_is_by_ranks() {
        // Tables of the sign test: of 15 values the 4th and the 12th, of 6 the least and the greatest.
        let values = |count: u32| (1..=count).rev().map(f64::from).collect::<Vec<_>>();
        assert_eq!(interval(values(15)), [4.0, 8.0, 12.0]);
        assert_eq!(interval(values(6)), [1.0, 3.5, 6.0]);
        assert_eq!(interval(values(20)), [6.0, 10.5, 15.0]);
    }
}
