//! Servers that are wrong, and what those of [`super::super::mutant`] are with peer servers.

use std::collections::BTreeSet;

use super::server::Server;
use crate::dsm::message::{Client, FromKernel, KernelId, PageNumber, Pages, ServerId};
use crate::dsm::scheduler::distributed::{Body, Distributed, Epoch, Message, State};
use crate::dsm::scheduler::multi::Multi;
use crate::dsm::scheduler::simple::Simple;
use crate::dsm::scheduler::testing::mutant::{Deaf, Eager, Hasty};
use crate::dsm::scheduler::{Action, Nonsense, Scheduler};

impl Server for Hasty<Simple<u8>> {}
impl Server for Hasty<Multi<u8>> {}
impl Server for Eager<Simple<u8>> {}
impl Server for Eager<Multi<u8>> {}
impl Server for Deaf<Simple<u8>> {}
impl Server for Deaf<Multi<u8>> {}

/// What is wrong with a server that has peer servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Flaw {
    /// In WriteWait it answers an invalidation without obeying it, as the paper says.
    AsThePaper,
    /// It takes messages of earlier views for messages of its own.
    Timeless,
    /// It does not take back the pages of a machine that is gone.
    Deaf,
    /// It does not enter views.
    Stays,
}

/// A server with peer servers that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flawed {
    pub(super) server: Distributed<u8>,
    pub(super) flaw: Flaw,
}

impl Scheduler<u8> for Flawed {
    fn kernel_says(
        &mut self,
        kernel: KernelId,
        message: FromKernel<u8>,
        actions: &mut Vec<Action<u8>>,
    ) -> Result<(), Nonsense> {
        self.server.kernel_says(kernel, message, actions)
    }

    fn loaded(
        &mut self,
        pages: Pages,
        data: Option<Vec<Option<u8>>>,
        actions: &mut Vec<Action<u8>>,
    ) {
        self.server.loaded(pages, data, actions);
    }

    fn gone(&mut self, client: Client, actions: &mut Vec<Action<u8>>) {
        if self.flaw != Flaw::Deaf {
            self.server.gone(client, actions);
        }
    }
}

impl Server for Flawed {
    fn peer_server_says(
        &mut self,
        from: ServerId,
        mut message: Message<u8>,
        actions: &mut Vec<Action<u8>>,
    ) -> Result<(), Nonsense> {
        if let (Flaw::AsThePaper, &Body::Invalidate { page, .. }) = (self.flaw, &message.body) {
            let stat = self.server.stat(page);
            if stat.is_some_and(|stat| stat.state == State::WriteWait) {
                let (epoch, body) = (message.epoch, Body::Invalidated { page });
                actions.push(Action::TellServer(from, Message { epoch, body }));
                return Ok(());
            }
        }
        if self.flaw == Flaw::Timeless && message.epoch < self.server.epoch() {
            message.epoch = self.server.epoch();
        }
        self.server.peer_server_says(from, message, actions)
    }

    fn enters(
        &mut self,
        view: u64,
        members: BTreeSet<ServerId>,
        actions: &mut Vec<Action<u8>>,
    ) -> bool {
        match self.flaw {
            Flaw::Stays => self.server.enters(view, members, &mut Vec::new()),
            _ => self.server.enters(view, members, actions),
        }
    }

    fn view(&self) -> u64 {
        let Epoch(view) = self.server.epoch();
        view
    }

    fn latest(&self, page: PageNumber) -> Option<u8> {
        self.server.latest(page)
    }
}
