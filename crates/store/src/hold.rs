//! Holds: locks that keep a section atomic while other commands run.
//!
//! A hold locks one key, shared or exclusive, and belongs to a *ticket*. A section declares its keys with one ticket,
//! which is queued on all of them while all their stripes are locked; it is granted when every key is free for it at
//! once, never piecewise, so a granted section never waits. A plain command that meets a held key becomes a ticket,
//! too, which contains the command: it is owned by the queues, so it runs when its turn comes even if its client has
//! disconnected.
//!
//! While a ticket waits, others may overtake it, up to 64 times as the first in a queue or for 10 ms
//! ([`overtaken_for`](crate::StoreOptions::overtaken_for)); from then on it *reserves*: later tickets queue behind it,
//! and it is granted its keys as soon as they are free. Until then a section is only *invited* to acquire them: it may
//! sleep on another core, and keys granted to a sleeping task block all others until it has woken up. Tickets have the
//! same order in all queues, because they enter with all stripes locked; a ticket waits only for granted ones and for
//! reserving ones before it, hence there is no deadlock and no starvation. Only sections that have begun and want one
//! more key overtake reserving tickets, since these may wait for them; if they do so for long, they are scripts, which
//! let the starved one [go first](crate::script).
//!
//! The table of holds is in its stripe, under the stripe's lock, and exists only while it has a hold: the branch on its
//! absence is all that plain commands pay. A ticket with very many keys builds such tables beforehand ([`Gathered`]),
//! so that a stripe receives a complete table, and all stripes are locked for no longer than for a few keys each
//! (`large`).

mod large;
mod table;

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sluicegate_transport::SLICE;
use smallvec::SmallVec;

use crate::Inner;
use crate::behalf::Behalf;
use crate::owned::{Finished, ReplyForm, Words};
pub(crate) use crate::progress::Phase;
use crate::progress::Progress;
use crate::thread::assert_none_locked;
use crate::thread::thread_number;
use crate::waiter::Waiter as BlockedCommand;
use large::Waiter;
pub(crate) use large::{OfStripe, Prepared, grant_on, queue_on};
use table::Holds;

/// The number of times that a waiting ticket is overtaken before it reserves.
pub(crate) const OVERTAKE_TIMES: u32 = 64;
/// A ticket is starved after this multiple of the time for which it may be overtaken.
const STARVED_AFTER: u32 = 10;
/// The maximum number of tickets that one release tries on one key. Those behind are tried when one of these ends.
const CANDIDATES_MAX: usize = 64;

/// How the gate counts a ticket: as granted, or as one that tries to acquire its keys.
const COUNTED_AS_GRANTED: u8 = 0;
/// As one that waits in the queues.
const COUNTED_AS_WAITING: u8 = 1;
/// Not any more: it has ended.
const COUNTED_OUT: u8 = 2;

/// The modes of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Excludes holders in exclusive mode.
    Shared,
    /// Excludes all other holders.
    Exclusive,
}

/// One key that a ticket holds or waits for.
#[derive(Debug)]
pub(crate) struct HeldKey {
    pub(crate) db: u32,
    pub(crate) stripe: u32,
    pub(crate) key: KeyName,
    pub(crate) mode: Mode,
}

/// Keys of a ticket; most have one.
pub(crate) type KeyList = SmallVec<[HeldKey; 1]>;

/// Keys that are held together, and the number by which stripes identify their holder.
pub(crate) struct HeldKeys {
    pub(crate) id: u64,
    /// Ordered by database and stripe; no key twice.
    pub(crate) keys: KeyList,
}

impl HeldKeys {
    /// Returns whether others cannot even read the first key.
    pub(crate) fn is_alone(&self) -> bool {
        self.keys.first().is_some_and(|held| held.mode == Mode::Exclusive)
    }
}

/// A command that outlives its caller's buffers.
pub(crate) struct OwnedCommand {
    /// The number of its row in the catalogue.
    pub(crate) row: u16,
    /// Whether it needs the whole keyspace for itself.
    pub(crate) is_global: bool,
    pub(crate) words: Words,
    pub(crate) db: u32,
    pub(crate) form: ReplyForm,
    /// On whose behalf it runs.
    pub(crate) behalf: Behalf,
    /// The client of a command that may block: it gets the reply of this run or of a later one.
    pub(crate) waiter: Option<Arc<BlockedCommand>>,
}

