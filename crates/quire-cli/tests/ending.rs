//! Servers that are told to end: what programs have written is not lost, be it kept in a store
//! or handed over to other servers. Real processes, and a real etcd.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use quire_core::dsm::sync::{Answer, Name as Point, Request};
use quire_core::units::Bytes;
use quire_dsm::client::{Client, Options, Shared};
use quire_dsm::wire::control::{MachineCode, Name, Object, PageSize, Rights, SchedulerKind};
use tempfile::TempDir;

use address::free;
use etcd::Etcd;

#[path = "common/address.rs"]
mod address;
#[path = "common/etcd.rs"]
mod etcd;
#[path = "common/signals.rs"]
mod signals;

/// How long a machine that went silent keeps what it has. Nothing here waits for that.
const LEASE: Duration = Duration::from_secs(30);
/// Everything else ends within this.
const SOON: Duration = Duration::from_secs(25);
/// Words of a page.
const WORDS: usize = 512;

const BOTH: Rights = Rights {
    read: true,
    write: true,
};

/// A server that is started again and again.
struct Server {
    process: Child,
    args: Vec<String>,
    unix: String,
    tcp: String,
    /// What it says on standard error, in lines.
    log: mpsc::Receiver<String>,
}

impl Server {
    /// A server with a socket in a directory.
    fn new(directory: &TempDir, number: usize, args: &[&str]) -> Server {
        Server::with_lease(directory, number, args, LEASE)
    }

    fn with_lease(directory: &TempDir, number: usize, args: &[&str], lease: Duration) -> Server {
        let unix = format!("unix:{}/{number}", directory.path().display());
        let tcp = free();
        let lease = lease.as_secs().to_string();
        let mut all = vec!["--lease", &lease, "--listen", &unix, "--listen", &tcp];
        all.extend(args);
        let args: Vec<String> = all.into_iter().map(str::to_owned).collect();
        let (process, log) = serve(&args);
        Server {
            process,
            args,
            unix,
            tcp,
            log,
        }
    }

    fn signal(&self, signal: &str) {
        signals::send(signal, self.process.id());
    }

