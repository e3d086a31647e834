//! What can be done to extents: arm, reserve, map whole, promote, demote,
//! discard, preempt. All of it under the manager's lock, except for the
//! zeroing of a folio, which takes long and is done with the extent marked
//! busy.
//!
//! How each state looks to the kernel:
//!
//! | state | mapping | `userfaultfd` |
//! |---|---|---|
//! | `Empty`, `Reserved` | `MADV_NOHUGEPAGE` | registered: one page is mapped per fault, so the page table is the population map |
//! | `Small`, `Whole`, `Promoted` | `MADV_HUGEPAGE` | not registered: a fault maps the folio whole |
//! | `Base` | `MADV_NOHUGEPAGE` | not registered: the kernel faults in base pages, of the object or of plain memory (`pager::rest`) |

use std::ops::Range;

use quire_core::config::Policy;
use quire_core::popmap::Popmap;
use quire_core::stat::{Call, Counter, FailedCall, Note, Privilege};
use quire_core::units::{
    AddrRange, BASE_PAGE, Bytes, ObjectOffset, PageCount, SUPERPAGE, Slot, VirtAddr,
};
use quire_linux::huge_file;
use quire_linux::memory::{self, Advice};
use quire_linux::pagemap::{self, Filter, PageRun};
use quire_linux::raw::{Errno, Result};
use quire_linux::thread;
use quire_linux::uffd::{self, Mode};

use crate::advice::keep_out_of_dumps;
use crate::files;
use crate::manager::{Handles, Manager, State};
use crate::table::{ExtentState, Interval};

/// Monotonic time in milliseconds.
pub(crate) fn now_ms() -> u64 {
    thread::now_ns() / 1_000_000
}

/// The addresses of a run of slots.
pub(crate) fn run_range(run: &Range<Slot>) -> AddrRange {
    AddrRange {
        start: run.start.start(),
        end: run.end.start(),
    }
}

/// The pages of `part` within its slot.
pub(crate) fn pages_in_slot(slot: Slot, part: AddrRange) -> Range<usize> {
    let page = |at: VirtAddr| ((at - slot.start()).0 / BASE_PAGE) as usize;
    page(part.start)..page(part.end)
}

/// Splits a range at superpage boundaries.
pub(crate) fn by_slot(range: AddrRange) -> impl Iterator<Item = (Slot, AddrRange)> {
    range
        .slots()
        .map(Slot)
        .map(move |slot| (slot, slot.range().intersect(range)))
}

/// The addresses of some pages of a slot.
pub(crate) fn pages_range(slot: Slot, pages: &Range<usize>) -> AddrRange {
    let at = |page: usize| slot.start() + Bytes(page as u64 * BASE_PAGE);
    AddrRange {
        start: at(pages.start),
        end: at(pages.end),
    }
}

/// The manager at work: the state, locked, and the descriptors.
pub(crate) struct Work<'a> {
    pub manager: &'a Manager,
    pub handles: &'a Handles,
    pub state: &'a mut State,
}

impl<'a> Work<'a> {
    /// The manager at work, with its state locked by the caller.
    pub fn new(manager: &'a Manager, handles: &'a Handles, state: &'a mut State) -> Work<'a> {
        Work {
            manager,
            handles,
            state,
        }
    }
}

impl Work<'_> {
    /// Makes a fresh mapping of the object ready: armed for reservation.
    pub fn arm(&self, range: AddrRange) -> Result<()> {
        self.advise_base(range)?;
        self.register(range)
    }

    /// The same for a mapping that superpages are forbidden to already.
    pub fn register(&self, range: AddrRange) -> Result<()> {
        let registered = uffd::register(self.handles.uffd()?, range, self.arm_mode());
        self.named(Call::Register, registered)
    }

    /// The same for a mapping that may be registered in another mode: one
    /// registration would only add to the other.
    pub fn arm_again(&self, range: AddrRange) -> Result<()> {
        self.disarm(range);
        self.arm(range)
    }

    fn arm_mode(&self) -> Mode {
        match self.manager.privilege() {
            Privilege::Full => Mode::MissingAndProtect,
            _ => Mode::Protect,
        }
    }

