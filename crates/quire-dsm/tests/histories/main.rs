//! Programs in processes of their own read and write words of one object, while they are
//! killed or stopped, their links are disturbed, or the server is killed. What each of them
//! did and found, with times of one clock, has to be what one memory would have done.

use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use quire_core::units::Bytes;
use quire_dsm::client::{Client, Options};
use quire_dsm::link::turn::Config;
use quire_dsm::link::{Address, Security, Turn};
use quire_dsm::server::{self, Server};
use quire_dsm::wire::control::{
    Hello, MachineCode, Name, Object, PageSize, Rights, Role, SchedulerKind,
};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

use checker::{Kind, Operation, check, forget_lost};
use proxy::{Harm, Proxy};

mod checked;
#[path = "../checker/mod.rs"]
mod checker;
mod proxy;

const LEASE: Duration = Duration::from_secs(2);
const PAGES: u64 = 3;
/// The words of each page that are used.
const USED: u64 = 2;
const RECORD: usize = 40;
const BEGUN: u64 = 0;
const WRITTEN: u64 = 1;
const READ: u64 = 2;

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

/// Nanoseconds on the clock that all processes share.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn setting(name: &str) -> String {
    std::env::var(name).expect("the test that starts this says so")
}

/// A process of its own: the server, for ever.
#[test]
#[ignore = "a part of the other tests, which start it"]
fn part_server() {
    let hello = Hello {
        name: name("server"),
        role: Role::Server,
        machine: MachineCode(0),
        page_size: PageSize::BASE,
        features: 0,
    };
    let mut turn = Turn::new(Config::new(hello)).expect("a loop");
    let at: [Address; 1] = ["127.0.0.1:0".parse().expect("an address")];
    let at = server::listen(&mut turn, &at, &Security::Automatic(None)).expect("a socket");
    let directory = PathBuf::from(setting("HISTORY_DIRECTORY"));
    fs::write(directory.join("address.new"), at[0].to_string()).expect("a file");
    fs::rename(directory.join("address.new"), directory.join("address")).expect("a name");
    let mut server = Server::new(name("server"), LEASE);
    loop {
        turn.once(&mut server, Duration::from_secs(1))
            .expect("the loop goes on");
    }
}

/// A process of its own: reads and writes words, and records that.
#[test]
#[ignore = "a part of the other tests, which start it"]
fn part_program() {
    let who: u64 = setting("HISTORY_WHO").parse().expect("a number");
    let length: u64 = setting("HISTORY_MILLISECONDS").parse().expect("a number");
    let directory = PathBuf::from(setting("HISTORY_DIRECTORY"));
    let mut file = File::create(directory.join(who.to_string())).expect("a file");
    let mut record = |numbers: [u64; 5]| {
        let bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_ne_bytes).collect();
        file.write_all(&bytes).expect("it is recorded");
    };
    let address = setting("HISTORY_ADDRESS").parse().expect("an address");
    let mut options = Options::new(address, name("program"));
    options.reconnect = Duration::from_secs(5);
    // Each stands for a machine of its own.
    options.own_pages = true;
    let client = Client::connect(options).expect("the server is there");
    let both = Rights {
        read: true,
        write: true,
    };
    let shared = client.open(name("words"), both).expect("it is there");
    let end = Instant::now() + Duration::from_millis(length);
    let mut random = (who + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for number in 1.. {
        if Instant::now() >= end {
            break;
        }
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let word = random % (PAGES * USED);
        let place = &shared.words()[(word / USED * 512 + word % USED) as usize];
        let begin = now();
        if random & (1 << 40) == 0 {
            let value = place.load(Ordering::SeqCst);
            record([READ, word, value, begin, now()]);
        } else {
            let value = who << 40 | number;
            record([BEGUN, word, value, begin, u64::MAX]);
            place.store(value, Ordering::SeqCst);
            record([WRITTEN, word, value, begin, now()]);
        }
        thread::sleep(Duration::from_micros(random >> 54));
    }
}

fn part(which: &str, directory: &Path, more: &[(&str, String)]) -> Child {
    let program = std::env::current_exe().expect("this test is a file");
    Command::new(program)
        .args(["--exact", which, "--ignored", "--nocapture"])
        .env("HISTORY_DIRECTORY", directory)
        .envs(more.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::null())
        .spawn()
        .expect("it can be started")
}

/// A server and three programs. The first has a link that can be disturbed.
struct Scene {
    directory: tempfile::TempDir,
    server: Child,
    proxy: Proxy,
    programs: Vec<Child>,
}

