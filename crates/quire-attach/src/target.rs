//! One process: looks at it, makes superpages, and gives up those that turn out
//! unused. Whatever the process does meanwhile (end, execute another program,
//! unmap, fork), the kernel refuses or the step does no harm.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use quire_core::attach::{
    CpuShare, Extent, Heat, MOST_SHARED, Pace, Refusals, Trial, Verdict, sampled_page,
};
use quire_core::policy::Backoff;
use quire_core::units::{AddrRange, Bytes, Frame, PAGES_PER_SUPERPAGE, PageCount, SUPERPAGE, Slot};
use quire_linux::Errno;

use crate::metrics::Counts;
use crate::plan::Treatment;
use crate::process::Process;

/// Growth by fewer pages than this is no change.
const GROWTH: u64 = 64;

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
    /// What was done.
    pub counts: Counts,
    process: P,
    image: Option<u64>,
    extents: Vec<Extent>,
    heats: BTreeMap<Slot, u32>,
    refusals: Refusals,
    backoff: Backoff,
    trials: BTreeMap<Slot, Trial>,
    pace: Pace,
    look_at: Duration,
}

impl<P: Process> Target<P> {
    /// Attaches to a process; it is looked at at once, and then `interval`
    /// apart while it changes.
    pub fn new(process: P, program: String, rule: usize, interval: Duration) -> Target<P> {
        Target {
            program,
            rule,
            treatment: Treatment::default(),
            counts: Counts::default(),
            image: process.image(),
            process,
            extents: Vec::new(),
            heats: BTreeMap::new(),
            refusals: Refusals::default(),
            backoff: Backoff::default(),
            trials: BTreeMap::new(),
            pace: Pace::new(interval),
            look_at: Duration::ZERO,
        }
    }

    /// Whether the process still runs.
    pub fn is_alive(&self) -> bool {
        self.process.is_alive()
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
        let extents = self.process.look().map_err(|error| lost(&error))?;
        let changed = self.has_changed(&extents);
        self.refusals.retain_present(&extents);
        self.trials
            .retain(|slot, _| find(&extents, *slot).is_some_and(|e| e.huge));
        self.extents = extents;
        self.counts.looks += 1;
        self.look_at = now
            + self
                .pace
                .looked(changed, clock().saturating_sub(began), share);
        Ok(())
    }

    /// Notes that another program runs now.
    fn forget(&mut self) {
        self.extents.clear();
        self.heats.clear();
        self.refusals = Refusals::default();
        self.trials.clear();
    }

    /// Whether extents became due since the last look, or memory grew.
    fn has_changed(&self, now: &[Extent]) -> bool {
        let total = |all: &[Extent]| all.iter().map(|e| e.populated.0).sum::<u64>();
        let threshold = self.treatment.threshold;
        let news = |e: &&Extent| {
            e.is_due(threshold) && !find(&self.extents, e.slot).is_some_and(|o| o.is_due(threshold))
        };
        now.iter().any(|e| news(&e)) || total(now) >= total(&self.extents) + GROWTH
    }

    /// The extents to promote, with what is known of their accesses.
    pub fn due(&self, now: Duration) -> impl Iterator<Item = (Extent, Heat)> {
        let threshold = self.treatment.threshold;
        let now_ms = millis(now);
        self.extents
            .iter()
            .filter(move |e| e.is_due(threshold) && self.refusals.may_try(**e, now_ms))
            .map(|e| (*e, self.heats.get(&e.slot).copied()))
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
        use rustix::io::Errno as Kernel;
        let slot = extent.slot;
        if extent.private && self.is_shared(slot)? {
            self.counts.refused_shared += 1;
            self.refusals.refused(extent, millis(now));
            return Ok(Promotion::Refused);
        }
        let holes = self.holes(extent)?;
        let Err(Errno(number)) = self.process.collapse(slot) else {
            self.promoted(slot, holes, now);
            return Ok(Promotion::Done);
        };
        match Kernel::from_raw_os_error(number) {
            Kernel::SRCH => return Err(Lost::Gone),
            Kernel::PERM | Kernel::ACCESS => return Err(Lost::Denied),
            // Without a free block, or without room in the control group.
            Kernel::BUSY => return Ok(self.wait_for_block(now)),
            Kernel::NOMEM if self.is_mapped(slot)? => return Ok(self.wait_for_block(now)),
            Kernel::AGAIN => self.counts.refused_busy += 1,
            _ => self.counts.refused_mapping += 1,
        }
        self.refusals.refused(extent, millis(now));
        Ok(Promotion::Refused)
    }

    fn wait_for_block(&mut self, now: Duration) -> Promotion {
        self.counts.no_block += 1;
        self.backoff.failed(millis(now));
        Promotion::NoBlock
    }

