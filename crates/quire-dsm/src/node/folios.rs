//! Folios for a memory file: a block of it gets all of its memory at once, in folios of 4 to 256 KiB
//! around the pages that it has. Who goes through memory in order needs less than half of the
//! processor time for each page then: the kernel takes and gives back, charges and lists a few
//! folios in the place of 128 pages.
//!
//! Not in folios of 2 MiB: mappings are shown memory page by page in any case, smaller blocks are
//! there when none of 2 MiB is free, and who stops early has less that it did not want. In a virtual
//! machine whose host takes free memory back, it takes the large blocks: a folio of 2 MiB costs 4 ms
//! there, as much memory in these some 30 us.

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use quire_core::popmap::Popmap;
use quire_core::units::{BASE_PAGE, Bytes, PageCount, SUPERPAGE};
use quire_linux::Errno;
use quire_linux::huge_file::{self, Window};

use super::Part;
use super::reservations::Extent;

/// As much as is asked for ahead at most where pages come at once, in base pages: that many or fewer
/// may not be wanted.
const BLOCK: PageCount = Bytes(512 << 10).to_pages();

/// Where the kernel had no memory, or was slow, so many blocks go by before it is asked again; each
/// time so many times as many, up to a bound.
const FIRST_PAUSE: u32 = 16;
const GROWTH: u32 = 4;
const LONGEST_PAUSE: u32 = 256;

/// A block that takes longer than this costs more than its pages one by one.
const SLOW: Duration = Duration::from_micros(500);

/// What is needed to ask for folios.
pub(super) struct Folios {
    window: Window,
    /// So many blocks are to go by before the kernel is asked, and the next time.
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

    /// The blocks of an extent that a part has a share in, by their base pages, each with the first
    /// base page of the share.
    pub(super) fn blocks(
        extent: Extent,
        part: Part,
    ) -> impl Iterator<Item = (Range<usize>, usize)> {
        let start = extent.start().0;
        let from = part.start.0.max(start) - start;
        let to = (part.start + part.len).0.min(start + SUPERPAGE) - start;
        let (from, to) = (from / BASE_PAGE, to.div_ceil(BASE_PAGE));
        let pages = BLOCK.0 as usize;
        let numbers = from / BLOCK.0..to.div_ceil(BLOCK.0);
        numbers.map(move |number| {
            let block = number as usize * pages..(number as usize + 1) * pages;
            let first = block.start.max(from as usize);
            (block, first)
        })
    }

    /// Brings what the file lacks of a block, as folios of zeros. Says which pages of the extent
    /// that is; `None` where it got nothing. Without memory, or where it is slow, it is asked for
    /// less and less often.
    pub(super) fn reserve(
        &mut self,
        file: BorrowedFd<'_>,
        extent: Extent,
        block: Range<usize>,
    ) -> Option<Popmap> {
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        let before = Instant::now();
        let part = extent.part(&block);
        let brought = holes(file, extent, block).and_then(|holes| {
            let is_empty = holes.count() == BLOCK;
            self.bring(file, part, is_empty).map(|()| holes)
        });
        self.judge(brought.is_ok() && before.elapsed() < SLOW);
        brought.ok()
    }

    /// Brings memory in base pages.
    pub(super) fn sow(&mut self, file: BorrowedFd<'_>, part: Part) {
        for at in (0..part.len.0).step_by(BASE_PAGE as usize) {
            let page = part.start + Bytes(at);
            if self.window.sow(file, page, Bytes(SUPERPAGE)).is_err() {
                // Whoever writes there finds the same, and says so.
                return;
            }
        }
    }

