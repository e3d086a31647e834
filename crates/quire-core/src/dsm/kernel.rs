//! The cache of an object on one machine: what the paper's Mach kernel does between the
//! programs that touch an object and the server that orders their faults. It is told of
//! faults, messages and the time, and says what shall be done to memory and what is sent.
//!
//! A page is absent, asked for, readable, readable and asked for to be written, writable,
//! or failed. All programs of the machine share its copy; each of their mappings (a
//! [`Space`]) is shown the page when it touches it. Only pages that are not absent are
//! known, so that an object may be huge.
//!
//! What the paper leaves open, or real networks force:
//!
//! - A page that was given is kept for [`Settings::hold`] before a flush is obeyed, so that
//!   the thread that faulted gets to use it (the paper's server waits instead:
//!   `deschedule_myself`). Whoever knows that the thread has used it says so
//!   ([`Kernel::used`]), and it is not kept any longer.
//! - A flush is answered also where the page is not there. One that meets a page that was
//!   asked for is answered at once, and the request stays. One that meets a page that was
//!   to be upgraded drops it, and the upgrade then brings contents.
//! - No fault waits forever. When its patience ends, the page is failed for good in this
//!   cache; what the server sends for it later goes straight back.
//! - When the link breaks or the lease ends, everything is dropped at once, before anybody
//!   else may own it. Faults wait for a new link for [`Settings::reconnect`], and are then
//!   asked for anew; if there is none in time, all mappings fail for good.

use std::collections::BTreeSet;
use std::ops::Add;
use std::time::Duration;

#[cfg(test)]
use super::message;
use super::message::{Access, FromKernel, Lock, PageNumber, Pages, ToKernel};
use super::per_page::PerPage;
use crate::units::Bytes;
use ahead::{Streams, Way, Who, Window};
use around::Walks;
use needs::{Need, Needs};
use page::{Page, State};
use queue::Queue;
use runs::runs;
use strides::Strides;

mod ahead;
mod around;
mod needs;
mod page;
mod queue;
mod runs;
mod strides;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod toy;

/// The most pages that one message may call lost.
const MOST_LOST: u32 = 1 << 20;

/// So many windows of what is needed are passed over at a time, where all of their pages are here.
const PASSED_OVER: usize = 16;

/// An instant on a clock that never goes back, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, rhs: Duration) -> Time {
        let nanoseconds = u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_add(nanoseconds))
    }
}

/// One mapping of the object in one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Space(pub u32);

/// How a cache behaves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// Pages that the object has.
    pub pages: u64,
    /// Pages that one page of this machine has, which are asked for together; at least one.
    pub together: u32,
    /// The most pages that are asked for ahead of a sequential reader or writer; none: 0.
    pub ahead: u32,
    /// What is asked for ahead goes into messages of so many pages at most, so that one of them
    /// is on its way while the next is got together; at least one.
    pub piece: u32,
    /// The most pages that a message with contents may hold; at least one.
    pub most: u32,
    /// The most pages that are held; those that came first go first. Somewhat more are held
    /// while they may not be given back yet.
    pub room: u64,
    /// How long a page that was given is kept at least.
    pub hold: Duration,
    /// How long a fault may wait.
    pub patience: Duration,
    /// How long faults may wait for a new link when the old one broke; without any such
    /// time a broken link fails the mappings at once.
    pub reconnect: Duration,
}

impl Settings {
    /// The usual ones for an object of so many pages.
    #[must_use]
    pub const fn new(pages: u64) -> Settings {
        Settings {
            pages,
            together: 1,
            ahead: 32,
            piece: 32,
            most: 16,
            room: u64::MAX,
            hold: LEAST_HOLD,
            patience: Duration::from_secs(30),
            reconnect: Duration::from_secs(10),
        }
    }
}

/// The least and the most time for which a page is kept.
const LEAST_HOLD: Duration = Duration::from_micros(50);
const MOST_HOLD: Duration = Duration::from_millis(1);

/// How long a page is to be kept, where a message to whoever may have it, and the answer,
/// take so long: about as long as one of the two. So a page that all want is used about as
/// long as it travels, and all get an equal share of it, whatever the way that it takes.
#[must_use]
pub fn hold_for(round_trip: Duration) -> Duration {
    (round_trip / 2).clamp(LEAST_HOLD, MOST_HOLD)
}

/// The most that is asked for ahead because pages take long to come.
const MOST_AHEAD: Bytes = Bytes(2 << 20);

/// How much is to be asked for ahead at most, where a page takes so long to come: as much as comes
/// meanwhile at a gigabyte a second, so that who goes through pages in order need not wait for
/// each window; no less than this, and nothing where this is nothing.
#[must_use]
pub fn ahead_for(latency: Duration, least: Bytes) -> Bytes {
    let comes = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
    match least.0 {
        0 => least,
        _ => Bytes(comes.min(MOST_AHEAD.0)).max(least),
    }
}

