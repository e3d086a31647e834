//! One process: looks at it, makes superpages, and gives up those that turn out
//! unused. Whatever the process does meanwhile (end, execute another program,
//! unmap, fork), the kernel refuses or the step does no harm.

use std::collections::BTreeMap;
use std::time::Duration;

use quire_advise::known::Known;
use quire_advise::process::{Areas, Refusal};
use quire_advise::region::Region;
use quire_core::advise::Seen;
use quire_core::attach::{CpuShare, Extent, Heat, MOST_SHARED, Pace, Trial, Verdict, sampled_page};
use quire_core::config::Policy;
use quire_core::policy::Backoff;
use quire_core::stat::{Counter, RegionKind};
use quire_core::units::{AddrRange, Bytes, Frame, PAGES_PER_SUPERPAGE, PageCount, SUPERPAGE, Slot};
use quire_linux::Errno;

use crate::metrics::Counts;
use crate::pages::Page;
use crate::plan::{LIVED, Treatment};
use crate::process::Process;

/// A change of fewer pages than this is none.
const CHANGE: u64 = 64;

/// What became of a process while something was asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// It is gone.
    Gone,
    /// It may not be inspected or advised any more.
    Denied,
}

/// What came of a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promotion {
    /// The extent is a superpage.
    Done,
    /// The kernel, or a rule of ours, refused this extent.
    Refused,
    /// There was no free block or the control group is full: wait.
    NoBlock,
}

/// A process that is attached to.
#[derive(Debug)]
pub struct Target<P> {
    /// Its command name.
    pub program: String,
    /// The rule that selected it.
    pub rule: usize,
    /// How it is treated.
    pub treatment: Treatment,
    /// How long memory must have been full enough before it is copied.
    pub lived: Duration,
    /// What was done.
    pub counts: Counts,
    process: P,
    image: Option<u64>,
    areas: Areas,
    regions: Vec<Region>,
    heats: BTreeMap<Slot, u32>,
    backoff: Backoff,
    trials: BTreeMap<Slot, Trial>,
    pace: Pace,
    look_at: Duration,
    page: Option<Page>,
    costs: Costs,
    is_news: bool,
}

/// What only the statistics page says.
#[derive(Clone, Copy, Debug, Default)]
struct Costs {
    /// Processor time.
    used: Duration,
    /// The time that promotions took.
    promoting: Duration,
    /// Superpages made of shared memory, files and stacks.
    promoted_others: u64,
    /// Superpages that were seen to have become base pages.
    split: u64,
}

impl<P: Process> Target<P> {
    /// Attaches to a process; it is looked at at once, and then `interval`
    /// apart while it changes.
    pub fn new(process: P, program: String, rule: usize, interval: Duration) -> Target<P> {
        Target {
            program,
            rule,
            treatment: Treatment::default(),
            lived: LIVED,
            counts: Counts::default(),
            image: process.image(),
            process,
            areas: Areas::default(),
            regions: Vec::new(),
            heats: BTreeMap::new(),
            backoff: Backoff::default(),
            trials: BTreeMap::new(),
            pace: Pace::new(interval),
            look_at: Duration::ZERO,
            page: None,
            costs: Costs::default(),
            is_news: false,
        }
    }

    /// Whether the process still runs.
    pub fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    /// Treats it in another way; then it is looked at at once.
    pub fn treat(&mut self, treatment: Treatment, lived: Duration) {
        if (treatment, lived) != (self.treatment, self.lived) {
            (self.treatment, self.lived) = (treatment, lived);
            self.look_at = Duration::ZERO;
        }
    }

    /// When it is to be looked at.
    pub fn look_at(&self) -> Duration {
        self.look_at
    }

