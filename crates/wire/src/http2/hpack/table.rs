//! The static table, and the dynamic table of one direction.
//!
//! The strings of the dynamic table lie one behind the other in a buffer, the oldest first. Eviction moves the start;
//! when there is no room at the end, the strings are moved to the front of the buffer. An entry counts 32 bytes more than
//! its strings have, so a buffer of the table's limit has room for them at its end after a move, and a move of all
//! strings is paid for by many insertions. The buffer grows with what it holds, so the table of a connection that sends
//! few distinct fields stays small.

use std::collections::VecDeque;

use super::super::class::Class;

/// The overhead of an entry in the size of a table (RFC 7541 4.1).
const ENTRY_OVERHEAD: usize = 32;

/// The number of entries of the static table; indices begin with 1.
pub(super) const STATIC_LEN: u32 = 61;

/// A field of the static table.
pub(super) struct StaticField {
    pub(super) name: &'static [u8],
    pub(super) value: &'static [u8],
    pub(super) class: Class,
}

const fn fixed(name: &'static [u8], value: &'static [u8]) -> StaticField {
    let class = match Class::known(name) {
        Some(class) => class,
        None => Class::Other,
    };
    StaticField { name, value, class }
}

pub(super) static STATIC: [StaticField; STATIC_LEN as usize] = FIELDS;

/// RFC 7541, appendix A.
const FIELDS: [StaticField; STATIC_LEN as usize] = [
    fixed(b":authority", b""),
    fixed(b":method", b"GET"),
    fixed(b":method", b"POST"),
    fixed(b":path", b"/"),
    fixed(b":path", b"/index.html"),
    fixed(b":scheme", b"http"),
    fixed(b":scheme", b"https"),
    fixed(b":status", b"200"),
    fixed(b":status", b"204"),
    fixed(b":status", b"206"),
    fixed(b":status", b"304"),
    fixed(b":status", b"400"),
    fixed(b":status", b"404"),
    fixed(b":status", b"500"),
    fixed(b"accept-charset", b""),
    fixed(b"accept-encoding", b"gzip, deflate"),
    fixed(b"accept-language", b""),
    fixed(b"accept-ranges", b""),
    fixed(b"accept", b""),
    fixed(b"access-control-allow-origin", b""),
    fixed(b"age", b""),
    fixed(b"allow", b""),
    fixed(b"authorization", b""),
    fixed(b"cache-control", b""),
    fixed(b"content-disposition", b""),
    fixed(b"content-encoding", b""),
    fixed(b"content-language", b""),
    fixed(b"content-length", b""),
    fixed(b"content-location", b""),
    fixed(b"content-range", b""),
    fixed(b"content-type", b""),
    fixed(b"cookie", b""),
    fixed(b"date", b""),
    fixed(b"etag", b""),
    fixed(b"expect", b""),
    fixed(b"expires", b""),
    fixed(b"from", b""),
    fixed(b"host", b""),
    fixed(b"if-match", b""),
    fixed(b"if-modified-since", b""),
    fixed(b"if-none-match", b""),
    fixed(b"if-range", b""),
    fixed(b"if-unmodified-since", b""),
    fixed(b"last-modified", b""),
    fixed(b"link", b""),
    fixed(b"location", b""),
    fixed(b"max-forwards", b""),
    fixed(b"proxy-authenticate", b""),
    fixed(b"proxy-authorization", b""),
    fixed(b"range", b""),
    fixed(b"referer", b""),
    fixed(b"refresh", b""),
    fixed(b"retry-after", b""),
    fixed(b"server", b""),
    fixed(b"set-cookie", b""),
    fixed(b"strict-transport-security", b""),
    fixed(b"transfer-encoding", b""),
    fixed(b"user-agent", b""),
    fixed(b"vary", b""),
    fixed(b"via", b""),
    fixed(b"www-authenticate", b""),
];

