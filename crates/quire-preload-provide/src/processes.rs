//! Making processes.
//!
//! Whatever way the program forks, three things happen in this order: managed
//! memory is made private ([`quire_vm::Manager::before_fork`]), the locks of an
//! allocator in this library are taken, the manager's lock is taken; and afterwards
//! the reverse. The order is that of a thread inside `malloc`, which may hold the
//! allocator's locks when it needs the manager's.
//!
//! `fork` and all that the C library builds on it (`daemon`, `forkpty`) run
//! the handlers registered here. `_Fork` and `clone` run no handlers, so they
//! are replaced. `vfork`, `posix_spawn`, `system` and `popen` share memory
//! until `exec` and need nothing.

use std::ffi::{c_int, c_ulong, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use quire_linux::real::Real;
use quire_linux::thread;
use quire_vm::files;
use quire_vm::text::Unloading;

use crate::mappings::NO_FORK;
use crate::{MANAGER, allocator, frames, internal, set_errno};

type Handler = Option<unsafe extern "C" fn()>;
type Child = extern "C" fn(*mut c_void) -> c_int;
type Fork = unsafe extern "C" fn() -> libc::pid_t;
type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;
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
    fn __fork() -> libc::pid_t;
}

// SAFETY: this is the type of the C library's function.
static FORK: Real<Fork> = unsafe { Real::new(c"_Fork") };
// SAFETY: as for `_Fork`.
static REGISTER: Real<Register> = unsafe { Real::new(c"__register_atfork") };
// SAFETY: as for `_Fork`; its variable arguments are passed like fixed ones.
static CLONE: Real<Clone> = unsafe { Real::new(c"clone") };

/// The process whose memory this is.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Whether the calling thread is a process of its own that has this memory until it executes a program: a child of
/// `vfork`.
pub fn is_borrowed() -> bool {
    OWNER.load(Ordering::Relaxed) != thread::process_id()
}

/// Finds what the C library offers, and registers the handlers, before any fork.
pub fn start() {
    OWNER.store(thread::process_id(), Ordering::Relaxed);
    let _ = (FORK.get(), CLONE.get());
    register();
}

/// What a library registers by `pthread_atfork`, which is a part of that library and calls this. Handlers run around
/// those that were registered later, so the ones of this library must be the first: they hold locks that the others
/// may need, when they map memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn __register_atfork(
    prepare: Handler,
    parent: Handler,
    child: Handler,
    library: *mut c_void,
) -> c_int {
    register();
    // SAFETY: passed on as it came.
    REGISTER.get().map_or(libc::ENOMEM, |real| unsafe {
        real(prepare, parent, child, library)
    })
}

/// Registers the handlers of this library, once.
fn register() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, Ordering::AcqRel)
        && let Some(real) = REGISTER.get()
    {
        // Where there is no memory for that, children find the manager as it was.
        // SAFETY: the handlers live as long as the library, which is never unloaded.
        let _ = unsafe {
            real(
                Some(on_prepare),
                Some(on_parent),
                Some(on_child),
                ptr::null_mut(),
            )
        };
    }
}

/// Whether a fork ran the handlers that are registered with the C library. Where it did
/// not, a child may find an allocator's locks held by a thread that it does not have, and
/// nothing may be done in it that allocates.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Handlers {
    Ran,
    None,
}

unsafe extern "C" fn on_prepare() {
    // `fork` below has prepared already, unless the C library forks by itself;
    // then there is no way to refuse, and the child goes without.
    let _ = MANAGER.before_fork();
    if let Some(allocator) = allocator::get() {
        allocator.hold();
    }
    hold();
}

unsafe extern "C" fn on_parent() {
    release_held();
    if let Some(allocator) = allocator::get() {
        allocator.release_held();
    }
    MANAGER.after_fork_parent();
}

unsafe extern "C" fn on_child() {
    renew(Handlers::Ran);
    if let Some(allocator) = allocator::get() {
        allocator.renew();
    }
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
    OWNER.store(thread::process_id(), Ordering::Relaxed);
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

/// Does what the handlers do, except for an allocator, around a fork that runs no
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
    // SAFETY: the caller gives a stack for the child.
    unsafe { touch_top(stack) };
    hold();
    // SAFETY: the child starts in `start_child` on the stack that the caller
    // gave, and finds `start` in its copy of this one.
    let child = unsafe { real(start_child, stack, flags, first, parent_id, tls, child_id) };
    release_held();
    MANAGER.after_fork_parent();
    child
}

/// The real `clone` writes to the child's stack before it forks. A fault there would wait for a thread that needs
/// the locks which are held then, so what is written is touched before.
///
/// # Safety
/// `stack` is null, or the end of a stack with room for what `clone` writes.
unsafe fn touch_top(stack: *mut c_void) {
    const WRITTEN: usize = 16;
    let aligned = stack as usize & !(WRITTEN - 1);
    if aligned != 0 {
        let top = stack
            .with_addr(aligned)
            .wrapping_byte_sub(WRITTEN)
            .cast::<usize>();
        // SAFETY: `clone` writes here next, so the caller lets it.
        unsafe { top.write_volatile(0) };
    }
}

/// Whether a `clone` by number makes a process with memory of its own.
pub fn makes_copy(flags: c_ulong) -> bool {
    flags & libc::CLONE_VM as c_ulong == 0
}
