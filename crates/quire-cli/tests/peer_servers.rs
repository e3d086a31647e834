//! Several servers that share objects: real processes that are killed, stopped and cut off,
//! joined by `--peers` or by a real etcd. Most clients of these tests have a cache of their
//! own, so each stands for a machine; those that are attached share their server's copy.

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use quire_core::dsm::message::ServerId;
use quire_core::dsm::sync::{Answer, Name as Point, Request};
use quire_core::dsm::types::Machine;
use quire_core::units::{Bytes, ObjectOffset};
use quire_dsm::client::{Client, ClientError, Options, Shared};
use quire_dsm::link::turn::{Closed, Config};
use quire_dsm::link::{Established, Handler, LinkId, Links, Security, Turn};
use quire_dsm::programs::Program;
use quire_dsm::wire::Control;
use quire_dsm::wire::control::{
    self, Handle, Hello, MachineCode, Name, Object, PageSize, Refusal, Rights, Role, SchedulerKind,
    Segment, TypeCode, Welcome,
};
use tempfile::{NamedTempFile, TempDir};

use address::free;
use etcd::Etcd;
use serving::started;

#[path = "common/address.rs"]
mod address;
#[path = "peer_servers/apart.rs"]
mod apart;
#[path = "peer_servers/bringing.rs"]
mod bringing;
#[path = "common/etcd.rs"]
mod etcd;
#[path = "peer_servers/heaps.rs"]
mod heaps;
#[path = "peer_servers/moving.rs"]
mod moving;
#[path = "common/serving.rs"]
mod serving;
#[path = "common/signals.rs"]
mod signals;

/// How long a machine that went silent keeps what it has.
const LEASE: Duration = Duration::from_secs(3);

/// Everything that waits for failures ends within this.
const SOON: Duration = Duration::from_secs(40);

const BOTH: Rights = Rights {
    read: true,
    write: true,
};

/// Servers of one group.
struct Group {
    servers: Vec<Child>,
    addresses: Vec<String>,
    _directory: TempDir,
    joined: Vec<String>,
}

impl Group {
    /// So many servers that know each other by their addresses.
    fn of(count: usize) -> Group {
        let directory = TempDir::new().unwrap();
        let address = |number| format!("unix:{}/{number}", directory.path().display());
        let all: Vec<String> = (0..count).map(address).collect();
        let joined = vec!["--peers".to_owned(), all.join(",")];
        Group::start(directory, count, joined)
    }

    fn start(directory: TempDir, count: usize, joined: Vec<String>) -> Group {
        let address = |number| format!("unix:{}/{number}", directory.path().display());
        let addresses: Vec<String> = (0..count).map(address).collect();
        let mut group = Group {
            servers: Vec::new(),
            addresses,
            _directory: directory,
            joined,
        };
        for number in 0..count {
            let server = group.serve(number);
            group.servers.push(server);
        }
        group
    }

    fn serve(&self, number: usize) -> Child {
        let lease = LEASE.as_secs().to_string();
        serve(
            &["--lease", &lease, "--listen", &self.addresses[number]],
            &self.joined,
        )
    }

    fn client(&self, server: usize) -> Client {
        self.client_with(server, |_| {})
    }

    fn client_with(&self, server: usize, change: impl FnOnce(&mut Options)) -> Client {
        let address = self.addresses[server].parse().unwrap();
        let mut options = Options::new(address, name("client"));
        // Each stands for a machine of its own.
        options.own_pages = true;
        change(&mut options);
        Client::connect(options).expect("the server is there")
    }

    /// A program of the server's machine that shares its copy of each page.
    fn attached(&self, server: usize) -> Client {
        self.client_with(server, |options| options.own_pages = false)
    }

