//! Client-side caching of replies, with invalidation by the engine (`CLIENT TRACKING`).
//!
//! A cache belongs to one connection of a lane and lives as long as that connection. The engine records the keys that
//! were read over the connection and sends their invalidations on it, in order with the replies. So a cached reply is
//! valid until its invalidation arrives, and the cache is dropped with the connection. A write over the lane removes
//! the keys that it names from the cache at once; replies to reads that were in flight when the write was queued are
//! not cached.
//!
//! **Commands.** Only the commands in [`CACHED`] are cached: each reads one key and returns the same reply until that
//! key changes.
//!
//! **Limits.** All lanes of a section share one byte limit. When it is reached, the connection that adds an entry
//! evicts its own entries: the oldest key that was not requested since the last eviction scan (second chance). A reply
//! larger than a sixteenth of the limit is not cached.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_wire::engine::Connections;
use sluicegate_wire::reply::Reply;

use crate::command::{encode, upper_case};
use crate::figures::{add, take};

/// Commands whose first argument is the only key that they read and whose replies change only when that key changes.
/// Sorted, for binary search.
const CACHED: &[&str] = &[
    "BITCOUNT",
    "BITPOS",
    "EXISTS",
    "GEODIST",
    "GEOHASH",
    "GEOPOS",
    "GEOSEARCH",
    "GET",
    "GETBIT",
    "GETRANGE",
    "HEXISTS",
    "HGET",
    "HGETALL",
    "HKEYS",
    "HLEN",
    "HMGET",
    "HSTRLEN",
    "HVALS",
    "LINDEX",
    "LLEN",
    "LPOS",
    "LRANGE",
    "SCARD",
    "SISMEMBER",
    "SMEMBERS",
    "SMISMEMBER",
    "STRLEN",
    "SUBSTR",
    "TYPE",
    "XLEN",
    "XRANGE",
    "XREVRANGE",
    "ZCARD",
    "ZCOUNT",
    "ZLEXCOUNT",
    "ZMSCORE",
    "ZRANGE",
    "ZRANGEBYLEX",
    "ZRANGEBYSCORE",
    "ZRANK",
    "ZREVRANGE",
    "ZREVRANGEBYLEX",
    "ZREVRANGEBYSCORE",
    "ZREVRANK",
    "ZSCORE",
];

/// The overhead of an entry in addition to its bytes.
const OVERHEAD: usize = 128;

/// Size and counters of a section's caches.
#[derive(Debug, Default)]
pub(crate) struct CacheFigures {
    pub(crate) bytes: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) invalidated: AtomicU64,
}

impl CacheFigures {
    /// Adds these counters to `sum`.
    pub(crate) fn add_to(&self, sum: &mut Connections) {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        sum.cache_hits += of(&self.hits);
        sum.cache_misses += of(&self.misses);
        sum.cache_invalidated += of(&self.invalidated);
        sum.cache_bytes += of(&self.bytes);
    }
}

/// A read whose reply may be cached.
#[derive(Debug)]
pub(crate) struct Asked {
    key: Box<[u8]>,
    words: Box<[u8]>,
    /// The lane's count of writes when the read was queued.
    writes: u64,
}

/// The cached replies of one key.
#[derive(Debug)]
struct Kept {
    /// The replies and their sizes, by the encoded command.
    replies: HashMap<Box<[u8]>, (Reply, usize)>,
    /// The sequence number of this key in [`Cache::order`].
    turn: u64,
    /// Whether the key was requested since the last eviction scan.
    is_used: bool,
}

/// Replies of one connection, by key and command.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    /// The generation of the connection if it receives invalidations; `None` if it does not.
    tracks: Option<u64>,
    keys: HashMap<Box<[u8]>, Kept>,
    /// Keys with their sequence numbers, in eviction order. An entry whose number differs from that of the cached key
    /// is stale: the key was removed in the meantime.
    order: VecDeque<(u64, Box<[u8]>)>,
    turn: u64,
    bytes: usize,
    writes: u64,
}

/// The result of a lookup.
pub(crate) enum Looked {
    /// The cached reply.
    Hit(Reply),
    /// Not cached: the command must be sent, and its reply may be cached.
    Miss(Asked),
    /// The command is not cacheable, or the connection receives no invalidations.
    Other,
}

impl Cache {
    /// Starts caching: from now on the engine sends invalidations.
    pub(crate) fn begin(&mut self, generation: u64) {
        self.tracks = Some(generation);
    }

    /// Removes all entries and stops caching.
    pub(crate) fn end(&mut self, figures: &CacheFigures) {
        self.tracks = None;
        self.clear(figures);
    }

    fn clear(&mut self, figures: &CacheFigures) {
        (self.keys, self.order) = Default::default();
        take(&figures.bytes, std::mem::take(&mut self.bytes) as u64);
    }

