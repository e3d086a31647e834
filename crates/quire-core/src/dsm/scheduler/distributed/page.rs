//! One page at one server: its state, and the procedures of Figures 2 to 4, 6 and 7 of the
//! paper. Numbers in parentheses are the lines of these figures. What differs from them, and
//! why, is at the head of [`super`].

use super::counters::Counters;
use super::message::{Body, Epoch, Fault, Holding, Message, Version};
use crate::dsm::message::{Access, Client, KernelId, Lock, PageNumber, Pages, ServerId, ToKernel};
use crate::dsm::scheduler::few::Few;
use crate::dsm::scheduler::observe;
use crate::dsm::scheduler::{Action, Nonsense};
use std::collections::VecDeque;
use std::mem::take;

/// How often a read fault is forwarded before a server takes it on as its own.
pub(super) const CHASE: u32 = 16;

/// The state of a page at a server (paper 003, section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// There may be readers, and this server has a valid copy.
    Read,
    /// The page is elsewhere, and nobody here waits for it.
    Write,
    /// The page is elsewhere, and was asked for because of readers.
    ReadWait,
    /// The page was asked for because of a writer, or its readers were told to drop it.
    WriteWait,
}

/// Who has a page, as far as a server knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// This server.
    Myself,
    /// A kernel of this server, which may write to it.
    Kernel(KernelId),
    /// Another server, or one that knows more (the paper's hint).
    Server(ServerId),
    /// Whoever backs the object: nobody has had the page yet.
    Pager,
}

impl Owner {
    pub(super) const fn is_server(self) -> bool {
        matches!(self, Owner::Server(_))
    }
}

/// A client that waits to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Writer {
    /// A kernel; `unlock` where it said that it has a copy.
    Kernel { kernel: KernelId, unlock: bool },
    /// A server, and the version whose contents it has.
    Server {
        server: ServerId,
        have: Option<Version>,
    },
}

impl Writer {
    const fn client(self) -> Client {
        match self {
            Writer::Kernel { kernel, .. } => Client::Kernel(kernel),
            Writer::Server { server, .. } => Client::Server(server),
        }
    }
}

/// What the procedures need beside the page: who they are, and where to put what they want.
pub(super) struct Step<'a, D> {
    pub me: ServerId,
    pub epoch: Epoch,
    pub page: PageNumber,
    /// The server ends, and has asked its kernels for all that they have.
    pub is_ending: bool,
    /// The least version that a kernel is given now.
    pub floor: Version,
    pub counters: &'a mut Counters,
    pub actions: &'a mut Vec<Action<D>>,
}

impl<D> Step<'_, D> {
    fn tell(&mut self, kernel: KernelId, message: ToKernel<D>) {
        self.counters.kernels.sent += 1;
        self.actions.push(Action::Tell(kernel, message));
    }

    fn flush(&mut self, kernel: KernelId) {
        let (pages, lock) = (Pages::one(self.page), Lock::Flush);
        self.tell(kernel, ToKernel::LockRequest { pages, lock });
    }

    fn send(&mut self, to: ServerId, body: Body<D>) {
        self.counters.servers.sent += 1;
        let epoch = self.epoch;
        let message = Message { epoch, body };
        self.actions.push(Action::TellServer(to, message));
    }

    fn send_read_fault(&mut self, to: ServerId, who: ServerId) {
        let fault = Fault {
            page: self.page,
            who,
            access: Access::Read,
            have: None,
            hops: 0,
        };
        self.send(to, Body::Fault(fault));
    }
}

/// A page at a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Page<D> {
    pub state: State,
    pub owner: Owner,
    /// Whether `owner` is the last writer whose fault was forwarded: it will own the page
    /// later than whoever gets it now.
    pub hinted: bool,
    /// Who has a copy that came from here, to be read.
    pub readers: Few<Client>,
    /// Who waits to read.
    pub waiting: Few<Client>,
    /// Who waits to write, first come, first served.
    pub writers: VecDeque<Writer>,
    /// Who was told to drop its copy and has not yet said that it did.
    pub dropping: Few<Client>,
    /// The server that wants to know when nobody is left in `dropping`.
    pub dropped_for: Option<ServerId>,
    /// Whether the owner, a kernel or the pager, was asked for the page.
    pub asked: bool,
    /// Whether the kernel that was asked has given back contents since.
    pub written: bool,
    /// The version of the page, if it is owned here, else of `contents`.
    pub version: Version,
    /// The server that owned the page when the copy that is here was made. It owns it until
    /// that copy is dropped.
    pub source: ServerId,
    /// The latest contents that are here. While a kernel writes, they are what it was given.
    pub contents: Option<Option<D>>,
    /// The page is owned here, as its owner is gone or the kernel that could write to it, and nobody has
    /// been given it since: later contents are taken, where somebody brings them.
    pub is_orphan: bool,
}

