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
use quire_linux::huge_file::{self, Effort, ForkMark, Window};
use quire_linux::memory::{self, Advice};
use quire_linux::pagemap::{self, Filter};
use quire_linux::raw::{Errno, Result};
use quire_linux::uffd::{self, Mode};
use quire_linux::{futex, thread};

use crate::advice::{copy_advice, keep_out_of_dumps};
use crate::extent::{Work, by_slot, now_ms, pages_in_slot, pages_range};
use crate::hands;
use crate::manager::{HeapSpace, Manager, State};
use crate::pool::leave_pool;
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
        // What earlier forks made private is the object's still where it could not be taken back,
        // as for an ordinary user: the new child reads from it, too, so this fork needs its mark.
        let needed = state
            .table
            .intervals()
            .any(|i| matches!(i.backing, Backing::Shared | Backing::Private));
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
        let me = thread::current_id();
        let parts: Vec<Interval> = state
            .table
            .intervals()
            .filter(|i| i.backing == Backing::Shared && !i.dont_fork)
            .copied()
            .collect();
        self.with_handles(|handles| {
            match ForkMark::raise(handles.mark.as_fd()) {
                Ok(mark) => state.marks.push((me, mark)),
                Err(_) => state.unmarked = true,
            }
            state.children = true;
            state.fork_count += 1;
            self.stats().add(Counter::Forks, 1);
            let mut work = Work::new(self, handles, state);
            parts.iter().try_for_each(|part| work.make_private(part))?;
            work.wake_stale_waits();
            Ok(())
        })
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
        if wake {
            hands::wake_pager();
        }
    }

    /// The child's side after a fork: what it inherited stays as it is, and
    /// the rest begins anew. The thread must hold the lock by
    /// [`Manager::hold`], which this releases.
    pub fn after_fork_child(&'static self) {
        let renew = |state: &mut State| {
            let copy = state.pool_copy.take();
            for part in state.table.intervals().copied().collect::<Vec<_>>() {
                inherit(state, &part);
            }
            drop(copy);
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
            state.spare = None;
            state.locks_future = false;
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
        _ if part.dont_fork => {
            state.table.remove(part.range);
        }
        Backing::Left => {}
        _ if part.wipe_on_fork => {
            let flags = libc::MAP_FIXED | libc::MAP_NORESERVE;
            // SAFETY: the program asked for zeros here after a fork.
            let _ = unsafe {
                memory::map_anonymous(part.range.start, part.range.len(), part.prot, flags)
            };
            copy_advice(part.range, part);
            state.table.remove(part.range);
        }
        Backing::Private => state
            .table
            .update(part.range, |i| i.backing = Backing::Inherited),
        // Where there is no memory for a copy, the child goes on with the pool.
        Backing::Pool(_) => {
            let _ = leave_pool(state, part);
        }
        Backing::Inherited => {}
        Backing::Anonymous | Backing::Plain => state
            .table
            .update(part.range, |i| i.backing = Backing::Left),
        Backing::Shared => {
            state.table.remove(part.range);
        }
    }
}

/// Pages that are copies of the object's, also those in swap. This must be
/// asked before writers are held back: the marks that do so look like swap.
const CHANGED: Filter = Filter {
    all: 0,
    none: pagemap::FILE | pagemap::ZERO,
    any: pagemap::PRESENT | pagemap::SWAPPED,
    report: pagemap::PRESENT,
};

/// Pages that are mapped, and of which kind they are.
const MAPPED: Filter = Filter {
    report: pagemap::FILE | pagemap::ZERO,
    ..Filter::PRESENT
};

/// A thread that waits for a futex in a copy waits by a key that goes with the
/// copy, so the copy must stay until it has been woken.
fn no_stale_waits(part: &Interval, copies: &Popmap) -> Result<()> {
    if copies.is_empty() {
        return Ok(());
    }
    let waits = thread::shared_futex_waits().unwrap_or_default();
    let here = |word: &VirtAddr| part.range.start <= *word && *word < part.range.end;
    if waits.iter().any(here) {
        Err(Errno(libc::EBUSY))
    } else {
        Ok(())
    }
}

