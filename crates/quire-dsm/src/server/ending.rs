//! How a server ends that is told to: first it takes back what programs may have written, at its
//! peer servers, too, where it keeps the object; then it has that safe where it is kept, then it hands
//! over to peer servers what they would lose with it. Each of these goes on as long as it comes nearer
//! to its end, and who does not answer holds nobody up. Links of programs end last, as what a program is
//! told then says whether all was kept.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use quire_core::dsm::message::{KernelId, PageNumber, ToKernel};

use super::Server;
use super::backed::Behind;
use super::core::{Core, Out, PeerId, answer_with};
use super::object::Object;
use super::peer_servers::PeerServers;
use crate::link::turn::{LinkId, Links, Turn};
use crate::wire::control::{FailureKind, KEPT_ALL, Name, Request};
use crate::wire::{Contents, Control};

/// The loop looks at least so often how far all that is.
const LOOK: Duration = Duration::from_millis(100);

/// How long a server that ends waits at most where nothing comes of it.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For programs that have pages.
    pub programs: Duration,
    /// For pagers to take what was given back.
    pub pagers: Duration,
    /// For peer servers to take what would be lost.
    pub peer_servers: Duration,
    /// For the directory to know that the server leaves, and for another one to lead.
    pub directory: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            programs: Duration::from_secs(3),
            pagers: Duration::from_secs(10),
            peer_servers: Duration::from_secs(5),
            directory: Duration::from_secs(1),
        }
    }
}

/// What is waited for, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Programs give back what they may have written.
    TakesBack,
    /// So do those of peer servers, of what is kept here.
    Gathers,
    /// Pagers take it.
    Keeps,
    /// Peer servers take what they would lose.
    HandsOver,
    /// The last that was said is sent, in a turn of the loop.
    SaysLast,
    /// The directory hears that the server leaves.
    Leaves,
    /// Another server than this one leads the copies of the directory.
    EndsCopy,
    Over,
}

/// What is left of a stage to be done, in whatever it counts: less is nearer to the end.
type Left = u64;

/// How a server has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Nothing of what it had is lost.
    Whole,
    /// Something is, and the log says what.
    Lost,
}

/// A server that ends, and how far that is.
#[derive(Debug)]
pub struct Ending {
    patience: Patience,
    stage: Stage,
    /// It is waited until then, unless something comes of it before.
    until: Instant,
    /// What was left to be done when it began to wait until then.
    left: Left,
    all_is_back: bool,
    all_is_gathered: bool,
    all_is_kept: bool,
    all_is_taken: bool,
}

impl Ending {
    /// A server begins to end: it asks all programs for what they may have written.
    #[must_use]
    pub fn begin(
        server: &mut Server,
        links: &mut Links,
        now: Instant,
        patience: Patience,
    ) -> Ending {
        server.take_back(links, now);
        Ending {
            patience,
            stage: Stage::TakesBack,
            until: now + patience.programs,
            left: server.core.owed(),
            all_is_back: false,
            all_is_gathered: false,
            all_is_kept: false,
            all_is_taken: false,
        }
    }

    /// Goes on, as far as that goes now. Whether it is over. To be called after each turn of the
    /// server's loop.
    pub fn step(&mut self, server: &mut Server, links: &mut Links, now: Instant) -> bool {
        while self.stage != Stage::Over {
            let waits = self.waits(server);
            if waits && (now < self.until || self.goes_on(server, now)) {
                return false;
            }
            self.next(server, links, (now, !waits));
            if self.stage == Stage::SaysLast {
                return false;
            }
        }
        true
    }

    /// How long the next turn may wait for something to happen.
    #[must_use]
    pub fn longest(&self) -> Duration {
        match self.stage {
            Stage::SaysLast => Duration::ZERO,
            _ => LOOK,
        }
    }

    /// Whether what is waited for has yet to come.
    fn waits(&mut self, server: &mut Server) -> bool {
        let peer_servers = server.peer_servers.as_mut();
        match self.stage {
            Stage::TakesBack => server.core.is_owed(),
            Stage::Gathers => peer_servers.is_some_and(|peer_servers| peer_servers.is_gathering()),
            Stage::Keeps => server.core.is_giving_back(),
            Stage::HandsOver => {
                peer_servers.is_some_and(|peer_servers| peer_servers.is_handing_over())
            }
            Stage::Leaves | Stage::EndsCopy => peer_servers.is_some_and(PeerServers::is_awaited),
            Stage::SaysLast | Stage::Over => false,
        }
    }

    /// How long the stage waits where nothing comes of it.
    const fn longest_wait(&self) -> Duration {
        match self.stage {
            Stage::TakesBack => self.patience.programs,
            Stage::Keeps => self.patience.pagers,
            Stage::Gathers | Stage::HandsOver => self.patience.peer_servers,
            Stage::Leaves | Stage::EndsCopy => self.patience.directory,
            Stage::SaysLast | Stage::Over => Duration::ZERO,
        }
    }

