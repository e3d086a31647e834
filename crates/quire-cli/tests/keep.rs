//! `quire serve --store` and `--export`, and `quire object check`: servers that are killed,
//! disks that fill up, bytes that flip.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use quire_core::units::{Bytes, ObjectOffset};
use quire_dsm::client::{Client, Loss, Options, Shared};
use quire_dsm::wire::control::{MachineCode, Name, Object, PageSize, Rights, SchedulerKind};
use serde_json::Value;
use tempfile::TempDir;

#[path = "common/refusal.rs"]
mod refusal;
#[path = "common/signals.rs"]
mod signals;
#[path = "common/tmpfs.rs"]
mod tmpfs;

use refusal::assert_refused;
use tmpfs::Small;

const PAGE: usize = 4096;
/// Where the first page lies in a part of an object.
const FIRST_PAGE: usize = 64 << 10;

fn skip(reason: &str) {
    let test = thread::current().name().unwrap_or("test").to_owned();
    eprintln!("SKIP: {test}: {reason}");
}

/// Where a server has its socket and its store.
struct Home {
    directory: TempDir,
    store: PathBuf,
}

impl Home {
    fn new() -> Home {
        let directory = TempDir::new().unwrap();
        let store = directory.path().join("store");
        Home { directory, store }
    }

    fn file(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn store(&self) -> &str {
        self.store.to_str().unwrap()
    }

    fn serve(&self) -> Served {
        Served::start(self, &["--store", self.store()])
    }

    /// The files with the pages of objects.
    fn parts(&self) -> Vec<PathBuf> {
        let objects = fs::read_dir(self.store.join("objects")).unwrap();
        let inside = objects.flat_map(|object| fs::read_dir(object.unwrap().path()).unwrap());
        let paths = inside.map(|file| file.unwrap().path());
        let pages = |path: &PathBuf| path.extension().is_some_and(|end| end == "pages");
        paths.filter(pages).collect()
    }
}

/// A server.
struct Served {
    process: Child,
    /// Where programs of this user reach it.
    address: String,
    /// Where everybody does.
    tcp: String,
    /// What it says on standard error, in lines.
    log: mpsc::Receiver<String>,
}

impl Served {
    fn start(home: &Home, args: &[&str]) -> Served {
        let listen = format!("unix:{}", home.file("socket"));
        let mut process = quire()
            .args(["serve", "--lease", "1", "--listen", &listen])
            .args(["--listen", "127.0.0.1:0"])
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
        let mut address = || {
            let line = lines.next().and_then(Result::ok);
            let address = line
                .as_ref()
                .and_then(|line| line.strip_prefix("serving at "));
            let Some(address) = address else {
                panic!("it does not serve: {:?}", log.recv());
            };
            address.to_owned()
        };
        let (address, tcp) = (address(), address());
        Served {
            process,
            address,
            tcp,
            log,
        }
    }

    fn quire(&self, args: &[&str]) -> Output {
        let mut command = quire();
        command.args(args).env("QUIRE_SERVER", &self.address);
        command.output().unwrap()
    }

