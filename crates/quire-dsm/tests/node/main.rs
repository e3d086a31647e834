//! The cache of an object on real memory: machines in one process and programs in others,
//! with real loads, stores and system calls.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quire_core::dsm::kernel::Failure;
use quire_core::dsm::message;
use quire_core::dsm::message::{Access, PageNumber, Pages, ToKernel};
use quire_core::units::{AddrRange, Bytes, ObjectOffset, SUPERPAGE, VirtAddr};
use quire_dsm::node::{self, Counts, Mapping, MappingError, Part, Shape};
use quire_dsm::wire::{Contents, Pool};
use quire_linux::memory;
use quire_linux::revoker::Term;
use quire_linux::uffd::pass;

use machines::{Machine, Net, held, is_possible, word};

mod folios;
mod ledger;
mod machines;
#[path = "../../../quire-core/src/dsm/kernel/toy.rs"]
mod toy;

const WORDS: u64 = 4096 / 8;

fn pages(count: u64) -> Shape {
    Shape::new(Bytes(count * 4096))
}

fn machines(net: &Arc<Net>, count: usize, shape: &Shape) -> Vec<Machine> {
    let all = 0..count;
    all.map(|number| Machine::start(net, number, shape))
        .collect()
}

#[test]
fn increments_of_all_machines_add_up() {
    if is_possible() {
        add_up(|machine| [machine.map(), machine.map()]);
        add_up(|machine| [machine.map_as_another(), machine.map_as_another()]);
        add_up(|machine| [machine.map_as_another(), machine.map()]);
    }
}

/// However large pages are, some are asked for ahead, and large ones one by one.
#[test]
fn large_pages_are_asked_for_ahead_one_by_one() {
    let ahead = |page: u64, own_page: u64| {
        let shape = Shape {
            page: Bytes(page << 10),
            own_page: Bytes(own_page << 10),
            ..Shape::new(Bytes::mib(64))
        };
        let settings = shape.settings();
        (settings.ahead, settings.piece)
    };
    assert_eq!(ahead(4, 4), (128, 32));
    assert_eq!(ahead(64, 64), (8, 2));
    assert_eq!(ahead(2048, 2048), (4, 1));
    assert_eq!(ahead(4, 2048), (4 * 512, 32));
    let none = Shape {
        ahead: Bytes::ZERO,
        ..Shape::new(Bytes::mib(64))
    };
    assert_eq!(none.settings().ahead, 0);
}

/// Two programs on each machine increment one word.
fn add_up(map: impl Fn(&Machine) -> [Arc<Mapping>; 2]) {
    const EACH: u64 = 3_000;
    let net = Net::new(3);
    let machines = machines(&net, 3, &pages(1));
    let mappings: Vec<_> = machines.iter().flat_map(map).collect();
    thread::scope(|scope| {
        for mapping in &mappings {
            scope.spawn(|| {
                for _ in 0..EACH {
                    word(mapping, 7).fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    for mapping in &mappings {
        assert_eq!(word(mapping, 7).load(Ordering::SeqCst), 6 * EACH);
        assert_eq!(word(mapping, 8).load(Ordering::SeqCst), 0);
    }
    let messages = net.messages.load(Ordering::Relaxed);
    assert!(messages > 10, "nothing was shared: {messages} messages");
}

#[test]
fn readers_see_what_is_complete_and_nothing_old() {
    if !is_possible() {
        return;
    }
    const ROUNDS: u64 = 300;
    let net = Net::new(3);
    let machines = machines(&net, 3, &pages(2));
    let mappings: Vec<_> = machines.iter().map(Machine::map).collect();
    let complete = AtomicU64::new(0);
    // Words of both pages, in turn.
    let places: Vec<u64> = (0..40).map(|n| n % 2 * WORDS + n / 2 * 25).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                for place in &places {
                    word(&mappings[0], *place).store(round, Ordering::SeqCst);
                }
                complete.store(round, Ordering::SeqCst);
                thread::sleep(Duration::from_micros(100));
            }
        });
        for mapping in &mappings[1..] {
            scope.spawn(|| {
                let mut done = 0;
                while done < ROUNDS {
                    let mut last = complete.load(Ordering::SeqCst).max(done);
                    // Against the order in which they are written, what is read later is
                    // not older. The one that is written last tells what is done.
                    for (at, place) in places.iter().rev().enumerate() {
                        let value = word(mapping, *place).load(Ordering::SeqCst);
                        assert!(value >= last, "{value} after {last}");
                        last = value;
                        if at == 0 {
                            done = value;
                        }
                    }
                }
            });
        }
    });
}

#[test]
fn random_traffic_on_many_pages_adds_up() {
    if !is_possible() {
        return;
    }
    let shapes = [
        pages(64),
        Shape {
            own_page: Bytes(16 << 10),
            ..pages(64)
        },
        Shape {
            page: Bytes(16 << 10),
            ..pages(64)
        },
        Shape {
            page: Bytes(64 << 10),
            own_page: Bytes(128 << 10),
            ..pages(64)
        },
    ];
    for (number, shape) in shapes.into_iter().enumerate() {
        let net = Net::new(3);
        let machines = machines(&net, 3, &shape);
        let map = match number % 2 {
            0 => Machine::map,
            _ => Machine::map_as_another,
        };
        let mappings: Vec<_> = machines.iter().map(map).collect();
        let traffic = |seed: u64| {
            let mapping = &mappings[seed as usize];
            let mut random = seed + 1;
            let mut added = 0;
            for _ in 0..1_500 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let (page, place) = (random >> 58, (random >> 40) % WORDS);
                let word = word(mapping, page * WORDS + place);
                if random >> 32 & 3 == 0 {
                    word.fetch_add(1, Ordering::SeqCst);
                    added += 1;
                } else {
                    word.load(Ordering::SeqCst);
                }
            }
            added
        };
        let added: u64 = thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|n| scope.spawn(move || traffic(n))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        for mapping in &mappings {
            let all = (0..64 * WORDS).map(|n| word(mapping, n).load(Ordering::SeqCst));
            assert_eq!(all.sum::<u64>(), added, "{shape:?}");
        }
    }
}

