//! What is said of measurements is the same everywhere, and true: `quire bench`, `report`,
//! `compare` and `plan` on data that are known.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::tempdir;

/// Runs the command in a directory.
fn quire(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.current_dir(dir).args(args).output().unwrap()
}

/// What it prints, as JSON.
fn printed(dir: &Path, args: &[&str]) -> Value {
    let done = quire(dir, args);
    let said = String::from_utf8_lossy(&done.stderr);
    serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Noise of about one deviation, by place.
const NOISE: [f64; 10] = [-1.28, 0.84, -0.52, 0.25, 0.0, 0.0, -0.25, 0.52, -0.84, 1.28];

/// Values around a mean that vary by 2 %.
fn values(mean: f64) -> Vec<f64> {
    NOISE.iter().map(|z| mean * (1.0 + 0.02 * z)).collect()
}

/// A command that takes as its measurement the next number of a file.
fn pop(dir: &Path, name: &str, values: &[f64]) -> String {
    let lines = values.iter().fold(String::new(), |mut text, value| {
        writeln!(text, "{value}").unwrap();
        text
    });
    fs::write(dir.join(name), lines).unwrap();
    format!("v=$(head -1 {name}); sed -i 1d {name}; echo quire: time $v s")
}

#[test]
fn bench_report_and_compare_say_the_same() {
    for (factor, word) in [
        (1.003, "Nothing can be"),
        (1.016, ""),
        (1.1, "new is worse than old: "),
    ] {
        let dir = tempdir().unwrap();
        let dir = dir.path();
        let (old, mut new) = (values(1.0), values(factor));
        // What varies together, round by round, would be a drift.
        new.reverse();
        let (first, second) = (pop(dir, "a", &old), pop(dir, "b", &new));
        let names = [
            "-n", "old", "-n", "new", "--from", "stdout", "-r", "10", "-o", "r.jsonl",
        ];
        let args = [&["bench", "--json"], &names[..], &[&first, &second]].concat();
        let bench = printed(dir, &args);
        let said = bench["results"][0]["conclusions"][0]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(said.starts_with(word), "{said}");
        let report = printed(dir, &["report", "--format", "json", "r.jsonl"]);
        let sentence = report["pairs"][0]["sentence"].as_str().unwrap();
        assert!(sentence.starts_with(&said), "{sentence}\n{said}");
        for one in ["old", "new"] {
            let values = if one == "old" { &old } else { &new };
            let lines: String = values.iter().map(|value| format!("v,{value}\n")).collect();
            fs::write(
                dir.join(format!("{one}.csv")),
                format!("variant,value\n{lines}"),
            )
            .unwrap();
        }
        let compared = printed(
            dir,
            &[
                "compare",
                "--json",
                "--threshold",
                "0%",
                "old.csv",
                "new.csv",
            ],
        );
        assert_eq!(compared["compared"][0]["sentence"], said);
    }
}

/// Results of three variants, of which another one is executed first in each.
#[test]
fn the_first_variant_of_the_file_is_compared_with_whatever_ran_first() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    let mut orders = Vec::new();
    for seed in 1..=4 {
        let toml = format!(
            "seed = {seed}\nexecutions = 2\n[[benchmark]]\nname = \"b\"\ncommand = \"true\"\n\
             [[variant]]\nname = \"plain\"\n[[variant]]\nname = \"zz\"\nnice = 1\n\
             [[variant]]\nname = \"aa\"\nnice = 2\n"
        );
        fs::write(dir.join("e.toml"), toml).unwrap();
        let file = format!("{seed}.jsonl");
        let done = quire(dir, &["bench", "-q", "-f", "e.toml", "-o", &file]);
        assert!(done.status.success(), "{}", text(&done.stderr));
        let first = fs::read_to_string(dir.join(&file)).unwrap();
        orders.push(first.lines().nth(1).unwrap().contains("plain"));
        let report = printed(dir, &["report", "--format", "json", &file]);
        assert_eq!(
            report["standings"][0]["variants"],
            json!(["plain", "zz", "aa"])
        );
        assert_eq!(report["pairs"][0]["old"], "plain");
        let other = ["report", "--format", "json", "--reference", "aa", &file];
        let other = printed(dir, &other);
        assert_eq!(
            other["standings"][0]["variants"],
            json!(["aa", "plain", "zz"])
        );
    }
    assert!(orders.contains(&false), "plain always ran first");
    let done = quire(dir, &["report", "--reference", "none", "1.jsonl"]);
    assert_eq!(done.status.code(), Some(2));
    assert!(text(&done.stderr).contains("there are: plain, zz, aa"));
}

/// A result of hyperfine.
fn hyperfine(command: &str, mean: f64, size: Option<u32>, code: u32) -> Value {
    let times = values(mean);
    let codes = vec![code; times.len()];
    let mut result = json!({"command": command, "times": times, "exit_codes": codes});
    if let Some(size) = size {
        result["parameters"] = json!({"size": size.to_string()});
    }
    result
}

