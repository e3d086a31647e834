//! A server in a thread of the test's process, and clients of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use quire_core::units::Bytes;
use quire_dsm::client::{Client, Options, Shared};
use quire_dsm::link::turn::Config;
use quire_dsm::link::{Address, Security, Turn};
use quire_dsm::server::{self, Server};
use quire_dsm::wire::control::{
    Hello, MachineCode, Name, Object, PageSize, Rights, Role, SchedulerKind,
};

/// A server in a thread of this process.
pub struct Served {
    pub addresses: Vec<Address>,
    stop: Arc<AtomicBool>,
    waker: Arc<mio::Waker>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    pub fn start(address: &str) -> Served {
        Served::start_at(&[address])
    }

    pub fn start_at(addresses: &[&str]) -> Served {
        let hello = Hello {
            name: name("server"),
            role: Role::Server,
            machine: MachineCode(0),
            page_size: PageSize::BASE,
            features: 0,
        };
        let mut turn = Turn::new(Config::new(hello)).expect("a loop");
        let at: Vec<Address> = addresses
            .iter()
            .map(|address| address.parse().expect("an address"))
            .collect();
        let addresses =
            server::listen(&mut turn, &at, &Security::Automatic(None)).expect("a socket");
        let (stop, waker) = (Arc::new(AtomicBool::new(false)), turn.waker());
        let is_over = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut server = Server::new(name("server"), server::LEASE);
            while !is_over.load(Ordering::Relaxed) {
                turn.once(&mut server, Duration::from_secs(1))
                    .expect("the loop goes on");
            }
        });
        Served {
            addresses,
            stop,
            waker,
            thread: Some(thread),
        }
    }

    pub fn client(&self, who: &str) -> Client {
        self.client_with(who, |_| {})
    }

    pub fn client_with(&self, who: &str, change: impl FnOnce(&mut Options)) -> Client {
        let mut options = Options::new(self.addresses[0].clone().into(), name(who));
        options.own_pages = true;
        change(&mut options);
        Client::connect(options).expect("the server is there")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake().expect("the server can be woken");
        let thread = self.thread.take().expect("it was started");
        thread.join().expect("the server ended well");
    }
}

pub fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

pub fn object(text: &str, size: Bytes, scheduler: SchedulerKind) -> Object {
    Object {
        name: name(text),
        size,
        page_size: PageSize::BASE,
        scheduler,
        machine: MachineCode(0),
        tags: Vec::new(),
    }
}

pub const BOTH: Rights = Rights {
    read: true,
    write: true,
};

pub fn open(client: &Client, text: &str) -> Shared {
    client.open(name(text), BOTH).expect("the object is there")
}

/// A Unix socket for a server, in a directory of its own.
pub fn socket() -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = format!("unix:{}/socket", directory.path().display());
    (directory, path)
}
