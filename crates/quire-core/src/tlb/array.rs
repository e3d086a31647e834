//! One set-associative array of translations with least-recently-used
//! replacement.

use super::PageSize;

/// What an entry translates: a page, or a group of pages that share an entry,
/// by size and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag {
    /// The size of the page.
    pub size: PageSize,
    /// The number of the page, or of the group.
    pub number: u64,
}

/// What a lookup finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The tag, which was used in this window of the stream before.
    Now,
    /// The tag, left by an earlier window. Whether a machine would still hold
    /// it depends on what it did between the windows.
    Earlier,
    /// Nothing.
    Nothing,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    tag: Tag,
    /// The window in which it was last used.
    window: u32,
}

/// The array. A set is chosen by the number in the tag, modulo the number of
/// sets; real machines may hash more bits.
#[derive(Clone, Debug)]
pub struct Array {
    ways: usize,
    /// Each set holds at most `ways` tags, the most recently used first.
    sets: Vec<Vec<Entry>>,
    window: u32,
}

impl Array {
    /// An empty array of `sets` sets, at least one, with `ways` ways each.
    #[must_use]
    pub fn new(sets: usize, ways: usize) -> Array {
        Array {
            ways,
            sets: vec![Vec::with_capacity(ways); sets.max(1)],
            window: 0,
        }
    }

    /// Begins another window of the stream: what lies between is not known.
    pub fn begin_window(&mut self) {
        self.window = self.window.wrapping_add(1);
    }

    /// Looks a tag up. A tag that is there becomes the most recently used of
    /// its set.
    pub fn lookup(&mut self, tag: Tag) -> Found {
        let window = self.window;
        let set = self.set_of(tag);
        let Some(at) = set.iter().position(|entry| entry.tag == tag) else {
            return Found::Nothing;
        };
        set[..=at].rotate_right(1);
        if std::mem::replace(&mut set[0].window, window) == window {
            Found::Now
        } else {
            Found::Earlier
        }
    }

    /// Enters a tag that is not there, in place of the least recently used of
    /// its set where that is full.
    pub fn fill(&mut self, tag: Tag) {
        let (ways, window) = (self.ways, self.window);
        let set = self.set_of(tag);
        set.truncate(ways.saturating_sub(1));
        set.insert(0, Entry { tag, window });
    }

    fn set_of(&mut self, tag: Tag) -> &mut Vec<Entry> {
        let sets = self.sets.len() as u64;
        &mut self.sets[(tag.number % sets) as usize]
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn base(number: u64) -> Tag {
        Tag {
            size: PageSize::Base,
            number,
        }
    }

    fn touch(array: &mut Array, tag: Tag) -> bool {
        let hit = array.lookup(tag) != Found::Nothing;
        if !hit {
            array.fill(tag);
        }
        hit
    }

    /// A hit, by the definition of LRU: since the tag was last used, fewer
    /// other tags of its set were used than there are ways.
    fn hits_by_definition(history: &[Tag], tag: Tag, sets: u64, ways: usize) -> bool {
        let Some(last) = history.iter().rposition(|used| *used == tag) else {
            return false;
        };
        let mut others: Vec<Tag> = history[last + 1..].to_vec();
        others.retain(|other| other.number % sets == tag.number % sets);
        others.sort_by_key(|other| (other.size, other.number));
        others.dedup();
        others.len() < ways
    }

    #[test]
    fn a_cycle_longer_than_the_set_never_hits() {
        let hits = |cycle: u64| {
            let mut array = Array::new(1, 4);
            (0..20)
                .filter(|i| touch(&mut array, base(i % cycle)))
                .count()
        };
        assert_eq!((hits(4), hits(5)), (16, 0));
    }

    #[test]
    fn sizes_do_not_stand_for_each_other() {
        let mut array = Array::new(1, 4);
        array.fill(base(7));
        let other = Tag {
            size: PageSize::Super,
            number: 7,
        };
        assert_eq!(array.lookup(other), Found::Nothing);
        assert_eq!(array.lookup(base(7)), Found::Now);
    }

    #[test]
    fn what_an_earlier_window_left_is_told_apart_once() {
        let mut array = Array::new(1, 2);
        array.fill(base(1));
        array.begin_window();
        array.fill(base(2));
        assert_eq!(array.lookup(base(1)), Found::Earlier);
        assert_eq!(array.lookup(base(1)), Found::Now);
        assert_eq!(array.lookup(base(2)), Found::Now);
    }

    proptest! {
        #[test]
        fn it_hits_as_lru_is_defined(
            sets in 1usize..5,
            ways in 1usize..6,
            stream in vec((0u64..24, prop::bool::weighted(0.2)), 1..200),
        ) {
            let mut array = Array::new(sets, ways);
            let mut history = Vec::new();
            for (number, is_super) in stream {
                let size = if is_super { PageSize::Super } else { PageSize::Base };
                let tag = Tag { size, number };
                let expected = hits_by_definition(&history, tag, sets as u64, ways);
                prop_assert_eq!(touch(&mut array, tag), expected);
                history.push(tag);
            }
        }
    }
}
