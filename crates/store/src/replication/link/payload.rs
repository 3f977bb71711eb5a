//! The data set of a master: an RDB file on the connection.
//!
//! ```text
//! $<bytes>\r\n<file>                     its size is known
//! $EOF:<40 bytes>\r\n<file><40 bytes>    it ends with these bytes
//! ```
//!
//! A store with a directory writes it to the disk first, as `dbfilename`, and compares its checksum; only then the old data
//! set goes. A store without one, or an empty one if `repl-diskless-load` says so, loads it as it comes, once its first
//! bytes were found to be those of a file that it can read. With `swapdb` it becomes a second data set, which takes the place
//! of the old one at its end; if the old one is of the same history, it is served meanwhile. From the moment at which the old data set goes, what is here
//! belongs to no history until a file was loaded to its end, so after an error the next attempt asks for all of it.
//!
//! The append-only file ends before the load and begins anew after it.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sluicegate_data::rdb::crc64::Sum;
use sluicegate_data::rdb::file::FileReader;

use super::conn::{Conn, READ_BYTES};
use super::state::Phase;
use super::{Attempt, Gone, LOOK_EACH, NOTICE, WARNING};
use crate::files::{Files, Replacement, SYNCED_EACH, reason};
use crate::replication::ReplicationId;
use crate::script::function_command::replace_libraries;
use crate::{Load, LoadOptions, Loaded, Store};

/// The bytes that end a file whose size is not known.
const MARK_BYTES: usize = 40;
/// The bytes of a checksum.
const SUM_BYTES: usize = 8;
/// The version from which on files have one.
const SUMMED_FROM: u16 = 5;
/// The first bytes of a file.
const MAGIC_BYTES: usize = 9;
/// The time between two signs of life to the master while the file is loaded.
const BEAT: Duration = Duration::from_secs(1);

const LOADS: &str = "MASTER <-> REPLICA sync: Loading DB in memory";
const KEPT: &str = "Failed trying to load the MASTER synchronization DB: the old data set is kept.";

/// How the end of the file is known.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Extent {
    Bytes(u64),
    Mark(Vec<u8>),
}

/// Reads the line before the file.
fn extent(line: &[u8]) -> Option<Extent> {
    let rest = line.strip_prefix(b"$")?;
    match rest.strip_prefix(b"EOF:") {
        Some(mark) => (mark.len() == MARK_BYTES).then(|| Extent::Mark(mark.to_vec())),
        None => std::str::from_utf8(rest).ok()?.parse().ok().map(Extent::Bytes),
    }
}

/// The file as it comes. Its reads fail as the connection does; the reason is kept.
struct Source<'c, 'l> {
    conn: &'c mut Conn<'l>,
    /// The bytes that are left, if that is known.
    left: Option<u64>,
    beaten: Instant,
    count: &'c dyn Fn(usize),
    gone: Option<Gone>,
}

impl Read for Source<'_, '_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = self.left.map_or(out.len(), |left| out.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
        if len == 0 || self.gone.is_some() {
            return Ok(0);
        }
        let beaten = &mut self.beaten;
        match self.conn.read(&mut out[..len], |conn| beat(conn, beaten)) {
            Ok(read) => {
                self.left = self.left.map(|left| left - read as u64);
                (self.count)(read);
                Ok(read)
            }
            Err(gone) => {
                let error = io::Error::other(gone.to_string());
                self.gone = Some(gone);
                Err(error)
            }
        }
    }
}

/// Tells the master that this replica lives, unless that was done a moment ago.
fn beat(conn: &mut Conn<'_>, beaten: &mut Instant) -> Result<(), Gone> {
    if beaten.elapsed() < BEAT {
        return Ok(());
    }
    *beaten = Instant::now();
    conn.send(b"\n")
}

/// A file on the disk, whose reader tells the master that this replica lives.
struct Beating<'c, 'l, R> {
    file: R,
    conn: &'c mut Conn<'l>,
    beaten: Instant,
}

impl<R: Read> Read for Beating<'_, '_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        // A connection that is lost is noticed after the load.
        let _ = beat(self.conn, &mut self.beaten);
        self.file.read(out)
    }
}