    /// Lets faults in a range map whole folios.
    pub fn arm_whole(&self, range: AddrRange) -> Result<()> {
        self.disarm(range);
        // SAFETY: advice about page sizes does not change contents.
        let advised = unsafe { memory::advise(range, Advice::HugePage) };
        self.named(Call::AdviseHuge, advised)
    }

    /// Leaves a range to the kernel's base pages.
    pub fn arm_base(&self, range: AddrRange) -> Result<()> {
        self.disarm(range);
        self.advise_base(range)
    }

    fn advise_base(&self, range: AddrRange) -> Result<()> {
        // SAFETY: advice about page sizes does not change contents.
        let advised = unsafe { memory::advise(range, Advice::NoHugePage) };
        self.named(Call::AdviseBase, advised)
    }

    /// Keeps the name of a call that failed, for those who ask why.
    fn named(&self, call: Call, outcome: Result<()>) -> Result<()> {
        if let Err(Errno(errno)) = outcome {
            self.manager
                .stats()
                .set_failed_call(FailedCall { call, errno });
        }
        outcome
    }

    fn disarm(&self, range: AddrRange) {
        if let Ok(uffd) = self.handles.uffd() {
            // A range that was not registered is no failure.
            let _ = uffd::unregister(uffd, range);
        }
    }

    /// Which pages of a slot are mapped, and whether by a superpage.
    pub fn population(&self, slot: Slot) -> Result<(Popmap, bool)> {
        let mut map = Popmap::new();
        let mut huge = false;
        pagemap::scan(
            self.handles.pagemap(),
            slot.range(),
            Filter::PRESENT,
            |run| {
                map.set(pages_in_slot(slot, run.range()));
                huge |= run.categories & pagemap::HUGE != 0;
            },
        )?;
        Ok((map, huge))
    }

    /// Whether the object holds nothing of a slot.
    pub fn is_hole(&self, slot: Slot) -> bool {
        self.state.table.slot_offset(slot).is_some_and(|offset| {
            let data = huge_file::next_data(self.handles.object(), offset);
            data.is_ok_and(|at| at.is_none_or(|at| at >= offset + Bytes(SUPERPAGE)))
        })
    }

    /// Whether a slot is mapped by a superpage.
    pub fn is_mapped_whole(&self, slot: Slot) -> bool {
        self.population(slot).is_ok_and(|(_, huge)| huge)
    }

    /// Looks at the page table of a run of extents and notes what has changed.
    /// Returns the extents that have become full, and by how many pages the
    /// populations differ.
    pub fn look(&mut self, run: &Range<Slot>, now_ms: u64) -> Result<(Vec<Slot>, PageCount)> {
        let count = (run.end.0 - run.start.0) as usize;
        let mut maps = vec![(Popmap::new(), false); count];
        let mut note = |found: PageRun| {
            for (slot, part) in by_slot(found.range()) {
                let entry = &mut maps[(slot.0 - run.start.0) as usize];
                entry.0.set(pages_in_slot(slot, part));
                entry.1 |= found.categories & pagemap::HUGE != 0;
            }
        };
        pagemap::scan(
            self.handles.pagemap(),
            run_range(run),
            Filter::PRESENT,
            &mut note,
        )?;
        let mut full = Vec::new();
        let mut changed = PageCount(0);
        for (index, (map, huge)) in maps.into_iter().enumerate() {
            let slot = Slot(run.start.0 + index as u64);
            let Some(extent) = self.state.table.extents.get_mut(slot) else {
                continue;
            };
            let whole = extent.state == ExtentState::Whole;
            let map = if whole && !huge && !extent.folio && !map.is_full() {
                Popmap::new()
            } else {
                map
            };
            if map == extent.popmap {
                continue;
            }
            let (before, after) = (extent.popmap.count(), map.count());
            changed += PageCount(before.0.abs_diff(after.0).max(1));
            let grew = after > before;
            extent.popmap = map;
            extent.changed_ms = now_ms;
            if whole && huge {
                self.state.queue.remove(slot);
            } else if whole || extent.is_reservation() {
                if grew && extent.folio {
                    self.state.queue.touch(slot);
                    extent.told = false;
                }
                if map.is_full() {
                    full.push(slot);
                }
            }
        }
        Ok((full, changed))
    }

