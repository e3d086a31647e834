//! Which threads of this process are a library's: they say so themselves when they begin. Whoever has
//! not said so is the program's.
//!
//! Libraries have a list each, as each has a copy of this. Nothing is allocated, and there is no
//! lock.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::thread::{current_id, process_id};

/// Threads, each with its process: more than libraries have. One that finds no place counts as the
/// program's, and those of another process are a parent's.
static ALL: [AtomicU64; 128] = [const { AtomicU64::new(0) }; 128];

/// How a thread of this process is noted.
fn note(thread: u32) -> u64 {
    u64::from(process_id()) << 32 | u64::from(thread)
}

/// The calling thread is a library's, until this is dropped.
#[derive(Debug)]
pub struct Own {
    note: u64,
    /// It belongs to the thread.
    thread: PhantomData<*const ()>,
}

impl Own {
    /// From now on.
    #[must_use]
    pub fn now() -> Own {
        let note = note(current_id());
        let take = |old: u64| (old >> 32 != note >> 32).then_some(note);
        let is_taken = |place: &AtomicU64| {
            let taken = place.fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
            taken.is_ok()
        };
        let _ = ALL.iter().any(is_taken);
        let thread = PhantomData;
        Own { note, thread }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        for place in &ALL {
            let (order, otherwise) = (Ordering::AcqRel, Ordering::Relaxed);
            let _ = place.compare_exchange(self.note, 0, order, otherwise);
        }
    }
}

/// Whether a thread of this process has said that it is the library's.
#[must_use]
pub fn is_one(thread: u32) -> bool {
    let note = note(thread);
    ALL.iter()
        .any(|place| place.load(Ordering::Acquire) == note)
}

/// Whether the library has any.
#[must_use]
pub fn is_any() -> bool {
    let process = u64::from(process_id());
    ALL.iter()
        .any(|place| place.load(Ordering::Acquire) >> 32 == process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_not_said_so_is_the_programs() {
        let me = current_id();
        assert!(!is_one(me));
        let own = Own::now();
        assert!(is_one(me) && is_any());
        let other = std::thread::spawn(current_id);
        assert!(!is_one(other.join().expect("it only asks")));
        drop(own);
        assert!(!is_one(me));
    }
}