    /// Looks up the cached reply to a command.
    pub(crate) fn look(&mut self, args: &[&[u8]], generation: u64, figures: &CacheFigures) -> Looked {
        if self.tracks != Some(generation) || !is_cached(args) {
            return Looked::Other;
        }
        let words = words_of(args);
        if let Some(kept) = self.keys.get_mut(args[1])
            && let Some((reply, _)) = kept.replies.get(&words)
        {
            kept.is_used = true;
            add(&figures.hits, 1);
            return Looked::Hit(reply.clone());
        }
        add(&figures.misses, 1);
        Looked::Miss(Asked { key: args[1].into(), words, writes: self.writes })
    }

    /// Counts a command that may write and is being sent, and removes the keys that it names.
    pub(crate) fn writes(&mut self, args: &[&[u8]], figures: &CacheFigures) {
        if self.tracks.is_some() {
            self.writes += 1;
            // Most commands name the keys that they change as arguments; for other changed keys the engine sends
            // invalidations.
            args.iter().skip(1).for_each(|word| self.forget(word, figures));
        }
    }

    /// Caches a reply, unless it is an error, too large, or older than a write over the lane.
    pub(crate) fn keep(&mut self, asked: Asked, reply: &Reply, most: usize, figures: &CacheFigures) {
        if self.tracks.is_none() || asked.writes != self.writes || matches!(reply, Reply::Error(_)) {
            return;
        }
        let size = OVERHEAD + 2 * asked.key.len() + asked.words.len() + size_of_reply(reply);
        if size > most / 16 {
            return;
        }
        while figures.bytes.load(Ordering::Relaxed) as usize + size > most {
            if !self.make_room(figures) {
                return;
            }
        }
        if !self.keys.contains_key(&asked.key) {
            self.turn += 1;
            self.order.push_back((self.turn, asked.key.clone()));
            if self.order.len() > 2 * self.keys.len() + 64 {
                self.order.retain(|(turn, key)| {
                    self.keys.get(key).is_some_and(|kept| kept.turn == *turn) || *turn == self.turn
                });
            }
        }
        let fresh = || Kept { replies: HashMap::new(), turn: self.turn, is_used: false };
        let kept = self.keys.entry(asked.key).or_insert_with(fresh);
        let before = kept.replies.insert(asked.words, (reply.clone(), size));
        let before = before.map_or(0, |(_, size)| size);
        self.bytes = self.bytes + size - before;
        add(&figures.bytes, size as u64);
        take(&figures.bytes, before as u64);
    }

    /// Evicts the next key, or gives it a second chance. Returns false if there is no key.
    fn make_room(&mut self, figures: &CacheFigures) -> bool {
        let Some((turn, key)) = self.order.pop_front() else { return false };
        match self.keys.get_mut(&key) {
            Some(kept) if kept.turn == turn => match std::mem::take(&mut kept.is_used) {
                true => self.order.push_back((turn, key)),
                false => self.forget(&key, figures),
            },
            _ => {}
        }
        true
    }

    fn forget(&mut self, key: &[u8], figures: &CacheFigures) {
        if let Some(kept) = self.keys.remove(key) {
            let size: usize = kept.replies.values().map(|(_, size)| size).sum();
            self.bytes -= size;
            take(&figures.bytes, size as u64);
        }
    }

    /// Applies a push message of the engine, if it is an invalidation.
    pub(crate) fn told(&mut self, message: &[Reply], figures: &CacheFigures) {
        let [Reply::Bulk(kind), what] = message else { return };
        if kind != b"invalidate" {
            return;
        }
        // A reply received after this message reflects the change, so replies to reads in flight may still be cached.
        match what {
            Reply::Array(keys) => {
                add(&figures.invalidated, keys.len() as u64);
                for key in keys {
                    if let Reply::Bulk(key) = key {
                        self.forget(key, figures);
                    }
                }
            }
            // A null instead of an array invalidates all keys (FLUSHALL).
            _ => {
                add(&figures.invalidated, 1);
                self.clear(figures);
            }
        }
    }
}

fn is_cached(args: &[&[u8]]) -> bool {
    let [name, _, rest @ ..] = args else { return false };
    let mut upper = [0; 16];
    let Some(upper) = upper_case(name, &mut upper) else { return false };
    // EXISTS may name several keys; only its form with one key is cached.
    std::str::from_utf8(upper)
        .is_ok_and(|name| CACHED.binary_search(&name).is_ok() && (name != "EXISTS" || rest.is_empty()))
}

fn words_of(args: &[&[u8]]) -> Box<[u8]> {
    let mut out = Vec::new();
    encode(args, &mut out);
    out[..].into()
}

