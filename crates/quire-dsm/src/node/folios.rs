//! Folios for a memory file: an extent of which the file has nothing gets all of its memory at
//! once, where the kernel has a free block of a superpage's size. Who goes through memory in
//! order needs a third of the processor time for each page then: the kernel takes and gives
//! back, charges and lists one folio in the place of 512 pages.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use quire_core::units::{BASE_PAGE, Bytes, SUPERPAGE};
use quire_linux::huge_file::{self, Effort, Window};
use quire_linux::pagemap;

use super::reservations::Extent;

/// Where the kernel had no folio, or a slow one, so many extents go by before it is asked again; each
/// time so many times as many, up to a bound.
const FIRST_PAUSE: u32 = 4;
const GROWTH: u32 = 4;
const LONGEST_PAUSE: u32 = 64;

/// A folio that takes longer than this costs more than its pages one by one. So it is in a virtual
/// machine whose host has taken free memory back: what it takes are large free blocks, while base
/// pages come from small ones.
const SLOW: Duration = Duration::from_millis(1);

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
            next_pause: FIRST_PAUSE,
        };
        Some((huge_file::create_if_privileged(size).ok()?, folios))
    }

    /// Brings an extent into the file as one folio of zeros. Says whether it could: the file
    /// must have nothing of it. Without free blocks, or where they are slow, it is asked for less and
    /// less often.
    pub(super) fn reserve(&mut self, file: BorrowedFd<'_>, extent: Extent) -> bool {
        let (start, end) = (extent.start(), extent.start() + Bytes(SUPERPAGE));
        match huge_file::next_data(file, start) {
            Ok(None) => {}
            Ok(Some(next)) if next >= end => {}
            _ => return false,
        }
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        let (pagemap, before) = (self.pagemap.as_fd(), Instant::now());
        let reserved = self.window.reserve(file, pagemap, start, Effort::Free);
        self.window.close();
        let reserved = matches!(reserved, Ok(true));
        if !reserved {
            // The window has brought a page. Where it stays, it is found when it is filled.
            let _ = huge_file::punch(file, start, Bytes(BASE_PAGE));
        }
        self.judge(reserved && before.elapsed() < SLOW);
        reserved
    }

    /// Whether it was worth asking.
    fn judge(&mut self, worth: bool) {
        if worth {
            self.next_pause = FIRST_PAUSE;
            return;
        }
        self.pause = self.next_pause;
        self.next_pause = LONGEST_PAUSE.min(GROWTH * self.next_pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gets_none_or_slow_ones_asks_less_and_less_often() {
        let Some((_file, mut folios)) = Folios::new(Bytes(SUPERPAGE)) else {
            println!("SKIP: no file of folios without the right to mount");
            return;
        };
        let mut pauses = Vec::new();
        for worth in [false, false, false, false, true, false] {
            folios.pause = 0;
            folios.judge(worth);
            pauses.push(folios.pause);
        }
        assert_eq!(pauses, [4, 16, 64, 64, 0, 4]);
    }

    #[test]
    fn a_file_below_a_superpage_gets_none() {
        assert!(Folios::new(Bytes(SUPERPAGE - BASE_PAGE)).is_none());
    }
}
