//! Program text on superpages, and the tools that look at it: debuggers,
//! profilers, backtraces, exceptions.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use super::{Held, has_huge_folios};
use crate::harness::setting::Setting;
use crate::harness::{Program, build, process, setting, skip};

const TEXT: Setting = Setting {
    env: &[("QUIRE_TEXT", "1")],
    ..setting::RESERVE
};
const TEXT_UNPRIVILEGED: Setting = Setting {
    env: &[("QUIRE_TEXT", "1")],
    ..setting::UNPRIVILEGED
};
/// A process is managed once it has asked for some memory, which this program does by `malloc`.
const TEXT_JEMALLOC: Setting = Setting {
    env: &[("QUIRE_TEXT", "1")],
    ..setting::RESERVE_JEMALLOC
};
/// Whole extents in the text of the program.
const EXTENTS: u64 = 4;

/// `frames.cc` in three forms: loaded anywhere, at a fixed address, and as a
/// library.
struct Frames {
    anywhere: PathBuf,
    fixed: PathBuf,
    library: PathBuf,
}

fn frames() -> Result<&'static Frames, String> {
    static FRAMES: LazyLock<Result<Frames, String>> = LazyLock::new(compile);
    FRAMES.as_ref().map_err(Clone::clone)
}

fn compile() -> Result<Frames, String> {
    process::find("g++").ok_or("g++ is missing")?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/frames.cc");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("frames.{}", std::process::id()));
    std::fs::create_dir_all(&out).map_err(|e| e.to_string())?;
    let make = |name: &str, how: &[&str]| {
        let status = Command::new("g++")
            .args(["-Wall", "-Wextra", "-O1", "-g", "-rdynamic"])
            .arg("-fno-omit-frame-pointer")
            .args(how)
            .arg("-o")
            .arg(out.join(name))
            .arg(&source)
            .status();
        assert!(
            status.is_ok_and(|s| s.success()),
            "frames.cc does not compile"
        );
        // What is not on the disk yet cannot be brought in anew.
        let file = std::fs::File::open(out.join(name)).expect("g++ has written it");
        file.sync_all().expect("the file can be synced");
        out.join(name)
    };
    Ok(Frames {
        anywhere: make("frames-anywhere", &["-pie", "-fPIE"]),
        fixed: make("frames-fixed", &["-no-pie", "-fno-pie"]),
        library: make("libframes.so", &["-shared", "-fPIC", "-DLIBRARY"]),
    })
}

/// The forms of the program, or nothing where they cannot be had.
fn programs() -> Vec<&'static Path> {
    match frames() {
        Ok(frames) => vec![&frames.anywhere, &frames.fixed],
        Err(reason) => {
            skip(reason.as_str());
            Vec::new()
        }
    }
}

fn argv(program: &Path, arguments: &[&str]) -> Vec<OsString> {
    let arguments = arguments.iter().map(OsString::from);
    std::iter::once(program.into()).chain(arguments).collect()
}

fn check_same(setting: &Setting) {
    for program in programs() {
        Program {
            name: &program.display().to_string(),
            argv: argv(program, &["run"]),
            prepare: &|_| (),
            result: None,
            memory_limit: None,
        }
        .check(setting);
    }
}

#[test]
fn exceptions_and_backtraces_work() {
    check_same(&TEXT);
}

#[test]
fn exceptions_and_backtraces_work_for_users() {
    check_same(&TEXT_UNPRIVILEGED);
}

/// The lines of executable memory that may be the program's text.
fn is_text(line: &str) -> bool {
    line.contains(" r-xp ") && (line.contains("frames") || line.ends_with(" 00:00 0 "))
}

#[test]
fn text_is_on_superpages() {
    for program in programs() {
        for setting in [&TEXT, &TEXT_UNPRIVILEGED] {
            if let Some(reason) = setting.missing() {
                skip(&reason);
                continue;
            }
            let held = Held::start(&argv(program, &["hold"]), setting);
            let huge = held.huge(is_text);
            assert!(
                huge >= EXTENTS << 21,
                "{}: {} KiB\n{}",
                program.display(),
                huge >> 10,
                held.read("maps")
            );
            held.finish();
        }
    }
}

#[test]
fn without_the_option_text_is_left_alone() {
    for program in programs() {
        let held = Held::start(&argv(program, &["hold"]), &setting::RESERVE);
        let copied = |line: &str| line.contains(" r-xp ") && line.ends_with(" 00:00 0 ");
        assert!(!held.read("maps").lines().any(copied));
        held.finish();
    }
}

#[test]
fn libraries_that_are_loaded_late_follow() {
    let Ok(frames) = frames() else {
        return skip("g++ is missing");
    };
    let library = frames.library.display().to_string();
    let held = Held::start(&argv(&frames.anywhere, &["load", &library]), &TEXT_JEMALLOC);
    let of_library = |line: &str| line.contains(" r-xp ") && line.contains("libframes.so");
    // Where the kernel has mapped it so that it cannot have huge folios, it is
    // copied.
    let copy = |line: &str| line.contains(" r-xp ") && line.ends_with(" 00:00 0 ");
    let before = if has_huge_folios() {
        0
    } else {
        held.huge(copy)
    };
    let wanted = EXTENTS << 21;
    let huge = held.await_huge(before + wanted, |line| {
        of_library(line) || (!has_huge_folios() && copy(line))
    });
    assert!(
        huge >= before + wanted,
        "{} KiB\n{}",
        huge >> 10,
        held.read("maps")
    );
    held.finish();
}

