//! The stock of zeroed pages whose frames are known.
//!
//! It is filled with folios of 2 MiB: within one, frames follow each other, and the
//! low nine bits of a frame's number are its place in the folio. So colours whose bits
//! lie below bit 21 of an address are known to everybody. Where the kernel shows frame
//! numbers, those are the numbers used here, and any colour is known; else folios are
//! numbered upward from where no memory is.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use quire_core::frames::buddy::{FramePool, Run};
use quire_core::frames::colour::Colours;
use quire_core::frames::strategy::{Block, Request, Strategy};
use quire_core::units::{
    AddrRange, BASE_PAGE, Bytes, Frame, PAGES_PER_SUPERPAGE, PageCount, SUPERPAGE, VirtAddr,
};
use quire_linux::memory::{self, Advice};
use quire_linux::pagemap;
use quire_linux::raw::{Errno, Result};
use quire_linux::uffd::{self, Mode};

/// Frames of a folio, as a power of two.
const FOLIO_ORDER: u32 = PAGES_PER_SUPERPAGE.trailing_zeros();
/// Frames of a folio.
const IN_FOLIO: u64 = PAGES_PER_SUPERPAGE as u64;
/// Frames whose numbers are hidden are counted from here.
const UNKNOWN: u64 = 1 << 40;
/// The stock takes no more than this: a strategy that wants few of the colours leaves
/// the frames of the others.
const LIMIT: PageCount = Bytes(64 << 20).to_pages();
/// How much address space is made ready for folios at a time.
const AREA: Bytes = Bytes(4 * SUPERPAGE);

/// The stock.
pub(super) struct Folios {
    pool: FramePool,
    /// Where frames lie, by the first frames of folios.
    folios: BTreeMap<Frame, Folio>,
    /// Address space that is ready for folios.
    area: AddrRange,
    /// The number of the next folio, where the kernel hides frame numbers.
    next_unknown: u64,
    shows_frames: bool,
    pagemap: OwnedFd,
    /// For moves within the stock: where a page is put aside.
    uffd: OwnedFd,
    aside: AddrRange,
}

/// A folio of the stock, or what is left of it.
#[derive(Clone, Copy, Debug)]
struct Folio {
    at: VirtAddr,
    /// Frames that have not left.
    left: u64,
    /// It consists of base pages by now.
    divided: bool,
}

impl Folios {
    /// An empty stock.
    ///
    /// # Errors
    /// When the page table cannot be read, or for want of descriptors or memory.
    pub fn new(colours: &Colours, uffd: BorrowedFd<'_>) -> Result<Folios> {
        let uffd = uffd.try_clone_to_owned().map_err(|_| Errno(libc::EMFILE))?;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let aside = unsafe { memory::map_anonymous(VirtAddr(0), Bytes(BASE_PAGE), prot, 0)? };
        let aside = AddrRange::new(aside, Bytes(BASE_PAGE));
        uffd::register(uffd.as_fd(), aside, Mode::Missing)?;
        Ok(Folios {
            uffd,
            aside,
            pool: FramePool::new(colours),
            folios: BTreeMap::new(),
            area: AddrRange::new(VirtAddr(0), Bytes::ZERO),
            next_unknown: UNKNOWN,
            shows_frames: false,
            pagemap: pagemap::open()?,
        })
    }

    /// Whether the numbers are those of real frames, as far as is known.
    pub fn shows_frames(&self) -> bool {
        self.shows_frames
    }

    /// Pages in stock.
    pub fn pages(&self) -> PageCount {
        PageCount(self.pool.free_frames())
    }

    /// Chooses frames for pages from a touched one on, all in one folio.
    pub fn allocate(
        &mut self,
        strategy: &mut dyn Strategy,
        request: &Request,
        pages: u64,
    ) -> Option<Run> {
        // Where there is no folio, what is left has to do.
        while (self.pool.free_frames() < pages || !self.pool.has_for(strategy, request))
            && self.pool.free_frames() < LIMIT.0
            && self.refill().is_ok()
        {}
        let mut run = self.pool.allocate_run(strategy, request, pages)?;
        let in_folio = IN_FOLIO - run.first.0 % IN_FOLIO;
        if run.count > in_folio {
            self.put_back(Frame(run.first.0 + in_folio), run.count - in_folio);
            run.count = in_folio;
        }
        let folio = self.folios.range(..=run.first).next_back();
        let divided = folio.is_some_and(|(_, folio)| folio.divided);
        if !divided && (!self.is_whole(run.first) || self.divide(run.first).is_err()) {
            self.put_back(run.first, run.count);
            self.drop_folio(run.first);
            return None;
        }
        Some(run)
    }

    /// Whether the folio of a frame is one still: the kernel divides folios when memory
    /// is short.
    fn is_whole(&self, frame: Frame) -> bool {
        let folio = self.folios.range(..=frame).next_back();
        let whole = folio.map(|(_, folio)| AddrRange::new(folio.at, Bytes(SUPERPAGE)));
        whole.is_some_and(|whole| is_superpage(self.pagemap.as_fd(), whole))
    }

