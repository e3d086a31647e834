//! Which physical frames a program's pages get (paper 002, sections 2 and 3).
//!
//! A physically indexed cache maps frames to sets: frames of one *colour* compete
//! for the same sets. What is here decides about frames and makes no system call;
//! where the frames come from, and how they get under a page, is `quire-vm`'s.
//!
//! | module | holds |
//! |---|---|
//! | [`colour`] | the colour of a frame |
//! | [`mapping`] | what a process has: runs of pages in runs of frames |
//! | [`strategy`] | the callback between the allocator and a strategy |

pub mod colour;
pub mod mapping;
pub mod strategy;
