//! The watchdog: detection of stuck workers.
//!
//! A worker's event loop polls its tasks, polls its sockets, and starts again. A few times a second the control thread
//! checks whether each worker has completed an iteration since the last check, or is idle; the runtime counts both
//! anyway, so a worker pays nothing. A worker that has not for [`STUCK`] is *stuck*: in a C module of a script, in
//! blocking I/O, or in a computation that is too long. Then
//!
//! - an alert names the worker, the seconds, and the current line of its script; again each time the duration has
//!   doubled, and when the worker continues;
//! - other workers accept on its sockets ([`accept_for`]), and no worker hands it a connection;
//! - with `tune.lua.watchdog-abort` the process aborts if the worker is in a script.
//!
//! A worker that is ready to run and gets no core is not stuck. Time in which the control thread itself did not run
//! counts as one check, so a suspended machine causes no alert.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sluicegate_config::model::{LogAddress, LogTarget};
use sluicegate_script::Watch;
use tokio::runtime::RuntimeMetrics;

use crate::listener::accept::accept_for;
use crate::log::Severity;
use crate::process::{Phase, Process};
use crate::reload::Current;
use crate::running::Running;
use crate::worker::Worker;

/// The interval between two checks.
const PERIOD: Duration = Duration::from_millis(250);

/// The time without a turn after which a worker is stuck.
const STUCK: Duration = Duration::from_secs(1);

/// The time limit for a worker to report the position of its script.
const ANSWER: Duration = Duration::from_millis(20);

/// The source of a worker's iteration count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turns {
    parks: u64,
    busy: Duration,
}

impl Turns {
    fn of(runtime: &RuntimeMetrics) -> Turns {
        Turns { parks: runtime.worker_park_unpark_count(0), busy: runtime.worker_total_busy_duration(0) }
    }

    /// Returns whether the worker waits for events.
    fn rests(self) -> bool {
        self.parks % 2 == 1
    }
}

/// The watchdog's data of a worker.
#[derive(Default)]
struct Watched {
    turns: Option<Turns>,
    /// The duration of the standstill.
    still: Duration,
    /// The CPU time of its thread at the start of the standstill.
    used: Duration,
    /// The duration at which the next alert is due; zero before the first.
    told_at: Duration,
}

/// Watches the workers for the lifetime of the future. Runs on the control thread's runtime.
pub(crate) async fn watch(current: Arc<Current>) {
    let process = current.running().process.clone();
    let mut watched: Vec<Watched> = process.workers.iter().map(|_| Watched::default()).collect();
    let mut interval = tokio::time::interval(PERIOD);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = Instant::now();
    loop {
        interval.tick().await;
        let passed = last.elapsed().min(2 * PERIOD);
        last = Instant::now();
        for (index, worker) in watched.iter_mut().enumerate() {
            let Some(turns) = process.workers[index].runtime.get().map(Turns::of) else { continue };
            let stands = !turns.rests() && worker.turns == Some(turns);
            worker.turns = Some(turns);
            if stands && !(worker.told_at.is_zero() && starves(&process, index, worker)) {
                worker.still += passed;
            } else {
                goes_on(&current, index, std::mem::take(worker));
                worker.turns = Some(turns);
                worker.used = used(&process, index);
            }
            if worker.still >= STUCK && worker.still >= worker.told_at {
                let first = worker.told_at.is_zero();
                worker.told_at = worker.still * 2;
                is_stuck(&current, index, worker.still, first).await;
            }
        }
    }
}

/// Returns the CPU time of a worker's thread.
fn used(process: &Process, index: usize) -> Duration {
    process.workers[index].thread.get().map_or(Duration::ZERO, |(clock, _)| clock.ran())
}

