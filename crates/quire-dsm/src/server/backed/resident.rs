//! Which pages of an object are in the server's memory and could go, because the pager has
//! the same. Those that came first go first.

use std::collections::{BTreeSet, HashSet, VecDeque};

use quire_core::dsm::message::PageNumber;

/// Pages that could go.
#[derive(Default)]
pub struct Resident {
    queue: VecDeque<PageNumber>,
    known: HashSet<PageNumber>,
    /// Pages that the pager has in the form of another machine than they are here. They
    /// stay, because that form may not hold all of them.
    foreign: BTreeSet<PageNumber>,
}

impl Resident {
    /// The pager has what is here of a page.
    pub fn add(&mut self, page: PageNumber) {
        if !self.foreign.contains(&page) && self.known.insert(page) {
            self.queue.push_back(page);
        }
    }

    /// Says in which form a page was given back.
    pub fn given_back(&mut self, page: PageNumber, is_foreign: bool) {
        if !is_foreign {
            self.foreign.remove(&page);
        } else if self.foreign.insert(page) && self.known.remove(&page) {
            self.queue.retain(|known| *known != page);
        }
    }

    /// The page that is here longest. It is not known from then on.
    pub fn take_oldest(&mut self) -> Option<PageNumber> {
        let oldest = self.queue.pop_front()?;
        self.known.remove(&oldest);
        Some(oldest)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.queue.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_go_in_the_order_in_which_they_came_and_foreign_ones_stay() {
        let mut resident = Resident::default();
        for page in [3, 1, 3, 2, 4] {
            resident.add(PageNumber(page));
        }
        assert_eq!(resident.len(), 4);
        resident.given_back(PageNumber(1), true);
        resident.add(PageNumber(1));
        assert_eq!(resident.take_oldest(), Some(PageNumber(3)));
        resident.given_back(PageNumber(1), false);
        resident.add(PageNumber(1));
        resident.add(PageNumber(3));
        let rest: Vec<_> = std::iter::from_fn(|| resident.take_oldest()).collect();
        assert_eq!(rest, [2, 4, 1, 3].map(PageNumber));
        assert_eq!(resident.len(), 0);
    }
}
