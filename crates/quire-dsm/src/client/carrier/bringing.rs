//! What was written over a link that has ended is brought over the next one: to an object of this
//! program before anything of that is used again, or for a program that was killed (`client/recovery.rs`).
//!
//! The server takes a page that nobody else has been given since. What it does not take is lost:
//! who has written it is told, as [`Options::on_loss`](crate::client::Options::on_loss) says.

use std::mem;

use quire_core::dsm::message::{FromKernel, KernelId, PageNumber, Pages};

use super::asking::Awaited;
use super::commands::Reply;
use super::{Carrier, Key};
use crate::client::{Loss, Remains};
use crate::link::turn::Links;
use crate::node::ledger::{Entry, Session};
use crate::node::{Holds, OTHERS_HAVE_THEM, Written};
use crate::whole;
use crate::wire::control::{Answer, Failure, Handle, Name, Request, RequestId};
use crate::wire::{Contents, Control, Pool};

/// So much is brought in one message at most, in bytes, if a page is not larger.
const TOGETHER: u64 = 128 << 10;

/// Whose it is.
pub(super) enum Whose {
    /// An object that this program has open, and what it is called over the new link.
    Own(Key, Handle),
    /// An object of this program, of which another server had the pages that this machine shares.
    Server(Key),
    /// That of a program that is gone. Who waits is told how many pages are lost.
    Other(Reply<u64>),
}

/// What is being brought.
pub(super) struct Bringing {
    pub(super) whose: Whose,
    written: Written,
    name: Name,
    session: Session,
    /// What the object is called on this link, when it is claimed.
    claim: Option<Handle>,
    /// Whether the server knows the link over which it was written, and how many pages came over
    /// that.
    is_known: bool,
    received: u64,
    /// Whether other servers may have what was given back.
    is_shared: bool,
    /// Where to go on.
    next: PageNumber,
    /// So many pages had been given back that had not arrived, and are brought.
    again: u64,
    /// So many cannot be brought.
    missing: u64,
    /// Of the pages that are brought next, their stamps, and whether they were not given back.
    stamps: Vec<(u64, bool)>,
    is_done: bool,
}

impl Bringing {
    /// The next pages that follow each other, and where to go on behind them.
    fn next(&mut self, most: u32) -> Option<Pages> {
        let mut run: Option<Pages> = None;
        loop {
            let found = self.written.ledger.next(self.next);
            let Ok(Some((page, entry, stamp))) = found else {
                self.is_done = run.is_none();
                return run;
            };
            let follows = run.is_none_or(|run| run.is_followed_by(Pages::one(page)));
            let is_full = run.is_some_and(|run| run.count >= most);
            let is_owed = match entry {
                Entry::Written => true,
                Entry::GivenBack(number) | Entry::Gone(number) if self.is_known => {
                    number >= self.received
                }
                Entry::GivenBack(number) | Entry::Gone(number) => number >= self.session.safe,
            };
            let holds = match entry {
                Entry::Gone(_) => Holds::Nothing,
                _ => self.written.holds(page),
            };
            let is_brought = is_owed && holds == Holds::All;
            if is_brought && (!follows || is_full) {
                return run;
            }
            self.next = PageNumber(page.0 + 1);
            self.missing += u64::from(match entry {
                // Of a hole the program has never seen anything.
                Entry::Written => holds == Holds::Some,
                // Those that a server which knows the link did not get are counted together.
                _ => is_owed && !is_brought && !self.is_known && !self.is_shared,
            });
            if is_brought {
                self.again += u64::from(matches!(entry, Entry::GivenBack(_)));
                let count = run.map_or(0, |run| run.count) + 1;
                let first = run.map_or(page, |run| run.first);
                if count == 1 {
                    self.stamps.clear();
                }
                self.stamps.push((stamp, entry == Entry::Written));
                run = Some(Pages { first, count });
            }
        }
    }

