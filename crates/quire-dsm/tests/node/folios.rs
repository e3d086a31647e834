//! Memory that comes in folios: extents of a program's own copy that are reserved, filled,
//! taken from it in parts, and preempted, while threads go on to use the rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quire_core::dsm::message::{PageNumber, Pages};
use quire_core::units::{Bytes, SUPERPAGE};
use quire_dsm::node::Mapping;
use quire_linux::huge_file;

use crate::machines::{Machine, Net, held, is_possible, word};
use crate::{WORDS, pages};

/// Base pages of an extent.
const EXTENT: u64 = SUPERPAGE / 4096;

fn at(mapping: &Mapping, page: u64) -> &AtomicU64 {
    word(mapping, page * WORDS)
}

/// Writes to some pages in order.
fn write(mapping: &Mapping, some: impl Iterator<Item = u64>) {
    for page in some {
        at(mapping, page).store(page + 1, Ordering::SeqCst);
    }
}

/// Whether folios are to be had. It takes the right to mount.
fn are_possible() -> bool {
    let possible = huge_file::create_if_privileged(Bytes(SUPERPAGE)).is_ok();
    if !possible {
        println!("SKIP: no folios for an object without the right to mount");
    }
    is_possible() && possible
}

/// Machines with a mapping each, the first of which has written the first pages in order, and has
/// got folios: whole blocks. Where it has not, as the kernel was slow, others try.
fn some_that_share(machines: usize, count: u64) -> Option<(Vec<Machine>, Vec<Arc<Mapping>>)> {
    const BLOCK: u64 = (512 << 10) / 4096;
    if !are_possible() {
        return None;
    }
    for _ in 0..20 {
        let machines = crate::machines(&Net::new(machines), machines, &pages(count));
        let mappings: Vec<_> = machines.iter().map(Machine::map).collect();
        write(&mappings[0], 0..EXTENT + 8);
        if held(&machines[0]).is_multiple_of(BLOCK) {
            return Some((machines, mappings));
        }
    }
    panic!("nobody gets folios");
}

#[test]
fn who_goes_on_in_order_gets_folios_and_what_is_not_in_use_is_given_back() {
    const PAGES: u64 = 32 * EXTENT;
    let Some((machines, mappings)) = some_that_share(2, PAGES) else {
        return;
    };
    write(&mappings[0], EXTENT + 8..PAGES);
    let stop = AtomicBool::new(false);
    let counted = thread::scope(|scope| {
        // Words of pages that it keeps, beside what others take.
        let mapping = &mappings[0];
        let counter = scope.spawn(|| {
            let mut rounds = 0;
            while !stop.load(Ordering::SeqCst) {
                for page in (0..PAGES).step_by(2) {
                    word(mapping, page * WORDS + 1).fetch_add(1, Ordering::SeqCst);
                }
                rounds += 1;
            }
            rounds
        });
        for page in (1..PAGES).step_by(2) {
            assert_eq!(at(&mappings[1], page).load(Ordering::SeqCst), page + 1);
            at(&mappings[1], page).store(page + 2, Ordering::SeqCst);
        }
        // All that is in use, and what is kept to be filled again.
        let most = PAGES / 2 + 2 * (8 << 20) / 4096 + EXTENT;
        let deadline = Instant::now() + Duration::from_secs(20);
        while held(&machines[0]) > most {
            assert!(Instant::now() < deadline, "{}", held(&machines[0]));
            thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::SeqCst);
        counter.join().unwrap()
    });
    assert!(counted > 0);
    for page in 0..PAGES {
        let there = at(&mappings[0], page).load(Ordering::SeqCst);
        assert_eq!(there, page + 1 + page % 2, "page {page}");
        let count = word(&mappings[0], page * WORDS + 1).load(Ordering::SeqCst);
        assert_eq!(
            count,
            if page % 2 == 0 { counted } else { 0 },
            "page {page}"
        );
    }
}

