//! A quick run of two workloads writes its reports, and bad input is refused.

use std::process::{Command, Output};

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quire-bench"))
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn a_quick_run_writes_both_reports() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    let output = bench(&[
        "superpages",
        "--quick",
        "--runs",
        "2",
        "--only",
        "touch-256m,random-1g",
        "--variants",
        "4k,thp",
        "--out",
        out,
    ]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}{stderr}");
    assert!(stdout.contains("Targets"), "{stdout}");
    let text = std::fs::read_to_string(dir.path().join("superpages.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let runs = json["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 8);
    assert!(runs.iter().all(|r| r["error"].is_null()), "{runs:?}");
    let summaries = json["summaries"].as_array().unwrap();
    let medians = summaries.iter().filter(|s| s["metric"] != "huge_mib");
    assert!(medians.clone().count() >= 8);
    assert!(medians.clone().all(|s| s["median"].as_f64().unwrap() > 0.0));
    let html = std::fs::read_to_string(dir.path().join("superpages.html")).unwrap();
    assert!(html.contains("<svg") && html.contains("touch-256m") && html.ends_with("</html>\n"));
}

#[test]
fn bad_input_ends_with_status_2() {
    for args in [
        &["superpages", "--only", "nosuch"][..],
        &["superpages", "--variants", "nosuch"],
        &["superpages", "--runs", "none"],
        &[],
    ] {
        assert_eq!(bench(args).status.code(), Some(2), "{args:?}");
    }
}
