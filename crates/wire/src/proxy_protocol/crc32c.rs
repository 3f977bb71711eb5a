//! CRC-32C (Castagnoli, RFC 3720), by a table of 256 words: headers are short and few.

/// The reflected polynomial.
const POLYNOMIAL: u32 = 0x82f6_3b78;

static TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let mut word = at as u32;
        let mut bit = 0;
        while bit < 8 {
            word = if word & 1 == 1 { word >> 1 ^ POLYNOMIAL } else { word >> 1 };
            bit += 1;
        }
        table[at] = word;
        at += 1;
    }
    table
}

/// Returns the checksum of these bytes.
pub fn crc32c(bytes: &[u8]) -> u32 {
    !update(!0, bytes)
}

/// Continues a checksum that was not inverted at its end.
pub(super) fn update(state: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(state, |state, byte| state >> 8 ^ TABLE[usize::from(state as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_rfc_3720() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
    }
}
