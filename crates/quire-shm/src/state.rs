//! What the program has open and mapped of objects, and the lock of it.
//!
//! Most calls have nothing to do with objects: that is found out without the lock. While a
//! thread holds it, its own calls go on as they came, since the allocator below may map and
//! unmap memory. Its signals are blocked. The lock is held over a fork, so that a child finds
//! nothing half done.
//!
//! Threads of this library work for whoever holds the lock, and must not wait for it. What they
//! call here is what their allocator does, to memory that no object has. Those that say so
//! ([`is_of_library_now`]) come nowhere near the lock at all.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use quire_core::units::BASE_PAGE;
use quire_dsm::attachment::{Attachment, Attachments, Target};
use quire_dsm::client::Known;
use quire_dsm::node::RangeLock;
use quire_linux::futex::Lock;

use crate::ages::{self, Entry};
use crate::ending;
use crate::files::Files;
use crate::host::{Host, Placed, Works};
use crate::pieces::Pieces;
use crate::signals::Blocked;
use crate::sync::Named;
use crate::taken::{self, Copies, Taken};
use crate::trouble::{Result, Trouble, set_errno};
use crate::uses;

/// What `QUIRE_DSM` says, where it says anything.
static ATTACHMENTS: OnceLock<Attachments> = OnceLock::new();
static STATE: Lock<State> = Lock::new(State::new());
/// The thread that holds the lock, as the C library calls it.
static HOLDER: AtomicUsize = AtomicUsize::new(0);
/// Whether that one forks.
static FORKS: AtomicBool = AtomicBool::new(false);

/// So many files and objects more than were used at last are remembered.
const MORE: usize = 64;

thread_local! {
    /// Whether it is a thread of this library.
    static OF_LIBRARY: Cell<bool> = const { Cell::new(false) };
}

/// A memory file, in all the system.
pub type FileId = (u64, u64);

/// What a descriptor that the program has stands for.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    pub entry: Entry,
    /// Whether the program opened it to write, too.
    pub writable: bool,
    /// The object does not exist yet: it is made when its size is known.
    pub is_pending: bool,
}

/// A mapping that the program has.
#[derive(Debug)]
pub struct Mapped {
    pub entry: Entry,
    /// What the thread calls it.
    pub number: u64,
    /// Its addresses, which are to be held while what they allow is changed.
    pub addresses: RangeLock,
    /// Where in the object it starts, in bytes.
    pub offset: u64,
    pub len: u64,
    /// Whether it can be written to.
    pub writable: bool,
    /// Whether `shmat` made it.
    pub is_attached: bool,
    /// How the object was had when it was mapped.
    pub copies: Copies,
    /// What is left of it.
    pub pieces: Pieces,
}

/// All of it.
pub struct State {
    pub files: Files,
    /// By their starts.
    pub mapped: BTreeMap<u64, Mapped>,
    /// Semaphores with names, by where they are mapped.
    pub semaphores: BTreeMap<u64, Named>,
    /// What a child needs to know of objects, by what was opened last.
    pub known: BTreeMap<Entry, Known>,
    /// So many files and objects are remembered before it is looked which are used.
    enough: usize,
    host: Option<Host>,
    /// What the thread that holds the lock had blocked before.
    blocked: Blocked,
}

impl State {
    const fn new() -> State {
        State {
            files: Files::new(),
            mapped: BTreeMap::new(),
            semaphores: BTreeMap::new(),
            known: BTreeMap::new(),
            enough: MORE,
            host: None,
            blocked: Blocked::none(),
        }
    }

