//! What `quire attach` decides about a process that it looks at from outside:
//! which extents become superpages, in which order, at what cost, when to look
//! again, and which superpages are given up.
//!
//! From outside, promotion copies, so it costs processor time, and first
//! touches are not seen. So the rules differ from those of a managed process:
//! populations come from a look at the page table now and then (the population
//! map of paper 000, section 3.3), promotion waits for a budget, and what is
//! used most comes first.

use std::cmp::Reverse;
use std::str::FromStr;
use std::time::Duration;

use crate::units::{AddrRange, BASE_PAGE, Bytes, PAGES_PER_SUPERPAGE, PageCount, Slot, VirtAddr};

/// Base pages in an extent.
const FULL: u64 = PAGES_PER_SUPERPAGE as u64;
/// Above so many pages that another process maps, too, promotion would copy
/// memory that is shared since a fork, and so use more of it.
pub const MOST_SHARED: PageCount = PageCount(FULL / 8);
/// Giving up a superpage for fewer unused pages than this is not worth it.
pub const LEAST_UNUSED: PageCount = PageCount(FULL / 16);
/// How often a superpage must have been found without accesses before it is
/// given up while memory is not short.
const IDLE_EXAMINATIONS: u32 = 2;
/// After how long a promotion is examined, and how rarely in the end.
const EXAMINE: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(640));
/// How many times longer than at best the time between looks may become.
const RAREST: u32 = 16;
/// Looks take no more than this part of the budget.
const LOOK_PART: u32 = 4;
/// The budget of so much time may be saved up.
const SAVED: Duration = Duration::from_secs(2);
/// At least so many extents must wait before it is worth knowing which of them
/// are accessed most.
pub const LEAST_TO_MEASURE: usize = 32;
/// How many pages are sampled at most to know that.
pub const MOST_SAMPLES: usize = 256;

/// From how many populated pages on an extent is promoted: 1 to 512.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold(PageCount);

/// A threshold that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a threshold: write pages of an extent (1 to 512) or a percentage (1% to 100%)"
)]
pub struct ThresholdError(pub String);

impl Threshold {
    /// Only fully populated extents.
    pub const FULL: Threshold = Threshold(PageCount(FULL));

    /// The pages.
    #[must_use]
    pub const fn pages(self) -> PageCount {
        self.0
    }
}

impl Default for Threshold {
    fn default() -> Threshold {
        Threshold::FULL
    }
}

impl FromStr for Threshold {
    type Err = ThresholdError;

    fn from_str(text: &str) -> Result<Threshold, ThresholdError> {
        let bad = || ThresholdError(text.to_owned());
        let (number, whole) = match text.trim().strip_suffix('%') {
            Some(percent) => (percent.trim_end(), 100),
            None => (text.trim(), FULL),
        };
        let number: u64 = number.parse().map_err(|_| bad())?;
        if !(1..=whole).contains(&number) {
            return Err(bad());
        }
        Ok(Threshold(PageCount((number * FULL).div_ceil(whole))))
    }
}

/// What a look at the page table says of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it is.
    pub slot: Slot,
    /// Pages that are mapped and hold data.
    pub populated: PageCount,
    /// Whether it is mapped as a superpage.
    pub huge: bool,
    /// Whether it is private memory.
    pub private: bool,
}

impl Extent {
    /// Whether it is full enough to be promoted. Holes in shared memory are not
    /// filled: all its users would pay for them.
    #[must_use]
    pub fn is_due(&self, threshold: Threshold) -> bool {
        let least = if self.private {
            threshold
        } else {
            Threshold::FULL
        };
        !self.huge && self.populated >= least.pages()
    }
}

/// Counts the populated pages of each extent from runs of pages.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    extents: Vec<Extent>,
}

impl Tally {
    /// Adds a run of populated pages of a private mapping or another one. Runs
    /// come in order of address and do not overlap, and no extent lies in two
    /// mappings.
    pub fn add(&mut self, run: AddrRange, huge: bool, private: bool) {
        for number in run.slots() {
            let slot = Slot(number);
            let populated = run.intersect(slot.range()).len().to_pages();
            match self.extents.last_mut() {
                Some(last) if last.slot == slot => {
                    last.populated += populated;
                    last.huge |= huge;
                }
                _ => self.extents.push(Extent {
                    slot,
                    populated,
                    huge,
                    private,
                }),
            }
        }
    }

