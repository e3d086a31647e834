//! Fork: both sides stay isolated, always, and the parent gets its superpages
//! back.
//!
//! Managed memory is mapped shared, so it is left out of forks
//! (`MADV_DONTFORK`), and a fork that slips by cannot share it silently.
//! Before a fork that is seen, every interval is mapped anew: private, from
//! the same object. From then on each side reads the object and keeps what it
//! writes in copies of its own, as after any fork. The child stays like that.
//!
//! The parent holds a *fork mark*, which the child and its descendants
//! inherit. When no process holds one any more, nobody but the parent looks at
//! the object, and the pager takes the parent's memory back, extent by
//! extent: writers are held back with `userfaultfd` write protection, changed
//! pages are copied into the object, and the shared mapping takes the place of
//! the private one. (Paper 000, section 3.7, has the child copy instead; from
//! user space it is the parent's copies that can be taken back.)

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use quire_core::popmap::Popmap;
use quire_core::stat::{Counter, Note, Privilege};
use quire_core::units::{AddrRange, BASE_PAGE, Bytes, Slot, VirtAddr};
use quire_linux::huge_file::{self, ForkMark};
use quire_linux::memory::{self, Advice};
use quire_linux::pagemap::{self, Filter};
use quire_linux::raw::{Errno, Result};
use quire_linux::thread;
use quire_linux::uffd::{self, Mode};

use crate::extent::{Work, by_slot, now_ms, pages_in_slot, pages_range};
use crate::manager::{HeapSpace, Manager, State};
use crate::table::{Backing, ExtentState, Interval};

/// The memory could not be prepared, so the fork must not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkRefused;

impl Manager {
    /// Makes managed memory fit for a fork by the calling thread. Until the
    /// matching [`Manager::after_fork_parent`], nothing new is managed. Asking
    /// again before that changes nothing.
    ///
    /// # Errors
    /// When a mapping cannot be made private; the fork must fail then, as if
    /// memory were short.
    pub fn before_fork(&'static self) -> std::result::Result<(), ForkRefused> {
        let me = thread::current_id();
        let mut state = self.state.lock();
        if state.forkers.contains(&me) {
            return Ok(());
        }
        state.forkers.push(me);
        let needed = state
            .table
            .intervals()
            .any(|i| i.backing == Backing::Shared);
        if !needed && !state.children {
            return Ok(());
        }
        match self.split_for_fork(&mut state) {
            Ok(()) => Ok(()),
            Err(_) => {
                state.forkers.retain(|id| *id != me);
                Err(ForkRefused)
            }
        }
    }

    fn split_for_fork(&self, state: &mut State) -> Result<()> {
        let handles = self.borrow()?;
        match ForkMark::raise(handles.mark.as_fd()) {
            Ok(mark) => state.marks.push((thread::current_id(), mark)),
            Err(_) => state.unmarked = true,
        }
        state.children = true;
        state.fork_count += 1;
        self.stats().add(Counter::Forks, 1);
        let parts: Vec<Interval> = state
            .table
            .intervals()
            .filter(|i| i.backing == Backing::Shared && !i.dont_fork)
            .copied()
            .collect();
        let mut work = Work {
            manager: self,
            handles: &handles,
            state,
        };
        parts.iter().try_for_each(|part| work.make_private(part))
    }

    /// The parent's side after a fork, or after one that failed.
    pub fn after_fork_parent(&'static self) {
        let me = thread::current_id();
        let mut state = self.state.lock();
        state.forkers.retain(|id| *id != me);
        while let Some(at) = state.marks.iter().position(|(id, _)| *id == me) {
            let (_, mark) = state.marks.swap_remove(at);
            mark.lower();
        }
        let wake = state.children;
        drop(state);
        if wake && let Ok(handles) = self.borrow() {
            thread::signal_event(&handles.event);
        }
    }

    /// The child's side after a fork: what it inherited stays as it is, and
    /// the rest begins anew. The thread must hold the lock by
    /// [`Manager::hold`], which this releases.
    pub fn after_fork_child(&'static self) {
        let renew = |state: &mut State| {
            for part in state.table.intervals().copied().collect::<Vec<_>>() {
                inherit(state, &part);
            }
            state.table.extents.clear();
            state.queue.clear();
            state.next_offset.0 = 0;
            state.pool_end.0 = 0;
            state.pool_busy = None;
            state.forkers.clear();
            state.marks.clear();
            state.children = false;
            state.unmarked = false;
            state.garbage.clear();
            if state.table.interval_at(state.heap.next).is_none() {
                state.heap = HeapSpace::default();
            }
            self.table_empty
                .store(state.table.is_empty(), Ordering::Release);
        };
        // SAFETY: this thread is the copy of the one that holds the lock.
        unsafe { self.state.with_held(renew) };
        self.reset_for_child();
        self.release_held();
    }
}

