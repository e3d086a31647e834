//! How often this program, its parents and its children have made each object, in memory that they
//! share. Who is to remove an object when it is used no more remembers the number: where it is
//! another one then, the object has gone long since, and the one of that name was made in its
//! place.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use crate::host::Entry;

/// One for each attachment; none where there is no memory for that.
static COUNTS: OnceLock<&'static [AtomicU64]> = OnceLock::new();

/// Takes the memory, before anybody forks. For so many attachments.
pub fn start(entries: usize) {
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    let allowed = ProtFlags::READ | ProtFlags::WRITE;
    let len = entries.max(1) * size_of::<AtomicU64>();
    // SAFETY: it is new memory, at an address of the kernel's choice.
    let memory = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, allowed, flags) };
    let Ok(memory) = memory else { return };
    // SAFETY: the memory is large enough, aligned to pages, full of zeros, which are a value of
    // this type, and is never unmapped. All who have it see it as atomics.
    let counts = unsafe { std::slice::from_raw_parts(memory.cast::<AtomicU64>(), entries) };
    let _ = COUNTS.set(counts);
}

fn of(entry: Entry) -> Option<&'static AtomicU64> {
    COUNTS.get()?.get(entry)
}

/// How often an object was made.
pub fn times(entry: Entry) -> u64 {
    of(entry).map_or(0, |count| count.load(Ordering::Acquire))
}

/// An object is made next. To be called when there is none of that name.
pub fn note(entry: Entry) {
    if let Some(count) = of(entry) {
        count.fetch_add(1, Ordering::AcqRel);
    }
}
