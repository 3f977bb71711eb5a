//! A run from its first connection to its report.
//!
//! The main thread starts the reactors, prints live lines, waits for signals and reads the CPU time of other
//! processes; it touches no request. The first interrupt ends the run at once, which the report states; no measurement
//! is lost.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use socket2::{SockAddr, Socket, Type};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::console::{Console, abort, print};
use super::cpu;
use super::http::Http;
use super::http2::Http2;
use super::outcome::{Outcome, ProcessTime};
use super::plan::{Correction, Destination, Live, Load, Plan, ProtocolPlan};
use super::progress::Progress;
use super::protocol::Protocol;
use super::reactor::{Reactor, Shared, ThreadReport, Tick, Told};
use super::redis::Redis;
use super::screen::Screen;
use super::stats::{Stats, add, corrected, histogram};
use super::statsd::Sender;
use super::target::Server;
use super::template::Keys;
use super::tls::Connector;
use super::{csv, json, picture, text};

/// The share of a core from which on a thread's own CPU time limits it.
const SATURATED: f64 = 0.9;

/// The maximum number of intervals that wait to be printed, for each thread.
const TICKS_WAITING: usize = 16;

/// The main thread's polling interval.
const LOOK: Duration = Duration::from_millis(5);

/// Runs the plan and reports. Returns the exit code.
pub(super) fn run(plan: &Plan, console: &mut Console<'_>) -> u8 {
    let outcome = match measure(plan, console) {
        Ok(outcome) => outcome,
        Err(message) => return console.refuse(&message),
    };
    if let Err(error) = report(plan, &outcome, console) {
        return console.refuse(&error);
    }
    if outcome.is_interrupted {
        130
    } else if outcome.has_worked() {
        0
    } else {
        console.refuse("every request failed")
    }
}

/// A report of a run.
type Report = fn(&Plan, &Outcome) -> String;

fn report(plan: &Plan, outcome: &Outcome, console: &mut Console<'_>) -> Result<(), String> {
    let (document, seconds): (Report, Report) = (json::report, |_, outcome| csv::report(outcome));
    let reports = [(&plan.load.json, document), (&plan.load.csv, seconds)];
    match reports.iter().find(|(destination, _)| **destination == Destination::Output) {
        Some((_, report)) => print(console, &report(plan, outcome))?,
        None => print(console, &text::report(plan, outcome))?,
    }
    for (destination, report) in reports {
        if let Destination::File(path) = destination {
            super::output::write(path, &report(plan, outcome))?;
        }
    }
    picture::write(&plan.load.pictures, || picture::of_run(plan, outcome))
}

pub(super) fn measure(plan: &Plan, console: &mut Console<'_>) -> Result<Outcome, String> {
    let load = &plan.load;
    if let Some(pid) = load.pid
        && cpu::process_s(pid).is_none()
    {
        return Err(format!("--pid {pid}: there is no such process"));
    }
    let tls = load.tls.as_ref().map(Connector::new).transpose()?;
    let addresses = match load.nodes.as_slice() {
        [] => vec![destination(&load.server, load)?],
        nodes => nodes.iter().map(|node| destination(node, load)).collect::<Result<Vec<_>, _>>()?,
    };
    raise_descriptors(load.connections)?;
    let first_client = |thread| (0..thread).map(|thread| load.share(load.connections as u64, thread)).sum();
    let keys = |thread: usize| Keys::new(load.keys.clone(), load.seed, thread as u64, load.threads as u64);
    match &plan.protocol {
        ProtocolPlan::Http(http) => {
            drive(plan, (&addresses, tls), console, |thread| Http::new(http.clone(), keys(thread), thread))
        }
        ProtocolPlan::Http2(http) => {
            let (is_https, streams) = (load.tls.is_some(), load.pipeline);
            drive(plan, (&addresses, tls), console, |thread| {
                Http2::new(http.clone(), is_https, streams, keys(thread), thread)
            })
        }
        ProtocolPlan::Redis(redis) => drive(plan, (&addresses, tls), console, |thread| {
            Redis::new(redis.clone(), keys(thread), first_client(thread))
        }),
    }
}

/// Returns the server's address. Of several, the first that accepts a connection, which is closed immediately:
/// `localhost` often has two addresses, and the server listens on one.
fn destination(server: &Server, load: &Load) -> Result<SockAddr, String> {
    let addresses = server.resolve(load.family)?;
    let first = addresses[0].clone();
    if addresses.len() == 1 {
        return Ok(first);
    }
    let timeout = Duration::from_nanos(load.connect_timeout_ns);
    let listens = |address: &SockAddr| {
        Socket::new(address.domain(), Type::STREAM, None)
            .is_ok_and(|socket| socket.connect_timeout(address, timeout).is_ok())
    };
    Ok(addresses.into_iter().find(listens).unwrap_or(first))
}

