//! Frames for the model where the kernel hides those of a process: what a strategy
//! gives out of a stock of folios, and what comes of taking any.
//!
//! A folio has 2 MiB, and nobody knows where the next one lies: so it is with
//! `quire run --frames`. The kernel's own choice is taken to be random, as on a machine
//! that has run for long.

use std::collections::BTreeSet;

use crate::frames::buddy::{FramePool, MAX_ORDER};
use crate::frames::colour::Colours;
use crate::frames::strategy::{Block, Request, Strategy};
use crate::units::{Frame, VirtAddr};

/// Folios of the machine that is imagined: 16 GiB.
const FOLIOS: u64 = 1 << 13;
/// So many folios are looked through for a frame that a strategy accepts, at most.
const TRIES: u64 = 64;

/// Where frames come from. The same seed gives the same frames.
#[derive(Clone, Debug)]
pub struct Machine {
    random: u64,
    /// Folios that were given out.
    taken: BTreeSet<u64>,
}

impl Machine {
    /// A machine of which nothing is taken.
    #[must_use]
    pub const fn new(seed: u64) -> Machine {
        Machine {
            random: seed,
            taken: BTreeSet::new(),
        }
    }

    /// The frames of `pages` that one thread touches in this order, under a strategy.
    /// `None` when the machine is full.
    pub fn by_strategy(
        &mut self,
        strategy: &mut dyn Strategy,
        colours: &Colours,
        pages: &[VirtAddr],
    ) -> Option<Vec<Frame>> {
        let mut stock = FramePool::new(colours);
        let mut frame_for = |page: &VirtAddr| {
            let request = Request {
                page: *page,
                thread: 1,
            };
            for _ in 0..TRIES {
                if let Some(run) = stock.allocate_accepted(strategy, &request, 1) {
                    return Some(run.first);
                }
                stock.add(self.folio()?);
            }
            let placed = stock.allocate(strategy, &request)?;
            Some(placed.frame)
        };
        pages.iter().map(&mut frame_for).collect()
    }

    /// Different frames for so many pages, at random. `None` when the machine is full.
    pub fn at_random(&mut self, pages: u64) -> Option<Vec<Frame>> {
        let all = FOLIOS << MAX_ORDER;
        let mut used = BTreeSet::new();
        let mut frame = || {
            (pages <= all / 2).then(|| {
                loop {
                    let frame = Frame(self.below(all));
                    if used.insert(frame) {
                        break frame;
                    }
                }
            })
        };
        (0..pages).map(|_| frame()).collect()
    }

    /// A folio that was not given out yet.
    fn folio(&mut self) -> Option<Block> {
        if self.taken.len() as u64 == FOLIOS {
            return None;
        }
        let mut folio = self.below(FOLIOS);
        while !self.taken.insert(folio) {
            folio = (folio + 1) % FOLIOS;
        }
        Some(Block {
            first: Frame(folio << MAX_ORDER),
            order: MAX_ORDER,
        })
    }

