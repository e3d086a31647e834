//! What a link needs from below: a stream of bytes that never blocks. TCP and Unix sockets
//! are such; what else can move bytes (UCX, RDMA) becomes a transport by this trait.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use quire_linux::socket;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, sockopt,
};

use super::pipe::Pipe;
use crate::wire::Sink;
use crate::wire::frame::MAX_DESCRIPTORS;

/// Descriptors that came and that no message has taken yet may be so many.
const MAX_WAITING: usize = 4 * MAX_DESCRIPTORS as usize;

/// Who is at the other end, as far as the transport knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A TCP socket.
    Tcp(SocketAddr),
    /// A process of this machine.
    Local {
        /// Its process.
        pid: u32,
        /// Its user.
        uid: u32,
        /// Its group.
        gid: u32,
    },
    /// A process of this machine that came over TCP first. It counts as whoever does.
    Beside {
        /// Its process.
        pid: u32,
    },
    /// Something else, in words.
    Other(String),
}

impl Peer {
    /// Its process, where it is one of this machine.
    #[must_use]
    pub const fn process(&self) -> Option<u32> {
        match self {
            Peer::Local { pid, .. } | Peer::Beside { pid } => Some(*pid),
            Peer::Tcp(_) | Peer::Other(_) => None,
        }
    }

    /// Whether it is certainly on this machine, if nobody forwards what is sent to it.
    #[must_use]
    pub fn is_on_this_machine(&self) -> bool {
        match self {
            Peer::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Peer::Local { .. } | Peer::Beside { .. } => true,
            Peer::Other(_) => false,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Tcp(address) => address.fmt(f),
            Peer::Local { pid, uid, .. } => write!(f, "process {pid} of user {uid}"),
            Peer::Beside { pid } => write!(f, "process {pid}"),
            Peer::Other(words) => f.write_str(words),
        }
    }
}

/// A stream of bytes in both directions. No function waits: what cannot be done now is
/// `WouldBlock`.
pub trait Transport: Sink + Send {
    /// Fills pieces of memory, one after the other, with what came. 0 means that nothing
    /// comes any more.
    ///
    /// # Errors
    /// Those of the system.
    fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// Writes what came to a place in a file, without copying it in between: at most so many
    /// bytes, and says how many. 0 means that nothing comes any more; `None` that this cannot be.
    ///
    /// # Errors
    /// Those of the system. What cannot be written is lost: nothing more can be read.
    fn read_to(
        &mut self,
        file: BorrowedFd<'_>,
        at: u64,
        length: usize,
    ) -> io::Result<Option<usize>> {
        let _ = (file, at, length);
        Ok(None)
    }

    /// Whether [`Transport::read_to`] is of use.
    fn receives_to_files(&self) -> bool {
        false
    }

    /// Whether more may have come though the last read did not fill all memory.
    fn may_have_more(&self) -> bool {
        false
    }

    /// Whether [`Sink::write_from`] is of use.
    fn sends_files(&self) -> bool {
        false
    }

    /// Takes descriptors out of those that came. `None` where there are fewer.
    fn take_descriptors(&mut self, count: usize) -> Option<Vec<OwnedFd>> {
        (count == 0).then(Vec::new)
    }

    /// How many descriptors came that no message has taken yet.
    fn waiting_descriptors(&self) -> usize {
        0
    }

    /// Has a poll look at it, until it is dropped.
    ///
    /// # Errors
    /// Those of the system.
    fn register(&mut self, at: &Registry, token: Token, interest: Interest) -> io::Result<()>;

    /// Has the poll look for something else.
    ///
    /// # Errors
    /// Those of the system.
    fn reregister(&mut self, at: &Registry, token: Token, interest: Interest) -> io::Result<()>;

