//! Unmodified programs that share memory through a server: its own copies, and each with its
//! own copy of what it uses, as on machines of their own; and programs in C that ask for it.

mod anew;
mod begun;
mod capi;
mod contents;
mod descriptors;
mod direct;
mod ending;
mod first;
mod handlers;
mod harness;
mod keeping;
mod losing;
mod moving;
mod postgres;
mod refusals;
mod sharing;
mod shown;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use harness::{Running, Served, assert_well, built, compile, library, quire, signal, source};

/// Servers of the tests grant leases of this length.
const LEASE: Duration = Duration::from_secs(4);

fn program(name: &str) -> PathBuf {
    built(&format!("tests/programs/{name}.c"), &[])
}

/// One program makes it, another uses it, and the first sees what that one wrote.
fn share(served: &Served, object: &str, make: (&Path, &[&str]), usage: (&Path, &[&str])) {
    let mut maker = Running::start(&mut served.run(object, make.0, make.1));
    maker.hear("made");
    let user = served.run(object, usage.0, usage.1).output();
    assert_well(&user.expect("it was built"));
    assert_eq!(served.objects().len(), 1);
    maker.go_on();
    assert!(served.objects().is_empty(), "it was removed");
}

#[test]
fn programs_share_memory_of_posix() {
    for served in Served::both() {
        let posix = program("posix");
        share(
            &served,
            "grid",
            (&posix, &["make", "/grid"]),
            (&posix, &["use", "/grid"]),
        );
        // By another name than the object's, which programs need not agree on.
        let mut maker = Running::start(&mut served.run("grid=a_b", &posix, &["make", "/a_b"]));
        maker.hear("made");
        let user = served.run("grid=/c d", &posix, &["use", "/c d"]).output();
        assert_well(&user.expect("it was built"));
        maker.go_on();
    }
}

#[test]
fn programs_share_memory_of_system_v() {
    for served in Served::both() {
        let sysv = program("sysv");
        let object = "segment=0x80001234";
        let arguments = |what| [what, "0x80001234"];
        share(
            &served,
            object,
            (&sysv, &arguments("make")),
            (&sysv, &arguments("use")),
        );
    }
}

/// Libraries that a program is linked with begin before the one that is preloaded.
#[test]
fn memory_may_be_asked_for_before_the_program_begins() {
    let served = Served::start();
    let from = "tests/programs/early.c";
    let beside = served.path().join("library");
    fs::create_dir(&beside).expect("a directory");
    let early = compile(from, &beside, &["-DLIBRARY", "-shared", "-fPIC"]);
    let program = compile(from, served.path(), &[early.to_str().expect("text")]);
    let segment = format!("segment=0x1234@{}", served.address);
    let mut run = served.run_with("grid", &["--dsm", &segment], &program);
    assert_well(&run.output().expect("it was built"));
    assert_eq!(served.contents("grid")[..2], *b"pq");
    assert_eq!(served.contents("segment")[..2], *b"st");
}

#[test]
fn programs_in_python_share_memory() {
    let served = Served::start();
    let python = Path::new("python3");
    let script = |name: &str| {
        let path = source(&format!("tests/programs/{name}.py"));
        path.to_str().expect("text").to_owned()
    };
    let (make, usage) = (script("make"), script("use"));
    let arguments = (&[&*make, "grid"][..], &[&*usage, "grid"][..]);
    share(
        &served,
        "grid",
        (python, arguments.0),
        (python, arguments.1),
    );
}

#[test]
fn memory_is_mapped_in_odd_ways() {
    for served in Served::both() {
        let posix = program("posix");
        let output = served.run("grid", &posix, &["odd", "/grid"]).output();
        let output = output.expect("it was built");
        assert_well(&output);
        let log = String::from_utf8_lossy(&output.stderr);
        for words in [
            "MAP_PRIVATE",
            "beyond its end",
            "mremap",
            "keeps its size",
            "is open",
            "over a part",
        ] {
            assert!(log.contains(words), "{log} lacks {words}");
        }
        assert!(!log.contains("if it stays"), "{log}");
        assert!(served.objects().is_empty(), "it went with its last user");
    }
}

/// Nobody else can get the addresses of a mapping that is replaced.
#[test]
fn what_is_replaced_is_free_at_no_time() {
    for served in Served::both() {
        let replaced = program("replaced");
        let output = served.run("grid", &replaced, &["/grid"]).output();
        assert_well(&output.expect("it was built"));
    }
}