    /// Looks at the process. `clock` gives the processor time used so far.
    ///
    /// # Errors
    /// When the process is lost.
    pub fn look(
        &mut self,
        now: Duration,
        share: CpuShare,
        clock: impl Fn() -> Duration,
    ) -> Result<(), Lost> {
        let began = clock();
        if !self.process.is_alive() {
            return Err(Lost::Gone);
        }
        let image = self.process.image();
        if image != self.image {
            self.forget();
            self.image = image;
        }
        self.process.areas(&mut self.areas).map_err(lost)?;
        let before = std::mem::take(&mut self.regions);
        self.regions = Region::succeed(before, &self.areas.areas);
        let changed = self.look_at_regions(now)?;
        let regions = &self.regions;
        self.trials
            .retain(|slot, _| find(regions, *slot).is_some_and(Known::is_huge));
        self.counts.looks += 1;
        self.is_news = true;
        let cost = clock().saturating_sub(began);
        self.costs.used += cost;
        self.look_at = now + self.pace.looked(changed, cost, share);
        Ok(())
    }

    /// Notes that another program runs now.
    fn forget(&mut self) {
        self.regions.clear();
        self.heats.clear();
        self.trials.clear();
    }

    /// Says whether extents became full enough, superpages base pages, or populations
    /// differ.
    fn look_at_regions(&mut self, now: Duration) -> Result<bool, Lost> {
        let (mut pages, mut split, mut filled) = (0, 0, false);
        for region in &mut self.regions {
            region.enough = self.treatment.threshold.pages();
            let tally = region.populated(&mut self.process).map_err(lost)?;
            let change = region.look(tally, now, true);
            pages += change.pages;
            split += change.demoted;
            filled |= change.filled > 0;
        }
        self.costs.split += split;
        Ok(filled || split > 0 || pages >= CHANGE)
    }

    /// What could be promoted, and when.
    fn candidates(&self) -> impl Iterator<Item = (Extent, Duration)> {
        self.regions.iter().flat_map(|region| {
            let candidate = |known: &Known| {
                let at = region.due_at(known, self.lived)?;
                Some((known.extent(), at))
            };
            region.known.iter().filter_map(candidate)
        })
    }

    /// The extents to promote, with what is known of their accesses.
    pub fn due(&self, now: Duration) -> impl Iterator<Item = (Extent, Heat)> {
        let due = self.candidates().filter(move |(_, at)| *at <= now);
        due.map(|(extent, _)| (extent, self.heats.get(&extent.slot).copied()))
    }

    /// When the next extents after those become due, as far as the last look tells.
    pub fn due_after(&self, now: Duration) -> Option<Duration> {
        let times = self.candidates().map(|(_, at)| at);
        times.filter(|at| *at > now).min()
    }

    /// Whether an extent is still to be promoted.
    pub fn is_due(&self, slot: Slot, now: Duration) -> bool {
        let due_at = |(region, index): (usize, usize)| {
            let region = &self.regions[region];
            region.due_at(&region.known[index], self.lived)
        };
        let place = place(&self.regions, slot);
        place.and_then(due_at).is_some_and(|at| at <= now)
    }

    /// When a promotion may be tried: later than now after one that failed for
    /// want of a block.
    pub fn promote_at(&self) -> Duration {
        Duration::from_millis(self.backoff.retry_at_ms())
    }

    /// Makes a superpage of an extent.
    ///
    /// # Errors
    /// When the process is lost.
    pub fn promote(&mut self, extent: Extent, now: Duration) -> Result<Promotion, Lost> {
        let slot = extent.slot;
        let Some((region, index)) = place(&self.regions, slot) else {
            return Ok(Promotion::Refused);
        };
        if extent.private && self.is_shared(slot)? {
            self.counts.refused_shared += 1;
            self.regions[region].is_shared(now);
            return Ok(Promotion::Refused);
        }
        let holes = self.holes(extent)?;
        let kind = self.regions[region].kind;
        let answer = match self.process.collapse(slot, kind) {
            // Nothing is mapped there any more.
            Err(Errno(libc::ENOMEM)) if !self.is_mapped(slot)? => Err(Errno(libc::EINVAL)),
            answer => answer,
        };
        self.is_news = true;
        match self.regions[region].answered(index, answer, now) {
            Ok(()) => {
                self.promoted(slot, kind, holes, now);
                return Ok(Promotion::Done);
            }
            Err(Refusal::Gone) => return Err(Lost::Gone),
            Err(Refusal::Denied) => return Err(Lost::Denied),
            Err(Refusal::NoBlock) => return Ok(self.wait_for_block(now)),
            Err(Refusal::Busy) => self.counts.refused_busy += 1,
            Err(Refusal::Mapping) => self.counts.refused_mapping += 1,
        }
        Ok(Promotion::Refused)
    }

