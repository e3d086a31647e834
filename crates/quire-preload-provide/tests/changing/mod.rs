//! Settings that change while a program runs: the program must not notice, and
//! what it maps afterwards must follow them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quire_core::control::DONE;
use quire_linux::{Errno, control, sysinfo};

use crate::harness::held::Held;
use crate::harness::scratch::Scratch;
use crate::harness::setting::{self, Setting};
use crate::harness::{build, pool, process, skip};
use crate::managed::settled;

const PATIENCE: Duration = Duration::from_secs(20);

/// What is asked of the processes in turn. Each policy follows each other one.
const CHANGES: [&str; 12] = [
    "policy=eager",
    "policy=base",
    "policy=reserve ahead=16777216",
    "policy=base",
    "policy=eager align=on",
    "policy=adaptive",
    "ahead=0 align=off",
    "policy=eager",
    "policy=static",
    "policy=reserve reserve-limit=8388608",
    "policy=static",
    "policy=base ahead=8388608",
];

/// The control sockets of a session.
fn sockets(session: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(session).into_iter().flatten().flatten();
    let paths = files.map(|file| file.path());
    let is_socket = |path: &PathBuf| path.to_string_lossy().contains("/control.");
    paths.filter(is_socket).collect()
}

/// Whether a process can still answer: one that has ended may not have been waited
/// for.
fn lives(socket: &Path) -> bool {
    let pid = socket
        .extension()
        .and_then(|pid| pid.to_str()?.parse().ok());
    pid.is_some_and(|pid| sysinfo::process::start_time(pid).is_some())
}

/// Runs the stress test while every process of it is asked for one change after
/// the other. Its output must be that without the library.
fn storm(setting: &Setting, threads: &str, operations: &str) {
    if let Some(reason) = setting.missing() {
        return skip(&reason);
    }
    let _pool = setting.pool_pages.map(pool::Pool::with);
    let seed = std::env::var("QUIRE_TEST_SEED").unwrap_or_else(|_| "10".to_owned());
    let stress = [
        build::program("stress").into_os_string(),
        seed.into(),
        threads.into(),
        operations.into(),
    ];
    let scratch = Scratch::new(setting.unprivileged);
    let plain = setting.without_library().command(&stress, &[], None);
    let wanted = process::run(&plain, scratch.path());
    let session = scratch.session();
    let argv = process::in_session(&session, stress);
    let command = setting.command(&argv, &setting.libraries(), None);
    let (got, done) = std::thread::scope(|scope| {
        let run = scope.spawn(|| process::run(&command, scratch.path()));
        let mut done = 0;
        for change in CHANGES.iter().cycle() {
            if run.is_finished() {
                break;
            }
            for socket in sockets(&session) {
                match control::ask(&socket, change, PATIENCE, || lives(&socket)) {
                    Ok(answer) => {
                        assert_eq!(answer, DONE);
                        done += 1;
                    }
                    // The process is gone or going.
                    Err(Errno(libc::ENOENT | libc::ECONNREFUSED | libc::ESRCH)) => {}
                    Err(error) => panic!("{change}: {error}"),
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        (run.join().expect("running does not panic"), done)
    });
    if let Some(difference) = got.difference(&wanted) {
        panic!("{difference}\n{got}");
    }
    eprintln!("made {done}");
    assert!(done >= CHANGES.len(), "only {done} changes were made");
}

#[test]
fn stress_single() {
    storm(&setting::RESERVE, "1", "2500");
}

#[test]
fn stress_threads() {
    storm(&setting::BASE, "4", "600");
}

#[test]
fn stress_with_a_pool() {
    storm(&setting::STATIC_SMALL, "1", "2500");
}

/// Two halves of memory, the second filled when the policy has changed.
#[test]
fn later_memory_follows_the_policy() {
    if !process::is_root() {
        return skip("superpages are certain only for root");
    }
    const HALF: u64 = 64 << 20;
    let cases = [
        (setting::BASE, "policy=eager", 0, HALF),
        (setting::BASE, "policy=reserve", 0, HALF),
        (setting::BASE, "policy=adaptive", 0, HALF),
        (setting::EAGER, "policy=base", HALF, HALF),
        (setting::RESERVE, "policy=eager", HALF, 2 * HALF),
        (setting::EAGER, "policy=reserve", HALF, 2 * HALF),
    ];
    for (setting, change, before, after) in cases {
        let mut held = Held::launch(&setting, "halves", &(HALF >> 20).to_string());
        held.hear("filled");
        let pid = held.child.id();
        let what = format!("{}, then {change}", setting.name);
        assert_eq!(settled(pid, before), before, "{what}: before");
        let [socket] = &sockets(&held.session)[..] else {
            panic!("{what}: one process has one socket");
        };
        let asked = control::ask(socket, change, PATIENCE, || true);
        assert_eq!(asked.expect("the process answers"), DONE, "{what}");
        held.tell("go on");
        held.hear("filled");
        assert_eq!(settled(pid, after), after, "{what}: after");
        held.end();
    }
}
