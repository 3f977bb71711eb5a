//! Expectations about an answer: bytes, or an HTTP response, examined whenever more of it arrives.

use sluicegate_config::model::{CheckProtocol, CheckStatus};
use sluicegate_wire::http::{BodyDecoder, BodyEvent, Limits, Method, parse_response};

use super::answer::{self, Fault};
use super::code::{BytesCode, ExpectCode, ExpectedCode, NoBytes, StepCode, TextCode};
use super::probe::{ANSWER_MAX, Outcome, Probe};
use crate::log::View;
use crate::sample::{append_hex, header_values};
use crate::stream::StreamContext;

/// The state of the received bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Whether no more data will arrive.
    pub(super) ended: bool,
}

/// The result of an expectation.
pub(super) enum Verdict {
    /// It is met.
    Met,
    /// Undecided: more bytes may decide.
    Wait,
    /// The check is over.
    Ends(Outcome),
}

/// Returns the message about a format that yields no bytes.
pub(super) fn no_bytes(why: NoBytes) -> &'static str {
    match why {
        NoBytes::Empty => "log-format string evaluated to an empty string",
        NoBytes::NoHex => "Failed to parse hexastring resulting of eval of a log-format string",
    }
}

impl ExpectedCode {
    /// Describes the expected answer, for a timeout's message.
    pub(super) fn describe(&self, out: &mut Vec<u8>) {
        match self {
            ExpectedCode::String(BytesCode::Plain(text)) => {
                out.extend_from_slice(b" (expect string '");
                out.extend_from_slice(text);
                out.extend_from_slice(b"')");
            }
            ExpectedCode::Binary(BytesCode::Plain(bytes)) => {
                out.extend_from_slice(b" (expect binary '");
                bytes.iter().for_each(|byte| append_hex(out, *byte));
                out.extend_from_slice(b"')");
            }
            ExpectedCode::String(_) => out.extend_from_slice(b" (expect log-format string)"),
            ExpectedCode::Binary(_) => out.extend_from_slice(b" (expect log-format binary)"),
            ExpectedCode::Regex(_) => out.extend_from_slice(b" (expect regex)"),
            ExpectedCode::BinaryRegex(_) => out.extend_from_slice(b" (expect binary regex)"),
            // The others are not of `tcp-check`.
            _ => {}
        }
    }

    /// Describes the mismatch, for its message.
    fn mismatch(&self, out: &mut Vec<u8>) {
        match self {
            ExpectedCode::String(BytesCode::Plain(text)) => {
                out.extend_from_slice(b" '");
                out.extend_from_slice(text);
                out.extend_from_slice(b"'");
            }
            ExpectedCode::Binary(BytesCode::Plain(_)) => out.extend_from_slice(b" (binary)"),
            ExpectedCode::String(_) => out.extend_from_slice(b" (log-format string)"),
            ExpectedCode::Binary(_) => out.extend_from_slice(b" (log-format binary)"),
            ExpectedCode::Regex(_) => out.extend_from_slice(b" (regex)"),
            ExpectedCode::BinaryRegex(_) => out.extend_from_slice(b" (binary regex)"),
            _ => {}
        }
    }
}

fn contains(hay: &[u8], needle: &[u8]) -> bool {
    memchr::memmem::find(hay, needle).is_some()
}

/// Returns whether to wait for more bytes: a mismatch is final at the end of the data, or once the configured minimum
/// length has arrived.
fn waits(matched: bool, expect: &ExpectCode, seen: Seen) -> bool {
    !matched && !seen.ended && expect.min_recv.is_none()
}