    /// Has the thread do something, which is started at the first time.
    pub fn run<T: Send + 'static>(
        &mut self,
        job: impl FnOnce(&mut Works) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let host = match self.host.take() {
            Some(host) => host,
            None => {
                let none = || Trouble::new(libc::ENOENT, "nothing stands for an object");
                Host::start(attachments().ok_or_else(none)?)?
            }
        };
        self.host.insert(host).run(&self.blocked, job)
    }

    /// Before a fork: servers are told that a child will come for what is open.
    pub fn tell_of_child(&mut self) {
        if self.has_any() && self.host.is_some() {
            let mapped = self.mapped.values();
            let inherited = mapped.filter(|mapped| mapped.pieces.are_inherited());
            let inherited: BTreeSet<Entry> = inherited.map(|mapped| mapped.entry).collect();
            // Without the thread nothing is open.
            let _ = self.run(move |works| works.child_comes(&inherited));
        }
    }

    /// In a forked child: the thread is the parent's.
    pub fn forget_host(&mut self) {
        std::mem::forget(self.host.take());
        ending::forget();
    }

    /// A descriptor was given to the program.
    pub fn opened(&mut self, file: FileId, opened: Opened) {
        self.files.insert(file, opened);
    }

    /// Whether the program has mappings of objects, or has had descriptors.
    pub fn has_any(&self) -> bool {
        !self.mapped.is_empty() || !self.files.is_empty()
    }

    /// The files of objects that the program has descriptors of, and where there is an object.
    pub fn held(&self) -> Vec<(Entry, FileId)> {
        if self.files.is_empty() {
            return Vec::new();
        }
        let open = uses::open_files();
        let is_open = |file: &FileId| open.as_ref().is_none_or(|open| open.contains(file));
        let all = self.files.iter();
        let held = all.filter(|(file, opened)| !opened.is_pending && is_open(file));
        held.map(|(file, opened)| (opened.entry, *file)).collect()
    }

    /// What a child needs to know of an object that was opened.
    pub fn note(&mut self, entry: Entry, known: Option<Known>) {
        self.known.extend(known.map(|known| (entry, known)));
    }

    /// A program may open objects again and again, and others may make them anew: what it uses no more is
    /// forgotten, when there has come to be much of that. Nothing must be under way: what a name stands for
    /// may be used by nobody yet.
    fn tidy(&mut self) {
        if self.files.len() + ages::count() > self.enough {
            self.forget_unused();
            self.enough = self.files.len() + ages::count() + MORE;
        }
    }

    /// Forgets objects that the program uses no more, but for those that names stand for, and their files.
    fn forget_unused(&mut self) {
        let Some(open) = uses::open_files() else {
            return;
        };
        let files = self.files.iter().filter(|(file, _)| open.contains(file));
        let files = files.map(|(_, opened)| opened.entry);
        let mapped = self.mapped.values().map(|mapped| mapped.entry);
        let used = files.chain(mapped).collect();
        ages::keep(&used);
        let there = ages::known();
        self.files.keep(&open, |entry| there.contains(&entry));
        self.known.retain(|entry, _| there.contains(entry));
    }

    /// A mapping was given to the program.
    pub fn add(&mut self, placed: Placed, mapped: Mapped) {
        self.note(mapped.entry, placed.known);
        self.mapped.insert(placed.start, mapped);
        self.tell();
    }

    /// A mapping is the program's no more. Its addresses must still be there.
    pub fn take(&mut self, start: u64) -> Option<Mapped> {
        let taken = self.mapped.remove(&start);
        self.tell();
        taken
    }

    /// Tells who has not the lock what addresses are taken.
    pub fn tell(&self) {
        let taken = |(start, mapped): (&u64, &Mapped)| Taken {
            range: *start..*start + mapped.len,
            copies: mapped.copies,
        };
        taken::set(self.mapped.iter().map(taken).collect());
    }

    /// The starts of mappings that have pieces in a range.
    pub fn within(&self, range: &Range<u64>) -> Vec<u64> {
        let before = self.mapped.range(..range.end);
        let touched = before.filter(|(_, mapped)| !mapped.pieces.within(range).is_empty());
        touched.map(|(start, _)| *start).collect()
    }

    /// Does something to what mappings allow, by their starts. Meanwhile no other file takes the place of
    /// one that is mapped, as happens when a server was started anew.
    pub fn steadily<T>(&self, starts: &[u64], act: impl FnOnce() -> T) -> T {
        let mapped = starts.iter().filter_map(|start| self.mapped.get(start));
        let _steady: Vec<_> = mapped.map(|mapped| mapped.addresses.steady()).collect();
        act()
    }

    /// The addresses that mappings take, by their starts.
    pub fn ranges_of(&self, starts: &[u64]) -> Vec<Range<u64>> {
        let ranges = starts.iter().filter_map(|start| {
            let mapped = self.mapped.get(start)?;
            Some(*start..start + mapped.len)
        });
        ranges.collect()
    }

    /// The starts of mappings that take addresses in a range, though the program may have
    /// unmapped a part of them.
    pub fn overlapping(&self, range: &Range<u64>) -> Vec<u64> {
        let before = self.mapped.range(..range.end);
        let taken = before.filter(|(start, mapped)| range.start < **start + mapped.len);
        taken.map(|(start, _)| *start).collect()
    }
}

/// Reads the environment.
pub fn start() {
    match Attachments::from_env(|name| std::env::var(name).ok()) {
        Ok(Some(attachments)) => drop(ATTACHMENTS.set(attachments)),
        Ok(None) => {}
        // `quire run` gives nothing that is wrong, but people set the variables, too. The program would share memory with
        // nobody, and not know.
        Err(error) => {
            let why = format!("quire: QUIRE_DSM and its like: {error}");
            let _ = writeln!(std::io::stderr(), "{why}; the program is not started");
            // SAFETY: nothing of the program has run.
            unsafe { libc::_exit(2) }
        }
    }
}

/// Whether any name of shared memory stands for an object.
pub fn is_active() -> bool {
    ATTACHMENTS.get().is_some()
}

/// What stands for what.
pub fn attachments() -> Option<&'static Attachments> {
    ATTACHMENTS.get()
}

/// Attachments of names that patterns stand for, from when the program asked for them first. Their places
/// are behind the list's, in the same order in children. None is forgotten: programs have few names.
static INVENTED: Lock<Vec<&'static Attachment>> = Lock::new(Vec::new());

