//! In which order pairs of benchmark and variant are executed.
//!
//! A round executes every pair once, in an order of its own. So what changes on the
//! machine in the course of an experiment falls on all pairs alike, and an experiment
//! that ends early has as many executions of each.

use quire_stats::random::SplitMix64;

/// The pairs of a round, by number, in their order.
#[must_use]
pub fn round(pairs: usize, round: u64, seed: u64) -> Vec<usize> {
    // Seeds of rounds are far from each other, so that their orders are independent.
    let mut random = SplitMix64::new(seed ^ (round + 1).wrapping_mul(0xd605_bbb5_8c8a_bc6d));
    let mut order: Vec<usize> = (0..pairs).collect();
    for last in (1..pairs).rev() {
        order.swap(last, random.below(last + 1));
    }
    order
}

/// An execution that is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its place among all executions.
    pub order: u64,
    /// The number of its pair.
    pub pair: usize,
}

/// The steps of a round.
#[must_use]
pub fn steps(pairs: usize, number: u64, seed: u64) -> Vec<Step> {
    let first = number * pairs as u64;
    let pairs = round(pairs, number, seed);
    let orders = first..;
    orders
        .zip(pairs)
        .map(|(order, pair)| Step { order, pair })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rounds_differ_and_every_place_is_taken_by_all() {
        let mut firsts = [0; 5];
        for number in 0..5000 {
            firsts[round(5, number, 7)[0]] += 1;
        }
        assert!(firsts.iter().all(|n| (800..1200).contains(n)), "{firsts:?}");
        // A pair follows another as often as that follows it.
        let before = |number| {
            let order = round(2, number, 7);
            order[0] == 0
        };
        let changes = (1..1000).filter(|n| before(*n) != before(n - 1)).count();
        assert!((400..600).contains(&changes), "{changes}");
    }

    proptest! {
        #[test]
        fn every_pair_is_executed_once_a_round(pairs in 1usize..40, rounds in 1u64..9, seed: u64) {
            let all: Vec<Step> = (0..rounds).flat_map(|n| steps(pairs, n, seed)).collect();
            let orders: BTreeSet<u64> = all.iter().map(|step| step.order).collect();
            prop_assert_eq!(orders, (0..rounds * pairs as u64).collect::<BTreeSet<u64>>());
            for of_round in all.chunks(pairs) {
                let seen: BTreeSet<usize> = of_round.iter().map(|step| step.pair).collect();
                prop_assert_eq!(seen.len(), pairs);
            }
            let again: Vec<Step> = (0..rounds).flat_map(|n| steps(pairs, n, seed)).collect();
            prop_assert_eq!(all, again);
        }
    }
}
