//! Pages that somebody brings who had written to them when their owner was lost: a server that is gone,
//! or a server that has lost the link to the kernel.
//!
//! A page that is free here ([`Page::is_free`](super::page::Page::is_free)) takes a later version at
//! once. One that is elsewhere waits for the next view, and is reported there among the contents that are
//! left. There an owner counts that has given the page to somebody since, then the latest version. So
//! nothing that somebody was given is replaced by something older.

use std::collections::BTreeMap;
use std::mem::take;

use super::message::{Holding, Version};
use super::page::Owner;
use super::{Action, Distributed};
use crate::dsm::message::{PageNumber, Pages, ServerId};

/// What becomes of a page that is brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brought {
    /// It is what the page holds.
    Taken,
    /// The page was given to somebody since, or there is a later version.
    Refused,
    /// The next view decides ([`Distributed::decided`]).
    Waits,
}

/// What a view has decided about a page that was brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// Which page.
    pub page: PageNumber,
    /// The version that was brought.
    pub version: Version,
    /// Whether it is what the page holds.
    pub is_taken: bool,
}

/// A version of a page, and what it holds.
type Brings<D> = BTreeMap<PageNumber, (Version, Option<D>)>;

/// What was brought, and is not decided.
#[derive(Clone, Debug)]
pub(super) struct Bringing<D> {
    /// For the next view.
    waits: Brings<D>,
    /// What the view that is being made was told of.
    reported: Brings<D>,
    decided: Vec<Decided>,
}

impl<D> Default for Bringing<D> {
    fn default() -> Bringing<D> {
        Bringing {
            waits: BTreeMap::new(),
            reported: BTreeMap::new(),
            decided: Vec::new(),
        }
    }
}

impl<D: Clone> Distributed<D> {
    /// Somebody brings a version of a page that it had written.
    pub fn bring(
        &mut self,
        number: PageNumber,
        (version, data): (Version, Option<D>),
        actions: &mut Vec<Action<D>>,
    ) -> Brought {
        if number.0 >= self.size {
            return Brought::Refused;
        }
        let known = self.pages.get(number);
        let owner = known.map_or_else(|| self.first_owner(), |page| page.owner);
        // What a server has that ends, others are taking over.
        if !self.is_live() || self.is_ending || owner.is_server() {
            return self.bring_later(number, (version, data));
        }
        let is_free = known.map_or(owner == Owner::Pager, |page| page.is_free());
        let is_older = known.is_some_and(|page| version < page.version);
        if !is_free || is_older {
            return Brought::Refused;
        }
        actions.push(Action::Save(Pages::one(number), vec![data.clone()]));
        self.on(number, actions, |page, _| page.bring(version, data));
        Brought::Taken
    }

    /// The next view is to decide about it.
    fn bring_later(&mut self, page: PageNumber, (version, data): (Version, Option<D>)) -> Brought {
        let before = self.bringing.waits.get(&page).map(|(version, _)| *version);
        if before > Some(version) {
            return Brought::Refused;
        }
        if let Some(before) = before.filter(|before| *before < version) {
            self.refuse(page, before);
        }
        self.bringing.waits.insert(page, (version, data));
        Brought::Waits
    }

    fn refuse(&mut self, page: PageNumber, version: Version) {
        self.bringing.decided.push(Decided {
            page,
            version,
            is_taken: false,
        });
    }

    /// What views have decided since that was last asked.
    pub fn decided(&mut self) -> Vec<Decided> {
        take(&mut self.bringing.decided)
    }

    /// There is another view before the last one has decided.
    pub(super) fn bring_again(&mut self) {
        for (page, it) in take(&mut self.bringing.reported) {
            let version = it.0;
            if self.bring_later(page, it) == Brought::Refused {
                self.refuse(page, version);
            }
        }
    }

    /// What this server has of pages, with what is brought to it where that is as late.
    pub(super) fn holdings(&mut self) -> Vec<Holding> {
        let waits = take(&mut self.bringing.waits);
        let own = self.pages.iter().map(|(number, page)| page.holding(number));
        let mut all: BTreeMap<PageNumber, Holding> = own.map(|it| (it.page, it)).collect();
        for (&page, &(version, _)) in &waits {
            let held = all.entry(page).or_insert(Holding {
                page,
                version,
                contents: false,
                owner: false,
            });
            if !held.owner && (!held.contents || held.version <= version) {
                (held.version, held.contents) = (version, true);
            }
        }
        self.bringing.reported = waits;
        all.into_values().collect()
    }

    /// The view has said who owns a page: what was brought of it is taken where that is this server, and
    /// has nothing later.
    pub(super) fn decide_brought(
        &mut self,
        owner_of: impl Fn(PageNumber) -> ServerId,
        actions: &mut Vec<Action<D>>,
    ) {
        for (page, (version, data)) in take(&mut self.bringing.reported) {
            let held = self.pages.get(page).map(|it| it.holding(page));
            let is_last =
                held.is_none_or(|held| !held.owner && (!held.contents || held.version <= version));
            let is_taken = is_last && owner_of(page) == self.me;
            if is_taken {
                actions.push(Action::Save(Pages::one(page), vec![data.clone()]));
                self.on(page, actions, |page, _| page.bring(version, data));
            }
            self.bringing.decided.push(Decided {
                page,
                version,
                is_taken,
            });
        }
    }
}
