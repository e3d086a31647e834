//! The store on real disks, with real processes that are killed.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use quire_core::dsm::message::{PageNumber, Pages};
use quire_core::dsm::types::Machine;
use quire_core::units::Bytes;
use quire_dsm::store::{
    Contents, Grant, NewObject, ObjectId, Page, SchedulerKind, Settings, Store, StoreError, check,
};

const PAGE: usize = 4096;
/// Where the child of a test finds the directory of its store.
const CHILD: &str = "QUIRE_TEST_STORE";

fn skip(reason: &str) {
    let test = std::thread::current().name().unwrap_or("test").to_owned();
    eprintln!("SKIP: {test}: {reason}");
}

fn settings() -> Settings {
    Settings {
        log: Settings::SMALLEST_LOG,
        ..Settings::default()
    }
}

fn object(name: &str, pages: u64) -> NewObject {
    NewObject {
        name: name.to_owned(),
        size: Bytes(pages * PAGE as u64),
        page_size: Bytes(PAGE as u64),
        scheduler: SchedulerKind::Multi,
        machine: Machine::Big,
        tags: Vec::new(),
        owner: "uid:7".to_owned(),
        rights: vec![Grant {
            who: "node-1".to_owned(),
            read: true,
            write: false,
        }],
    }
}

fn filled(value: u64) -> Contents {
    value.to_le_bytes().repeat(PAGE / 8).into()
}

/// The value that fills a page; a page of two values is torn.
fn value_of(page: &Page) -> u64 {
    match page {
        Page::Zero => 0,
        Page::Lost => panic!("a page is lost"),
        Page::Held(bytes) => {
            let (words, _) = bytes.as_chunks::<8>();
            assert!(words.iter().all(|word| *word == words[0]), "a torn page");
            u64::from_le_bytes(words[0])
        }
    }
}

/// Writes a page and waits for the answer.
fn write(store: &Store, id: ObjectId, page: u64, value: u64) -> Result<(), StoreError> {
    let (sender, receiver) = mpsc::channel();
    store.write(
        id,
        PageNumber(page),
        vec![Some(filled(value))],
        move |result| {
            sender.send(result).unwrap();
        },
    );
    receiver.recv_timeout(Duration::from_secs(30)).unwrap()
}

fn read(store: &Store, id: ObjectId, page: u64) -> Page {
    let pages = Pages::one(PageNumber(page));
    store.read(id, pages).unwrap().remove(0)
}

#[test]
fn pages_are_there_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), &settings()).unwrap();
    let id = store.create(object("matrix", 10_000)).unwrap().id;
    // More than the log holds, in three parts, and a page that is read before it is durable.
    for page in 0..1500 {
        store.write(
            id,
            PageNumber(page * 6),
            vec![Some(filled(page + 1))],
            |_| {},
        );
    }
    assert_eq!(value_of(&read(&store, id, 1499 * 6)), 1500);
    write(&store, id, 0, 77).unwrap();
    assert_eq!(store.backlog(), Bytes::ZERO);
    drop(store);

    let report = check(directory.path()).unwrap();
    assert_eq!((report.objects, report.pages), (1, 1500));
    assert_eq!((report.logged, report.torn), (0, None));
    assert_eq!(report.damage, vec![]);

    let store = Store::open(directory.path(), &settings()).unwrap();
    let found = store.find("matrix").unwrap();
    assert_eq!(found.is, object("matrix", 10_000));
    assert_eq!(value_of(&read(&store, id, 0)), 77);
    for page in 1..1500 {
        assert_eq!(value_of(&read(&store, id, page * 6)), page + 1);
        assert_eq!(read(&store, id, page * 6 + 1), Page::Zero);
    }
    store.remove(id).unwrap();
    assert_eq!(
        store.read(id, Pages::one(PageNumber(0))),
        Err(StoreError::NoObject(id.to_string()))
    );
}

