//! The actions on a stream's connections: addresses, sockets, timeouts, and the connection's end.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use sluicegate_config::model::{AddressPart, Carrier, NumberOr, TimeOr, TimeoutSide};

use super::Verdict;
use super::action::{Compiled, Done, Run, action, on_sample};
use super::build::Builder;
use crate::sample::Value;
use crate::stream::{Side, StreamContext};

/// The longest time accepted from an expression: the maximum that HAProxy's clock can represent.
const LONGEST_MS: i64 = 1 << 31;

// A sample that can't be cast changes nothing, as in HAProxy.

pub(super) fn carrier(b: &mut Builder<'_>, carrier: &Carrier) -> Compiled {
    match carrier {
        Carrier::Address(part, expr) => {
            b.expr(expr);
            let part = *part;
            on_sample(move |sample, run| {
                let value = sample.as_value();
                set_address(part, value.to_ip(), value.to_int(), run.cx);
                Done::Next
            })
        }
        Carrier::Socket { server, mark, value } => {
            let (side, mark) = (if *server { Side::Server } else { Side::Client }, *mark);
            with_number(
                b,
                value,
                |number| Some(number as u32),
                move |value, run| match (side, mark) {
                    (Side::Client, _) => run.cx.sockets.set_option(side, mark, value),
                    (Side::Server, true) => run.cx.overrides.server_mark = Some(value),
                    (Side::Server, false) => run.cx.overrides.server_tos = Some(value),
                },
            )
        }
        Carrier::Retries(value) => {
            let within = |number| (0..=100).contains(&number).then_some(number as u32);
            with_number(b, value, within, |retries, run| run.cx.overrides.retries = Some(retries))
        }
        Carrier::Timeout(side, time) => {
            let side = *side;
            with_time(b, time, move |time, run| {
                let overrides = &mut run.cx.overrides;
                *(match side {
                    TimeoutSide::Client => &mut overrides.client,
                    TimeoutSide::Server => &mut overrides.server,
                    TimeoutSide::Tunnel => &mut overrides.tunnel,
                }) = Some(time);
                Done::Next
            })
        }
        Carrier::Pause(time) => with_time(b, time, |time, _| Done::Pause(time)),
        Carrier::SilentDrop(ttl) => {
            let ttl = *ttl;
            action(move |run| {
                run.cx.sockets.drop_silently(ttl);
                Done::Verdict(Verdict::Close)
            })
        }
    }
}

/// Returns an action with a number, which is fixed or the result of an expression, if it is accepted.
fn with_number(
    b: &mut Builder<'_>,
    number: &NumberOr,
    accept: impl Fn(i64) -> Option<u32> + Send + Sync + 'static,
    act: impl Fn(u32, &mut Run<'_>) + Send + Sync + 'static,
) -> Compiled {
    match number {
        NumberOr::Number(number) => {
            let number = *number;
            action(move |run| {
                act(number, run);
                Done::Next
            })
        }
        NumberOr::Expr(expr) => {
            b.expr(expr);
            on_sample(move |sample, run| {
                if let Some(number) = sample.as_value().to_int().and_then(&accept) {
                    act(number, run);
                }
                Done::Next
            })
        }
    }
}

/// Returns an action that calls `act` with a time, which is fixed or the result of an expression in milliseconds.
fn with_time(
    b: &mut Builder<'_>,
    time: &TimeOr,
    act: impl Fn(Duration, &mut Run<'_>) -> Done<'static> + Send + Sync + 'static,
) -> Compiled {
    match time {
        TimeOr::Time(time) => {
            let time = *time;
            action(move |run| act(time, run))
        }
        TimeOr::Expr(expr) => {
            b.expr(expr);
            on_sample(move |sample, run| match milliseconds(&sample.as_value()) {
                Some(time) => act(time, run),
                None => Done::Next,
            })
        }
    }
}

/// Returns a sample as a time in milliseconds.
pub(super) fn milliseconds(value: &Value<'_>) -> Option<Duration> {
    let ms = value.to_int().filter(|ms| (1..LONGEST_MS).contains(ms))?;
    Some(Duration::from_millis(ms as u64))
}

/// Sets an address and keeps its port, or sets a port and keeps its address, which is 0.0.0.0 if there was none.
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
