//! Semaphores with names. The C library has each in a file of shared memory called `sem.NAME`, and here
//! each is an object of one page that stands for that name. A program that opens one twice gets it at
//! the same address, as from the C library.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use quire_core::units::BASE_PAGE;

use super::semaphore::MOST;
use super::waiting::{Deadline, Waiting, Wake, copies, wake};
use crate::ages::Entry;
use crate::host::{At, Meaning};
use crate::mappings::{self, Part};
use crate::posix;
use crate::real::Real;
use crate::state::{self, State};
use crate::trouble::{Result, Trouble, opened_in_the_end, set_errno};

type Semaphore = *mut libc::sem_t;
type Open = unsafe extern "C" fn(*const c_char, c_int, libc::mode_t, c_uint) -> Semaphore;
type Close = unsafe extern "C" fn(Semaphore) -> c_int;
type Unlink = unsafe extern "C" fn(*const c_char) -> c_int;

// SAFETY: the types of the C library's functions, here and below; one that takes as many arguments as
// there are is called like one that takes them all.
static OPEN: Real<Open> = unsafe { Real::new(c"sem_open") };
// SAFETY: as above.
static CLOSE: Real<Close> = unsafe { Real::new(c"sem_close") };
// SAFETY: as above.
static UNLINK: Real<Unlink> = unsafe { Real::new(c"sem_unlink") };

/// Looks up the functions behind these.
pub fn start() {
    let (_, _, _) = (OPEN.get(), CLOSE.get(), UNLINK.get());
}

const PREFIX: &str = "sem.";

/// A semaphore with a name that the program has open.
#[derive(Debug)]
pub struct Named {
    entry: Entry,
    /// How often it has opened it, and not closed it.
    uses: u64,
}

/// What is in its page.
#[repr(C, align(64))]
struct Words {
    value: AtomicU32,
    /// What the C library has beside the value, and more.
    others: [u32; 15],
    stage: AtomicU32,
}

/// What its memory is: as it was made, given a value by somebody at this moment, or a semaphore.
const NEW: u32 = 0;
const BEGUN: u32 = 1;
const READY: u32 = 2;

/// Somebody who makes one gives it a value in no time, or has ended.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a program asks for.
#[derive(Clone, Copy)]
struct Call {
    makes: bool,
    only_new: bool,
    value: c_uint,
}

/// Opens it, and says where it lies.
fn open(state: &mut State, place: usize, call: Call) -> Result<u64> {
    opened_in_the_end(call.makes, || open_once(state, place, call))
}

fn open_once(state: &mut State, place: usize, call: Call) -> Result<u64> {
    let entry = entry_named(state, place, call)?;
    let mut all = state.semaphores.iter_mut();
    if let Some((start, named)) = all.find(|(_, named)| named.entry == entry) {
        named.uses += 1;
        return Ok(*start);
    }
    let part = Part {
        entry,
        offset: 0,
        len: BASE_PAGE,
        size: BASE_PAGE,
        writable: true,
        is_attached: false,
    };
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let start = mappings::map(state, part, At::Anywhere, both)?;
    state.semaphores.insert(start, Named { entry, uses: 1 });
    Ok(start)
}

/// The object that a name stands for, which is made if that is asked for.
fn entry_named(state: &mut State, place: usize, call: Call) -> Result<Entry> {
    match state.run(move |works| works.named(place))? {
        Meaning::Sized(entry, _) | Meaning::Begun(entry) if call.only_new => {
            match posix::replaced(state, entry)? {
                true => entry_named(state, place, call),
                false => Err(Trouble::new(libc::EEXIST, "the semaphore exists")),
            }
        }
        Meaning::Sized(entry, BASE_PAGE) => Ok(entry),
        Meaning::Sized(..) => {
            let text = "an object of this size is no semaphore";
            state.run(move |_| Err(Trouble::new(libc::EINVAL, text)))
        }
        Meaning::Nothing | Meaning::Begun(_) if !call.makes => {
            Err(Trouble::new(libc::ENOENT, "there is no such semaphore"))
        }
        Meaning::Nothing | Meaning::Begun(_) => {
            posix::may_create(state, place)?;
            let made = state.run(move |works| works.create(place, BASE_PAGE, call.only_new));
            made.map(|(entry, _)| entry)
        }
    }
}

