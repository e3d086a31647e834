//! What the program changed is put back although it was killed.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::BIN;

const THP: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

fn becomes(wanted: impl Fn(&str) -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(20) {
        if std::fs::read_to_string(THP).is_ok_and(|text| wanted(&text)) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

#[test]
fn settings_are_put_back_when_the_program_is_killed() {
    let before = std::fs::read_to_string(THP).unwrap_or_default();
    if !rustix::process::geteuid().is_root() || !Path::new(THP).exists() {
        eprintln!("SKIP: only root may change {THP}");
        return;
    }
    if before.contains("[always]") {
        eprintln!("SKIP: {THP} is `always` already");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut program = Command::new(BIN)
        .args(["superpages", "--quick", "--only", "touch-256m"])
        .args(["--variants", "thp", "--runs", "9", "--out"])
        .arg(dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let changed = becomes(|text| text.contains("[always]"));
    program.kill().unwrap();
    program.wait().unwrap();
    assert!(changed, "the setting was changed");
    assert!(becomes(|text| text == before), "the setting is as before");
}
