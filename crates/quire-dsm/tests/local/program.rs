//! Processes of the tests: this test binary again, in another role. A program does what it
//! is told over a socket, one line for each order and each answer.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quire_core::units::{Bytes, ObjectOffset};
use quire_dsm::client::{Client, Options, Place, Region, Shared};
use quire_dsm::link::turn::Config;
use quire_dsm::link::{Security, Turn};
use quire_dsm::node::Part;
use quire_dsm::server::{self, Server};
use quire_dsm::wire::control::{Hello, MachineCode, Name, PageSize, Rights, Role};

pub const BOTH: Rights = Rights {
    read: true,
    write: true,
};
pub const READ: Rights = Rights {
    read: true,
    write: false,
};

pub fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

/// A process that ends with the test.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.0.id()).expect("a process number");
        let pid = rustix::process::Pid::from_raw(pid).expect("a process");
        rustix::process::kill_process(pid, signal).expect("it is there");
    }
}

fn again(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["another_process", "--exact", "--test-threads=1"]);
    command.env("LOCAL_ROLE", role).stdout(Stdio::null());
    command
}

/// A server, as a process of its own.
pub fn serve(address: &str, lease: Duration) -> Process {
    serve_as(address, lease, |_| {})
}

/// The same, with something changed.
pub fn serve_as(address: &str, lease: Duration, change: impl FnOnce(&mut Command)) -> Process {
    let mut command = again("serve");
    change(&mut command);
    command.env("LOCAL_SERVER", address);
    command.env("LOCAL_LEASE", lease.as_millis().to_string());
    let process = Process(command.spawn().expect("a process"));
    let path = address.strip_prefix("unix:").expect("a Unix socket");
    while UnixStream::connect(path).is_err() {
        std::thread::sleep(Duration::from_millis(5));
    }
    process
}

/// A program that shares memory.
pub struct Program {
    pub process: Process,
    lines: BufReader<UnixStream>,
}

impl Program {
    pub fn start(directory: &Path, server: &str, change: impl FnOnce(&mut Command)) -> Program {
        let path = directory.join("orders");
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).expect("a socket");
        everybody_may(&path);
        let mut command = again("program");
        command.env("LOCAL_SERVER", server);
        command.env("LOCAL_ORDERS", &path);
        change(&mut command);
        let process = Process(command.spawn().expect("a process"));
        let (socket, _) = listener.accept().expect("a program");
        Program {
            process,
            lines: BufReader::new(socket),
        }
    }

    /// Gives an order without waiting for what comes of it.
    pub fn order(&mut self, order: &str) {
        writeln!(self.lines.get_mut(), "{order}").expect("it listens");
    }

    /// What came of an order.
    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("an answer");
        line.trim().to_owned()
    }

    /// Gives an order, and waits for the answer.
    pub fn does(&mut self, order: &str) -> String {
        self.order(order);
        self.answer()
    }

    /// When its threads last saw a value in the word that they look at, on the monotonic clock in
    /// nanoseconds; 0 where they never did.
    pub fn saw(&mut self, value: u64) -> u64 {
        number(&self.does(&format!("seen {value}")))
    }

    /// Opens an object for reading and writing, attached.
    pub fn attach(&mut self, object: &str) {
        assert_eq!(self.does(&format!("open {object} rw")), "attached");
    }

    /// Whether an answer has not come for a while.
    pub fn waits(&mut self) -> bool {
        let socket = self.lines.get_ref();
        let pause = Some(Duration::from_millis(200));
        socket.set_read_timeout(pause).expect("a time");
        let waits = self.lines.fill_buf().is_err();
        let socket = self.lines.get_ref();
        socket.set_read_timeout(None).expect("a time");
        waits
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.process.0.wait().expect("it ends")
    }
}

pub fn everybody_may(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let all = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(path, all).expect("it is ours");
}

/// What another process does.
pub fn act(role: &str) {
    let server = std::env::var("LOCAL_SERVER").expect("an address");
    match role {
        "serve" => act_as_server(&server),
        _ => act_as_program(&server),
    }
}

fn act_as_server(address: &str) {
    let lease = std::env::var("LOCAL_LEASE").expect("a time");
    let lease = Duration::from_millis(lease.parse().expect("a number"));
    let hello = Hello {
        name: name("server"),
        role: Role::Server,
        machine: MachineCode(0),
        page_size: PageSize::BASE,
        features: 0,
    };
    let mut turn = Turn::new(Config::new(hello)).expect("a loop");
    let address = address.parse().expect("an address");
    server::listen(&mut turn, &[address], &Security::Automatic(None)).expect("a socket");
    if let Ok(most) = std::env::var("LOCAL_DESCRIPTORS") {
        let current = Some(most.parse().expect("a number"));
        let limit = rustix::process::Rlimit {
            current,
            maximum: current,
        };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).expect("a limit");
    }
    let mut server = Server::new(name("server"), lease);
    loop {
        turn.once(&mut server, Duration::from_secs(1))
            .expect("the loop goes on");
    }
}

