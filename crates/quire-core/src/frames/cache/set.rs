//! What a user says of a cache (`--set`), where the machine says nothing or is wrong.
//!
//! It is written as `level=2,sets=1024,ways=16,line=64`: the level, and what is to
//! differ. `colour-bits=12^18,13^19` gives the colours and comes last, because it
//! holds commas itself; alone it is meant for the cache that has the colours already.

use std::str::FromStr;

use super::{Cache, Index, Kind, Shape, colour_cache_at};
use crate::frames::colour::{Colours, ColoursError};
use crate::units::BASE_PAGE;

/// The key that comes last.
const COLOUR_BITS: &str = "colour-bits=";
/// Levels that a user can name.
const LEVELS: std::ops::RangeInclusive<u32> = 1..=7;

/// What is to differ in a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Override {
    /// Nothing for the cache that has the colours.
    level: Option<u32>,
    sets: Option<u32>,
    ways: Option<u32>,
    line: Option<u32>,
    colours: Option<Colours>,
}

/// A text that says nothing of a cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{part}`: {why}; write level=2,sets=1024,ways=16,line=64, or colour-bits=12^18,13^19 as the last part"
)]
pub struct OverrideError {
    part: String,
    why: Why,
}

/// What is wrong with a part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Why {
    #[error("there is no `=`")]
    NoEquals,
    #[error("the keys are level, sets, ways, line and colour-bits")]
    UnknownKey,
    #[error("it is given twice")]
    Twice,
    #[error("the level must be a number from {} to {}", LEVELS.start(), LEVELS.end())]
    Level,
    #[error("the sets must be a power of two")]
    Sets,
    #[error("the ways must be a number, at least 1")]
    Ways,
    #[error(
        "the line must be a power of two from {} to {} bytes",
        Shape::MIN_LINE,
        Shape::MAX_LINE
    )]
    Line,
    #[error("it does not say which cache is meant: begin with level=")]
    NoLevel,
    #[error("it says nothing of the cache: give sets, ways, line or colour-bits")]
    NothingToSet,
    #[error("colour-bits must come last")]
    BitsNotLast,
    #[error(transparent)]
    Bits(ColoursError),
}

/// Why something does not fit the caches that there are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// No cache of this level is known, and not all is given that makes one.
    #[error("no level {0} cache is known: give its sets, ways and line as well ({known})", known = known(.1))]
    NoSuchLevel(u32, Vec<u32>),
    /// Bits without a level, and no cache that has colours.
    #[error("no cache has known colours, so say whose bits these are: level=3,colour-bits={0}")]
    NoColourCache(Colours),
    /// More colours than a way has pages.
    #[error(
        "{bits} are {count} colours, but a way of the {cache} cache has {pages} pages and a colour needs at least one: give fewer bits, or the right sets",
        count = bits.count()
    )]
    TooManyColours {
        /// What was given.
        bits: Colours,
        /// The name of the cache.
        cache: String,
        /// How many pages a way has.
        pages: u64,
    },
    /// A cache that cannot exist.
    #[error("the level {0} cache would have more than {max}: give fewer sets or ways", max = Shape::MAX_SIZE)]
    TooLarge(u32),
}

fn known(levels: &[u32]) -> String {
    let levels: Vec<String> = levels.iter().map(u32::to_string).collect();
    match levels.as_slice() {
        [] => "no cache is known".to_owned(),
        levels => format!("known levels: {}", levels.join(", ")),
    }
}

impl FromStr for Override {
    type Err = OverrideError;

    fn from_str(text: &str) -> Result<Override, OverrideError> {
        let (keys, bits) = split_bits(text);
        let mut read = Override::default();
        for part in keys.into_iter().flat_map(|keys| keys.split(',')) {
            read.read_key(part).map_err(|why| error(part, why))?;
        }
        if let Some(bits) = bits {
            let colours = colour_bits(bits).map_err(|why| error(bits, why))?;
            read.colours = Some(colours);
        }
        let has_shape = read.sets.or(read.ways).or(read.line).is_some();
        match read.level {
            None if has_shape => Err(error(text, Why::NoLevel)),
            Some(_) if !has_shape && read.colours.is_none() => Err(error(text, Why::NothingToSet)),
            _ => Ok(read),
        }
    }
}

fn error(part: &str, why: Why) -> OverrideError {
    let part = part.to_owned();
    OverrideError { part, why }
}

/// The keys before the colour bits, and the bits.
fn split_bits(text: &str) -> (Option<&str>, Option<&str>) {
    if let Some(bits) = text.strip_prefix(COLOUR_BITS) {
        return (None, Some(bits));
    }
    let is_key = |(at, _): &(usize, &str)| text[..*at].ends_with(',');
    match text.match_indices(COLOUR_BITS).find(is_key) {
        Some((at, key)) => (Some(&text[..at - 1]), Some(&text[at + key.len()..])),
        None => (Some(text), None),
    }
}

fn colour_bits(text: &str) -> Result<Colours, Why> {
    if text.contains('=') {
        return Err(Why::BitsNotLast);
    }
    text.parse().map_err(Why::Bits)
}