/// Reserves descriptors in addition to the connections: those already open, and two for each thread.
pub(super) fn raise_descriptors(connections: usize) -> Result<(), String> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let needed = connections as u64 * 2 + 64;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let raised = Rlimit { current: Some(limit.maximum.map_or(needed, |maximum| maximum.min(needed))), ..limit };
    let enough = connections as u64 + 64;
    if setrlimit(Resource::Nofile, raised).is_err() || raised.current.is_some_and(|current| current < enough) {
        return Err(format!(
            "{connections} connections need {enough} descriptors and the limit is {}; raise it with ulimit -n",
            limit.maximum.unwrap_or_default()
        ));
    }
    Ok(())
}

fn drive<P: Protocol + Send>(
    plan: &Plan,
    (addresses, tls): (&[SockAddr], Option<Connector>),
    console: &mut Console<'_>,
    protocol: impl Fn(usize) -> P,
) -> Result<Outcome, String>
where
    P::Session: Send,
{
    let load = &plan.load;
    let shared = Shared::new(load.threads);
    let (told, heard) = mpsc::channel(load.threads * TICKS_WAITING);
    // Created here and not in the threads: the others would wait for one that could not be created.
    let reactors = (0..load.threads)
        .map(|thread| {
            let connections = load.share(load.connections as u64, thread) as usize;
            let tls = tls.as_ref().map(|tls| tls.of_thread(connections));
            Reactor::new(load, &shared, addresses, (protocol(thread), tls), thread, told.clone())
        })
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| format!("no descriptor for a thread's sockets: {error}"))?;
    drop(told);
    let commands = protocol(0).commands();
    let started_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64);
    let (reports, watched) = std::thread::scope(|scope| {
        let mut threads = Vec::with_capacity(load.threads);
        for (number, reactor) in reactors.into_iter().enumerate() {
            let name = format!("load-{number}");
            let spawned = std::thread::Builder::new().name(name).spawn_scoped(scope, move || reactor.run(number));
            match spawned {
                Ok(thread) => threads.push(thread),
                // The running threads already wait for one that will never start; only the end of the process frees
                // them.
                Err(error) => abort(1, &format!("thread {number} does not start: {error}")),
            }
        }
        let watched =
            watch(plan, &shared, heard, console, || threads.iter().all(std::thread::ScopedJoinHandle::is_finished));
        let reports: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        (reports, watched)
    });
    let mut threads = Vec::with_capacity(reports.len());
    for report in reports {
        threads.push(report.map_err(|_| "a thread of the generator has panicked".to_owned())??);
    }
    if let Some(reason) = shared.fatal.into_inner().unwrap_or_default() {
        return Err(reason);
    }
    Ok(combine(load, threads, commands, watched?, started_unix_ms))
}

/// The observations of the main thread.
struct Watched {
    is_interrupted: bool,
    own: ProcessTime,
    peer: Option<ProcessTime>,
}

/// Prints live lines, ends the run on a signal, and reads CPU times at its beginning and end.
fn watch(
    plan: &Plan,
    shared: &Shared,
    mut heard: mpsc::Receiver<Told>,
    console: &mut Console<'_>,
    are_done: impl Fn() -> bool,
) -> Result<Watched, String> {
    let load = &plan.load;
    let failed = |error: std::io::Error| {
        shared.stop.store(true, Ordering::Relaxed);
        format!("the main thread can't wait: {error}")
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let mut signals = match console.takes_signals {
            true => Some((signal(SignalKind::interrupt()).map_err(failed)?, signal(SignalKind::terminate()).map_err(failed)?)),
            false => None,
        };
        print(console, &load.banner).map_err(|error| failed(std::io::Error::other(error)))?;
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let own = std::process::id();
        let mut from = None;
        let mut to = None;
        let mut is_interrupted = false;
        let mut lines = Lines::new(plan);
        loop {
            tokio::select! {
                () = interrupted(&mut signals) => {}
                Some(told) = heard.recv() => {
                    lines.hear(told, console);
                    continue;
                }
                _ = look.tick() => {
                    let start = shared.start.load(Ordering::Relaxed);
                    let now = shared.now();
                    let measures = start > 0 && now >= start + load.warmup_ns;
                    if from.is_none() && measures {
                        from = Some((cpu::process_s(own), load.pid.and_then(cpu::process_s)));
                    }
                    let is_done = are_done();
                    let is_over = load.duration_ns.is_some_and(|duration| measures && now >= start + load.warmup_ns + duration);
                    if to.is_none() && (is_done || is_over) {
                        to = Some((cpu::process_s(own), load.pid.and_then(cpu::process_s)));
                    }
                    if is_done {
                        while let Ok(told) = heard.try_recv() {
                            lines.hear(told, console);
                        }
                        lines.finish(console);
                        break;
                    }
                    continue;
                }
            }
            if is_interrupted {
                drop(lines);
                abort(130, "interrupted twice");
            }
            is_interrupted = true;
            shared.stop.store(true, Ordering::Relaxed);
        }
        let (from_own, from_peer) = from.unwrap_or_default();
        let (to_own, to_peer) = to.unwrap_or_default();
        let time = |pid, from: Option<(f64, f64)>, to: Option<(f64, f64)>| {
            let ((user, system), (user_after, system_after)) = (from?, to?);
            Some(ProcessTime { pid, user_s: user_after - user, system_s: system_after - system })
        };
        let own = time(own, from_own, to_own).unwrap_or(ProcessTime { pid: own, user_s: 0.0, system_s: 0.0 });
        let peer = load.pid.and_then(|pid| time(pid, from_peer, to_peer));
        Ok(Watched { is_interrupted, own, peer })
    })
}

