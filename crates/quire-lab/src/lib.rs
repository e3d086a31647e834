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
//! | [`run`] | the results of an experiment, and the file that they are kept in |
//! | [`import`] | reading results, also those of other tools |
//! | [`report`] | what results say, as HTML, Markdown, JSON and CSV |
//! | [`compare`] | old and new results: whether something got worse |
//! | [`figures`] | the plots of reports |

pub mod compare;
pub mod figures;
pub mod import;
pub mod report;
pub mod run;
