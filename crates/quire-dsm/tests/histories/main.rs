//! Programs in processes of their own read and write words of one object, while they are
//! killed or stopped, their links are disturbed, or the server is killed. What each of them
//! did and found, with times of one clock, has to be what one memory would have done. Those who
//! are left have to go on within a bound, and those cut off to fail with a reason.
//!
//! `QUIRE_HISTORY_SECONDS` makes each history so much longer.

use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use quire_core::units::Bytes;
use quire_dsm::client::{Client, Loss, Options, Shared};
use quire_dsm::directory::{self, Embedded, Plan as Copies, Remote, Replicated};
use quire_dsm::link::turn::Config;
use quire_dsm::link::{Address, Security, Turn};
use quire_dsm::server::{self, Host, Joining, Server};
use quire_dsm::wire::control::{
    Hello, MachineCode, Name, Object, PageSize, Rights, Role, SchedulerKind,
};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

use checker::{Kind, Operation, check, forget_lost};
use crossing::Crossing;
use proxy::{Harm, Proxy};
use replaced::check_replaced;

mod checked;
#[path = "../checker/mod.rs"]
mod checker;
mod crossing;
mod peer_servers;
mod proxy;
mod replaced;

const LEASE: Duration = Duration::from_secs(2);
/// Within this, those who are left go on, and those cut off fail.
const SOON: Duration = Duration::from_secs(30);
/// How many programs there are.
const PROGRAMS: u64 = 3;
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

fn unix(path: &Path) -> Address {
    let text = format!("unix:{}", path.display());
    text.parse().expect("an address")
}

/// The socket of a server.
fn socket(directory: &Path, number: usize) -> Address {
    unix(&crossing::own(directory, number))
}

/// How a server is joined to the others, of so many. The first keeps the directory, or all do.
fn joining(directory: &Path, number: usize, servers: usize, hello: Hello) -> Joining {
    let security = Security::Automatic(None);
    let seen = |number| unix(&crossing::seen(directory, number));
    let lease = Duration::from_secs(setting("HISTORY_LEASE").parse().expect("seconds"));
    let (shared, host): (directory::Shared, _) = match number {
        _ if setting("HISTORY_COPIES") == "true" => {
            let copy = Replicated::open(Copies {
                peers: (0..servers).map(seen).collect(),
                own: seen(number),
                place: directory.join(format!("copy-{number}")),
                lease,
                security: security.clone(),
                hello,
                realtime: true,
            });
            let copy = copy.expect("it is new");
            let host = Host::All(copy.inbox());
            (Arc::new(copy), host)
        }
        0 => {
            let embedded = Embedded::new(None).expect("nothing was kept");
            (Arc::new(embedded), Host::This)
        }
        _ => {
            let remote = Remote::new(seen(0), security.clone(), hello).expect("a thread");
            (Arc::new(remote), Host::Another)
        }
    };
    Joining {
        directory: shared,
        host,
        address: seen(number),
        names: vec![name("server")],
        security,
    }
}

/// What this process logs goes to a file of the scene, which is shown where somebody does not go on.
fn log_to(directory: &Path, who: &str) {
    let file = File::create(directory.join(format!("log-{who}"))).expect("a file");
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(Arc::new(file))
        .finish();
    tracing::subscriber::set_global_default(subscriber).expect("the first");
}

/// A process of its own: a server, for ever.
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
    let mut turn = Turn::new(Config::new(hello.clone())).expect("a loop");
    let directory = PathBuf::from(setting("HISTORY_DIRECTORY"));
    let number: usize = setting("HISTORY_SERVER").parse().expect("a number");
    log_to(&directory, &format!("server-{number}"));
    let lease: u64 = setting("HISTORY_LEASE").parse().expect("seconds");
    let any = "127.0.0.1:0".parse().expect("an address");
    let at = [any, socket(&directory, number)];
    let at = server::listen(&mut turn, &at, &Security::Automatic(None)).expect("sockets");
    let mut server = Server::new(name("server"), Duration::from_secs(lease));
    let servers: usize = setting("HISTORY_SERVERS").parse().expect("a number");
    if servers > 1 {
        let joining = joining(&directory, number, servers, hello);
        server.join(&turn, joining).expect("threads");
    }
    let file = directory.join(format!("address-{number}"));
    fs::write(file.with_extension("new"), at[0].to_string()).expect("a file");
    fs::rename(file.with_extension("new"), file).expect("a name");
    loop {
        turn.once(&mut server, Duration::from_secs(1))
            .expect("the loop goes on");
    }
}

