//! What is mapped of an extent, as the page table tells it.

use std::os::fd::BorrowedFd;

use quire_core::units::{PAGES_PER_SUPERPAGE, Slot};
use quire_linux::pagemap::{self, Filter};
use quire_linux::raw::Result;

/// The pages of one extent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// Pages that are mapped.
    pub mapped: u64,
    /// Pages that a superpage maps.
    pub huge: u64,
    /// Pages that belong to this process alone: never of a file, or copied when
    /// they were written.
    pub own: u64,
}

impl View {
    /// Looks at an extent.
    ///
    /// # Errors
    /// As `PAGEMAP_SCAN`.
    pub fn of(pagemap: BorrowedFd<'_>, slot: Slot) -> Result<View> {
        let filter = Filter {
            all: 0,
            none: 0,
            any: pagemap::PRESENT | pagemap::SWAPPED,
            report: pagemap::PRESENT | pagemap::SWAPPED | pagemap::HUGE | pagemap::FILE,
        };
        let mut view = View::default();
        pagemap::scan(pagemap, slot.range(), filter, |run| {
            let pages = run.range().len().to_pages().0;
            let has = |category: u64| run.categories & category != 0;
            view.mapped += pages * u64::from(has(pagemap::PRESENT));
            view.huge += pages * u64::from(has(pagemap::HUGE));
            view.own += pages * u64::from(!has(pagemap::FILE));
        })?;
        Ok(view)
    }

    /// Whether every page is mapped, and not by a superpage.
    pub const fn is_full_of_base_pages(self) -> bool {
        self.mapped == PAGES_PER_SUPERPAGE as u64 && self.huge == 0
    }

    /// Whether a superpage maps it.
    pub const fn is_superpage(self) -> bool {
        self.huge == PAGES_PER_SUPERPAGE as u64
    }
}
