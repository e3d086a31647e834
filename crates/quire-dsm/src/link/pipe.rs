//! A pipe between a socket and a file. The kernel moves the socket's memory into it, and copies that
//! once, to where it belongs in the file: nobody has it in memory of its own in between.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use super::transport::again;

/// So much shall go through it at a time, in bytes. It counts pieces of the socket's memory, each as
/// a page; a piece may be less.
const SIZE: usize = 1 << 20;

/// Empty, but while something passes through it.
pub(super) struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
}

impl Pipe {
    pub(super) fn new() -> Result<Pipe, Errno> {
        let (out, into) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A shorter one does, too, with more calls.
        let _ = fcntl_setpipe_size(&into, SIZE);
        Ok(Pipe { out, into })
    }

    /// Moves what a socket has into the pipe: at most so many bytes, and says how many.
    pub(super) fn fill(&self, from: BorrowedFd<'_>, most: usize) -> Result<usize, Errno> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        again(|| splice(from, None, self.into.as_fd(), None, most, flags))
    }

    /// Writes all of it, so many bytes, to a place in a file.
    pub(super) fn empty(
        &self,
        file: BorrowedFd<'_>,
        mut at: u64,
        mut held: usize,
    ) -> Result<(), Errno> {
        while held > 0 {
            let out = self.out.as_fd();
            let wrote = again(|| splice(out, None, file, Some(&mut at), held, SpliceFlags::MOVE))?;
            held -= wrote;
            if wrote == 0 {
                return Err(Errno::IO);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use rustix::fs::MemfdFlags;

    use super::*;

    #[test]
    fn what_a_socket_has_comes_to_a_place_in_a_file() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut to = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (from, _) = listener.accept().unwrap();
        from.set_nonblocking(true).unwrap();
        let file = rustix::fs::memfd_create(c"place", MemfdFlags::CLOEXEC).unwrap();
        let pipe = Pipe::new().unwrap();
        let nothing = pipe.fill(from.as_fd(), 100);
        assert_eq!(nothing, Err(Errno::WOULDBLOCK));
        let bytes: Vec<u8> = (0..3 * SIZE).map(|at| (at / 1000) as u8).collect();
        let mut came = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| to.write_all(&bytes).unwrap());
            while came < bytes.len() {
                match pipe.fill(from.as_fd(), bytes.len() - came) {
                    Err(Errno::WOULDBLOCK) => std::thread::yield_now(),
                    held => {
                        let held = held.unwrap();
                        pipe.empty(file.as_fd(), 10 + came as u64, held).unwrap();
                        came += held;
                    }
                }
            }
        });
        let mut there = vec![0; bytes.len()];
        assert_eq!(rustix::io::pread(&file, &mut there, 10), Ok(bytes.len()));
        assert!(there == bytes);
        drop(to);
        assert_eq!(pipe.fill(from.as_fd(), 100), Ok(0));
    }
}
