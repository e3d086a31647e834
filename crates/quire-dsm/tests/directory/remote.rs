//! A directory inside of another server, over a link.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::thread;

use quire_dsm::directory::{Embedded, Remote, Shared};
use quire_dsm::link::turn::Config;
use quire_dsm::link::{Address, Security, Turn};
use quire_dsm::server::{self, Host, Joining, Server};
use quire_dsm::wire::control::{Hello, MachineCode, PageSize, Role};

fn hello() -> Hello {
    Hello {
        name: "server".parse().unwrap(),
        role: Role::Server,
        machine: MachineCode(0),
        page_size: PageSize::BASE,
        features: 0,
    }
}

/// A server with a directory, until the returned socket is dropped.
fn serve(address: Address) -> (UnixStream, thread::JoinHandle<()>) {
    let (end, ended) = UnixStream::pair().unwrap();
    let (ready, is_ready) = mpsc::channel();
    let thread = thread::spawn(move || {
        let joining = Joining {
            directory: Arc::new(Embedded::new(None).unwrap()),
            host: Host::This,
            address: address.clone(),
            names: vec![hello().name],
            security: Security::Automatic(None),
        };
        let mut turn = Turn::new(Config::new(hello())).unwrap();
        server::listen(&mut turn, &[address], &Security::Automatic(None)).unwrap();
        let mut server = Server::new(hello().name, server::LEASE);
        server.join(&turn, joining).unwrap();
        ready.send(()).unwrap();
        server::serve(&mut turn, &mut server, ended.as_fd()).unwrap();
    });
    is_ready.recv().unwrap();
    (end, thread)
}

#[test]
fn the_directory_of_another_server() {
    let place = tempfile::tempdir().unwrap();
    let address = format!("unix:{}/socket", place.path().display());
    let address: Address = address.parse().unwrap();
    let (end, thread) = serve(address.clone());
    let remote = Remote::new(address, Security::Automatic(None), hello()).unwrap();
    let directory: Shared = Arc::new(remote);
    super::behaves(&directory);
    super::races(&directory, 10);
    drop((directory, end));
    thread.join().unwrap();
}
