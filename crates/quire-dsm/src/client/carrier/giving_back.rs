//! What was written to an object is given back piece by piece, so that nothing else waits behind all
//! of it in the link; and closing one, which begins with that.

use std::time::Duration;

use quire_core::dsm::message::PageNumber;

use super::asking::Awaited;
use super::commands::Reply;
use super::{Carrier, Key};
use crate::client::progress::Note;
use crate::link::turn::Links;
use crate::wire::control::Request;

/// About so much of what is given back waits in a link at a time, so that heartbeats and
/// faults do not wait behind all of a large object.
const PIECE: u64 = 8 << 20;

/// Whether there is room for the next piece is looked at so often, beside when the link has
/// taken something.
pub(super) const NEXT_PIECE: Duration = Duration::from_millis(1);

/// What was written to an object is given back, piece by piece.
pub(super) struct GivingBack {
    key: Key,
    next: PageNumber,
    /// How many of the pages are not on their way yet.
    left: usize,
    pub(super) then: Then,
}

/// What is done when all is given back, and who waits for that.
pub(super) enum Then {
    Sync(Reply<()>),
    Close(Reply<()>),
}

impl Carrier {
    /// Gives back all that was written to an object.
    pub(super) fn give_back(&mut self, links: &mut Links, key: Key, then: Then) {
        let object = self.objects.get(&key);
        // To count them takes time where there are many.
        let left = object.filter(|_| self.options.progress.is_some());
        self.giving_back.push_back(GivingBack {
            key,
            next: PageNumber(0),
            left: left.map_or(0, |object| object.cache.written()),
            then,
        });
        self.note_progress(links, Note::Begins);
        self.go_on_giving_back(links);
    }

    /// Goes on with that, as far as there is room in the link.
    pub(super) fn go_on_giving_back(&mut self, links: &mut Links) {
        while let Some(mut giving) = self.giving_back.pop_front() {
            let link = self.link.filter(|_| self.is_up);
            let (mut next, mut most) = (None, 0);
            if link.is_some_and(|link| links.queued(link) as u64 > PIECE) {
                next = Some(giving.next);
            } else if let Some(object) = self.objects.get(&giving.key) {
                most = (PIECE / object.page.0).max(1) as usize;
                self.with(links, giving.key, |cache, way| {
                    next = cache.sync_from(giving.next, most, way)?;
                    Ok(())
                });
            }
            match next {
                Some(next) if next == giving.next => return self.giving_back.push_front(giving),
                Some(next) => {
                    giving.next = next;
                    giving.left = giving.left.saturating_sub(most);
                    self.giving_back.push_front(giving);
                }
                None => self.all_given_back(links, giving),
            }
        }
    }

    /// Notes how much of what is given back did not leave yet, for who wants to know.
    pub(super) fn note_progress(&self, links: &Links, note: Note) {
        let Some(progress) = self.options.progress else {
            return;
        };
        let pages = self.giving_back.iter().map(|giving| {
            let object = self.objects.get(&giving.key);
            object.map_or(0, |object| giving.left as u64 * object.page.0)
        });
        let queued = self.link.map_or(0, |link| links.queued(link) as u64);
        progress.note(pages.sum::<u64>() + queued, note);
    }

    /// All that was written to an object is on its way to the server.
    fn all_given_back(&mut self, links: &mut Links, given: GivingBack) {
        let object = self.objects.get(&given.key);
        match (given.then, object.and_then(|object| object.handle)) {
            (Then::Close(reply), _) => self.close(links, given.key, reply),
            (Then::Sync(reply), Some(object)) => {
                self.ask(links, Request::Sync { object }, Awaited::Sync(reply));
            }
            (Then::Sync(reply), None) => self.refuse(Awaited::Sync(reply)),
        }
    }

    fn close(&mut self, links: &mut Links, key: Key, reply: Reply<()>) {
        self.with(links, key, |cache, way| cache.terminate(way));
        let Some(mut object) = self.objects.remove(&key) else {
            return self.refuse(Awaited::Close(reply));
        };
        if let Some(uffd) = object.cache.uffd(object.space) {
            // The descriptor ends with the cache anyway.
            let _ = links.unwatch(uffd);
        }
        self.regions.forget(links, key, &object.cache);
        object.cache.remove(object.space);
        match object.handle {
            Some(handle) => {
                self.handles.remove(&handle);
                let request = Request::Close { object: handle };
                self.ask(links, request, Awaited::Close(reply));
            }
            None => self.refuse(Awaited::Close(reply)),
        }
    }
}
