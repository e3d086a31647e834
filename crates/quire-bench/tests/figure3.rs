//! Programs of the workload `figure3` run under plain pages and under Quire,
//! and print the same.

use std::process::Command;

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
    let output = Command::new(env!("CARGO_BIN_EXE_quire-bench"))
        .args(["superpages", "--quick", "--runs", "2", "--only", "figure3"])
        .args(["--programs", &names.join(",")])
        .args(["--variants", &VARIANTS.join(",")])
        .arg("--out")
        .arg(dir.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let text = std::fs::read_to_string(dir.path().join("superpages.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
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
    let output = Command::new(env!("CARGO_BIN_EXE_quire-bench"))
        .args(["superpages", "--programs", "nosuch"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}
