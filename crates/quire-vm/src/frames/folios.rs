//! The stock of zeroed pages whose frames are known.
//!
//! It is filled with folios of 2 MiB: within one, frames follow each other, and the
//! low nine bits of a frame's number are its place in the folio. So colours whose bits
//! lie below bit 21 of an address are known to everybody. Where the kernel shows frame
//! numbers, those are the numbers used here, and any colour is known; else folios are
//! numbered upward from where no memory is. Pages that the program had come back as
//! single ones.
//!
//! A strategy that wants few of the colours leaves the frames of the others. So the
//! stock has a bound: what it holds beyond one folio is a twentieth of what the program
//! populated, and no more than the user's limit. Where the bound is reached, the oldest
//! frames go back to the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use quire_core::frames::buddy::{FramePool, Run};
use quire_core::frames::colour::Colours;
use quire_core::frames::strategy::{Block, Request, Strategy, Wanted};
use quire_core::units::{
    AddrRange, BASE_PAGE, Bytes, Frame, PAGES_PER_SUPERPAGE, PageCount, SUPERPAGE, VirtAddr,
};
use quire_linux::memory::{self, Advice};
use quire_linux::raw::{Errno, Result};
use quire_linux::sysinfo::process;
use quire_linux::uffd::{self, Mode};
use quire_linux::{pagemap, thread};

use super::arena::Arena;
use super::moving::move_pages;

/// Frames of a folio, as a power of two.
const FOLIO_ORDER: u32 = PAGES_PER_SUPERPAGE.trailing_zeros();
/// Frames of a folio.
const IN_FOLIO: u64 = PAGES_PER_SUPERPAGE as u64;
/// Frames whose numbers are hidden are counted from here.
const UNKNOWN: u64 = 1 << 40;
/// The stock holds this part of what the program populated.
const PART: u64 = 20;

/// The stock.
pub(super) struct Folios {
    pool: FramePool,
    /// Where frames lie, by the first frames of folios.
    folios: BTreeMap<Frame, Folio>,
    /// Where the frames of single pages lie.
    singles: BTreeMap<Frame, VirtAddr>,
    arena: Arena,
    /// What the stock may hold, by the user's limit.
    limit: PageCount,
    /// What it may hold, by what the program populated when that was last looked at.
    share: PageCount,
    /// Folios that came.
    came: u64,
    /// The number of the next folio, where the kernel hides frame numbers.
    next_unknown: u64,
    shows_frames: bool,
    pagemap: OwnedFd,
    /// For moves within the stock: where a page is put aside.
    uffd: OwnedFd,
    aside: VirtAddr,
}

/// A folio of the stock, or what is left of it.
#[derive(Clone, Copy, Debug)]
struct Folio {
    at: VirtAddr,
    /// Frames that have not left.
    left: u64,
    /// It consists of base pages by now.
    divided: bool,
    /// How many came before it.
    number: u64,
}

impl Folio {
    fn range(&self) -> AddrRange {
        AddrRange::new(self.at, Bytes(SUPERPAGE))
    }
}

impl Folios {
    /// An empty stock, which holds no more than `limit`.
    ///
    /// # Errors
    /// When the page table cannot be read, or for want of descriptors or memory.
    pub fn new(colours: &Colours, uffd: BorrowedFd<'_>, limit: Bytes) -> Result<Folios> {
        let uffd = uffd.try_clone_to_owned().map_err(|_| Errno(libc::EMFILE))?;
        let mut arena = Arena::new(&uffd)?;
        let aside = arena.take_page().ok_or(Errno(libc::ENOSPC))?;
        Ok(Folios {
            uffd,
            aside,
            arena,
            limit: limit.to_pages(),
            share: PageCount(0),
            came: 0,
            pool: FramePool::new(colours),
            folios: BTreeMap::new(),
            singles: BTreeMap::new(),
            next_unknown: UNKNOWN,
            shows_frames: false,
            pagemap: pagemap::open()?,
        })
    }

    /// Whether the numbers are those of real frames, as far as is known.
    pub fn shows_frames(&self) -> bool {
        self.shows_frames
    }

