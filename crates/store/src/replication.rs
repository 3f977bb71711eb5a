//! Replication: the stream of changes, the replicas that get it, and the history that makes two streams comparable.
//!
//! The stream is the [record](crate::record) as bytes, in the form of the append-only file: what a replica executes to have
//! the data set of its master. Each byte has an offset, the first one 1, and a history has an identifier; so a replica
//! whose link was cut asks for the byte behind its last one, and continues if the history is the same and the *backlog*
//! reaches that far back. A server that stops following keeps the identifier of its master as its second one, up to the
//! offset that it had: others that followed the same master continue with it.
//!
//! A replica that cannot continue gets the whole data set ([`sync`]): the moment of its cut has an offset, and the
//! stream goes on behind that. A server that follows another one passes the bytes of its master on, unchanged.
//!
//! The blocks of the stream are shared by all replicas and the backlog. A replica that falls behind keeps the blocks from
//! its position on in memory, up to `client-output-buffer-limit replica`; then it is disconnected.

pub(crate) mod link;
pub(crate) mod replica;
mod stream;
pub(crate) mod sync;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::memory::Memory;
use crate::outbox::OutputLimit;
use replica::{Phase, Replica};
use stream::Stream;
use waiting::Waiting;

/// The name of a history: 40 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReplicationId([u8; 40]);

impl ReplicationId {
    /// The one of no history.
    pub(crate) const NONE: ReplicationId = ReplicationId([b'0'; 40]);

    /// Returns a new one.
    pub(crate) fn random() -> ReplicationId {
        use std::hash::{BuildHasher, RandomState};
        let part = |number: u8| RandomState::new().hash_one((Instant::now(), number));
        let text = format!("{:016x}{:016x}{:08x}", part(0), part(1), part(2) as u32);
        ReplicationId::parse(text.as_bytes()).unwrap_or(ReplicationId::NONE)
    }

    /// Reads one.
    pub(crate) fn parse(text: &[u8]) -> Option<ReplicationId> {
        let digits: [u8; 40] = text.try_into().ok()?;
        digits.iter().all(u8::is_ascii_hexdigit).then_some(ReplicationId(digits))
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl std::fmt::Display for ReplicationId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

impl std::fmt::Debug for ReplicationId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

/// A moment of a history: what is known of the stream where a file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) id: ReplicationId,
    /// The end of the stream, and the database that it has selected.
    pub(crate) offset: u64,
    pub(crate) db: u32,
}

/// The start of an annotation with a moment, in an append-only file.
const MOMENT: &[u8] = b"#RS:";

impl Moment {
    /// Returns the annotation of an append-only file.
    pub(crate) fn annotation(&self) -> Vec<u8> {
        format!("{}{} {} {}\r\n", MOMENT.escape_ascii(), self.id, self.offset, self.db).into_bytes()
    }

    /// Reads an annotation, without its end of line.
    pub(crate) fn read(line: &[u8]) -> Option<Moment> {
        let text = std::str::from_utf8(line.strip_prefix(MOMENT)?).ok()?;
        let mut words = text.split(' ');
        let id = ReplicationId::parse(words.next()?.as_bytes())?;
        Some(Moment { id, offset: words.next()?.parse().ok()?, db: words.next()?.parse().ok()? })
    }
}

/// The parameters of a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReplicationOptions {
    /// `repl-backlog-size`.
    pub(crate) backlog_bytes: u64,
    /// `repl-backlog-ttl`; zero: it is kept for good.
    pub(crate) backlog_ttl: Duration,
    /// `repl-timeout`.
    pub(crate) timeout: Duration,
    /// `repl-ping-replica-period`.
    pub(crate) ping_each: Duration,
    /// `repl-diskless-sync`, `-delay`, `-max-replicas`.
    pub(crate) is_diskless: bool,
    pub(crate) diskless_delay: Duration,
    pub(crate) diskless_max: u32,
    /// `client-output-buffer-limit replica`.
    pub(crate) output_limit: OutputLimit,
    /// `min-replicas-to-write` and `min-replicas-max-lag`.
    pub(crate) min_replicas: u32,
    pub(crate) max_lag: Duration,
}

impl Default for ReplicationOptions {
    fn default() -> ReplicationOptions {
        ReplicationOptions {
            backlog_bytes: 1 << 20,
            backlog_ttl: Duration::from_secs(3600),
            timeout: Duration::from_secs(60),
            ping_each: Duration::from_secs(10),
            is_diskless: true,
            diskless_delay: Duration::from_secs(5),
            diskless_max: 0,
            output_limit: OutputLimit { hard: 256 << 20, soft: 64 << 20, soft_s: 60 },
            min_replicas: 0,
            max_lag: Duration::from_secs(10),
        }
    }
}

