//! Answers made here: `return`, `deny` and the built-in pages.
//!
//! A reply's bytes are HAProxy's: the fields of `hdr` first, then the length, then the type, and a body that turned
//! out empty has no type. The length stands in the head because its place there is part of those bytes; the writer
//! leaves a true one where it is.

use std::sync::Arc;

use sluicegate_config::model::{Action, ErrorPage, LogFormat, Return, ReturnBody, Rule};
use sluicegate_wire::http::status::{error_page, reason};
use sluicegate_wire::http::{Message, Version};

use super::action::{Compiled, Done, action};
use super::build::Builder;
use super::code::{Machine, Op};
use super::{LocalReply, ReplyPage, ReplySource, Verdict};
use crate::sample::FormatMode;

/// `accept`, `allow`: ends the rule set.
pub(super) fn accept() -> Compiled {
    action(|_| Done::Verdict(Verdict::Continue))
}

/// `reject`: closes without an answer.
pub(super) fn reject() -> Compiled {
    action(|_| Done::Verdict(Verdict::Close))
}

/// `return`, `deny` and `tarpit`.
pub(super) fn answer(b: &mut Builder<'_>, reply: &Return, source: ReplySource) -> Compiled {
    b.texts(reply.headers.iter().map(|(_, format)| format), FormatMode::Http);
    // A body is no header line: its line breaks stay.
    if let ReturnBody::Format(format) = &reply.body {
        b.parts(format, FormatMode::Plain);
        b.ops.push(Op::EndText);
    }
    let code = ReplyCode::new(reply, source);
    action(move |run| Done::Verdict(Verdict::Reply(code.build(run.machine, &mut run.cx.response))))
}

/// `auth [realm R]`: the challenge.
pub(super) fn auth(realm: &str) -> Compiled {
    let challenge = format!("Basic realm=\"{realm}\"").into_bytes();
    action(move |run| {
        let (status, name): (u16, &[u8]) =
            if run.cx.is_proxied() { (407, b"proxy-authenticate") } else { (401, b"www-authenticate") };
        run.cx.challenge = Some((name, challenge.clone()));
        Done::Verdict(Verdict::Reply(page_reply(status, ReplySource::Auth)))
    })
}

/// `early-hint NAME FORMAT`. Consecutive hints are sent together, by the last of them.
pub(super) fn early_hint(b: &mut Builder<'_>, name: &str, value: &LogFormat, next: Option<&Rule>) -> Compiled {
    b.text(value, FormatMode::Http);
    let name = lower(name);
    let more = next.is_some_and(|next| matches!(next.action, Action::EarlyHint(..)) && next.condition.is_none());
    action(move |run| {
        let hints = &mut run.cx.early_hints;
        if run.cx.request.version() >= Version::Http11 {
            if hints.status() == 0 {
                hints.set_response(Version::Http11, 103, b"Early Hints");
            }
            hints.add_lower(&name, run.machine.text());
        }
        if !more && hints.status() != 0 { Done::Hints } else { Done::Next }
    })
}

/// `return` or `deny`, compiled. The machine's texts are its header values and then its body, if that is a log-format.
struct ReplyCode {
    source: ReplySource,
    status: u16,
    headers: Box<[Box<[u8]>]>,
    content_type: Option<Box<[u8]>>,
    body: Body,
}

enum Body {
    Page,
    Empty,
    Bytes(Arc<[u8]>),
    File(Arc<ErrorPage>),
    /// The machine's last text.
    Text,
}

impl ReplyCode {
    fn new(reply: &Return, source: ReplySource) -> ReplyCode {
        ReplyCode {
            source,
            status: reply.status,
            headers: reply.headers.iter().map(|(name, _)| lower(name)).collect(),
            content_type: reply.content_type.as_ref().map(|kind| kind.as_bytes().into()),
            body: match &reply.body {
                ReturnBody::ErrorPage => Body::Page,
                ReturnBody::ErrorFile(page) => Body::File(page.clone()),
                ReturnBody::Empty => Body::Empty,
                ReturnBody::Bytes(bytes) => Body::Bytes(bytes.clone()),
                ReturnBody::Format(_) => Body::Text,
            },
        }
    }

    /// Returns the reply with the rendered texts, built in the memory of `response`.
    fn build(&self, machine: &Machine, response: &mut Message) -> LocalReply {
        let mut texts = machine.texts();
        let mut head = response.take();
        let body = match &self.body {
            Body::Page => return page_with(head, self.status, self.source),
            Body::File(page) => {
                head.set_response(Version::Http11, self.status, b"");
                let page = ReplyPage::File(page.clone());
                return LocalReply { source: self.source, head, body: Vec::new(), close: false, page };
            }
            Body::Empty => Vec::new(),
            Body::Bytes(bytes) => bytes.to_vec(),
            Body::Text => texts.next_back().map(<[u8]>::to_vec).unwrap_or_default(),
        };
        head.set_response(Version::Http11, self.status, reason(self.status).as_bytes());
        for (name, value) in self.headers.iter().zip(texts) {
            // A field that came out empty is not sent.
            if !value.is_empty() {
                head.add(name, value);
            }
        }
        if self.status != 204 && self.status >= 200 {
            add_length(&mut head, body.len());
        }
        if let Some(kind) = &self.content_type
            && !body.is_empty()
        {
            head.add_lower(b"content-type", kind);
        }
        LocalReply { source: self.source, head, body, close: false, page: ReplyPage::None }
    }
}

/// Returns the page of a status as a reply: the built-in one, unless the proxies have another.
pub fn page_reply(status: u16, source: ReplySource) -> LocalReply {
    page_with(Message::new(), status, source)
}

fn page_with(mut head: Message, status: u16, source: ReplySource) -> LocalReply {
    let body = error_page(status).fill(&mut head).to_vec();
    LocalReply { source, head, body, close: closes(status), page: ReplyPage::Status(status) }
}

/// Returns whether the page of a status closes the connection. After 400 and 408 the start of the next request would
/// not be known, so HAProxy's pages close it.
fn closes(status: u16) -> bool {
    matches!(status, 400 | 408)
}

/// Returns the name of a field that a rule adds: HAProxy sends it in lower case, regardless of the configuration.
pub(super) fn lower(name: &str) -> Box<[u8]> {
    name.to_ascii_lowercase().into_bytes().into()
}

pub(super) fn add_length(head: &mut Message, length: usize) {
    head.add_lower(b"content-length", itoa::Buffer::new().format(length).as_bytes());
}
