//! A sample and its casts (HAProxy configuration manual 7.1).
//!
//! [`Sample`] owns its bytes: it is the type of variables. [`Value`] borrows them from the message if possible: it is
//! the type of an expression's intermediate results, from the fetch through its converters to a condition or a
//! log-format, so that none of these allocates for `hdr(host) -i example.com`. A cast that HAProxy does not have fails,
//! and a failed cast means no sample.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};

/// A typed value that owns its bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Sample {
    /// Boolean.
    Bool(bool),
    /// Signed 64-bit integer.
    Int(i64),
    /// Address.
    Ip(IpAddr),
    /// Text.
    Str(Vec<u8>),
    /// Bytes; `hex` and `base64` make them printable.
    Bin(Vec<u8>),
    /// An HTTP method.
    Method(Vec<u8>),
}

/// A typed value that borrows its bytes where it can.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// Boolean.
    Bool(bool),
    /// Signed 64-bit integer.
    Int(i64),
    /// Address.
    Ip(IpAddr),
    /// Text.
    Str(Cow<'a, [u8]>),
    /// Bytes; `hex` and `base64` make them printable.
    Bin(Cow<'a, [u8]>),
    /// An HTTP method.
    Method(Cow<'a, [u8]>),
}

impl Sample {
    /// The same value, borrowed.
    #[inline]
    pub fn as_value(&self) -> Value<'_> {
        match self {
            Sample::Bool(b) => Value::Bool(*b),
            Sample::Int(i) => Value::Int(*i),
            Sample::Ip(ip) => Value::Ip(*ip),
            Sample::Str(s) => Value::Str(Cow::Borrowed(s)),
            Sample::Bin(s) => Value::Bin(Cow::Borrowed(s)),
            Sample::Method(s) => Value::Method(Cow::Borrowed(s)),
        }
    }

    /// Returns the number of bytes on the heap, which limits on variables count.
    #[inline]
    pub fn heap_len(&self) -> usize {
        match self {
            Sample::Bool(_) | Sample::Int(_) | Sample::Ip(_) => 0,
            Sample::Str(s) | Sample::Bin(s) | Sample::Method(s) => s.len(),
        }
    }
}

impl<'a> Value<'a> {
    /// Returns a borrowed text.
    #[inline]
    pub fn text(bytes: &'a [u8]) -> Value<'a> {
        Value::Str(Cow::Borrowed(bytes))
    }

    /// Returns an owned text.
    #[inline]
    pub fn owned_text(bytes: Vec<u8>) -> Value<'a> {
        Value::Str(Cow::Owned(bytes))
    }

    /// The same value, taking the sample's bytes.
    pub fn from_sample(sample: Sample) -> Value<'a> {
        match sample {
            Sample::Bool(b) => Value::Bool(b),
            Sample::Int(i) => Value::Int(i),
            Sample::Ip(ip) => Value::Ip(ip),
            Sample::Str(s) => Value::Str(Cow::Owned(s)),
            Sample::Bin(s) => Value::Bin(Cow::Owned(s)),
            Sample::Method(s) => Value::Method(Cow::Owned(s)),
        }
    }

    /// The same value, owning its bytes.
    pub fn into_sample(self) -> Sample {
        match self {
            Value::Bool(b) => Sample::Bool(b),
            Value::Int(i) => Sample::Int(i),
            Value::Ip(ip) => Sample::Ip(ip),
            Value::Str(s) => Sample::Str(s.into_owned()),
            Value::Bin(s) => Sample::Bin(s.into_owned()),
            Value::Method(s) => Sample::Method(s.into_owned()),
        }
    }

    /// Casts to an integer: booleans are 0 or 1, IPv4 addresses their 32 bits, text its leading decimal digits.
    pub fn to_int(&self) -> Option<i64> {
        match self {
            Value::Bool(b) => Some(i64::from(*b)),
            Value::Int(i) => Some(*i),
            Value::Ip(IpAddr::V4(ip)) => Some(i64::from(u32::from(*ip))),
            Value::Str(s) => parse_leading_int(s),
            Value::Ip(IpAddr::V6(_)) | Value::Bin(_) | Value::Method(_) => None,
        }
    }

    /// Casts to a boolean: true for a value whose cast to an integer is not 0.
    pub fn to_bool(&self) -> Option<bool> {
        self.to_int().map(|number| number != 0)
    }

    /// Casts to an address: an integer is the 32 bits of an IPv4 address, text is parsed. As in HAProxy, more text may
    /// follow one of IPv4, such as a port.
    pub fn to_ip(&self) -> Option<IpAddr> {
        match self {
            Value::Ip(ip) => Some(*ip),
            Value::Int(i) => Some(IpAddr::V4(Ipv4Addr::from(*i as u32))),
            Value::Str(s) => match leading_ipv4(s) {
                Some((ip, _)) => Some(IpAddr::V4(ip)),
                None => std::str::from_utf8(s).ok()?.parse().ok(),
            },
            Value::Bool(_) | Value::Bin(_) | Value::Method(_) => None,
        }
    }

    /// Casts to text, which is always possible: numbers in decimal, addresses in their usual notation, bytes up to the
    /// first zero byte.
    pub fn into_text(self) -> Cow<'a, [u8]> {
        match self {
            Value::Str(s) | Value::Method(s) => s,
            Value::Bin(Cow::Borrowed(s)) => Cow::Borrowed(text_of(s)),
            Value::Bin(Cow::Owned(mut s)) => {
                s.truncate(text_of(&s).len());
                Cow::Owned(s)
            }
            other => {
                let mut text = Vec::new();
                other.append_text(&mut text);
                Cow::Owned(text)
            }
        }
    }

    /// Casts to bytes, which is always possible: integers are 8 bytes in network order, addresses and texts have their
    /// own bytes.
    pub fn into_bytes(self) -> Cow<'a, [u8]> {
        match self {
            Value::Bin(bytes) | Value::Str(bytes) | Value::Method(bytes) => bytes,
            Value::Int(number) => Cow::Owned(number.to_be_bytes().to_vec()),
            Value::Bool(truth) => Cow::Owned(i64::from(truth).to_be_bytes().to_vec()),
            Value::Ip(IpAddr::V4(ip)) => Cow::Owned(ip.octets().to_vec()),
            Value::Ip(IpAddr::V6(ip)) => Cow::Owned(ip.octets().to_vec()),
        }
    }

    /// Appends the result of [`Value::into_text`] without an intermediate value.
    pub fn append_text(&self, out: &mut Vec<u8>) {
        match self {
            Value::Str(s) | Value::Method(s) => out.extend_from_slice(s),
            Value::Bin(s) => out.extend_from_slice(text_of(s)),
            Value::Bool(b) => out.push(if *b { b'1' } else { b'0' }),
            Value::Int(i) => append_int(out, *i),
            Value::Ip(ip) => append_ip(out, *ip),
        }
    }

    /// Runs `f` on the value's text, without allocating if it already is a text.
    pub fn with_text<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Value::Str(s) | Value::Method(s) => f(s),
            Value::Bin(s) => f(text_of(s)),
            Value::Bool(b) => f(if *b { b"1" } else { b"0" }),
            Value::Int(i) => f(itoa::Buffer::new().format(*i).as_bytes()),
            other => {
                let mut text = Vec::with_capacity(48);
                other.append_text(&mut text);
                f(&text)
            }
        }
    }
}