/// Waits until it has a value, or gives it one.
fn begin(at: Semaphore, call: Call) -> Result<()> {
    let never = || Trouble::new(libc::ENOENT, "nobody gives the semaphore a value");
    let copies = copies(at).ok_or_else(never)?;
    // SAFETY: a page of an object is mapped there until it is closed, and begins with this; all programs
    // change it word by word.
    let words = unsafe { &*at.cast::<Words>() };
    let mut waiting = Waiting::new(copies, Some(Deadline::after(PATIENCE)));
    let order = Ordering::SeqCst;
    loop {
        let mut stage = words.stage.load(order);
        if stage == NEW && call.makes {
            let begun = words.stage.compare_exchange(NEW, BEGUN, order, order);
            if begun.is_ok() {
                words.value.store(call.value, order);
                words.stage.store(READY, order);
                wake(copies, &words.stage, Wake::All);
                return Ok(());
            }
            stage = BEGUN;
        }
        if stage == READY {
            return Ok(());
        }
        waiting.wait(&words.stage, stage).map_err(|_| never())?;
    }
}

/// Closes what lies there, if it is one.
fn close(state: &mut State, at: u64) -> Option<Result<()>> {
    let named = state.semaphores.get_mut(&at)?;
    named.uses = named.uses.saturating_sub(1);
    if named.uses > 0 {
        return Some(Ok(()));
    }
    state.semaphores.remove(&at);
    let number = state.take(at)?.number;
    Some(state.run(move |works| works.unmap(number)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sem_open(
    name: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
    value: c_uint,
) -> Semaphore {
    let makes = flags & libc::O_CREAT != 0;
    let call = Call {
        makes,
        only_new: makes && flags & libc::O_EXCL != 0,
        value,
    };
    // SAFETY: the program gives a C string.
    let place = unsafe { posix::place_named(PREFIX, name) };
    let opened = place.and_then(|place| match makes && value > MOST {
        true => Some(Err(Trouble::new(libc::EINVAL, "too large a value"))),
        false => state::locked(|state| open(state, place, call)),
    });
    match (opened, OPEN.known()) {
        (Some(opened), _) => {
            let begun = opened.and_then(|at| {
                let at = at as Semaphore;
                begin(at, call)
                    .inspect_err(|_| drop(state::locked(|state| close(state, at as u64))))?;
                Ok(at)
            });
            state::answer(begun, libc::SEM_FAILED)
        }
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(name, flags, mode, value) },
        (None, None) => libc::SEM_FAILED,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sem_close(semaphore: Semaphore) -> c_int {
    let closed = copies(semaphore)
        .and_then(|_| state::locked(|state| close(state, semaphore as u64)).flatten());
    match (closed, CLOSE.known()) {
        (Some(closed), _) => state::answer(closed.map(|()| 0), -1),
        // The C library would take it for its own.
        (None, _) if copies(semaphore).is_some() => {
            set_errno(libc::EINVAL);
            -1
        }
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(semaphore) },
        (None, None) => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sem_unlink(name: *const c_char) -> c_int {
    // SAFETY: the program gives a C string.
    let place = unsafe { posix::place_named(PREFIX, name) };
    let unlinked =
        place.and_then(|place| state::locked(|state| posix::unlink(state, place, posix::keeps())));
    match (unlinked, UNLINK.known()) {
        (Some(unlinked), _) => state::answer(unlinked.map(|()| 0), -1),
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(name) },
        (None, None) => -1,
    }
}