    /// Promotes a run of fully populated reservations in place (paper 000,
    /// section 3.4: promotion without copying). Where the kernel refuses, the
    /// extent stays as it is mapped.
    pub fn promote(&mut self, run: &Range<Slot>) {
        let began = thread::now_ns();
        if !self.may_split() {
            for slot in (run.start.0..run.end.0).map(Slot) {
                self.state.queue.remove(slot);
            }
            return;
        }
        self.map_superpages(run);
        let mut promoted = 0;
        for slot in (run.start.0..run.end.0).map(Slot) {
            let done = self.is_mapped_whole(slot) || self.collapse_folio(slot).is_ok();
            if !done {
                self.make_base(slot..slot.next());
                files::announce();
                continue;
            }
            self.state.queue.remove(slot);
            let Some(extent) = self.state.table.extents.get_mut(slot) else {
                continue;
            };
            extent.state = ExtentState::Promoted;
            extent.popmap = Popmap::full();
            promoted += 1;
            if let Some(region) = self.state.table.regions.get_mut(&extent.region) {
                region.promotions += 1;
                region.history.note_full(slot);
            }
        }
        let stats = self.manager.stats();
        stats.add(Counter::PromotionTime, thread::now_ns() - began);
        stats.add(Counter::Promotions, promoted);
    }

    /// Whether a run of extents may become a mapping of its own. Half of what
    /// the kernel allows to a process is left to the program.
    pub fn may_split(&mut self) -> bool {
        let left = self.state.mappings_left.checked_sub(2);
        match left {
            Some(left) => self.state.mappings_left = left,
            None => self.manager.stats().note(Note::MapsShort),
        }
        left.is_some()
    }

    /// Maps the object anew over extents that are mapped page by page, which
    /// takes half the time of changing their page tables.
    fn map_superpages(&mut self, run: &Range<Slot>) {
        self.map_anew(run);
        for slot in (run.start.0..run.end.0).map(Slot) {
            let known = self.state.table.extents.get(slot);
            if known.is_some_and(|extent| !extent.paged) {
                map_first_page(slot);
            }
        }
    }

    /// Maps the object anew over a run of extents, so that they have no page tables
    /// and a touch maps a folio whole. Locked memory keeps its mapping.
    fn map_anew(&mut self, run: &Range<Slot>) {
        let parts: Vec<Interval> = self.state.table.overlaps(run_range(run)).collect();
        for part in parts {
            let (object, whole) = (self.handles.object(), &[Advice::HugePage]);
            // SAFETY: the range is the object, shared, and so it stays.
            let mapped = !part.locked
                && unsafe {
                    memory::replace_shared(part.range, part.prot, object, part.offset, whole)
                }
                .is_ok();
            if mapped {
                keep_out_of_dumps(part.range, &part);
            }
            for slot in part.range.slots().map(Slot) {
                if let Some(extent) = self.state.table.extents.get_mut(slot) {
                    extent.paged = !mapped;
                }
            }
        }
    }

    /// Makes the kernel map the folio of an extent by a superpage. Where the kernel
    /// has mapped base pages, because it had no folio, they are not copied here.
    fn collapse_folio(&self, slot: Slot) -> Result<()> {
        let state = self.state.table.extents.get(slot).map(|e| e.state);
        if state == Some(ExtentState::Whole) {
            return Err(Errno(libc::ENOENT));
        }
        self.arm_whole(slot.range())?;
        // SAFETY: collapsing changes how the pages are mapped, not what they
        // hold.
        unsafe { memory::advise(slot.range(), Advice::Collapse) }
    }

    /// Lets the first touch of each extent of a run map a superpage. Extents
    /// that are not merely empty or reserved are left as they are.
    pub fn make_whole(&mut self, run: Range<Slot>) {
        let mut pending: Option<Range<Slot>> = None;
        for slot in (run.start.0..run.end.0).map(Slot) {
            let eligible = self.state.table.extents.get(slot).is_some_and(|e| {
                !e.busy && !e.probe && matches!(e.state, ExtentState::Empty | ExtentState::Reserved)
            }) && self.state.table.slot_is_uniform(slot);
            match (&mut pending, eligible) {
                (Some(run), true) => run.end = slot.next(),
                (None, true) => pending = Some(slot..slot.next()),
                (_, false) => {
                    if let Some(run) = pending.take() {
                        self.set_whole(run);
                    }
                }
            }
        }
        if let Some(run) = pending {
            self.set_whole(run);
        }
    }

