//! Pages that exist get other frames (paper 002, section 3).
//!
//! A page is moved aside, copied into a page of the stock that has the wanted frame, and
//! that one is moved to where it was (`UFFDIO_MOVE`, both times). Between the two the
//! page is missing, so whoever touches it waits. The page that was set aside goes back
//! to the kernel, or is zeroed and joins the stock where its frame is demanded.
//!
//! While a page is missing for that reason, the lock of the ranges is held. So no hook
//! of this library lets the program unmap, move, empty or fork it meanwhile. What only
//! changes its protection can happen: then the contents are copied back.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;

use quire_core::frames::remap::Reason;
use quire_core::frames::strategy::{Block, Request, Wanted};
use quire_core::units::{AddrRange, BASE_PAGE, Bytes, Frame, PageCount, VirtAddr};
use quire_linux::memory::{self, Advice};
use quire_linux::pagemap::{self, Entry, Filter};
use quire_linux::raw::Errno;
use quire_linux::thread;
use quire_linux::uffd::{self, Mode};

use super::jobs::{Job, Known};
use super::moving::move_pages;
use super::server::Server;
use super::{RANGES, Which};

/// So many pages are looked at before touches are answered again.
const AT_ONCE: u64 = 32;

/// What became of a page.
enum Fate {
    Moved,
    Kept,
    Missing,
    Left(Reason),
}

impl Server {
    /// Goes on with a job, and says whether it has ended.
    pub fn advance(&mut self, job: &mut Job) -> bool {
        let end = job.range.end.min(job.next + PageCount(AT_ONCE).to_bytes());
        let range = AddrRange {
            start: job.next,
            end,
        };
        let (mut entries, mut zeros) = (Vec::new(), Vec::new());
        let pagemap = self.folios.pagemap();
        // Pages that were only read get their frames when they are written to.
        let _ = pagemap::scan(pagemap, range, Filter::ZEROS, |run| zeros.push(run.range()));
        let read = pagemap::frames_of(pagemap, range, |page, entry| entries.push((page, entry)));
        if read.is_err() {
            entries.clear();
        }
        for (page, entry) in entries {
            let fate = match zeros.iter().any(|zeros| zeros.contains(one(page))) {
                true => Fate::Missing,
                false => self.remap(page, entry, job),
            };
            job.shared.add(PageCount(1), |outcome| match fate {
                Fate::Moved => outcome.moved += PageCount(1),
                Fate::Kept => outcome.kept += PageCount(1),
                Fate::Missing => outcome.missing += PageCount(1),
                Fate::Left(reason) => outcome.leave(one(page), reason),
            });
        }
        job.next = end;
        let ended = end >= job.range.end || read.is_err();
        if ended {
            job.shared.end();
        }
        ended
    }

    /// Gives a page a frame that the strategy accepts.
    fn remap(&mut self, page: VirtAddr, entry: Entry, job: &mut Job) -> Fate {
        if !is_placed(page) {
            let managed = self.manager.manages(one(page));
            return Fate::Left(match managed {
                true => Reason::Superpages,
                false => Reason::Foreign,
            });
        }
        if entry.is_swapped() {
            return Fate::Left(Reason::Swapped);
        }
        if !entry.is_present() {
            return Fate::Missing;
        }
        let request = Request {
            page,
            thread: thread::process_id(),
        };
        let Some(strategy) = self.strategy(job.which) else {
            return Fate::Left(Reason::NoFrame);
        };
        let frame = entry.frame();
        let accepts = |frame: Frame| strategy.choose(Block::single(frame), &request) == Some(frame);
        if let Some(frame) = frame.filter(|frame| accepts(*frame)) {
            strategy.note(frame, &request);
            let known = job.known.as_mut();
            return match known.is_some_and(|known| known.ahead.remove(&page)) {
                true => Fate::Moved,
                false => Fate::Kept,
            };
        }
        let fate = self.exchange_for(page, &request, job);
        match fate {
            Ok(()) => Fate::Moved,
            Err(reason) if reason == Reason::Busy && !entry.is_exclusive() => {
                Fate::Left(Reason::Shared)
            }
            Err(reason) => Fate::Left(reason),
        }
    }

