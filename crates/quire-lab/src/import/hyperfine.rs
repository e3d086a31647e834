//! What `hyperfine --export-json` writes: `results`, each with its `command` and the
//! `times` of its runs in seconds. Every run is an execution of one measurement; the
//! commands are variants of one benchmark. Runs whose exit status is not 0 count as
//! failures, of which the time is kept.

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

/// The command, with those of its parameters that it does not show, so that it is the same one in
/// every file; and with a number where that does not tell two apart.
fn name(result: &Node, taken: &[String]) -> Result<String, Wrong> {
    let command = result.need("command")?.text()?.to_owned();
    let parameters = result.get("parameters");
    let parameters = parameters
        .as_ref()
        .and_then(|node| node.value().as_object());
    let parameters = parameters.into_iter().flatten().map(|(name, value)| {
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), String::from);
        (name, value)
    });
    let parameters: Vec<(&String, String)> = parameters.collect();
    let with = |is_told: &dyn Fn(&str) -> bool| {
        let told = parameters.iter().filter(|(_, value)| is_told(value));
        let told: Vec<String> = told
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        match told.is_empty() {
            true => command.clone(),
            false => format!("{command} ({})", told.join(", ")),
        }
    };
    let (hidden, all) = (with(&|value| !shows(&command, value)), with(&|_| true));
    let numbered = (2..).map(|n| format!("{all} #{n}"));
    let names = [hidden, all.clone()].into_iter().chain(numbered);
    let mut free = names.filter(|one| !taken.contains(one));
    Ok(free.next().unwrap_or(command))
}

/// Whether a command shows a value, as words of its own.
fn shows(command: &str, value: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    !value.is_empty()
        && command.match_indices(value).any(|(at, _)| {
            let (before, after) = (&command[..at], &command[at + value.len()..]);
            !is_part(before.chars().next_back()) && !is_part(after.chars().next())
        })
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
        if let Some(code) = code.filter(|code| code.as_i64() != Some(0)) {
            let how = match code {
                Value::Null => "killed".to_owned(),
                code => format!("exit status {code}"),
            };
            let reason = format!("run {}: {how}", n + 1);
            builder.fail_with([BENCHMARK, variant], reason, seconds);
            continue;
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
