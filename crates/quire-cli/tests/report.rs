//! `quire report` and `quire compare` as a user meets them.

#[path = "common/refusal.rs"]
mod refusal;

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use refusal::assert_refused;
use serde_json::Value;
use tempfile::{TempDir, tempdir};

/// Runs the command in a directory.
fn quire(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.current_dir(dir).args(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A file of ten executions of three measurements, all of about this many seconds.
fn results(dir: &TempDir, name: &str, seconds: f64) {
    let mut text = "benchmark,variant,execution,value\n".to_owned();
    for execution in 0..10 {
        for measurement in 0..3 {
            let value = seconds * (1.0 + f64::from(execution * 3 + measurement) * 1e-4);
            writeln!(text, "fft,plain,{execution},{value}").unwrap();
        }
    }
    fs::write(dir.path().join(name), text).unwrap();
}

fn old_and_new(new: f64) -> TempDir {
    let dir = tempdir().unwrap();
    results(&dir, "old.csv", 0.1);
    results(&dir, "new.csv", new);
    dir
}

#[test]
fn a_report_is_a_page_unless_it_is_said_otherwise() {
    let dir = old_and_new(0.1);
    let done = quire(dir.path(), &["report", "old.csv"]);
    assert_eq!(stdout(&done), "quire-report.html\n");
    let page = fs::read_to_string(dir.path().join("quire-report.html")).unwrap();
    assert!(
        page.starts_with("<!DOCTYPE html>") && page.contains("<svg"),
        "{page}"
    );
    for (args, begin) in [
        (&["-o", "out.md"][..], "# old"),
        (&["-o", "out.json"], "{"),
        (&["-o", "out.csv"], "benchmark,variant,metric,unit,figure"),
        (&["-o", "out.txt", "--format", "markdown"], "# old"),
    ] {
        let done = quire(dir.path(), &[&["report", "old.csv"], args].concat());
        assert_eq!(stdout(&done), format!("{}\n", args[1]));
        let text = fs::read_to_string(dir.path().join(args[1])).unwrap();
        assert!(text.starts_with(begin), "{text}");
    }
    let left = fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name());
    assert!(
        !left
            .into_iter()
            .any(|name| name.to_string_lossy().contains(".part"))
    );
}

#[test]
fn standard_output_takes_every_form() {
    let dir = old_and_new(0.1);
    let text = |args: &[&str]| stdout(&quire(dir.path(), &[&["report", "old.csv"], args].concat()));
    assert!(text(&["-o", "-"]).starts_with("<!DOCTYPE html>"));
    assert!(text(&["--format", "markdown"]).starts_with("# old"));
    let json: Value = serde_json::from_str(&text(&["--format", "json"])).unwrap();
    assert_eq!(json["experiments"][0]["executions"], 10);
    assert_eq!(json["resamples"], 10_000);
    let data = text(&["--format", "data"]);
    fs::write(dir.path().join("again.csv"), &data).unwrap();
    let again = stdout(&quire(
        dir.path(),
        &["report", "again.csv", "--format", "data"],
    ));
    assert_eq!(again, data);
}

#[test]
fn the_settings_of_the_statistics_count() {
    let dir = old_and_new(0.1);
    let json = |args: &[&str]| -> Value {
        let args = [
            &[
                "report",
                "old.csv",
                "--format",
                "json",
                "--resamples",
                "100",
            ],
            args,
        ]
        .concat();
        serde_json::from_str(&stdout(&quire(dir.path(), &args))).unwrap()
    };
    let width = |json: &Value| {
        let mean = &json["experiments"][0]["mean"];
        mean["high"].as_f64().unwrap() - mean["low"].as_f64().unwrap()
    };
    let narrow = json(&["--confidence", "60%", "--seed", "5"]);
    assert!(width(&narrow) < width(&json(&[])));
    assert_eq!(
        (&narrow["seed"], &narrow["confidence"]),
        (&5.into(), &0.6.into())
    );
    assert_eq!(json(&["--seed", "5"]), json(&["--seed", "5"]));
}

#[test]
fn bad_input_is_refused_and_nothing_is_written() {
    let dir = old_and_new(0.1);
    fs::write(dir.path().join("bad.csv"), "value\n1\nfast\n").unwrap();
    let refused = |args: &[&str], words: &[&str]| {
        let done = quire(dir.path(), args);
        assert_refused(&done, 2, words);
        assert!(done.stdout.is_empty());
    };
    refused(
        &["report", "bad.csv"],
        &["bad.csv:3: ", "`fast` is no number"],
    );
    refused(&["report", "none.csv"], &["none.csv: No such file"]);
    refused(&["report", "old.csv", "-o", "x.pdf"], &[".pdf", "--format"]);
    refused(
        &["report", "old.csv", "-o", "no/x.md"],
        &["cannot write no/x.md"],
    );
    refused(
        &["report", "old.csv", "--confidence", "95"],
        &["such as 95%"],
    );
    refused(&["report", "old.csv", "--resamples", "1"], &["resamples"]);
    refused(&["report"], &["RUN"]);
    refused(&["compare", "old.csv", "bad.csv"], &["bad.csv:3: "]);
    refused(
        &["compare", "old.csv", "new.csv", "--threshold", "3"],
        &["such as 3%"],
    );
    refused(
        &["compare", "old.csv", "new.csv", "--threshold=-3%"],
        &["threshold"],
    );
    fs::write(dir.path().join("other.csv"), "benchmark,value\nlu,1\n").unwrap();
    refused(
        &["compare", "old.csv", "other.csv"],
        &["in common", "fft", "lu"],
    );
    let mut files: Vec<String> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(files, ["bad.csv", "new.csv", "old.csv", "other.csv"]);
}

#[test]
fn the_exit_status_says_whether_it_is_worse() {
    for (new, threshold, status, word) in [
        (0.1, "3%", 0, "no difference beyond noise"),
        (0.11, "3%", 1, "regression"),
        (0.11, "20 %", 0, "below the threshold"),
        (0.09, "3%", 0, "improvement"),
    ] {
        let dir = old_and_new(new);
        let done = quire(
            dir.path(),
            &["compare", "old.csv", "new.csv", "--threshold", threshold],
        );
        assert_eq!(done.status.code(), Some(status), "{new} {threshold}");
        let text = stdout(&done);
        assert!(text.contains(word), "{text}");
        assert!(!text.contains('\x1b'), "colours where there is no terminal");
    }
}

#[test]
fn a_comparison_comes_in_the_forms_of_ci() {
    let dir = old_and_new(0.11);
    fs::write(dir.path().join("extra.csv"), "benchmark,value\nlu,1\n").unwrap();
    fs::create_dir(dir.path().join("new")).unwrap();
    for name in ["new.csv", "extra.csv"] {
        fs::copy(dir.path().join(name), dir.path().join("new").join(name)).unwrap();
    }
    let args = [
        "compare",
        "old.csv",
        "new",
        "--json",
        "--junit",
        "j.xml",
        "--markdown",
        "c.md",
    ];
    let done = quire(dir.path(), &args);
    assert_eq!(done.status.code(), Some(1));
    let json: Value = serde_json::from_str(&stdout(&done)).unwrap();
    assert_eq!(json["regressions"], 1);
    assert_eq!(json["compared"][0]["outcome"], "regression");
    assert_eq!(json["in_one_only"][0]["benchmark"], "lu");
    let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
    assert!(read("j.xml").contains("<failure") && read("j.xml").contains("skipped=\"1\""));
    assert!(read("c.md").contains("**regression**") && read("c.md").contains("only in new: lu"));
}

#[test]
fn a_name_cannot_steer_the_terminal() {
    let dir = tempdir().unwrap();
    for name in ["old.csv", "new.csv"] {
        fs::write(
            dir.path().join(name),
            "benchmark,value\n\"\x1b[2Jx\",1\n\"\x1b[2Jx\",2\n",
        )
        .unwrap();
    }
    let text = stdout(&quire(dir.path(), &["compare", "old.csv", "new.csv"]));
    assert!(text.contains("[2Jx") && !text.contains('\x1b'), "{text}");
}

#[test]
fn a_full_disk_leaves_what_was_there() {
    let dir = old_and_new(0.1);
    let full = Path::new("/dev/full");
    assert!(full.exists());
    let done = quire(
        dir.path(),
        &["report", "old.csv", "--format", "json", "-o", "/dev/full"],
    );
    assert_refused(&done, 2, &["cannot write /dev/full", "No space left"]);
    assert!(full.exists(), "a device is not replaced");
}

#[test]
fn few_executions_are_told_and_other_intervals_can_be_chosen() {
    let dir = old_and_new(0.1);
    let report = |args: &[&str]| {
        let all = [&["report", "old.csv", "--format", "json"], args].concat();
        let json = stdout(&quire(dir.path(), &all));
        serde_json::from_str::<Value>(&json).unwrap()
    };
    let [plain, same, bca] = [
        report(&[]),
        report(&["--intervals", "percentile"]),
        report(&["--intervals", "bca"]),
    ];
    assert_eq!(plain, same);
    let of = |json: &Value, key: &str| json["experiments"][0][key].clone();
    assert_ne!(of(&plain, "cv_unclassified"), of(&bca, "cv_unclassified"));
    assert_eq!(of(&plain, "mean"), of(&bca, "mean"));
    assert_eq!(of(&plain, "few_executions")["enough"], 50);
    let wrong = quire(dir.path(), &["report", "old.csv", "--intervals", "wide"]);
    assert_eq!(wrong.status.code(), Some(2));
    // Intervals of comparisons are no narrower for that.
    let compared = stdout(&quire(dir.path(), &["compare", "old.csv", "new.csv"]));
    assert!(!compared.contains("executions are few"), "{compared}");
}