#[test]
fn pages_of_two_mebibytes() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), &settings()).unwrap();
    let large = NewObject {
        size: Bytes(1 << 47),
        page_size: Bytes::mib(2),
        ..object("large", 1)
    };
    let id = store.create(large).unwrap().id;
    let last = (1 << 26) - 1;
    let page: Contents = vec![3; 2 << 20].into();
    let (sender, receiver) = mpsc::channel();
    // Sixteen of them are more than the log holds.
    store.write(
        id,
        PageNumber(last - 15),
        vec![Some(page.clone()); 16],
        move |result| {
            sender.send(result).unwrap();
        },
    );
    receiver.recv().unwrap().unwrap();
    store.flush().unwrap();
    assert_eq!(read(&store, id, last), Page::Held(page));
    assert_eq!(read(&store, id, last - 16), Page::Zero);
}

#[test]
fn a_second_server_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let _store = Store::open(directory.path(), &settings()).unwrap();
    let refused = Store::open(directory.path(), &settings()).map(drop);
    let line = refused.unwrap_err().to_string();
    assert!(
        line.contains(&format!("process {}", std::process::id())),
        "{line}"
    );
    assert!(check(directory.path()).is_err());
}

#[test]
fn a_directory_of_something_else_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("letter"), "dear").unwrap();
    let refused = Store::open(directory.path(), &settings()).map(drop);
    assert!(matches!(refused, Err(StoreError::Foreign { .. })));
    let found: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
    assert!(found.len() <= 2, "a lock and the letter: {found:?}");
}

#[test]
fn damage_is_named_by_file_and_place() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), &settings()).unwrap();
    let id = store.create(object("one", 100)).unwrap().id;
    write(&store, id, 7, 1).unwrap();
    drop(store);
    let part = format!("objects/{id}/00000000.pages");
    let path = directory.path().join(&part);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[(64 << 10) + 7 * PAGE + 99] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let report = check(directory.path()).unwrap();
    let [damage] = &report.damage[..] else {
        panic!("{report:?}");
    };
    assert_eq!(damage.file, part);
    assert!(damage.bytes.contains(&((64 << 10) + 7 * PAGE as u64 + 99)));
    let store = Store::open(directory.path(), &settings()).unwrap();
    assert_eq!(read(&store, id, 7), Page::Lost);
}

/// Readers go on while pages are written and put into their places: what they see is whole,
/// and never goes back.
#[test]
fn readers_and_the_writer_do_not_meet() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), &settings()).unwrap();
    let id = store.create(object("one", 64)).unwrap().id;
    let end = std::time::Instant::now() + Duration::from_secs(2);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let store = &store;
            scope.spawn(move || {
                let mut seen = [0; 64];
                while std::time::Instant::now() < end {
                    for page in 0..64 {
                        let value = value_of(&read(store, id, page));
                        let before = std::mem::replace(&mut seen[page as usize], value);
                        assert!(value >= before, "page {page}: {value} after {before}");
                    }
                }
            });
        }
        let mut value = 0;
        while std::time::Instant::now() < end {
            for page in 0..64 {
                value += 1;
                store.write(id, PageNumber(page), vec![Some(filled(value))], |result| {
                    result.unwrap();
                });
            }
            store.flush().unwrap();
        }
        println!("{value} pages were written");
    });
}

/// Not a test: the process that is killed. It writes larger and larger values to pages, and
/// says which were acknowledged.
#[test]
fn child_that_writes() {
    let Ok(directory) = std::env::var(CHILD) else {
        return;
    };
    let store = Store::open(Path::new(&directory), &settings()).unwrap();
    let id = match store.find("one") {
        Some(object) => object.id,
        None => store.create(object("one", 9000)).unwrap().id,
    };
    let pages = 200_u64;
    let mut value = (0..pages)
        .map(|page| value_of(&read(&store, id, page * 41)))
        .max()
        .unwrap();
    let (sender, receiver) = mpsc::channel();
    let mut waiting = 0;
    loop {
        value += 1;
        let page = value * 7919 % pages * 41;
        let sender = sender.clone();
        let said = value;
        store.write(
            id,
            PageNumber(page),
            vec![Some(filled(value))],
            move |result| {
                result.unwrap();
                sender.send((page, said)).unwrap();
            },
        );
        waiting += 1;
        while waiting > 16 {
            let (page, value) = receiver.recv().unwrap();
            let mut out = std::io::stdout().lock();
            writeln!(out, "ack {page} {value}").unwrap();
            out.flush().unwrap();
            waiting -= 1;
        }
    }
}

