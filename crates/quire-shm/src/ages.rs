//! Which objects the names of a program have stood for, one after the other.
//!
//! A name that was removed is free for another object, while the program has the old one still. So what
//! a process has of objects (descriptors, mappings, semaphores, segments) is of an [`Entry`]: one of
//! those that an attachment's name has stood for, as far as the process knows. A server is asked for it
//! by the exact spelling of its key, which it has from when it is begun, and keeps.
//!
//! Children that are forked know the same: the lock is held over a fork. The library's thread takes it
//! for a look, and so does who has the lock of everything else.

use std::collections::{BTreeMap, BTreeSet};

use quire_dsm::wire::control::Name;
use quire_linux::futex::Lock;

/// An object that an attachment's name stands for, or has stood for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Which of the attachments it is.
    pub place: usize,
    /// Which of the objects of its name, in this process; the first is 0.
    age: u64,
}

/// What the process knows of one.
#[derive(Debug)]
struct Known {
    /// The exact spelling of its key.
    exact: Name,
    /// This process, or one that it was forked from, has begun it.
    is_made: bool,
    /// One of these has removed its name, which stayed, as the object is others'.
    is_given_up: bool,
}

/// All of them.
#[derive(Debug)]
struct Ages(BTreeMap<Entry, Known>);

static AGES: Lock<Ages> = Lock::new(Ages(BTreeMap::new()));

impl Ages {
    /// Those of an attachment, the newest last.
    fn of(&self, place: usize) -> impl DoubleEndedIterator<Item = (Entry, &Name)> {
        let at = |age| Entry { place, age };
        let all = self.0.range(at(0)..=at(u64::MAX));
        all.map(|(entry, known)| (*entry, &known.exact))
    }

    /// The name stands for the object with this key.
    fn found(&mut self, place: usize, exact: &Name) -> Entry {
        let same = self.of(place).rev().find(|(_, known)| *known == exact);
        if let Some((entry, _)) = same {
            return entry;
        }
        let newest = self.of(place).next_back();
        let age = newest.map_or(0, |(newest, _)| newest.age + 1);
        let entry = Entry { place, age };
        let known = Known {
            exact: exact.clone(),
            is_made: false,
            is_given_up: false,
        };
        self.0.insert(entry, known);
        entry
    }

    /// Keeps these, and the newest of each attachment.
    fn keep(&mut self, used: &BTreeSet<Entry>) {
        let newest: BTreeMap<usize, Entry> = self.0.keys().map(|it| (it.place, *it)).collect();
        self.0
            .retain(|entry, _| used.contains(entry) || newest.get(&entry.place) == Some(entry));
    }
}

/// The name stands for the object with this key: which that is.
pub fn found(place: usize, exact: &Name) -> Entry {
    AGES.lock().found(place, exact)
}

/// The exact spelling of an object's key; none where it is forgotten.
pub fn exact(entry: Entry) -> Option<Name> {
    let ages = AGES.lock();
    ages.0.get(&entry).map(|known| known.exact.clone())
}

/// This process has begun it.
pub fn made(entry: Entry) {
    if let Some(known) = AGES.lock().0.get_mut(&entry) {
        known.is_made = true;
    }
}

/// Whether it has, or one that it was forked from.
pub fn is_made(entry: Entry) -> bool {
    let ages = AGES.lock();
    ages.0.get(&entry).is_some_and(|known| known.is_made)
}

/// This process has removed its name, which stays.
pub fn give_up(entry: Entry) {
    if let Some(known) = AGES.lock().0.get_mut(&entry) {
        known.is_given_up = true;
    }
}

/// Whether it has, or one that it was forked from.
pub fn is_given_up(entry: Entry) -> bool {
    let ages = AGES.lock();
    ages.0.get(&entry).is_some_and(|known| known.is_given_up)
}

/// The objects of an attachment, the newest first.
pub fn all(place: usize) -> Vec<(Entry, Name)> {
    let ages = AGES.lock();
    let known = ages.of(place).rev();
    known.map(|(entry, exact)| (entry, exact.clone())).collect()
}

/// How many objects are known, of all attachments.
pub fn count() -> usize {
    AGES.lock().0.len()
}

/// Those.
pub fn known() -> BTreeSet<Entry> {
    AGES.lock().0.keys().copied().collect()
}

/// Forgets all but these, and the newest of each attachment.
pub fn keep(used: &BTreeSet<Entry>) {
    AGES.lock().keep(used);
}

/// Before a fork: a child must not find it half done.
pub fn hold() {
    AGES.hold();
}

/// After a fork.
pub fn release() {
    AGES.release_held();
}

/// One for the tests of others.
#[cfg(test)]
pub const fn entry(place: usize, age: u64) -> Entry {
    Entry { place, age }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    #[test]
    fn a_name_stands_for_one_object_after_the_other() {
        let mut ages = Ages(BTreeMap::new());
        let (plain, numbered) = (name("grid~"), name("grid~8f"));
        let first = ages.found(3, &plain);
        assert_eq!(ages.found(3, &plain), first);
        // Another program has removed it, and made another one.
        let second = ages.found(3, &numbered);
        assert!(second > first && second.place == 3);
        assert_eq!(ages.found(3, &plain), first);
        assert_eq!(ages.0[&second].exact, numbered);
        assert_eq!(ages.found(4, &plain), entry(4, 0));
    }

    #[test]
    fn the_newest_is_never_forgotten() {
        let mut ages = Ages(BTreeMap::new());
        let all: Vec<Entry> = ["grid~1", "grid~2", "grid~3"]
            .map(|key| ages.found(0, &name(key)))
            .to_vec();
        ages.keep(&BTreeSet::from([all[0]]));
        let left: Vec<Entry> = ages.0.keys().copied().collect();
        assert_eq!(left, [all[0], all[2]]);
        assert!(ages.found(0, &name("grid~2")) > all[2]);
    }
}
