//! What stands between a fault scheduler and a pager: it asks for pages, gives pages back,
//! and makes of what the pager says what the scheduler can take. It believes nothing: an
//! answer that nobody waits for, a page of a wrong length, no answer at all.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use quire_core::dsm::message::{Access, Lock, PageNumber, Pages};

use super::{Attributes, Backed, Contents, Control, Pager, Said, Waker};

/// What became of what the pager was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The pager is ready.
    Ready(Attributes),
    /// What pages hold, for `Scheduler::loaded`; `None` where it cannot be had. A request
    /// may be answered in pieces.
    Loaded(Pages, Option<Vec<Option<Contents>>>),
    /// Pages may be written to, or why not.
    Unlocked(Pages, Result<(), String>),
    /// What was given back is safe, or why not. One for each [`Backing::save`].
    Saved(Pages, Result<(), String>),
    /// The pager wants these pages back; [`Backing::flushed`] says when that is done.
    WantsBack(Pages),
}

/// A pager at work for one object.
pub struct Backing {
    pager: Box<dyn Pager>,
    object: Backed,
    heard: Receiver<Said>,
    /// The pager says nothing of its own while it has not said that it is ready.
    ready: Option<Attributes>,
    /// Pages that were asked for, and until when they must be there.
    loading: BTreeMap<PageNumber, Instant>,
    /// Pages that were provided for reading only.
    locked: BTreeSet<PageNumber>,
    unlocking: BTreeMap<PageNumber, Instant>,
    /// What was given back and is not answered for, in order.
    saving: BTreeMap<u64, Saving>,
    /// In which of these a page is, in order.
    saved_in: BTreeMap<PageNumber, VecDeque<u64>>,
    saves: u64,
    deadline: Duration,
    /// Nothing is late before this, where anything is waited for.
    patience_ends: Option<Instant>,
}

struct Saving {
    pages: Pages,
    /// How many of them are not answered for.
    left: u32,
    result: Result<(), String>,
    /// `None` when it was given up. The pager's answer may still come, and must not be
    /// taken for that to a later one of the same pages.
    until: Option<Instant>,
}

impl Backing {
    /// Puts a pager to work. `wake` is called when [`Backing::events`] has something; what
    /// the pager does not answer within `deadline` counts as an error.
    #[must_use]
    pub fn new(
        mut pager: Box<dyn Pager>,
        object: Backed,
        wake: Waker,
        deadline: Duration,
    ) -> Backing {
        let (control, heard) = Control::new(wake);
        pager.init(&object, control);
        Backing {
            pager,
            object,
            heard,
            ready: None,
            loading: BTreeMap::new(),
            locked: BTreeSet::new(),
            unlocking: BTreeMap::new(),
            saving: BTreeMap::new(),
            saved_in: BTreeMap::new(),
            saves: 0,
            deadline,
            patience_ends: None,
        }
    }

    /// Asks for pages (`Action::Load`); [`Event::Loaded`] answers.
    pub fn load(&mut self, pages: Pages, access: Access, now: Instant) {
        self.wait_from(now);
        for page in pages.iter() {
            self.loading.insert(page, now + self.deadline);
        }
        self.pager.data_request(pages, access);
    }

    /// Gives pages back (`Action::Save`); [`Event::Saved`] answers.
    pub fn save(&mut self, pages: Pages, data: Vec<Option<Contents>>, now: Instant) {
        self.wait_from(now);
        self.saves += 1;
        let saving = Saving {
            pages,
            left: pages.count,
            result: Ok(()),
            until: Some(now + self.deadline),
        };
        self.saving.insert(self.saves, saving);
        for page in pages.iter() {
            let saved_in = self.saved_in.entry(page).or_default();
            saved_in.push_back(self.saves);
        }
        self.pager.data_write(pages, data);
    }

    /// Whether pages must be unlocked before they may be written to.
    #[must_use]
    pub fn is_locked(&self, pages: Pages) -> bool {
        let end = PageNumber(pages.first.0.saturating_add(u64::from(pages.count)));
        self.locked.range(pages.first..end).next().is_some()
    }