    fn set_whole(&mut self, run: Range<Slot>) {
        if !self.may_split() {
            return;
        }
        let extents = self.state.table.extents.range(run.clone());
        if { extents }.any(|(_, extent)| extent.has_page_table()) {
            self.map_anew(&run);
        }
        if self.arm_whole(run_range(&run)).is_err() {
            self.manager.stats().note(Note::SystemCallFailed);
        }
        for slot in (run.start.0..run.end.0).map(Slot) {
            if let Some(extent) = self.state.table.extents.get_mut(slot) {
                extent.state = ExtentState::Whole;
                // The program may be done with it, and touch it no more.
                if extent.folio && !extent.paged {
                    map_first_page(slot);
                }
            }
        }
    }

    /// Gives a run of extents up to the kernel's base pages.
    pub fn make_base(&mut self, run: Range<Slot>) {
        if self.arm_base(run_range(&run)).is_err() {
            self.manager.stats().note(Note::SystemCallFailed);
        }
        for slot in (run.start.0..run.end.0).map(Slot) {
            self.state.queue.remove(slot);
            if let Some(extent) = self.state.table.extents.get_mut(slot) {
                extent.paged = extent.has_page_table();
                extent.state = ExtentState::Base;
            }
        }
    }

    /// Takes back what a reservation holds unpopulated (paper 000, section
    /// 3.3: preemption). Writers are held back while that is done; it takes
    /// the scope to hold back writers in kernel mode too. A page is given up
    /// only if it is not mapped *and* holds zeros, so a page that the kernel
    /// has unmapped for reasons of its own is never lost. An extent that is to
    /// be mapped whole is armed for that first, which unmaps a superpage.
    /// Returns what was freed.
    pub fn preempt(&mut self, slot: Slot) -> Result<Bytes> {
        if self.manager.privilege() != Privilege::Full {
            return Err(Errno(libc::EPERM));
        }
        let table = &self.state.table;
        let Some(offset) = table.slot_offset(slot) else {
            return Ok(Bytes::ZERO);
        };
        let state = table.extents.get(slot).map(|e| e.state);
        let uffd = self.handles.uffd()?;
        let range = slot.range();
        if matches!(
            state,
            Some(ExtentState::Small | ExtentState::Whole | ExtentState::Promoted)
        ) {
            self.arm(range)?;
        }
        uffd::write_protect(uffd, range, true)?;
        let mut kept = self.population(slot).map_or(Popmap::full(), |(map, _)| map);
        let mut freed = PageCount(0);
        for gap in kept.gaps() {
            freed += self.punch_zeros(offset, gap, &mut kept);
        }
        if kept.is_empty() {
            uffd::write_protect(uffd, range, false)?;
        } else {
            self.arm_base(range)?;
        }
        self.state.queue.remove(slot);
        if let Some(extent) = self.state.table.extents.get_mut(slot) {
            extent.paged = extent.has_page_table();
            extent.state = if kept.is_empty() {
                ExtentState::Empty
            } else {
                ExtentState::Base
            };
            extent.popmap = kept;
            extent.folio = false;
            self.manager.stats().add(Counter::Preemptions, 1);
            if let Some(region) = self.state.table.regions.get_mut(&extent.region) {
                region.preemptions += 1;
            }
        }
        Ok(freed.to_bytes())
    }

    /// Punches those pages of a gap that hold zeros out of the object; the
    /// others count as kept.
    fn punch_zeros(&self, offset: ObjectOffset, gap: Range<usize>, kept: &mut Popmap) -> PageCount {
        let object = self.handles.object();
        let zeros = huge_file::zero_pages(object, offset, gap.clone());
        kept.set(gap);
        let mut freed = 0;
        for run in zeros.runs() {
            let at = offset + Bytes(run.start as u64 * BASE_PAGE);
            let len = Bytes(run.len() as u64 * BASE_PAGE);
            if huge_file::punch(object, at, len).is_ok() {
                freed += run.len() as u64;
                kept.clear(run);
            }
        }
        PageCount(freed)
    }