    fn wait_for_block(&mut self, now: Duration) -> Promotion {
        self.counts.no_block += 1;
        self.backoff.failed(millis(now));
        Promotion::NoBlock
    }

    fn is_mapped(&self, slot: Slot) -> Result<bool, Lost> {
        let holes = self.process.holes(slot).map_err(lost)?;
        Ok(pages(&holes) < PAGES_PER_SUPERPAGE as u64)
    }

    fn is_shared(&mut self, slot: Slot) -> Result<bool, Lost> {
        let shared = self.process.shared(slot).map_err(lost)?;
        Ok(shared > MOST_SHARED)
    }

    /// The holes that promotion will fill.
    fn holes(&self, extent: Extent) -> Result<Vec<AddrRange>, Lost> {
        if extent.populated.0 >= PAGES_PER_SUPERPAGE as u64 {
            return Ok(Vec::new());
        }
        self.process.holes(extent.slot).map_err(lost)
    }

    fn promoted(&mut self, slot: Slot, kind: RegionKind, holes: Vec<AddrRange>, now: Duration) {
        self.counts.promoted += 1;
        if !matches!(kind, RegionKind::Heap | RegionKind::Anon) {
            self.costs.promoted_others += 1;
        }
        self.backoff.succeeded();
        if !holes.is_empty() {
            self.trials.insert(slot, Trial::new(slot, holes, now));
        }
    }

    /// Notes what trying a promotion took: processor time, and time.
    pub fn note_cost(&mut self, used: Duration, time: Duration) {
        self.costs.used += used;
        self.costs.promoting += time;
    }

    /// Examines superpages that were made of extents with holes, and gives up
    /// those that are unused: while memory is short, those accessed least
    /// first. With `measured`, only those whose accesses were measured. Goes on
    /// while `may_go_on` says so.
    ///
    /// # Errors
    /// When the process is lost.
    pub fn examine(
        &mut self,
        now: Duration,
        short: bool,
        measured: bool,
        mut may_go_on: impl FnMut() -> bool,
    ) -> Result<(), Lost> {
        let is_due = |trial: &&Trial| {
            trial.is_due(now, short) && (!measured || self.heats.contains_key(&trial.slot))
        };
        let mut due: Vec<Slot> = self
            .trials
            .values()
            .filter(is_due)
            .map(|t| t.slot)
            .collect();
        due.sort_by_key(|slot| self.heats.get(slot).copied());
        for slot in due {
            if !may_go_on() {
                break;
            }
            self.examine_one(slot, now, short)?;
        }
        Ok(())
    }

    fn examine_one(&mut self, slot: Slot, now: Duration, short: bool) -> Result<(), Lost> {
        let Some(mut trial) = self.trials.remove(&slot) else {
            return Ok(());
        };
        // A measurement counts once.
        let heat = self.heats.remove(&slot);
        let unused = match self.process.zeros(&trial.holes) {
            Ok(unused) => unused,
            Err(errno) => match lost_for_good(errno) {
                Some(lost) => return Err(lost),
                // Unmapped meanwhile, so there is nothing to give up.
                None => return Ok(()),
            },
        };
        match trial.judge(unused, heat, now, short) {
            Verdict::Settled => {}
            Verdict::Watch => {
                self.trials.insert(slot, trial);
            }
            Verdict::Demote => self.demote(slot, unused)?,
        }
        Ok(())
    }

