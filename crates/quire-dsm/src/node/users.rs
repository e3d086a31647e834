//! Whether the threads that waited for a page have used it.
//!
//! A page that came is kept for long enough that a thread which waits for it wakes up and uses
//! it. How long that takes differs much: a few microseconds where a processor is awake, ten times
//! as long where it sleeps or is another's. So when somebody else waits for such a page, it is
//! looked at now and then how long those threads have run since it came, and the page goes on as
//! soon as they have had it for long enough. Nothing of that is done while nobody waits for the page.
//! Who looks stays awake as long as those threads run, and lack little: a sleep would take longer. If
//! they do not run, they are being woken up on another processor, or wait for his: as it was with the
//! last ones, he stays awake, or sleeps (`Place`).
//!
//! Where there are more programs than processors, a thread may get none before the page would go
//! on: it would fault again, and the page travel for nothing, again and again, since who passes
//! pages on goes before programs. So a page stays until its threads have run, though not for
//! longer than [`PATIENCE`].

use std::time::Duration;

use quire_core::dsm::kernel::Time;
use quire_core::dsm::message::{PageNumber, Pages};

/// So many faults are remembered.
const REMEMBERED: usize = 16;
/// Two looks are at least so far from each other.
const PAUSE: Duration = Duration::from_micros(2);
/// A thread that runs, and lacks no more than this, has had enough before a sleep would be over.
const AWAKE: Duration = Duration::from_micros(25);
/// A page waits no longer for threads that get no processor. Long enough for one to get it while
/// those that pass pages on rest, and not so long that programs wait for one that has none because
/// they compute themselves.
const PATIENCE: Duration = Duration::from_micros(300);

/// So long a thread on another processor takes to run, which has to be woken up.
const WAKING: Duration = Duration::from_micros(40);
/// A thread that runs, and has not run on for so long, does not run any more.
const RESTING: Duration = Duration::from_micros(2);
/// So often at most a thread is taken to have the processor of who looks at it without a look whether
/// that is so.
const LOOKS: u32 = 16;

/// Where threads run that pages come for: it makes no sense to wait awake for one that needs the
/// same processor. Nobody tells, and it seldom changes.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// So often it may still be taken to be the same processor.
    same: u32,
    /// Who looks does so again and again anyhow, and gives way to others in between.
    polls: bool,
}

impl Place {
    /// For how long to look at a thread that does not run on.
    const fn patience(self, ran: bool) -> Duration {
        match (ran, self.same) {
            (true, _) => RESTING,
            (false, 0) if !self.polls => WAKING,
            (false, _) => Duration::ZERO,
        }
    }

    /// Threads were looked at: whether some ran on meanwhile, and whether they still lack the page.
    const fn looked(&mut self, ran: bool, lacks: bool) {
        self.same = match (ran, lacks, self.same) {
            (true, _, _) => 0,
            (false, true, 0) => LOOKS,
            (false, _, same) => same.saturating_sub(1),
        };
    }
}

/// Whether threads lack pages for a while yet, and all of them for no longer than it is worth to stay
/// awake for.
fn is_little(lacking: &[(PageNumber, Duration)]) -> bool {
    let most = lacking.iter().map(|(_, lacks)| *lacks).max();
    most.is_some_and(|most| !most.is_zero() && most <= AWAKE)
}

/// A thread that waited for a page.
#[derive(Clone, Copy, Debug)]
struct User {
    page: PageNumber,
    thread: u32,
    /// When the page came, and how long the thread had run then.
    came: Option<(Time, Duration)>,
    /// How long it had run when the page came, once somebody else waits for it. Where that is
    /// not known, how long when somebody else came to wait.
    before: Option<Duration>,
}

/// Threads that waited for pages which are here now.
#[derive(Debug, Default)]
pub(super) struct Users {
    all: Vec<User>,
    /// When to look next.
    next: Option<Time>,
    place: Place,
}

impl Users {
    /// Who looks at threads does so again and again.
    pub(super) const fn polls(&mut self) {
        self.place.polls = true;
    }

