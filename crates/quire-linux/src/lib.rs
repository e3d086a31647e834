//! Thin, typed wrappers of the Linux facilities that Quire stands on.
//!
//! Everything here that the manager calls in a signal handler, in a fork
//! handler or under the allocator is a bare system call: it takes no lock,
//! allocates nothing and leaves `errno` alone. The modules under [`sysinfo`]
//! read `/proc` and `/sys` with the standard library and are for the pager
//! thread and the command line.

mod arch;
pub mod block;
pub mod block_lists;
pub mod control;
pub mod damon;
pub mod execution;
pub mod frame_map;
pub mod futex;
pub mod huge_file;
pub mod left;
pub mod lone_thread;
pub mod memory;
mod noted;
pub mod own_threads;
pub mod pagemap;
pub mod plugin;
pub mod pmu;
#[cfg(target_arch = "x86_64")]
pub mod ptrace;
pub mod raw;
pub mod ready;
pub mod real;
pub mod registry;
pub mod remote;
pub mod restartable;
pub mod revoker;
pub mod rights;
pub mod scheduling;
pub mod slabs;
pub mod socket;
pub mod spawn;
#[cfg(target_arch = "x86_64")]
pub mod stack;
pub mod stat_map;
pub mod sysinfo;
pub mod thread;
#[cfg(target_arch = "x86_64")]
pub mod tlb;
pub mod touch;
pub mod tun;
pub mod uffd;

pub use raw::Errno;
