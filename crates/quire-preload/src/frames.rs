//! Frames by strategy, as `quire run --frames` asked: which of the program's memory
//! gets which (paper 002, section 3).

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use quire_core::frames::colour::Colours;
use quire_core::frames::config::{ENV_FRAMES, ENV_NO_INHERIT, FrameConfig, STOCK};
use quire_core::frames::hints::Target;
use quire_core::frames::record::Record;
use quire_core::frames::spec::{StrategySpec, build};
use quire_core::frames::strategy::Strategy;
use quire_core::stat::Note;
use quire_core::units::{AddrRange, VirtAddr};
use quire_linux::thread;
use quire_vm::frames::{self, Setup, Which};

use crate::{MANAGER, plugins};

/// What the program was started with; not set where it asked for nothing.
static WANTED: OnceLock<FrameConfig> = OnceLock::new();
/// The thread is to be started at the next mapping: at first, and in a child.
static PENDING: AtomicBool = AtomicBool::new(false);
/// Strategies are handed down to forked children and to programs that are started.
static INHERITED: AtomicBool = AtomicBool::new(true);
/// Nothing is reported any more.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Takes note of what was asked for. Called before the program's own code runs.
pub fn configure(config: FrameConfig) {
    // Whoever names no strategy names no colours.
    if config.colours.is_none() || WANTED.set(config).is_err() {
        return;
    }
    PENDING.store(true, Ordering::Release);
    if std::env::var_os(ENV_NO_INHERIT).is_some() {
        INHERITED.store(false, Ordering::Release);
        for name in ENV_FRAMES {
            // SAFETY: this is the only thread, and nobody holds a part of the
            // environment.
            unsafe { std::env::remove_var(name) };
        }
    }
}

/// Whether a strategy was asked for, and is to be kept to.
#[inline]
pub fn are_wanted() -> bool {
    wanted().is_some()
}

#[inline]
fn wanted() -> Option<&'static FrameConfig> {
    WANTED.get().filter(|_| !STOPPED.load(Ordering::Acquire))
}

/// From now on no touch waits for the thread, and frames are the kernel's choice: for
/// programs that use their memory in a way that cannot wait.
pub fn stop() {
    if are_wanted() && !STOPPED.swap(true, Ordering::AcqRel) {
        MANAGER.stats().note(Note::OwnMemoryFile);
        frames::stop();
    }
}

/// Starts to give frames, where that was asked for and has not begun.
pub fn start() {
    if !PENDING.swap(false, Ordering::AcqRel) {
        return;
    }
    let Some(config) = wanted() else { return };
    // For the statistics page.
    MANAGER.begin();
    if let Err(note) = setup(config).and_then(|setup| frames::start(&MANAGER, setup)) {
        MANAGER.stats().note(note);
    }
}

/// The strategies, all or none. `quire run` has found out that they can be built, but
/// this can be another program, to which their files look different.
fn setup(config: &FrameConfig) -> Result<Setup, Note> {
    plugins::load(config);
    let colours = config.colours.clone().unwrap_or_default();
    let built = config.strategies().map(|spec| strategy(spec, &colours));
    Ok(Setup {
        strategies: built
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| Note::FramesNoFile)?,
        exact: config
            .strategies()
            .any(|spec| matches!(spec, StrategySpec::Exact(_))),
        colours,
        stock: config.stock.unwrap_or(STOCK),
        build: strategy,
    })
}

/// Builds a strategy, now or when the user names it while the program runs; the text
/// says why it cannot be.
fn strategy(spec: &StrategySpec, colours: &Colours) -> Result<Box<dyn Strategy>, String> {
    if let StrategySpec::Plugin(plugin) = spec {
        let unknown =
            "plug-ins are loaded when a program starts: name it in --frames or --hint then";
        let strategy = plugins::strategy(plugin, colours).ok_or(unknown)?;
        return Ok(Box::new(strategy));
    }
    let built = build(spec, colours, read_record(spec), thread::process_id());
    built.map_err(|error| error.to_string())
}

/// What a strategy asks for again, from the file that it names.
fn read_record(spec: &StrategySpec) -> Option<Record> {
    let text = std::fs::read_to_string(spec.record_file()?).ok()?;
    text.parse().ok()
}

/// New private anonymous memory of the program or of its heap.
pub fn place(range: AddrRange, is_heap: bool) {
    let Some(config) = wanted() else { return };
    if let Some(which) = strategy_for(config, range.start, is_heap) {
        frames::place(range, which);
    }
}