/// The replication of a store.
pub(crate) struct Replication {
    state: Mutex<State>,
    options: Mutex<Arc<ReplicationOptions>>,
    /// The end of the stream.
    offset: AtomicU64,
    /// Clients that wait for replicas.
    waiting: Waiting,
    /// Whether the stream is that of a master.
    is_following: AtomicBool,
    /// Whether nothing enters the stream by itself, so that a replica can have all of it.
    is_quiet: AtomicBool,
    pub(crate) figures: Figures,
}

/// Counters of INFO.
#[derive(Default)]
pub(crate) struct Figures {
    pub(crate) full: AtomicU64,
    pub(crate) partial: AtomicU64,
    pub(crate) partial_refused: AtomicU64,
    /// Bytes of data sets and of the stream that were sent.
    pub(crate) output_bytes: AtomicU64,
    /// Those of them that no worker has written.
    pub(crate) direct_bytes: AtomicU64,
}

impl Figures {
    /// Returns the full syncs, the partial ones, and the partial ones that were refused.
    pub(crate) fn syncs(&self) -> [u64; 3] {
        [&self.full, &self.partial, &self.partial_refused].map(|sum| sum.load(Ordering::Relaxed))
    }
}

struct State {
    id: ReplicationId,
    /// The identifier of an earlier history, and the first offset that is not of it.
    second: Option<(ReplicationId, u64)>,
    stream: Stream,
    replicas: Vec<Arc<Replica>>,
    /// Since when there have been no replicas.
    alone_since: Instant,
    pinged_at: Instant,
}

/// Why a replica cannot continue where it stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// It has no history.
    Unasked,
    /// Its history is another one.
    History { own: ReplicationId, second: Option<ReplicationId> },
    /// It has more of the earlier history than this server, whose next byte this is.
    Ahead(u64),
    /// The backlog does not have the next byte.
    Backlog,
}

impl State {
    /// Returns what a replica lacks that asks for this byte of a history.
    fn lack(&self, asked: Option<(ReplicationId, u64)>) -> Option<Lack> {
        let Some((id, next)) = asked else { return Some(Lack::Unasked) };
        if id != self.id {
            let second = self.second.map(|(second, _)| second);
            match self.second {
                Some((second, end)) if second == id && next > end => return Some(Lack::Ahead(end)),
                Some((second, _)) if second == id => {}
                _ => return Some(Lack::History { own: self.id, second }),
            }
        }
        let has_it = next > 0 && self.stream.reaches(next - 1);
        (!has_it).then_some(Lack::Backlog)
    }
}

/// What INFO tells.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) id: ReplicationId,
    pub(crate) second: Option<(ReplicationId, u64)>,
    pub(crate) offset: u64,
    pub(crate) has_backlog: bool,
    pub(crate) backlog_bytes: u64,
    /// The offset of the first byte of the backlog, and the number of its bytes.
    pub(crate) backlog_first: u64,
    pub(crate) backlog_len: u64,
    /// The bytes of it that only replicas which are behind need.
    pub(crate) behind_bytes: u64,
}

impl Replication {
    pub(crate) fn new(memory: Arc<Memory>) -> Replication {
        let now = Instant::now();
        Replication {
            state: Mutex::new(State {
                id: ReplicationId::random(),
                second: None,
                stream: Stream::new(memory),
                replicas: Vec::new(),
                alone_since: now,
                pinged_at: now,
            }),
            options: Mutex::default(),
            offset: AtomicU64::new(0),
            waiting: Waiting::new(),
            is_following: AtomicBool::new(false),
            is_quiet: AtomicBool::new(false),
            figures: Figures::default(),
        }
    }

    pub(crate) fn options(&self) -> Arc<ReplicationOptions> {
        self.options.lock().clone()
    }

    pub(crate) fn set_options(&self, options: ReplicationOptions) {
        *self.options.lock() = Arc::new(options);
    }

    /// Returns the identifier of the history.
    pub(crate) fn id(&self) -> ReplicationId {
        self.state.lock().id
    }

    /// Returns the end of the stream so far.
    pub(crate) fn offset(&self) -> u64 {
        self.offset.load(Ordering::SeqCst)
    }

    /// Returns whether the stream is that of a master.
    pub(crate) fn is_following(&self) -> bool {
        self.is_following.load(Ordering::SeqCst)
    }

    /// Returns the replicas.
    pub(crate) fn replicas(&self) -> Vec<Arc<Replica>> {
        self.state.lock().replicas.clone()
    }

