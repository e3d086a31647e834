//! How much the stock holds: little beyond what the program populated, less once that is at
//! rest, and no more than the user allows.

use std::thread::sleep;
use std::time::{Duration, Instant};

use quire_core::units::{Bytes, PageCount};
use quire_linux::sysinfo::{process, read_stat_file};

use crate::harness::held::Held;
use crate::harness::setting::{self, Setting};

const FILLED: Bytes = Bytes(64 << 20);
/// The part of what is populated that the stock may hold.
const PART: u64 = 20;
/// Base pages of a folio.
const FOLIO: u64 = 512;
/// What a program and its libraries have by themselves, at most.
const BESIDES: Bytes = Bytes(16 << 20);

fn stocked(held: &Held) -> PageCount {
    let stat = read_stat_file(&held.page()).expect("the process runs");
    PageCount(stat.totals.frames_stocked)
}

/// What the stock may hold beyond a folio.
fn share(held: &Held) -> u64 {
    let resident = process::resident(held.child.id()).expect("the process runs");
    resident.to_pages().0 / PART
}

/// The program with so much filled in order.
fn filled(setting: &Setting) -> Held {
    Held::start(setting, "fill", &(FILLED.0 >> 20).to_string())
}

/// The strategy wants four of 16 colours, so that most of what comes is left.
#[test]
fn the_stock_is_bounded_and_given_back() {
    let held = filled(&setting::MODULO);
    let (busy, bound) = (stocked(&held), share(&held) + FOLIO);
    assert!(busy.0 <= bound, "{busy:?}, bound {bound}");
    let resident = process::resident(held.child.id()).expect("the process runs");
    let most = Bytes(FILLED.0 + FILLED.0 / PART + (FOLIO << 12)) + BESIDES;
    assert!(resident <= most, "{resident:?}");
    sleep(Duration::from_millis(2500));
    let (rest, bound) = (stocked(&held), share(&held));
    assert!(rest.0 <= bound, "{rest:?}, bound {bound}");
    // At rest for long, nothing is kept, and nothing wakes the thread. A late touch
    // begins the rest anew.
    let end = Instant::now() + Duration::from_secs(40);
    while stocked(&held) > PageCount(0) {
        assert!(Instant::now() < end, "{:?}", stocked(&held));
        sleep(Duration::from_millis(250));
    }
    held.end();
}

#[test]
fn the_user_bounds_the_stock() {
    let held = filled(&setting::MODULO_SMALL_STOCK);
    let busy = stocked(&held);
    assert!(busy.0 <= FOLIO, "{busy:?}");
    sleep(Duration::from_millis(2500));
    let rest = stocked(&held);
    assert!(rest.to_bytes() <= Bytes(64 << 10), "{rest:?}");
    held.end();
}
