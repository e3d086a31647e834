//! The strategies of paper 002 (sections 2.2 and 3): page colouring, bin hopping,
//! modulo and exact, and the one that takes what comes.
//!
//! All but the last two decide by colour alone, so that they find their frame in a block
//! without looking at each.

use std::collections::BTreeMap;

use super::colour::{Colour, Colours};
use super::record::Record;
use super::strategy::{Block, Request, Strategy, Wanted};
use crate::units::{Frame, VirtAddr};

/// The first frame of the first block: what an allocator does that knows no caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FirstFree;

/// Page colouring: a page gets the colour that its own number ends in, so that pages
/// that lie close together do not compete.
#[derive(Clone, Debug)]
pub struct PageColouring {
    colours: Colours,
    slew: u32,
}

/// Bin hopping: a page gets the colour after the last one used, so that pages that are
/// first touched one after the other do not compete.
#[derive(Clone, Debug)]
pub struct BinHopping {
    colours: Colours,
    per: Per,
    /// The colour of the next page, for all threads or for each.
    next: BTreeMap<u32, Colour>,
}

/// Whose last colour bin hopping goes on from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Per {
    /// That of the process.
    #[default]
    Process,
    /// That of the thread that touches the page.
    Thread,
}

/// Modulo: a colour is given for each page.
#[derive(Clone, Debug)]
pub struct Modulo {
    colours: Colours,
    given: Given,
}

/// How the colours are given.
#[derive(Clone, Debug)]
enum Given {
    /// By the page's number, modulo the length of the list.
    Cycle(Vec<Colour>),
    /// By the frame that the page had once.
    Recorded(Record),
}

/// Exact: a page gets the frame that it had once, and a page that is not recorded any.
#[derive(Clone, Debug)]
pub struct Exact {
    record: Record,
}

impl PageColouring {
    /// The strategy for one process. `slew`, a number of pages, moves the colours of
    /// its addresses on: with a number of its own for each process, pages at the same
    /// address in several processes do not compete. 0 moves nothing.
    #[must_use]
    pub fn new(colours: &Colours, slew: u32) -> PageColouring {
        PageColouring {
            colours: colours.clone(),
            slew,
        }
    }

    /// The lowest bits of the page's number: the special case of [`Modulo`] in which
    /// all colours are listed in their order.
    fn colour(&self, request: &Request) -> Colour {
        let number = request.page_number().wrapping_add(u64::from(self.slew));
        // The number of colours is a power of two.
        Colour(number as u32 & (self.colours.count() - 1))
    }
}

impl BinHopping {
    /// The strategy for one process, which begins with colour 0. With a counter for
    /// each thread, the n-th thread begins with colour n, so that many threads with few
    /// pages do not crowd the first colours.
    #[must_use]
    pub fn new(colours: &Colours, per: Per) -> BinHopping {
        BinHopping {
            colours: colours.clone(),
            per,
            next: BTreeMap::new(),
        }
    }

    fn counter(&self, request: &Request) -> u32 {
        match self.per {
            Per::Process => 0,
            Per::Thread => request.thread,
        }
    }

    fn colour(&self, request: &Request) -> Colour {
        let next = self.next.get(&self.counter(request));
        next.copied()
            .unwrap_or_else(|| self.wrapped(self.next.len() as u32))
    }

    /// A colour, from a number that may be too large.
    fn wrapped(&self, number: u32) -> Colour {
        Colour(number % self.colours.count())
    }
}

impl Modulo {
    /// The n-th colour of the list for pages whose number is n modulo its length. With
    /// an empty list, pages get any frame.
    #[must_use]
    pub fn cycle(colours: &Colours, list: Vec<Colour>) -> Modulo {
        Modulo {
            colours: colours.clone(),
            given: Given::Cycle(list),
        }
    }

    /// The colours that pages had once; those that are not recorded get any frame.
    #[must_use]
    pub fn recorded(colours: &Colours, record: Record) -> Modulo {
        Modulo {
            colours: colours.clone(),
            given: Given::Recorded(record),
        }
    }

    fn colour(&self, request: &Request) -> Option<Colour> {
        match &self.given {
            Given::Cycle(list) => {
                let place = request.page_number().checked_rem(list.len() as u64)?;
                list.get(place as usize).copied()
            }
            Given::Recorded(record) => record
                .frame(request.page)
                .map(|frame| self.colours.of(frame)),
        }
    }
}

impl Exact {
    /// The strategy for what is recorded.
    #[must_use]
    pub fn new(record: Record) -> Exact {
        Exact { record }
    }

