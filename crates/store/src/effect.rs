//! Effects of a command outside the keyspace: keyspace events, messages, and what clients that track keys are told.
//!
//! They are emitted after the stripes are unlocked. Those of a section (a transaction, a script) are collected and
//! emitted in order at its end, before its holds are released, so that a half-finished section is invisible. A
//! transaction that changes its own client's subscriptions emits the earlier effects before that: each message goes to
//! the clients subscribed at that moment. Receivers of such early messages still have to wait for the keys of the
//! section.

use std::cell::RefCell;

use crate::Inner;
use crate::notify::Event;
use crate::pubsub::Kind;
use crate::record::Unit;
use crate::thread::assert_none_locked;
use crate::tracking::{Cause, Changed};

/// An effect outside the keyspace.
pub(crate) enum Effect {
    /// A keyspace event.
    Event(Event),
    /// A message that was published.
    Message { kind: Kind, channel: Box<[u8]>, message: Box<[u8]> },
    /// A changed key of which clients are told that track it.
    Changed(Box<Changed>),
    /// All keys have changed for clients that track some.
    Flushed,
    /// Changes of keys, to be recorded as one unit before the keys are released.
    Change(Box<Unit>),
    /// A client of a replica has set the expiry of a key.
    Expires { db: u32, key: Box<[u8]>, at_ms: i64 },
    /// Anything else.
    Other(Box<dyn FnOnce() + Send>),
}

impl Effect {
    /// Returns whether it is neither an event nor a message.
    pub(crate) fn is_deferred(&self) -> bool {
        !matches!(self, Effect::Event(_) | Effect::Message { .. })
    }

    /// Returns whether it is about keys that clients track.
    pub(crate) fn is_of_tracking(&self) -> bool {
        matches!(self, Effect::Changed(_) | Effect::Flushed)
    }
}

/// The effects of one command, in order.
pub(crate) type Effects = Vec<Effect>;

/// The list of effects of a section's commands.
pub(crate) type Collected = RefCell<Vec<Effect>>;

impl Inner {
    /// Records all changes as one unit. The caller has locked or holds their keys.
    pub(crate) fn record_all(&self, effects: &mut Effects) {
        let mut all: Option<Box<Unit>> = None;
        for effect in effects.extract_if(.., |effect| matches!(effect, Effect::Change(_))) {
            let Effect::Change(mut unit) = effect else { continue };
            match &mut all {
                None => all = Some(unit),
                Some(all) => all.append(&mut unit),
            }
        }
        if let Some(mut unit) = all {
            self.record.put_unit(&mut unit);
        }
    }

    /// Returns what tells clients of a key that has expired or is evicted. The caller has its stripe locked.
    pub(crate) fn lose_tracked(&self, hash: u64, key: &[u8]) -> Option<Effect> {
        if !self.notifier.is_tracked() {
            return None;
        }
        self.tracking.change(hash, key, Cause::Store).map(Effect::Changed)
    }

    /// Forgets what clients have read, because databases were replaced, and returns what tells them.
    pub(crate) fn forget_tracked(&self) -> Option<Effect> {
        if !self.notifier.is_tracked() {
            return None;
        }
        self.free_rows(self.tracking.forget_all());
        Some(Effect::Flushed)
    }

    /// Records that a key has expired and was removed. The caller has locked its stripe.
    pub(crate) fn record_expired(&self, db: u32, key: &[u8]) {
        if self.record.is_on() {
            self.record.put(|unit| unit.add(db, &[b"DEL", key]));
        }
    }

    /// Emits effects. The caller has no stripe locked.
    pub(crate) fn emit(&self, effects: impl IntoIterator<Item = Effect>) {
        assert_none_locked();
        let mut is_tracked = false;
        for effect in effects {
            match effect {
                // Who has several of them records them before, as one.
                Effect::Change(mut unit) => self.record.put_unit(&mut unit),
                // Scripts of a file that is replayed tell nobody.
                Effect::Event(_) if self.loading.is_on() => {}
                Effect::Event(event) => self.publish_event(&event),
                Effect::Message { kind, channel, message } => {
                    self.pubsub.publish(kind, &channel, &message);
                }
                Effect::Changed(changed) => {
                    self.tracking.tell(&changed);
                    is_tracked = true;
                }
                Effect::Flushed => self.tracking.tell_all(),
                Effect::Expires { db, key, at_ms } => {
                    self.keyspace.own_expiring.remember(&self.memory, db, &key, at_ms);
                }
                Effect::Other(effect) => effect(),
            }
        }
        if is_tracked {
            self.tracking.end_emission();
        }
    }

    /// Publishes an event. The caller has no stripe locked.
    fn publish_event(&self, event: &Event) {
        let (by_key, by_event) = self.notifier.targets();
        let mut number = itoa::Buffer::new();
        let db = number.format(event.db).as_bytes();
        if by_key {
            let channel = [b"__keyspace@", db, b"__:", &event.key].concat();
            self.pubsub.publish(Kind::Channel, &channel, event.name.as_bytes());
        }
        if by_event {
            let channel = [b"__keyevent@", db, b"__:", event.name.as_bytes()].concat();
            self.pubsub.publish(Kind::Channel, &channel, &event.key);
        }
    }
}
