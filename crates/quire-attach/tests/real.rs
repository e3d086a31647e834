//! What is done to real processes, and that it never harms them.

mod common;

use std::fs;
use std::time::Duration;

use common::{Subject, mib, once, plan, run, skip};
use quire_advise::process::{Areas, Process};
use quire_attach::attach::Attach;
use quire_attach::heat::Accesses;
use quire_attach::metrics::Snapshot;
use quire_attach::plan::{LIVED, Treatment, Who};
use quire_attach::process::LinuxProcess;
use quire_attach::target::Target;
use quire_core::attach::{CpuShare, Extent, Tally};

fn quiet() -> Box<dyn FnMut(&str)> {
    Box::new(|_| {})
}

#[test]
fn full_extents_of_a_static_program_become_superpages() {
    let Some(mut subject) = Subject::start() else {
        return;
    };
    subject.ask("map 16 512");
    assert_eq!(mib(subject.pid(), "AnonHugePages"), 0);
    let snapshot = once(subject.pid(), "100%");
    assert_eq!(snapshot.total.promoted, 16, "{snapshot:?}");
    assert_eq!(mib(subject.pid(), "AnonHugePages"), 32);
    subject.ask("check");
    subject.ask("churn 0.2");
    subject.end();
}

#[test]
fn the_threshold_decides() {
    let Some(mut subject) = Subject::start() else {
        return;
    };
    subject.ask("map 8 256");
    assert_eq!(once(subject.pid(), "257").total.promoted, 0);
    assert_eq!(once(subject.pid(), "50%").total.promoted, 8);
    assert_eq!(mib(subject.pid(), "AnonHugePages"), 16);
    subject.ask("check");
    subject.ask("holes");
}

#[test]
fn shared_memory_is_promoted_when_it_is_full() {
    let Some(mut subject) = Subject::start() else {
        return;
    };
    subject.ask("shared 4 511");
    assert_eq!(once(subject.pid(), "1%").total.promoted, 0);
    subject.ask("shared 4 512");
    let snapshot = once(subject.pid(), "100%");
    if snapshot.total.refused_mapping > 0 {
        return skip("this kernel makes no superpages of shared memory");
    }
    assert_eq!(snapshot.total.promoted, 4, "{snapshot:?}");
    assert_eq!(mib(subject.pid(), "ShmemPmdMapped"), 8);
    subject.ask("churn 0.2");
}

#[test]
fn memory_that_wants_base_pages_keeps_them() {
    let Some(mut subject) = Subject::start() else {
        return;
    };
    subject.ask("map 4 512");
    subject.ask("plain");
    let snapshot = once(subject.pid(), "100%");
    assert_eq!(
        (snapshot.total.promoted, snapshot.total.refused_mapping),
        (0, 4)
    );
    assert_eq!(mib(subject.pid(), "AnonHugePages"), 0);
}

#[test]
fn memory_shared_since_a_fork_waits_for_its_end() {
    let Some(mut subject) = Subject::start() else {
        return;
    };
    subject.ask("map 8 512");
    subject.ask("fork");
    let before = mib(subject.pid(), "Pss");
    let snapshot = once(subject.pid(), "100%");
    assert_eq!(
        (snapshot.total.promoted, snapshot.total.refused_shared),
        (0, 8)
    );
    assert!(
        mib(subject.pid(), "Pss") <= before + 1,
        "nothing was copied"
    );
    subject.ask("reap");
    assert_eq!(once(subject.pid(), "100%").total.promoted, 8);
    subject.ask("check");
}

/// A target whose looks and promotions the test controls.
fn target(pid: u32, threshold: &str) -> Target<LinuxProcess> {
    let process = LinuxProcess::open(pid).unwrap();
    let mut target = Target::new(process, "subject".to_owned(), 0, Duration::ZERO);
    target.treatment = Treatment {
        threshold: threshold.parse().unwrap(),
        cpu: None,
    };
    target
}

