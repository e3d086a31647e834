//! Pages of memory, at page boundaries, for who keeps many of them. From a general allocator each
//! takes two pages, as something is noted before it, and a fault for each.
//!
//! Pages come from slabs of a superpage's size, one by one or as a [`Run`] of several, which can be
//! cut into runs that have owners of their own ([`Run::cut`]): who receives many pages at once keeps
//! each of them where it came. The lowest ones that are free are taken first, so that pages which
//! are taken one after the other often lie together ([`together`]). Who wants many gets them from the
//! kernel a few at a time ([`AHEAD`]); the first few come one by one, so that who needs little takes
//! little. Runs are taken where there is memory, before any comes from the kernel. Who fills several slabs finds the next one made ahead by a thread, as a superpage where
//! the kernel has one: nobody waits until 2 MiB are zeroed. Slabs of which nothing is used go back
//! to the kernel, but for a few ([`UNUSED`]).

use std::alloc::{Layout, handle_alloc_error};
use std::array;
use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use quire_core::popmap::Popmap;
use quire_core::units::{
    AddrRange, BASE_PAGE, Bytes, PAGES_PER_SUPERPAGE, PageCount, SUPERPAGE, VirtAddr,
};

use crate::block::Block;
use crate::memory;
use crate::raw::{Errno, Result};

/// So many fresh pages are asked for at a time.
pub const AHEAD: PageCount = PageCount(16);

/// So many slabs are kept of which nothing is used: what comes goes, and comes again.
pub const UNUSED: usize = 4;

/// A run is looked for in so many slabs before one is added.
const LOOKED_AT: usize = 8;

/// Slabs that pages are taken from. A clone is the same slabs.
#[derive(Clone, Debug, Default)]
pub struct Slabs(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// By their addresses.
    slabs: BTreeMap<VirtAddr, Slab>,
    /// Those that have pages to give.
    with_room: BTreeSet<VirtAddr>,
    /// Of how many nothing is used.
    unused: usize,
    /// Where the last run of several pages was taken.
    last: Option<VirtAddr>,
    /// What the next one is made of.
    spare: Option<Block>,
    /// Whether it is to be made, and whether a thread does so.
    spare_wanted: bool,
    spare_begun: bool,
    /// So many slabs are to be added before a spare is wanted again.
    rest: u32,
}

/// A slab that took longer than this to be made costs more than its pages a few at a time: in a
/// virtual machine whose host has taken large free blocks back. So many go without then.
const SLOW: Duration = Duration::from_millis(1);
const REST: u32 = 16;

#[derive(Debug)]
struct Slab {
    memory: Block,
    used: Popmap,
    /// The pages before this one have memory, or get it when they are touched.
    there: usize,
}

impl Slab {
    /// Where the lowest pages are that are free, so many one after the other.
    fn room(&self, count: usize) -> Option<usize> {
        let mut gaps = self.used.gaps();
        Some(gaps.find(|gap| gap.len() >= count)?.start)
    }

    /// Whether these pages have memory.
    fn is_there(&self, count: usize) -> bool {
        let room = self.room(count);
        room.is_some_and(|start| start + count <= self.there)
    }

    /// Takes the lowest pages that are free, so many one after the other.
    fn take(&mut self, count: usize) -> Option<VirtAddr> {
        let start = self.room(count)?;
        self.used.set(start..start + count);
        self.bring(start, count);
        Some(self.address(start))
    }

    /// Asks for the memory of pages that are taken, and of some more.
    fn bring(&mut self, start: usize, count: usize) {
        let ahead = AHEAD.0 as usize;
        if start + count <= self.there {
            return;
        }
        let from = if count > ahead { start } else { self.there };
        let to = (start + count).max(self.there + ahead);
        self.there = to.min(PAGES_PER_SUPERPAGE);
        let range = AddrRange {
            start: self.address(from),
            end: self.address(self.there),
        };
        // SAFETY: it changes no contents. Where it is refused, each touch is a fault.
        let _ = unsafe { memory::advise_raw(range, libc::MADV_POPULATE_WRITE) };
    }

    fn address(&self, page: usize) -> VirtAddr {
        self.memory.range().start + PageCount(page as u64).to_bytes()
    }
}

