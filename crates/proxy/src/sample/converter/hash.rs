//! Hashes and digests.
//!
//! CRCs are slicing-by-8 over tables made when the program is built: 8 bytes per step without any feature of the
//! processor. The four small hashes are HAProxy's own; its balancing by hash uses them too.

use sha2::Digest;

use super::super::value::Value;

/// A hash that gives an integer.
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

/// A digest that gives bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum DigestKind {
    Md5,
    /// Both, one after the other.
    Md5Sha1,
    Sha1,
    Sha224,
    Sha256,
    Sha384,
    Sha512,
    Sha512To224,
    Sha512To256,
    Sha3To224,
    Sha3To256,
    Sha3To384,
    Sha3To512,
    Blake2b512,
    Blake2s256,
    Ripemd160,
    Sm3,
}

impl Hash {
    /// Hashes; `argument` is the seed of the xxh family, and other than 0 for an avalanche behind the others.
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

impl DigestKind {
    /// The digest by any of OpenSSL's names of it.
    pub fn named(name: &str) -> Option<DigestKind> {
        Some(match sluicegate_config::digest_name(name)? {
            "md5" => DigestKind::Md5,
            "md5-sha1" => DigestKind::Md5Sha1,
            "sha1" => DigestKind::Sha1,
            "sha224" => DigestKind::Sha224,
            "sha256" => DigestKind::Sha256,
            "sha384" => DigestKind::Sha384,
            "sha512" => DigestKind::Sha512,
            "sha512-224" => DigestKind::Sha512To224,
            "sha512-256" => DigestKind::Sha512To256,
            "sha3-224" => DigestKind::Sha3To224,
            "sha3-256" => DigestKind::Sha3To256,
            "sha3-384" => DigestKind::Sha3To384,
            "sha3-512" => DigestKind::Sha3To512,
            "blake2b512" => DigestKind::Blake2b512,
            "blake2s256" => DigestKind::Blake2s256,
            "ripemd160" => DigestKind::Ripemd160,
            "sm3" => DigestKind::Sm3,
            _ => return None,
        })
    }

    /// The digest of bytes.
    pub fn of(self, bytes: &[u8]) -> Value<'static> {
        Value::Bin(self.digest(&[bytes]).into())
    }

    /// The digest of several parts in a row.
    fn digest(self, parts: &[&[u8]]) -> Vec<u8> {
        fn run<D: Digest>(parts: &[&[u8]]) -> Vec<u8> {
            let mut digest = D::new();
            parts.iter().for_each(|part| digest.update(part));
            digest.finalize().to_vec()
        }
        match self {
            DigestKind::Md5 => run::<md5::Md5>(parts),
            DigestKind::Md5Sha1 => [run::<md5::Md5>(parts), run::<sha1::Sha1>(parts)].concat(),
            DigestKind::Sha1 => run::<sha1::Sha1>(parts),
            DigestKind::Sha224 => run::<sha2::Sha224>(parts),
            DigestKind::Sha256 => run::<sha2::Sha256>(parts),
            DigestKind::Sha384 => run::<sha2::Sha384>(parts),
            DigestKind::Sha512 => run::<sha2::Sha512>(parts),
            DigestKind::Sha512To224 => run::<sha2::Sha512_224>(parts),
            DigestKind::Sha512To256 => run::<sha2::Sha512_256>(parts),
            DigestKind::Sha3To224 => run::<sha3::Sha3_224>(parts),
            DigestKind::Sha3To256 => run::<sha3::Sha3_256>(parts),
            DigestKind::Sha3To384 => run::<sha3::Sha3_384>(parts),
            DigestKind::Sha3To512 => run::<sha3::Sha3_512>(parts),
            DigestKind::Blake2b512 => run::<blake2::Blake2b512>(parts),
            DigestKind::Blake2s256 => run::<blake2::Blake2s256>(parts),
            DigestKind::Ripemd160 => run::<ripemd::Ripemd160>(parts),
            DigestKind::Sm3 => run::<sm3::Sm3>(parts),
        }
    }

    /// Bytes of a block.
    fn block(self) -> usize {
        match self {
            DigestKind::Sha384
            | DigestKind::Sha512
            | DigestKind::Sha512To224
            | DigestKind::Sha512To256
            | DigestKind::Blake2b512 => 128,
            DigestKind::Sha3To224 => 144,
            DigestKind::Sha3To256 => 136,
            DigestKind::Sha3To384 => 104,
            DigestKind::Sha3To512 => 72,
            _ => 64,
        }
    }

    /// The keyed digest of bytes (HMAC, RFC 2104); keys of any length are good.
    pub fn keyed(self, key: &[u8], bytes: &[u8]) -> Vec<u8> {
        let size = self.block();
        let mut block = if key.len() > size { self.digest(&[key]) } else { key.to_vec() };
        block.resize(size, 0);
        let pad = |with: u8| block.iter().map(|byte| byte ^ with).collect::<Vec<u8>>();
        let inner = self.digest(&[&pad(0x36), bytes]);
        self.digest(&[&pad(0x5c), &inner])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(Hash::Crc32.of(b"123456789", 0), 0xcbf4_3926);
        assert_eq!(Hash::Crc32c.of(b"123456789", 0), 0xe306_9283);
        // RFC 4231, test case 2.
        let digest = DigestKind::Sha256.keyed(b"Jefe", b"what do ya want for nothing?");
        assert_eq!(digest[..4], [0x5b, 0xdc, 0xc1, 0x46]);
        for length in 0..40 {
            // Whatever the alignment, the eight bytes at a time are the same as one by one.
            let bytes: Vec<u8> = (0..length).collect();
            let slow = !bytes
                .iter()
                .fold(u32::MAX, |crc, byte| (crc >> 8) ^ CRC32[0][((crc ^ u32::from(*byte)) & 255) as usize]);
            assert_eq!(crc(&CRC32, &bytes), slow);
        }
    }
}
