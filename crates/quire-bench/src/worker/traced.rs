//! The addresses of a kernel, translated to the frames that its process has, in a model
//! of the cache.

use std::os::fd::AsFd;

use anyhow::{Context, Result, ensure};
use quire_core::frames::colour::Colours;
use quire_core::frames::model::Counts;
use quire_core::frames::model::synthetic::Machine;
use quire_core::frames::model::trace::Trace;
use quire_core::units::{AddrRange, BASE_PAGE, Frame, PageCount, VirtAddr};
use quire_linux::pagemap;

use crate::colours::allocation::Allocation;
use crate::colours::geometry::Geometry;
use crate::kernels::Data;
use crate::kernels::access::Recorder;
use crate::results::Sample;

/// The metric that says whether frames are real: 1, or 0 where they are made up.
pub const REAL: &str = "real_frames";

/// Feeds a model with every access.
struct ToModel<'a> {
    trace: Trace,
    first: VirtAddr,
    /// The frame of each page from the first on.
    frames: &'a [Frame],
}

impl Recorder for ToModel<'_> {
    #[inline]
    fn access(&mut self, at: VirtAddr) {
        let offset = (at - self.first).0;
        let frame = self.frames[(offset / BASE_PAGE) as usize];
        self.trace.access(frame, offset % BASE_PAGE);
    }
}

/// Traces so many passes over the memory in `range`, all of which is touched.
pub fn run(
    data: &mut Data,
    passes: u32,
    range: AddrRange,
    allocation: Allocation,
    geometry: &Geometry,
    sample: &mut Sample,
) -> Result<()> {
    let real = real_frames(range)?;
    sample.put(REAL, f64::from(u8::from(real.is_some())));
    let frames = match &real {
        Some(frames) => frames.clone(),
        None => made_up(range, allocation, &geometry.colours)?,
    };
    let counts = modelled(data, passes, range.start, &frames, geometry);
    let of_a_pass = |count: u64| count as f64 / f64::from(passes);
    sample.put("conflict", of_a_pass(counts.conflict));
    sample.put("capacity", of_a_pass(counts.capacity));
    sample.put("cold", counts.cold as f64);
    sample.put("accesses", of_a_pass(counts.accesses()));
    sample.put("crowd", crowd(&frames, &geometry.colours) as f64);
    if let Some(before) = real {
        let after = real_frames(range)?.context("frames are hidden all at once")?;
        let moved = before.iter().zip(&after).filter(|(a, b)| a != b).count();
        sample.put("moved", moved as f64);
    }
    Ok(())
}

/// Conflict and capacity misses of a pass over the memory in `range`, all of which is
/// touched; `None` where the kernel hides its frames.
pub fn misses(
    data: &mut Data,
    passes: u32,
    range: AddrRange,
    geometry: &Geometry,
) -> Result<Option<f64>> {
    let Some(frames) = real_frames(range)? else {
        return Ok(None);
    };
    let counts = modelled(data, passes, range.start, &frames, geometry);
    let all = (counts.conflict + counts.capacity) as f64;
    Ok(Some(all / f64::from(passes)))
}

/// What the model counts in so many passes over memory from `first` on.
fn modelled(
    data: &mut Data,
    passes: u32,
    first: VirtAddr,
    frames: &[Frame],
    geometry: &Geometry,
) -> Counts {
    let trace = Trace::new(&geometry.cache);
    let mut model = ToModel {
        trace,
        first,
        frames,
    };
    (0..passes).for_each(|_| data.pass(&mut model));
    model.trace.take_counts()
}

/// The frames of the pages of a range; `None` where the kernel hides them.
fn real_frames(range: AddrRange) -> Result<Option<Vec<Frame>>> {
    let pagemap = pagemap::open().context("opening /proc/self/pagemap")?;
    let mut frames = Vec::new();
    let mut present = 0;
    pagemap::frames_of(pagemap.as_fd(), range, |_, entry| {
        present += u64::from(entry.is_present());
        frames.extend(entry.frame());
    })
    .context("reading /proc/self/pagemap")?;
    let pages = range.len().to_pages().0;
    ensure!(
        present == pages,
        "{} pages were swapped out",
        pages - present
    );
    let is_hidden = (frames.len() as u64) < pages;
    Ok((!is_hidden).then_some(frames))
}

/// Frames as the allocation would give them: by its strategy from a stock that is
/// imagined, for pages that are touched in order; at random where the kernel chooses.
fn made_up(range: AddrRange, allocation: Allocation, colours: &Colours) -> Result<Vec<Frame>> {
    let own = std::process::id();
    let mut machine = Machine::new(own.into());
    let pages = range.len().to_pages().0;
    let frames = match allocation.strategy(colours, own) {
        None => machine.at_random(pages),
        Some(mut strategy) => {
            let page = |n| range.start + PageCount(n).to_bytes();
            let pages: Vec<VirtAddr> = (0..pages).map(page).collect();
            machine.by_strategy(strategy.as_mut(), colours, &pages)
        }
    };
    frames.context("the machine that is imagined is too small")
}

