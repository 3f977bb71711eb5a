//! The append-only file of a store: the thread that writes it, what of it is durable, and its rewrites.
//!
//! While the file is open, the store [records](crate::record) its changes. One thread (`writer`) takes the units in their
//! order, appends them to the last increment and syncs it: with `always` as soon as there is something, so that all
//! commands that came meanwhile are synced together, with `everysec` once a second. [`Appender::durable`] tells who waits:
//! with `always` a client gets no reply to a command that may have changed or seen what is not on the disk.
//!
//! A rewrite cuts the record and the data set at the same moment ([`Inner::cut_for`]): what was recorded before goes to
//! the old increment, which is synced, then a manifest names a new one, and what follows goes there. So only one increment
//! is ever open. A [pass](crate::pass) writes the data set of the cut into a base file, and the next manifest names that
//! in place of the old files. If the append-only file is switched on while the store serves, or after a sync has failed,
//! the store begins *anew* ([`Basis::Anew`](crate::save::Basis)): nothing of what was written before is needed, and the
//! new increment and the base are named together.
//!
//! Errors: a write that fails is tried again each second, and meanwhile commands that write are refused, as by Redis. The
//! same file is never synced again after an error; the store begins anew, which is tried each second too. What was
//! acknowledged before is in memory all the time. With `always`, clients whose changes could not be synced are
//! disconnected: they do not learn whether these last.

mod rewrite;
#[cfg(test)]
mod tests;
mod writer;

use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::Mutex;

use crate::aof::parts::{BaseFormat, Found, Parts, PartsFault};
use crate::files::{Files, Replacement};
use crate::record::outlets::Outlets;
use crate::record::{For, Record};
use crate::save::Log;
use crate::{Inner, Store};
pub(crate) use rewrite::Rewriting;
use writer::Writer;

/// When what was written is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// Before the reply of a command that has changed or seen it.
    Always,
    /// Once a second.
    EverySecond,
    /// When the kernel wants to.
    No,
}

/// How the append-only file is written.
#[derive(Clone, Debug)]
pub struct Appending {
    /// `appenddirname`.
    pub directory: Vec<u8>,
    /// `appendfilename`.
    pub name: Vec<u8>,
    /// `appendfsync`.
    pub fsync: Fsync,
    /// The growth, in percent of the size after the last rewrite, that begins a rewrite; 0: none does.
    pub rewrite_percentage: u32,
    /// The size below which none begins, in bytes.
    pub rewrite_min_bytes: u64,
    /// `aof-timestamp-enabled`.
    pub has_timestamps: bool,
    /// `no-appendfsync-on-rewrite`.
    pub rests_on_rewrite: bool,
}

impl Default for Appending {
    fn default() -> Appending {
        Appending {
            directory: b"appendonlydir".to_vec(),
            name: b"appendonly.aof".to_vec(),
            fsync: Fsync::EverySecond,
            rewrite_percentage: 100,
            rewrite_min_bytes: 64 << 20,
            has_timestamps: false,
            rests_on_rewrite: false,
        }
    }
}

/// The append-only file of a store.
pub(crate) struct Appender {
    options: Mutex<Arc<Appending>>,
    outlets: Arc<Outlets>,
    open: Mutex<Option<Open>>,
    /// The number up to which units are on the disk.
    durable: AtomicU64,
    /// Clients that wait for a unit to be durable.
    waiting: Mutex<Vec<(u64, Waker)>>,
    /// Whether the file is being closed.
    is_closing: AtomicBool,
    /// Whether the file cannot be written or synced at present.
    is_failing: AtomicBool,
    /// Whether workers may write and sync themselves.
    may_help: AtomicBool,
    /// The number of the unit that the thread waits for before it writes and syncs; 0: it waits for none.
    gathered_to: AtomicU64,
    /// The time that a sync has taken lately, in microseconds.
    sync_us: AtomicU64,
    /// Told which step of a save or of the append-only file took long, and from which time on, in milliseconds; 0: never.
    watch: OnceLock<Watch>,
    watched_ms: AtomicU64,
    log: OnceLock<Log>,
    pub(crate) state: Mutex<State>,
}

