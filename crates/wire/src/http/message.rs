//! One message: start line, header fields in order, and the arena that holds their bytes.
//!
//! The head is copied once from the socket's buffer into the arena; entries are spans into it. An edit appends to the
//! arena and re-points a span, a deletion sets a flag, so header order reaches the peer as it came. Rules, Lua and logs
//! see only this form; framing (Content-Length, Transfer-Encoding, Connection) belongs to the writer.
//!
//! **Invariant:** names of fields are in lower case, wherever they come from, as in HAProxy's own form of a message.
//!
//! Cost: one memcpy of the head and 20 bytes an entry; a message is reused for the next request of its worker.

use std::ops::Range;

use super::{Method, origin_form};

/// Bytes and fields of a usual request's head.
const ARENA_USUAL: usize = 1024;
const ENTRIES_USUAL: usize = 16;

/// Bytes and fields of a usual response made here: a redirect, an error. A message keeps its memory for the next exchange.
const ARENA_RESPONSE: usize = 256;
const ENTRIES_RESPONSE: usize = 6;

const CONTENT_LENGTH: &[u8] = b"content-length";

/// HTTP version of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    #[default]
    Http11,
    /// HTTP/2.0, as HAProxy writes it.
    Http2,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Span {
    start: u32,
    len: u32,
}

impl Span {
    fn of(range: Range<usize>) -> Span {
        Span { start: range.start as u32, len: (range.end - range.start) as u32 }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    name: Span,
    value: Span,
    deleted: bool,
}

/// The identity of a header field in its message; it stays valid while fields are edited or added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryId(u32);

/// The start line, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartLine<'a> {
    /// Method, target and version.
    Request {
        /// `GET`.
        method: &'a [u8],
        /// The request target as received or as a rule set it.
        target: &'a [u8],
        /// Version of the client's request.
        version: Version,
    },
    /// Version, status and reason.
    Response {
        /// Version of the server's response.
        version: Version,
        /// 100–999.
        status: u16,
        /// Reason phrase, may be empty.
        reason: &'a [u8],
    },
}

/// A request or response head.
#[derive(Clone, Debug, Default)]
pub struct Message {
    arena: Vec<u8>,
    entries: Vec<Entry>,
    version: Version,
    status: u16,  // 0: a request
    first: Span,  // method
    second: Span, // target, or reason
    /// The method that the client sent, if another has replaced it.
    sent: Option<Method>,
    /// Whether the request named the scheme `http` beside a target that has none, as HTTP/2 can.
    plain: bool,
    /// Whether the target was replaced as a whole.
    replaced: bool,
    /// Whether a Content-Length was deleted.
    lost_length: bool,
}

impl Message {
    /// Returns an empty message, ready for `set_request` or `set_response`.
    pub fn new() -> Message {
        Message::default()
    }

    /// Returns the arena, at whose end a decoder writes the strings of a head that comes field by field.
    pub(crate) fn arena_mut(&mut self) -> &mut Vec<u8> {
        &mut self.arena
    }

    /// Returns bytes of the arena.
    pub(crate) fn arena(&self) -> &[u8] {
        &self.arena
    }

    /// Copies a parsed head in one step: the entries pushed before are offsets into `head`.
    pub(super) fn load(&mut self, head: &[u8]) {
        debug_assert!(self.arena.is_empty());
        self.arena.extend_from_slice(head);
    }

    /// Makes this a request whose parts are offsets into the arena, or into the head passed to [`Message::load`].
    pub(crate) fn load_request(&mut self, method: Range<usize>, target: Range<usize>, version: Version) {
        self.first = Span::of(method);
        self.sent = None;
        self.second = Span::of(target);
        self.version = version;
        self.status = 0;
        (self.plain, self.replaced, self.lost_length) = (false, false, false);
    }

    /// Records that the request named the scheme `http` beside a target that has none.
    pub(crate) fn set_plain(&mut self) {
        self.plain = true;
    }

