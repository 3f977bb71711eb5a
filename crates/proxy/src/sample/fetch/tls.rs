//! A TLS hello in the first bytes of a connection, parsed without consuming it (RFC 8446 4.1.2, RFC 6066 3, RFC 7301).
//!
//! Routing by server name needs no key: the client's hello is in clear text. Every length in it is checked against its
//! container. Incomplete data is distinguished from invalid data, because the former waits for more and the latter
//! decides.
//!
//! Cost: one pass over the hello, nothing allocated.

/// The result of parsing a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look<T> {
    /// The requested value.
    Found(T),
    /// There is a hello without the value, or no hello at all.
    None,
    /// The data is incomplete.
    Short,
}

impl<T> Look<T> {
    fn and_then<U>(self, f: impl FnOnce(T) -> Look<U>) -> Look<U> {
        match self {
            Look::Found(value) => f(value),
            Look::None => Look::None,
            Look::Short => Look::Short,
        }
    }

    fn of(value: Option<T>) -> Look<T> {
        value.map_or(Look::None, Look::Found)
    }
}

const HANDSHAKE: u8 = 0x16;
const CLIENT_HELLO: u8 = 1;

/// The maximum length of a record (RFC 8446 5.2, with the allowance of older versions).
const RECORD_MAX: usize = (1 << 14) + 2048;

/// Consumes parts from the front; the data must be at least as long as its length fields indicate.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// Returns a big-endian number of `width` bytes.
    fn number(&mut self, width: usize) -> Option<usize> {
        Some(self.take(width)?.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    /// Returns a part whose length precedes it, in `width` bytes.
    fn part(&mut self, width: usize) -> Option<Reader<'a>> {
        let length = self.number(width)?;
        self.take(length).map(Reader)
    }
}

/// Returns the type of the handshake message in the first record, once the whole message has arrived.
pub(super) fn hello_type(data: &[u8]) -> Look<u8> {
    match data.first() {
        None => return Look::Short,
        Some(0x14..=0x17 | 0xff) => {}
        Some(_) => return Look::None,
    }
    let Some(head) = data.first_chunk::<9>() else { return Look::Short };
    let record = usize::from(head[3]) << 8 | usize::from(head[4]);
    if head[1] < 3 || record < 4 {
        return Look::None;
    }
    let length = usize::from(head[6]) << 16 | usize::from(head[7]) << 8 | usize::from(head[8]);
    if data.len() < 9 + length { Look::Short } else { Look::Found(head[5]) }
}

/// Returns the version in the hello, major number times 65536 plus minor, once the whole first record has arrived.
pub(super) fn version(data: &[u8]) -> Look<i64> {
    match data.first() {
        None => return Look::Short,
        Some(0x14..=0x17 | 0xff) => {}
        Some(_) => return Look::None,
    }
    let Some(head) = data.first_chunk::<11>() else { return Look::Short };
    let record = usize::from(head[3]) << 8 | usize::from(head[4]);
    if head[1] < 3 || !(6..=RECORD_MAX).contains(&record) {
        return Look::None;
    }
    if data.len() - 5 < record { Look::Short } else { Look::Found(i64::from(head[9]) << 16 | i64::from(head[10])) }
}

/// The lists of a client's hello.
struct Lists<'a> {
    ciphers: Reader<'a>,
    extensions: Option<Reader<'a>>,
}

/// Returns the lists of a client's hello.
fn lists(data: &[u8]) -> Look<Lists<'_>> {
    match data {
        [] => return Look::Short,
        [kind, ..] if *kind != HANDSHAKE => return Look::None,
        [_, version, _, ..] if *version < 3 => return Look::None,
        [_, _, _, _, _, kind, ..] if *kind != CLIENT_HELLO => return Look::None,
        _ => {}
    }
    let Some(head) = data.first_chunk::<9>() else { return Look::Short };
    let length = usize::from(head[6]) << 16 | usize::from(head[7]) << 8 | usize::from(head[8]);
    let Some(body) = data[9..].get(..length) else {
        return Look::Short;
    };
    let parse = || {
        let mut hello = Reader(body);
        let version = hello.take(2)?;
        if version[0] < 3 || version[1] < 1 {
            return None;
        }
        hello.take(32)?;
        if hello.part(1)?.0.len() > 32 {
            return None;
        }
        let ciphers = hello.part(2)?;
        hello.part(1)?;
        Some(Lists { ciphers, extensions: hello.part(2) })
    };
    Look::of(parse())
}

