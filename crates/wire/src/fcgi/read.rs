//! Records of applications.

use super::{HEADER, Kind};

/// The header of a record. As in HAProxy, the version is not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The type.
    pub kind: Kind,
    /// The number of the request; 0: the record is about the connection.
    pub request: u16,
    /// The length of the contents.
    pub content: usize,
    /// The length of the padding behind them.
    pub padding: usize,
}

/// Returns the header at the start of the input, if it is complete.
pub fn header(input: &[u8]) -> Option<Header> {
    let [_, kind, r1, r0, l1, l0, padding, _] = *input.first_chunk::<HEADER>()?;
    Some(Header {
        kind: Kind::of(kind),
        request: u16::from_be_bytes([r1, r0]),
        content: usize::from(u16::from_be_bytes([l1, l0])),
        padding: usize::from(padding),
    })
}

/// The way in which a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndRequest {
    /// The application is through with it.
    Complete,
    /// The application has one request at a time on a connection.
    CannotMultiplex,
    /// The application takes no more requests.
    Overloaded,
    /// The application is no responder.
    UnknownRole,
    /// Any other status.
    Other(u8),
}

/// Returns the status in the contents of a record of the end of a request; `None`: they are too short.
pub fn end_request(content: &[u8]) -> Option<EndRequest> {
    let content = content.first_chunk::<8>()?;
    Some(match content[4] {
        0 => EndRequest::Complete,
        1 => EndRequest::CannotMultiplex,
        2 => EndRequest::Overloaded,
        3 => EndRequest::UnknownRole,
        other => EndRequest::Other(other),
    })
}

/// The values that an application has told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Values {
    /// `FCGI_MAX_REQS`: the requests that a connection has at a time.
    pub max_requests: Option<u32>,
    /// `FCGI_MPXS_CONNS`: whether a connection has several requests at a time.
    pub multiplexes: Option<bool>,
}

/// Returns the values in the contents of the answer to a question for them; `None`: they are malformed.
pub fn values(mut content: &[u8]) -> Option<Values> {
    let mut values = Values::default();
    while !content.is_empty() {
        let name = length(&mut content)?;
        let value = length(&mut content)?;
        let (name, rest) = content.split_at_checked(name)?;
        let (value, rest) = rest.split_at_checked(value)?;
        content = rest;
        if name.eq_ignore_ascii_case(b"FCGI_MPXS_CONNS") {
            values.multiplexes = Some(value == b"1");
        } else if name.eq_ignore_ascii_case(b"FCGI_MAX_REQS") {
            values.max_requests = Some(number(value));
        }
    }
    Some(values)
}

fn length(content: &mut &[u8]) -> Option<usize> {
    let (first, rest) = content.split_first()?;
    if first & 0x80 == 0 {
        *content = rest;
        return Some(usize::from(*first));
    }
    let (four, rest) = content.split_first_chunk::<4>()?;
    *content = rest;
    Some((u32::from_be_bytes(*four) & 0x7fff_ffff) as usize)
}

/// Returns the number that a text begins with.
fn number(text: &[u8]) -> u32 {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number: u32, digit| number.saturating_mul(10).saturating_add(u32::from(digit - b'0')))
}

/// Fuzz target: any bytes as records. Panics where an invariant breaks.
pub fn fuzz_fcgi(bytes: &[u8]) {
    let mut rest = bytes;
    while let Some(header) = header(rest) {
        let end = HEADER + header.content;
        let content = &rest[HEADER.min(rest.len())..end.min(rest.len())];
        assert_eq!(end_request(content).is_some(), content.len() >= 8);
        if let Some(values) = values(content) {
            // What was read is written and read as the same.
            let mut again = Vec::new();
            if let Some(max) = values.max_requests {
                super::write_param(&mut again, b"fcgi_max_reqs", max.to_string().as_bytes());
            }
            if let Some(multiplexes) = values.multiplexes {
                super::write_param(&mut again, b"fcgi_mpxs_conns", if multiplexes { b"1" } else { b"0" });
            }
            assert_eq!(super::values(&again), Some(values));
        }
        let Some(next) = rest.get(end + header.padding..) else { break };
        rest = next;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn headers() {
        assert_eq!(header(b"\x01\x06\x01\x02\x00\x05\x03"), None);
        let read = header(b"\x01\x06\x01\x02\x01\x05\x03\x00rest");
        assert_eq!(read, Some(Header { kind: Kind::Stdout, request: 0x102, content: 0x105, padding: 3 }));
        for code in 0..=255 {
            assert_eq!(Kind::of(code).code(), code);
        }
    }

    #[test]
    fn ends() {
        assert_eq!(end_request(b"\0\0\0\x07\0\0\0"), None);
        let status = |status| end_request(&[0, 0, 0, 7, status, 0, 0, 0]);
        let all = [0, 1, 2, 3, 9].map(status);
        use EndRequest::*;
        assert_eq!(all, [Complete, CannotMultiplex, Overloaded, UnknownRole, Other(9)].map(Some));
    }

    #[test]
    fn values_of_applications() {
        let check = |content: &[u8], max_requests, multiplexes| {
            assert_eq!(values(content), Some(Values { max_requests, multiplexes }));
        };
        check(b"", None, None);
        check(b"\x0d\x02FCGI_MAX_REQS50\x0f\x01FCGI_MPXS_CONNS1", Some(50), Some(true));
        check(b"\x0f\x01fcgi_mpxs_conns0\x01\x01ab", None, Some(false));
        check(b"\x80\x00\x00\x0d\x80\x00\x00\x02FCGI_MAX_REQS5x", Some(5), None);
        check(b"\x0d\x00FCGI_MAX_REQS", Some(0), None);
        for malformed in [&b"\x0d"[..], b"\x0d\x02FCGI_MAX_REQS5", b"\x80\x00", b"\x01\x7fa"] {
            assert_eq!(values(malformed), None);
        }
    }

    proptest! {
        #[test]
        fn fuzz_fcgi_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            fuzz_fcgi(&bytes);
        }

        #[test]
        fn fuzz_fcgi_on_records(
            records in prop::collection::vec((0u8..13, 0u8..3, prop::collection::vec(0u8..20, 0..40), 0u8..9), 0..5),
        ) {
            let mut bytes = Vec::new();
            for (kind, request, content, padding) in records {
                bytes.extend([1, kind, 0, request, 0, content.len() as u8, padding, 0]);
                bytes.extend(&content);
                bytes.resize(bytes.len() + usize::from(padding), 0);
            }
            fuzz_fcgi(&bytes);
        }
    }
}
