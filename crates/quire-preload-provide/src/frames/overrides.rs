//! What the program itself asks for (`quire.h`), in place of what its user chose: a
//! strategy for a range of addresses comes before every other, and one for all memory
//! before the user's for all memory.

use std::sync::atomic::{AtomicBool, Ordering};

use quire_core::ranges::RangeMap;
use quire_core::units::AddrRange;
use quire_linux::futex::Lock;
use quire_vm::frames::Which;

static OVERRIDES: Lock<Overrides> = Lock::new(Overrides {
    ranges: RangeMap::new(),
    all: None,
});
/// There may be some: so nobody takes the lock in a program that asks for nothing.
static ANY: AtomicBool = AtomicBool::new(false);

struct Overrides {
    ranges: RangeMap<Which>,
    all: Option<Which>,
}

/// The strategy of memory that is mapped from now on.
pub fn set_for_all(which: Which) {
    OVERRIDES.lock().all = Some(which);
    ANY.store(true, Ordering::Release);
}

/// The strategy of what is mapped in a range from now on.
pub fn set(range: AddrRange, which: Which) {
    OVERRIDES.lock().ranges.insert(range, which);
    ANY.store(true, Ordering::Release);
}

/// Takes back what was asked for a range.
pub fn remove(range: AddrRange) {
    OVERRIDES.lock().ranges.remove(range);
}

/// The strategy of memory that no hint is for.
pub fn for_all() -> Option<Which> {
    look(|overrides| overrides.all)
}

/// Whether strategies were asked for addresses.
pub fn name_addresses() -> bool {
    look(|overrides| (!overrides.ranges.is_empty()).then_some(())).is_some()
}

/// The parts of a range for which strategies were asked.
pub fn parts(range: AddrRange) -> Vec<(AddrRange, Which)> {
    let parts = look(|overrides| Some(overrides.ranges.overlaps(range).collect::<Vec<_>>()));
    let clipped = |(part, which): (AddrRange, Which)| (part.intersect(range), which);
    parts.into_iter().flatten().map(clipped).collect()
}

fn look<R>(find: impl FnOnce(&Overrides) -> Option<R>) -> Option<R> {
    let any = ANY.load(Ordering::Acquire);
    any.then(|| find(&OVERRIDES.lock())).flatten()
}

/// Holds what is known for the moment of a fork.
pub fn hold() {
    OVERRIDES.hold();
}

/// Lets go of it, in the same thread or in its copy in a child.
pub fn release_held() {
    OVERRIDES.release_held();
}
