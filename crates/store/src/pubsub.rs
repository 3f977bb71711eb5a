//! Publish and subscribe: the subscribers of channels and patterns, and the delivery of messages to clients of other
//! workers.
//!
//! A message is appended to the *outbox* of each subscriber by the publisher's own thread, and the owner of the
//! connection is woken to send it; no message goes through a thread in between. Channels are spread over locks by
//! their hash. The lock of a channel is held while its message is handed out, pattern subscribers included, so all
//! subscribers of a channel see its messages in the same order, and those of one publisher in the order in which it
//! sent them. Owners are woken after the lock is released.
//!
//! Limits: the client of an outbox that grows beyond `client-output-buffer-limit pubsub` is closed, as in Redis: a
//! publisher never waits for a subscriber. A channel without subscribers costs only the lookup.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::{Mutex, RwLock};
use sluicegate_data::glob;
use sluicegate_data::slab::heap_bytes;
use smallvec::SmallVec;

use crate::memory::{Account, Share};
use crate::outbox::OutputLimit;
use crate::outbox::{Outbox, Put};
use crate::thread::assert_none_locked;
use std::hash::BuildHasher;

/// The number of locks over which the channels are spread.
const LOCKS: usize = 64;

/// The kinds of exact subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// SUBSCRIBE and PUBLISH.
    Channel,
    /// SSUBSCRIBE and SPUBLISH.
    Shard,
}

/// A client that subscribes to channels.
pub(crate) trait Subscriber: Send + Sync {
    /// Returns the client's number.
    fn id(&self) -> u64;
    /// Returns the destination of its messages.
    fn outbox(&self) -> &Outbox;
    /// Wakes the owner, which sends the messages in the outbox.
    fn wake(&self);
    /// Asks the owner to close the connection.
    fn kill(&self);
    /// Returns the account of the client's memory.
    fn account(&self) -> &Arc<Account>;
}

/// The size of a channel's or pattern's table entries in addition to its name, in bytes (measured with 500,000 channels
/// and 200,000 patterns).
const CHANNEL_BYTES: usize = 92;
const PATTERN_BYTES: usize = 176;
/// A node of a map of several clients, in bytes, and how many of them it has by experience.
const NODE_BYTES: usize = 288;
const NODE_CLIENTS: usize = 8;

/// A channel's or pattern's entry: its subscribers, and its bytes in the account of one of them.
#[derive(Default)]
struct Entry {
    listeners: Listeners,
    /// The number of the client to whose account the bytes are charged.
    payer: u64,
    share: Share,
}

impl Entry {
    /// Adds a client; `bytes` is the size of an entry of one client.
    fn insert(&mut self, client: &Arc<dyn Subscriber>, bytes: usize) {
        self.listeners.insert(client.id(), client.clone());
        self.charge(bytes);
    }

    /// Removes a client; the remaining bytes are charged to the account of another one.
    fn remove(&mut self, id: u64, bytes: usize) {
        self.listeners.remove(id);
        self.charge(bytes);
    }

    fn charge(&mut self, bytes: usize) {
        let Some(payer) = self.listeners.get(self.payer).or_else(|| self.listeners.first()) else { return };
        let bytes = bytes + self.listeners.bytes();
        if payer.id() != self.payer || bytes != self.share.bytes() {
            self.payer = payer.id();
            self.share = Share::of(payer.account(), bytes);
        }
    }
}

/// The subscribers of one channel, by number. A node of a map takes some 300 bytes, which most channels do not need.
#[derive(Default)]
enum Listeners {
    #[default]
    None,
    One(u64, Arc<dyn Subscriber>),
    Many(BTreeMap<u64, Arc<dyn Subscriber>>),
}