    /// Makes shared memory read as zero again and takes it from the program's
    /// resident set. A whole extent is given back; freed pages of a
    /// reservation stay in it (paper 000, section 3.2), and a superpage of
    /// which a part is freed becomes a reservation again.
    pub fn discard(&mut self, range: AddrRange) -> Result<()> {
        let mut whole: Option<Range<Slot>> = None;
        for (slot, part) in by_slot(range) {
            let is_extent = self.state.table.extents.contains(slot);
            if is_extent && part == slot.range() {
                let run = whole.get_or_insert(slot..slot);
                run.end = slot.next();
                continue;
            }
            if let Some(run) = whole.take() {
                self.discard_extents(run)?;
            }
            self.discard_part(slot, part)?;
        }
        whole.map_or(Ok(()), |run| self.discard_extents(run))
    }

    /// Gives whole extents back. They are armed first: a touch that comes
    /// after the memory is gone must be reported, or an extent would hold
    /// something and be taken for empty.
    fn discard_extents(&mut self, run: Range<Slot>) -> Result<()> {
        let slots = || (run.start.0..run.end.0).map(Slot);
        let mut next = Vec::new();
        for slot in slots() {
            next.push(self.arm_for_discard(slot));
        }
        // SAFETY: the program gave the contents up; it reads zeros from now on.
        unsafe { memory::advise(run_range(&run), Advice::Remove)? };
        for (slot, state) in slots().zip(next) {
            self.state.queue.remove(slot);
            if let Some(extent) = self.state.table.extents.get_mut(slot) {
                extent.paged = extent.has_page_table();
                extent.state = state;
                extent.popmap = Popmap::new();
                extent.folio = false;
                extent.told = false;
            }
        }
        Ok(())
    }

    /// Arms an extent that is about to be emptied, and says what it will be.
    fn arm_for_discard(&mut self, slot: Slot) -> ExtentState {
        let Some(extent) = self.state.table.extents.get(slot).copied() else {
            return ExtentState::Base;
        };
        self.end_reservation(slot);
        let (state, armed) = match extent.state {
            ExtentState::Empty | ExtentState::Reserved => {
                let privilege = self.manager.privilege();
                let armed = privilege == Privilege::Full;
                let again = || self.arm_again(slot.range());
                (ExtentState::Empty, if armed { Ok(()) } else { again() })
            }
            ExtentState::Base if self.stays_base(slot) => (ExtentState::Base, Ok(())),
            _ if self.stays_whole(slot) => (ExtentState::Whole, self.arm_whole(slot.range())),
            _ => (ExtentState::Empty, self.arm(slot.range())),
        };
        armed.map_or(ExtentState::Base, |()| state)
    }

    fn region_policy(&self, region: Option<u32>) -> Policy {
        region
            .and_then(|id| self.state.table.regions.get(&id))
            .map_or(Policy::Reserve, |r| r.policy)
    }

    fn discard_part(&mut self, slot: Slot, part: AddrRange) -> Result<()> {
        let extent = self.state.table.extents.get(slot).copied();
        let state = extent.map_or(ExtentState::Base, |e| e.state);
        let reported = self.manager.privilege() == Privilege::Full;
        let writable = self
            .state
            .table
            .overlaps(part)
            .all(|i| i.prot & libc::PROT_WRITE != 0);
        match state {
            ExtentState::Empty if reported && self.is_hole(slot) => Ok(()),
            // The pager has brought a folio in and not yet said so.
            ExtentState::Empty if reported && writable => self.free_in_reservation(slot, part),
            ExtentState::Empty | ExtentState::Base => punch_mapped(part),
            ExtentState::Reserved if writable => self.free_in_reservation(slot, part),
            ExtentState::Whole | ExtentState::Promoted
                if writable
                    && extent.is_some_and(|e| self.region_policy(Some(e.region)).reserves())
                    && self.state.table.slot_is_uniform(slot) =>
            {
                self.demote(slot, part)
            }
            _ => {
                punch_mapped(part)?;
                if extent.is_some_and(|e| e.is_superpage()) {
                    self.count_demotion(slot);
                }
                self.make_base(slot..slot.next());
                Ok(())
            }
        }
    }

