//! What an estimator says: a value with its interval, or why there is none.

/// A value and its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The value.
    pub value: f64,
    /// The lower end of its interval.
    pub ci_low: f64,
    /// The upper end of its interval.
    pub ci_high: f64,
}

impl Estimate {
    /// Half the width of the interval: what the paper calls the measurement error
    /// (paper 002, section 4.2).
    #[must_use]
    pub fn error(&self) -> f64 {
        (self.ci_high - self.ci_low) / 2.0
    }

    /// Whether the intervals have a value in common: then nothing can be concluded
    /// (paper 002, section 4.2).
    #[must_use]
    pub fn overlaps(&self, other: &Estimate) -> bool {
        self.ci_low <= other.ci_high && other.ci_low <= self.ci_high
    }
}

/// Why something cannot be computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Absent {
    /// There are too few executions.
    #[error("it takes {needed} executions, and there are {got}")]
    FewExecutions {
        /// As many are needed.
        needed: usize,
        /// As many are there.
        got: usize,
    },
    /// An execution has too few measurements.
    #[error(
        "it takes {needed} measurements in each execution, and execution {execution} has {got}"
    )]
    FewMeasurements {
        /// Which, from 1 on.
        execution: usize,
        /// As many are needed.
        needed: usize,
        /// As many are there.
        got: usize,
    },
    /// All values are equal, where something is divided by how they vary.
    #[error("the measurements do not vary")]
    Constant,
    /// A mean is zero or below, where something is divided by it.
    #[error("the mean is not above zero")]
    MeanNotPositive,
    /// A value is not finite, or a result would not be.
    #[error("measurement {measurement} of execution {execution} is no finite number")]
    NotFinite {
        /// Which, from 1 on.
        execution: usize,
        /// Which of it, from 1 on.
        measurement: usize,
    },
    /// A result would be too large to represent.
    #[error("the result is too large to represent")]
    TooLarge,
}

/// A result, or why there is none.
pub type Result<T> = std::result::Result<T, Absent>;

/// How intervals are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How often data are drawn anew.
    pub resamples: usize,
    /// The part of all intervals that should hold the true value.
    pub confidence: f64,
    /// What the draws depend on.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            resamples: 10_000,
            confidence: 0.95,
            seed: 1,
        }
    }
}