fn look(target: &mut Target<LinuxProcess>) {
    let look = target.look(Duration::ZERO, CpuShare::DEFAULT, || Duration::ZERO);
    look.unwrap();
}

fn promote_all(target: &mut Target<LinuxProcess>) {
    look(target);
    let due: Vec<_> = target.due(Duration::from_secs(1 << 20)).collect();
    for (extent, _) in due {
        target.promote(extent, Duration::ZERO).unwrap();
    }
}

#[test]
fn unused_superpages_are_given_up_and_nothing_is_lost() {
    let Some(mut subject) = Subject::start() else {
        return;
    };
    subject.ask("map 16 192");
    let before = mib(subject.pid(), "Rss");
    let mut target = target(subject.pid(), "25%");
    promote_all(&mut target);
    assert_eq!(mib(subject.pid(), "AnonHugePages"), 32);
    assert!(mib(subject.pid(), "Rss") >= before + 18);
    target
        .examine(Duration::ZERO, true, false, || true)
        .unwrap();
    assert_eq!(target.counts.demoted, 16);
    assert_eq!(mib(subject.pid(), "AnonHugePages"), 0);
    subject.ask("check");
    if frees_zeros() {
        assert!(
            mib(subject.pid(), "Rss") <= before + 1,
            "the zeros are freed"
        );
    }
    // Holes read as zeros, and reading them is no reason to promote again.
    subject.ask("holes");
    promote_all(&mut target);
    assert_eq!(target.counts.promoted, 16);
    subject.ask("churn 0.2");
    subject.end();
}

/// Since Linux 6.12 splitting frees base pages of zeros.
fn frees_zeros() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|n| n.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(12))
}

#[test]
fn contents_stay_while_superpages_come_and_go() {
    let Some(mut subject) = Subject::start() else {
        return;
    };
    subject.ask("map 12 256");
    let pid = subject.pid();
    for _ in 0..3 {
        subject.tell("churn 1.5");
        // A target that knows nothing of earlier demotions.
        let mut target = target(pid, "50%");
        promote_all(&mut target);
        target
            .examine(Duration::ZERO, true, false, || true)
            .unwrap();
        assert_eq!(subject.answer(), "ok");
        assert!(target.counts.demoted > 0, "{:?}", target.counts);
    }
    subject.ask("holes");
    subject.end();
}

#[test]
fn a_process_that_maps_unmaps_and_forks_is_not_harmed() {
    let Some(mut subject) = Subject::start() else {
        return;
    };
    subject.ask("map 4 512");
    let mut wanted = plan(subject.pid(), "1%");
    // What does not live long is to be met, too.
    wanted.lived = Duration::ZERO;
    let mut attach = Attach::new(wanted, false, quiet()).unwrap();
    // On a busy machine the children may share what there is in all looks of a while.
    let has_met = (0..5).any(|_| {
        subject.tell("mess 3");
        let end = std::time::Instant::now() + Duration::from_secs(3);
        let total = run(&mut attach, |_| std::time::Instant::now() > end).total;
        assert_eq!(subject.answer(), "ok");
        total.looks > 10 && total.promoted > 0
    });
    assert!(has_met, "nothing was promoted");
    subject.ask("check");
    subject.end();
}

#[test]
fn unmapped_memory_is_forgotten() {
    let Some(mut subject) = Subject::start() else {
        return;
    };
    subject.ask("map 4 256");
    let mut target = target(subject.pid(), "50%");
    look(&mut target);
    let due: Vec<_> = target.due(LIVED).collect();
    assert_eq!(due.len(), 4);
    target.promote(due[0].0, Duration::ZERO).unwrap();
    subject.ask("unmap");
    for (extent, _) in &due[1..] {
        target.promote(*extent, Duration::ZERO).unwrap();
    }
    assert_eq!((target.counts.promoted, target.counts.no_block), (1, 0));
    target
        .examine(Duration::ZERO, true, false, || true)
        .unwrap();
    assert_eq!(target.counts.demoted, 0);
    look(&mut target);
    assert_eq!(target.due(Duration::from_secs(1 << 20)).count(), 0);
}