/// The means by which a section holds its keys.
pub(crate) enum Holding {
    /// The keys were free on arrival, so the section was never queued.
    AtOnce(HeldKeys),
    /// The section has waited for its keys.
    Waited(Arc<Ticket>),
}

impl Holding {
    /// Returns the ticket of a section that has waited.
    pub(crate) fn ticket(&self) -> Option<&Arc<Ticket>> {
        match self {
            Holding::AtOnce(_) => None,
            Holding::Waited(ticket) => Some(ticket),
        }
    }
}

impl Deref for Holding {
    type Target = HeldKeys;

    #[inline]
    fn deref(&self) -> &HeldKeys {
        match self {
            Holding::AtOnce(held) => held,
            Holding::Waited(ticket) => &ticket.held,
        }
    }
}

/// A lock request in the queues of its keys.
pub(crate) struct Ticket {
    held: HeldKeys,
    /// Whether the ticket belongs to a section, and so contains no command.
    is_section: bool,
    /// The parked command until it runs.
    command: Mutex<Option<OwnedCommand>>,
    /// The start of its wait; unset for a ticket granted immediately.
    since: OnceLock<Instant>,
    /// The time for which it may be overtaken.
    overtaken_for: Duration,
    overtaken: AtomicU32,
    /// The last ticket that overtook it: a ticket that does so on several keys is counted once.
    overtaken_by: AtomicU64,
    /// The thread that polled its section last.
    home: AtomicUsize,
    /// Its phase, with the reply of the parked command once that has finished.
    progress: Progress<Finished>,
    /// Its run time, in microseconds.
    worked_us: AtomicU64,
    /// Whether its command is to run on the thread pool.
    aside: AtomicBool,
    /// Whether it is the request for one more key of a section that has begun: it precedes tickets that wait for their
    /// first keys.
    takes: bool,
    /// Whether it does not precede other tickets all the same, because its section has no key for which others could
    /// wait. Changes under the lock of its key's stripe.
    is_first: AtomicBool,
    /// Whether it is counted among the waiting tickets.
    counted: AtomicU8,
    /// The reason why it was refused while it waited.
    pub(crate) refusal: OnceLock<&'static str>,
    /// The stripes of its keys, if those are very many; otherwise empty.
    pub(crate) stripes: Box<[OfStripe]>,
    /// The tables for these stripes, until it is granted. This lock comes after the stripes' locks in the lock order.
    pub(crate) tables: Mutex<Vec<Prepared>>,
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("id", &self.id).field("phase", &self.phase()).finish()
    }
}

impl Deref for Ticket {
    type Target = HeldKeys;

    #[inline]
    fn deref(&self) -> &HeldKeys {
        &self.held
    }
}

impl Ticket {
    pub(crate) fn new(id: u64, keys: KeyList, command: Option<OwnedCommand>) -> Ticket {
        Ticket {
            held: HeldKeys { id, keys },
            is_section: command.is_none(),
            command: Mutex::new(command),
            since: OnceLock::new(),
            overtaken_for: Duration::MAX,
            overtaken: AtomicU32::new(0),
            overtaken_by: AtomicU64::new(NOBODY),
            home: AtomicUsize::new(usize::MAX),
            progress: Progress::new(),
            worked_us: AtomicU64::new(0),
            aside: AtomicBool::new(false),
            takes: false,
            is_first: AtomicBool::new(false),
            counted: AtomicU8::new(COUNTED_AS_GRANTED),
            refusal: OnceLock::new(),
            stripes: Box::default(),
            tables: Mutex::default(),
        }
    }

    /// Returns the ticket with this limit on the time for which it may be overtaken.
    pub(crate) fn overtaken_for(self, time: Duration) -> Ticket {
        Ticket { overtaken_for: time, ..self }
    }

    /// Returns a ticket by which the section with this number requests one more key.
    pub(crate) fn taking(id: u64, keys: KeyList) -> Ticket {
        Ticket { takes: true, ..Ticket::new(id, keys, None) }
    }

    /// Like [`taking`](Self::taking), for a section without keys: no ticket waits for it, so it waits like any other,
    /// until a section wants [everything](crate::everything) and so waits for it.
    pub(crate) fn taking_first(id: u64, keys: KeyList) -> Ticket {
        Ticket { is_first: AtomicBool::new(true), ..Ticket::taking(id, keys) }
    }

    /// Returns whether it precedes all tickets that wait for their first keys: a reserver of its key may wait for one
    /// of its keys.
    pub(crate) fn goes_first(&self) -> bool {
        self.takes && !self.is_first.load(Ordering::SeqCst)
    }

