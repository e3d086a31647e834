//! What is asked of a library behind this one that provides memory (`QUIRE_ADVICE`), and what other libraries of Quire
//! ask. All of it may run on the helper thread, so nothing is looked up late, and nothing allocates but the answer.

use std::ffi::c_int;

use quire_advise::process::Area;
use quire_core::units::{AddrRange, VirtAddr};
use quire_linux::real::Real;

use crate::state;

type IsOwn = extern "C" fn(u32) -> c_int;
type Managed = unsafe extern "C" fn(u64, *mut [u64; 2]) -> c_int;

// SAFETY: the types of the functions in `libquire_provide.so`.
static IS_OWN: Real<IsOwn> = unsafe { Real::new(c"quire_beside_is_own_thread") };
// SAFETY: as above.
static MANAGED: Real<Managed> = unsafe { Real::new(c"quire_beside_managed") };

/// Looks the functions up; there are none where this library is alone.
pub fn find() {
    let _ = (IS_OWN.get(), MANAGED.get());
}

/// Whether a library behind this one provides memory.
pub fn provides() -> bool {
    MANAGED.found().is_some()
}

/// The first addresses behind `at` that the other library manages.
fn managed_from(at: VirtAddr) -> Option<AddrRange> {
    let managed = MANAGED.found()?;
    let mut found = [0; 2];
    // SAFETY: there is room for the answer.
    let is_any = unsafe { managed(at.0, &raw mut found) } != 0;
    is_any.then_some(AddrRange {
        start: VirtAddr(found[0]),
        end: VirtAddr(found[1]),
    })
}

/// Takes out what the other library manages: also private memory can be its own, after a fork.
pub fn leave_managed(areas: &mut Vec<Area>) {
    if !provides() {
        return;
    }
    let mut kept = Vec::with_capacity(areas.len());
    for area in areas.drain(..) {
        let mut keep = |start, end| {
            let range = AddrRange { start, end };
            if start < end {
                kept.push(Area { range, ..area });
            }
        };
        let AddrRange { mut start, end } = area.range;
        while let Some(run) = managed_from(start).filter(|run| run.start < end) {
            keep(start, run.start);
            start = run.end;
        }
        keep(start, end);
    }
    *areas = kept;
}

/// Whether a thread of this process is the helper, or one of a library's behind this one.
#[unsafe(no_mangle)]
extern "C" fn quire_beside_is_own_thread(thread: u32) -> c_int {
    if state::get().is_some_and(|state| state.helper.is(thread)) {
        return 1;
    }
    IS_OWN.found().map_or(0, |is_own| is_own(thread))
}