/// The attachment at a place, which was given out here.
pub fn attachment(place: usize) -> Option<&'static Attachment> {
    let list = attachments()?.list();
    match place.checked_sub(list.len()) {
        None => list.get(place),
        Some(behind) => INVENTED.lock().get(behind).copied(),
    }
}

/// Which attachment the program asks for. Patterns stand for nothing that the library itself asks for, or
/// its allocator.
pub fn place_of(target: &Target) -> Option<usize> {
    place(target, !is_passed_on())
}

/// The same for what another program has asked for, where this thread has the lock.
pub fn place_of_others(target: &Target) -> Option<usize> {
    place(target, true)
}

fn place(target: &Target, by_patterns: bool) -> Option<usize> {
    let all = attachments()?;
    let mut list = all.list().iter();
    let listed = list.position(|attachment| attachment.target == *target);
    match (listed, target) {
        (Some(place), _) => {
            all.note(place);
            Some(place)
        }
        (None, Target::Posix(name)) if by_patterns => invented(all, name),
        (None, _) => None,
    }
}

/// The place of a name that a pattern stands for.
fn invented(all: &Attachments, name: &str) -> Option<usize> {
    let (noted, pattern) = all.pattern_of(name)?;
    all.note(noted);
    let attachment = pattern.attachment(name);
    let mut invented = INVENTED.lock();
    let known = invented.iter().position(|known| **known == attachment);
    let behind = known.unwrap_or_else(|| {
        invented.push(Box::leak(Box::new(attachment)));
        invented.len() - 1
    });
    Some(all.list().len() + behind)
}

/// Whether a call for a range concerns an object, and this thread may ask for the lock.
pub fn concerns(range: &Range<u64>) -> bool {
    is_active() && !is_passed_on() && taken::has_any(range)
}

/// A range of whole pages, as the kernel sees it; nothing where it is none.
pub fn pages(at: usize, len: usize) -> Option<Range<u64>> {
    let whole = (len as u64).checked_next_multiple_of(BASE_PAGE)?;
    let end = (at as u64).checked_add(whole)?;
    let aligned = (at as u64).is_multiple_of(BASE_PAGE);
    (aligned && whole > 0).then_some(at as u64..end)
}

fn me() -> usize {
    // SAFETY: the call has no conditions.
    unsafe { libc::pthread_self() as usize }
}

/// This thread works for whoever holds the lock, from now on. It has no memory of objects but
/// what it maps itself.
pub fn is_of_library_now() {
    OF_LIBRARY.set(true);
}

/// Whether calls of this thread go on as they came: it holds the lock, or works for whoever does.
fn is_passed_on() -> bool {
    HOLDER.load(Ordering::Acquire) == me() || OF_LIBRARY.get()
}

/// Does something with the lock held; nothing where this thread holds it already, or works for
/// whoever does.
pub fn locked<T>(act: impl FnOnce(&mut State) -> T) -> Option<T> {
    if !is_active() || is_passed_on() {
        return None;
    }
    let blocked = Blocked::now();
    let mut state = STATE.lock();
    HOLDER.store(me(), Ordering::Release);
    state.blocked = blocked;
    state.tidy();
    let done = act(&mut state);
    HOLDER.store(0, Ordering::Release);
    Some(done)
}

/// Takes the lock before a fork, and does something with it held.
pub fn hold(act: impl FnOnce(&mut State)) {
    if !is_active() || HOLDER.load(Ordering::Acquire) == me() {
        return;
    }
    let blocked = Blocked::now();
    STATE.hold();
    HOLDER.store(me(), Ordering::Release);
    FORKS.store(true, Ordering::Release);
    let begin = |state: &mut State| {
        state.blocked = blocked;
        act(state);
    };
    // SAFETY: this thread holds the lock, until `release`.
    unsafe { STATE.with_held(begin) };
    taken::hold();
    ages::hold();
    INVENTED.hold();
}

/// Does something with what [`hold`] has locked, and lets go of it.
pub fn release(act: impl FnOnce(&mut State)) {
    if HOLDER.load(Ordering::Acquire) != me() || !FORKS.swap(false, Ordering::AcqRel) {
        return;
    }
    INVENTED.release_held();
    ages::release();
    taken::release();
    // SAFETY: this thread is the one that holds the lock since `hold`, or its copy in a child,
    // which has the copy of the lock.
    unsafe { STATE.with_held(act) };
    HOLDER.store(0, Ordering::Release);
    STATE.release_held();
}

/// What a call returns: -1 with `errno`, or what there is.
pub fn answer<T>(result: Result<T>, failed: T) -> T {
    result.unwrap_or_else(|trouble| {
        set_errno(trouble.errno);
        failed
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_only_looked_at_is_forgotten() {
        let mut state = State::new();
        let found = |number| {
            let key = format!("grid~{number:x}").parse();
            ages::found(0, &key.expect("a spelling"))
        };
        for number in 1..10 * MORE {
            found(number);
            state.tidy();
            assert!(ages::count() <= 1 + MORE, "{number}");
        }
        let newest = found(10 * MORE);
        state.forget_unused();
        assert_eq!(ages::known().into_iter().collect::<Vec<_>>(), [newest]);
    }
}
