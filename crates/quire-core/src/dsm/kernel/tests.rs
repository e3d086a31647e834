//! The cache against a naive model of memory and programs, with a toy server: one case at a
//! time, at random, and in all orders in which messages and steps of programs may come.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use stateright::{Checker, Model, Property};

use super::toy::Toy;
use super::*;
use crate::dsm::message::KernelId;

const SPACE: Space = Space(0);
const NOW: Time = Time(0);

fn page(number: u64) -> Pages {
    Pages::one(PageNumber(number))
}

fn pages(first: u64, count: u32) -> Pages {
    let first = PageNumber(first);
    Pages { first, count }
}

fn settings() -> Settings {
    Settings {
        ahead: 0,
        hold: Duration::ZERO,
        ..Settings::new(64)
    }
}

/// A cache that is asked and told, and what it wanted.
struct Bench {
    kernel: Kernel,
    now: Time,
}

impl Bench {
    fn new(settings: Settings) -> Bench {
        Bench {
            kernel: Kernel::new(settings),
            now: NOW,
        }
    }

    fn fault(&mut self, number: u64, access: Access) -> Vec<Action<u64>> {
        self.fault_in(SPACE, number, access)
    }

    fn fault_in(&mut self, space: Space, number: u64, access: Access) -> Vec<Action<u64>> {
        let mut actions = Vec::new();
        let number = PageNumber(number);
        self.kernel
            .fault(self.now, space, number, access, &mut actions);
        actions
    }

    fn hear(&mut self, message: ToKernel<u64>) -> Vec<Action<u64>> {
        self.try_hear(message).unwrap()
    }

    fn try_hear(&mut self, message: ToKernel<u64>) -> Result<Vec<Action<u64>>, Nonsense> {
        let mut actions = Vec::new();
        let heard = self.kernel.hear(self.now, message, &mut actions);
        heard.map(|()| actions)
    }

    fn provide(&mut self, pages: Pages, access: Access) -> Vec<Action<u64>> {
        let data = vec![Some(7); pages.count as usize];
        self.hear(ToKernel::DataProvided {
            pages,
            data,
            access,
        })
    }

    fn flush(&mut self, pages: Pages) -> Vec<Action<u64>> {
        let lock = Lock::Flush;
        self.hear(ToKernel::LockRequest { pages, lock })
    }

    fn allow(&mut self, pages: Pages) -> Vec<Action<u64>> {
        let lock = Lock::AllowWrite;
        self.hear(ToKernel::LockRequest { pages, lock })
    }

    fn need(&mut self, pages: Pages, access: Access) -> Vec<Action<u64>> {
        let mut actions = Vec::new();
        let need = (pages, access);
        self.kernel.will_need(self.now, SPACE, need, &mut actions);
        actions
    }

    /// What is due now.
    fn go_on(&mut self) -> Vec<Action<u64>> {
        self.pass(self.now)
    }

    fn pass(&mut self, now: Time) -> Vec<Action<u64>> {
        let mut actions = Vec::new();
        self.now = now;
        self.kernel.pass(now, &mut actions);
        actions
    }
}

fn request(pages: Pages, access: Access) -> Action<u64> {
    Action::Send(FromKernel::DataRequest { pages, access })
}

fn unlock(pages: Pages) -> Action<u64> {
    Action::Send(FromKernel::DataUnlock { pages })
}

fn completed(pages: Pages) -> Action<u64> {
    Action::Send(FromKernel::LockCompleted { pages })
}

fn fill(pages: Pages, access: Access, space: Option<Space>) -> Action<u64> {
    Action::Fill {
        pages,
        data: vec![Some(7); pages.count as usize],
        access,
        space,
    }
}

fn show(pages: Pages, access: Access, space: Space) -> Action<u64> {
    Action::Show {
        pages,
        access,
        space,
    }
}

fn failed(pages: Pages, why: Failure) -> Action<u64> {
    let space = SPACE;
    Action::Fail { pages, space, why }
}

use Access::{Read, Write};

#[test]
fn a_page_is_asked_for_once_however_many_wait() {
    let mut bench = Bench::new(settings());
    assert_eq!(bench.fault(3, Read), [request(page(3), Read)]);
    assert_eq!(bench.fault(3, Read), []);
    assert_eq!(bench.fault_in(Space(1), 3, Read), []);
    let shown = [
        fill(page(3), Read, Some(SPACE)),
        show(page(3), Read, Space(1)),
    ];
    assert_eq!(bench.provide(page(3), Read), shown);
    assert_eq!(
        bench.fault_in(Space(2), 3, Read),
        [show(page(3), Read, Space(2))]
    );
    assert_eq!(bench.kernel.deadline(), None);
}

#[test]
fn a_writer_that_waits_for_a_readable_page_has_it_upgraded() {
    let mut bench = Bench::new(settings());
    bench.fault(3, Read);
    assert_eq!(bench.fault_in(Space(1), 3, Write), []);
    let upgraded = [fill(page(3), Read, Some(SPACE)), unlock(page(3))];
    assert_eq!(bench.provide(page(3), Read), upgraded);
    // Readers go on meanwhile.
    assert_eq!(bench.fault(3, Read), [show(page(3), Read, SPACE)]);
    let (pages, space) = (page(3), Space(1));
    assert_eq!(bench.allow(page(3)), [Action::Allow { pages, space }]);
    assert_eq!(bench.fault(3, Write), [show(page(3), Write, SPACE)]);
    let back = [Action::GiveBack(page(3)), completed(page(3))];
    assert_eq!(bench.flush(page(3)), back);
    assert_eq!(bench.kernel.holds(PageNumber(3)), None);
}

#[test]
fn a_flush_of_what_is_not_there_is_answered_and_a_request_stays() {
    let mut bench = Bench::new(settings());
    assert_eq!(bench.flush(page(3)), [completed(page(3))]);
    bench.fault(3, Write);
    assert_eq!(bench.flush(page(3)), [completed(page(3))]);
    assert_eq!(
        bench.provide(page(3), Write),
        [fill(page(3), Write, Some(SPACE))]
    );
}

#[test]
fn a_flush_that_meets_an_upgrade_drops_the_page_and_contents_come_instead() {
    let mut bench = Bench::new(settings());
    bench.fault(3, Read);
    bench.provide(page(3), Read);
    assert_eq!(bench.fault(3, Write), [unlock(page(3))]);
    let dropped = [Action::Remove(page(3)), completed(page(3))];
    assert_eq!(bench.flush(page(3)), dropped);
    assert_eq!(bench.fault(3, Read), []);
    let lock = Lock::AllowWrite;
    let pages = page(3);
    let nonsense = bench.try_hear(ToKernel::LockRequest { pages, lock });
    assert!(nonsense.is_err());
    assert_eq!(
        bench.provide(page(3), Write),
        [fill(page(3), Write, Some(SPACE))]
    );
}

