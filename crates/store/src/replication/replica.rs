//! A replica, as its master knows it.
//!
//! Its worker sends what it is to get, with one exception: a sync writes the data set to the socket itself, unless the
//! connection is encrypted, so that the worker's other clients do not wait for copies of some hundred megabytes. The worker
//! lets it begin once everything before that has been written, and writes nothing until the data set has ended.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;

use super::{Replication, ReplicationOptions};

/// The bytes of a data set that may wait for a replica.
const PAYLOAD_QUEUE_MAX: usize = 4 << 20;
/// The time between two looks at whether a replica is to be waited for.
const LOOKS_EACH: Duration = Duration::from_millis(100);

/// What a replica is about to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Phase {
    /// It waits for the start of a data set.
    Waiting,
    /// A data set is being made for it, or sent.
    Syncing,
    /// The data set is sent; the stream follows when it is loaded.
    Loading,
    /// The stream.
    Online,
}

/// The parts of a data set that a replica asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Parts {
    #[default]
    All,
    /// The libraries of functions.
    Functions,
    /// Neither keys nor functions: the auxiliary fields.
    Nothing,
}

/// A replica of this server.
pub(crate) struct Replica {
    /// Its address, as it was told or as it is seen.
    pub(crate) address: String,
    pub(crate) port: u32,
    /// Whether a data set of unknown length may be sent.
    pub(crate) takes_marked: bool,
    pub(crate) parts: Parts,
    /// Whether it is the store of a process that replaces this one, which nobody else sees or counts.
    pub(crate) is_successor: bool,
    /// Whether it asked with SYNC: it does not know identifiers.
    pub(crate) is_old: bool,
    pub(crate) since: Instant,
    phase: AtomicU8,
    /// The offset of the last byte of the stream that was sent to it, plus one; 0: it has no place in the stream yet.
    position: AtomicU64,
    /// What it has acknowledged, and what it has on its disk, plus one; 0: nothing.
    acked: AtomicU64,
    acked_in_file: AtomicU64,
    acked_at: Mutex<Instant>,
    over_since: Mutex<Option<Instant>>,
    payload: Mutex<Payload>,
    /// Its socket, if a sync may write to it.
    socket: Mutex<Option<Arc<OwnedFd>>>,
    /// Told when the payload has more room, or the replica is gone.
    room: Condvar,
    /// The empty lines that tell it to wait.
    lines: AtomicU32,
    is_gone: AtomicBool,
    replication: Arc<Replication>,
    notify: Box<dyn Fn(Notice) + Send + Sync>,
}

/// What the connection of a replica is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// There is something to send.
    Filled,
    /// It has to end.
    Disconnect,
    /// It has to end, because too much waits for it.
    Overcome,
}

#[derive(Default)]
struct Payload {
    chunks: VecDeque<Vec<u8>>,
    /// The bytes of the first chunk that were taken.
    taken: usize,
    bytes: usize,
    /// Whether what comes next belongs to the data set.
    has_data: bool,
    /// Whether everything before the data set was written, and the sync writes the rest to the socket.
    is_direct: bool,
    is_ended: bool,
}

/// A replica that is about to be: what it has told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    pub(crate) address: Option<String>,
    pub(crate) port: u32,
    pub(crate) takes_marked: bool,
    pub(crate) parts: Parts,
    pub(crate) knows_ids: bool,
    /// Whether it is the store of a process that replaces this one.
    pub(crate) is_successor: bool,
}

impl Replica {
    pub(crate) fn new(
        address: String,
        told: &Told,
        is_old: bool,
        replication: Arc<Replication>,
        notify: impl Fn(Notice) + Send + Sync + 'static,
    ) -> Replica {
        let now = Instant::now();
        Replica {
            address: told.address.clone().unwrap_or(address),
            port: told.port,
            takes_marked: told.takes_marked,
            parts: told.parts,
            is_successor: told.is_successor,
            is_old,
            since: now,
            phase: AtomicU8::new(Phase::Waiting as u8),
            position: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            acked_in_file: AtomicU64::new(0),
            acked_at: Mutex::new(now),
            over_since: Mutex::default(),
            payload: Mutex::default(),
            socket: Mutex::default(),
            room: Condvar::new(),
            lines: AtomicU32::new(0),
            is_gone: AtomicBool::new(false),
            replication,
            notify: Box::new(notify),
        }
    }

    /// Lets a sync write to the socket.
    pub(crate) fn with_socket(self, socket: OwnedFd) -> Replica {
        *self.socket.lock() = Some(Arc::new(socket));
        self
    }

    pub(crate) fn phase(&self) -> Phase {
        [Phase::Waiting, Phase::Syncing, Phase::Loading, Phase::Online][usize::from(self.phase.load(Ordering::SeqCst))]
    }

    fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::SeqCst);
    }

    /// Returns the offset of the last byte of the stream that was sent to it; [`None`] before it has a place there.
    pub(super) fn position(&self) -> Option<u64> {
        self.position.load(Ordering::SeqCst).checked_sub(1)
    }

    fn set_position(&self, offset: u64) {
        self.position.store(offset + 1, Ordering::SeqCst);
    }

    /// Returns whether it is to be woken when the stream grows.
    pub(super) fn wants_stream(&self) -> bool {
        self.phase() == Phase::Online
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::SeqCst)
    }

    /// Lets it continue behind this offset.
    pub(super) fn go_on_from(&self, offset: u64) {
        self.set_position(offset);
        self.set_phase(Phase::Online);
    }

    /// Chooses it for the next data set.
    pub(super) fn choose(&self) {
        self.set_phase(Phase::Syncing);
    }

    /// Begins the payload of a data set, of the moment at this offset of the stream. Behind the mark of one that ends with it
    /// the data set follows at once.
    pub(super) fn begin_payload(&self, offset: u64, head: Vec<u8>, is_marked: bool) {
        self.set_position(offset);
        {
            let mut payload = self.payload.lock();
            payload.push(head);
            payload.has_data = is_marked;
        }
        self.wake();
    }

    /// Adds to the payload, or writes it; waits while too much waits, as long as `may_wait` allows. Returns false if the
    /// replica is gone.
    pub(super) fn add_payload(&self, chunk: &[u8], may_wait: impl Fn(Duration) -> bool) -> bool {
        let socket = self.socket.lock().clone();
        if socket.is_some() && !std::mem::replace(&mut self.payload.lock().has_data, true) {
            self.wake();
        }
        let mut payload = self.payload.lock();
        let since = Instant::now();
        let has_room = |payload: &Payload| match socket {
            Some(_) => payload.is_direct,
            None => payload.bytes < PAYLOAD_QUEUE_MAX,
        };
        while !has_room(&payload) && !self.is_gone() {
            self.room.wait_for(&mut payload, LOOKS_EACH);
            if !has_room(&payload) && !may_wait(since.elapsed()) {
                drop(payload);
                self.disconnect();
                return false;
            }
        }
        if self.is_gone() {
            return false;
        }
        if let Some(socket) = socket {
            drop(payload);
            let is_written = self.write(&socket, chunk, may_wait);
            if !is_written {
                self.disconnect();
            }
            return is_written;
        }
        payload.push(chunk.to_vec());
        payload.has_data = true;
        drop(payload);
        self.wake();
        true
    }

    /// Writes bytes to the socket; waits while it takes nothing, as long as `may_wait` allows. Returns false if the replica
    /// is gone.
    fn write(&self, socket: &OwnedFd, mut bytes: &[u8], may_wait: impl Fn(Duration) -> bool) -> bool {
        let figures = &self.replication.figures;
        let mut since = Instant::now();
        while !bytes.is_empty() {
            match SockRef::from(socket).send_with_flags(bytes, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) {
                Ok(count) => {
                    bytes = &bytes[count..];
                    figures.output_bytes.fetch_add(count as u64, Ordering::Relaxed);
                    figures.direct_bytes.fetch_add(count as u64, Ordering::Relaxed);
                    since = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let time = Timespec { tv_sec: 0, tv_nsec: LOOKS_EACH.subsec_nanos().into() };
                    // An error of the socket shows at the next attempt.
                    let _ = poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&time));
                    if !may_wait(since.elapsed()) {
                        return false;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
            if self.is_gone() {
                return false;
            }
        }
        true
    }

    /// Ends the payload.
    pub(super) fn end_payload(&self) {
        self.socket.lock().take();
        self.payload.lock().is_ended = true;
        *self.acked_at.lock() = Instant::now();
        self.wake();
    }

    /// Sends a line that keeps the link alive before the payload.
    pub(super) fn send_line(&self) {
        self.lines.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    /// Moves what the replica is to get to the end of `out`, about so many bytes at most. Returns whether there is more.
    pub(crate) fn read(&self, most: usize, out: &mut Vec<u8>) -> bool {
        match self.phase() {
            Phase::Waiting => self.read_lines(out),
            Phase::Syncing => self.read_payload(most, out),
            Phase::Loading => false,
            Phase::Online => self.read_stream(most, out),
        }
    }

    fn read_lines(&self, out: &mut Vec<u8>) -> bool {
        let lines = self.lines.swap(0, Ordering::SeqCst);
        out.extend(std::iter::repeat_n(b'\n', lines as usize));
        false
    }

    fn read_payload(&self, most: usize, out: &mut Vec<u8>) -> bool {
        let mut payload = self.payload.lock();
        if payload.chunks.is_empty() && !payload.is_ended {
            if !payload.has_data {
                // The cut is waited for, or the file; inside the data set there are no lines.
                return self.read_lines(out);
            }
            if payload.is_direct || self.socket.lock().is_none() {
                return false;
            }
            // The worker empties its output once it has written it.
            payload.is_direct = out.is_empty();
            self.room.notify_all();
            return !payload.is_direct;
        }
        self.lines.store(0, Ordering::SeqCst);
        let mut count = 0;
        while count < most
            && let Some(first) = payload.chunks.front()
        {
            let here = &first[payload.taken..];
            let here = &here[..here.len().min(most - count)];
            out.extend_from_slice(here);
            let (taken, is_whole) = (here.len(), payload.taken + here.len() == first.len());
            count += taken;
            payload.taken += taken;
            payload.bytes -= taken;
            if is_whole {
                payload.chunks.pop_front();
                payload.taken = 0;
            }
        }
        self.replication.figures.output_bytes.fetch_add(count as u64, Ordering::Relaxed);
        let is_over = payload.chunks.is_empty() && payload.is_ended;
        // Once this is written, a sync that waits for that may begin to write.
        let lets_begin = payload.has_data && !payload.is_ended && self.socket.lock().is_some();
        let has_more = !payload.chunks.is_empty() || lets_begin;
        drop(payload);
        self.room.notify_all();
        if is_over {
            // It sees the end of the payload, and may acknowledge it, before it is recorded here.
            let is_loaded = !self.takes_marked || self.acknowledged(false).is_some();
            self.set_phase(if is_loaded { Phase::Online } else { Phase::Loading });
            return is_loaded;
        }
        has_more
    }

    fn read_stream(&self, most: usize, out: &mut Vec<u8>) -> bool {
        match self.position().and_then(|position| self.replication.read(position, most, out)) {
            Some(position) => {
                self.set_position(position);
                position < self.replication.offset()
            }
            None => {
                self.disconnect();
                false
            }
        }
    }

    /// Records what it has acknowledged. The first sign of a replica that has got its data set starts the stream.
    pub(super) fn acknowledge(&self, offset: u64, file_offset: Option<u64>) {
        self.acked.fetch_max(offset + 1, Ordering::SeqCst);
        if let Some(offset) = file_offset {
            self.acked_in_file.fetch_max(offset + 1, Ordering::SeqCst);
        }
        *self.acked_at.lock() = Instant::now();
        let (loading, online) = (Phase::Loading as u8, Phase::Online as u8);
        if self.phase.compare_exchange(loading, online, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.wake();
        }
    }

    /// Returns the offset that it has acknowledged, or has on its disk.
    pub(crate) fn acknowledged(&self, in_file: bool) -> Option<u64> {
        let acked = if in_file { &self.acked_in_file } else { &self.acked };
        acked.load(Ordering::SeqCst).checked_sub(1)
    }

    /// Returns the time since its last sign of life.
    pub(crate) fn lag(&self) -> Duration {
        self.acked_at.lock().elapsed()
    }

    /// Returns whether it may be disconnected before it has its data set: half of what may wait does, or more than the soft
    /// limit has waited for a quarter of its time.
    pub(super) fn is_pressed(&self, end: u64, options: &ReplicationOptions) -> bool {
        let limit = &options.output_limit;
        let behind = self.position().map_or(0, |position| end.saturating_sub(position));
        let is_long = || {
            let since = *self.over_since.lock();
            since.is_some_and(|since| since.elapsed() >= Duration::from_secs(limit.soft_s) / 4)
        };
        self.phase() == Phase::Syncing && (limit.hard > 0 && behind >= limit.hard / 2 || is_long())
    }

    /// Disconnects it if it is too far behind.
    pub(super) fn check_limit(&self, end: u64, options: &ReplicationOptions) {
        let Some(position) = self.position() else { return };
        let behind = end.saturating_sub(position);
        let limit = &options.output_limit;
        // As in Redis, a limit below the backlog's size takes no memory from anybody.
        let exceeds = |bytes: u64| bytes > 0 && behind >= bytes.max(options.backlog_bytes);
        let mut over_since = self.over_since.lock();
        let is_soft = match exceeds(limit.soft) {
            true => over_since.get_or_insert_with(Instant::now).elapsed() > Duration::from_secs(limit.soft_s),
            false => {
                *over_since = None;
                false
            }
        };
        if (is_soft || exceeds(limit.hard)) && !self.is_gone() {
            self.leave();
            (self.notify)(Notice::Overcome);
        }
    }

    /// Returns the bytes of a data set that wait for it.
    pub(crate) fn payload_bytes(&self) -> u64 {
        self.payload.lock().bytes as u64
    }

    /// Tells its connection that there is something to send.
    pub(crate) fn wake(&self) {
        (self.notify)(Notice::Filled);
    }

    /// Ends the connection.
    pub(crate) fn disconnect(&self) {
        self.leave();
        (self.notify)(Notice::Disconnect);
    }

    /// Records that the connection has ended.
    pub(super) fn leave(&self) {
        self.is_gone.store(true, Ordering::SeqCst);
        self.socket.lock().take();
        let mut payload = self.payload.lock();
        (payload.chunks, payload.bytes, payload.taken) = (VecDeque::new(), 0, 0);
        drop(payload);
        self.room.notify_all();
    }
}

impl Payload {
    fn push(&mut self, chunk: Vec<u8>) {
        self.bytes += chunk.len();
        self.chunks.push_back(chunk);
    }
}

impl std::fmt::Debug for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "replica {}:{}, {:?}", self.address, self.port, self.phase())
    }
}