    /// Whether it is connected by now.
    ///
    /// # Errors
    /// When it cannot be connected.
    fn connected(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    /// Tells the peer that nothing comes any more.
    fn shutdown(&mut self);

    /// From now on it is to take no more while so many bytes wait in it that were not sent yet. A
    /// hint.
    fn set_most_unsent(&mut self, bytes: usize) {
        let _ = bytes;
    }

    /// The shortest time that something took to the other side, and its acknowledgement back,
    /// without the threads there; `None` where that is not known.
    fn round_trip(&self) -> Option<Duration> {
        None
    }

    /// Who is at the other end.
    fn peer(&self) -> &Peer;
}

/// TCP.
pub struct Tcp {
    socket: TcpStream,
    peer: Peer,
    /// Once something went from it to a file.
    pipe: Option<Pipe>,
    /// There is none to be had, or it cannot be used.
    lacks_pipe: bool,
}

impl Tcp {
    /// Begins to connect to an address.
    ///
    /// # Errors
    /// Those of the system.
    pub fn connect(peer: SocketAddr, timeout: Duration) -> io::Result<Tcp> {
        let socket: std::net::TcpStream = socket::to_be_connected(peer)?.into();
        socket.set_nonblocking(true)?;
        match rustix::net::connect(&socket, &peer) {
            Ok(()) | Err(Errno::INPROGRESS) => Tcp::new(TcpStream::from_std(socket), peer, timeout),
            Err(error) => Err(error.into()),
        }
    }

    /// A socket that is connected, or is being connected, to an address. What is sent goes
    /// out at once, and the connection is broken when the peer's machine does not
    /// acknowledge it for `timeout`.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new(socket: TcpStream, peer: SocketAddr, timeout: Duration) -> io::Result<Tcp> {
        sockopt::set_tcp_nodelay(&socket, true)?;
        let millis = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(&socket, millis)?;
        Ok(Tcp {
            socket,
            peer: Peer::Tcp(peer),
            pipe: None,
            lacks_pipe: false,
        })
    }
}

impl Sink for Tcp {
    fn write(
        &mut self,
        from: &[IoSlice<'_>],
        with: &[BorrowedFd<'_>],
        more: bool,
    ) -> io::Result<usize> {
        if !with.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "TCP carries no descriptors",
            ));
        }
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::MORE, more);
        send(self.socket.as_fd(), from, with, flags)
    }

    fn write_from(
        &mut self,
        file: BorrowedFd<'_>,
        mut at: u64,
        length: usize,
    ) -> io::Result<Option<usize>> {
        let mut sent = || rustix::fs::sendfile(&self.socket, file, Some(&mut at), length);
        match again(&mut sent) {
            Ok(sent) => Ok(Some(sent)),
            Err(error) if cannot_be(error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Transport for Tcp {
    fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Ok(again(|| rustix::io::readv(&self.socket, into))?)
    }

    fn read_to(
        &mut self,
        file: BorrowedFd<'_>,
        at: u64,
        length: usize,
    ) -> io::Result<Option<usize>> {
        if self.pipe.is_none() && !self.lacks_pipe {
            self.pipe = Pipe::new().ok();
            self.lacks_pipe = self.pipe.is_none();
        }
        let Some(pipe) = &self.pipe else {
            return Ok(None);
        };
        match pipe.fill(self.socket.as_fd(), length) {
            Err(error) if cannot_be(error) => {
                (self.pipe, self.lacks_pipe) = (None, true);
                Ok(None)
            }
            held => {
                let held = held?;
                pipe.empty(file, at, held)?;
                Ok(Some(held))
            }
        }
    }

    fn receives_to_files(&self) -> bool {
        !self.lacks_pipe
    }

    fn sends_files(&self) -> bool {
        true
    }

    fn register(&mut self, at: &Registry, token: Token, interest: Interest) -> io::Result<()> {
        self.socket.register(at, token, interest)
    }

    fn reregister(&mut self, at: &Registry, token: Token, interest: Interest) -> io::Result<()> {
        self.socket.reregister(at, token, interest)
    }

    fn connected(&mut self) -> io::Result<bool> {
        if let Some(error) = self.socket.take_error()? {
            return Err(error);
        }
        match self.socket.peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn shutdown(&mut self) {
        // It may be gone already, which is as good.
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    fn set_most_unsent(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        // Where that cannot be had, more waits.
        let _ = socket::set_most_unsent(self.socket.as_fd(), bytes);
    }

    fn round_trip(&self) -> Option<Duration> {
        socket::round_trip(self.socket.as_fd())
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }
}

/// A Unix stream socket. It carries descriptors.
pub struct Unix {
    socket: UnixStream,
    peer: Peer,
    /// Descriptors that came, in order.
    waiting: VecDeque<OwnedFd>,
    /// The last read brought descriptors, and so ended early.
    brought_descriptors: bool,
}

impl Unix {
    /// A socket that is connected.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new(socket: UnixStream) -> io::Result<Unix> {
        let credentials = sockopt::socket_peercred(&socket)?;
        let peer = Peer::Local {
            pid: credentials.pid.as_raw_nonzero().get().unsigned_abs(),
            uid: credentials.uid.as_raw(),
            gid: credentials.gid.as_raw(),
        };
        Ok(Unix {
            socket,
            peer,
            waiting: VecDeque::new(),
            brought_descriptors: false,
        })
    }

    /// The same for one beside a TCP socket.
    ///
    /// # Errors
    /// Those of the system.
    pub fn beside(socket: UnixStream) -> io::Result<Unix> {
        let mut unix = Unix::new(socket)?;
        if let Some(pid) = unix.peer.process() {
            unix.peer = Peer::Beside { pid };
        }
        Ok(unix)
    }

    /// Keeps what came with a read.
    fn keep(&mut self, mut came: RecvAncillaryBuffer<'_>, flags: ReturnFlags) -> io::Result<()> {
        self.brought_descriptors = false;
        for message in came.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.brought_descriptors = true;
                self.waiting.extend(descriptors);
            }
        }
        if flags.contains(ReturnFlags::CTRUNC) || self.waiting.len() > MAX_WAITING {
            self.waiting.clear();
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the peer sends too many descriptors",
            ));
        }
        Ok(())
    }
}

