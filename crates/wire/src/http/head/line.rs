//! Start lines, and the character classes and line ends of a head.

use std::ops::Range;

use super::{HeadError, Message, Method, Version};

/// Bytes of method and field names (RFC 9110 5.6.2).
pub(super) const TOKEN: u8 = 1;
/// Bytes of a request target that HAProxy accepts.
pub(super) const TARGET: u8 = 2;

/// The classes of each byte.
static CLASS: [u8; 256] = {
    let mut class = [0; 256];
    let mut byte = 0x21;
    while byte < 0x7f {
        let is_token = matches!(byte as u8, b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z')
            || matches!(byte as u8, b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.')
            || matches!(byte as u8, b'^' | b'_' | b'`' | b'|' | b'~');
        class[byte] = (is_token as u8 * TOKEN) | ((byte as u8 != b'#') as u8 * TARGET);
        byte += 1;
    }
    class
};

/// Returns the first offset at or after `from` whose byte is not of `class`.
pub(super) fn skip_class(input: &[u8], from: usize, class: u8) -> usize {
    let rest = &input[from..];
    from + rest.iter().position(|byte| CLASS[usize::from(*byte)] & class == 0).unwrap_or(rest.len())
}

/// Like [`skip_class`], for texts that are mostly long: eight bytes are examined at a time.
pub(super) fn skip_target(input: &[u8], from: usize) -> usize {
    let mut at = from;
    while let Some(eight) = input.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        if eight.iter().fold(TARGET, |common, byte| common & CLASS[usize::from(*byte)]) == 0 {
            break;
        }
        at += eight.len();
    }
    skip_class(input, at, TARGET)
}

pub(super) fn skip_blanks(input: &[u8], from: usize) -> usize {
    let rest = &input[from..];
    from + rest.iter().position(|byte| !matches!(byte, b' ' | b'\t')).unwrap_or(rest.len())
}

/// Returns the offset after a line end at `at`; `None` if the LF after a CR has not arrived yet.
pub(super) fn line_end(input: &[u8], at: usize, error: HeadError) -> Result<Option<usize>, HeadError> {
    match (input.get(at), input.get(at + 1)) {
        (Some(b'\n'), _) => Ok(Some(at + 1)),
        (Some(b'\r'), Some(b'\n')) => Ok(Some(at + 2)),
        (Some(b'\r'), None) | (None, _) => Ok(None),
        _ => Err(error),
    }
}

/// Returns the offset of the start line. `None`: nothing but empty lines so far.
pub(super) fn skip_empty_lines(buf: &[u8]) -> Result<Option<usize>, HeadError> {
    let mut at = 0;
    loop {
        match buf.get(at) {
            None => return Ok(None),
            Some(b'\r' | b'\n') => match line_end(buf, at, HeadError::StartLine)? {
                Some(next) => at = next,
                None => return Ok(None),
            },
            Some(_) => return Ok(Some(at)),
        }
    }
}

pub(super) struct RequestLine {
    pub(super) method: Method,
    pub(super) target: Range<usize>,
    /// `None`: the line is well-formed, but this is not a version.
    pub(super) version: Option<Version>,
    /// HTTP/0.9: no field follows.
    pub(super) bare: bool,
    pub(super) end: usize,
}

pub(super) fn request_line(input: &[u8], lenient: bool, out: &mut Message) -> Result<Option<RequestLine>, HeadError> {
    let method_end = skip_class(input, 0, TOKEN);
    match input.get(method_end) {
        None => return Ok(None),
        Some(b' ' | b'\t') if method_end > 0 => {}
        Some(_) => return Err(HeadError::StartLine),
    }
    let target_start = skip_blanks(input, method_end);
    let mut target_end = skip_target(input, target_start);
    while lenient && matches!(input.get(target_end), Some(b'#' | 0x80..)) {
        target_end = skip_target(input, target_end + 1);
    }
    let method = Method::of(&input[..method_end]);
    let get = lenient && method == Method::Get;
    match input.get(target_end) {
        None => return Ok(None),
        Some(b' ' | b'\t') if target_end > target_start => {}
        Some(b'\r' | b'\n') if target_end > target_start && get => {}
        Some(_) => return Err(HeadError::StartLine),
    }
    let version_start = skip_blanks(input, target_end);
    let rest = &input[version_start..];
    let version_len = rest.iter().position(|byte| !is_version_byte(byte)).unwrap_or(rest.len());
    let bare = get && version_len == 0;
    let version = match version(&rest[..version_len]) {
        None if bare => Some(Version::Http10),
        None if lenient && version_len > 0 => Some(other_version(&rest[..version_len])),
        version => version,
    };
    let Some(end) = line_end(input, version_start + version_len, HeadError::StartLine)? else { return Ok(None) };
    // The preface of HTTP/2 is two such lines; nothing but HTTP/2 can answer it.
    let version = version.filter(|_| &input[..method_end] != b"PRI");
    out.load_request(0..method_end, target_start..target_end, version.unwrap_or_default());
    Ok(Some(RequestLine { method, target: target_start..target_end, version, bare, end }))
}

pub(super) struct StatusLine {
    pub(super) version: Version,
    pub(super) status: u16,
    /// Whether the reason is empty.
    pub(super) no_reason: bool,
    pub(super) end: usize,
}

pub(super) fn status_line(input: &[u8], lenient: bool, out: &mut Message) -> Result<Option<StatusLine>, HeadError> {
    const SHAPE: &[u8] = b"HTTP/";
    let shared = input.len().min(SHAPE.len());
    if !lenient && input[..shared] != SHAPE[..shared] {
        return Err(HeadError::StartLine);
    }
    let version_end = input.iter().position(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n'));
    let token = &input[..version_end.unwrap_or(input.len())];
    if lenient && !token.iter().all(is_version_byte) {
        return Err(HeadError::StartLine);
    }
    let Some(version_end) = version_end else {
        return if !lenient && input.len() > 8 { Err(HeadError::Version) } else { Ok(None) };
    };
    let version = match version(token) {
        Some(version) => version,
        None if lenient && version_end > 0 => other_version(token),
        None => return Err(HeadError::Version),
    };
    let code_start = skip_blanks(input, version_end);
    let rest = &input[code_start..];
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits > 3 {
        return Err(HeadError::StartLine);
    }
    match rest.get(digits) {
        None => return Ok(None),
        Some(b' ' | b'\t' | b'\r' | b'\n') if digits == 3 && rest[0] != b'0' => {}
        Some(_) => return Err(HeadError::StartLine),
    }
    let status = rest[..3].iter().fold(0, |code, digit| code * 10 + u16::from(digit - b'0'));
    let reason_start = skip_blanks(input, code_start + 3);
    let Some(reason_len) = memchr::memchr2(b'\r', b'\n', &input[reason_start..]) else { return Ok(None) };
    let reason = reason_start..reason_start + reason_len;
    let Some(end) = line_end(input, reason.end, HeadError::StartLine)? else { return Ok(None) };
    out.load_response(version, status, reason);
    Ok(Some(StatusLine { version, status, no_reason: reason_len == 0, end }))
}

/// Returns whether HAProxy accepts a byte in a version, which includes those of RTSP.
fn is_version_byte(byte: &u8) -> bool {
    matches!(byte, b'H' | b'T' | b'P' | b'R' | b'S' | b'/' | b'.' | b'0'..=b'9')
}

/// Returns the HTTP version that replaces that of another protocol; HAProxy examines two positions of eight bytes.
fn other_version(token: &[u8]) -> Version {
    match token {
        [_, _, _, _, _, major, _, minor] if *major > b'1' || *major == b'1' && *minor >= b'1' => Version::Http11,
        _ => Version::Http10,
    }
}

/// Returns the version; 1.1 and all higher versions are treated as 1.1.
fn version(token: &[u8]) -> Option<Version> {
    match token {
        [b'H', b'T', b'T', b'P', b'/', major @ b'0'..=b'9', b'.', minor @ b'0'..=b'9'] => {
            let is_11 = *major > b'1' || (*major == b'1' && *minor >= b'1');
            Some(if is_11 { Version::Http11 } else { Version::Http10 })
        }
        _ => None,
    }
}

/// Returns whether all bytes are allowed in a token (RFC 9110, 5.6.2); also true for an empty text.
pub fn is_token(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| CLASS[usize::from(*byte)] & TOKEN != 0)
}
