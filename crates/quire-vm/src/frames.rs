//! Frames by strategy for the program's private memory (paper 002, section 3).
//!
//! The memory stays the kernel's own: ordinary private anonymous mappings, with all
//! that the kernel does for them. Only a touch of a missing page is reported, to a
//! thread of this room, `quire-frames`. It has a stock of zeroed pages whose frames it
//! knows, asks the strategy of the range for one of them, and moves it under the
//! program's page (`UFFDIO_MOVE`). A page that goes, by `munmap` or `madvise` or at
//! the end, goes to the kernel as any other does; none comes back.
//!
//! What lies in no range that was placed here is not touched, and a process that asks
//! for no strategy has neither the thread nor the stock.
//!
//! | module | holds |
//! |---|---|
//! | `arena` | the stock's address space |
//! | `folios` | the stock: where its frames are, and the kernel's supply |
//! | `server` | the thread |
//! | `remap` | how it moves pages that exist |
//! | `control` | what the user asks of a running process |
//! | `jobs` | what other threads ask of it |
//! | `streams` | how many pages after a touched one are wanted at once |

mod arena;
pub(crate) mod control;
mod folios;
mod jobs;
mod remap;
mod server;
mod streams;

use std::ops::DerefMut;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use quire_core::frames::colour::Colours;
use quire_core::frames::spec::StrategySpec;
use quire_core::frames::strategy::Strategy;
use quire_core::ranges::RangeMap;
use quire_core::stat::Note;
use quire_core::units::{AddrRange, BASE_PAGE, Bytes};
use quire_linux::futex::Lock;
use quire_linux::memory::{self, Advice};
use quire_linux::raw::{Errno, Result};
use quire_linux::thread::DescriptorTable;
use quire_linux::uffd::{self, Mode};

use crate::manager::Manager;

pub use self::jobs::Shared;

/// Which strategy a range has: its place in what the thread was started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Which(pub usize);

impl Which {
    /// The kernel's choice. Such a range is known, so that its pages can be moved.
    pub const KERNEL: Which = Which(usize::MAX);
}

/// How a strategy is built that a user names while the program runs; the text says why
/// it cannot be.
pub type Build = fn(&StrategySpec, &Colours) -> std::result::Result<Box<dyn Strategy>, String>;

/// What the thread starts with.
pub struct Setup {
    /// The strategies, the first of them for what no hint names.
    pub strategies: Vec<Box<dyn Strategy>>,
    /// How frames are coloured.
    pub colours: Colours,
    /// Whether a strategy asks for particular frames, so that their numbers must be
    /// known.
    pub exact: bool,
    /// What the stock may hold, at most.
    pub stock: Bytes,
    /// How strategies are built that come later.
    pub build: Build,
}

static BUILD: OnceLock<Build> = OnceLock::new();
/// The ranges that were placed, and their strategies.
static RANGES: Lock<RangeMap<Which>> = Lock::new(RangeMap::new());
/// The thread, or 0.
static THREAD: AtomicU32 = AtomicU32::new(0);
/// Its `userfaultfd`, by its number in its own descriptor table.
static UFFD: AtomicI32 = AtomicI32::new(-1);

/// Starts the thread, waits until it is ready, and lets it serve what was placed
/// before.
///
/// # Errors
/// Why frames cannot be given; the program goes on without.
pub fn start(manager: &'static Manager, setup: Setup) -> std::result::Result<(), Note> {
    BUILD.get_or_init(|| setup.build);
    server::start(manager, setup)?;
    let served = |(range, which)| (which != Which::KERNEL).then_some(range);
    let placed: Vec<AddrRange> = ranges().iter().filter_map(served).collect();
    if let Ok(uffd) = borrow() {
        placed.into_iter().for_each(|range| register(&uffd, range));
    }
    Ok(())
}

/// Whether frames are given by strategy.
#[must_use]
#[inline]
pub fn is_on() -> bool {
    THREAD.load(Ordering::Acquire) != 0
}

