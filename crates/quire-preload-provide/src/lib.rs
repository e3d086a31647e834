//! `libquire_provide.so`: Quire for unmodified programs.
//!
//! Loaded by `LD_PRELOAD`, it takes the place of the C library's allocator and
//! of the calls that change mappings and make processes. Each of them does
//! what it does without Quire; for memory that is managed, the manager of
//! `quire-vm` carries it out.
//!
//! | module | replaces |
//! |---|---|
//! | `heap` | `malloc` and its relatives, by jemalloc on managed memory |
//! | `mappings` | `mmap`, `munmap`, `mremap`, `madvise`, `mprotect`, `mlock`, `mlockall`, `prctl` |
//! | `frames` | `pthread_create` and `thrd_create`; it says which memory gets its frames by strategy |
//! | `plugins` | nothing: it has the plug-ins among the strategies |
//! | `faults` | `ioctl`, for a `userfaultfd` of the program's own |
//! | `capi` | nothing: it has the C interface, `quire.h` |
//! | `beside` | nothing: it answers what `libquire_dsm.so` asks |
//! | `align` | nothing: it says where mappings begin, for `mappings` |
//! | `processes` | `fork`, `_Fork`, `clone`, and the order of fork handlers |
//! | `leaving` | `pthread_exit` and `thrd_exit` of the first thread |
//! | `files` | `open` and its relatives, which it passes on |
//! | `shared` | `shmat`, and the part of `mmap` that is about shared memory and files |
//! | `text` | `dlclose`, which must not come between while text is moved |
//! | `syscalls` | `syscall`, for programs that make those calls by number, and futexes |
//! | `internal` | the allocator of this library itself |
//!
//! A process that never asks for much is left alone: it gets the allocator,
//! and nothing else is set up (see `quire_vm::manager::WORTHWHILE`).

mod align;
mod beside;
mod capi;
mod faults;
mod files;
mod frames;
mod heap;
mod internal;
mod leaving;
mod mappings;
mod plugins;
mod processes;
mod shared;
mod small;
mod syscalls;
mod text;

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

extern "C" fn start() {
    let get = |name: &str| std::env::var(name).ok();
    // A value that cannot be read is `quire run`'s business to refuse; here
    // the program must go on.
    let config = Config::from_env(get).unwrap_or(Config {
        policy: Policy::Base,
        ..Config::default()
    });
    let ahead = config.ahead > Bytes::ZERO;
    let text = config.text && config.policy != Policy::Base;
    MANAGER.configure(config);
    frames::configure(FrameConfig::from_env(get).unwrap_or_default());
    processes::start();
    leaving::start();
    files::start();
    heap::start();
    frames::start();
    text::start(text);
    if ahead {
        heap::start_early();
    }
}

extern "C" fn finish() {
    MANAGER.share_final();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;