/// Waits for the first of the signals; forever if they are handled elsewhere.
pub(super) async fn interrupted(signals: &mut Option<(Signal, Signal)>) {
    match signals {
        None => std::future::pending().await,
        Some((interrupt, terminate)) => {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        }
    }
}

/// Live lines: one for each interval, printed when every thread has given its part.
struct Lines<'a> {
    load: &'a Load,
    interval_ns: u64,
    threads: usize,
    progress: Progress,
    screen: Option<Screen>,
    statsd: Option<Sender<'a>>,
    /// The interval whose line comes next.
    next: u64,
    waiting: std::collections::BTreeMap<u64, (usize, Tick)>,
}

impl<'a> Lines<'a> {
    fn new(plan: &'a Plan) -> Lines<'a> {
        let load = &plan.load;
        Lines {
            load,
            progress: Progress::default(),
            // A terminal without a view is no reason to end a run.
            screen: (load.live == Live::Screen).then(|| Screen::open(plan).ok()).flatten(),
            statsd: match (&load.statsd, &load.live) {
                (Some(statsd), Live::Memtier(run)) => {
                    Some(Sender::begin(statsd, *run, load.threads, load.connections / load.threads))
                }
                _ => None,
            },
            interval_ns: load.interval_ns.unwrap_or(1),
            threads: load.threads,
            next: 0,
            waiting: std::collections::BTreeMap::new(),
        }
    }

    fn hear(&mut self, told: Told, console: &mut Console<'_>) {
        match told {
            Told::Tick(tick) => self.add(tick, console),
            // A closed terminal is no reason to end a run.
            Told::Line(line) => drop(writeln!(console.err, "{line}")),
        }
    }

    fn add(&mut self, tick: Tick, console: &mut Console<'_>) {
        let number = tick.number;
        match self.waiting.entry(number) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert((1, tick));
            }
            std::collections::btree_map::Entry::Occupied(mut entry) => {
                let (count, sum) = entry.get_mut();
                *count += 1;
                sum.sent += tick.sent;
                sum.failed += tick.failed;
                sum.errors += tick.errors;
                sum.bytes += tick.bytes;
                sum.length_ns = sum.length_ns.max(tick.length_ns);
                add(&mut sum.latency, &tick.latency);
            }
        }
        // A thread that skipped an interval never sends its part of it: a later part shows that.
        while let Some(entry) = self.waiting.first_entry() {
            if entry.get().0 < self.threads && *entry.key() + TICKS_WAITING as u64 > number {
                return;
            }
            let (_, tick) = entry.remove();
            self.print(&tick, console);
        }
    }

    /// Prints a line, preceded by one for each interval without a report of a thread.
    fn print(&mut self, tick: &Tick, console: &mut Console<'_>) {
        while self.next < tick.number {
            self.print_line(&Tick::new(self.next, self.interval_ns), console);
            self.next += 1;
        }
        self.next = tick.number + 1;
        self.print_line(tick, console);
    }

    fn print_line(&mut self, tick: &Tick, console: &mut Console<'_>) {
        // A closed terminal is no reason to end a run.
        let _ = match &self.load.live {
            Live::Lines => writeln!(console.err, "{}", text::live_line(self.interval_ns, tick)),
            Live::Screen => self.screen.as_mut().map_or(Ok(()), |screen| screen.add(tick)),
            Live::Memtier(run) => {
                let now = self.progress.now(self.load, tick);
                let latency = |percentile: f64| tick.latency.value_at_quantile(percentile / 100.0) as f64 / 1e6;
                if let Some(statsd) = &self.statsd {
                    statsd.send(&now, |percentile| (!tick.latency.is_empty()).then(|| latency(percentile)));
                }
                write!(console.err, "{}\r", self.progress.memtier(*run, self.load, &now))
            }
            Live::RedisBenchmark(title) => {
                let (blank, line) = (self.progress.blank(), self.progress.redis_benchmark(title, tick));
                write!(console.out, "{blank}\r{line}\r").and_then(|()| console.out.flush())
            }
        };
    }

    fn finish(&mut self, console: &mut Console<'_>) {
        for (_, (_, tick)) in std::mem::take(&mut self.waiting) {
            self.print(&tick, console);
        }
        if let Some(statsd) = self.statsd.take() {
            statsd.end();
        }
        let _ = match &self.load.live {
            Live::Lines | Live::Screen => Ok(()),
            Live::Memtier(_) => console.err.write_all(b"\n\n"),
            Live::RedisBenchmark(_) => write!(console.out, "{}\r", self.progress.blank()),
        };
    }
}

