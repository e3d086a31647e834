use std::sync::atomic::Ordering;

use super::*;

const ALL: [Program; 5] = [
    Program::Matrix(37),
    Program::Paths(40),
    Program::Router(300),
    Program::Particles(500),
    Program::Hotspot(1000),
];

#[test]
fn programs_are_right_with_any_number_of_members() {
    for program in ALL {
        for members in 1..=4 {
            let ended = threads::run(program, members);
            assert_eq!(ended, Ok(()), "{program:?}, {members} members");
        }
    }
}

#[test]
fn more_members_than_rows() {
    assert_eq!(threads::run(Program::Paths(2), 5), Ok(()));
    assert_eq!(threads::run(Program::Matrix(2), 5), Ok(()));
}

/// A member alone, at whose barriers memory is spoiled: the value of a word, from a barrier
/// on.
struct Spoiler<'a> {
    memory: &'a [Word],
    word: usize,
    barriers: std::cell::Cell<usize>,
}

impl Team for Spoiler<'_> {
    fn me(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn barrier(&self) -> Result<(), Trouble> {
        let left = self.barriers.get().saturating_sub(1);
        if left == 0 && self.barriers.get() == 1 {
            self.memory[self.word].fetch_xor(1 << 40, Ordering::Relaxed);
        }
        self.barriers.set(left);
        Ok(())
    }

    fn lock(&self, _: usize) -> Result<(), Trouble> {
        Ok(())
    }

    fn unlock(&self, _: usize) -> Result<(), Trouble> {
        Ok(())
    }

    fn add(&self, _: usize, by: i64) -> Result<i64, Trouble> {
        // As far as these tests go, a counter is asked once.
        Ok(by)
    }

    fn at_least(&self, _: usize, value: i64) -> Result<i64, Trouble> {
        Ok(value)
    }
}

/// Whether a program notices that a word was changed at a barrier.
fn is_noticed(program: Program, word: usize, barrier: usize) -> bool {
    let words = program.memory(1).0 as usize / 8;
    let memory: Vec<Word> = std::iter::repeat_with(Word::default).take(words).collect();
    let spoiler = Spoiler {
        memory: &memory,
        word,
        barriers: std::cell::Cell::new(barrier),
    };
    program.run(&spoiler, &memory).expect("it runs alone");
    matches!(program.check(&memory, 1), Err(Trouble::Wrong(_)))
}

#[test]
fn a_wrong_word_is_noticed() {
    let part = whole_pages(37 * 37);
    for word in [2 * part, 2 * part + 37 * 37 - 1] {
        assert!(is_noticed(Program::Matrix(37), word, 2), "word {word}");
    }
    assert!(is_noticed(Program::Hotspot(10), 0, 1));
    let particles = words_before_particles();
    for word in [particles, particles + 6 * 500 - 1] {
        assert!(is_noticed(Program::Particles(500), word, 12), "word {word}");
    }
}

fn words_before_particles() -> usize {
    (Program::Particles(0).memory(1).0 / 8) as usize
}

#[test]
fn shares_are_all_of_it_once() {
    struct Of(usize, usize);
    impl Team for Of {
        fn me(&self) -> usize {
            self.0
        }
        fn size(&self) -> usize {
            self.1
        }
        fn barrier(&self) -> Result<(), Trouble> {
            Ok(())
        }
        fn lock(&self, _: usize) -> Result<(), Trouble> {
            Ok(())
        }
        fn unlock(&self, _: usize) -> Result<(), Trouble> {
            Ok(())
        }
        fn add(&self, _: usize, by: i64) -> Result<i64, Trouble> {
            Ok(by)
        }
        fn at_least(&self, _: usize, value: i64) -> Result<i64, Trouble> {
            Ok(value)
        }
    }
    for (all, members) in [(0, 3), (2, 5), (10, 3), (16, 4)] {
        let shares = (0..members).flat_map(|me| share(&Of(me, members), all));
        assert!(shares.eq(0..all));
    }
}
