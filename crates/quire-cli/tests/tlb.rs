//! `quire tlb` as a user meets it: programs whose addresses are known, and
//! programs that notice a tracer which is not careful.

#[path = "common/refusal.rs"]
mod refusal;
#[path = "common/signals.rs"]
mod signals;
#[path = "common/waiting.rs"]
mod waiting;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use serde_json::Value;

use refusal::assert_refused;
use signals::send;
use waiting::{state, wait_for};

/// TLBs as the predictions below have them.
const TLBS: &str = "l1d=64:full:4K+2M,l1i=64:full:4K+2M,l2=2048:8:4K+2M";
/// Windows that take a test a second or two.
const SMALL: [&str; 6] = ["--window", "8000", "--windows", "4", "--every", "20"];
/// Without quire, when the program has begun with what it repeats.
const PLAIN: [&str; 3] = ["--plain", "--after", "500"];
/// Until then Quire has made superpages of what a program touched.
const PROMOTED: [&str; 2] = ["--after", "1500"];

/// The executable of `programs/NAME.c`.
fn program(name: &str) -> PathBuf {
    static PROGRAMS: LazyLock<PathBuf> = LazyLock::new(|| {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tlb-programs");
        fs::create_dir_all(&out).unwrap();
        for name in ["touch", "signals", "processes", "no_ptrace"] {
            // Another test run may be using the executable of this name.
            let fresh = out.join(format!("{name}.{}", std::process::id()));
            let status = Command::new("gcc")
                .args(["-std=gnu11", "-Wall", "-Wextra", "-O1", "-pthread"])
                // A window that sees the end is not to see how `_exit` is looked up.
                .args(["-Wl,-z,now", "-o"])
                .arg(&fresh)
                .arg(sources.join(format!("{name}.c")))
                .status()
                .expect("gcc");
            assert!(status.success(), "{name}.c does not compile");
            fs::rename(&fresh, out.join(name)).unwrap();
        }
        out
    });
    PROGRAMS.join(name)
}

fn quire() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.arg("tlb");
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether this place forbids tracing, which every test here needs.
fn is_forbidden(output: &Output) -> bool {
    let forbidden = output.status.code() == Some(2) && stderr(output).contains("may not be traced");
    if forbidden {
        println!("SKIP: tracing is forbidden here");
    }
    forbidden
}

/// Runs a command line and returns what was written as JSON with how the
/// program ended; nothing where tracing is forbidden.
fn traced<S: AsRef<OsStr>>(options: &[&str], words: &[S]) -> Option<(Value, Output)> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tlb.json");
    let output = quire()
        .args(options)
        .args(["--json", "--output"])
        .arg(&file)
        .arg("--")
        .args(words)
        .output()
        .unwrap();
    if is_forbidden(&output) {
        return None;
    }
    let text = fs::read_to_string(&file).unwrap();
    let value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    Some((value, output))
}

