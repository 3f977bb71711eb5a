//! Random numbers for commands with random results: RANDOMKEY, SPOP, SRANDMEMBER, HRANDFIELD…
//!
//! A counter through a mixer (splitmix64), seeded for each thread by the standard library's hasher: hard to
//! predict, but not cryptographically secure. No secret depends on it.

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher, RandomState};

thread_local!(static STATE: Cell<u64> = Cell::new(RandomState::new().build_hasher().finish()));

/// Returns 64 random bits.
#[inline]
pub fn random() -> u64 {
    STATE.with(|state| {
        let (next, bits) = step(state.get());
        state.set(next);
        bits
    })
}

/// Returns the next state, and the bits of this one.
#[inline]
pub fn step(state: u64) -> (u64, u64) {
    let next = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (next ^ next >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (next, mixed ^ mixed >> 31)
}

/// Returns a function that returns random numbers below a limit, the same ones for the same seed.
pub fn numbers(mut state: u64) -> impl FnMut(usize) -> usize {
    move |limit| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % limit
    }
}

/// Changes up to this many bytes of `data`.
pub fn damage(data: &mut [u8], times: usize, next: &mut impl FnMut(usize) -> usize) {
    for _ in 0..times {
        let (at, byte) = (next(data.len() + 1), next(256) as u8);
        data.get_mut(at).into_iter().for_each(|old| *old = byte);
    }
}

/// Returns a random number below `limit`, uniform up to 2^-64; 0 if `limit` is 0.
#[inline]
pub fn below(limit: usize, random: &mut dyn FnMut() -> u64) -> usize {
    ((u128::from(random()) * limit as u128) >> 64) as usize
}

/// Iterates over a sequence of elements and selects a given number of them, such that every selection has the same
/// probability (Knuth's algorithm S).
pub struct Selection<'r> {
    /// The number of elements still to come.
    left: usize,
    /// The number of elements still to be selected.
    wanted: usize,
    random: &'r mut dyn FnMut() -> u64,
}

impl<'r> Selection<'r> {
    /// Selects `wanted` of `total` elements, or all of them if there are fewer.
    #[inline]
    pub fn new(wanted: usize, total: usize, random: &'r mut dyn FnMut() -> u64) -> Selection<'r> {
        Selection { left: total, wanted: wanted.min(total), random }
    }

    /// Returns whether the next element is chosen.
    #[inline]
    pub fn takes(&mut self) -> bool {
        let taken = self.wanted > 0 && below(self.left, self.random) < self.wanted;
        self.left = self.left.saturating_sub(1);
        self.wanted -= usize::from(taken);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeded(mut state: u64) -> impl FnMut() -> u64 {
        move || {
            let bits;
            (state, bits) = step(state);
            bits
        }
    }

    #[test]
    fn numbers_below_a_limit_are_even() {
        let mut random = seeded(1);
        let mut drawn = [0_u32; 10];
        (0..10_000).for_each(|_| drawn[below(10, &mut random)] += 1);
        assert!(drawn.iter().all(|count| (850..1150).contains(count)), "{drawn:?}");
        assert_eq!(below(0, &mut random), 0);
    }

    #[test]
    fn every_pair_is_chosen_as_often() {
        let mut random = seeded(2);
        let mut drawn = std::collections::BTreeMap::<Vec<usize>, u32>::new();
        for _ in 0..10_000 {
            let mut selection = Selection::new(2, 5, &mut random);
            *drawn.entry((0..5).filter(|_| selection.takes()).collect()).or_default() += 1;
        }
        assert_eq!(drawn.len(), 10);
        assert!(drawn.values().all(|count| (850..1150).contains(count)), "{drawn:?}");
        let mut all = Selection::new(9, 5, &mut random);
        assert!((0..5).all(|_| all.takes()) && !all.takes());
    }
}
