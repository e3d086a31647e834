//! Pages that nobody has written to.
//!
//! The kernel can report touches of missing pages, but only for threads that can wait.
//! Those who look at the program from outside cannot: a debugger, who dumps its core, a
//! reader of `/proc/PID/mem`. They would get an error where the program has touched
//! nothing. So missing pages are *guarded*: protected against writes
//! (`UFFD_FEATURE_WP_UNPOPULATED`), which is a mark in the page table. Who reads gets the
//! kernel's page of zeros, and nobody hears of it. Who writes first is given a page by the
//! kernel, zeroed, and waits: that one goes back, and one with the right frame is moved to
//! its place.
//!
//! Between the two, another thread can write there: it gets a page of the kernel's,
//! unreported, which is kept and exchanged as one that exists ([remap](super::remap)). So
//! nothing goes back but a page of zeros that nobody can write to meanwhile: the lock of
//! the ranges is held, and whoever ends the protection takes it before.
//!
//! Marks take page tables, one page in 512. Ranges for which that is much are not guarded:
//! touches of missing pages are reported. Nor is the stack of the process, where pages
//! come that were never guarded.

use std::os::fd::{AsFd, BorrowedFd};

use quire_core::frames::remap::Reason;
use quire_core::frames::strategy::Request;
use quire_core::stat::Given;
use quire_core::units::{AddrRange, BASE_PAGE, Bytes, PageCount, VirtAddr};
use quire_linux::memory::{self, Advice};
use quire_linux::pagemap::{self, Filter};
use quire_linux::raw::Result;
use quire_linux::uffd::{self, Mode};

use super::jobs::Job;
use super::remap::one;
use super::server::Server;
use super::{Kind, RANGES, Which};

/// No larger range is guarded. One of that size takes 8 MiB of page tables, and some 25
/// milliseconds.
const MOST: Bytes = Bytes(4 << 30);

/// What is reported of a range.
pub(super) fn mode(range: AddrRange, kind: Kind) -> Mode {
    match kind {
        Kind::Mapping | Kind::Stack if range.len() <= MOST => Mode::Protect,
        Kind::Mapping | Kind::Stack | Kind::Growing => Mode::Missing,
    }
}

/// What is known of the pages of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contents {
    /// Nobody has written to them: all are guarded.
    None,
    /// Somebody may have: those that are missing are guarded, and those that were read.
    Some,
}

/// Lets first writes to a registered range be reported.
///
/// # Errors
/// As the ioctls, and where the page table cannot be read.
pub(super) fn guard(uffd: BorrowedFd<'_>, range: AddrRange, contents: Contents) -> Result<()> {
    if contents == Contents::None {
        return uffd::write_protect(uffd, range, true);
    }
    let mut written = Vec::new();
    let pagemap = pagemap::open()?;
    pagemap::scan(pagemap.as_fd(), range, WRITTEN, |run| {
        written.push(run.range());
    })?;
    let mut rest = range;
    for run in written {
        let (before, after) = rest.split_at(run.start);
        protect(uffd, before)?;
        rest = after.split_at(run.end).1;
    }
    protect(uffd, rest)
}

fn protect(uffd: BorrowedFd<'_>, range: AddrRange) -> Result<()> {
    match range.is_empty() {
        true => Ok(()),
        false => uffd::write_protect(uffd, range, true),
    }
}

/// Pages that are there or in swap; and those that are guarded, which the kernel tells
/// apart from the latter to the privileged only.
const WRITTEN: Filter = Filter {
    all: 0,
    none: pagemap::ZERO,
    any: pagemap::PRESENT | pagemap::SWAPPED,
    report: pagemap::PRESENT | pagemap::SWAPPED,
};

/// What is found where a write was reported.
enum Found {
    /// A page of zeros, and so many guarded ones with those after it.
    Zeros(u64),
    /// Contents: it was guarded when it had been written to.
    Contents,
    /// A page of locked memory, which must stay, and could not be moved either.
    Locked,
    /// Nothing is guarded: the same was reported before, and answered.
    Open,
}

