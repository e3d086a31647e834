//! The pager thread: it answers faults on missing pages, prepares extents
//! ahead of need, watches populations, promotes, gives memory back under
//! pressure, and takes memory back after forks.
//!
//! Its rules: it never touches memory that it manages, it holds the lock only
//! for short steps, and it zeroes folios without the lock. It keeps its
//! descriptors in a table of its own.

mod ahead;
mod pauses;
mod recycle;
mod relief;
mod rest;
mod settings;
mod share;
mod small;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use quire_core::config::{LEAST_DESCRIPTORS, Policy};
use quire_core::policy::{self, Decision, SOONEST_LOOK};
use quire_core::stat::{Call, Counter, FailedCall, Note, Privilege};
use quire_core::units::{
    AddrRange, BASE_PAGE, Bytes, ObjectOffset, PageCount, SUPERPAGE, Slot, VirtAddr,
};
use quire_linux::control::ControlSocket;
use quire_linux::huge_file::{self, ForkMark, Window};
use quire_linux::own_threads::Own;
use quire_linux::raw::{Errno, Result};
use quire_linux::ready::{Ready, When};
use quire_linux::sysinfo::MemInfo;
use quire_linux::sysinfo::cgroup::MemoryGroup;
use quire_linux::uffd::{self, Fault, Scope};
use quire_linux::{lone_thread, pagemap, sysinfo, thread};

use self::ahead::{Predicted, clip_to_region};
use self::recycle::Recycling;
use self::small::may_try_whole;
use crate::blocks::Blocks;
use crate::extent::{Work, now_ms};
use crate::hands::{self, Follower};
use crate::manager::{Handles, Manager, State};
use crate::outcome::Outcome;
use crate::table::{ExtentState, RegionId};

/// How often populations are looked at, at least, while extents are zeroed
/// ahead of a program: it must not run away from what was prepared for it.
const ZEROING: Duration = Duration::from_millis(1);
/// Looking may take this part of the pager's time at most while nothing
/// changes.
const LOOK_SHARE: u32 = 20;
/// The same while something does. Who fills one extent after the other has few that
/// are looked at, and their looks end long before the shortest pause; a program that
/// fills hundreds at a time needs its processors for itself.
const CHANGING_SHARE: u32 = 8;
/// How many extents are looked at under one hold of the lock.
const LOOK_RUN: u64 = 64;
/// How often it is checked whether forked children are gone.
const CHILDREN_MS: u64 = 20;
/// A reservation that has not grown for this long counts as left behind.
const STALE_MS: u64 = 200;
/// How often the same touch may be reported before its extent is left to the
/// kernel.
const MAX_REPEATS: u32 = 64;
/// How long the pager stays awake when nothing is managed any more.
const LINGER: Duration = Duration::from_millis(100);
/// How often the table of regions is shared.
const SHARE_MS: u64 = 100;
/// What the pager is woken by.
const EVENT: u64 = 1 << 0;
const FAULT: u64 = 1 << 1;
const REQUEST: u64 = 1 << 2;
const STALL: u64 = 1 << 3;

/// What the pager became.
static OUTCOME: Outcome = Outcome::new();

/// Starts the pager thread and waits until it is ready. It takes no lock of the program's meanwhile.
pub(crate) fn start(manager: &'static Manager) -> std::result::Result<(), Note> {
    OUTCOME.reset();
    let argument = std::ptr::from_ref(manager) as usize;
    hands::spawn(|threads| &threads.pager, main, argument).map_err(|_| Note::NoPager)?;
    OUTCOME.wait(Note::NoPager, || hands::is_there(|threads| &threads.pager))
}

extern "C" fn main(manager: usize) {
    // SAFETY: `start` gave the address of what lives as long as the process.
    let manager: &'static Manager = unsafe { &*(manager as *const Manager) };
    let _own = Own::now();
    lone_thread::set_name(c"quire-pager");
    serve(manager, |outcome| OUTCOME.report(outcome));
}

