//! Several processes that compete for memory: reservations that are not used
//! yield to a process that fills its own, whoever holds them.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use quire_core::stat::Totals;
use quire_linux::sysinfo::read_stat_file;

use crate::harness::cgroup::MemoryCgroup;
use crate::harness::scratch::Scratch;
use crate::harness::setting::{self, Setting};
use crate::harness::{build, process, skip};
use crate::managed::settled;

/// What the group may hold.
const LIMIT: u64 = 512 << 20;
/// What the dense process fills. Together with all that the sparse one would
/// like to reserve it is more than the group has.
const DENSE: u64 = 400 << 20;
/// Extents of which the sparse process touches one page each.
const SPARSE: u64 = 120;

/// A control group, and a session in which its processes see each other.
struct Arena {
    group: MemoryCgroup,
    scratch: Scratch,
    session: PathBuf,
}

impl Arena {
    /// Makes one; says why where that is not possible.
    fn new() -> Result<Arena, String> {
        if !process::is_root() {
            return Err("only root may make a control group".to_owned());
        }
        let group = MemoryCgroup::new(LIMIT)?;
        // What other tests have scattered is no question of who yields to whom.
        // Where the kernel cannot compact, it says so itself.
        let _ = fs::write("/proc/sys/vm/compact_memory", "1");
        let scratch = Scratch::new(false);
        let session = scratch.session();
        Ok(Arena {
            group,
            scratch,
            session,
        })
    }

    /// Starts a program in the group and waits until it has touched its memory.
    fn start(&self, setting: &Setting, program: &str, size: u64) -> Child {
        let words = [build::program(program).into(), size.to_string().into()];
        let words = process::in_session(&self.session, words);
        let command = setting.command(&words, &setting.libraries(), Some(&self.group));
        let mut child = process::start(&command, self.scratch.path());
        let mut line = String::new();
        let stdout = child.stdout.take().expect("stdout is a pipe");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("the pipe can be read");
        assert_eq!(line, "ready\n", "{program} was ended");
        child
    }

    /// What a process has counted.
    fn totals(&self, child: &Child) -> Totals {
        let path = self.session.join(format!("stat.{}", child.id()));
        let page = read_stat_file(&path).expect("the process has a page");
        page.totals
    }
}

/// Lets a process end, which checks its memory first.
fn end(child: Child) {
    process::finish(child, "a process of the group");
}

fn compete(setting: &Setting) {
    let arena = match Arena::new() {
        Ok(arena) => arena,
        Err(reason) => return skip(&reason),
    };
    let sparse = arena.start(setting, "sparse", SPARSE);
    let reserved = arena.totals(&sparse).reserved_peak_bytes;
    let dense = arena.start(setting, "fill", DENSE >> 20);
    let (of_sparse, of_dense) = (arena.totals(&sparse), arena.totals(&dense));
    let huge = settled(dense.id(), DENSE);
    let what = format!(
        "{}: {} MiB of {} MiB are superpages, {} MiB were reserved, {} preemptions",
        setting.name,
        huge >> 20,
        DENSE >> 20,
        reserved >> 20,
        of_sparse.preemptions,
    );
    eprintln!("{what}");
    assert!(of_sparse.preemptions > 0, "{what}");
    assert!(of_dense.preemptions < of_sparse.preemptions, "{what}");
    assert!(huge > DENSE / 4 * 3, "{what}");
    end(dense);
    end(sparse);
}

#[test]
fn a_dense_process_gets_what_a_sparse_one_reserved() {
    compete(&setting::RESERVE);
}

#[test]
fn the_same_under_the_adaptive_policy() {
    compete(&setting::ADAPTIVE);
}

/// Two sparse processes, the second of which has allocated later: it keeps its
/// reservations while the first has any.
#[test]
fn the_oldest_reservations_yield_first() {
    let arena = match Arena::new() {
        Ok(arena) => arena,
        Err(reason) => return skip(&reason),
    };
    let old = arena.start(&setting::RESERVE, "sparse", 24);
    let young = arena.start(&setting::RESERVE, "sparse", 24);
    std::thread::sleep(Duration::from_millis(300));
    // It needs a part of what they hold.
    let dense = arena.start(&setting::RESERVE, "fill", 340);
    let of_both = || [&old, &young].map(|child| arena.totals(child).preemptions);
    let mut found = of_both();
    // They may not have come to all that they were asked for.
    while {
        std::thread::sleep(Duration::from_millis(300));
        found != of_both()
    } {
        found = of_both();
    }
    let [of_old, of_young] = found;
    eprintln!("{of_old} reservations of the old one yielded, {of_young} of the young one");
    assert!(of_old > of_young, "{of_old}, {of_young}");
    [dense, young, old].into_iter().for_each(end);
}

/// A session directory without room for a page: the process goes on alone.
#[test]
fn a_full_registry_harms_nobody() {
    if !process::is_root() {
        return skip("only root may mount a small file system");
    }
    let scratch = Scratch::new(false);
    let session = scratch.session();
    let mount = |words: &[&str]| {
        let done = Command::new(words[0])
            .args(&words[1..])
            .arg(&session)
            .status();
        done.expect("mount and umount can be run").success()
    };
    assert!(mount(&["mount", "-t", "tmpfs", "-o", "size=16k", "none"]));
    fs::write(session.join("filler"), [1; 12 << 10]).expect("there is room for this");
    let argv = [build::program("threads").into(), "16".into(), "2000".into()];
    let argv = process::in_session(&session, argv);
    let command = setting::RESERVE.command(&argv, &setting::RESERVE.libraries(), None);
    let outcome = process::run(&command, scratch.path());
    let left: Vec<OsString> = fs::read_dir(&session)
        .expect("the directory can be read")
        .map(|file| file.expect("the directory can be read").file_name())
        .filter(|name| name.to_string_lossy().starts_with("stat."))
        .collect();
    assert!(mount(&["umount"]));
    assert_eq!(outcome.status, "exit status: 0", "{outcome}");
    assert!(left.is_empty(), "{left:?}");
}

/// A process that is killed while others may ask it for memory: they go on, and
/// what it held is the machine's again.
#[test]
fn a_killed_process_is_not_waited_for() {
    let arena = match Arena::new() {
        Ok(arena) => arena,
        Err(reason) => return skip(&reason),
    };
    let mut sparse = arena.start(&setting::RESERVE, "sparse", SPARSE);
    sparse.kill().expect("the child is ours");
    // Not awaited yet: it is there as a zombie, with its page and its socket.
    let dense = arena.start(&setting::RESERVE, "fill", DENSE >> 20);
    let huge = settled(dense.id(), DENSE);
    assert!(huge > DENSE / 4 * 3, "{} MiB are superpages", huge >> 20);
    sparse.wait().expect("the child is ours");
    end(dense);
}
