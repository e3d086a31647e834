//! Views: which servers there are, and how the survivors of a crash go on.
//!
//! A view is a number and its members. Whoever hands views out (a directory) tells each
//! member of each new view, and takes care that a server which is not in it any more has
//! stopped its kernels before. Then every member
//!
//! 1. forgets what it was about to do with other servers, and has its kernels drop the copies
//!    that came from another server. Faults of kernels wait from now on.
//! 2. tells the *coordinator*, the least member, what it has ([`Body::Holdings`]).
//! 3. hears from it who owns what ([`Body::Owners`]), and asks again for its kernels.
//!
//! The coordinator chooses the owner that is left, else the server with the newest contents.
//! Ownership was given up before a page was sent, and nobody else may get it in between, so
//! there is never more than one owner; it has the newest version. Contents are not moved.
//! Messages of the new view that come to a server which is not that far are kept for it.

use super::Distributed;
use super::message::{Body, Epoch, Holding, Message};
use super::page::{Owner, Page};
use crate::dsm::message::{PageNumber, ServerId};
use crate::dsm::scheduler::{Action, Nonsense};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;

/// A view cannot be entered, because this server missed one before, or is not in it: others
/// may own its pages by now. It has to start anew, with nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this server has missed a view of the object and has to join it anew")]
pub struct MissedView;

/// How far a server is with its view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// Its kernels drop copies (1).
    Leaving,
    /// It waits for the coordinator (3).
    Reported,
    /// It works.
    Live,
}

/// A server's view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct View<D> {
    pub epoch: Epoch,
    pub members: BTreeSet<ServerId>,
    pub phase: Phase,
    /// What members have reported, at the coordinator.
    pub holdings: BTreeMap<ServerId, Vec<Holding>>,
    /// Messages that came before this server was ready for them.
    pub early: Vec<(ServerId, Message<D>)>,
}

impl<D> View<D> {
    pub(super) fn first() -> View<D> {
        View {
            epoch: Epoch(0),
            members: BTreeSet::new(),
            phase: Phase::Live,
            holdings: BTreeMap::new(),
            early: Vec::new(),
        }
    }

    fn coordinator(&self) -> Option<ServerId> {
        self.members.first().copied()
    }
}

impl<D: Clone> Distributed<D> {
    /// There is a new view. Views are numbered consecutively, and each member of one is told
    /// of it, in order; a view that is not new is ignored. A server that holds nothing may
    /// enter any view: so servers join.
    ///
    /// # Errors
    /// [`MissedView`]; nothing has changed then.
    pub fn new_view(
        &mut self,
        epoch: Epoch,
        members: BTreeSet<ServerId>,
        actions: &mut Vec<Action<D>>,
    ) -> Result<(), MissedView> {
        if epoch <= self.view.epoch {
            return Ok(());
        }
        let next = epoch.0 == self.view.epoch.0 + 1;
        if !members.contains(&self.me) || !(next || self.holds_nothing()) {
            return Err(MissedView);
        }
        self.counters.views += 1;
        let early = take(&mut self.view.early);
        self.bring_again();
        self.view = View {
            epoch,
            members,
            phase: Phase::Leaving,
            holdings: BTreeMap::new(),
            early: Vec::new(),
        };
        for number in self.numbers() {
            self.on(number, actions, |page, step| page.leave_view(step));
        }
        self.report_if_ready(actions);
        self.again(early, actions);
        Ok(())
    }

    /// Whether this server and its kernels have no page and no copy.
    fn holds_nothing(&self) -> bool {
        self.home != self.me
            && self.pages.values().all(|page| {
                page.contents.is_none() && page.owner.is_server() && page.dropping.is_empty()
            })
    }

    /// (2), when no kernel has a copy any more that came from another server.
    pub(super) fn report_if_ready(&mut self, actions: &mut Vec<Action<D>>) {
        if self.view.phase != Phase::Leaving || self.pages.values().any(Page::is_leaving) {
            return;
        }
        self.view.phase = Phase::Reported;
        let holdings = self.holdings();
        match self.view.coordinator() {
            Some(coordinator) if coordinator != self.me => {
                self.send(coordinator, Body::Holdings(holdings), actions);
            }
            _ => self.reported(self.me, holdings, actions),
        }
    }

    /// A member has reported. When all have, the coordinator decides.
    pub(super) fn reported(
        &mut self,
        from: ServerId,
        holdings: Vec<Holding>,
        actions: &mut Vec<Action<D>>,
    ) {
        self.view.holdings.insert(from, holdings);
        if self.view.holdings.len() < self.view.members.len() {
            return;
        }
        let home = match self.view.members.contains(&self.home) {
            true => self.home,
            false => self.me,
        };
        let owners = decide(home, &take(&mut self.view.holdings));
        for member in self.view.members.clone() {
            if member != self.me {
                let owners = owners.clone();
                self.send(member, Body::Owners { home, owners }, actions);
            }
        }
        self.enter(home, owners, actions);
    }

    /// (3).
    pub(super) fn enter(
        &mut self,
        home: ServerId,
        owners: Vec<(PageNumber, ServerId)>,
        actions: &mut Vec<Action<D>>,
    ) {
        self.home = home;
        self.view.phase = Phase::Live;
        let mut owners: BTreeMap<PageNumber, ServerId> = owners.into_iter().collect();
        let owner_of = |page| owners.get(&page).copied().unwrap_or(home);
        self.decide_brought(owner_of, actions);
        for number in self.numbers() {
            owners.entry(number).or_insert(home);
        }
        for (number, owner) in owners {
            if owner != home || self.pages.contains(number) {
                self.on(number, actions, |page, step| page.enter_view(owner, step));
            }
        }
        let early = take(&mut self.view.early);
        self.again(early, actions);
    }

    /// Hears messages again that came too early. What makes no sense is dropped, as its
    /// sender cannot be told any more.
    fn again(&mut self, early: Vec<(ServerId, Message<D>)>, actions: &mut Vec<Action<D>>) {
        for (from, message) in early {
            let _: Result<(), Nonsense> = self.hear(from, message, actions);
        }
    }

    fn numbers(&self) -> Vec<PageNumber> {
        self.pages.keys().collect()
    }

    /// The owner of a page that nobody here has touched.
    pub(super) fn first_owner(&self) -> Owner {
        match self.home == self.me {
            true => Owner::Pager,
            false => Owner::Server(self.home),
        }
    }
}

/// Who owns each page that someone knows of: the owner that is left, else whoever has the
/// newest contents, else whoever owns untouched pages, for whom they are loaded again.
fn decide(
    home: ServerId,
    holdings: &BTreeMap<ServerId, Vec<Holding>>,
) -> Vec<(PageNumber, ServerId)> {
    let mut best = BTreeMap::new();
    for (&server, held) in holdings {
        for holding in held {
            let rank = (
                holding.owner,
                holding.contents,
                holding.version,
                Reverse(server),
            );
            let entry = best.entry(holding.page).or_insert(rank);
            *entry = rank.max(*entry);
        }
    }
    best.into_iter()
        .map(
            |(page, (owner, contents, _, Reverse(server)))| match owner || contents {
                true => (page, server),
                false => (page, home),
            },
        )
        .collect()
}