    fn does(&self, args: &[&str]) -> String {
        let output = self.quire(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Programs of this machine, which share the server's copies of pages.
    fn options(&self) -> Options {
        Options::new(self.address.parse().unwrap(), "writer".parse().unwrap())
    }

    /// A program that stands for a machine of its own.
    fn options_apart(&self) -> Options {
        let mut options = self.options();
        options.own_pages = true;
        options
    }

    fn client(&self) -> Client {
        Client::connect(self.options()).unwrap()
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Asks it to end, and waits until it has.
    fn end(mut self) {
        signals::send("TERM", self.process.id());
        assert_eq!(self.process.wait().unwrap().code(), Some(0));
    }

    /// Waits until it has logged a line with these words.
    fn logged(&self, words: &[&str]) -> String {
        let end = Instant::now() + Duration::from_secs(20);
        let mut all = String::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.log.recv_timeout(left);
            let line = line.unwrap_or_else(|_| panic!("{words:?} is not in the log: {all}"));
            if words.iter().all(|word| line.contains(word)) {
                return line;
            }
            all += &line;
            all += "\n";
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn quire() -> Command {
    Command::new(env!("CARGO_BIN_EXE_quire"))
}

const BOTH: Rights = Rights {
    read: true,
    write: true,
};

fn object(name: &str, pages: u64) -> Object {
    Object {
        name: name.parse().unwrap(),
        size: Bytes(pages * PAGE as u64),
        page_size: PageSize::BASE,
        scheduler: SchedulerKind::Multi,
        machine: MachineCode(0),
        tags: Vec::new(),
    }
}

fn open(client: &Client, name: &str) -> Shared {
    client.open(name.parse().unwrap(), BOTH).unwrap()
}

fn noise(length: usize) -> Vec<u8> {
    (0..length as u32).map(|n| (n * 7 % 251) as u8).collect()
}

#[test]
fn objects_rights_and_contents_survive_a_restart() {
    let home = Home::new();
    let bytes = noise(300_001);
    let (from, to) = (home.file("from"), home.file("to"));
    fs::write(&from, &bytes).unwrap();
    let served = home.serve();
    let typed = ["--tags", "float64:0-4K,int32:8K-12K", "--page-size", "64K"];
    let create = ["object", "create", "grid", "--size", "1M"];
    served.does(&[&create[..], &typed].concat());
    served.does(&["object", "cp", &from, ":copied"]);
    served.does(&["object", "grant", "copied", "anyone", "r"]);
    served.does(&["object", "create", "gone", "--size", "4K"]);
    served.does(&["object", "rm", "gone"]);
    let before = served.does(&["object", "ls", "--json"]);
    served.end();

    let served = home.serve();
    assert_eq!(served.does(&["object", "ls", "--json"]), before);
    let list: Value = serde_json::from_str(&before).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 2);
    served.does(&["object", "cp", ":copied", &to]);
    assert!(fs::read(&to).unwrap() == bytes);
    served.end();

    // Only its maker may look into the store.
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(&home.store).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

/// What is discarded goes from the store with its last user, and its name is free at once.
#[test]
fn what_is_discarded_goes_from_the_store() {
    let home = Home::new();
    let served = home.serve();
    let client = served.client();
    for round in 0..3 {
        served.does(&["object", "create", "grid", "--size", "4K"]);
        let shared = open(&client, "grid");
        shared.words()[round].store(1, Ordering::Relaxed);
        let busy = served.quire(&["object", "rm", "grid"]);
        assert_refused(&busy, 1, &["grid is open, once"]);
        served.does(&["object", "rm", "--when-unused", "grid"]);
        let gone = served.quire(&["object", "stat", "grid"]);
        assert_refused(&gone, 2, &["no object grid"]);
        let exact = shared.exact().to_string();
        let told = served.does(&["object", "stat", &exact, "--json"]);
        let told: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told["removed"], true);
        shared.close().unwrap();
    }
    // The server may not have heard yet that nobody uses them.
    let begin = Instant::now();
    while !client.list().unwrap().is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(20), "they stay");
        thread::sleep(Duration::from_millis(100));
    }
    served.end();
    let served = home.serve();
    assert_eq!(served.does(&["object", "ls", "--json"]).trim(), "[]");
    served.end();
}

/// What was removed and is used outlives its server: whoever has it comes back for it, and does not get
/// what has its name by then, which is kept, too. What nobody comes back for goes.
#[test]
fn what_was_removed_and_is_used_outlives_its_server() {
    let home = Home::new();
    let mut served = home.serve();
    let one = |shared: &Shared, value| {
        shared.words()[0].store(value, Ordering::Relaxed);
        shared.flush().unwrap();
    };
    let names = |served: &Served| {
        let told = served.does(&["object", "ls", "--json"]);
        let told: Value = serde_json::from_str(&told).unwrap();
        let all = told.as_array().unwrap().iter();
        let all = all.map(|it| (it["name"].to_string(), it["removed"] == true));
        all.collect::<Vec<_>>()
    };
    served.does(&["object", "create", "grid", "--size", "8K"]);
    let client = served.client();
    let old = open(&client, "grid");
    one(&old, 1);
    served.does(&["object", "rm", "--when-unused", "grid"]);
    let bad = served.quire(&["object", "create", "grid~", "--size", "8K"]);
    assert_refused(&bad, 2, &["grid~", "take grid"]);
    served.does(&["object", "create", "grid", "--size", "4K"]);
    let new = open(&client, "grid");
    one(&new, 2);
    let both = [
        ("\"grid\"".to_owned(), false),
        (format!("\"{}\"", old.exact()), true),
    ];
    for round in 1..=3 {
        assert_eq!(names(&served), both);
        served.kill();
        served = home.serve();
        // The first touches come back for both.
        for (shared, size, value) in [(&old, 8 << 10, 1), (&new, 4 << 10, 2)] {
            assert_eq!(shared.info().size, Bytes(size));
            assert_eq!(shared.words()[0].load(Ordering::Relaxed), value * round);
            one(shared, value * (round + 1));
        }
    }
    served.kill();
    drop((old, new, client));
    let served = home.serve();
    assert_eq!(names(&served), both);
    let begin = Instant::now();
    while names(&served) != both[..1] {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "{:?}",
            names(&served)
        );
        thread::sleep(Duration::from_millis(100));
    }
    served.does(&["object", "rm", "grid"]);
    assert!(names(&served).is_empty());
    served.end();
    assert!(home.parts().is_empty());
}

/// What was begun, with its size.
fn sized(exact: &Name, pages: u64) -> Object {
    Object {
        name: exact.clone(),
        size: Bytes(pages * PAGE as u64),
        page_size: PageSize::BASE,
        scheduler: SchedulerKind::Multi,
        machine: MachineCode(0),
        tags: Vec::new(),
    }
}

/// What was begun is kept when it has its size, with its key, and without a name where that was removed.
#[test]
fn what_was_begun_is_kept_with_its_key() {
    let home = Home::new();
    let mut served = home.serve();
    let client = served.client();
    let grid = || "grid".parse::<Name>().unwrap();
    let first = client.begin(grid()).unwrap();
    client.discard(first.clone()).unwrap();
    let second = client.begin(grid()).unwrap();
    let both = Rights {
        read: true,
        write: true,
    };
    assert!(client.give_size(sized(&first, 1)).unwrap());
    assert!(!client.give_size(sized(&second, 2)).unwrap());
    let all = [&first, &second].map(|exact| client.open(exact.clone(), both).unwrap());
    for (shared, value) in all.iter().zip([1, 2]) {
        shared.words()[0].store(value, Ordering::Relaxed);
        shared.flush().unwrap();
    }
    served.kill();
    served = home.serve();
    for (shared, value) in all.iter().zip([1, 2]) {
        assert_eq!(shared.words()[0].load(Ordering::Relaxed), value);
    }
    let again = served.client();
    let living = open(&again, "grid");
    assert_eq!((living.exact(), living.info().size.0), (&second, 8192));
    let old = again.open(first.clone(), both).unwrap();
    assert_eq!(old.words()[0].load(Ordering::Relaxed), 1);
    let listed = served.does(&["object", "ls"]);
    assert!(listed.contains(first.as_str()) && !listed.contains(second.as_str()));
    drop((all, living, old));
    served.does(&["object", "rm", "--when-unused", "grid"]);
    served.end();
}

/// Where a name is removed while the store gets what was begun by it, the object has no name; who made it
/// can open it all the same, and it goes with that.
#[test]
fn a_name_that_is_removed_while_the_store_gets_the_object_is_gone() {
    let home = Home::new();
    let served = home.serve();
    let (makes, removes) = (served.client(), served.client());
    let grid = || "grid".parse::<Name>().unwrap();
    let only_read = Rights {
        read: true,
        write: false,
    };
    for round in 0..40 {
        let exact = makes.begin(grid()).unwrap();
        let shared = thread::scope(|scope| {
            let removed = scope.spawn(|| {
                thread::sleep(Duration::from_micros(100 * (round % 10)));
                removes.discard(exact.clone())
            });
            makes.give_size(sized(&exact, 1)).unwrap();
            removed.join().unwrap().unwrap();
            makes.open(exact.clone(), only_read).unwrap()
        });
        assert!(removes.look(grid()).is_err(), "it has the name");
        shared.close().unwrap();
        assert!(removes.look(exact).is_err(), "it is gone");
    }
    // Who makes it by its name does not come for it.
    for round in 0..20 {
        let exact = makes.begin(grid()).unwrap();
        thread::scope(|scope| {
            let removed = scope.spawn(|| {
                thread::sleep(Duration::from_micros(100 * (round % 10)));
                removes.discard(exact.clone())
            });
            makes.create(sized(&grid(), 1)).unwrap();
            removed.join().unwrap().unwrap();
        });
        if removes.look(grid()).is_ok() {
            // What was begun was removed before it was made: this is another one.
            assert!(removes.look(exact).is_err(), "it has the name");
            removes.discard(grid()).unwrap();
        }
    }
    let begin = Instant::now();
    while !makes.list().unwrap().is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(20), "they stay");
        thread::sleep(Duration::from_millis(100));
    }
    served.end();
    let served = home.serve();
    assert_eq!(served.does(&["object", "ls", "--json"]).trim(), "[]");
    served.end();
}