impl Override {
    /// Reads one part, such as `ways=16`.
    fn read_key(&mut self, part: &str) -> Result<(), Why> {
        let (key, value) = part.trim().split_once('=').ok_or(Why::NoEquals)?;
        let number: Option<u32> = value.trim().parse().ok();
        let is_line = |line: &u32| (Shape::MIN_LINE..=Shape::MAX_LINE).contains(line);
        let (place, read, why) = match key {
            "level" => {
                let level = number.filter(|level| LEVELS.contains(level));
                (&mut self.level, level, Why::Level)
            }
            "sets" => {
                let sets = number.filter(|sets| sets.is_power_of_two());
                (&mut self.sets, sets, Why::Sets)
            }
            "ways" => (&mut self.ways, number.filter(|ways| *ways > 0), Why::Ways),
            "line" => {
                let line = number.filter(|line| line.is_power_of_two() && is_line(line));
                (&mut self.line, line, Why::Line)
            }
            _ => return Err(Why::UnknownKey),
        };
        match place.replace(read.ok_or(why)?) {
            Some(_) => Err(Why::Twice),
            None => Ok(()),
        }
    }

    /// Changes a cache.
    fn change(&self, cache: &mut Cache) -> Result<(), ApplyError> {
        let old = cache.shape;
        let line = self.line.unwrap_or(old.line);
        let (sets, ways) = (self.sets.unwrap_or(old.sets), self.ways.unwrap_or(old.ways));
        let shape = Shape::new(sets, ways, line).ok_or(ApplyError::TooLarge(cache.level))?;
        cache.shape = shape;
        if let Some(colours) = &self.colours {
            cache.index = Index::Given(colours.clone());
        }
        check_colours(cache)
    }

    /// The cache that it describes, where it describes all of one.
    fn whole(&self, level: u32) -> Option<Result<Cache, ApplyError>> {
        let (sets, ways, line) = (self.sets?, self.ways?, self.line?);
        let Some(shape) = Shape::new(sets, ways, line) else {
            return Some(Err(ApplyError::TooLarge(level)));
        };
        let colours = self.colours.clone();
        let cache = Cache {
            level,
            kind: Kind::Unified,
            shape,
            index: colours.map_or(Index::Plain, Index::Given),
            shared_by: None,
        };
        Some(check_colours(&cache).map(|()| cache))
    }

    /// Changes all caches for data of a level, or adds one.
    fn apply_at(&self, level: u32, caches: &mut Vec<Cache>) -> Result<(), ApplyError> {
        let is_meant = |cache: &&mut Cache| cache.level == level && cache.holds_data();
        let mut found = false;
        for cache in caches.iter_mut().filter(is_meant) {
            found = true;
            self.change(cache)?;
        }
        if !found {
            let whole = self.whole(level);
            let missing = || Err(ApplyError::NoSuchLevel(level, levels(caches)));
            let cache = whole.unwrap_or_else(missing)?;
            caches.push(cache);
            caches.sort_by_key(|cache| cache.level);
        }
        Ok(())
    }
}

fn levels(caches: &[Cache]) -> Vec<u32> {
    let mut levels: Vec<u32> = caches.iter().map(|cache| cache.level).collect();
    levels.sort_unstable();
    levels.dedup();
    levels
}

/// A frame of one colour takes a page's worth of the sets, so colours that are more
/// than the pages of a way compete in spite of being different.
fn check_colours(cache: &Cache) -> Result<(), ApplyError> {
    let Index::Given(bits) = &cache.index else {
        return Ok(());
    };
    let pages = cache.shape.way().0 / BASE_PAGE;
    if u64::from(bits.count()) <= pages {
        return Ok(());
    }
    Err(ApplyError::TooManyColours {
        bits: bits.clone(),
        cache: cache.name(),
        pages,
    })
}