fn size_of_reply(reply: &Reply) -> usize {
    let within = |items: &[Reply]| items.iter().map(size_of_reply).sum::<usize>();
    size_of::<Reply>()
        + match reply {
            Reply::Bulk(bytes) | Reply::Verbatim(_, bytes) => bytes.len(),
            Reply::Simple(text) | Reply::Error(text) | Reply::BigNumber(text) => text.len(),
            Reply::Array(items) | Reply::Set(items) | Reply::Push(items) => within(items),
            Reply::Map(pairs) => pairs.iter().map(|(key, value)| size_of_reply(key) + size_of_reply(value)).sum(),
            Reply::Null | Reply::Integer(_) | Reply::Double(_) | Reply::Boolean(_) => 0,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(cache: &mut Cache, figures: &CacheFigures, key: &str) -> Asked {
        match cache.look(&[b"get", key.as_bytes()], 1, figures) {
            Looked::Miss(asked) => asked,
            _ => panic!("it is not kept yet"),
        }
    }

    #[test]
    fn the_list_is_in_order() {
        assert!(CACHED.is_sorted());
        assert!(is_cached(&[b"hget", b"h", b"f"]) && is_cached(&[b"EXISTS", b"k"]));
        for other in ["SET k v", "TTL k", "EXISTS a b", "GET", "SRANDMEMBER s", "SORT_RO l"] {
            assert!(!is_cached(&other.split(' ').map(str::as_bytes).collect::<Vec<_>>()), "{other}");
        }
    }

    #[test]
    fn it_is_bounded_and_counts_what_it_has() {
        let (mut one, mut two, figures) = (Cache::default(), Cache::default(), CacheFigures::default());
        let most = 10_000;
        for cache in [&mut one, &mut two] {
            cache.begin(1);
            for number in 0..1000 {
                let asked = asked(cache, &figures, &number.to_string());
                cache.keep(asked, &Reply::Bulk(vec![b'x'; number % 100]), most, &figures);
                assert!(figures.bytes.load(Ordering::Relaxed) as usize <= most);
            }
        }
        let large = asked(&mut one, &figures, "large");
        one.keep(large, &Reply::Bulk(vec![0; most / 10]), most, &figures);
        assert!(matches!(one.look(&[b"get", b"large"], 1, &figures), Looked::Miss(_)));
        one.end(&figures);
        two.told(&[Reply::Bulk(b"invalidate".to_vec()), Reply::Null], &figures);
        assert_eq!((one.bytes, two.bytes, figures.bytes.load(Ordering::Relaxed)), (0, 0, 0));
    }

    /// Recently requested keys stay in the cache, whatever was requested before.
    #[test]
    fn what_is_asked_for_stays() {
        let (mut cache, figures, most) = (Cache::default(), CacheFigures::default(), 100_000);
        cache.begin(1);
        let mut ask = |key: &str| match cache.look(&[b"get", key.as_bytes()], 1, &figures) {
            Looked::Hit(_) => true,
            Looked::Miss(asked) => {
                cache.keep(asked, &Reply::Integer(1), most, &figures);
                false
            }
            Looked::Other => panic!("it is tracked"),
        };
        for number in 0..1000 {
            ask(&format!("old:{number}"));
        }
        let hits = (0..200).filter(|number| ask(&format!("new:{}", number % 20))).count();
        assert_eq!(hits, 180);
        // Keys that are asked for again outlast those that are asked for once.
        for number in 0..5000 {
            ask(&format!("once:{number}"));
            assert!(ask(&format!("new:{}", number % 20)), "{number}");
        }
        // A removed entry leaves nothing behind.
        for number in 0..10_000 {
            cache.writes(&[b"SET", b"k", b"1"], &figures);
            let asked = asked(&mut cache, &figures, "k");
            cache.keep(asked, &Reply::Integer(number), most, &figures);
        }
        assert!(cache.order.len() <= 2 * cache.keys.len() + 65, "{}", cache.order.len());
    }

    #[test]
    fn what_changed_is_forgotten() {
        let (mut cache, figures) = (Cache::default(), CacheFigures::default());
        assert!(matches!(cache.look(&[b"get", b"k"], 1, &figures), Looked::Other));
        cache.begin(1);
        let keep = |cache: &mut Cache| {
            let asked = asked(cache, &figures, "k");
            cache.keep(asked, &Reply::Integer(1), 10_000, &figures);
            assert!(matches!(cache.look(&[b"get", b"k"], 1, &figures), Looked::Hit(Reply::Integer(1))));
        };
        keep(&mut cache);
        let keys = Reply::Array(vec![Reply::Bulk(b"other".to_vec()), Reply::Bulk(b"k".to_vec())]);
        cache.told(&[Reply::Bulk(b"invalidate".to_vec()), keys], &figures);
        keep(&mut cache);
        cache.writes(&[b"SET", b"k", b"2"], &figures);
        // A reply that was on its way during a write is not cached.
        let late = asked(&mut cache, &figures, "k");
        cache.writes(&[b"INCR", b"k"], &figures);
        cache.keep(late, &Reply::Integer(2), 10_000, &figures);
        keep(&mut cache);
        // Another generation of connections.
        assert!(matches!(cache.look(&[b"get", b"k"], 2, &figures), Looked::Other));
    }
}
