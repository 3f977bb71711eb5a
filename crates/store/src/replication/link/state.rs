//! What is ordered of a link, and what is known of it: shared by its thread, by commands and by INFO.

use std::fmt::Write as _;
use std::io;
use std::net::Shutdown;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use socket2::{SockAddr, Socket};
use tokio::sync::watch;

use super::{Border, Gone, seconds_since};
use crate::memory::Policy;
use crate::oom_score::OomTerms;

/// The time between two looks at whether a pause is over.
const PAUSED_LOOK: Duration = Duration::from_millis(5);

/// While it exists, no commands of the stream are begun.
pub(crate) struct Pause<'l>(&'l Link);

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.0.pauses.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A master by its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Master {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// The parameters that decide what clients see of a replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// `replica-read-only`.
    pub(crate) is_read_only: bool,
    /// `replica-serve-stale-data`.
    pub(crate) serves_stale: bool,
    /// `replica-ignore-maxmemory`.
    pub(crate) ignores_maxmemory: bool,
    /// `repl-timeout`.
    pub(crate) timeout_s: u32,
    /// The limit otherwise, and the policy.
    pub(crate) maxmemory: u64,
    pub(crate) policy: Policy,
    /// `oom-score-adj`.
    pub(crate) oom: OomTerms,
}

impl Default for Terms {
    fn default() -> Terms {
        let (is_read_only, serves_stale, ignores_maxmemory) = (true, true, true);
        let (timeout_s, maxmemory, policy) = (60, 0, Policy::default());
        Terms { is_read_only, serves_stale, ignores_maxmemory, timeout_s, maxmemory, policy, oom: OomTerms::default() }
    }
}

/// A connection to the master, as clients are shown.
pub(crate) struct Connection {
    pub(crate) number: u64,
    /// `address:port` of either end.
    pub(crate) peer: String,
    pub(crate) local: String,
    pub(crate) descriptor: i32,
    /// The database that the stream has selected.
    pub(crate) db: u32,
    /// When something last came.
    pub(crate) heard: Instant,
}

/// How far the link has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// It waits for the next attempt.
    #[default]
    Waiting,
    Connecting,
    Handshake,
    /// The data set is received, or loaded.
    Transfer,
    Connected,
}

/// How far it is that a replica of this server becomes its master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum HandOver {
    #[default]
    None,
    /// The replica is to be asked: it has everything up to this offset, if it has to have everything.
    Wanted(Option<u64>),
    Refused,
    Done,
}

/// The link of a store to its master, if it has one.
pub(crate) struct Link {
    /// Held from the beginning of commands of the stream until they are counted.
    border: Mutex<()>,
    /// The number of those that keep commands of the stream from being begun.
    pauses: AtomicUsize,
    state: Mutex<State>,
    changed: Condvar,
    terms: Mutex<Terms>,
    /// The number of the last order.
    ordered: AtomicU64,
    /// That of the last one that was taken over.
    taken: watch::Sender<u64>,
    /// The bytes of a data set that have been received.
    received: AtomicU64,
    /// When something last came, in milliseconds since `made`.
    heard_ms: AtomicU64,
    /// Until when no commands of the stream are begun, likewise.
    held_until_ms: AtomicU64,
    /// The bytes of the stream that were received and are not counted yet.
    ahead: AtomicU64,
    made: Instant,
}

#[derive(Default)]
struct State {
    master: Option<Master>,
    /// Whether the store was a replica when the last order was taken over.
    is_replica: bool,
    phase: Phase,
    /// The connection in use, with the order that it belongs to.
    socket: Option<Socket>,
    /// Its number.
    connection: u64,
    has_thread: bool,
    is_over: bool,
    /// When the link was lost.
    down_since: Option<Instant>,
    /// The size of the data set that is received; 0: unknown.
    total: u64,
    /// The database that the stream has selected.
    db: u32,
    /// Whether the data set is in no history.
    needs_full: bool,
    /// Whether the master is a replica of this server that has to become one, and how that ended.
    hand_over: HandOver,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            border: Mutex::default(),
            pauses: AtomicUsize::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
            terms: Mutex::default(),
            ordered: AtomicU64::new(0),
            taken: watch::Sender::new(0),
            received: AtomicU64::new(0),
            heard_ms: AtomicU64::new(0),
            held_until_ms: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            made: Instant::now(),
        }
    }
}

