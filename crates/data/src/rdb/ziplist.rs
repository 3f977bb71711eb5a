//! Ziplists, in which Redis before version 7 stored small values. They are read, never written.
//!
//! ```text
//! total bytes (4)  offset of the last element (4)  elements (2)  bytes-of-the-one-before  head  data …  0xff
//! ```

use super::Wrong;
use crate::object::packed::Element;

const HEAD: usize = 10;
const END: u8 = 0xff;
const LONG_BEFORE: u8 = 0xfe;
const COUNT_UNKNOWN: u16 = u16::MAX;

/// Calls `visit` with each element. If an error is returned, the elements visited before it are invalid.
pub(super) fn each(bytes: &[u8], mut visit: impl FnMut(Element<'_>)) -> Result<(), Wrong> {
    let number = |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk()).map(|word| u32::from_le_bytes(*word));
    let (total, last) = (number(0).ok_or(Wrong::Object)?, number(4).ok_or(Wrong::Object)?);
    let told = bytes.get(8..HEAD).and_then(|rest| rest.first_chunk()).map(|word| u16::from_le_bytes(*word));
    if total as usize != bytes.len() || bytes.len() <= HEAD || bytes.last() != Some(&END) {
        return Err(Wrong::Object);
    }
    let body = &bytes[..bytes.len() - 1];
    let (mut at, mut before, mut count, mut last_at) = (HEAD, 0, 0_usize, HEAD);
    while at < body.len() {
        let (size, element) = entry(&body[at..], before).ok_or(Wrong::Object)?;
        visit(element);
        last_at = at;
        (at, before, count) = (at + size, size, count + 1);
    }
    let counted = told.is_some_and(|told| told == COUNT_UNKNOWN || usize::from(told) == count);
    if counted && last as usize == last_at { Ok(()) } else { Err(Wrong::Object) }
}

/// Parses the element at the start, and returns it with its size. `before` is the size of the element before it.
fn entry(bytes: &[u8], before: usize) -> Option<(usize, Element<'_>)> {
    let (told, head_at) = match *bytes.first()? {
        END => return None,
        LONG_BEFORE => (u32::from_le_bytes(*bytes.get(1..)?.first_chunk()?) as usize, 5),
        short => (usize::from(short), 1),
    };
    if told != before {
        return None;
    }
    let rest = bytes.get(head_at..)?;
    let first = *rest.first()?;
    let text = |head: usize, len: usize| {
        let text = rest.get(head..head.checked_add(len)?)?;
        Some((head_at + head + len, Element::Bytes(text)))
    };
    let int = |len: usize| {
        let mut wide = [0; 8];
        wide[..len].copy_from_slice(rest.get(1..1 + len)?);
        let shift = 64 - 8 * len as u32;
        Some((head_at + 1 + len, Element::Int(i64::from_le_bytes(wide) << shift >> shift)))
    };
    match first {
        0..0x40 => text(1, usize::from(first)),
        0x40..0x80 => text(2, usize::from(first & 0x3f) << 8 | usize::from(*rest.get(1)?)),
        0x80 => text(5, u32::from_be_bytes(*rest.get(1..)?.first_chunk()?) as usize),
        0xc0 => int(2),
        0xd0 => int(4),
        0xe0 => int(8),
        0xf0 => int(3),
        0xfe => int(1),
        0xf1..=0xfd => Some((head_at + 1, Element::Int(i64::from(first & 0xf) - 1))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(bytes: &[u8]) -> Result<Vec<Vec<u8>>, Wrong> {
        let mut found = Vec::new();
        each(bytes, |element| found.push(element.text(&mut itoa::Buffer::new()).to_vec()))?;
        Ok(found)
    }

    /// Returns a ziplist of these entries, given without the size of the previous entry.
    fn ziplist(entries: &[&[u8]]) -> Vec<u8> {
        let (mut body, mut before, mut last) = (Vec::new(), 0, HEAD);
        for entry in entries {
            last = HEAD + body.len();
            let start = body.len();
            if before < usize::from(LONG_BEFORE) {
                body.push(before as u8);
            } else {
                body.push(LONG_BEFORE);
                body.extend((before as u32).to_le_bytes());
            }
            body.extend_from_slice(entry);
            before = body.len() - start;
        }
        let total = (HEAD + body.len() + 1) as u32;
        let count = entries.len() as u16;
        [&total.to_le_bytes()[..], &(last as u32).to_le_bytes(), &count.to_le_bytes(), &body, &[END]].concat()
    }

    #[test]
    fn elements_of_every_head_are_read() {
        let long = [&[0x41, 0x2c][..], &[b'x'; 300]].concat();
        let longer = [&[0x80, 0, 0, 0x01, 0x2c][..], &[b'y'; 300]].concat();
        let good = ziplist(&[
            b"\x02hi",
            &long,
            &longer,
            b"\xfe\xff",
            b"\xc0\x39\x30",
            b"\xf0\x00\x00\x80",
            b"\xd0\x00\x00\x00\x80",
            b"\xe0\xff\xff\xff\xff\xff\xff\xff\x7f",
            b"\xf1",
            b"\xfd",
        ]);
        let expected = [
            b"hi".to_vec(),
            vec![b'x'; 300],
            vec![b'y'; 300],
            b"-1".to_vec(),
            b"12345".to_vec(),
            b"-8388608".to_vec(),
            b"-2147483648".to_vec(),
            b"9223372036854775807".to_vec(),
            b"0".to_vec(),
            b"12".to_vec(),
        ];
        assert_eq!(texts(&good).as_deref(), Ok(&expected[..]));
        assert_eq!(texts(&ziplist(&[])), Ok(vec![]));
        for len in 0..good.len() {
            assert!(texts(&good[..len]).is_err());
        }
        for at in 0..HEAD + 6 {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            let _ = texts(&bad);
        }
        assert!(texts(&ziplist(&[b"\x05hi"])).is_err());
        assert!(texts(&ziplist(&[b"\xff"])).is_err());
    }
}
