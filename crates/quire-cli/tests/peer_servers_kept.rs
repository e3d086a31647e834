//! Joined servers, some with a store: what was acknowledged survives `kill -9` of one server
//! and of all, with a real etcd, with `--peers`, and with copies of the directory.

use std::net::TcpStream;
use std::process::{Child, Command};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use quire_core::units::{Bytes, ObjectOffset};
use quire_dsm::client::{Client, ClientError, Options, Shared};
use quire_dsm::programs::Word;
use quire_dsm::wire::control::{MachineCode, Name, Object, PageSize, Rights, SchedulerKind};
use tempfile::TempDir;

use address::free;
use etcd::Etcd;
use serving::started;

#[path = "common/address.rs"]
mod address;
#[path = "common/etcd.rs"]
mod etcd;
#[path = "common/log.rs"]
mod log;
#[path = "common/serving.rs"]
mod serving;
#[path = "common/signals.rs"]
mod signals;

/// How long a machine that went silent keeps what it has, in seconds.
const LEASE: &str = "3";

/// Everything that waits for failures ends within this.
const SOON: Duration = Duration::from_secs(60);

const BOTH: Rights = Rights {
    read: true,
    write: true,
};

/// Servers of one group, those with an even number with a store.
struct Group {
    servers: Vec<Option<Child>>,
    joined: [String; 2],
    /// Whether each has a copy of the directory.
    copies: bool,
    directory: TempDir,
}

impl Group {
    fn new(count: usize, joined: impl Fn(&[String]) -> [String; 2]) -> Group {
        Group::of(count, joined, false)
    }

    fn with_copies(count: usize) -> Group {
        let joined = |all: &[String]| ["--peers".to_owned(), all.join(",")];
        Group::of(count, joined, true)
    }

    fn of(count: usize, joined: impl Fn(&[String]) -> [String; 2], copies: bool) -> Group {
        let directory = TempDir::new().unwrap();
        let address = |number| format!("unix:{}/{number}", directory.path().display());
        let all: Vec<String> = (0..count).map(address).collect();
        let mut group = Group {
            servers: (0..count).map(|_| None).collect(),
            joined: joined(&all),
            copies,
            directory,
        };
        (0..count).for_each(|number| group.start(number));
        group
    }

    fn address(&self, number: usize) -> String {
        format!("unix:{}/{number}", self.directory.path().display())
    }

