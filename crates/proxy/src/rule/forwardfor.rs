//! Header fields that describe a client to the server: `option forwardfor`, `originalto` and `forwarded`.
//!
//! The first two options each append a separate field at the end of the header, as HAProxy does. If frontend and
//! backend both have the option, the backend's field name is used, an address is exempt if it matches the `except` of
//! either, and `if-none` applies only if both specify it. `forwarded` is the field of RFC 7239; only the backend's
//! option is used.

use std::net::{IpAddr, SocketAddr};

use sluicegate_config::model::{ForwardFor, Forwarded, ForwardedPart, ProxyOptions};
use sluicegate_wire::http::Message;

use crate::engines::Engines;
use crate::sample::{
    ExpressionCode, FetchScope, Value, append_ip, header_values, is_forwarded, is_host, node_name, node_port,
};
use crate::site::Site;
use crate::stream::StreamContext;

/// The length of the longest textual address: IPv6 with an embedded IPv4 address.
const ADDRESS_MAX: usize = 45;

/// Adds to the request the fields that the options enable. `forwarded` is the compiled option of the backend.
pub(crate) fn tell(cx: &mut StreamContext, forwarded: Option<&ForwardedCode>, frontend: &Site, backend: &Site) {
    if let Some(code) = forwarded {
        code.add(cx);
    }
    let (front, back) = (&frontend.config.options, &backend.config.options);
    add(cx, cx.source, front, back, |options| &options.forwardfor);
    add(cx, cx.destination, front, back, |options| &options.originalto);
}

fn add(
    cx: &mut StreamContext,
    address: Option<SocketAddr>,
    frontend: &ProxyOptions,
    backend: &ProxyOptions,
    of: impl Fn(&ProxyOptions) -> &Option<ForwardFor>,
) {
    let (front, back) = (of(frontend), of(backend));
    let Some(named) = back.as_ref().or(front.as_ref()) else { return };
    let Some(address) = address.map(|address| address.ip()) else { return };
    let options = || front.iter().chain(back);
    let excepted = |option: &ForwardFor| option.except.is_some_and(|network| contains(network, address));
    let name = named.header.as_bytes();
    if options().any(excepted) || (options().all(|option| option.if_none) && cx.request.first(name).is_some()) {
        return;
    }
    let mut text = Vec::with_capacity(ADDRESS_MAX);
    append_ip(&mut text, address);
    cx.request.add(name, &text);
}

/// `option forwarded`, compiled.
#[derive(Debug)]
pub(crate) struct ForwardedCode {
    proto: bool,
    host: Option<PartCode>,
    by: Option<PartCode>,
    by_port: Option<PartCode>,
    source: Option<PartCode>,
    source_port: Option<PartCode>,
}

#[derive(Debug)]
enum PartCode {
    Own,
    Expr(ExpressionCode),
}

impl ForwardedCode {
    pub(crate) fn compile(
        option: &Forwarded,
        engines: &Engines,
        scope: FetchScope<'_>,
    ) -> Result<ForwardedCode, String> {
        let part = |part: &Option<ForwardedPart>| {
            Ok::<_, String>(match part {
                None => None,
                Some(ForwardedPart::Own) => Some(PartCode::Own),
                Some(ForwardedPart::Expr(expr)) => Some(PartCode::Expr(ExpressionCode::compile(expr, engines, scope)?)),
            })
        };
        Ok(ForwardedCode {
            proto: option.proto,
            host: part(&option.host)?,
            by: part(&option.by)?,
            by_port: part(&option.by_port)?,
            source: part(&option.source)?,
            source_port: part(&option.source_port)?,
        })
    }

