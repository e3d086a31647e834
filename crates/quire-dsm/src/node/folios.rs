//! Folios for a memory file: an extent of which the file has nothing gets all of its memory at
//! once, where the kernel has a free block of a superpage's size. Who goes through memory in
//! order needs a third of the processor time for each page then: the kernel takes and gives
//! back, charges and lists one folio in the place of 512 pages.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use quire_core::units::{BASE_PAGE, Bytes, SUPERPAGE};
use quire_linux::huge_file::{self, Effort, Window};
use quire_linux::pagemap;

use super::reservations::Extent;

/// Where the kernel had no folio, so many extents at most go by before it is asked again.
const LONGEST_PAUSE: u32 = 64;

/// What is needed to ask for folios.
pub(super) struct Folios {
    window: Window,
    pagemap: OwnedFd,
    /// So many extents are to go by before the kernel is asked, and the next time.
    pause: u32,
    next_pause: u32,
}

impl Folios {
    /// A file of this size that can have them. `None` where it is too small, or there is none
    /// to be had: it takes the right to mount.
    pub(super) fn new(size: Bytes) -> Option<(OwnedFd, Folios)> {
        if size.0 < SUPERPAGE {
            return None;
        }
        let folios = Folios {
            window: Window::new().ok()?,
            pagemap: pagemap::open().ok()?,
            pause: 0,
            next_pause: 1,
        };
        Some((huge_file::create_if_privileged(size).ok()?, folios))
    }

    /// Brings an extent into the file as one folio of zeros. Says whether it could: the file
    /// must have nothing of it. Without free blocks it is asked for less and less often.
    pub(super) fn reserve(&mut self, file: BorrowedFd<'_>, extent: Extent) -> bool {
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        let (start, end) = (extent.start(), extent.start() + Bytes(SUPERPAGE));
        match huge_file::next_data(file, start) {
            Ok(None) => {}
            Ok(Some(next)) if next >= end => {}
            _ => return false,
        }
        let pagemap = self.pagemap.as_fd();
        let reserved = self.window.reserve(file, pagemap, start, Effort::Free);
        self.window.close();
        if let Ok(true) = reserved {
            self.next_pause = 1;
            return true;
        }
        // The window has brought a page. Where it stays, it is found when it is filled.
        let _ = huge_file::punch(file, start, Bytes(BASE_PAGE));
        self.pause = self.next_pause;
        self.next_pause = LONGEST_PAUSE.min(2 * self.next_pause);
        false
    }
}
