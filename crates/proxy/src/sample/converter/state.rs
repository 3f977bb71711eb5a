//! Converters that access data outside of the sample: servers by name, captures, and the program's own output.

use sluicegate_config::model::Arg;

use super::super::fetch::{queue_of, usable_servers_of};
use super::super::value::Value;
use super::args::Args;
use super::code::{Compiled, changing, value};
use super::{Converted, Effect};

pub(super) fn nbsrv(_: &Args<'_>) -> Compiled {
    value((), |(), value, cx| {
        let name = value.into_text();
        let sides = cx.frontend.directory.backend(std::str::from_utf8(&name).ok()?)?;
        Some(Value::Int(usable_servers_of(sides)))
    })
}

/// `srv_queue`: without a backend's name, the server is one of the own section, which may have no such server.
pub(super) fn srv_queue(args: &Args<'_>) -> Compiled {
    let own = args.scope.directory.zip(args.scope.own).map(|(directory, index)| directory.proxies[index].clone());
    value(own, |own, value, cx| {
        let name = value.into_text();
        let name = std::str::from_utf8(&name).ok()?;
        let (sides, server) = match name.split_once('/') {
            Some((backend, server)) => (cx.frontend.directory.backend(backend), server),
            None => (own.as_ref(), name),
        };
        Some(Value::Int(queue_of(sides?.server(server)?)))
    })
}

fn capture(args: &Args<'_>, response: bool) -> Compiled {
    // A slot that no frontend has yields no result.
    let slot = args.int(0)?.and_then(|slot| usize::try_from(slot).ok()).unwrap_or(usize::MAX);
    changing((response, slot), |(response, slot), value, cx| {
        let logging = &cx.frontend.config.logging;
        let slots = if *response { &logging.response_captures } else { &logging.request_captures };
        let Some(capture) = slots.get(*slot) else { return Converted::Nothing };
        let text = value.into_text();
        let kept = text[..text.len().min(capture.len)].into();
        let effect = Effect::Capture { response: *response, slot: *slot, text: kept };
        Converted::Effect(Box::new(effect), Value::Str(text))
    })
}

pub(super) fn capture_req(args: &Args<'_>) -> Compiled {
    capture(args, false)
}

pub(super) fn capture_res(args: &Args<'_>) -> Compiled {
    capture(args, true)
}

pub(super) fn debug(args: &Args<'_>) -> Compiled {
    let name = match args.list.get(1) {
        None | Some(Arg::Absent) => Box::from(*b"buf0"),
        Some(_) => args.text(1)?,
    };
    let name = String::from_utf8_lossy(&name);
    let sink = args.scope.directory.and_then(|directory| directory.sink(&name));
    let sink = sink.ok_or_else(|| format!("debug converter: sink '{name}' doesn't exist."))?;
    value((args.text(0)?, sink.clone()), |(prefix, sink), value, _| {
        let mut line = b"[debug] ".to_vec();
        line.extend_from_slice(prefix);
        let kind = match &value {
            Value::Bool(_) => "bool",
            Value::Int(_) => "sint",
            Value::Ip(ip) if ip.is_ipv4() => "ipv4",
            Value::Ip(_) => "ipv6",
            Value::Str(_) => "str",
            Value::Bin(_) => "bin",
            Value::Method(_) => "meth",
        };
        line.extend_from_slice(format!(": type={kind} <").as_bytes());
        value.with_text(|text| {
            let shown = text.iter().map(|byte| if matches!(byte, 0x20..=0x7e) { *byte } else { b'.' });
            line.extend(shown);
        });
        line.push(b'>');
        sink.write(&line);
        Some(value)
    })
}