/// Runs a tool on a program with the library loaded; nothing where there is no
/// such tool.
fn with_tool(tool: &str, arguments: &[OsString]) -> Option<String> {
    if process::find(tool).is_none() {
        skip(&format!("{tool} is missing"));
        return None;
    }
    let scratch = crate::harness::scratch::Scratch::new(false);
    let mut argv = vec![OsString::from(tool)];
    argv.extend_from_slice(arguments);
    let outcome = process::run(&argv, scratch.path());
    assert!(!outcome.timed_out, "{outcome}");
    Some(format!(
        "{}{}",
        String::from_utf8_lossy(&outcome.stdout),
        String::from_utf8_lossy(&outcome.stderr)
    ))
}

#[test]
fn a_debugger_stops_where_it_should() {
    for program in programs() {
        let library = build::library().display();
        let mut arguments = vec![OsString::from("-batch"), "-nx".into()];
        for line in [
            "set debuginfod enabled off",
            &format!("set env LD_PRELOAD {library}"),
            "set env QUIRE_POLICY reserve",
            "set env QUIRE_TEXT 1",
            // Set before the program starts, and so before its text moves.
            "break deepest",
            "run",
            "backtrace 3",
            // Set afterwards, in text that has moved.
            "delete",
            "break descend",
            "continue",
            "backtrace",
            "delete",
            "continue",
        ] {
            arguments.extend(["-ex".into(), OsString::from(line)]);
        }
        arguments.push(program.into());
        let Some(said) = with_tool("gdb", &arguments) else {
            return;
        };
        for wanted in [
            "Breakpoint 1, deepest (depth=16)",
            "in step15 (depth=15)",
            "in step14 (depth=14)",
            "Breakpoint 2, descend ()",
            "in main (",
            "exited normally",
        ] {
            let said = said.replace("depth=depth@entry=", "depth=");
            assert!(said.contains(wanted), "no `{wanted}` in:\n{said}");
        }
    }
}

/// Where a profile of this test run goes.
fn profile(program: &Path, kind: &str) -> PathBuf {
    program.with_extension(format!("{kind}.{}", std::process::id()))
}

/// `perf record` into a file; says whether `perf` can record here.
fn record(data: &Path, what: &[OsString]) -> bool {
    let mut record: Vec<OsString> = ["record", "-q", "-e", "cpu-clock", "-F", "500", "-o"]
        .map(OsString::from)
        .into();
    record.push(data.into());
    record.extend_from_slice(what);
    let Some(said) = with_tool("perf", &record) else {
        return false;
    };
    if !data.exists() {
        skip(&format!("perf cannot record here: {}", said.trim()));
    }
    data.exists()
}

/// What part of the time a profile finds in the function `burn`, in percent.
fn share_of_burn(data: &Path) -> f64 {
    let mut report: Vec<OsString> = ["report", "--stdio", "--no-children", "-i"]
        .map(OsString::from)
        .into();
    report.push(data.into());
    let said = with_tool("perf", &report).unwrap_or_default();
    let found = said.lines().find(|l| l.trim_end().ends_with(" burn"));
    let percent = found.and_then(|l| l.trim().split_once('%')?.0.parse().ok());
    percent.unwrap_or_else(|| panic!("burn is not found in:\n{said}"))
}

#[test]
fn a_profiler_finds_the_symbols() {
    for program in programs() {
        let data = profile(program, "started");
        let preload = format!("LD_PRELOAD={}", build::library().display());
        let settings = ["env", &preload, "QUIRE_POLICY=reserve", "QUIRE_TEXT=1"];
        let mut what: Vec<OsString> = settings.map(OsString::from).into();
        what.extend(argv(program, &["burn"]));
        if !record(&data, &what) {
            return;
        }
        let share = share_of_burn(&data);
        assert!(share > 50.0, "{}: {share} %", program.display());
    }
}

#[test]
fn a_profiler_that_is_attached_finds_the_symbols() {
    for program in programs() {
        let held = Held::start(&argv(program, &["burn-until"]), &TEXT);
        let pid = held.child.id().to_string();
        let data = profile(program, "attached");
        if !record(&data, &["-p", &pid, "sleep", "0.5"].map(OsString::from)) {
            return held.finish();
        }
        let named = Command::new(build::command())
            .args(["perf-map", &pid])
            .status();
        assert!(named.is_ok_and(|s| s.success()));
        let share = share_of_burn(&data);
        let _ = std::fs::remove_file(format!("/tmp/perf-{pid}.map"));
        assert!(share > 50.0, "{}: {share} %", program.display());
        held.finish();
    }
}