#[test]
fn rights_are_kept_to_after_a_restart() {
    let home = Home::new();
    let served = home.serve();
    served.does(&["object", "create", "mine", "--size", "4K"]);
    served.does(&["object", "create", "ours", "--size", "4K"]);
    served.does(&["object", "grant", "ours", "anyone", "r"]);
    served.kill();

    let served = home.serve();
    let to = home.file("to");
    let get = |name: &str| {
        let mut command = quire();
        let command = command.args(["object", "cp", name, &to, "--server", &served.tcp]);
        command.output().unwrap()
    };
    assert_refused(&get(":mine"), 1, &["no right to mine"]);
    assert!(get(":ours").status.success());
    let removed = quire()
        .args(["object", "rm", "ours", "--server", &served.tcp])
        .output();
    assert_refused(&removed.unwrap(), 1, &["ours belongs to uid:"]);
    served.does(&["object", "rm", "ours"]);
}

/// How many clients write to the same pages, each to a part of its own.
const USERS: usize = 2;
const SHARE: usize = PAGE / USERS;

/// What a client writes, and what of that is known to be safe: of each page, the value that
/// was acknowledged last.
#[derive(Default)]
struct User {
    me: usize,
    value: u64,
    safe: HashMap<usize, u64>,
}

impl User {
    fn place(&self, page: usize) -> ObjectOffset {
        ObjectOffset((page * PAGE + self.me * SHARE) as u64)
    }

    /// Writes larger and larger values to its parts of pages and has them made safe, until
    /// the server is gone. Each round ends with pages that nobody was promised.
    fn write_until_killed(&mut self, mut options: Options) {
        options.reconnect = Some(Duration::ZERO);
        let client = Client::connect(options).unwrap();
        let shared = open(&client, "kept");
        let pages = shared.words().len() * 8 / PAGE;
        loop {
            let mut written = Vec::new();
            for _ in 0..5 {
                self.value += 1;
                let page = (self.value * 7919) as usize % pages;
                let contents = self.value.to_ne_bytes().repeat(SHARE / 8);
                if shared
                    .checked_write_at(self.place(page), &contents)
                    .is_err()
                {
                    return;
                }
                written.push((page, self.value));
            }
            match shared.flush() {
                Ok(()) => self.safe.extend(written),
                Err(_) => return,
            }
        }
    }

