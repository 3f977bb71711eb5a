//! CLIENT TRACKING: which clients have read which keys, and the invalidation messages when these change.
//!
//! A tracked read adds its client to the *row* of each of its keys, before the locks, or holds, of the keys are
//! released; a change takes the row away, before it releases its own. So between the two nothing is missed, and a row
//! leads to one message. The message is an [effect](crate::effect) of the command: it is put into the client's
//! [outbox](crate::outbox) after the unlock, for a section at its end, and so it follows the reply that it makes stale:
//! the owner of a connection appends messages to complete replies only.
//!
//! As in Redis, a row is of a name, in whatever database; so rows are not in the stripes of databases but in as many
//! *shards*, of which a key's has the number of its stripe. In the order of locks, the shards come after the stripes and
//! after `clients`, which is only tried under a shard's lock. FLUSHALL, FLUSHDB and SWAPDB drop all rows at once and tell
//! every client by a null.
//!
//! In broadcasting mode there are no rows: a changed key is added to the prefixes that it begins with, and those keys
//! are sent as one message when the connection's turn, or a command on another thread, ends ([`Tracking::send_keys`]).
//!
//! Cost: nothing while no client tracks; the test whether one does is that of keyspace events
//! ([`Notifier::concerns`](crate::notify::Notifier::concerns)). Then a change costs one lock and one look-up. A row takes
//! [about 50 bytes](row). Limits: `tracking-table-max-keys` rows, beyond which random ones are dropped with a message;
//! clients that are gone leave a row before it grows. When no connection is left that has ever tracked, all rows are
//! dropped.

mod prefixes;
mod row;
mod tracked;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, RwLock};
use sluicegate_data::table::{Item, KeyHasher, Table};
use smallvec::SmallVec;

use crate::Inner;
use crate::behalf::Behalf;
use crate::memory::{Kind, Memory, Outside};
use crate::notify::Notifier;
use crate::outbox::{OutputLimit, Put};
use crate::thread::assert_none_locked;
use prefixes::{Prefixes, array_of};
use row::Row;
use tracked::Redirection;
pub(crate) use tracked::{Modes, Tracked, Tracks, overlap};

/// Redis's default of `tracking-table-max-keys`.
pub(crate) const KEYS_MAX: u64 = 1_000_000;

/// The maximum number of rows that one command drops because there are too many.
const DROPPED_BY_COMMAND: usize = 128;
/// The same of a tick.
const DROPPED_BY_TICK: usize = 20_000;
/// The prefix of all keys.
const ALL: &[&[u8]] = &[b""];
/// The number of rows that are freed at once.
const FREED_AT_ONCE: usize = 1_000;
/// The change of a shard's memory that is reported, in bytes.
const STEP: usize = 512;

/// The rows of some keys.
struct Shard {
    rows: Table<Row>,
    /// The clients of all rows.
    items: usize,
    /// The bytes of the rows.
    bytes: usize,
    outside: Outside,
}

/// Rows that are not needed any more.
pub(crate) struct Forgotten(Vec<Shard>);

impl Forgotten {
    /// Returns whether freeing them takes long.
    fn are_many(&self) -> bool {
        self.0.iter().map(|shard| shard.rows.len()).sum::<usize>() > FREED_AT_ONCE
    }
}

impl Shard {
    /// Reports the memory if it has changed by much.
    fn report(&mut self, memory: &Arc<Memory>) {
        let bytes = self.bytes + self.rows.bytes();
        if bytes.abs_diff(self.outside.bytes()) >= STEP || bytes == 0 {
            self.outside.set(memory, bytes);
        }
    }

    fn take(&mut self, hash: u64, key: &[u8], memory: &Arc<Memory>) -> Option<Row> {
        let row = self.rows.find(hash, key).map(|slot| self.rows.remove(slot))?;
        self.bytes -= row.bytes();
        self.items -= row.clients().len();
        self.report(memory);
        Some(row)
    }
}

impl Drop for Shard {
    // A table expects its entries to be freed before.
    fn drop(&mut self) {
        self.rows.clear(drop);
    }
}

/// Clients by the lower half of their numbers.
type Clients = BTreeMap<u32, SmallVec<[Arc<dyn Tracked>; 1]>>;