impl Listeners {
    fn len(&self) -> usize {
        match self {
            Listeners::None => 0,
            Listeners::One(..) => 1,
            Listeners::Many(many) => many.len(),
        }
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes in addition to those of one client.
    fn bytes(&self) -> usize {
        match self {
            Listeners::None | Listeners::One(..) => 0,
            Listeners::Many(many) => many.len().div_ceil(NODE_CLIENTS) * NODE_BYTES,
        }
    }

    fn get(&self, id: u64) -> Option<&Arc<dyn Subscriber>> {
        match self {
            Listeners::One(other, one) if *other == id => Some(one),
            Listeners::Many(many) => many.get(&id),
            _ => None,
        }
    }

    fn first(&self) -> Option<&Arc<dyn Subscriber>> {
        match self {
            Listeners::None => None,
            Listeners::One(_, one) => Some(one),
            Listeners::Many(many) => many.values().next(),
        }
    }

    fn for_each(&self, mut visit: impl FnMut(&Arc<dyn Subscriber>)) {
        match self {
            Listeners::None => {}
            Listeners::One(_, one) => visit(one),
            Listeners::Many(many) => many.values().for_each(visit),
        }
    }

    fn insert(&mut self, id: u64, listener: Arc<dyn Subscriber>) {
        *self = match std::mem::take(self) {
            Listeners::None => Listeners::One(id, listener),
            Listeners::One(other, _) if other == id => Listeners::One(id, listener),
            Listeners::One(other, one) => Listeners::Many(BTreeMap::from([(other, one), (id, listener)])),
            Listeners::Many(mut many) => {
                many.insert(id, listener);
                Listeners::Many(many)
            }
        };
    }

    fn remove(&mut self, id: u64) {
        match self {
            Listeners::One(other, _) if *other == id => *self = Listeners::None,
            Listeners::Many(many) => drop(many.remove(&id)),
            _ => {}
        }
    }
}

/// Entries are boxed, so that the empty slots of a table are small.
type Channels = HashMap<Box<[u8]>, Box<Entry>, RandomState>;

/// Patterns with subscribers.
#[derive(Default)]
struct Patterns {
    /// The subscriptions in order of arrival, by number; each pattern is matched with each message, as in Redis.
    listeners: BTreeMap<u64, (Arc<[u8]>, Entry)>,
    /// The number of each pattern.
    numbers: HashMap<Arc<[u8]>, u64, RandomState>,
    next: u64,
}

/// All subscriptions of a store.
pub(crate) struct PubSub {
    hasher: RandomState,
    channels: Box<[Mutex<Channels>]>,
    shards: Box<[Mutex<Channels>]>,
    patterns: RwLock<Patterns>,
    /// The numbers of channels and patterns, and of shard channels, with subscribers.
    channel_count: AtomicUsize,
    shard_count: AtomicUsize,
    pattern_count: AtomicUsize,
    /// `client-output-buffer-limit pubsub`: hard, soft, seconds.
    limit: [AtomicU64; 3],
}

impl Default for PubSub {
    fn default() -> PubSub {
        let empty = || (0..LOCKS).map(|_| Mutex::default()).collect();
        let pubsub = PubSub {
            hasher: RandomState::default(),
            channels: empty(),
            shards: empty(),
            patterns: RwLock::default(),
            channel_count: AtomicUsize::new(0),
            shard_count: AtomicUsize::new(0),
            pattern_count: AtomicUsize::new(0),
            limit: Default::default(),
        };
        pubsub.set_limit(&OutputLimit::OF_SUBSCRIBERS);
        pubsub
    }
}

/// Owners to be woken and clients to be closed once nothing is locked.
#[derive(Default)]
struct Due {
    wake: SmallVec<[Arc<dyn Subscriber>; 8]>,
    kill: SmallVec<[Arc<dyn Subscriber>; 1]>,
}

impl PubSub {
    /// Changes the limit of a subscriber's unread messages.
    pub(crate) fn set_limit(&self, limit: &OutputLimit) {
        for (place, value) in self.limit.iter().zip([limit.hard, limit.soft, limit.soft_s]) {
            place.store(value, Ordering::Relaxed);
        }
    }

    /// Returns the limit of a subscriber's unread messages.
    pub(crate) fn limit(&self) -> OutputLimit {
        let [hard, soft, soft_s] = [0, 1, 2].map(|at: usize| self.limit[at].load(Ordering::Relaxed));
        OutputLimit { hard, soft, soft_s }
    }

    /// Sends a message to all subscribers. Returns their number, in which a client counts once for its channel and once
    /// for each of its matching patterns. The caller has no stripe locked.
    pub(crate) fn publish(&self, kind: Kind, channel: &[u8], message: &[u8]) -> usize {
        assert_none_locked();
        if self.is_idle(kind) {
            return 0;
        }
        let limit = self.limit();
        let mut due = Due::default();
        let mut count = 0;
        let mut hand_out = |frame: &[u8], listeners: &Listeners| {
            count += listeners.len();
            listeners.for_each(|listener| match listener.outbox().put(Some(listener.outbox().kind()), frame, &limit) {
                Put::More => {}
                Put::First => due.wake.push(listener.clone()),
                Put::TooMuch => due.kill.push(listener.clone()),
            });
        };
        let locked = self.lock_of(kind, channel).lock();
        if let Some(entry) = locked.get(channel) {
            let name: &[u8] = if kind == Kind::Shard { b"smessage" } else { b"message" };
            hand_out(&frame(&[name, channel, message]), &entry.listeners);
        }
        if kind == Kind::Channel && self.pattern_count.load(Ordering::Relaxed) > 0 {
            for (pattern, entry) in self.patterns.read().listeners.values() {
                if glob::matches(pattern, channel) {
                    hand_out(&frame(&[b"pmessage", pattern, channel, message]), &entry.listeners);
                }
            }
        }
        drop(locked);
        due.wake.iter().for_each(|listener| listener.wake());
        due.kill.iter().for_each(|listener| listener.kill());
        count
    }