    fn check(&self, shared: &Shared) {
        let mut part = vec![0; SHARE];
        for (&page, &value) in &self.safe {
            shared.checked_read_at(self.place(page), &mut part).unwrap();
            let (words, _) = part.as_chunks::<8>();
            assert!(
                words.iter().all(|word| *word == words[0]),
                "page {page} is torn"
            );
            let found = u64::from_ne_bytes(words[0]);
            let me = self.me;
            assert!(
                found >= value,
                "{me}, page {page}: {found}, but {value} was acknowledged"
            );
        }
    }
}

fn survives_kill_9(scheduler: SchedulerKind, options: fn(&Served) -> Options) {
    let home = Home::new();
    let user = |me| User {
        me,
        ..User::default()
    };
    let mut users: Vec<User> = (0..USERS).map(user).collect();
    let mut made = 0;
    // So little memory that pages go and come back all the time.
    let serve = || Served::start(&home, &["--store", home.store(), "--memory", "64K"]);
    let mut served = serve();
    let kept = Object {
        scheduler,
        ..object("kept", 100)
    };
    served.client().create(kept).unwrap();
    for round in 0..6_u64 {
        thread::scope(|scope| {
            let pid = served.process.id();
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(150 + round * 67 % 200));
                signals::send("KILL", pid);
            });
            for user in &mut users {
                let options = options(&served);
                scope.spawn(move || user.write_until_killed(options));
            }
        });
        served.kill();
        served = serve();
        let client = served.client();
        let shared = open(&client, "kept");
        users.iter().for_each(|user| user.check(&shared));
        // So do objects: each that was acknowledged is there, and none that was removed.
        let names = client
            .list()
            .unwrap()
            .into_iter()
            .map(|object| object.name.to_string());
        let wanted = (0..made)
            .filter(|n| n % 2 == 0)
            .map(|n| format!("made-{n}"));
        let mut wanted: Vec<String> = wanted.chain(["kept".to_owned()]).collect();
        wanted.sort();
        assert_eq!(names.collect::<Vec<_>>(), wanted);
        for number in made..made + 4 {
            client.create(object(&format!("made-{number}"), 1)).unwrap();
            if number % 2 == 1 {
                client
                    .remove(format!("made-{number}").parse().unwrap())
                    .unwrap();
            }
        }
        made += 4;
    }
    for user in users {
        println!(
            "{} pages were written, {} of 100 are safe",
            user.value,
            user.safe.len()
        );
        assert!(user.value > 100, "only {} pages", user.value);
    }
}

#[test]
fn what_was_acknowledged_survives_kill_9() {
    survives_kill_9(SchedulerKind::Multi, Served::options_apart);
}

#[test]
fn what_was_acknowledged_to_programs_that_share_a_copy_survives_kill_9() {
    survives_kill_9(SchedulerKind::Multi, Served::options);
}

#[test]
fn what_was_acknowledged_survives_kill_9_with_the_simple_scheduler() {
    survives_kill_9(SchedulerKind::Simple, Served::options_apart);
}

/// A program that has memory mapped goes on when the server that was killed is there again.
#[test]
fn memory_goes_on_after_the_server_was_killed() {
    goes_on(Served::options_apart);
}

/// The same, where what is mapped is the memory of the server that was killed.
#[test]
fn memory_that_is_shared_with_the_server_goes_on_after_it_was_killed() {
    goes_on(Served::options);
}

fn goes_on(options: fn(&Served) -> Options) {
    let home = Home::new();
    let served = home.serve();
    let client = Client::connect(options(&served)).unwrap();
    client.create(object("kept", 4)).unwrap();
    let shared = open(&client, "kept");
    shared.words()[0].store(7, Ordering::Relaxed);
    shared.flush().unwrap();
    // This is here, and nobody was promised that it is safe.
    shared.words()[512].store(8, Ordering::Relaxed);
    let reads = AtomicBool::new(true);
    let mut served = thread::scope(|scope| {
        scope.spawn(|| {
            // What was acknowledged is there, whenever it is read.
            while reads.load(Ordering::Relaxed) {
                assert_eq!(shared.words()[0].load(Ordering::Relaxed), 7);
            }
        });
        served.kill();
        assert!(shared.flush().is_err());
        let served = home.serve();
        assert_eq!(shared.words()[0].load(Ordering::Relaxed), 7);
        reads.store(false, Ordering::Relaxed);
        served
    });
    // It brings what it had written.
    assert_eq!(shared.words()[512].load(Ordering::Relaxed), 8);
    for round in 1..=2 {
        shared.words()[1024].store(round, Ordering::Relaxed);
        shared.flush().unwrap();
        match round {
            1 => served.kill(),
            _ => served.end(),
        }
        served = home.serve();
        assert_eq!(shared.words()[1024].load(Ordering::Relaxed), round);
    }
    shared.words()[512].store(9, Ordering::Relaxed);
    shared.flush().unwrap();
    drop((shared, client));
    served.kill();
    let served = home.serve();
    assert_eq!(
        open(&served.client(), "kept").words()[512].load(Ordering::Relaxed),
        9
    );
}

