//! Those who watch what the schedulers of objects are told and tell (`quire object trace`).
//!
//! A scheduler that is watched has its [`Tap`] open. At the end of a turn of the loop what is
//! in the tap goes to the [`Watcher`]s, each of which has a queue of its own with a bound:
//! who does not fetch in time loses what is new, and is told how much. So nobody waits for
//! a watcher. An object that nobody watches pays one test for each message.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use quire_core::dsm::message::Pages;
use quire_core::dsm::scheduler::trace::Event;

use super::core::PeerId;
use crate::wire::control::{Name, RequestId, Seen};

/// Messages that wait for a watcher at most.
const QUEUE: usize = 8192;
/// Messages that one answer holds at most.
const AT_ONCE: usize = 512;
/// Watchers that a server has at most.
pub(super) const MOST: usize = 256;

/// Where what a scheduler is told and tells can be seen.
#[derive(Debug, Default)]
pub(super) struct Tap(Option<Flow>);

/// What came out of an open tap.
#[derive(Debug)]
struct Flow {
    /// When it was opened, by the clock that never goes back, and in nanoseconds since 1970.
    opened: (Instant, u64),
    seen: Vec<Seen>,
}

impl Tap {
    /// Opens it, if it is closed.
    pub fn open(&mut self) {
        self.0.get_or_insert_with(|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let now = now.map_or(0, |since| since.as_nanos());
            Flow {
                opened: (Instant::now(), u64::try_from(now).unwrap_or(u64::MAX)),
                seen: Vec::new(),
            }
        });
    }

    /// Closes it: what is in it is forgotten.
    pub fn close(&mut self) {
        self.0 = None;
    }

    /// A message passes.
    pub fn see(&mut self, event: impl FnOnce() -> Event) {
        if let Some(flow) = &mut self.0 {
            let (begin, unix) = flow.opened;
            let since = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            flow.seen.push(Seen {
                at: unix.saturating_add(since),
                event: event(),
            });
        }
    }

    /// Takes what passed since it was last asked.
    pub fn take(&mut self) -> Vec<Seen> {
        match &mut self.0 {
            Some(flow) => std::mem::take(&mut flow.seen),
            None => Vec::new(),
        }
    }
}

/// Somebody who watches an object.
#[derive(Debug)]
pub(super) struct Watcher {
    pages: Option<Pages>,
    /// What waits to be fetched.
    queue: VecDeque<Seen>,
    /// So many came since the queue was full. While there are any, none is put into it, so
    /// that they are all behind what it has.
    lost: u64,
    /// Who asked and was not answered yet.
    asked: Option<RequestId>,
    /// The first answer was given.
    is_begun: bool,
}

impl Watcher {
    fn new() -> Watcher {
        Watcher {
            pages: None,
            queue: VecDeque::new(),
            lost: 0,
            asked: None,
            is_begun: false,
        }
    }

    /// It wants to know more. A watcher asks one at a time: an earlier question that is not
    /// answered yet stays without an answer.
    pub fn ask(&mut self, request: RequestId, pages: Option<Pages>) {
        self.asked = Some(request);
        self.pages = pages;
    }

    /// Something passed.
    pub fn see(&mut self, seen: &Seen) {
        let is_wanted = match (self.pages, seen.event.pages) {
            (Some(wanted), Some(named)) => meet(wanted, named),
            _ => true,
        };
        match is_wanted {
            true if self.lost > 0 || self.queue.len() >= QUEUE => self.lost += 1,
            true => self.queue.push_back(seen.clone()),
            false => {}
        }
    }

    /// What it is to be told now, if it waits for that: which question is answered, what was
    /// seen, and how many were lost before that.
    pub fn answer(&mut self) -> Option<(RequestId, Vec<Seen>, u64)> {
        let has_news = !self.queue.is_empty() || self.lost > 0 || !self.is_begun;
        let request = self.asked.take_if(|_| has_news)?;
        self.is_begun = true;
        let count = self.queue.len().min(AT_ONCE);
        let seen: Vec<Seen> = self.queue.drain(..count).collect();
        // What was lost came after all that was in the queue.
        let lost = match seen.is_empty() {
            true => std::mem::take(&mut self.lost),
            false => 0,
        };
        Some((request, seen, lost))
    }

    /// The question that it waits for an answer to.
    pub fn waits(&mut self) -> Option<RequestId> {
        self.asked.take()
    }

    /// Whether there is something that it was not told yet.
    pub fn has_more(&self) -> bool {
        !self.queue.is_empty() || self.lost > 0
    }
}

