//! This process, as the kernel shows it.
//!
//! All of this runs on a thread that the C library does not know, so nothing here goes by it.

use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};

use quire_core::stat::RegionKind;
use quire_core::units::{
    AddrRange, BASE_PAGE, Bytes, PAGES_PER_SUPERPAGE, PageCount, SUPERPAGE, Slot, VirtAddr,
};
use quire_linux::Errno;
use quire_linux::memory::{self, Advice};
use quire_linux::pagemap::{self, Filter};
use quire_linux::raw::Result;
use quire_linux::sysinfo::maps::{Mapping, Reader};

use crate::kinds::{kind_of, small_kind_of};
use crate::process::{Area, Areas, Process};

/// This process.
#[derive(Debug)]
pub struct OwnProcess {
    pagemap: OwnedFd,
    reader: Reader,
    /// Whether the kernel has `PAGEMAP_SCAN` (Linux 6.7).
    scans: bool,
    /// Whether it has `MADV_COLLAPSE` (Linux 6.1).
    collapses: bool,
}

impl OwnProcess {
    /// Opens it.
    ///
    /// # Errors
    /// When `/proc` is not there, or this process may not read its page table.
    pub fn open() -> Result<OwnProcess> {
        let pagemap = pagemap::open()?;
        // Nothing is mapped so low.
        let probe = pagemap::scan(pagemap.as_fd(), Slot(0).range(), Filter::POPULATED, drop);
        Ok(OwnProcess {
            pagemap,
            reader: Reader::default(),
            scans: probe.is_ok(),
            collapses: has_collapse(),
        })
    }

    /// Advises that a range have no superpages.
    ///
    /// # Errors
    /// As `madvise`.
    pub fn forbid(&self, range: AddrRange) -> Result<()> {
        // SAFETY: smaller pages change no contents.
        unsafe { memory::advise(range, Advice::NoHugePage) }
    }

    /// Calls `found` with each run of pages of anonymous shared memory that exist, whichever process has touched them,
    /// and whether superpages map it here. Of a file's pages the kernel might say that all exist.
    ///
    /// # Errors
    /// As the kernel refuses.
    pub fn existing(
        &mut self,
        range: AddrRange,
        found: &mut dyn FnMut(AddrRange, bool),
    ) -> Result<()> {
        let mut huge = Vec::new();
        if self.scans {
            self.populated(range, &mut |run, is_huge| {
                if is_huge {
                    huge.push(run);
                }
            })?;
        }
        let mut start = range.start;
        let end = AddrRange {
            start: range.end,
            end: range.end,
        };
        for run in huge.into_iter().chain([end]) {
            let between = AddrRange {
                start,
                end: run.start,
            };
            if !between.is_empty() {
                let resident = memory::resident_runs(between)?;
                resident.into_iter().for_each(|run| found(run, false));
            }
            if !run.is_empty() {
                found(run, true);
            }
            start = run.end;
        }
        Ok(())
    }

    /// Whether the kernel makes superpages on request.
    #[must_use]
    pub const fn collapses(&self) -> bool {
        self.collapses
    }
}

impl Process for OwnProcess {
    fn areas(&mut self, found: &mut Areas) -> Result<()> {
        found.areas.clear();
        found.mappings = 0;
        let mut before: Option<Mapping> = None;
        let read = self.reader.own(|mapping, name| {
            found.mappings += 1;
            let mut kind = kind_of(before.as_ref(), &mapping, name);
            if kind.is_none() && found.small {
                kind = small_kind_of(before.as_ref(), &mapping, name);
            }
            before = Some(mapping);
            if let Some(kind) = kind {
                let range = mapping.range;
                found.areas.push(Area { range, kind });
            }
            ControlFlow::Continue(())
        });
        read.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))
    }

    fn populated(
        &mut self,
        range: AddrRange,
        found: &mut dyn FnMut(AddrRange, bool),
    ) -> Result<()> {
        let pagemap = self.pagemap.as_fd();
        if self.scans {
            return pagemap::scan(pagemap, range, Filter::POPULATED, |run| {
                found(run.range(), run.categories & pagemap::HUGE != 0);
            });
        }
        populated_by_entries(pagemap, range, found)
    }

    fn tells_superpages(&self) -> bool {
        self.scans
    }

    fn superpages(&mut self, found: &mut dyn FnMut(AddrRange, Bytes)) -> Result<()> {
        let read = self.reader.own_superpages(found);
        read.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))
    }

    fn shared(&mut self, slot: Slot) -> Result<PageCount> {
        let (mut present, mut shared) = (0, 0);
        let read = pagemap::frames_of(self.pagemap.as_fd(), slot.range(), |_, entry| {
            present += usize::from(entry.is_present());
            shared += u64::from(entry.is_present() && !entry.is_exclusive());
        });
        read.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))?;
        // Another mapping may be there since the last look, whose holes a copy would fill.
        if present < PAGES_PER_SUPERPAGE {
            return Err(Errno(libc::ENODATA));
        }
        Ok(PageCount(shared))
    }

    fn may_have(&mut self, range: AddrRange) -> bool {
        // The kernel looks at the mapping before it looks for whole extents, of which one page has none.
        let page = AddrRange::new(range.start, Bytes(BASE_PAGE));
        // SAFETY: making superpages changes no contents.
        unsafe { memory::advise(page, Advice::Collapse) }.is_ok()
    }

    fn advise(&mut self, range: AddrRange) -> Result<()> {
        // SAFETY: larger pages change no contents.
        unsafe { memory::advise(range, Advice::HugePage) }
    }

    fn collapse(&mut self, slot: Slot, kind: RegionKind) -> Result<()> {
        let advise = |advice| {
            // SAFETY: none of the advice that is given here changes contents.
            unsafe { memory::advise(slot.range(), advice) }
        };
        let collapsed = advise(Advice::Collapse);
        if collapsed.is_ok() || kind != RegionKind::Stack {
            return collapsed;
        }
        // The kernel marks stacks as unfit for superpages, so that they do not grow by whole ones. The mark is put
        // back: what is freed and touched again is touched page by page.
        advise(Advice::HugePage)?;
        let collapsed = advise(Advice::Collapse);
        advise(Advice::NoHugePage)?;
        collapsed
    }
}

