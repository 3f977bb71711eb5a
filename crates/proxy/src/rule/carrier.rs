//! The actions that change what carries a message: addresses, sockets, timeouts, and the connection's end.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use sluicegate_config::model::{AddressPart, TimeoutSide};

use super::Verdict;
use super::action::Done;
use crate::sample::Sample;
use crate::stream::{Side, StreamContext};

/// The longest time that an expression may give: what HAProxy's clock can hold.
const LONGEST_MS: i64 = 1 << 31;

/// Such an action, compiled. What does not stand in it is the accumulator.
pub(super) enum CarrierCode {
    /// `set-src`, `set-dst` and their ports.
    Address(AddressPart),
    /// `set-fc-*`, `set-bc-*`: the side, whether the mark is set, the value.
    Socket(Side, bool, Option<u32>),
    /// `set-timeout`.
    Timeout(TimeoutSide, Option<Duration>),
    /// `pause`.
    Pause(Option<Duration>),
    /// `set-retries`.
    Retries(Option<u32>),
    /// `silent-drop`.
    SilentDrop(Option<u8>),
}

impl CarrierCode {
    pub(super) fn takes_sample(&self) -> bool {
        use CarrierCode::{Address, Pause, Retries, Socket, Timeout};
        matches!(self, Address(_) | Socket(.., None) | Timeout(_, None) | Pause(None) | Retries(None))
    }

    /// Acts. A sample that is not there or can't be cast changes nothing, as in HAProxy.
    pub(super) fn apply(&self, sample: Option<Sample>, cx: &mut StreamContext) -> Done {
        let number = || sample.as_ref().and_then(|sample| sample.as_value().to_int());
        let time = || number().filter(|ms| (1..LONGEST_MS).contains(ms)).map(|ms| Duration::from_millis(ms as u64));
        match self {
            CarrierCode::Address(part) => {
                let ip = sample.as_ref().and_then(|sample| sample.as_value().to_ip());
                set_address(*part, ip, number(), cx);
            }
            CarrierCode::Socket(side, mark, value) => {
                if let Some(value) = value.or_else(|| number().map(|value| value as u32)) {
                    match (side, mark) {
                        (Side::Client, _) => cx.sockets.set_option(*side, *mark, value),
                        (Side::Server, true) => cx.overrides.server_mark = Some(value),
                        (Side::Server, false) => cx.overrides.server_tos = Some(value),
                    }
                }
            }
            CarrierCode::Timeout(side, given) => {
                if let Some(time) = given.or_else(time) {
                    let overrides = &mut cx.overrides;
                    *(match side {
                        TimeoutSide::Client => &mut overrides.client,
                        TimeoutSide::Server => &mut overrides.server,
                        TimeoutSide::Tunnel => &mut overrides.tunnel,
                    }) = Some(time);
                }
            }
            CarrierCode::Pause(given) => {
                if let Some(time) = given.or_else(time) {
                    return Done::Pause(time);
                }
            }
            CarrierCode::Retries(given) => {
                let given = given.or_else(|| number().filter(|n| (0..=100).contains(n)).map(|n| n as u32));
                cx.overrides.retries = given.or(cx.overrides.retries);
            }
            CarrierCode::SilentDrop(ttl) => {
                cx.sockets.drop_silently(*ttl);
                return Done::Verdict(Verdict::Close);
            }
        }
        Done::Next
    }
}

/// Sets an address and keeps its port, or a port and keeps its address: 0.0.0.0 where there was none.
fn set_address(part: AddressPart, ip: Option<IpAddr>, number: Option<i64>, cx: &mut StreamContext) {
    let source = matches!(part, AddressPart::Source | AddressPart::SourcePort);
    let place = if source { &mut cx.source } else { &mut cx.destination };
    let new = match part {
        AddressPart::Source | AddressPart::Destination => {
            ip.map(|ip| SocketAddr::new(ip, place.map_or(0, |address| address.port())))
        }
        AddressPart::SourcePort | AddressPart::DestinationPort => {
            let ip = place.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.ip());
            number.map(|port| SocketAddr::new(ip, port as u16))
        }
    };
    *place = new.or(*place);
}
