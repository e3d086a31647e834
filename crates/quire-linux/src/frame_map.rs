//! The mapping of another process from addresses to frames.
//!
//! Three sources are joined: the list of mappings, the page table scan, which passes
//! over what is empty and knows superpages and the page of zeros, and the entries of
//! the page table, which know frames. A process that runs changes meanwhile. What an
//! entry says counts, because it was read last; each mapping is as it was within a
//! short time, the whole is not as it was at any one moment.

use std::cell::OnceCell;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};

use quire_core::frames::mapping::part::{ADDRESS_END, Part};
use quire_core::frames::mapping::{Kind, Mapped, Run};
use quire_core::pool::GIGAPAGE;
use quire_core::units::{AddrRange, BASE_PAGE, Bytes, Frame, PageCount, SUPERPAGE, VirtAddr};

use crate::pagemap::{self, Entry, Filter, PageRun};
use crate::raw::Errno;
use crate::sysinfo::maps::{self, Mapping};
use crate::sysinfo::mounts::Mounts;
use crate::sysinfo::page_sizes;

/// Why the mapping of a process cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FrameMapError {
    /// There is no such process, or it may not be looked at.
    #[error("its mappings cannot be read: {0}")]
    Closed(#[source] io::Error),
    /// The kernel does not scan page tables.
    #[error("its page table cannot be scanned: {0}")]
    Scan(#[source] Errno),
    /// The entries cannot be read.
    #[error("its page table cannot be read: {0}")]
    Entries(#[source] io::Error),
    /// The process has ended.
    #[error("it has ended")]
    Ended,
}

/// What holds something.
const SOMETHING: Filter = Filter {
    all: 0,
    none: 0,
    any: pagemap::PRESENT | pagemap::SWAPPED,
    report: pagemap::PRESENT | pagemap::SWAPPED | pagemap::ZERO | pagemap::HUGE,
};
/// Runs that lie closer than this are read at once: to read a few entries in vain costs
/// less than another call.
const NEAR: PageCount = PageCount(512);

/// A process whose mapping is read.
struct Process {
    pid: u32,
    pagemap: OwnedFd,
    mounts: Mounts,
    /// The mappings with pages of 1 GiB, read when there may be some.
    gigapages: OnceCell<Vec<AddrRange>>,
}

/// A mapping, and the part of it that is asked for.
struct Listed {
    mapping: Mapping,
    part: AddrRange,
    name: String,
}

/// What all pages of a mapping have in common.
struct Common {
    /// What a page is that belongs to no private memory.
    file: Kind,
    /// The size of a superpage here.
    superpage: Bytes,
}

/// Reads what process `pid` has mapped, or the part of it that is asked for: its
/// mappings in order of address, also those that hold nothing. `found` is called for
/// each page that is found.
///
/// Without `CAP_SYS_ADMIN` no frames are known.
///
/// # Errors
/// When there is no such process, it may not be looked at, or it ends meanwhile.
pub fn read(
    pid: u32,
    part: Option<&Part>,
    mut found: impl FnMut(),
) -> Result<Vec<Mapped>, FrameMapError> {
    let list = mappings(pid, part).map_err(FrameMapError::Closed)?;
    let process = Process {
        pid,
        pagemap: pagemap::open_of(pid).map_err(FrameMapError::Closed)?,
        mounts: Mounts::of(pid).map_err(FrameMapError::Closed)?,
        gigapages: OnceCell::new(),
    };
    let mut all = Vec::with_capacity(list.len());
    for listed in list {
        let mut mapped = Mapped::new(listed.part, listed.name.as_str());
        process.pages(&listed, |page| {
            mapped.push(page);
            found();
        })?;
        all.push(mapped);
    }
    Ok(all)
}

/// The mappings of which something is asked for. The kernel's own page at the end of the
/// address space is left out.
fn mappings(pid: u32, part: Option<&Part>) -> io::Result<Vec<Listed>> {
    let mut list = Vec::new();
    maps::Reader::default().of(pid, |mapping, name| {
        let range = part.map_or(mapping.range, |part| part.of(mapping.range, name));
        if !range.is_empty() && range.end <= ADDRESS_END {
            list.push(Listed {
                mapping,
                part: range,
                name: name.to_owned(),
            });
        }
        ControlFlow::Continue(())
    })?;
    Ok(list)
}

impl Process {
    /// Calls `enter` with each page of a part of a mapping, in order of address.
    fn pages(&self, of: &Listed, mut enter: impl FnMut(Run)) -> Result<(), FrameMapError> {
        let mut runs = Vec::new();
        let pagemap = self.pagemap.as_fd();
        pagemap::scan(pagemap, of.part, SOMETHING, |run| runs.push(run))
            .map_err(FrameMapError::Scan)?;
        let common = self.common(of, &runs);
        let is_near = |a: &PageRun, b: &PageRun| b.range().start - a.range().end < NEAR.to_bytes();
        for near in runs.chunk_by(is_near) {
            self.pages_of(near, &common, &mut enter)
                .map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof => FrameMapError::Ended,
                    _ => FrameMapError::Entries(error),
                })?;
        }
        Ok(())
    }

    /// The pages of runs that lie near to each other.
    fn pages_of(
        &self,
        runs: &[PageRun],
        common: &Common,
        mut enter: impl FnMut(Run),
    ) -> io::Result<()> {
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else {
            return Ok(());
        };
        let range = AddrRange {
            start: first.range().start,
            end: last.range().end,
        };
        let mut runs = runs.iter().peekable();
        pagemap::frames_of(self.pagemap.as_fd(), range, |at, entry| {
            while runs.next_if(|run| run.range().end <= at).is_some() {}
            let here = runs.peek().filter(|run| run.range().start <= at);
            let page = here.and_then(|run| common.page(at, entry, run.categories));
            page.into_iter().for_each(&mut enter);
        })
    }

    fn common(&self, of: &Listed, runs: &[PageRun]) -> Common {
        let mapping = &of.mapping;
        let is_memory = mapping.kind(&of.name) == maps::Kind::Shared
            || mapping.file.is_some_and(|f| self.mounts.is_in_memory(f));
        let may_be_giga = mapping.range.len().0 >= GIGAPAGE
            && runs.iter().any(|run| run.categories & pagemap::HUGE != 0);
        Common {
            file: if is_memory { Kind::Shared } else { Kind::File },
            superpage: match may_be_giga && self.has_gigapages(mapping.range) {
                true => Bytes(GIGAPAGE),
                false => Bytes(SUPERPAGE),
            },
        }
    }

    /// Whether a mapping consists of pages of 1 GiB. Where the kernel does not tell, it
    /// is taken for one of the usual superpages.
    fn has_gigapages(&self, range: AddrRange) -> bool {
        let read = || page_sizes::gigapage_mappings(self.pid).unwrap_or_default();
        let known = self.gigapages.get_or_init(read);
        known.iter().any(|giga| giga.contains(range))
    }
}

