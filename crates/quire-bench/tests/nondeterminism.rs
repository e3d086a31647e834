//! The benchmark set, each benchmark in a process of its own, and the study of
//! non-determinism from its beginning to its end.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{BIN, assert_refused, bench, is_root, library, text};
use quire_lab::run::Run;

/// Small data, so that the tests are short.
const CACHE: &str = "--cache-size=64K";

/// The benchmarks that the program offers.
fn names() -> Vec<String> {
    let help = text(&bench(&["workload", "--help"]).stdout);
    let (_, list) = help.split_once("possible values: ").unwrap();
    let (list, _) = list.split_once(']').unwrap();
    let names = list.split(',').map(|name| name.trim().to_owned());
    names.collect()
}

/// Those of which nobody expects that they are quick where the code is not optimised.
fn is_short(name: &str) -> bool {
    !name.ends_with("-large")
}

#[test]
fn each_benchmark_is_right_and_can_be_wrong() {
    let names = names();
    assert!(names.len() > 40, "{names:?}");
    for name in names.iter().filter(|name| is_short(name.as_str())) {
        let run = |more: &[&str]| bench(&[&["workload", name, "-r", "2", CACHE], more].concat());
        let right = run(&[]);
        let (said, why) = (text(&right.stdout), text(&right.stderr));
        if right.status.code() == Some(2) && why.contains("is missing") {
            println!("SKIP: {name}: {}", why.lines().next().unwrap_or_default());
            continue;
        }
        assert!(right.status.success(), "{name}: {why}");
        let times = said.lines().filter(|line| line.starts_with("quire: time "));
        let seconds = times.map(|line| line.split(' ').nth(2).unwrap().parse::<f64>().unwrap());
        let seconds: Vec<f64> = seconds.collect();
        assert_eq!(seconds.len(), 2, "{name}: {said}");
        assert!(
            seconds.iter().all(|s| (0.0..60.0).contains(s)),
            "{name}: {said}"
        );
        let wrong = run(&["--spoil"]);
        assert_eq!(wrong.status.code(), Some(1), "{name}");
        assert!(
            text(&wrong.stderr).contains("the result is wrong"),
            "{name}"
        );
        assert!(!text(&wrong.stdout).contains("quire: "), "{name}");
    }
}

#[test]
fn measurements_go_to_the_descriptor_that_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("told");
    let script = format!(
        "QUIRE_BENCH_FD=7 {BIN} workload sparse-small -r 3 7>{}",
        path.display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "");
    let told = std::fs::read_to_string(path).unwrap();
    assert_eq!(told.matches("quire: time ").count(), 3, "{told}");
    let with = |name: &str, value: &str| {
        let mut command = Command::new(BIN);
        let command = command.args(["workload", "sparse-small"]);
        command.env(name, value).output().unwrap()
    };
    let closed = with("QUIRE_BENCH_FD", "99");
    assert!(!closed.status.success());
    assert!(text(&closed.stderr).contains("QUIRE_BENCH_FD=99"));
    let four = with("QUIRE_BENCH_MEASUREMENTS", "4");
    assert_eq!(text(&four.stdout).matches("quire: time ").count(), 4);
    let wrong = with("QUIRE_BENCH_MEASUREMENTS", "many");
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("QUIRE_BENCH_MEASUREMENTS=many"));
}

fn has_library() -> bool {
    library("the study of non-determinism").is_some()
}

fn may_be_realtime() -> bool {
    is_root("real-time scheduling")
}

/// Two benchmarks, one of each kind, with so many executions each.
fn study(output: &Path, executions: usize) -> Command {
    let mut command = Command::new(BIN);
    command
        .args(["nondeterminism", "--only", "sor-half,hex", CACHE])
        .args(["--executions", &executions.to_string()])
        .args(["--measurements", "4", "-o"])
        .arg(output);
    command
}

/// What every pair has to have after `executions`.
fn assert_whole(run: &Run, executions: usize) {
    assert_eq!(run.failures, []);
    assert_eq!(run.executions.len(), 2 * 3 * executions);
    // Whatever ran first, the others are compared with `default`.
    assert_eq!(run.all_variants(), ["default", "colour", "binhop"]);
    for (benchmark, measurements) in [("sor-half", 4), ("hex", 1)] {
        for variant in ["default", "colour", "binhop"] {
            let times = run.measurements(benchmark, variant, "time");
            assert_eq!(times.len(), executions, "{benchmark} {variant}");
            assert!(times.iter().all(|times| times.len() == measurements));
            assert!(times.concat().iter().all(|time| *time > 0.0));
            // Where a strategy was asked for, it has chosen.
            let chosen = run.measurements(benchmark, variant, "chosen").concat();
            match variant {
                "default" => assert_eq!(chosen, [0.0; 0]),
                _ => assert!(chosen.iter().all(|share| *share > 50.0), "{chosen:?}"),
            }
        }
    }
    let mut orders: Vec<u64> = run.executions.iter().map(|e| e.order).collect();
    orders.sort_unstable();
    assert!(orders.into_iter().eq(0..6 * executions as u64));
}

