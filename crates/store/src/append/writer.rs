//! The thread that writes the append-only file.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::{Appender, Fsync, State};
use crate::aof::manifest::Part;
use crate::aof::parts::Parts;
use crate::aof::write::Log;
use crate::files::{File, reason};
use crate::record::outlets::{ForFile, Outlets};

/// The time for which units are gathered if nobody waits for them, and at most if somebody does.
const GATHERED: Duration = Duration::from_millis(2);
/// The time of a sync that is expected at first, in microseconds.
const SYNC_MIN_US: u64 = 50;
/// The time between two syncs with `everysec`, and after which a write that failed is tried again. Shorter in tests, which
/// have many disks that fail.
const SECOND: Duration = if cfg!(test) { Duration::from_millis(3) } else { Duration::from_secs(1) };
/// The time that a sync may take where workers write and sync themselves, in microseconds.
pub(super) const HELPED_MAX_US: u64 = 300;
/// The time after which a sync counts as delayed.
pub(super) const DELAYED: Duration = Duration::from_secs(2);

/// The start of Redis's line about such a sync.
const TOO_LONG: &str = "Asynchronous AOF fsync is taking too long (disk is busy?).";

/// The end of the thread, even by a panic: nobody waits for it any more.
struct Gone<'a>(&'a Appender);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.0.is_failing.store(true, Ordering::SeqCst);
        self.0.wake(u64::MAX);
    }
}

/// Runs the thread, until the writer is stopped.
pub(super) fn run(appender: &Appender, parts: &Mutex<Parts>, writer: &Mutex<Writer>) {
    appender.record().set_taker();
    let _gone = Gone(appender);
    loop {
        let fsync = appender.options().fsync;
        let (pause, has_failed, has_written, expected) = {
            let mut writer = writer.lock();
            if writer.is_stopped {
                return;
            }
            let written = writer.written;
            writer.cycle(appender, parts);
            let pause = match (fsync, writer.is_behind()) {
                // Until a failed write is tried again.
                _ if writer.failed_at.is_some() => Some(SECOND),
                (Fsync::EverySecond, true) => Some(SECOND.saturating_sub(writer.synced_at.elapsed())),
                _ => None,
            };
            (pause, writer.failed_at.is_some(), writer.written != written, writer.expected)
        };
        // While changes keep coming that nobody waits for, it sleeps once a time, and nobody has to wake it.
        if has_failed || !has_written || fsync == Fsync::Always {
            if has_failed {
                appender.record().rest(pause);
                continue;
            }
            appender.outlets.sleep_for_file(pause);
            if appender.record().waiting() == 0 {
                continue;
            }
        }
        match fsync {
            Fsync::Always => gather(appender, expected),
            _ => std::thread::sleep(GATHERED),
        }
    }
}

/// Waits until the units up to a number are there, for at most half of the time of a sync: with a slow disk, half of the
/// clients would wait for each sync otherwise, the others for the next one.
fn gather(appender: &Appender, expected: u64) {
    let sync_us = appender.sync_us.load(Ordering::Relaxed);
    if sync_us < HELPED_MAX_US {
        return;
    }
    let (start, longest) = (Instant::now(), Duration::from_micros(sync_us / 2).min(GATHERED));
    appender.gathered_to.store(expected, Ordering::SeqCst);
    // A worker that does not see this has drawn its number already, so `last` counts it.
    while appender.record().last() < expected
        && let Some(left) = longest.checked_sub(start.elapsed())
    {
        std::thread::park_timeout(left);
    }
    appender.gathered_to.store(0, Ordering::SeqCst);
}

/// Lifts the barrier of a cut at the end, however that comes.
struct Opens<'a>(&'a Appender);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.record().lift_barrier();
    }
}

/// The thread's own state.
pub(super) struct Writer {
    /// [`None`] until the store has begun anew.
    log: Option<Log>,
    outlets: Arc<Outlets>,
    /// The part of a log that no manifest names yet.
    unnamed: Option<Part>,
    /// The numbers up to which units are appended, in the file, and synced.
    appended: u64,
    written: u64,
    synced: u64,
    /// The number of the last unit that is expected soon after the last sync.
    expected: u64,
    /// When the file was synced last, or the last attempt failed.
    synced_at: Instant,
    failed_at: Option<Instant>,
    /// Whether the manifest has to be written again before anything else is.
    must_settle: bool,
    is_stopped: bool,
}