    /// Returns the replicas that clients are shown: all but the store of a process that replaces this one.
    pub(crate) fn visible_replicas(&self) -> Vec<Arc<Replica>> {
        self.replicas().into_iter().filter(|replica| !replica.is_successor).collect()
    }

    pub(crate) fn told(&self) -> Told {
        let state = self.state.lock();
        // Replicas that are behind let it be longer than its parameter says.
        let (len, (_, capped)) = (state.stream.held(), state.stream.backlog(self.options().backlog_bytes));
        let first = if state.stream.is_kept() { state.stream.end() - len + 1 } else { 0 };
        Told {
            id: state.id,
            second: state.second,
            offset: self.offset(),
            has_backlog: state.stream.is_kept(),
            backlog_bytes: self.options().backlog_bytes,
            backlog_first: first,
            backlog_len: len,
            behind_bytes: len - capped,
        }
    }

    /// Appends bytes to the stream.
    pub(crate) fn feed(&self, bytes: &[u8]) {
        let options = self.options();
        let woken = {
            let mut state = self.state.lock();
            let State { stream, replicas, .. } = &mut *state;
            stream.append(bytes);
            let end = stream.end();
            self.offset.store(end, Ordering::SeqCst);
            replicas.iter().for_each(|replica| replica.check_limit(end, &options));
            let present = replicas.iter().filter(|replica| !replica.is_gone());
            stream.trim(options.backlog_bytes, present.filter_map(|replica| replica.position()).min());
            replicas.iter().filter(|replica| replica.wants_stream()).cloned().collect::<Vec<_>>()
        };
        woken.iter().for_each(|replica| replica.wake());
    }

    /// Moves bytes of the stream from a position on to the end of `out`. Returns the position behind them; [`None`] if the
    /// stream does not have them any more.
    fn read(&self, position: u64, most: usize, out: &mut Vec<u8>) -> Option<u64> {
        let state = self.state.lock();
        let count = state.stream.read(position, most, out)?;
        self.figures.output_bytes.fetch_add(count as u64, Ordering::Relaxed);
        Some(position + count as u64)
    }

    /// Returns the bytes of the stream behind a position.
    #[cfg(test)]
    pub(crate) fn stream_from(&self, position: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        assert!(self.read(position, usize::MAX, &mut bytes).is_some(), "they are there");
        bytes
    }

    /// Adds a replica, which may continue with this byte of a history. If it cannot, it waits for the data set.
    pub(crate) fn add(&self, replica: &Arc<Replica>, asked: Option<(ReplicationId, u64)>) -> Result<(), Lack> {
        let mut state = self.state.lock();
        let lack = state.lack(asked);
        match (asked, lack) {
            (Some((_, next)), None) => replica.go_on_from(next - 1),
            _ if state.replicas.is_empty() && !state.stream.is_kept() && !self.is_following() => {
                // Changes that nobody was told of make another history.
                state.id = ReplicationId::random();
                state.second = None;
            }
            _ => {}
        }
        state.replicas.push(replica.clone());
        lack.map_or(Ok(()), Err)
    }

    /// Removes a replica.
    pub(crate) fn remove(&self, replica: &Replica) {
        replica.leave();
        let backlog_bytes = self.options().backlog_bytes;
        {
            let mut state = self.state.lock();
            state.replicas.retain(|known| !std::ptr::eq(&**known, replica));
            state.alone_since = Instant::now();
            let State { stream, replicas, .. } = &mut *state;
            // What only this one needed.
            let present = replicas.iter().filter(|replica| !replica.is_gone());
            stream.trim(backlog_bytes, present.filter_map(|replica| replica.position()).min());
        }
        self.waiting.wake_all();
    }

    /// Keeps a backlog from now on.
    fn keep_backlog(&self) {
        let mut state = self.state.lock();
        let offset = self.offset();
        state.stream.keep(offset);
    }

    /// Forgets the backlog: what changes from now on is of another history.
    fn forget_backlog(&self) {
        let mut state = self.state.lock();
        state.stream.clear();
        state.id = ReplicationId::random();
        state.second = None;
    }

    /// Returns whether there have been no replicas for so long that the backlog is not kept any longer.
    fn is_forgotten(&self) -> bool {
        let ttl = self.options().backlog_ttl;
        let state = self.state.lock();
        let is_alone = state.replicas.is_empty() && state.stream.is_kept() && !self.is_following();
        is_alone && !ttl.is_zero() && state.alone_since.elapsed() >= ttl
    }

    /// Sets whether nothing enters the stream by itself, so that a replica can have all of it.
    pub(crate) fn set_quiet(&self, is_quiet: bool) {
        self.is_quiet.store(is_quiet, Ordering::SeqCst);
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.is_quiet.load(Ordering::SeqCst)
    }

