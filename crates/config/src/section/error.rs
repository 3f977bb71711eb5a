//! `errorfile`, `errorloc`, `errorfiles` and the section `http-errors` (HAProxy configuration manual 3.8 and 4.2).
//!
//! A file holds a whole HTTP response. It is read with the configuration, so it is available after a chroot, and errors
//! in it are found before anything starts.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::bytes::is_token;
use crate::catalogue::{Contexts, known};
use crate::diagnostic::Diagnostics;
use crate::model::{ErrorMessage, ErrorPage, ErrorPages, Position};
use crate::section::table::{self, Row, Table};
use crate::section::{Section, SectionKind};
use crate::unit;
use crate::word::Line;
use crate::{Files, suggest};

/// The statuses that have pages.
pub(crate) const CODES: [u16; 21] =
    [200, 400, 401, 403, 404, 405, 407, 408, 410, 413, 414, 421, 422, 425, 429, 431, 500, 501, 502, 503, 504];

/// The buffer space of a message in addition to its bytes: HAProxy keeps an index of its parts there.
const BUFFER_OVERHEAD: usize = 64;

/// The `http-errors` sections.
#[derive(Default)]
pub(crate) struct Groups {
    groups: HashMap<Arc<str>, (ErrorPages, Position)>,
}

/// Reads pages from files.
pub(crate) struct PageReader<'a> {
    pub(crate) files: &'a dyn Files,
    /// `tune.bufsize`: no page is larger.
    pub(crate) bufsize: usize,
}

pub(crate) type GroupParser = fn(&PageReader<'_>, &mut ErrorPages, &Line, &mut Diagnostics);

/// The keywords of `http-errors`.
pub(crate) static KEYWORDS: Table<GroupParser> = Table::new(&[Row {
    name: "errorfile",
    contexts: Contexts::HTTP_ERRORS,
    min: 2,
    max: 2,
    usage: "STATUS FILE",
    docs: "The complete response that replaces the page of a status; an empty file closes without a response.",
    parser: |reader, pages, line, diagnostics| {
        if let Some((code, page)) = reader.error_file(line, diagnostics) {
            pages.insert(code, page);
        }
    },
}]);

/// Reads the `http-errors` sections.
pub(crate) fn groups(sections: &[Section], reader: &PageReader<'_>, diagnostics: &mut Diagnostics) -> Groups {
    let mut found = Groups::default();
    for section in sections.iter().filter(|section| section.kind == SectionKind::HttpErrors) {
        let mut pages = ErrorPages::new();
        for line in &section.lines {
            match KEYWORDS.find(line.text(0), line.text(1)) {
                Some((row, words)) => {
                    if table::arity(row, words, line, diagnostics) {
                        (row.parser)(reader, &mut pages, line, diagnostics);
                    }
                }
                None => {
                    table::unknown(&KEYWORDS, known::NONE, Contexts::HTTP_ERRORS, "http-errors", line, diagnostics);
                }
            }
        }
        let (name, at) = (&section.name, section.at.clone());
        if let Some((_, earlier)) = found.groups.get(name) {
            let message =
                format!("http-errors section '{name}' already exists (declared at {}:{})", earlier.file, earlier.line);
            diagnostics.error(at, message);
        } else {
            found.groups.insert(name.clone(), (pages, at));
        }
    }
    found
}

impl Groups {
    /// Returns the pages of a section; an error at the `index`th word if no section has this name.
    pub(crate) fn find(&self, line: &Line, index: usize, diagnostics: &mut Diagnostics) -> Option<&ErrorPages> {
        let name = line.text(index);
        let found = self.groups.get(name);
        if found.is_none() {
            let near = suggest::nearest(name, self.groups.keys().map(|name| &**name));
            let error = diagnostics.error(line.at(index), format!("unknown http-errors section '{name}'"));
            error.did_you_mean(near);
        }
        found.map(|(pages, _)| pages)
    }

    /// `errorfiles NAME [STATUS]…`: adds the pages of a section, or those of these statuses.
    pub(crate) fn import(&self, line: &Line, pages: &mut ErrorPages, diagnostics: &mut Diagnostics) {
        let Some(group) = self.find(line, 1, diagnostics) else { return };
        if line.len() == 2 {
            pages.extend(group.iter().map(|(code, page)| (*code, page.clone())));
        }
        for index in 2..line.len() {
            let Some(code) = status(line, index, diagnostics) else { continue };
            match group.get(&code) {
                Some(page) => _ = pages.insert(code, page.clone()),
                None => {
                    let message = format!("status {code} is not declared in http-errors section '{}'", line.text(1));
                    diagnostics.warning(line.at(index), message);
                }
            }
        }
    }
}

/// Returns the status at the `index`th word, one that has a page.
pub(crate) fn status(line: &Line, index: usize, diagnostics: &mut Diagnostics) -> Option<u16> {
    let code = unit::leading_integer(line.text(index), 0, 999)
        .ok()
        .map(|code| code as u16)
        .filter(|code| CODES.contains(code));
    if code.is_none() {
        let message = format!("'{}': status code '{}' not handled", line.text(0), line.text(index));
        let list: Vec<String> = CODES.iter().map(u16::to_string).collect();
        diagnostics.error(line.at(index), message).hint(format!("there are pages of {}", list.join(", ")));
    }
    code
}

/// `errorloc`, `errorloc302`, `errorloc303 STATUS URL`: a redirection in place of a page.
pub(crate) fn redirection(line: &Line, sent: u16, diagnostics: &mut Diagnostics) -> Option<(u16, Arc<ErrorPage>)> {
    let code = status(line, 1, diagnostics)?;
    let url = line.words[2].bytes();
    if url.iter().any(|byte| byte.is_ascii_control()) {
        diagnostics.error(line.at(2), format!("'{}': a URL has no control characters", line.text(0)));
        return None;
    }
    let field = |name: &str, value: &[u8]| (name.as_bytes().to_vec(), value.to_vec());
    let message = ErrorMessage {
        http_1_0: false,
        status: sent,
        reason: if sent == 303 { b"See Other".to_vec() } else { b"Found".to_vec() },
        fields: vec![field("cache-control", b"no-cache"), field("content-length", b"0"), field("location", url)],
        has_length: true,
        close: false,
        body: Vec::new(),
    };
    Some((code, Arc::new(ErrorPage::Message(message))))
}

impl PageReader<'_> {
    /// `errorfile STATUS FILE`.
    pub(crate) fn error_file(&self, line: &Line, diagnostics: &mut Diagnostics) -> Option<(u16, Arc<ErrorPage>)> {
        let code = status(line, 1, diagnostics)?;
        Some((code, self.page(line, 2, diagnostics)?))
    }

    /// Returns the page in the file that the `index`th word names.
    pub(crate) fn page(&self, line: &Line, index: usize, diagnostics: &mut Diagnostics) -> Option<Arc<ErrorPage>> {
        let path = line.text(index);
        self.files.stand_at(&line.at(index));
        let read = self.files.read(Path::new(path)).map_err(|error| format!("cannot read '{path}': {error}"));
        let page = read.and_then(|bytes| {
            if bytes.len() + BUFFER_OVERHEAD > self.bufsize {
                let bufsize = self.bufsize;
                return Err(format!(
                    "'{path}': {} bytes do not fit into a buffer of {bufsize} ('tune.bufsize')",
                    bytes.len()
                ));
            }
            page(&bytes).map_err(|problem| format!("'{path}': {problem}"))
        });
        match page {
            Ok(page) => Some(Arc::new(page)),
            Err(message) => {
                let error = diagnostics.error(line.at(index), format!("'errorfile': {message}"));
                error.hint("the file holds a whole response: 'HTTP/1.1 503 Sorry', fields, an empty line, the body");
                None
            }
        }
    }
}

