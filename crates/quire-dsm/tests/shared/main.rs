//! Programs that share memory through a server, with real sockets, userfaultfd and threads.
//! Each client has caches of its own, so it stands for a machine.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quire_core::dsm::message::{PageNumber, Pages};
use quire_core::dsm::scheduler::trace::What;
use quire_core::dsm::sync::{Answer as Met, Name as Point, Request};
use quire_core::dsm::types::Machine;
use quire_core::units::{Bytes, ObjectOffset};
use quire_dsm::client::{Client, Shared};
use quire_dsm::programs::Program;
use quire_dsm::wire::control::{Answer, PageSize, Rights, SchedulerKind, Segment, TypeCode};

mod anew;
mod far;
mod processors;
#[allow(dead_code, reason = "links are only cut and held here")]
#[path = "../histories/proxy.rs"]
mod proxy;
#[path = "../served/mod.rs"]
mod served;
mod slow;
mod streams;

use served::{BOTH, Served, name, object, open, socket};

/// Runs a program with a client for each member.
fn run(served: &Served, program: Program, members: usize, scheduler: SchedulerKind) {
    let first = served.client("first");
    let made = object("memory", program.memory(members), scheduler);
    first.create(made).expect("it is new");
    thread::scope(|scope| {
        let member = |me| {
            scope.spawn(move || {
                let client = served.client("member");
                let shared = open(&client, "memory");
                program.run(&shared.member(me, members), shared.words())
            })
        };
        let members: Vec<_> = (0..members).map(member).collect();
        for (me, member) in members.into_iter().enumerate() {
            let ended = member.join().expect("no panic");
            assert_eq!(ended, Ok(()), "{program:?}, member {me}");
        }
    });
    let shared = open(&first, "memory");
    assert_eq!(
        program.check(shared.words(), members),
        Ok(()),
        "{program:?}"
    );
    drop(shared);
    first.remove(name("memory")).expect("nobody has it open");
}

const SMALL: [Program; 5] = [
    Program::Matrix(65),
    Program::Paths(24),
    Program::Router(60),
    Program::Particles(300),
    Program::Hotspot(300),
];

#[test]
fn programs_share_memory_through_a_simple_scheduler() {
    let (_directory, path) = socket();
    let served = Served::start(&path);
    for program in SMALL {
        for members in [1, 2, 4] {
            run(&served, program, members, SchedulerKind::Simple);
        }
    }
}

#[test]
fn programs_share_memory_through_the_scheduler_of_several_page_sizes() {
    let served = Served::start("127.0.0.1:0");
    for program in SMALL {
        run(&served, program, 3, SchedulerKind::Multi);
    }
}

/// Over plain TCP from this machine as well: who comes so is asked to come again over a socket
/// that carries descriptors, and counts as before.
#[test]
fn programs_of_the_servers_machine_share_its_pages_over_tcp() {
    let served = Served::start("127.0.0.1:0");
    let sharing = |who| served.client_with(who, |options| options.own_pages = false);
    let (one, other, apart) = (sharing("one"), sharing("other"), served.client("apart"));
    one.create(object("memory", Bytes(1 << 16), SchedulerKind::Multi))
        .expect("it is new");
    let [mine, theirs, own] = [&one, &other, &apart].map(|client| open(client, "memory"));
    let attached = [&mine, &theirs, &own].map(Shared::is_attached);
    assert_eq!(attached, [true, true, false]);
    for (value, shared) in (1..).zip([&mine, &theirs, &own]) {
        shared.words()[7].fetch_add(value, Ordering::Relaxed);
    }
    for shared in [&mine, &theirs, &own] {
        assert_eq!(shared.words()[7].load(Ordering::Relaxed), 6);
    }
    let Answer::Statistics { owner, .. } = one.statistics(name("memory"), None).unwrap() else {
        panic!("no statistics");
    };
    assert_eq!(owner, "anyone");
}

