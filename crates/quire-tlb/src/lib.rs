//! What a program's real addresses cost in TLB misses.
//!
//! The program runs natively. At intervals one of its threads is stopped and
//! executes a window of instructions one by one; each is decoded, and the
//! addresses that it uses are fed to two models of the machine's TLBs: one in
//! which every page has 4 KiB, and one with the page sizes that the process's
//! page table has at that moment. Nothing is emulated, so what Quire does for
//! the process (`userfaultfd`, its pager thread) goes on as ever.
//!
//! | module | holds |
//! |---|---|
//! | [`decode`] | which memory an instruction uses |
//! | [`stream`] | from instructions to accesses of pages |
//! | [`pages`] | the page sizes of a process |
//! | [`sampling`] | when windows are taken, and which are kept |
//! | [`tracer`] | the process: its threads, signals and windows |
//! | [`window`] | one window of one thread |
//! | [`report`] | what it comes to |

pub mod decode;
pub mod pages;
pub mod report;
pub mod sampling;
pub mod stream;
pub mod tracer;
pub mod window;

pub use report::Report;
pub use sampling::Plan;
pub use tracer::{Host, TraceError, Traced, trace};
