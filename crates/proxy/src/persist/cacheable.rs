//! Whether caches keep a response (RFC 9111), as HAProxy decides it for `option checkcache` and `cookie … nocache`.

use sluicegate_wire::http::Message;

use crate::stream::StreamContext;

/// What caches keep of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// The response.
    pub(super) response: bool,
    /// The cookie that it sets.
    pub(super) cookie: bool,
}

impl Kept {
    const NOTHING: Kept = Kept { response: false, cookie: false };
    const ALL: Kept = Kept { response: true, cookie: true };
}

/// Returns what caches keep of a stream's response.
pub(super) fn kept(cx: &StreamContext) -> Kept {
    let safe = matches!(cx.request.sent_method(), b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE");
    let status = matches!(cx.response.status(), 200 | 203 | 204 | 206 | 300 | 301 | 404 | 405 | 410 | 414 | 501);
    of_fields(&cx.response, if safe && status { Kept::ALL } else { Kept::NOTHING })
}

/// Applies the fields of a response to what method and status allow.
fn of_fields(response: &Message, mut kept: Kept) -> Kept {
    if response.first(b"pragma").is_some_and(|value| value.eq_ignore_ascii_case(b"no-cache")) {
        return Kept::NOTHING;
    }
    let (mut fresh, mut over) = (false, false);
    let words = response.fields_named(b"cache-control").flat_map(|(_, value)| crate::sample::field::elements(value));
    for word in words.map(<[u8]>::to_ascii_lowercase) {
        match &word[..] {
            b"public" => kept = Kept::ALL,
            b"max-age=0" => over = true,
            b"private" | b"no-cache" | b"no-store" | b"s-maxage=0" => kept = Kept::NOTHING,
            word if word.starts_with(b"no-cache=\"set-cookie") => kept.cookie = false,
            word if word.starts_with(b"s-maxage") => (fresh, over) = (true, false),
            word if word.starts_with(b"max-age") => fresh = true,
            _ => {}
        }
    }
    if over {
        kept = Kept::NOTHING;
    }
    // Without a lifetime or something to ask by, nothing is kept.
    let marks = [&b"expires"[..], b"etag", b"last-modified"];
    kept.response &= fresh || marks.iter().any(|name| response.first(name).is_some());
    kept
}

#[cfg(test)]
mod tests {
    use sluicegate_wire::http::Version;

    use super::*;

    #[test]
    fn fields_decide_what_is_kept() {
        for (fields, response, cookie) in [
            (&[][..], false, true),
            (&[("etag", "x")][..], true, true),
            (&[("etag", "x"), ("cache-control", "private")][..], false, false),
            (&[("etag", "x"), ("cache-control", "no-store, public")][..], true, true),
            (&[("cache-control", "max-age=9")][..], true, true),
            (&[("etag", "x"), ("cache-control", "max-age=0")][..], false, false),
            (&[("cache-control", "max-age=0, s-maxage=9")][..], true, true),
            (&[("expires", "x"), ("cache-control", "no-cache=\"Set-Cookie\"")][..], true, false),
            (&[("expires", "x"), ("pragma", "no-cache")][..], false, false),
        ] {
            let mut message = Message::new();
            message.set_response(Version::Http11, 200, b"OK");
            for (name, value) in fields {
                message.add(name.as_bytes(), value.as_bytes());
            }
            assert_eq!(of_fields(&message, Kept::ALL), Kept { response, cookie }, "{fields:?}");
        }
    }
}
