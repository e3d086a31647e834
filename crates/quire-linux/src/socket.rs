//! What the kernel knows of a socket's way.

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

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
}
