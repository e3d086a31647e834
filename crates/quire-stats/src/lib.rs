//! Statistics for measurements: what a series of repeated runs says, and how
//! sure that is.
//!
//! Run times are skewed and have outliers, so the median stands for a series
//! and the bootstrap, which assumes no distribution, gives its interval.
//! Everything is deterministic for a given seed. Series that hold a value that
//! is not finite are refused, never skipped.
//!
//! | module | holds |
//! |---|---|
//! | [`estimate`] | a value with its interval, or why there is none |
//! | [`sample`] | measurements by execution |
//! | [`order`] | quantiles and means of one series |
//! | [`bootstrap`] | summaries, ratios and differences with confidence intervals |
//! | [`random`] | the generator that draws are made with |

pub mod bootstrap;
pub mod estimate;
pub mod order;
pub mod random;
pub mod sample;

pub use bootstrap::{
    Comparison, RESAMPLES, Summary, difference_of_medians, mean_ratio_of_medians, ratio_of_medians,
    ratio_of_sums,
};
pub use estimate::{Absent, Estimate, Settings};
pub use order::{geometric_mean, median, quantile};
pub use sample::Sample;
