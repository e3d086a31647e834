//! What other threads ask of the thread that gives frames: to move pages that exist,
//! and to take strategies over that came later.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::DerefMut;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use quire_core::frames::remap::{Left, Outcome, Progress};
use quire_core::frames::strategy::Strategy;
use quire_core::stat::Note;
use quire_core::units::{AddrRange, Frame, PageCount, VirtAddr};
use quire_linux::futex::{self, Lock};
use quire_linux::thread;

use super::{Which, touch_stack};
use crate::hands;

static QUEUE: Lock<Queue> = Lock::new(Queue {
    jobs: Vec::new(),
    strategies: Vec::new(),
    count: 0,
});
/// The event that tells of jobs, by its number in the table of Quire's threads.
static EVENT: AtomicI32 = AtomicI32::new(-1);

/// What the thread has not fetched.
struct Queue {
    jobs: Vec<Job>,
    strategies: Vec<Box<dyn Strategy>>,
    /// How many strategies there are, with those that were fetched.
    count: usize,
}

/// Pages that are to be moved, as far as the thread has come.
pub(super) struct Job {
    pub range: AddrRange,
    pub which: Which,
    /// The page that is next.
    pub next: VirtAddr,
    /// Where frames are, once one was demanded that is not in stock.
    pub known: Option<Known>,
    pub shared: Arc<Shared>,
}

/// Which pages have which frames, for a strategy that demands particular ones.
pub(super) struct Known {
    /// The pages of all frames of placed memory.
    pub holders: BTreeMap<Frame, VirtAddr>,
    /// The frames that are demanded, and the pages of the job that do.
    pub demanded: BTreeMap<Frame, VirtAddr>,
    /// Pages that got theirs before it was their turn.
    pub ahead: BTreeSet<VirtAddr>,
}

/// What the thread and who waits know of a job.
#[derive(Debug, Default)]
pub struct Shared {
    outcome: Lock<Outcome>,
    done: AtomicUsize,
    of: AtomicUsize,
    ended: AtomicU32,
}

impl Shared {
    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        // Read first: what is counted then is all that there is.
        let ended = self.ended.load(Ordering::Acquire) != 0;
        let outcome = self.outcome();
        Progress {
            done: PageCount(self.done.load(Ordering::Relaxed) as u64),
            of: PageCount(self.of.load(Ordering::Relaxed) as u64),
            ended,
            moved: outcome.moved,
            kept: outcome.kept,
            made_way: outcome.made_way,
            missing: outcome.missing,
            left: outcome.left.len(),
        }
    }

    /// What was left, from a place in the list on.
    #[must_use]
    pub fn left(&self, from: usize, count: usize) -> Vec<Left> {
        let outcome = self.outcome();
        outcome
            .left
            .iter()
            .skip(from)
            .take(count)
            .copied()
            .collect()
    }

    /// Waits for the end, and tells what became of the pages.
    #[must_use]
    pub fn wait(&self) -> Outcome {
        while self.ended.load(Ordering::Acquire) == 0 {
            futex::wait(&self.ended, 0);
        }
        self.outcome().clone()
    }

    /// As for the queue.
    fn outcome(&self) -> impl DerefMut<Target = Outcome> {
        touch_stack();
        self.outcome.lock()
    }

    pub(super) fn add(&self, pages: PageCount, change: impl FnOnce(&mut Outcome)) {
        change(&mut self.outcome());
        self.done.fetch_add(pages.0 as usize, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.ended.store(1, Ordering::Release);
        futex::wake_all(&self.ended);
    }
}

/// Takes the lock of the queue, which the thread takes, too: nobody may meet a missing
/// page of its stack while holding it.
fn queue() -> impl DerefMut<Target = Queue> {
    touch_stack();
    QUEUE.lock()
}

/// From now on jobs are told by this event of the calling thread.
pub(super) fn accept(event: &OwnedFd, strategies: usize) {
    queue().count = strategies;
    EVENT.store(event.as_raw_fd(), Ordering::Release);
}

/// A strategy that comes to those that the thread was started with.
pub(super) fn add_strategy(strategy: Box<dyn Strategy>) -> Which {
    let mut queue = queue();
    queue.strategies.push(strategy);
    queue.count += 1;
    Which(queue.count - 1)
}

/// Moves the strategies that came later to the others.
pub(super) fn fetch_strategies(strategies: &mut Vec<Box<dyn Strategy>>) {
    strategies.append(&mut queue().strategies);
}

/// Asks the thread to move the pages of a range that exist.
///
/// # Errors
/// When there is no thread.
pub(super) fn ask(range: AddrRange, which: Which) -> Result<Arc<Shared>, Note> {
    if EVENT.load(Ordering::Acquire) < 0 {
        return Err(Note::FramesUnserved);
    }
    let shared = Arc::new(Shared::default());
    let pages = range.len().to_pages().0 as usize;
    shared.of.store(pages, Ordering::Relaxed);
    queue().jobs.push(Job {
        range,
        which,
        next: range.start,
        known: None,
        shared: shared.clone(),
    });
    hands::run(signal).map_err(|_| Note::FramesUnserved)?;
    Ok(shared)
}

/// Signals the event, on a thread that has the table of Quire's threads.
pub(super) fn signal() {
    let event = EVENT.load(Ordering::Acquire);
    if event >= 0 {
        // SAFETY: the thread never closes it.
        thread::signal_event(&unsafe { BorrowedFd::borrow_raw(event) });
    }
}

/// The job that waits longest.
pub(super) fn next() -> Option<Job> {
    let jobs = &mut queue().jobs;
    (!jobs.is_empty()).then(|| jobs.remove(0))
}

/// Holds what waits for the moment of a fork.
pub(super) fn hold() {
    QUEUE.hold();
}

/// Lets go of it.
pub(super) fn release_held() {
    QUEUE.release_held();
}

/// In a forked child there is no thread, and nobody waits.
pub(super) fn after_fork_child() {
    EVENT.store(-1, Ordering::Release);
    let mut queue = queue();
    queue.jobs.clear();
    queue.strategies.clear();
}