    fn add(&self, cx: &mut StreamContext) {
        let mut value = Vec::new();
        let begin = |name: &[u8], value: &mut Vec<u8>| {
            if !value.is_empty() {
                value.push(b';');
            }
            value.extend_from_slice(name);
        };
        if self.proto {
            begin(if cx.client.tls().is_some() { b"proto=https" } else { b"proto=http" }, &mut value);
        }
        if let Some(host) = &self.host {
            begin(b"host=\"", &mut value);
            let text = match host {
                PartCode::Own => cx.request.first(b"host").map(<[u8]>::to_vec),
                PartCode::Expr(expr) => expr.value(cx).map(|value| value.into_text().into_owned()),
            };
            // As in HAProxy, a text that is not a valid host is replaced by an empty one.
            value.extend(text.filter(|text| is_host(text)).unwrap_or_default());
            value.push(b'"');
        }
        for (name, address, port, own) in [
            (&b"by="[..], &self.by, &self.by_port, cx.destination),
            (b"for=", &self.source, &self.source_port, cx.source),
        ] {
            let Some(address) = address else { continue };
            begin(name, &mut value);
            let node = match address {
                PartCode::Own => own.map(|own| node_of(own.ip())),
                PartCode::Expr(expr) => expr.value(cx).and_then(|value| match value {
                    Value::Ip(ip) => Some(node_of(ip)),
                    value => value.with_text(node_name),
                }),
            };
            // A missing or invalid node name is written as `unknown` (RFC 7239).
            let node = node.unwrap_or_else(|| b"unknown".to_vec());
            let quotes = port.is_some() || node.starts_with(b"[");
            value.extend(quotes.then_some(b'"'));
            value.extend(node);
            let port = match port {
                None => None,
                Some(PartCode::Own) => own.map(|own| own.port().to_string().into_bytes()),
                Some(PartCode::Expr(expr)) => expr.value(cx).and_then(|value| value.with_text(node_port)),
            };
            if let Some(port) = port {
                value.push(b':');
                value.extend(port);
            }
            value.extend(quotes.then_some(b'"'));
        }
        if !value.is_empty() {
            append(&mut cx.request, value);
        }
    }
}

/// Appends the value to the last `forwarded` field of the request if all of its `forwarded` fields are valid. Otherwise
/// the value becomes a separate field, so that invalid data of a client cannot make it unusable.
fn append(request: &mut Message, value: Vec<u8>) {
    const NAME: &[u8] = b"forwarded";
    let last = request.fields_named(NAME).last().map(|(id, before)| (id, before.to_vec()));
    match last {
        Some((id, before)) if header_values(request, NAME, false).all(is_forwarded) => {
            request.set_value(id, &[&before[..], b",", &value].concat());
        }
        _ => _ = request.add(NAME, &value),
    }
}

/// Returns the node name of an address; IPv6 addresses are in brackets.
fn node_of(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.to_string().into_bytes(),
        IpAddr::V6(ip) => format!("[{ip}]").into_bytes(),
    }
}

fn contains((network, bits): (IpAddr, u8), address: IpAddr) -> bool {
    let shift = |width: u32| width.saturating_sub(u32::from(bits));
    match (network, address.to_canonical()) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            (network.to_bits() ^ address.to_bits()).checked_shr(shift(32)).unwrap_or(0) == 0
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            (network.to_bits() ^ address.to_bits()).checked_shr(shift(128)).unwrap_or(0) == 0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_what_shares_their_bits() {
        let check = |network: &str, bits, address: &str, expected| {
            assert_eq!(contains((network.parse().unwrap(), bits), address.parse().unwrap()), expected, "{address}");
        };
        check("127.0.0.0", 8, "127.1.2.3", true);
        check("127.0.0.0", 8, "128.0.0.1", false);
        check("10.0.0.1", 32, "10.0.0.2", false);
        check("0.0.0.0", 0, "9.9.9.9", true);
        check("10.0.0.0", 8, "::ffff:10.1.1.1", true);
        check("fd00::", 8, "fd12::1", true);
        check("::", 0, "2001:db8::1", true);
        check("::1", 128, "::2", false);
        check("::", 0, "1.2.3.4", false);
    }
}
