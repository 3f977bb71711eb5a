//! The client's first message as bytes, for fetches about what a client offers and for fingerprints of clients.
//!
//! rustls parses the message and exposes a part of it; JA3 and JA4 need its lists as they were sent. The kept parts and
//! their truncation are HAProxy's: `tune.ssl.capture-buffer-size` bounds all lists together, in the order of
//! [`List`], and a message that is malformed after its suites still has those. The last extension is left out if it is
//! empty.
//!
//! Nothing here can fail beyond "no such message"; any bytes may be given.

use std::fmt::Write;
use std::ops::Range;

use rustls::server::ClientHello;
use xxhash_rust::xxh64::xxh64;

use crate::registry;

/// The types of a record and of messages.
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const CHANGE_OF_CIPHERS: u8 = 20;
/// The length of a record's head.
const RECORD_HEAD: usize = 5;
/// The end of a hello's random in the record that begins with it.
const RANDOM_END: usize = RECORD_HEAD + 4 + 2 + 32;

/// The extension by which a client asks for an OCSP response.
const STATUS_REQUEST: u16 = 5;

/// The random of a server's hello that is a HelloRetryRequest.
const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2, 0xa2, 0x11,
    0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// A list of a client's hello, in the order in which they are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Suites: `ssl_fc_cipherlist_*`.
    Ciphers,
    /// Types of extensions: `ssl_fc_extlist_bin`.
    Extensions,
    /// Groups: `ssl_fc_eclist_bin`.
    Groups,
    /// Point formats, a byte each: `ssl_fc_ecformats_bin`.
    PointFormats,
    /// Versions: `ssl_fc_supported_versions_bin`.
    Versions,
    /// Signature schemes: `ssl_fc_sigalgs_bin`.
    SignatureSchemes,
}

const LISTS: usize = 6;

/// The parts of a client's hello that are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The version in the message: `ssl_fc_protocol_hello_id`.
    pub version: u16,
    /// The XXH64 of all suites, kept or not: `ssl_fc_cipherlist_xxh`.
    pub ciphers_hash: u64,
    /// The client's random.
    pub random: [u8; 32],
    /// The session that the client offers; in TLS 1.3 a random value without meaning.
    pub session: Box<[u8]>,
    /// The lists, concatenated.
    data: Box<[u8]>,
    ends: [u16; LISTS],
}

/// A reader of parts with lengths.
#[derive(Clone, Copy)]
struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes(1).map(|bytes| bytes[0])
    }

    fn number(&mut self) -> Option<u16> {
        self.bytes(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Reads a part that follows its length of one byte.
    fn short(&mut self) -> Option<&'a [u8]> {
        let length = self.byte()?;
        self.bytes(length.into())
    }

    /// Reads a part that follows its length of two bytes.
    fn long(&mut self) -> Option<&'a [u8]> {
        let length = self.number()?;
        self.bytes(length.into())
    }
}

/// Returns the handshake bytes of records, as far as they are complete and of that type; bytes that begin with a message
/// are returned as they are.
fn without_records(bytes: &[u8]) -> std::borrow::Cow<'_, [u8]> {
    if bytes.first() != Some(&HANDSHAKE) {
        return bytes.into();
    }
    let mut message = Vec::with_capacity(bytes.len());
    let mut records = Parts(bytes);
    while records.byte() == Some(HANDSHAKE) {
        let Some(_version) = records.number() else { break };
        let Some(content) = records.long() else { break };
        message.extend_from_slice(content);
    }
    message.into()
}

/// Returns the body of a complete message of a type.
fn body(message: &[u8], kind: u8) -> Option<Parts<'_>> {
    let mut parts = Parts(message);
    if parts.byte()? != kind {
        return None;
    }
    let high = parts.byte()?;
    let length = usize::from(high) << 16 | usize::from(parts.number()?);
    parts.bytes(length).map(Parts)
}

/// The lists of extensions that are kept, as parts of the message.
#[derive(Default)]
struct Extensions<'a> {
    groups: &'a [u8],
    formats: &'a [u8],
    versions: &'a [u8],
    schemes: &'a [u8],
}

impl<'a> Extensions<'a> {
    /// Reads one extension; returns `None` if it is malformed.
    fn read(&mut self, kind: u16, content: &'a [u8]) -> Option<()> {
        let mut content = Parts(content);
        match kind {
            10 => self.groups = content.long()?,
            11 => self.formats = content.short()?,
            13 => self.schemes = content.long()?,
            43 => self.versions = content.short()?,
            _ => {}
        }
        Some(())
    }
}

