//! Numbers from a seed: the same each time, on each machine.

/// SplitMix64.
pub struct Random(u64);

impl Random {
    /// Numbers that belong to a seed and to somebody who draws.
    pub fn new(seed: u64, who: u64) -> Random {
        let mut random = Random(seed ^ who.wrapping_mul(0xd6e8_feb8_6659_fd93));
        random.next();
        random
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below another.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Whether it happens, once in so many times.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}
