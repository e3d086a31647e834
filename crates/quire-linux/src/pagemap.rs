//! The page table as the kernel tells it: `PAGEMAP_SCAN` (Linux 6.7), and the
//! entries of single pages.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::{array, io};

use quire_core::units::{
    AddrRange, BASE_PAGE, Frame, PAGES_PER_SUPERPAGE, PageCount, Slot, VirtAddr,
};

use crate::raw::{Result, syscall};

/// The page belongs to a file or to shared memory.
pub const FILE: u64 = 1 << 2;
/// The page is mapped.
pub const PRESENT: u64 = 1 << 3;
/// The page is in swap.
pub const SWAPPED: u64 = 1 << 4;
/// The page is the kernel's page of zeros.
pub const ZERO: u64 = 1 << 5;
/// The page is mapped by a superpage.
pub const HUGE: u64 = 1 << 6;

/// A run of pages with the same categories.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageRun {
    start: u64,
    end: u64,
    /// The categories that hold, of those asked for.
    pub categories: u64,
}

impl PageRun {
    /// The addresses of the run.
    #[must_use]
    pub const fn range(&self) -> AddrRange {
        AddrRange {
            start: VirtAddr(self.start),
            end: VirtAddr(self.end),
        }
    }
}

#[repr(C)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const IOCTL_SCAN: usize = (3 << 30) | (size_of::<ScanArg>() << 16) | ((b'f' as usize) << 8) | 16;

/// Opens the page table of this process.
///
/// # Errors
/// As `open`.
pub fn open() -> Result<OwnedFd> {
    let path = c"/proc/self/pagemap";
    let at = libc::AT_FDCWD as usize;
    let how = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    // SAFETY: the path is a C string that outlives the call.
    let fd = unsafe { syscall(libc::SYS_openat, [at, path.as_ptr() as usize, how, 0, 0, 0])? };
    // SAFETY: the kernel just gave us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Opens the page table of another process.
///
/// # Errors
/// As `open`: `EACCES` where this process may not trace that one.
pub fn open_of(pid: u32) -> std::io::Result<OwnedFd> {
    std::fs::File::open(format!("/proc/{pid}/pagemap")).map(OwnedFd::from)
}

/// Which pages a scan reports.
#[derive(Clone, Copy, Debug)]
pub struct Filter {
    /// Categories that must hold.
    pub all: u64,
    /// Categories that must not hold.
    pub none: u64,
    /// Categories of which one at least must hold, unless zero.
    pub any: u64,
    /// Categories that are reported, and by which runs are told apart.
    pub report: u64,
}

impl Filter {
    /// Mapped pages, and whether by superpages.
    pub const PRESENT: Filter = Filter {
        all: PRESENT,
        none: 0,
        any: 0,
        report: PRESENT | HUGE,
    };

    /// Where the kernel's page of zeros is mapped.
    pub const ZEROS: Filter = Filter {
        all: PRESENT | ZERO,
        ..Filter::PRESENT
    };

    /// Mapped pages that are not the kernel's page of zeros, and whether by
    /// superpages.
    pub const POPULATED: Filter = Filter {
        none: ZERO,
        ..Filter::PRESENT
    };
}

/// Calls `found` for each run of pages of `range` that passes the filter, in
/// order of address.
///
/// # Errors
/// As the ioctl.
pub fn scan(
    pagemap: BorrowedFd<'_>,
    range: AddrRange,
    filter: Filter,
    mut found: impl FnMut(PageRun),
) -> Result<()> {
    let mut runs = [PageRun::default(); 128];
    let mut start = range.start.0;
    while start < range.end.0 {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            flags: 0,
            start,
            end: range.end.0,
            walk_end: 0,
            vec: runs.as_mut_ptr() as u64,
            vec_len: runs.len() as u64,
            max_pages: 0,
            category_inverted: filter.none,
            category_mask: filter.all | filter.none,
            category_anyof_mask: filter.any,
            return_mask: filter.report,
        };
        let fd = pagemap.as_raw_fd() as usize;
        // SAFETY: the argument is the structure that this ioctl takes, and it
        // names a vector of `vec_len` runs that lives until the call returns.
        let count = unsafe {
            syscall(
                libc::SYS_ioctl,
                [fd, IOCTL_SCAN, (&raw mut arg) as usize, 0, 0, 0],
            )?
        };
        runs.iter().take(count).copied().for_each(&mut found);
        if arg.walk_end <= start {
            break;
        }
        start = arg.walk_end;
    }
    Ok(())
}

