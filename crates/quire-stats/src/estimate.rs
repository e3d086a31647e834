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
    /// There is no execution.
    #[error("no execution gave anything")]
    Nothing,
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
    /// Within the executions hardly anything varies, where something is divided by how
    /// it does.
    #[error("most groups of measurements of one execution do not vary")]
    MostlyConstant,
    /// Nothing is repeated at a level, so how it varies is unknown.
    #[error("at level {level}, from the outermost on, nothing is repeated")]
    NotRepeated {
        /// Which, from 1 on.
        level: usize,
    },
    /// Groups that should be alike are nested to different depths.
    #[error("the groups are not all nested to the same depth")]
    UnevenDepth,
    /// There is no best number of repetitions: the more, the better.
    #[error(
        "level {level} costs nothing, or the levels above it do not vary: no number of repetitions is best"
    )]
    NoBest {
        /// Which, from 1 on.
        level: usize,
    },
    /// What was asked for makes no sense.
    #[error("{what} must be {must}")]
    OutOfRange {
        /// What was given.
        what: &'static str,
        /// What it must be.
        must: &'static str,
    },
    /// A result would be too large to represent.
    #[error("the result is too large to represent")]
    TooLarge,
}

/// A result, or why there is none.
pub type Result<T> = std::result::Result<T, Absent>;

/// Which interval draws of executions come to, for the unclassified variation and the
/// impact factor. The other figures have the percentile interval or the two-level one
/// whatever this says: for them a correction changes nothing, or is worse
/// (`docs/statistics.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Intervals {
    /// The middle part of the draws, as in paper 002.
    #[default]
    Percentile,
    /// Corrected for bias and acceleration (Efron 1987): closer to what it says with few
    /// executions.
    Bca,
}

/// How intervals are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How often data are drawn anew.
    pub resamples: usize,
    /// The part of all intervals that should hold the true value.
    pub confidence: f64,
    /// What the draws depend on.
    pub seed: u64,
    /// Which interval the unclassified variation and the impact factor have.
    pub intervals: Intervals,
}

impl Settings {
    /// Refuses settings that make no sense.
    pub(crate) fn check(&self) -> Result<()> {
        if self.resamples == 0 {
            return Err(Absent::OutOfRange {
                what: "the number of resamples",
                must: "at least 1",
            });
        }
        if !(self.confidence > 0.0 && self.confidence < 1.0) {
            return Err(Absent::OutOfRange {
                what: "the confidence",
                must: "between 0 and 1",
            });
        }
        Ok(())
    }

    /// The quantile that bounds an interval from below.
    pub(crate) fn lower_tail(&self) -> f64 {
        (1.0 - self.confidence) / 2.0
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            resamples: 10_000,
            confidence: 0.95,
            seed: 1,
            intervals: Intervals::default(),
        }
    }
}
