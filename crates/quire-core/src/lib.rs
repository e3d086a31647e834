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
//! | [`popmap`] | which base pages of an extent are in use |
//! | [`queue`] | which reservation is preempted first |
//! | [`ranges`] | what is known of ranges of addresses |
//! | [`policy`] | reserve an extent, map it whole, or leave it to base pages |
//! | [`pressure`] | how much may be reserved, how much must be given back |

pub mod config;
pub mod control;
pub mod policy;
pub mod popmap;
pub mod pressure;
pub mod queue;
pub mod ranges;
pub mod stat;
pub mod units;
