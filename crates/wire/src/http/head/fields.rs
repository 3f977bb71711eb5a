//! The fields of a head: their grammar, and the combined meaning of those that frame the message.

use std::ops::Range;

use super::line::{TOKEN, line_end, skip_blanks, skip_class};
use super::{Framing, HeadError, Limits, Message, Version};
use crate::http::field::{self, Cleaned, Connection, TransferEncoding};

/// The maximum length of a name in bytes (HAProxy's limit).
pub(crate) const NAME_MAX: usize = 255;

/// The combined meaning of the fields of one head.
pub(super) struct Fields {
    is_request: bool,
    pub(super) folded: bool,
    pub(super) rewrite_connection: bool,
    pub(super) connection: Connection,
    pub(super) encoding: TransferEncoding,
    pub(super) length: Option<u64>,
    pub(super) host: Option<Range<usize>>,
    pub(super) expect_continue: bool,
    pub(super) upgrade: bool,
    pub(super) upgrade_http2: bool,
    pub(super) upgrade_websocket: bool,
    pub(super) websocket_key: bool,
}

impl Fields {
    pub(super) fn new(is_request: bool) -> Fields {
        Fields {
            is_request,
            folded: false,
            rewrite_connection: false,
            connection: Connection::default(),
            encoding: TransferEncoding::default(),
            length: None,
            host: None,
            expect_continue: false,
            upgrade: false,
            upgrade_http2: false,
            upgrade_websocket: false,
            websocket_key: false,
        }
    }

    /// Parses fields from `at` to the empty line; returns the offset after that line.
    pub(super) fn parse(
        &mut self,
        input: &[u8],
        mut at: usize,
        limits: &Limits,
        out: &mut Message,
    ) -> Result<Option<usize>, HeadError> {
        loop {
            match input.get(at) {
                None => return Ok(None),
                Some(b'\r' | b'\n') => return line_end(input, at, HeadError::FieldName),
                Some(_) => {}
            }
            let mut name_end = skip_class(input, at, TOKEN);
            // Even a lenient name has no leading blank, which the next parser would take for a folded line, and no line
            // end, which it would take for the end of the line.
            if limits.lenient && !matches!(input[at], b' ' | b'\t') {
                let odd = |byte: &u8| matches!(byte, b':' | b'\r' | b'\n' | 0);
                name_end = input[name_end..].iter().position(odd).map_or(input.len(), |more| name_end + more);
            }
            match input.get(name_end) {
                None => return Ok(None),
                Some(b':') if name_end > at && name_end - at <= NAME_MAX => {}
                Some(_) => return Err(HeadError::FieldName),
            }
            let value_start = skip_blanks(input, name_end + 1);
            let mut value_end = value_start;
            let mut next = value_start;
            // One iteration per line; a value has several lines only if it is folded.
            loop {
                let ends = match limits.lenient {
                    false => memchr::memchr3(b'\n', b'\r', 0, &input[next..]),
                    true => memchr::memchr2(b'\n', b'\r', &input[next..]),
                };
                let Some(len) = ends else { return Ok(None) };
                let Some(end) = line_end(input, next + len, HeadError::FieldValue)? else { return Ok(None) };
                value_end = if len > 0 { next + len } else { value_end };
                next = end;
                match input.get(next) {
                    None => return Ok(None),
                    Some(b' ' | b'\t') => self.folded = true,
                    Some(_) => break,
                }
            }
            while value_end > value_start && field::is_lws(input[value_end - 1]) {
                value_end -= 1;
            }
            let mut value_start = value_start;
            while self.folded && value_start < value_end && field::is_lws(input[value_start]) {
                value_start += 1;
            }
            if out.entry_count() + 1 >= limits.max_fields {
                return Err(HeadError::TooManyFields);
            }
            if let Some(value) = self.note(input, at..name_end, value_start..value_end)? {
                out.push_field(at..name_end, value);
            }
            at = next;
        }
    }