    fn demote(&mut self, slot: Slot, unused: PageCount) -> Result<(), Lost> {
        match self.process.split(slot) {
            Ok(()) => {
                self.counts.demoted += 1;
                self.is_news = true;
                let used = (PAGES_PER_SUPERPAGE as u64).saturating_sub(unused.0);
                if let Some((region, index)) = place(&self.regions, slot) {
                    self.regions[region].given_up(index, PageCount(used));
                }
                Ok(())
            }
            Err(errno) => lost_for_good(errno).map_or(Ok(()), Err),
        }
    }

    /// Whether a superpage is to be examined whose accesses were not measured.
    pub fn lacks_heat(&self, now: Duration) -> bool {
        let mut due = self.trials.values().filter(|t| t.is_due(now, false));
        due.any(|trial| !self.heats.contains_key(&trial.slot))
    }

    /// When the next superpage is to be examined.
    pub fn examine_at(&self) -> Option<Duration> {
        self.trials.values().map(Trial::examine_at).min()
    }

    /// Extents whose superpages are examined soon.
    pub fn on_trial(&self) -> impl Iterator<Item = Slot> {
        self.trials.keys().copied()
    }

    /// The frame of a page of an extent, to be watched for accesses.
    pub fn sample(&self, slot: Slot, round: u64) -> Option<Frame> {
        self.process.frame(sampled_page(slot, round))
    }

    /// Notes how often an extent was found accessed.
    pub fn note_heat(&mut self, slot: Slot, times: u32) {
        self.heats.insert(slot, times);
    }

    /// Notes how often the extents in a mapping were found accessed.
    pub fn note_heat_within(&mut self, mapping: AddrRange, times: u32) {
        let known = self.regions.iter().flat_map(|region| &region.known);
        let slots = known.map(Known::slot);
        let inside = slots.filter(|slot| mapping.contains(slot.range()));
        self.heats.extend(inside.map(|slot| (slot, times)));
    }

    /// Forgets what was measured, before new measurements come in.
    pub fn forget_heat(&mut self) {
        self.heats.clear();
    }

    /// What the process has in superpages.
    pub fn superpages(&self) -> Bytes {
        let known = self.regions.iter().flat_map(|region| &region.known);
        let count = known.filter(|known| known.is_huge()).count();
        Bytes(count as u64 * SUPERPAGE)
    }

    /// Shows what is known of the process on a page from now on.
    pub fn show_on(&mut self, page: Page) {
        self.page = Some(page);
        self.is_news = true;
    }

    /// Shows it no more.
    pub fn take_page(&mut self) -> Option<Page> {
        self.page.take()
    }

    /// Whether there is something new to be shown.
    pub fn has_news(&self) -> bool {
        self.is_news && self.page.is_some()
    }

    /// Writes down what is known of the process, where there is a page for it.
    pub fn write_down(&mut self) {
        let Some(stats) = self.page.as_ref().map(Page::stats) else {
            return;
        };
        self.is_news = false;
        let (counts, costs) = (&self.counts, &self.costs);
        let plain = counts.promoted.saturating_sub(costs.promoted_others);
        let refused = counts.refused_busy + counts.refused_mapping;
        for (counter, value) in [
            (Counter::Promotions, plain),
            (Counter::FilePromotions, costs.promoted_others),
            (Counter::Demotions, counts.demoted + costs.split),
            (Counter::Refused, refused),
            (Counter::FailedReservations, counts.no_block),
            (Counter::PagerCpu, nanos(costs.used)),
            (Counter::PromotionTime, nanos(costs.promoting)),
        ] {
            stats.set(counter, value);
        }
        Region::note_present(&self.regions, stats);
        Region::list(&self.regions, Policy::Adaptive, stats);
    }
}

/// The region of an extent that holds something, and its place there.
fn place(regions: &[Region], slot: Slot) -> Option<(usize, usize)> {
    let start = slot.start();
    let region = regions.partition_point(|region| region.range.end <= start);
    let index = regions.get(region)?.place(slot)?;
    Some((region, index))
}

fn find(regions: &[Region], slot: Slot) -> Option<&Known> {
    let (region, index) = place(regions, slot)?;
    regions[region].known.get(index)
}

