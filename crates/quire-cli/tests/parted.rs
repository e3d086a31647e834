//! Partitions of a real network: three servers in namespaces of their own, with a program each
//! that increments one word. The link of one is cut, one way or both. Those on the side of the
//! directory, or of most of its copies, go on; programs of the others fail with SIGBUS and a reason in the log. No
//! increment of those who go on is lost, none is counted twice, and when the link is mended
//! the servers join again.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use quire_core::units::Bytes;
use quire_dsm::client::{Client, Options, Shared};
use quire_dsm::wire::control::{MachineCode, Name, Object, PageSize, Rights, SchedulerKind};
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

use account::{Increment, check};
use etcd::Etcd;
use network::{Network, Way, address};
use retrying::{SOON, until_done};

#[path = "parted/account.rs"]
mod account;
#[path = "common/etcd.rs"]
mod etcd;
#[path = "parted/network.rs"]
mod network;
#[path = "common/retrying.rs"]
mod retrying;

const SERVERS: usize = 3;
const LEASE: Duration = Duration::from_secs(3);
/// How much later than they should a busy machine lets programs go on.
const LATE: Duration = Duration::from_secs(10);
const BOTH: Rights = Rights {
    read: true,
    write: true,
};

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// Nanoseconds on the clock that all processes share.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Where the servers meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Directory {
    /// In the first of them.
    First,
    /// At all of them.
    All,
    /// On a machine of its own.
    Etcd,
}

/// A process of its own: increments the word, and records that.
#[test]
#[ignore = "a part of the other tests, which start it"]
fn part_program() {
    let setting = |name: &str| std::env::var(name).expect("the test that starts this says so");
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let mut options = Options::new(setting("PARTED_SERVER").parse().unwrap(), name("program"));
    options.own_pages = setting("PARTED_SHARES") == "false";
    options.reconnect = Some(Duration::from_secs(1));
    let client = Client::connect(options).expect("the server is there");
    // A server that joins again knows of the object when it is a member.
    let shared = until_done(|| client.open(name("grid"), BOTH));
    let mut file = File::create(setting("PARTED_RECORD")).unwrap();
    let [pause, over] = ["PARTED_PAUSE", "PARTED_OVER"].map(setting);
    while !fs::exists(&over).unwrap() {
        while fs::exists(&pause).unwrap() {
            thread::sleep(Duration::from_millis(5));
        }
        let begin = now();
        let value = shared.words()[0].fetch_add(1, Ordering::SeqCst) + 1;
        let bytes = [value, begin, now()].map(u64::to_ne_bytes);
        file.write_all(&bytes.concat()).unwrap();
        thread::sleep(Duration::from_millis(5));
    }
}

/// A program, which is to go on or to fail.
struct Program {
    process: Child,
    server: usize,
}

struct Scene {
    programs: Vec<Program>,
    servers: Vec<Child>,
    etcd: Option<Etcd>,
    network: Network,
    /// Whether programs share the copies of their servers.
    shares: bool,
    files: TempDir,
}

