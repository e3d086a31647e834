//! `madvise` of managed memory. What is done with each advice says
//! `quire_core::madvise`; here it is done, mapping by mapping, in the order of addresses in which
//! the kernel goes through them. What is not mapped makes the call fail with `ENOMEM`, after all
//! else has been advised; so it does for the kernel.

use std::os::fd::AsFd;

use quire_core::madvise::{Treatment, treatment};
use quire_core::popmap::Popmap;
use quire_core::units::{AddrRange, Bytes, SUPERPAGE, Slot, VirtAddr};
use quire_linux::memory::{self, Advice};
use quire_linux::pagemap::{self, Filter};
use quire_linux::raw::{Errno, Result};

use crate::extent::Work;
use crate::manager::{Manager, State};
use crate::mapping::{Handled, make_anonymous, unlock};
use crate::plain::make_plain;
use crate::pool::{discard_pool, soften};
use crate::table::{Backing, ExtentState, Interval};

impl Manager {
    /// `madvise`.
    pub fn advise(&self, range: AddrRange, advice: i32) -> Handled<()> {
        if self.is_unmanaged(range) || !range.start.is_page_aligned() {
            return Handled::No;
        }
        let range = AddrRange::new(range.start, range.len().to_pages().to_bytes());
        let mut state = self.state.lock();
        state.clear_spare(range);
        if !state.table.touches(range) {
            return Handled::No;
        }
        Handled::Yes(match treatment(advice) {
            Treatment::HandOn => {
                // Populating may need the pager, and the pager the lock.
                drop(state);
                // SAFETY: the program asked for it, and it changes no contents.
                unsafe { memory::advise_raw(range, advice) }
            }
            treatment => {
                let known = match treatment {
                    // The most frequent one, which all kernels know.
                    Treatment::Empty { locked: false } => Ok(()),
                    _ => is_known(range.start, advice),
                };
                known.and_then(|()| self.advise_parts(&mut state, range, advice, treatment))
            }
        })
    }

    /// Gives up the contents of a range, for the allocator.
    ///
    /// # Errors
    /// When the kernel refuses; the contents are then unchanged or zero.
    pub fn discard(&self, range: AddrRange) -> Result<()> {
        match self.advise(range, libc::MADV_DONTNEED) {
            Handled::Yes(result) => result,
            // SAFETY: the allocator has given the contents up.
            Handled::No => unsafe { memory::advise(range, Advice::DontNeed) },
        }
    }

    fn advise_parts(
        &self,
        state: &mut State,
        range: AddrRange,
        advice: i32,
        treatment: Treatment,
    ) -> Result<()> {
        if matches!(
            treatment,
            Treatment::DontFork(_) | Treatment::WipeOnFork(_) | Treatment::DontDump(_)
        ) {
            soften(self, state, range)?;
        }
        let mut whole = Ok(());
        for (piece, part) in state.table.pieces(range) {
            let advised = match &part {
                Some(part) => self.advise_part(state, part, advice, treatment),
                // SAFETY: the program asked for it.
                None => unsafe { memory::advise_raw(piece, advice) },
            };
            match advised {
                Err(Errno(libc::ENOMEM)) if part.is_none() => whole = advised,
                advised => advised?,
            }
        }
        whole
    }

    fn advise_part(
        &self,
        state: &mut State,
        part: &Interval,
        advice: i32,
        treatment: Treatment,
    ) -> Result<()> {
        // SAFETY: the program asked for it.
        let by_kernel = || unsafe { memory::advise_raw(part.range, advice) };
        match treatment {
            Treatment::Empty { .. } | Treatment::Nothing if part.backing == Backing::Left => {
                by_kernel()
            }
            Treatment::Empty { locked } => self.empty(state, part, locked),
            Treatment::DontFork(dont) => {
                set_fork_behaviour(state, part, advice, |i| i.dont_fork = dont);
                Ok(())
            }
            Treatment::WipeOnFork(wipe) => {
                set_fork_behaviour(state, part, advice, |i| i.wipe_on_fork = wipe);
                Ok(())
            }
            Treatment::DontDump(dont) => {
                by_kernel()?;
                state.table.update(part.range, |i| i.dont_dump = dont);
                Ok(())
            }
            Treatment::Superpages => match part.backing {
                Backing::Anonymous | Backing::Plain | Backing::Left => by_kernel(),
                Backing::Shared => self.expect_superpages(state, part.range),
                Backing::Private | Backing::Inherited | Backing::Pool(_) => Ok(()),
            },
            Treatment::Hint if matches!(part.backing, Backing::Pool(_)) => Ok(()),
            Treatment::Hint => by_kernel(),
            Treatment::Collapse => self.collapse(state, part),
            Treatment::BasePages | Treatment::Plain => {
                make_plain(self, state, part.range)?;
                by_kernel()
            }
            Treatment::Refused => Err(Errno(libc::EINVAL)),
            Treatment::Nothing | Treatment::HandOn => Ok(()),
        }
    }

