//! How far the giving back of what was written is: whoever ends waits as long as it goes on. It
//! is read where nothing can be locked or allocated.

use std::sync::atomic::{AtomicU64, Ordering};

/// How much there is still to be sent of what is given back, and whether it gets less.
#[derive(Debug, Default)]
pub struct Progress {
    left: AtomicU64,
    steps: AtomicU64,
}

/// What happens to what is given back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Note {
    /// There is more of it from now on.
    Begins,
    GoesOn,
}

impl Progress {
    /// Of nothing.
    #[must_use]
    pub const fn new() -> Progress {
        Progress {
            left: AtomicU64::new(0),
            steps: AtomicU64::new(0),
        }
    }

    /// So many bytes were at least not sent yet.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// A number that is another one whenever something was sent.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// So much is to be sent. What comes and goes beside it, as heartbeats do, is no progress: only
    /// less than ever before is.
    pub(super) fn note(&self, left: u64, note: Note) {
        if note == Note::Begins || left < self.left() {
            self.left.store(left, Ordering::Relaxed);
            self.steps.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_less_than_ever_is_progress() {
        let progress = Progress::new();
        progress.note(100, Note::Begins);
        let mut seen = Vec::new();
        for left in [100, 60, 80, 60, 70, 59, 0, 50, 0] {
            progress.note(left, Note::GoesOn);
            seen.push((progress.left(), progress.steps()));
        }
        let (first, second, third, last) = ((100, 1), (60, 2), (59, 3), (0, 4));
        let fourth = [second; 4];
        assert_eq!(seen[..1], [first]);
        assert_eq!(seen[1..5], fourth);
        assert_eq!(seen[5..], [third, last, last, last]);
        progress.note(10, Note::Begins);
        assert_eq!((progress.left(), progress.steps()), (10, 5));
    }
}
