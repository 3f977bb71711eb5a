//! Limits and figures of the process, and the phases of its stop.
//!
//! One [`Process`] is shared by all workers and the control thread. It has HAProxy's per-process counters (current
//! sessions against `maxconn`, sessions and requests so far) and the [`Phase`] of the process. Workers watch the phase,
//! so a signal received by the control thread takes effect on all of them at once.
//!
//! **Invariant:** the phase only moves forward. A soft stop ends by itself: the end of the last session moves the phase
//! to [`Phase::Ended`].

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use sluicegate_config::model::{Global, GlobalTls, Tune};
use sluicegate_script::CpuClock;
use sluicegate_tls::resumption::Resumption;
use sluicegate_transport::{BufferPool, PipeLimits, PoolFigures};
use tokio::runtime::RuntimeMetrics;
use tokio::sync::{Notify, watch};

use crate::compress::{Cost, Memory};
use crate::counters::Count;
use crate::history::History;
use crate::namespaces::Namespaces;
use crate::pace::Pace;
use crate::tls::{OcspUpdates, Registry, Renewals, TlsTotals};

/// The phase of the process between its start and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It accepts and serves.
    Serving,
    /// It no longer listens, finishes current requests and closes idle connections (SIGUSR1).
    Stopping,
    /// Workers leave at once; what still runs is dropped (SIGTERM, SIGINT, or the end of a soft stop).
    Ended,
}

/// Shared by all workers and the control thread.
#[derive(Debug)]
pub struct Process {
    /// The start, for durations.
    pub started: Instant,
    /// The start, by the wall clock.
    pub started_at: SystemTime,
    /// Sessions of all frontends against the global `maxconn`.
    pub sessions: Limit,
    /// The `maxconn` of the file or, without one, of the descriptors; `set maxconn global` can't exceed it.
    hard_maxconn: AtomicU32,
    /// The messages of the start (`show startup-logs`).
    startup_logs: Mutex<String>,
    /// Connections a second of all frontends (`maxconnrate`, `set rate-limit connections`).
    pub connection_pace: Pace,
    /// Sessions a second of all frontends (`maxsessrate`, `set rate-limit sessions`).
    pub session_pace: Pace,
    /// Clients' TLS connections a second (`maxsslrate`, `set rate-limit ssl-sessions`).
    pub tls_pace: Pace,
    /// TLS connections of both sides.
    pub tls: Arc<TlsTotals>,
    /// Sessions and keys by which clients resume TLS.
    pub resumption: Arc<Resumption>,
    /// Certificates and other TLS files by name, for the runtime API.
    pub certificates: Registry,
    /// Network namespaces by name.
    pub namespaces: Namespaces,
    /// Certificates that ACME renews at present.
    pub renewals: Renewals,
    /// Keys of limits from the state file, by the store that has not loaded its own file yet.
    pub(crate) kept_keys: Mutex<BTreeMap<String, Vec<Vec<u8>>>>,
    /// The schedule of OCSP updates.
    pub ocsp: OcspUpdates,
    /// The bytes per second below which new responses are compressed; 0: no limit (`maxcomprate`).
    pub compression_rate: AtomicU64,
    /// The configuration that is served; [`reload`](crate::reload) alone knows its type.
    pub(crate) current: OnceLock<Weak<dyn Any + Send + Sync>>,
    /// The time at which a soft stop began.
    pub(crate) stopping_since: OnceLock<Instant>,
    /// Whether a soft stop will begin.
    announced: AtomicBool,
    /// Figures by worker.
    pub workers: Box<[WorkerFigures]>,
    /// Connections of `peers` sections.
    pub(crate) peers: PeerFigures,
    /// Tasks without which a soft stop is not over.
    holds: AtomicU32,
    /// Whether this process replaces another one (`-sf`, `-st`).
    has_predecessor: AtomicBool,
    /// Notified when a session ends after the process had run out of descriptors.
    pub descriptors: Notify,
    /// The time from the reading of the configuration to the start of the workers, once they have started
    /// (`BootTime_ms`).
    pub boot: OnceLock<Duration>,
    /// The memory of compressors.
    pub compressors: Memory,
    /// Figures of the last hour, if there is a statistics page.
    pub history: History,
    /// Invalid messages so far.
    invalid: AtomicU64,
    /// The number of changes from deleting servers to adding servers, and back; after each, a name may stand for
    /// another server.
    turns: AtomicU32,
    /// Mailboxes of the workers, once they have started; [`desks`](crate::desks) alone knows their type.
    pub(crate) desks: OnceLock<Box<dyn Any + Send + Sync>>,
    idle: Mutex<IdleSample>,
    sent: Mutex<SentSample>,
    phase: watch::Sender<Phase>,
    paused: watch::Sender<bool>,
    /// The number of accept loops, and of those that have stopped listening.
    accepting: watch::Sender<(u32, u32)>,
}

