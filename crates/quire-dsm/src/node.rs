//! The cache of objects on this machine, and who maps it.
//!
//! The pages of an object that this machine has lie in one memory file. Programs map it,
//! each mapping is registered with its own process's userfaultfd, and a copy of that
//! descriptor is given to whoever runs the object's [`Cache`]: a server on this machine, or
//! a thread of the only program. The cache reads the faults of all mappings, feeds them and
//! the server's messages to the automaton ([`quire_core::dsm::kernel`]), and does what it
//! says, in the thread that called it.
//!
//! Who must keep what open: see [`Mapping`]. What the kernel does with such memory:
//! [`quire_linux::uffd::shared`].
//!
//! The cost of a fault is one read of the userfaultfd, one message, and one ioctl for the
//! answer. A flush of a page that was only read is one hole; of one that was written, one
//! ioctl for each mapping, one copy, and one hole. The hole is punched at once: it is what
//! takes the page from the mappings of other processes. Where all mappings are of the
//! process that runs the cache, one `madvise` for each does that in less than half the
//! time, and the pages are freed later, in batches, by another thread (`node/stale.rs`); and what
//! comes together gets its memory in folios (`node/folios.rs`, `node/reservations.rs`).

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use quire_core::dsm::kernel::{
    Action, Failure, Kernel, Nonsense, Settings, Space, Time, ahead_for, hold_for, use_for,
};
use quire_core::dsm::message::{Access, FromKernel, Lock, PageNumber, Pages, ToKernel};
use quire_core::units::{BASE_PAGE, Bytes, ObjectOffset, VirtAddr};
use quire_linux::revoker::Term;
use quire_linux::uffd::shared::{self, Touch};
use quire_linux::{Errno, huge_file, thread};

use latency::Latency;
use ledger::{Book, Ledger, Session};
pub use mapping::{
    Hold, Kept, Mapping, MappingError, Part, RangeLock, Steady, Where, system_calls_fail,
};
use memory::{AddressSpace, Memory};
pub use room::{UNLIMITED, room_for};
pub use until::Until;
use users::Users;

use crate::wire::control::Handle;
use crate::wire::{Contents, Lent, Pool};

mod folios;
mod latency;
pub mod ledger;
mod mapping;
mod memory;
mod reservations;
mod room;
mod stale;
mod until;
mod users;

/// The way to the server of an object, whatever the network.
pub trait Exchange {
    /// Sends a message, or keeps it to be sent with others.
    fn send(&mut self, message: FromKernel<Contents>);

    /// The next message that has come, without waiting.
    fn receive(&mut self) -> Option<ToKernel<Contents>>;
}

/// What ends a session, or the use of an object.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The server says what makes no sense: the session is to be ended.
    #[error("the server's message makes no sense: {0}")]
    Nonsense(#[from] Nonsense),
    /// The kernel refuses what coherence needs. All mappings were made to fail; the session
    /// is to be ended, and the server then has the latest copies.
    #[error("memory cannot be kept coherent: {what}: {errno}")]
    Memory {
        /// What was to be done.
        what: &'static str,
        /// Why it could not.
        errno: Errno,
    },
}

/// How an object is cached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The size of the object; it is rounded up to pages.
    pub size: Bytes,
    /// The size of a page of the scheduler: a power of two, at least a base page.
    pub page: Bytes,
    /// The size of a page of this machine: a power of two, at least a base page.
    pub own_page: Bytes,
    /// The most that is asked for ahead of a sequential reader or writer where pages come at once, or
    /// four pages where that is more; where they take long, it is more ([`ahead_for`]).
    pub ahead: Bytes,
    /// The most that is held; what came first goes first.
    pub room: Bytes,
}

/// Why what is brought may be lost.
pub(crate) const OTHERS_HAVE_THEM: &str =
    "others have been given these pages since, or the server has others";

/// A message holds at most 16 pages of 2 MiB.
const LONGEST_MESSAGE: u64 = 32 << 20;

/// So much goes into a message of what is asked for ahead, or one page: a server sends what a request
/// is for when it has all of it.
const PIECE: u64 = 128 << 10;

/// So many pages are asked for ahead, however large they are. Half of them are still to come when the
/// next ones are asked for, so that each of the two sides of the server has always one to send.
const FEWEST_AHEAD: u32 = 4;