/// All that is known of tracking clients and of the keys that they have read.
pub(crate) struct Tracking {
    hasher: KeyHasher,
    stripe_bits: u8,
    memory: Arc<Memory>,
    /// The rows, in as many parts as a database has stripes; made when a client tracks for the first time.
    shards: OnceLock<Box<[Mutex<Shard>]>>,
    /// Every connection that has ever tracked, by the lower half of its number, by which rows name it. Connections whose
    /// numbers differ by a multiple of 2^32 get each other's messages.
    clients: RwLock<Clients>,
    /// The number of clients that track.
    tracking: AtomicUsize,
    keys: AtomicUsize,
    /// Clients of all rows.
    items: AtomicUsize,
    /// `tracking-table-max-keys`; 0: no limit.
    keys_max: AtomicU64,
    /// A number that changes with each choice of a random row.
    salt: AtomicU64,
    broadcast: Mutex<Prefixes>,
    prefixes: AtomicUsize,
    /// Whether changed keys wait to be broadcast.
    has_keys: AtomicBool,
    /// `client-output-buffer-limit normal` and `pubsub`.
    limits: Mutex<[OutputLimit; 2]>,
}

/// A change of a key that clients are told of.
pub(crate) struct Changed {
    named: Named,
    /// The client whose command, transaction or script has changed it; 0: none.
    client: u32,
    /// The same as far as broadcasting knows it, which does not know that of a script's commands nor that of an expiry.
    author: u32,
    /// Whether it is broadcast: a row that is dropped for lack of room is not.
    is_broadcast: bool,
}

enum Named {
    Row(Row),
    Key(Box<[u8]>),
}

impl Changed {
    fn key(&self) -> &[u8] {
        match &self.named {
            Named::Row(row) => row.key(),
            Named::Key(key) => key,
        }
    }

    fn clients(&self) -> &[u32] {
        match &self.named {
            Named::Row(row) => row.clients(),
            Named::Key(_) => &[],
        }
    }
}

/// The cause of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A command of this client.
    Command(Behalf),
    /// A command of a script that this client has called, or a key that was found expired by a command of its.
    Within(Behalf),
    /// Neither: an expiry or an eviction.
    Store,
}

thread_local! {
    /// Whether this thread executes a turn of a connection, at whose end changed keys are broadcast.
    static IN_TURN: Cell<bool> = const { Cell::new(false) };
}

/// Messages that were put into outboxes: the owners to wake, and the clients to close because they read too slowly.
#[derive(Default)]
struct Due {
    wake: SmallVec<[Arc<dyn Tracked>; 8]>,
    kill: SmallVec<[Arc<dyn Tracked>; 1]>,
}

impl Due {
    fn done(self) {
        self.wake.iter().for_each(|client| client.wake());
        self.kill.iter().for_each(|client| client.kill());
    }
}

impl Tracking {
    pub(crate) fn new(hasher: KeyHasher, stripe_bits: u8, memory: Arc<Memory>) -> Tracking {
        Tracking {
            hasher,
            stripe_bits,
            memory,
            shards: OnceLock::new(),
            clients: RwLock::default(),
            tracking: AtomicUsize::new(0),
            keys: AtomicUsize::new(0),
            items: AtomicUsize::new(0),
            keys_max: AtomicU64::new(KEYS_MAX),
            salt: AtomicU64::new(0),
            broadcast: Mutex::default(),
            prefixes: AtomicUsize::new(0),
            has_keys: AtomicBool::new(false),
            limits: Mutex::new([OutputLimit::default(), OutputLimit::OF_SUBSCRIBERS]),
        }
    }

    /// Changes the maximum number of rows; 0: no limit.
    pub(crate) fn limit_keys(&self, keys_max: u64) {
        self.keys_max.store(keys_max, Ordering::Relaxed);
    }

    /// Changes the limits of unread messages of other clients and of subscribers.
    pub(crate) fn limit_output(&self, normal: OutputLimit, pubsub: OutputLimit) {
        *self.limits.lock() = [normal, pubsub];
    }

    /// Returns the numbers of clients that track, of rows, of clients of all rows, and of prefixes.
    pub(crate) fn counts(&self) -> [u64; 4] {
        [&self.tracking, &self.keys, &self.items, &self.prefixes].map(|count| count.load(Ordering::Relaxed) as u64)
    }

