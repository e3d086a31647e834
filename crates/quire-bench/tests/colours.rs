//! The experiments with frames: their reports, and what real page tables come to in the
//! model of the cache.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use common::{BIN, assert_refused, bench, is_root, library, text};
use serde_json::Value;

/// 1 MiB with 16 colours.
const L2: &str = "level=2,sets=1024,ways=16,line=64";
/// Pages of that cache for each colour.
const EVEN: f64 = 16.0;

fn has_library() -> bool {
    library("frames by strategy").is_some()
}

fn may_see_frames() -> bool {
    is_root("frames as page tables show them")
}

/// Runs the experiments and returns the JSON report, the rows and what was printed.
fn report(args: &[&str]) -> (Value, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    let output = bench(&[&["colours", "--out", out], args].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let read = |name| std::fs::read_to_string(dir.path().join(name)).unwrap();
    assert!(read("colours.html").ends_with("</html>\n"));
    let json = serde_json::from_str(&read("colours.json")).unwrap();
    (json, read("colours.csv"), text(&output.stdout))
}

/// A figure of every round.
fn samples(json: &Value, experiment: &str, strategy: &str, metric: &str) -> Vec<f64> {
    let runs = json["runs"].as_array().unwrap().iter();
    let meant = runs.filter(|run| run["experiment"] == experiment && run["allocation"] == strategy);
    meant
        .map(|run| {
            assert!(run["error"].is_null(), "{run}");
            run["metrics"][metric].as_f64().unwrap()
        })
        .collect()
}

#[test]
fn a_quick_run_writes_its_reports() {
    let strategies = match has_library() && may_see_frames() {
        true => "default,default-aged,colour,binhop",
        false => "default,default-aged",
    };
    let parts = "populate,populate-random,fft";
    let (json, csv, text) = report(&[
        "--quick",
        "--runs",
        "2",
        "--size",
        "4M",
        "--set",
        L2,
        "--level",
        "2",
        "--only",
        parts,
        "--strategies",
        strategies,
    ]);
    assert_eq!(json["benchmark"], "colours");
    let count = strategies.split(',').count();
    let runs = json["runs"].as_array().unwrap();
    // Scattered memory is of no interest to first touches.
    assert_eq!(runs.len(), 2 * (2 * (count - 1) + 3 * count));
    for strategy in strategies.split(',') {
        let times = samples(&json, "fft-double", strategy, "pass_us");
        assert!(times.len() == 2 && times.iter().all(|time| *time > 0.0));
        let row = format!("fft-double,131072,{strategy},conflict,");
        assert!(csv.contains(&row), "{csv}");
        if strategy != "default-aged" {
            assert!(
                samples(&json, "populate", strategy, "gib_ms")
                    .iter()
                    .all(|time| *time > 0.0)
            );
            assert!(
                csv.contains(&format!("populate-random,1048576,{strategy},gib_ms,")),
                "{csv}"
            );
        }
    }
    for word in [
        "Cache: L2, 64 KiB",
        "PMU: ",
        "Waking a thread: ",
        "Targets",
        "--quick",
    ] {
        assert!(text.contains(word), "{word} {text}");
    }
    if count > 2 {
        let verdicts = json["verdicts"].as_array().unwrap();
        assert_eq!(verdicts.len(), 2);
        assert!(
            verdicts
                .iter()
                .all(|v| v["measured"].as_array().unwrap().len() == 3)
        );
    }
}

/// The real addresses of real processes in the frames that their page tables show.
#[test]
fn page_colouring_has_no_conflicts_and_default_some() {
    if !may_see_frames() || !has_library() {
        return;
    }
    let strategies = "default-aged,colour,colour:hashed,modulo:all";
    let (json, ..) = report(&[
        "--runs",
        "2",
        "--set",
        L2,
        "--level",
        "2",
        "--only",
        "array",
        "--strategies",
        strategies,
    ]);
    assert_eq!(
        json["frames"],
        "those that /proc/self/pagemap shows for the process"
    );
    for strategy in ["colour", "colour:hashed", "modulo:all"] {
        for (experiment, share) in [("array-half", 0.5), ("array-equal", 1.0)] {
            let all = |metric| samples(&json, experiment, strategy, metric);
            assert_eq!(all("conflict"), [0.0; 2], "{experiment} {strategy}");
            assert_eq!(all("capacity"), [0.0; 2], "{experiment} {strategy}");
            assert_eq!(all("crowd"), [EVEN * share; 2], "{experiment} {strategy}");
            assert_eq!(all("cold"), [16384.0 * share; 2]);
            assert_eq!(all("moved"), [0.0; 2]);
            assert_eq!(all("chosen_pct"), [100.0; 2]);
        }
        // Twice the cache misses for want of room, whatever the frames.
        let double = samples(&json, "array-double", strategy, "capacity");
        assert!(double.iter().all(|misses| *misses > 10_000.0), "{double:?}");
        assert_eq!(
            samples(&json, "array-double", strategy, "conflict"),
            [0.0; 2]
        );
    }
    let aged = samples(&json, "array-equal", "default-aged", "conflict");
    // By chance the kernel's frames may suit the cache once.
    assert!(aged.iter().any(|misses| *misses > 0.0), "{aged:?}");
    let verdicts = json["verdicts"].as_array().unwrap();
    assert_eq!(verdicts.len(), 2 * 3 + 1);
    assert!(
        verdicts.iter().all(|v| v["outcome"] == "holds"),
        "{verdicts:?}"
    );
}

/// Without root, frames are made up, and the report says so.
#[test]
fn hidden_frames_are_made_up() {
    let dir = tempfile::tempdir().unwrap();
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(dir.path(), open.clone()).unwrap();
    // The build directory may be closed to other users.
    let program = dir.path().join("quire-bench");
    std::fs::copy(BIN, &program).unwrap();
    std::fs::set_permissions(&program, open).unwrap();
    let mut command = match rustix::process::geteuid().is_root() {
        true => {
            let mut command = Command::new("setpriv");
            let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
            command.args(user).arg(&program);
            command
        }
        false => Command::new(&program),
    };
    let output = command
        .args([
            "colours",
            "--runs",
            "2",
            "--only",
            "array",
            "--strategies",
            "default",
        ])
        .args(["--set", L2, "--level", "2", "--out"])
        .arg(dir.path())
        .output();
    let Ok(output) = output else {
        return println!("SKIP: setpriv is missing");
    };
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(
        stdout.contains("Frames in the model: made up, "),
        "{stdout}"
    );
    let json = std::fs::read_to_string(dir.path().join("colours.json")).unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    let conflicts = samples(&json, "array-equal", "default", "conflict");
    assert!(
        conflicts.iter().all(|misses| *misses > 0.0),
        "{conflicts:?}"
    );
}

#[test]
fn bad_input_ends_with_status_2() {
    for (args, words) in [
        (&["--only", "nosuch"][..], "nosuch"),
        (&["--strategies", "colours"], "colours"),
        (&["--runs", "0"], "--runs"),
        (&["--size", "12"], "from 1 MiB to"),
        (&["--cache-size", "1K"], "from 16 KiB to"),
        (&["--set", "level=2"], "says nothing of the cache"),
        (&["--set", L2, "--level", "7"], "no such cache is known"),
        (
            &["--set", "level=2,sets=64,ways=4,line=64", "--level", "2"],
            "one colour",
        ),
    ] {
        assert_refused(&[&["colours"], args].concat(), words);
    }
}