impl Shape {
    /// An object of a size with pages of 4 KiB, asked for ahead up to 512 KiB at least, all of which
    /// may be held.
    #[must_use]
    pub const fn new(size: Bytes) -> Shape {
        Shape {
            size,
            page: Bytes(BASE_PAGE),
            own_page: Bytes(BASE_PAGE),
            ahead: Bytes(512 << 10),
            room: UNLIMITED,
        }
    }

    /// What the automaton is told of it, with the usual times.
    ///
    /// # Panics
    /// When a size of a page is no power of two or smaller than a base page.
    #[must_use]
    pub fn settings(&self) -> Settings {
        for size in [self.page.0, self.own_page.0] {
            assert!(size.is_power_of_two() && size >= BASE_PAGE, "{self:?}");
        }
        let in_pages = |bytes: u64| u32::try_from(bytes / self.page.0).unwrap_or(u32::MAX);
        let mut settings = Settings::new(self.size.0.div_ceil(self.page.0));
        settings.together = in_pages(self.own_page.0).max(1);
        settings.piece = in_pages(PIECE).max(1);
        settings.ahead = match self.ahead.0.min(LONGEST_MESSAGE) {
            0 => 0,
            ahead => in_pages(ahead).max(FEWEST_AHEAD.saturating_mul(settings.together)),
        };
        settings.most = in_pages(LONGEST_MESSAGE).max(1);
        if self.room != UNLIMITED {
            settings.room = (self.room.0 / self.page.0).max(settings.together.into());
        }
        settings
    }
}

/// The cache of one object on this machine.
pub struct Cache {
    kernel: Kernel,
    memory: Memory,
    spaces: BTreeMap<Space, AddressSpace>,
    next: u32,
    /// Kept, so that none is allocated for a fault.
    actions: Vec<Action<Contents>>,
    touches: Vec<Touch>,
    on_failure: Option<FailureCallback>,
    counts: Counts,
    users: Users,
    latency: Latency,
    /// What is asked for ahead at most where pages come at once, in pages.
    ahead: u32,
    /// A page that came is kept for so long, or until the threads that waited for it have run
    /// for `enough`.
    hold: Duration,
    enough: Duration,
    /// Programs wait for another cache.
    is_left: bool,
    /// What was written and may have to be brought to the server over another link.
    book: Option<Book>,
    /// The link broke, and what was written is in the file until it is brought.
    is_kept: bool,
    /// So many pages that were written are lost, since that was last asked, and why.
    lost: Option<(u64, String)>,
}

/// What is to be brought to a server of what was written over a link that has ended.
#[derive(Debug)]
pub struct Written {
    /// What pages hold.
    pub memory: OwnedFd,
    /// Which pages.
    pub ledger: Arc<Ledger>,
    /// The size of a page.
    pub page: Bytes,
}

/// How much of a page a memory file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// All of it.
    All,
    /// Some base pages, and holes in the place of others.
    Some,
    /// Nothing.
    Nothing,
}

impl Written {
    /// How much of a page the memory file has. Of a page that was *written* and is a hole, nothing was ever
    /// shown to the program.
    #[must_use]
    pub fn holds(&self, page: PageNumber) -> Holds {
        let Part { start, len } = bytes_of(Pages::one(page), self.page);
        let end = (start + len).0;
        let memory = self.memory.as_fd();
        match huge_file::next_data(memory, start) {
            Ok(data) if data.is_none_or(|data| data.0 >= end) => Holds::Nothing,
            Ok(Some(data)) if data > start => Holds::Some,
            // What does not tell is a file that has no holes.
            Ok(_) | Err(_) => match huge_file::next_hole(memory, start) {
                Ok(hole) if hole.0 < end => Holds::Some,
                Ok(_) | Err(_) => Holds::All,
            },
        }
    }
}

/// What a cache has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Faults that were read.
    pub faults: u64,
    /// Messages to the server.
    pub sent: u64,
    /// Messages of the server.
    pub heard: u64,
    /// Pages whose contents came.
    pub filled: u64,
    /// Pages that became writable where they were.
    pub allowed: u64,
    /// Pages that were given back with their contents.
    pub given_back: u64,
    /// Pages that were dropped, save for those that a broken link took.
    pub removed: u64,
    /// Faults that were answered with an error.
    pub failed: u64,
}

/// What is called when memory fails: with the pages, or with none where it is all of them.
pub type FailureCallback = Box<dyn FnMut(Option<Pages>, Failure) + Send>;

