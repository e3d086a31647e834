//! What no program of a run made stays when one of them removes its name; and names that programs invent.

use std::path::Path;
use std::process::Command;

use crate::descriptors::make;
use crate::harness::{Running, Served, assert_well, source};
use crate::program;

fn does(command: &mut Command) -> String {
    let output = command.output().expect("it was built");
    assert_well(&output);
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn what_others_made_stays_unless_it_is_said_or_replaced() {
    for served in Served::both() {
        let keeps = program("keeps");
        make(&served);
        let kept = |what| {
            let mut run = served.run_with("grid", &["--keep"], &keeps);
            does(run.args([what, "/grid"]))
        };
        kept("unlink");
        assert_eq!(served.contents("grid")[1], 9);
        does(&mut served.run("grid", &keeps, &["unlink", "/grid"]));
        assert!(served.objects().is_empty(), "it was removed");
        make(&served);
        kept("remake");
        assert_eq!(served.contents("grid")[1], 8, "another one has its name");
        served.does(&["object", "rm", "grid"]);
        kept("own");
        assert!(
            served.objects().is_empty(),
            "a program of the same run made it"
        );
    }
}

/// A mutex beside memory that stays, stays: else the next program would make another one for the same memory.
#[test]
fn semaphores_that_others_made_stay_as_memory_does() {
    for served in Served::both() {
        let keeps = program("keeps");
        let does = |what: &str| {
            let mut run = served.run_with("*", &["--keep"], &keeps);
            does(run.args([what, "/mutex"]))
        };
        does("make-semaphore");
        assert_eq!(does("semaphore"), "3\n");
        assert_eq!(does("semaphore"), "3\n", "it was removed");
        does("remake-semaphore");
        assert_eq!(does("semaphore"), "5\n", "another one has its name");
        does("own-semaphore");
    }
}

/// The resource tracker of Python removes at the end what a program has only attached.
#[test]
fn a_program_in_python_may_attach_an_object_again_and_again() {
    for served in Served::both() {
        make(&served);
        let script = "from multiprocessing import shared_memory
m = shared_memory.SharedMemory(name='grid')
print(m.buf[1])
m.close()";
        for _ in 0..3 {
            let python = Path::new("python3");
            let mut run = served.run_with("grid", &["--keep"], python);
            assert_eq!(does(run.args(["-c", script])), "9\n");
        }
        assert_eq!(served.objects(), ["grid"]);
    }
}

/// What one makes it removes, as ever.
#[test]
fn names_that_are_invented_are_found_by_a_pattern() {
    for served in Served::both() {
        let posix = program("posix");
        let at = |name: &str| served.does(&["object", "stat", name]);
        for (pattern, name) in [("psm_*", "/psm_1a2b"), ("*", "/any"), ("a?c*", "/abc")] {
            let mut maker = Running::start(&mut served.run(pattern, &posix, &["make", name]));
            maker.hear("made");
            assert!(at(&name[1..]).contains("KiB"));
            does(&mut served.run(pattern, &posix, &["use", name]));
            maker.go_on();
            assert!(served.objects().is_empty(), "{pattern}: it was removed");
        }
        // A name that no object can have.
        let mut maker = Running::start(&mut served.run("*", &posix, &["make", "/.a b"]));
        maker.hear("made");
        does(&mut served.run("*", &posix, &["use", "/.a b"]));
        maker.go_on();
        // What the pattern does not stand for is the kernel's.
        does(&mut served.run("psm_*", &posix, &["other", "/quire-pattern-other"]));
    }
}

/// Python invents the name, and its locks are semaphores beside it.
#[test]
fn python_shares_what_it_invents_the_names_of() {
    for served in Served::both() {
        let script = source("tests/programs/invents.py");
        let script = script.to_str().expect("text");
        let python = Path::new("python3");
        let mut maker = Running::start(&mut served.run("*", python, &[script, "make"]));
        let name = maker.listen();
        assert!(name.starts_with("psm_"), "{name}");
        assert!(served.objects().contains(&name));
        let found = {
            let mut run = served.run_with("psm_*", &["--keep"], python);
            does(run.args([script, "use", &name]))
        };
        assert_eq!(found, "hello\n");
        maker.go_on();
        assert!(served.objects().is_empty(), "{:?}", served.objects());
    }
}

/// Of several patterns the first one counts, and a name that is given goes before all of them.
#[test]
fn a_name_goes_before_patterns() {
    let served = Served::start();
    let keeps = program("keeps");
    make(&served);
    let pattern = format!("*@{}", served.address);
    let named = ["--keep", "--dsm", &pattern];
    let mut run = served.run_with("grid=name", &named, &keeps);
    does(run.args(["unlink", "/name"]));
    assert_eq!(served.objects(), ["grid"]);
}

/// What a program makes at one of several servers can be opened at all of them, or as it is said.
#[test]
fn joined_servers_share_what_a_program_makes() {
    let directory = tempfile::TempDir::new().expect("a directory");
    let [a, b] = ["a", "b"].map(|name| format!("unix:{}/{name}", directory.path().display()));
    let peers = format!("{a},{b}");
    let other = tempfile::TempDir::new().expect("a directory");
    let first = Served::start_with(directory, &["--listen", &a, "--peers", &peers]);
    let second = Served::start_with(other, &["--listen", &b, "--peers", &peers]);
    let keeps = program("keeps");
    let has = |served: &Served, name: &str| {
        let mut run = served.run_with(name, &["--keep"], &keeps);
        let run = run.args(["unlink", &format!("/{name}")]);
        run.output().expect("it was built").status.success()
    };
    let script = "import sys
from multiprocessing import shared_memory, resource_tracker
m = shared_memory.SharedMemory(name=sys.argv[1], create=True, size=4096)
resource_tracker.unregister(m._name, 'shared_memory')
m.buf[1] = 9
m.close()";
    let python = Path::new("python3");
    does(&mut first.run("shared", python, &["-c", script, "shared"]));
    assert!(has(&second, "shared"));
    let mut run = first.run_with("alone", &["--scheduler", "multi"], python);
    does(run.args(["-c", script, "alone"]));
    assert!(has(&first, "alone") && !has(&second, "alone"));
}
