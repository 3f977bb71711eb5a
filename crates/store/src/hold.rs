//! Holds: what keeps a section atomic while other commands run.
//!
//! A hold is on one key, shared or exclusive, and belongs to a *ticket*. A section declares its keys with one ticket,
//! which is queued on all of them while all their stripes are locked; it is granted when every key is free for it at
//! once, never piecewise, so a granted section waits for nobody. A plain command that meets a held key becomes a ticket
//! too, with the command inside: it is owned by the queues, so it runs when its turn comes even if its client has gone.
//!
//! While a ticket waits, others may overtake it, up to 64 times as the first in a queue or for 10 ms
//! ([`overtaken_for`](crate::StoreOptions::overtaken_for)); from then on it
//! *reserves*: what comes later queues behind it, and it is given its keys as soon as they are free. Until then a section
//! is only *invited* to take them: it may sleep on another core, and keys that are given to who sleeps keep everybody
//! until it has woken up. Tickets stand in all queues in the same order, because they enter with all stripes locked; a
//! ticket waits only for granted ones and for reserving ones before it, hence there is no circle and nobody starves. Only
//! sections that have begun and want one more key overtake those that reserve, since these may wait for them; where they
//! do so for long, they are scripts, which let the starved one [go first](crate::script).
//!
//! The table stands in its stripe, under the stripe's lock, and exists only while it has a hold: the branch on its
//! absence is all that plain commands pay. Who wants very many keys makes such tables beforehand ([`Gathered`]), so that
//! a stripe is given one as it is, and all stripes are locked for no longer than for a few keys each (`large`).

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
use crate::owned::{Finished, ReplyForm, Words};
pub(crate) use crate::progress::Phase;
use crate::progress::Progress;
use crate::thread::assert_none_locked;
use crate::thread::thread_number;
use crate::waiter::Waiter as BlockedCommand;
use large::Waiter;
pub(crate) use large::{OfStripe, Prepared, grant_on, queue_on};
use table::Holds;

/// How often a waiting ticket is overtaken before it reserves.
pub(crate) const OVERTAKE_TIMES: u32 = 64;
/// How many times longer than it may be overtaken a ticket has waited that is starved.
const STARVED_AFTER: u32 = 10;
/// Tickets that one release looks at on one key. Those behind are looked at when one of these goes.
const CANDIDATES_MAX: usize = 64;

/// What a ticket is counted as by the gate: one that has its keys, or tries whether they are free.
const COUNTED_AS_GRANTED: u8 = 0;
/// One that stands in the queues.
const COUNTED_AS_WAITING: u8 = 1;
/// One that has ended.
const COUNTED_OUT: u8 = 2;

/// What a hold excludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Writers.
    Shared,
    /// Everybody.
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

/// Keys that are held together, under the number that stripes know their holder by.
pub(crate) struct HeldKeys {
    pub(crate) id: u64,
    /// Ordered by database and stripe; no key twice.
    pub(crate) keys: KeyList,
}

/// A command that outlives its caller's buffers.
pub(crate) struct OwnedCommand {
    /// The number of its row in the catalogue.
    pub(crate) row: u16,
    /// It needs the whole keyspace for itself.
    pub(crate) is_global: bool,
    pub(crate) words: Words,
    pub(crate) db: u32,
    pub(crate) form: ReplyForm,
    /// Whether its accesses leave no trace: CLIENT NO-TOUCH.
    pub(crate) is_traceless: bool,
    /// The client of a command that may block: it gets the reply of this run or of a later one.
    pub(crate) waiter: Option<Arc<BlockedCommand>>,
}

