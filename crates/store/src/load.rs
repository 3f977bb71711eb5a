//! Loading: an RDB file becomes the data set, by all cores.
//!
//! One thread reads the file and finds where each key ends ([`FileReader`]), which costs little more than copying its
//! bytes. Batches of keys go through a bounded queue (`queue`) to threads that build the values and insert them
//! (`insert`). The order in which keys are inserted is not that of the file, which is visible only where a file has a key
//! twice and the later one is wanted ([`Existing::Replace`]): then one thread inserts.
//!
//! As in Redis, a load stops at the first thing that is wrong, by its place in the file; what was loaded before is then
//! still there, and the caller decides what becomes of it. Keys that have expired are dropped and counted, keys without
//! elements are skipped and logged, libraries of functions are loaded, unknown auxiliary fields are ignored, and data of
//! modules are refused.
//!
//! While a load is in progress ([`Load`]), commands without the flag `loading` are refused by everybody who starts one:
//! connections, rules and Lua.

mod insert;
mod queue;

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sluicegate_data::pages::Filling;
use sluicegate_data::rdb::file::{Event, Fault, FaultKind, FileReader};
use sluicegate_data::value::STRING_MAX;

use self::insert::{Inserter, Terms};
use self::queue::{Batch, Queue};
use crate::aof::read::AofReader;
use crate::levels::NOTICE;
use crate::replication::{Moment, ReplicationId};
use crate::script::function_command::load_library;
use crate::{Inner, Store};

/// The maximum number of threads that insert keys.
const THREADS_MAX: usize = 8;
/// The number of keys that a file of unknown size is believed to have.
const EXPECTED_MAX: u64 = 1 << 20;
/// A file is believed to have a key for this many bytes, at most.
const BYTES_PER_KEY: u64 = 16;
/// The number of keys without elements that are logged, as in Redis.
const EMPTY_LOGGED: usize = 10;

/// The treatment of a key, or of a library of functions, that exists already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Existing {
    /// The load fails.
    Refuse,
    /// The one in the file replaces it.
    Replace,
}

/// How a file is loaded.
#[derive(Clone, Copy)]
pub struct LoadOptions<'l> {
    /// Whether the checksum is compared: `rdbchecksum`.
    pub checks: bool,
    /// The treatment of keys that exist already.
    pub existing: Existing,
    /// Whether keys that have expired are kept, as a replica does.
    pub keeps_expired: bool,
    /// Whether the removal of those that are not kept enters the replication stream.
    pub tells_replicas: bool,
    /// If the file becomes a second data set beside the present one: where its libraries of functions are kept.
    pub aside: Option<&'l Mutex<Vec<Vec<u8>>>>,
    /// Writes a line to the log: level, from 0 for debug to 3 for warning, and text.
    pub log: &'l dyn Fn(u8, &str),
}

impl Default for LoadOptions<'_> {
    fn default() -> Self {
        let (checks, keeps_expired, tells_replicas) = (true, false, false);
        let existing = Existing::Refuse;
        LoadOptions { checks, existing, keeps_expired, tells_replicas, aside: None, log: &|_, _| {} }
    }
}

impl std::fmt::Debug for LoadOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, with checksum: {}, with expired keys: {}", self.existing, self.checks, self.keeps_expired)
    }
}

/// What a load has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Keys that it has inserted.
    pub keys: u64,
    /// Keys that it has dropped because they had expired.
    pub expired: u64,
    /// Keys without elements, which it has skipped.
    pub empty: u64,
    /// The database that the stream behind the file begins with, if a replica loads it.
    pub stream_db: u32,
    /// The moment of the stream at which the file was made, if there was one.
    pub(crate) moment: Option<Moment>,
    /// Its duration.
    pub took: Duration,
}

impl Loaded {
    /// Returns what Redis logs at the end of a file.
    pub(crate) fn told(&self) -> String {
        let Loaded { keys, expired, empty, .. } = self;
        let skipped = if *empty == 0 { String::new() } else { format!(", empty keys skipped: {empty}") };
        format!("Done loading RDB, keys loaded: {keys}, keys expired: {expired}{skipped}.")
    }
}

