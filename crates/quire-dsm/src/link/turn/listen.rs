//! Sockets that listen.

use std::io;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mio::net::{TcpListener, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};
use quire_linux::socket::Accepting;

use crate::link::address::Address;
use crate::link::identity::Identity;
use crate::link::transport::{Tcp, Transport, Unix};
use crate::random::random;
use crate::wire::control::Name;

/// A socket that listens, and what its links need.
pub(super) struct Listener {
    socket: Socket,
    /// For TLS.
    pub(super) identity: Option<Arc<Identity>>,
}

enum Socket {
    Tcp(TcpListener, Accepting),
    Unix(UnixListener, PathBuf, Place),
    /// Beside a TCP socket, for programs that see the same loopback.
    Beside(UnixListener),
}

/// Which file is at a path: its device and number. Nothing, where there is none.
#[derive(PartialEq, Eq)]
struct Place(Option<(u64, u64)>);

impl Place {
    fn of(path: &Path) -> Place {
        let found = std::fs::symlink_metadata(path).ok();
        Place(found.map(|metadata| (metadata.dev(), metadata.ino())))
    }
}

impl Listener {
    /// Listens at an address.
    pub(super) fn new(address: &Address, identity: Option<Arc<Identity>>) -> io::Result<Listener> {
        let socket = match address {
            Address::Tcp(address) => {
                let socket = TcpListener::bind(*address)?;
                let accepting = Accepting::at(socket.as_fd());
                Socket::Tcp(socket, accepting)
            }
            Address::Unix(path) => {
                make_way(path)?;
                let socket = UnixListener::bind(path)?;
                Socket::Unix(socket, path.clone(), Place::of(path))
            }
        };
        Ok(Listener { socket, identity })
    }

    /// Listens at a Unix socket that has no path, and a name that nobody else has.
    pub(super) fn beside() -> io::Result<(Listener, Name)> {
        let name = format!("quire-{:016x}{:016x}", random(), random());
        let name: Name = name.parse().map_err(io::Error::other)?;
        let listener = UnixListener::bind_addr(&abstract_address(&name)?)?;
        let listener = Listener {
            socket: Socket::Beside(listener),
            identity: None,
        };
        Ok((listener, name))
    }

    /// Where it listens in fact, where any port was asked for.
    pub(super) fn address(&self) -> io::Result<Address> {
        match &self.socket {
            Socket::Tcp(socket, _) => socket.local_addr().map(Address::Tcp),
            Socket::Unix(_, path, _) => Ok(Address::Unix(path.clone())),
            Socket::Beside(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    pub(super) fn register(&mut self, at: &Registry, token: Token) -> io::Result<()> {
        match &mut self.socket {
            Socket::Tcp(socket, _) => at.register(socket, token, Interest::READABLE),
            Socket::Unix(socket, ..) | Socket::Beside(socket) => {
                at.register(socket, token, Interest::READABLE)
            }
        }
    }

    /// The next peer that connects; `WouldBlock` where there is none now.
    pub(super) fn accept(&self, timeout: Duration) -> io::Result<Box<dyn Transport>> {
        match &self.socket {
            Socket::Tcp(listener, accepting) => {
                let (socket, peer) = listener.accept()?;
                accepting.accepted(socket.as_fd(), peer)?;
                Ok(Box::new(Tcp::new(socket, peer, timeout)?))
            }
            Socket::Unix(listener, ..) => {
                let (socket, _) = listener.accept()?;
                Ok(Box::new(Unix::new(socket)?))
            }
            Socket::Beside(listener) => {
                let (socket, _) = listener.accept()?;
                Ok(Box::new(Unix::beside(socket)?))
            }
        }
    }
}

/// The address of a Unix socket that has a name and no path. Those see it who see the same
/// network: the same loopback as well.
pub(super) fn abstract_address(name: &Name) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name.as_str())
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Somebody else may have removed it already, and another server may listen there.
        if let Socket::Unix(_, path, place) = &self.socket
            && Place::of(path) == *place
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Removes a socket at which nobody listens any more, and nothing else.
fn make_way(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path)
            }
            _ => Ok(()),
        },
        // To bind would say that the address is in use.
        Ok(metadata) => {
            let what = match metadata.is_dir() {
                true => "a directory is there",
                false => "a file that is no socket is there",
            };
            Err(io::Error::new(io::ErrorKind::AlreadyExists, what))
        }
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_removed_by_its_own_listener_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listen = || Listener::new(&Address::Unix(path.clone()), None).unwrap();
        let earlier = listen();
        std::fs::remove_file(&path).unwrap();
        let later = listen();
        drop(earlier);
        assert!(UnixStream::connect(&path).is_ok());
        drop(later);
        assert!(!path.exists());
    }

    #[test]
    fn what_is_no_socket_is_said_and_stays() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, b"kept").unwrap();
        for (path, what) in [
            (directory.path(), "a directory"),
            (&file, "a file that is no socket"),
        ] {
            let error = Listener::new(&Address::Unix(path.into()), None)
                .err()
                .unwrap();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
            assert!(error.to_string().starts_with(what), "{error}");
        }
        assert_eq!(std::fs::read(file).unwrap(), b"kept");
    }
}