/// Whoever closes an object has given back what it wrote, and that is safe.
#[test]
fn what_was_written_before_an_object_was_closed_survives_kill_9() {
    let home = Home::new();
    let mut served = home.serve();
    served.client().create(object("kept", 300)).unwrap();
    for round in 1..=5 {
        let client = served.client();
        let shared = open(&client, "kept");
        for page in 0..300 {
            shared.words()[page * PAGE / 8].store(round, Ordering::Relaxed);
        }
        drop(shared);
        served.kill();
        served = home.serve();
        let client = served.client();
        let shared = open(&client, "kept");
        for page in 0..300 {
            let found = shared.words()[page * PAGE / 8].load(Ordering::Relaxed);
            assert_eq!(found, round, "page {page}");
        }
    }
}

/// Programs of one machine share the server's copy. What is there is safe after one of them
/// has flushed or closed it, or when the server has ended in order.
#[test]
fn what_programs_wrote_to_a_copy_that_they_share_is_kept() {
    /// More than is given back at once.
    const PAGES: usize = 5000;
    let home = Home::new();
    let mut served = home.serve();
    let made = object("kept", PAGES as u64);
    served.client().create(made).unwrap();
    for round in 1..=3 {
        let clients = [served.client(), served.client()];
        let [one, other] = clients.each_ref().map(|client| open(client, "kept"));
        assert!(one.is_attached() && other.is_attached());
        for page in 0..PAGES {
            let who = [&one, &other][page % 2];
            who.words()[page * PAGE / 8].store(round, Ordering::Relaxed);
        }
        match round {
            1 => {
                one.flush().unwrap();
                served.kill();
            }
            2 => {
                drop(one);
                served.kill();
            }
            _ => served.end(),
        }
        drop(other);
        served = home.serve();
        let client = served.client();
        let shared = open(&client, "kept");
        for page in 0..PAGES {
            let found = shared.words()[page * PAGE / 8].load(Ordering::Relaxed);
            assert_eq!(found, round, "page {page}");
        }
    }
}

/// Nobody flushed what programs wrote to the copies that they share with a server, and it is killed: they have
/// its file, and bring to the next server what is in it.
#[test]
fn what_programs_wrote_to_a_copy_that_they_share_outlives_the_server() {
    /// More than is brought at once.
    const PAGES: usize = 5000;
    let home = Home::new();
    let served = home.serve();
    let made = object("kept", PAGES as u64);
    served.client().create(made).unwrap();
    let clients = [served.client(), served.client()];
    let [one, other] = clients.each_ref().map(|client| open(client, "kept"));
    assert!(one.is_attached() && other.is_attached());
    for page in 0..PAGES {
        set([&one, &other][page % 2], page, 7);
    }
    // Some are on the disk, and some were given back since, or written to again.
    one.flush().unwrap();
    (0..PAGES / 2).for_each(|page| set(&one, page, 8));
    let apart = Client::connect(served.options_apart()).unwrap();
    let there = open(&apart, "kept");
    for page in 0..PAGES / 4 {
        assert_eq!(word(&there, page), 8, "page {page}");
    }
    drop((there, apart));
    served.kill();
    let served = home.serve();
    for page in 0..PAGES {
        let right = if page < PAGES / 2 { 8 } else { 7 };
        let found = (word(&one, page), word(&other, page));
        assert_eq!(found, (right, right), "page {page}");
    }
    other.flush().unwrap();
    served.kill();
    drop((one, other, clients));
    let served = home.serve();
    let client = served.client();
    let shared = open(&client, "kept");
    let right = (0..PAGES).map(|page| if page < PAGES / 2 { 8 } else { 7 });
    assert!((0..PAGES).map(|page| word(&shared, page)).eq(right));
}

/// A program that comes late when its server was started again: its way there is closed and opened.
struct Late {
    shared: Shared,
    _client: Client,
    way: String,
    socket: String,
}

