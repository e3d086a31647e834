//! A link that is long: what a program says that it will need comes at least as fast as what is
//! guessed from its faults.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use quire_core::dsm::message::Access;
use quire_core::units::{Bytes, ObjectOffset};
use quire_dsm::link::Address;
use quire_dsm::wire::control::SchedulerKind;

use super::served::{Served, object, open};

/// The way takes so long, in each direction.
const WAY: Duration = Duration::from_millis(10);
const SIZE: usize = 32 << 20;

/// A long way to a server.
fn long_way(to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = listener.local_addr().expect("it has an address");
    thread::spawn(move || {
        for program in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(to) else {
                return;
            };
            for (from, to) in [(&program, &server), (&server, &program)] {
                to.set_nodelay(true).expect("TCP can do so");
                let [from, to] = [from, to].map(|end| end.try_clone().expect("a descriptor"));
                let (sender, receiver) = channel();
                thread::spawn(move || take(from, &sender));
                thread::spawn(move || give(to, &receiver));
            }
        }
    });
    address
}

fn take(mut from: TcpStream, on_the_way: &Sender<(Instant, Vec<u8>)>) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let chunk = (Instant::now() + WAY, bytes[..count].to_vec());
        if on_the_way.send(chunk).is_err() {
            break;
        }
    }
}

fn give(mut to: TcpStream, on_the_way: &Receiver<(Instant, Vec<u8>)>) {
    while let Ok((due, bytes)) = on_the_way.recv() {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    // The other side may have ended already.
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn what_is_needed_comes_no_slower_than_what_is_guessed() {
    let served = Served::start("127.0.0.1:0");
    let Address::Tcp(near) = served.addresses[0] else {
        panic!("{:?}", served.addresses);
    };
    let far: Address = long_way(near).to_string().parse().expect("an address");
    let writer = served.client("writer");
    let size = Bytes(SIZE as u64);
    let made = writer.create(object("x", size, SchedulerKind::Multi));
    made.expect("it is new");
    let written = open(&writer, "x");
    let bytes: Vec<u8> = (0..SIZE).map(|at| (at / 1000) as u8).collect();
    written.write_at(ObjectOffset(0), &bytes);
    written.flush().expect("all is given back");

    let time = |who: &str, is_said: bool| {
        let reader = served.client_with(who, |options| options.addresses = far.clone().into());
        let read = open(&reader, "x");
        let began = Instant::now();
        if is_said {
            read.will_need(ObjectOffset(0)..ObjectOffset(size.0), Access::Read);
        }
        let mut there = vec![0; 1 << 20];
        for (at, part) in bytes.chunks(there.len()).enumerate() {
            read.read_at(ObjectOffset((at << 20) as u64), &mut there);
            assert!(there == part);
        }
        began.elapsed()
    };
    // It takes three times as long where windows do not grow; what else the machine does is less.
    let mut times = [(); 3].map(|()| (time("guess", false), time("need", true)));
    times.sort_by_key(|(guess, need)| need.as_micros() * 1000 / guess.as_micros().max(1));
    let (guess, need) = times[1];
    assert!(need < guess * 3 / 2, "{times:?}");
}
