//! Shared memory across machines: what is decided, never how it is sent (paper 003).
//!
//! A *kernel* here is what the paper calls so: the cache of a memory object on one
//! machine, through which all of its programs touch the object. A *server* runs a *fault
//! scheduler*, an automaton that orders conflicting faults, so that at any time each page
//! exists in one version. All automata take one message and return messages. Network, disk
//! and page tables are elsewhere.
//!
//! | module | holds |
//! |---|---|
//! | [`message`] | what kernels and servers say to each other |
//! | [`per_page`] | what is known of each page, by its number |
//! | [`scheduler`] | the fault schedulers: `simple`, `multi` and `distributed` |
//! | [`kernel`] | the cache of an object on one machine |
//! | [`sync`] | mutexes, conditions, barriers and counters |
//! | [`types`] | the types of data, and their translation between machines |
//! | [`alloc`] | memory of an object, allocated by type |

pub mod alloc;
pub mod kernel;
pub mod message;
pub mod per_page;
pub mod scheduler;
pub mod sync;
pub mod types;
