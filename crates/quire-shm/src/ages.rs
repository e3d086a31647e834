//! Which objects the names of a program have stood for, one after the other.
//!
//! A name that was removed is free for another object, while the program has the old one still. So what
//! a process has of objects (descriptors, mappings, semaphores, segments) is of an [`Entry`]: one of
//! those that an attachment's name has stood for, as far as the process knows. A server is asked for it
//! by the exact spelling of its key as soon as that is known, and until then by the name, which nobody
//! has taken from it yet. What has lost its name before it had a size has no key: if it is given a size
//! all the same, it is made by a name that nobody asks for.
//!
//! Children that are forked know the same: the lock is held over a fork. The library's thread takes it
//! for a look, and so does who has the lock of everything else.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};

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

/// What is known of one.
#[derive(Debug)]
struct Known {
    /// A number of its own, which parents and children have in common.
    number: u64,
    /// The exact spelling of its key; none while it may be what the name stands for.
    exact: Option<Name>,
}

impl Known {
    /// The name by which it is made if it has lost the attachment's.
    fn unnamed(&self, name: &Name) -> Name {
        Name::like(&format!("unnamed-{:x}.{name}", self.number))
    }
}

/// All of them.
#[derive(Debug)]
struct Ages(BTreeMap<Entry, Known>);

static AGES: Lock<Ages> = Lock::new(Ages(BTreeMap::new()));

impl Ages {
    /// Those of an attachment, the newest last.
    fn of(&self, place: usize) -> impl DoubleEndedIterator<Item = (Entry, &Known)> {
        let at = |age| Entry { place, age };
        let all = self.0.range(at(0)..=at(u64::MAX));
        all.map(|(entry, known)| (*entry, known))
    }

    fn newest(&self, place: usize) -> Option<(Entry, &Known)> {
        self.of(place).next_back()
    }

    fn add(&mut self, place: usize, exact: Option<Name>) -> Entry {
        let age = self.newest(place).map_or(0, |(newest, _)| newest.age + 1);
        let entry = Entry { place, age };
        let number = RandomState::new().hash_one(age);
        self.0.insert(entry, Known { number, exact });
        entry
    }

    /// The newest, if it is asked for by the name.
    fn by_name(&self, place: usize) -> Option<Entry> {
        let newest = self.newest(place);
        newest.and_then(|(entry, known)| known.exact.is_none().then_some(entry))
    }

    /// The name stands for what somebody has begun.
    fn begun(&mut self, place: usize) -> Entry {
        let same = self.by_name(place);
        same.unwrap_or_else(|| self.add(place, None))
    }

    /// The newest with this key.
    fn with(&self, place: usize, exact: &Name) -> Option<Entry> {
        let mut all = self.of(place).rev();
        let same = all.find(|(_, known)| known.exact.as_ref() == Some(exact))?;
        Some(same.0)
    }

    /// The name stands for the object with this key. A key that is free again may have been another
    /// object's, which is gone then.
    fn found(&mut self, place: usize, exact: &Name) -> Entry {
        match self.with(place, exact).or_else(|| self.by_name(place)) {
            Some(entry) => {
                self.learn(entry, exact);
                entry
            }
            None => self.add(place, Some(exact.clone())),
        }
    }

    fn learn(&mut self, entry: Entry, exact: &Name) {
        if let Some(known) = self.0.get_mut(&entry) {
            known.exact = Some(exact.clone());
        }
    }

    /// The name stands for nothing: what was begun by it has lost it.
    fn lost(&mut self, place: usize, name: &Name) {
        if let Some(entry) = self.by_name(place) {
            self.unname(entry, name);
        }
    }

    /// An object without the name gets another one, by which it is made.
    fn unname(&mut self, entry: Entry, name: &Name) -> Option<Name> {
        let known = self.0.get_mut(&entry)?;
        let made_by = known.unnamed(name);
        known.exact = Some(made_by.exact());
        Some(made_by)
    }

    /// Keeps these, and the newest of each attachment.
    fn keep(&mut self, used: &BTreeSet<Entry>) {
        let newest: BTreeMap<usize, Entry> = self.0.keys().map(|it| (it.place, *it)).collect();
        self.0
            .retain(|entry, _| used.contains(entry) || newest.get(&entry.place) == Some(entry));
    }
}

/// The name stands for what somebody has begun: which that is.
pub fn begun(place: usize) -> Entry {
    AGES.lock().begun(place)
}

/// The name stands for the object with this key: which that is.
pub fn found(place: usize, exact: &Name) -> Entry {
    AGES.lock().found(place, exact)
}

/// The attachment's name stands for nothing.
pub fn lost(place: usize, name: &Name) {
    AGES.lock().lost(place, name);
}

/// An object has this key.
pub fn learn(entry: Entry, exact: &Name) {
    AGES.lock().learn(entry, exact);
}

/// The name by which something is made that has not the attachment's name.
pub fn unname(entry: Entry, name: &Name) -> Option<Name> {
    AGES.lock().unname(entry, name)
}

/// How the key of an object is spelled that a parent or a child has made without the attachment's name.
pub fn unnamed(entry: Entry, name: &Name) -> Option<Name> {
    Some(AGES.lock().0.get(&entry)?.unnamed(name).exact())
}

/// The exact spelling of an object's key, if it has one yet.
pub fn exact(entry: Entry) -> Option<Name> {
    AGES.lock().0.get(&entry)?.exact.clone()
}

/// The objects of an attachment whose keys are known, the newest first.
pub fn all(place: usize) -> Vec<(Entry, Name)> {
    let ages = AGES.lock();
    let known = ages.of(place).rev();
    let known = known.filter_map(|(entry, known)| Some((entry, known.exact.clone()?)));
    known.collect()
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

    fn exact(ages: &Ages, entry: Entry) -> Option<Name> {
        ages.0[&entry].exact.clone()
    }

    #[test]
    fn a_name_stands_for_one_object_after_the_other() {
        let mut ages = Ages(BTreeMap::new());
        let (plain, numbered) = (name("grid~"), name("grid~8f"));
        let first = ages.begun(3);
        assert_eq!((ages.begun(3), exact(&ages, first)), (first, None));
        assert_eq!(ages.found(3, &plain), first);
        // Another program has removed it, and made another one.
        let second = ages.found(3, &numbered);
        assert!(second > first && second.place == 3);
        assert_eq!(ages.found(3, &plain), first);
        assert_eq!(exact(&ages, second), Some(numbered));
        let third = ages.begun(3);
        assert!(third > second && ages.begun(4) != third);
        // An old key may be free again.
        assert_eq!(ages.found(3, &plain), first);
        assert_eq!(ages.found(3, &name("grid~90")), third);
    }

    #[test]
    fn what_loses_its_name_without_a_size_has_one_of_its_own() {
        let mut ages = Ages(BTreeMap::new());
        let grid = name("grid");
        let first = ages.begun(0);
        ages.lost(0, &grid);
        let second = ages.begun(0);
        ages.lost(0, &grid);
        let names = [first, second].map(|entry| exact(&ages, entry).expect("it has one"));
        assert!(first != second && names[0] != names[1], "{names:?}");
        let made_by = ages.unname(first, &grid).expect("it is there");
        assert!(made_by.is_plain() && made_by.exact() == names[0]);
        // What has a key keeps it when the name is lost.
        let third = ages.found(0, &name("grid~"));
        ages.lost(0, &grid);
        assert_eq!(exact(&ages, third), Some(name("grid~")));
        let long = name(&"n".repeat(200));
        let made_by = ages.unname(third, &long).expect("it is there");
        assert!(made_by.is_plain() && made_by != long);
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