impl Server {
    /// Gives a page that was written to first, and up to `wanted` with those after it that
    /// are guarded, frames by a strategy. Returns how many were answered.
    pub fn replace(&mut self, wanted: u64, which: Which, request: &Request) -> u64 {
        let page = request.page;
        let guarded = match self.empty(page, wanted) {
            Found::Zeros(pages) => pages,
            Found::Contents => {
                self.let_go_on(page, true);
                self.mend(one(page), which);
                return 0;
            }
            Found::Locked => {
                self.leave(page, true, Some(which));
                return 0;
            }
            Found::Open => {
                // Where nothing is mapped any more, nobody waits.
                let _ = uffd::wake(self.uffd.as_fd(), one(page));
                return 0;
            }
        };
        let all = AddrRange::new(page, PageCount(guarded).to_bytes());
        let after = all.split_at(page + Bytes(BASE_PAGE)).1;
        self.open(after);
        self.give_all(all, which, request)
    }

    /// Gives guarded pages frames by a strategy. Returns how many were answered.
    pub fn fill(&mut self, guarded: AddrRange, which: Which, request: &Request) -> u64 {
        self.open(guarded);
        self.give_all(guarded, which, request)
    }

    /// Ends the protection of guarded pages, so that others can be moved there.
    fn open(&self, guarded: AddrRange) {
        if !guarded.is_empty() {
            // Where that fails, nothing can be moved there.
            let _ = uffd::lift_protection(self.uffd.as_fd(), guarded);
        }
    }

    /// Gives pages whose protection was ended frames by a strategy; what is left is guarded
    /// again. Returns how many were answered.
    fn give_all(&mut self, all: AddrRange, which: Which, request: &Request) -> u64 {
        let given = self.give(all.len().to_pages().0, which, request);
        let rest = all.split_at(all.start + PageCount(given).to_bytes()).1;
        if !rest.is_empty() {
            // First guarded, so that what was written before is found.
            self.guard_again(rest);
            self.mend(rest, which);
        }
        given
    }

    /// Gives the page of zeros back that the kernel has given to who writes first.
    fn empty(&self, page: VirtAddr, wanted: u64) -> Found {
        let ranges = RANGES.lock();
        let placed = ranges.overlaps(one(page)).next();
        if placed.is_none_or(|(_, placed)| placed.which == Which::KERNEL) {
            return Found::Open;
        }
        let found = self.look(page, wanted);
        let Found::Zeros(_) = found else { return found };
        // SAFETY: the page is zero and protected, and stays so as long as the lock is
        // held; the program finds zeros there, as before.
        match unsafe { memory::advise(one(page), Advice::DontNeed) } {
            Ok(()) => found,
            Err(_) => Found::Locked,
        }
    }

    /// How many pages before one are guarded, of so many.
    pub fn guarded_before(&self, page: VirtAddr, most: u64) -> u64 {
        let first = VirtAddr(page.0 - most * BASE_PAGE);
        let mut guarded = 0;
        let range = AddrRange::new(first, PageCount(most).to_bytes());
        let read = pagemap::frames_of(self.folios.pagemap(), range, |_, entry| {
            guarded = match entry.is_protected() && !entry.is_present() {
                true => guarded + 1,
                false => 0,
            };
        });
        read.map_or(0, |()| guarded)
    }

    /// Looks at a page that was written to, and at how many after it are guarded.
    fn look(&self, page: VirtAddr, wanted: u64) -> Found {
        let range = AddrRange::new(page, PageCount(wanted).to_bytes());
        let (mut found, mut going_on) = (0, true);
        let read = pagemap::frames_of(self.folios.pagemap(), range, |at, entry| {
            going_on &= entry.is_protected() && entry.is_present() == (at == page);
            found += u64::from(going_on);
        });
        match found {
            _ if read.is_err() => Found::Contents,
            0 => Found::Open,
            _ if !memory::is_zero_page(page) => Found::Contents,
            pages => Found::Zeros(pages),
        }
    }

    /// Guards what was not given after all.
    fn guard_again(&self, range: AddrRange) {
        // Where that fails, the kernel chooses the frames there.
        let _ = guard(self.uffd.as_fd(), range, Contents::Some);
    }

    /// Exchanges pages that the kernel has chosen the frames of, where they are there, and
    /// counts them by what became of them.
    fn mend(&mut self, range: AddrRange, which: Which) {
        let mut job = Job {
            range,
            which,
            next: range.start,
            known: None,
            shared: Default::default(),
        };
        while !self.advance(&mut job) {}
        let mut outcome = job.shared.wait();
        self.count(
            which,
            range.start,
            Given::Chosen,
            outcome.moved + outcome.kept,
        );
        // What the program has given up meanwhile is asked for again.
        outcome.left.retain(|left| left.reason != Reason::Changed);
        self.count(which, range.start, Given::Left, outcome.pages_left());
    }
}
