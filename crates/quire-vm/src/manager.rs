//! The manager of one process: its configuration, its lock, its statistics
//! page, and its descriptors.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use quire_core::config::{Config, Policy};
use quire_core::kin::Kinship;
use quire_core::level::Level;
use quire_core::pool::PoolPage;
use quire_core::queue::ReservationQueue;
use quire_core::stat::{Note, Privilege, StatPage};
use quire_core::units::{AddrRange, Bytes, ObjectOffset, SUPERPAGE, Slot, VirtAddr};
use quire_linux::control::ControlSocket;
use quire_linux::futex::Lock;
use quire_linux::huge_file::ForkMark;
use quire_linux::raw::{Errno, Result};
use quire_linux::thread;

use crate::extent::{Work, run_range};
use crate::hands;
use crate::left::LeftRegions;
use crate::pauses::Watched;
use crate::pool::PoolCopy;
use crate::spare::Spare;
use crate::table::{ExtentState, RegionId, Table};

/// A process that asks for less than this is left to the kernel: it has no
/// use for superpages, and starting the pager would cost more than it gains.
pub const WORTHWHILE: Bytes = Bytes::mib(16);

/// The descriptors that the manager works with. They lie in the table that Quire's threads share ([`hands`]), and are
/// never closed.
#[derive(Debug)]
pub(crate) struct Handles {
    /// The object: the file in which all managed memory lives.
    pub object: OwnedFd,
    /// `userfaultfd`, where the kernel grants one.
    pub uffd: Option<OwnedFd>,
    /// The page table of this process.
    pub pagemap: OwnedFd,
    /// Wakes the pager.
    pub event: OwnedFd,
    /// The file of fork marks.
    pub mark: OwnedFd,
}

impl Handles {
    pub fn object(&self) -> BorrowedFd<'_> {
        self.object.as_fd()
    }

    pub fn pagemap(&self) -> BorrowedFd<'_> {
        self.pagemap.as_fd()
    }

    /// The `userfaultfd`.
    ///
    /// # Errors
    /// `ENOSYS` where there is none.
    pub fn uffd(&self) -> Result<BorrowedFd<'_>> {
        self.uffd
            .as_ref()
            .map(OwnedFd::as_fd)
            .ok_or(Errno(libc::ENOSYS))
    }
}

/// The part of the heap that has been mapped and not yet handed out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeapSpace {
    pub next: VirtAddr,
    pub end: VirtAddr,
    pub region: Option<RegionId>,
}

/// Everything that the lock guards.
#[derive(Debug)]
pub(crate) struct State {
    pub table: Table,
    /// Reservations that are not fully populated, by most recent allocation.
    pub queue: ReservationQueue<Slot>,
    /// Object offsets from here on have never been used.
    pub next_offset: ObjectOffset,
    /// Object offsets from `next_offset` to here hold zeroed superpages.
    pub pool_end: ObjectOffset,
    /// The superpage after the pool, while it is being zeroed.
    pub pool_busy: Option<ObjectOffset>,
    pub heap: HeapSpace,
    /// Threads that have begun a fork and not ended it in this process. While
    /// there are any, nothing new is managed.
    pub forkers: Vec<u32>,
    /// Marks of those forks, by thread.
    pub marks: Vec<(u32, ForkMark)>,
    /// Since a fork, memory is mapped privately and children may share it.
    pub children: bool,
    /// A fork could not be marked, so its end will never be known.
    pub unmarked: bool,
    /// Forks so far.
    pub fork_count: u64,
    /// Ranges of the object that nobody here maps any more, to be punched out
    /// when the children are gone.
    pub garbage: Vec<(ObjectOffset, Bytes)>,
    /// A fork whose child copies what it has of the hugetlb pool, before the
    /// parent may go on.
    pub pool_copy: Option<PoolCopy>,
    /// The memory control group, as the registry knows it.
    pub group: u64,
    /// Memory is short: no extent is given whole without being asked for.
    pub short: bool,
    /// The same, because few superpages are free.
    pub scarce: bool,
    /// The pager sleeps until somebody wakes it.
    pub pager_rests: bool,
    /// Address space that is ready to be handed out.
    pub spare: Option<Spare>,
    /// The kernel locks what is mapped anew (`mlockall`).
    pub locks_future: bool,
    /// What regions of each size did.
    pub kinship: Kinship,
    /// Where the pager looks at the object: nobody else's business.
    pub window: AddrRange,
    /// Regions that were left to the kernel's base pages.
    pub left: LeftRegions,
    /// Extents that were left, where reserving pauses.
    pub watched: Watched,
    /// How many mappings may still be split off for superpages, about.
    pub mappings_left: u64,
    pub config: Config,
}