/// Returns the index of a field's name in the static table.
pub(super) fn static_name(name: &[u8]) -> Option<u8> {
    // One bucket for each length; a name has a bucket's length, so the comparison is short.
    const BUCKETS: usize = 28;
    static FIRST: [(u8, u8); BUCKETS] = INDEX.0;
    static INDICES: [u8; STATIC_LEN as usize] = INDEX.1;
    const INDEX: ([(u8, u8); BUCKETS], [u8; STATIC_LEN as usize]) = {
        let (mut first, mut indices) = ([(0, 0); BUCKETS], [0; STATIC_LEN as usize]);
        let (mut len, mut at) = (0, 0);
        while len < BUCKETS {
            first[len].0 = at;
            let mut field = 0;
            while field < STATIC_LEN as usize {
                if FIELDS[field].name.len() == len {
                    indices[at as usize] = field as u8;
                    at += 1;
                }
                field += 1;
            }
            first[len].1 = at;
            len += 1;
        }
        (first, indices)
    };
    let (from, to) = *FIRST.get(name.len())?;
    let bucket = &INDICES[usize::from(from)..usize::from(to)];
    bucket.iter().find(|index| STATIC[usize::from(**index)].name == name).map(|index| index + 1)
}

/// An entry of a dynamic table. `M` is what the table's owner knows of it.
#[derive(Clone, Copy, Debug)]
struct Entry<M> {
    /// The start of the name in the bytes ever appended; the value follows it.
    start: u32,
    name_len: u16,
    value_len: u16,
    meta: M,
}

impl<M> Entry<M> {
    fn len(&self) -> usize {
        usize::from(self.name_len) + usize::from(self.value_len)
    }
}

/// A dynamic table.
#[derive(Debug)]
pub(super) struct Table<M> {
    /// The strings of the entries end with this buffer.
    bytes: Vec<u8>,
    /// The number of bytes appended before those in the buffer.
    base: u32,
    /// The newest entry is the last.
    entries: VecDeque<Entry<M>>,
    /// The size of the entries as the RFC counts it, and its limit.
    size: usize,
    limit: usize,
    /// The number of entries ever inserted.
    inserted: u16,
}

impl<M: Copy> Table<M> {
    pub(super) fn new(limit: u32) -> Table<M> {
        debug_assert!(limit <= super::TABLE_SIZE_MAX);
        let limit = limit as usize;
        Table { bytes: Vec::new(), base: 0, entries: VecDeque::new(), size: 0, limit, inserted: 0 }
    }

    /// Returns the limit of the table's size.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Changes the limit of the table's size; the oldest entries that exceed it are evicted.
    pub(super) fn set_limit(&mut self, limit: u32) {
        debug_assert!(limit <= super::TABLE_SIZE_MAX);
        self.limit = limit as usize;
        self.shrink_to(self.limit);
        if self.entries.is_empty() {
            self.bytes = Vec::new();
        }
    }

