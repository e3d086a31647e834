//! Locks of the C library in memory of objects: mutexes, conditions, semaphores, barriers and
//! read-write locks that programs put into their shared memory.
//!
//! The C library has who waits sleep in the kernel until somebody wakes it there. Who lets go may be on
//! another machine, or have pages of its own, and then nobody does. So a lock that lies in an object
//! is kept here, by words that are like any other memory of the object ([`waiting`] says how threads
//! wait for them); all others are the C library's as ever.
//!
//! Programs call these functions more often than any others, for locks that are not in objects: that
//! is found out by two loads ([`crate::taken`]). None of them allocates, takes a lock of this library,
//! or changes `errno` but where it fails by it, as semaphores are posted in signal handlers.

mod barrier;
mod condition;
mod mutex;
mod named;
mod readwrite;
mod robust;
mod semaphore;
mod waiting;

pub use named::Named;

/// Looks up the functions behind all of these.
pub fn start() {
    waiting::start();
    mutex::start();
    condition::start();
    semaphore::start();
    named::start();
    barrier::start();
    readwrite::start();
}
