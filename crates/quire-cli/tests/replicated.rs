//! Servers that keep their directory together (`--replicate-directory`): real processes, of
//! which any one may be killed, the first too, and programs that go on all the same.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quire_core::units::Bytes;
use quire_dsm::client::{Client, Options, Shared};
use quire_dsm::wire::control::{MachineCode, Name, Object, PageSize, Rights, SchedulerKind};
use tempfile::TempDir;

#[path = "common/address.rs"]
mod address;
#[path = "common/retrying.rs"]
mod retrying;
#[path = "common/serving.rs"]
mod serving;
#[path = "common/signals.rs"]
mod signals;
#[path = "common/tmpfs.rs"]
mod tmpfs;

use address::free;
use retrying::{SOON, until_done};
use serving::started;

const SERVERS: usize = 3;
/// How long a machine that went silent keeps what it has.
const LEASE: Duration = Duration::from_secs(3);

const BOTH: Rights = Rights {
    read: true,
    write: true,
};

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn grid(text: &str) -> Object {
    Object {
        name: name(text),
        size: Bytes(4096),
        page_size: PageSize::BASE,
        scheduler: SchedulerKind::Distributed,
        machine: MachineCode(0),
        tags: Vec::new(),
    }
}

/// Servers of one list.
struct Group {
    servers: Vec<Option<Child>>,
    place: TempDir,
}

