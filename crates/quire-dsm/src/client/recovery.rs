//! The *recovery process*: a process that outlives programs, and brings to the server what they had written when
//! they were killed.
//!
//! A program with pages of its own connects to it when it opens its first object to write, and gives it the
//! files of each object: the memory, and the ledger of what is written
//! ([`crate::node::ledger`]). When the connection ends, the program does, or executes another one. The
//! recovery process waits until no thread of it is left, connects to the server, claims what the program's
//! link had, and gives it back.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use quire_core::units::Bytes;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, PidfdFlags};
use serde::{Deserialize, Serialize};

use crate::link::Addresses;
use crate::node::Written;
use crate::node::ledger::Ledger;
use crate::wire::control::Name;

/// What is left of an object of a program that is gone.
#[derive(Debug)]
pub struct Remains {
    /// The exact spelling of its key.
    pub name: Name,
    /// What it has written.
    pub written: Written,
}

/// How to reach the server of [`Remains`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Where it is.
    pub address: Addresses,
    /// As whom the program came.
    pub node: Name,
}

/// What a program says of an object.
#[derive(Serialize, Deserialize)]
struct Told {
    address: String,
    node: Name,
    name: Name,
    page: u64,
}

/// The longest of them.
const LONGEST: usize = 4096;
/// So long it is waited for that a process is gone whose connection has ended. One that
/// executes another program never is.
const ENDING: Duration = Duration::from_millis(500);

/// The way to a recovery process, from a program.
pub(super) struct ToRecovery(UnixStream);

impl ToRecovery {
    /// Connects to a recovery process by its name.
    pub fn connect(name: &str) -> io::Result<ToRecovery> {
        let address = SocketAddr::from_abstract_name(name)?;
        Ok(ToRecovery(UnixStream::connect_addr(&address)?))
    }

    /// Gives it an object.
    pub fn give(&self, reach: &Reach, name: &Name, written: &Written) -> io::Result<()> {
        let told = Told {
            address: reach.address.to_string(),
            node: reach.node.clone(),
            name: name.clone(),
            page: written.page.0,
        };
        let bytes = postcard::to_allocvec(&told).map_err(io::Error::other)?;
        let length = u32::try_from(bytes.len()).unwrap_or(0).to_le_bytes();
        let files = [written.memory.as_fd(), written.ledger.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut with = SendAncillaryBuffer::new(&mut space);
        with.push(SendAncillaryMessage::ScmRights(&files));
        let whole = [&length[..], &bytes].concat();
        // It is shorter than any buffer of a socket, and fits as a whole.
        sendmsg(
            &self.0,
            &[IoSlice::new(&whole)],
            &mut with,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }
}

/// A program that is connected to a recovery process.
pub struct Kept {
    program: UnixStream,
    process: Option<OwnedFd>,
}

/// Listens by a name that no file stands for.
///
/// # Errors
/// Those of the system.
pub fn listen(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

impl Kept {
    /// A program that has connected, if it is one of this user: others may use none of its rights.
    ///
    /// # Errors
    /// Those of the system, and `PermissionDenied`.
    pub fn new(program: UnixStream) -> io::Result<Kept> {
        let who = rustix::net::sockopt::socket_peercred(&program)?;
        if who.uid != rustix::process::geteuid() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let process = rustix::process::pidfd_open(who.pid, PidfdFlags::empty()).ok();
        Ok(Kept { program, process })
    }

    /// The next object that the program gives; none when it is gone.
    ///
    /// # Errors
    /// What makes no sense.
    pub fn next(&self) -> io::Result<Option<(Reach, Remains)>> {
        let mut files = Vec::new();
        let mut length = [0; 4];
        if !self.read(&mut length, &mut files)? {
            return Ok(None);
        }
        let length = u32::from_le_bytes(length) as usize;
        if length > LONGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; length];
        if !self.read(&mut bytes, &mut files)? {
            return Ok(None);
        }
        let told: Told = postcard::from_bytes(&bytes).map_err(io::Error::other)?;
        let mut files = files.into_iter();
        let (Some(memory), Some(ledger)) = (files.next(), files.next()) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let reach = Reach {
            address: told.address.parse().map_err(io::Error::other)?,
            node: told.node,
        };
        let page = Bytes(told.page);
        let is_size = page.0.is_power_of_two() && page.0 >= 4096;
        let written = Written {
            memory,
            ledger: Ledger::of(ledger).into(),
            page,
        };
        let remains = Remains {
            name: told.name,
            written,
        };
        match is_size {
            true => Ok(Some((reach, remains))),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Waits until no thread of the program can write any more.
    pub fn wait_until_gone(&self) {
        if let Some(process) = &self.process {
            wait(process.as_fd(), ENDING);
        }
    }

    /// Reads all bytes; whether there were any.
    fn read(&self, bytes: &mut [u8], files: &mut Vec<OwnedFd>) -> io::Result<bool> {
        let mut done = 0;
        while done < bytes.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut with = RecvAncillaryBuffer::new(&mut space);
            let into = &mut [IoSliceMut::new(&mut bytes[done..])];
            let read = match recvmsg(&self.program, into, &mut with, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::CONNRESET) => return Ok(false),
                read => read?,
            };
            for message in with.drain() {
                if let RecvAncillaryMessage::ScmRights(passed) = message {
                    files.extend(passed);
                }
            }
            if read.flags.contains(ReturnFlags::CTRUNC) {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if read.bytes == 0 {
                return Ok(false);
            }
            done += read.bytes;
        }
        Ok(true)
    }
}

/// Waits until a descriptor can be read, for so long at most.
fn wait(fd: BorrowedFd<'_>, most: Duration) {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let most = rustix::time::Timespec::try_from(most).ok();
    // Where it is interrupted, some threads may still run: who was killed has none for long.
    let _ = poll(&mut fds, most.as_ref());
}

/// The number of a process that connects, for messages.
#[must_use]
pub fn process_of(kept: &UnixStream) -> Option<Pid> {
    let who = rustix::net::sockopt::socket_peercred(kept).ok()?;
    Some(who.pid)
}
