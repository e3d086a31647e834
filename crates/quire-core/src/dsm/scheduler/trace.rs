//! Each message in and out of a scheduler, for whoever wants to watch (`quire object
//! trace`). Contents are not shown. A scheduler that nobody watches pays one test for each
//! message.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Action, Nonsense, Scheduler};
use crate::dsm::message::{
    Access, Client, FromKernel, KernelId, Lock, PageNumber, Pages, ServerId, ToKernel,
};

/// Whom a scheduler speaks with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Peer {
    /// A kernel or a peer server.
    Client(Client),
    /// Whoever backs the object.
    Backer,
}

/// What is said. The names are those of the messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// [`FromKernel::DataRequest`].
    DataRequest(Access),
    /// [`FromKernel::DataUnlock`].
    DataUnlock,
    /// [`FromKernel::DataWrite`].
    DataWrite,
    /// [`FromKernel::LockCompleted`].
    LockCompleted,
    /// [`FromKernel::Terminate`].
    Terminate,
    /// The client is gone.
    Gone,
    /// What it said just before makes no sense, for this reason.
    Nonsense(Cow<'static, str>),
    /// [`ToKernel::DataProvided`].
    DataProvided(Access),
    /// [`ToKernel::LockRequest`].
    LockRequest(Lock),
    /// [`ToKernel::DataError`].
    DataError,
    /// A message to a peer server.
    ToServer,
    /// [`Action::Load`].
    Load,
    /// The answer to it, and whether there are contents.
    Loaded(bool),
    /// [`Action::Save`].
    Save,
    /// A message from a peer server.
    FromServer,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Whether it came in.
    pub incoming: bool,
    /// From whom, or to whom.
    pub peer: Peer,
    /// What it says.
    pub what: What,
    /// Of which pages, where it names any.
    pub pages: Option<Pages>,
}

impl Event {
    const fn incoming(peer: Peer, what: What, pages: Option<Pages>) -> Event {
        Event {
            incoming: true,
            peer,
            what,
            pages,
        }
    }

    /// A kernel said something.
    #[must_use]
    pub const fn received<D>(kernel: KernelId, message: &FromKernel<D>) -> Event {
        let (what, pages) = match message {
            FromKernel::DataRequest { pages, access } => (What::DataRequest(*access), Some(*pages)),
            FromKernel::DataUnlock { pages } => (What::DataUnlock, Some(*pages)),
            FromKernel::DataWrite { pages, .. } => (What::DataWrite, Some(*pages)),
            FromKernel::LockCompleted { pages } => (What::LockCompleted, Some(*pages)),
            FromKernel::Terminate => (What::Terminate, None),
        };
        Event::incoming(Peer::Client(Client::Kernel(kernel)), what, pages)
    }

    /// What a kernel said just before makes no sense, for this reason.
    #[must_use]
    pub const fn nonsense(kernel: KernelId, reason: &'static str) -> Event {
        let peer = Peer::Client(Client::Kernel(kernel));
        Event::incoming(peer, What::Nonsense(Cow::Borrowed(reason)), None)
    }

    /// Whoever backs the object answered, with contents or without.
    #[must_use]
    pub const fn loaded(pages: Pages, are_there: bool) -> Event {
        Event::incoming(Peer::Backer, What::Loaded(are_there), Some(pages))
    }

    /// A peer server said something.
    #[must_use]
    pub const fn from_server(server: ServerId) -> Event {
        let peer = Peer::Client(Client::Server(server));
        Event::incoming(peer, What::FromServer, None)
    }

    /// A client is gone.
    #[must_use]
    pub const fn gone(client: Client) -> Event {
        Event::incoming(Peer::Client(client), What::Gone, None)
    }

    /// The scheduler wants something to be done.
    #[must_use]
    pub const fn sent<D>(action: &Action<D>) -> Event {
        let (peer, what, pages) = match action {
            Action::Tell(kernel, message) => {
                let (what, pages) = match message {
                    ToKernel::DataProvided { pages, access, .. } => {
                        (What::DataProvided(*access), *pages)
                    }
                    ToKernel::LockRequest { pages, lock } => (What::LockRequest(*lock), *pages),
                    ToKernel::DataError { pages } => (What::DataError, *pages),
                };
                (Peer::Client(Client::Kernel(*kernel)), what, Some(pages))
            }
            Action::TellServer(server, _) => {
                (Peer::Client(Client::Server(*server)), What::ToServer, None)
            }
            Action::Load(pages) => (Peer::Backer, What::Load, Some(*pages)),
            Action::Save(pages, _) => (Peer::Backer, What::Save, Some(*pages)),
        };
        Event {
            incoming: false,
            peer,
            what,
            pages,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.incoming { "<- " } else { "-> " })?;
        match self.peer {
            Peer::Client(Client::Kernel(kernel)) => write!(f, "kernel {}", kernel.0)?,
            Peer::Client(Client::Server(server)) => write!(f, "server {}", server.0)?,
            Peer::Backer => f.write_str("backer")?,
        }
        match &self.what {
            What::DataRequest(access) => write!(f, " DataRequest {access:?}")?,
            What::DataProvided(access) => write!(f, " DataProvided {access:?}")?,
            What::LockRequest(lock) => write!(f, " LockRequest {lock:?}")?,
            What::Loaded(true) => f.write_str(" Loaded")?,
            What::Loaded(false) => f.write_str(" Loaded, lost")?,
            What::Nonsense(reason) => write!(f, " makes no sense: {reason}")?,
            what => write!(f, " {what:?}")?,
        }
        match self.pages {
            Some(Pages { first, count: 1 }) => write!(f, " page {}", first.0),
            Some(Pages { first, count }) => write!(f, " pages {}+{count}", first.0),
            None => Ok(()),
        }
    }
}