/// Returns the bytes that a cast to text keeps: as in HAProxy, text ends at a zero byte.
fn text_of(bytes: &[u8]) -> &[u8] {
    &bytes[..memchr::memchr(0, bytes).unwrap_or(bytes.len())]
}

/// Appends a number in decimal.
#[inline]
pub fn append_int(out: &mut Vec<u8>, number: i64) {
    match number {
        // Most numbers of a log line; not worth two calls.
        0..=9 => out.push(b'0' + number as u8),
        _ => out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
    }
}

/// Appends an address; IPv4 is formatted by hand because nearly every key contains one.
pub fn append_ip(out: &mut Vec<u8>, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => {
            for (index, octet) in ip.octets().into_iter().enumerate() {
                if index > 0 {
                    out.push(b'.');
                }
                append_int(out, i64::from(octet));
            }
        }
        IpAddr::V6(ip) => {
            use std::io::Write;
            // Writing to a Vec cannot fail.
            let _ = write!(out, "{ip}");
        }
    }
}

/// Appends one byte as two upper-case hexadecimal digits.
#[inline]
pub fn append_hex(out: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.push(DIGITS[usize::from(byte >> 4)]);
    out.push(DIGITS[usize::from(byte & 15)]);
}

/// Returns the IPv4 address at the start of a text, and its length. As in HAProxy its numbers may begin with zeros; it ends
/// with the text, or before a byte that is neither a digit nor a dot.
pub(crate) fn leading_ipv4(text: &[u8]) -> Option<(Ipv4Addr, usize)> {
    let end = text.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.').unwrap_or(text.len());
    let mut octets = [0; 4];
    let mut parts = text[..end].split(|byte| *byte == b'.');
    for octet in &mut octets {
        let digits = parts.next().filter(|digits| !digits.is_empty())?;
        *octet = digits.iter().try_fold(0_u8, |number, digit| number.checked_mul(10)?.checked_add(digit - b'0'))?;
    }
    parts.next().is_none().then(|| (Ipv4Addr::from(octets), end))
}