/// The kept data, up to a limit.
struct Keeper {
    data: Vec<u8>,
    limit: usize,
}

impl Keeper {
    fn add(&mut self, bytes: &[u8]) -> u16 {
        let room = self.limit - self.data.len();
        self.data.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.data.len() as u16
    }
}

impl Hello {
    /// Parses a client's first message, with its records or without, and keeps `limit` bytes of its lists.
    pub fn parse(bytes: &[u8], limit: usize) -> Option<Hello> {
        let message = without_records(bytes);
        let mut body = body(&message, CLIENT_HELLO)?;
        let version = body.number()?;
        let random = *body.bytes(32)?.first_chunk()?;
        let session = body.short()?;
        let ciphers = body.long()?;
        let mut kept = Keeper { data: Vec::new(), limit: limit.min(usize::from(u16::MAX)) };
        let mut ends = [kept.add(ciphers); LISTS];
        // The part after the suites may be missing or malformed.
        let _ = keep_extensions(&mut body, &mut kept, &mut ends);
        Some(Hello {
            version,
            ciphers_hash: xxh64(ciphers, 0),
            random,
            session: session.into(),
            data: kept.data.into(),
            ends,
        })
    }

    /// Returns a list as far as it is kept.
    pub fn list(&self, list: List) -> &[u8] {
        let place = list as usize;
        let start = if place == 0 { 0 } else { self.ends[place - 1] };
        let range: Range<usize> = start.into()..self.ends[place].into();
        &self.data[range]
    }

    /// Returns OpenSSL's names of the suites: `ssl_fc_cipherlist_str`.
    pub fn cipher_names(&self, without: bool) -> String {
        let ciphers = self.list(List::Ciphers);
        let mut names = String::new();
        for pair in ciphers.chunks_exact(2).filter(|pair| !(without && is_grease(pair))) {
            let number = u16::from_be_bytes([pair[0], pair[1]]);
            if !names.is_empty() {
                names.push(',');
            }
            match registry::name(number) {
                Some(name) => names.push_str(name),
                None => drop(write!(names, "UNKNOWN({number:04x})")),
            }
        }
        names
    }
}

/// Keeps the extensions and the lists in them. Returns `None` if a part is malformed; the parts before it are kept.
fn keep_extensions(body: &mut Parts<'_>, kept: &mut Keeper, ends: &mut [u16; LISTS]) -> Option<()> {
    let _compressions = body.short()?;
    let mut rest = Parts(body.long()?);
    let mut extensions = Extensions::default();
    while rest.0.len() > 4 && kept.limit >= kept.data.len() + 2 {
        let kind = rest.number()?;
        let end = kept.add(&kind.to_be_bytes());
        ends[List::Extensions as usize..].fill(end);
        extensions.read(kind, rest.long()?)?;
    }
    let lists = [
        (List::Groups, extensions.groups),
        (List::PointFormats, extensions.formats),
        (List::Versions, extensions.versions),
        (List::SignatureSchemes, extensions.schemes),
    ];
    for (list, bytes) in lists {
        let end = kept.add(bytes);
        ends[list as usize..].fill(end);
    }
    Some(())
}

/// Returns whether a pair of bytes is one of the values that clients invent (RFC 8701).
fn is_grease(pair: &[u8]) -> bool {
    pair[0] == pair[1] && pair[0] & 0x0f == 0x0a
}

/// Returns a list of pairs without invented values.
pub fn without_grease(list: &[u8]) -> Vec<u8> {
    let pairs = list.chunks_exact(2);
    let odd = pairs.remainder();
    let mut real = Vec::with_capacity(list.len());
    pairs.filter(|pair| !is_grease(pair)).for_each(|pair| real.extend_from_slice(pair));
    real.extend_from_slice(odd);
    real
}

/// Returns the version in a client's first message, whose first bytes are sufficient.
pub fn version(bytes: &[u8]) -> Option<u16> {
    let mut parts = Parts(bytes);
    if parts.byte()? != HANDSHAKE || parts.bytes(4)?.is_empty() || parts.byte()? != CLIENT_HELLO {
        return None;
    }
    parts.bytes(3)?;
    parts.number()
}