/// Returns the extensions of a client's hello.
fn extensions(data: &[u8]) -> Look<Reader<'_>> {
    lists(data).and_then(|lists| Look::of(lists.extensions))
}

/// Returns an extension's contents by its number.
fn extension(data: &[u8], wanted: usize) -> Look<Reader<'_>> {
    extensions(data).and_then(|mut list| {
        loop {
            let Some(kind) = list.number(2) else { return Look::None };
            let Some(part) = list.part(2) else { return Look::None };
            if kind == wanted {
                return Look::Found(part);
            }
        }
    })
}

/// Returns the server name (extension 0).
pub(super) fn server_name(data: &[u8]) -> Look<&[u8]> {
    extension(data, 0).and_then(|mut part| {
        let mut name = || {
            let mut names = part.part(2)?;
            let kind = names.number(1)?;
            let name = names.part(2)?;
            (kind == 0).then_some(name.0)
        };
        Look::of(name())
    })
}

/// Returns the first protocol name (extension 16).
pub(super) fn first_protocol(data: &[u8]) -> Look<&[u8]> {
    extension(data, 16).and_then(|mut part| {
        let mut first = || part.part(2)?.part(1).map(|name| name.0);
        Look::of(first())
    })
}

/// Returns whether there is an extension of supported groups (10).
pub(super) fn has_groups(data: &[u8]) -> Look<bool> {
    extension(data, 10).and_then(|_| Look::Found(true))
}

/// Returns the cipher suites, two bytes each.
pub(super) fn ciphers(data: &[u8]) -> Look<&[u8]> {
    lists(data).and_then(|lists| Look::Found(lists.ciphers.0))
}

/// Returns the list of two-byte numbers that an extension consists of: the supported groups (10), or the signature
/// schemes (13).
fn numbers(data: &[u8], wanted: usize) -> Look<&[u8]> {
    extension(data, wanted).and_then(|mut part| Look::of(part.part(2).map(|list| list.0)))
}

/// Returns the supported groups, two bytes each.
pub(super) fn groups(data: &[u8]) -> Look<&[u8]> {
    numbers(data, 10)
}

/// Returns the signature schemes, two bytes each.
pub(super) fn schemes(data: &[u8]) -> Look<&[u8]> {
    numbers(data, 13)
}

/// Returns the groups of the key shares (51), two bytes each.
pub(super) fn share_groups(data: &[u8]) -> Look<Vec<u8>> {
    extension(data, 51).and_then(|mut part| {
        let mut groups = || {
            let mut shares = part.part(2)?;
            let mut groups = Vec::new();
            while !shares.0.is_empty() {
                groups.extend_from_slice(shares.take(2)?);
                shares.part(2)?;
            }
            Some(groups)
        };
        Look::of(groups())
    })
}

/// Returns the session ticket extension (35): 0 none, 1 empty, 2 with a ticket.
pub(super) fn session_ticket(data: &[u8]) -> Look<i64> {
    match extension(data, 35) {
        Look::Found(part) => Look::Found(if part.0.is_empty() { 1 } else { 2 }),
        Look::None => extensions(data).and_then(|_| Look::Found(0)),
        Look::Short => Look::Short,
    }
}