/// Whether two ranges have pages in common.
fn meet(a: Pages, b: Pages) -> bool {
    a.contains(b.first) || b.contains(a.first)
}

/// All who watch, by object and peer.
#[derive(Debug, Default)]
pub(super) struct Watchers(BTreeMap<Name, BTreeMap<PeerId, Watcher>>);

impl Watchers {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.values().map(BTreeMap::len).sum()
    }

    /// The one of a peer, if it watches the object.
    pub fn find(&mut self, name: &Name, peer: PeerId) -> Option<&mut Watcher> {
        self.0.get_mut(name)?.get_mut(&peer)
    }

    /// The objects that a peer watches.
    pub fn watched_by(&self, peer: PeerId) -> impl Iterator<Item = &Name> {
        let of_it = self
            .0
            .iter()
            .filter(move |(_, all)| all.contains_key(&peer));
        of_it.map(|(name, _)| name)
    }

    /// A peer watches an object from now on.
    pub fn begin(&mut self, name: Name, peer: PeerId) -> &mut Watcher {
        let all = self.0.entry(name).or_default();
        all.entry(peer).or_insert_with(Watcher::new)
    }

    /// A peer watches nothing any more. Returns the objects that nobody watches now.
    pub fn end(&mut self, peer: PeerId) -> Vec<Name> {
        let mut left = Vec::new();
        for name in self.names() {
            self.remove(&name, peer);
            if !self.0.contains_key(&name) {
                left.push(name);
            }
        }
        left
    }

    /// One watcher ends.
    pub fn remove(&mut self, name: &Name, peer: PeerId) {
        if let Some(all) = self.0.get_mut(name) {
            all.remove(&peer);
            if all.is_empty() {
                self.0.remove(name);
            }
        }
    }

    /// The objects that are watched.
    pub fn names(&self) -> Vec<Name> {
        self.0.keys().cloned().collect()
    }

    /// Those who watch an object.
    pub fn of(&mut self, name: &Name) -> impl Iterator<Item = (PeerId, &mut Watcher)> {
        let all = self.0.get_mut(name).into_iter().flatten();
        all.map(|(peer, watcher)| (*peer, watcher))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quire_core::dsm::message::{Client, KernelId, PageNumber};

    use super::*;

    fn seen(at: u64) -> Seen {
        Seen {
            at,
            event: Event::gone(Client::Kernel(KernelId(1))),
        }
    }

    fn pages(first: u64, count: u32) -> Pages {
        Pages {
            first: PageNumber(first),
            count,
        }
    }

    proptest! {
        /// Whatever the order of messages and questions, each message is told once or
        /// counted as lost once, in order, and none is lost while there is room.
        #[test]
        fn nothing_is_told_twice_or_forgotten(steps in proptest::collection::vec(0..3000usize, 1..40)) {
            let mut watcher = Watcher::new();
            let (mut next, mut expected) = (0u64, 0u64);
            for (number, count) in steps.into_iter().enumerate() {
                for _ in 0..count {
                    watcher.see(&seen(next));
                    next += 1;
                }
                watcher.ask(RequestId(number as u64), None);
                if let Some((request, told, lost)) = watcher.answer() {
                    prop_assert_eq!(request, RequestId(number as u64));
                    prop_assert!(told.len() <= AT_ONCE);
                    expected += lost;
                    for seen in told {
                        prop_assert_eq!(seen.at, expected);
                        expected += 1;
                    }
                }
                prop_assert!(watcher.queue.len() <= QUEUE);
                prop_assert!(watcher.lost == 0 || next > QUEUE as u64, "there was room");
            }
            while watcher.has_more() {
                watcher.ask(RequestId(0), None);
                let (_, told, lost) = watcher.answer().expect("there is more");
                expected += lost + told.len() as u64;
            }
            prop_assert_eq!(expected, next);
        }

        #[test]
        fn ranges_meet_where_a_page_is_in_both(a in 0..20u64, n in 1..9u32, b in 0..20u64, m in 1..9u32) {
            let naive = (a..a + u64::from(n)).any(|page| (b..b + u64::from(m)).contains(&page));
            prop_assert_eq!(meet(pages(a, n), pages(b, m)), naive);
        }
    }

    #[test]
    fn a_closed_tap_sees_nothing() {
        let mut tap = Tap::default();
        tap.see(|| unreachable!("nobody looks"));
        tap.open();
        tap.see(|| seen(0).event);
        assert_eq!(tap.take().len(), 1);
        tap.close();
        assert!(tap.take().is_empty());
    }
}
