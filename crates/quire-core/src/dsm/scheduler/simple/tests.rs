use std::num::NonZeroU32;

use proptest::collection::vec;
use proptest::prelude::*;

use super::Simple;
use crate::dsm::message::{Access, Client, FromKernel, KernelId, PageNumber, Pages};
use crate::dsm::scheduler::observe::{Observe, State};
use crate::dsm::scheduler::options::Options;
use crate::dsm::scheduler::testing::ending::ends;
use crate::dsm::scheduler::testing::orders::Orders;
use crate::dsm::scheduler::testing::random::{hotspot, large, lies, survives_lies, wander};
use crate::dsm::scheduler::testing::say::{
    allow, back, completed, error, flush, load, pages, provide, read, refused, save, say, unlock,
    write,
};
use crate::dsm::scheduler::testing::world::{Setup, World};
use crate::dsm::scheduler::{Action, Scheduler};

const PAGE: Pages = Pages::one(PageNumber(0));

/// Three kernels that touch two pages, one at a time.
fn small(accesses: [u8; 3]) -> Setup {
    Setup {
        ranges: vec![vec![(0, 1), (1, 1)]; 3],
        pages: 2,
        accesses: accesses.to_vec(),
        threads: 1,
        page_outs: 0,
        crashes: 0,
        ends: 0,
    }
}

const ORDERS: Orders<Simple<u8>> = Orders {
    name: "simple",
    make: Simple::new,
    small,
};

fn alternating() -> Options {
    Options {
        writers_in_a_row: NonZeroU32::new(1),
        ..Options::new(2)
    }
}

fn forgetful() -> Options {
    Options {
        keeps_latest_copy: false,
        ..Options::new(2)
    }
}

#[test]
fn all_orders_are_coherent() {
    ORDERS.check("nothing else", [2, 2, 1], |_| {});
}

#[test]
fn all_orders_with_a_crash_are_coherent() {
    ORDERS.check("a crash", [1, 1, 1], |setup| setup.crashes = 1);
}

#[test]
fn all_orders_with_page_outs_are_coherent() {
    ORDERS.check("page-outs", [2, 1, 1], |setup| setup.page_outs = 1);
}

#[test]
fn all_orders_with_an_end_are_coherent() {
    ORDERS.check("an end", [1, 1, 1], |setup| setup.ends = 1);
}

#[test]
fn all_orders_of_kernels_that_ask_twice_are_coherent() {
    ORDERS.check("two programs", [2, 1, 1], |setup| setup.threads = 2);
}

