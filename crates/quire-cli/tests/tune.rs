//! `quire tune` as a user meets it. Programs report what they "measure" themselves, by the
//! policy that they run under, so that nothing depends on how fast or how busy the machine
//! is; one test has the real library and counts page faults.

#[path = "common/refusal.rs"]
mod refusal;
#[path = "common/signals.rs"]
mod signals;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use quire_lab::run::Run;
use serde_json::Value;

use refusal::assert_refused;
use signals::send;

/// A library that every machine has and that does nothing when preloaded.
fn harmless_library() -> &'static str {
    [
        "/lib/x86_64-linux-gnu/libm.so.6",
        "/usr/lib64/libm.so.6",
        "/usr/lib/libm.so.6",
    ]
    .into_iter()
    .find(|path| Path::new(path).exists())
    .expect("the C library's libm.so.6")
}

fn quire(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    for variable in ["QUIRE_LIB", "QUIRE_PROVIDE_LIB", "QUIRE_JEMALLOC_LIB"] {
        command.env(variable, harmless_library());
    }
    command.args(args);
    command
}

fn tune(options: &[&str], script: &str) -> Output {
    let program = ["--", "sh", "-c", script];
    let args = [&["tune"], options, &program].concat();
    quire(&args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(options: &[&str], script: &str) -> Value {
    let done = tune(&[&["--json", "--quiet"], options].concat(), script);
    serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&done.stderr)))
}

