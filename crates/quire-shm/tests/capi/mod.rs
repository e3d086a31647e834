//! The C interface, `quire_dsm.h`: programs that are linked with the library.

use std::fs;
use std::process::Command;

use crate::harness::{Running, Served, assert_well, link, source};

#[test]
fn a_linked_program_asks() {
    let served = Served::start();
    let asks = link("tests/programs/asks.c", served.path());
    let output = Command::new("timeout")
        .args(["-s", "KILL", "60"])
        .arg(asks)
        .arg(&served.address)
        .output();
    assert_well(&output.expect("it was built"));
    assert!(served.objects().is_empty());
}

/// The program that the documentation names, on three nodes.
#[test]
fn the_example_counts_on_several_nodes() {
    let served = Served::start();
    let tally = link("examples/tally.c", served.path());
    let node = |me: &str| {
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "60"]).arg(&tally);
        Running::start(command.args([&served.address, me, "3"]))
    };
    let mut first = node("0");
    let others = [node("1"), node("2")];
    first.hear("2240 letters in 64 parts, 256 times o");
    for node in others.into_iter().chain([first]) {
        assert!(node.status().success());
    }
}

/// The header alone, in C and in C++.
#[test]
fn the_header_compiles_everywhere() {
    let directory = tempfile::tempdir().expect("a directory");
    let text = "#include <quire_dsm.h>\nint main() { return quire_dsm_api() != QUIRE_DSM_API; }\n";
    let how = [
        ("gcc", "c", "c11"),
        ("g++", "cc", "c++11"),
        ("g++", "cc", "c++20"),
    ];
    for (compiler, suffix, standard) in how {
        let file = directory.path().join(format!("header.{suffix}"));
        fs::write(&file, text).expect("the directory is ours");
        let status = Command::new(compiler)
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"])
            .arg(format!("-std={standard}"))
            .arg("-I")
            .arg(source("include"))
            .arg(&file)
            .status();
        let status = status.expect("./setup installs the compilers");
        assert!(status.success(), "{compiler} -std={standard}");
    }
}