    /// Finds a frame that the strategy accepts and exchanges the page for it. Where that
    /// frees a frame which another page of the job demands, it is that one's turn, and
    /// so on: so few frames have to be kept.
    fn exchange_for(
        &mut self,
        page: VirtAddr,
        request: &Request,
        job: &mut Job,
    ) -> Result<(), Reason> {
        let frame = match self.chosen(job.which, request) {
            Some(frame) => frame,
            None => {
                self.make_way(request, job)?;
                self.chosen(job.which, request).ok_or(Reason::NoFrame)?
            }
        };
        let mut freed = self.exchange(page, frame, job)?;
        while let Some(frame) = freed {
            freed = self.give_on(frame, job);
        }
        Ok(())
    }

    /// Gives a frame that has just become free to the page that demands it, if that is
    /// there, and returns the frame that becomes free by that.
    fn give_on(&mut self, frame: Frame, job: &mut Job) -> Option<Frame> {
        let known = job.known.as_mut()?;
        let page = *known.demanded.get(&frame)?;
        pagemap::frame(self.folios.pagemap(), page)?;
        let request = Request {
            page,
            thread: thread::process_id(),
        };
        let chosen = self.chosen(job.which, &request)?;
        let freed = self.exchange(page, chosen, job).ok()?;
        if let Some(known) = &mut job.known {
            known.ahead.insert(page);
        }
        freed
    }

    /// A frame of the stock that the strategy accepts.
    fn chosen(&mut self, which: Which, request: &Request) -> Option<Frame> {
        let strategy = self.strategies.get_mut(which.0)?;
        let run = self.folios.allocate_accepted(strategy.as_mut(), request);
        run.map(|run| run.first)
    }

    /// Moves the page of the program that has the demanded frame to another one, so that
    /// the stock gets the demanded one.
    fn make_way(&mut self, request: &Request, job: &mut Job) -> Result<(), Reason> {
        let strategy = self.strategy(job.which).ok_or(Reason::NoFrame)?;
        let Wanted::Frame(frame) = strategy.wanted(request) else {
            return Err(Reason::NoFrame);
        };
        if job.known.is_none() {
            job.known = Some(self.look_up(job));
        }
        let known = job.known.as_ref().ok_or(Reason::NoFrame)?;
        let holder = *known.holders.get(&frame).ok_or(Reason::NoFrame)?;
        // It may have moved since.
        if pagemap::frame(self.folios.pagemap(), holder) != Some(frame) {
            return Err(Reason::NoFrame);
        }
        let other = self.folios.any_frame().ok_or(Reason::NoFrame)?;
        self.exchange(holder, other, job)?;
        if !job.range.contains(one(holder)) {
            let made_way = PageCount(1);
            job.shared
                .add(PageCount(0), |outcome| outcome.made_way += made_way);
        }
        Ok(())
    }

    /// What has to be known where particular frames are demanded.
    fn look_up(&mut self, job: &Job) -> Known {
        let pages = job.range.len().to_pages().0;
        let first = Request {
            page: job.range.start,
            thread: thread::process_id(),
        };
        let holders = self.holders();
        let strategy = self.strategy(job.which);
        let demanded = strategy.map(|strategy| {
            let wanted = (0..pages).map(|n| strategy.wanted(&first.further(n)));
            let demand = |(n, wanted)| match wanted {
                Wanted::Frame(frame) => Some((frame, first.further(n).page)),
                _ => None,
            };
            (0..pages).zip(wanted).filter_map(demand).collect()
        });
        Known {
            holders,
            demanded: demanded.unwrap_or_default(),
            ahead: BTreeSet::new(),
        }
    }

    /// Where the frames of all pages are that are placed.
    fn holders(&self) -> BTreeMap<Frame, VirtAddr> {
        let placed: Vec<AddrRange> = RANGES.lock().iter().map(|(range, _)| range).collect();
        let mut holders = BTreeMap::new();
        for range in placed {
            // What cannot be read is not found.
            let _ = pagemap::frames_of(self.folios.pagemap(), range, |page, entry| {
                if let Some(frame) = entry.frame() {
                    holders.insert(frame, page);
                }
            });
        }
        holders
    }

