//! Pages in the order in which they came.

use std::collections::BTreeMap;

use crate::dsm::message::PageNumber;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Queue {
    pages: BTreeMap<u64, PageNumber>,
    next: u64,
}

impl Queue {
    /// Adds a page at the end; its place.
    pub(super) fn add(&mut self, page: PageNumber) -> u64 {
        let place = self.next;
        self.next += 1;
        self.pages.insert(place, page);
        place
    }

    pub(super) fn remove(&mut self, place: Option<u64>) {
        if let Some(place) = place {
            self.pages.remove(&place);
        }
    }

    pub(super) fn clear(&mut self) {
        self.pages.clear();
    }

    pub(super) fn len(&self) -> u64 {
        self.pages.len() as u64
    }

    /// The one that came first at first.
    pub(super) fn iter(&self) -> impl Iterator<Item = PageNumber> {
        self.pages.values().copied()
    }
}