    /// Returns whether the request named the scheme `http` beside a target that has none.
    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }

    /// Makes this a response whose reason is an offset into the arena, or into the head passed to [`Message::load`].
    pub(crate) fn load_response(&mut self, version: Version, status: u16, reason: Range<usize>) {
        self.first = Span::default();
        self.second = Span::of(reason);
        self.version = version;
        self.status = status;
        self.lost_length = false;
    }

    /// Adds a field by offsets into the arena, or into the head passed to [`Message::load`].
    pub(crate) fn push_field(&mut self, name: Range<usize>, value: Range<usize>) {
        self.entries.push(Entry { name: Span::of(name), value: Span::of(value), deleted: false });
    }

    /// Converts the names that were loaded by [`Message::load`] to lower case.
    pub(super) fn lower_names(&mut self) {
        for entry in &self.entries {
            let (start, len) = (entry.name.start as usize, entry.name.len as usize);
            match self.arena[start..].first_chunk_mut::<16>() {
                Some(block) if len <= 16 => lower_sixteen(block, len as u8),
                _ => lower(&mut self.arena[start..start + len]),
            }
        }
    }

    /// Returns the number of fields pushed or added so far, including deleted ones.
    pub(crate) fn entry_count(&self) -> usize {
        self.entries.len()
    }

    /// Replaces the line ends inside folded values with spaces.
    pub(super) fn unfold(&mut self) {
        for entry in &self.entries {
            let value = &mut self.arena[entry.value.start as usize..(entry.value.start + entry.value.len) as usize];
            for byte in value {
                if matches!(byte, b'\r' | b'\n') {
                    *byte = b' ';
                }
            }
        }
    }

    /// Clears the message; its memory is kept.
    pub fn clear(&mut self) {
        self.arena.clear();
        self.entries.clear();
        self.version = Version::Http11;
        self.status = 0;
        self.first = Span::default();
        self.sent = None;
        self.second = Span::default();
        (self.plain, self.replaced, self.lost_length) = (false, false, false);
    }

    /// Returns an empty message with this one's memory; this one is left empty, without any.
    pub fn take(&mut self) -> Message {
        let mut taken = std::mem::take(self);
        taken.clear();
        taken
    }

    /// Makes this a copy of another message; the memory of this one is kept.
    pub fn copy_from(&mut self, other: &Message) {
        self.arena.clone_from(&other.arena);
        self.entries.clone_from(&other.entries);
        (self.version, self.status) = (other.version, other.status);
        (self.first, self.sent, self.second) = (other.first, other.sent, other.second);
        (self.plain, self.replaced, self.lost_length) = (other.plain, other.replaced, other.lost_length);
    }

    fn store(&mut self, bytes: &[u8]) -> Span {
        let start = self.arena.len() as u32;
        self.arena.extend_from_slice(bytes);
        Span { start, len: bytes.len() as u32 }
    }

    fn bytes(&self, span: Span) -> &[u8] {
        &self.arena[span.start as usize..(span.start + span.len) as usize]
    }

    /// Returns the bytes of the start line and the fields that fit into the memory it has.
    pub fn capacity(&self) -> usize {
        self.arena.capacity()
    }

    /// Allocates memory for the usual head of a request, if there is none yet that can be reused.
    pub(crate) fn reserve(&mut self) {
        self.reserve_for(ARENA_USUAL, ENTRIES_USUAL);
    }

    fn reserve_for(&mut self, bytes: usize, entries: usize) {
        if self.arena.capacity() == 0 {
            self.arena.reserve(bytes);
            self.entries.reserve(entries);
        }
    }

    /// Makes this a request.
    pub fn set_request(&mut self, method: &[u8], target: &[u8], version: Version) {
        self.reserve();
        self.first = self.store(method);
        self.sent = None;
        self.second = self.store(target);
        self.version = version;
        self.status = 0;
        (self.plain, self.replaced, self.lost_length) = (false, false, false);
    }

    /// Makes this a response. `status` is 100–999.
    pub fn set_response(&mut self, version: Version, status: u16, reason: &[u8]) {
        self.reserve_for(ARENA_RESPONSE, ENTRIES_RESPONSE);
        self.first = Span::default();
        self.second = self.store(reason);
        self.version = version;
        self.status = status;
        self.lost_length = false;
    }

    /// Returns the start line.
    pub fn start_line(&self) -> StartLine<'_> {
        if self.status == 0 {
            StartLine::Request {
                method: self.bytes(self.first),
                target: self.bytes(self.second),
                version: self.version,
            }
        } else {
            StartLine::Response { version: self.version, status: self.status, reason: self.bytes(self.second) }
        }
    }

    /// Returns the request's method; empty in a response.
    pub fn method(&self) -> &[u8] {
        self.bytes(self.first)
    }

    /// Returns the request's target; a response's reason.
    pub fn target(&self) -> &[u8] {
        self.bytes(self.second)
    }

    /// Returns the response's status; 0 in a request.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Returns the version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the method that the client sent, which is what HAProxy's rules see; the present one if HAProxy does not know
    /// that.
    pub fn sent_method(&self) -> &[u8] {
        self.sent.and_then(Method::name).unwrap_or_else(|| self.method())
    }

    /// Replaces the method.
    pub fn set_method(&mut self, method: &[u8]) {
        self.sent = self.sent.or(Some(Method::of(self.method())));
        self.first = self.store(method);
    }

    /// Replaces the target, whose form stays the same.
    pub fn set_target(&mut self, target: &[u8]) {
        self.second = self.store(target);
    }

    /// Replaces the target by one in the form in which a server of HTTP/1 gets it. One without a scheme keeps the old one's
    /// for servers of HTTP/2.
    pub fn replace_target(&mut self, target: &[u8]) {
        self.plain |= self.target().get(..7).is_some_and(|start| start.eq_ignore_ascii_case(b"http://"));
        self.replaced = true;
        self.set_target(target);
    }

    /// Returns the two parts of the request's target in the form in which a server of HTTP/1 gets it. The targets of HTTP/2
    /// are stored in absolute form, but such a server gets the origin form, or for OPTIONS without a path the asterisk form
    /// (RFC 9112 3.2.4).
    pub fn http1_target(&self) -> [&[u8]; 2] {
        if self.version != Version::Http2 || self.replaced || self.method() == b"CONNECT" {
            return [self.target(), b""];
        }
        match origin_form(self.target()) {
            Some(b"") if self.method() == b"OPTIONS" => [b"*", b""],
            Some(path) if path.first() != Some(&b'/') => [b"/", path],
            Some(path) => [path, b""],
            None => [self.target(), b""],
        }
    }

    /// Replaces host and port in a target that contains them (absolute form, CONNECT), so that they still match the
    /// Host field; user information stays. The target is left unchanged if it has another form, or if `authority`
    /// contains a byte that would break the request line.
    pub fn set_authority(&mut self, authority: &[u8]) {
        if authority.iter().any(|byte| *byte <= b' ' || matches!(byte, b'/' | b'?' | b'#' | 0x7f)) {
            return;
        }
        let target = self.target();
        let Some((start, end)) = authority_of(self.method(), target) else { return };
        if &target[start..end] == authority {
            return;
        }
        let new = [&target[..start], authority, &target[end..]].concat();
        self.set_target(&new);
    }

    /// Returns host and port of a target that contains them, without user information.
    pub fn authority(&self) -> Option<&[u8]> {
        let (start, end) = authority_of(self.method(), self.target())?;
        Some(&self.target()[start..end])
    }

    /// Replaces the status and the reason.
    pub fn set_status(&mut self, status: u16, reason: &[u8]) {
        self.second = self.store(reason);
        self.status = status;
    }

    /// Adds a field at the end.
    pub fn add(&mut self, name: &[u8], value: &[u8]) -> EntryId {
        let name = self.store(name);
        lower(&mut self.arena[name.start as usize..]);
        self.add_stored(name, value)
    }

    /// Adds a field whose name is in lower case.
    pub fn add_lower(&mut self, name: &[u8], value: &[u8]) -> EntryId {
        debug_assert!(!name.iter().any(u8::is_ascii_uppercase));
        let name = self.store(name);
        self.add_stored(name, value)
    }

    fn add_stored(&mut self, name: Span, value: &[u8]) -> EntryId {
        let value = self.store(value);
        self.entries.push(Entry { name, value, deleted: false });
        EntryId(self.entries.len() as u32 - 1)
    }

    /// Replaces one field's value in place.
    pub fn set_value(&mut self, id: EntryId, value: &[u8]) {
        let span = self.store(value);
        self.entries[id.0 as usize].value = span;
    }

    /// Deletes one field.
    pub fn delete(&mut self, id: EntryId) {
        self.delete_at(id.0 as usize);
    }

    fn delete_at(&mut self, index: usize) {
        self.entries[index].deleted = true;
        self.lost_length |= self.bytes(self.entries[index].name) == CONTENT_LENGTH;
    }

    /// Deletes all fields of this name (ASCII case ignored); returns their number.
    pub fn delete_all(&mut self, name: &[u8]) -> usize {
        self.delete_where(|field| is_named(field, name))
    }

    /// Deletes all fields whose name a test selects; returns their number.
    pub fn delete_where(&mut self, picks: impl Fn(&[u8]) -> bool) -> usize {
        let mut count = 0;
        for index in 0..self.entries.len() {
            let entry = self.entries[index];
            if !entry.deleted && picks(self.bytes(entry.name)) {
                self.delete_at(index);
                count += 1;
            }
        }
        count
    }

    /// Deletes all fields of this name and adds one at the end.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        self.delete_all(name);
        self.add(name, value);
    }

    /// Returns all fields in order: id, name in lower case, value.
    pub fn fields(&self) -> impl DoubleEndedIterator<Item = (EntryId, &[u8], &[u8])> {
        self.entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| !entry.deleted)
            .map(|(index, entry)| (EntryId(index as u32), self.bytes(entry.name), self.bytes(entry.value)))
    }

    /// Returns the bytes of the names and values of all fields.
    pub fn fields_len(&self) -> usize {
        let lengths = self.entries.iter().map(|entry| match entry.deleted {
            true => 0,
            false => entry.name.len as usize + entry.value.len as usize,
        });
        lengths.sum()
    }

    /// Returns the first field after `place` (the first of all without one), for an iteration during which the message
    /// may change.
    pub fn field_after(&self, place: Option<EntryId>) -> Option<(EntryId, &[u8], &[u8])> {
        let from = place.map_or(0, |place| place.0 as usize + 1);
        let entries = self.entries.get(from..)?;
        let index = from + entries.iter().position(|entry| !entry.deleted)?;
        let entry = &self.entries[index];
        Some((EntryId(index as u32), self.bytes(entry.name), self.bytes(entry.value)))
    }

    /// Returns the first field of this name (ASCII case ignored; of any name if it is empty) whose index among the
    /// entries is at least `from`, as its index and its value. Indices stay valid as [`EntryId`]s do.
    pub fn named_from(&self, from: usize, name: &[u8]) -> Option<(usize, &[u8])> {
        let entries = self.entries.get(from..)?;
        let asked = |entry: &Entry| !entry.deleted && (name.is_empty() || is_named(self.bytes(entry.name), name));
        let index = from + entries.iter().position(asked)?;
        Some((index, self.bytes(self.entries[index].value)))
    }

    /// Returns the fields of one name (ASCII case ignored), in order.
    pub fn fields_named<'a>(&'a self, name: &'a [u8]) -> impl DoubleEndedIterator<Item = (EntryId, &'a [u8])> {
        self.fields().filter(move |(_, field, _)| is_named(field, name)).map(|(id, _, value)| (id, value))
    }

    /// Returns the first value of this name.
    pub fn first(&self, name: &[u8]) -> Option<&[u8]> {
        self.entries
            .iter()
            .find(|entry| !entry.deleted && is_named(self.bytes(entry.name), name))
            .map(|entry| self.bytes(entry.value))
    }

    /// Returns whether a rule has deleted the Content-Length, so that the length of the body is not announced.
    pub fn has_lost_length(&self) -> bool {
        self.lost_length && self.first(CONTENT_LENGTH).is_none()
    }

    /// Returns the number of bytes of the head on the wire, without framing fields that the writer adds.
    pub fn wire_len(&self) -> usize {
        let start = self.first.len as usize + self.second.len as usize + 16;
        start + self.fields().map(|(_, name, value)| name.len() + value.len() + 4).sum::<usize>()
    }
}