/// A reason why a file is not loaded. Redis's words where it has some, and the place in the file.
#[derive(Debug, thiserror::Error)]
pub enum LoadFault {
    /// The file is damaged, is none, or cannot be read.
    #[error(transparent)]
    File(Fault),
    /// It has a key that exists.
    #[error("RDB has duplicated key '{}' in DB {db} (offset {offset})", .key.escape_ascii())]
    Duplicate {
        /// The key.
        key: Vec<u8>,
        /// Its database.
        db: u64,
        /// The position in the file after it.
        offset: u64,
    },
    /// It has a database that the store lacks.
    #[error(
        "FATAL: Data file was created with a Redis server configured to handle more than {databases} databases. \
         Exiting (offset {offset})"
    )]
    Databases {
        /// The databases of the store.
        databases: u32,
        /// The position in the file after the database's number.
        offset: u64,
    },
    /// A library of functions is wrong.
    #[error("Failed loading library, {why} (offset {offset})")]
    Library {
        /// The reason.
        why: String,
        /// The position in the file after the library.
        offset: u64,
    },
    /// It has data of a module.
    #[error("The RDB file contains AUX module data I can't load: no matching module '{name}' (offset {offset})")]
    Module {
        /// The module's name.
        name: String,
        /// The position in the file after the data.
        offset: u64,
    },
    /// Another load is in progress.
    #[error("a file is being loaded already")]
    Busy,
    /// Threads cannot be started, or have failed.
    #[error("the threads that load failed: {0}")]
    Threads(String),
}

impl LoadFault {
    /// Returns Redis's log line about a damaged file, in addition to the fault's own text.
    pub(crate) fn internal(&self) -> Option<String> {
        let LoadFault::File(fault) = self else { return None };
        fault.kind.internal().map(|what| format!("Internal error in RDB reading offset {} -> {what}", fault.offset))
    }

    /// Returns the place in the file.
    fn offset(&self) -> u64 {
        match self {
            LoadFault::File(fault) => fault.offset,
            LoadFault::Duplicate { offset, .. }
            | LoadFault::Databases { offset, .. }
            | LoadFault::Library { offset, .. }
            | LoadFault::Module { offset, .. } => *offset,
            LoadFault::Busy | LoadFault::Threads(_) => 0,
        }
    }
}

impl Store {
    /// Begins a load: from now on, until the returned value is dropped, commands that need the data set are refused.
    /// [`None`] if a load is in progress. `size` is that of the file, for INFO.
    pub fn begin_load(&self, size: Option<u64>) -> Option<Load> {
        self.0.loading.begin(self.0.clock.now_s(), size.unwrap_or(0)).then(|| Load(self.0.clone()))
    }

    /// Loads a file. Waits for its end: to be called on a thread that may.
    pub fn load(&self, source: impl Read, size: Option<u64>, options: LoadOptions<'_>) -> Result<Loaded, LoadFault> {
        self.begin_load(size).ok_or(LoadFault::Busy)?.run(source, options)
    }

    /// Returns whether a load is in progress.
    pub fn is_loading(&self) -> bool {
        self.0.loading.is_on()
    }
}

/// A load in progress.
pub struct Load(Arc<Inner>);

impl std::fmt::Debug for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Load")
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.loading.end();
        // Keys that clients had waited for before the load.
        self.0.serve_woken();
    }
}

impl Load {
    /// Loads a file. Waits for its end.
    pub fn run(&self, source: impl Read, options: LoadOptions<'_>) -> Result<Loaded, LoadFault> {
        self.run_on(threads(options), source, options).map(|(loaded, _)| loaded)
    }

    /// Loads a file that commands follow, and returns their reader.
    pub(crate) fn run_before_commands<R: Read>(
        &self,
        source: R,
        options: LoadOptions<'_>,
    ) -> Result<(Loaded, AofReader<R>), LoadFault> {
        let (loaded, rest) = self.run_on(threads(options), source, options)?;
        let rest = rest.ok_or_else(|| LoadFault::Threads("a fault in the program".into()))?;
        let position = rest.offset();
        let (source, bytes) = rest.into_rest();
        Ok((loaded, AofReader::behind(source, bytes, position)))
    }

    /// Loads a file that something else follows, and returns what was read of that.
    pub(crate) fn run_to_rest(
        &self,
        source: impl Read,
        options: LoadOptions<'_>,
    ) -> Result<(Loaded, Vec<u8>), LoadFault> {
        let (loaded, rest) = self.run_on(threads(options), source, options)?;
        let rest = rest.ok_or_else(|| LoadFault::Threads("a fault in the program".into()))?;
        Ok((loaded, rest.into_rest().1))
    }

