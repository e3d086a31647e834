//! The pool against a set of free frames.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Instant;

use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, any, prop_assert, prop_assert_eq, prop_oneof};
use proptest::proptest;
use proptest::strategy::Strategy as Generator;
use proptest::test_runner::TestCaseError;

use super::*;
use crate::frames::colour::Colour;
use crate::frames::strategies::{FirstFree, PageColouring};
use crate::units::{BASE_PAGE, VirtAddr};

/// The frames of the tests: three of the largest blocks and a bit.
const FRAMES: u64 = 3 * 512 + 70;

/// Accepts frames that leave a rest, for each page the next one.
struct Rest {
    colours: Colours,
    modulus: u64,
    rest: u64,
    /// Whether it says what it wants, which takes a modulus of 8.
    tells: bool,
    noted: Vec<(Frame, u64)>,
}

impl Rest {
    fn accepts(&self, frame: u64, request: &Request) -> bool {
        frame % self.modulus == (request.page_number() + self.rest) % self.modulus
    }
}

impl Strategy for Rest {
    fn choose(&self, block: Block, request: &Request) -> Option<Frame> {
        let mut frames = block.first.0..block.first.0 + block.frames();
        frames.find(|f| self.accepts(*f, request)).map(Frame)
    }

    fn wanted(&self, request: &Request) -> Wanted {
        if !self.tells {
            return Wanted::Unknown;
        }
        let frame = (request.page_number() + self.rest) % self.modulus;
        Wanted::Colour(self.colours.of(Frame(frame)))
    }

    fn note(&mut self, frame: Frame, request: &Request) {
        self.noted.push((frame, request.page_number()));
    }

    fn sequence(&self, _: &Request) -> Option<u32> {
        None
    }
}

#[derive(Clone, Debug)]
enum Step {
    Add(u64, u32),
    Run { modulus: u64, rest: u64, pages: u64 },
    Take(u64),
    TakeBlock(u32),
}

fn step() -> impl Generator<Value = Step> {
    let modulus = prop_oneof![Just(1u64), Just(8), 1u64..40, 500u64..2000];
    let pages = prop_oneof![Just(1u64), 1u64..600];
    prop_oneof![
        4 => (0..FRAMES, 0u32..=9).prop_map(|(at, order)| Step::Add(at >> order << order, order)),
        4 => (modulus, 0u64..2000, pages)
            .prop_map(|(modulus, rest, pages)| Step::Run { modulus, rest, pages }),
        2 => (0..FRAMES).prop_map(Step::Take),
        1 => (0u32..=10).prop_map(Step::TakeBlock),
    ]
}

fn frames_of(block: Block) -> impl Iterator<Item = u64> {
    block.first.0..block.first.0 + block.frames()
}

fn request(page: u64) -> Request {
    Request {
        page: VirtAddr(page * BASE_PAGE),
        thread: 1,
    }
}

/// The blocks hold just the free frames, and no two of them are buddies.
fn check(pool: &FramePool, free: &BTreeSet<u64>) -> Result<(), TestCaseError> {
    let blocks: Vec<Block> = pool.blocks().collect();
    prop_assert!(blocks.is_sorted_by_key(|block| (block.order, block.first)));
    let held: Vec<u64> = blocks.iter().copied().flat_map(frames_of).collect();
    prop_assert_eq!(held.len(), free.len());
    prop_assert_eq!(&held.into_iter().collect::<BTreeSet<u64>>(), free);
    prop_assert_eq!(pool.free_frames(), free.len() as u64);
    prop_assert_eq!(pool.largest_order(), blocks.last().map(|block| block.order));
    for block in &blocks {
        prop_assert!(block.first.0.is_multiple_of(block.frames()));
        let buddy = Block {
            first: Frame(block.first.0 ^ block.frames()),
            ..*block
        };
        prop_assert!(block.order == MAX_ORDER || !blocks.contains(&buddy));
    }
    if let Some(index) = &pool.by_colour {
        let indexed = (0..8).flat_map(|colour| index.with(Colour(colour)));
        prop_assert_eq!(
            indexed.collect::<BTreeSet<Block>>(),
            blocks.into_iter().collect()
        );
    }
    Ok(())
}

/// What a run may be: the first frame accepted if any is, and as long as it can be.
fn check_run(
    run: Option<Run>,
    strategy: &Rest,
    free: &BTreeSet<u64>,
    pages: u64,
) -> Result<(), TestCaseError> {
    let Some(run) = run else {
        prop_assert!(free.is_empty());
        return Ok(());
    };
    let accepts = |n: u64| strategy.accepts(run.first.0 + n, &request(7 + n));
    prop_assert!((1..=pages).contains(&run.count));
    prop_assert!((0..run.count).all(|n| free.contains(&(run.first.0 + n))));
    prop_assert!((1..run.count).all(accepts));
    prop_assert_eq!(run.accepted, accepts(0));
    prop_assert_eq!(
        run.accepted,
        free.iter().any(|f| strategy.accepts(*f, &request(7)))
    );
    let more = free.contains(&(run.first.0 + run.count)) && accepts(run.count);
    prop_assert!(run.count == pages || !more);
    let noted = (0..run.count).map(|n| (Frame(run.first.0 + n), 7 + n));
    prop_assert_eq!(&strategy.noted, &noted.collect::<Vec<_>>());
    Ok(())
}

