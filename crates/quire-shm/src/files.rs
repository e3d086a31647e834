//! The files that stand for objects, of which the program was given descriptors. What a descriptor is of is
//! known by its file, also where the program sends it to itself by a socket, and has no descriptor of the
//! file meanwhile. So files without descriptors are not forgotten at once, as long as their objects are
//! there.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::ages::Entry;
use crate::state::{FileId, Opened};

/// So many files without descriptors are remembered, those that were given last. The kernel has about as
/// many descriptors on their way for an ordinary user.
const UNDER_WAY: usize = 1024;

/// One of them.
#[derive(Debug)]
struct Given {
    opened: Opened,
    /// How many were given before.
    order: u64,
}

/// All of them.
#[derive(Debug)]
pub struct Files {
    all: BTreeMap<FileId, Given>,
    last: u64,
}

impl Files {
    pub const fn new() -> Files {
        Files {
            all: BTreeMap::new(),
            last: 0,
        }
    }

    /// A descriptor of a file was given to the program, or stands for something else now.
    pub fn insert(&mut self, file: FileId, opened: Opened) {
        self.last += 1;
        let order = self.last;
        self.all.insert(file, Given { opened, order });
    }

    pub fn get(&self, file: &FileId) -> Option<&Opened> {
        self.all.get(file).map(|given| &given.opened)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&FileId, &Opened)> {
        let all = self.all.iter();
        all.map(|(file, given)| (file, &given.opened))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&FileId, &mut Opened)> {
        let all = self.all.iter_mut();
        all.map(|(file, given)| (file, &mut given.opened))
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Keeps those that are open, and, of objects that are there, those that were given last.
    pub fn keep(&mut self, open: &BTreeSet<FileId>, is_there: impl Fn(Entry) -> bool) {
        self.all
            .retain(|file, given| open.contains(file) || is_there(given.opened.entry));
        let closed = self.all.iter().filter(|(file, _)| !open.contains(file));
        let mut orders: Vec<u64> = closed.map(|(_, given)| given.order).collect();
        orders.sort_unstable_by_key(|order| Reverse(*order));
        if let Some(too_old) = orders.get(UNDER_WAY) {
            self.all
                .retain(|file, given| open.contains(file) || given.order > *too_old);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ages::entry;

    fn given(files: &mut Files, numbers: std::ops::Range<u64>, entry: Entry) {
        for number in numbers {
            let opened = Opened {
                entry,
                writable: true,
                is_pending: false,
            };
            files.insert((1, number), opened);
        }
    }

    #[test]
    fn what_may_be_under_way_is_remembered() {
        let mut files = Files::new();
        let (gone, there) = (entry(0, 0), entry(0, 1));
        given(&mut files, 0..10, gone);
        given(&mut files, 10..20, there);
        files.keep(&BTreeSet::from([(1, 3)]), |entry| entry == there);
        let left: Vec<u64> = files.iter().map(|(file, _)| file.1).collect();
        assert_eq!(left, [&[3][..], &(10..20).collect::<Vec<_>>()].concat());
    }

    #[test]
    fn of_too_many_the_last_are_remembered() {
        let mut files = Files::new();
        let it = entry(0, 0);
        given(&mut files, 100..100 + 2 * UNDER_WAY as u64, it);
        // Its number is another file's by now.
        given(&mut files, 100..101, it);
        files.keep(&BTreeSet::from([(1, 105)]), |_| true);
        assert_eq!(files.len(), UNDER_WAY + 1);
        let has = |number| files.get(&(1, number)).is_some();
        assert!(has(100) && !has(101) && has(105) && !has(106));
        assert!(has(100 + 2 * UNDER_WAY as u64 - 1));
    }
}