    /// Returns the store.
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }

    /// Keeps the store as it is, refusing commands, until the process ends.
    pub fn never_end(self) {
        std::mem::forget(self);
    }

    /// Loads a file on so many threads. Returns its reader, too, which is at the end.
    fn run_on<R: Read>(
        &self,
        threads: usize,
        source: R,
        options: LoadOptions<'_>,
    ) -> Result<(Loaded, Option<FileReader<R>>), LoadFault> {
        let (inner, began) = (&self.0, Instant::now());
        let _filling = Filling::new();
        let terms = Terms {
            now_ms: inner.clock.now_ms(),
            ticks: inner.clock.coarse_ticks(),
            keeps_expired: options.keeps_expired,
            tells_replicas: options.tells_replicas,
            existing: options.existing,
            is_aside: options.aside.is_some(),
            is_lfu: inner.memory.policy().is_lfu(),
        };
        let (queue, result) = (Queue::default(), Mutex::default());
        let shared = Shared { inner, terms, queue, result, history: Mutex::default() };
        let read = std::thread::scope(|scope| {
            let _closes = Closes(&shared.queue);
            for number in 0..threads {
                let thread = std::thread::Builder::new().name(format!("load-{number}"));
                if let Err(error) = thread.spawn_scoped(scope, || shared.work())
                    && number == 0
                {
                    return Err(LoadFault::Threads(error.to_string()));
                }
            }
            let read = read(&shared, source, options);
            // The threads finish what was read, and may find something wrong before what the reader found.
            shared.queue.close(false);
            read
        });
        let ended = shared.result.into_inner();
        inner.keyspace.add_woken(ended.ready);
        for name in ended.empty.iter().take(EMPTY_LOGGED) {
            (options.log)(NOTICE, &format!("rdbLoadObject skipping empty key: {}", name.escape_ascii()));
        }
        let reader = match (read, ended.fault) {
            (Err(read), Some(found)) => return Err(if found.offset() <= read.offset() { found } else { read }),
            (Err(fault), None) | (Ok(_), Some(fault)) => return Err(fault),
            (Ok(reader), None) => reader,
        };
        let [keys, expired] = [&inner.loading.keys, &inner.loading.expired].map(|sum| sum.load(Ordering::SeqCst));
        let (id, offset, stream_db) = shared.history.into_inner();
        let moment = id.zip(offset).map(|(id, offset)| Moment { id, offset, db: stream_db });
        let (empty, took) = (ended.empty.len() as u64, began.elapsed());
        Ok((Loaded { keys, expired, empty, stream_db, moment, took }, reader))
    }
}

/// Returns the number of threads that insert keys.
fn threads(options: LoadOptions<'_>) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    if options.existing == Existing::Replace { 1 } else { cores.min(THREADS_MAX) }
}

/// What the threads of a load share.
struct Shared<'l> {
    inner: &'l Arc<Inner>,
    terms: Terms,
    queue: Queue,
    result: Mutex<Ended>,
    /// The identifier of the stream's history, its offset and its database, as far as the file names them.
    history: Mutex<(Option<ReplicationId>, Option<u64>, u32)>,
}

/// What the threads of a load have found.
#[derive(Default)]
struct Ended {
    /// What is wrong first in the file.
    fault: Option<LoadFault>,
    ready: Vec<crate::waiter::ReadyKey>,
    empty: Vec<Vec<u8>>,
}

/// Ends a queue however the work with it ends, so that no thread waits for ever.
struct Closes<'q>(&'q Queue);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        self.0.close(std::thread::panicking());
    }
}

impl Shared<'_> {
    /// Inserts batches until there are no more.
    fn work(&self) {
        let _closes = Closes(&self.queue);
        let mut inserter = Inserter::new(self.inner, self.terms);
        let mut used = None;
        while let Some(batch) = self.queue.pop(used.take()) {
            let inserted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| inserter.insert(&batch)));
            let inserted = inserted.unwrap_or_else(|_| Err(LoadFault::Threads("a fault in the program".into())));
            let loading = &self.inner.loading;
            loading.keys.fetch_add(std::mem::take(&mut inserter.loaded), Ordering::SeqCst);
            loading.expired.fetch_add(std::mem::take(&mut inserter.expired), Ordering::SeqCst);
            if let Err(fault) = inserted {
                self.note(fault);
                // Batches that others have taken come before this one or are finished for nothing.
                self.queue.close(true);
                break;
            }
            used = Some(batch);
        }
        let mut result = self.result.lock();
        result.ready.append(&mut inserter.ready);
        result.empty.append(&mut inserter.empty);
    }

    /// Records what is wrong, unless something before it is.
    fn note(&self, fault: LoadFault) {
        let mut result = self.result.lock();
        if result.fault.as_ref().is_none_or(|known| fault.offset() < known.offset()) {
            result.fault = Some(fault);
        }
    }
}