/// Reads a whole response.
fn page(bytes: &[u8]) -> Result<ErrorPage, String> {
    if bytes.is_empty() {
        return Ok(ErrorPage::Silent);
    }
    let mut lines = Lines { bytes, at: 0 };
    // Empty lines may precede a message (RFC 9112 2.2).
    let mut first = lines.next()?;
    while first.is_empty() {
        first = lines.next()?;
    }
    let mut message = start_line(first).ok_or("the first line is no HTTP/1 status line")?;
    let mut length = None;
    loop {
        let at = lines.at;
        let line = lines.next()?;
        if line.is_empty() {
            break;
        }
        if matches!(line[0], b' ' | b'\t') {
            // A folded line continues the value before it; each byte of the line end between them becomes a blank.
            let Some((_, value)) = message.fields.last_mut() else { return Err(bad_field(bytes, at)) };
            value.extend_from_slice(if bytes[..at].ends_with(b"\r\n") { b"  " } else { b" " });
            value.extend_from_slice(line.trim_ascii_end());
            continue;
        }
        let colon = line.iter().position(|byte| *byte == b':').ok_or_else(|| bad_field(bytes, at))?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) || value.contains(&0) {
            return Err(bad_field(bytes, at));
        }
        let name = name.to_ascii_lowercase();
        match &*name {
            b"transfer-encoding" => {
                return Err("a chunked body is not supported: leave Transfer-Encoding out".to_owned());
            }
            b"connection" => {
                let mut options = value.split(|byte| *byte == b',');
                message.close |= options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"));
                continue;
            }
            b"content-length" => {
                let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
                let said = digits.and_then(|text| text.parse::<usize>().ok()).ok_or_else(|| bad_field(bytes, at))?;
                match length.replace(said) {
                    None => message.has_length = true,
                    Some(before) if before == said => continue,
                    Some(_) => return Err("two Content-Lengths that differ".to_owned()),
                }
            }
            _ => {}
        }
        message.fields.push((name, value.to_vec()));
    }
    message.body = lines.bytes[lines.at..].to_vec();
    let size = message.body.len();
    if let Some(said) = length.filter(|said| *said != size) {
        return Err(format!("the body has {size} bytes and its Content-Length says {said}"));
    }
    if matches!(message.status, 101 | 204 | 304) && size > 0 {
        return Err(format!("a response of status {} has no body", message.status));
    }
    Ok(ErrorPage::Message(message))
}