    /// Gives up the contents of a part. What is locked is unlocked meanwhile, because the
    /// kernel takes nothing out of a file where it is mapped and locked.
    fn empty(&self, state: &mut State, part: &Interval, locked: bool) -> Result<()> {
        if !part.locked {
            return self.discard_interval(state, part);
        }
        if !locked {
            return Err(Errno(libc::EINVAL));
        }
        unlock(part.range)?;
        let emptied = self.discard_interval(state, part);
        memory::lock_on_fault(part.range)?;
        emptied
    }

    fn discard_interval(&self, state: &mut State, part: &Interval) -> Result<()> {
        match part.backing {
            Backing::Shared => self.with_handles(|handles| {
                let mut work = Work::new(self, handles, state);
                work.discard(part.range)
            }),
            // SAFETY: the program gives the contents up.
            Backing::Anonymous | Backing::Left => unsafe {
                memory::advise(part.range, Advice::DontNeed)
            },
            Backing::Plain => {
                // SAFETY: the program gives the contents up.
                unsafe { memory::advise(part.range, Advice::DontNeed)? };
                for slot in part.range.slots().map(Slot) {
                    state.table.note_resting(slot);
                }
                Ok(())
            }
            Backing::Private | Backing::Inherited => make_anonymous(state, part),
            Backing::Pool(_) if part.prot & libc::PROT_WRITE == 0 => {
                soften(self, state, part.range)?;
                let now: Vec<Interval> = state.table.overlaps(part.range).collect();
                now.iter().try_for_each(|part| match part.backing {
                    Backing::Pool(page) => discard_pool(self, state, part, page),
                    _ => self.discard_interval(state, part),
                })
            }
            Backing::Pool(page) => discard_pool(self, state, part, page),
        }
    }

    /// Lets the next touches of the extents in a range map superpages.
    fn expect_superpages(&self, state: &mut State, range: AddrRange) -> Result<()> {
        let slots = range.whole_slots();
        self.with_handles(|handles| {
            Work::new(self, handles, state).make_whole(Slot(slots.start)..Slot(slots.end));
            Ok(())
        })
    }

    /// `MADV_COLLAPSE` of a part: like the kernel's, it fails where an extent holds nothing, and
    /// where the range has not even room for one.
    fn collapse(&self, state: &mut State, part: &Interval) -> Result<()> {
        let whole = state.table.interval_at(part.range.start);
        let can_have = whole.is_some_and(|whole| !whole.range.whole_slots().is_empty());
        let slots = part.range.whole_slots();
        // The kernel goes from the first border of superpages to the last, if there is one.
        let has_border = part.range.start.0.div_ceil(SUPERPAGE) <= part.range.end.0 / SUPERPAGE;
        if !can_have || !has_border {
            return Err(Errno(libc::EINVAL));
        }
        if slots.is_empty() {
            return Ok(());
        }
        if matches!(part.backing, Backing::Pool(_)) {
            let mut is_used = false;
            let pagemap = pagemap::open()?;
            pagemap::scan(pagemap.as_fd(), part.range, Filter::PRESENT, |_| {
                is_used = true
            })?;
            return if is_used {
                Ok(())
            } else {
                Err(Errno(libc::EINVAL))
            };
        }
        // Copies in a private mapping of a file cannot become one page.
        if matches!(part.backing, Backing::Private | Backing::Inherited) {
            make_plain(self, state, part.range)?;
        }
        if part.backing != Backing::Shared {
            // SAFETY: the advice changes how the pages are mapped, not what they hold.
            let advised = |advice| unsafe { memory::advise(part.range, advice) };
            if part.backing == Backing::Plain {
                // While it rests, it is advised against superpages, but not by the program.
                let _ = advised(Advice::HugePage);
            }
            return advised(Advice::Collapse);
        }
        self.with_handles(|handles| {
            let mut work = Work::new(self, handles, state);
            let mut last = Ok(());
            for slot in slots {
                last = work.collapse(Slot(slot)).and(last);
            }
            last
        })
    }
}

