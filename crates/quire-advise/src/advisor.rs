//! One process: looks at it, advises, and copies, within budgets of processor time.
//!
//! A look reads the list of mappings and the page table. What is full is noted with the time; where extents filled
//! up one after the other, the next ones are advised at once ([`quire_core::advise`]), because that costs no copy.
//! Between looks, glances follow such fronts: they read the page table only where the fronts expect something new,
//! which costs a tenth of a look.
//!
//! What stays full on base pages is copied into superpages later, as a copy pays only for memory that lives: not
//! before it has been full for [`LIVED`], and at half of the budget before the process has lived for five seconds. Where
//! copies are dear, as on a virtual machine whose host takes free memory back, it is a sixth. So a program that ends
//! right after the copies has paid at most a twentieth of its life for them, or a sixtieth.

use std::time::Duration;

use quire_core::advise::{LOOKS_APART, Seen, look_again};
use quire_core::attach::{CpuBudget, CpuShare, MOST_SHARED};
use quire_core::config::Policy;
use quire_core::policy::Backoff;
use quire_core::stat::{Counter, Note, RegionKind, StatPage};
use quire_core::units::{AddrRange, PageCount, SUPERPAGE};
use quire_linux::Errno;
use quire_linux::sysinfo::thp::Setting;

use crate::known::Known;
use crate::machine::Machine;
use crate::process::{Areas, Process, Refusal};
use crate::region::Region;

/// How long memory must have been full before it is copied.
pub const LIVED: Duration = Duration::from_millis(100);
/// How long a process is young: most end before that.
const YOUNG: Duration = Duration::from_secs(5);
/// The part of the share that copies may take until then, and where copies are dear.
const YOUNG_PARTS: (u32, u32) = (2, 6);
/// Copies begin with what they earn in so much time.
const COPIES_BEGIN: Duration = Duration::from_millis(100);
/// A copy that takes longer is dear: most of it goes into clearing a page that the host has to find.
const DEAR: Duration = Duration::from_millis(1);
/// The shares of a processor that looks and glances may take, in percent.
const SHARES: (f64, f64) = (0.5, 1.0);
/// Either may save up what it earns in so much time.
const LOOKS_SAVE: Duration = Duration::from_secs(4);
/// They begin with what they earn in so much.
const LOOKS_BEGIN: Duration = Duration::from_millis(300);
/// How often looks read the page tables of what was full at the last look, too.
const ALL_APART: Duration = Duration::from_millis(500);
/// Shared memory is left alone for so many times what a look at it costs: a quarter of a percent of a processor.
const SHARED_APART: u32 = 400;
/// A process in which nothing changes is left alone for so many times what a look costs, but not for longer than that.
const REST: u32 = 1000;
const RAREST_LOOK: Duration = Duration::from_secs(10);
/// Fronts are glanced at, so looks for others may be as rare as this.
const LOOK_BESIDE_FRONTS: Duration = Duration::from_millis(20);
/// The shortest and the longest time between two glances.
const GLANCES_APART: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(20));
/// Copies may save up what they earn in so much time: so a forking program has its superpages back soon.
const COPIES_SAVE: Duration = Duration::from_secs(10);
/// A program that fills memory takes at least so much for an extent.
const FASTEST_EXTENT: Duration = Duration::from_micros(80);
/// How often the regions and their pictures are written down.
const SHARE_APART: Duration = Duration::from_millis(100);
/// How long an extent is left alone for which there was no block, so that others come first.
const NO_BLOCK: Duration = Duration::from_secs(1);
/// The least time between two copies.
const COPIES_APART: Duration = Duration::from_micros(100);

/// The time on any clock that never goes back, and the processor time used so far.
pub trait Clock {
    /// The time.
    fn now(&self) -> Duration;
    /// The processor time.
    fn used(&self) -> Duration;
}