    /// The extents that have populated pages, in order of address.
    #[must_use]
    pub fn extents(self) -> Vec<Extent> {
        self.extents
    }
}

/// How often an extent was found accessed while it was watched; nothing where
/// it was not watched.
pub type Heat = Option<u32>;

/// An extent that could be promoted, of the process `P`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<P> {
    /// The process.
    pub process: P,
    /// The extent.
    pub extent: Extent,
    /// How often it was found accessed.
    pub heat: Heat,
}

/// Puts candidates into the order of promotion: those accessed most first, then
/// those of which nothing is known, then those that were found idle; among
/// equals the fuller one, then the lower address.
pub fn order<P>(candidates: &mut [Candidate<P>]) {
    let warmth = |heat: Heat| heat.map_or(1, |times| u64::from(times) * 2);
    candidates.sort_by_key(|candidate| {
        let extent = candidate.extent;
        let warm = Reverse(warmth(candidate.heat));
        (warm, Reverse(extent.populated.0), extent.slot)
    });
}

/// How many of `waiting` extents to sample, so that knowing their order costs a
/// small part of what promoting them costs: none where that is little anyway.
#[must_use]
pub const fn samples(waiting: usize) -> usize {
    match waiting {
        0..LEAST_TO_MEASURE => 0,
        _ if waiting / 2 < MOST_SAMPLES => waiting / 2,
        _ => MOST_SAMPLES,
    }
}

/// The share of one processor that may be used, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuShare(u32);

/// A share that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no share of a processor: write a percentage from 0.01 to 100")]
pub struct CpuShareError(pub String);

impl CpuShare {
    /// One and a half percent.
    pub const DEFAULT: CpuShare = CpuShare(15_000);

    /// Ten percent: what copies may take inside of a program.
    pub const FOR_COPIES: CpuShare = CpuShare(100_000);

    /// The share of `percent`; nothing below 0.01 and above 100.
    #[must_use]
    pub fn from_percent(percent: f64) -> Option<CpuShare> {
        (0.01..=100.0)
            .contains(&percent)
            .then_some(CpuShare((percent * 10_000.0).round() as u32))
    }

    /// In percent.
    #[must_use]
    pub fn percent(self) -> f64 {
        f64::from(self.0) / 10_000.0
    }

    /// One of `parts` equal parts of it.
    #[must_use]
    pub fn part(self, parts: u32) -> CpuShare {
        CpuShare((self.0 / parts.max(1)).max(1))
    }

    /// What may be used in `time`.
    #[must_use]
    pub fn of(self, time: Duration) -> Duration {
        nanos(time.as_nanos() * u128::from(self.0) / 1_000_000)
    }

    /// How long it takes to earn `cost`.
    #[must_use]
    pub fn time_to_earn(self, cost: Duration) -> Duration {
        nanos((cost.as_nanos() * 1_000_000).div_ceil(u128::from(self.0)))
    }
}

impl FromStr for CpuShare {
    type Err = CpuShareError;

    fn from_str(text: &str) -> Result<CpuShare, CpuShareError> {
        let number = text.trim().trim_end_matches('%').trim_end();
        let percent = number.parse().ok().and_then(CpuShare::from_percent);
        percent.ok_or_else(|| CpuShareError(text.to_owned()))
    }
}

fn nanos(count: u128) -> Duration {
    Duration::from_nanos(u64::try_from(count).unwrap_or(u64::MAX))
}

/// A bounded share of processor time. It is earned as time passes, up to what
/// is earned in two seconds unless more is saved up. What an action costs is known only afterwards, so
/// the last one may go into debt, which must be earned before the next one.
#[derive(Clone, Debug)]
pub struct CpuBudget {
    share: CpuShare,
    saved: Duration,
    credit: Duration,
    debt: Duration,
    at: Duration,
}