fn combine(
    load: &Load,
    threads: Vec<ThreadReport>,
    commands: Vec<String>,
    watched: Watched,
    started_unix_ms: u64,
) -> Outcome {
    let mut stats = Stats::new(commands.len());
    let mut warmup = Stats::new(commands.len());
    let (mut cpu_ns, mut busiest, mut elapsed_ns) = (0, 0.0f64, 0);
    let (mut warning, mut clients) = (None, Vec::new());
    for thread in threads {
        let took = thread.to_ns - thread.from_ns;
        elapsed_ns = elapsed_ns.max(took);
        cpu_ns += thread.cpu_ns;
        if took > 0 {
            busiest = busiest.max(thread.cpu_ns as f64 / took as f64);
        }
        warning = warning.or(thread.warning);
        clients.push(thread.clients);
        stats.merge(thread.stats);
        warmup.merge(thread.warmup);
    }
    let latency = stats.latency();
    let corrected = load.correct.map(|correction| {
        let interval_ns = match correction {
            Correction::IntervalNs(interval_ns) => interval_ns,
            Correction::Median => latency.value_at_quantile(0.5),
        };
        if latency.is_empty() { histogram() } else { corrected(&latency, interval_ns) }
    });
    let mut outcome = Outcome {
        stats,
        warmup,
        clients,
        commands,
        latency,
        corrected,
        elapsed_s: elapsed_ns as f64 / 1e9,
        started_unix_ms,
        is_interrupted: watched.is_interrupted,
        cpu_s: cpu_ns as f64 / 1e9,
        busiest: busiest.min(1.0),
        own: watched.own,
        peer: watched.peer,
        warnings: Vec::new(),
    };
    outcome.warnings = warnings(load, &outcome);
    outcome.warnings.extend(warning);
    outcome
}

fn warnings(load: &Load, outcome: &Outcome) -> Vec<String> {
    let stats = &outcome.stats;
    let mut warnings = Vec::new();
    let is_saturated = outcome.busiest >= SATURATED;
    if is_saturated {
        warnings.push(format!(
            "the generator is the limit: a thread of it used {:.0} % of a core; give it more --threads and cores",
            outcome.busiest * 100.0
        ));
    }
    if stats.late_generator > 0 {
        warnings.push(format!(
            "{} of {} sends were more than {} late though a connection was free: the generator did not get the CPU in \
             time, or its thread had too much to do",
            stats.late_generator,
            stats.sent,
            text::time(load.late_ns)
        ));
    }
    if stats.late_connections > 0 {
        warnings.push(format!(
            "{} of {} sends were more than {} late because all {} connections waited for answers; the latency counts \
             that wait",
            stats.late_connections,
            stats.sent,
            text::time(load.late_ns),
            load.connections
        ));
    }
    if stats.unsent > 0 {
        warnings.push(format!(
            "{} requests were never sent{}",
            stats.unsent,
            if load.rate.is_some() {
                ": the latencies of an endless wait are missing, so the true ones are worse"
            } else {
                ""
            }
        ));
    }
    if load.pid.is_some() && outcome.peer.is_none() {
        warnings.push("the process of --pid has ended during the run".to_owned());
    }
    warnings
}