/// Changes the caches as a user says, in the order of what is said. A level stands for
/// its caches for data; bits without a level for [`super::colour_cache`].
///
/// # Errors
/// Where something does not fit the caches. Some may have changed by then.
pub fn apply(caches: &mut Vec<Cache>, overrides: &[Override]) -> Result<(), ApplyError> {
    for one in overrides {
        match (one.level, colour_cache_at(caches)) {
            (Some(level), _) => one.apply_at(level, caches)?,
            (None, Some(at)) => one.change(&mut caches[at])?,
            (None, None) => {
                let colours = one.colours.clone().unwrap_or_default();
                return Err(ApplyError::NoColourCache(colours));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::colour_cache;
    use super::super::tests::{cascade_lake, naples};
    use super::*;

    fn applied(mut caches: Vec<Cache>, texts: &[&str]) -> Result<Vec<Cache>, ApplyError> {
        let overrides: Vec<Override> = texts.iter().map(|text| text.parse().unwrap()).collect();
        apply(&mut caches, &overrides).map(|()| caches)
    }

    fn refused(text: &str) -> String {
        let message = text.parse::<Override>().unwrap_err().to_string();
        assert!(message.contains("; write level=2,"), "{message}");
        message
    }

    #[test]
    fn any_subset_can_be_given() {
        let caches = applied(cascade_lake(), &["level=2,ways=20", "level=2,sets=2048"]).unwrap();
        assert_eq!(caches[2].shape, Shape::new(2048, 20, 64).unwrap());
        assert_eq!(caches[2].index, Index::Plain);
        assert_eq!(
            colour_cache(&caches).unwrap().colours().unwrap().count(),
            32
        );
        let caches = applied(naples(), &["level=1,sets=128"]).unwrap();
        assert_eq!(caches[0].shape.sets(), 128);
        assert_eq!(caches[1], naples()[1], "instructions stay");
    }

    #[test]
    fn a_hash_can_be_given_with_a_level_or_for_the_colour_cache() {
        let caches = applied(naples(), &["level=3,sets=16384,colour-bits=12^18,13^19"]).unwrap();
        let chosen = colour_cache(&caches).unwrap();
        assert_eq!((chosen.level, chosen.shape.sets()), (3, 16384));
        assert_eq!(chosen.colours().unwrap().to_string(), "12^18,13^19");
        let caches = applied(naples(), &["colour-bits=13,14"]).unwrap();
        assert_eq!(colour_cache(&caches).unwrap().level, 2);
        assert_eq!(caches[2].colours().unwrap().count(), 4);
        // The second is meant for what has the colours after the first.
        let caches = applied(naples(), &["level=3,colour-bits=12", "colour-bits=14"]).unwrap();
        assert_eq!(caches[3].colours().unwrap().to_string(), "14");
    }

    #[test]
    fn a_cache_that_is_not_known_is_added_whole() {
        let whole = "level=2,sets=1024,ways=16,line=64";
        let caches = applied(Vec::new(), &[whole]).unwrap();
        assert_eq!(
            colour_cache(&caches).unwrap().colours().unwrap().count(),
            16
        );
        assert_eq!(caches[0].shared_by, None);
        let mut caches = cascade_lake();
        caches.remove(2);
        let caches = applied(caches, &[whole]).unwrap();
        assert_eq!((caches[2].level, caches[3].level), (2, 3));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let message = |caches, text| applied(caches, &[text]).unwrap_err().to_string();
        let text = message(naples(), "level=4,sets=1024,ways=16");
        assert!(text.contains("no level 4 cache is known"), "{text}");
        assert!(text.contains("known levels: 1, 2, 3"), "{text}");
        let text = message(Vec::new(), "colour-bits=12,13");
        assert!(text.contains("level=3,colour-bits=12,13"), "{text}");
        let text = message(naples(), "level=2,colour-bits=12,13,14,15,16");
        assert!(text.contains("are 32 colours"), "{text}");
        assert!(text.contains("L2 cache has 16 pages"), "{text}");
        let text = message(naples(), "level=3,sets=2147483648");
        assert!(text.contains("more than 4 GiB"), "{text}");
    }

    #[test]
    fn later_shapes_must_leave_room_for_the_colours() {
        let texts = ["level=2,colour-bits=12,13,14,15", "level=2,sets=512"];
        let error = applied(naples(), &texts).unwrap_err();
        assert!(matches!(error, ApplyError::TooManyColours { pages: 8, .. }));
    }

    #[test]
    fn nonsense_is_refused_with_the_remedy() {
        for (text, words) in [
            ("", "no `=`"),
            ("level=2", "says nothing of the cache"),
            ("sets=1024", "begin with level="),
            ("level=0,ways=1", "number from 1 to 7"),
            ("level=2,sets=1000", "sets must be a power of two"),
            ("level=2,sets=0", "sets must be a power of two"),
            ("level=2,ways=0", "at least 1"),
            ("level=2,line=100", "from 16 to 4096 bytes"),
            ("level=2,line=8192", "from 16 to 4096 bytes"),
            ("level=2,way=8", "the keys are"),
            ("level=2,level=3,ways=8", "given twice"),
            (
                "level=2,colour-bits=12,ways=8",
                "colour-bits must come last",
            ),
            ("level=2,colour-bits=", "not the number of an address bit"),
            ("colour-bits=11", "address bit 11"),
            ("colour-bits=12,12", "depend on each other"),
        ] {
            let message = refused(text);
            assert!(message.contains(words), "{text}: {message}");
        }
    }

    proptest! {
        #[test]
        fn what_is_given_is_what_the_cache_has(
            level in 1u32..8,
            sets_bits in 0u32..16,
            ways in 1u32..32,
            line_bits in 4u32..8,
        ) {
            let (sets, line) = (1u32 << sets_bits, 1u32 << line_bits);
            let text = format!("level={level},sets={sets},ways={ways},line={line}");
            let caches = applied(naples(), &[&text]).unwrap();
            let found = caches.iter().find(|cache| cache.level == level && cache.holds_data());
            prop_assert_eq!(found.unwrap().shape, Shape::new(sets, ways, line).unwrap());
            prop_assert_eq!(caches.len(), if level > 3 { 5 } else { 4 });
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[a-z0-9=,^-]{0,40}", key in "(level|sets|ways|line|colour-bits)=") {
            let _ = text.parse::<Override>();
            let _ = format!("{key}{text},{key}").parse::<Override>();
        }
    }
}
