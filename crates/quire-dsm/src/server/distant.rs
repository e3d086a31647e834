//! The pager of an object that another server keeps on its disk. It sends what was given back
//! to that server, the *home server*, and says that it is safe when the home server says so.
//!
//! Each page goes with its version: what two servers send of one page may come in another
//! order than it was written, and the home server takes nothing older than what it has. What is
//! not answered is kept, and sent again in the next view, as messages get lost between
//! views only. Only so much is under way as there is room for ([`WINDOW`]), so the link is good for
//! what else is to be said. Nothing is loaded here: pages that no server has are the home server's to
//! load.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quire_core::dsm::message::{Access, PageNumber, Pages};
use quire_core::dsm::per_page::PerPage;
use quire_core::dsm::scheduler::distributed::Version;

use crate::pager::{Attributes, Backed, Contents, Control, Pager};

/// So much may be under way to a peer server, in bytes, that is sent in bulk and not answered: it is sent
/// in a moment, and is far less than a link that nobody reads is given up for.
pub(super) const WINDOW: usize = 16 << 20;
/// What a message counts for, in bytes, beside contents.
const MESSAGE: usize = 128;

/// What a page counts for, in bytes, where it is under way.
pub(super) fn weight(contents: Option<&Contents>) -> usize {
    MESSAGE + contents.map_or(0, |contents| contents.len())
}

/// A page on its way to the home server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parcel {
    /// Which page.
    pub page: PageNumber,
    /// Its version.
    pub version: Version,
    /// What it holds; nothing where that is all zeros.
    pub contents: Option<Contents>,
}

#[derive(Default)]
struct State {
    control: Option<Control>,
    /// The versions of what was given back last.
    versions: PerPage<Version>,
    unanswered: BTreeMap<u64, Parcel>,
    /// The number under which a page was sent last.
    numbers: BTreeMap<PageNumber, u64>,
    next: u64,
    /// Parcels from this number on were not sent in this view.
    unsent: u64,
    /// What was sent in this view and is not answered, also where it is given up, and what it counts
    /// for.
    sent: BTreeMap<u64, usize>,
    /// The sum of that.
    under_way: usize,
}

/// What is on its way to the home server of an object. Both the pager and whoever has the link to
/// the home server hold it.
#[derive(Clone, Default)]
pub(super) struct Queue(Arc<Mutex<State>>);

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A page is about to be given back in this version.
    pub fn given(&self, page: PageNumber, version: Version) {
        self.state().versions.insert(page, version);
    }

    /// What is under way to the home server, in bytes.
    pub fn under_way(&self) -> usize {
        self.state().under_way
    }

    /// What is to be sent now, and under which numbers, where so many bytes may come to be under
    /// way. It counts as sent from now on.
    pub fn take(&self, room: usize) -> Vec<(u64, Parcel)> {
        let mut state = self.state();
        let mut parcels = Vec::new();
        let mut taken = 0;
        for (&number, parcel) in state.unanswered.range(state.unsent..) {
            if taken >= room {
                break;
            }
            taken += weight(parcel.contents.as_ref());
            parcels.push((number, parcel.clone()));
        }
        for (number, parcel) in &parcels {
            state.sent.insert(*number, weight(parcel.contents.as_ref()));
            state.unsent = number + 1;
        }
        state.under_way += taken;
        parcels
    }

    /// What was sent and is not answered is to be sent again.
    pub fn again(&self) {
        let mut state = self.state();
        state.unsent = 0;
        state.sent.clear();
        state.under_way = 0;
    }

    /// The home server has answered.
    pub fn answered(&self, number: u64, result: Result<(), String>) {
        let mut state = self.state();
        let weight = state.sent.remove(&number);
        state.under_way -= weight.unwrap_or(0);
        let Some(parcel) = state.unanswered.remove(&number) else {
            // It was sent twice, or is given up.
            return;
        };
        state.numbers.remove(&parcel.page);
        if let Some(control) = &state.control {
            control.data_written(Pages::one(parcel.page), result);
        }
    }
}

/// The pager of an object whose home server is another server.
#[derive(Default)]
pub(super) struct Distant {
    queue: Queue,
    control: Option<Control>,
}

