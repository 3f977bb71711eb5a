//! Saves of the whole store to an RDB file: SAVE, BGSAVE and save points.
//!
//! A save is a thread. It waits for the moment of the [cut](crate::snapshot) as a transaction does that needs the keyspace
//! for itself, then runs the [pass](crate::pass) into a file. Its [`Job`] tells others when the cut is done and how the save
//! ended; no client but that of SAVE waits for it.
//!
//! Save points are checked by the store's tick, as is a BGSAVE that was scheduled while another save ran. After a save
//! that failed, save points rest for [`PAUSE`], and, if `stop-writes-on-bgsave-error` is set, commands that write are
//! refused until one succeeds.
//!
//! **Two processes.** A process that has been replaced may end long after its successor has begun with the file. From the
//! moment on at which it is to end, it leaves a file alone that another process has written: one that is neither the file
//! that it has loaded nor the one that it has saved last. Before, the file is its own, whoever wrote to it, as with Redis.

use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sluicegate_data::clock::ticks_of_ms;
use sluicegate_data::rdb::crc64::Sum;
use sluicegate_data::rdb::encode::Compression;
use sluicegate_data::rdb::file::{Chunk, Contents, Settings};

use crate::config::SavePoint;
use crate::files::{EntryKind, Files, Identity, Replacement, SYNCED_EACH, reason};
use crate::gate::Closed;
use crate::hold::{KeyList, Ticket};
use crate::load::{Existing, LoadOptions};
use crate::pass::{Locked, Longest, Manner, Pass, Passed, Sink};
use crate::replication::replica::Parts;
use crate::snapshot::{Accesses, Form};
use crate::thread::{self, block_on};
use crate::{Inner, Store};

/// The time for which save points rest after a save that failed.
const PAUSE: Duration = Duration::from_secs(5);
/// The time after which a save asks for the cut again, if clients behind it were refused because of a long script.
const AGAIN: Duration = Duration::from_millis(100);
/// The time after which a wait for a cut without a limit looks whether it is over.
const LONG: Duration = Duration::from_secs(3600);
/// The maximum number of threads that go through the stripes.
const THREADS_MAX: usize = 4;
/// The bytes of old values that may wait in stripes.
const BUDGET: u64 = 64 << 20;

/// How a store is saved.
#[derive(Clone, Debug)]
pub struct Saving {
    /// The name of the file in it.
    pub name: String,
    /// When it is saved by itself.
    pub points: Vec<SavePoint>,
    /// Whether strings are compressed.
    pub compresses: bool,
    /// Whether the file has a checksum.
    pub has_checksum: bool,
    /// Whether commands that write are refused after a save that failed.
    pub stops_writes: bool,
    /// Microseconds for which a save sleeps for each key, for tests; if negative, one for so many keys.
    pub key_delay_us: i64,
}

impl Default for Saving {
    fn default() -> Saving {
        Saving {
            name: "dump.rdb".to_owned(),
            points: Vec::new(),
            compresses: true,
            has_checksum: true,
            stops_writes: true,
            key_delay_us: 0,
        }
    }
}

/// Writes a line to the log: level, from 0 for debug to 3 for warning, and text.
pub(crate) type Log = Arc<dyn Fn(u8, &str) + Send + Sync>;

/// The saves of a store.
pub(crate) struct Saver {
    /// The number of the store in this process: stores may share a directory, but no file that is being written.
    number: u64,
    saving: Mutex<Arc<Saving>>,
    /// The directory of the files; [`None`]: nothing is saved.
    files: Mutex<Option<Arc<dyn Files>>>,
    state: Mutex<State>,
    log: Mutex<Option<Log>>,
    own_file: Mutex<OwnFile>,
    /// Whether a file that another process has written is left alone.
    yields: AtomicBool,
    /// The longest time for which the gate was closed for a cut, and a stripe was locked by a pass, in microseconds.
    longest_gate_us: AtomicU64,
    longest_lock: Longest,
}

/// What this process knows of the file that it saves to.
#[derive(Default)]
struct OwnFile {
    /// The directory and the name.
    place: (Vec<u8>, Vec<u8>),
    /// The file that was loaded or saved last, or that there was none; [`None`]: not known for this place.
    seen: Option<Option<Identity>>,
}

