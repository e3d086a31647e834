use proptest::collection::vec;
use proptest::prelude::*;

use super::Multi;
use crate::dsm::message::{Access, Client, KernelId, PageNumber, Pages};
use crate::dsm::scheduler::observe::{Observe, State};
use crate::dsm::scheduler::options::Options;
use crate::dsm::scheduler::testing::ending::ends;
use crate::dsm::scheduler::testing::naive::Naive;
use crate::dsm::scheduler::testing::orders::Orders;
use crate::dsm::scheduler::testing::random::{hotspot, large, lies, survives_lies, wander};
use crate::dsm::scheduler::testing::say::{
    allow, back, completed, error, flush, load, pages, provide, read, refused, save, say, unlock,
    write,
};
use crate::dsm::scheduler::testing::world::{Setup, World};
use crate::dsm::scheduler::{Action, Scheduler};
use crate::units::{Bytes, ObjectOffset};

/// One kernel with pages of the scheduler's size, one with larger ones, and one with both.
fn small(accesses: [u8; 3]) -> Setup {
    let (small, large) = ([(0, 1), (1, 1)], [(0, 2)]);
    Setup {
        ranges: vec![
            small.to_vec(),
            large.to_vec(),
            [&small[..], &large].concat(),
        ],
        pages: 2,
        accesses: accesses.to_vec(),
        threads: 1,
        page_outs: 0,
        crashes: 0,
        ends: 0,
    }
}

const ORDERS: Orders<Multi<u8>> = Orders {
    name: "multi",
    make: Multi::new,
    small,
};

fn forgetful() -> Options {
    Options {
        keeps_latest_copy: false,
        ..Options::new(2)
    }
}

#[test]
fn all_orders_are_coherent() {
    ORDERS.check("nothing else", [1, 2, 1], |_| {});
}

#[test]
fn all_orders_with_a_crash_are_coherent() {
    ORDERS.check("a crash", [1, 1, 1], |setup| setup.crashes = 1);
}

#[test]
fn all_orders_with_page_outs_are_coherent() {
    ORDERS.check("page-outs", [1, 2, 1], |setup| setup.page_outs = 1);
}

#[test]
fn all_orders_with_an_end_are_coherent() {
    ORDERS.check("an end", [1, 1, 1], |setup| setup.ends = 1);
}

#[test]
fn all_orders_of_kernels_that_ask_twice_are_coherent() {
    ORDERS.check("two programs", [0, 2, 2], |setup| setup.threads = 2);
}

#[test]
fn all_orders_are_coherent_where_no_copy_is_kept() {
    let crash = |setup: &mut Setup| setup.crashes = 1;
    ORDERS.check_with(forgetful(), "no copy kept", [1, 1, 1], crash);
}

#[test]
#[ignore = "takes minutes; meant for an optimised build"]
fn all_orders_of_more_that_happens_are_coherent() {
    ORDERS.check("more", [2, 2, 2], |_| {});
    ORDERS.check("a crash, more", [1, 2, 1], |setup| setup.crashes = 1);
}

#[test]
fn the_checker_finds_a_writer_that_does_not_wait_for_readers() {
    ORDERS.find_hasty();
}

#[test]
fn the_checker_finds_that_contents_are_taken_for_an_answer() {
    ORDERS.find_eager();
}

#[test]
fn the_checker_finds_that_a_crash_is_not_heard_of() {
    ORDERS.find_deaf();
}

#[test]
fn requests_are_rounded_up_to_pages_of_the_scheduler() {
    let covering =
        |offset, length| Pages::covering(ObjectOffset(offset), Bytes(length), Bytes(65536));
    assert_eq!(covering(4096, 4096), Some(pages(0, 1)));
    assert_eq!(covering(65535, 2), Some(pages(0, 2)));
    assert_eq!(covering(0, 2 << 20), Some(pages(0, 32)));
    assert_eq!(covering(0, 0), None);
    assert_eq!(covering(u64::MAX, 2), None);
    assert_eq!(covering(0, u64::MAX), None);
    assert_eq!(Pages::covering(ObjectOffset(0), Bytes(1), Bytes(0)), None);
}