/// An open file. Of the locks, the writer's comes before that of the parts.
#[derive(Clone)]
struct Open {
    parts: Arc<Mutex<Parts>>,
    writer: Arc<Mutex<Writer>>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

/// Is told the name of a step, as LATENCY has it, and its milliseconds. It does not own the store, which must not be
/// dropped by the thread that writes.
type Watch = Box<dyn Fn(&'static str, u64) + Send + Sync>;

/// What is told of the file.
#[derive(Default)]
pub(crate) struct State {
    /// The error of the last write or sync, by its number and text, until one succeeds.
    pub(crate) error: Option<String>,
    /// The size of the last increment, of those before it, and of the base, in bytes.
    pub(crate) increment_bytes: u64,
    pub(crate) earlier_bytes: u64,
    pub(crate) base_bytes: u64,
    /// The size at the last rewrite, or at the start.
    pub(crate) rewritten_bytes: u64,
    /// Bytes that wait to be written.
    pub(crate) backlog: u64,
    /// Syncs that took longer than [`writer::DELAYED`].
    pub(crate) delayed_syncs: u64,
    pub(crate) is_scheduled: bool,
    pub(crate) is_rewriting: bool,
    /// Whether the store has to begin anew before anything becomes durable.
    pub(crate) must_begin_anew: bool,
    /// Whether the file was switched on and is not there yet.
    pub(crate) is_initial: bool,
    pub(crate) last_took_s: Option<u64>,
    pub(crate) last_failed: bool,
    pub(crate) rewrites: u64,
    /// Rewrites that failed since the last one that succeeded.
    pub(crate) failures: u32,
    pub(crate) failed_at: Option<Instant>,
}

impl State {
    /// Returns the size of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.base_bytes + self.earlier_bytes + self.increment_bytes
    }
}

impl Appender {
    pub(crate) fn new(outlets: Arc<Outlets>) -> Appender {
        Appender {
            options: Mutex::default(),
            outlets,
            open: Mutex::default(),
            durable: AtomicU64::new(0),
            waiting: Mutex::default(),
            is_closing: AtomicBool::new(false),
            is_failing: AtomicBool::new(false),
            may_help: AtomicBool::new(false),
            gathered_to: AtomicU64::new(0),
            sync_us: AtomicU64::new(0),
            watch: OnceLock::new(),
            watched_ms: AtomicU64::new(0),
            log: OnceLock::new(),
            state: Mutex::default(),
        }
    }

    fn record(&self) -> &Record {
        self.outlets.record()
    }

    /// Returns how the file is written.
    pub(crate) fn options(&self) -> Arc<Appending> {
        self.options.lock().clone()
    }

    /// Sets who is told of steps that took long.
    pub(crate) fn set_watch(&self, watch: impl Fn(&'static str, u64) + Send + Sync + 'static) {
        // Set once, at the start.
        let _ = self.watch.set(Box::new(watch));
    }

    /// Sets from which time on a step is told; 0: none is.
    pub(crate) fn watch_from(&self, milliseconds: u64) {
        self.watched_ms.store(milliseconds, Ordering::Relaxed);
    }

    /// Tells of a step that began at this time, if it took long.
    pub(crate) fn took(&self, step: &'static str, since: Instant) {
        let (from_ms, took_ms) = (self.watched_ms.load(Ordering::Relaxed), since.elapsed().as_millis() as u64);
        if from_ms > 0
            && took_ms >= from_ms
            && let Some(watch) = self.watch.get()
        {
            watch(step, took_ms);
        }
    }

    /// Sets how lines are written to the log.
    pub(crate) fn set_log(&self, log: Log) {
        // Set once, at the start.
        let _ = self.log.set(log);
    }

    fn log(&self, level: u8, text: &str) {
        if let Some(log) = self.log.get() {
            log(level, text);
        }
    }

    /// Returns whether the file is open.
    pub(crate) fn is_open(&self) -> bool {
        self.open.lock().is_some()
    }

    /// Returns whether the file is being closed: no rewrite begins.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::SeqCst)
    }

    /// Returns the number up to which units are on the disk.
    pub(crate) fn durable_number(&self) -> u64 {
        self.durable.load(Ordering::SeqCst)
    }

    pub(crate) fn parts(&self) -> Option<Arc<Mutex<Parts>>> {
        self.open.lock().as_ref().map(|open| open.parts.clone())
    }

