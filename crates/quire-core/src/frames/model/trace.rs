//! A long stream of accesses for the model.
//!
//! Loops use the same few lines over and over. Such a use hits, and changes nothing
//! but which line was used last. So the model hears of it only when a line comes that
//! is none of the last few: the counts are the same, and the time is a fraction.

use super::{Counts, Line, Model};
use crate::frames::cache::Cache;
use crate::units::Frame;

/// How many of the last lines are known here, at most.
const MOST: usize = 4;

/// The model, behind a list of the lines that were used last.
#[derive(Clone, Debug)]
pub struct Trace {
    model: Model,
    /// The lines that were used last, the most recent first.
    recent: [Recent; MOST],
    held: usize,
    /// No more than the ways of a set: what is known here must be in the cache.
    most: usize,
    accesses: u64,
}

/// A line, and whether it was used since the model heard of it.
#[derive(Clone, Copy, Debug)]
struct Recent {
    line: Line,
    again: bool,
}

impl Trace {
    /// A trace through an empty cache.
    #[must_use]
    pub fn new(cache: &Cache) -> Trace {
        let none = Recent {
            line: Line(0),
            again: false,
        };
        Trace {
            model: Model::new(cache),
            recent: [none; MOST],
            held: 0,
            most: MOST.min(cache.shape.ways() as usize),
            accesses: 0,
        }
    }

    /// Uses the byte at `offset`, less than a page, in a frame.
    pub fn access(&mut self, frame: Frame, offset: u64) {
        let line = self.model.line(frame, offset);
        self.accesses += 1;
        let known = self.recent[..self.held].iter().position(|r| r.line == line);
        match known {
            Some(at) => {
                self.recent[at].again = true;
                self.recent[..=at].rotate_right(1);
            }
            None => self.bring(line),
        }
    }

    /// What accesses came to since this was asked last. The lines stay.
    pub fn take_counts(&mut self) -> Counts {
        let counts = self.model.take_counts();
        let accesses = std::mem::take(&mut self.accesses);
        Counts {
            // What the model heard of twice is no access more.
            hits: accesses - counts.misses(),
            ..counts
        }
    }

    /// Tells the model what was used meanwhile, in the order of the last uses, and then
    /// of the new line.
    fn bring(&mut self, line: Line) {
        for recent in self.recent[..self.held].iter_mut().rev() {
            if std::mem::take(&mut recent.again) {
                self.model.access(recent.line);
            }
        }
        self.model.access(line);
        self.held = (self.held + 1).min(self.most);
        self.recent[..self.held].rotate_right(1);
        self.recent[0] = Recent { line, again: false };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::super::cache::tests::cache;
    use super::super::super::cache::{Index, Kind, Shape};
    use super::*;
    use crate::units::BASE_PAGE;

    proptest! {
        #[test]
        fn it_counts_what_the_model_counts(
            sets in 1u32..5,
            ways in 1u32..7,
            stream in prop::collection::vec((0u64..28, 0usize..4), 1..300),
            asked in 0usize..300,
        ) {
            let shape = Shape::new(sets, ways, 64).unwrap();
            let cache = Cache { shape, ..cache(2, Kind::Unified, 1, 1, Index::Plain) };
            let (mut model, mut trace) = (Model::new(&cache), Trace::new(&cache));
            let mut recent = Vec::new();
            for (n, (line, back)) in stream.into_iter().enumerate() {
                // Many uses are of what was used a moment ago.
                let line = recent.iter().rev().nth(back).copied().unwrap_or(line);
                recent.push(if back == 3 { n as u64 % 28 } else { line });
                let address = line * 64;
                let (frame, offset) = (Frame(address / BASE_PAGE), address % BASE_PAGE);
                model.access(model.line(frame, offset));
                trace.access(frame, offset);
                if n == asked {
                    prop_assert_eq!(trace.take_counts(), model.take_counts());
                }
            }
            prop_assert_eq!(trace.take_counts(), model.take_counts());
        }
    }
}
