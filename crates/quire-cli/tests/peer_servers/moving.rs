//! Programs that know several servers, and go on at another one when theirs is gone.

use std::sync::atomic::AtomicBool;

use super::*;

impl Group {
    /// A program with pages of its own that knows some of the servers, in this order.
    pub(super) fn client_of(&self, servers: &[usize]) -> Client {
        let all: Vec<&str> = servers.iter().map(|at| &*self.addresses[*at]).collect();
        self.client_at(&all.join(","))
    }

    fn client_at(&self, addresses: &str) -> Client {
        self.client_with(0, |options| {
            options.addresses = addresses.parse().unwrap();
            options.reconnect = Some(SOON / 2);
        })
    }

    pub(super) fn kill(&mut self, server: usize) {
        self.servers[server].kill().unwrap();
        self.servers[server].wait().unwrap();
    }

    /// The command, told to reach servers at these addresses.
    pub(super) fn quire(arguments: &[&str], servers: &str) -> std::process::Output {
        Command::new(env!("CARGO_BIN_EXE_quire"))
            .args(arguments)
            .env("QUIRE_SERVER", servers)
            .output()
            .unwrap()
    }
}

/// Waits for something, but not for longer than `SOON`.
fn comes(is_so: impl Fn() -> bool) -> bool {
    let end = Instant::now() + SOON;
    while !is_so() {
        if Instant::now() > end {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Each of three programs increments a word of its own, all in one page. One of them goes on
/// at another server; what all three did is there, though all want the page when that is killed.
#[test]
fn a_program_goes_on_at_another_server_when_its_own_is_killed() {
    let mut group = Group::of(3);
    group.client(0).create(grid(1)).unwrap();
    let orders = [[0, 1, 2], [1, 2, 0], [2, 0, 1]];
    let clients = orders.map(|order| group.client_of(&order));
    let shared = clients.each_ref().map(open);
    let counts: [AtomicU64; 3] = Default::default();
    let count = |me: usize| counts[me].load(Ordering::Relaxed);
    let is_over = AtomicBool::new(false);
    let went_on = thread::scope(|scope| {
        for (me, shared) in shared.iter().enumerate() {
            let (is_over, count) = (&is_over, &counts[me]);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    shared.words()[me].fetch_add(1, Ordering::Relaxed);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let began = comes(|| (0..3).all(|me| count(me) > 1000));
        group.kill(1);
        let broke = comes(|| shared[1].breaks() > 0);
        let so_far = [count(0), count(1), count(2)];
        let went_on = comes(|| (0..3).all(|me| count(me) > so_far[me] + 1000));
        is_over.store(true, Ordering::Relaxed);
        [began, broke, went_on]
    });
    assert_eq!(went_on, [true; 3], "{counts:?}");
    let sees = |who: usize, whose: usize| shared[who].words()[whose].load(Ordering::Relaxed);
    for who in 0..3 {
        assert_eq!([sees(who, 0), sees(who, 2)], [count(0), count(2)]);
    }
    let of_moved = [0, 1, 2].map(|who| sees(who, 1));
    assert_eq!(of_moved, [count(1); 3]);
    assert_eq!(shared.each_ref().map(Shared::breaks), [0, 1, 0]);
}

#[test]
fn the_first_server_that_answers_is_used() {
    let group = Group::of(2);
    let nowhere = format!("unix:{}/nowhere", group._directory.path().display());
    let list = format!("{nowhere},{}", group.addresses[1]);
    group.client_at(&list).create(grid(1)).unwrap();
    let listed = Group::quire(&["object", "ls"], &list);
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.status.success() && text.contains("grid"), "{text}");
    let also = format!("{nowhere},unix:/nowhere/else");
    let listed = Group::quire(&["object", "ls"], &also);
    let text = String::from_utf8_lossy(&listed.stderr).into_owned();
    assert!(
        !listed.status.success() && text.contains("quire serve"),
        "{text}"
    );
    assert!(
        text.contains(&nowhere) && text.contains("unix:/nowhere/else"),
        "{text}"
    );
    for bad in ["unix:/a,", "unix:/a,b"] {
        let listed = Group::quire(&["object", "ls"], bad);
        let text = String::from_utf8_lossy(&listed.stderr).into_owned();
        assert_eq!(listed.status.code(), Some(2), "{text}");
        assert!(text.contains("comma in a PATH is written twice"), "{text}");
    }
}

/// An object of one server alone is found there, whichever server is asked first.
#[test]
fn an_object_of_one_server_is_looked_for_at_all() {
    let group = Group::of(3);
    let alone = object("alone", Bytes(4096), SchedulerKind::Simple);
    group.client(2).create(alone).unwrap();
    let between = group._directory.path().join("between");
    let at = |number: usize| group.addresses[number].clone();
    let path = |address: &str| PathBuf::from(address.strip_prefix("unix:").unwrap());
    let link = Between::start(between.clone(), path(&at(2)));
    let list = [format!("unix:{}", between.display()), at(0), at(1), at(2)].join(",");
    let seen = Group::quire(&["object", "stat", "alone"], &[at(0), at(2)].join(","));
    assert!(seen.status.success(), "{seen:?}");
    let client = group.client_at(&list);
    let shared = client.open(name("alone"), BOTH).unwrap();
    word(&shared, 0).store(1, Ordering::Relaxed);
    shared.flush().unwrap();
    link.break_all();
    assert!(comes(|| shared.breaks() > 0));
    let shared = soon("the server that has it", move || {
        assert_eq!(word(&shared, 0).fetch_add(1, Ordering::Relaxed), 1);
        shared
    });
    // Two refused it before, and nothing went on there.
    assert_eq!(shared.breaks(), 1);
    let elsewhere = group.client_of(&[1, 0]);
    let refused = elsewhere
        .open(name("alone"), BOTH)
        .err()
        .unwrap()
        .to_string();
    assert!(refused.contains(&at(2)), "{refused}");
    drop((shared, client));
}

/// Some of a program's objects are nowhere any more. The others go on.
#[test]
fn what_no_server_has_fails_and_the_rest_goes_on() {
    let mut group = Group::of(3);
    group.client(0).create(grid(1)).unwrap();
    let alone = object("alone", Bytes(4096), SchedulerKind::Simple);
    group.client(1).create(alone).unwrap();
    let client = group.client_of(&[1, 2]);
    let shared = open(&client);
    let lost = client.open(name("alone"), BOTH).unwrap();
    word(&lost, 0).store(1, Ordering::Relaxed);
    word(&shared, 0).store(1, Ordering::Relaxed);
    assert_eq!(word(&open(&group.client(0)), 0).load(Ordering::Relaxed), 1);
    group.kill(1);
    assert!(comes(|| shared.breaks() > 0));
    soon("the object of several servers", move || {
        assert_eq!(word(&shared, 0).fetch_add(1, Ordering::Relaxed), 1);
        assert_eq!(checked(&lost), None);
        assert_eq!(word(&shared, 0).load(Ordering::Relaxed), 2);
        drop((lost, shared));
    });
    drop(client);
}

/// A copy that a program shares with its server is that server's alone.
#[test]
fn a_shared_copy_fails_where_its_server_is_gone() {
    let mut group = Group::of(3);
    group.client(0).create(grid(1)).unwrap();
    let list = [&*group.addresses[1], &*group.addresses[2]].join(",");
    let client = group.client_with(0, |options| {
        options.addresses = list.parse().unwrap();
        options.own_pages = false;
        options.reconnect = Some(2 * LEASE);
    });
    let shared = open(&client);
    assert!(shared.is_attached());
    word(&shared, 0).store(1, Ordering::Relaxed);
    group.kill(1);
    assert!(comes(|| shared.breaks() > 0));
    soon("the shared copy", move || {
        assert_eq!(checked(&shared), None);
        drop(shared);
        // The link is to the other server now.
        let shared = open(&client);
        assert_eq!(checked(&shared), Some(0));
    });
}
