//! Superpages for what the kernel keeps: shared memory, files that the program
//! maps, and thread stacks (paper 000, sections 3.5 and 3.8).
//!
//! These mappings stay the kernel's own. Nothing is reserved for them and no
//! page of them is ever written; their extents become superpages when they are
//! full, by requests that change no contents. A thread of its own does that,
//! because making such a superpage takes milliseconds, in which the pager would
//! answer no fault.
//!
//! What is mapped, the thread reads from the kernel's list, which is complete.
//! Files that the program maps are noted here besides: to bring in the pages of
//! a file anew, its mapping must not change meanwhile, so calls that change one
//! wait for the lock of this table.
//!
//! | module | holds |
//! |---|---|
//! | `worker` | the thread, and its rounds |
//! | `view` | what is mapped of an extent |
//! | `shared` | shared memory: collapsing it, and where it is mapped |
//! | `reread` | pages of files, brought in anew as huge folios |
//! | `stacks` | which mappings are stacks |

pub(crate) mod reread;
pub mod shared;
mod stacks;
pub(crate) mod view;
mod worker;

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use quire_core::ranges::RangeMap;
use quire_core::units::{AddrRange, SUPERPAGE};
use quire_linux::futex::Lock;

pub(crate) use worker::{announce, start};

/// A file that the program has mapped for reading only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Noted {
    /// Its file system, where one can hold huge folios of it.
    device: Option<u64>,
}

/// What is known of the program's own mappings.
#[derive(Debug)]
struct Table {
    noted: RangeMap<Noted>,
    /// Ranges for which the program wants no superpages.
    refused: RangeMap<()>,
}

static TABLE: Lock<Table> = Lock::new(Table {
    noted: RangeMap::new(),
    refused: RangeMap::new(),
});
/// Whether the table holds anything, so that most calls need no lock.
static ANY: AtomicBool = AtomicBool::new(false);

/// How many ranges can be refused; with more, everything is.
const MAX_REFUSED: usize = 1024;

impl Table {
    fn refuses(&self, range: AddrRange) -> bool {
        self.refused.len() >= MAX_REFUSED || self.refused.overlaps(range).next().is_some()
    }
}

/// Whether a descriptor is that of a regular file; shared memory is.
#[must_use]
pub fn is_regular(file: BorrowedFd<'_>) -> bool {
    let stat = rustix::fs::fstat(file);
    stat.is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file())
}

/// Notes a mapping that the program has made of a regular file, unless it may
/// write to it.
pub fn note(range: AddrRange, prot: i32, file: BorrowedFd<'_>) {
    if prot & libc::PROT_WRITE != 0 || range.len().0 < SUPERPAGE {
        return;
    }
    let device = reread::device_with_huge_folios(file);
    TABLE.lock().noted.insert(range, Noted { device });
    ANY.store(true, Ordering::Release);
    worker::announce();
}

/// Forgets a range that is about to be mapped anew or not at all. While a file is brought in
/// anew, this waits for the end.
#[inline]
pub fn forget(range: AddrRange) {
    if ANY.load(Ordering::Acquire) && !range.is_empty() {
        let mut table = TABLE.lock();
        table.noted.remove(range);
        table.refused.remove(range);
    }
}

/// Whether the program itself has mapped a file in a range.
pub(crate) fn is_noted(range: AddrRange) -> bool {
    TABLE.lock().noted.overlaps(range).next().is_some()
}

/// Keeps to the program's advice about superpages.
pub fn advised(range: AddrRange, advice: i32) {
    match advice {
        libc::MADV_NOHUGEPAGE => {
            let mut table = TABLE.lock();
            if table.refused.len() < MAX_REFUSED {
                table.refused.insert(range, ());
                ANY.store(true, Ordering::Release);
            }
        }
        libc::MADV_HUGEPAGE if ANY.load(Ordering::Acquire) => TABLE.lock().refused.remove(range),
        _ => {}
    }
}

/// Notes that the program may write to a range from now on.
#[inline]
pub fn writable(range: AddrRange) {
    if ANY.load(Ordering::Acquire) && !range.is_empty() {
        TABLE.lock().noted.remove(range);
    }
}

/// Holds the table for the moment of a fork.
pub fn hold() {
    TABLE.hold();
}

/// Lets go of the table, in the same thread or in its copy in a child.
pub fn release_held() {
    TABLE.release_held();
}
