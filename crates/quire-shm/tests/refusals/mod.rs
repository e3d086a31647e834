//! What `quire run --dsm` refuses: one line with the remedy, and no program is started.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::harness::{Served, assert_well, built, library, quire};

/// Asserts that a run is refused, and that nothing was started.
fn refused(served: &Served, options: &[&str], words: &[&str]) {
    let mark = served.path().join("started");
    let mut command = quire();
    command
        .arg("run")
        .args(options)
        .arg("--")
        .arg("touch")
        .arg(&mark);
    check(command, words);
    assert!(!mark.exists(), "{options:?}");
}

fn check(mut command: Command, words: &[&str]) {
    let output = command.output().expect("it was built");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(
        text.starts_with("quire: ") || text.starts_with("error: "),
        "{text}"
    );
    for word in words {
        assert!(text.contains(word), "{text} lacks {word}");
    }
}

#[test]
fn what_cannot_be_is_refused_before_the_program_starts() {
    let served = Served::start();
    let at = |what: &str| format!("{what}@{}", served.address);
    refused(&served, &["--dsm", "grid@"], &["HOST:PORT"]);
    refused(&served, &["--dsm", "gr id@unix:/s"], &["letters"]);
    refused(&served, &["--dsm", &at("grid=0x0")], &["0x1"]);
    refused(
        &served,
        &["--dsm", "grid@unix:/nonexistent/s"],
        &["/nonexistent/s", "quire serve"],
    );
    refused(
        &served,
        &["--dsm", &at("grid"), "--no-create"],
        &["quire object create grid"],
    );
    refused(
        &served,
        &["--dsm", &at("a=x"), "--dsm", &at("b=/x")],
        &["/x", "two objects"],
    );
    refused(&served, &["--dsm", "grid@192.0.2.1:1"], &["certificate"]);
    refused(&served, &["--no-create"], &["--dsm"]);
    refused(&served, &["--own-pages"], &["--dsm"]);
    refused(&served, &["--plaintext"], &["--dsm"]);
    let files = ["--certificate", "/nonexistent", "--key", "/k", "--ca", "/c"];
    refused(
        &served,
        &[&["--dsm", &at("grid")], &files[..]].concat(),
        &["/nonexistent"],
    );
    assert!(served.objects().is_empty());
}

/// The variables that `quire run` gives can be set by hand. What is wrong there must not end in memory of the program's
/// own.
#[test]
fn variables_that_say_what_cannot_be_end_the_program() {
    let served = Served::start();
    let mark = served.path().join("started");
    let grid = format!("grid@{}", served.address);
    let wrong = [
        ("QUIRE_DSM", "grid@nowhere", "\"nowhere\""),
        ("QUIRE_DSM_ON_LOSS", "foo", "foo"),
        ("QUIRE_DSM_ROOM", "abc", "abc"),
        ("QUIRE_DSM_CREATE", "no", "no"),
    ];
    for (name, value, word) in wrong {
        let mut command = Command::new("touch");
        command.arg(&mark).env("QUIRE_DSM", &grid).env(name, value);
        command.env("LD_PRELOAD", library());
        check(command, &["QUIRE_DSM", word]);
        assert!(!mark.exists(), "{name}");
    }
}

#[test]
fn a_program_that_takes_no_library_is_refused() {
    let served = Served::start();
    let program = built("tests/programs/sysv.c", &["-static"]);
    check(
        served.run_directly("grid", &program),
        &["statically linked", "preloaded"],
    );
}

#[test]
fn without_the_library_the_remedy_is_named() {
    let served = Served::start();
    let mut command = served.run("grid", Path::new("true"), &[]);
    command.env("QUIRE_DSM_LIB", "/nonexistent.so");
    check(command, &["QUIRE_DSM_LIB", "libquire_dsm.so"]);
}

/// With `--no-create`, a program finds objects and makes none.
#[test]
fn objects_are_not_made_where_they_must_not() {
    let served = Served::start();
    let posix = built("tests/programs/posix.c", &[]);
    served.does(&["object", "create", "grid", "--size", "36964"]);
    let run = || {
        let mut command = served.run_with("grid", &["--no-create"], &posix);
        command.args(["end", "/grid", "exit"]);
        command
    };
    assert_well(&run().output().expect("it was built"));
    assert_eq!(served.contents("grid")[0], b'e');
    // It is gone after the check.
    let script = "quire object rm grid && exec \"$0\" end /grid exit";
    let mut command = served.run_with("grid", &["--no-create"], Path::new("sh"));
    command.args(["-c", script]).arg(&posix);
    let path = crate::harness::path_with_command();
    let output = command
        .env("PATH", path)
        .env("QUIRE_SERVER", &served.address);
    let output = output.output().expect("it was built");
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(log.contains("--no-create"), "{log}");
}

/// Between machines, the program is known by its certificate.
#[test]
fn certificates_are_passed_on() {
    let directory = TempDir::new().expect("a directory");
    let keys = directory.path().to_owned();
    let certify = quire()
        .args([
            "dsm",
            "certify",
            "server",
            "node-1",
            "node-2",
            "--directory",
        ])
        .arg(&keys)
        .output();
    assert_well(&certify.expect("it was built"));
    let files = |name: &str| {
        let file = |name: String| keys.join(name).display().to_string();
        let options = [
            ("--certificate", file(format!("{name}.pem"))),
            ("--key", file(format!("{name}.key"))),
            ("--ca", file("ca.pem".into())),
        ];
        let options = options
            .into_iter()
            .flat_map(|(option, path)| [option.to_owned(), path]);
        options
            .chain(["--tls-everywhere".to_owned()])
            .collect::<Vec<_>>()
    };
    let own = files("server");
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let listen = [&["--listen", "127.0.0.1:0", "--name", "server"], &own[..]].concat();
    let served = Served::start_with(directory, &listen);
    let posix = built("tests/programs/posix.c", &[]);
    let run = |name: &str| {
        let known = files(name);
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let mut command = served.run_with(
            "grid",
            &[&["--identity", name], &known[..]].concat(),
            &posix,
        );
        command.args(["end", "/grid", "exit"]);
        command
    };
    assert_well(&run("node-1").output().expect("it was built"));
    // The object is node-1's.
    check(run("node-2"), &["node-2", "grant"]);
    check(served.run("grid", Path::new("true"), &[]), &["grid"]);
    assert!(fs::metadata(keys.join("node-1.key")).is_ok());
}