impl<D: Clone> Page<D> {
    pub(super) fn new(owner: Owner, me: ServerId) -> Page<D> {
        Page {
            state: State::Write,
            owner,
            hinted: false,
            readers: Few::new(),
            waiting: Few::new(),
            writers: VecDeque::new(),
            dropping: Few::new(),
            dropped_for: None,
            asked: false,
            written: false,
            version: Version(0),
            source: me,
            contents: None,
            is_orphan: false,
        }
    }

    /// Figure 2.
    pub(super) fn read_fault(&mut self, client: Client, step: &mut Step<'_, D>) {
        match self.state {
            State::Read => self.give_copy(client, step),
            State::Write => {
                self.waiting.insert(client);
                self.state = State::ReadWait;
                self.ask(Access::Read, None, step);
            }
            State::ReadWait | State::WriteWait => {
                self.waiting.insert(client);
            }
        }
    }

    /// Figure 3, with line (2).
    pub(super) fn write_fault(&mut self, writer: Writer, step: &mut Step<'_, D>) {
        if self.is_queued(writer.client()) {
            return;
        }
        self.writers.push_back(writer);
        match self.state {
            State::Read if !self.owner.is_server() => {
                self.state = State::WriteWait;
                self.revoke(step);
            }
            State::Read => self.ask_to_upgrade(step),
            State::Write => {
                self.state = State::WriteWait;
                self.ask(Access::Write, None, step);
            }
            State::ReadWait if !self.owner.is_server() => self.state = State::WriteWait,
            // A copy is on its way; the page itself is asked for when it has come.
            State::ReadWait | State::WriteWait => {}
        }
    }

    /// `page_fault` of Figure 7: another server needs the page.
    pub(super) fn page_fault(&mut self, fault: Fault, step: &mut Step<'_, D>) {
        match self.owner {
            Owner::Server(owner) if !self.keeps(fault) => {
                self.forward(owner, fault, step);
            }
            _ if fault.access == Access::Read => {
                self.read_fault(Client::Server(fault.who), step);
            }
            _ => {
                let (server, have) = (fault.who, fault.have);
                self.write_fault(Writer::Server { server, have }, step);
            }
        }
    }

    /// Whether a fault waits here although the page is at another server.
    fn keeps(&self, fault: Fault) -> bool {
        match (self.state, fault.access) {
            (State::WriteWait, _) => true,
            (state, access) => access == Access::Read && state != State::Write,
        }
    }

    fn forward(&mut self, owner: ServerId, fault: Fault, step: &mut Step<'_, D>) {
        if fault.access == Access::Read && fault.hops >= CHASE && self.state == State::Write {
            self.waiting.insert(Client::Server(fault.who));
            self.state = State::WriteWait;
            self.ask(Access::Write, None, step);
            return;
        }
        step.counters
            .forwarded
            .count(observe::Fault::of(fault.access, fault.have.is_some()));
        let hops = fault.hops + 1;
        step.send(owner, Body::Fault(Fault { hops, ..fault }));
        if fault.access == Access::Write {
            self.owner = Owner::Server(fault.who);
            self.hinted = true;
        }
    }

    /// (2): asks for the page, a copy of which is here.
    fn ask_to_upgrade(&mut self, step: &mut Step<'_, D>) {
        self.state = State::WriteWait;
        self.ask(Access::Write, Some(self.version), step);
    }

    /// Asks whoever has the page for it. `have` is the version of the copy that is here.
    fn ask(&mut self, access: Access, have: Option<Version>, step: &mut Step<'_, D>) {
        match self.owner {
            Owner::Kernel(kernel) if !self.asked => {
                self.asked = true;
                self.written = false;
                step.flush(kernel);
            }
            Owner::Pager if !self.asked => {
                self.asked = true;
                step.actions.push(Action::Load(Pages::one(step.page)));
            }
            Owner::Server(to) => {
                let fault = Fault {
                    page: step.page,
                    who: step.me,
                    access,
                    have,
                    hops: 0,
                };
                step.send(to, Body::Fault(fault));
            }
            _ => {}
        }
    }

