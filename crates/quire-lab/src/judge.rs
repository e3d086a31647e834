//! What measurements say: the only place here that asks `quire-stats`.

pub use quire_stats::Estimate;
use quire_stats::components::{self, Level, Nested};
use quire_stats::{Absent, Sample, Settings, mean, rank, ratio, variation};

/// Measurements by execution.
pub type Values = Vec<Vec<f64>>;

/// An estimate, or a line that says why there is none.
pub type Judged = Result<Estimate, String>;

fn settings(seed: u64) -> Settings {
    Settings {
        seed,
        ..Settings::default()
    }
}

/// A sample of measurements; without any, a line that says so.
fn sample(values: &Values) -> Result<Sample, String> {
    match values.is_empty() {
        true => Err("no execution gave anything".into()),
        false => said(Sample::new(values.clone())),
    }
}

fn said<T>(result: Result<T, Absent>) -> Result<T, String> {
    result.map_err(|absent| absent.to_string())
}

/// The mean of execution means, and its interval.
///
/// # Errors
/// Why there is none, in a line.
pub fn mean(values: &Values, seed: u64) -> Judged {
    said(mean::of(&sample(values)?, &settings(seed)))
}

/// The coefficient of variation: within executions where they have several
/// measurements, else across them.
///
/// # Errors
/// Why there is none, in a line.
pub fn variation(values: &Values, seed: u64) -> Judged {
    let several = values.iter().any(|execution| execution.len() > 1);
    let of = match several {
        true => variation::within,
        false => variation::unclassified,
    };
    said(of(&sample(values)?, &settings(seed)))
}

/// How many times the mean of `old` the mean of `new` is.
///
/// # Errors
/// Why there is none, in a line.
pub fn ratio(new: &Values, old: &Values, seed: u64) -> Judged {
    said(ratio::of_means(
        &sample(new)?,
        &sample(old)?,
        &settings(seed),
    ))
}

/// Whether two means differ beyond what their intervals leave open.
#[must_use]
pub fn differ(a: &Estimate, b: &Estimate) -> bool {
    rank::differ(a, b, 0.0)
}

/// Whether half the interval of the mean is at most this part of it.
#[must_use]
pub fn is_precise(values: Values, precision: f64) -> bool {
    mean(&values, 1).is_ok_and(|mean| mean.error() <= precision * mean.value.abs())
}

/// What varies: executions, and where they have several measurements, those within.
///
/// # Errors
/// Why it is not known, in a line.
pub fn levels(values: &Values) -> Result<Vec<Level>, String> {
    let sample = sample(values)?;
    let several = values.iter().any(|execution| execution.len() > 1);
    said(components::of(&match several {
        true => Nested::from(&sample),
        false => Nested::Group(sample.values().map(Nested::Value).collect()),
    }))
}

/// How many measurements an execution shall have, where those cost so many seconds and an
/// execution besides them so many.
///
/// # Errors
/// Why it is not known, in a line.
pub fn measurements(levels: &[Level], execution: f64, measurement: f64) -> Result<f64, String> {
    let costs = match levels.len() {
        1 => vec![execution + measurement],
        _ => vec![execution, measurement],
    };
    let counts = said(components::plan(levels, &costs))?;
    Ok(counts.first().copied().unwrap_or(1.0))
}

/// How many executions, of so many measurements each, make the mean as precise as that.
///
/// # Errors
/// Why it is not known, in a line.
pub fn executions(
    levels: &[Level],
    measurements: usize,
    precision: f64,
    mean: f64,
) -> Result<usize, String> {
    let counts = match levels.len() {
        1 => vec![],
        _ => vec![measurements],
    };
    let confidence = Settings::default().confidence;
    said(components::executions_for(
        levels, &counts, precision, mean, confidence,
    ))
}