struct State {
    job: Option<Arc<Job>>,
    /// Whether another save is to begin when this one has ended.
    is_scheduled: bool,
    /// The end of the last successful save, in Unix seconds; before the first one, the start of the store.
    last_s: u64,
    /// Whether the last save in the background succeeded.
    last_succeeded: bool,
    /// The start of the last one that failed.
    failed_at: Option<Instant>,
    last_took: Option<Duration>,
    /// Changes at the cut of the last successful save.
    changes: u64,
    /// Changes of the data set before it came to this process that are in no file.
    inherited: u64,
    saves: u64,
}

/// What INFO tells of saves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SaveFigures {
    pub(crate) is_running: bool,
    pub(crate) is_background: bool,
    pub(crate) changes: u64,
    pub(crate) last_s: u64,
    pub(crate) last_succeeded: bool,
    pub(crate) last_took_s: Option<u64>,
    pub(crate) takes_s: Option<u64>,
    pub(crate) saves: u64,
    pub(crate) keys: u64,
    pub(crate) keys_total: u64,
    pub(crate) waiting_bytes: u64,
    pub(crate) longest_gate_us: u64,
    pub(crate) longest_lock: Locked,
}

/// The reasons for which a save does not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotSaved {
    /// Another one runs.
    Busy,
    /// The append-only file is being rewritten.
    Rewriting,
    /// The store has no directory.
    Nowhere,
}

/// What a rewrite begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Basis {
    /// The files so far, which stay valid until the new base is there.
    Files,
    /// Nothing: the file is new, or the last one cannot be written any more.
    Anew,
    /// The append-only file is off: the base is all that there is afterwards.
    Closed,
}

/// How a data set gets to replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    /// Straight, by all connections at once, or these parts of it.
    Sockets(Parts),
    /// By the file that a save writes.
    File,
}

/// What a pass is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// SAVE, or the end of the process.
    Save,
    /// BGSAVE and save points.
    Background,
    /// A new base of the append-only file.
    Rewrite(Basis),
    /// The data set for replicas.
    Sync(Medium),
}

impl Kind {
    /// Returns the longest pause that a pass makes for others that want its cores. A replica waits for a sync, and changes
    /// are kept for it meanwhile: it may take half of a core that others want all the time, and [more](Job::hurry) once many
    /// are kept.
    fn pause_max(self) -> Duration {
        match self {
            Kind::Save => Duration::ZERO,
            Kind::Background | Kind::Rewrite(_) => Duration::from_millis(8),
            Kind::Sync(_) => Duration::from_millis(1),
        }
    }
}

/// One save, or one rewrite of the append-only file.
pub(crate) struct Job {
    pub(crate) kind: Kind,
    start: Instant,
    state: Mutex<JobState>,
    is_cancelled: AtomicBool,
}

/// How a save ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SaveEnd {
    /// The file is there.
    Saved,
    /// It was cancelled, or all databases were flushed.
    Cancelled,
    /// Another process has written the file, and this one is about to end.
    Left,
    /// It failed; the log has the reason.
    Failed,
}

#[derive(Default)]
struct JobState {
    pass: Option<Arc<Pass>>,
    keys_total: u64,
    is_cut: bool,
    end: Option<SaveEnd>,
    wakers: Vec<Waker>,
}

impl Job {
    /// Returns whether it rewrites the append-only file.
    pub(crate) fn is_rewrite(&self) -> bool {
        matches!(self.kind, Kind::Rewrite(_))
    }

    /// Returns its duration so far, in seconds.
    pub(crate) fn age_s(&self) -> u64 {
        self.start.elapsed().as_secs()
    }

    /// Waits until the cut is done: what is written from then on is not in the file.
    pub(crate) async fn cut(&self) {
        self.wait(|state| (state.is_cut || state.end.is_some()).then_some(())).await;
    }

    /// Waits until the save has ended.
    pub(crate) async fn ended(&self) -> SaveEnd {
        self.wait(|state| state.end).await
    }

