//! Frames by strategy, as `quire run --frames` asked: which of the program's memory
//! gets which (paper 002, section 3).
//!
//! | module | says of |
//! |---|---|
//! | `choice` | a range, by address and kind, which strategy it has |
//! | `stacks` | the main stack and those of threads, where they are |
//! | `statics` | static data, where it is |
//! | `overrides` | what the program itself asks for |
//! | `names` | mappings that the program names, that they are named |

mod choice;
mod names;
pub mod overrides;
mod stacks;
mod statics;

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use quire_core::frames::colour::Colours;
use quire_core::frames::config::{ENV_FRAMES, ENV_NO_INHERIT, FrameConfig, STOCK};
use quire_core::frames::spec::StrategySpec;
use quire_core::frames::strategy::Strategy;
use quire_core::stat::Note;
use quire_core::units::AddrRange;
use quire_linux::sysinfo::caches;
use quire_linux::{futex, thread};
use quire_vm::frames::{self, Setup, Which};

pub use self::choice::{Kind, Way};
pub use self::names::note as note_name;
use crate::{MANAGER, plugins};

/// What the program was started with; not set where it asked for nothing.
static WANTED: OnceLock<FrameConfig> = OnceLock::new();
/// The thread is to be started at the next mapping: at first, and in a child.
static PENDING: AtomicBool = AtomicBool::new(false);
/// Strategies are handed down to forked children and to programs that are started.
static INHERITED: AtomicBool = AtomicBool::new(true);
/// Nothing is reported any more.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Threads that may be starting it now.
static STARTING: AtomicU32 = AtomicU32::new(0);
/// Why that failed, as [`NO_FAILURE`] and the number of the note.
static FAILURE: AtomicU32 = AtomicU32::new(NO_FAILURE);
const NO_FAILURE: u32 = u32::MAX;

/// Takes note of what was asked for. Called before the program's own code runs.
pub fn configure(config: FrameConfig) {
    // Whoever names no strategy names no colours.
    if config.colours.is_none() || WANTED.set(config).is_err() {
        return;
    }
    wanted().into_iter().for_each(stacks::prepare_for);
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
pub fn wanted() -> Option<&'static FrameConfig> {
    WANTED.get().filter(|_| !STOPPED.load(Ordering::Acquire))
}

/// From now on no touch waits for the thread, and frames are the kernel's choice: for
/// programs that use their memory in a way that cannot wait.
pub fn stop() {
    if end() {
        MANAGER.stats().note(Note::OwnMemoryFile);
    }
}

/// Says whether it had not ended before.
fn end() -> bool {
    let ends = are_wanted() && !STOPPED.swap(true, Ordering::AcqRel);
    if ends {
        frames::stop();
    }
    ends
}

/// The same for a debugger to call, which cannot wait for pages either.
#[unsafe(no_mangle)]
extern "C" fn quire_frames_stop() {
    end();
}

/// Whether that was asked for and is to begin.
#[inline]
pub fn is_pending() -> bool {
    PENDING.load(Ordering::Relaxed)
}

/// Starts to give frames, where that was asked for and has not begun.
pub fn start() {
    if !PENDING.load(Ordering::Acquire) {
        return;
    }
    count_in();
    if PENDING.swap(false, Ordering::AcqRel)
        && let Some(config) = wanted()
    {
        start_now(config);
    }
    count_out();
}

/// To be called first by who may start it, so that whoever finds that it is not pending
/// any more can wait for the end.
fn count_in() {
    STARTING.fetch_add(1, Ordering::AcqRel);
}

fn count_out() {
    STARTING.fetch_sub(1, Ordering::AcqRel);
    futex::wake_all(&STARTING);
}

fn wait_until_none_starts() {
    loop {
        match STARTING.load(Ordering::Acquire) {
            0 => return,
            some => futex::wait(&STARTING, some),
        }
    }
}

fn start_now(config: &FrameConfig) {
    let _uncancelled = thread::Uncancelled::new();
    // For the statistics page.
    MANAGER.begin();
    match setup(config).and_then(|setup| frames::start(&MANAGER, setup)) {
        Ok(()) => place_unmapped(),
        Err(note) => {
            FAILURE.store(note as u32, Ordering::Release);
            MANAGER.stats().note(note);
        }
    }
}

/// Gives strategies to what nobody maps by a call: the stack, and static data. In a child
/// the latter is known.
fn place_unmapped() {
    static ONCE: AtomicBool = AtomicBool::new(false);
    let Some(config) = wanted() else { return };
    stacks::place_main(config);
    if !ONCE.swap(true, Ordering::Relaxed) {
        statics::place(config);
    }
}

/// How frames are coloured in this process, whoever asks for strategies: `given` where
/// that is not decided yet, else by the cache of this machine.
pub fn decide_colours(given: Option<Colours>) -> &'static Colours {
    static NONE: OnceLock<Colours> = OnceLock::new();
    if WANTED.get().is_none() {
        let colours = given.or_else(caches::own_colours);
        // Another thread may come first.
        let _ = WANTED.set(FrameConfig {
            colours: Some(colours.unwrap_or_default()),
            ..FrameConfig::default()
        });
    }
    let colours = WANTED.get().and_then(|config| config.colours.as_ref());
    colours.unwrap_or_else(|| NONE.get_or_init(Colours::default))
}