impl Inner {
    fn take(&mut self, count: usize) -> Result<VirtAddr> {
        let taken = match count {
            1 => self.take_from(self.with_room.first().copied(), count),
            _ => self.take_several(count),
        };
        taken.map_or_else(|| self.take_from_new(count), Ok)
    }

    /// From the slab where the last ones were taken, if there is room, or from the first ones;
    /// but first where there is memory.
    fn take_several(&mut self, count: usize) -> Option<VirtAddr> {
        let mut with_room = self.with_room.iter().copied();
        let first: [_; LOOKED_AT] = array::from_fn(|_| with_room.next());
        let slabs = || iter::once(self.last).chain(first).flatten();
        let is_there = |at: &VirtAddr| self.slabs.get(at).is_some_and(|it| it.is_there(count));
        let found = slabs().find(is_there);
        let mut slabs = found.into_iter().chain(slabs());
        slabs.find_map(|slab| self.take_from(Some(slab), count))
    }

    fn take_from(&mut self, at: Option<VirtAddr>, count: usize) -> Option<VirtAddr> {
        let at = at?;
        let slab = self.slabs.get_mut(&at)?;
        let was_unused = slab.used.is_empty();
        let taken = slab.take(count)?;
        self.unused -= usize::from(was_unused);
        if count > 1 {
            self.last = Some(at);
        }
        if slab.used.is_full() {
            self.with_room.remove(&at);
        }
        Some(taken)
    }

    fn take_from_new(&mut self, count: usize) -> Result<VirtAddr> {
        let at = self.add()?;
        self.take_from(Some(at), count).ok_or(Errno(libc::ENOMEM))
    }

    fn add(&mut self) -> Result<VirtAddr> {
        let spare = self.spare.take();
        let there = match &spare {
            Some(_) => PAGES_PER_SUPERPAGE,
            None => AHEAD.0 as usize,
        };
        let memory = spare.map_or_else(|| Block::plain(Bytes(SUPERPAGE)), Ok)?;
        let at = memory.range().start;
        let slab = Slab {
            memory,
            used: Popmap::new(),
            there,
        };
        self.slabs.insert(at, slab);
        self.with_room.insert(at);
        self.unused += 1;
        self.spare_wanted = self.slabs.len() > 1 && self.rest == 0;
        self.rest = self.rest.saturating_sub(1);
        Ok(at)
    }

    fn give_back(&mut self, first: VirtAddr, count: usize) {
        let at = VirtAddr(first.0 / SUPERPAGE * SUPERPAGE);
        let Some(slab) = self.slabs.get_mut(&at) else {
            return;
        };
        let start = ((first - at).0 / BASE_PAGE) as usize;
        slab.used.clear(start..start + count);
        self.with_room.insert(at);
        if !slab.used.is_empty() {
            return;
        }
        if self.unused < UNUSED {
            self.unused += 1;
            return;
        }
        self.with_room.remove(&at);
        self.slabs.remove(&at);
        if self.slabs.len() <= UNUSED {
            self.spare = None;
        }
    }
}

impl Slabs {
    /// No slabs at first.
    #[must_use]
    pub fn new() -> Slabs {
        Slabs::default()
    }

    /// A page, which holds zeros or whatever it held before. Without memory the process
    /// ends, as with a `Box`.
    #[must_use]
    pub fn page(&self) -> Run {
        self.run(PageCount(1))
    }

    /// The same for several pages that lie together.
    ///
    /// # Panics
    /// If there are none, or more than a slab has.
    #[must_use]
    pub fn run(&self, pages: PageCount) -> Run {
        let count = pages.0 as usize;
        let fits = (1..=PAGES_PER_SUPERPAGE).contains(&count);
        assert!(fits, "a run of {count} pages");
        let mut inner = self.lock();
        let taken = inner.take(count);
        let make_spare = std::mem::take(&mut inner.spare_wanted) && !inner.spare_begun;
        inner.spare_begun |= make_spare;
        drop(inner);
        if make_spare {
            self.make_spare();
        }
        let at = taken.ok().and_then(|at| NonNull::new(at.as_ptr()));
        let Some(at) = at else {
            // It is small enough.
            let layout = Layout::array::<[u8; BASE_PAGE as usize]>(count);
            handle_alloc_error(layout.unwrap_or(Layout::new::<u8>()));
        };
        Run {
            at,
            count,
            slabs: self.clone(),
        }
    }