    async fn wait<R>(&self, what: impl Fn(&JobState) -> Option<R>) -> R {
        poll_fn(|context| {
            let mut state = self.state.lock();
            match what(&state) {
                Some(result) => Poll::Ready(result),
                None => {
                    state.wakers.retain(|waker| !waker.will_wake(context.waker()));
                    state.wakers.push(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Like [`ended`](Self::ended), for a thread that may wait.
    pub(crate) fn wait_for_end(&self) -> SaveEnd {
        let mut ended = std::pin::pin!(self.ended());
        block_on(|context| ended.as_mut().poll(context))
    }

    fn change(&self, change: impl FnOnce(&mut JobState)) {
        let wakers = {
            let mut state = self.state.lock();
            change(&mut state);
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Records that it has ended.
    pub(crate) fn end(&self, end: SaveEnd) {
        self.change(|state| {
            state.pass = None;
            state.end = Some(end);
        });
    }

    /// Lets its pass make no more pauses for others.
    pub(crate) fn hurry(&self) {
        if let Some(pass) = &self.state.lock().pass {
            pass.hurry();
        }
    }

    /// Ends it without a file.
    pub(crate) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::SeqCst);
        if let Some(pass) = &self.state.lock().pass {
            pass.give_up();
        }
    }
}

impl Saver {
    /// Returns the saves of a store that begins at this Unix time, in seconds.
    pub(crate) fn new(now_s: u64) -> Saver {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Saver {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            saving: Mutex::default(),
            files: Mutex::default(),
            state: Mutex::new(State {
                job: None,
                is_scheduled: false,
                last_s: now_s,
                last_succeeded: true,
                failed_at: None,
                last_took: None,
                changes: 0,
                inherited: 0,
                saves: 0,
            }),
            log: Mutex::default(),
            own_file: Mutex::default(),
            yields: AtomicBool::new(false),
            longest_gate_us: AtomicU64::new(0),
            longest_lock: Longest::default(),
        }
    }

    pub(crate) fn log(&self, level: u8, text: &str) {
        let log = self.log.lock().clone();
        if let Some(log) = log {
            log(level, text);
        }
    }

    /// Returns the save that runs.
    pub(crate) fn job(&self) -> Option<Arc<Job>> {
        self.state.lock().job.clone()
    }

    /// Returns the end of the last successful save, in Unix seconds; before the first one, the start of the store.
    pub(crate) fn last_s(&self) -> u64 {
        self.state.lock().last_s
    }

    /// Forgets the job that has ended.
    pub(crate) fn forget_job(&self) {
        self.state.lock().job = None;
    }

    /// Lets a save begin when the one that runs has ended, or at the next tick.
    pub(crate) fn schedule(&self) {
        self.state.lock().is_scheduled = true;
    }

    /// Forgets a save that was scheduled. Returns whether there was one.
    pub(crate) fn unschedule(&self) -> bool {
        std::mem::take(&mut self.state.lock().is_scheduled)
    }

    /// Records the file that the store begins with, or that there is none.
    pub(crate) fn begin_with(&self, file: Option<Identity>) {
        self.own_file.lock().seen = Some(file);
    }

    /// Records where the store is saved. In another place any file is its own.
    pub(crate) fn set_place(&self, dir: &[u8], name: &[u8]) {
        let mut own = self.own_file.lock();
        if (&own.place.0[..], &own.place.1[..]) != (dir, name) {
            *own = OwnFile { place: (dir.to_vec(), name.to_vec()), seen: None };
        }
    }

    /// Notes that the data set, which came from another process, has changes that this one did not save.
    pub(crate) fn inherit(&self, changes: u64) {
        self.state.lock().inherited = changes;
    }

    /// Leaves a file that another process has written alone from now on: this one is about to end.
    pub(crate) fn yield_file(&self) {
        self.yields.store(true, Ordering::SeqCst);
    }

    /// Returns whether the file is another process's, to which this one has yielded.
    fn is_of_other(&self, files: &dyn Files, name: &str) -> bool {
        let Some(seen) = self.own_file.lock().seen.filter(|_| self.yields.load(Ordering::SeqCst)) else { return false };
        match files.entry(name.as_bytes()) {
            Ok(Some(found)) => found.kind == EntryKind::File && seen != Some(found.identity()),
            // What cannot be looked at is found out when it is written.
            Ok(None) | Err(_) => false,
        }
    }

    /// Returns the directory of the files.
    pub(crate) fn files(&self) -> Option<Arc<dyn Files>> {
        self.files.lock().clone()
    }

    /// Returns how the store is saved.
    pub(crate) fn saving(&self) -> Arc<Saving> {
        self.saving.lock().clone()
    }
}

impl Store {
    /// Sets how the store is saved from now on.
    pub fn set_saving(&self, saving: Saving) {
        let state = self.0.saver.state.lock();
        *self.0.saver.saving.lock() = Arc::new(saving);
        self.0.set_refuses(&state);
    }

    /// Sets the directory of the files that are written from now on; [`None`]: nothing is saved.
    pub fn set_files(&self, files: Option<Arc<dyn Files>>) {
        *self.0.saver.files.lock() = files;
    }

    /// Sets the function by which saves and the append-only file write to the log.
    pub(crate) fn set_save_log(&self, log: impl Fn(u8, &str) + Send + Sync + 'static) {
        let log: Log = Arc::new(log);
        self.0.appender.set_log(log.clone());
        *self.0.saver.log.lock() = Some(log);
    }

    /// Begins a save, on a thread of its own.
    pub(crate) fn save(&self, is_background: bool) -> Result<Arc<Job>, NotSaved> {
        self.0.begin_job(if is_background { Kind::Background } else { Kind::Save })
    }

    /// Returns what INFO tells of saves.
    pub(crate) fn save_figures(&self) -> SaveFigures {
        let saver = &self.0.saver;
        let changes = self.changes();
        let state = saver.state.lock();
        let job = state.job.as_ref();
        let (keys, keys_total) = job.map_or((0, 0), |job| {
            let of_job = job.state.lock();
            (of_job.pass.as_ref().map_or(0, |pass| pass.keys()), of_job.keys_total)
        });
        SaveFigures {
            is_running: job.is_some_and(|job| matches!(job.kind, Kind::Save | Kind::Background | Kind::Sync(_))),
            is_background: job.is_some_and(|job| matches!(job.kind, Kind::Background | Kind::Sync(_))),
            changes: changes.saturating_sub(state.changes) + state.inherited,
            last_s: state.last_s,
            last_succeeded: state.last_succeeded,
            last_took_s: state.last_took.map(|took| took.as_secs()),
            takes_s: job.filter(|job| job.kind == Kind::Background).map(|job| job.start.elapsed().as_secs()),
            saves: state.saves,
            keys,
            keys_total,
            waiting_bytes: u64::try_from(self.0.keyspace.snapshots.waiting()).unwrap_or(0),
            longest_gate_us: saver.longest_gate_us.load(Ordering::Relaxed),
            longest_lock: saver.longest_lock.get(),
        }
    }
}

/// What DEBUG RELOAD does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reload {
    pub(crate) saves: bool,
    pub(crate) flushes: bool,
    /// Whether keys of the file replace those that exist.
    pub(crate) merges: bool,
}

/// Why a reload failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotReloaded {
    NotSaved,
    NotLoaded,
}

impl Store {
    /// Saves the store, empties it and loads the file, while others wait as during the load at a start. Waits for the end:
    /// to be called on a thread that may.
    pub(crate) fn reload(&self, how: Reload) -> Result<(), NotReloaded> {
        let inner = &self.0;
        let Some(files) = inner.saver.files() else { return Err(NotReloaded::NotSaved) };
        let load = self.begin_load(None).ok_or(NotReloaded::NotLoaded)?;
        let _pause = inner.link.pause();
        if how.saves {
            let job = self.save(false).map_err(|_| NotReloaded::NotSaved)?;
            if job.wait_for_end() != SaveEnd::Saved {
                return Err(NotReloaded::NotSaved);
            }
        }
        if how.flushes {
            inner.empty();
        }
        let saving = inner.saver.saving();
        let log = |level, text: &str| inner.saver.log(level, text);
        let existing = if how.merges { Existing::Replace } else { Existing::Refuse };
        let (checks, keeps_expired) = (saving.has_checksum, inner.memory.follows());
        let options = LoadOptions { checks, existing, keeps_expired, log: &log, ..LoadOptions::default() };
        let loaded = files.open(saving.name.as_bytes()).map_err(|fault| fault.to_string());
        match loaded.and_then(|file| load.run(file, options).map_err(|fault| fault.to_string())) {
            Ok(_) => {
                inner.saver.log(3, "DB reloaded by DEBUG RELOAD");
                Ok(())
            }
            Err(fault) => {
                inner.saver.log(3, &fault);
                Err(NotReloaded::NotLoaded)
            }
        }
    }
}

impl Inner {
    /// Decides whether commands that write are refused. The state stays locked meanwhile, so whoever sees in INFO how a save
    /// has ended finds commands refused, or not, accordingly.
    fn set_refuses(&self, state: &State) {
        let saving = self.saver.saving();
        let is_asked = saving.stops_writes && !saving.points.is_empty();
        self.loading.refuse_writes(is_asked && !state.last_succeeded);
    }

    /// Removes all keys and libraries, to load a file. Waits for scripts.
    pub(crate) fn empty(&self) {
        let (closed, ticket) = self.close_for_cut();
        self.keyspace.own_expiring.clear();
        (0..self.keyspace.databases()).for_each(|db| self.keyspace.flush(&closed, db));
        self.scripts.libraries.flush();
        self.emit(self.forget_tracked());
        self.open_after_cut(closed, ticket);
    }

    /// Opens the gate after [`close_for_cut`](Self::close_for_cut).
    pub(crate) fn open_after_cut(&self, closed: Closed<'_>, ticket: Option<Arc<Ticket>>) {
        drop(closed);
        if let Some(ticket) = ticket {
            self.gate.leave(&ticket);
        }
        self.run_waiting();
    }

    /// Begins a save, or a rewrite, on a thread of its own.
    pub(crate) fn begin_job(&self, kind: Kind) -> Result<Arc<Job>, NotSaved> {
        let saving = self.saver.saving();
        let Some(inner) = self.this.upgrade() else { return Err(NotSaved::Nowhere) };
        let files = match kind {
            Kind::Rewrite(_) | Kind::Sync(_) => None,
            Kind::Save | Kind::Background => Some(self.saver.files().ok_or(NotSaved::Nowhere)?),
        };
        let job = Arc::new(Job {
            kind,
            start: Instant::now(),
            state: Mutex::default(),
            is_cancelled: AtomicBool::new(false),
        });
        {
            let mut state = self.saver.state.lock();
            if let Some(job) = &state.job {
                return Err(if job.is_rewrite() { NotSaved::Rewriting } else { NotSaved::Busy });
            }
            // Closing the file, and loading a second data set, set these flags first and look for a job under this lock then.
            if job.is_rewrite() && self.appender.is_closing() || self.loading.is_aside() {
                return Err(NotSaved::Rewriting);
            }
            if kind == Kind::Save || kind == Kind::Background {
                state.is_scheduled = false;
            }
            state.job = Some(job.clone());
        }
        let of_thread = job.clone();
        let thread = std::thread::Builder::new().name("store-save".into()).spawn(move || match (kind, files) {
            (Kind::Rewrite(basis), _) => inner.run_rewrite(&of_thread, basis, &saving),
            (Kind::Sync(medium), _) => inner.run_sync(&of_thread, medium, &saving),
            (_, Some(files)) => inner.run_save(&of_thread, &*files, &saving),
            (_, None) => unreachable!("seen above"),
        });
        if let Err(fault) = thread {
            match kind {
                Kind::Rewrite(basis) => self.end_rewrite(&job, basis, Err(fault)),
                Kind::Save | Kind::Background => self.end_save(&job, Err(fault), 0),
                Kind::Sync(_) => self.end_sync(&job, &[], Err(fault)),
            }
        }
        Ok(job)
    }

    /// Begins the save that was scheduled, or that a save point asks for.
    pub(crate) fn tick_saves(&self) {
        let saving = self.saver.saving();
        if self.saver.files().is_none() {
            return;
        }
        if self.keyspace.snapshots.take_flushed() && !saving.points.is_empty() {
            // As in Redis, the file does not bring back what was flushed.
            self.saver.schedule();
        }
        let (is_scheduled, last_s, rests) = {
            let state = self.saver.state.lock();
            if state.job.is_some() {
                return;
            }
            let rests = state.failed_at.is_some_and(|at| at.elapsed() < PAUSE);
            (state.is_scheduled, state.last_s, rests)
        };
        if is_scheduled && !rests {
            // Another one that has just begun saves as well.
            let _ = self.begin_job(Kind::Background);
            return;
        }
        if saving.points.is_empty() || rests {
            return;
        }
        let passed_s = self.clock.now_s().saturating_sub(last_s);
        let mut over = saving.points.iter().filter(|point| passed_s > point.seconds).peekable();
        if over.peek().is_none() {
            return;
        }
        // Counting them locks every stripe.
        let changes = self.unsaved_changes();
        if let Some(SavePoint { seconds, .. }) = over.find(|point| changes >= point.changes) {
            self.saver.log(2, &format!("{changes} changes in {seconds} seconds. Saving..."));
            let _ = self.begin_job(Kind::Background);
        }
    }

    /// Returns the number of changes of keys since the start.
    pub(crate) fn changes(&self) -> u64 {
        let pass = self.gate.enter();
        let databases = (0..self.keyspace.databases()).filter_map(|number| self.keyspace.db(&pass, number));
        let counted: u64 =
            databases.map(|db| (0..db.stripes()).map(|stripe| db.lock(stripe).changes).sum::<u64>()).sum();
        counted + self.keyspace.totals.changes.load(Ordering::Relaxed)
    }

    /// Returns the number of changes since the last save.
    pub(crate) fn unsaved_changes(&self) -> u64 {
        let changes = self.changes();
        let state = self.saver.state.lock();
        changes.saturating_sub(state.changes) + state.inherited
    }

    /// Waits for a moment without sections and parked commands, and closes the gate. Returns the ticket that waited.
    pub(crate) fn close_for_cut(&self) -> (Closed<'_>, Option<Arc<Ticket>>) {
        loop {
            if let Some(closed) = self.close_for_cut_until(Instant::now() + LONG) {
                return closed;
            }
        }
    }

    /// Like [`close_for_cut`](Self::close_for_cut), but gives up at this time.
    pub(crate) fn close_for_cut_until(&self, until: Instant) -> Option<(Closed<'_>, Option<Arc<Ticket>>)> {
        if let Some(closed) = self.gate.close() {
            return Some((closed, None));
        }
        let waker = thread::waker();
        let is_over = || Instant::now() >= until;
        while !is_over() {
            let ticket = Arc::new(Ticket::new(self.ticket_id(), KeyList::new(), None));
            self.gate.queue(ticket.clone());
            while ticket.refusal().is_none() && !is_over() {
                // Heard of from here on, so a moment that comes after the next line is not missed.
                ticket.listen(&waker);
                if let Some(closed) = self.gate.close() {
                    return Some((closed, Some(ticket)));
                }
                std::thread::park_timeout(AGAIN);
            }
            // A long script runs, and the clients behind this ticket were refused. They may go on meanwhile.
            self.gate.leave(&ticket);
            self.run_waiting();
            std::thread::sleep(AGAIN);
        }
        None
    }

    /// Makes the cut, and returns the pass, what the file begins with, and the result of `at_cut`, which is called with the
    /// gate closed.
    pub(crate) fn cut_for<T>(
        self: &Arc<Inner>,
        job: &Job,
        saving: &Saving,
        at_cut: impl FnOnce() -> T,
    ) -> (Arc<Pass>, Chunk, T) {
        // On a replica, the data set and the position in the master's stream belong together.
        let _border = self.link.border();
        let (closed, ticket) = self.close_for_cut();
        let start = Instant::now();
        let now_ms = self.clock.now_ms();
        let compression = if saving.compresses { Compression::Lzf } else { Compression::Off };
        let settings = Settings { compression, ..Settings::new(now_ms) };
        let accesses = Accesses::of(self.memory.policy(), ticks_of_ms(now_ms), &self.limits);
        let form = Some(Form { settings, accesses }).filter(|_| !job.is_cancelled.load(Ordering::SeqCst));
        let outlives_flush = matches!(job.kind, Kind::Rewrite(_) | Kind::Sync(_));
        let databases = self.keyspace.cut(&closed, form, outlives_flush);
        let result = at_cut();
        let libraries = self.scripts.libraries.all();
        self.saver.longest_gate_us.fetch_max(start.elapsed().as_micros() as u64, Ordering::Relaxed);
        self.open_after_cut(closed, ticket);
        self.appender.took("save-cut", start);
        let mut first = self.first_chunk(settings, job);
        libraries.iter().for_each(|library| first.library(&library.source));
        let manner = Manner { key_delay_us: saving.key_delay_us, pause_max: job.kind.pause_max() };
        let pass = Arc::new(Pass::new(self.clone(), databases, form, BUDGET, manner));
        let mut keys_total = 0;
        for (number, keys, expiries) in pass.sizes().filter(|(_, keys, _)| *keys > 0) {
            first.database(number.into());
            first.sizes(keys, expiries);
            keys_total += keys;
        }
        job.change(|state| {
            state.pass = Some(pass.clone());
            state.keys_total = keys_total;
            state.is_cut = true;
        });
        if job.is_cancelled.load(Ordering::SeqCst) {
            pass.give_up();
        }
        (pass, first, result)
    }

    /// Like [`cut_for`](Self::cut_for), for a file without keys. Returns what it begins with, and the result of `at_cut`.
    pub(crate) fn cut_without_keys<T>(&self, job: &Job, parts: Parts, at_cut: impl FnOnce() -> T) -> (Chunk, T) {
        let _border = self.link.border();
        let (closed, ticket) = self.close_for_cut();
        let result = at_cut();
        let libraries = self.scripts.libraries.all();
        self.open_after_cut(closed, ticket);
        let mut first = self.first_chunk(Settings::new(self.clock.now_ms()), job);
        if parts == Parts::Functions {
            libraries.iter().for_each(|library| first.library(&library.source));
        }
        job.change(|state| state.is_cut = true);
        (first, result)
    }

    /// Returns what a file begins with: what it tells of the data set.
    fn first_chunk(&self, settings: Settings, job: &Job) -> Chunk {
        let mut first = Chunk::new(settings);
        first.aux(b"redis-ver", crate::redis::REDIS_VERSION.as_bytes());
        first.aux(b"redis-bits", b"64");
        first.aux(b"ctime", (settings.now_ms / 1000).to_string().as_bytes());
        first.aux(b"used-mem", self.memory.told().to_string().as_bytes());
        first.aux(b"aof-base", if job.is_rewrite() { b"1" } else { b"0" });
        first
    }

    fn run_save(self: &Arc<Inner>, job: &Job, files: &dyn Files, saving: &Saving) {
        if self.saver.is_of_other(files, &saving.name) {
            return self.end_save(job, Ok(SaveEnd::Left), 0);
        }
        if job.kind == Kind::Background {
            self.saver.log(2, &format!("Background saving started by pid {}", std::process::id()));
        }
        // What changes meanwhile is saved, and counts as unsaved.
        let changes = self.changes();
        let (pass, first, _) = self.cut_in_stream(job, saving, false);
        let result = self.write_file(&pass, &first, files, saving);
        drop(pass);
        // Databases that were flushed meanwhile can be freed.
        job.change(|state| state.pass = None);
        self.end_save(job, result, changes);
    }

    fn write_file(&self, pass: &Pass, first: &Chunk, files: &dyn Files, saving: &Saving) -> io::Result<SaveEnd> {
        let temporary = match self.saver.number {
            0 => format!("temp-{}.rdb", std::process::id()),
            number => format!("temp-{}-{number}.rdb", std::process::id()),
        };
        match self.fill(pass, first, Replacement::new(files, temporary.as_bytes(), Some(SYNCED_EACH)), saving)? {
            None => Ok(SaveEnd::Cancelled),
            // Once more, as late as possible: the pass may have taken long.
            Some(_) if self.saver.is_of_other(files, &saving.name) => Ok(SaveEnd::Left),
            Some(file) => {
                let identity = file.identity()?;
                let replaced = file.replace(saving.name.as_bytes());
                // After an error, the file is the old one or the new one.
                self.saver.own_file.lock().seen = replaced.is_ok().then_some(identity);
                replaced?;
                Ok(SaveEnd::Saved)
            }
        }
    }

    /// Runs the pass into a file. [`None`] if it was given up.
    pub(crate) fn fill<'f>(
        &self,
        pass: &Pass,
        first: &Chunk,
        file: io::Result<Replacement<'f>>,
        saving: &Saving,
    ) -> io::Result<Option<Replacement<'f>>> {
        let threads = sweepers();
        let mut contents = Contents::default();
        contents.add(first.summed());
        let begun = file.and_then(|mut file| {
            file.write(&contents.magic())?;
            file.write(first.bytes())?;
            Ok(file)
        });
        let file = match begun {
            Ok(file) => file,
            Err(fault) => {
                // The next cut needs a pass in any case.
                pass.give_up();
                pass.run(threads, &Mutex::new(Nothing))?;
                return Err(fault);
            }
        };
        let sink = Mutex::new(RdbFile { file, contents });
        let passed = pass.run(threads, &sink);
        let RdbFile { mut file, contents } = sink.into_inner();
        let Passed { longest, is_whole, .. } = passed?;
        self.saver.longest_lock.note(longest);
        if !is_whole {
            return Ok(None);
        }
        file.write(&contents.tail(contents.magic(), saving.has_checksum))?;
        Ok(Some(file))
    }

    /// Records the end of a save.
    fn end_save(&self, job: &Job, result: io::Result<SaveEnd>, changes: u64) {
        let saver = &self.saver;
        let took = job.start.elapsed();
        let is_background = job.kind == Kind::Background;
        match (&result, is_background) {
            (Ok(SaveEnd::Cancelled), _) => saver.log(2, "Background saving cancelled"),
            (Ok(SaveEnd::Left), _) => {
                saver
                    .log(3, "Another process has written the RDB file since: this one, which ends, leaves it as it is");
            }
            (Ok(_), true) => saver.log(2, "Background saving terminated with success"),
            (Ok(_), false) => saver.log(2, "DB saved on disk"),
            (Err(fault), _) => saver.log(3, &format!("Write error saving DB on disk: {}", reason(fault))),
        }
        if result.is_err() && is_background {
            saver.log(3, "Background saving error");
        }
        {
            let mut state = saver.state.lock();
            state.job = None;
            state.last_took = if is_background { Some(took) } else { state.last_took };
            match &result {
                Ok(SaveEnd::Cancelled | SaveEnd::Left) => {}
                Ok(_) => {
                    state.last_s = self.clock.now_s();
                    state.changes = changes;
                    state.inherited = 0;
                    state.saves += 1;
                    state.last_succeeded = true;
                    state.failed_at = None;
                }
                Err(_) if is_background => {
                    state.last_succeeded = false;
                    state.failed_at = Some(Instant::now());
                }
                // As in Redis, who asked for it is told, and commands that write go on.
                Err(_) => {}
            }
            self.set_refuses(&state);
        }
        job.end(result.unwrap_or(SaveEnd::Failed));
    }
}

/// Returns the number of threads that go through the stripes.
pub(crate) fn sweepers() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(THREADS_MAX)
}

/// A file that is being written.
struct RdbFile<'f> {
    file: Replacement<'f>,
    contents: Contents,
}

impl Sink for RdbFile<'_> {
    fn take(&mut self, bytes: &[u8], summed: (u16, Sum)) -> io::Result<()> {
        self.contents.add(summed);
        self.file.write(bytes)
    }
}

/// Takes nothing.
pub(crate) struct Nothing;

impl Sink for Nothing {
    fn take(&mut self, _: &[u8], _: (u16, Sum)) -> io::Result<()> {
        Ok(())
    }
}
