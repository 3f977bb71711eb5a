//! Converters that look into messages of other protocols: FIX, MQTT, Protocol Buffers, gRPC and the header field
//! Forwarded.

use std::net::IpAddr;

use sluicegate_config::catalogue::Converter;
use sluicegate_config::model::{Arg, MqttField, MqttPacket};

use super::super::value::Value;
use super::fix::{self, Found};
use super::forwarded::{self, NodeName, NodePort, Parameter};
use super::protobuf::{Field, FieldPath, FieldType};
use super::{Converted, int, mqtt, text};
use crate::stream::StreamContext;

/// A converter of this module with its arguments.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // each is named as its converter
pub enum MessageCode {
    FixIsValid,
    FixTagValue(u32),
    MqttIsValid,
    MqttFieldValue(MqttPacket, MqttField),
    Protobuf(FieldPath),
    Ungrpc(FieldPath),
    ForwardedIsValid,
    ForwardedParameter(Parameter),
    NodeToName,
    NodeToPort,
    ToNodeName,
    ToNodePort,
}

impl MessageCode {
    /// Resolves a converter; `None` if it is another module's.
    pub(super) fn compile(converter: Converter, args: &[Arg]) -> Result<Option<MessageCode>, String> {
        let path = || {
            let numbers = text(args, 0)?;
            let numbers = std::str::from_utf8(&numbers).map_err(|_| "a field number is not text".to_owned())?;
            let numbers = numbers.split('.').map(str::parse).collect::<Result<_, _>>();
            let numbers = numbers.map_err(|_| "a field number is no number".to_owned())?;
            let kind = FieldType::named(&text(args, 1)?).ok_or("unknown type of a field")?;
            Ok::<_, String>(FieldPath { numbers, kind })
        };
        Ok(Some(match converter {
            Converter::FixIsValid => MessageCode::FixIsValid,
            Converter::FixTagValue => {
                let tag = int(args, 0)?.and_then(|tag| u32::try_from(tag).ok());
                MessageCode::FixTagValue(tag.ok_or("a tag is needed")?)
            }
            Converter::MqttIsValid => MessageCode::MqttIsValid,
            Converter::MqttFieldValue => match args.first() {
                Some(Arg::Mqtt(packet, field)) => MessageCode::MqttFieldValue(*packet, *field),
                _ => return Err("a packet and a field are needed".to_owned()),
            },
            Converter::Protobuf => MessageCode::Protobuf(path()?),
            Converter::Ungrpc => MessageCode::Ungrpc(path()?),
            Converter::Rfc7239IsValid => MessageCode::ForwardedIsValid,
            Converter::Rfc7239Field => {
                MessageCode::ForwardedParameter(Parameter::named(&text(args, 0)?).ok_or("unknown parameter")?)
            }
            Converter::Rfc7239N2nn => MessageCode::NodeToName,
            Converter::Rfc7239N2np => MessageCode::NodeToPort,
            Converter::Rfc7239Nn => MessageCode::ToNodeName,
            Converter::Rfc7239Np => MessageCode::ToNodePort,
            _ => return Ok(None),
        }))
    }

    /// Converts.
    pub(super) fn convert<'a>(&self, value: Value<'a>, cx: &StreamContext) -> Converted<'a> {
        let converted = match self {
            MessageCode::FixIsValid => found(fix::is_valid(&value.into_bytes()), cx).map(Value::Bool),
            MessageCode::FixTagValue(tag) => {
                found(fix::tag_value(&value.into_bytes(), *tag), cx).map(|value| Value::Bin(value.to_vec().into()))
            }
            MessageCode::MqttIsValid => match mqtt::parse(&value.into_bytes()) {
                Found::Nothing => found(Found::Is(false), cx).map(Value::Bool),
                parsed => found(parsed, cx).map(|_| Value::Bool(true)),
            },
            MessageCode::MqttFieldValue(packet, field) => {
                let bytes = value.into_bytes();
                let field = found(mqtt::parse(&bytes), cx).and_then(|parsed| parsed.field(*packet, *field));
                // Texts are not cut at a zero byte, which a password may have.
                field.map(|field| match field {
                    mqtt::Field::Number(number) => Value::owned_text(number.to_string().into_bytes()),
                    mqtt::Field::Text(text) => Value::owned_text(text.to_vec()),
                })
            }
            MessageCode::Protobuf(path) => {
                let bytes = value.into_bytes();
                path.find(&bytes).map(|field| field_value(&field, &bytes))
            }
            MessageCode::Ungrpc(path) => {
                let bytes = value.into_bytes();
                path.find_in_grpc(&bytes).map(|field| field_value(&field, &bytes))
            }
            MessageCode::ForwardedIsValid => {
                Some(Value::Bool(value.with_text(|text| forwarded::parse(text).is_some())))
            }
            MessageCode::ForwardedParameter(parameter) => {
                let find = |text: &[u8]| Some(text[forwarded::parse(text)?.get(*parameter)?].to_vec());
                value.with_text(find).map(Value::owned_text)
            }
            MessageCode::NodeToName => value.with_text(|text| {
                Some(match forwarded::node(text)?.0 {
                    NodeName::Ip(ip) => Value::Ip(ip),
                    NodeName::Unknown => Value::text(b"unknown"),
                    NodeName::Obfuscated(name) => Value::owned_text([b"_", name].concat()),
                })
            }),
            MessageCode::NodeToPort => value.with_text(|text| {
                Some(match forwarded::node(text)?.1? {
                    NodePort::Number(port) => Value::Int(port.into()),
                    NodePort::Obfuscated(name) => Value::owned_text([b"_", name].concat()),
                })
            }),
            MessageCode::ToNodeName => match value {
                Value::Ip(IpAddr::V6(ip)) => Some(Value::owned_text(format!("[{ip}]").into_bytes())),
                Value::Ip(ip) => Some(Value::owned_text(ip.to_string().into_bytes())),
                value => value.with_text(|text| match text {
                    b"" => Some(Value::text(b"unknown")),
                    text => hidden(text),
                }),
            },
            MessageCode::ToNodePort => match value {
                Value::Int(port) => Some(Value::owned_text((port as u32).to_string().into_bytes())),
                value => value.with_text(hidden),
            },
        };
        converted.map_or(Converted::Nothing, Converted::Value)
    }
}

/// A name with its `_`, if it is made of what such names are made of.
fn hidden(text: &[u8]) -> Option<Value<'static>> {
    forwarded::is_obfuscated(text).then(|| Value::owned_text([b"_", text].concat()))
}

/// What was found; content rules wait for data that is missing, and for no more than that.
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