fn act_as_program(server: &str) {
    let orders = std::env::var("LOCAL_ORDERS").expect("a path");
    let mut answers = UnixStream::connect(orders).expect("who gives orders");
    let lines = BufReader::new(answers.try_clone().expect("a descriptor")).lines();
    let mut options = Options::new(server.parse().expect("an address"), name("program"));
    options.own_pages = std::env::var("LOCAL_OWN_PAGES").is_ok();
    if let Ok(reconnect) = std::env::var("LOCAL_RECONNECT") {
        options.reconnect = Some(Duration::from_millis(reconnect.parse().expect("a number")));
    }
    let client = Client::connect(options).expect("a server");
    let mut open = None;
    for line in lines {
        let line = line.expect("an order");
        let words: Vec<&str> = line.split(' ').collect();
        let answer = obey(&client, &mut open, &words);
        writeln!(answers, "{answer}").expect("who gives orders listens");
    }
}

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}

/// A word that is looked at has values below this.
const VALUES: usize = 64;

/// An object that is open, and a part that is mapped once more.
struct Open {
    part: Option<Region>,
    shared: Arc<Shared>,
    /// When each value was last seen in the word that is looked at.
    seen: Arc<[AtomicU64; VALUES]>,
}

impl Open {
    fn word(&self, at: &str) -> &AtomicU64 {
        &self.shared.words()[number(at) as usize]
    }

    /// A word of the part.
    fn word_of_part(&self, at: &str) -> &AtomicU64 {
        let range = self.part.as_ref().expect("a part").range();
        assert!(number(at) * 8 < range.len().0);
        let words: *const AtomicU64 = range.start.as_ptr().cast();
        // SAFETY: the part is mapped, has this word, and others access it as atomics.
        unsafe { &*words.add(number(at) as usize) }
    }

    /// Has threads look at a word all the time, which has small values.
    fn look(&self, at: usize, threads: u64) {
        for _ in 0..threads {
            let (shared, seen) = (Arc::clone(&self.shared), Arc::clone(&self.seen));
            std::thread::spawn(move || {
                loop {
                    let before = quire_linux::thread::now_ns();
                    let value = shared.words()[at].load(Ordering::SeqCst);
                    seen[value as usize].fetch_max(before, Ordering::SeqCst);
                }
            });
        }
    }

    /// Maps so many pages from one on, in the place of the part that was mapped before.
    fn map(&mut self, first: &str, count: &str) -> String {
        let part = Part {
            start: ObjectOffset(number(first) * 4096),
            len: Bytes(number(count) * 4096),
        };
        self.part = None;
        match self.shared.map(part, Place::Anywhere, true) {
            Ok(region) => {
                self.part = Some(region);
                "mapped".into()
            }
            Err(error) => error.to_string(),
        }
    }
}

fn obey(client: &Client, open: &mut Option<Open>, words: &[&str]) -> String {
    if let ["open", object, rights] = words {
        let rights = match *rights {
            "r" => READ,
            _ => BOTH,
        };
        return match client.open(name(object), rights) {
            Ok(shared) => {
                let is_attached = shared.is_attached();
                *open = Some(Open {
                    part: None,
                    shared: Arc::new(shared),
                    seen: Arc::new([const { AtomicU64::new(0) }; VALUES]),
                });
                match is_attached {
                    true => "attached".into(),
                    false => "apart".into(),
                }
            }
            Err(error) => error.to_string(),
        };
    }
    if *words == ["close"] {
        *open = None;
        return "done".into();
    }
    let open = open.as_mut().expect("an object is open");
    match words {
        ["map", first, count] => return open.map(first, count),
        ["unmap"] => open.part = None,
        ["flush"] => return format!("{:?}", open.shared.flush().is_ok()),
        ["look", at, threads] => open.look(number(at) as usize, number(threads)),
        ["seen", value] => {
            return open.seen[number(value) as usize]
                .load(Ordering::SeqCst)
                .to_string();
        }
        ["fork", way, at] => return fork(&open.shared, way, number(at) as usize),
        ["part", rest @ ..] => return on_a_word(|at| open.word_of_part(at), rest),
        rest => return on_a_word(|at| open.word(at), rest),
    }
    "done".into()
}

fn on_a_word<'a>(word: impl Fn(&str) -> &'a AtomicU64, words: &[&str]) -> String {
    match words {
        ["get", at] => return word(at).load(Ordering::SeqCst).to_string(),
        ["set", at, value] => word(at).store(number(value), Ordering::SeqCst),
        ["add", at, times] => {
            for _ in 0..number(times) {
                word(at).fetch_add(1, Ordering::SeqCst);
            }
        }
        other => panic!("{other:?} is no order"),
    }
    "done".into()
}

/// A child touches the memory, or maps it again and adds 1. What becomes of it.
fn fork(memory: &Shared, way: &str, at: usize) -> String {
    // SAFETY: the child does what a child of several threads may do: it maps the object
    // again, with a thread of its own, and ends without running what the parent registered.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = match way {
            "touch" => memory.words()[at].load(Ordering::SeqCst) as i32,
            _ => match memory.map_again() {
                Ok(own) if own.address() == memory.address() => {
                    memory.words()[at].fetch_add(1, Ordering::SeqCst);
                    drop(own);
                    0
                }
                _ => 1,
            },
        };
        // SAFETY: it ends this process.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: the status is written to a number of this function.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    match libc::WIFSIGNALED(status) {
        true => format!("signal {}", libc::WTERMSIG(status)),
        false => format!("code {}", libc::WEXITSTATUS(status)),
    }
}
