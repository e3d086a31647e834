//! The statistics that reports and comparisons ask for, in one place.

use quire_stats::{
    Estimate, Sample, Settings, ecdf, estimate, impact, mean, rank, ratio, variation,
};

/// The mean, with the two-level interval where there are several measurements an
/// execution.
pub fn mean(sample: &Sample, settings: &Settings) -> estimate::Result<Estimate> {
    mean::of(sample, settings)
}

/// The coefficient of variation within executions.
pub fn within(sample: &Sample, settings: &Settings) -> estimate::Result<Estimate> {
    variation::within(sample, settings)
}

/// The coefficient of variation of one measurement per execution.
pub fn unclassified(sample: &Sample, settings: &Settings) -> estimate::Result<Estimate> {
    variation::unclassified(sample, settings)
}

/// The impact factor of non-determinism in execution.
pub fn impact(sample: &Sample, settings: &Settings) -> estimate::Result<Estimate> {
    impact::factor(sample, settings)
}

/// The mean of `new` over the mean of `old`.
pub fn ratio(new: &Sample, old: &Sample, settings: &Settings) -> estimate::Result<Estimate> {
    ratio::of_means(new, old, settings)
}

/// The rank of each, 1 for the best; what does not differ significantly, and by more than
/// `threshold` (a fraction), shares a rank.
pub fn ranks(estimates: &[Estimate], threshold: f64, higher_is_better: bool) -> Vec<usize> {
    rank::ranks(estimates, threshold, higher_is_better)
}

/// Each value in order, and the share of values that are not above it.
pub fn ecdf(values: &[f64]) -> Vec<(f64, f64)> {
    ecdf::points(values)
}
