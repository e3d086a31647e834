//! `quire bench` and `quire plan` as a user meets them: real programs, the real kernel.

#[path = "common/refusal.rs"]
mod refusal;
#[path = "common/signals.rs"]
mod signals;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use quire_lab::run::{Run, TIME};
use serde_json::Value;

use refusal::assert_refused;
use signals::send;

/// Waits until a condition holds, for a while.
fn wait_for(condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < end, "nothing happened");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn quire(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.args(args);
    command
}

fn bench(args: &[&str]) -> Output {
    quire(&["bench"]).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What `quire bench --json` prints.
fn json(args: &[&str]) -> Value {
    let done = bench(&[&["--json"], args].concat());
    serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&done.stderr)))
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

    fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).unwrap();
        self.name(name)
    }
}

fn is_root() -> bool {
    fs::read_to_string("/proc/self/status")
        .unwrap()
        .contains("Uid:\t0\t")
}

#[test]
fn commands_are_compared() {
    let done = bench(&["-r", "6", "sleep 0.02", "sleep 0.06"]);
    let said = text(&done.stdout);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert!(
        said.contains("`sleep 0.06` is worse than `sleep 0.02`"),
        "{said}"
    );
    assert!(!said.contains('\x1b'), "colours in a file: {said}");
}

/// A program whose measurements are so many seconds, by their place `i`, and some noise.
fn in_time(seconds: &str) -> String {
    let line = format!("print \"time\", ({seconds}) * (1 + rand() / 100), \"s\"");
    format!("awk 'BEGIN {{ for (i = 0; i < 40; i++) {line} }}' >&$QUIRE_BENCH_FD")
}

#[test]
fn what_to_bear_in_mind_is_noted() {
    let warm = in_time("i < 8 ? 2 : 1");
    let said = text(&bench(&["-r", "6", &warm]).stdout);
    assert!(said.contains("6 executions are few: "), "{said}");
    assert!(
        said.contains("`--discard 8` leaves out the warm-up"),
        "{said}"
    );
    let discarded = text(&bench(&["-r", "6", "--discard", "8", &warm]).stdout);
    assert!(!discarded.contains("--discard"), "{discarded}");
    let never = in_time("int(i / 8) % 2 ? 1.5 : 1");
    let json = json(&["-r", "6", &never]);
    let notes = json["results"][0]["notes"].as_array().unwrap();
    let told = |note: &&Value| {
        note.as_str()
            .unwrap()
            .contains("6 never become steady (100 %)")
    };
    assert_eq!(notes.iter().filter(told).count(), 1, "{notes:?}");
}

#[test]
fn what_the_kernel_counts_is_kept() {
    let dir = Dir::new();
    let file = dir.name("r.jsonl");
    let work = "head -c 20000000 /dev/zero | tail -n 1 | wc -c";
    bench(&["-r", "3", "-o", &file, "--quiet", work]);
    let run = Run::read(Path::new(&file)).unwrap();
    assert_eq!(run.executions.len(), 3);
    for execution in &run.executions {
        let value = |name: &str| execution.metrics.get(name).unwrap()[0];
        assert!(value("peak_memory") > 15e6, "{execution:?}");
        assert!(value("minor_faults") > 100.0);
        assert!(value("voluntary_switches") > 0.0);
        assert!(value("user_time") + value("system_time") > 0.0);
        assert!(value(TIME) > 0.0);
    }
    assert!(run.header.environment["kernel"].starts_with("Linux"));
    assert_eq!(run.primary_metrics(), [TIME]);
}

#[test]
fn a_program_that_fails_hangs_or_talks_nonsense_is_told() {
    let dir = Dir::new();
    let mark = dir.name("mark");
    let nonsense = "echo hello >&$QUIRE_BENCH_FD";
    // The program that hangs has a child that hangs, and ignores being asked to end.
    let hangs = format!("trap '' TERM; sleep 98765 & echo $! > {mark}; wait; sleep 98765");
    let done = bench(&[
        "-r",
        "1",
        "--timeout",
        "0.5",
        "exit 3",
        nonsense,
        &hangs,
        "kill -SEGV $$",
        "true",
    ]);
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    for words in [
        "exit status was 3",
        "`hello`",
        "did not end within 0.5 s",
        "signal 11",
    ] {
        assert!(said.contains(words), "{said} lacks {words}");
    }
    let child = fs::read_to_string(&mark).unwrap();
    let left = Path::new("/proc").join(child.trim());
    wait_for(|| !left.exists());
    assert!(text(&done.stdout).contains("4 of 5 executions failed"));
    assert_eq!(bench(&["-r", "2", "-i", "exit 3"]).status.code(), Some(0));
}

