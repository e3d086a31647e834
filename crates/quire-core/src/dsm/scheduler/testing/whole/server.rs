//! What a scheduler has to be here: one of a single server, or one with peer servers.

use std::collections::BTreeSet;

use crate::dsm::message::{PageNumber, ServerId};
use crate::dsm::scheduler::distributed::{Distributed, Epoch, Message};
use crate::dsm::scheduler::multi::Multi;
use crate::dsm::scheduler::simple::Simple;
use crate::dsm::scheduler::testing::model::Checkable;
use crate::dsm::scheduler::{Action, Nonsense};

/// A scheduler that may have peer servers.
pub(super) trait Server: Checkable {
    /// A peer server says something.
    fn peer_server_says(
        &mut self,
        _: ServerId,
        _: Message<u8>,
        _: &mut Vec<Action<u8>>,
    ) -> Result<(), Nonsense> {
        Err(Nonsense("it has no peer servers"))
    }

    /// There is a new view; whether it could be entered.
    fn enters(&mut self, _: u64, _: BTreeSet<ServerId>, _: &mut Vec<Action<u8>>) -> bool {
        true
    }

    /// The number of its view.
    fn view(&self) -> u64 {
        0
    }

    /// The latest contents of a page that are here.
    fn latest(&self, _: PageNumber) -> Option<u8> {
        None
    }
}

impl Server for Simple<u8> {}

impl Server for Multi<u8> {}

impl Server for Distributed<u8> {
    fn peer_server_says(
        &mut self,
        from: ServerId,
        message: Message<u8>,
        actions: &mut Vec<Action<u8>>,
    ) -> Result<(), Nonsense> {
        self.server_says(from, message, actions)
    }

    fn enters(
        &mut self,
        view: u64,
        members: BTreeSet<ServerId>,
        actions: &mut Vec<Action<u8>>,
    ) -> bool {
        self.new_view(Epoch(view), members, actions).is_ok()
    }

    fn view(&self) -> u64 {
        self.epoch().0
    }

    fn latest(&self, page: PageNumber) -> Option<u8> {
        self.latest_contents(page)
    }
}
