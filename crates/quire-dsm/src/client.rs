//! A program's way to objects that a server keeps.
//!
//! A [`Client`] is a link to one server, with a thread that answers the faults of all
//! objects which the program has open: it has the paper's kernel of each, on a machine that
//! has no server of its own. A [`Shared`] object is simply memory; what synchronises its
//! users is asked of the server.
//!
//! Where the server is on the same machine, its own copies of pages are mapped instead, and
//! it answers the faults itself (`client/attached.rs`).
//!
//! When the link breaks, all that is cached here is dropped at once, and touches wait for a
//! new link, to this server or to another one that the client knows. Those that wait in vain fail with `SIGBUS`; questions fail at once.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use quire_core::dsm::message::{Access, Pages};
use quire_core::dsm::sync;
use quire_core::dsm::types::{Machine, Report, Segment, TypeTag};
use quire_core::units::{Bytes, ObjectOffset, VirtAddr};
use quire_linux::touch;
use quire_linux::uffd::Scope;
use rustix::process::Pid;

use crate::heap::Lists;
use crate::link::turn::{Config, Orders, Turn};
use crate::link::{Address, Addresses, Security};
use crate::node::{Kept, Mapping, MappingError, RangeLock, Where};
use crate::programs::{Member, Team, Trouble, Word};
use crate::wire::control::{
    self, Answer, Failure, FailureKind, HAS_RECOVERY, Hello, Name, PageSize, Request, Rights, Role,
    SHARES_PAGES,
};

mod attached;
mod carrier;
mod cells;
mod expected;
mod guard;
mod progress;
pub mod recovery;
mod region;
mod replica;
mod watch;

use carrier::{Carrier, Command, Found, Key, Opened, Told, Wanted};
pub use cells::Cell;
pub use expected::Known;
pub use progress::Progress;
pub use recovery::Remains;
pub use region::{Place, Region};
pub use watch::Watch;

/// How often pages are taken from others before it is given up to change their type.
const TAKES: u32 = 16;

/// A server that is not the only one has at least so long to welcome a client.
const SHORTEST: Duration = Duration::from_secs(1);

/// The least and the most that touches wait for a new link, unless it is set.
const RECONNECT: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(60)];

/// How to reach a server, and as whom.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the servers are. The first that answers is used; when its link breaks, the next
    /// one that has the objects which are open.
    pub addresses: Addresses,
    /// How links to it are secured.
    pub security: Security,
    /// The name of this program; with TLS its certificate is for this name.
    pub name: Name,
    /// The name that the server must have, if it matters.
    pub server: Option<Name>,
    /// The machine that this program says it runs on.
    pub machine: Machine,
    /// The size of this machine's pages: how much is asked for at once.
    pub page_size: PageSize,
    /// After something happened, the thread looks for more for so long before it sleeps.
    pub spin: Duration,
    /// Where the system allows it, and nothing spins, the thread has a real-time priority: it
    /// answers faults at once, also where programs compute on all processors.
    pub realtime: bool,
    /// So long touches wait for a new link when the old one broke. Where nothing is said, three
    /// leases of that server, within which servers that are joined go on without it; at least
    /// 10 s, and at most a minute.
    pub reconnect: Option<Duration>,
    /// Pages are not shared with a server on this machine: this program is a machine of its
    /// own, and can go on at a server of another one.
    pub own_pages: bool,
    /// The most that is held of an object whose pages are not shared with a server; what came first
    /// goes back first. Where nothing is said, half of the memory that can be had when it is
    /// opened, and all of an object that is no larger.
    pub room: Option<Bytes>,
    /// A process beside this one takes the pages from its mappings when the lease ends, also while
    /// this one is stopped.
    pub revoker: bool,
    /// Where it is noted how far the giving back of what was written is, for who waits for that and
    /// wants to know whether it goes on.
    pub progress: Option<&'static Progress>,
    /// What is called when something that this program wrote is lost, before it can touch the
    /// memory again. It is called by the client's thread, which must not wait for those that touch it.
    pub on_loss: Option<fn(&Loss<'_>)>,
    /// The name of a recovery process: a process that brings what was written when this one is killed
    /// ([`recovery`]).
    pub recovery: Option<String>,
}

