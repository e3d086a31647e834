//! Forks, and the end of the process.
//!
//! A child does not inherit mappings of objects: nobody would answer for its memory. So it
//! opens the objects anew, over a link of its own, and maps them at the same addresses, in the
//! handler that the C library runs before `fork` returns. There `malloc` and threads work, as
//! the GNU C library promises even in a child of a program with threads. Who forks by bare
//! system calls, or by `_Fork`, gets children without these mappings.
//!
//! What was removed goes with the last that has it open, and a parent may have ended before its child has
//! opened anything, as one does whose child is to be a daemon. So servers are told before that a child comes, and by
//! the child that it is there.
//!
//! What a process has written must be given back when it ends. `exit` runs the library's last
//! function; `_exit` runs nothing, so it is replaced, and so is `daemon`, which ends the parent. A
//! process that is killed, or that executes another program, loses what it wrote since it was last
//! given back.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use crate::ending;
use crate::host::{At, Placed, Wanted, Works};
use crate::mappings;
use crate::real::Real;
use crate::state::{self, Mapped, State};
use crate::trouble::Result;

type Exit = unsafe extern "C" fn(c_int) -> !;

type Daemon = unsafe extern "C" fn(c_int, c_int) -> c_int;

// SAFETY: the type of the C library's function.
static EXIT: Real<Exit> = unsafe { Real::new(c"_exit") };
// SAFETY: as above.
static DAEMON: Real<Daemon> = unsafe { Real::new(c"daemon") };

/// The process that the mappings are of. A child of `vfork` runs in its parent's memory, and
/// must not end for it.
static PROCESS: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> c_int;
    fn at_quick_exit(last: extern "C" fn()) -> c_int;
}

/// Looks up the functions behind these, and registers what is done at forks, behind what the
/// allocator has registered: its locks must be free again when a child comes here.
pub fn start() {
    let (_, _) = (EXIT.get(), DAEMON.get());
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    if state::is_active() {
        drop(Box::new(0u64));
        // SAFETY: the handlers live as long as the library, which is never unloaded.
        unsafe {
            pthread_atfork(Some(prepare), Some(parent), Some(child));
            at_quick_exit(give_back);
        }
    }
}

unsafe extern "C" fn prepare() {
    state::hold(State::tell_of_child);
}

unsafe extern "C" fn parent() {
    state::release(|_| ());
}

unsafe extern "C" fn child() {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    state::release(renew);
}

/// Maps all anew.
fn renew(state: &mut State) {
    state.forget_host();
    let apart = drop_apart(state);
    let held = state.held();
    if state.mapped.is_empty() && held.is_empty() {
        return;
    }
    // First of all, so that nothing else comes to lie there.
    for (start, mapped) in &state.mapped {
        mappings::blank(&(*start..start + mapped.len));
    }
    let free: Vec<Free> = apart.into_iter().filter_map(Free::keep).collect();
    let open = state.known.clone();
    // Without the thread, nothing below can be had either, and touches fail.
    let _ = state.run(move |works| works.inherit(open));
    for (entry, file) in held {
        // What cannot be had is said when it is to be mapped.
        let _ = state.run(move |works| works.hold(entry, file));
    }
    for (start, mut mapped) in std::mem::take(&mut state.mapped) {
        // What cannot be had was logged. Touches fail.
        if let Ok(placed) = map_again(state, start, &mapped) {
            (mapped.number, mapped.addresses) = (placed.number, placed.addresses);
            state.mapped.insert(start, mapped);
        }
    }
    // Otherwise servers wait for some leases.
    let _ = state.run(Works::child_came);
    drop(free);
    state.tell();
}

/// What the program has kept from its children is not mapped here. The addresses of a mapping that
/// is kept as a whole are free: which those are.
fn drop_apart(state: &mut State) -> Vec<Range<u64>> {
    let mut free = Vec::new();
    state.mapped.retain(|start, mapped| {
        mapped.pieces.drop_apart();
        if mapped.pieces.is_empty() {
            free.push(*start..start + mapped.len);
        }
        !mapped.pieces.is_empty()
    });
    state.tell();
    free
}

/// Addresses that are to be free when all is mapped anew: until then nothing of this library's comes to
/// lie there, such as a thread's stack for signals.
struct Free {
    start: *mut c_void,
    len: usize,
}

impl Free {
    /// Keeps them, unless somebody else was faster.
    fn keep(range: Range<u64>) -> Option<Free> {
        let (start, len) = (
            range.start as *mut c_void,
            (range.end - range.start) as usize,
        );
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE | MapFlags::NORESERVE;
        // SAFETY: it is new memory, where nothing is.
        let kept = unsafe { rustix::mm::mmap_anonymous(start, len, ProtFlags::empty(), flags) };
        kept.is_ok().then_some(Free { start, len })
    }
}

impl Drop for Free {
    fn drop(&mut self) {
        // SAFETY: it was mapped for this alone, and nobody else knows it.
        let _ = unsafe { rustix::mm::munmap(self.start, self.len) };
    }
}

/// Maps one anew.
fn map_again(state: &mut State, start: u64, mapped: &Mapped) -> Result<Placed> {
    let wanted = Wanted {
        entry: mapped.entry,
        offset: mapped.offset,
        len: mapped.len,
        at: At::Over(start),
        write: false,
    };
    let placed = state.run(move |works| works.map(wanted))?;
    let addresses = placed.addresses.clone();
    let _steady = addresses.steady();
    let mut at = start;
    for (piece, rules) in mapped.pieces.iter() {
        if at < piece.start {
            mappings::blank(&(at..piece.start));
        }
        mappings::protect_now(&piece, rules.protection);
        at = piece.end;
    }
    let end = start + mapped.len;
    if at < end {
        mappings::blank(&(at..end));
    }
    Ok(placed)
}

/// The process ends: what was written goes to the servers.
pub extern "C" fn give_back() {
    if PROCESS.load(Ordering::Relaxed) == std::process::id() {
        ending::finish();
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _exit(code: c_int) -> ! {
    give_back();
    if let Some(real) = EXIT.known() {
        // SAFETY: passed on as it came.
        unsafe { real(code) };
    }
    std::process::abort()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _Exit(code: c_int) -> ! {
    // SAFETY: the same function by another name.
    unsafe { _exit(code) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn daemon(keep_directory: c_int, keep_streams: c_int) -> c_int {
    state::locked(|state| {
        if !state.mapped.is_empty() {
            // What goes wrong is logged.
            let _ = state.run(Works::flush_all);
        }
    });
    match DAEMON.known() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(keep_directory, keep_streams) },
        None => -1,
    }
}