impl Probe<'_> {
    /// Judges an expectation on plain bytes.
    pub(super) fn judge_bytes(&mut self, step: &StepCode, expect: &ExpectCode, seen: Seen) -> Verdict {
        let status = expect.error_status.unwrap_or(CheckStatus::L7Rsp);
        let length = self.received().len();
        match &expect.what {
            ExpectedCode::MysqlPacket | ExpectedCode::LdapBind if length == 0 && seen.ended && !self.is_greeted() => {
                return self.ends(step, expect, status, None, false);
            }
            ExpectedCode::MysqlPacket => {
                // After the greeting, which remains in front of later packets.
                let greeting = if self.is_greeted() { answer::mysql_length(self.received()) } else { 0 };
                let judged = answer::mysql(&self.received()[greeting..], seen.ended);
                if let Some(Ok(())) = judged {
                    self.greet();
                }
                return self.judge_packet(step, expect, judged);
            }
            ExpectedCode::LdapBind => {
                let judged = answer::ldap(self.received(), seen.ended);
                return self.judge_packet(step, expect, judged);
            }
            ExpectedCode::SpopHello => {
                let judged = answer::spop(self.received(), seen.ended);
                return self.judge_packet(step, expect, judged);
            }
            _ => {}
        }
        if !seen.ended && expect.min_recv.is_some_and(|least| length < least as usize) {
            return Verdict::Wait;
        }
        let matched = match &expect.what {
            ExpectedCode::String(bytes) | ExpectedCode::Binary(bytes) => {
                let wanted = self.with_context(|cx| bytes.bytes(&View::running(cx)).map(|bytes| bytes.into_owned()));
                match wanted {
                    Ok(wanted) if !seen.ended && length < wanted.len() => return Verdict::Wait,
                    Ok(wanted) => contains(self.received(), &wanted),
                    Err(why) => return self.ends(step, expect, CheckStatus::L7Rsp, Some(no_bytes(why)), false),
                }
            }
            ExpectedCode::Regex(regex) => regex.is_match(self.received()),
            ExpectedCode::BinaryRegex(regex) => {
                let mut text = Vec::with_capacity(length * 2);
                self.received().iter().for_each(|byte| append_hex(&mut text, *byte));
                // As much of it as HAProxy has room for.
                text.truncate(ANSWER_MAX - 1);
                regex.is_match(&text)
            }
            _ => false,
        };
        if waits(matched, expect, seen) {
            return Verdict::Wait;
        }
        if matched != expect.negated {
            return Verdict::Met;
        }
        self.ends(step, expect, status, None, matched)
    }

    fn judge_packet(&mut self, step: &StepCode, expect: &ExpectCode, judged: Option<answer::Judgement>) -> Verdict {
        match judged {
            None => Verdict::Wait,
            Some(Ok(())) => Verdict::Met,
            Some(Err(Fault { status, code, info })) => {
                self.code = code;
                let info = (!info.is_empty()).then_some(info);
                let info = info.map(|info| info.split(|byte| *byte == 0).next().unwrap_or_default().to_vec());
                match self.ends_with(step, expect, status, info, false) {
                    Verdict::Ends(outcome) => Verdict::Ends(Outcome { code, ..outcome }),
                    other => other,
                }
            }
        }
    }

    pub(super) fn judge_agent(&mut self, step: &StepCode, expect: &ExpectCode, seen: Seen) -> Verdict {
        if seen.ended && self.received().is_empty() {
            return self.ends(step, expect, expect.error_status.unwrap_or(CheckStatus::L7Rsp), None, false);
        }
        match answer::agent(self.received(), seen.ended) {
            None => Verdict::Wait,
            Some(None) => Verdict::Ends(Outcome::new(CheckStatus::Checked, "Ignoring incomplete line from agent")),
            Some(Some(line)) => Verdict::Ends(Outcome { agent: Some(line), ..Outcome::new(CheckStatus::Checked, "") }),
        }
    }

    /// Judges an expectation of `option httpchk`.
    pub(super) fn judge_http(&mut self, step: &StepCode, expect: &ExpectCode, mut seen: Seen) -> Verdict {
        let mut message = std::mem::take(self.message());
        let head = loop {
            match parse_response(self.received(), &Limits::default(), Method::Get, &mut message) {
                Ok(Some(head)) if head.interim => self.discard(head.head_len),
                Ok(Some(head)) => break head,
                Ok(None) if !seen.ended => return Verdict::Wait,
                Ok(None) | Err(_) => return self.ends(step, expect, CheckStatus::L7Rsp, None, false),
            }
        };
        self.code = u32::from(message.status());
        let reason = match message.start_line() {
            sluicegate_wire::http::StartLine::Response { reason, .. } => reason.to_vec(),
            _ => Vec::new(),
        };
        *self.message() = message;
        if self.tells_to_stop() {
            return Verdict::Met;
        }
        let Ok((body, complete)) = body(&self.received()[head.head_len..], head.body) else {
            return self.ends(step, expect, CheckStatus::L7Rsp, None, false);
        };
        seen.ended |= complete;
        let wrong = expect.error_status.unwrap_or(CheckStatus::L7Sts);
        let reason = || Some(reason.clone()).filter(|_| expect.on_error.is_none());
        let matched = match &expect.what {
            ExpectedCode::Status(ranges) => {
                ranges.iter().any(|(low, high)| (u32::from(*low)..=u32::from(*high)).contains(&self.code))
            }
            ExpectedCode::StatusRegex(regex) => regex.is_match(self.code.to_string().as_bytes()),
            ExpectedCode::Header { full, name, value } => {
                match self.with_context(|cx| has_field(cx, *full, name, value.as_ref())) {
                    Ok(found) => found,
                    Err(why) => return self.ends(step, expect, CheckStatus::L7Rsp, Some(no_bytes(why)), false),
                }
            }
            _ => return self.judge_body(step, expect, seen, body),
        };
        if matched != expect.negated { Verdict::Met } else { self.ends_with(step, expect, wrong, reason(), false) }
    }

    fn judge_body(&mut self, step: &StepCode, expect: &ExpectCode, seen: Seen, body: Vec<u8>) -> Verdict {
        let status = expect.error_status.unwrap_or(CheckStatus::L7Rsp);
        let said = |text: &'static str| Some(text).filter(|_| expect.on_error.is_none());
        if body.is_empty() {
            if !seen.ended {
                return Verdict::Wait;
            }
            let text = said("HTTP content check could not find a response body");
            return self.ends(step, expect, status, text, false);
        }
        let short = |least: usize| !seen.ended && body.len() < least;
        if short(expect.min_recv.unwrap_or(0) as usize) {
            return Verdict::Wait;
        }
        let matched = match &expect.what {
            ExpectedCode::String(bytes) => {
                let view = body.clone();
                match self.with_body(view, |cx| bytes.bytes(&View::running(cx)).map(|bytes| bytes.into_owned())) {
                    Ok(wanted) if short(wanted.len()) => return Verdict::Wait,
                    Ok(wanted) => contains(&body, &wanted),
                    Err(why) => return self.ends(step, expect, CheckStatus::L7Rsp, Some(no_bytes(why)), false),
                }
            }
            ExpectedCode::Regex(regex) => regex.is_match(&body),
            _ => false,
        };
        if waits(matched, expect, seen) {
            return Verdict::Wait;
        }
        if matched != expect.negated {
            return Verdict::Met;
        }
        let text = match expect.negated {
            true => "HTTP check matched unwanted content",
            false => "HTTP content check did not match",
        };
        self.ends(step, expect, status, said(text), false)
    }

    fn ends(
        &mut self,
        step: &StepCode,
        expect: &ExpectCode,
        status: CheckStatus,
        said: Option<&str>,
        matched: bool,
    ) -> Verdict {
        self.ends_with(step, expect, status, said.map(|text| text.as_bytes().to_vec()), matched)
    }

    /// Returns the verdict that ends the check, with its description, its comment and its code.
    fn ends_with(
        &mut self,
        step: &StepCode,
        expect: &ExpectCode,
        status: CheckStatus,
        said: Option<Vec<u8>>,
        matched: bool,
    ) -> Verdict {
        let mut info = Vec::new();
        match (said, &expect.on_error) {
            (Some(text), _) => info = text,
            (None, Some(format)) => self.with_context(|cx| format.render(&View::running(cx), &mut info)),
            (None, None)
                if self.received().is_empty() && self.protocol() != CheckProtocol::Http && !self.is_greeted() =>
            {
                info.extend_from_slice(format!("TCPCHK got an empty response at step {}", step.number).as_bytes());
            }
            (None, None) if self.protocol() == CheckProtocol::Tcp => {
                let what = if matched { "TCPCHK matched unwanted content" } else { "TCPCHK did not match content" };
                info.extend_from_slice(what.as_bytes());
                expect.what.mismatch(&mut info);
                info.extend_from_slice(format!(" at step {}", step.number).as_bytes());
            }
            (None, None) => {}
        }
        if let Some(comment) = &step.comment {
            info.extend_from_slice(format!(" comment: {comment}").as_bytes());
        }
        self.set_code(expect.status_code.as_ref());
        Verdict::Ends(Outcome { code: self.code, ..Outcome::new(status, info) })
    }
}

