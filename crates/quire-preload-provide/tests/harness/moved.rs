//! Pages that the kernel moves, whosever they are: other tests have it compact memory, and it does so
//! itself to make room for large folios. What was put where it belongs may be elsewhere then.

use std::fs;

/// So often it is looked again.
const ATTEMPTS: usize = 10;

/// Looks at the frames of a program. They must be right; where pages were moved meanwhile, those of
/// another one.
pub fn unless_moved(mut look: impl FnMut() -> Result<(), String>) {
    for attempt in 1.. {
        let before = moved();
        let Err(wrong) = look() else { return };
        let may_be_moved = moved() != before && attempt < ATTEMPTS;
        assert!(may_be_moved, "{wrong}");
    }
}

/// So many have been moved so far.
fn moved() -> u64 {
    let counters = fs::read_to_string("/proc/vmstat").expect("there is a vmstat");
    let mut lines = counters.lines();
    let number = lines.find_map(|line| line.strip_prefix("pgmigrate_success "));
    number.map_or(0, |number| number.parse().expect("a number"))
}
