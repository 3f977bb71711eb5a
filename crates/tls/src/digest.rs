//! SHA-256 digests of settings and files, by which a reload finds what has changed.

use std::fmt;

use aws_lc_rs::digest::{Context, SHA256};

/// A SHA-256 digest.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A digest under construction. Each part is preceded by its length, so that parts never run into each other.
pub struct Digester(Context);

impl Default for Digester {
    fn default() -> Self {
        Digester(Context::new(&SHA256))
    }
}

impl Digester {
    /// Adds a part.
    pub fn add(&mut self, part: &[u8]) -> &mut Digester {
        self.0.update(&(part.len() as u64).to_le_bytes());
        self.0.update(part);
        self
    }

    /// Returns the digest of all parts.
    pub fn finish(self) -> Digest {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.0.finish().as_ref());
        Digest(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(parts: &[&[u8]]) -> Digest {
        let mut digester = Digester::default();
        parts.iter().for_each(|part| _ = digester.add(part));
        digester.finish()
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        assert_eq!(of(&[b"ab", b"c"]), of(&[b"ab", b"c"]));
        assert_ne!(of(&[b"ab", b"c"]), of(&[b"a", b"bc"]));
        assert_ne!(of(&[b"ab", b""]), of(&[b"ab"]));
    }
}
