//! Random numbers for keys and arrivals: seeded, so that a run can be repeated, and the same on every machine.
//!
//! splitmix64 (Steele, Lea, Flood: *Fast splittable pseudorandom number generators*, 2014) costs a nanosecond and
//! needs no more than this use: nothing secret depends on it. Zipf ranks are drawn by rejection-inversion (Hörmann,
//! Derflinger: *Rejection-inversion to generate variates from monotone discrete distributions*, 1996), whose cost
//! and memory don't depend on the number of keys.

/// A generator. Generators with different seeds count as independent here.
#[derive(Clone, Debug)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.state;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// Returns a number that is uniform in 0..`count`, by multiplication: for 2^32 keys the bias is below 2^-32.
    pub(super) fn below(&mut self, count: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(count)) >> 64) as u64
    }

    /// Returns a number that is uniform in (0, 1].
    pub(super) fn fraction(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Returns an exponential number with mean 1: the gaps of a Poisson process.
    pub(super) fn exponential(&mut self) -> f64 {
        -self.fraction().ln()
    }

    /// Returns a normal number with mean 0 and deviation 1 (Box and Muller; the second value is not kept).
    pub(super) fn normal(&mut self) -> f64 {
        let (radius, angle) = (self.fraction(), self.fraction());
        (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }
}

/// Ranks 1..=`count`; rank k has a probability proportional to k^-`exponent`.
#[derive(Clone, Debug)]
pub(super) struct Zipf {
    count: f64,
    exponent: f64,
    /// Of the hat function's integral: at 1.5 less the whole first rank, at the end, and the bound of quick acceptance.
    from: f64,
    to: f64,
    quick: f64,
}

impl Zipf {
    /// `exponent` is above 0.
    pub(super) fn new(count: u64, exponent: f64) -> Zipf {
        let count = count.max(1) as f64;
        let mut zipf = Zipf { count, exponent, from: 0.0, to: 0.0, quick: 0.0 };
        zipf.from = zipf.integral(1.5) - 1.0;
        zipf.to = zipf.integral(count + 0.5);
        zipf.quick = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    pub(super) fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let area = self.to + random.fraction() * (self.from - self.to);
            let place = self.inverse(area);
            let rank = (place + 0.5).floor().clamp(1.0, self.count);
            if rank - place <= self.quick || area >= self.integral(rank + 0.5) - self.density(rank) {
                return rank as u64;
            }
        }
    }

    fn density(&self, place: f64) -> f64 {
        (-self.exponent * place.ln()).exp()
    }

    /// (x^(1-s) - 1) / (1-s), which is ln x for s = 1.
    fn integral(&self, place: f64) -> f64 {
        let log = place.ln();
        let scaled = (1.0 - self.exponent) * log;
        if scaled.abs() > 1e-8 { scaled.exp_m1() / scaled * log } else { log }
    }

    fn inverse(&self, area: f64) -> f64 {
        let scaled = (area * (1.0 - self.exponent)).max(-1.0);
        if scaled.abs() > 1e-8 { (scaled.ln_1p() / scaled * area).exp() } else { area.exp() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_stay_in_range_and_have_their_mean() {
        let mut random = Random::new(7);
        let draws = 100_000;
        let mean = |sum: f64| sum / f64::from(draws);
        let uniform: f64 = (0..draws).map(|_| random.below(10) as f64).sum();
        assert!((mean(uniform) - 4.5).abs() < 0.05);
        assert!((0..1000).all(|_| random.below(3) < 3));
        let exponential: f64 = (0..draws).map(|_| random.exponential()).sum();
        assert!((mean(exponential) - 1.0).abs() < 0.02);
        let normal: f64 = (0..draws).map(|_| random.normal().powi(2)).sum();
        assert!((mean(normal) - 1.0).abs() < 0.03);
    }

    #[test]
    fn zipf_follows_its_law() {
        for exponent in [0.5, 1.0, 1.5] {
            let zipf = Zipf::new(100, exponent);
            let mut random = Random::new(3);
            let mut found = [0u32; 101];
            for _ in 0..200_000 {
                found[zipf.draw(&mut random) as usize] += 1;
            }
            let weight: f64 = (1..=100).map(|rank| f64::from(rank).powf(-exponent)).sum();
            for rank in [1usize, 2, 10] {
                let expected = (rank as f64).powf(-exponent) / weight * 200_000.0;
                let found = f64::from(found[rank]);
                assert!(
                    (found - expected).abs() < expected * 0.08 + 50.0,
                    "s {exponent} rank {rank}: {found} {expected}"
                );
            }
        }
        assert_eq!(Zipf::new(1, 1.0).draw(&mut Random::new(1)), 1);
    }
}
