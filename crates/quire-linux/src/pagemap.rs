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

const ENTRY_PRESENT: u64 = 1 << 63;
const ENTRY_EXCLUSIVE: u64 = 1 << 56;
const ENTRY_FRAME: u64 = (1 << 55) - 1;

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
