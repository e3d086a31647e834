//! Frames by strategy for the program's private memory (paper 002, section 3).
//!
//! The memory stays the kernel's own: ordinary private anonymous mappings, with all
//! that the kernel does for them. Only the first write to a page is reported, to a
//! thread of this room, `quire-frames`. It has a stock of zeroed pages whose frames it
//! knows, asks the strategy of the range for one of them, and moves it under the
//! program's page (`UFFDIO_MOVE`). A page that goes, by `munmap` or `madvise` or at
//! the end, goes to the kernel as any other does; none comes back.
//!
//! What lies in no range that was placed here is not touched, and a process that asks
//! for no strategy has neither the thread nor the stock.
//!
//! `libquire_provide.so` does this for unmodified programs. A program that links this crate
//! asks itself:
//!
//! ```
//! use quire_core::units::Bytes;
//! use quire_linux::sysinfo::caches;
//! use quire_vm::{Manager, frames};
//!
//! static MANAGER: Manager = Manager::new();
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let colours = caches::own_colours().unwrap_or("12,13,14,15".parse()?);
//! if let Err(note) = frames::start(&MANAGER, frames::Setup::new(colours.clone())) {
//!     println!("frames are the kernel's choice: {}", note.text());
//!     return Ok(());
//! }
//! let colour = frames::strategy(&"colour".parse()?, &colours)?;
//! let memory = frames::allocate(Bytes::mib(4), colour)?;
//! // SAFETY: the range was just mapped, readable and writable.
//! unsafe { memory.start.as_ptr().write_bytes(1, 4 << 20) };
//! // Each page has the colour of its address, as far as the kernel tells.
//! frames::pages(memory, |page| {
//!     let number = page.address.0 / 4096;
//!     let is_own = |frame| u64::from(colours.of(frame).0) == number % u64::from(colours.count());
//!     assert!(page.present && page.frame.is_none_or(is_own));
//! })?;
//! let some = frames::strategy(&"modulo:0".parse()?, &colours)?;
//! let outcome = frames::remap(memory, some).map_err(|note| note.text())?.wait();
//! assert_eq!(outcome.moved + outcome.kept + outcome.pages_left(), Bytes::mib(4).to_pages());
//! // SAFETY: nothing uses the range any more.
//! unsafe { frames::free(memory) }?;
//! # Ok(())
//! # }
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `arena` | the stock's address space |
//! | `folios` | the stock: where its frames are, and the kernel's supply |
//! | `server` | the thread |
//! | `guards` | how it hears of pages that nobody has written to, and who need not wait |
//! | `remap` | how it moves pages that exist |
//! | `control` | what the user asks of a running process |
//! | `named` | strategies that are named while the program runs |
//! | `memory` | memory for which a program asks itself |
//! | `pages` | which frames pages have |
//! | `stalls` | whether memory is short |
//! | `jobs` | what other threads ask of it |
//! | `streams` | how many pages after a touched one are wanted at once |

mod arena;
pub(crate) mod control;
mod folios;
mod guards;
mod jobs;
mod memory;
mod moving;
mod named;
mod pages;
mod remap;
mod server;
mod stalls;
mod streams;

use std::ops::{ControlFlow, DerefMut};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use quire_core::frames::colour::Colours;
use quire_core::frames::config::STOCK;
use quire_core::frames::spec::StrategySpec;
use quire_core::frames::strategy::Strategy;
use quire_core::ranges::RangeMap;
use quire_core::stat::{Note, StrategyName};
use quire_core::units::{AddrRange, BASE_PAGE, Bytes, VirtAddr};
use quire_linux::futex::Lock;
use quire_linux::memory::{Advice, advise};
use quire_linux::raw::{Errno, Result};
use quire_linux::stack;
use quire_linux::sysinfo::maps::Reader;
use quire_linux::thread;
use quire_linux::uffd::{self, Mode};

use crate::hands;
use crate::manager::Manager;

use self::guards::Contents;

