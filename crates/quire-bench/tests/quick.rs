//! Quick runs write their reports, those of several processes too, and bad
//! input is refused.

use std::path::{Path, PathBuf};
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

/// The library of Quire, where one is built. Building one here would take
/// minutes.
fn quire_library() -> Option<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let built = target.unwrap_or_else(|| workspace.join("target"));
    let asked = std::env::var_os("QUIRE_LIB").map(PathBuf::from);
    let library = asked.unwrap_or_else(|| built.join("preload/libquire.so"));
    library.exists().then_some(library)
}

fn quick_json(only: &str, variants: &str) -> (serde_json::Value, String) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    let output = bench(&[
        "superpages",
        "--quick",
        "--runs",
        "1",
        "--only",
        only,
        "--variants",
        variants,
        "--out",
        out,
    ]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let read = |name| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let json = serde_json::from_str(&read("superpages.json")).unwrap();
    (json, read("superpages.html"))
}

/// The figure of a workload under a variant, if it was measured.
fn median(json: &serde_json::Value, workload: &str, variant: &str, metric: &str) -> Option<f64> {
    let all = json["summaries"].as_array().unwrap();
    let one = all
        .iter()
        .find(|s| s["workload"] == workload && s["variant"] == variant && s["metric"] == metric)?;
    one["median"].as_f64()
}

#[test]
fn workloads_of_several_processes_run_under_each_variant() {
    let mut variants = vec!["4k"];
    match quire_library() {
        Some(_) => variants.extend(["quire-reserve", "quire-adaptive"]),
        None => println!("SKIP: variants of Quire: libquire.so is not built"),
    }
    let workloads = ["cycle", "compete", "fragmented", "forks"];
    let (json, html) = quick_json(&workloads.join(","), &variants.join(","));
    let runs = json["runs"].as_array().unwrap();
    assert!(runs.iter().all(|r| r["error"].is_null()), "{runs:?}");
    for workload in workloads {
        let skipped = json["skipped"].as_array().unwrap();
        if let Some(skipped) = skipped.iter().find(|s| s["what"] == workload) {
            println!("SKIP: {workload}: {}", skipped["reason"]);
            continue;
        }
        assert!(html.contains(&format!("<h2 id=\"{workload}\">")));
        for variant in &variants {
            let figure = |metric| median(&json, workload, variant, metric);
            match workload {
                "cycle" => assert!(figure("mmap_sparse_ms") > Some(0.0)),
                // Whether both live under Quire is what it measures.
                "compete" if *variant == "4k" => {
                    assert_eq!(figure("survivors"), Some(2.0));
                    assert_eq!(figure("tight_survivors"), Some(2.0));
                }
                "compete" => {
                    assert!(figure("survivors") > Some(0.0), "{variant}");
                    assert!(figure("sparse_preemptions") > Some(0.0), "{variant}");
                }
                "fragmented" => {
                    assert!(figure("fill_ms") > Some(0.0) && figure("compact_fill_ms") > Some(0.0));
                    assert_eq!(figure("holes_mib"), Some(64.0));
                }
                _ => assert_eq!(figure("intact"), Some(1.0), "{variant}"),
            }
        }
    }
    let compared = json["verdicts"].as_array().unwrap();
    let compared = compared
        .iter()
        .filter(|v| v["text"].as_str().unwrap().contains("no worse"));
    assert_eq!(compared.count() > 0, variants.len() > 1);
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