impl Work<'_> {
    /// Makes a superpage of an extent that holds something.
    fn collapse(&mut self, slot: Slot) -> Result<()> {
        // SAFETY: collapsing changes how the pages are mapped, not what they hold.
        let once = || unsafe { memory::advise(slot.range(), Advice::Collapse) };
        // The pager may look at it at the same time.
        let passes = |errno| matches!(errno, Errno(libc::EAGAIN | libc::EBUSY));
        let by_kernel = || match once() {
            Err(errno) if passes(errno) => once(),
            answer => answer,
        };
        let extent = self.state.table.extents.get(slot).copied();
        let Some(extent) = extent.filter(|_| self.state.table.slot_is_uniform(slot)) else {
            return by_kernel();
        };
        let (map, huge) = self.population(slot)?;
        if huge {
            return Ok(());
        }
        let is_used = match extent.state {
            ExtentState::Base => !self.is_hole(slot),
            _ => !map.union(&extent.popmap).is_empty(),
        };
        if !is_used {
            return Err(Errno(libc::EINVAL));
        }
        if extent.state == ExtentState::Reserved {
            self.make_whole(slot..slot.next());
        } else if !extent.busy {
            self.arm_whole(slot.range())?;
            if let Err(errno) = by_kernel() {
                self.make_base(slot..slot.next());
                return Err(errno);
            }
        }
        if !self.is_mapped_whole(slot) {
            return Err(Errno(libc::EAGAIN));
        }
        self.state.queue.remove(slot);
        if let Some(extent) = self.state.table.extents.get_mut(slot) {
            extent.state = ExtentState::Promoted;
            extent.popmap = Popmap::full();
        }
        Ok(())
    }
}

/// Asks the kernel whether it knows an advice, by a range that is empty.
fn is_known(at: VirtAddr, advice: i32) -> Result<()> {
    // SAFETY: nothing is advised.
    unsafe { memory::advise_raw(AddrRange::new(at, Bytes::ZERO), advice) }
}

/// Memory that is not the object, shared, takes the advice itself; a private mapping of it may
/// not take all, and then the table knows.
fn set_fork_behaviour(
    state: &mut State,
    part: &Interval,
    advice: i32,
    change: impl FnMut(&mut Interval),
) {
    if part.backing != Backing::Shared {
        // SAFETY: the advice does not change contents in this process.
        let _ = unsafe { memory::advise_raw(part.range, advice) };
    }
    state.table.update(part.range, change);
}

/// Leaves memory that was mapped anew out of core dumps if the program said so.
pub(crate) fn keep_out_of_dumps(range: AddrRange, like: &Interval) {
    if like.dont_dump {
        // SAFETY: the advice does not change contents.
        let _ = unsafe { memory::advise(range, Advice::DontDump) };
    }
}

/// Gives private memory that was mapped anew the advice of the interval that it continues.
pub(crate) fn copy_advice(range: AddrRange, like: &Interval) {
    let advised = [
        (like.dont_fork, libc::MADV_DONTFORK),
        (like.wipe_on_fork, libc::MADV_WIPEONFORK),
    ];
    for (_, advice) in advised.iter().filter(|(wanted, _)| *wanted) {
        // SAFETY: the advice does not change contents in this process.
        let _ = unsafe { memory::advise_raw(range, *advice) };
    }
    keep_out_of_dumps(range, like);
}