    /// Lets workers write and sync themselves where that takes no longer than waking a thread for it. To be allowed where a
    /// disk that is slow for once may keep a worker waiting: in a process that only has this store.
    pub(crate) fn let_workers_help(&self, may_help: bool) {
        self.may_help.store(may_help, Ordering::Relaxed);
    }

    /// Writes and syncs what was recorded, or has the thread do that. To be called by a worker that is about to wait for
    /// it.
    pub(crate) fn commit(&self) {
        if self.may_help.load(Ordering::Relaxed) && self.sync_us.load(Ordering::Relaxed) < writer::HELPED_MAX_US {
            let open = self.open.lock().clone();
            if let Some(open) = open
                && let Some(mut writer) = open.writer.try_lock()
            {
                return writer.cycle(self, &open.parts);
            }
        }
        match self.gathered_to.load(Ordering::SeqCst) {
            0 => self.record().wake_sleeping_taker(),
            number if self.record().last() >= number => self.record().wake_taker(),
            _ => {}
        }
    }

    /// Waits until a unit is durable. Returns false if the file cannot be written or synced, or is closed.
    pub(crate) async fn durable(&self, number: u64) -> bool {
        poll_fn(|context| self.poll_durable(context, number)).await
    }

    /// Like [`durable`](Self::durable), for a task that polls.
    pub(crate) fn poll_durable(&self, context: &Context<'_>, number: u64) -> Poll<bool> {
        let is_durable = || self.durable_number() >= number;
        if is_durable() {
            return Poll::Ready(true);
        }
        {
            let mut waiting = self.waiting.lock();
            waiting.retain(|(_, waker)| !waker.will_wake(context.waker()));
            waiting.push((number, context.waker().clone()));
        }
        // Registered before looking, so that an end in between is not missed.
        match is_durable() {
            true => Poll::Ready(true),
            false if self.is_failing.load(Ordering::SeqCst) || !self.has_file() => Poll::Ready(false),
            false => Poll::Pending,
        }
    }

    /// Returns whether changes are recorded, or will be in a moment.
    fn has_file(&self) -> bool {
        self.record().is_for(For::File) || self.state.lock().must_begin_anew
    }

    /// Decides whether replies wait until what they follow is durable. While the store begins anew nothing is.
    fn set_holds(&self) {
        let is_named = self.is_open() && !self.state.lock().must_begin_anew;
        let holds = is_named && self.options().fsync == Fsync::Always && self.record().is_for(For::File);
        self.record().loading().hold_replies(holds);
        if !holds {
            // Replies that waited are sent.
            self.wake(u64::MAX);
        }
    }

    /// Publishes what is durable, and wakes those that waited for it.
    fn publish(&self, durable: u64) {
        if self.durable.swap(durable, Ordering::SeqCst) < durable {
            self.wake(durable);
        }
    }

    /// Wakes those that wait for this number or a lower one.
    fn wake(&self, number: u64) {
        let woken: Vec<Waker> =
            self.waiting.lock().extract_if(.., |(wanted, _)| *wanted <= number).map(|(_, waker)| waker).collect();
        woken.into_iter().for_each(Waker::wake);
    }