/// Whether an action is to ask the server for a page, or for the right to write to it.
fn asks_for(action: &Action<Contents>, page: PageNumber) -> bool {
    match action {
        Action::Send(FromKernel::DataRequest { pages, .. } | FromKernel::DataUnlock { pages }) => {
            pages.contains(page)
        }
        _ => false,
    }
}

impl Cache {
    /// An empty cache of an object, whose server can be reached. What is given back lies in
    /// memory of a pool.
    ///
    /// # Errors
    /// When there is no memory file to be had.
    pub fn new(page: Bytes, settings: Settings, pool: Pool) -> Result<Cache, Errno> {
        let memory = Memory::new(page, settings.pages, pool)?;
        Cache::with(memory, settings)
    }

    /// The same where no other process maps the file: what comes together gets its memory in
    /// folios, where they are to be had (`node/reservations.rs`). Others may map it all the same, and
    /// make it slower: what is taken from them is a hole, which breaks up the folio that it is in.
    ///
    /// # Errors
    /// As [`Cache::new`].
    pub fn of_this_process(page: Bytes, settings: Settings, pool: Pool) -> Result<Cache, Errno> {
        let memory = Memory::of_this_process(page, settings.pages, pool)?;
        Cache::with(memory, settings)
    }

    fn with(memory: Memory, settings: Settings) -> Result<Cache, Errno> {
        let (hold, ahead) = (settings.hold, settings.ahead);
        Ok(Cache {
            memory,
            kernel: Kernel::new(settings),
            spaces: BTreeMap::new(),
            next: 0,
            actions: Vec::new(),
            touches: Vec::new(),
            on_failure: None,
            counts: Counts::default(),
            users: Users::default(),
            latency: Latency::default(),
            ahead,
            hold,
            enough: hold,
            is_left: false,
            book: None,
            is_kept: false,
            lost: None,
        })
    }

    /// What is written is noted in a ledger. Where all mappings are of this process, it is kept when a link
    /// breaks, until it is brought over another one or given up ([`Cache::written_before`]); else whoever
    /// has the files may bring it when this process is gone. To be called before anything is mapped.
    ///
    /// # Errors
    /// Where there is no memory file to be had.
    pub fn keep_what_is_written(&mut self, pages: u64) -> Result<(), Errno> {
        let ledger = Arc::new(Ledger::new(pages)?);
        self.memory.set_ledger(Arc::clone(&ledger));
        self.book = Some(Book::new(ledger));
        Ok(())
    }

    /// Pages are had in a session from now on: what the server calls this side's link, and the object
    /// there.
    pub fn begin_session(&mut self, number: u64, object: Handle) {
        if let Some(book) = &mut self.book {
            book.begin(Session {
                number,
                object: object.0,
                ..Session::default()
            });
        }
    }

    /// All was given back in order: nothing is to be brought.
    pub fn end_session(&mut self) {
        if let Some(book) = &mut self.book {
            book.begin(Session::default());
        }
    }

    /// What is heard next has this stamp.
    pub fn set_stamp(&mut self, stamp: u64) {
        if let Some(book) = &mut self.book {
            book.set_stamp(stamp);
        }
    }

    /// How many pages were given back in this session, and how many of them, the first ones, the server is
    /// known to keep for good.
    #[must_use]
    pub fn given_back(&self) -> (u64, u64) {
        let session = self.book.as_ref().map(Book::session);
        session.map_or((0, 0), |it| (it.given_back, it.safe))
    }

    /// The server keeps so many of the pages for good that were given back in this session, the first ones.
    pub fn is_safe(&mut self, count: u64) {
        if let Some(book) = &mut self.book {
            book.is_safe(count);
        }
    }

    /// What pages hold and which were written, for whoever is to bring it when this process is
    /// killed; none where nothing is kept.
    ///
    /// # Errors
    /// Where there is no descriptor to be had.
    pub fn kept(&self) -> std::io::Result<Option<Written>> {
        let Some(book) = &self.book else {
            return Ok(None);
        };
        Ok(Some(Written {
            memory: self.file().try_clone_to_owned()?,
            ledger: Arc::clone(book.ledger()),
            page: self.memory.page(),
        }))
    }

    /// What was written over the link that broke, if there is anything. It is to be brought before
    /// [`Cache::linked`] is called.
    #[must_use]
    pub fn written_before(&self) -> Option<Written> {
        let written = self.kept().ok().flatten();
        written.filter(|_| self.is_kept)
    }

