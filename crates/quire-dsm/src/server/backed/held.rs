//! Windows of pages that a pager is not asked for yet, as it has more to keep than it should.
//!
//! Whoever gets a window may write to all of it and give it back at once. So each window counts as
//! what is to be kept, from when it is asked for until its pages are given back or are provided to be
//! read only: one is asked for, and the next when there is room for that, too, not all at once. As pages
//! may also stay with whoever has them, there is room again where a pager has nothing to do, and where
//! nothing has come for a while. As long as nothing has to wait, pages are only counted, for a pause or two;
//! which ones they are is remembered of windows that have waited. No I/O.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use quire_core::dsm::message::{PageNumber, Pages};

/// What was not given back by this time after the last window was asked for stays with whoever has
/// it; [`Held::next`] is to be asked again then.
pub const PAUSE: Duration = Duration::from_millis(10);

/// How much a pager has to keep, and may have, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burden {
    /// So many pages were given back and are not safe.
    pub has: u64,
    /// With more than so many it does not keep up.
    pub most: u64,
}

/// How many pages were asked for in this pause and in the one before, without those that were settled
/// since.
#[derive(Debug, Default)]
struct Lately {
    now: u64,
    before: u64,
    /// When this pause began.
    since: Option<Instant>,
}

impl Lately {
    /// Forgets what is over.
    fn look(&mut self, now: Instant) {
        let since = *self.since.get_or_insert(now);
        let passed = now.saturating_duration_since(since);
        if passed >= PAUSE {
            let is_long = passed >= 2 * PAUSE;
            self.before = if is_long { 0 } else { self.now };
            (self.now, self.since) = (0, Some(now));
        }
    }

    const fn count(&self) -> u64 {
        self.now + self.before
    }

    /// The oldest are settled first.
    fn settle(&mut self, count: u64) {
        let before = count.min(self.before);
        self.before -= before;
        self.now -= (count - before).min(self.now);
    }
}

/// Windows that wait, in the order in which they came.
#[derive(Debug, Default)]
pub struct Held {
    waiting: VecDeque<Pages>,
    /// Pages of windows that have not waited.
    lately: Lately,
    /// One has had to wait, and what came of that is not over.
    is_holding: bool,
    /// The pager has nothing to do, and got a window for that.
    is_tried: bool,
    /// Pages of windows that have waited and may be given back soon.
    owed: BTreeSet<PageNumber>,
    /// Until when that is to be expected.
    until: Option<Instant>,
}

impl Held {
    /// Somebody needs pages.
    pub fn add(&mut self, pages: Pages) {
        self.waiting.push_back(pages);
    }

    /// Whether something waits.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// What the pager is to be asked for now; to be called until there is nothing.
    pub fn next(&mut self, now: Instant, burden: Burden) -> Option<Pages> {
        self.look(now, burden);
        let may_come = self.owed.len() as u64 + self.lately.count();
        let has_room = burden.has.saturating_add(may_come) <= burden.most;
        let is_idle = burden.has == 0 && !self.is_tried;
        if !has_room && !is_idle {
            self.is_holding |= self.is_waiting();
            return None;
        }
        let pages = self.waiting.pop_front()?;
        self.is_holding |= !has_room;
        if self.is_holding {
            self.is_tried |= !has_room;
            self.owed.extend(pages.iter());
            self.until = Some(now + PAUSE);
        } else {
            self.lately.now += u64::from(pages.count);
        }
        Some(pages)
    }

    /// Forgets what is over.
    fn look(&mut self, now: Instant, burden: Burden) {
        self.lately.look(now);
        self.is_tried &= burden.has == 0;
        if self.until.is_some_and(|until| until <= now) {
            self.owed.clear();
            self.is_tried = false;
        }
        if self.owed.is_empty() {
            self.until = None;
            self.is_holding &= self.is_waiting();
        }
    }

