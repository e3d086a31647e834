//! What the fault path does with an extent: reserve it, map it whole at once,
//! or leave it to base pages.
//!
//! The policies `reserve` and `adaptive` reserve at the first touch and promote
//! when full (paper 000, section 3.5). Each region remembers how earlier reservations
//! fared: where extents fill up one after the other, the next ones are mapped
//! whole without waiting; where they stay sparse, reserving pauses. Every
//! prediction is bounded by the evidence behind it, so that one that is wrong
//! costs a known amount.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use crate::config::Policy;
use crate::units::{PAGES_PER_SUPERPAGE, PageCount, Slot};

/// How many extents are prepared ahead at most.
pub const MAX_AHEAD: u64 = 32;
/// How many adjacent extents must have filled up before the next ones are
/// mapped whole.
pub const DENSE_RUN: u64 = 4;
/// How many extents are mapped whole, for each one of the run behind them.
pub const WHOLE_PER_DENSE: u64 = 8;
/// How many reservations must have stayed sparse before reserving pauses.
pub const SPARSE_RUN: u64 = 16;
/// The mean population below which reservations count as sparse.
pub const SPARSE_POPULATION: PageCount = PageCount(PAGES_PER_SUPERPAGE as u64 / 8);
/// For how many touches reserving pauses: at first, and at most.
pub const PAUSE_TOUCHES: (u64, u64) = (64, 4096);
/// How soon populations are looked at again at best.
pub const SOONEST_LOOK: Duration = Duration::from_micros(200);
/// How rarely they are looked at while they change slowly.
const SLOW_LOOK: Duration = Duration::from_millis(4);
/// How rarely they are looked at at all.
const RAREST_LOOK: Duration = Duration::from_secs(1);
/// Fewer pages than this between two looks are slow growth, and twice as many
/// are fast growth.
const SLOW_GROWTH: u64 = PAGES_PER_SUPERPAGE as u64 / 8;
const FAST_GROWTH: u64 = 2 * SLOW_GROWTH;
/// How long a failed reservation is not retried: at first, and at most, in
/// milliseconds.
pub const RETRY_MS: (u64, u64) = (10, 10_000);

/// What to do with an extent at its first touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Reserve it, populate it page by page and promote it when it is full.
    Reserve,
    /// Map it as a superpage at once.
    Whole,
    /// Leave it to base pages.
    Base,
}

/// What a region's extents did so far, and what follows for the next one.
///
/// It holds at most one entry for every second extent of the region.
#[derive(Clone, Debug)]
pub struct RegionHistory {
    policy: Policy,
    /// Maximal runs of extents known to be dense: first slot to end.
    runs: BTreeMap<u64, u64>,
    /// The run of [`DENSE_RUN`] or more that grew last.
    growing: Option<Range<u64>>,
    pause: Pause,
    window: Window,
}

impl RegionHistory {
    /// The history of a region that has not been touched.
    #[must_use]
    pub const fn new(policy: Policy) -> RegionHistory {
        RegionHistory {
            policy,
            runs: BTreeMap::new(),
            growing: None,
            pause: Pause::NONE,
            window: Window {
                last: None,
                ahead: 0,
            },
        }
    }

    /// Notes that an extent that was reserved has become full, in whatever
    /// order extents do. One that was mapped whole is no evidence: do not
    /// report it.
    pub fn note_full(&mut self, slot: Slot) {
        self.pause = Pause::NONE;
        let run = self.join(slot.0);
        if run.end - run.start >= DENSE_RUN {
            self.growing = Some(run);
        }
    }

    /// Notes that the program has moved on from a reservation with `populated`
    /// pages in use: younger reservations exist, and it has not grown for a
    /// while. To be called once for each reservation.
    ///
    /// A run whose prediction covers the extent, or just precedes it, is
    /// forgotten.
    pub fn note_sparse(&mut self, slot: Slot, populated: PageCount) {
        self.pause.note_sparse(populated);
        if let (Some(run), Some(whole)) = (self.growing.clone(), self.whole_run())
            && (run.start..=whole.end.0).contains(&slot.0)
        {
            self.runs.remove(&run.start);
            self.growing = None;
        }
    }