impl Scene {
    fn start(scheduler: SchedulerKind, length: Duration) -> Scene {
        let directory = tempfile::tempdir().expect("a directory");
        let server = part("part_server", directory.path(), &[]);
        let address = served_at(&directory.path().join("address"));
        let proxy = Proxy::start(address);
        let mut scene = Scene {
            directory,
            server,
            proxy,
            programs: Vec::new(),
        };
        scene.create(address, scheduler);
        let disturbed = scene.proxy.address;
        for (who, at) in [disturbed, address, address].into_iter().enumerate() {
            let settings = [
                ("HISTORY_WHO", who.to_string()),
                ("HISTORY_ADDRESS", at.to_string()),
                ("HISTORY_MILLISECONDS", length.as_millis().to_string()),
            ];
            let program = part("part_program", scene.directory.path(), &settings);
            scene.programs.push(program);
        }
        scene.wait_for_work();
        scene
    }

    fn create(&self, address: SocketAddr, scheduler: SchedulerKind) {
        let address = address.to_string().parse().expect("an address");
        let client = Client::connect(Options::new(address, name("maker")));
        let made = client.expect("the server is there").create(Object {
            name: name("words"),
            size: Bytes(PAGES * 4096),
            page_size: PageSize::BASE,
            scheduler,
            machine: MachineCode(0),
            tags: Vec::new(),
        });
        made.expect("it is new");
    }

