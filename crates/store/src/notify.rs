//! Keyspace events: what happened to which key, said after the stripes are unlocked.
//!
//! A handler says an event where Redis does, by [`Ctx::notify`](crate::Ctx). If nobody asked for its class, which
//! `notify-keyspace-events` decides, that is one load of a word that hardly ever changes.

use std::sync::atomic::{AtomicU32, Ordering};

use smallvec::SmallVec;

/// The classes of events, as the letters of `notify-keyspace-events` name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(dead_code, reason = "some belong to types whose commands come one by one")]
pub(crate) enum Class {
    /// `g`: commands that are not of one type.
    Generic = 1 << 2,
    /// `$`
    String = 1 << 3,
    /// `l`
    List = 1 << 4,
    /// `s`
    Set = 1 << 5,
    /// `h`
    Hash = 1 << 6,
    /// `z`
    Zset = 1 << 7,
    /// `x`: a key expired.
    Expired = 1 << 8,
    /// `e`: a key was evicted.
    Evicted = 1 << 9,
    /// `n`: a key was made.
    New = 1 << 14,
}

/// One event, waiting for the stripes to be unlocked.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "read by who publishes them")]
pub(crate) struct Event {
    pub(crate) class: Class,
    pub(crate) name: &'static str,
    pub(crate) db: u32,
    pub(crate) key: Box<[u8]>,
}

/// Events of one command, in the order in which they happened.
pub(crate) type Events = SmallVec<[Event; 1]>;

/// Which classes somebody asked for.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    classes: AtomicU32,
}

impl Notifier {
    /// Whether events of this class are wanted.
    #[inline]
    pub(crate) fn wants(&self, class: Class) -> bool {
        self.classes.load(Ordering::Relaxed) & class as u32 != 0
    }

    /// Publishes events. The caller has no stripe locked.
    pub(crate) fn publish(&self, events: Events) {
        crate::stripe::assert_none_locked();
        drop(events);
    }
}