/// Who reads what a program says waits no longer than the program has its streams open.
#[test]
fn standard_streams_are_not_kept_open() {
    let served = Served::start();
    let leaves = program("leaves");
    // What is built first takes no time below.
    let mut run = served.run("grid", &leaves, &["daemon", "/grid"]);
    let begin = Instant::now();
    let output = run.output().expect("it was built");
    assert_well(&output);
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(6), "{took:?}");
    assert_eq!(output.stdout, b"started\n");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("keeps its size"), "{log}");
}

/// A file that has the number of standard error is not written to, unless it is a log.
#[test]
fn lines_go_to_standard_error_and_to_nothing_else() {
    let served = Served::start();
    let leaves = program("leaves");
    let file = served.path().join("file");
    let mut run = served.run("grid", &leaves, &["other", "/grid"]);
    let output = run.arg(&file).output().expect("it was built");
    assert_well(&output);
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(log.matches("keeps its size").count(), 1, "{log}");
    let file = fs::read_to_string(file).expect("it was written");
    assert!(file.starts_with("data\n"), "{file}");
    assert!(file.contains("asks for 12288"), "{file}");
    assert!(!file.contains("asks for 8192"), "{file}");
}

#[test]
fn room_takes_no_memory_of_its_own() {
    let served = Served::start();
    let room = program("room");
    let output = served.run("grid", &room, &["/grid"]).output();
    assert_well(&output.expect("it was built"));
    assert!(served.objects().is_empty(), "it was removed");
}

/// A lock that would exclude nobody is refused.
#[test]
fn descriptors_of_objects_are_not_locked() {
    let served = Served::start();
    let locks = program("locks");
    let mut run = served.run("grid", &locks, &["/grid"]);
    let output = run.arg(served.path().join("file")).output();
    let output = output.expect("it was built");
    assert_well(&output);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("exclude nobody"), "{log}");
}

/// Locks of the C library work in shared memory, wherever the others are who use them.
#[test]
fn locks_of_the_c_library_work() {
    for served in Served::both() {
        let sync = program("sync");
        let mut maker = Running::start(&mut served.run("grid", &sync, &["/grid", "0"]));
        maker.hear("ready");
        let other = served.run("grid", &sync, &["/grid", "1"]).output();
        assert_well(&other.expect("it was built"));
        maker.go_on();
    }
}

