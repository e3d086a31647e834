//! Two programs that go through an object in turns, over links that break now and then, in order or
//! with pages left out: pages come ahead, many in a message or one, to memory that they have been in
//! before.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use quire_core::units::Bytes;
use quire_dsm::client::{Client, Shared};
use quire_dsm::link::Address;
use quire_dsm::programs::Word;
use quire_dsm::wire::control::{PageSize, SchedulerKind};

use crate::proxy::Proxy;
use crate::served::{BOTH, Served, name, object, open};

const PAGES: u64 = 2048;
const WORDS: usize = 512;

fn client(way: &Proxy, served: &Served, who: &str, page: Bytes) -> Client {
    let address = Address::Tcp(way.address);
    served.client_with(who, |options| {
        options.addresses = address.into();
        options.page_size = PageSize::try_from(page).expect("such pages there are");
    })
}

/// All words of a page hold the number of the round and the page's.
fn value(round: u64, page: u64) -> u64 {
    round * PAGES + page
}

/// All pages in the order of a round: one after the other, or from each to the next so many on, and
/// then those between.
fn walk(round: u64) -> impl Iterator<Item = u64> {
    let step = [1, 7, 16][round as usize % 3];
    (0..step).flat_map(move |first| (first..PAGES).step_by(step as usize))
}

fn words(shared: &Shared, page: u64) -> &[Word] {
    let first = page as usize * WORDS;
    &shared.words()[first..first + WORDS]
}

fn write(shared: &Shared, round: u64) {
    for page in walk(round) {
        for word in words(shared, page) {
            word.store(value(round, page), Ordering::Relaxed);
        }
    }
}

/// Where a link broke meanwhile, some may be of an earlier round, but of the same page.
fn check(shared: &Shared, round: u64, is_whole: bool) {
    for page in walk(round) {
        for word in words(shared, page) {
            let found = word.load(Ordering::Relaxed);
            let is_old = found == 0 || found % PAGES == page && found / PAGES <= round;
            let is_right = found == value(round, page) || !is_whole && is_old;
            assert!(is_right, "page {page}, round {round}: {found}");
        }
    }
}

/// Both write and read all of it, in turns.
fn take_turns(page: Bytes, rounds: u64, breaks: impl Fn(u64) -> bool) {
    let served = Served::start("127.0.0.1:0");
    let Address::Tcp(server) = served.addresses[0] else {
        panic!("another address");
    };
    let ways = [Proxy::start(server), Proxy::start(server)];
    let clients = [
        client(&ways[0], &served, "one", page),
        client(&ways[1], &served, "other", page),
    ];
    let made = object("memory", Bytes(PAGES * 4096), SchedulerKind::Multi);
    clients[0].create(made).expect("it is new");
    let programs = clients.each_ref().map(|client| open(client, "memory"));
    for round in 1..=rounds {
        let me = round as usize % 2;
        let breaks = breaks(round);
        thread::scope(|scope| {
            let way = &ways[(round / 4) as usize % 2];
            scope.spawn(move || {
                for _ in 0..if breaks { 3 } else { 0 } {
                    thread::sleep(Duration::from_millis(7 + round));
                    way.cut();
                }
            });
            write(&programs[me], round);
            check(&programs[1 - me], round, !breaks);
        });
    }
    drop(programs);
    let last = clients[0].open(name("memory"), BOTH).expect("it is there");
    check(&last, rounds, false);
}

#[test]
fn pages_that_come_in_order_hold_what_was_written_though_links_break() {
    take_turns(Bytes(4096), 12, |round| round % 4 == 0);
}

#[test]
fn pages_of_any_size_that_come_in_order_hold_what_was_written() {
    for page in [16 << 10, 64 << 10, 2 << 20] {
        take_turns(Bytes(page), 4, |_| false);
    }
}
