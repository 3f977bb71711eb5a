//! Base64 and base64url (RFC 4648).

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// An alphabet of RFC 4648.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base64 {
    /// `+` and `/`, padded.
    Standard,
    /// `-` and `_`, not padded.
    Url,
}

impl Base64 {
    /// Encodes bytes.
    pub fn encode(self, bytes: &[u8]) -> Vec<u8> {
        let alphabet = if self == Base64::Standard { STANDARD } else { URL };
        let mut out = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
        for chunk in bytes.chunks(3) {
            let word = (u32::from(chunk[0]) << 16)
                | (u32::from(chunk.get(1).copied().unwrap_or(0)) << 8)
                | u32::from(chunk.get(2).copied().unwrap_or(0));
            for place in 0..4 {
                if place <= chunk.len() {
                    out.push(alphabet[(word >> (18 - 6 * place)) as usize & 63]);
                } else if self == Base64::Standard {
                    out.push(b'=');
                }
            }
        }
        out
    }

    /// Decodes a text; returns `None` if it is not base64. The standard form must be padded, the other one may be.
    pub fn decode(self, text: &[u8]) -> Option<Vec<u8>> {
        let digits = match self {
            Base64::Standard if !text.len().is_multiple_of(4) => return None,
            Base64::Standard | Base64::Url => {
                let body = text.strip_suffix(b"=").unwrap_or(text);
                let body = body.strip_suffix(b"=").unwrap_or(body);
                if body.len() < text.len() && !text.len().is_multiple_of(4) {
                    return None;
                }
                body
            }
        };
        if digits.len() % 4 == 1 {
            return None;
        }
        let mut out = Vec::with_capacity(digits.len() * 3 / 4);
        for chunk in digits.chunks(4) {
            let mut word = 0;
            for digit in chunk {
                word = (word << 6) | u32::from(self.digit(*digit)?);
            }
            word <<= 6 * (4 - chunk.len());
            out.extend_from_slice(&word.to_be_bytes()[1..chunk.len()]);
        }
        Some(out)
    }

    fn digit(self, byte: u8) -> Option<u8> {
        Some(match (byte, self) {
            (b'A'..=b'Z', _) => byte - b'A',
            (b'a'..=b'z', _) => byte - b'a' + 26,
            (b'0'..=b'9', _) => byte - b'0' + 52,
            (b'+', Base64::Standard) | (b'-', Base64::Url) => 62,
            (b'/', Base64::Standard) | (b'_', Base64::Url) => 63,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_4648_vectors() {
        for (text, encoded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(Base64::Standard.encode(text.as_bytes()), encoded.as_bytes());
            assert_eq!(Base64::Standard.decode(encoded.as_bytes()).as_deref(), Some(text.as_bytes()));
            assert_eq!(Base64::Url.encode(text.as_bytes()), encoded.trim_end_matches('=').as_bytes());
        }
        for wrong in ["Zg", "Zg=", "Z===", "Zm9v\n", "Zm8=Zm8=", "Zm-v"] {
            assert_eq!(Base64::Standard.decode(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