/// What is written by way of the kernel is there, too, where somebody takes the page while it is.
#[test]
fn what_is_written_with_a_check_is_not_lost_with_the_page() {
    const PAGES: usize = 16;
    let served = Served::start("127.0.0.1:0");
    let (writer, reader) = (served.client("writer"), served.client("reader"));
    let size = Bytes((PAGES * 4096) as u64);
    writer
        .create(object("memory", size, SchedulerKind::Multi))
        .expect("it is new");
    let (mine, theirs) = (open(&writer, "memory"), open(&reader, "memory"));
    let first_words = || (0..PAGES).map(|page| page * 512);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for word in first_words().rev() {
                    theirs.words()[word].load(Ordering::Relaxed);
                }
            }
        });
        let begin = Instant::now();
        let mut lost = Vec::new();
        let mut values = 1u64..;
        while lost.is_empty() && begin.elapsed() < Duration::from_secs(3) {
            let value = values.next().expect("there are many");
            let all = vec![value; PAGES * 512];
            let bytes: Vec<u8> = all.into_iter().flat_map(u64::to_ne_bytes).collect();
            let written = mine.checked_write_at(ObjectOffset(0), &bytes);
            written.expect("the memory is there");
            let is_lost = |word: &usize| mine.words()[*word].load(Ordering::Relaxed) != value;
            lost.extend(first_words().filter(is_lost));
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(lost, [0; 0], "words that are not what was written last");
    });
}

/// How many pages of an object somebody has, as the server knows it.
fn held(client: &Client, text: &str, pages: u64) -> usize {
    let parts = (0..pages).step_by(512).map(|first| {
        let part = Pages {
            first: PageNumber(first),
            count: 512,
        };
        match client.statistics(name(text), Some(part)) {
            Ok(Answer::Statistics { inside, .. }) => inside.expect("it may be read").pages,
            other => panic!("no statistics: {other:?}"),
        }
    });
    let pages = parts.flatten();
    pages
        .filter(|page| page.owner.is_some() || page.readers > 0)
        .count()
}

/// A machine with less memory than the object has gives back what came first.
#[test]
fn a_program_holds_no_more_than_there_is_room() {
    const PAGES: usize = 4096;
    const ROOM: usize = 512;
    let (_directory, path) = socket();
    let served = Served::start(&path);
    let small = served.client_with("small", |options| {
        options.room = Some(Bytes(4096 * ROOM as u64));
    });
    let size = Bytes(4096 * PAGES as u64);
    let made = object("large", size, SchedulerKind::Multi);
    small.create(made).expect("it is new");
    let shared = open(&small, "large");
    let word = |page: usize| &shared.words()[512 * page + page % 512];
    for round in 1..=2 {
        for page in 0..PAGES {
            assert_eq!(
                word(page).load(Ordering::Relaxed),
                (round - 1) * page as u64
            );
            word(page).store(round * page as u64, Ordering::Relaxed);
        }
        // Pages that were just asked for are on their way.
        let held = held(&small, "large", PAGES as u64);
        assert!((ROOM / 2..2 * ROOM).contains(&held), "{held} pages");
    }
    let other = served.client("other");
    let other = open(&other, "large");
    let is_there = |page: &usize| {
        let word = &other.words()[512 * page + page % 512];
        word.load(Ordering::Relaxed) == 2 * *page as u64
    };
    assert_eq!((0..PAGES).find(|page| !is_there(page)), None);
}

#[test]
fn machines_with_other_pages_and_numbers_share_an_object() {
    let (_directory, path) = socket();
    let served = Served::start(&path);
    let ours = served.client("ours");
    let theirs = served.client_with("theirs", |options| {
        options.machine = "vax-d".parse::<Machine>().expect("a machine");
        options.page_size = PageSize::try_from(Bytes(64 << 10)).expect("a size");
    });
    let mut made = object("numbers", Bytes(256 << 10), SchedulerKind::Multi);
    made.tags = vec![Segment {
        start: Bytes(0),
        length: Bytes(4096),
        // A floating point number of 8 bytes.
        tag: TypeCode(6),
    }];
    ours.create(made).expect("it is new");
    let (mine, other) = (open(&ours, "numbers"), open(&theirs, "numbers"));
    mine.words()[0].store(1.0f64.to_bits(), Ordering::Relaxed);
    mine.words()[512].store(1.0f64.to_bits(), Ordering::Relaxed);
    // 1.0 is 0x4080 in the first word of VAX D; what has no type stays as it is.
    assert_eq!(other.words()[0].load(Ordering::Relaxed), 0x4080);
    assert_eq!(other.words()[512].load(Ordering::Relaxed), 1.0f64.to_bits());
    other.words()[1].store(0x4080, Ordering::Relaxed);
    assert_eq!(mine.words()[1].load(Ordering::Relaxed), 1.0f64.to_bits());
}

