//! Addresses and the values of Host headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use super::super::value::Value;

/// The address of a sample; a text that maps an IPv4 address into IPv6 is that IPv4 address.
pub(super) fn address(value: &Value<'_>) -> Option<IpAddr> {
    match (value.to_ip()?, value) {
        (IpAddr::V6(ip), Value::Str(_)) => Some(ip.to_canonical()),
        (ip, _) => Some(ip),
    }
}

/// Masks for both families; without one for IPv6 those addresses have no network.
pub(super) fn mask(ip: IpAddr, v4: Ipv4Addr, v6: Option<Ipv6Addr>) -> Option<IpAddr> {
    Some(match ip {
        IpAddr::V4(ip) => IpAddr::V4(ip & v4),
        IpAddr::V6(ip) => IpAddr::V6(ip & v6?),
    })
}

/// Where the host of a Host header's value ends: before the last colon, unless a bracket closes behind that.
fn host_end(text: &[u8]) -> usize {
    match memchr::memrchr2(b':', b']', text) {
        Some(at) if text[at] == b':' => at,
        _ => text.len(),
    }
}

/// The host.
pub(super) fn host(text: &[u8]) -> Range<usize> {
    0..host_end(text)
}

/// The port, 0 if there is none or it is no number.
pub(super) fn port(text: &[u8]) -> i64 {
    let digits = text.get(host_end(text) + 1..).unwrap_or(b"");
    digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .fold(0i64, |number, digit| number.saturating_mul(10).saturating_add(i64::from(digit - b'0')))
}