    /// The kernel makes no folio around a page that is there. So an empty block gets one: no folio
    /// reaches beyond it.
    fn bring(&mut self, file: BorrowedFd<'_>, block: Part, is_empty: bool) -> Result<(), Errno> {
        if is_empty {
            self.window.sow(file, block.start, Bytes(SUPERPAGE))?;
        }
        let brought = huge_file::allocate(file, block.start, block.len);
        if brought.is_err() && is_empty {
            // It is found when it is filled, where it stays.
            let _ = huge_file::punch(file, block.start, Bytes(BASE_PAGE));
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

/// Which of some base pages of an extent the file lacks, or has without anybody having touched them.
fn holes(file: BorrowedFd<'_>, extent: Extent, pages: Range<usize>) -> Result<Popmap, Errno> {
    let Part { start, len } = extent.part(&pages);
    let end = (start + len).0;
    let page = |at: u64| pages.start + ((at.min(end) - start.0) / BASE_PAGE) as usize;
    let mut holes = Popmap::new();
    holes.set(pages.clone());
    let mut at = start;
    while let Some(data) = huge_file::next_data(file, at)? {
        if data.0 >= end {
            break;
        }
        at = huge_file::next_hole(file, data)?;
        holes.clear(page(data.0)..page(at.0));
    }
    Ok(holes)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use quire_core::units::ObjectOffset;

    use super::*;
    use crate::node::memory::held;

    fn file(extents: u64) -> Option<(OwnedFd, Folios)> {
        let file = Folios::new(Bytes(extents * SUPERPAGE));
        if file.is_none() {
            println!("SKIP: no file of folios without the right to mount");
        }
        file
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
        assert_eq!(pauses, [16, 64, 256, 256, 0, 16]);
    }

    #[test]
    fn a_file_below_a_superpage_gets_none() {
        assert!(Folios::new(Bytes(SUPERPAGE - BASE_PAGE)).is_none());
    }

    #[test]
    fn blocks_are_those_that_a_part_touches() {
        let blocks = |start: u64, count: u64, extent| {
            let part = Part {
                start: ObjectOffset(start * BASE_PAGE),
                len: Bytes(count * BASE_PAGE),
            };
            Folios::blocks(Extent(extent), part).collect::<Vec<_>>()
        };
        assert_eq!(blocks(512, 1, 1), [(0..128, 0)]);
        assert_eq!(blocks(512 + 127, 2, 1), [(0..128, 127), (128..256, 128)]);
        assert_eq!(blocks(400, 200, 0), [(384..512, 400)]);
        assert_eq!(blocks(400, 200, 1), [(0..128, 0)]);
        assert_eq!(blocks(0, 1024, 1).len(), 4);
    }

    #[test]
    fn a_block_gets_what_it_lacks_and_keeps_what_it_has() {
        let Some((file, mut folios)) = file(2) else {
            return;
        };
        // Base pages, as they come to mappings.
        for page in [640, 641, 700, 900] {
            let at = ObjectOffset(page * BASE_PAGE);
            let sown = folios.window.sow(file.as_fd(), at, Bytes(SUPERPAGE));
            sown.unwrap();
            rustix::io::pwrite(&file, &[7; BASE_PAGE as usize], at.0).unwrap();
        }
        assert_eq!(held(&file), 4);
        let mut reserve = |extent, block| {
            folios.pause = 0;
            let brought = folios.reserve(file.as_fd(), Extent(extent), block);
            let runs = brought.unwrap().runs();
            runs.map(|run| (run.start, run.end)).collect::<Vec<_>>()
        };
        assert_eq!(reserve(0, 256..384), [(256, 384)]);
        assert_eq!(held(&file), 128 + 4, "and nothing of the next one");
        assert_eq!(reserve(1, 128..256), [(130, 188), (189, 256)]);
        assert_eq!(held(&file), 2 * 128 + 1);
        // What nobody has touched since it came is lacking again.
        assert_eq!(reserve(1, 128..256), [(130, 188), (189, 256)]);
        let mut byte = [1];
        for (page, expected) in [(256, 0), (383, 0), (640, 7), (642, 0), (700, 7), (767, 0)] {
            rustix::io::pread(&file, &mut byte, page * BASE_PAGE).unwrap();
            assert_eq!(byte, [expected], "page {page}");
        }
    }
}