/// What a section holds its keys by.
pub(crate) enum Holding {
    /// They were free when it came, so it has never stood in a queue.
    AtOnce(HeldKeys),
    /// It has waited.
    Waited(Arc<Ticket>),
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

/// A place in the queues of its keys.
pub(crate) struct Ticket {
    held: HeldKeys,
    /// Whether it is that of a section, which has no command inside.
    is_section: bool,
    /// The parked command until it runs.
    command: Mutex<Option<OwnedCommand>>,
    /// When it began to wait; a ticket that is granted at once has none.
    since: OnceLock<Instant>,
    /// How long it is overtaken.
    overtaken_for: Duration,
    overtaken: AtomicU32,
    /// Who overtook it last: one that does so on several keys is counted once.
    overtaken_by: AtomicU64,
    /// The thread that polled its section last.
    home: AtomicUsize,
    /// Its phase, with the reply of the parked command once that has finished.
    progress: Progress<Finished>,
    /// How long it ran, in microseconds.
    worked_us: AtomicU64,
    /// Whether its command is to be run by a thread aside.
    aside: AtomicBool,
    /// A section that has begun wants one more key: it goes before those who wait for their first ones.
    takes: bool,
    /// It does not go before anybody, because it has no key that others could wait for.
    is_first: bool,
    /// Whether it is counted among those that wait for their keys.
    counted: AtomicU8,
    /// Why it was refused while it waited.
    pub(crate) refusal: OnceLock<&'static str>,
    /// The stripes of its keys, where those are very many; otherwise none.
    pub(crate) stripes: Box<[OfStripe]>,
    /// The tables for these stripes, until it is granted. Locked behind the stripes.
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
            is_first: false,
            counted: AtomicU8::new(COUNTED_AS_GRANTED),
            refusal: OnceLock::new(),
            stripes: Box::default(),
            tables: Mutex::default(),
        }
    }

    /// The same ticket, which waits for no longer than this before it reserves.
    pub(crate) fn overtaken_for(self, time: Duration) -> Ticket {
        Ticket { overtaken_for: time, ..self }
    }

    /// The ticket of a section of this number that wants one more key.
    pub(crate) fn taking(id: u64, keys: KeyList) -> Ticket {
        Ticket { takes: true, ..Ticket::new(id, keys, None) }
    }

    /// The same of one that has no key yet: nobody waits for it, so it waits like everybody else.
    pub(crate) fn taking_first(id: u64, keys: KeyList) -> Ticket {
        Ticket { is_first: true, ..Ticket::taking(id, keys) }
    }

    /// Whether it goes before all who wait for their first keys: whoever reserves its key may wait for one that it has.
    pub(crate) fn goes_first(&self) -> bool {
        self.takes && !self.is_first
    }

    /// Whether it is that of a section that has begun and wants more.
    pub(crate) fn takes(&self) -> bool {
        self.takes
    }

    /// Whether it is to be counted among those that wait from now on: not if it was, or is counted out.
    pub(crate) fn begins_waiting(&self) -> bool {
        let (from, to) = (COUNTED_AS_GRANTED, COUNTED_AS_WAITING);
        self.counted.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Whether it was counted among those that wait, and is not to be any more.
    pub(crate) fn ends_waiting(&self) -> bool {
        let (from, to) = (COUNTED_AS_WAITING, COUNTED_AS_GRANTED);
        self.counted.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Notes that it is counted out. Whether it was counted among those that wait.
    pub(crate) fn is_counted_out(&self) -> bool {
        self.counted.swap(COUNTED_OUT, Ordering::SeqCst) == COUNTED_AS_WAITING
    }

    pub(crate) fn phase(&self) -> Phase {
        self.progress.phase()
    }

    /// Marks a waiting ticket as granted; false if it gave up. Called with the stripes of its keys locked.
    pub(crate) fn grant(&self) -> bool {
        self.progress.end_waiting(Phase::Granted)
    }

    /// Whether it is asked to take its keys when they are free, instead of being given them: a section that has not
    /// begun, and may still be overtaken. What is given waits until its owner has woken up, and with it all behind.
    pub(crate) fn is_to_be_invited(&self) -> bool {
        self.is_section && !self.takes && !self.reserves()
    }

    /// Asks it to take its keys; false if it was asked and has not tried yet. The caller wakes.
    pub(crate) fn invite(&self) -> bool {
        self.progress.invite()
    }

    /// Whether it was asked to take its keys, and has not tried yet.
    pub(crate) fn is_invited(&self) -> bool {
        self.progress.is_invited()
    }

    /// Takes the invitation; the owner tries to have its keys afterwards.
    pub(crate) fn take_invitation(&self) -> bool {
        self.progress.take_invitation()
    }

    /// Whether its command has blocked its client, which waits for more than a key from then on.
    pub(crate) fn has_blocked(&self) -> bool {
        let command = self.command.lock();
        command.as_ref().and_then(|command| command.waiter.as_ref()).is_some_and(|waiter| waiter.has_blocked())
    }

    /// Whether it waits to be alone: a global command, or a transaction with one.
    pub(crate) fn wants_to_be_alone(&self) -> bool {
        let command = self.command.lock();
        command.as_ref().is_none_or(|command| command.is_global)
    }

    /// Why it was refused while it waited.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        self.refusal.get().copied()
    }

    /// A waiting section gives up; false if it was granted meanwhile.
    pub(crate) fn cancel(&self) -> bool {
        self.progress.end_waiting(Phase::Cancelled)
    }

    /// Lets its command be run by a thread aside, not by the one that grants it.
    pub(crate) fn put_aside(&self) {
        self.aside.store(true, Ordering::SeqCst);
    }

    /// Whether its command is to be run by a thread aside.
    pub(crate) fn is_aside(&self) -> bool {
        self.aside.load(Ordering::SeqCst)
    }

    /// Whether there is a parked command inside.
    pub(crate) fn is_command(&self) -> bool {
        self.command.lock().is_some()
    }

    /// Takes the parked command, to run it.
    pub(crate) fn take_command(&self) -> Option<OwnedCommand> {
        self.command.lock().take()
    }

    /// Puts a command back that could not run yet.
    pub(crate) fn put_command(&self, command: OwnedCommand) {
        *self.command.lock() = Some(command);
    }

    /// Stores the parked command's reply and how long it ran, and wakes who waits for it.
    pub(crate) fn finish(&self, reply: Finished, worked: Duration) {
        self.worked_us.store(worked.as_micros() as u64, Ordering::Relaxed);
        self.progress.finish(reply);
        self.wake();
    }

    /// How long the parked command ran, its waits apart; zero until it has finished.
    pub(crate) fn worked(&self) -> Duration {
        Duration::from_micros(self.worked_us.load(Ordering::Relaxed))
    }

    /// The parked command's reply, once.
    pub(crate) fn take_reply(&self) -> Option<Finished> {
        self.progress.take_reply()
    }

    /// Registers who is woken by the next change. The caller looks at the phase afterwards.
    pub(crate) fn listen(&self, waker: &Waker) {
        self.home.store(thread_number(), Ordering::Relaxed);
        self.progress.listen(waker);
    }

    /// Notes that somebody has its key before it.
    fn note_overtaking(&self, by: u64) {
        if by == NOBODY || self.overtaken_by.swap(by, Ordering::Relaxed) != by {
            self.overtaken.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Wakes who waits for this ticket. The caller has no stripe locked.
    pub(crate) fn wake(&self) {
        assert_none_locked();
        self.progress.wake();
    }

    /// Whether it has waited for so long that sections which have begun and want one more key are to let it go first if
    /// they can. What it reserves does not keep it from them.
    fn is_starved(&self) -> bool {
        self.since.get().is_some_and(|since| since.elapsed() > self.overtaken_for.saturating_mul(STARVED_AFTER))
    }

    fn reserves(&self) -> bool {
        let waits_long = || self.since.get().is_some_and(|since| since.elapsed() > self.overtaken_for);
        let reserves = self.takes || self.overtaken.load(Ordering::Relaxed) >= OVERTAKE_TIMES || waits_long();
        // One that gave up leaves its queues soon, but not at once.
        reserves && self.phase() != Phase::Cancelled
    }
}

/// Keys in the order in which their stripes are locked, each once, in the stronger of its modes.
pub(crate) fn in_order(mut held: KeyList) -> KeyList {
    if held.len() < 2 {
        return held;
    }
    held.sort_unstable_by(|a, b| {
        let rank = |held: &HeldKey| (held.db, held.stripe, held.mode == Mode::Shared);
        a.key.cmp(&b.key).then(rank(a).cmp(&rank(b)))
    });
    held.dedup_by(|later, first| later.db == first.db && later.key == first.key);
    held.sort_unstable_by_key(|held| (held.db, held.stripe));
    held
}

/// Fewer keys than this are held one by one.
const PREPARED_MIN: usize = 64;

/// Keys on their way to being held: gathered one by one, then, if they are more than a few, put in order stripe by stripe,
/// as slowly as one likes.
pub(crate) struct Gathered {
    id: u64,
    overtaken_for: Duration,
    /// The first keys, as long as there are no more.
    few: Vec<HeldKey>,
    stripes: BTreeMap<(u32, u32), Box<HoldTable>>,
    count: usize,
    keys: Vec<HeldKey>,
    of_stripes: Vec<OfStripe>,
    tables: Vec<Prepared>,
}

impl Gathered {
    /// For a new ticket.
    pub(crate) fn new(inner: &Inner) -> Gathered {
        let (id, overtaken_for) = (inner.ticket_id(), inner.gate.overtaken_for);
        let (few, keys, of_stripes, tables) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Gathered { id, overtaken_for, few, stripes: BTreeMap::new(), count: 0, keys, of_stripes, tables }
    }

    /// Adds a key; of two modes of the same key the stronger one stays.
    pub(crate) fn add(&mut self, inner: &Inner, db: u32, key: &[u8], mode: Mode) {
        let stripe = inner.keyspace.stripe_of_key(key) as u32;
        if self.stripes.is_empty() && self.few.len() < PREPARED_MIN {
            self.few.push(HeldKey { db, stripe, key: key.into(), mode });
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

    /// Puts the keys in order, for a slice that began then; whether all are.
    pub(crate) fn order(&mut self, start: Instant) -> bool {
        while self.order_some() {
            if start.elapsed() >= SLICE {
                return false;
            }
        }
        true
    }

    /// Puts the keys of one more stripe in order; false once all are.
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

    /// The ticket, once all are in order.
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
    /// The section that holds all keys there are and may be.
    everything: Option<u64>,
    /// A ticket of very many keys that waits here, with what others did since.
    waiter: Option<Box<Waiter>>,
}

/// A key's name as tables have it: short ones without a block of their own.
pub(crate) type KeyName = SmallVec<[u8; 24]>;

/// Tables that a thread keeps for the next holds; a table comes and goes with each short script.
const SPARE_MAX: usize = 8;
/// Keys that a table may have room for if it is kept.
const SPARE_KEYS_MAX: usize = 16;

thread_local! {
    #[allow(clippy::vec_box, reason = "a stripe has a box, which comes from here as it is")]
    static SPARE: Cell<Vec<Box<HoldTable>>> = const { Cell::new(Vec::new()) };
}

/// The table of a stripe, made if there is none.
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

/// Takes the table of a stripe away if nothing is in it.
pub(crate) fn drop_if_empty(holds: &mut Option<Box<HoldTable>>) {
    let Some(table) = holds.take_if(|holds| holds.is_empty()) else { return };
    if table.keys.capacity() > SPARE_KEYS_MAX {
        return;
    }
    // A thread that ends keeps nothing.
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
    /// Waiting tickets and what they want, in the order in which they came; sections that want one more key stand before
    /// all others.
    queue: VecDeque<(Arc<Ticket>, Mode)>,
}

impl Hold {
    /// How those have the key who have it.
    fn mode(&self) -> Mode {
        if self.exclusive.is_some() { Mode::Exclusive } else { Mode::Shared }
    }

    /// Whether granted tickets other than `id` leave room for `mode`.
    fn is_free(&self, id: u64, mode: Mode) -> bool {
        self.exclusive.is_none_or(|holder| holder == id)
            && (mode == Mode::Shared || self.shared.iter().all(|&holder| holder == id))
    }

    /// The waiting tickets before `id` that `mode` would overtake.
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

    /// Whether `id` may have the key before those who wait for it. Only the first whom it would overtake is asked: the
    /// others came later and have been overtaken less.
    fn may_pass(&self, id: u64, mode: Mode) -> bool {
        self.is_free(id, mode) && self.overtaken(id, mode).next().is_none_or(|first| !first.reserves())
    }

    /// Whether a queued ticket is to try to have the key: not while one before it is to.
    fn may_try(&self, id: u64, mode: Mode) -> bool {
        let first = self.overtaken(id, mode).next();
        self.is_free(id, mode) && first.is_none_or(|first| !first.is_invited() && !first.reserves())
    }

    /// As [`may_pass`](Self::may_pass), of a section that has begun: it waits only behind others like it. Whoever
    /// reserves this key may wait for one that the section has.
    fn may_take(&self, id: u64, mode: Mode) -> bool {
        self.is_free(id, mode) && !self.overtaken(id, mode).any(|ticket| ticket.goes_first())
    }

    /// Whether `id`, a section that has begun, would overtake one that is starved.
    fn starves(&self, id: u64, mode: Mode) -> bool {
        self.overtaken(id, mode).find(|ticket| !ticket.goes_first()).is_some_and(|first| first.is_starved())
    }

    fn note_overtaking(&self, id: u64, mode: Mode) {
        if let Some(first) = self.overtaken(id, mode).next() {
            first.note_overtaking(id);
        }
    }

    /// Those who may profit first now that the key is free: mostly one of them has its turn, and those behind it do not.
    /// A section that this thread polls is preferred to those of others, which have to be woken up, as long as these may
    /// be overtaken.
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

    /// Takes a ticket out of the queue. It mostly stands near the front, so a long queue is not gone through.
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
    /// Lets a section hold all keys, or nobody all.
    pub(crate) fn set_everything(&mut self, id: Option<u64>) {
        self.everything = id;
    }

    /// Adds all who wait for keys.
    pub(crate) fn queued(&self, waiting: &mut Vec<Arc<Ticket>>) {
        for (ticket, _) in self.keys.values().flat_map(|hold| &hold.queue) {
            if !waiting.last().is_some_and(|last| Arc::ptr_eq(last, ticket)) {
                waiting.push(ticket.clone());
            }
        }
    }

    /// Whether a ticket holds this key or waits for it.
    pub(crate) fn concerns(&self, key: &[u8]) -> bool {
        self.everything.is_some() || self.keys.get(key).is_some()
    }

    /// Whether `id`, a section or [`NOBODY`], may use the key now.
    pub(crate) fn admits(&self, id: u64, key: &[u8], mode: Mode) -> bool {
        if let Some(holder) = self.everything {
            return holder == id;
        }
        match self.keys.get(key) {
            None => true,
            // A section uses what it holds; nobody can stand before it there.
            Some(hold) if id != NOBODY && hold.exclusive == Some(id) => true,
            Some(hold) if id != NOBODY && mode == Mode::Shared && hold.shared.contains(&id) => true,
            Some(hold) => hold.may_pass(id, mode),
        }
    }

    /// Whether a ticket has this key for itself.
    pub(crate) fn has(&self, id: u64, key: &[u8]) -> bool {
        self.everything == Some(id) || self.keys.get(key).is_some_and(|hold| hold.exclusive == Some(id))
    }

    /// Whether a ticket has this key for reading.
    pub(crate) fn shares(&self, id: u64, key: &[u8]) -> bool {
        self.keys.get(key).is_some_and(|hold| hold.shared.contains(&id))
    }

    /// Who keeps `id` from the key: one that holds it, or one before it that reserves it.
    pub(crate) fn holder(&self, id: u64, key: &[u8], mode: Mode) -> Option<u64> {
        if let Some(holder) = self.everything.filter(|holder| *holder != id) {
            return Some(holder);
        }
        let hold = self.keys.get(key)?;
        let shared = hold.shared.iter().copied().find(|holder| mode == Mode::Exclusive && *holder != id);
        let held = hold.exclusive.filter(|holder| *holder != id).or(shared);
        held.or_else(|| hold.overtaken(id, mode).next().filter(|first| first.reserves()).map(|first| first.id))
    }

    /// Everybody but `id` who holds the key so that `id` cannot have it, and the sections before it that want it as one
    /// more key.
    pub(crate) fn holders(&self, id: u64, key: &[u8], mode: Mode) -> SmallVec<[u64; 4]> {
        let Some(hold) = self.keys.get(key) else { return SmallVec::new() };
        let shared = hold.shared.iter().copied().filter(|_| mode == Mode::Exclusive);
        let before = hold.overtaken(id, mode).filter(|ticket| ticket.goes_first()).map(|ticket| ticket.id);
        hold.exclusive.into_iter().chain(shared).filter(|holder| *holder != id).chain(before).collect()
    }

    /// Takes a waiting ticket out of the queue of a key. Returns the first of those who still wait there.
    pub(crate) fn leave_queue(&mut self, ticket: &Arc<Ticket>, key: &[u8]) -> Vec<Arc<Ticket>> {
        let Some(hold) = self.keys.get_mut(key) else { return Vec::new() };
        hold.queue.retain(|(queued, _)| !Arc::ptr_eq(queued, ticket));
        let waiting = hold.queue.iter().take(CANDIDATES_MAX).map(|(ticket, _)| ticket.clone()).collect();
        if hold.is_idle() {
            self.keys.remove(key);
        }
        waiting
    }

    /// Adds those who wait for keys that `id` holds; not sections that have begun and want one more.
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

    /// Whether somebody waits for the key.
    pub(crate) fn is_wanted(&self, key: &[u8]) -> bool {
        self.keys.get(key).is_some_and(|hold| !hold.queue.is_empty())
    }

    /// Tells that a plain command used the key before those who wait for it.
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

    /// Whether a queued ticket could have this key now.
    pub(crate) fn may_grant(&self, id: u64, key: &[u8], mode: Mode) -> bool {
        self.everything.is_none_or(|holder| holder == id)
            && self.keys.get(key).is_none_or(|hold| hold.may_pass(id, mode))
    }

    /// Whether a queued ticket is to try to have this key, as nobody before it is to.
    pub(crate) fn may_try(&self, id: u64, key: &[u8], mode: Mode) -> bool {
        self.everything.is_none_or(|holder| holder == id)
            && self.keys.get(key).is_none_or(|hold| hold.may_try(id, mode))
    }

    /// Adds the first of those who wait for a key that nobody has for himself.
    pub(crate) fn waiting_for_free(&self, key: &[u8], waiting: &mut Vec<Arc<Ticket>>) {
        if let Some(hold) = self.keys.get(key).filter(|hold| hold.exclusive.is_none()) {
            waiting.extend(hold.queue.iter().take(CANDIDATES_MAX).map(|(ticket, _)| ticket.clone()));
        }
    }

    /// Whether a section that has begun could have this key, too.
    pub(crate) fn may_take(&self, id: u64, key: &[u8], mode: Mode) -> bool {
        self.everything.is_none_or(|holder| holder == id)
            && self.keys.get(key).is_none_or(|hold| hold.may_take(id, mode))
    }

    /// Whether a section that has begun would keep one from this key who has waited for it for very long.
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

    /// Takes a ticket off a key, be it granted or waiting, and adds those who may profit first to `candidates`.
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

    /// Whether no key is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.everything.is_none()
    }
}
