//! Waiting for children that raise no signal when they end: `waitpid`, `wait3`, `wait4` and `waitid`
//! with `__WALL` or `__WCLONE`. The revoker (`quire_linux::revoker`) is such a child, and the program
//! has not made it: it is passed over, and where there is no other, there are no children.
//!
//! Programs wait in signal handlers, too: nothing is allocated here, and there is no lock.

use std::ffi::{CStr, c_int, c_long, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

use quire_linux::revoker;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{CWD, Mode, OFlags, RawDir, openat};

use crate::real::Real;
use crate::trouble::set_errno;

type Waitpid = unsafe extern "C-unwind" fn(c_int, *mut c_int, c_int) -> c_int;
type Wait3 = unsafe extern "C-unwind" fn(*mut c_int, c_int, *mut libc::rusage) -> c_int;
type Wait4 = unsafe extern "C-unwind" fn(c_int, *mut c_int, c_int, *mut libc::rusage) -> c_int;
type Waitid =
    unsafe extern "C-unwind" fn(libc::idtype_t, libc::id_t, *mut libc::siginfo_t, c_int) -> c_int;
type Ptrace = unsafe extern "C" fn(c_int, *mut c_void, *mut c_void, *mut c_void) -> c_long;

// Threads are cancelled in these calls, which unwinds them.
// SAFETY: the types of the C library's functions, here and below.
static WAITPID: Real<Waitpid> = unsafe { Real::new(c"waitpid") };
// SAFETY: as above.
static WAIT3: Real<Wait3> = unsafe { Real::new(c"wait3") };
// SAFETY: as above.
static WAIT4: Real<Wait4> = unsafe { Real::new(c"wait4") };
// SAFETY: as above.
static WAITID: Real<Waitid> = unsafe { Real::new(c"waitid") };
// SAFETY: as above; its last three arguments, which may be missing, are passed like any others.
static PTRACE: Real<Ptrace> = unsafe { Real::new(c"ptrace") };

/// Whether the program has asked to trace others, who need not be its children.
static TRACES: AtomicBool = AtomicBool::new(false);

/// Children of all kinds, or those that raise no signal.
const KINDS: c_int = libc::__WALL | libc::__WCLONE;

/// Looks up the functions behind these.
pub fn start() {
    let (_, _, _) = (WAITPID.get(), WAIT3.get(), WAIT4.get());
    let (_, _) = (WAITID.get(), PTRACE.get());
}

/// Whether a revoker may be what is waited for, among others. It is no child of the program's threads.
fn may_find_revoker(options: c_int) -> bool {
    options & KINDS != 0 && options & libc::__WNOTHREAD == 0 && revoker::is_any()
}

/// Waits for any child but a revoker. `wait` returns a child's number, 0 where none is to be told of
/// yet, or -1.
fn beside_revoker(options: c_int, mut wait: impl FnMut() -> c_int) -> c_int {
    loop {
        if may_find_revoker(options) && !has_other(options) {
            set_errno(libc::ECHILD);
            return -1;
        }
        let found = wait();
        let is_revoker =
            u32::try_from(found).is_ok_and(|child| child > 0 && revoker::is_revoker(child));
        if !is_revoker {
            return found;
        }
    }
}

/// Whether somebody else can be waited for. In doubt there is somebody, as without a revoker.
fn has_other(options: c_int) -> bool {
    if TRACES.load(Ordering::Relaxed) {
        return true;
    }
    any_child(|child| !revoker::is_revoker(child) && can_be_waited_for(child, options))
        .unwrap_or(true)
}

/// Whether a child is of the kind that is waited for, and not reaped.
fn can_be_waited_for(child: u32, options: c_int) -> bool {
    let Some(real) = WAITID.get() else {
        return true;
    };
    let any = libc::WEXITED | libc::WSTOPPED | libc::WCONTINUED;
    let options = any | libc::WNOHANG | libc::WNOWAIT | (options & KINDS);
    let mut info = MaybeUninit::uninit();
    // SAFETY: there is room for what is told, and nobody is reaped.
    unsafe { real(libc::P_PID, child, info.as_mut_ptr(), options) == 0 }
}

/// Whether something holds for any child of this process; nothing where the system does not tell
/// who they are.
fn any_child(mut holds: impl FnMut(u32) -> bool) -> Option<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let tasks = openat(CWD, c"/proc/self/task", flags, Mode::empty()).ok()?;
    let mut buffer = [MaybeUninit::uninit(); 2048];
    let mut threads = RawDir::new(&tasks, &mut buffer);
    while let Some(thread) = threads.next() {
        let thread = thread.ok()?;
        let name = thread.file_name();
        if !name.to_bytes().starts_with(b".") && any_child_of(tasks.as_fd(), name, &mut holds)? {
            return Some(true);
        }
    }
    Some(false)
}