/// The pager thread. A process that needs no pager has the thread only for
/// changes of its settings, and only where somebody can ask for them.
fn serve(manager: &'static Manager, report: impl Fn(std::result::Result<(), Note>)) {
    let control = manager.control_socket();
    let policy = manager.policy();
    if settings::needs_pager(policy) {
        match Pager::new(manager, policy) {
            Ok(mut pager) => {
                report(Ok(()));
                pager.take_control(control);
                pager.run();
            }
            Err(note) => report(Err(note)),
        }
    } else {
        report(Ok(()));
        if let Some(control) = control {
            settings::listen(manager, control).run();
        }
    }
}

struct Pager {
    manager: &'static Manager,
    handles: Handles,
    /// What it sleeps on.
    ready: Ready,
    window: Window,
    control: Option<ControlSocket>,
    group: Option<MemoryGroup>,
    /// The machine's memory, when it was looked at last.
    machine: MemInfo,
    /// Tells of waiting for memory.
    _stall: Option<OwnedFd>,
    stalled: bool,
    /// Extents to reserve ahead of need.
    ahead: VecDeque<Slot>,
    /// The runs that are mapped whole because of what was before them.
    predicted: BTreeMap<RegionId, Predicted>,
    /// Something was zeroed ahead since the last look.
    zeroed: bool,
    /// Where the search for superpages that hold little goes on.
    next_superpage: Slot,
    /// How long to wait between two looks at populations.
    pause: Duration,
    next_look_ns: u64,
    next_pressure_ms: u64,
    next_children_ms: u64,
    next_share_ms: u64,
    /// Until then the pager does not rest, even if nothing is managed.
    lingers_until_ns: u64,
    /// When the first rest ends that is known of.
    next_rest_ms: u64,
    /// Some memory could not be taken back yet.
    waited_for: bool,
    /// The last fork after which waiting threads were woken.
    forks_woken: u64,
    /// The last touch that was reported, and how often in succession.
    last_fault: VirtAddr,
    repeats: u32,
    /// What may still be reserved before memory is looked at again.
    budget: Bytes,
    blocks: Blocks,
    recycling: Recycling,
    /// How many mappings managed memory may be split into.
    mappings: u64,
}

impl Pager {
    fn new(manager: &'static Manager, policy: Policy) -> std::result::Result<Pager, Note> {
        // What is open stays open when the program lowers the limit later.
        if thread::soft_limit(libc::RLIMIT_NOFILE) < LEAST_DESCRIPTORS {
            return Err(Note::FewDescriptors);
        }
        if sysinfo::memory::strict_overcommit() {
            return Err(Note::StrictOvercommit);
        }
        if sysinfo::process::huge_pages_disabled() {
            return Err(Note::HugePagesDisabled);
        }
        let pagemap = pagemap::open().map_err(|_| Note::NoPagemapScan)?;
        let lowest = AddrRange::new(VirtAddr(0), Bytes(SUPERPAGE));
        pagemap::scan(pagemap.as_fd(), lowest, pagemap::Filter::PRESENT, |_| {})
            .map_err(|_| Note::NoPagemapScan)?;
        let (uffd, privilege) = match uffd::open() {
            Ok((fd, Scope::Full)) => (Some(fd), Privilege::Full),
            Ok((fd, Scope::UserOnly)) => (Some(fd), Privilege::User),
            Err(_) if policy == Policy::Eager => (None, Privilege::None),
            // It can be had, but not for what is asked of it.
            Err(Errno(libc::EINVAL)) => return Err(Note::OldUserfaultfd),
            Err(_) => return Err(Note::NoUserfaultfd),
        };
        match privilege {
            Privilege::Full => {}
            Privilege::User => manager.stats().note(Note::UserModeOnly),
            _ => manager.stats().note(Note::NoUserfaultfd),
        }
        // An unprivileged process gets the file from a child, which goes on from here on a copy of this stack.
        let object = hands::while_pager_is_inherited(huge_file::create);
        let handles = Handles {
            object: object.map_err(|_| why_no_object())?,
            uffd,
            pagemap,
            event: thread::new_event().map_err(|_| Note::NoPager)?,
            mark: ForkMark::new_file().map_err(|_| Note::NoPager)?,
        };
        let window = Window::new().map_err(|_| Note::NoPager)?;
        let stall = sysinfo::memory::stall_trigger().ok();
        let ready = sleeps_on(&handles, stall.as_ref()).map_err(|_| Note::NoPager)?;
        manager.publish(&handles, privilege);
        let mappings = sysinfo::memory::max_map_count() / 2;
        {
            let mut state = manager.state.lock();
            state.mappings_left = mappings;
            state.window = window.range();
        }
        Ok(Pager {
            manager,
            handles,
            ready,
            window,
            control: None,
            group: MemoryGroup::of_self(),
            machine: MemInfo::default(),
            _stall: stall,
            stalled: false,
            ahead: VecDeque::new(),
            predicted: BTreeMap::new(),
            zeroed: false,
            next_superpage: Slot(0),
            pause: SOONEST_LOOK,
            next_look_ns: 0,
            next_pressure_ms: 0,
            next_children_ms: 0,
            next_share_ms: 0,
            lingers_until_ns: 0,
            next_rest_ms: u64::MAX,
            waited_for: false,
            forks_woken: 0,
            last_fault: VirtAddr(0),
            repeats: 0,
            budget: Bytes::ZERO,
            blocks: Blocks::new(policy::ALLOWED_PART),
            recycling: Recycling::default(),
            mappings,
        })
    }