#[test]
fn bad_input_starts_nothing() {
    let dir = Dir::new();
    let mark = dir.name("mark");
    let touch = format!("touch {mark}");
    let notes = dir.write("notes", "my notes\n");
    let toml = dir.write(
        "e.toml",
        "executions = 3\n[[benchmark]]\nname = \"a\"\ncomand = \"true\"\n",
    );
    let cases: [(&[&str], &[&str]); 13] = [
        (&[], &["nothing to run", "--file"]),
        (&["-r", "0", &touch], &["executions"]),
        (&["--precision", "0%", &touch], &["0%", "1%"]),
        (&["--timeout", "-1", &touch], &["-1"]),
        (&["--regex", "(", &touch], &["regex", "unclosed"]),
        (&["--cpus", "x", &touch], &["`x`", "0-1"]),
        (&["--cpus", "1000", &touch], &["1000", "taskset"]),
        (&["--scheduling", "fast", &touch], &["fast", "fifo"]),
        (&["-o", &notes, &touch], &["notes:1", "another file"]),
        (&["-o", "/no/dir/r", &touch], &["/no/dir/r"]),
        (&["--export-json", "/no/dir/r", &touch], &["/no/dir/r"]),
        (&["-N", &format!("{touch}; true")], &["shell"]),
        (&["-f", &toml], &["e.toml:4", "`comand`"]),
    ];
    for (args, words) in cases {
        let mut args = args.to_vec();
        args.push("--quiet");
        assert_refused(&bench(&args), 2, words);
        assert!(!Path::new(&mark).exists(), "{args:?}");
    }
    assert_eq!(fs::read_to_string(&notes).unwrap(), "my notes\n");
    assert_refused(
        &bench(&["--resume", "/no/file"]),
        2,
        &["/no/file", "--save"],
    );
    assert_refused(
        &quire(&["plan", "/no/file"]).output().unwrap(),
        2,
        &["/no/file"],
    );
}

const THREE: &str = r#"
executions = 8
[[benchmark]]
name = "nap"
command = "sleep 0.02"
[[variant]]
name = "a"
[[variant]]
name = "b"
env = { X = "1" }
[[variant]]
name = "c"
nice = 1
"#;

/// How often each variant was executed, and the places.
fn count(run: &Run) -> (BTreeMap<&str, usize>, Vec<u64>) {
    let mut counts = BTreeMap::new();
    for execution in &run.executions {
        *counts.entry(&*execution.variant).or_default() += 1;
    }
    let mut orders: Vec<u64> = run.executions.iter().map(|e| e.order).collect();
    orders.sort_unstable();
    (counts, orders)
}

#[test]
fn a_run_that_is_killed_again_and_again_goes_on_and_loses_nothing() {
    let dir = Dir::new();
    let toml = dir.write("three.toml", THREE);
    let file = dir.name("r.jsonl");
    let mut before = Vec::new();
    let mut killed = 0;
    for n in 1.. {
        let mut child = quire(&["bench", "--quiet", "-f", &toml, "-o", &file])
            .spawn()
            .unwrap();
        let end = Instant::now() + Duration::from_millis(130 + 17 * (n % 5));
        while child.try_wait().unwrap().is_none() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let is_over = child.try_wait().unwrap().is_some();
        if !is_over {
            child.kill().unwrap();
            killed += 1;
        }
        child.wait().unwrap();
        let made = Run::read(Path::new(&file))
            .map(|run| run.executions)
            .unwrap_or_default();
        // What was there is there, in its place.
        assert_eq!(made[..before.len()], before[..]);
        before = made;
        if is_over {
            break;
        }
        assert!(n < 60, "it never ends");
    }
    assert!(killed >= 2, "it was too fast to be killed");
    let run = Run::read(Path::new(&file)).unwrap();
    let (counts, orders) = count(&run);
    assert_eq!(orders, (0..24).collect::<Vec<u64>>());
    assert_eq!(counts, BTreeMap::from([("a", 8), ("b", 8), ("c", 8)]));
    // The same as without interruption.
    let whole = dir.name("whole.jsonl");
    bench(&["--quiet", "-f", &toml, "-o", &whole]);
    let place = |run: &Run| {
        let mut places: Vec<(u64, String)> = run
            .executions
            .iter()
            .map(|e| (e.order, e.variant.clone()))
            .collect();
        places.sort();
        places
    };
    assert_eq!(place(&run), place(&Run::read(Path::new(&whole)).unwrap()));
}

#[test]
fn more_can_be_asked_for_and_other_things_cannot() {
    let dir = Dir::new();
    let toml = dir.write("three.toml", THREE);
    let file = dir.name("r.jsonl");
    let run = |args: &[&str]| bench(&[&["--quiet"], args].concat());
    assert!(run(&["-f", &toml, "-o", &file, "-r", "2"]).status.success());
    assert!(run(&["--resume", &file, "-r", "3"]).status.success());
    let (_, orders) = count(&Run::read(Path::new(&file)).unwrap()).clone();
    assert_eq!(orders, (0..9).collect::<Vec<u64>>());
    let other = dir.write("other.toml", &THREE.replace("sleep 0.02", "sleep 0.03"));
    assert_refused(
        &run(&["-f", &other, "-o", &file]),
        2,
        &["another experiment", "r.jsonl"],
    );
    assert_refused(
        &run(&["-f", &toml, "-o", &file, "--seed", "2"]),
        2,
        &["another experiment"],
    );
}