impl CpuBudget {
    /// A budget without credit at the time `now` of a clock that never goes
    /// back.
    #[must_use]
    pub const fn new(share: CpuShare, now: Duration) -> CpuBudget {
        CpuBudget {
            share,
            saved: SAVED,
            credit: Duration::ZERO,
            debt: Duration::ZERO,
            at: now,
        }
    }

    /// Lets what is earned in so much time be saved up, and begins with what is earned in `credit`.
    #[must_use]
    pub fn saving(mut self, time: Duration, credit: Duration) -> CpuBudget {
        self.saved = time;
        self.credit = self.share.of(credit.min(time));
        self
    }

    /// The share.
    #[must_use]
    pub const fn share(&self) -> CpuShare {
        self.share
    }

    /// Changes the share from now on.
    pub fn set_share(&mut self, share: CpuShare, now: Duration) {
        self.earn(now);
        self.share = share;
        self.credit = self.credit.min(share.of(self.saved));
    }

    /// Notes that processor time was used.
    pub fn spend(&mut self, cost: Duration, now: Duration) {
        self.earn(now);
        self.debt += cost.saturating_sub(self.credit);
        self.credit = self.credit.saturating_sub(cost);
    }

    /// Whether something may be done now.
    pub fn may_spend(&mut self, now: Duration) -> bool {
        self.earn(now);
        !self.credit.is_zero()
    }

    /// How long to wait until what costs `cost` is earned, as far as so much can
    /// be saved up.
    pub fn wait_for(&mut self, cost: Duration, now: Duration) -> Duration {
        self.earn(now);
        let cost = cost.clamp(Duration::from_nanos(1), self.share.of(self.saved));
        let missing = (self.debt + cost).saturating_sub(self.credit);
        self.share.time_to_earn(missing)
    }

    fn earn(&mut self, now: Duration) {
        let earned = self.share.of(now.saturating_sub(self.at));
        // Shorter times than earn anything go on counting.
        if earned.is_zero() {
            return;
        }
        self.at = now;
        let left = earned.saturating_sub(self.debt);
        self.debt = self.debt.saturating_sub(earned);
        self.credit = (self.credit + left).min(self.share.of(self.saved));
    }
}

/// When to look at a process again: soon while it changes, ever more rarely
/// while it does not, and never so often that looking takes more than a part of
/// the budget.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    soonest: Duration,
    interval: Duration,
}

impl Pace {
    /// Looks are at least `soonest` apart.
    #[must_use]
    pub const fn new(soonest: Duration) -> Pace {
        Pace {
            soonest,
            interval: soonest,
        }
    }

    /// How long to wait after a look that took `cost`.
    pub fn looked(&mut self, changed: bool, cost: Duration, share: CpuShare) -> Duration {
        let next = if changed {
            self.interval / 2
        } else {
            self.interval * 2
        };
        self.interval = next.clamp(self.soonest, self.soonest * RAREST);
        self.interval.max(share.time_to_earn(cost) * LOOK_PART)
    }
}

/// A superpage that was made of an extent with holes, watched for whether the
/// program uses what filled the holes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// The extent.
    pub slot: Slot,
    /// The holes, in order of address.
    pub holes: Vec<AddrRange>,
    examine_at: Duration,
    interval: Duration,
    idle: u32,
}

/// What to do with a superpage that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is used: watch it no more.
    Settled,
    /// Examine it again later.
    Watch,
    /// Give it up.
    Demote,
}

impl Trial {
    /// A superpage made at the time `now`.
    #[must_use]
    pub const fn new(slot: Slot, holes: Vec<AddrRange>, now: Duration) -> Trial {
        Trial {
            slot,
            holes,
            examine_at: now.saturating_add(EXAMINE.0),
            interval: EXAMINE.0,
            idle: 0,
        }
    }

    /// When it is to be examined while memory is not short.
    #[must_use]
    pub const fn examine_at(&self) -> Duration {
        self.examine_at
    }

    /// Whether it is time to examine it. While memory is short it always is.
    #[must_use]
    pub fn is_due(&self, now: Duration, short: bool) -> bool {
        short || now >= self.examine_at
    }

