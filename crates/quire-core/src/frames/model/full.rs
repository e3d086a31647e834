//! A fully associative cache that replaces what was least recently used, in constant
//! time per access: a list through an array of places, and a map from lines to places.

use std::collections::HashMap;

use super::Line;

/// What is known of a line when it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It is in the cache.
    Held,
    /// It was in the cache, and was replaced since.
    GivenUp,
    /// It is used for the first time.
    New,
}

/// Stands for no place.
const NOWHERE: usize = usize::MAX;

/// A place for a line, and its neighbours by the time of their last use.
#[derive(Clone, Copy, Debug)]
struct Place {
    line: Line,
    newer: usize,
    older: usize,
}

/// The cache.
#[derive(Clone, Debug)]
pub struct Full {
    /// How many lines it holds.
    room: u64,
    /// Where each line is that was ever used; [`NOWHERE`] if it was replaced.
    lines: HashMap<Line, usize>,
    places: Vec<Place>,
    newest: usize,
    oldest: usize,
}

impl Full {
    /// An empty cache for `room` lines, at least one.
    #[must_use]
    pub fn new(room: u64) -> Full {
        Full {
            room: room.max(1),
            lines: HashMap::new(),
            places: Vec::new(),
            newest: NOWHERE,
            oldest: NOWHERE,
        }
    }

    /// Uses a line, in place of the least recently used one where there is no room.
    pub fn access(&mut self, line: Line) -> Found {
        let known = self.lines.get(&line).copied();
        if let Some(place) = known.filter(|place| *place != NOWHERE) {
            self.unlink(place);
            self.link_newest(place);
            return Found::Held;
        }
        let place = self.place_for(line);
        self.link_newest(place);
        self.lines.insert(line, place);
        match known {
            Some(_) => Found::GivenUp,
            None => Found::New,
        }
    }

    /// A place for a new line that is not linked yet.
    fn place_for(&mut self, line: Line) -> usize {
        if (self.places.len() as u64) < self.room {
            self.places.push(Place {
                line,
                newer: NOWHERE,
                older: NOWHERE,
            });
            return self.places.len() - 1;
        }
        let place = self.oldest;
        self.unlink(place);
        let replaced = std::mem::replace(&mut self.places[place].line, line);
        self.lines.insert(replaced, NOWHERE);
        place
    }

    /// Takes a place out of the list.
    fn unlink(&mut self, place: usize) {
        let Place { newer, older, .. } = self.places[place];
        match newer {
            NOWHERE => self.newest = older,
            newer => self.places[newer].older = older,
        }
        match older {
            NOWHERE => self.oldest = newer,
            older => self.places[older].newer = newer,
        }
    }

    /// Makes a place the newest of the list.
    fn link_newest(&mut self, place: usize) {
        let next = std::mem::replace(&mut self.newest, place);
        self.places[place].newer = NOWHERE;
        self.places[place].older = next;
        match next {
            NOWHERE => self.oldest = place,
            next => self.places[next].newer = place,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_does_what_a_list_does(
            room in 1u64..12,
            stream in prop::collection::vec(0u64..20, 1..300),
        ) {
            let mut full = Full::new(room);
            let (mut held, mut seen): (Vec<u64>, Vec<u64>) = Default::default();
            for number in stream {
                let at = held.iter().position(|one| *one == number);
                let expected = match at {
                    Some(_) => Found::Held,
                    None if seen.contains(&number) => Found::GivenUp,
                    None => Found::New,
                };
                at.map(|at| held.remove(at));
                held.insert(0, number);
                held.truncate(room as usize);
                seen.push(number);
                prop_assert_eq!(full.access(Line(number)), expected);
            }
        }
    }
}