    /// Waits until it has ended.
    fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + SOON;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "the server does not end");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn end(&mut self) {
        self.signal("TERM");
        assert_eq!(self.wait().code(), Some(0));
    }

    fn start(&mut self) {
        (self.process, self.log) = serve(&self.args);
    }

    /// All that it said, now that it has ended.
    fn said(&self) -> Vec<String> {
        self.log.iter().collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a server, and waits until it listens.
fn serve(args: &[String]) -> (Child, mpsc::Receiver<String>) {
    let mut process = Command::new(env!("CARGO_BIN_EXE_quire"))
        .arg("serve")
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let errors = BufReader::new(process.stderr.take().unwrap());
    let (sender, log) = mpsc::channel();
    thread::spawn(move || {
        for line in errors.lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    for _ in args.iter().filter(|arg| *arg == "--listen") {
        let line = lines.next().and_then(Result::ok).unwrap_or_default();
        assert!(line.starts_with("serving at "), "{line}: {:?}", log.recv());
    }
    (process, log)
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// A program that stands for a machine of its own.
fn apart(address: &str) -> Client {
    let mut options = Options::new(address.parse().unwrap(), name("program"));
    options.own_pages = true;
    options.reconnect = Some(SOON);
    Client::connect(options).expect("the server is there")
}

/// A program that shares the copies of its server.
fn attached(address: &str) -> Client {
    let options = Options::new(address.parse().unwrap(), name("attached"));
    Client::connect(options).expect("the server is there")
}

/// The same, and it waits long for its server.
fn beside(server: &Server) -> Client {
    let mut options = Options::new(server.unix.parse().unwrap(), name("beside"));
    options.reconnect = Some(SOON);
    Client::connect(options).expect("the server is there")
}

/// Makes an object that everybody may use, also over TCP.
fn make(server: &Server, object: &str, scheduler: SchedulerKind) {
    make_sized(
        server,
        object,
        scheduler,
        (Bytes(64 * 4096), PageSize::BASE),
    );
}

/// Makes a distributed object of [`MUCH`] pages.
fn make_large(server: &Server) {
    let page_size = PageSize::try_from(Bytes(64 << 10)).unwrap();
    let size = Bytes((MUCH << 16) as u64);
    make_sized(
        server,
        "large",
        SchedulerKind::Distributed,
        (size, page_size),
    );
}

fn make_sized(
    server: &Server,
    object: &str,
    scheduler: SchedulerKind,
    (size, page_size): (Bytes, PageSize),
) {
    let client = apart(&server.unix);
    let made = client.create(Object {
        name: name(object),
        size,
        page_size,
        scheduler,
        machine: MachineCode(0),
        tags: Vec::new(),
    });
    made.unwrap();
    client.grant(name(object), "anyone".into(), BOTH).unwrap();
}

/// An object, as soon as the rights to it have come to this server.
fn open(client: &Client, object: &str) -> Shared {
    let end = Instant::now() + SOON;
    loop {
        match client.open(name(object), BOTH) {
            Ok(shared) => return shared,
            Err(error) => assert!(Instant::now() < end, "{object}: {error}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn get(shared: &Shared, word: usize) -> u64 {
    shared.words()[word].load(Ordering::Relaxed)
}

fn set(shared: &Shared, word: usize, value: u64) {
    shared.words()[word].store(value, Ordering::Relaxed);
}

/// Increments words until it is told to stop: one that all increment, one on a page that all
/// write to, and one on a page of its own. How often.
fn count_up(shared: &Shared, me: usize, stop: &AtomicBool) -> u64 {
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        for word in [0, 1 + me, (1 + me) * WORDS] {
            shared.words()[word].fetch_add(1, Ordering::Relaxed);
        }
        done += 1;
    }
    done
}

/// How often each of these clients increments words of `grid` while something else is done.
fn counted_meanwhile(clients: &[Client], act: impl FnOnce()) -> Vec<u64> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let programs: Vec<_> = clients
            .iter()
            .map(|client| open(client, "grid"))
            .enumerate()
            .map(|(me, shared)| {
                let stop = &stop;
                scope.spawn(move || count_up(&shared, me, stop))
            })
            .collect();
        act();
        stop.store(true, Ordering::Relaxed);
        let counts = programs.into_iter().map(|program| program.join().unwrap());
        counts.collect()
    })
}

/// No increment of so many programs is lost, and none was done twice.
fn check_counts(shared: &Shared, counts: &[u64]) {
    assert_eq!(get(shared, 0), counts.iter().sum::<u64>());
    for (me, count) in counts.iter().enumerate() {
        assert!(*count > 0);
        let found = (get(shared, 1 + me), get(shared, (1 + me) * WORDS));
        assert_eq!(found, (*count, *count), "program {me}");
    }
}

/// Waits until one of the words that all increment has grown.
fn wait_for_progress(shared: &Shared) {
    let (before, end) = (get(shared, 0), Instant::now() + SOON);
    while get(shared, 0) < before + 20 {
        assert!(Instant::now() < end, "nobody goes on");
        thread::sleep(Duration::from_millis(10));
    }
}

const KINDS: [(&str, SchedulerKind); 3] = [
    ("simple", SchedulerKind::Simple),
    ("multi", SchedulerKind::Multi),
    ("joint", SchedulerKind::Distributed),
];

#[test]
fn with_a_store_nothing_is_lost_that_programs_wrote() {
    let directory = TempDir::new().unwrap();
    let store = directory.path().join("store").display().to_string();
    let mut server = Server::new(&directory, 0, &["--store", &store]);
    for (object, kind) in KINDS {
        make(&server, object, kind);
    }
    let shares = attached(&server.unix);
    for (object, _) in KINDS {
        set(&open(&shares, object), 60 * WORDS, 7);
        set(&open(&shares, object), 61 * WORDS, 8);
    }
    let clients = [apart(&server.unix), apart(&server.tcp), apart(&server.tcp)];
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let programs = KINDS.map(|(object, _)| {
            clients
                .each_ref()
                .map(|client| open(client, object))
                .into_iter()
                .enumerate()
                .map(|(me, shared)| {
                    let stop = &stop;
                    scope.spawn(move || count_up(&shared, me, stop))
                })
                .collect::<Vec<_>>()
        });
        for _ in 0..3 {
            for (object, _) in KINDS {
                wait_for_progress(&open(&apart(&server.unix), object));
            }
            server.end();
            server.start();
        }
        stop.store(true, Ordering::Relaxed);
        let reader = apart(&server.tcp);
        for ((object, _), programs) in KINDS.into_iter().zip(programs) {
            let counts = programs.into_iter().map(|program| program.join().unwrap());
            let counts: Vec<u64> = counts.collect();
            let shared = open(&reader, object);
            check_counts(&shared, &counts);
            assert_eq!((get(&shared, 60 * WORDS), get(&shared, 61 * WORDS)), (7, 8));
        }
    });
}

/// The program of [`Stopped`], which this test runs as a process of its own.
#[test]
fn program() {
    let Ok(address) = std::env::var("QUIRE_TEST_SERVER") else {
        return;
    };
    let shared = open(&apart(&address), "grid");
    // The last first: nothing is asked for ahead.
    for page in (0..3).rev() {
        set(&shared, page * WORDS, 9);
    }
    println!("written");
    loop {
        thread::park();
    }
}

/// A program in a process that is stopped while it has pages that it wrote to.
struct Stopped(Child);

impl Stopped {
    fn new(server: &Server) -> Stopped {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "program", "--nocapture"])
            .env("QUIRE_TEST_SERVER", &server.tcp)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let written = lines
            .map_while(Result::ok)
            .any(|line| line.contains("written"));
        assert!(written, "the program does not write");
        signals::send("STOP", process.id());
        Stopped(process)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_program_that_is_silent_does_not_hold_up_the_end() {
    let directory = TempDir::new().unwrap();
    let store = directory.path().join("store").display().to_string();
    let mut server = Server::new(&directory, 0, &["--store", &store]);
    make(&server, "grid", SchedulerKind::Multi);
    let (other, _stopped) = (apart(&server.tcp), Stopped::new(&server));
    let shared = open(&other, "grid");
    set(&shared, 5 * WORDS, 5);
    let begun = Instant::now();
    server.end();
    assert!(begun.elapsed() < LEASE);
    let said = server.said();
    let missing = |line: &String| line.contains("grid: 3 pages that program");
    assert!(said.iter().any(missing), "{said:?}");
    server.start();
    assert_eq!((get(&shared, 0), get(&shared, 5 * WORDS)), (0, 5));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    for (first, second, status) in [
        ("TERM", "TERM", 143),
        ("INT", "TERM", 143),
        ("TERM", "INT", 130),
    ] {
        // Where this test is held up for seconds, the server has ended before the second.
        let is_so = |_: &u32| ends_at_once(first, second) == status;
        assert!((0..5).find(is_so).is_some(), "{first}, {second}");
    }
}

/// Its exit status.
fn ends_at_once(first: &str, second: &str) -> i32 {
    let directory = TempDir::new().unwrap();
    let mut server = Server::new(&directory, 0, &[]);
    make(&server, "grid", SchedulerKind::Multi);
    let _stopped = Stopped::new(&server);
    server.signal(first);
    let options = Options::new(server.unix.parse().unwrap(), name("late"));
    let end = Instant::now() + SOON;
    while Client::connect(options.clone()).is_ok() {
        assert!(Instant::now() < end, "a server that ends welcomes programs");
    }
    server.signal(second);
    server.wait().code().unwrap_or(-1)
}

/// Servers that are joined by an etcd, if there is one.
fn joined(count: usize) -> Option<(Etcd, TempDir, Vec<Server>)> {
    joined_with(count, LEASE, |_, _| Vec::new())
}

/// Servers that are joined by an etcd, with further arguments for each.
fn joined_with(
    count: usize,
    lease: Duration,
    more: impl Fn(usize, &TempDir) -> Vec<String>,
) -> Option<(Etcd, TempDir, Vec<Server>)> {
    let is_well = |address: &str| TcpStream::connect(address).is_ok();
    let etcd = Etcd::start(Command::new("etcd"), [free(), free()], is_well)?;
    let directory = TempDir::new().unwrap();
    let server = |number| {
        let more = more(number, &directory);
        let mut args = vec!["--etcd", &etcd.url, "--plaintext"];
        args.extend(more.iter().map(String::as_str));
        Server::with_lease(&directory, number, &args, lease)
    };
    let servers = (0..count).map(server).collect();
    Some((etcd, directory, servers))
}

/// Where the first server keeps its objects.
fn store_in(directory: &TempDir) -> String {
    directory.path().join("store").display().to_string()
}

/// Has the first server keep its objects.
fn the_first_keeps(number: usize, directory: &TempDir) -> Vec<String> {
    match number {
        0 => vec!["--store".to_owned(), store_in(directory)],
        _ => Vec::new(),
    }
}

/// Three joined servers, of which the first has a store, and keeps an object that programs of all
/// have written to without giving it back: a page each in turn, over TCP and beside their server.
struct Kept {
    servers: Vec<Server>,
    _programs: Vec<(Client, Shared)>,
    directory: TempDir,
    _etcd: Etcd,
}

impl Kept {
    fn new() -> Option<Kept> {
        let (etcd, directory, servers) = joined_with(3, LEASE, the_first_keeps)?;
        make(&servers[0], "grid", SchedulerKind::Distributed);
        let over_tcp = servers.iter().map(|server| apart(&server.tcp));
        let beside = servers.iter().map(|server| attached(&server.unix));
        let programs = over_tcp.chain(beside).map(|client| {
            let shared = open(&client, "grid");
            (client, shared)
        });
        let programs: Vec<(Client, Shared)> = programs.collect();
        for page in 0..64 {
            set(&programs[page % 6].1, page * WORDS, 100 + page as u64);
        }
        // Some come to another one, which writes to them, too.
        for page in (0..64).step_by(5) {
            set(&programs[(page + 2) % 6].1, page * WORDS + 1, 300);
        }
        Some(Kept {
            servers,
            _programs: programs,
            directory,
            _etcd: etcd,
        })
    }

    /// What the first server's store has of a page, now that it has ended.
    fn kept(&self, pages: impl Iterator<Item = usize>) -> Vec<(u64, u64)> {
        let alone = Server::new(&self.directory, 9, &["--store", &store_in(&self.directory)]);
        let client = apart(&alone.unix);
        let shared = open(&client, "grid");
        let words = pages.map(|page| page * WORDS);
        words
            .map(|word| (get(&shared, word), get(&shared, word + 1)))
            .collect()
    }
}

/// What is expected of a page of [`Kept`].
fn written(page: usize) -> (u64, u64) {
    let second = if page.is_multiple_of(5) { 300 } else { 0 };
    (100 + page as u64, second)
}

#[test]
fn what_programs_wrote_at_other_servers_is_on_the_disk_of_the_one_that_ends() {
    let Some(mut kept) = Kept::new() else { return };
    let begun = Instant::now();
    kept.servers[0].end();
    assert!(begun.elapsed() < LEASE, "it waits for a lease");
    let found = kept.kept(0..64);
    assert_eq!(found, (0..64).map(written).collect::<Vec<_>>());
}

#[test]
fn all_that_programs_wrote_is_on_the_disk_when_all_servers_end_together() {
    let Some(mut kept) = Kept::new() else { return };
    kept.servers.iter().for_each(|server| server.signal("TERM"));
    for server in &mut kept.servers {
        assert_eq!(server.wait().code(), Some(0));
    }
    let found = kept.kept(0..64);
    assert_eq!(found, (0..64).map(written).collect::<Vec<_>>());
}

/// The others' is there all the same, and the status says that something is not.
#[test]
fn a_server_that_does_not_answer_holds_no_home_up() {
    let Some(mut kept) = Kept::new() else { return };
    kept.servers[2].signal("STOP");
    kept.servers[0].signal("TERM");
    assert_eq!(kept.servers[0].wait().code(), Some(1));
    let said = kept.servers[0].said();
    let silent = format!("the server at {} did not say in time", kept.servers[2].unix);
    assert!(said.iter().any(|line| line.contains(&silent)), "{said:?}");
    // Neither program of that server wrote to these, nor reads them.
    let theirs = |page: usize| [2, 5].contains(&(page % 6)) || page.is_multiple_of(5);
    let others = (0..64).filter(|page| !theirs(*page));
    let found = kept.kept(others.clone());
    assert_eq!(found, others.map(written).collect::<Vec<_>>());
    kept.servers[2].signal("CONT");
}

#[test]
fn what_a_joined_server_has_goes_to_the_others_at_once() {
    let Some((_etcd, _directory, mut servers)) = joined(3) else {
        return;
    };
    make(&servers[0], "grid", SchedulerKind::Distributed);
    let clients: Vec<Client> = servers.iter().map(|server| apart(&server.tcp)).collect();
    let shared: Vec<Shared> = clients.iter().map(|client| open(client, "grid")).collect();
    let shares = attached(&servers[0].unix);
    let there = open(&shares, "grid");
    for page in 0..32 {
        set(&shared[page % 3], page * WORDS, 100 + page as u64);
        set(&shared[0], page * WORDS + 1, 200 + page as u64);
    }
    for page in 32..64 {
        set(&there, page * WORDS, 100 + page as u64);
    }
    // Some are read elsewhere, some are written there, and come back.
    for page in (0..64).step_by(5) {
        assert_eq!(get(&shared[1], page * WORDS), 100 + page as u64);
        set(&shared[2], page * WORDS + 2, 300);
        assert_eq!(get(&shared[0], page * WORDS + 2), 300);
    }
    let begun = Instant::now();
    for ends in [0, 1] {
        servers[ends].end();
        for page in 0..64 {
            let last = &shared[2];
            assert_eq!(get(last, page * WORDS), 100 + page as u64, "page {page}");
            set(last, page * WORDS + 3, ends as u64);
            if page < 32 {
                assert_eq!(get(last, page * WORDS + 1), 200 + page as u64);
            }
        }
    }
    assert!(begun.elapsed() < LEASE, "the others wait for a lease");
}

/// What a server of several has of an object, in pages of 64 KiB: more than a link takes at once.
const MUCH: usize = 3200;

/// Has a server's programs write to much of an object.
fn write_much(server: &Server) {
    make_large(server);
    let client = attached(&server.unix);
    let shared = open(&client, "large");
    for page in 0..MUCH {
        set(&shared, page * 16 * WORDS + page % 64, page as u64 + 1);
    }
}

#[test]
fn more_than_a_link_takes_at_once_goes_to_the_others() {
    let Some((_etcd, _directory, mut servers)) = joined(2) else {
        return;
    };
    write_much(&servers[0]);
    let client = attached(&servers[1].unix);
    let there = open(&client, "large");
    servers[0].end();
    for page in 0..MUCH {
        assert_eq!(get(&there, page * 16 * WORDS + page % 64), page as u64 + 1);
    }
}

#[test]
fn what_nobody_takes_over_is_named_and_the_status_says_so() {
    let Some((_etcd, _directory, mut servers)) = joined(2) else {
        return;
    };
    write_much(&servers[0]);
    let client = attached(&servers[1].unix);
    let _there = open(&client, "large");
    servers[1].signal("STOP");
    servers[0].signal("TERM");
    assert_eq!(servers[0].wait().code(), Some(1));
    let said = servers[0].said();
    let lost = format!("large: {MUCH} pages that nobody else has");
    assert!(said.iter().any(|line| line.contains(&lost)), "{said:?}");
    servers[1].signal("CONT");
}

/// There is nobody left who would need the pages, so none of them waits for another one to take
/// them.
#[test]
fn servers_that_end_together_do_not_wait_for_each_other() {
    let Some((_etcd, _directory, mut servers)) = joined(3) else {
        return;
    };
    make(&servers[0], "grid", SchedulerKind::Distributed);
    let clients: Vec<Client> = servers
        .iter()
        .map(|server| attached(&server.unix))
        .collect();
    let shared: Vec<Shared> = clients.iter().map(|client| open(client, "grid")).collect();
    for page in 0..64 {
        set(&shared[page % 3], page * WORDS, 1);
    }
    let begun = Instant::now();
    servers.iter().for_each(|server| server.signal("TERM"));
    for server in &mut servers {
        assert_eq!(server.wait().code(), Some(0));
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
}

/// Counters go on, mutexes stay held, and who waits at a barrier waits on, when the server is
/// gone that kept them.
#[test]
fn who_meets_over_an_object_goes_on_without_the_server_that_kept_that() {
    let Some((_etcd, _directory, mut servers)) = joined(3) else {
        return;
    };
    make(&servers[0], "grid", SchedulerKind::Distributed);
    let maker = apart(&servers[0].unix);
    let _here = open(&maker, "grid");
    let clients = [1, 2].map(|server| apart(&servers[server].unix));
    let [one, two] = clients.each_ref().map(|client| open(client, "grid"));
    let point = |name: &str| Point(name.into());
    let add = |by| Request::Add {
        counter: point("count"),
        by,
    };
    let arrive = || Request::Arrive {
        barrier: point("all"),
        parties: 2,
    };
    let at_least = |value| Request::AtLeast {
        counter: point("count"),
        value,
    };
    assert_eq!(two.synchronise(add(5)).unwrap(), Answer::Value(5));
    let lock = Request::Lock(point("it"));
    assert_eq!(one.synchronise(lock.clone()).unwrap(), Answer::Done);
    thread::scope(|scope| {
        let waits = scope.spawn(|| one.synchronise(arrive()));
        let counts = scope.spawn(|| two.synchronise(at_least(8)));
        let locks = scope.spawn(|| two.synchronise(lock.clone()));
        // Those who wait have asked before this is answered, or ask when the server ends.
        assert_eq!(one.synchronise(add(1)).unwrap(), Answer::Value(6));
        let ends = scope.spawn(|| servers[0].end());
        let mut value = 6;
        while value < 8 || !ends.is_finished() {
            value += 1;
            assert_eq!(two.synchronise(add(1)).unwrap(), Answer::Value(value));
        }
        ends.join().unwrap();
        let Answer::Value(counted) = counts.join().unwrap().unwrap() else {
            panic!("no value");
        };
        assert!((8..=value).contains(&counted));
        assert_eq!(two.synchronise(arrive()).unwrap(), Answer::Done);
        assert_eq!(waits.join().unwrap().unwrap(), Answer::Done);
        let busy = Request::TryLock(point("it"));
        assert_eq!(two.synchronise(busy).unwrap(), Answer::Busy);
        let unlock = Request::Unlock(point("it"));
        assert_eq!(one.synchronise(unlock).unwrap(), Answer::Done);
        assert_eq!(locks.join().unwrap().unwrap(), Answer::Done);
        assert_eq!(one.synchronise(add(0)).unwrap(), Answer::Value(value));
    });
}

#[test]
fn servers_end_one_after_the_other_and_no_increment_is_lost() {
    let Some((_etcd, _directory, mut servers)) = joined(3) else {
        return;
    };
    make(&servers[0], "grid", SchedulerKind::Distributed);
    let addresses = servers
        .iter()
        .flat_map(|server| [&server.unix, &server.tcp]);
    let clients: Vec<Client> = addresses.map(|address| apart(address)).collect();
    let counts = counted_meanwhile(&clients, || {
        for round in 0..6 {
            let ends = round % servers.len();
            let reader = apart(&servers[(ends + 1) % 3].unix);
            let shared = open(&reader, "grid");
            wait_for_progress(&shared);
            servers[ends].end();
            wait_for_progress(&shared);
            servers[ends].start();
        }
    });
    check_counts(&open(&apart(&servers[1].tcp), "grid"), &counts);
}

/// Programs at all servers go on with all that any of them has written, whenever that was.
#[test]
fn no_increment_is_lost_while_a_home_is_started_again_and_again() {
    let lease = Duration::from_secs(2);
    let Some((_etcd, _directory, mut servers)) = joined_with(2, lease, the_first_keeps) else {
        return;
    };
    make(&servers[0], "grid", SchedulerKind::Distributed);
    let clients: Vec<Client> = servers
        .iter()
        .flat_map(|server| [apart(&server.unix), apart(&server.tcp), beside(server)])
        .collect();
    let counts = counted_meanwhile(&clients, || {
        let reader = apart(&servers[1].unix);
        let shared = open(&reader, "grid");
        for _ in 0..4 {
            wait_for_progress(&shared);
            servers[0].end();
            servers[0].start();
        }
        wait_for_progress(&shared);
    });
    check_counts(&open(&apart(&servers[1].tcp), "grid"), &counts);
}
