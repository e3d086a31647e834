//! Stacks: that of the process, which the kernel makes and lets grow, and those of
//! threads, which the C library maps by calls of its own.
//!
//! A thread that the program starts begins here: it places its own stack, and jumps to
//! what it was started for, so that nothing of this library is on its stack when it ends
//! in whatever way. The C library keeps the stack of a thread that has ended, for the
//! next one, or unmaps it. Neither is seen here, and neither needs to be: what is mapped
//! there later is placed or forgotten, and in a child stacks are not served again.
//!
//! Stacks that the program gives to its threads are memory of another kind. Threads of
//! this library have no strategy: they work when nobody may wait for one.

use std::alloc::{Layout, alloc, dealloc};
use std::arch::naked_asm;
use std::ffi::{c_int, c_void};
use std::ops::ControlFlow;
use std::ptr;
use std::sync::OnceLock;

use quire_core::frames::config::FrameConfig;
use quire_core::units::{AddrRange, Bytes, VirtAddr};
use quire_linux::real::Real;
use quire_linux::sysinfo::maps::{Mapping, Reader};
use quire_linux::thread;
use quire_vm::frames;

use super::statics::{self, Object};
use super::{Kind, choice, wanted};
use crate::{mappings, set_errno};

/// What a thread is started for: by POSIX, or by C11 with another result.
type Routine = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type Attributes = *const libc::pthread_attr_t;
type Create = unsafe extern "C" fn(*mut libc::pthread_t, Attributes, Routine, *mut c_void) -> c_int;
type CreateC11 = unsafe extern "C" fn(*mut libc::pthread_t, Routine, *mut c_void) -> c_int;

// SAFETY: this is the type of the C library's function.
static CREATE: Real<Create> = unsafe { Real::new(c"pthread_create") };
// SAFETY: as for `pthread_create`; the types of results differ, and nothing looks at them.
static CREATE_C11: Real<CreateC11> = unsafe { Real::new(c"thrd_create") };

/// `thrd_error`.
const C11_ERROR: c_int = 2;

/// Where this library lies, by which its own threads are known.
static OWN: OnceLock<AddrRange> = OnceLock::new();

/// Makes ready for stacks, before any thread is started: finds out how threads of this
/// library are known.
pub fn prepare_for(config: &FrameConfig) {
    if is_wanted(config) {
        frames::claim_stacks();
    }
    let here = VirtAddr(prepare_for as *const () as u64);
    let own = statics::loaded()
        .into_iter()
        .find(|object| object.holds(here));
    if let Some(Object { whole, .. }) = own {
        let _ = OWN.set(whole);
    }
}

/// Whether a stack can have a strategy.
fn is_wanted(config: &FrameConfig) -> bool {
    let number = choice::number_of(config, Kind::Stack);
    choice::which(config, number).is_some() || choice::names_addresses(config)
}

fn is_own(routine: usize) -> Option<bool> {
    let at = AddrRange::new(VirtAddr(routine as u64), Bytes(1));
    OWN.get().map(|own| own.contains(at))
}

/// Places the stack of the process, with all that it may grow to; pages that are there
/// stay.
pub fn place_main(config: &FrameConfig) {
    let Some((mapped, below)) = find_main() else {
        return;
    };
    let limit = thread::soft_limit(libc::RLIMIT_STACK);
    let lowest = VirtAddr(mapped.end.0.saturating_sub(limit)).page_floor();
    let whole = AddrRange {
        start: lowest.max(below).min(mapped.start),
        end: mapped.end,
    };
    let number = choice::number_of(config, Kind::Stack);
    let mut placed = false;
    for (part, which) in choice::parts(config, whole, number) {
        frames::enter(part, which, frames::Kind::Growing);
        placed = true;
    }
    if placed {
        frames::serve(mapped);
    }
}

/// Where the stack of the process is mapped, and where the mapping below it ends. One that
/// can be executed cannot be given frames.
fn find_main() -> Option<(AddrRange, VirtAddr)> {
    let (mut found, mut below) = (None, VirtAddr(0));
    let mut reader = Reader::default();
    let look = |mapping: Mapping, name: &str| {
        if name == "[stack]" {
            let plain = mapping.prot == libc::PROT_READ | libc::PROT_WRITE;
            found = plain.then_some((mapping.range, below));
            return ControlFlow::Break(());
        }
        below = mapping.range.end;
        ControlFlow::Continue(())
    };
    let listed = quire_vm::apart(|| reader.own(look));
    listed.ok().and(found)
}

