//! Mutexes in objects: the ordinary ones, those that may be locked again by who has them, and
//! those that check for it. Robust ones are kept by the object's server ([`super::robust`]).
//!
//! Those that lend their priority are refused, as the kernel has to know of them. The C library
//! refuses them where the kernel lacks them.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use super::robust;
use super::waiting::{Deadline, Waiting, Wake, copies, find, me, wake};
use crate::loss;
use crate::real::Real;
use crate::state;
use crate::taken::{self, Copies};
use crate::trouble::Trouble;

type Mutex = *mut libc::pthread_mutex_t;
type Init = unsafe extern "C" fn(Mutex, *const libc::pthread_mutexattr_t) -> c_int;
type Act = unsafe extern "C" fn(Mutex) -> c_int;
type Timed = unsafe extern "C" fn(Mutex, *const libc::timespec) -> c_int;
type Clocked = unsafe extern "C" fn(Mutex, c_int, *const libc::timespec) -> c_int;

// SAFETY: the types of the C library's functions, here and below.
static INIT: Real<Init> = unsafe { Real::new(c"pthread_mutex_init") };
// SAFETY: as above.
static DESTROY: Real<Act> = unsafe { Real::new(c"pthread_mutex_destroy") };
// SAFETY: as above.
static LOCK: Real<Act> = unsafe { Real::new(c"pthread_mutex_lock") };
// SAFETY: as above.
static TRY: Real<Act> = unsafe { Real::new(c"pthread_mutex_trylock") };
// SAFETY: as above.
static TIMED: Real<Timed> = unsafe { Real::new(c"pthread_mutex_timedlock") };
// SAFETY: as above.
static CLOCKED: Real<Clocked> = unsafe { Real::new(c"pthread_mutex_clocklock") };
// SAFETY: as above.
static UNLOCK: Real<Act> = unsafe { Real::new(c"pthread_mutex_unlock") };
// SAFETY: as above.
static CONSISTENT: Real<Act> = unsafe { Real::new(c"pthread_mutex_consistent") };

/// Looks up the functions behind these.
pub fn start() {
    let (_, _, _, _) = (INIT.get(), DESTROY.get(), LOCK.get(), TRY.get());
    let (_, _, _) = (TIMED.get(), CLOCKED.get(), UNLOCK.get());
    let _ = CONSISTENT.get();
}

pub(super) const FREE: u32 = 0;
pub(super) const HELD: u32 = 1;
/// Somebody of those who share a copy may wait in the kernel.
const AWAITED: u32 = 2;

/// What the C library has in a mutex, where it has it.
#[repr(C)]
pub(super) struct Words {
    pub(super) state: AtomicU32,
    /// How often who has it has locked it again.
    pub(super) again: AtomicU32,
    pub(super) owner: AtomicU32,
    /// Where it is robust: whether what it guards is whole.
    pub(super) users: AtomicU32,
    kind: AtomicI32,
}

/// Which kind it is, among what else its kind says.
const KIND: c_int = 3;
/// It is robust.
const ROBUST: c_int = 16;
/// It lends its priority, or has one.
const UNKNOWN: c_int = 32 | 64;

/// A mutex in an object.
#[derive(Clone, Copy)]
pub struct Held<'a> {
    pub(super) words: &'a Words,
    pub(super) copies: Copies,
}

/// How long somebody waits for a mutex.
enum Patience {
    None,
    For(Option<Deadline>),
}

impl Patience {
    /// Until when somebody waits; nothing where that is not at all.
    const fn end(self) -> Option<Option<Deadline>> {
        match self {
            Patience::None => None,
            Patience::For(end) => Some(end),
        }
    }
}

