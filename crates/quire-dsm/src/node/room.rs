//! How much of an object a machine holds, so that one which is larger than its memory does not take
//! all of that: what came first goes back to the server first, and comes again when it is touched.

use quire_core::units::Bytes;
use quire_linux::sysinfo::cgroup::MemoryGroup;
use quire_linux::sysinfo::memory::meminfo;

/// An object has at least so much; less would hardly hold what is asked for ahead.
const LEAST: Bytes = Bytes(64 << 20);

/// No limit.
pub const UNLIMITED: Bytes = Bytes(u64::MAX);

/// How much of an object of a size is held where nothing else is wanted: half of what this process
/// can have now, before anything is swapped out or its control group is full; all of it where that
/// is enough, or where nobody says how much there is.
#[must_use]
pub fn room_for(size: Bytes) -> Bytes {
    let machine = meminfo().ok().map(|memory| memory.available);
    let group = MemoryGroup::of_self().and_then(|group| Some(group.room()?.headroom));
    let free = machine.into_iter().chain(group).min();
    free.map_or(UNLIMITED, |free| share_of(free, size))
}

fn share_of(free: Bytes, size: Bytes) -> Bytes {
    let half = Bytes(free.0 / 2).max(LEAST);
    if size <= half { UNLIMITED } else { half }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_memory_enough_holds_all_of_it() {
        let mib = Bytes::mib;
        for (free, size, room) in [
            (8192, 4096, UNLIMITED),
            (8192, 4097, mib(4096)),
            (10, 64, UNLIMITED),
            (10, 1 << 20, mib(64)),
        ] {
            assert_eq!(share_of(mib(free), mib(size)), room, "{size} of {free}");
        }
    }

    #[test]
    fn this_machine_has_memory() {
        assert_eq!(room_for(Bytes::mib(1)), UNLIMITED);
        assert_ne!(room_for(Bytes(1 << 60)), UNLIMITED);
    }
}