/// What is said of a candidate.
fn row<'a>(said: &'a Value, name: &str) -> &'a Value {
    let rows = said["candidates"].as_array().unwrap();
    let row = rows.iter().find(|row| row["candidate"] == name);
    row.unwrap_or_else(|| panic!("no {name} in {said}"))
}

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Dir {
        Dir(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn name(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// A script that counts its executions in `$n`, and reports what `report` writes.
    fn counting(&self, report: &str) -> String {
        let file = self.name("count");
        format!(
            "n=$(cat {file} 2>/dev/null || echo 0); echo $((n + 1)) > {file}; p=${{QUIRE_POLICY:-plain}}; {report}"
        )
    }
}

/// Reports a cost of about 100 ms, by the policy, with a noise of ±3 that repeats itself.
fn costs(cases: &str) -> String {
    format!(
        "case $p in {cases} *) v=10000;; esac; echo cost $((v + (n * 37 % 7 - 3) * 100)) us >/proc/$$/fd/$QUIRE_BENCH_FD"
    )
}

const THREE: [&str; 4] = ["--candidates", "base,eager,reserve", "-e", "10"];

#[test]
fn the_best_is_named_with_its_command_line() {
    let dir = Dir::new();
    let script = dir.counting(&costs("eager) v=8000;; reserve) v=15000;;"));
    let file = dir.name("tune.jsonl");
    let done = tune(&[&THREE[..], &["--save", &file]].concat(), &script);
    let said = text(&done.stdout);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert!(said.contains("`eager` is best"), "{said}");
    assert!(
        said.contains("Use: quire run --policy eager -- sh -c "),
        "{said}"
    );
    assert!(said.contains("worse than eager"), "{said}");
    // The results say so, too, search and confirmation apart.
    let run = Run::read(Path::new(&file)).unwrap();
    let of = |part: &str, variant: &str| run.measurements(part, variant, "cost").len();
    assert_eq!(of("sh (confirmation)", "reserve"), 0);
    let confirmed = of("sh (confirmation)", "eager");
    assert!((5..=10).contains(&confirmed), "{confirmed}");
    assert_eq!(of("sh (confirmation)", "plain"), confirmed);
    let report = quire(&["report", "--format", "markdown", &file])
        .output()
        .unwrap();
    let report = text(&report.stdout);
    assert!(report.contains("sh (confirmation)"), "{report}");
}

#[test]
fn where_none_differs_that_is_said() {
    let dir = Dir::new();
    let said = json(&THREE, &dir.counting(&costs("")));
    assert_eq!(said["outcome"], "none", "{said}");
    assert!(said["best"].is_null());
    let sentence = said["sentence"].as_str().unwrap();
    assert!(sentence.contains("None differs"), "{sentence}");
    assert!(sentence.contains("1 %"), "{sentence}");
    // The program as it is.
    assert_eq!(said["command"][0], "sh", "{said}");
    for name in ["plain", "base", "eager", "reserve"] {
        assert!(row(&said, name)["mean"]["value"].is_number(), "{said}");
    }
}

#[test]
fn a_gain_below_the_threshold_is_none() {
    let dir = Dir::new();
    let script = dir.counting(&costs("eager) v=8000;;"));
    let options = [&THREE[..], &["--threshold", "30%"]].concat();
    assert_eq!(json(&options, &script)["outcome"], "none");
}

#[test]
fn the_least_variation_is_found_within_the_tolerance() {
    let varies = "case $p in eager) v=101; w=1;; reserve) v=130; w=1;; *) v=100; w=10;; esac; \
        echo cost $((v * 1000 + (n * 37 % 11 - 5) * w * 100)) us >/proc/$$/fd/$QUIRE_BENCH_FD";
    let options = ["--for", "determinism", "--candidates", "base,eager,reserve"];
    let said = json(&options, &Dir::new().counting(varies));
    assert_eq!(said["outcome"], "best", "{said}");
    assert_eq!(said["best"], "eager", "{said}");
    let ratio = &row(&said, "eager")["variation_ratio"];
    assert!(ratio["high"].as_f64().unwrap() < 0.5, "{said}");
    assert_eq!(row(&said, "reserve")["state"], "slow", "{said}");
    let strict = [&options[..], &["--tolerance", "0%"]].concat();
    let said = json(&strict, &Dir::new().counting(varies));
    assert_eq!(said["outcome"], "none", "{said}");
    let sentence = said["sentence"].as_str().unwrap();
    assert!(
        sentence.contains("`eager` varies less, but its mean"),
        "{sentence}"
    );
}

#[test]
fn who_fails_is_named_and_left_out() {
    let dir = Dir::new();
    let fails = "case $p in eager) echo broken >&2; exit 3;; esac;";
    let script = dir.counting(&format!("{fails} {}", costs("reserve) v=8000;;")));
    let said = json(&THREE, &script);
    assert_eq!(said["best"], "reserve", "{said}");
    let eager = row(&said, "eager");
    assert_eq!(eager["state"], "failed");
    let fate = eager["fate"].as_str().unwrap();
    assert!(
        fate.contains("exit status was 3") && fate.contains("broken"),
        "{fate}"
    );
    assert_eq!(eager["failures"], 1, "{said}");
    assert_eq!(eager["executions"], 0, "{said}");
}

#[test]
fn a_program_that_fails_without_quire_cannot_be_tuned() {
    let done = tune(&THREE, "exit 7");
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.contains("fails without quire, too"), "{said}");
    assert!(last.contains("exit status was 7"), "{said}");
    // After one round it is known.
    let failures = said
        .lines()
        .filter(|line| line.contains("(search)"))
        .count();
    assert_eq!(failures, 4, "{said}");
}

#[test]
fn a_combination_is_tried_and_others_are_counted() {
    let dir = Dir::new();
    let script = dir.counting(
        "case $p/${QUIRE_STRATEGY:-none} in eager/none|base/colour) v=9000;; eager/colour) v=7000;; *) v=10000;; esac; \
        echo cost $((v + (n * 37 % 7 - 3) * 100)) us >/proc/$$/fd/$QUIRE_BENCH_FD",
    );
    let options = [
        "--policy",
        "eager,reserve",
        "--frames",
        "colour",
        "--frames",
        "binhop",
    ];
    let said = json(&options, &script);
    let left_out = said["left_out"].as_array().unwrap();
    if !left_out.is_empty() {
        println!("SKIP: {}", said["left_out"]);
        return;
    }
    assert_eq!(said["best"], "eager+colour", "{said}");
    assert_eq!(row(&said, "reserve+binhop")["state"], "not tried");
    let command = serde_json::json!([
        "quire", "run", "--policy", "eager", "--frames", "colour", "--", "sh"
    ]);
    assert_eq!(
        said["command"].as_array().unwrap()[..8],
        command.as_array().unwrap()[..]
    );
}

#[test]
fn what_the_machine_does_not_offer_is_named() {
    let pools = fs::read_dir("/sys/kernel/mm/hugepages")
        .into_iter()
        .flatten();
    let free = pools.flatten().filter_map(|pool| {
        let free = fs::read_to_string(pool.path().join("free_hugepages"));
        free.ok()?.trim().parse::<u64>().ok()
    });
    if free.sum::<u64>() > 0 {
        println!("SKIP: this machine has hugetlb pages, so static is offered");
        return;
    }
    let dir = Dir::new();
    let options = ["--candidates", "base,static", "-e", "5"];
    let done = tune(&options, &dir.counting(&costs("")));
    let (said, warned) = (text(&done.stdout), text(&done.stderr));
    assert_eq!(done.status.code(), Some(0), "{warned}");
    assert!(said.contains("static was left out: hugetlb"), "{said}");
    assert!(warned.contains("static is left out: hugetlb"), "{warned}");
    // Where nothing is left, nothing is started.
    let mark = dir.name("mark");
    let none = tune(&["--candidates", "static"], &format!("touch {mark}"));
    assert_refused(
        &none,
        2,
        &["none of the candidates", "static", "quire doctor"],
    );
    assert!(!Path::new(&mark).exists());
}

#[test]
fn bad_input_starts_nothing() {
    let dir = Dir::new();
    let mark = dir.name("mark");
    let touch = format!("touch {mark}");
    let notes = dir.name("notes");
    fs::write(&notes, "my notes\n").unwrap();
    let cases: [(&[&str], &[&str]); 12] = [
        (&["--for", "speed"], &["speed", "determinism"]),
        (&["--candidates", "fast"], &["`fast`", "eager+colour"]),
        (&["--candidates", "plain"], &["plain", "always"]),
        (&["--policy", "fast"], &["fast", "eager"]),
        (&["--frames", "rainbow"], &["rainbow", "colour"]),
        (&["--frames", "exact:/no/file"], &["/no/file"]),
        (&["-e", "4"], &["--executions 4", "at least 5"]),
        (&["--threshold", "1"], &["3%"]),
        (&["--time-limit", "0"], &["above 0"]),
        (&["--regex", "("], &["regex", "unclosed"]),
        (&["--save", &notes], &["notes:1", "another file"]),
        (&["--save", "/no/dir/r"], &["/no/dir/r"]),
    ];
    for (options, words) in cases {
        let options = [options, &["--quiet"]].concat();
        assert_refused(&tune(&options, &touch), 2, words);
        assert!(!Path::new(&mark).exists(), "{options:?}");
    }
    assert_eq!(fs::read_to_string(&notes).unwrap(), "my notes\n");
    let missing = quire(&["tune", "--", "/no/program"]).output().unwrap();
    assert_refused(&missing, 127, &["/no/program"]);
    assert_refused(&quire(&["tune"]).output().unwrap(), 2, &["PROGRAM"]);
}

#[test]
fn results_of_something_else_are_not_gone_on_with() {
    let dir = Dir::new();
    let file = dir.name("r.jsonl");
    let script = dir.counting(&costs(""));
    let options = [
        "--candidates",
        "base",
        "-e",
        "5",
        "--quiet",
        "--save",
        &file,
    ];
    assert!(tune(&options, &script).status.success());
    let before = fs::read(&file).unwrap();
    let with = |more: &[&str], script: &str| {
        let mut all = options.to_vec();
        all.extend(more);
        tune(&all, script)
    };
    assert_refused(
        &with(&["--for", "determinism"], &script),
        2,
        &["--for mean"],
    );
    let more = [
        "--candidates",
        "base",
        "-e",
        "9",
        "--quiet",
        "--save",
        &file,
    ];
    assert_refused(&tune(&more, &script), 2, &["--executions 5"]);
    assert_refused(&with(&["--seed", "4"], &script), 2, &["another experiment"]);
    assert_refused(&with(&[], "true"), 2, &["another experiment"]);
    let bench = quire(&["bench", "-q", "-r", "1", "-o", &dir.name("b"), "true"]);
    assert!({ bench }.status().unwrap().success());
    let other = ["--candidates", "base", "--save", &dir.name("b")];
    assert_refused(
        &tune(&[&other[..], &["-q"]].concat(), "true"),
        2,
        &["no results of `quire tune`"],
    );
    assert_eq!(fs::read(&file).unwrap(), before);
}

/// The places of all executions.
fn places(file: &str) -> BTreeSet<(u64, String, String)> {
    let run = Run::read(Path::new(file)).unwrap();
    let place = |e: &quire_lab::run::Execution| (e.order, e.benchmark.clone(), e.variant.clone());
    run.executions.iter().map(place).collect()
}

#[test]
fn a_run_that_is_killed_again_and_again_comes_to_the_same() {
    let dir = Dir::new();
    // Nothing varies, so that lost executions make no difference.
    let script = "case ${QUIRE_POLICY:-plain} in eager) v=8;; reserve) v=15;; *) v=10;; esac; \
        sleep 0.02; echo cost $v ms >/proc/$$/fd/$QUIRE_BENCH_FD";
    let (file, whole) = (dir.name("r.jsonl"), dir.name("whole.jsonl"));
    let options = [&THREE[..], &["--quiet", "--json", "--save"]].concat();
    let mut killed = 0;
    for n in 0u64.. {
        let args = [&["tune"], &options[..], &[&*file, "--", "sh", "-c", script]].concat();
        let mut child = quire(&args)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let end = Instant::now() + Duration::from_millis(700 + 150 * n);
        while child.try_wait().unwrap().is_none() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
        if child.try_wait().unwrap().is_some() {
            break;
        }
        // By turns it is killed and asked to end.
        match n % 2 {
            0 => child.kill().unwrap(),
            _ => send("INT", child.id()),
        }
        let status = child.wait().unwrap();
        killed += u32::from(status.signal().is_some());
        assert!(n < 60, "it never ends");
    }
    assert!(killed >= 1, "it was too fast to be killed");
    let again: Value = {
        let done = tune(&[&options[..], &[&file]].concat(), script);
        serde_json::from_slice(&done.stdout).unwrap()
    };
    let once: Value = {
        let done = tune(&[&options[..], &[&whole]].concat(), script);
        serde_json::from_slice(&done.stdout).unwrap()
    };
    assert_eq!(again["outcome"], "best");
    assert_eq!(again, once);
    assert_eq!(places(&file), places(&whole));
}

#[test]
fn the_time_limit_ends_it() {
    let dir = Dir::new();
    // An execution may take a quarter of the limit: room for a busy machine.
    let script = dir.counting(&format!("sleep 0.8; {}", costs("eager) v=8000;;")));
    let start = Instant::now();
    let options = [&["--time-limit", "8"], &THREE[..]].concat();
    let done = tune(&options, &script);
    let said = text(&done.stderr);
    assert!(said.contains("time limit"), "{said}");
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("too few"), "{said}");
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn the_program_without_quire_runs_first() {
    for seed in ["1", "2", "3", "4"] {
        let dir = Dir::new();
        let order = dir.name("order");
        let script = dir.counting(&format!("echo $p >> {order}; {}", costs("")));
        let done = tune(
            &["--candidates", THREE[1], "-e", "5", "--seed", seed],
            &script,
        );
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        let order = fs::read_to_string(order).unwrap();
        assert!(order.starts_with("plain\n"), "seed {seed}: {order}");
    }
}

#[test]
fn a_candidate_that_hangs_is_stopped_and_does_not_cost_the_time_of_the_others() {
    let dir = Dir::new();
    let hangs = "case $p in eager) exec sleep 600;; esac; ";
    let script = dir.counting(&(hangs.to_owned() + &costs("reserve) v=5000;;")));
    let begun = Instant::now();
    let said = json(&[&THREE[..], &["--time-limit", "20"]].concat(), &script);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(22), "{took:?}");
    assert_eq!(said["best"], "reserve", "{said}");
    let why = row(&said, "eager").to_string();
    assert!(why.contains("did not end within 5 s"), "{why}");
    assert!(
        why.contains("the time limit leaves each execution no more"),
        "{why}"
    );
}

