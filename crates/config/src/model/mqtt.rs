//! Packets of MQTT and their fields, as `mqtt_field_value` names them.

/// A kind of packet. Only the first packets of either side are parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MqttPacket {
    /// A client's first packet.
    Connect,
    /// The answer to it.
    Connack,
    /// Any other: none of its fields is ever found, as in HAProxy.
    Other,
}

/// A field of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // each is named as in the manual
pub enum MqttField {
    Flags,
    ReasonCode,
    ProtocolName,
    ProtocolVersion,
    ClientIdentifier,
    WillTopic,
    WillPayload,
    Username,
    Password,
    Keepalive,
    /// A property of MQTT 5.0, by its number.
    Property(u8),
}

/// The names of packets, numbered from 1, with the fields that each has: the names, then the properties.
const PACKETS: &[(&str, &[&str], &[u8])] = &[
    (
        "CONNECT",
        &[
            "flags",
            "protocol_name",
            "protocol_version",
            "client_identifier",
            "will_topic",
            "will_payload",
            "username",
            "password",
            "keepalive",
        ],
        &[1, 2, 3, 8, 9, 17, 21, 22, 23, 24, 25, 33, 34, 38, 39],
    ),
    (
        "CONNACK",
        &["flags", "protocol_version", "reason_code"],
        &[17, 18, 19, 21, 22, 26, 28, 31, 33, 34, 36, 37, 38, 39, 40, 41, 42],
    ),
    ("PUBLISH", &[], &[1, 2, 3, 8, 9, 11, 35, 38]),
    ("PUBACK", &["reason_code"], &[31, 38]),
    ("PUBREC", &["reason_code"], &[31, 38]),
    ("PUBREL", &["reason_code"], &[31, 38]),
    ("PUBCOMP", &["reason_code"], &[31, 38]),
    ("SUBSCRIBE", &[], &[11, 38]),
    ("SUBACK", &[], &[31, 38]),
    ("UNSUBSCRIBE", &[], &[38]),
    ("UNSUBACK", &[], &[31, 38]),
    ("PINGREQ", &[], &[]),
    ("PINGRESP", &[], &[]),
    ("DISCONNECT", &["reason_code"], &[17, 28, 31, 38]),
    ("AUTH", &[], &[21, 22, 31, 38]),
];

impl MqttField {
    /// Returns a packet and its field by their names. The error is the index of the unknown name, and a message.
    pub fn named(packet: &str, field: &str) -> Result<(MqttPacket, MqttField), (usize, String)> {
        let number = packet.parse::<usize>().ok().and_then(|number| PACKETS.get(number.checked_sub(1)?));
        let found = number.or_else(|| PACKETS.iter().find(|(name, ..)| name.eq_ignore_ascii_case(packet)));
        let Some((name, names, properties)) = found else {
            return Err((0, format!("unknown MQTT type '{packet}'")));
        };
        let kind = match *name {
            "CONNECT" => MqttPacket::Connect,
            "CONNACK" => MqttPacket::Connack,
            _ => MqttPacket::Other,
        };
        let known = match names.iter().find(|name| name.eq_ignore_ascii_case(field)).copied() {
            Some("flags") => Some(MqttField::Flags),
            Some("reason_code") => Some(MqttField::ReasonCode),
            Some("protocol_name") => Some(MqttField::ProtocolName),
            Some("protocol_version") => Some(MqttField::ProtocolVersion),
            Some("client_identifier") => Some(MqttField::ClientIdentifier),
            Some("will_topic") => Some(MqttField::WillTopic),
            Some("will_payload") => Some(MqttField::WillPayload),
            Some("username") => Some(MqttField::Username),
            Some("password") => Some(MqttField::Password),
            Some("keepalive") => Some(MqttField::Keepalive),
            _ => {
                let property = properties.iter().find(|property| property.to_string() == field);
                property.map(|property| MqttField::Property(*property))
            }
        };
        match known {
            Some(field) => Ok((kind, field)),
            None => Err((1, format!("unknown MQTT field name '{field}' for packet type '{packet}'"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_have_their_fields() {
        use MqttField::{Keepalive, Property, ReasonCode};
        assert_eq!(MqttField::named("connect", "KEEPALIVE"), Ok((MqttPacket::Connect, Keepalive)));
        assert_eq!(MqttField::named("2", "reason_code"), Ok((MqttPacket::Connack, ReasonCode)));
        assert_eq!(MqttField::named("AUTH", "21"), Ok((MqttPacket::Other, Property(21))));
        assert_eq!(MqttField::named("0", "21").map_err(|(index, _)| index), Err(0));
        assert_eq!(MqttField::named("CONNACK", "keepalive").map_err(|(index, _)| index), Err(1));
    }
}