/// A process of its own: reads and writes words, and records that. Each page has a thread, so
/// that what is still here is used while others wait for what is not.
#[test]
#[ignore = "a part of the other tests, which start it"]
fn part_program() {
    let who: u64 = setting("HISTORY_WHO").parse().expect("a number");
    let directory = PathBuf::from(setting("HISTORY_DIRECTORY"));
    log_to(&directory, &format!("program-{who}"));
    let address = setting("HISTORY_ADDRESS").parse().expect("an address");
    let mut options = Options::new(address, name("program"));
    let patience = setting("HISTORY_RECONNECT").parse().expect("seconds");
    options.reconnect = Some(Duration::from_secs(patience));
    options.own_pages = setting("HISTORY_SHARES") == "false";
    options.on_loss = Some(note_loss);
    let client = Client::connect(options).expect("the server is there");
    let both = Rights {
        read: true,
        write: true,
    };
    let begin = Instant::now();
    // A server that is being joined knows of the object when it is a member.
    let shared = loop {
        match client.open(name("words"), both) {
            Ok(shared) => break shared,
            Err(error) => assert!(begin.elapsed() < SOON, "it is there: {error}"),
        }
        thread::sleep(Duration::from_millis(50));
    };
    thread::scope(|scope| {
        for page in 0..PAGES {
            let (shared, directory) = (&shared, &directory);
            scope.spawn(move || use_page(shared, directory, who, page));
        }
    });
}

/// Something that this program wrote is lost.
fn note_loss(_: &Loss<'_>) {
    let who = setting("HISTORY_WHO").parse().expect("a number");
    let directory = PathBuf::from(setting("HISTORY_DIRECTORY"));
    File::create(told_of(&directory, who)).expect("a file");
}

/// A file that is there when a program was told that something is lost that it wrote.
fn told_of(directory: &Path, who: u64) -> PathBuf {
    directory.join(format!("told-{who}"))
}

/// Where is written what a program did with a page.
fn record_of(directory: &Path, who: u64, page: u64) -> PathBuf {
    directory.join(format!("{who}-{page}"))
}

/// A file that lets a program pause as long as it is there.
fn pause_of(directory: &Path, who: u64) -> PathBuf {
    directory.join(format!("pause-{who}"))
}

