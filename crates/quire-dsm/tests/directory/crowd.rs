//! One program that asks a lot of a slow directory, and others at the same server.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use quire_core::units::Bytes;
use quire_dsm::client::{Client, Options};
use quire_dsm::directory::Embedded;
use quire_dsm::link::turn::Config;
use quire_dsm::link::{Address, Security, Turn};
use quire_dsm::server::{self, Host, Joining, Server};
use quire_dsm::wire::control::{
    Hello, MachineCode, Name, Object, PageSize, Rights, Role, SchedulerKind,
};

use super::Cut;

/// The directory takes so long to make a name known.
const PUBLISHING: Duration = Duration::from_millis(50);
/// So much one program asks at once: more than it may.
const CROWD: usize = 100;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn object(text: &str) -> Object {
    Object {
        name: name(text),
        size: Bytes(4096),
        page_size: PageSize::BASE,
        scheduler: SchedulerKind::Distributed,
        machine: MachineCode(0),
        tags: Vec::new(),
    }
}

/// A server with a slow directory, until the returned socket is dropped.
fn serve(address: Address) -> (UnixStream, thread::JoinHandle<()>) {
    let (end, ended) = UnixStream::pair().unwrap();
    let (ready, is_ready) = mpsc::channel();
    let thread = thread::spawn(move || {
        let hello = Hello {
            name: name("server"),
            role: Role::Server,
            machine: MachineCode(0),
            page_size: PageSize::BASE,
            features: 0,
        };
        let joining = Joining {
            directory: Arc::new(Cut {
                inner: Arc::new(Embedded::new(None).unwrap()),
                cut: Mutex::new(false),
                publishing: PUBLISHING,
            }),
            host: Host::Another,
            address: address.clone(),
            names: vec![name("server")],
            security: Security::Automatic(None),
        };
        let mut turn = Turn::new(Config::new(hello)).unwrap();
        server::listen(&mut turn, &[address], &Security::Automatic(None)).unwrap();
        let mut server = Server::new(name("server"), server::LEASE);
        server.join(&turn, joining).unwrap();
        ready.send(()).unwrap();
        server::serve(&mut turn, &mut server, ended.as_fd()).unwrap();
    });
    is_ready.recv().unwrap();
    (end, thread)
}

/// It is told that it asks too much, waits for itself, and keeps nobody from making an object and
/// using it, which takes a view.
#[test]
fn who_asks_much_waits_for_itself() {
    let place = tempfile::tempdir().unwrap();
    let address: Address = format!("unix:{}/socket", place.path().display())
        .parse()
        .unwrap();
    let (end, thread) = serve(address.clone());
    let client = |who| Client::connect(Options::new(address.clone().into(), name(who))).unwrap();
    let (crowd, other) = (client("crowd"), client("other"));
    let (made, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for number in 0..CROWD {
            let (crowd, made, refused) = (&crowd, &made, &refused);
            scope.spawn(
                move || match crowd.create(object(&format!("crowd-{number}"))) {
                    Ok(()) => made.fetch_add(1, Ordering::SeqCst),
                    Err(error) => {
                        let text = error.to_string();
                        assert!(text.contains("too much is asked at once"), "{text}");
                        refused.fetch_add(1, Ordering::SeqCst)
                    }
                },
            );
        }
        // All is asked by now, and most of it waits.
        thread::sleep(Duration::from_millis(500));
        let begin = Instant::now();
        other.create(object("other")).unwrap();
        let rights = Rights {
            read: true,
            write: true,
        };
        let shared = other.open(name("other"), rights).unwrap();
        shared.words()[0].store(1, Ordering::Relaxed);
        let took = begin.elapsed();
        let left = CROWD - made.load(Ordering::SeqCst) - refused.load(Ordering::SeqCst);
        assert!(
            left > 30,
            "the crowd was served first, {left} wait: {took:?}"
        );
    });
    let (made, refused) = (made.into_inner(), refused.into_inner());
    assert!((64..CROWD).contains(&made), "{made} were made");
    assert_eq!(made + refused, CROWD);
    // It may go on as before.
    crowd.create(object("later")).unwrap();
    drop((crowd, other, end));
    thread.join().unwrap();
}
