//! What a program has of an object is given back piece by piece, so that nothing else waits behind
//! all of it in the link; and closing one, which begins with that.

use std::time::Duration;

use quire_core::dsm::kernel::Failure;
use quire_core::dsm::message::{PageNumber, Pages};

use super::asking::Awaited;
use super::commands::Reply;
use super::{Carrier, Key};
use crate::client::ClientError;
use crate::client::progress::Note;
use crate::link::turn::Links;
use crate::wire::control::Request;

/// Pages that are given up are looked at in pieces of so many bytes at least, as few of them may be
/// there.
const LEAST_LOOKED_AT: u64 = 1 << 20;

/// Whether there is room for the next piece is looked at so often, beside when the link has
/// taken something.
pub(super) const NEXT_PIECE: Duration = Duration::from_millis(1);

/// What is given back, piece by piece.
pub(super) struct GivingBack {
    key: Key,
    what: What,
    /// How many of the pages that were written are not on their way yet.
    left: usize,
    pub(super) then: Then,
}

/// What of an object is given back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// What was written, from a page on.
    Written(PageNumber),
    /// All that is there of some pages.
    All(Pages),
}

/// What is done when all is given back, and who waits for that.
pub(super) enum Then {
    Sync(Reply<()>),
    Close(Reply<()>),
    /// Nothing.
    Tell(Reply<()>),
}

impl Carrier {
    /// Gives back all that was written to an object.
    pub(super) fn give_back(&mut self, links: &mut Links, key: Key, then: Then) {
        let object = self.objects.get(&key);
        // To count them takes time where there are many.
        let left = object.filter(|_| self.options.progress.is_some());
        self.giving_back.push_back(GivingBack {
            key,
            what: What::Written(PageNumber(0)),
            left: left.map_or(0, |object| object.cache.written()),
            then,
        });
        self.note_progress(links, Note::Begins);
        self.go_on_giving_back(links);
    }

    /// Gives up some pages of an object.
    pub(super) fn give_up_pages(
        &mut self,
        links: &mut Links,
        key: Key,
        pages: Pages,
        reply: Reply<()>,
    ) {
        self.giving_back.push_back(GivingBack {
            key,
            what: What::All(pages),
            left: 0,
            then: Then::Tell(reply),
        });
        self.go_on_giving_back(links);
    }

    /// Goes on with that, as far as there is room in the link. About as much waits there as goes in
    /// a moment, so that faults do not wait behind all of a large object.
    pub(super) fn go_on_giving_back(&mut self, links: &mut Links) {
        while let Some(mut giving) = self.giving_back.pop_front() {
            let link = self.usable_link();
            let piece = link.map_or(usize::MAX, |link| links.moment(link));
            if link.is_some_and(|link| links.queued(link) > piece) {
                return self.giving_back.push_front(giving);
            }
            match self.give_piece_back(links, &mut giving, piece as u64) {
                Some(what) => self.giving_back.push_front(GivingBack { what, ..giving }),
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
            object.map_or(0, |object| giving.left as u64 * object.form.page.bytes().0)
        });
        let queued = self.link.map_or(0, |link| links.queued(link) as u64);
        progress.note(pages.sum::<u64>() + queued, note);
    }

    /// Gives the next piece back. What is left then, if anything is.
    fn give_piece_back(
        &mut self,
        links: &mut Links,
        giving: &mut GivingBack,
        piece: u64,
    ) -> Option<What> {
        let page = self.objects.get(&giving.key)?.form.page.bytes().0;
        let mut left = None;
        self.with(links, giving.key, |cache, way| {
            left = match giving.what {
                What::Written(from) => {
                    let most = (piece / page).max(1) as usize;
                    giving.left = giving.left.saturating_sub(most);
                    cache.sync_from(from, most, way)?.map(What::Written)
                }
                What::All(pages) => {
                    let most = piece.max(LEAST_LOOKED_AT) / page;
                    let (now, rest) = first_of(pages, most.max(1));
                    cache.evict(now, way)?;
                    rest.map(What::All)
                }
            };
            Ok(())
        });
        left
    }

    /// All that was to be given back of an object is on its way to the server.
    fn all_given_back(&mut self, links: &mut Links, given: GivingBack) {
        let object = self.objects.get(&given.key);
        let changed = object.filter(|object| object.cache.ended() == Some(Failure::Changed));
        if let (Some(object), Then::Sync(reply) | Then::Tell(reply)) = (changed, &given.then) {
            // Who waited may have gone.
            return drop(reply.send(Err(ClientError::Changed(object.name.clone()))));
        }
        match (given.then, object.and_then(|object| object.handle)) {
            (Then::Close(reply), _) => self.close(links, given.key, reply),
            (Then::Sync(reply), Some(object)) => {
                self.ask(links, Request::Sync { object }, Awaited::Sync(reply));
            }
            // Who waited may have gone.
            (Then::Tell(reply), Some(_)) => drop(reply.send(Ok(()))),
            (Then::Sync(reply) | Then::Tell(reply), None) => self.refuse(Awaited::Sync(reply)),
        }
    }

    fn close(&mut self, links: &mut Links, key: Key, reply: Reply<()>) {
        let kept = self.objects.get(&key).map(|object| object.cache.kept());
        let ledger = kept.and_then(|kept| Some(kept.ok()??.ledger));
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
                let awaited = match ledger {
                    Some(ledger) => Awaited::CloseKept(reply, ledger),
                    None => Awaited::Close(reply),
                };
                self.ask(links, request, awaited);
            }
            None => self.refuse(Awaited::Close(reply)),
        }
    }
}

/// The first so many of some pages, and the others, if there are any.
fn first_of(pages: Pages, most: u64) -> (Pages, Option<Pages>) {
    let count = u32::try_from(most).map_or(pages.count, |most| most.min(pages.count));
    let now = Pages { count, ..pages };
    let first = pages.first.0.saturating_add(u64::from(count));
    let rest = Pages {
        first: PageNumber(first),
        count: pages.count - count,
    };
    (now, (rest.count > 0).then_some(rest))
}