    /// The page is here, with its contents, and nobody writes (`pageout`, Figure 4): those
    /// who wait to read get it, then the next writer.
    fn came_home(&mut self, step: &mut Step<'_, D>) {
        self.owner = Owner::Myself;
        self.source = step.me;
        self.hinted = false;
        for client in take(&mut self.waiting) {
            self.give_copy(client, step);
        }
        if self.writers.is_empty() {
            self.state = State::Read; // (4)
        } else {
            self.state = State::WriteWait;
            self.revoke(step);
        }
    }

    /// (1): tells all readers but the next writer to drop their copies.
    fn revoke(&mut self, step: &mut Step<'_, D>) {
        let next = self.writers.front().map(|writer| writer.client());
        let owner = match next {
            Some(Client::Server(server)) => server,
            _ => step.me,
        };
        for reader in take(&mut self.readers) {
            if Some(reader) == next {
                self.readers.insert(reader);
            } else {
                self.drop_copy(reader, owner, step);
            }
        }
        if self.dropping.is_empty() {
            self.grant(step);
        }
    }

    /// (1) and (7): tells one reader to drop its copy.
    fn drop_copy(&mut self, reader: Client, owner: ServerId, step: &mut Step<'_, D>) {
        self.dropping.insert(reader);
        match reader {
            Client::Kernel(kernel) => step.flush(kernel),
            Client::Server(server) => {
                step.counters.invalidations += 1;
                let page = step.page;
                step.send(server, Body::Invalidate { page, owner });
            }
        }
    }

    /// The page is here, and no reader is left but the next writer.
    fn grant(&mut self, step: &mut Step<'_, D>) {
        match self.writers.pop_front() {
            None => self.came_home(step),
            Some(Writer::Kernel { kernel, unlock }) => self.give_to_kernel(kernel, unlock, step),
            Some(Writer::Server { server, have }) => self.ship(server, have, step),
        }
    }

    fn give_copy(&mut self, client: Client, step: &mut Step<'_, D>) {
        self.is_orphan = false;
        self.readers.insert(client);
        let data = self.contents.clone().flatten();
        match client {
            Client::Kernel(kernel) => step.tell(
                kernel,
                ToKernel::DataProvided {
                    pages: Pages::one(step.page),
                    data: vec![data],
                    access: Access::Read,
                },
            ),
            Client::Server(server) => {
                let (page, version, owner) = (step.page, self.version, self.source);
                step.send(
                    server,
                    Body::Copy {
                        page,
                        version,
                        owner,
                        data,
                    },
                );
            }
        }
    }

    fn give_to_kernel(&mut self, kernel: KernelId, unlock: bool, step: &mut Step<'_, D>) {
        self.is_orphan = false;
        self.version = Version(self.version.0 + 1).max(step.floor);
        self.owner = Owner::Kernel(kernel);
        self.state = State::Write;
        self.asked = false;
        self.waiting.remove(&Client::Kernel(kernel));
        let pages = Pages::one(step.page);
        let has_copy = take(&mut self.readers).contains(&Client::Kernel(kernel));
        let message = if unlock && has_copy {
            let lock = Lock::AllowWrite;
            ToKernel::LockRequest { pages, lock }
        } else {
            ToKernel::DataProvided {
                pages,
                data: vec![self.contents.clone().flatten()],
                access: Access::Write,
            }
        };
        step.tell(kernel, message);
        if !self.writers.is_empty() {
            self.state = State::WriteWait;
            self.ask(Access::Write, None, step);
        } else if !self.waiting.is_empty() {
            self.state = State::ReadWait;
            self.ask(Access::Read, None, step);
        }
    }

