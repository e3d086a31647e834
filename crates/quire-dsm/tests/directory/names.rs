//! Names that are free as soon as an object is removed, while it is still used, and names that are
//! begun: what every directory does with them.

use std::sync::Barrier;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;

use quire_core::dsm::message::ServerId;
use quire_core::units::Bytes;
use quire_dsm::directory::{Change, Directory, DirectoryError, Entry, Shared, exact, name_of};

use super::{entry, next, view, watch};

/// So many servers race for a name.
const SERVERS: u64 = 4;
/// Each makes and removes so many objects.
const ROUNDS: u64 = 5;

fn removed(entry: &Entry) -> Entry {
    Entry {
        is_removed: true,
        ..entry.clone()
    }
}

/// There was no such object.
fn missing<T: std::fmt::Debug>(done: Result<T, DirectoryError>) {
    assert!(matches!(done, Err(DirectoryError::Missing(_))), "{done:?}");
}

/// Both objects of a name are found, the one that lives by its name.
fn find_both(directory: &dyn Directory, lives: &Entry, gone: &Entry) {
    for (asked, wanted) in [
        ("grid", Some(lives.clone())),
        ("grid~8f3a", Some(lives.clone())),
        ("grid~", Some(removed(gone))),
        ("grid~8f", None),
    ] {
        assert_eq!(directory.find(asked).unwrap(), wanted, "{asked}");
    }
}

/// Hears that an object was removed, and maybe that its name led to nothing.
fn hear_of_removal(heard: &Receiver<Change>, gone: &Entry) {
    let name = name_of(&gone.object.is.name).to_owned();
    let mut change = next(heard);
    if change == Change::Withdrawn(name) {
        change = next(heard);
    }
    assert_eq!(change, Change::Published(removed(gone)));
}

/// Hears a change, after others.
fn hear_at_last(heard: &Receiver<Change>, wanted: &Change) {
    while next(heard) != *wanted {}
}

/// An object that is removed leaves its name to the next one, and stays until it is withdrawn.
pub fn are_free_at_once(directory: &Shared) {
    let (old, new) = (entry("grid", 31), entry("grid~8f3a", 32));
    let before = directory.entries().unwrap();
    let heard = watch(&**directory);
    directory.publish(&old).unwrap();
    assert_eq!(next(&heard), Change::Published(old.clone()));
    assert_eq!(directory.find("grid~").unwrap(), Some(old.clone()));
    assert_eq!(directory.find("grid~8f3a").unwrap(), None);
    let taken = directory.publish(&new);
    let text = "an object grid".to_owned();
    assert_eq!(taken, Err(DirectoryError::Exists(text)));

    directory.discard("grid").unwrap();
    hear_of_removal(&heard, &old);
    missing(directory.discard("grid"));
    assert_eq!(directory.find("grid").unwrap(), None);
    let taken = directory.publish(&entry("grid", 33));
    let text = "object grid".to_owned();
    assert_eq!(taken, Err(DirectoryError::InUse(text)));
    directory.publish(&new).unwrap();
    find_both(&**directory, &new, &old);
    come_back_removed(directory, &new);
    let all = directory.entries().unwrap();
    let ours = all.iter().filter(|it| !before.contains(it));
    assert_eq!(ours.collect::<Vec<_>>(), [&new, &removed(&old)]);
    gone_one_by_one(directory, &old, &new);
    for slot in ["grid~", "grid~8f3a"] {
        hear_at_last(&heard, &Change::Withdrawn(slot.to_owned()));
    }
    assert_eq!(directory.entries().unwrap(), before);
}