#[test]
fn it_stops_early_when_it_knows_enough() {
    let dir = Dir::new();
    let toml = dir.write("three.toml", &format!("precision = \"60%\"\n{THREE}"));
    let file = dir.name("r.jsonl");
    let done = bench(&["-f", &toml, "-o", &file, "-r", "400"]);
    assert!(
        text(&done.stderr).contains("were enough"),
        "{}",
        text(&done.stderr)
    );
    let run = Run::read(Path::new(&file)).unwrap();
    let (counts, _) = count(&run);
    let each = counts["a"];
    assert!((5..400).contains(&each), "{counts:?}");
    assert!(counts.values().all(|n| *n == each), "{counts:?}");
    // Nothing is left to be done then.
    bench(&["--resume", &file, "--quiet"]);
    assert_eq!(
        Run::read(Path::new(&file)).unwrap().executions.len(),
        run.executions.len()
    );
}

#[test]
fn variants_reach_the_program() {
    let dir = Dir::new();
    let script = "echo $V $(nice) $(cat /proc/self/personality) $(grep Cpus_allowed_list /proc/self/status | cut -f 2) $(chrt -p $$ | head -n 1 | sed 's/.*: //') $QUIRE_POLICY >> \"$OUT\"";
    let script = dir.write("script", script);
    let out = dir.name("out");
    let toml = format!(
        r#"
executions = 1
[[benchmark]]
name = "b"
command = ["sh", "{script}"]
env = {{ V = "plain", OUT = "{out}" }}
[[variant]]
name = "env"
env = {{ V = "changed" }}
[[variant]]
name = "set"
nice = 3
aslr = false
cpus = "0"
scheduling = "batch"
[[variant]]
name = "managed"
policy = "eager"
"#
    );
    let toml = dir.write("e.toml", &toml);
    let library = [
        "/lib/x86_64-linux-gnu/libm.so.6",
        "/usr/lib64/libm.so.6",
        "/usr/lib/libm.so.6",
    ]
    .into_iter()
    .find(|path| Path::new(path).exists())
    .unwrap();
    let done = quire(&["bench", "--quiet", "-f", &toml, "-o", &dir.name("r")])
        .env("QUIRE_LIB", library)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    let out = fs::read_to_string(&out).unwrap();
    let has = |line: &str| assert!(out.lines().any(|l| l.contains(line)), "{out} lacks {line}");
    has("changed ");
    has("plain 3 00040000 0 SCHED_BATCH");
    has("eager");
}

#[test]
fn a_real_time_program_that_never_sleeps_is_stopped() {
    let start = Instant::now();
    let args = [
        "-r",
        "1",
        "--timeout",
        "0.5",
        "--scheduling",
        "fifo:20",
        "while :; do :; done",
    ];
    let done = bench(&args);
    let said = text(&done.stderr);
    if said.contains("scheduling class fifo:20 is refused") {
        assert!(!is_root(), "{said}");
        println!("SKIP: no real-time class: {said}");
        return;
    }
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn environments_differ_in_size() {
    let dir = Dir::new();
    let out = dir.name("out");
    let script = format!("env | wc -c >> {out}");
    bench(&["--random-environment", "-r", "5", "--quiet", &script]);
    let mut sizes: Vec<String> = fs::read_to_string(&out)
        .unwrap()
        .lines()
        .map(String::from)
        .collect();
    assert_eq!(sizes.len(), 5);
    sizes.sort();
    sizes.dedup();
    assert!(sizes.len() > 2, "{sizes:?}");
}

#[test]
fn commands_run_besides() {
    let dir = Dir::new();
    let log = dir.name("log");
    let note = |word: &str| format!("echo {word} >> {log}");
    let (setup, prepare, conclude, cleanup) = (
        note("setup"),
        note("prepare"),
        note("conclude"),
        note("cleanup"),
    );
    let args = [
        "-r",
        "2",
        "-w",
        "1",
        "--quiet",
        "--setup",
        &setup,
        "--prepare",
        &prepare,
        "--conclude",
        &conclude,
        "--cleanup",
        &cleanup,
        &note("run"),
    ];
    assert!(bench(&args).status.success());
    let text = fs::read_to_string(&log).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    let one = ["prepare", "run", "conclude"];
    let wanted = [&["setup"][..], &one, &one, &one, &["cleanup"]].concat();
    assert_eq!(words, wanted);
}

/// Programs that report the same by the helpers.
fn helpers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../quire-lab/helpers")
}

fn assert_reports(command: &str) {
    let value = json(&["-r", "2", "--measurements", "3", command]);
    let result = &value["results"][0];
    assert_eq!(result["metric"], "lap", "{value}");
    assert_eq!(result["unit"], "s");
    let measurements = result["variants"][0]["measurements"].to_string();
    assert_eq!(
        measurements, "[[0.125,0.25,0.375],[0.125,0.25,0.375]]",
        "{command}"
    );
}