/// Returns whether a client offers TLS 1.3: only such clients list its suites (RFC 8446 B.4).
pub fn offers_tls13(hello: &ClientHello<'_>) -> bool {
    hello.cipher_suites().iter().any(|suite| u16::from(*suite) >> 8 == 0x13)
}

/// Returns whether a client offers TLS 1.2 or an older version: it lists suites that are neither of TLS 1.3 nor signals
/// (RFC 5746, RFC 7507) or reserved values (RFC 8701).
pub fn offers_tls12(hello: &ClientHello<'_>) -> bool {
    let is_none = |suite: u16| matches!(suite, 0x00ff | 0x5600) || suite & 0x0f0f == 0x0a0a;
    hello.cipher_suites().iter().map(|suite| u16::from(*suite)).any(|suite| suite >> 8 != 0x13 && !is_none(suite))
}

/// The beginning of the first message of either side. It is found in the first [`Start::BYTES`] bytes that a side sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The side's random: `ssl_fc_client_random`, `ssl_fc_server_random`.
    pub random: [u8; 32],
    /// The session. In a server's message of TLS 1.2 it is the one that can be resumed (`ssl_fc_session_id`); of TLS 1.3
    /// it has no meaning.
    pub session: Box<[u8]>,
}

impl Start {
    /// The bytes of a record's head, a message's head, a version, a random and the longest session.
    pub const BYTES: usize = RANDOM_END + 1 + 32;

    /// Parses the first bytes that a side sends, beginning with the head of its first record. Returns `None` also for a
    /// HelloRetryRequest.
    pub fn parse(bytes: &[u8]) -> Option<Start> {
        let mut parts = Parts(bytes);
        let is_hello = parts.byte()? == HANDSHAKE && parts.bytes(4).is_some();
        if !is_hello || !matches!(parts.byte()?, CLIENT_HELLO | SERVER_HELLO) {
            return None;
        }
        let _length_and_version = parts.bytes(3 + 2)?;
        let random = *parts.bytes(32)?.first_chunk()?;
        let session = parts.short()?;
        (random != RETRY && session.len() <= 32).then(|| Start { random, session: session.into() })
    }
}

/// The first bytes that a side sends, as far as a [`Start`] needs them. A server's request for another hello and the
/// change of ciphers behind it do not count.
#[derive(Clone, Debug, Default)]
pub struct First {
    kept: Vec<u8>,
    /// The bytes of a record that are still to come and do not count.
    skipped: usize,
}

impl First {
    /// Returns whether there is nothing more to keep.
    pub fn is_full(&self) -> bool {
        self.kept.len() >= Start::BYTES
    }

    /// Adds the next bytes that the side sends.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.is_full() {
            if self.skipped > 0 {
                let count = self.skipped.min(bytes.len());
                (self.skipped, bytes) = (self.skipped - count, &bytes[count..]);
                continue;
            }
            // As far as the random, and no further than the first record, which may be a short one without meaning.
            let aim = match self.record().map(|end| end.min(RANDOM_END)) {
                None => RECORD_HEAD,
                Some(head) if self.kept.len() < head => head,
                Some(_) => Start::BYTES,
            };
            let count = (aim - self.kept.len()).min(bytes.len());
            self.kept.extend_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            if let Some(end) = self.record()
                && self.kept.len() == end.min(RANDOM_END)
                && self.has_no_meaning()
            {
                self.skipped = end - self.kept.len();
                self.kept.clear();
            }
        }
    }

    /// Returns the length of the first record with its head.
    fn record(&self) -> Option<usize> {
        let length = self.kept.get(RECORD_HEAD - 2..RECORD_HEAD)?;
        Some(RECORD_HEAD + usize::from(u16::from_be_bytes([length[0], length[1]])))
    }

    /// Returns whether the kept bytes begin a change of ciphers or a request for another hello.
    fn has_no_meaning(&self) -> bool {
        match self.kept[0] {
            CHANGE_OF_CIPHERS => true,
            HANDSHAKE => self.kept.get(RECORD_HEAD) == Some(&SERVER_HELLO) && self.kept.ends_with(&RETRY),
            _ => false,
        }
    }

    /// Returns the bytes that are kept.
    pub fn bytes(&self) -> &[u8] {
        &self.kept
    }

    /// Returns the beginning of the side's first message, if it is known.
    pub fn start(&self) -> Option<Start> {
        Start::parse(&self.kept)
    }
}