    /// Calls `work` with the writer, and lets that go on afterwards; [`None`] if there is no file.
    fn ask<R>(&self, work: impl FnOnce(&mut Writer) -> R) -> Option<R> {
        let open = self.open.lock().clone()?;
        let result = work(&mut open.writer.lock());
        self.record().wake_taker();
        Some(result)
    }
}

/// Why the append-only file cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenFault {
    #[error("{0}")]
    Parts(#[from] PartsFault),
    #[error("Can't open the append-only file: {0}")]
    Io(#[from] io::Error),
}

impl Store {
    /// Sets how the append-only file is written from now on. The names of the files take effect when it is opened.
    pub fn set_appending(&self, appending: Appending) {
        *self.0.appender.options.lock() = Arc::new(appending);
        self.0.appender.set_holds();
        self.0.record.wake_taker();
    }

    /// Returns the appended file's increments and base, found in a directory.
    pub(crate) fn find_append_only(&self, dir: &dyn Files) -> Result<(Parts, Found), PartsFault> {
        let options = self.0.appender.options();
        Parts::open(dir, &options.directory, &options.name)
    }

    /// Begins to append to files whose contents the store has; `whole` is the length up to which the last increment was
    /// read. To be called before the store serves, or while it loads.
    pub(crate) fn append_to(&self, mut parts: Parts, whole: u64) -> io::Result<()> {
        let inner = &self.0;
        parts.settle()?;
        let log = match parts.manifest().increments.last().cloned() {
            Some(last) => {
                let name = last.name.escape_ascii();
                inner.saver.log(2, &format!("Opening AOF incr file {name} on server start"));
                let mut file = parts.directory().append(&last.name)?;
                if file.length()? > whole {
                    file.truncate(whole)?;
                    file.sync_data()?;
                }
                crate::aof::write::Log::new(file, whole, 0)
            }
            None => {
                let (part, file) = parts.create_increment()?;
                let name = part.name.escape_ascii();
                inner.saver.log(2, &format!("Creating AOF incr file {name} on server start"));
                if parts.manifest().base.is_some() {
                    parts.add_increment(part)?;
                } else {
                    // As in Redis, the first base is that of an empty store.
                    let files = parts.directory().clone();
                    let base = inner.base_of_nothing(&*files, &parts.temporary())?;
                    parts.replace_base(base, BaseFormat::Rdb, part.seq, Some(part))?;
                    if let Some(base) = &parts.manifest().base {
                        let name = base.name.escape_ascii();
                        inner.saver.log(2, &format!("Creating AOF base file {name} on server start"));
                    }
                }
                crate::aof::write::Log::new(file, 0, 0)
            }
        };
        // What a process that ended in the middle has left.
        let _ = parts.remove_history();
        let (closed, ticket) = inner.close_for_cut();
        let last = inner.record.last();
        inner.record.set(For::File, true);
        inner.open_after_cut(closed, ticket);
        inner.open_appender(parts, Writer::new(inner.appender.outlets.clone(), log, last))
    }

    /// Begins to append to new files, while the store serves. Waits for the moment from which on changes are recorded, on a
    /// thread that may.
    pub(crate) fn begin_to_append(&self, dir: &dyn Files) -> Result<(), OpenFault> {
        let inner = &self.0;
        if inner.appender.is_open() {
            return Err(io::Error::other("it is being closed").into());
        }
        let options = inner.appender.options();
        let parts = Parts::open_to_replace(dir, &options.directory, &options.name)?;
        {
            let mut state = inner.appender.state.lock();
            (state.must_begin_anew, state.is_initial) = (true, true);
        }
        let writer = Writer::closed(inner.appender.outlets.clone(), inner.record.last());
        inner.open_appender(parts, writer).inspect_err(|_| {
            *inner.appender.state.lock() = State::default();
        })?;
        inner.begin_rewrite();
        Ok(())
    }

    /// Writes and syncs what was recorded so far, for the end of the process. [`None`] if there is no append-only file.
    pub fn sync_at_end(&self) -> Option<io::Result<()>> {
        let inner = &self.0;
        // A master's commands are whole in the file and in the stream.
        let _border = inner.link.border();
        let last = inner.record.last();
        if let Some(moment) = inner.moment() {
            inner.outlets.end_file_with(last, &moment.annotation());
        }
        inner.appender.ask(|writer| writer.end(last))
    }

    /// Writes and syncs everything that was recorded, and closes the file. The store records no more.
    pub(crate) fn end_appending(&self) -> io::Result<()> {
        self.0.end_appending()
    }
}

impl Inner {
    /// Returns the base file of an empty store.
    fn base_of_nothing<'f>(&self, files: &'f dyn Files, temporary: &[u8]) -> io::Result<Replacement<'f>> {
        use sluicegate_data::rdb::file::{Chunk, Contents, Settings};
        let mut first = Chunk::new(Settings::new(self.clock.now_ms()));
        first.aux(b"redis-ver", crate::redis::REDIS_VERSION.as_bytes());
        first.aux(b"aof-base", b"1");
        let mut contents = Contents::default();
        contents.add(first.summed());
        let mut base = Replacement::new(files, temporary, None)?;
        base.write(&contents.magic())?;
        base.write(first.bytes())?;
        base.write(&contents.tail(contents.magic(), self.saver.saving().has_checksum))?;
        Ok(base)
    }

