//! Hash slots of a Redis cluster
//! (<https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>).

/// Slots of a Redis cluster.
pub const SLOTS: u16 = 16_384;

/// Returns the slot of a key, or of its hash tag: the text between its first braces, if not empty.
pub fn slot(key: &[u8]) -> u16 {
    let tag = memchr::memchr(b'{', key).and_then(|open| {
        let rest = &key[open + 1..];
        memchr::memchr(b'}', rest).map(|close| &rest[..close]).filter(|tag| !tag.is_empty())
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM by a table of bytes.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_slots_of_redis() {
        let check = |key: &str, same: &str| assert_eq!(slot(key.as_bytes()), crc16(same.as_bytes()) % SLOTS, "{key}");
        // The specification's test value, and its examples of tags.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        check("{user1000}.following", "user1000");
        check("foo{}{bar}", "foo{}{bar}");
        check("foo{{bar}}zap", "{bar");
        check("foo{bar}{zap}", "bar");
        check("foo{bar", "foo{bar");
        assert_eq!(slot(b"foo{bar}"), 5061);
    }
}
