//! Which times may be explained by cache misses.

use std::collections::BTreeSet;

use crate::figures::counters;
use crate::report::experiment::Experiment;

/// Times and cache misses of the variants that have both, as deviations from their means.
pub struct Misses<'a> {
    /// Of the metrics.
    pub names: [&'a str; 2],
    /// The variants, in their order.
    pub variants: Vec<&'a str>,
    /// Of each variant.
    pub times: Vec<f64>,
    /// The same.
    pub counts: Vec<f64>,
}

/// What there is of times against cache misses, for each metric of misses.
pub fn of(rows: &[Experiment]) -> Vec<Misses<'_>> {
    let Some(time) = rows.iter().find(|one| one.primary) else {
        return Vec::new();
    };
    let metrics: BTreeSet<&str> = rows.iter().map(|one| &*one.metric).collect();
    let metrics = metrics.into_iter().filter(|name| {
        let name = name.to_ascii_lowercase();
        name.contains("cache") && name.contains("miss")
    });
    let found = metrics.filter_map(|metric| {
        let both = with(rows, metric).filter_map(|misses| {
            let time = with(rows, &time.metric).find(|time| time.variant == misses.variant)?;
            Some((misses.variant.as_str(), time.average, misses.average))
        });
        let both: Vec<(&str, f64, f64)> = both.collect();
        let scaled = |value: fn(&(&str, f64, f64)) -> f64| {
            counters::normalised(&both.iter().map(value).collect::<Vec<f64>>())
        };
        Some(Misses {
            names: [&time.metric, metric],
            times: scaled(|one| one.1)?,
            counts: scaled(|one| one.2)?,
            variants: both.iter().map(|one| one.0).collect(),
        })
    });
    found.collect()
}

fn with<'a>(rows: &'a [Experiment], metric: &'a str) -> impl Iterator<Item = &'a Experiment> {
    rows.iter().filter(move |one| one.metric == metric)
}
