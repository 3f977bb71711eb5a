//! Values of the fields that frame a message or control its connection.
//!
//! Every function works on one field's raw value, in which a folded line still has its CR and LF: all of them count
//! as white space here.

/// Returns whether a byte is SP, HT, or left over from a fold.
pub(crate) fn is_lws(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

/// Removes white space from both ends.
pub(crate) fn trim(mut value: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = value
        && is_lws(*first)
    {
        value = rest;
    }
    while let [rest @ .., last] = value
        && is_lws(*last)
    {
        value = rest;
    }
    value
}

/// Returns the elements of a comma-separated list, trimmed, including empty ones. Commas in quotes do not separate.
pub(crate) fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(value);
    std::iter::from_fn(move || {
        let all = rest?;
        let mut quoted = false;
        let mut at = 0;
        while at < all.len() {
            match all[at] {
                b'\\' if quoted => at += 1,
                b'"' => quoted = !quoted,
                b',' if !quoted => {
                    rest = Some(&all[at + 1..]);
                    return Some(trim(&all[..at]));
                }
                _ => {}
            }
            at += 1;
        }
        rest = None;
        Some(trim(all))
    })
}

/// Parses one Content-Length value: a number, or a list of equal numbers. Also returns the range of the number in
/// `value` without leading zeros, which is the form that is passed on.
pub(crate) fn content_length(value: &[u8]) -> Option<(u64, std::ops::Range<usize>)> {
    let mut found: Option<(u64, std::ops::Range<usize>)> = None;
    let mut at = 0;
    loop {
        while at < value.len() && is_lws(value[at]) {
            at += 1;
        }
        let mut start = at;
        let mut number = 0u64;
        while let Some(digit) = value.get(at).filter(|byte| byte.is_ascii_digit()) {
            if number == 0 {
                start = at;
            }
            number = number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
            at += 1;
        }
        // Larger lengths are refused, as by HAProxy and all programs that store lengths in signed numbers.
        if number > i64::MAX as u64 {
            return None;
        }
        if start == at || found.as_ref().is_some_and(|(earlier, _)| *earlier != number) {
            return None;
        }
        found = Some((number, start..at));
        while at < value.len() && is_lws(value[at]) {
            at += 1;
        }
        match value.get(at) {
            None => return found,
            Some(b',') => at += 1,
            Some(_) => return None,
        }
    }
}

/// The combined meaning of the Transfer-Encoding fields seen so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TransferEncoding {
    pub(super) present: bool,
    /// `chunked` is the last coding.
    pub(super) chunked: bool,
    /// Whether a coding other than `chunked` was named.
    pub(super) other: bool,
    seen_chunked: bool,
}

impl TransferEncoding {
    /// Adds one field. Returns `false` for a field that cannot be accepted: empty, with an empty element, with
    /// `chunked` twice, or (in a request) with a coding after `chunked`.
    pub(super) fn add(&mut self, value: &[u8], is_request: bool) -> bool {
        self.present = true;
        for element in elements(value) {
            self.chunked = false;
            if element.is_empty() {
                return false;
            }
            if element.eq_ignore_ascii_case(b"chunked") {
                if self.seen_chunked {
                    return false;
                }
                self.seen_chunked = true;
                self.chunked = true;
            } else {
                if is_request && self.seen_chunked {
                    return false;
                }
                self.other = true;
            }
        }
        true
    }
}

/// The combined meaning of the Connection fields seen so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Connection {
    pub(super) close: bool,
    pub(super) keep_alive: bool,
    pub(super) upgrade: bool,
}

/// The treatment of one Connection field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cleaned {
    /// Nothing but `close` and `keep-alive`: those belong to this connection and end here.
    Drop,
    /// Other options only.
    Keep,
    /// Both: to be rewritten by [`clean_connection`].
    Rewrite,
}

impl Connection {
    pub(super) fn add(&mut self, value: &[u8]) -> Cleaned {
        let mut ours = false;
        let mut others = false;
        for element in elements(value) {
            if element.eq_ignore_ascii_case(b"close") {
                self.close = true;
                ours = true;
            } else if element.eq_ignore_ascii_case(b"keep-alive") {
                self.keep_alive = true;
                ours = true;
            } else if !element.is_empty() {
                self.upgrade |= element.eq_ignore_ascii_case(b"upgrade");
                others = true;
            }
        }
        match (ours, others) {
            (_, false) => Cleaned::Drop,
            (false, true) => Cleaned::Keep,
            (true, true) => Cleaned::Rewrite,
        }
    }
}