    /// A thread waits for a page.
    pub(super) fn wait(&mut self, page: PageNumber, thread: u32) {
        self.all
            .retain(|user| user.page != page || user.thread != thread);
        if self.all.len() == REMEMBERED {
            self.all.remove(0);
        }
        self.all.push(User {
            page,
            thread,
            came: None,
            before: None,
        });
    }

    /// Pages come, before the threads that wait for them go on.
    pub(super) fn come(
        &mut self,
        pages: Pages,
        now: impl Fn() -> Time,
        time_of: impl Fn(u32) -> Option<Duration>,
    ) {
        let new = |user: &&mut User| user.came.is_none() && pages.contains(user.page);
        for user in self.all.iter_mut().filter(new) {
            user.came = time_of(user.thread).map(|ran| (now(), ran));
        }
    }

    /// Those of some pages for which a thread waited that has had no processor since they came,
    /// and until when they are to be kept at least: half as long again as they have been here.
    pub(super) fn unused(
        &self,
        now: Time,
        pages: Pages,
        time_of: impl Fn(u32) -> Option<Duration>,
    ) -> Vec<(PageNumber, Time)> {
        let unused = |user: &User| {
            let (since, ran) = user.came.filter(|_| pages.contains(user.page))?;
            let waits = now < since + PATIENCE && time_of(user.thread) == Some(ran);
            let here = Duration::from_nanos(now.0.saturating_sub(since.0));
            waits.then(|| (user.page, now + (here / 2).max(PAUSE)))
        };
        self.all.iter().filter_map(unused).collect()
    }

    /// Pages are not here any more.
    pub(super) fn gone(&mut self, pages: Pages) {
        self.all.retain(|user| !pages.contains(user.page));
    }

    /// When [`Users::look`] is to be called.
    pub(super) const fn deadline(&self) -> Option<Time> {
        self.next
    }

    /// Somebody else waits for these pages, whose threads are to have run for so long with them.
    /// `time_of` says how long a thread has run.
    pub(super) fn watch(
        &mut self,
        now: Time,
        pages: Pages,
        enough: Duration,
        time_of: impl Fn(u32) -> Option<Duration>,
    ) {
        let new = |user: &&mut User| user.before.is_none() && pages.contains(user.page);
        for user in self.all.iter_mut().filter(new) {
            let ran = time_of(user.thread).unwrap_or_default();
            let before = user.came.map_or(ran, |(_, before)| before);
            user.before = Some(before);
            let lacks = enough.saturating_sub(ran.saturating_sub(before));
            self.next.get_or_insert(now + lacks.saturating_sub(AWAKE));
        }
    }

    /// Looks at the threads of pages that somebody else waits for, and stays awake for those that
    /// run and lack little. Says which pages all of them have had for long enough.
    pub(super) fn look(
        &mut self,
        now: impl Fn() -> Time,
        enough: Duration,
        time_of: impl Fn(u32) -> Option<Duration>,
    ) -> Vec<PageNumber> {
        let mut all = self.lacking(enough, &time_of);
        let mut at = now();
        let (mut seen, mut ran) = (at, false);
        while is_little(&all) && at < seen + self.place.patience(ran) {
            let before = std::mem::replace(&mut all, self.lacking(enough, &time_of));
            at = now();
            if all != before {
                (seen, ran) = (at, true);
            }
        }
        self.place.looked(ran, is_little(&all));
        let lacking = all.iter().filter(|(_, lacks)| !lacks.is_zero());
        let next = lacking.clone().map(|(_, lacks)| *lacks).min();
        self.next = next.map(|lacks| at + lacks.max(PAUSE));
        let is_used = |page: &PageNumber| lacking.clone().all(|(lacking, _)| lacking != page);
        let pages = all.iter().map(|(page, _)| *page);
        let mut used: Vec<PageNumber> = pages.filter(is_used).collect();
        used.dedup();
        used
    }

