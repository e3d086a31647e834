//! What Criterion keeps: a directory for each benchmark, in it one for each baseline
//! (`new` is the last run, `base` the one before), in it `sample.json` with the times of
//! batches in nanoseconds and their iterations, `estimates.json`, and `benchmark.json`
//! with the names. A baseline is one execution, because one process measured it; a batch
//! is a measurement, weighed so that their mean is Criterion's estimate.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::import::builder::{Builder, Node, VARIANT};
use crate::import::{ImportError, Wrong, message};
use crate::run::{Better, Run, TIME};

const SAMPLE: &str = "sample.json";
const NAMES: &str = "benchmark.json";
/// The baseline of the last run.
const LAST: &str = "new";
/// How Criterion calls batches that become longer and longer.
const LINEAR: &str = "Linear";
/// How deep directories are looked into: group, function, value, baseline.
const DEPTH: usize = 6;

/// Whether there is a sample anywhere below the directory.
pub fn is_directory(path: &Path) -> bool {
    !samples(path, DEPTH).is_empty()
}

/// The directories with a sample in them, in order.
fn samples(path: &Path, depth: usize) -> Vec<PathBuf> {
    if path.join(SAMPLE).is_file() {
        return vec![path.to_owned()];
    }
    let entries = match depth {
        0 => return Vec::new(),
        _ => fs::read_dir(path),
    };
    let mut below: Vec<PathBuf> = entries
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_dir())
        .collect();
    below.sort();
    below
        .iter()
        .flat_map(|path| samples(path, depth - 1))
        .collect()
}

