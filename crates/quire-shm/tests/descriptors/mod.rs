//! Descriptors of an object count as use, in whatever order it is opened, given a size, and removed.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::harness::{Running, Served, assert_well, source};
use crate::program;

/// Somebody makes the object, with a nine in it.
pub fn make(served: &Served) {
    let nine = served.path().join("nine");
    let mut contents = vec![0; 8192];
    contents[1] = 9;
    std::fs::write(&nine, contents).expect("there is room");
    served.does(&["object", "cp", nine.to_str().expect("text"), ":grid"]);
}

fn start(served: &Served, program: &Path, what: &str) -> Running {
    Running::start(&mut served.run("grid", program, &[what, "/grid"]))
}

#[test]
fn orders_of_one_program_are_as_with_the_kernel() {
    for served in Served::both() {
        let descriptors = program("descriptors");
        for what in [
            "early", "child", "nameless", "removed", "anew", "sent", "again", "emptied", "written",
        ] {
            let output = served.run("grid", &descriptors, &[what, "/grid"]).output();
            assert_well(&output.expect("it was built"));
            assert!(served.objects().is_empty(), "{what}: it was removed");
        }
    }
}

/// What its parent removed and has used goes with the child that has a descriptor of it.
#[test]
fn a_descriptor_outlives_the_parent() {
    for served in Served::both() {
        let descriptors = program("descriptors");
        let mut child = start(&served, &descriptors, "inherited");
        child.hear("has it");
        child.go_on();
        until(|| served.objects().is_empty());
    }
}

/// Programs that others execute find by descriptors what these had, though its name was removed.
#[test]
fn a_program_that_is_executed_has_its_descriptors() {
    for served in Served::both() {
        let inherited = program("inherited");
        let output = served.run("grid", &inherited, &["/grid"]).output();
        assert_well(&output.expect("it was built"));
        until(|| served.objects().is_empty());
    }
}

/// So do workers of Python, whichever way they are started.
#[test]
fn workers_of_python_have_memory_without_a_name() {
    let script = source("tests/programs/spawns.py");
    let script = script.to_str().expect("text");
    for served in Served::both() {
        let arguments = [script, "fork", "spawn", "forkserver"];
        let output = served.run("*", Path::new("python3"), &arguments).output();
        assert_well(&output.expect("there is python3"));
    }
}

/// Nor does it matter how soon its parent ends.
#[test]
fn who_inherits_what_was_removed_has_it_in_time() {
    for served in Served::both() {
        let descriptors = program("descriptors");
        let mut children = start(&served, &descriptors, "successive");
        children.hear("has it");
        children.go_on();
        until(|| served.objects().is_empty());
    }
}

/// Nor who has removed it: the parents know nothing of that.
#[test]
fn who_inherits_what_others_removed_has_it_in_time() {
    for served in Served::both() {
        let descriptors = program("descriptors");
        let mut orphans = start(&served, &descriptors, "orphans");
        orphans.hear("made");
        start(&served, &descriptors, "unlink").go_on();
        orphans.say("");
        orphans.hear("has it");
        orphans.go_on();
        until(|| served.objects().is_empty());
    }
}

/// Who opens it before it has a size finds the size that another program gives it, whichever call tells
/// it.
#[test]
fn a_size_is_found_that_another_program_gives() {
    for served in Served::both() {
        let descriptors = program("descriptors");
        for what in ["find", "statx", "fstatat", "lseek"] {
            let mut find = start(&served, &descriptors, what);
            find.hear("open");
            make(&served);
            find.go_on();
            served.does(&["object", "rm", "grid"]);
        }
    }
}

/// What a program has a descriptor of is in use, until it has closed that, however it does.
#[test]
fn an_open_descriptor_counts_as_use() {
    for served in Served::both() {
        let descriptors = program("descriptors");
        make(&served);
        let mut hold = start(&served, &descriptors, "hold");
        let is_removed = || served.quire(&["object", "rm", "grid"]).status.success();
        hold.hear("open");
        assert!(!is_removed());
        hold.say("");
        hold.hear("has it");
        assert!(!is_removed());
        hold.say("");
        hold.hear("closed");
        until(is_removed);
        hold.go_on();
    }
}

pub fn until(done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(100));
    }
}