/// A file that is written to the disk. Its last bytes are held back until it is known what they are.
struct Written<'f> {
    file: Replacement<'f>,
    sum: Sum,
    tail: Vec<u8>,
}

impl Written<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.tail.extend_from_slice(bytes);
        let kept = MARK_BYTES + SUM_BYTES;
        if self.tail.len() > kept {
            let ready = self.tail.len() - kept;
            self.sum.add(&self.tail[..ready]);
            self.file.write(&self.tail[..ready])?;
            self.tail.drain(..ready);
        }
        Ok(())
    }

    /// Writes the rest of the file, without the mark behind it. Returns whether its checksum is right; files without one
    /// have zeros in its place.
    fn end(&mut self, mark: usize) -> io::Result<bool> {
        self.tail.truncate(self.tail.len() - mark);
        let at = self.tail.len().saturating_sub(SUM_BYTES);
        self.sum.add(&self.tail[..at]);
        self.file.write(&self.tail)?;
        let found = <[u8; SUM_BYTES]>::try_from(&self.tail[at..]).map(u64::from_le_bytes);
        Ok(found.is_ok_and(|found| found == 0 || found == self.sum.crc()))
    }
}

impl Attempt<'_> {
    /// Receives the data set of a master, which ends at this position of this history, in place of the store's own.
    pub(super) fn receive(&self, conn: &mut Conn<'_>, id: ReplicationId, offset: u64) -> Result<(), Gone> {
        self.link.begin_transfer(0);
        self.link.set_phase(self.order, Phase::Transfer);
        let line = self.payload_line(conn)?;
        let Some(extent) = extent(&line) else {
            let line = line.escape_ascii();
            self.log(
                WARNING,
                &match line.to_string() {
                    error if error.starts_with('-') => {
                        format!("MASTER aborted replication with an error: {}", &error[1..])
                    }
                    line => format!(
                        "Bad protocol from MASTER, the first byte is not '$' (we received '{line}'), are you sure the \
                         host and port are right?"
                    ),
                },
            );
            return Err(Gone::Told);
        };
        let files = self.inner.saver.files().filter(|_| !self.loads_at_once());
        let place = if files.is_some() { "to disk" } else { "to parser" };
        match &extent {
            Extent::Bytes(bytes) => {
                self.link.begin_transfer(*bytes);
                self.log(NOTICE, &format!("MASTER <-> REPLICA sync: receiving {bytes} bytes from master {place}"));
            }
            Extent::Mark(_) => {
                let text = format!("MASTER <-> REPLICA sync: receiving streamed RDB from master with EOF {place}");
                self.log(NOTICE, &text);
            }
        }
        match files {
            Some(files) => self.by_disk(conn, &extent, &*files, (id, offset))?,
            None => self.at_once(conn, &extent, (id, offset))?,
        }
        conn.forget_silence();
        self.link.is_whole();
        self.begin_append_only();
        self.log(NOTICE, "MASTER <-> REPLICA sync: Finished with success");
        Ok(())
    }

    /// Reads the line before the file. Empty ones show that the master is still making it.
    fn payload_line(&self, conn: &mut Conn<'_>) -> Result<Vec<u8>, Gone> {
        conn.line().map_err(|gone| self.lost(gone, "I/O error reading bulk count from MASTER"))
    }

    /// Logs that the connection was lost on the way.
    fn lost(&self, gone: Gone, what: &str) -> Gone {
        match gone {
            Gone::Stopped | Gone::Told => return gone,
            Gone::Timeout => self.log(
                WARNING,
                "Timeout receiving bulk data from MASTER... If the problem persists try to set the 'repl-timeout' \
                 parameter in redis.conf to a larger value.",
            ),
            gone => self.log(WARNING, &format!("{what}: {gone}")),
        }
        Gone::Told
    }

    /// Returns whether the data set is loaded as it comes although the store has a directory.
    fn loads_at_once(&self) -> bool {
        // The files belong to the other process for now.
        if self.server.predecessor.is_some() {
            return true;
        }
        match self.server.options.repl_diskless_load {
            "on-empty-db" => Store(self.inner.clone()).keys() == 0,
            "swapdb" | "flush-before-load" => true,
            _ => false,
        }
    }

    fn by_disk(
        &self,
        conn: &mut Conn<'_>,
        extent: &Extent,
        files: &dyn Files,
        history: (ReplicationId, u64),
    ) -> Result<(), Gone> {
        let now_s = self.inner.clock.now_s();
        let temporary = format!("temp-{now_s}.{}.rdb", std::process::id());
        let failed = |error: &io::Error| {
            let text = format!(
                "Write error or short write writing to the DB dump file needed for MASTER <-> REPLICA \
                 synchronization: {}",
                reason(error)
            );
            self.log(WARNING, &text);
            Gone::Told
        };
        let file = Replacement::new(files, temporary.as_bytes(), Some(SYNCED_EACH)).map_err(|error| {
            let reason = reason(&error);
            self.log(
                WARNING,
                &format!("Opening the temp file needed for MASTER <-> REPLICA synchronization: {reason}"),
            );
            Gone::Told
        })?;
        let mut written = Written { file, sum: Sum::default(), tail: Vec::new() };
        let mut buffer = vec![0; READ_BYTES];
        let (mut left, mark) = match extent {
            Extent::Bytes(bytes) => (*bytes, &[][..]),
            Extent::Mark(mark) => (u64::MAX, &mark[..]),
        };
        let mut head = Vec::new();
        while left > 0 {
            let want = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let read = conn
                .read(&mut buffer[..want], |_| Ok(()))
                .map_err(|gone| self.lost(gone, "I/O error trying to sync with MASTER"))?;
            left -= read as u64;
            self.link.count_received(read);
            if head.len() < MAGIC_BYTES {
                head.extend_from_slice(&buffer[..read.min(MAGIC_BYTES - head.len())]);
                self.check_head(&head)?;
            }
            written.write(&buffer[..read]).map_err(|error| failed(&error))?;
            if !mark.is_empty() && written.tail.ends_with(mark) {
                break;
            }
        }
        let is_right = written.end(mark.len()).map_err(|error| failed(&error))?;
        // Older versions have no checksum.
        let is_summed = FileReader::new(&head[..]).is_ok_and(|reader| reader.version() >= SUMMED_FROM);
        if head.len() < MAGIC_BYTES || is_summed && !is_right && self.server.options.rdbchecksum {
            self.log(WARNING, if is_right { "Short read of the RDB file" } else { "Wrong RDB checksum" });
            self.log(WARNING, KEPT);
            return Err(Gone::Told);
        }
        // From here on nobody else writes a file of this name.
        let load = self.begin(None, None)?;
        let name = self.server.options.dbfilename.clone();
        let name = if name.is_empty() { b"dump.rdb".to_vec() } else { name };
        let identity = written.file.identity().map_err(|error| failed(&error))?;
        written.file.replace(&name).map_err(|error| {
            let reason = reason(&error);
            self.log(
                WARNING,
                &format!(
                    "Failed trying to rename the temp DB into {} in MASTER <-> REPLICA synchronization: {reason}",
                    name.escape_ascii()
                ),
            );
            Gone::Told
        })?;
        self.inner.saver.begin_with(identity);
        let size = files.entry(&name).ok().flatten().map_or(0, |entry| entry.bytes);
        self.inner.loading.total_bytes.store(size, Ordering::Relaxed);
        let file = files.open(&name).map_err(|error| failed(&error))?;
        self.empty(history);
        let mut beating = Beating { file, conn, beaten: Instant::now() };
        let loaded = load.run(&mut beating, self.load_options());
        self.end(load, loaded.map_err(|fault| (fault.to_string(), fault.internal())))
    }

    fn at_once(&self, conn: &mut Conn<'_>, extent: &Extent, history: (ReplicationId, u64)) -> Result<(), Gone> {
        let left = if let Extent::Bytes(bytes) = extent { Some(*bytes) } else { None };
        let count = |bytes: usize| self.link.count_received(bytes);
        let mut source = Source { conn, left, beaten: Instant::now(), count: &count, gone: None };
        let mut head = vec![0; MAGIC_BYTES];
        let read = source.read_exact(&mut head);
        if let Some(gone) = source.gone.take() {
            return Err(self.lost(gone, "I/O error trying to sync with MASTER"));
        }
        self.check_head(if read.is_ok() { &head } else { &[] })?;
        let is_aside = self.server.options.repl_diskless_load == "swapdb" && self.server.predecessor.is_none();
        let is_same = self.inner.replication.id() == history.0;
        let load = self.begin(left, is_aside.then_some(is_same))?;
        let libraries = Mutex::default();
        let mut options = self.load_options();
        if is_aside {
            options.aside = Some(&libraries);
            self.log(NOTICE, LOADS);
        } else {
            self.empty(history);
        }
        let mut whole = io::Cursor::new(head).chain(source);
        let loaded = load.run_to_rest(&mut whole, options);
        let (_, mut source) = whole.into_inner();
        let gone = source.gone.take();
        let result = match loaded {
            Ok((loaded, rest)) => {
                source.conn.put_back(&rest);
                let left = source.left.map(|left| left + rest.len() as u64);
                match end_of_file(source.conn, extent, left) {
                    Ok(()) => Ok(loaded),
                    Err(why) => Err((why, None)),
                }
            }
            Err(fault) => Err((fault.to_string(), fault.internal())),
        };
        if let Some(gone) = gone {
            // It is the reason of the fault, and the only one that the operator has to know.
            self.lost(gone, "I/O error trying to sync with MASTER");
        }
        match is_aside {
            true => self.end_aside(load, result, history, &libraries.into_inner()),
            false => self.end(load, result),
        }
    }

    /// Ends the load of a second data set. After an error it is removed, and the first one stays.
    fn end_aside(
        &self,
        load: Load,
        loaded: Result<Loaded, (String, Option<String>)>,
        history: (ReplicationId, u64),
        libraries: &[Vec<u8>],
    ) -> Result<(), Gone> {
        let inner = self.inner;
        let loaded = loaded.and_then(|loaded| {
            let replaced = replace_libraries(inner, libraries);
            replaced.map(|()| loaded).map_err(|why| (format!("Failed loading library, {why}"), None))
        });
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(fault) => {
                self.log_failed(fault);
                self.log(NOTICE, "MASTER <-> REPLICA sync: Discarding temporary DB in background");
                let (closed, ticket) = inner.close_for_cut();
                inner.keyspace.discard_aside(&closed);
                inner.open_after_cut(closed, ticket);
                drop(load);
                return Err(Gone::Told);
            }
        };
        self.log(NOTICE, "MASTER <-> REPLICA sync: Swapping active DB with loaded DB");
        self.replace(history, || {
            let (closed, ticket) = inner.close_for_cut();
            inner.keyspace.own_expiring.clear();
            inner.keyspace.take_over(&closed);
            inner.emit(inner.forget_tracked());
            inner.open_after_cut(closed, ticket);
        });
        self.log(NOTICE, "MASTER <-> REPLICA sync: Discarding old DB in background");
        self.end(load, Ok(loaded))
    }

    /// Checks the first bytes of a file.
    fn check_head(&self, head: &[u8]) -> Result<(), Gone> {
        // A file that has not come so far may still be right.
        let is_whole = head.len() == MAGIC_BYTES || head.is_empty();
        match FileReader::new(head) {
            Err(fault) if is_whole => {
                self.log(WARNING, &format!("{fault}"));
                self.log(WARNING, KEPT);
                Err(Gone::Told)
            }
            _ => Ok(()),
        }
    }

    fn load_options(&self) -> LoadOptions<'_> {
        let log = &*self.server.log;
        LoadOptions { checks: self.server.options.rdbchecksum, keeps_expired: true, log, ..LoadOptions::default() }
    }

    /// Begins a load: commands are refused, and nobody saves the data set until it has ended. If it is one `aside`, nobody
    /// rewrites the append-only file either, and the old data set is served if it is of the same history.
    fn begin(&self, size: Option<u64>, aside: Option<bool>) -> Result<Load, Gone> {
        let load = loop {
            if let Some(load) = Store(self.inner.clone()).begin_load(size) {
                break load;
            }
            self.link.check(self.order)?;
            std::thread::sleep(LOOK_EACH);
        };
        if let Some(is_served) = aside {
            self.inner.loading.set_aside(is_served);
            self.inner.cancel_rewrite();
        }
        if let Some(job) = self.inner.saver.job().filter(|job| !job.is_rewrite()) {
            self.log(
                NOTICE,
                "Replica is about to load the RDB file received from the master, but there is a pending RDB child \
                 running. Killing it and removing its temp file to avoid any race",
            );
            job.cancel();
            job.wait_for_end();
        }
        Ok(load)
    }

    /// Removes the old data set: from now on the store has the history of the master, of which it has nothing yet.
    fn empty(&self, history: (ReplicationId, u64)) {
        self.log(NOTICE, "MASTER <-> REPLICA sync: Flushing old data");
        self.replace(history, || self.inner.empty());
        self.log(NOTICE, LOADS);
    }

    /// Replaces the data set: from now on it is of this history.
    fn replace<R>(&self, (id, offset): (ReplicationId, u64), work: impl FnOnce() -> R) -> R {
        if let Err(error) = Store(self.inner.clone()).end_appending() {
            // What it has is not needed any more.
            self.log(WARNING, &format!("Error closing the append-only file: {}", reason(&error)));
        }
        let _border = self.link.border();
        self.link.need_full();
        self.inner.replication.restart_at(id, offset);
        work()
    }

    /// Ends a load. After an error the store is empty.
    fn end(&self, load: Load, loaded: Result<Loaded, (String, Option<String>)>) -> Result<(), Gone> {
        match loaded {
            Ok(loaded) => {
                self.link.set_stream_db(loaded.stream_db);
                self.log(NOTICE, &loaded.told());
                drop(load);
                Ok(())
            }
            Err(fault) => {
                self.log_failed(fault);
                self.inner.empty();
                drop(load);
                Err(Gone::Told)
            }
        }
    }

    fn log_failed(&self, (why, internal): (String, Option<String>)) {
        if let Some(line) = internal {
            self.log(WARNING, &line);
        }
        self.log(WARNING, &why);
        self.log(WARNING, "Failed trying to load the MASTER synchronization DB, check server logs.");
    }

    /// Begins the append-only file anew, if there is to be one. An error is logged, and the next order or CONFIG SET tries
    /// again.
    fn begin_append_only(&self) {
        let inner: &Arc<_> = self.inner;
        let is_due = self.server.options.appendonly && self.server.predecessor.is_none();
        let Some(files) = inner.saver.files().filter(|_| is_due) else { return };
        if let Err(fault) = Store(inner.clone()).begin_to_append(&*files) {
            self.log(WARNING, &format!("Failed enabling the AOF after successful master synchronization: {fault}"));
        }
    }
}