    fn run(&mut self) {
        let mut follower = Follower::default();
        loop {
            follower.follow();
            let timeout = self.timeout();
            self.wait(timeout);
            self.answer_faults();
            self.work();
        }
    }

    /// How long nothing needs to be done.
    fn timeout(&mut self) -> Option<Duration> {
        if !self.ahead.is_empty() || self.predicted.values().any(|p| p.pending) {
            return Some(Duration::ZERO);
        }
        let now = thread::now_ns();
        let mut state = self.manager.state.lock();
        let pool_wanted = self.pool_missing(&state);
        let idle = state.table.is_empty() && !state.children && !pool_wanted;
        // A program that maps and unmaps all the time does not wake the pager
        // each time.
        state.pager_rests = idle && now >= self.lingers_until_ns;
        if state.pager_rests {
            return None;
        }
        if !idle {
            self.lingers_until_ns = now + LINGER.as_nanos() as u64;
        }
        drop(state);
        if pool_wanted && self.budget.0 >= SUPERPAGE && self.is_idle() {
            return Some(Duration::ZERO);
        }
        let linger = match idle {
            true => self.lingers_until_ns,
            false => u64::MAX,
        };
        let look = self.next_look_ns.min(linger).saturating_sub(now);
        let until = |ms: u64| ms.saturating_mul(1_000_000).saturating_sub(now);
        let (pressure, rest) = (until(self.next_pressure_ms), until(self.next_rest_ms));
        Some(Duration::from_nanos(look.min(pressure).min(rest)))
    }

    /// From now on changes are asked for here.
    fn take_control(&mut self, control: Option<ControlSocket>) {
        self.control = control.filter(|c| self.ready.add(c, When::Readable, REQUEST).is_ok());
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        if timeout.is_none_or(|t| !t.is_zero()) {
            self.window.close();
        }
        let ready = self.ready.wait(timeout);
        if ready & EVENT != 0 {
            thread::clear_event(&self.handles.event);
            self.hurry();
        }
        if ready & REQUEST != 0 {
            self.answer_requests();
        }
        if ready & STALL != 0 {
            self.stalled = true;
            self.next_pressure_ms = 0;
            self.hurry();
        }
    }