#[test]
fn a_process_that_executes_another_program_begins_anew() {
    let Some(mut subject) = Subject::start() else {
        return;
    };
    subject.ask("map 4 256");
    let mut target = target(subject.pid(), "50%");
    promote_all(&mut target);
    assert_eq!(target.on_trial().count(), 4);
    subject.ask("exec");
    subject.ask("map 6 512");
    // What was true of the old program does no harm in the new one.
    target
        .examine(Duration::ZERO, true, false, || true)
        .unwrap();
    promote_all(&mut target);
    assert_eq!(target.on_trial().count(), 0);
    assert_eq!(target.counts.promoted, 4 + 6);
    subject.ask("check");
}

#[test]
fn attach_ends_with_the_process() {
    let Some(mut subject) = Subject::start() else {
        return;
    };
    subject.ask("map 64 512");
    let mut attach = Attach::new(plan(subject.pid(), "100%"), false, quiet()).unwrap();
    let mut subject = Some(subject);
    let snapshot = run(&mut attach, |snapshot| {
        if snapshot.total.promoted >= 3 {
            drop(subject.take());
        }
        false
    });
    assert_eq!((snapshot.exits, snapshot.processes.len()), (1, 0));
    assert_eq!(snapshot.ended[0].counts, snapshot.total);
}

/// The extents of a process that hold something.
fn extents(process: &mut LinuxProcess) -> Vec<Extent> {
    let (mut areas, mut tally) = (Areas::default(), Tally::default());
    process.areas(&mut areas).unwrap();
    for area in areas.areas {
        let mut add = |run, huge| tally.add(run, huge, area.is_private());
        let inner = area.range.whole_superpages();
        process.populated(inner, &mut add).unwrap();
    }
    tally.extents()
}

#[test]
fn what_is_accessed_most_comes_first() {
    let Some(mut subject) = Subject::start() else {
        return;
    };
    if !quire_linux::damon::is_free() {
        return skip("the kernel's access monitor is not there, or in use");
    }
    subject.ask("map 64 512");
    subject.tell("heat 5 12");
    let mut wanted = plan(subject.pid(), "100%");
    wanted.accesses = Accesses::Damon;
    let mut attach = Attach::new(wanted, false, quiet()).unwrap();
    // Which extents are superpages tells who came first, while few are.
    let mut process = LinuxProcess::open(subject.pid()).unwrap();
    let first = extents(&mut process)
        .iter()
        .map(|e| e.slot.0)
        .min()
        .unwrap();
    let promoted = |snapshot: &Snapshot| snapshot.total.promoted;
    run(&mut attach, |snapshot| promoted(snapshot) >= 6);
    let hot = first + 64 / 8 * 5..first + 64 / 8 * 6;
    let huge: Vec<u64> = extents(&mut process)
        .iter()
        .filter(|e| e.huge)
        .map(|e| e.slot.0)
        .collect();
    let warm = huge.iter().filter(|slot| hot.contains(slot)).count();
    assert_eq!(attach.snapshot().accesses, "damon");
    // A turn may promote a few more before it can be stopped.
    assert!(warm >= huge.len().min(8) - 1, "{huge:?} are not in {hot:?}");
    drop(attach);
    assert!(quire_linux::damon::is_free(), "the monitor is given back");
}

#[test]
fn accessed_marks_serve_where_the_monitor_does_not() {
    let Some(mut subject) = Subject::start() else {
        return;
    };
    subject.ask("map 40 512");
    let mut wanted = plan(subject.pid(), "100%");
    wanted.accesses = Accesses::Smaps;
    let mut attach = Attach::new(wanted, true, quiet()).unwrap();
    let snapshot = run(&mut attach, |_| false);
    assert_eq!((snapshot.accesses, snapshot.total.promoted), ("smaps", 40));
    subject.ask("check");
}

