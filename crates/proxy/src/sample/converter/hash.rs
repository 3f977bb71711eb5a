//! Digests.

use sha2::Digest;

use super::super::value::Value;
use super::args::Args;
use super::code::{Compiled, value};
use crate::hash::Hash;

/// Returns a converter for an integer hash. The argument is a seed or, for other hashes, a flag that adds an avalanche
/// function.
fn integer(args: &Args<'_>, hash: Hash) -> Compiled {
    value((hash, args.int(0)?.unwrap_or(0)), |(hash, argument), value, _| {
        Some(Value::Int(hash.of(&value.into_bytes(), *argument)))
    })
}

pub(super) fn crc32(args: &Args<'_>) -> Compiled {
    integer(args, Hash::Crc32)
}

pub(super) fn crc32c(args: &Args<'_>) -> Compiled {
    integer(args, Hash::Crc32c)
}

pub(super) fn djb2(args: &Args<'_>) -> Compiled {
    integer(args, Hash::Djb2)
}

pub(super) fn sdbm(args: &Args<'_>) -> Compiled {
    integer(args, Hash::Sdbm)
}

pub(super) fn wt6(args: &Args<'_>) -> Compiled {
    integer(args, Hash::Wt6)
}

pub(super) fn xxh32(args: &Args<'_>) -> Compiled {
    integer(args, Hash::Xxh32)
}

pub(super) fn xxh64(args: &Args<'_>) -> Compiled {
    integer(args, Hash::Xxh64)
}

pub(super) fn xxh3(args: &Args<'_>) -> Compiled {
    integer(args, Hash::Xxh3)
}

fn bytes(kind: DigestKind) -> Compiled {
    value(kind, |kind, value, _| Some(kind.of(&value.into_bytes())))
}

pub(super) fn sha1(_: &Args<'_>) -> Compiled {
    bytes(DigestKind::Sha1)
}

pub(super) fn sha2(args: &Args<'_>) -> Compiled {
    bytes(match args.int(0)?.unwrap_or(256) {
        224 => DigestKind::Sha224,
        256 => DigestKind::Sha256,
        384 => DigestKind::Sha384,
        512 => DigestKind::Sha512,
        other => return Err(format!("'{other}' is none of 224, 256, 384 and 512")),
    })
}

pub(super) fn digest(args: &Args<'_>) -> Compiled {
    bytes(kind(args)?)
}

/// Returns the digest that the first argument names.
pub(super) fn kind(args: &Args<'_>) -> Result<DigestKind, String> {
    let name = args.text(0)?;
    let kind = std::str::from_utf8(&name).ok().and_then(DigestKind::named);
    kind.ok_or_else(|| format!("'{}' is no digest", String::from_utf8_lossy(&name)))
}

/// A digest that yields bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum DigestKind {
    Md5,
    /// MD5 and SHA-1, one after the other.
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

impl DigestKind {
    /// Returns the digest with this name, which may be any of OpenSSL's names for it.
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

    /// Returns the digest of bytes.
    pub fn of(self, bytes: &[u8]) -> Value<'static> {
        Value::Bin(self.digest(&[bytes]).into())
    }

    /// Returns the digest of the concatenation of several parts.
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

    /// Returns the block size in bytes.
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

    /// Returns the keyed digest of bytes (HMAC, RFC 2104); keys may have any length.
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
        // RFC 4231, test case 2.
        let digest = DigestKind::Sha256.keyed(b"Jefe", b"what do ya want for nothing?");
        assert_eq!(digest[..4], [0x5b, 0xdc, 0xc1, 0x46]);
    }
}