/// What was lost of an object.
#[derive(Clone, Copy, Debug)]
pub struct Loss<'a> {
    /// The object.
    pub name: &'a Name,
    /// So many of its pages had been written to.
    pub pages: u64,
}

impl Options {
    /// The usual ones: this machine, its base pages, no spinning.
    #[must_use]
    pub fn new(addresses: Addresses, name: Name) -> Options {
        Options {
            addresses,
            security: Security::Automatic(None),
            name,
            server: None,
            machine: Machine::native(),
            page_size: PageSize::BASE,
            spin: Duration::ZERO,
            realtime: true,
            reconnect: None,
            own_pages: false,
            room: None,
            revoker: true,
            progress: None,
            on_loss: None,
            recovery: None,
        }
    }

    /// How long touches wait for a new link, when that to a server with such leases broke.
    fn reconnect(&self, lease: Duration) -> Duration {
        let usual = (3 * lease).clamp(RECONNECT[0], RECONNECT[1]);
        self.reconnect.unwrap_or(usual)
    }

    /// How long a server may take until it welcomes this side. Where there are others, they
    /// are all tried while touches still wait.
    fn patience(&self, usual: Duration) -> Duration {
        let count = u32::try_from(self.addresses.count()).unwrap_or(u32::MAX);
        match count {
            1 => usual,
            _ => usual.min((self.reconnect(Duration::ZERO) / count / 2).max(SHORTEST)),
        }
    }

    fn hello(&self) -> Hello {
        Hello {
            name: self.name.clone(),
            role: Role::Kernel,
            machine: self.machine.into(),
            page_size: self.page_size,
            features: {
                let shares = self.addresses.iter().any(Address::is_local) && !self.own_pages;
                let with = |has: bool, feature| if has { feature } else { 0 };
                with(shares, SHARES_PAGES) | with(self.recovery.is_some(), HAS_RECOVERY)
            },
        }
    }
}

