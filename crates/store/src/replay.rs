//! Replay: the append-only file becomes the data set, by executing its commands.
//!
//! The base file comes first, an RDB file that all cores load, or commands, or both, as old versions wrote them; then the
//! increments. Commands run without a client: none of them waits, is counted, or publishes events of keys. Those of one
//! key run on all cores, where each key has its thread (`lanes`). The commands of a transaction run when its EXEC was
//! read, so one whose EXEC is missing has no effect.
//!
//! As in Redis, nothing counts as expired meanwhile, and an expiry that has passed is set like others: the file itself
//! says when keys and elements were removed, and a command before that may rely on them or revive them. Nothing is evicted,
//! and no command is refused because memory is full.
//!
//! A last file that a crash may have cut is shortened to its last whole command or transaction, if that is allowed; zeros
//! up to its end are a cut, too. Anything else that is wrong ends the replay with an error in Redis's words. What was
//! executed before is then still there, and the caller decides what becomes of it.
//!
//! Cost: about that of the command under the lock of its stripe, plus the reading of its words, which are not copied.

pub(crate) mod lanes;
pub(crate) mod runner;

use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sluicegate_data::pages::Filling;
use sluicegate_wire::resp::parse_i64;
use smallvec::SmallVec;

use crate::aof::manifest::Part;
use crate::aof::parts::Parts;
use crate::aof::read::{AofReader, Command, End, EndKind, Event, is_rdb};
use crate::catalogue::{CommandSpec, Detached, Handler, Numbered};
use crate::command::{EXPIRE_MEMBERS, SPEXPIREAT};
use crate::files::{File, reason};
use crate::levels::{NOTICE, WARNING};
use crate::memory::Memory;
use crate::record::annotation;
use crate::replication::Moment;
use crate::{Inner, Load, LoadFault, LoadOptions};
use lanes::{Broken, Lanes};
use runner::{ERRORS_LOGGED, Runner, Source};

/// The number of commands between two updates of the progress.
const COMMANDS_PER_REPORT: u64 = 1024;
/// The bytes of a transaction whose buffers are kept for the next one.
const KEPT_BYTES: usize = 1 << 20;

/// How the files are replayed.
#[derive(Clone, Copy)]
pub(crate) struct ReplayOptions<'l> {
    /// Whether the checksum of an RDB file is compared: `rdbchecksum`.
    pub(crate) checks: bool,
    /// Whether a last file that ends too early is shortened: `aof-load-truncated`.
    pub(crate) accepts_cut: bool,
    /// Writes a line to the log: level, from 0 for debug to 3 for warning, and text.
    pub(crate) log: &'l dyn Fn(u8, &str),
}

impl Default for ReplayOptions<'_> {
    fn default() -> Self {
        ReplayOptions { checks: true, accepts_cut: true, log: &|_, _| {} }
    }
}

impl std::fmt::Debug for ReplayOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "with checksum: {}, accepts a cut: {}", self.checks, self.accepts_cut)
    }
}

/// What a replay has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Replayed {
    /// The commands that were executed, SELECT, MULTI and EXEC not among them.
    pub(crate) commands: u64,
    /// Those of them whose reply was an error.
    pub(crate) errors: u64,
    /// The length of the base file.
    pub(crate) base_bytes: u64,
    /// The length of all files.
    pub(crate) bytes: u64,
    /// The length of the last file, up to which it is whole.
    pub(crate) last_bytes: u64,
    /// The number of bytes that were cut off the last file.
    pub(crate) cut_bytes: u64,
    /// The moment of the replication stream at the end, if the files name it.
    pub(crate) moment: Option<Moment>,
    /// Its duration.
    pub(crate) took: Duration,
}

