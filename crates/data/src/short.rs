//! Comparison of names and keys, which are mostly short: up to 32 bytes by two loads of each, without a call.

/// Returns whether both have the same bytes.
#[inline(always)]
pub fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len()
        && match a.len() {
            0 => true,
            1..4 => {
                let (middle, last) = (a.len() / 2, a.len() - 1);
                (a[0] ^ b[0]) | (a[middle] ^ b[middle]) | (a[last] ^ b[last]) == 0
            }
            4..8 => ends::<4>(a, b, |end| u32::from_ne_bytes(*end).into()),
            8..16 => ends::<8>(a, b, |end| u64::from_ne_bytes(*end).into()),
            16..=32 => ends::<16>(a, b, |end| u128::from_ne_bytes(*end)),
            _ => a == b,
        }
}

/// Returns whether the first and the last `N` bytes of two texts of the same length are equal.
#[inline(always)]
fn ends<const N: usize>(a: &[u8], b: &[u8], number: impl Fn(&[u8; N]) -> u128) -> bool {
    let (Some(a_first), Some(b_first)) = (a.first_chunk(), b.first_chunk()) else { return false };
    let (Some(a_last), Some(b_last)) = (a.last_chunk(), b.last_chunk()) else { return false };
    (number(a_first) ^ number(b_first)) | (number(a_last) ^ number(b_last)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_comparing_slices_is() {
        for len in 0..70 {
            let a: Vec<u8> = (0..len).collect();
            assert!(same(&a, &a.clone()));
            assert!(!same(&a, &[&a[..], b"x"].concat()));
            for place in 0..usize::from(len) {
                for bit in 0..8 {
                    let mut b = a.clone();
                    b[place] ^= 1 << bit;
                    assert!(!same(&a, &b), "{len} bytes, byte {place}");
                }
            }
        }
    }
}