#[test]
fn the_c_helper_reports() {
    let dir = Dir::new();
    let source = "#include \"quire_bench.h\"\nint main(void) { for (long n = 0; n < quire_bench_measurements(9); n++) if (quire_bench_report(\"lap\", 125.0 * (double)(n + 1), \"ms\")) return 1; return quire_bench_now() <= 0; }";
    let source = dir.write("a.c", source);
    let program = dir.name("a");
    let include = format!("-I{}", helpers().display());
    let flags = ["-Wall", "-Wextra", "-Werror", "-std=gnu99"];
    let made = Command::new("cc")
        .args(flags)
        .args([&include, &source, "-o", &program])
        .status();
    assert!(made.unwrap().success());
    assert_reports(&program);
    // Without quire it says that nobody wants to know.
    assert_eq!(Command::new(&program).status().unwrap().code(), Some(1));
}

#[test]
fn the_rust_helper_reports() {
    let dir = Dir::new();
    let path = helpers().join("quire_bench.rs").canonicalize().unwrap();
    let source = format!(
        "#![allow(dead_code)] #[path = {path:?}] mod quire_bench; fn main() {{ for n in 0..quire_bench::measurements(9) {{ quire_bench::report(\"lap\", 125.0 * (n as f64 + 1.0), \"ms\"); }} }}"
    );
    let source = dir.write("a.rs", &source);
    let program = dir.name("a");
    let made = Command::new("rustc")
        .args(["--edition", "2021", "-o", &program, &source])
        .status();
    assert!(made.unwrap().success());
    assert_reports(&program);
    assert!(Command::new(&program).status().unwrap().success());
}

