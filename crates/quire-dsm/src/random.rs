//! Numbers that nobody else has: they name servers, objects and leases, and are secrets of the
//! store's log.

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher};
use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// A number that nobody can guess.
///
/// # Errors
/// What the kernel said.
pub(crate) fn secret() -> io::Result<u64> {
    let mut bytes = [0; 8];
    // So few bytes come at once or not at all.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

thread_local! {
    /// What the next number of this thread follows from, where they are to be the same each time.
    static REPEATED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Has the numbers of this thread follow from this one, so that a simulation does the same each time.
/// Elsewhere two objects could be taken for each other by that.
pub fn repeat_numbers(from: u64) {
    REPEATED.set(Some(from));
}

/// The next number that follows from one.
fn repeated() -> Option<u64> {
    let mut numbers = Numbers(REPEATED.get()?);
    let number = numbers.next();
    REPEATED.set(Some(numbers.0));
    Some(number.max(1))
}

/// A number that nobody else has; never 0.
pub(crate) fn random() -> u64 {
    if let Some(number) = repeated() {
        return number;
    }
    // Old kernels only fail: each of these is hashed with keys of its own.
    let hashed = |_| {
        let state = std::collections::hash_map::RandomState::new();
        state.build_hasher().finish()
    };
    secret().unwrap_or_else(hashed).max(1)
}

/// Numbers that look random, and are the same for the same seed on every machine
/// (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        // The remainder is the less even the greater `end` is; nothing here depends on that.
        (self.next() % end as u64) as usize
    }
}
