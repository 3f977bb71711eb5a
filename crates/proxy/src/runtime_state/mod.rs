//! The state file (`runtime-state-file`): what a process learned while it ran, for the next one.
//!
//! It has the entries of stick tables, the keys of `limit` rules, `proc.` variables, the states of servers and the
//! counters, a module for each, in frames of a common format (`frame`). It is written every few seconds and at the end of
//! the process, and read before listeners open. Definitions of the configuration win over the file: what a changed
//! definition does not fit is left out, with a message. A file that is damaged anywhere is not used.
//!
//! **Writing.** A thread goes through the tables while workers use them. It copies about a hundred entries under a lock
//! (some microseconds), and computes checksums and writes without one. So the file is not a snapshot of one moment: each
//! entry is as it was at some moment of the pass. The file is written beside the old one, synced, and renamed; one whose
//! content has not changed is discarded instead, so that an idle process does not use the disk. After a write that took
//! long the thread rests for `REST` times as long, so that it uses at most a tenth of a core.
//!
//! **Times.** Ticks and durations are written as they are, with the time of the file on both scales in its header; the
//! reader shifts them by the time that has passed since, so what was to end meanwhile has ended.
//!
//! **One writer.** The file has the start of the process that wrote it. A process that finds the file of a later one in
//! the place of its own has been replaced, and leaves the file alone from then on.

mod counters;
mod frame;
mod limits;
mod servers;
mod tables;
mod variables;

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use sluicegate_config::model::{Global, RuntimeState};

use self::frame::{Header, Writer};
use self::limits::Limits;
pub use self::limits::{restore_keys, stores_with_kept_keys};
use self::tables::Tables;
pub use self::variables::Presets;
use crate::log::Severity;
use crate::reload::Current;
use crate::running::Running;
use crate::server::{self, KeptStates};

/// The time between two writes is at least this many times the duration of the first.
const REST: u32 = 9;
/// The time after which a file is written even if nothing has changed, as ticks can't express ages of weeks.
const REFRESHED: Duration = Duration::from_secs(24 * 60 * 60);
/// A step of the wall clock that makes the times in a file wrong.
const STEP_MS: u64 = 1_000;

/// The kinds of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Table = 1,
    Limit = 2,
    Presets = 3,
    Variables = 4,
    Servers = 5,
    Counters = 6,
}

