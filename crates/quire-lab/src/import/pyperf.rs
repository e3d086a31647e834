//! JSON files of pyperf: `benchmarks`, each with its `runs`; a run is a process, so it is
//! an execution, and its `values` are the measurements. Runs without values calibrated
//! the others; warm-ups are left out, as pyperf does.

use serde_json::Value;

use crate::import::Wrong;
use crate::import::builder::{Builder, Node, VARIANT};
use crate::run::{Better, Run, TIME};

pub fn parse(document: &Value) -> Result<Run, Wrong> {
    let root = Node::root(document);
    let mut builder = Builder::default();
    builder.environment(document.get("metadata"));
    for benchmark in root.need("benchmarks")?.elements()? {
        add(&mut builder, &root, &benchmark)?;
    }
    builder.finish("none of its runs has values")
}

/// A value of the metadata of a benchmark, or else of the whole file.
fn metadata<'a>(root: &Node<'a>, benchmark: &Node<'a>, name: &str) -> Option<Node<'a>> {
    let of = |node: &Node<'a>| node.get("metadata").and_then(|found| found.get(name));
    of(benchmark).or_else(|| of(root))
}

fn add<'a>(builder: &mut Builder, root: &Node<'a>, benchmark: &Node<'a>) -> Result<(), Wrong> {
    let name = metadata(root, benchmark, "name");
    let name = name.map_or(Ok("benchmark"), |name| name.text())?;
    let unit = metadata(root, benchmark, "unit");
    let metric = match unit.as_ref().map(|unit| unit.text()).transpose()? {
        None | Some("second") => (TIME, "s"),
        Some("byte") => ("memory", "bytes"),
        Some("integer") => ("count", ""),
        Some(other) => {
            let place = unit.unwrap_or_else(|| benchmark.clone());
            return Err(place.wrong(format!("`{other}` is none of second, byte and integer")));
        }
    };
    builder.metric(metric.0, metric.1, Better::Lower);
    for (n, run) in benchmark.need("runs")?.elements()?.iter().enumerate() {
        let Some(values) = run.get("values") else {
            continue;
        };
        for value in values.elements()? {
            let of = [name, VARIANT, &n.to_string()];
            builder.put(of, metric.0, value.number()?);
        }
    }
    Ok(())
}