impl Late {
    fn new(home: &Home, mut options: Options, on_loss: fn(&Loss<'_>)) -> Late {
        let (way, socket) = (home.file("way"), home.file("socket"));
        symlink(&socket, &way).unwrap();
        options.addresses = format!("unix:{way}").parse().unwrap();
        options.on_loss = Some(on_loss);
        let client = Client::connect(options).unwrap();
        Late {
            shared: open(&client, "kept"),
            _client: client,
            way,
            socket,
        }
    }

    /// The server is killed and started again, and gives another program a page before this one comes. What
    /// that one finds there.
    fn comes_after_another(&self, home: &Home, served: Served, page: usize) -> (Served, u64) {
        fs::remove_file(&self.way).unwrap();
        served.kill();
        let served = home.serve();
        let other = served.client();
        let found = word(&open(&other, "kept"), page);
        symlink(&self.socket, &self.way).unwrap();
        assert_eq!(word(&self.shared, page), found, "it sees what others do");
        (served, found)
    }
}

fn word(shared: &Shared, page: usize) -> u64 {
    shared.words()[page * PAGE / 8].load(Ordering::Relaxed)
}

fn set(shared: &Shared, page: usize, value: u64) {
    shared.words()[page * PAGE / 8].store(value, Ordering::Relaxed);
}

/// Pages that somebody else was given before a program came back are lost to it, which it is told.
#[test]
fn what_is_lost_with_a_copy_that_a_program_shared_is_told_and_counted() {
    static LOST: AtomicU64 = AtomicU64::new(0);
    let home = Home::new();
    let served = home.serve();
    served.client().create(object("kept", 4)).unwrap();
    let late = Late::new(&home, served.options(), |loss| {
        LOST.fetch_add(loss.pages, Ordering::SeqCst);
    });
    assert!(late.shared.is_attached());
    set(&late.shared, 1, 8);
    set(&late.shared, 3, 8);
    let (served, found) = late.comes_after_another(&home, served, 1);
    assert_eq!((found, word(&late.shared, 3)), (0, 8));
    assert_eq!(LOST.load(Ordering::SeqCst), 1);
    let said = served.does(&["object", "stat", "kept"]);
    assert!(said.contains("lost: 1"), "{said}");
}

/// What a program gave back for another one is in the server's memory alone, as the disk is full, when that
/// is killed. Where the next one gives somebody what the disk has, that is told.
#[test]
fn what_was_given_back_and_not_kept_is_told_when_others_have_what_was_before() {
    static LOST: AtomicU64 = AtomicU64::new(0);
    let Some(small) = Small::mount("40m") else {
        return skip("no tmpfs can be mounted");
    };
    let mut home = Home::new();
    home.store = small.path().join("store");
    let served = home.serve();
    served.client().create(object("kept", 9000)).unwrap();
    let late = Late::new(&home, served.options_apart(), |loss| {
        LOST.fetch_add(loss.pages, Ordering::SeqCst);
    });
    set(&late.shared, 0, 1);
    late.shared.flush().unwrap();
    let ballast = small.fill();
    set(&late.shared, 8, 7);
    let read_by_another = |served: &Served| {
        let other = Client::connect(served.options_apart()).unwrap();
        word(&open(&other, "kept"), 8)
    };
    assert_eq!(read_by_another(&served), 7);
    served.logged(&["kept", "could not be kept", "disk is full"]);
    let (served, found) = late.comes_after_another(&home, served, 8);
    assert_eq!((found, LOST.load(Ordering::SeqCst)), (0, 1));
    let said = served.does(&["object", "stat", "kept"]);
    assert!(said.contains("lost: 1"), "{said}");

    fs::remove_file(&ballast).unwrap();
    set(&late.shared, 8, 9);
    assert_eq!(read_by_another(&served), 9);
    // Longer than it takes to be on the disk, and to hear of that.
    thread::sleep(Duration::from_millis(500));
    let (_served, found) = late.comes_after_another(&home, served, 8);
    assert_eq!((found, LOST.load(Ordering::SeqCst)), (9, 1));
}

#[test]
fn a_damaged_page_is_an_error_and_the_others_are_not() {
    let home = Home::new();
    let (from, to) = (home.file("from"), home.file("to"));
    fs::write(&from, noise(8 * PAGE)).unwrap();
    let served = home.serve();
    served.does(&["object", "cp", &from, ":copied"]);
    served.end();
    let check = |json: bool| {
        let mut command = quire();
        command.args(["object", "check", home.store()]);
        if json {
            command.arg("--json");
        }
        command.output().unwrap()
    };
    let sound = check(false);
    assert!(sound.status.success());
    assert_eq!(
        sound.stdout,
        b"1 objects with 8 pages, and 0 pages in the log\n"
    );

    let parts = home.parts();
    let part = parts.first().unwrap();
    let mut bytes = fs::read(part).unwrap();
    for page in [0, 5] {
        bytes[FIRST_PAGE + page * PAGE + 99] ^= 1;
    }
    fs::write(part, bytes).unwrap();
    let name = part.file_name().unwrap().to_str().unwrap();
    let damaged = check(false);
    assert_refused(
        &damaged,
        1,
        &["damaged in 2 places", "quire object rm copied)"],
    );
    let shown = String::from_utf8(damaged.stdout).unwrap();
    assert!(
        shown.contains(name) && shown.contains("of copied: pages 0, 5: wrong checksum"),
        "{shown}"
    );
    let shown: Value = serde_json::from_slice(&check(true).stdout).unwrap();
    let first = FIRST_PAGE + 5 * PAGE;
    assert_eq!(shown["damage"][1]["first_byte"], first);
    assert_eq!(shown["damage"][1]["bytes"], PAGE);
    assert_eq!(shown["damage"][1]["object"], "copied");

    let served = home.serve();
    let copied = served.quire(&["object", "cp", ":copied", &to]);
    assert_refused(&copied, 1, &["of copied cannot be had", "server's log"]);
    served.logged(&[name, "page 0", "wrong checksum"]);
    // All but the damaged pages can be copied.
    let salvaged = served.quire(&["object", "cp", "--salvage", ":copied", &to]);
    assert_refused(&salvaged, 1, &["2 pages of copied", ": 0, 5;"]);
    let mut whole = fs::read(&from).unwrap();
    for page in [0, 5] {
        whole[page * PAGE..][..PAGE].fill(0);
    }
    assert_eq!(fs::read(&to).unwrap(), whole);
    served.logged(&["copied", "from 0 on", "damaged on disk"]);
    // A program that touches the memory is told by a signal.
    let hotspot = [
        "dsm",
        "member",
        "--object",
        "copied",
        "--program",
        "hotspot",
    ];
    let rest = [
        "--size",
        "1",
        "--me",
        "0",
        "--members",
        "1",
        "--server",
        &served.address,
    ];
    let touched = quire()
        .args([&hotspot[..], &rest].concat())
        .output()
        .unwrap();
    assert_eq!(touched.status.signal(), Some(7), "{touched:?}");
    let client = served.client();
    let shared = open(&client, "copied");
    let mut page = vec![0; PAGE];
    for number in 0..8 {
        let at = ObjectOffset(number * PAGE as u64);
        let is_damaged = [0, 5].contains(&number);
        let read = shared.checked_read_at(at, &mut page);
        assert_eq!(read.is_err(), is_damaged, "page {number}");
        let right = &noise(8 * PAGE)[number as usize * PAGE..][..PAGE];
        assert!(is_damaged || page == right, "page {number}");
    }
    // The object can be made again from a copy.
    drop(shared);
    served.does(&["object", "rm", "copied"]);
    served.does(&["object", "cp", &from, ":copied"]);
    served.does(&["object", "cp", ":copied", &to]);
    assert!(fs::read(to).unwrap() == noise(8 * PAGE));
}

/// All files below a directory, with their lengths and when they were changed.
fn looks(directory: &Path) -> Vec<(PathBuf, u64, std::time::SystemTime)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let (path, about) = entry
            .map(|entry| (entry.path(), entry.metadata().unwrap()))
            .unwrap();
        found.push((path.clone(), about.len(), about.modified().unwrap()));
        if about.is_dir() {
            found.extend(looks(&path));
        }
    }
    found.sort();
    found
}