/// A program without the right to have the kernel's own touches answered reads and writes as ever.
#[test]
fn reads_and_writes_of_ordinary_users_wait_for_memory() {
    for served in Served::both() {
        let impatient = program("impatient");
        let directory = TempDir::new().expect("a directory");
        let all = fs::Permissions::from_mode(0o777);
        fs::set_permissions(directory.path(), all).expect("it is ours");
        let file = directory.path().join("file");
        let file = file.to_str().expect("text");
        let output = served.run("grid", &impatient, &["/grid", file]).output();
        let output = output.expect("it was built");
        assert_well(&output);
        match String::from_utf8_lossy(&output.stdout).trim() {
            "did it all" => assert!(served.objects().is_empty(), "it was removed"),
            told => eprintln!("SKIP: reads_and_writes_of_ordinary_users: an ordinary user {told}"),
        }
        // It has become another user: its revoker is not killed with it.
        let end = Instant::now() + 2 * LEASE + Duration::from_secs(20);
        while has_process(&impatient) {
            assert!(Instant::now() < end, "a revoker outlives the program");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Whether a process runs a program.
fn has_process(program: &Path) -> bool {
    let all = fs::read_dir("/proc").expect("it is there").flatten();
    let mut runs = all.filter_map(|process| fs::read_link(process.path().join("exe")).ok());
    runs.any(|runs| runs == program)
}

/// Threads are cancelled, and leave, as ever.
#[test]
fn threads_are_cancelled_and_leave() {
    let served = Served::start();
    let cancels = program("cancels");
    let output = served.run("grid", &cancels, &["/grid"]).output();
    assert_well(&output.expect("it was built"));
}

/// Semaphores with names may be objects, too.
#[test]
fn semaphores_with_names_are_shared() {
    for served in Served::both() {
        let turns = program("turns");
        let start = |me: &str| {
            let options =
                ["1", "2"].map(|turn| format!("turn-{turn}=sem.turn-{turn}@{}", served.address));
            let [one, two] = options.each_ref().map(String::as_str);
            let options = ["--dsm", one, "--dsm", two];
            Running::start(
                served
                    .run_with("turn-0=sem.turn-0", &options, &turns)
                    .arg(me),
            )
        };
        let (one, other) = (start("0"), start("1"));
        one.go_on();
        other.go_on();
        assert_eq!(served.objects(), [""; 0]);
    }
}

#[test]
fn robust_mutexes_tell_of_owners_that_end() {
    for served in Served::both() {
        let mutexes = program("mutexes");
        // Who shared copies has nothing that could be claimed for it, for which servers wait half a lease.
        let soon = (LEASE * 3 / 8).as_secs_f64().to_string();
        let arguments = ["/grid", &soon];
        let arguments = if served.own_pages {
            &arguments[..1]
        } else {
            &arguments[..]
        };
        let output = served.run("grid", &mutexes, arguments).output();
        assert_well(&output.expect("it was built"));
    }
}

/// What only few programs do is as with the kernel's shared memory, or fails.
#[test]
fn unusual_calls_are_answered() {
    for served in Served::both() {
        let unusual = program("unusual");
        for (what, line) in [
            ("remap", Some("remap_file_pages")),
            ("reopen", None),
            ("apart", None),
            ("wait", None),
        ] {
            let output = served.run("grid", &unusual, &[what, "/grid"]).output();
            let output = output.expect("it was built");
            assert_well(&output);
            let log = String::from_utf8_lossy(&output.stderr);
            assert!(line.is_none_or(|line| log.contains(line)), "{what}: {log}");
            assert!(served.objects().is_empty(), "{what}: it was removed");
        }
    }
}

/// However a program ends by itself, what it wrote is there.
#[test]
fn what_was_written_outlives_the_program() {
    for served in Served::both() {
        let posix = program("posix");
        for how in ["exit", "_exit", "return", "quick", "handler", "daemon"] {
            let output = served.run("grid", &posix, &["end", "/grid", how]).output();
            assert_well(&output.expect("it was built"));
            let contents = served.contents("grid");
            assert_eq!(contents.len(), 9 * 4096 + 100);
            let ends = [contents[0], contents[contents.len() - 1]];
            assert_eq!(ends, [how.as_bytes()[0]; 2], "{how}");
        }
        // The daemon goes on after its parent.
        let begin = Instant::now();
        while served.contents("grid")[1] != b'D' {
            assert!(
                begin.elapsed() < Duration::from_secs(20),
                "the daemon has the memory"
            );
        }
    }
}

/// The threads of a program that is called like the library's own are not taken for these.
#[test]
fn a_program_may_be_called_as_it_likes() {
    let served = Served::start();
    let called = served.path().join("quire-solver");
    fs::copy(program("posix"), &called).expect("it was built");
    let output = served
        .run("grid", &called, &["end", "/grid", "exit"])
        .output();
    assert_well(&output.expect("it was built"));
    assert_eq!(served.objects(), ["grid"]);
    assert_eq!(served.contents("grid")[0], b'e');
}

#[test]
fn who_never_asks_for_an_object_is_told() {
    let served = Served::start();
    let posix = program("posix");
    let said = |objects: &[&str]| {
        let mut run = quire();
        run.arg("run");
        for object in objects {
            run.args(["--dsm", &format!("{object}@{}", served.address)]);
        }
        run.arg("--").arg(&posix).args(["end", "/grid", "exit"]);
        let output = run.output().expect("it was built");
        assert_well(&output);
        String::from_utf8(output.stderr).expect("text")
    };
    let wrong = said(&["grid=gird", "grid", "other=0x1234"]);
    let words =
        |call: &str| wrong.contains(&format!("no program called {call}; name what it calls"));
    assert!(
        words("shm_open(\"/gird\")") && words("shmget(0x1234)"),
        "{wrong}"
    );
    assert!(!words("shm_open(\"/grid\")"), "{wrong}");
    let right = said(&["grid"]);
    assert!(!right.contains("no program called"), "{right}");
}

/// Over a network the end of a link says nothing of the process, unless that has said before that
/// it ends.
#[test]
fn nobody_waits_for_what_a_program_had_that_has_ended() {
    let directory = TempDir::new().expect("a directory");
    let mut served = Served::start_with(directory, &["--listen", "127.0.0.1:0"]);
    served.own_pages = true;
    let posix = program("posix");
    let run = |what, how| {
        let output = served.run("grid", &posix, &[what, "/grid", how]).output();
        assert_well(&output.expect("it was built"));
    };
    run("end", "return");
    for how in ["return", "exit", "_exit", "quick", "handler"] {
        run("see", how);
        let begin = Instant::now();
        run("end", "return");
        let took = begin.elapsed();
        assert!(
            took < LEASE,
            "{took:?}: it waited for the lease of one that ended by {how}"
        );
    }
    served.does(&["object", "rm", "grid"]);
    assert!(served.objects().is_empty(), "it was removed");
}

/// Parents and children on two nodes, of which each child maps the memory anew.
#[test]
fn children_keep_the_memory() {
    for served in Served::both() {
        let forks = program("forks");
        let node = || served.run("grid", &forks, &["/grid", "8"]);
        let nodes = [Running::start(&mut node()), Running::start(&mut node())];
        for mut node in nodes {
            node.hear("2400");
            assert!(node.status().success());
        }
    }
}

/// What was removed and made anew stays, though a child that knows of the first one ends later.
#[test]
fn what_was_made_anew_outlives_who_removed_the_first() {
    for served in Served::both() {
        let remade = program("remade");
        for when in ["before", "after"] {
            let output = served.run("grid", &remade, &[when, "/grid"]).output();
            assert_well(&output.expect("it was built"));
            assert!(served.objects().is_empty(), "it was removed");
        }
    }
}

/// A server that is killed is there again for a child that was forked meanwhile, or for nobody.
#[test]
fn children_wait_for_a_server_that_is_away() {
    for (own_pages, what) in [
        (false, "back"),
        (true, "back"),
        (false, "gone"),
        (true, "gone"),
    ] {
        let mut served = Served::start_with_store();
        served.own_pages = own_pages;
        let away = program("away");
        let mut parent = Running::start(&mut served.run("grid", &away, &[what, "/grid"]));
        parent.hear("made");
        served.kill();
        parent.say("");
        parent.hear("touching");
        if what == "back" {
            served.start_again();
        }
        parent.go_on();
        if what == "back" {
            let contents = served.contents("grid");
            assert_eq!((contents[6], contents[3 * 4096 + 1]), (45, 46));
        }
    }
}

/// What pages allow is not undone when a new server's file comes in the place of the old one's.
#[test]
fn what_is_protected_while_the_server_comes_back_stays_so() {
    let mut served = Served::start_with_store();
    let protects = program("protects");
    let command = served.run("grid", &protects, &["/grid"]);
    protects_while_the_server_comes_back(&mut served, command);
}

/// Has a program go on while its server is killed and started anew.
fn protects_while_the_server_comes_back(served: &mut Served, mut program: Command) {
    let mut running = Running::start(&mut program);
    running.hear("begins");
    for _ in 0..12 {
        served.kill();
        served.start_again();
        // That it is open again is known by the answer to a question about it.
        let begin = Instant::now();
        while !served.does(&["object", "stat", "grid"]).contains("open: ") {
            assert!(begin.elapsed() < Duration::from_secs(20), "it comes back");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    running.go_on();
}

/// The same with superpages for what else the programs have.
#[test]
fn memory_is_shared_beside_superpages() {
    let served = Served::start();
    let (posix, forks) = (program("posix"), program("forks"));
    for policy in ["reserve", "eager"] {
        let run = |program: &Path, arguments: &[&str]| {
            let mut command = quire();
            let dsm = format!("grid@{}", served.address);
            command.args(["run", "--quiet", "--policy", policy, "--dsm", &dsm, "--"]);
            command.args(["timeout", "-s", "KILL", "60"]);
            command.arg(program).args(arguments);
            assert_well(&command.output().expect("it was built"));
        };
        run(&posix, &["odd", "/grid"]);
        run(&forks, &["/grid", "4"]);
        served.does(&["object", "rm", "grid"]);
    }
}

/// What has no object is the kernel's, with the library and without it.
#[test]
fn other_names_are_the_kernels() {
    let served = Served::start();
    let (posix, sysv) = (program("posix"), program("sysv"));
    let name = format!("/quire-test-{}", std::process::id());
    let key = format!("{:#x}", 0x5175_0000 + std::process::id() % 0x8000);
    for (program, argument) in [(&posix, &name), (&sysv, &key)] {
        let run = served.run("grid", program, &["other", argument]).output();
        assert_well(&run.expect("it was built"));
        let plain = Command::new(program).args(["other", argument]).output();
        assert_well(&plain.expect("it was built"));
        let preloaded = Command::new(program)
            .args(["other", argument])
            .env("LD_PRELOAD", library())
            .output();
        assert_well(&preloaded.expect("it was built"));
    }
    assert!(served.objects().is_empty());
}

#[test]
fn memory_of_a_server_that_is_killed_fails() {
    let watched = Served::both().map(|mut served| {
        let posix = program("posix");
        let mut watcher = Running::start(&mut served.run("grid", &posix, &["watch", "/grid"]));
        watcher.hear("made");
        served.kill();
        watcher
    });
    for watcher in watched {
        // When all pages are gone, it waits for a server and then gets a signal, with which
        // `timeout` ends, too.
        let status = watcher.status();
        assert_eq!(signal(status), Some(7), "{status}");
    }
}