/// Objects that were removed before their servers were started again are made known as such.
fn come_back_removed(directory: &Shared, living: &Entry) {
    for key in ["grid", "grid~8f3a"] {
        let taken = directory.publish(&removed(&entry(key, 34)));
        assert_eq!(taken, Err(DirectoryError::InUse(format!("object {key}"))));
    }
    let third = removed(&entry("grid~1", 35));
    directory.publish(&third).unwrap();
    assert_eq!(directory.find("grid~1").unwrap().as_ref(), Some(&third));
    assert_eq!(directory.find("grid").unwrap().as_ref(), Some(living));
    assert!(!directory.withdraw("grid~1").unwrap(), "it had no name");
    assert_eq!(directory.find("grid~1").unwrap(), None);
}

/// Each of two objects of a name goes by its key, with its view, and leaves the other one.
fn gone_one_by_one(directory: &Shared, old: &Entry, new: &Entry) {
    let long = Duration::from_secs(60);
    let (lease, _) = directory.join(&super::member(3), long).unwrap();
    for object in [old, new].map(|it| it.object.id) {
        directory.propose(lease, &view(object.0, 1, 3)).unwrap();
    }
    directory.leave(lease).unwrap();
    missing(directory.discard("nothing"));
    missing(directory.discard("grid~1"));
    missing(directory.withdraw("grid~1"));

    assert!(!directory.withdraw("grid").unwrap(), "it had no name");
    missing(directory.withdraw("grid"));
    missing(directory.discard("grid"));
    assert_eq!(directory.view(old.object.id).unwrap(), None);
    assert!(directory.view(new.object.id).unwrap().is_some());
    assert_eq!(directory.find("grid~").unwrap(), None);
    assert_eq!(directory.find("grid").unwrap().as_ref(), Some(new));

    directory.discard("grid~8f3a").unwrap();
    assert_eq!(directory.find("grid").unwrap(), None);
    assert_eq!(directory.find("grid~8f3a").unwrap(), Some(removed(new)));
    directory.withdraw("grid~8f3a").unwrap();
    missing(directory.withdraw("grid~8f3a"));
    assert_eq!(directory.view(new.object.id).unwrap(), None);
}

/// Servers that make and remove objects of one name: each gets its own, under its own key.
pub fn race(directory: &Shared) {
    let barrier = Barrier::new(SERVERS as usize);
    thread::scope(|scope| {
        for server in 0..SERVERS {
            let barrier = &barrier;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    barrier.wait();
                    make_and_remove(&**directory, 100 * round + server);
                }
            });
        }
    });
    assert_eq!(directory.find("raced").unwrap(), None);
}

/// Of servers that remove an object at the same time, by whatever means, one has done it.
pub fn are_removed_once(directory: &Shared) {
    let barrier = Barrier::new(SERVERS as usize);
    for round in 0..4 * ROUNDS {
        let made = entry(&format!("once~{round:x}"), 500 + round);
        directory.publish(&made).unwrap();
        let key = &made.object.is.name;
        let remove = |server: u64| {
            barrier.wait();
            let removed = match (round + server) % 3 {
                0 => directory.withdraw(key),
                _ => directory.discard(key).map(|()| true),
            };
            match removed {
                Err(DirectoryError::Missing(_)) => false,
                removed => removed.unwrap(),
            }
        };
        let done = thread::scope(|scope| {
            let all: Vec<_> = (0..SERVERS)
                .map(|it| scope.spawn(move || remove(it)))
                .collect();
            let all = all.into_iter().map(|it| it.join().unwrap());
            all.filter(|removed| *removed).count()
        });
        assert_eq!(done, 1, "round {round}");
        assert_eq!(directory.find("once").unwrap(), None);
        if directory.find(key).unwrap().is_some() {
            directory.withdraw(key).unwrap();
        }
    }
}

/// Makes an object as soon as the name is free, finds it, and removes it.
fn make_and_remove(directory: &dyn Directory, number: u64) {
    let mut made = entry(&format!("raced~{number:x}"), number);
    made.home = ServerId(number);
    let key = made.object.is.name.clone();
    while let Err(error) = directory.publish(&made) {
        assert!(matches!(error, DirectoryError::Exists(_)), "{error}");
    }
    assert_eq!(directory.find("raced").unwrap(), Some(made.clone()));
    assert_eq!(directory.find(&exact(&key)).unwrap(), Some(made.clone()));
    directory.discard(&key).unwrap();
    assert_ne!(directory.find("raced").unwrap(), Some(made.clone()));
    assert_eq!(directory.find(&key).unwrap(), Some(removed(&made)));
    directory.withdraw(&key).unwrap();
    assert_eq!(directory.find(&key).unwrap(), None);
}