/// The manager of this process's memory. One value, in a `static`, serves the
/// whole process: see [`Manager::new`].
#[derive(Debug)]
pub struct Manager {
    pub(crate) state: Lock<State>,
    page: AtomicPtr<StatPage>,
    policy: AtomicU32,
    align: AtomicBool,
    small: AtomicBool,
    privilege: AtomicU32,
    asked: AtomicU64,
    start: AtomicU32,
    has_pager: AtomicBool,
    numbers: [AtomicI32; 5],
    pub(crate) table_empty: AtomicBool,
    pub(crate) any_left: AtomicBool,
    pub(crate) memory_total: AtomicU64,
}

/// Other libraries may ask for memory before the settings are known.
const NOT_CONFIGURED: u32 = 4;
const NOT_STARTED: u32 = 0;
const STARTING: u32 = 1;
const STARTED: u32 = 2;
const REFUSED: u32 = 3;

/// Counts for a process that has no shared statistics page.
static PRIVATE_PAGE: StatPage = StatPage::new();

impl Default for Manager {
    fn default() -> Self {
        Manager::new()
    }
}

impl Manager {
    /// A manager that manages nothing yet.
    #[must_use]
    pub const fn new() -> Manager {
        Manager {
            state: Lock::new(State {
                table: Table::new(),
                queue: ReservationQueue::new(),
                next_offset: ObjectOffset(0),
                pool_end: ObjectOffset(0),
                pool_busy: None,
                heap: HeapSpace {
                    next: VirtAddr(0),
                    end: VirtAddr(0),
                    region: None,
                },
                forkers: Vec::new(),
                marks: Vec::new(),
                children: false,
                unmarked: false,
                fork_count: 0,
                garbage: Vec::new(),
                pool_copy: None,
                group: 0,
                short: false,
                scarce: false,
                pager_rests: false,
                spare: None,
                locks_future: false,
                kinship: Kinship::new(),
                window: AddrRange {
                    start: VirtAddr(0),
                    end: VirtAddr(0),
                },
                left: LeftRegions::new(),
                watched: Watched::new(),
                mappings_left: 0,
                config: Config {
                    policy: Policy::Base,
                    ahead: Bytes::ZERO,
                    reserve_limit: None,
                    largest: Level::SUPERPAGE,
                    pool_page: PoolPage::Gigapage,
                    align: false,
                    text: false,
                    cpu: None,
                    session: None,
                },
            }),
            page: AtomicPtr::new(std::ptr::null_mut()),
            policy: AtomicU32::new(Policy::Base.code()),
            align: AtomicBool::new(false),
            small: AtomicBool::new(false),
            privilege: AtomicU32::new(0),
            asked: AtomicU64::new(0),
            start: AtomicU32::new(NOT_CONFIGURED),
            has_pager: AtomicBool::new(false),
            numbers: [const { AtomicI32::new(-1) }; 5],
            table_empty: AtomicBool::new(true),
            any_left: AtomicBool::new(false),
            memory_total: AtomicU64::new(0),
        }
    }