    /// Returns the number of clients that [`publish`](Self::publish) would reach now.
    pub(crate) fn count(&self, kind: Kind, channel: &[u8]) -> usize {
        if self.is_idle(kind) {
            return 0;
        }
        let mut count = self.listeners(kind, channel);
        if kind == Kind::Channel {
            let patterns = self.patterns.read();
            let matching = patterns.listeners.values().filter(|(pattern, _)| glob::matches(pattern, channel));
            count += matching.map(|(_, entry)| entry.listeners.len()).sum::<usize>();
        }
        count
    }

    fn is_idle(&self, kind: Kind) -> bool {
        match kind {
            Kind::Channel => {
                self.channel_count.load(Ordering::Relaxed) + self.pattern_count.load(Ordering::Relaxed) == 0
            }
            Kind::Shard => self.shard_count.load(Ordering::Relaxed) == 0,
        }
    }

    fn locks(&self, kind: Kind) -> (&[Mutex<Channels>], &AtomicUsize) {
        match kind {
            Kind::Channel => (&self.channels, &self.channel_count),
            Kind::Shard => (&self.shards, &self.shard_count),
        }
    }

    fn lock_of(&self, kind: Kind, channel: &[u8]) -> &Mutex<Channels> {
        &self.locks(kind).0[self.hasher.hash_one(channel) as usize % LOCKS]
    }

    /// Adds a client to a channel; repeated calls have no effect.
    pub(crate) fn subscribe(&self, kind: Kind, channel: &[u8], client: &Arc<dyn Subscriber>) {
        let mut locked = self.lock_of(kind, channel).lock();
        let entry = locked.entry(channel.into()).or_insert_with(|| {
            self.locks(kind).1.fetch_add(1, Ordering::Relaxed);
            Box::default()
        });
        entry.insert(client, channel_bytes(channel));
    }