/// What is begun has its name and its key until it is given a size or ended, or its home is no member any
/// more.
pub fn are_begun(directory: &Shared) {
    let long = Duration::from_secs(60);
    let of = |home: u64, key: &str, id: u64, size: u64| {
        let mut entry = entry(key, id);
        entry.home = ServerId(home);
        entry.object.is.size = Bytes(size);
        entry
    };
    let (lease, _) = directory.join(&super::member(41), long).unwrap();
    let begun = of(41, "half~5", 51, 0);
    assert!(begun.is_begun());
    directory.begin(lease, &begun).unwrap();
    for asked in ["half", "half~5"] {
        assert_eq!(directory.find(asked).unwrap().as_ref(), Some(&begun));
    }
    let exists = |done| assert_eq!(done, Err(DirectoryError::Exists("an object half".into())));
    for other in ["half", "half~1"] {
        exists(directory.begin(lease, &of(41, other, 52, 0)));
        // Whoever makes it is told its key.
        let taken = directory.publish(&of(42, other, 53, 4096));
        assert_eq!(taken, Err(DirectoryError::Begun("half~5".to_owned())));
    }
    missing(directory.end_begun("half~1"));
    missing(directory.end_begun("half"));
    missing(directory.give_size(&of(42, "half~1", 53, 4096)));
    missing(directory.give_size(&of(42, "half", 53, 4096)));
    missing(directory.discard("half~5"));
    directory.end_begun("half~5").unwrap();
    missing(directory.end_begun("half~5"));
    assert_eq!(directory.find("half").unwrap(), None);

    // Another one is begun: what is known of the first one is not said of it.
    let second = of(41, "half~6", 54, 0);
    directory.begin(lease, &second).unwrap();
    missing(directory.end_begun("half~5"));
    missing(directory.give_size(&of(42, "half~5", 55, 4096)));
    assert_eq!(directory.find("half~5").unwrap(), None);
    assert_eq!(directory.find("half").unwrap().as_ref(), Some(&second));

    // It may get its size elsewhere, and stays whatever becomes of its home.
    let made = of(42, "half~6", 56, 4096);
    directory.give_size(&made).unwrap();
    exists(directory.give_size(&of(43, "half~6", 57, 8192)));
    missing(directory.end_begun("half~6"));
    exists(directory.begin(lease, &begun));
    for asked in ["half", "half~6"] {
        assert_eq!(directory.find(asked).unwrap().as_ref(), Some(&made));
    }
    let left = of(41, "left~1", 58, 0);
    directory.begin(lease, &left).unwrap();
    // A removed one keeps its key, and one may be begun by its name.
    directory.discard("half~6").unwrap();
    exists(directory.give_size(&of(43, "half~6", 57, 8192)));
    let taken = directory.begin(lease, &second);
    assert!(matches!(taken, Err(DirectoryError::InUse(_))), "{taken:?}");
    let again = of(41, "half~7", 59, 0);
    directory.begin(lease, &again).unwrap();
    assert_eq!(directory.find("half").unwrap(), Some(again));
    directory.leave(lease).unwrap();
    for name in ["half", "left"] {
        assert_eq!(directory.find(name).unwrap(), None, "{name}");
    }
    assert_eq!(directory.find("half~6").unwrap(), Some(removed(&made)));
    directory.withdraw("half~6").unwrap();
    assert!(directory.begin(lease, &left).is_err(), "its lease is over");
    assert_eq!(directory.find("left").unwrap(), None);
}