impl Sink for Unix {
    fn write(
        &mut self,
        from: &[IoSlice<'_>],
        with: &[BorrowedFd<'_>],
        _: bool,
    ) -> io::Result<usize> {
        send(self.socket.as_fd(), from, with, SendFlags::empty())
    }
}

impl Transport for Unix {
    fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS as usize))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let socket = &self.socket;
        let message = again(|| rustix::net::recvmsg(socket, into, &mut control, flags))?;
        self.keep(control, message.flags)?;
        Ok(message.bytes)
    }

    fn may_have_more(&self) -> bool {
        self.brought_descriptors
    }

    fn waiting_descriptors(&self) -> usize {
        self.waiting.len()
    }

    fn take_descriptors(&mut self, count: usize) -> Option<Vec<OwnedFd>> {
        (count <= self.waiting.len()).then(|| self.waiting.drain(..count).collect())
    }

    fn register(&mut self, at: &Registry, token: Token, interest: Interest) -> io::Result<()> {
        self.socket.register(at, token, interest)
    }

    fn reregister(&mut self, at: &Registry, token: Token, interest: Interest) -> io::Result<()> {
        self.socket.reregister(at, token, interest)
    }

    fn shutdown(&mut self) {
        // It may be gone already, which is as good.
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    fn round_trip(&self) -> Option<Duration> {
        Some(Duration::ZERO)
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }
}

/// Sends without a signal where the peer is gone: what runs here may be somebody's program.
fn send(
    socket: BorrowedFd<'_>,
    from: &[IoSlice<'_>],
    with: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<usize> {
    let flags = flags | SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    if with.is_empty() {
        let mut control = SendAncillaryBuffer::default();
        return Ok(again(|| {
            rustix::net::sendmsg(socket, from, &mut control, flags)
        })?);
    }
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS as usize))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(with)) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "too many descriptors for one message",
        ));
    }
    Ok(again(|| {
        rustix::net::sendmsg(socket, from, &mut control, flags)
    })?)
}

/// Whether the kernel does not do this with such a file, or this program may not ask for it.
fn cannot_be(error: Errno) -> bool {
    let refusals = [Errno::INVAL, Errno::OPNOTSUPP, Errno::NOSYS, Errno::PERM];
    refusals.contains(&error)
}

/// Once more where a signal came in between.
pub(super) fn again<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}
