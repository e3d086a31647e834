//! The C interface, `quire_dsm.h`: programs that are linked with the library.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::harness::{Running, Served, assert_well, library, link, source};
use crate::protects_while_the_server_comes_back;

/// A program of these tests, which is ended when it takes too long.
pub fn limited(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["-s", "KILL", "60"])
        .arg(program)
        .args(arguments);
    command
}

#[test]
fn a_linked_program_asks() {
    let served = Served::start();
    let asks = link("tests/programs/asks.c", &[]);
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
    let tally = link("examples/tally.c", &[]);
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

/// One program allocates, another one uses and frees, and the first sees it.
fn share_a_heap(heaps: &Path, [one, other]: [&str; 2], more: &[&str]) {
    let run = |what, at| limited(heaps, &[&[what, at], more].concat());
    let mut maker = Running::start(&mut run("make", one));
    maker.hear("made");
    assert_well(&run("use", other).output().expect("it was built"));
    maker.go_on();
}

#[test]
fn programs_allocate_by_type() {
    let served = Served::start();
    let heaps = link("tests/programs/heaps.c", &[]);
    share_a_heap(&heaps, [&served.address, &served.address], &[]);
    served.does(&["object", "rm", "heap"]);
    let errors = limited(&heaps, &["errors", &served.address]).output();
    assert_well(&errors.expect("it was built"));
}

/// The same at two servers, the second of which gets its copy before it is needed.
#[test]
fn programs_at_two_servers_allocate_by_type() {
    let directory = TempDir::new().expect("a directory");
    let at = |name: &str| format!("unix:{}/{name}", directory.path().display());
    let (one, other) = (at("one"), at("other"));
    let peers = format!("{one},{other}");
    let serve = |listen: &str| {
        let own = TempDir::new().expect("a directory");
        Served::start_with(own, &["--listen", listen, "--peers", &peers])
    };
    let (first, second) = (serve(&one), serve(&other));
    let heaps = link("tests/programs/heaps.c", &[]);
    share_a_heap(&heaps, [&first.address, &second.address], &["distributed"]);
}

/// Pagers that a program in C has: computed, in its memory, and a file.
#[test]
fn a_program_serves_what_it_likes() {
    let directory = TempDir::new().expect("a directory");
    let pagers = link("examples/pagers.c", &[]);
    let paged = link("tests/programs/paged.c", &[]);
    let file = directory.path().join("file");
    fs::write(
        &file,
        [b"what was there".as_slice(), &[b'-'; 5000]].concat(),
    )
    .expect("it is ours");
    let (socket, path) = (
        format!("unix:{}/socket", directory.path().display()),
        file.to_str().expect("text"),
    );
    let mut server = limited(&pagers, &[&socket, path]);
    let mut server = server
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it was built");
    let mut line = String::new();
    let said = server.stdout.take().expect("a pipe");
    BufReader::new(said).read_line(&mut line).expect("a line");
    assert_eq!(line.trim(), format!("serving at {socket}"));
    assert_well(&limited(&paged, &[&socket]).output().expect("it was built"));
    drop(server.stdin.take());
    assert!(server.wait().expect("it is ours").success());
    let contents = fs::read(&file).expect("it is there");
    assert_eq!(contents.len(), 5014);
    assert!(contents.starts_with(b"what is! there") && contents.ends_with(b"-."));
}

/// What was written is lost with the server, with pages of one's own or its: closing says so.
#[test]
fn closing_says_that_what_was_written_is_lost() {
    for apart in [&[][..], &["apart"]] {
        let mut served = Served::start();
        let closes = link("tests/programs/closes.c", &[]);
        let mut command = limited(&closes, &[&["lost", &served.address], apart].concat());
        let mut program = Running::start(&mut command);
        program.hear("written");
        served.kill();
        program.go_on();
    }
}

/// A link that broke is there again with another server, and what was not given back is not: that is
/// said once.
#[test]
fn flushing_says_once_that_what_was_written_is_lost() {
    for apart in [&[][..], &["apart"]] {
        let mut served = Served::start_with_store();
        let closes = link("tests/programs/closes.c", &[]);
        let mut command = limited(&closes, &[&["broken", &served.address], apart].concat());
        let mut program = Running::start(&mut command);
        program.hear("written");
        served.kill();
        served.start_again();
        program.go_on();
        assert_eq!(served.contents("closes")[0], b'c');
    }
}

/// Memory that may only be read is not made writable, and what comes in its place is.
#[test]
fn readers_do_not_make_their_memory_writable() {
    let served = Served::start();
    let readers = link("tests/programs/readers.c", &[]);
    let output = limited(&readers, &[&served.address]).output();
    assert_well(&output.expect("it was built"));
}

/// What their memory allows is what they were told last, also where a server comes back.
#[test]
fn what_is_protected_in_c_while_the_server_comes_back_stays_so() {
    let mut served = Served::start_with_store();
    let protects = link("tests/programs/protects.c", &["-DC_INTERFACE"]);
    let command = limited(&protects, &[&served.address]);
    protects_while_the_server_comes_back(&mut served, command);
}

/// Locks of the C library work in memory of objects, wherever the others are who use them.
#[test]
fn locks_of_the_c_library_work_in_c() {
    let served = Served::start();
    let sync = link("tests/programs/sync.c", &["-DC_INTERFACE"]);
    for options in [&[][..], &["apart"]] {
        let run = |me| limited(&sync, &[&[served.address.as_str(), me], options].concat());
        let mut maker = Running::start(&mut run("0"));
        maker.hear("ready");
        assert_well(&run("1").output().expect("it was built"));
        maker.go_on();
        served.does(&["object", "rm", "sync"]);
    }
}

/// An object may be closed as soon as its heap is, by another thread, too.
#[test]
fn a_heap_is_closed_before_its_object_can_be() {
    let served = Served::start();
    let closes = link("tests/programs/closes.c", &[]);
    let output = limited(&closes, &["heap", &served.address]).output();
    assert_well(&output.expect("it was built"));
}

/// Several threads offer objects at once, and each is there once.
#[test]
fn threads_offer_objects_at_once() {
    closes_alone("offers");
}

/// When a server cannot start, its pagers have terminated, those with threads of their own, too.
#[test]
fn pagers_of_a_server_that_cannot_start_have_terminated() {
    closes_alone("refused");
}

/// A part of that program which needs no server.
fn closes_alone(what: &str) {
    let closes = link("tests/programs/closes.c", &[]);
    let output = limited(&closes, &[what]).output();
    assert_well(&output.expect("it was built"));
}

/// What the header declares is what the library has, and nothing else of this name.
#[test]
fn the_library_has_what_the_header_declares() {
    let header = fs::read_to_string(source("include/quire_dsm.h")).expect("it is there");
    let begins = header
        .lines()
        .filter(|line| !line.starts_with([' ', '/', '#', '}']) && line.contains('('));
    let declared: BTreeSet<&str> = begins
        .filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next())
        .collect();
    assert!(declared.len() > 40, "{declared:?}");
    let symbols = Command::new("nm")
        .args(["--dynamic", "--defined-only"])
        .arg(library())
        .output()
        .expect("./setup installs binutils");
    let symbols = String::from_utf8(symbols.stdout).expect("text");
    let ours = symbols.lines().filter_map(|line| line.rsplit(' ').next());
    let exported: BTreeSet<&str> = ours.filter(|name| name.starts_with("quire_dsm")).collect();
    assert_eq!(exported, declared);
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

/// What was given up is said to be, in the log and by an error of its own, until it is opened again.
#[test]
fn what_was_given_up_is_said_to_be() {
    let mut served = Served::start_with_store();
    let last = link("tests/programs/final.c", &[]);
    let log = served.path().join("log");
    let mut command = limited(&last, &[&served.address]);
    let mut running = Running::start(command.stderr(fs::File::create(&log).expect("it is ours")));
    running.hear("made");
    served.kill();
    running.say("");
    running.hear("failed");
    let said = fs::read_to_string(&log).expect("text");
    assert!(
        said.contains("the memory of grid fails: there is no new link"),
        "{said}"
    );
    served.start_again();
    running.go_on();
}