    fn frame(&self, page: VirtAddr) -> Option<Frame> {
        self.record.frame(page)
    }
}

impl Strategy for FirstFree {
    fn choose(&self, block: Block, _: &Request) -> Option<Frame> {
        Some(block.first)
    }

    fn note(&mut self, _: Frame, _: &Request) {}

    fn sequence(&self, _: &Request) -> Option<u32> {
        None
    }
}

impl Strategy for PageColouring {
    fn choose(&self, block: Block, request: &Request) -> Option<Frame> {
        self.colours.first_in(block, self.colour(request))
    }

    fn wanted(&self, request: &Request) -> Wanted {
        Wanted::Colour(self.colour(request))
    }

    fn note(&mut self, _: Frame, _: &Request) {}

    fn sequence(&self, _: &Request) -> Option<u32> {
        None
    }
}

impl Strategy for BinHopping {
    fn choose(&self, block: Block, request: &Request) -> Option<Frame> {
        self.colours.first_in(block, self.colour(request))
    }

    fn wanted(&self, request: &Request) -> Wanted {
        Wanted::Colour(self.colour(request))
    }

    fn note(&mut self, frame: Frame, request: &Request) {
        let next = self.wrapped(self.colours.of(frame).0 + 1);
        self.next.insert(self.counter(request), next);
    }

    fn take_back(&mut self, first: Frame, request: &Request) {
        let colour = self.colours.of(first);
        self.next.insert(self.counter(request), colour);
    }

    fn sequence(&self, request: &Request) -> Option<u32> {
        Some(self.counter(request))
    }
}

impl Strategy for Modulo {
    fn choose(&self, block: Block, request: &Request) -> Option<Frame> {
        match self.colour(request) {
            Some(colour) => self.colours.first_in(block, colour),
            None => Some(block.first),
        }
    }

    fn wanted(&self, request: &Request) -> Wanted {
        self.colour(request).map_or(Wanted::Unknown, Wanted::Colour)
    }

    fn note(&mut self, _: Frame, _: &Request) {}

    fn sequence(&self, _: &Request) -> Option<u32> {
        None
    }
}

impl Strategy for Exact {
    fn choose(&self, block: Block, request: &Request) -> Option<Frame> {
        let frame = self.frame(request.page).unwrap_or(block.first);
        block.contains(frame).then_some(frame)
    }

    fn wanted(&self, request: &Request) -> Wanted {
        self.frame(request.page)
            .map_or(Wanted::Unknown, Wanted::Frame)
    }

    fn note(&mut self, _: Frame, _: &Request) {}

    fn sequence(&self, _: &Request) -> Option<u32> {
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, prop_assert_eq};
    use proptest::proptest;

    use super::*;
    use crate::frames::buddy::FramePool;
    use crate::frames::record::RecordedRun;
    use crate::units::BASE_PAGE;

    fn request(page: u64, thread: u32) -> Request {
        Request {
            page: VirtAddr(page * BASE_PAGE),
            thread,
        }
    }

    fn pool(colours: &Colours, first: u64, order: u32) -> FramePool {
        let mut pool = FramePool::new(colours);
        let first = Frame(first);
        pool.add(Block { first, order });
        pool
    }

    /// The colours of pages one after the other, all of which get what is wanted.
    fn sequence(strategy: &mut dyn Strategy, requests: &[(u64, u32)]) -> Vec<u32> {
        let colours = Colours::plain(16 * BASE_PAGE);
        let mut pool = pool(&colours, 512, 9);
        let placed = requests.iter().map(|(page, thread)| {
            let placed = pool.allocate(strategy, &request(*page, *thread)).unwrap();
            assert!(placed.accepted);
            colours.of(placed.frame).0
        });
        placed.collect()
    }

    fn record() -> Record {
        let mut record = Record::default();
        for (page, pages, frame) in [(16, 2, 523), (40, 1, 3)] {
            let run = RecordedRun {
                page: VirtAddr(page * BASE_PAGE),
                pages,
                frame: Frame(frame),
            };
            record.insert(run).unwrap();
        }
        record
    }

    #[test]
    fn page_colouring_takes_the_colour_of_the_address() {
        let colours = Colours::plain(16 * BASE_PAGE);
        let pages = [(0x1234, 1), (0x1235, 2), (0x124f, 1), (3, 1)];
        let mut plain = PageColouring::new(&colours, 0);
        assert_eq!(sequence(&mut plain, &pages), [4, 5, 15, 3]);
        let mut hashed = PageColouring::new(&colours, 18);
        assert_eq!(sequence(&mut hashed, &pages), [6, 7, 1, 5]);
        assert_eq!(plain.sequence(&request(3, 1)), None);
    }