impl Writer {
    /// Returns a writer of the units behind this one.
    pub(super) fn new(outlets: Arc<Outlets>, log: Log, before: u64) -> Writer {
        outlets.begin_file(before + 1);
        Writer { log: Some(log), ..Writer::closed(outlets, before) }
    }

    /// Returns a writer without a file, for the units behind this one.
    pub(super) fn closed(outlets: Arc<Outlets>, before: u64) -> Writer {
        Writer {
            log: None,
            outlets,
            unnamed: None,
            appended: before,
            written: before,
            synced: before,
            expected: 0,
            synced_at: Instant::now(),
            failed_at: None,
            must_settle: false,
            is_stopped: false,
        }
    }

    /// Returns the number of the last unit in the file.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Lets the thread end.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Returns whether something is written and not synced.
    fn is_behind(&self) -> bool {
        self.synced < self.written
    }

    /// Takes what was recorded, writes it, and syncs it if it is time.
    pub(super) fn cycle(&mut self, appender: &Appender, parts: &Mutex<Parts>) {
        let is_due = self.failed_at.is_none_or(|at| at.elapsed() >= SECOND);
        let result = if is_due { self.write(appender, parts) } else { Ok(()) };
        self.note(appender, is_due.then_some(result));
    }

    fn write(&mut self, appender: &Appender, parts: &Mutex<Parts>) -> io::Result<()> {
        if self.log.is_none() {
            return Ok(());
        }
        let options = appender.options();
        if self.must_settle {
            parts.lock().settle()?;
            self.must_settle = false;
        }
        if options.has_timestamps && self.outlets.waiting() > 0 {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.outlets.annotate(now.as_secs());
        }
        let start = Instant::now();
        self.append()?;
        appender.took("aof-write", start);
        let rests = options.rests_on_rewrite && appender.state.lock().is_rewriting;
        let is_time = match options.fsync {
            Fsync::Always => true,
            Fsync::EverySecond => self.synced_at.elapsed() >= SECOND,
            Fsync::No => false,
        };
        if is_time && self.is_behind() && !rests {
            let start = Instant::now();
            self.sync()?;
            let took = start.elapsed();
            if options.fsync == Fsync::Always {
                appender.took("aof-fsync-always", start);
            }
            let before = appender.sync_us.load(Ordering::Relaxed);
            // A single long one is not how the disk is.
            let counted_us = (took.as_micros() as u64).min(2 * before.max(SYNC_MIN_US));
            appender.sync_us.store((7 * before + counted_us) / 8, Ordering::Relaxed);
            if took > DELAYED {
                appender.state.lock().delayed_syncs += 1;
                if options.fsync == Fsync::EverySecond {
                    let seconds = took.as_secs_f64();
                    appender.log(2, &format!("{TOO_LONG} It took {seconds:.1} s, in which nothing was written."));
                }
            }
        }
        Ok(())
    }

