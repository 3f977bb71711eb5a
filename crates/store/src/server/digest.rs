//! DEBUG DIGEST and DIGEST-VALUE: a number that two stores share if their data are the same, in whatever order and encoding
//! they are stored.
//!
//! The number is Redis's: of each value, SHA-1 sums of its elements are mixed in their order if it is one (a list, the
//! fields of an element), and combined by exclusive or if it is none, as keys are. So a store can be compared with one of
//! Redis or Valkey that it was copied to or from. Expiry counts, but not its time; keys that have expired do not count.
//!
//! One stripe is locked at a time: the number is of one moment only if nobody writes.

use sha1::{Digest as _, Sha1};
use sluicegate_data::object::list::End;
use sluicegate_data::object::score::text_17;
use sluicegate_data::object::stream::StreamId;
use sluicegate_data::object::{Hash, Kind, List, Object, Set, Stream, Zset};
use sluicegate_data::value::Entry;

use crate::stripe::Now;
use crate::{Inner, Store};

/// Redis's numbers of types.
const STRING: u32 = 0;
const LIST: u32 = 1;
const SET: u32 = 2;
const ZSET: u32 = 3;
const HASH: u32 = 4;
const STREAM: u32 = 6;

/// A sum.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Digest([u8; 20]);

impl Digest {
    /// Adds something whose order does not matter.
    fn add(&mut self, bytes: &[u8]) {
        for (byte, other) in self.0.iter_mut().zip(Sha1::digest(bytes)) {
            *byte ^= other;
        }
    }

    /// Adds something that comes after what was added before.
    fn mix(&mut self, bytes: &[u8]) {
        self.add(bytes);
        self.0 = Sha1::digest(self.0).into();
    }

    /// Returns the sum in hexadecimal digits.
    pub(super) fn text(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn of_two(first: &[u8], second: &[u8]) -> Digest {
        let mut digest = Digest::default();
        digest.mix(first);
        digest.mix(second);
        digest
    }
}

impl Store {
    /// Returns the digest of all databases. Takes as long as there are keys: to be called on a thread of its own.
    pub(super) fn digest(&self) -> Digest {
        let (inner, mut all) = (&self.0, Digest::default());
        for number in 0..inner.keyspace.databases() {
            let (mut of_db, mut has_keys) = (Digest::default(), false);
            for stripe in 0..inner.keyspace.stripes() {
                let pass = inner.gate.enter();
                let Some(db) = inner.keyspace.db(&pass, number) else { break };
                let locked = db.lock(stripe);
                let now_ms = inner.clock.now_ms();
                for entry in locked.table.entries().filter(|entry| entry.expiry().is_none_or(|at_ms| at_ms > now_ms)) {
                    let mut of_key = Digest::default();
                    of_key.mix(entry.key());
                    add_value(&mut of_key, entry, now_ms);
                    of_db.add(&of_key.0);
                    has_keys = true;
                }
            }
            if has_keys {
                all.mix(&number.to_be_bytes());
                for (byte, other) in all.0.iter_mut().zip(of_db.0) {
                    *byte ^= other;
                }
            }
        }
        all
    }
}

/// Returns the digest of one value; that of nothing for a key that does not exist.
pub(super) fn of_key(inner: &Inner, db: u32, key: &[u8]) -> Digest {
    let mut digest = Digest::default();
    let pass = inner.gate.enter();
    if let Some(db) = inner.keyspace.db(&pass, db) {
        let hash = inner.keyspace.hasher.hash(key);
        let mut stripe = db.lock(inner.keyspace.stripe_of(hash));
        let mut now = Now::new(&inner.clock, &inner.limits);
        if let Some(slot) = stripe.find(hash, key, &mut now, true) {
            add_value(&mut digest, stripe.table.entry(slot), now.ms());
        }
    }
    digest
}

fn add_value(digest: &mut Digest, entry: &Entry, now_ms: i64) {
    match entry.object() {
        None => {
            digest.mix(&STRING.to_be_bytes());
            if let Some(string) = entry.string() {
                digest.mix(string.text(&mut itoa::Buffer::new()));
            }
        }
        Some(object) => match &*object {
            Object::List(list) => add_list(digest, list),
            Object::Set(set) => add_set(digest, set, now_ms),
            Object::Zset(zset) => add_zset(digest, zset),
            Object::Hash(hash) => add_hash(digest, hash, now_ms),
            Object::Stream(stream) => add_stream(digest, stream),
        },
    }
    if entry.expiry().is_some() {
        digest.add(b"!!expire!!");
    }
}

fn add_list(digest: &mut Digest, list: &List) {
    digest.mix(&LIST.to_be_bytes());
    for element in list.iter(End::Head) {
        digest.mix(element.text(&mut itoa::Buffer::new()));
    }
}

fn add_set(digest: &mut Digest, set: &Set, now_ms: i64) {
    digest.mix(&SET.to_be_bytes());
    set.each(now_ms, |member| digest.add(member.text(&mut itoa::Buffer::new())));
}

fn add_zset(digest: &mut Digest, zset: &Zset) {
    digest.mix(&ZSET.to_be_bytes());
    zset.each(0..zset.len(), |member, score| digest.add(&Digest::of_two(member, &text_17(score)).0));
}

fn add_hash(digest: &mut Digest, hash: &Hash, now_ms: i64) {
    digest.mix(&HASH.to_be_bytes());
    hash.each_timed(now_ms, |field, value, expiry| {
        let mut element = Digest::of_two(field, value);
        if expiry.is_some() {
            element.add(b"!!hexpire!!");
        }
        digest.add(&element.0);
    });
}

fn add_stream(digest: &mut Digest, stream: &Stream) {
    digest.mix(&STREAM.to_be_bytes());
    for entry in stream.range(StreamId::MIN, StreamId::MAX, false) {
        digest.mix(format!("{}.{}", entry.id.ms, entry.id.seq).as_bytes());
        for (name, value) in entry.pairs() {
            digest.mix(name.text(&mut itoa::Buffer::new()));
            digest.mix(value.text(&mut itoa::Buffer::new()));
        }
    }
}
