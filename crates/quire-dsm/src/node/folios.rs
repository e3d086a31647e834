//! Folios for a memory file: an extent gets all of its memory at once, in folios of 4 KiB to 1 MiB
//! around the pages that it has. Who goes through memory in order needs a third of the processor
//! time for each page then: the kernel takes and gives back, charges and lists a few folios in the
//! place of 512 pages.
//!
//! Not in one folio: mappings are shown an extent page by page in any case, and smaller blocks are
//! there when none of 2 MiB is free. In a virtual machine whose host takes free memory back, it
//! takes the large blocks: a folio of 2 MiB then costs 4 ms, these cost 60 us together.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use quire_core::popmap::Popmap;
use quire_core::units::{BASE_PAGE, Bytes, ObjectOffset, PAGES_PER_SUPERPAGE, SUPERPAGE};
use quire_linux::Errno;
use quire_linux::huge_file::{self, Window};

use super::reservations::Extent;

/// Where the kernel had no memory, or was slow, so many extents go by before it is asked again; each
/// time so many times as many, up to a bound.
const FIRST_PAUSE: u32 = 4;
const GROWTH: u32 = 4;
const LONGEST_PAUSE: u32 = 64;

/// An extent that takes longer than this costs more than its pages one by one.
const SLOW: Duration = Duration::from_millis(1);

/// What is needed to ask for folios.
pub(super) struct Folios {
    window: Window,
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
            pause: 0,
            next_pause: FIRST_PAUSE,
        };
        Some((huge_file::create_if_privileged(size).ok()?, folios))
    }

    /// Brings what the file lacks of an extent, as folios of zeros. Says what it had before; `None`
    /// where it got nothing. Without memory, or where it is slow, it is asked for less and less
    /// often.
    pub(super) fn reserve(&mut self, file: BorrowedFd<'_>, extent: Extent) -> Option<Popmap> {
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        let before = Instant::now();
        let had = present(file, extent).and_then(|had| {
            let sown = had.is_empty();
            self.bring(file, extent, sown).map(|()| had)
        });
        self.judge(had.is_ok() && before.elapsed() < SLOW);
        had.ok()
    }

    /// The kernel makes no folio around a page that is there. So an extent that has none gets one.
    fn bring(&mut self, file: BorrowedFd<'_>, extent: Extent, sown: bool) -> Result<(), Errno> {
        let (start, whole) = (extent.start(), Bytes(SUPERPAGE));
        if sown {
            self.window.sow(file, start, whole)?;
        }
        let brought = huge_file::allocate(file, start, whole);
        if brought.is_err() && sown {
            // It is found when it is filled, where it stays.
            let _ = huge_file::punch(file, start, Bytes(BASE_PAGE));
        }
        brought
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

/// Which base pages of an extent the file has.
fn present(file: BorrowedFd<'_>, extent: Extent) -> Result<Popmap, Errno> {
    let (start, end) = (extent.start().0, extent.start().0 + SUPERPAGE);
    let page = |at: u64| ((at.min(end) - start) / BASE_PAGE) as usize;
    let mut pages = Popmap::new();
    let mut at = start;
    while let Some(data) = huge_file::next_data(file, ObjectOffset(at))? {
        if data.0 >= end {
            break;
        }
        at = huge_file::next_hole(file, data)?.0;
        pages.set(page(data.0)..page(at));
    }
    debug_assert!(pages.count().0 <= PAGES_PER_SUPERPAGE as u64);
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn file(extents: u64) -> Option<(OwnedFd, Folios)> {
        let file = Folios::new(Bytes(extents * SUPERPAGE));
        if file.is_none() {
            println!("SKIP: no file of folios without the right to mount");
        }
        file
    }

    fn held(file: &OwnedFd) -> u64 {
        rustix::fs::fstat(file).unwrap().st_blocks.unsigned_abs() * 512 / BASE_PAGE
    }

    #[test]
    fn who_gets_none_or_slow_ones_asks_less_and_less_often() {
        let Some((_file, mut folios)) = file(1) else {
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

    #[test]
    fn an_extent_gets_what_it_lacks_and_keeps_what_it_has() {
        let Some((file, mut folios)) = file(3) else {
            return;
        };
        // Base pages, as they come to mappings.
        for page in [512, 513, 700] {
            let at = ObjectOffset(page * BASE_PAGE);
            folios
                .window
                .sow(file.as_fd(), at, Bytes(SUPERPAGE))
                .unwrap();
            rustix::io::pwrite(&file, &[7; BASE_PAGE as usize], at.0).unwrap();
        }
        assert_eq!(held(&file), 3);
        let mut reserve = |extent| {
            folios.pause = 0;
            folios.reserve(file.as_fd(), Extent(extent)).unwrap()
        };
        assert!(reserve(0).is_empty());
        assert_eq!(held(&file), 512 + 3, "and nothing of the next one");
        let runs: Vec<_> = reserve(1).runs().collect();
        assert_eq!(runs, [0..2, 188..189]);
        assert_eq!(held(&file), 2 * 512);
        let mut byte = [1];
        for (page, expected) in [(0, 0), (511, 0), (512, 7), (514, 0), (700, 7), (1023, 0)] {
            rustix::io::pread(&file, &mut byte, page * BASE_PAGE).unwrap();
            assert_eq!(byte, [expected], "page {page}");
        }
    }
}
