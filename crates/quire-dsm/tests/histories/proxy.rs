//! A link that can be disturbed: it carries the bytes of TCP connections, and delays them,
//! holds them back on one way or both, loses, repeats or spoils some, or breaks.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What happens, once, to bytes that come from the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Harm {
    None,
    Lose,
    Repeat,
    Spoil,
}

#[derive(Default)]
struct State {
    /// Nothing goes on from the program, and to it.
    holds: [AtomicBool; 2],
    delay_us: AtomicU64,
    harm: AtomicU8,
    /// How many connections there have been.
    made: AtomicU64,
    open: Mutex<Vec<TcpStream>>,
}

/// A link that can be disturbed.
pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<State>,
}

impl Proxy {
    pub fn start(to: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let address = listener.local_addr().expect("it has an address");
        let state = Arc::new(State::default());
        let carried = Arc::clone(&state);
        thread::spawn(move || {
            for program in listener.incoming().map_while(Result::ok) {
                if let Ok(server) = TcpStream::connect(to) {
                    carried.made.fetch_add(1, Ordering::Relaxed);
                    carry(program, server, &carried);
                }
            }
        });
        Proxy { address, state }
    }

    /// Whether bytes from the program, and to it, are held back.
    pub fn hold(&self, up: bool, down: bool) {
        self.state.holds[0].store(up, Ordering::Relaxed);
        self.state.holds[1].store(down, Ordering::Relaxed);
    }

    /// Bytes take so much longer.
    pub fn delay(&self, time: Duration) {
        let time = u64::try_from(time.as_micros()).expect("not for ever");
        self.state.delay_us.store(time, Ordering::Relaxed);
    }

    /// Does this to the next bytes.
    pub fn harm(&self, harm: Harm) {
        self.state.harm.store(harm as u8, Ordering::Relaxed);
    }

    /// Whether the harm was done.
    pub fn is_harmed(&self) -> bool {
        self.state.harm.load(Ordering::Relaxed) == Harm::None as u8
    }

    /// How many connections there have been.
    pub fn made(&self) -> u64 {
        self.state.made.load(Ordering::Relaxed)
    }

    /// Ends all connections. Others can be made.
    pub fn cut(&self) {
        for stream in self.state.open.lock().expect("no panic").drain(..) {
            // It may have ended by itself.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn carry(program: TcpStream, server: TcpStream, state: &Arc<State>) {
    let pairs = [(&program, &server), (&server, &program)];
    for (way, (from, to)) in pairs.into_iter().enumerate() {
        to.set_nodelay(true).expect("TCP can do so");
        let from = from.try_clone().expect("a descriptor");
        let to = to.try_clone().expect("a descriptor");
        let state = Arc::clone(state);
        thread::spawn(move || carry_one_way(way, from, to, &state));
    }
    state
        .open
        .lock()
        .expect("no panic")
        .extend([program, server]);
}

fn carry_one_way(way: usize, mut from: TcpStream, mut to: TcpStream, state: &State) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while state.holds[way].load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(5));
        }
        let delay = state.delay_us.load(Ordering::Relaxed);
        if delay > 0 {
            thread::sleep(Duration::from_micros(delay));
        }
        let harm = match way {
            0 => state.harm.swap(Harm::None as u8, Ordering::Relaxed),
            _ => Harm::None as u8,
        };
        let bytes = &mut bytes[..count];
        if harm == Harm::Spoil as u8 {
            // In the header of a frame. Contents have no checksum of the link's: TCP's and
            // TLS guard them.
            bytes[12.min(count - 1)] ^= 0x10;
        }
        // TCP itself loses and repeats nothing, so only what damages frames on the way, or
        // takes bytes out, is left to be found. All but the last byte is never whole frames,
        // which nobody would miss.
        let part = &bytes[..count - 1];
        let sent = match harm {
            lost if lost == Harm::Lose as u8 => to.write_all(part),
            twice if twice == Harm::Repeat as u8 => {
                let again = to.write_all(part);
                again.and_then(|()| to.write_all(bytes))
            }
            _ => to.write_all(bytes),
        };
        if sent.is_err() {
            break;
        }
    }
    // The other side may have ended already.
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
