//! What became of a thread that was started: the one that started it waits for the
//! answer.

use std::sync::atomic::{AtomicU32, Ordering};

use quire_core::stat::Note;
use quire_linux::{futex, thread};

const PENDING: u32 = 0;
const READY: u32 = 1;
/// The first number that stands for a note.
const NOTES: u32 = 2;

/// The answer, when it is there.
pub(crate) struct Outcome(AtomicU32);

impl Outcome {
    /// None yet.
    pub const fn new() -> Outcome {
        Outcome(AtomicU32::new(PENDING))
    }

    /// Begins anew, before the thread is started.
    pub fn reset(&self) {
        self.0.store(PENDING, Ordering::Relaxed);
    }

    /// Answers: the thread is ready, or why it cannot serve.
    pub fn report(&self, outcome: Result<(), Note>) {
        let code = outcome.map_or_else(|note| NOTES + note as u32, |()| READY);
        self.0.store(code, Ordering::Release);
        futex::wake_all(&self.0);
    }

    /// Waits for the answer. `other` stands for one that nobody knows.
    pub fn wait(&self, other: Note) -> Result<(), Note> {
        thread::await_change(&self.0, PENDING);
        match self.0.load(Ordering::Acquire) {
            READY => Ok(()),
            code => Err(Note::ALL
                .into_iter()
                .find(|note| NOTES + *note as u32 == code)
                .unwrap_or(other)),
        }
    }
}
