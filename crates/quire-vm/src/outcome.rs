//! What became of a thread that was started: the one that started it waits for the
//! answer.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use quire_core::stat::Note;
use quire_linux::futex;

const PENDING: u32 = 0;
const READY: u32 = 1;
/// The first number that stands for a note.
const NOTES: u32 = 2;
/// How often it is looked whether the thread is there still.
const LOOK: Duration = Duration::from_millis(100);

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

    /// Waits for the answer, as long as the thread is there. `other` stands for one that nobody knows. The thread
    /// takes no lock before it answers but those of this library, so the one that waits may hold any other.
    pub fn wait(&self, other: Note, is_there: impl Fn() -> bool) -> Result<(), Note> {
        while self.0.load(Ordering::Acquire) == PENDING {
            if !is_there() && self.0.load(Ordering::Acquire) == PENDING {
                return Err(other);
            }
            futex::wait_for(&self.0, PENDING, LOOK);
        }
        match self.0.load(Ordering::Acquire) {
            READY => Ok(()),
            code => Err(Note::ALL
                .into_iter()
                .find(|note| NOTES + *note as u32 == code)
                .unwrap_or(other)),
        }
    }
}