    /// Asks for pages to be written to; [`Event::Unlocked`] answers.
    pub fn unlock(&mut self, pages: Pages, now: Instant) {
        self.wait_from(now);
        for page in pages.iter() {
            self.unlocking.insert(page, now + self.deadline);
        }
        self.pager.data_unlock(pages);
    }

    /// What [`Event::WantsBack`] asked for is done.
    pub fn flushed(&mut self, pages: Pages) {
        self.pager.lock_completed(pages);
    }

    /// What the pager promises, as soon as it is ready.
    #[must_use]
    pub fn attributes(&self) -> Option<Attributes> {
        self.ready
    }

    /// When [`Backing::events`] must be asked again, if the pager says nothing.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let pages = self.loading.values().chain(self.unlocking.values());
        // Deadlines of saves come in their order.
        let saves = self.saving.values().find_map(|saving| saving.until);
        pages.copied().chain(saves).min()
    }

    /// Whether the pager owes an answer.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        !self.loading.is_empty() || !self.unlocking.is_empty() || !self.saving.is_empty()
    }

    fn wait_from(&mut self, now: Instant) {
        let ends = now + self.deadline;
        self.patience_ends = Some(self.patience_ends.map_or(ends, |known| known.min(ends)));
    }

    /// What the pager has said since the last time, and what it should have said by now.
    pub fn events(&mut self, now: Instant) -> Vec<Event> {
        let mut events = Vec::new();
        while let Ok(said) = self.heard.try_recv() {
            self.hear(said, &mut events);
        }
        if self.patience_ends.is_some_and(|ends| ends <= now) {
            self.give_up(now, &mut events);
            self.patience_ends = self.next_deadline();
        }
        events
    }

    fn hear(&mut self, said: Said, events: &mut Vec<Event>) {
        match said {
            Said::Attributes(attributes) => {
                self.ready = Some(attributes);
                events.push(Event::Ready(attributes));
            }
            Said::Provided(pages, data, access) => self.provided(pages, data, access, events),
            Said::Unavailable(pages) => {
                let expected = self.expected(pages);
                let zeros = expected.into_iter().map(|page| (page, Some(None)));
                self.loaded(zeros.collect(), events);
            }
            Said::Error(pages, why) => self.error(pages, &why, events),
            Said::Lock(pages, Lock::Flush) => events.push(Event::WantsBack(pages)),
            Said::Lock(pages, Lock::AllowWrite) => {
                self.locked.retain(|page| !pages.contains(*page));
                self.unlocked(pages, &Ok(()), events);
            }
            Said::Written(pages, result) => self.written(pages, &result, events),
        }
    }

    fn provided(
        &mut self,
        pages: Pages,
        data: Vec<Contents>,
        access: Access,
        events: &mut Vec<Event>,
    ) {
        let length = self.object.page_length();
        if data.len() != pages.count as usize || data.iter().any(|page| page.len() != length) {
            let why = format!(
                "the pager provides other than {} pages of {length} bytes",
                pages.count
            );
            return self.error(pages, &why, events);
        }
        let expected = self.expected(pages);
        let found: Vec<_> = pages
            .iter()
            .zip(data)
            .filter(|(page, _)| expected.binary_search(page).is_ok())
            .map(|(page, contents)| (page, Some(Some(contents))))
            .collect();
        if access == Access::Read {
            self.locked.extend(found.iter().map(|(page, _)| *page));
        }
        self.loaded(found, events);
    }

    fn error(&mut self, pages: Pages, why: &str, events: &mut Vec<Event>) {
        let name = &self.object.name;
        tracing::warn!(
            "{name}: {} pages from {} on: {why}",
            pages.count,
            pages.first.0
        );
        let lost = within(&self.loading, pages).map(|page| (page, None));
        let lost = lost.collect();
        self.loaded(lost, events);
        self.unlocked(pages, &Err(why.to_owned()), events);
    }

    /// Those of these pages that were asked for, in order.
    fn expected(&self, pages: Pages) -> Vec<PageNumber> {
        let expected: Vec<_> = within(&self.loading, pages).collect();
        if expected.len() < pages.count as usize {
            self.unasked(pages);
        }
        expected
    }

    fn unasked(&self, pages: Pages) {
        let (name, first) = (&self.object.name, pages.first.0);
        let count = pages.count;
        tracing::warn!(
            "{name}: {count} pages from {first} on: the pager answers what nobody asked"
        );
    }

    /// Tells what pages hold, as few events as they make.
    fn loaded(
        &mut self,
        pages: Vec<(PageNumber, Option<Option<Contents>>)>,
        events: &mut Vec<Event>,
    ) {
        let mut pages = pages.into_iter().peekable();
        while let Some((first, found)) = pages.next() {
            self.loading.remove(&first);
            let mut data = found.map(|page| vec![page]);
            let mut count = 1;
            while let Some((page, found)) = pages.next_if(|(page, next)| {
                page.0 == first.0 + u64::from(count) && next.is_some() == data.is_some()
            }) {
                self.loading.remove(&page);
                if let (Some(data), Some(found)) = (&mut data, found) {
                    data.push(found);
                }
                count += 1;
            }
            events.push(Event::Loaded(Pages { first, count }, data));
        }
    }

    fn unlocked(&mut self, pages: Pages, result: &Result<(), String>, events: &mut Vec<Event>) {
        let answered: Vec<_> = within(&self.unlocking, pages).collect();
        for page in answered {
            self.unlocking.remove(&page);
            events.push(Event::Unlocked(Pages::one(page), result.clone()));
        }
    }

    /// Pages are safe, or not. Where a page was given back several times, the answers come
    /// in that order.
    fn written(&mut self, pages: Pages, result: &Result<(), String>, events: &mut Vec<Event>) {
        let mut answered = 0;
        let known: Vec<_> = within(&self.saved_in, pages).collect();
        for page in known {
            if let Some(save) = self.oldest_save_of(page) {
                answered += 1;
                self.page_written(save, result, events);
            }
        }
        if answered < pages.count {
            self.unasked(pages);
        }
    }

    /// The first of the saves with this page that are not answered for.
    fn oldest_save_of(&mut self, page: PageNumber) -> Option<u64> {
        let saves = self.saved_in.get_mut(&page)?;
        let oldest = saves.pop_front();
        if saves.is_empty() {
            self.saved_in.remove(&page);
        }
        oldest
    }

    /// One page of a save is safe, or not.
    fn page_written(&mut self, save: u64, result: &Result<(), String>, events: &mut Vec<Event>) {
        let Some(saving) = self.saving.get_mut(&save) else {
            return;
        };
        saving.left -= 1;
        if result.is_err() {
            saving.result = result.clone();
        }
        if saving.left == 0
            && let Some(done) = self.saving.remove(&save)
            && done.until.is_some()
        {
            events.push(Event::Saved(done.pages, done.result));
        }
    }

    /// Answers for a pager that does not.
    fn give_up(&mut self, now: Instant, events: &mut Vec<Event>) {
        let late = |pages: &BTreeMap<PageNumber, Instant>| -> Vec<PageNumber> {
            let late = pages.iter().filter(|(_, until)| **until <= now);
            late.map(|(page, _)| *page).collect()
        };
        let why = "the pager did not answer in time";
        let (loading, unlocking) = (late(&self.loading), late(&self.unlocking));
        for page in loading.into_iter().chain(unlocking) {
            self.error(Pages::one(page), why, events);
        }
        for saving in self.saving.values_mut() {
            if saving.until.is_some_and(|until| until <= now) {
                saving.until = None;
                events.push(Event::Saved(saving.pages, Err(why.to_owned())));
            }
        }
    }
}

/// Those of some pages that are in a map, in order.
fn within<T>(map: &BTreeMap<PageNumber, T>, pages: Pages) -> impl Iterator<Item = PageNumber> {
    let end = PageNumber(pages.first.0.saturating_add(u64::from(pages.count)));
    map.range(pages.first..end).map(|(page, _)| *page)
}

impl Drop for Backing {
    fn drop(&mut self) {
        self.pager.terminate();
    }
}