impl Common {
    /// A page, by its entry and by what the scan said of it a moment before.
    fn page(&self, at: VirtAddr, entry: Entry, categories: u64) -> Option<Run> {
        let kind = match categories & pagemap::ZERO != 0 {
            _ if entry.is_swapped() => Kind::Swapped,
            _ if !entry.is_present() => return None,
            true => Kind::Zero,
            false if entry.is_file() => self.file,
            false => Kind::Anonymous,
        };
        let frame = entry.frame().filter(|_| kind.is_present());
        let is_super = categories & pagemap::HUGE != 0
            && kind != Kind::Swapped
            && frame.is_none_or(|frame| fits(at, frame, self.superpage));
        Some(Run {
            address: at,
            pages: PageCount(1),
            frame,
            page_size: if is_super {
                self.superpage
            } else {
                Bytes(BASE_PAGE)
            },
            kind,
        })
    }
}

/// Whether the address lies in a superpage as the frame lies in a block of that size.
/// Otherwise the superpage has been taken apart since it was scanned.
fn fits(at: VirtAddr, frame: Frame, superpage: Bytes) -> bool {
    (at.0 / BASE_PAGE) % (superpage.0 / BASE_PAGE) == frame.0 % (superpage.0 / BASE_PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This process's pages in `range`, one by one.
    fn read_own(range: AddrRange) -> Vec<Mapped> {
        let part = Part::Addresses(range);
        let mut found = 0;
        let all = read(std::process::id(), Some(&part), || found += 1).unwrap();
        let pages = all.iter().flat_map(Mapped::runs).map(|run| run.pages.0);
        assert_eq!(pages.sum::<u64>(), found);
        all
    }

    #[test]
    fn what_is_touched_is_found() {
        const PAGES: usize = 3000;
        let page = BASE_PAGE as usize;
        let mut memory = vec![0u8; PAGES * page];
        let offset = memory.as_ptr().align_offset(page);
        // Far apart, near, and next to each other.
        let touched = [10, 12, 13, 600, 2900, 2901, 2902];
        for n in touched {
            memory[offset + n * page] = 1;
        }
        let base = VirtAddr(memory[offset..].as_ptr() as u64);
        let range = AddrRange::new(base, PageCount(PAGES as u64 - 1).to_bytes());
        let mut present = Vec::new();
        for mapped in read_own(range) {
            assert!(range.contains(mapped.range));
            for run in mapped.runs().iter().filter(|run| run.kind.is_present()) {
                assert_eq!(run.kind, Kind::Anonymous);
                let first = (run.address - base).to_pages().0;
                present.extend(first..first + run.pages.0);
            }
        }
        for n in touched {
            assert!(present.contains(&(n as u64)), "{n} in {present:?}");
        }
        assert!(memory.len() > range.len().0 as usize);
    }

    #[test]
    fn names_select_mappings() {
        let part = "[stack]".parse().unwrap();
        let stacks = read(std::process::id(), Some(&part), || ()).unwrap();
        assert_eq!(stacks.len(), 1);
        assert_eq!(stacks[0].name, "[stack]");
        assert!(!stacks[0].runs().is_empty());
        let all = read(std::process::id(), None, || ()).unwrap();
        assert!(all.iter().any(|m| m.name == "[stack]"));
        assert!(all.iter().all(|m| m.name != "[vsyscall]"));
        let files = all.iter().flat_map(Mapped::runs);
        assert!(files.into_iter().any(|run| run.kind == Kind::File));
    }

    #[test]
    fn a_process_that_is_not_there() {
        let error = read(u32::MAX, None, || ()).unwrap_err();
        assert!(matches!(error, FrameMapError::Closed(_)));
    }

    #[test]
    fn superpages_that_were_taken_apart_are_none() {
        let size = Bytes(SUPERPAGE);
        assert!(fits(VirtAddr(5 << 12), Frame(512 + 5), size));
        assert!(!fits(VirtAddr(5 << 12), Frame(512 + 6), size));
    }
}
