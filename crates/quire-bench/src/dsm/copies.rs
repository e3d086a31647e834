//! What a copy beyond a socket's costs, where a page comes to a program's own memory or goes from
//! it. A page that comes is read from the socket to a buffer that is used again, and written to the
//! memory file, or it is read to where it belongs at once; then the kernel fills the memory with
//! zeros first. A page that goes is read from the memory file to such a buffer and written to the
//! socket, or passed on by the kernel (`sendfile`). What comes may also be passed on by the kernel,
//! through a pipe that holds the socket's memory (`splice`). All that to memory which is new, and to
//! memory which the file had before. Two threads with a socket between them do nothing else, and
//! their processor time is taken.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use quire_core::units::{BASE_PAGE, Bytes, ObjectOffset, SUPERPAGE};
use quire_linux::huge_file::{self, Window};
use quire_linux::socket;
use rustix::pipe::{SpliceFlags, splice};

use crate::cpu::cpu_seconds_of_this_thread as used;
use crate::dsm::results::Results;
use crate::dsm::{Part, Plan};
use crate::memory::SharedMap;

/// As much as a message has that brings pages ahead, and as a memory file gets at once.
const MESSAGE: usize = 128 << 10;
const BLOCK: usize = 512 << 10;

/// What is sent, in bytes, and with `--quick`.
const SIZE: [usize; 2] = [64 << 20, 2 << 20];

/// How contents get from the socket to memory, or from memory to the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Buffer,
    InPlace,
    Pipe,
}

/// How contents are sent and received, and whether to memory which the file had before.
type Variant = (By, By, bool);

/// Both ways to send, and all to receive; to memory that was there, as servers send.
const VARIANTS: [Variant; 9] = [
    (By::Buffer, By::Buffer, false),
    (By::InPlace, By::Buffer, false),
    (By::Buffer, By::InPlace, false),
    (By::InPlace, By::InPlace, false),
    (By::Buffer, By::Pipe, false),
    (By::InPlace, By::Pipe, false),
    (By::Buffer, By::Buffer, true),
    (By::Buffer, By::InPlace, true),
    (By::Buffer, By::Pipe, true),
];

/// A memory file as a program has for an object of its own, and its memory.
struct Memory {
    file: OwnedFd,
    map: SharedMap,
    window: Window,
    buffer: Vec<u8>,
    pipe: (OwnedFd, OwnedFd),
}

impl Memory {
    fn new(size: usize) -> Result<Memory> {
        let file = huge_file::create_if_privileged(Bytes(size as u64));
        let file = file.map_err(|errno| anyhow!("no file of folios: {errno}"))?;
        let pipe = rustix::pipe::pipe()?;
        // For pieces of pages that come.
        rustix::pipe::fcntl_setpipe_size(&pipe.0, 8 * MESSAGE)?;
        Ok(Memory {
            map: SharedMap::on_base_pages(&file, size)?,
            file,
            window: Window::new()?,
            buffer: vec![1; MESSAGE],
            pipe,
        })
    }

    /// The message at an offset is about to come: blocks get all their memory at once.
    fn prepare(&mut self, at: usize) -> Result<()> {
        if at.is_multiple_of(BLOCK) {
            let (file, offset) = (self.file.as_fd(), ObjectOffset(at as u64));
            self.window.sow(file, offset, Bytes(SUPERPAGE))?;
            huge_file::allocate(file, offset, Bytes(BLOCK as u64))?;
        }
        Ok(())
    }

    fn receive(&mut self, from: &mut TcpStream, at: usize, by: By) -> Result<()> {
        match by {
            By::InPlace => from.read_exact(&mut self.map.bytes()[at..at + MESSAGE])?,
            By::Pipe => self.receive_by_pipe(from, at)?,
            By::Buffer => {
                from.read_exact(&mut self.buffer)?;
                let mut done = 0;
                while done < MESSAGE {
                    let to = (at + done) as u64;
                    done += rustix::io::pwrite(&self.file, &self.buffer[done..], to)?;
                }
            }
        }
        Ok(())
    }

    fn receive_by_pipe(&self, from: &TcpStream, at: usize) -> Result<()> {
        let (out, into) = &self.pipe;
        let flags = SpliceFlags::MOVE;
        let mut done = 0;
        let mut held = 0;
        while done < MESSAGE {
            if held == 0 {
                held = splice(from, None, into, None, MESSAGE - done, flags)?;
                ensure!(held > 0, "who sends is gone");
            }
            let mut to = (at + done) as u64;
            let put = splice(out, None, &self.file, Some(&mut to), held, flags)?;
            (held, done) = (held - put, done + put);
        }
        Ok(())
    }

