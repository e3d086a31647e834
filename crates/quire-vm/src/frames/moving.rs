//! Moving pages between the stock and the program.
//!
//! On Linux 6.18 it comes to `EEXIST`, as if something had been at the new place, though the
//! page has just been moved there: seen while other threads waited to write to it. Who
//! believes that gives up the page with all that it holds. So the page table has the last
//! word.

use std::os::fd::BorrowedFd;

use quire_core::units::{AddrRange, BASE_PAGE, Bytes, VirtAddr};
use quire_linux::pagemap;
use quire_linux::raw::Errno;
use quire_linux::uffd::{self, Moved};

/// Moves pages as [`uffd::move_pages`] does, and says what has been moved indeed.
pub(super) fn move_pages(
    uffd: BorrowedFd<'_>,
    pagemap: BorrowedFd<'_>,
    to: AddrRange,
    from: VirtAddr,
) -> Moved {
    let mut done = Bytes::ZERO;
    loop {
        let rest = to.split_at(to.start + done).1;
        let moved = uffd::move_pages(uffd, rest, from + done);
        done += moved.done;
        let is_in_doubt = moved.error == Some(Errno(libc::EEXIST));
        if !is_in_doubt || !has_moved(pagemap, to.start + done, from + done) {
            let error = moved.error;
            return Moved { done, error };
        }
        done += Bytes(BASE_PAGE);
        if done == to.len() {
            return Moved { done, error: None };
        }
    }
}

/// Whether a page that was at `from`, which nobody else gives up, is at `to` now.
fn has_moved(pagemap: BorrowedFd<'_>, to: VirtAddr, from: VirtAddr) -> bool {
    let is_there = |at| {
        let mut there = None;
        let one = AddrRange::new(at, Bytes(BASE_PAGE));
        let read = pagemap::frames_of(pagemap, one, |_, entry| {
            there = Some(entry.is_present() || entry.is_swapped());
        });
        there.filter(|_| read.is_ok())
    };
    is_there(from) == Some(false) && is_there(to) == Some(true)
}