    /// Divides the folio of a frame into base pages.
    ///
    /// The kernel does that when the first page is moved, but it maps its page of zeros
    /// in place of each page that holds nothing else, and the frames would be lost. So
    /// each holds something while one is moved aside and back.
    ///
    /// # Errors
    /// As the calls.
    fn divide(&mut self, frame: Frame) -> Result<()> {
        let folio = self.folios.range_mut(..=frame).next_back();
        let (_, folio) = folio.ok_or(Errno(libc::ENOENT))?;
        let whole = AddrRange::new(folio.at, Bytes(SUPERPAGE));
        let first = AddrRange::new(folio.at, Bytes(BASE_PAGE));
        let page = |n| folio.at + PageCount(n).to_bytes();
        let mark = |value: u64| {
            for page in (0..IN_FOLIO).map(page) {
                // SAFETY: a page of the stock, which is mapped and which nobody else
                // uses: none of the folio has left.
                unsafe { page.as_ptr().cast::<u64>().write_volatile(value) };
            }
        };
        mark(1);
        // While the first page is registered it is not touched here: nobody could
        // answer.
        let uffd = self.uffd.as_fd();
        uffd::register(uffd, first, Mode::Missing)?;
        for (to, from) in [(self.aside, first.start), (first, self.aside.start)] {
            let error = uffd::move_pages(uffd, to, from).error;
            error.map_or(Ok(()), Err)?;
        }
        // One mapping again, from which pages can leave side by side, and of which the
        // kernel makes no superpage again.
        uffd::unregister(uffd, first)?;
        mark(0);
        folio.divided = true;
        // SAFETY: the advice changes no contents.
        unsafe { memory::advise(whole, Advice::NoHugePage) }
    }

    /// Gives up what is left of a folio: its frames are not those that are known of it.
    fn drop_folio(&mut self, frame: Frame) {
        let Some((first, folio)) = self.folios.range(..=frame).next_back() else {
            return;
        };
        let (first, at) = (*first, folio.at);
        self.folios.remove(&first);
        for frame in first.0..first.0 + IN_FOLIO {
            self.pool.take(Frame(frame));
        }
        // SAFETY: address space of the stock, which nobody else uses.
        let _ = unsafe { memory::unmap(AddrRange::new(at, Bytes(SUPERPAGE))) };
    }

    /// Where the page of a frame lies.
    pub fn address_of(&self, frame: Frame) -> Option<VirtAddr> {
        let (first, folio) = self.folios.range(..=frame).next_back()?;
        Some(folio.at + PageCount(frame.0 - first.0).to_bytes())
    }

    /// Frames that were chosen did not leave.
    pub fn put_back(&mut self, first: Frame, pages: u64) {
        (first.0..first.0 + pages).for_each(|frame| self.pool.add(Block::single(Frame(frame))));
    }

    /// Frames have left, side by side in one folio. Where it was the last of a folio,
    /// its address space is given up.
    pub fn note_left(&mut self, first: Frame, pages: u64) {
        let Some((key, folio)) = self.folios.range_mut(..=first).next_back() else {
            return;
        };
        folio.left -= pages;
        if folio.left == 0 {
            let (key, at) = (*key, folio.at);
            self.folios.remove(&key);
            // SAFETY: address space of the stock, from which all pages have gone.
            let _ = unsafe { memory::unmap(AddrRange::new(at, Bytes(SUPERPAGE))) };
        }
    }

    /// Adds one folio.
    ///
    /// # Errors
    /// As `mmap`; `ENOMEM` where the kernel has no block of 2 MiB.
    pub fn refill(&mut self) -> Result<()> {
        if self.area.is_empty() {
            let start = memory::reserve_space(Bytes(AREA.0), 0)?;
            self.area = AddrRange::new(start, AREA);
        }
        let at = self.area.start;
        let range = AddrRange::new(at, Bytes(SUPERPAGE));
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // Not mapped anew: the kernel would count what was reserved here as if it were
        // data, and let the program's limit be exceeded.
        // SAFETY: address space that was reserved above, and that nobody else uses.
        unsafe {
            memory::protect(range, prot)?;
            memory::advise(range, Advice::HugePage)?;
            // A page that a child has as well could not be moved.
            memory::advise(range, Advice::DontFork)?;
            at.as_ptr().write_volatile(0);
        }
        self.area.start = range.end;
        let Some(first) = self.frame_of_folio(range) else {
            // SAFETY: as above.
            unsafe { memory::unmap(range)? };
            return Err(Errno(libc::ENOMEM));
        };
        // The kernel can have moved what was left of a folio in these frames.
        if self.folios.contains_key(&first) {
            self.drop_folio(first);
        }
        let folio = Folio {
            at,
            left: IN_FOLIO,
            divided: false,
        };
        self.folios.insert(first, folio);
        self.pool.add(Block {
            first,
            order: FOLIO_ORDER,
        });
        Ok(())
    }

    /// The first frame of what was just mapped, if it is one folio.
    fn frame_of_folio(&mut self, range: AddrRange) -> Option<Frame> {
        let fd = self.pagemap.as_fd();
        if !is_superpage(fd, range) {
            return None;
        }
        let shown = pagemap::frame(fd, range.start);
        self.shows_frames = shown.is_some();
        Some(shown.unwrap_or_else(|| {
            let first = Frame(self.next_unknown);
            self.next_unknown += IN_FOLIO;
            first
        }))
    }
}

/// Whether a superpage maps a range of its size.
fn is_superpage(pagemap: BorrowedFd<'_>, range: AddrRange) -> bool {
    let mut huge = false;
    let scanned = pagemap::scan(pagemap, range, pagemap::Filter::PRESENT, |run| {
        huge |= run.categories & pagemap::HUGE != 0 && run.range() == range;
    });
    scanned.is_ok() && huge
}
