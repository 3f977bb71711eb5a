//! The streams of a connection: a slab, and an index by identifier.
//!
//! Identifiers of new streams only grow, so the index is a sorted vector to which new ones are appended; a look-up is a
//! binary search, and the last one found is tried first.

use super::super::frame::ErrorCode;

/// A stream of a connection. It stays valid until the stream is released; a released one is not found any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamKey {
    slot: u32,
    id: u32,
}

impl StreamKey {
    /// Returns the identifier of the stream.
    pub fn id(self) -> u32 {
        self.id
    }

    /// Returns the stream's place, a small number that no other stream has until this one is released.
    pub fn slot(self) -> usize {
        self.slot as usize
    }
}

/// States of a stream, as bits.
pub(super) mod bit {
    /// The peer has ended its side.
    pub(crate) const RECEIVED_END: u16 = 1;
    /// This side has ended its side.
    pub(crate) const SENT_END: u16 = 1 << 1;
    /// The peer has reset the stream, or will not process it.
    pub(crate) const RESET_RECEIVED: u16 = 1 << 2;
    /// This side has reset it.
    pub(crate) const RESET_SENT: u16 = 1 << 3;
    /// A head other than that of an interim response has been received.
    pub(crate) const RECEIVED_HEAD: u16 = 1 << 4;
    /// Such a head has been sent.
    pub(crate) const SENT_HEAD: u16 = 1 << 5;
    /// Some response was sent, or the stream's user has begun to work on it.
    pub(crate) const STARTED: u16 = 1 << 6;
    /// The request is a CONNECT.
    pub(crate) const CONNECT: u16 = 1 << 7;
    /// The request is an extended CONNECT.
    pub(crate) const EXTENDED: u16 = 1 << 8;
    /// The request is a HEAD.
    pub(crate) const HEAD: u16 = 1 << 9;
    /// The peer has not processed the request at all.
    pub(crate) const UNPROCESSED: u16 = 1 << 10;
    /// Counted among the open streams.
    pub(crate) const COUNTED: u16 = 1 << 11;
    /// Counted among the streams whose message is not complete.
    pub(crate) const RECEIVING: u16 = 1 << 12;
    /// Data is ignored: the response has no body.
    pub(crate) const BODILESS: u16 = 1 << 13;
}

/// The length of a body without Content-Length.
pub(super) const NO_LENGTH: u64 = u64::MAX;

/// The state of a stream.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// 0: not in use.
    pub(super) id: u32,
    pub(super) flags: u16,
    /// The bytes that the peer accepts, relative to its current initial window.
    pub(super) send_offset: i64,
    /// The bytes that the peer may still send.
    pub(super) receive_window: i64,
    /// Received data that is not consumed yet.
    pub(super) unconsumed: u32,
    /// The limit of bytes in flight or unconsumed.
    pub(super) window: u32,
    /// The bytes still to come of a body of known length.
    pub(super) length: u64,
    /// The codes of resets.
    pub(super) received_code: ErrorCode,
    pub(super) sent_code: ErrorCode,
    /// The protocol of an extended CONNECT that this side sent.
    pub(super) protocol: Option<Box<[u8]>>,
}

const _: () = assert!(size_of::<Stream>() <= 80);

impl Stream {
    pub(super) fn is(&self, flags: u16) -> bool {
        self.flags & flags != 0
    }

    pub(super) fn is_closed(&self) -> bool {
        const BOTH: u16 = bit::RECEIVED_END | bit::SENT_END;
        self.is(bit::RESET_RECEIVED | bit::RESET_SENT) || self.flags & BOTH == BOTH
    }
}

/// The streams that are in use.
#[derive(Debug, Default)]
pub(super) struct Streams {
    slots: Vec<Stream>,
    free: Vec<u32>,
    /// Identifier and slot, sorted.
    ids: Vec<(u32, u32)>,
    /// The position in the index that was found last.
    last: usize,
    /// The number of streams that are not closed.
    pub(super) open: u32,
    /// The number of open streams on which the peer is still sending.
    pub(super) receiving: u32,
}

impl Streams {
    /// Returns the number of streams that are not released.
    pub(super) fn held(&self) -> u32 {
        self.ids.len() as u32
    }

    /// Adds a stream, whose identifier is larger than that of all before.
    pub(super) fn add(&mut self, stream: Stream) -> StreamKey {
        let id = stream.id;
        debug_assert!(self.ids.last().is_none_or(|(last, _)| *last < id));
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = stream;
                slot
            }
            None => {
                // Many connections have one stream at a time.
                self.slots.reserve_exact(usize::from(self.slots.is_empty()));
                self.slots.push(stream);
                self.slots.len() as u32 - 1
            }
        };
        self.ids.push((id, slot));
        let added = &mut self.slots[slot as usize];
        added.flags |= bit::COUNTED;
        self.open += 1;
        if !added.is(bit::RECEIVED_END) {
            added.flags |= bit::RECEIVING;
            self.receiving += 1;
        }
        StreamKey { slot, id }
    }

    pub(super) fn find(&mut self, id: u32) -> Option<StreamKey> {
        if self.ids.get(self.last).is_none_or(|(found, _)| *found != id) {
            self.last = self.ids.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        }
        Some(StreamKey { slot: self.ids[self.last].1, id })
    }

    /// Returns the first stream whose identifier is larger than `id` and which is not closed.
    pub(super) fn open_after(&self, id: u32) -> Option<StreamKey> {
        let from = self.ids.partition_point(|(other, _)| *other <= id);
        let keys = self.ids[from..].iter().map(|(id, slot)| StreamKey { slot: *slot, id: *id });
        keys.into_iter().find(|key| !self.slots[key.slot()].is_closed())
    }

    pub(super) fn get(&self, key: StreamKey) -> Option<&Stream> {
        self.slots.get(key.slot()).filter(|stream| stream.id == key.id)
    }

    pub(super) fn get_mut(&mut self, key: StreamKey) -> Option<&mut Stream> {
        self.slots.get_mut(key.slot()).filter(|stream| stream.id == key.id)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Stream> {
        self.slots.iter_mut().filter(|stream| stream.id != 0)
    }

    /// Sets bits of a stream, and no longer counts it as open if it is closed then.
    pub(super) fn set(&mut self, key: StreamKey, flags: u16) {
        let Some(stream) = self.slots.get_mut(key.slot()).filter(|stream| stream.id == key.id) else { return };
        stream.flags |= flags;
        if stream.is(bit::RECEIVING) && (stream.is(bit::RECEIVED_END) || stream.is_closed()) {
            stream.flags &= !bit::RECEIVING;
            self.receiving -= 1;
        }
        if stream.is(bit::COUNTED) && stream.is_closed() {
            stream.flags &= !bit::COUNTED;
            self.open -= 1;
        }
    }

    /// Removes a closed stream.
    pub(super) fn remove(&mut self, key: StreamKey) {
        let Some(stream) = self.get_mut(key) else { return };
        debug_assert!(stream.is_closed());
        stream.id = 0;
        stream.protocol = None;
        if let Ok(at) = self.ids.binary_search_by_key(&key.id, |(id, _)| *id) {
            self.ids.remove(at);
        }
        self.free.push(key.slot);
    }

    /// Releases the memory that is not in use.
    pub(super) fn trim(&mut self) {
        if self.ids.is_empty() {
            *self = Streams::default();
        }
    }
}