#[test]
fn a_study_is_made_resumed_and_extended() {
    if !has_library() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.jsonl");
    let done = study(&path, 2).output().unwrap();
    let said = text(&done.stdout);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_whole(&Run::read(&path).unwrap(), 2);
    for words in [
        "Paper %",
        "5.1, Fig. 4",
        "colour is better than binhop",
        "quire report ",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let whole = std::fs::read_to_string(&path).unwrap();

    // As an interruption leaves it: five executions, and half of one.
    let mut cut: String = whole.split_inclusive('\n').take(6).collect();
    cut += "{\"kind\":\"execu";
    std::fs::write(&path, &cut).unwrap();
    assert!(study(&path, 2).output().unwrap().status.success());
    let resumed = Run::read(&path).unwrap();
    assert_whole(&resumed, 2);
    let before = Run::parse(&cut).unwrap();
    assert_eq!(resumed.executions[..5], before.executions);

    // With more executions, those that are there stay.
    assert!(study(&path, 3).output().unwrap().status.success());
    let extended = Run::read(&path).unwrap();
    assert_whole(&extended, 3);
    assert_eq!(extended.executions[..12], resumed.executions);
}

#[test]
fn an_interrupted_study_keeps_what_it_has() {
    if !has_library() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.jsonl");
    let mut command = Command::new(BIN);
    command.args(["nondeterminism", "--only", "sor-half", CACHE, "-o"]);
    let mut child = command.arg(&path).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    let count = || Run::read(&path).map_or(0, |run| run.executions.len());
    while count() < 3 && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let run = Run::read(&path).unwrap();
    assert!((3..60).contains(&run.executions.len()), "{run:?}");
    assert_eq!(run.failures, []);
}

#[test]
fn a_real_time_study_is_scheduled_so() {
    if !has_library() || !may_be_realtime() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.jsonl");
    let done = study(&path, 2).arg("--realtime").output().unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_whole(&Run::read(&path).unwrap(), 2);
    let said = text(&done.stdout);
    assert!(
        said.contains("first-in, first-out") && said.contains("5.6"),
        "{said}"
    );
    let launched = bench(&["launch", "--realtime", "--", "cat", "/proc/self/stat"]);
    let stat = text(&launched.stdout);
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    // Priority and policy are fields 40 and 41, the first of these is field 3.
    assert_eq!(fields[37..39], ["98", "1"], "{stat}");
    let limits = bench(&["launch", "--realtime", "--", "cat", "/proc/self/limits"]);
    let limits = text(&limits.stdout);
    let watchdog = limits
        .lines()
        .find(|line| line.contains("realtime timeout"));
    assert!(
        watchdog.is_some_and(|line| line.contains("120000000")),
        "{limits}"
    );
}

/// A program that runs wild at a real-time priority is killed by the kernel. The limit
/// that the study sets is made shorter for it.
#[test]
fn a_real_time_program_that_never_waits_is_killed() {
    if !may_be_realtime() {
        return;
    }
    let start = Instant::now();
    let wild = ["sh", "-c", "while :; do :; done"];
    let limited = ["prlimit", "--rttime=200000:200000"];
    let args = [&["launch", "--realtime", "--"][..], &limited, &wild].concat();
    let output = bench(&args);
    assert_eq!(output.status.signal(), Some(9), "{}", text(&output.stderr));
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn real_time_without_the_right_is_refused() {
    if !has_library() || !may_be_realtime() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.jsonl");
    let mut command = Command::new("setpriv");
    let without = ["--inh-caps=-sys_nice", "--bounding-set=-sys_nice", BIN];
    command
        .args(without)
        .args(["nondeterminism", "--realtime", "-o"]);
    let output = command.arg(&path).output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("ulimit -r 99"), "{stderr}");
    assert!(!path.exists());
}

#[test]
fn bad_input_ends_with_status_2_and_starts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other.jsonl");
    std::fs::write(&other, "notes of mine\n").unwrap();
    let other = other.to_str().unwrap();
    for (args, words) in [
        (&["nondeterminism", "--only", "fft"][..], "fft"),
        (&["nondeterminism", "--executions", "1"], "--executions"),
        (&["nondeterminism", "--measurements", "1"], "--measurements"),
        (&["nondeterminism", "--cache-size", "1K"], "from 16 KiB to"),
        (&["workload", "nosuch"], "nosuch"),
        (&["workload", "hex", "-r", "0"], "--repetitions"),
    ] {
        assert_refused(args, words);
    }
    if has_library() {
        let args = ["nondeterminism", "--only", "hex", "-o", other];
        assert_refused(&args, "name another file with -o");
        assert_eq!(std::fs::read_to_string(other).unwrap(), "notes of mine\n");
    }
}