/// The run that is given only where the first frame is accepted is the same one;
/// where none is, nothing happens.
fn check_accepted(
    mut pool: FramePool,
    strategy: &mut Rest,
    pages: u64,
    run: Option<Run>,
) -> Result<(), TestCaseError> {
    let before = pool.free_frames();
    let accepted = pool.allocate_accepted(strategy, &request(7), pages);
    prop_assert_eq!(accepted, run.filter(|run| run.accepted));
    let given = accepted.map_or(0, |run| run.count);
    prop_assert_eq!(pool.free_frames(), before - given);
    prop_assert_eq!(strategy.noted.len() as u64, given);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn agrees_with_a_set_of_free_frames(
        steps in vec(step(), 1..60),
        knows_colours in any::<bool>(),
    ) {
        let colours = Colours::plain(8 * BASE_PAGE);
        let mut pool = if knows_colours { FramePool::new(&colours) } else { FramePool::default() };
        let mut free: BTreeSet<u64> = BTreeSet::new();
        for step in steps {
            match step {
                Step::Add(at, order) => {
                    let block = Block { first: Frame(at), order };
                    if frames_of(block).all(|frame| !free.contains(&frame)) {
                        pool.add(block);
                        free.extend(frames_of(block));
                    }
                }
                Step::Run { modulus, rest, pages } => {
                    let strategy = |tells| Rest {
                        colours: colours.clone(), modulus, rest, tells, noted: Vec::new(),
                    };
                    let mut told = strategy(modulus == 8);
                    let same = pool.clone().allocate_run(&mut told, &request(7), pages);
                    check_accepted(pool.clone(), &mut strategy(false), pages, same)?;
                    let mut asked = strategy(false);
                    let run = pool.allocate_run(&mut asked, &request(7), pages);
                    prop_assert_eq!(run, same);
                    check_run(run, &asked, &free, pages)?;
                    if let Some(run) = run {
                        free.retain(|f| !(run.first.0..run.first.0 + run.count).contains(f));
                    }
                }
                Step::Take(frame) => {
                    prop_assert_eq!(pool.has(Frame(frame)), free.contains(&frame));
                    prop_assert_eq!(pool.take(Frame(frame)), free.remove(&frame));
                }
                Step::TakeBlock(order) => {
                    let there = pool.blocks().any(|block| block.order == order);
                    let block = pool.take_block(order);
                    prop_assert_eq!(block.map(|block| block.order), there.then_some(order));
                    let taken = block.into_iter().flat_map(frames_of);
                    taken.for_each(|frame| { free.remove(&frame); });
                }
            }
            check(&pool, &free)?;
        }
    }
}

#[test]
fn a_larger_block_comes_in_parts() {
    let mut pool = FramePool::default();
    pool.add(Block {
        first: Frame(0),
        order: 11,
    });
    assert_eq!(pool.free_frames(), 2048);
    assert_eq!(pool.blocks().count(), 4);
    assert_eq!(pool.largest_order(), Some(MAX_ORDER));
    assert_eq!(pool.take_block(11), None);
    assert_eq!(
        pool.take_block(9).map(|block| block.first),
        Some(Frame(1536))
    );
}

#[test]
fn an_empty_pool_has_nothing() {
    let mut pool = FramePool::default();
    assert_eq!(pool.allocate(&mut FirstFree, &request(1)), None);
    assert_eq!(pool.largest_order(), None);
    assert!(!pool.take(Frame(0)));
    pool.add(Block::single(Frame(9)));
    assert_eq!(pool.allocate_run(&mut FirstFree, &request(1), 0), None);
    let placed = Placed {
        frame: Frame(9),
        accepted: true,
    };
    assert_eq!(pool.allocate(&mut FirstFree, &request(1)), Some(placed));
}

/// In a release build it is left out instead.
#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "in the pool already"))]
fn a_frame_is_not_added_twice() {
    let mut pool = FramePool::default();
    pool.add(Block::single(Frame(9)));
    pool.add(Block {
        first: Frame(8),
        order: 2,
    });
    assert_eq!(pool.free_frames(), 1);
}

/// A strategy that answers with what it was not offered.
struct Liar;

impl Strategy for Liar {
    fn choose(&self, block: Block, _: &Request) -> Option<Frame> {
        Some(Frame(block.first.0 + block.frames()))
    }