    /// A number below `bound`, a power of two: the upper half of the product of two
    /// words, one of them from a sequence of full period.
    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed ^ mixed >> 32) & (bound - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::cache::tests::cache;
    use super::super::super::cache::{Cache, Index, Kind};
    use super::super::super::spec::{self, StrategySpec};
    use super::super::trace::Trace;
    use super::super::{Counts, Model};
    use super::*;
    use crate::units::{BASE_PAGE, PageCount};

    /// Of several caches: a Xeon's, one of paper 002, and one with a known hash.
    fn caches() -> Vec<Cache> {
        let hash = Index::Given("12^16,13^17,14^18,15^19^22".parse().unwrap());
        vec![
            cache(2, Kind::Unified, 1024, 16, Index::Plain),
            cache(2, Kind::Unified, 1024, 8, Index::Plain),
            cache(3, Kind::Unified, 1024, 12, hash),
        ]
    }

    fn pages_of(cache: &Cache) -> u64 {
        cache.shape.size().0 / BASE_PAGE
    }

    /// Neighbouring pages from a place that is aligned to nothing.
    fn contiguous(pages: u64) -> Vec<VirtAddr> {
        let start = VirtAddr(0x7f12_3456_7000);
        let page = |n| start + PageCount(n).to_bytes();
        (0..pages).map(page).collect()
    }

    /// What reading an array in these frames three times more comes to.
    fn reread(cache: &Cache, frames: &[Frame]) -> Counts {
        let mut trace = Trace::new(cache);
        let mut read = || {
            for frame in frames {
                let lines = (0..BASE_PAGE).step_by(cache.shape.line().0 as usize);
                lines.for_each(|offset| trace.access(*frame, offset));
            }
            trace.take_counts()
        };
        read();
        (0..3).fold(Counts::default(), |sum, _| {
            let counts = read();
            Counts {
                hits: sum.hits + counts.hits,
                cold: sum.cold + counts.cold,
                capacity: sum.capacity + counts.capacity,
                conflict: sum.conflict + counts.conflict,
            }
        })
    }

    fn frames_under(text: &str, cache: &Cache, pages: u64, seed: u64) -> Vec<Frame> {
        let colours = cache.colours().unwrap();
        let spec: StrategySpec = text.parse().unwrap();
        let mut strategy = spec::build(&spec, &colours, None, 77).unwrap();
        let pages = contiguous(pages);
        let frames = Machine::new(seed).by_strategy(strategy.as_mut(), &colours, &pages);
        frames.unwrap()
    }

    #[test]
    fn a_contiguous_array_up_to_the_cache_has_no_conflicts_under_any_strategy() {
        for cache in caches() {
            let all = format!("modulo:0-{}", cache.colours().unwrap().count() - 1);
            let whole = pages_of(&cache);
            for text in ["colour", "colour:hashed", "binhop", "binhop:thread", &all] {
                for pages in [whole / 2, whole - 3, whole] {
                    let counts = reread(&cache, &frames_under(text, &cache, pages, 5));
                    assert_eq!(counts.misses(), 0, "{text}, {pages} pages: {counts:?}");
                    assert!(counts.hits > 0);
                }
            }
        }
    }

    #[test]
    fn it_has_some_in_frames_at_random() {
        for cache in caches() {
            for seed in 0..8 {
                let frames = Machine::new(seed).at_random(pages_of(&cache)).unwrap();
                let counts = reread(&cache, &frames);
                assert!(counts.conflict > 0, "{seed}: {counts:?}");
                assert_eq!((counts.cold, counts.capacity), (0, 0));
            }
        }
    }

    #[test]
    fn half_of_the_colours_are_not_enough_for_the_whole_cache() {
        let cache = &caches()[0];
        let frames = frames_under("modulo:0-7", cache, pages_of(cache), 1);
        assert!(reread(cache, &frames).conflict > 0);
        let frames = frames_under("modulo:0-7", cache, pages_of(cache) / 2, 1);
        assert_eq!(reread(cache, &frames).misses(), 0);
    }

    #[test]
    fn no_frame_is_given_twice() {
        let cache = &caches()[0];
        let mut given = frames_under("colour", cache, 5000, 3);
        given.sort_unstable();
        given.dedup();
        assert_eq!(given.len(), 5000);
        let mut random = Machine::new(3).at_random(5000).unwrap();
        random.sort_unstable();
        random.dedup();
        assert_eq!(random.len(), 5000);
        assert!(random.iter().any(|f| f.0 > 1 << 21) && random.iter().any(|f| f.0 < 1 << 20));
    }

    #[test]
    fn a_machine_that_is_full_says_so() {
        let mut machine = Machine::new(1);
        assert_eq!(machine.at_random((FOLIOS << MAX_ORDER) + 1), None);
        for _ in 0..FOLIOS {
            assert!(machine.folio().is_some());
        }
        assert_eq!(machine.folio(), None);
    }

    #[test]
    fn the_trace_of_a_model_is_the_model() {
        // Also where a page is larger than what a set's worth of lines covers.
        let cache = cache(2, Kind::Unified, 16, 2, Index::Plain);
        let frames = Machine::new(9).at_random(64).unwrap();
        let (mut model, mut trace) = (Model::new(&cache), Trace::new(&cache));
        for frame in frames.iter().chain(&frames) {
            for offset in (0..BASE_PAGE).step_by(8) {
                model.access(model.line(*frame, offset));
                trace.access(*frame, offset);
            }
        }
        assert_eq!(trace.take_counts(), model.take_counts());
    }
}