    /// Has a thread make a slab ahead. If there is no thread to be had, slabs go without.
    fn make_spare(&self) {
        let slabs = Arc::downgrade(&self.0);
        let make = move || {
            let before = Instant::now();
            let made = Block::populated(Bytes(SUPERPAGE));
            let is_slow = before.elapsed() > SLOW;
            let slabs = Weak::upgrade(&slabs).map(Slabs);
            if let Some(mut inner) = slabs.as_ref().map(Slabs::lock) {
                inner.spare = made.ok();
                inner.spare_begun = false;
                inner.rest = if is_slow { REST } else { 0 };
            }
        };
        let thread = thread::Builder::new().name("quire-slabs".to_owned());
        if thread.spawn(make).is_err() {
            self.lock().spare_begun = false;
        }
    }

    /// What they take, in bytes, whether it is used or not, but for a slab that is made ahead.
    #[must_use]
    pub fn size(&self) -> Bytes {
        Bytes(self.lock().slabs.len() as u64 * SUPERPAGE)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pages of memory that lie together. They go back to their slabs when this is dropped.
#[derive(Debug)]
pub struct Run {
    at: NonNull<u8>,
    count: usize,
    /// They are there as long as any page is.
    slabs: Slabs,
}

impl Run {
    /// Cuts it into runs of so many pages, as many as fit. What is left goes back.
    ///
    /// # Panics
    /// If they are to have no pages.
    #[must_use]
    pub fn cut(self, pages: PageCount) -> Vec<Run> {
        let each = pages.0 as usize;
        assert!(each > 0, "runs of no pages");
        let mut whole = ManuallyDrop::new(self);
        let start = whole.at;
        let part = |first: usize, count: usize| Run {
            // SAFETY: it is within the run, or at its end.
            at: unsafe { start.add(first * BASE_PAGE as usize) },
            count,
            slabs: whole.slabs.clone(),
        };
        let fitting = whole.count / each;
        let runs = (0..fitting).map(|number| part(number * each, each));
        let runs = runs.collect();
        let used = fitting * each;
        if used < whole.count {
            drop(part(used, whole.count - used));
        }
        // SAFETY: nobody looks at it any more, as `whole` is not dropped. The pages belong to
        // the parts now.
        unsafe { std::ptr::drop_in_place(&raw mut whole.slabs) };
        runs
    }
}

/// As many of the first runs as lie one after the other in a slab; all of that.
pub fn together<'a>(runs: impl IntoIterator<Item = &'a Run>) -> &'a [u8] {
    let mut runs = runs.into_iter();
    let Some(first) = runs.next() else {
        return &[];
    };
    let start = first.at.as_ptr() as u64;
    let end = start / SUPERPAGE * SUPERPAGE + SUPERPAGE;
    let mut next = start + first.len() as u64;
    for run in runs {
        if run.at.as_ptr() as u64 != next || next == end {
            break;
        }
        next += run.len() as u64;
    }
    // SAFETY: these are runs of one slab, which is one mapping, and of no other, as slabs begin at
    // boundaries of their size. All of them are borrowed for as long as what is returned, so each
    // is initialised and mapped, and nobody writes to any.
    unsafe { slice::from_raw_parts(first.at.as_ptr(), (next - start) as usize) }
}

// SAFETY: the memory is the run's alone, and belongs to no thread.
unsafe impl Send for Run {}
// SAFETY: as above; a shared run is only read.
unsafe impl Sync for Run {}

impl Deref for Run {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let length = self.count * BASE_PAGE as usize;
        // SAFETY: pages of a slab, which is mapped and initialised, and which nobody else
        // was given; it stays mapped, as the slab has pages in use.
        unsafe { slice::from_raw_parts(self.at.as_ptr(), length) }
    }
}

