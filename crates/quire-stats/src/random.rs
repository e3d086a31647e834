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

    /// The generator numbered `number` of those that `seed` determines: for draws that
    /// must not depend on each other.
    pub(crate) fn stream(seed: u64, number: u64) -> SplitMix64 {
        let mut first = SplitMix64(seed ^ number.wrapping_mul(0xd1b5_4a32_d192_ed03));
        SplitMix64(first.next())
    }

    /// A random word.
    pub(crate) fn word(&mut self) -> u64 {
        self.next()
    }

    /// A word from which [`per_word`] numbers can be taken.
    #[inline]
    pub(crate) fn fraction(&mut self) -> Fraction {
        Fraction(self.next())
    }

    #[inline]
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

/// So many bits of a word may be used up: the last number is drawn from at least 28 bits more than
/// it needs, so that its bias is below 2⁻²⁸.
const USABLE: u32 = 36;

/// How many numbers below `bound` one word is good for.
#[inline]
pub(crate) fn per_word(bound: usize) -> usize {
    let bits = usize::BITS - bound.saturating_sub(1).leading_zeros();
    (USABLE / bits.max(1)).max(1) as usize
}

/// A random number in [0, 1) in binary, from which whole numbers are taken like digits:
/// times the bound, the whole part is the number and the rest is left for the next one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fraction(u64);

impl Fraction {
    /// A number below `bound`, which is not zero.
    #[inline]
    pub(crate) fn take(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.0) * bound as u128;
        self.0 = wide as u64;
        (wide >> 64) as usize
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

    #[test]
    fn numbers_from_one_word_are_even_and_independent() {
        let mut random = SplitMix64::stream(1, 2);
        let mut seen = [[0; 5]; 5];
        for _ in 0..50_000 {
            let mut fraction = random.fraction();
            let (a, _, c) = (fraction.take(5), fraction.take(4096), fraction.take(5));
            seen[a][c] += 1;
        }
        assert!(seen.iter().flatten().all(|n| (1800..2200).contains(n)));
        let counts = [1, 2, 5, 20, 400, 4096, 4097, 1 << 40].map(per_word);
        assert_eq!(counts, [36, 36, 12, 7, 4, 3, 2, 1]);
    }
}