/// The least time for which a thread is to have had a page that it waited for.
const LEAST_USE: Duration = Duration::from_micros(10);

/// For how long the thread that waited for a page has to have run with it; then the page is
/// not to be kept any longer. That it is kept for longer over a short way is for threads that
/// take so long to wake up.
#[must_use]
pub fn use_for(round_trip: Duration) -> Duration {
    (round_trip / 2).clamp(LEAST_USE, MOST_HOLD)
}

/// What a cache wants to be done. The order counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action<D> {
    /// The server is told.
    Send(FromKernel<D>),
    /// Contents are put where there are none; where a mapping is named, it is shown them,
    /// and who waits there goes on.
    Fill {
        /// Which pages.
        pages: Pages,
        /// What each of them holds.
        data: Vec<Option<D>>,
        /// What the mapping may do to them.
        access: Access,
        /// The mapping.
        space: Option<Space>,
    },
    /// A mapping is shown pages that are there, and who waits there goes on.
    Show {
        /// Which pages.
        pages: Pages,
        /// What the mapping may do to them.
        access: Access,
        /// The mapping.
        space: Space,
    },
    /// A mapping may write to pages that it is shown, and who waits there goes on.
    Allow {
        /// Which pages.
        pages: Pages,
        /// The mapping.
        space: Space,
    },
    /// Pages that were writable are taken from all mappings, what they hold is sent in a
    /// [`FromKernel::DataWrite`], and they are gone.
    GiveBack(Pages),
    /// Pages that were readable are taken from all mappings and are gone.
    Remove(Pages),
    /// All pages are taken from all mappings and are gone.
    RemoveAll,
    /// What was written to these pages since they were given is lost, as the link broke.
    Lost(Pages),
    /// Touches of these pages, which are not there, fail in a mapping, also those that wait.
    Fail {
        /// Which pages.
        pages: Pages,
        /// The mapping.
        space: Space,
        /// Why.
        why: Failure,
    },
    /// All pages are gone, and all touches fail from now on.
    FailAll(Failure),
}

/// Why touches of memory fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// The server lost what the page held.
    #[error("what the page held is lost")]
    Lost,
    /// The server did not give the page in time.
    #[error("the server did not give the page in time")]
    Late,
    /// The link to the server broke, and there was no new one in time.
    #[error("the server cannot be reached")]
    Unreachable,
    /// The object was given up here.
    #[error("the object is no longer used here")]
    Ended,
    /// It was removed; maybe another object has its name now.
    #[error("the object was removed, and maybe made anew")]
    Changed,
    /// There is no such page.
    #[error("the object has no such page")]
    Outside,
    /// The machine refused what coherence needs.
    #[error("this machine refuses what is needed to keep the memory coherent")]
    Refused,
}

/// A message from the server that makes no sense. Nothing was changed; the link cannot be
/// used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Nonsense(pub &'static str);

/// The link to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Link {
    /// It works; a lease may end on its own.
    Up { lease: Option<Time> },
    /// It broke; a new one is waited for.
    Down { until: Time },
    /// The object is given up here.
    Ended(Failure),
}

/// A flush that waits until its pages were held long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Deferred {
    due: Time,
    pages: Pages,
}

/// The cache of an object on one machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    settings: Settings,
    pages: PerPage<Page>,
    /// When a page's first waiter loses patience.
    alarms: BTreeSet<(Time, PageNumber)>,
    flushes: Vec<Deferred>,
    /// What is held, in the order in which it came, where room is limited.
    held: Queue,
    streams: Streams,
    strides: Strides,
    walks: Walks,
    needs: Needs,
    link: Link,
}

impl Kernel {
    /// An empty cache, with a link.
    #[must_use]
    pub fn new(settings: Settings) -> Kernel {
        Kernel {
            settings,
            pages: PerPage::new(),
            alarms: BTreeSet::new(),
            flushes: Vec::new(),
            held: Queue::default(),
            streams: Streams::default(),
            strides: Strides::default(),
            walks: Walks::default(),
            needs: Needs::default(),
            link: Link::Up { lease: None },
        }
    }

