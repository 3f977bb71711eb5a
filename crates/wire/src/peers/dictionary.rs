//! Names that are sent once, and by number after that. Each direction of a connection has a dictionary of its own: the
//! sender numbers the names, the least recently introduced first when all numbers are used.

use std::sync::Arc;

use super::{Malformed, varint};

/// The number of entries.
pub const ENTRIES: usize = 128;

/// The maximum length of a name.
pub const NAME_MAX: usize = 4096;

/// The names that this side has sent.
#[derive(Debug, Default)]
pub struct Sent {
    names: Vec<Arc<str>>,
    /// The number that the next name gets.
    next: usize,
}

impl Sent {
    /// Appends a name: in full if it has no number yet. `None` is no name.
    pub fn write(&mut self, name: Option<&Arc<str>>, out: &mut Vec<u8>) {
        let Some(name) = name.filter(|name| name.len() <= NAME_MAX) else {
            varint::write(0, out);
            return;
        };
        if let Some(number) = self.names.iter().position(|known| known == name) {
            varint::write(1, out);
            varint::write(number as u64 + 1, out);
            return;
        }
        let number = self.next;
        match self.names.get_mut(number) {
            Some(old) => *old = name.clone(),
            None => self.names.push(name.clone()),
        }
        self.next = (self.next + 1) % ENTRIES;
        let mut entry = Vec::with_capacity(2 * varint::LONGEST + name.len());
        varint::write(number as u64 + 1, &mut entry);
        varint::write(name.len() as u64, &mut entry);
        entry.extend_from_slice(name.as_bytes());
        varint::write(entry.len() as u64, out);
        out.extend_from_slice(&entry);
    }

    /// Returns the names by number, from 0.
    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }
}

/// The names that the peer has sent.
#[derive(Debug, Default)]
pub struct Received {
    names: Vec<Option<Arc<str>>>,
}

impl Received {
    /// Returns the name at the start of `bytes`, and skips it. A name that is not text counts as none.
    ///
    /// # Errors
    /// It is malformed.
    pub fn take(&mut self, bytes: &mut &[u8]) -> Result<Option<Arc<str>>, Malformed> {
        let length = varint::take(bytes)?;
        if length == 0 {
            return Ok(None);
        }
        let length = usize::try_from(length).ok().filter(|length| *length <= bytes.len()).ok_or(Malformed)?;
        let mut entry;
        (entry, *bytes) = bytes.split_at(length);
        let number = varint::take(&mut entry)?;
        let number = usize::try_from(number).ok().filter(|number| (1..=ENTRIES).contains(number)).ok_or(Malformed)? - 1;
        if entry.is_empty() {
            return Ok(self.names.get(number).cloned().flatten());
        }
        let length = varint::take(&mut entry)?;
        let name = usize::try_from(length).ok().filter(|length| *length <= NAME_MAX);
        let name = entry.get(..name.ok_or(Malformed)?).ok_or(Malformed)?;
        if self.names.len() <= number {
            self.names.resize(number + 1, None);
        }
        self.names[number] = std::str::from_utf8(name).ok().map(Arc::from);
        Ok(self.names[number].clone())
    }

    /// Returns the names by number, from 0.
    pub fn names(&self) -> &[Option<Arc<str>>] {
        &self.names
    }
}
