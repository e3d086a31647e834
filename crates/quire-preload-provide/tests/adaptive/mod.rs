//! Programs that used their memory sparsely and become dense: they get their
//! superpages, whatever was learnt before, and nothing fails on the way.

use std::time::{Duration, Instant};

use quire_core::stat::ProcessStat;
use quire_linux::sysinfo::read_stat_file;

use crate::harness::held::Held;
use crate::harness::setting::{self, Setting};
use crate::harness::{process, skip};
use crate::managed::huge_bytes;

/// What the program holds in the end, less the extents at its edges.
const ENOUGH: u64 = 60 << 20;

/// Runs the program until enough of what it holds is on superpages, and returns
/// how much that is, and what it says of itself.
fn run(setting: &Setting, how: &str) -> (u64, ProcessStat) {
    let held = Held::start(setting, "phases", how);
    let start = Instant::now();
    let mut huge = huge_bytes(held.child.id());
    while huge < ENOUGH && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(50));
        huge = huge_bytes(held.child.id());
    }
    let stat = read_stat_file(&held.page()).expect("the process has a page");
    held.end();
    (huge, stat)
}

fn check(setting: &Setting, how: &str) {
    if !process::is_root() {
        return skip("superpages are certain only for root");
    }
    let (huge, stat) = run(setting, how);
    let remarks: Vec<String> = stat.remarks().collect();
    assert_eq!(remarks, [""; 0], "{how} under {}", setting.name);
    assert!(
        huge >= ENOUGH,
        "{how} under {}: {} MiB on superpages",
        setting.name,
        huge >> 20
    );
}

#[test]
fn an_extent_that_is_touched_again_and_again() {
    check(&setting::RESERVE, "again");
    check(&setting::ADAPTIVE, "again");
}

#[test]
fn blocks_that_become_dense() {
    check(&setting::ADAPTIVE, "heap");
}

#[test]
fn a_block_that_is_dense_and_stays() {
    check(&setting::ADAPTIVE, "kept");
}

#[test]
fn a_mapping_after_sparse_ones() {
    check(&setting::ADAPTIVE, "mapped");
}

#[test]
fn a_mapping_that_grows_after_sparse_ones() {
    check(&setting::ADAPTIVE, "grown");
}