#[test]
fn a_page_is_kept_for_a_while_before_it_is_given_back() {
    let hold = Duration::from_nanos(50);
    let mut bench = Bench::new(Settings { hold, ..settings() });
    bench.fault(3, Write);
    bench.provide(page(3), Write);
    assert_eq!(bench.flush(pages(2, 2)), []);
    assert_eq!(bench.kernel.deadline(), Some(Time(50)));
    assert_eq!(bench.pass(Time(49)), []);
    let back = [Action::GiveBack(page(3)), completed(pages(2, 2))];
    assert_eq!(bench.pass(Time(50)), back);
    assert_eq!(bench.kernel.deadline(), None);
    // One that was held long enough goes at once, and so does one that is evicted.
    bench.fault(3, Write);
    bench.provide(page(3), Write);
    bench.now = Time(100);
    assert_eq!(bench.flush(page(3)).len(), 2);
    bench.fault(3, Write);
    bench.provide(page(3), Write);
    assert_eq!(bench.flush(page(3)), []);
    let mut actions = Vec::new();
    bench.kernel.sync(&mut actions);
    assert_eq!(actions, [Action::GiveBack(page(3)), completed(page(3))]);
    assert_eq!(bench.kernel.deadline(), None);
}

#[test]
fn a_page_that_was_used_is_not_kept_any_longer() {
    let hold = Duration::from_nanos(50);
    let mut bench = Bench::new(Settings { hold, ..settings() });
    for number in [3, 4] {
        bench.fault(number, Write);
        bench.provide(page(number), Write);
    }
    assert_eq!(bench.flush(pages(3, 2)), []);
    assert_eq!(bench.flush(page(4)), []);
    let waited_for: Vec<_> = bench.kernel.waited_for().collect();
    assert_eq!(waited_for, [pages(3, 2), page(4)]);
    let mut used = |number| {
        let mut actions: Vec<Action<u64>> = Vec::new();
        bench
            .kernel
            .used(Time(10), PageNumber(number), &mut actions);
        actions
    };
    assert_eq!(used(3), [], "the other page of the flush is kept");
    assert_eq!(used(7), []);
    let back = [
        Action::GiveBack(pages(3, 2)),
        completed(pages(3, 2)),
        completed(page(4)),
    ];
    assert_eq!(used(4), back);
    assert_eq!(bench.kernel.deadline(), None);
}

#[test]
fn a_page_that_nobody_could_use_yet_is_kept_longer() {
    let hold = Duration::from_nanos(50);
    let mut bench = Bench::new(Settings { hold, ..settings() });
    bench.fault(3, Write);
    bench.provide(page(3), Write);
    assert_eq!(bench.flush(pages(2, 2)), []);
    bench.kernel.keep(PageNumber(3), Time(80));
    bench.kernel.keep(PageNumber(3), Time(70));
    bench.kernel.keep(PageNumber(5), Time(90));
    assert_eq!(bench.kernel.deadline(), Some(Time(80)));
    assert_eq!(bench.pass(Time(79)), []);
    let back = [Action::GiveBack(page(3)), completed(pages(2, 2))];
    assert_eq!(bench.pass(Time(80)), back);
    // Also where it has been here for long.
    bench.fault(3, Write);
    bench.provide(page(3), Write);
    bench.now = Time(1000);
    bench.kernel.keep(PageNumber(3), Time(1010));
    assert_eq!(bench.flush(page(3)), []);
    assert_eq!(bench.pass(Time(1010)).len(), 2);
}

#[test]
fn the_longer_pages_take_the_more_is_asked_for_ahead() {
    for (micros, least, ahead) in [
        (0, 512 << 10, 512 << 10),
        (100, 512 << 10, 512 << 10),
        (1000, 512 << 10, 1_000_000),
        (9000, 512 << 10, 2 << 20),
        (9000, 4 << 20, 4 << 20),
        (9000, 0, 0),
    ] {
        let latency = Duration::from_micros(micros);
        assert_eq!(
            ahead_for(latency, Bytes(least)),
            Bytes(ahead),
            "{latency:?}"
        );
    }
}

#[test]
fn over_a_short_way_pages_are_used_for_a_shorter_time_than_they_are_kept() {
    let us = Duration::from_micros;
    for (round_trip, used, kept) in [
        (0, 10, 50),
        (12, 10, 50),
        (80, 40, 50),
        (100, 50, 50),
        (400, 200, 200),
        (9000, 1000, 1000),
    ] {
        let round_trip = us(round_trip);
        let both = [use_for(round_trip), hold_for(round_trip)];
        assert_eq!(both, [us(used), us(kept)], "{round_trip:?}");
    }
}

#[test]
fn what_was_written_goes_back_in_pieces() {
    let mut bench = Bench::new(settings());
    for number in [1, 2, 5, 9] {
        bench.fault(number, Write);
        bench.provide(page(number), Write);
    }
    bench.fault(3, Read);
    bench.provide(page(3), Read);
    let mut piece = |from| {
        let mut actions: Vec<Action<u64>> = Vec::new();
        let next = bench.kernel.sync_from(PageNumber(from), 2, &mut actions);
        (next, actions)
    };
    let first = vec![Action::GiveBack(pages(1, 2))];
    assert_eq!(piece(0), (Some(PageNumber(3)), first));
    let second = vec![Action::GiveBack(page(5)), Action::GiveBack(page(9))];
    assert_eq!(piece(3), (Some(PageNumber(10)), second));
    assert_eq!(piece(10), (None, Vec::new()));
    assert_eq!(bench.kernel.holds(PageNumber(3)), Some(Read));
}

#[test]
fn a_larger_page_asks_for_what_it_lacks() {
    let together = 4;
    let mut bench = Bench::new(Settings {
        together,
        pages: 7,
        ..settings()
    });
    assert_eq!(bench.fault(2, Read), [request(pages(0, 4), Read)]);
    // A part comes: it is shown, and the rest stays asked for.
    assert_eq!(
        bench.provide(pages(1, 2), Read),
        [fill(pages(1, 2), Read, Some(SPACE))]
    );
    assert_eq!(bench.fault(0, Read), []);
    bench.provide(page(0), Read);
    bench.provide(page(3), Read);
    bench.flush(page(1));
    let wanted = [
        unlock(page(0)),
        request(page(1), Write),
        unlock(pages(2, 2)),
    ];
    assert_eq!(bench.fault(0, Write), wanted);
    let (space, all) = (SPACE, pages(2, 2));
    assert_eq!(bench.allow(all), [Action::Allow { pages: all, space }]);
    // The object ends within the last page.
    assert_eq!(bench.fault(5, Write), [request(pages(4, 3), Write)]);
    assert_eq!(bench.fault(7, Read), [failed(page(7), Failure::Outside)]);
}

