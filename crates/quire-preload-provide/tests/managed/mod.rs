//! Looks at a preloaded process from outside: without this, every comparison
//! would also succeed with a library that manages nothing.

use std::fs;
use std::time::{Duration, Instant};

use crate::harness::held::Held;
use crate::harness::setting::{self, Setting};
use crate::harness::{pool, process, skip};

/// Bytes that `hold.c` fills, a quarter in each of four ways.
const HELD: u64 = 128 << 20;

/// What the kernel says about a held process.
struct Seen {
    maps: String,
    /// Bytes that are mapped by superpages of whatever kind.
    huge: u64,
    /// Whether the statistics page was made.
    stat_page: bool,
}

/// What superpages of whatever kind map of a process.
pub(crate) fn huge_bytes(pid: u32) -> u64 {
    const FIELDS: [&str; 5] = [
        "AnonHugePages:",
        "ShmemPmdMapped:",
        "FilePmdMapped:",
        "Shared_Hugetlb:",
        "Private_Hugetlb:",
    ];
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let kib = smaps.lines().filter_map(|line| {
        let (field, value) = line.split_once(char::is_whitespace)?;
        let counts = FIELDS.contains(&field);
        let number = value.trim().trim_end_matches(" kB").parse::<u64>().ok()?;
        counts.then_some(number)
    });
    kib.sum::<u64>() << 10
}

/// What superpages map of a process, as soon as it is what is wanted, or when no
/// more of it came for a few seconds.
pub(crate) fn settled(pid: u32, wanted: u64) -> u64 {
    let (mut huge, mut since) = (huge_bytes(pid), Instant::now());
    while huge != wanted && since.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(50));
        let before = std::mem::replace(&mut huge, huge_bytes(pid));
        if huge > before {
            since = Instant::now();
        }
    }
    huge
}

/// Looks until `enough` bytes are huge, or for a few seconds.
fn look(setting: &Setting, enough: u64) -> Seen {
    let held = Held::start(setting, "hold", &(HELD >> 22).to_string());
    let start = Instant::now();
    let mut huge = huge_bytes(held.child.id());
    while huge < enough && start.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(50));
        huge = huge_bytes(held.child.id());
    }
    let maps = fs::read_to_string(format!("/proc/{}/maps", held.child.id())).unwrap_or_default();
    let stat_page = held.page().exists();
    held.end();
    Seen {
        maps,
        huge,
        stat_page,
    }
}

fn check(setting: &Setting, superpages: bool) {
    if let Some(reason) = setting.missing() {
        return skip(&reason);
    }
    if superpages && !process::is_root() {
        return skip("superpages are certain only for root");
    }
    let _pool = setting.pool_pages.map(pool::Pool::with);
    let enough = if superpages { HELD / 8 * 7 } else { 0 };
    let seen = look(setting, enough);
    assert!(
        seen.maps.contains("libquire_provide"),
        "the library is loaded"
    );
    if superpages {
        assert!(seen.stat_page, "the statistics page exists");
        assert!(
            seen.huge >= enough,
            "{}: {} MiB of {} MiB are superpages\n{}",
            setting.name,
            seen.huge >> 20,
            HELD >> 20,
            seen.maps
        );
    } else {
        assert_eq!(seen.huge, 0, "{}: superpages\n{}", setting.name, seen.maps);
    }
}

#[test]
fn base_has_no_superpages() {
    check(&setting::BASE, false);
}

#[test]
fn eager_has_superpages() {
    check(&setting::EAGER_JEMALLOC, true);
}

#[test]
fn reserve_promotes() {
    check(&setting::RESERVE_JEMALLOC, true);
}

#[test]
fn static_takes_from_the_pool() {
    check(&setting::STATIC_JEMALLOC, true);
}
