//! Converters that look into messages of other protocols: FIX, MQTT, Protocol Buffers, gRPC and the header field
//! Forwarded.

use std::net::IpAddr;

use sluicegate_config::model::Arg;

use super::super::value::Value;
use super::args::Args;
use super::code::{Compiled, value};
use super::fix::{self, Found};
use super::forwarded::{self, NodeName, NodePort, Parameter};
use super::mqtt;
use super::protobuf::{Field, FieldPath, FieldType};
use crate::stream::StreamContext;

pub(super) fn fix_is_valid(_: &Args<'_>) -> Compiled {
    value((), |(), value, cx| found(fix::is_valid(&value.into_bytes()), cx).map(Value::Bool))
}

pub(super) fn fix_tag_value(args: &Args<'_>) -> Compiled {
    let tag = args.int(0)?.and_then(|tag| u32::try_from(tag).ok()).ok_or("a tag is needed")?;
    value(tag, |tag, value, cx| {
        found(fix::tag_value(&value.into_bytes(), *tag), cx).map(|value| Value::Bin(value.to_vec().into()))
    })
}

pub(super) fn mqtt_is_valid(_: &Args<'_>) -> Compiled {
    value((), |(), value, cx| match mqtt::parse(&value.into_bytes()) {
        Found::Nothing => found(Found::Is(false), cx).map(Value::Bool),
        parsed => found(parsed, cx).map(|_| Value::Bool(true)),
    })
}

pub(super) fn mqtt_field_value(args: &Args<'_>) -> Compiled {
    let Some(Arg::Mqtt(packet, field)) = args.list.first() else {
        return Err("a packet and a field are needed".to_owned());
    };
    value((*packet, *field), |(packet, field), value, cx| {
        let bytes = value.into_bytes();
        // Texts are not cut at a zero byte, which a password may have.
        Some(match found(mqtt::parse(&bytes), cx)?.field(*packet, *field)? {
            mqtt::Field::Number(number) => Value::owned_text(number.to_string().into_bytes()),
            mqtt::Field::Text(text) => Value::owned_text(text.to_vec()),
        })
    })
}

fn field_path(args: &Args<'_>) -> Result<FieldPath, String> {
    let numbers = args.text(0)?;
    let numbers = std::str::from_utf8(&numbers).map_err(|_| "a field number is not text".to_owned())?;
    let numbers = numbers.split('.').map(str::parse).collect::<Result<_, _>>();
    let numbers = numbers.map_err(|_| "a field number is no number".to_owned())?;
    let kind = FieldType::named(&args.text(1)?).ok_or("unknown type of a field")?;
    Ok(FieldPath { numbers, kind })
}

pub(super) fn protobuf(args: &Args<'_>) -> Compiled {
    value(field_path(args)?, |path, value, _| {
        let bytes = value.into_bytes();
        path.find(&bytes).map(|field| field_value(&field, &bytes))
    })
}

pub(super) fn ungrpc(args: &Args<'_>) -> Compiled {
    value(field_path(args)?, |path, value, _| {
        let bytes = value.into_bytes();
        path.find_in_grpc(&bytes).map(|field| field_value(&field, &bytes))
    })
}

pub(super) fn rfc7239_is_valid(_: &Args<'_>) -> Compiled {
    value((), |(), value, _| Some(Value::Bool(value.with_text(|text| forwarded::parse(text).is_some()))))
}

pub(super) fn rfc7239_field(args: &Args<'_>) -> Compiled {
    let parameter = Parameter::named(&args.text(0)?).ok_or("unknown parameter")?;
    value(parameter, |parameter, value, _| {
        let find = |text: &[u8]| Some(text[forwarded::parse(text)?.get(*parameter)?].to_vec());
        value.with_text(find).map(Value::owned_text)
    })
}

pub(super) fn rfc7239_n2nn(_: &Args<'_>) -> Compiled {
    value((), |(), value, _| {
        value.with_text(|text| {
            Some(match forwarded::node(text)?.0 {
                NodeName::Ip(ip) => Value::Ip(ip),
                NodeName::Unknown => Value::text(b"unknown"),
                NodeName::Obfuscated(name) => Value::owned_text([b"_", name].concat()),
            })
        })
    })
}

pub(super) fn rfc7239_n2np(_: &Args<'_>) -> Compiled {
    value((), |(), value, _| {
        value.with_text(|text| {
            Some(match forwarded::node(text)?.1? {
                NodePort::Number(port) => Value::Int(port.into()),
                NodePort::Obfuscated(name) => Value::owned_text([b"_", name].concat()),
            })
        })
    })
}

pub(super) fn rfc7239_nn(_: &Args<'_>) -> Compiled {
    value((), |(), value, _| match value {
        Value::Ip(IpAddr::V6(ip)) => Some(Value::owned_text(format!("[{ip}]").into_bytes())),
        Value::Ip(ip) => Some(Value::owned_text(ip.to_string().into_bytes())),
        value => value.with_text(|text| match text {
            b"" => Some(Value::text(b"unknown")),
            text => hidden(text),
        }),
    })
}

pub(super) fn rfc7239_np(_: &Args<'_>) -> Compiled {
    value((), |(), value, _| match value {
        Value::Int(port) => Some(Value::owned_text((port as u32).to_string().into_bytes())),
        value => value.with_text(hidden),
    })
}

/// Returns a name with a leading `_`, if it consists only of the characters allowed for such names.
fn hidden(text: &[u8]) -> Option<Value<'static>> {
    forwarded::is_obfuscated(text).then(|| Value::owned_text([b"_", text].concat()))
}

/// Returns the result, and lets content rules wait if data is missing.
fn found<T>(found: Found<T>, cx: &StreamContext) -> Option<T> {
    cx.inspection.settle();
    match found {
        Found::Is(value) => Some(value),
        Found::NeedsMore => {
            cx.inspection.miss();
            None
        }
        Found::Nothing => None,
    }
}

fn field_value(field: &Field, bytes: &[u8]) -> Value<'static> {
    match field {
        Field::Integer(number) => Value::Int(*number),
        Field::Bytes(range) => Value::Bin(bytes[range.clone()].to_vec().into()),
    }
}
