//! Memory that is removed while it is used leaves its name to what is made next, and goes on: in one
//! program, in several, and in their children.

use std::path::Path;

use crate::descriptors::until;
use crate::harness::{Running, Served, assert_well};
use crate::program;

fn start(served: &Served, program: &Path, what: &str) -> Running {
    Running::start(&mut served.run("grid", program, &[what, "/grid"]))
}

/// How many objects there are that have lost their names, beside one that has it or none.
fn removed(served: &Served, named: &[&str]) -> usize {
    let all = served.objects();
    let (removed, others): (Vec<String>, Vec<String>) =
        all.into_iter().partition(|name| name.contains('~'));
    assert_eq!(others, named);
    removed.len()
}

#[test]
fn one_program_has_all_that_had_a_name() {
    for served in Served::both() {
        let anew = program("anew");
        let mut all = start(&served, &anew, "all");
        all.hear("has all");
        assert_eq!(removed(&served, &["grid"]), 3);
        let see = served.run("grid", &anew, &["see", "/grid"]).output();
        assert_well(&see.expect("it was built"));
        for left in [2, 1, 0] {
            all.say("");
            all.hear("has one less");
            until(|| removed(&served, &["grid"]) == left);
        }
        all.go_on();
        assert!(served.objects().is_empty(), "it was removed");
    }
}

#[test]
fn another_program_removes_it_and_both_go_on() {
    for served in Served::both() {
        let anew = program("anew");
        let mut keep = start(&served, &anew, "keep");
        keep.hear("made");
        let mut remake = start(&served, &anew, "remake");
        remake.hear("made anew");
        keep.say("");
        keep.hear("has both");
        assert_eq!(removed(&served, &["grid"]), 1);
        remake.go_on();
        assert_eq!(removed(&served, &[]), 2);
        keep.say("");
        keep.hear("closed");
        until(|| removed(&served, &[]) == 1);
        keep.go_on();
        until(|| served.objects().is_empty());
    }
}

/// Both get their sizes, whichever is first, also where a child gives them.
#[test]
fn what_is_removed_without_a_size_is_begun_again() {
    for served in Served::both() {
        let anew = program("anew");
        for arguments in [
            &["begun", "/grid", "old"][..],
            &["begun", "/grid", "new"],
            &["given", "/grid"],
            &["handed", "/grid"],
        ] {
            let output = served.run("grid", &anew, arguments).output();
            assert_well(&output.expect("it was built"));
            // What a child has removed goes with the link of its parent.
            until(|| served.objects().is_empty());
        }
    }
}

/// A program has what was begun, and another one removes that and begins it again before the first one
/// looks: the first one goes on with what it has, and shares that with whoever has it, too.
#[test]
fn another_program_begins_it_again() {
    for served in Served::both() {
        let anew = program("anew");
        for order in ["here", "there"] {
            let run = |what: &str| {
                Running::start(&mut served.run("grid", &anew, &[what, "/grid", order]))
            };
            let mut hand = run("hand");
            hand.hear("begun");
            let mut look = run("look");
            look.hear("open");
            hand.say("");
            hand.hear("begun again");
            look.say("");
            look.hear("looked");
            hand.say("");
            hand.hear("given");
            assert!(removed(&served, &["grid"]) == 0, "it has no size");
            look.say("");
            match order {
                "here" => {
                    look.hear("given");
                    hand.say("");
                    hand.hear("seen");
                }
                _ => {
                    look.hear("looked");
                    hand.say("");
                    hand.hear("given");
                    look.say("");
                    look.hear("seen");
                }
            }
            assert_eq!(removed(&served, &["grid"]), 1);
            look.go_on();
            hand.go_on();
            until(|| served.objects().is_empty());
        }
    }
}

/// Another program attaches them by the numbers that it is given, and no two have the same.
#[test]
fn segments_of_one_key_go_on() {
    for served in Served::both() {
        let segments = program("segments");
        let run = |arguments: &[&str]| served.run("grid=0x1234", &segments, arguments);
        let mut make = Running::start(&mut run(&["make", "0x1234"]));
        let ids = make.listen();
        assert_eq!(removed(&served, &["grid"]), 2);
        let arguments: Vec<&str> = ["use", "0x1234"]
            .into_iter()
            .chain(ids.split(' '))
            .collect();
        assert_well(&run(&arguments).output().expect("it was built"));
        make.go_on();
        assert!(served.objects().is_empty(), "they were removed");
        let number = ids.split(' ').next().expect("a number");
        let strange = served
            .run("grid*", &segments, &["strange", number])
            .output();
        let strange = strange.expect("it was built");
        assert_well(&strange);
        let log = String::from_utf8_lossy(&strange.stderr);
        assert!(
            log.contains("none that a --dsm of this program names"),
            "{log}"
        );
        let many = run(&["many", "0x1234"]).output();
        assert_well(&many.expect("it was built"));
        assert!(served.objects().is_empty(), "they were removed");
    }
}

#[test]
fn semaphores_of_one_name_go_on() {
    for served in Served::both() {
        let named = program("named");
        let run = |what| served.run("turn=sem.turn", &named, &[what]);
        let mut make = Running::start(&mut run("make"));
        make.hear("has both");
        assert_eq!(removed(&served, &["turn"]), 1);
        assert_well(&run("use").output().expect("it was built"));
        make.say("");
        make.hear("closed");
        until(|| removed(&served, &["turn"]) == 0);
        make.go_on();
        assert!(served.objects().is_empty(), "it was removed");
    }
}