    /// Returns whether it is time for a sign of life in the stream.
    fn is_time_to_ping(&self) -> bool {
        let each = self.options().ping_each;
        let mut state = self.state.lock();
        let is_time = !self.is_quiet() && !state.replicas.is_empty() && state.pinged_at.elapsed() >= each;
        if is_time {
            state.pinged_at = Instant::now();
        }
        is_time
    }

    /// Returns the number of replicas that have acknowledged this offset; with `files`, that have it on their disks.
    pub(crate) fn acknowledged(&self, offset: u64, in_files: bool) -> usize {
        let has = |replica: &&Arc<Replica>| {
            let is_online = !replica.is_successor && replica.phase() == Phase::Online;
            is_online && replica.acknowledged(in_files).is_some_and(|acked| acked >= offset)
        };
        self.state.lock().replicas.iter().filter(has).count()
    }

    /// Returns the number of replicas that are not too far behind, in whole seconds; one that loads its data set may be.
    pub(crate) fn good(&self) -> usize {
        let max_lag = self.options().max_lag.as_secs();
        let is_good = |replica: &&Arc<Replica>| {
            !replica.is_successor && replica.phase() >= Phase::Loading && replica.lag().as_secs() <= max_lag
        };
        self.state.lock().replicas.iter().filter(is_good).count()
    }

    /// Wakes a client when a replica acknowledges something, or is gone.
    pub(crate) fn listen(&self, waker: &Waker) {
        self.waiting.listen(waker);
    }

    /// Wakes clients that wait for replicas or for a file, as what they wait for may not come any more.
    pub(crate) fn wake_waiting(&self) {
        self.waiting.wake_all();
    }

    /// Records what a replica has acknowledged.
    pub(crate) fn acknowledge(&self, replica: &Replica, offset: u64, file_offset: Option<u64>) {
        replica.acknowledge(offset, file_offset);
        self.waiting.acknowledged();
    }

    /// Begins to follow a master: the stream is what comes from it.
    pub(crate) fn set_following(&self, is_following: bool) {
        self.is_following.store(is_following, Ordering::SeqCst);
    }

    /// After a full sync: the history of the master, at this offset. Own replicas have to ask again.
    pub(crate) fn restart_at(&self, id: ReplicationId, offset: u64) {
        let dropped = {
            let mut state = self.state.lock();
            (state.id, state.second) = (id, None);
            state.stream.clear();
            self.offset.store(offset, Ordering::SeqCst);
            state.stream.keep(offset);
            state.replicas.clone()
        };
        dropped.iter().for_each(|replica| replica.disconnect());
    }

    /// The master continues the history under another identifier.
    pub(crate) fn continue_as(&self, id: ReplicationId) {
        let dropped = {
            let mut state = self.state.lock();
            state.second = Some((state.id, self.offset() + 1));
            state.id = id;
            state.replicas.clone()
        };
        // They learn the new identifier when they ask again.
        dropped.iter().for_each(|replica| replica.disconnect());
    }

    /// Appends bytes of the master's stream that were applied.
    pub(crate) fn relay(&self, bytes: &[u8]) {
        self.feed(bytes);
    }

    /// Lets what is changed by the load of the first data set, as keys expire, enter the stream. Where that belongs is known
    /// when the load ends, by [`resume`](Self::resume) or [`begin_anew`](Self::begin_anew).
    pub(crate) fn begin_load(&self) {
        self.state.lock().stream.keep(0);
    }

    /// Continues a history that a file has brought back, under an own identifier: with what the load has changed, if it
    /// has.
    fn resume(&self, moment: Moment) {
        let mut state = self.state.lock();
        (state.id, state.second) = (ReplicationId::random(), Some((moment.id, moment.offset + 1)));
        state.stream.keep(0);
        state.stream.shift(moment.offset);
        self.offset.store(state.stream.end(), Ordering::SeqCst);
        state.alone_since = Instant::now();
    }

    /// Forgets what a load has changed, as its file belongs to no history.
    pub(crate) fn begin_anew(&self) {
        let mut state = self.state.lock();
        state.stream.reset();
        self.offset.store(0, Ordering::SeqCst);
    }

    /// Continues the history of the master under an own identifier.
    fn shift_id(&self) {
        let dropped = {
            let mut state = self.state.lock();
            state.second = Some((state.id, self.offset() + 1));
            state.id = ReplicationId::random();
            state.replicas.clone()
        };
        dropped.iter().for_each(|replica| replica.disconnect());
    }
}

#[cfg(test)]
mod tests;