    /// Starts a server, and waits until it listens.
    fn start(&mut self, number: usize) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
        command
            .args(["serve", "--lease", LEASE, "--listen"])
            .arg(self.address(number))
            .args(&self.joined);
        if self.copies {
            let copy = self.directory.path().join(format!("copy-{number}"));
            command.arg("--replicate-directory").arg(copy);
        }
        if number.is_multiple_of(2) {
            let store = self.directory.path().join(format!("store-{number}"));
            command.arg("--store").arg(store);
        }
        self.servers[number] = Some(started(&mut command));
    }

    fn kill(&mut self, number: usize) {
        let mut server = self.servers[number].take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
    }

    fn end(&mut self, number: usize) {
        let mut server = self.servers[number].take().unwrap();
        signals::send("TERM", server.id());
        assert_eq!(server.wait().unwrap().code(), Some(0));
    }

    /// A client that is a machine of its own, and does not come back when its link breaks.
    fn client(&self, server: usize) -> Client {
        let mut options = Options::new(self.address(server).parse().unwrap(), name("client"));
        options.own_pages = true;
        options.reconnect = Some(Duration::ZERO);
        Client::connect(options).expect("the server is there")
    }

    /// An object at a server, as soon as it can be used there.
    fn open(&self, server: usize, object: &str) -> (Client, Shared) {
        let end = Instant::now() + SOON;
        loop {
            let client = self.client(server);
            match client.open(name(object), BOTH) {
                Ok(shared) => return (client, shared),
                Err(why) => assert!(Instant::now() < end, "{object} at {server}: {why}"),
            }
            thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for server in self.servers.iter_mut().flatten() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn object(text: &str, scheduler: SchedulerKind) -> Object {
    Object {
        name: name(text),
        size: Bytes::mib(1),
        page_size: PageSize::BASE,
        scheduler,
        machine: MachineCode(0),
        tags: Vec::new(),
    }
}

/// The first word of a page.
fn word(shared: &Shared, page: usize) -> &Word {
    &shared.words()[page * 512]
}

fn set(shared: &Shared, page: usize, value: u64) {
    word(shared, page).store(value, Ordering::Relaxed);
}

fn get(shared: &Shared, page: usize) -> u64 {
    word(shared, page).load(Ordering::Relaxed)
}

/// What a program reads without being killed where it cannot.
fn checked(shared: &Shared, page: u64) -> Result<u64, ClientError> {
    let mut bytes = [0; 8];
    let read = shared.checked_read_at(ObjectOffset(page * 4096), &mut bytes);
    read.map(|()| u64::from_ne_bytes(bytes))
}

#[test]
fn what_was_acknowledged_survives_one_server_and_all() {
    let is_well = |address: &str| TcpStream::connect(address).is_ok();
    let etcd = Etcd::start(Command::new("etcd"), [free(), free()], is_well);
    let Some(etcd) = etcd else { return };
    survives_one_server_and_all(Group::new(3, |_| ["--etcd".to_owned(), etcd.url.clone()]));
}

#[test]
fn what_was_acknowledged_survives_with_copies_of_the_directory() {
    survives_one_server_and_all(Group::with_copies(3));
}

/// Makes an object, as soon as its server is a member.
fn create(client: &Client, text: &str, scheduler: SchedulerKind) {
    let end = Instant::now() + SOON;
    while let Err(why) = client.create(object(text, scheduler)) {
        assert!(Instant::now() < end, "{why}");
        thread::sleep(Duration::from_millis(50));
    }
}

fn survives_one_server_and_all(mut group: Group) {
    let first = group.client(0);
    create(&first, "grid", SchedulerKind::Distributed);
    create(&first, "alone", SchedulerKind::Multi);
    let (_clients, shared): (Vec<Client>, Vec<Shared>) =
        (0..3).map(|server| group.open(server, "grid")).unzip();
    // Each page was written at each server, the last time at another one.
    for round in 0..3_u64 {
        for page in 0..24 {
            let writer = (page + round as usize) % 3;
            set(&shared[writer], page, 1000 * round + page as u64);
        }
        let of = |server: &Shared| server.flush().unwrap();
        shared.iter().for_each(of);
    }
    // The server that wrote some of them last is killed: nothing older comes back.
    group.kill(1);
    for page in 0..24 {
        assert_eq!(get(&shared[2], page), 2000 + page as u64);
    }
    set(&shared[2], 30, 7);
    set(&shared[0], 31, 8);
    shared[2].flush().unwrap();
    shared[0].flush().unwrap();
    let (_, alone) = group.open(0, "alone");
    set(&alone, 0, 9);
    alone.flush().unwrap();
    group.kill(0);
    group.kill(2);
    (0..3).for_each(|server| group.start(server));
    for server in [0, 1] {
        let (_, shared) = group.open(server, "grid");
        for page in 0..24 {
            assert_eq!(get(&shared, page), 2000 + page as u64);
        }
        assert_eq!((get(&shared, 30), get(&shared, 31)), (7, 8));
    }
    let (_, alone) = group.open(0, "alone");
    assert_eq!(get(&alone, 0), 9);
    drop((alone, shared));
    look_after_removal(&mut group);
}

/// What is kept is removed where it is kept, for good.
fn look_after_removal(group: &mut Group) {
    let remove = |group: &Group, server: usize| {
        let end = Instant::now() + SOON;
        loop {
            // Who was killed may count as one who has it open for a while.
            let removed = group.client(server).remove(name("grid"));
            match removed {
                Err(why) if why.to_string().contains("is open") => {
                    assert!(Instant::now() < end, "{why}");
                    thread::sleep(Duration::from_millis(200));
                }
                other => return other,
            }
        }
    };
    let refused = remove(group, 1).expect_err("another server keeps it");
    let home = format!("--server {}", group.address(0));
    assert!(refused.to_string().contains(&home), "{refused}");
    remove(group, 0).unwrap();
    group.kill(0);
    group.start(0);
    drop(group.open(0, "alone"));
    let listed = group.client(1).list().unwrap();
    let names: Vec<&str> = listed.iter().map(|object| object.name.as_str()).collect();
    assert_eq!(names, ["alone"]);
}

#[test]
fn what_was_removed_comes_back_with_its_home() {
    let is_well = |address: &str| TcpStream::connect(address).is_ok();
    let etcd = Etcd::start(Command::new("etcd"), [free(), free()], is_well);
    let Some(etcd) = etcd else { return };
    removed_comes_back(Group::new(3, |_| ["--etcd".to_owned(), etcd.url.clone()]));
}

#[test]
fn what_was_removed_comes_back_with_copies_of_the_directory() {
    removed_comes_back(Group::with_copies(3));
}

#[test]
fn what_was_removed_comes_back_with_its_home_and_the_directory() {
    removed_comes_back(Group::new(3, |all| ["--peers".to_owned(), all.join(",")]));
}

/// The names of all objects, as a server lists them.
fn listed(group: &Group, server: usize) -> Vec<String> {
    let all = group.client(server).list().unwrap().into_iter();
    all.map(|object| object.name.to_string()).collect()
}

/// An object that was removed and is used is kept like the one that has its name by then.
fn removed_comes_back(mut group: Group) {
    let home = group.client(0);
    create(&home, "grid", SchedulerKind::Distributed);
    let (_old_client, old) = group.open(1, "grid");
    set(&old, 0, 1);
    old.flush().unwrap();
    home.discard(name("grid")).unwrap();
    create(&home, "grid", SchedulerKind::Distributed);
    let (_new_client, new) = group.open(2, "grid");
    set(&new, 0, 2);
    new.flush().unwrap();
    assert_eq!(get(&old, 0), 1);
    assert_ne!(new.exact(), old.exact());
    let [exact, removed] = [&new, &old].map(|shared| shared.exact().to_string());
    drop(home);
    group.kill(0);
    let end = Instant::now() + SOON;
    while [&old, &new].iter().any(|shared| checked(shared, 0).is_ok()) {
        assert!(
            Instant::now() < end,
            "objects of a dead home server are used"
        );
        thread::sleep(Duration::from_millis(100));
    }
    group.start(0);
    let (_c1, old_again) = group.open(1, &removed);
    let (_c2, new_again) = group.open(2, "grid");
    let (_c3, spelled) = group.open(0, &exact);
    assert_eq!(get(&old_again, 0), 1);
    assert_eq!((get(&new_again, 0), get(&spelled, 0)), (2, 2));
    assert_eq!(listed(&group, 1), ["grid", &*removed]);
    drop((old, old_again));
    let end = Instant::now() + SOON;
    while listed(&group, 2) != ["grid"] {
        assert!(Instant::now() < end, "{:?}", listed(&group, 2));
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(get(&new_again, 0), 2);
}

/// More is given back at once than a link takes.
#[test]
fn much_that_is_written_at_another_server_is_kept() {
    const PAGE: u64 = 64 << 10;
    const PAGES: u64 = 2600;
    let mut group = Group::new(2, |all| ["--peers".to_owned(), all.join(",")]);
    let home = group.client(0);
    let large = Object {
        size: Bytes(PAGES * PAGE),
        page_size: PageSize::try_from(Bytes(PAGE)).unwrap(),
        ..object("large", SchedulerKind::Distributed)
    };
    home.create(large).unwrap();
    let (_client, shared) = group.open(1, "large");
    for page in 0..PAGES as usize {
        set(&shared, page * 16, page as u64 + 1);
    }
    shared.flush().unwrap();
    drop(shared);
    (0..2).for_each(|server| group.kill(server));
    (0..2).for_each(|server| group.start(server));
    let (_client, shared) = group.open(0, "large");
    for page in 0..PAGES as usize {
        assert_eq!(get(&shared, page * 16), page as u64 + 1);
    }
}

#[test]
fn without_its_home_an_object_fails_and_others_go_on() {
    let mut group = Group::new(3, |all| {
        // Server 1 has no store, and the directory.
        let [a, b, c] = [&all[1], &all[0], &all[2]];
        ["--peers".to_owned(), format!("{a},{b},{c}")]
    });
    let home = group.client(0);
    home.create(object("grid", SchedulerKind::Distributed))
        .unwrap();
    let other = group.client(1);
    other
        .create(object("other", SchedulerKind::Distributed))
        .unwrap();
    let (_here, going_on) = group.open(2, "other");
    let mut acknowledged = 0;
    for round in 1..=2 {
        let (_at_1, one) = group.open(1, "grid");
        let (_at_2, two) = group.open(2, "grid");
        for step in 0..50 {
            let writer = if step % 2 == 0 { &one } else { &two };
            let before = word(writer, 0).fetch_add(1, Ordering::Relaxed);
            assert_eq!(before, acknowledged);
            writer.flush().unwrap();
            acknowledged += 1;
        }
        group.kill(0);
        let end = Instant::now() + SOON;
        while checked(&one, 0).is_ok() {
            assert!(
                Instant::now() < end,
                "the object of a dead home server is used"
            );
            thread::sleep(Duration::from_millis(100));
        }
        assert!(one.flush().is_err());
        let why = group.client(1).open(name("grid"), BOTH).err();
        let why = why.expect("its home server is gone").to_string();
        assert!(why.contains("start it again with its --store"), "{why}");
        set(&going_on, 5, round);
        assert_eq!(get(&group.open(1, "other").1, 5), round);
        group.start(0);
    }
    let (_at_2, last) = group.open(2, "grid");
    assert_eq!(get(&last, 0), acknowledged);
}

/// A home server is told to end, and is started again at once: programs that use its objects, there and
/// at other servers, wait for that, and go on with all that was written. Nobody is told that anything is lost.
#[test]
fn programs_at_all_servers_go_on_when_their_home_is_started_again() {
    log::keep();
    let mut group = Group::new(2, |all| {
        // Server 1 has the directory.
        ["--peers".to_owned(), format!("{},{}", all[1], all[0])]
    });
    create(&group.client(0), "going-on", SchedulerKind::Distributed);
    let patient = |server: usize, own_pages: bool| {
        drop(group.open(server, "going-on"));
        let mut options = Options::new(group.address(server).parse().unwrap(), name("patient"));
        options.own_pages = own_pages;
        let client = Client::connect(options).expect("the server is there");
        let shared = client.open(name("going-on"), BOTH).expect("others have it");
        (client, shared)
    };
    let places = [(0, true), (0, false), (1, true), (1, false)];
    let programs: Vec<(Client, Shared)> = places.map(|(at, own)| patient(at, own)).into();
    for round in 1..=2_u64 {
        for (page, (_, shared)) in programs.iter().enumerate() {
            set(shared, page, 10 * round + page as u64);
        }
        group.end(0);
        group.start(0);
        for (reader, (_, shared)) in programs.iter().enumerate() {
            for page in 0..programs.len() as u64 {
                let found = checked(shared, page);
                let who = format!("page {page} at {:?}", places[reader]);
                assert_eq!(
                    found.map_err(|why| why.to_string()),
                    Ok(10 * round + page),
                    "{who}"
                );
            }
        }
    }
    let lost = log::said("going-on: the server was started again");
    assert!(lost.is_empty(), "{lost:?}");
}

/// A home server is killed, and is started again: programs with pages of their own, there and at another
/// server, bring what they had written and not given back.
#[test]
fn what_nobody_had_given_back_is_brought_to_a_home_that_was_killed() {
    log::keep();
    let mut group = Group::new(2, |all| {
        // Server 1 has the directory.
        ["--peers".to_owned(), format!("{},{}", all[1], all[0])]
    });
    create(&group.client(0), "brought", SchedulerKind::Distributed);
    let program = |server: usize| {
        drop(group.open(server, "brought"));
        let mut options = Options::new(group.address(server).parse().unwrap(), name("program"));
        (options.own_pages, options.reconnect) = (true, Some(SOON));
        let client = Client::connect(options).expect("the server is there");
        let shared = client.open(name("brought"), BOTH).expect("others have it");
        (client, shared)
    };
    let programs = [0, 1].map(program);
    // Some pages have been at the other server before.
    for page in 0..4 {
        set(&programs[(page + 1) % 2].1, page, 1);
    }
    for page in 0..8 {
        set(&programs[page % 2].1, page, 10 + page as u64);
    }
    group.kill(0);
    group.start(0);
    for readers in [0, 1] {
        for page in 0..8_usize {
            let reader = (page + readers) % 2;
            let found = checked(&programs[reader].1, page as u64);
            let found = found.map_err(|why| why.to_string());
            assert_eq!(found, Ok(10 + page as u64), "page {page} at {reader}");
        }
    }
    let lost = log::said("brought: what this program wrote");
    assert!(lost.is_empty(), "{lost:?}");
}