#[test]
fn what_was_written_outlives_who_wrote_it() {
    let (_directory, path) = socket();
    let served = Served::start(&path);
    let keeper = served.client("keeper");
    keeper
        .create(object("kept", Bytes(1 << 20), SchedulerKind::Simple))
        .expect("it is new");
    {
        let writer = served.client("writer");
        let shared = open(&writer, "kept");
        for (number, word) in shared.words().iter().enumerate() {
            word.store(number as u64, Ordering::Relaxed);
        }
    }
    let shared = open(&keeper, "kept");
    for (number, word) in shared.words().iter().enumerate() {
        assert_eq!(word.load(Ordering::Relaxed), number as u64);
    }
}

#[test]
fn system_calls_work_on_memory_that_is_elsewhere() {
    let (directory, path) = socket();
    let served = Served::start(&path);
    let (one, other) = (served.client("one"), served.client("other"));
    one.create(object("file", Bytes(64 << 10), SchedulerKind::Simple))
        .expect("it is new");
    let (mine, theirs) = (open(&one, "file"), open(&other, "file"));
    for (number, word) in mine.words().iter().enumerate() {
        word.store(!(number as u64), Ordering::Relaxed);
    }
    // write(2) reads memory that this client has never touched.
    let file = directory.path().join("copy");
    let words = theirs.words();
    // SAFETY: nobody writes to the object while it is written to the file.
    let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 8) };
    std::fs::write(&file, bytes).expect("the file can be written");
    let copied = std::fs::read(&file).expect("the file can be read");
    for (number, word) in copied.chunks_exact(8).enumerate() {
        let word = u64::from_ne_bytes(word.try_into().expect("8 bytes"));
        assert_eq!(word, !(number as u64));
    }
}

#[test]
fn a_mutex_keeps_others_out() {
    let (_directory, path) = socket();
    let served = Served::start(&path);
    let first = served.client("first");
    first
        .create(object("counted", Bytes(4096), SchedulerKind::Simple))
        .expect("it is new");
    let begin = Barrier::new(3);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let client = served.client("counter");
                let shared = open(&client, "counted");
                begin.wait();
                for _ in 0..50 {
                    let mutex = Point("it".into());
                    let lock = Request::Lock(mutex.clone());
                    assert_eq!(shared.synchronise(lock).expect("a server"), Met::Done);
                    let word = &shared.words()[0];
                    let before = word.load(Ordering::Relaxed);
                    thread::yield_now();
                    word.store(before + 1, Ordering::Relaxed);
                    let unlock = Request::Unlock(mutex);
                    assert_eq!(shared.synchronise(unlock).expect("a server"), Met::Done);
                }
            });
        }
    });
    let shared = open(&first, "counted");
    assert_eq!(shared.words()[0].load(Ordering::Relaxed), 150);
}

#[test]
fn objects_are_made_listed_and_removed() {
    let (_directory, path) = socket();
    let served = Served::start(&path);
    let client = served.client("user");
    for number in 0..600 {
        let text = format!("object-{number:03}");
        client
            .create(object(&text, Bytes(4096), SchedulerKind::Simple))
            .expect("it is new");
    }
    let names = client.list().expect("a list");
    assert_eq!(names.len(), 600);
    assert!(names.is_sorted_by_key(|object| object.name.clone()));
    let again = client.create(object("object-000", Bytes(4096), SchedulerKind::Simple));
    assert!(again.is_err_and(|error| error.to_string().contains("already")));
    let shared = open(&client, "object-007");
    let busy = client.remove(name("object-007"));
    assert!(busy.is_err_and(|error| error.to_string().contains("open")));
    drop(shared);
    client
        .remove(name("object-007"))
        .expect("nobody has it open");
    let gone = client.open(name("object-007"), BOTH);
    assert!(gone.is_err_and(|error| error.to_string().contains("no object")));
}

