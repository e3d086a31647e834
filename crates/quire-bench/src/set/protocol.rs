//! How a program tells its measurements: a line each, `quire: NAME VALUE UNIT`, on the
//! descriptor that `QUIRE_BENCH_FD` names or on the standard output. Other lines are the
//! program's own.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Context, Result};

use crate::memory;

/// Names the descriptor.
pub const ENV_FD: &str = "QUIRE_BENCH_FD";
/// Says how many measurements are wanted.
pub const ENV_MEASUREMENTS: &str = "QUIRE_BENCH_MEASUREMENTS";
/// How a line of it begins.
const MARK: &str = "quire: ";

/// Writes measurements of a metric, in their order.
///
/// # Errors
/// When nobody takes them, or the variable names no descriptor of this process.
pub fn report(name: &str, values: &[f64], unit: &str) -> Result<()> {
    let text: String = values
        .iter()
        .map(|value| line(name, *value, unit))
        .collect();
    let written = match std::env::var(ENV_FD) {
        Ok(number) => memory::inherited(&number)
            .with_context(|| format!("{ENV_FD}={number}"))?
            .write_all(text.as_bytes()),
        Err(_) => std::io::stdout().write_all(text.as_bytes()),
    };
    written.context("reporting measurements")
}

fn line(name: &str, value: f64, unit: &str) -> String {
    format!("{MARK}{name} {value:e} {unit}")
        .trim_end()
        .to_owned()
        + "\n"
}

/// The measurements in what a program wrote, by metric.
///
/// # Errors
/// The line that is not as it has to be.
pub fn read(text: &str) -> Result<BTreeMap<String, Vec<f64>>> {
    let mut metrics: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for line in text.lines() {
        let Some(said) = line.strip_prefix(MARK) else {
            continue;
        };
        let mut words = said.split_whitespace();
        let name = words.next();
        let value = words.next().and_then(|word| word.parse().ok());
        let value = value.filter(|value: &f64| value.is_finite());
        let (name, value) = name
            .zip(value)
            .with_context(|| format!("`{line}` has no name and value"))?;
        metrics.entry(name.to_owned()).or_default().push(value);
    }
    Ok(metrics)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(values in prop::collection::vec(-1e9f64..1e9, 1..9)) {
            let text: String = values.iter().map(|v| line("time", *v, "s")).collect();
            let read = read(&format!("hello\n{text}quire is a word\n")).unwrap();
            prop_assert_eq!(read, BTreeMap::from([("time".to_owned(), values)]));
        }
    }

    #[test]
    fn a_line_is_as_documented() {
        assert_eq!(line("time", 0.25, "s"), "quire: time 2.5e-1 s\n");
        assert_eq!(line("misses", 3.0, ""), "quire: misses 3e0\n");
    }

    #[test]
    fn what_is_no_measurement_is_refused() {
        for wrong in [
            "quire: time",
            "quire: time fast",
            "quire: time NaN s",
            "quire: ",
        ] {
            let error = read(&format!("quire: time 1 s\n{wrong}\n")).unwrap_err();
            assert!(error.to_string().contains(wrong), "{error}");
        }
    }
}
