//! Superpages by advice: memory stays the kernel's, private and anonymous, and the program's. A thread looks at
//! what is populated, and tells the kernel what to do with it.
//!
//! This is the policy `adaptive` (paper 001: page sizes that follow the address space; the population map of paper
//! 000 is the kernel's page table), and `eager` (paper 004).
//!
//! | module | holds |
//! |---|---|
//! | [`process`] | what is asked of a process |
//! | [`kinds`] | what mappings are |
//! | [`own`] | this process, as the kernel shows it |
//! | [`region`] | what is known of a region |
//! | [`machine`] | whether the machine has room |
//! | [`advisor`] | one process: looks, advice, copies, budgets |

pub mod advisor;
pub mod kinds;
pub mod known;
pub mod machine;
pub mod own;
pub mod process;
pub mod region;

pub use advisor::{Advisor, Clock};