/// What a thread begins with.
#[repr(C)]
struct Start {
    routine: Routine,
    argument: *mut c_void,
}

/// Starts a thread by `create`, which is given what it begins with.
fn start_by(
    routine: Routine,
    argument: *mut c_void,
    create: impl Fn(Routine, *mut c_void) -> c_int,
) -> c_int {
    let Some(own) = wanted().and_then(|_| is_own(routine as usize)) else {
        return create(routine, argument);
    };
    if !own && mappings::may_start_thread() {
        super::start();
    }
    let layout = Layout::new::<Start>();
    // SAFETY: the layout has a size.
    let start: *mut Start = unsafe { alloc(layout) }.cast();
    if start.is_null() {
        return create(routine, argument);
    }
    // SAFETY: the block was just made for this.
    unsafe { start.write(Start { routine, argument }) };
    let result = create(begin, start.cast());
    if result != 0 {
        // SAFETY: no thread was started that would use it.
        unsafe { dealloc(start.cast(), layout) };
    }
    result
}

/// Where a thread begins: with its stack, and then what it was started for, as if it had
/// begun there.
#[unsafe(naked)]
unsafe extern "C" fn begin(start: *mut c_void) -> *mut c_void {
    naked_asm!(
        "sub rsp, 8",
        "call {prepare}",
        "add rsp, 8",
        "mov rdi, rdx",
        "jmp rax",
        prepare = sym prepare,
    )
}

unsafe extern "C" fn prepare(start: *mut Start) -> Start {
    // SAFETY: `start_by` wrote it for this thread alone, which was given it.
    let begun = unsafe { start.read() };
    // SAFETY: as before; it was allocated with this layout.
    unsafe { dealloc(start.cast(), Layout::new::<Start>()) };
    if is_own(begun.routine as usize) == Some(false) {
        place_own();
    } else {
        frames::leave_own_stack();
    }
    begun
}

/// Places the stack of the calling thread.
fn place_own() {
    let Some(config) = wanted() else { return };
    if !is_wanted(config) || !frames::is_on() {
        return;
    }
    let number = choice::number_of(config, Kind::Stack);
    // SAFETY: the C library gives the address of this thread's own variable.
    let errno = unsafe { *libc::__errno_location() };
    if let Some(stack) = own_stack() {
        for (part, which) in choice::parts(config, stack, number) {
            frames::enter(part, which, frames::Kind::Stack);
            frames::serve(part);
        }
    }
    set_errno(quire_vm::Errno(errno));
}

/// Where the calling thread's stack lies, which the C library made.
fn own_stack() -> Option<AddrRange> {
    let mut about = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: the C library fills in the attributes, and what it allocates for them is
    // given back below.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), about.as_mut_ptr()) != 0 {
            return None;
        }
        let stack = stack_of(about.as_ptr());
        libc::pthread_attr_destroy(about.as_mut_ptr());
        stack.filter(|stack| stack.start.is_page_aligned() && stack.end.is_page_aligned())
    }
}

/// The stack in a thread's attributes; nothing where they name none.
///
/// # Safety
/// The attributes must be null or initialised.
unsafe fn stack_of(attributes: Attributes) -> Option<AddrRange> {
    if attributes.is_null() {
        return None;
    }
    let (mut at, mut size) = (ptr::null_mut(), 0);
    // SAFETY: the caller vouches for the attributes.
    let told = unsafe { libc::pthread_attr_getstack(attributes, &raw mut at, &raw mut size) } == 0;
    let stack = AddrRange {
        start: VirtAddr(at as u64),
        // One that is not named is said to end at zero.
        end: VirtAddr((at as u64).wrapping_add(size as u64)),
    };
    (told && !stack.is_empty()).then_some(stack)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: Attributes,
    routine: Routine,
    argument: *mut c_void,
) -> c_int {
    let Some(real) = CREATE.get() else {
        return libc::EAGAIN;
    };
    mappings::start_late();
    // SAFETY: passed on as it came.
    let create = |routine, argument| unsafe { real(thread, attributes, routine, argument) };
    // SAFETY: the program passes attributes as the function takes them.
    match unsafe { stack_of(attributes) } {
        Some(_) => create(routine, argument),
        None => start_by(routine, argument, create),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn thrd_create(
    thread: *mut libc::pthread_t,
    routine: Routine,
    argument: *mut c_void,
) -> c_int {
    let Some(real) = CREATE_C11.get() else {
        return C11_ERROR;
    };
    // SAFETY: passed on as it came.
    let create = |routine, argument| unsafe { real(thread, routine, argument) };
    start_by(routine, argument, create)
}
