//! Addresses, and what the kernel knows of a connection (HAProxy configuration manual 7.3.3).
//!
//! `src` and `dst` are what a PROXY protocol header said, if one came, or what rules set for the stream; `fc_src` and its
//! kin are what the connection has. What stands behind a descriptor
//! (the server's addresses, round trip times) is asked of the kernel when it is fetched: one system call, and none for
//! those who don't ask.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use sluicegate_config::catalogue::Fetch;
use sluicegate_wire::proxy_protocol::tlv;

use super::Args;
use crate::sample::value::Value;
use crate::stream::{Side, StreamContext, TcpFigure};

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The peer of the client's connection.
    Source,
    /// This end of the client's connection.
    Destination,
    /// The peer of the client's connection, whatever its header says.
    OwnSource,
    /// This end of the client's connection, whatever its header says.
    OwnDestination,
    /// This end of the server's connection.
    ServerSource,
    /// The peer of the server's connection.
    ServerDestination,
}

/// What of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The address.
    Ip,
    /// The port.
    Port,
    /// Whether it is one of this machine.
    Local,
}

/// A fetch of a connection.
#[derive(Clone, Debug)]
pub enum Connection {
    /// An address.
    Address(End, Part),
    /// A figure of the kernel's; a time in microseconds if told so, else in milliseconds.
    Tcp(Side, TcpFigure, bool),
    /// `bc_reused`.
    Reused,
    /// `fc_http_major`.
    ClientVersion,
    /// `bc_http_major`.
    ServerVersion,
    /// `fc_pp_authority`, `fc_pp_unique_id`, `fc_pp_tlv`.
    Tlv(u8),
    /// `fc_rcvd_proxy`.
    ReceivedProxy,
    /// `fc_err`, `bc_err`: a connection that rules see has no error.
    Error(Side),
    /// The same in words.
    ErrorText(Side),
    /// `fc_err_name`, `bc_err_name`.
    ErrorName(Side),
}

impl Connection {
    pub(super) fn compile(fetch: Fetch, args: &Args<'_>) -> Result<Option<Connection>, String> {
        use Part::{Ip, Local, Port};
        let tcp = |side, figure| Ok(Some(Connection::Tcp(side, figure, false)));
        let timed = |side, figure| {
            let micros = match args.str(0)? {
                None | Some("ms") => false,
                Some("us") => true,
                Some(other) => return Err(format!("'{other}' is not ms or us")),
            };
            Ok(Some(Connection::Tcp(side, figure, micros)))
        };
        Ok(Some(match fetch {
            Fetch::Src => Connection::Address(End::Source, Ip),
            Fetch::SrcPort => Connection::Address(End::Source, Port),
            Fetch::SrcIsLocal => Connection::Address(End::Source, Local),
            Fetch::Dst => Connection::Address(End::Destination, Ip),
            Fetch::DstPort => Connection::Address(End::Destination, Port),
            Fetch::DstIsLocal => Connection::Address(End::Destination, Local),
            Fetch::FcSrc => Connection::Address(End::OwnSource, Ip),
            Fetch::FcSrcPort => Connection::Address(End::OwnSource, Port),
            Fetch::FcSrcIsLocal => Connection::Address(End::OwnSource, Local),
            Fetch::FcDst => Connection::Address(End::OwnDestination, Ip),
            Fetch::FcDstPort => Connection::Address(End::OwnDestination, Port),
            Fetch::FcDstIsLocal => Connection::Address(End::OwnDestination, Local),
            Fetch::FcPpAuthority => Connection::Tlv(tlv::AUTHORITY),
            Fetch::FcPpUniqueId => Connection::Tlv(tlv::UNIQUE_ID),
            Fetch::FcPpTlv => Connection::Tlv(tlv_number(&args.text(0)?)?),
            Fetch::BcSrc => Connection::Address(End::ServerSource, Ip),
            Fetch::BcSrcPort => Connection::Address(End::ServerSource, Port),
            Fetch::BcDst => Connection::Address(End::ServerDestination, Ip),
            Fetch::BcDstPort => Connection::Address(End::ServerDestination, Port),
            Fetch::BcReused => Connection::Reused,
            Fetch::FcHttpMajor => Connection::ClientVersion,
            Fetch::BcHttpMajor => Connection::ServerVersion,
            Fetch::FcRcvdProxy => Connection::ReceivedProxy,
            Fetch::FcErr => Connection::Error(Side::Client),
            Fetch::FcErrStr => Connection::ErrorText(Side::Client),
            Fetch::FcErrName => Connection::ErrorName(Side::Client),
            Fetch::BcErrName => Connection::ErrorName(Side::Server),
            Fetch::BcErr => Connection::Error(Side::Server),
            Fetch::BcErrStr => Connection::ErrorText(Side::Server),
            Fetch::FcRtt => return timed(Side::Client, TcpFigure::Rtt),
            Fetch::FcRttvar => return timed(Side::Client, TcpFigure::RttVariation),
            Fetch::BcRtt => return timed(Side::Server, TcpFigure::Rtt),
            Fetch::BcRttvar => return timed(Side::Server, TcpFigure::RttVariation),
            Fetch::FcLost => return tcp(Side::Client, TcpFigure::Lost),
            Fetch::FcMss => return tcp(Side::Client, TcpFigure::SegmentSize),
            Fetch::FcFackets => return tcp(Side::Client, TcpFigure::ForwardAcknowledged),
            Fetch::FcReordering => return tcp(Side::Client, TcpFigure::Reordering),
            Fetch::FcRetrans => return tcp(Side::Client, TcpFigure::Retransmitted),
            Fetch::FcSacked => return tcp(Side::Client, TcpFigure::SelectivelyAcknowledged),
            Fetch::FcUnacked => return tcp(Side::Client, TcpFigure::Unacknowledged),
            _ => return Ok(None),
        }))
    }

