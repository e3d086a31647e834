//! One process as the kernel shows it: what is advised ([`Advised`]), and what else is
//! asked from outside. The traits are there so that what the kernel can answer at a bad
//! moment can be tested.

use std::io;
use std::ops::ControlFlow;

use quire_advise::kinds::kind_of;
use quire_advise::process::{Area, Areas, Process as Advised};
use quire_core::attach::holes;
use quire_core::stat::RegionKind;
use quire_core::units::{AddrRange, BASE_PAGE, Bytes, Frame, PageCount, Slot, VirtAddr};
use quire_linux::Errno;
use quire_linux::pagemap::{self, Entries, Filter, HUGE, PageRun};
use quire_linux::raw::Result;
use quire_linux::remote::Remote;
use quire_linux::sysinfo::maps::{Mapping, Reader};
use quire_linux::sysinfo::process;

/// What is asked about another process, and of it.
pub trait Process: Advised {
    /// Whether it still runs.
    fn is_alive(&self) -> bool;

    /// A number that is another one after the process has executed another
    /// program.
    fn image(&self) -> Option<u64>;

    /// The pages of an extent that hold nothing.
    ///
    /// # Errors
    /// As the kernel refuses.
    fn holes(&self, slot: Slot) -> Result<Vec<AddrRange>>;

    /// How many pages of `ranges` hold only zeros.
    ///
    /// # Errors
    /// As the kernel refuses.
    fn zeros(&self, ranges: &[AddrRange]) -> Result<PageCount>;

    /// The frame of a page, where one is mapped and known.
    fn frame(&self, page: VirtAddr) -> Option<Frame>;

    /// Makes base pages of a superpage.
    ///
    /// # Errors
    /// As `process_madvise`.
    fn split(&self, slot: Slot) -> Result<()>;
}

/// A process of this machine.
#[derive(Debug)]
pub struct LinuxProcess {
    remote: Remote,
    /// Belongs to the program that the process executed when its mappings were listed
    /// last.
    entries: Entries,
    reader: Reader,
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
        Ok(LinuxProcess {
            remote,
            entries,
            reader: Reader::default(),
        })
    }

    fn scan(&self, range: AddrRange, mut run: impl FnMut(AddrRange, bool)) -> Result<()> {
        pagemap::scan(self.entries.as_fd(), range, Filter::POPULATED, |found| {
            run(found.range(), found.categories & HUGE != 0);
        })
    }
}

/// A page table that ends early is that of a process that has ended.
fn errno(error: &io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::ESRCH))
}

impl Advised for LinuxProcess {
    fn areas(&mut self, found: &mut Areas) -> Result<()> {
        let pid = self.remote.pid();
        self.entries = Entries::open(pid).map_err(|error| errno(&error))?;
        found.areas.clear();
        found.mappings = 0;
        let mut before: Option<Mapping> = None;
        let read = self.reader.of(pid, |mapping, name| {
            found.mappings += 1;
            let kind = kind_of(before.as_ref(), &mapping, name);
            before = Some(mapping);
            let range = mapping.range;
            found.areas.extend(kind.map(|kind| Area { range, kind }));
            ControlFlow::Continue(())
        });
        read.map_err(|error| errno(&error))
    }

    fn populated(
        &mut self,
        range: AddrRange,
        found: &mut dyn FnMut(AddrRange, bool),
    ) -> Result<()> {
        self.scan(range, found)
    }

    fn tells_superpages(&self) -> bool {
        true
    }

    /// The page table tells.
    fn superpages(&mut self, _: &mut dyn FnMut(AddrRange, Bytes)) -> Result<()> {
        Ok(())
    }

    fn shared(&mut self, slot: Slot) -> Result<PageCount> {
        let entries = self.entries.extent(slot).map_err(|error| errno(&error))?;
        let shared = entries.shared();
        if shared == PageCount(0) {
            return Ok(shared);
        }
        let mut zeros = PageCount(0);
        let count = |run: PageRun| zeros += run.range().len().to_pages();
        pagemap::scan(self.entries.as_fd(), slot.range(), Filter::ZEROS, count)?;
        Ok(PageCount(shared.0.saturating_sub(zeros.0)))
    }

    /// The kernel tells that of no other process.
    fn may_have(&mut self, _: AddrRange) -> bool {
        false
    }

    /// The kernel takes no such advice about another process.
    fn advise(&mut self, _: AddrRange) -> Result<()> {
        Err(Errno(libc::EOPNOTSUPP))
    }

    fn collapse(&mut self, slot: Slot, _: RegionKind) -> Result<()> {
        self.remote.collapse(slot)
    }
}

impl Process for LinuxProcess {
    fn is_alive(&self) -> bool {
        self.remote.is_alive()
    }

    fn image(&self) -> Option<u64> {
        process::image(self.remote.pid())
    }

    fn holes(&self, slot: Slot) -> Result<Vec<AddrRange>> {
        let mut runs = Vec::new();
        self.scan(slot.range(), |run, _| runs.push(run))?;
        Ok(holes(slot, &runs))
    }

    fn zeros(&self, ranges: &[AddrRange]) -> Result<PageCount> {
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

    fn split(&self, slot: Slot) -> Result<()> {
        self.remote.split(slot)
    }
}