/// Returns whether a worker makes no progress because the machine does not schedule it: it is ready to run, and has
/// hardly run.
fn starves(process: &Process, index: usize, worker: &Watched) -> bool {
    if used(process, index).saturating_sub(worker.used) >= worker.still / 4 {
        return false;
    }
    let Some((_, thread)) = process.workers[index].thread.get() else { return false };
    // The state follows the name in parentheses, which may contain any characters. In a `chroot` the file does not
    // exist.
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    status.rsplit(") ").next().is_some_and(|rest| rest.starts_with('R')) && !worker.still.is_zero()
}

/// Handles a stuck worker: alerts, and lets others accept in its place.
async fn is_stuck(current: &Arc<Current>, index: usize, still: Duration, first: bool) {
    let running = current.running();
    let script = running.lua.as_ref().and_then(|lua| lua.watch_of(index)).filter(Watch::runs);
    let place = match &script {
        Some(watch) => place_of(watch).await,
        None => String::new(),
    };
    let place = if place.is_empty() { String::new() } else { format!(" in {place}") };
    let aborts = script.is_some() && running.config.global.tune.lua_watchdog_abort;
    let more = if aborts { "; the process aborts" } else { "; it accepts no new connections until it goes on" };
    let seconds = still.as_secs();
    let plural = if seconds == 1 { "" } else { "s" };
    let message =
        format!("Worker {} has stopped processing traffic for {seconds} second{plural}{place}{more}.", index + 1);
    // Set before the alert: a reader of the alert can rely on no worker handing it a connection.
    let process = &running.process;
    process.workers[index].stuck.store(true, Ordering::Relaxed);
    process.workers[index].still_ms.store(still.as_millis() as u64, Ordering::Relaxed);
    tell(&running, Severity::Alert, &message);
    if aborts {
        running.logger.drain(ANSWER).await;
        eprintln!("[ALERT]    ({}) : {message}", std::process::id());
        std::process::abort();
    }
    if first && process.phase() == Phase::Serving {
        relieve(process.clone(), index);
    }
}

/// Returns the position of the script, as far as its worker can report it.
async fn place_of(watch: &Watch) -> String {
    watch.ask();
    let asked = Instant::now();
    while asked.elapsed() < ANSWER {
        tokio::time::sleep(Duration::from_millis(1)).await;
        if let Some(place) = watch.answer() {
            return format!("the script at {place}");
        }
    }
    "a script".to_owned()
}

/// Makes another worker accept on the sockets of a stuck one, until that continues.
fn relieve(process: Arc<Process>, stuck: usize) {
    let load = |index: &usize| process.workers[*index].load.load(Ordering::Relaxed);
    let well = |index: &usize| !process.workers[*index].stuck.load(Ordering::Relaxed);
    let Some(other) = (0..process.workers.len()).filter(well).min_by_key(load) else { return };
    let job = process.clone();
    tokio::spawn(async move {
        let begin = move |worker: &Rc<Worker>| {
            for listener in worker.running.listeners() {
                let (worker, listener) = (worker.clone(), listener.clone());
                tokio::task::spawn_local(accept_for(worker, listener, stuck));
            }
        };
        job.on_worker(other, begin).await
    });
}

/// Handles a worker that continues; if it was stuck, this is logged.
fn goes_on(current: &Arc<Current>, index: usize, before: Watched) {
    let running = current.running();
    if !running.process.workers[index].stuck.swap(false, Ordering::Relaxed) {
        return;
    }
    running.process.workers[index].still_ms.store(0, Ordering::Relaxed);
    let seconds = before.still.as_secs();
    tell(&running, Severity::Notice, &format!("Worker {} goes on after {seconds} seconds.", index + 1));
}

/// Logs to the targets of `global`, or to stderr if there are none.
fn tell(running: &Running, severity: Severity, message: &str) {
    let targets = &running.config.global.log;
    running.logger.send(targets, severity, message.as_bytes());
    if targets.is_empty() {
        let line = format!("[{}]    ({}) : {message}", severity.word(), std::process::id());
        running.logger.send(&[LogTarget::raw(LogAddress::Stderr)], severity, line.as_bytes());
    }
}