/// The frame of a page; nothing where no page is mapped, where the kernel hides frame
/// numbers (without `CAP_SYS_ADMIN`), or where the page table cannot be read.
#[must_use]
pub fn frame(pagemap: BorrowedFd<'_>, page: VirtAddr) -> Option<Frame> {
    let mut bytes = [0; 8];
    let read = rustix::io::pread(pagemap, &mut bytes, page.0 / BASE_PAGE * 8);
    (read == Ok(bytes.len())).then(|| frame_of(u64::from_le_bytes(bytes)))?
}

/// The page table entries of the extents of another process, one by one.
#[derive(Debug)]
pub struct Entries(File);

/// What the kernel tells of the frames of an extent.
#[derive(Clone, Copy, Debug)]
pub struct ExtentEntries([u64; PAGES_PER_SUPERPAGE]);

impl Entries {
    /// Opens the page table of process `pid`.
    ///
    /// # Errors
    /// As `open`: `EACCES` without the right to inspect the process.
    pub fn open(pid: u32) -> io::Result<Entries> {
        Ok(Entries(File::open(format!("/proc/{pid}/pagemap"))?))
    }

    /// For [`scan`].
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.0)
    }

    /// The entries of an extent.
    ///
    /// # Errors
    /// As `read`.
    pub fn extent(&self, slot: Slot) -> io::Result<ExtentEntries> {
        let mut bytes = [0; 8 * PAGES_PER_SUPERPAGE];
        let at = slot.start().0 / BASE_PAGE * 8;
        self.0.read_exact_at(&mut bytes, at)?;
        let entry = |n: usize| array::from_fn(|byte| bytes[8 * n + byte]);
        Ok(ExtentEntries(array::from_fn(|n| {
            u64::from_le_bytes(entry(n))
        })))
    }

    /// The frame of a page; nothing where no page is mapped, or without the
    /// privilege to know frames (`CAP_SYS_ADMIN`).
    ///
    /// # Errors
    /// As `read`.
    pub fn frame(&self, page: VirtAddr) -> io::Result<Option<Frame>> {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, page.0 / BASE_PAGE * 8)?;
        Ok(frame_of(u64::from_le_bytes(bytes)))
    }
}

/// The page table entry of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(u64);

/// So many entries are read at once, at most: 512 KiB.
const BLOCK: PageCount = PageCount(64 << 10);

/// Calls `found` with the entry of each page of `range`, in order of address.
///
/// # Errors
/// As `pread`; `UnexpectedEof` where the process has ended.
pub fn frames_of(
    pagemap: BorrowedFd<'_>,
    range: AddrRange,
    mut found: impl FnMut(VirtAddr, Entry),
) -> io::Result<()> {
    let block = range.len().to_pages().min(BLOCK).to_bytes();
    let mut bytes = vec![0; (block.0 / BASE_PAGE * 8) as usize];
    let mut start = range.start.page_floor();
    while start < range.end {
        let pages = (range.end - start).to_pages().min(BLOCK);
        let bytes = &mut bytes[..pages.0 as usize * 8];
        read_exact_at(pagemap, bytes, start.0 / BASE_PAGE * 8)?;
        let entries = bytes.as_chunks().0.iter().copied();
        for (n, entry) in (0..).zip(entries.map(u64::from_le_bytes)) {
            found(start + PageCount(n).to_bytes(), Entry(entry));
        }
        start = start + pages.to_bytes();
    }
    Ok(())
}

fn read_exact_at(fd: BorrowedFd<'_>, bytes: &mut [u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pread(fd, &mut bytes[done..], at + done as u64)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => done += read,
        }
    }
    Ok(())
}

impl Entry {
    /// Whether a page is mapped.
    #[must_use]
    pub const fn is_present(self) -> bool {
        self.0 & ENTRY_PRESENT != 0
    }

    /// Whether the page belongs to a file or to shared memory.
    #[must_use]
    pub const fn is_file(self) -> bool {
        self.0 & ENTRY_FILE != 0
    }

