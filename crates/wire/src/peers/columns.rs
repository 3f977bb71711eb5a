//! Own columns: the counters that one node has counted itself, for tables whose users see sums. HAProxy's updates
//! overwrite each other; these messages are about one node's part, and repeating one changes nothing.
//!
//! They have a class of their own, and are sent only to peers that announced it in the [handshake](super::hello). The
//! table is that of the last definition. A body is a byte of flags, the number of the update if the flags say so, the
//! time until the entry expires, the version of the values that are not summed if the flags say so, the name of the node
//! (empty: the sender), the key, and the values: of all columns if the node is the sender, otherwise of those that are
//! summed.

use super::{Malformed, OWN_COLUMNS, frame, varint};

/// The type of the message.
const PART: u8 = 0x80;

/// The flag of a number.
const HAS_ID: u8 = 1;
/// The flag of a version.
const HAS_VERSION: u8 = 2;

/// The maximum length of a node's name.
const NODE_MAX: usize = 1024;

/// The part of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// The number of the update, if it is to be acknowledged.
    pub id: Option<u32>,
    /// The time until the entry expires, in milliseconds.
    pub expire_ms: u32,
    /// The version of the values that are not summed; the greatest one wins.
    pub version: Option<u64>,
    /// The node that has counted; `None`: the sender.
    pub node: Option<&'a str>,
    /// The [key](super::read_key) and the [values](super::read_values).
    pub rest: &'a [u8],
}

impl<'a> Part<'a> {
    /// Reads a message of the class; `None`: it is of a type that is ignored.
    ///
    /// # Errors
    /// It is malformed.
    pub fn read(kind: u8, body: &'a [u8]) -> Result<Option<Part<'a>>, Malformed> {
        if kind != PART {
            return Ok(None);
        }
        let (flags, mut rest) = body.split_first().ok_or(Malformed)?;
        let mut word = || {
            let (word, behind) = rest.split_first_chunk().ok_or(Malformed)?;
            rest = behind;
            Ok(u32::from_be_bytes(*word))
        };
        let id = (flags & HAS_ID != 0).then(&mut word).transpose()?;
        let expire_ms = word()?;
        let mut version = || Ok(u64::from(word()?) << 32 | u64::from(word()?));
        let version = (flags & HAS_VERSION != 0).then(&mut version).transpose()?;
        let length = varint::take(&mut rest)?;
        let length = usize::try_from(length).ok().filter(|length| *length <= NODE_MAX).ok_or(Malformed)?;
        let (node, rest) = rest.split_at_checked(length).ok_or(Malformed)?;
        let node = std::str::from_utf8(node).map_err(|_| Malformed)?;
        Ok(Some(Part { id, expire_ms, version, node: Some(node).filter(|node| !node.is_empty()), rest }))
    }

    /// Appends the message; `scratch` is emptied and used.
    pub fn write(&self, out: &mut Vec<u8>, scratch: &mut Vec<u8>) {
        scratch.clear();
        let flag = |is_there, flag| if is_there { flag } else { 0 };
        scratch.push(flag(self.id.is_some(), HAS_ID) | flag(self.version.is_some(), HAS_VERSION));
        for word in self.id.into_iter().chain([self.expire_ms]) {
            scratch.extend_from_slice(&word.to_be_bytes());
        }
        if let Some(version) = self.version {
            scratch.extend_from_slice(&version.to_be_bytes());
        }
        let node = self.node.unwrap_or("");
        varint::write(node.len() as u64, scratch);
        scratch.extend_from_slice(node.as_bytes());
        scratch.extend_from_slice(self.rest);
        frame(OWN_COLUMNS, PART, scratch, out);
    }
}

/// Reads any body: it is read or refused, and what was read is written in the same form.
pub(super) fn fuzz(kind: u8, body: &[u8]) {
    let Ok(Some(part)) = Part::read(kind, body) else { return };
    let mut written = Vec::new();
    part.write(&mut written, &mut Vec::new());
    let Ok(Some((super::Message::Columns(kind, again), _))) = super::read(&written, written.len()) else {
        panic!("not a part");
    };
    assert_eq!(Part::read(kind, again), Ok(Some(part)));
}