/// From now on, or from the start of the thread on, pages of a range of private
/// anonymous memory get their frames by a strategy when they are touched. Where that
/// cannot be, they are the kernel's.
pub fn place(range: AddrRange, which: Which) {
    // Entered first: a touch is reported as soon as the range is registered.
    ranges().insert(range, which);
    if which != Which::KERNEL
        && let Ok(uffd) = borrow()
    {
        register(&uffd, range);
    }
}

/// A range is about to be mapped anew or not at all.
pub fn forget(range: AddrRange) {
    ranges().remove(range);
}

/// Nothing that was placed is reported any more: its frames are the kernel's choice.
pub fn stop() {
    let placed = std::mem::replace(&mut *ranges(), RangeMap::new());
    if let Ok(uffd) = borrow() {
        for (range, _) in placed.iter() {
            // Where nothing is mapped any more, nothing is registered.
            let _ = uffd::unregister(uffd.as_fd(), range);
        }
    }
}

/// A strategy that comes to those that the thread was started with.
#[must_use]
pub fn add_strategy(strategy: Box<dyn Strategy>) -> Which {
    jobs::add_strategy(strategy)
}

/// Pages that exist get frames by a strategy, one after the other; those that are
/// touched later get them, too. What no strategy was given before stays as it is.
///
/// # Errors
/// When frames are not given by strategy in this process.
pub fn remap(range: AddrRange, which: Which) -> std::result::Result<Arc<Shared>, Note> {
    let placed: Vec<AddrRange> = ranges().overlaps(range).map(|(part, _)| part).collect();
    for part in placed {
        let clipped = AddrRange {
            start: part.start.max(range.start),
            end: part.end.min(range.end),
        };
        place(clipped, which);
    }
    jobs::ask(range, which)
}

/// Works while no page is on its way to another frame: for calls that change what a
/// range holds. `work` must not touch memory that may be missing.
pub fn with_pages_at_rest<R>(work: impl FnOnce() -> R) -> R {
    let _ranges = ranges();
    work()
}

/// The strategy of a range's first page, if it was placed.
#[must_use]
pub fn strategy_of(range: AddrRange) -> Option<Which> {
    let first = AddrRange::new(range.start, Bytes(BASE_PAGE));
    ranges().overlaps(first).next().map(|(_, which)| which)
}

/// Holds the table for the moment of a fork.
pub fn hold() {
    touch_stack();
    RANGES.hold();
    jobs::hold();
    control::hold();
}

/// Lets go of the table, in the same thread or in its copy in a child.
pub fn release_held() {
    control::release_held();
    jobs::release_held();
    RANGES.release_held();
}

/// In a forked child: the kernel hands no registrations down, and there is no thread.
/// What was placed is known, and served again from the next [`start`] on.
pub fn after_fork_child() {
    if THREAD.swap(0, Ordering::AcqRel) != 0 {
        arena::after_fork_child();
        jobs::after_fork_child();
    }
    UFFD.store(-1, Ordering::Release);
}

fn register(uffd: &OwnedFd, range: AddrRange) {
    // The kernel would copy what is full into a superpage, in other frames. Where it
    // does not take the advice, it may.
    // SAFETY: the advice changes no contents.
    let _ = unsafe { memory::advise(range, Advice::NoHugePage) };
    if uffd::register(uffd.as_fd(), range, Mode::Missing).is_err() {
        ranges().remove(range);
    }
}

fn borrow() -> Result<OwnedFd> {
    borrow_fd(UFFD.load(Ordering::Acquire))
}

/// A descriptor of the thread's.
fn borrow_fd(fd: RawFd) -> Result<OwnedFd> {
    match THREAD.load(Ordering::Acquire) {
        0 => Err(Errno(libc::ESRCH)),
        id => DescriptorTable::of_thread(id)?.borrow(fd),
    }
}

/// Takes the lock, on a stack that is there: the thread takes it, too, before it
/// answers, so nobody may meet a missing page while holding it.
fn ranges() -> impl DerefMut<Target = RangeMap<Which>> {
    touch_stack();
    RANGES.lock()
}

/// Touches the stack below.
#[inline(never)]
fn touch_stack() {
    let mut below = [0u8; 2 * BASE_PAGE as usize];
    for page in below.chunks_mut(BASE_PAGE as usize) {
        std::hint::black_box(&mut page[0]);
    }
    std::hint::black_box(&mut below);
}