    /// Gives the page to another server. Whoever waits here to read goes ahead of it, to be
    /// served when it comes; whoever waits to write goes after it, as if it asked now.
    fn ship(&mut self, to: ServerId, have: Option<Version>, step: &mut Step<'_, D>) {
        self.is_orphan = false;
        let writers = take(&mut self.writers);
        for client in take(&mut self.waiting) {
            match client {
                Client::Server(who) => {
                    step.counters.forwarded.count(observe::Fault::Read);
                    step.send_read_fault(to, who);
                }
                Client::Kernel(_) => {
                    self.waiting.insert(client);
                }
            }
        }
        self.state = State::Write;
        let kernel_writes = |writer: &Writer| matches!(writer, Writer::Kernel { .. });
        if !self.waiting.is_empty() && !writers.iter().any(kernel_writes) {
            self.state = State::ReadWait;
            step.send_read_fault(to, step.me);
        }
        let data = match have {
            Some(version) if version == self.version => None,
            _ => Some(self.contents.clone().flatten()),
        };
        let (page, version) = (step.page, self.version);
        step.send(
            to,
            Body::Own {
                page,
                version,
                data,
            },
        );
        self.readers.clear();
        self.owner = Owner::Server(to);
        self.hinted = false;
        for writer in writers {
            self.ask_again(writer, step);
        }
    }

    fn ask_again(&mut self, writer: Writer, step: &mut Step<'_, D>) {
        match writer {
            Writer::Kernel { .. } => self.write_fault(writer, step),
            Writer::Server { server, have } => {
                let fault = Fault {
                    page: step.page,
                    who: server,
                    access: Access::Write,
                    have,
                    hops: 0,
                };
                self.page_fault(fault, step);
            }
        }
    }

    /// `pageout` of a page that a server ships.
    pub(super) fn own(
        &mut self,
        version: Version,
        data: Option<Option<D>>,
        step: &mut Step<'_, D>,
    ) -> Result<(), Nonsense> {
        if self.state != State::WriteWait || !self.waits_for_server(step) {
            return Err(Nonsense("a page came that was not asked for"));
        }
        match data {
            Some(data) => self.contents = Some(data),
            None if self.contents.is_some() && version == self.version => {}
            None => return Err(Nonsense("a page came without contents")),
        }
        self.version = version;
        self.came_home(step);
        Ok(())
    }

    /// `pageout` of a copy that a server sends. The server does not become the owner (6).
    pub(super) fn copy(
        &mut self,
        version: Version,
        (owner, data): (ServerId, Option<D>),
        step: &mut Step<'_, D>,
    ) -> Result<(), Nonsense> {
        if self.state != State::ReadWait || !self.waits_for_server(step) {
            return Err(Nonsense("a copy came that was not asked for"));
        }
        self.contents = Some(data);
        self.version = version;
        self.source = owner;
        if !self.hinted {
            self.owner = Owner::Server(owner); // (3)
        }
        self.hinted = false;
        for client in take(&mut self.waiting) {
            self.give_copy(client, step);
        }
        self.state = State::Read;
        if !self.writers.is_empty() {
            self.ask_to_upgrade(step);
        }
        Ok(())
    }

    /// Whether what another server says can be meant for this page as it is. Where this server
    /// ends, kernels may be dropping copies that nobody else wanted dropped.
    fn waits_for_server(&self, step: &Step<'_, D>) -> bool {
        self.owner.is_server() && (step.is_ending || self.dropping.is_empty())
    }

    /// `invalidate_page` of Figure 7: the copy that `from` gave is to be dropped.
    pub(super) fn invalidate(
        &mut self,
        from: ServerId,
        owner: ServerId,
        step: &mut Step<'_, D>,
    ) -> Result<(), Nonsense> {
        let has_copy = matches!(self.state, State::Read | State::WriteWait);
        if !has_copy || !self.waits_for_server(step) {
            return Err(Nonsense("a copy is to be dropped that is not here"));
        }
        if owner != step.me {
            for reader in take(&mut self.readers) {
                self.drop_copy(reader, owner, step); // (7)
            }
            if self.state == State::Read {
                self.state = State::Write;
                if !self.hinted {
                    self.owner = Owner::Server(owner);
                }
                self.hinted = false;
            }
        }
        self.dropped_for = Some(from);
        self.all_dropped(step);
        Ok(())
    }

    /// A client says that it has dropped its copy.
    pub(super) fn dropped(
        &mut self,
        client: Client,
        step: &mut Step<'_, D>,
    ) -> Result<(), Nonsense> {
        if !self.dropping.remove(&client) {
            return Err(Nonsense("a copy was dropped that nobody asked to drop"));
        }
        self.all_dropped(step);
        Ok(())
    }

