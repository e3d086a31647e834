//! Giving memory back where it is short: the pool first, then the reservation
//! least recently allocated from (paper 000, section 3.3), then the zeros in
//! superpages that the program was given.

use std::ops::Range;

use quire_core::pressure::{self, Advice, Exposure, MemoryState};
use quire_core::registry::Yield;
use quire_core::stat::{Counter, Note, Privilege};
use quire_core::units::{Bytes, ObjectOffset, PAGES_PER_SUPERPAGE, SUPERPAGE, Slot};
use quire_linux::sysinfo::cgroup::MemoryGroup;
use quire_linux::{huge_file, sysinfo};

use super::{Pager, STALE_MS, first_run};
use crate::extent::{Work, now_ms};
use crate::table::{Backing, Extent, ExtentState, Table};

/// How many superpages are searched for zeros at one look at the machine's
/// memory.
const SEARCHED: usize = 16;

impl Pager {
    /// Looks at the machine's memory, and gives back what it asks for: what is
    /// oldest in any process, then what is oldest here.
    pub(super) fn relieve(&mut self, now: u64) {
        let stalled = std::mem::take(&mut self.stalled);
        let (mut memory, mut advice) = self.assess(stalled);
        let wanted = advice.give_back.max(advice.missing);
        if wanted.0 > 0 && !stalled && self.recycle(wanted, false).0 > 0 {
            (memory, advice) = self.assess(false);
        }
        self.budget = advice.may_reserve;
        self.blocks.caches = pressure::has_caches(&memory);
        let before = self.manager.state.lock().scarce;
        let scarce = self.blocks.are_scarce(before);
        self.gate(advice.missing.0 > 0, scarce);
        let mut freed = Bytes::ZERO;
        let owed = if self.is_owed() {
            advice.urgent
        } else {
            advice.give_back
        };
        if owed.0 > 0 {
            freed = self.give_back(Yield {
                wanted: owed,
                before_ms: u64::MAX,
                whole: false,
            });
        }
        let mut searched = false;
        if advice.missing > freed && self.manager.privilege() == Privilege::Full {
            searched = self.give_back_zeros(advice.missing.saturating_sub(freed));
        }
        let exposure = {
            let state = self.manager.state.lock();
            Exposure {
                free_superpages: self.blocks.free_superpages(),
                ungated: !state.is_gated(),
                holds: searched || state.reserved_unpopulated().0 > 0,
            }
        };
        let pause = pressure::watch_again(&memory, exposure);
        self.next_pressure_ms = now + pause.as_millis() as u64;
    }

    /// While memory is short or superpages are scarce, the first touch of what was
    /// to be mapped whole is reported as others are. Otherwise the program might
    /// take superpages faster than anybody can yield, and would wait while the
    /// kernel makes one.
    fn gate(&mut self, short: bool, scarce: bool) {
        let mut state = self.manager.state.lock();
        let before = state.is_gated();
        (state.short, state.scarce) = (short, scarce);
        if before || !state.is_gated() || self.manager.privilege() != Privilege::Full {
            return;
        }
        drop(state);
        self.predicted.clear();
        let mut next = Slot(0);
        while let Some(run) = self.gate_run(next) {
            next = run.end;
            self.answer_faults();
        }
    }

    fn gate_run(&self, from: Slot) -> Option<Range<Slot>> {
        let mut state = self.manager.state.lock();
        let table = &state.table;
        let given = |e: &Extent| {
            let region = table.regions.get(&e.region);
            e.state == ExtentState::Whole
                && e.popmap.is_empty()
                && !e.busy
                && region.is_some_and(|r| r.policy.reserves())
        };
        let extents = table.extents.range(from..).filter(|(_, e)| given(e));
        let run = first_run(extents.map(|(slot, _)| slot))?;
        Work::new(self.manager, &self.handles, &mut state).empty_again(&run);
        Some(run)
    }

    fn assess(&mut self, stalled: bool) -> (MemoryState, Advice) {
        let (reserved, limit) = {
            let state = self.manager.state.lock();
            (state.reserved_unpopulated(), state.config.reserve_limit)
        };
        let memory = MemoryState {
            stalled,
            ..self.memory_state()
        };
        self.note_short(&memory, reserved);
        (memory, pressure::advise(&memory, reserved, limit))
    }

