//! Packets of MQTT 3.1, 3.1.1 and 5.0 (`mqtt_is_valid`, `mqtt_field_value`).
//!
//! Only CONNECT and CONNACK, the first packets of a client and of a server, are parsed; as in HAProxy, any other packet
//! is invalid. A number without a value is 0; a text without a value does not exist. The configuration defines the
//! fields that a packet may have, and their names ([`MqttField`]).

use sluicegate_config::model::{MqttField, MqttPacket};

use super::fix::Found;

/// Flags of CONNECT.
mod flag {
    pub(super) const RESERVED: u8 = 0x01;
    pub(super) const WILL: u8 = 0x04;
    pub(super) const WILL_QOS: u8 = 0x18;
    pub(super) const WILL_RETAIN: u8 = 0x20;
    pub(super) const PASSWORD: u8 = 0x40;
    pub(super) const USERNAME: u8 = 0x80;
}

/// The encoding of a property's value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// 0 or 1.
    Truth,
    Two,
    /// A two-byte integer of at least 1.
    PositiveTwo,
    Four,
    PositiveFour,
    Text,
    FilledText,
}

/// A parsed packet.
#[derive(Default)]
pub(super) struct Packet<'a> {
    kind: Option<MqttPacket>,
    version: u8,
    flags: u8,
    reason: u8,
    keepalive: u16,
    protocol: &'a [u8],
    client: &'a [u8],
    will_topic: &'a [u8],
    will_payload: &'a [u8],
    username: &'a [u8],
    password: &'a [u8],
    /// Properties of the variable header.
    properties: Vec<(u8, Property<'a>)>,
    /// Properties of the will.
    will: Vec<(u8, Property<'a>)>,
}

#[derive(Clone, Copy)]
enum Property<'a> {
    Number(u32),
    Text(&'a [u8]),
}

/// The identifier of user properties, which are pairs of a name and a value and may occur any number of times.
const USER_PROPERTY: u8 = 38;
const AUTHENTICATION_METHOD: u8 = 21;
const AUTHENTICATION_DATA: u8 = 22;

/// Returns the encoding of a property of CONNECT.
fn of_connect(id: u8) -> Option<Form> {
    Some(match id {
        17 => Form::Four,
        33 => Form::PositiveTwo,
        39 => Form::PositiveFour,
        34 => Form::Two,
        23 | 25 => Form::Truth,
        AUTHENTICATION_METHOD | AUTHENTICATION_DATA => Form::Text,
        _ => return None,
    })
}

/// Returns the encoding of a property of a will.
fn of_will(id: u8) -> Option<Form> {
    Some(match id {
        24 | 2 => Form::Four,
        1 => Form::Truth,
        3 | 8 | 9 => Form::Text,
        _ => return None,
    })
}

/// Returns the encoding of a property of CONNACK.
fn of_connack(id: u8) -> Option<Form> {
    Some(match id {
        17 => Form::Four,
        33 => Form::PositiveTwo,
        36 | 37 | 40 | 41 | 42 => Form::Truth,
        39 => Form::PositiveFour,
        18 => Form::FilledText,
        34 | 19 => Form::Two,
        31 | 26 | 28 | AUTHENTICATION_METHOD | AUTHENTICATION_DATA => Form::Text,
        _ => return None,
    })
}

/// Bytes that are consumed from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn two(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn four(&mut self) -> Option<u32> {
        self.take(4).map(|bytes| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Reads a variable byte integer of at most four bytes. As in HAProxy, one that is cut off by the end of the data
    /// has the value of the bytes present.
    fn varint(&mut self) -> Option<u32> {
        let mut number = 0;
        for place in 0..4 {
            let Some(byte) = self.byte() else { return Some(number) };
            number |= u32::from(byte & 127) << (7 * place);
            if byte < 128 {
                return Some(number);
            }
        }
        None
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let length = self.two()?;
        self.take(length.into())
    }

    /// Reads properties, each of which may occur only once, except for user properties.
    fn properties(&mut self, form: fn(u8) -> Option<Form>) -> Option<Vec<(u8, Property<'a>)>> {
        let length = self.varint()?;
        let mut part = Reader(self.take(length as usize)?);
        let mut found: Vec<(u8, Property<'a>)> = Vec::new();
        while let Some(id) = part.byte() {
            if id == USER_PROPERTY {
                part.text()?;
                part.text()?;
                continue;
            }
            let form = form(id)?;
            if found.iter().any(|(known, _)| *known == id) {
                return None;
            }
            let property = match form {
                Form::Truth => Property::Number(u32::from(part.byte()?)),
                Form::Two | Form::PositiveTwo => Property::Number(u32::from(part.two()?)),
                Form::Four | Form::PositiveFour => Property::Number(part.four()?),
                Form::Text | Form::FilledText => Property::Text(part.text()?),
            };
            let good = match (form, property) {
                (Form::Truth, Property::Number(number)) => number <= 1,
                (Form::PositiveTwo | Form::PositiveFour, Property::Number(number)) => number > 0,
                (Form::FilledText, Property::Text(text)) => !text.is_empty(),
                _ => true,
            };
            if !good {
                return None;
            }
            found.push((id, property));
        }
        Some(found)
    }
}

/// Parses a packet.
pub(super) fn parse(bytes: &[u8]) -> Found<Packet<'_>> {
    if bytes.len() < 2 {
        return Found::NeedsMore;
    }
    let kind = match bytes[0] {
        0x10 => MqttPacket::Connect,
        0x20 => MqttPacket::Connack,
        // The other packets, with the flags that each has.
        0x3f | 0x40 | 0x50 | 0x62 | 0x70 | 0x82 | 0x90 | 0xa2 | 0xb0 | 0xc0 | 0xd0 | 0xe0 | 0xf0 => MqttPacket::Other,
        _ => return Found::Nothing,
    };
    let mut reader = Reader(&bytes[1..]);
    let Some(length) = reader.varint() else { return Found::Nothing };
    if reader.0.len() < length as usize {
        return Found::NeedsMore;
    }
    let whole = reader.0.len();
    let parsed = match kind {
        MqttPacket::Connect => connect(&mut reader),
        MqttPacket::Connack => connack(&mut reader),
        MqttPacket::Other => None,
    };
    match parsed {
        Some(packet) if whole - reader.0.len() == length as usize => Found::Is(Packet { kind: Some(kind), ..packet }),
        _ => Found::Nothing,
    }
}

fn connect<'a>(reader: &mut Reader<'a>) -> Option<Packet<'a>> {
    let mut packet = Packet { protocol: reader.text()?, ..Packet::default() };
    if !packet.protocol.eq_ignore_ascii_case(b"MQTT") && !packet.protocol.eq_ignore_ascii_case(b"MQIsdp") {
        return None;
    }
    packet.version = reader.byte().filter(|version| matches!(version, 3..=5))?;
    packet.flags = reader.byte().filter(|flags| flags & flag::RESERVED == 0)?;
    if packet.flags & (flag::WILL | flag::WILL_QOS | flag::WILL_RETAIN) == flag::WILL_QOS {
        return None;
    }
    packet.keepalive = reader.two()?;
    if packet.version == 5 {
        packet.properties = reader.properties(of_connect)?;
        if packet.text_of(AUTHENTICATION_METHOD).is_empty() && !packet.text_of(AUTHENTICATION_DATA).is_empty() {
            return None;
        }
    }
    packet.client = reader.text()?;
    if packet.flags & flag::WILL != 0 {
        if packet.version == 5 {
            packet.will = reader.properties(of_will)?;
        }
        packet.will_topic = reader.text()?;
        packet.will_payload = reader.text()?;
    }
    if packet.flags & flag::USERNAME != 0 {
        packet.username = reader.text()?;
    }
    if packet.flags & flag::PASSWORD != 0 {
        packet.password = reader.text()?;
    }
    Some(packet)
}