#[test]
fn all_orders_are_coherent_where_readers_have_their_turn() {
    let one_page = |setup: &mut Setup| setup.ranges.fill(vec![(0, 1)]);
    ORDERS.check_with(alternating(), "readers' turns", [2, 2, 2], one_page);
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
fn a_page_is_loaded_once_and_then_read_by_all() {
    let mut simple = Simple::new(Options::new(1));
    assert_eq!(say(&mut simple, 1, read(PAGE)), [Action::Load(PAGE)]);
    assert_eq!(say(&mut simple, 2, read(PAGE)), []);
    let both = [1, 2].map(|kernel| provide(kernel, PAGE, Access::Read, &[7]));
    assert_eq!(load(&mut simple, PAGE, 7), both);
    let third = provide(3, PAGE, Access::Read, &[7]);
    assert_eq!(say(&mut simple, 3, read(PAGE)), [third]);
    assert_eq!(load(&mut simple, PAGE, 8), []);
}

#[test]
fn a_writer_has_the_page_when_the_last_reader_answered() {
    let mut simple = Simple::new(Options::new(1));
    say(&mut simple, 1, read(PAGE));
    load(&mut simple, PAGE, 7);
    say(&mut simple, 2, read(PAGE));
    say(&mut simple, 3, read(PAGE));
    assert_eq!(
        say(&mut simple, 3, unlock(PAGE)),
        [flush(1, PAGE), flush(2, PAGE)]
    );
    assert_eq!(say(&mut simple, 2, unlock(PAGE)), []);
    assert_eq!(say(&mut simple, 2, completed(PAGE)), []);
    let granted = say(&mut simple, 1, completed(PAGE));
    assert_eq!(granted, [allow(3, PAGE), flush(3, PAGE)]);
    assert_eq!(say(&mut simple, 3, back(PAGE, 8)), [save(PAGE, &[8])]);
    let second = provide(2, PAGE, Access::Write, &[8]);
    assert_eq!(say(&mut simple, 3, completed(PAGE)), [second]);
}

#[test]
fn writers_go_first_or_readers_have_their_turn() {
    for (options, readers_after) in [(Options::new(1), 3), (alternating(), 1)] {
        let mut simple = Simple::new(options);
        say(&mut simple, 0, write(PAGE));
        load(&mut simple, PAGE, 0);
        for writer in 1..=3 {
            say(&mut simple, writer, write(PAGE));
        }
        say(&mut simple, 9, read(PAGE));
        let mut served = 0;
        let reader = loop {
            let actions = say(&mut simple, served, completed(PAGE));
            let reader = provide(9, PAGE, Access::Read, &[0]);
            if actions.contains(&reader) {
                break served;
            }
            served += 1;
        };
        assert_eq!(reader, readers_after);
    }
}

#[test]
fn a_reader_s_turn_does_not_starve_writers() {
    let mut simple = Simple::new(alternating());
    say(&mut simple, 0, write(PAGE));
    load(&mut simple, PAGE, 0);
    say(&mut simple, 1, write(PAGE));
    say(&mut simple, 2, write(PAGE));
    say(&mut simple, 8, read(PAGE));
    say(&mut simple, 0, completed(PAGE));
    say(&mut simple, 9, read(PAGE));
    let turn = say(&mut simple, 1, completed(PAGE));
    let [eight, nine] = [8, 9].map(|kernel| provide(kernel, PAGE, Access::Read, &[0]));
    assert_eq!(turn, [eight, nine, flush(8, PAGE), flush(9, PAGE)]);
    say(&mut simple, 7, read(PAGE));
    say(&mut simple, 8, completed(PAGE));
    let next = say(&mut simple, 9, completed(PAGE));
    assert_eq!(
        next,
        [provide(2, PAGE, Access::Write, &[0]), flush(2, PAGE)]
    );
}

#[test]
fn a_writer_that_is_gone_leaves_the_latest_copy() {
    for (options, recovered) in [(Options::new(1), true), (forgetful(), false)] {
        let mut simple = Simple::new(options);
        say(&mut simple, 1, write(PAGE));
        load(&mut simple, PAGE, 7);
        assert_eq!(say(&mut simple, 2, read(PAGE)), [flush(1, PAGE)]);
        let mut actions = Vec::new();
        simple.gone(Client::Kernel(KernelId(1)), &mut actions);
        let second = provide(2, PAGE, Access::Read, &[7]);
        if recovered {
            assert_eq!(actions, [second]);
        } else {
            assert_eq!(actions, [Action::Load(PAGE)]);
            assert_eq!(load(&mut simple, PAGE, 7), [second]);
        }
        let page = simple.page(PageNumber(0)).unwrap();
        assert_eq!((page.stats.recoveries, simple.stats().recoveries), (1, 1));
        assert_eq!(
            (page.state, page.readers, page.owner),
            (State::Read, 1, None)
        );
    }
}

#[test]
fn contents_that_came_back_before_the_crash_are_the_latest_copy() {
    let mut simple = Simple::new(Options::new(1));
    say(&mut simple, 1, write(PAGE));
    load(&mut simple, PAGE, 7);
    say(&mut simple, 2, write(PAGE));
    say(&mut simple, 1, back(PAGE, 8));
    let mut actions = Vec::new();
    simple.gone(Client::Kernel(KernelId(1)), &mut actions);
    assert_eq!(actions, [provide(2, PAGE, Access::Write, &[8])]);
    assert_eq!(simple.stats().recoveries, 0);
}

#[test]
fn contents_that_cannot_be_had_are_an_error_for_all() {
    let mut simple = Simple::new(Options::new(1));
    say(&mut simple, 1, read(PAGE));
    say(&mut simple, 2, write(PAGE));
    let mut actions = Vec::new();
    simple.loaded(PAGE, None, &mut actions);
    assert_eq!(actions, [error(1, PAGE), error(2, PAGE)]);
    assert_eq!(say(&mut simple, 3, write(PAGE)), [error(3, PAGE)]);
    assert_eq!(say(&mut simple, 3, read(PAGE)), [error(3, PAGE)]);
    assert!(simple.page(PageNumber(0)).unwrap().lost);
}

#[test]
fn a_kernel_that_let_go_of_what_it_unlocks_gets_contents() {
    let mut simple = Simple::new(Options::new(1));
    say(&mut simple, 1, read(PAGE));
    load(&mut simple, PAGE, 7);
    say(&mut simple, 2, read(PAGE));
    assert_eq!(say(&mut simple, 1, unlock(PAGE)), [flush(2, PAGE)]);
    assert_eq!(say(&mut simple, 1, write(PAGE)), []);
    let granted = say(&mut simple, 2, completed(PAGE));
    assert_eq!(granted, [provide(1, PAGE, Access::Write, &[7])]);
}

#[test]
fn nonsense_changes_nothing() {
    let mut simple = Simple::new(Options::new(2));
    say(&mut simple, 1, write(PAGE));
    load(&mut simple, PAGE, 7);
    let before = simple.clone();
    let short = FromKernel::DataWrite {
        pages: PAGE,
        data: Vec::new(),
    };
    let both = pages(0, 2);
    let nonsense = [
        (1, completed(PAGE)),
        (1, back(both, 1)),
        (1, short),
        (2, back(PAGE, 1)),
        (2, completed(PAGE)),
        (2, read(pages(0, 0))),
        (2, read(pages(1, 2))),
        (2, read(pages(u64::MAX, 2))),
        (2, write(pages(0, u32::MAX))),
        (2, unlock(pages(2, 1))),
    ];
    let count = nonsense.len() as u64;
    for (kernel, message) in nonsense {
        refused(&mut simple, kernel, message);
    }
    assert_eq!(before, simple);
    assert_eq!(simple.stats().received.nonsense, count);
    say(&mut simple, 2, write(PAGE));
    say(&mut simple, 1, back(PAGE, 8));
    refused(&mut simple, 1, back(PAGE, 9));
}

#[test]
fn after_its_end_a_kernel_only_answers() {
    let mut simple = Simple::new(Options::new(1));
    say(&mut simple, 1, write(PAGE));
    load(&mut simple, PAGE, 7);
    assert_eq!(say(&mut simple, 2, read(PAGE)), [flush(1, PAGE)]);
    say(&mut simple, 1, back(PAGE, 8));
    let ended = say(&mut simple, 1, FromKernel::Terminate);
    assert_eq!(ended, [provide(2, PAGE, Access::Read, &[8])]);
    assert_eq!(say(&mut simple, 1, completed(PAGE)), []);
    refused(&mut simple, 1, read(PAGE));
    simple.gone(Client::Kernel(KernelId(1)), &mut Vec::new());
    assert_eq!(simple.stats().recoveries, 0);
}

#[test]
fn a_write_hotspot_costs_five_messages_per_fault() {
    for kernels in 2..=16 {
        let setup = Setup {
            ranges: vec![vec![(0, 1)]; kernels],
            accesses: vec![0; kernels],
            ..small([0, 0, 0])
        };
        let mut world = World::new(Simple::new(Options::new(1)), &setup);
        let taken = hotspot(&mut world, &setup, 100 * kernels as u64);
        let (least, most) = (taken.iter().min().unwrap(), taken.iter().max().unwrap());
        assert!(most - least <= 1, "{taken:?}");
        let stats = world.scheduler.stats();
        let faults = stats.faults.total();
        assert_eq!(stats.sent.data_provided, faults);
        println!(
            "{kernels} kernels: {} messages, {faults} faults",
            stats.messages()
        );
        // Nobody had to give the page back for the first fault.
        assert_eq!(stats.messages(), 5 * faults - 3);
        assert_eq!(stats.descheduled, faults - 1);
    }
}

proptest! {
    #[test]
    fn long_runs_are_coherent(
        choices in vec(any::<u16>(), 0..1500),
        limit in 0..3u32,
        keeps_latest_copy: bool,
    ) {
        let options = Options {
            writers_in_a_row: NonZeroU32::new(limit),
            keeps_latest_copy,
            ..Options::new(6)
        };
        let world = wander(Simple::new(options), &large([1; 6]), &choices)?;
        let stats = world.scheduler.stats();
        let of_pages = world.scheduler.touched().map(|page| {
            world.scheduler.page(page).unwrap().stats.faults.total()
        });
        prop_assert_eq!(stats.faults.total(), of_pages.sum::<u64>());
        let counted = stats.received.data_request + stats.received.data_unlock;
        prop_assert_eq!(stats.faults.total(), counted);
    }

    #[test]
    fn a_server_that_ends_loses_nothing(
        choices in vec(any::<u16>(), 0..1500),
        after in 0..1500usize,
        keeps_latest_copy: bool,
    ) {
        let options = Options {
            keeps_latest_copy,
            ..Options::new(6)
        };
        ends(Simple::new(options), &large([1; 6]), (&choices, after))?;
    }

    #[test]
    fn lies_harm_nobody_else(lies in lies()) {
        survives_lies(Simple::new(Options::new(6)), &large([1; 6]), lies)?;
    }
}
