//! Values of the header field Forwarded (RFC 7239): `rfc7239_is_valid`, `rfc7239_field` and the names and ports of
//! nodes.
//!
//! The grammar is HAProxy's: parameters may be in any order, are case-sensitive and occur once each, without blanks and
//! without extensions. A value is in quotes if it is an IPv6 address or has a port; `proto` is `http` or `https` and is
//! not in quotes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

/// The name of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeName<'a> {
    /// `unknown`.
    Unknown,
    /// `_NAME`, without its `_`.
    Obfuscated(&'a [u8]),
    /// An address.
    Ip(IpAddr),
}

/// The port of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodePort<'a> {
    /// `_NAME`, without its `_`.
    Obfuscated(&'a [u8]),
    /// A number.
    Number(u16),
}

/// A node: its name, and its port if it has one.
pub(super) type Node<'a> = (NodeName<'a>, Option<NodePort<'a>>);

/// A parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// `for`.
    For,
    /// `by`.
    By,
    /// `host`.
    Host,
    /// `proto`.
    Proto,
}

const PARAMETERS: [(&[u8], Parameter); 4] =
    [(b"for", Parameter::For), (b"by", Parameter::By), (b"host", Parameter::Host), (b"proto", Parameter::Proto)];

impl Parameter {
    /// Returns the parameter with this name.
    pub(super) fn named(name: &[u8]) -> Option<Parameter> {
        PARAMETERS.iter().find(|(known, _)| *known == name).map(|(_, parameter)| *parameter)
    }
}

/// The ranges of the values of a field's parameters, without quotes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Parsed([Option<Range<usize>>; 4]);

impl Parsed {
    /// Returns the range of a parameter's value.
    pub(super) fn get(&self, parameter: Parameter) -> Option<Range<usize>> {
        self.0[parameter as usize].clone()
    }
}

/// The unparsed rest.
struct Input<'a>(&'a [u8]);

/// Parses a whole field; `None` if it is not valid, or empty.
pub(super) fn parse(field: &[u8]) -> Option<Parsed> {
    let mut parsed = Parsed::default();
    let mut input = Input(field);
    let mut count = 0;
    while !input.0.is_empty() && count < PARAMETERS.len() {
        if count > 0 {
            input.expect(b';')?;
        }
        let (name, parameter) = PARAMETERS.into_iter().find(|(name, parameter)| {
            let rest = input.0.strip_prefix(*name).and_then(|rest| rest.strip_prefix(b"="));
            rest.is_some_and(|rest| !rest.is_empty()) && parsed.0[*parameter as usize].is_none()
        })?;
        input.0 = &input.0[name.len() + 1..];
        let quoted = parameter != Parameter::Proto && input.expect(b'"').is_some();
        let start = field.len() - input.0.len();
        match parameter {
            Parameter::For | Parameter::By => _ = input.node(quoted)?,
            Parameter::Host => input.host(quoted)?,
            Parameter::Proto => {
                input.0 = input.0.strip_prefix(b"http")?;
                input.expect(b's');
            }
        }
        parsed.0[parameter as usize] = Some(start..field.len() - input.0.len());
        if quoted {
            input.expect(b'"')?;
        }
        count += 1;
    }
    // As in HAProxy, text after the fourth parameter is ignored.
    (count > 0).then_some(parsed)
}

/// Returns whether a value of the field is valid.
pub(crate) fn is_forwarded(text: &[u8]) -> bool {
    parse(text).is_some()
}

/// Parses a node, whose name may be an IPv6 address in brackets; text after it is ignored, as in HAProxy.
pub(super) fn node(text: &[u8]) -> Option<Node<'_>> {
    Input(text).node(true)
}

/// Returns whether a text is a host, with or without a port, as allowed in quotes.
pub(crate) fn is_host(text: &[u8]) -> bool {
    let mut input = Input(text);
    input.host(true).is_some() && input.0.is_empty()
}

/// Returns a text as a node's name: unchanged if it is a valid name, or with a `_` in front if that makes it a valid
/// obfuscated identifier; otherwise `None`.
pub(crate) fn node_name(text: &[u8]) -> Option<Vec<u8>> {
    let mut input = Input(text);
    match input.name(true) {
        Some(_) if input.0.is_empty() => Some(text.to_vec()),
        _ => is_obfuscated(text).then(|| [b"_", text].concat()),
    }
}

/// Returns a text as a node's port, in the same way as [`node_name`].
pub(crate) fn node_port(text: &[u8]) -> Option<Vec<u8>> {
    let mut input = Input(text);
    match input.port() {
        Some(_) if input.0.is_empty() => Some(text.to_vec()),
        _ => is_obfuscated(text).then(|| [b"_", text].concat()),
    }
}

/// Returns whether a text is an obfuscated identifier without its `_`.
pub(super) fn is_obfuscated(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().copied().all(in_obfuscated)
}

fn in_obfuscated(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_')
}