#[test]
fn rights_are_kept_to() {
    // Over plain TCP everybody counts as anyone; over a Unix socket, as a user.
    let (_directory, path) = socket();
    let served = Served::start_at(&[&path, "127.0.0.1:0"]);
    let owner = served.client("owner");
    owner
        .create(object("mine", Bytes(4096), SchedulerKind::Simple))
        .expect("it is new");
    let stranger = served.client_with("stranger", |options| {
        options.addresses = served.addresses[1].clone().into();
    });
    let refused = |rights| {
        let opened = stranger.open(name("mine"), rights);
        opened.is_err_and(|error| error.to_string().contains("no right"))
    };
    let read = Rights {
        read: true,
        write: false,
    };
    assert!(refused(read));
    let granted = stranger.grant(name("mine"), "anyone".into(), BOTH);
    assert!(granted.is_err_and(|error| error.to_string().contains("belongs to")));
    assert!(stranger.remove(name("mine")).is_err());
    owner
        .grant(name("mine"), "anyone".into(), read)
        .expect("it is its own");
    assert!(refused(BOTH));
    let shared = stranger.open(name("mine"), read).expect("it may be read");
    open(&owner, "mine").words()[0].store(7, Ordering::Relaxed);
    assert_eq!(shared.words()[0].load(Ordering::Relaxed), 7);
    let lock = Request::Lock(Point("list".into()));
    let refusal = shared
        .synchronise(lock.clone())
        .expect_err("it may be read");
    assert!(refusal.to_string().contains("may not write"), "{refusal}");
    drop(shared);
    let none = Rights {
        read: false,
        write: false,
    };
    assert!(refused(none), "without any right");
    let own = open(&owner, "mine").synchronise(lock);
    assert_eq!(own.expect("it is its own"), Met::Done);
    owner
        .grant(name("mine"), "anyone".into(), none)
        .expect("it is its own");
    assert!(refused(read));
}

/// A watcher that fetches nothing for a while is told how much it missed, and nobody waits
/// for it.
#[test]
fn a_slow_watcher_is_told_how_much_it_missed() {
    const PAGES: u64 = 8192;
    let served = Served::start("127.0.0.1:0");
    let (watcher, writer) = (served.client("watcher"), served.client("writer"));
    let made = object("seen", Bytes(PAGES * 4096), SchedulerKind::Simple);
    writer.create(made).expect("it is new");
    let mut watch = watcher.watch(name("seen"), None).expect("it may be read");
    let shared = open(&writer, "seen");
    for page in shared.words().chunks(512) {
        page[0].store(1, Ordering::Relaxed);
    }
    let (mut seen, mut lost) = (Vec::new(), 0);
    while let Some(watched) = watch.next(Duration::from_millis(200)).expect("it is there") {
        assert!(
            watched
                .known
                .iter()
                .all(|known| known.name.starts_with("writer ("))
        );
        lost += watched.lost;
        seen.extend(watched.seen);
    }
    // Each page was asked for and given at least.
    assert!(
        seen.len() as u64 + lost >= 2 * PAGES,
        "{} and {lost}",
        seen.len()
    );
    assert!(lost > 0 && seen.len() > 4096, "{} and {lost}", seen.len());
    assert!(seen.is_sorted_by_key(|seen| seen.at));
    // Afterwards nothing is missed any more, until the object is gone.
    drop(shared);
    writer.remove(name("seen")).expect("nobody has it open");
    let mut last = Vec::new();
    while let Ok(watched) = watch.next(Duration::from_secs(5)) {
        let watched = watched.expect("it is told that the object is gone");
        assert_eq!(watched.lost, 0);
        last.extend(watched.seen.into_iter().map(|seen| seen.event.what));
    }
    assert!(
        last.contains(&What::Terminate) && last.contains(&What::DataWrite),
        "{last:?}"
    );
}

#[test]
fn who_may_not_read_an_object_sees_nothing_of_what_happens_in_it() {
    let (_directory, path) = socket();
    let served = Served::start_at(&[&path, "127.0.0.1:0"]);
    let owner = served.client("owner");
    owner
        .create(object("mine", Bytes(1 << 20), SchedulerKind::Simple))
        .expect("it is new");
    let stranger = served.client_with("stranger", |options| {
        options.addresses = served.addresses[1].clone().into();
    });
    for page in [3, 7, 7] {
        open(&owner, "mine").words()[512 * page].fetch_add(1, Ordering::Relaxed);
    }
    let inside = |client: &Client| match client.hottest(name("mine"), 1) {
        Ok(Answer::Statistics { inside, .. }) => inside,
        other => panic!("{other:?}"),
    };
    assert_eq!(inside(&stranger), None);
    let hottest = inside(&owner).expect("it is its own");
    assert_eq!((hottest.touched, hottest.open), (2, 0));
    assert_eq!(hottest.pages.len(), 1);
    assert_eq!(hottest.pages[0].page.0, 7);
    assert!(stranger.watch(name("mine"), None).is_err());
    let read = Rights {
        read: true,
        write: false,
    };
    owner
        .grant(name("mine"), "anyone".into(), read)
        .expect("it is its own");
    assert!(inside(&stranger).is_some());
    assert!(stranger.watch(name("mine"), None).is_ok());
}