    /// Something happened: look again soon.
    fn hurry(&mut self) {
        self.pause = SOONEST_LOOK;
        let soon = thread::now_ns() + self.pause.as_nanos() as u64;
        self.next_look_ns = self.next_look_ns.min(soon);
    }

    fn work(&mut self) {
        let now = now_ms();
        if now >= self.next_pressure_ms {
            self.relieve(now);
        }
        if now >= self.next_children_ms {
            self.next_children_ms = now + CHILDREN_MS;
            self.take_back();
        }
        if thread::now_ns() >= self.next_look_ns {
            self.look(now);
        } else {
            self.prepare_one();
        }
        if now >= self.next_share_ms {
            self.next_share_ms = now + SHARE_MS;
            self.next_rest_ms = now;
            self.share();
            self.look_at_left();
        }
        if now >= self.next_rest_ms {
            self.end_rests();
        }
    }

    /// Does one piece of what can be done ahead of need.
    fn prepare_one(&mut self) {
        if let Some(slot) = self.ahead.pop_front() {
            self.reserve(slot);
        } else if !self.zero_ahead() {
            self.fill_pool();
        }
    }

    fn answer_faults(&mut self) {
        while let Some(fault) = self.next_fault() {
            if !fault.protected {
                self.answer(&fault);
            }
        }
    }

    fn next_fault(&self) -> Option<Fault> {
        uffd::read_fault(self.handles.uffd().ok()?)
    }

    /// Answers a touch of a page that the object does not hold.
    fn answer(&mut self, fault: &Fault) {
        self.manager.stats().add(Counter::PagerFaults, 1);
        let slot = fault.address.slot();
        let decision = self.decide(slot);
        // A touch of an empty extent is its first, even where the program has
        // emptied it since the same touch was reported before.
        let again = decision.is_none() && self.last_fault == fault.address;
        self.repeats = if again { self.repeats + 1 } else { 0 };
        self.last_fault = fault.address;
        match decision {
            Some(Decision::Whole) if self.map_whole(slot) => {}
            Some(Decision::Whole | Decision::Reserve) if self.reserve(slot) => {}
            Some(decision) => {
                if decision == Decision::Base {
                    self.watch_left(slot);
                }
                self.leave(slot);
                self.rest_around(slot);
            }
            None => {}
        }
        if self.repeats >= MAX_REPEATS || (self.repeats > 0 && self.is_base(slot)) {
            self.abandon(fault.address);
        }
        if let Ok(uffd) = self.handles.uffd() {
            let _ = uffd::wake(uffd, slot.range());
        }
        self.plan_ahead(slot);
        self.hurry();
    }

    /// What to do with an extent that is touched while it is empty.
    fn decide(&mut self, slot: Slot) -> Option<Decision> {
        let manager = self.manager;
        let mut state = manager.state.lock();
        let extent = state.table.extents.get(slot).copied()?;
        if !state.table.slot_is_shared(slot) {
            return None;
        }
        if extent.state != ExtentState::Empty {
            // Somebody else's touch has been answered since.
            return None;
        }
        if let Some(extent) = state.table.extents.get_mut(slot) {
            extent.told = false;
        }
        let region = state.table.regions.get_mut(&extent.region)?;
        region.history.note_touch(slot);
        let decision = region.history.decide(slot);
        let gated = region.policy.reserves();
        let region = state.table.regions.get(&extent.region)?;
        if !may_try_whole(&state, region) {
            drop(state);
            return Some(self.decide_small(decision));
        }
        let gated = gated && state.is_gated();
        if decision == Decision::Whole && (gated || extent.probe) {
            return Some(Decision::Reserve);
        }
        Some(decision)
    }