impl Distant {
    /// A pager, and what it puts on its way.
    pub fn new() -> (Distant, Queue) {
        let distant = Distant::default();
        let queue = distant.queue.clone();
        (distant, queue)
    }
}

impl Pager for Distant {
    fn init(&mut self, _: &Backed, control: Control) {
        control.set_attributes(Attributes {
            may_write: true,
            keeps: false,
        });
        self.queue.state().control = Some(control.clone());
        self.control = Some(control);
    }

    fn data_request(&mut self, pages: Pages, _: Access) {
        if let Some(control) = &self.control {
            control.data_error(pages, "another server keeps the object");
        }
    }

    fn data_write(&mut self, pages: Pages, data: Vec<Option<Contents>>) {
        let mut state = self.queue.state();
        for (page, contents) in pages.iter().zip(data) {
            let number = state.next;
            state.next += 1;
            // What was sent before and took too long is given up: its answer means nothing.
            if let Some(before) = state.numbers.insert(page, number) {
                state.unanswered.remove(&before);
            }
            let version = state.versions.get(page).copied().unwrap_or_default();
            let parcel = Parcel {
                page,
                version,
                contents,
            };
            state.unanswered.insert(number, parcel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageNumber = PageNumber(3);

    fn write(distant: &mut Distant, version: u64) {
        distant.queue.given(PAGE, Version(version));
        distant.data_write(Pages::one(PAGE), vec![None]);
    }

    fn versions(queue: &Queue) -> Vec<(u64, u64)> {
        let taken = queue.take(WINDOW).into_iter();
        taken
            .map(|(number, parcel)| (number, parcel.version.0))
            .collect()
    }

    #[test]
    fn what_is_not_answered_goes_again_in_the_next_view() {
        let (mut distant, queue) = Distant::new();
        write(&mut distant, 5);
        assert_eq!(versions(&queue), [(0, 5)]);
        assert_eq!(versions(&queue), []);
        queue.again();
        assert_eq!(versions(&queue), [(0, 5)]);
        queue.answered(0, Ok(()));
        queue.again();
        assert_eq!(versions(&queue), []);
    }

    #[test]
    fn so_much_is_under_way_as_there_is_room_for() {
        let (mut distant, queue) = Distant::new();
        let contents = || Some(Contents::from(vec![1; 4096]));
        let each = weight(contents().as_ref());
        let pages = Pages {
            first: PageNumber(0),
            count: 5,
        };
        distant.data_write(pages, (0..5).map(|_| contents()).collect());
        let taken = |room: usize| -> Vec<u64> {
            let taken = queue.take(room).into_iter();
            taken.map(|(number, _)| number).collect()
        };
        assert_eq!(taken(2 * each), [0, 1]);
        assert_eq!(queue.under_way(), 2 * each);
        assert_eq!(taken(0), [0; 0]);
        // One that is larger than what there is room for goes all the same.
        assert_eq!(taken(1), [2]);
        queue.answered(0, Ok(()));
        assert_eq!(queue.under_way(), 2 * each);
        // What is given up is under way until it is answered.
        distant.data_write(Pages::one(PageNumber(1)), vec![contents()]);
        assert_eq!(queue.under_way(), 2 * each);
        queue.answered(1, Ok(()));
        assert_eq!(queue.under_way(), each);
        // Nothing is, in another view; what is not answered goes again.
        queue.again();
        assert_eq!(queue.under_way(), 0);
        assert_eq!(taken(WINDOW), [2, 3, 4, 5]);
    }

    #[test]
    fn an_answer_for_what_was_given_up_means_nothing() {
        let (mut distant, queue) = Distant::new();
        let (control, heard) = Control::new(Arc::new(|| {}));
        queue.state().control = Some(control);
        write(&mut distant, 5);
        write(&mut distant, 6);
        queue.answered(0, Ok(()));
        assert!(heard.try_recv().is_err());
        assert_eq!(versions(&queue), [(1, 6)]);
        queue.answered(1, Ok(()));
        assert!(heard.try_recv().is_ok());
    }
}