    /// What was written over the link that broke is brought, but for so many pages.
    ///
    /// # Errors
    /// When memory cannot be dropped.
    pub fn is_brought(&mut self, lost: u64) -> Result<(), Broken> {
        self.is_kept = false;
        if lost > 0 {
            self.lose(lost, OTHERS_HAVE_THEM);
        }
        if let Some(book) = &mut self.book {
            book.clear();
        }
        self.memory.remove_all()
    }

    /// So many pages that were written are lost, since that was last asked, and why.
    pub const fn take_lost(&mut self) -> Option<(u64, String)> {
        self.lost.take()
    }

    fn lose(&mut self, pages: u64, why: &str) {
        let before = self.lost.take().map_or(0, |(pages, _)| pages);
        self.lost = Some((before + pages, why.to_owned()));
    }

    /// What was kept is given up.
    fn lose_kept(&mut self, why: &str) {
        let Some(book) = &mut self.book else {
            return;
        };
        if !std::mem::take(&mut self.is_kept) {
            return;
        }
        let written = book.written();
        book.begin(Session::default());
        book.clear();
        if written > 0 {
            self.lose(written, why);
        }
    }

    /// The link broke. What was written stays in the file, if that can be.
    fn hide_all(&mut self) -> Result<(), Broken> {
        let has_written = self.book.as_ref().is_some_and(|book| !book.is_empty());
        if has_written && self.memory.hide_all(self.spaces.values()) {
            self.is_kept = true;
            return Ok(());
        }
        self.is_kept = has_written;
        self.lose_kept("it could not be kept when the link broke");
        self.memory.remove_all()
    }

    /// Nothing is shown in mappings any more when a term is over. Whoever says when must then say
    /// that the link is lost, or have the term last longer, and look at the deadline again.
    pub fn show_until(&mut self, term: &Arc<Term>) {
        self.memory.show_until(term);
    }

    /// Calls a function when memory fails, beside writing it to the log.
    pub fn on_failure(&mut self, callback: FailureCallback) {
        self.on_failure = Some(callback);
    }