fn write(dir: &Path, name: &str, results: &[Value]) {
    fs::write(dir.join(name), json!({ "results": results }).to_string()).unwrap();
}

#[test]
fn one_name_with_other_parameters_is_another_command() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    let [small, large] =
        [(1, 0.01), (2, 0.2)].map(|(size, mean)| hyperfine("solver", mean, Some(size), 0));
    write(dir, "old.json", &[small.clone(), large.clone()]);
    write(dir, "new.json", std::slice::from_ref(&large));
    write(dir, "swapped.json", &[large.clone(), small.clone()]);
    write(dir, "small.json", &[small]);
    for (old, new) in [
        ("old", "new"),
        ("new", "old"),
        ("old", "swapped"),
        ("swapped", "old"),
    ] {
        let files = [old, new].map(|name| format!("{name}.json"));
        let done = quire(dir, &["compare", &files[0], &files[1]]);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stdout));
        assert!(
            !text(&done.stdout).contains("improvement"),
            "{}",
            text(&done.stdout)
        );
    }
    let report = printed(
        dir,
        &["report", "--format", "json", "small.json", "new.json"],
    );
    let variants = report["experiments"].as_array().unwrap();
    let variants: Vec<&str> = variants
        .iter()
        .map(|one| one["variant"].as_str().unwrap())
        .collect();
    assert_eq!(variants, ["solver (size=1)", "solver (size=2)"]);
    write(
        dir,
        "shown.json",
        &[hyperfine("solver -s 2", 0.1, Some(2), 0)],
    );
    let report = printed(dir, &["report", "--format", "json", "shown.json"]);
    assert_eq!(report["experiments"][0]["variant"], "solver -s 2");
}

#[test]
fn failed_runs_of_hyperfine_can_be_taken() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    write(dir, "failed.json", &[hyperfine("grep x", 0.01, None, 1)]);
    let report = |more: &[&str]| {
        let args = [&["report", "--format", "json", "failed.json"], more].concat();
        printed(dir, &args)
    };
    assert_eq!(report(&[])["failures"].as_array().unwrap().len(), 10);
    let taken = report(&["--ignore-failure"]);
    assert_eq!(taken["failures"].as_array().unwrap().len(), 0);
    assert_eq!(taken["experiments"][0]["executions"], 10);
}

#[test]
fn a_plan_is_made_of_what_other_tools_measured() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    write(
        dir,
        "hf.json",
        &[
            hyperfine("gzip", 0.75, None, 0),
            hyperfine("xz", 1.9, None, 0),
        ],
    );
    let plan = printed(dir, &["plan", "--json", "--precision", "1%", "hf.json"]);
    let rows = plan["plans"].as_array().unwrap();
    let seconds = |row: &Value| row["spend"]["seconds"].as_f64().unwrap();
    let sum: f64 = rows.iter().map(seconds).sum();
    assert!(
        (plan["seconds"].as_f64().unwrap() - sum).abs() < 1e-9,
        "{plan}"
    );
    let said = text(&quire(dir, &["plan", "hf.json"]).stdout);
    assert_eq!(said.matches("`quire bench --runs ").count(), 1, "{said}");
    assert!(
        said.contains(&format!("All of them take {sum:.1} s")),
        "{said}"
    );
}

/// One benchmark varies within executions and one between them: one line for both would take many
/// times as long as each by itself.
#[test]
fn a_plan_for_all_is_no_dearer_than_what_each_takes_or_is_not_offered() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    let mut lines = "benchmark,variant,execution,metric,value\n".to_owned();
    for (name, between, within, mean) in [("in", 0.005, 0.1, 0.004), ("out", 0.08, 0.01, 0.018)] {
        for (execution, level) in NOISE.iter().enumerate() {
            let own = mean * (1.0 + between * level);
            let noise = NOISE.iter().chain(&NOISE);
            let times: Vec<f64> = noise.map(|z| own * (1.0 + within * z)).collect();
            for time in &times {
                writeln!(lines, "{name},v,{execution},time,{time}").unwrap();
            }
            let wall = 0.25 + times.iter().sum::<f64>();
            writeln!(lines, "{name},v,{execution},wall_time,{wall}").unwrap();
        }
    }
    fs::write(dir.join("pilot.csv"), lines).unwrap();
    let plan = printed(dir, &["plan", "--json", "pilot.csv"]);
    let own = plan["seconds"].as_f64().unwrap();
    let common = plan["common"]["seconds"].as_f64().unwrap();
    let said = text(&quire(dir, &["plan", "pilot.csv"]).stdout);
    let commands = said.matches("`quire bench --runs ").count();
    assert_eq!(commands, if common <= 1.5 * own { 1 } else { 2 }, "{said}");
}
