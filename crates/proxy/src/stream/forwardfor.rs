//! `option forwardfor`: the client's address in a header field of its own, at the end, as HAProxy adds it.
//!
//! Where frontend and backend both have the option, the backend names the field, either one's `except` spares a
//! client, and `if-none` holds only if both say so.

use std::io::Write;
use std::net::IpAddr;

use sluicegate_config::model::{ForwardFor, ProxyOptions};

use super::StreamContext;

/// Room for the longest address, an IPv6 one with an embedded IPv4 one.
const ADDRESS_MAX: usize = 45;

/// Adds the field to the request, if an option asks for it.
pub(crate) fn forward_for(cx: &mut StreamContext, frontend: &ProxyOptions, backend: &ProxyOptions) {
    let (front, back) = (&frontend.forwardfor, &backend.forwardfor);
    let Some(named) = back.as_ref().or(front.as_ref()) else { return };
    let Some(source) = cx.source.map(|source| source.ip()) else { return };
    let options = || front.iter().chain(back);
    let excepted = |option: &ForwardFor| option.except.is_some_and(|network| contains(network, source));
    let name = named.header.as_bytes();
    if options().any(excepted) || (options().all(|option| option.if_none) && cx.request.first(name).is_some()) {
        return;
    }
    let mut text = [0; ADDRESS_MAX];
    let mut rest = &mut text[..];
    if write!(rest, "{source}").is_ok() {
        let len = ADDRESS_MAX - rest.len();
        cx.request.add(name, &text[..len]);
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