#[test]
fn sequential_readers_are_given_pages_ahead_in_growing_windows() {
    let mut bench = Bench::new(Settings {
        ahead: 8,
        ..settings()
    });
    assert_eq!(bench.fault(10, Read), [request(page(10), Read)]);
    let ahead = [request(page(11), Read), request(page(12), Read)];
    assert_eq!(bench.fault(11, Read), ahead);
    bench.provide(page(11), Read);
    // The mark is put there, but not shown.
    assert_eq!(bench.provide(page(12), Read), [fill(page(12), Read, None)]);
    let on = [show(page(12), Read, SPACE), request(pages(13, 4), Read)];
    assert_eq!(bench.fault(12, Read), on);
    // Also where it has not come yet.
    assert_eq!(bench.fault(13, Read), []);
    assert_eq!(bench.fault(15, Read), [request(pages(17, 8), Read)]);
    assert_eq!(
        bench.fault(21, Read),
        [request(pages(25, 8), Read)],
        "no more than 8"
    );
    // Nor is anything that the object does not have.
    bench.fault(61, Read);
    let ahead = [request(page(62), Read), request(page(63), Read)];
    assert_eq!(bench.fault(62, Read), ahead);
    assert_eq!(bench.fault(63, Read), []);
}

#[test]
fn readers_from_the_last_page_on_are_given_pages_ahead_too() {
    let mut bench = Bench::new(Settings {
        pages: 400,
        ahead: 128,
        most: 64,
        ..settings()
    });
    assert_eq!(bench.fault(300, Read), [request(page(300), Read)]);
    let ahead = [request(page(299), Read), request(page(298), Read)];
    assert_eq!(bench.fault(299, Read), ahead);
    // The mark is not shown, what is given ahead with it is.
    assert_eq!(
        bench.provide(page(298), Read),
        [fill(page(298), Read, None)]
    );
    let on = [show(page(298), Read, SPACE), request(pages(294, 4), Read)];
    assert_eq!(bench.fault(298, Read), on);
    let rest = |page| fill(page, Read, Some(SPACE));
    assert_eq!(
        bench.provide(pages(294, 4), Read),
        [
            rest(page(294)),
            fill(page(295), Read, None),
            rest(pages(296, 2))
        ]
    );
    let on = [show(page(295), Read, SPACE), request(pages(278, 16), Read)];
    assert_eq!(bench.fault(295, Read), on);
    // What is used first is asked for first.
    let pieces = [request(pages(246, 32), Read), request(pages(214, 32), Read)];
    assert_eq!(bench.fault(285, Read), pieces);
    // Who turns around is a newcomer: what lies above is there, and nothing is asked for.
    bench.provide(pages(214, 32), Read);
    assert_eq!(bench.fault(301, Read), [request(page(301), Read)]);
    // It ends with the first page.
    bench.fault(3, Read);
    let ahead = [request(page(2), Read), request(page(1), Read)];
    assert_eq!(bench.fault(2, Read), ahead);
    assert_eq!(bench.fault(1, Read), [request(page(0), Read)]);
    assert_eq!(bench.fault(0, Read), []);
}

#[test]
fn a_window_is_asked_for_in_pieces() {
    for (from, second, window) in [
        (10, 11, [pages(12, 1), pages(13, 2), pages(15, 2)]),
        (40, 39, [pages(38, 1), pages(36, 2), pages(34, 2)]),
    ] {
        let mut bench = Bench::new(Settings {
            ahead: 4,
            piece: 2,
            ..settings()
        });
        bench.fault(from, Read);
        let [first, rest @ ..] = window.map(|pages| request(pages, Read));
        assert_eq!(
            bench.fault(second, Read),
            [request(page(second), Read), first]
        );
        assert_eq!(bench.fault(window[0].first.0, Read), rest);
    }
}

#[test]
fn writers_from_the_last_page_on_are_followed_until_others_want_what_they_got() {
    let mut bench = Bench::new(Settings {
        ahead: 8,
        ..settings()
    });
    bench.fault(40, Write);
    let ahead = [request(page(39), Write), request(page(38), Write)];
    assert_eq!(bench.fault(39, Write), ahead);
    assert_eq!(bench.fault(38, Write), [request(pages(34, 4), Write)]);
    // Beside what was given last, nobody minds.
    bench.flush(page(39));
    assert_eq!(bench.fault(35, Write), [request(pages(26, 8), Write)]);
    bench.flush(page(33));
    assert_eq!(bench.fault(29, Write), []);
    assert_eq!(bench.fault(25, Write), [request(page(25), Write)]);
}

#[test]
fn sequential_writers_are_given_pages_ahead_until_others_want_them() {
    let mut bench = Bench::new(Settings {
        ahead: 8,
        ..settings()
    });
    // A page in the way is here to be read already.
    bench.fault(12, Read);
    bench.provide(page(12), Read);
    assert_eq!(bench.fault(10, Write), [request(page(10), Write)]);
    let ahead = [request(page(11), Write), unlock(page(12))];
    assert_eq!(bench.fault(11, Write), ahead);
    bench.provide(page(11), Write);
    // It is the mark: it may be written, but only a touch shows that.
    assert_eq!(bench.allow(page(12)), []);
    assert_eq!(
        bench.fault(12, Read),
        [show(page(12), Write, SPACE)],
        "a reader reaches nothing"
    );
    let on = [show(page(12), Write, SPACE), request(pages(13, 4), Write)];
    assert_eq!(bench.fault(12, Write), on);
    let rest = |page| fill(page, Write, Some(SPACE));
    assert_eq!(
        bench.provide(pages(13, 4), Write),
        [
            rest(pages(13, 2)),
            fill(page(15), Write, None),
            rest(page(16))
        ]
    );
    // A reader of the same pages is another stream.
    assert_eq!(bench.fault(17, Read), [request(page(17), Read)]);
    // Somebody wants what was given last: the next faults are those of a newcomer.
    bench.flush(page(13));
    assert_eq!(bench.fault(15, Write), [show(pages(15, 2), Write, SPACE)]);
    assert_eq!(bench.fault(18, Write), [request(page(18), Write)]);
    let ahead = [request(page(19), Write), request(page(20), Write)];
    assert_eq!(bench.fault(19, Write), ahead);
    // What it has used long ago is no reason.
    bench.provide(page(19), Write);
    bench.provide(page(20), Write);
    bench.flush(page(11));
    assert_eq!(
        bench.fault(20, Write),
        [show(page(20), Write, SPACE), request(pages(21, 4), Write)]
    );
}