/// Returns the options of a Connection field that are not about this connection's life, joined by commas.
pub(super) fn clean_connection(value: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(value.len());
    for element in elements(value) {
        if !element.is_empty()
            && !element.eq_ignore_ascii_case(b"close")
            && !element.eq_ignore_ascii_case(b"keep-alive")
        {
            if !kept.is_empty() {
                kept.push(b',');
            }
            kept.extend_from_slice(element);
        }
    }
    kept
}

/// Returns whether a Host value may be an authority: printable ASCII without the delimiters that end or split one, and
/// with brackets only around an IP literal (HAProxy 3.2's check). A folded value fails because of its line end.
pub(crate) fn is_authority(value: &[u8]) -> bool {
    let rest = match value.strip_prefix(b"[") {
        None => value,
        Some(literal) => {
            let Some(end) = memchr::memchr(b']', literal) else { return false };
            let (address, port) = (&literal[..end], &literal[end + 1..]);
            if !matches!(port.first(), None | Some(b':')) || !of_authority(address) {
                return false;
            }
            port
        }
    };
    of_authority(rest)
}

/// Returns whether all bytes may occur in an authority outside of brackets. There is no branch for each byte, because
/// they nearly always may.
fn of_authority(bytes: &[u8]) -> bool {
    const TABLE: [bool; 256] = {
        let mut table = [false; 256];
        let mut byte = b'!' as usize;
        while byte < 0x7f {
            table[byte] = !matches!(byte as u8, b'#' | b'/' | b'?' | b'@' | b'[' | b'\\' | b']');
            byte += 1;
        }
        table
    };
    bytes.iter().fold(true, |all, byte| all & TABLE[usize::from(*byte)])
}

/// Returns whether a request's target and its Host field fit together (RFC 9112 3.2, in HAProxy 3.2's interpretation).
///
/// `host` is the value of the Host field, if there is one; with `lenient` its authority may differ from that of an
/// absolute target. `false`: the request must be refused.
pub(super) fn target_fits_host(method: super::Method, target: &[u8], host: Option<&[u8]>, lenient: bool) -> bool {
    use super::Method;
    match target.first() {
        None => false,
        Some(b'*') => target.len() == 1 && matches!(method, Method::Options | Method::Other),
        Some(b'/') => method != Method::Connect,
        Some(_) => match (split_scheme(target), method) {
            (None, Method::Connect) => connect_fits_host(authority(target), host.filter(|_| !lenient)),
            (None, _) | (Some(_), Method::Connect) => false,
            (Some((scheme, rest)), _) => {
                lenient || host.is_none_or(|host| authority_fits_host(scheme, authority(rest), host))
            }
        },
    }
}

/// Splits a target into its scheme and the text after `://`.
fn split_scheme(target: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = memchr::memchr(b':', target)?;
    let (scheme, rest) = target.split_at(end);
    let rest = rest.strip_prefix(b"://")?;
    let valid = scheme.first().is_some_and(u8::is_ascii_alphabetic)
        && scheme.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'));
    valid.then_some((scheme, rest))
}

/// Returns the end of the authority: at the path, the query or the fragment.
fn authority_end(rest: &[u8]) -> usize {
    memchr::memchr3(b'/', b'?', b'#', rest).unwrap_or(rest.len())
}

/// Returns host and port, without user information, up to the path, the query or the fragment. (Before 3.5, HAProxy
/// treats a query without a path as part of the host.)
fn authority(rest: &[u8]) -> &[u8] {
    let all = &rest[..authority_end(rest)];
    memchr::memrchr(b'@', all).map_or(all, |at| &all[at + 1..])
}

/// Returns the host, and the digits after the last colon, if there is one.
fn split_port(host: &[u8]) -> (&[u8], Option<&[u8]>) {
    let digits = host.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let start = host.len() - digits;
    match host[..start].last() {
        Some(b':') => (&host[..start - 1], Some(&host[start..])),
        _ => (host, None),
    }
}