impl<'a> Input<'a> {
    fn expect(&mut self, byte: u8) -> Option<()> {
        self.0 = self.0.strip_prefix(&[byte])?;
        Some(())
    }

    /// Returns the prefix of characters of a class.
    fn take_while(&mut self, belongs: impl Fn(u8) -> bool, most: usize) -> &'a [u8] {
        let length = self.0.iter().take(most).position(|byte| !belongs(*byte)).unwrap_or(self.0.len().min(most));
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken
    }

    fn node(&mut self, quoted: bool) -> Option<Node<'a>> {
        let name = self.name(quoted)?;
        if self.0.first() != Some(&b':') {
            return Some((name, None));
        }
        if !quoted {
            return None;
        }
        self.0 = &self.0[1..];
        Some((name, Some(self.port()?)))
    }

    fn name(&mut self, quoted: bool) -> Option<NodeName<'a>> {
        match *self.0.first()? {
            b'_' => self.obfuscated().map(NodeName::Obfuscated),
            b'u' => {
                self.0 = self.0.strip_prefix(b"unknown")?;
                Some(NodeName::Unknown)
            }
            b'[' if quoted => self.ipv6().map(|ip| NodeName::Ip(IpAddr::V6(ip))),
            _ => {
                let text = self.take_while(|byte| byte.is_ascii_digit() || byte == b'.', 15);
                let ip: Ipv4Addr = std::str::from_utf8(text).ok()?.parse().ok()?;
                Some(NodeName::Ip(IpAddr::V4(ip)))
            }
        }
    }

    fn port(&mut self) -> Option<NodePort<'a>> {
        if self.0.first() == Some(&b'_') {
            return self.obfuscated().map(NodePort::Obfuscated);
        }
        self.number().map(NodePort::Number)
    }

    fn obfuscated(&mut self) -> Option<&'a [u8]> {
        self.expect(b'_')?;
        Some(self.take_while(in_obfuscated, usize::MAX)).filter(|name| !name.is_empty())
    }

    fn number(&mut self) -> Option<u16> {
        let digits = self.take_while(|byte| byte.is_ascii_digit(), usize::MAX);
        let number = digits.iter().try_fold(0_u32, |number, digit| {
            Some(number * 10 + u32::from(digit - b'0')).filter(|number| *number <= 65_535)
        })?;
        u16::try_from(number).ok().filter(|port| *port > 0)
    }

    fn ipv6(&mut self) -> Option<Ipv6Addr> {
        self.expect(b'[')?;
        let text = self.take_while(|byte| byte.is_ascii_alphanumeric() || byte == b':', 45);
        self.expect(b']')?;
        std::str::from_utf8(text).ok()?.parse().ok()
    }

    fn host(&mut self, quoted: bool) -> Option<()> {
        if self.0.is_empty() {
            return None;
        }
        if quoted && self.0[0] == b'[' {
            self.ipv6()?;
        } else {
            self.take_while(|byte| byte.is_ascii_alphanumeric() || byte == b'.', usize::MAX);
        }
        if self.0.first() == Some(&b':') {
            if !quoted {
                return None;
            }
            self.0 = &self.0[1..];
            self.number()?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field<'a>(text: &'a str, parameter: &str) -> Option<&'a str> {
        let range = parse(text.as_bytes())?.get(Parameter::named(parameter.as_bytes())?)?;
        Some(&text[range])
    }

    #[test]
    fn fields_are_parsed() {
        let text = r#"for=1.2.3.4;by="[::1]:_port";host="a.example:80";proto=https"#;
        assert_eq!(field(text, "for"), Some("1.2.3.4"));
        assert_eq!(field(text, "by"), Some("[::1]:_port"));
        assert_eq!(field(text, "host"), Some("a.example:80"));
        assert_eq!(field(text, "proto"), Some("https"));
        assert_eq!(field("for=_a", "by"), None);
        for wrong in [
            "",
            "for=",
            "for=1.2.3.4; by=_a",
            "For=_a",
            "for=1.2.3.4:80",
            "for=_a;for=_b",
            "proto=ftp",
            "for=\"_a",
            "for=\"_a:65536\"",
            "host=a:80",
            "secret=x",
        ] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn nodes_are_parsed() {
        let ip = |text: &str| NodeName::Ip(text.parse().expect("an address"));
        assert_eq!(node(b"127.0.0.1:9999"), Some((ip("127.0.0.1"), Some(NodePort::Number(9999)))));
        assert_eq!(node(b"[ab:cd::1]"), Some((ip("ab:cd::1"), None)));
        assert_eq!(node(b"_name:_port"), Some((NodeName::Obfuscated(b"name"), Some(NodePort::Obfuscated(b"port")))));
        assert_eq!(node(b"unknown"), Some((NodeName::Unknown, None)));
        assert_eq!(node(b"_"), None);
        assert_eq!(node(b"1.2.3.4:0"), None);
    }
}
