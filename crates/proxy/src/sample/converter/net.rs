//! Addresses and the values of Host headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use super::super::value::Value;

/// The address of a sample. An IPv4 address inside an IPv6 one is that IPv4 address: mapped, compatible (RFC 4291), 6to4
/// (RFC 3056).
pub(super) fn address(value: &Value<'_>) -> Option<IpAddr> {
    let IpAddr::V6(ip) = value.to_ip()? else { return value.to_ip() };
    Some(match ip.segments() {
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0x2002, high, low, ..] => {
            IpAddr::V4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)))
        }
        _ => IpAddr::V6(ip),
    })
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