/// Why something cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server cannot be reached.
    #[error("{address}: {why}")]
    Unreachable {
        /// Where it should be.
        address: String,
        /// Why it cannot.
        why: String,
        /// The system does not let this user connect there.
        is_denied: bool,
    },
    /// The server refuses.
    #[error(transparent)]
    Refused(#[from] Failure),
    /// The object cannot be mapped.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// The system refuses.
    #[error("{0}")]
    System(#[from] io::Error),
    /// The server answers what does not fit the question.
    #[error("the server answers what was not asked")]
    Confused,
    /// It was removed; maybe there is another object of this name now.
    #[error("{0} is not as it was: it was removed, and maybe made anew; open it again")]
    Changed(Name),
    /// Some memory of an object cannot be had.
    #[error("some of bytes {} to {} of {name} cannot be had; the server's log says why", .from.0, .to.0)]
    Lost {
        /// The object.
        name: Name,
        /// The first byte that was wanted.
        from: ObjectOffset,
        /// The last one.
        to: ObjectOffset,
    },
    /// The memory of an object failed for good.
    #[error("the memory of {name} failed for good ({why}); close it, and open it again")]
    Failed {
        /// The object.
        name: Name,
        /// Why it failed.
        why: String,
    },
    /// What synchronises cannot be had.
    #[error("{0}")]
    Apart(String),
}

/// A link to a server, and the objects that are open over it.
pub struct Client {
    inner: Arc<Inner>,
    machine: Machine,
}

struct Inner {
    options: Options,
    /// The process that has the thread. A child has none.
    process: Pid,
    /// There until the end; in a child, others may have been using it.
    orders: Option<Orders<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    /// Connects to a server.
    ///
    /// # Errors
    /// When it cannot be reached, or refuses.
    pub fn connect(options: Options) -> Result<Client, ClientError> {
        let (ready, is_ready) = mpsc::channel();
        let client = Client::start(options, Some(ready))?;
        received(&is_ready)??;
        Ok(client)
    }

    /// Starts the thread. Whoever waits for the first link is told when it is there, or when no
    /// server can be reached, and then it ends; where nobody waits, it goes on until there is one.
    fn start(
        options: Options,
        ready: Option<Sender<Result<(), ClientError>>>,
    ) -> Result<Client, ClientError> {
        let machine = options.machine;
        let mut config = Config::new(options.hello());
        config.spin = options.spin;
        config.realtime = options.realtime;
        config.greeting = options.patience(config.greeting);
        let turn = Turn::new(config)?;
        let (orders, inbox) = Orders::new(&turn);
        let for_thread = options.clone();
        // A handler of the program might touch what only this thread brings. And a file that is
        // sent to who is gone raises a signal that ends programs (SIGPIPE).
        let blocked = quire_linux::thread::block_program_signals();
        let thread = thread::Builder::new()
            .name("quire-dsm".into())
            .spawn(move || Carrier::new(for_thread, inbox, ready).run(turn));
        drop(blocked);
        Ok(Client {
            inner: Arc::new(Inner {
                options,
                process: rustix::process::getpid(),
                orders: Some(orders),
                thread: Some(thread?),
            }),
            machine,
        })
    }

    fn command(&self, command: Command) -> Result<(), ClientError> {
        let orders = self.inner.orders.as_ref();
        let orders = orders.filter(|_| self.inner.is_own()).ok_or_else(ended)?;
        orders.put(command).then_some(()).ok_or_else(ended)
    }

    fn ask(&self, request: Request) -> Result<Answer, ClientError> {
        let (reply, answer) = mpsc::channel();
        self.command(Command::Ask { request, reply })?;
        received(&answer)?
    }

    /// The process is going to end, and may use its memory until then. When it is gone, the
    /// server need not wait for the end of the lease. To be called before what was written is
    /// given back: the answer to that says that this has come, too.
    pub fn process_ends(&self) {
        // Without a link, or when it breaks, the server waits for the lease.
        let _ = self.command(Command::Ending);
    }

    /// Sends all that was asked of this client before. The sender is dropped when that is on its way, or cannot
    /// be: so one can wait for several clients.
    pub fn send_now(&self, sent: Sender<()>) {
        // Without the thread there is nothing to send.
        let _ = self.command(Command::SendNow { sent });
    }

    /// Has a part of an object brought that a mapping will need, by its number and the size of the
    /// object's pages.
    fn will_need(&self, (number, page): (u64, Bytes), range: Range<ObjectOffset>, access: Access) {
        let length = Bytes(range.end.0.saturating_sub(range.start.0));
        if let Some(pages) = Pages::covering(range.start, length, page) {
            // Without a link it is asked for when it is touched.
            let _ = self.command(Command::Need {
                number,
                pages,
                access,
            });
        }
    }

    /// Makes an object.
    ///
    /// # Errors
    /// When the server refuses or cannot be reached.
    pub fn create(&self, object: control::Object) -> Result<(), ClientError> {
        done(self.ask(Request::Create(object))?)
    }

    /// Removes an object.
    ///
    /// # Errors
    /// When the server refuses or cannot be reached.
    pub fn remove(&self, name: Name) -> Result<(), ClientError> {
        done(self.ask(Request::Remove { name })?)
    }

    /// Begins an object: it has a name, and gets a size when somebody makes it. Until then nobody else
    /// can begin it. The exact spelling of its key, which no other object ever has.
    ///
    /// # Errors
    /// When the server refuses, as where there is such an object already, or cannot be reached.
    pub fn begin(&self, name: Name) -> Result<Name, ClientError> {
        match self.ask(Request::Begin { name })? {
            Answer::Begun { exact } => Ok(exact),
            _ => Err(ClientError::Confused),
        }
    }

    /// Makes what was begun; its name is the exact spelling of its key here. Whether it has no name, as
    /// that was removed meanwhile: then it goes when nobody has it open.
    ///
    /// # Errors
    /// When the server refuses, as where somebody else was faster, or cannot be reached.
    pub fn give_size(&self, object: control::Object) -> Result<bool, ClientError> {
        match self.ask(Request::GiveSize(object))? {
            Answer::Sized { is_removed } => Ok(is_removed),
            _ => Err(ClientError::Confused),
        }
    }

    /// Removes an object as soon as nobody has it open, or one that is only begun.
    ///
    /// # Errors
    /// When the server refuses or cannot be reached.
    pub fn discard(&self, name: Name) -> Result<(), ClientError> {
        done(self.ask(Request::Discard { name })?)
    }

    /// Says what types the data of an object have.
    ///
    /// # Errors
    /// When the server refuses or cannot be reached.
    pub fn tag(&self, name: Name, tags: Vec<control::Segment>) -> Result<(), ClientError> {
        done(self.ask(Request::Tag { name, tags })?)
    }

    /// Says what somebody may do to an object: a node by its name, `uid:NUMBER`, or `anyone`.
    ///
    /// # Errors
    /// When the server refuses or cannot be reached.
    pub fn grant(&self, name: Name, to: String, rights: Rights) -> Result<(), ClientError> {
        done(self.ask(Request::Grant { name, to, rights })?)
    }

    /// All objects, by name.
    ///
    /// # Errors
    /// When the server refuses or cannot be reached.
    pub fn list(&self) -> Result<Vec<control::Object>, ClientError> {
        let mut all: Vec<control::Object> = Vec::new();
        loop {
            let after = all.last().map(|object| object.name.clone());
            match self.ask(Request::List { after })? {
                Answer::Listed { objects, more } => {
                    let is_end = !more || objects.is_empty();
                    all.extend(objects);
                    if is_end {
                        return Ok(all);
                    }
                }
                _ => return Err(ClientError::Confused),
            }
        }
    }

    /// What is known of an object: [`Answer::Statistics`].
    ///
    /// # Errors
    /// When the server refuses, as where it is only begun, or cannot be reached.
    pub fn statistics(&self, name: Name, pages: Option<Pages>) -> Result<Answer, ClientError> {
        match self.ask(Request::Statistics { name, pages })? {
            Answer::Begun { exact } => Err(ClientError::Refused(Failure::begun(&exact.plain()))),
            answer => Ok(answer),
        }
    }

    /// What there is of a name, or of a key that is spelled exactly: [`Answer::Statistics`], without pages,
    /// or [`Answer::Begun`].
    ///
    /// # Errors
    /// When the server refuses or cannot be reached.
    pub fn look(&self, name: Name) -> Result<Answer, ClientError> {
        self.ask(Request::Statistics { name, pages: None })
    }

    /// What is known of an object and of its pages with the most faults, at most so many:
    /// [`Answer::Statistics`].
    ///
    /// # Errors
    /// When the server refuses or cannot be reached.
    pub fn hottest(&self, name: Name, most: u32) -> Result<Answer, ClientError> {
        self.ask(Request::Hottest { name, most })
    }

    /// Brings what a program had written that is gone, and gives back nothing any more itself: how many
    /// pages of it are lost. Waits for a new link where one breaks, for so long at most.
    ///
    /// # Errors
    /// When the server cannot be reached for as long.
    pub fn bring(&self, remains: Remains, most: Duration) -> Result<u64, ClientError> {
        let (reply, answer) = mpsc::channel();
        self.command(Command::Bring { remains, reply })?;
        answer.recv_timeout(most).map_err(|_| ended())?
    }

    /// Opens an object and maps it.
    ///
    /// # Errors
    /// When the server refuses or cannot be reached, or the object cannot be mapped.
    pub fn open(&self, name: Name, rights: Rights) -> Result<Shared, ClientError> {
        self.open_where(name, rights, Where::Anywhere)
    }

    fn open_where(&self, name: Name, rights: Rights, at: Where) -> Result<Shared, ClientError> {
        let (reply, answer) = mpsc::channel();
        self.command(Command::Open {
            wanted: Wanted { name, rights, at },
            reply,
        })?;
        Ok(self.shared(received(&answer)??, rights))
    }

    /// What was opened, for the program.
    fn shared(&self, opened: Opened, rights: Rights) -> Shared {
        Shared {
            mapping: opened.mapping,
            is: opened.is,
            key: opened.key,
            rights,
            is_attached: opened.is_attached,
            reconnect: opened.reconnect,
            breaks: opened.breaks,
            lists: Lists::default(),
            client: Client {
                inner: Arc::clone(&self.inner),
                machine: self.machine,
            },
            is_closed: false,
        }
    }
}

impl Inner {
    /// Whether this is the process that connected, and not a child of it.
    fn is_own(&self) -> bool {
        rustix::process::getpid() == self.process
    }
}

impl Drop for Inner {
    /// Says goodbye to the server, and waits until the thread has ended. In a child, all is
    /// left as it is: it is the parent's.
    fn drop(&mut self) {
        if !self.is_own() {
            std::mem::forget((self.orders.take(), self.thread.take()));
            return;
        }
        if let Some(orders) = self.orders.as_ref() {
            orders.put(Command::End);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// An object that is open: memory that is shared.
pub struct Shared {
    mapping: Mapping,
    is: Found,
    key: Key,
    rights: Rights,
    is_attached: bool,
    /// How long touches wait for a new link.
    reconnect: Duration,
    /// How often the link broke since it was opened.
    breaks: Arc<AtomicU64>,
    /// What the program's threads lock before they lock a list of a heap in it.
    lists: Lists,
    client: Client,
    is_closed: bool,
}

impl Shared {
    /// Whether its pages are those of the server on this machine, for all programs here.
    #[must_use]
    pub const fn is_attached(&self) -> bool {
        self.is_attached
    }

    /// For a child of `fork`: connects anew, with a thread of the child's own, and maps the
    /// object at the same address. A child does not inherit the memory, and this value is of
    /// no use to it: nothing of the parent's is locked or waited for here, so that it does
    /// not matter what other threads did at the fork. To be called before the child maps
    /// anything else, which could take the addresses. It allocates memory and
    /// starts a thread, which glibc allows in a child; another allocator must allow it, too.
    ///
    /// # Errors
    /// As [`Client::connect`] and [`Client::open`]; in the parent, the addresses are taken.
    pub fn map_again(&self) -> Result<Shared, ClientError> {
        // What the connection needs itself must not come to lie there.
        let kept = Kept::keep(self.mapping.range())?;
        let client = Client::connect(self.client.inner.options.clone())?;
        client.open_where(self.is.exact.clone(), self.rights, Where::Kept(kept))
    }

    /// The process forks: a child will open this, by itself. Until it has, or some leases are over, it stays
    /// for it where it is removed. [`Client::send_now`] says when the server is told.
    pub fn child_comes(&self) {
        self.tell_of_child(false);
    }

    /// The process is such a child. [`Client::send_now`] says when the server is told.
    pub fn child_came(&self) {
        self.tell_of_child(true);
    }

    fn tell_of_child(&self, has_come: bool) {
        let key = self.key;
        // Without a link the server waits for some leases, for all who had it open.
        let _ = self.client.command(Command::ForkedChild { key, has_come });
    }

    /// Its addresses, for whoever changes what is allowed there.
    #[must_use]
    pub fn addresses(&self) -> RangeLock {
        self.mapping.addresses()
    }

    /// Where it is mapped.
    #[must_use]
    pub fn address(&self) -> VirtAddr {
        self.mapping.range().start
    }

    /// Its size; memory goes on to the end of the last page.
    #[must_use]
    pub const fn size(&self) -> Bytes {
        self.is.info.size
    }

    /// What it was made as.
    #[must_use]
    pub const fn info(&self) -> &control::Object {
        &self.is.info
    }

    /// The exact spelling of its key: by this it is asked for also when its name is removed.
    #[must_use]
    pub const fn exact(&self) -> &Name {
        &self.is.exact
    }

    /// The object as words, which others change meanwhile.
    #[must_use]
    pub fn words(&self) -> &[Word] {
        self.cells()
    }

    fn bytes(&self) -> &[AtomicU8] {
        self.cells()
    }

    /// The object as integers of any size, which others change meanwhile.
    pub(crate) fn cells<C: Cell>(&self) -> &[C] {
        // SAFETY: the mapping is readable, writable where the rights say so, aligned to
        // pages, and lives as long as `self`; all others access it by hardware instructions,
        // as atomics of this program do.
        unsafe { cells::cells(self.mapping.range()) }
    }

    /// What this program may do to it.
    #[must_use]
    pub const fn rights(&self) -> Rights {
        self.rights
    }

    /// The machine in whose form this program sees it.
    #[must_use]
    pub const fn machine(&self) -> Machine {
        self.client.machine
    }

    /// How often the link to the server broke since it was opened. What was held then
    /// (mutexes, pages, a place at a barrier) is lost.
    #[must_use]
    pub fn breaks(&self) -> u64 {
        self.breaks.load(Ordering::SeqCst)
    }

    /// What counts that. It counts before what is here is dropped.
    pub(crate) fn counted_breaks(&self) -> &AtomicU64 {
        &self.breaks
    }

    pub(crate) const fn lists(&self) -> &Lists {
        &self.lists
    }

    /// Copies bytes out, from an offset on.
    ///
    /// # Panics
    /// When they go beyond the last page.
    pub fn read_at(&self, offset: ObjectOffset, into: &mut [u8]) {
        let bytes = &self.bytes()[offset.0 as usize..][..into.len()];
        for (to, from) in into.iter_mut().zip(bytes) {
            *to = from.load(Ordering::Relaxed);
        }
    }

    /// Copies bytes in, from an offset on.
    ///
    /// # Panics
    /// When they go beyond the last page.
    pub fn write_at(&self, offset: ObjectOffset, from: &[u8]) {
        let bytes = &self.bytes()[offset.0 as usize..][..from.len()];
        for (to, from) in bytes.iter().zip(from) {
            to.store(*from, Ordering::Relaxed);
        }
    }

    /// Copies bytes out as [`Shared::read_at`] does, but where memory cannot be had, that is
    /// an error and no `SIGBUS`. (It is one where the system answers no touches of system calls:
    /// [`Mapping::scope`].)
    ///
    /// # Errors
    /// When some of it is lost, or the server did not give it in time.
    ///
    /// # Panics
    /// When they go beyond the last page.
    pub fn checked_read_at(
        &self,
        offset: ObjectOffset,
        into: &mut [u8],
    ) -> Result<(), ClientError> {
        let bytes = &self.bytes()[offset.0 as usize..][..into.len()];
        let (at, length) = (VirtAddr(bytes.as_ptr() as u64), bytes.len());
        let read = quire_linux::memory::read_checked(at, into);
        if read.is_err() && self.mapping.scope() == Scope::UserOnly {
            // The kernel does not wait for what is not here yet.
            self.read_at(offset, into);
            return Ok(());
        }
        read.map_err(|_| self.lost(offset, length))
    }

    /// Copies bytes in as [`Shared::write_at`] does, but where memory cannot be had, that is
    /// an error and no `SIGBUS`, as for [`Shared::checked_read_at`]. Some of them may have been written then.
    ///
    /// # Errors
    /// When some of it is lost, may not be written to, or the server did not give it in time.
    ///
    /// # Panics
    /// When they go beyond the last page.
    pub fn checked_write_at(&self, offset: ObjectOffset, from: &[u8]) -> Result<(), ClientError> {
        let bytes = &self.bytes()[offset.0 as usize..][..from.len()];
        let at = VirtAddr(bytes.as_ptr() as u64);
        // SAFETY: others write to an object at any time; here it is seen as atomics only.
        let written = unsafe { quire_linux::memory::write_checked(at, from) };
        let is_user_only = self.mapping.scope() == Scope::UserOnly;
        if written.is_err() && is_user_only && self.rights.write {
            self.write_at(offset, from);
            return Ok(());
        }
        written.map_err(|_| self.lost(offset, from.len()))
    }

    fn lost(&self, from: ObjectOffset, length: usize) -> ClientError {
        ClientError::Lost {
            name: self.is.info.name.clone(),
            from,
            to: ObjectOffset((from.0 + length as u64).saturating_sub(1)),
        }
    }

    /// Synchronises with others who have the object open, and waits until it is so far.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub fn synchronise(&self, request: sync::Request) -> Result<sync::Answer, ClientError> {
        let (reply, answer) = mpsc::channel();
        let key = self.key;
        self.client.command(Command::Synchronise {
            key,
            request,
            reply,
        })?;
        match received(&answer)?? {
            Answer::Synchronised(answer) => Ok(answer),
            _ => Err(ClientError::Confused),
        }
    }

    /// Says something that nobody waits for, such as that a mutex is free.
    pub fn say(&self, request: sync::Request) {
        drop(self.begin(request));
    }

    /// Begins to synchronise, and does not wait. The number, at first 0, is another one when
    /// there is an answer, or there can be none; and that before anything that came later is
    /// obeyed, or anything that is here is given to others.
    pub(crate) fn begin(&self, request: sync::Request) -> Arc<AtomicU64> {
        let (key, answers) = (self.key, Arc::default());
        let told = Told(Arc::clone(&answers));
        // Without a link there is nobody to be told.
        let _ = self.client.command(Command::Await { key, request, told });
        answers
    }

    /// Gives whole pages another type, while others may have the object open. Nobody else may
    /// use these pages meanwhile; what they hold means nothing any more. Where others have
    /// copies, they are made to drop them.
    ///
    /// # Errors
    /// When the server refuses or cannot be reached, or others go on to use the pages.
    pub fn tag(&self, range: Range<ObjectOffset>, tag: TypeTag) -> Result<(), ClientError> {
        let (start, end) = (range.start, range.end);
        let part = Segment { start, end, tag };
        let mut attempt = 0;
        loop {
            let (reply, answer) = mpsc::channel();
            self.client.command(Command::Tag {
                key: self.key,
                part: part.into(),
                reply,
            })?;
            match received(&answer)? {
                Err(ClientError::Refused(failure))
                    if failure.kind == FailureKind::Busy && attempt < TAKES =>
                {
                    attempt += 1;
                    self.take(&range);
                }
                answer => return done(answer?),
            }
        }
    }

    /// Gives whole pages back, before anything that is written or said later.
    pub(crate) fn give_back(&self, range: Range<ObjectOffset>) -> Result<(), ClientError> {
        let length = Bytes(range.end.0.saturating_sub(range.start.0));
        let page = self.is.info.page_size.bytes();
        let pages = Pages::covering(range.start, length, page).ok_or(ClientError::Confused)?;
        let (reply, answer) = mpsc::channel();
        self.client.command(Command::GiveBack {
            key: self.key,
            pages,
            reply,
        })?;
        received(&answer)?
    }

    /// Says that a part will be read, or written, soon and in order. What is lacking here is asked
    /// for at once, and comes while the program goes on; touches wait for it as ever. Beyond
    /// the object's end there is nothing. A hint: nothing is said of what becomes of it. Who may
    /// only read needs nothing to write.
    pub fn will_need(&self, range: Range<ObjectOffset>, access: Access) {
        let page = self.is.info.page_size.bytes();
        let access = access.min(Access::of(self.rights.write));
        self.client.will_need((self.key.0, page), range, access);
    }

    /// Makes this program the only one that has some pages, by writing to each.
    fn take(&self, range: &Range<ObjectOffset>) {
        let words = (range.start.0 / 8) as usize..(range.end.0 / 8) as usize;
        let page = self.is.info.page_size.bytes().0 as usize / 8;
        let words = self.words()[words].iter();
        words.step_by(page).for_each(touch::write);
    }

    /// What translations of the object could not carry over exactly so far, to whatever
    /// machine.
    ///
    /// # Errors
    /// When the server cannot be reached.
    pub fn reported(&self) -> Result<Report, ClientError> {
        match self.client.statistics(self.is.exact.clone(), None)? {
            Answer::Statistics { inside, .. } => {
                Ok(inside.map(|inside| *inside.report).unwrap_or_default())
            }
            _ => Err(ClientError::Confused),
        }
    }

    /// A member of a team of so many who have the object open, by its number.
    pub fn member(&self, me: usize, size: usize) -> impl Team {
        let ask = |request| {
            let answer = self.synchronise(request);
            answer.map_err(|error| Trouble::Apart(error.to_string()))
        };
        let need = |words: &[Word], access| {
            let offset = (words.as_ptr() as u64).checked_sub(self.address().0);
            if let Some(start) = offset {
                let end = ObjectOffset(start + size_of_val(words) as u64);
                self.will_need(ObjectOffset(start)..end, access);
            }
        };
        Member::new(me, size, ask).with_needs(need)
    }

    /// Gives back all that was written, and waits until it is safe: until the server has it,
    /// and, where that has a store, until it is there.
    ///
    /// # Errors
    /// When the server cannot be reached, or why what was written is not safe.
    pub fn flush(&self) -> Result<(), ClientError> {
        let (reply, answer) = mpsc::channel();
        self.client.command(Command::Flush {
            key: self.key,
            reply,
        })?;
        received(&answer)?
    }

    /// Gives back all that was written, before the memory goes, and waits until it is safe. The
    /// object is closed in any case; to drop it does the same, with a line in the log for an error.
    ///
    /// # Errors
    /// As [`Shared::flush`]: what was written may be lost then.
    pub fn close(mut self) -> Result<(), ClientError> {
        self.end()
    }

    /// What closes it, at the first time.
    fn end(&mut self) -> Result<(), ClientError> {
        if std::mem::replace(&mut self.is_closed, true) {
            return Ok(());
        }
        let (reply, answer) = mpsc::channel();
        let key = self.key;
        self.client.command(Command::Close { key, reply })?;
        received(&answer)?
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A child has nothing of its parent's, and loses nothing.
        if let Err(error) = self.end()
            && self.client.inner.is_own()
        {
            tracing::error!("{} was closed, but: {error}", self.is.info.name);
        }
    }
}

fn ended() -> ClientError {
    ClientError::Apart("the link to the server was given up".into())
}

fn received<T>(from: &Receiver<T>) -> Result<T, ClientError> {
    from.recv().map_err(|_| ended())
}

fn done(answer: Answer) -> Result<(), ClientError> {
    match answer {
        Answer::Done => Ok(()),
        _ => Err(ClientError::Confused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touches_wait_for_as_long_as_joined_servers_need() {
        let addresses = "127.0.0.1:7450".parse().unwrap();
        let mut options = Options::new(addresses, "program".parse().unwrap());
        let waits = |options: &Options, lease| {
            let lease = Duration::from_secs(lease);
            options.reconnect(lease).as_secs()
        };
        let usual = [0, 4, 15, 10_000].map(|lease| waits(&options, lease));
        assert_eq!(usual, [10, 12, 45, 60]);
        options.reconnect = Some(Duration::from_secs(1));
        assert_eq!(waits(&options, 4), 1);
    }
}