    /// Zeroes the pages of `part` that hold something and unmaps them; they stay
    /// in the reservation for later use. Pages that the kernel has unmapped for
    /// reasons of its own hold something, too.
    fn free_in_reservation(&mut self, slot: Slot, part: AddrRange) -> Result<()> {
        let pages = pages_in_slot(slot, part);
        let mut done = Popmap::full();
        done.clear(pages);
        pagemap::scan(self.handles.pagemap(), part, Filter::PRESENT, |run| {
            zero(run.range());
            done.set(pages_in_slot(slot, run.range()));
        })?;
        for gap in done.gaps() {
            self.zero_unmapped(slot, gap);
        }
        // SAFETY: the pages hold zeros, and the object keeps them.
        unsafe { memory::advise(part, Advice::DontNeed)? };
        let Some(extent) = self.state.table.extents.get_mut(slot) else {
            return Ok(());
        };
        extent.popmap.clear(pages_in_slot(slot, part));
        if extent.popmap.is_empty() && !extent.busy {
            let (map, _) = self.population(slot)?;
            if map.is_empty() && self.manager.privilege() == Privilege::Full {
                self.preempt(slot)?;
            }
        }
        Ok(())
    }

    /// Zeroes those pages of a gap that do not hold zeros.
    fn zero_unmapped(&self, slot: Slot, gap: Range<usize>) {
        let Some(offset) = self.state.table.slot_offset(slot) else {
            return;
        };
        let zeros = huge_file::zero_pages(self.handles.object(), offset, gap.clone());
        let mut others = Popmap::new();
        others.set(gap);
        zeros.runs().for_each(|run| others.clear(run));
        for run in others.runs() {
            zero(pages_range(slot, &run));
        }
    }

    /// Turns a superpage of which `part` is freed into a reservation again
    /// (paper 000, section 3.5: only this extent, only as far as needed).
    fn demote(&mut self, slot: Slot, part: AddrRange) -> Result<()> {
        let (_, huge) = self.population(slot)?;
        if !huge {
            // What is not mapped by a superpage may have lost its folio, and
            // then there is nothing to reserve.
            punch_mapped(part)?;
            self.make_base(slot..slot.next());
            return Ok(());
        }
        zero(part);
        let range = slot.range();
        let mut map = Popmap::full();
        map.clear(pages_in_slot(slot, part));
        self.arm(range)?;
        // SAFETY: the object keeps the pages; they are mapped again below or at
        // the next touch.
        unsafe { memory::advise(range, Advice::DontNeed)? };
        for run in map.runs() {
            // SAFETY: populating maps pages that the object holds.
            let _ = unsafe { memory::advise(pages_range(slot, &run), Advice::PopulateRead) };
        }
        self.count_demotion(slot);
        if let Some(extent) = self.state.table.extents.get_mut(slot) {
            extent.state = ExtentState::Reserved;
            extent.popmap = map;
            extent.folio = true;
            extent.changed_ms = now_ms();
        }
        self.state.queue.touch(slot);
        Ok(())
    }

    /// Counts a superpage that went back to base pages.
    pub fn count_demotion(&mut self, slot: Slot) {
        self.manager.stats().add(Counter::Demotions, 1);
        let region = self.state.table.extents.get(slot).map(|e| e.region);
        if let Some(region) = region.and_then(|id| self.state.table.regions.get_mut(&id)) {
            region.demotions += 1;
        }
    }
}

/// Maps the folio of an extent whose memory was mapped anew, ahead of the next
/// touch.
fn map_first_page(slot: Slot) {
    let first = AddrRange::new(slot.start(), Bytes(BASE_PAGE));
    // SAFETY: populating maps what the object holds.
    let _ = unsafe { memory::advise(first, Advice::PopulateRead) };
}

/// Punches a mapped range out of its object.
fn punch_mapped(part: AddrRange) -> Result<()> {
    // SAFETY: the program gave the contents up; it reads zeros from now on.
    unsafe { memory::advise(part, Advice::Remove) }
}

/// Fills mapped, writable memory with zeros.
fn zero(range: AddrRange) {
    // SAFETY: the range is mapped readable and writable and belongs to the
    // program, which has just given its contents up.
    unsafe { std::ptr::write_bytes(range.start.as_ptr(), 0, range.len().0 as usize) };
}

/// The slots of the superpages that `len` bytes need from `start`.
pub(crate) fn slots_needed(start: VirtAddr, len: Bytes) -> u64 {
    (start.0 % SUPERPAGE + len.0).div_ceil(SUPERPAGE)
}
