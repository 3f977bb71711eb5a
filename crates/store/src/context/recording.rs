//! What a command records of its effect, under the locks or holds of its keys.
//!
//! Nearly every command records its own words. One whose effect depends on time, chance or who waits calls
//! [`Ctx::record_as`] instead. One that reads values which replaying it might find changed records the
//! [value](Records::Value) of the keys that it wrote.
//!
//! A key or an element that has expired is still there when the record is replayed, because nothing expires then. So its
//! removal is recorded before anything that depends on it: by whoever removes it, and elements that a command may write
//! over are removed first.

use std::sync::Arc;

use sluicegate_data::rdb;
use sluicegate_data::rdb::encode::{Compression, Form, Out, Times, sealed};
use sluicegate_data::value::Value;
use sluicegate_wire::resp::CommandParser;
use smallvec::SmallVec;

use super::Ctx;
use crate::effect::Effect;
use crate::record::{For, Records, Unit, Word};

/// The form of values for other servers.
const PLAIN: Form = Form { compression: Compression::Lzf, times: Times::Without, version_max: 10, now_ms: i64::MIN };

/// The number of keys of a command whose changes are told apart.
const TOLD_APART: usize = 63;

impl Ctx<'_> {
    /// Returns whether the effects of commands are recorded.
    #[inline]
    pub(crate) fn records(&self) -> bool {
        self.inner.record.is_on()
    }

    /// Records the value of key `index` in place of the command's words.
    pub(crate) fn record_value(&mut self, index: usize) {
        let mut unit = self.recorded.take().unwrap_or_default();
        self.add_value(&mut unit, index);
        self.recorded = Some(unit);
    }

    /// Records the string of key `index` and its expiry, or that there is none.
    pub(crate) fn record_string(&mut self, index: usize) {
        if !self.records() {
            return;
        }
        let key = self.words[self.places[index].word as usize];
        let Some(entry) = self.inspect(index) else { return self.record_as(&[b"DEL", key]) };
        let mut digits = itoa::Buffer::new();
        let (text, expiry) = (entry.string().map(|view| view.text(&mut digits).to_vec()), entry.expiry());
        let text = text.unwrap_or_default();
        match expiry {
            Some(at_ms) => self.record_as(&[b"SET", key, &text, b"PXAT", itoa::Buffer::new().format(at_ms).as_bytes()]),
            None => self.record_as(&[b"SET", key, &text]),
        }
    }

    /// Notes that key `index` was changed.
    #[inline]
    pub(super) fn note_changed(&mut self, index: usize) {
        self.changed |= 1 << index.min(TOLD_APART);
    }

    /// Records these words in place of the command's. Several of them are one unit.
    pub(crate) fn record_as(&mut self, words: &[&[u8]]) {
        if self.records() {
            let db = self.db;
            self.with_recorded(|ctx, unit| ctx.add_to(unit, db, words));
        }
    }

    /// Records an effect that only this store knows, in place of the command's words or in addition to others.
    pub(crate) fn record_own(&mut self, words: &[&[u8]]) {
        if self.records() {
            let db = self.db;
            self.with_recorded(|_, unit| unit.annotate(db, words));
        }
    }

    fn with_recorded(&mut self, add: impl FnOnce(&Ctx<'_>, &mut Unit)) {
        let mut unit = self.recorded.take().unwrap_or_default();
        self.changed |= 1 << TOLD_APART;
        add(self, &mut unit);
        self.recorded = Some(unit);
    }

    /// Adds the command itself.
    fn add_words_to(&self, unit: &mut Unit) {
        match CommandParser::exact_len(self.request, self.words) {
            Some(len) => {
                debug_assert!(self.words.iter().all(|word| self.request.as_ptr_range().contains(&word.as_ptr())));
                unit.add_encoded(self.db, &self.request[..len]);
            }
            None => self.add_to(unit, self.db, self.words),
        }
    }

    /// Adds a command, whose long words are shared with the values if they can be.
    fn add_to(&self, unit: &mut Unit, db: u32, words: &[&[u8]]) {
        match self.ahead.as_ref().filter(|ahead| !ahead.long.is_empty()) {
            None => unit.add(db, words),
            Some(ahead) => {
                let word = |word: &&'_ [u8]| {
                    let shared = |(place, _): &&(u32, Arc<Vec<u8>>)| std::ptr::eq(self.words[*place as usize], *word);
                    ahead.long.iter().find(shared).map(|(_, bytes)| bytes)
                };
                unit.add_words(db, words.iter().map(|bytes| word(bytes).map_or(Word::Bytes(bytes), Word::Shared)));
            }
        }
    }

    /// Ends the work of a handler: records the command if it has changed a key, and that its client has read keys. Called
    /// before its locks, or its holds, are released.
    #[inline]
    pub(crate) fn conclude(&mut self, records: impl FnOnce() -> Option<Records>) {
        if self.now.behalf.tracks {
            self.remember_reader();
        }
        self.record(records);
    }

    /// Records the command, of which `records` tells what is recorded, if it has changed a key. Called before its locks, or
    /// its holds, are released.
    #[inline]
    fn record(&mut self, records: impl FnOnce() -> Option<Records>) {
        if self.changed != 0 {
            match self.records() {
                true => self.record_changes(records()),
                false => self.changed = 0,
            }
        }
    }

    #[inline(never)]
    fn record_changes(&mut self, records: Option<Records>) {
        let changed = std::mem::take(&mut self.changed);
        let recorded = self.recorded.take();
        let Some(records) = records else { return };
        let inner = self.inner;
        let unit = match recorded {
            None if self.needs_values(records) => Some(self.values(changed)),
            None if self.collected.is_some() || self.keeps_locks => {
                let mut unit = Box::<Unit>::default();
                self.add_words_to(&mut unit);
                Some(unit)
            }
            recorded => recorded,
        };
        match unit {
            None => inner.record.put(|unit| self.add_words_to(unit)),
            Some(unit) => self.give(unit),
        }
    }

    /// Records effects: at once, or, in a section, at its end.
    fn give(&mut self, mut unit: Box<Unit>) {
        if self.collected.is_some() || self.keeps_locks {
            self.effects.push(Effect::Change(unit));
        } else {
            self.inner.record.put_unit(&mut unit);
        }
    }

    /// Returns whether replaying the command's words may lead to other values.
    fn needs_values(&self, records: Records) -> bool {
        match records {
            Records::Words => false,
            Records::Value => true,
            // Sources that expire are missing for some readers and not for others.
            Records::Derived => self.places.iter().enumerate().any(|(index, _)| self.may_expire(index)),
        }
    }

    fn may_expire(&self, index: usize) -> bool {
        let place = self.places[index];
        if self.pins.is_some() {
            return true;
        }
        let Some(stripe) = self.locks.get(usize::from(place.lock)) else { return false };
        let is_held = self.collected.is_some() || stripe.holds.is_some();
        stripe.table.find(place.hash, self.words[place.word as usize]).is_some_and(|slot| {
            let entry = stripe.table.entry(slot);
            entry.elements_due().is_some() || is_held && entry.expiry().is_some()
        })
    }

    /// Records the values of all keys of a command that ended in the middle.
    #[cold]
    pub(super) fn record_aborted(&mut self) {
        if self.records() && !self.places.is_empty() {
            let unit = self.values(u64::MAX);
            self.give(unit);
        }
    }

    /// Returns the values of changed keys, as commands.
    fn values(&mut self, changed: u64) -> Box<Unit> {
        let mut unit = Box::<Unit>::default();
        let mut done: SmallVec<[(u32, &[u8]); 4]> = SmallVec::new();
        for index in 0..self.places.len() {
            let (place, words) = (self.places[index], self.words);
            let key = (place.db, words[place.word as usize]);
            if changed & (1 << index.min(TOLD_APART)) == 0 || done.contains(&key) {
                continue;
            }
            done.push(key);
            self.add_value(&mut unit, index);
        }
        unit
    }

    /// Adds the value of key `index`, as commands.
    fn add_value(&mut self, unit: &mut Unit, index: usize) {
        let place = self.places[index];
        let key = self.words[place.word as usize];
        let copy = self.inspect(index).map(|entry| (entry.copy_value(), entry.expiry(), entry.sticky()));
        let Some((value, expiry, is_sticky)) = copy else { return unit.add(place.db, &[b"DEL", key]) };
        let mut digits = itoa::Buffer::new();
        let expiry = digits.format(expiry.unwrap_or(0)).as_bytes();
        let payload = plain(&value);
        unit.add(place.db, &[b"RESTORE", key, expiry, &payload, b"REPLACE", b"ABSTTL"]);
        if is_timed(&value) {
            unit.annotate(place.db, &[b"RESTORE", key, expiry, &rdb::dump(&value), b"REPLACE", b"ABSTTL"]);
        }
        if is_sticky {
            unit.annotate(place.db, &[b"STICK", key]);
        }
    }

    /// Records a command that publishes a message, for the clients of replicas.
    pub(super) fn record_message(&mut self) {
        if self.inner.record.is_for(For::Stream) {
            let mut unit = Box::<Unit>::default();
            unit.add_passing(self.words);
            self.give(unit);
        }
    }

    /// Records what was done before the command itself.
    pub(super) fn record_apart(&mut self, db: u32, words: &[&[u8]]) {
        if self.records() {
            self.give(Unit::of(db, words));
        }
    }
}

/// Returns the value's payload for other servers.
fn plain(value: &Value<'_>) -> Vec<u8> {
    match value {
        Value::Object(object) => {
            let mut body = Vec::new();
            object.dump(PLAIN, &mut Out::whole(&mut body));
            sealed(body)
        }
        _ => rdb::dump(value),
    }
}

/// Returns whether parts of the value expire.
fn is_timed(value: &Value<'_>) -> bool {
    matches!(value, Value::Object(object) if object.earliest_ms().is_some())
}
