//! Random numbers.

use std::cell::Cell;

/// Returns a random number from a xorshift generator per thread. For selection and
/// distribution; not suitable for secrets.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    thread_local! {
        static STATE: Cell<u64> = Cell::new(std::collections::hash_map::RandomState::new().build_hasher().finish() | 1);
    }
    STATE.with(|state| {
        let mut x = state.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        state.set(x);
        x
    })
}

/// Returns a uniform random number below `range`: the high half of a product, without a division.
pub(crate) fn random_below(range: u64) -> u64 {
    ((u128::from(random()) * u128::from(range)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_fill_their_range() {
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            seen[random_below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|count| (500..2_000).contains(count)), "{seen:?}");
    }
}