    /// Whether the page is in swap. Marks that the kernel keeps in place of a page,
    /// such as those of guard pages, look the same to those without the privilege to
    /// know frames, but for the guard pages of Linux 6.15 and later, and for missing pages
    /// that are protected: hardly any other is.
    #[must_use]
    pub const fn is_swapped(self) -> bool {
        let is_hidden = self.0 & ENTRY_FRAME == 0;
        let is_mark = self.0 & ENTRY_GUARD != 0
            || self.0 & SWAP_TYPE == SWAP_TYPE_MARK
            || (is_hidden && self.is_protected());
        self.0 & ENTRY_SWAPPED != 0 && !is_mark
    }

    /// Whether no other process maps the page.
    #[must_use]
    pub const fn is_exclusive(self) -> bool {
        self.0 & ENTRY_EXCLUSIVE != 0
    }

    /// Whether a `userfaultfd` holds back who writes to the page, mapped or not.
    #[must_use]
    pub const fn is_protected(self) -> bool {
        self.0 & ENTRY_PROTECTED != 0
    }

    /// Its frame; nothing where no page is mapped, or without the privilege to know
    /// frames (`CAP_SYS_ADMIN`).
    #[must_use]
    pub fn frame(self) -> Option<Frame> {
        frame_of(self.0)
    }
}

const ENTRY_PRESENT: u64 = 1 << 63;
const ENTRY_SWAPPED: u64 = 1 << 62;
const ENTRY_FILE: u64 = 1 << 61;
const ENTRY_GUARD: u64 = 1 << 58;
const ENTRY_PROTECTED: u64 = 1 << 57;
const ENTRY_EXCLUSIVE: u64 = 1 << 56;
const ENTRY_FRAME: u64 = (1 << 55) - 1;
/// In the entry of a page that is not mapped, the number of the swap area.
const SWAP_TYPE: u64 = 0x1f;
/// The number that means a mark and no area.
const SWAP_TYPE_MARK: u64 = 0x1f;

fn frame_of(entry: u64) -> Option<Frame> {
    let frame = entry & ENTRY_FRAME;
    (entry & ENTRY_PRESENT != 0 && frame != 0).then_some(Frame(frame))
}

impl ExtentEntries {
    /// Mapped pages that are mapped elsewhere, too. The kernel's page of zeros
    /// is one of them.
    #[must_use]
    pub fn shared(&self) -> PageCount {
        let shared = |e: &&u64| **e & ENTRY_PRESENT != 0 && **e & ENTRY_EXCLUSIVE == 0;
        PageCount(self.0.iter().filter(shared).count() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn entries_are_told_apart() {
        let present = Entry(ENTRY_PRESENT | ENTRY_FILE | 77);
        assert!(present.is_present() && present.is_file() && !present.is_swapped());
        assert_eq!(present.frame(), Some(Frame(77)));
        assert_eq!(Entry(ENTRY_PRESENT).frame(), None);
        let swapped = Entry(ENTRY_SWAPPED | 5 << 5);
        assert!(swapped.is_swapped() && !swapped.is_present());
        assert_eq!(swapped.frame(), None);
        assert!(!Entry(ENTRY_SWAPPED | SWAP_TYPE_MARK).is_swapped());
        assert!(!Entry(ENTRY_SWAPPED | ENTRY_GUARD).is_swapped());
        assert!(!Entry(0).is_swapped() && !Entry(0).is_present());
    }

    #[test]
    fn entries_are_read_in_blocks() {
        // Larger than a block, and touched here and there.
        let pages = BLOCK.0 as usize + 700;
        let mut memory = vec![0u8; (pages + 1) * BASE_PAGE as usize];
        let start = VirtAddr(memory.as_ptr() as u64 + BASE_PAGE - 1).page_floor();
        let offset = (start.0 - memory.as_ptr() as u64) as usize;
        let touched = |n: usize| n.is_multiple_of(97);
        for n in (0..pages).filter(|n| touched(*n)) {
            memory[offset + n * BASE_PAGE as usize] = 1;
        }
        let pagemap = open().unwrap();
        let range = AddrRange::new(start, PageCount(pages as u64).to_bytes());
        let mut seen = 0;
        frames_of(pagemap.as_fd(), range, |at, entry| {
            assert_eq!(at, start + PageCount(seen as u64).to_bytes());
            assert!(!touched(seen) || entry.is_present());
            seen += 1;
        })
        .unwrap();
        assert_eq!(seen, pages);
        let beyond = AddrRange::new(VirtAddr(1 << 56), PageCount(1).to_bytes());
        let error = frames_of(pagemap.as_fd(), beyond, |_, _| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(memory.len() > pages);
    }
}
