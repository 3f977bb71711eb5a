//! AES in Galois/Counter Mode (`aes_gcm_enc`, `aes_gcm_dec`).
//!
//! Nonces of 96 bits, the usual length, go through the library's authenticated cipher. Any other length is allowed by
//! NIST SP 800-38D and by HAProxy, and not by that interface, so the mode is composed here of AES blocks for them: its
//! hash takes 128 steps a block and branches on no secret.

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{self, EncryptingKey, UnboundCipherKey};

const BLOCK: usize = 16;
/// The length of a tag in bytes. A shorter tag is accepted down to the shortest one that the standard recommends for
/// general purposes.
const TAG: usize = 16;
const SHORTEST_TAG: usize = 12;
/// The length in bytes of the nonce that the library expects.
const NONCE: usize = 12;

/// The length of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySize {
    /// 128 bits.
    Bits128,
    /// 192 bits.
    Bits192,
    /// 256 bits.
    Bits256,
}

impl KeySize {
    /// Returns the size with this number of bits.
    pub(super) fn of_bits(bits: i64) -> Option<KeySize> {
        Some(match bits {
            128 => KeySize::Bits128,
            192 => KeySize::Bits192,
            256 => KeySize::Bits256,
            _ => return None,
        })
    }

    fn bytes(self) -> usize {
        match self {
            KeySize::Bits128 => 16,
            KeySize::Bits192 => 24,
            KeySize::Bits256 => 32,
        }
    }

    fn aead(self) -> &'static aead::Algorithm {
        match self {
            KeySize::Bits128 => &aead::AES_128_GCM,
            KeySize::Bits192 => &aead::AES_192_GCM,
            KeySize::Bits256 => &aead::AES_256_GCM,
        }
    }

    fn blocks(self) -> &'static cipher::Algorithm {
        match self {
            KeySize::Bits128 => &cipher::AES_128,
            KeySize::Bits192 => &cipher::AES_192,
            KeySize::Bits256 => &cipher::AES_256,
        }
    }

    /// Encrypts bytes in place and returns their tag; `None` if the key is too short or the nonce empty. A longer key
    /// is cut, as in HAProxy.
    pub(super) fn encrypt(self, key: &[u8], nonce: &[u8], bytes: &mut [u8]) -> Option<[u8; TAG]> {
        let key = key.get(..self.bytes())?;
        if nonce.len() == NONCE {
            let key = LessSafeKey::new(UnboundKey::new(self.aead(), key).ok()?);
            let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
            let tag = key.seal_in_place_separate_tag(nonce, Aad::empty(), bytes).ok()?;
            return tag.as_ref().try_into().ok();
        }
        let mode = Composed::new(self, key, nonce)?;
        mode.xor(bytes)?;
        mode.tag(bytes)
    }

    /// Decrypts bytes in place. Returns `None` if they do not match the tag; the bytes are then unusable.
    pub(super) fn decrypt(self, key: &[u8], nonce: &[u8], tag: &[u8], bytes: &mut [u8]) -> Option<()> {
        let key = key.get(..self.bytes())?;
        if nonce.len() == NONCE && tag.len() == TAG {
            let key = LessSafeKey::new(UnboundKey::new(self.aead(), key).ok()?);
            let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
            let encrypted = bytes.to_vec();
            return key.open_separate_gather(nonce, Aad::empty(), &encrypted, tag, bytes).ok();
        }
        let mode = Composed::new(self, key, nonce)?;
        let expected = mode.tag(bytes)?;
        if !(SHORTEST_TAG..=TAG).contains(&tag.len())
            || !super::text::equal_in_constant_time(&expected[..tag.len()], tag)
        {
            return None;
        }
        mode.xor(bytes)
    }
}

/// The mode, implemented on top of the block cipher.
struct Composed {
    key: EncryptingKey,
    /// The hash's key.
    hash: u128,
    /// The first counter block.
    first: u128,
}

