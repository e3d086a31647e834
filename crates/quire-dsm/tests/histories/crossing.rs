//! The way between joined servers: each server is reached at a socket of this process, which
//! carries the bytes on to the server's own. Who connects is known from its process, so that
//! the link of any two servers can be held back, one way or both, or broken.

use std::collections::{BTreeSet, HashMap};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::Pid;

#[derive(Default)]
struct State {
    /// Which server a process is.
    servers: Mutex<HashMap<Pid, usize>>,
    /// From which server to which nothing goes on.
    held: Mutex<BTreeSet<(usize, usize)>>,
    open: Mutex<Vec<UnixStream>>,
}

/// The way between all servers of a scene.
pub struct Crossing {
    state: Arc<State>,
}

/// Where others reach a server.
pub fn seen(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("seen-{number}"))
}

/// Where a server itself listens.
pub fn own(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("socket-{number}"))
}

impl Crossing {
    /// The way between so many servers, which need not be there yet.
    pub fn start(directory: &Path, servers: usize) -> Crossing {
        let state = Arc::new(State::default());
        for number in 0..servers {
            let listener = UnixListener::bind(seen(directory, number)).expect("a socket");
            let (to, state) = (own(directory, number), Arc::clone(&state));
            thread::spawn(move || {
                for one in listener.incoming().map_while(Result::ok) {
                    // Whoever finds no server there tries again.
                    if let Ok(other) = UnixStream::connect(&to) {
                        carry(one, other, number, &state);
                    }
                }
            });
        }
        Crossing { state }
    }

    /// A server is this process.
    pub fn is(&self, server: usize, process: Pid) {
        let mut servers = self.state.servers.lock().expect("no panic");
        servers.insert(process, server);
    }

    /// Holds back what these say to those, from now on nothing else.
    pub fn hold(&self, ways: &[(usize, usize)]) {
        let mut held = self.state.held.lock().expect("no panic");
        *held = ways.iter().copied().collect();
    }

    /// Ends all links. Others can be made. Says how many there were.
    pub fn cut(&self) -> usize {
        let open = std::mem::take(&mut *self.state.open.lock().expect("no panic"));
        for stream in &open {
            // It may have ended by itself.
            let _ = stream.shutdown(Shutdown::Both);
        }
        open.len() / 2
    }
}

impl Drop for Crossing {
    fn drop(&mut self) {
        self.hold(&[]);
        self.cut();
    }
}

fn carry(one: UnixStream, other: UnixStream, server: usize, state: &Arc<State>) {
    let peer = socket_peercred(&one).expect("whose it is").pid;
    for (is_from, from, to) in [(true, &one, &other), (false, &other, &one)] {
        let from = from.try_clone().expect("a descriptor");
        let to = to.try_clone().expect("a descriptor");
        let state = Arc::clone(state);
        let is_held = move || {
            let servers = state.servers.lock().expect("no panic");
            let Some(peer) = servers.get(&peer).copied() else {
                return false;
            };
            let way = match is_from {
                true => (peer, server),
                false => (server, peer),
            };
            state.held.lock().expect("no panic").contains(&way)
        };
        thread::spawn(move || carry_one_way(from, to, is_held));
    }
    state.open.lock().expect("no panic").extend([one, other]);
}

fn carry_one_way(mut from: UnixStream, mut to: UnixStream, is_held: impl Fn() -> bool) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while is_held() {
            thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // The other side may have ended already.
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