/// What no server can start with is found, too, and nothing is changed for that.
#[test]
fn all_of_a_store_is_checked_and_nothing_is_changed() {
    let home = Home::new();
    let served = home.serve();
    served.does(&["object", "create", "grid", "--size", "64K"]);
    served.end();
    let check = || {
        let before = looks(&home.store);
        let found = quire()
            .args(["object", "check", home.store()])
            .output()
            .unwrap();
        assert_eq!(looks(&home.store), before);
        found
    };
    let finds = |words: &[&str]| {
        let found = check();
        assert_refused(
            &found,
            1,
            &["damaged in 1 place: bring it back from a copy"],
        );
        let refused = String::from_utf8_lossy(&found.stderr);
        assert!(!refused.contains("object rm"), "{refused}");
        let shown = String::from_utf8_lossy(&found.stdout);
        assert!(words.iter().all(|word| shown.contains(word)), "{shown}");
        let args = ["--listen", "127.0.0.1:0", "--store", home.store()];
        let served = quire().arg("serve").args(args).output().unwrap();
        assert_ne!(served.status.code(), Some(0));
        let refused = String::from_utf8_lossy(&served.stderr);
        assert!(refused.contains("is damaged"), "{refused}");
    };
    assert!(check().status.success());

    let number = home.store.join("kept/number");
    let bytes = fs::read(&number).unwrap();
    fs::write(&number, &bytes[..bytes.len() - 1]).unwrap();
    finds(&["kept/number", "wrong checksum"]);
    fs::write(&number, &bytes).unwrap();

    for missing in ["kept", "objects"] {
        let aside = PathBuf::from(home.file("aside"));
        fs::rename(home.store.join(missing), &aside).unwrap();
        finds(&[missing, "the directory is missing"]);
        fs::rename(&aside, home.store.join(missing)).unwrap();
    }
    assert!(check().status.success());
    // A copy of a store needs no lock.
    fs::remove_file(home.store.join("lock")).unwrap();
    assert!(check().status.success());
    assert!(!home.store.join("lock").exists());
}

#[test]
fn a_store_on_a_disk_that_can_only_be_read_is_checked() {
    let Some(small) = Small::mount("60m") else {
        return skip("no tmpfs can be mounted");
    };
    let mut home = Home::new();
    home.store = small.path().join("store");
    let served = home.serve();
    let from = home.file("from");
    fs::write(&from, noise(8 * PAGE)).unwrap();
    served.does(&["object", "cp", &from, ":copied"]);
    served.end();
    let mut remount = Command::new("mount");
    let remount = remount.args(["-o", "remount,ro"]).arg(small.path());
    assert!(remount.status().unwrap().success());
    let checked = quire()
        .args(["object", "check", home.store()])
        .output()
        .unwrap();
    assert!(checked.status.success(), "{checked:?}");
    assert_eq!(
        checked.stdout,
        b"1 objects with 8 pages, and 0 pages in the log\n"
    );
}

#[test]
fn a_server_that_ends_says_what_a_full_disk_does_not_take() {
    let Some(small) = Small::mount("40m") else {
        return skip("no tmpfs can be mounted");
    };
    let mut home = Home::new();
    home.store = small.path().join("store");
    let mut served = home.serve();
    let client = Client::connect(served.options_apart()).unwrap();
    client.create(object("kept", 9000)).unwrap();
    let shared = open(&client, "kept");
    shared.words()[0].store(1, Ordering::Relaxed);
    shared.flush().unwrap();
    let _ballast = small.fill();
    // Not in order, so that no more pages are given ahead.
    for page in [8, 300, 2000] {
        shared.words()[page * 512].store(2, Ordering::Relaxed);
    }
    signals::send("TERM", served.process.id());
    served.logged(&[
        "kept",
        "3 pages",
        "could not be kept",
        "disk is full",
        "ends",
    ]);
    assert_eq!(served.process.wait().unwrap().code(), Some(1));
}