#[test]
fn pages_of_a_folio_are_filled_again_with_what_they_are_to_hold() {
    const PAGES: u64 = 4 * EXTENT;
    let Some((machines, mappings)) = some_that_share(2, PAGES) else {
        return;
    };
    for round in 1..5 {
        for mapping in &mappings {
            for page in 0..PAGES {
                let before = at(mapping, page).fetch_add(1, Ordering::SeqCst);
                let others = if mapping.range() == mappings[0].range() {
                    0
                } else {
                    1
                };
                let first = if page < EXTENT + 8 { page + 1 } else { 0 };
                assert_eq!(before, first + 2 * (round - 1) + others, "page {page}");
            }
        }
        // What nobody wrote to is zeros, also where something old lay.
        let second = word(&mappings[0], (PAGES - 1) * WORDS + 1);
        assert_eq!(second.load(Ordering::SeqCst), 0);
    }
    // Most of what came to the first machine, after its first time.
    let placed = machines[0].placed();
    assert!(placed > 3 * PAGES / 2, "{placed}");
}

#[test]
fn a_folio_is_taken_from_programs_of_all_kinds_at_a_broken_link() {
    let Some((machines, mappings)) = some_that_share(1, 4 * EXTENT) else {
        return;
    };
    let (machine, own) = (&machines[0], &mappings[0]);
    // With a mapping that counts as another process's, pages go by holes.
    let other = machine.map_as_another();
    assert_eq!(at(&other, EXTENT + 1).load(Ordering::SeqCst), EXTENT + 2);
    machine.with(|cache, port| cache.sync(port)).unwrap();
    let some = Pages {
        first: PageNumber(EXTENT + 2),
        count: 3,
    };
    let evicted = machine.with(move |cache, port| cache.evict(some, port));
    evicted.unwrap();
    assert!(held(machine) < EXTENT + EXTENT / 2, "{}", held(machine));
    for mapping in [own, &other] {
        for page in 0..EXTENT + 8 {
            assert_eq!(at(mapping, page).load(Ordering::SeqCst), page + 1);
        }
    }
    machine
        .with(|cache, port| {
            cache.lost(quire_dsm::node::now(), port)?;
            cache.linked(port)
        })
        .unwrap();
    assert_eq!(held(machine), 0);
    write(own, 2 * EXTENT..4 * EXTENT);
    for page in 2 * EXTENT..4 * EXTENT {
        assert_eq!(at(&other, page).load(Ordering::SeqCst), page + 1);
    }
}

#[test]
fn programs_of_all_kinds_take_from_each_other_what_came_in_folios() {
    const PAGES: u64 = 4 * EXTENT;
    let Some((machines, mappings)) = some_that_share(2, PAGES) else {
        return;
    };
    // With these, pages go by holes.
    let others: Vec<_> = machines.iter().map(Machine::map_as_another).collect();
    for round in 0..3 {
        for (mapping, me) in mappings.iter().zip(0..) {
            for page in 0..PAGES {
                let first = if page < EXTENT + 8 { page + 1 } else { 0 };
                let before = at(mapping, page).fetch_add(1, Ordering::SeqCst);
                assert_eq!(before, first + 2 * round + me, "page {page}");
            }
        }
        // From one page to another, while the neighbours stay.
        for page in (0..PAGES).step_by(7) {
            word(&others[0], page * WORDS + 1).fetch_add(1, Ordering::SeqCst);
        }
        for page in 0..PAGES {
            let count = word(&others[1], page * WORDS + 1).load(Ordering::SeqCst);
            let expected = if page % 7 == 0 { round + 1 } else { 0 };
            assert_eq!(count, expected, "page {page}");
        }
    }
    // What was taken from them is freed, whatever it came in.
    write(&mappings[0], 0..PAGES);
    assert_eq!((held(&machines[0]), held(&machines[1])), (PAGES, 0));
}

#[test]
fn an_object_that_is_smaller_than_a_superpage_gets_no_folio() {
    if !is_possible() {
        return;
    }
    let small = Machine::start(&Net::new(1), 0, &pages(EXTENT - 1));
    write(&small.map(), 0..EXTENT - 1);
    assert_eq!(held(&small), EXTENT - 1);
    // Nor does who goes from page to page in no order.
    let large = Machine::start(&Net::new(1), 0, &pages(8 * EXTENT));
    let mapping = large.map();
    write(&mapping, (0..8 * EXTENT).rev().step_by(5));
    let most = 8 * EXTENT / 5 + 1;
    assert!(held(&large) <= most, "{} of {most}", held(&large));
    let bytes = Bytes(4096 * held(&large));
    assert!(bytes < Bytes(8 * SUPERPAGE / 4));
}