    /// `ENOMEM` also means that nothing is mapped there any more.
    fn is_mapped(&self, slot: Slot) -> Result<bool, Lost> {
        let holes = self.process.holes(slot).map_err(|error| lost(&error))?;
        Ok(pages(&holes) < PAGES_PER_SUPERPAGE as u64)
    }

    fn is_shared(&self, slot: Slot) -> Result<bool, Lost> {
        let shared = self.process.shared(slot).map_err(|error| lost(&error))?;
        Ok(shared > MOST_SHARED)
    }

    /// The holes that promotion will fill.
    fn holes(&self, extent: Extent) -> Result<Vec<AddrRange>, Lost> {
        if extent.populated.0 >= PAGES_PER_SUPERPAGE as u64 {
            return Ok(Vec::new());
        }
        self.process
            .holes(extent.slot)
            .map_err(|error| lost(&error))
    }

    fn promoted(&mut self, slot: Slot, holes: Vec<AddrRange>, now: Duration) {
        self.counts.promoted += 1;
        self.backoff.succeeded();
        self.refusals.succeeded(slot);
        if !holes.is_empty() {
            self.trials.insert(slot, Trial::new(slot, holes, now));
        }
        if let Ok(at) = self.extents.binary_search_by_key(&slot, |e| e.slot) {
            self.extents[at].huge = true;
        }
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
            Err(error) => match lost_for_good(&error) {
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
                let used = (PAGES_PER_SUPERPAGE as u64).saturating_sub(unused.0);
                self.refusals.demoted(slot, PageCount(used));
                Ok(())
            }
            Err(errno) => lost_for_good(&errno.into()).map_or(Ok(()), Err),
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
        let inside = self
            .extents
            .iter()
            .filter(|e| mapping.contains(e.slot.range()));
        self.heats.extend(inside.map(|e| (e.slot, times)));
    }

    /// Forgets what was measured, before new measurements come in.
    pub fn forget_heat(&mut self) {
        self.heats.clear();
    }

    /// What the process has in superpages.
    pub fn superpages(&self) -> Bytes {
        let count = self.extents.iter().filter(|e| e.huge).count();
        Bytes(count as u64 * SUPERPAGE)
    }
}

fn find(extents: &[Extent], slot: Slot) -> Option<&Extent> {
    let at = extents.binary_search_by_key(&slot, |e| e.slot).ok()?;
    extents.get(at)
}

fn pages(ranges: &[AddrRange]) -> u64 {
    ranges.iter().map(|range| range.len().to_pages().0).sum()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Whoever cannot be looked at is lost: without the right to, or gone.
fn lost(error: &io::Error) -> Lost {
    lost_for_good(error).unwrap_or(Lost::Gone)
}

fn lost_for_good(error: &io::Error) -> Option<Lost> {
    let is_gone = error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error());
    match error.kind() {
        io::ErrorKind::PermissionDenied => Some(Lost::Denied),
        io::ErrorKind::NotFound => Some(Lost::Gone),
        _ if is_gone => Some(Lost::Gone),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use quire_core::attach::{LEAST_UNUSED, holes};
    use quire_core::units::VirtAddr;
    use rustix::io::Errno as Kernel;

    use super::*;

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

    impl Process for &Fake {
        fn is_alive(&self) -> bool {
            !self.dead.get()
        }
        fn image(&self) -> Option<u64> {
            Some(self.image.get())
        }
        fn look(&mut self) -> io::Result<Vec<Extent>> {
            answer(&self.look_error)?;
            Ok(self.extents.borrow().clone())
        }
        fn shared(&self, _: Slot) -> io::Result<PageCount> {
            Ok(PageCount(self.shared.get()))
        }
        fn holes(&self, slot: Slot) -> io::Result<Vec<AddrRange>> {
            let all = self.extents.borrow();
            let populated = find(&all, slot).map_or(PageCount(0), |e| e.populated);
            let run = AddrRange::new(slot.start(), populated.to_bytes());
            Ok(holes(slot, &[run]))
        }
        fn zeros(&self, _: &[AddrRange]) -> io::Result<PageCount> {
            Ok(PageCount(self.zeros.get()))
        }
        fn frame(&self, _: VirtAddr) -> Option<Frame> {
            None
        }
        fn collapse(&self, slot: Slot) -> Result<(), Errno> {
            self.calls.borrow_mut().push(("collapse", slot.0));
            answer(&self.collapse_error)
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
        assert_eq!(due(&target, SECOND), [1, 2]);
        assert_eq!(target.promote(extent(1, 512), SECOND), Ok(Promotion::Done));
        assert_eq!(due(&target, SECOND), [2]);
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
        let mut now = SECOND;
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
        assert_eq!(due(&target, Duration::ZERO), [1, 2]);
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