pub use self::jobs::Shared;
pub use self::memory::{allocate, free, know, place_known};
pub use self::named::{build, strategy};
pub use self::pages::{Page, RecordError, pages, record};

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
/// A range that was placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Placed {
    which: Which,
    kind: Kind,
    /// What is reported of it.
    mode: Mode,
}

impl Placed {
    fn new(range: AddrRange, which: Which, kind: Kind) -> Placed {
        let mode = guards::mode(range, kind);
        Placed { which, kind, mode }
    }
}

/// What memory was placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A mapping of the program or of its heap, or static data.
    Mapping,
    /// The stack of a thread. The C library unmaps it unseen.
    Stack,
    /// All that the stack of the process may grow to.
    Growing,
}

/// What the thread starts with.
pub struct Setup {
    /// The strategies, the first of them for what no hint names.
    pub strategies: Vec<Box<dyn Strategy>>,
    /// What they are called in reports, in the same order.
    pub names: Vec<StrategyName>,
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

impl Setup {
    /// To begin without a strategy: they are [named](strategy) later.
    #[must_use]
    pub fn new(colours: Colours) -> Setup {
        Setup {
            strategies: Vec::new(),
            names: Vec::new(),
            colours,
            exact: false,
            stock: STOCK,
            build,
        }
    }
}

static BUILD: OnceLock<Build> = OnceLock::new();
/// The ranges that were placed, and their strategies.
static RANGES: Lock<RangeMap<Placed>> = Lock::new(RangeMap::new());
/// Some of it may not be handed down to children.
static HOLES: AtomicBool = AtomicBool::new(false);
/// The thread, or 0.
static THREAD: AtomicU32 = AtomicU32::new(0);
/// Its `userfaultfd`, by its number in the table of Quire's threads.
static UFFD: AtomicI32 = AtomicI32::new(-1);

/// Stacks are given frames, now or soon.
static STACKS: AtomicBool = AtomicBool::new(false);

/// From now on stacks are left alone by who makes superpages of them: even for a moment
/// the mapping of one must not be divided, because the limit of its size is for the part
/// that grows.
pub fn claim_stacks() {
    STACKS.store(true, Ordering::Relaxed);
}

/// Whether stacks were claimed.
pub(crate) fn have_stacks() -> bool {
    STACKS.load(Ordering::Relaxed)
}

/// Starts the thread, waits until it is ready, and lets it serve what was placed
/// before.
///
/// # Errors
/// Why frames cannot be given; the program goes on without.
pub fn start(manager: &'static Manager, mut setup: Setup) -> std::result::Result<(), Note> {
    if is_on() {
        return Ok(());
    }
    BUILD.get_or_init(|| setup.build);
    setup.strategies.extend(named::anew());
    server::start(manager, setup)?;
    serve(EVERYTHING);
    Ok(())
}

/// Whether frames are given by strategy.
#[must_use]
#[inline]
pub fn is_on() -> bool {
    THREAD.load(Ordering::Acquire) != 0
}

/// From now on, or from the start of the thread on, pages of a range of private
/// anonymous memory get their frames by a strategy when they are first written to. Where
/// that cannot be, they are the kernel's. The range was just mapped.
pub fn place(range: AddrRange, which: Which) {
    // Entered first: a touch is reported as soon as the range is registered.
    enter(range, which, Kind::Mapping);
    if which != Which::KERNEL && is_on() {
        register(range, guards::mode(range, Kind::Mapping), Contents::None);
    }
}

/// The part of [`place`] that only takes note, for memory that is mapped in part yet.
pub fn enter(range: AddrRange, which: Which, kind: Kind) {
    ranges().insert(range, Placed::new(range, which, kind));
}

/// The other part: what was entered of a range is reported from now on, but for pages that
/// are there.
pub fn serve(range: AddrRange) {
    if !is_on() {
        return;
    }
    for (part, placed) in placed_in(range) {
        if placed.which != Which::KERNEL {
            register(part, placed.mode, Contents::Some);
        }
    }
}

/// What was placed of a range.
fn placed_in(range: AddrRange) -> Vec<(AddrRange, Placed)> {
    let ranges = ranges();
    let parts = ranges.overlaps(range);
    parts
        .map(|(part, placed)| (part.intersect(range), placed))
        .collect()
}

/// All that can be placed.
const EVERYTHING: AddrRange = AddrRange {
    start: VirtAddr(0),
    end: VirtAddr(u64::MAX),
};

/// The stack of the calling thread is to have no strategy: for threads that work when
/// nobody may wait for `quire-frames`. It can be one that the C library kept of an
/// earlier thread.
pub fn leave_own_stack() {
    let here = AddrRange::new(thread::own_memory()[0], Bytes(1));
    let own = ranges().overlaps(here).next();
    if let Some((range, _)) = own.filter(|(_, placed)| placed.kind == Kind::Stack) {
        give_up(range);
    }
}

/// A range is about to be mapped anew or not at all.
pub fn forget(range: AddrRange) {
    ranges().remove(range);
}

/// Missing pages of a range are not reported any more: somebody else wants to serve
/// them.
pub fn give_up(range: AddrRange) {
    forget(range);
    stop_serving(range);
}

/// The program has memory that is not handed down to its children.
pub fn expect_holes() {
    HOLES.store(true, Ordering::Release);
}

/// In a forked child, before anything else can come to lie there: forgets what was not
/// handed down. A thread of this room may be given that address space, and must not
/// wait for itself.
fn forget_holes() {
    let mut end = VirtAddr(0);
    // Where the list cannot be read, nothing is known.
    let read = Reader::default().own(|mapping, _| {
        ranges().remove(AddrRange {
            start: end,
            end: mapping.range.start,
        });
        end = mapping.range.end;
        ControlFlow::Continue(())
    });
    if read.is_err() {
        ranges().remove(EVERYTHING);
    }
}

/// Nothing that was placed is reported any more: its frames are the kernel's choice.
pub fn stop() {
    let placed = std::mem::replace(&mut *ranges(), RangeMap::new());
    placed.iter().for_each(|(range, _)| stop_serving(range));
}

/// Pages that exist get frames by a strategy, one after the other; those that are
/// touched later get them, too. What no strategy was given before stays as it is.
///
/// # Errors
/// When frames are not given by strategy in this process.
pub fn remap(range: AddrRange, which: Which) -> std::result::Result<Arc<Shared>, Note> {
    place_known(range, which);
    jobs::ask(range, which)
}

/// Takes pages of a range away, by `work`, while none is on its way to another frame, and
/// lets the first writes to them be reported again, if they are gone at once. `work` must
/// not touch memory of the program.
pub fn empty<R>(range: AddrRange, at_once: bool, work: impl FnOnce() -> R) -> R {
    let result = {
        let _ranges = ranges();
        work()
    };
    if at_once && is_on() {
        for (part, placed) in placed_in(range) {
            if placed.which != Which::KERNEL && placed.mode == Mode::Protect {
                // What another thread has written meanwhile is reported, and kept.
                let _ = with_uffd(|uffd| guards::guard(uffd, part, Contents::None));
            }
        }
    }
    result
}

/// The strategy of a range's first page, if it was placed and is no stack.
#[must_use]
pub fn strategy_of(range: AddrRange) -> Option<Which> {
    let first = AddrRange::new(range.start, Bytes(BASE_PAGE));
    let found = ranges().overlaps(first).next();
    let mapping = found.filter(|(_, placed)| placed.kind == Kind::Mapping);
    mapping.map(|(_, placed)| placed.which)
}

/// Whether a part of a range has a strategy.
#[must_use]
pub fn is_placed(range: AddrRange) -> bool {
    let is_chosen = |(_, placed): (_, Placed)| placed.which != Which::KERNEL;
    is_on() && ranges().overlaps(range).any(is_chosen)
}

/// Holds the table for the moment of a fork.
pub fn hold() {
    if is_on() {
        // The C library does its part of the fork meanwhile.
        stack::touch_below(Bytes(2 * BELOW.0));
    }
    named::hold();
    RANGES.hold();
    jobs::hold();
    control::hold();
}

/// Lets go of the table, in the same thread or in its copy in a child.
pub fn release_held() {
    control::release_held();
    jobs::release_held();
    RANGES.release_held();
    named::release_held();
}

/// In a forked child: the kernel hands no registrations down, and there is no thread.
/// What was placed is known, and served again from the next [`start`] on. Of stacks, only
/// that of the thread that forked is one still, if it does not grow by itself: the others
/// are the C library's, for threads of this library, too.
pub fn after_fork_child() {
    // Also where the thread was just being started: then there is a stock without it.
    THREAD.store(0, Ordering::Release);
    arena::after_fork_child();
    jobs::after_fork_child();
    UFFD.store(-1, Ordering::Release);
    if HOLES.load(Ordering::Acquire) {
        forget_holes();
    }
    let here = AddrRange::new(thread::own_memory()[0], Bytes(1));
    let mut ranges = ranges();
    let ended = |(range, placed): &(AddrRange, Placed)| match placed.kind {
        Kind::Mapping => false,
        Kind::Stack => !range.contains(here),
        Kind::Growing => true,
    };
    let ended: Vec<_> = ranges.iter().filter(ended).collect();
    ended
        .into_iter()
        .for_each(|(range, _)| ranges.remove(range));
}

fn register(range: AddrRange, mode: Mode, contents: Contents) {
    // The kernel would copy what is full into a superpage, in other frames. Where it
    // does not take the advice, it may.
    // SAFETY: the advice changes no contents.
    let _ = unsafe { advise(range, Advice::NoHugePage) };
    let registered = with_uffd(|uffd| {
        let mut registered = uffd::register(uffd, range, mode);
        if mode == Mode::Protect && registered.is_ok() {
            registered = guards::guard(uffd, range, contents);
        }
        registered.inspect_err(|_| {
            let _ = uffd::unregister(uffd, range);
        })
    });
    if registered.is_err() {
        ranges().remove(range);
    }
}

/// The opposite of [`serve`].
fn stop_serving(range: AddrRange) {
    // Where nothing is mapped, nothing is registered.
    let _ = with_uffd(|uffd| uffd::unregister(uffd, range));
}

/// Works with the `userfaultfd` of the thread, where it lies ([`hands::run`]). The work takes no lock.
fn with_uffd<R>(work: impl FnOnce(BorrowedFd<'_>) -> Result<R>) -> Result<R> {
    match THREAD.load(Ordering::Acquire) {
        0 => Err(Errno(libc::ESRCH)),
        // SAFETY: the thread never closes it.
        _ => hands::run(|| work(unsafe { BorrowedFd::borrow_raw(UFFD.load(Ordering::Acquire)) }))?,
    }
}

/// Wakes the thread, on one that has the table of Quire's threads.
pub(crate) fn wake() {
    jobs::signal();
}

/// Takes the lock, on a stack that is there: the thread takes it, too, before it
/// answers, so nobody may meet a missing page while holding it.
fn ranges() -> impl DerefMut<Target = RangeMap<Placed>> {
    touch_stack();
    RANGES.lock()
}

/// Makes sure that the calling thread meets no missing page of its stack while it holds a
/// lock that the thread takes, too. Where there is no thread, nothing is touched: Valgrind would
/// tell of it.
#[inline(always)]
fn touch_stack() {
    if is_on() {
        stack::touch_below(BELOW);
    }
}

/// Makes sure that the calling thread meets no missing page of its stack while it holds the
/// lock of the allocator of this library, which the thread takes, too.
#[inline]
pub fn touch_stack_to_allocate() {
    if is_on() {
        stack::touch_below(TO_ALLOCATE);
    }
}

/// Stack that is used at most while the lock of the ranges is held, or that of jobs, and
/// while that of the allocator is. The second can be taken when the first is held, and
/// then nothing may be touched that was not before: so the first is larger than all that
/// comes together.
const BELOW: Bytes = Bytes(4 * TO_ALLOCATE.0);
const TO_ALLOCATE: Bytes = match cfg!(debug_assertions) {
    true => Bytes(4 << 10),
    false => Bytes(1 << 10),
};