    /// The file that programs map.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.memory.file()
    }

    /// A program has mapped a part of the file and passed its userfaultfd, with which the
    /// mapping is registered. The descriptor becomes readable when there are faults.
    pub fn add(&mut self, uffd: OwnedFd, base: VirtAddr, part: Part) -> Space {
        self.add_space(AddressSpace::new(uffd, base, part, None))
    }

    /// The same for a mapping of this process.
    ///
    /// # Errors
    /// When there is no descriptor to be had.
    pub fn add_own(&mut self, mapping: &Mapping) -> std::io::Result<Space> {
        let uffd = mapping.uffd().try_clone_to_owned()?;
        let (base, own) = (mapping.range().start, Some(mapping.mapped()));
        Ok(self.add_space(AddressSpace::new(uffd, base, mapping.part(), own)))
    }

    fn add_space(&mut self, mapped: AddressSpace) -> Space {
        let space = Space(self.next);
        self.next += 1;
        self.spaces.insert(space, mapped);
        space
    }

    /// A mapping is gone: its program has unmapped it or is dead.
    pub fn remove(&mut self, space: Space) {
        self.spaces.remove(&space);
        self.kernel.unmapped(space);
    }

    /// Whether a mapping is gone, as its process is dead or has unmapped it. Where it is
    /// there, writers are held back for a moment. Where much of a long one is unmapped, that
    /// the rest is, too, may be found out only when it is asked again.
    #[must_use]
    pub fn is_gone(&mut self, space: Space) -> bool {
        let space = self.spaces.get_mut(&space);
        space.is_none_or(AddressSpace::is_gone)
    }

    /// The userfaultfd of a mapping, to be waited on.
    #[must_use]
    pub fn uffd(&self, space: Space) -> Option<BorrowedFd<'_>> {
        self.spaces.get(&space).map(|space| space.uffd.as_fd())
    }

    /// The mappings.
    pub fn spaces(&self) -> impl Iterator<Item = Space> {
        self.spaces.keys().copied()
    }

    /// What was done so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// When [`Cache::pass`] has something to do, if nothing else happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let catch_up = self.memory.may_catch_up().then_some(Time(0));
        let all = [self.kernel.deadline(), self.users.deadline(), catch_up];
        all.into_iter().flatten().min()
    }

    /// A message to the server and its answer take so long. By that, pages that come from now on
    /// are kept.
    pub fn set_round_trip(&mut self, round_trip: Duration) {
        self.hold = hold_for(round_trip);
        self.enough = use_for(round_trip);
        self.kernel.set_hold(self.hold);
    }

    /// Who turns it looks for what is ready again and again.
    pub const fn is_polled(&mut self) {
        self.users.polls();
    }

    /// Whether what is given back is sent from where it lies, where that is of use. For a link that
    /// says so ([`Links::sends_files`](crate::link::turn::Links::sends_files)) and over which the
    /// server gives pages only after it has read what was given back of them.
    pub const fn send_in_place(&mut self, yes: bool) {
        self.memory.set_lends(yes);
    }

    /// Whether the session with the server goes on. When it does not, because the link broke
    /// or the lease ended, the link is to be closed, and [`Cache::linked`] called when there
    /// is a new one.
    #[must_use]
    pub const fn is_linked(&self) -> bool {
        self.kernel.is_linked()
    }

    /// Whether the object is given up here, and why.
    #[must_use]
    pub const fn ended(&self) -> Option<Failure> {
        self.kernel.ended()
    }

    /// What programs may do to a page at the moment.
    #[must_use]
    pub fn holds(&self, page: PageNumber) -> Option<Access> {
        self.kernel.holds(page)
    }

    /// Reads the faults of a mapping that are there and handles them; says how many.
    ///
    /// # Errors
    /// When memory cannot be kept coherent.
    pub fn read_faults(
        &mut self,
        space: Space,
        now: Time,
        server: &mut impl Exchange,
    ) -> Result<usize, Broken> {
        let mut all = 0;
        while let Some(mapped) = self.spaces.get(&space) {
            // Where the process is gone, there is nothing to be read.
            let read = shared::read(mapped.uffd.as_fd(), &mut self.touches).unwrap_or(0);
            if read == 0 && all == 0 && !mapped.is_own() {
                shared::keep_from_waiting(mapped.uffd.as_fd());
            }
            let touches = std::mem::take(&mut self.touches);
            for touch in &touches {
                let Some(offset) = mapped.offset_of(touch.address) else {
                    continue;
                };
                let page = PageNumber(offset.0 / self.memory.page().0);
                let access = Access::of(touch.write);
                if mapped.is_own() {
                    self.users.wait(page, touch.thread);
                }
                let actions = &mut self.actions;
                let before = actions.len();
                self.kernel.fault(now, space, page, access, actions);
                if actions[before..]
                    .iter()
                    .any(|action| asks_for(action, page))
                {
                    self.latency.asked(page, now);
                }
            }
            self.counts.faults += touches.len() as u64;
            self.touches = touches;
            self.touches.clear();
            self.carry_out(server)?;
            all += read;
            if read < shared::BATCH {
                break;
            }
        }
        Ok(all)
    }

    /// A program says that it will read or write pages soon, in order: what is lacking is asked for,
    /// and its mapping is shown it as it comes. A hint.
    ///
    /// # Errors
    /// When memory cannot be kept coherent.
    pub fn will_need(
        &mut self,
        space: Space,
        (pages, access): (Pages, Access),
        now: Time,
        server: &mut impl Exchange,
    ) -> Result<(), Broken> {
        let actions = &mut self.actions;
        let before = actions.len();
        self.kernel.will_need(now, space, (pages, access), actions);
        // Who asks ahead waits for nothing later on: how long pages take is learnt from the first ones here.
        let first = actions[before..].iter().find_map(|action| match action {
            Action::Send(FromKernel::DataRequest { pages, .. }) => Some(pages.first),
            _ => None,
        });
        if let Some(first) = first {
            self.latency.asked(first, now);
        }
        self.carry_out(server)
    }

    /// The contents of a message's pages are about to come, all of them: the part of the file where
    /// they belong, if they may go there at once. The message is to be heard next, or the link is
    /// lost.
    pub fn place(&mut self, message: &ToKernel<Contents>) -> Option<Arc<Lent>> {
        let ToKernel::DataProvided { pages, .. } = message else {
            return None;
        };
        let is_held = |page| self.kernel.holds(page).is_some();
        match self.kernel.is_linked() && !pages.iter().any(is_held) {
            true => {
                // What they held was given back, and has arrived: they come anew.
                if let Some(book) = &mut self.book {
                    book.fills(*pages);
                }
                self.memory.place(*pages)
            }
            false => None,
        }
    }

    /// Handles a message of the server.
    ///
    /// # Errors
    /// When it makes no sense, or memory cannot be kept coherent.
    pub fn hear(
        &mut self,
        now: Time,
        message: ToKernel<Contents>,
        server: &mut impl Exchange,
    ) -> Result<(), Broken> {
        if let ToKernel::DataProvided { pages, data, .. } = &message {
            self.memory.comes(*pages);
            let size = self.memory.page().0 as usize;
            let fits =
                |content: &Option<Contents>| content.as_ref().is_none_or(|c| c.len() == size);
            if !data.iter().all(fits) {
                return Err(Nonsense("contents that are not as long as a page").into());
            }
        }
        self.counts.heard += 1;
        if let ToKernel::DataProvided { pages, .. }
        | ToKernel::LockRequest {
            pages,
            lock: Lock::AllowWrite,
        } = &message
        {
            self.came(now, *pages);
        }
        if let ToKernel::LockRequest { pages, .. } = &message {
            self.keep_unused(now, *pages);
        }
        let heard = self.kernel.hear(now, message, &mut self.actions);
        self.carry_out(server)?;
        self.memory.placed(|page| self.kernel.holds(page).is_some());
        if self.enough < self.hold {
            for pages in self.kernel.waited_for() {
                self.users.watch(now, pages, self.enough, thread::time_of);
            }
        }
        Ok(heard?)
    }

    /// Pages have come. By how long they take, more or less is asked for ahead.
    fn came(&mut self, now: Time, pages: Pages) {
        let Some(latency) = self.latency.came(pages, now) else {
            return;
        };
        let page = self.memory.page().0;
        let least = Bytes(u64::from(self.ahead) * page);
        let ahead = ahead_for(latency, least).0 / page;
        self.kernel
            .set_ahead(u32::try_from(ahead).unwrap_or(u32::MAX));
    }

    /// Pages for which a thread waited that has had no processor since are not given back yet.
    fn keep_unused(&mut self, now: Time, pages: Pages) {
        for (page, until) in self.users.unused(now, pages, thread::time_of) {
            self.kernel.keep(page, until);
        }
    }

    /// Does what is due by now.
    ///
    /// # Errors
    /// When memory cannot be kept coherent.
    pub fn pass(&mut self, now: Time, server: &mut impl Exchange) -> Result<(), Broken> {
        let waited_for: Vec<Pages> = self.kernel.waited_for().collect();
        for pages in waited_for {
            self.keep_unused(now, pages);
        }
        self.kernel.pass(now, &mut self.actions);
        if self.users.deadline().is_some_and(|due| due <= now) {
            for page in self.users.look(self::now, self.enough, thread::time_of) {
                self.kernel.used(now, page, &mut self.actions);
            }
        }
        self.carry_out(server)?;
        self.memory.catch_up(self.spaces.values())
    }

    /// Does all that is there to be done, without waiting, and says whether there was
    /// anything: faults, messages, what is due. To be called when a descriptor is readable,
    /// when the [`Cache::deadline`] has come, or over and over by a thread that polls.
    ///
    /// # Errors
    /// As [`Cache::hear`].
    pub fn turn(&mut self, now: Time, server: &mut impl Exchange) -> Result<bool, Broken> {
        let mut busy = self.deadline().is_some_and(|due| due <= now);
        if busy {
            self.pass(now, server)?;
        }
        while let Some(message) = server.receive() {
            busy = true;
            self.hear(now, message, server)?;
        }
        let mut at = Space(0);
        while let Some((&space, _)) = self.spaces.range(at..).next() {
            busy |= self.read_faults(space, now, server)? > 0;
            at = Space(space.0 + 1);
        }
        Ok(busy)
    }

    /// The server confirmed the lease; it holds until then. What was due before is done
    /// first: a lease that has ended is not confirmed any more.
    ///
    /// # Errors
    /// As [`Cache::pass`].
    pub fn lease(
        &mut self,
        now: Time,
        until: Time,
        server: &mut impl Exchange,
    ) -> Result<(), Broken> {
        self.pass(now, server)?;
        self.kernel.lease(until);
        Ok(())
    }

    /// The link broke: all that is here is dropped.
    ///
    /// # Errors
    /// When memory cannot be dropped.
    pub fn lost(&mut self, now: Time, server: &mut impl Exchange) -> Result<(), Broken> {
        self.latency.lost();
        self.kernel.lost(now, &mut self.actions);
        self.carry_out(server)
    }

    /// There is a new link.
    ///
    /// # Errors
    /// As [`Cache::pass`].
    pub fn linked(&mut self, server: &mut impl Exchange) -> Result<(), Broken> {
        self.kernel.linked(&mut self.actions);
        self.carry_out(server)
    }

    /// Gives the object up, whatever was written. All touches fail, with this reason.
    ///
    /// # Errors
    /// As [`Cache::lost`].
    pub fn end(&mut self, why: Failure, server: &mut impl Exchange) -> Result<(), Broken> {
        self.kernel.end(why, &mut self.actions);
        self.carry_out(server)
    }

    /// Gives pages up.
    ///
    /// # Errors
    /// As [`Cache::pass`].
    pub fn evict(&mut self, pages: Pages, server: &mut impl Exchange) -> Result<(), Broken> {
        self.kernel.evict(pages, &mut self.actions);
        self.carry_out(server)
    }

    /// Gives back all that was written.
    ///
    /// # Errors
    /// As [`Cache::pass`].
    pub fn sync(&mut self, server: &mut impl Exchange) -> Result<(), Broken> {
        self.kernel.sync(&mut self.actions);
        self.carry_out(server)
    }

    /// Gives back some of what was written: from a page on, at most so many pages. Where to
    /// go on, if there may be more.
    ///
    /// # Errors
    /// As [`Cache::pass`].
    pub fn sync_from(
        &mut self,
        from: PageNumber,
        most: usize,
        server: &mut impl Exchange,
    ) -> Result<Option<PageNumber>, Broken> {
        let next = self.kernel.sync_from(from, most, &mut self.actions);
        self.carry_out(server)?;
        Ok(next)
    }

    /// How many pages were written and not given back.
    #[must_use]
    pub fn written(&self) -> usize {
        self.kernel.written()
    }

    /// Gives all back and the object up.
    ///
    /// # Errors
    /// As [`Cache::pass`].
    pub fn terminate(&mut self, server: &mut impl Exchange) -> Result<(), Broken> {
        self.kernel.terminate(&mut self.actions);
        self.carry_out(server)
    }

    /// Gives all back and the object up, before it is dropped, without the programs: they have
    /// nothing any more, and what they touch waits for whoever runs a cache of the object next.
    /// Without a session with the server, the mappings fail when it is dropped.
    ///
    /// # Errors
    /// As [`Cache::pass`].
    pub fn leave(&mut self, server: &mut impl Exchange) -> Result<(), Broken> {
        if !self.is_linked() {
            return Ok(());
        }
        self.sync(server)?;
        self.abandon()?;
        server.send(FromKernel::Terminate);
        Ok(())
    }

    /// Drops all, given back or not, before it is dropped itself. As after [`Cache::leave`],
    /// programs have nothing any more, and what they touch waits.
    ///
    /// # Errors
    /// When something may be left. The mappings fail then, when it is dropped.
    pub fn abandon(&mut self) -> Result<(), Broken> {
        if let Some(book) = &mut self.book {
            book.loses_all();
        }
        self.memory.remove_all()?;
        self.is_left = true;
        Ok(())
    }

    fn carry_out(&mut self, server: &mut impl Exchange) -> Result<(), Broken> {
        let mut actions = std::mem::take(&mut self.actions);
        let outcome = actions
            .drain(..)
            .try_for_each(|action| self.carry_out_one(action, server));
        self.actions = actions;
        if let Err(broken) = &outcome {
            tracing::error!("{broken}");
            self.kernel
                .end::<Contents>(Failure::Refused, &mut Vec::new());
            self.fail_all(Failure::Refused);
        }
        outcome
    }

    fn carry_out_one(
        &mut self,
        action: Action<Contents>,
        server: &mut impl Exchange,
    ) -> Result<(), Broken> {
        self.counts.note(&action);
        let (memory, spaces) = (&mut self.memory, &self.spaces);
        match action {
            Action::Send(message) => {
                if let (FromKernel::DataWrite { pages, .. }, Some(book)) =
                    (&message, &mut self.book)
                {
                    book.gave_back(pages.count);
                }
                server.send(message);
            }
            Action::Fill {
                pages,
                data,
                access,
                space,
            } => {
                self.users.come(pages, now, thread::time_of);
                let space = space.and_then(|space| spaces.get(&space));
                match (access, &mut self.book) {
                    (Access::Read, Some(book)) => {
                        book.fills(pages);
                        memory.fill(pages, &data, (access, None), space)?;
                        book.came_to_be_read(pages);
                    }
                    (_, book) => memory.fill(pages, &data, (access, book.as_mut()), space)?,
                }
            }
            Action::Show {
                pages,
                access,
                space,
            } => {
                self.users.come(pages, now, thread::time_of);
                if let Some(book) = self.book.as_mut().filter(|_| access == Access::Write) {
                    book.is_written(pages);
                }
                if let Some(space) = spaces.get(&space) {
                    memory.show(pages, access, space)?;
                }
            }
            Action::Allow { pages, space } => {
                self.users.come(pages, now, thread::time_of);
                if let Some(book) = &mut self.book {
                    book.is_written(pages);
                }
                if let Some(space) = spaces.get(&space) {
                    memory.allow(pages, space)?;
                }
            }
            Action::GiveBack(pages) => {
                self.users.gone(pages);
                // Before the memory is freed: of a hole, nothing would be brought.
                if let Some(book) = &mut self.book {
                    book.gives_back(pages);
                }
                let data = memory.take(pages, spaces.values())?;
                let data = data.into_iter().map(Some).collect();
                server.send(FromKernel::DataWrite { pages, data });
            }
            Action::Remove(pages) => {
                self.users.gone(pages);
                memory.remove(pages, spaces.values())?;
            }
            Action::RemoveAll => self.hide_all()?,
            // What was written is in the file until it is brought.
            Action::Lost(_) if self.book.is_some() => {}
            Action::Lost(pages) => {
                tracing::warn!(?pages, "what was written is lost, as the link broke");
                self.report(Some(pages), Failure::Unreachable);
            }
            Action::Fail { pages, space, why } => {
                // First the reason: the program may end with its next touch.
                tracing::warn!(?pages, "memory fails: {why}");
                self.report(Some(pages), why);
                if let Some(space) = self.spaces.get(&space) {
                    self.memory.fail(pages, space)?;
                }
            }
            Action::FailAll(why) => self.fail_all(why),
        }
        Ok(())
    }

    fn fail_all(&mut self, why: Failure) {
        // First the reason: the program may end with its next touch.
        if why != Failure::Ended {
            tracing::warn!("all of the memory fails: {why}");
        }
        self.report(None, why);
        self.lose_kept(&why.to_string());
        if let Err(broken) = self.memory.fail_all(self.spaces.values()) {
            tracing::error!("{broken}");
        }
    }

    fn report(&mut self, pages: Option<Pages>, why: Failure) {
        if let Some(callback) = &mut self.on_failure {
            callback(pages, why);
        }
    }
}