    /// Returns the name with the value behind it, the length of the name, and the meta of an entry; 0 is the newest.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<(&[u8], usize, M)> {
        let at = self.entries.len().checked_sub(index + 1)?;
        let entry = self.entries.get(at)?;
        let start = entry.start.wrapping_sub(self.base) as usize;
        Some((&self.bytes[start..start + entry.len()], usize::from(entry.name_len), entry.meta))
    }

    /// Returns the number of entries ever inserted, with which [`Table::index_of`] finds the last of them again.
    pub(super) fn inserted(&self) -> u16 {
        self.inserted
    }

    /// Returns the index of the entry whose insertion made the number of insertions this one, if it is still there.
    pub(super) fn index_of(&self, insertion: u16) -> Option<usize> {
        let index = self.inserted.wrapping_sub(insertion) as usize;
        (index < self.entries.len()).then_some(index)
    }

    /// Inserts an entry, for which the oldest ones are evicted. One that is larger than the table empties it and is not
    /// inserted. Returns whether it was.
    pub(super) fn insert(&mut self, name: &[u8], value: &[u8], meta: M) -> bool {
        let len = name.len() + value.len();
        let size = len + ENTRY_OVERHEAD;
        self.shrink_to(self.limit.saturating_sub(size));
        if size > self.limit {
            return false;
        }
        if self.bytes.len() + len > self.bytes.capacity() {
            self.make_room(len);
        }
        let start = self.base.wrapping_add(self.bytes.len() as u32);
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        // Both fit into sixteen bits, because the whole entry is not larger than a table.
        let (name_len, value_len) = (name.len() as u16, value.len() as u16);
        self.entries.push_back(Entry { start, name_len, value_len, meta });
        self.size += size;
        self.inserted = self.inserted.wrapping_add(1);
        true
    }

    fn shrink_to(&mut self, size: usize) {
        while self.size > size
            && let Some(entry) = self.entries.pop_front()
        {
            self.size -= entry.len() + ENTRY_OVERHEAD;
        }
    }

    /// Moves the strings to the front of the buffer, and lets it grow if they fill more than half of it.
    fn make_room(&mut self, len: usize) {
        let start = self.entries.front().map_or(self.bytes.len(), |entry| entry.start.wrapping_sub(self.base) as usize);
        self.bytes.drain(..start);
        self.base = self.base.wrapping_add(start as u32);
        let used = self.bytes.len() + len;
        if used > self.bytes.capacity() / 2 {
            let wanted = (used * 2).next_power_of_two().max(256).min(self.limit.max(used));
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_of_the_static_table_are_found() {
        for field in &STATIC {
            let first = STATIC.iter().position(|other| other.name == field.name).unwrap();
            assert_eq!(static_name(field.name), Some(first as u8 + 1));
        }
        for name in [&b"x"[..], b"", b"cookies", &[b'a'; 27], &[b'a'; 300]] {
            assert_eq!(static_name(name), None);
        }
    }

    #[test]
    fn what_exceeds_the_table_empties_it() {
        let mut table = Table::new(100);
        assert!(table.insert(b"a", b"1", 1));
        assert!(table.insert(b"b", b"2", 2));
        assert_eq!(table.get(0), Some((&b"b2"[..], 1, 2)));
        assert_eq!(table.get(1), Some((&b"a1"[..], 1, 1)));
        assert_eq!(table.get(2), None);
        let first = table.index_of(1);
        assert_eq!(first, Some(1));
        assert!(!table.insert(b"c", &[b'x'; 68], 3));
        assert_eq!(table.get(0), None);
        assert_eq!(table.index_of(1), None);
        assert!(table.insert(b"c", &[b'x'; 67], 3));
        table.set_limit(99);
        assert_eq!(table.get(0), None);
        table.set_limit(0);
        assert!(!table.insert(b"", b"", 0));
    }

    proptest! {
        #[test]
        fn as_a_queue_of_pairs(
            steps in prop::collection::vec((0usize..40, 0usize..200, prop::option::weighted(0.1, 0u32..700)), 1..400),
        ) {
            let mut table = Table::new(512);
            let mut model: VecDeque<(Vec<u8>, Vec<u8>)> = VecDeque::new();
            let mut limit = 512;
            let fit = |model: &mut VecDeque<(Vec<u8>, Vec<u8>)>, limit: usize| {
                while model.iter().map(|(name, value)| name.len() + value.len() + 32).sum::<usize>() > limit {
                    model.pop_back();
                }
            };
            for (count, (name, value, resized)) in steps.into_iter().enumerate() {
                if let Some(new) = resized {
                    limit = new as usize;
                    table.set_limit(new);
                    fit(&mut model, limit);
                }
                let (name, value) = (vec![count as u8; name], vec![!count as u8; value]);
                table.insert(&name, &value, ());
                model.push_front((name, value));
                fit(&mut model, limit);
                for (index, (name, value)) in model.iter().enumerate() {
                    prop_assert_eq!(table.get(index), Some((&[&name[..], value].concat()[..], name.len(), ())));
                }
                prop_assert_eq!(table.get(model.len()), None);
                prop_assert!(table.bytes.capacity() <= limit.max(512).max(700));
            }
        }
    }
}
