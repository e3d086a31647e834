//! A word of the object, as one machine reads it.
//!
//! All words of the allocator are tagged `int64`, so a machine finds them in its own order
//! of bytes. A program may say that it runs on another machine than it does; then its
//! words are in that machine's order, and are turned around here. What bits mean to each
//! other does not depend on the order, so all is still one step of the processor.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// A word of the object.
#[derive(Clone, Copy, Debug)]
pub struct Word<'a> {
    cell: &'a AtomicU64,
    is_swapped: bool,
}

impl<'a> Word<'a> {
    /// A word in the order of this machine.
    #[must_use]
    pub const fn new(cell: &'a AtomicU64) -> Word<'a> {
        Word {
            cell,
            is_swapped: false,
        }
    }

    /// A word in the opposite order.
    #[must_use]
    pub const fn swapped(cell: &'a AtomicU64) -> Word<'a> {
        Word {
            cell,
            is_swapped: true,
        }
    }

    /// From what a number is to how it is stored, or back.
    const fn turned(self, number: u64) -> u64 {
        if self.is_swapped {
            number.swap_bytes()
        } else {
            number
        }
    }

    /// What it is.
    #[must_use]
    pub fn load(self) -> u64 {
        self.turned(self.cell.load(SeqCst))
    }

    /// Makes it a number.
    pub fn store(self, number: u64) {
        self.cell.store(self.turned(number), SeqCst);
    }

    /// Changes it from one number to another, if it is that. Says whether it was.
    #[must_use]
    pub fn change(self, from: u64, to: u64) -> bool {
        let (from, to) = (self.turned(from), self.turned(to));
        self.cell.compare_exchange(from, to, SeqCst, SeqCst).is_ok()
    }

    /// Its memory, and how numbers are stored there: for who changes it in a way of their own.
    #[must_use]
    pub fn stored<const N: usize>(self, numbers: [u64; N]) -> (&'a AtomicU64, [u64; N]) {
        (self.cell, numbers.map(|number| self.turned(number)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A word in the other order is the same word.
        #[test]
        fn words_do_the_same_in_both_orders(first: u64, steps in prop::collection::vec((0..3u8, any::<u64>()), 0..20)) {
            let (plain, turned) = (AtomicU64::new(first), AtomicU64::new(first.swap_bytes()));
            let (plain_word, turned_word) = (Word::new(&plain), Word::swapped(&turned));
            for (step, number) in steps {
                let act = |word: Word| match step {
                    0 => { word.store(number); 0 }
                    1 => word.change(word.load(), number).into(),
                    _ => word.change(number, first).into(),
                };
                prop_assert_eq!(act(plain_word), act(turned_word));
                prop_assert_eq!(plain_word.load(), turned_word.load());
                prop_assert_eq!(plain.load(SeqCst), turned.load(SeqCst).swap_bytes());
            }
        }
    }
}