    /// Removes a client from a channel.
    pub(crate) fn unsubscribe(&self, kind: Kind, channel: &[u8], id: u64) {
        let mut locked = self.lock_of(kind, channel).lock();
        let Some(entry) = locked.get_mut(channel) else { return };
        entry.remove(id, channel_bytes(channel));
        if entry.listeners.is_empty() {
            locked.remove(channel);
            self.locks(kind).1.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Adds a client to a pattern.
    pub(crate) fn subscribe_pattern(&self, pattern: &[u8], client: &Arc<dyn Subscriber>) {
        let mut locked = self.patterns.write();
        let patterns = &mut *locked;
        let number = patterns.numbers.get(pattern).copied().unwrap_or_else(|| {
            self.pattern_count.fetch_add(1, Ordering::Relaxed);
            let (number, name) = (patterns.next, Arc::<[u8]>::from(pattern));
            patterns.next += 1;
            patterns.numbers.insert(name.clone(), number);
            patterns.listeners.insert(number, (name, Entry::default()));
            number
        });
        if let Some((_, entry)) = patterns.listeners.get_mut(&number) {
            entry.insert(client, pattern_bytes(pattern));
        }
    }

    /// Removes a client from a pattern.
    pub(crate) fn unsubscribe_pattern(&self, pattern: &[u8], id: u64) {
        let mut locked = self.patterns.write();
        let patterns = &mut *locked;
        let Some(&number) = patterns.numbers.get(pattern) else { return };
        let Some((_, entry)) = patterns.listeners.get_mut(&number) else { return };
        entry.remove(id, pattern_bytes(pattern));
        if entry.listeners.is_empty() {
            patterns.listeners.remove(&number);
            patterns.numbers.remove(pattern);
            self.pattern_count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns the matching channels with subscribers.
    pub(crate) fn active(&self, kind: Kind, pattern: Option<&[u8]>) -> Vec<Box<[u8]>> {
        let mut found = Vec::new();
        for lock in self.locks(kind).0 {
            let locked = lock.lock();
            let wanted = |name: &[u8]| pattern.is_none_or(|pattern| glob::matches(pattern, name));
            found.extend(locked.keys().filter(|name| wanted(name)).cloned());
        }
        found
    }

    /// Returns whether `is` is true of a subscription of a client, by its name and whether that is a pattern. Goes over
    /// all channels: a connection knows its own, but others may not look there.
    pub(crate) fn any_of(&self, id: u64, is: impl Fn(&[u8], bool) -> bool) -> bool {
        let is_found =
            |name: &[u8], entry: &Entry, is_pattern: bool| entry.listeners.get(id).is_some() && is(name, is_pattern);
        let locks = self.channels.iter().chain(&self.shards);
        let of_channels =
            locks.map(Mutex::lock).any(|channels| channels.iter().any(|(name, entry)| is_found(name, entry, false)));
        of_channels || self.patterns.read().listeners.values().any(|(name, entry)| is_found(name, entry, true))
    }

    /// Returns the number of clients that subscribe to a channel by its name.
    pub(crate) fn listeners(&self, kind: Kind, channel: &[u8]) -> usize {
        self.lock_of(kind, channel).lock().get(channel).map_or(0, |entry| entry.listeners.len())
    }

    /// Returns the numbers of channels, patterns, and shard channels with subscribers.
    pub(crate) fn counts(&self) -> [usize; 3] {
        [&self.channel_count, &self.pattern_count, &self.shard_count].map(|count| count.load(Ordering::Relaxed))
    }
}

fn channel_bytes(name: &[u8]) -> usize {
    heap_bytes(name.len()) + CHANNEL_BYTES
}

fn pattern_bytes(name: &[u8]) -> usize {
    heap_bytes(name.len() + 16) + PATTERN_BYTES
}

/// Encodes a message, without the byte that distinguishes arrays from pushes.
fn frame(parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(16 + parts.iter().map(|part| part.len() + 16).sum::<usize>());
    let mut number = itoa::Buffer::new();
    out.extend_from_slice(number.format(parts.len()).as_bytes());
    for part in parts {
        out.extend_from_slice(b"\r\n$");
        out.extend_from_slice(number.format(part.len()).as_bytes());
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(part);
    }
    out.extend_from_slice(b"\r\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    struct Peer {
        id: u64,
        account: Arc<Account>,
        outbox: Outbox,
        woken: AtomicUsize,
        killed: AtomicUsize,
    }

    impl Subscriber for Peer {
        fn id(&self) -> u64 {
            self.id
        }

        fn outbox(&self) -> &Outbox {
            &self.outbox
        }

        fn wake(&self) {
            self.woken.fetch_add(1, Ordering::Relaxed);
        }

        fn kill(&self) {
            self.killed.fetch_add(1, Ordering::Relaxed);
        }

        fn account(&self) -> &Arc<Account> {
            &self.account
        }
    }

    fn peer(id: u64) -> (Arc<Peer>, Arc<dyn Subscriber>) {
        let account = Account::new(&Arc::new(Memory::new()));
        let (outbox, woken, killed) = Default::default();
        let peer = Arc::new(Peer { id, account, outbox, woken, killed });
        (peer.clone(), peer)
    }

    fn text(peer: &Peer) -> String {
        let mut output = Vec::new();
        peer.outbox.drain(&mut output);
        peer.outbox.left(0);
        String::from_utf8(output).expect("text")
    }

    #[test]
    fn a_message_reaches_channels_and_patterns_and_wakes_once() {
        let pubsub = PubSub::default();
        let (one, one_as) = peer(1);
        let (two, two_as) = peer(2);
        assert_eq!(pubsub.publish(Kind::Channel, b"news", b"nobody"), 0);
        pubsub.subscribe(Kind::Channel, b"news", &one_as);
        pubsub.subscribe(Kind::Channel, b"news", &one_as);
        pubsub.subscribe_pattern(b"n*", &one_as);
        pubsub.subscribe_pattern(b"n*", &two_as);
        pubsub.subscribe(Kind::Shard, b"news", &two_as);
        two.outbox.set_pushes(true);
        assert_eq!(pubsub.count(Kind::Channel, b"news"), 3);
        assert_eq!(pubsub.publish(Kind::Channel, b"news", b"x"), 3);
        assert_eq!(pubsub.publish(Kind::Shard, b"news", b"y"), 1);
        assert_eq!(pubsub.publish(Kind::Shard, b"n", b"z"), 0);
        assert_eq!(one.woken.load(Ordering::Relaxed), 1, "the second message finds the owner woken");
        assert_eq!(
            text(&one),
            "*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$1\r\nx\r\n*4\r\n$8\r\npmessage\r\n$2\r\nn*\r\n$4\r\nnews\r\n$1\r\nx\r\n"
        );
        assert!(text(&two).starts_with(">4\r\n$8\r\npmessage\r\n"));
        assert_eq!(pubsub.counts(), [1, 1, 1]);
        pubsub.unsubscribe(Kind::Channel, b"news", 1);
        pubsub.unsubscribe(Kind::Shard, b"news", 2);
        pubsub.unsubscribe_pattern(b"n*", 1);
        pubsub.unsubscribe_pattern(b"n*", 2);
        pubsub.unsubscribe_pattern(b"n*", 2);
        assert_eq!(pubsub.counts(), [0, 0, 0]);
        assert!(!one.outbox.is_filled());
    }

    #[test]
    fn the_bytes_of_a_shared_channel_are_on_one_account() {
        let pubsub = PubSub::default();
        let (one, one_as) = peer(1);
        let (two, two_as) = peer(2);
        let bytes = || (one.account.bytes(), two.account.bytes());
        let name = [b'n'; 1000];
        pubsub.subscribe(Kind::Channel, &name, &one_as);
        let whole = one.account.bytes();
        assert!(whole > name.len());
        pubsub.subscribe(Kind::Channel, &name, &two_as);
        let both = whole + NODE_BYTES;
        assert_eq!(bytes(), (both, 0));
        pubsub.unsubscribe(Kind::Channel, &name, 1);
        assert_eq!(bytes(), (0, both), "who stays has them");
        pubsub.subscribe(Kind::Channel, &name, &one_as);
        pubsub.unsubscribe(Kind::Channel, &name, 1);
        assert_eq!(bytes(), (0, both));
        pubsub.unsubscribe(Kind::Channel, &name, 2);
        assert_eq!(bytes(), (0, 0));
        pubsub.subscribe_pattern(&name, &two_as);
        pubsub.subscribe_pattern(&name, &one_as);
        assert!(one.account.bytes() == 0 && two.account.bytes() > name.len());
        pubsub.unsubscribe_pattern(&name, 2);
        assert!(one.account.bytes() > name.len() && two.account.bytes() == 0);
        pubsub.unsubscribe_pattern(&name, 1);
        assert_eq!(bytes(), (0, 0));
    }

    #[test]
    fn who_reads_too_slowly_is_given_up_and_keeps_nothing() {
        let pubsub = PubSub::default();
        let (slow, slow_as) = peer(1);
        pubsub.subscribe(Kind::Channel, b"c", &slow_as);
        pubsub.set_limit(&OutputLimit { hard: 1000, soft: 0, soft_s: 0 });
        while slow.killed.load(Ordering::Relaxed) == 0 {
            pubsub.publish(Kind::Channel, b"c", &[b'x'; 100]);
            assert!(slow.outbox.len() < 1000);
        }
        pubsub.publish(Kind::Channel, b"c", &[b'x'; 100]);
        assert_eq!((slow.outbox.len(), slow.killed.load(Ordering::Relaxed)), (0, 1));
        // Messages that the owner has taken and not sent count, too.
        let (busy, busy_as) = peer(2);
        pubsub.subscribe(Kind::Channel, b"d", &busy_as);
        pubsub.publish(Kind::Channel, b"d", &[b'x'; 800]);
        let mut output = Vec::new();
        busy.outbox.drain(&mut output);
        pubsub.publish(Kind::Channel, b"d", &[b'x'; 800]);
        assert_eq!(busy.killed.load(Ordering::Relaxed), 1);
        // The soft limit is one of time.
        let (late, late_as) = peer(3);
        pubsub.subscribe(Kind::Channel, b"e", &late_as);
        pubsub.set_limit(&OutputLimit { hard: 0, soft: 10, soft_s: 1000 });
        pubsub.publish(Kind::Channel, b"e", &[b'x'; 800]);
        assert_eq!(late.killed.load(Ordering::Relaxed), 0);
        assert!(!late.outbox.is_overdue(&pubsub.limit()));
        assert!(late.outbox.is_overdue(&OutputLimit { hard: 0, soft: 10, soft_s: 0 }));
    }
}