    /// Starts the thread that writes.
    fn open_appender(&self, parts: Parts, writer: Writer) -> io::Result<()> {
        let appender = &self.appender;
        {
            let mut state = appender.state.lock();
            rewrite::measure(&parts, &mut state);
            state.rewritten_bytes = state.bytes();
            let before = writer.written();
            // A file that begins anew has nothing until a manifest names it.
            let durable = if state.must_begin_anew { 0 } else { before };
            appender.durable.store(durable, Ordering::SeqCst);
        }
        let (parts, writer) = (Arc::new(Mutex::new(parts)), Arc::new(Mutex::new(writer)));
        let (of_thread, parts_of_thread, writer_of_thread) = (appender.clone(), parts.clone(), writer.clone());
        let thread = std::thread::Builder::new()
            .name("store-append".into())
            .spawn(move || writer::run(&of_thread, &parts_of_thread, &writer_of_thread))?;
        *appender.open.lock() = Some(Open { parts, writer, thread: Arc::new(Mutex::new(Some(thread))) });
        appender.set_holds();
        Ok(())
    }

    /// Writes and syncs everything, and closes the file.
    fn end_appending(&self) -> io::Result<()> {
        let appender = &self.appender;
        if !appender.is_open() {
            return Ok(());
        }
        self.stop_rewriting();
        let (closed, ticket) = self.close_for_cut();
        let last = self.record.last();
        self.record.set(For::File, false);
        self.open_after_cut(closed, ticket);
        let ended = appender.ask(|writer| writer.end(last)).unwrap_or(Ok(()));
        appender.close();
        self.loading.refuse_appending(None);
        ended
    }

    /// Ends a rewrite, and lets none begin, if there is a file, which is about to be closed.
    pub(crate) fn stop_rewriting(&self) {
        if self.appender.is_open() {
            // First, since one that begins anew has changes recorded from its cut on, also if it is cancelled before that.
            // Units that nobody takes would be in the way of those of the next file.
            self.appender.is_closing.store(true, Ordering::SeqCst);
            self.cancel_rewrite();
        }
    }

    /// Lets rewrites begin again, as the file is not closed after all.
    pub(crate) fn allow_rewriting(&self) {
        self.appender.is_closing.store(false, Ordering::SeqCst);
    }

    /// Writes and syncs everything up to this unit, the last, and an annotation, and lets another process append to the file.
    /// The gate is closed until [`take_file_back`](Self::take_file_back) or [`leave_file`](Self::leave_file).
    pub(crate) fn lend_file(&self, last: u64, annotation: &[u8]) -> io::Result<()> {
        let appender = &self.appender;
        self.record.set(For::File, false);
        appender.outlets.end_file_with(last, annotation);
        let ended = appender.ask(|writer| writer.end(last)).unwrap_or(Ok(()));
        if let Some(parts) = appender.parts() {
            parts.lock().unlock();
        }
        ended
    }

    /// Appends to the file again, without what the other process has added.
    pub(crate) fn take_file_back(&self) -> io::Result<()> {
        let appender = &self.appender;
        if let Some(parts) = appender.parts() {
            parts.lock().lock_again();
        }
        let cut = appender.ask(Writer::cut).unwrap_or(Ok(()));
        appender.outlets.continue_file();
        self.record.set(For::File, true);
        appender.set_holds();
        cut
    }

    /// Closes the file, which belongs to the other process.
    pub(crate) fn leave_file(&self) {
        self.appender.close();
        self.loading.refuse_appending(None);
    }
}

impl Appender {
    /// Ends the thread.
    fn close(&self) {
        self.record().loading().hold_replies(false);
        self.ask(Writer::stop);
        let open = self.open.lock().clone();
        let thread = open.and_then(|open| open.thread.lock().take());
        if let Some(thread) = thread {
            // A panic of the thread was printed.
            let _ = thread.join();
        }
        self.outlets.close_file();
        *self.state.lock() = State::default();
        self.is_failing.store(false, Ordering::SeqCst);
        {
            // Together, for whoever begins another file.
            let mut open = self.open.lock();
            if let Some(open) = open.take() {
                // A thread that is about to ask the writer may still have a reference to the files.
                open.parts.lock().unlock();
            }
            self.is_closing.store(false, Ordering::SeqCst);
        }
        self.wake(u64::MAX);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.outlets.end_stream();
        self.record.wake_streamer();
        if self.appender.is_open() {
            let last = self.record.last();
            // Who drops a store does not ask whether its end was written.
            let _ = self.appender.ask(|writer| writer.end(last));
            self.appender.close();
        }
    }
}
