//! Programs that go on at another server when theirs is killed.

use std::process::Command;

use super::harness::{Running, Served, assert_well, quire};
use super::program;
use tempfile::TempDir;

/// Three servers that share objects; the first has their directory.
fn joined() -> [Served; 3] {
    let all = [(); 3].map(|()| TempDir::new().expect("a directory"));
    let addresses = all
        .each_ref()
        .map(|directory| format!("unix:{}/socket", directory.path().display()));
    let peers = addresses.join(",");
    let mut addresses = addresses.iter();
    all.map(|directory| {
        let listen = addresses.next().expect("as many as directories");
        Served::start_with(directory, &["--listen", listen, "--peers", &peers])
    })
}

fn attached(servers: &[&Served], program: &std::path::Path, word: &str) -> Command {
    let all: Vec<&str> = servers.iter().map(|server| &*server.address).collect();
    let mut command = quire();
    command
        .args(["run", "--quiet", "--dsm"])
        .arg(format!("grid@{}", all.join(",")))
        .args(["--", "timeout", "-s", "KILL", "60"])
        .arg(program)
        .args(["/grid", word]);
    command
}

#[test]
fn an_unmodified_program_goes_on_at_another_server() {
    let [first, mut second, third] = joined();
    let how = ["--size", "4K", "--scheduler", "distributed"];
    let made = first.quire(&[&["object", "create", "grid"], &how[..]].concat());
    assert_well(&made);
    let moves = program("moves");
    let mut moved = Running::start(&mut attached(&[&second, &third], &moves, "0"));
    moved.hear("first");
    let mut other = Running::start(&mut attached(&[&third, &first], &moves, "1"));
    other.hear("first");
    second.kill();
    moved.go_on();
    other.go_on();
    let contents = first.contents("grid");
    let word = |at: usize| {
        let bytes = contents[8 * at..8 * at + 8].try_into();
        u64::from_ne_bytes(bytes.expect("eight bytes"))
    };
    // The second program had all of the first one's when it wrote to the page.
    assert_eq!([word(0), word(1)], [2000, 2000]);
}
