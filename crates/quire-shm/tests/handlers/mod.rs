//! Signals of programs, which come at any time.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::harness::{Running, Served, assert_well, signal};
use crate::program;

/// Collectors of garbage stop a thread wherever it is, and need memory then.
#[test]
fn threads_may_be_stopped_by_signals() {
    handled("collect");
}

#[test]
fn handlers_may_jump() {
    handled("jump");
}

fn handled(what: &str) {
    for served in Served::both() {
        let handlers = program("handlers");
        let output = served.run("grid", &handlers, &[what, "/grid"]).output();
        assert_well(&output.expect("it was built"));
    }
}

/// Who waits for a server that does not answer can be ended.
#[test]
fn a_program_that_waits_can_be_ended() {
    let served = Served::start();
    let handlers = program("handlers");
    let mut running = Running::start(&mut served.run("grid", &handlers, &["end", "/grid"]));
    running.hear("made");
    let stop = Command::new("kill")
        .args(["-s", "STOP", &served.process().to_string()])
        .status();
    assert!(stop.is_ok_and(|status| status.success()), "it is ours");
    running.hear("ending");
    let begin = Instant::now();
    assert_eq!(signal(running.status()), Some(15));
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
}