    /// What pages hold; those that cannot be read are missing.
    fn read(&mut self, pages: Pages, pool: &Pool) -> Option<Vec<Option<Contents>>> {
        let size = self.written.page.0 as usize;
        let length = size * pages.count as usize;
        let mut buffer = pool.take(length);
        let at = pages.first.0 * self.written.page.0;
        if whole::read(&self.written.memory, &mut buffer[..length], at).is_err() {
            self.missing += u64::from(pages.count);
            return None;
        }
        let all = Contents::whole(buffer, length);
        Some(all.pieces(size).map(Some).collect())
    }

    /// So many pages had been given back, and neither arrived nor are there any more.
    fn count_what_was_under_way(&mut self) {
        if self.is_known {
            let under_way = self.session.given_back.saturating_sub(self.received);
            self.missing += under_way.saturating_sub(self.again);
        }
    }
}

impl Carrier {
    /// Brings what is left of a program that is gone.
    pub(super) fn bring_remains(&mut self, links: &mut Links, remains: Remains, reply: Reply<u64>) {
        let Remains { name, written } = remains;
        match written.ledger.session() {
            Some(session) => self.bring(links, (name, session, written), Whose::Other(reply)),
            // It gave up all in order. Who waited may have gone.
            None => drop(reply.send(Ok(0))),
        }
    }

    /// Brings what was written to an object before its link broke. Whether there is anything: then it
    /// goes on when that is done.
    pub(super) fn bring_own(&mut self, links: &mut Links, key: Key, handle: Handle) -> bool {
        let Some(object) = self.objects.get(&key) else {
            return false;
        };
        let name = object.exact.clone();
        let written = object.cache.written_before();
        let Some((session, written)) = written.and_then(|it| Some((it.ledger.session()?, it)))
        else {
            return false;
        };
        self.bring(links, (name, session, written), Whose::Own(key, handle));
        true
    }

    /// Brings what was written to memory that this program shared with a server, which is gone. The object goes
    /// on when that is done.
    pub(super) fn bring_of_server(
        &mut self,
        links: &mut Links,
        key: Key,
        (session, written): (Session, Written),
    ) {
        if let Some(name) = self.attached.get(&key).map(|it| it.exact().clone()) {
            self.bring(links, (name, session, written), Whose::Server(key));
        }
    }

    fn bring(
        &mut self,
        links: &mut Links,
        (name, session, written): (Name, Session, Written),
        whose: Whose,
    ) {
        self.last_bringing += 1;
        let bringing = Bringing {
            whose,
            written,
            name,
            session,
            claim: None,
            is_known: false,
            received: 0,
            is_shared: false,
            next: PageNumber(0),
            again: 0,
            missing: 0,
            stamps: Vec::new(),
            is_done: false,
        };
        self.bringing.insert(self.last_bringing, bringing);
        self.claim(links, self.last_bringing);
    }

    fn claim(&mut self, links: &mut Links, number: u64) {
        let Some(bringing) = self.bringing.get(&number) else {
            return;
        };
        let request = Request::Claim {
            session: KernelId(bringing.session.number),
            object: Handle(bringing.session.object),
            name: bringing.name.clone(),
        };
        self.ask(links, request, Awaited::Claimed(number));
    }

    /// There is a new link: what was not brought to its end begins anew.
    pub(super) fn claim_again(&mut self, links: &mut Links) {
        let others = self.bringing.iter();
        let others = others.filter(|(_, it)| matches!(it.whose, Whose::Other(_)));
        let numbers: Vec<u64> = others.map(|(number, _)| *number).collect();
        for number in numbers {
            if let Some(bringing) = self.bringing.get_mut(&number) {
                (bringing.next, bringing.again, bringing.missing) = (PageNumber(0), 0, 0);
                bringing.is_done = false;
            }
            self.claim(links, number);
        }
    }

    /// The link broke. What is this program's own begins anew when its object is open again.
    pub(super) fn stop_bringing(&mut self) {
        self.bringing.retain(|_, bringing| {
            bringing.claim = None;
            matches!(bringing.whose, Whose::Other(_))
        });
    }

