//! Particles in a wind tunnel (paper 003, section 7.3; after the idea of Mp3d). Each member
//! moves some of the particles. In each step they are counted in the cells of the tunnel,
//! which everybody writes to; then particles of one cell collide: each gives an eighth of
//! the difference from the mean speed of its cell.
//!
//! A member counts its particles by itself, and adds what it has counted to the cells one after the
//! other; each begins with other cells, and goes round.
//!
//! All is computed in whole numbers, so that the result does not depend on the order, and
//! can be compared with that of one who works alone.

use std::sync::atomic::Ordering;

use quire_core::dsm::message::Access;

use super::{Team, Trouble, WORDS_PER_PAGE, Word, share, whole_pages};
use crate::random::Numbers;

/// Cells along the tunnel, across, and high.
const CELLS: [usize; 3] = [32, 8, 8];
/// The side of a cell.
const CELL: i64 = 1 << 16;
/// Words of a cell: how many particles there are, and the sum of their speeds.
const OF_CELL: usize = 4;
/// What is counted in a cell.
type Cell = [i64; OF_CELL];
/// Words of all cells.
const TUNNEL: usize = CELLS[0] * CELLS[1] * CELLS[2] * OF_CELL;
/// Words of a particle: where it is, and its speed.
const OF_PARTICLE: usize = 6;
/// How often all particles move.
const STEPS: usize = 6;

/// Words that it needs: cells for this step and for the next one, and the particles.
#[must_use]
pub const fn words(particles: usize) -> usize {
    2 * whole_pages(TUNNEL) + whole_pages(OF_PARTICLE * particles)
}

/// A particle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Particle {
    at: [i64; 3],
    speed: [i64; 3],
}

/// Moves so many particles.
///
/// # Errors
/// When the members cannot synchronise.
pub fn run(team: &dyn Team, memory: &[Word], particles: usize) -> Result<(), Trouble> {
    let part = whole_pages(TUNNEL);
    let (cells, words) = memory.split_at(2 * part);
    let word_of = |particle| of_particle(words, particle);
    let mine = share(team, particles);
    for particle in mine.clone() {
        Particle::of(particle).write(word_of(particle));
    }
    let mut counted = vec![[0; OF_CELL]; TUNNEL / OF_CELL];
    for step in 0..STEPS {
        let (now, next) = cells.split_at(part);
        let (now, next) = if step % 2 == 0 {
            (now, next)
        } else {
            (next, now)
        };
        counted.fill([0; OF_CELL]);
        for particle in mine.clone().map(word_of) {
            let mut moved = Particle::read(particle);
            moved.go();
            moved.write(particle);
            moved.count(&mut counted);
        }
        let first = share(team, counted.len()).start;
        let (before, behind) = now.split_at(OF_CELL * first);
        team.will_need(behind, Access::Write);
        team.will_need(before, Access::Write);
        for cell in (first..counted.len()).chain(0..first) {
            let words = &now[OF_CELL * cell..OF_CELL * (cell + 1)];
            for (word, number) in words.iter().zip(counted[cell]) {
                word.fetch_add(number as u64, Ordering::Relaxed);
            }
        }
        team.barrier()?;
        team.will_need(now, Access::Read);
        for (cell, words) in counted.iter_mut().zip(now.chunks_exact(OF_CELL)) {
            *cell = [0, 1, 2, 3].map(|at: usize| words[at].load(Ordering::Relaxed) as i64);
        }
        for particle in mine.clone().map(word_of) {
            let mut slowed = Particle::read(particle);
            slowed.collide(&counted);
            slowed.write(particle);
        }
        // Nobody reads these any more: the last step is over.
        let pages = share(team, part / WORDS_PER_PAGE);
        for word in &next[pages.start * WORDS_PER_PAGE..pages.end * WORDS_PER_PAGE] {
            word.store(0, Ordering::Relaxed);
        }
        team.barrier()?;
    }
    Ok(())
}

/// The words of a particle.
fn of_particle(words: &[Word], particle: usize) -> &[Word] {
    &words[OF_PARTICLE * particle..OF_PARTICLE * (particle + 1)]
}

impl Particle {
    /// A particle as it is at first, by its number.
    fn of(number: usize) -> Particle {
        let mut numbers = Numbers(number as u64);
        let mut below = |end: i64| numbers.below(end as usize) as i64;
        let at = CELLS.map(|cells| below(cells as i64 * CELL));
        let speed = [CELL / 2, 0, 0].map(|mean| mean + below(CELL / 2) - CELL / 4);
        Particle { at, speed }
    }

    fn read(words: &[Word]) -> Particle {
        let number = |at: usize| words[at].load(Ordering::Relaxed) as i64;
        Particle {
            at: [0, 1, 2].map(number),
            speed: [3, 4, 5].map(number),
        }
    }

    fn write(&self, words: &[Word]) {
        for (word, number) in words.iter().zip(self.at.iter().chain(&self.speed)) {
            word.store(*number as u64, Ordering::Relaxed);
        }
    }

    /// Moves. The tunnel's ends are joined, and its walls throw back.
    fn go(&mut self) {
        let end = CELLS.map(|cells| cells as i64 * CELL);
        self.at[0] = (self.at[0] + self.speed[0]).rem_euclid(end[0]);
        for axis in [1, 2] {
            let mut at = self.at[axis] + self.speed[axis];
            if !(0..end[axis]).contains(&at) {
                self.speed[axis] = -self.speed[axis];
                at = if at < 0 {
                    -1 - at
                } else {
                    2 * end[axis] - 1 - at
                };
            }
            self.at[axis] = at;
        }
    }

    /// The cell that it is in.
    fn cell(&self) -> usize {
        let [x, y, z] = self.at.map(|at| (at / CELL) as usize);
        (x * CELLS[1] + y) * CELLS[2] + z
    }

    /// Counts it in its cell.
    fn count(&self, cells: &mut [Cell]) {
        let numbers = [1].into_iter().chain(self.speed);
        for (sum, number) in cells[self.cell()].iter_mut().zip(numbers) {
            *sum += number;
        }
    }

    /// What was counted in its cell slows it.
    fn collide(&mut self, cells: &[Cell]) {
        let [count, sums @ ..] = cells[self.cell()];
        for (speed, sum) in self.speed.iter_mut().zip(sums) {
            *speed -= (*speed - sum / count) / 8;
        }
    }
}

/// Compares with what one who works alone finds.
///
/// # Errors
/// Which particle is elsewhere.
pub fn check(memory: &[Word], particles: usize) -> Result<(), Trouble> {
    let words = &memory[2 * whole_pages(TUNNEL)..];
    let found = (0..particles).map(|particle| Particle::read(of_particle(words, particle)));
    let found: Vec<Particle> = found.collect();
    let mut particles: Vec<Particle> = (0..particles).map(Particle::of).collect();
    for _ in 0..STEPS {
        let mut cells = vec![[0; OF_CELL]; TUNNEL / OF_CELL];
        for particle in &mut particles {
            particle.go();
            particle.count(&mut cells);
        }
        for particle in &mut particles {
            particle.collide(&cells);
        }
    }
    match (0..found.len()).find(|number| found[*number] != particles[*number]) {
        Some(number) => Err(Trouble::Wrong(format!(
            "particle {number} is {:?} instead of {:?}",
            found[number], particles[number]
        ))),
        None => Ok(()),
    }
}