/// A reason why the files are not replayed, in Redis's words where it has some.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplayFault {
    /// A file is gone.
    #[error("The append log file {name} doesn't exist: {}", reason(.error))]
    Missing {
        /// Its name.
        name: String,
        /// The reason.
        error: io::Error,
    },
    /// A file cannot be opened.
    #[error("Fatal error: can't open the append log file {name} for reading: {}", reason(.error))]
    Closed {
        /// Its name.
        name: String,
        /// The reason.
        error: io::Error,
    },
    /// A file cannot be read.
    #[error("Unrecoverable error reading the append only file {name}: {}", reason(.error))]
    Unreadable {
        /// Its name.
        name: String,
        /// The reason.
        error: io::Error,
    },
    /// A base file, or the start of an old file, is no good RDB file.
    #[error(
        "Error reading the RDB {} {name}, AOF loading aborted",
        if *.is_old { "preamble of the AOF file" } else { "base file" }
    )]
    Rdb {
        /// Its name.
        name: String,
        /// Whether commands follow.
        is_old: bool,
        /// What is wrong.
        fault: LoadFault,
    },
    /// A command does not exist.
    #[error("Unknown command '{command}' reading the append only file {name} (offset {offset})")]
    Unknown {
        /// The file's name.
        name: String,
        /// The command's name.
        command: String,
        /// The position in the file behind it.
        offset: u64,
    },
    /// A command has a wrong number of words.
    #[error("Wrong number of arguments of '{command}' reading the append only file {name} (offset {offset})")]
    Words {
        /// The file's name.
        name: String,
        /// The command's name.
        command: String,
        /// The position in the file behind it.
        offset: u64,
    },
    /// A command selects a database that the store lacks.
    #[error(
        "FATAL: Data file {name} was created with a Redis server configured to handle more than {databases} databases. \
         Exiting (offset {offset})"
    )]
    Databases {
        /// The file's name.
        name: String,
        /// The databases of the store.
        databases: u32,
        /// The position in the file behind it.
        offset: u64,
    },
    /// Something in a file is no command.
    #[error(
        "Bad file format reading the append only file {name}: make a backup of your AOF file, then use \
         ./redis-check-aof --fix <filename.manifest> (offset {offset})"
    )]
    Format {
        /// The file's name.
        name: String,
        /// The position in the file.
        offset: u64,
    },
    /// The last file ends too early, and may not be shortened.
    #[error(
        "Unexpected end of file reading the append only file {name}. You can: 1) Make a backup of your AOF file, then \
         use ./redis-check-aof --fix <filename.manifest>. 2) Alternatively you can set the 'aof-load-truncated' \
         configuration option to yes and restart the server. (offset {offset})"
    )]
    Short {
        /// The file's name.
        name: String,
        /// The position up to which it is whole.
        offset: u64,
    },
    /// Another file than the last one ends too early.
    #[error("Fatal error: the truncated file is not the last file ({name}, offset {offset})")]
    NotLast {
        /// The file's name.
        name: String,
        /// The position up to which it is whole.
        offset: u64,
    },
    /// The last file cannot be shortened.
    #[error("Error truncating the AOF file {name}: {}", reason(.error))]
    NotCut {
        /// The file's name.
        name: String,
        /// The reason.
        error: io::Error,
    },
    /// The program is wrong.
    #[error("the replay of the append only file failed: a fault in the program")]
    Program,
}

impl Load {
    /// Replays the files that the manifest names, in this load, and logs what Redis logs. Waits for the end: to be called
    /// on a thread that may. The load goes on until it is dropped.
    pub(crate) fn replay(&self, parts: &Parts, options: ReplayOptions<'_>) -> Result<Replayed, ReplayFault> {
        self.replay_on(None, parts, options)
    }

    /// Replays on a number of threads; [`None`] for as many as there are cores.
    fn replay_on(
        &self,
        threads: Option<usize>,
        parts: &Parts,
        options: ReplayOptions<'_>,
    ) -> Result<Replayed, ReplayFault> {
        let began = Instant::now();
        let replayed = catch_unwind(AssertUnwindSafe(|| {
            let _timeless = Timeless::new(&self.inner().memory);
            let _filling = Filling::new();
            Replay::new(self, threads, options).files(parts)
        }));
        let replayed = replayed.unwrap_or(Err(ReplayFault::Program))?;
        Ok(Replayed { took: began.elapsed(), ..replayed })
    }
}