#[test]
fn a_larger_page_is_shipped_all_at_once() {
    let mut multi = Multi::new(Options::new(8));
    let (all, left, right) = (pages(0, 4), pages(0, 2), pages(2, 2));
    assert_eq!(say(&mut multi, 1, write(left)), [Action::Load(left)]);
    load(&mut multi, left, 1);
    // Case 2: a writer is descheduled, and what is not here is asked for.
    let waits = say(&mut multi, 2, read(all));
    assert_eq!(waits, [flush(1, left), Action::Load(right)]);
    assert_eq!(load(&mut multi, right, 2), []);
    // Case 3: the first stands in line behind the second.
    assert_eq!(say(&mut multi, 1, back(left, 3)), [save(left, &[3, 3])]);
    assert_eq!(say(&mut multi, 3, write(pages(3, 2))), []);
    let shipped = provide(2, all, Access::Read, &[3, 3, 2, 2]);
    let next = [flush(2, pages(3, 1)), Action::Load(pages(4, 1))];
    let both = [&[shipped][..], &next].concat();
    assert_eq!(say(&mut multi, 1, completed(left)), both);
    // Case 1: nothing stands in the way.
    let served = provide(4, left, Access::Read, &[3, 3]);
    assert_eq!(say(&mut multi, 4, read(left)), [served]);
}

#[test]
fn a_request_that_cannot_be_served_yet_deschedules_nobody() {
    let mut multi = Multi::new(Options::new(4));
    let [first, second] = [pages(0, 1), pages(1, 1)];
    say(&mut multi, 1, write(first));
    load(&mut multi, first, 0);
    say(&mut multi, 2, write(second));
    load(&mut multi, second, 0);
    assert_eq!(say(&mut multi, 3, write(first)), [flush(1, first)]);
    assert_eq!(say(&mut multi, 4, write(pages(0, 2))), []);
    assert_eq!(multi.page(PageNumber(1)).unwrap().state, State::WriteWait);
    // What wants neither, does not wait.
    assert_eq!(
        say(&mut multi, 5, read(pages(2, 1))),
        [Action::Load(pages(2, 1))]
    );
    let third = provide(3, first, Access::Write, &[0]);
    let next = [third, flush(2, second), flush(3, first)];
    assert_eq!(say(&mut multi, 1, completed(first)), next);
}

#[test]
fn what_a_kernel_lacks_of_a_larger_page_comes_with_contents() {
    let mut multi = Multi::new(Options::new(3));
    let all = pages(0, 3);
    say(&mut multi, 1, read(pages(0, 2)));
    load(&mut multi, pages(0, 2), 1);
    say(&mut multi, 2, write(pages(1, 1)));
    say(&mut multi, 1, completed(pages(1, 1)));
    let waits = say(&mut multi, 1, unlock(all));
    assert_eq!(waits, [flush(2, pages(1, 1)), Action::Load(pages(2, 1))]);
    load(&mut multi, pages(2, 1), 2);
    let served = say(&mut multi, 2, completed(pages(1, 1)));
    let rest = provide(1, pages(1, 2), Access::Write, &[1, 2]);
    assert_eq!(served, [allow(1, pages(0, 1)), rest]);
    // It may write to all of them already.
    assert_eq!(say(&mut multi, 1, unlock(all)), [allow(1, all)]);
}

#[test]
fn a_kernel_that_is_gone_holds_nobody_up() {
    let mut multi = Multi::new(Options::new(2));
    let (all, first) = (pages(0, 2), pages(0, 1));
    say(&mut multi, 1, write(all));
    load(&mut multi, all, 7);
    say(&mut multi, 2, write(first));
    say(&mut multi, 3, write(all));
    say(&mut multi, 4, read(all));
    let mut actions = Vec::new();
    multi.gone(Client::Kernel(KernelId(3)), &mut actions);
    assert_eq!(actions, []);
    multi.gone(Client::Kernel(KernelId(1)), &mut actions);
    let served = provide(2, first, Access::Write, &[7]);
    assert_eq!(actions, [served, flush(2, first)]);
    assert_eq!(multi.stats().recoveries, 2);
    let last = provide(4, all, Access::Read, &[7, 7]);
    assert_eq!(say(&mut multi, 2, completed(first)), [last]);
    let page = multi.page(PageNumber(1)).unwrap();
    assert_eq!((page.state, page.readers), (State::Read, 1));
}

#[test]
fn contents_that_cannot_be_had_are_an_error_for_those_pages() {
    let mut multi = Multi::new(Options::new(2));
    say(&mut multi, 1, read(pages(0, 2)));
    load(&mut multi, pages(0, 1), 7);
    let mut actions = Vec::new();
    multi.loaded(pages(1, 1), None, &mut actions);
    let rest = provide(1, pages(0, 1), Access::Read, &[7]);
    assert_eq!(actions, [rest, error(1, pages(1, 1))]);
    assert_eq!(
        say(&mut multi, 2, write(pages(1, 1))),
        [error(2, pages(1, 1))]
    );
}

