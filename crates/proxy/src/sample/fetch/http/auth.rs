//! The Authorization field (RFC 9110 11.6, RFC 7617, RFC 6750).

use sluicegate_wire::http::Message;

use crate::sample::base64::Base64;
use crate::stream::StreamContext;

/// The credentials of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Credentials<'a> {
    /// `Basic`: the decoded text `user:password`.
    Basic(Vec<u8>),
    /// `Bearer`: the token.
    Bearer(&'a [u8]),
}

/// Returns the credentials in the first field of this name.
pub(super) fn credentials<'a>(message: &'a Message, field: &[u8]) -> Option<Credentials<'a>> {
    let value = message.first(field)?;
    let blank = value.iter().position(|byte| *byte == b' ').filter(|at| *at > 0)?;
    let (scheme, rest) = value.split_at(blank);
    let rest = &rest[rest.iter().position(|byte| *byte != b' ').unwrap_or(rest.len())..];
    if scheme.eq_ignore_ascii_case(b"basic") {
        let decoded = Base64::Standard.decode(rest)?;
        // Without a colon there is neither a user nor a password.
        return decoded.contains(&b':').then_some(Credentials::Basic(decoded));
    }
    (scheme.eq_ignore_ascii_case(b"bearer") && !rest.is_empty()).then_some(Credentials::Bearer(rest))
}

/// Returns the user and the password of a request, if it has credentials.
pub fn basic(request: &Message) -> Option<(Vec<u8>, Vec<u8>)> {
    let Credentials::Basic(both) = credentials(request, b"authorization")? else { return None };
    let colon = both.iter().position(|byte| *byte == b':')?;
    Some((both[..colon].to_vec(), both[colon + 1..].to_vec()))
}

/// Returns the name of the field with the client's credentials, which depends on whether the client addresses this
/// program as a proxy or as a server.
pub(super) fn field(cx: &StreamContext) -> &'static [u8] {
    if cx.is_proxied() { b"proxy-authorization" } else { b"authorization" }
}

/// Returns user and password, with the colon between them, from the field that [`field`] names.
pub(crate) fn basic_credentials(cx: &StreamContext) -> Option<Vec<u8>> {
    match credentials(&cx.request, field(cx))? {
        Credentials::Basic(decoded) => Some(decoded),
        Credentials::Bearer(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_read_or_none() {
        let check = |value: &str, expected: Option<Credentials<'_>>| {
            let mut message = Message::new();
            message.add(b"Authorization", value.as_bytes());
            assert_eq!(credentials(&message, b"authorization"), expected, "{value}");
        };
        check("Basic dXNlcjpwYXNz", Some(Credentials::Basic(b"user:pass".to_vec())));
        check("basic   dXNlcjpwYTo=", Some(Credentials::Basic(b"user:pa:".to_vec())));
        check("Basic dXNlcg==", None);
        check("Basic dXN", None);
        check("Basic ====", None);
        check("Basic !!!!", None);
        check("Basic", None);
        check("Basic ", None);
        check("", None);
        check("Bearer abc.def", Some(Credentials::Bearer(b"abc.def")));
        check("Digest abc", None);
    }
}
