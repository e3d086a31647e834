//! A model of one cache: which accesses hit, and why others miss.
//!
//! It is set-associative, replaces what was least recently used, and knows no time: no
//! prefetching, no other levels. Beside it runs a fully associative cache of the same
//! size. A miss of which only that one is free is a *conflict*: it comes from where
//! the lines lie, and another choice of frames may avoid it.
//!
//! | module | holds |
//! |---|---|
//! | [`full`] | the fully associative cache |
//! | [`trace`] | a long stream of accesses, in a fraction of the time |
//! | [`synthetic`] | frames where the kernel hides those of a process |

pub mod full;
pub mod synthetic;
pub mod trace;

use super::cache::{Cache, Index};
use super::colour::Colours;
use crate::units::{BASE_PAGE, Frame};
use full::{Found, Full};

/// A line of physical memory: its address divided by the size of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Line(pub u64);

/// Why an access missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Miss {
    /// The line was never used before.
    Cold,
    /// A fully associative cache of the same size misses, too.
    Capacity,
    /// Only the choice of the set is to blame.
    Conflict,
}

/// What an access came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The line was in the cache.
    Hit,
    /// It was not, and is now.
    Miss(Miss),
}

/// What accesses came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accesses that hit.
    pub hits: u64,
    /// First uses of lines.
    pub cold: u64,
    /// Misses for want of room.
    pub capacity: u64,
    /// Misses because of the choice of the set.
    pub conflict: u64,
}

impl Counts {
    /// All accesses that missed.
    #[must_use]
    pub const fn misses(&self) -> u64 {
        self.cold + self.capacity + self.conflict
    }

    /// All accesses.
    #[must_use]
    pub const fn accesses(&self) -> u64 {
        self.hits + self.misses()
    }

    fn count(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Hit => &mut self.hits,
            Outcome::Miss(Miss::Cold) => &mut self.cold,
            Outcome::Miss(Miss::Capacity) => &mut self.capacity,
            Outcome::Miss(Miss::Conflict) => &mut self.conflict,
        } += 1;
    }
}

/// How lines are spread over the sets.
#[derive(Clone, Debug)]
enum Spread {
    /// By the line's number, modulo the number of sets.
    Modulo,
    /// Each colour has `each` sets; inside, by the line's number.
    ByColour { colours: Colours, each: u64 },
}

/// The model.
#[derive(Clone, Debug)]
pub struct Model {
    spread: Spread,
    ways: usize,
    /// The size of a line, as a power of two.
    line_bits: u32,
    /// Each set holds at most `ways` lines, the most recently used first.
    sets: Vec<Vec<Line>>,
    full: Full,
    counts: Counts,
}

impl Model {
    /// An empty cache of this geometry.
    ///
    /// Where the user gave colour bits, frames of different colours have different
    /// sets. Any other index is taken to be plain: a hash is not known, and a virtually
    /// indexed cache is modelled as if virtual addresses were physical ones.
    #[must_use]
    pub fn new(cache: &Cache) -> Model {
        let spread = match &cache.index {
            Index::Given(colours) => Spread::ByColour {
                colours: colours.clone(),
                each: u64::from(cache.shape.sets() / colours.count()).max(1),
            },
            Index::Plain | Index::Hashed | Index::Unknown => Spread::Modulo,
        };
        Model {
            spread,
            ways: cache.shape.ways() as usize,
            line_bits: cache.shape.line().0.trailing_zeros(),
            sets: vec![Vec::new(); cache.shape.sets() as usize],
            full: Full::new(cache.shape.lines()),
            counts: Counts::default(),
        }
    }

    /// The line that holds the byte at `offset`, less than a page, in a frame.
    #[must_use]
    pub const fn line(&self, frame: Frame, offset: u64) -> Line {
        Line((frame.0 * BASE_PAGE + offset) >> self.line_bits)
    }

