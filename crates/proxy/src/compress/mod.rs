//! Compression of bodies (`compression` of a proxy, HAProxy configuration manual 4.2).
//!
//! The conditions for compressing responses, and the changes of their heads, are HAProxy's: the client accepts one of
//! the algorithms ([`choose`], when the request is complete), the response comes as HTTP/1.1 with status 200 to 203 and a
//! body whose end is known, not compressed already and without a prohibition ([`allows`], before its rules); the head
//! that rules leave is changed ([`begin`]).
//! Responses of services (a script's, the statistics page, the exporter) are included; those of rules and error pages
//! are not. The backend's settings override the frontend's. Bodies go through an [`Encoder`] in the relay; bodies that
//! are not compressed are handled as without this module.

mod cost;
mod encoder;

use std::sync::atomic::Ordering;
use std::time::Instant;

use sluicegate_config::model::{Compression, CompressionAlgorithm, CompressionLimits};
use sluicegate_wire::http::{Framing, Message, Method, RequestHead, Version};

pub(crate) use cost::{Cost, Memory};
pub(crate) use encoder::Encoder;

use crate::counters::{Rate, second};
use crate::process::Process;
use crate::sample::header_values;
use crate::site::Site;

/// Returns the settings of the proxies that a request passes, the backend's first.
fn settings<'a>(frontend: &'a Site, backend: &'a Site) -> impl Iterator<Item = &'a Compression> + Clone {
    [backend, frontend].into_iter().filter_map(|proxy| proxy.config.compression.as_deref())
}

/// Chooses the algorithm of the response by the client's Accept-Encoding. With `compression offload` that field is
/// removed from the request.
pub(crate) fn choose(request: &mut Message, frontend: &Site, backend: &Site) -> Option<CompressionAlgorithm> {
    let mut all = settings(frontend, backend).filter(|settings| !settings.not_responses);
    let algorithms = all.find(|settings| !settings.algorithms.is_empty()).map(|settings| &settings.algorithms)?;
    if is_old_browser(request) {
        return None;
    }
    let chosen = preferred(request, algorithms);
    if chosen.is_some() {
        if settings(frontend, backend).any(|settings| settings.offload) {
            request.delete_all(b"accept-encoding");
        }
        return chosen;
    }
    algorithms.iter().copied().find(|algorithm| *algorithm == CompressionAlgorithm::Identity)
}

/// Returns whether compression is not possible because of the browser: those that identify as "Mozilla/4", except for
/// two, do not support it reliably.
fn is_old_browser(request: &Message) -> bool {
    let Some(agent) = request.first(b"user-agent").filter(|agent| agent.starts_with(b"Mozilla/4")) else {
        return false;
    };
    let known = agent.len() >= 31 && agent[25..].starts_with(b"MSIE ");
    match agent.get(30) {
        Some(b'6') if known => !agent.get(51..).is_some_and(|rest| rest.starts_with(b"SV1")),
        Some(version) if known => *version < b'6',
        _ => true,
    }
}

/// Returns the algorithm that the client prefers, and the first one among equals. For `*` HAProxy uses the last one
/// that is configured.
fn preferred(request: &Message, algorithms: &[CompressionAlgorithm]) -> Option<CompressionAlgorithm> {
    let mut best = (0, None);
    for value in header_values(request, b"accept-encoding", false) {
        let end = value.iter().position(|byte| matches!(byte, b';' | b' ' | b'\t')).unwrap_or(value.len());
        let (token, rest) = value.split_at(end);
        let quality = quality(rest);
        if quality <= best.0 {
            continue;
        }
        let takes = |algorithm: &CompressionAlgorithm| {
            token.first() == Some(&b'*') || token.eq_ignore_ascii_case(algorithm.coding().as_bytes())
        };
        if let Some(algorithm) = algorithms.iter().rev().copied().find(takes) {
            best = (quality, Some(algorithm));
        }
    }
    best.1
}

/// Returns the quality of a coding in thousandths; 1000 if it has none.
fn quality(parameters: &[u8]) -> u32 {
    let mut all = parameters.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let Some(text) = all.find_map(|parameter| parameter.strip_prefix(b"q=")) else { return 1000 };
    let (whole, fraction) = match text {
        [b'1', rest @ ..] => (1000, rest),
        [b'0', rest @ ..] => (0, rest),
        _ => return 0,
    };
    let digits = fraction.strip_prefix(b".").unwrap_or_default();
    let digits = digits.iter().take(3).take_while(|byte| byte.is_ascii_digit());
    let mut place = 1000;
    let parts = digits.map(|digit| {
        place /= 10;
        u32::from(digit - b'0') * place
    });
    (whole + parts.sum::<u32>()).min(1000)
}