/// Returns whether a field has this name (ASCII case ignored). Most names that are looked for are in lower case as
/// fields are, and are compared as bytes.
#[inline]
fn is_named(field: &[u8], name: &[u8]) -> bool {
    field.len() == name.len() && (field == name || field.eq_ignore_ascii_case(name))
}

/// Converts ASCII letters to lower case, eight at a time. Repeating the conversion changes nothing, so the last word
/// may overlap the one before.
pub(super) fn lower(name: &mut [u8]) {
    if let Some(first) = name.first_chunk_mut::<8>() {
        *first = lower_eight(u64::from_le_bytes(*first)).to_le_bytes();
        for eight in name[8..].as_chunks_mut::<8>().0 {
            *eight = lower_eight(u64::from_le_bytes(*eight)).to_le_bytes();
        }
        if let Some(last) = name.last_chunk_mut::<8>() {
            *last = lower_eight(u64::from_le_bytes(*last)).to_le_bytes();
        }
    } else if let Some(first) = name.first_chunk_mut::<4>() {
        *first = (lower_eight(u32::from_le_bytes(*first).into()) as u32).to_le_bytes();
        if let Some(last) = name.last_chunk_mut::<4>() {
            *last = (lower_eight(u32::from_le_bytes(*last).into()) as u32).to_le_bytes();
        }
    } else {
        name.make_ascii_lowercase();
    }
}