    /// The pages that somebody else waits for, once for each thread, and for how long it lacks them.
    fn lacking(
        &self,
        enough: Duration,
        time_of: impl Fn(u32) -> Option<Duration>,
    ) -> Vec<(PageNumber, Duration)> {
        let lacks = |user: &User| {
            let before = user.before?;
            // A thread that is gone needs it no more.
            let ran = time_of(user.thread).map(|time| time.saturating_sub(before));
            let lacks = ran.map_or(Duration::ZERO, |ran| enough.saturating_sub(ran));
            Some((user.page, lacks))
        };
        self.all.iter().filter_map(lacks).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const ENOUGH: Duration = Duration::from_micros(35);

    fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    fn page(number: u64) -> PageNumber {
        PageNumber(number)
    }

    /// Threads that wait for two pages, 7 for the first and 8 for the second; and both pages.
    fn two_who_wait() -> (Users, Pages) {
        let mut users = Users::default();
        users.wait(page(1), 7);
        users.wait(page(2), 8);
        let both = Pages {
            first: page(1),
            count: 2,
        };
        (users, both)
    }

    #[test]
    fn a_page_is_used_when_its_threads_have_run_since_it_was_waited_for() {
        let mut users = Users::default();
        users.polls();
        users.wait(page(1), 7);
        users.wait(page(1), 8);
        users.wait(page(2), 9);
        // Nobody waits for them.
        assert_eq!(users.deadline(), None);
        assert_eq!(users.look(|| Time(0), ENOUGH, |_| Some(us(99))), []);
        let ran = |thread| Some(us(100 * u64::from(thread)));
        users.watch(Time(0), Pages::one(page(1)), ENOUGH, ran);
        assert_eq!(users.deadline(), Some(Time(10_000)));
        // Being waited for again changes nothing.
        users.watch(Time(5_000), Pages::one(page(1)), ENOUGH, |_| Some(us(5000)));
        let one = |thread| Some(us(if thread == 7 { 735 } else { 804 }));
        assert_eq!(users.look(|| Time(10_000), ENOUGH, one), []);
        assert_eq!(users.deadline(), Some(Time(41_000)));
        let nearly = |thread| Some(us(if thread == 7 { 736 } else { 834 }));
        assert_eq!(users.look(|| Time(41_000), ENOUGH, nearly), []);
        assert_eq!(users.deadline(), Some(Time(43_000)), "not all the time");
        // One has ended.
        let gone = |thread| (thread == 7).then_some(us(737));
        assert_eq!(users.look(|| Time(43_000), ENOUGH, gone), [page(1)]);
        assert_eq!(users.deadline(), None);
        users.gone(Pages::one(page(1)));
        assert_eq!(users.look(|| Time(50_000), ENOUGH, gone), []);
    }

    /// A thread and the clock: what it has run, in microseconds, at each look at it, each of which
    /// takes half a microsecond. It runs no more after the last.
    struct Shown<'a> {
        ran: &'a [u64],
        looks: Cell<usize>,
    }

    impl Shown<'_> {
        fn look(ran: &[u64], users: &mut Users, enough: Duration) -> (Vec<PageNumber>, usize) {
            let looks = Cell::new(0);
            let shown = Shown { ran, looks };
            let now = || Time(500 * shown.looks.get() as u64);
            let used = users.look(now, enough, |_| Some(us(shown.next())));
            (used, shown.looks.get())
        }

