//! A process takes the stores of another one over, without a change that is lost.
//!
//! The new process follows the old one as a replica, over a connection that it is given
//! ([`follow_predecessor`](Server::follow_predecessor)), and leaves the files alone meanwhile. When its data set is that of
//! the old store, the old process lets writes wait ([`hold_writes`](Server::hold_writes)), closes the gate, so that nothing
//! changes, and closes the files ([`leave`](Server::leave)). The new process reaches the [position](Position) at which that
//! was, appends to the same files, and continues the history as a master
//! ([`take_over`](Server::take_over)); or it follows the master that the old process followed.
//!
//! Until the new process has confirmed, the old one can [go on](Leave): its gate opens, and it appends to its files again.
//! Afterwards it writes neither data nor files: its writes wait until its clients are disconnected.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Server;
use super::start::{NEEDS_DIR, cannot_append};
use crate::Inner;
use crate::config::ServerOptions;
use crate::files::{Files, reason};
use crate::gate::Closed;
use crate::hold::Ticket;
use crate::levels::{NOTICE, WARNING};
use crate::replication::link::{Border, Master, Predecessor};

/// The time between two looks at how far the stream has come.
const LOOKS_EACH: Duration = Duration::from_micros(200);

/// The time in which a new process that has nearly everything acknowledges the rest.
const NEARLY: Duration = Duration::from_millis(10);

const NOT_FOLLOWED: &str = "the new process does not follow it any more";

/// How often the data set is asked for before the new process gives up.
const ATTEMPTS_MAX: u32 = 5;

/// Where an old process has left a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The identifier of its history.
    pub id: String,
    /// The end of its stream, in bytes.
    pub offset: u64,
    /// The number of changes that are in no RDB file.
    pub changes: u64,
    /// `dir`, `appenddirname` and `appendfilename` of the append-only file, which has everything; [`None`] without one.
    pub appended: Option<[Vec<u8>; 3]>,
}

/// How far a new process has come with following the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The data set is being received, or asked for.
    Receiving,
    /// The stream is followed.
    Following,
    /// The connection was lost too often.
    Failed,
}

/// A store that its process leaves. Unless that is [confirmed](Self::confirm), the process keeps it.
pub struct Leave<'s> {
    server: &'s Server,
    position: Position,
    /// The gate, with the right to the master's stream, until the end.
    held: Option<(Border<'s>, Closed<'s>, Option<Arc<Ticket>>)>,
    files: Option<Arc<dyn Files>>,
    /// Whether the append-only file was lent to the new process.
    has_lent: bool,
}

/// Returns the names that an append-only file has by its parameters.
fn names(options: &ServerOptions) -> [Vec<u8>; 3] {
    // The same directory may have several names.
    let dir = std::fs::canonicalize(OsStr::from_bytes(&options.dir));
    let dir = dir.map_or_else(|_| options.dir.clone(), |dir| dir.as_os_str().as_bytes().to_vec());
    [dir, options.appenddirname.clone(), options.appendfilename.clone()]
}

/// The old process.
impl Server {
    /// Returns whether it can be left: it is not being loaded.
    pub fn can_leave(&self) -> bool {
        !self.store.is_loading()
    }

    /// Waits until the new process has nearly everything, so that clients wait for a moment only. The error says why that is
    /// not so by this time. To be called on a thread that may wait.
    pub fn await_successor(&self, until: Instant) -> Result<(), String> {
        let Inner { outlets, replication, .. } = &*self.store.0;
        loop {
            let began = Instant::now();
            outlets.stream();
            let end = replication.offset();
            // The stream of a master that this store follows is passed on unchanged, and acknowledged once a second.
            let is_asked = !replication.is_following();
            if is_asked {
                outlets.add_to_stream(&[b"REPLCONF", b"GETACK", b"*"]);
            }
            loop {
                let replicas = replication.replicas();
                let Some(successor) = replicas.iter().find(|replica| replica.is_successor) else {
                    return Err(NOT_FOLLOWED.into());
                };
                if successor.acknowledged(false).is_some_and(|acked| acked >= end) {
                    break;
                }
                if Instant::now() >= until {
                    return Err("the new process does not keep up with its changes".into());
                }
                std::thread::sleep(LOOKS_EACH);
            }
            if !is_asked || began.elapsed() < NEARLY {
                return Ok(());
            }
        }
    }

    /// Lets writes of clients wait, until [`release_writes`](Self::release_writes) or the end of the process.
    pub fn hold_writes(&self) {
        self.begin_end();
    }

    /// Ends what [`hold_writes`](Self::hold_writes) has begun.
    pub fn release_writes(&self) {
        self.put_off_end();
    }

