//! What Google Benchmark writes with `--benchmark_out` or `--benchmark_format=json`: a
//! `context` and `benchmarks`, one entry for each repetition. All of them are of one
//! process, so a file is one execution; the repetitions are its measurements.
//! Aggregates are left out, because they are computed anew here.

use serde_json::Value;

use crate::import::Wrong;
use crate::import::builder::{Builder, Node, VARIANT, seconds_in};
use crate::run::{Better, Run, TIME};

/// Members of an entry that are no counters.
const NOT_COUNTERS: &[&str] = &[
    "family_index",
    "per_family_instance_index",
    "repetitions",
    "repetition_index",
    "threads",
    "iterations",
    "real_time",
    "cpu_time",
];

pub fn parse(document: &Value) -> Result<Run, Wrong> {
    let root = Node::root(document);
    let mut builder = Builder::default();
    builder.environment(document.get("context"));
    builder.metric(TIME, "s", Better::Lower);
    if document["context"]["cpu_scaling_enabled"] == Value::Bool(true) {
        let warning = "the frequency of the CPU may change: use the governor `performance`";
        builder.warn(warning.to_owned());
    }
    if document["context"]["library_build_type"] == "debug" {
        builder.warn("the benchmark library was built without optimisation".to_owned());
    }
    for entry in root.need("benchmarks")?.elements()? {
        add(&mut builder, &entry)?;
    }
    builder.finish(
        "it holds no repetitions: run it without --benchmark_report_aggregates_only, which \
         leaves them out",
    )
}

fn add(builder: &mut Builder, entry: &Node) -> Result<(), Wrong> {
    let is = |name: &str, wanted: &str| entry.get(name).is_some_and(|v| *v.value() == wanted);
    if is("run_type", "aggregate") {
        return Ok(());
    }
    let name = match entry.get("run_name") {
        Some(name) => name.text()?,
        None => entry.need("name")?.text()?,
    };
    // `SkipWithError` and `SkipWithMessage`: their times are 0.
    for (mark, message) in [
        ("error_occurred", "error_message"),
        ("skipped", "skip_message"),
    ] {
        if entry
            .get(mark)
            .is_some_and(|is| *is.value() == Value::Bool(true))
        {
            let reason = entry.get(message);
            let reason = reason.and_then(|reason| reason.value().as_str());
            builder.fail(name, VARIANT, reason.unwrap_or(mark).to_owned());
            return Ok(());
        }
    }
    let scale = match entry.get("time_unit") {
        Some(unit) => {
            let text = unit.text()?;
            seconds_in(text).ok_or_else(|| unit.wrong(format!("`{text}` is no unit of time")))?
        }
        None => seconds_in("ns").unwrap_or(1e-9),
    };
    let of = [name, VARIANT, ""];
    builder.put(of, TIME, entry.need("real_time")?.number()? * scale);
    if let Some(time) = entry.get("cpu_time") {
        builder.metric("cpu time", "s", Better::Lower);
        builder.put(of, "cpu time", time.number()? * scale);
    }
    counters(builder, entry, of);
    Ok(())
}

fn counters(builder: &mut Builder, entry: &Node, of: [&str; 3]) {
    let Value::Object(members) = entry.value() else {
        return;
    };
    for (name, value) in members {
        let Some(value) = value.as_f64().filter(|value| value.is_finite()) else {
            continue;
        };
        let (unit, better) = match name.as_str() {
            "bytes_per_second" => ("bytes/s", Better::Higher),
            "items_per_second" => ("1/s", Better::Higher),
            name if NOT_COUNTERS.contains(&name) => continue,
            _ => ("", Better::Lower),
        };
        builder.metric(name, unit, better);
        builder.put(of, name, value);
    }
}