impl DerefMut for Run {
    fn deref_mut(&mut self) -> &mut [u8] {
        let length = self.count * BASE_PAGE as usize;
        // SAFETY: as above, and nobody else refers to it.
        unsafe { slice::from_raw_parts_mut(self.at.as_ptr(), length) }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let at = VirtAddr(self.at.as_ptr() as u64);
        self.slabs.lock().give_back(at, self.count);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::thread;

    use super::*;

    #[test]
    fn pages_are_apart_and_are_used_again() {
        let slabs = Slabs::new();
        let mut pages: Vec<Run> = (0..1100).map(|_| slabs.page()).collect();
        let addresses: BTreeSet<usize> = pages.iter().map(|page| page.as_ptr() as usize).collect();
        assert_eq!(addresses.len(), pages.len());
        assert!(addresses.iter().all(|at| at % BASE_PAGE as usize == 0));
        assert_eq!(slabs.size(), Bytes(3 * SUPERPAGE));
        for (number, page) in pages.iter_mut().enumerate() {
            assert!(page.iter().all(|byte| *byte == 0), "a fresh page");
            page.fill(number as u8);
        }
        for (number, page) in pages.iter().enumerate() {
            assert!(page.iter().all(|byte| *byte == number as u8), "{number}");
        }
        let lowest = pages.iter().map(|page| page.as_ptr()).min();
        pages.retain(|page| Some(page.as_ptr()) != lowest);
        assert_eq!(Some(slabs.page().as_ptr()), lowest);
    }

    #[test]
    fn pages_lie_together_where_they_were_taken_together() {
        const PAGE: usize = BASE_PAGE as usize;
        let slabs = Slabs::new();
        let mut pages: Vec<Run> = (0..PAGES_PER_SUPERPAGE + 3).map(|_| slabs.page()).collect();
        for (number, page) in pages.iter_mut().enumerate() {
            page.fill(number as u8);
        }
        let all = together(&pages);
        assert_eq!(all.len(), PAGES_PER_SUPERPAGE * PAGE, "not beyond the slab");
        let marks = all.chunks(PAGE).zip(0_usize..);
        for (page, number) in marks {
            assert!(page.iter().all(|byte| *byte == number as u8), "{number}");
        }
        assert_eq!(together([&pages[3], &pages[4], &pages[6]]).len(), 2 * PAGE);
        assert_eq!(together([&pages[4], &pages[3]]).len(), PAGE);
        assert_eq!(together([]).len(), 0);
        // Whatever the order in which they came back, they are taken in that of their addresses.
        let slabs = Slabs::new();
        let mut pages: Vec<Run> = (0..100).map(|_| slabs.page()).collect();
        let addresses: Vec<_> = pages[5..40].iter().map(|page| page.as_ptr()).collect();
        pages.drain(5..40).step_by(2).for_each(drop);
        let again: Vec<Run> = (0..35).map(|_| slabs.page()).collect();
        let taken: Vec<_> = again.iter().map(|page| page.as_ptr()).collect();
        assert_eq!(taken, addresses);
        assert_eq!(together(&again).len(), 35 * PAGE);
    }

    #[test]
    fn a_run_is_cut_into_runs_that_outlive_it() {
        const PAGE: usize = BASE_PAGE as usize;
        let slabs = Slabs::new();
        let single = slabs.page();
        let mut run = slabs.run(PageCount(10));
        let numbered = run.chunks_mut(PAGE).zip(0_u8..);
        numbered.for_each(|(page, number)| page.fill(number));
        let start = run.as_ptr() as usize;
        let mut runs = run.cut(PageCount(3));
        assert_eq!(runs.len(), 3);
        assert_eq!(together(&runs).len(), 9 * PAGE);
        assert_eq!(together(&runs).as_ptr() as usize, start);
        assert_eq!(runs[2].iter().map(|b| usize::from(*b)).max(), Some(8));
        // What is left went back, and so does each when it is dropped.
        assert_eq!(slabs.page().as_ptr() as usize, start + 9 * PAGE);
        runs.remove(1);
        let again = slabs.run(PageCount(3));
        assert_eq!(again.as_ptr() as usize, start + 3 * PAGE);
        drop((single, again, runs));
        assert_eq!(slabs.lock().unused, 1);
    }

    #[test]
    fn a_run_lies_in_one_slab() {
        let slabs = Slabs::new();
        let runs: Vec<Run> = (0..9).map(|_| slabs.run(PageCount(200))).collect();
        let is_in_one = |run: &Run| {
            let (start, end) = (run.as_ptr() as u64, run.as_ptr_range().end as u64 - 1);
            start / SUPERPAGE == end / SUPERPAGE
        };
        assert!(runs.iter().all(is_in_one));
        assert_eq!(slabs.size(), Bytes(5 * SUPERPAGE), "two in each");
        // Single pages take what is left between them.
        let pages: Vec<Run> = (0..4 * 112 + 312).map(|_| slabs.page()).collect();
        assert_eq!(slabs.size(), Bytes(5 * SUPERPAGE));
        drop((runs, pages));
        assert_eq!(slabs.run(PageCount(512)).len() as u64, SUPERPAGE);
        assert_eq!(slabs.size(), Bytes(UNUSED as u64 * SUPERPAGE));
    }

    #[test]
    fn runs_are_taken_where_there_is_memory() {
        let slabs = Slabs::new();
        let take = || slabs.run(PageCount(32));
        let all: Vec<Run> = (0..16).map(|_| take()).collect();
        let slab = |run: &Run| run.as_ptr() as u64 / SUPERPAGE;
        let (first, next) = (slab(&all[0]), take());
        assert_ne!(slab(&next), first, "it is full");
        drop(all);
        // Not where the last one was taken, which has memory for that one only.
        assert_eq!(slab(&take()), first);
    }

    #[test]
    fn what_nobody_uses_goes_back_to_the_kernel() {
        let slabs = Slabs::new();
        let pages: Vec<Run> = (0..4000).map(|_| slabs.page()).collect();
        assert_eq!(slabs.size(), Bytes(8 * SUPERPAGE));
        drop(pages);
        let kept = Bytes(UNUSED as u64 * SUPERPAGE);
        assert_eq!(slabs.size(), kept, "some are kept");
        // A page outlives whoever took it from the slabs.
        let mut page = slabs.page();
        drop(slabs);
        page[0] = 1;
        assert_eq!(page[0], 1);
    }

    #[test]
    fn who_fills_slabs_finds_the_next_one_made() {
        let slabs = Slabs::new();
        let take = || slabs.page();
        let mut pages: Vec<Run> = (0..=PAGES_PER_SUPERPAGE).map(|_| take()).collect();
        let end = Instant::now() + Duration::from_secs(10);
        while slabs.lock().spare.is_none() {
            assert!(Instant::now() < end, "nobody made one");
            thread::yield_now();
        }
        let spare = slabs
            .lock()
            .spare
            .as_ref()
            .map(|it| it.range().start.as_ptr());
        assert_eq!(slabs.size(), Bytes(2 * SUPERPAGE));
        pages.extend((0..PAGES_PER_SUPERPAGE).map(|_| take()));
        let last = pages.last().map(|page| page.as_ptr());
        assert_eq!(last, spare.map(|it| it.cast_const()));
        assert!(pages.iter().all(|page| page.iter().all(|byte| *byte == 0)));
        // Slabs that are dropped meanwhile take the memory with them.
        drop((pages, slabs));
    }

    #[test]
    fn threads_may_take_and_give_back() {
        let slabs = Slabs::new();
        thread::scope(|scope| {
            for thread in 1..=4_u8 {
                let slabs = &slabs;
                scope.spawn(move || {
                    let mut held = Vec::new();
                    for round in 0..3000_usize {
                        let mut page = slabs.page();
                        page.fill(thread);
                        held.push(page);
                        if round % 3 > 0 {
                            let page = held.swap_remove(round * 7 % held.len());
                            assert!(page.iter().all(|byte| *byte == thread));
                        }
                    }
                    assert!(held.iter().all(|page| page.iter().all(|b| *b == thread)));
                });
            }
        });
        assert_eq!(slabs.lock().unused, UNUSED);
        assert_eq!(slabs.size(), Bytes(UNUSED as u64 * SUPERPAGE));
    }
}