impl Drop for Scene {
    fn drop(&mut self) {
        let programs = self.programs.iter_mut().map(|it| &mut it.process);
        for process in programs.chain(&mut self.servers) {
            // It may have ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Scene {
    /// Servers and their programs, at work. None, with a line, where that cannot be had.
    fn start(directory: Directory, shares: bool) -> Option<Scene> {
        let has_etcd = directory == Directory::Etcd;
        if has_etcd && Command::new("etcd").arg("--version").output().is_err() {
            println!("SKIP: no etcd, run ./setup");
            return None;
        }
        let network = match Network::of(SERVERS + usize::from(has_etcd)) {
            Ok(network) => network,
            Err(error) => {
                println!("SKIP: no network namespaces with a bridge: {error}");
                return None;
            }
        };
        let mut scene = Scene {
            programs: Vec::new(),
            servers: Vec::new(),
            etcd: None,
            network,
            shares,
            files: TempDir::new().unwrap(),
        };
        let joined = match directory {
            Directory::First | Directory::All => {
                let all: Vec<String> = (0..SERVERS).map(served_at).collect();
                ["--peers".to_owned(), all.join(",")]
            }
            Directory::Etcd => ["--etcd".to_owned(), scene.start_etcd()?],
        };
        for number in 0..SERVERS {
            let mut joined = joined.to_vec();
            if directory == Directory::All {
                let copy = scene.file(&format!("directory-{number}"));
                joined.extend(["--replicate-directory".to_owned(), copy]);
            }
            let server = scene.serve(number, &joined);
            scene.servers.push(server);
        }
        scene.create();
        for server in 0..SERVERS {
            scene.add_program(server);
        }
        scene.go_on(&[0, 1, 2]);
        Some(scene)
    }

    fn file(&self, name: &str) -> String {
        self.files.path().join(name).display().to_string()
    }

    fn socket(&self, server: usize) -> String {
        format!("unix:{}", self.file(&format!("socket-{server}")))
    }

    /// Starts an etcd at the machine behind the servers'. Its URL.
    fn start_etcd(&mut self) -> Option<String> {
        let at = [2379, 2380].map(|port| format!("{}:{port}", address(SERVERS)));
        let asks = format!(
            "exec 3<>/dev/tcp/{}/2379 && printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3 && grep -q true <&3",
            address(SERVERS)
        );
        let is_well = |_: &str| {
            let mut asking = self.network.at(0, "bash");
            asking
                .args(["-c", &asks])
                .output()
                .unwrap()
                .status
                .success()
        };
        let etcd = Etcd::start(self.network.at(SERVERS, "etcd"), at, is_well)?;
        let url = etcd.url.clone();
        self.etcd = Some(etcd);
        Some(url)
    }

    fn serve(&self, number: usize, joined: &[String]) -> Child {
        let log = File::create(self.file(&format!("server-{number}.log"))).unwrap();
        let mut server = self.network.at(number, env!("CARGO_BIN_EXE_quire"));
        let lease = LEASE.as_secs().to_string();
        server
            .args(["serve", "--plaintext", "--lease", &lease])
            .args(["--listen", &served_at(number)])
            .args(["--listen", &self.socket(number)])
            .args(joined)
            .stdout(Stdio::null())
            .stderr(log);
        let server = server.spawn().unwrap();
        // The first is there before the others ask it.
        until_done(|| Client::connect(self.options(number)).map(drop));
        server
    }

    fn options(&self, server: usize) -> Options {
        let mut options = Options::new(self.socket(server).parse().unwrap(), name("test"));
        options.own_pages = true;
        options
    }

    fn create(&self) {
        let client = Client::connect(self.options(0)).unwrap();
        let grid = Object {
            name: name("grid"),
            size: Bytes(4096),
            page_size: PageSize::BASE,
            scheduler: SchedulerKind::Distributed,
            machine: MachineCode(0),
            tags: Vec::new(),
        };
        // It refuses until it is a member.
        until_done(|| client.create(grid.clone()));
    }

    /// One more program, at a server. Its number.
    fn add_program(&mut self, server: usize) -> usize {
        let number = self.programs.len();
        let log = File::create(self.file(&format!("program-{number}.log"))).unwrap();
        let this = std::env::current_exe().unwrap();
        let mut program = self.network.at(server, &this.display().to_string());
        program
            .args(["--exact", "part_program", "--ignored", "--nocapture"])
            .env("PARTED_SERVER", self.socket(server))
            .env("PARTED_SHARES", self.shares.to_string())
            .env("PARTED_RECORD", self.file(&format!("program-{number}")))
            .env("PARTED_PAUSE", self.file(&format!("pause-{server}")))
            .env("PARTED_OVER", self.file("over"))
            .stdout(Stdio::null())
            .stderr(log);
        self.programs.push(Program {
            process: program.spawn().unwrap(),
            server,
        });
        number
    }

    fn done_by(&self, program: usize) -> Vec<Increment> {
        let bytes = fs::read(self.file(&format!("program-{program}"))).unwrap_or_default();
        let number = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
        let increment = |record: &[u8]| Increment {
            value: number(&record[..8]),
            begin: number(&record[8..16]),
            end: number(&record[16..]),
        };
        bytes.chunks_exact(24).map(increment).collect()
    }

    fn log(&self, of: &str) -> String {
        fs::read_to_string(self.file(&format!("{of}.log"))).unwrap()
    }

    /// Cuts a link while those who are to be cut off have the page. The moment of it.
    fn cut(&self, partition: &Partition, stay: &[usize]) -> u64 {
        let pauses = stay.iter().map(|it| self.file(&format!("pause-{it}")));
        let pauses: Vec<String> = pauses.collect();
        for pause in &pauses {
            File::create(pause).unwrap();
        }
        let done = || stay.iter().map(|it| self.done_by(*it).len()).sum::<usize>();
        let mut before = usize::MAX;
        while before != done() {
            before = done();
            self.go_on(partition.away);
        }
        self.network.cut(partition.machine, partition.way, true);
        let cut = now();
        for pause in &pauses {
            fs::remove_file(pause).unwrap();
        }
        cut
    }

    /// Waits until programs have done increments that they had not begun before now.
    fn go_on(&self, programs: &[usize]) {
        let since = now();
        let begin = Instant::now();
        let goes_on = |program: &usize| {
            let all = self.done_by(*program).into_iter();
            all.filter(|it| it.begin > since).count() >= 5
        };
        while !programs.iter().all(goes_on) {
            assert!(begin.elapsed() < SOON, "programs {programs:?} do not go on");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a program whose server is cut off has failed, and looks for the reason.
    fn fails(&mut self, program: usize) {
        let begin = Instant::now();
        let process = &mut self.programs[program].process;
        let end = loop {
            if let Some(end) = process.try_wait().unwrap() {
                break end;
            }
            assert!(begin.elapsed() < SOON, "program {program} hangs");
            thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(end.signal(), Some(7), "SIGBUS is what is said: {end:?}");
        let server = self.programs[program].server;
        let log = self.log(&format!("server-{server}"));
        assert!(
            log.contains("what it has of shared objects is given up"),
            "{log}"
        );
        let reason = match self.shares {
            true => "the memory of grid fails",
            false => "all of the memory fails",
        };
        let log = self.log(&format!("program-{program}"));
        assert!(log.contains(reason), "{log}");
    }

    /// The value of the word, at a server.
    fn value_at(&self, server: usize) -> u64 {
        let client = Client::connect(self.options(server)).unwrap();
        let shared: Shared = client.open(name("grid"), BOTH).unwrap();
        shared.words()[0].load(Ordering::SeqCst)
    }

    /// Lets programs end, and compares what they did with the word.
    fn finish(mut self, losers: &[usize], cut: u64) {
        File::create(self.file("over")).unwrap();
        let all = 0..self.programs.len();
        let (lost, kept): (Vec<usize>, Vec<usize>) = all.partition(|it| losers.contains(it));
        for program in &kept {
            let end = self.programs[*program].process.wait().unwrap();
            assert!(end.success(), "program {program}: {end:?}");
        }
        let values: Vec<u64> = (0..SERVERS).map(|server| self.value_at(server)).collect();
        assert_eq!(values, [values[0]; SERVERS], "there is one page");
        let done = |of: &[usize]| {
            of.iter()
                .flat_map(|it| self.done_by(*it))
                .collect::<Vec<_>>()
        };
        let (kept, losers) = (done(&kept), done(&lost));
        let lost = check(&kept, &losers, values[0]).unwrap();
        let paused = longest_pause(&kept, cut);
        println!("{} increments, {lost} lost, none for {paused:?}", values[0]);
        assert!(lost > 0, "nobody was cut off with the page");
        // The lease in the directory; then that of the programs, and its margin.
        assert!(paused < LEASE * 9 / 4 + LATE, "{paused:?}");
    }
}

/// Where a server listens for the others.
fn served_at(server: usize) -> String {
    format!("{}:7450", address(server))
}

/// The longest time from this moment on in which nothing was done.
fn longest_pause(all: &[Increment], since: u64) -> Duration {
    let ends = all.iter().map(|it| it.end).filter(|end| *end > since);
    let mut ends: Vec<u64> = ends.chain([since]).collect();
    ends.sort_unstable();
    let longest = ends.windows(2).map(|pair| pair[1] - pair[0]).max();
    Duration::from_nanos(longest.unwrap_or(u64::MAX))
}

/// A way in which one machine's link is cut, and who has to fail then.
#[derive(Clone, Copy)]
struct Partition {
    directory: Directory,
    shares: bool,
    machine: usize,
    way: Way,
    /// Those who do not reach the directory.
    away: &'static [usize],
}

const THIRD: Partition = Partition {
    directory: Directory::First,
    shares: false,
    machine: 2,
    way: Way::Both,
    away: &[2],
};

fn parted(partition: &Partition) {
    let Some(mut scene) = Scene::start(partition.directory, partition.shares) else {
        return;
    };
    let stay: Vec<usize> = (0..SERVERS)
        .filter(|it| !partition.away.contains(it))
        .collect();
    let cut = scene.cut(partition, &stay);
    for program in partition.away {
        scene.fails(*program);
    }
    scene.go_on(&stay);
    scene.network.cut(partition.machine, partition.way, false);
    let again = partition.away.iter().map(|it| scene.add_program(*it));
    let again: Vec<usize> = again.collect();
    scene.go_on(&[&stay[..], &again].concat());
    scene.finish(partition.away, cut);
}

/// All at once: most of the time is spent waiting.
fn all_parted(partitions: &[Partition]) {
    thread::scope(|scope| {
        for partition in partitions {
            scope.spawn(|| parted(partition));
        }
    });
}

#[test]
fn a_server_is_cut_off_one_way_or_both() {
    let ways = [Way::Both, Way::Out, Way::In];
    all_parted(&ways.map(|way| Partition { way, ..THIRD }));
}

/// Without the directory nobody goes on, how many there may be; with it, one alone does.
#[test]
fn the_directory_is_cut_off_or_elsewhere() {
    let first = Partition {
        machine: 0,
        away: &[1, 2],
        ..THIRD
    };
    let elsewhere = Partition {
        directory: Directory::Etcd,
        shares: true,
        machine: 0,
        away: &[0],
        ..THIRD
    };
    all_parted(&[first, elsewhere]);
}

/// Whoever is cut off, and how, the other two go on.
#[test]
fn two_of_three_servers_that_keep_the_directory_go_on() {
    let cut = |(machine, way)| Partition {
        directory: Directory::All,
        machine,
        way,
        away: [&[0], &[1], &[2]][machine],
        ..THIRD
    };
    all_parted(&[(0, Way::Both), (1, Way::Out), (2, Way::In)].map(cut));
}