/// Returns whether the process's limits of compression are exhausted.
fn is_exhausted(process: &Process, limits: &CompressionLimits) -> bool {
    let most = process.compression_rate.load(Ordering::Relaxed);
    let fast = || most > 0 && rate(process, |cost| &cost.read) > most;
    let busy = || limits.idle > 0 && process.idle_percent() < limits.idle;
    fast() || busy()
}

/// Returns the bytes in the last whole second.
fn rate(process: &Process, which: impl Fn(&Cost) -> &Rate) -> u64 {
    let last = second(Instant::now()).saturating_sub(1);
    let costs = process.workers.iter().map(|figures| which(&figures.compression));
    costs.map(|rate| u64::from(rate.at(last)).max(u64::from(rate.at(last + 1)))).sum()
}

/// Returns whether a body with this framing is long enough, and its end is known.
fn fits(body: Framing, frontend: &Site, backend: &Site) -> bool {
    let min = settings(frontend, backend).map(|settings| settings.min).find(|min| *min > 0).unwrap_or(0);
    match body {
        Framing::Chunked => true,
        Framing::Length(length) => length > 0 && length >= min,
        Framing::None | Framing::UntilClose => false,
    }
}

/// Returns whether a response with this head is to be compressed.
pub(crate) fn allows(
    response: &Message,
    body: Framing,
    (version, method): (Version, Method),
    (frontend, backend): (&Site, &Site),
    process: &Process,
    limits: &CompressionLimits,
) -> bool {
    let forbids = |value: &[u8]| value.eq_ignore_ascii_case(b"no-transform");
    ![version, response.version()].contains(&Version::Http10)
        && method != Method::Head
        && fits(body, frontend, backend)
        && (200..=203).contains(&response.status())
        && response.first(b"content-encoding").is_none()
        && !header_values(response, b"cache-control", false).any(forbids)
        && has_good_tag(response)
        && has_type(response, settings(frontend, backend).map(|settings| &settings.types))
        && !is_exhausted(process, limits)
}

/// Returns an encoder for a response, and adapts its head; `None`: the response is sent unchanged.
pub(crate) fn begin(
    response: &mut Message,
    body: Framing,
    algorithm: CompressionAlgorithm,
    (frontend, backend): (&Site, &Site),
    process: &Process,
    limits: &CompressionLimits,
) -> Option<Encoder> {
    // The length of an application's body may have become known.
    if !fits(body, frontend, backend) {
        return None;
    }
    let encoder = Encoder::new(algorithm, limits, &process.compressors)?;
    let strong = response.first(b"etag").filter(|tag| tag.starts_with(b"\"")).map(|tag| [b"W/", tag].concat());
    let place = response.fields_named(b"etag").next().map(|(id, _)| id);
    if let (Some(weak), Some(id)) = (strong, place) {
        response.set_value(id, &weak);
    }
    frame(response, body);
    vary(response);
    if !encoder.is_identity() {
        response.add_lower(b"content-encoding", algorithm.coding().as_bytes());
    }
    Some(encoder)
}

/// Moves the field that describes the body's framing to HAProxy's place.
fn frame(message: &mut Message, framing: Framing) {
    message.delete_all(b"content-length");
    if framing != Framing::Chunked {
        message.add_lower(b"transfer-encoding", b"chunked");
    }
}

/// Adds `Accept-Encoding` to Vary: to the last such field if there is one.
fn vary(response: &mut Message) {
    const BY: &[u8] = b"Accept-Encoding";
    if header_values(response, b"vary", false).any(|value| value.eq_ignore_ascii_case(BY)) {
        return;
    }
    let last = response.fields_named(b"vary").last();
    let separator = |value: &[u8]| if value.is_empty() { &b""[..] } else { b"," };
    match last.map(|(id, value)| (id, [value, separator(value), BY].concat())) {
        Some((id, value)) => response.set_value(id, &value),
        None => {
            response.add_lower(b"vary", BY);
        }
    }
}

