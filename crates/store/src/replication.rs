//! Replication: the stream of changes that a master sends to its replicas.

pub(crate) mod link;

use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;

/// The name of a history: 40 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReplicationId([u8; 40]);

impl ReplicationId {
    /// Returns another one than any before.
    pub(crate) fn random() -> ReplicationId {
        let part = || RandomState::new().hash_one(0_u8);
        let text = format!("{:016x}{:016x}{:08x}", part(), part(), part() as u32);
        ReplicationId::parse(text.as_bytes()).expect("forty digits")
    }

    /// Reads 40 hexadecimal digits.
    pub(crate) fn parse(text: &[u8]) -> Option<ReplicationId> {
        let digits: [u8; 40] = text.try_into().ok()?;
        digits.iter().all(u8::is_ascii_hexdigit).then_some(ReplicationId(digits))
    }
}

impl std::fmt::Display for ReplicationId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|digit| write!(f, "{}", char::from(*digit)))
    }
}

impl std::fmt::Debug for ReplicationId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// The stream of a store.
pub(crate) struct Replication(Mutex<(ReplicationId, u64)>);

impl Replication {
    pub(crate) fn new() -> Replication {
        Replication(Mutex::new((ReplicationId::random(), 0)))
    }

    /// Returns the name of the history.
    pub(crate) fn id(&self) -> ReplicationId {
        self.0.lock().0
    }

    /// Returns the end of the stream so far.
    pub(crate) fn offset(&self) -> u64 {
        self.0.lock().1
    }

    /// From now on the stream is a master's.
    pub(crate) fn follow(&self) {}

    /// Takes over the history of a master.
    pub(crate) fn restart_at(&self, id: ReplicationId, offset: u64) {
        *self.0.lock() = (id, offset);
    }

    /// Takes over another name of the same history.
    pub(crate) fn continue_as(&self, id: ReplicationId) {
        self.0.lock().0 = id;
    }

    /// Adds bytes of the master's stream that were applied.
    pub(crate) fn relay(&self, bytes: &[u8]) {
        self.0.lock().1 += bytes.len() as u64;
    }

    /// Promotion.
    pub(crate) fn lead(&self) {
        self.0.lock().0 = ReplicationId::random();
    }
}
