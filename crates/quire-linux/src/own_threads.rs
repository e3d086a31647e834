//! Which threads of this process are a library's: they say so themselves when they begin. Whoever has
//! not said so is the program's.
//!
//! Libraries have a list each, as each has a copy of this. Nothing is allocated, and there is no
//! lock.

use std::marker::PhantomData;

use crate::noted::Noted;
use crate::thread::{current_id, process_id};

/// More than libraries have. A thread that finds no place counts as the program's.
static ALL: Noted<128> = Noted::new();

/// The calling thread is a library's, until this is dropped.
#[derive(Debug)]
pub struct Own {
    process: u32,
    /// It belongs to the thread.
    thread: PhantomData<*const ()>,
}

impl Own {
    /// From now on.
    #[must_use]
    pub fn now() -> Own {
        let process = process_id();
        ALL.add(process, current_id());
        let thread = PhantomData;
        Own { process, thread }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        ALL.remove(self.process, current_id());
    }
}

/// Whether a thread of this process has said that it is the library's.
#[must_use]
pub fn is_one(thread: u32) -> bool {
    ALL.has(process_id(), thread)
}

/// Whether the library has any.
#[must_use]
pub fn is_any() -> bool {
    ALL.has_any(process_id())
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