    /// Reserves an extent: brings one zeroed huge folio into the object. Says
    /// whether the extent is reserved now.
    fn reserve(&mut self, slot: Slot) -> bool {
        if !self.has_room() {
            self.manager.stats().note(Note::MemoryShort);
            self.fail(slot);
            return false;
        }
        let Some(offset) = self.claim(slot) else {
            return false;
        };
        let tries = self.tries_whole(slot);
        let there = self.blocks.has_superpage();
        let huge = tries && self.take_superpage(offset);
        if !huge && tries && there && self.is_unreported() {
            // Not for want of a block: the program was here first.
            return self.leave_touched(offset);
        }
        if !huge && self.fill_small(offset) {
            if tries {
                self.fail(slot);
            }
            return self.complete_small(offset);
        }
        self.complete(offset, huge)
    }

    /// Brings a superpage into the object, if one can be had at a price that is
    /// allowed. Says whether it did.
    fn take_superpage(&mut self, offset: ObjectOffset) -> bool {
        let Some(effort) = self.blocks.effort() else {
            return false;
        };
        let (object, pagemap) = (self.handles.object(), self.handles.pagemap());
        let began = thread::now_ns();
        let reserved = self.window.reserve(object, pagemap, offset, effort);
        let huge = matches!(reserved, Ok(true));
        let took = Duration::from_nanos(thread::now_ns() - began);
        self.blocks.note(effort, huge, took);
        if huge {
            self.budget = self.budget.saturating_sub(Bytes(SUPERPAGE));
        }
        huge
    }

    /// Whether a superpage of 2 MiB may be tried for an extent.
    fn tries_whole(&self, slot: Slot) -> bool {
        let state = self.manager.state.lock();
        let extent = state.table.extents.get(slot);
        let region = extent.and_then(|e| state.table.regions.get(&e.region));
        region.is_none_or(|region| may_try_whole(&state, region))
    }

    /// Whether first touches are not reported. An extent that counts as empty may hold pages
    /// then; the kernel makes no superpage around one.
    fn is_unreported(&self) -> bool {
        self.manager.privilege() == Privilege::User
    }

    /// Leaves a claimed extent to base pages that the program has touched before it could be
    /// reserved. That is no failure, and what else would come of it takes memory: folios around
    /// single pages.
    fn leave_touched(&self, offset: ObjectOffset) -> bool {
        let mut state = self.manager.state.lock();
        if let Some(slot) = self.unclaim(&mut state, offset)
            && state.table.slot_is_shared(slot)
        {
            Work::new(self.manager, &self.handles, &mut state).make_base(slot..slot.next());
        }
        false
    }

    /// Marks an empty extent as being worked on.
    fn claim(&self, slot: Slot) -> Option<ObjectOffset> {
        let mut state = self.manager.state.lock();
        if !state.table.slot_is_shared(slot) {
            return None;
        }
        let offset = state.table.slot_offset(slot)?;
        let extent = state.table.extents.get(slot)?;
        if extent.busy || extent.state != ExtentState::Empty {
            return None;
        }
        if self.is_unreported() {
            let mut work = Work::new(self.manager, &self.handles, &mut state);
            if !work.is_hole(slot) {
                work.make_base(slot..slot.next());
                return None;
            }
        }
        state.table.extents.get_mut(slot)?.busy = true;
        Some(offset)
    }

    /// Ends the work on the extent at `offset`, and says where the program has it
    /// now. One that it has given up is given back.
    fn unclaim(&self, state: &mut State, offset: ObjectOffset) -> Option<Slot> {
        let Some(slot) = state.table.slot_of(offset) else {
            self.drop_extent(state, offset);
            return None;
        };
        state.table.extents.get_mut(slot)?.busy = false;
        Some(slot)
    }

