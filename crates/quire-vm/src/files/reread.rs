//! Pages of a file, brought in anew as huge folios.
//!
//! A kernel without `CONFIG_READ_ONLY_THP_FOR_FS` makes no superpage of pages
//! that are in the page cache. But where it reads a file into a mapping that
//! has `MADV_HUGEPAGE`, it allocates huge folios, and it maps those whole for
//! everybody who maps the file congruently. So the pages of an extent are
//! dropped from the cache and read again. That happens to clean pages that no
//! other process maps, where this process may ask for it; the kernel keeps all
//! others.

use std::os::fd::BorrowedFd;

use quire_core::units::Slot;
use quire_linux::memory::{self, Advice};
use quire_linux::raw::Result;

use super::view::View;

/// File systems whose page cache can hold huge folios: ext4, XFS, Btrfs and
/// EROFS, by the number in their superblock.
const WITH_HUGE_FOLIOS: [i64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xe0f5_e1e2];

/// The device of a file on such a file system.
pub(crate) fn device_with_huge_folios(file: BorrowedFd<'_>) -> Option<u64> {
    let kind = rustix::fs::fstatfs(file).ok()?.f_type;
    let stat = rustix::fs::fstat(file).ok()?;
    WITH_HUGE_FOLIOS.contains(&kind).then_some(stat.st_dev)
}

/// Lets the next read of an extent allocate a huge folio.
///
/// # Errors
/// As `madvise`.
pub(crate) fn prefer_huge(slot: Slot) -> Result<()> {
    // SAFETY: advice about page sizes changes no contents.
    unsafe { memory::advise(slot.range(), Advice::HugePage) }
}

/// Drops those pages of an extent from the page cache that can be dropped.
///
/// # Errors
/// As `madvise`.
pub(crate) fn drop_cached(slot: Slot) -> Result<()> {
    // SAFETY: the kernel drops only what it can bring back.
    unsafe { memory::advise(slot.range(), Advice::PageOut) }
}

/// Makes the kernel forget what it has mapped of an extent, so that it maps it
/// anew at the next touch: by a superpage, where the page cache has a huge folio.
///
/// # Errors
/// As `madvise`.
///
/// # Safety
/// The extent must be mapped from a file, and hold no page of the process's
/// own; and nobody may change that meanwhile.
pub(crate) unsafe fn forget_mapped(slot: Slot) -> Result<()> {
    // SAFETY: without pages of the process's own, what is dropped is the file's
    // and comes back at the next touch.
    unsafe { memory::advise(slot.range(), Advice::DontNeed) }
}

/// Maps all pages of an extent. Says whether by a superpage.
///
/// # Errors
/// Where the file has no such pages, or memory is short.
pub(crate) fn bring_in(pagemap: BorrowedFd<'_>, slot: Slot) -> Result<bool> {
    // SAFETY: reading changes no contents.
    unsafe { memory::advise(slot.range(), Advice::PopulateRead)? };
    Ok(View::of(pagemap, slot)?.is_superpage())
}