    pub(super) fn fetch<'a>(&'a self, cx: &'a StreamContext) -> Option<Value<'a>> {
        Some(match self {
            Connection::Address(end, part) => {
                let address = match end {
                    End::Source => cx.source?,
                    End::Destination => cx.destination?,
                    End::OwnSource => {
                        cx.client.proxied().map_or(cx.client.ends().0.or(cx.source), |proxied| proxied.peer)?
                    }
                    End::OwnDestination => {
                        cx.client.proxied().map_or(cx.client.ends().1.or(cx.destination), |proxied| proxied.local)?
                    }
                    End::ServerSource => cx.sockets.server_local()?,
                    End::ServerDestination => cx.sockets.server_peer()?,
                };
                part_of(address, *part)
            }
            Connection::Tcp(side, figure, micros) => {
                let value = i64::from(cx.sockets.tcp(*side, *figure)?);
                let rounded = match figure {
                    TcpFigure::Rtt | TcpFigure::RttVariation if !micros => (value + 500) / 1000,
                    _ => value,
                };
                Value::Int(rounded)
            }
            Connection::Reused => Value::Bool(cx.sockets.server_reused()?),
            Connection::ClientVersion => Value::Int(1),
            Connection::ServerVersion => {
                cx.sockets.server_reused()?;
                Value::Int(1)
            }
            Connection::ReceivedProxy if cx.refused.is_some() => return None,
            Connection::ReceivedProxy => Value::Bool(cx.client.proxied().is_some_and(|proxied| proxied.tlvs.is_some())),
            Connection::Tlv(kind) => Value::Str(cx.client.proxied()?.tlv(*kind)?.into()),
            Connection::Error(Side::Client) if let Some(error) = cx.refused => Value::Int(error.number()),
            Connection::Error(side) => {
                cx.sockets.is_there(*side).then_some(())?;
                Value::Int(0)
            }
            Connection::ErrorName(Side::Client) if let Some(error) = cx.refused => Value::text(error.name().as_bytes()),
            Connection::ErrorName(side) => {
                cx.sockets.is_there(*side).then_some(())?;
                Value::text(b"")
            }
            Connection::ErrorText(Side::Client) if let Some(error) = cx.refused => {
                Value::Str(error.to_string().into_bytes().into())
            }
            Connection::ErrorText(side) => {
                cx.sockets.is_there(*side).then_some(())?;
                Value::text(b"Success")
            }
        })
    }
}

fn part_of(address: SocketAddr, part: Part) -> Value<'static> {
    match part {
        Part::Ip => Value::Ip(address.ip()),
        Part::Port => Value::Int(i64::from(address.port())),
        Part::Local => Value::Bool(is_local(address.ip())),
    }
}

/// The number of a TLV that `fc_pp_tlv` names.
fn tlv_number(name: &[u8]) -> Result<u8, String> {
    let name = String::from_utf8_lossy(name);
    Ok(match &*name {
        "ALPN" => tlv::ALPN,
        "AUTHORITY" => tlv::AUTHORITY,
        "CRC32C" => tlv::CRC32C,
        "NETNS" => tlv::NETNS,
        "NOOP" => tlv::NOOP,
        "SSL" => tlv::SSL,
        "SSL_CIPHER" => tlv::SSL_CIPHER,
        "SSL_CN" => tlv::SSL_CN,
        "SSL_KEY_ALG" => tlv::SSL_KEY_ALG,
        "SSL_SIG_ALG" => tlv::SSL_SIG_ALG,
        "SSL_VERSION" => tlv::SSL_VERSION,
        "UNIQUE_ID" => tlv::UNIQUE_ID,
        number => match number.strip_prefix("0x") {
            Some(digits) => u8::from_str_radix(digits, 16).ok(),
            None => number.parse().ok(),
        }
        .ok_or_else(|| format!("'{number}' does not name a type of TLV"))?,
    })
}

/// An address is this machine's if a socket can be bound to it, which is how HAProxy finds out, too.
fn is_local(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_are_local() {
        for (ip, expected) in [("127.0.0.1", true), ("127.9.9.9", true), ("192.0.2.1", false), ("2001:db8::1", false)] {
            assert_eq!(is_local(ip.parse().expect("an address")), expected, "{ip}");
        }
    }
}
