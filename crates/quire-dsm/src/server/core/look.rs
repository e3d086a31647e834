//! Looking at objects: what is known of them, and what their schedulers are told and tell.
//!
//! What an object is (size, pages, scheduler, types, whose it is) is told to everybody: who
//! wants to open it needs that. What happens in it (faults, pages, who has it open, each
//! message) is only told to those who may read it.

use std::collections::BTreeSet;

use quire_core::dsm::message::{Client, KernelId, PageNumber, Pages};
use quire_core::dsm::scheduler::observe::{Faults, HOTTEST, Stats};
use quire_core::dsm::scheduler::trace;

use super::super::object::{Object, Refused};
use super::super::watch;
use super::{Core, MACHINE, Opening, Out, PeerId, answer_with, not_found};
use crate::wire::control::{
    self, Answer, FailureKind, Inside, Known, Name, PageState, RequestId, Rights, Seen, Watched,
};

/// Pages that one answer tells of at most.
const PAGES: usize = HOTTEST;
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
    pub(super) fn hottest(
        &mut self,
        id: PeerId,
        name: &Name,
        most: u32,
    ) -> Result<Answer, Refused> {
        let object = self.objects.get_mut(name);
        let pages = object.map(|object| hottest(object, most as usize));
        self.look(id, name, |object| {
            let pages = pages.into_iter().flatten();
            pages.filter_map(|page| state(object, page)).collect()
        })
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
            touched: object.touched_count() as u64,
            open: self.times_open(name, object),
            kernels: self.known(name, object.kernels.keys().copied()),
            pages: pages(object),
            report: Box::new(object.report.clone()),
            messages: messages(object.counted()),
            lost: object.orphans.lost(),
        });
        Ok(Answer::Statistics {
            exact: name.exact(),
            info: object.told(),
            owner: object.owner.clone(),
            is_discarded: object.is_discarded,
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
    pub(super) fn times_open(&self, name: &Name, object: &Object) -> u64 {
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
                "only who may read {} may watch it; its maker, {}, can grant that",
                name.plain(),
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

    /// The key of what a peer watches, and asks for by this: also where it was removed meanwhile.
    pub(super) fn watched(&self, id: PeerId, asked: &Name) -> Option<Name> {
        let mut all = self.watchers.watched_by(id);
        let is_it = |key: &&Name| key.plain() == *asked || key.exact() == *asked;
        all.find(is_it).cloned()
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
        // Another object may have got the key meanwhile.
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
                    answer_with(peer, number, Err(not_found(&name.plain())), out);
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

/// The pages with the most faults, those with more first; where there are too few, others that
/// somebody ever asked for.
fn hottest(object: &mut Object, most: usize) -> Vec<PageNumber> {
    let most = most.min(PAGES);
    let mut pages = object.hottest();
    if pages.len() < most {
        let hot: BTreeSet<PageNumber> = pages.iter().copied().collect();
        let others = object.touched().filter(|page| !hot.contains(page));
        pages.extend(others.take(most - hot.len()));
    }
    pages.truncate(most);
    pages
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use quire_core::dsm::message::{Access, FromKernel, ServerId};
    use quire_core::dsm::scheduler::distributed::{Body, Epoch, Fault, Message};
    use quire_core::dsm::types::Machine;
    use quire_core::units::Bytes;

    use super::super::Peer;
    use super::*;
    use crate::server::object::Part;
    use crate::wire::Control;
    use crate::wire::control::{Handle, MachineCode, PageSize, Request, SchedulerKind};

    const NUMBER: RequestId = RequestId(1);

    fn name() -> Name {
        "large".parse().expect("a name")
    }

    /// An object of so many pages that two peers have open.
    fn core(scheduler: SchedulerKind, pages: u64) -> Core {
        let mut core = Core::default();
        let object = control::Object {
            name: name(),
            size: Bytes(pages * 4096),
            page_size: PageSize::BASE,
            scheduler,
            machine: MachineCode(0),
            tags: Vec::new(),
        };
        let me = ServerId(1);
        let part = (scheduler == SchedulerKind::Distributed).then_some(Part { me, of: me });
        let made = core.insert(object, "anyone".into(), part, false);
        made.expect("it is an object");
        if part.is_some() {
            let view = (1, [me].into());
            let entered = core.new_view(&name(), view, &mut Vec::new());
            entered.expect("none was missed");
        }
        for peer in [PeerId(1), PeerId(2)] {
            core.joined(peer, Peer::new("anyone".into(), Machine::native()));
            let request = Request::Open {
                name: name(),
                rights: TO_READ,
            };
            let open = Control::Request {
                id: NUMBER,
                request,
            };
            core.says(peer, open, &mut Vec::new());
        }
        core
    }

    /// A peer reads pages, as many in each message as it may.
    fn read(core: &mut Core, peer: PeerId, first: u64, count: u64) {
        for at in (first..first + count).step_by(512) {
            let pages = Pages {
                first: PageNumber(at),
                count: (first + count - at).min(512) as u32,
            };
            let access = Access::Read;
            let says = Control::FromKernel {
                object: Handle(1),
                message: FromKernel::DataRequest { pages, access },
            };
            core.says(peer, says, &mut Vec::new());
        }
    }

    fn inside(core: &mut Core, most: u32) -> Inside {
        let answer = core.hottest(PeerId(1), &name(), most);
        let Ok(Answer::Statistics { inside, .. }) = answer else {
            panic!("{answer:?}");
        };
        inside.expect("it may be read")
    }

    fn numbers(inside: Inside) -> Vec<u64> {
        inside.pages.iter().map(|it| it.page.0).collect()
    }

    /// Faults of somebody else wait for each question, so that none may be about all pages.
    #[test]
    fn questions_about_the_hottest_pages_of_a_large_object_take_little_time() {
        const PAGES: u64 = 300_000;
        let all = [
            SchedulerKind::Simple,
            SchedulerKind::Multi,
            SchedulerKind::Distributed,
        ];
        for scheduler in all {
            let mut core = core(scheduler, PAGES);
            read(&mut core, PeerId(1), 0, PAGES);
            read(&mut core, PeerId(2), 270_000, 2);
            read(&mut core, PeerId(2), 40_000, 1);
            read(&mut core, PeerId(2), 270_001, 1);
            let begin = Instant::now();
            for _ in 0..200 {
                let inside = inside(&mut core, 3);
                assert_eq!(inside.touched, PAGES, "{scheduler:?}");
                let hot = inside.pages.iter();
                let hot: Vec<_> = hot.map(|it| (it.page.0, it.faults.read)).collect();
                assert_eq!(hot, [(270_001, 3), (40_000, 2), (270_000, 2)]);
            }
            let took = begin.elapsed();
            assert!(took < Duration::from_secs(2), "{scheduler:?}: {took:?}");
        }
    }

    /// Of a small object all pages are told that somebody ever asked for, if one answer holds them.
    #[test]
    fn all_pages_of_a_small_object_are_told() {
        let mut core = core(SchedulerKind::Simple, 600);
        read(&mut core, PeerId(1), 0, 40);
        read(&mut core, PeerId(2), 39, 1);
        let hottest_first: Vec<u64> = [39].into_iter().chain(0..39).collect();
        assert_eq!(numbers(inside(&mut core, 600)), hottest_first);
        assert_eq!(numbers(inside(&mut core, 2)), [39, 0]);
        read(&mut core, PeerId(1), 40, 560);
        assert_eq!(numbers(inside(&mut core, 600)).len(), PAGES);
    }

    /// A page that only a peer server's programs asked for had no faults here.
    #[test]
    fn pages_without_faults_come_last() {
        let mut core = core(SchedulerKind::Distributed, 9);
        let (me, peer_server) = (ServerId(1), ServerId(2));
        let mut say = |body| {
            let epoch = Epoch(2);
            let message = Message { epoch, body };
            let heard = core.hear_peer_server(&name(), peer_server, message, &mut Vec::new());
            assert_eq!(heard, Some(Ok(())));
        };
        say(Body::Holdings(Vec::new()));
        let page = PageNumber(3);
        say(Body::Fault(Fault {
            page,
            who: peer_server,
            access: Access::Read,
            have: None,
            hops: 0,
        }));
        let view = (2, [me, peer_server].into());
        let entered = core.new_view(&name(), view, &mut Vec::new());
        entered.expect("none was missed");
        read(&mut core, PeerId(1), 5, 1);
        assert_eq!(numbers(inside(&mut core, 9)), [5, 3]);
        assert_eq!(numbers(inside(&mut core, 1)), [5]);
    }
}
