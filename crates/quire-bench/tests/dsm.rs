//! `quire-bench dsm`: real servers, real programs, on small sizes.

mod common;

use common::{assert_refused, bench, is_root, text};
use serde_json::Value;

/// Runs parts of it; returns the results.
fn measured(args: &[&str]) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    let all = [&["dsm", "--quick", "--runs", "1", "--out", out], args].concat();
    let output = bench(&all);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = std::fs::read_to_string(dir.path().join("dsm.md")).unwrap();
    assert!(text(&output.stdout).contains(&page));
    let json = std::fs::read_to_string(dir.path().join("dsm.json")).unwrap();
    serde_json::from_str(&json).unwrap()
}

fn figures<'a>(json: &'a Value, words: &'a str) -> impl Iterator<Item = f64> + 'a {
    let figures = json["figures"].as_array().unwrap().iter();
    let named = figures.filter(move |figure| figure["name"].as_str().unwrap().contains(words));
    named.map(|figure| figure["median"].as_f64().unwrap())
}

fn verdicts(json: &Value) -> impl Iterator<Item = &Value> {
    json["verdicts"].as_array().unwrap().iter()
}

#[test]
fn all_parts_are_measured_over_loopback() {
    let json = measured(&["--delay", "0"]);
    for words in [
        "zero-fill fault, sleeping: simple",
        "protection fault, polling: floor",
        "remote read fault, sleeping: extra for multi",
        "remote read fault, sleeping: extra for multi, a client's pages 8 times the scheduler's",
        "write what another read, in order",
        "read what was given back, in order in pages of 2 MiB",
        "bare TCP stream, by way of a process on a third",
        "2 programs, sleeping: cycle",
        "blocks of 64 B, beside a program with another size",
        "blocks of 128 KiB, freed where another machine has allocated it",
        "two programs, first fit: faults for 1000",
        "alone, nothing locked, memory: by size by first fit",
        "sent in place, received by a buffer: who sends",
        "16 servers, remote",
        "4 real servers, a round, released at once",
        "float64, little to vax-d",
        "matrix 96, speed-up on 4 nodes",
        "matrix 96, two that share nothing",
        "matrix 96, pages of 1 MiB, speed-up on 2 nodes",
        "renews the leases",
    ] {
        assert!(figures(&json, words).next().is_some(), "{words}");
    }
    let notes = json["notes"].to_string();
    let halves = verdicts(&json).filter(|it| it["setting"].as_str().unwrap().contains("half a"));
    match notes.contains("half a processor each: ") {
        true => println!("SKIP: shares of processors: {notes}"),
        false => assert_eq!(halves.count(), 2),
    }
    // What does not depend on how busy the machine is, holds.
    let mut counted = verdicts(&json).filter(|verdict| verdict["part"] == "messages");
    assert!(
        counted.all(|verdict| verdict["outcome"] == "holds"),
        "{json:#}"
    );
}

#[test]
fn faults_take_the_delay() {
    if !is_root("nodes with a delay") {
        return;
    }
    let json = measured(&["--only", "faults", "--delay", "2000"]);
    if figures(&json, "fault").next().is_none() {
        return println!("SKIP: nodes with a delay: {}", json["notes"]);
    }
    for words in ["sleeping: simple", "sleeping: floor"] {
        let medians: Vec<f64> = figures(&json, words).filter(|us| *us > 10.0).collect();
        assert_eq!(medians.len(), 3, "{words}");
        for median in medians {
            assert!((4000.0..40_000.0).contains(&median), "{words}: {median} us");
        }
    }
}

#[test]
fn bad_input_ends_with_status_2() {
    for (args, words) in [
        (&["--only", "nosuch"][..], "nosuch"),
        (&["--delay", "soon"], "soon"),
        (&["--runs", "0"], "--runs"),
    ] {
        assert_refused(&[&["dsm"], args].concat(), words);
    }
}
