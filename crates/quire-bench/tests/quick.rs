//! Quick runs write their reports, those of several processes too, and bad
//! input is refused.

mod common;

use common::{bench, library, text};

/// The reports of a quick run, as JSON and HTML, and what was printed.
fn quick(only: &str, variants: &str, runs: &str) -> (serde_json::Value, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let what = ["superpages", "--quick", "--only", only];
    let how = ["--variants", variants, "--runs", runs];
    let out = ["--out", dir.path().to_str().unwrap()];
    let output = bench(&[&what[..], &how, &out].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let read = |name| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let json = serde_json::from_str(&read("superpages.json")).unwrap();
    (json, read("superpages.html"), text(&output.stdout))
}

#[test]
fn a_quick_run_writes_both_reports() {
    let (json, html, stdout) = quick("touch-256m,random-1g", "4k,thp", "2");
    assert!(stdout.contains("Targets"), "{stdout}");
    let runs = json["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 8);
    assert!(runs.iter().all(|r| r["error"].is_null()), "{runs:?}");
    let summaries = json["summaries"].as_array().unwrap();
    let medians = summaries.iter().filter(|s| s["metric"] != "huge_mib");
    assert!(medians.clone().count() >= 8);
    assert!(medians.clone().all(|s| s["median"].as_f64().unwrap() > 0.0));
    assert!(html.contains("<svg") && html.contains("touch-256m") && html.ends_with("</html>\n"));
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
    let mut variants = vec!["4k", "plain"];
    if library("variants of Quire").is_some() {
        variants.extend(["quire-reserve", "quire-adaptive"]);
    }
    let workloads = ["cycle", "compete", "fragmented", "forks"];
    let (json, html, _) = quick(&workloads.join(","), &variants.join(","), "1");
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
                    // Only reservations can be preempted.
                    let preempts = figure("sparse_preemptions") > Some(0.0);
                    assert_eq!(preempts, *variant == "quire-reserve", "{variant}");
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
    assert_eq!(compared.count() > 0, variants.len() > 2);
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
