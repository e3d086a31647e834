//! Which physical frames a program's pages get (paper 002, sections 2 and 3).
//!
//! A physically indexed cache maps frames to sets: frames of one *colour* compete
//! for the same sets. What is here decides about frames and makes no system call;
//! where the frames come from, and how they get under a page, is `quire-vm`'s.
//!
//! | module | holds |
//! |---|---|
//! | [`cache`] | the caches of a machine, and which of them has colours |
//! | [`colour`] | the colour of a frame |
//! | [`model`] | what a cache makes of a stream of addresses |
//! | [`mapping`] | what a process has: runs of pages in runs of frames |
//! | [`strategy`] | the callback between the allocator and a strategy |
//! | [`buddy`] | the allocator: free blocks, of which strategies choose frames |
//! | [`colour_index`] | where free blocks with frames of a colour are |
//! | [`strategies`] | the strategies of the paper |
//! | [`spec`] | what a user calls a strategy |
//! | [`hints`] | which addresses have a strategy of their own |
//! | [`config`] | all that a user chose about frames, and how it travels |
//! | [`remap`] | what becomes of pages that are to get other frames |
//! | [`record`] | a mapping of pages to frames, as it was once |

pub mod buddy;
pub mod cache;
pub mod colour;
pub mod colour_index;
pub mod config;
pub mod hints;
pub mod mapping;
pub mod model;
pub mod record;
pub mod remap;
pub mod spec;
pub mod strategies;
pub mod strategy;
