//! What joined servers need from outside of their loop. Simulations have their own.

use std::io;
use std::sync::Arc;

use crate::directory::desk::Threaded;
use crate::directory::{Clerk, Shared, Waker};
use crate::link::{Address, LinkId, Links, Security, Turn};
use crate::random::random;

/// Connects to a peer server.
pub type Connect = Box<dyn FnMut(&mut Links, &Address, &Security) -> io::Result<LinkId> + Send>;

/// Numbers that nobody had before: they name servers and objects.
pub type Numbers = Box<dyn FnMut() -> u64 + Send>;

/// What joined servers need from outside of their loop.
pub struct Outside {
    /// Who asks the directory.
    pub clerk: Arc<dyn Clerk>,
    /// Wakes the loop where the directory has answered, or something has changed in it.
    pub wake: Waker,
    /// How peer servers are reached.
    pub connect: Connect,
    /// What servers and objects are named by.
    pub numbers: Numbers,
}

impl Outside {
    /// Threads, sockets, and numbers of the system.
    ///
    /// # Errors
    /// Where no thread can be started that asks the directory.
    pub fn system(turn: &Turn, directory: Shared) -> io::Result<Outside> {
        let waker = turn.waker();
        Ok(Outside {
            clerk: Arc::new(Threaded::new(directory)?),
            wake: Arc::new(move || {
                if let Err(error) = waker.wake() {
                    tracing::error!("the event loop cannot be woken: {error}");
                }
            }),
            connect: Box::new(|links, address, security| links.connect(address, security, None)),
            numbers: Box::new(random),
        })
    }
}
