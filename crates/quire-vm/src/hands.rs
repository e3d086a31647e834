//! The threads of this library, and the descriptor table that they share.
//!
//! They may have to start at any moment of the program: inside `malloc`, in a constructor that `dlopen` runs. So the C
//! library does not know them ([`quire_linux::lone_thread`]), and to start one takes no lock but this room's.
//!
//! The first is `quire-hands`. A thread of the program starts it; it leaves the program's descriptor table for an empty
//! one, and starts the others, which share that table with it. No descriptor of Quire's is ever in the program's table,
//! where another thread of the program may close any number at any moment, and be given the same number for a file of
//! its own. A thread of the program that needs a descriptor has the work done by `quire-hands` ([`run`]): it waits
//! meanwhile, so the work may use what it borrows. One such piece of work is done at a time.
//!
//! In a program that links this crate they are threads like others, as they allocate by the program's allocator.
//!
//! The work must take no lock that anybody holds who asks for work: the thread that holds it may wait for its turn.
//!
//! All that says which threads there are lies in memory that the kernel fills with zeros in a child, in whatever way
//! that was made. A child that shares the memory of its parent (`vfork`) has the parent's threads work for it, and starts
//! none: a thread of such a child would end with it.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

use quire_core::units::{AddrRange, Bytes, VirtAddr};
use quire_linux::futex::{self, BareLock, SignalsBlocked};
use quire_linux::lone_thread::{self, LoneThread, Main};
use quire_linux::memory;
use quire_linux::own_threads::Own;
use quire_linux::raw::{Errno, Result};
use quire_linux::{rights, thread};

/// Which threads there are, and what is asked of the first. All of it may be zeros.
#[derive(Debug)]
pub(crate) struct Threads {
    hands: Place,
    pub pager: Place,
    pub files: Place,
    pub frames: Place,
    /// Held by the thread that asks.
    turn: BareLock,
    /// What `quire-hands` sleeps on: see [`ASKED`].
    word: AtomicU32,
    /// What is asked, while that is so.
    request: AtomicPtr<Request<'static>>,
    /// The event that wakes the pager, by its number in the shared table, plus one.
    event: AtomicU32,
    /// How often the program has changed its users or groups.
    changes: AtomicU32,
    /// The process whose threads they are: its number when they were started.
    process: AtomicU32,
}

/// The place of one thread.
#[derive(Debug)]
pub(crate) struct Place {
    lone: LoneThread,
    /// The number of one that the C library knows: see [`ALLOCATES_APART`].
    known: AtomicU32,
}

/// What the threads allocate does not come from the C library's allocator. That is so in `libquire_provide.so`, and not
/// in a program that links this crate: there the C library has to know of the threads.
static ALLOCATES_APART: AtomicBool = AtomicBool::new(false);

/// The global allocator of this crate has nothing of the C library's and of the program's: from now on threads are
/// started without the C library.
pub fn allocates_apart() {
    ALLOCATES_APART.store(true, Ordering::Release);
}

impl Place {
    fn is_there(&self) -> bool {
        self.lone.is_there() || self.known.load(Ordering::Acquire) != 0
    }

    fn is_current(&self) -> bool {
        let known = self.known.load(Ordering::Acquire);
        self.lone.is_current() || (known != 0 && known == thread::current_id())
    }

    /// Starts the thread there.
    ///
    /// # Safety
    /// As [`LoneThread::start`]: `self` stays where it is.
    unsafe fn start(&'static self, main: Main, argument: usize) -> Result<()> {
        if ALLOCATES_APART.load(Ordering::Acquire) {
            let reach = lone_thread::locals_reach();
            // SAFETY: passed on to the caller.
            return unsafe { self.lone.start_without_room(main, argument, reach) };
        }
        let order = (Ordering::AcqRel, Ordering::Acquire);
        let being_made = self.known.compare_exchange(0, u32::MAX, order.0, order.1);
        if being_made.is_err() {
            return Ok(());
        }
        let signals = thread::block_program_signals();
        let spawned = std::thread::Builder::new().spawn(move || {
            self.known.store(thread::current_id(), Ordering::Release);
            main(argument);
            self.known.store(0, Ordering::Release);
        });
        drop(signals);
        if spawned.is_err() {
            self.known.store(0, Ordering::Release);
        }
        spawned.map(drop).map_err(|_| Errno(libc::EAGAIN))
    }
}

/// There is a request.
const ASKED: u32 = 1 << 0;
/// It has been carried out.
const DONE: u32 = 1 << 1;
/// The pager is to be woken; nobody waits for that.
const WAKE: u32 = 1 << 2;
/// The program has changed its users or groups.
const FOLLOW: u32 = 1 << 3;

/// How often the one that waits looks whether the thread is there still.
const LOOK: Duration = Duration::from_secs(1);