impl Kind {
    fn of(number: u8) -> Option<Kind> {
        let all = [Kind::Table, Kind::Limit, Kind::Presets, Kind::Variables, Kind::Servers, Kind::Counters];
        all.into_iter().find(|kind| *kind as u8 == number)
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Returns the time that has passed since a moment, in milliseconds; 0 if the clock was set back.
fn since(moment_ms: u64) -> u64 {
    unix_ms().saturating_sub(moment_ms)
}

/// Returns the path of the file as seen before `chroot`.
fn outside(global: &Global, path: &Path) -> PathBuf {
    match &global.chroot {
        Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
        None => path.to_owned(),
    }
}

/// The result of a restoration, with the parts that others restore later.
#[derive(Debug, Default)]
pub struct Restored {
    /// The states of servers.
    pub servers: KeptStates,
    /// The variables' lines of `global` that are in effect already.
    pub presets: Presets,
    /// Messages about what was left out.
    pub notes: Vec<String>,
}

/// Restores the state of the previous process in a configuration that is about to be served, except that of servers;
/// called before `chroot`.
pub fn restore(running: &Arc<Running>) -> Restored {
    let global = &running.config.global;
    let Some(state) = &global.runtime_state else { return Restored::default() };
    let path = outside(global, &state.path);
    let said = |text: String| format!("'runtime-state-file': {}: {text}", path.display());
    let without = |text| Restored { notes: vec![said(text)], ..Restored::default() };
    let file = match open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Restored::default(),
        Err(error) => return without(format!("{error}; the process begins without its state")),
    };
    match adopt(running, BufReader::new(file)) {
        Ok(restored) => Restored { notes: restored.notes.into_iter().map(said).collect(), ..restored },
        Err(fault) => {
            // Kept for an examination, since the next write takes its place.
            let aside = beside(&path, "damaged");
            let kept = match std::fs::rename(&path, &aside) {
                Ok(()) => format!("; it is kept as {}", aside.display()),
                Err(_) => String::new(),
            };
            without(format!("{fault}; the process begins without its state{kept}"))
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a file")) }
}

fn adopt(running: &Arc<Running>, from: impl io::Read + io::Seek) -> Result<Restored, frame::Fault> {
    let mut restored = Restored::default();
    let (mut tables, mut limits) = (None, Limits::default());
    let mut malformed = 0u64;
    frame::read(from, |header, kind, body| {
        let taken = match Kind::of(kind) {
            Some(Kind::Table) => tables.get_or_insert_with(|| Tables::new(running, header)).take(body),
            Some(Kind::Limit) => limits::take(&mut limits, running, body),
            Some(Kind::Presets) => restored.presets.take(body),
            Some(Kind::Variables) => variables::take(body),
            Some(Kind::Servers) => servers::take(&mut restored.servers, running, header, body),
            Some(Kind::Counters) => counters::take(running, body),
            // A later version's.
            None => Some(()),
        };
        malformed += u64::from(taken.is_none());
    })?;
    restored.notes = tables.map_or_else(Vec::new, Tables::finish);
    restored.notes.extend(limits.finish());
    if malformed > 0 {
        restored.notes.push(format!("{malformed} parts of it are not understood, and left out"));
    }
    Ok(restored)
}

fn beside(path: &Path, what: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(what);
    name.into()
}

/// Writes the state file once, for a process that is about to replace this one. Blocks.
pub fn write_once(current: &Arc<Current>) {
    Keeper::new(current.clone()).write_now();
}

/// Writes the state file of a process.
pub(crate) struct Keeper {
    current: Arc<Current>,
    /// The start of this process in milliseconds since 1970.
    started_ms: u64,
    written: Mutex<Written>,
}

/// The last file that was written.
#[derive(Default)]
struct Written {
    path: Option<PathBuf>,
    digest: u32,
    /// The moment at which the scale of ticks began, by the wall clock.
    epoch_ms: u64,
    at: Option<Instant>,
    /// Whether the last attempt failed.
    has_failed: bool,
    /// Whether another process has taken over the file.
    is_lost: bool,
}

impl Keeper {
    pub(crate) fn new(current: Arc<Current>) -> Arc<Keeper> {
        let started = current.running().process.started_at;
        let started_ms = started.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        Arc::new(Keeper { current, started_ms, written: Mutex::default() })
    }

    /// Writes the file periodically, until the process ends.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut changes = self.current.watch();
        // At once, so that a process which this one replaces leaves the file alone.
        let mut pause = Duration::ZERO;
        loop {
            let state = changes.borrow_and_update().config.global.runtime_state.clone();
            let Some(state) = state else {
                match changes.changed().await {
                    Ok(()) => continue,
                    Err(_) => return,
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                changed = changes.changed() => match changed {
                    // The next write may be due earlier, or elsewhere.
                    Ok(()) => {
                        pause = pause.min(state.interval);
                        continue;
                    }
                    Err(_) => return,
                }
            }
            let took = self.clone().write().await;
            pause = state.interval.max(took * REST);
        }
    }

    /// Writes the file. Returns how long that took.
    pub(crate) async fn write(self: Arc<Self>) -> Duration {
        let (done, waiting) = tokio::sync::oneshot::channel();
        let thread = std::thread::Builder::new().name("state".into());
        let spawned = thread.spawn(move || {
            let begun = Instant::now();
            self.write_now();
            // Nobody waits for it if the process ends.
            let _ = done.send(begun.elapsed());
        });
        match spawned {
            Ok(_) => waiting.await.unwrap_or_default(),
            Err(_) => Duration::ZERO,
        }
    }

    fn write_now(&self) {
        let mut written = self.written.lock();
        let running = self.current.running();
        let Some(state) = &running.config.global.runtime_state else { return };
        if written.path.as_ref() != Some(&state.path) {
            *written = Written { path: Some(state.path.clone()), ..Written::default() };
        }
        if written.is_lost {
            return;
        }
        match self.replace(&running, state, &mut written) {
            Ok(()) => {
                if std::mem::take(&mut written.has_failed) {
                    say(&running, Severity::Notice, state, "it is written again");
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut written.has_failed, true) {
                    say(&running, Severity::Alert, state, &format!("it can't be written: {error}"));
                }
            }
        }
    }

    fn replace(&self, running: &Running, state: &RuntimeState, written: &mut Written) -> io::Result<()> {
        if written.at.is_some() && self.is_of_later(&state.path) {
            written.is_lost = true;
            say(running, Severity::Notice, state, "another process writes it now; this one does not any more");
            return Ok(());
        }
        let begun = Instant::now();
        let header = Header { started_ms: self.started_ms, unix_ms: unix_ms(), ticks: crate::stick::now_ms() };
        let epoch_ms = header.unix_ms.wrapping_sub(header.ticks.into());
        let new = beside(&state.path, "new");
        // Two processes with this file write in turn, until the older one sees that there is a later one.
        let Some(file) = create(&new)? else { return Ok(()) };
        let result = (|| {
            let mut writer = Writer::new(BufWriter::with_capacity(1 << 18, &file), &header)?;
            write_all(running, &mut writer)?;
            let (_, digest, _) = writer.finish()?;
            let is_same = written.at.is_some_and(|at| at.elapsed() < REFRESHED)
                && written.digest == digest
                && written.epoch_ms.abs_diff(epoch_ms) < STEP_MS
                && state.path.exists();
            if is_same {
                return std::fs::remove_file(&new);
            }
            file.sync_all()?;
            std::fs::rename(&new, &state.path)?;
            let directory = state.path.parent().filter(|directory| !directory.as_os_str().is_empty());
            File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
            (written.digest, written.epoch_ms, written.at) = (digest, epoch_ms, Some(begun));
            Ok(())
        })();
        if result.is_err() {
            // An unfinished file is of no use, and the disk may be full.
            let _ = std::fs::remove_file(&new);
        }
        result
    }

    /// Returns whether the file was written by a process that began later.
    fn is_of_later(&self, path: &Path) -> bool {
        let header = open(path).ok().and_then(|mut file| Header::read(&mut file).ok());
        header.is_some_and(|header| header.started_ms > self.started_ms)
    }
}

/// Creates a file, or empties what a process left there that was killed, and locks it. [`None`] if another process writes
/// it now.
fn create(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(std::fs::TryLockError::WouldBlock) => return Ok(None),
        Err(std::fs::TryLockError::Error(error)) => return Err(error),
    }
    // The process that had the lock may have given the file its name, or removed it.
    let (locked, named) = (file.metadata()?, std::fs::symlink_metadata(path));
    let is_it = named.is_ok_and(|named| (named.dev(), named.ino()) == (locked.dev(), locked.ino()));
    if !is_it {
        return Ok(None);
    }
    if !locked.is_file() || locked.nlink() > 1 {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is in use for something else"));
    }
    file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    file.set_len(0)?;
    Ok(Some(file))
}

fn say(running: &Running, severity: Severity, state: &RuntimeState, text: &str) {
    let text = format!("'runtime-state-file': {}: {text}", state.path.display());
    running.logger.send(&running.config.global.log, severity, text.as_bytes());
}

fn write_all<W: io::Write>(running: &Running, writer: &mut Writer<W>) -> io::Result<()> {
    tables::write(running, writer)?;
    limits::write(running, writer)?;
    variables::write(running, writer)?;
    servers::write(running, writer)?;
    counters::write(running, writer)
}

/// Reads arbitrary bytes as a state file, and as a frame of one whose checksums are right: the entry of a fuzzer.
#[doc(hidden)]
pub fn fuzz_runtime_state(running: &Arc<Running>, kind: u8, data: &[u8]) {
    let _ = adopt(running, io::Cursor::new(data));
    let header = Header { started_ms: 0, unix_ms: unix_ms(), ticks: crate::stick::now_ms() };
    let mut writer = Writer::new(Vec::new(), &header).expect("memory");
    writer.frame(kind.max(1), &data[..data.len().min(frame::BODY_MAX)]).expect("memory");
    let (bytes, ..) = writer.finish().expect("memory");
    let restored = adopt(running, io::Cursor::new(bytes)).expect("a whole file");
    server::restore_states(running, &restored.servers, &|_| Err(io::ErrorKind::NotFound.into()));
}

#[cfg(test)]
mod tests;
