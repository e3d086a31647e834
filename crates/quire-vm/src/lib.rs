//! The in-process manager: it decides how big a program's pages are.
//!
//! A [`Manager`] watches over ranges of private anonymous memory. It gives
//! them memory from an *object* (a file of huge folios that nobody else
//! sees), reserves a superpage where the program begins to touch, maps what
//! is touched page by page, and turns an extent into a superpage in place when
//! it is full (paper 000). A *pager thread* does this beside the program.
//!
//! For the program the ranges stay what they were: private, anonymous,
//! copy-on-write across forks. Every call that can change a mapping must go
//! through the manager; `libquire_provide.so` does that for unmodified programs. A
//! program that links this library asks for memory itself:
//!
//! ```
//! use quire_core::{config::{Config, Policy}, units::Bytes};
//! use quire_vm::Manager;
//!
//! static MANAGER: Manager = Manager::new();
//!
//! MANAGER.configure(Config { policy: Policy::Reserve, ..Config::default() });
//! MANAGER.begin();
//! // `None` where this kernel or user cannot have it: use mmap then.
//! if let Some(range) = MANAGER.allocate(Bytes::mib(64)) {
//!     // SAFETY: the range was just mapped, readable and writable.
//!     unsafe { range.start.as_ptr().write(1) };
//!     // SAFETY: nothing uses the range any more.
//!     unsafe { MANAGER.free(range) }.expect("our own mapping");
//! }
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`table`] | what is mapped where, without system calls |
//! | [`manager`] | the process's manager, its lock, its descriptors |
//! | `mapping` | the calls that a program makes on its mappings |
//! | `advice` | `madvise` |
//! | `plain` | managed memory that becomes plain, or is replaced |
//! | `region` | new memory: where it goes and how its extents begin |
//! | `spare` | address space that is ready to be handed out |
//! | `remap` | `mremap` |
//! | `pool` | superpages of the hugetlb pool |
//! | `extent` | reserve, promote, demote, preempt |
//! | `adaptive` | how new regions begin, after what others did |
//! | `kernel_access` | memory that the kernel is about to write to |
//! | `left` | regions that were left to the kernel's base pages |
//! | `pauses` | extents that were, while reserving pauses |
//! | `grow` | full extents that become superpages by a copy |
//! | `blocks` | the kernel's free blocks, and what more may cost |
//! | `fork` | isolation at a fork, and taking memory back after it |
//! | `pager` | the pager thread |
//! | `outcome` | what became of a thread that was started |
//! | `hands` | the threads of this library, and the descriptor table that they share |
//! | [`files`] | shared memory, files and stacks, which stay the kernel's |
//! | [`frames`] | private memory whose frames a strategy chooses |
//! | [`text`] | program text |

pub mod files;
pub mod frames;
pub mod manager;
pub mod table;
pub mod text;

mod adaptive;
mod advice;
mod blocks;
mod extent;
mod fork;
mod grow;
mod hands;
mod kernel_access;
mod left;
mod mapping;
mod outcome;
mod pager;
mod pauses;
mod plain;
mod pool;
mod region;
mod remap;
mod spare;

pub use fork::ForkRefused;
pub use hands::{allocates_apart, apart};
pub use manager::Manager;
pub use mapping::Handled;
pub use quire_linux::Errno;
