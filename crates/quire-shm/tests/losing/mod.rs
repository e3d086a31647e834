//! What programs wrote that are killed, stopped for too long, or whose server is: it is given back, or they
//! are told that it is lost.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::harness::{Running, Served, assert_well, quire, signal, source};
use crate::{LEASE, program};

/// Servers at a Unix socket and by TCP, at which programs have pages of their own.
fn apart() -> [Served; 2] {
    let mut local = Served::start();
    let directory = TempDir::new().expect("a directory");
    let mut distant = Served::start_with(directory, &["--listen", "127.0.0.1:0"]);
    (local.own_pages, distant.own_pages) = (true, true);
    [local, distant]
}

fn send(process: u32, signal: Signal) {
    let process = Pid::from_raw(process.cast_signed()).expect("a process");
    kill_process(process, signal).expect("it is there");
}

/// Longer than a program is waited for that is silent.
fn is_over() {
    thread::sleep(LEASE * 5 / 4 + Duration::from_secs(2));
}

#[test]
fn what_a_killed_program_wrote_is_given_back() {
    let size = 300 * 4096;
    for served in apart() {
        let losing = program("losing");
        for (number, signal) in [Signal::TERM, Signal::KILL, Signal::SEGV]
            .into_iter()
            .enumerate()
        {
            let name = format!("grid-{number}");
            let raised = signal.as_raw().to_string();
            let arguments = [&format!("/{name}"), "write", &size.to_string(), &raised];
            let output = served.run(&name, &losing, &arguments).output();
            let output = output.expect("it was built");
            assert!(!output.status.success(), "{output:?}");
            let contents = served.contents(&name);
            assert_eq!(contents.len(), size);
            let right = contents.iter().filter(|byte| **byte == b'x').count();
            assert_eq!(right, size, "{signal:?}");
            let stat = served.does(&["object", "stat", &name]);
            assert!(!stat.contains("lost"), "{stat}");
        }
    }
}

/// Nor does it matter how soon it was killed after it was shown the page: the thread that answers faults has no
/// real-time priority here, as none of an ordinary user's has, and may not have gone on since.
#[test]
fn what_a_program_wrote_the_moment_before_is_given_back() {
    for served in apart() {
        let losing = program("losing");
        for number in 0..20 {
            let name = format!("grid-{number}");
            let mut command = served.run_with(&name, &["--no-realtime"], &losing);
            let output = command
                .args([&format!("/{name}"), "write", "4096", "9"])
                .output();
            let output = output.expect("it was built");
            assert!(!output.status.success(), "{output:?}");
            let contents = served.contents(&name);
            assert!(contents.iter().all(|byte| *byte == b'x'), "{number}");
        }
    }
}

#[test]
fn workers_of_python_that_are_ended_lose_nothing() {
    for served in apart() {
        let script = source("tests/programs/pool.py");
        let script = script.to_str().expect("text");
        let output = served
            .run("pool", Path::new("python3"), &[script, "pool"])
            .output();
        assert_well(&output.expect("there is python3"));
    }
}

/// Without a recovery process, what a killed program wrote is lost: it is counted, and who opens it next is told.
#[test]
fn what_is_lost_with_a_program_is_told_to_the_next() {
    let mut served = Served::start();
    served.own_pages = true;
    let losing = program("losing");
    let losing = losing.to_str().expect("text");
    let env = Path::new("/usr/bin/env");
    let arguments = [
        "-u",
        "QUIRE_DSM_RECOVERY",
        losing,
        "/grid",
        "write",
        "8192",
        "9",
    ];
    let output = served.run("grid", env, &arguments).output();
    assert!(!output.expect("it was built").status.success());
    let show = || {
        served
            .run("grid", Path::new(losing), &["/grid", "show"])
            .output()
    };
    let next = show().expect("it was built");
    assert_well(&next);
    let log = String::from_utf8_lossy(&next.stderr);
    assert!(
        log.contains("grid: what programs wrote to 2 of its pages is lost"),
        "{log}"
    );
    let stat = served.does(&["object", "stat", "grid"]);
    assert!(stat.contains("lost: 1 pages"), "{stat}");
    let log = show().expect("it was built").stderr;
    let log = String::from_utf8_lossy(&log);
    assert!(!log.contains("is lost"), "{log}");
}