    /// Closes the gate once every command that runs has ended, and then the files. Writes are held; no command of theirs is
    /// between that check and its start. The error says why that was not possible by this time. To be called on a thread
    /// that may wait.
    pub fn leave(&self, until: Instant) -> Result<Leave<'_>, String> {
        let inner = &*self.store.0;
        let options = self.options();
        // A snapshot would take the place of the new process's.
        let files = inner.saver.files();
        self.store.set_files(None);
        if let Some(job) = inner.saver.job().filter(|job| !job.is_rewrite()) {
            job.cancel();
            job.wait_for_end();
        }
        let changes = inner.unsaved_changes();
        let was_appending = inner.appender.is_open();
        let is_whole = was_appending && !self.is_switching() && !inner.appender.state.lock().must_begin_anew;
        inner.stop_rewriting();
        let mut leave = Leave { server: self, position: Position::default(), held: None, files, has_lent: false };
        let border = inner.link.border();
        let Some((closed, ticket)) = inner.close_for_cut_until(until) else {
            return Err("a script, or a transaction, keeps it busy".into());
        };
        leave.held = Some((border, closed, ticket));
        let Some(moment) = inner.moment() else {
            return Err(NOT_FOLLOWED.into());
        };
        let mut appended = is_whole.then(|| names(&options));
        if was_appending {
            let last = inner.record.last();
            leave.has_lent = true;
            if let Err(error) = inner.lend_file(last, &moment.annotation()) {
                self.log(WARNING, &format!("Error writing the append-only file at its end: {}", reason(&error)));
                // The new process writes another one.
                appended = None;
            }
        }
        leave.position = Position { id: moment.id.to_string(), offset: moment.offset, changes, appended };
        self.log(NOTICE, &format!("The store is left to a new process at {}:{}.", moment.id, moment.offset));
        Ok(leave)
    }
}

impl Leave<'_> {
    /// Returns where the store was left.
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// Leaves the store to the new process for good. Writes that wait are never carried out.
    pub fn confirm(mut self) {
        if self.has_lent {
            self.server.store.0.leave_file();
        }
        self.open();
        std::mem::forget(self);
    }

    fn open(&mut self) {
        if let Some((border, closed, ticket)) = self.held.take() {
            self.server.store.0.open_after_cut(closed, ticket);
            drop(border);
        }
        self.files = None;
    }
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let (server, inner) = (self.server, &self.server.store.0);
        server.store.set_files(self.files.clone());
        inner.allow_rewriting();
        if self.has_lent
            && let Err(error) = inner.take_file_back()
        {
            server.log(WARNING, &format!("The append-only file may have what is not here: {}", reason(&error)));
        }
        self.open();
        server.log(NOTICE, "The new process did not take the store over: this one keeps it.");
    }
}

/// The new process.
impl Server {
    /// Begins to follow the store of the process that this one replaces, by connections that `connect` makes. The store is
    /// empty.
    pub fn follow_predecessor(
        &self,
        connect: impl Fn() -> io::Result<OwnedFd> + Send + Sync + 'static,
    ) -> io::Result<()> {
        *self.predecessor.lock() = Some(Arc::new(Predecessor::new(connect)));
        self.store.0.link.need_full();
        self.order_link(Some(Master { host: "predecessor".into(), port: 0 })).map(drop)
    }

    /// Returns how far it has come.
    pub fn progress(&self) -> Progress {
        match &*self.predecessor.lock() {
            _ if self.store.0.link.is_up() => Progress::Following,
            Some(predecessor) if predecessor.attempts() > ATTEMPTS_MAX => Progress::Failed,
            _ => Progress::Receiving,
        }
    }

    /// Continues a store that the old process has left, from this position, with its files. The error says what is wrong;
    /// then the old process has to keep it.
    pub fn take_over(&self, position: &Position, until: Instant) -> Result<(), String> {
        let inner = &*self.store.0;
        let told = || (inner.replication.id().to_string(), inner.replication.offset());
        while told() != (position.id.clone(), position.offset) {
            if !inner.link.is_up() || Instant::now() >= until {
                let (id, offset) = told();
                let Position { id: wanted_id, offset: wanted, .. } = position;
                return Err(format!("it has {id}:{offset} of {wanted_id}:{wanted}"));
            }
            std::thread::sleep(LOOKS_EACH);
        }
        let options = self.options();
        inner.saver.inherit(position.changes);
        self.continue_files(&options, position)?;
        let failed = |error: io::Error| format!("Can't start the link to the master: {}", reason(&error));
        let master = options.replicaof.clone();
        *self.predecessor.lock() = None;
        let number = self.order(master.clone()).map_err(failed)?;
        while master.is_none() && !inner.link.is_taken(number) {
            std::thread::sleep(LOOKS_EACH);
        }
        self.log(NOTICE, &format!("The store was taken over at {}:{}.", position.id, position.offset));
        Ok(())
    }

