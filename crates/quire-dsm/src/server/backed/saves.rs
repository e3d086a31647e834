//! Which pages of an object are not safe yet, and who waits until they are.
//!
//! A page is with the pager once at a time. What is given back of it meanwhile waits, and
//! only the latest counts: so a page that wanders from kernel to kernel costs no more than
//! the pager can take, and memory for two copies at most. What the pager could not keep is
//! remembered, and tried again.

use std::collections::{BTreeMap, BTreeSet};

use quire_core::dsm::message::{PageNumber, Pages};

use crate::pager::Contents;

/// Pages with their contents that are to be given to the pager.
pub type Save = (Pages, Vec<Option<Contents>>);

/// How waiting ended: with the first page that could not be kept, and why.
pub type Outcome = Result<(), (PageNumber, String)>;

/// A page whose latest contents are not safe.
struct Unsafe {
    /// The latest.
    contents: Option<Contents>,
    /// When they were given back.
    given: u64,
    /// The earliest of all that were given back of it and are not safe.
    oldest: u64,
    /// When those were given back that the pager has.
    with_pager: Option<u64>,
    /// Why the pager could not keep them.
    why: Option<String>,
}

/// What is not safe yet of an object. `W` says who waits.
pub struct Saves<W> {
    pages: BTreeMap<PageNumber, Unsafe>,
    by_age: BTreeSet<(u64, PageNumber)>,
    /// Pages that the pager could not keep, and that nobody tries again just now.
    failed: BTreeSet<PageNumber>,
    /// Who waits for all that was given back until then.
    waiting: Vec<(u64, W)>,
    clock: u64,
}

impl<W> Default for Saves<W> {
    fn default() -> Saves<W> {
        Saves {
            pages: BTreeMap::new(),
            by_age: BTreeSet::new(),
            failed: BTreeSet::new(),
            waiting: Vec::new(),
            clock: 0,
        }
    }
}

impl<W> Saves<W> {
    /// Pages were given back. What the pager gets of that now.
    pub fn given(&mut self, pages: Pages, data: Vec<Option<Contents>>) -> Vec<Save> {
        self.clock += 1;
        let now = self.clock;
        let mut free = Vec::new();
        for (page, contents) in pages.iter().zip(data) {
            let fresh = !self.pages.contains_key(&page);
            let entry = self.pages.entry(page).or_insert(Unsafe {
                contents: None,
                given: now,
                oldest: now,
                with_pager: None,
                why: None,
            });
            (entry.contents, entry.given) = (contents, now);
            if fresh {
                self.by_age.insert((now, page));
            }
            if entry.with_pager.is_none() {
                free.push(page);
            }
        }
        self.hand_over(&free)
    }

    /// The pager has answered for pages. What it gets next.
    pub fn answered(&mut self, pages: Pages, result: &Result<(), String>) -> Vec<Save> {
        let mut again = Vec::new();
        for page in pages.iter() {
            let Some(entry) = self.pages.get_mut(&page) else {
                continue;
            };
            let Some(kept) = entry.with_pager.take() else {
                continue;
            };
            let is_latest = kept == entry.given;
            match result {
                Ok(()) if is_latest => {
                    self.by_age.remove(&(entry.oldest, page));
                    self.pages.remove(&page);
                }
                Ok(()) => {
                    self.by_age.remove(&(entry.oldest, page));
                    entry.oldest = kept + 1;
                    self.by_age.insert((entry.oldest, page));
                    again.push(page);
                }
                Err(_) if !is_latest => again.push(page),
                Err(why) => {
                    entry.why = Some(why.clone());
                    self.failed.insert(page);
                }
            }
        }
        self.hand_over(&again)
    }

    /// Tries again what the pager could not keep.
    pub fn retry(&mut self) -> Vec<Save> {
        let failed: Vec<_> = self.failed.iter().copied().collect();
        self.hand_over(&failed)
    }

    /// Somebody waits until all that was given back before is safe.
    pub fn wait(&mut self, who: W) {
        self.waiting.push((self.clock, who));
    }

    /// Who has waited long enough, and how that ended.
    pub fn ended(&mut self) -> Vec<(W, Outcome)> {
        let waiting = std::mem::take(&mut self.waiting);
        let mut ended = Vec::new();
        for (until, who) in waiting {
            match self.state(until) {
                None => self.waiting.push((until, who)),
                Some(result) => ended.push((who, result)),
            }
        }
        ended
    }

    /// What became of all that was given back until some time; nothing yet while the pager
    /// has some of it.
    fn state(&self, until: u64) -> Option<Outcome> {
        let mut failed = None;
        for (_, page) in self.by_age.range(..=(until, PageNumber(u64::MAX))) {
            let entry = self.pages.get(page)?;
            if entry.with_pager.is_some() {
                return None;
            }
            let why = || entry.why.clone().unwrap_or_default();
            failed.get_or_insert_with(|| (*page, why()));
        }
        Some(failed.map_or(Ok(()), Err))
    }

    /// Who waits still. It is forgotten.
    pub fn dismiss(&mut self) -> Vec<W> {
        let waiting = std::mem::take(&mut self.waiting);
        waiting.into_iter().map(|(_, who)| who).collect()
    }

    /// Whether the latest contents of a page are safe.
    pub fn is_safe(&self, page: PageNumber) -> bool {
        !self.pages.contains_key(&page)
    }

    /// Whether the pager has contents of a page and has not answered for them.
    pub fn is_with_pager(&self, page: PageNumber) -> bool {
        let entry = self.pages.get(&page);
        entry.is_some_and(|entry| entry.with_pager.is_some())
    }

    /// Whether something is on its way to the pager, or waits for that.
    pub fn is_under_way(&self) -> bool {
        self.pages.len() > self.failed.len()
    }

    /// How many pages are not safe, and why, where the pager could not keep them.
    pub fn left(&self) -> (usize, Option<&str>) {
        let first = self.failed.first();
        let why = first.and_then(|page| self.pages.get(page)?.why.as_deref());
        (self.pages.len(), why)
    }

    /// How many pages are not safe.
    pub fn count(&self) -> usize {
        self.pages.len()
    }

    /// How many pages the pager could not keep.
    pub fn failed(&self) -> usize {
        self.failed.len()
    }

    /// Whether all is safe.
    pub fn is_idle(&self) -> bool {
        self.pages.is_empty()
    }

    /// These pages, which the pager does not have, go to it: neighbours together.
    fn hand_over(&mut self, pages: &[PageNumber]) -> Vec<Save> {
        let mut saves: Vec<Save> = Vec::new();
        for &page in pages {
            let Some(entry) = self.pages.get_mut(&page) else {
                continue;
            };
            entry.with_pager = Some(entry.given);
            self.failed.remove(&page);
            let contents = entry.contents.clone();
            match saves.last_mut() {
                Some((run, data)) if run.first.0 + u64::from(run.count) == page.0 => {
                    run.count += 1;
                    data.push(contents);
                }
                _ => saves.push((Pages::one(page), vec![contents])),
            }
        }
        saves
    }
}

#[cfg(test)]
mod tests;