#[test]
fn a_managed_process_is_left_to_quire() {
    let Some(mut subject) = Subject::start() else {
        return;
    };
    subject.ask("map 4 512");
    // A page that cannot be read belongs to whom its name says.
    let session = tempfile::Builder::new()
        .prefix("quire.0.attach-test.")
        .tempdir_in("/dev/shm")
        .unwrap();
    let page = session.path().join(format!("stat.{}", subject.pid()));
    fs::write(page, "unreadable").unwrap();
    let refused = Attach::new(plan(subject.pid(), "100%"), true, quiet())
        .err()
        .unwrap();
    assert!(
        refused.to_string().contains("manages it already"),
        "{refused}"
    );
}

#[test]
fn control_groups_select() {
    let Some(mut subject) = Subject::start() else {
        return;
    };
    let mounts = [
        "/sys/fs/cgroup",
        "/sys/fs/cgroup/unified",
        "/sys/fs/cgroup/memory",
    ];
    let name = format!("quire-attach-test-{}", std::process::id());
    let made = mounts
        .iter()
        .map(|mount| std::path::Path::new(mount).join(&name))
        .find(|dir| {
            dir.parent().unwrap().join("cgroup.procs").exists() && fs::create_dir(dir).is_ok()
        });
    let Some(dir) = made else {
        return skip("no control group can be made here");
    };
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        subject.ask("map 4 512");
        let below = dir.join("below");
        fs::create_dir(&below).unwrap();
        fs::write(below.join("cgroup.procs"), subject.pid().to_string()).unwrap();
        let mut wanted = plan(1, "100%");
        let found = quire_attach::select::group_dir(&format!("/{name}")).unwrap();
        wanted.who = Who::Group(found, "100%".parse().unwrap());
        let mut attach = Attach::new(wanted, true, quiet()).unwrap();
        let snapshot = run(&mut attach, |_| false);
        assert_eq!(snapshot.processes.len(), 1);
        assert_eq!(
            (snapshot.processes[0].pid, snapshot.total.promoted),
            (subject.pid(), 4)
        );
    }));
    drop(subject);
    for dir in [dir.join("below"), dir] {
        let _ = fs::remove_dir(dir);
    }
    outcome.unwrap();
}

#[test]
fn a_full_control_group_is_waited_for() {
    let Some(mut subject) = Subject::start() else {
        return;
    };
    let dir = std::path::Path::new("/sys/fs/cgroup/memory")
        .join(format!("quire-attach-full-{}", std::process::id()));
    if !dir.parent().unwrap().join("memory.limit_in_bytes").exists()
        || fs::create_dir(&dir).is_err()
    {
        return skip("no memory control group (version 1) can be made here");
    }
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let limit = |text: String| fs::write(dir.join("memory.limit_in_bytes"), text).unwrap();
        fs::write(dir.join("cgroup.procs"), subject.pid().to_string()).unwrap();
        subject.ask("map 8 512");
        let usage = fs::read_to_string(dir.join("memory.usage_in_bytes")).unwrap();
        let usage: u64 = usage.trim().parse().unwrap();
        limit((usage + (1 << 20)).to_string());
        let mut target = target(subject.pid(), "100%");
        promote_all(&mut target);
        assert_eq!(target.counts.promoted, 0, "{:?}", target.counts);
        assert_eq!(target.counts.no_block, 8);
        assert!(target.promote_at() > Duration::ZERO);
        subject.ask("check");
        limit("-1".to_owned());
        promote_all(&mut target);
        assert_eq!(target.counts.promoted, 8);
        subject.ask("check");
    }));
    drop(subject);
    let _ = fs::remove_dir(&dir);
    outcome.unwrap();
}
