//! Files of `tls-ticket-keys`: one key per line, in base64.

/// The minimum number of keys: the last but one encrypts, its neighbours decrypt.
const KEYS_MIN: usize = 3;
/// Sizes of a key: a name of 16 bytes, then keys of HMAC-SHA-256 and AES-128 or AES-256.
const SIZES: [usize; 2] = [48, 80];

/// Returns the keys, all of one size.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let text = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let lines = text.split(|byte| *byte == b'\n').take(if text.is_empty() { 0 } else { usize::MAX });
    for (index, line) in lines.enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let key = base64(line).ok_or_else(|| format!("unable to decode base64 key on line {}", index + 1))?;
        if !SIZES.contains(&key.len()) || keys.first().is_some_and(|first| first.len() != key.len()) {
            return Err(format!("wrong sized key on line {}", index + 1));
        }
        keys.push(key);
    }
    if keys.len() < KEYS_MIN {
        return Err(format!("please supply at least {KEYS_MIN} keys in the tls-tickets-file"));
    }
    Ok(keys)
}

/// Decodes base64 with its padding.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    if padding > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for (index, group) in text.chunks_exact(4).enumerate() {
        let last = index + 1 == text.len() / 4;
        let mut bits = 0u32;
        for (place, byte) in group.iter().enumerate() {
            let value = match byte {
                b'A'..=b'Z' => byte - b'A',
                b'a'..=b'z' => byte - b'a' + 26,
                b'0'..=b'9' => byte - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                b'=' if last && place + padding >= 4 => 0,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
        }
        bytes.extend_from_slice(&bits.to_be_bytes()[1..]);
    }
    bytes.truncate(bytes.len() - padding);
    Some(bytes)
}

/// Fuzz target: parses any bytes as a file of keys, and asserts that the result is consistent.
pub(super) fn fuzz(data: &[u8]) {
    if let Ok(keys) = parse(data) {
        assert!(keys.len() >= KEYS_MIN);
        assert!(keys.iter().all(|key| SIZES.contains(&key.len()) && key.len() == keys[0].len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 48 bytes of one letter, 0x41.
    const KEY: &str = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFB";

    fn check(text: &str, expected: Result<usize, &str>) {
        let found = parse(text.as_bytes()).map(|keys| keys.len());
        assert_eq!(found, expected.map_err(str::to_owned), "{text}");
    }

    #[test]
    fn base64_is_decoded() {
        let decode = |text: &str| base64(text.as_bytes()).map(|bytes| String::from_utf8(bytes).expect("text"));
        assert_eq!(decode("QUJD").as_deref(), Some("ABC"));
        assert_eq!(decode("QUI=").as_deref(), Some("AB"));
        assert_eq!(decode("QQ==").as_deref(), Some("A"));
        assert_eq!(decode("").as_deref(), Some(""));
        for bad in ["Q", "QQ=", "Q===", "QQ=A", "=QQ=", "Q?==", "QQ==QQ=="] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_file_has_three_keys_of_one_size() {
        check(&format!("{KEY}\n{KEY}\r\n{KEY}\n"), Ok(3));
        check(&format!("{KEY}\n{KEY}\n{KEY}\n{KEY}"), Ok(4));
        check(&format!("{KEY}\n{KEY}\n"), Err("please supply at least 3 keys in the tls-tickets-file"));
        check("", Err("please supply at least 3 keys in the tls-tickets-file"));
        check(&format!("{KEY}\nQUFB\n{KEY}\n"), Err("wrong sized key on line 2"));
        check(&format!("{KEY}\n{KEY}QQ==\n{KEY}\n"), Err("wrong sized key on line 2"));
        check(&format!("{KEY}\n\n{KEY}\n"), Err("wrong sized key on line 2"));
        check(&format!("{KEY}\n{KEY}\n%\n"), Err("unable to decode base64 key on line 3"));
    }
}