#[test]
fn one_object_is_shared_by_machines_of_different_pages() {
    if !is_possible() {
        return;
    }
    let net = Net::new(4);
    let sizes = [4 << 10, 16 << 10, 64 << 10, 2 << 20].map(Bytes);
    let machines = sizes.iter().enumerate().map(|(number, own_page)| {
        let shape = Shape {
            own_page: *own_page,
            ..pages(1024)
        };
        Machine::start(&net, number, &shape)
    });
    let machines: Vec<_> = machines.collect();
    let mappings: Vec<_> = machines.iter().map(Machine::map).collect();
    thread::scope(|scope| {
        for mapping in &mappings {
            scope.spawn(|| {
                for n in 0..200u64 {
                    let page = n * 37 % 1024;
                    word(mapping, page * WORDS + n).fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    for n in 0..200 {
        let at = n * 37 % 1024 * WORDS + n;
        assert_eq!(word(&mappings[0], at).load(Ordering::SeqCst), 4);
    }
}

#[test]
fn who_goes_through_pages_in_order_faults_less_often() {
    if !is_possible() {
        return;
    }
    let net = Net::new(2);
    let machines = machines(&net, 2, &pages(512));
    let mappings: Vec<_> = machines.iter().map(Machine::map).collect();
    let few = |before: u64| {
        let messages = net.messages.load(Ordering::SeqCst) - before;
        assert!(messages < 50, "{messages} messages for 512 pages");
        net.messages.load(Ordering::SeqCst)
    };
    let before = net.messages.load(Ordering::SeqCst);
    for page in 0..512 {
        word(&mappings[0], page * WORDS).store(page + 1, Ordering::SeqCst);
    }
    few(before);
    machines[0].with(|cache, port| cache.sync(port)).unwrap();
    let mut before = net.messages.load(Ordering::SeqCst);
    for add in [0, 1] {
        for page in 0..512 {
            let word = word(&mappings[1], page * WORDS);
            assert_eq!(word.load(Ordering::SeqCst), page + 1);
            if add == 1 {
                word.store(page + 2, Ordering::SeqCst);
            }
        }
        before = few(before);
    }
}

#[test]
fn what_comes_together_goes_around_what_is_in_its_way() {
    if !is_possible() {
        return;
    }
    let net = Net::new(2);
    let machines = machines(&net, 2, &pages(64));
    let mappings: Vec<_> = machines.iter().map(Machine::map).collect();
    for page in 0..64 {
        word(&mappings[0], page * WORDS).store(page + 1, Ordering::SeqCst);
    }
    machines[0].with(|cache, port| cache.sync(port)).unwrap();
    // A program writes to the file of its machine, and has unmapped a page.
    for page in [20, 21] {
        rustix::io::pwrite(machines[1].file(), &[0xFF; 4096], page * 4096).unwrap();
    }
    let gap = AddrRange::new(mappings[1].range().start + Bytes(30 * 4096), Bytes(4096));
    // SAFETY: nobody touches that page.
    unsafe { memory::unmap(gap).unwrap() };
    for page in (0..64).filter(|page| *page != 30) {
        let found = word(&mappings[1], page * WORDS).load(Ordering::SeqCst);
        assert_eq!(found, page + 1, "page {page}");
    }
    let messages = net.messages.load(Ordering::SeqCst);
    assert!(messages < 30, "{messages} messages: nothing came together");
}

/// Who would make a superpage of it, as libquire does with shared memory that is full, would
/// take all pages from the mapping.
#[test]
fn no_superpage_is_made_of_an_object() {
    if !is_possible() {
        return;
    }
    let net = Net::new(1);
    let machine = Machine::start(&net, 0, &pages(512));
    let at = memory::reserve_space(Bytes(SUPERPAGE), 0).unwrap();
    let range = AddrRange::new(at, Bytes(SUPERPAGE));
    // SAFETY: it was reserved for this.
    unsafe { memory::unmap(range).unwrap() };
    let mapping = Mapping::new(machine.file(), machine.part(), Some(at), true).unwrap();
    let uffd = mapping.uffd().try_clone_to_owned().unwrap();
    machine.add(uffd, at, machine.part());
    for page in 0..512 {
        word(&mapping, page * WORDS).store(1, Ordering::SeqCst);
    }
    // SAFETY: it changes no contents.
    let collapsed = unsafe { memory::advise_raw(range, libc::MADV_COLLAPSE) };
    assert!(collapsed.is_err());
    let before = machine.with(|cache, _| cache.counts());
    for page in 0..512 {
        assert_eq!(word(&mapping, page * WORDS).load(Ordering::SeqCst), 1);
    }
    assert_eq!(machine.with(|cache, _| cache.counts()), before);
}

#[test]
fn a_fault_is_one_message_and_one_answer() {
    if !is_possible() {
        return;
    }
    let net = Net::new(1);
    let shape = Shape {
        ahead: Bytes(0),
        ..pages(300)
    };
    let machine = Machine::start(&net, 0, &shape);
    let mapping = machine.map();
    for page in 0..100 {
        word(&mapping, page * WORDS).store(1, Ordering::SeqCst);
        word(&mapping, (100 + page) * WORDS).load(Ordering::SeqCst);
    }
    for page in 0..100 {
        word(&mapping, (100 + page) * WORDS).store(1, Ordering::SeqCst);
    }
    let counts = machine.with(|cache, _| cache.counts());
    let expected = Counts {
        faults: 300,
        sent: 300,
        heard: 300,
        filled: 200,
        allowed: 100,
        ..Counts::default()
    };
    assert_eq!(counts, expected);
    machine.with(|cache, port| cache.sync(port)).unwrap();
    let counts = machine.with(|cache, _| cache.counts());
    let (sent, given_back) = (301, 200);
    let expected = Counts {
        sent,
        given_back,
        ..expected
    };
    assert_eq!(counts, expected);
}

/// Without, it would be 128 pages at most.
#[test]
fn who_goes_a_long_way_for_pages_is_given_more_of_them_ahead() {
    if !is_possible() {
        return;
    }
    let net = Net::new(1);
    net.way.store(3_000, Ordering::Relaxed);
    let machine = Machine::start(&net, 0, &pages(2000));
    let mapping = machine.map();
    for page in 0..400 {
        assert_eq!(word(&mapping, page * WORDS).load(Ordering::SeqCst), 0);
    }
    let ahead = machine.with(|cache, _| cache.holds(PageNumber(800)));
    assert_eq!(ahead, Some(Access::Read));
}

#[test]
fn who_leaves_pages_out_is_given_those_that_it_does_not() {
    const STEP: u64 = 9;
    if !is_possible() {
        return;
    }
    let net = Net::new(1);
    let machine = Machine::start(&net, 0, &pages(2000));
    let mapping = machine.map();
    for page in 0..20 {
        let word = word(&mapping, page * STEP * WORDS);
        assert_eq!(word.load(Ordering::SeqCst), 0);
    }
    // Three faults, then windows of 1, 4, 16 and 64; the last one is asked for by page 16.
    let last = (2 + 1 + 4 + 16 + 64) * STEP;
    let holds = |page| machine.with(move |cache, _| cache.holds(PageNumber(page)));
    let begun = Instant::now();
    while holds(last).is_none() {
        assert!(begun.elapsed() < Duration::from_secs(10), "it never comes");
        thread::yield_now();
    }
    let held = (0..2000).filter(|page| holds(*page).is_some());
    assert!(held.eq((0..=last).step_by(STEP as usize)));
}

/// `write(2)` of memory into a pipe and `read(2)` from it into other memory.
fn pipe_through(from: &Mapping, to: &Mapping, bytes: usize) -> io::Result<()> {
    let (reader, writer) = rustix::pipe::pipe()?;
    let check = |done: isize| match usize::try_from(done) {
        Ok(done) => {
            assert_eq!(done, bytes);
            Ok(())
        }
        Err(_) => Err(io::Error::last_os_error()),
    };
    let at = from.range().start.as_ptr().cast();
    // SAFETY: the kernel reads so many bytes of the mapping.
    check(unsafe { libc::write(writer.as_raw_fd(), at, bytes) })?;
    let at = to.range().start.as_ptr().cast();
    // SAFETY: the kernel writes so many bytes of the mapping.
    check(unsafe { libc::read(reader.as_raw_fd(), at, bytes) })
}

#[test]
fn system_calls_work_on_memory_that_is_not_here_yet() {
    if !is_possible() {
        return;
    }
    let net = Net::new(2);
    let machines = machines(&net, 2, &pages(16));
    let mappings: Vec<_> = machines.iter().map(Machine::map).collect();
    for place in 0..8 * WORDS {
        word(&mappings[0], place).store(place + 1, Ordering::SeqCst);
    }
    let later = Part {
        start: ObjectOffset(8 * 4096),
        len: Bytes(8 * 4096),
    };
    let to = machines[0].map_part(later);
    // The other machine has nothing of what is written out; this one, where it is read in,
    // has nothing of that.
    pipe_through(&mappings[1], &to, 8 * 4096).unwrap();
    for place in 0..8 * WORDS {
        let value = word(&mappings[1], 8 * WORDS + place).load(Ordering::SeqCst);
        assert_eq!(value, place + 1);
    }
}

/// A read by a system call, which gets an error where a program gets a signal.
fn probe(mapping: &Mapping, page: u64) -> io::Result<u8> {
    let (reader, writer) = rustix::pipe::pipe()?;
    let at = mapping.range().start + Bytes(page * 4096);
    // SAFETY: the kernel reads one byte of the mapping.
    if unsafe { libc::write(writer.as_raw_fd(), at.as_ptr().cast(), 1) } != 1 {
        return Err(io::Error::last_os_error());
    }
    let mut byte = [0];
    rustix::io::read(&reader, &mut byte)?;
    Ok(byte[0])
}

fn is_fault(result: &io::Result<u8>) -> bool {
    let error = result.as_ref().err();
    error.and_then(io::Error::raw_os_error) == Some(libc::EFAULT)
}

#[test]
fn what_is_written_back_is_there_and_comes_again() {
    if !is_possible() {
        return;
    }
    let net = Net::new(1);
    let machine = Machine::start(&net, 0, &pages(4));
    let mapping = machine.map();
    word(&mapping, WORDS).store(5, Ordering::SeqCst);
    machine.with(|cache, port| cache.sync(port)).unwrap();
    assert_eq!(net.content(1).unwrap()[0], 5);
    assert_eq!(word(&mapping, WORDS).load(Ordering::SeqCst), 5);
    let all = Pages {
        first: PageNumber(0),
        count: 4,
    };
    machine
        .with(move |cache, port| cache.evict(all, port))
        .unwrap();
    word(&mapping, WORDS).fetch_add(1, Ordering::SeqCst);
    machine.with(|cache, port| cache.terminate(port)).unwrap();
    assert_eq!(net.content(1).unwrap()[0], 6);
    assert!(is_fault(&probe(&mapping, 1)));
}

#[test]
fn nothing_is_lost_that_is_written_while_a_page_is_taken_away() {
    if !is_possible() {
        return;
    }
    for map in [Machine::map, Machine::map_as_another] {
        let net = Net::new(1);
        let machine = Machine::start(&net, 0, &pages(1));
        let mappings = [map(&machine), map(&machine)];
        let stop = AtomicBool::new(false);
        let write = |mapping: &Mapping| {
            let mut own = 0;
            while !stop.load(Ordering::SeqCst) {
                word(mapping, 3).fetch_add(1, Ordering::SeqCst);
                own += 1;
            }
            own
        };
        let write = &write;
        let written: u64 = thread::scope(|scope| {
            let writers = mappings.each_ref();
            let writers = writers.map(|mapping| scope.spawn(move || write(mapping)));
            machine.with(|cache, port| {
                for _ in 0..400 {
                    cache.sync(port).unwrap();
                    while cache.holds(PageNumber(0)).is_none() {
                        cache.turn(node::now(), port).unwrap();
                    }
                }
            });
            stop.store(true, Ordering::SeqCst);
            writers.map(|writer| writer.join().unwrap()).iter().sum()
        });
        assert!(written > 1_000);
        assert_eq!(word(&mappings[0], 3).load(Ordering::SeqCst), written);
    }
}

#[test]
fn a_broken_link_reverts_to_what_the_server_has() {
    if !is_possible() {
        return;
    }
    let net = Net::new(2);
    let machines = machines(&net, 2, &pages(4));
    let mappings: Vec<_> = machines.iter().map(Machine::map).collect();
    word(&mappings[0], 0).store(1, Ordering::SeqCst);
    machines[0].with(|cache, port| cache.sync(port)).unwrap();
    word(&mappings[0], 0).store(2, Ordering::SeqCst);
    let (lost, losses) = std::sync::mpsc::channel();
    machines[0].with(move |cache, _| {
        cache.on_failure(Box::new(move |pages, why| lost.send((pages, why)).unwrap()));
    });
    machines[0]
        .with(|cache, port| cache.lost(node::now(), port))
        .unwrap();
    let page = Pages::one(PageNumber(0));
    assert_eq!(losses.recv().unwrap(), (Some(page), Failure::Unreachable));
    let reader = thread::scope(|scope| {
        let reader = scope.spawn(|| word(&mappings[0], 0).fetch_add(10, Ordering::SeqCst));
        thread::sleep(Duration::from_millis(50));
        assert!(!reader.is_finished(), "it waits for a new link");
        net.gone(0);
        assert_eq!(word(&mappings[1], 0).load(Ordering::SeqCst), 1);
        machines[0].with(|cache, port| cache.linked(port)).unwrap();
        reader.join().unwrap()
    });
    assert_eq!(reader, 1);
    assert_eq!(word(&mappings[1], 0).load(Ordering::SeqCst), 11);
}

#[test]
fn a_lease_that_ends_takes_everything_away() {
    if !is_possible() {
        return;
    }
    let net = Net::new(1);
    let shape = pages(4);
    let mut settings = shape.settings();
    settings.reconnect = Duration::from_millis(100);
    let machine = Machine::start_with(&net, 0, &shape, &settings);
    let mapping = machine.map();
    word(&mapping, 0).store(1, Ordering::SeqCst);
    let end = node::now() + Duration::from_millis(100);
    let lease = machine.with(move |cache, port| cache.lease(node::now(), end, port));
    lease.unwrap();
    assert_eq!(word(&mapping, 0).load(Ordering::SeqCst), 1);
    // It waits for a new link, in vain.
    let start = Instant::now();
    while !is_fault(&probe(&mapping, 0)) {
        assert!(start.elapsed() < Duration::from_secs(5));
    }
    assert!(node::now() >= end + Duration::from_millis(100));
    let ended = machine.with(|cache, _| (cache.is_linked(), cache.ended()));
    assert_eq!(ended, (false, Some(Failure::Unreachable)));
}

/// Whoever runs the cache may have been stopped with an answer in its hands.
#[test]
fn nothing_is_shown_when_time_is_over_and_who_waits_gets_it_when_there_is_more() {
    if !is_possible() {
        return;
    }
    let net = Net::new(1);
    let machine = Machine::start(&net, 0, &pages(64));
    let (mapping, other) = (machine.map(), machine.map());
    let term = Arc::new(Term::new());
    let of_cache = Arc::clone(&term);
    machine.with(move |cache, _| cache.show_until(&of_cache));
    word(&mapping, 0).store(1, Ordering::SeqCst);
    assert_eq!(word(&mapping, WORDS).load(Ordering::SeqCst), 0);
    let page_of = |mapping: &Mapping, page| {
        let first = word(mapping, page * WORDS);
        first.fetch_add(1, Ordering::SeqCst)
    };
    let is_over = |over: bool| {
        term.set_end(over.then(|| Duration::from_nanos(1)));
        machine.with(|_, _| {});
    };
    let waits = || {
        let all = [
            // What the machine has is shown in another mapping, may be written to, and comes.
            (&other, 0),
            (&mapping, 1),
            (&mapping, 2),
        ];
        is_over(true);
        thread::scope(|scope| {
            let all = all.map(|(mapping, page)| scope.spawn(move || page_of(mapping, page)));
            thread::sleep(Duration::from_millis(100));
            let waiting = all.each_ref().map(|one| !one.is_finished());
            is_over(false);
            (waiting, all.map(|one| one.join().unwrap()))
        })
    };
    assert_eq!(waits(), ([true; 3], [1, 0, 0]));
    // The link is lost meanwhile, which whoever runs the cache would say.
    is_over(true);
    thread::scope(|scope| {
        let touches = scope.spawn(|| page_of(&mapping, 40));
        thread::sleep(Duration::from_millis(50));
        machine
            .with(|cache, port| cache.lost(node::now(), port))
            .unwrap();
        is_over(false);
        thread::sleep(Duration::from_millis(50));
        assert!(!touches.is_finished(), "it waits for a new link");
        net.gone(0);
        machine.with(|cache, port| cache.linked(port)).unwrap();
        assert_eq!(touches.join().unwrap(), 0);
    });
}

#[test]
fn a_fault_that_nobody_answers_fails_in_time() {
    if !is_possible() {
        return;
    }
    let net = Net::new(1);
    let shape = pages(4);
    let mut settings = shape.settings();
    settings.patience = Duration::from_millis(100);
    let machine = Machine::start_with(&net, 0, &shape, &settings);
    let mapping = machine.map();
    let other = machine.map();
    word(&mapping, 0).store(1, Ordering::SeqCst);
    net.mute.store(true, Ordering::SeqCst);
    let start = Instant::now();
    assert!(is_fault(&probe(&mapping, 1)));
    let took = start.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    net.mute.store(false, Ordering::SeqCst);
    // That page for good, in all mappings; the others are fine.
    assert!(is_fault(&probe(&mapping, 1)));
    assert!(is_fault(&probe(&other, 1)));
    assert_eq!(probe(&other, 0).unwrap(), 1);
    assert_eq!(probe(&other, 2).unwrap(), 0);
}

#[test]
fn a_page_that_is_lost_fails_although_it_was_protected_before() {
    if !is_possible() {
        return;
    }
    let net = Net::new(1);
    let machine = Machine::start(&net, 0, &pages(4));
    let mapping = machine.map();
    assert_eq!(probe(&mapping, 1).unwrap(), 0);
    let pages = Pages::one(PageNumber(1));
    net.tell(0, ToKernel::DataError { pages });
    while machine.with(|cache, _| cache.holds(PageNumber(1)).is_some()) {}
    assert!(is_fault(&probe(&mapping, 1)));
    assert_eq!(probe(&mapping, 0).unwrap(), 0);
}

#[test]
fn nonsense_is_an_error_and_does_no_harm() {
    if !is_possible() {
        return;
    }
    let net = Net::new(1);
    let machine = Machine::start(&net, 0, &pages(4));
    let mapping = machine.map();
    word(&mapping, 0).store(1, Ordering::SeqCst);
    let short = Contents::from(vec![0; 5]);
    let message = ToKernel::DataProvided {
        pages: Pages::one(PageNumber(1)),
        data: vec![Some(short)],
        access: message::Access::Read,
    };
    let heard = machine.with(move |cache, port| cache.hear(node::now(), message, port));
    assert!(heard.is_err());
    assert_eq!(probe(&mapping, 0).unwrap(), 1);
    assert_eq!(probe(&mapping, 1).unwrap(), 0);
}

#[test]
fn a_mapping_needs_whole_pages_and_free_addresses() {
    if !is_possible() {
        return;
    }
    let net = Net::new(1);
    let machine = Machine::start(&net, 0, &pages(4));
    let part = |start, len| Part {
        start: ObjectOffset(start),
        len: Bytes(len),
    };
    for (start, len) in [(0, 0), (1, 4096), (0, 5000)] {
        let refused = Mapping::new(machine.file(), part(start, len), None, true);
        assert_eq!(refused.err(), Some(MappingError::Unaligned));
    }
    let mapping = machine.map();
    let at = Some(mapping.range().start);
    let taken = Mapping::new(machine.file(), part(0, 4096), at, true);
    assert!(matches!(taken.err(), Some(MappingError::Addresses(_))));
    drop(mapping);
    let again = Mapping::new(machine.file(), part(0, 4096), at, false).unwrap();
    assert_eq!(Some(again.range().start), at);
}

#[test]
fn pages_that_leave_and_come_back_are_freed_in_between_or_used_again() {
    if !is_possible() {
        return;
    }
    const PAGES: u64 = 2_000;
    let net = Net::new(2);
    let machines = machines(&net, 2, &pages(PAGES));
    let mappings: Vec<_> = machines.iter().map(Machine::map).collect();
    for round in 0..6 {
        for page in 0..PAGES {
            let word = word(
                &mappings[(page + round) as usize % 2],
                page * WORDS + page % WORDS,
            );
            assert_eq!(word.fetch_add(1, Ordering::SeqCst), round);
        }
    }
    // Much less than all of the object lies in a file whose machine holds half of it.
    let deadline = Instant::now() + Duration::from_secs(5);
    while machines
        .iter()
        .any(|machine| held(machine) > PAGES / 2 + 512)
    {
        assert!(
            Instant::now() < deadline,
            "{:?}",
            machines.iter().map(held).collect::<Vec<_>>()
        );
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_mapping_fails_or_goes_without_the_others() {
    if !is_possible() {
        return;
    }
    let net = Net::new(1);
    let machine = Machine::start(&net, 0, &pages(4));
    let mapping = machine.map();
    let other = machine.map();
    word(&mapping, 0).store(1, Ordering::SeqCst);
    mapping.fail().unwrap();
    assert!(is_fault(&probe(&mapping, 0)));
    assert!(is_fault(&probe(&mapping, 1)));
    assert_eq!(probe(&other, 0).unwrap(), 1);
    word(&other, WORDS).store(2, Ordering::SeqCst);
    // A hold outlives its mapping and leaves alone what is there now.
    let third = machine.map();
    let hold = third.hold();
    let at = third.range().start;
    drop(third);
    let again = Mapping::new(machine.file(), machine.part(), Some(at), true).unwrap();
    assert!(hold.pause());
    hold.fail().unwrap();
    let uffd = again.uffd().try_clone_to_owned().unwrap();
    machine.add(uffd, at, machine.part());
    assert_eq!(probe(&again, 1).unwrap(), 2);
    machine.with(|cache, port| cache.sync(port)).unwrap();
    assert_eq!(net.content(1).unwrap()[0], 2);
}

/// A program in a process of its own, which plays a part of [`child`].
struct Program {
    child: Child,
    socket: UnixStream,
}

impl Program {
    fn start(role: &str) -> Program {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["child", "--exact", "--test-threads=1"]);
        command.env("NODE_ROLE", role).env("NODE_SOCKET", &path);
        command.stdout(Stdio::null());
        let child = command.spawn().unwrap();
        let (socket, _) = listener.accept().unwrap();
        Program { child, socket }
    }

    /// Starts a program that maps a machine's object.
    fn on(machine: &Machine, role: &str) -> Program {
        let program = Program::start(role);
        let socket = program.socket.as_fd();
        pass::send(socket, b"file", &[machine.file()]).unwrap();
        let (base, mut passed) = receive_word(socket);
        machine.add(passed.remove(0), VirtAddr(base), machine.part());
        program
    }

    fn wait(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

/// All words of an object of a machine of its own have this value.
fn filled_with(value: u64, pages: u64) -> Machine {
    let machine = Machine::start(&Net::new(1), 0, &self::pages(pages));
    let mapping = machine.map();
    for number in 0..pages * WORDS {
        word(&mapping, number).store(value, Ordering::Relaxed);
    }
    machine
}

#[test]
fn another_file_takes_the_place_of_a_mapping_while_threads_touch_it() {
    if !is_possible() {
        return;
    }
    const PAGES: u64 = 16;
    for _ in 0..10 {
        let (old, new) = (filled_with(1, PAGES), filled_with(2, PAGES));
        let mapping = old.map_as_another();
        let [is_replaced, ends] = [AtomicBool::new(false), AtomicBool::new(false)];
        thread::scope(|scope| {
            let touch = |from: u64| {
                let mut numbers = (from..).step_by(77).map(|n| n % (PAGES * WORDS));
                while !ends.load(Ordering::SeqCst) {
                    let is_old = !is_replaced.load(Ordering::SeqCst);
                    let number = numbers.next().expect("there is no end of them");
                    let seen = word(&mapping, number).load(Ordering::SeqCst);
                    assert!(seen == 2 || is_old && seen == 1, "{seen} at {number}");
                }
            };
            let touching = [1, 2, 3].map(|from| scope.spawn(move || touch(from)));
            thread::sleep(Duration::from_millis(5));
            let hold = mapping.hold().replace(new.file()).unwrap().unwrap();
            is_replaced.store(true, Ordering::SeqCst);
            let uffd = hold.uffd().try_clone_to_owned().unwrap();
            new.add(uffd, mapping.range().start, mapping.part());
            // All have touched it: they do not wait for whoever answered before.
            thread::sleep(Duration::from_millis(5));
            ends.store(true, Ordering::SeqCst);
            for one in touching {
                one.join().unwrap();
            }
        });
        for number in 0..PAGES * WORDS {
            assert_eq!(word(&mapping, number).load(Ordering::SeqCst), 2);
        }
        drop(mapping);
    }
}

#[test]
fn what_a_program_unmapped_or_protected_stays_so_when_another_file_comes() {
    if !is_possible() {
        return;
    }
    let (old, new) = (filled_with(1, 8), filled_with(2, 8));
    let mapping = old.map_as_another();
    let page = |number: u64| mapping.range().start + Bytes(number * 4096);
    // SAFETY: nobody uses these pages but this test, which knows what is there.
    unsafe {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
        rustix::mm::mprotect(page(1).as_ptr().cast(), 4096, MprotectFlags::READ).unwrap();
        let (read, fixed) = (ProtFlags::READ, MapFlags::PRIVATE | MapFlags::FIXED);
        rustix::mm::mmap_anonymous(page(3).as_ptr().cast(), 4096, read, fixed).unwrap();
        rustix::mm::munmap(page(5).as_ptr().cast(), 2 * 4096).unwrap();
    }
    let hold = mapping.hold().replace(new.file()).unwrap().unwrap();
    let uffd = hold.uffd().try_clone_to_owned().unwrap();
    new.add(uffd, mapping.range().start, mapping.part());
    for (number, value) in [(0, 2), (1, 2), (2, 2), (3, 0), (4, 2), (7, 2)] {
        let seen = word(&mapping, number * WORDS).load(Ordering::SeqCst);
        assert_eq!(seen, value, "page {number}");
    }
    // SAFETY: a range whose mappings the kernel only looks for.
    let is_mapped = |number| unsafe {
        let (at, none) = (page(number).as_ptr().cast(), rustix::mm::MsyncFlags::ASYNC);
        rustix::mm::msync(at, 4096, none).is_ok()
    };
    assert_eq!([4, 5, 6, 7].map(is_mapped), [true, false, false, true]);
    assert!(is_fault(&poke(&mapping, 1, 7)), "it may only be read");
    assert_eq!(poke(&mapping, 2, 7).unwrap(), probe(&mapping, 2).unwrap());
}

/// Who changes what a page allows, and holds the addresses for it, finds it so afterwards.
#[test]
fn what_is_protected_while_another_file_comes_stays_so() {
    if !is_possible() {
        return;
    }
    use rustix::mm::MprotectFlags as Allowed;
    const PAGES: u64 = 8;
    for _ in 0..10 {
        let (old, new) = (filled_with(1, PAGES), filled_with(2, PAGES));
        let mapping = old.map_as_another();
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            let change = |page: u64| {
                let at = mapping.range().start + Bytes(page * 4096);
                let addresses = mapping.addresses();
                while !ends.load(Ordering::SeqCst) {
                    for allowed in [Allowed::READ, Allowed::READ | Allowed::WRITE] {
                        let steady = addresses.steady();
                        // SAFETY: nobody uses this page but this thread, by system calls.
                        unsafe { rustix::mm::mprotect(at.as_ptr().cast(), 4096, allowed).unwrap() };
                        drop(steady);
                        let is_writable = !is_fault(&poke(&mapping, page, 7));
                        assert_eq!(is_writable, allowed.contains(Allowed::WRITE), "page {page}");
                    }
                }
            };
            let changing: [_; PAGES as usize] =
                std::array::from_fn(|page| scope.spawn(move || change(page as u64)));
            thread::sleep(Duration::from_millis(5));
            let hold = mapping.hold().replace(new.file()).unwrap().unwrap();
            let uffd = hold.uffd().try_clone_to_owned().unwrap();
            new.add(uffd, mapping.range().start, mapping.part());
            thread::sleep(Duration::from_millis(5));
            ends.store(true, Ordering::SeqCst);
            for one in changing {
                one.join().unwrap();
            }
        });
        drop(mapping);
    }
}

/// A write by a system call.
fn poke(mapping: &Mapping, page: u64, value: u8) -> io::Result<u8> {
    let (reader, writer) = rustix::pipe::pipe()?;
    rustix::io::write(&writer, &[value])?;
    let at = mapping.range().start + Bytes(page * 4096);
    // SAFETY: the kernel writes one byte of the mapping.
    if unsafe { libc::read(reader.as_raw_fd(), at.as_ptr().cast(), 1) } != 1 {
        return Err(io::Error::last_os_error());
    }
    Ok(value)
}

fn receive_word(socket: BorrowedFd<'_>) -> (u64, Vec<OwnedFd>) {
    let mut bytes = [0; 8];
    let (length, passed) = pass::receive(socket, &mut bytes).unwrap();
    assert_eq!(length, 8);
    (u64::from_le_bytes(bytes), passed)
}

fn send_word(socket: BorrowedFd<'_>, word: u64, fds: &[BorrowedFd<'_>]) {
    pass::send(socket, &word.to_le_bytes(), fds).unwrap();
}

/// What the other processes of these tests do.
#[test]
fn child() {
    let (Ok(role), Ok(path)) = (std::env::var("NODE_ROLE"), std::env::var("NODE_SOCKET")) else {
        return;
    };
    let socket = UnixStream::connect(path).unwrap();
    let socket = socket.as_fd();
    if role == "serve" {
        serve(socket);
        return;
    }
    let mut text = [0; 8];
    let (_, mut passed) = pass::receive(socket, &mut text).unwrap();
    let part = Part {
        start: ObjectOffset(0),
        len: Bytes(4 * 4096),
    };
    if role == "add locked" {
        rustix::mm::mlockall(rustix::mm::MlockAllFlags::FUTURE).unwrap();
    }
    let mapping = Mapping::new(passed.remove(0).as_fd(), part, None, true).unwrap();
    send_word(socket, mapping.range().start.0, &[mapping.uffd()]);
    match role.as_str() {
        "add" | "add locked" => {
            for _ in 0..2_000 {
                word(&mapping, 0).fetch_add(1, Ordering::SeqCst);
            }
        }
        "add forever" => loop {
            word(&mapping, 0).fetch_add(1, Ordering::SeqCst);
        },
        "touch" => {
            word(&mapping, WORDS).load(Ordering::SeqCst);
        }
        other => panic!("{other}"),
    }
}

/// Runs a machine for another process, until it is killed.
fn serve(socket: BorrowedFd<'_>) {
    let net = Net::new(1);
    let machine = Machine::start(&net, 0, &pages(4));
    send_word(socket, 0, &[machine.file()]);
    let (base, mut passed) = receive_word(socket);
    machine.add(passed.remove(0), VirtAddr(base), machine.part());
    loop {
        thread::park();
    }
}

#[test]
fn programs_of_other_processes_share_the_copy_of_their_machine() {
    if !is_possible() {
        return;
    }
    let net = Net::new(2);
    let machines = machines(&net, 2, &pages(4));
    let programs = [0, 0, 1].map(|machine: usize| Program::on(&machines[machine], "add"));
    for program in programs {
        assert!(program.wait().success());
    }
    for machine in &machines {
        assert_eq!(word(&machine.map(), 0).load(Ordering::SeqCst), 6_000);
    }
}

/// The kernel fills what such a program maps, before anything else is done with that.
#[test]
fn a_program_that_locks_all_it_maps_sees_what_others_write() {
    if !is_possible() {
        return;
    }
    let net = Net::new(2);
    let machines = machines(&net, 2, &pages(4));
    let mappings: Vec<_> = machines.iter().map(Machine::map).collect();
    word(&mappings[0], 0).store(10, Ordering::SeqCst);
    assert_eq!(word(&mappings[1], 0).load(Ordering::SeqCst), 10);
    let programs = [0, 1].map(|machine: usize| Program::on(&machines[machine], "add locked"));
    for program in programs {
        assert!(program.wait().success());
    }
    for mapping in &mappings {
        assert_eq!(word(mapping, 0).load(Ordering::SeqCst), 4_010);
    }
}

#[test]
fn a_killed_program_leaves_what_it_wrote_and_harms_nobody() {
    if !is_possible() {
        return;
    }
    let net = Net::new(2);
    let machines = machines(&net, 2, &pages(4));
    let mappings: Vec<_> = machines.iter().map(Machine::map).collect();
    let stop = AtomicBool::new(false);
    let mut program = Program::on(&machines[0], "add forever");
    thread::scope(|scope| {
        let others = mappings.iter().map(|mapping| {
            let stop = &stop;
            scope.spawn(move || {
                let mut own = 0;
                while !stop.load(Ordering::SeqCst) {
                    word(mapping, 1).fetch_add(1, Ordering::SeqCst);
                    own += 1;
                }
                own
            })
        });
        let others: Vec<_> = others.collect();
        while word(&mappings[1], 0).load(Ordering::SeqCst) < 1_000 {}
        program.child.kill().unwrap();
        program.child.wait().unwrap();
        let left = word(&mappings[1], 0).load(Ordering::SeqCst);
        thread::sleep(Duration::from_millis(20));
        stop.store(true, Ordering::SeqCst);
        let own: u64 = others.into_iter().map(|other| other.join().unwrap()).sum();
        for mapping in &mappings {
            assert_eq!(word(mapping, 0).load(Ordering::SeqCst), left);
            assert_eq!(word(mapping, 1).load(Ordering::SeqCst), own);
        }
    });
}

#[test]
fn a_lost_page_kills_a_program_with_a_bus_error() {
    if !is_possible() {
        return;
    }
    let net = Net::new(1);
    let machine = Machine::start(&net, 0, &pages(4));
    let (failed, failures) = std::sync::mpsc::channel();
    machine.with(move |cache, _| {
        cache.on_failure(Box::new(move |pages, why| {
            failed.send((pages, why)).unwrap()
        }));
    });
    let pages = Pages::one(PageNumber(1));
    net.tell(0, ToKernel::DataError { pages });
    let program = Program::on(&machine, "touch");
    assert_eq!(program.wait().signal(), Some(libc::SIGBUS));
    assert_eq!(failures.recv().unwrap(), (Some(pages), Failure::Lost));
}

/// Stops a process, and waits until it is.
fn stop(child: &Child) {
    let pid = child.id() as i32;
    let mut status = 0;
    // SAFETY: stops our own child, which has not been reaped.
    unsafe {
        libc::kill(pid, libc::SIGSTOP);
        libc::waitpid(pid, &raw mut status, libc::WUNTRACED);
    }
    assert!(libc::WIFSTOPPED(status));
}

#[test]
fn when_whoever_answers_is_killed_programs_get_errors_and_no_zeros() {
    if !is_possible() {
        return;
    }
    let mut server = Program::start("serve");
    let (_, mut passed) = receive_word(server.socket.as_fd());
    let part = Part {
        start: ObjectOffset(0),
        len: Bytes(4 * 4096),
    };
    let mapping = Mapping::new(passed.remove(0).as_fd(), part, None, true).unwrap();
    let base = mapping.range().start.0;
    send_word(server.socket.as_fd(), base, &[mapping.uffd()]);
    word(&mapping, 0).store(7, Ordering::SeqCst);
    // It is stopped, so that the fault is not answered; then it dies.
    stop(&server.child);
    thread::scope(|scope| {
        let waits = scope.spawn(|| probe(&mapping, 1));
        thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished());
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished(), "no zeros");
        mapping.fail().unwrap();
        assert!(is_fault(&waits.join().unwrap()));
    });
    // Also what was here.
    assert!(is_fault(&probe(&mapping, 0)));
}

/// Where a program has unmapped some of a mapping, the rest is there.
#[test]
fn a_mapping_is_gone_when_all_of_it_is() {
    if !is_possible() {
        return;
    }
    const COUNT: u64 = 3000;
    let shape = pages(COUNT);
    let mut cache = node::Cache::new(shape.page, shape.settings(), Pool::new()).expect("a file");
    let part = Part {
        start: ObjectOffset(0),
        len: Bytes(COUNT * 4096),
    };
    let mapping = Mapping::new(cache.file(), part, None, true).expect("it can be mapped");
    let space = cache.add_own(&mapping).expect("a descriptor");
    let unmap = |first: u64, count: u64| {
        let at = mapping.range().start + Bytes(first * 4096);
        // SAFETY: nobody uses the pages, or anything that may come to lie there.
        unsafe { rustix::mm::munmap(at.as_ptr().cast(), (count * 4096) as usize) }.expect("pages");
    };
    assert!(!cache.is_gone(space));
    unmap(0, 1);
    assert!(!cache.is_gone(space));
    unmap(1, COUNT - 2);
    for _ in 0..COUNT {
        assert!(!cache.is_gone(space));
    }
    unmap(COUNT - 1, 1);
    assert!(cache.is_gone(space));
}