    /// Enters the outcome of a reservation of the extent at `offset`, wherever
    /// the program has moved it meanwhile.
    fn complete(&self, offset: ObjectOffset, huge: bool) -> bool {
        let mut state = self.manager.state.lock();
        let Some(slot) = self.unclaim(&mut state, offset) else {
            return false;
        };
        let shared = state.table.slot_is_shared(slot);
        let discarded = Work::new(self.manager, &self.handles, &mut state).is_hole(slot);
        let Some(extent) = state.table.extents.get_mut(slot) else {
            return false;
        };
        if huge && discarded {
            return false;
        }
        if !huge {
            // The attempt may have left a base page there, of which a touch
            // would not be reported.
            if !shared {
                extent.state = ExtentState::Base;
            }
            drop(state);
            self.fail(slot);
            self.leave(slot);
            return false;
        }
        if extent.state == ExtentState::Empty {
            extent.state = ExtentState::Reserved;
        }
        extent.folio = true;
        extent.changed_ms = now_ms();
        if !shared {
            return false;
        }
        let region = extent.region;
        if let Some(region) = state.table.regions.get_mut(&region) {
            region.backoff.succeeded();
        }
        state.queue.touch(slot);
        self.manager.stats().add(Counter::Reservations, 1);
        true
    }

    /// Gives back an extent of the object that the program has unmapped
    /// meanwhile; while children look at the object, later. What was never
    /// handed out they do not see, and later it may be in use.
    fn drop_extent(&self, state: &mut State, offset: ObjectOffset) {
        if state.table.uses_object(offset, Bytes(SUPERPAGE)) {
            // A part is still mapped; the rest is given back with it.
        } else if state.children && offset < state.next_offset {
            state.garbage.push((offset, Bytes(SUPERPAGE)));
        } else {
            let _ = huge_file::punch(self.handles.object(), offset, Bytes(SUPERPAGE));
        }
    }

    /// Counts a failed reservation and holds the next ones back.
    fn fail(&self, slot: Slot) {
        self.manager.stats().add(Counter::FailedReservations, 1);
        let mut state = self.manager.state.lock();
        let region = state.table.extents.get(slot).map(|e| e.region);
        if let Some(region) = region.and_then(|id| state.table.regions.get_mut(&id)) {
            region.failed += 1;
            region.backoff.failed(now_ms());
        }
    }

    /// Leaves an extent to the kernel's base pages: later faults there cost
    /// what they cost without Quire.
    fn leave(&self, slot: Slot) {
        let mut state = self.manager.state.lock();
        let eligible = state.table.extents.get(slot).is_some_and(|e| !e.busy)
            && state.table.slot_is_shared(slot);
        if eligible {
            Work::new(self.manager, &self.handles, &mut state).make_base(slot..slot.next());
        }
    }

    /// Whether an extent is left to base pages. Its touches are not reported,
    /// unless the kernel refused to end that.
    fn is_base(&self, slot: Slot) -> bool {
        let state = self.manager.state.lock();
        let extent = state.table.extents.get(slot);
        extent.is_some_and(|e| e.state == ExtentState::Base)
    }

    /// A touch that is reported again and again meets a page that is truly
    /// missing: whatever the reason, the kernel must supply it. Where it does
    /// not even end the reports, for want of a mapping, Quire supplies it.
    fn abandon(&self, at: VirtAddr) {
        if self.repeats >= MAX_REPEATS {
            self.manager.stats().note(Note::TouchRepeated);
        }
        self.leave(at.slot());
        if let Ok(uffd) = self.handles.uffd()
            && let Err(Errno(errno)) = uffd::unregister(uffd, at.slot().range())
        {
            let page = AddrRange::new(at.page_floor(), Bytes(BASE_PAGE));
            let _ = uffd::supply_zeros(uffd, page);
            let call = Call::Unregister;
            let stats = self.manager.stats();
            stats.set_failed_call(FailedCall { call, errno });
            stats.note(Note::SystemCallFailed);
        }
    }

    /// Lets the predicted run of extents from `slot` on be mapped whole. Says
    /// whether `slot` is.
    fn map_whole(&mut self, slot: Slot) -> bool {
        let mut state = self.manager.state.lock();
        let Some(extent) = state.table.extents.get(slot).copied() else {
            return false;
        };
        let run = state
            .table
            .regions
            .get(&extent.region)
            .and_then(|r| r.history.whole_run())
            .filter(|run| run.contains(&slot))
            .map_or(slot..slot.next(), |run| slot..run.end);
        let clipped = clip_to_region(&state.table, &run, extent.region);
        Work::new(self.manager, &self.handles, &mut state).make_whole(clipped);
        let extent = state.table.extents.get(slot);
        extent.is_some_and(|e| e.state == ExtentState::Whole)
    }