/// A program that has the mutex and is stopped beyond its lease.
struct Stopped {
    running: Running,
    process: u32,
    log: std::path::PathBuf,
}

fn stop(served: &Served, losing: &Path, on_loss: &str) -> Stopped {
    assert_well(
        &served
            .run("grid", losing, &["/grid", "make"])
            .output()
            .expect("it was built"),
    );
    let log = served.path().join("log");
    let mut command = served.run_with("grid", &["--on-loss", on_loss], losing);
    let file = File::create(&log).expect("it is ours");
    let mut running = Running::start(command.args(["/grid", "hold"]).stderr(file));
    let process = running.listen().parse().expect("a process");
    running.hear("has it");
    send(process, Signal::STOP);
    is_over();
    Stopped {
        running,
        process,
        log,
    }
}

fn number(served: &Served, losing: &Path, what: &str) -> String {
    let output = served.run("grid", losing, &["/grid", what]).output();
    let output = output.expect("it was built");
    assert_well(&output);
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A page is taken only when somebody needs it, however long a program is stopped.
#[test]
fn what_nobody_wants_is_kept_beyond_the_lease() {
    let [_, served] = apart();
    let losing = program("losing");
    let mut stopped = stop(&served, &losing, "kill");
    send(stopped.process, Signal::CONT);
    stopped.running.say("");
    stopped.running.hear("done");
    stopped.running.go_on();
    assert_eq!(number(&served, &losing, "show"), "1");
    let log = fs::read_to_string(&stopped.log).expect("text");
    assert!(!log.contains("is lost"), "{log}");
}

/// A program whose page others have been given since is told where it acts.
#[test]
fn who_has_lost_a_page_is_told() {
    let told = |on_loss: &'static str| {
        let [_, served] = apart();
        let losing = program("losing");
        let mut stopped = stop(&served, &losing, on_loss);
        let added = served
            .run("grid", &losing, &["/grid", "add", "1000"])
            .output();
        assert_well(&added.expect("it was built"));
        send(stopped.process, Signal::CONT);
        stopped.running.say("");
        let said = match on_loss {
            "kill" => {
                let status = stopped.running.status();
                assert_eq!(signal(status), Some(libc::SIGBUS), "{status}");
                assert_eq!(number(&served, &losing, "show"), "1000");
                String::new()
            }
            _ => stopped.running.listen(),
        };
        match on_loss {
            "errno" => assert_eq!(said, "not recoverable"),
            "continue" => assert_eq!(said, "done"),
            _ => {}
        }
        let log = fs::read_to_string(&stopped.log).expect("text");
        let line = "grid: what this program wrote to 1 of its pages is lost";
        assert!(log.contains(line), "{on_loss}: {log}");
        let stat = served.does(&["object", "stat", "grid"]);
        assert!(stat.contains("lost: 1 pages"), "{stat}");
    };
    thread::scope(|scope| {
        for on_loss in ["kill", "errno", "continue"] {
            scope.spawn(move || told(on_loss));
        }
    });
}

/// A server that is stopped loses its programs' leases: they come again, with what they have written.
#[test]
fn a_stopped_server_loses_nothing_silently() {
    let [_, served] = apart();
    let losing = program("losing");
    assert_well(
        &served
            .run("grid", &losing, &["/grid", "make"])
            .output()
            .expect("it was built"),
    );
    let logs = ["one", "two"].map(|name| served.path().join(name));
    let mut both = logs.each_ref().map(|log| {
        let mut command: Command = served.run("grid", &losing, &["/grid", "count", "11"]);
        Running::start(command.stderr(File::create(log).expect("it is ours")))
    });
    both.iter_mut().for_each(|it| it.hear("begins"));
    thread::sleep(Duration::from_secs(1));
    send(served.process(), Signal::STOP);
    is_over();
    send(served.process(), Signal::CONT);
    let counts = both.each_mut().map(|it| it.listen().parse::<u64>().ok());
    let log = logs
        .map(|log| fs::read_to_string(log).expect("text"))
        .concat();
    match counts {
        [Some(one), Some(two)] if !log.contains("is lost") => {
            assert_eq!(
                number(&served, &losing, "counted"),
                (one + two).to_string(),
                "{log}"
            );
        }
        // One was told, and killed.
        _ => assert!(log.contains("is lost"), "{counts:?}: {log}"),
    }
}

