//! Memory with a strategy is ordinary private anonymous memory for the program: each
//! of these programs checks itself, and does the same without the library.

use std::fs;
use std::path::Path;

use crate::check;
use crate::harness::setting::{self, Setting};
use crate::harness::{process, skip};

const STRATEGIES: [&Setting; 3] = [&setting::COLOUR, &setting::BINHOP, &setting::MODULO];

/// A file of the kernel's settings, put back after the test.
struct Tuned {
    file: &'static Path,
    before: String,
}

impl Tuned {
    fn set(file: &'static str, value: &str) -> Option<Tuned> {
        let file = Path::new(file);
        let before = fs::read_to_string(file).ok()?.trim().to_owned();
        fs::write(file, value).ok()?;
        Some(Tuned { file, before })
    }
}

impl Drop for Tuned {
    fn drop(&mut self) {
        let _ = fs::write(self.file, &self.before);
    }
}

#[test]
fn forks_and_first_touches_at_the_same_time() {
    for setting in STRATEGIES {
        check("fork_touch", "fork_touch", &["60", "3"], None, setting);
    }
}

#[test]
fn what_is_not_handed_down_leaves_a_hole() {
    for setting in STRATEGIES {
        check("fork_hole", "fork_hole", &[], None, setting);
    }
}

#[test]
fn the_kernel_may_touch_first() {
    for setting in STRATEGIES {
        check("kernel_first", "kernel_first", &["12", "4"], None, setting);
    }
}

/// With the kernel's thread that merges pages of the same contents.
#[test]
fn locks_advice_moves_and_merging() {
    if !process::is_root() {
        return skip("only root may have pages merged");
    }
    let _speed = Tuned::set("/sys/kernel/mm/ksm/pages_to_scan", "2000");
    let _on = Tuned::set("/sys/kernel/mm/ksm/run", "1");
    for setting in STRATEGIES {
        check("ordinary", "ordinary", &[], None, setting);
    }
}

/// Frames go from program to program here, and from strategy to strategy.
#[test]
fn new_memory_is_zero() {
    for setting in STRATEGIES.iter().chain(&STRATEGIES) {
        check("fresh", "fresh", &["24"], None, setting);
    }
}

/// The stock takes no part of a limited group that the program needs.
#[test]
fn a_group_that_just_holds_the_program_holds_it_still() {
    for setting in STRATEGIES {
        check("fresh_tight", "fresh", &["56"], Some(72 << 20), setting);
    }
}