    /// Evaluates one field. Returns the part of its value to keep; `None`: the field is dropped.
    fn note(
        &mut self,
        input: &[u8],
        name: Range<usize>,
        range: Range<usize>,
    ) -> Result<Option<Range<usize>>, HeadError> {
        let name = &input[name];
        let value = &input[range.clone()];
        let is = |wanted: &[u8]| name.eq_ignore_ascii_case(wanted);
        match name.len() {
            4 if self.is_request && is(b"host") => match &self.host {
                Some(earlier) if !input[earlier.clone()].eq_ignore_ascii_case(value) => {
                    return Err(HeadError::HostValue);
                }
                Some(_) => return Ok(None),
                None if !field::is_authority(value) => return Err(HeadError::HostValue),
                None => self.host = Some(range.clone()),
            },
            6 if self.is_request && is(b"expect") => {
                self.expect_continue |= value.eq_ignore_ascii_case(b"100-continue");
            }
            7 if is(b"upgrade") => {
                self.upgrade = true;
                for protocol in field::elements(value) {
                    self.upgrade_websocket |= protocol.eq_ignore_ascii_case(b"websocket");
                    self.upgrade_http2 |= protocol.eq_ignore_ascii_case(b"h2c") || protocol.eq_ignore_ascii_case(b"h2");
                }
            }
            10 if is(b"connection") => match self.connection.add(value) {
                Cleaned::Drop => return Ok(None),
                Cleaned::Keep => {}
                Cleaned::Rewrite => self.rewrite_connection = true,
            },
            14 if is(b"content-length") => {
                let (number, digits) = field::content_length(value).ok_or(HeadError::ContentLength)?;
                if let Some(earlier) = self.length.replace(number) {
                    return if earlier == number { Ok(None) } else { Err(HeadError::ContentLength) };
                }
                return Ok(Some(range.start + digits.start..range.start + digits.end));
            }
            17 if is(b"transfer-encoding") => {
                let ok = self.encoding.add(value, self.is_request);
                return if ok { Ok(Some(range)) } else { Err(HeadError::TransferEncoding) };
            }
            17 if self.is_request && is(b"sec-websocket-key") => {
                // 16 bytes in Base64. HAProxy looks at the length alone.
                self.websocket_key |= value.len() == 24;
            }
            20 if !self.is_request && is(b"sec-websocket-accept") => self.websocket_key = true,
            _ => {}
        }
        Ok(Some(range))
    }

    /// Moves the head into the message, and makes the corrections that are rarely needed.
    pub(super) fn load(&self, head: &[u8], out: &mut Message) {
        out.load(head);
        out.lower_names();
        if self.folded {
            out.unfold();
        }
        if self.rewrite_connection {
            let mixed: Vec<_> = out
                .fields_named(b"connection")
                .map(|(id, value)| (id, value.len(), field::clean_connection(value)))
                .filter(|(_, len, cleaned)| *len != cleaned.len())
                .collect();
            for (id, _, cleaned) in mixed {
                out.set_value(id, &cleaned);
            }
        }
    }

    /// Implements RFC 9112 6.1: with Transfer-Encoding a Content-Length is not passed on. A message with both, or with
    /// Transfer-Encoding in HTTP/1.0, is the last one on its connection, because a party on the way may have parsed it
    /// differently. Returns `true` for such a message.
    pub(super) fn drop_length_beside_encoding(&mut self, version: Version, out: &mut Message) -> bool {
        if !self.encoding.present {
            return false;
        }
        if self.length.take().is_some() {
            out.delete_all(b"content-length");
            return true;
        }
        version == Version::Http10
    }

    /// Returns the framing that follows from the fields alone.
    pub(super) fn framing(&self) -> Framing {
        match (self.encoding.present, self.encoding.chunked, self.length) {
            (true, true, _) => Framing::Chunked,
            (true, false, _) => Framing::UntilClose,
            (false, _, Some(length)) => Framing::Length(length),
            (false, _, None) => Framing::None,
        }
    }

    pub(super) fn keep_alive(&self, version: Version) -> bool {
        !self.connection.close && (version == Version::Http11 || self.connection.keep_alive)
    }
}
