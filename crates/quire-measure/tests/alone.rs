//! `quire-measure` alone: it measures, reads, plans and compares without the rest of Quire.

use std::path::Path;
use std::process::{Command, Output};

fn measure(directory: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire-measure"));
    command.args(args).current_dir(directory);
    command.env_remove("NO_COLOR").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn commands_are_measured_reported_planned_and_compared() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let done = measure(dir.path(), args);
        assert!(done.status.success(), "{args:?}: {}", text(&done.stderr));
        text(&done.stdout)
    };
    let said = run(&[
        "bench",
        "-r",
        "8",
        "-o",
        "a.jsonl",
        "sleep 0.05",
        "sleep 0.01",
    ]);
    assert!(
        said.contains("`sleep 0.01` is better than `sleep 0.05`"),
        "{said}"
    );
    assert!(run(&["report", "a.jsonl", "-o", "-", "--format", "markdown"]).contains("sleep 0.01"));
    assert!(run(&["plan", "a.jsonl"]).contains("quire-measure bench --runs"));
    run(&["compare", "a.jsonl", "a.jsonl"]);
}

/// Whose results they are may be anybody: a terminal obeys none of their names.
#[test]
fn names_are_one_line_and_no_orders_to_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let times = "[1.0, 1.1, 1.2]";
    let result = |name: &str| format!(r#"{{"command": "{name}", "times": {times}}}"#);
    let all = [result("a\\u001b[31m\\nb"), result("c")].join(", ");
    std::fs::write(
        dir.path().join("h.json"),
        format!(r#"{{"results": [{all}]}}"#),
    )
    .unwrap();
    for args in [&["plan", "h.json"][..], &["compare", "h.json", "h.json"]] {
        let said = text(&measure(dir.path(), args).stdout);
        assert!(said.contains("a [31m b"), "{said}");
        assert!(!said.contains('\u{1b}'), "{said}");
    }
    let done = measure(dir.path(), &["bench", "-r", "3", "true\ntrue", "true"]);
    let said = text(&done.stdout);
    assert!(said.contains("  true true  "), "{said}");
}

#[test]
fn what_is_wrong_is_said_in_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let done = measure(dir.path(), &["bench", "--nonsense"]);
    assert_eq!(done.status.code(), Some(2));
    let said = text(&done.stderr);
    assert!(
        said.starts_with("quire-measure: unexpected argument '--nonsense'"),
        "{said}"
    );
    assert!(
        said.contains("(see `quire-measure bench --help`)"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(text(&measure(dir.path(), &["--help"]).stdout).contains("compare"));
    for (args, words) in [
        (&["bench", "true", " "][..], "a command is empty"),
        (&["bench", "-m", "0", "-M", "2", "true"], "--min-runs"),
        (&["bench", "-m", "5", "-M", "3", "true"], "--min-runs"),
        (&["bench", "-m", "5", "-f", "e.toml"], "cannot be used with"),
        (
            &["bench", "--input", "none", "cat"],
            "there is no such file",
        ),
        (&["bench", "--runs"], "(see `quire-measure bench --help`)"),
        (
            &["report", "--seed", "x", "r"],
            "(see `quire-measure report --help`)",
        ),
    ] {
        let done = measure(dir.path(), args);
        assert_eq!(done.status.code(), Some(2), "{args:?}");
        let said = text(&done.stderr);
        assert!(said.contains(words), "{said}");
    }
}

/// Whatever it says of a run, it calls itself by its own name.
#[test]
fn lines_begin_with_the_name_of_the_command() {
    let dir = tempfile::tempdir().unwrap();
    let commands = ["sh -c 'exit 3'", "echo | cat"];
    let done = measure(
        dir.path(),
        &[&["bench", "-r", "2", "-o", "r.jsonl"][..], &commands].concat(),
    );
    assert_eq!(done.status.code(), Some(1));
    let said = text(&done.stderr);
    for line in said.lines() {
        assert!(line.starts_with("quire-measure: "), "{line}");
    }
    for words in [
        "commands: sh -c 'exit 3': execution 1: its exit status was 3",
        "shell start (sh): ",
        "executions; results in r.jsonl",
    ] {
        assert!(said.contains(words), "{said}");
    }
    let done = measure(dir.path(), &["bench"]);
    let said = text(&done.stderr);
    assert!(said.contains("such as quire-measure bench "), "{said}");
    for command in ["bench", "report", "plan", "compare"] {
        let help = text(&measure(dir.path(), &[command, "--help"]).stdout);
        assert!(!help.contains("quire "), "{help}");
    }
}

/// What was exported before is there until there is something to take its place.
#[test]
fn a_run_that_fails_leaves_the_file_of_an_export_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.json");
    std::fs::write(&file, "before").unwrap();
    let export = ["bench", "-r", "2", "--export-json", "out.json"];
    let done = measure(
        dir.path(),
        &[&export[..], &["-s", "false", "true"]].concat(),
    );
    assert_eq!(done.status.code(), Some(1));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "before");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    assert!(
        measure(dir.path(), &[&export[..], &["true"]].concat())
            .status
            .success()
    );
    let written: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(written["results"][0]["command"], "true");
}

#[test]
fn a_single_execution_has_a_mean_in_a_unit_that_is_read_easily() {
    let dir = tempfile::tempdir().unwrap();
    let said = text(&measure(dir.path(), &["bench", "-r", "1", "sleep 0.02"]).stdout);
    assert!(said.starts_with("commands: time in ms\n"), "{said}");
    let row = said
        .lines()
        .find(|line| line.contains("sleep 0.02"))
        .unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    // The name, the runs, the mean, no interval of it, and the median.
    assert_eq!((cells[2], cells[4]), ("1", "-"), "{said}");
    assert_eq!(cells[3], cells[5], "{said}");
    assert!(
        said.contains("No interval of the mean of sleep 0.02: "),
        "{said}"
    );
}