#[test]
fn a_full_disk_refuses_and_goes_on_when_there_is_space() {
    let Some(small) = Small::mount("40m") else {
        return skip("no tmpfs can be mounted");
    };
    let mut home = Home::new();
    home.store = small.path().join("store");
    let served = home.serve();
    let client = Client::connect(served.options_apart()).unwrap();
    client.create(object("kept", 9000)).unwrap();
    let shared = open(&client, "kept");
    shared.words()[0].store(1, Ordering::Relaxed);
    shared.flush().unwrap();
    let ballast = small.fill();

    shared.words()[8 * 512].store(2, Ordering::Relaxed);
    let refused = shared.flush().unwrap_err().to_string();
    assert!(
        refused.contains("disk is full") && refused.contains("make space"),
        "{refused}"
    );
    served.logged(&["kept", "could not be kept", "disk is full"]);
    // What has its place can be written to, and all of it can be read.
    shared.words()[0].store(3, Ordering::Relaxed);
    assert!(shared.flush().is_err(), "page 8 is not safe yet");
    assert_eq!(shared.words()[8 * 512].load(Ordering::Relaxed), 2);
    let made = served.quire(&["object", "create", "more", "--size", "4K"]);
    assert_refused(&made, 1, &["disk is full", "make space"]);

    // A server that is started on a full disk serves what is there.
    served.kill();
    let served = home.serve();
    // The program brings what it had not taken.
    assert_eq!(shared.words()[0].load(Ordering::Relaxed), 3);
    assert_eq!(shared.words()[8 * 512].load(Ordering::Relaxed), 2);
    shared.words()[0].store(3, Ordering::Relaxed);
    assert!(shared.flush().is_err());

    fs::remove_file(&ballast).unwrap();
    shared.flush().unwrap();
    served.does(&["object", "create", "more", "--size", "4K"]);
    drop((shared, client));
    served.kill();
    let served = home.serve();
    let client = served.client();
    let shared = open(&client, "kept");
    assert_eq!(shared.words()[0].load(Ordering::Relaxed), 3);
    assert_eq!(shared.words()[8 * 512].load(Ordering::Relaxed), 2);
    assert_eq!(client.list().unwrap().len(), 2);
}

#[test]
fn a_store_that_cannot_be_used_is_refused_in_one_line() {
    let home = Home::new();
    let served = home.serve();
    let refused = |command: &[&str], words: &[&str]| {
        let listen = format!("unix:{}", home.file("other"));
        let mut args = command.to_vec();
        if command[0] == "serve" {
            args.extend(["--listen", &listen]);
        }
        assert_refused(&quire().args(args).output().unwrap(), 2, words);
        assert!(!Path::new(&home.file("other")).exists(), "it listened");
    };
    let pid = format!("process {}", served.process.id());
    refused(&["serve", "--store", home.store()], &["in use", &pid]);
    refused(&["object", "check", home.store()], &["in use", &pid]);
    served.end();
    fs::write(home.store.join("format"), "quire-store 2\n").unwrap();
    let newer = ["format 2", "format 1"];
    refused(&["serve", "--store", home.store()], &newer);
    refused(&["object", "check", home.store()], &newer);
    let directory = home.directory.path().to_str().unwrap();
    refused(&["serve", "--store", directory], &["is not a store"]);
    refused(&["object", "check", directory], &["there is no store"]);
    refused(&["serve", "--export", "samples"], &["NAME=FILE"]);
    refused(
        &["serve", "--export", "samples=/nonexistent"],
        &["/nonexistent"],
    );
    refused(
        &["serve", "--export", "samples=/dev/zero"],
        &["no regular file"],
    );
}

#[test]
fn files_are_exported_to_be_read_or_written_to() {
    let home = Home::new();
    let (fixed, open_to_all, to) = (home.file("fixed"), home.file("open"), home.file("to"));
    let bytes = noise(3 * PAGE + 1000);
    for file in [&fixed, &open_to_all] {
        fs::write(file, &bytes).unwrap();
    }
    let exports = [format!("fixed={fixed}"), format!("open={open_to_all}")];
    let args = ["--export", &exports[0], "--export-writable", &exports[1]];
    let served = Served::start(&home, &args);
    for name in [":fixed", ":open"] {
        served.does(&["object", "cp", name, &to]);
        assert!(fs::read(&to).unwrap() == bytes, "{name}");
    }
    let client = served.client();
    let refused = client.open("fixed".parse().unwrap(), BOTH);
    let refused = refused.map(drop).unwrap_err().to_string();
    assert!(refused.contains("fixed can only be read"), "{refused}");
    let shared = open(&client, "open");
    shared.words()[512].store(u64::MAX, Ordering::Relaxed);
    shared.flush().unwrap();
    let mut wanted = bytes.clone();
    wanted[PAGE..PAGE + 8].fill(0xff);
    assert!(fs::read(&open_to_all).unwrap() == wanted);
    assert!(fs::read(&fixed).unwrap() == bytes);
    // Who reaches the server over TCP may do the same, and no more.
    let tcp = |args: &[&str]| {
        quire()
            .args(args)
            .args(["--server", &served.tcp])
            .output()
            .unwrap()
    };
    assert!(tcp(&["object", "cp", ":fixed", &to]).status.success());
    assert_refused(&tcp(&["object", "rm", "fixed"]), 1, &["belongs to uid:"]);
}
