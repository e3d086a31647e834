//! Parallel programs over shared memory: those that paper 003 measured (section 7.3, Table
//! 3) and its write hotspot (section 7.2), written anew for this project.
//!
//! A program is one function that every member of a [`Team`] calls with the same memory.
//! The memory is a row of words, all zeros at first. Each word is an atomic, because other
//! members, on whatever machine, change it meanwhile; where nobody does, they copy what they
//! need and compute on that. Each program has a check of its result, so that a wrong page is
//! noticed.
//!
//! | module | program | of the paper |
//! |---|---|---|
//! | [`matrix`] | product of two matrices | Matrix |
//! | [`paths`] | shortest paths in a planar graph | ShortestPath |
//! | [`router`] | wires on a circuit of standard cells | LocusRoute |
//! | [`particles`] | particles in a wind tunnel | Mp3d |
//! | [`hotspot`] | everybody increments one word | the write hotspot |

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use quire_core::dsm::message::Access;
use quire_core::units::{BASE_PAGE, Bytes};

pub mod hotspot;
pub mod matrix;
mod member;
pub mod particles;
pub mod paths;
pub mod router;
pub mod threads;

pub use member::Member;

/// A word of shared memory.
pub type Word = AtomicU64;

/// Words in a base page. What different members write to begins on pages of its own.
pub const WORDS_PER_PAGE: usize = (BASE_PAGE / 8) as usize;

/// Those who run a program together, as one of them sees it.
pub trait Team {
    /// Which of them this is, from 0.
    fn me(&self) -> usize;

    /// How many they are.
    fn size(&self) -> usize;

    /// Says that this member will read or write some words soon and in order. A hint, which is
    /// of use where they are fetched from elsewhere.
    fn will_need(&self, words: &[Word], access: Access) {
        let _ = (words, access);
    }

    /// Waits until all have come here.
    ///
    /// # Errors
    /// When one of them never will.
    fn barrier(&self) -> Result<(), Trouble>;

    /// Takes a mutex, one of any number.
    ///
    /// # Errors
    /// When it cannot be had any more.
    fn lock(&self, mutex: usize) -> Result<(), Trouble>;

    /// Gives a mutex back.
    ///
    /// # Errors
    /// When it is not held.
    fn unlock(&self, mutex: usize) -> Result<(), Trouble>;

    /// Adds to a counter, one of any number, all 0 at first. Returns what it is then.
    ///
    /// # Errors
    /// When it cannot be reached.
    fn add(&self, counter: usize, by: i64) -> Result<i64, Trouble>;

    /// Waits until a counter is at least so much. Returns what it is then.
    ///
    /// # Errors
    /// When it cannot be reached.
    fn at_least(&self, counter: usize, value: i64) -> Result<i64, Trouble>;
}

/// Why a program did not end well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// The result is wrong.
    #[error("{0}")]
    Wrong(String),
    /// The members cannot synchronise.
    #[error("{0}")]
    Apart(String),
}

/// A program, with its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Two square matrices of so many rows are multiplied.
    Matrix(usize),
    /// Shortest paths in a grid of so many points a side.
    Paths(usize),
    /// So many wires are routed.
    Router(usize),
    /// So many particles move.
    Particles(usize),
    /// One word is incremented so often by each member.
    Hotspot(u64),
}

impl Program {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Program::Matrix(_) => "matrix",
            Program::Paths(_) => "paths",
            Program::Router(_) => "router",
            Program::Particles(_) => "particles",
            Program::Hotspot(_) => "hotspot",
        }
    }

    /// How much memory it needs with so many members.
    #[must_use]
    pub fn memory(self, members: usize) -> Bytes {
        let words = match self {
            Program::Matrix(rows) => matrix::words(rows),
            Program::Paths(side) => paths::words(side, members),
            Program::Router(wires) => router::words(wires),
            Program::Particles(particles) => particles::words(particles),
            Program::Hotspot(_) => WORDS_PER_PAGE,
        };
        Bytes(8 * words as u64)
    }

    /// Runs it, as one member. All have ended when it returns.
    ///
    /// # Errors
    /// When the members cannot synchronise.
    ///
    /// # Panics
    /// When the memory is smaller than it needs.
    pub fn run(self, team: &dyn Team, memory: &[Word]) -> Result<(), Trouble> {
        match self {
            Program::Matrix(rows) => matrix::run(team, memory, rows),
            Program::Paths(side) => paths::run(team, memory, side),
            Program::Router(wires) => router::run(team, memory, wires),
            Program::Particles(particles) => particles::run(team, memory, particles),
            Program::Hotspot(times) => hotspot::run(team, memory, times),
        }
    }

    /// Whether the result of so many members is right.
    ///
    /// # Errors
    /// What is wrong.
    ///
    /// # Panics
    /// When the memory is smaller than it needs.
    pub fn check(self, memory: &[Word], members: usize) -> Result<(), Trouble> {
        match self {
            Program::Matrix(rows) => matrix::check(memory, rows),
            Program::Paths(side) => paths::check(memory, side),
            Program::Router(wires) => router::check(memory, wires),
            Program::Particles(particles) => particles::check(memory, particles),
            Program::Hotspot(times) => hotspot::check(memory, times, members),
        }
    }
}

/// The words that so many take, to whole pages.
const fn whole_pages(words: usize) -> usize {
    words.next_multiple_of(WORDS_PER_PAGE)
}

/// The part of so many that is this member's.
fn share(team: &dyn Team, all: usize) -> Range<usize> {
    share_of(team, team.me(), all)
}

/// The part of so many that is a member's.
fn share_of(team: &dyn Team, member: usize, all: usize) -> Range<usize> {
    let of = |member: usize| all * member / team.size();
    of(member)..of(member + 1)
}

/// So much is said to be needed ahead of a member that goes through memory in order. More would
/// have left its processor's cache when it comes there.
const AHEAD: usize = (512 << 10) / size_of::<Word>();

/// Says what a member will write that writes words in order.
struct Writing<'a> {
    team: &'a dyn Team,
    words: &'a [Word],
    /// How many of them were said.
    said: usize,
}

impl<'a> Writing<'a> {
    /// The first of these words are written soon.
    fn of(team: &'a dyn Team, words: &'a [Word]) -> Writing<'a> {
        let said = 0;
        let mut writing = Writing { team, words, said };
        writing.reach(0);
        writing
    }

    /// So many words were written.
    fn reach(&mut self, written: usize) {
        while self.said < self.words.len().min(written + AHEAD) {
            let next = self.said..self.words.len().min(self.said + AHEAD);
            self.said = next.end;
            self.team.will_need(&self.words[next], Access::Write);
        }
    }
}

/// Copies numbers out of words.
fn read(words: &[Word], into: &mut [f64]) {
    for (word, number) in words.iter().zip(into) {
        *number = f64::from_bits(word.load(Ordering::Relaxed));
    }
}

/// Copies numbers into words.
fn write(words: &[Word], numbers: &[f64]) {
    for (word, number) in words.iter().zip(numbers) {
        word.store(number.to_bits(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