    /// Decides, when `unused` pages of what filled the holes still hold zeros.
    /// While memory is short, superpages that hold unused memory are given up;
    /// otherwise those that were found without accesses again and again.
    pub fn judge(&mut self, unused: PageCount, heat: Heat, now: Duration, short: bool) -> Verdict {
        self.interval = (self.interval * 2).min(EXAMINE.1);
        self.examine_at = now.saturating_add(self.interval);
        match heat {
            Some(0) => self.idle += 1,
            Some(_) => self.idle = 0,
            None => {}
        }
        if unused < LEAST_UNUSED {
            Verdict::Settled
        } else if short || self.idle >= IDLE_EXAMINATIONS {
            Verdict::Demote
        } else {
            Verdict::Watch
        }
    }
}

/// The holes of an extent, from its populated runs in order of address.
#[must_use]
pub fn holes(slot: Slot, populated: &[AddrRange]) -> Vec<AddrRange> {
    let all = slot.range();
    let mut holes = Vec::new();
    let mut at = all.start;
    let end = AddrRange::new(all.end, Bytes::ZERO);
    for run in populated.iter().chain([&end]) {
        if run.start > at {
            holes.push(AddrRange {
                start: at,
                end: run.start.min(all.end),
            });
        }
        at = at.max(run.end);
    }
    holes
}

