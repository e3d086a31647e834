//! Windows of pages that a pager is not asked for yet, as it has more to keep than it should.
//!
//! Whoever gets a window may write to all of it and give it back at once. So each window that has
//! waited counts as what is to be kept, from when it is asked for until its pages are given back or
//! are provided to be read only: one is asked for, and the next when there is room for that, too,
//! not all at once. As pages may also stay with whoever has them, there is room again where a pager
//! has nothing to do, and where nothing has come for a while. What never had to wait costs nothing
//! here. No I/O.

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

/// Windows that wait, in the order in which they came.
#[derive(Debug, Default)]
pub struct Held {
    waiting: VecDeque<Pages>,
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
        let has_room = burden.has.saturating_add(self.owed.len() as u64) <= burden.most;
        let is_idle = burden.has == 0 && !self.is_tried;
        if !has_room && !is_idle {
            self.is_holding |= self.is_waiting();
            return None;
        }
        let pages = self.waiting.pop_front()?;
        if self.is_holding {
            self.is_tried |= !has_room;
            self.owed.extend(pages.iter());
            self.until = Some(now + PAUSE);
        }
        Some(pages)
    }

    /// Forgets what is over.
    fn look(&mut self, now: Instant, burden: Burden) {
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
        if !self.owed.is_empty() {
            for page in pages.iter() {
                self.owed.remove(&page);
            }
        }
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
        /// Windows that were needed and not asked for: whether each has waited.
        needed: VecDeque<(Pages, bool)>,
        /// Pages that somebody has, and whether their window had waited.
        out: VecDeque<(PageNumber, bool)>,
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
                    self.needed.push_back((Pages { first, count }, false));
                }
                Step::GiveBack => {
                    if let Some((page, _)) = self.out.pop_front() {
                        self.has += 1;
                        self.held.settled(Pages::one(page));
                    }
                }
                Step::Keep => self.has = self.has.saturating_sub(1),
            }
        }

        /// Asks for what may be asked for. What has waited must have room, but for one window
        /// where the pager has nothing to do.
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
                let (needed, has_waited) = self.needed.pop_front().expect("it was needed");
                prop_assert_eq!(pages, needed, "in order");
                let may_come = self.out.iter().filter(|(_, waited)| *waited).count() as u64;
                if has_waited && self.has + may_come > MOST {
                    prop_assert!(
                        self.has == 0 && !self.is_tried,
                        "{} and {may_come}",
                        self.has
                    );
                    self.is_tried = true;
                }
                self.out.extend(pages.iter().map(|page| (page, has_waited)));
            }
            self.needed
                .iter_mut()
                .for_each(|(_, waited)| *waited = true);
            Ok(())
        }
    }

    proptest! {
        /// A window that has waited is asked for only when what the pager has, with all that
        /// others of them may still bring, is no more than it may have; one more where it has nothing
        /// to do; and all go in the end, also where whoever has them keeps them.
        #[test]
        fn what_has_waited_goes_one_window_at_a_time(steps in vec(step(), 0..200)) {
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
        let burden = Burden {
            has: MOST,
            most: MOST,
        };
        for number in 0..9 {
            let first = PageNumber(number * 512);
            held.add(Pages { first, count: 512 });
            assert!(held.next(Instant::now(), burden).is_some());
        }
        assert!(held.owed.is_empty());
    }
}