    #[test]
    fn bin_hopping_goes_on_from_the_last_colour() {
        let colours = Colours::plain(16 * BASE_PAGE);
        let touches = [(9, 1), (900, 2), (3, 1), (70, 3), (4, 2)];
        let mut process = BinHopping::new(&colours, Per::Process);
        assert_eq!(sequence(&mut process, &touches), [0, 1, 2, 3, 4]);
        let mut thread = BinHopping::new(&colours, Per::Thread);
        assert_eq!(sequence(&mut thread, &touches), [0, 1, 1, 2, 2]);
        assert_eq!(thread.sequence(&request(3, 7)), Some(7));
        assert_eq!(
            process.sequence(&request(3, 7)),
            process.sequence(&request(4, 8))
        );
        process.note(Frame(31), &request(1, 1));
        assert_eq!(process.wanted(&request(1, 1)), Wanted::Colour(Colour(0)));
    }

    #[test]
    fn bin_hopping_leaves_out_no_colour_that_was_not_given() {
        let colours = Colours::plain(16 * BASE_PAGE);
        let mut process = BinHopping::new(&colours, Per::Process);
        let mut pool = pool(&colours, 512, 9);
        let run = pool.allocate_run(&mut process, &request(1, 1), 8).unwrap();
        assert_eq!(run.count, 8);
        process.take_back(Frame(run.first.0 + 3), &request(4, 1));
        assert_eq!(process.wanted(&request(4, 1)), Wanted::Colour(Colour(3)));
    }

    #[test]
    fn modulo_takes_the_colours_that_are_given() {
        let colours = Colours::plain(16 * BASE_PAGE);
        let list = [0, 2, 5].map(Colour).to_vec();
        let mut cycle = Modulo::cycle(&colours, list);
        let pages = [(0, 1), (1, 1), (2, 1), (3, 1), (302, 1)];
        assert_eq!(sequence(&mut cycle, &pages), [0, 2, 5, 0, 5]);
        let mut recorded = Modulo::recorded(&colours, record());
        assert_eq!(
            sequence(&mut recorded, &[(16, 1), (17, 1), (40, 1)]),
            [11, 12, 3]
        );
        assert_eq!(recorded.wanted(&request(41, 1)), Wanted::Unknown);
        assert_eq!(sequence(&mut recorded, &[(41, 1)]), [0]);
        assert_eq!(
            sequence(&mut Modulo::cycle(&colours, Vec::new()), &[(5, 1)]),
            [0]
        );
    }

    #[test]
    fn exact_takes_the_recorded_frame_or_any() {
        let mut exact = Exact::new(record());
        let mut pool = pool(&Colours::default(), 512, 9);
        let mut frame = |page: u64| {
            let placed = pool.allocate(&mut exact, &request(page, 1)).unwrap();
            (placed.frame.0, placed.accepted)
        };
        assert_eq!(frame(17), (524, true));
        assert_eq!(frame(16), (523, true));
        assert_eq!(frame(17), (522, false));
        // Not recorded, and recorded with a frame that the pool does not have.
        assert!(frame(99).1);
        assert!(!frame(40).1);
    }

    #[test]
    fn neighbours_are_served_at_once() {
        let colours = Colours::plain(16 * BASE_PAGE);
        let run = |strategy: &mut dyn Strategy| {
            let mut pool = pool(&colours, 512, 9);
            let run = pool.allocate_run(strategy, &request(16, 1), 100).unwrap();
            assert!(run.accepted);
            (run.first.0, run.count)
        };
        assert_eq!(run(&mut FirstFree), (512, 100));
        assert_eq!(run(&mut BinHopping::new(&colours, Per::Thread)), (512, 100));
        let list = [2, 3, 4, 5, 6].map(Colour).to_vec();
        assert_eq!(run(&mut Modulo::cycle(&colours, list)), (515, 4));
        // The third page is not recorded, so that it may have the next frame, too.
        assert_eq!(run(&mut Exact::new(record())), (523, 24));
    }