#[test]
fn a_kernel_that_let_go_of_what_it_unlocks_gets_contents() {
    let mut multi = Multi::new(Options::new(1));
    let page = pages(0, 1);
    say(&mut multi, 1, read(page));
    load(&mut multi, page, 7);
    say(&mut multi, 2, read(page));
    assert_eq!(say(&mut multi, 1, unlock(page)), [flush(2, page)]);
    assert_eq!(say(&mut multi, 1, write(page)), []);
    let granted = say(&mut multi, 2, completed(page));
    assert_eq!(granted, [allow(1, page), flush(1, page)]);
    let contents = provide(1, page, Access::Write, &[7]);
    assert_eq!(say(&mut multi, 1, completed(page)), [contents]);
}

#[test]
fn nonsense_changes_nothing() {
    let options = Options {
        requests_per_kernel: 1,
        ..Options::new(4)
    };
    let mut multi = Multi::new(options);
    let page = pages(0, 1);
    say(&mut multi, 1, write(page));
    load(&mut multi, page, 7);
    say(&mut multi, 3, write(page));
    let before = multi.clone();
    let nonsense = [
        (1, completed(pages(1, 1))),
        (1, back(pages(0, 2), 1)),
        (2, back(page, 1)),
        (2, completed(page)),
        (2, read(pages(0, 0))),
        (2, read(pages(3, 2))),
        (2, read(pages(u64::MAX, 2))),
        (3, read(pages(1, 1))),
    ];
    for (kernel, message) in nonsense {
        refused(&mut multi, kernel, message);
    }
    // What asks for the same again is heard, and changes nothing either.
    assert_eq!(say(&mut multi, 3, write(page)), []);
    assert_eq!(before, multi);
    assert_eq!(multi.stats().repeated, 1);
}

#[test]
fn a_write_hotspot_costs_five_messages_per_fault() {
    for kernels in 2..=16 {
        let setup = Setup {
            ranges: vec![vec![(0, 1)]; kernels],
            accesses: vec![0; kernels],
            ..small([0, 0, 0])
        };
        let mut world = World::new(Multi::new(Options::new(1)), &setup);
        let taken = hotspot(&mut world, &setup, 100 * kernels as u64);
        let (least, most) = (taken.iter().min().unwrap(), taken.iter().max().unwrap());
        assert!(most - least <= 1, "{taken:?}");
        let stats = world.scheduler.stats();
        assert_eq!(stats.messages(), 5 * stats.faults.total() - 3);
    }
}

#[test]
fn kernels_with_pages_of_any_size_are_served_in_turn() {
    let ranges = [(0, 1), (0, 2), (0, 4), (0, 8), (4, 4), (7, 1)];
    let setup = Setup {
        ranges: ranges.map(|range| vec![range]).to_vec(),
        accesses: vec![0; 6],
        pages: 8,
        ..small([0, 0, 0])
    };
    let mut world = World::new(Multi::new(Options::new(8)), &setup);
    let taken = hotspot(&mut world, &setup, 3000);
    let (least, most) = (taken.iter().min().unwrap(), taken.iter().max().unwrap());
    assert!(100 * (most - least) <= 2 * most, "{taken:?}");
}

/// Sizes of pages, in the order of the kernels.
fn sizes() -> impl Strategy<Value = [u32; 6]> {
    proptest::array::uniform6(prop_oneof![Just(1u32), Just(2), Just(3), Just(6)])
}

proptest! {
    #[test]
    fn long_runs_are_coherent(
        choices in vec(any::<u16>(), 0..1500),
        sizes in sizes(),
        keeps_latest_copy: bool,
    ) {
        let options = Options {
            keeps_latest_copy,
            ..Options::new(6)
        };
        let world = wander(Multi::new(options), &large(sizes), &choices)?;
        prop_assert!(world.scheduler.requests == super::Requests::default());
    }

    /// The world itself is right: the plainest scheduler passes the same checks.
    #[test]
    fn long_runs_with_the_naive_scheduler_are_coherent(
        choices in vec(any::<u16>(), 0..1500),
        sizes in sizes(),
    ) {
        wander(Naive::new(6), &large(sizes), &choices)?;
    }

    #[test]
    fn a_server_that_ends_loses_nothing(
        choices in vec(any::<u16>(), 0..1500),
        after in 0..1500usize,
        sizes in sizes(),
        keeps_latest_copy: bool,
    ) {
        let options = Options {
            keeps_latest_copy,
            ..Options::new(6)
        };
        ends(Multi::new(options), &large(sizes), (&choices, after))?;
    }

    #[test]
    fn lies_harm_nobody_else(lies in lies(), sizes in sizes()) {
        survives_lies(Multi::new(Options::new(6)), &large(sizes), lies)?;
    }
}
