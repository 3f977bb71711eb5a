//! Targets of connections that scripts and the process itself make, in HAProxy's notations.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::PathBuf;

use sluicegate_config::model::AbstractName;
use sluicegate_transport::{self as transport, Socket, UnixAddress, connect_tcp, connect_to_any};

/// The target of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// An address.
    Inet(SocketAddr),
    /// A name, resolved when the connection is made.
    Name(String, u16),
    /// A unix socket's path.
    Unix(PathBuf),
    /// An abstract unix socket.
    Abstract(AbstractName),
    /// A connected descriptor that was inherited.
    Descriptor(RawFd),
}

impl Target {
    pub(crate) async fn connect(self) -> io::Result<Socket> {
        self.resolve().await?.connect().await
    }

    /// Finds the addresses of a name.
    pub(crate) async fn resolve(self) -> io::Result<Found> {
        Ok(match self {
            Target::Name(host, port) => Found::All(crate::hosts::lookup(&host, port).await?),
            other => Found::One(other),
        })
    }

    /// Parses a target in HAProxy's notations: `ip`, `ip:port`, `[v6]:port`, `name`, `name:port`, `ipv4@…`, `ipv6@…`,
    /// `/path`, `unix@path`, `abns@name`, `abnsz@name`, `fd@N`. `port` is the separate argument.
    pub(crate) fn parse(text: &str, port: Option<u16>) -> Option<Target> {
        if text.starts_with('/') {
            return Some(Target::Unix(text.into()));
        }
        let text = match text.split_once('@') {
            Some(("unix", path)) => return Some(Target::Unix(path.into())),
            Some((family @ ("abns" | "abnsz"), name)) => {
                return Some(Target::Abstract(AbstractName { name: name.into(), is_exact: family == "abnsz" }));
            }
            Some(("fd", number)) => return number.parse().ok().map(Target::Descriptor),
            Some(("ipv4" | "ipv6", rest)) => rest,
            Some(_) => return None,
            None => text,
        };
        if let Some(port) = port {
            let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
            // HAProxy's own scripts write `host:` with a separate port.
            let bare = bare.strip_suffix(':').filter(|bare| !bare.contains(':')).unwrap_or(bare);
            return Some(match bare.parse() {
                Ok(ip) => Target::Inet(SocketAddr::new(ip, port)),
                Err(_) if is_name(bare) => Target::Name(bare.to_owned(), port),
                Err(_) => return None,
            });
        }
        if let Ok(address) = text.parse() {
            return Some(Target::Inet(address));
        }
        let (host, port) = text.rsplit_once(':')?;
        let port = port.parse().ok()?;
        match host.parse() {
            Ok(ip) => Some(Target::Inet(SocketAddr::new(ip, port))),
            Err(_) if is_name(host) => Some(Target::Name(host.to_owned(), port)),
            Err(_) => None,
        }
    }
}

/// A target whose name, if it had one, is resolved.
pub(crate) enum Found {
    One(Target),
    All(Vec<SocketAddr>),
}

impl Found {
    pub(crate) async fn connect(self) -> io::Result<Socket> {
        match self {
            Found::All(addresses) => connect_to_any(addresses).await,
            Found::One(Target::Inet(address)) => connect_tcp(address).await,
            Found::One(Target::Unix(path)) => UnixAddress::Path(&path).connect(),
            Found::One(Target::Abstract(AbstractName { name, is_exact })) => {
                UnixAddress::Abstract(&name, is_exact).connect()
            }
            Found::One(Target::Descriptor(descriptor)) => Socket::of_unix(transport::inherited(descriptor)?.into()),
            // `resolve` returns none.
            Found::One(Target::Name(..)) => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_as_haproxy_reads_them() {
        let inet = |text: &str| Some(Target::Inet(text.parse().expect("an address")));
        let name = |host: &str, port| Some(Target::Name(host.to_owned(), port));
        for (text, port, expected) in [
            ("127.0.0.1", Some(80), inet("127.0.0.1:80")),
            ("127.0.0.1:81", None, inet("127.0.0.1:81")),
            ("ipv4@127.0.0.1:81", None, inet("127.0.0.1:81")),
            ("::1", Some(80), inet("[::1]:80")),
            ("[::1]:81", None, inet("[::1]:81")),
            ("ipv6@::1:81", None, inet("[::1]:81")),
            ("localhost", Some(80), name("localhost", 80)),
            ("localhost:", Some(80), name("localhost", 80)),
            ("redis-1.internal:6379", None, name("redis-1.internal", 6379)),
            ("/run/x.sock", None, Some(Target::Unix("/run/x.sock".into()))),
            ("unix@/run/x.sock", None, Some(Target::Unix("/run/x.sock".into()))),
            ("abns@x", None, Some(Target::Abstract(AbstractName { name: "x".into(), is_exact: false }))),
            ("abnsz@x", None, Some(Target::Abstract(AbstractName { name: "x".into(), is_exact: true }))),
            ("fd@7", None, Some(Target::Descriptor(7))),
            ("127.0.0.1", None, None),
            ("localhost", None, None),
            ("a b", Some(1), None),
            ("", Some(1), None),
            ("fd@x", None, None),
            ("quic4@1.2.3.4:5", None, None),
        ] {
            assert_eq!(Target::parse(text, port), expected, "{text} {port:?}");
        }
    }
}
