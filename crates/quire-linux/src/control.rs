//! The control socket of a process: a datagram socket in its session directory,
//! by which the user, and nobody else, asks for changes. Its own permissions
//! guard it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quire_core::control::{CONTROL_FILE_PREFIX, MAX_LINE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::raw::{Errno, Result};

/// How often it is checked whether the process that is asked is still there.
const LOOK: Duration = Duration::from_millis(100);

/// Where the control socket of process `pid` is, in its session directory.
#[must_use]
pub fn socket_path(session: &Path, pid: u32) -> PathBuf {
    session.join(format!("{CONTROL_FILE_PREFIX}{pid}"))
}

/// The process's end.
#[derive(Debug)]
pub struct ControlSocket {
    socket: OwnedFd,
}

/// A line that somebody sent.
#[derive(Debug)]
pub struct Request {
    /// What was asked.
    pub line: String,
    from: Option<SocketAddrAny>,
}

impl ControlSocket {
    /// Makes the socket of process `pid` in the directory `session`. One that an
    /// earlier program of this process left is replaced.
    ///
    /// # Errors
    /// When the directory cannot be written or its path is too long.
    pub fn bind(session: &str, pid: u32) -> Result<ControlSocket> {
        let path = socket_path(Path::new(session), pid);
        // What is not there need not be removed.
        let _ = rustix::fs::unlink(&path);
        let socket = new_socket()?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path)?)?;
        // The directory may be one in which others, too, have their files.
        rustix::fs::chmod(&path, Mode::RUSR | Mode::WUSR)?;
        Ok(ControlSocket { socket })
    }

    /// Fetches the next request, if there is one.
    #[must_use]
    pub fn next(&self) -> Option<Request> {
        let mut line = [0; MAX_LINE];
        let (_, len, from) =
            rustix::net::recvfrom(&self.socket, &mut line, RecvFlags::DONTWAIT).ok()?;
        Some(Request {
            line: String::from_utf8_lossy(&line[..len.min(MAX_LINE)]).into_owned(),
            from,
        })
    }

    /// Waits for the next request.
    #[must_use]
    pub fn wait(&self) -> Request {
        loop {
            if let Some(request) = self.next() {
                return request;
            }
            // Interrupted or not, what is there is fetched. Where no descriptor is allowed, `poll` refuses.
            if poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], None).is_err() {
                std::thread::sleep(LOOK);
            }
        }
    }

    /// Answers a request. Whoever does not listen any more goes without.
    pub fn answer(&self, request: &Request, line: &str) {
        if let Some(to) = &request.from {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = rustix::net::sendto(&self.socket, line.as_bytes(), flags, to);
        }
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sends a line to the control socket at `path` and waits for the answer, while
/// the process that is asked is there.
///
/// # Errors
/// `ENOENT` or `ECONNREFUSED` where nobody listens, `ESRCH` where the process is
/// gone before it answers, `ETIMEDOUT` where there is no answer for as long as
/// `patience`, or what the kernel refuses.
pub fn ask(
    path: &Path,
    line: &str,
    patience: Duration,
    is_there: impl Fn() -> bool,
) -> Result<String> {
    let socket = new_socket()?;
    // An abstract name of the kernel's choice, so that there is a way back.
    rustix::net::bind(&socket, &SocketAddrUnix::new_unnamed())?;
    let to = SocketAddrUnix::new(path)?;
    rustix::net::sendto(&socket, line.as_bytes(), SendFlags::DONTWAIT, &to)?;
    let end = Instant::now() + patience;
    let slice = Timespec {
        tv_sec: 0,
        tv_nsec: patience.min(LOOK).as_nanos() as i64,
    };
    while poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&slice))? == 0 {
        if !is_there() {
            return Err(Errno(libc::ESRCH));
        }
        if Instant::now() >= end {
            return Err(Errno(libc::ETIMEDOUT));
        }
    }
    let mut answer = [0; MAX_LINE];
    let (len, _) = rustix::net::recv(&socket, &mut answer, RecvFlags::DONTWAIT)?;
    Ok(String::from_utf8_lossy(&answer[..len]).into_owned())
}

fn new_socket() -> Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::DGRAM);
    Ok(rustix::net::socket_with(
        family,
        kind,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_answered() {
        let dir = tempfile::tempdir().unwrap();
        let session = dir.path().to_str().unwrap();
        let path = dir.path().join("control.7");
        let patience = Duration::from_secs(10);
        assert_eq!(ask(&path, "x", patience, || true), Err(Errno(libc::ENOENT)));
        drop(ControlSocket::bind(session, 7).unwrap());
        // A child of another test has the socket, too, until it runs its program.
        let (short, refused) = (Duration::from_millis(10), Err(Errno(libc::ECONNREFUSED)));
        assert!((0..1000).any(|_| ask(&path, "x", short, || true) == refused));
        let socket = ControlSocket::bind(session, 7).unwrap();
        assert!(socket.next().is_none());
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| ask(&path, "policy=eager", patience, || true));
            let request = socket.wait();
            assert_eq!(request.line, "policy=eager");
            socket.answer(&request, "done");
            assert_eq!(asked.join().unwrap().unwrap(), "done");
        });
        let (gone, silent) = (Err(Errno(libc::ESRCH)), Err(Errno(libc::ETIMEDOUT)));
        assert_eq!(ask(&path, "x", short, || true), silent);
        assert_eq!(ask(&path, "x", patience, || false), gone);
    }
}