#[test]
fn readers_that_leave_pages_out_are_given_those_that_they_do_not() {
    let mut bench = Bench::new(Settings {
        pages: 400,
        ahead: 16,
        ..settings()
    });
    let each = |all: &[u64]| -> Vec<_> { all.iter().map(|at| request(page(*at), Read)).collect() };
    assert_eq!(bench.fault(5, Read), each(&[5]));
    assert_eq!(bench.fault(12, Read), each(&[12]));
    assert_eq!(bench.fault(19, Read), each(&[19, 26]));
    // The mark is put there, but not shown.
    assert_eq!(bench.provide(page(26), Read), [fill(page(26), Read, None)]);
    let mut on = vec![show(page(26), Read, SPACE)];
    on.extend(each(&[33, 40, 47, 54]));
    assert_eq!(bench.fault(26, Read), on);
    // What is no mark is shown at once.
    let rest = fill(page(40), Read, Some(SPACE));
    assert_eq!(bench.provide(page(40), Read), [rest]);
    // Whoever does something else in between is somebody else.
    assert_eq!(bench.fault(47, Write), []);
    assert_eq!(bench.fault(200, Read), each(&[200]));
    let windows: Vec<u64> = (0..16).map(|step| 61 + 7 * step).collect();
    assert_eq!(bench.fault(47, Read), each(&windows));
    let windows: Vec<u64> = (0..16).map(|step| 173 + 7 * step).collect();
    assert_eq!(bench.fault(117, Read), each(&windows), "no more than 16");
    // It ends with the last page of the object.
    assert_eq!(bench.fault(229, Read).len(), 16);
    assert_eq!(bench.fault(341, Read), each(&[397]));
}

#[test]
fn several_that_leave_pages_out_are_followed_at_once_and_backwards() {
    let mut bench = Bench::new(Settings {
        pages: 400,
        ahead: 8,
        together: 4,
        ..settings()
    });
    let each = |all: &[u64]| -> Vec<_> {
        let all = all.iter().map(|at| request(pages(*at, 4), Read));
        all.collect()
    };
    // From the middle of a page of this machine as well.
    assert_eq!(bench.fault(41, Read), each(&[40]));
    assert_eq!(bench.fault(300, Read), each(&[300]));
    assert_eq!(bench.fault(28, Read), each(&[28]));
    assert_eq!(bench.fault(320, Read), each(&[320]));
    assert_eq!(bench.fault(16, Read), each(&[16, 4]));
    assert_eq!(bench.fault(340, Read), each(&[340, 360]));
    assert_eq!(bench.fault(4, Read), [], "there is nothing before");
    assert_eq!(bench.fault(360, Read), each(&[380]), "nor behind");
}

#[test]
fn rows_that_lie_between_each_other_are_no_neighbours() {
    let mut bench = Bench::new(Settings {
        pages: 30,
        ahead: 8,
        ..settings()
    });
    let one = |at: u64| request(page(at), Write);
    for first in [0, 1] {
        assert_eq!(bench.fault(first, Write), [one(first)]);
        assert_eq!(bench.fault(first + 2, Write), [one(first + 2)]);
        let next = [one(first + 4), one(first + 6)];
        assert_eq!(bench.fault(first + 4, Write), next);
    }
}

#[test]
fn one_page_that_is_lacked_again_and_again_leaves_none_out() {
    let mut bench = Bench::new(Settings {
        ahead: 8,
        ..settings()
    });
    for round in 0..10 {
        for number in [3, 9] {
            let access = if round % 2 == 0 { Read } else { Write };
            assert_eq!(bench.fault(number, access), [request(page(number), access)]);
            bench.provide(page(number), access);
            bench.flush(page(number));
        }
    }
}

#[test]
fn writers_that_leave_pages_out_are_followed_until_others_want_what_they_got() {
    let mut bench = Bench::new(Settings {
        pages: 400,
        ahead: 8,
        ..settings()
    });
    let each = |all: &[u64]| -> Vec<_> { all.iter().map(|at| request(page(*at), Write)).collect() };
    bench.fault(10, Write);
    bench.fault(20, Write);
    assert_eq!(bench.fault(30, Write), each(&[30, 40]));
    assert_eq!(bench.fault(40, Write), each(&[50, 60, 70, 80]));
    // What lies between, and what was given before, is no reason to stop.
    bench.flush(pages(61, 9));
    bench.flush(page(40));
    let on = each(&[90, 100, 110, 120, 130, 140, 150, 160]);
    assert_eq!(bench.fault(70, Write), on);
    bench.flush(pages(88, 4));
    assert_eq!(bench.fault(130, Write), []);
    assert_eq!(bench.fault(170, Write), each(&[170]));
}

#[test]
fn what_is_needed_comes_window_after_window() {
    let mut bench = Bench::new(Settings {
        ahead: 4,
        ..settings()
    });
    // A page in the way is here to be read already.
    bench.fault(12, Read);
    bench.provide(page(12), Read);
    let first = [
        request(pages(10, 2), Write),
        unlock(page(12)),
        request(page(13), Write),
    ];
    assert_eq!(bench.need(pages(10, 11), Write), first);
    let shown = |pages| fill(pages, Write, Some(SPACE));
    assert_eq!(bench.provide(pages(10, 2), Write), [shown(pages(10, 2))]);
    let (space, mark) = (SPACE, page(12));
    assert_eq!(bench.go_on(), []);
    assert_eq!(bench.allow(mark), [Action::Allow { pages: mark, space }]);
    assert_eq!(bench.kernel.deadline(), Some(Time(0)), "half of it is here");
    assert_eq!(bench.go_on(), [request(pages(14, 4), Write)]);
    assert_eq!(bench.kernel.deadline(), None);
    assert_eq!(bench.provide(page(13), Write), [shown(page(13))]);
    assert_eq!(bench.provide(pages(14, 4), Write), [shown(pages(14, 4))]);
    assert_eq!(bench.go_on(), [request(pages(18, 3), Write)]);
    assert_eq!(bench.provide(pages(18, 3), Write), [shown(pages(18, 3))]);
    assert_eq!(bench.go_on(), []);
    // What is here, or was asked for, is passed over, and what the object does not have.
    assert_eq!(bench.need(pages(10, 11), Write), []);
    let rest = [request(pages(21, 2), Read)];
    assert_eq!(bench.need(pages(15, 8), Read), rest);
    assert_eq!(
        bench.need(pages(62, 9), Read),
        [request(pages(62, 2), Read)]
    );
    assert_eq!(bench.need(pages(64, 9), Read), []);
}

#[test]
fn what_is_needed_is_forgotten_where_it_does_not_come() {
    let settings = Settings {
        ahead: 2,
        ..settings()
    };
    let begun = || {
        let mut bench = Bench::new(settings.clone());
        assert_eq!(bench.need(pages(0, 8), Read), [request(pages(0, 2), Read)]);
        bench
    };
    let mut lost = begun();
    lost.hear(ToKernel::DataError { pages: page(0) });
    let shown = fill(page(1), Read, Some(SPACE));
    assert_eq!(lost.provide(page(1), Read), [shown]);
    assert_eq!(lost.kernel.needs, Needs::default());
    let mut gone = begun();
    gone.kernel.unmapped(SPACE);
    let hidden = fill(pages(0, 2), Read, None);
    assert_eq!(gone.provide(pages(0, 2), Read), [hidden]);
    let mut cut = begun();
    cut.kernel.lost(NOW, &mut Vec::<Action<u64>>::new());
    assert_eq!(cut.need(pages(0, 8), Read), [], "without a link");
    cut.kernel.linked(&mut Vec::<Action<u64>>::new());
    assert_eq!(cut.provide(pages(0, 2), Read).len(), 1);
    // Where nothing is asked for ahead, a need is obeyed all the same, a page at a time.
    let mut one = Bench::new(Settings {
        ahead: 0,
        ..settings.clone()
    });
    assert_eq!(one.need(pages(0, 2), Read), [request(page(0), Read)]);
    let shown = [fill(page(0), Read, Some(SPACE))];
    assert_eq!(one.provide(page(0), Read), shown);
    assert_eq!(one.go_on(), [request(page(1), Read)]);
    // Who needs too much at once has what it needed first forgotten.
    let mut many = begun();
    for first in 1..=8 {
        many.need(pages(first * 7, 7), Read);
    }
    assert_eq!(many.provide(pages(0, 2), Read).len(), 1);
    assert_eq!(many.go_on(), []);
    assert_eq!(many.provide(pages(7, 2), Read).len(), 1);
    assert_eq!(many.go_on(), [request(pages(9, 2), Read)]);
}