impl<'a> Held<'a> {
    /// A mutex, if it lies in an object.
    ///
    /// # Safety
    /// It is a mutex of the program, if that is not null, for as long as it is used.
    #[inline]
    pub unsafe fn find(mutex: Mutex) -> Option<Held<'a>> {
        // SAFETY: the caller vouches for it.
        let (words, copies) = unsafe { find(mutex) }?;
        Some(Held { words, copies })
    }

    /// Who has it, where that is asked for: ordinary ones do not tell.
    fn owner(self) -> Result<Option<u32>, c_int> {
        let kind = self.words.kind.load(Ordering::Relaxed);
        match kind & KIND {
            _ if kind < 0 => Err(libc::EINVAL),
            _ if kind & UNKNOWN != 0 => Err(libc::ENOTSUP),
            _ if kind & ROBUST != 0 => Ok(Some(self.words.owner.load(Ordering::Relaxed))),
            libc::PTHREAD_MUTEX_RECURSIVE | libc::PTHREAD_MUTEX_ERRORCHECK => {
                Ok(Some(self.words.owner.load(Ordering::Relaxed)))
            }
            _ => Ok(None),
        }
    }

    fn is_robust(self) -> bool {
        self.words.kind.load(Ordering::Relaxed) & ROBUST != 0
    }

    fn is_recursive(self) -> bool {
        self.words.kind.load(Ordering::Relaxed) & KIND == libc::PTHREAD_MUTEX_RECURSIVE
    }

    fn lock(self, patience: Patience) -> c_int {
        self.locked(patience).err().unwrap_or(0)
    }

    fn locked(self, patience: Patience) -> Result<(), c_int> {
        self.is_sound()?;
        let owner = self.owner()?;
        let me = owner.map(|_| me());
        if owner.is_some() && owner == me {
            return self.lock_again(matches!(patience, Patience::None));
        }
        if self.is_robust() {
            return robust::lock(self, patience.end());
        }
        match patience {
            _ if self.try_now(HELD) => {}
            Patience::None => return Err(libc::EBUSY),
            Patience::For(end) => self.wait(end)?,
        }
        if let Some(me) = me {
            self.words.owner.store(me, Ordering::Relaxed);
        }
        Ok(())
    }

    fn lock_again(self, is_try: bool) -> Result<(), c_int> {
        match (self.is_recursive(), is_try) {
            (true, _) => {
                let again = self.words.again.load(Ordering::Relaxed);
                let again = again.checked_add(1).ok_or(libc::EAGAIN)?;
                self.words.again.store(again, Ordering::Relaxed);
                Ok(())
            }
            (false, true) => Err(libc::EBUSY),
            (false, false) => Err(libc::EDEADLK),
        }
    }

    fn try_now(self, to: u32) -> bool {
        let (from, order) = (FREE, Ordering::SeqCst);
        let tried = self.words.state.compare_exchange(from, to, order, order);
        tried.is_ok()
    }

    #[cold]
    fn wait(self, end: Option<Deadline>) -> Result<(), c_int> {
        let state = &self.words.state;
        let mut waiting = Waiting::new(self.copies, end);
        loop {
            let seen = match self.copies {
                Copies::One if state.swap(AWAITED, Ordering::SeqCst) == FREE => return Ok(()),
                Copies::One => AWAITED,
                // To look does not take the page from who has it, as a write does.
                Copies::Own => match state.load(Ordering::SeqCst) {
                    FREE if self.try_now(HELD) => return Ok(()),
                    FREE => continue,
                    seen => seen,
                },
            };
            waiting.wait(state, seen).map_err(|_| libc::ETIMEDOUT)?;
        }
    }

    /// Lets go of it.
    pub fn unlock(self) -> c_int {
        self.unlocked().err().unwrap_or(0)
    }

    /// Whether what it guards may be used: not where this program has lost what it wrote.
    fn is_sound(self) -> Result<(), c_int> {
        match self.copies {
            Copies::One => Ok(()),
            Copies::Own => loss::errno(),
        }
    }

    fn unlocked(self) -> Result<(), c_int> {
        self.is_sound()?;
        if let Some(owner) = self.owner()? {
            if owner != me() {
                return Err(libc::EPERM);
            }
            let again = self.words.again.load(Ordering::Relaxed);
            if again > 0 {
                self.words.again.store(again - 1, Ordering::Relaxed);
                return Ok(());
            }
            if self.is_robust() {
                return robust::unlock(self);
            }
            self.words.owner.store(0, Ordering::Relaxed);
        }
        let before = self.words.state.swap(FREE, Ordering::SeqCst);
        if before == AWAITED || self.copies == Copies::Own {
            wake(self.copies, &self.words.state, Wake::One);
        }
        Ok(())
    }
}