/// Figures that a worker publishes to other threads. Each is on separate cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct WorkerFigures {
    /// Sessions that it serves or is about to receive; the sender of a descriptor counts it before sending.
    pub load: AtomicU32,
    /// The cost of compression.
    pub compression: Cost,
    /// Sessions accepted so far (`CumConns`).
    pub sessions: Count,
    /// Log messages received so far (`CumRecvLogs`).
    pub messages: Count,
    /// Requests so far (`CumReq`).
    pub requests: Count,
    /// Bytes sent to clients and servers so far (`TotalBytesOut`).
    pub bytes_out: Count,
    /// Its buffers and pipes.
    pub pool: Arc<PoolFigures>,
    /// Streams that are alive (`CurrStreams`); only its worker writes it.
    pub streams: AtomicU64,
    /// Times that accepting paused because the process's `maxconn` was reached (`MaxconnReached`).
    pub full: Count,
    /// Times that accepting paused because descriptors or memory ran out.
    pub exhausted: Count,
    /// Set by the watchdog while the worker makes no progress.
    pub stuck: AtomicBool,
    /// The CPU clock of its thread, and the thread's number.
    pub(crate) thread: OnceLock<(CpuClock, i32)>,
    /// The duration of the standstill at the last alert, in milliseconds.
    pub still_ms: AtomicU64,
    /// The metrics of its runtime, from the start of its thread on.
    pub runtime: OnceLock<RuntimeMetrics>,
    /// The idle time of this worker alone.
    idle: Mutex<IdleSample>,
}

/// The shortest period of an [`IdleSample`].
const IDLE_PERIOD: Duration = Duration::from_secs(1);

/// The workers' busy times at the last query, and the result.
#[derive(Debug)]
struct IdleSample {
    at: Instant,
    busy: Duration,
    percent: u32,
}

impl Default for IdleSample {
    fn default() -> Self {
        IdleSample { at: Instant::now(), busy: Duration::ZERO, percent: 100 }
    }
}

impl IdleSample {
    /// Returns the share of time in which `workers` workers, busy for `busy` so far, waited for events: since the
    /// previous query if that was a second ago or more, otherwise the previous result.
    fn refresh(&mut self, busy: Duration, workers: usize) -> u32 {
        let now = Instant::now();
        let elapsed = now.duration_since(self.at);
        if elapsed >= IDLE_PERIOD {
            let percent = idle_share(busy.saturating_sub(self.busy), elapsed, workers);
            *self = IdleSample { at: now, busy, percent };
        }
        self.percent
    }
}

/// The bytes sent at the last query, and the resulting rate.
#[derive(Debug)]
struct SentSample {
    at: Instant,
    bytes: u64,
    per_second: u64,
}

/// Returns the share of the time of all `workers` in which they were not busy, in percent.
fn idle_share(busy: Duration, elapsed: Duration, workers: usize) -> u32 {
    let share = busy.as_secs_f64() / (elapsed.as_secs_f64() * workers as f64).max(1e-9);
    (100.0 * (1.0 - share)).round().clamp(0.0, 100.0) as u32
}

