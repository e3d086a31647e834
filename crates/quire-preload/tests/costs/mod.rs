//! What the library costs a process that does not grow: address space, memory, and time.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::slots::{self, Slots};
use crate::harness::{build, process, skip};

const POLICIES: [&str; 3] = ["adaptive", "eager", "base"];

/// A command with the library, or without it.
fn command(argv: &[&str], policy: Option<&str>) -> Command {
    let words: Vec<_> = argv.iter().map(std::ffi::OsString::from).collect();
    let mut command = process::command(&words, &std::env::temp_dir());
    if let Some(policy) = policy {
        command.env("LD_PRELOAD", build::library());
        command.env("QUIRE_POLICY", policy);
    }
    command.stdin(Stdio::null());
    command
}

fn small() -> String {
    build::program("small").display().to_string()
}

/// The least KiB of a limit, which the shell sets by `ulimit` with this option, with which a small program runs.
fn least(option: &str, policy: Option<&str>) -> u64 {
    let runs = |kib: u64| {
        // The shell is not preloaded.
        let preload = policy.map_or(String::new(), |policy| {
            let library = build::library().display();
            format!("LD_PRELOAD={library} QUIRE_POLICY={policy} ")
        });
        let script = format!("ulimit {option} {kib}; {preload}exec {}", small());
        let ran = command(&["sh", "-c", &script], None)
            .stderr(Stdio::null())
            .status();
        ran.expect("there is a shell").success()
    };
    let (mut fails, mut works) = (0, 64 << 10);
    assert!(runs(works), "{option} {works} is too little");
    while works - fails > 4 {
        let middle = u64::midpoint(fails, works);
        if runs(middle) {
            works = middle;
        } else {
            fails = middle;
        }
    }
    works
}

#[test]
fn limits_of_a_small_program() {
    let _slots = Slots::take(1);
    for option in ["-v", "-d"] {
        let plain = least(option, None);
        for policy in POLICIES {
            let with = least(option, Some(policy));
            eprintln!("note: ulimit {option}: {plain} KiB, {with} under {policy}");
            assert!(
                with <= plain + 1024,
                "{option}: {with} KiB, {plain} without it"
            );
        }
    }
}

/// The resident memory of a small program, in KiB: the mean, as where things come to lie makes a difference.
fn resident(policy: Option<&str>) -> u64 {
    const RUNS: u64 = 60;
    let one = || {
        let output = command(&[&small(), "rss"], policy).output();
        let output = output.expect("it can be run").stdout;
        let text = String::from_utf8(output).expect("it prints a number");
        text.trim().parse::<u64>().expect("it prints a number")
    };
    (0..RUNS).map(|_| one()).sum::<u64>() / RUNS
}

#[test]
fn memory_of_a_small_program() {
    let _slots = Slots::take(1);
    let plain = resident(None);
    for policy in POLICIES {
        let with = resident(Some(policy));
        eprintln!("note: {plain} KiB resident, {with} under {policy}");
        assert!(
            // What is wanted is 300.
            with <= plain + 340,
            "{with} KiB resident, {plain} without it"
        );
    }
}

/// How long it takes to start a process, one by one: the median.
#[test]
fn time_of_a_small_program() {
    const RUNS: usize = 500;
    if process::find("true").is_none() {
        return skip("time_of_a_small_program", "there is no command true");
    }
    let _slots = Slots::take(slots::ALL);
    let mut times: [Vec<Duration>; 2] = [Vec::new(), Vec::new()];
    for run in 0..2 * RUNS {
        let policy = (run % 2 == 1).then_some("adaptive");
        let mut command = command(&["true"], policy);
        let begin = Instant::now();
        let status = command.status().expect("it can be run");
        times[run % 2].push(begin.elapsed());
        assert!(status.success());
    }
    let [plain, with] = times.map(|mut times| {
        times.sort_unstable();
        times[RUNS / 2].as_secs_f64() * 1e3
    });
    eprintln!("note: a process takes {plain:.3} ms, {with:.3} with the library");
    assert!(with <= plain + 0.3, "{with:.3} ms, {plain:.3} without it");
}