    /// Uses a line: looks it up, and brings it in where it is not there.
    pub fn access(&mut self, line: Line) -> Outcome {
        let found = self.full.access(line);
        let outcome = match (self.lookup(line), found) {
            (true, _) => Outcome::Hit,
            (false, Found::New) => Outcome::Miss(Miss::Cold),
            (false, Found::GivenUp) => Outcome::Miss(Miss::Capacity),
            (false, Found::Held) => Outcome::Miss(Miss::Conflict),
        };
        self.counts.count(outcome);
        outcome
    }

    /// What accesses came to since this was asked last. The lines stay.
    pub fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// Whether the line is in its set; there it is the most recently used one then.
    fn lookup(&mut self, line: Line) -> bool {
        let set = self.set_of(line);
        let set = &mut self.sets[set];
        let found = set.iter().position(|held| *held == line);
        match found {
            Some(at) => set[..=at].rotate_right(1),
            None => {
                set.truncate(self.ways - 1);
                set.insert(0, line);
            }
        }
        found.is_some()
    }

    fn set_of(&self, line: Line) -> usize {
        let sets = self.sets.len() as u64;
        let number = match &self.spread {
            Spread::Modulo => line.0,
            Spread::ByColour { colours, each } => {
                let frame = Frame((line.0 << self.line_bits) / BASE_PAGE);
                u64::from(colours.of(frame).0) * each + line.0 % each
            }
        };
        (number % sets) as usize
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::cache::tests::cache;
    use super::super::cache::{Kind, Shape};
    use super::super::colour::Colour;
    use super::*;
    use crate::units::Bytes;

    /// Numbers that look random, the same ones for the same seed.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (self.0 >> 33) % bound
        }
    }

    /// 256 KiB with 8 ways: 8 colours.
    fn second_level(index: Index) -> Cache {
        cache(2, Kind::Unified, 512, 8, index)
    }

    /// Reads an array, of which page `n` lies in `frames[n]`, from its beginning to its
    /// end.
    fn read(model: &mut Model, frames: &[Frame]) {
        let line = 1 << model.line_bits;
        for frame in frames {
            for offset in (0..BASE_PAGE).step_by(line) {
                model.access(model.line(*frame, offset));
            }
        }
    }

    /// Counts of reading an array once, and of reading it `times` times more.
    fn reread(cache: &Cache, frames: &[Frame], times: usize) -> (Counts, Counts) {
        let mut model = Model::new(cache);
        read(&mut model, frames);
        let first = model.take_counts();
        (0..times).for_each(|_| read(&mut model, frames));
        (first, model.take_counts())
    }

    /// Different frames for `pages` pages, of the colour that `colour_of` says.
    fn coloured(colours: &Colours, pages: u64, colour_of: impl Fn(u64) -> u32) -> Vec<Frame> {
        let mut numbers = Numbers(1);
        let mut frames = Vec::new();
        for page in 0..pages {
            let wanted = Colour(colour_of(page));
            let frame = loop {
                let frame = Frame(numbers.below(1 << 22));
                if colours.of(frame) == wanted && !frames.contains(&frame) {
                    break frame;
                }
            };
            frames.push(frame);
        }
        frames
    }

    fn random(pages: u64, seed: u64) -> Vec<Frame> {
        let mut numbers = Numbers(seed);
        let first = numbers.below(1 << 20);
        let mut frames: Vec<Frame> = (0..pages * 16).map(|n| Frame(first + n)).collect();
        for at in 0..frames.len() {
            frames.swap(at, numbers.below(pages * 16) as usize);
        }
        frames.truncate(pages as usize);
        frames
    }

    #[test]
    fn coloured_arrays_up_to_the_size_have_no_conflicts() {
        for index in ["12,13,14", "12^18,13^19,14^15^20"] {
            let given = second_level(Index::Given(index.parse().unwrap()));
            let plain = second_level(Index::Plain);
            for (cache, pages) in [(&given, 64), (&given, 40), (&plain, 64)] {
                let colours = cache.colours().unwrap();
                let frames = coloured(&colours, pages, |page| page as u32 % colours.count());
                let (first, then) = reread(cache, &frames, 3);
                assert_eq!((first.cold, first.misses()), (pages * 64, pages * 64));
                assert_eq!((then.hits, then.misses()), (3 * pages * 64, 0));
            }
        }
    }

    #[test]
    fn random_frames_have_conflicts() {
        for seed in 0..8 {
            let (_, then) = reread(&second_level(Index::Plain), &random(64, seed), 3);
            assert!(then.conflict > 0, "{seed}: {then:?}");
            assert_eq!((then.cold, then.capacity), (0, 0));
        }
    }

    #[test]
    fn frames_of_one_colour_compete() {
        let cache = second_level(Index::Plain);
        let colours = cache.colours().unwrap();
        let (_, then) = reread(&cache, &coloured(&colours, 8, |_| 5), 1);
        assert_eq!(then.misses(), 0, "as many as there are ways");
        let (_, then) = reread(&cache, &coloured(&colours, 9, |_| 5), 1);
        assert_eq!((then.hits, then.conflict), (0, 9 * 64));
    }

    #[test]
    fn larger_arrays_miss_for_want_of_room() {
        let cache = second_level(Index::Plain);
        let colours = cache.colours().unwrap();
        let frames = coloured(&colours, 80, |page| page as u32 % colours.count());
        let (_, then) = reread(&cache, &frames, 2);
        assert_eq!((then.capacity, then.conflict), (2 * 80 * 64, 0));
    }

    #[test]
    fn sets_that_are_no_power_of_two_are_all_used() {
        let cache = cache(3, Kind::Unified, 192, 4, Index::Unknown);
        assert_eq!(cache.shape.size(), Bytes(48 << 10));
        let frames: Vec<Frame> = (0..12).map(Frame).collect();
        let (first, then) = reread(&cache, &frames, 1);
        assert_eq!((first.cold, then.hits), (12 * 64, 12 * 64));
    }

    /// The distinct lines that were used since `line` was used last, among those for
    /// which `counts` holds. `None` where it was never used.
    fn distance(history: &[Line], line: Line, counts: impl Fn(Line) -> bool) -> Option<usize> {
        let last = history.iter().rposition(|used| *used == line)?;
        let mut since: Vec<Line> = history[last + 1..].to_vec();
        since.retain(|other| counts(*other));
        since.sort_unstable();
        since.dedup();
        Some(since.len())
    }

    /// What an access comes to by the definition of LRU.
    fn by_definition(history: &[Line], line: Line, sets: u64, ways: u64) -> Outcome {
        let same_set = |other: Line| other.0 % sets == line.0 % sets;
        let (Some(in_set), Some(overall)) = (
            distance(history, line, same_set),
            distance(history, line, |_| true),
        ) else {
            return Outcome::Miss(Miss::Cold);
        };
        if (in_set as u64) < ways {
            Outcome::Hit
        } else if (overall as u64) < sets * ways {
            Outcome::Miss(Miss::Conflict)
        } else {
            Outcome::Miss(Miss::Capacity)
        }
    }

    proptest! {
        #[test]
        fn it_is_what_the_definition_says(
            sets in 1u32..5,
            ways in 1u32..4,
            stream in vec(0u64..24, 1..200),
        ) {
            let shape = Shape::new(sets, ways, 64).unwrap();
            let mut model = Model::new(&Cache { shape, ..second_level(Index::Plain) });
            let mut history = Vec::new();
            let mut counts = Counts::default();
            for line in stream.into_iter().map(Line) {
                let expected = by_definition(&history, line, sets.into(), ways.into());
                prop_assert_eq!(model.access(line), expected);
                counts.count(expected);
                history.push(line);
            }
            prop_assert_eq!(counts.accesses(), history.len() as u64);
            prop_assert_eq!(model.take_counts(), counts);
            prop_assert_eq!(model.take_counts(), Counts::default());
        }

        #[test]
        fn colour_bits_of_a_plain_index_change_nothing(stream in vec(0u64..1 << 14, 1..400)) {
            let given = Index::Given("12,13,14".parse().unwrap());
            let (mut plain, mut given) = (
                Model::new(&second_level(Index::Plain)),
                Model::new(&second_level(given)),
            );
            for line in stream.into_iter().map(Line) {
                prop_assert_eq!(plain.access(line), given.access(line));
            }
        }
    }
}