/// Converts the first `len` of sixteen bytes to lower case: a loop that compiles to a few vector instructions.
#[inline]
fn lower_sixteen(block: &mut [u8; 16], len: u8) {
    for (at, byte) in block.iter_mut().enumerate() {
        let capital = byte.wrapping_sub(b'A') < 26;
        *byte |= u8::from(capital & ((at as u8) < len)) << 5;
    }
}

/// Converts eight bytes to lower case without a branch: the high bit of each byte indicates a capital letter.
fn lower_eight(bytes: u64) -> u64 {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let low = bytes & (ONES * 0x7f);
    let from_a = low + ONES * (0x80 - b'A' as u64);
    let beyond_z = low + ONES * (0x7f - b'Z' as u64);
    let capital = !bytes & (from_a ^ beyond_z) & (ONES * 0x80);
    bytes | capital >> 2
}

/// Returns the range of host and port in a target.
fn authority_of(method: &[u8], target: &[u8]) -> Option<(usize, usize)> {
    if method == b"CONNECT" {
        return Some((0, target.len()));
    }
    if matches!(target.first(), None | Some(b'/')) {
        return None;
    }
    let start = target.windows(3).position(|window| window == b"://")? + 3;
    let end = target[start..].iter().position(|byte| matches!(byte, b'/' | b'?' | b'#'));
    let end = end.map_or(target.len(), |len| start + len);
    let host = target[start..end].iter().rposition(|byte| *byte == b'@').map_or(start, |at| start + at + 1);
    Some((host, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_s_authority_is_replaced() {
        for (method, target, expected) in [
            ("GET", "http://a/b?c", "http://new:81/b?c"),
            ("GET", "http://u:p@a:80/b", "http://u:p@new:81/b"),
            ("GET", "http://a", "http://new:81"),
            ("GET", "http://a?b", "http://new:81?b"),
            ("GET", "/b?http://a/", "/b?http://a/"),
            ("OPTIONS", "*", "*"),
            ("CONNECT", "a:443", "new:81"),
        ] {
            let mut message = Message::new();
            message.set_request(method.as_bytes(), target.as_bytes(), Version::Http11);
            message.set_authority(b"new:81");
            assert_eq!(message.target(), expected.as_bytes(), "{method} {target}");
            message.set_authority(b"a b");
            assert_eq!(message.target(), expected.as_bytes(), "a request line can't be split");
        }
    }

    #[test]
    fn servers_of_http_1_get_the_form_that_they_know() {
        for (method, version, target, expected) in [
            ("GET", Version::Http2, "http://a/b?c", "/b?c"),
            ("GET", Version::Http2, "http://a", "/"),
            ("GET", Version::Http2, "http://a?b", "/?b"),
            ("OPTIONS", Version::Http2, "http://a", "*"),
            ("OPTIONS", Version::Http2, "http://a?b", "/?b"),
            ("OPTIONS", Version::Http2, "http://a/", "/"),
            ("OPTIONS", Version::Http2, "*", "*"),
            ("OPTIONS", Version::Http11, "http://a", "http://a"),
            ("CONNECT", Version::Http2, "a:443", "a:443"),
        ] {
            let mut message = Message::new();
            message.set_request(method.as_bytes(), target.as_bytes(), version);
            assert_eq!(message.http1_target().concat(), expected.as_bytes(), "{method} {target}");
        }
    }

    #[test]
    fn a_deleted_length_is_known_until_another_one_takes_its_place() {
        let mut message = Message::new();
        message.set_response(Version::Http11, 200, b"OK");
        message.add(b"x", b"1");
        message.delete_all(b"x");
        assert!(!message.has_lost_length());
        let id = message.add(b"Content-Length", b"1");
        message.delete(id);
        assert!(message.has_lost_length());
        let mut copy = Message::new();
        copy.copy_from(&message);
        assert!(copy.has_lost_length());
        message.set(b"content-length", b"2");
        assert!(!message.has_lost_length());
        message.delete_where(|name| name.starts_with(b"content-"));
        assert!(message.has_lost_length());
        message.clear();
        assert!(!message.has_lost_length());
    }

    #[test]
    fn names_are_in_lower_case() {
        let all: Vec<u8> = (0..=255).collect();
        for len in 0..40 {
            for start in 0..=all.len() - len {
                let mut name = all[start..start + len].to_vec();
                lower(&mut name);
                assert_eq!(name, all[start..start + len].to_ascii_lowercase());
            }
        }
        let mut message = Message::new();
        message.add(b"X-Forwarded-For", b"A");
        message.set(b"ETag", b"B");
        let fields: Vec<_> = message.fields().map(|(_, name, value)| (name, value)).collect();
        assert_eq!(fields, [(&b"x-forwarded-for"[..], &b"A"[..]), (b"etag", b"B")]);
    }

    #[test]
    fn a_walk_goes_on_while_fields_come_and_go() {
        let mut message = Message::new();
        for name in [b"a", b"b", b"c"] {
            message.add(name, b"1");
        }
        let (first, name, _) = message.field_after(None).expect("there are three");
        assert_eq!(name, b"a");
        message.delete_all(b"b");
        message.add(b"d", b"2");
        let (third, name, _) = message.field_after(Some(first)).expect("two are left");
        assert_eq!(name, b"c");
        let (fourth, ..) = message.field_after(Some(third)).expect("one is left");
        assert_eq!(message.field_after(Some(fourth)), None);
    }
}