fn connack<'a>(reader: &mut Reader<'a>) -> Option<Packet<'a>> {
    // A CONNACK does not contain the version: if it has two bytes, it is older than MQTT 5.0, which added properties.
    let version = match reader.0.len() {
        0 | 1 => return None,
        2 => 4,
        _ => 5,
    };
    let flags = reader.byte().filter(|flags| flags & 0xfe == 0)?;
    let mut packet = Packet { version, flags, reason: reader.byte()?, ..Packet::default() };
    if version == 5 {
        packet.properties = reader.properties(of_connack)?;
    }
    Some(packet)
}

/// A field's value.
pub(super) enum Field<'a> {
    Number(u32),
    Text(&'a [u8]),
}

impl<'a> Packet<'a> {
    fn text_of(&self, id: u8) -> &'a [u8] {
        let found = self.properties.iter().find(|(known, _)| *known == id);
        match found {
            Some((_, Property::Text(text))) => text,
            _ => b"",
        }
    }

    /// Returns a field of a packet of this kind.
    pub(super) fn field(&self, kind: MqttPacket, field: MqttField) -> Option<Field<'a>> {
        if self.kind != Some(kind) {
            return None;
        }
        let connect = kind == MqttPacket::Connect;
        let value = match field {
            MqttField::Flags => Field::Number(self.flags.into()),
            MqttField::ProtocolVersion => Field::Number(self.version.into()),
            MqttField::ReasonCode if !connect => Field::Number(self.reason.into()),
            MqttField::Keepalive if connect => Field::Number(self.keepalive.into()),
            MqttField::ProtocolName => Field::Text(self.protocol),
            MqttField::ClientIdentifier => Field::Text(self.client),
            MqttField::WillTopic => Field::Text(self.will_topic),
            MqttField::WillPayload => Field::Text(self.will_payload),
            MqttField::Username => Field::Text(self.username),
            MqttField::Password => Field::Text(self.password),
            MqttField::Property(id) => self.property(id, connect)?,
            MqttField::ReasonCode | MqttField::Keepalive => return None,
        };
        match value {
            Field::Text(b"") => None,
            value => Some(value),
        }
    }

    fn property(&self, id: u8, connect: bool) -> Option<Field<'a>> {
        if self.version != 5 {
            return None;
        }
        let (form, of) = match (connect, of_will(id)) {
            (true, Some(form)) if self.flags & flag::WILL != 0 => (form, &self.will),
            (true, Some(_)) => return None,
            (true, None) => (of_connect(id)?, &self.properties),
            (false, _) => (of_connack(id)?, &self.properties),
        };
        Some(match of.iter().find(|(known, _)| *known == id) {
            Some((_, Property::Number(number))) => Field::Number(*number),
            Some((_, Property::Text(text))) => Field::Text(text),
            None if matches!(form, Form::Text | Form::FilledText) => return None,
            None => Field::Number(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(bytes: &[u8], kind: MqttPacket, field: MqttField) -> Option<String> {
        let Found::Is(packet) = parse(bytes) else { return Some("invalid".to_owned()) };
        packet.field(kind, field).map(|field| match field {
            Field::Number(number) => number.to_string(),
            Field::Text(text) => String::from_utf8_lossy(text).into_owned(),
        })
    }

    #[test]
    fn a_packet_gives_its_fields() {
        // A CONNECT of MQTT 5.0 with a receive maximum of 10, a will with a delay of 5 and a user.
        let bytes =
            b"\x10\x24\0\x04MQTT\x05\x86\0\x3c\x03\x21\0\x0a\0\x02id\x05\x18\0\0\0\x05\0\x01t\0\x01p\0\x04userx";
        let connect = &bytes[..bytes.len() - 1];
        let get = |wanted| field(connect, MqttPacket::Connect, wanted);
        assert_eq!(get(MqttField::ProtocolName).as_deref(), Some("MQTT"));
        assert_eq!(get(MqttField::Flags).as_deref(), Some("134"));
        assert_eq!(get(MqttField::Keepalive).as_deref(), Some("60"));
        assert_eq!(get(MqttField::ClientIdentifier).as_deref(), Some("id"));
        assert_eq!(get(MqttField::Property(33)).as_deref(), Some("10"));
        assert_eq!(get(MqttField::Property(24)).as_deref(), Some("5"));
        assert_eq!(get(MqttField::Property(17)).as_deref(), Some("0"));
        assert_eq!(get(MqttField::Property(21)), None);
        assert_eq!(get(MqttField::WillTopic).as_deref(), Some("t"));
        assert_eq!(get(MqttField::Username).as_deref(), Some("user"));
        assert_eq!(get(MqttField::Password), None);
        assert!(matches!(parse(&connect[..20]), Found::NeedsMore));
        let connack = b"\x20\x02\x01\x05";
        assert_eq!(field(connack, MqttPacket::Connack, MqttField::ReasonCode).as_deref(), Some("5"));
        assert_eq!(field(connack, MqttPacket::Connack, MqttField::Property(17)), None);
        assert!(matches!(parse(b"\x30\x02\x01\x05"), Found::Nothing));
        assert!(matches!(parse(b"\x20\x03\x02\x05\0"), Found::Nothing));
    }
}