    /// Waits until all programs have done something.
    fn wait_for_work(&self) {
        let end = Instant::now() + Duration::from_secs(30);
        while (0..3).any(|who| self.recorded(who).len() < 20) {
            assert!(Instant::now() < end, "the programs do not begin");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(&self, who: usize, signal: Signal) {
        signal_to(&self.programs[who], signal);
    }

    fn recorded(&self, who: u64) -> Vec<Operation> {
        let bytes = fs::read(self.directory.path().join(who.to_string())).unwrap_or_default();
        let mut operations: Vec<Operation> = Vec::new();
        for record in bytes.chunks_exact(RECORD) {
            let number = |at: usize| {
                let bytes = record[8 * at..8 * at + 8].try_into().expect("8 bytes");
                u64::from_ne_bytes(bytes)
            };
            if number(0) == WRITTEN {
                operations.pop().expect("what was begun");
            }
            operations.push(Operation {
                who,
                kind: if number(0) == READ {
                    Kind::Read
                } else {
                    Kind::Write
                },
                word: number(1),
                value: number(2),
                begin: number(3),
                end: number(4),
            });
        }
        operations
    }

    /// Waits for all programs, a bounded time, and checks what they did. Those in `losers`
    /// may have lost what they did not give back. Says how they ended, and what was done.
    fn finish(mut self, losers: &[u64]) -> (Vec<ExitStatus>, Vec<Operation>) {
        let end = Instant::now() + Duration::from_secs(60);
        let mut ends = Vec::new();
        for program in &mut self.programs {
            ends.push(loop {
                if let Some(status) = program.try_wait().expect("it is a child") {
                    break status;
                }
                assert!(Instant::now() < end, "a program hangs");
                thread::sleep(Duration::from_millis(20));
            });
        }
        let mut history: Vec<_> = (0..3).flat_map(|who| self.recorded(who)).collect();
        let all = history.clone();
        forget_lost(&mut history, losers);
        println!("{} operations, {} kept", all.len(), history.len());
        assert_eq!(check(&history), Ok(()));
        (ends, all)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for child in self.programs.iter_mut().chain([&mut self.server]) {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn signal_to(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("it is a child");
}

fn served_at(file: &Path) -> SocketAddr {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        if let Ok(address) = fs::read_to_string(file) {
            return address.parse().expect("an address");
        }
        assert!(Instant::now() < end, "the server does not begin");
        thread::sleep(Duration::from_millis(20));
    }
}

/// When a program did something after this moment.
fn went_on(all: &[Operation], who: u64, since: u64) -> bool {
    let ended = |it: &Operation| it.end != u64::MAX && it.begin > since;
    all.iter().any(|it| it.who == who && ended(it))
}

fn assert_all_well(ends: &[ExitStatus]) {
    assert!(ends.iter().all(ExitStatus::success), "{ends:?}");
}

const SHORT: Duration = Duration::from_secs(2);
/// Longer than a lease, its margin, and the time in which links are made anew.
const LONG: Duration = Duration::from_secs(9);

/// The same history, but one that reads last finds what was there at the start.
fn assert_old_reads_are_found(mut all: Vec<Operation>) {
    let reads = all.iter_mut().filter(|it| it.kind == Kind::Read);
    let last = reads.max_by_key(|it| it.begin).expect("there are reads");
    last.value = 0;
    assert!(check(&all).is_err());
}

#[test]
fn nothing_happens() {
    for scheduler in [SchedulerKind::Simple, SchedulerKind::Multi] {
        let (ends, all) = Scene::start(scheduler, SHORT).finish(&[]);
        assert_all_well(&ends);
        assert!(all.len() > 300, "{}", all.len());
        assert_old_reads_are_found(all);
    }
}

#[test]
fn a_program_is_killed() {
    for scheduler in [SchedulerKind::Simple, SchedulerKind::Multi] {
        let scene = Scene::start(scheduler, LONG);
        scene.signal(1, Signal::KILL);
        // Over TCP an end of the link does not say that the program has ended: what it had
        // is free when its lease is over.
        let since = now() + LEASE.as_nanos() as u64 * 3 / 2;
        let (ends, all) = scene.finish(&[1]);
        assert_eq!(ends[1].signal(), Some(9));
        assert!(ends[0].success() && ends[2].success(), "{ends:?}");
        assert!(went_on(&all, 0, since) && went_on(&all, 2, since));
    }
}

#[test]
fn a_program_is_stopped_for_longer_than_its_lease() {
    let scene = Scene::start(SchedulerKind::Simple, LONG);
    scene.signal(1, Signal::STOP);
    thread::sleep(LEASE * 2);
    let since = now();
    scene.signal(1, Signal::CONT);
    let (ends, all) = scene.finish(&[1]);
    assert_all_well(&ends);
    assert!((0..3).all(|who| went_on(&all, who, since)));
}

#[test]
fn a_program_is_stopped_shortly_and_loses_nothing() {
    let scene = Scene::start(SchedulerKind::Simple, SHORT);
    scene.signal(1, Signal::STOP);
    thread::sleep(LEASE / 4);
    scene.signal(1, Signal::CONT);
    assert_all_well(&scene.finish(&[]).0);
}

#[test]
fn the_server_is_killed() {
    let scene = Scene::start(SchedulerKind::Simple, Duration::from_secs(60));
    signal_to(&scene.server, Signal::KILL);
    let (ends, _) = scene.finish(&[0, 1, 2]);
    for end in ends {
        assert_eq!(end.signal(), Some(7), "SIGBUS is what is said: {end:?}");
    }
}

/// The first program's link is held back for longer than a lease, then goes on as if
/// nothing had been: what was late must not count.
fn held(up: bool, down: bool) {
    let scene = Scene::start(SchedulerKind::Simple, LONG);
    scene.proxy.hold(up, down);
    thread::sleep(LEASE * 2);
    let since = now();
    scene.proxy.hold(false, false);
    let (ends, all) = scene.finish(&[0]);
    assert_all_well(&ends);
    assert!((0..3).all(|who| went_on(&all, who, since)));
}

#[test]
fn a_link_is_cut_on_the_way_to_the_server() {
    held(true, false);
}

#[test]
fn a_link_is_cut_on_the_way_to_the_program() {
    held(false, true);
}

#[test]
fn a_link_is_cut_both_ways() {
    held(true, true);
}

#[test]
fn a_link_is_slow() {
    let scene = Scene::start(SchedulerKind::Multi, SHORT);
    scene.proxy.delay(Duration::from_millis(3));
    assert_all_well(&scene.finish(&[]).0);
}

#[test]
fn a_link_breaks_and_is_made_anew() {
    let scene = Scene::start(SchedulerKind::Simple, LONG);
    for _ in 0..2 {
        scene.proxy.cut();
        thread::sleep(Duration::from_millis(500));
    }
    let since = now();
    let (ends, all) = scene.finish(&[0]);
    assert_all_well(&ends);
    assert!((0..3).all(|who| went_on(&all, who, since)));
}

#[test]
fn bytes_are_lost_repeated_and_spoilt() {
    for harm in [Harm::Lose, Harm::Repeat, Harm::Spoil] {
        let scene = Scene::start(SchedulerKind::Simple, LONG);
        scene.proxy.harm(harm);
        // A frame of which the rest never comes is found when the lease ends.
        let end = Instant::now() + LEASE * 3;
        while scene.proxy.made() < 2 {
            assert!(Instant::now() < end, "{harm:?} does not end the link");
            thread::sleep(Duration::from_millis(20));
        }
        assert!(scene.proxy.is_harmed(), "{harm:?}");
        let since = now();
        let (ends, all) = scene.finish(&[0]);
        assert_all_well(&ends);
        assert!((0..3).all(|who| went_on(&all, who, since)), "{harm:?}");
    }
}
