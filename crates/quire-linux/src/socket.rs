//! What the kernel knows of a socket's way, and how it sends there.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

/// The congestion control that every kernel has, and every user may have.
const PLAIN: &str = "reno";

/// What the kernel says where it has measured nothing yet.
const UNKNOWN: u32 = u32::MAX;

/// The shortest time within which the other side's system acknowledged something, of the last
/// few minutes; `None` where the socket is not one of TCP, or nothing was acknowledged yet.
#[must_use]
pub fn round_trip(socket: BorrowedFd<'_>) -> Option<Duration> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is the size of the structure.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    // SAFETY: it is plain numbers, of which all that the kernel did not write are 0.
    let shortest = unsafe { info.assume_init() }.tcpi_min_rtt;
    let is_known = answer == 0 && shortest != UNKNOWN && shortest > 0;
    is_known.then(|| Duration::from_micros(shortest.into()))
}

/// A TCP socket takes no more from now on while so many bytes wait in it that were not sent yet, and
/// is ready for more when half of them are.
///
/// # Errors
/// Those of the system.
pub fn set_most_unsent(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes as `bytes` has, which lives until it returns.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw const bytes).cast(),
            size_of::<u32>() as libc::socklen_t,
        )
    };
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A TCP socket that is to be connected to a peer. On this machine it sends as fast as the other
/// side reads: some congestion controls (BBR) space out what they send by what they take for the
/// speed of the way, in small pieces, which only takes time where the way is a piece of memory. A
/// socket that was once connected with such a one keeps spacing out, whatever is set later.
///
/// # Errors
/// Those of the system.
pub fn to_be_connected(peer: SocketAddr) -> io::Result<OwnedFd> {
    let family = match peer {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if is_here(peer) {
        // Where it cannot be had, it is as fast as others.
        let _ = sockopt::set_tcp_congestion(&socket, PLAIN);
    }
    Ok(socket)
}

/// What the sockets of a listening one send by, so that those whose peers are on this machine send
/// as [`to_be_connected`] says, and others as the system has it.
#[derive(Debug)]
pub struct Accepting {
    /// The congestion control of the system, where the listening socket has another one.
    usual: Option<String>,
}

impl Accepting {
    /// Prepares a listening TCP socket.
    #[must_use]
    pub fn at(listening: BorrowedFd<'_>) -> Accepting {
        let usual = sockopt::tcp_congestion(listening).ok();
        let usual = usual.filter(|_| sockopt::set_tcp_congestion(listening, PLAIN).is_ok());
        Accepting { usual }
    }

    /// A peer has been accepted there.
    ///
    /// # Errors
    /// Those of the system.
    pub fn accepted(&self, socket: BorrowedFd<'_>, peer: SocketAddr) -> io::Result<()> {
        match &self.usual {
            Some(usual) if !is_here(peer) => Ok(sockopt::set_tcp_congestion(socket, usual)?),
            _ => Ok(()),
        }
    }
}

/// Whether a peer is on this machine, by its address.
fn is_here(peer: SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_way_on_this_machine_is_short() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        for _ in 0..10 {
            socket.write_all(b"x").unwrap();
            other.read_exact(&mut [0]).unwrap();
            other.write_all(b"x").unwrap();
            socket.read_exact(&mut [0]).unwrap();
        }
        let time = round_trip(socket.as_fd()).expect("something was acknowledged");
        assert!(time < Duration::from_secs(1), "{time:?}");
        let (unix, _other) = UnixStream::pair().unwrap();
        assert_eq!(round_trip(unix.as_fd()), None);
    }

    #[test]
    fn little_waits_unsent_where_little_may() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // The other side reads nothing, so that what is beyond its room waits.
        let taken = [16 << 10, 1 << 20].map(|most| {
            let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let _other = listener.accept().unwrap();
            set_most_unsent(socket.as_fd(), most).unwrap();
            socket.set_nonblocking(true).unwrap();
            let mut taken = 0;
            while let Ok(bytes) = (&socket).write(&[0; 4096]) {
                taken += bytes;
            }
            taken
        });
        let [little, much] = taken;
        assert!(little + (256 << 10) < much, "{taken:?}");
        let (unix, _other) = UnixStream::pair().unwrap();
        assert!(set_most_unsent(unix.as_fd(), 1).is_err());
    }

    #[test]
    fn only_what_leaves_this_machine_is_spaced_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let usual = sockopt::tcp_congestion(&listener).unwrap();
        let accepting = Accepting::at(listener.as_fd());
        let here = listener.local_addr().unwrap();
        let socket = to_be_connected(here).unwrap();
        net::connect(&socket, &here).unwrap();
        let (accepted, peer) = listener.accept().unwrap();
        accepting.accepted(accepted.as_fd(), peer).unwrap();
        for socket in [socket.as_fd(), accepted.as_fd()] {
            assert_eq!(sockopt::tcp_congestion(socket).unwrap(), PLAIN);
        }
        let far = "192.0.2.1:1".parse().unwrap();
        accepting.accepted(accepted.as_fd(), far).unwrap();
        let to_far = to_be_connected(far).unwrap();
        for socket in [to_far.as_fd(), accepted.as_fd()] {
            assert_eq!(sockopt::tcp_congestion(socket).unwrap(), usual);
        }
        assert!(is_here("[::ffff:127.0.0.1]:1".parse().unwrap()));
    }
}