    /// Returns whether it is the request for one more key of a section that has begun.
    pub(crate) fn takes(&self) -> bool {
        self.takes
    }

    /// Marks it as counted among the waiting tickets. Returns false if it was already, or is counted out.
    pub(crate) fn begins_waiting(&self) -> bool {
        let (from, to) = (COUNTED_AS_GRANTED, COUNTED_AS_WAITING);
        self.counted.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Marks it as no longer counted among the waiting tickets. Returns false if it was not.
    pub(crate) fn ends_waiting(&self) -> bool {
        let (from, to) = (COUNTED_AS_WAITING, COUNTED_AS_GRANTED);
        self.counted.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Marks it as counted out. Returns whether it was counted among the waiting tickets.
    pub(crate) fn is_counted_out(&self) -> bool {
        self.counted.swap(COUNTED_OUT, Ordering::SeqCst) == COUNTED_AS_WAITING
    }

    pub(crate) fn phase(&self) -> Phase {
        self.progress.phase()
    }

    /// Marks a waiting ticket as granted. Returns false if its wait had ended. Called with the stripes of its keys
    /// locked.
    pub(crate) fn grant(&self) -> bool {
        self.progress.end_waiting(Phase::Granted)
    }

    /// Returns whether it is invited to acquire its keys when they are free, instead of being granted them: a section
    /// that has not begun, and may still be overtaken. A grant lasts until its owner has woken up, and blocks all
    /// tickets behind.
    pub(crate) fn is_to_be_invited(&self) -> bool {
        self.is_section && !self.takes && !self.reserves()
    }

    /// Invites it to acquire its keys. Returns false if it has an invitation that it has not tried yet. The caller
    /// wakes its task.
    pub(crate) fn invite(&self) -> bool {
        self.progress.invite()
    }

    /// Returns whether it was invited to acquire its keys, and has not tried yet.
    pub(crate) fn is_invited(&self) -> bool {
        self.progress.is_invited()
    }

    /// Clears the invitation; afterwards the owner tries to acquire its keys. Returns whether there was one.
    pub(crate) fn take_invitation(&self) -> bool {
        self.progress.take_invitation()
    }

    /// Returns whether its command has blocked its client, which from then on waits for an element and not only for a
    /// key.
    pub(crate) fn has_blocked(&self) -> bool {
        let command = self.command.lock();
        command.as_ref().and_then(|command| command.waiter.as_ref()).is_some_and(|waiter| waiter.has_blocked())
    }

    /// Returns whether it waits for exclusivity: a global command, or a transaction with one.
    pub(crate) fn wants_to_be_alone(&self) -> bool {
        let command = self.command.lock();
        command.as_ref().is_none_or(|command| command.is_global)
    }

    /// Returns the reason why it was refused while it waited.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        self.refusal.get().copied()
    }

    /// Cancels a waiting section. Returns false if it has been granted.
    pub(crate) fn cancel(&self) -> bool {
        self.progress.end_waiting(Phase::Cancelled)
    }

    /// Lets its command run on the thread pool instead of the thread that grants it.
    pub(crate) fn put_aside(&self) {
        self.aside.store(true, Ordering::SeqCst);
    }

    /// Returns whether its command is to run on the thread pool.
    pub(crate) fn is_aside(&self) -> bool {
        self.aside.load(Ordering::SeqCst)
    }

    /// Returns whether it contains a parked command.
    pub(crate) fn is_command(&self) -> bool {
        self.command.lock().is_some()
    }

    /// Takes the parked command out, to run it.
    pub(crate) fn take_command(&self) -> Option<OwnedCommand> {
        self.command.lock().take()
    }

    /// Puts a command back that could not run yet.
    pub(crate) fn put_command(&self, command: OwnedCommand) {
        *self.command.lock() = Some(command);
    }

    /// Stores the parked command's reply and its run time, and wakes the receiver.
    pub(crate) fn finish(&self, reply: Finished, worked: Duration) {
        self.worked_us.store(worked.as_micros() as u64, Ordering::Relaxed);
        self.progress.finish(reply);
        self.wake();
    }

    /// Returns the run time of the parked command, without its waits; zero until it has finished.
    pub(crate) fn worked(&self) -> Duration {
        Duration::from_micros(self.worked_us.load(Ordering::Relaxed))
    }

    /// Returns the parked command's reply, once.
    pub(crate) fn take_reply(&self) -> Option<Finished> {
        self.progress.take_reply()
    }

    /// Registers the waker for the next change. The caller checks the phase afterwards.
    pub(crate) fn listen(&self, waker: &Waker) {
        self.home.store(thread_number(), Ordering::Relaxed);
        self.progress.listen(waker);
    }

    /// Records that another ticket was granted its key before it.
    fn note_overtaking(&self, by: u64) {
        if by == NOBODY || self.overtaken_by.swap(by, Ordering::Relaxed) != by {
            self.overtaken.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Wakes the task that waits for this ticket. The caller has no stripe locked.
    pub(crate) fn wake(&self) {
        assert_none_locked();
        self.progress.wake();
    }

    /// Returns whether it has waited for so long that sections which have begun should let it acquire a key before they
    /// request that key, if they can. Its reservation does not exclude them.
    fn is_starved(&self) -> bool {
        self.since.get().is_some_and(|since| since.elapsed() > self.overtaken_for.saturating_mul(STARVED_AFTER))
    }

    fn reserves(&self) -> bool {
        let waits_long = || self.since.get().is_some_and(|since| since.elapsed() > self.overtaken_for);
        let reserves = self.takes || self.overtaken.load(Ordering::Relaxed) >= OVERTAKE_TIMES || waits_long();
        // A cancelled ticket leaves its queues soon, but not immediately.
        reserves && self.phase() != Phase::Cancelled
    }
}

/// Returns the keys in the order in which their stripes are locked, each once, in the stronger of its modes.
pub(crate) fn in_order(mut held: KeyList) -> KeyList {
    if held.len() < 2 {
        return held;
    }
    held.sort_unstable_by(|a, b| {
        let place = |held: &HeldKey| (held.db, held.stripe);
        let rest = || a.key.cmp(&b.key).then((a.mode == Mode::Shared).cmp(&(b.mode == Mode::Shared)));
        place(a).cmp(&place(b)).then_with(rest)
    });
    held.dedup_by(|later, first| (later.db, later.stripe) == (first.db, first.stripe) && later.key == first.key);
    held
}

/// The number of keys from which on tables are prepared; fewer are held one by one.
const PREPARED_MIN: usize = 64;

/// The keys of a future ticket: collected one by one and then, if they are more than a few, put in order stripe by
/// stripe, in as many slices as the caller likes.
pub(crate) struct Gathered {
    id: u64,
    overtaken_for: Duration,
    /// The first keys, as long as there are only a few.
    few: Vec<HeldKey>,
    stripes: BTreeMap<(u32, u32), Box<HoldTable>>,
    count: usize,
    keys: Vec<HeldKey>,
    of_stripes: Vec<OfStripe>,
    tables: Vec<Prepared>,
}

impl Gathered {
    /// Returns an empty collection for a new ticket.
    pub(crate) fn new(inner: &Inner) -> Gathered {
        let (id, overtaken_for) = (inner.ticket_id(), inner.gate.overtaken_for);
        let (few, keys, of_stripes, tables) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Gathered { id, overtaken_for, few, stripes: BTreeMap::new(), count: 0, keys, of_stripes, tables }
    }

    /// Adds a key; of two modes of the same key the stronger one stays.
    pub(crate) fn add(&mut self, inner: &Inner, db: u32, key: &[u8], mode: Mode) {
        let stripe = inner.keyspace.stripe_of_key(key) as u32;
        if self.stripes.is_empty() && self.few.len() < PREPARED_MIN {
            self.few.push(HeldKey { db, stripe, key: KeyName::from_slice(key), mode });
            return;
        }
        for held in std::mem::take(&mut self.few) {
            self.add_to_table(held.db, held.stripe, &held.key, held.mode);
        }
        self.add_to_table(db, stripe, key, mode);
    }

    fn add_to_table(&mut self, db: u32, stripe: u32, key: &[u8], mode: Mode) {
        let table = self.stripes.entry((db, stripe)).or_default();
        let before = table.keys.len();
        let hold = table.keys.get_or_default(key);
        match mode {
            Mode::Exclusive => {
                hold.exclusive = Some(self.id);
                hold.shared.clear();
            }
            Mode::Shared if hold.is_idle() => hold.shared.push(self.id),
            Mode::Shared => {}
        }
        self.count += table.keys.len() - before;
    }

    /// Puts the keys in order until the slice that began at `start` is over. Returns whether all are in order.
    pub(crate) fn order(&mut self, start: Instant) -> bool {
        while self.order_some() {
            if start.elapsed() >= SLICE {
                return false;
            }
        }
        true
    }

    /// Puts the keys of one more stripe in order. Returns false once all are.
    pub(crate) fn order_some(&mut self) -> bool {
        let Some(((db, stripe), table)) = self.stripes.pop_first() else { return false };
        self.keys.reserve_exact(self.count - self.keys.len());
        let start = self.keys.len();
        self.keys.extend(table.keys.iter().map(|(key, hold)| HeldKey {
            db,
            stripe,
            key: key[..].into(),
            mode: hold.mode(),
        }));
        self.of_stripes.push(OfStripe { db, stripe, keys: start..self.keys.len() });
        self.tables.push(Prepared { granted: table, queued: None });
        true
    }

    /// Returns the ticket, once all keys are in order.
    pub(crate) fn ticket(self) -> Ticket {
        let keys = if self.few.is_empty() { self.keys.into() } else { in_order(self.few.into()) };
        let ticket = Ticket::new(self.id, keys, None).overtaken_for(self.overtaken_for);
        match ticket.keys.len() < PREPARED_MIN {
            true => ticket,
            false => Ticket { stripes: self.of_stripes.into(), tables: Mutex::new(self.tables), ..ticket },
        }
    }
}

/// The held keys of one stripe.
#[derive(Default)]
pub(crate) struct HoldTable {
    keys: Holds,
    /// The section that holds all keys, including those created later.
    everything: Option<u64>,
    /// A ticket of very many keys that waits here, with the keys that other tickets have touched since.
    waiter: Option<Box<Waiter>>,
}

/// The name of a key in a table; short names need no block of their own.
pub(crate) type KeyName = SmallVec<[u8; 24]>;

/// The number of empty tables that a thread keeps for the next holds; each short script needs one for a moment.
const SPARE_MAX: usize = 8;
/// The maximum number of keys for which a kept table may have room.
const SPARE_KEYS_MAX: usize = 16;

thread_local! {
    #[allow(clippy::vec_box, reason = "a stripe has a box, which comes from here as it is")]
    static SPARE: Cell<Vec<Box<HoldTable>>> = const { Cell::new(Vec::new()) };
}

/// Returns the table of a stripe, created if necessary.
pub(crate) fn table_of(holds: &mut Option<Box<HoldTable>>) -> &mut HoldTable {
    holds.get_or_insert_with(|| {
        let spare = |spare: &Cell<Vec<Box<HoldTable>>>| {
            let mut tables = spare.take();
            let table = tables.pop();
            spare.set(tables);
            table
        };
        SPARE.try_with(spare).ok().flatten().unwrap_or_default()
    })
}

/// Removes the table of a stripe if it is empty.
pub(crate) fn drop_if_empty(holds: &mut Option<Box<HoldTable>>) {
    let Some(table) = holds.take_if(|holds| holds.is_empty()) else { return };
    if table.keys.capacity() > SPARE_KEYS_MAX {
        return;
    }
    // In a thread that is ending, the cache may be gone already.
    let _ = SPARE.try_with(|spare| {
        let mut tables = spare.take();
        if tables.len() < SPARE_MAX {
            tables.push(table);
        }
        spare.set(tables);
    });
}

#[derive(Default)]
struct Hold {
    exclusive: Option<u64>,
    shared: SmallVec<[u64; 2]>,
    /// Waiting tickets and their modes, in order of arrival; requests of sections for one more key precede all others.
    queue: VecDeque<(Arc<Ticket>, Mode)>,
}

impl Hold {
    /// Returns the mode in which the key is held.
    fn mode(&self) -> Mode {
        if self.exclusive.is_some() { Mode::Exclusive } else { Mode::Shared }
    }

    /// Returns whether granted tickets other than `id` leave room for `mode`.
    fn is_free(&self, id: u64, mode: Mode) -> bool {
        self.exclusive.is_none_or(|holder| holder == id)
            && (mode == Mode::Shared || self.shared.iter().all(|&holder| holder == id))
    }

    /// Returns the waiting tickets before `id` that `mode` would overtake.
    fn overtaken(&self, id: u64, mode: Mode) -> impl Iterator<Item = &Arc<Ticket>> {
        let before = self.queue.iter().take_while(move |(ticket, _)| ticket.id != id);
        let excludes = move |wants: &Mode| mode == Mode::Exclusive || *wants == Mode::Exclusive;
        before.filter(move |(_, wants)| excludes(wants)).map(|(ticket, _)| ticket)
    }

    /// Puts a ticket into the queue.
    fn queue(&mut self, ticket: &Arc<Ticket>, mode: Mode) {
        ticket.since.get_or_init(Instant::now);
        let place = match ticket.goes_first() {
            true => self.queue.iter().take_while(|(before, _)| before.goes_first()).count(),
            false => self.queue.len(),
        };
        self.queue.insert(place, (ticket.clone(), mode));
    }

    /// Returns whether `id` may have the key before the waiting tickets. Only the first one that it would overtake is
    /// checked: the others came later and have been overtaken less.
    fn may_pass(&self, id: u64, mode: Mode) -> bool {
        self.is_free(id, mode) && self.overtaken(id, mode).next().is_none_or(|first| !first.reserves())
    }

    /// Returns whether a queued ticket should try to acquire the key: not if one before it has been invited or
    /// reserves.
    fn may_try(&self, id: u64, mode: Mode) -> bool {
        let first = self.overtaken(id, mode).next();
        self.is_free(id, mode) && first.is_none_or(|first| !first.is_invited() && !first.reserves())
    }

    /// Like [`may_pass`](Self::may_pass), for a section that has begun and wants one more key: it waits only behind
    /// other such requests, because a reserver of this key may wait for a key that the section holds.
    fn may_take(&self, id: u64, mode: Mode) -> bool {
        self.is_free(id, mode) && !self.overtaken(id, mode).any(|ticket| ticket.goes_first())
    }

    /// Returns whether `id`, a section that has begun, would overtake a starved ticket.
    fn starves(&self, id: u64, mode: Mode) -> bool {
        self.overtaken(id, mode).find(|ticket| !ticket.goes_first()).is_some_and(|first| first.is_starved())
    }

    fn note_overtaking(&self, id: u64, mode: Mode) {
        if let Some(first) = self.overtaken(id, mode).next() {
            first.note_overtaking(id);
        }
    }

    /// Adds the tickets that may benefit first now that the key is free: usually one of them can proceed, and those
    /// behind it cannot. A section polled by this thread is preferred to those of others, which have to be woken up, as
    /// long as these may be overtaken.
    fn first_waiting(&self, candidates: &mut Vec<Arc<Ticket>>) {
        let Some((first, _)) = self.queue.front() else { return };
        let mut start = 0;
        if self.queue.len() > 1 && first.is_to_be_invited() {
            let here = thread_number();
            let is_near = |ticket: &Arc<Ticket>| !ticket.is_section || ticket.home.load(Ordering::Relaxed) == here;
            start = self.queue.iter().take(CANDIDATES_MAX).position(|(ticket, _)| is_near(ticket)).unwrap_or(0);
        }
        for (ticket, mode) in self.queue.iter().skip(start).take(CANDIDATES_MAX) {
            candidates.push(ticket.clone());
            if *mode == Mode::Exclusive {
                break;
            }
        }
    }

    /// Lets a request for one more key precede the other tickets from now on, if it is in the queue.
    fn put_first(&mut self, ticket: &Arc<Ticket>) {
        let Some(place) = self.queue.iter().position(|(queued, _)| Arc::ptr_eq(queued, ticket)) else { return };
        if let Some((ticket, mode)) = self.queue.remove(place) {
            ticket.is_first.store(false, Ordering::SeqCst);
            self.queue(&ticket, mode);
        }
    }

    /// Removes a ticket from the queue. It is usually near the front, so a long queue is not scanned.
    fn leave_queue(&mut self, id: u64) {
        if let Some(place) = self.queue.iter().position(|(ticket, _)| ticket.id == id) {
            self.queue.remove(place);
        }
    }

    fn is_idle(&self) -> bool {
        self.exclusive.is_none() && self.shared.is_empty() && self.queue.is_empty()
    }
}

#[cfg(test)]
thread_local! {
    /// Keys that this thread gave to tickets one by one.
    pub(crate) static GRANTS: Cell<usize> = const { Cell::new(0) };
    /// Keys that it queued tickets on one by one.
    pub(crate) static QUEUED: Cell<usize> = const { Cell::new(0) };
}

/// The id of a plain command, which holds nothing.
pub(crate) const NOBODY: u64 = 0;

impl HoldTable {
    /// Sets or clears the section that holds all keys.
    pub(crate) fn set_everything(&mut self, id: Option<u64>) {
        self.everything = id;
    }

    /// Adds all waiting tickets.
    pub(crate) fn queued(&self, waiting: &mut Vec<Arc<Ticket>>) {
        for (ticket, _) in self.keys.values().flat_map(|hold| &hold.queue) {
            if !waiting.last().is_some_and(|last| Arc::ptr_eq(last, ticket)) {
                waiting.push(ticket.clone());
            }
        }
    }

    /// Returns whether a ticket holds this key or waits for it.
    pub(crate) fn concerns(&self, key: &[u8]) -> bool {
        self.everything.is_some() || self.keys.get(key).is_some()
    }

    /// Returns whether `id`, a section or [`NOBODY`], may use the key now.
    pub(crate) fn admits(&self, id: u64, key: &[u8], mode: Mode) -> bool {
        if let Some(holder) = self.everything {
            return holder == id;
        }
        match self.keys.get(key) {
            None => true,
            // A section may use its own keys; no ticket can precede it there.
            Some(hold) if id != NOBODY && hold.exclusive == Some(id) => true,
            Some(hold) if id != NOBODY && mode == Mode::Shared && hold.shared.contains(&id) => true,
            Some(hold) => hold.may_pass(id, mode),
        }
    }

    /// Returns whether a ticket holds this key exclusively.
    pub(crate) fn has(&self, id: u64, key: &[u8]) -> bool {
        self.everything == Some(id) || self.keys.get(key).is_some_and(|hold| hold.exclusive == Some(id))
    }

    /// Returns whether a ticket holds this key for reading.
    pub(crate) fn shares(&self, id: u64, key: &[u8]) -> bool {
        self.keys.get(key).is_some_and(|hold| hold.shared.contains(&id))
    }

    /// Returns whether a ticket may be changing the key.
    pub(crate) fn is_being_changed(&self, key: &[u8]) -> bool {
        self.everything.is_some() || self.keys.get(key).is_some_and(|hold| hold.exclusive.is_some())
    }

    /// Returns the ticket that blocks `id` from the key: a holder, or one before it that reserves it.
    pub(crate) fn holder(&self, id: u64, key: &[u8], mode: Mode) -> Option<u64> {
        if let Some(holder) = self.everything.filter(|holder| *holder != id) {
            return Some(holder);
        }
        let hold = self.keys.get(key)?;
        let shared = hold.shared.iter().copied().find(|holder| mode == Mode::Exclusive && *holder != id);
        let held = hold.exclusive.filter(|holder| *holder != id).or(shared);
        held.or_else(|| hold.overtaken(id, mode).next().filter(|first| first.reserves()).map(|first| first.id))
    }

    /// Returns the holders because of which `id` cannot have the key, and the sections before it that request it as one
    /// more key.
    pub(crate) fn holders(&self, id: u64, key: &[u8], mode: Mode) -> SmallVec<[u64; 4]> {
        let Some(hold) = self.keys.get(key) else { return SmallVec::new() };
        let shared = hold.shared.iter().copied().filter(|_| mode == Mode::Exclusive);
        let before = hold.overtaken(id, mode).filter(|ticket| ticket.goes_first()).map(|ticket| ticket.id);
        hold.exclusive.into_iter().chain(shared).filter(|holder| *holder != id).chain(before).collect()
    }

    /// Removes a waiting ticket from the queue of a key. Returns the first of the tickets that still wait there.
    pub(crate) fn leave_queue(&mut self, ticket: &Arc<Ticket>, key: &[u8]) -> Vec<Arc<Ticket>> {
        let Some(hold) = self.keys.get_mut(key) else { return Vec::new() };
        hold.queue.retain(|(queued, _)| !Arc::ptr_eq(queued, ticket));
        let waiting = hold.queue.iter().take(CANDIDATES_MAX).map(|(ticket, _)| ticket.clone()).collect();
        if hold.is_idle() {
            self.keys.remove(key);
        }
        waiting
    }

    /// Adds the tickets that wait for keys held by `id`; not sections that have begun and want one more.
    pub(crate) fn behind(&self, id: u64, waiting: &mut Vec<Arc<Ticket>>) {
        let has_all = self.everything == Some(id);
        let held = self.keys.values().filter(|hold| has_all || hold.exclusive == Some(id) || hold.shared.contains(&id));
        waiting.extend(
            held.flat_map(|hold| &hold.queue).map(|(ticket, _)| ticket).filter(|ticket| !ticket.takes).cloned(),
        );
    }

    /// Adds a pair of numbers for each holder and each ticket that waits for one of its keys.
    pub(crate) fn note_waiters(&self, pairs: &mut HashSet<(u64, u64)>) {
        for hold in self.keys.values().filter(|hold| !hold.queue.is_empty()) {
            let holders = hold.exclusive.into_iter().chain(hold.shared.iter().copied()).chain(self.everything);
            for holder in holders {
                pairs.extend(hold.queue.iter().map(|(ticket, _)| (holder, ticket.id)));
            }
        }
    }

    /// Returns whether a ticket waits for the key.
    pub(crate) fn is_wanted(&self, key: &[u8]) -> bool {
        self.keys.get(key).is_some_and(|hold| !hold.queue.is_empty())
    }

    /// Records that a plain command used the key before the waiting tickets.
    pub(crate) fn note_overtaking(&self, key: &[u8], mode: Mode) {
        if let Some(hold) = self.keys.get(key) {
            hold.note_overtaking(NOBODY, mode);
        }
    }

    /// Queues a ticket on one of its keys.
    pub(crate) fn queue(&mut self, key: &[u8], ticket: &Arc<Ticket>, mode: Mode) {
        #[cfg(test)]
        QUEUED.set(QUEUED.get() + 1);
        self.touch(ticket.id, key);
        self.keys.get_or_default(key).queue(ticket, mode);
    }

    /// Lets a section's queued request for one more key precede the tickets that are no such requests.
    pub(crate) fn put_first(&mut self, ticket: &Arc<Ticket>, key: &[u8]) {
        if let Some(hold) = self.keys.get_mut(key) {
            hold.put_first(ticket);
        }
    }

    /// Returns whether a queued ticket could have this key now.
    pub(crate) fn may_grant(&self, id: u64, key: &[u8], mode: Mode) -> bool {
        self.everything.is_none_or(|holder| holder == id)
            && self.keys.get(key).is_none_or(|hold| hold.may_pass(id, mode))
    }

    /// Returns whether a queued ticket should try to acquire this key, as none before it should.
    pub(crate) fn may_try(&self, id: u64, key: &[u8], mode: Mode) -> bool {
        self.everything.is_none_or(|holder| holder == id)
            && self.keys.get(key).is_none_or(|hold| hold.may_try(id, mode))
    }

    /// Adds the first waiting tickets of a key that is not held exclusively.
    pub(crate) fn waiting_for_free(&self, key: &[u8], waiting: &mut Vec<Arc<Ticket>>) {
        if let Some(hold) = self.keys.get(key).filter(|hold| hold.exclusive.is_none()) {
            waiting.extend(hold.queue.iter().take(CANDIDATES_MAX).map(|(ticket, _)| ticket.clone()));
        }
    }

    /// Returns whether a section that has begun could have this key, too.
    pub(crate) fn may_take(&self, id: u64, key: &[u8], mode: Mode) -> bool {
        self.everything.is_none_or(|holder| holder == id)
            && self.keys.get(key).is_none_or(|hold| hold.may_take(id, mode))
    }

    /// Returns whether a section that has begun would block a starved ticket from this key.
    pub(crate) fn starves(&self, id: u64, key: &[u8], mode: Mode) -> bool {
        self.keys.get(key).is_some_and(|hold| hold.starves(id, mode))
    }

    /// Takes a ticket out of the queue and gives it the key.
    pub(crate) fn grant(&mut self, id: u64, key: &[u8], mode: Mode) {
        #[cfg(test)]
        GRANTS.set(GRANTS.get() + 1);
        self.touch(id, key);
        let hold = self.keys.get_or_default(key);
        hold.note_overtaking(id, mode);
        hold.leave_queue(id);
        match mode {
            Mode::Exclusive => hold.exclusive = Some(id),
            Mode::Shared => hold.shared.push(id),
        }
    }

    /// Removes a ticket from a key, whether granted or waiting, and adds the tickets that may benefit first to
    /// `candidates`.
    pub(crate) fn release(&mut self, id: u64, key: &[u8], candidates: &mut Vec<Arc<Ticket>>) {
        if self.waiter.is_none() && self.keys.end_only(id, key) {
            return;
        }
        self.forget_waiter(id);
        let Some(hold) = self.keys.get_mut(key) else { return };
        if hold.exclusive == Some(id) {
            hold.exclusive = None;
        } else if let Some(place) = hold.shared.iter().position(|&holder| holder == id) {
            hold.shared.remove(place);
        } else {
            hold.leave_queue(id);
        }
        hold.first_waiting(candidates);
        if hold.is_idle() {
            self.keys.remove(key);
        }
    }

    /// Returns whether no key is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.everything.is_none()
    }
}
