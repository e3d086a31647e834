//! A lock that may be taken inside `malloc`, in a fork handler and by a
//! signal handler's thread: while it is held all signals are blocked, so a
//! handler can never wait for the thread that it interrupted.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use quire_core::units::VirtAddr;

use crate::raw::syscall;

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// All signals blocked until dropped.
#[derive(Debug)]
pub struct SignalsBlocked {
    before: u64,
}

impl SignalsBlocked {
    /// Blocks all signals of the calling thread.
    #[must_use]
    pub fn new() -> SignalsBlocked {
        SignalsBlocked {
            before: set_signal_mask(!0),
        }
    }
}

impl Default for SignalsBlocked {
    fn default() -> Self {
        SignalsBlocked::new()
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        set_signal_mask(self.before);
    }
}

/// Sets the signal mask of the calling thread; returns the one before.
pub(crate) fn set_signal_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    let how = libc::SIG_SETMASK as usize;
    let (new, old) = ((&raw const mask) as usize, (&raw mut before) as usize);
    // SAFETY: both pointers name eight bytes, the size that is passed. The
    // call cannot fail with these arguments.
    let _ = unsafe { syscall(libc::SYS_rt_sigprocmask, [how, new, old, 8, 0, 0]) };
    before
}

/// Waits until `word` is no longer `value`, or until woken.
pub fn wait(word: &AtomicU32, value: u32) {
    let op = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    let args = [word.as_ptr() as usize, op, value as usize, 0, 0, 0];
    // SAFETY: the word outlives the call; a null timeout waits for ever.
    let _ = unsafe { syscall(libc::SYS_futex, args) };
}

/// Waits until `word` is no longer `value`, until woken, or for `time`. Whether a handler of a signal
/// ended that.
pub fn wait_for(word: &AtomicU32, value: u32, time: Duration) -> bool {
    wait_by(
        word,
        value,
        time,
        libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
    )
}

/// The same for a word that processes share: whoever of them wakes it.
pub fn wait_shared_for(word: &AtomicU32, value: u32, time: Duration) -> bool {
    wait_by(word, value, time, libc::FUTEX_WAIT)
}

fn wait_by(word: &AtomicU32, value: u32, time: Duration, op: i32) -> bool {
    let time = libc::timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    let until = (&raw const time) as usize;
    let args = [
        word.as_ptr() as usize,
        op as usize,
        value as usize,
        until,
        0,
        0,
    ];
    // SAFETY: the word and the time outlive the call.
    let waited = unsafe { syscall(libc::SYS_futex, args) };
    waited.is_err_and(|errno| errno.0 == libc::EINTR)
}

/// Wakes all who wait for `word`.
pub fn wake_all(word: &AtomicU32) {
    wake(word, i32::MAX);
}

/// Wakes one of those who wait for `word`.
pub fn wake_one(word: &AtomicU32) {
    wake(word, 1);
}

/// Wakes all who wait for the word at an address, by the key that the address
/// has now for processes that share it.
pub fn wake_shared(word: VirtAddr) {
    wake_by_key(word, i32::MAX);
}

/// Wakes one of them.
pub fn wake_shared_one(word: VirtAddr) {
    wake_by_key(word, 1);
}

fn wake_by_key(word: VirtAddr, count: i32) {
    let args = [
        word.0 as usize,
        libc::FUTEX_WAKE as usize,
        count as usize,
        0,
        0,
        0,
    ];
    // SAFETY: waking touches no memory; where nothing is mapped, it fails.
    let _ = unsafe { syscall(libc::SYS_futex, args) };
}

fn wake(word: &AtomicU32, count: i32) {
    let op = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    let args = [word.as_ptr() as usize, op, count as usize, 0, 0, 0];
    // SAFETY: waking touches no memory.
    let _ = unsafe { syscall(libc::SYS_futex, args) };
}

/// The word of a lock, for those who have blocked signals already, and for memory that the kernel fills with
/// zeros in a child: zero is free.
#[derive(Debug, Default)]
pub struct BareLock(AtomicU32);

impl BareLock {
    /// A free one.
    #[must_use]
    pub const fn new() -> BareLock {
        BareLock(AtomicU32::new(FREE))
    }

    /// Takes it, when it is free.
    pub fn acquire(&self) {
        let order = (Ordering::Acquire, Ordering::Relaxed);
        for _ in 0..=100 {
            let taken = self.0.compare_exchange(FREE, HELD, order.0, order.1);
            if taken.is_ok() {
                return;
            }
            std::hint::spin_loop();
        }
        while self.0.swap(CONTENDED, Ordering::Acquire) != FREE {
            wait(&self.0, CONTENDED);
        }
    }

    /// Lets go of it, for the one that holds it.
    pub fn release(&self) {
        if self.0.swap(FREE, Ordering::Release) == CONTENDED {
            wake(&self.0, 1);
        }
    }
}

/// A mutual exclusion lock over `T`.
#[derive(Debug)]
pub struct Lock<T> {
    word: BareLock,
    held: UnsafeCell<Option<SignalsBlocked>>,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands out one reference at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A free lock.
    pub const fn new(value: T) -> Lock<T> {
        Lock {
            word: BareLock::new(),
            held: UnsafeCell::new(None),
            value: UnsafeCell::new(value),
        }
    }

    /// Blocks signals and takes the lock.
    pub fn lock(&self) -> Guard<'_, T> {
        let signals = SignalsBlocked::new();
        self.acquire();
        Guard {
            lock: self,
            _signals: signals,
        }
    }

    /// Takes the lock and keeps it until [`Lock::release_held`]: for the moment
    /// of a fork, which must find the value at rest. The copy of the calling
    /// thread in the child holds the copy of the lock.
    pub fn hold(&self) {
        let signals = SignalsBlocked::new();
        self.acquire();
        // SAFETY: the cell belongs to the holder of the lock.
        unsafe { *self.held.get() = Some(signals) };
    }

    /// Lets go of the lock that [`Lock::hold`] took.
    pub fn release_held(&self) {
        // SAFETY: the cell belongs to the holder of the lock.
        let signals = unsafe { (*self.held.get()).take() };
        if signals.is_some() {
            self.release();
        }
    }

    /// Works on the value between [`Lock::hold`] and [`Lock::release_held`].
    ///
    /// # Safety
    /// The calling thread must be between the two.
    pub unsafe fn with_held<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the caller holds the lock, and no guard exists.
        work(unsafe { &mut *self.value.get() })
    }

    fn acquire(&self) {
        self.word.acquire();
    }

    fn release(&self) {
        self.word.release();
    }
}

impl<T: Default> Default for Lock<T> {
    fn default() -> Lock<T> {
        Lock::new(T::default())
    }
}

/// The lock, held; signals are blocked until it is dropped.
#[derive(Debug)]
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
    _signals: SignalsBlocked,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the lock is held by this guard.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held by this guard, which is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.lock.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time() {
        let lock = Lock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        *lock.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 40_000);
    }
}
