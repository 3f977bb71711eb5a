//! Keyspace events, published to `__keyspace@N__:key` and `__keyevent@N__:event`.
//!
//! A handler records an event where Redis does, by [`Ctx::notify`](crate::Ctx). If its class is not enabled by
//! `notify-keyspace-events`, that is one load of a word that hardly ever changes. Events are published after the
//! stripes are unlocked: those of one client are in the order of its commands, as are those of a section; the events of
//! two clients that change a key within the same microsecond may be in the other order.

use std::sync::atomic::{AtomicU32, Ordering};

/// The classes of events, as the letters of `notify-keyspace-events` name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
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
    /// `t`
    Stream = 1 << 10,
    /// `m`: a key that was read does not exist.
    KeyMiss = 1 << 11,
    /// `n`: a key was created.
    New = 1 << 14,
}

/// Clients track keys, so every change concerns them; a bit that no class has.
const TRACKED: u32 = 1 << 31;

const KEYSPACE: u32 = 1 << 0;
const KEYEVENT: u32 = 1 << 1;

/// The letters and their bits, in Redis's order; `d` (modules) is accepted though there are no such events.
const LETTERS: [(u8, u32); 14] = [
    (b'g', 1 << 2),
    (b'$', 1 << 3),
    (b'l', 1 << 4),
    (b's', 1 << 5),
    (b'h', 1 << 6),
    (b'z', 1 << 7),
    (b'x', 1 << 8),
    (b'e', 1 << 9),
    (b't', 1 << 10),
    (b'd', 1 << 13),
    (b'n', 1 << 14),
    (b'K', KEYSPACE),
    (b'E', KEYEVENT),
    (b'm', 1 << 11),
];

/// `A`: everything but `m`, `n`, `K` and `E`.
const ALL: u32 = 0b10_0111_1111_1100;

/// Parses `notify-keyspace-events`.
pub(crate) fn parse_classes(text: &[u8]) -> Option<u32> {
    text.iter().try_fold(0, |classes, letter| match letter {
        b'A' => Some(classes | ALL),
        _ => LETTERS.iter().find(|(known, _)| known == letter).map(|(_, bit)| classes | bit),
    })
}

/// Returns classes as Redis 7.0 shows them: its `A` hides the `n`.
pub(crate) fn show_classes(classes: u32) -> String {
    let everything = classes & ALL == ALL;
    let mut text = String::from(if everything { "A" } else { "" });
    for (letter, bit) in LETTERS {
        let in_all = bit & (ALL | Class::New as u32) != 0;
        if classes & bit != 0 && !(everything && in_all) {
            text.push(char::from(letter));
        }
    }
    text
}

/// An event that is published after the stripes are unlocked.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) name: &'static str,
    pub(crate) db: u32,
    pub(crate) key: Box<[u8]>,
}

/// The enabled classes.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    classes: AtomicU32,
}

impl Notifier {
    /// Chooses the classes, and whether events are published by key, by event, or both; neither means none.
    pub(crate) fn set_classes(&self, classes: u32) {
        let said = if classes & (KEYSPACE | KEYEVENT) == 0 { 0 } else { classes };
        let keep_tracked = |before: u32| Some(before & TRACKED | said);
        let _ = self.classes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, keep_tracked);
    }

    /// Sets whether clients track keys.
    pub(crate) fn set_tracked(&self, is_tracked: bool) {
        match is_tracked {
            true => self.classes.fetch_or(TRACKED, Ordering::SeqCst),
            false => self.classes.fetch_and(!TRACKED, Ordering::SeqCst),
        };
    }

    /// Returns whether clients track keys. Under the lock of a key, or if it is held: whether a client does that may have
    /// read the key.
    #[inline]
    pub(crate) fn is_tracked(&self) -> bool {
        self.classes.load(Ordering::Relaxed) & TRACKED != 0
    }

    /// Returns whether a change with an event of this class has to be told: the class is enabled, or clients track keys.
    #[inline]
    pub(crate) fn concerns(&self, class: Class) -> bool {
        self.classes.load(Ordering::Relaxed) & (class as u32 | TRACKED) != 0
    }

    /// Returns whether events of this class are enabled.
    #[inline]
    pub(crate) fn wants(&self, class: Class) -> bool {
        self.classes.load(Ordering::Relaxed) & class as u32 != 0
    }

    /// Returns whether events are published by key and by event.
    pub(crate) fn targets(&self) -> (bool, bool) {
        let classes = self.classes.load(Ordering::Relaxed);
        (classes & KEYSPACE != 0, classes & KEYEVENT != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_read_and_shown_as_redis_does() {
        let check = |text: &str, shown: &str| {
            let classes = parse_classes(text.as_bytes()).expect("classes");
            assert_eq!(show_classes(classes), shown, "{text}");
        };
        check("", "");
        check("KEA", "AKE");
        check("KEAmn", "AKEm");
        check("g$x", "g$x");
        check("Kx", "xK");
        check("g$lshzxetdnmKE", "AKEm");
        check("ntdmKEe", "etdnKEm");
        check("nd", "dn");
        assert_eq!(parse_classes(b"KQ"), None);
    }

    #[test]
    fn without_k_and_e_nothing_is_said() {
        let notifier = Notifier::default();
        notifier.set_classes(parse_classes(b"A").expect("classes"));
        assert!(!notifier.wants(Class::Generic));
        notifier.set_classes(parse_classes(b"Kg").expect("classes"));
        assert!(notifier.wants(Class::Generic) && !notifier.wants(Class::New));
    }
}
