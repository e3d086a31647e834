//! One process as the kernel shows it. The trait is there so that what the
//! kernel can answer at a bad moment can be tested.

use std::io;
use std::ops::ControlFlow;

use quire_core::attach::{Extent, Tally, holes};
use quire_core::units::{AddrRange, BASE_PAGE, Bytes, Frame, PageCount, Slot, VirtAddr};
use quire_linux::Errno;
use quire_linux::pagemap::{self, Entries, Filter, HUGE, PageRun};
use quire_linux::remote::Remote;
use quire_linux::sysinfo::maps::{Kind, Reader};
use quire_linux::sysinfo::process;

/// What is asked about a process, and of it.
pub trait Process {
    /// Whether it still runs.
    fn is_alive(&self) -> bool;

    /// A number that is another one after the process has executed another
    /// program.
    fn image(&self) -> Option<u64>;

    /// Its extents that have populated pages and could be superpages, or are.
    ///
    /// # Errors
    /// As the kernel refuses.
    fn look(&mut self) -> io::Result<Vec<Extent>>;

    /// How many pages of an extent another process maps, too.
    ///
    /// # Errors
    /// As the kernel refuses.
    fn shared(&self, slot: Slot) -> io::Result<PageCount>;

    /// The pages of an extent that hold nothing.
    ///
    /// # Errors
    /// As the kernel refuses.
    fn holes(&self, slot: Slot) -> io::Result<Vec<AddrRange>>;

    /// How many pages of `ranges` hold only zeros.
    ///
    /// # Errors
    /// As the kernel refuses.
    fn zeros(&self, ranges: &[AddrRange]) -> io::Result<PageCount>;

    /// The frame of a page, where one is mapped and known.
    fn frame(&self, page: VirtAddr) -> Option<Frame>;

    /// Makes a superpage of an extent.
    ///
    /// # Errors
    /// As `process_madvise`.
    fn collapse(&self, slot: Slot) -> Result<(), Errno>;

    /// Makes base pages of a superpage.
    ///
    /// # Errors
    /// As `process_madvise`.
    fn split(&self, slot: Slot) -> Result<(), Errno>;
}

/// A process of this machine.
#[derive(Debug)]
pub struct LinuxProcess {
    remote: Remote,
    /// Belongs to the program that the process executed when it was opened.
    entries: Entries,
}

impl LinuxProcess {
    /// Opens process `pid`.
    ///
    /// # Errors
    /// `NotFound` or `ESRCH` when there is none; `PermissionDenied` without the
    /// right to inspect it.
    pub fn open(pid: u32) -> io::Result<LinuxProcess> {
        let remote = Remote::open(pid)?;
        let entries = Entries::open(pid)?;
        // The table is that of the process only if the number still is.
        if !remote.is_alive() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(LinuxProcess { remote, entries })
    }

    fn populated(&self, range: AddrRange, mut run: impl FnMut(AddrRange, bool)) -> io::Result<()> {
        pagemap::scan(self.entries.as_fd(), range, Filter::POPULATED, |found| {
            run(found.range(), found.categories & HUGE != 0);
        })?;
        Ok(())
    }
}

impl Process for LinuxProcess {
    fn is_alive(&self) -> bool {
        self.remote.is_alive()
    }

    fn image(&self) -> Option<u64> {
        process::image(self.remote.pid())
    }

    fn look(&mut self) -> io::Result<Vec<Extent>> {
        let pid = self.remote.pid();
        self.entries = Entries::open(pid)?;
        let mut tally = Tally::default();
        let mut found: Vec<(AddrRange, Kind)> = Vec::new();
        Reader::default().of(pid, |mapping, name| {
            found.push((mapping.range.whole_superpages(), mapping.kind(name)));
            ControlFlow::Continue(())
        })?;
        found.retain(|(inner, kind)| *kind != Kind::Other && !inner.is_empty());
        for (inner, kind) in found {
            let private = kind == Kind::Anonymous;
            self.populated(inner, |run, huge| tally.add(run, huge, private))?;
        }
        Ok(tally.extents())
    }

    fn shared(&self, slot: Slot) -> io::Result<PageCount> {
        let shared = self.entries.extent(slot)?.shared();
        if shared == PageCount(0) {
            return Ok(shared);
        }
        let mut zeros = PageCount(0);
        let count = |run: PageRun| zeros += run.range().len().to_pages();
        pagemap::scan(self.entries.as_fd(), slot.range(), Filter::ZEROS, count)?;
        Ok(PageCount(shared.0.saturating_sub(zeros.0)))
    }

    fn holes(&self, slot: Slot) -> io::Result<Vec<AddrRange>> {
        let mut runs = Vec::new();
        self.populated(slot.range(), |run, _| runs.push(run))?;
        Ok(holes(slot, &runs))
    }

    fn zeros(&self, ranges: &[AddrRange]) -> io::Result<PageCount> {
        let mut zeros = PageCount(0);
        let mut buffer = [0; 16 * BASE_PAGE as usize];
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let left = AddrRange {
                    start: at,
                    end: range.end,
                }
                .len();
                let len = left.0.min(buffer.len() as u64);
                let piece = &mut buffer[..len as usize];
                let got = self.remote.read(at, piece)?;
                let pages = piece[..got].chunks(BASE_PAGE as usize);
                let empty = |page: &&[u8]| page.iter().all(|byte| *byte == 0);
                zeros += PageCount(pages.filter(empty).count() as u64);
                if (got as u64) < len {
                    // Unmapped meanwhile.
                    break;
                }
                at = at + Bytes(len);
            }
        }
        Ok(zeros)
    }

    fn frame(&self, page: VirtAddr) -> Option<Frame> {
        self.entries.frame(page).ok().flatten()
    }

    fn collapse(&self, slot: Slot) -> Result<(), Errno> {
        self.remote.collapse(slot)
    }

    fn split(&self, slot: Slot) -> Result<(), Errno> {
        self.remote.split(slot)
    }
}