/// A process is killed again and again while it writes: nothing that was acknowledged is
/// lost, nothing is torn.
#[test]
fn acknowledged_pages_survive_kill_9() {
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged: HashMap<u64, u64> = HashMap::new();
    let mut in_all = 0;
    for round in 0..12_u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child_that_writes", "--exact", "--nocapture"])
            .env(CHILD, directory.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let reader = std::thread::spawn(move || {
            let lines = out.lines().map_while(Result::ok);
            let acks = lines.filter_map(|line| {
                let mut words = line.split("ack ").nth(1)?.split(' ');
                let page: u64 = words.next()?.parse().ok()?;
                Some((page, words.next()?.parse::<u64>().ok()?))
            });
            acks.collect::<Vec<_>>()
        });
        std::thread::sleep(Duration::from_millis(120 + round * 67 % 200));
        child.kill().unwrap();
        child.wait().unwrap();
        for (page, value) in reader.join().unwrap() {
            let latest = acknowledged.entry(page).or_default();
            *latest = value.max(*latest);
            in_all += 1;
        }
        let store = Store::open(directory.path(), &settings()).unwrap();
        assert_eq!(store.damage(), []);
        let Some(found) = store.find("one") else {
            assert!(acknowledged.is_empty());
            continue;
        };
        for (page, value) in &acknowledged {
            let found = value_of(&read(&store, found.id, *page));
            assert!(
                found >= *value,
                "page {page}: {found}, but {value} was acknowledged"
            );
        }
    }
    println!("{in_all} write-backs were acknowledged");
    assert!(in_all > 100, "only {in_all} write-backs");
}

/// A small tmpfs, gone when it is dropped.
struct Small(tempfile::TempDir);

impl Small {
    fn mount(size: &str) -> Result<Small, String> {
        use rustix::mount::{MountFlags, mount};
        let place = tempfile::tempdir().map_err(|error| error.to_string())?;
        let options = std::ffi::CString::new(format!("size={size}")).unwrap();
        mount(
            "tmpfs",
            place.path(),
            "tmpfs",
            MountFlags::empty(),
            &*options,
        )
        .map_err(|error| format!("cannot mount a tmpfs: {error}"))?;
        Ok(Small(place))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let flags = rustix::mount::UnmountFlags::DETACH;
        rustix::mount::unmount(self.0.path(), flags).unwrap();
    }
}

/// A disk fills up: write-backs that need space are refused and change nothing, others go
/// on; when there is space, all go on.
#[test]
fn a_full_disk() {
    let small = match Small::mount("6m") {
        Ok(small) => small,
        Err(why) => return skip(&why),
    };
    let directory = small.0.path().join("store");
    let store = Store::open(&directory, &settings()).unwrap();
    let id = store.create(object("one", 9000)).unwrap().id;
    let ballast = small.0.path().join("ballast");
    std::fs::write(&ballast, vec![1; 1 << 20]).unwrap();

    let mut written = 0;
    let refused = loop {
        match write(&store, id, written, written + 1) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 2000, "the disk never fills");
    };
    assert!(matches!(refused, StoreError::Full(_)), "{refused}");
    assert!(refused.to_string().contains("make space"), "{refused}");
    assert!(written > 300, "only {written} pages went in");

    let holds = |store: &Store, bonus: u64| {
        for page in 0..written {
            assert_eq!(value_of(&read(store, id, page)), page + 1 + bonus);
        }
        assert_eq!(read(store, id, written), Page::Zero);
    };
    holds(&store, 0);
    // What has its place is written over, more often than the log has room for.
    for round in 1..4 {
        for page in 0..written {
            write(&store, id, page, page + 1 + round).unwrap();
        }
    }
    holds(&store, 3);
    store.flush().unwrap();
    drop(store);
    let store = Store::open(&directory, &settings()).unwrap();
    holds(&store, 3);
    assert!(write(&store, id, written, 5).is_err());
    assert!(matches!(
        store.create(object("two", 9)),
        Err(StoreError::Full(_)) | Ok(_)
    ));

    std::fs::remove_file(&ballast).unwrap();
    write(&store, id, written, 5).unwrap();
    assert_eq!(value_of(&read(&store, id, written)), 5);
    drop(store);
    let report = check(&directory).unwrap();
    assert_eq!(report.damage, vec![]);
    assert_eq!(report.pages, written + 1);
}