/// Returns whether a port is the default of the scheme; without a scheme (CONNECT) both well-known ports are.
fn is_default_port(scheme: Option<&[u8]>, port: &[u8]) -> bool {
    let is = |name: &[u8]| scheme.is_none_or(|scheme| scheme.eq_ignore_ascii_case(name));
    port.is_empty() || (port == b"80" && is(b"http")) || (port == b"443" && is(b"https"))
}

/// Scheme-based normalization (RFC 3986 6.2.3): removes the scheme's default port from an absolute target, and adds the
/// path `/` if it ends with its authority, unless the method is OPTIONS. If that changes the target, the Host field
/// that is passed on is the target's authority; that of a CONNECT loses a default port. `None`: as received.
pub(crate) fn normalized(
    method: super::Method,
    target: &[u8],
    host: Option<&[u8]>,
) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let Some((scheme, rest)) = split_scheme(target) else {
        let host = host.and_then(|host| {
            let (name, port) = split_port(host);
            port.filter(|port| !port.is_empty() && is_default_port(None, port)).map(|_| name.to_vec())
        });
        return (None, host);
    };
    let start = target.len() - rest.len();
    let end = start + authority_end(rest);
    let port = split_port(&target[start..end]).1.filter(|port| is_default_port(Some(scheme), port));
    let path: &[u8] = if end < target.len() || method == super::Method::Options { b"" } else { b"/" };
    if port.is_none() && path.is_empty() {
        return (None, None);
    }
    let named = end - port.map_or(0, |port| port.len() + 1);
    let new_target = [&target[..named], path, &target[end..]].concat();
    (Some(new_target), host.map(|_| authority(&target[start..named]).to_vec()))
}

fn connect_fits_host(authority: &[u8], host: Option<&[u8]>) -> bool {
    let (name, port) = split_port(authority);
    let Some(port) = port.filter(|port| !port.is_empty()) else { return false };
    let Some(host) = host else { return true };
    match split_port(host) {
        (host, Some(host_port)) if !host_port.is_empty() => host.eq_ignore_ascii_case(name) && host_port == port,
        (host, _) => (port == b"80" || port == b"443") && host.eq_ignore_ascii_case(name),
    }
}