    fn shard(&self, hash: u64) -> Option<&Mutex<Shard>> {
        let number = if self.stripe_bits == 0 { 0 } else { (hash >> (64 - self.stripe_bits)) as usize };
        self.shards.get().map(|shards| &shards[number])
    }

    fn empty_shard(&self) -> Shard {
        let rows = Table::new(self.hasher.clone(), self.stripe_bits);
        Shard { rows, items: 0, bytes: 0, outside: Outside::of(Kind::Apart) }
    }

    /// Lets a client track with these modes. Its own state says so before its next command.
    pub(crate) fn begin(
        &self,
        notifier: &Notifier,
        client: &Arc<dyn Tracked>,
        modes: Modes,
        redirection: Option<(u64, Weak<dyn Tracked>)>,
        prefixes: &[&[u8]],
    ) {
        let Some(tracks) = client.tracks() else { return };
        let stripes = 1_usize << self.stripe_bits;
        self.shards.get_or_init(|| (0..stripes).map(|_| Mutex::new(self.empty_shard())).collect());
        {
            let mut clients = self.clients.write();
            let same = clients.entry(client.id() as u32).or_default();
            if !same.iter().any(|other| other.id() == client.id()) {
                same.push(client.clone());
            }
            notifier.set_tracked(true);
        }
        if !tracks.modes().has(Modes::ON) {
            self.tracking.fetch_add(1, Ordering::Relaxed);
        }
        *tracks.redirection.lock() = redirection.map(|(id, to)| Redirection { id, to });
        if modes.has(Modes::BCAST) {
            let mut broadcast = self.broadcast.lock();
            let mut own = tracks.prefixes.lock();
            let prefixes = if prefixes.is_empty() { ALL } else { prefixes };
            for prefix in prefixes {
                if own.names.insert((*prefix).into()) {
                    broadcast.add(prefix, client);
                }
            }
            self.prefixes.store(broadcast.len(), Ordering::Release);
            own.charge(client.account());
        }
        let is_caching = tracks.modes().has(Modes::CACHING);
        tracks.set_modes(modes.and(Modes::ON).and(if is_caching { Modes::CACHING } else { Modes::default() }));
    }

    /// Lets a client track no more. Its rows stay, as in Redis: it gets no messages because of them unless it tracks again.
    pub(crate) fn end(&self, client: &dyn Tracked) {
        let Some(tracks) = client.tracks() else { return };
        if !tracks.modes().has(Modes::ON) {
            return;
        }
        tracks.set_modes(Modes::default());
        self.tracking.fetch_sub(1, Ordering::Relaxed);
        *tracks.redirection.lock() = None;
        let mut broadcast = self.broadcast.lock();
        let mut own = tracks.prefixes.lock();
        for prefix in std::mem::take(&mut own.names) {
            broadcast.remove(&prefix, client.id());
        }
        self.prefixes.store(broadcast.len(), Ordering::Release);
        own.charge(client.account());
    }

    /// Forgets a client whose connection is closed. Returns all rows if no other is left that has ever tracked.
    #[must_use = "freeing very many rows takes long"]
    pub(crate) fn leave(&self, notifier: &Notifier, client: &dyn Tracked) -> Option<Forgotten> {
        client.tracks()?;
        self.end(client);
        let mut clients = self.clients.write();
        let number = client.id() as u32;
        if let Some(same) = clients.get_mut(&number) {
            same.retain(|other| other.id() != client.id());
            if same.is_empty() {
                clients.remove(&number);
            }
        }
        // Still locked, so that no client begins to track meanwhile.
        clients.is_empty().then(|| {
            notifier.set_tracked(false);
            self.forget_all()
        })
    }

    /// Takes all rows.
    #[must_use = "freeing very many rows takes long"]
    pub(crate) fn forget_all(&self) -> Forgotten {
        let mut forgotten = Vec::new();
        for shard in self.shards.get().into_iter().flatten() {
            let mut shard = shard.lock();
            if shard.rows.len() > 0 {
                self.keys.fetch_sub(shard.rows.len(), Ordering::Relaxed);
                self.items.fetch_sub(shard.items, Ordering::Relaxed);
                forgotten.push(std::mem::replace(&mut *shard, self.empty_shard()));
            }
        }
        Forgotten(forgotten)
    }

