//! What the library shows of a process to others.

use std::ffi::OsString;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use quire_linux::sysinfo::read_stat_file;

use crate::harness::scratch::Scratch;
use crate::harness::setting::{ADAPTIVE, ADAPTIVE_ORDINARY, EAGER, Setting};
use crate::harness::slots::Slots;
use crate::harness::{build, process, skip, take_copy};

/// A process's page says what the kernel says of it.
fn page_is_true(setting: Setting) {
    const MIB: u64 = 1 << 20;
    let name = format!("statistics {}", setting.name());
    if let Some(reason) = setting.missing() {
        return skip(&name, &reason);
    }
    let thp = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if !thp.is_ok_and(|text| text.contains("[madvise]")) {
        return skip(&name, "transparent huge pages are not set to madvise");
    }
    let _slots = Slots::take(1);
    let scratch = Scratch::new(setting.ordinary);
    let session = scratch.session();
    fs::set_permissions(&session, fs::Permissions::from_mode(0o777)).expect("it is ours");
    let argv: [OsString; 2] = [
        take_copy(&scratch, &build::program("waits")).into(),
        "256".into(),
    ];
    let library = take_copy(&scratch, build::library());
    let command = setting.command(&argv, &[library], &session, None);
    let mut child = process::start(&command, scratch.path());
    let mut ready = [0; 6];
    let output = child.stdout.as_mut().expect("it is a pipe");
    output.read_exact(&mut ready).expect("it says so");
    let page = session.join(format!("stat.{}", child.id()));
    let begin = Instant::now();
    let stat = loop {
        let stat = read_stat_file(&page);
        let all = stat.as_ref().is_ok_and(|s| s.totals.superpages >= 124);
        if all || begin.elapsed() > Duration::from_secs(10) {
            break stat.unwrap_or_else(|e| panic!("{name}: {}: {e}", page.display()));
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let smaps = fs::read_to_string(format!("/proc/{}/smaps_rollup", child.id()));
    let smaps = smaps.expect("it is our child");
    let huge = smaps.lines().find_map(|l| l.strip_prefix("AnonHugePages:"));
    let huge = huge.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok());
    let huge = huge.expect("the kernel says") / 2048;
    process::finish(child, &name);
    assert_eq!(Some(stat.policy.name()), setting.policy, "{name}");
    assert_eq!(stat.comm, "waits");
    let totals = stat.totals;
    assert!(
        totals.superpages >= 124 && totals.superpages.abs_diff(huge) <= 4,
        "{name}: {} superpages, and {huge} as the kernel says",
        totals.superpages
    );
    assert!(
        totals.populated_bytes >= 248 * MIB && totals.populated_bytes < 270 * MIB,
        "{name}"
    );
}

#[test]
fn statistics_adaptive() {
    page_is_true(ADAPTIVE);
}

#[test]
fn statistics_adaptive_ordinary() {
    page_is_true(ADAPTIVE_ORDINARY);
}

#[test]
fn statistics_eager() {
    page_is_true(EAGER);
}