/// The same for children of a thread; one that has ended has none.
fn any_child_of(
    tasks: BorrowedFd<'_>,
    thread: &CStr,
    holds: &mut impl FnMut(u32) -> bool,
) -> Option<bool> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(thread) = openat(tasks, thread, directory, Mode::empty()) else {
        return Some(false);
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let children = openat(thread, c"children", flags, Mode::empty()).ok()?;
    let (mut buffer, mut number) = ([0; 512], 0);
    loop {
        let bytes = match rustix::io::read(&children, &mut buffer) {
            Ok(0) => return Some(false),
            Ok(len) => &buffer[..len],
            // It has ended since.
            Err(rustix::io::Errno::SRCH) => return Some(false),
            Err(_) => return None,
        };
        for byte in bytes {
            match byte {
                b'0'..=b'9' => number = number * 10 + u32::from(byte - b'0'),
                _ if number > 0 && holds(std::mem::take(&mut number)) => return Some(true),
                _ => number = 0,
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn waitpid(child: c_int, status: *mut c_int, options: c_int) -> c_int {
    let Some(real) = WAITPID.known() else {
        return -1;
    };
    // SAFETY: passed on as it came.
    let wait = || unsafe { real(child, status, options) };
    match child {
        -1 => beside_revoker(options, wait),
        _ => wait(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn wait3(
    status: *mut c_int,
    options: c_int,
    used: *mut libc::rusage,
) -> c_int {
    match WAIT3.known() {
        // SAFETY: passed on as it came.
        Some(real) => beside_revoker(options, || unsafe { real(status, options, used) }),
        None => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn wait4(
    child: c_int,
    status: *mut c_int,
    options: c_int,
    used: *mut libc::rusage,
) -> c_int {
    let Some(real) = WAIT4.known() else {
        return -1;
    };
    // SAFETY: passed on as it came.
    let wait = || unsafe { real(child, status, options, used) };
    match child {
        -1 => beside_revoker(options, wait),
        _ => wait(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn waitid(
    which: libc::idtype_t,
    number: libc::id_t,
    told: *mut libc::siginfo_t,
    options: c_int,
) -> c_int {
    let Some(real) = WAITID.known() else {
        return -1;
    };
    if which != libc::P_ALL || !may_find_revoker(options) {
        // SAFETY: passed on as it came.
        return unsafe { real(which, number, told, options) };
    }
    let mut found = MaybeUninit::<libc::siginfo_t>::zeroed();
    let done = beside_revoker(options, || {
        // SAFETY: there is room for what is told. Where nobody is, it stays zero or becomes so, and
        // zeros are a value of this type.
        unsafe {
            match real(which, number, found.as_mut_ptr(), options) {
                0 => reaped(found.assume_init_ref().si_pid(), options),
                failed => failed,
            }
        }
    });
    if done >= 0 && !told.is_null() {
        // SAFETY: the program gives room for the structure, which was filled or is zero.
        unsafe { told.write(found.assume_init()) };
    }
    done.min(0)
}

/// A child was found. A revoker that has ended must not be found again.
fn reaped(child: c_int, options: c_int) -> c_int {
    if options & libc::WNOWAIT != 0 && revoker::is_revoker(child.unsigned_abs()) {
        let mut info = MaybeUninit::uninit();
        let options = libc::WEXITED | libc::WNOHANG | libc::__WALL;
        // SAFETY: there is room for what is told.
        WAITID.get().map(|real| unsafe {
            real(
                libc::P_PID,
                child.unsigned_abs(),
                info.as_mut_ptr(),
                options,
            )
        });
    }
    child
}

/// In C it takes any number of arguments. Those that the program may have passed lie where these do.
#[unsafe(no_mangle)]
unsafe extern "C" fn ptrace(
    request: c_int,
    process: *mut c_void,
    address: *mut c_void,
    data: *mut c_void,
) -> c_long {
    if request.unsigned_abs() != libc::PTRACE_TRACEME {
        TRACES.store(true, Ordering::Relaxed);
    }
    match PTRACE.known() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(request, process, address, data) },
        None => -1,
    }
}
