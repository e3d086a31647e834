//! Looking at objects: what is known of them, and what their schedulers are told and tell.
//!
//! What an object is (size, pages, scheduler, types, whose it is) is told to everybody: who
//! wants to open it needs that. What happens in it (faults, pages, who has it open, each
//! message) is only told to those who may read it.

use std::cmp::Reverse;

use quire_core::dsm::message::{Client, KernelId, PageNumber, Pages};
use quire_core::dsm::scheduler::observe::{Faults, Stats};
use quire_core::dsm::scheduler::trace;

use super::super::object::{Object, Refused};
use super::super::watch;
use super::{Core, MACHINE, Opening, Out, PeerId, answer_with, not_found};
use crate::wire::control::{
    self, Answer, FailureKind, Inside, Known, Name, PageState, RequestId, Rights, Seen, Watched,
};

/// Pages that one answer tells of at most.
const PAGES: usize = 512;
/// Kernels that one answer names at most.
const KERNELS: usize = 128;
/// The longest description of a kernel, in characters.
const DESCRIPTION: usize = 100;
/// What one needs to look into an object.
const TO_READ: Rights = Rights {
    read: true,
    write: false,
};

impl Core {
    /// What is known of an object, and of some of its pages.
    pub(super) fn statistics(
        &self,
        id: PeerId,
        name: &Name,
        pages: Option<Pages>,
    ) -> Result<Answer, Refused> {
        self.look(id, name, |object| {
            let asked = pages.into_iter().flat_map(Pages::iter);
            asked
                .filter_map(|page| state(object, page))
                .take(PAGES)
                .collect()
        })
    }

    /// What is known of an object, and of its pages with the most faults.
    pub(super) fn hottest(&self, id: PeerId, name: &Name, most: u32) -> Result<Answer, Refused> {
        self.look(id, name, |object| hottest(object, most as usize))
    }

    fn look(
        &self,
        id: PeerId,
        name: &Name,
        pages: impl FnOnce(&Object) -> Vec<PageState>,
    ) -> Result<Answer, Refused> {
        let object = self.objects.get(name).ok_or_else(|| not_found(name))?;
        let inside = self.may_read(id, object).then(|| Inside {
            faults: faults(object.counted().faults),
            touched: object.touched().count() as u64,
            open: self.times_open(name, object),
            kernels: self.known(name, object.kernels.keys().copied()),
            pages: pages(object),
            report: Box::new(object.report.clone()),
            messages: messages(object.counted()),
        });
        Ok(Answer::Statistics {
            info: object.info.clone(),
            owner: object.owner.clone(),
            inside,
        })
    }

    fn may_read(&self, id: PeerId, object: &Object) -> bool {
        let peer = self.peers.get(&id);
        peer.is_some_and(|peer| object.allows(&peer.identity, TO_READ))
    }

    /// Who kernels of an object are, as far as they are here. All programs that share this
    /// machine's copies are its kernel.
    fn known(&self, object: &Name, kernels: impl Iterator<Item = KernelId>) -> Vec<Known> {
        let known = |kernel: KernelId| {
            let described = match self.kernels.get(&kernel).map(|(peer, _)| *peer) {
                Some(MACHINE) => self.sharing(object),
                Some(peer) => vec![self.words_for(peer)],
                None => Vec::new(),
            };
            let shortened = |words: &str| words.chars().take(DESCRIPTION).collect();
            let named = move |words| Known {
                kernel,
                name: shortened(words),
            };
            described.into_iter().map(named)
        };
        kernels.flat_map(known).take(KERNELS).collect()
    }

    /// How often an object is open.
    fn times_open(&self, name: &Name, object: &Object) -> u64 {
        let shared = self.machines_kernel(name).map(|_| self.sharing(name).len());
        let kernels = object.kernels.len();
        shared.map_or(kernels, |programs| kernels - 1 + programs) as u64
    }

    /// Who shares this machine's copies of an object's pages, each for a person.
    fn sharing(&self, object: &Name) -> Vec<&str> {
        let users = self.users(object);
        let sharing = users.filter(|(.., open)| open.opening == Opening::Program);
        let all: Vec<&str> = sharing.map(|(id, ..)| self.words_for(id)).collect();
        match all.is_empty() {
            true => vec!["programs that are silent"],
            false => all,
        }
    }