#[test]
fn what_is_here_is_shown_to_others_in_growing_windows() {
    let other = Space(1);
    let mut bench = Bench::new(Settings {
        pages: 400,
        ahead: 128,
        ..settings()
    });
    bench.fault(0, Read);
    bench.provide(pages(0, 330), Read);
    bench.fault(330, Write);
    bench.provide(pages(330, 10), Write);
    let shown = |first, count, access| [show(pages(first, count), access, other)];
    assert_eq!(bench.fault_in(other, 0, Read), shown(0, 16, Read));
    assert_eq!(bench.fault_in(other, 16, Read), shown(16, 64, Read));
    assert_eq!(
        bench.fault_in(other, 80, Read),
        shown(80, 128, Read),
        "no more than is asked for"
    );
    // Who jumps is shown few, and goes on where it was.
    assert_eq!(bench.fault_in(other, 300, Read), shown(300, 16, Read));
    assert_eq!(
        bench.fault_in(other, 208, Read),
        shown(208, 122, Read),
        "what may be read only"
    );
    assert_eq!(
        bench.fault_in(other, 330, Read),
        shown(330, 10, Write),
        "what is here"
    );
    // Each mapping is another walk.
    assert_eq!(
        bench.fault_in(Space(2), 16, Read),
        [show(pages(16, 16), Read, Space(2))]
    );
    // What is lacking is asked for as ever.
    assert_eq!(bench.fault_in(other, 340, Read), [request(page(340), Read)]);
    // What others have taken is not shown.
    bench.flush(page(20));
    assert_eq!(
        bench.fault_in(Space(3), 18, Read),
        [show(pages(18, 2), Read, Space(3))]
    );
    bench.kernel.unmapped(other);
    assert_eq!(bench.fault_in(other, 316, Read), shown(316, 14, Read));
    // The last page first: what lies below is shown, but for what is not there.
    let down = |first, count| [show(pages(first, count), Read, Space(4))];
    assert_eq!(bench.fault_in(Space(4), 200, Read), down(200, 16));
    assert_eq!(bench.fault_in(Space(4), 199, Read), down(136, 64));
    assert_eq!(bench.fault_in(Space(4), 135, Read), down(21, 115));
    assert_eq!(bench.fault_in(Space(4), 19, Read), down(19, 1));
    assert_eq!(bench.fault_in(Space(4), 18, Read), down(0, 19));
}

#[test]
fn a_fault_does_not_wait_forever() {
    let patience = Duration::from_nanos(100);
    let mut bench = Bench::new(Settings {
        patience,
        ..settings()
    });
    bench.fault(3, Write);
    bench.pass(Time(40));
    bench.fault(4, Read);
    assert_eq!(bench.kernel.deadline(), Some(Time(100)));
    assert_eq!(bench.pass(Time(100)), [failed(page(3), Failure::Late)]);
    assert_eq!(bench.fault(3, Read), [failed(page(3), Failure::Late)]);
    assert_eq!(bench.kernel.deadline(), Some(Time(140)));
    bench.provide(page(4), Read);
    assert_eq!(bench.kernel.deadline(), None);
    // What comes too late goes back, and its flush is answered.
    let data = vec![Some(7)];
    let back = Action::Send(FromKernel::DataWrite {
        pages: page(3),
        data,
    });
    assert_eq!(bench.provide(page(3), Write), [back]);
    assert_eq!(bench.flush(page(3)), [completed(page(3))]);
    // An upgrade that does not come takes the page with it.
    bench.fault(4, Write);
    let gone = [Action::Remove(page(4)), failed(page(4), Failure::Late)];
    assert_eq!(bench.pass(Time(300)), gone);
    assert_eq!(bench.allow(page(4)), []);
    assert_eq!(bench.flush(page(4)), [completed(page(4))]);
}

#[test]
fn lost_contents_fail_whoever_wants_them() {
    let mut bench = Bench::new(settings());
    bench.fault(3, Write);
    let error = ToKernel::DataError { pages: page(3) };
    assert_eq!(bench.hear(error), [failed(page(3), Failure::Lost)]);
    assert_eq!(bench.fault(3, Read), [failed(page(3), Failure::Lost)]);
    assert_eq!(bench.fault(4, Read), [request(page(4), Read)]);
}

#[test]
fn a_broken_link_drops_all_and_a_new_one_brings_what_is_waited_for() {
    let mut bench = Bench::new(settings());
    for number in [1, 2] {
        bench.fault(number, Write);
    }
    bench.provide(pages(1, 2), Write);
    bench.fault(3, Read);
    bench.provide(page(3), Read);
    bench.fault(4, Read);
    bench.fault_in(Space(1), 4, Write);
    let mut actions = Vec::new();
    bench.kernel.lost(NOW, &mut actions);
    assert_eq!(actions, [Action::RemoveAll, Action::Lost(pages(1, 2))]);
    assert_eq!(bench.kernel.holds(PageNumber(1)), None);
    // What was under way is not heard, and nothing is sent.
    assert_eq!(bench.provide(page(4), Write), []);
    assert_eq!(bench.fault(5, Write), []);
    actions.clear();
    bench.kernel.linked(&mut actions);
    assert_eq!(actions, [request(pages(4, 2), Write)]);
    let shown = [
        fill(page(4), Write, Some(SPACE)),
        show(page(4), Write, Space(1)),
    ];
    assert_eq!(bench.provide(page(4), Write), shown);
}

