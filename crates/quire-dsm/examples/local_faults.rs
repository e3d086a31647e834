//! What a fault costs: on a page that this machine has, on one that its server gives, and
//! on one that a server gives over a socket, without and with spinning.
//!
//! `cargo run --release -p quire-dsm --example local_faults`

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use quire_core::units::Bytes;
use quire_dsm::client::{Client, Options, Shared};
use quire_dsm::link::turn::Config;
use quire_dsm::link::{Address, Security, Turn};
use quire_dsm::server::{self, Server};
use quire_dsm::wire::control::{
    Hello, MachineCode, Name, Object, PageSize, Rights, Role, SchedulerKind,
};

const PAGES: usize = 2_000;
const WORDS: usize = 512;
const BOTH: Rights = Rights {
    read: true,
    write: true,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    println!("medians of {PAGES} faults, in microseconds");
    for spin in [Duration::ZERO, Duration::from_millis(5)] {
        measure(spin)?;
    }
    Ok(())
}

fn measure(spin: Duration) -> Outcome<()> {
    let directory = std::env::temp_dir();
    let path = format!("local-faults-{}-{}", std::process::id(), spin.as_millis());
    let address = Address::Unix(directory.join(path));
    start_server(&address, spin)?;
    let open = |own_pages, create: bool| -> Outcome<(Client, Shared)> {
        let mut options = Options::new(address.clone().into(), "program".parse()?);
        (options.own_pages, options.spin) = (own_pages, spin);
        let client = Client::connect(options)?;
        if create {
            client.create(object("memory".parse()?))?;
        }
        let shared = client.open("memory".parse()?, BOTH)?;
        Ok((client, shared))
    };
    let (_first, one) = open(false, true)?;
    let (_second, other) = open(false, false)?;
    println!("spinning for {spin:?}");
    println!("  its server gives it  {:6.1}", write(&one));
    println!("  the machine has it   {:6.1}", write(&other));
    drop((one, other));
    let (_third, apart) = open(true, false)?;
    println!("  over a socket        {:6.1}", write(&apart));
    if spin.is_zero() {
        // So many threads that spin would only be in each other's way.
        let (_fourth, another) = open(true, false)?;
        let taken = take_turns(&apart, &another);
        println!("  another took it      {taken:6.1}");
    }
    Ok(())
}

fn start_server(address: &Address, spin: Duration) -> Outcome<()> {
    let name: Name = "server".parse()?;
    let mut config = Config::new(Hello {
        name: name.clone(),
        role: Role::Server,
        machine: MachineCode(0),
        page_size: PageSize::BASE,
        features: 0,
    });
    config.spin = spin;
    let mut turn = Turn::new(config)?;
    server::listen(
        &mut turn,
        std::slice::from_ref(address),
        &Security::Automatic(None),
    )?;
    thread::spawn(move || {
        let mut server = Server::new(name, server::LEASE);
        while turn.once(&mut server, Duration::from_secs(1)).is_ok() {}
    });
    Ok(())
}

fn object(name: Name) -> Object {
    Object {
        name,
        size: Bytes((PAGES * 4096) as u64),
        page_size: PageSize::BASE,
        scheduler: SchedulerKind::Simple,
        machine: MachineCode(0),
        tags: Vec::new(),
    }
}

/// Two machines write to a page in turns; the median time of a write, in microseconds.
fn take_turns(one: &Shared, other: &Shared) -> f64 {
    median((0..PAGES / 2).flat_map(|_| [one, other]).map(|shared| {
        let begin = Instant::now();
        shared.words()[0].fetch_add(1, Ordering::SeqCst);
        begin.elapsed()
    }))
}

/// Writes to each page once; the median time of a write, in microseconds.
fn write(shared: &Shared) -> f64 {
    median((0..PAGES).map(|page| {
        let begin = Instant::now();
        shared.words()[page * WORDS].fetch_add(1, Ordering::SeqCst);
        begin.elapsed()
    }))
}

fn median(times: impl Iterator<Item = Duration>) -> f64 {
    let mut times: Vec<Duration> = times.collect();
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6
}
