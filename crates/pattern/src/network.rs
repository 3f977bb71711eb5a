//! Networks: their notation, and the test whether they contain an address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns a numeric address and its prefix length: `10.0.0.0/8`, `10.0.0.0/255.0.0.0`, `::1`, `fe80::/10`.
pub fn network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, mask) = match text.split_once('/') {
        Some((address, mask)) => (address, Some(mask)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let full: u8 = if address.is_ipv4() { 32 } else { 128 };
    let length = match mask {
        None => full,
        Some(mask) if mask.contains('.') => {
            let bits = u32::from(mask.parse::<Ipv4Addr>().ok()?);
            // Only a mask of leading ones is a network.
            if !address.is_ipv4() || bits.leading_ones() + bits.trailing_zeros() < 32 {
                return None;
            }
            bits.leading_ones() as u8
        }
        Some(length) => length.parse::<u8>().ok().filter(|l| *l <= full)?,
    };
    Some((address, length))
}

/// Returns the bits of an IPv4 network mask.
pub(crate) fn mask_v4(length: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(length.min(32))).unwrap_or(0)
}

/// Returns the bits of an IPv6 network mask.
pub(crate) fn mask_v6(length: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(length.min(128))).unwrap_or(0)
}

/// Returns whether an address lies in a network; families meet as HAProxy's do, through mapped, compatible and 6to4
/// forms.
pub fn in_network(ip: IpAddr, network: IpAddr, length: u8) -> bool {
    match (ip, network) {
        (IpAddr::V4(ip), IpAddr::V4(network)) => (u32::from(ip) ^ u32::from(network)) & mask_v4(length) == 0,
        (IpAddr::V6(ip), IpAddr::V6(network)) => (u128::from(ip) ^ u128::from(network)) & mask_v6(length) == 0,
        (IpAddr::V4(ip), IpAddr::V6(_)) => in_network(IpAddr::V6(ip.to_ipv6_mapped()), network, length),
        (IpAddr::V6(ip), IpAddr::V4(_)) => {
            embedded_ipv4(ip).is_some_and(|ip| in_network(IpAddr::V4(ip), network, length))
        }
    }
}

/// Returns the IPv4 address inside an IPv6 one, if it is of a kind that HAProxy compares with IPv4 patterns: mapped
/// (`::ffff:0:0/96`), compatible (`::/96`) or 6to4 (`2002::/16`).
pub fn embedded_ipv4(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let segments = ip.segments();
    let low = Ipv4Addr::from((u32::from(segments[6]) << 16) | u32::from(segments[7]));
    match segments {
        [0, 0, 0, 0, 0, 0 | 0xffff, _, _] => Some(low),
        [0x2002, high, next, ..] => Some(Ipv4Addr::from((u32::from(high) << 16) | u32::from(next))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notations() {
        assert_eq!(network("10.0.0.0/8").map(|n| n.1), Some(8));
        assert_eq!(network("10.0.0.0/255.255.0.0").map(|n| n.1), Some(16));
        assert_eq!(network("::1").map(|n| n.1), Some(128));
        assert_eq!(network("10.0.0.0/33"), None);
        assert_eq!(network("10.0.0.0/255.0.255.0"), None);
        assert_eq!(network("host"), None);
    }

    #[test]
    fn ipv4_addresses_are_found_inside_ipv6_ones() {
        let check = |text: &str, inside: Option<&str>| {
            let found = embedded_ipv4(text.parse().expect("an address"));
            assert_eq!(found.map(|ip| ip.to_string()).as_deref(), inside, "{text}");
        };
        check("::ffff:10.1.2.3", Some("10.1.2.3"));
        check("::10.1.2.3", Some("10.1.2.3"));
        check("2002:a01:203::", Some("10.1.2.3"));
        check("2001:db8::1", None);
    }
}
