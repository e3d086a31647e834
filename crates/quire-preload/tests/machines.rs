//! The superpages of the default where programs run: as an ordinary user, in containers with Docker's profile, and
//! on other kernels in an emulated machine. The scripts are in `machines/`; each prints what it saw.
//!
//! What is missing on a machine is reported in lines that begin with `SKIP:`. The emulated machines take minutes,
//! so they run only with `QUIRE_TEST_MACHINES=1`; then containers get a file system that debootstrap makes.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The exit status of a script that lacks something.
const MISSING: i32 = 77;

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machines")
}

fn target_dir() -> &'static Path {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    tmp.parent()
        .expect("the directory for tests lies in target")
}

/// Whether what takes minutes is asked for.
fn is_asked_for() -> bool {
    std::env::var_os("QUIRE_TEST_MACHINES").is_some_and(|value| value == "1")
}

/// Runs a script, which must pass all of its cases.
fn run(script: &str, arguments: &[&str]) {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(scripts().join(script))
        .args(arguments)
        .env("CARGO_TARGET_DIR", target_dir())
        .output()
        .unwrap_or_else(|error| panic!("{script}: {error}"));
    let said = String::from_utf8_lossy(&stdout);
    print!("{said}");
    let passed = status.success() || status.code() == Some(MISSING);
    let signal = status.signal();
    let errors = String::from_utf8_lossy(&stderr);
    assert!(passed, "{script}: {status} {signal:?}\n{said}{errors}");
    let tells = said.contains("ok ") || said.contains("SKIP:");
    assert!(tells, "{script} has tried nothing\n{said}{errors}");
}

/// Runs what takes minutes.
fn run_when_asked(script: &str, arguments: &[&str]) {
    if is_asked_for() {
        run(script, arguments);
    } else {
        let arguments = arguments.join(" ");
        println!("SKIP: {script} {arguments}: takes minutes, QUIRE_TEST_MACHINES=1 runs it");
    }
}

#[test]
fn an_ordinary_user_gets_superpages() {
    run("plain", &[]);
}

#[test]
fn containers_get_superpages() {
    run(
        "container",
        if is_asked_for() {
            &["debootstrap"]
        } else {
            &[]
        },
    );
}

#[test]
fn linux_6_1_gives_superpages() {
    run_when_asked("virtual", &["6.1"]);
}

#[test]
fn linux_6_12_gives_superpages() {
    run_when_asked("virtual", &["6.12"]);
}
