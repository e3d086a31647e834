//! How threads wait for a word in memory of an object to change.
//!
//! Processes that share one copy of it wait for it in the kernel (a futex), and are woken there.
//! Threads of a process with pages of its own wait for a word beside, of the process, so that the kernel does
//! not ask for the page. Neither is woken by who changes the word somewhere else. So each of them wakes up by
//! itself and looks: soon at first, then less often, as a look may take the page from who has the lock.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use quire_core::units::VirtAddr;
use quire_linux::futex;
use rustix::process::getpid;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::thread::gettid;
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::handed;
use crate::taken::{self, Copies};

/// The first look, and the longest time between two.
const FIRST: Duration = Duration::from_micros(100);
const LONGEST: Duration = Duration::from_millis(4);

/// How many are to be woken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    One,
    All,
}

/// Where threads of this process wait that has pages of its own.
struct Bench {
    waiting: AtomicU32,
    turn: AtomicU32,
}

/// Words that share one wake each other up for nothing, or have to look by themselves.
const BENCHES: usize = 64;
static ALL: [Bench; BENCHES] = [const {
    Bench {
        waiting: AtomicU32::new(0),
        turn: AtomicU32::new(0),
    }
}; BENCHES];

fn bench(word: &AtomicU32) -> &'static Bench {
    let line = word.as_ptr() as usize / 64;
    &ALL[line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - BENCHES.trailing_zeros())]
}

/// How the copy of an object is kept in which something lies; nothing where it lies in none.
#[inline]
pub fn copies<T>(at: *const T) -> Option<Copies> {
    taken::copies_at(at as u64).or_else(|| handed::copies_at(at as u64))
}

/// A lock of the C library that lies in an object: what it is made of here, and how the object's copy
/// is kept; nothing where it lies in none.
///
/// # Safety
/// It is a lock of the program, if that is not null, for as long as it is used, and `Words` is made of
/// nothing but words that are changed as a whole, by all programs.
#[inline]
pub unsafe fn find<'a, Lock, Words>(at: *mut Lock) -> Option<(&'a Words, Copies)> {
    const {
        assert!(size_of::<Words>() <= size_of::<Lock>());
        assert!(align_of::<Words>() <= align_of::<Lock>());
    }
    let copies = copies(at)?;
    // SAFETY: the caller vouches for it, and it is as large and as aligned.
    Some((unsafe { &*at.cast::<Words>() }, copies))
}

unsafe extern "C-unwind" {
    /// Ends the thread, if somebody has cancelled it.
    pub safe fn pthread_testcancel();
}

/// Wakes who waits for a word that has just changed.
pub fn wake(copies: Copies, word: &AtomicU32, who: Wake) {
    match (copies, who) {
        (Copies::One, Wake::One) => futex::wake_shared_one(VirtAddr(word.as_ptr() as u64)),
        (Copies::One, Wake::All) => futex::wake_shared(VirtAddr(word.as_ptr() as u64)),
        (Copies::Own, _) => {
            let bench = bench(word);
            if bench.waiting.load(Ordering::SeqCst) > 0 {
                bench.turn.fetch_add(1, Ordering::SeqCst);
                match who {
                    Wake::One => futex::wake_one(&bench.turn),
                    Wake::All => futex::wake_all(&bench.turn),
                }
            }
        }
    }
}

/// One that waits, for as long as that takes.
pub struct Waiting {
    copies: Copies,
    pause: Duration,
    end: Option<Deadline>,
    was_interrupted: bool,
}

/// The time is over.
pub struct Over;

impl Waiting {
    pub const fn new(copies: Copies, end: Option<Deadline>) -> Waiting {
        Waiting {
            copies,
            pause: FIRST,
            end,
            was_interrupted: false,
        }
    }

    /// Whether a handler of a signal has ended the last wait.
    pub const fn was_interrupted(&self) -> bool {
        self.was_interrupted
    }

    /// Waits while a word is what was seen, but not for long: then it is to be looked at again.
    pub fn wait(&mut self, word: &AtomicU32, seen: u32) -> Result<(), Over> {
        let left = self.end.map_or(Duration::MAX, Deadline::left);
        if left.is_zero() {
            return Err(Over);
        }
        let pause = self.pause.min(left);
        self.was_interrupted = match self.copies {
            Copies::One => futex::wait_shared_for(word, seen, pause),
            Copies::Own => {
                let bench = bench(word);
                let turn = bench.turn.load(Ordering::SeqCst);
                bench.waiting.fetch_add(1, Ordering::SeqCst);
                let interrupted = word.load(Ordering::SeqCst) == seen
                    && futex::wait_for(&bench.turn, turn, pause);
                bench.waiting.fetch_sub(1, Ordering::SeqCst);
                interrupted
            }
        };
        self.pause = (2 * self.pause).min(LONGEST);
        Ok(())
    }
}

/// Until when somebody waits.
#[derive(Clone, Copy)]
pub struct Deadline {
    clock: ClockId,
    at: Timespec,
}

