//! Several runs as one.

use crate::import::ImportError;
use crate::run::Run;

/// Joins runs, in their order. What is told of the machine is told once where they agree.
///
/// # Errors
/// Without runs, and when they disagree in what a metric is.
pub fn join(runs: Vec<Run>) -> Result<Run, ImportError> {
    let several = runs.len() > 1;
    let mut runs = runs.into_iter();
    let Some(mut all) = runs.next() else {
        return Err(ImportError::Join("there are no results".into()));
    };
    let mut differing = Vec::new();
    let (mut base, mut added) = (1, 0);
    for run in runs {
        add_metrics(&mut all, &run)?;
        add_environment(&mut all, &run, &mut differing);
        let last = all.executions[added..].iter().map(|e| e.order).max();
        base = last.map_or(base, |last| last + 1);
        added = all.executions.len();
        for mut execution in run.executions {
            execution.order += base;
            all.executions.push(execution);
        }
        for mut failure in run.failures {
            failure.order += base;
            all.failures.push(failure);
        }
        for warning in run.header.warnings {
            if !all.header.warnings.contains(&warning) {
                all.header.warnings.push(warning);
            }
        }
    }
    if !differing.is_empty() {
        let warning = format!(
            "the files differ in {}: what they have in common counts as executions of one \
             experiment; give only files that were measured alike",
            differing.join(", ")
        );
        all.header.warnings.push(warning);
    }
    if several {
        // A run that was joined cannot be resumed.
        all.header.experiment = serde_json::Value::Null;
    }
    Ok(all)
}

fn add_metrics(all: &mut Run, run: &Run) -> Result<(), ImportError> {
    for (name, metric) in &run.header.metrics {
        match all.header.metrics.get_mut(name) {
            None => {
                all.header.metrics.insert(name.clone(), metric.clone());
            }
            Some(known) if known.unit == metric.unit && known.better == metric.better => {
                known.primary |= metric.primary;
            }
            Some(known) => {
                return Err(ImportError::Join(format!(
                    "{}: {name} is in {:?} with {:?} better, and in {:?} with {:?} better in {}; \
                     report them one by one",
                    run.path.display(),
                    metric.unit,
                    metric.better,
                    known.unit,
                    known.better,
                    all.path.display()
                )));
            }
        }
    }
    Ok(())
}

/// What differs from file to file anyhow, and says nothing of the machine.
fn passes(name: &str) -> bool {
    ["date", "load", "uptime", "pid", "time"]
        .iter()
        .any(|part| name.to_ascii_lowercase().contains(part))
}

fn add_environment(all: &mut Run, run: &Run, differing: &mut Vec<String>) {
    for (name, value) in &run.header.environment {
        match all.header.environment.get_mut(name) {
            None => {
                all.header.environment.insert(name.clone(), value.clone());
            }
            Some(known) if known.split(" | ").any(|one| one == value) => {}
            Some(known) => {
                known.push_str(" | ");
                known.push_str(value);
                if !passes(name) && !differing.contains(name) {
                    differing.push(name.clone());
                }
            }
        }
    }
}
