//! Requests as caches see them: the digest of a URI, the fields by which responses vary, and whether a cache is used.

use std::sync::{Arc, OnceLock};

use sha1::{Digest, Sha1};
use sluicegate_wire::http::{Message, Method, Version};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Cache, Entry, Writer};
use crate::random::random;
use crate::sample::header_values;

/// The digest of a URI: of scheme, host and target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CacheKey([u8; 20]);

impl CacheKey {
    /// Returns the key of a request; `None` if it names no host.
    fn of(request: &Message) -> Option<CacheKey> {
        let target = request.target();
        let mut sha1 = Sha1::new();
        if !matches!(target.first()?, b'/' | b'*') {
            // The whole URI.
            sha1.update(target);
            return Some(CacheKey(sha1.finalize().into()));
        }
        // As HTTP/2 names its resources, so that both protocols share them.
        sha1.update(b"https://");
        sha1.update(header_values(request, b"host", false).next()?);
        sha1.update(target);
        Some(CacheKey(sha1.finalize().into()))
    }

    /// Returns the digest.
    pub(super) fn digest(&self) -> &[u8; 20] {
        &self.0
    }

    /// Returns the key with this digest.
    pub(super) fn from_digest(digest: [u8; 20]) -> CacheKey {
        CacheKey(digest)
    }

    /// Returns its number in listings.
    pub(crate) fn number(&self) -> u32 {
        u32::from_le_bytes([self.0[0], self.0[1], self.0[2], self.0[3]])
    }
}

/// Fields by which responses vary, as bits.
pub(crate) const ACCEPT_ENCODING: u8 = 1;
pub(crate) const REFERER: u8 = 2;
pub(crate) const ORIGIN: u8 = 4;

/// A request's values of those fields: a set of content codings, and hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VaryKey {
    pub(crate) codings: u32,
    pub(crate) referer: u64,
    pub(crate) origin: u64,
}

/// The bits of content codings.
const IDENTITY: u32 = 1 << 8;
const STAR: u32 = 1 << 9;
const OTHER: u32 = 1 << 10;

/// The number of codings in Accept-Encoding from which on a request is not served from a cache.
const CODINGS_MAX: usize = 16;

/// Returns the bit of a coding in lower case, and whether its weight is 0; `None` if it is unknown or malformed.
pub(crate) fn coding(value: &[u8]) -> Option<(u32, bool)> {
    const KNOWN: [(&[u8], u32); 13] = [
        (b"aes128gcm", 1 << 4),
        (b"br", 1 << 2),
        (b"compress", 1 << 3),
        (b"deflate", 1 << 1),
        (b"exi", 1 << 5),
        (b"gzip", 1),
        (b"identity", IDENTITY),
        (b"pack200-gzip", 1 << 6),
        (b"x-gzip", 1),
        (b"x-compress", 1 << 3),
        (b"zstd", 1 << 7),
        (b"*", STAR),
        (b"", 0),
    ];
    // A word that only begins like a known one is another one.
    let (name, bit) = KNOWN.iter().find(|(name, _)| value.starts_with(name))?;
    if *bit == 0 {
        // HAProxy knows no coding with another first letter; one with a known first letter counts as none.
        return value.first().filter(|first| b"abcdegipxz".contains(first)).map(|_| (0, false));
    }
    let rest = value[name.len()..].trim_ascii_start();
    match rest.strip_prefix(b";") {
        Some(weight) => Some((*bit, weight.trim_ascii_start() == b"q=0")),
        None if rest.is_empty() => Some((*bit, false)),
        None => None,
    }
}

/// Returns the set of codings that a request accepts; `None` if it names too many.
fn accepted(request: &Message) -> Option<u32> {
    let (mut count, mut set, mut kept) = (0, IDENTITY, u32::MAX);
    for value in header_values(request, b"accept-encoding", false) {
        count += 1;
        if count == CODINGS_MAX {
            return None;
        }
        if value.is_empty() {
            continue;
        }
        match coding(&value.to_ascii_lowercase()) {
            Some((bit, true)) => kept &= !bit,
            Some((bit, false)) => set |= bit,
            None => set |= OTHER,
        }
    }
    if count == 0 {
        return Some(u32::MAX);
    }
    if set & STAR != 0 {
        set = u32::MAX;
    }
    Some(set & kept)
}

