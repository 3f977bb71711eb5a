//! The entries of a file: 12 bytes each, and their text one after another in one buffer.

/// An entry's number: its position in the file; entries added later follow.
pub(super) type EntryId = u32;

#[derive(Clone, Copy)]
struct Entry {
    /// The start of its key in the text, followed by its value. `GONE` if it was removed.
    start: u32,
    key_len: u32,
    value_len: u32,
}

const GONE: u32 = u32::MAX;

#[derive(Default)]
pub(super) struct Content {
    entries: Vec<Entry>,
    text: Vec<u8>,
    live: usize,
    /// Bytes of `text` that no entry uses any more.
    unused: usize,
}

impl Content {
    /// Reserves room for a file of this many bytes and entries.
    pub(super) fn reserve(&mut self, entries: usize, bytes: usize) {
        self.entries.reserve_exact(entries);
        self.text.reserve_exact(bytes);
    }

    pub(super) fn len(&self) -> usize {
        self.live
    }

    /// Returns the bytes of text in use.
    pub(super) fn text_len(&self) -> usize {
        self.text.len()
    }

    pub(super) fn key(&self, id: EntryId) -> &[u8] {
        let entry = self.entries[id as usize];
        let start = entry.start as usize;
        self.text.get(start..start + entry.key_len as usize).unwrap_or(b"")
    }

    pub(super) fn value(&self, id: EntryId) -> &[u8] {
        let entry = self.entries[id as usize];
        let start = entry.start as usize + entry.key_len as usize;
        self.text.get(start..start + entry.value_len as usize).unwrap_or(b"")
    }

    /// Adds an entry and returns its number. The caller keeps text and entries below 2^32.
    pub(super) fn push(&mut self, key: &[u8], value: &[u8]) -> EntryId {
        let id = self.entries.len() as EntryId;
        let start = self.text.len() as u32;
        self.text.extend_from_slice(key);
        self.text.extend_from_slice(value);
        self.entries.push(Entry { start, key_len: key.len() as u32, value_len: value.len() as u32 });
        self.live += 1;
        id
    }

    pub(super) fn set_value(&mut self, id: EntryId, value: &[u8]) {
        let entry = self.entries[id as usize];
        let at = entry.start as usize + entry.key_len as usize;
        if entry.value_len as usize >= value.len() {
            self.text[at..at + value.len()].copy_from_slice(value);
            self.unused += entry.value_len as usize - value.len();
            self.entries[id as usize].value_len = value.len() as u32;
            return;
        }
        let start = self.text.len() as u32;
        self.text.extend_from_within(entry.start as usize..at);
        self.text.extend_from_slice(value);
        self.unused += entry.key_len as usize + entry.value_len as usize;
        self.entries[id as usize] = Entry { start, key_len: entry.key_len, value_len: value.len() as u32 };
    }

    pub(super) fn remove(&mut self, id: EntryId) {
        let entry = &mut self.entries[id as usize];
        self.unused += entry.key_len as usize + entry.value_len as usize;
        *entry = Entry { start: GONE, key_len: 0, value_len: 0 };
        self.live -= 1;
    }

    /// Returns the live entries from a number on.
    pub(super) fn ids(&self, from: EntryId) -> impl Iterator<Item = EntryId> + '_ {
        let rest = self.entries.get(from as usize..).unwrap_or(&[]);
        rest.iter().zip(from..).filter(|(entry, _)| entry.start != GONE).map(|(_, id)| id)
    }

    pub(super) fn exists(&self, id: EntryId) -> bool {
        self.entries.get(id as usize).is_some_and(|entry| entry.start != GONE)
    }

    /// Returns whether more than half is garbage, and enough to be worth a pass over the rest.
    pub(super) fn is_wasteful(&self) -> bool {
        self.unused > self.text.len() / 2 + 4096 || self.entries.len() - self.live > self.live + 1024
    }

    /// Returns a copy without garbage; numbers change.
    pub(super) fn compacted(&self) -> Content {
        let mut content = Content::default();
        content.reserve(self.live, self.text.len() - self.unused);
        for id in self.ids(0) {
            content.push(self.key(id), self.value(id));
        }
        content
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.text.capacity()
    }
}