    /// Looks at the populations of the extents that can change state and that
    /// somebody acts on.
    fn look(&mut self, now: u64) {
        let began = thread::now_ns();
        let mut changed = PageCount(0);
        let mut next = Slot(0);
        while let Some((run, changes)) = self.look_at_run(next, now, Watch::Acting) {
            changed += changes;
            next = run.end;
            self.answer_faults();
        }
        self.extend_whole();
        let zeroed = std::mem::take(&mut self.zeroed);
        if changed.0 > 0 && self.manager.privilege() == Privilege::User {
            self.plan_unreported();
        }
        self.note_stale(now);
        self.pause = policy::look_again(self.pause, changed);
        if zeroed {
            self.pause = self.pause.min(ZEROING);
        }
        let share = if changed.0 > 0 {
            CHANGING_SHARE
        } else {
            LOOK_SHARE
        };
        let ended = thread::now_ns();
        let took = Duration::from_nanos(ended - began);
        let pause = self.pause.max(took * share);
        self.next_look_ns = ended + pause.as_nanos() as u64;
    }

    /// Looks at the first run of watched extents at or after `from`, promotes
    /// what is full, and returns the run and how many pages changed.
    fn look_at_run(&self, from: Slot, now: u64, watch: Watch) -> Option<(Range<Slot>, PageCount)> {
        let mut state = self.manager.state.lock();
        let run = watched_run(&state, from, watch)?;
        let mut work = Work::new(self.manager, &self.handles, &mut state);
        let (full, changed) = work.look(&run, now).ok()?;
        let (small, full): (Vec<Slot>, Vec<Slot>) = full
            .into_iter()
            .filter(|s| work.state.table.slot_is_uniform(*s))
            .partition(|s| work.is_small(*s));
        for slot in small {
            work.settle_small(slot);
        }
        for group in full.chunk_by(|a, b| a.next() == *b) {
            work.promote(&(group[0]..group[group.len() - 1].next()));
        }
        Some((run, changed))
    }

    /// Tells the regions about reservations that were left sparse.
    fn note_stale(&self, now: u64) {
        let mut state = self.manager.state.lock();
        let newest = state.queue.iter().next_back();
        let stale: Vec<Slot> = state
            .queue
            .iter()
            .filter(|slot| Some(*slot) != newest)
            .filter(|slot| {
                state.table.extents.get(*slot).is_some_and(|e| {
                    !e.told && e.changed_ms + STALE_MS < now && !e.popmap.is_empty()
                })
            })
            .collect();
        for slot in stale {
            let Some(extent) = state.table.extents.get_mut(slot) else {
                continue;
            };
            extent.told = true;
            let (region, count) = (extent.region, extent.popmap.count());
            if let Some(region) = state.table.regions.get_mut(&region) {
                region.history.note_sparse(slot, count);
            }
        }
    }

    /// When no child looks at the object any more, takes the memory back that
    /// a fork made private.
    fn take_back(&mut self) {
        let forks = {
            let mut state = self.manager.state.lock();
            if !state.children || !state.forkers.is_empty() {
                return;
            }
            if state.unmarked {
                state.children = false;
                self.manager.stats().note(Note::ForkNotReturned);
                return;
            }
            state.fork_count
        };
        if self.forks_woken != forks {
            // Threads that were on their way to wait at the moment of the fork.
            self.forks_woken = forks;
            let mut state = self.manager.state.lock();
            Work::new(self.manager, &self.handles, &mut state).wake_stale_waits();
        }
        if !ForkMark::all_gone(self.handles.mark.as_fd()).unwrap_or(false) {
            return;
        }
        let mut next = VirtAddr(0);
        self.waited_for = false;
        while let Some(done) = self.take_back_piece(next, forks) {
            next = done;
            self.answer_faults();
        }
        self.hurry();
    }