        fn next(&self) -> u64 {
            let looks = self.looks.replace(self.looks.get() + 1);
            self.ran[looks.min(self.ran.len() - 1)]
        }
    }

    /// One page came, for which a thread waited that had run for 100 us, and somebody else waits.
    fn one_is_waited_for() -> Users {
        let (mut users, _) = two_who_wait();
        let one = Pages::one(page(1));
        users.come(one, || Time(0), |_| Some(us(100)));
        users.watch(Time(0), one, SOON, |_| Some(us(100)));
        assert_eq!(users.deadline(), Some(Time(0)), "it may be running");
        users
    }

    const SOON: Duration = Duration::from_micros(10);

    #[test]
    fn who_looks_stays_awake_while_threads_run_that_lack_little() {
        let mut users = one_is_waited_for();
        let used = vec![page(1)];
        assert_eq!(
            Shown::look(&[101, 104, 108, 110], &mut users, SOON),
            (used, 4)
        );
        let (unused, looks) = Shown::look(&[101, 104], &mut users, SOON);
        assert_eq!(unused, [], "it stopped");
        assert_eq!(looks as u128, 2 + RESTING.as_nanos() / 500);
        let late = Time(500 * looks as u64);
        assert_eq!(users.deadline(), Some(late + us(6)));
        let long = AWAKE + us(2);
        assert_eq!(
            Shown::look(&[101, 200], &mut users, long),
            (vec![], 1),
            "it lacks much"
        );
    }

    #[test]
    fn who_looks_waits_awake_for_threads_of_other_processors_only() {
        let mut users = one_is_waited_for();
        let awake = WAKING.as_micros() as usize * 2 + 1;
        let late: Vec<u64> = (0..60).map(|look| 100 + look / 30 * 10).collect();
        assert_eq!(Shown::look(&late, &mut users, SOON), (vec![page(1)], 31));
        assert_eq!(Shown::look(&[100], &mut users, SOON), (vec![], awake));
        for _ in 0..LOOKS {
            assert_eq!(
                Shown::look(&[100], &mut users, SOON),
                (vec![], 1),
                "it is the same"
            );
        }
        assert_eq!(
            Shown::look(&[100], &mut users, SOON),
            (vec![], awake),
            "once more"
        );
        assert_eq!(
            Shown::look(&[110], &mut users, SOON),
            (vec![page(1)], 1),
            "it has run"
        );
        assert_eq!(
            Shown::look(&late, &mut users, SOON),
            (vec![], 1),
            "it is the same yet"
        );
        users.polls();
        for _ in 0..2 * LOOKS {
            assert_eq!(Shown::look(&late, &mut users, SOON), (vec![], 1));
        }
    }

    #[test]
    fn what_threads_ran_before_anybody_waited_counts() {
        let (mut users, both) = two_who_wait();
        users.come(Pages::one(page(1)), || Time(0), |_| Some(us(100)));
        users.come(both, || Time(4_000), |_| Some(us(100)));
        users.watch(Time(6_000), Pages::one(page(1)), ENOUGH, |_| Some(us(106)));
        assert_eq!(users.deadline(), Some(Time(10_000)));
        assert_eq!(
            users.look(|| Time(10_000), ENOUGH, |_| Some(us(135))),
            [page(1)]
        );
        users.gone(Pages::one(page(1)));
        users.watch(Time(20_000), both, ENOUGH, |_| Some(us(136)));
        assert_eq!(users.deadline(), Some(Time(20_000)), "it had enough");
        assert_eq!(
            users.look(|| Time(20_000), ENOUGH, |_| Some(us(136))),
            [page(2)]
        );
    }

    #[test]
    fn a_page_is_unused_until_its_thread_has_run_or_too_long_went_by() {
        let (mut users, both) = two_who_wait();
        let now = Time(1_000);
        assert_eq!(users.unused(now, both, |_| Some(us(5))), [], "not here yet");
        users.come(Pages::one(page(1)), || now, |_| Some(us(5)));
        users.come(both, || Time(0), |thread| (thread == 8).then_some(us(6)));
        let first = (page(1), now + PAUSE);
        assert_eq!(users.unused(now, both, |_| Some(us(5))), [first]);
        let second = (page(2), now + PAUSE);
        assert_eq!(users.unused(now, both, |_| Some(us(6))), [second]);
        assert_eq!(users.unused(now, Pages::one(page(1)), |_| Some(us(6))), []);
        assert_eq!(users.unused(now, both, |_| None), [], "both are gone");
        let last = Time(300_999);
        let long = (page(1), last + Duration::from_nanos(149_999));
        assert_eq!(users.unused(last, both, |_| Some(us(5))), [long]);
        assert_eq!(users.unused(last + us(1), both, |_| Some(us(5))), []);
        users.gone(both);
        assert_eq!(users.unused(now, both, |_| Some(us(5))), []);
    }

    #[test]
    fn a_few_faults_are_remembered() {
        let mut users = Users::default();
        for number in 0..40 {
            users.wait(page(number), 1);
            users.wait(page(number), 1);
        }
        assert_eq!(users.all.len(), REMEMBERED);
        assert_eq!(users.all[0].page, page(40 - REMEMBERED as u64));
    }
}
