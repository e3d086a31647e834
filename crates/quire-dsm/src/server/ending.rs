//! How a server ends that is told to: first it takes back what programs may have written, then
//! it has that safe where it is kept, then it hands over to fellows what they would lose with
//! it. Nothing of this waits for long: who does not answer holds nobody up.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use quire_core::dsm::message::{KernelId, PageNumber, ToKernel};

use super::Server;
use super::core::{Core, Out, PeerId, answer_with};
use super::fellows::Fellows;
use super::object::Object;
use crate::link::turn::{LinkId, Links, Turn};
use crate::wire::control::{FailureKind, Name, Request};
use crate::wire::{Contents, Control};

/// A server that ends waits so long for programs that have pages.
const RECALL: Duration = Duration::from_secs(3);
/// So long for pagers to take what was given back.
const LAST: Duration = Duration::from_secs(10);
/// So long for fellows to take what would be lost.
const HANDING: Duration = Duration::from_secs(5);
/// So long for the directory to know that the server leaves, and for another one to lead.
const LEAVING: Duration = Duration::from_secs(1);
/// The loop looks at least so often how far all that is.
const LOOK: Duration = Duration::from_millis(100);

/// What an object's kernels were asked for, when its server began to end.
#[derive(Default)]
pub(super) struct Recalled {
    /// Pages of which the last may still be out.
    asked: Vec<PageNumber>,
    /// Those of kernels that cannot answer any more.
    silent: Vec<PageNumber>,
}

/// Ends a server, whose links are driven by this loop.
///
/// # Errors
/// When the loop cannot go on.
pub(super) fn end(turn: &mut Turn, server: &mut Server) -> io::Result<()> {
    server.take_back(&mut turn.links);
    go_on(turn, server, RECALL, |server| server.core.is_owed())?;
    server.core.name_what_is_missing();
    go_on(turn, server, LAST, |server| server.core.is_giving_back())?;
    server.end_links(&mut turn.links);
    if let Some(fellows) = &mut server.fellows {
        fellows.end();
        go_on(turn, server, HANDING, |server| {
            let fellows = server.fellows.as_ref();
            fellows.is_some_and(|fellows| fellows.is_handing_over())
        })?;
    }
    turn.once(server, Duration::ZERO)?;
    for last in [Fellows::leave, Fellows::end_copy] {
        let Some(fellows) = &mut server.fellows else {
            break;
        };
        last(fellows);
        go_on(turn, server, LEAVING, |server| {
            let fellows = server.fellows.as_mut();
            fellows.is_some_and(Fellows::is_awaited)
        })?;
    }
    Ok(())
}

/// Goes on with the loop while something holds, but no longer than this.
fn go_on(
    turn: &mut Turn,
    server: &mut Server,
    longest: Duration,
    holds: impl Fn(&mut Server) -> bool,
) -> io::Result<()> {
    let until = Instant::now() + longest;
    while holds(server) && Instant::now() < until {
        turn.once(server, LOOK)?;
    }
    Ok(())
}

impl Server {
    /// Asks all programs for what they may have written.
    fn take_back(&mut self, links: &mut Links) {
        self.with_fellows(links, Fellows::tell_of_the_end);
        let (local, mut around) = self.around(links);
        local.end(&mut around);
        self.core.recall(&mut self.out);
        self.send_all(links);
    }

    /// Says goodbye to all programs.
    fn end_links(&mut self, links: &mut Links) {
        let all: Vec<LinkId> = self.links.values().copied().collect();
        for link in all {
            links.close(link, "the server ends");
        }
    }

    /// Refuses what is new, if the server ends. What is left to be done.
    pub(super) fn unless_ending(&mut self, peer: PeerId, message: Control) -> Option<Control> {
        match message {
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
            | Request::Remove { .. }
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

    /// Logs whose pages did not come back.
    fn name_what_is_missing(&self) {
        for (name, object) in &self.objects {
            for (kernel, pages) in object.missing() {
                let peer = self.kernels.get(&kernel).map(|(peer, _)| *peer);
                let who = peer.map_or("a program", |peer| self.words_for(peer));
                tracing::warn!(
                    "{name}: {pages} pages that {who} may have written were not given back in \
                     time; they stay as they were before"
                );
            }
        }
    }
}

impl Object {
    /// Its server ends: its kernels are asked for what they may have written.
    fn recall(&mut self, tell: &mut dyn FnMut(KernelId, ToKernel<Contents>)) {
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
    fn missing(&self) -> BTreeMap<KernelId, u64> {
        let mut missing = BTreeMap::new();
        let Recalled { asked, silent } = &self.recalled;
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
}
