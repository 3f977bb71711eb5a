//! `redirect` (HAProxy configuration manual 4.2).

use std::borrow::Cow;

use sluicegate_config::model::{FormatPart, Redirect, RedirectKind};
use sluicegate_wire::http::{Message, Version};

use super::action::{Compiled, Done, action};
use super::build::Builder;
use super::reply::add_length;
use super::{LocalReply, ReplyPage, ReplySource, Verdict};
use crate::sample::{FormatMode, path_and_query, query};

/// `redirect location|prefix|scheme FORMAT …`: the texts are the target and the cookie.
pub(super) fn redirect(b: &mut Builder<'_>, redirect: &Redirect) -> Compiled {
    b.texts(std::iter::once(&redirect.to).chain(&redirect.cookie_format), FormatMode::Http);
    let code = RedirectCode::new(redirect);
    action(move |run| {
        let mut texts = run.machine.texts();
        let to = texts.next().unwrap_or(b"");
        match code.build(to, texts.next(), &run.cx.request, &mut run.cx.response) {
            Some(reply) => Done::Verdict(Verdict::Reply(reply)),
            None => Done::Next,
        }
    })
}

/// `redirect`, compiled.
struct RedirectCode {
    kind: RedirectKind,
    code: u16,
    drop_query: bool,
    append_slash: bool,
    ignore_empty: bool,
    /// Whether a prefix of `/` adds nothing, which is the notation for a redirect to the same location.
    empty_prefix: bool,
    keep_query: bool,
    set_cookie: Option<Box<[u8]>>,
}

impl RedirectCode {
    fn new(redirect: &Redirect) -> RedirectCode {
        RedirectCode {
            kind: redirect.kind,
            code: redirect.code,
            drop_query: redirect.drop_query,
            append_slash: redirect.append_slash,
            ignore_empty: redirect.ignore_empty,
            empty_prefix: redirect.kind == RedirectKind::Prefix
                && matches!(&redirect.to.parts[..], [FormatPart::Text(text)] if text == b"/"),
            keep_query: redirect.keep_query,
            set_cookie: redirect.set_cookie.as_ref().map(|cookie| cookie.as_bytes().into()),
        }
    }

    /// Returns the reply that redirects the client to `to`, built in the memory of `response`, with a rendered cookie;
    /// `None` if an empty target is ignored.
    fn build(&self, to: &[u8], cookie: Option<&[u8]>, request: &Message, response: &mut Message) -> Option<LocalReply> {
        let location = match self.kind {
            RedirectKind::Location => {
                match query(request.target()).filter(|query| self.keep_query && !query.is_empty()) {
                    None => Cow::Borrowed(to),
                    Some(query) => {
                        let joint: &[u8] = if to.contains(&b'?') { b"&" } else { b"?" };
                        Cow::Owned([to, joint, query].concat())
                    }
                }
            }
            RedirectKind::Prefix => {
                let mut location = if self.empty_prefix { Vec::new() } else { to.to_vec() };
                self.append_path(&mut location, request);
                Cow::Owned(location)
            }
            RedirectKind::Scheme => {
                let host = request.first(b"host").unwrap_or(b"");
                let mut location = [to, b"://", host].concat();
                self.append_path(&mut location, request);
                Cow::Owned(location)
            }
        };
        if self.ignore_empty && location.is_empty() {
            return None;
        }
        let mut head = response.take();
        head.set_response(Version::Http11, self.code, reason(self.code).as_bytes());
        add_length(&mut head, 0);
        head.add_lower(b"location", &location);
        // Permanent redirects may be cached, the others may not.
        if matches!(self.code, 302 | 303 | 307) {
            head.add_lower(b"cache-control", b"no-cache");
        }
        if let Some(cookie) = cookie.or(self.set_cookie.as_deref()) {
            head.add_lower(b"set-cookie", cookie);
        }
        Some(LocalReply { source: ReplySource::Redirect, head, body: Vec::new(), close: false, page: ReplyPage::None })
    }

    fn append_path(&self, location: &mut Vec<u8>, request: &Message) {
        let mut path = path_and_query(request.target()).unwrap_or(b"/");
        if self.drop_query {
            path = &path[..memchr::memchr(b'?', path).unwrap_or(path.len())];
        }
        location.extend_from_slice(path);
        if self.append_slash && !path.ends_with(b"/") {
            location.push(b'/');
        }
    }
}

/// Returns the reason phrase of a redirect, which differs from others: 302 is `Found` here and `Moved Temporarily` in a
/// `return`.
fn reason(code: u16) -> &'static str {
    match code {
        301 => "Moved Permanently",
        303 => "See Other",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        _ => "Found",
    }
}