    /// Notes how much was used of an extent that was left to base pages because
    /// reserving pauses. If that would not have been sparse, the pause ends. To
    /// be called once for each such extent, when the program gives it up or some
    /// time after its first touch.
    pub fn note_left(&mut self, populated: PageCount) {
        self.pause.note_left(populated);
    }

    /// Notes a touch of such an extent that was not reported.
    pub fn note_unreported(&mut self) {
        self.pause.note_touch();
    }

    /// Whether reserving pauses.
    #[must_use]
    pub const fn pauses(&self) -> bool {
        self.pause.left > 0
    }

    /// Notes a first touch in an unreserved extent, or that the program has
    /// reached the edge of what was prepared for it.
    pub fn note_touch(&mut self, slot: Slot) {
        self.pause.note_touch();
        self.window.note_touch(slot.0);
    }

    /// What to do with an extent at its first touch.
    #[must_use]
    pub fn decide(&self, slot: Slot) -> Decision {
        match self.policy {
            Policy::Eager => Decision::Whole,
            Policy::Base | Policy::Static => Decision::Base,
            Policy::Reserve | Policy::Adaptive => {
                if self.whole_run().is_some_and(|run| run.contains(&slot)) {
                    Decision::Whole
                } else if self.pause.left > 0 {
                    Decision::Base
                } else {
                    Decision::Reserve
                }
            }
        }
    }

    /// How many extents after the one touched last to prepare for the program:
    /// none after a jump, then 1, 2, 4 and so on up to [`MAX_AHEAD`] while it
    /// goes upward, as a file system reads ahead.
    #[must_use]
    pub const fn ahead(&self) -> u64 {
        self.window.ahead
    }

    /// The extents that may be mapped whole at the first touch: those after
    /// the run that grew last, [`WHOLE_PER_DENSE`] for each one in it. `None`
    /// while no run is [`DENSE_RUN`] long.
    ///
    /// The extent after them is reserved again. When it fills up, everything
    /// before it counts as part of the run, so that the range grows
    /// geometrically.
    #[must_use]
    pub fn whole_run(&self) -> Option<Range<Slot>> {
        self.growing.as_ref().map(|run| {
            let whole = (run.end - run.start).saturating_mul(WHOLE_PER_DENSE);
            Slot(run.end)..Slot(run.end.saturating_add(whole))
        })
    }

    /// Adds a dense extent to the runs and returns the run that it is in.
    fn join(&mut self, slot: u64) -> Range<u64> {
        let mut run = slot..slot + 1;
        if let (Some(growing), Some(whole)) = (&self.growing, self.whole_run())
            && whole.end.0 == slot
        {
            run.start = growing.start;
        }
        if let Some((&start, &end)) = self.runs.range(..=slot).next_back()
            && end >= slot
        {
            run = start.min(run.start)..end.max(run.end);
        }
        if let Some(end) = self.runs.remove(&run.end) {
            run.end = end;
        }
        while let Some((&start, _)) = self.runs.range(run.clone()).next() {
            self.runs.remove(&start);
        }
        self.runs.insert(run.start, run.end);
        run
    }
}

/// The pause of reserving after a series of sparse reservations.
#[derive(Clone, Copy, Debug)]
struct Pause {
    /// What counts for the next verdict: sparse reservations since the last full
    /// one or, while reserving pauses, extents that were left to base pages.
    seen: u64,
    pages: PageCount,
    /// Touches until reserving resumes.
    left: u64,
    /// Length of the next pause, in touches.
    next: u64,
}

impl Pause {
    const NONE: Pause = Pause {
        seen: 0,
        pages: PageCount(0),
        left: 0,
        next: PAUSE_TOUCHES.0,
    };
    /// Fewer pages than this in [`SPARSE_RUN`] extents are sparse use.
    const ENOUGH: u64 = SPARSE_RUN * SPARSE_POPULATION.0;