impl Work<'_> {
    /// Maps an interval anew for a fork: privately from the object, and
    /// anonymously where the object certainly holds nothing.
    fn make_private(&mut self, part: &Interval) -> Result<()> {
        let mut runs: Vec<(AddrRange, Backing)> = Vec::new();
        for (slot, piece) in by_slot(part.range) {
            let backing = self.fork_backing(slot, piece);
            match runs.last_mut() {
                Some((range, kind)) if *kind == backing => range.end = piece.end,
                _ => runs.push((piece, backing)),
            }
        }
        let pieces = runs.len() as u64;
        if pieces > 1 && !memory::has_room_for_mappings(2 * pieces) {
            return self.remap_private(part, Backing::Private);
        }
        runs.into_iter()
            .try_for_each(|(range, kind)| self.remap_private(&part.clip(range), kind))
    }

    /// An empty extent is certain to hold nothing only where every touch of a
    /// missing page is held until the pager, which needs the lock, answers.
    fn fork_backing(&mut self, slot: Slot, piece: AddrRange) -> Backing {
        let Some(extent) = self.state.table.extents.get(slot).copied() else {
            return Backing::Private;
        };
        let certain = self.manager.privilege() == Privilege::Full && !extent.busy;
        match extent.state {
            ExtentState::Empty if certain && piece == slot.range() && self.is_hole(slot) => {
                Backing::Anonymous
            }
            ExtentState::Empty | ExtentState::Reserved | ExtentState::Small => {
                if let Ok((map, _)) = self.population(slot)
                    && let Some(extent) = self.state.table.extents.get_mut(slot)
                {
                    // Other pieces of the slot may be private by now.
                    extent.popmap.clear(pages_in_slot(slot, piece));
                    extent.popmap = extent.popmap.union(&map);
                }
                Backing::Private
            }
            _ => Backing::Private,
        }
    }

    /// Maps private memory over an interval: the object, or anonymous memory
    /// where the object holds nothing.
    pub fn remap_private(&mut self, part: &Interval, backing: Backing) -> Result<()> {
        let (at, len) = (part.range.start, part.range.len());
        let fixed = libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the new mapping shows the same contents: the object's, or
        // zeros where the object holds nothing. No write can fall between,
        // because the kernel replaces the mapping at one stroke, and what was
        // written before is in the object.
        unsafe {
            match backing {
                Backing::Anonymous | Backing::Plain => {
                    memory::map_anonymous(at, len, part.prot, fixed)?
                }
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
        keep_out_of_dumps(part.range, part);
        if part.locked {
            let _ = memory::lock_on_fault(part.range);
        }
        self.state.table.update(part.range, |i| i.backing = backing);
        if let Ok(uffd) = self.handles.uffd() {
            let _ = uffd::wake(uffd, part.range);
        }
        Ok(())
    }

    /// A thread that waits for a futex with a key for shared memory waits for
    /// the object's page, and would not see who wakes the copy. It is woken by
    /// the object's page, looks again, and waits by the new key if it must.
    pub fn wake_stale_waits(&self) {
        let Ok(waits) = thread::shared_futex_waits() else {
            return;
        };
        for word in waits {
            let part = self.state.table.interval_at(word);
            let Some(part) = part.filter(|i| i.backing == Backing::Private) else {
                continue;
            };
            let page = part.offset_of(word.page_floor());
            let size = Bytes(BASE_PAGE);
            let (prot, object) = (libc::PROT_READ, self.handles.object());
            let flags = libc::MAP_SHARED;
            // SAFETY: a new mapping at an address that the kernel chooses, and
            // which nobody else knows.
            unsafe {
                let Ok(at) = memory::map_file(VirtAddr(0), size, prot, flags, object, page) else {
                    continue;
                };
                futex::wake_shared(at + (word - word.page_floor()));
                let _ = memory::unmap(AddrRange::new(at, size));
            }
        }
    }

    /// Takes one piece of private memory, which lies in one slot, back into
    /// the object. Only when no other process maps the object. `room` says whether
    /// there is a block, and leave, to reserve an extent that held nothing before.
    pub fn take_back(&mut self, part: &Interval, window: &mut Window, room: bool) -> Result<()> {
        if part.prot & libc::PROT_READ == 0 {
            return Err(Errno(libc::EACCES));
        }
        let uffd = self.handles.uffd()?;
        let (mut changed, mut present) = (Popmap::new(), Popmap::new());
        let slot = part.range.start.slot();
        pagemap::scan(self.handles.pagemap(), part.range, CHANGED, |run| {
            changed.set(pages_in_slot(slot, run.range()));
        })?;
        uffd::register(uffd, part.range, Mode::Protect)?;
        let taken = uffd::write_protect(uffd, part.range, true)
            .and_then(|()| {
                pagemap::scan(self.handles.pagemap(), part.range, MAPPED, |run| {
                    let pages = pages_in_slot(slot, run.range());
                    present.set(pages.clone());
                    if run.categories == 0 {
                        changed.set(pages);
                    }
                })
            })
            .and_then(|()| no_stale_waits(part, &changed))
            .and_then(|()| self.copy_back(part, &changed, &present, window, room));
        match taken {
            Ok(present) => {
                let _ = uffd::wake(uffd, part.range);
                self.resume(part, &present);
                Ok(())
            }
            Err(errno) => {
                // Ending the registration does not wake writers that wait.
                let _ = uffd::unregister(uffd, part.range);
                let _ = uffd::wake(uffd, part.range);
                Err(errno)
            }
        }
    }

    /// Copies the changed pages of a write-protected piece into the object and
    /// maps the object in its place. Returns which pages are in use.
    fn copy_back(
        &mut self,
        part: &Interval,
        changed: &Popmap,
        present: &Popmap,
        window: &mut Window,
        room: bool,
    ) -> Result<Popmap> {
        let slot = part.range.start.slot();
        let object = self.handles.object();
        if part.backing == Backing::Anonymous {
            huge_file::punch(object, part.offset, part.range.len())?;
            let reserves = room && !changed.is_empty() && part.range == slot.range();
            let pagemap = self.handles.pagemap();
            let folio = reserves && window.reserve(object, pagemap, part.offset, Effort::Free)?;
            if let Some(extent) = self.state.table.extents.get_mut(slot) {
                extent.popmap = Popmap::new();
                extent.folio = folio;
            }
        }
        let pages = changed.runs().map(|run| {
            let pages = pages_range(slot, &run);
            (pages, part.offset_of(pages.start))
        });
        if !changed.is_empty() {
            // SAFETY: the piece is readable, and writers are held back; the
            // object's pages under private copies are seen by nobody else.
            unsafe { window.copy_in(object, part.offset, pages)? };
        }
        // SAFETY: the object now holds what the private mapping showed, and
        // nobody has written since, because writers are held back.
        unsafe { memory::replace_shared(part.range, part.prot, object, part.offset, &[])? };
        keep_out_of_dumps(part.range, part);
        self.state
            .table
            .update(part.range, |i| i.backing = Backing::Shared);
        Ok(match part.backing {
            Backing::Anonymous => *changed,
            _ => present.union(changed),
        })
    }

    /// Puts a piece that was taken back into the state that it had.
    fn resume(&mut self, part: &Interval, present: &Popmap) {
        if part.locked {
            let _ = memory::lock_on_fault(part.range);
        }
        let slot = part.range.start.slot();
        let extent = self.state.table.extents.get(slot).copied();
        let uniform = self.state.table.slot_is_uniform(slot);
        let Some(extent) = extent.filter(|_| uniform) else {
            // SAFETY: advice about page sizes does not change contents.
            let _ = unsafe { memory::advise(part.range, Advice::NoHugePage) };
            if let Some(extent) = self.state.table.extents.get_mut(slot) {
                extent.state = ExtentState::Base;
                self.state.queue.remove(slot);
            }
            return;
        };
        match extent.state {
            ExtentState::Promoted | ExtentState::Whole => self.resume_superpage(slot),
            ExtentState::Small => self.resume_small(slot, present),
            ExtentState::Reserved => self.resume_reservation(slot, present),
            ExtentState::Empty if extent.folio => self.resume_reservation(slot, present),
            ExtentState::Empty if present.is_empty() => self.resume_empty(slot),
            ExtentState::Empty | ExtentState::Base => self.make_base(slot..slot.next()),
        }
    }

    fn resume_superpage(&mut self, slot: Slot) {
        let _ = self.arm_whole(slot.range());
        if self.is_hole(slot) {
            return;
        }
        let first = AddrRange::new(slot.start(), Bytes(BASE_PAGE));
        // SAFETY: populating maps pages that the object holds.
        let _ = unsafe { memory::advise(first, Advice::PopulateRead) };
        let huge = self.population(slot).is_ok_and(|(_, huge)| huge);
        let Some(extent) = self.state.table.extents.get_mut(slot) else {
            return;
        };
        extent.popmap = if huge { Popmap::full() } else { Popmap::new() };
        extent.changed_ms = now_ms();
        if huge {
            self.state.queue.remove(slot);
            self.manager.stats().add(Counter::Returned, 1);
        }
    }

    /// What was in use is mapped again, folio by folio, when it is touched.
    fn resume_small(&mut self, slot: Slot, present: &Popmap) {
        self.arm_small(slot);
        if let Some(extent) = self.state.table.extents.get_mut(slot) {
            extent.popmap = extent.popmap.union(present);
            extent.changed_ms = now_ms();
            if extent.state == ExtentState::Small && !extent.popmap.is_full() {
                self.state.queue.touch(slot);
            }
        }
    }

    /// Arms an extent that held nothing. What touched it between the mapping
    /// and now was not reported, so then it does not count as empty.
    fn resume_empty(&mut self, slot: Slot) {
        let armed = self.arm(slot.range());
        if armed.is_err() || !self.is_hole(slot) {
            self.make_base(slot..slot.next());
        }
    }

    fn resume_reservation(&mut self, slot: Slot, present: &Popmap) {
        if self.arm(slot.range()).is_err() {
            self.make_base(slot..slot.next());
            return;
        }
        let Some(extent) = self.state.table.extents.get_mut(slot) else {
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