#[test]
fn the_python_helper_reports() {
    let dir = Dir::new();
    let source = format!(
        "import sys; sys.path.insert(0, {:?}); sys.dont_write_bytecode = True\nimport quire_bench\nfor n in range(quire_bench.measurements(9)):\n    quire_bench.report('lap', 125 * (n + 1), 'ms')\nif False:\n    quire_bench.measured('x')\n",
        helpers()
    );
    let source = dir.write("a.py", &source);
    assert_reports(&format!("python3 {source}"));
    assert!(
        Command::new("python3")
            .arg(&source)
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn the_shell_helper_reports() {
    let dir = Dir::new();
    let helper = helpers().join("quire_bench.sh");
    let source = format!(
        ". {}\nfor n in $(seq $(quire_bench_measurements 9)); do quire_bench_report lap $((n * 125)) ms; done\n",
        helper.display()
    );
    let source = dir.write("a.sh", &source);
    assert_reports(&format!("sh {source}"));
    assert!(Command::new("sh").arg(&source).status().unwrap().success());
}

#[test]
fn standard_output_is_read_where_that_is_wanted() {
    let value = json(&[
        "-r",
        "2",
        "--from",
        "stdout",
        "echo hello; echo quire: rate 5 1/s",
    ]);
    let result = &value["results"][0];
    assert_eq!(
        (&result["metric"], &result["better"]),
        (&"rate".into(), &"higher".into())
    );
    let value = json(&[
        "-r",
        "2",
        "--discard",
        "1",
        "--regex",
        r"took (\d+) ms",
        "--unit",
        "ms",
        "for n in 9 2 4; do echo it took $n ms; done",
    ]);
    let measurements = &value["results"][0]["variants"][0]["measurements"];
    assert_eq!(measurements.to_string(), "[[0.002,0.004],[0.002,0.004]]");
}

#[test]
fn a_program_that_reports_too_few_failed() {
    let done = bench(&[
        "-r",
        "1",
        "--measurements",
        "3",
        "--quiet",
        "echo t 1 s >&$QUIRE_BENCH_FD; echo t 2 s >&$QUIRE_BENCH_FD",
    ]);
    assert_eq!(done.status.code(), Some(1));
    assert!(
        text(&done.stderr).contains("2 measurements of t, and 3"),
        "{}",
        text(&done.stderr)
    );
}

#[test]
fn much_output_neither_blocks_nor_fills_memory() {
    let work = "head -c 300000000 /dev/zero; head -c 50000000 /dev/zero >&2";
    let start = Instant::now();
    let value = json(&["-r", "1", "--from", "stdout", "--timeout", "60", work]);
    assert_eq!(
        value["results"][0]["variants"][0]["executions"], 1,
        "{value}"
    );
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn what_came_of_it_is_exported_as_hyperfine_does() {
    let dir = Dir::new();
    let [json, csv] = ["r.json", "r.csv"].map(|name| dir.name(name));
    let args = [
        "-r", "3", "-n", "one", "-n", "a|b", "true", "true", "--quiet",
    ];
    let tables = [
        ("markdown", "| `a\\|b` | "),
        ("asciidoc", "| `a\\|b` | "),
        ("orgmode", "| =a\\vert{}b= | "),
    ];
    let mut exports = vec![
        "--export-json".into(),
        json.clone(),
        "--export-csv".into(),
        csv.clone(),
    ];
    for (name, _) in tables {
        exports.extend([format!("--export-{name}"), dir.name(name)]);
    }
    let exports: Vec<&str> = exports.iter().map(String::as_str).collect();
    assert!(bench(&[&args[..], &exports].concat()).status.success());
    let value: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let second = &value["results"][1];
    assert_eq!(second["command"], "a|b");
    let times: Vec<f64> = serde_json::from_value(second["times"].clone()).unwrap();
    assert_eq!(times.len(), 3);
    let mean = second["mean"].as_f64().unwrap();
    assert!((mean - times.iter().sum::<f64>() / 3.0).abs() < 1e-12);
    for name in ["stddev", "median", "user", "system", "min", "max"] {
        assert!(second[name].is_f64(), "{name}: {second}");
    }
    assert_eq!(second["exit_codes"], serde_json::json!([0, 0, 0]));
    assert_eq!(
        value["quire"]["results"][0]["variants"][1]["variant"],
        "a|b"
    );
    for (name, row) in tables {
        let table = fs::read_to_string(dir.path(name)).unwrap();
        assert!(
            table.contains(row) && table.contains(" ± "),
            "{name}: {table}"
        );
    }
    let csv = fs::read_to_string(csv).unwrap();
    let mut lines = csv.lines();
    assert_eq!(
        lines.next(),
        Some("command,mean,stddev,median,user,system,min,max")
    );
    assert!(lines.next().unwrap().starts_with("one,0.") && lines.count() == 1);
    // What was written is read.
    let report = quire(&["report", "--format", "json", &json])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["pairs"][0]["new"], "a|b");
}

#[test]
fn parameters_make_commands() {
    let dir = Dir::new();
    let out = dir.name("r.json");
    let names = |args: &[&str]| -> Vec<String> {
        let done = bench(&[&["-r", "1", "-q", "--export-json", &out], args].concat());
        assert!(done.status.success(), "{}", text(&done.stderr));
        let value: Value = serde_json::from_str(&fs::read_to_string(&out).unwrap()).unwrap();
        let results = value["results"].as_array().unwrap().clone();
        let name = |of: &Value| of["command"].as_str().unwrap().to_owned();
        assert!(results[0]["parameters"].is_object(), "{value}");
        results.iter().map(name).collect()
    };
    let list = ["-L", "a", "1,2", "-L", "b", "x,y", "true {a} {b}"];
    assert_eq!(
        names(&list),
        ["true 1 x", "true 2 x", "true 1 y", "true 2 y"]
    );
    let unused = ["-L", "a", "1,-2", "-n", "it", "true"];
    assert_eq!(names(&unused), ["it (a=1)", "it (a=-2)"]);
    let named = ["-L", "a", "1,2", "-n", "x", "-n", "y", "true {a}"];
    assert_eq!(names(&named), ["x", "y"]);
    let scan = [
        "-P", "n", "0", "1", "-D", "0.5", "-n", "run {n}", "true {n}",
    ];
    assert_eq!(names(&scan)[0], "run 0.0");
    let csv = dir.name("r.csv");
    assert!(
        bench(&[
            "-r",
            "1",
            "-q",
            "-L",
            "n",
            "3",
            "--export-csv",
            &csv,
            "true {n}"
        ])
        .status
        .success()
    );
    let csv = fs::read_to_string(csv).unwrap();
    assert!(csv.starts_with("command,mean,stddev,median,user,system,min,max,parameter_n\n"));
    assert!(csv.trim_end().ends_with(",3"), "{csv}");
    let mark = dir.name("mark");
    let setup = format!("echo {{n}} >> {mark}");
    assert!(
        bench(&["-r", "1", "-q", "-L", "n", "3,4", "-s", &setup, "true {n}"])
            .status
            .success()
    );
    assert_eq!(fs::read_to_string(mark).unwrap(), "3\n4\n");
    assert_refused(
        &bench(&["-L", "n", "1", "-L", "n", "2", "true"]),
        2,
        &["given twice"],
    );
    assert_refused(
        &bench(&["-L", "n", "1,2,3", "-n", "a", "-n", "b", "true {n}"]),
        2,
        &["--command-name is given 2 times for 3 commands"],
    );
    assert_refused(
        &bench(&["-P", "n", "2", "1", "true"]),
        2,
        &["MIN is above MAX"],
    );
}

#[test]
fn what_commands_print_goes_where_it_is_wanted() {
    let dir = Dir::new();
    let file = dir.name("out");
    let said = |args: &[&str]| {
        let done = bench(&[&["-r", "2"], args, &["echo hello"]].concat());
        assert!(done.status.success(), "{}", text(&done.stderr));
        text(&done.stdout)
            .lines()
            .filter(|line| *line == "hello")
            .count()
    };
    assert_eq!(said(&[]), 0);
    assert_eq!(said(&["--output", "pipe"]), 0);
    assert_eq!(said(&["--output", &file]), 0);
    assert_eq!(fs::read_to_string(&file).unwrap(), "hello\n");
    assert_eq!(said(&["--output", "inherit"]), 2);
    assert_eq!(said(&["--show-output"]), 2);
    assert_refused(
        &bench(&["--output", "r.jsonl", "true"]),
        2,
        &["--save", "./r.jsonl"],
    );
    let (one, other) = (dir.name("one"), dir.name("other"));
    let each = ["--output", &one, "--output", &other, "echo 1", "echo 2"];
    let done = bench(&[&["-r", "1", "-q"], &each[..]].concat());
    assert!(done.status.success(), "{}", text(&done.stderr));
    let read = |path: &str| fs::read_to_string(path).unwrap();
    assert_eq!([read(&one), read(&other)], ["1\n", "2\n"]);
}

#[test]
fn commands_besides_and_exit_statuses_are_those_of_hyperfine() {
    let dir = Dir::new();
    let mark = dir.name("mark");
    let say = |what: &str| format!("echo {what} >> {mark}");
    let (one, other) = (say("one"), say("other"));
    let each = ["-C", &one, "-C", &other, "true", "exit 7"];
    let run = |more: &[&str]| bench(&[&["-r", "1", "-q"], more].concat());
    let done = run(&[&["-i=7"], &each[..]].concat());
    assert!(done.status.success(), "{}", text(&done.stderr));
    let read = || fs::read_to_string(&mark).unwrap_or_default();
    let mut lines: Vec<String> = read().lines().map(String::from).collect();
    lines.sort();
    assert_eq!(lines, ["one", "other"]);
    assert!(run(&["-i", "exit 7"]).status.success());
    assert_eq!(run(&["-i=1,2", "exit 7"]).status.code(), Some(1));
    assert_refused(&run(&["-i=x", "true"]), 2, &["all-non-zero"]);
    let thrice = ["-C", "a", "-C", "b", "-C", "c", "true", "false"];
    assert_refused(&run(&thrice), 2, &["--conclude is given 3 times"]);

    // Each execution is told which one it is.
    fs::remove_file(&mark).unwrap();
    let number = say("$HYPERFINE_ITERATION");
    let done = bench(&["-r", "2", "-w", "1", "-q", &number]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(read(), "warmup-0\n0\n1\n");
}

#[test]
fn results_are_exported_to_standard_output() {
    let done = bench(&["-r", "2", "-q", "--export-json", "-", "true"]);
    let value: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(value["results"][0]["times"].as_array().unwrap().len(), 2);
}

#[test]
fn another_command_is_compared_with_and_tables_can_be_sorted() {
    let args = ["-r", "8", "sleep 0.1", "sleep 0.01"];
    let with = |more: &[&str]| text(&bench(&[&args[..], more].concat()).stdout);
    let said = with(&["--reference", "sleep 0.01"]);
    assert!(
        said.contains("`sleep 0.1` is worse than `sleep 0.01`"),
        "{said}"
    );
    let said = with(&["--reference", "sleep 0.05"]);
    assert!(
        said.contains("`sleep 0.01` is better than `sleep 0.05`"),
        "{said}"
    );
    let said = with(&["--reference", "sleep 0.05", "--reference-name", "the old"]);
    assert!(
        said.contains("`sleep 0.01` is better than `the old`"),
        "{said}"
    );
    let said = with(&["--sort", "mean-time", "-u", "second"]);
    assert!(said.contains("commands: time in s\n"), "{said}");
    let at = |row: &str| said.find(row).unwrap();
    assert!(at("\n  sleep 0.01") < at("\n  sleep 0.1"), "{said}");
    // The answer comes before the table.
    assert!(at(" is better than ") < at("VARIANT"), "{said}");
    assert_eq!(with(&["--style", "none"]), "");
}

#[test]
fn runs_are_at_least_and_at_most_so_many() {
    let made = |args: &[&str]| {
        let value = json(&[args, &["sleep 0.5"]].concat());
        value["results"][0]["variants"][0]["executions"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(made(&["--min-runs", "2", "--max-runs", "3"]), 3);
    let some = made(&["--min-runs", "2"]);
    assert!(
        (5..=6).contains(&some),
        "three seconds are {some} runs of half a second"
    );
}

/// A shell takes a millisecond to start, which is no part of a command that does nothing.
#[test]
fn the_start_of_a_shell_is_taken_off_and_said() {
    let done = bench(&["-r", "20", "-S", "sh", ":"]);
    assert!(
        text(&done.stderr).contains("shell start (sh): "),
        "{}",
        text(&done.stderr)
    );
    let value = json(&["-r", "20", "-S", "sh", ":", "sleep 0.02"]);
    let of = |n: usize| {
        value["results"][0]["variants"][n]["median"]
            .as_f64()
            .unwrap()
    };
    assert!(of(0) < 0.002, "{value}");
    assert!((0.018..0.03).contains(&of(1)), "{value}");
    assert!(
        value["environment"]["shell start (sh)"].is_string(),
        "{value}"
    );
}

const KSM: &str = "/sys/kernel/mm/ksm/run";

fn ksm() -> String {
    fs::read_to_string(KSM)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Puts the setting back where the test fails.
struct PutBack(String);

impl Drop for PutBack {
    fn drop(&mut self) {
        if ksm() != self.0 {
            fs::write(KSM, &self.0).unwrap();
        }
    }
}

/// Starts a run that switches the merging of pages the other way, and waits until it is.
fn start_prepared(dir: &Dir, before: &str) -> Child {
    let toml = format!(
        "executions = 1\n[machine]\nksm = {}\n[[benchmark]]\nname = \"a\"\ncommand = \"sleep 60\"\n",
        before == "0"
    );
    let toml = dir.write("e.toml", &toml);
    let state = dir.name("state.json");
    let child = quire(&[
        "bench",
        "-f",
        &toml,
        "-o",
        &dir.name("r"),
        "--state",
        &state,
    ])
    .stderr(Stdio::null())
    .spawn()
    .unwrap();
    wait_for(|| ksm() != before);
    child
}

#[test]
fn the_machine_is_put_back_however_a_run_ends() {
    if !is_root() || ksm().is_empty() {
        assert!(!is_root(), "no {KSM}");
        println!("SKIP: settings of the kernel are root's");
        return;
    }
    let dir = Dir::new();
    let before = ksm();
    let _put_back = PutBack(before.clone());
    for (signal, number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
        let mut child = start_prepared(&dir, &before);
        send(signal, child.id());
        assert_eq!(child.wait().unwrap().signal(), Some(number));
        assert_eq!(ksm(), before, "{signal}");
        assert!(!dir.path("state.json").exists());
    }
    let mut child = start_prepared(&dir, &before);
    let state = dir.name("state.json");
    assert_refused(
        &bench(&["--restore", "--state", &state]),
        2,
        &["still runs"],
    );
    child.kill().unwrap();
    child.wait().unwrap();
    assert_ne!(ksm(), before, "nobody could put it back");
    let done = bench(&["--restore", "--state", &state]);
    assert!(
        text(&done.stdout).contains("1 settings were put back"),
        "{}",
        text(&done.stderr)
    );
    assert_eq!(ksm(), before);
    assert!(text(&bench(&["--restore", "--state", &state]).stdout).contains("nothing"));
}

#[test]
fn an_interrupted_run_says_how_to_go_on() {
    let dir = Dir::new();
    let file = dir.name("r.jsonl");
    let mark = dir.name("mark");
    let clean = format!("touch {mark}");
    let child = quire(&[
        "bench",
        "-r",
        "1000",
        "-o",
        &file,
        "--cleanup",
        &clean,
        "sleep 0.02",
    ])
    .stdout(Stdio::null())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    let made = || Run::read(Path::new(&file)).map_or(0, |run| run.executions.len());
    wait_for(|| made() >= 3);
    send("INT", child.id());
    let done = child.wait_with_output().unwrap();
    assert_eq!(done.status.signal(), Some(2));
    let said = text(&done.stderr);
    assert!(said.contains(&format!("--resume {file}")), "{said}");
    assert!(made() < 1000 && Path::new(&mark).exists());
}

#[test]
fn a_full_disk_is_told_and_what_was_written_stays() {
    let dir = Dir::new();
    let disk = dir.name("disk");
    fs::create_dir(&disk).unwrap();
    let quire = env!("CARGO_BIN_EXE_quire");
    let script = format!(
        "mount -t tmpfs -o size=16k none {disk} || exit 77; {quire} bench --quiet -r 200 -o {disk}/r true; code=$?; cp {disk}/r {disk}.copy; exit $code"
    );
    let done = Command::new("unshare")
        .args(["-m", "sh", "-c", &script])
        .output()
        .unwrap();
    let said = text(&done.stderr);
    if !is_root() {
        println!("SKIP: mounting is root's");
        return;
    }
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(
        said.contains("No space left") && said.contains("--resume"),
        "{said}"
    );
    let copy = fs::read(format!("{disk}.copy")).unwrap();
    assert!(copy.ends_with(b"\n"), "half a line is left");
    let run = Run::read(Path::new(&format!("{disk}.copy"))).unwrap();
    let kept = run.executions.len();
    assert!(kept > 3 && kept < 200);
    assert!(
        said.contains(&format!("its {kept} executions are kept")),
        "{said}"
    );
}

#[test]
fn a_pilot_says_what_to_spend() {
    let dir = Dir::new();
    let file = dir.name("r.jsonl");
    bench(&["-r", "6", "-o", &file, "--quiet", "sleep 0.02"]);
    let plan = |precision: &str| {
        let done = quire(&["plan", &file, "--json", "--precision", precision])
            .output()
            .unwrap();
        let value: Value = serde_json::from_slice(&done.stdout).unwrap();
        value["plans"][0]["spend"]["executions"].as_u64().unwrap()
    };
    let (some, more) = (plan("2%"), plan("0.02%"));
    assert!(more > some && some >= 2, "{some} {more}");
    let done = quire(&["plan", &file]).output().unwrap();
    assert!(
        text(&done.stdout).contains("quire bench --runs"),
        "{}",
        text(&done.stdout)
    );
}

#[test]
fn output_is_locked() {
    let dir = Dir::new();
    let file = dir.name("r.jsonl");
    let mut child = quire(&["bench", "--quiet", "-o", &file, "-r", "1", "sleep 60"])
        .spawn()
        .unwrap();
    wait_for(|| Run::read(Path::new(&file)).is_ok());
    assert_refused(&bench(&["-o", &file, "true"]), 2, &["another run"]);
    send("TERM", child.id());
    child.wait().unwrap();
}

#[test]
fn what_leaves_its_process_group_is_ended_with_its_execution() {
    let dir = Dir::new();
    let (late, done) = (dir.name("late"), dir.name("done"));
    // One is stopped and one ends by itself; both leave a daemon that has left one, too.
    let daemon = |mark: &str| {
        format!(
            "setsid sh -c 'setsid sleep 98764 & echo $! >> {mark}; sleep 98763' & echo $! >> {mark}"
        )
    };
    let stays = format!(
        "{}; while [ $(cat {late} | wc -l) -lt 2 ]; do sleep 0.01; done; sleep 98762",
        daemon(&late)
    );
    let ends = format!(
        "{}; while [ $(cat {done} | wc -l) -lt 2 ]; do sleep 0.01; done",
        daemon(&done)
    );
    let said = bench(&["-r", "1", "--timeout", "5", &stays, &ends]);
    assert!(
        text(&said.stderr).contains("did not end within 5 s"),
        "{}",
        text(&said.stderr)
    );
    for mark in [late, done] {
        let pids = fs::read_to_string(&mark).unwrap();
        assert_eq!(pids.lines().count(), 2, "{pids}");
        for pid in pids.lines() {
            let left = Path::new("/proc").join(pid.trim());
            assert!(!left.exists(), "{pid} of {mark} is there");
        }
    }
}

#[test]
fn a_server_that_prepare_has_started_goes_on() {
    let dir = Dir::new();
    let mark = dir.name("server");
    let prepare = format!("test -e {mark} || {{ setsid sleep 98761 & echo $! > {mark}; }}");
    let check = format!("kill -0 $(cat {mark})");
    let done = bench(&["-r", "3", "--quiet", "--prepare", &prepare, &check]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let server = fs::read_to_string(&mark).unwrap().trim().parse().unwrap();
    send("KILL", server);
}

#[test]
fn commands_besides_have_a_time_limit() {
    let start = Instant::now();
    for besides in ["--prepare", "--conclude"] {
        let done = bench(&[
            "-r",
            "1",
            "--timeout",
            "0.5",
            besides,
            "sleep 98760",
            "true",
        ]);
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(1), "{said}");
        assert!(
            said.contains("`sleep 98760`: it did not end within 0.5 s"),
            "{said}"
        );
    }
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn what_failed_has_another_chance_when_it_goes_on() {
    let dir = Dir::new();
    let (file, mark) = (dir.name("r.jsonl"), dir.name("mark"));
    let (often, script) = (dir.name("often"), dir.name("mended"));
    let flaky = format!("test -e {script}");
    let hopeless = format!("echo x >> {mark}; exit 3");
    let once = format!("echo x >> {often}; test -e {script}");
    let run = |runs: &str| bench(&["-r", runs, "-o", &file, &flaky, &hopeless, &once]);
    let failures = |of: &str| {
        let run = Run::read(Path::new(&file)).unwrap();
        run.failures.iter().filter(|f| f.variant == of).count()
    };
    let made = |of: &str| {
        let run = Run::read(Path::new(&file)).unwrap();
        run.executions.iter().filter(|e| e.variant == of).count()
    };
    assert_eq!(run("2").status.code(), Some(1));
    assert_eq!((failures(&flaky), made(&flaky)), (2, 0));
    // Still broken: each is tried once more, and its failure counts once.
    assert_eq!(run("2").status.code(), Some(1));
    assert_eq!((failures(&flaky), failures(&once)), (2, 2));
    assert_eq!(fs::read_to_string(&often).unwrap().lines().count(), 4);
    fs::write(&script, "").unwrap();
    assert_eq!(run("3").status.code(), Some(1));
    assert_eq!((failures(&flaky), made(&flaky)), (0, 3));
    assert_eq!((failures(&once), made(&once)), (0, 3));
    // Who failed three times and never succeeded is given up.
    assert_eq!(failures(&hopeless), 3);
    let tried = fs::read_to_string(&mark).unwrap().lines().count();
    run("3");
    assert_eq!(fs::read_to_string(&mark).unwrap().lines().count(), tried);
}
