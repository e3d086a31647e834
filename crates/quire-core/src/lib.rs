//! The pure logic of Quire: what is decided, never how the kernel is asked.
//!
//! Nothing in this crate makes a system call, so all of it is tested against
//! naive models. The manager in `quire-vm` asks these modules what to do and
//! then does it.
//!
//! | module | decides or holds |
//! |---|---|
//! | [`units`] | quantities with their units |
//! | [`config`] | what a user chose |
//! | [`control`] | what can be changed in a running process |
//! | [`stat`] | the statistics page that a process shares |
//! | [`located`] | what is wrong in a file that a user wrote, and where |
//! | [`exposition`] | the text format that Prometheus fetches |
//! | [`level`] | the sizes of superpages |
//! | [`popmap`] | which base pages of an extent are in use |
//! | [`queue`] | which reservation is preempted first |
//! | [`registry`] | whom to ask for memory, over all processes |
//! | [`ranges`] | what is known of ranges of addresses |
//! | [`slots`] | what is known of superpage-sized slots |
//! | [`policy`] | reserve an extent, map it whole, or leave it to base pages |
//! | [`pool`] | the page sizes of the hugetlb pools |
//! | [`frames`] | which physical frames pages get |
//! | [`kin`] | how a new region begins, after others of its size |
//! | [`pressure`] | how much may be reserved, how much must be given back |
//! | [`dsm`] | who has which page of memory that machines share |
//! | [`madvise`] | what is done with each advice of `madvise` |
//! | [`advise`] | which superpages a process is advised to get at their first touch |
//! | [`attach`] | what becomes of a process that is looked at from outside |
//! | [`tlb`] | what a machine's TLBs make of a stream of addresses |

pub mod advise;
pub mod attach;
pub mod config;
pub mod control;
pub mod dsm;
pub mod exposition;
pub mod frames;
pub mod kin;
pub mod level;
pub mod located;
pub mod madvise;
pub mod policy;
pub mod pool;
pub mod popmap;
pub mod pressure;
pub mod queue;
pub mod ranges;
pub mod registry;
pub mod slots;
pub mod stat;
pub mod tlb;
pub mod units;