/// Reads what comes between the end of a file that was loaded and the stream.
fn end_of_file(conn: &mut Conn<'_>, extent: &Extent, left: Option<u64>) -> Result<(), String> {
    let mut exactly = |bytes: &mut [u8]| -> Result<(), String> {
        let mut from = 0;
        while from < bytes.len() {
            from += conn.read(&mut bytes[from..], |_| Ok(())).map_err(|gone| gone.to_string())?;
        }
        Ok(())
    };
    match extent {
        Extent::Mark(mark) => {
            let mut found = [0; MARK_BYTES];
            exactly(&mut found)?;
            if found == mark[..] { Ok(()) } else { Err("Replication stream EOF marker is broken".into()) }
        }
        Extent::Bytes(_) => {
            let mut left = left.unwrap_or(0);
            let mut buffer = [0; 4096];
            while left > 0 {
                let len = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                exactly(&mut buffer[..len])?;
                left -= len as u64;
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_before_the_file_tells_its_size_or_its_end() {
        let mark = [b'7'; MARK_BYTES];
        assert_eq!(extent(b"$0"), Some(Extent::Bytes(0)));
        assert_eq!(extent(b"$18446744073709551615"), Some(Extent::Bytes(u64::MAX)));
        assert_eq!(extent(&[b"$EOF:", &mark[..]].concat()), Some(Extent::Mark(mark.to_vec())));
        for wrong in
            [&b"$"[..], b"$-1", b"$1x", b"$EOF:", b"$EOF:123", b"-ERR no", b"", b"*1", b"$18446744073709551616"]
        {
            assert_eq!(extent(wrong), None, "{}", wrong.escape_ascii());
        }
    }
}
