//! Records of the proxy.

use super::{CONTENT_MAX, Kind, VERSION};

/// The role of an application that answers requests.
const RESPONDER: u16 = 1;

/// The flag of a connection that stays open after the response.
const KEEP_CONN: u8 = 1;

fn record(out: &mut Vec<u8>, kind: Kind, request: u16, content: &[u8]) {
    debug_assert!(content.len() <= CONTENT_MAX);
    out.extend_from_slice(&[VERSION, kind.code()]);
    out.extend_from_slice(&request.to_be_bytes());
    out.extend_from_slice(&(content.len() as u16).to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(content);
}

/// Begins a request; the application keeps the connection open after it, or closes it.
pub fn write_begin(out: &mut Vec<u8>, request: u16, keep: bool) {
    let role = RESPONDER.to_be_bytes();
    record(out, Kind::BeginRequest, request, &[role[0], role[1], if keep { KEEP_CONN } else { 0 }, 0, 0, 0, 0, 0]);
}

/// Aborts a request.
pub fn write_abort(out: &mut Vec<u8>, request: u16) {
    record(out, Kind::AbortRequest, request, &[]);
}

/// Asks for the values that the proxy uses: how many requests a connection may have at a time, and whether more than one.
pub fn write_get_values(out: &mut Vec<u8>) {
    let mut content = Vec::new();
    write_param(&mut content, b"FCGI_MAX_REQS", b"");
    write_param(&mut content, b"FCGI_MPXS_CONNS", b"");
    record(out, Kind::GetValues, 0, &content);
}

/// Appends a parameter to the contents of a record. As in HAProxy, the name gets upper case, and `_` for all but
/// letters and digits.
pub fn write_param(content: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for len in [name.len(), value.len()] {
        match u8::try_from(len) {
            Ok(short) if short < 0x80 => content.push(short),
            _ => content.extend_from_slice(&(len as u32 | 0x8000_0000).to_be_bytes()),
        }
    }
    content.extend(name.iter().map(|byte| match byte.is_ascii_alphanumeric() {
        true => byte.to_ascii_uppercase(),
        false => b'_',
    }));
    content.extend_from_slice(value);
}

/// Writes all parameters, in one record, and their end.
pub fn write_params(out: &mut Vec<u8>, request: u16, content: &[u8]) {
    // An empty record would be the end.
    for part in content.chunks(CONTENT_MAX) {
        record(out, Kind::Params, request, part);
    }
    record(out, Kind::Params, request, &[]);
}

/// Writes a part of the body; an empty one is its end.
pub fn write_stdin(out: &mut Vec<u8>, request: u16, part: &[u8]) {
    if part.is_empty() {
        return record(out, Kind::Stdin, request, &[]);
    }
    for part in part.chunks(CONTENT_MAX) {
        record(out, Kind::Stdin, request, part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_a_request() {
        let mut out = Vec::new();
        write_begin(&mut out, 0x102, true);
        write_begin(&mut out, 3, false);
        write_params(&mut out, 3, b"ab");
        write_params(&mut out, 3, b"");
        write_stdin(&mut out, 3, b"xyz");
        write_stdin(&mut out, 3, b"");
        write_abort(&mut out, 3);
        let expected: &[&[u8]] = &[
            b"\x01\x01\x01\x02\x00\x08\x00\x00\x00\x01\x01\x00\x00\x00\x00\x00",
            b"\x01\x01\x00\x03\x00\x08\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00",
            b"\x01\x04\x00\x03\x00\x02\x00\x00ab",
            b"\x01\x04\x00\x03\x00\x00\x00\x00",
            b"\x01\x04\x00\x03\x00\x00\x00\x00",
            b"\x01\x05\x00\x03\x00\x03\x00\x00xyz",
            b"\x01\x05\x00\x03\x00\x00\x00\x00",
            b"\x01\x02\x00\x03\x00\x00\x00\x00",
        ];
        assert_eq!(out, expected.concat());
    }

    #[test]
    fn the_question_for_values() {
        let mut out = Vec::new();
        write_get_values(&mut out);
        assert_eq!(out, b"\x01\x09\x00\x00\x00\x20\x00\x00\x0d\x00FCGI_MAX_REQS\x0f\x00FCGI_MPXS_CONNS");
    }

    #[test]
    fn names_and_lengths_of_parameters() {
        let mut content = Vec::new();
        write_param(&mut content, b"http_x-a.b", b"v");
        assert_eq!(content, b"\x0a\x01HTTP_X_A_Bv");
        content.clear();
        write_param(&mut content, b"n", &[b'v'; 200]);
        assert_eq!(content[..6], *b"\x01\x80\x00\x00\xc8N");
        content.clear();
        write_param(&mut content, &[b'n'; 127], &[b'v'; 128]);
        assert_eq!(content[..6], *b"\x7f\x80\x00\x00\x80N");
    }
}
