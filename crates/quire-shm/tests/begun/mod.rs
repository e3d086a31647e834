//! What programs have made and given no size yet, other programs find, and do not make once more. What
//! they have removed, other programs do not find, and it goes with the last that uses it.

use crate::descriptors::{make, until};
use crate::harness::{Running, Served, assert_well, signal};
use crate::program;

/// The signal that kills.
const SIGKILL: i32 = 9;

#[test]
fn another_program_finds_what_has_no_size() {
    for served in Served::both() {
        let begun = program("begun");
        let start = |what: &str| Running::start(&mut served.run("grid", &begun, &[what, "/grid"]));
        let mut begin = start("begin");
        begin.hear("begun");
        let mut join = start("join");
        join.hear("open");
        let told = served.quire(&["object", "stat", "grid"]);
        assert!(String::from_utf8_lossy(&told.stderr).contains("grid has no size yet"));
        begin.go_on();
        join.go_on();
        // The first may have ended last.
        until(|| served.objects().is_empty());
    }
}

#[test]
fn another_program_gives_it_a_size() {
    for served in Served::both() {
        let begun = program("begun");
        let run = |what: &str| served.run("grid", &begun, &[what, "/grid"]);
        let mut begin = Running::start(&mut run("begin"));
        begin.hear("begun");
        assert_well(&run("give").output().expect("it was built"));
        assert_eq!(served.objects(), ["grid"]);
        begin.go_on();
        assert_eq!(served.contents("grid")[1], 7);
    }
}

/// What another program had made by the name has none then, and gets none.
#[test]
fn another_program_removes_it_and_makes_its_own() {
    for served in Served::both() {
        let begun = program("begun");
        let run = |what: &str| served.run("grid", &begun, &[what, "/grid"]);
        let mut begin = Running::start(&mut run("begin"));
        begin.hear("begun");
        assert_well(&run("remove").output().expect("it was built"));
        begin.go_on();
        assert!(served.objects().is_empty(), "it has no name");
    }
}

/// What a program had begun when it was killed is there for the next one, as with the kernel.
#[test]
fn what_was_begun_outlives_who_began_it() {
    for served in Served::both() {
        let begun = program("begun");
        let run = |what: &str| served.run("grid", &begun, &[what, "/grid"]);
        let mut begin = Running::start(&mut run("begin"));
        begin.hear("begun");
        drop(begin);
        assert_well(&run("remove").output().expect("it was built"));
        assert!(served.objects().is_empty(), "it was removed");
    }
}

/// What was removed goes with the last that uses it, though who removed it was killed.
#[test]
fn what_was_removed_goes_when_nobody_uses_it() {
    for served in Served::both() {
        let programs = ["begun", "descriptors"].map(program);
        let [begun, descriptors] = &programs;
        make(&served);
        let mut hold = Running::start(&mut served.run("grid", descriptors, &["hold", "/grid"]));
        hold.hear("open");
        let mut drops = Running::start(&mut served.run("grid", begun, &["drop", "/grid"]));
        drops.hear("removed");
        assert_eq!(signal(drops.status()), Some(SIGKILL));
        let told = served.quire(&["object", "stat", "grid"]);
        assert!(!told.status.success(), "it has no name");
        // Its own one may go last.
        until(|| served.objects().len() == 1);
        let told = served.does(&["object", "stat", &served.objects()[0]]);
        assert!(
            told.contains("removed: it goes when nobody has it open"),
            "{told}"
        );
        let gone = served.run("grid", begun, &["gone", "/grid"]).output();
        assert_well(&gone.expect("it was built"));
        hold.say("");
        hold.hear("has it");
        hold.say("");
        hold.hear("closed");
        until(|| served.objects().is_empty());
        hold.go_on();
    }
}

/// Who makes it by `O_EXCL` is alone until it is removed, whether it has a size or not.
#[test]
fn one_of_all_that_make_it_succeeds() {
    for served in Served::both() {
        let begun = program("begun");
        let file = served.path().join("number");
        std::fs::write(&file, "0\n").expect("there is room");
        let path = file.to_str().expect("text");
        let start = || Running::start(&mut served.run("grid", &begun, &["lock", "/grid", path]));
        let all = [start(), start(), start()];
        all.into_iter().for_each(Running::go_on);
        let number = std::fs::read_to_string(&file).expect("it was written");
        assert_eq!(number, "120\n");
        assert!(served.objects().is_empty(), "it was removed");
    }
}