    /// Appends the units that were recorded so far, and writes them.
    fn append(&mut self) -> io::Result<()> {
        let Writer { log: Some(log), outlets, .. } = self else { return Ok(()) };
        let mut is_first = true;
        loop {
            // Changes recorded meanwhile are written next time, so that the sync does not wait for them.
            let ForFile { number, is_some } = outlets.take_for_file(is_first, log);
            is_first = false;
            self.appended = number;
            log.flush()?;
            self.written = self.appended;
            if !is_some {
                return Ok(());
            }
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        let Some(log) = &mut self.log else { return Ok(()) };
        self.synced_at = Instant::now();
        let written = self.written;
        log.sync()?;
        // Whoever waits for this sync may send as much again, behind what has come meanwhile. Nobody has been told of it yet.
        self.expected = self.outlets.record().last() + (written - self.synced);
        self.synced = written;
        Ok(())
    }

    /// Tells others what was done.
    fn note(&mut self, appender: &Appender, result: Option<io::Result<()>>) {
        let is_named = self.log.is_some() && self.unnamed.is_none();
        let mut state = appender.state.lock();
        let before = state.error.clone();
        match result {
            None => {}
            Some(Ok(())) => self.failed_at = None,
            Some(Err(error)) => {
                self.failed_at = Some(Instant::now());
                // A log that is not sound refuses everything; the first error is the reason of that.
                if !state.must_begin_anew || state.error.is_none() {
                    state.error = Some(reason(&error));
                }
                state.must_begin_anew |= self.log.as_ref().is_some_and(|log| !log.is_sound());
            }
        }
        let is_failing = self.failed_at.is_some() || state.must_begin_anew && state.error.is_some();
        if !is_failing {
            state.error = None;
        }
        if let Some(log) = &self.log {
            state.increment_bytes = log.length();
        }
        state.backlog = self.log.as_ref().map_or(0, |log| log.waiting() as u64) + self.outlets.waiting();
        let error = state.error.clone();
        drop(state);
        match (&before, &error) {
            // Tried each second, and logged once.
            (before, Some(error)) if before.as_ref() != Some(error) => {
                appender.log(3, &format!("Error writing to the AOF file: {error}"));
            }
            (Some(_), None) => appender.log(2, "AOF write error looks solved, Redis can write again."),
            _ => {}
        }
        appender.is_failing.store(is_failing, Ordering::SeqCst);
        appender.record().loading().refuse_appending(error.filter(|_| is_failing).as_deref());
        if is_named {
            appender.publish(self.synced);
        }
        if is_failing {
            appender.wake(u64::MAX);
        }
    }

    /// Removes what another process has appended.
    pub(super) fn cut(&mut self) -> io::Result<()> {
        self.log.as_mut().map_or(Ok(()), Log::cut)
    }

    /// Writes and syncs the units up to this one, the last.
    pub(super) fn end(&mut self, last: u64) -> io::Result<()> {
        self.outlets.end_file(last);
        self.append()?;
        self.sync()
    }

    /// Begins a new increment with the unit after this one: the old one is synced, and a manifest names the new one.
    pub(super) fn rotate(&mut self, appender: &Appender, parts: &Mutex<Parts>, last: u64) -> io::Result<i64> {
        let _opens = Opens(appender);
        self.append()?;
        self.sync()?;
        let mut parts = parts.lock();
        parts.settle()?;
        let (part, file) = parts.create_increment()?;
        appender.log(2, &format!("Creating AOF incr file {} on background rewrite", part.name.escape_ascii()));
        let seq = part.seq;
        // Until the manifest is known, the old increment may not be the last one.
        self.must_settle = true;
        parts.add_increment(part)?;
        self.must_settle = false;
        let position = self.log.as_ref().map_or(0, Log::appended);
        self.outlets.begin_file(last + 1);
        self.log = Some(Log::new(file, 0, position));
        Ok(seq)
    }

    /// Begins anew with the unit after this one: nothing before it is written any more.
    pub(super) fn begin_anew(&mut self, appender: &Appender, parts: &Mutex<Parts>, last: u64) -> io::Result<()> {
        let _opens = Opens(appender);
        let (part, file) = parts.lock().create_increment()?;
        appender.log(2, &format!("Creating AOF incr file {} on background rewrite", part.name.escape_ascii()));
        self.use_anew(part, file, last);
        Ok(())
    }

    fn use_anew(&mut self, part: Part, file: Box<dyn File>, last: u64) {
        self.outlets.begin_file(last + 1);
        (self.appended, self.written, self.must_settle) = (last, last, false);
        let (position, durable) = self.log.as_ref().map_or((0, 0), |log| (log.appended(), log.durable()));
        self.log = Some(Log::unnamed(file, position, durable));
        self.unnamed = Some(part);
        self.failed_at = None;
    }

    /// Returns the part that no manifest names yet.
    pub(super) fn unnamed(&self) -> Option<Part> {
        self.unnamed.clone()
    }

    /// Records that a manifest names the file, with a base of what was before it.
    pub(super) fn set_named(&mut self, state: &Mutex<State>, last: u64) {
        self.unnamed = None;
        if let Some(log) = &mut self.log {
            log.set_named();
        }
        // What the base has is durable.
        self.synced = self.synced.max(last);
        let mut state = state.lock();
        (state.must_begin_anew, state.is_initial) = (false, false);
    }
}