/// The page of an extent that is sampled to see whether it is accessed: another
/// one in each extent, so that a stride of the program does not hide it.
#[must_use]
pub const fn sampled_page(slot: Slot, round: u64) -> VirtAddr {
    let page = (slot
        .0
        .wrapping_mul(37)
        .wrapping_add(round.wrapping_mul(101)))
        % FULL;
    VirtAddr(slot.start().0 + page * BASE_PAGE)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn pages(from: u64, count: u64) -> AddrRange {
        AddrRange::new(VirtAddr(from * BASE_PAGE), PageCount(count).to_bytes())
    }

    fn extent(slot: u64, populated: u64) -> Extent {
        Extent {
            slot: Slot(slot),
            populated: PageCount(populated),
            huge: false,
            private: true,
        }
    }

    #[test]
    fn thresholds_are_pages_or_percentages() {
        let pages = |text: &str| text.parse::<Threshold>().map(|t| t.pages().0).ok();
        assert_eq!(pages("512"), Some(512));
        assert_eq!(pages("100%"), Some(512));
        assert_eq!(pages("1 %"), Some(6));
        assert_eq!(pages("1"), Some(1));
        for bad in ["0", "513", "0%", "101%", "", "%", "-1", "half"] {
            assert_eq!(pages(bad), None, "{bad}");
        }
    }

    #[test]
    fn shares_are_percentages() {
        let percent = |text: &str| text.parse::<CpuShare>().map(CpuShare::percent).ok();
        assert_eq!(percent("1.5"), Some(1.5));
        assert_eq!(percent("100 %"), Some(100.0));
        for bad in ["0", "101", "-1", "NaN", "inf", "", "all"] {
            assert_eq!(percent(bad), None, "{bad}");
        }
        let share = CpuShare::DEFAULT;
        let second = Duration::from_secs(1);
        assert_eq!(share.of(second), Duration::from_millis(15));
        assert_eq!(share.time_to_earn(Duration::from_millis(15)), second);
    }

    #[test]
    fn holes_are_filled_in_private_memory_only() {
        let half = "50%".parse().unwrap();
        let private = extent(1, 256);
        let shared = Extent {
            private: false,
            ..private
        };
        assert!(private.is_due(half) && !extent(1, 255).is_due(half));
        assert!(!private.is_due(Threshold::FULL) && !shared.is_due(half));
        let full = PageCount(FULL);
        assert!(
            Extent {
                populated: full,
                ..shared
            }
            .is_due(half)
        );
        assert!(
            !Extent {
                huge: true,
                ..private
            }
            .is_due(half)
        );
    }

    #[test]
    fn what_is_accessed_comes_first_and_what_is_idle_last() {
        let candidate = |slot, populated, heat| Candidate {
            process: (),
            extent: extent(slot, populated),
            heat,
        };
        let mut all = [
            candidate(1, 512, Some(0)),
            candidate(2, 512, None),
            candidate(3, 400, Some(2)),
            candidate(5, 512, Some(2)),
            candidate(4, 512, Some(2)),
            candidate(6, 300, Some(5)),
        ];
        order(&mut all);
        assert_eq!(all.map(|c| c.extent.slot.0), [6, 4, 5, 3, 2, 1]);
    }

    #[test]
    fn a_superpage_is_judged_by_its_use_and_by_memory() {
        let mut now = Duration::ZERO;
        let mut trial = Trial::new(Slot(1), vec![pages(512, 100)], now);
        assert!(!trial.is_due(now, false) && trial.is_due(now, true));
        assert_eq!(trial.judge(PageCount(0), None, now, true), Verdict::Settled);
        assert_eq!(trial.judge(LEAST_UNUSED, None, now, true), Verdict::Demote);
        assert_eq!(
            trial.judge(LEAST_UNUSED, Some(0), now, false),
            Verdict::Watch
        );
        assert_eq!(
            trial.judge(LEAST_UNUSED, Some(1), now, false),
            Verdict::Watch
        );
        assert_eq!(
            trial.judge(LEAST_UNUSED, Some(0), now, false),
            Verdict::Watch
        );
        assert_eq!(trial.judge(LEAST_UNUSED, None, now, false), Verdict::Watch);
        assert_eq!(
            trial.judge(LEAST_UNUSED, Some(0), now, false),
            Verdict::Demote
        );
        let mut before = Duration::ZERO;
        for _ in 0..9 {
            let wait = trial.examine_at - now;
            assert!(wait >= before && wait <= EXAMINE.1);
            (before, now) = (wait, trial.examine_at);
            assert!(trial.is_due(now, false));
            trial.judge(LEAST_UNUSED, Some(1), now, false);
        }
    }

    #[test]
    fn sampling_costs_a_small_part() {
        assert_eq!(samples(LEAST_TO_MEASURE - 1), 0);
        assert_eq!(samples(LEAST_TO_MEASURE), 16);
        assert_eq!(samples(1 << 20), MOST_SAMPLES);
    }

    proptest! {
        #[test]
        fn tallies_and_holes_agree_with_a_bitmap(bits in vec(any::<bool>(), 1..4), lens in vec(1u64..700, 1..12)) {
            // Alternating runs of populated and empty pages.
            let mut map = vec![false; 12 * 700];
            let mut runs = Vec::new();
            let mut at = 0;
            for (n, len) in lens.iter().enumerate() {
                if bits[n % bits.len()] {
                    map[at as usize..(at + len) as usize].fill(true);
                    runs.push(pages(at, *len));
                }
                at += len;
            }
            let mut tally = Tally::default();
            runs.iter().for_each(|run| tally.add(*run, false, true));
            let naive: Vec<Extent> = map
                .chunks(PAGES_PER_SUPERPAGE)
                .enumerate()
                .map(|(n, chunk)| extent(n as u64, chunk.iter().filter(|p| **p).count() as u64))
                .filter(|e| e.populated.0 > 0)
                .collect();
            prop_assert_eq!(tally.extents(), naive);
            let slot = Slot(1);
            let inside: Vec<AddrRange> = runs
                .iter()
                .map(|run| run.intersect(slot.range()))
                .filter(|run| !run.is_empty())
                .collect();
            let mut empty = vec![false; PAGES_PER_SUPERPAGE];
            for hole in holes(slot, &inside) {
                prop_assert!(slot.range().contains(hole) && !hole.is_empty());
                for page in 0..hole.len().to_pages().0 {
                    let number = (hole.start.0 - slot.start().0) / BASE_PAGE + page;
                    prop_assert!(!std::mem::replace(&mut empty[number as usize], true));
                }
            }
            for (page, empty) in empty.iter().enumerate() {
                prop_assert_eq!(*empty, !map[PAGES_PER_SUPERPAGE + page]);
            }
        }

        #[test]
        fn the_order_is_that_of_repeated_selection(
            input in vec((0u64..40, 1u64..=512, proptest::option::of(0u32..6)), 0..40)
        ) {
            let mut all: Vec<Candidate<usize>> = input
                .iter()
                .enumerate()
                .map(|(process, (slot, populated, heat))| Candidate {
                    process,
                    extent: extent(*slot, *populated),
                    heat: *heat,
                })
                .collect();
            let mut left = all.clone();
            order(&mut all);
            // A goes before B when the first of these differences says so.
            let before = |a: &Candidate<usize>, b: &Candidate<usize>| {
                let class = |c: &Candidate<usize>| match c.heat {
                    Some(0) => 0,
                    None => 1,
                    Some(times) => 1 + times,
                };
                if class(a) != class(b) {
                    return class(a) > class(b);
                }
                if a.extent.populated != b.extent.populated {
                    return a.extent.populated > b.extent.populated;
                }
                a.extent.slot < b.extent.slot
            };
            for found in &all {
                prop_assert!(!left.iter().any(|other| before(other, found)));
                let at = left.iter().position(|c| c == found);
                prop_assert!(at.is_some());
                left.remove(at.unwrap());
            }
            prop_assert!(left.is_empty());
        }

        #[test]
        fn the_budget_is_never_exceeded(
            percent in 0.05f64..50.0,
            steps in vec((0u64..3_000_000, 1u64..30_000), 1..200),
        ) {
            let share = CpuShare::from_percent(percent).unwrap();
            let mut budget = CpuBudget::new(share, Duration::ZERO);
            let (mut now, mut spent, mut largest) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
            // The model: credit as a signed number, in nanoseconds.
            let rate = f64::from(share.0) / 1e6;
            let cap = share.of(SAVED).as_nanos() as f64;
            let mut model = 0.0f64;
            for (gap_us, cost_us) in steps {
                let gap = Duration::from_micros(gap_us);
                now += gap;
                model = (model + gap.as_nanos() as f64 * rate).min(cap);
                let tolerance = 1e3;
                let may = budget.may_spend(now);
                prop_assert!(may == (model > 0.0) || model.abs() < tolerance);
                if may {
                    let cost = Duration::from_micros(cost_us);
                    budget.spend(cost, now);
                    model -= cost.as_nanos() as f64;
                    spent += cost;
                    largest = largest.max(cost);
                }
                prop_assert!(spent <= share.of(now) + largest);
                let wait = budget.wait_for(Duration::from_millis(1), now);
                let enough = 1e6f64.min(cap);
                let naive = ((enough - model) / rate).max(0.0);
                prop_assert!((wait.as_nanos() as f64 - naive).abs() <= tolerance / rate + 1e3);
            }
        }

        #[test]
        fn what_is_waited_for_is_there(percent in 0.05f64..50.0, debt_us in 0u64..100_000, cost_us in 0u64..9_000) {
            let share = CpuShare::from_percent(percent).unwrap();
            let mut budget = CpuBudget::new(share, Duration::ZERO);
            budget.spend(Duration::from_micros(debt_us), Duration::ZERO);
            let wait = budget.wait_for(Duration::from_micros(cost_us), Duration::ZERO);
            prop_assert!(budget.may_spend(wait));
        }

        #[test]
        fn looks_adapt_within_bounds(steps in vec((any::<bool>(), 0u64..200), 1..60)) {
            let soonest = Duration::from_secs(1);
            let mut pace = Pace::new(soonest);
            let mut model = 1000u64;
            for (changed, cost_ms) in steps {
                let cost = Duration::from_millis(cost_ms);
                let wait = pace.looked(changed, cost, CpuShare::DEFAULT);
                model = if changed { model / 2 } else { model * 2 }.clamp(1000, 16_000);
                let floor = cost.as_secs_f64() * 4.0 / 0.015;
                let naive = (model as f64 / 1000.0).max(floor);
                prop_assert!((wait.as_secs_f64() - naive).abs() < 1e-6);
            }
        }
    }
}
