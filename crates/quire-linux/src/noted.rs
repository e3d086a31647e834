//! Numbers that a process has noted, each with the process: threads or children of which something is
//! known. After a fork, those of the parent are none of the child's, and their places are free.
//! Nothing is allocated, and there is no lock, so that signal handlers may ask.

use std::sync::atomic::{AtomicU64, Ordering};

/// Room for so many numbers.
#[derive(Debug)]
pub(crate) struct Noted<const PLACES: usize>([AtomicU64; PLACES]);

/// How a number of a process is noted.
const fn note(process: u32, number: u32) -> u64 {
    (process as u64) << 32 | number as u64
}

impl<const PLACES: usize> Noted<PLACES> {
    /// Nothing is noted.
    pub const fn new() -> Noted<PLACES> {
        Noted([const { AtomicU64::new(0) }; PLACES])
    }

    /// Notes a number, if there is a place.
    pub fn add(&self, process: u32, number: u32) {
        let new = note(process, number);
        let take = |old: u64| (old >> 32 != u64::from(process)).then_some(new);
        let is_taken = |place: &AtomicU64| {
            let taken = place.fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
            taken.is_ok()
        };
        let _ = self.0.iter().any(is_taken);
    }

    /// A number is not noted any more.
    pub fn remove(&self, process: u32, number: u32) {
        for place in &self.0 {
            let (order, otherwise) = (Ordering::AcqRel, Ordering::Relaxed);
            let _ = place.compare_exchange(note(process, number), 0, order, otherwise);
        }
    }

    /// Whether a number is noted.
    pub fn has(&self, process: u32, number: u32) -> bool {
        let note = note(process, number);
        let mut places = self.0.iter();
        places.any(|place| place.load(Ordering::Acquire) == note)
    }

    /// Whether a process has noted anything.
    pub fn has_any(&self, process: u32) -> bool {
        let mut places = self.0.iter();
        places.any(|place| place.load(Ordering::Acquire) >> 32 == u64::from(process))
    }
}