/// Why a mutex with such attributes cannot be in an object, if it cannot.
///
/// # Safety
/// The attributes are null, or were made by the C library.
unsafe fn refusal(
    mutex: Mutex,
    attributes: *const libc::pthread_mutexattr_t,
) -> Option<&'static str> {
    if attributes.is_null() {
        return None;
    }
    let (mut robust, mut protocol) = (libc::PTHREAD_MUTEX_STALLED, libc::PTHREAD_PRIO_NONE);
    // SAFETY: the caller vouches for the attributes, and there is room for the answers. Where they
    // give none, nothing is refused.
    unsafe {
        libc::pthread_mutexattr_getrobust(attributes, &raw mut robust);
        libc::pthread_mutexattr_getprotocol(attributes, &raw mut protocol);
    }
    let is_mapped = taken::copies_at(mutex as u64).is_some();
    if robust == libc::PTHREAD_MUTEX_ROBUST && !is_mapped {
        Some(
            "a robust mutex is made in an object that the program has opened itself: that is not \
             offered; quire_dsm_lock tells of owners that end",
        )
    } else if protocol != libc::PTHREAD_PRIO_NONE {
        Some("a mutex with a priority is made in an object: that is not offered")
    } else {
        None
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_init(
    mutex: Mutex,
    attributes: *const libc::pthread_mutexattr_t,
) -> c_int {
    if copies(mutex).is_some()
        // SAFETY: the program gives attributes as the function takes them.
        && let Some(text) = unsafe { refusal(mutex, attributes) }
    {
        // The thread writes it to the log.
        state::locked(|state| {
            let refused = Trouble::new(libc::ENOTSUP, text);
            let _: Result<(), Trouble> = state.run(move |_| Err(refused));
        });
        return libc::ENOTSUP;
    }
    match INIT.get() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(mutex, attributes) },
        None => libc::ENOSYS,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_consistent(mutex: Mutex) -> c_int {
    // SAFETY: the program gives a mutex.
    match (unsafe { Held::find(mutex) }, CONSISTENT.get()) {
        (Some(held), _) if held.is_robust() => robust::is_consistent(held.words).err().unwrap_or(0),
        (Some(_), _) => libc::EINVAL,
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(mutex) },
        (None, None) => libc::ENOSYS,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_destroy(mutex: Mutex) -> c_int {
    // SAFETY: the program gives a mutex.
    let held = unsafe { Held::find(mutex) };
    if held.is_some_and(|held| held.words.state.load(Ordering::SeqCst) != FREE) {
        return libc::EBUSY;
    }
    match DESTROY.get() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(mutex) },
        None => libc::ENOSYS,
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn pthread_mutex_lock(mutex: Mutex) -> c_int {
    // SAFETY: the program gives a mutex.
    match (unsafe { Held::find(mutex) }, LOCK.get()) {
        (Some(held), _) => held.lock(Patience::For(None)),
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(mutex) },
        (None, None) => libc::ENOSYS,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_trylock(mutex: Mutex) -> c_int {
    // SAFETY: the program gives a mutex.
    match (unsafe { Held::find(mutex) }, TRY.get()) {
        (Some(held), _) => held.lock(Patience::None),
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(mutex) },
        (None, None) => libc::ENOSYS,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_timedlock(mutex: Mutex, until: *const libc::timespec) -> c_int {
    // SAFETY: the program gives a mutex.
    match (unsafe { Held::find(mutex) }, TIMED.get()) {
        // SAFETY: the program gives a time.
        (Some(held), _) => unsafe { lock_until(held, libc::CLOCK_REALTIME, until) },
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(mutex, until) },
        (None, None) => libc::ENOSYS,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_clocklock(
    mutex: Mutex,
    clock: c_int,
    until: *const libc::timespec,
) -> c_int {
    // SAFETY: the program gives a mutex.
    match (unsafe { Held::find(mutex) }, CLOCKED.get()) {
        // SAFETY: the program gives a time.
        (Some(held), _) => unsafe { lock_until(held, clock, until) },
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(mutex, clock, until) },
        (None, None) => libc::ENOSYS,
    }
}

/// # Safety
/// The time can be read.
unsafe fn lock_until(held: Held<'_>, clock: c_int, until: *const libc::timespec) -> c_int {
    // Who gets it at once may give any time.
    match held.lock(Patience::None) {
        // SAFETY: the caller vouches for it.
        libc::EBUSY => match unsafe { Deadline::new(clock, until) } {
            Ok(end) => held.lock(Patience::For(Some(end))),
            Err(errno) => errno,
        },
        other => other,
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn pthread_mutex_unlock(mutex: Mutex) -> c_int {
    // SAFETY: the program gives a mutex.
    match (unsafe { Held::find(mutex) }, UNLOCK.get()) {
        (Some(held), _) => held.unlock(),
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(mutex) },
        (None, None) => libc::ENOSYS,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn words(kind: c_int) -> Words {
        Words {
            state: AtomicU32::new(FREE),
            again: AtomicU32::new(0),
            owner: AtomicU32::new(0),
            users: AtomicU32::new(0),
            kind: AtomicI32::new(kind),
        }
    }

    const BOTH: [Copies; 2] = [Copies::One, Copies::Own];

    #[test]
    fn one_has_it_at_a_time() {
        // Some of them know of one copy, and others have their own, as on several machines.
        for all in [
            [BOTH[0]; 4],
            [BOTH[1]; 4],
            [BOTH[0], BOTH[1], BOTH[0], BOTH[1]],
        ] {
            let (words, counted) = (words(libc::PTHREAD_MUTEX_NORMAL), AtomicU64::new(0));
            thread::scope(|scope| {
                for copies in all {
                    let held = Held {
                        words: &words,
                        copies,
                    };
                    let counted = &counted;
                    scope.spawn(move || {
                        for _ in 0..5000 {
                            assert_eq!(held.lock(Patience::For(None)), 0);
                            let before = counted.load(Ordering::Relaxed);
                            std::hint::spin_loop();
                            counted.store(before + 1, Ordering::Relaxed);
                            assert_eq!(held.unlock(), 0);
                        }
                    });
                }
            });
            assert_eq!(counted.into_inner(), 4 * 5000);
        }
    }

    #[test]
    fn kinds_do_what_they_are_for() {
        let in_another = |held: Held<'_>| {
            let other = || (held.lock(Patience::None), held.unlock());
            thread::scope(|scope| scope.spawn(other).join().expect("no panic"))
        };
        for copies in BOTH {
            let recursive = words(libc::PTHREAD_MUTEX_RECURSIVE);
            let held = Held {
                words: &recursive,
                copies,
            };
            assert_eq!(held.lock(Patience::For(None)), 0);
            assert_eq!(held.lock(Patience::For(None)), 0);
            assert_eq!(held.lock(Patience::None), 0);
            for _ in 0..3 {
                assert_eq!(in_another(held), (libc::EBUSY, libc::EPERM));
                assert_eq!(held.unlock(), 0);
            }
            assert_eq!(in_another(held), (0, 0));

            let checks = words(libc::PTHREAD_MUTEX_ERRORCHECK);
            let held = Held {
                words: &checks,
                copies,
            };
            assert_eq!(held.unlock(), libc::EPERM);
            assert_eq!(held.lock(Patience::For(None)), 0);
            assert_eq!(held.lock(Patience::For(None)), libc::EDEADLK);
            assert_eq!(held.lock(Patience::None), libc::EBUSY);
            assert_eq!((held.unlock(), held.unlock()), (0, libc::EPERM));
        }
    }

    #[test]
    fn what_is_none_or_unknown_is_refused() {
        for (kind, errno) in [(-1, libc::EINVAL), (32, libc::ENOTSUP), (64, libc::ENOTSUP)] {
            let words = words(kind);
            let copies = Copies::Own;
            let held = Held {
                words: &words,
                copies,
            };
            assert_eq!(held.lock(Patience::For(None)), errno);
            assert_eq!(held.unlock(), errno);
        }
    }

    #[test]
    fn who_waits_until_a_time_comes_back() {
        for copies in BOTH {
            let words = words(libc::PTHREAD_MUTEX_NORMAL);
            let held = Held {
                words: &words,
                copies,
            };
            assert_eq!(held.lock(Patience::None), 0);
            let end = Deadline::after(Duration::from_millis(10));
            let late = held.lock(Patience::For(Some(end)));
            assert_eq!(late, libc::ETIMEDOUT);
        }
    }
}
