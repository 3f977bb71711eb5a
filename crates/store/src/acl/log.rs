//! The log of what was denied: similar events within a minute are one entry, the latest first.

use std::collections::VecDeque;

use sluicegate_wire::engine::Denial;

/// Entries are merged if their last events are closer than this, in milliseconds.
const MERGED_MS: i64 = 60_000;

/// The number of latest entries with which a new event is compared.
const COMPARED_MAX: usize = 10;

/// The characters of a text that monitoring gets.
const SHOWN_MAX: usize = 80;

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

impl Entry {
    /// Returns the entry for monitoring.
    pub(super) fn denial(&self, now_ms: i64) -> Denial {
        Denial {
            reason: self.reason.name(),
            context: self.place.name(),
            object: shown(&self.object),
            user: shown(&self.user),
            client: shown(address_of(&self.client).as_bytes()),
            count: self.count,
            age_s: (now_ms - self.updated_ms).max(0) as u64 / 1000,
        }
    }
}

/// Returns the start of a text that clients have chosen, without what would change how the text around it is shown.
fn shown(text: &[u8]) -> String {
    // The bytes of one character more than are shown.
    let start = String::from_utf8_lossy(&text[..text.len().min(4 * (SHOWN_MAX + 1))]);
    let is_harmless = |c: &char| {
        !c.is_control() && !matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut characters = start.chars().map(|c| if is_harmless(&c) { c } else { char::REPLACEMENT_CHARACTER });
    let mut shown: String = characters.by_ref().take(SHOWN_MAX).collect();
    if characters.next().is_some() {
        shown.push('…');
    }
    shown
}

/// Returns the address in a line of CLIENT LIST; an origin within the process is none, and returned as it is.
fn address_of(client: &str) -> &str {
    client.split(' ').find_map(|part| part.strip_prefix("addr=")).unwrap_or(client)
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

    /// Returns what `of` makes of the latest entries, of which objects may be large.
    pub(super) fn latest<T>(&self, count: usize, of: impl Fn(&Entry) -> T) -> Vec<T> {
        self.entries.iter().take(count).map(of).collect()
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
    fn what_monitoring_gets_is_short_and_harmless() {
        let long = "é".repeat(SHOWN_MAX + 1);
        for (object, expected) in [
            (&b"a key"[..], "a key".to_owned()),
            (b"\xff\r\n<b>", "\u{fffd}\u{fffd}\u{fffd}<b>".into()),
            ("\u{202e}abc".as_bytes(), "\u{fffd}abc".into()),
            (&long.as_bytes()[..2 * SHOWN_MAX], long[..2 * SHOWN_MAX].into()),
            (long.as_bytes(), format!("{}…", &long[..2 * SHOWN_MAX])),
            (&[b'x'; 1 << 20], format!("{}…", "x".repeat(SHOWN_MAX))),
        ] {
            assert_eq!(shown(object), expected);
        }
        let client = "id=3 addr=127.0.0.1:5 laddr=127.0.0.1:6 name=addr=x";
        let entry = Entry { client: client.into(), ..event("get", 5_000) };
        let denial = entry.denial(8_999);
        assert_eq!((&*denial.client, denial.age_s, denial.count), ("127.0.0.1:5", 3, 1));
        assert_eq!(address_of("rule:a.cfg:12"), "rule:a.cfg:12");
        assert_eq!(entry.denial(0).age_s, 0, "a clock that was set back");
    }

    #[test]
    fn similar_events_of_a_minute_are_one_entry() {
        let mut log = Log::default();
        for (object, at) in [("get", 0), ("set", 1), ("get", 60_000), ("get", 120_001)] {
            log.add(event(object, at), 9);
        }
        let shown = |log: &Log| log.latest(9, |entry| (entry.id, entry.count, entry.client.clone()));
        assert_eq!(shown(&log), [(2, 1, "at 120001".into()), (0, 2, "at 60000".into()), (1, 1, "at 1".into())]);
        log.add(event("del", 120_002), 2);
        assert_eq!(shown(&log).iter().map(|entry| entry.0).collect::<Vec<_>>(), [3, 2]);
        log.add(event("del", 120_003), 0);
        assert_eq!(shown(&log), [], "without entries nothing is kept");
    }
}