/// How many of the frames have the colour that most of them have.
fn crowd(frames: &[Frame], colours: &Colours) -> usize {
    let mut pages = vec![0; colours.count() as usize];
    for frame in frames {
        pages[colours.of(*frame).0 as usize] += 1;
    }
    pages.into_iter().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use quire_core::frames::cache::{Cache, Index, Kind, Shape};
    use quire_core::units::Bytes;

    use super::*;
    use crate::colours::experiment::Size;
    use crate::kernels::Kernel;
    use crate::memory::Block;

    /// 64 KiB in 4 ways: 4 colours.
    fn geometry() -> Geometry {
        let cache = Cache {
            level: 2,
            kind: Kind::Unified,
            shape: Shape::new(256, 4, 64).unwrap(),
            index: Index::Plain,
            shared_by: None,
        };
        Geometry {
            name: cache.name(),
            colours: cache.colours().unwrap(),
            size_bytes: cache.shape.size(),
            cache,
        }
    }

    /// Counts of two passes over an array in frames that are given.
    fn counts(frames: &[Frame]) -> quire_core::frames::model::Counts {
        let mut block = Block::map(frames.len() * BASE_PAGE as usize).unwrap();
        let first = VirtAddr(block.address() as u64);
        let mut data = Kernel::Array.lay_out(&mut block);
        let trace = Trace::new(&geometry().cache);
        let mut model = ToModel {
            trace,
            first,
            frames,
        };
        data.pass(&mut model);
        data.pass(&mut model);
        model.trace.take_counts()
    }

    #[test]
    fn misses_of_known_patterns() {
        let lines = |pages: u64| pages * BASE_PAGE / 64;
        let elements = |pages: u64| pages * BASE_PAGE / 8;
        // Each colour four times, as many as there are ways.
        let even: Vec<Frame> = (0..16).map(|n| Frame(100 + 7 * n)).collect();
        let found = counts(&even);
        assert_eq!((found.cold, found.misses()), (lines(16), lines(16)));
        assert_eq!(found.accesses(), 2 * elements(16));
        // Five pages of one colour: each line is gone when its turn comes again.
        let one: Vec<Frame> = (0..5).map(|n| Frame(4 * n)).collect();
        let found = counts(&one);
        assert_eq!(
            (found.cold, found.conflict, found.capacity),
            (lines(5), lines(5), 0)
        );
        // More than fits, evenly: nobody is to blame.
        let many: Vec<Frame> = (0..20).map(Frame).collect();
        let found = counts(&many);
        assert_eq!((found.capacity, found.conflict), (lines(20), 0));
    }

    #[test]
    fn made_up_frames_follow_the_strategy() {
        let geometry = geometry();
        let range = AddrRange::new(VirtAddr(0x7000_0000), Bytes(64 << 10));
        let crowd_of = |allocation| {
            let frames = made_up(range, allocation, &geometry.colours).unwrap();
            assert_eq!(frames.len(), 16);
            crowd(&frames, &geometry.colours)
        };
        for allocation in [Allocation::Colour, Allocation::BinHop, Allocation::Modulo] {
            assert_eq!(crowd_of(allocation), 4, "{allocation:?}");
        }
        assert!(crowd_of(Allocation::Default) >= 4);
    }

    #[test]
    fn what_fits_misses_once_under_page_colouring_and_twice_the_size_more() {
        let geometry = geometry();
        for kernel in [
            Kernel::Array,
            Kernel::Fft,
            Kernel::Lu,
            Kernel::Sor,
            Kernel::Sparse,
        ] {
            for size in Size::ALL {
                let bytes = kernel.bytes(size.of(geometry.size_bytes));
                let len = bytes.0.next_multiple_of(BASE_PAGE) as usize;
                let mut block = Block::map(len).unwrap();
                let first = VirtAddr(block.address() as u64);
                let range = AddrRange::new(first, Bytes(len as u64));
                let frames = made_up(range, Allocation::Colour, &geometry.colours).unwrap();
                let mut data = kernel.lay_out(&mut block);
                let trace = Trace::new(&geometry.cache);
                let mut model = ToModel {
                    trace,
                    first,
                    frames: &frames,
                };
                (0..3).for_each(|_| data.pass(&mut model));
                let found = model.trace.take_counts();
                assert!(found.cold <= bytes.0.div_ceil(64), "{kernel:?} {found:?}");
                let fits = size != Size::Double;
                assert_eq!(
                    found.misses() == found.cold,
                    fits,
                    "{kernel:?} {size:?} {found:?}"
                );
            }
        }
    }
}
