//! Addresses that `bind` lines listen on and `server` lines connect to (HAProxy configuration manual 4).

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use crate::limits;
use crate::model::{AbstractName, BindAddress, ServerAddress, ServerPort};

/// An error in an address, with its position in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddressError {
    /// The byte offset in the text.
    pub(crate) offset: usize,
    /// The message.
    pub(crate) message: String,
    /// The hint.
    pub(crate) hint: Option<&'static str>,
}

fn fail<T>(offset: usize, message: impl Into<String>, hint: Option<&'static str>) -> Result<T, AddressError> {
    Err(AddressError { offset, message: message.into(), hint })
}

/// Returns the error for a host name that cannot be resolved.
pub(crate) fn unresolved<T>(message: String) -> Result<T, AddressError> {
    fail(0, message, Some("the name is resolved once, while the file is read"))
}

/// The address family requested by a prefix.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Any,
    V4,
    V6,
}

enum Prefixed<'a> {
    Inet(Family, &'a str),
    Unix(&'a str),
    Abstract(AbstractName),
    Fd(&'a str),
    Sockpair(&'a str),
    /// The server of `rhttp@`, which HAProxy ignores on `server` lines.
    Reverse(&'a str),
}

/// HAProxy's prefixes that are not supported yet.
const LATER: &[&str] = &["ring"];

/// Families, `/` of a path included, and what they are called once the kind of the socket is part of their name.
const STREAMS: [(&str, &str); 5] =
    [("ip@", "tcp@"), ("ipv4@", "tcp4@"), ("ipv6@", "tcp6@"), ("unix@", "uxst@"), ("/", "uxst@/")];

/// As [`STREAMS`], for datagrams.
const DATAGRAMS: [(&str, &str); 5] =
    [("ip@", "udp@"), ("ipv4@", "udp4@"), ("ipv6@", "udp6@"), ("unix@", "uxdg@"), ("/", "uxdg@/")];

/// Returns an address without the `stream+` or `dgram+` before it: the family that follows is replaced by the one that
/// implies this kind of socket. As in HAProxy, a family that implies a kind of its own (`dgram+tcp@`) takes precedence.
pub(crate) fn with_kind(text: &str) -> Cow<'_, str> {
    let kinds = [("stream+", STREAMS, "tcp@"), ("dgram+", DATAGRAMS, "udp@")];
    let Some((rest, families, any)) =
        kinds.iter().find_map(|(kind, families, any)| Some((text.strip_prefix(kind)?, families, any)))
    else {
        return text.into();
    };
    match families.iter().find_map(|(family, by)| Some((rest.strip_prefix(family)?, by))) {
        Some((rest, by)) => format!("{by}{rest}").into(),
        None if rest.contains('@') => rest.into(),
        None => format!("{any}{rest}").into(),
    }
}

/// Prefixes of addresses of MPTCP, and those of the same addresses for TCP.
const MULTIPATH: [(&str, &str); 3] = [("mptcp@", "tcp@"), ("mptcp4@", "tcp4@"), ("mptcp6@", "tcp6@")];

/// Refuses an address whose family implies another kind of socket; the file has it as `text`.
fn acceptable(text: &str, plain: &str, offset: usize, is_datagram: bool) -> Result<(), AddressError> {
    let (kind, families): (_, &[&str]) = match is_datagram {
        true => ("stream", &["tcp", "tcp4", "tcp6", "uxst"]),
        false => ("dgram", &["udp", "udp4", "udp6", "uxdg"]),
    };
    match plain.split_once('@') {
        Some((family, _)) if families.contains(&family) => {
            fail(offset, format!("{kind}-type address not acceptable in '{text}'"), None)
        }
        _ => Ok(()),
    }
}

/// Returns the address as one of TCP, if it is one of MPTCP.
fn multipath(text: &str) -> Option<String> {
    let text = with_kind(text);
    let (rest, prefix) = MULTIPATH.iter().find_map(|(of, by)| Some((text.strip_prefix(of)?, by)))?;
    Some(format!("{prefix}{rest}"))
}

fn prefix(text: &str, offset: usize) -> Result<Prefixed<'_>, AddressError> {
    if text.starts_with('/') {
        return Ok(Prefixed::Unix(text));
    }
    let Some((name, rest)) = text.split_once('@') else {
        return Ok(Prefixed::Inet(Family::Any, text));
    };
    match name {
        "unix" | "uxst" | "uxdg" => Ok(Prefixed::Unix(rest)),
        "abns" | "abnsz" => abstract_name(rest, name == "abnsz", offset).map(Prefixed::Abstract),
        "fd" => Ok(Prefixed::Fd(rest)),
        "sockpair" => Ok(Prefixed::Sockpair(rest)),
        "rhttp" => Ok(Prefixed::Reverse(rest)),
        "ip" | "tcp" | "udp" => Ok(Prefixed::Inet(Family::Any, rest)),
        "ipv4" | "tcp4" | "udp4" => Ok(Prefixed::Inet(Family::V4, rest)),
        "ipv6" | "tcp6" | "udp6" => Ok(Prefixed::Inet(Family::V6, rest)),
        "quic4" | "quic6" => fail(
            offset,
            format!("addresses of the form '{name}@' are not supported: QUIC is not"),
            Some("with 'no-quic' in 'global' lines of QUIC are read and not bound"),
        ),
        name if LATER.contains(&name) => {
            fail(offset, format!("addresses of the form '{name}@' are not supported yet"), None)
        }
        name => fail(
            offset,
            format!("unknown address family '{name}@'"),
            Some("families are ipv4@, ipv6@, unix@, abns@, abnsz@, fd@, sockpair@ and rhttp@"),
        ),
    }
}

/// Splits `host:port`; the port is the part after the last colon, unless that colon is within brackets.
fn host_port(text: &str) -> (&str, Option<&str>) {
    if let Some(end) = text.rfind(']') {
        return match text[end + 1..].strip_prefix(':') {
            Some(port) => (&text[..=end], Some(port)),
            None => (text, None),
        };
    }
    match text.rsplit_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    }
}

fn ip(host: &str, family: Family) -> Option<IpAddr> {
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    match (bare, family) {
        (Some(inner), Family::Any | Family::V6) => inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        (Some(_), Family::V4) => None,
        (None, Family::V4) => host.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        (None, Family::V6) => host.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        (None, Family::Any) => host.parse::<IpAddr>().ok(),
    }
}

fn port_number(text: &str, offset: usize) -> Result<u16, AddressError> {
    match text.parse::<u32>() {
        Ok(port @ 1..=65535) if text.bytes().all(|b| b.is_ascii_digit()) => Ok(port as u16),
        _ => fail(offset, format!("invalid port '{text}'"), Some("a port is a number from 1 to 65535")),
    }
}

fn descriptor(text: &str, offset: usize, hint: &'static str) -> Result<i32, AddressError> {
    match text.parse::<i32>() {
        Ok(number) if number >= 0 && text.bytes().all(|b| b.is_ascii_digit()) => Ok(number),
        _ => fail(offset, format!("file descriptor '{text}' is no number"), Some(hint)),
    }
}

fn fd(text: &str, offset: usize) -> Result<i32, AddressError> {
    descriptor(text, offset, "write 'fd@N', or 'fd@${NAME}' with the number in a variable")
}

fn sockpair(text: &str, offset: usize) -> Result<i32, AddressError> {
    descriptor(text, offset, "write 'sockpair@N', or 'sockpair@${NAME}' with the number in a variable")
}

/// The maximum length of a unix socket's path (the size of `sun_path` without its terminating zero).
const UNIX_PATH: usize = 107;

fn unix(path: &str, offset: usize) -> Result<PathBuf, AddressError> {
    if path.is_empty() {
        return fail(offset, "a unix socket needs its path", None);
    }
    if path.len() > UNIX_PATH {
        return fail(offset, format!("socket path '{path}' is too long (at most {UNIX_PATH} bytes)"), None);
    }
    Ok(PathBuf::from(path))
}

fn abstract_name(name: &str, is_exact: bool, offset: usize) -> Result<AbstractName, AddressError> {
    if name.len() > UNIX_PATH {
        return fail(offset, format!("socket name '{name}' is too long (at most {UNIX_PATH} bytes)"), None);
    }
    Ok(AbstractName { name: name.to_owned(), is_exact })
}

/// Returns whether the addresses of a `bind` line are of MPTCP.
pub(crate) fn is_multipath(text: &str) -> bool {
    multipath(text).is_some()
}

/// Parses the addresses of `bind`, or of `dgram-bind`: separated by commas, with port ranges expanded.
pub(crate) fn bind(text: &str, is_datagram: bool) -> Result<Vec<BindAddress>, AddressError> {
    let mut found = Vec::new();
    let mut offset = 0;
    for one in text.split(',') {
        let by_tcp = multipath(one);
        if is_multipath(text) != by_tcp.is_some() {
            return fail(offset, "addresses of MPTCP and others on one line", Some("write a line for each"));
        }
        let plain = by_tcp.map_or_else(|| with_kind(one), Cow::Owned);
        acceptable(one, &plain, offset, is_datagram)?;
        bind_one(one, &plain, offset, &mut found)?;
        if found.len() > limits::BIND_ADDRESSES {
            return fail(offset, "too many addresses on one 'bind' line", None);
        }
        offset += one.len() + 1;
    }
    let reverse = found.iter().filter(|address| matches!(address, BindAddress::Reverse(_))).count();
    if reverse > 0 && reverse < found.len() {
        return fail(0, "Cannot mix reverse HTTP bind with others.", None);
    }
    Ok(found)
}

/// Parses one address of `bind`, which the file has as `text`; `plain` is the same without its kind of socket.
fn bind_one(text: &str, plain: &str, offset: usize, found: &mut Vec<BindAddress>) -> Result<(), AddressError> {
    if text.is_empty() {
        return fail(offset, "an address is missing", Some("for example 'bind :8080'"));
    }
    let (family, rest) = match prefix(plain, offset)? {
        Prefixed::Unix(path) => {
            found.push(BindAddress::Unix(unix(path, offset)?));
            return Ok(());
        }
        Prefixed::Abstract(name) => {
            found.push(BindAddress::Abstract(name));
            return Ok(());
        }
        Prefixed::Fd(number) => {
            found.push(BindAddress::Fd(fd(number, offset)?));
            return Ok(());
        }
        Prefixed::Sockpair(number) => {
            found.push(BindAddress::Sockpair(sockpair(number, offset)?));
            return Ok(());
        }
        Prefixed::Reverse(server) => {
            found.push(BindAddress::Reverse(server.into()));
            return Ok(());
        }
        Prefixed::Inet(family, rest) => (family, rest),
    };
    let (host, ports) = host_port(rest);
    let Some(ports) = ports.filter(|p| !p.is_empty()) else {
        return fail(offset, format!("missing port number: '{text}'"), Some("write ADDRESS:PORT, for example ':8080'"));
    };
    let address = match host {
        "" | "*" => any(family),
        _ => match ip(host, family) {
            Some(ip) => ip,
            None => {
                return fail(offset, format!("invalid address: '{host}' in '{text}'"), None);
            }
        },
    };
    let ports_at = offset + text.len() - ports.len();
    let (low, high) = match ports.split_once('-') {
        Some((low, high)) => (port_number(low, ports_at)?, port_number(high, ports_at + low.len() + 1)?),
        None => {
            let port = port_number(ports, ports_at)?;
            (port, port)
        }
    };
    if low > high {
        return fail(ports_at, format!("invalid port range '{ports}'"), Some("the lower port comes first"));
    }
    found.extend((low..=high).map(|port| BindAddress::Inet(address, port)));
    Ok(())
}

/// Parses the address of a `server` line. Host names are kept as they are; they are resolved at startup, but not when
/// the configuration is only checked.
pub(crate) fn server(text: &str) -> Result<ServerAddress, AddressError> {
    let plain = with_kind(text);
    acceptable(text, &plain, 0, false)?;
    server_of(text, &plain)
}

/// Parses an address to connect to, which the file has as `text`; `plain` is the same without its kind of socket.
fn server_of(text: &str, plain: &str) -> Result<ServerAddress, AddressError> {
    let (family, rest) = match prefix(plain, 0)? {
        Prefixed::Unix(path) => return Ok(ServerAddress::Unix(unix(path, 0)?)),
        Prefixed::Abstract(name) => return Ok(ServerAddress::Abstract(name)),
        Prefixed::Sockpair(number) => return Ok(ServerAddress::Sockpair(sockpair(number, 0)?)),
        Prefixed::Fd(_) => return fail(0, "a server can't be an inherited descriptor", None),
        Prefixed::Reverse(_) => return fail(0, "'rhttp@' is an address of 'server' and 'bind' lines only", None),
        Prefixed::Inet(family, rest) => (family, rest),
    };
    // An address without a port may be an IPv6 address without brackets, whose colons do not separate a port.
    if let Some(address) = rest.parse::<Ipv6Addr>().ok().filter(|_| family != Family::V4 && !rest.contains('.')) {
        // `::1:80` is a complete address; HAProxy nevertheless reads the part after the last colon as the port.
        let (host, port) = host_port(rest);
        return match (ip(host, family), port.map(|p| port_number(p, 0))) {
            (Some(address), Some(Ok(port))) => Ok(ServerAddress::Inet(address, ServerPort::Fixed(port))),
            _ => Ok(ServerAddress::Inet(IpAddr::V6(address), ServerPort::Offset(0))),
        };
    }
    let (host, port) = host_port(rest);
    let port_at = text.len() - port.map_or(0, str::len);
    let port = match port {
        None | Some("" | "0") => ServerPort::Offset(0),
        Some(port) if port.starts_with(['+', '-']) => match port.parse::<i32>() {
            Ok(offset) if offset.abs() <= 65535 => ServerPort::Offset(offset),
            _ => return fail(port_at, format!("invalid port offset '{port}'"), None),
        },
        Some(port) if port.contains('-') => {
            return fail(port_at, format!("port range '{port}' is not allowed here"), Some("a server has one port"));
        }
        Some(port) => ServerPort::Fixed(port_number(port, port_at)?),
    };
    if let Some(address) = ip(host, family) {
        return Ok(ServerAddress::Inet(address, port));
    }
    if matches!(host, "" | "*") && !text.is_empty() {
        // The server has no address of its own: the address that the client connected to is used.
        return Ok(ServerAddress::Inet(any(family), port));
    }
    let name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    let numeric = host.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if host.is_empty() || host.len() > 253 || !host.bytes().all(name) || numeric || family == Family::V6 && host == "*"
    {
        let hint = Some("write ADDRESS:PORT, for example '10.0.0.1:80'");
        return fail(0, format!("invalid address: '{host}' in '{text}'"), hint);
    }
    Ok(ServerAddress::Name(host.to_owned(), port))
}

/// Returns the unspecified address of a family.
fn any(family: Family) -> IpAddr {
    if family == Family::V6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// Parses a numeric address to connect to; returns it with its port, if the text has one other than 0.
pub(crate) fn numeric(text: &str) -> Result<(IpAddr, Option<u16>), String> {
    match server(text) {
        Ok(ServerAddress::Inet(address, ServerPort::Fixed(port))) => Ok((address, Some(port))),
        Ok(ServerAddress::Inet(address, ServerPort::Offset(0))) => Ok((address, None)),
        Ok(_) => Err(format!("'{text}' is no internet address")),
        Err(problem) => Err(problem.message),
    }
}

/// Parses the address of a name server; returns it, and whether TCP is used.
pub(crate) fn nameserver(text: &str) -> Result<(SocketAddr, bool), AddressError> {
    let plain = with_kind(text);
    let (family, tcp, rest) = match plain.split_once('@') {
        None => (Family::Any, false, &*plain),
        Some(("udp" | "ip", rest)) => (Family::Any, false, rest),
        Some(("udp4" | "ipv4", rest)) => (Family::V4, false, rest),
        Some(("udp6" | "ipv6", rest)) => (Family::V6, false, rest),
        Some(("tcp", rest)) => (Family::Any, true, rest),
        Some(("tcp4", rest)) => (Family::V4, true, rest),
        Some(("tcp6", rest)) => (Family::V6, true, rest),
        Some((name, _)) => {
            let hint = Some("name servers are asked over udp@ or tcp@");
            return fail(0, format!("unknown address family '{name}@' of a name server"), hint);
        }
    };
    let (host, port) = host_port(rest);
    let Some(port) = port else {
        return fail(0, format!("missing port number: '{text}'"), Some("name servers listen on port 53"));
    };
    // As in HAProxy, an address without a host is the unspecified one.
    let unspecified = || matches!(host, "" | "*").then(|| any(family));
    let Some(ip) = ip(host, family).or_else(unspecified) else {
        return fail(0, format!("invalid address: '{host}' in '{text}'"), Some("write ADDRESS:PORT, without a name"));
    };
    Ok((SocketAddr::new(ip, port_number(port, text.len() - port.len())?), tcp))
}

/// How a server is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Stream,
    /// A stream by MPTCP.
    Multipath,
    Datagram,
}

/// Parses the address of a `server` line with its prefix.
pub(crate) fn server_line(text: &str) -> Result<(ServerAddress, Transport), AddressError> {
    let plain = with_kind(text);
    if plain.starts_with("rhttp@") {
        // As in HAProxy, whatever follows has no meaning.
        return Ok((ServerAddress::Reverse, Transport::Stream));
    }
    if let Some(by_tcp) = multipath(text) {
        return Ok((server_of(text, &by_tcp)?, Transport::Multipath));
    }
    match plain.split_once('@') {
        Some(("udp" | "udp4" | "udp6", _)) => Ok((server_of(text, &plain)?, Transport::Datagram)),
        _ => Ok((server(text)?, Transport::Stream)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let found = match bind(text, false) {
            Ok(list) => format!("{list:?}"),
            Err(error) => format!("{}: {}", error.offset, error.message),
        };
        assert_eq!(found, expected, "{text}");
    }

    #[track_caller]
    fn check_server(text: &str, expected: &str) {
        let found = match server_line(text) {
            Ok((address, Transport::Stream)) => format!("{address:?}"),
            Ok((address, transport)) => format!("{address:?} {transport:?}"),
            Err(error) => format!("{}: {}", error.offset, error.message),
        };
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn listening() {
        check(":80", "[Inet(0.0.0.0, 80)]");
        check("*:80", "[Inet(0.0.0.0, 80)]");
        check("127.0.0.1:80,[::1]:81", "[Inet(127.0.0.1, 80), Inet(::1, 81)]");
        check(":8000-8002", "[Inet(0.0.0.0, 8000), Inet(0.0.0.0, 8001), Inet(0.0.0.0, 8002)]");
        check("ipv4@:80", "[Inet(0.0.0.0, 80)]");
        check("ipv6@:80", "[Inet(::, 80)]");
        check(":::80", "[Inet(::, 80)]");
        check("/tmp/x.sock", "[Unix(\"/tmp/x.sock\")]");
        check("unix@x.sock", "[Unix(\"x.sock\")]");
        check("abns@x", "[Abstract(AbstractName { name: \"x\", is_exact: false })]");
        check("abnsz@x", "[Abstract(AbstractName { name: \"x\", is_exact: true })]");
        let long = "x".repeat(108);
        check(&format!(":1,abns@{long}"), &format!("3: socket name '{long}' is too long (at most 107 bytes)"));
        check("fd@7", "[Fd(7)]");
        check("sockpair@7,sockpair@8", "[Sockpair(7), Sockpair(8)]");
    }

    #[test]
    fn kinds_of_sockets() {
        check("stream+:80,stream+fd@7,dgram+tcp@:81", "[Inet(0.0.0.0, 80), Fd(7), Inet(0.0.0.0, 81)]");
        check("stream+ipv6@:80,stream+/tmp/x", "[Inet(::, 80), Unix(\"/tmp/x\")]");
        check("stream+unix@x,stream+abns@y", "[Unix(\"x\"), Abstract(AbstractName { name: \"y\", is_exact: false })]");
        check("stream+rhttp@be/s", "[Reverse(\"be/s\")]");
        check(":1,stream+:0", "11: invalid port '0'");
        check("stream+x:80", "0: invalid address: 'x' in 'stream+x:80'");
        check("stream+stream+:80", "0: invalid address: 'stream+' in 'stream+stream+:80'");
        check("stream+", "0: missing port number: 'stream+'");
        check("dgram+:80", "0: dgram-type address not acceptable in 'dgram+:80'");
        check(":1,stream+udp@:80", "3: dgram-type address not acceptable in 'stream+udp@:80'");
        check("dgram+unix@/tmp/x", "0: dgram-type address not acceptable in 'dgram+unix@/tmp/x'");
        check_server("uxdg@/tmp/x", "0: dgram-type address not acceptable in 'uxdg@/tmp/x'");
        let datagrams = ["udp@:514", "dgram+:514", "stream+udp4@:514", ":514"];
        assert!(datagrams.iter().all(|text| bind(text, true).unwrap() == bind(":514", false).unwrap()));
        for text in ["tcp@:514", "stream+:514", "mptcp@:514"] {
            let message = format!("stream-type address not acceptable in '{text}'");
            assert_eq!(bind(text, true).map_err(|error| error.message), Err(message));
        }
        check_server("stream+127.0.0.1:80", "Inet(127.0.0.1, Fixed(80))");
        check_server("stream+app:80", "Name(\"app\", Fixed(80))");
        check_server("stream+ipv6@:80", "Inet(::, Fixed(80))");
        check_server("stream+mptcp@[::1]:80", "Inet(::1, Fixed(80)) Multipath");
        check_server("stream+/run/app.sock", "Unix(\"/run/app.sock\")");
        check_server("stream+rhttp@", "Reverse");
        check_server("stream+udp4@:80", "Inet(0.0.0.0, Fixed(80)) Datagram");
        check_server("dgram+127.0.0.1:80", "Inet(127.0.0.1, Fixed(80)) Datagram");
        check_server("dgram+ipv6@[::1]:80", "Inet(::1, Fixed(80)) Datagram");
        check_server("dgram+tcp@127.0.0.1:80", "Inet(127.0.0.1, Fixed(80))");
        check_server("dgram+127.0.0.1:x", "16: invalid port 'x'");
        let servers = ["stream+127.0.0.1:53", "dgram+127.0.0.1:53", "stream+udp@127.0.0.1:53", "ip@127.0.0.1:53"];
        let found = servers.map(|text| nameserver(text).unwrap());
        assert_eq!(found.map(|(_, by_tcp)| by_tcp), [true, false, false, false]);
        assert!(found.iter().all(|(address, _)| address.to_string() == "127.0.0.1:53"));
    }

    #[test]
    fn listening_mistakes() {
        check("80", "0: missing port number: '80'");
        check(":99999", "1: invalid port '99999'");
        check(":0", "1: invalid port '0'");
        check(":90-80", "1: invalid port range '90-80'");
        check(":80,:x", "5: invalid port 'x'");
        check("localhost:80", "0: invalid address: 'localhost' in 'localhost:80'");
        check("fd@${x}", "0: file descriptor '${x}' is no number");
        check(":80,sockpair@7:80", "4: file descriptor '7:80' is no number");
        check("sockpair@", "0: file descriptor '' is no number");
        check("foo@x:1", "0: unknown address family 'foo@'");
        check("quic4@:443", "0: addresses of the form 'quic4@' are not supported: QUIC is not");
        check("", "0: an address is missing");
        check("ipv4@[::1]:80", "0: invalid address: '[::1]' in 'ipv4@[::1]:80'");
    }

    #[test]
    fn connecting() {
        check_server("10.0.0.1:80", "Inet(10.0.0.1, Fixed(80))");
        check_server("10.0.0.1", "Inet(10.0.0.1, Offset(0))");
        check_server("10.0.0.1:+1000", "Inet(10.0.0.1, Offset(1000))");
        check_server("[::1]:80", "Inet(::1, Fixed(80))");
        check_server("app.example.com:80", "Name(\"app.example.com\", Fixed(80))");
        check_server("mptcp@app:80", "Name(\"app\", Fixed(80)) Multipath");
        check_server("mptcp6@[::1]:80", "Inet(::1, Fixed(80)) Multipath");
        check_server("mptcp4@[::1]:80", "0: invalid address: '[::1]' in 'mptcp4@[::1]:80'");
        check_server("ipv4@app:80", "Name(\"app\", Fixed(80))");
        check_server(":80", "Inet(0.0.0.0, Fixed(80))");
        check_server("*:80", "Inet(0.0.0.0, Fixed(80))");
        check_server("ipv4@", "Inet(0.0.0.0, Offset(0))");
        check_server("ipv6@:80", "Inet(::, Fixed(80))");
        check_server("/run/app.sock", "Unix(\"/run/app.sock\")");
        check_server("abns@app", "Abstract(AbstractName { name: \"app\", is_exact: false })");
        check_server("abnsz@app", "Abstract(AbstractName { name: \"app\", is_exact: true })");
        check_server("sockpair@7", "Sockpair(7)");
        check_server("sockpair@-1", "0: file descriptor '-1' is no number");
        check_server("1.2.3:80", "0: invalid address: '1.2.3' in '1.2.3:80'");
        check_server("app:99999", "4: invalid port '99999'");
        check_server("app:80-90", "4: port range '80-90' is not allowed here");
        check_server("a b:80", "0: invalid address: 'a b' in 'a b:80'");
    }
}