    /// Goes on where nobody is left who still has to drop its copy.
    fn all_dropped(&mut self, step: &mut Step<'_, D>) {
        if !self.dropping.is_empty() {
            return;
        }
        if let Some(parent) = self.dropped_for.take() {
            let page = step.page;
            step.send(parent, Body::Invalidated { page });
        }
        if self.owner == Owner::Myself && self.state == State::WriteWait {
            self.grant(step);
        }
    }

    /// Contents that another server had. No copy here is older, but one that is about to be
    /// dropped for a new view.
    pub(super) fn paged_out(&mut self, version: Version, data: Option<D>, live: bool) {
        let has_copy = live && self.state == State::Read;
        if self.owner.is_server() && !has_copy && version > self.version {
            self.contents = Some(data);
            self.version = version;
        }
    }

    /// The kernel that owns the page gives back what it has written.
    pub(super) fn data_write(&mut self, data: Option<D>) {
        self.contents = Some(data);
        if self.asked {
            self.written = true;
        } else {
            self.owner = Owner::Myself;
            self.state = State::Read;
        }
    }

    /// `pageout` of a kernel: it has done what a flush asked for.
    pub(super) fn lock_completed(&mut self, kernel: KernelId, live: bool, step: &mut Step<'_, D>) {
        if self.owner == Owner::Kernel(kernel) && self.asked {
            step.counters.completions += u64::from(self.written);
            self.back(live, step);
        } else if self.dropping.remove(&Client::Kernel(kernel)) && live {
            self.all_dropped(step);
        }
    }

    /// Whoever backs the object brought the contents.
    pub(super) fn loaded(&mut self, data: Option<D>, live: bool, step: &mut Step<'_, D>) {
        self.contents = Some(data);
        self.back(live, step);
    }

    /// The page is back from a kernel or from the pager.
    fn back(&mut self, live: bool, step: &mut Step<'_, D>) {
        self.asked = false;
        self.written = false;
        self.owner = Owner::Myself;
        if live {
            self.came_home(step);
        }
    }

    /// The page that all wait for cannot be had.
    pub(super) fn lost(&mut self, owner: Owner, step: &mut Step<'_, D>) {
        let writers = take(&mut self.writers);
        let waiting = take(&mut self.waiting);
        let clients: Few<Client> = writers
            .into_iter()
            .map(Writer::client)
            .chain(waiting)
            .collect();
        for client in clients {
            match client {
                Client::Kernel(kernel) => {
                    let pages = Pages::one(step.page);
                    step.tell(kernel, ToKernel::DataError { pages });
                }
                Client::Server(server) => {
                    let page = step.page;
                    step.send(server, Body::Lost { page });
                }
            }
        }
        self.asked = false;
        self.owner = owner;
        self.hinted = false;
        self.state = State::Write;
    }

    /// Another server says that the page that all wait for cannot be had.
    pub(super) fn lost_elsewhere(
        &mut self,
        from: ServerId,
        step: &mut Step<'_, D>,
    ) -> Result<(), Nonsense> {
        let waits = matches!(self.state, State::ReadWait | State::WriteWait);
        if !waits || !self.waits_for_server(step) || !self.readers.is_empty() {
            return Err(Nonsense("a page is lost that nobody waits for"));
        }
        self.lost(Owner::Server(from), step);
        Ok(())
    }

    /// A kernel is gone: what it had goes back to the latest contents that are here.
    pub(super) fn gone(&mut self, kernel: KernelId, live: bool, step: &mut Step<'_, D>) {
        let client = Client::Kernel(kernel);
        self.readers.remove(&client);
        self.waiting.remove(&client);
        self.writers.retain(|writer| writer.client() != client);
        if self.owner == Owner::Kernel(kernel) {
            self.is_orphan = true;
            self.back(live, step);
        } else if self.dropping.remove(&client) && live {
            self.all_dropped(step);
        }
    }

    /// No kernel waits for it any more, and those that have it are told to drop it. Peer
    /// servers are served when they have.
    pub(super) fn take_back(&mut self, step: &mut Step<'_, D>) {
        let is_kernel = |client: &Client| matches!(client, Client::Kernel(_));
        self.waiting.retain(|client| !is_kernel(client));
        self.writers.retain(|writer| !is_kernel(&writer.client()));
        if let Owner::Kernel(_) = self.owner {
            self.ask(Access::Read, None, step);
        }
        let (kernels, servers) = take(&mut self.readers).into_iter().partition(is_kernel);
        self.readers = servers;
        let kernels: Few<Client> = kernels;
        for kernel in kernels {
            self.drop_copy(kernel, step.me, step);
        }
    }