/// Whether the kernel knows the request to make superpages: of nothing, there is nothing else to refuse.
fn has_collapse() -> bool {
    let nothing = AddrRange::new(VirtAddr(0), Bytes::ZERO);
    // SAFETY: no memory is named.
    unsafe { memory::advise(nothing, Advice::Collapse) }.is_ok()
}

/// The populations where the kernel has no `PAGEMAP_SCAN`: from the entries of single pages. Whether a superpage
/// maps them is not told there: a whole extent that is exclusively of aligned, consecutive frames is one, and
/// frames are hidden from ordinary users. So what is full counts as one once it was asked for.
fn populated_by_entries(
    pagemap: std::os::fd::BorrowedFd<'_>,
    range: AddrRange,
    found: &mut dyn FnMut(AddrRange, bool),
) -> Result<()> {
    let mut run: Option<AddrRange> = None;
    let read = pagemap::frames_of(pagemap, range, |page, entry| {
        if !entry.is_present() {
            return;
        }
        let end = page + Bytes(BASE_PAGE);
        match &mut run {
            Some(run) if run.end == page => run.end = end,
            _ => {
                if let Some(run) = run.replace(AddrRange { start: page, end }) {
                    found(run, false);
                }
            }
        }
    });
    if let Some(run) = run {
        found(run, false);
    }
    read.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))
}

/// Base pages of a superpage, and how many bytes it has, as the kernel of this machine has them. Where the size is
/// another one, nothing is advised.
#[must_use]
pub fn has_known_sizes() -> bool {
    let page = rustix::param::page_size() as u64;
    let superpage = quire_linux::sysinfo::thp::superpage_size();
    page == BASE_PAGE
        && superpage.is_none_or(|size| size == Bytes(SUPERPAGE))
        && SUPERPAGE / page == PAGES_PER_SUPERPAGE as u64
}

#[cfg(test)]
mod tests {
    use quire_core::units::VirtAddr;

    use super::*;

    #[test]
    fn this_process_can_be_looked_at() {
        let mut own = OwnProcess::open().unwrap();
        let mut memory = vec![0u8; 8 << 20];
        memory.fill(1);
        let at = VirtAddr(memory.as_ptr() as u64);
        let range = AddrRange::new(at, Bytes(8 << 20)).whole_superpages();
        let mut areas = Areas::default();
        own.areas(&mut areas).unwrap();
        assert!(areas.areas.iter().any(|a| a.range.contains(range)));
        assert!(areas.mappings > areas.areas.len() as u64);
        let mut pages = 0;
        own.populated(range, &mut |run, _| pages += run.len().to_pages().0)
            .unwrap();
        assert_eq!(pages, range.len().to_pages().0);
        let slow = populated_by_entries(own.pagemap.as_fd(), range, &mut |run, _| {
            pages -= run.len().to_pages().0;
        });
        assert!(slow.is_ok() && pages == 0);
        assert!(own.collapses() && own.may_have(range));
        assert_eq!(own.shared(range.start.slot()), Ok(PageCount(0)));
        assert!(memory.iter().all(|byte| *byte == 1));
    }
}