    /// Remembers that a client has read a key. The caller has the key's stripe locked, or holds the key. Returns whether
    /// there are too many rows.
    pub(crate) fn remember(&self, hash: u64, key: &[u8], number: u32) -> bool {
        let Some(shard) = self.shard(hash) else { return false };
        let mut shard = shard.lock();
        let shard = &mut *shard;
        let Some(slot) = shard.rows.find(hash, key) else {
            let row = Row::new(key, &[number]);
            shard.bytes += row.bytes();
            shard.rows.insert(hash, row);
            shard.items += 1;
            shard.report(&self.memory);
            self.items.fetch_add(1, Ordering::Relaxed);
            let keys = self.keys.fetch_add(1, Ordering::Relaxed) + 1;
            let keys_max = self.keys_max.load(Ordering::Relaxed);
            return keys_max > 0 && keys as u64 > keys_max;
        };
        let row = shard.rows.entry_mut(slot);
        let (clients, bytes) = (row.clients().len(), row.bytes());
        // A client that leaves may have locked it, and wait for this shard.
        let is_alive = |number| self.clients.try_read().is_none_or(|known| known.contains_key(&number));
        if row.add(number, is_alive) {
            let more = row.clients().len().wrapping_sub(clients);
            self.items.fetch_add(more, Ordering::Relaxed);
            shard.items = shard.items.wrapping_add(more);
            shard.bytes = shard.bytes + row.bytes() - bytes;
            shard.report(&self.memory);
        }
        false
    }

    /// Takes the row of a key that is changed. The caller has the key's stripe locked, or holds the key. The result is
    /// to be emitted after that.
    pub(crate) fn change(&self, hash: u64, key: &[u8], cause: Cause) -> Option<Box<Changed>> {
        let row = self.take(hash, key);
        let is_broadcast = self.prefixes.load(Ordering::Acquire) > 0;
        let named = match row {
            Some(row) => Named::Row(row),
            None if is_broadcast => Named::Key(key.into()),
            None => return None,
        };
        let (client, author) = match cause {
            Cause::Command(by) => (by.client, by.client),
            Cause::Within(by) => (by.client, 0),
            Cause::Store => (0, 0),
        };
        Some(Box::new(Changed { named, client, author, is_broadcast }))
    }

    fn take(&self, hash: u64, key: &[u8]) -> Option<Row> {
        let row = self.shard(hash)?.lock().take(hash, key, &self.memory)?;
        self.keys.fetch_sub(1, Ordering::Relaxed);
        self.items.fetch_sub(row.clients().len(), Ordering::Relaxed);
        Some(row)
    }

    /// Tells the clients of a change. The caller has no stripe locked.
    pub(crate) fn tell(&self, changed: &Changed) {
        assert_none_locked();
        if !changed.clients().is_empty() {
            let mut due = Due::default();
            {
                let clients = self.clients.read();
                let found = changed.clients().iter().filter_map(|number| clients.get(number)).flatten();
                let mut keys = Vec::new();
                for client in found {
                    let Some(tracks) = client.tracks() else { continue };
                    let modes = tracks.modes();
                    let is_own = modes.has(Modes::NOLOOP) && client.id() as u32 == changed.client;
                    if modes.has(Modes::ON) && !modes.has(Modes::BCAST) && !is_own {
                        if keys.is_empty() {
                            keys = array_of(std::iter::once(changed.key()));
                        }
                        self.send(client, tracks, &keys, &mut due);
                    }
                }
            }
            due.done();
        }
        if changed.is_broadcast {
            self.broadcast.lock().note(changed.key(), changed.author);
            self.has_keys.store(true, Ordering::Release);
        }
    }

    /// Tells every client that all keys have changed. The caller has no stripe locked.
    pub(crate) fn tell_all(&self) {
        assert_none_locked();
        let mut due = Due::default();
        {
            let clients = self.clients.read();
            for client in clients.values().flatten() {
                let Some(tracks) = client.tracks().filter(|tracks| tracks.modes().has(Modes::ON)) else { continue };
                let null: &[u8] = if client.outbox().kind() == b'>' { b"_\r\n" } else { b"$-1\r\n" };
                self.send(client, tracks, null, &mut due);
            }
        }
        due.done();
    }

    /// Begins a turn of a connection, at whose end it calls [`end_turn`](Self::end_turn) if this returns true.
    #[inline]
    pub(crate) fn begin_turn(&self) -> bool {
        let has_prefixes = self.prefixes.load(Ordering::Relaxed) > 0;
        if has_prefixes {
            IN_TURN.set(true);
        }
        has_prefixes
    }