    /// Exchanges a page of the program for the page of a frame that was taken from the
    /// stock. Returns the page's own frame, which is in stock now, if a page of the job
    /// demands it.
    fn exchange(
        &mut self,
        page: VirtAddr,
        frame: Frame,
        job: &mut Job,
    ) -> Result<Option<Frame>, Reason> {
        let aside = self.folios.place_for_single();
        let places = aside.zip(self.folios.address_of(frame));
        let Some((aside, from)) = places else {
            aside.into_iter().for_each(|at| self.folios.drop_single(at));
            self.folios.put_back(frame, 1);
            return Err(Reason::NoFrame);
        };
        match self.exchange_places(page, from, aside) {
            Ok(()) => {
                self.folios.note_left(frame, 1);
                let known = job.known.as_ref();
                let is_demanded =
                    |frame| known.is_some_and(|known| known.demanded.contains_key(&frame));
                let freed = self.folios.adopt(aside, is_demanded);
                if let Some(known) = &mut job.known {
                    known.holders.insert(frame, page);
                }
                Ok(freed)
            }
            Err(reason) => {
                self.folios.drop_single(aside);
                self.folios.put_back(frame, 1);
                Err(reason)
            }
        }
    }

    /// Moves the page aside, and its copy, at `from`, to where it was. Where that is
    /// refused, the page is as it was, and what lies at `from` is zero again.
    fn exchange_places(
        &self,
        page: VirtAddr,
        from: VirtAddr,
        aside: VirtAddr,
    ) -> Result<(), Reason> {
        let uffd = self.uffd.as_fd();
        let ranges = RANGES.lock();
        let found = ranges.overlaps(one(page)).next();
        let (_, placed) = found.ok_or(Reason::Changed)?;
        let served = placed.which != Which::KERNEL;
        if served && placed.mode == Mode::Missing {
            return self.exchange_reported(page, from, aside);
        }
        // Nobody would wait while the page is missing, and the kernel lets none be moved
        // to where nobody waits.
        uffd::register(uffd, one(page), Mode::Missing).map_err(|_| Reason::Changed)?;
        let exchanged = self.exchange_reported(page, from, aside);
        // Where the mapping has gone, nothing is registered.
        let _ = match served {
            true => uffd::register(uffd, one(page), placed.mode),
            false => uffd::unregister(uffd, one(page)),
        };
        exchanged
    }

    /// The same, where touches of the page are reported as long as it is missing. The
    /// caller holds the lock of the ranges.
    fn exchange_reported(
        &self,
        page: VirtAddr,
        from: VirtAddr,
        aside: VirtAddr,
    ) -> Result<(), Reason> {
        let (uffd, pagemap) = (self.uffd.as_fd(), self.folios.pagemap());
        let mut moved = move_pages(uffd, pagemap, one(aside), page).error;
        if moved == Some(Errno(libc::EBUSY)) {
            // A forked process has the page as well, or had it. As at a write, this one
            // gets a page of its own. It is present, so nobody waits for this thread.
            // SAFETY: the contents do not change.
            let _ = unsafe { memory::advise(one(page), Advice::PopulateWrite) };
            moved = move_pages(uffd, pagemap, one(aside), page).error;
        }
        if let Some(error) = moved {
            return Err(reason(error));
        }
        let len = BASE_PAGE as usize;
        // SAFETY: both are pages of the stock, mapped, which nobody else uses: one has
        // just been moved there, the other was taken from the free ones.
        unsafe { from.as_ptr().copy_from_nonoverlapping(aside.as_ptr(), len) };
        let moved = move_pages(uffd, pagemap, one(page), from).error;
        let Some(error) = moved else {
            // Where nobody waits, there is nobody to wake.
            let _ = uffd::wake(uffd, one(page));
            return Ok(());
        };
        // The protection has changed, or the mapping has gone.
        let _ = uffd::copy_page(uffd, page, aside);
        let _ = uffd::wake(uffd, one(page));
        // SAFETY: as above; it did not leave.
        unsafe { from.as_ptr().write_bytes(0, len) };
        Err(match reason(error) {
            Reason::Busy => Reason::Changed,
            reason => reason,
        })
    }
}

pub(super) fn one(page: VirtAddr) -> AddrRange {
    AddrRange::new(page, Bytes(BASE_PAGE))
}

fn is_placed(page: VirtAddr) -> bool {
    RANGES.lock().overlaps(one(page)).next().is_some()
}

/// Why the kernel does not move a page.
fn reason(error: Errno) -> Reason {
    match error.0 {
        libc::EBUSY => Reason::Busy,
        libc::EINVAL => Reason::Protected,
        _ => Reason::Changed,
    }
}