/// A piece of work and where its result goes.
struct Request<'a> {
    work: &'a mut (dyn FnMut() + 'a),
}

static THREADS: AtomicPtr<Threads> = AtomicPtr::new(ptr::null_mut());

/// Of this process; nothing where none was ever to be started.
fn threads() -> Option<&'static Threads> {
    // SAFETY: the pointer is null, or names a mapping that is never unmapped, is large enough, and was filled with
    // zeros, which is a value of every field.
    unsafe { THREADS.load(Ordering::Acquire).as_ref() }
}

/// Makes the place where they are noted.
fn make() -> Result<&'static Threads> {
    if let Some(threads) = threads() {
        return Ok(threads);
    }
    let len = Bytes(size_of::<Threads>() as u64).to_pages().to_bytes();
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { memory::map_anonymous(VirtAddr(0), len, prot, 0)? };
    let range = AddrRange::new(at, len);
    // SAFETY: the advice concerns children only.
    let wiped = unsafe { memory::advise_raw(range, libc::MADV_WIPEONFORK) };
    let order = (Ordering::AcqRel, Ordering::Acquire);
    let made = wiped.is_ok()
        && THREADS
            .compare_exchange(ptr::null_mut(), at.as_ptr().cast(), order.0, order.1)
            .is_ok();
    if !made {
        // Another thread was faster, or a child would take its parent's threads for its own.
        // SAFETY: nobody knows of the mapping.
        unsafe { memory::unmap(range)? };
    }
    wiped.and_then(|()| threads().ok_or(Errno(libc::ENOMEM)))
}

/// Notes the calling process as the one that may have threads: before the program's own code runs, and in a forked
/// child.
pub(crate) fn prepare() {
    if let Ok(threads) = make() {
        threads
            .process
            .store(thread::process_id(), Ordering::Release);
    }
}

/// Whether the calling process may have threads of its own. A child that shares its parent's memory may not.
pub(crate) fn may_start() -> bool {
    let process = threads().map_or(0, |threads| threads.process.load(Ordering::Acquire));
    // In a child whose making was not seen there are zeros.
    process == 0 || process == thread::process_id()
}

/// Starts `quire-hands`, unless it is there. Takes no lock.
///
/// # Errors
/// As `mmap` and `clone`; `EPERM` in a child that shares its parent's memory.
pub(crate) fn start() -> Result<()> {
    let threads = make()?;
    if !may_start() {
        return Err(Errno(libc::EPERM));
    }
    let argument = ptr::from_ref(threads) as usize;
    // SAFETY: `serve` allocates by the allocator of this library only, and keeps off thread-local variables. The place
    // is never unmapped.
    unsafe { threads.hands.start(serve, argument) }
}

/// Starts one of the other threads, which shares the table. It may allocate by the allocator of this library, and keeps
/// off the C library's thread-local variables but `errno`.
///
/// # Errors
/// As `mmap` and `clone`, `EBUSY` where it is there, `ESRCH` without `quire-hands`.
pub(crate) fn spawn(which: fn(&Threads) -> &Place, main: Main, argument: usize) -> Result<()> {
    let place = which(threads().ok_or(Errno(libc::ESRCH))?);
    if place.is_there() {
        return Err(Errno(libc::EBUSY));
    }
    // SAFETY: callers are this crate's threads, which keep to that. The place is never unmapped.
    run(|| unsafe { place.start(main, argument) })?
}

/// Whether one of the threads is there.
pub(crate) fn is_there(which: fn(&Threads) -> &Place) -> bool {
    threads().is_some_and(|threads| which(threads).is_there())
}

/// Does something while children inherit the memory of the pager thread, which the pager's own children need.
pub(crate) fn while_pager_is_inherited<R>(work: impl FnOnce() -> R) -> R {
    match threads() {
        Some(threads) => threads.pager.lone.while_inherited(work),
        None => work(),
    }
}

/// Whether the calling thread is one of this library.
pub(crate) fn is_ours() -> bool {
    threads().is_some_and(is_own)
}

/// Whether the calling thread has the shared table.
fn is_own(threads: &Threads) -> bool {
    let all = [
        &threads.hands,
        &threads.pager,
        &threads.files,
        &threads.frames,
    ];
    all.iter().any(|thread| thread.is_current())
}