    /// Takes back the first private piece at or after `from`; returns where to
    /// go on, or `None` when there is nothing left or a fork came between.
    fn take_back_piece(&mut self, from: VirtAddr, forks: u64) -> Option<VirtAddr> {
        let room = self.budget.0 >= SUPERPAGE && self.blocks.has_superpage();
        let mut state = self.manager.state.lock();
        if !state.forkers.is_empty() || state.fork_count != forks {
            return None;
        }
        let mut work = Work::new(self.manager, &self.handles, &mut state);
        let Some(part) = work.next_private(from) else {
            work.collect_garbage();
            state.children = self.waited_for;
            return None;
        };
        let taken: Result<()> = if self.manager.privilege() == Privilege::Full {
            work.take_back(&part, &mut self.window, room)
        } else {
            Err(Errno(libc::EPERM))
        };
        match taken {
            Ok(()) => {}
            Err(Errno(libc::EBUSY)) => self.waited_for = true,
            Err(_) => work.note_not_returned(),
        }
        Some(part.range.end)
    }

    /// Brings the statistics page up to date.
    fn share(&self) {
        let mut next = Slot(0);
        while let Some((run, _)) = self.look_at_run(next, now_ms(), Watch::All) {
            next = run.end;
        }
        let mut state = self.manager.state.lock();
        self.manager.share_state(&mut state);
        state.mappings_left = self.mappings.saturating_sub(state.table.mappings());
        drop(state);
        self.manager
            .stats()
            .set(Counter::PagerCpu, thread::cpu_time_ns());
    }
}

/// Why there is no file for the memory.
fn why_no_object() -> Note {
    match thread::soft_limit(libc::RLIMIT_FSIZE) {
        libc::RLIM64_INFINITY => Note::NoHugeFolios,
        _ => Note::FileSizeLimit,
    }
}

/// What the pager sleeps on, but for the control socket.
fn sleeps_on(handles: &Handles, stall: Option<&OwnedFd>) -> Result<Ready> {
    let ready = Ready::new()?;
    ready.add(&handles.event, When::Readable, EVENT)?;
    if let Some(uffd) = &handles.uffd {
        ready.add(uffd, When::Readable, FAULT)?;
    }
    if let Some(stall) = stall {
        ready.add(stall, When::Urgent, STALL)?;
    }
    Ok(ready)
}

/// Which extents are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watch {
    /// Those of which something follows for the pager.
    Acting,
    /// All that can change.
    All,
}

/// The first run of extents, at or after `from`, whose population is watched.
fn watched_run(state: &State, from: Slot, watch: Watch) -> Option<Range<Slot>> {
    let extents = &state.table.extents;
    let watched = |slot: &Slot| {
        extents.get(*slot).is_some_and(|e| match (e.state, watch) {
            (ExtentState::Reserved, _) => true,
            (ExtentState::Small, _) => !e.popmap.is_full(),
            (ExtentState::Whole, Watch::All) => !e.popmap.is_full(),
            // Some of its pages were mapped one by one.
            (ExtentState::Whole, Watch::Acting) => !e.popmap.is_empty(),
            _ => false,
        }) && state.table.slot_is_shared(*slot)
    };
    match watch {
        Watch::Acting => first_run(state.queue.from(from).filter(watched)),
        Watch::All => first_run(extents.range(from..).map(|(s, _)| s).filter(watched)),
    }
}

/// The first run without gaps, up to a length that is looked at at once.
fn first_run(mut slots: impl Iterator<Item = Slot>) -> Option<Range<Slot>> {
    let first = slots.next()?;
    let mut end = first.next();
    for slot in slots {
        if slot != end || end.0 - first.0 >= LOOK_RUN {
            break;
        }
        end = slot.next();
    }
    Some(first..end)
}