    fn note(&mut self, _: Frame, _: &Request) {}

    fn sequence(&self, _: &Request) -> Option<u32> {
        None
    }
}

#[test]
fn a_frame_that_was_not_offered_is_not_accepted() {
    let mut pool = FramePool::default();
    pool.add(Block {
        first: Frame(8),
        order: 3,
    });
    let run = pool.allocate_run(&mut Liar, &request(1), 4);
    let only = Run {
        first: Frame(8),
        count: 1,
        accepted: false,
    };
    assert_eq!(run, Some(only));
    assert_eq!(pool.free_frames(), 7);
}

/// A strategy that says whatever comes, about what it wants and about what it accepts.
#[derive(Debug)]
struct Wild {
    answers: Vec<Option<u64>>,
    wanted: Vec<Wanted>,
    asked: Cell<usize>,
}

impl Wild {
    fn next<T: Copy>(&self, list: &[T]) -> T {
        self.asked.set(self.asked.get() + 1);
        list[self.asked.get() % list.len()]
    }
}

impl Strategy for Wild {
    fn choose(&self, _: Block, _: &Request) -> Option<Frame> {
        self.next(&self.answers).map(Frame)
    }

    fn wanted(&self, _: &Request) -> Wanted {
        self.next(&self.wanted)
    }

    fn note(&mut self, _: Frame, _: &Request) {}

    fn sequence(&self, _: &Request) -> Option<u32> {
        None
    }
}

fn wild() -> impl Generator<Value = Wild> {
    let frame = || prop_oneof![4 => 0..FRAMES, 1 => any::<u64>(), 1 => Just(u64::MAX)];
    let wanted = prop_oneof![
        Just(Wanted::Unknown),
        (0u32..20).prop_map(|colour| Wanted::Colour(Colour(colour))),
        any::<u32>().prop_map(|colour| Wanted::Colour(Colour(colour))),
        frame().prop_map(|frame| Wanted::Frame(Frame(frame))),
    ];
    let answers = vec(proptest::option::weighted(0.9, frame()), 1..40);
    (answers, vec(wanted, 1..5)).prop_map(|(answers, wanted)| Wild {
        answers,
        wanted,
        asked: Cell::new(0),
    })
}

proptest! {
    /// Plug-ins are not trusted: the pool keeps its frames together whatever they say.
    #[test]
    fn no_strategy_can_break_the_pool(
        mut strategy in wild(),
        runs in vec((0u64..1 << 30, 1u64..600), 1..60),
    ) {
        let mut pool = FramePool::new(&Colours::plain(8 * BASE_PAGE));
        let mut free: BTreeSet<u64> = (0..FRAMES).collect();
        pieces(Frame(0), Frame(FRAMES)).for_each(|block| pool.add(block));
        for (page, pages) in runs {
            let before = pool.free_frames();
            let accepted = pool.clone().allocate_accepted(&mut strategy, &request(page), pages);
            prop_assert!(accepted.is_none_or(|run| run.count <= before));
            match pool.allocate_run(&mut strategy, &request(page), pages) {
                None => prop_assert!(free.is_empty()),
                Some(run) => {
                    prop_assert!((1..=pages).contains(&run.count));
                    let taken = run.first.0..run.first.0 + run.count;
                    prop_assert!(taken.clone().all(|frame| free.remove(&frame)));
                }
            }
            check(&pool, &free)?;
        }
    }
}

/// The times, for whoever wants to know them: `cargo test --release -- --ignored
/// --nocapture times`.
#[test]
#[ignore = "measures, and decides nothing"]
fn times() {
    let colours = Colours::plain(16 * BASE_PAGE);
    let mut colouring = PageColouring::new(&colours, 0);
    let mut pool = FramePool::new(&colours);
    (0..512).for_each(|n| {
        pool.add(Block {
            first: Frame(n << 9),
            order: 9,
        });
    });
    let start = Instant::now();
    for n in 0..256 {
        let run = pool.allocate_run(&mut colouring, &request(n << 9), 512);
        assert_eq!(run.map(|run| run.count), Some(512));
    }
    println!("a run of 512: {:?}", start.elapsed() / 256);
    let start = Instant::now();
    for _ in 0..4096 {
        let placed = pool.allocate(&mut colouring, &request(3));
        assert!(placed.is_some_and(|placed| placed.accepted));
    }
    println!("one of a colour: {:?}", start.elapsed() / 4096);
    let mut unaided = pool.clone();
    unaided.by_colour = None;
    let start = Instant::now();
    for _ in 0..100 {
        assert!(unaided.allocate(&mut colouring, &request(3)).is_some());
    }
    let blocks = unaided.blocks().count();
    println!(
        "the same by asking, {blocks} blocks: {:?}",
        start.elapsed() / 100
    );
}