#[test]
fn without_a_new_link_in_time_everything_fails() {
    let mut bench = Bench::new(Settings {
        reconnect: Duration::from_nanos(10),
        ..settings()
    });
    bench.kernel.lease(Time(100));
    bench.fault(3, Write);
    bench.provide(page(3), Write);
    assert_eq!(bench.kernel.deadline(), Some(Time(100)));
    bench.kernel.lease(Time(200));
    assert_eq!(bench.pass(Time(199)), []);
    let dropped = [Action::RemoveAll, Action::Lost(page(3))];
    assert_eq!(bench.pass(Time(200)), dropped);
    assert!(!bench.kernel.is_linked());
    assert_eq!(bench.kernel.ended(), None);
    bench.fault(3, Read);
    assert_eq!(bench.kernel.deadline(), Some(Time(210)));
    let why = Failure::Unreachable;
    assert_eq!(bench.pass(Time(210)), [Action::FailAll(why)]);
    assert_eq!(bench.kernel.ended(), Some(why));
    assert_eq!(bench.fault(4, Read), [failed(page(4), why)]);
    assert_eq!(bench.kernel.deadline(), None);
    let mut at_once = Bench::new(Settings {
        reconnect: Duration::ZERO,
        ..settings()
    });
    let mut actions: Vec<Action<u64>> = Vec::new();
    at_once.kernel.lost(NOW, &mut actions);
    assert_eq!(actions, [Action::RemoveAll, Action::FailAll(why)]);
}

#[test]
fn the_end_of_a_lease_that_is_noticed_late_comes_before_all_else() {
    let mut bench = Bench::new(settings());
    bench.fault(3, Write);
    bench.provide(page(3), Write);
    bench.kernel.lease(Time(100));
    let before = bench.kernel.clone();
    bench.now = Time(100);
    let dropped = [Action::RemoveAll, Action::Lost(page(3))];
    assert_eq!(bench.fault(3, Read), dropped);
    bench.kernel = before;
    assert_eq!(
        bench.flush(page(3)),
        dropped,
        "and the flush is not answered"
    );
}

#[test]
fn the_end_gives_back_what_was_written() {
    let mut bench = Bench::new(settings());
    bench.fault(3, Write);
    bench.provide(page(3), Write);
    bench.fault(4, Read);
    let mut actions: Vec<Action<u64>> = Vec::new();
    bench.kernel.terminate(&mut actions);
    let end = [
        Action::GiveBack(page(3)),
        Action::Send(FromKernel::Terminate),
        Action::FailAll(Failure::Ended),
    ];
    assert_eq!(actions, end);
    assert_eq!(bench.provide(page(4), Read), []);
}

#[test]
fn contents_go_back_in_messages_of_a_limited_size() {
    let mut bench = Bench::new(Settings {
        most: 2,
        ..settings()
    });
    for number in 0..5 {
        bench.fault(number, Write);
    }
    bench.provide(pages(0, 5), Write);
    let mut actions: Vec<Action<u64>> = Vec::new();
    bench.kernel.evict(pages(0, 64), &mut actions);
    let back = [pages(0, 2), pages(2, 2), page(4)].map(Action::GiveBack);
    assert_eq!(actions, back);
}

#[test]
fn what_came_first_goes_first_where_room_is_limited() {
    let hold = Duration::from_nanos(10);
    let mut bench = Bench::new(Settings {
        room: 3,
        hold,
        ..settings()
    });
    for number in [5, 6, 1] {
        bench.fault(number, Write);
        bench.provide(page(number), Write);
    }
    bench.fault(8, Read);
    assert_eq!(
        bench.provide(page(8), Read).len(),
        1,
        "all are kept for a while"
    );
    bench.pass(Time(10));
    bench.fault(9, Read);
    let back = [
        fill(page(9), Read, Some(SPACE)),
        Action::GiveBack(pages(5, 2)),
    ];
    assert_eq!(bench.provide(page(9), Read), back);
    assert_eq!(bench.kernel.holds(PageNumber(1)), Some(Write));
    // One that is to be upgraded stays.
    bench.pass(Time(20));
    bench.flush(page(1));
    assert_eq!(bench.fault(8, Write), [unlock(page(8))]);
    bench.fault(1, Read);
    bench.provide(page(1), Read);
    bench.pass(Time(30));
    bench.fault(2, Read);
    let gone = [fill(page(2), Read, Some(SPACE)), Action::Remove(page(9))];
    assert_eq!(bench.provide(page(2), Read), gone);
}

#[test]
fn nonsense_changes_nothing() {
    let mut bench = Bench::new(settings());
    bench.fault(3, Write);
    bench.provide(page(3), Write);
    let before = bench.kernel.clone();
    let provided = |pages, data| ToKernel::DataProvided {
        pages,
        data,
        access: Read,
    };
    for message in [
        provided(pages(1, 2), vec![Some(7)]),
        provided(pages(2, 2), vec![Some(7), Some(7)]),
        provided(pages(63, 2), vec![Some(7), Some(7)]),
        provided(pages(u64::MAX, 1), vec![Some(7)]),
        provided(pages(1, 0), vec![]),
        ToKernel::LockRequest {
            pages: page(3),
            lock: Lock::AllowWrite,
        },
    ] {
        assert!(bench.try_hear(message.clone()).is_err(), "{message:?}");
        assert_eq!(bench.kernel, before);
    }
}

#[test]
fn a_mapping_that_is_gone_is_not_waited_for() {
    let mut bench = Bench::new(settings());
    bench.fault(3, Read);
    bench.fault_in(Space(1), 3, Read);
    bench.kernel.unmapped(SPACE);
    assert!(bench.kernel.deadline().is_some());
    bench.kernel.unmapped(Space(1));
    assert_eq!(bench.kernel.deadline(), None);
    assert_eq!(bench.provide(page(3), Read), [fill(page(3), Read, None)]);
}

/// One page in the memory of a machine, and what its mappings may do to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Held {
    value: u64,
    shown: BTreeMap<Space, Access>,
}

/// A program in a mapping of its own: what it does, and whether it waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Program {
    todo: VecDeque<(PageNumber, Access)>,
    waits: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Machine {
    kernel: Kernel,
    memory: BTreeMap<PageNumber, Held>,
    programs: Vec<Program>,
    to_server: VecDeque<FromKernel<u64>>,
    from_server: VecDeque<ToKernel<u64>>,
    /// The link broke here, and the server does not know it yet.
    cut: bool,
}

/// Machines, their server, and what every read must see.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    machines: Vec<Machine>,
    server: Toy<u64>,
    latest: BTreeMap<PageNumber, u64>,
    writes: u64,
    /// What may still go wrong.
    cuts: u32,
    evictions: u32,
    /// How often programs may still say what they will need.
    needs: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Program(usize, usize),
    /// It says that it will need all pages, as it needs the next one.
    Need(usize, usize),
    ToServer(usize),
    FromServer(usize),
    Tick(usize),
    /// It asks for more of what is needed.
    GoOn(usize),
    Evict(usize),
    Cut(usize),
    Link(usize),
}

type Script = Vec<(PageNumber, Access)>;

