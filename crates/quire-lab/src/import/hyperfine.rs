//! What `hyperfine --export-json` writes: `results`, each with its `command` and the
//! `times` of its runs in seconds. Every run is an execution of one measurement; the
//! commands are variants of one benchmark. Runs whose exit status is not 0 count as
//! failures.

use serde_json::Value;

use crate::import::Wrong;
use crate::import::builder::{Builder, Node};
use crate::run::{Better, Run, TIME};

/// The benchmark of which the commands are variants.
const BENCHMARK: &str = "command";
/// The largest resident set of a run.
const MEMORY: &str = "peak memory";

pub fn parse(document: &Value) -> Result<Run, Wrong> {
    let results = Node::root(document).need("results")?.elements()?;
    let mut builder = Builder::default();
    builder.metric(TIME, "s", Better::Lower);
    let mut names: Vec<String> = Vec::new();
    for result in &results {
        let name = name(result, &names)?;
        add(&mut builder, result, &name)?;
        names.push(name);
    }
    builder.finish("it holds no times")
}

/// The command, with its parameters where another has the same, and a number where that
/// does not tell them apart.
fn name(result: &Node, taken: &[String]) -> Result<String, Wrong> {
    let mut name = result.need("command")?.text()?.to_owned();
    if let (true, Some(Value::Object(parameters))) = (
        taken.contains(&name),
        result.get("parameters").map(|node| node.value()),
    ) {
        let text = |(name, value): (&String, &Value)| match value {
            Value::String(text) => format!("{name}={text}"),
            other => format!("{name}={other}"),
        };
        let parameters: Vec<String> = parameters.iter().map(text).collect();
        name = format!("{name} ({})", parameters.join(", "));
    }
    let same = |n: usize| match n {
        1 => name.clone(),
        n => format!("{name} #{n}"),
    };
    let free = (1..).map(same).find(|one| !taken.contains(one));
    Ok(free.unwrap_or(name))
}

fn add(builder: &mut Builder, result: &Node, variant: &str) -> Result<(), Wrong> {
    let times = result.get("times").ok_or_else(|| {
        result.wrong("`times` is missing: export with --export-json, which holds every run")
    })?;
    let codes = list(result, "exit_codes")?;
    let memory = list(result, "memory_usage_byte")?;
    for (n, time) in times.elements()?.iter().enumerate() {
        let code = codes.get(n).map(|code| code.value());
        let seconds = time.number()?;
        match code.filter(|code| code.as_i64() != Some(0)) {
            Some(Value::Null) => {
                builder.fail(BENCHMARK, variant, format!("run {}: killed", n + 1));
                continue;
            }
            Some(code) => {
                let reason = format!("run {}: exit status {code}", n + 1);
                builder.fail(BENCHMARK, variant, reason);
                continue;
            }
            None => {}
        }
        let of = [BENCHMARK, variant, &n.to_string()];
        builder.put(of, TIME, seconds);
        if let Some(memory) = memory.get(n) {
            builder.metric(MEMORY, "bytes", Better::Lower);
            builder.put(of, MEMORY, memory.number()?);
        }
    }
    Ok(())
}

fn list<'a>(result: &Node<'a>, name: &str) -> Result<Vec<Node<'a>>, Wrong> {
    let found = result.get(name);
    found.map_or_else(|| Ok(Vec::new()), |list| list.elements())
}