    /// Pages were given back, or will not be, as nobody may write to them.
    pub fn settled(&mut self, pages: Pages) {
        let mut others = u64::from(pages.count);
        if !self.owed.is_empty() {
            others -= pages.iter().filter(|page| self.owed.remove(page)).count() as u64;
        }
        self.lately.settle(others);
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const MOST: u64 = 16;

    /// What happens: somebody needs so many pages; somebody gives back a page that it was
    /// given; the pager has kept one.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Need(u32),
        GiveBack,
        Keep,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1..40u32).prop_map(Step::Need),
            Just(Step::GiveBack),
            Just(Step::GiveBack),
            Just(Step::GiveBack),
            Just(Step::Keep),
            Just(Step::Keep),
            Just(Step::Keep),
        ]
    }

    /// A pager, and those who write to its pages.
    struct World {
        held: Held,
        now: Instant,
        /// Windows that were needed and not asked for.
        needed: VecDeque<Pages>,
        /// Pages that somebody has.
        out: VecDeque<PageNumber>,
        has: u64,
        next: u64,
        /// The pager has nothing to do, and got a window for that.
        is_tried: bool,
    }

    impl World {
        fn new() -> World {
            World {
                held: Held::default(),
                now: Instant::now(),
                needed: VecDeque::new(),
                out: VecDeque::new(),
                has: 0,
                next: 0,
                is_tried: false,
            }
        }

        fn take(&mut self, step: Step) {
            match step {
                Step::Need(count) => {
                    let first = PageNumber(self.next);
                    self.next += u64::from(count);
                    self.held.add(Pages { first, count });
                    self.needed.push_back(Pages { first, count });
                }
                Step::GiveBack => {
                    if let Some(page) = self.out.pop_front() {
                        self.has += 1;
                        self.held.settled(Pages::one(page));
                    }
                }
                Step::Keep => self.has = self.has.saturating_sub(1),
            }
        }

        /// Asks for what may be asked for. There must be room for what others may give back; but for one
        /// window where there is some, and one where the pager has nothing to do.
        fn ask(&mut self) -> Result<(), TestCaseError> {
            self.is_tried &= self.has == 0;
            loop {
                let burden = Burden {
                    has: self.has,
                    most: MOST,
                };
                let Some(pages) = self.held.next(self.now, burden) else {
                    break;
                };
                let needed = self.needed.pop_front().expect("it was needed");
                prop_assert_eq!(pages, needed, "in order");
                let may_come = self.out.len() as u64;
                if self.has + may_come > MOST {
                    prop_assert!(
                        self.has == 0 && !self.is_tried,
                        "{} and {may_come}",
                        self.has
                    );
                    self.is_tried = true;
                }
                self.out.extend(pages.iter());
            }
            Ok(())
        }
    }

    proptest! {
        /// A window is asked for only when what the pager has, with all that was asked for and may
        /// still come back, is no more than it may have; one more where it has nothing
        /// to do; and all go in the end, also where whoever has them keeps them.
        #[test]
        fn windows_go_one_at_a_time_where_there_is_no_room(steps in vec(step(), 0..200)) {
            let mut world = World::new();
            for step in steps {
                world.take(step);
                world.ask()?;
            }
            // All of it may stay with whoever has it.
            world.has = 0;
            for _ in 0..world.needed.len() {
                let needed = world.needed.len();
                world.now += PAUSE;
                world.is_tried = false;
                world.out.clear();
                world.ask()?;
                prop_assert!(needed == 0 || world.needed.len() < needed, "it waits for ever");
            }
            prop_assert!(!world.held.is_waiting());
        }
    }

    #[test]
    fn who_keeps_up_waits_for_nothing_and_remembers_nothing() {
        let mut held = Held::default();
        let (mut now, has) = (Instant::now(), MOST);
        let most = MOST + 9 * 512;
        // Nobody gives anything back, and somebody goes on.
        for number in 0..90 {
            if number % 9 == 8 {
                now += 2 * PAUSE;
            }
            let first = PageNumber(number * 512);
            held.add(Pages { first, count: 512 });
            assert!(held.next(now, Burden { has, most }).is_some());
        }
        assert!(held.owed.is_empty());
    }

    #[test]
    fn what_was_asked_for_lately_counts_until_it_is_settled() {
        let mut held = Held::default();
        let now = Instant::now();
        let burden = Burden { has: 8, most: MOST };
        let window = |number: u64| Pages {
            first: PageNumber(number * 16),
            count: 16,
        };
        (0..4).for_each(|number| held.add(window(number)));
        assert_eq!(held.next(now, burden), Some(window(0)));
        assert_eq!(held.next(now + PAUSE / 2, burden), None);
        held.settled(window(0));
        assert_eq!(held.next(now + PAUSE / 2, burden), Some(window(1)));
        assert_eq!(held.next(now + PAUSE / 2, burden), None);
        assert_eq!(held.next(now + 2 * PAUSE, burden), Some(window(2)));
    }
}