/// Reads a baseline of all benchmarks of a directory; the last run, where none is named.
///
/// # Errors
/// When the directory has no such baseline, or a file of it cannot be read.
pub fn directory(path: &Path, baseline: Option<&str>) -> Result<Run, ImportError> {
    let all = samples(path, DEPTH);
    let name = |directory: &Path| -> String {
        let name = directory.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    let names: BTreeSet<String> = all.iter().map(|directory| name(directory)).collect();
    let wanted = match baseline {
        Some(baseline) => baseline.to_owned(),
        None if all.len() == 1 => name(&all[0]),
        None if names.contains(LAST) || names.len() != 1 => LAST.to_owned(),
        None => names.iter().next().cloned().unwrap_or_default(),
    };
    let mut builder = Builder::default();
    builder.metric(TIME, "s", Better::Lower);
    for directory in all.iter().filter(|directory| name(directory) == wanted) {
        add(&mut builder, path, directory)?;
    }
    let names: Vec<String> = names.into_iter().collect();
    let none = format!(
        "it has no baseline `{wanted}`; there are: {} (name one as {}@NAME)",
        names.join(", "),
        path.display()
    );
    builder.finish(&none).map_err(|wrong| wrong.of(path))
}

/// Reads a single file of a baseline. Nothing where the text is none of Criterion's.
pub fn file(path: &Path, text: &str) -> Option<Result<Run, ImportError>> {
    let document: Value = serde_json::from_str(text).ok()?;
    let is_sample = document.get("iters").is_some() && document.get("times").is_some();
    let is_estimates = document["mean"].get("point_estimate").is_some();
    if !is_sample && !is_estimates {
        return None;
    }
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut builder = Builder::default();
    builder.metric(TIME, "s", Better::Lower);
    let added = if is_sample {
        let names = names(directory, directory);
        names.and_then(|names| sample(&mut builder, &names, &document).map_err(|w| w.of(path)))
    } else if directory.join(SAMPLE).is_file() {
        add(&mut builder, directory, directory)
    } else {
        let names = names(directory, directory);
        names.and_then(|names| estimate(&mut builder, &names, &document).map_err(|w| w.of(path)))
    };
    let finish = |()| builder.finish("it holds no times").map_err(|w| w.of(path));
    Some(added.and_then(finish))
}

fn read(path: &Path) -> Result<Value, ImportError> {
    let text = fs::read_to_string(path).map_err(|source| ImportError::File {
        path: path.to_owned(),
        source,
    })?;
    serde_json::from_str(&text).map_err(|e| {
        let why = format!("column {}: {}", e.column(), message(&e));
        Wrong::line(e.line(), why).of(path)
    })
}

fn add(builder: &mut Builder, root: &Path, directory: &Path) -> Result<(), ImportError> {
    let path = directory.join(SAMPLE);
    let names = names(root, directory)?;
    sample(builder, &names, &read(&path)?).map_err(|wrong| wrong.of(&path))
}

/// The benchmark and the variant: group and value, and function. Without `benchmark.json`
/// the benchmark is named after the directory.
fn names(root: &Path, directory: &Path) -> Result<[String; 2], ImportError> {
    let path = directory.join(NAMES);
    if !path.is_file() {
        let above = directory.parent().unwrap_or(directory);
        let below = above.strip_prefix(root).unwrap_or(above);
        let name = match below.as_os_str().is_empty() {
            true => above.file_name().unwrap_or_default().to_string_lossy(),
            false => below.to_string_lossy(),
        };
        let name = if name.is_empty() { "benchmark" } else { &name };
        return Ok([name.to_owned(), VARIANT.to_owned()]);
    }
    let document = read(&path)?;
    let group = Node::root(&document).need("group_id");
    let group = group.and_then(|group| group.text());
    let mut benchmark = group.map_err(|wrong| wrong.of(&path))?.to_owned();
    if let Some(value) = document["value_str"].as_str() {
        benchmark = format!("{benchmark}/{value}");
    }
    let function = document["function_id"].as_str().unwrap_or(VARIANT);
    Ok([benchmark, function.to_owned()])
}

/// Adds the time of one iteration in each batch.
///
/// Where batches become longer and longer, Criterion's estimate is the slope of the line through
/// the origin that fits their times best, in which a longer batch counts more. So each measurement
/// is the slope, and what its batch is off in proportion to its weight: the mean is the slope then,
/// and the deviation of the mean that of the slope.
fn sample(builder: &mut Builder, names: &[String; 2], document: &Value) -> Result<(), Wrong> {
    let root = Node::root(document);
    let iterations = root.need("iters")?.elements()?;
    let times = root.need("times")?;
    let all = times.elements()?;
    if all.len() != iterations.len() {
        let (n, m) = (all.len(), iterations.len());
        return Err(times.wrong(format!("there are {n} times and {m} counts of iterations")));
    }
    let mut batches = Vec::new();
    for (time, iterations) in all.iter().zip(&iterations) {
        let count = iterations.number()?;
        if count <= 0.0 {
            return Err(iterations.wrong("it is not above zero"));
        }
        batches.push((time.number()? * 1e-9, count));
    }
    let of = [names[0].as_str(), names[1].as_str(), ""];
    let squares: f64 = batches.iter().map(|(_, count)| count * count).sum();
    let slope = batches
        .iter()
        .map(|(time, count)| time * count)
        .sum::<f64>()
        / squares;
    let is_linear = document["sampling_mode"].as_str() == Some(LINEAR);
    for (time, count) in &batches {
        let value = match is_linear {
            true => {
                let weight = count / squares * batches.len() as f64;
                slope + (time - slope * count) * weight
            }
            false => time / count,
        };
        builder.put(of, TIME, value);
    }
    Ok(())
}

/// Adds the mean alone, which is all that there is without the sample.
fn estimate(builder: &mut Builder, names: &[String; 2], document: &Value) -> Result<(), Wrong> {
    let mean = Node::root(document).need("mean")?.need("point_estimate")?;
    let of = [names[0].as_str(), names[1].as_str(), ""];
    builder.put(of, TIME, mean.number()? * 1e-9);
    builder.warn(
        "estimates.json holds a mean and no measurements: keep sample.json beside it".to_owned(),
    );
    Ok(())
}
