//! Servers that do not reach each other, though the directory reaches both.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use quire_dsm::client::{Client, ClientError, Options, Shared};
use quire_dsm::wire::control::Rights;

use super::{BOTH, Between, Group, LEASE, SOON};
use super::{free, grid, name, open, serve, soon, two_between, two_with_sockets_between, word};

/// The object at a server, where that has it within some time.
fn comes(client: &Client) -> Shared {
    let end = Instant::now() + SOON;
    loop {
        match client.open(name("grid"), BOTH) {
            Ok(shared) => return shared,
            Err(why) => assert!(Instant::now() < end, "{why}"),
        }
        thread::sleep(Duration::from_millis(100));
    }
}

fn refused(client: Client) -> String {
    let why = soon("an answer", move || client.open(name("grid"), BOTH).err());
    why.as_ref().map(ClientError::to_string).unwrap_or_default()
}

/// The later one of two gives up the object, and the other one goes on.
#[test]
fn a_link_that_stays_broken_stops_one_server_and_not_the_object() {
    let (group, between) = two_with_sockets_between();
    let clients = [group.client(0), group.client(1)];
    clients[0].create(grid(2)).unwrap();
    let [here, there] = clients.each_ref().map(open);
    word(&here, 0).store(1, Ordering::Relaxed);
    assert_eq!(word(&there, 0).load(Ordering::Relaxed), 1);
    between.iter().for_each(|it| Between::shut(it, true));
    let here = soon("the server that was there first", move || {
        word(&here, 0).store(2, Ordering::Relaxed);
        here
    });
    drop(there);
    let why = refused(group.client(1));
    assert!(why.contains("does not reach unix:"), "{why}");
    // It stays so: nobody comes in who would hold it up.
    let begun = Instant::now();
    while begun.elapsed() < 2 * LEASE {
        let before = Instant::now();
        word(&here, 0).fetch_add(1, Ordering::Relaxed);
        word(&here, 1).fetch_add(1, Ordering::Relaxed);
        assert!(before.elapsed() < LEASE / 2);
        thread::sleep(LEASE / 20);
    }
    between.iter().for_each(|it| Between::shut(it, false));
    let there = comes(&group.client(1));
    let found = word(&there, 0).load(Ordering::Relaxed);
    assert_eq!(found, word(&here, 0).load(Ordering::Relaxed));
    assert!(found > 2);
}

/// Links break while rights are given and taken back: the servers agree on them in the next view.
#[test]
fn rights_count_that_change_while_a_link_is_cut() {
    const NONE: Rights = Rights {
        read: false,
        write: false,
    };
    let tcp = free();
    let (group, between) = two_between(&["--listen", &tcp]);
    let owner = group.client(0);
    owner.create(grid(1)).unwrap();
    let _keeps_both_in = [open(&owner), open(&group.client(1))];
    // Over plain TCP everybody counts as anyone.
    let options = Options::new(tcp.parse().unwrap(), name("stranger"));
    let stranger = Client::connect(options).unwrap();
    let may = || stranger.open(name("grid"), BOTH).is_ok();
    let becomes = |wanted: bool| {
        let end = Instant::now() + SOON;
        while may() != wanted {
            assert!(Instant::now() < end, "it stays {}", !wanted);
            thread::sleep(Duration::from_millis(20));
        }
    };
    assert!(!may());
    for rights in [BOTH, NONE, BOTH] {
        between.iter().for_each(|it| Between::shut(it, true));
        owner.grant(name("grid"), "anyone".into(), rights).unwrap();
        thread::sleep(Duration::from_millis(200));
        between.iter().for_each(|it| Between::shut(it, false));
        becomes(rights == BOTH);
    }
}

#[test]
fn a_server_with_another_lease_does_not_come_in() {
    let mut group = Group::of(1);
    let client = group.client(0);
    client.create(grid(1)).unwrap();
    let here = open(&client);
    let address = format!("{}-other", group.addresses[0]);
    let joined = ["--peers".to_owned(), group.addresses[0].clone()];
    let args = ["--lease", "5", "--listen", &address];
    group.servers.push(serve(&args, &joined));
    group.addresses.push(address);
    let why = refused(group.client(1));
    assert!(why.contains("the same --lease"), "{why}");
    soon("the first server", move || {
        word(&here, 0).store(2, Ordering::Relaxed);
    });
}