    /// Ends a turn of a connection.
    pub(crate) fn end_turn(&self) {
        IN_TURN.set(false);
        self.send_keys();
    }

    /// Broadcasts changed keys, unless a turn of a connection does that at its end.
    pub(crate) fn end_emission(&self) {
        if self.has_keys.load(Ordering::Acquire) && !IN_TURN.get() {
            self.send_keys();
        }
    }

    /// Broadcasts changed keys: those of a prefix as one message.
    fn send_keys(&self) {
        if !self.has_keys.load(Ordering::Acquire) {
            return;
        }
        let mut due = Due::default();
        {
            let mut broadcast = self.broadcast.lock();
            self.has_keys.store(false, Ordering::Release);
            broadcast.take(|client, keys| {
                if let Some(tracks) = client.tracks() {
                    self.send(client, tracks, keys, &mut due);
                }
            });
        }
        due.done();
    }

    /// Puts a message into the outbox of a client, or of the one to which it redirects; `keys` is encoded.
    fn send(&self, client: &Arc<dyn Tracked>, tracks: &Tracks, keys: &[u8], due: &mut Due) {
        let redirection = tracks.redirection.lock().clone();
        let mut target = client.clone();
        let is_redirected = redirection.is_some();
        if let Some(Redirection { id, to }) = redirection {
            match to.upgrade().filter(|to| !to.is_gone()) {
                Some(to) => target = to,
                None => {
                    tracks.set_broken();
                    if client.outbox().kind() == b'>' {
                        let frame = format!(">2\r\n$21\r\ntracking-redir-broken\r\n:{id}\r\n");
                        self.put(client, frame.as_bytes(), due);
                    }
                    return;
                }
            }
        }
        let head: &[u8] = if target.outbox().kind() == b'>' {
            b">2\r\n$10\r\ninvalidate\r\n"
        } else if is_redirected && target.is_subscriber() {
            b"*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n"
        } else {
            return;
        };
        self.put(&target, &[head, keys].concat(), due);
    }

    fn put(&self, target: &Arc<dyn Tracked>, frame: &[u8], due: &mut Due) {
        let [normal, pubsub] = *self.limits.lock();
        let limit = if target.is_subscriber() { pubsub } else { normal };
        match target.outbox().put(None, frame, &limit) {
            Put::More => {}
            Put::First => due.wake.push(target.clone()),
            Put::TooMuch => due.kill.push(target.clone()),
        }
    }

    /// Drops random rows as long as there are too many, at most `most`, and tells their clients.
    fn drop_some(&self, most: usize) {
        let Some(shards) = self.shards.get() else { return };
        for _ in 0..most {
            let keys_max = self.keys_max.load(Ordering::Relaxed);
            if keys_max == 0 || self.keys.load(Ordering::Relaxed) as u64 <= keys_max {
                return;
            }
            let mut random = self.hasher.hash(&self.salt.fetch_add(1, Ordering::Relaxed).to_le_bytes());
            let first = random as usize % shards.len();
            let row = (0..shards.len()).find_map(|step| {
                let mut shard = shards[(first + step) % shards.len()].lock();
                let row = shard.rows.random(|| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    random.rotate_left(32)
                })?;
                let (hash, key) = (self.hasher.hash(row.key()), Box::<[u8]>::from(row.key()));
                shard.take(hash, &key, &self.memory)
            });
            let Some(row) = row else { return };
            self.keys.fetch_sub(1, Ordering::Relaxed);
            self.items.fetch_sub(row.clients().len(), Ordering::Relaxed);
            self.tell(&Changed { named: Named::Row(row), client: 0, author: 0, is_broadcast: false });
        }
    }

    /// Drops rows because a command has added more than there may be.
    pub(crate) fn make_room(&self) {
        self.drop_some(DROPPED_BY_COMMAND);
    }

    /// Drops rows because there may be fewer than before.
    pub(crate) fn tick(&self) {
        self.drop_some(DROPPED_BY_TICK);
    }
}

impl Inner {
    /// Frees rows, very many of them on the thread pool.
    pub(crate) fn free_rows(&self, rows: Forgotten) {
        if rows.are_many() {
            self.aside.run(move || drop(rows));
        }
    }
}