    /// A peer watches an object, or goes on to. It is answered by [`Core::tell_watchers`].
    pub(super) fn watch(
        &mut self,
        id: PeerId,
        number: RequestId,
        name: Name,
        pages: Option<Pages>,
    ) -> Result<(), Refused> {
        let is_begun = self.watchers.find(&name, id).is_some();
        let object = match self.objects.get(&name) {
            // What was seen before it was removed is still told.
            None if is_begun => None,
            object => Some(object.ok_or_else(|| not_found(&name))?),
        };
        if let Some(object) = object.filter(|object| !self.may_read(id, object)) {
            let text = format!(
                "only who may read {name} may watch it; its maker, {}, can grant that",
                object.owner
            );
            return Err((FailureKind::Denied, text));
        }
        if !is_begun && self.watchers.count() >= watch::MOST {
            let text = format!("{} watch already; end some of them", watch::MOST);
            return Err((FailureKind::Full, text));
        }
        if let Some(object) = self.objects.get_mut(&name) {
            object.tap.open();
        }
        self.watchers.begin(name, id).ask(number, pages);
        Ok(())
    }

    /// A peer watches nothing any more.
    pub(super) fn unwatch(&mut self, id: PeerId) {
        for name in self.watchers.end(id) {
            if let Some(object) = self.objects.get_mut(&name) {
                object.tap.close();
            }
        }
    }

    /// What an object's scheduler was told and told goes to those who watch it.
    pub(in crate::server) fn collect(&mut self, name: &Name) {
        let Some(object) = self.objects.get_mut(name) else {
            return;
        };
        let seen = object.tap.take();
        // Another object may have taken the name meanwhile.
        object.tap.open();
        for (_, watcher) in self.watchers.of(name) {
            seen.iter().for_each(|seen| watcher.see(seen));
        }
    }

    /// Tells those who watch what there is to be told. Called at the end of each turn.
    pub fn tell_watchers(&mut self, out: &mut Vec<Out>) {
        for name in self.watchers.names() {
            self.collect(&name);
            let is_there = self.objects.contains_key(&name);
            let mut told = Vec::new();
            let mut ended = Vec::new();
            for (peer, watcher) in self.watchers.of(&name) {
                told.extend(watcher.answer().map(|answer| (peer, answer)));
                if !is_there && !watcher.has_more() {
                    ended.push((peer, watcher.waits()));
                }
            }
            for (peer, (number, seen, lost)) in told {
                let known = self.known(&name, kernels(&seen).into_iter());
                let watched = Watched { seen, lost, known };
                answer_with(peer, number, Ok(Answer::Watched(watched)), out);
            }
            for (peer, number) in ended {
                // Who was answered just now is refused when it asks again.
                self.watchers.remove(&name, peer);
                if let Some(number) = number {
                    answer_with(peer, number, Err(not_found(&name)), out);
                }
            }
        }
    }
}

/// The kernels that messages name, each once.
fn kernels(seen: &[Seen]) -> Vec<KernelId> {
    let kernel = |seen: &Seen| match seen.event.peer {
        trace::Peer::Client(Client::Kernel(kernel)) => Some(kernel),
        _ => None,
    };
    let mut kernels: Vec<KernelId> = seen.iter().filter_map(kernel).collect();
    kernels.sort_unstable();
    kernels.dedup();
    kernels
}

fn messages(counted: &Stats) -> control::Messages {
    control::Messages {
        from_kernels: counted.received.total(),
        completions: counted.completions,
        to_kernels: counted.sent.total(),
        from_servers: counted.received_from_servers,
        to_servers: counted.sent_to_servers,
        faults_of_servers: counted.faults_of_servers,
    }
}

fn faults(faults: Faults) -> control::Faults {
    control::Faults {
        read: faults.read,
        write: faults.write,
        unlock: faults.unlock,
    }
}

/// What is known of a page, if somebody ever asked for it.
fn state(object: &Object, page: PageNumber) -> Option<PageState> {
    let status = object.page(page)?;
    Some(PageState {
        page,
        faults: faults(status.stats.faults),
        owner: status.owner,
        readers: status.readers as u64,
        state: format!("{:?}", status.state),
        waiting: (status.waiting_readers + status.waiting_writers) as u64,
        descheduled: status.stats.descheduled,
    })
}

/// The pages with the most faults, those with more first.
fn hottest(object: &Object, most: usize) -> Vec<PageState> {
    let most = most.min(PAGES);
    let all = object
        .touched()
        .filter_map(|page| Some((Reverse(object.heat(page)?), page)));
    let mut all: Vec<_> = all.collect();
    if most < all.len() {
        all.select_nth_unstable(most);
        all.truncate(most);
    }
    all.sort_unstable();
    all.into_iter()
        .filter_map(|(_, page)| state(object, page))
        .collect()
}
