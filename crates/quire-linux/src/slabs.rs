//! Single pages of memory, at page boundaries, for who keeps many of them. From a general
//! allocator each takes two pages, as something is noted before it, and a fault for each.
//!
//! Pages come from slabs of a superpage's size: first those that were used before, the lowest
//! first, then fresh ones. So pages that are taken one after the other often lie together
//! ([`together`]). Who wants many gets them from the kernel a few at a time ([`AHEAD`]); the first
//! few come one by one, so that who needs little takes little. Who fills several slabs finds the
//! next one made ahead by a thread, as a superpage where the kernel has one: nobody waits until
//! 2 MiB are zeroed. A slab of which nothing is used goes back to the kernel, if another has room.

use std::alloc::{Layout, handle_alloc_error};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use quire_core::units::{
    AddrRange, BASE_PAGE, Bytes, PAGES_PER_SUPERPAGE, PageCount, SUPERPAGE, VirtAddr,
};

use crate::block::Block;
use crate::memory;
use crate::raw::{Errno, Result};

/// So many fresh pages are asked for at a time.
pub const AHEAD: PageCount = PageCount(16);

/// Words with a bit for each page of a slab.
const WORDS: usize = PAGES_PER_SUPERPAGE / u64::BITS as usize;

/// Slabs that pages are taken from. A clone is the same slabs.
#[derive(Clone, Debug, Default)]
pub struct Slabs(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// By their addresses.
    slabs: BTreeMap<VirtAddr, Slab>,
    /// Those that have pages to give.
    with_room: BTreeSet<VirtAddr>,
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
    /// Pages that were used before: a bit for each.
    returned: [u64; WORDS],
    /// How many pages were given at least once.
    touched: PageCount,
    /// All of its memory was there before.
    is_populated: bool,
}

impl Slab {
    fn has_room(&self) -> bool {
        self.returned != [0; WORDS] || self.touched.0 < PAGES_PER_SUPERPAGE as u64
    }

    fn is_unused(&self) -> bool {
        let returned = self.returned.iter().map(|word| word.count_ones());
        u64::from(returned.sum::<u32>()) == self.touched.0
    }

    /// The lowest page that was used before and is free.
    fn take_returned(&mut self) -> Option<VirtAddr> {
        let index = self.returned.iter().position(|word| *word != 0)?;
        let word = &mut self.returned[index];
        let bit = word.trailing_zeros();
        *word &= *word - 1;
        let page = index as u64 * u64::from(u64::BITS) + u64::from(bit);
        Some(self.memory.range().start + PageCount(page).to_bytes())
    }

    fn give_back(&mut self, page: VirtAddr) {
        let page = ((page - self.memory.range().start).0 / BASE_PAGE) as usize;
        let bits = u64::BITS as usize;
        self.returned[page / bits] |= 1 << (page % bits);
    }

    fn take(&mut self) -> Option<VirtAddr> {
        if let Some(page) = self.take_returned() {
            return Some(page);
        }
        let page = self.memory.range().start + self.touched.to_bytes();
        if page >= self.memory.range().end {
            return None;
        }
        if !self.is_populated && self.touched.0 > 0 && self.touched.0.is_multiple_of(AHEAD.0) {
            // SAFETY: it changes no contents. Where it is refused, each touch is a fault.
            let _ = unsafe {
                memory::advise_raw(
                    AddrRange::new(page, AHEAD.to_bytes()),
                    libc::MADV_POPULATE_WRITE,
                )
            };
        }
        self.touched.0 += 1;
        Some(page)
    }
}

impl Inner {
    fn take(&mut self) -> Result<VirtAddr> {
        let at = match self.with_room.first() {
            Some(at) => *at,
            None => self.add()?,
        };
        let slab = self.slabs.get_mut(&at);
        let none = Errno(libc::ENOMEM);
        let slab = slab.ok_or(none)?;
        let page = slab.take().ok_or(none)?;
        if !slab.has_room() {
            self.with_room.remove(&at);
        }
        Ok(page)
    }

    fn add(&mut self) -> Result<VirtAddr> {
        let spare = self.spare.take();
        let is_populated = spare.is_some();
        let memory = spare.map_or_else(|| Block::plain(Bytes(SUPERPAGE)), Ok)?;
        let at = memory.range().start;
        let slab = Slab {
            memory,
            returned: [0; WORDS],
            touched: PageCount(0),
            is_populated,
        };
        self.slabs.insert(at, slab);
        self.with_room.insert(at);
        self.spare_wanted = self.slabs.len() > 1 && self.rest == 0;
        self.rest = self.rest.saturating_sub(1);
        Ok(at)
    }