    /// Sets what the user chose. Memory that is already managed stays as it
    /// is.
    pub fn configure(&self, config: Config) {
        if config.policy == Policy::Base {
            quire_linux::sysinfo::process::disable_huge_pages(true);
        }
        self.policy.store(config.policy.code(), Ordering::Relaxed);
        self.align.store(config.align, Ordering::Relaxed);
        self.state.lock().config = config;
        hands::prepare();
        let order = Ordering::Release;
        let _ = self
            .start
            .compare_exchange(NOT_CONFIGURED, NOT_STARTED, order, Ordering::Relaxed);
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> Policy {
        Policy::from_code(self.policy.load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// Sets the policy of what is mapped from now on.
    pub(crate) fn set_policy(&self, policy: Policy) {
        self.policy.store(policy.code(), Ordering::Relaxed);
        self.stats().set_policy(policy);
        if policy != Policy::Base {
            // Under `base` nothing was managed until now.
            self.start.store(STARTED, Ordering::Release);
        }
    }

    /// Whether the program's own mappings of a superpage and more begin on a
    /// superpage boundary.
    #[must_use]
    pub fn aligns(&self) -> bool {
        self.align.load(Ordering::Relaxed)
    }

    /// Switches that on or off.
    pub(crate) fn set_align(&self, align: bool) {
        self.align.store(align, Ordering::Relaxed);
        self.stats().set_align(align);
    }

    /// Whether the kernel gives mappings smaller than a superpage larger folios if
    /// it is asked to, and the policy in force wants that.
    #[must_use]
    #[inline]
    pub fn asks_for_small(&self) -> bool {
        let wanted = |policy: Policy| policy.reserves() || policy == Policy::Eager;
        self.small.load(Ordering::Relaxed) && self.is_started() && wanted(self.policy())
    }

    /// The statistics page, or a private stand-in.
    #[must_use]
    pub fn stats(&self) -> &'static StatPage {
        let page = self.page.load(Ordering::Acquire);
        // SAFETY: the pointer is null or names a page that is mapped for the
        // rest of the process's life.
        unsafe { page.as_ref() }.unwrap_or(&PRIVATE_PAGE)
    }

    /// What the process could have of the machinery.
    #[must_use]
    pub fn privilege(&self) -> Privilege {
        match self.privilege.load(Ordering::Relaxed) {
            0 => Privilege::None,
            1 => Privilege::User,
            _ => Privilege::Full,
        }
    }

    /// Whether the threshold has been crossed and nobody has started yet:
    /// cheap enough for every `malloc`.
    #[must_use]
    #[inline]
    pub fn wants_start(&self) -> bool {
        self.start.load(Ordering::Relaxed) == NOT_STARTED
            && self.asked.load(Ordering::Relaxed) >= WORTHWHILE.0
    }

    /// Counts memory that the program took from the kernel before managing
    /// began.
    pub fn count_asked(&self, size: Bytes) {
        self.asked.fetch_add(size.0, Ordering::Relaxed);
    }

    /// Starts managing, if that has not been tried and the settings are known.
    /// Says whether memory is managed now.
    ///
    /// The first call starts threads, and waits until they are ready. They take no lock meanwhile but this library's,
    /// none of which the caller may hold.
    pub fn begin(&'static self) -> bool {
        if !hands::may_start() {
            return self.is_started();
        }
        let order = (Ordering::AcqRel, Ordering::Acquire);
        if self
            .start
            .compare_exchange(NOT_STARTED, STARTING, order.0, order.1)
            .is_err()
        {
            return self.is_started();
        }
        let started = match self.set_up() {
            Ok(()) => self.policy() != Policy::Base,
            Err(note) => {
                self.stats().note(note);
                false
            }
        };
        let outcome = if started { STARTED } else { REFUSED };
        // A change of settings may have come first.
        let order = (Ordering::Release, Ordering::Relaxed);
        let _ = self
            .start
            .compare_exchange(STARTING, outcome, order.0, order.1);
        if started {
            crate::files::start(self);
        }
        started
    }

    /// The program is about to filter its system calls: managing does not begin any more, here or in
    /// its children, as the filter may end the process for a call that a thread of the manager makes.
    /// Where managing has begun, nothing changes.
    pub fn leave_alone(&self) {
        let order = Ordering::Relaxed;
        let _ = self
            .start
            .compare_exchange(NOT_STARTED, REFUSED, order, order);
    }

    /// Starts the threads, and finds out about the machine.
    fn set_up(&'static self) -> std::result::Result<(), Note> {
        let session = self.state.lock().config.session.clone();
        let looked =
            hands::start().and_then(|()| hands::run(|| self.look_around(session.as_deref())));
        if looked.is_err() {
            // Why nothing is managed is to be told all the same; but a limit of file sizes would raise a signal here.
            if thread::soft_limit(libc::RLIMIT_FSIZE) == libc::RLIM64_INFINITY {
                self.share_page(session.as_deref());
            }
            return Err(Note::NoPager);
        }
        crate::pager::start(self)
    }

    /// What is read from files, and the statistics page.
    fn look_around(&self, session: Option<&str>) {
        self.share_page(session);
        let memory = quire_linux::sysinfo::meminfo().unwrap_or_default();
        self.memory_total.store(memory.total.0, Ordering::Relaxed);
        let small = quire_linux::sysinfo::advised_small_folios();
        self.small.store(small, Ordering::Relaxed);
    }

    /// Whether memory is managed.
    #[must_use]
    #[inline]
    pub fn is_started(&self) -> bool {
        self.start.load(Ordering::Acquire) == STARTED
    }

    /// Whether it was decided that memory is not managed.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.start.load(Ordering::Acquire) == REFUSED
    }

    /// Whether shared memory and files are looked after: those of a process that
    /// is managed or is going to be, because it has asked for enough.
    #[must_use]
    pub fn cares(&self) -> bool {
        self.is_started() || (self.wants_start() && self.policy() != Policy::Base)
    }

    fn share_page(&self, session: Option<&str>) {
        let pid = thread::process_id();
        let shared = session.and_then(|s| quire_linux::stat_map::create(s, pid).ok());
        match shared {
            Some(page) => self
                .page
                .store(std::ptr::from_ref(page).cast_mut(), Ordering::Release),
            None => self.stats().note(Note::NoStatPage),
        }
        let identity = quire_linux::sysinfo::own_identity();
        self.stats()
            .identify(pid, identity.start_time, &identity.comm, self.policy());
        self.stats().set_align(self.aligns());
    }

    /// The socket by which changes are asked for. Without a session directory
    /// nobody knows where to ask.
    pub(crate) fn control_socket(&self) -> Option<ControlSocket> {
        let session = self.state.lock().config.session.clone()?;
        ControlSocket::bind(&session, thread::process_id()).ok()
    }

    /// The program has changed its users or groups. The threads of this library do the same, a moment later.
    pub fn follow_rights(&self) {
        hands::follow_rights();
    }

    /// From now on no touch waits for the pager: what follows is as without
    /// the privilege to handle faults from kernel mode. For programs that use
    /// their memory in a way that cannot wait.
    pub fn stop_reporting(&'static self) {
        if !self.is_started() || self.privilege() != Privilege::Full {
            return;
        }
        let mut state = self.state.lock();
        self.privilege
            .store(Privilege::User as u32, Ordering::Relaxed);
        self.stats().set_privilege(Privilege::User);
        self.stats().note(Note::OwnMemoryFile);
        state.drop_spare();
        let empty: Vec<Slot> = state
            .table
            .extents
            .iter()
            .filter(|(slot, e)| e.state == ExtentState::Empty && state.table.slot_is_shared(*slot))
            .map(|(slot, _)| slot)
            .collect();
        let armed = self.with_handles(|handles| {
            let work = Work::new(self, handles, &mut state);
            empty
                .chunk_by(|a, b| a.next() == *b)
                .try_for_each(|run| work.arm_again(run_range(&(run[0]..run[run.len() - 1].next()))))
        });
        if armed.is_err() {
            self.stats().note(Note::SystemCallFailed);
        }
    }

    /// Says what the pager could get, and the numbers of its descriptors.
    pub(crate) fn publish(&self, handles: &Handles, privilege: Privilege) {
        let numbers = [
            handles.object.as_raw_fd(),
            handles.uffd.as_ref().map_or(-1, AsRawFd::as_raw_fd),
            handles.pagemap.as_raw_fd(),
            handles.event.as_raw_fd(),
            handles.mark.as_raw_fd(),
        ];
        for (cell, number) in self.numbers.iter().zip(numbers) {
            cell.store(number, Ordering::Relaxed);
        }
        hands::set_event(handles.event.as_fd());
        self.privilege.store(privilege as u32, Ordering::Relaxed);
        self.stats().set_privilege(privilege);
        self.has_pager.store(true, Ordering::Release);
    }

    /// Works with the pager's descriptors, in the table that Quire's threads share ([`hands::run`]). The work must
    /// take no lock.
    ///
    /// # Errors
    /// When there is no pager, or as the work.
    pub(crate) fn with_handles<R>(&self, work: impl FnOnce(&Handles) -> Result<R>) -> Result<R> {
        if !self.has_pager.load(Ordering::Acquire) {
            return Err(Errno(libc::ESRCH));
        }
        hands::run(|| work(&self.by_number()))?
    }

    /// The descriptors, for a thread that has the table in which they lie.
    fn by_number(&self) -> ManuallyDrop<Handles> {
        // SAFETY: the pager never closes these descriptors, and the value is
        // never dropped.
        let fd =
            |i: usize| unsafe { OwnedFd::from_raw_fd(self.numbers[i].load(Ordering::Relaxed)) };
        let has_uffd = self.numbers[1].load(Ordering::Relaxed) >= 0;
        ManuallyDrop::new(Handles {
            object: fd(0),
            uffd: has_uffd.then(|| fd(1)),
            pagemap: fd(2),
            event: fd(3),
            mark: fd(4),
        })
    }

    /// Whether anything is managed.
    pub(crate) fn manages_some(&self) -> bool {
        !self.table_empty.load(Ordering::Acquire)
    }

    /// Whether nothing is managed; cheap.
    #[must_use]
    pub fn manages_nothing(&self) -> bool {
        self.table_empty.load(Ordering::Acquire)
    }

    /// Whether a range touches managed memory, or what the pager sees of it; exact,
    /// and cheap for a process that manages none.
    #[must_use]
    pub fn manages(&self, range: AddrRange) -> bool {
        if !self.manages_some() {
            return false;
        }
        let state = self.state.lock();
        state.table.touches(range) || !state.window.intersect(range).is_empty()
    }

    /// The first run of managed addresses that ends behind an address, from that address on. Cheap for a process that
    /// manages none.
    #[must_use]
    pub fn managed_from(&self, at: VirtAddr) -> Option<AddrRange> {
        if self.table_empty.load(Ordering::Acquire) {
            return None;
        }
        let rest = AddrRange {
            start: at,
            end: VirtAddr(u64::MAX),
        };
        let state = self.state.lock();
        let mut parts = state.table.overlaps(rest).map(|part| part.range);
        let mut run = parts.next()?;
        for part in parts {
            if part.start != run.end {
                break;
            }
            run.end = part.end;
        }
        Some(run)
    }

    /// Takes the lock and keeps it until [`Manager::release_held`]: for the
    /// moment of a fork, which must find the state at rest.
    pub fn hold(&self) {
        self.state.hold();
        // SAFETY: this thread holds the lock.
        unsafe {
            self.state
                .with_held(|state| state.pool_copy = PoolCopy::prepare(&state.table));
        }
    }

    /// Lets go of the lock that [`Manager::hold`] took, in the same thread or
    /// in its copy in a child process. Before that it waits until the child has
    /// what it needs of the hugetlb pool: a signal handler that came meanwhile
    /// might write to pool memory, and wait for the thread that it interrupted.
    pub fn release_held(&self) {
        // SAFETY: this thread, or the one that it is a copy of, holds the lock.
        let copy = unsafe { self.state.with_held(|state| state.pool_copy.take()) };
        if let Some(copy) = copy {
            copy.wait();
        }
        self.state.release_held();
    }

    /// Makes the manager of a forked child: it manages nothing new until it
    /// asks for enough itself, and counts on its own.
    pub(crate) fn reset_for_child(&self) {
        hands::prepare();
        self.page.store(std::ptr::null_mut(), Ordering::Relaxed);
        PRIVATE_PAGE.reset();
        self.has_pager.store(false, Ordering::Relaxed);
        self.privilege.store(0, Ordering::Relaxed);
        self.asked.store(0, Ordering::Relaxed);
        let refused = self.start.load(Ordering::Relaxed) == REFUSED;
        if !refused || self.policy() == Policy::Base {
            self.start.store(NOT_STARTED, Ordering::Release);
        }
    }
}

impl State {
    /// Takes object offsets for `slots` superpages. The first of them may be
    /// in the pool of zeroed superpages; the number that is comes second.
    pub fn take_offsets(&mut self, slots: u64) -> (ObjectOffset, u64) {
        let first = self.next_offset;
        self.next_offset = first + Bytes(slots * SUPERPAGE);
        let ready = self.pool_end.0.saturating_sub(first.0) / SUPERPAGE;
        self.pool_end = self.pool_end.max(self.next_offset);
        (first, ready.min(slots))
    }

    /// Whether first touches are reported also where superpages are expected.
    pub const fn is_gated(&self) -> bool {
        self.short || self.scarce
    }

    /// Bytes that are reserved and not populated.
    pub fn reserved_unpopulated(&self) -> Bytes {
        let in_regions: u64 = self
            .queue
            .iter()
            .filter_map(|slot| self.table.extents.get(slot))
            .map(|extent| SUPERPAGE - extent.popmap.count().to_bytes().0)
            .sum();
        Bytes(in_regions + self.pool_end.0.saturating_sub(self.next_offset.0))
    }

    /// When the reservation that is preempted first was last allocated from. The
    /// pool goes before all others.
    pub fn oldest_ms(&self) -> u64 {
        if self.pool_end > self.next_offset {
            return 0;
        }
        let oldest = self.queue.least_recent();
        let extent = oldest.and_then(|slot| self.table.extents.get(slot));
        extent.map_or(u64::MAX, |extent| extent.changed_ms)
    }
}