impl World {
    fn new(settings: &Settings, scripts: &[Vec<Script>]) -> World {
        let program = |script: &Script| Program {
            todo: script.iter().copied().collect(),
            waits: false,
        };
        let machine = |scripts: &Vec<Script>| Machine {
            kernel: Kernel::new(settings.clone()),
            memory: BTreeMap::new(),
            programs: scripts.iter().map(program).collect(),
            to_server: VecDeque::new(),
            from_server: VecDeque::new(),
            cut: false,
        };
        World {
            machines: scripts.iter().map(machine).collect(),
            server: Toy::new(),
            latest: BTreeMap::new(),
            writes: 0,
            cuts: 0,
            evictions: 0,
            needs: 0,
        }
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (at, machine) in self.machines.iter().enumerate() {
            for (number, program) in machine.programs.iter().enumerate() {
                if !program.waits && !program.todo.is_empty() {
                    steps.push(Step::Program(at, number));
                    if self.needs > 0 {
                        steps.push(Step::Need(at, number));
                    }
                }
            }
            if !machine.to_server.is_empty() {
                steps.push(Step::ToServer(at));
            }
            if !machine.from_server.is_empty() {
                steps.push(Step::FromServer(at));
            }
            if !machine.kernel.flushes.is_empty() {
                steps.push(Step::Tick(at));
            }
            if machine.kernel.needs.are_due() {
                steps.push(Step::GoOn(at));
            }
            if self.evictions > 0 && !machine.memory.is_empty() && !machine.cut {
                steps.push(Step::Evict(at));
            }
            if machine.cut {
                steps.push(Step::Link(at));
            } else if self.cuts > 0 {
                steps.push(Step::Cut(at));
            }
        }
        steps
    }

    fn step(&mut self, step: Step) {
        let mut actions = Vec::new();
        let at = match step {
            Step::Program(at, number) => {
                self.run(at, number, &mut actions);
                at
            }
            Step::Need(at, number) => {
                self.needs -= 1;
                let machine = &mut self.machines[at];
                let need = (pages(0, u32::MAX), machine.programs[number].todo[0].1);
                let (kernel, space) = (&mut machine.kernel, Space(number as u32));
                kernel.will_need(NOW, space, need, &mut actions);
                at
            }
            Step::ToServer(at) => {
                let message = self.machines[at].to_server.pop_front().unwrap();
                self.server.hear(KernelId(at as u64), message);
                at
            }
            Step::FromServer(at) => {
                let message = self.machines[at].from_server.pop_front().unwrap();
                let heard = self.machines[at].kernel.hear(NOW, message, &mut actions);
                assert_eq!(heard, Ok(()));
                at
            }
            Step::Tick(at) => {
                self.machines[at].kernel.pass(Time(1), &mut actions);
                at
            }
            Step::GoOn(at) => {
                self.machines[at].kernel.pass(NOW, &mut actions);
                at
            }
            Step::Evict(at) => {
                self.evictions -= 1;
                let kernel = &mut self.machines[at].kernel;
                kernel.evict(pages(0, u32::MAX), &mut actions);
                at
            }
            Step::Cut(at) => {
                self.cuts -= 1;
                let machine = &mut self.machines[at];
                machine.cut = true;
                machine.kernel.lost(NOW, &mut actions);
                machine.from_server.clear();
                // What is given back and does not arrive is lost, too.
                for message in std::mem::take(&mut machine.to_server) {
                    if let FromKernel::DataWrite { pages, .. } = message {
                        actions.push(Action::Lost(pages));
                    }
                }
                at
            }
            Step::Link(at) => {
                self.server.gone(KernelId(at as u64));
                let machine = &mut self.machines[at];
                machine.cut = false;
                machine.kernel.linked(&mut actions);
                at
            }
        };
        for action in actions {
            self.carry_out(at, action);
        }
        for (to, message) in std::mem::take(&mut self.server.out) {
            let machine = &mut self.machines[to.0 as usize];
            if !machine.cut {
                machine.from_server.push_back(message);
            }
        }
    }

    /// A program does the next thing, if its mapping lets it; else it faults.
    fn run(&mut self, at: usize, number: usize, actions: &mut Vec<Action<u64>>) {
        let machine = &mut self.machines[at];
        let space = Space(number as u32);
        let program = &mut machine.programs[number];
        let (page, access) = program.todo[0];
        let held = machine.memory.get_mut(&page);
        let latest = self.latest.entry(page).or_insert(0);
        match held.filter(|held| held.shown.get(&space) >= Some(&access)) {
            Some(held) => {
                assert_eq!(held.value, *latest, "an old value of {page:?}");
                if access == Write {
                    held.value += 1;
                    *latest += 1;
                    self.writes += 1;
                }
                program.todo.pop_front();
            }
            None => {
                program.waits = true;
                machine.kernel.fault(NOW, space, page, access, actions);
            }
        }
    }

    fn carry_out(&mut self, at: usize, action: Action<u64>) {
        let machine = &mut self.machines[at];
        match action {
            Action::Send(message) => {
                assert!(!machine.cut, "sent over a broken link: {message:?}");
                machine.to_server.push_back(message);
            }
            Action::Fill {
                pages,
                data,
                access,
                space,
            } => {
                for (number, value) in pages.iter().zip(data) {
                    let shown = space.into_iter().map(|space| (space, access)).collect();
                    let value = value.unwrap_or(0);
                    let was = machine.memory.insert(number, Held { value, shown });
                    assert_eq!(was, None, "{number:?} is filled where it is");
                }
                machine.wake(pages, space);
            }
            Action::Show {
                pages,
                access,
                space,
            } => {
                machine.show(pages, access, space, false);
            }
            Action::Allow { pages, space } => machine.show(pages, Write, space, true),
            Action::GiveBack(pages) => {
                let data = machine.remove(pages, Write);
                let data = data.into_iter().map(Some).collect();
                machine
                    .to_server
                    .push_back(FromKernel::DataWrite { pages, data });
            }
            Action::Remove(pages) => {
                machine.remove(pages, Read);
            }
            Action::RemoveAll => machine.memory.clear(),
            Action::Lost(pages) => {
                for number in pages.iter() {
                    let kept = self.server.content(number).unwrap_or(0);
                    self.latest.insert(number, kept);
                }
            }
            Action::Fail { .. } | Action::FailAll(_) => panic!("{action:?}"),
        }
    }

    /// Nobody writes what another machine has.
    fn is_coherent(&self) -> bool {
        let mut held: BTreeMap<PageNumber, Vec<bool>> = BTreeMap::new();
        for machine in &self.machines {
            for (number, page) in &machine.memory {
                let writes = page.shown.values().any(|access| *access == Write);
                let claims = machine.kernel.holds(*number) == Some(Write);
                assert!(claims || !writes, "{number:?} is shown as more than it is");
                held.entry(*number).or_default().push(claims);
            }
        }
        held.values()
            .all(|who| who.len() == 1 || !who.contains(&true))
    }

    fn is_done(&self) -> bool {
        let programs = self.machines.iter().flat_map(|machine| &machine.programs);
        programs.into_iter().all(|program| program.todo.is_empty())
    }

