//! The commands that measure: `bench`, `plan`, `report` and `compare`, as parts of `quire` and
//! as a program of their own, `quire-measure`, which needs nothing of what manages memory.
//!
//! | module | does |
//! |---|---|
//! | [`args`] | the command lines |
//! | [`mod@bench`] | `bench` |
//! | [`plan`] | `plan` |
//! | [`report`] | `report` |
//! | [`compare`] | `compare` |
//! | [`failure`] | errors, each one line and an exit status |
//! | [`output`] | files that are written at the end |
//! | [`table`] | aligned columns |

pub mod args;
pub mod bench;
pub mod compare;
pub mod failure;
pub mod output;
pub mod plan;
pub mod report;
pub mod table;