impl From<Broken> for ReplayFault {
    fn from(_: Broken) -> ReplayFault {
        ReplayFault::Program
    }
}

/// While it exists, nothing counts as expired.
struct Timeless<'m>(&'m Memory);

impl<'m> Timeless<'m> {
    fn new(memory: &'m Memory) -> Timeless<'m> {
        memory.set_timeless(true);
        Timeless(memory)
    }
}

impl Drop for Timeless<'_> {
    fn drop(&mut self) {
        self.0.set_timeless(false);
    }
}

/// A replay in progress.
struct Replay<'l> {
    load: &'l Load,
    inner: &'l Arc<Inner>,
    options: ReplayOptions<'l>,
    /// The rows that begin and end a transaction.
    multi: Option<u16>,
    exec: Option<u16>,
    db: u32,
    /// The commands since MULTI.
    queue: Option<Queue>,
    /// An empty queue with buffers.
    spare: Queue,
    /// Runs commands on this thread, and knows of all that ran.
    runner: Runner,
    /// Run commands of one key.
    lanes: Lanes,
    done: Replayed,
}

/// Commands of a transaction.
#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) bytes: Vec<u8>,
    /// The ends of words.
    words: Vec<usize>,
    /// The rows of commands, with the ends of their words and their positions in the file.
    pub(crate) commands: Vec<(Numbered, usize, u64)>,
}

impl Queue {
    pub(crate) fn push(&mut self, row: Numbered, words: &[&[u8]], offset: u64) {
        for word in words {
            self.bytes.extend_from_slice(word);
            self.words.push(self.bytes.len());
        }
        self.commands.push((row, self.words.len(), offset));
    }

    /// Returns the words of the command whose words begin and end at these numbers.
    pub(crate) fn words(&self, range: std::ops::Range<usize>) -> SmallVec<[&[u8]; 16]> {
        let start = |number: usize| if number == 0 { 0 } else { self.words[number - 1] };
        range.map(|number| &self.bytes[start(number)..self.words[number]]).collect()
    }

    /// Empties it; its buffers are kept unless they are large.
    pub(crate) fn cleared(mut self) -> Queue {
        if self.bytes.capacity() > KEPT_BYTES {
            return Queue::default();
        }
        self.bytes.clear();
        self.words.clear();
        self.commands.clear();
        self
    }
}

/// A file that is being replayed.
struct Current<'f> {
    name: &'f [u8],
    /// The bytes of the files before it.
    before: u64,
}

impl Current<'_> {
    fn name(&self) -> String {
        self.name.escape_ascii().to_string()
    }
}