    fn note_touch(&mut self) {
        if self.left > 0 {
            self.left -= 1;
            if self.left == 0 {
                self.forget();
            }
        }
    }

    /// Counts a sparse reservation, unless reserving pauses already: then it
    /// was made before the pause, and its like have been counted.
    fn note_sparse(&mut self, populated: PageCount) {
        if self.left > 0 {
            return;
        }
        self.count(populated);
        if self.seen == SPARSE_RUN {
            if self.pages.0 < Pause::ENOUGH {
                self.left = self.next;
                self.next = (self.next * 2).min(PAUSE_TOUCHES.1);
            }
            self.forget();
        }
    }

    /// Counts an extent that was left to base pages. What would not have made
    /// reserving pause ends the pause, as soon as it is certain: a dense phase
    /// shows in a few extents, and one dense extent among many is not enough.
    fn note_left(&mut self, populated: PageCount) {
        if self.left == 0 {
            return;
        }
        self.count(populated);
        if self.pages.0 >= Pause::ENOUGH {
            self.left = 0;
            self.forget();
        } else if self.seen == SPARSE_RUN {
            self.forget();
        }
    }

    fn count(&mut self, populated: PageCount) {
        self.seen += 1;
        self.pages += populated;
    }

    /// Begins to count anew.
    fn forget(&mut self) {
        self.seen = 0;
        self.pages = PageCount(0);
    }
}

/// How far to prepare ahead of a program that goes upward.
#[derive(Clone, Copy, Debug)]
struct Window {
    last: Option<u64>,
    ahead: u64,
}

impl Window {
    /// A touch up to the end of the window, or just past it, is sequential;
    /// one as far behind comes from a second thread and changes nothing.
    fn note_touch(&mut self, slot: u64) {
        match self.last {
            Some(last) if slot > last && slot - last <= self.ahead + 1 => {
                self.ahead = (self.ahead * 2).clamp(1, MAX_AHEAD);
            }
            Some(last) if slot <= last && last - slot <= self.ahead => return,
            _ => self.ahead = 0,
        }
        self.last = Some(slot);
    }
}

/// The extent that a second thread should zero next; `None` at the `limit`, and
/// while the program `runs`, that is, has gone on since this was last asked.
///
/// `toucher` is the highest extent that the program has touched, and
/// `prepared_end` the end of those prepared before. Two processors that zero warm
/// memory at the same time are limited by the memory: then both take up to twice
/// the time for each extent, and the program is no sooner done. Where it does not go
/// on, because it computes or because the memory is slow to come, there is time to
/// zero all that it will come to.
#[must_use]
pub fn next_to_prepare(toucher: Slot, prepared_end: Slot, limit: Slot, runs: bool) -> Option<Slot> {
    let next = Slot(prepared_end.0.max(toucher.0.saturating_add(1)));
    (!runs && next < limit).then_some(next)
}

/// How long to wait before the populations are looked at again, after `last`,
/// when they have changed by `changed` pages since.
///
/// A program that fills extents at full speed takes 200 us to 1 ms for each; one
/// that fills them slowly need not be watched as closely, and one that does
/// nothing hardly at all.
#[must_use]
pub fn look_again(last: Duration, changed: PageCount) -> Duration {
    match changed.0 {
        0 => (last * 2).min(RAREST_LOOK),
        1..SLOW_GROWTH => (last * 2).min(SLOW_LOOK.max(last)),
        SLOW_GROWTH..FAST_GROWTH => last,
        _ => last / 2,
    }
    .max(SOONEST_LOOK)
}

/// When a reservation that failed may be tried again.
///
/// Paper 004 (section 5) found programs slower than without superpages where
/// reservations failed, and asks whether to leave them failed. Here the wait
/// doubles from failure to failure within [`RETRY_MS`], so that failing costs
/// next to nothing and memory that becomes free later is still used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    delay_ms: u64,
    retry_at_ms: u64,
}