/// The fuzz target: parses `data` in every way. The parsers must not panic, and their results must be part of `data`.
pub fn fuzz_hello(data: &[u8]) {
    for end in [data.len(), data.len() / 2] {
        let data = &data[..end];
        if let Look::Found(name) = server_name(data) {
            assert!(data.windows(name.len().max(1)).any(|window| window == name) || name.is_empty());
        }
        if let Look::Found(name) = first_protocol(data) {
            assert!(name.len() < data.len());
        }
        for list in [ciphers(data), groups(data), schemes(data)] {
            assert!(!matches!(list, Look::Found(list) if list.len() >= data.len()));
        }
        if let Look::Found(groups) = share_groups(data) {
            assert!(groups.len().is_multiple_of(2) && groups.len() < data.len());
        }
        let _ = (hello_type(data), version(data), has_groups(data), session_ticket(data));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a client's hello with these extensions.
    pub(crate) fn hello(extensions: &[(u16, &[u8])]) -> Vec<u8> {
        let mut list = Vec::new();
        for (kind, bytes) in extensions {
            list.extend_from_slice(&kind.to_be_bytes());
            list.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
            list.extend_from_slice(bytes);
        }
        let mut body = vec![3, 3];
        body.extend_from_slice(&[7; 32]);
        body.extend_from_slice(&[0, 0, 2, 0x13, 0x01, 1, 0]);
        body.extend_from_slice(&(list.len() as u16).to_be_bytes());
        body.extend_from_slice(&list);
        let mut record = vec![CLIENT_HELLO, 0];
        record.extend_from_slice(&(body.len() as u16).to_be_bytes());
        record.extend_from_slice(&body);
        let mut bytes = vec![HANDSHAKE, 3, 1];
        bytes.extend_from_slice(&(record.len() as u16).to_be_bytes());
        bytes.extend_from_slice(&record);
        bytes
    }

    pub(crate) const NAME: &[u8] = b"\0\x0e\0\0\x0bexample.com";
    const ALPN: &[u8] = b"\0\x0c\x02h2\x08http/1.1";

    #[test]
    fn a_hello_is_read_once_it_is_whole() {
        let whole = hello(&[(0, NAME), (10, &[0, 2, 0, 29]), (16, ALPN), (35, b"")]);
        assert_eq!(server_name(&whole), Look::Found(&b"example.com"[..]));
        assert_eq!(first_protocol(&whole), Look::Found(&b"h2"[..]));
        assert_eq!((hello_type(&whole), version(&whole)), (Look::Found(1), Look::Found(0x30003)));
        assert_eq!((has_groups(&whole), session_ticket(&whole)), (Look::Found(true), Look::Found(1)));
        for end in 0..whole.len() {
            let part = &whole[..end];
            assert_eq!(server_name(part), Look::Short, "of {end} bytes");
            assert_eq!((hello_type(part), version(part)), (Look::Short, Look::Short), "of {end} bytes");
        }
        let bare = hello(&[(35, b"ticket")]);
        assert_eq!((server_name(&bare), has_groups(&bare)), (Look::None, Look::None));
        assert_eq!(session_ticket(&bare), Look::Found(2));
        assert_eq!(session_ticket(&hello(&[])), Look::Found(0));
    }

    #[test]
    fn lists_of_a_hello_have_no_lengths() {
        let shares = b"\0\x0b\0\x1d\0\x01x\0\x17\0\x02yz";
        let whole = hello(&[(13, b"\0\x04\x04\x03\x08\x04"), (10, b"\0\x04\0\x1d\0\x17"), (51, shares)]);
        assert_eq!(ciphers(&whole), Look::Found(&b"\x13\x01"[..]));
        assert_eq!(groups(&whole), Look::Found(&b"\0\x1d\0\x17"[..]));
        assert_eq!(schemes(&whole), Look::Found(&b"\x04\x03\x08\x04"[..]));
        assert_eq!(share_groups(&whole), Look::Found(b"\0\x1d\0\x17".to_vec()));
        let broken = hello(&[(51, b"\0\x03\0\x1d\0")]);
        assert_eq!((share_groups(&broken), groups(&broken)), (Look::None, Look::None));
        assert_eq!(ciphers(&whole[..whole.len() - 1]), Look::Short);
    }

    #[test]
    fn what_is_no_hello_is_known_at_once() {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"\x80\x2e\x01\x03\x01", b"\x16\x02\x00\x00\x10"] {
            assert_eq!(server_name(bytes), Look::None, "{bytes:?}");
        }
        assert_eq!(hello_type(b"SSH-2.0"), Look::None);
        assert_eq!(version(b"SSH-2.0"), Look::None);
    }

    #[test]
    fn lengths_are_not_believed() {
        let mut random = 1u64;
        let whole = hello(&[(0, NAME), (16, ALPN)]);
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut bytes = whole.clone();
            let at = (random >> 33) as usize % bytes.len();
            bytes[at] = (random >> 24) as u8;
            fuzz_hello(&bytes);
        }
        fuzz_hello(b"");
    }
}