/// Runs `touch` and returns the model's part of the report.
fn touch(options: &[&str], mode: &str, pages: u64) -> Option<Value> {
    let options = [&SMALL[..], &["--tlb", TLBS], options].concat();
    let script = format!(
        "trap '' TRAP; exec {} {mode} {pages} 2500",
        program("touch").display()
    );
    let words = ["sh", "-c", &script];
    let (value, output) = traced(&options, &words)?;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let model = value["model"].clone();
    assert!(model["windows"].as_u64().unwrap() >= 1, "{value}");
    assert_eq!(model["undecoded"], 0, "{value}");
    Some(model)
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

/// Asserts that `value` is `wanted` but for a part of it.
fn assert_near(value: &Value, wanted: f64, part: f64) {
    let value = number(value);
    assert!(
        (value - wanted).abs() <= wanted * part,
        "{value}, wanted {wanted}"
    );
}

#[test]
fn loads_miss_as_the_arrays_predict() {
    // One instruction of four is a load, each from another page in turn. The
    // part that may differ is for the rounds' ends, which use other memory.
    for (pages, l1_ratio, walk_ratio) in [(48, 0.0, 0.0), (256, 1.0, 0.0), (4096, 1.0, 1.0)] {
        let Some(model) = touch(&PLAIN, "plain", pages) else {
            return;
        };
        let [l1, l2] = [&model["levels"][0], &model["levels"][1]];
        let loads = number(&model["instructions"]) / 4.0;
        assert_near(&l1["accesses"]["base"], loads, 0.05);
        let l1_misses = number(&l1["misses"]["base"]);
        let walks = number(&l2["misses"]["base"]);
        if l1_ratio == 0.0 {
            // Only what the outermost loop uses is not there yet.
            assert!(l1_misses <= 0.01 * loads, "{pages} pages: {model}");
        } else {
            assert_near(&l1["miss_ratio"]["base"], 1.0, 0.05);
        }
        if walk_ratio == 0.0 {
            assert!(walks <= 0.01 * loads, "{pages} pages: {model}");
        } else {
            assert_near(&l2["miss_ratio"]["base"], 1.0, 0.01);
            assert_near(&model["walks_per_1000"]["base"], 250.0, 0.05);
        }
        assert_eq!(l1["misses"]["base"], l1["misses"]["real"]);
        assert_eq!(model["superpage_share"], 0.0);
    }
}

#[test]
fn the_kernels_superpages_are_seen() {
    let thp = "/sys/kernel/mm/transparent_hugepage/enabled";
    if fs::read_to_string(thp).is_ok_and(|text| text.contains("[never]")) {
        println!("SKIP: transparent huge pages are switched off");
        return;
    }
    let Some(model) = touch(&PLAIN, "huge", 4096) else {
        return;
    };
    assert_near(&model["superpage_share"], 1.0, 0.05);
    assert!(number(&model["walks_per_1000"]["base"]) > 230.0, "{model}");
    assert!(number(&model["walks_per_1000"]["real"]) < 2.5, "{model}");
    for level in [0, 1] {
        let reduction = &model["levels"][level]["reduction_percent"];
        assert!(number(&reduction["ci_low"]) > 98.0, "{model}");
    }
}

#[test]
fn every_lane_of_a_gather_is_an_access() {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if !cpu.contains(" avx2 ") {
        println!("SKIP: this machine has no AVX2");
        return;
    }
    let Some(model) = touch(&PLAIN, "gather", 4096) else {
        return;
    };
    // In a round, one load of the offsets, which hits, and four lanes, which
    // do not. Were they one access, it would be half. A busy machine comes to few
    // windows, and one may begin on pages where an earlier one ended.
    assert_near(&model["levels"][0]["miss_ratio"]["base"], 0.8, 0.05);
    assert_near(&model["levels"][1]["miss_ratio"]["base"], 1.0, 0.01);
}

#[test]
fn a_repeated_string_instruction_is_one_access_for_each_line() {
    let Some(model) = touch(&PLAIN, "fill", 4096) else {
        return;
    };
    println!("{model}");
    // 3 of 4 steps are counted, 8 of them fill a line, 64 lines are a page. A
    // window may begin on pages where an earlier one ended.
    let steps = 6000.0 * number(&model["windows"]);
    let l1 = &model["levels"][0];
    assert_near(&l1["accesses"]["base"], steps / 8.0, 0.05);
    let pages = number(&l1["misses"]["base"]) + number(&l1["open"]["base"]);
    assert_near(&pages.into(), steps / 8.0 / 64.0, 0.2);
    assert!(number(&model["instructions"]) < 0.05 * steps, "{model}");
}

#[test]
fn quires_superpages_are_seen() {
    let binary = Path::new(env!("CARGO_BIN_EXE_quire"));
    let target = binary.parent().and_then(Path::parent).unwrap();
    for (policy, library) in [("reserve", "libquire_provide.so"), ("base", "libquire.so")] {
        if !target.join("preload").join(library).exists() {
            println!("SKIP: {library} is not built");
            continue;
        }
        let Some(model) = touch(
            &[&PROMOTED[..], &["--policy", policy]].concat(),
            "unadvised",
            4096,
        ) else {
            return;
        };
        let reduction = &model["levels"][1]["reduction_percent"]["value"];
        if policy == "base" {
            assert_eq!(number(reduction), 0.0, "{policy}: {model}");
        } else {
            assert_near(&model["superpage_share"], 1.0, 0.05);
            assert!(number(reduction) > 99.0, "{policy}: {model}");
        }
    }
}

#[test]
fn signals_traps_and_flags_are_the_programs_own() {
    let options = ["--plain", "--window", "1500", "--every", "10"];
    let Some((value, output)) = traced(&options, &[program("signals")]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(42), "{}", stderr(&output));
    assert!(number(&value["model"]["windows"]) >= 1.0, "{value}");
}

#[test]
fn threads_and_children_live_as_ever() {
    let options = ["--plain", "--window", "1500", "--every", "10"];
    let Some((value, output)) = traced(&options, &[program("processes")]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(43), "{}", stderr(&output));
    assert!(number(&value["model"]["windows"]) >= 1.0, "{value}");
}

#[test]
fn a_program_that_executes_another_is_followed() {
    let script = format!(
        "i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done; trap '' TRAP; exec {} plain 4096 3000",
        program("touch").display()
    );
    let options = [&["--tlb", TLBS], &SMALL[..], &PLAIN].concat();
    let Some((value, output)) = traced(&options, &["sh", "-c", &script]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(0));
    // The shell alone has next to no walks, the other program 250.
    assert!(
        number(&value["model"]["walks_per_1000"]["base"]) > 50.0,
        "{value}"
    );
}

#[test]
fn a_whole_run_can_be_stepped() {
    let script = "i=0; while [ $i -lt 30 ]; do i=$((i + 1)); sleep 0.01; done; exit 6";
    let options = ["--plain", "--whole", "--after", "50"];
    let Some((value, output)) = traced(&options, &["sh", "-c", script]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(6));
    assert!(number(&value["model"]["windows"]) <= 1.0, "{value}");
}

#[test]
fn the_end_is_the_programs() {
    for (script, code, signal) in [
        ("exit 0", Some(0), None),
        ("exit 42", Some(42), None),
        ("kill -9 $$", None, Some(9)),
        ("kill -15 $$", None, Some(15)),
    ] {
        let Some((value, output)) = traced(&["--plain"], &["sh", "-c", script]) else {
            return;
        };
        assert_eq!(
            (output.status.code(), output.status.signal()),
            (code, signal),
            "{script}"
        );
        assert_eq!(
            value["exit"],
            serde_json::json!({"code": code, "signal": signal})
        );
        assert_eq!(value["model"]["windows"], 0);
    }
}

#[test]
fn signals_to_quire_and_stops_reach_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let ready = dir.path().join("ready");
    let output = quire().args(["--plain", "true"]).output().unwrap();
    if is_forbidden(&output) {
        return;
    }
    // Busy, so that windows are taken meanwhile.
    let busy = "while :; do i=$((i + 1)); done";
    let start = |script: &str| {
        let _ = fs::remove_file(&ready);
        let child = quire()
            .args([
                "--plain",
                "--window",
                "1000",
                "--every",
                "5",
                "--output",
                "/dev/null",
            ])
            .args(["--", "sh", "-c", script])
            .process_group(0)
            .spawn()
            .unwrap();
        wait_for(|| ready.exists());
        child
    };
    for signal in ["TERM", "USR1"] {
        let file = ready.display();
        let mut child = start(&format!("trap 'exit 7' {signal}; : > {file}; {busy}"));
        send(signal, child.id());
        assert_eq!(child.wait().unwrap().code(), Some(7), "{signal}");
    }
    let file = ready.display();
    let mut child = start(&format!(": > {file}; kill -s TSTP $$; exit 5"));
    wait_for(|| state(child.id()) == 'T');
    send("CONT", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

#[test]
fn where_tracing_is_forbidden_the_program_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("mark");
    let output = Command::new(program("no_ptrace"))
        .arg(env!("CARGO_BIN_EXE_quire"))
        .args(["tlb", "--plain", "touch"])
        .arg(&mark)
        .output()
        .unwrap();
    assert_refused(&output, 2, &["may not be traced", "--cap-add=SYS_PTRACE"]);
    assert!(!mark.exists());
}

#[test]
fn counters_are_used_where_there_are_any() {
    let script = "i=0; while [ $i -lt 10000 ]; do i=$((i + 1)); done";
    let output = quire()
        .args(["--pmu", "only", "--json", "sh", "-c", script])
        .env("QUIRE_LIB", "/lib/x86_64-linux-gnu/libm.so.6")
        .output()
        .unwrap();
    if output.status.success() {
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(number(&value["pmu"]["data_reads"]) > 0.0, "{value}");
        assert!(number(&value["pmu_plain"]["data_reads"]) > 0.0, "{value}");
    } else {
        println!("SKIP: this machine has no counters of TLB misses");
        assert_refused(&output, 2, &["no counts of TLB misses", "--pmu only"]);
    }
    let output = quire().args(["--plain", "true"]).output().unwrap();
    if !is_forbidden(&output) {
        assert!(
            stderr(&output).contains("by the processor"),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn bad_options_are_refused() {
    for (options, words) in [
        (
            &["--tlb", "l1d=64"][..],
            &["l1d=64", "write a geometry as"][..],
        ),
        (&["--window", "0"], &["--window"]),
        (&["--windows", "1"], &["--windows"]),
        (&["--plain", "--policy", "eager"], &["--plain", "--policy"]),
        (&["--whole", "--window", "9"], &["--whole", "--window"]),
        (&["--plain", "--output", "/no/dir/file"], &["/no/dir/file"]),
        (&["--pmu", "maybe"], &["maybe"]),
    ] {
        let output = quire().args(options).arg("true").output().unwrap();
        assert_refused(&output, 2, words);
    }
}