impl Process {
    /// Returns a process of `workers` workers that may hold `maxconn` sessions (`None`: no limit).
    pub fn new(workers: usize, maxconn: Option<u32>) -> Arc<Process> {
        assert!(workers > 0, "a process has workers");
        Arc::new(Process {
            started: Instant::now(),
            started_at: SystemTime::now(),
            sessions: Limit::new(maxconn),
            hard_maxconn: AtomicU32::new(maxconn.unwrap_or(0)),
            startup_logs: Mutex::default(),
            current: OnceLock::new(),
            connection_pace: Pace::new(0),
            session_pace: Pace::new(0),
            tls_pace: Pace::new(0),
            tls: Arc::default(),
            namespaces: Namespaces::default(),
            certificates: Registry::default(),
            kept_keys: Mutex::default(),
            renewals: Renewals::default(),
            ocsp: OcspUpdates::default(),
            resumption: Resumption::new(GlobalTls::default().cache_size),
            compression_rate: AtomicU64::new(0),
            stopping_since: OnceLock::new(),
            announced: AtomicBool::new(false),
            workers: (0..workers).map(|_| WorkerFigures::default()).collect(),
            peers: PeerFigures::default(),
            holds: AtomicU32::new(0),
            has_predecessor: AtomicBool::new(false),
            descriptors: Notify::new(),
            boot: OnceLock::new(),
            compressors: Memory::default(),
            history: History::default(),
            invalid: AtomicU64::new(0),
            turns: AtomicU32::new(0),
            desks: OnceLock::new(),
            idle: Mutex::default(),
            sent: Mutex::new(SentSample { at: Instant::now(), bytes: 0, per_second: 0 }),
            phase: watch::Sender::new(Phase::Serving),
            paused: watch::Sender::new(false),
            accepting: watch::Sender::new((0, 0)),
        })
    }

    /// Returns the limit that `set maxconn global` can't exceed; `None`: no limit.
    pub fn hard_maxconn(&self) -> Option<u32> {
        Some(self.hard_maxconn.load(Ordering::Relaxed)).filter(|max| *max > 0)
    }

    /// Sets both limits of sessions after a reload.
    pub fn set_maxconn(&self, maxconn: u32) {
        self.hard_maxconn.store(maxconn, Ordering::Relaxed);
        self.sessions.set_max(Some(maxconn));
    }

    /// Returns the messages of the start of the current configuration.
    pub fn startup_logs(&self) -> String {
        self.startup_logs.lock().clone()
    }

    /// Stores the messages of a start.
    pub fn set_startup_logs(&self, text: String) {
        *self.startup_logs.lock() = text;
    }

    /// Returns the share of time in which the workers waited for events, in percent (`Idle_pct`).
    pub fn idle_percent(&self) -> u32 {
        let busy = self.workers.iter().filter_map(|worker| worker.runtime.get());
        let busy: Duration = busy.map(|runtime| runtime.worker_total_busy_duration(0)).sum();
        self.idle.lock().refresh(busy, self.workers.len())
    }

    /// Returns whether connections with too many glitches are closed by this worker: its load has reached `least` percent
    /// (`tune.glitches.kill.cpu-usage`).
    pub(crate) fn kills_glitches(&self, worker: usize, least: u32) -> bool {
        if least == 0 {
            return true;
        }
        let worker = &self.workers[worker];
        let busy = worker.runtime.get().map_or(Duration::ZERO, |runtime| runtime.worker_total_busy_duration(0));
        100 - worker.idle.lock().refresh(busy, 1).min(100) >= least
    }

    /// Returns the number of invalid messages so far (`show errors`).
    pub fn invalid_messages(&self) -> u64 {
        self.invalid.load(Ordering::Relaxed)
    }

    /// Returns the revision of a server that is created now: how often servers were added after others were deleted.
    pub(crate) fn server_revision(&self) -> u32 {
        self.turns.load(Ordering::Relaxed) / 2
    }

