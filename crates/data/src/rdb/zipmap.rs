//! Zipmaps, in which Redis 2.4 stored small hashes. They are read, never written.
//!
//! ```text
//! fields (1)   length of a field   field   length of its value   unused bytes (1)   value   unused …   0xff
//! ```
//!
//! A length is one byte below 254, or 254 and four bytes, little endian. The number of fields is 254 if it is unknown.

use super::Wrong;

const LONG: u8 = 254;
const END: u8 = 255;

/// Calls `visit` with each field and its value. If an error is returned, the fields visited before it are invalid.
pub(super) fn each(bytes: &[u8], mut visit: impl FnMut(&[u8], &[u8])) -> Result<(), Wrong> {
    let (&told, mut rest) = bytes.split_first().ok_or(Wrong::Object)?;
    let mut count = 0_usize;
    loop {
        if rest == [END] {
            return if told >= LONG || usize::from(told) == count { Ok(()) } else { Err(Wrong::Object) };
        }
        let field = text(&mut rest, false).ok_or(Wrong::Object)?;
        let value = text(&mut rest, true).ok_or(Wrong::Object)?;
        visit(field, value);
        count += 1;
    }
}

/// Removes the text at the start from `rest` and returns it; a value is followed by unused bytes.
fn text<'a>(rest: &mut &'a [u8], is_value: bool) -> Option<&'a [u8]> {
    let (&first, mut bytes) = rest.split_first()?;
    let len = match first {
        END => return None,
        LONG => {
            let (len, after) = bytes.split_first_chunk()?;
            bytes = after;
            u32::from_le_bytes(*len) as usize
        }
        short => usize::from(short),
    };
    let mut unused = 0;
    if is_value {
        let (&told, after) = bytes.split_first()?;
        (unused, bytes) = (usize::from(told), after);
    }
    let (text, after) = bytes.split_at_checked(len)?;
    *rest = after.get(unused..)?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(bytes: &[u8]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut found = Vec::new();
        each(bytes, |field, value| found.push((field.to_vec(), value.to_vec()))).ok()?;
        Some(found)
    }

    #[test]
    fn fields_and_values_are_read() {
        let pair = |field: &[u8], value: &[u8]| (field.to_vec(), value.to_vec());
        let good = b"\x02\x01a\x02\0hi\x00\x00\x03xyz\xff";
        assert_eq!(pairs(b"\x02\x01a\x02\0hi\x01b\x00\x03xyz\xff"), Some(vec![pair(b"a", b"hi"), pair(b"b", b"")]));
        assert_eq!(pairs(b"\xfe\x01a\x02\0hi\xff"), Some(vec![pair(b"a", b"hi")]));
        assert_eq!(pairs(b"\x01\xfe\x01\0\0\0a\xfe\x02\0\0\0\0hi\xff"), Some(vec![pair(b"a", b"hi")]));
        assert_eq!(pairs(b"\0\xff"), Some(vec![]));
        for len in 0..good.len() {
            assert_eq!(pairs(&good[..len]), None);
        }
        for wrong in [
            &b"\x02\x01a\x02\0hi\xff"[..],
            b"\x01\x01a\x03\0hi\xff",
            b"\x01\x01a\x02\x01hi\xff",
            b"\x01\x01a\xff",
            b"\x01\xfe\xff\xff\xff\xffa\x02\0hi\xff",
            b"\x01\x01a\x02\0hi\xff\xff",
        ] {
            assert_eq!(pairs(wrong), None, "{wrong:?}");
        }
    }
}
