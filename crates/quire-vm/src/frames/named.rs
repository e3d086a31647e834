//! Strategies that are named while the program runs: by `quire remap`, by the C
//! interface, or by a program that links this crate.
//!
//! A name that comes again stands for the same strategy. So bin hopping goes on where it
//! was, and a program can name a strategy as often as it likes. A forked child builds
//! them anew, under the same numbers, because memory that was placed keeps its number.

use std::os::unix::fs::MetadataExt;

use quire_core::frames::colour::Colours;
use quire_core::frames::record::Record;
use quire_core::frames::spec::{self, StrategySpec};
use quire_core::frames::strategies::FirstFree;
use quire_core::frames::strategy::Strategy;
use quire_linux::futex::Lock;
use quire_linux::thread::{self, Uncancelled};

use super::{BUILD, Which, is_on, jobs, touch_stack};

/// In the order of their numbers, which follow those that the thread was started with.
static NAMED: Lock<Vec<Named>> = Lock::new(Vec::new());

#[derive(Clone, PartialEq, Eq)]
struct Named {
    spec: StrategySpec,
    colours: Colours,
    /// The state of the file that the strategy was built from.
    file: Option<FileState>,
    which: Which,
}

/// What changes when a file is written anew.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileState {
    file: (u64, u64),
    size: u64,
    changed: (i64, i64),
}

/// The strategy of a name, from now on until the process ends. For the kernel's choice
/// use [`Which::KERNEL`], which asks nobody; here `default` is any frame of the stock.
///
/// # Errors
/// Why it cannot be built, in a line for people; also where frames are not given by
/// strategy in this process.
pub fn strategy(spec: &StrategySpec, colours: &Colours) -> Result<Which, String> {
    let _uncancelled = Uncancelled::new();
    let build = BUILD.get().filter(|_| is_on());
    let build = build.ok_or("frames are not given by strategy in this process")?;
    let mut named = Named {
        spec: spec.clone(),
        colours: colours.clone(),
        file: spec.record_file().and_then(FileState::of),
        which: Which::KERNEL,
    };
    if let Some(which) = known(&named) {
        return Ok(which);
    }
    // Files are read with no lock held.
    let built = build(spec, colours)?;
    touch_stack();
    let mut all = NAMED.lock();
    named.which = jobs::add_strategy(built);
    let which = named.which;
    all.push(named);
    Ok(which)
}

/// The number of a strategy that was named before.
fn known(wanted: &Named) -> Option<Which> {
    touch_stack();
    let all = NAMED.lock();
    let same = |named: &&Named| {
        (&named.spec, &named.colours, named.file) == (&wanted.spec, &wanted.colours, wanted.file)
    };
    all.iter().find(same).map(|named| named.which)
}

/// Builds a strategy that is no plug-in: a [`Build`](super::Build).
///
/// # Errors
/// Why it cannot be, in a line for people.
pub fn build(spec: &StrategySpec, colours: &Colours) -> Result<Box<dyn Strategy>, String> {
    let record = match spec.record_file() {
        Some(file) => Some(read_record(file)?),
        None => None,
    };
    let built = spec::build(spec, colours, record, thread::process_id());
    built.map_err(|error| error.to_string())
}

fn read_record(file: &str) -> Result<Record, String> {
    // The C library's words for an error are not to be had on a thread that it does not know.
    let why = |error: std::io::Error| error.kind();
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("the recorded mapping {file} cannot be read: {}", why(error)))?;
    text.parse()
        .map_err(|error| format!("{file} is no recorded mapping: {error}"))
}

/// Builds those anew that were named in the parent, in a forked child. What cannot be
/// built any more, because its file has gone, gives any frame.
pub(super) fn anew() -> Vec<Box<dyn Strategy>> {
    let all = NAMED.lock().clone();
    let built = |named: &Named| {
        let built = BUILD.get()?(&named.spec, &named.colours);
        built.ok()
    };
    let or_any = |named: &Named| built(named).unwrap_or_else(|| Box::new(FirstFree));
    all.iter().map(or_any).collect()
}

/// Holds what is known for the moment of a fork.
pub(super) fn hold() {
    NAMED.hold();
}

/// Lets go of it.
pub(super) fn release_held() {
    NAMED.release_held();
}

impl FileState {
    fn of(file: &str) -> Option<FileState> {
        let data = std::fs::metadata(file).ok()?;
        Some(FileState {
            file: (data.dev(), data.ino()),
            size: data.size(),
            changed: (data.mtime(), data.mtime_nsec()),
        })
    }
}
