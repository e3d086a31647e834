use std::cell::Cell;
use std::sync::atomic::Ordering;

use quire_core::dsm::sync::{Answer, Request};

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

/// Whether a program that runs alone notices that a word was changed at a barrier.
fn is_noticed(program: Program, word: usize, barrier: usize) -> bool {
    let words = program.memory(1).0 as usize / 8;
    let memory: Vec<Word> = std::iter::repeat_with(Word::default).take(words).collect();
    let barriers = Cell::new(0);
    let alone = Member::new(0, 1, |request| {
        Ok(match request {
            Request::Arrive { .. } => {
                barriers.set(barriers.get() + 1);
                if barriers.get() == barrier {
                    memory[word].fetch_xor(1 << 40, Ordering::Relaxed);
                }
                Answer::Done
            }
            // As far as this goes, a counter is asked once.
            Request::Add { by: value, .. } | Request::AtLeast { value, .. } => Answer::Value(value),
            _ => Answer::Done,
        })
    });
    program.run(&alone, &memory).expect("it runs alone");
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
    let share = |me, members, all| share(&Member::new(me, members, |_| Ok(Answer::Done)), all);
    for (all, members) in [(0, 3), (2, 5), (10, 3), (16, 4)] {
        let shares = (0..members).flat_map(|me| share(me, members, all));
        assert!(shares.eq(0..all));
    }
}