impl Deadline {
    /// As a program gives it, and the clock by which it counts.
    ///
    /// # Errors
    /// `EINVAL` where it is no time, or the clock is none that threads wait by.
    ///
    /// # Safety
    /// The time can be read.
    pub unsafe fn new(clock: c_int, at: *const libc::timespec) -> Result<Deadline, c_int> {
        let clock = match clock {
            libc::CLOCK_REALTIME => ClockId::Realtime,
            libc::CLOCK_MONOTONIC => ClockId::Monotonic,
            _ => return Err(libc::EINVAL),
        };
        // SAFETY: the caller vouches for it.
        let at = unsafe { *at };
        match at.tv_nsec {
            0..1_000_000_000 => {
                let (tv_sec, tv_nsec) = (at.tv_sec, at.tv_nsec);
                let at = Timespec { tv_sec, tv_nsec };
                Ok(Deadline { clock, at })
            }
            _ => Err(libc::EINVAL),
        }
    }

    /// So long from now.
    pub fn after(time: Duration) -> Deadline {
        let clock = ClockId::Monotonic;
        let now = clock_gettime(clock);
        let nanoseconds = now.tv_nsec + i64::from(time.subsec_nanos());
        let whole = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        let at = Timespec {
            tv_sec: now.tv_sec.saturating_add(whole) + nanoseconds / 1_000_000_000,
            tv_nsec: nanoseconds % 1_000_000_000,
        };
        Deadline { clock, at }
    }

    /// Whether it has passed.
    pub fn is_over(self) -> bool {
        self.left().is_zero()
    }

    fn left(self) -> Duration {
        let now = clock_gettime(self.clock);
        let seconds = self.at.tv_sec.saturating_sub(now.tv_sec);
        let nanoseconds = self.at.tv_nsec - now.tv_nsec;
        let all = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
        Duration::from_nanos(u64::try_from(all.max(0)).unwrap_or(u64::MAX))
    }
}

/// What this process has that no other one has, on any machine.
static PROCESS: AtomicU64 = AtomicU64::new(0);

/// Before threads are told from each other.
pub fn start() {
    let mut number = [0; 8];
    // Without it, it is what the processes of this machine have.
    let _ = getrandom(&mut number, GetRandomFlags::NONBLOCK);
    PROCESS.store(u64::from_ne_bytes(number), Ordering::Relaxed);
}

/// What the calling thread is called among those of all machines that hold locks: no other one is,
/// but once in four thousand million. Children have their parents' number, and other threads.
pub fn me() -> u32 {
    let pid = getpid().as_raw_nonzero().get().unsigned_abs();
    let thread = gettid().as_raw_nonzero().get().unsigned_abs();
    let process = PROCESS.load(Ordering::Relaxed) ^ u64::from(pid) << 32;
    let mixed = (process ^ u64::from(thread)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((mixed >> 32) as u32).max(1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Instant;

    use super::*;

    #[test]
    fn who_waits_is_woken_or_looks_by_itself() {
        for copies in [Copies::One, Copies::Own] {
            for is_woken in [true, false] {
                let word = Arc::new(AtomicU32::new(5));
                let theirs = Arc::clone(&word);
                let waiter = thread::spawn(move || {
                    let mut waiting = Waiting::new(copies, None);
                    while theirs.load(Ordering::SeqCst) == 5 {
                        assert!(waiting.wait(&theirs, 5).is_ok(), "there is no end");
                    }
                });
                thread::sleep(Duration::from_millis(20));
                word.store(6, Ordering::SeqCst);
                if is_woken {
                    wake(copies, &word, Wake::One);
                }
                waiter.join().expect("it comes back");
            }
        }
    }

    #[test]
    fn nobody_waits_for_longer_than_it_wants() {
        for copies in [Copies::One, Copies::Own] {
            let word = AtomicU32::new(5);
            let begin = Instant::now();
            let end = Deadline::after(Duration::from_millis(30));
            let mut waiting = Waiting::new(copies, Some(end));
            while waiting.wait(&word, 5).is_ok() {}
            assert!(begin.elapsed() >= Duration::from_millis(29));
        }
    }

    #[test]
    fn times_that_are_none_are_refused() {
        let time = |tv_nsec| libc::timespec { tv_sec: 0, tv_nsec };
        // SAFETY: the times can be read.
        let new = |clock, time| unsafe { Deadline::new(clock, &raw const time) };
        assert!(new(libc::CLOCK_REALTIME, time(-1)).is_err());
        assert!(new(libc::CLOCK_REALTIME, time(1_000_000_000)).is_err());
        assert!(new(libc::CLOCK_THREAD_CPUTIME_ID, time(0)).is_err());
        let past = new(libc::CLOCK_MONOTONIC, time(999_999_999)).expect("a time");
        assert!(past.left().is_zero());
    }

    #[test]
    fn threads_have_names_of_their_own() {
        let mine = me();
        assert_eq!(me(), mine);
        let theirs = thread::spawn(me).join().expect("no panic");
        assert!(mine != 0 && theirs != mine);
    }
}