/// Starts to give frames because the program asks for it, if that has not begun.
///
/// # Errors
/// Why they cannot be given.
pub fn ensure() -> Result<&'static Colours, Note> {
    static ASKED: AtomicBool = AtomicBool::new(false);
    let colours = decide_colours(None);
    if frames::is_on() && are_wanted() {
        return Ok(colours);
    }
    if !are_wanted() {
        return Err(Note::OwnMemoryFile);
    }
    count_in();
    if !ASKED.swap(true, Ordering::AcqRel) && FAILURE.load(Ordering::Acquire) == NO_FAILURE {
        PENDING.store(true, Ordering::Release);
    }
    count_out();
    // Another thread can be between the two; from then on it is pending or begun.
    wait_until_none_starts();
    start();
    wait_until_none_starts();
    let failure = FAILURE.load(Ordering::Acquire);
    let failure = Note::ALL.into_iter().find(|note| *note as u32 == failure);
    match frames::is_on() {
        true => Ok(colours),
        false => Err(failure.unwrap_or(Note::FramesUnserved)),
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
        names: config.names(),
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
    frames::build(spec, colours)
}

/// New private anonymous memory of the program or of its heap.
pub fn place(range: AddrRange, kind: Kind) {
    if let Some(config) = wanted() {
        place_as(
            config,
            range,
            choice::number_of(config, kind),
            frames::place,
        );
    }
}

/// New private anonymous memory of the program that has no strategy: it is known, so
/// that its pages can be moved.
pub fn know(range: AddrRange, flags: c_int) {
    if are_wanted() && choice::is_placeable(flags) {
        frames::enter(range, Which::KERNEL, frames::Kind::Mapping);
    }
}

/// Places what has a strategy of a range, by `place`: parts by hints for their addresses,
/// the rest by the strategy of this number. What has none is known.
fn place_as(config: &FrameConfig, range: AddrRange, otherwise: usize, place: fn(AddrRange, Which)) {
    if !range.is_empty() && choice::which(config, otherwise).is_none() {
        frames::enter(range, Which::KERNEL, frames::Kind::Mapping);
    }
    choice::parts(config, range, otherwise).for_each(|(part, which)| place(part, which));
    for (part, which) in overrides::parts(range) {
        place(part, which);
    }
}

/// Places memory of which some pages may be there.
fn place_existing(range: AddrRange, which: Which) {
    frames::enter(range, which, frames::Kind::Mapping);
    frames::serve(range);
}

/// How a mapping is to be made, by the range and the flags that the program asks for.
pub fn way(target: AddrRange, flags: c_int) -> Way {
    wanted().map_or(Way::Usual, |config| choice::way(config, target, flags))
}

/// Whether a part of a range of new memory of the program's has a strategy.
pub fn concern(range: AddrRange, kind: Kind) -> bool {
    let of = |config| choice::parts(config, range, choice::number_of(config, kind));
    wanted()
        .is_some_and(|config| of(config).next().is_some() || !overrides::parts(range).is_empty())
}

/// Whether a part of a range has a strategy.
pub fn are_placed(range: AddrRange) -> bool {
    are_wanted() && frames::is_placed(range)
}

/// A range is about to be mapped anew or not at all, or was mapped without a strategy
/// where there can have been another mapping that ended unseen.
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
        if let Some(new) = new {
            forget(new);
        }
        let (Some(config), Some(which)) = (wanted(), self.which) else {
            return;
        };
        if new.is_none() || flags & libc::MREMAP_DONTUNMAP != 0 {
            place_existing(self.old, which);
        }
        match new {
            // One that came after the program was started belongs to the memory.
            Some(new) if choice::is_later(config, which) => place_existing(new, which),
            Some(new) => {
                let number = choice::number_when_moved(config, which);
                place_as(config, new, number, place_existing);
            }
            None => {}
        }
    }
}

/// Takes pages of a range of the program's away, by `work`; at once, or later if it is not
/// written to.
pub fn empty<R>(range: AddrRange, at_once: bool, work: impl FnOnce() -> R) -> R {
    match are_wanted() {
        true => frames::empty(range, at_once, work),
        false => work(),
    }
}

/// The program has missing pages of its memory reported to itself.
pub fn give_up(range: AddrRange) {
    if are_wanted() {
        frames::give_up(range);
    }
}

/// The program leaves memory out of forks.
pub fn expect_holes() {
    if are_wanted() {
        frames::expect_holes();
    }
}

/// Holds what is known for the moment of a fork.
pub fn hold() {
    overrides::hold();
    frames::hold();
}

/// Lets go of it, in the same thread or in its copy in a child.
pub fn release_held() {
    frames::release_held();
    overrides::release_held();
}

/// In a forked child, the thread is started at the next mapping, if the child is to go
/// on with the strategies and a thread can be started there.
pub fn after_fork_child(may_start: bool) {
    frames::after_fork_child();
    STARTING.store(0, Ordering::Release);
    if !INHERITED.load(Ordering::Acquire) {
        STOPPED.store(true, Ordering::Release);
    }
    PENDING.store(may_start && are_wanted(), Ordering::Release);
}

/// Whether the heap has a strategy, so that its memory is not to be had from the
/// manager.
pub fn has_heap() -> bool {
    let heap = |config| choice::which(config, choice::number_of(config, Kind::Heap)).is_some();
    wanted().is_some_and(heap)
}