    fn memory_state(&mut self) -> MemoryState {
        // Where no descriptor is allowed any more, what was known last has to do.
        let machine = sysinfo::memory::meminfo().unwrap_or(self.machine);
        self.machine = machine;
        let room = self.group.as_ref().and_then(MemoryGroup::room);
        MemoryState {
            total: machine.total,
            available: machine.available,
            free: machine.free,
            group_headroom: room.map(|r| r.headroom),
            group_limit: room.map(|r| r.limit),
            stalled: false,
        }
    }

    /// Frees at least as much as is wanted of what is reserved and not populated:
    /// the pool first, then the reservation least recently allocated from.
    pub(super) fn give_back(&mut self, request: Yield) -> Bytes {
        let wanted = request.wanted;
        self.manager.stats().note(Note::MemoryShort);
        let mut freed = self.empty_pool(wanted);
        self.ahead.clear();
        if self.manager.privilege() != Privilege::Full {
            return freed;
        }
        let reservations: Vec<Slot> = self.manager.state.lock().queue.iter().collect();
        for slot in reservations {
            if freed >= wanted {
                break;
            }
            let mut state = self.manager.state.lock();
            if !state.queue.contains(slot) || !state.table.slot_is_shared(slot) {
                continue;
            }
            let Some(extent) = state.table.extents.get(slot) else {
                continue;
            };
            if extent.changed_ms >= request.before_ms {
                break;
            }
            if request.whole && !extent.popmap.is_empty() {
                continue;
            }
            let mut work = Work::new(self.manager, &self.handles, &mut state);
            if !work.is_mapped_whole(slot) {
                freed += work.preempt(slot).unwrap_or(Bytes::ZERO);
            }
            state.queue.remove(slot);
        }
        freed
    }

    /// Frees the zeros in superpages that the program was given at their first
    /// touch and of which it uses less than half. Says whether there was one to
    /// search.
    fn give_back_zeros(&mut self, wanted: Bytes) -> bool {
        let mut freed = Bytes::ZERO;
        for searched in 0..SEARCHED {
            if freed >= wanted {
                return true;
            }
            let mut state = self.manager.state.lock();
            let before = now_ms().saturating_sub(STALE_MS);
            let next = next_superpage(&state.table, self.next_superpage, before);
            let Some((slot, offset)) = next else {
                self.next_superpage = Slot(0);
                return searched > 0;
            };
            self.next_superpage = slot.next();
            drop(state);
            let all = 0..PAGES_PER_SUPERPAGE;
            let zeros = huge_file::zero_pages(self.handles.object(), offset, all);
            let few = zeros.count().0 <= PAGES_PER_SUPERPAGE as u64 / 2;
            state = self.manager.state.lock();
            if state.table.slot_of(offset) != Some(slot) || !state.table.slot_is_shared(slot) {
                continue;
            }
            if few {
                if let Some(extent) = state.table.extents.get_mut(slot) {
                    extent.dense = true;
                }
                continue;
            }
            let mut work = Work::new(self.manager, &self.handles, &mut state);
            freed += work.preempt(slot).unwrap_or(Bytes::ZERO);
            work.count_demotion(slot);
        }
        true
    }

    pub(super) fn empty_pool(&self, wanted: Bytes) -> Bytes {
        let mut state = self.manager.state.lock();
        let have = state.pool_end.0.saturating_sub(state.next_offset.0);
        let give = Bytes(have.min(wanted.0.next_multiple_of(SUPERPAGE)));
        if give.0 == 0 {
            return Bytes::ZERO;
        }
        state.pool_end.0 -= give.0;
        let freed = huge_file::punch(self.handles.object(), state.pool_end, give);
        let ready = (state.pool_end.0 - state.next_offset.0) / SUPERPAGE;
        self.manager.stats().set(Counter::PoolReady, ready);
        freed.map_or(Bytes::ZERO, |()| give)
    }
}

/// The first superpage, at or after `from`, that the program was given at the
/// first touch, some time ago, under a policy that takes such presents back.
fn next_superpage(table: &Table, from: Slot, before_ms: u64) -> Option<(Slot, ObjectOffset)> {
    let given = |e: &Extent| {
        e.state == ExtentState::Whole
            && e.popmap.is_full()
            && e.changed_ms < before_ms
            && !e.dense
            && table
                .regions
                .get(&e.region)
                .is_some_and(|r| r.policy.reserves())
    };
    let free = |slot: Slot| {
        table
            .interval_at(slot.start())
            .is_some_and(|i| i.backing == Backing::Shared && !i.locked)
            && table.slot_is_uniform(slot)
    };
    table
        .extents
        .range(from..)
        .filter(|(slot, e)| given(e) && free(*slot))
        .find_map(|(slot, _)| Some((slot, table.slot_offset(slot)?)))
}
