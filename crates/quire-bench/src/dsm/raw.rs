//! What a bare TCP stream carries on the ways that pages take: from one node to another, and by way
//! of a process on a third node that passes on what comes, as pages go from a program by a server to
//! another program. Nothing is looked at, kept or put anywhere: what is sent and where it goes are
//! the same 128 KiB all the time. Sockets are set as those of links are, and whoever sends or receives goes
//! before others as the threads of links do, where that is allowed.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Instant;

use anyhow::Result;
use quire_dsm::link::Address;
use quire_linux::scheduling::{Children, Scheduling};
use quire_linux::socket::Accepting;

use crate::dsm::floor::{connected, tcp};
use crate::dsm::orders::Orders;
use crate::dsm::site::Site;
use crate::dsm::worker::say;

/// What is read and written at a time, in bytes.
const PIECE: usize = 128 << 10;

/// That of the threads that answer faults.
const PRIORITY: u8 = 1;

/// Seconds that a stream takes.
#[derive(Clone, Copy, Debug)]
pub struct Raw {
    /// From one node to another.
    pub direct: f64,
    /// By way of a process on a third one.
    pub by_way: f64,
}

/// Sends so many bytes each way.
pub fn measure(site: &Site, bytes: u64) -> Result<Raw> {
    let sink = site.serve_on(1, &site.any_address(1), Orders::new("relay"))?;
    let send = |to: &str| {
        let orders = Orders::new("send").with("--to", to);
        site.run(2, &orders.with("--bytes", bytes))
    };
    let direct = send(&sink.address)?;
    let relay = site.serve(Orders::new("relay").with("--to", &sink.address))?;
    let by_way = send(&relay.address)?;
    Ok(Raw { direct, by_way })
}

/// Takes streams one after the other, and passes each on to an address where one is given.
/// Whoever sends is told when all of it has come. Ends with its input.
pub fn relay(listen: &Address, to: Option<&Address>) -> Result<()> {
    let listener = TcpListener::bind(tcp(listen)?)?;
    let accepting = Accepting::at(listener.as_fd());
    say(&listener.local_addr()?.to_string())?;
    let to = to.cloned();
    std::thread::spawn(move || -> Result<()> {
        let _before = Scheduling::RoundRobin(PRIORITY).enter(Children::Reset);
        loop {
            let (stream, peer) = listener.accept()?;
            accepting.accepted(stream.as_fd(), peer)?;
            let next = to.as_ref().map(connected).transpose()?;
            pass_on(stream, next)?;
        }
    });
    std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink())?;
    Ok(())
}

/// Passes a stream on, and then the word that it has come, back.
fn pass_on(mut from: TcpStream, mut to: Option<TcpStream>) -> Result<()> {
    let mut piece = vec![0; PIECE];
    let mut length = [0; 8];
    from.read_exact(&mut length)?;
    if let Some(to) = &mut to {
        to.write_all(&length)?;
    }
    let mut rest = u64::from_le_bytes(length);
    while rest > 0 {
        let most = piece.len().min(usize::try_from(rest).unwrap_or(PIECE));
        let read = from.read(&mut piece[..most])?;
        anyhow::ensure!(read > 0, "the stream ended early");
        if let Some(to) = &mut to {
            to.write_all(&piece[..read])?;
        }
        rest -= read as u64;
    }
    let mut came = [0];
    if let Some(to) = &mut to {
        to.read_exact(&mut came)?;
    }
    Ok(from.write_all(&came)?)
}

/// Sends so many bytes, and says how many seconds it took until the last of them had come.
pub fn send(to: &Address, bytes: u64) -> Result<f64> {
    let piece = vec![1; PIECE];
    let mut stream = connected(to)?;
    let _before = Scheduling::RoundRobin(PRIORITY).enter(Children::Reset);
    let begun = Instant::now();
    stream.write_all(&bytes.to_le_bytes())?;
    let mut rest = bytes;
    while rest > 0 {
        let now = piece.len().min(usize::try_from(rest).unwrap_or(PIECE));
        stream.write_all(&piece[..now])?;
        rest -= now as u64;
    }
    stream.read_exact(&mut [0])?;
    Ok(begun.elapsed().as_secs_f64())
}