impl Counts {
    fn note(&mut self, action: &Action<Contents>) {
        match action {
            Action::Send(_) => self.sent += 1,
            Action::Fill { pages, .. } => self.filled += u64::from(pages.count),
            Action::Allow { pages, .. } => self.allowed += u64::from(pages.count),
            Action::GiveBack(pages) => {
                self.sent += 1;
                self.given_back += u64::from(pages.count);
            }
            Action::Remove(pages) => self.removed += u64::from(pages.count),
            Action::Fail { .. } => self.failed += 1,
            Action::Show { .. } | Action::RemoveAll | Action::Lost(_) | Action::FailAll(_) => {}
        }
    }
}

impl Drop for Cache {
    /// Nobody answers any more: who still has a mapping gets errors, not zeros.
    fn drop(&mut self) {
        if !self.is_left {
            let _ = self.memory.fail_all(self.spaces.values());
        }
    }
}

/// The monotonic clock.
#[must_use]
pub fn now() -> Time {
    Time(thread::now_ns())
}

/// The pages that have something of a part.
fn pages_of(part: Part, page: Bytes) -> Pages {
    let first = part.start.0 / page.0;
    let end = (part.start + part.len).0.div_ceil(page.0);
    Pages {
        first: PageNumber(first),
        count: u32::try_from(end - first).unwrap_or(u32::MAX),
    }
}

/// The part of an object that pages make up.
fn bytes_of(pages: Pages, page: Bytes) -> Part {
    Part {
        start: ObjectOffset(pages.first.0 * page.0),
        len: Bytes(u64::from(pages.count) * page.0),
    }
}