/// The strategy that a hint names for memory, else the one for all of it.
fn strategy_for(config: &FrameConfig, at: VirtAddr, is_heap: bool) -> Option<Which> {
    let names = |target: &Target| match target {
        Target::Range(range) => range.start <= at && at < range.end,
        Target::Heap => is_heap,
        Target::Stack | Target::Map(_) => false,
    };
    let hinted = config.hints.iter().position(|hint| names(&hint.target));
    let which = hinted.map_or(0, |n| n + 1);
    let spec = config.strategies().nth(which)?;
    Some(match spec {
        StrategySpec::Default => Which::KERNEL,
        _ => Which(which),
    })
}

fn is_chosen(which: Which) -> bool {
    which != Which::KERNEL
}

/// New private anonymous memory of the program that has no strategy: it is known, so
/// that its pages can be moved.
pub fn know(range: AddrRange, flags: c_int) {
    let kind = flags & libc::MAP_TYPE;
    let other = libc::MAP_HUGETLB | libc::MAP_GROWSDOWN;
    if flags & libc::MAP_ANONYMOUS != 0 && kind == libc::MAP_PRIVATE && flags & other == 0 {
        place(range, false);
    }
}

/// Whether a mapping is private anonymous memory that has a strategy and can be placed:
/// not one of the hugetlb pool, nor one that grows downward. Of a mapping whose address
/// the kernel chooses, a hint for addresses is not known to be for it.
pub fn take(at: VirtAddr, flags: c_int) -> bool {
    let Some(config) = wanted() else {
        return false;
    };
    let kind = flags & libc::MAP_TYPE;
    let other = libc::MAP_HUGETLB | libc::MAP_GROWSDOWN;
    let placeable =
        flags & libc::MAP_ANONYMOUS != 0 && kind == libc::MAP_PRIVATE && flags & other == 0;
    placeable && strategy_for(config, at, false).is_some_and(is_chosen)
}

/// Whether a range begins with memory that has a strategy.
pub fn are_placed(range: AddrRange) -> bool {
    are_wanted() && frames::strategy_of(range).is_some_and(is_chosen)
}

/// A range is about to be mapped anew or not at all.
pub fn forget(range: AddrRange) {
    if are_wanted() && !range.is_empty() {
        frames::forget(range);
    }
}

/// A mapping on its way, which has no strategy meanwhile: the kernel drops what is
/// registered when it moves.
#[must_use]
pub struct Moving {
    old: AddrRange,
    which: Option<Which>,
}

/// A mapping is about to be moved, or to change its size.
pub fn begin_move(old: AddrRange) -> Moving {
    let known = are_wanted() && !old.is_empty();
    let which = known.then(|| frames::strategy_of(old)).flatten();
    if which.is_some() {
        frames::forget(old);
    }
    Moving { old, which }
}

impl Moving {
    /// It is `new` now, or what it was where it could not be moved.
    pub fn end(self, new: Option<AddrRange>, flags: c_int) {
        let Some(which) = self.which else { return };
        if new.is_none() || flags & libc::MREMAP_DONTUNMAP != 0 {
            frames::place(self.old, which);
        }
        if let Some(new) = new {
            frames::place(new, which);
        }
    }
}

/// Changes what a range of the program's holds, while no page is on its way to another
/// frame.
pub fn with_pages_at_rest<R>(change: impl FnOnce() -> R) -> R {
    match are_wanted() {
        true => frames::with_pages_at_rest(change),
        false => change(),
    }
}

/// Holds what is known for the moment of a fork.
pub fn hold() {
    frames::hold();
}

/// Lets go of it, in the same thread or in its copy in a child.
pub fn release_held() {
    frames::release_held();
}

/// In a forked child, the thread is started at the next mapping, if the child is to go
/// on with the strategies.
pub fn after_fork_child() {
    frames::after_fork_child();
    if !INHERITED.load(Ordering::Acquire) {
        STOPPED.store(true, Ordering::Release);
    }
    PENDING.store(are_wanted(), Ordering::Release);
}

/// Whether the heap has a strategy, so that its memory is not to be had from the
/// manager.
pub fn has_heap() -> bool {
    let heap = |config: &FrameConfig| strategy_for(config, VirtAddr(0), true);
    wanted().and_then(heap).is_some_and(is_chosen)
}
