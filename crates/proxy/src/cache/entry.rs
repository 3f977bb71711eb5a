//! Responses in a cache, and a response on its way into one.

use std::sync::Arc;

use sluicegate_wire::http::Message;

use super::request::{CacheKey, VaryKey};
use super::rules::{AGE_MAX, Life};
use super::{BLOCK, Cache, OVERHEAD};
use crate::date::unix_seconds;

/// The size of a piece of a body, in bytes.
const PIECE: usize = 64 * 1024;

/// A response.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Unique in its cache.
    pub(crate) number: u64,
    pub(crate) head: Message,
    body: Vec<Box<[u8]>>,
    /// The fields of the request by which it varies.
    pub(crate) signature: u8,
    /// The values of these fields in the request that it answered.
    pub(super) asked: VaryKey,
    /// The values of these fields for which it may be used.
    pub(crate) vary: VaryKey,
    /// Seconds since 1970.
    pub(crate) expires: i64,
    /// Seconds since 1970.
    pub(super) received: i64,
    age: u64,
    /// The time of its last change, in seconds since 1970.
    pub(crate) modified: i64,
    /// Head and body, in bytes.
    pub(crate) size: u64,
    pub(crate) blocks: u64,
}

impl Entry {
    /// Returns a response without its body.
    pub(super) fn new(number: u64, head: &Message, vary: (u8, VaryKey, VaryKey), life: &Life) -> Entry {
        let mut own = Message::new();
        own.copy_from(head);
        let size = OVERHEAD + crate::counters::head_size(head) as u64;
        let (signature, asked, vary) = vary;
        Entry {
            number,
            head: own,
            body: Vec::new(),
            signature,
            asked,
            vary,
            expires: life.expires,
            received: unix_seconds(),
            age: life.age,
            modified: life.modified,
            size,
            blocks: size.div_ceil(BLOCK),
        }
    }

    /// Returns the response's age, in seconds.
    pub(crate) fn age(&self) -> u64 {
        ((unix_seconds() - self.received).max(0) as u64 + self.age).min(AGE_MAX)
    }

    /// Returns the age that it had when it was received, in seconds.
    pub(super) fn age_received(&self) -> u64 {
        self.age
    }

    /// Sets the body.
    pub(super) fn fill(&mut self, body: &[u8]) {
        self.body = body.chunks(PIECE).map(Box::from).collect();
        self.size += body.len() as u64;
        self.blocks = self.size.div_ceil(BLOCK);
    }

    /// Returns the length of the body.
    pub(crate) fn length(&self) -> u64 {
        self.body.iter().map(|piece| piece.len() as u64).sum()
    }

    /// Returns a piece of the body.
    pub(crate) fn piece(&self, index: usize) -> Option<&[u8]> {
        self.body.get(index).map(|piece| &**piece)
    }
}

/// A response that is being received. It is stored when it is complete; if it is dropped before, nothing is.
#[derive(Debug)]
pub(crate) struct Writer {
    cache: Arc<Cache>,
    key: CacheKey,
    entry: Option<Entry>,
    /// The end of the body that is no piece yet.
    last: Vec<u8>,
    reserved: u64,
    object_max: u64,
}

impl Writer {
    /// Begins to store a response; `None` if that is not possible now.
    pub(super) fn begin(cache: Arc<Cache>, key: CacheKey, entry: Entry, object_max: u64) -> Option<Writer> {
        let mark = Entry { head: Message::new(), body: Vec::new(), expires: unix_seconds() + 2, ..entry.bare() };
        cache.begin(&key, mark)?;
        let blocks = entry.blocks;
        let mut writer = Writer { cache, key, entry: Some(entry), last: Vec::new(), reserved: 0, object_max };
        writer.reserve(blocks).then_some(writer)
    }

    fn reserve(&mut self, blocks: u64) -> bool {
        if self.cache.reserve(blocks) {
            self.reserved += blocks;
            return true;
        }
        self.give_up();
        false
    }

    /// Returns the name of its cache.
    pub(crate) fn is_of(&self, name: &str) -> bool {
        *self.cache.config().name == *name
    }

    /// Receives data of the body. A response that is too large, or for which there is no room, is not stored.
    pub(crate) fn data(&mut self, data: &[u8]) {
        let Some(entry) = &mut self.entry else { return };
        entry.size += data.len() as u64;
        entry.blocks = entry.size.div_ceil(BLOCK);
        let (size, missing) = (entry.size, entry.blocks - self.reserved);
        if size - OVERHEAD > self.object_max {
            return self.give_up();
        }
        if missing > 0 && !self.reserve(missing) {
            return;
        }
        self.last.extend_from_slice(data);
        if self.last.len() >= PIECE {
            self.cut();
        }
    }

    fn cut(&mut self) {
        if let Some(entry) = self.entry.as_mut().filter(|_| !self.last.is_empty()) {
            entry.body.push(std::mem::take(&mut self.last).into_boxed_slice());
        }
    }

    /// The response is complete.
    pub(crate) fn complete(&mut self) {
        self.cut();
        if let Some(entry) = self.entry.take() {
            let number = entry.number;
            self.cache.finish(&self.key, number, std::mem::take(&mut self.reserved), Some(entry));
        }
    }

    fn give_up(&mut self) {
        if let Some(entry) = self.entry.take() {
            self.last = Vec::new();
            self.cache.finish(&self.key, entry.number, std::mem::take(&mut self.reserved), None);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Entry {
    /// Returns the entry without its head and body.
    fn bare(&self) -> Entry {
        Entry { head: Message::new(), body: Vec::new(), ..*self }
    }
}
