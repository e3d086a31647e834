//! A small generator of random numbers, so that intervals and inputs are
//! reproducible.

/// SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator whose sequence `seed` determines.
    #[must_use]
    pub const fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not zero. The bias is below 2⁻³² for
    /// any series that fits in memory.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_sequence() {
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn every_number_below_the_bound_comes_up() {
        let mut random = SplitMix64::new(1);
        let mut seen = [0; 7];
        (0..7000).for_each(|_| seen[random.below(7)] += 1);
        assert!(seen.iter().all(|n| (800..1200).contains(n)));
    }
}