    /// Records that a server will be added, or was deleted.
    pub(crate) fn turn_of_servers(&self, added: bool) {
        if (self.turns.load(Ordering::Relaxed) % 2 == 1) == added {
            self.turns.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of the next invalid message.
    pub(crate) fn next_invalid(&self) -> u64 {
        self.invalid.fetch_add(1, Ordering::Relaxed)
    }

    /// Sets the rates of the process as configured.
    pub(crate) fn set_rates(&self, global: &Global) {
        self.connection_pace.set_limit(global.maxconnrate);
        self.session_pace.set_limit(global.maxsessrate);
        self.tls_pace.set_limit(global.tls.maxrate.unwrap_or(0));
        self.tls.set_limit(global.tls.maxconn.unwrap_or(0));
        self.resumption.resize(global.tls.cache_size);
        self.compression_rate.store(global.compression.rate, Ordering::Relaxed);
    }

    /// Returns the bytes sent per second (`BytesOutRate`): since the previous query if that was a second ago or more,
    /// otherwise the previous result.
    pub fn bytes_out_rate(&self) -> u64 {
        let bytes: u64 = self.workers.iter().map(|worker| worker.bytes_out.get()).sum();
        let mut last = self.sent.lock();
        let now = Instant::now();
        let elapsed = now.duration_since(last.at);
        if elapsed >= IDLE_PERIOD {
            let per_second = (bytes.saturating_sub(last.bytes) as f64 / elapsed.as_secs_f64()) as u64;
            *last = SentSample { at: now, bytes, per_second };
        }
        last.per_second
    }

    /// Returns the number of tasks woken by another thread and waiting for their worker (`Run_queue`); the runtime does
    /// not count tasks that a worker wakes itself.
    pub fn run_queue(&self) -> usize {
        let runtimes = self.workers.iter().filter_map(|worker| worker.runtime.get());
        runtimes.map(RuntimeMetrics::global_queue_depth).sum()
    }

    /// Returns the number of tasks of all workers (`Tasks`).
    pub fn tasks(&self) -> usize {
        let runtimes = self.workers.iter().filter_map(|worker| worker.runtime.get());
        runtimes.map(RuntimeMetrics::num_alive_tasks).sum()
    }

    /// Returns the phase now.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Returns the phase and its changes, from any thread and runtime.
    pub fn watch(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Stops listening, finishes current requests and closes idle connections (SIGUSR1). The phase becomes
    /// [`Phase::Ended`] at the end of the last session.
    pub fn begin_soft_stop(&self) {
        self.announce_stop();
        let _ = self.stopping_since.set(Instant::now());
        self.advance(Phase::Stopping);
        self.end_if_drained();
    }

    /// Makes rules know of a soft stop that will begin (`grace`).
    pub fn announce_stop(&self) {
        self.announced.store(true, Ordering::Relaxed);
    }

    /// Returns whether the process is stopping, or will soon.
    pub fn is_stopping(&self) -> bool {
        self.announced.load(Ordering::Relaxed) || self.phase() != Phase::Serving
    }

    /// Ends immediately (SIGTERM, SIGINT, `hard-stop-after`): workers drop everything and exit.
    pub fn stop_now(&self) {
        self.advance(Phase::Ended);
    }

    /// Waits until workers have left or are about to ([`Phase::Ended`]).
    pub async fn ended(&self) {
        // The sender lives in `self`, so waiting can't fail.
        let _ = self.watch().wait_for(|phase| *phase == Phase::Ended).await;
    }

    /// Makes all frontends stop listening, so that the system refuses connections or another process gets them
    /// (SIGTTOU), or listen again (SIGTTIN), and waits until they do. Returns whether that changed anything.
    pub async fn set_paused(&self, paused: bool) -> bool {
        let changed = self.paused.send_if_modified(|now| std::mem::replace(now, paused) != paused);
        if changed {
            // The sender lives in `self`. A worker that is busy for very long is not waited for: it will follow.
            let followed = |(all, silent): &(u32, u32)| *silent == if paused { *all } else { 0 };
            let _ = tokio::time::timeout(PAUSE_LIMIT, self.accepting.subscribe().wait_for(followed)).await;
        }
        changed
    }

    /// Registers an accept loop, which counts until the guard is dropped.
    pub(crate) fn accept_loop(self: &Arc<Self>) -> AcceptLoop {
        self.accepting.send_modify(|(all, _)| *all += 1);
        AcceptLoop { process: self.clone(), silent: false }
    }

    /// Returns a receiver of whether frontends are paused; a pause already in effect counts as a change.
    pub(crate) fn watch_paused(&self) -> watch::Receiver<bool> {
        let mut paused = self.paused.subscribe();
        if *paused.borrow() {
            paused.mark_changed();
        }
        paused
    }

    fn advance(&self, to: Phase) {
        self.phase.send_if_modified(|phase| {
            let forward = *phase < to;
            if forward {
                *phase = to;
            }
            forward
        });
    }

    /// Ends a soft stop when nothing is left to finish.
    pub(crate) fn end_if_drained(&self) {
        let holds = self.holds.load(Ordering::Acquire);
        if self.sessions.current() == 0 && holds == 0 && self.phase() == Phase::Stopping {
            self.advance(Phase::Ended);
        }
    }

    /// Delays the end of a soft stop until the result is dropped.
    pub(crate) fn hold(self: &Arc<Self>) -> Hold {
        self.holds.fetch_add(1, Ordering::AcqRel);
        Hold(self.clone())
    }

    /// Records that this process replaces another one.
    pub fn set_predecessor(&self) {
        self.has_predecessor.store(true, Ordering::Relaxed);
    }

    /// Returns whether this process replaces another one, which may teach it its stick tables.
    pub(crate) fn has_predecessor(&self) -> bool {
        self.has_predecessor.load(Ordering::Relaxed)
    }
}

/// Delays the end of a soft stop until it is dropped.
pub(crate) struct Hold(Arc<Process>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.holds.fetch_sub(1, Ordering::AcqRel);
        self.0.end_if_drained();
    }
}

/// Connections of `peers` sections.
#[derive(Debug, Default)]
pub(crate) struct PeerFigures {
    /// Those that are used (`ActivePeers`).
    pub(crate) active: Gauge,
    /// Those whose handshake has succeeded (`ConnectedPeers`).
    pub(crate) connected: Gauge,
}

/// A number that rises and falls.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicU32);

impl Gauge {
    pub(crate) fn add(&self, count: u32) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, count: u32) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The time limit for the workers to apply a pause or resumption.
const PAUSE_LIMIT: Duration = Duration::from_secs(1);

/// One accept loop among those that pause together.
pub(crate) struct AcceptLoop {
    process: Arc<Process>,
    silent: bool,
}

impl AcceptLoop {
    /// Confirms the requested state: no longer listening, or listening again.
    pub(crate) fn follow(&mut self, silent: bool) {
        if std::mem::replace(&mut self.silent, silent) != silent {
            self.process.accepting.send_modify(|(_, count)| *count = if silent { *count + 1 } else { *count - 1 });
        }
    }
}

impl Drop for AcceptLoop {
    fn drop(&mut self) {
        self.follow(false);
        self.process.accepting.send_modify(|(all, _)| *all -= 1);
    }
}

/// A number of slots, counted exactly, whose waiters are notified as soon as one is free.
///
/// Listeners use it to wait for room in the process, in their frontend and in their bind. Acquiring and releasing are
/// one atomic operation each; the waiters' lock is touched only if there is a waiter.
#[derive(Debug)]
pub struct Limit {
    current: AtomicU32,
    peak: AtomicU32,
    max: AtomicU32,
    waiting: AtomicU32,
    room: Notify,
}

impl Limit {
    /// Returns a limit of `max` slots; `None` means none.
    pub fn new(max: Option<u32>) -> Limit {
        Limit {
            current: AtomicU32::new(0),
            peak: AtomicU32::new(0),
            max: AtomicU32::new(max.unwrap_or(u32::MAX)),
            waiting: AtomicU32::new(0),
            room: Notify::new(),
        }
    }

    /// Returns the number of acquired slots.
    pub fn current(&self) -> u32 {
        self.current.load(Ordering::Relaxed)
    }

    /// Returns whether this many slots are free.
    pub fn leaves(&self, count: u32) -> bool {
        self.current().saturating_add(count) <= self.max.load(Ordering::Relaxed)
    }

    /// Returns the maximum number of slots that were in use at a time.
    pub fn peak(&self) -> u32 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Returns the limit; `None` means none.
    pub fn max(&self) -> Option<u32> {
        match self.max.load(Ordering::Relaxed) {
            u32::MAX => None,
            max => Some(max),
        }
    }

    /// Changes the limit: raising it wakes waiters, lowering it revokes nothing.
    pub fn set_max(&self, max: Option<u32>) {
        self.max.store(max.unwrap_or(u32::MAX), Ordering::SeqCst);
        self.room.notify_waiters();
    }

    /// Resets the peak (`clear counters`).
    pub fn clear_peak(&self) {
        self.peak.store(self.current(), Ordering::Relaxed);
    }

    /// Acquires a slot if one is free.
    #[must_use]
    pub fn take(&self) -> bool {
        let max = self.max.load(Ordering::SeqCst);
        let free = |current: u32| (current < max).then_some(current + 1);
        self.current.fetch_update(Ordering::SeqCst, Ordering::SeqCst, free).is_ok()
    }

    /// Acquires a slot regardless of the limit, for the owner of a slot elsewhere that moves here.
    pub fn force(&self) {
        self.current.fetch_add(1, Ordering::SeqCst);
        self.used();
    }

    /// Marks the last slot as used, so that it counts in the peak. A slot acquired only to look for work is never
    /// marked.
    pub fn used(&self) {
        let current = self.current();
        if current > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(current, Ordering::Relaxed);
        }
    }

    /// Releases a slot.
    pub fn give(&self) {
        self.current.fetch_sub(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.room.notify_waiters();
        }
    }

    /// Waits until a slot may be free; another waiter may still be faster.
    pub async fn room(&self) {
        let _waiting = Waiting::new(&self.waiting);
        let mut notified = std::pin::pin!(self.room.notified());
        // Registered before the slots are checked, so that a slot that is released in between is not missed.
        notified.as_mut().enable();
        if self.current.load(Ordering::SeqCst) < self.max.load(Ordering::SeqCst) {
            return;
        }
        notified.await;
    }
}

struct Waiting<'a>(&'a AtomicU32);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Makes the buffers and pipes of a worker, whose figures its process shows.
pub(crate) fn buffers(tune: &Tune, process: Arc<Process>, worker: usize) -> BufferPool {
    let workers = process.workers.len().max(1);
    let pipes = tune.pipes(workers);
    let limits = PipeLimits {
        most: pipes.div_ceil(workers as u32),
        // The derived limit of sessions leaves descriptors for `maxpipes`.
        of_all: if tune.maxpipes.is_some() { 0 } else { pipes },
        size: tune.pipesize,
    };
    let figures = process.workers[worker].pool.clone();
    BufferPool::of_worker(tune.bufsize, limits, move |pipes| process.sessions.leaves(pipes), figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_counts_exactly_and_remembers_its_peak() {
        let limit = Limit::new(Some(2));
        assert!(limit.take() && limit.take());
        assert_eq!(limit.peak(), 0);
        limit.used();
        assert!(!limit.take());
        assert_eq!((limit.current(), limit.peak()), (2, 2));
        limit.give();
        assert_eq!((limit.current(), limit.peak()), (1, 2));
        limit.set_max(Some(1));
        assert!(!limit.take(), "a lowered limit takes nothing back and gives nothing out");
        limit.set_max(None);
        assert!(limit.take());
    }

    #[test]
    fn idle_is_what_is_left_of_busy() {
        let seconds = Duration::from_secs;
        for (busy, elapsed, workers, percent) in [(0, 5, 2, 100), (5, 5, 2, 50), (10, 5, 2, 0), (99, 5, 1, 0)] {
            assert_eq!(idle_share(seconds(busy), seconds(elapsed), workers), percent);
        }
        let process = Process::new(2, None);
        assert_eq!(process.idle_percent(), 100);
        let mut sample = IdleSample { at: Instant::now() - seconds(10), ..IdleSample::default() };
        assert_eq!([sample.refresh(seconds(8), 1), sample.refresh(seconds(99), 1)].map(|idle| idle <= 20), [true; 2]);
        // The second worker is busy, and only its connections are closed.
        *process.workers[1].idle.lock() = IdleSample { percent: 20, ..IdleSample::default() };
        let kills = |worker| [0, 1, 80, 81, 100].map(|least| process.kills_glitches(worker, least));
        assert_eq!(kills(0), [true, false, false, false, false]);
        assert_eq!(kills(1), [true, true, true, false, false]);
    }

    #[test]
    fn room_is_told_to_a_waiter_of_another_thread() {
        let limit = Arc::new(Limit::new(Some(1)));
        assert!(limit.take());
        let waiter = {
            let limit = limit.clone();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(limit.room());
            })
        };
        limit.give();
        waiter.join().unwrap();
    }

    #[test]
    fn a_soft_stop_without_sessions_ends_at_once_and_phases_never_go_back() {
        let process = Process::new(1, None);
        assert!(process.sessions.take());
        process.begin_soft_stop();
        assert_eq!(process.phase(), Phase::Stopping);
        process.sessions.give();
        process.end_if_drained();
        assert_eq!(process.phase(), Phase::Ended);
        process.begin_soft_stop();
        assert_eq!(process.phase(), Phase::Ended);
    }
}