    fn signal(&self, server: usize, signal: &str) {
        signals::send(signal, self.servers[server].id());
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// Starts a server, and waits until it listens.
fn serve(args: &[&str], more: &[String]) -> Child {
    let mut server = Command::new(env!("CARGO_BIN_EXE_quire"));
    started(server.arg("serve").args(args).args(more))
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn object(text: &str, size: Bytes, scheduler: SchedulerKind) -> Object {
    Object {
        name: name(text),
        size,
        page_size: PageSize::BASE,
        scheduler,
        machine: MachineCode(0),
        tags: Vec::new(),
    }
}

fn grid(pages: u64) -> Object {
    object("grid", Bytes(pages * 4096), SchedulerKind::Distributed)
}

fn open(client: &Client) -> Shared {
    client
        .open(name("grid"), BOTH)
        .expect("the object is there")
}

/// Does something that may take a while, but not longer than `SOON`.
fn soon<R: Send + 'static>(what: &str, act: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || done.send(act()));
    is_done
        .recv_timeout(SOON)
        .unwrap_or_else(|_| panic!("{what}: it hangs"))
}

/// The first word of a page.
fn word(shared: &Shared, page: usize) -> &quire_dsm::programs::Word {
    &shared.words()[page * 512]
}

/// Runs programs with a member at each server.
fn run_programs(group: &Group, programs: &[Program], servers: usize) {
    for program in programs {
        let first = group.client(0);
        let size = program.memory(servers);
        let made = object("grid", size, SchedulerKind::Distributed);
        first.create(made).expect("it is new");
        thread::scope(|scope| {
            let member = |me| {
                scope.spawn(move || {
                    let client = group.client(me);
                    let shared = open(&client);
                    program.run(&shared.member(me, servers), shared.words())
                })
            };
            let members: Vec<_> = (0..servers).map(member).collect();
            for (me, member) in members.into_iter().enumerate() {
                assert_eq!(member.join().unwrap(), Ok(()), "{program:?}, member {me}");
            }
        });
        let last = group.client(servers - 1);
        let shared = open(&last);
        assert_eq!(
            program.check(shared.words(), servers),
            Ok(()),
            "{program:?}"
        );
        drop(shared);
        first.remove(name("grid")).expect("nobody has it open");
    }
}

const SMALL: [Program; 5] = [
    Program::Matrix(65),
    Program::Paths(24),
    Program::Router(60),
    Program::Particles(300),
    Program::Hotspot(300),
];

#[test]
fn programs_run_across_servers() {
    run_programs(&Group::of(3), &SMALL, 3);
}

#[test]
fn names_belong_to_all_servers() {
    let group = Group::of(2);
    let (here, there) = (group.client(0), group.client(1));
    let alone = object("alone", Bytes(4096), SchedulerKind::Simple);
    here.create(alone.clone()).unwrap();
    let twice = there.create(alone).unwrap_err().to_string();
    assert!(twice.contains("already"), "{twice}");
    let elsewhere = there.open(name("alone"), BOTH).err().unwrap().to_string();
    assert!(elsewhere.contains(&group.addresses[0]), "{elsewhere}");
    there.create(grid(1)).unwrap();
    let names = |client: &Client| {
        let all = client.list().unwrap().into_iter();
        all.map(|object| object.name.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&here), ["alone", "grid"]);
    assert_eq!(names(&there), ["alone", "grid"]);
    let shared = open(&here);
    let busy = there.remove(name("grid")).unwrap_err().to_string();
    assert!(busy.contains("grid is open, once"), "{busy}");
    drop(shared);
    there.remove(name("grid")).unwrap();
    let gone = here.open(name("grid"), BOTH).err().unwrap().to_string();
    assert!(gone.contains("no object"), "{gone}");
    here.remove(name("alone")).unwrap();
    assert!(names(&there).is_empty());
}

/// An object that is discarded at one server goes when it is open at none, whoever is the last; one of a
/// single server, too.
#[test]
fn what_is_discarded_goes_with_the_last_at_any_server() {
    let group = Group::of(3);
    let clients: Vec<Client> = (0..3).map(|server| group.client(server)).collect();
    let is_gone = |client: &Client| client.list().unwrap().is_empty();
    let waits_for = |what: &dyn Fn() -> bool| {
        let begin = Instant::now();
        while !what() {
            assert!(begin.elapsed() < SOON);
            thread::sleep(Duration::from_millis(20));
        }
    };
    for last in 0..3 {
        clients[0].create(grid(1)).unwrap();
        let mut shared: Vec<Option<Shared>> = clients.iter().map(open).map(Some).collect();
        clients[1].discard(name("grid")).unwrap();
        let again = clients[1].discard(name("grid")).unwrap_err().to_string();
        assert!(again.contains("no object grid"), "{again}");
        let exact = shared[last].as_ref().expect("it is open").exact().clone();
        let again = clients[1].discard(exact).unwrap_err().to_string();
        assert!(again.contains("was removed"), "{again}");
        for server in (0..3).filter(|server| *server != last) {
            drop(shared[server].take());
        }
        let left = shared[last].as_ref().expect("it is open");
        word(left, 0).fetch_add(1, Ordering::Relaxed);
        assert!(clients.iter().all(|client| !is_gone(client)));
        drop(shared);
        waits_for(&|| clients.iter().all(is_gone));
    }
    let alone = || object("grid", Bytes(4096), SchedulerKind::Multi);
    clients[2].create(alone()).unwrap();
    let shared = open(&clients[2]);
    clients[2].discard(name("grid")).unwrap();
    drop(shared);
    waits_for(&|| is_gone(&clients[0]));
    clients[0].create(alone()).unwrap();
    clients[0].discard(name("grid")).unwrap();
    assert!(is_gone(&clients[1]));
}

/// What is begun at one server is known to all: none begins it once more, any gives it a size or removes
/// it, and it goes with its server.
#[test]
fn what_is_begun_is_begun_at_all_servers() {
    let mut group = Group::of(3);
    let clients: Vec<Client> = (0..3).map(|server| group.client(server)).collect();
    let refused = |done: Result<(), ClientError>, words: &str| {
        let why = done.expect_err(words).to_string();
        assert!(why.contains(words), "{why}");
    };
    let is_begun = |text: &str| {
        for client in &clients {
            let open = client.open(name(text), BOTH).map(drop);
            refused(open, "no size yet");
            refused(client.begin(name(text)).map(drop), "already");
        }
        assert!(listed(&clients[0]).is_empty());
    };
    let alone = || object("grid", Bytes(4096), SchedulerKind::Multi);
    for (begins, other) in [(0, 1), (1, 2), (2, 2)] {
        clients[begins].begin(name("grid")).unwrap();
        is_begun("grid");
        clients[other].discard(name("grid")).unwrap();
        refused(clients[begins].remove(name("grid")), "no object");
        // Whoever is the first to say how large it is has made it.
        clients[begins].begin(name("grid")).unwrap();
        clients[other].create(alone()).unwrap();
        refused(clients[begins].create(alone()), "already");
        refused(clients[begins].begin(name("grid")).map(drop), "already");
        // One that is removed and used leaves its name to what is begun.
        let old = open(&clients[other]);
        clients[other].discard(name("grid")).unwrap();
        clients[begins].begin(name("grid")).unwrap();
        for client in &clients {
            refused(client.open(name("grid"), BOTH).map(drop), "no size yet");
        }
        clients[other].create(grid(2)).unwrap();
        assert_eq!(open(&clients[begins]).info().size, grid(2).size);
        old.close().unwrap();
        clients[other].remove(name("grid")).unwrap();
    }
    clients[2].begin(name("grid")).unwrap();
    refused(clients[0].begin(name("grid")).map(drop), "already");
    group.servers[2].kill().unwrap();
    let begin = Instant::now();
    while let Err(why) = clients[0].begin(name("grid")) {
        assert!(begin.elapsed() < SOON, "{why}");
        thread::sleep(Duration::from_millis(100));
    }
    clients[1].create(grid(1)).unwrap();
}

/// Of programs that remove an object at the same time at different servers, one has done it, and the others
/// are told that there is none.
#[test]
fn a_name_is_removed_once() {
    let group = Group::of(3);
    let clients: Vec<Client> = (0..3).map(|server| group.client(server)).collect();
    for round in 0..24 {
        let is_begun = round % 4 == 3;
        match is_begun {
            true => drop(clients[round % 3].begin(name("grid")).unwrap()),
            false => clients[round % 3].create(grid(1)).unwrap(),
        }
        let opened = |client: &Client| client.open(name("grid"), BOTH).unwrap();
        let shared: Vec<Shared> = match round % 4 {
            0 => clients.iter().map(opened).collect(),
            1 => clients.iter().take(1).map(opened).collect(),
            _ => Vec::new(),
        };
        let barrier = Barrier::new(clients.len());
        let remove = |client: &Client| {
            barrier.wait();
            client.discard(name("grid")).map_err(|why| why.to_string())
        };
        let all: Vec<Result<(), String>> = thread::scope(|scope| {
            let all = clients.iter().map(|client| scope.spawn(|| remove(client)));
            let all: Vec<_> = all.collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let done = all.iter().filter(|removed| removed.is_ok()).count();
        assert_eq!(done, 1, "round {round}: {all:?}");
        for why in all.iter().filter_map(|removed| removed.as_ref().err()) {
            let is_none = why.contains("no object grid") || why.contains("grid was removed");
            assert!(is_none, "{why}");
        }
        drop(shared);
    }
}

/// Names of which one server's programs have something, while those of others make and remove the same one all
/// the time: each that was made is there until it is removed, and for nobody else.
#[test]
fn a_name_is_one_program_s_at_a_time() {
    let group = Group::of(2);
    let clients: Vec<Client> = (0..2).map(|server| group.client(server)).collect();
    let held = AtomicU64::new(0);
    let hold = |client: &Client| {
        let end = Instant::now() + Duration::from_secs(4);
        let mut times = 0;
        while Instant::now() < end {
            if client.create(grid(1)).is_err() {
                continue;
            }
            assert_eq!(held.fetch_add(1, Ordering::SeqCst), 0, "another has it");
            let shared = open(client);
            word(&shared, 0).fetch_add(1, Ordering::Relaxed);
            held.fetch_sub(1, Ordering::SeqCst);
            client.discard(name("grid")).expect("it is there");
            times += 1;
        }
        times
    };
    let times = thread::scope(|scope| {
        let all = clients.iter().map(|client| scope.spawn(|| hold(client)));
        let all: Vec<_> = all.collect();
        let times = all.into_iter().map(|one| one.join().unwrap());
        times.collect::<Vec<u32>>()
    });
    assert!(times.iter().all(|times| *times > 0), "{times:?}");
}

/// What was removed while its only server was stopped, and made anew at another one, keeps its name when
/// that server goes on; programs that have the old object go on with that.
#[test]
fn a_server_that_comes_back_takes_no_name_from_others() {
    let group = Group::of(2);
    let [one, other] = [0, 1].map(|server| group.client(server));
    let alone = object("grid", Bytes(4096), SchedulerKind::Multi);
    other.create(alone).unwrap();
    group.signal(1, "STOP");
    let end = Instant::now() + SOON;
    while let Err(why) = one.discard(name("grid")) {
        assert!(Instant::now() < end, "{why}");
        thread::sleep(Duration::from_millis(100));
    }
    one.create(grid(1)).unwrap();
    let shared = open(&one);
    word(&shared, 0).store(7, Ordering::Relaxed);
    group.signal(1, "CONT");
    let other = soon("the one that was stopped", move || {
        let end = Instant::now() + SOON;
        loop {
            match other.open(name("grid"), BOTH) {
                Ok(shared) => {
                    let is_new = word(&shared, 0).load(Ordering::Relaxed) == 7;
                    assert!(is_new, "it is the old one");
                    return other;
                }
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
            thread::sleep(Duration::from_millis(100));
        }
    });
    word(&shared, 0).fetch_add(1, Ordering::Relaxed);
    drop(shared);
    assert_eq!(word(&open(&other), 0).load(Ordering::Relaxed), 8);
}

/// What is begun has a key, by which it gets its size at any server. What is begun by the same name when that
/// was removed is another one.
#[test]
fn what_is_begun_has_a_key_at_all_servers() {
    let group = Group::of(3);
    let clients: Vec<Client> = (0..3).map(|server| group.client(server)).collect();
    let sized = |exact: &Name, pages: u64| Object {
        name: exact.clone(),
        ..grid(pages)
    };
    let begun = |asked: &Name| {
        let all = clients
            .iter()
            .map(|client| match client.look(asked.clone()) {
                Ok(control::Answer::Begun { exact }) => Some(exact),
                Ok(told) => panic!("{told:?}"),
                Err(_) => None,
            });
        let all: BTreeSet<Option<Name>> = all.collect();
        assert_eq!(all.len(), 1, "{all:?}");
        all.into_iter().flatten().next()
    };
    for (begins, removes, gives) in [(0, 1, 2), (1, 1, 0), (2, 0, 2)] {
        let first = clients[begins].begin(name("grid")).unwrap();
        for asked in [&name("grid"), &first] {
            assert_eq!(begun(asked).as_ref(), Some(&first));
        }
        clients[removes].discard(first.clone()).unwrap();
        assert_eq!(begun(&first), None);
        let second = clients[removes].begin(name("grid")).unwrap();
        assert_eq!(begun(&name("grid")).as_ref(), Some(&second));
        assert!(second != first && begun(&first).is_none());
        assert!(clients[gives].discard(first.clone()).is_err());
        // The old one has no name when it gets its size, and whoever knows its key shares it.
        assert!(clients[gives].give_size(sized(&first, 2)).unwrap());
        for client in &clients {
            let why = client.give_size(sized(&first, 1)).unwrap_err().to_string();
            assert!(why.contains("already"), "{why}");
        }
        let shared: Vec<Shared> = clients
            .iter()
            .map(|client| client.open(first.clone(), BOTH).unwrap())
            .collect();
        for one in &shared {
            assert_eq!(one.info().size, grid(2).size);
            word(one, 0).fetch_add(1, Ordering::Relaxed);
        }
        assert_eq!(word(&shared[0], 0).load(Ordering::Relaxed), 3);
        assert_eq!(begun(&second).as_ref(), Some(&second));
        assert_eq!(listed(&clients[gives]), [first.as_str()]);
        // Who makes it by its name makes it by its key, too.
        match begins {
            0 => assert!(!clients[removes].give_size(sized(&second, 3)).unwrap()),
            _ => clients[gives].create(grid(3)).unwrap(),
        }
        for client in &clients {
            for asked in [name("grid"), second.clone()] {
                let living = client.open(asked, BOTH).unwrap();
                assert_eq!(living.info().size, grid(3).size);
                assert_eq!(*living.exact(), second);
            }
        }
        clients[gives].discard(name("grid")).unwrap();
        drop(shared);
        let begin = Instant::now();
        while clients.iter().any(|client| !listed(client).is_empty()) {
            assert!(begin.elapsed() < SOON, "{:?}", listed(&clients[0]));
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The names of all objects, as a server lists them.
fn listed(client: &Client) -> Vec<String> {
    let all = client.list().unwrap().into_iter();
    all.map(|object| object.name.to_string()).collect()
}

/// What is discarded leaves its name to another object at once, at all servers; whoever has it goes
/// on with it, and finds it by the exact spelling of its key at any of them.
#[test]
fn a_name_that_was_removed_is_free_at_all_servers() {
    let group = Group::of(3);
    let clients: Vec<Client> = (0..3).map(|server| group.client(server)).collect();
    let mut left: Vec<Shared> = Vec::new();
    let mut spellings = Vec::new();
    // Whoever removes one need not be who made it, and who makes the next one need not have any part in
    // that.
    for (generation, (discards, makes)) in [(1, 2), (2, 0), (0, 1)].into_iter().enumerate() {
        let size = generation as u64 + 1;
        if generation == 0 {
            clients[0].create(grid(size)).unwrap();
        }
        let shared: Vec<Shared> = clients.iter().map(open).collect();
        for one in &shared {
            assert_eq!(one.info().size, grid(size).size);
            assert_eq!(one.info().name, name("grid"));
            word(one, 0).fetch_add(size, Ordering::Relaxed);
        }
        spellings.push(shared[0].exact().clone());
        clients[discards].discard(name("grid")).unwrap();
        for client in &clients {
            let none = client.open(name("grid"), BOTH).err().unwrap().to_string();
            assert!(none.contains("no object grid"), "{none}");
        }
        clients[makes].create(grid(size + 1)).unwrap();
        let taken = clients[discards].create(grid(1)).unwrap_err().to_string();
        assert!(taken.contains("grid already"), "{taken}");
        left.extend(shared.into_iter().skip(generation));
    }
    let keys: BTreeSet<Name> = spellings.iter().filter_map(Name::key).collect();
    assert_eq!(keys.len(), 3, "each has one of its own");
    for client in &clients {
        let mut names: Vec<String> = spellings.iter().map(ToString::to_string).collect();
        names.push("grid".to_owned());
        names.sort();
        assert_eq!(listed(client), names);
        for (generation, exact) in spellings.iter().enumerate() {
            let size = generation as u64 + 1;
            let old = client.open(exact.clone(), BOTH).unwrap();
            assert_eq!(word(&old, 0).load(Ordering::Relaxed), 3 * size);
        }
        let living = open(client);
        assert_eq!(living.info().size, grid(4).size);
        assert_eq!(word(&living, 0).load(Ordering::Relaxed), 0);
    }
    drop(left);
    let begin = Instant::now();
    while clients.iter().any(|client| listed(client) != ["grid"]) {
        assert!(begin.elapsed() < SOON, "{:?}", listed(&clients[0]));
        thread::sleep(Duration::from_millis(20));
    }
    clients[0].remove(name("grid")).unwrap();
    clients[1].create(grid(5)).unwrap();
    for client in &clients {
        assert_eq!(open(client).info().size, grid(5).size);
    }
}

#[test]
fn rights_count_at_all_servers() {
    let directory = TempDir::new().unwrap();
    let address = |number| format!("unix:{}/{number}", directory.path().display());
    let tcp = free();
    let joined = vec![
        "--peers".to_owned(),
        address(0),
        "--listen".to_owned(),
        tcp.clone(),
    ];
    let mut group = Group::start(directory, 1, joined);
    group.joined.truncate(2);
    group.addresses.push(group.addresses[0].replace("/0", "/1"));
    let second = group.serve(1);
    group.servers.push(second);
    let owner = group.client(1);
    owner.create(grid(1)).unwrap();
    owner.grant(name("grid"), "anyone".into(), BOTH).unwrap();
    open(&owner).words()[0].store(5, Ordering::Relaxed);
    // Over plain TCP everybody counts as anyone. Rights come over the same link as the view.
    let stranger = Client::connect(Options::new(tcp.parse().unwrap(), name("stranger"))).unwrap();
    let end = Instant::now() + SOON;
    let shared = loop {
        match stranger.open(name("grid"), BOTH) {
            Ok(shared) => break shared,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(shared.words()[0].load(Ordering::Relaxed), 5);
    drop(shared);
    let none = Rights {
        read: false,
        write: false,
    };
    owner.grant(name("grid"), "anyone".into(), none).unwrap();
    let end = Instant::now() + SOON;
    while stranger.open(name("grid"), BOTH).is_ok() {
        assert!(Instant::now() < end, "the right is not taken back");
    }
}

#[test]
fn machines_at_different_servers_get_their_own_numbers() {
    let group = Group::of(2);
    let ours = group.client(0);
    let theirs = group.client_with(1, |options| {
        options.machine = "vax-d".parse::<Machine>().unwrap();
    });
    let mut made = grid(2);
    made.tags = vec![Segment {
        start: Bytes(0),
        length: Bytes(4096),
        // A floating point number of 8 bytes.
        tag: TypeCode(6),
    }];
    ours.create(made).unwrap();
    let (mine, other) = (open(&ours), open(&theirs));
    word(&mine, 0).store(1.0f64.to_bits(), Ordering::Relaxed);
    // 1.0 is 0x4080 in the first word of VAX D.
    assert_eq!(word(&other, 0).load(Ordering::Relaxed), 0x4080);
    other.words()[1].store(0x4080, Ordering::Relaxed);
    assert_eq!(mine.words()[1].load(Ordering::Relaxed), 1.0f64.to_bits());
}

/// The server that keeps the object's mutexes and made it is killed.
fn what_survives_a_kill(group: &mut Group, killed: usize, [one, other]: [usize; 2]) {
    let maker = group.client(killed);
    maker.create(grid(4)).unwrap();
    let lost = open(&maker);
    let clients = [group.client(one), group.client(other)];
    let [first, second] = clients.each_ref().map(open);
    word(&lost, 0).store(1, Ordering::Relaxed);
    assert_eq!(word(&first, 0).load(Ordering::Relaxed), 1);
    word(&second, 1).store(2, Ordering::Relaxed);
    // Nobody but the killed server has this.
    word(&lost, 2).store(3, Ordering::Relaxed);
    let arrive = || Request::Arrive {
        barrier: Point("all".into()),
        parties: 3,
    };
    thread::scope(|scope| {
        let waits = scope.spawn(|| first.synchronise(arrive()));
        thread::sleep(Duration::from_millis(200));
        group.servers[killed].kill().unwrap();
        let told = waits.join().unwrap().unwrap_err().to_string();
        assert!(told.contains("is gone"), "{told}");
    });
    let start = Instant::now();
    let (first, second) = soon("what is left", move || {
        assert_eq!(word(&first, 1).load(Ordering::Relaxed), 2);
        assert_eq!(word(&second, 0).load(Ordering::Relaxed), 1);
        // It goes back to what it was before the killed server had it.
        assert_eq!(word(&first, 2).load(Ordering::Relaxed), 0);
        word(&first, 2).store(7, Ordering::Relaxed);
        assert_eq!(word(&second, 2).load(Ordering::Relaxed), 7);
        word(&second, 0).fetch_add(1, Ordering::Relaxed);
        assert_eq!(word(&first, 0).load(Ordering::Relaxed), 2);
        (first, second)
    });
    eprintln!("the others went on after {:?}", start.elapsed());
    let broken = second.synchronise(arrive()).unwrap();
    assert_eq!(broken, Answer::Broken);
    let mend = Request::Mend(Point("all".into()));
    assert_eq!(first.synchronise(mend).unwrap(), Answer::Done);
    // Its own program has no server any more; it is not to be waited for.
    std::mem::forget((lost, maker));
}

#[test]
fn a_server_that_is_killed_is_left_out() {
    let mut group = Group::of(3);
    what_survives_a_kill(&mut group, 2, [0, 1]);
    // Another takes its place.
    let again = group.serve(2);
    group.servers[2] = again;
    let client = group.client(2);
    let shared = soon("a new server", move || open(&client));
    assert_eq!(word(&shared, 2).load(Ordering::Relaxed), 7);
}

#[test]
fn a_server_that_is_stopped_starts_anew() {
    let group = Group::of(3);
    let clients: Vec<Client> = (0..3).map(|server| group.client(server)).collect();
    clients[0].create(grid(1)).unwrap();
    let shared: Vec<Shared> = clients.iter().map(open).collect();
    for shared in &shared {
        word(shared, 0).fetch_add(1, Ordering::Relaxed);
    }
    let stopped = Instant::now();
    group.signal(2, "STOP");
    let shared = soon("the others", move || {
        // The stopped server has the page; the others have its contents of before.
        word(&shared[0], 0).fetch_add(10, Ordering::Relaxed);
        word(&shared[1], 0).fetch_add(10, Ordering::Relaxed);
        shared
    });
    // Its programs may have used the page until their leases were over.
    assert!(stopped.elapsed() > LEASE * 3 / 2, "{:?}", stopped.elapsed());
    assert_eq!(word(&shared[0], 0).load(Ordering::Relaxed), 22);
    group.signal(2, "CONT");
    soon("the stopped one", move || {
        assert_eq!(word(&shared[2], 0).load(Ordering::Relaxed), 22);
        word(&shared[2], 0).fetch_add(100, Ordering::Relaxed);
        assert_eq!(word(&shared[0], 0).load(Ordering::Relaxed), 122);
    });
    drop(clients);
}

#[test]
fn programs_share_the_copy_of_their_own_server() {
    let mut group = Group::of(3);
    let clients: Vec<Client> = (0..6).map(|number| group.attached(number % 3)).collect();
    clients[0].create(grid(1)).unwrap();
    let shared: Vec<Shared> = clients.iter().map(open).collect();
    assert!(shared.iter().all(Shared::is_attached));
    let shared = soon("all of them", move || {
        thread::scope(|scope| {
            for shared in &shared {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        word(shared, 0).fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        shared
    });
    for shared in &shared {
        assert_eq!(word(shared, 0).load(Ordering::Relaxed), 12_000);
    }
    // Without one of the servers there is another view, and the others go on.
    word(&shared[0], 0).fetch_add(1, Ordering::Relaxed);
    assert_eq!(word(&shared[1], 0).load(Ordering::Relaxed), 12_001);
    group.servers[2].kill().unwrap();
    group.servers[2].wait().unwrap();
    let shared = soon("what is left", move || {
        word(&shared[1], 0).fetch_add(1, Ordering::Relaxed);
        for left in [0, 1, 3, 4] {
            assert_eq!(word(&shared[left], 0).load(Ordering::Relaxed), 12_002);
        }
        shared
    });
    drop((shared, clients));
}

/// What a program reads without being killed where it cannot.
fn checked(shared: &Shared) -> Option<u64> {
    let mut bytes = [0; 8];
    let read = shared.checked_read_at(ObjectOffset(0), &mut bytes);
    read.ok().map(|()| u64::from_ne_bytes(bytes))
}

#[test]
fn who_shares_a_copy_goes_on_when_its_server_was_stopped_for_too_long() {
    let group = Group::of(3);
    let client = group.client(0);
    client.create(grid(1)).unwrap();
    let elsewhere = open(&client);
    let programs = [group.attached(2), group.attached(2)];
    let [one, other] = programs.each_ref().map(open);
    assert!(one.is_attached() && other.is_attached());
    word(&one, 0).store(1, Ordering::Relaxed);
    assert_eq!(word(&elsewhere, 0).load(Ordering::Relaxed), 1);
    word(&other, 0).store(2, Ordering::Relaxed);
    group.signal(2, "STOP");
    let elsewhere = soon("the others", move || {
        word(&elsewhere, 0).store(10, Ordering::Relaxed);
        elsewhere
    });
    // From now on nobody may see what was there before.
    let reading = thread::spawn(move || (checked(&one), one));
    thread::sleep(LEASE / 4);
    group.signal(2, "CONT");
    soon("programs at the stopped server", move || {
        let (read, one) = reading.join().unwrap();
        assert_eq!(read, Some(10));
        for (shared, value) in [(&one, 10), (&other, 11)] {
            assert_eq!(checked(shared), Some(value));
            word(shared, 0).fetch_add(1, Ordering::Relaxed);
        }
        assert_eq!(word(&one, 0).load(Ordering::Relaxed), 12);
        assert_eq!(word(&elsewhere, 0).load(Ordering::Relaxed), 12);
        assert!(one.is_attached() && other.is_attached());
    });
    drop((programs, client));
}

/// A socket between two servers, all links through which can be broken.
struct Between {
    broken: Arc<Mutex<Vec<UnixStream>>>,
    links: Arc<AtomicU64>,
    /// No link is made.
    is_shut: Arc<AtomicBool>,
}

impl Between {
    fn start(from: PathBuf, to: PathBuf) -> Between {
        let socket = UnixListener::bind(from).unwrap();
        let broken: Arc<Mutex<Vec<UnixStream>>> = Arc::default();
        let links = Arc::new(AtomicU64::new(0));
        let is_shut = Arc::new(AtomicBool::new(false));
        let (all, count, shut) = (broken.clone(), links.clone(), is_shut.clone());
        thread::spawn(move || {
            for one in socket.incoming() {
                if shut.load(Ordering::Relaxed) {
                    continue;
                }
                let (Ok(one), Ok(other)) = (one, UnixStream::connect(&to)) else {
                    continue;
                };
                count.fetch_add(1, Ordering::Relaxed);
                let mut all = all.lock().unwrap();
                for (from, into) in [(&one, &other), (&other, &one)] {
                    let (from, into) = (from.try_clone().unwrap(), into.try_clone().unwrap());
                    thread::spawn(move || carry(from, into));
                }
                all.extend([one, other]);
            }
        });
        Between {
            broken,
            links,
            is_shut,
        }
    }

    fn shut(&self, is_shut: bool) {
        self.is_shut.store(is_shut, Ordering::Relaxed);
        self.break_all();
    }

    fn break_all(&self) {
        for stream in self.broken.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn carry(mut from: UnixStream, mut into: UnixStream) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) if into.write_all(&buffer[..count]).is_ok() => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    let _ = into.shutdown(std::net::Shutdown::Both);
}

/// Two servers whose links to each other go over sockets between, which can be broken.
fn two_with_sockets_between() -> (Group, Vec<Between>) {
    two_between(&[])
}

/// The same, where the second server has these arguments, too.
fn two_between(more: &[&str]) -> (Group, Vec<Between>) {
    let directory = TempDir::new().unwrap();
    let path = |text: &str| directory.path().join(text);
    let [real, seen] = [["0", "1"], ["seen-0", "seen-1"]];
    let between: Vec<Between> = (0..2)
        .map(|number| Between::start(path(seen[number]), path(real[number])))
        .collect();
    let address = |text: &str| format!("unix:{}", path(text).display());
    // The directory is asked past the sockets between, so that leases live.
    let lease = LEASE.as_secs().to_string();
    let both = (0..2).map(|number| {
        let joined = [
            "--peers",
            &address(seen[0]),
            "--advertise",
            &address(seen[number]),
        ];
        let peers = match number {
            0 => joined.map(str::to_owned).to_vec(),
            _ => vec![
                "--peers".to_owned(),
                address(real[0]),
                "--advertise".to_owned(),
                address(seen[1]),
            ],
        };
        let listen = address(real[number]);
        let mut args = vec!["--lease", &lease, "--listen", &listen];
        args.extend(more.iter().filter(|_| number == 1));
        serve(&args, &peers)
    });
    let servers = both.collect();
    let group = Group {
        servers,
        addresses: real.map(address).to_vec(),
        _directory: directory,
        joined: Vec::new(),
    };
    (group, between)
}

/// Links between servers break again and again while pages go to and fro over them. Nothing
/// is lost: each break costs a view.
#[test]
fn links_between_servers_that_break_lose_nothing() {
    let (group, between) = two_with_sockets_between();
    let clients = [group.client(0), group.client(1)];
    clients[0].create(grid(2)).unwrap();
    let all = clients.each_ref().map(open);
    let is_over = Arc::new(AtomicU64::new(0));
    let counters = all.map(|shared| {
        let is_over = Arc::clone(&is_over);
        thread::spawn(move || {
            let mut count: u64 = 0;
            while is_over.load(Ordering::Relaxed) == 0 {
                word(&shared, 0).fetch_add(1, Ordering::Relaxed);
                word(&shared, 1).load(Ordering::Relaxed);
                count += 1;
            }
            (shared, count)
        })
    });
    for _ in 0..6 {
        thread::sleep(Duration::from_millis(300));
        between.iter().for_each(Between::break_all);
    }
    thread::sleep(Duration::from_millis(300));
    is_over.store(1, Ordering::Relaxed);
    let (all, counts): (Vec<Shared>, Vec<u64>) = soon("counting", move || {
        counters.into_iter().map(|it| it.join().unwrap()).unzip()
    });
    let counted: u64 = counts.iter().sum();
    for shared in &all {
        assert_eq!(word(shared, 0).load(Ordering::Relaxed), counted);
    }
    let links: u64 = between
        .iter()
        .map(|it| it.links.load(Ordering::Relaxed))
        .sum();
    assert!(links >= 5, "only {links} links were made");
    assert!(counted > 100, "only {counted} times");
}

#[test]
fn without_the_directory_all_stop_and_start_anew() {
    let mut group = Group::of(2);
    let client = group.client_with(1, |options| options.reconnect = Some(LEASE / 2));
    client.create(grid(1)).unwrap();
    drop(open(&client));
    group.servers[0].kill().unwrap();
    group.servers[0].wait().unwrap();
    // The server that is left has no lease any more.
    thread::sleep(2 * LEASE);
    let client = group.client(1);
    let stuck = soon("opening", move || client.open(name("grid"), BOTH).err());
    let stuck = stuck.expect("nobody may have it").to_string();
    assert!(stuck.contains("directory"), "{stuck}");
    let again = group.serve(0);
    group.servers[0] = again;
    let client = group.client(1);
    soon("making it again", move || {
        while let Err(error) = client.create(grid(1)) {
            eprintln!("{error}");
            thread::sleep(LEASE / 10);
        }
        word(&open(&client), 0).store(1, Ordering::Relaxed);
    });
}

fn etcd() -> Option<Etcd> {
    let is_well = |address: &str| std::net::TcpStream::connect(address).is_ok();
    Etcd::start(Command::new("etcd"), [free(), free()], is_well)
}

impl Group {
    /// Servers that meet in an etcd.
    fn in_etcd(etcd: &Etcd, count: usize) -> Group {
        thread::sleep(Duration::from_secs(1));
        let joined = vec!["--etcd".to_owned(), etcd.url.clone()];
        Group::start(TempDir::new().unwrap(), count, joined)
    }
}

#[test]
fn servers_meet_in_etcd_and_any_of_them_may_be_killed() {
    let Some(etcd) = etcd() else { return };
    let mut group = Group::in_etcd(&etcd, 3);
    run_programs(&group, &[Program::Matrix(65), Program::Hotspot(300)], 3);
    what_survives_a_kill(&mut group, 0, [1, 2]);
}

/// An etcd that demands certificates, which are made as for servers.
#[test]
fn servers_meet_in_an_etcd_with_certificates() {
    let directory = TempDir::new().unwrap();
    let path = |file: &str| directory.path().join(file).display().to_string();
    for (place, names) in [
        ("keys", &["localhost", "server"][..]),
        ("others", &["server"]),
    ] {
        let made = Command::new(env!("CARGO_BIN_EXE_quire"))
            .args(["dsm", "certify", "--directory", &path(place)])
            .args(names)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
    }
    let mut command = Command::new("etcd");
    command
        .args([
            "--client-cert-auth",
            "--trusted-ca-file",
            &path("keys/ca.pem"),
        ])
        .args(["--cert-file", &path("keys/localhost.pem")])
        .args(["--key-file", &path("keys/localhost.key")]);
    let is_well = |address: &str| std::net::TcpStream::connect(address).is_ok();
    let Some(etcd) = Etcd::start_as("https", command, [free(), free()], is_well) else {
        return;
    };
    thread::sleep(Duration::from_secs(1));
    let url = etcd.url.replace("127.0.0.1", "localhost");
    let joined = |ca: &str, own: Option<&str>| {
        let mut args = vec!["--etcd".to_owned(), url.clone()];
        args.extend(["--etcd-ca".to_owned(), path(ca)]);
        if let Some(own) = own {
            args.extend(["--etcd-certificate".to_owned(), path(&format!("{own}.pem"))]);
            args.extend(["--etcd-key".to_owned(), path(&format!("{own}.key"))]);
        }
        args
    };
    let right = joined("keys/ca.pem", Some("keys/server"));
    let group = Group::start(TempDir::new().unwrap(), 2, right);
    run_programs(&group, &[Program::Hotspot(100)], 2);

    let refused = |args: &[String], status: i32, words: &[&str]| {
        let listen = path("socket");
        let output = Command::new(env!("CARGO_BIN_EXE_quire"))
            .args(["serve", "--listen", &format!("unix:{listen}")])
            .args(args)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{args:?}: {error}");
        for word in words {
            assert!(error.contains(word), "{args:?}: {error}");
        }
    };
    let wrong = joined("others/ca.pem", Some("keys/server"));
    refused(
        &wrong,
        1,
        &["its certificate is not from the CA that was given"],
    );
    refused(&joined("keys/ca.pem", None), 1, &["--etcd-certificate"]);
    let stranger = joined("keys/ca.pem", Some("others/server"));
    refused(&stranger, 1, &["does not answer"]);
    let without = ["--etcd".to_owned(), url.clone()];
    refused(&without, 2, &["--etcd-ca FILE"]);
    refused(&joined("keys/none", None), 2, &["keys/none"]);
    let other = etcd.url.clone();
    let other = [
        &["--etcd".to_owned(), other],
        &joined("keys/ca.pem", None)[2..],
    ]
    .concat();
    refused(&other, 1, &["is for localhost, not for 127.0.0.1"]);
}

#[test]
fn a_server_cut_off_from_etcd_stops_what_it_has() {
    let Some(etcd) = etcd() else { return };
    let group = Group::in_etcd(&etcd, 1);
    let client = group.client_with(0, |options| options.reconnect = Some(LEASE / 2));
    client.create(grid(1)).unwrap();
    signals::send("STOP", etcd.process.id());
    thread::sleep(5 * LEASE);
    let other = group.client(0);
    let stuck = soon("opening", move || other.open(name("grid"), BOTH).err());
    signals::send("CONT", etcd.process.id());
    let stuck = stuck.expect("nobody may have it").to_string();
    assert!(stuck.contains("directory"), "{stuck}");
}

/// With TLS, a peer server has to show that it has the name of a server.
#[test]
fn peer_servers_are_known_by_their_certificates() {
    let directory = TempDir::new().unwrap();
    let made = Command::new(env!("CARGO_BIN_EXE_quire"))
        .args(["dsm", "certify", "server", "node-1", "--directory"])
        .arg(directory.path())
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let addresses = [free(), free(), free()];
    let lease = LEASE.as_secs().to_string();
    let known_as = |number: usize, name: &str| {
        let path = |file: &str| directory.path().join(file).display().to_string();
        let mut args = vec!["--peers".to_owned(), addresses.join(",")];
        args.extend([
            "--name".to_owned(),
            name.to_owned(),
            "--tls-everywhere".to_owned(),
        ]);
        args.extend(["--certificate".to_owned(), path(&format!("{name}.pem"))]);
        args.extend(["--key".to_owned(), path(&format!("{name}.key"))]);
        args.extend(["--ca".to_owned(), path("ca.pem")]);
        serve(&["--lease", &lease, "--listen", &addresses[number]], &args)
    };
    let servers = vec![
        known_as(0, "server"),
        known_as(1, "server"),
        known_as(2, "node-1"),
    ];
    let quire = |server: usize, args: &[&str]| {
        let path = |file: &str| directory.path().join(file).display().to_string();
        Command::new(env!("CARGO_BIN_EXE_quire"))
            .arg("object")
            .args(args)
            .args(["--server", &addresses[server], "--identity", "node-1"])
            .args(["--tls-everywhere", "--certificate", &path("node-1.pem")])
            .args(["--key", &path("node-1.key"), "--ca", &path("ca.pem")])
            .output()
            .unwrap()
    };
    let create = [
        "create",
        "grid",
        "--size",
        "4K",
        "--scheduler",
        "distributed",
    ];
    let made = quire(0, &create);
    assert!(made.status.success(), "{made:?}");
    let seen = quire(1, &["stat", "grid"]);
    assert!(seen.status.success(), "{seen:?}");
    // What is no server is not let in.
    let strange = quire(2, &["stat", "grid"]);
    assert!(!strange.status.success(), "{strange:?}");
    for mut server in servers {
        server.kill().unwrap();
        server.wait().unwrap();
    }
}

/// Says that it is a server, and sends one message.
struct Liar {
    sends: Option<Control>,
    ended: Option<String>,
}

impl Handler for Liar {
    fn greeted(&mut self, _: &mut Links, _: LinkId, _: &Established) -> Result<Welcome, Refusal> {
        unreachable!("it listens nowhere")
    }

    fn welcomed(&mut self, links: &mut Links, link: LinkId, _: &Welcome) {
        links.send(link, self.sends.take().unwrap());
    }

    fn message(&mut self, _: &mut Links, _: LinkId, _: Control, _: Vec<OwnedFd>) {}

    fn closed(&mut self, _: &mut Links, _: LinkId, closed: &Closed) {
        self.ended = Some(closed.why.to_string());
    }
}

/// What becomes of a server that sends this as its first message to another.
fn lied(address: &str, body: &[u8]) -> String {
    let hello = Hello {
        name: name("server"),
        role: Role::Server,
        machine: MachineCode(0),
        page_size: PageSize::BASE,
        features: 0,
    };
    let mut turn = Turn::new(Config::new(hello)).unwrap();
    let address = address.parse().unwrap();
    let plain = Security::Automatic(None);
    turn.links.connect(&address, &plain, None).unwrap();
    let mut liar = Liar {
        sends: Some(Control::PeerServer {
            object: Handle(0),
            from: ServerId(7),
            body: body.to_vec(),
            data: Vec::new(),
        }),
        ended: None,
    };
    let end = Instant::now() + SOON;
    while liar.ended.is_none() && Instant::now() < end {
        turn.once(&mut liar, Duration::from_millis(50)).unwrap();
    }
    liar.ended.expect("it is not cut off")
}

#[test]
fn a_server_that_sends_garbage_is_cut_off_and_harms_nobody() {
    let group = Group::of(2);
    let clients = [group.client(0), group.client(1)];
    clients[0].create(grid(1)).unwrap();
    let [one, other] = clients.each_ref().map(open);
    word(&one, 0).store(3, Ordering::Relaxed);
    for address in &group.addresses {
        for garbage in [&[][..], &[0], &[0, 200, 1, 2], &[0, 0, 99]] {
            let ended = lied(address, garbage);
            assert!(ended.contains("goodbye"), "{garbage:?}: {ended}");
        }
    }
    assert_eq!(word(&other, 0).load(Ordering::Relaxed), 3);
    word(&other, 0).store(4, Ordering::Relaxed);
    assert_eq!(word(&one, 0).load(Ordering::Relaxed), 4);
    // A server alone has no peer servers.
    let directory = TempDir::new().unwrap();
    let alone = Group::start(directory, 1, Vec::new());
    let ended = lied(&alone.addresses[0], &[0]);
    assert!(ended.contains("no peer servers"), "{ended}");
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |args: &[&str], words: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_quire"))
            .arg("serve")
            .args(args)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(words), "{args:?}: {error}");
    };
    let both = ["--peers", "unix:/x", "--etcd", "http://127.0.0.1:1"];
    refused(&both, "--etcd");
    let any = [
        "--listen",
        "0.0.0.0:0",
        "--plaintext",
        "--peers",
        "127.0.0.1:9",
    ];
    refused(&any, "--advertise");
    let user = ["--etcd", "http://127.0.0.1:1", "--etcd-user", "node"];
    refused(&user, "--etcd-password-file");
    let file = NamedTempFile::new().unwrap();
    let password = file.path().to_str().unwrap();
    let with = [&user[..], &["--etcd-password-file", password]].concat();
    fs::set_permissions(password, fs::Permissions::from_mode(0o644)).unwrap();
    refused(&with, "chmod 600");
    fs::remove_file(password).unwrap();
    refused(&with, password);
}