impl Composed {
    fn new(size: KeySize, key: &[u8], nonce: &[u8]) -> Option<Composed> {
        if nonce.is_empty() {
            return None;
        }
        let key = EncryptingKey::ecb(UnboundCipherKey::new(size.blocks(), key).ok()?).ok()?;
        let mut block = [0; BLOCK];
        key.encrypt(&mut block).ok()?;
        let hash = u128::from_be_bytes(block);
        let first = match <[u8; NONCE]>::try_from(nonce) {
            Ok(nonce) => {
                let mut block = [0; BLOCK];
                block[..NONCE].copy_from_slice(&nonce);
                block[BLOCK - 1] = 1;
                u128::from_be_bytes(block)
            }
            Err(_) => ghash(hash, nonce, nonce.len() as u128 * 8),
        };
        Some(Composed { key, hash, first })
    }

    /// Encrypts or decrypts; both are the same operation.
    fn xor(&self, bytes: &mut [u8]) -> Option<()> {
        let mut stream = Vec::with_capacity(bytes.len().next_multiple_of(BLOCK));
        for index in 1..=bytes.len().div_ceil(BLOCK) as u32 {
            // The low 32 bits count, and wrap without a carry.
            let counter = (self.first as u32).wrapping_add(index);
            stream.extend_from_slice(&(self.first & !0xffff_ffff | u128::from(counter)).to_be_bytes());
        }
        self.key.encrypt(&mut stream).ok()?;
        bytes.iter_mut().zip(stream).for_each(|(byte, pad)| *byte ^= pad);
        Some(())
    }

    /// Returns the tag of encrypted bytes.
    fn tag(&self, bytes: &[u8]) -> Option<[u8; TAG]> {
        let mut block = self.first.to_be_bytes();
        self.key.encrypt(&mut block).ok()?;
        Some((ghash(self.hash, bytes, bytes.len() as u128 * 8) ^ u128::from_be_bytes(block)).to_be_bytes())
    }
}

/// Returns the hash of bytes and a last block.
fn ghash(key: u128, bytes: &[u8], last: u128) -> u128 {
    let blocks = bytes.chunks(BLOCK).map(|chunk| {
        let mut block = [0; BLOCK];
        block[..chunk.len()].copy_from_slice(chunk);
        u128::from_be_bytes(block)
    });
    blocks.chain([last]).fold(0, |sum, block| multiply(sum ^ block, key))
}

/// Returns the product in GF(2^128), bits in the order of the standard.
fn multiply(x: u128, y: u128) -> u128 {
    const REDUCTION: u128 = 0xe1 << 120;
    let (mut product, mut shifted) = (0, y);
    for bit in (0..128).rev() {
        product ^= shifted & 0_u128.wrapping_sub((x >> bit) & 1);
        shifted = (shifted >> 1) ^ (REDUCTION & 0_u128.wrapping_sub(shifted & 1));
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_agree() {
        for size in [KeySize::Bits128, KeySize::Bits192, KeySize::Bits256] {
            let key: Vec<u8> = (0..size.bytes() as u8).collect();
            for length in [0, 1, 15, 16, 17, 100] {
                let plain: Vec<u8> = (0..length).collect();
                let mut bytes = plain.clone();
                let tag = size.encrypt(&key, b"123456789012", &mut bytes).expect("encrypted");
                let mode = Composed::new(size, &key, b"123456789012").expect("a mode");
                let mut composed = plain.clone();
                mode.xor(&mut composed).expect("encrypted");
                assert_eq!((&composed, mode.tag(&composed)), (&bytes, Some(tag)));
                size.decrypt(&key, b"123456789012", &tag, &mut bytes).expect("decrypted");
                assert_eq!(bytes, plain);
            }
        }
    }

    #[test]
    fn nonces_have_any_length() {
        let size = KeySize::Bits128;
        let mut bytes = *b"a nonce of another length";
        let tag = size.encrypt(b"0123456789abcdef", b"12345678", &mut bytes).expect("encrypted");
        let mut wrong = bytes;
        wrong[3] ^= 1;
        assert_eq!(size.decrypt(b"0123456789abcdef", b"12345678", &tag, &mut wrong), None);
        assert_eq!(size.decrypt(b"0123456789abcdef", b"12345678", &tag[..4], &mut bytes.clone()), None);
        assert_eq!(size.decrypt(b"0123456789abcdef", b"12345678", &tag, &mut bytes), Some(()));
        assert_eq!(&bytes, b"a nonce of another length");
        assert_eq!(size.encrypt(b"short", b"12345678", &mut bytes), None);
    }
}