/// Advises one process.
pub struct Advisor<P, C> {
    process: P,
    clock: C,
    machine: Machine,
    stats: &'static StatPage,
    policy: Policy,
    regions: Vec<Region>,
    areas: Areas,
    looks: CpuBudget,
    glances: CpuBudget,
    copies: CpuBudget,
    /// What copies may take of a processor when the process is no longer young.
    share: CpuShare,
    young_until: Duration,
    /// What a copy takes: each one moves it by an eighth.
    copy_cost: Duration,
    interval: Duration,
    look_at: Duration,
    /// When to look at what was full, too.
    all_at: Duration,
    /// When to look at shared memory.
    shared_at: Duration,
    /// Between looks: when to glance at the fronts, and how long after the glance before.
    glance_at: Duration,
    glances_apart: Duration,
    copy_at: Duration,
    share_at: Duration,
    backoff: Backoff,
    /// Where the search for what is to be copied goes on.
    cursor: usize,
    /// Whether copies were made since the regions were written down.
    has_made: bool,
}

impl<P: Process, C: Clock> Advisor<P, C> {
    /// An advisor that has not looked yet.
    pub fn new(
        process: P,
        clock: C,
        machine: Machine,
        stats: &'static StatPage,
        policy: Policy,
        share: CpuShare,
    ) -> Advisor<P, C> {
        let now = clock.now();
        let budget = |percent| {
            let share = CpuShare::from_percent(percent).unwrap_or(CpuShare::DEFAULT);
            CpuBudget::new(share, now).saving(LOOKS_SAVE, LOOKS_BEGIN)
        };
        Advisor {
            process,
            clock,
            machine,
            stats,
            policy,
            regions: Vec::new(),
            areas: Areas::default(),
            looks: budget(SHARES.0),
            glances: budget(SHARES.1),
            copies: CpuBudget::new(share.part(YOUNG_PARTS.0), now)
                .saving(COPIES_SAVE, COPIES_BEGIN),
            share,
            young_until: now + YOUNG,
            copy_cost: DEAR / 2,
            interval: LOOKS_APART.0,
            look_at: now,
            all_at: now,
            shared_at: now,
            glance_at: Duration::MAX,
            glances_apart: GLANCES_APART.1,
            copy_at: now,
            share_at: now,
            backoff: Backoff::default(),
            cursor: 0,
            has_made: false,
        }
    }