fn pages(ranges: &[AddrRange]) -> u64 {
    ranges.iter().map(|range| range.len().to_pages().0).sum()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Whoever cannot be looked at is lost: without the right to, or gone.
fn lost(errno: Errno) -> Lost {
    lost_for_good(errno).unwrap_or(Lost::Gone)
}

fn lost_for_good(errno: Errno) -> Option<Lost> {
    match Refusal::of(errno) {
        Refusal::Denied => Some(Lost::Denied),
        Refusal::Gone => Some(Lost::Gone),
        _ if errno == Errno(libc::ENOENT) => Some(Lost::Gone),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use quire_advise::process::{Area, Process as Advised};
    use quire_core::attach::{LEAST_UNUSED, holes};
    use quire_core::units::VirtAddr;
    use rustix::io::Errno as Kernel;

    use super::*;
    use crate::pages::Pages;
    use quire_core::stat::CellState;

    /// A process that answers as it is told to.
    #[derive(Default)]
    struct Fake {
        dead: Cell<bool>,
        image: Cell<u64>,
        extents: RefCell<Vec<Extent>>,
        look_error: Cell<Option<Kernel>>,
        shared: Cell<u64>,
        zeros: Cell<u64>,
        collapse_error: Cell<Option<Kernel>>,
        split_error: Cell<Option<Kernel>>,
        calls: RefCell<Vec<(&'static str, u64)>>,
    }

    fn answer(error: &Cell<Option<Kernel>>) -> Result<(), Errno> {
        error.get().map_or(Ok(()), |e| Err(Errno(e.raw_os_error())))
    }

    impl Advised for &Fake {
        fn areas(&mut self, found: &mut Areas) -> Result<(), Errno> {
            answer(&self.look_error)?;
            let range = AddrRange {
                start: VirtAddr(0),
                end: Slot(1000).start(),
            };
            let kind = RegionKind::Anon;
            found.areas = vec![Area { range, kind }];
            Ok(())
        }
        fn populated(
            &mut self,
            _: AddrRange,
            found: &mut dyn FnMut(AddrRange, bool),
        ) -> Result<(), Errno> {
            for extent in self.extents.borrow().iter() {
                let run = AddrRange::new(extent.slot.start(), extent.populated.to_bytes());
                found(run, extent.huge);
            }
            Ok(())
        }
        fn tells_superpages(&self) -> bool {
            true
        }
        fn superpages(&mut self, _: &mut dyn FnMut(AddrRange, Bytes)) -> Result<(), Errno> {
            Ok(())
        }
        fn shared(&mut self, _: Slot) -> Result<PageCount, Errno> {
            Ok(PageCount(self.shared.get()))
        }
        fn may_have(&mut self, _: AddrRange) -> bool {
            false
        }
        fn advise(&mut self, _: AddrRange) -> Result<(), Errno> {
            unreachable!("other processes cannot be advised");
        }
        fn collapse(&mut self, slot: Slot, _: RegionKind) -> Result<(), Errno> {
            self.calls.borrow_mut().push(("collapse", slot.0));
            answer(&self.collapse_error)
        }
    }

    impl Process for &Fake {
        fn is_alive(&self) -> bool {
            !self.dead.get()
        }
        fn image(&self) -> Option<u64> {
            Some(self.image.get())
        }
        fn holes(&self, slot: Slot) -> Result<Vec<AddrRange>, Errno> {
            let all = self.extents.borrow();
            let extent = all.iter().find(|e| e.slot == slot);
            let populated = extent.map_or(PageCount(0), |e| e.populated);
            let run = AddrRange::new(slot.start(), populated.to_bytes());
            Ok(holes(slot, &[run]))
        }
        fn zeros(&self, _: &[AddrRange]) -> Result<PageCount, Errno> {
            Ok(PageCount(self.zeros.get()))
        }
        fn frame(&self, _: VirtAddr) -> Option<Frame> {
            None
        }
        fn split(&self, slot: Slot) -> Result<(), Errno> {
            self.calls.borrow_mut().push(("split", slot.0));
            answer(&self.split_error)
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn extent(slot: u64, populated: u64) -> Extent {
        Extent {
            slot: Slot(slot),
            populated: PageCount(populated),
            huge: false,
            private: true,
        }
    }

    fn target<'a>(fake: &'a Fake, extents: &[Extent], threshold: &str) -> Target<&'a Fake> {
        *fake.extents.borrow_mut() = extents.to_vec();
        let mut target = Target::new(fake, "fake".to_owned(), 0, SECOND);
        target.treatment.threshold = threshold.parse().unwrap();
        look(&mut target, Duration::ZERO).unwrap();
        target
    }

    fn look(target: &mut Target<&Fake>, now: Duration) -> Result<(), Lost> {
        target.look(now, CpuShare::DEFAULT, || Duration::ZERO)
    }

    fn due(target: &Target<&Fake>, now: Duration) -> Vec<u64> {
        target.due(now).map(|(extent, _)| extent.slot.0).collect()
    }

    #[test]
    fn what_is_full_enough_is_due_once() {
        let fake = Fake::default();
        let mut target = target(
            &fake,
            &[extent(1, 512), extent(2, 300), extent(3, 200)],
            "50%",
        );
        assert_eq!(due(&target, LIVED / 2), [], "it has not lived");
        assert_eq!(target.due_after(LIVED / 2), Some(LIVED));
        assert_eq!(due(&target, LIVED), [1, 2]);
        assert_eq!(target.promote(extent(1, 512), LIVED), Ok(Promotion::Done));
        assert_eq!(due(&target, LIVED), [2]);
        assert_eq!(target.superpages(), Bytes::mib(2));
        assert_eq!(target.counts.promoted, 1);
    }

    #[test]
    fn a_process_that_ends_is_lost() {
        let fake = Fake::default();
        let mut target = target(&fake, &[extent(1, 512)], "100%");
        fake.collapse_error.set(Some(Kernel::SRCH));
        assert_eq!(target.promote(extent(1, 512), SECOND), Err(Lost::Gone));
        fake.look_error.set(Some(Kernel::SRCH));
        assert_eq!(look(&mut target, SECOND), Err(Lost::Gone));
        fake.look_error.set(Some(Kernel::NOENT));
        assert_eq!(look(&mut target, SECOND), Err(Lost::Gone));
        fake.look_error.set(None);
        fake.dead.set(true);
        assert_eq!(look(&mut target, SECOND), Err(Lost::Gone));
    }

    #[test]
    fn rights_that_are_lost_are_told_from_an_end() {
        let fake = Fake::default();
        let mut target = target(&fake, &[extent(1, 512)], "100%");
        for error in [Kernel::PERM, Kernel::ACCESS] {
            fake.collapse_error.set(Some(error));
            assert_eq!(target.promote(extent(1, 512), SECOND), Err(Lost::Denied));
            fake.look_error.set(Some(error));
            assert_eq!(look(&mut target, SECOND), Err(Lost::Denied));
            fake.look_error.set(None);
        }
    }

    #[test]
    fn without_a_block_the_process_waits_ever_longer() {
        let fake = Fake::default();
        let mut target = target(&fake, &[extent(1, 512)], "100%");
        let mut now = LIVED;
        let mut wait = Duration::ZERO;
        for n in 1..=12 {
            let error = [Kernel::NOMEM, Kernel::BUSY][n as usize % 2];
            fake.collapse_error.set(Some(error));
            assert!(target.promote_at() <= now);
            assert_eq!(target.promote(extent(1, 512), now), Ok(Promotion::NoBlock));
            assert_eq!(target.counts.no_block, n);
            // The extent itself is not to blame.
            assert_eq!(due(&target, now), [1]);
            let next = target.promote_at() - now;
            assert!(next >= wait && next <= 10 * SECOND, "{next:?}");
            (wait, now) = (next, target.promote_at());
        }
        assert_eq!(wait, 10 * SECOND);
        fake.collapse_error.set(None);
        assert_eq!(target.promote(extent(1, 512), now), Ok(Promotion::Done));
        assert!(target.promote_at() <= now);
    }

    #[test]
    fn unmapped_memory_is_no_want_of_blocks() {
        let fake = Fake::default();
        let mut target = target(&fake, &[extent(1, 512)], "100%");
        fake.collapse_error.set(Some(Kernel::NOMEM));
        fake.extents.borrow_mut().clear();
        assert_eq!(
            target.promote(extent(1, 512), SECOND),
            Ok(Promotion::Refused)
        );
        assert_eq!(
            (target.counts.no_block, target.counts.refused_mapping),
            (0, 1)
        );
        assert!(target.promote_at() <= SECOND);
    }

    #[test]
    fn refused_extents_are_left_alone_for_a_while() {
        let fake = Fake::default();
        let mut target = target(&fake, &[extent(1, 512), extent(2, 512)], "100%");
        for (error, slot) in [(Kernel::INVAL, 1), (Kernel::AGAIN, 2)] {
            fake.collapse_error.set(Some(error));
            let refused = target.promote(extent(slot, 512), SECOND);
            assert_eq!(refused, Ok(Promotion::Refused));
        }
        assert_eq!(
            (target.counts.refused_mapping, target.counts.refused_busy),
            (1, 1)
        );
        assert!(due(&target, SECOND).is_empty());
        assert_eq!(due(&target, 2 * SECOND), [1, 2]);
    }

    #[test]
    fn memory_shared_since_a_fork_is_not_copied() {
        let fake = Fake::default();
        let mut target = target(&fake, &[extent(1, 512)], "100%");
        fake.shared.set(MOST_SHARED.0 + 1);
        assert_eq!(
            target.promote(extent(1, 512), SECOND),
            Ok(Promotion::Refused)
        );
        assert!(fake.calls.borrow().is_empty());
        assert_eq!(target.counts.refused_shared, 1);
        fake.shared.set(0);
        assert_eq!(
            target.promote(extent(1, 512), 2 * SECOND),
            Ok(Promotion::Done)
        );
    }

    #[test]
    fn superpages_that_a_fork_took_apart_are_restored_at_once() {
        let fake = Fake::default();
        let huge = Extent {
            huge: true,
            ..extent(1, 512)
        };
        let mut target = target(&fake, &[huge, extent(2, 512)], "100%");
        assert_eq!(target.superpages(), Bytes::mib(2));
        *fake.extents.borrow_mut() = vec![extent(1, 512), extent(2, 512)];
        look(&mut target, LIVED / 2).unwrap();
        assert_eq!(due(&target, LIVED / 2), [1]);
        assert_eq!(due(&target, LIVED), [1, 2]);
    }

    #[test]
    fn what_one_pass_finds_is_copied_at_once() {
        let fake = Fake::default();
        let mut target = target(&fake, &[extent(1, 512)], "100%");
        target.treat(target.treatment, Duration::ZERO);
        assert_eq!(due(&target, Duration::ZERO), [1]);
    }

    #[test]
    fn a_page_says_what_is_known() {
        let fake = Fake::default();
        let mut target = target(&fake, &[extent(1, 512), extent(2, 300)], "100%");
        assert!(!target.has_news(), "there is no page");
        let dir = tempfile::tempdir().unwrap();
        let own = std::process::id();
        let page = Pages::new(dir.path()).take(own, "fake").unwrap();
        let stats = page.stats();
        target.show_on(page);
        target.promote(extent(1, 512), SECOND).unwrap();
        fake.collapse_error.set(Some(Kernel::INVAL));
        target.promote(extent(2, 300), SECOND).unwrap();
        assert!(target.has_news());
        target.write_down();
        assert!(!target.has_news());
        let stat = stats.read().unwrap();
        let totals = stat.totals;
        assert_eq!((totals.promotions, totals.refused), (1, 1));
        assert_eq!((totals.superpages, totals.populated_bytes), (1, 812 << 12));
        assert_eq!(stat.regions.len(), 1);
        let cells = &stat.regions[0].picture.cells;
        assert_eq!(cells[1].state, CellState::Promoted);
        assert_eq!(cells[2].state, CellState::Base);
        drop(target);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn unused_superpages_are_given_up_while_memory_is_short() {
        let fake = Fake::default();
        let mut target = target(&fake, &[extent(1, 300), extent(2, 512)], "50%");
        for slot in [extent(1, 300), extent(2, 512)] {
            assert_eq!(target.promote(slot, SECOND), Ok(Promotion::Done));
        }
        fake.zeros.set(212);
        target.examine(SECOND, false, false, || true).unwrap();
        target.examine(SECOND, true, false, || false).unwrap();
        assert_eq!(target.counts.demoted, 0);
        target.examine(SECOND, true, false, || true).unwrap();
        // The full one has nothing to give back.
        assert_eq!(fake.calls.borrow().last(), Some(&("split", 1)));
        assert_eq!(target.counts.demoted, 1);
        // Base pages again, and hardly more of them: it stays so.
        look(&mut target, 2 * SECOND).unwrap();
        assert!(!due(&target, 999 * SECOND).contains(&1));
        *fake.extents.borrow_mut() = vec![extent(1, 300 + LEAST_UNUSED.0)];
        look(&mut target, 3 * SECOND).unwrap();
        assert_eq!(due(&target, 4 * SECOND), [1]);
    }

    #[test]
    fn idle_superpages_are_given_up_when_they_were_measured() {
        let fake = Fake::default();
        let mut target = target(&fake, &[extent(1, 300)], "50%");
        target.promote(extent(1, 300), Duration::ZERO).unwrap();
        fake.zeros.set(212);
        let mut now = Duration::ZERO;
        for demoted in [0, 1] {
            now += 100 * SECOND;
            assert!(target.lacks_heat(now));
            target.examine(now, false, true, || true).unwrap();
            assert_eq!(target.counts.demoted, 0, "not before a measurement");
            target.note_heat(Slot(1), 0);
            target.examine(now, false, true, || true).unwrap();
            assert_eq!(target.counts.demoted, demoted);
        }
    }

    #[test]
    fn a_superpage_whose_holes_are_used_is_watched_no_more() {
        let fake = Fake::default();
        let mut target = target(&fake, &[extent(1, 300)], "50%");
        target.promote(extent(1, 300), Duration::ZERO).unwrap();
        fake.zeros.set(LEAST_UNUSED.0 - 1);
        target.examine(SECOND, true, false, || true).unwrap();
        assert_eq!(target.on_trial().count(), 0);
        assert_eq!(target.counts.demoted, 0);
    }

    #[test]
    fn another_program_in_the_process_begins_anew() {
        let fake = Fake::default();
        let mut target = target(&fake, &[extent(1, 300), extent(2, 512)], "50%");
        target.promote(extent(1, 300), Duration::ZERO).unwrap();
        fake.collapse_error.set(Some(Kernel::INVAL));
        target.promote(extent(2, 512), Duration::ZERO).unwrap();
        assert_eq!(
            (
                target.on_trial().count(),
                due(&target, Duration::ZERO).len()
            ),
            (1, 0)
        );
        fake.image.set(7);
        look(&mut target, Duration::ZERO).unwrap();
        assert_eq!(target.on_trial().count(), 0);
        assert_eq!(due(&target, LIVED), [1, 2]);
    }

    #[test]
    fn looks_follow_change() {
        let fake = Fake::default();
        let mut target = target(&fake, &[extent(1, 512)], "100%");
        let mut gaps = Vec::new();
        let mut now = Duration::ZERO;
        for grown in [false, false, false, true, true] {
            if grown {
                let next = fake.extents.borrow().len() as u64 + 1;
                fake.extents.borrow_mut().push(extent(next, 512));
            }
            now = target.look_at();
            look(&mut target, now).unwrap();
            gaps.push((target.look_at() - now).as_secs());
        }
        assert_eq!(gaps, [2, 4, 8, 4, 2]);
        assert!(now > Duration::ZERO);
    }
}