fn bad_field(bytes: &[u8], at: usize) -> String {
    let number = bytes[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
    format!("line {number} is no header field")
}

/// `HTTP/1.x STATUS [REASON]`.
fn start_line(line: &[u8]) -> Option<ErrorMessage> {
    let rest = line.strip_prefix(b"HTTP/")?;
    let blank = rest.iter().position(|byte| *byte == b' ')?;
    let (version, rest) = (&rest[..blank], rest[blank..].trim_ascii_start());
    if !matches!(version, [major, b'.', minor] if major.is_ascii_digit() && minor.is_ascii_digit()) {
        return None;
    }
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (status, rest) = rest.split_at(digits);
    if digits != 3 || !(rest.is_empty() || rest[0] == b' ') || rest.contains(&0) {
        return None;
    }
    let status = status.iter().fold(0, |status, digit| status * 10 + u16::from(digit - b'0'));
    // An interim response is not an answer, but 101 ends the exchange, so HAProxy accepts it.
    if status < 200 && status != 101 {
        return None;
    }
    let (http_1_0, reason) = (version < b"1.1".as_slice(), rest.trim_ascii().to_vec());
    Some(ErrorMessage {
        http_1_0,
        status,
        reason,
        fields: Vec::new(),
        has_length: false,
        close: false,
        body: Vec::new(),
    })
}

/// The lines of a head, each ended by a line feed and perhaps a carriage return before it.
struct Lines<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Lines<'a> {
    fn next(&mut self) -> Result<&'a [u8], String> {
        let rest = &self.bytes[self.at..];
        let end =
            rest.iter().position(|byte| *byte == b'\n').ok_or("the head does not end: an empty line is missing")?;
        self.at += end + 1;
        let line = &rest[..end];
        Ok(line.strip_suffix(b"\r").unwrap_or(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let shown = match page(text.as_bytes()) {
            Ok(ErrorPage::Silent | ErrorPage::Reply) => "silent".to_owned(),
            Ok(ErrorPage::Message(m)) => {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let fields: Vec<String> = m.fields.iter().map(|(n, v)| format!("{}={}", text(n), text(v))).collect();
                let mut marks = String::new();
                for (set, mark) in [(m.http_1_0, " 1.0"), (m.has_length, " length"), (m.close, " close")] {
                    marks.push_str(if set { mark } else { "" });
                }
                format!("{} {:?} {fields:?} {:?}{marks}", m.status, text(&m.reason), text(&m.body))
            }
            Err(message) => message,
        };
        assert_eq!(shown, expected, "{text:?}");
    }

    #[test]
    fn whole_responses() {
        check("", "silent");
        check("HTTP/1.1 200 OK\r\n\r\n", r#"200 "OK" [] """#);
        check("\r\nHTTP/1.0 503 So sorry\nA: b\nConnection: Close\n\nx\n", r#"503 "So sorry" ["a=b"] "x\n" 1.0 close"#);
        check(
            "HTTP/1.1 200\r\nContent-Length: 1\r\ncontent-length: 1\r\n\r\nx",
            r#"200 "" ["content-length=1"] "x" length"#,
        );
        check("HTTP/1.1 200 OK\r\nA: b\r\n  c\r\n\r\n", r#"200 "OK" ["a=b    c"] """#);
        check("HTTP/1.1 101 Go\r\n\r\n", r#"101 "Go" [] """#);
    }

    #[test]
    fn mistakes() {
        let status_line = "the first line is no HTTP/1 status line";
        check("hello\n", status_line);
        check("http/1.1 200 OK\r\n\r\n", status_line);
        check("HTTP/1.1 20 OK\r\n\r\n", status_line);
        check("HTTP/1.1 100 OK\r\n\r\n", status_line);
        let end = "the head does not end: an empty line is missing";
        check("hello", end);
        check("HTTP/1.1 200 OK", end);
        check("HTTP/1.1 200 OK\r\n", end);
        check("HTTP/1.1 200 OK\r\nA: b\r\nFoo\r\n\r\n", "line 3 is no header field");
        check("HTTP/1.1 200 OK\r\nA b: c\r\n\r\n", "line 2 is no header field");
        check("HTTP/1.1 200 OK\r\n: c\r\n\r\n", "line 2 is no header field");
        check("HTTP/1.1 200 OK\r\n c\r\n\r\n", "line 2 is no header field");
        check("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "line 2 is no header field");
        check("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nfour", "the body has 4 bytes and its Content-Length says 3");
        check("HTTP/1.1 204 OK\r\n\r\nx", "a response of status 204 has no body");
        check(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "a chunked body is not supported: leave Transfer-Encoding out",
        );
    }
}