    /// What is left to be done of the stage.
    fn left(&self, server: &Server) -> Left {
        let peer_servers = server.peer_servers.as_ref();
        match self.stage {
            Stage::TakesBack => server.core.owed(),
            Stage::Gathers => peer_servers.map_or(0, PeerServers::uncollected),
            Stage::Keeps => server.core.giving_back(),
            Stage::HandsOver => Left::MAX - peer_servers.map_or(0, PeerServers::inherited_from),
            _ => 0,
        }
    }

    /// Its time is up: waits on where the stage is nearer to its end than it was. Whether it is.
    fn goes_on(&mut self, server: &Server, now: Instant) -> bool {
        let left = self.left(server);
        let is_nearer = left < self.left;
        if is_nearer {
            (self.left, self.until) = (left, now + self.longest_wait());
        }
        is_nearer
    }

    /// What is waited for has come, or not in time; the next is begun.
    fn next(&mut self, server: &mut Server, links: &mut Links, (now, came): (Instant, bool)) {
        self.stage = match self.stage {
            Stage::TakesBack => {
                self.all_is_back = server.core.name_what_is_missing();
                Stage::Gathers
            }
            Stage::Gathers => {
                let peer_servers = server.peer_servers.as_ref();
                self.all_is_gathered =
                    peer_servers.is_none_or(PeerServers::name_what_is_uncollected);
                Stage::Keeps
            }
            Stage::Keeps => {
                self.all_is_kept = server.core.name_what_is_not_kept();
                // What a program says now comes too late to be handed over.
                server.core.is_deaf = true;
                server.with_peer_servers(links, |peer_servers, _| peer_servers.end());
                Stage::HandsOver
            }
            Stage::HandsOver => {
                let Server {
                    peer_servers, core, ..
                } = server;
                let peer_servers = peer_servers.as_ref();
                self.all_is_taken = came && peer_servers.is_none_or(PeerServers::is_a_member);
                if !self.all_is_taken {
                    tracing::warn!("others did not take over in time what they lose now");
                    peer_servers.inspect(|peer_servers| peer_servers.name_what_is_lost(core));
                }
                let is_kept = self.all_is_back && self.is_whole();
                let why = if is_kept { KEPT_ALL } else { "the server ends" };
                server.end_links(links, why);
                Stage::SaysLast
            }
            Stage::SaysLast => {
                server.with_peer_servers(links, |peer_servers, _| peer_servers.leave());
                Stage::Leaves
            }
            Stage::Leaves => {
                server.with_peer_servers(links, |peer_servers, _| peer_servers.end_copy());
                Stage::EndsCopy
            }
            Stage::EndsCopy | Stage::Over => Stage::Over,
        };
        (self.until, self.left) = (now + self.longest_wait(), self.left(server));
    }

    /// Whether nothing is lost that was given back.
    const fn is_whole(&self) -> bool {
        self.all_is_gathered && self.all_is_kept && self.all_is_taken
    }

    /// Whether all that programs may have written came back.
    #[must_use]
    pub const fn all_is_back(&self) -> bool {
        self.all_is_back
    }

    /// Whether peer servers have taken all that they would lose with the server.
    #[must_use]
    pub const fn all_is_taken(&self) -> bool {
        self.all_is_taken
    }
}

/// What an object's kernels were asked for, when its server began to end.
#[derive(Default)]
pub(super) struct Recalled {
    /// It was done.
    is_begun: bool,
    /// Pages of which the last may still be out.
    asked: Vec<PageNumber>,
    /// Those of kernels that cannot answer any more.
    silent: Vec<PageNumber>,
}

/// Ends a server, whose links are driven by this loop.
///
/// # Errors
/// When the loop cannot go on.
pub(super) fn end(turn: &mut Turn, server: &mut Server) -> io::Result<Ended> {
    let mut ending = Ending::begin(server, &mut turn.links, Instant::now(), Patience::default());
    while !ending.step(server, &mut turn.links, Instant::now()) {
        turn.once(server, ending.longest())?;
    }
    Ok(match ending.is_whole() {
        true => Ended::Whole,
        false => Ended::Lost,
    })
}

impl Server {
    /// Asks all programs for what they may have written, and peer servers for what theirs have of objects
    /// that are kept here.
    fn take_back(&mut self, links: &mut Links, now: Instant) {
        self.with_peer_servers(links, PeerServers::tell_of_the_end);
        self.with_peer_servers(links, |peer_servers, around| {
            peer_servers.gather(around, now)
        });
        let (local, mut around) = self.around(links);
        local.end(&mut around);
        self.core.recall(&mut self.out);
        self.send_all(links);
    }

    /// Says goodbye to all programs.
    fn end_links(&mut self, links: &mut Links, why: &str) {
        let all: Vec<LinkId> = self.links.values().copied().collect();
        for link in all {
            links.close(link, why);
        }
    }