    /// A program touched a page in a way that its mapping does not allow, and waits.
    pub fn fault<D>(
        &mut self,
        now: Time,
        space: Space,
        page: PageNumber,
        access: Access,
        actions: &mut Vec<Action<D>>,
    ) {
        self.expire(now, actions);
        let one = Pages::one(page);
        let refused = match self.link {
            Link::Ended(why) => Some(why),
            _ if page.0 >= self.settings.pages => Some(Failure::Outside),
            _ => None,
        };
        if let Some(why) = refused {
            actions.push(Action::Fail {
                pages: one,
                space,
                why,
            });
            return;
        }
        let known = self.pages.get(page);
        match (known.map(|page| page.state), access) {
            (Some(State::Failed(why)), _) => actions.push(Action::Fail {
                pages: one,
                space,
                why,
            }),
            (Some(State::Writable), _) => self.show(space, page, Access::Write, actions),
            (Some(State::Readable | State::Upgrading), Access::Read) => {
                self.show(space, page, Access::Read, actions);
            }
            (Some(State::Asked(_) | State::Upgrading), _) => self.wait(now, space, page, access),
            (None | Some(State::Readable), _) => {
                let block = self.ask(space, page, access, actions);
                self.wait(now, space, page, access);
                if self.settings.ahead > 0 {
                    let window = self.missed((space, access), block);
                    self.ask_ahead(window, actions);
                }
                return;
            }
        }
        let most = self.settings.ahead;
        let in_order = self.streams.reached(page, access, most);
        let window = in_order.or_else(|| self.strides.reached(page, access, most));
        self.ask_ahead(window, actions);
    }

    /// A program lacked a page of this machine; what it will lack next.
    fn missed(&mut self, who: Who, page: Pages) -> Option<Window> {
        let most = self.settings.ahead;
        let known = self.strides.goes_on(who, page, most);
        let window = known.or_else(|| self.streams.missed(who, page, most));
        window.or_else(|| {
            let window = self.strides.missed(who, page, most)?;
            self.streams.leave_pages_out(who);
            Some(window)
        })
    }

    /// A program says that it will read or write pages soon, in order: those that are lacking are
    /// asked for, as fast as they come, and its mapping is shown them. A hint, without any answer.
    pub fn will_need<D>(
        &mut self,
        now: Time,
        space: Space,
        (pages, access): (Pages, Access),
        actions: &mut Vec<Action<D>>,
    ) {
        self.expire(now, actions);
        let rest = self.there_are(pages.first, pages.count);
        let need = Need {
            space,
            access,
            rest,
        };
        self.go_on_with(need, actions);
    }

    /// Asks for the next pages that are needed, and waits for one of them with the rest. Those
    /// that are here already, or were asked for, are passed over, so many windows of them at a time.
    fn go_on_with<D>(&mut self, mut need: Need, actions: &mut Vec<Action<D>>) {
        if !matches!(self.link, Link::Up { .. }) {
            return;
        }
        let window = self.settings.ahead.max(self.settings.together).max(1);
        for _ in 0..PASSED_OVER {
            let Some(pages) = need.next(window) else {
                return;
            };
            let (who, piece) = ((need.space, need.access), self.settings.piece);
            let asked = self.ask_for(who, pages, None, piece, actions);
            if let Some(mark) = asked {
                return self.needs.wait(mark, need);
            }
        }
        self.needs.go_on(need);
    }

    /// The server said something.
    ///
    /// # Errors
    /// When it makes no sense; then nothing was changed.
    pub fn hear<D>(
        &mut self,
        now: Time,
        message: ToKernel<D>,
        actions: &mut Vec<Action<D>>,
    ) -> Result<(), Nonsense> {
        self.expire(now, actions);
        if !matches!(self.link, Link::Up { .. }) {
            // It was under way when the link broke, or when the object was given up.
            return Ok(());
        }
        let (ToKernel::DataProvided { pages, .. }
        | ToKernel::LockRequest { pages, .. }
        | ToKernel::DataError { pages }) = &message;
        self.check(*pages)?;
        match message {
            ToKernel::DataProvided {
                pages,
                data,
                access,
            } => self.provided(now, pages, data, access, actions),
            ToKernel::LockRequest {
                pages,
                lock: Lock::Flush,
            } => {
                self.flush(now, pages, actions);
                Ok(())
            }
            ToKernel::LockRequest {
                pages,
                lock: Lock::AllowWrite,
            } => self.allowed(now, pages, actions),
            ToKernel::DataError { pages } => {
                if pages.count > MOST_LOST {
                    return Err(Nonsense("more pages are lost at once than can be"));
                }
                for page in pages.iter() {
                    self.fail(page, Failure::Lost, actions);
                }
                Ok(())
            }
        }
    }

    /// What is due by now is done: flushes that waited, faults that waited too long, the
    /// end of the lease, the end of the wait for a new link, the next of what is needed.
    pub fn pass<D>(&mut self, now: Time, actions: &mut Vec<Action<D>>) {
        self.expire(now, actions);
        while let Some(at) = self.flushes.iter().position(|flush| flush.due <= now) {
            let flush = self.flushes.remove(at);
            self.obey(flush.pages, actions);
        }
        while let Some(&(at, page)) = self.alarms.first()
            && at <= now
        {
            self.fail(page, Failure::Late, actions);
        }
        for need in self.needs.take_due() {
            self.go_on_with(need, actions);
        }
    }

    /// Nothing is done with a page after the lease has ended, however late that is noticed.
    fn expire<D>(&mut self, now: Time, actions: &mut Vec<Action<D>>) {
        match self.link {
            Link::Up { lease: Some(end) } if end <= now => self.lost(now, actions),
            Link::Down { until } if until <= now => self.end(Failure::Unreachable, actions),
            _ => {}
        }
    }