/// Returns whether there is no entity tag, or a well-formed one.
fn has_good_tag(response: &Message) -> bool {
    let mut tags = response.fields_named(b"etag").map(|(_, value)| value);
    let Some(tag) = tags.next() else { return true };
    let quoted = tag.strip_prefix(b"W/").unwrap_or(tag);
    tags.next().is_none() && quoted.len() >= 2 && quoted.starts_with(b"\"") && quoted.ends_with(b"\"")
}

/// Returns whether the body is of one of the types, or of any but multipart where none is named.
fn has_type<'a>(message: &Message, types: impl Iterator<Item = &'a Vec<String>>) -> bool {
    let kind = message.first(b"content-type");
    let begins =
        |kind: &[u8], with: &[u8]| kind.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with));
    match ({ types }.find(|types| !types.is_empty()), kind) {
        (Some(types), Some(kind)) => types.iter().any(|named| begins(kind, named.as_bytes())),
        (Some(_), None) => false,
        (None, Some(kind)) => !begins(kind, b"multipart"),
        (None, None) => true,
    }
}

/// Returns an encoder for a request, and adapts its head; `None`: the request is sent unchanged.
pub(crate) fn prepare_request(
    request: &mut Message,
    head: &RequestHead,
    (frontend, backend): (&Site, &Site),
    process: &Process,
    limits: &CompressionLimits,
) -> Option<Encoder> {
    let mut all = settings(frontend, backend).filter(|settings| settings.requests);
    let algorithm = all.find_map(|settings| settings.request_algorithm)?;
    let min = settings(frontend, backend).map(|settings| settings.request_min).find(|min| *min > 0).unwrap_or(0);
    match head.body {
        Framing::Chunked => {}
        Framing::Length(length) if length > 0 && length >= min => {}
        _ => return None,
    }
    if request.version() == Version::Http10
        || head.upgrade
        || request.first(b"content-encoding").is_some()
        || !has_type(request, settings(frontend, backend).map(|settings| &settings.request_types))
        || is_exhausted(process, limits)
    {
        return None;
    }
    let encoder = Encoder::new(algorithm, limits, &process.compressors)?;
    frame(request, head.body);
    if !encoder.is_identity() {
        request.add_lower(b"content-encoding", algorithm.coding().as_bytes());
    }
    Some(encoder)
}

#[cfg(test)]
mod tests {
    use sluicegate_wire::http::{Limits, parse_request};

    use super::*;

    fn request(fields: &str) -> Message {
        let mut message = Message::new();
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        parse_request(head.as_bytes(), &Limits::default(), &mut message).expect("good").expect("whole");
        message
    }

    #[test]
    fn clients_say_what_they_take() {
        use CompressionAlgorithm::{Deflate, Gzip, Identity, RawDeflate};
        for (value, algorithms, expected) in [
            ("gzip", &[Gzip, Deflate][..], Some(Gzip)),
            ("deflate, gzip", &[Gzip, Deflate], Some(Deflate)),
            ("deflate;q=0.5, gzip;q=0.501", &[Gzip, Deflate], Some(Gzip)),
            ("deflate;q=0, gzip;q=0.000", &[Gzip, Deflate], None),
            ("GZip ; x=1 ; q=0.1", &[Gzip], Some(Gzip)),
            ("*", &[Gzip, Deflate], Some(Deflate)),
            ("gzip;q=1.5", &[Gzip], Some(Gzip)),
            ("gzip;q=x", &[Gzip], None),
            ("gzipped, br", &[Gzip], None),
            ("deflate", &[RawDeflate, Deflate, Gzip], Some(Deflate)),
            ("identity", &[Gzip, Identity], Some(Identity)),
            ("", &[Gzip], None),
        ] {
            let field = if value.is_empty() { String::new() } else { format!("Accept-Encoding: {value}\r\n") };
            assert_eq!(preferred(&request(&field), algorithms), expected, "{value}");
        }
    }

    #[test]
    fn old_browsers_are_known() {
        for (agent, old) in [
            ("Mozilla/5.0 (X11; Linux x86_64)", false),
            ("Mozilla/4.0 (compatible; MSIE 7.0; Windows NT 5.1)", false),
            ("Mozilla/4.0 (compatible; MSIE 5.5; Windows NT 5.1; SV1)", true),
            ("Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1; SV1)", false),
            ("Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)", true),
            ("Mozilla/4.08 [en]", true),
            ("curl/7", false),
        ] {
            // HAProxy counts bytes, and so the version stands where those browsers have it.
            assert_eq!(is_old_browser(&request(&format!("User-Agent: {agent}\r\n"))), old, "{agent}");
        }
    }
}