    /// What all pages hold together, wherever their latest copy is.
    fn total(&self) -> u64 {
        let value = |number: &PageNumber| {
            let owner = self.machines.iter().find(|machine| {
                let holds = machine.kernel.holds(*number);
                holds == Some(Write)
            });
            match owner {
                Some(machine) => machine.memory[number].value,
                None => self.server.content(*number).unwrap_or(0),
            }
        };
        self.latest.keys().map(value).sum()
    }
}

impl Machine {
    fn wake(&mut self, pages: Pages, space: Option<Space>) {
        let Some(space) = space else { return };
        let program = &mut self.programs[space.0 as usize];
        if program
            .todo
            .front()
            .is_some_and(|(page, _)| pages.contains(*page))
        {
            program.waits = false;
        }
    }

    /// `only` raises what is shown already.
    fn show(&mut self, pages: Pages, access: Access, space: Space, only: bool) {
        for number in pages.iter() {
            let held = self.memory.get_mut(&number);
            let held = held.unwrap_or_else(|| panic!("{number:?} is shown where it is not"));
            if !only || held.shown.contains_key(&space) {
                held.shown.insert(space, access);
            }
        }
        self.wake(pages, Some(space));
    }

    fn remove(&mut self, pages: Pages, what: Access) -> Vec<u64> {
        let held = pages.iter().map(|number| {
            let held = self.memory.remove(&number);
            let held = held.unwrap_or_else(|| panic!("{number:?} is removed where it is not"));
            let most = held.shown.values().max();
            assert!(
                most <= Some(&what),
                "{number:?} was written and not given back"
            );
            held.value
        });
        held.collect()
    }
}

/// All orders of the steps of a small world.
struct Orders(World);

impl Model for Orders {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![self.0.clone()]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        steps.extend(world.steps());
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        next.step(step);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Orders>> {
        vec![
            Property::always("one writer or many readers", |_, world: &World| {
                world.is_coherent()
            }),
            Property::always("nobody waits forever", |_, world: &World| {
                world.is_done() || !world.steps().is_empty()
            }),
            Property::always("no write is lost", |model: &Orders, world: &World| {
                let lossless = model.0.cuts == 0;
                let still = world
                    .machines
                    .iter()
                    .all(|machine| machine.to_server.is_empty());
                !lossless || !world.is_done() || !still || world.total() == world.writes
            }),
            Property::sometimes("all is done", |_, world: &World| world.is_done()),
        ]
    }
}

fn check(world: World) -> usize {
    let checker = Orders(world).checker().threads(1).spawn_bfs().join();
    checker.assert_properties();
    checker.unique_state_count()
}

fn script(steps: &[(u64, Access)]) -> Script {
    let steps = steps.iter();
    steps
        .map(|(page, access)| (PageNumber(*page), *access))
        .collect()
}

fn held_shortly(pages: u64) -> Settings {
    Settings {
        pages,
        hold: Duration::from_nanos(1),
        ..settings()
    }
}

#[test]
fn in_all_orders_two_machines_share_a_page() {
    let both = script(&[(0, Read), (0, Write), (0, Write)]);
    let reader = script(&[(0, Read), (0, Write)]);
    let world = World::new(&held_shortly(1), &[vec![both.clone(), reader], vec![both]]);
    let states = check(World {
        evictions: 1,
        ..world
    });
    assert!(states > 1_000, "{states}");
}

#[test]
fn in_all_orders_three_machines_share_a_page() {
    let writer = script(&[(0, Read), (0, Write)]);
    let all = vec![vec![writer.clone()], vec![writer.clone()], vec![writer]];
    let states = check(World::new(&held_shortly(1), &all));
    assert!(states > 1_000, "{states}");
}

#[test]
fn in_all_orders_a_page_of_two_is_shared() {
    let settings = Settings {
        together: 2,
        ..held_shortly(2)
    };
    let one = script(&[(0, Read), (1, Write), (0, Write)]);
    let other = script(&[(1, Write), (0, Read)]);
    let states = check(World::new(&settings, &[vec![one], vec![other]]));
    assert!(states > 1_000, "{states}");
}

#[test]
fn in_all_orders_programs_say_what_they_will_need() {
    let one = script(&[(0, Read), (1, Write), (0, Write)]);
    let other = script(&[(1, Write), (0, Read)]);
    let world = World::new(&held_shortly(2), &[vec![one], vec![other]]);
    let (needs, cuts) = (2, 1);
    let states = check(World {
        needs,
        cuts,
        ..world
    });
    assert!(states > 10_000, "{states}");
}

#[test]
fn in_all_orders_links_may_break() {
    let one = script(&[(0, Read), (0, Write), (0, Write)]);
    let other = script(&[(0, Write), (0, Read)]);
    let world = World::new(&held_shortly(1), &[vec![one], vec![other]]);
    let states = check(World { cuts: 2, ..world });
    assert!(states > 1_000, "{states}");
}

/// What the machines of the random worlds share.
const PAGES: u64 = 12;

fn any_script() -> impl Strategy<Value = Script> {
    let access = prop_oneof![Just(Read), Just(Write)];
    let step = (0..PAGES, access);
    let random = prop::collection::vec(step, 1..30);
    // In order, without leaving anything out or by leaving out the same each time.
    let sequential =
        (prop_oneof![Just(Read), Just(Write)], 1..4usize).prop_map(|(access, step)| {
            let pages = (0..PAGES).step_by(step);
            pages.map(|page| (page, access)).collect::<Vec<_>>()
        });
    prop_oneof![2 => random, 1 => sequential].prop_map(|steps| script(&steps))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn at_random_machines_are_coherent_and_never_hang(
        scripts in prop::collection::vec(prop::collection::vec(any_script(), 1..3), 1..4),
        together in prop_oneof![Just(1u32), Just(2), Just(4)],
        ahead in 0..5u32,
        cuts in 0..3u32,
        evictions in 0..6u32,
        needs in 0..6u32,
        room in prop_oneof![Just(u64::MAX), 1..4u64],
        hold in 0..2u64,
        mut seed in any::<u64>(),
    ) {
        let hold = Duration::from_nanos(hold);
        let settings = Settings { together, ahead, room, hold, most: 3, ..held_shortly(PAGES) };
        let mut world = World::new(&settings, &scripts);
        (world.cuts, world.evictions, world.needs) = (cuts, evictions, needs);
        for _ in 0..4000 {
            let steps = world.steps();
            if steps.is_empty() {
                break;
            }
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let choice = (seed >> 33) as usize % steps.len();
            world.step(steps[choice]);
            prop_assert!(world.is_coherent());
        }
        // The rest in turn, without anything more going wrong.
        (world.cuts, world.evictions, world.needs) = (0, 0, 0);
        for turn in 0.. {
            let steps = world.steps();
            if steps.is_empty() {
                break;
            }
            world.step(steps[turn % steps.len()]);
            prop_assert!(turn < 100_000, "it never ends");
        }
        prop_assert!(world.is_done(), "somebody waits forever");
        if cuts == 0 {
            prop_assert_eq!(world.total(), world.writes);
        }
    }
}