    fn send(&mut self, to: &mut TcpStream, at: usize, by: By) -> Result<()> {
        let mut done = 0;
        while done < MESSAGE {
            let from = (at + done) as u64;
            done += match by {
                By::Buffer => rustix::io::pread(&self.file, &mut self.buffer[done..], from)?,
                By::InPlace | By::Pipe => {
                    let mut from = from;
                    rustix::fs::sendfile(&*to, &self.file, Some(&mut from), MESSAGE - done)?
                }
            };
        }
        if by == By::Buffer {
            to.write_all(&self.buffer)?;
        }
        Ok(())
    }

    fn free(&self, size: usize) -> Result<()> {
        let all = Bytes(size as u64);
        Ok(huge_file::punch(self.file.as_fd(), ObjectOffset(0), all)?)
    }
}

/// Measures all ways, in turns.
pub fn measure(plan: Plan, results: &mut Results) -> Result<()> {
    let size = plan.size(SIZE[0], SIZE[1]);
    let (mut here, mut there) = match (Memory::new(size), Memory::new(size)) {
        (Ok(here), Ok(there)) => (here, there),
        (Err(why), _) | (_, Err(why)) => {
            results.note(format!("Copies were not measured: {why}."));
            return Ok(());
        }
    };
    for at in (0..size).step_by(MESSAGE) {
        here.prepare(at)?;
        here.map.bytes()[at..at + MESSAGE].fill(1);
    }
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    // It sends as links do.
    let mut to = TcpStream::from(socket::to_be_connected(address)?);
    rustix::net::connect(&to, &address)?;
    let (mut from, _) = listener.accept()?;
    let mut times = vec![[Vec::new(), Vec::new()]; VARIANTS.len()];
    for _ in 0..plan.rounds {
        for ((out, into, kept), times) in VARIANTS.into_iter().zip(&mut times) {
            if !kept {
                there.free(size)?;
            }
            let pass = Pass {
                size,
                out,
                into,
                kept,
            };
            let found = pass.run((&mut here, &mut to), (&mut there, &mut from))?;
            let last = there.map.bytes().last();
            ensure!(last == Some(&1), "what came is not what was sent");
            for (times, us) in times.iter_mut().zip(found) {
                times.push(us);
            }
        }
    }
    for ((out, into, kept), [sender, receiver]) in VARIANTS.into_iter().zip(times) {
        let of = |by| match by {
            By::Buffer => "by a buffer",
            By::InPlace => "in place",
            By::Pipe => "by a pipe",
        };
        let memory = match kept {
            true => ", memory was there",
            false => "",
        };
        let title = format!("sent {}, received {}{memory}", of(out), of(into));
        for (who, times) in [("who sends", sender), ("who receives", receiver)] {
            let name = format!("{title}: {who}, a page");
            results.add(Part::Copies, "", &name, "us", times);
        }
    }
    Ok(())
}

/// All of the memory goes from one to the other.
#[derive(Clone, Copy)]
struct Pass {
    size: usize,
    out: By,
    into: By,
    kept: bool,
}

impl Pass {
    /// Microseconds of processor time for a page, of who sends and of who receives.
    fn run(
        self,
        (here, to): (&mut Memory, &mut TcpStream),
        (there, from): (&mut Memory, &mut TcpStream),
    ) -> Result<[f64; 2]> {
        let Pass {
            size,
            out,
            into,
            kept,
        } = self;
        let pages = size as f64 / BASE_PAGE as f64;
        thread::scope(|scope| {
            let sender = scope.spawn(move || -> Result<f64> {
                let earlier = used();
                let mut messages = (0..size).step_by(MESSAGE);
                messages.try_for_each(|at| here.send(to, at, out))?;
                Ok((used() - earlier) * 1e6 / pages)
            });
            let earlier = used();
            let mut messages = (0..size).step_by(MESSAGE);
            messages.try_for_each(|at| {
                if !kept {
                    there.prepare(at)?;
                }
                there.receive(from, at, into)
            })?;
            let received = (used() - earlier) * 1e6 / pages;
            let sent = sender.join().map_err(|_| anyhow!("a thread failed"))?;
            Ok([sent.context("sending")?, received])
        })
    }
}
