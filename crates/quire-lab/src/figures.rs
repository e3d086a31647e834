//! Plots as SVG text that stands in an HTML page.
//!
//! Colours are the page's (`var(--c0)` and so on), so a plot is light or dark as the page
//! is. Each has a title and a description for those who cannot see it. The drawing is 440
//! units wide with letters of 12, which can be read on a phone.
//!
//! | module | draws |
//! |---|---|
//! | [`svg`] | lines, bars and text; axes |
//! | [`sequence`] | measurements over time, executions told apart (paper 002, figure 1) |
//! | [`spread`] | executions as dots, with their median and the interval of the mean |
//! | [`ranks`] | how often a variant has which rank (figures 4, 5 and 7) |
//! | [`ecdf`] | the distribution of impact factors (figure 9) |
//! | [`counters`] | time against cache misses (figure 10) |

pub mod counters;
pub mod ecdf;
pub mod ranks;
pub mod sequence;
pub mod spread;
pub mod svg;
