//! Objects that are discarded, where servers are joined: each knows of those that it shares, and which
//! ever sees that nobody has one open there asks the others, until it is gone.

use std::collections::BTreeSet;
use std::time::Instant;

use super::super::backed::Asker;
use super::super::core::{self, NOBODY};
use super::super::said::Said;
use super::{Around, Fellows};
use crate::wire::control::{Answer, FailureKind, Name, Request, RequestId};

/// Discarded objects that nobody has open here.
#[derive(Default)]
pub(super) struct Discarding {
    unused: BTreeSet<Name>,
    ask_at: Option<Instant>,
}

impl Discarding {
    /// When others are to be asked again.
    pub const fn deadline(&self) -> Option<Instant> {
        self.ask_at
    }
}

impl Fellows {
    /// A program discards an object that is here.
    pub(super) fn discard(&mut self, a: &mut Around<'_>, asker: Asker, name: &Name) {
        let others = self.others_with(name);
        match a.core.may_remove(asker.0, name) {
            Ok(()) if others.as_ref().is_none_or(|(_, others)| others.is_empty()) => {
                return self.remove(a, asker, name);
            }
            Ok(()) | Err((FailureKind::Busy, _)) => {}
            Err(refused) => return core::answer_with(asker.0, asker.1, Err(refused), a.out),
        }
        let discarded = a.core.discard_used(asker.0, name);
        if discarded.is_ok()
            && let Some((object, others)) = others
        {
            let said = Said::Discarded { object };
            for server in others {
                self.wires.say(a.links, server, &said, None);
            }
        }
        core::answer_with(asker.0, asker.1, discarded.map(|()| Answer::Done), a.out);
        self.unused(a, name);
    }

    /// Nobody has an object open here that may have been discarded.
    pub fn unused(&mut self, a: &mut Around<'_>, name: &Name) {
        if a.core.is_to_go(name) {
            self.discarding.unused.insert(name.clone());
            self.ask_for_unused(a, (self.clock)());
        }
    }

    /// Asks once more for what is still there.
    pub(super) fn look_for_unused(&mut self, a: &mut Around<'_>, now: Instant) {
        if self.discarding.ask_at.is_some_and(|at| at <= now) {
            self.ask_for_unused(a, now);
        }
    }

    fn ask_for_unused(&mut self, a: &mut Around<'_>, now: Instant) {
        self.discarding.unused.retain(|name| a.core.is_to_go(name));
        for name in self.discarding.unused.clone() {
            self.remove(a, (NOBODY, RequestId(0)), &name);
        }
        let is_none = self.discarding.unused.is_empty();
        self.discarding.ask_at = (!is_none).then(|| now + self.lease);
    }

    /// Nobody knows an object of a name; it may be begun here.
    pub(super) fn nowhere(&mut self, a: &mut Around<'_>, name: &Name) {
        let lacks = a.core.lacks(name);
        for waiting in self.take_waiting(name) {
            let (peer, number) = (waiting.peer, waiting.number);
            let removes = matches!(
                waiting.request,
                Request::Remove { .. } | Request::Discard { .. }
            );
            let ended = removes.then(|| a.core.end_begun(peer, name)).flatten();
            let answer = ended.map_or(Err(lacks.clone()), |ended| ended.map(|()| Answer::Done));
            core::answer_with(peer, number, answer, a.out);
        }
    }
}