/// Who watches.
pub type Watcher = Box<dyn FnMut(Event) + Send>;

/// A scheduler that can be watched.
pub struct Traced<S> {
    scheduler: S,
    watcher: Option<Watcher>,
}

impl<S> Traced<S> {
    /// A scheduler that nobody watches yet.
    pub const fn new(scheduler: S) -> Traced<S> {
        Traced {
            scheduler,
            watcher: None,
        }
    }

    /// From now on this one watches, or nobody.
    pub fn watch(&mut self, watcher: Option<Watcher>) {
        self.watcher = watcher;
    }

    /// The scheduler itself.
    pub const fn scheduler(&self) -> &S {
        &self.scheduler
    }

    fn tell(&mut self, event: Event) {
        if let Some(watcher) = &mut self.watcher {
            watcher(event);
        }
    }

    fn tell_actions<D>(&mut self, actions: &[Action<D>]) {
        if let Some(watcher) = &mut self.watcher {
            actions.iter().map(Event::sent).for_each(watcher);
        }
    }
}

impl<D: Clone, S: Scheduler<D>> Scheduler<D> for Traced<S> {
    fn kernel_says(
        &mut self,
        kernel: KernelId,
        message: FromKernel<D>,
        actions: &mut Vec<Action<D>>,
    ) -> Result<(), Nonsense> {
        let before = actions.len();
        if self.watcher.is_some() {
            self.tell(Event::received(kernel, &message));
        }
        let outcome = self.scheduler.kernel_says(kernel, message, actions);
        if let Err(Nonsense(reason)) = outcome {
            self.tell(Event::nonsense(kernel, reason));
        }
        self.tell_actions(&actions[before..]);
        outcome
    }

    fn loaded(&mut self, pages: Pages, data: Option<Vec<Option<D>>>, actions: &mut Vec<Action<D>>) {
        let before = actions.len();
        self.tell(Event::loaded(pages, data.is_some()));
        self.scheduler.loaded(pages, data, actions);
        self.tell_actions(&actions[before..]);
    }

    fn gone(&mut self, client: Client, actions: &mut Vec<Action<D>>) {
        let before = actions.len();
        self.tell(Event::gone(client));
        self.scheduler.gone(client, actions);
        self.tell_actions(&actions[before..]);
    }

    fn release(&mut self, page: PageNumber) -> bool {
        self.scheduler.release(page)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::dsm::scheduler::observe::Observe;
    use crate::dsm::scheduler::options::Options;
    use crate::dsm::scheduler::simple::Simple;
    use crate::dsm::scheduler::testing::say::{back, load, pages, read, refused, say, write};

    #[test]
    fn each_message_is_seen_while_somebody_watches() {
        let (sender, events) = mpsc::channel();
        let mut traced = Traced::new(Simple::new(Options::new(4)));
        let page = pages(3, 1);
        say(&mut traced, 7, write(page));
        load(&mut traced, page, 0);
        let watcher = move |event: Event| sender.send(event.to_string()).expect("it is read");
        traced.watch(Some(Box::new(watcher)));
        say(&mut traced, 8, read(page));
        refused(&mut traced, 8, back(page, 1));
        say(&mut traced, 7, back(page, 1));
        traced.gone(Client::Kernel(KernelId(7)), &mut Vec::new());
        say(&mut traced, 8, read(pages(0, 2)));
        traced.loaded(pages(0, 2), None, &mut Vec::new());
        traced.watch(None);
        say(&mut traced, 9, read(page));
        let expected = [
            "<- kernel 8 DataRequest Read page 3",
            "-> kernel 7 LockRequest Flush page 3",
            "<- kernel 8 DataWrite page 3",
            "<- kernel 8 makes no sense: DataWrite of a page that the kernel may not write to",
            "<- kernel 7 DataWrite page 3",
            "-> backer Save page 3",
            "<- kernel 7 Gone",
            "-> kernel 8 DataProvided Read page 3",
            "<- kernel 8 DataRequest Read pages 0+2",
            "-> backer Load page 0",
            "-> backer Load page 1",
            "<- backer Loaded, lost pages 0+2",
            "-> kernel 8 DataError page 0",
            "-> kernel 8 DataError page 1",
        ];
        assert_eq!(events.iter().collect::<Vec<_>>(), expected);
        assert_eq!(traced.scheduler().touched().count(), 3);
    }
}
