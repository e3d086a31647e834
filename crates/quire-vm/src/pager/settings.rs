//! Changes to the settings of the running process: the pager receives them, and
//! brings what is managed already in step (paper 004, section 3, and paper 000:
//! superpages that are switched on and off while programs run).
//!
//! What holds something keeps the pages that it has. What holds nothing yet
//! follows the new policy.

use std::ops::Range;

use quire_core::config::Policy;
use quire_core::control::{Change, DONE};
use quire_core::frames::remap::Ask;
use quire_core::registry::Yield;
use quire_core::stat::{Note, Privilege};
use quire_core::units::{Bytes, SUPERPAGE, Slot};
use quire_linux::control::{ControlSocket, Request};
use quire_linux::{sysinfo, uffd};

use super::{Pager, first_run};
use crate::extent::{Work, run_range};
use crate::frames;
use crate::kernel_access;
use crate::manager::{Manager, State};
use crate::table::ExtentState;

/// Whether a policy needs a pager.
pub(super) fn needs_pager(policy: Policy) -> bool {
    !matches!(policy, Policy::Base | Policy::Static)
}

/// Waits for changes in a process that needs no pager, until it does. Returns
/// the pager and the socket then.
pub(super) fn listen(manager: &'static Manager, control: ControlSocket) -> Pager {
    loop {
        let request = control.wait();
        if Ask::is_one(&request.line) {
            control.answer(&request, &frames::control::answer(&request.line));
            continue;
        }
        let change = match read(&request) {
            Ok(change) => change,
            Err(refusal) => {
                control.answer(&request, &refusal);
                continue;
            }
        };
        let policy = change.policy.unwrap_or_else(|| manager.policy());
        if !needs_pager(policy) {
            manager.adopt(&change);
            control.answer(&request, DONE);
            continue;
        }
        // Under `base` huge pages are switched off.
        sysinfo::process::disable_huge_pages(false);
        match Pager::new(manager, policy) {
            Ok(mut pager) => {
                manager.adopt(&change);
                control.answer(&request, DONE);
                pager.take_control(Some(control));
                return pager;
            }
            Err(note) => {
                let off = manager.policy() == Policy::Base;
                sysinfo::process::disable_huge_pages(off);
                control.answer(&request, note.text());
            }
        }
    }
}

fn read(request: &Request) -> Result<Change, String> {
    let change: Result<Change, _> = request.line.parse();
    change.map_err(|error| error.to_string())
}

impl Manager {
    /// Takes new settings over. They hold for what is mapped from now on.
    fn adopt(&self, change: &Change) {
        let mut state = self.state.lock();
        if let Some(ahead) = change.ahead {
            state.config.ahead = ahead;
        }
        if let Some(limit) = change.reserve_limit {
            state.config.reserve_limit = Some(limit);
        }
        if let Some(largest) = change.largest {
            state.config.largest = largest;
        }
        if let Some(page) = change.pool_page {
            state.config.pool_page = page;
        }
        if let Some(align) = change.align {
            state.config.align = align;
            self.set_align(align);
        }
        state.drop_spare();
        if let Some(policy) = change.policy {
            state.config.policy = policy;
            self.set_policy(policy);
            sysinfo::process::disable_huge_pages(policy == Policy::Base);
        }
    }
}

impl Pager {
    /// Carries out the changes that were asked for.
    pub(super) fn answer_requests(&mut self) {
        let Some(control) = self.control.take() else {
            return;
        };
        while let Some(request) = control.next() {
            if Ask::is_one(&request.line) {
                control.answer(&request, &frames::control::answer(&request.line));
                continue;
            }
            if let Ok(wanted) = request.line.parse::<Yield>() {
                let freed = self.yield_up(wanted);
                control.answer(&request, &freed.0.to_string());
                continue;
            }
            let changed = read(&request).and_then(|change| self.change(&change));
            control.answer(
                &request,
                changed.as_ref().map_or_else(String::as_str, |()| DONE),
            );
        }
        self.control = Some(control);
        self.hurry();
    }

    fn change(&mut self, change: &Change) -> Result<(), String> {
        let reserves = change.policy.is_some_and(Policy::reserves);
        if reserves && self.manager.privilege() == Privilege::None {
            return Err(Note::NoUserfaultfd.text().to_owned());
        }
        self.manager.adopt(change);
        self.next_pressure_ms = 0;
        self.shrink_pool();
        if let Some(policy) = change.policy.filter(|policy| *policy != Policy::Static) {
            self.follow(policy);
        }
        Ok(())
    }