fn authority_fits_host(scheme: &[u8], authority: &[u8], host: &[u8]) -> bool {
    if authority.eq_ignore_ascii_case(host) {
        return true;
    }
    let is_default = |port: &[u8]| is_default_port(Some(scheme), port);
    let (name, port) = split_port(authority);
    let (host_name, host_port) = split_port(host);
    let some_port = port.is_some() || host_port.is_some();
    some_port && port.is_none_or(is_default) && host_port.is_none_or(is_default) && name.eq_ignore_ascii_case(host_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_lengths() {
        let check = |value: &str, expected: Option<(u64, &str)>| {
            let got = content_length(value.as_bytes());
            let got = got.map(|(number, range)| (number, &value[range]));
            assert_eq!(got, expected, "{value:?}");
        };
        check("0", Some((0, "0")));
        check("12", Some((12, "12")));
        check("0012", Some((12, "12")));
        check("00", Some((0, "0")));
        check("5, 5 ,5", Some((5, "5")));
        check("5,6", None);
        check("", None);
        check(" ", None);
        check("5,", None);
        check(",5", None);
        check("+5", None);
        check("-5", None);
        check("0x5", None);
        check("5 5", None);
        check("9223372036854775807", Some((i64::MAX as u64, "9223372036854775807")));
        check("9223372036854775808", None);
        check("18446744073709551616", None);
        check("5\r\n ,5", Some((5, "5")));
    }

    #[test]
    fn transfer_encodings() {
        let check = |values: &[&str], is_request: bool, expected: Option<(bool, bool)>| {
            let mut encoding = TransferEncoding::default();
            let ok = values.iter().all(|value| encoding.add(value.as_bytes(), is_request));
            assert_eq!(ok.then_some((encoding.chunked, encoding.other)), expected, "{values:?}");
        };
        check(&["chunked"], true, Some((true, false)));
        check(&["Chunked"], true, Some((true, false)));
        check(&["gzip, chunked"], true, Some((true, true)));
        check(&["gzip", "chunked"], true, Some((true, true)));
        check(&["chunked, gzip"], true, None);
        check(&["chunked, gzip"], false, Some((false, true)));
        check(&["chunked", "chunked"], true, None);
        check(&["chunked,chunked"], false, None);
        check(&[""], true, None);
        check(&["chunked,"], true, None);
        check(&[",chunked"], true, None);
        check(&["xchunked"], true, Some((false, true)));
    }

    #[test]
    fn connections() {
        let check = |value: &str, cleaned: Cleaned, kept: &str| {
            assert_eq!(Connection::default().add(value.as_bytes()), cleaned, "{value:?}");
            if cleaned == Cleaned::Rewrite {
                assert_eq!(clean_connection(value.as_bytes()), kept.as_bytes(), "{value:?}");
            }
        };
        check("close", Cleaned::Drop, "");
        check("Keep-Alive , close", Cleaned::Drop, "");
        check("", Cleaned::Drop, "");
        check("Upgrade", Cleaned::Keep, "");
        check("keep-alive, Upgrade", Cleaned::Rewrite, "Upgrade");
        check("Upgrade, close, TE", Cleaned::Rewrite, "Upgrade,TE");
    }

    #[test]
    fn targets_are_normalized() {
        use super::super::Method::{Connect, Get, Options};
        let check = |method, target: &str, host: Option<&str>, expected: (Option<&str>, Option<&str>)| {
            let text = |bytes: Option<Vec<u8>>| bytes.map(|bytes| String::from_utf8(bytes).unwrap());
            let (got, new_host) = normalized(method, target.as_bytes(), host.map(str::as_bytes));
            let (got, new_host) = (text(got), text(new_host));
            assert_eq!((got.as_deref(), new_host.as_deref()), expected, "{target} {host:?}");
        };
        check(Get, "http://a:80/x", Some("a:80"), (Some("http://a/x"), Some("a")));
        check(Get, "http://a:/x", Some("a"), (Some("http://a/x"), Some("a")));
        check(Get, "http://a:80", None, (Some("http://a/"), None));
        check(Get, "http://a", Some("a"), (Some("http://a/"), Some("a")));
        check(Get, "http://a?x/y", Some("a"), (None, None));
        check(Get, "http://a:80?x/y", Some("a:80"), (Some("http://a?x/y"), Some("a")));
        check(Options, "http://a", Some("a"), (None, None));
        check(Options, "http://a:80", Some("a"), (Some("http://a"), Some("a")));
        check(Get, "http://a:443/", Some("a:443"), (None, None));
        check(Get, "https://u@a:443/?x:443", Some("a"), (Some("https://u@a/?x:443"), Some("a")));
        check(Get, "http://a/", Some("a:80"), (None, None));
        check(Connect, "a:443", Some("a:443"), (None, Some("a")));
        check(Connect, "a:443", Some("a:"), (None, None));
        check(Connect, "a:8443", Some("a:8443"), (None, None));
    }

    #[test]
    fn targets_and_hosts() {
        use super::super::Method::{Connect, Get, Options, Other};
        let check = |method, target: &str, host: Option<&str>, expected: bool| {
            let got = target_fits_host(method, target.as_bytes(), host.map(str::as_bytes), false);
            assert_eq!(got, expected, "{target} {host:?}");
        };
        check(Get, "/", None, true);
        check(Get, "", None, false);
        check(Get, "*", Some("a"), false);
        check(Options, "*", Some("a"), true);
        check(Other, "*", Some("a"), true);
        check(Options, "*a", Some("a"), false);
        check(Get, "http://a/x", Some("A"), true);
        check(Get, "http://a/x", None, true);
        check(Get, "http://a/x", Some("b"), false);
        check(Get, "http://a:80/x", Some("a"), true);
        check(Get, "http://a/x", Some("a:80"), true);
        check(Get, "http://a:81/x", Some("a"), false);
        check(Get, "https://a:443", Some("a"), true);
        check(Get, "http://user@a/", Some("a"), true);
        check(Get, "http://a?x", Some("a"), true);
        check(Get, "http://a?x", Some("a?x"), false);
        check(Get, "a:80", Some("a:80"), false);
        check(Get, "foo", Some("a"), false);
        check(Connect, "a:443", Some("a"), true);
        check(Connect, "a:443", Some("a:443"), true);
        check(Connect, "a:4433", Some("a"), false);
        check(Connect, "a", Some("a"), false);
        check(Connect, "/", Some("a"), false);
        check(Connect, "http://a:80/", Some("a"), false);
        assert!(target_fits_host(Get, b"http://a/", Some(b"b"), true) && !target_fits_host(Get, b"*", None, true));
    }
}
