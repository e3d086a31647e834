//! What `libquire_provide.so` and `libquire_provide_jemalloc.so` share: Quire for
//! unmodified programs. Each of the two is a crate of its own, which calls [`start`]
//! and [`finish`]; the latter library brings an allocator along.
//!
//! Loaded by `LD_PRELOAD`, such a library takes the place of the calls that change
//! mappings and make processes. Each of them does what it does without Quire; for
//! memory that is managed, the manager of `quire-vm` carries it out.
//!
//! | module | replaces |
//! |---|---|
//! | [`allocator`] | nothing: it is what an allocator in the library needs |
//! | `mappings` | `mmap`, `munmap`, `mremap`, `madvise`, `mprotect`, `mlock`, `mlockall`, `prctl` |
//! | `frames` | `pthread_create` and `thrd_create`; it says which memory gets its frames by strategy |
//! | `plugins` | nothing: it has the plug-ins among the strategies |
//! | `faults` | `ioctl`, for a `userfaultfd` of the program's own |
//! | `addresses` | `mseal`, `mincore`, `process_madvise`, `remap_file_pages` |
//! | `capi` | nothing: it has the C interface, `quire.h` |
//! | `beside` | nothing: it answers what `libquire_dsm.so` and `libquire.so` ask |
//! | `align` | nothing: it says where mappings begin, for `mappings` |
//! | `processes` | `fork`, `_Fork`, `clone`, and the order of fork handlers (`__register_atfork`) |
//! | `users` | `setuid` and its relatives, which it passes on |
//! | `files` | `open` and its relatives, which it passes on |
//! | `reading` | `read` and its relatives, which it passes on |
//! | `shared` | `shmat`, and the part of `mmap` that is about shared memory and files |
//! | `text` | `dlclose`, which must not come between while text is moved |
//! | `syscalls` | `syscall`, for programs that make those calls by number, and futexes |
//! | `internal` | the allocator of this library itself |
//!
//! A process that never asks for much is left alone: nothing is set up for it
//! (see `quire_vm::manager::WORTHWHILE`).

mod addresses;
mod align;
pub mod allocator;
mod beside;
mod capi;
mod faults;
mod files;
mod frames;
mod internal;
mod mappings;
mod plugins;
mod processes;
mod reading;
mod shared;
mod small;
mod syscalls;
mod text;
mod users;

use allocator::Allocator;
use quire_core::config::{Config, Policy};
use quire_core::frames::config::FrameConfig;
use quire_core::units::Bytes;
use quire_vm::Manager;

pub(crate) static MANAGER: Manager = Manager::new();

#[global_allocator]
static INTERNAL: internal::InternalAllocator = internal::InternalAllocator;

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(errno: quire_vm::Errno) {
    // SAFETY: the C library gives the address of this thread's own variable.
    unsafe { *libc::__errno_location() = errno.0 };
}

/// Reads the settings and makes ready. A library calls it when it is loaded, with the
/// allocator that it brings along.
pub fn start(ours: Option<&'static dyn Allocator>) {
    let get = |name: &str| std::env::var(name).ok();
    // A value that cannot be read is `quire run`'s business to refuse; here
    // the program must go on.
    let config = Config::from_env(get).unwrap_or(Config {
        policy: Policy::Base,
        ..Config::default()
    });
    let ahead = config.ahead > Bytes::ZERO;
    let text = config.text && config.policy != Policy::Base;
    quire_vm::allocates_apart();
    MANAGER.configure(config);
    frames::configure(FrameConfig::from_env(get).unwrap_or_default());
    processes::start();
    files::start();
    reading::start();
    allocator::set(ours);
    frames::start();
    text::start(text);
    if ahead {
        allocator::begin();
    }
}

/// The process ends: the statistics are brought up to date.
pub fn finish() {
    MANAGER.share_final();
}