    /// Follows another policy from now on.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
        self.stats.set_policy(policy);
    }

    /// Lets copies take another share of a processor.
    pub fn set_share(&mut self, share: CpuShare) {
        self.share = share;
        self.grow_up(self.clock.now());
    }

    /// Gives copies the share that a process of this age has.
    fn grow_up(&mut self, now: Duration) {
        let share = match (now < self.young_until, self.copy_cost > DEAR) {
            (true, false) => self.share.part(YOUNG_PARTS.0),
            (true, true) => self.share.part(YOUNG_PARTS.1),
            (false, _) => self.share,
        };
        if share != self.copies.share() {
            self.copies.set_share(share, now);
        }
    }

    /// The process has grown: it is looked at soon, if looks have anything left of their budget.
    pub fn hurry(&mut self) {
        if self.may_hurry() {
            self.interval = LOOKS_APART.0;
            let soon = self.clock.now() + self.interval;
            self.look_at = self.look_at.min(soon);
        }
    }

    /// Whether it is of use to say that the process has grown.
    pub fn may_hurry(&mut self) -> bool {
        self.looks.may_spend(self.clock.now())
    }

    /// Does what is due, and says for how long nothing will be.
    ///
    /// # Errors
    /// When the process cannot be looked at.
    pub fn turn(&mut self) -> Result<Duration, Errno> {
        let now = self.clock.now();
        if now >= self.look_at {
            self.look(now)?;
        } else if now >= self.glance_at {
            self.glance(now);
        }
        let copies = matches!(self.policy, Policy::Adaptive | Policy::Eager);
        if copies && self.clock.now() >= self.copy_at {
            self.copy();
        }
        let now = self.clock.now();
        self.stats.set(Counter::PagerCpu, nanos(self.clock.used()));
        let mut next = self.look_at.min(self.glance_at);
        if copies {
            next = next.min(self.copy_at);
        }
        Ok(next.saturating_sub(now).max(Duration::from_micros(50)))
    }

    fn look(&mut self, now: Duration) -> Result<(), Errno> {
        let began = self.clock.used();
        let pages = self.look_at_all(now)?;
        self.advise(now, false);
        Region::note_present(&self.regions, self.stats);
        self.share_regions(now);
        let (cost, after, pause) = self.pay(began, |own| &mut own.looks);
        self.interval = look_again(self.interval, PageCount(pages));
        let mut wait = self.interval;
        if pages == 0 {
            wait = wait.max(cost * REST).min(wait.max(RAREST_LOOK));
        }
        if let Some(until_unknown) = self.until_unknown() {
            if pages > 0 {
                wait = wait.max(LOOK_BESIDE_FRONTS);
                self.glances_apart = until_unknown;
                self.glance_at = after + until_unknown;
            }
        } else {
            self.glance_at = Duration::MAX;
        }
        self.look_at = after + wait.max(pause);
        self.look_at_shared(after);
        Ok(())
    }

    /// Looks at shared memory, if it is time to: which of its pages exist, the kernel finds out page by page. So this takes
    /// no more than half of what looks may.
    fn look_at_shared(&mut self, now: Duration) {
        if now < self.shared_at {
            return;
        }
        let began = self.clock.used();
        self.look_at_those(|kind| kind == RegionKind::Shared, now, true);
        let (cost, after, _) = self.pay(began, |own| &mut own.looks);
        self.shared_at = after + ALL_APART.max(cost * SHARED_APART);
    }

    /// Follows the fronts: what is known of mappings may be out of date, but advice on the wrong ones harms nobody.
    fn glance(&mut self, now: Duration) {
        let began = self.clock.used();
        let (mut pages, mut at_end) = (0, false);
        for region in self.regions.iter_mut().filter(|r| is_plain(r.kind)) {
            let Ok(change) = region.glance(&mut self.process, now) else {
                continue;
            };
            pages += change.pages;
            at_end |= change.pages > 0 && region.is_at_end();
            self.stats.add(Counter::Demotions, change.demoted);
        }
        if pages > 0 {
            self.advise(now, true);
        }
        let (_, after, pause) = self.pay(began, |own| &mut own.glances);
        self.glances_apart = match self.until_unknown() {
            Some(until_unknown) if pages > 0 => until_unknown,
            _ => self.glances_apart * 2,
        };
        // Where nothing has come for long, the next look is soon enough to begin anew.
        self.glance_at = match self.glances_apart > GLANCES_APART.1 {
            true => Duration::MAX,
            false => after + self.glances_apart.max(pause),
        };
        if at_end {
            let pause = self.looks.wait_for(Duration::from_nanos(1), after);
            self.look_at = self.look_at.min(after + LOOKS_APART.0.max(pause));
        }
    }

    /// Takes what was used since from a budget; says how much, what time it is, and how long to wait before as much may
    /// be used again.
    fn pay(
        &mut self,
        began: Duration,
        budget: impl Fn(&mut Self) -> &mut CpuBudget,
    ) -> (Duration, Duration, Duration) {
        let after = self.clock.now();
        let cost = self.clock.used().saturating_sub(began);
        let budget = budget(self);
        budget.spend(cost, after);
        (cost, after, budget.wait_for(cost, after))
    }

    /// How long the fastest program takes for half of what is advised ahead of it, if there is a front.
    fn until_unknown(&self) -> Option<Duration> {
        let ahead = self.regions.iter().filter_map(Region::ahead).min()?;
        let time = FASTEST_EXTENT * u32::try_from(ahead).unwrap_or(u32::MAX) / 2;
        Some(time.clamp(GLANCES_APART.0, GLANCES_APART.1))
    }

    /// Looks at all regions but shared memory; says by how many pages populations differ from before.
    fn look_at_all(&mut self, now: Duration) -> Result<u64, Errno> {
        self.areas.small = self.machine.small_folios(now);
        self.process.areas(&mut self.areas)?;
        self.regions = Region::succeed(std::mem::take(&mut self.regions), &self.areas.areas);
        // What the page table does not tell is counted by mapping, for which all of them must be known.
        let tells = self.process.tells_superpages();
        let all = !tells || now >= self.all_at;
        if all {
            self.all_at = now + ALL_APART;
        }
        let pages = self.look_at_those(|kind| kind != RegionKind::Shared, now, all);
        if !tells {
            self.count_superpages();
        }
        Ok(pages)
    }

    /// Looks at the regions of some kinds; says by how many pages populations differ from before.
    fn look_at_those(&mut self, wanted: fn(RegionKind) -> bool, now: Duration, all: bool) -> u64 {
        let mut pages = 0;
        for region in self.regions.iter_mut().filter(|r| wanted(r.kind)) {
            // Unmapped meanwhile: the next look knows.
            let Ok(change) = region.look_at(&mut self.process, now, all) else {
                continue;
            };
            pages += change.pages;
            self.stats.add(Counter::Demotions, change.demoted);
        }
        pages
    }

    /// Takes over what the kernel says of whole mappings, where the page table does not tell superpages.
    fn count_superpages(&mut self) {
        let regions = &self.regions;
        let mut huge = vec![0; regions.len()];
        let counted = self.process.superpages(&mut |mapping, bytes| {
            let at = regions.partition_point(|r| r.range.end <= mapping.start);
            if let Some(count) = huge.get_mut(at) {
                *count += bytes.0 / SUPERPAGE;
            }
        });
        if counted.is_err() {
            return;
        }
        for (region, huge) in self.regions.iter_mut().zip(huge) {
            let demoted = region.count_superpages(huge);
            self.stats.add(Counter::Demotions, demoted);
        }
    }

    /// Advises what is predicted, or everything under `eager`.
    fn advise(&mut self, now: Duration, after_glance: bool) {
        // Under `always` all memory has superpages at the first touch anyway, and under `never` none has.
        let wanted = matches!(self.policy, Policy::Adaptive | Policy::Eager);
        if !wanted || self.machine.setting(now) != Setting::Advised {
            return;
        }
        if self.areas.mappings > self.machine.most_mappings(now) / 2 {
            self.stats.note(Note::ManyMappings);
            return;
        }
        for index in 0..self.regions.len() {
            for range in self.wanted_advice(index, after_glance) {
                self.advise_range(index, range, now);
            }
        }
        if !after_glance && self.areas.small {
            self.advise_small();
        }
    }

    /// Advises what is too small for a superpage, where the kernel has folios of several pages.
    fn advise_small(&mut self) {
        for region in self.regions.iter_mut().filter(|r| is_plain(r.kind)) {
            for range in region.small_pieces(&mut self.process) {
                if self.process.forbids_nowhere() && self.process.advise(range).is_ok() {
                    region.note_advised(range);
                }
            }
        }
    }

    fn wanted_advice(&mut self, index: usize, after_glance: bool) -> Vec<AddrRange> {
        let region = &mut self.regions[index];
        if !is_plain(region.kind) {
            return Vec::new();
        }
        if self.policy == Policy::Adaptive {
            return region.predict(after_glance);
        }
        let whole = region.pieces.iter().map(|piece| piece.whole_superpages());
        whole
            .filter(|piece| !piece.is_empty() && !region.is_advised(*piece))
            .collect()
    }

    fn advise_range(&mut self, index: usize, range: AddrRange, now: Duration) {
        // Advice of the program stands: where it wants none, the kernel would make none.
        if !self.machine.has_room(now) || !self.process.may_have(range) {
            return;
        }
        if self.process.advise(range).is_ok() {
            let new = self.regions[index].note_advised(range);
            self.stats.add(Counter::Advised, new);
        }
    }

    /// Writes the regions down, unless that was done a moment ago.
    fn share_regions(&mut self, now: Duration) {
        if now < self.share_at {
            return;
        }
        self.share_at = now + SHARE_APART;
        self.has_made = false;
        Region::list(&self.regions, self.policy, self.stats);
    }

    /// Makes a superpage of an extent that has been full for long enough, if there is one, the budget allows it,
    /// and the machine has room.
    fn copy(&mut self) {
        let now = self.clock.now();
        self.grow_up(now);
        if !self.copies.may_spend(now) {
            self.copy_at = now + self.copies.wait_for(Duration::from_millis(1), now);
            return;
        }
        let Some((region, extent)) = self.next_to_copy(now) else {
            // A look finds more.
            self.copy_at = self.look_at;
            return;
        };
        if !self.backoff.may_try(millis(now)) || !self.machine.has_memory(now) {
            self.copy_at = now + Duration::from_millis(100);
            return;
        }
        let began = self.clock.used();
        self.copy_one(region, extent, now);
        let after = self.clock.now();
        let cost = self.clock.used().saturating_sub(began);
        self.copies.spend(cost, after);
        self.copy_cost = (self.copy_cost * 7 + cost) / 8;
        self.stats.add(Counter::PromotionTime, nanos(cost));
        // The program's faults and mappings wait while the kernel copies: it gets as much time in between.
        self.copy_at = after + after.saturating_sub(now).max(COPIES_APART);
    }

    /// The next extent to be copied: its region and its place there.
    fn next_to_copy(&mut self, now: Duration) -> Option<(usize, usize)> {
        let count = self.regions.len();
        let copies_full = self.policy == Policy::Adaptive;
        for step in 0..count {
            let index = (self.cursor + step) % count;
            let region = &self.regions[index];
            // Under `eager` only what was a superpage before is copied.
            let due = |k: &Known| {
                let wanted = copies_full || k.was_huge();
                wanted && region.due_at(k, LIVED).is_some_and(|at| now >= at)
            };
            if let Some(extent) = region.known.iter().position(due) {
                self.cursor = index;
                return Some((index, extent));
            }
        }
        None
    }

    /// Makes a superpage of an extent of a region, unless the kernel refuses.
    fn copy_one(&mut self, index: usize, extent: usize, now: Duration) {
        let region = &mut self.regions[index];
        let slot = region.known[extent].slot();
        if region.is_private() {
            match self.process.shared(slot) {
                Ok(shared) if shared <= MOST_SHARED => {}
                Ok(_) => return region.is_shared(now),
                Err(_) => return region.leave_alone(extent, now),
            }
        }
        let kind = region.kind;
        let answer = self.process.collapse(slot, kind);
        match region.answered(extent, answer, now) {
            Ok(()) => {
                let counter = match is_plain(kind) {
                    true => Counter::Promotions,
                    false => Counter::FilePromotions,
                };
                self.stats.add(counter, 1);
                self.stats.add(Counter::Superpages, 1);
                let superpages = self.stats.get(Counter::Superpages);
                self.stats.raise(Counter::SuperpagesPeak, superpages);
                self.backoff.succeeded();
                self.has_made = true;
            }
            Err(Refusal::NoBlock) => {
                self.stats.add(Counter::FailedReservations, 1);
                self.backoff.failed(millis(now));
                // It may be unmapped, too: others come first.
                region.known[extent].retry_at(now + NO_BLOCK);
            }
            Err(Refusal::Busy) => {}
            Err(Refusal::Mapping | Refusal::Gone | Refusal::Denied) => {
                self.stats.add(Counter::Refused, 1);
                if !region.is_private() {
                    // What a file refuses for one extent it refuses for all.
                    region.refused(now);
                }
            }
        }
    }
}