fn hashed(request: &Message, name: &[u8]) -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    let seed = *SEED.get_or_init(random);
    request.first(name).map_or(0, |value| xxh3_64_with_seed(value, seed))
}

impl VaryKey {
    /// Returns a request's values of the fields of a signature; `None` if the request may not be served from a cache.
    pub(crate) fn of(request: &Message, signature: u8) -> Option<VaryKey> {
        let has = |bit: u8| signature & bit != 0;
        Some(VaryKey {
            codings: if has(ACCEPT_ENCODING) { accepted(request)? } else { 0 },
            referer: if has(REFERER) { hashed(request, b"referer") } else { 0 },
            origin: if has(ORIGIN) { hashed(request, b"origin") } else { 0 },
        })
    }

    /// Returns the values of these fields alone.
    pub(crate) fn reduced(self, signature: u8) -> VaryKey {
        let keep = |bit: u8, value: u64| if signature & bit != 0 { value } else { 0 };
        VaryKey {
            codings: keep(ACCEPT_ENCODING, u64::from(self.codings)) as u32,
            referer: keep(REFERER, self.referer),
            origin: keep(ORIGIN, self.origin),
        }
    }

    /// Returns whether a response stored under this key may be used for a request: all its codings are accepted, and
    /// the other fields are equal.
    pub(crate) fn allows(&self, request: &VaryKey) -> bool {
        self.codings & OTHER == 0
            && self.codings & request.codings == self.codings
            && (self.referer, self.origin) == (request.referer, request.origin)
    }

    /// Replaces the codings by those of a response, given in lower case; `None` if one is unknown.
    pub(crate) fn with_codings<'a>(self, mut of_response: impl Iterator<Item = &'a [u8]>) -> Option<VaryKey> {
        let codings = of_response.try_fold(0, |set, value| coding(value).map(|(bit, _)| set | bit))?;
        Some(VaryKey { codings: if codings == 0 { IDENTITY } else { codings }, ..self })
    }

    /// Appends it as listings print it.
    pub(crate) fn append(&self, out: &mut String) {
        use std::fmt::Write as _;
        let bytes = [&self.codings.to_le_bytes()[..], &self.referer.to_le_bytes(), &self.origin.to_le_bytes()];
        // Writing to a string does not fail.
        bytes.concat().iter().for_each(|byte| _ = write!(out, "{byte:02x}"));
    }
}

/// A response from a cache.
#[derive(Debug)]
pub(crate) struct Hit {
    pub(crate) cache: Arc<Cache>,
    pub(crate) entry: Arc<Entry>,
    /// Whether the client has it already.
    pub(crate) not_modified: bool,
}

/// What caches know of a stream.
#[derive(Debug, Default)]
pub struct StreamCache {
    /// The request's key, once `cache-use` has run.
    pub(crate) key: Option<CacheKey>,
    /// The fields by which its response may vary.
    pub(crate) vary: Option<VaryKey>,
    /// Whether the request permits to store its response.
    pub(crate) storable: bool,
    /// Whether it permits to use a stored response.
    ignore: bool,
    /// The response.
    pub(crate) hit: Option<Hit>,
    /// The look-ups that are not counted yet, and the responses that they found.
    pub(crate) counts: (u64, u64),
    /// The response that is to be stored, with the name of its cache.
    pub(crate) storing: Option<Writer>,
}

impl StreamCache {
    /// `cache-use`: looks for a response. Returns the key if this process has none, but a store may have one.
    pub(crate) fn look_up(&mut self, cache: &Arc<Cache>, request: &Message) -> Option<CacheKey> {
        let method = Method::of(request.sent_method());
        if request.version() < Version::Http11 || !matches!(method, Method::Get | Method::Head) {
            self.ignore = true;
        }
        if self.key.is_none() {
            self.storable = true;
        }
        self.check(request);
        let key = CacheKey::of(request)?;
        self.key = Some(key);
        if self.ignore {
            return None;
        }
        self.counts.0 += 1;
        match cache.find(&key, |signature| {
            self.vary = VaryKey::of(request, signature);
            self.vary
        }) {
            super::Found::Entry(entry) => self.found(cache, entry, request),
            super::Found::Unusable => {}
            super::Found::Nothing => {
                if cache.config().vary {
                    self.vary = VaryKey::of(request, ACCEPT_ENCODING | REFERER | ORIGIN);
                }
                return Some(key);
            }
        }
        None
    }

