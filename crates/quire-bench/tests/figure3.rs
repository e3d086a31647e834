//! Programs of the workload `figure3` run under plain pages and under Quire,
//! and print the same.

mod common;

use std::process::Command;

use common::{bench, text};

const VARIANTS: [&str; 2] = ["4k", "quire-reserve"];

#[test]
fn cheap_programs_print_the_same_under_plain_pages_and_reserve() {
    let wanted = [("xz", "xz"), ("sqlite", "sqlite3"), ("perl", "perl")];
    let installed = |file: &&(&str, &str)| {
        let said = Command::new(file.1).arg("--version").output();
        said.is_ok_and(|o| o.status.success())
    };
    let (present, absent): (Vec<_>, Vec<_>) = wanted.iter().partition(installed);
    for (name, _) in absent {
        println!("SKIP: {name} is not installed (./setup-bench)");
    }
    if present.is_empty() {
        return;
    }
    let names: Vec<&str> = present.iter().map(|(name, _)| *name).collect();
    let dir = tempfile::tempdir().unwrap();
    let (programs, variants) = (names.join(","), VARIANTS.join(","));
    let quick = ["superpages", "--quick", "--runs", "2", "--only", "figure3"];
    let which = ["--programs", &programs, "--variants", &variants];
    let out = ["--out", dir.path().to_str().unwrap()];
    let output = bench(&[&quick[..], &which, &out].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let written = std::fs::read_to_string(dir.path().join("superpages.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&written).unwrap();
    let skipped = json["skipped"].as_array().unwrap();
    if let Some(reason) = skipped.iter().find(|s| s["what"] == VARIANTS[1]) {
        println!("SKIP: {}: {}", VARIANTS[1], reason["reason"]);
        return;
    }
    let runs = json["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2 * 2 * names.len());
    assert!(runs.iter().all(|r| r["error"].is_null()), "{runs:?}");
    // Two ratios of three figures to plain pages: of each program, and the mean.
    let bars = json["normalised"].as_array().unwrap();
    assert_eq!(bars.len(), 3 * VARIANTS.len() * (names.len() + 1));
    assert!(bars.iter().all(|b| b["value"].as_f64().unwrap() > 0.0));
    let html = std::fs::read_to_string(dir.path().join("superpages.html")).unwrap();
    assert!(html.contains("geometric mean") && html.contains(names[0]));
}

#[test]
fn an_unknown_program_is_refused() {
    let output = bench(&["superpages", "--programs", "nosuch"]);
    assert_eq!(output.status.code(), Some(2));
}
