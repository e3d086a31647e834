//! Statistics for measurements: what a series of repeated runs says, and how
//! sure that is.
//!
//! Run times are skewed and have outliers, so nothing here takes them for
//! normal without saying so: intervals are the bootstrap's, or Student's where
//! means of executions are concerned, by simulations of what that costs. Everything is deterministic for a given
//! seed. Series that hold a value that is not finite are refused, never
//! skipped; what cannot be computed is absent and says why ([`Absent`]).
//! `docs/statistics.md` has the formulas, their sources and what they assume.
//!
//! | module | holds |
//! |---|---|
//! | [`estimate`] | a value with its interval, or why there is none |
//! | [`sample`] | measurements by execution |
//! | [`mean`] | the mean: two-level interval, hierarchical bootstrap |
//! | [`mod@median`] | the median of all measurements |
//! | [`variation`] | coefficients of variation, within executions and unclassified |
//! | [`impact`] | the impact factor of non-determinism in execution |
//! | [`shift`] | whether two variants differ, and by how much: the rule of all comparisons |
//! | [`ratio`] | ratios of means |
//! | [`rank`] | which of several are better, if it can be told |
//! | [`ecdf`] | the empirical distribution function |
//! | [`components`] | variance by level of repetition, and how often to repeat |
//! | [`warmup`] | whether and from when on measurements are steady |
//! | [`student`] | quantiles of the t distribution |
//! | [`order`] | quantiles and means of one series |
//! | [`bootstrap`] | summaries, ratios and differences of medians of plain series |
//! | [`random`] | the generator that draws are made with |

mod across;
pub mod bootstrap;
pub mod components;
pub mod ecdf;
pub mod estimate;
pub mod impact;
mod interval;
mod layout;
pub mod mean;
pub mod median;
mod normal;
pub mod order;
mod percentile;
pub mod random;
pub mod rank;
pub mod ratio;
mod resample;
pub mod sample;
pub mod shift;
pub mod student;
pub mod variation;
pub mod warmup;

pub use bootstrap::{
    Comparison, RESAMPLES, Summary, difference_of_medians, mean_ratio_of_medians, ratio_of_medians,
    ratio_of_sums,
};
pub use estimate::{Absent, Estimate, Intervals, Settings};
pub use order::{geometric_mean, median, quantile};
pub use sample::Sample;
