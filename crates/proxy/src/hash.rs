//! Hash functions with an integer result, for converters and balancing.
//!
//! CRCs use slicing-by-8 with tables computed at build time: 8 bytes per step without special CPU features. The four
//! small hashes are HAProxy's.

/// A hash function whose result is an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // each is named as its converter
pub enum Hash {
    Crc32,
    Crc32c,
    Djb2,
    Sdbm,
    Wt6,
    Xxh32,
    Xxh64,
    Xxh3,
}

impl Hash {
    /// Returns the hash of bytes. `argument` is the seed of the xxh family; for the others, a value other than 0 adds
    /// an avalanche step.
    pub fn of(self, bytes: &[u8], argument: i64) -> i64 {
        let small = match self {
            Hash::Xxh32 => return i64::from(xxhash_rust::xxh32::xxh32(bytes, argument as u32)),
            Hash::Xxh64 => return xxhash_rust::xxh64::xxh64(bytes, argument as u64) as i64,
            Hash::Xxh3 => return xxhash_rust::xxh3::xxh3_64_with_seed(bytes, argument as u64) as i64,
            Hash::Crc32 => crc(&CRC32, bytes),
            Hash::Crc32c => crc(&CRC32C, bytes),
            Hash::Djb2 => bytes.iter().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add((*byte).into())),
            Hash::Sdbm => {
                bytes.iter().fold(0, |hash: u32, byte| hash.wrapping_mul(65_599).wrapping_add((*byte).into()))
            }
            Hash::Wt6 => wt6(bytes),
        };
        i64::from(if argument != 0 { avalanche(small) } else { small })
    }
}

/// Bob Jenkins's integer hash with six shifts, then a product that spreads it over the whole range.
pub(crate) fn avalanche(a: u32) -> u32 {
    let a = a.wrapping_add(0x7ed5_5d16).wrapping_add(a << 12);
    let a = (a ^ 0xc761_c23c) ^ (a >> 19);
    let a = a.wrapping_add(0x1656_67b1).wrapping_add(a << 5);
    let a = a.wrapping_add(0xd3a2_646c) ^ (a << 9);
    let a = a.wrapping_add(0xfd70_46c5).wrapping_add(a << 3);
    let a = (a ^ 0xb55a_4f09) ^ (a >> 16);
    a.wrapping_mul(3_221_225_473)
}

fn wt6(bytes: &[u8]) -> u32 {
    let (mut low, mut high) = (0xa53c_965a_u32, 0x5ca6_953a_u32);
    let (mut left, mut right) = (6, 18);
    for byte in bytes {
        low = !(low ^ u32::from(*byte));
        high = !high.wrapping_add(u32::from(*byte));
        (low, high) = (high.rotate_left(left), low.rotate_left(right));
        let mixed = ((low >> 16) ^ high) & 0xffff;
        (left, right) = (mixed & 31, mixed >> 11);
    }
    low ^ high
}

/// Returns the CRC-32C of bytes.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc(&CRC32C, bytes)
}

type CrcTables = [[u32; 256]; 8];

static CRC32: CrcTables = crc_tables(0xedb8_8320);
static CRC32C: CrcTables = crc_tables(0x82f6_3b78);

const fn crc_tables(polynomial: u32) -> CrcTables {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut rest = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            rest = if rest & 1 == 1 { (rest >> 1) ^ polynomial } else { rest >> 1 };
            bit += 1;
        }
        tables[0][byte] = rest;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[table - 1][byte];
            tables[table][byte] = (before >> 8) ^ tables[0][(before & 255) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
}

fn crc(tables: &CrcTables, bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    let (chunks, rest) = bytes.as_chunks::<8>();
    for chunk in chunks {
        let low = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]) ^ crc;
        let [a, b, c, d] = low.to_le_bytes();
        crc = tables[7][usize::from(a)]
            ^ tables[6][usize::from(b)]
            ^ tables[5][usize::from(c)]
            ^ tables[4][usize::from(d)]
            ^ tables[3][usize::from(chunk[4])]
            ^ tables[2][usize::from(chunk[5])]
            ^ tables[1][usize::from(chunk[6])]
            ^ tables[0][usize::from(chunk[7])];
    }
    for byte in rest {
        crc = (crc >> 8) ^ tables[0][((crc ^ u32::from(*byte)) & 255) as usize];
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(Hash::Crc32.of(b"123456789", 0), 0xcbf4_3926);
        assert_eq!(Hash::Crc32c.of(b"123456789", 0), 0xe306_9283);
        for length in 0..40 {
            // For every alignment, eight bytes per step give the same result as one byte per step.
            let bytes: Vec<u8> = (0..length).collect();
            let slow = !bytes
                .iter()
                .fold(u32::MAX, |crc, byte| (crc >> 8) ^ CRC32[0][((crc ^ u32::from(*byte)) & 255) as usize]);
            assert_eq!(crc(&CRC32, &bytes), slow);
        }
    }
}