    /// A kernel that has it, or has yet to drop its copy.
    pub(super) fn owes(&self) -> Option<KernelId> {
        if let Owner::Kernel(kernel) = self.owner {
            return Some(kernel);
        }
        self.dropping.iter().find_map(|client| match client {
            Client::Kernel(kernel) => Some(*kernel),
            Client::Server(_) => None,
        })
    }

    fn is_queued(&self, client: Client) -> bool {
        self.writers.iter().any(|writer| writer.client() == client)
    }

    /// Whether a kernel owes an answer to a flush.
    pub(super) fn was_told_to_flush(&self, kernel: KernelId) -> bool {
        let owns = self.owner == Owner::Kernel(kernel) && self.asked;
        owns || self.dropping.contains(&Client::Kernel(kernel))
    }

    /// Whether a kernel may ask for this page: not where it has it already.
    pub(super) fn may_ask(&self, kernel: KernelId) -> bool {
        self.owner != Owner::Kernel(kernel) || self.asked
    }
}

/// What a new view does to a page.
impl<D: Clone> Page<D> {
    /// Forgets all that has to do with other servers. Copies that came from one are dropped.
    pub(super) fn leave_view(&mut self, step: &mut Step<'_, D>) {
        let is_kernel = |client: &Client| matches!(client, Client::Kernel(_));
        self.readers.retain(is_kernel);
        self.waiting.retain(is_kernel);
        self.dropping.retain(is_kernel);
        self.writers.retain(|writer| is_kernel(&writer.client()));
        self.dropped_for = None;
        self.hinted = false;
        if self.owner.is_server() {
            for reader in take(&mut self.readers) {
                self.drop_copy(reader, step.me, step);
            }
        }
    }

    /// Whether kernels have yet to drop copies that came from another server.
    pub(super) fn is_leaving(&self) -> bool {
        self.owner.is_server() && !self.dropping.is_empty()
    }

    /// A fault of a kernel that has to wait for the view.
    pub(super) fn wait_for_view(&mut self, kernel: KernelId, writer: Option<Writer>) {
        match writer {
            Some(writer) if !self.is_queued(writer.client()) => self.writers.push_back(writer),
            Some(_) => {}
            None => {
                self.waiting.insert(Client::Kernel(kernel));
            }
        }
    }

    pub(super) fn holding(&self, page: PageNumber) -> Holding {
        Holding {
            page,
            version: self.version,
            contents: self.contents.is_some(),
            owner: !self.owner.is_server() && !self.is_free(),
        }
    }

    /// Whether the page is owned here, and later contents are taken where somebody brings them.
    pub(super) fn is_free(&self) -> bool {
        match self.owner {
            Owner::Myself => self.is_orphan,
            Owner::Pager => !self.asked,
            Owner::Kernel(_) | Owner::Server(_) => false,
        }
    }

    /// Somebody brings contents of a page that is free, or of which the new view has nothing later.
    pub(super) fn bring(&mut self, version: Version, data: Option<D>) {
        self.contents = Some(data);
        self.version = version;
        if self.owner == Owner::Pager {
            (self.owner, self.state) = (Owner::Myself, State::Read);
        }
        self.is_orphan = true;
    }

    /// The new view says who owns the page; the faults of kernels are asked again.
    pub(super) fn enter_view(&mut self, owner: ServerId, step: &mut Step<'_, D>) {
        if owner != step.me {
            self.owner = Owner::Server(owner);
            self.is_orphan = false;
        } else if self.owner.is_server() {
            self.owner = match self.contents {
                Some(_) => Owner::Myself,
                None => Owner::Pager,
            };
            self.is_orphan = true;
        }
        self.source = owner;
        self.state = match self.owner {
            Owner::Myself if !self.dropping.is_empty() => State::WriteWait,
            Owner::Myself => State::Read,
            _ => State::Write,
        };
        let writers = take(&mut self.writers);
        for client in take(&mut self.waiting) {
            self.read_fault(client, step);
        }
        for writer in writers {
            self.write_fault(writer, step);
        }
    }
}
