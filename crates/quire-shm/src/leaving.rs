//! A program whose first thread leaves by `pthread_exit`: it ends when its last thread does. The C
//! library counts the threads of this library, too, which stay. So when the first thread leaves, one
//! more is started, which looks from time to time whether any of the program's is left
//! ([`quire_linux::left`]), and else ends the program in the way of the C library, by `exit(0)`.
//!
//! The library's threads say so themselves when they begin: those that it starts, and all that these
//! start. So do those of `libquire.so` and `libquire_provide.so` beside it.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::thread;

use quire_linux::left;
use quire_linux::own_threads::{self, Own};
use quire_linux::thread::{block_program_signals, current_id};

use crate::real::Real;
use crate::signals::Blocked;
use crate::state;

type Routine = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    Routine,
    *mut c_void,
) -> c_int;
type IsOwn = extern "C" fn(u32) -> c_int;
type Leave = unsafe extern "C-unwind" fn(*mut c_void) -> !;
type LeaveC11 = unsafe extern "C-unwind" fn(c_int) -> !;

// SAFETY: the types of the C library's functions, here and below.
static CREATE: Real<Create> = unsafe { Real::new(c"pthread_create") };
// SAFETY: as above.
static LEAVE: Real<Leave> = unsafe { Real::new(c"pthread_exit") };
// SAFETY: as above.
static LEAVE_C11: Real<LeaveC11> = unsafe { Real::new(c"thrd_exit") };

/// The process in which somebody looks for what is left of the program.
static LOOKED_FOR: AtomicU32 = AtomicU32::new(0);
/// The function of `libquire.so` or `libquire_provide.so` that knows their threads; null where there is none.
static BESIDE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    /// Whether threads that this one starts are the library's.
    static STARTS_OWN: Cell<bool> = const { Cell::new(false) };
    /// Says that this one is, until it ends.
    static OWN: Cell<Option<Own>> = const { Cell::new(None) };
}

/// Looks up the functions behind these.
pub fn start() {
    let (_, _, _) = (CREATE.get(), LEAVE.get(), LEAVE_C11.get());
    // SAFETY: the name is a C string.
    let beside = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"quire_beside_is_own_thread".as_ptr()) };
    BESIDE.store(beside, Ordering::Release);
}

/// Whether a thread is one of `libquire.so` or `libquire_provide.so`, where these are there.
fn is_of_library_beside(thread: u32) -> bool {
    let found = BESIDE.load(Ordering::Acquire);
    if found.is_null() {
        return false;
    }
    // SAFETY: the symbol is that library's function of this type.
    let asked = unsafe { std::mem::transmute::<*mut c_void, IsOwn>(found) };
    asked(thread) != 0
}

/// The calling thread is one of the library's until it ends, and so are those that it starts.
pub fn is_own_now() {
    OWN.set(Some(Own::now()));
    STARTS_OWN.set(true);
}

/// Threads that are started meanwhile are the library's.
pub fn starting<T>(act: impl FnOnce() -> T) -> T {
    let before = STARTS_OWN.replace(true);
    let done = act();
    STARTS_OWN.set(before);
    done
}

/// What a thread of the library is started with.
struct Begin {
    routine: Routine,
    argument: *mut c_void,
}

unsafe extern "C" fn begin(begin: *mut c_void) -> *mut c_void {
    // SAFETY: `pthread_create` below made it for this thread alone.
    let Begin { routine, argument } = *unsafe { Box::from_raw(begin.cast::<Begin>()) };
    is_own_now();
    // SAFETY: whoever started the thread gave both.
    unsafe { routine(argument) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    routine: Routine,
    argument: *mut c_void,
) -> c_int {
    let Some(real) = CREATE.get() else {
        return libc::EAGAIN;
    };
    if !STARTS_OWN.get() {
        // SAFETY: passed on as it came.
        return unsafe { real(thread, attributes, routine, argument) };
    }
    let told = Box::into_raw(Box::new(Begin { routine, argument })).cast();
    // SAFETY: the thread takes what it is told; else passed on as it came.
    let failed = unsafe { real(thread, attributes, begin, told) };
    if failed != 0 {
        // SAFETY: no thread has it.
        drop(unsafe { Box::from_raw(told.cast::<Begin>()) });
    }
    failed
}

/// Nothing here is left to be dropped when the C library unwinds the stack.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_exit(value: *mut c_void) -> ! {
    leaves();
    match LEAVE.get() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(value) },
        None => std::process::abort(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn thrd_exit(value: c_int) -> ! {
    leaves();
    match LEAVE_C11.get() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(value) },
        None => std::process::abort(),
    }
}

/// The calling thread leaves. If it is the first one, and the library has threads or may have some, it
/// is looked for the end of the others.
fn leaves() {
    let process = std::process::id();
    if current_id() != process || !(state::is_active() || own_threads::is_any()) {
        return;
    }
    if LOOKED_FOR.swap(process, Ordering::AcqRel) == process {
        return;
    }
    let before = Blocked::now();
    let blocked = block_program_signals();
    // Without it the program stays.
    let _ = thread::Builder::new()
        .name("quire-shm-last".into())
        .spawn(move || end_when_left(&before));
    drop(blocked);
}

/// Waits until the program has no thread any more, and ends it.
fn end_when_left(blocked: &Blocked) {
    is_own_now();
    left::wait_for_others(is_own);
    // The program's last functions run here.
    STARTS_OWN.set(false);
    blocked.restore();
    // SAFETY: no thread of the program's is left that could use what it has.
    unsafe { libc::exit(0) };
}

fn is_own(thread: u32) -> bool {
    own_threads::is_one(thread) || is_of_library_beside(thread)
}