    /// Continues the files of the old process, if they are those of this one.
    fn continue_files(&self, options: &ServerOptions, position: &Position) -> Result<(), String> {
        let inner = &self.store.0;
        let Some(files) = inner.saver.files() else {
            return match options.appendonly {
                true => Err(NEEDS_DIR.into()),
                false => Ok(()),
            };
        };
        // What is there is what this data set comes from.
        let found = files
            .entry(&options.dbfilename)
            .map_err(|error| format!("Can't look into '{}': {}", options.dir.escape_ascii(), reason(&error)))?;
        inner.saver.begin_with(found.map(|entry| entry.identity()));
        if !options.appendonly {
            return Ok(());
        }
        let is_same = position.appended.as_ref().is_some_and(|appended| *appended == names(options));
        if is_same && self.append_again(&*files)? {
            return Ok(());
        }
        self.store.begin_to_append(&*files).map_err(|fault| fault.to_string())
    }

    /// Appends to files that have exactly what is in memory. Returns false if there are none.
    fn append_again(&self, files: &dyn Files) -> Result<bool, String> {
        let (parts, _) = self.store.find_append_only(files).map_err(|fault| fault.to_string())?;
        let Some(last) = parts.manifest().increments.last() else { return Ok(false) };
        let Some(entry) = parts.directory().entry(&last.name).map_err(|error| cannot_append(&error))? else {
            return Ok(false);
        };
        self.store.append_to(parts, entry.bytes).map_err(|error| cannot_append(&error))?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_wire::engine::{Engine, Started};
    use sluicegate_wire::reply::Reply;

    use super::*;
    use crate::{Store, StoreOptions};

    /// Returns a server with an append-only file in this directory.
    fn server(dir: &std::path::Path) -> Arc<Server> {
        let dir = dir.as_os_str().as_bytes().to_vec();
        let options = ServerOptions { dir, appendonly: true, ..ServerOptions::default() };
        let server = Server::new(Store::new(StoreOptions::default()), options);
        if let Some(beginning) = server.begin().expect("a directory") {
            beginning.load().expect("files");
        }
        server
    }

    #[track_caller]
    fn increment(server: &Server, expected: i64) {
        match server.start(0, &[b"INCR", b"n"]) {
            Started::Done(reply) => assert_eq!(reply, Reply::Integer(expected)),
            Started::Pending(_) => panic!("it waits"),
        }
    }

    fn refusal(server: &Server, time: Duration) -> String {
        server.leave(Instant::now() + time).err().expect("it is not left")
    }

    /// A store that cannot be left goes on, with its files.
    #[test]
    fn a_store_that_is_not_left_goes_on() {
        let dir = tempfile::tempdir().expect("a directory");
        let server = server(dir.path());
        increment(&server, 1);
        assert_eq!(server.await_successor(Instant::now()), Err(NOT_FOLLOWED.into()));
        assert_eq!(refusal(&server, Duration::from_secs(60)), NOT_FOLLOWED);
        increment(&server, 2);
        let script = server.start(0, &[b"EVAL", b"while true do end", b"0"]);
        assert!(matches!(script, Started::Pending(_)));
        assert_eq!(refusal(&server, Duration::from_millis(20)), "a script, or a transaction, keeps it busy");
        server.store.0.scripts.kill_every();
        drop(script);
        increment(&server, 3);
        server.store.end_appending().expect("a disk");
        increment(&self::server(dir.path()), 4);
    }

    /// Files that were closed can be opened at once, even if a thread has not let go of them yet.
    #[test]
    fn closed_files_are_not_locked() {
        let dir = tempfile::tempdir().expect("a directory");
        let server = server(dir.path());
        let _parts = server.store.0.appender.parts().expect("open files");
        server.store.end_appending().expect("a disk");
        increment(&self::server(dir.path()), 1);
    }

    /// A store that was left and is kept appends to the same file, without what another process may have added.
    #[test]
    fn a_store_that_is_kept_appends_to_its_files() {
        let dir = tempfile::tempdir().expect("a directory");
        let server = server(dir.path());
        increment(&server, 1);
        {
            let inner = &server.store.0;
            let (closed, ticket) = inner.close_for_cut();
            inner.start_leading();
            inner.open_after_cut(closed, ticket);
        }
        increment(&server, 2);
        let leave = server.leave(Instant::now() + Duration::from_secs(60)).expect("nobody is busy");
        let Position { id, offset, appended, .. } = leave.position().clone();
        assert_eq!((id, offset), (server.store.0.replication.id().to_string(), server.store.0.replication.offset()));
        assert_eq!(appended, Some(names(&server.options())));
        let files = dir.path().join("appendonlydir");
        let increment_file = std::fs::read_dir(&files).expect("a folder").map(|file| file.expect("a file").path());
        let increment_file = increment_file.into_iter().find(|path| path.to_string_lossy().ends_with(".incr.aof"));
        let path = increment_file.expect("one");
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).expect("a file");
        std::io::Write::write_all(&mut file, b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n").expect("a disk");
        drop(leave);
        increment(&server, 3);
        server.store.end_appending().expect("a disk");
        increment(&self::server(dir.path()), 4);
    }
}
