//! The sizes of a process's pages, as its page table has them.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use quire_core::tlb::PageSize;
use quire_core::units::{Slot, VirtAddr};
use quire_linux::pagemap::{self, Filter, HUGE};

/// How many questions about a slot are answered from memory: superpages come
/// and go while a window is executed.
const LASTS: u32 = 4096;

/// The page table of a process.
///
/// The kernel says for each page whether it is mapped by a superpage. It does
/// not tell 1 GiB from 2 MiB; a page of 1 GiB counts as superpages of 2 MiB.
#[derive(Debug)]
pub struct PageTable {
    pagemap: OwnedFd,
    known: HashMap<Slot, (PageSize, u32)>,
}

impl PageTable {
    /// Opens the page table of process `pid`, which stays that of the program
    /// that it executes now.
    ///
    /// # Errors
    /// When the process is gone or may not be traced.
    pub fn of(pid: u32) -> io::Result<PageTable> {
        Ok(PageTable {
            pagemap: pagemap::open_of(pid)?,
            known: HashMap::new(),
        })
    }

    /// Forgets what was known, because the process has run freely since.
    pub fn forget(&mut self) {
        self.known.clear();
    }

    /// The size of the page at `addr`. What is not mapped has base pages.
    pub fn size_at(&mut self, addr: VirtAddr) -> PageSize {
        let slot = addr.slot();
        if let Some((size, left)) = self.known.get_mut(&slot)
            && *left > 0
        {
            *left -= 1;
            return *size;
        }
        let size = self.look(slot);
        self.known.insert(slot, (size, LASTS));
        size
    }

    fn look(&self, slot: Slot) -> PageSize {
        let superpages = Filter {
            all: HUGE,
            report: HUGE,
            ..Filter::PRESENT
        };
        let mut size = PageSize::Base;
        // An address that is no memory of the program, as that of the page for
        // old system calls, is refused; it is a base page.
        let _ = pagemap::scan(self.pagemap.as_fd(), slot.range(), superpages, |_| {
            size = PageSize::Super;
        });
        size
    }
}