impl<'l> Replay<'l> {
    fn new(load: &'l Load, threads: Option<usize>, options: ReplayOptions<'l>) -> Replay<'l> {
        let rows = load.inner().rows;
        let number = |name: &[u8]| rows.find(name).map(|row| row.number);
        Replay {
            load,
            inner: load.inner(),
            options,
            multi: number(b"multi"),
            exec: number(b"exec"),
            db: 0,
            queue: None,
            spare: Queue::default(),
            runner: Runner::new(load.inner().clone(), Source::File),
            lanes: Lanes::new(load.inner(), Source::File, threads),
            done: Replayed::default(),
        }
    }

    fn log(&self, level: u8, text: &str) {
        (self.options.log)(level, text);
    }

    fn files(mut self, parts: &Parts) -> Result<Replayed, ReplayFault> {
        let manifest = parts.manifest();
        let all: Vec<&Part> = manifest.base.iter().chain(&manifest.increments).collect();
        // A file that cannot be asked is found so when it is its turn.
        let length = |part: &&Part| parts.directory().entry(&part.name).ok().flatten().map_or(0, |entry| entry.bytes);
        let lengths: Vec<u64> = all.iter().map(length).collect();
        self.inner.loading.total_bytes.store(lengths.iter().sum(), Ordering::Relaxed);
        for (index, part) in all.iter().enumerate() {
            let began = Instant::now();
            let current = Current { name: &part.name, before: self.done.bytes };
            let is_base = manifest.base.as_ref() == Some(*part);
            let end = self.file(parts, part, &current)?;
            self.settle()?;
            let is_last = index + 1 == all.len();
            self.end_file(parts, &current, end, lengths[index], is_last)?;
            self.done.bytes += end.whole;
            self.done.last_bytes = end.whole;
            if is_base {
                self.done.base_bytes = end.whole;
            }
            let kind = if is_base { "base" } else { "incr" };
            let (name, seconds) = (current.name(), began.elapsed().as_secs_f64());
            if end.whole > 0 || !is_base {
                self.log(NOTICE, &format!("DB loaded from {kind} file {name}: {seconds:.3} seconds"));
            }
        }
        self.inner.loading.loaded_bytes.store(self.done.bytes, Ordering::Relaxed);
        if self.done.errors > ERRORS_LOGGED as u64 {
            self.log(WARNING, &format!("{} commands of the append only file failed", self.done.errors));
        }
        Ok(self.done)
    }

    /// Replays one file up to its end.
    fn file(&mut self, parts: &Parts, part: &Part, current: &Current<'_>) -> Result<End, ReplayFault> {
        let name = || current.name();
        let mut file = parts.directory().open(&part.name).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ReplayFault::Missing { name: name(), error },
            _ => ReplayFault::Closed { name: name(), error },
        })?;
        self.db = 0;
        let mut start = Vec::new();
        let unreadable = |error| ReplayFault::Unreadable { name: name(), error };
        (&mut file).take(5).read_to_end(&mut start).map_err(unreadable)?;
        if !is_rdb(&start) {
            return self.commands(AofReader::behind(file, start, 0), current);
        }
        let is_old = parts.is_old(part);
        self.log(
            NOTICE,
            if is_old { "Reading RDB preamble from AOF file..." } else { "Reading RDB base file on AOF loading..." },
        );
        let options = LoadOptions {
            checks: self.options.checks,
            keeps_expired: true,
            tells_replicas: false,
            log: self.options.log,
            ..LoadOptions::default()
        };
        let source: Box<dyn Read> = Box::new(io::Cursor::new(start).chain(FileOnly(file)));
        let (loaded, reader) = self.load.run_before_commands(source, options).map_err(|fault| {
            self.log(WARNING, &format!("{}: {fault}", name()));
            if let Some(line) = fault.internal() {
                self.log(WARNING, &line);
            }
            ReplayFault::Rdb { name: name(), is_old, fault }
        })?;
        self.log(NOTICE, &loaded.told());
        if is_old {
            self.log(NOTICE, "Reading the remaining AOF tail...");
        }
        self.commands(reader, current)
    }

    /// Decides about the end of a file of this length.
    fn end_file(
        &mut self,
        parts: &Parts,
        current: &Current<'_>,
        end: End,
        length: u64,
        is_last: bool,
    ) -> Result<(), ReplayFault> {
        let (name, offset) = (current.name(), end.whole);
        // A transaction that is not whole has no effect.
        if let Some(queue) = self.queue.take() {
            self.spare = queue.cleared();
            self.log(WARNING, &format!("Revert incomplete MULTI/EXEC transaction in AOF file {name}"));
        }
        let is_cut = match end.kind {
            EndKind::Whole => return Ok(()),
            // No data are missing.
            EndKind::Annotation if !is_last => return Ok(()),
            EndKind::Bad { at, is_zeros: false } => return Err(ReplayFault::Format { name, offset: at }),
            EndKind::Bad { at, is_zeros: true } if !self.options.accepts_cut => {
                return Err(ReplayFault::Format { name, offset: at });
            }
            EndKind::Annotation => true,
            EndKind::Bad { .. } | EndKind::Command | EndKind::Transaction => self.options.accepts_cut,
        };
        match (is_last, is_cut) {
            (_, false) => return Err(ReplayFault::Short { name, offset }),
            (false, true) => return Err(ReplayFault::NotLast { name, offset }),
            (true, true) => {}
        }
        self.log(WARNING, &format!("!!! Warning: short read while loading the AOF file {name}!!!"));
        self.log(WARNING, &format!("!!! Truncating the AOF {name} at offset {offset} !!!"));
        let cut = parts.directory().append(current.name).and_then(|mut file| {
            file.truncate(offset)?;
            file.sync_data()
        });
        cut.map_err(|error| ReplayFault::NotCut { name: name.clone(), error })?;
        self.done.cut_bytes = length.saturating_sub(offset);
        self.log(WARNING, &format!("AOF {name} loaded anyway because aof-load-truncated is enabled"));
        Ok(())
    }

    /// Replays commands up to the end of their file.
    fn commands(&mut self, mut reader: AofReader<impl Read>, current: &Current<'_>) -> Result<End, ReplayFault> {
        let (mut count, mut own, mut own_start) = (0_u64, annotation::Reader::default(), 0);
        loop {
            let before = reader.position();
            let event = reader.next();
            match event.map_err(|error| ReplayFault::Unreadable { name: current.name(), error })? {
                Event::Command(command) => {
                    count += 1;
                    self.done.moment = None;
                    if count.is_multiple_of(COMMANDS_PER_REPORT) {
                        let loaded = current.before + command.end;
                        self.inner.loading.loaded_bytes.store(loaded, Ordering::Relaxed);
                    }
                    self.command(command, current)?;
                    let loading = &self.inner.loading;
                    if loading.sleeps_for_each() {
                        loading.sleep_for(1);
                    } else if count.is_multiple_of(COMMANDS_PER_REPORT) {
                        loading.sleep_for(COMMANDS_PER_REPORT);
                    }
                }
                Event::Annotation(line) => {
                    let wrong = |_| ReplayFault::Format { name: current.name(), offset: before };
                    self.done.moment = Moment::read(line).or(self.done.moment);
                    own_start = if own.is_within() { own_start } else { before };
                    if let Some(words) = own.read(line).map_err(wrong)? {
                        self.done.moment = None;
                        self.own(&words, before, current)?;
                    }
                }
                // The effect is not whole.
                Event::End(end) if own.is_within() => {
                    let kind = if end.kind == EndKind::Whole { EndKind::Command } else { end.kind };
                    return Ok(End { whole: end.whole.min(own_start), kind });
                }
                Event::End(end) => {
                    self.inner.loading.loaded_bytes.store(current.before + end.whole, Ordering::Relaxed);
                    return Ok(end);
                }
            }
        }
    }

    /// Executes a command, or queues it for its transaction.
    fn command(&mut self, command: Command<'_>, current: &Current<'_>) -> Result<(), ReplayFault> {
        let words: SmallVec<[&[u8]; 16]> = command.words().collect();
        let row = self.inner.rows.resolve_numbered(&words).map_err(|(known, _)| {
            let (name, offset) = (current.name(), command.end);
            let command = words[0].escape_ascii().to_string();
            match known {
                None => ReplayFault::Unknown { name, command, offset },
                Some(_) => ReplayFault::Words { name, command, offset },
            }
        })?;
        if self.queue.is_none() && Some(row.number) == self.multi {
            self.queue = Some(std::mem::take(&mut self.spare));
            return Ok(());
        }
        if Some(row.number) == self.exec {
            return self.exec(current);
        }
        self.run_or_queue(row, &words, command.end, current)
    }

    /// Executes an effect that only this store knows, or queues it for its transaction.
    fn own(&mut self, words: &[Vec<u8>], offset: u64, current: &Current<'_>) -> Result<(), ReplayFault> {
        let words: SmallVec<[&[u8]; 16]> = words.iter().map(|word| &word[..]).collect();
        let row = own_row(self.inner, &words).ok_or_else(|| {
            let command = words[0].escape_ascii().to_string();
            ReplayFault::Unknown { name: current.name(), command, offset }
        })?;
        self.run_or_queue(row, &words, offset, current)
    }

    #[inline]
    fn run_or_queue(
        &mut self,
        row: Numbered,
        words: &[&[u8]],
        offset: u64,
        current: &Current<'_>,
    ) -> Result<(), ReplayFault> {
        match &mut self.queue {
            Some(queue) => {
                queue.push(row, words, offset);
                Ok(())
            }
            None => self.run(row, words, offset, current),
        }
    }

    /// Executes a transaction.
    fn exec(&mut self, current: &Current<'_>) -> Result<(), ReplayFault> {
        let Some(queue) = self.queue.take() else { return Ok(()) };
        let mut from = 0;
        for &(row, end, offset) in &queue.commands {
            self.run(row, &queue.words(from..end), offset, current)?;
            from = end;
        }
        self.spare = queue.cleared();
        Ok(())
    }

    #[inline]
    fn run(&mut self, row: Numbered, words: &[&[u8]], offset: u64, current: &Current<'_>) -> Result<(), ReplayFault> {
        let spec = row.spec;
        match spec.handler {
            Handler::Connection(Detached::Selects) => self.select(words[1], offset, current),
            // It concerns a client.
            Handler::Connection(_) | Handler::Container => Ok(()),
            Handler::Keyspace(_) if self.lanes.takes(words) && spec.leads(words).is_none() => match spec.keys.only() {
                Some(key) => Ok(self.lanes.push(spec, self.db, words[key], words, &mut self.runner)?),
                None => self.run_here(spec, words),
            },
            Handler::Keyspace(_) | Handler::Global(_) | Handler::Script(_) => self.run_here(spec, words),
        }
    }

    /// Executes a command on this thread, after all that come before it.
    fn run_here(&mut self, spec: &'static CommandSpec, words: &[&[u8]]) -> Result<(), ReplayFault> {
        self.lanes.settle(&mut self.runner)?;
        self.runner.run(spec, self.db, words, None);
        Ok(())
    }

    /// Waits until all commands so far have run, and logs their errors.
    fn settle(&mut self) -> Result<(), ReplayFault> {
        self.lanes.settle(&mut self.runner)?;
        let told = std::mem::take(&mut self.runner.told);
        let logged = (ERRORS_LOGGED as u64).saturating_sub(self.done.errors);
        told.lines.iter().take(logged as usize).for_each(|line| self.log(WARNING, line));
        self.done.commands += told.commands;
        self.done.errors += told.errors;
        Ok(())
    }

    fn select(&mut self, word: &[u8], offset: u64, current: &Current<'_>) -> Result<(), ReplayFault> {
        let databases = self.inner.keyspace.databases();
        let db = parse_i64(word).and_then(|db| u32::try_from(db).ok()).filter(|db| *db < databases);
        self.db = db.ok_or_else(|| ReplayFault::Databases { name: current.name(), databases, offset })?;
        Ok(())
    }
}

/// Returns the row of an effect that only this store knows.
pub(crate) fn own_row(inner: &Inner, words: &[&[u8]]) -> Option<Numbered> {
    match words[0] {
        SPEXPIREAT => {
            Some(Numbered { spec: &EXPIRE_MEMBERS, number: u16::MAX }).filter(|row| row.spec.takes(words.len()))
        }
        _ => inner.rows.resolve_numbered(words).ok(),
    }
}

/// A file that is only read.
struct FileOnly(Box<dyn File>);

impl Read for FileOnly {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.read(out)
    }
}

#[cfg(test)]
pub(crate) mod tests;