impl Link {
    /// Waits until what was applied of the stream is counted, and keeps the link from going on.
    pub(crate) fn border(&self) -> Border<'_> {
        self.border.lock()
    }

    /// Keeps commands of the stream from being begun while the returned value exists, once those that were begun are
    /// counted: while the data set is emptied and loaded.
    pub(crate) fn pause(&self) -> Pause<'_> {
        let _border = self.border();
        self.pauses.fetch_add(1, Ordering::SeqCst);
        Pause(self)
    }

    /// Lets no commands of the stream be begun until this time, while what comes is received; [`None`]: they may again.
    pub(crate) fn hold(&self, until: Option<Instant>) {
        let until_ms = until.map_or(0, |until| until.saturating_duration_since(self.made).as_millis() as u64);
        self.held_until_ms.store(until_ms, Ordering::SeqCst);
    }

    /// Returns whether no commands of the stream may be begun.
    pub(super) fn is_held(&self) -> bool {
        let until_ms = self.held_until_ms.load(Ordering::SeqCst);
        until_ms > 0 && (self.made.elapsed().as_millis() as u64) < until_ms
    }

    /// Notes how many bytes of the stream were received and are not counted yet.
    pub(super) fn set_ahead(&self, bytes: usize) {
        self.ahead.store(bytes as u64, Ordering::Relaxed);
    }

    /// Returns the right to begin commands of the stream, as soon as nobody keeps the link from that.
    pub(super) fn border_of_stream(&self, order: u64) -> Result<Border<'_>, Gone> {
        loop {
            let border = self.border();
            if self.pauses.load(Ordering::SeqCst) == 0 {
                return Ok(border);
            }
            drop(border);
            self.check(order)?;
            std::thread::sleep(PAUSED_LOOK);
        }
    }

    /// Orders the link to follow a master, or none. Returns the order's number, and whether it needs a thread.
    pub(super) fn order(&self, master: Option<Master>) -> (u64, bool) {
        let mut state = self.state.lock();
        state.master = master;
        if std::mem::take(&mut state.phase) == Phase::Connected {
            state.down_since = Some(Instant::now());
        }
        let number = self.ordered.fetch_add(1, Ordering::SeqCst) + 1;
        shut_down(&mut state);
        let needs_thread = !std::mem::replace(&mut state.has_thread, true);
        drop(state);
        self.changed.notify_all();
        (number, needs_thread)
    }

    /// Notes how far it is that a replica of this server becomes its master.
    pub(crate) fn set_hand_over(&self, hand_over: HandOver) {
        self.state.lock().hand_over = hand_over;
    }

    pub(crate) fn hand_over(&self) -> HandOver {
        self.state.lock().hand_over
    }

    /// Notes that the thread could not be started, so that the order is void.
    pub(super) fn has_no_thread(&self) {
        let mut state = self.state.lock();
        (state.has_thread, state.master) = (false, None);
    }

    /// Ends the link for good.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.is_over = true;
        self.ordered.fetch_add(1, Ordering::SeqCst);
        shut_down(&mut state);
        drop(state);
        self.changed.notify_all();
    }

    /// Returns the master that is to be followed.
    pub(crate) fn master(&self) -> Option<Master> {
        self.state.lock().master.clone()
    }

    /// Returns whether the store is a replica, or becomes one, or still has to be made a master.
    pub(crate) fn is_replica(&self) -> bool {
        let state = self.state.lock();
        state.master.is_some() || state.is_replica
    }

    /// Returns whether the link works.
    pub(crate) fn is_up(&self) -> bool {
        self.state.lock().phase == Phase::Connected
    }

    /// Returns whether a data set is being received or loaded.
    pub(crate) fn is_syncing(&self) -> bool {
        self.state.lock().phase == Phase::Transfer
    }

    /// Returns the database that the stream has selected.
    pub(crate) fn stream_db(&self) -> u32 {
        self.state.lock().db
    }

    /// Sets the database that the stream has selected.
    pub(crate) fn set_stream_db(&self, db: u32) {
        self.state.lock().db = db;
    }

    /// Sets the parameters.
    pub(crate) fn set_terms(&self, terms: Terms) {
        *self.terms.lock() = terms;
    }

    /// Returns the time for which the master may say nothing.
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_secs(self.terms.lock().timeout_s.into())
    }

    /// Calls `show` with whether the store is a replica, whether its link works, and the parameters, of one moment.
    pub(super) fn with_role(&self, show: impl FnOnce(bool, bool, &Terms) -> Option<()>) {
        let terms = self.terms.lock();
        let (is_replica, is_up) = {
            let state = self.state.lock();
            (state.master.is_some() || state.is_replica, state.phase == Phase::Connected)
        };
        // Without the store there is nobody to show it to.
        let _ = show(is_replica, is_up, &terms);
    }

    /// Returns whether the data set has to be received whole.
    pub(crate) fn needs_full(&self) -> bool {
        self.state.lock().needs_full
    }

    /// Notes that the data set is in no history, so that it has to be received whole.
    pub(crate) fn need_full(&self) {
        self.state.lock().needs_full = true;
    }

    /// Notes that the data set belongs to the history of the stream.
    pub(crate) fn is_whole(&self) {
        self.state.lock().needs_full = false;
    }

    /// Returns an error if another order has come.
    pub(super) fn check(&self, order: u64) -> Result<(), Gone> {
        if self.ordered.load(Ordering::SeqCst) == order { Ok(()) } else { Err(Gone::Stopped) }
    }

    /// Waits for an order; returns its number and the master. Returns at once if there is a master to be followed;
    /// [`None`] at the end.
    pub(super) fn await_order(&self, taken: u64) -> Option<(u64, Option<Master>)> {
        let mut state = self.state.lock();
        loop {
            if state.is_over {
                return None;
            }
            let number = self.ordered.load(Ordering::SeqCst);
            if number != taken || state.master.is_some() {
                return Some((number, state.master.clone()));
            }
            self.changed.wait(&mut state);
        }
    }

    /// Notes that an order was taken over.
    pub(super) fn take(&self, number: u64) {
        let mut state = self.state.lock();
        if self.ordered.load(Ordering::SeqCst) == number {
            state.is_replica = state.master.is_some();
        }
    }

    /// Tells those that wait for an order that it was taken over, once clients see that.
    pub(super) fn tell_taken(&self, number: u64) {
        self.taken.send_replace(number);
    }

    /// Returns whether an order was taken over.
    pub(crate) fn is_taken(&self, number: u64) -> bool {
        *self.taken.borrow() >= number
    }

    /// Waits until an order was taken over.
    pub(crate) async fn taken(&self, number: u64) {
        // The sender lives as long as the link.
        let _ = self.taken.subscribe().wait_for(|taken| *taken >= number).await;
    }

    /// Waits for this time, or until another order comes.
    pub(super) fn rest(&self, order: u64, time: Duration) {
        let deadline = Instant::now() + time;
        let mut state = self.state.lock();
        while self.check(order).is_ok() && !self.changed.wait_until(&mut state, deadline).timed_out() {}
    }

    /// Makes a connection known, so that another order ends it.
    pub(super) fn register(&self, order: u64, socket: Socket) -> Result<(), Gone> {
        let mut state = self.state.lock();
        self.check(order)?;
        state.socket = Some(socket);
        state.connection += 1;
        self.note_heard();
        Ok(())
    }

    /// Notes that the connection is lost. Returns whether the link has worked.
    pub(super) fn disconnect(&self, order: u64) -> bool {
        let mut state = self.state.lock();
        if self.check(order).is_err() {
            return false;
        }
        state.socket = None;
        let has_worked = std::mem::take(&mut state.phase) == Phase::Connected;
        if has_worked {
            state.down_since = Some(Instant::now());
        }
        has_worked
    }

    /// Returns the connection of a link that works.
    pub(crate) fn connection(&self) -> Option<Connection> {
        let state = self.state.lock();
        let socket = state.socket.as_ref().filter(|_| state.phase == Phase::Connected)?;
        let shown = |address: io::Result<SockAddr>| {
            address.ok().and_then(|address| address.as_socket()).map(|it| it.to_string()).unwrap_or_default()
        };
        Some(Connection {
            number: state.connection,
            peer: shown(socket.peer_addr()),
            local: shown(socket.local_addr()),
            descriptor: socket.as_raw_fd(),
            db: state.db,
            heard: self.made + Duration::from_millis(self.heard_ms.load(Ordering::Relaxed)),
        })
    }

    /// Ends a connection, if it is still in use. The link goes on with another one.
    pub(crate) fn cut(&self, connection: u64) {
        let state = self.state.lock();
        if let Some(socket) = state.socket.as_ref().filter(|_| state.connection == connection) {
            // It may be closed already.
            let _: io::Result<()> = socket.shutdown(Shutdown::Both);
        }
    }

    /// Notes how far the link has come that follows an order, unless another one has come.
    pub(super) fn set_phase(&self, order: u64, phase: Phase) {
        let mut state = self.state.lock();
        if self.check(order).is_err() {
            return;
        }
        state.phase = phase;
        if phase == Phase::Connected {
            state.down_since = None;
        }
    }

    /// Begins to receive a data set of this size; 0: unknown.
    pub(super) fn begin_transfer(&self, total: u64) {
        self.received.store(0, Ordering::Relaxed);
        self.state.lock().total = total;
    }

    /// Counts bytes of a data set.
    pub(super) fn count_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Notes that something has come.
    pub(super) fn note_heard(&self) {
        self.heard_ms.store(self.made.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Returns the seconds since something has come.
    fn heard_s(&self) -> u64 {
        (self.made.elapsed().as_millis() as u64).saturating_sub(self.heard_ms.load(Ordering::Relaxed)) / 1000
    }

    /// Returns the master, and the state of the link as ROLE tells it; [`None`] for a master.
    pub(crate) fn role(&self) -> Option<(Master, &'static str)> {
        let state = self.state.lock();
        let told = match state.phase {
            Phase::Waiting => "connect",
            Phase::Connecting => "connecting",
            Phase::Handshake => "handshake",
            Phase::Transfer => "sync",
            Phase::Connected => "connected",
        };
        state.master.clone().map(|master| (master, told))
    }

    /// Appends the lines of INFO about the master, but for those that parameters decide. Nothing for a master.
    pub(crate) fn lines(&self, offset: u64, out: &mut String) {
        let state = self.state.lock();
        let Some(Master { host, port }) = &state.master else { return };
        let is_up = state.phase == Phase::Connected;
        let heard_s = if is_up { self.heard_s() as i64 } else { -1 };
        let is_syncing = u8::from(state.phase == Phase::Transfer);
        let status = if is_up { "up" } else { "down" };
        let mut write = || -> std::fmt::Result {
            writeln!(out, "master_host:{host}\nmaster_port:{port}\nmaster_link_status:{status}")?;
            writeln!(out, "master_last_io_seconds_ago:{heard_s}\nmaster_sync_in_progress:{is_syncing}")?;
            let read = offset + if is_up { self.ahead.load(Ordering::Relaxed) } else { 0 };
            writeln!(out, "slave_read_repl_offset:{read}\nslave_repl_offset:{offset}")?;
            if state.phase == Phase::Transfer {
                let (total, read) = (state.total, self.received.load(Ordering::Relaxed));
                let percent = if total > 0 { read as f64 / total as f64 * 100.0 } else { 0.0 };
                let left = total as i64 - read as i64;
                writeln!(out, "master_sync_total_bytes:{total}\nmaster_sync_read_bytes:{read}")?;
                writeln!(out, "master_sync_left_bytes:{left}\nmaster_sync_perc:{percent:.2}")?;
                writeln!(out, "master_sync_last_io_seconds_ago:{}", self.heard_s())?;
            }
            if !is_up {
                let since_s = state.down_since.map_or(-1, |at| seconds_since(at) as i64);
                writeln!(out, "master_link_down_since_seconds:{since_s}")?;
            }
            Ok(())
        };
        // A string takes everything.
        let _ = write();
    }
}

/// Shuts the connection down, which ends all waiting for it.
fn shut_down(state: &mut State) {
    if let Some(socket) = state.socket.take() {
        // It may be closed already.
        let _: io::Result<()> = socket.shutdown(Shutdown::Both);
    }
}
