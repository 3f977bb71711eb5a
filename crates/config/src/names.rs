//! Resolution of host names in addresses that the typed configuration holds as numbers.
//!
//! HAProxy resolves the names of `bind`, `source`, `usesrc`, `addr`, `agent-addr`, `nameserver`, `log` and of a check's
//! `connect addr` while it reads the file, once, with the system's resolver. So does this module, through
//! [`Files`]: the model then holds addresses only, a test needs no network, and a process that takes a
//! configuration over uses the addresses that its sender found. Names of servers are not resolved
//! here: they are kept as names and have their own rules (`init-addr`, `resolvers`).

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Files;
use crate::address;

/// Families that a prefix of an address allows; prefixes of other kinds of sockets have no host name.
fn allowed(prefix: &str) -> Option<fn(&IpAddr) -> bool> {
    match prefix {
        "" | "ip" | "tcp" | "mptcp" | "udp" => Some(|_| true),
        "ipv4" | "tcp4" | "mptcp4" | "udp4" => Some(IpAddr::is_ipv4),
        "ipv6" | "tcp6" | "mptcp6" | "udp6" => Some(IpAddr::is_ipv6),
        _ => None,
    }
}

/// Replaces the host name of an address, or of each of several separated by ',', by its first address of the allowed
/// family. Numeric and non-internet addresses are returned unchanged.
pub(crate) fn numeric<'a>(text: &'a str, files: &dyn Files) -> Result<Cow<'a, str>, String> {
    if !text.contains(',') {
        return one(text, files);
    }
    let list: Vec<Cow<'_, str>> = text.split(',').map(|part| one(part, files)).collect::<Result<_, _>>()?;
    Ok(list.join(",").into())
}

fn one<'a>(text: &'a str, files: &dyn Files) -> Result<Cow<'a, str>, String> {
    let plain = address::with_kind(text);
    let (prefix, rest) = plain.split_once('@').unwrap_or(("", &plain));
    let Some(family) = allowed(prefix).filter(|_| !text.starts_with('/')) else { return Ok(text.into()) };
    let (host, port) = rest.rsplit_once(':').map_or((rest, None), |(host, port)| (host, Some(port)));
    if !is_name(host) {
        return Ok(text.into());
    }
    let address = first(host, family, files)?;
    let at = if prefix.is_empty() { "" } else { "@" };
    Ok(match (address, port) {
        (IpAddr::V4(address), None) => format!("{prefix}{at}{address}"),
        (IpAddr::V6(address), None) => format!("{prefix}{at}{address}"),
        (IpAddr::V4(address), Some(port)) => format!("{prefix}{at}{address}:{port}"),
        (IpAddr::V6(address), Some(port)) => format!("{prefix}{at}[{address}]:{port}"),
    }
    .into())
}

fn first(host: &str, family: fn(&IpAddr) -> bool, files: &dyn Files) -> Result<IpAddr, String> {
    let found = files.resolve(host).map_err(|error| format!("could not resolve address '{host}': {error}"))?;
    let address = found.into_iter().find(family);
    address.ok_or_else(|| format!("could not resolve address '{host}': it has no address of this family"))
}

/// Returns the first address of a host's name in the family of a prefix, as [`numeric`] does; of an address itself.
pub(crate) fn host(prefix: &str, host: &str, files: &dyn Files) -> Result<IpAddr, String> {
    match host.parse() {
        Ok(address) => Ok(address),
        Err(_) => first(host, allowed(prefix).unwrap_or(|_| true), files),
    }
}

/// Returns whether a host is a name, and not an address or the beginning of one.
fn is_name(host: &str) -> bool {
    host.len() <= 253
        && host.bytes().any(|byte| byte.is_ascii_alphabetic())
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
        && host.parse::<Ipv4Addr>().is_err()
        && host.parse::<Ipv6Addr>().is_err()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryFiles;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let both = [IpAddr::from([127, 0, 0, 1]), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        let files = MemoryFiles::new().with_name("localhost", &both).with_name("four", &both[..1]);
        let found = numeric(text, &files).unwrap_or_else(|message| message.into());
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn replaces_names_only() {
        check("localhost:80", "127.0.0.1:80");
        check("localhost", "127.0.0.1");
        check("ipv6@localhost:80-90", "ipv6@[::1]:80-90");
        check("ipv4@localhost,:81,localhost:82", "ipv4@127.0.0.1,:81,127.0.0.1:82");
        check("udp@localhost:53", "udp@127.0.0.1:53");
        check("stream+localhost:80", "tcp@127.0.0.1:80");
        check("dgram+ipv6@localhost:53", "udp6@[::1]:53");
        check("mptcp4@localhost:80", "mptcp4@127.0.0.1:80");
        for same in [
            "127.0.0.1:80",
            "[::1]:80",
            "::1",
            "*:80",
            ":80",
            "/run/localhost",
            "unix@localhost",
            "stream+/run/x",
            "fd@3",
            "1.2",
        ] {
            check(same, same);
        }
        check("ipv6@four:80", "could not resolve address 'four': it has no address of this family");
        check("nowhere:80", "could not resolve address 'nowhere': entity not found");
    }
}
