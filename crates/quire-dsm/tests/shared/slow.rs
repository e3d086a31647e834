//! A link that is slow: what is given back over it, and what is asked for ahead, takes longer than
//! a lease, and the lease goes on.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use quire_core::dsm::message::Access;
use quire_core::units::{Bytes, ObjectOffset};
use quire_dsm::link::Address;
use quire_dsm::server::LEASE;
use quire_dsm::wire::control::SchedulerKind;
use rustix::net::sockopt;

use super::served::{Served, object, open};

/// So many bytes a second go over the link, each way.
const RATE: u32 = 400 << 10;

/// They take longer than a lease.
const SIZE: usize = 3 << 20;

/// So much waits on the way.
const ON_THE_WAY: usize = 64 << 10;

/// A slow way to a server.
fn slow_way(to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    sockopt::set_socket_recv_buffer_size(&listener, ON_THE_WAY / 2).expect("TCP can do so");
    let address = listener.local_addr().expect("it has an address");
    thread::spawn(move || {
        for program in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(to) else {
                return;
            };
            sockopt::set_socket_recv_buffer_size(&server, ON_THE_WAY / 2).expect("TCP can do so");
            for (from, to) in [(&program, &server), (&server, &program)] {
                to.set_nodelay(true).expect("TCP can do so");
                let from = from.try_clone().expect("a descriptor");
                let to = to.try_clone().expect("a descriptor");
                thread::spawn(move || carry(from, to));
            }
        }
    });
    address
}

fn carry(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        thread::sleep(Duration::from_secs(1) * count as u32 / RATE);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // The other side may have ended already.
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

#[test]
fn more_than_goes_in_a_lease_is_given_back_and_read() {
    let served = Served::start("127.0.0.1:0");
    let Address::Tcp(near) = served.addresses[0] else {
        panic!("{:?}", served.addresses);
    };
    let far: Address = slow_way(near).to_string().parse().expect("an address");
    let client = |who| served.client_with(who, |options| options.addresses = far.clone().into());
    let bytes: Vec<u8> = (0..SIZE).map(|at| (at / 1000) as u8).collect();

    let writer = client("writer");
    let size = Bytes(SIZE as u64);
    let made = writer.create(object("x", size, SchedulerKind::Multi));
    made.expect("it is new");
    let written = open(&writer, "x");
    written.write_at(ObjectOffset(0), &bytes);
    let began = Instant::now();
    written.flush().expect("all is given back");
    assert!(began.elapsed() > LEASE, "the way is not slow");
    assert_eq!(written.breaks(), 0);

    let reader = client("reader");
    let read = open(&reader, "x");
    read.will_need(ObjectOffset(0)..ObjectOffset(size.0), Access::Read);
    let mut there = vec![0; SIZE];
    let began = Instant::now();
    read.read_at(ObjectOffset(0), &mut there);
    assert!(began.elapsed() > LEASE, "the way is not slow");
    assert_eq!(read.breaks(), 0);
    assert!(there == bytes);
}
