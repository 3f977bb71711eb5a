//! Look-up of commands by name: the first step of every request.
//!
//! A name of up to 16 bytes is read as two pieces, which overlap if it is shorter, and converted to lower case eight
//! bytes at a time by arithmetic. One multiplication computes its place in a half-empty table, and two comparisons
//! verify it: half the cost of hashing and comparing it byte by byte. The few longer names are compared one by one.

/// Places of the table: at least twice as many as there are names.
const PLACES: usize = 1024;

/// A name of up to 16 bytes, in lower case.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Packed {
    /// The first and the last four bytes; of a name of more than eight the first eight.
    head: u64,
    /// The last eight bytes of a name of more than eight.
    tail: u64,
    /// Distinguishes names of which one equals the other with a repeated middle piece.
    len: u8,
}

impl Packed {
    #[inline]
    fn of(name: &[u8]) -> Option<Packed> {
        let (head, tail) = match name {
            [] => return None,
            [one] => (u64::from(*one), 0),
            [first, second] => (pair(*first, *second), 0),
            [first, second, third] => (pair(*first, *second) | u64::from(*third) << 16, 0),
            _ if name.len() <= 8 => {
                let [first, last] = [name.first_chunk()?, name.last_chunk()?].map(|part| u32::from_le_bytes(*part));
                (u64::from(first) | u64::from(last) << 32, 0)
            }
            _ if name.len() <= 16 => {
                (u64::from_le_bytes(*name.first_chunk()?), lower(u64::from_le_bytes(*name.last_chunk()?)))
            }
            _ => return None,
        };
        Some(Packed { head: lower(head), tail, len: name.len() as u8 })
    }

    #[inline]
    fn place(&self) -> usize {
        // Odd numbers without a pattern; all bits of the words reach the upper ones of the product.
        let mixed = (self.head ^ self.tail.rotate_left(25)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (u64::BITS - PLACES.ilog2())) as usize
    }
}

fn pair(first: u8, second: u8) -> u64 {
    u64::from(first) | u64::from(second) << 8
}

/// Eight bytes with those from `A` to `Z` in lower case.
#[inline]
fn lower(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let low = word & (0x7f * ONES);
    // The top bit of each byte: from `A` on, and beyond `Z`.
    let from_a = low + (0x80 - b'A' as u64) * ONES;
    let beyond_z = low + (0x7f - b'Z' as u64) * ONES;
    let upper = (from_a ^ beyond_z) & !word & (0x80 * ONES);
    word | upper >> 2
}

/// Names, each with its number.
pub(crate) struct Names {
    places: Box<[Option<(Packed, u16)>]>,
    long: Vec<(Box<str>, u16)>,
}

impl Names {
    /// Names in lower case, numbered from 0.
    pub(crate) fn new(names: impl Iterator<Item = &'static str>) -> Names {
        Names::numbered(names.zip(0..))
    }

    /// Names in lower case with their numbers.
    pub(crate) fn numbered<'a>(names: impl Iterator<Item = (&'a str, u16)>) -> Names {
        let mut all = Names { places: vec![None; PLACES].into(), long: Vec::new() };
        for (count, (name, number)) in names.enumerate() {
            assert!(count < PLACES / 2, "the table is to be half empty");
            let Some(packed) = Packed::of(name.as_bytes()) else {
                all.long.push((name.into(), number));
                continue;
            };
            let mut place = packed.place();
            while all.places[place].is_some() {
                place = (place + 1) % PLACES;
            }
            all.places[place] = Some((packed, number));
        }
        all
    }

    /// Returns whether a number has a name.
    pub(crate) fn has(&self, number: u16) -> bool {
        let mut short = self.places.iter().flatten();
        short.any(|(_, known)| *known == number) || self.long.iter().any(|(_, known)| *known == number)
    }

    /// Returns the number of this name, in any case.
    #[inline]
    pub(crate) fn find(&self, name: &[u8]) -> Option<u16> {
        let Some(packed) = Packed::of(name) else { return self.find_long(name) };
        let mut place = packed.place();
        while let Some((known, number)) = &self.places[place % PLACES] {
            if *known == packed {
                return Some(*number);
            }
            place += 1;
        }
        None
    }

    #[cold]
    fn find_long(&self, name: &[u8]) -> Option<u16> {
        let found = self.long.iter().find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name));
        found.map(|(_, number)| *number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands;

    /// The result of a search through all names.
    fn expected(name: &[u8]) -> Option<u16> {
        let found = commands::all().position(|spec| spec.name.as_bytes().eq_ignore_ascii_case(name));
        found.map(|at| at as u16)
    }

    #[test]
    fn names_and_what_differs_from_them_in_a_byte_are_told_apart() {
        let names = Names::new(commands::all().map(|spec| spec.name));
        for spec in commands::all() {
            let name = spec.name.as_bytes();
            for spelled in [name.to_vec(), name.to_ascii_uppercase(), [name, b"x"].concat(), name[1..].to_vec()] {
                assert_eq!(names.find(&spelled), expected(&spelled), "{:?}", spelled.escape_ascii().to_string());
            }
            for at in 0..name.len() {
                for byte in 0..=255 {
                    let mut other = name.to_vec();
                    other[at] = byte;
                    assert_eq!(names.find(&other), expected(&other), "{:?}", other.escape_ascii().to_string());
                }
            }
        }
        assert_eq!(names.find(b""), None);
        assert_eq!(names.find(&[b'a'; 100]), None);
    }
}
