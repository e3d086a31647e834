//! Making processes.
//!
//! Whatever way the program forks, three things happen in this order: managed
//! memory is made private ([`quire_vm::Manager::before_fork`]), jemalloc's
//! locks are taken, the manager's lock is taken; and afterwards the reverse.
//! The order is that of a thread inside `malloc`, which may hold jemalloc's
//! locks when it needs the manager's.
//!
//! `fork` and all that the C library builds on it (`daemon`, `forkpty`) run
//! the handlers registered here. `_Fork` and `clone` run no handlers, so they
//! are replaced. `vfork`, `posix_spawn`, `system` and `popen` share memory
//! until `exec` and need nothing.

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use quire_linux::real::Real;
use quire_vm::files;
use quire_vm::text::Unloading;

use crate::mappings::NO_FORK;
use crate::{MANAGER, frames, internal, set_errno};

type Handler = Option<unsafe extern "C" fn()>;
type Child = extern "C" fn(*mut c_void) -> c_int;
type Fork = unsafe extern "C" fn() -> libc::pid_t;
type Clone = unsafe extern "C" fn(
    Child,
    *mut c_void,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
) -> c_int;

unsafe extern "C" {
    fn __real_pthread_atfork(prepare: Handler, parent: Handler, child: Handler) -> c_int;
    fn __fork() -> libc::pid_t;
}

/// jemalloc's handlers: before, in the parent, in the child.
static ALLOCATOR: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
// SAFETY: this is the type of the C library's function.
static FORK: Real<Fork> = unsafe { Real::new(c"_Fork") };
// SAFETY: as for `_Fork`; its variable arguments are passed like fixed ones.
static CLONE: Real<Clone> = unsafe { Real::new(c"clone") };

/// Finds what the C library offers, before any fork.
pub fn start() {
    let _ = (FORK.get(), CLONE.get());
}

/// jemalloc registers its handlers when it starts; they are run from ours.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_pthread_atfork(
    prepare: Handler,
    parent: Handler,
    child: Handler,
) -> c_int {
    for (cell, handler) in ALLOCATOR.iter().zip([prepare, parent, child]) {
        let address = handler.map_or(0, |h| h as *const () as usize);
        cell.store(address, Ordering::Release);
    }
    // SAFETY: the handlers live as long as the library, which is never unloaded.
    unsafe { __real_pthread_atfork(Some(on_prepare), Some(on_parent), Some(on_child)) }
}

/// Whether a fork ran the handlers that are registered with the C library. Where it did
/// not, a child may find jemalloc's locks held by a thread that it does not have, and
/// nothing may be done in it that allocates.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Handlers {
    Ran,
    None,
}

fn run_allocator_handler(which: usize) {
    let address = ALLOCATOR[which].load(Ordering::Acquire);
    // SAFETY: the address is zero or that of a handler that jemalloc gave.
    if let Some(handler) = unsafe { std::mem::transmute::<usize, Handler>(address) } {
        // SAFETY: called at the moment for which it was registered.
        unsafe { handler() };
    }
}

unsafe extern "C" fn on_prepare() {
    // `fork` below has prepared already, unless the C library forks by itself;
    // then there is no way to refuse, and the child goes without.
    let _ = MANAGER.before_fork();
    run_allocator_handler(0);
    hold();
}

unsafe extern "C" fn on_parent() {
    release_held();
    run_allocator_handler(1);
    MANAGER.after_fork_parent();
}

unsafe extern "C" fn on_child() {
    renew(Handlers::Ran);
    run_allocator_handler(2);
}

fn hold() {
    frames::hold();
    files::hold();
    MANAGER.hold();
    internal::hold();
}

fn release_held() {
    internal::release_held();
    MANAGER.release_held();
    files::release_held();
    frames::release_held();
}

/// In the child, lets go of what [`hold`] took in the parent.
fn renew(handlers: Handlers) {
    internal::release_held();
    MANAGER.after_fork_child();
    files::release_held();
    frames::release_held();
    frames::after_fork_child(handlers == Handlers::Ran);
    Unloading::after_fork_child();
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fork() -> libc::pid_t {
    if MANAGER.before_fork().is_err() {
        set_errno(NO_FORK);
        return -1;
    }
    // SAFETY: the C library's own fork, which runs the handlers above.
    unsafe { __fork() }
}

/// Does what the handlers do, except for jemalloc, around a fork that runs no
/// handlers.
pub fn fork_bare<T: Copy + PartialOrd + From<i32>>(fork: impl FnOnce() -> T) -> Option<T> {
    if MANAGER.before_fork().is_err() {
        return None;
    }
    hold();
    let child = fork();
    if child == T::from(0) {
        renew(Handlers::None);
    } else {
        release_held();
        MANAGER.after_fork_parent();
    }
    Some(child)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _Fork() -> libc::pid_t {
    // SAFETY: the caller forks.
    let child = FORK.get().and_then(|real| fork_bare(|| unsafe { real() }));
    child.unwrap_or_else(|| {
        set_errno(NO_FORK);
        -1
    })
}

/// What the child of `clone` runs first.
struct Start {
    main: Child,
    argument: *mut c_void,
}

extern "C" fn start_child(start: *mut c_void) -> c_int {
    renew(Handlers::None);
    let start: *const Start = start.cast();
    // SAFETY: the child has a copy of the stack that `clone` below left the
    // structure on, and reads it before anything else.
    let Start { main, argument } = unsafe { start.read() };
    main(argument)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn clone(
    main: Child,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_id: *mut c_void,
    tls: *mut c_void,
    child_id: *mut c_void,
) -> c_int {
    let Some(real) = CLONE.known() else {
        return -1;
    };
    if flags & libc::CLONE_VM != 0 {
        // SAFETY: passed on as it came.
        return unsafe { real(main, stack, flags, argument, parent_id, tls, child_id) };
    }
    if MANAGER.before_fork().is_err() {
        set_errno(NO_FORK);
        return -1;
    }
    let start = Start { main, argument };
    let first = (&raw const start).cast_mut().cast();
    hold();
    // SAFETY: the child starts in `start_child` on the stack that the caller
    // gave, and finds `start` in its copy of this one.
    let child = unsafe { real(start_child, stack, flags, first, parent_id, tls, child_id) };
    release_held();
    MANAGER.after_fork_parent();
    child
}

/// Whether a `clone` by number makes a process with memory of its own.
pub fn makes_copy(flags: c_ulong) -> bool {
    flags & libc::CLONE_VM as c_ulong == 0
}
