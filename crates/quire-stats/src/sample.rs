//! The measurements of an experiment: several executions, each of several measurements.
//! Executions may differ in how many they have.

use crate::estimate::{Absent, Result};

/// Measurements by execution: at least one execution, each of at least one finite
/// measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    executions: Vec<Vec<f64>>,
}

impl Sample {
    /// Takes measurements by execution.
    ///
    /// # Errors
    /// Without executions, where one has no measurement, or where one is not finite.
    pub fn new(executions: Vec<Vec<f64>>) -> Result<Sample> {
        if executions.is_empty() {
            return Err(Absent::Nothing);
        }
        for (execution, values) in (1..).zip(&executions) {
            if values.is_empty() {
                return Err(Absent::FewMeasurements {
                    execution,
                    needed: 1,
                    got: 0,
                });
            }
            if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                return Err(Absent::NotFinite {
                    execution,
                    measurement: at + 1,
                });
            }
        }
        Ok(Sample { executions })
    }

    /// The executions.
    #[must_use]
    pub fn executions(&self) -> &[Vec<f64>] {
        &self.executions
    }

    /// All measurements, in order.
    pub fn values(&self) -> impl Iterator<Item = f64> {
        self.executions.iter().flatten().copied()
    }

    /// Whether an execution has more than one measurement, so that how they vary within
    /// an execution can be told from how executions vary.
    #[must_use]
    pub fn has_groups(&self) -> bool {
        self.executions.iter().any(|values| values.len() > 1)
    }
}
