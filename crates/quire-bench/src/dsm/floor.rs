//! What a fault cannot do without: a round trip through a userfaultfd and one through a
//! socket, bare. Those who answer wait as those of a fault do, asleep or polling.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use quire_core::units::{AddrRange, BASE_PAGE, Bytes, VirtAddr};
use quire_dsm::link::Address;
use quire_linux::socket::{self, Accepting};
use quire_linux::uffd::{self, Mode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use crate::dsm::worker::say;
use crate::memory::Block;
use crate::processors;

const PAGE: usize = BASE_PAGE as usize;
/// The longest that who answers faults sleeps without a look whether it shall end.
const LONGEST: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// The bytes of a round trip through a socket.
#[derive(Clone, Copy, Debug, Args)]
pub struct Trip {
    /// Bytes of each request
    #[arg(long)]
    pub request: u32,
    /// Bytes of each answer
    #[arg(long)]
    pub reply: u32,
}

/// Microseconds of bare round trips.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Floor {
    /// Through a userfaultfd.
    pub fault: Vec<f64>,
    /// Through a socket.
    pub socket: Vec<f64>,
}

/// The address of a TCP socket.
pub(super) fn tcp(address: &Address) -> Result<std::net::SocketAddr> {
    match address {
        Address::Tcp(address) => Ok(*address),
        Address::Unix(_) => bail!("the floor is measured over TCP"),
    }
}

/// A socket that is connected, set as those of links.
pub(super) fn connected(to: &Address) -> Result<TcpStream> {
    let to = tcp(to)?;
    let stream = TcpStream::from(socket::to_be_connected(to)?);
    rustix::net::connect(&stream, &to)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Answers requests, whose length and that of the answers each peer says first, until its input
/// ends.
pub fn echo(listen: &Address, polls: bool) -> Result<()> {
    let listener = TcpListener::bind(tcp(listen)?)?;
    // Those on this machine send as links do.
    let accepting = Accepting::at(listener.as_fd());
    say(&listener.local_addr()?.to_string())?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let peer = stream.peer_addr();
            if peer.is_ok_and(|peer| accepting.accepted(stream.as_fd(), peer).is_ok()) {
                // A peer that is gone has ended its measurement.
                thread::spawn(move || answer(stream, polls));
            }
        }
    });
    std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink())?;
    Ok(())
}

/// An end of a socket. The two stand for two machines, which share no processor; left to the kernel, they
/// would share one at times, where a round trip takes a quarter of the time.
#[derive(Clone, Copy)]
enum End {
    Asks,
    Answers,
}

impl End {
    /// Has the calling thread stay on a processor that the other end does not use, if it may use
    /// several.
    fn stay_apart(self) -> Result<()> {
        self.stay_on_one_of(&processors::of_this_thread()?)
    }

    /// The same, where both may use these.
    fn stay_on_one_of(self, processors: &[usize]) -> Result<()> {
        let chosen = match self {
            End::Asks => processors.first().copied(),
            End::Answers => processors.last().copied(),
        };
        Ok(processors::stay_on(chosen.as_slice())?)
    }
}

fn answer(mut stream: TcpStream, polls: bool) -> Result<()> {
    End::Answers.stay_apart()?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(polls)?;
    let mut length = || -> Result<usize> {
        let mut length = [0; 4];
        whole(&mut stream, &mut length)?;
        Ok(u32::from_le_bytes(length) as usize)
    };
    let (mut request, reply) = (vec![0; length()?], vec![0; length()?]);
    loop {
        whole(&mut stream, &mut request)?;
        stream.write_all(&reply)?;
    }
}

/// Reads all of it; a socket that does not block is asked again and again.
fn whole(stream: &mut TcpStream, into: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < into.len() {
        match stream.read(&mut into[done..]) {
            Ok(0) => bail!("the peer is gone"),
            Ok(read) => done += read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Measures both, so often. One comes after the other, so that no more threads look again and again
/// than for a fault.
pub fn measure(server: &Address, polls: bool, trip: Trip, count: usize) -> Result<Floor> {
    Ok(Floor {
        fault: faults(polls, count)?,
        socket: round_trips(server, polls, trip, count)?,
    })
}

/// Microseconds of round trips through a socket.
fn round_trips(server: &Address, polls: bool, trip: Trip, count: usize) -> Result<Vec<f64>> {
    End::Asks.stay_apart()?;
    let mut stream = connected(server)?;
    stream.set_nonblocking(polls)?;
    let Trip { request, reply } = trip;
    stream.write_all(&[request.to_le_bytes(), reply.to_le_bytes()].concat())?;
    let (request, mut answer) = (vec![0; request as usize], vec![0; reply as usize]);
    let mut trip = || {
        let begun = Instant::now();
        stream.write_all(&request)?;
        whole(&mut stream, &mut answer)?;
        Ok(begun.elapsed().as_secs_f64() * 1e6)
    };
    (0..count).map(|_| trip()).collect()
}

/// Microseconds of round trips through a userfaultfd. The thread that faults and the one that answers have
/// a processor each, as the kernel mostly has those of programs: where one answers, the other is woken
/// up on another one. Left to itself it has these two on one at times, for as long as they live.
fn faults(polls: bool, count: usize) -> Result<Vec<f64>> {
    let processors = processors::of_this_thread()?;
    End::Asks.stay_on_one_of(&processors)?;
    let mut memory = Block::map(count * PAGE)?;
    // The page that each fault is answered with.
    let mut page = Block::map(PAGE)?;
    page.touch(PAGE);
    let start = VirtAddr(memory.address() as u64);
    let range = AddrRange::new(start, Bytes((count * PAGE) as u64));
    let (uffd, _) = uffd::open()?;
    uffd::register(uffd.as_fd(), range, Mode::Missing)?;
    let ends = AtomicBool::new(false);
    let from = VirtAddr(page.address() as u64);
    thread::scope(|scope| {
        let supplier = scope.spawn(|| {
            End::Answers.stay_on_one_of(&processors)?;
            supply(uffd.as_fd(), from, polls, &ends);
            anyhow::Ok(())
        });
        let mut touch = |at: usize| {
            let begun = Instant::now();
            memory.touch_at(at * PAGE);
            begun.elapsed().as_secs_f64() * 1e6
        };
        let times = (0..count).map(&mut touch).collect();
        ends.store(true, Ordering::Relaxed);
        let supplied = supplier.join();
        supplied.map_err(|_| anyhow!("who answers faults panicked"))??;
        Ok(times)
    })
}

/// Answers faults until it shall end.
fn supply(uffd: BorrowedFd<'_>, from: VirtAddr, polls: bool, ends: &AtomicBool) {
    while !ends.load(Ordering::Relaxed) {
        if let Some(fault) = uffd::read_fault(uffd) {
            let page = VirtAddr(fault.address.0 & !(BASE_PAGE - 1));
            // A page that cannot be had leaves the touch waiting, until the worker's end.
            let _ = uffd::copy_page(uffd, page, from);
        } else if polls {
            std::hint::spin_loop();
        } else {
            let mut one = [PollFd::from_borrowed_fd(uffd, PollFlags::IN)];
            // However it ends, the descriptor is read next.
            let _ = poll(&mut one, Some(&LONGEST));
        }
    }
}