extern "C" fn serve(threads: usize) {
    // SAFETY: `start` gave the address, which names what is never unmapped.
    let threads = unsafe { &*(threads as *const Threads) };
    let _own = Own::now();
    if lone_thread::leave_descriptors().is_err() {
        // Who asks sees that it is not there.
        return;
    }
    lone_thread::set_name(c"quire-hands");
    loop {
        let word = threads.word.load(Ordering::Acquire);
        if word & WAKE != 0 {
            threads.word.fetch_and(!WAKE, Ordering::AcqRel);
            signal_pager(threads);
        } else if word & FOLLOW != 0 {
            threads.word.fetch_and(!FOLLOW, Ordering::AcqRel);
            rights::follow_first_thread();
            threads.changes.fetch_add(1, Ordering::AcqRel);
            signal_pager(threads);
            crate::files::announce();
            crate::frames::wake();
        } else if word & ASKED != 0 {
            let request = threads.request.load(Ordering::Acquire);
            // SAFETY: the asking thread wrote the pointer and keeps the request alive and untouched until it sees
            // `DONE`.
            unsafe { ((*request).work)() };
            threads.word.fetch_xor(ASKED | DONE, Ordering::AcqRel);
            futex::wake_all(&threads.word);
        } else {
            futex::wait(&threads.word, word);
        }
    }
}

/// Runs `work` where descriptors are Quire's, and returns its result: here, on a thread of this library, else on
/// `quire-hands`.
///
/// # Errors
/// `ESRCH` when there is no such thread; nothing was done then.
pub(crate) fn run<R>(work: impl FnOnce() -> R) -> Result<R> {
    hand_over(work).map_err(|_| Errno(libc::ESRCH))
}

/// Runs `work` where descriptors are Quire's; where there is no such place, here.
pub fn apart<R>(work: impl FnOnce() -> R) -> R {
    hand_over(work).unwrap_or_else(|work| work())
}

/// As [`run`]; gives the work back where there is no such thread.
fn hand_over<R, F: FnOnce() -> R>(work: F) -> std::result::Result<R, F> {
    let Some(threads) = threads() else {
        return Err(work);
    };
    if is_own(threads) {
        return Ok(work());
    }
    if !threads.hands.is_there() {
        return Err(work);
    }
    // A handler may ask, too, and must not wait for the thread that it interrupted.
    let _signals = SignalsBlocked::new();
    let mut state = (Some(work), None);
    let mut once = || state.1 = state.0.take().map(|work| work());
    let mut request = Request { work: &mut once };
    let address: *mut Request<'_> = &raw mut request;
    threads.turn.acquire();
    threads.request.store(address.cast(), Ordering::Release);
    threads.word.fetch_or(ASKED, Ordering::AcqRel);
    futex::wake_all(&threads.word);
    wait_until_done(threads);
    threads.word.fetch_and(!(ASKED | DONE), Ordering::AcqRel);
    threads.turn.release();
    match state {
        (_, Some(result)) => Ok(result),
        (Some(work), None) => Err(work),
        // The thread ended at work, and with it the process whose memory a child of `vfork` shares.
        (None, None) => std::process::abort(),
    }
}

/// The answer comes soon where there is another processor for it: waking takes longer.
const SPINS: u32 = 200;

fn wait_until_done(threads: &Threads) {
    let mut spins = 0;
    loop {
        let word = threads.word.load(Ordering::Acquire);
        if word & DONE != 0 || !threads.hands.is_there() {
            return;
        }
        if spins < SPINS {
            spins += 1;
            std::hint::spin_loop();
        } else {
            futex::wait_for(&threads.word, word, LOOK);
        }
    }
}

/// The event that [`wake_pager`] signals, of the shared table.
pub(crate) fn set_event(event: BorrowedFd<'_>) {
    if let Some(threads) = threads() {
        let number = event.as_raw_fd().unsigned_abs() + 1;
        threads.event.store(number, Ordering::Release);
    }
}

/// Has the pager woken. Nobody waits for it.
pub(crate) fn wake_pager() {
    let Some(threads) = threads() else { return };
    if is_own(threads) {
        signal_pager(threads);
    } else if threads.word.fetch_or(WAKE, Ordering::AcqRel) & WAKE == 0 {
        futex::wake_all(&threads.word);
    }
}

/// The program has changed its users or groups: our threads do the same, soon.
pub(crate) fn follow_rights() {
    let Some(threads) = threads().filter(|threads| threads.hands.is_there()) else {
        return;
    };
    threads.word.fetch_or(FOLLOW, Ordering::AcqRel);
    futex::wake_all(&threads.word);
}

/// Keeps one of our threads at the rights of the program.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    /// The changes that it has followed.
    seen: u32,
}

impl Follower {
    /// Follows what has changed. To be called in each round; it costs a look at a word.
    pub fn follow(&mut self) {
        let changes = threads().map_or(0, |threads| threads.changes.load(Ordering::Acquire));
        if changes != self.seen {
            self.seen = changes;
            rights::follow_first_thread();
        }
    }
}

/// On a thread that has the shared table.
fn signal_pager(threads: &Threads) {
    if let Some(event) = threads.event.load(Ordering::Acquire).checked_sub(1) {
        // SAFETY: the pager's event is never closed.
        thread::signal_event(&unsafe { BorrowedFd::borrow_raw(event as i32) });
    }
}