/// Returns the received part of a response's body, and whether it is complete.
fn body(mut bytes: &[u8], framing: sluicegate_wire::http::Framing) -> Result<(Vec<u8>, bool), ()> {
    let mut decoder = BodyDecoder::new(framing);
    let mut body = Vec::new();
    loop {
        let (used, event) = decoder.decode(bytes).map_err(|_| ())?;
        match event {
            BodyEvent::Data(range) => body.extend_from_slice(&bytes[range]),
            BodyEvent::End => return Ok((body, true)),
            BodyEvent::More => return Ok((body, decoder.is_done())),
        }
        bytes = &bytes[used..];
    }
}

/// Returns whether the response has a header field that matches.
fn has_field(cx: &StreamContext, full: bool, name: &TextCode, value: Option<&TextCode>) -> Result<bool, NoBytes> {
    let view = View::running(cx);
    let name = Pattern::of(name, &view)?;
    let value = value.map(|value| Pattern::of(value, &view)).transpose()?;
    let mut names: Vec<&[u8]> = Vec::new();
    for (_, field, _) in cx.response.fields() {
        if !names.iter().any(|seen| seen.eq_ignore_ascii_case(field)) {
            names.push(field);
        }
    }
    let named = names.into_iter().filter(|field| name.matches(field, true));
    for field in named {
        let Some(value) = &value else { return Ok(true) };
        if header_values(&cx.response, field, full).any(|text| value.matches(text, false)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A name or value to compare with.
enum Pattern<'a> {
    Exact(Vec<u8>),
    Prefix(Vec<u8>),
    Suffix(Vec<u8>),
    Substring(Vec<u8>),
    Regex(&'a sluicegate_pattern::Regex),
}

impl<'a> Pattern<'a> {
    fn of(code: &'a TextCode, view: &View<'_>) -> Result<Pattern<'a>, NoBytes> {
        let bytes = |bytes: &BytesCode| bytes.bytes(view).map(|bytes| bytes.into_owned());
        Ok(match code {
            TextCode::Exact(code) => Pattern::Exact(bytes(code)?),
            TextCode::Prefix(code) => Pattern::Prefix(bytes(code)?),
            TextCode::Suffix(code) => Pattern::Suffix(bytes(code)?),
            TextCode::Substring(code) => Pattern::Substring(bytes(code)?),
            TextCode::Regex(regex) => Pattern::Regex(regex),
        })
    }

    /// Compares a text with the pattern. Names are compared without regard to case.
    fn matches(&self, text: &[u8], name: bool) -> bool {
        let equal = |a: &[u8], b: &[u8]| if name { a.eq_ignore_ascii_case(b) } else { a == b };
        match self {
            Pattern::Exact(wanted) => equal(text, wanted),
            Pattern::Prefix(wanted) => text.get(..wanted.len()).is_some_and(|start| equal(start, wanted)),
            Pattern::Suffix(wanted) => {
                let end = text.len().checked_sub(wanted.len()).and_then(|at| text.get(at..));
                end.is_some_and(|end| equal(end, wanted))
            }
            Pattern::Substring(wanted) => match wanted.len() {
                0 => true,
                length => text.windows(length).any(|part| equal(part, wanted)),
            },
            Pattern::Regex(regex) => regex.is_match(text),
        }
    }
}
