//! The log of what was denied: similar events within a minute are one entry, the latest first.

use std::collections::VecDeque;

/// Entries are merged if their last events are closer than this, in milliseconds.
const MERGED_MS: i64 = 60_000;

/// The number of latest entries with which a new event is compared.
const COMPARED_MAX: usize = 10;

/// What was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Auth,
    Command,
    Key,
    Channel,
}

impl Reason {
    /// Returns its name in ACL LOG.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Reason::Auth => "auth",
            Reason::Command => "command",
            Reason::Key => "key",
            Reason::Channel => "channel",
        }
    }
}

/// Where it was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    TopLevel,
    Transaction,
    Script,
}

impl Where {
    /// Returns its name in ACL LOG.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Where::TopLevel => "toplevel",
            Where::Transaction => "multi",
            Where::Script => "lua",
        }
    }
}

/// An event, and the similar ones before it.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) count: u64,
    pub(crate) reason: Reason,
    pub(crate) place: Where,
    /// The command, the key or the channel; for [`Reason::Auth`] the word that was to log in.
    pub(crate) object: Vec<u8>,
    pub(crate) user: Vec<u8>,
    /// The client's line in CLIENT LIST.
    pub(crate) client: String,
    pub(crate) id: u64,
    pub(crate) created_ms: i64,
    pub(crate) updated_ms: i64,
}

/// The entries, the latest first.
#[derive(Debug, Default)]
pub(super) struct Log {
    entries: VecDeque<Entry>,
    next_id: u64,
}

impl Log {
    /// Adds an event, and drops the oldest entries beyond `limit`.
    pub(super) fn add(&mut self, event: Entry, limit: usize) {
        if limit > 0 {
            let is_similar = |entry: &Entry| {
                entry.reason == event.reason
                    && entry.place == event.place
                    && (entry.updated_ms - event.updated_ms).abs() <= MERGED_MS
                    && entry.object == event.object
                    && entry.user == event.user
            };
            let place = self.entries.iter().take(COMPARED_MAX).position(is_similar);
            if let Some(mut entry) = place.and_then(|place| self.entries.remove(place)) {
                entry.count += 1;
                entry.client = event.client;
                entry.updated_ms = event.updated_ms;
                self.entries.push_front(entry);
                return;
            }
            self.entries.push_front(Entry { id: self.next_id, ..event });
            self.next_id += 1;
        }
        self.entries.truncate(limit);
    }

    pub(super) fn latest(&self, count: usize) -> Vec<Entry> {
        self.entries.iter().take(count).cloned().collect()
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(object: &str, updated_ms: i64) -> Entry {
        Entry {
            count: 1,
            reason: Reason::Command,
            place: Where::TopLevel,
            object: object.into(),
            user: b"u".to_vec(),
            client: format!("at {updated_ms}"),
            id: 0,
            created_ms: updated_ms,
            updated_ms,
        }
    }

    #[test]
    fn similar_events_of_a_minute_are_one_entry() {
        let mut log = Log::default();
        for (object, at) in [("get", 0), ("set", 1), ("get", 60_000), ("get", 120_001)] {
            log.add(event(object, at), 9);
        }
        let shown = |log: &Log| {
            let entries = log.latest(9);
            entries.iter().map(|entry| (entry.id, entry.count, entry.client.clone())).collect::<Vec<_>>()
        };
        assert_eq!(shown(&log), [(2, 1, "at 120001".into()), (0, 2, "at 60000".into()), (1, 1, "at 1".into())]);
        log.add(event("del", 120_002), 2);
        assert_eq!(shown(&log).iter().map(|entry| entry.0).collect::<Vec<_>>(), [3, 2]);
        log.add(event("del", 120_003), 0);
        assert_eq!(shown(&log), [], "without entries nothing is kept");
    }
}