    /// Refuses what is new, if the server ends, and hears nothing as soon as it hands over. What is left
    /// to be done.
    pub(super) fn unless_ending(&mut self, peer: PeerId, message: Control) -> Option<Control> {
        match message {
            _ if self.core.is_deaf => None,
            Control::Request { id, request } if self.core.is_ending && is_new(&request) => {
                let refused = (FailureKind::Unavailable, "the server ends".to_owned());
                answer_with(peer, id, Err(refused), &mut self.out);
                None
            }
            message => Some(message),
        }
    }
}

/// Whether a request is of somebody who begins something.
fn is_new(request: &Request) -> bool {
    matches!(
        request,
        Request::Open { .. }
            | Request::Attach { .. }
            | Request::Register { .. }
            | Request::Create(_)
            | Request::GiveSize(_)
            | Request::Remove { .. }
            | Request::Begin { .. }
            | Request::Discard { .. }
            | Request::Tag { .. }
            | Request::TagPart { .. }
            | Request::Grant { .. }
    )
}

impl Core {
    /// The server ends: all kernels are asked for what they may have written.
    fn recall(&mut self, out: &mut Vec<Out>) {
        self.is_ending = true;
        let names: Vec<Name> = self.objects.keys().cloned().collect();
        for name in names {
            self.act(&name, out, |object, tell| object.recall(tell));
        }
    }

    /// Whether somebody who can still answer owes a page.
    fn is_owed(&mut self) -> bool {
        let (kernels, peers) = (&self.kernels, &self.peers);
        let answers = |kernel| {
            let peer = kernels.get(&kernel).and_then(|(peer, _)| peers.get(peer));
            peer.is_some_and(|peer| !peer.is_cut_off)
        };
        let mut objects = self.objects.values_mut();
        objects.any(|object| object.is_owed(answers))
    }

    /// How many pages have to come back still.
    fn owed(&self) -> u64 {
        let missing = self.objects.values().map(Object::missing);
        missing.flat_map(BTreeMap::into_values).sum()
    }

    /// Logs whose pages did not come back. Whether there are none.
    fn name_what_is_missing(&self) -> bool {
        let mut is_complete = true;
        for object in self.objects.values() {
            let name = object.listed_as();
            for (kernel, pages) in object.missing() {
                is_complete = false;
                let peer = self.kernels.get(&kernel).map(|(peer, _)| *peer);
                let who = peer.map_or("a program", |peer| self.words_for(peer));
                tracing::warn!(
                    "{name}: {pages} pages that {who} may have written were not given back in \
                     time; they stay as they were before"
                );
            }
        }
        is_complete
    }

    /// Logs how many pages pagers do not have that were given back. Whether they have all.
    fn name_what_is_not_kept(&self) -> bool {
        let mut is_complete = true;
        for object in self.objects.values() {
            let name = object.listed_as();
            let left = object.behind.as_ref().map(Behind::left);
            if let Some((pages @ 1.., why)) = left {
                is_complete = false;
                let why = why.unwrap_or("that takes too long");
                tracing::warn!(
                    "{name}: {pages} pages that were given back could not be kept: {why}; the \
                     server ends without them, and they stay as they were before"
                );
            }
        }
        is_complete
    }
}

impl Object {
    /// Its server ends, or the one that keeps it: its kernels are asked for what they may have
    /// written, once.
    pub(super) fn recall(&mut self, tell: &mut dyn FnMut(KernelId, ToKernel<Contents>)) {
        if std::mem::replace(&mut self.recalled.is_begun, true) {
            return;
        }
        let mut actions = std::mem::take(&mut self.actions);
        self.scheduler.recall(&mut actions);
        self.recalled.asked = self.touched().collect();
        self.carry_out(actions, tell);
    }

    /// Whether a kernel owes a page that can still answer. What is back stays back, so each
    /// page is looked at until it is, and not again.
    fn is_owed(&mut self, answers: impl Fn(KernelId) -> bool) -> bool {
        while let Some(page) = self.recalled.asked.last() {
            match self.scheduler.owes(*page) {
                Some(kernel) if answers(kernel) => return true,
                Some(_) => self.recalled.silent.push(*page),
                None => {}
            }
            self.recalled.asked.pop();
        }
        false
    }

    /// How many pages kernels have not given back that were asked for them.
    pub(super) fn missing(&self) -> BTreeMap<KernelId, u64> {
        let mut missing = BTreeMap::new();
        let Recalled { asked, silent, .. } = &self.recalled;
        let owed = asked.iter().chain(silent);
        for kernel in owed.filter_map(|page| self.scheduler.owes(*page)) {
            *missing.entry(kernel).or_default() += 1;
        }
        missing
    }

    /// Whether no kernel has a page any more.
    pub(super) fn is_all_back(&self) -> bool {
        self.missing().is_empty()
    }

    /// Whether its kernels were asked for all, and whoever keeps it has all.
    pub(super) fn has_given_all_back(&self) -> bool {
        let left = self.behind.as_ref().map_or(0, |behind| behind.left().0);
        self.recalled.is_begun && self.is_all_back() && left == 0
    }
}
