//! What programs ask of the directory, until it is asked: one question at a time, of one program
//! after the other, so that one that asks much waits for itself and not others for it. No I/O.

use std::collections::{BTreeMap, VecDeque};

use crate::server::core::PeerId;

/// So much a program may ask at once that waits for the directory.
pub(super) const MOST: usize = 64;

/// The questions of programs.
#[derive(Debug)]
pub(super) struct Line<T> {
    waiting: BTreeMap<PeerId, VecDeque<T>>,
    /// Whose turn it was last.
    last: PeerId,
    /// The directory has a question.
    is_asked: bool,
}

impl<T> Default for Line<T> {
    fn default() -> Line<T> {
        Line {
            waiting: BTreeMap::new(),
            last: PeerId(0),
            is_asked: false,
        }
    }
}

impl<T> Line<T> {
    /// A program asks something; whether it may.
    pub fn add(&mut self, program: PeerId, question: T) -> bool {
        let own = self.waiting.entry(program).or_default();
        let may = own.len() < MOST;
        if may {
            own.push_back(question);
        }
        may
    }

    /// What the directory is to be asked now, if it has no question yet.
    pub fn next(&mut self) -> Option<T> {
        if self.is_asked {
            return None;
        }
        let after = self.waiting.range(self.last..).find(|it| *it.0 > self.last);
        let (program, _) = after.or_else(|| self.waiting.first_key_value())?;
        self.last = *program;
        let own = self.waiting.get_mut(&self.last)?;
        let question = own.pop_front();
        if own.is_empty() {
            self.waiting.remove(&self.last);
        }
        self.is_asked = question.is_some();
        question
    }

    /// The directory has answered.
    pub const fn answered(&mut self) {
        self.is_asked = false;
    }

    /// A program is gone. What it had asked.
    pub fn gone(&mut self, program: PeerId) -> VecDeque<T> {
        self.waiting.remove(&program).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const PROGRAMS: u64 = 4;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// A program asks so much.
        Ask(u64, usize),
        Answer,
        Leave(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..PROGRAMS, 1..40_usize).prop_map(|(program, count)| Step::Ask(program, count)),
            Just(Step::Answer),
            Just(Step::Answer),
            Just(Step::Answer),
            (0..PROGRAMS).prop_map(Step::Leave),
        ]
    }

    proptest! {
        /// The directory has one question at a time; each program's are asked in order, and no
        /// other has two turns while one waits; none is lost, and no more wait than may.
        #[test]
        fn programs_take_turns(steps in vec(step(), 0..80)) {
            let mut line = Line::default();
            let mut model: BTreeMap<u64, VecDeque<u64>> = BTreeMap::new();
            // How many turns others had since a program waits, each.
            let mut turns: BTreeMap<(u64, u64), u32> = BTreeMap::new();
            let (mut number, mut is_asked) = (0, false);
            for step in steps {
                match step {
                    Step::Ask(program, count) => for _ in 0..count {
                        number += 1;
                        let own = model.entry(program).or_default();
                        let may = own.len() < MOST;
                        prop_assert_eq!(line.add(PeerId(program), (program, number)), may);
                        if may {
                            own.push_back(number);
                        }
                    },
                    Step::Answer => {
                        line.answered();
                        is_asked = false;
                    }
                    Step::Leave(program) => {
                        let left = line.gone(PeerId(program)).into_iter().map(|it| it.1);
                        let own = model.remove(&program).unwrap_or_default();
                        prop_assert!(left.eq(own));
                        turns.retain(|(waits, _), _| *waits != program);
                    }
                }
                let next = line.next();
                let is_empty = model.values().all(VecDeque::is_empty);
                prop_assert_eq!(next.is_some(), !is_asked && !is_empty);
                let Some((program, number)) = next else { continue };
                is_asked = true;
                prop_assert_eq!(model.get_mut(&program).and_then(VecDeque::pop_front), Some(number));
                turns.retain(|(waits, _), _| *waits != program);
                for (waits, _) in model.iter().filter(|it| !it.1.is_empty() && *it.0 != program) {
                    let had = turns.entry((*waits, program)).or_default();
                    *had += 1;
                    prop_assert!(*had <= 1, "{waits} waits while {program} has its turn again");
                }
            }
        }
    }
}