/// What an interval of the parent is in the child.
fn inherit(state: &mut State, part: &Interval) {
    match part.backing {
        _ if part.wipe_on_fork => {
            let flags = libc::MAP_FIXED | libc::MAP_NORESERVE;
            // SAFETY: the program asked for zeros here after a fork.
            let _ = unsafe {
                memory::map_anonymous(part.range.start, part.range.len(), part.prot, flags)
            };
            state.table.remove(part.range);
        }
        Backing::Private => state
            .table
            .update(part.range, |i| i.backing = Backing::Inherited),
        Backing::Inherited | Backing::Pool => {}
        Backing::Shared | Backing::Anonymous => {
            state.table.remove(part.range);
        }
    }
}

const CHANGED: Filter = Filter {
    all: 0,
    none: pagemap::FILE | pagemap::ZERO,
    any: pagemap::PRESENT | pagemap::SWAPPED,
    report: pagemap::PRESENT,
};

impl Work<'_> {
    /// Maps an interval anew for a fork: privately from the object, and
    /// anonymously where the object certainly holds nothing.
    fn make_private(&mut self, part: &Interval) -> Result<()> {
        let mut run: Option<(AddrRange, Backing)> = None;
        for (slot, piece) in by_slot(part.range) {
            let backing = self.fork_backing(slot, piece);
            match &mut run {
                Some((range, kind)) if *kind == backing => range.end = piece.end,
                _ => {
                    if let Some((range, kind)) = run.replace((piece, backing)) {
                        self.remap_for_fork(&part.clip(range), kind)?;
                    }
                }
            }
        }
        match run {
            Some((range, kind)) => self.remap_for_fork(&part.clip(range), kind),
            None => Ok(()),
        }
    }

    /// An empty extent is certain to hold nothing only where every touch of a
    /// missing page is held until the pager, which needs the lock, answers.
    fn fork_backing(&mut self, slot: Slot, piece: AddrRange) -> Backing {
        let Some(extent) = self.state.table.extents.get(&slot).copied() else {
            return Backing::Private;
        };
        let certain = self.manager.privilege() == Privilege::Full;
        match extent.state {
            ExtentState::Empty if certain && !extent.busy && piece == slot.range() => {
                Backing::Anonymous
            }
            ExtentState::Reserved => {
                if let Ok((map, _)) = self.population(slot)
                    && let Some(extent) = self.state.table.extents.get_mut(&slot)
                {
                    extent.popmap = map;
                }
                Backing::Private
            }
            _ => Backing::Private,
        }
    }

    fn remap_for_fork(&mut self, part: &Interval, backing: Backing) -> Result<()> {
        let (at, len) = (part.range.start, part.range.len());
        let fixed = libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the new mapping shows the same contents: the object's, or
        // zeros where the object holds nothing. No write can fall between,
        // because the kernel replaces the mapping at one stroke, and what was
        // written before is in the object.
        unsafe {
            match backing {
                Backing::Anonymous => memory::map_anonymous(at, len, part.prot, fixed)?,
                _ => memory::map_file(
                    at,
                    len,
                    part.prot,
                    libc::MAP_PRIVATE | fixed,
                    self.handles.object(),
                    part.offset,
                )?,
            };
        }
        if part.locked {
            let _ = memory::lock_on_fault(part.range);
        }
        self.state.table.update(part.range, |i| i.backing = backing);
        if let Ok(uffd) = self.handles.uffd() {
            let _ = uffd::wake(uffd, part.range);
        }
        Ok(())
    }

    /// Takes one piece of private memory, which lies in one slot, back into
    /// the object. Only when no other process maps the object.
    pub fn take_back(&mut self, part: &Interval) -> Result<()> {
        if part.prot & libc::PROT_READ == 0 {
            return Err(Errno(libc::EACCES));
        }
        let uffd = self.handles.uffd()?;
        uffd::register(uffd, part.range, Mode::Protect)?;
        let taken = uffd::write_protect(uffd, part.range, true).and_then(|()| self.copy_back(part));
        match taken {
            Ok(present) => {
                let _ = uffd::wake(uffd, part.range);
                self.resume(part, &present);
                Ok(())
            }
            Err(errno) => {
                let _ = uffd::unregister(uffd, part.range);
                Err(errno)
            }
        }
    }

    /// Copies the changed pages of a write-protected piece into the object and
    /// maps the object in its place. Returns which pages were mapped.
    fn copy_back(&mut self, part: &Interval) -> Result<Popmap> {
        let slot = part.range.start.slot();
        let object = self.handles.object();
        let (present, _) = self.population(slot)?;
        if part.backing == Backing::Anonymous {
            huge_file::punch(object, part.offset, part.range.len())?;
        }
        let mut changed = Popmap::new();
        pagemap::scan(self.handles.pagemap(), part.range, CHANGED, |run| {
            changed.set(pages_in_slot(slot, run.range()));
        })?;
        for run in changed.runs() {
            let pages = pages_range(slot, &run);
            huge_file::copy_in(object, pages, part.offset_of(pages.start))?;
        }
        let (at, len) = (part.range.start, part.range.len());
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the object now holds what the private mapping showed, and
        // nobody has written since, because writers are held back.
        unsafe { memory::map_file(at, len, part.prot, flags, object, part.offset)? };
        // SAFETY: leaving a range out of forks changes nothing here.
        let hidden = unsafe { memory::advise(part.range, Advice::DontFork) };
        debug_assert!(hidden.is_ok());
        self.state
            .table
            .update(part.range, |i| i.backing = Backing::Shared);
        Ok(match part.backing {
            Backing::Anonymous => changed,
            _ => present,
        })
    }

    /// Puts a piece that was taken back into the state that it had.
    fn resume(&mut self, part: &Interval, present: &Popmap) {
        if part.locked {
            let _ = memory::lock_on_fault(part.range);
        }
        let slot = part.range.start.slot();
        let state = self.state.table.extents.get(&slot).map(|e| e.state);
        let uniform = self.state.table.slot_is_uniform(slot);
        let Some(state) = state.filter(|_| uniform) else {
            // SAFETY: advice about page sizes does not change contents.
            let _ = unsafe { memory::advise(part.range, Advice::NoHugePage) };
            if let Some(extent) = self.state.table.extents.get_mut(&slot) {
                extent.state = ExtentState::Base;
                self.state.queue.remove(slot);
            }
            return;
        };
        match state {
            ExtentState::Promoted | ExtentState::Whole => self.resume_superpage(slot),
            ExtentState::Reserved | ExtentState::Empty if !present.is_empty() => {
                self.resume_reservation(slot, present);
            }
            ExtentState::Empty | ExtentState::Reserved => {
                if self.arm(slot.range()).is_err() {
                    self.make_base(slot..slot.next());
                }
            }
            ExtentState::Base => self.make_base(slot..slot.next()),
        }
    }

    fn resume_superpage(&mut self, slot: Slot) {
        let first = AddrRange::new(slot.start(), Bytes(BASE_PAGE));
        let _ = self.arm_whole(slot.range());
        // SAFETY: populating maps pages that the object holds.
        let _ = unsafe { memory::advise(first, Advice::PopulateRead) };
        let huge = self.population(slot).is_ok_and(|(_, huge)| huge);
        let Some(extent) = self.state.table.extents.get_mut(&slot) else {
            return;
        };
        extent.popmap = if huge { Popmap::full() } else { Popmap::new() };
        extent.changed_ms = now_ms();
        if huge {
            self.manager.stats().add(Counter::Returned, 1);
        }
    }

    fn resume_reservation(&mut self, slot: Slot, present: &Popmap) {
        if self.arm(slot.range()).is_err() {
            self.make_base(slot..slot.next());
            return;
        }
        let Some(extent) = self.state.table.extents.get_mut(&slot) else {
            return;
        };
        extent.state = ExtentState::Reserved;
        extent.popmap = extent.popmap.union(present);
        extent.changed_ms = now_ms();
        let map = extent.popmap;
        self.state.queue.touch(slot);
        for run in map.runs() {
            // SAFETY: populating maps pages that the object holds.
            let _ = unsafe { memory::advise(pages_range(slot, &run), Advice::PopulateRead) };
        }
        if map.is_full() {
            self.promote(&(slot..slot.next()));
        }
    }

    /// Punches out what was unmapped while children could still see it.
    pub fn collect_garbage(&mut self) {
        for (offset, len) in std::mem::take(&mut self.state.garbage) {
            let _ = huge_file::punch(self.handles.object(), offset, len);
        }
    }

    /// The first piece of private memory at or after `from`, cut at the end of
    /// its slot.
    pub fn next_private(&self, from: VirtAddr) -> Option<Interval> {
        let rest = AddrRange {
            start: from,
            end: VirtAddr(u64::MAX),
        };
        let part = self
            .state
            .table
            .overlaps(rest)
            .find(|i| matches!(i.backing, Backing::Private | Backing::Anonymous))?;
        Some(part.clip(part.range.start.slot().range()))
    }

    /// Says that some memory stays in base pages after a fork.
    pub fn note_not_returned(&self) {
        self.manager.stats().note(Note::ForkNotReturned);
    }
}
