//! Single pages of memory, at page boundaries, for who keeps many of them. From a general
//! allocator each takes two pages, as something is noted before it, and a fault for each.
//!
//! Pages come from slabs of a superpage's size: first those that were used before, then
//! fresh ones. Who wants many gets them from the kernel a few at a time ([`AHEAD`]); the first
//! few come one by one, so that who needs little takes little. A slab of which
//! nothing is used goes back to the kernel, if another has room.

use std::alloc::{Layout, handle_alloc_error};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quire_core::units::{
    AddrRange, BASE_PAGE, Bytes, PAGES_PER_SUPERPAGE, PageCount, SUPERPAGE, VirtAddr,
};

use crate::memory;
use crate::raw::{Errno, Result};

/// So many fresh pages are asked for at a time.
pub const AHEAD: PageCount = PageCount(16);

/// Slabs that pages are taken from. A clone is the same slabs.
#[derive(Clone, Debug, Default)]
pub struct Slabs(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// By their addresses.
    slabs: BTreeMap<VirtAddr, Slab>,
    /// Those that have pages to give.
    with_room: BTreeSet<VirtAddr>,
}

#[derive(Debug)]
struct Slab {
    memory: Mapped,
    /// Pages that were used before.
    returned: Vec<VirtAddr>,
    /// How many pages were given at least once.
    touched: PageCount,
}

/// A mapping of its own.
#[derive(Debug)]
struct Mapped(AddrRange);

impl Mapped {
    /// New memory of a superpage's size, at such a boundary.
    fn new() -> Result<Mapped> {
        let at = memory::reserve_space(Bytes(SUPERPAGE), 0)?;
        let mapped = Mapped(AddrRange::new(at, Bytes(SUPERPAGE)));
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the addresses were reserved for this, and nobody knows them.
        unsafe { memory::map_anonymous(at, Bytes(SUPERPAGE), prot, libc::MAP_FIXED)? };
        Ok(mapped)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no page of it is in use: `Inner`
        // drops it when all have been returned, or when no page is left to hold it.
        let _ = unsafe { memory::unmap(self.0) };
    }
}

impl Slab {
    fn has_room(&self) -> bool {
        !self.returned.is_empty() || self.touched.0 < PAGES_PER_SUPERPAGE as u64
    }

    fn is_unused(&self) -> bool {
        self.returned.len() as u64 == self.touched.0
    }

    fn take(&mut self) -> Option<VirtAddr> {
        if let Some(page) = self.returned.pop() {
            return Some(page);
        }
        let page = self.memory.0.start + self.touched.to_bytes();
        if page >= self.memory.0.end {
            return None;
        }
        if self.touched.0 > 0 && self.touched.0.is_multiple_of(AHEAD.0) {
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
        let memory = Mapped::new()?;
        let at = memory.0.start;
        let slab = Slab {
            memory,
            returned: Vec::new(),
            touched: PageCount(0),
        };
        self.slabs.insert(at, slab);
        self.with_room.insert(at);
        Ok(at)
    }

    fn give_back(&mut self, page: VirtAddr) {
        let at = VirtAddr(page.0 / SUPERPAGE * SUPERPAGE);
        let Some(slab) = self.slabs.get_mut(&at) else {
            return;
        };
        slab.returned.push(page);
        self.with_room.insert(at);
        if slab.is_unused() && self.with_room.len() > 1 {
            self.with_room.remove(&at);
            self.slabs.remove(&at);
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
        let taken = self.lock().take();
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

    /// What they take, in bytes, whether it is used or not.
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