    /// The pages of flushes that wait because pages are kept.
    pub fn waited_for(&self) -> impl Iterator<Item = Pages> {
        self.flushes.iter().map(|flush| flush.pages)
    }

    /// Who waited for a page has used it: no flush waits for it any longer.
    pub fn used<D>(&mut self, now: Time, number: PageNumber, actions: &mut Vec<Action<D>>) {
        self.expire(now, actions);
        if let Some(page) = self.pages.get_mut(number) {
            page.kept_until = page.kept_until.min(now);
        }
        for flush in std::mem::take(&mut self.flushes) {
            match flush.pages.contains(number) {
                true => self.flush(now, flush.pages, actions),
                false => self.flushes.push(flush),
            }
        }
    }

    /// Who waited for a page has had no chance to use it: flushes wait for it until then.
    pub fn keep(&mut self, number: PageNumber, until: Time) {
        if let Some(page) = self.pages.get_mut(number) {
            page.kept_until = page.kept_until.max(until);
        }
        let of_it = |flush: &&mut Deferred| flush.pages.contains(number);
        for flush in self.flushes.iter_mut().filter(of_it) {
            flush.due = flush.due.max(until);
        }
    }

    /// When [`Kernel::pass`] has something to do, if nothing else happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let link = match self.link {
            Link::Up { lease } => lease,
            Link::Down { until } => Some(until),
            Link::Ended(_) => None,
        };
        let flush = self.flushes.iter().map(|flush| flush.due).min();
        let alarm = self.alarms.first().map(|(at, _)| *at);
        let need = self.needs.are_due().then_some(Time(0));
        [link, flush, alarm, need].into_iter().flatten().min()
    }

    /// The server confirmed the lease; it holds until then. Without such a call there is
    /// none. One that has ended is not confirmed any more, so [`Kernel::pass`] comes first.
    pub fn lease(&mut self, until: Time) {
        if let Link::Up { lease } = &mut self.link {
            *lease = Some(until);
        }
    }

    /// Pages that come from now on are kept for so long at least.
    pub fn set_hold(&mut self, hold: Duration) {
        self.settings.hold = hold;
    }

    /// From now on, so many pages are asked for ahead at most.
    pub const fn set_ahead(&mut self, pages: u32) {
        self.settings.ahead = pages;
    }

    /// Whether the session with the server goes on. When it does not, the link is to be
    /// closed, and [`Kernel::linked`] called when there is a new one.
    #[must_use]
    pub const fn is_linked(&self) -> bool {
        matches!(self.link, Link::Up { .. })
    }

    /// Whether the object is given up, and why.
    #[must_use]
    pub const fn ended(&self) -> Option<Failure> {
        match self.link {
            Link::Ended(why) => Some(why),
            Link::Up { .. } | Link::Down { .. } => None,
        }
    }

    /// The link broke: everything is dropped. What waits waits for a new link.
    pub fn lost<D>(&mut self, now: Time, actions: &mut Vec<Action<D>>) {
        if !matches!(self.link, Link::Up { .. }) {
            return;
        }
        let written = self.run_of(|page| page.state == State::Writable);
        actions.push(Action::RemoveAll);
        actions.extend(written.into_iter().map(Action::Lost));
        if self.settings.reconnect.is_zero() {
            self.end(Failure::Unreachable, actions);
            return;
        }
        self.flushes.clear();
        self.held.clear();
        self.streams = Streams::default();
        self.strides = Strides::default();
        self.walks = Walks::default();
        self.needs.clear();
        self.pages.retain(|_, page| page.forget());
        let until = now + self.settings.reconnect;
        self.link = Link::Down { until };
    }

    /// There is a new link: what is waited for is asked for anew.
    pub fn linked<D>(&mut self, actions: &mut Vec<Action<D>>) {
        if !matches!(self.link, Link::Down { .. }) {
            return;
        }
        self.link = Link::Up { lease: None };
        let waiting = self.pages.iter().filter_map(|(number, page)| {
            let State::Asked(access) = page.state else {
                return None;
            };
            Some((number, access))
        });
        for (pages, access) in runs(waiting, self.settings.most) {
            actions.push(Action::Send(FromKernel::DataRequest { pages, access }));
        }
    }

    /// Gives pages up: those that were written go back, and all are dropped, save for those
    /// that somebody waits for. For writing back what is dirty and for making room.
    pub fn evict<D>(&mut self, pages: Pages, actions: &mut Vec<Action<D>>) {
        if !matches!(self.link, Link::Up { .. }) {
            return;
        }
        self.obey_what_touches(pages, actions);
        let held = self.known(pages).filter(|(_, page)| page.is_idle());
        let held: Vec<_> = held.map(|(number, page)| (number, page.state)).collect();
        self.drop_runs(&held, actions);
    }

    /// Gives back everything that was written here, and drops it.
    pub fn sync<D>(&mut self, actions: &mut Vec<Action<D>>) {
        if !matches!(self.link, Link::Up { .. }) {
            return;
        }
        for flush in std::mem::take(&mut self.flushes) {
            self.obey(flush.pages, actions);
        }
        let written = self
            .pages
            .iter()
            .filter(|(_, page)| page.state == State::Writable);
        let written: Vec<_> = written.map(|(number, page)| (number, page.state)).collect();
        self.drop_runs(&written, actions);
    }

    /// Gives back and drops some of what was written here: from a page on, at most so many
    /// pages. Where to go on, if there may be more.
    pub fn sync_from<D>(
        &mut self,
        from: PageNumber,
        most: usize,
        actions: &mut Vec<Action<D>>,
    ) -> Option<PageNumber> {
        if !matches!(self.link, Link::Up { .. }) {
            return None;
        }
        for flush in std::mem::take(&mut self.flushes) {
            self.obey(flush.pages, actions);
        }
        let from_there = self.pages.range(from..PageNumber(u64::MAX));
        let written = from_there.filter(|(_, page)| page.state == State::Writable);
        let written: Vec<_> = written
            .take(most)
            .map(|(number, page)| (number, page.state))
            .collect();
        self.drop_runs(&written, actions);
        let (last, _) = written.last().filter(|_| written.len() == most)?;
        Some(PageNumber(last.0 + 1))
    }

    /// How many pages were written here and not given back.
    #[must_use]
    pub fn written(&self) -> usize {
        let pages = self.pages.iter();
        pages
            .filter(|(_, page)| page.state == State::Writable)
            .count()
    }

    /// Gives everything back and the object up. Who still touches it fails.
    pub fn terminate<D>(&mut self, actions: &mut Vec<Action<D>>) {
        if matches!(self.link, Link::Up { .. }) {
            self.sync(actions);
            actions.push(Action::Send(FromKernel::Terminate));
        }
        self.end(Failure::Ended, actions);
    }

    /// A mapping is gone, and nobody waits there any more.
    pub fn unmapped(&mut self, space: Space) {
        let mut alarms = std::mem::take(&mut self.alarms);
        for (number, page) in self.pages.iter_mut() {
            page.waiting.retain(|waiting| waiting.space != space);
            page.asker = page.asker.filter(|asker| *asker != space);
            page.set_alarm(number, &mut alarms);
        }
        self.alarms = alarms;
        self.streams.unmapped(space);
        self.strides.unmapped(space);
        self.walks.unmapped(space);
        self.needs.unmapped(space);
    }

    /// What a program may do to a page at the moment, if anything.
    #[must_use]
    pub fn holds(&self, page: PageNumber) -> Option<Access> {
        self.pages.get(page).and_then(|page| page.holds())
    }

    fn check(&self, pages: Pages) -> Result<(), Nonsense> {
        let end = pages.first.0.checked_add(u64::from(pages.count));
        match end {
            Some(end) if pages.count > 0 && end <= self.settings.pages => Ok(()),
            _ => Err(Nonsense("pages that the object does not have")),
        }
    }

    /// Shows a mapping a page that is here, and those behind it that are here for the same.
    /// Where nothing is asked for ahead, it is that page alone; so it is where the page is a mark
    /// of those that this mapping was given ahead, as it was shown the ones behind it.
    fn show<D>(
        &mut self,
        space: Space,
        page: PageNumber,
        access: Access,
        actions: &mut Vec<Action<D>>,
    ) {
        let (window, way) = match self.is_mark(space, page) {
            true => (1, Way::Up),
            false => self.walks.window(space, page, self.settings.ahead),
        };
        let pages = self.alike(space, page, access, (window, way));
        if window > 1 {
            self.walks.shown(space, page, window, pages);
        }
        actions.push(Action::Show {
            pages,
            access,
            space,
        });
    }

    /// Whether the touch of a page by a mapping asks for more.
    fn is_mark(&self, space: Space, page: PageNumber) -> bool {
        self.streams.is_mark(space, page) || self.strides.is_mark(space, page)
    }

    /// A page, and those behind it that are here for the same and no mark, together at most so
    /// many.
    fn alike(
        &self,
        space: Space,
        page: PageNumber,
        access: Access,
        (window, way): (u32, Way),
    ) -> Pages {
        let more = u64::from(window - 1);
        let behind = match way {
            Way::Up => PageNumber(page.0 + 1)..PageNumber(page.0 + 1 + more),
            Way::Down => PageNumber(page.0.saturating_sub(more))..page,
        };
        let alike = self
            .pages
            .range(behind)
            .filter(|(number, page)| page.holds() == Some(access) && !self.is_mark(space, *number));
        let runs = runs(alike.map(|(number, _)| (number, ())), u32::MAX);
        let mut runs = runs.into_iter().map(|(run, ())| run);
        let one = Pages::one(page);
        let (first, behind) = match way {
            Way::Up => (page, runs.next().filter(|run| one.is_followed_by(*run))),
            Way::Down => {
                let below = runs.next_back().filter(|run| run.is_followed_by(one));
                (below.map_or(page, |run| run.first), below)
            }
        };
        let count = 1 + behind.map_or(0, |run| run.count);
        Pages { first, count }
    }

    /// Asks for what the machine's page around a scheduler's page lacks, and says which
    /// pages that machine's page has.
    fn ask<D>(
        &mut self,
        space: Space,
        page: PageNumber,
        access: Access,
        actions: &mut Vec<Action<D>>,
    ) -> Pages {
        let together = self.settings.together.max(1);
        let first = page.0 - page.0 % u64::from(together);
        let block = self.there_are(PageNumber(first), together);
        self.ask_for((space, access), block, None, u32::MAX, actions);
        block
    }

    /// Asks for those of some pages that are lacking, at most so many in a message. When they come,
    /// they are shown to the mapping, but for one. Says which is in the middle of them.
    fn ask_for<D>(
        &mut self,
        (space, access): (Space, Access),
        pages: Pages,
        unseen: Option<PageNumber>,
        most: u32,
        actions: &mut Vec<Action<D>>,
    ) -> Option<PageNumber> {
        let states = self.of_each(pages, |page| page.state);
        let lacking = pages.iter().zip(states);
        let lacking = lacking.filter_map(|(number, state)| match (state, access) {
            (None, _) => Some((number, State::Asked(access))),
            (Some(State::Readable), Access::Write) => Some((number, State::Upgrading)),
            _ => None,
        });
        let runs = runs(lacking, most.min(self.settings.most));
        for (pages, wanted) in &runs {
            for number in pages.iter() {
                let page = self.pages.get_or_insert_with(number, || Page::new(*wanted));
                page.state = *wanted;
                page.asker = (Some(number) != unseen).then_some(space);
            }
            self.send_request(*pages, *wanted, actions);
        }
        runs.get(runs.len() / 2).map(|(pages, _)| pages.first)
    }

    /// Asks for what is lacking of a window. The page in the middle is not shown to the
    /// mapping when it comes, so that its first touch is seen and asks on.
    fn ask_ahead<D>(&mut self, window: Option<Window>, actions: &mut Vec<Action<D>>) {
        let Some(Window {
            who,
            pages,
            way,
            mark,
        }) = window
        else {
            return;
        };
        let piece = self.settings.piece;
        for pages in pages {
            let mut rest = self.there_are(pages.first, pages.count);
            while way == Way::Down && rest.count > piece {
                rest.count -= piece;
                let first = PageNumber(rest.first.0 + u64::from(rest.count));
                let last = Pages {
                    first,
                    count: piece,
                };
                self.ask_for(who, last, Some(mark), piece, actions);
            }
            self.ask_for(who, rest, Some(mark), piece, actions);
        }
    }

    /// As many of so many pages as the object has; maybe none.
    fn there_are(&self, first: PageNumber, count: u32) -> Pages {
        let rest = self.settings.pages.saturating_sub(first.0);
        let count = u32::try_from(rest).map_or(count, |rest| count.min(rest));
        Pages { first, count }
    }

    fn send_request<D>(&mut self, pages: Pages, wanted: State, actions: &mut Vec<Action<D>>) {
        if !matches!(self.link, Link::Up { .. }) {
            return;
        }
        actions.push(Action::Send(match wanted {
            State::Asked(access) => FromKernel::DataRequest { pages, access },
            _ => FromKernel::DataUnlock { pages },
        }));
    }

    fn wait(&mut self, now: Time, space: Space, number: PageNumber, access: Access) {
        let until = now + self.settings.patience;
        if let Some(page) = self.pages.get_mut(number) {
            page.wait(space, access, until);
            page.set_alarm(number, &mut self.alarms);
        }
    }

    fn provided<D>(
        &mut self,
        now: Time,
        pages: Pages,
        data: Vec<Option<D>>,
        access: Access,
        actions: &mut Vec<Action<D>>,
    ) -> Result<(), Nonsense> {
        if data.len() != pages.count as usize {
            return Err(Nonsense("not as many contents as pages"));
        }
        let written = |(_, page): (PageNumber, &Page)| page.state == State::Writable;
        if self.known(pages).any(written) {
            return Err(Nonsense("contents of a page that is written here"));
        }
        self.obey_what_touches(pages, actions);
        let (mut asked, mut contents) = (Vec::new(), Vec::new());
        let known = self.of_each(pages, |page| (page.state, page.asker));
        for ((number, content), known) in pages.iter().zip(data).zip(known) {
            match (known.map(|(state, _)| state), access) {
                (None | Some(State::Asked(_)), _) => {
                    let asker = known.and_then(|(_, asker)| asker);
                    asked.push((number, asker));
                    contents.push(content);
                }
                (Some(State::Failed(_)), Access::Write) => {
                    let (pages, data) = (Pages::one(number), vec![content]);
                    actions.push(Action::Send(FromKernel::DataWrite { pages, data }));
                }
                (Some(State::Readable | State::Upgrading), Access::Write) => {
                    self.allow_one(now, number, actions);
                }
                _ => {}
            }
        }
        self.fill(now, &asked, contents, access, actions);
        self.needs.came(pages);
        self.make_room(now, actions);
        Ok(())
    }

    /// Gives up the pages that came first, if there are more than there is room for.
    fn make_room<D>(&mut self, now: Time, actions: &mut Vec<Action<D>>) {
        let room = self.settings.room;
        if self.held.len() <= room {
            return;
        }
        // A few at once, so that neighbours go together.
        let wanted = self.held.len() - room + room / 32;
        let idle = |number| match self.pages.get(number) {
            Some(page) if page.kept_until <= now && page.is_idle() => Some((number, page.state)),
            _ => None,
        };
        let oldest = self.held.iter().filter_map(idle);
        let oldest = oldest.take(usize::try_from(wanted).unwrap_or(usize::MAX));
        let mut oldest: Vec<_> = oldest.collect();
        oldest.sort_unstable_by_key(|(number, _)| *number);
        self.drop_runs(&oldest, actions);
    }

    /// Pages come that nobody had here, each shown to the mapping that asked for it.
    fn fill<D>(
        &mut self,
        now: Time,
        asked: &[(PageNumber, Option<Space>)],
        contents: Vec<Option<D>>,
        access: Access,
        actions: &mut Vec<Action<D>>,
    ) {
        let groups = runs(asked.iter().copied(), u32::MAX);
        let mut contents = contents.into_iter();
        for (pages, space) in groups {
            let data: Vec<_> = contents.by_ref().take(pages.count as usize).collect();
            actions.push(Action::Fill {
                pages,
                data,
                access,
                space,
            });
            for number in pages.iter() {
                self.settle(now, number, access, space, actions);
            }
        }
    }

    /// A page is here now: who waits for it is shown it, save for the mapping that was
    /// shown it when it came.
    fn settle<D>(
        &mut self,
        now: Time,
        number: PageNumber,
        access: Access,
        shown: Option<Space>,
        actions: &mut Vec<Action<D>>,
    ) {
        let kept_until = now + self.settings.hold;
        let fresh = || Page::new(State::Readable);
        let page = self.pages.get_or_insert_with(number, fresh);
        page.state = match access {
            Access::Read => State::Readable,
            Access::Write => State::Writable,
        };
        (page.kept_until, page.asker) = (kept_until, None);
        if self.settings.room < u64::MAX {
            page.came = Some(self.held.add(number));
        }
        let served = page.served(access);
        page.set_alarm(number, &mut self.alarms);
        for space in served.into_iter().filter(|space| Some(*space) != shown) {
            actions.push(Action::Show {
                pages: Pages::one(number),
                access,
                space,
            });
        }
        let Some(writer) = page.waiting.first().map(|waiting| waiting.space) else {
            return;
        };
        // A write came while the page was asked for to be read.
        (page.state, page.asker) = (State::Upgrading, Some(writer));
        self.send_request(Pages::one(number), State::Upgrading, actions);
    }

    fn allowed<D>(
        &mut self,
        now: Time,
        pages: Pages,
        actions: &mut Vec<Action<D>>,
    ) -> Result<(), Nonsense> {
        let asked = |page: &Page| matches!(page.state, State::Upgrading | State::Failed(_));
        let asked = self.known(pages).filter(|(_, page)| asked(page));
        if asked.count() != pages.count as usize {
            return Err(Nonsense("permission to write where nobody asked for it"));
        }
        for page in pages.iter() {
            self.allow_one(now, page, actions);
        }
        self.needs.came(pages);
        Ok(())
    }

    fn allow_one<D>(&mut self, now: Time, number: PageNumber, actions: &mut Vec<Action<D>>) {
        let kept_until = now + self.settings.hold;
        let Some(page) = self.pages.get_mut(number) else {
            return;
        };
        if matches!(page.state, State::Failed(_)) {
            // It is ours, but nobody gets it. The flush that comes is answered.
            return;
        }
        (page.state, page.kept_until) = (State::Writable, kept_until);
        let mut spaces = page.served(Access::Write);
        if let Some(asker) = page.asker.take()
            && !spaces.contains(&asker)
        {
            spaces.push(asker);
        }
        page.set_alarm(number, &mut self.alarms);
        for space in spaces {
            match actions.last_mut() {
                // Pages of one machine's page, allowed together.
                Some(Action::Allow { pages, space: same })
                    if *same == space && pages.first.0 + u64::from(pages.count) == number.0 =>
                {
                    pages.count += 1;
                }
                _ => actions.push(Action::Allow {
                    pages: Pages::one(number),
                    space,
                }),
            }
        }
    }

    fn flush<D>(&mut self, now: Time, pages: Pages, actions: &mut Vec<Action<D>>) {
        self.streams.wanted_back(pages);
        self.strides.wanted_back(pages);
        let held = self.known(pages).filter(|(_, page)| page.holds().is_some());
        match held.map(|(_, page)| page.kept_until).max() {
            Some(due) if due > now => self.flushes.push(Deferred { due, pages }),
            _ => self.obey(pages, actions),
        }
    }

    fn obey<D>(&mut self, pages: Pages, actions: &mut Vec<Action<D>>) {
        let held = self.known(pages).filter(|(_, page)| page.holds().is_some());
        let held: Vec<_> = held.map(|(number, page)| (number, page.state)).collect();
        self.drop_runs(&held, actions);
        actions.push(Action::Send(FromKernel::LockCompleted { pages }));
    }

    /// Those of some pages that are not absent, however many are asked about.
    fn known(&self, pages: Pages) -> impl Iterator<Item = (PageNumber, &Page)> {
        let end = pages.first.0.saturating_add(u64::from(pages.count));
        self.pages.range(pages.first..PageNumber(end))
    }

    /// Something of each of some pages, where it is not absent.
    fn of_each<T: Clone>(&self, pages: Pages, of: impl Fn(&Page) -> T) -> Vec<Option<T>> {
        let mut all = vec![None; pages.count as usize];
        for (number, page) in self.known(pages) {
            all[(number.0 - pages.first.0) as usize] = Some(of(page));
        }
        all
    }

    /// Flushes that wait and concern some of these pages are obeyed now.
    fn obey_what_touches<D>(&mut self, pages: Pages, actions: &mut Vec<Action<D>>) {
        let touches = |flush: &Deferred| flush.pages.overlaps(pages);
        while let Some(at) = self.flushes.iter().position(touches) {
            let flush = self.flushes.remove(at);
            self.obey(flush.pages, actions);
        }
    }

    /// Pages that are here, each with its state, are taken from all mappings. What was
    /// written goes back; what was to be upgraded is now asked for.
    fn drop_runs<D>(&mut self, held: &[(PageNumber, State)], actions: &mut Vec<Action<D>>) {
        let written = held
            .iter()
            .map(|(number, state)| (*number, *state == State::Writable));
        for (pages, written) in runs(written, self.settings.most) {
            actions.push(match written {
                true => Action::GiveBack(pages),
                false => Action::Remove(pages),
            });
        }
        // From the last on, so that none is moved for the others.
        for &(number, state) in held.iter().rev() {
            match state {
                State::Upgrading => {
                    if let Some(page) = self.pages.get_mut(number) {
                        page.state = State::Asked(Access::Write);
                        self.held.remove(page.came.take());
                    }
                }
                _ => {
                    let page = self.pages.remove(number);
                    self.held.remove(page.and_then(|page| page.came));
                }
            }
        }
    }

    /// A page fails for good, for all who wait for it or touch it later.
    fn fail<D>(&mut self, number: PageNumber, why: Failure, actions: &mut Vec<Action<D>>) {
        let pages = Pages::one(number);
        let fresh = || Page::new(State::Asked(Access::Read));
        let page = self.pages.get_or_insert_with(number, fresh);
        match page.holds() {
            // What is written here is the latest, whatever the server lost.
            Some(Access::Write) => return,
            Some(Access::Read) => actions.push(Action::Remove(pages)),
            None => {}
        }
        page.state = State::Failed(why);
        self.needs.failed(number);
        self.held.remove(page.came.take());
        let mut waiting = std::mem::take(&mut page.waiting);
        page.set_alarm(number, &mut self.alarms);
        waiting.dedup_by_key(|waiting| waiting.space);
        for space in waiting.into_iter().map(|waiting| waiting.space) {
            actions.push(Action::Fail { pages, space, why });
        }
    }

    /// Gives the object up, whatever was written. All touches fail.
    pub fn end<D>(&mut self, why: Failure, actions: &mut Vec<Action<D>>) {
        if matches!(self.link, Link::Ended(_)) {
            return;
        }
        self.link = Link::Ended(why);
        self.pages.clear();
        self.alarms.clear();
        self.flushes.clear();
        self.held.clear();
        self.needs.clear();
        actions.push(Action::FailAll(why));
    }

    fn run_of(&self, which: impl Fn(&Page) -> bool) -> Vec<Pages> {
        let chosen = self.pages.iter().filter(|(_, page)| which(page));
        let runs = runs(chosen.map(|(number, _)| (number, ())), u32::MAX);
        runs.into_iter().map(|(pages, ())| pages).collect()
    }
}