#[test]
fn measurements_come_from_the_output_where_that_is_asked_for() {
    let dir = Dir::new();
    let script = dir.counting(
        "case $p in eager) v=120;; *) v=100;; esac; echo did $((v * 100 + n % 5)) jobs; echo other 3",
    );
    let options = [
        &THREE[..],
        &[
            "--regex",
            "did ([0-9]+) jobs",
            "--metric",
            "rate",
            "--unit",
            "jobs/s",
        ],
    ];
    // More is better, where it is a rate.
    let said = json(&options.concat(), &script);
    assert_eq!(said["metric"], "rate", "{said}");
    assert_eq!(said["best"], "eager", "{said}");
    let unknown = tune(
        &[&THREE[..], &["--metric", "speed", "--quiet"]].concat(),
        "true",
    );
    assert_refused(&unknown, 1, &["speed", "time"]);
}

/// With the real library, a program that touches its memory has fewer faults with
/// superpages, however busy the machine is. It begins when the kernel has been advised.
#[test]
fn superpages_save_a_real_program_faults() {
    let binary = Path::new(env!("CARGO_BIN_EXE_quire"));
    let target = binary.parent().and_then(Path::parent).unwrap();
    let library = target.join("preload/libquire.so");
    if !library.exists() {
        println!("SKIP: libquire.so is not built");
        return;
    }
    let dir = Dir::new();
    let source = dir.name("touch.c");
    let program = dir.name("touch");
    let text_of = "#include <sys/mman.h>\n#include <unistd.h>\nint main(void) {\n\
        long n = 128L << 20;\n\
        char *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\n\
        if (p == MAP_FAILED) return 1;\n\
        usleep(500000);\n\
        for (long i = 0; i < n / 4096; i++) p[(i * 7919 % (n / 4096)) * 4096] = 1;\n\
        return 0;\n}\n";
    fs::write(&source, text_of).unwrap();
    let made = Command::new("cc")
        .args(["-O1", "-o", &program, &source])
        .status();
    assert!(made.unwrap().success());
    let args = [
        "tune",
        "--json",
        "--quiet",
        "--metric",
        "minor_faults",
        "--candidates",
        "base,eager",
        "-e",
        "6",
        "--",
        &program,
    ];
    let done = quire(&args).env("QUIRE_LIB", library).output().unwrap();
    let said: Value = serde_json::from_slice(&done.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", text(&done.stderr)));
    let mean = |name: &str| row(&said, name)["mean"]["value"].as_f64().unwrap();
    if mean("plain") < 30_000.0 {
        println!("SKIP: the kernel gives superpages by itself here");
        return;
    }
    assert!(mean("eager") < 0.5 * mean("plain"), "{said}");
    assert_eq!(said["best"], "eager", "{said}");
}
