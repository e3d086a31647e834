//! What was filled on base pages because nothing could be reserved: it grows into
//! superpages later, and its contents stay what they are.

use std::time::{Duration, Instant};

use quire_core::units::{Bytes, SUPERPAGE};
use quire_linux::sysinfo::read_stat_file;

use crate::harness::held::Held;
use crate::harness::setting::{self, Setting};
use crate::harness::{process, skip};
use crate::managed::huge_bytes;

/// What the program fills, page by page.
const FILLED: Bytes = Bytes::mib(48);
/// The first extent may have been reserved before the limit was reached, and the
/// last one need not be the program's as a whole.
const ENOUGH: Bytes = Bytes(FILLED.0 - 2 * SUPERPAGE);
const PATIENCE: Duration = Duration::from_secs(20);

/// Fills memory and waits until it has grown, and the statistics say so.
fn check(setting: &Setting) {
    if !process::is_root() {
        return skip("superpages are certain only for root");
    }
    let held = Held::start(setting, "fill", &(FILLED.0 >> 20).to_string());
    let start = Instant::now();
    let (huge, totals) = loop {
        let huge = huge_bytes(held.child.id());
        let page = read_stat_file(&held.page()).expect("the process has a page");
        let told = page.totals.superpages * SUPERPAGE;
        if (huge >= ENOUGH.0 && told == huge) || start.elapsed() > PATIENCE {
            break (huge, page.totals);
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(totals.failed_reservations > 0, "{totals:?}");
    assert!(huge >= ENOUGH.0, "{} MiB are superpages", huge >> 20);
    assert_eq!(totals.superpages * SUPERPAGE, huge, "{totals:?}");
    held.end();
}

#[test]
fn while_reservations_failed() {
    check(&setting::RESERVE_NONE);
}

#[test]
fn while_reservations_failed_for_the_adaptive_policy() {
    check(&setting::ADAPTIVE_NONE);
}
