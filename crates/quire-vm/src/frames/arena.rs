//! The stock's address space.
//!
//! It is taken once, before the program's own code runs, and kept: what is mapped later
//! could come to lie where the program has just unmapped something, and where it may
//! map anew with `MAP_FIXED`. So a forked child, to which no page of the stock is handed
//! down, takes the same addresses again at once.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use quire_core::units::{AddrRange, BASE_PAGE, Bytes, SUPERPAGE, VirtAddr};
use quire_linux::memory::{self, Advice};
use quire_linux::raw::{Errno, Result};
use quire_linux::thread;
use quire_linux::uffd::{self, Mode};

/// Folios that the address space is for, at most, and at least.
const MOST: u64 = 128;
const LEAST: u64 = 4;
/// As much as so many folios have is for single pages.
const SINGLE: u64 = 4;
/// Where the program's address space is limited, this part of it is taken at most.
const PART: u64 = 64;
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Where it lies, or 0, and its size in bytes.
static START: AtomicU64 = AtomicU64::new(0);
static LEN: AtomicU64 = AtomicU64::new(0);

/// What is free of it.
pub(super) struct Arena {
    folios: Vec<AddrRange>,
    pages: Vec<VirtAddr>,
}

impl Arena {
    /// Takes the address space, or what an earlier stock of this process had of it. The
    /// places of single pages are registered with `uffd`, so that pages can be moved
    /// there.
    ///
    /// # Errors
    /// As `mmap` and the registration.
    pub fn new(uffd: &OwnedFd) -> Result<Arena> {
        let whole = match known() {
            Some(whole) => whole,
            None => reserve()?,
        };
        let (single, folios) = whole.split_at(whole.start + Bytes(SINGLE * SUPERPAGE));
        // SAFETY: address space of the stock, which nobody else uses.
        unsafe {
            memory::protect(single, READ_WRITE)?;
            memory::advise(single, Advice::NoHugePage)?;
            memory::advise(single, Advice::DontFork)?;
        }
        uffd::register(uffd.as_fd(), single, Mode::Missing)?;
        let count = folios.len().0 / SUPERPAGE;
        let folio = |n| AddrRange::new(folios.start + Bytes(n * SUPERPAGE), Bytes(SUPERPAGE));
        let page = |n| single.start + Bytes(n * BASE_PAGE);
        Ok(Arena {
            folios: (0..count).rev().map(folio).collect(),
            pages: (0..single.len().to_pages().0).rev().map(page).collect(),
        })
    }

    /// A place for a folio, which is made when it is touched. No child has it: a page
    /// that a child has as well could not be moved.
    ///
    /// # Errors
    /// `ENOSPC` where all are taken, or as `mprotect` and `madvise`.
    pub fn take_folio(&mut self) -> Result<AddrRange> {
        let range = self.folios.pop().ok_or(Errno(libc::ENOSPC))?;
        // Not mapped anew: the kernel would count what was reserved here as if it were
        // data, and let the program's limit be exceeded. It becomes accessible last: it
        // is populated then, if the program has locked its memory.
        // SAFETY: address space of the stock, which nobody else uses.
        let made = unsafe {
            memory::advise(range, Advice::HugePage)
                .and_then(|()| memory::advise(range, Advice::DontFork))
                .and_then(|()| memory::advise(range, Advice::DontDump))
                .and_then(|()| memory::protect(range, READ_WRITE))
        };
        if made.is_err() {
            self.put_back_folio(range);
        }
        made.map(|()| range)
    }

    /// Gives up what lies in the place of a folio, and the place.
    pub fn put_back_folio(&mut self, range: AddrRange) {
        // SAFETY: as above.
        let emptied = unsafe {
            memory::advise(range, Advice::DontNeedLocked)
                .and_then(|()| memory::protect(range, libc::PROT_NONE))
        };
        // Where the kernel refuses, the place is not used again.
        if emptied.is_ok() {
            self.folios.push(range);
        }
    }

    /// A place for a single page, where none is.
    pub fn take_page(&mut self) -> Option<VirtAddr> {
        let at = self.pages.pop()?;
        // Where the program locks all its memory, the kernel asks for pages here, too.
        let emptied = self.empty(AddrRange::new(at, Bytes(BASE_PAGE)));
        emptied.is_ok().then_some(at)
    }

    /// Gives a place for a single page back. The page has gone already, or goes.
    pub fn put_back_page(&mut self, at: VirtAddr) {
        if self.empty(AddrRange::new(at, Bytes(BASE_PAGE))).is_ok() {
            self.pages.push(at);
        }
    }

    /// Gives up what lies in places for single pages.
    ///
    /// # Errors
    /// As `madvise`.
    pub fn empty(&self, pages: AddrRange) -> Result<()> {
        // SAFETY: address space of the stock, which nobody else uses.
        unsafe { memory::advise(pages, Advice::DontNeedLocked) }
    }
}

/// In a forked child: what was handed down is the address space between the pages of
/// the stock. It is taken as a whole again.
pub(super) fn after_fork_child() {
    if let Some(whole) = known() {
        // SAFETY: address space of the stock, which nobody else uses.
        let taken = unsafe { memory::map_anonymous(whole.start, whole.len(), 0, FIXED) };
        if taken.is_err() {
            START.store(0, Ordering::Release);
        }
    }
}

const FIXED: i32 = libc::MAP_FIXED | libc::MAP_NORESERVE;

/// Where it lies; empty where there is none.
pub(super) fn whole() -> AddrRange {
    known().unwrap_or_default()
}

fn known() -> Option<AddrRange> {
    let start = START.load(Ordering::Acquire);
    let range = AddrRange::new(VirtAddr(start), Bytes(LEN.load(Ordering::Acquire)));
    (start != 0).then_some(range)
}

fn reserve() -> Result<AddrRange> {
    let folios = match thread::soft_limit(libc::RLIMIT_AS) {
        libc::RLIM64_INFINITY => MOST,
        limit => (limit / PART / SUPERPAGE).clamp(LEAST, MOST),
    };
    let len = Bytes((folios + SINGLE) * SUPERPAGE);
    let start = memory::reserve_space(len, 0)?;
    LEN.store(len.0, Ordering::Release);
    START.store(start.0, Ordering::Release);
    Ok(AddrRange::new(start, len))
}