/// A server that is killed and started again with its store gets what its programs have written, the latest of
/// each page.
#[test]
fn a_server_that_is_started_again_gets_what_programs_wrote() {
    let mut served = Served::start_with_store();
    served.own_pages = true;
    let losing = program("losing");
    assert_well(
        &served
            .run("grid", &losing, &["/grid", "make"])
            .output()
            .expect("it was built"),
    );
    let logs = ["one", "two"].map(|name| served.path().join(name));
    let mut both = logs.each_ref().map(|log| {
        let mut command: Command = served.run("grid", &losing, &["/grid", "count", "4"]);
        Running::start(command.stderr(File::create(log).expect("it is ours")))
    });
    both.iter_mut().for_each(|it| it.hear("begins"));
    thread::sleep(Duration::from_secs(1));
    served.kill();
    thread::sleep(Duration::from_millis(500));
    served.start_again();
    let counts = both.each_mut().map(|it| it.listen().parse::<u64>().ok());
    let log = logs
        .map(|log| fs::read_to_string(log).expect("text"))
        .concat();
    match counts {
        [Some(one), Some(two)] if !log.contains("is lost") => {
            assert_eq!(
                number(&served, &losing, "counted"),
                (one + two).to_string(),
                "{log}"
            );
        }
        // One came too late, was told, and killed.
        _ => assert!(log.contains("is lost"), "{counts:?}: {log}"),
    }
}

/// What a program wrote that is killed together with its server, which is one of three that are joined, is brought to
/// the others.
#[test]
fn what_a_program_wrote_that_is_killed_with_its_server_is_brought_to_the_others() {
    let home = TempDir::new().expect("a directory");
    let addresses = ["a", "b", "c"].map(|name| format!("unix:{}/{name}", home.path().display()));
    let peers = addresses.join(",");
    let mut servers = addresses.each_ref().map(|address| {
        let own = TempDir::new().expect("a directory");
        let copy = own.path().join("copy").display().to_string();
        let joined = ["--peers", &peers, "--replicate-directory", &copy];
        Served::start_with(own, &[&["--listen", address][..], &joined].concat())
    });
    let script = "import os
from multiprocessing import shared_memory, resource_tracker
m = shared_memory.SharedMemory(name='grid', create=True, size=4096)
resource_tracker.unregister(m._name, 'shared_memory')
print('there', flush=True)
input()
m.buf[1] = 9
print(os.getpid(), flush=True)
input()";
    let python = Path::new("python3");
    let look = |served: &Served| served.contents("grid")[1];
    let [first, second, _] = &mut servers;
    let others = addresses[1..].join(",");
    let mut command = quire();
    command.args(["run", "--quiet", "--own-pages", "--dsm"]);
    command.arg(format!("grid@{},{others}", addresses[0]));
    let mut run = Running::start(command.arg("--").arg(python).args(["-c", script]));
    run.hear("there");
    // All have heard of the object.
    assert_eq!(look(second), 0);
    run.say("");
    let process = run.listen().parse().expect("a number");
    first.kill();
    send(process, Signal::KILL);
    assert!(!run.status().success());
    let end = Instant::now() + Duration::from_secs(90);
    while look(second) != 9 {
        assert!(Instant::now() < end, "what it wrote is not there");
        thread::sleep(Duration::from_millis(200));
    }
    let stat = second.does(&["object", "stat", "grid"]);
    assert!(!stat.contains("lost"), "{stat}");
}