    /// Gives back what the pool holds beyond its bound.
    fn shrink_pool(&mut self) {
        let state = self.manager.state.lock();
        let bound = match needs_pager(state.config.policy) {
            true => state.config.ahead.0,
            false => 0,
        };
        let have = state.pool_end.0.saturating_sub(state.next_offset.0);
        let excess = Bytes(have.saturating_sub(bound) / SUPERPAGE * SUPERPAGE);
        drop(state);
        self.empty_pool(excess);
    }

    /// Gives all regions a new policy, and brings their extents in step.
    fn follow(&mut self, policy: Policy) {
        self.predicted.clear();
        self.ahead.clear();
        let mut state = self.manager.state.lock();
        for region in state.table.regions.values_mut() {
            region.follow(policy);
        }
        drop(state);
        let mut next = Slot(0);
        while let Some(run) = self.steer_run(next, policy) {
            next = run.end;
            self.answer_faults();
        }
    }

    /// Brings the first run of extents at or after `from` in step with a policy,
    /// and returns it.
    fn steer_run(&self, from: Slot, policy: Policy) -> Option<Range<Slot>> {
        let mut state = self.manager.state.lock();
        let run = next_followers(&state, from)?;
        let mut work = Work::new(self.manager, &self.handles, &mut state);
        match policy {
            Policy::Eager => work.make_whole(run.clone()),
            Policy::Base => work.settle(&run),
            Policy::Reserve | Policy::Adaptive => work.empty_again(&run),
            Policy::Static => {}
        }
        Some(run)
    }
}

/// The first run of extents at or after `from` that are mapped from the object,
/// and nobody works on.
fn next_followers(state: &State, from: Slot) -> Option<Range<Slot>> {
    let extents = state.table.extents.range(from..);
    let free = extents.filter(|(slot, e)| !e.busy && state.table.slot_is_uniform(*slot));
    first_run(free.map(|(slot, _)| slot))
}

impl Work<'_> {
    /// Leaves what is empty or reserved to base pages. What a reservation holds
    /// unpopulated is given back.
    fn settle(&mut self, run: &Range<Slot>) {
        for slot in (run.start.0..run.end.0).map(Slot) {
            let Some(extent) = self.state.table.extents.get(slot).copied() else {
                continue;
            };
            if extent.is_reservation() {
                // Without the privilege the reservation stays the program's.
                let _ = self.preempt(slot);
            }
            if extent.state == ExtentState::Empty || extent.is_reservation() {
                self.make_base(slot..slot.next());
            }
        }
    }

    /// Lets the first touch of extents that hold nothing be reported again. They
    /// are armed first: what is touched before is seen by looking, and what is
    /// touched later waits.
    pub(super) fn empty_again(&mut self, run: &Range<Slot>) {
        for slot in (run.start.0..run.end.0).map(Slot) {
            let state = self.state.table.extents.get(slot).map(|e| e.state);
            let Some(before @ (ExtentState::Whole | ExtentState::Base)) = state else {
                continue;
            };
            let uniform = self.state.table.slot_is_uniform(slot);
            let locked = self.state.table.overlaps(slot.range()).any(|i| i.locked);
            if !uniform || locked || !self.is_hole(slot) {
                continue;
            }
            let armed = self.arm(slot.range());
            if armed.is_ok() && self.is_hole(slot) {
                self.state.queue.remove(slot);
                if let Some(extent) = self.state.table.extents.get_mut(slot) {
                    extent.state = ExtentState::Empty;
                    kernel_access::note_empty();
                    extent.folio = false;
                    extent.dense = false;
                }
                continue;
            }
            let again = match before {
                ExtentState::Whole => self.arm_whole(slot.range()),
                _ => self.arm_base(slot.range()),
            };
            if again.is_err() {
                self.manager.stats().note(Note::SystemCallFailed);
            }
            if let Ok(uffd) = self.handles.uffd() {
                // Whoever touched it meanwhile goes on.
                let _ = uffd::wake(uffd, run_range(&(slot..slot.next())));
            }
        }
    }
}