/// Parses the leading decimal integer of `text`, saturating; 0 if there is none, and `None` for an empty text.
fn parse_leading_int(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [] => return None,
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let mut number: i64 = 0;
    for digit in digits.iter().take_while(|byte| byte.is_ascii_digit()) {
        let digit = i64::from(digit - b'0');
        number = number.saturating_mul(10);
        number = if negative { number.saturating_sub(digit) } else { number.saturating_add(digit) };
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(value: Value<'_>, int: Option<i64>, ip: Option<&str>, text: &str) {
        assert_eq!(value.to_int(), int, "{value:?} as an integer");
        assert_eq!(value.to_bool(), int.map(|number| number != 0), "{value:?} as a boolean");
        assert_eq!(value.to_ip().map(|ip| ip.to_string()).as_deref(), ip, "{value:?} as an address");
        value.with_text(|bytes| assert_eq!(String::from_utf8_lossy(bytes), text));
        assert_eq!(String::from_utf8_lossy(&value.clone().into_text()), text);
        assert_eq!(Value::from_sample(value.clone().into_sample()), value);
        assert_eq!(value.clone().into_sample().as_value(), value);
    }

    #[test]
    fn casts_are_those_of_the_manual() {
        let ip = |text: &str| Value::Ip(text.parse().expect("an address"));
        check(Value::Bool(true), Some(1), None, "1");
        check(Value::Bool(false), Some(0), None, "0");
        check(Value::Int(-3), Some(-3), Some("255.255.255.253"), "-3");
        check(ip("1.2.3.4"), Some(0x0102_0304), Some("1.2.3.4"), "1.2.3.4");
        check(ip("2001:db8::1"), None, Some("2001:db8::1"), "2001:db8::1");
        check(Value::text(b"12ab"), Some(12), None, "12ab");
        check(Value::text(b"1.2.3.4:80"), Some(1), Some("1.2.3.4"), "1.2.3.4:80");
        check(Value::text(b"010.2.3.004 x"), Some(10), Some("10.2.3.4"), "010.2.3.004 x");
        for text in ["1.2.3", "1.2.3.", "1..3.4", "1.2.3.256", "1.2.3.4.", "1.2.3.4.5", ".1.2.3", " 1.2.3.4"] {
            assert_eq!(Value::text(text.as_bytes()).to_ip(), None, "{text}");
        }
        check(Value::text(b"-12"), Some(-12), None, "-12");
        check(Value::text(b"+12"), Some(12), None, "+12");
        check(Value::text(b"ab"), Some(0), None, "ab");
        check(Value::text(b""), None, None, "");
        check(Value::text(b"10.0.0.1"), Some(10), Some("10.0.0.1"), "10.0.0.1");
        check(Value::text(b"99999999999999999999"), Some(i64::MAX), None, "99999999999999999999");
        check(Value::text(b"-99999999999999999999"), Some(i64::MIN), None, "-99999999999999999999");
        check(Value::Bin(Cow::Borrowed(b"a\x00z")), None, None, "a");
        check(Value::Method(Cow::Borrowed(b"GET")), None, None, "GET");
    }
}
