//! Integers of variable length: four bits or less than 240 in the first byte, then seven bits in each.

/// Appends an integer.
pub(super) fn write(out: &mut Vec<u8>, value: u64) {
    if value < 240 {
        return out.push(value as u8);
    }
    out.push(value as u8 | 240);
    let mut rest = (value - 240) >> 4;
    while rest >= 128 {
        out.push(rest as u8 | 128);
        rest = (rest - 128) >> 7;
    }
    out.push(rest as u8);
}

/// Reads an integer at the start of the input, and removes it; `None` if it is incomplete or larger than 64 bits.
pub(super) fn read(input: &mut &[u8]) -> Option<u64> {
    let (first, rest) = input.split_first()?;
    *input = rest;
    let mut value = u64::from(*first);
    if value < 240 {
        return Some(value);
    }
    let mut shift = 4;
    loop {
        let (byte, rest) = input.split_first()?;
        *input = rest;
        let part = u64::from(*byte);
        if shift > 63 || part.leading_zeros() < shift {
            return None;
        }
        value = value.checked_add(part << shift)?;
        if *byte < 128 {
            return Some(value);
        }
        shift += 7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_they_were_written() {
        for value in [0, 1, 239, 240, 2_287, 2_288, 264_431, 264_432, 33_818_864, 4_328_786_160, u64::MAX - 1, u64::MAX]
        {
            let mut bytes = Vec::new();
            write(&mut bytes, value);
            let mut input = &bytes[..];
            assert_eq!(read(&mut input), Some(value), "{bytes:?}");
            assert!(input.is_empty());
            assert_eq!(read(&mut &bytes[..bytes.len() - 1]), None, "{value}");
        }
    }

    #[test]
    fn the_lengths_are_those_of_the_manual() {
        for (value, length) in [(239, 1), (240, 2), (2_287, 2), (2_288, 3), (264_431, 3), (264_432, 4), (33_818_864, 5)]
        {
            let mut bytes = Vec::new();
            write(&mut bytes, value);
            assert_eq!(bytes.len(), length, "{value}");
        }
    }

    #[test]
    fn larger_integers_are_refused() {
        assert_eq!(read(&mut &[0xff; 12][..]), None);
        assert_eq!(read(&mut &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f][..]), None);
    }
}