impl Backoff {
    /// Notes a failure at the time `now_ms`, in milliseconds of any clock that
    /// never goes back.
    pub fn failed(&mut self, now_ms: u64) {
        let (least, most) = RETRY_MS;
        self.delay_ms = (self.delay_ms * 2).clamp(least, most);
        self.retry_at_ms = now_ms.saturating_add(self.delay_ms);
    }

    /// Whether a reservation may be tried at the time `now_ms`.
    #[must_use]
    pub const fn may_try(&self, now_ms: u64) -> bool {
        now_ms >= self.retry_at_ms
    }

    /// When a reservation may be tried again, in the same time.
    #[must_use]
    pub const fn retry_at_ms(&self) -> u64 {
        self.retry_at_ms
    }

    /// Notes a success, which forgets all failures.
    pub fn succeeded(&mut self) {
        *self = Backoff::default();
    }
}

/// What making room for superpages may cost, when the kernel has to move memory
/// for them: a part of the time, and what a superpage saves.
///
/// Paper 000 (section 3.4) asks for compaction last. Here it is asked for, too, as
/// long as it pays at once, or costs so little that nobody notices. Whether it
/// succeeds is only known afterwards, and to search some GiB in vain takes as long
/// as to fill 100 MiB. So the first attempt is made at once only where the kernel
/// has caches to drop, and otherwise when that much time is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// One part in so many of the time is allowed.
    part: u64,
    credit_ns: i64,
    accrued_at_ns: u64,
    /// What the last attempt took, and so the next one.
    last: Option<Duration>,
}

/// Which part of the time may be spent in advance for first touches.
pub const ALLOWED_PART: u64 = 50;
/// The same for copies of what is filled: they can wait.
pub const ALLOWED_PART_FOR_COPIES: u64 = 250;
/// So much may come together in times when nothing is spent.
const ALLOWED_MOST: Duration = Duration::from_millis(100);
/// What the first attempt is expected to take: to search some GiB in vain.
const FIRST_ATTEMPT: Duration = Duration::from_millis(20);
/// What a superpage saves at least: 512 faults of 2 us, which they take where
/// memory is fragmented.
const SAVED: Duration = Duration::from_millis(1);

impl Allowance {
    /// Nothing is spent yet, and one part in `part` of the time may be.
    #[must_use]
    pub const fn one_in(part: u64) -> Allowance {
        Allowance {
            part,
            credit_ns: 0,
            accrued_at_ns: 0,
            last: None,
        }
    }

    /// Whether another attempt may be made at the time `now_ns`, in nanoseconds of
    /// a clock that never goes back. `promising` says whether a first one is likely
    /// to succeed.
    pub fn may_spend(&mut self, now_ns: u64, promising: bool) -> bool {
        let since = match self.accrued_at_ns {
            0 => 0,
            before => now_ns.saturating_sub(before),
        };
        self.accrued_at_ns = now_ns;
        self.add(i64::try_from(since / self.part).unwrap_or(i64::MAX));
        let first = if promising { SAVED } else { FIRST_ATTEMPT };
        let expected = self.last.unwrap_or(first).min(ALLOWED_MOST);
        expected <= SAVED || self.credit_ns >= nanos(expected)
    }

    /// Notes what was spent, and whether there is a superpage for it.
    pub fn spent(&mut self, took: Duration, gained: bool) {
        let saved = if gained { SAVED } else { Duration::ZERO };
        self.add(nanos(saved).saturating_sub(nanos(took)));
        self.last = Some(match gained {
            true => took,
            false => took.max(2 * SAVED),
        });
    }

