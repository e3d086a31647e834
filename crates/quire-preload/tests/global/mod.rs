//! Several processes that compete for memory: reservations that are not used
//! yield to a process that fills its own, whoever holds them.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use quire_core::stat::ProcessStat;
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

/// Starts a program in the group and waits until it has touched its memory.
fn start(
    setting: &Setting,
    argv: [String; 2],
    group: &MemoryCgroup,
    scratch: &Path,
    session: &Path,
) -> Child {
    let mut words = vec![
        OsString::from("env"),
        format!("QUIRE_SESSION={}", session.display()).into(),
        build::program(&argv[0]).into(),
    ];
    words.push(argv[1].clone().into());
    let command = setting.command(&words, Some(build::library()), Some(group));
    let mut child = process::command(&command, scratch)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh is a program");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("stdout is a pipe");
    BufReader::new(stdout)
        .read_line(&mut line)
        .expect("the pipe can be read");
    assert_eq!(line, "ready\n", "{} was ended", argv[0]);
    child
}

/// Lets a process end, which checks its memory first.
fn end(mut child: Child) {
    drop(child.stdin.take());
    let status = child.wait().expect("the child is ours");
    assert!(status.success(), "{status}");
}

fn page(session: &Path, child: &Child) -> ProcessStat {
    let path = session.join(format!("stat.{}", child.id()));
    read_stat_file(&path).expect("the process has a page")
}

fn compete(setting: &Setting) {
    if !process::is_root() {
        return skip("only root may make a control group");
    }
    let group = match MemoryCgroup::new(LIMIT) {
        Ok(group) => group,
        Err(reason) => return skip(&reason),
    };
    // What other tests have scattered is no question of who yields to whom. Where
    // the kernel cannot compact, it says so itself.
    let _ = fs::write("/proc/sys/vm/compact_memory", "1");
    let scratch = Scratch::new(false);
    let session = scratch.path().join("session");
    fs::create_dir(&session).expect("the scratch directory is ours");
    let run = |argv| start(setting, argv, &group, scratch.path(), &session);
    let sparse = run(["sparse".to_owned(), SPARSE.to_string()]);
    let reserved = page(&session, &sparse).totals.reserved_peak_bytes;
    let dense = run(["fill".to_owned(), (DENSE >> 20).to_string()]);
    let (of_sparse, of_dense) = (page(&session, &sparse), page(&session, &dense));
    let huge = settled(dense.id(), DENSE);
    let what = format!(
        "{}: {} MiB of {} MiB are superpages, {} MiB were reserved, {} preemptions",
        setting.name,
        huge >> 20,
        DENSE >> 20,
        reserved >> 20,
        of_sparse.totals.preemptions,
    );
    eprintln!("{what}");
    assert!(of_sparse.totals.preemptions > 0, "{what}");
    assert!(
        of_dense.totals.preemptions < of_sparse.totals.preemptions,
        "{what}"
    );
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
    if !process::is_root() {
        return skip("only root may make a control group");
    }
    let group = match MemoryCgroup::new(LIMIT) {
        Ok(group) => group,
        Err(reason) => return skip(&reason),
    };
    // What other tests have scattered is no question of who yields to whom. Where
    // the kernel cannot compact, it says so itself.
    let _ = fs::write("/proc/sys/vm/compact_memory", "1");
    let scratch = Scratch::new(false);
    let session = scratch.path().join("session");
    fs::create_dir(&session).expect("the scratch directory is ours");
    let run = |argv| start(&setting::RESERVE, argv, &group, scratch.path(), &session);
    let few = || ["sparse".to_owned(), "24".to_owned()];
    let old = run(few());
    let young = run(few());
    std::thread::sleep(Duration::from_millis(300));
    // It needs a part of what the first one holds.
    let dense = run(["fill".to_owned(), "360".to_owned()]);
    let preempted = |child| page(&session, child).totals.preemptions;
    let (of_old, of_young) = (preempted(&old), preempted(&young));
    eprintln!("{of_old} reservations of the old one yielded, {of_young} of the young one");
    assert!(of_old > of_young, "{of_old}, {of_young}");
    [dense, young, old].into_iter().for_each(end);
}