/// Reads a file to its end, passes its keys on and returns the reader. Returns early, without it, if something is wrong
/// with a key that was passed on.
fn read<R: Read>(shared: &Shared<'_>, source: R, options: LoadOptions<'_>) -> Result<Option<FileReader<R>>, LoadFault> {
    let (inner, loading) = (shared.inner, &shared.inner.loading);
    let mut reader = FileReader::new(source).map_err(LoadFault::File)?.checked(options.checks);
    // A file that lies must not make the store larger than a truthful one of its size could.
    let believed = match loading.total_bytes.load(Ordering::Relaxed) {
        0 => EXPECTED_MAX,
        total => total / BYTES_PER_KEY,
    };
    let mut batch = Batch::default();
    let (mut db, mut expected) = (0, 0);
    loop {
        let offset = reader.offset();
        match reader.next().map_err(LoadFault::File)? {
            Event::Key(key) => {
                if key.name.len() > STRING_MAX {
                    let kind = FaultKind::Value("a key is longer than 512 MiB");
                    return Err(LoadFault::File(Fault { kind, offset, key: None }));
                }
                if batch.is_empty() {
                    (batch.db, batch.expected) = (db, expected);
                }
                batch.push(&key);
                if batch.is_full() || loading.sleeps_for_each() {
                    loading.sleep_for(batch.len() as u64);
                    loading.loaded_bytes.store(offset, Ordering::Relaxed);
                    let Some(next) = shared.queue.push(batch) else { return Ok(None) };
                    batch = next;
                }
            }
            Event::Database(number) => {
                db = match u32::try_from(number) {
                    Ok(number) if number < inner.keyspace.databases() => number,
                    _ => return Err(LoadFault::Databases { databases: inner.keyspace.databases(), offset }),
                };
                expected = 0;
                if !batch.is_empty() && batch.db != db {
                    let Some(next) = shared.queue.push(batch) else { return Ok(None) };
                    batch = next;
                }
            }
            Event::Aux { name, value } => tell(shared, name, value, options.log),
            Event::Library(code) => match options.aside {
                Some(libraries) => libraries.lock().push(code.to_vec()),
                None => load_library(inner, code, options.existing == Existing::Replace)
                    .map_err(|why| LoadFault::Library { why, offset: reader.offset() })?,
            },
            Event::Module(name) => return Err(LoadFault::Module { name, offset }),
            Event::Sizes { keys, .. } => expected = keys.min(believed),
            Event::End(_) => break,
        }
    }
    loading.loaded_bytes.store(reader.offset(), Ordering::Relaxed);
    if !batch.is_empty() {
        shared.queue.push(batch);
    }
    Ok(Some(reader))
}

/// Logs what a file says of itself, as Redis does.
fn tell(shared: &Shared<'_>, name: &[u8], value: &[u8], log: &dyn Fn(u8, &str)) {
    let text = value.escape_ascii();
    let number = || std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok()).unwrap_or(0);
    match name {
        // What begins with a percent sign is for the operator.
        [b'%', rest @ ..] => log(NOTICE, &format!("RDB '{}': {text}", rest.escape_ascii())),
        b"redis-ver" | b"valkey-ver" => log(NOTICE, &format!("Loading RDB produced by version {text}")),
        b"ctime" => {
            let age_s = (shared.terms.now_ms / 1000).saturating_sub(number()).max(0);
            log(NOTICE, &format!("RDB age {age_s} seconds"));
        }
        b"used-mem" => {
            let used = number();
            shared.inner.loading.used_bytes.store(u64::try_from(used).unwrap_or(0), Ordering::Relaxed);
            log(NOTICE, &format!("RDB memory usage when created {:.2} Mb", used as f64 / (1024.0 * 1024.0)));
        }
        b"aof-base" | b"aof-preamble" if number() != 0 => log(NOTICE, "RDB is base AOF"),
        b"repl-stream-db" => shared.history.lock().2 = u32::try_from(number()).unwrap_or(0),
        b"repl-id" => shared.history.lock().0 = ReplicationId::parse(value),
        b"repl-offset" => shared.history.lock().1 = u64::try_from(number()).ok(),
        b"redis-bits" | b"aof-base" | b"aof-preamble" => {}
        other => log(0, &format!("Unrecognized RDB AUX field: '{}'", other.escape_ascii())),
    }
}

/// Loads untrusted bytes as a file into a store of 16 databases. Must neither panic nor hang, and a store that has loaded
/// them has as many keys as the load says.
pub fn fuzz_load(data: &[u8]) {
    for magic in [&b""[..], b"REDIS0012", b"VALKEY080"] {
        let store = Store::new(crate::StoreOptions { stripes: 4, ..Default::default() });
        let file = [magic, data].concat();
        let options = LoadOptions { checks: false, keeps_expired: true, ..LoadOptions::default() };
        let load = store.begin_load(None).expect("a new store loads nothing");
        let loaded = load.run_on(1, &file[..], options);
        assert!(store.is_loading());
        drop(load);
        assert!(!store.is_loading());
        match loaded {
            Ok((loaded, _)) => assert_eq!(loaded.keys, store.keys()),
            Err(LoadFault::Threads(why)) => panic!("{why}"),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