fn use_page(shared: &Shared, directory: &Path, who: u64, page: u64) {
    let mut file = File::create(record_of(directory, who, page)).expect("a file");
    let mut record = |numbers: [u64; 5]| {
        let bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_ne_bytes).collect();
        file.write_all(&bytes).expect("it is recorded");
    };
    let (over, pause) = (directory.join("over"), pause_of(directory, who));
    let user = who * PAGES + page;
    let mut random = (user + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for number in 1.. {
        while pause.exists() {
            thread::sleep(Duration::from_millis(2));
        }
        if over.exists() {
            break;
        }
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let (word, at) = (page * USED + random % USED, page * 512 + random % USED);
        let place = &shared.words()[at as usize];
        let begin = now();
        if random & (1 << 40) == 0 {
            let value = place.load(Ordering::SeqCst);
            record([READ, word, value, begin, now()]);
        } else {
            let value = user << 40 | number;
            record([BEGUN, word, value, begin, u64::MAX]);
            place.store(value, Ordering::SeqCst);
            record([WRITTEN, word, value, begin, now()]);
        }
        thread::sleep(Duration::from_micros(random >> 52));
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

/// What programs and servers of a scene are like.
struct Plan {
    scheduler: SchedulerKind,
    /// As many as there are; more than one are joined.
    servers: usize,
    /// Whether each of these has a copy of the directory.
    copies: bool,
    lease: Duration,
    /// Whether programs use Unix sockets, where their link is not the one that is disturbed.
    on_machine: bool,
    /// Whether these share the copies of their server, and stand for no machines of their own.
    shares: bool,
    /// How long programs wait for a new link.
    reconnect: Duration,
    /// These wait for a second only: they are to get none.
    hopeless: &'static [usize],
}

impl Plan {
    fn of(scheduler: SchedulerKind) -> Plan {
        Plan {
            scheduler,
            servers: 1,
            copies: false,
            lease: LEASE,
            on_machine: false,
            shares: false,
            reconnect: Duration::from_secs(10),
            hopeless: &[],
        }
    }
}

/// Servers and three programs. The first program has a link that can be disturbed.
struct Scene {
    directory: tempfile::TempDir,
    servers: Vec<Child>,
    crossing: Crossing,
    proxy: Proxy,
    programs: Vec<Child>,
}

impl Scene {
    fn start(scheduler: SchedulerKind) -> Scene {
        Scene::planned(&Plan::of(scheduler))
    }

    fn planned(plan: &Plan) -> Scene {
        // In memory, where that may be: a slow disk ends leases, and is no part of this.
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let directory = directory.expect("a directory");
        let crossing = Crossing::start(directory.path(), plan.servers);
        let serve = |number: usize| {
            let settings = [
                ("HISTORY_SERVER", number.to_string()),
                ("HISTORY_LEASE", plan.lease.as_secs().to_string()),
                ("HISTORY_SERVERS", plan.servers.to_string()),
                ("HISTORY_COPIES", plan.copies.to_string()),
            ];
            let server = part("part_server", directory.path(), &settings);
            crossing.is(number, Pid::from_child(&server));
            // The first leads: it is there before the others.
            let file = directory.path().join(format!("address-{number}"));
            (server, served_at(&file))
        };
        let (servers, at): (Vec<Child>, Vec<SocketAddr>) = (0..plan.servers).map(serve).unzip();
        let proxy = Proxy::start(at[0]);
        let mut scene = Scene {
            directory,
            servers,
            crossing,
            proxy,
            programs: Vec::new(),
        };
        scene.create(plan.scheduler);
        for who in 0..PROGRAMS as usize {
            let program = scene.program(plan, &at, who);
            scene.programs.push(program);
        }
        scene.wait_for_work();
        scene
    }

    fn program(&self, plan: &Plan, at: &[SocketAddr], who: usize) -> Child {
        let server = who % plan.servers;
        let address = match who {
            0 => self.proxy.address.to_string(),
            _ if plan.on_machine => socket(self.directory.path(), server).to_string(),
            _ => at[server].to_string(),
        };
        let reconnect = match plan.hopeless.contains(&who) {
            true => 1,
            false => plan.reconnect.as_secs(),
        };
        let settings = [
            ("HISTORY_WHO", who.to_string()),
            ("HISTORY_ADDRESS", address),
            ("HISTORY_SHARES", plan.shares.to_string()),
            ("HISTORY_RECONNECT", reconnect.to_string()),
        ];
        part("part_program", self.directory.path(), &settings)
    }

    /// Makes the object, for whoever comes over TCP as well.
    fn create(&self, scheduler: SchedulerKind) {
        let address = socket(self.directory.path(), 0);
        let client = Client::connect(Options::new(address.into(), name("maker")));
        let client = client.expect("the server is there");
        let end = Instant::now() + SOON;
        // A server that is to be joined refuses until it is a member.
        while let Err(error) = client.create(Object {
            name: name("words"),
            size: Bytes(PAGES * 4096),
            page_size: PageSize::BASE,
            scheduler,
            machine: MachineCode(0),
            tags: Vec::new(),
        }) {
            assert!(Instant::now() < end, "it is new: {error}");
            thread::sleep(Duration::from_millis(50));
        }
        let both = Rights {
            read: true,
            write: true,
        };
        let granted = client.grant(name("words"), "anyone".into(), both);
        granted.expect("it is the maker's");
    }

    /// Waits until all programs have done something with all pages.
    fn wait_for_work(&self) {
        let end = Instant::now() + SOON;
        let begun = |who| (0..PAGES).all(|page| self.recorded_of(who, page).len() > 5);
        while !(0..PROGRAMS).all(begun) {
            assert!(Instant::now() < end, "the programs do not begin");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Does something when a program has all pages, as the others pause; they go on then.
    fn when_it_has_all(&self, who: u64, act: impl FnOnce(&Scene)) {
        let others: Vec<u64> = (0..PROGRAMS).filter(|it| *it != who).collect();
        let pauses = others
            .iter()
            .map(|it| pause_of(self.directory.path(), *it))
            .collect::<Vec<_>>();
        for pause in &pauses {
            File::create(pause).expect("a file");
        }
        let done = || others.iter().map(|it| self.recorded(*it).len()).sum();
        let mut before = usize::MAX;
        while before != done() {
            before = done();
            self.go_on(&[who]);
        }
        act(self);
        for pause in &pauses {
            fs::remove_file(pause).expect("it is there");
        }
    }

    /// Waits until these programs have written to each page, and read it, what they had not
    /// begun before now.
    fn go_on(&self, who: &[u64]) {
        let (since, begin) = (now(), Instant::now());
        let is_stuck = |who: &u64| {
            (0..PAGES).any(|page| {
                let all = self.recorded_of(*who, page);
                let both = [Kind::Read, Kind::Write];
                !both.iter().all(|kind| went_on(&all, *kind, since))
            })
        };
        while who.iter().any(is_stuck) {
            let stuck: Vec<&u64> = who.iter().filter(|it| is_stuck(it)).collect();
            if begin.elapsed() >= SOON {
                let logs = self.logs();
                panic!("programs {stuck:?} do not go on\n{logs}");
            }
            thread::sleep(Duration::from_millis(50));
        }
        println!("{who:?} went on after {:?}", begin.elapsed());
    }

    /// What servers and programs have logged, in the order of time.
    fn logs(&self) -> String {
        let mut lines = Vec::new();
        for entry in fs::read_dir(self.directory.path()).into_iter().flatten() {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let Some(who) = name.strip_prefix("log-") else {
                continue;
            };
            let text = fs::read_to_string(&path).unwrap_or_default();
            lines.extend(text.lines().map(|line| {
                let (at, what) = line.split_once(' ').unwrap_or((line, ""));
                format!("{at} {who}: {what}")
            }));
        }
        lines.sort();
        lines.join("\n")
    }

    /// Waits until programs have done so much together.
    fn wait_for_operations(&self, least: usize) {
        let begin = Instant::now();
        let all = || -> usize {
            let programs = 0..self.programs.len() as u64;
            programs.map(|who| self.recorded(who).len()).sum()
        };
        while all() < least {
            assert!(begin.elapsed() < SOON, "programs do not go on");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until a program has ended.
    fn ended(&mut self, who: usize) -> ExitStatus {
        let end = Instant::now() + SOON;
        loop {
            if let Some(status) = self.programs[who].try_wait().expect("it is a child") {
                return status;
            }
            assert!(Instant::now() < end, "program {who} hangs");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(&self, who: usize, signal: Signal) {
        signal_to(&self.programs[who], signal);
    }

    fn recorded(&self, who: u64) -> Vec<Operation> {
        let pages = (0..PAGES).flat_map(|page| self.recorded_of(who, page));
        pages.collect()
    }

    fn recorded_of(&self, who: u64, page: u64) -> Vec<Operation> {
        let record = record_of(self.directory.path(), who, page);
        let bytes = fs::read(record).unwrap_or_default();
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

    /// The same where those may have lost something that were told so.
    fn finish_told(self) -> (Vec<ExitStatus>, Vec<Operation>) {
        File::create(self.directory.path().join("over")).expect("a file");
        thread::sleep(SHORT / 2 + longer());
        let is_told = |who: &u64| told_of(self.directory.path(), *who).exists();
        let told: Vec<u64> = (0..PROGRAMS).filter(is_told).collect();
        println!("told: {told:?}");
        self.finish(&told)
    }

    /// Lets the programs end, and checks what they did. Those in `losers` may have lost what
    /// they did not give back. Says how they ended, and what was done.
    fn finish(mut self, losers: &[u64]) -> (Vec<ExitStatus>, Vec<Operation>) {
        thread::sleep(SHORT / 2 + longer());
        File::create(self.directory.path().join("over")).expect("a file");
        let ends = (0..self.programs.len()).map(|who| self.ended(who));
        let ends = ends.collect();
        let all: Vec<_> = (0..PROGRAMS).flat_map(|who| self.recorded(who)).collect();
        let mut history = all.clone();
        forget_lost(&mut history, losers);
        println!("{} operations, {} kept", all.len(), history.len());
        let checked = check(&history).and_then(|()| check_replaced(&all, losers));
        if let Err(why) = checked {
            let logs = self.logs();
            panic!(
                "{why}\n{}\n{logs}",
                all.iter().map(shown).collect::<String>()
            );
        }
        (ends, all)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for child in self.programs.iter_mut().chain(&mut self.servers) {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A line about an operation, to be sorted by words and times.
fn shown(it: &Operation) -> String {
    let Operation {
        who,
        kind,
        word,
        value,
        begin,
        end,
    } = it;
    format!("word {word}: {begin} to {end}: {who} {kind:?} {value:#x}\n")
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

/// Whether something of this kind was done that began after this moment.
fn went_on(all: &[Operation], kind: Kind, since: u64) -> bool {
    let ended = |it: &Operation| it.end != u64::MAX && it.begin > since;
    all.iter().any(|it| it.kind == kind && ended(it))
}

/// Waits until programs whose memory cannot be had are told so.
fn assert_fail(scene: &mut Scene, who: &[usize]) {
    for who in who {
        let end = scene.ended(*who);
        assert_eq!(end.signal(), Some(7), "SIGBUS is what is said: {end:?}");
    }
}

/// How much longer than needed histories are to be.
fn longer() -> Duration {
    let seconds = std::env::var("QUIRE_HISTORY_SECONDS").unwrap_or_default();
    Duration::from_secs(seconds.parse().unwrap_or(0))
}

/// Does this for each case, all at once: most of the time is spent waiting.
fn each<T: Send>(cases: impl IntoIterator<Item = T>, act: impl Fn(T) + Sync) {
    thread::scope(|scope| {
        for case in cases {
            scope.spawn(|| act(case));
        }
    });
}

fn assert_all_well(ends: &[ExitStatus]) {
    assert!(ends.iter().all(ExitStatus::success), "{ends:?}");
}

/// One history.
type Act<'a> = &'a (dyn Fn() + Sync);

/// From the program, to it, and both.
const WAYS: [(bool, bool); 3] = [(true, false), (false, true), (true, true)];
const SHORT: Duration = Duration::from_secs(1);

/// The same history, but one that reads last finds what was there at the start.
fn assert_old_reads_are_found(mut all: Vec<Operation>) {
    let reads = all.iter_mut().filter(|it| it.kind == Kind::Read);
    let last = reads.max_by_key(|it| it.begin).expect("there are reads");
    last.value = 0;
    assert!(check(&all).is_err());
}

fn nothing_happens(plan: &Plan) {
    let scene = Scene::planned(plan);
    thread::sleep(SHORT);
    scene.wait_for_operations(300);
    let (ends, all) = scene.finish(&[]);
    assert_all_well(&ends);
    assert!(all.len() >= 300, "{}", all.len());
    assert_old_reads_are_found(all);
}

#[test]
fn nothing_happens_or_a_link_is_slow() {
    let kinds = [SchedulerKind::Simple, SchedulerKind::Multi];
    let quiet = kinds.map(|scheduler| move || nothing_happens(&Plan::of(scheduler)));
    let slow = || {
        let scene = Scene::start(SchedulerKind::Multi);
        scene.proxy.delay(Duration::from_millis(3));
        thread::sleep(SHORT);
        assert_all_well(&scene.finish(&[]).0);
    };
    let [simple, multi] = &quiet;
    each([simple as Act<'_>, multi, &slow], |act| act());
}

/// Programs of other machines: over TCP an end of the link does not say that the program has
/// ended. What it had is free when its lease is over.
fn a_program_is_killed(scheduler: SchedulerKind) {
    let scene = Scene::start(scheduler);
    scene.when_it_has_all(1, |it| it.signal(1, Signal::KILL));
    thread::sleep(LEASE * 3 / 2);
    scene.go_on(&[0, 2]);
    let (ends, _) = scene.finish(&[1]);
    assert_eq!(ends[1].signal(), Some(9));
    assert!(ends[0].success() && ends[2].success(), "{ends:?}");
}

/// An end of its link says that a program of the same machine is gone: nobody waits for a
/// lease to end, which would take longer than this test has. What it wrote to a copy that it
/// shared is there still.
fn a_program_of_the_same_machine_is_killed(shares: bool) {
    let scene = Scene::planned(&Plan {
        lease: SOON * 2,
        on_machine: true,
        shares,
        ..Plan::of(SchedulerKind::Multi)
    });
    scene.when_it_has_all(1, |it| it.signal(1, Signal::KILL));
    scene.go_on(&[0, 2]);
    let losers: &[u64] = match shares {
        true => &[],
        false => &[1],
    };
    let (ends, _) = scene.finish(losers);
    assert_eq!(ends[1].signal(), Some(9));
    assert!(ends[0].success() && ends[2].success(), "{ends:?}");
}

#[test]
fn programs_are_killed() {
    let acts: [Act<'_>; 4] = [
        &|| a_program_is_killed(SchedulerKind::Simple),
        &|| a_program_is_killed(SchedulerKind::Multi),
        &|| a_program_of_the_same_machine_is_killed(false),
        &|| a_program_of_the_same_machine_is_killed(true),
    ];
    each(acts, |act| act());
}

/// From one that shares its server's copy, pages are taken while it is stopped.
fn a_program_is_stopped_for_longer_than_its_lease(plan: &Plan) {
    let scene = Scene::planned(plan);
    scene.when_it_has_all(1, |it| it.signal(1, Signal::STOP));
    thread::sleep(plan.lease * 3 / 2);
    scene.go_on(&[0, 2]);
    scene.signal(1, Signal::CONT);
    scene.go_on(&[0, 1, 2]);
    assert_all_well(&scene.finish_told().0);
}

fn a_program_is_stopped_shortly_and_loses_nothing() {
    let scene = Scene::start(SchedulerKind::Simple);
    scene.signal(1, Signal::STOP);
    thread::sleep(LEASE / 4);
    scene.signal(1, Signal::CONT);
    scene.go_on(&[0, 1, 2]);
    assert_all_well(&scene.finish(&[]).0);
}

#[test]
fn programs_are_stopped() {
    let acts: [Act<'_>; 3] = [
        &|| a_program_is_stopped_for_longer_than_its_lease(&Plan::of(SchedulerKind::Simple)),
        &|| {
            a_program_is_stopped_for_longer_than_its_lease(&Plan {
                on_machine: true,
                shares: true,
                ..Plan::of(SchedulerKind::Multi)
            });
        },
        &a_program_is_stopped_shortly_and_loses_nothing,
    ];
    each(acts, |act| act());
}

fn the_server_is_killed(on_machine: bool) {
    let mut scene = Scene::planned(&Plan {
        on_machine,
        hopeless: &[0, 1, 2],
        ..Plan::of(SchedulerKind::Simple)
    });
    signal_to(&scene.servers[0], Signal::KILL);
    assert_fail(&mut scene, &[0, 1, 2]);
    scene.finish(&[0, 1, 2]);
}

fn a_link_is_cut_for_good() {
    let mut scene = Scene::planned(&Plan {
        hopeless: &[0],
        ..Plan::of(SchedulerKind::Simple)
    });
    scene.when_it_has_all(0, |it| it.proxy.hold(true, true));
    assert_fail(&mut scene, &[0]);
    scene.go_on(&[1, 2]);
    let (ends, _) = scene.finish(&[0]);
    assert_all_well(&ends[1..]);
}

#[test]
fn the_server_is_killed_or_out_of_reach() {
    let acts: [Act<'_>; 3] = [
        &|| the_server_is_killed(false),
        &|| the_server_is_killed(true),
        &a_link_is_cut_for_good,
    ];
    each(acts, |act| act());
}

/// The first program's link is held back for longer than a lease, then goes on as if
/// nothing had been: what was late must not count.
fn held(plan: &Plan, (up, down): (bool, bool)) {
    let scene = Scene::planned(plan);
    scene.when_it_has_all(0, |it| it.proxy.hold(up, down));
    thread::sleep(plan.lease * 3 / 2);
    scene.go_on(&[1, 2]);
    scene.proxy.hold(false, false);
    scene.go_on(&[0, 1, 2]);
    assert_all_well(&scene.finish_told().0);
}

#[test]
fn a_link_is_cut_one_way_or_both_and_goes_on() {
    each(WAYS, |way| held(&Plan::of(SchedulerKind::Simple), way));
}

fn a_link_breaks_and_is_made_anew(plan: &Plan) {
    let scene = Scene::planned(plan);
    for _ in 0..2 {
        scene.proxy.cut();
        thread::sleep(Duration::from_millis(400));
    }
    scene.go_on(&[0, 1, 2]);
    assert_all_well(&scene.finish_told().0);
}

/// What happens to the bytes of the first program's link ends it, and it is made anew.
fn harmed(plan: &Plan, harm: Harm) {
    let scene = Scene::planned(plan);
    scene.proxy.harm(harm);
    // A frame of which the rest never comes is found when the lease ends.
    let end = Instant::now() + SOON;
    while scene.proxy.made() < 2 {
        assert!(Instant::now() < end, "{harm:?} does not end the link");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(scene.proxy.is_harmed(), "{harm:?}");
    scene.go_on(&[0, 1, 2]);
    assert_all_well(&scene.finish_told().0);
}

#[test]
fn links_break_and_bytes_are_lost_repeated_and_spoilt() {
    let plan = Plan::of(SchedulerKind::Simple);
    let acts: [Act<'_>; 4] = [
        &|| a_link_breaks_and_is_made_anew(&plan),
        &|| harmed(&plan, Harm::Lose),
        &|| harmed(&plan, Harm::Repeat),
        &|| harmed(&plan, Harm::Spoil),
    ];
    each(acts, |act| act());
}