/// Returns whether a client's hello asks for an OCSP response (`status_request`).
pub fn asks_for_status(bytes: &[u8]) -> bool {
    let asks = || {
        let message = without_records(bytes);
        let mut body = body(&message, CLIENT_HELLO)?;
        let _version_and_random = body.bytes(2 + 32)?;
        let (_session, _ciphers, _compressions) = (body.short()?, body.long()?, body.short()?);
        let mut extensions = Parts(body.long()?);
        while let Some(kind) = extensions.number() {
            if kind == STATUS_REQUEST {
                return Some(());
            }
            extensions.long()?;
        }
        None
    };
    asks().is_some()
}

/// Fuzz target: any bytes as a client's and as the start of one.
pub fn fuzz_hello(data: &[u8]) {
    asks_for_status(data);
    let start = Start::parse(data);
    for size in [1, 7, data.len().max(1)] {
        let mut first = First::default();
        data.chunks(size).for_each(|part| first.push(part));
        assert!(first.kept.len() <= Start::BYTES && (start.is_none() || first.start() == start));
    }
    assert!(start.is_none() || start == Start::parse(&data[..data.len().min(Start::BYTES)]));
    let whole = Hello::parse(data, usize::from(u16::MAX));
    for limit in [0, 1, 2, 3, 16, 64, 1024] {
        let cut = Hello::parse(data, limit);
        assert_eq!(cut.is_some(), whole.is_some());
        let (Some(cut), Some(whole)) = (cut, &whole) else { continue };
        assert!(cut.data.len() <= limit && cut.ends.is_sorted());
        assert_eq!(cut.ciphers_hash, whole.ciphers_hash);
        assert!(whole.list(List::Ciphers).starts_with(cut.list(List::Ciphers)));
        assert!(whole.list(List::Extensions).starts_with(cut.list(List::Extensions)));
        assert!(without_grease(cut.list(List::Ciphers)).len() <= cut.list(List::Ciphers).len());
        let names = cut.cipher_names(false);
        let count = if names.is_empty() { 0 } else { names.split(',').count() };
        assert_eq!(count, cut.list(List::Ciphers).len() / 2);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part(length: usize, content: &[u8]) -> Vec<u8> {
        let mut part = content.len().to_be_bytes()[8 - length..].to_vec();
        part.extend_from_slice(content);
        part
    }

    fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &part(2, content)].concat()
    }

    fn message(extensions: &[Vec<u8>]) -> Vec<u8> {
        let body = [
            &[3, 3][..],
            &[9; 32],
            &part(1, &[5; 4]),
            &part(2, &[0x0a, 0x0a, 0x13, 0x01, 0xc0, 0x2b, 0x00, 0x01, 0x0a, 0x1a]),
            &part(1, &[0]),
            &part(2, &extensions.concat()),
        ]
        .concat();
        [&[CLIENT_HELLO][..], &part(3, &body)].concat()
    }

    fn records(message: &[u8], size: usize) -> Vec<u8> {
        message.chunks(size).flat_map(|chunk| [&[HANDSHAKE, 3, 1][..], &part(2, chunk)].concat()).collect()
    }

    fn usual() -> Vec<u8> {
        message(&[
            extension(0x1a1a, &[]),
            extension(10, &part(2, &[0x2a, 0x2a, 0, 29, 0, 23])),
            extension(11, &part(1, &[0, 1])),
            extension(13, &part(2, &[4, 3, 8, 4])),
            extension(43, &part(1, &[3, 4, 3, 3])),
            extension(23, &[]),
        ])
    }

    #[test]
    fn lists_of_a_hello() {
        let hello = Hello::parse(&usual(), 1000).unwrap();
        assert_eq!((hello.version, hello.random, &*hello.session), (0x303, [9; 32], &[5; 4][..]));
        assert_eq!(hello.list(List::Ciphers), [0x0a, 0x0a, 0x13, 0x01, 0xc0, 0x2b, 0x00, 0x01, 0x0a, 0x1a]);
        assert_eq!(hello.list(List::Extensions), [0x1a, 0x1a, 0, 10, 0, 11, 0, 13, 0, 43]);
        assert_eq!(hello.list(List::Groups), [0x2a, 0x2a, 0, 29, 0, 23]);
        assert_eq!(hello.list(List::PointFormats), [0, 1]);
        assert_eq!(hello.list(List::Versions), [3, 4, 3, 3]);
        assert_eq!(hello.list(List::SignatureSchemes), [4, 3, 8, 4]);
        assert_eq!(without_grease(hello.list(List::Groups)), [0, 29, 0, 23]);
        assert_eq!(without_grease(&[0x0a, 0x0a, 0x0a, 0x1a, 7]), [0x0a, 0x1a, 7]);
        let names = "TLS_AES_128_GCM_SHA256,ECDHE-ECDSA-AES128-GCM-SHA256,NULL-MD5,UNKNOWN(0a1a)";
        assert_eq!(hello.cipher_names(true), names);
        assert_eq!(hello.cipher_names(false), format!("UNKNOWN(0a0a),{names}"));
        assert_eq!(hello.ciphers_hash, xxh64(hello.list(List::Ciphers), 0));
        for size in [1, 7, 50, 1000] {
            assert_eq!(Hello::parse(&records(&usual(), size), 1000).as_ref(), Some(&hello));
        }
    }

    #[test]
    fn the_limit_cuts_lists() {
        let whole = Hello::parse(&usual(), 1000).unwrap();
        let cut = Hello::parse(&usual(), 15).unwrap();
        assert_eq!(cut.list(List::Ciphers), whole.list(List::Ciphers));
        assert_eq!(cut.list(List::Extensions), [0x1a, 0x1a, 0, 10]);
        assert_eq!(cut.list(List::Groups), [0x2a]);
        assert!(cut.list(List::Versions).is_empty());
        let none = Hello::parse(&usual(), 0).unwrap();
        assert_eq!((none.ciphers_hash, none.list(List::Ciphers)), (whole.ciphers_hash, &[][..]));
    }

    #[test]
    fn malformed_hellos() {
        // A list that is longer than its extension: what precedes it stays.
        let hello = Hello::parse(&message(&[extension(43, &[9, 3, 4]), extension(10, &[0, 0])]), 100).unwrap();
        assert_eq!((hello.list(List::Extensions), hello.list(List::Versions)), (&[0, 43][..], &[][..]));
        let whole = usual();
        for length in 0..whole.len() {
            assert_eq!(Hello::parse(&whole[..length], 100), None, "a part of a message is none");
        }
        assert_eq!(Hello::parse(b"GET / HTTP/1.1\r\n\r\n", 100), None);
    }

    #[test]
    fn starts_of_both_sides() {
        let start = Start::parse(&records(&usual(), 1000)).unwrap();
        assert_eq!((start.random, &*start.session), ([9; 32], &[5; 4][..]));
        assert_eq!(version(&records(&usual(), 1000)[..11]), Some(0x303));
        assert_eq!(version(&records(&usual(), 1000)[..10]), None);
        let server = |random: &[u8; 32]| {
            let body = [&[3, 3][..], random, &part(1, &[5; 32]), &[0x13, 0x01, 0]].concat();
            records(&[&[SERVER_HELLO][..], &part(3, &body)].concat(), 1000)
        };
        let start = Start::parse(&server(&[7; 32])[..Start::BYTES]).unwrap();
        assert_eq!((start.random, &*start.session), ([7; 32], &[5; 32][..]));
        assert_eq!(Start::parse(&server(&[7; 32])[..Start::BYTES - 1]), None);
        assert_eq!(Start::parse(&server(&RETRY)), None);
        assert_eq!(Start::parse(&usual()), None);
        // A request for another hello and a change of ciphers precede the server's message.
        let sent = [&server(&RETRY)[..], &[CHANGE_OF_CIPHERS, 3, 3, 0, 1, 1], &server(&[7; 32]), &[23; 9]].concat();
        for size in 1..sent.len() {
            let mut first = First::default();
            sent.chunks(size).for_each(|part| first.push(part));
            assert_eq!(first.start().map(|start| start.random), Some([7; 32]), "{size}");
        }
        let mut first = First::default();
        first.push(&server(&RETRY));
        assert_eq!((first.start(), first.is_full()), (None, false));
    }

    proptest! {
        #[test]
        fn fuzz_hello_holds(
            place in any::<prop::sample::Index>(),
            byte: u8,
            size in 1usize..200,
            noise in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut changed = usual();
            let place = place.index(changed.len());
            changed[place] = byte;
            fuzz_hello(&changed);
            fuzz_hello(&records(&changed, size));
            fuzz_hello(&noise);
            fuzz_hello(&[&[CLIENT_HELLO][..], &part(3, &noise)].concat());
        }
    }
}