/// Whether it is private memory that is no stack.
const fn is_plain(kind: RegionKind) -> bool {
    matches!(kind, RegionKind::Heap | RegionKind::Anon)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::{BTreeMap, BTreeSet};
    use std::rc::Rc;

    use quire_core::units::{Bytes, PAGES_PER_SUPERPAGE, Slot, VirtAddr};

    use super::*;
    use crate::process::Area;

    const FULL: u64 = PAGES_PER_SUPERPAGE as u64;
    const MILLISECOND: Duration = Duration::from_millis(1);

    /// A program's memory, as a kernel would have it.
    #[derive(Default)]
    struct Memory {
        areas: RefCell<Vec<Area>>,
        used: RefCell<BTreeMap<u64, (u64, bool)>>,
        advised: RefCell<BTreeSet<u64>>,
        small: RefCell<Vec<AddrRange>>,
        forbidden: Cell<bool>,
        shared: Cell<u64>,
        refusal: Cell<Option<i32>>,
        collapses: Cell<u64>,
        /// Only other processes have touched it; how often it was asked for what exists, which takes ten milliseconds.
        of_others: Cell<bool>,
        asked: Cell<u32>,
        time: RefCell<Time>,
    }

    impl Memory {
        fn touch(&self, slot: u64, pages: u64) {
            let huge = self.advised.borrow().contains(&slot);
            let mut used = self.used.borrow_mut();
            used.entry(slot)
                .or_insert((if huge { FULL } else { pages }, huge));
        }

        fn find(&self, range: AddrRange, found: &mut dyn FnMut(AddrRange, bool)) {
            for (slot, (pages, huge)) in self.used.borrow().iter() {
                let run = AddrRange::new(Slot(*slot).start(), PageCount(*pages).to_bytes());
                if range.contains(run) {
                    found(run, *huge);
                }
            }
        }

        /// How many extents are superpages.
        fn whole(&self) -> usize {
            self.used
                .borrow()
                .values()
                .filter(|(_, huge)| *huge)
                .count()
        }
    }

    impl Process for Rc<Memory> {
        fn areas(&mut self, found: &mut Areas) -> Result<(), Errno> {
            found.areas.clone_from(&self.areas.borrow());
            found.mappings = found.areas.len() as u64;
            Ok(())
        }

        fn populated(
            &mut self,
            range: AddrRange,
            found: &mut dyn FnMut(AddrRange, bool),
        ) -> Result<(), Errno> {
            if self.of_others.get() {
                return Ok(());
            }
            self.find(range, found);
            Ok(())
        }

        fn existing(
            &mut self,
            range: AddrRange,
            found: &mut dyn FnMut(AddrRange, bool),
        ) -> Result<(), Errno> {
            self.asked.set(self.asked.get() + 1);
            let used = &self.time.borrow().1;
            used.set(used.get() + 10 * MILLISECOND);
            self.find(range, found);
            Ok(())
        }

        fn tells_superpages(&self) -> bool {
            true
        }

        fn shared(&mut self, _: Slot) -> Result<PageCount, Errno> {
            Ok(PageCount(self.shared.get()))
        }

        fn may_have(&mut self, _: AddrRange) -> bool {
            !self.forbidden.get()
        }

        fn advise(&mut self, range: AddrRange) -> Result<(), Errno> {
            assert!(!self.forbidden.get(), "the program's own advice stands");
            match range.len() < Bytes(SUPERPAGE) {
                true => self.small.borrow_mut().push(range),
                false => self.advised.borrow_mut().extend(range.whole_slots()),
            }
            Ok(())
        }

        fn collapse(&mut self, slot: Slot, _: RegionKind) -> Result<(), Errno> {
            self.collapses.set(self.collapses.get() + 1);
            if let Some(errno) = self.refusal.get() {
                return Err(Errno(errno));
            }
            self.used.borrow_mut().insert(slot.0, (FULL, true));
            Ok(())
        }
    }

    /// Time that goes on when a test says so; each turn takes a hundredth of a millisecond of the processor.
    #[derive(Clone, Default)]
    struct Time(Rc<Cell<Duration>>, Rc<Cell<Duration>>);

    impl Clock for Time {
        fn now(&self) -> Duration {
            self.0.get()
        }

        fn used(&self) -> Duration {
            self.1.set(self.1.get() + MILLISECOND / 200);
            self.1.get()
        }
    }

    struct World {
        memory: Rc<Memory>,
        time: Time,
        advisor: Advisor<Rc<Memory>, Time>,
        stats: &'static StatPage,
    }

    fn world(policy: Policy, setting: Setting) -> World {
        let (memory, time) = (Rc::new(Memory::default()), Time::default());
        time.0.set(Duration::from_secs(100));
        memory.time.replace(time.clone());
        let range = AddrRange::new(VirtAddr(100 << 21), Bytes(1000 << 21));
        let kind = RegionKind::Anon;
        memory.areas.borrow_mut().push(Area { range, kind });
        let stats: &'static StatPage = Box::leak(Box::default());
        let machine = Machine::roomy(setting);
        let share = CpuShare::FOR_COPIES;
        let advisor = Advisor::new(memory.clone(), time.clone(), machine, stats, policy, share);
        World {
            memory,
            time,
            advisor,
            stats,
        }
    }

    impl World {
        /// Lets the advisor work for a time.
        fn run(&mut self, time: Duration) {
            let until = self.time.now() + time;
            while self.time.now() < until {
                let pause = self.advisor.turn().expect("the process is there");
                self.time.0.set(until.min(self.time.now() + pause));
            }
        }
    }

    #[test]
    fn what_fills_up_in_order_needs_hardly_a_copy() {
        let mut world = world(Policy::Adaptive, Setting::Advised);
        for slot in 100..600 {
            world.memory.touch(slot, FULL);
            world.run(MILLISECOND);
        }
        let copied = world.memory.collapses.get() as usize;
        assert!(copied < 100 && world.memory.whole() - copied > 400);
        world.run(Duration::from_secs(5));
        assert_eq!(world.memory.whole(), 500);
        assert_eq!(world.stats.get(Counter::Superpages), 500);
        let (made, advised) = (
            world.stats.get(Counter::Promotions),
            world.stats.get(Counter::Advised),
        );
        assert!(made == world.memory.collapses.get() && made + advised >= 500);
    }

    #[test]
    fn sparse_memory_and_short_lives_are_left_alone() {
        let mut world = world(Policy::Adaptive, Setting::Advised);
        for slot in 100..600 {
            world.memory.touch(slot, FULL - 1);
            world.run(MILLISECOND);
        }
        world.run(Duration::from_secs(10));
        assert_eq!(world.memory.whole(), 0);
        for round in 0..20 {
            world.memory.used.borrow_mut().clear();
            for slot in 0..3 {
                world.memory.touch(100 + round * 5 + slot, FULL);
            }
            world.run(LIVED / 2);
        }
        assert_eq!(world.memory.collapses.get(), 0);
    }

    #[test]
    fn only_where_the_kernel_waits_for_advice_is_it_given() {
        for setting in [Setting::Always, Setting::Never] {
            for policy in [Policy::Adaptive, Policy::Eager] {
                let mut world = world(policy, setting);
                for slot in 100..200 {
                    world.memory.touch(slot, FULL);
                }
                world.run(Duration::from_secs(10));
                assert!(world.memory.advised.borrow().is_empty());
                let copies = policy == Policy::Adaptive;
                assert_eq!(world.memory.whole(), if copies { 100 } else { 0 });
            }
        }
    }

    #[test]
    fn eager_advises_everything_once() {
        let mut world = world(Policy::Eager, Setting::Advised);
        world.run(Duration::from_secs(3));
        assert_eq!(world.memory.advised.borrow().len(), 1000);
        assert_eq!(world.stats.get(Counter::Advised), 1000);
    }

    #[test]
    fn small_regions_in_use_are_advised_once() {
        let mut world = world(Policy::Adaptive, Setting::Advised);
        let range = AddrRange::new(VirtAddr(9 << 21), Bytes(1 << 20));
        let kind = RegionKind::Anon;
        world
            .memory
            .areas
            .borrow_mut()
            .insert(0, Area { range, kind });
        world.memory.touch(9, 127);
        world.run(Duration::from_secs(2));
        assert!(world.memory.small.borrow().is_empty());
        world.memory.used.borrow_mut().clear();
        world.memory.touch(9, 128);
        world.run(Duration::from_secs(2));
        assert_eq!(*world.memory.small.borrow(), [range]);
        assert_eq!(world.stats.get(Counter::Advised), 0, "no superpages");
    }

    #[test]
    fn the_advice_of_the_program_stands() {
        for policy in [Policy::Adaptive, Policy::Eager] {
            let mut world = world(policy, Setting::Advised);
            world.memory.forbidden.set(true);
            for slot in 100..200 {
                world.memory.touch(slot, FULL);
                world.run(MILLISECOND);
            }
            assert!(world.memory.advised.borrow().is_empty());
        }
    }

    #[test]
    fn pages_that_a_child_shares_are_copied_when_it_is_gone() {
        let mut world = world(Policy::Adaptive, Setting::Never);
        world.memory.shared.set(FULL);
        for slot in 100..300 {
            world.memory.touch(slot, FULL);
        }
        world.run(Duration::from_secs(20));
        assert_eq!(world.memory.collapses.get(), 0);
        world.memory.shared.set(0);
        world.run(Duration::from_secs(3));
        assert_eq!(world.memory.whole(), 200);
    }

    #[test]
    fn shared_memory_that_others_fill_is_found_and_rarely_asked_for() {
        let mut world = world(Policy::Adaptive, Setting::Advised);
        world.memory.areas.borrow_mut()[0].kind = RegionKind::Shared;
        world.memory.of_others.set(true);
        for slot in 100..300 {
            world.memory.touch(slot, FULL);
        }
        world.memory.touch(300, FULL - 1);
        world.run(Duration::from_secs(100));
        assert_eq!(world.memory.whole(), 200);
        assert!(world.memory.advised.borrow().is_empty());
        // The range is asked for in two parts. Ten milliseconds each are a quarter of a percent of four seconds.
        let asked = world.memory.asked.get();
        assert!((10..=30).contains(&asked), "{asked}");
    }

    #[test]
    fn refusals_are_borne_ever_more_rarely() {
        for errno in [libc::EINVAL, libc::ENOMEM, libc::EAGAIN] {
            let mut world = world(Policy::Adaptive, Setting::Never);
            world.memory.refusal.set(Some(errno));
            for slot in 100..110 {
                world.memory.touch(slot, FULL);
            }
            world.run(Duration::from_secs(60));
            let tries = world.memory.collapses.get();
            assert!((1..=600).contains(&tries), "{errno}: {tries}");
            assert_eq!(world.memory.whole(), 0);
            world.memory.refusal.set(None);
            world.run(Duration::from_secs(200));
            assert_eq!(world.memory.whole(), 10, "{errno}");
        }
    }

    #[test]
    fn copies_keep_to_their_share() {
        let mut world = world(Policy::Adaptive, Setting::Never);
        world
            .advisor
            .set_share(CpuShare::from_percent(0.01).unwrap_or(CpuShare::DEFAULT));
        for slot in 100..1100 {
            world.memory.touch(slot, FULL);
        }
        world.run(Duration::from_secs(30));
        // A copy costs 0.01 ms here, and 0.1 ms is earned in a second; half of that in the first five.
        let copies = world.memory.collapses.get();
        assert!((100..=450).contains(&copies), "{copies}");
    }
}
