//! The program under test, and what tests can be done on this machine.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The program.
pub const BIN: &str = env!("CARGO_BIN_EXE_quire-bench");

/// What came of the program with these arguments.
pub fn bench(args: &[&str]) -> Output {
    Command::new(BIN).args(args).output().unwrap()
}

/// What a program printed.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The library that provides memory, where one is built; else it is said what cannot be tested.
/// Building one here would take minutes.
pub fn library(what: &str) -> Option<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let built = target.unwrap_or_else(|| workspace.join("target"));
    let asked = std::env::var_os("QUIRE_JEMALLOC_LIB").map(PathBuf::from);
    let library = asked.unwrap_or_else(|| built.join("preload/libquire_provide_jemalloc.so"));
    if !library.exists() {
        println!("SKIP: {what}: libquire_provide_jemalloc.so is not built");
        return None;
    }
    Some(library)
}

/// Whether this is root; else it is said what cannot be tested.
pub fn is_root(what: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("SKIP: {what}: it takes root");
    }
    root
}

/// Asserts that these arguments are refused with exit status 2 and these words.
pub fn assert_refused(args: &[&str], words: &str) {
    let output = bench(args);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?} {stderr}");
    assert!(stderr.contains(words), "{args:?} {stderr}");
}
