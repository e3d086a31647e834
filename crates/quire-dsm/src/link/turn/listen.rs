//! Sockets that listen.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mio::net::{TcpListener, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};

use crate::link::address::Address;
use crate::link::identity::Identity;
use crate::link::transport::{Tcp, Transport, Unix};

/// A socket that listens, and what its links need.
pub(super) struct Listener {
    socket: Socket,
    /// For TLS.
    pub(super) identity: Option<Arc<Identity>>,
}

enum Socket {
    Tcp(TcpListener),
    /// With the path that is to be removed with it.
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Listens at an address.
    pub(super) fn new(address: &Address, identity: Option<Arc<Identity>>) -> io::Result<Listener> {
        let socket = match address {
            Address::Tcp(address) => Socket::Tcp(TcpListener::bind(*address)?),
            Address::Unix(path) => {
                remove_stale(path)?;
                Socket::Unix(UnixListener::bind(path)?, path.clone())
            }
        };
        Ok(Listener { socket, identity })
    }

    /// Where it listens in fact, where any port was asked for.
    pub(super) fn address(&self) -> io::Result<Address> {
        match &self.socket {
            Socket::Tcp(socket) => socket.local_addr().map(Address::Tcp),
            Socket::Unix(_, path) => Ok(Address::Unix(path.clone())),
        }
    }

    pub(super) fn register(&mut self, at: &Registry, token: Token) -> io::Result<()> {
        match &mut self.socket {
            Socket::Tcp(socket) => at.register(socket, token, Interest::READABLE),
            Socket::Unix(socket, _) => at.register(socket, token, Interest::READABLE),
        }
    }

    /// The next peer that connects; `WouldBlock` where there is none now.
    pub(super) fn accept(&self, timeout: Duration) -> io::Result<Box<dyn Transport>> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (socket, peer) = listener.accept()?;
                Ok(Box::new(Tcp::new(socket, peer, timeout)?))
            }
            Socket::Unix(listener, _) => {
                let (socket, _) = listener.accept()?;
                Ok(Box::new(Unix::new(socket)?))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Socket::Unix(_, path) = &self.socket {
            // Somebody else may have removed it already.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Removes a socket at which nobody listens any more.
fn remove_stale(path: &PathBuf) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path)
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}
