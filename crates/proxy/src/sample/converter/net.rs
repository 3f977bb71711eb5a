//! Addresses and the values of Host headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use sluicegate_pattern::embedded_ipv4;

use super::super::value::Value;
use super::args::Args;
use super::code::{Compiled, value};
use super::text::{cut_value, to_lower};

pub(super) fn ipmask(args: &Args<'_>) -> Compiled {
    let v4 = args.int(0)?.and_then(|mask| u32::try_from(mask).ok()).ok_or("a mask is needed")?;
    value((Ipv4Addr::from(v4), args.mask6(1)?), |(v4, v6), value, _| mask(address(&value)?, *v4, *v6).map(Value::Ip))
}

pub(super) fn host_only(_: &Args<'_>) -> Compiled {
    value((), |(), value, _| cut_value(value, |text| Some(host(text))).map(to_lower))
}

pub(super) fn port_only(_: &Args<'_>) -> Compiled {
    value((), |(), value, _| Some(Value::Int(value.with_text(port))))
}

/// Returns the address of a sample. An IPv4 address embedded in an IPv6 address is returned as IPv4: mapped, compatible
/// (RFC 4291), or 6to4 (RFC 3056).
fn address(value: &Value<'_>) -> Option<IpAddr> {
    let IpAddr::V6(ip) = value.to_ip()? else { return value.to_ip() };
    Some(embedded_ipv4(ip).map_or(IpAddr::V6(ip), IpAddr::V4))
}

/// Applies the mask of the address's family; without a mask for IPv6, IPv6 addresses have no network.
fn mask(ip: IpAddr, v4: Ipv4Addr, v6: Option<Ipv6Addr>) -> Option<IpAddr> {
    Some(match ip {
        IpAddr::V4(ip) => IpAddr::V4(ip & v4),
        IpAddr::V6(ip) => IpAddr::V6(ip & v6?),
    })
}

/// Returns the end of the host in a Host header's value: before the last colon, unless a bracket closes after that.
fn host_end(text: &[u8]) -> usize {
    match memchr::memrchr2(b':', b']', text) {
        Some(at) if text[at] == b':' => at,
        _ => text.len(),
    }
}

/// Returns the range of the host.
fn host(text: &[u8]) -> Range<usize> {
    0..host_end(text)
}

/// Returns the port, 0 if there is none or it is not a number.
fn port(text: &[u8]) -> i64 {
    let digits = text.get(host_end(text) + 1..).unwrap_or(b"");
    digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .fold(0i64, |number, digit| number.saturating_mul(10).saturating_add(i64::from(digit - b'0')))
}