    /// A cache has a response.
    pub(crate) fn found(&mut self, cache: &Arc<Cache>, entry: Arc<Entry>, request: &Message) {
        let not_modified = super::not_modified(request, &entry);
        self.hit = Some(Hit { cache: cache.clone(), entry, not_modified });
        self.counts.1 += 1;
    }

    /// Notes what the request says about caches.
    fn check(&mut self, request: &Message) {
        if request.first(b"authorization").is_some() {
            (self.storable, self.ignore) = (false, true);
        }
        let begins = |value: &[u8], name: &[u8]| value.get(..name.len()).is_some_and(|v| v.eq_ignore_ascii_case(name));
        let mut controlled = false;
        for value in header_values(request, b"cache-control", false) {
            controlled = true;
            if [&b"max-age"[..], b"no-cache", b"max-stale", b"min-fresh"].iter().any(|name| begins(value, name)) {
                self.ignore = true;
            } else if begins(value, b"no-store") {
                self.storable = false;
            }
        }
        let pragma = request.first(b"pragma").is_some_and(|value| value.eq_ignore_ascii_case(b"no-cache"));
        self.ignore |= pragma && !controlled;
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_wire::http::{Limits, parse_request};

    use super::*;

    fn request(fields: &str) -> Message {
        let mut message = Message::new();
        let head = format!("GET /a HTTP/1.1\r\n{fields}\r\n");
        parse_request(head.as_bytes(), &Limits::default(), &mut message).expect("good").expect("whole");
        message
    }

    #[test]
    fn the_key_is_of_host_and_target() {
        let key = |fields: &str| CacheKey::of(&request(fields));
        assert_eq!(key("Host: a\r\n"), key("Host: a\r\nX: y\r\n"));
        assert_ne!(key("Host: a\r\n"), key("Host: b\r\n"));
        assert_eq!(key(""), None);
    }

    #[test]
    fn responses_vary_by_codings() {
        let accepts = |fields: &str, codings: &[&str]| {
            let request = VaryKey::of(&request(fields), ACCEPT_ENCODING).expect("few codings");
            let response = VaryKey::default().with_codings(codings.iter().map(|coding| coding.as_bytes()));
            response.is_some_and(|response| response.allows(&request))
        };
        for (fields, codings, expected) in [
            ("", &["gzip"][..], true),
            ("", &["unheard-of"], false),
            ("Accept-Encoding: gzip\r\n", &["gzip"], true),
            ("Accept-Encoding: gzip\r\n", &[], true),
            ("Accept-Encoding: gzip, identity;q=0\r\n", &[], false),
            ("Accept-Encoding: gzip;q=0\r\n", &["gzip"], false),
            ("Accept-Encoding: br, *\r\n", &["zstd"], true),
            ("Accept-Encoding: br, *, zstd; q=0\r\n", &["zstd"], false),
            ("Accept-Encoding: x-gzip\r\n", &["gzip"], true),
            ("Accept-Encoding: br\r\n", &["gzip", "br"], false),
            ("Accept-Encoding:\r\n", &["br"], false),
        ] {
            assert_eq!(accepts(fields, codings), expected, "{fields:?} {codings:?}");
        }
        let many = format!("Accept-Encoding: {}\r\n", ["gzip"; 16].join(","));
        assert_eq!(VaryKey::of(&request(&many), ACCEPT_ENCODING), None);
    }

    #[test]
    fn responses_vary_by_other_fields() {
        let key = |fields: &str| VaryKey::of(&request(fields), REFERER | ORIGIN).expect("a key");
        assert!(key("Referer: a\r\n").allows(&key("Referer: a\r\nAccept-Encoding: gzip\r\n")));
        assert!(!key("Referer: a\r\n").allows(&key("Origin: a\r\n")));
        assert!(key("Referer: a\r\nOrigin: o\r\n").reduced(ORIGIN).allows(&key("Origin: o\r\n")));
    }
}
