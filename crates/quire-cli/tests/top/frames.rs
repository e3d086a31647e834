//! What is told of frames by strategy, of a real process: part of its memory is coloured,
//! the rest is on superpages.

use serde_json::Value;

use crate::managed::{Real, offers_frames, quire, run_with_library, stat};

/// The heap is coloured; mappings follow the policy.
const HINT: [&str; 4] = ["--hint", "heap=colour", "--colour-bits", "12,13,14,15"];
/// Fills 8 MiB of heap in small pieces, and a mapping of 32 MiB. The pager looks ten
/// times a second.
const SCRIPT: &str = "
import mmap,time
small=[bytes(4000) for _ in range(2000)]
large=mmap.mmap(-1,32<<20,mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS)
for at in range(0,32<<20,4096): large[at]=1
time.sleep(0.5)";
/// Pages that the small pieces fill.
const SMALL: u64 = 2000 * 4000 / 4096;

/// The ranges of a list in JSON.
fn ranges(list: &Value) -> Vec<(u64, u64)> {
    let range = |entry: &Value| {
        let at = |key: &str| entry[key].as_u64().unwrap();
        (at("start"), at("end"))
    };
    list.as_array().unwrap().iter().map(range).collect()
}

/// The heap's strategy, of what `quire stat --json` says of a process.
fn of_heap(process: &Value) -> &Value {
    let mut strategies = process["strategies"].as_array().unwrap().iter();
    strategies
        .find(|strategy| strategy["target"] == "heap")
        .unwrap()
}

fn text(args: &[&str]) -> String {
    let output = quire(args).env("COLUMNS", "200").output().unwrap();
    assert!(output.status.success(), "{args:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_process_tells_what_is_coloured_and_what_is_on_superpages() {
    if !offers_frames() {
        println!("SKIP: frames cannot be given by strategy here (quire doctor)");
        return;
    }
    let real = match Real::start("eager", &HINT, SCRIPT) {
        Ok(real) => real,
        Err(why) => return println!("SKIP: {why}"),
    };
    let process = stat(real.pid);
    let heap = of_heap(&process);
    assert_eq!(heap["strategy"], "colour");
    let chosen = heap["chosen_pages"].as_u64().unwrap();
    assert!(chosen >= SMALL, "{chosen} of {SMALL}");
    assert_eq!(process["frames_chosen"], heap["chosen_pages"]);
    let coloured = ranges(&heap["placed"]);
    let huge = ranges(&process["superpage_regions"]);
    assert!(!coloured.is_empty());
    assert!(
        huge.iter().any(|(start, end)| end - start >= 32 << 20),
        "{huge:?}"
    );
    let apart = |a: &(u64, u64), b: &(u64, u64)| a.1 <= b.0 || b.1 <= a.0;
    assert!(coloured.iter().all(|a| huge.iter().all(|b| apart(a, b))));

    let pid = real.pid.to_string();
    let table = text(&["stat", &pid]);
    let row = table
        .lines()
        .find(|line| line.starts_with("  heap "))
        .unwrap();
    assert!(
        row.contains(" colour ") && row.contains(&chosen.to_string()),
        "{table}"
    );
    assert!(table.contains(" in stock"), "{table}");
    let metrics = text(&["stat", "--prometheus", &pid]);
    let sample = "policy=\"eager\",target=\"heap\",strategy=\"colour\",frame=\"chosen\"} ";
    let line = metrics.lines().find(|line| line.contains(sample)).unwrap();
    assert!(line.ends_with(&format!(" {chosen}")), "{line}");
    let screen = text(&["top", "--once", "-i", "0.1", &pid]);
    let line = format!("; heap=colour {chosen} chosen, ");
    assert!(
        screen.contains("Frames: 0 pages/s, ") && screen.contains(&line),
        "{screen}"
    );
}

#[test]
fn the_summary_says_which_is_which() {
    if !offers_frames() {
        println!("SKIP: frames cannot be given by strategy here (quire doctor)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("stats.json");
    let output = run_with_library("eager", &HINT)
        .arg("--stats")
        .arg(&file)
        .args(["--", "python3", "-c", SCRIPT])
        .output()
        .unwrap();
    let summary = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{summary}");
    let line = |start: &str| {
        let mut lines = summary.lines();
        lines
            .find(|line| line.starts_with(start))
            .unwrap_or_else(|| panic!("{summary}"))
    };
    assert!(line("quire: eager: ").contains(" superpages at the peak"));
    assert!(line("quire: frames: heap=colour: ").ends_with(" 0 left"));
    let mapping = line("quire: superpages: ");
    assert!(
        mapping.contains("anon, eager: ") && mapping.ends_with(" at the peak"),
        "{mapping}"
    );
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let sum = &report["strategies"][0];
    assert_eq!(
        (&sum["target"], &sum["strategy"]),
        (&"heap".into(), &"colour".into())
    );
    assert_eq!(sum["chosen_pages"], report["totals"]["frames_chosen"]);
    assert!(sum["chosen_pages"].as_u64().unwrap() >= SMALL, "{sum}");
}

/// Nothing about frames where nobody asked for a strategy.
#[test]
fn what_asks_for_nothing_is_told_nothing() {
    let output = run_with_library("reserve", &[])
        .args(["--", "python3", "-c", SCRIPT])
        .output()
        .unwrap();
    let summary = String::from_utf8(output.stderr).unwrap();
    assert!(!summary.contains("frames"), "{summary}");
}
