//! Messages of the Financial Information eXchange protocol (`fix_is_valid`, `fix_tag_value`).
//!
//! A message is a list of `tag=value` fields that each end in a byte 1. The first three are BeginString (8), BodyLength
//! (9) and MsgType (35); CheckSum (10) is the last one and counts neither for the body nor for the checksum. Like
//! HAProxy, one pass looks at the fields in order and never further than the checksum.

/// The end of a field.
const DELIMITER: u8 = 1;
/// The length of the shortest possible message.
const SHORTEST: usize = 26;

const BEGIN_STRING: u32 = 8;
const BODY_LENGTH: u32 = 9;
const CHECKSUM: u32 = 10;
const MSG_TYPE: u32 = 35;
/// Tags that belong to users, in every version.
const USER_TAGS: std::ops::RangeInclusive<u32> = 10_000..=19_999;

/// The result of parsing a message, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found<T> {
    /// The answer.
    Is(T),
    /// The answer depends on data that has not arrived.
    NeedsMore,
    /// There is no answer.
    Nothing,
}

/// Returns whether a message is well-formed with correct length and checksum.
pub(super) fn is_valid(message: &[u8]) -> Found<bool> {
    if message.len() < SHORTEST {
        return Found::NeedsMore;
    }
    let mut rest = message;
    let mut highest = None;
    let mut checksum = 0_u8;
    let mut body: Option<(usize, usize)> = None;
    for count in 1.. {
        if rest.is_empty() {
            break;
        }
        let Some((tag, value, after)) = field(rest) else { return Found::NeedsMore };
        let Some(number) = tag_number(tag).filter(|number| allowed(*number, highest)) else { return Found::Is(false) };
        match count {
            1 => {
                highest = highest_tag(value);
                if number != BEGIN_STRING || highest.is_none() {
                    return Found::Is(false);
                }
            }
            2 => match decimal(value) {
                Some(length @ 1..) if number == BODY_LENGTH => {
                    body = Some((message.len() - after.len(), length as usize));
                }
                _ => return Found::Is(false),
            },
            3 if number != MSG_TYPE => return Found::Is(false),
            4.. if number == CHECKSUM => {
                let here = message.len() - rest.len();
                let whole = body.is_some_and(|(start, length)| here == start + length);
                return Found::Is(whole && value.len() == 3 && decimal(value) == Some(u32::from(checksum)));
            }
            _ => {}
        }
        let bytes = &rest[..rest.len() - after.len()];
        checksum = bytes.iter().fold(checksum, |sum, byte| sum.wrapping_add(*byte));
        rest = after;
    }
    if body.is_some() { Found::NeedsMore } else { Found::Is(false) }
}

/// Returns the value of the first field with a tag.
pub(super) fn tag_value(message: &[u8], wanted: u32) -> Found<&[u8]> {
    let mut rest = message;
    while !rest.is_empty() {
        let Some((tag, value, after)) = field(rest) else { return Found::NeedsMore };
        match tag_number(tag) {
            Some(number) if number == wanted && !value.is_empty() => return Found::Is(value),
            Some(number) if number == wanted => return Found::NeedsMore,
            None | Some(CHECKSUM) => return Found::Nothing,
            Some(_) => rest = after,
        }
    }
    Found::NeedsMore
}

/// Returns the tag of the next field, its value and the rest; `None` if the field is unterminated.
fn field(rest: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    // As HAProxy: the delimiter is looked for behind the first `=`, wherever that is.
    let equals = memchr::memchr(b'=', rest)?;
    let end = equals + memchr::memchr(DELIMITER, &rest[equals..])?;
    Some((&rest[..equals], &rest[equals + 1..end], &rest[end + 1..]))
}

/// Parses a number that consists only of decimal digits, with C's wrapping; 0 is not a number.
fn tag_number(text: &[u8]) -> Option<u32> {
    decimal(text).filter(|number| *number != 0)
}

fn decimal(text: &[u8]) -> Option<u32> {
    text.iter().try_fold(0_u32, |number, byte| {
        byte.is_ascii_digit().then(|| number.wrapping_mul(10).wrapping_add(u32::from(byte - b'0')))
    })
}

/// Returns whether a version has a tag; before the version is known every tag is valid.
fn allowed(tag: u32, highest: Option<u32>) -> bool {
    highest.is_none_or(|highest| tag <= highest || USER_TAGS.contains(&tag))
}

/// Returns the greatest tag that a version of the protocol defines.
fn highest_tag(version: &[u8]) -> Option<u32> {
    Some(match version {
        b"FIX.4.0" => 140,
        b"FIX.4.1" => 211,
        b"FIX.4.2" => 446,
        b"FIX.4.3" => 659,
        b"FIX.4.4" => 956,
        // The transport of all 5.0 versions has one name; the last of them has the most tags.
        b"FIXT.1.1" => 1621,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message of fields with `|` for the delimiter, with its length and its checksum.
    fn message(version: &str, body: &str) -> Vec<u8> {
        let text = format!("8={version}|9={}|{body}", body.len()).replace('|', "\x01");
        let sum = text.bytes().fold(0_u8, |sum, byte| sum.wrapping_add(byte));
        format!("{text}10={sum:03}\x01").into_bytes()
    }

    #[test]
    fn messages_are_checked() {
        let good = message("FIX.4.2", "35=0|49=A|56=B|");
        assert_eq!(is_valid(&good), Found::Is(true));
        assert_eq!(is_valid(&good[..good.len() - 1]), Found::NeedsMore);
        assert_eq!(is_valid(b"8=FIX.4.2"), Found::NeedsMore);
        for wrong in ["35=0|0=A|56=BCDEF|", "49=A|35=0|56=BCDE|", "35=0|447=A|56=BCD|", "35=0|x=A|56=BCDEFG|"] {
            assert_eq!(is_valid(&message("FIX.4.2", wrong)), Found::Is(false), "{wrong}");
        }
        assert_eq!(is_valid(&message("FIX.4.3", "35=0|447=A|56=BCD|")), Found::Is(true));
        assert_eq!(is_valid(&message("FIX.3.9", "35=0|49=A|56=BCD|")), Found::Is(false));
        let mut wrong = good.clone();
        let last = wrong.len() - 2;
        wrong[last] ^= 1;
        assert_eq!(is_valid(&wrong), Found::Is(false));
    }

    #[test]
    fn values_are_found() {
        let good = message("FIX.4.4", "35=0|49=SENDER|56=TARGET|");
        assert_eq!(tag_value(&good, 49), Found::Is(&b"SENDER"[..]));
        assert_eq!(tag_value(&good, 57), Found::Nothing);
        assert_eq!(tag_value(&good[..20], 49), Found::NeedsMore);
        assert_eq!(tag_value(b"abc=1\x01", 49), Found::Nothing);
    }
}
