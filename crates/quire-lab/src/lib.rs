//! Experiments: what is run, how it is kept, and what it says (paper 002, sections 4
//! to 6).
//!
//! An *experiment* runs *benchmarks* under *variants*. Each pair is executed several
//! times, and an *execution* yields one or several *measurements* of each *metric*. The
//! executions of all pairs are interleaved in random order, so that what changes on the
//! machine meanwhile falls on all of them.
//!
//! | module | holds |
//! |---|---|
//! | [`experiment`] | what is run, and the file that says so |
//! | [`schedule`] | in which order |
//! | [`runner`] | executions: programs started, read, timed, stopped |
//! | [`protocol`] | how programs report measurements |
//! | [`usage`] | what the kernel and the processor count besides |
//! | [`prepare`] | the machine as an experiment wants it, and afterwards as it was |
//! | [`environment`] | the machine, to be shown with results |
//! | [`run`] | the results of an experiment, and the file that they are kept in |
//! | [`import`] | reading results, also those of other tools |
//! | [`judge`] | what measurements say |
//! | [`caution`] | how far intervals of few executions fall short |
//! | [`settling`] | when executions become steady, or that they never do |
//! | [`summary`] | the same, in tables and sentences |
//! | [`plan`] | what to spend, from a pilot run |
//! | [`report`] | what results say, as HTML, Markdown, JSON and CSV |
//! | [`tune`] | which policy and strategy suit a program |
//! | [`compare`] | old and new results: whether something got worse |
//! | [`figures`] | the plots of reports |
//! | [`network`] | machines far from each other, on this one |
//! | [`share`] | machines that have a part of a processor, on this one |
//! | `parallel` | the same work on all cores |

pub mod caution;
pub mod compare;
pub mod environment;
pub mod experiment;
pub mod figures;
pub mod import;
pub mod judge;
pub mod network;
mod parallel;
pub mod plan;
pub mod prepare;
pub mod protocol;
pub mod report;
pub mod run;
pub mod runner;
pub mod schedule;
pub mod settling;
pub mod share;
pub mod summary;
pub mod tune;
pub mod usage;
mod wrapped;