    fn add(&mut self, more_ns: i64) {
        let credit = self.credit_ns.saturating_add(more_ns);
        self.credit_ns = credit.min(nanos(ALLOWED_MOST));
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn reserve() -> RegionHistory {
        RegionHistory::new(Policy::Reserve)
    }

    fn sparse(history: &mut RegionHistory, populated: u64) {
        for n in 0..SPARSE_RUN {
            history.note_sparse(Slot(1000 + 2 * n), PageCount(populated));
        }
    }

    #[test]
    fn fixed_policies_ignore_history() {
        for (policy, decision) in [
            (Policy::Eager, Decision::Whole),
            (Policy::Base, Decision::Base),
            (Policy::Static, Decision::Base),
            (Policy::Reserve, Decision::Reserve),
        ] {
            let mut history = RegionHistory::new(policy);
            assert_eq!(history.decide(Slot(7)), decision);
            sparse(&mut history, 1);
            (0..8).for_each(|n| history.note_full(Slot(n)));
            assert_eq!(history.decide(Slot(1 << 20)), decision);
        }
    }

    #[test]
    fn a_dense_run_in_any_order_maps_the_next_extents_whole() {
        let mut history = reserve();
        for slot in [13, 10, 12] {
            history.note_full(Slot(slot));
            assert_eq!(history.whole_run(), None);
        }
        history.note_full(Slot(11));
        assert_eq!(history.whole_run(), Some(Slot(14)..Slot(46)));
        assert_eq!(history.decide(Slot(14)), Decision::Whole);
        assert_eq!(history.decide(Slot(45)), Decision::Whole);
        assert_eq!(history.decide(Slot(46)), Decision::Reserve);
        history.note_full(Slot(46));
        assert_eq!(history.whole_run(), Some(Slot(47)..Slot(47 + 37 * 8)));
    }

    #[test]
    fn a_sequential_program_seldom_reserves() {
        let mut history = reserve();
        let mut reserved = 0;
        for slot in (0..100_000).map(Slot) {
            history.note_touch(slot);
            match history.decide(slot) {
                Decision::Reserve => {
                    reserved += 1;
                    history.note_full(slot);
                }
                decision => assert_eq!(decision, Decision::Whole),
            }
        }
        assert_eq!(reserved, 8, "4, then one for each nine-fold growth");
    }

    #[test]
    fn a_sparse_extent_refutes_the_run_before_it() {
        let dense = || {
            let mut history = reserve();
            (0..4).for_each(|n| history.note_full(Slot(n)));
            history
        };
        for (slot, forgotten) in [(4, true), (36, true), (37, false)] {
            let mut history = dense();
            history.note_sparse(Slot(slot), PageCount(300));
            assert_eq!(history.whole_run().is_none(), forgotten, "slot {slot}");
        }
    }

    #[test]
    fn sparse_reservations_pause_reserving_for_longer_and_longer() {
        let mut history = reserve();
        for expected in [64, 128, 256, 512, 1024, 2048, 4096, 4096] {
            sparse(&mut history, SPARSE_POPULATION.0 - 1);
            assert_eq!(touches_until_reserving(&mut history), expected);
        }
        history.note_full(Slot(0));
        sparse(&mut history, 0);
        assert_eq!(touches_until_reserving(&mut history), 64);
        sparse(&mut history, SPARSE_POPULATION.0);
        assert_eq!(history.decide(Slot(0)), Decision::Reserve);
        sparse(&mut history, 0);
        history.note_full(Slot(0));
        assert_eq!(history.decide(Slot(0)), Decision::Reserve);
    }

    #[test]
    fn a_dense_phase_ends_the_pause_within_a_few_extents() {
        let mut history = reserve();
        (0..8).for_each(|_| {
            sparse(&mut history, 1);
            touches_until_reserving(&mut history);
        });
        sparse(&mut history, 1);
        let full = PageCount(PAGES_PER_SUPERPAGE as u64);
        history.note_left(full);
        assert!(history.pauses(), "one extent is no phase");
        (1..SPARSE_RUN).for_each(|_| history.note_left(PageCount(1)));
        history.note_left(full);
        assert!(history.pauses(), "nor is one among many");
        history.note_left(full);
        assert!(!history.pauses());
        assert_eq!(history.decide(Slot(0)), Decision::Reserve);
        sparse(&mut history, 1);
        assert_eq!(touches_until_reserving(&mut history), PAUSE_TOUCHES.1);
    }

    fn touches_until_reserving(history: &mut RegionHistory) -> u64 {
        let far = Slot(1 << 40);
        let mut touches = 0;
        while history.decide(far) == Decision::Base {
            history.note_touch(far);
            touches += 1;
        }
        touches
    }

    #[test]
    fn the_window_doubles_and_a_jump_resets_it() {
        let mut history = reserve();
        let mut slot = 100;
        for expected in [0, 1, 2, 4, 8, 16, 32, 32] {
            history.note_touch(Slot(slot));
            assert_eq!(history.ahead(), expected);
            slot += history.ahead() + 1;
        }
        history.note_touch(Slot(slot - 34));
        assert_eq!(history.ahead(), 32, "a second thread, a little behind");
        history.note_touch(Slot(slot + 1));
        assert_eq!(history.ahead(), 0, "past the window");
        history.note_touch(Slot(slot));
        assert_eq!(history.ahead(), 0, "downward");
    }

    #[test]
    fn preparation_keeps_clear_of_the_program() {
        let next = |toucher, end, runs| next_to_prepare(Slot(toucher), Slot(end), Slot(20), runs);
        assert_eq!(next(5, 0, true), None);
        assert_eq!(next(5, 0, false), Some(Slot(6)));
        assert_eq!(next(5, 10, false), Some(Slot(10)));
        assert_eq!(next(12, 19, false), Some(Slot(19)));
        assert_eq!(next(19, 0, false), None);
    }

    #[test]
    fn looks_keep_up_with_growth() {
        let mut pause = SOONEST_LOOK;
        let mut after = |pages_per_ms: f64| {
            for _ in 0..40 {
                let changed = pause.as_secs_f64() * 1e3 * pages_per_ms;
                pause = look_again(pause, PageCount(changed as u64));
            }
            pause.as_micros()
        };
        assert_eq!(after(1000.0), 200, "as fast as it gets");
        assert_eq!(after(50.0), 1600, "some 100 pages between two looks");
        assert_eq!(after(1.0), 4000);
        assert_eq!(after(0.0), 1_000_000);
        assert!(after(1.0) >= 4000, "no sooner for a few pages");
        assert_eq!(after(1000.0), 200);
    }

    /// The history of dense extents as a plain set.
    #[derive(Default)]
    struct Model {
        dense: HashSet<u64>,
        growing: Option<Range<u64>>,
    }

    impl Model {
        fn whole(&self) -> Option<Range<u64>> {
            let run = self.growing.clone()?;
            Some(run.end..run.end + 8 * (run.end - run.start))
        }

        fn note_full(&mut self, slot: u64) {
            if let (Some(run), Some(whole)) = (self.growing.clone(), self.whole())
                && whole.end == slot
            {
                self.dense.extend(run.start..slot);
            }
            self.dense.insert(slot);
            let mut run = slot..slot;
            while self.dense.contains(&run.end) {
                run.end += 1;
            }
            while run.start > 0 && self.dense.contains(&(run.start - 1)) {
                run.start -= 1;
            }
            if run.end - run.start >= 4 {
                self.growing = Some(run);
            }
        }

        fn note_sparse(&mut self, slot: u64) {
            if let (Some(run), Some(whole)) = (self.growing.clone(), self.whole())
                && run.start <= slot
                && slot <= whole.end
            {
                self.dense.retain(|s| !run.contains(s));
                self.growing = None;
            }
        }
    }

    /// What a pause does, told from the list of all that happened: the last
    /// extents of one kind since the last verdict decide.
    #[derive(Default)]
    struct PauseModel {
        seen: Vec<u64>,
        left: u64,
        pauses: u32,
    }

    impl PauseModel {
        fn note(&mut self, populated: u64, was_left: bool) {
            if was_left != (self.left > 0) {
                return;
            }
            self.seen.push(populated);
            let dense = self.seen.iter().sum::<u64>() >= 16 * 64;
            let enough = self.seen.len() == 16;
            match was_left {
                true if dense => self.left = 0,
                false if enough && !dense => {
                    self.left = 64 << self.pauses.min(6);
                    self.pauses += 1;
                }
                _ if !enough => return,
                _ => {}
            }
            self.seen.clear();
        }

        fn touch(&mut self) {
            self.left = self.left.saturating_sub(1);
            if self.left == 0 && self.pauses > 0 {
                self.seen.clear();
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_spent_is_a_part_of_the_time_and_what_it_saved(
            attempts in vec((0u64..500_000_000, 1u64..100_000_000, any::<bool>()), 1..200),
            promising in any::<bool>(),
            part in 1u64..1000,
        ) {
            let mut allowance = Allowance::one_in(part);
            let (mut now, mut spent, mut saved, mut last) = (1u64, 0u64, 0u64, 0u64);
            for (pause, took, gained) in attempts {
                now += pause;
                if allowance.may_spend(now, promising) {
                    allowance.spent(Duration::from_nanos(took), gained);
                    now += took;
                    spent += took;
                    last = last.max(took);
                    saved += if gained { SAVED.as_nanos() as u64 } else { 0 };
                }
            }
            // What is expected is learned from the attempt before.
            prop_assert!(spent <= now / part + saved + 2 * last);
        }

        #[test]
        fn what_pays_at_once_goes_on(
            took in 1u64..1_000_000,
            times in 1usize..1000,
            promising in any::<bool>(),
        ) {
            let mut allowance = Allowance::one_in(ALLOWED_PART);
            prop_assert_eq!(allowance.may_spend(1, promising), promising);
            let mut now = 1 + FIRST_ATTEMPT.as_nanos() as u64 * ALLOWED_PART;
            for _ in 0..times {
                prop_assert!(allowance.may_spend(now, promising));
                allowance.spent(Duration::from_nanos(took), true);
                now += took;
            }
        }

        #[test]
        fn a_debt_is_paid_in_the_end(took in 0u64..10_000_000_000) {
            let mut allowance = Allowance::one_in(ALLOWED_PART);
            allowance.may_spend(1, false);
            allowance.spent(Duration::from_nanos(took), false);
            let later = 2 + 2 * (took + SAVED.as_nanos() as u64) * ALLOWED_PART;
            prop_assert!(allowance.may_spend(later, false));
        }

        #[test]
        fn pauses_agree_with_the_list(
            steps in vec((0u8..4, prop_oneof![0u64..20, 0u64..=512], 1usize..70), 0..80)
        ) {
            let (mut history, mut model) = (reserve(), PauseModel::default());
            for (kind, populated, count) in steps {
                for _ in 0..count {
                    match kind {
                        0 => {
                            history.note_sparse(Slot(1000), PageCount(populated));
                            model.note(populated, false);
                        }
                        1 => {
                            history.note_left(PageCount(populated));
                            model.note(populated, true);
                        }
                        _ if history.pauses() => {
                            history.note_touch(Slot(1 << 40));
                            model.touch();
                        }
                        _ => {}
                    }
                    prop_assert_eq!(history.pauses(), model.left > 0);
                }
            }
        }

        /// However long a program was sparse, its dense extents that are left to
        /// base pages are few; and while it is sparse, few are reserved.
        #[test]
        fn phases_are_noticed(phases in vec((any::<bool>(), 1usize..6000), 1..5)) {
            let mut history = reserve();
            for (dense, count) in phases {
                let (mut reserved, mut left) = (0, 0);
                for slot in (0..count as u64).map(|n| Slot(2 * n)) {
                    history.note_touch(slot);
                    match (history.decide(slot), dense) {
                        (Decision::Base, true) => {
                            left += 1;
                            history.note_left(PageCount(512));
                        }
                        (Decision::Base, false) => history.note_left(PageCount(1)),
                        (_, true) => history.note_full(slot),
                        (_, false) => {
                            reserved += 1;
                            history.note_sparse(slot, PageCount(1));
                        }
                    }
                }
                prop_assert!(left <= 17, "{left} dense extents left");
                prop_assert!(dense || reserved <= 16 * 8 + count / 250, "{reserved} of {count}");
            }
        }

        #[test]
        fn runs_agree_with_a_set(steps in vec((0u64..48, 0u8..12), 0..150)) {
            let (mut history, mut model) = (reserve(), Model::default());
            for (slot, kind) in steps {
                // Now and then, the extent that the prediction waits for.
                let probe = model.whole().filter(|_| kind == 1).map(|whole| whole.end);
                let slot = probe.filter(|p| *p < 4096).unwrap_or(slot);
                if kind == 0 {
                    history.note_sparse(Slot(slot), PageCount(511));
                    model.note_sparse(slot);
                } else {
                    history.note_full(Slot(slot));
                    model.note_full(slot);
                }
                let whole = history.whole_run().map(|run| run.start.0..run.end.0);
                prop_assert_eq!(&whole, &model.whole());
                let total: u64 = history.runs.iter().map(|(start, end)| end - start).sum();
                prop_assert_eq!(total, model.dense.len() as u64);
                for slot in 0..300 {
                    let expected = whole.as_ref().is_some_and(|run| run.contains(&slot));
                    prop_assert_eq!(history.decide(Slot(slot)) == Decision::Whole, expected);
                }
            }
        }

        #[test]
        fn every_pause_ends(steps in vec((0u64..200, 0u64..512, 0u8..3), 0..400)) {
            let mut history = reserve();
            for (slot, populated, kind) in steps {
                match kind {
                    0 if slot < 4 => history.note_full(Slot(slot)),
                    0 | 1 => history.note_sparse(Slot(slot), PageCount(populated / 8)),
                    _ => history.note_touch(Slot(slot)),
                }
                prop_assert!(history.ahead() <= MAX_AHEAD);
            }
            prop_assert!(touches_until_reserving(&mut history) <= PAUSE_TOUCHES.1);
        }

        #[test]
        fn only_upward_touches_open_the_window(slots in vec(0u64..64, 1..60)) {
            let mut history = reserve();
            let mut climbed = 0;
            let mut highest = None;
            for slot in slots {
                let before = history.ahead();
                history.note_touch(Slot(slot));
                let after = history.ahead();
                if after > before {
                    prop_assert!(highest.is_some_and(|h| slot > h && slot - h <= before + 1));
                    prop_assert!(after == (before * 2).max(1));
                }
                climbed = if after == 0 { 0 } else { climbed + 1 };
                prop_assert!(after <= 1 << climbed);
                if after != before || after == 0 || highest.is_none_or(|h| slot > h) {
                    highest = Some(slot);
                }
            }
        }

        #[test]
        fn preparation_is_ahead_and_within_the_limit(
            toucher in any::<u64>(),
            end in any::<u64>(),
            limit in any::<u64>(),
            runs in any::<bool>(),
        ) {
            if let Some(next) = next_to_prepare(Slot(toucher), Slot(end), Slot(limit), runs) {
                prop_assert!(toucher < next.0 && end <= next.0 && next.0 < limit);
                prop_assert!(!runs);
            }
        }

        #[test]
        fn retries_are_ever_rarer(start in 0u64..1 << 40, failures in 1usize..30) {
            let mut backoff = Backoff::default();
            let mut now = start;
            let mut delay = 0;
            for _ in 0..failures {
                prop_assert!(backoff.may_try(now));
                backoff.failed(now);
                delay = if delay == 0 { 10 } else { (delay * 2).min(10_000) };
                prop_assert!(!backoff.may_try(now) && !backoff.may_try(now + delay - 1));
                prop_assert_eq!(backoff.retry_at_ms(), now + delay);
                now += delay;
            }
            backoff.failed(now);
            backoff.succeeded();
            prop_assert!(backoff.may_try(now));
        }
    }
}
