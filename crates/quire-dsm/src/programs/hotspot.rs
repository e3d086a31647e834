//! Everybody increments one word: the page is written to by all, and nothing else happens
//! (paper 003, section 7.2).

use std::sync::atomic::Ordering;

use super::{Team, Trouble, Word};

/// Increments the first word so many times.
///
/// # Errors
/// When the members cannot synchronise.
pub fn run(team: &dyn Team, memory: &[Word], times: u64) -> Result<(), Trouble> {
    for _ in 0..times {
        memory[0].fetch_add(1, Ordering::Relaxed);
    }
    team.barrier()
}

/// Whether no increment of so many members was lost.
///
/// # Errors
/// How many there are.
pub fn check(memory: &[Word], times: u64, members: usize) -> Result<(), Trouble> {
    let (counted, all) = (memory[0].load(Ordering::Relaxed), times * members as u64);
    match counted == all {
        true => Ok(()),
        false => Err(Trouble::Wrong(format!("{counted} increments of {all}"))),
    }
}