    proptest! {
        /// Neighbouring pages get neighbouring frames, whatever the slew.
        #[test]
        fn page_colouring_makes_long_runs(slew: u32, page in 0u64..1 << 35) {
            let colours: Colours = "12,13,14,15".parse().unwrap();
            let mut pool = pool(&colours, 0, 12);
            let mut strategy = PageColouring::new(&colours, slew);
            let run = pool.allocate_run(&mut strategy, &request(page, 1), 512).unwrap();
            prop_assert!(run.accepted);
            prop_assert_eq!(run.count, 512);
        }

        /// As the paper says.
        #[test]
        fn page_colouring_is_modulo_with_all_colours(
            page in 0u64..1 << 35, first in 0u64..1 << 20, order in 0u32..9,
        ) {
            let colours: Colours = "12^17,13^18,14".parse().unwrap();
            let all = (0..colours.count()).map(Colour).collect();
            let modulo = Modulo::cycle(&colours, all);
            let colouring = PageColouring::new(&colours, 0);
            let request = request(page, 1);
            let block = Block { first: Frame(first << order), order };
            prop_assert_eq!(colouring.choose(block, &request), modulo.choose(block, &request));
            prop_assert_eq!(colouring.wanted(&request), modulo.wanted(&request));
        }

        /// Against the naive idea of each: which colour the pages of a sequence of
        /// touches get, where all colours are to be had.
        #[test]
        fn each_does_what_its_paper_says(
            touches in proptest::collection::vec((0u64..1 << 20, 0u32..4), 1..200),
            slew in 0u32..64,
            list in proptest::collection::vec(0u32..16, 1..6),
            recorded in proptest::collection::btree_map(0u64..1 << 20, 512u64..4096, 1..20),
        ) {
            let colours = Colours::plain(16 * BASE_PAGE);
            let mut record = Record::default();
            for (page, frame) in &recorded {
                let page = VirtAddr(page * BASE_PAGE);
                let run = RecordedRun { page, pages: 1, frame: Frame(*frame) };
                record.insert(run).unwrap();
            }
            let got = |strategy: &mut dyn Strategy, request: &Request| {
                // A folio for each touch: every colour is free.
                let placed = pool(&colours, 512, 9).allocate(strategy, request).unwrap();
                colours.of(placed.frame).0
            };
            let cycle = list.iter().map(|colour| Colour(*colour)).collect();
            let mut colouring = PageColouring::new(&colours, slew);
            let mut process = BinHopping::new(&colours, Per::Process);
            let mut thread = BinHopping::new(&colours, Per::Thread);
            let mut modulo = Modulo::cycle(&colours, cycle);
            let mut again = Modulo::recorded(&colours, record);
            let mut threads: Vec<(u32, u32)> = Vec::new();
            for (n, (page, id)) in (0u32..).zip(touches) {
                let request = request(page, id);
                let own = (page + u64::from(slew)) % 16;
                prop_assert_eq!(u64::from(got(&mut colouring, &request)), own);
                prop_assert_eq!(got(&mut process, &request), n % 16);
                if threads.iter().all(|(known, _)| *known != id) {
                    threads.push((id, threads.len() as u32));
                }
                let next = threads.iter_mut().find(|(known, _)| *known == id).unwrap();
                prop_assert_eq!(got(&mut thread, &request), next.1 % 16);
                next.1 += 1;
                let listed = list[(page % list.len() as u64) as usize];
                prop_assert_eq!(got(&mut modulo, &request), listed);
                let colour = got(&mut again, &request);
                let wanted = recorded.get(&page).map(|frame| (frame % 16) as u32);
                prop_assert!(wanted.is_none_or(|wanted| wanted == colour));
            }
        }

        /// A page gets its recorded frame if that is free, and another one if not.
        #[test]
        fn exact_takes_what_is_free(
            wanted in proptest::collection::vec(512u64..1536, 1..80),
            taken in proptest::collection::btree_set(512u64..1024, 0..300),
        ) {
            let colours = Colours::plain(16 * BASE_PAGE);
            let mut record = Record::default();
            for (page, frame) in (1..).zip(&wanted) {
                let page = VirtAddr(page * BASE_PAGE);
                let run = RecordedRun { page, pages: 1, frame: Frame(*frame) };
                record.insert(run).unwrap();
            }
            let mut pool = pool(&colours, 512, 9);
            let mut free: std::collections::BTreeSet<u64> = (512..1024).collect();
            for frame in taken {
                prop_assert!(pool.take(Frame(frame)));
                free.remove(&frame);
            }
            let mut exact = Exact::new(record);
            for (page, frame) in (1..).zip(&wanted) {
                let Some(placed) = pool.allocate(&mut exact, &request(page, 1)) else {
                    prop_assert!(free.is_empty());
                    break;
                };
                prop_assert_eq!(placed.accepted, free.contains(frame));
                prop_assert_eq!(placed.frame.0 == *frame, free.contains(frame));
                prop_assert!(free.remove(&placed.frame.0));
            }
        }
    }
}