impl Drop for Group {
    fn drop(&mut self) {
        for server in self.servers.iter_mut().flatten() {
            // It may have ended already.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

impl Group {
    fn start() -> Group {
        let mut group = Group {
            servers: (0..SERVERS).map(|_| None).collect(),
            place: TempDir::new().unwrap(),
        };
        for number in 0..SERVERS {
            group.begin(number);
        }
        group
    }

    fn file(&self, name: &str) -> String {
        self.place.path().join(name).display().to_string()
    }

    fn address(&self, number: usize) -> String {
        format!("unix:{}", self.file(&number.to_string()))
    }

    fn list(&self) -> String {
        let all: Vec<String> = (0..SERVERS).map(|it| self.address(it)).collect();
        all.join(",")
    }

    fn command(&self, number: usize) -> Command {
        let mut server = Command::new(env!("CARGO_BIN_EXE_quire"));
        let lease = LEASE.as_secs().to_string();
        server
            .args(["serve", "--lease", &lease])
            .args(["--listen", &self.address(number)])
            .args(["--peers", &self.list()]);
        server
    }

    /// Starts a server, and waits until it listens.
    fn begin(&mut self, number: usize) {
        let copy = self.file(&format!("copy-{number}"));
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.file(&format!("log-{number}")))
            .unwrap();
        let mut server = self.command(number);
        server.args(["--replicate-directory", &copy]).stderr(log);
        self.servers[number] = Some(started(&mut server));
    }

    fn kill(&mut self, number: usize) {
        let mut server = self.servers[number].take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
    }

    /// Ends a server, as its user would.
    fn end(&mut self, number: usize) {
        let mut server = self.servers[number].take().unwrap();
        signals::send("TERM", server.id());
        let begin = Instant::now();
        while server.try_wait().unwrap().is_none() {
            assert!(begin.elapsed() < SOON, "it does not end");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn log(&self, number: usize) -> String {
        fs::read_to_string(self.file(&format!("log-{number}"))).unwrap()
    }

    /// Waits until a server has logged something.
    fn logs(&self, number: usize, what: &str) {
        let begin = Instant::now();
        while !self.log(number).contains(what) {
            assert!(begin.elapsed() < SOON, "{}", self.log(number));
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn client(&self, server: usize) -> Client {
        let mut options = Options::new(self.address(server).parse().unwrap(), name("client"));
        // Each stands for a machine of its own.
        options.own_pages = true;
        Client::connect(options).expect("the server is there")
    }

    fn open(&self, server: usize) -> Shared {
        let client = self.client(server);
        until_done(|| client.open(name("grid"), BOTH))
    }
}

/// Each of the servers is killed, the first one first, and begins again; those who are at the
/// others go on, and nothing that they did is lost. A second word belongs to each of them.
#[test]
fn any_server_may_be_killed() {
    let mut group = Group::start();
    let client = group.client(0);
    until_done(|| client.create(grid("grid")));
    drop(client);
    for killed in 0..SERVERS {
        let others: Vec<usize> = (0..SERVERS).filter(|it| *it != killed).collect();
        let shared: Vec<Shared> = others.iter().map(|it| group.open(*it)).collect();
        let before = shared[0].words()[0].load(Ordering::SeqCst);
        let is_over = AtomicBool::new(false);
        let done: Vec<AtomicU64> = others.iter().map(|_| AtomicU64::new(0)).collect();
        thread::scope(|scope| {
            let adds = |(shared, done)| {
                let (shared, done): (&Shared, &AtomicU64) = (shared, done);
                let is_over = &is_over;
                move || {
                    while !is_over.load(Ordering::SeqCst) {
                        shared.words()[0].fetch_add(1, Ordering::SeqCst);
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                }
            };
            for pair in shared.iter().zip(&done) {
                scope.spawn(adds(pair));
            }
            go_on(&done);
            let client = group.client(others[0]);
            group.kill(killed);
            // Names are made and found while it is away.
            let begin = Instant::now();
            let made = format!("made-{killed}");
            until_done(|| client.create(grid(&made)));
            let took = begin.elapsed();
            println!("server {killed} is killed; a name was made after {took:?}");
            go_on(&done);
            let other = group.client(others[1]);
            until_done(|| other.open(name(&made), BOTH).map(drop));
            // Everything ends after its leases, too.
            thread::sleep(LEASE + LEASE / 2);
            go_on(&done);
            is_over.store(true, Ordering::SeqCst);
        });
        let sum: u64 = done.iter().map(|it| it.load(Ordering::SeqCst)).sum();
        let after = shared[1].words()[0].load(Ordering::SeqCst);
        assert_eq!(after - before, sum, "increments while {killed} was killed");
        group.begin(killed);
        let back = group.open(killed);
        assert_eq!(back.words()[0].load(Ordering::SeqCst), after);
    }
}

/// Waits until all have done some more.
fn go_on(done: &[AtomicU64]) {
    let before: Vec<u64> = done.iter().map(|it| it.load(Ordering::SeqCst)).collect();
    let begin = Instant::now();
    let goes_on = |(done, before): (&AtomicU64, &u64)| done.load(Ordering::SeqCst) > before + 3;
    while !done.iter().zip(&before).all(goes_on) {
        assert!(
            begin.elapsed() < SOON,
            "it hangs: {done:?} after {before:?}"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

/// Without a majority nobody goes on; when there is one again, new memory can be had, and all
/// names are there.
#[test]
fn a_majority_may_come_back() {
    let mut group = Group::start();
    let client = group.client(2);
    until_done(|| client.create(grid("grid")));
    group.kill(0);
    group.kill(1);
    group.logs(2, "no majority of these servers runs and is connected");
    group.logs(2, "this server's lease in the directory is over");
    let refused = client.create(grid("another")).unwrap_err().to_string();
    assert!(refused.contains("not"), "{refused}");
    group.begin(0);
    until_done(|| group.client(2).create(grid("another")));
    let names = until_done(|| group.client(0).list());
    let names: Vec<String> = names.iter().map(|it| it.name.to_string()).collect();
    assert_eq!(names, ["another", "grid"]);
}

/// Servers that end in order take nothing with them, whichever leads.
#[test]
fn servers_end_in_order() {
    let mut group = Group::start();
    let client = group.client(0);
    until_done(|| client.create(grid("grid")));
    group.open(0).words()[0].store(7, Ordering::SeqCst);
    drop(client);
    for ended in 0..SERVERS {
        let other = (ended + 1) % SERVERS;
        let shared = group.open(other);
        group.end(ended);
        let begin = Instant::now();
        let client = group.client(other);
        until_done(|| client.create(grid(&format!("made-{ended}"))));
        let took = begin.elapsed();
        println!("server {ended} has ended; a name was made after {took:?}");
        assert_eq!(shared.words()[0].load(Ordering::SeqCst), 7);
        group.begin(ended);
        assert_eq!(group.open(ended).words()[0].load(Ordering::SeqCst), 7);
    }
}

/// A copy that was lost is not replaced by an empty one, which has forgotten its promises.
#[test]
fn a_copy_that_was_emptied_takes_no_part() {
    let mut group = Group::start();
    until_done(|| group.client(1).create(grid("grid")));
    // All copies are known when all servers are members.
    group.open(0);
    group.open(2);
    thread::sleep(LEASE);
    group.kill(2);
    let copy = group.file("copy-2");
    fs::rename(&copy, group.file("lost")).unwrap();
    group.begin(2);
    group.logs(2, "takes no part any more");
    until_done(|| group.client(0).create(grid("another")));
    // The old one is brought back.
    group.kill(2);
    fs::remove_dir_all(&copy).unwrap();
    fs::rename(group.file("lost"), &copy).unwrap();
    group.begin(2);
    group.open(2);
}

/// A server whose copy has its space goes on while the disk is full. Where it needs more it stops, and
/// the others go on; with space, it begins again.
#[test]
fn a_full_disk_ends_a_copy_that_grows() {
    let Some(small) = tmpfs::Small::mount("1m") else {
        println!("SKIP: no tmpfs can be mounted");
        return;
    };
    let mut group = Group {
        servers: (0..SERVERS).map(|_| None).collect(),
        place: TempDir::new().unwrap(),
    };
    let copy = small.path().join("copy");
    fs::create_dir(&copy).unwrap();
    symlink(&copy, group.file("copy-2")).unwrap();
    for number in 0..SERVERS {
        group.begin(number);
    }
    until_done(|| group.client(2).create(grid("grid")));
    let ballast = small.fill();
    until_done(|| group.client(2).create(grid("another")));
    // As many as have no room in what it has.
    let mut made = 2;
    let first = group.client(0);
    while !group.log(2).contains("takes no part any more") {
        assert!(made < 2000, "it needs no more space");
        until_done(|| first.create(grid(&format!("{:x<150}-{made}", "x"))));
        made += 1;
    }
    group.logs(2, "takes no part any more: the disk is full");
    until_done(|| group.client(1).create(grid("one-more")));
    fs::remove_file(ballast).unwrap();
    group.kill(2);
    group.begin(2);
    let names = until_done(|| group.client(2).list());
    assert_eq!(names.len(), made + 1);
    until_done(|| group.client(2).create(grid("last")));
}

/// One server without the option would be alone with another directory.
#[test]
fn who_has_no_copy_is_told_so() {
    let mut group = Group {
        servers: (0..SERVERS).map(|_| None).collect(),
        place: TempDir::new().unwrap(),
    };
    let log = Stdio::null();
    let first = group.command(0).stdout(Stdio::null()).stderr(log).spawn();
    group.servers[0] = Some(first.unwrap());
    group.begin(1);
    group.logs(1, "give all servers of the list --replicate-directory");
}

/// With TLS, a copy is one of a server that shows a server's name: two of three agree, and the
/// third one has no say.
#[test]
fn copies_are_known_by_their_certificates() {
    let mut group = Group {
        servers: Vec::new(),
        place: TempDir::new().unwrap(),
    };
    let keys = group.file("keys");
    let made = Command::new(env!("CARGO_BIN_EXE_quire"))
        .args(["dsm", "certify", "server", "node-1", "--directory", &keys])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let addresses = [free(), free(), free()];
    let secured = |command: &mut Command, of: &str| {
        command
            .args(["--tls-everywhere", "--ca", &format!("{keys}/ca.pem")])
            .args(["--certificate", &format!("{keys}/{of}.pem")])
            .args(["--key", &format!("{keys}/{of}.key")]);
    };
    for (number, of) in ["server", "server", "node-1"].into_iter().enumerate() {
        let log = File::create(group.file(&format!("log-{number}"))).unwrap();
        let mut server = Command::new(env!("CARGO_BIN_EXE_quire"));
        server
            .args(["serve", "--listen", &addresses[number], "--name", of])
            .args(["--peers", &addresses.join(",")])
            .args([
                "--replicate-directory",
                &group.file(&format!("copy-{number}")),
            ]);
        secured(&mut server, of);
        let server = server.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        group.servers.push(Some(server));
    }
    let quire = |server: usize, arguments: &[&str]| {
        let mut quire = Command::new(env!("CARGO_BIN_EXE_quire"));
        quire.arg("object").args(arguments);
        quire.args(["--server", &addresses[server], "--identity", "node-1"]);
        secured(&mut quire, "node-1");
        quire.output().unwrap()
    };
    let succeeds = |server: usize, arguments: &[&str]| {
        until_done(|| {
            let output = quire(server, arguments);
            match output.status.success() {
                true => Ok(()),
                false => Err(String::from_utf8(output.stderr).unwrap()),
            }
        });
    };
    let size = ["--size", "4K", "--scheduler", "distributed"];
    succeeds(0, &[&["create", "grid"], &size[..]].concat());
    succeeds(1, &["stat", "grid"]);
    let strange = quire(2, &["stat", "grid"]);
    assert!(!strange.status.success(), "{strange:?}");
}

fn refused(group: &Group, arguments: &[&str]) -> String {
    let output: Output = group.command(0).args(arguments).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    told
}

#[test]
fn what_makes_no_sense_is_refused() {
    let group = Group::start();
    let copy = group.file("copy-0");
    let used = refused(&group, &["--replicate-directory", &copy]);
    assert!(
        used.contains("cannot listen") || used.contains("in use"),
        "{used}"
    );
    let elsewhere = group.address(7);
    let free = group.file("free");
    let here = ["--replicate-directory", free.as_str()];
    let of = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_quire"))
            .args(["serve", "--listen", &elsewhere])
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let stranger = of(&[&here[..], &["--peers", &group.list()]].concat());
    assert!(stranger.contains("is not in the list"), "{stranger}");
    let two = format!("{elsewhere},{}", group.address(1));
    let few = of(&[&here[..], &["--peers", &two]].concat());
    assert!(few.contains("name at least 3"), "{few}");
    let alone = of(&here);
    assert!(alone.contains("--peers"), "{alone}");
    let list = format!("{},{elsewhere}", group.list());
    let taken = of(&["--replicate-directory", &copy, "--peers", &list]);
    assert!(taken.contains("is in use by process"), "{taken}");
}
