//! Converters that look up or change what is not in the sample: servers by name, captures, and the program's own output.

use std::io::Write;

use sluicegate_config::catalogue::Converter;
use sluicegate_config::model::Arg;

use super::super::fetch::{queue_of, usable_servers_of};
use super::super::value::Value;
use super::{Converted, Effect, int, text};
use crate::directory::Sides;
use crate::stream::StreamContext;

/// A converter of this module with its arguments.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // each is named as its converter
pub enum StateCode {
    UsableServers,
    /// The queue of a server; without a backend's name it is one of the own section's, which may have no servers.
    ServerQueue(Option<std::sync::Arc<Sides>>),
    Capture {
        response: bool,
        slot: usize,
    },
    Debug {
        prefix: Box<[u8]>,
        stderr: bool,
    },
}

impl StateCode {
    /// Resolves a converter; `None` if it is another module's.
    pub(super) fn compile(
        converter: Converter,
        args: &[Arg],
        scope: super::FetchScope<'_>,
    ) -> Result<Option<StateCode>, String> {
        let capture = |response| {
            let slot = int(args, 0)?.and_then(|slot| usize::try_from(slot).ok());
            // A slot that no frontend has gives nothing.
            Ok::<_, String>(StateCode::Capture { response, slot: slot.unwrap_or(usize::MAX) })
        };
        Ok(Some(match converter {
            Converter::Nbsrv => StateCode::UsableServers,
            Converter::SrvQueue => StateCode::ServerQueue(
                scope.directory.zip(scope.own).map(|(directory, index)| directory.proxies[index].clone()),
            ),
            Converter::CaptureReq => capture(false)?,
            Converter::CaptureRes => capture(true)?,
            Converter::Debug => StateCode::Debug { prefix: text(args, 0)?, stderr: &*text(args, 1)? == b"stderr" },
            _ => return Ok(None),
        }))
    }

    /// Converts.
    pub(super) fn convert<'a>(&self, value: Value<'a>, cx: &StreamContext) -> Converted<'a> {
        let directory = &cx.frontend.directory;
        match self {
            StateCode::UsableServers => {
                let name = value.into_text();
                let sides = std::str::from_utf8(&name).ok().and_then(|name| directory.backend(name));
                sides.map_or(Converted::Nothing, |sides| Converted::Value(Value::Int(usable_servers_of(sides))))
            }
            StateCode::ServerQueue(own) => {
                let name = value.into_text();
                let Ok(name) = std::str::from_utf8(&name) else { return Converted::Nothing };
                let (sides, server) = match name.split_once('/') {
                    Some((backend, server)) => (directory.backend(backend), server),
                    None => (own.as_ref(), name),
                };
                let server = sides.and_then(|sides| sides.server(server));
                server.map_or(Converted::Nothing, |server| Converted::Value(Value::Int(queue_of(server))))
            }
            StateCode::Capture { response, slot } => {
                let logging = &cx.frontend.config.logging;
                let slots = if *response { &logging.response_captures } else { &logging.request_captures };
                let Some(capture) = slots.get(*slot) else { return Converted::Nothing };
                let text = value.into_text();
                let kept = text[..text.len().min(capture.len)].into();
                let effect = Effect::Capture { response: *response, slot: *slot, text: kept };
                Converted::Effect(Box::new(effect), Value::Str(text))
            }
            StateCode::Debug { prefix, stderr } => {
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
                line.extend_from_slice(b">\n");
                // What nobody reads must not stop the stream.
                let _ = if *stderr { std::io::stderr().write_all(&line) } else { std::io::stdout().write_all(&line) };
                Converted::Value(value)
            }
        }
    }
}
