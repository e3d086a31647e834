//! `quire run --frames` as a user meets it: what is refused, before the program starts.
//! That frames are what strategies promise is tested with the library.

use std::fs;
use std::process::Command;

/// What `quire run` says about these options, and that the program was not started.
fn refusal(options: &[&str]) -> String {
    let scratch = tempfile::tempdir().unwrap();
    let started = scratch.path().join("started");
    let output = Command::new(env!("CARGO_BIN_EXE_quire"))
        .arg("run")
        .args(options)
        .args(["--", "touch"])
        .arg(&started)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{options:?}: {output:?}");
    assert!(!started.exists(), "{options:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn strategies_that_do_not_exist_are_refused() {
    assert!(refusal(&["--frames", "best"]).contains("best"));
    let beyond = refusal(&["--frames", "modulo:0-16", "--colour-bits", "12,13,14,15"]);
    assert!(beyond.contains("16"), "{beyond}");
    assert!(refusal(&["--frames", "./strategy.so"]).contains("plug-in"));
    assert!(refusal(&["--frames", "colour", "--colour-bits", "11"]).contains("11"));
}

#[test]
fn hints_that_do_not_go_together_are_refused() {
    let both = ["--hint", "heap=colour", "--hint", "heap=binhop"];
    assert!(refusal(&both).contains("heap"));
    let overlapping = [
        "--hint",
        "7f0000000000-7f0000200000=colour",
        "--hint",
        "7f0000100000-7f0000300000=binhop",
    ];
    assert!(refusal(&overlapping).contains("7f0000100000"));
    let outside = refusal(&["--hint", "ffff000000000000-ffff000000001000=colour"]);
    assert!(outside.contains("ffff000000000000"), "{outside}");
    assert!(refusal(&["--hint", "stack=colour"]).contains("stack"));
}

#[test]
fn recorded_mappings_that_cannot_be_read_are_refused() {
    let missing = refusal(&["--frames", "exact:/nowhere/frames.csv"]);
    assert!(missing.contains("quire map --csv"), "{missing}");
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("frames.csv");
    fs::write(&file, "address,pages\n0x1000,1\n").unwrap();
    let bad = refusal(&["--frames", &format!("exact:{}", file.display())]);
    assert!(bad.contains("frame"), "{bad}");
}