    fn give_back(&mut self, page: VirtAddr) {
        let at = VirtAddr(page.0 / SUPERPAGE * SUPERPAGE);
        let Some(slab) = self.slabs.get_mut(&at) else {
            return;
        };
        slab.give_back(page);
        self.with_room.insert(at);
        if slab.is_unused() && self.with_room.len() > 1 {
            self.with_room.remove(&at);
            self.slabs.remove(&at);
            if self.slabs.len() == 1 {
                self.spare = None;
            }
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
    pub fn page(&self) -> Page {
        let mut inner = self.lock();
        let taken = inner.take();
        let make_spare = std::mem::take(&mut inner.spare_wanted) && !inner.spare_begun;
        inner.spare_begun |= make_spare;
        drop(inner);
        if make_spare {
            self.make_spare();
        }
        let Ok(at) = taken else {
            handle_alloc_error(Layout::new::<[u8; BASE_PAGE as usize]>());
        };
        let Some(at) = NonNull::new(at.as_ptr()) else {
            unreachable!("the kernel gives no page at address 0");
        };
        Page {
            at,
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

/// A page of memory, which goes back to its slabs when it is dropped.
#[derive(Debug)]
pub struct Page {
    at: NonNull<u8>,
    /// They are there as long as any page is.
    slabs: Slabs,
}

/// As many of the first pages as lie one after the other in a slab; all of that.
pub fn together<'a>(pages: impl IntoIterator<Item = &'a Page>) -> &'a [u8] {
    let mut pages = pages.into_iter();
    let Some(first) = pages.next() else {
        return &[];
    };
    let start = first.at.as_ptr() as u64;
    let end = start / SUPERPAGE * SUPERPAGE + SUPERPAGE;
    let mut next = start + BASE_PAGE;
    for page in pages {
        if page.at.as_ptr() as u64 != next || next == end {
            break;
        }
        next += BASE_PAGE;
    }
    // SAFETY: these are pages of one slab, which is one mapping, and of no other, as slabs begin at
    // boundaries of their size. All of them are borrowed for as long as what is returned, so each
    // is initialised and mapped, and nobody writes to any.
    unsafe { slice::from_raw_parts(first.at.as_ptr(), (next - start) as usize) }
}

// SAFETY: the memory is the page's alone, and belongs to no thread.
unsafe impl Send for Page {}
// SAFETY: as above; a shared page is only read.
unsafe impl Sync for Page {}

impl Deref for Page {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: a page of a slab, which is mapped and initialised, and which nobody else
        // was given; it stays mapped, as the slab has a page in use.
        unsafe { slice::from_raw_parts(self.at.as_ptr(), BASE_PAGE as usize) }
    }
}

impl DerefMut for Page {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else refers to it.
        unsafe { slice::from_raw_parts_mut(self.at.as_ptr(), BASE_PAGE as usize) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let at = VirtAddr(self.at.as_ptr() as u64);
        self.slabs.lock().give_back(at);
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
        let mut pages: Vec<Page> = (0..1100).map(|_| slabs.page()).collect();
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
        let mut pages: Vec<Page> = (0..PAGES_PER_SUPERPAGE + 3).map(|_| slabs.page()).collect();
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
        let mut pages: Vec<Page> = (0..100).map(|_| slabs.page()).collect();
        let addresses: Vec<_> = pages[5..40].iter().map(|page| page.as_ptr()).collect();
        pages.drain(5..40).step_by(2).for_each(drop);
        let again: Vec<Page> = (0..35).map(|_| slabs.page()).collect();
        let taken: Vec<_> = again.iter().map(|page| page.as_ptr()).collect();
        assert_eq!(taken, addresses);
        assert_eq!(together(&again).len(), 35 * PAGE);
    }

    #[test]
    fn what_nobody_uses_goes_back_to_the_kernel() {
        let slabs = Slabs::new();
        let pages: Vec<Page> = (0..2000).map(|_| slabs.page()).collect();
        assert_eq!(slabs.size(), Bytes(4 * SUPERPAGE));
        drop(pages);
        assert_eq!(slabs.size(), Bytes(SUPERPAGE), "one is kept");
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
        let mut pages: Vec<Page> = (0..=PAGES_PER_SUPERPAGE).map(|_| take()).collect();
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
        assert_eq!(slabs.size(), Bytes(SUPERPAGE));
    }
}