    /// The page table of this process.
    pub fn pagemap(&self) -> BorrowedFd<'_> {
        self.pagemap.as_fd()
    }

    /// Pages in stock.
    pub fn pages(&self) -> PageCount {
        PageCount(self.pool.free_frames())
    }

    /// Chooses frames for pages from a touched one on, which lie side by side in the
    /// stock.
    pub fn allocate(
        &mut self,
        strategy: &mut dyn Strategy,
        request: &Request,
        pages: u64,
    ) -> Option<Run> {
        let chosen = self.choose(strategy, request, pages)?;
        let run = self.cut(chosen);
        let ready = self.make_ready(run);
        let count = ready.as_ref().map_or(0, |run| run.count);
        if chosen.accepted && count < chosen.count {
            let rest = Frame(chosen.first.0 + count);
            strategy.take_back(rest, &request.further(count));
        }
        ready
    }

    /// Chooses a frame for one page, if the strategy accepts one that is in stock or
    /// comes.
    pub fn allocate_accepted(
        &mut self,
        strategy: &mut dyn Strategy,
        request: &Request,
    ) -> Option<Run> {
        let run = self.choose_accepted(strategy, request, 1)?;
        let ready = self.make_ready(run);
        if ready.is_none() {
            strategy.take_back(run.first, request);
        }
        ready
    }

    /// Takes any frame for one page, but none of a single page, which is kept because
    /// it is demanded.
    pub fn any_frame(&mut self) -> Option<Frame> {
        let request = Request {
            page: VirtAddr(0),
            thread: 0,
        };
        let mut others = Others(self.singles.keys().copied().collect());
        Some(self.allocate_accepted(&mut others, &request)?.first)
    }

    /// A run of frames, of folios that come in where there is none. Where none may come,
    /// what is left has to do.
    fn choose(
        &mut self,
        strategy: &mut dyn Strategy,
        request: &Request,
        pages: u64,
    ) -> Option<Run> {
        if self.pool.free_frames() < pages && self.has_room() {
            // Where the kernel has none, there are shorter runs.
            let _ = self.refill();
        }
        let accepted = self.choose_accepted(strategy, request, pages);
        accepted.or_else(|| self.pool.allocate_run(strategy, request, pages))
    }

    /// The same, if the strategy accepts the first frame. Where there is no room for
    /// folios, the oldest one makes way, once.
    fn choose_accepted(
        &mut self,
        strategy: &mut dyn Strategy,
        request: &Request,
        pages: u64,
    ) -> Option<Run> {
        let mut renewed = false;
        loop {
            let run = self.pool.allocate_accepted(strategy, request, pages);
            if run.is_some() {
                return run;
            }
            let exact = matches!(strategy.wanted(request), Wanted::Frame(_));
            if !renewed && !exact {
                renewed = true;
                self.make_room();
            }
            if !self.has_room() || self.refill().is_err() {
                return None;
            }
        }
    }

    /// The part of a run that lies side by side; the rest goes back.
    fn cut(&mut self, run: Run) -> Run {
        let after = Frame(run.first.0 + 1)..Frame(run.first.0 + run.count);
        let count = if self.singles.contains_key(&run.first) {
            1
        } else {
            let next = self.singles.range(after).next();
            let before_single = next.map_or(run.count, |(frame, _)| frame.0 - run.first.0);
            before_single.min(IN_FOLIO - run.first.0 % IN_FOLIO)
        };
        let count = count.min(run.count);
        self.put_back(Frame(run.first.0 + count), run.count - count);
        Run { count, ..run }
    }

    /// Sees to it that the pages of a run can leave one by one.
    fn make_ready(&mut self, run: Run) -> Option<Run> {
        let folio = self.folio_of(run.first);
        let ready = match folio {
            _ if self.singles.contains_key(&run.first) => true,
            Some((_, folio)) if folio.divided => true,
            Some((first, folio)) => self.is_whole(&folio) && self.divide(first).is_ok(),
            None => false,
        };
        if ready {
            return Some(run);
        }
        self.put_back(run.first, run.count);
        if let Some((first, _)) = folio {
            self.drop_folio(first);
        }
        None
    }

    /// The folio that a frame belongs to, or belonged to before it left.
    fn folio_of(&self, frame: Frame) -> Option<(Frame, Folio)> {
        let first = Frame(frame.0 / IN_FOLIO * IN_FOLIO);
        self.folios.get(&first).map(|folio| (first, *folio))
    }

    /// Whether a folio is one still: the kernel divides folios when memory is short.
    fn is_whole(&self, folio: &Folio) -> bool {
        is_superpage(self.pagemap.as_fd(), folio.range())
    }

    /// Divides a folio into base pages.
    ///
    /// The kernel does that when the first page is moved, but it maps its page of zeros
    /// in place of each page that holds nothing else, and the frames would be lost. So
    /// each holds something while one is moved aside and back.
    ///
    /// # Errors
    /// As the calls.
    fn divide(&mut self, first: Frame) -> Result<()> {
        let folio = self.folios.get_mut(&first).ok_or(Errno(libc::ENOENT))?;
        let whole = folio.range();
        let page = AddrRange::new(folio.at, Bytes(BASE_PAGE));
        let mark = |value: u64| {
            for page in (0..IN_FOLIO).map(|n| whole.start + PageCount(n).to_bytes()) {
                // SAFETY: a page of the stock, which is mapped and which nobody else
                // uses: none of the folio has left.
                unsafe { page.as_ptr().cast::<u64>().write_volatile(value) };
            }
        };
        mark(1);
        // While the first page is registered it is not touched here: nobody could
        // answer. So it must not stay so.
        let uffd = self.uffd.as_fd();
        uffd::register(uffd, page, Mode::Missing)?;
        let aside = AddrRange::new(self.aside, Bytes(BASE_PAGE));
        let mut moved = self.arena.empty(aside);
        for (to, from) in [(aside, page.start), (page, aside.start)] {
            let pagemap = self.pagemap.as_fd();
            moved = moved.and_then(|()| {
                move_pages(uffd, pagemap, to, from)
                    .error
                    .map_or(Ok(()), Err)
            });
        }
        // One mapping again, from which pages can leave side by side, and of which the
        // kernel makes no superpage again. Where the folio was not divided, its place is
        // used for another one.
        uffd::unregister(uffd, page)?;
        moved?;
        mark(0);
        folio.divided = true;
        // SAFETY: the advice changes no contents.
        unsafe { memory::advise(whole, Advice::NoHugePage) }
    }

    /// Where the page of a frame lies.
    pub fn address_of(&self, frame: Frame) -> Option<VirtAddr> {
        if let Some(at) = self.singles.get(&frame) {
            return Some(*at);
        }
        let (first, folio) = self.folio_of(frame)?;
        Some(folio.at + PageCount(frame.0 - first.0).to_bytes())
    }

    /// Frames that were chosen did not leave.
    pub fn put_back(&mut self, first: Frame, pages: u64) {
        (first.0..first.0 + pages).for_each(|frame| self.pool.add(Block::single(Frame(frame))));
    }

    /// Frames have left, side by side. Where it was the last of a folio, its address
    /// space is free.
    pub fn note_left(&mut self, first: Frame, pages: u64) {
        if let Some(at) = self.singles.remove(&first) {
            self.arena.put_back_page(at);
            return;
        }
        let first = Frame(first.0 / IN_FOLIO * IN_FOLIO);
        let Some(folio) = self.folios.get_mut(&first) else {
            return;
        };
        folio.left -= pages;
        if folio.left == 0 {
            let range = folio.range();
            self.folios.remove(&first);
            self.arena.put_back_folio(range);
        }
    }

    /// A place where a page of the program can be moved to. Where all are taken, the
    /// first single page makes way.
    pub fn place_for_single(&mut self) -> Option<VirtAddr> {
        let place = self.arena.take_page();
        place.or_else(|| {
            let (frame, _) = self.singles.first_key_value()?;
            self.release(*frame);
            self.arena.take_page()
        })
    }

    /// Takes a page in that the program had, from a place for one, zeroed, if its frame
    /// is `demanded`, and returns that frame; or gives the page to the kernel.
    pub fn adopt(&mut self, at: VirtAddr, demanded: impl Fn(Frame) -> bool) -> Option<Frame> {
        let frame = pagemap::frame(self.pagemap.as_fd(), at);
        let wanted = |frame: &Frame| demanded(*frame) && !self.singles.contains_key(frame);
        let Some(frame) = frame.filter(wanted) else {
            self.arena.put_back_page(at);
            return None;
        };
        // SAFETY: a page of the stock, which is mapped and which nobody else uses.
        unsafe { at.as_ptr().write_bytes(0, BASE_PAGE as usize) };
        self.singles.insert(frame, at);
        self.pool.add(Block::single(frame));
        Some(frame)
    }

    /// A place for a single page is free again.
    pub fn drop_single(&mut self, at: VirtAddr) {
        self.arena.put_back_page(at);
    }

    /// Adds one folio.
    ///
    /// # Errors
    /// As `mprotect`; `ENOMEM` where the kernel has no block of 2 MiB.
    pub fn refill(&mut self) -> Result<()> {
        let range = self.arena.take_folio()?;
        // SAFETY: address space of the stock, which nobody else uses.
        unsafe { range.start.as_ptr().write_volatile(0) };
        let Some(first) = self.frame_of_folio(range) else {
            self.arena.put_back_folio(range);
            return Err(Errno(libc::ENOMEM));
        };
        // The kernel can have moved what was left in these frames.
        self.drop_folio(first);
        let end = Frame(first.0 + IN_FOLIO);
        let singles: Vec<Frame> = self.singles.range(first..end).map(|(f, _)| *f).collect();
        singles.into_iter().for_each(|frame| self.release(frame));
        let folio = Folio {
            at: range.start,
            left: IN_FOLIO,
            divided: false,
            number: self.came,
        };
        self.came += 1;
        self.folios.insert(first, folio);
        self.pool.add(Block {
            first,
            order: FOLIO_ORDER,
        });
        self.look_at_program();
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

    /// What the stock may hold beyond a folio.
    fn look_at_program(&mut self) {
        let resident = process::resident(thread::process_id()).unwrap_or_default();
        let populated = resident.to_pages().0.saturating_sub(self.pages().0);
        self.share = PageCount(populated / PART);
    }

    /// Whether another folio may come. Single pages wait for a page that demands them.
    pub fn has_room(&self) -> bool {
        let bound = (self.share.0 + IN_FOLIO).min(self.limit.0.max(IN_FOLIO));
        let in_folios = self.pages().0.saturating_sub(self.singles.len() as u64);
        in_folios + IN_FOLIO <= bound
    }

    /// Gives back what is more than a program at rest should leave here.
    pub fn settle(&mut self) {
        self.look_at_program();
        self.shrink(self.share.min(self.limit));
    }

    /// Gives back the oldest frames until no more than `pages` are left.
    pub fn shrink(&mut self, pages: PageCount) {
        while self.pages() > pages {
            let excess = self.pages().0 - pages.0;
            if let Some((frame, _)) = self.singles.first_key_value() {
                self.release(*frame);
                continue;
            }
            let Some(first) = self.oldest() else { return };
            let divided = self.folios.get(&first).is_some_and(|f| f.divided);
            if excess >= IN_FOLIO || (!divided && self.divide(first).is_err()) {
                self.drop_folio(first);
                continue;
            }
            let free = (first.0..first.0 + IN_FOLIO).filter(|f| self.pool.has(Frame(*f)));
            let some: Vec<u64> = free.take(excess as usize).collect();
            if some.is_empty() {
                return;
            }
            some.into_iter()
                .for_each(|frame| self.release(Frame(frame)));
        }
    }

    /// Gives up the oldest folios until there is room for another.
    fn make_room(&mut self) {
        while !self.has_room()
            && let Some(first) = self.oldest()
        {
            self.drop_folio(first);
        }
    }

    fn oldest(&self) -> Option<Frame> {
        let oldest = self.folios.iter().min_by_key(|(_, folio)| folio.number);
        oldest.map(|(first, _)| *first)
    }

    /// Gives up what is left of a folio.
    fn drop_folio(&mut self, first: Frame) {
        let Some(folio) = self.folios.remove(&first) else {
            return;
        };
        let frames = (first.0..first.0 + IN_FOLIO).map(Frame);
        for frame in frames.filter(|frame| !self.singles.contains_key(frame)) {
            self.pool.take(frame);
        }
        self.arena.put_back_folio(folio.range());
    }

    /// Gives a free frame of a divided folio, or of a single page, back to the kernel.
    fn release(&mut self, frame: Frame) {
        self.pool.take(frame);
        if !self.singles.contains_key(&frame)
            && let Some(at) = self.address_of(frame)
        {
            // SAFETY: a page of the stock, which nobody else uses.
            let _ = unsafe {
                memory::advise(AddrRange::new(at, Bytes(BASE_PAGE)), Advice::DontNeedLocked)
            };
        }
        self.note_left(frame, 1);
    }
}

/// Chooses any frame but these.
struct Others(BTreeSet<Frame>);

impl Strategy for Others {
    fn choose(&self, block: Block, _: &Request) -> Option<Frame> {
        let mut frames = (block.first.0..block.first.0 + block.frames()).map(Frame);
        frames.find(|frame| !self.0.contains(frame))
    }

    fn note(&mut self, _: Frame, _: &Request) {}

    fn sequence(&self, _: &Request) -> Option<u32> {
        None
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