    pub(super) fn claimed(
        &mut self,
        links: &mut Links,
        number: u64,
        answer: Result<Answer, Failure>,
    ) {
        let Some(bringing) = self.bringing.get_mut(&number) else {
            return;
        };
        match answer {
            Ok(Answer::Claimed {
                object,
                is_known,
                received,
                is_shared,
            }) => {
                bringing.claim = Some(object);
                (bringing.is_known, bringing.received) = (is_known, received);
                bringing.is_shared = is_shared;
                self.go_on_bringing(links);
            }
            // The object is gone, or may not be written to any more: so is all that was written.
            _ => {
                bringing.session.safe = 0;
                while bringing.next(1).is_some() {
                    bringing.missing += 1;
                }
                let missing = bringing.missing;
                self.is_settled(links, number, missing);
            }
        }
    }

    /// Brings more, as far as there is room in the link.
    pub(super) fn go_on_bringing(&mut self, links: &mut Links) {
        let Some(link) = self.usable_link() else {
            return;
        };
        let mut done = Vec::new();
        let last = &mut self.last_request;
        let pool = links.pool().clone();
        for (number, bringing) in &mut self.bringing {
            let Some(object) = bringing.claim else {
                continue;
            };
            let most = (TOGETHER / bringing.written.page.0).max(1) as u32;
            while !bringing.is_done && links.queued(link) <= links.moment(link) {
                let Some(pages) = bringing.next(most) else {
                    break;
                };
                if let Some(data) = bringing.read(pages, &pool) {
                    if !bringing.is_known {
                        *last += 1;
                        let (id, stamps) = (RequestId(*last), mem::take(&mut bringing.stamps));
                        let first = pages.first;
                        let request = Request::Vouch {
                            object,
                            first,
                            stamps,
                        };
                        // Whatever is answered, the pages are taken or not.
                        links.send(link, Control::Request { id, request });
                    }
                    let message = FromKernel::DataWrite { pages, data };
                    // A link that takes no more has ended, which is told.
                    links.send(link, Control::FromKernel { object, message });
                }
            }
            if bringing.is_done && mem::take(&mut bringing.claim).is_some() {
                bringing.count_what_was_under_way();
                done.push((*number, object, bringing.missing));
            }
        }
        for (number, object, missing) in done {
            let request = Request::Settle { object, missing };
            self.ask(links, request, Awaited::Settled(number));
        }
    }

    /// Whether something waits until there is room in the link.
    pub(super) fn brings(&self) -> bool {
        self.bringing.values().any(|it| it.claim.is_some())
    }

    pub(super) fn settled(
        &mut self,
        links: &mut Links,
        number: u64,
        answer: Result<Answer, Failure>,
    ) {
        let missing = self.bringing.get(&number).map_or(0, |it| it.missing);
        let lost = match answer {
            Ok(Answer::Settled { lost }) => lost,
            // Nothing of it was claimed, then.
            _ => 0,
        };
        self.is_settled(links, number, lost + missing);
    }

    fn is_settled(&mut self, links: &mut Links, number: u64, lost: u64) {
        let Some(bringing) = self.bringing.remove(&number) else {
            return;
        };
        match bringing.whose {
            // Who waited may have gone.
            Whose::Other(reply) => drop(reply.send(Ok(lost))),
            Whose::Own(key, handle) => {
                self.with(links, key, |cache, _| cache.is_brought(lost));
                self.resume(links, key, handle);
            }
            Whose::Server(key) => {
                if let Some(attached) = self.attached.get(&key).filter(|_| lost > 0) {
                    self.is_lost(attached.name(), lost, OTHERS_HAVE_THEM);
                }
                self.attached_goes_on(links, key);
            }
        }
    }

    /// Tells the program what it has lost of an object.
    pub(super) fn tell_of_loss(&mut self, key: Key) {
        let Some(object) = self.objects.get_mut(&key) else {
            return;
        };
        let Some((pages, why)) = object.cache.take_lost() else {
            return;
        };
        let name = object.name.clone();
        self.is_lost(&name, pages, &why);
    }

    fn is_lost(&self, name: &Name, pages: u64, why: &str) {
        tracing::error!("{name}: what this program wrote to {pages} of its pages is lost: {why}");
        if let Some(on_loss) = self.options.on_loss {
            on_loss(&Loss { name, pages });
        }
    }
}
