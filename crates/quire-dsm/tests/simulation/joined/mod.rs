//! Several servers that are joined, with one or two clients each, and a directory that they
//! agree through: the same as with one server, and what several have to do so that an object
//! that all of them share stays one.

use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use quire_dsm::directory::Matter;
use quire_dsm::link::turn::Turn;
use quire_dsm::link::{Address, Security};
use quire_dsm::server::{Ending, Host, Joining, Outside, Patience as Waits, Server};
use quire_dsm::wire::control::{Name, Role, SchedulerKind};
use tokio::task::spawn_local;

use crate::client::Manner;
use crate::faults::client;
use crate::net::{Hub, Loop, clock, dial, listen};
use crate::random::Random;
use crate::world::{Shared, World};
use crate::{Outcome, config, work};

use faults::{LAST, Planned, Scene, plan};
use office::{Desk, Messenger, Office, Way};

mod faults;
pub mod losses;
pub mod office;

/// The first server, among the hosts.
pub const SERVERS: usize = 1000;
/// The lease of programs, and of servers in the directory.
const LEASE: Duration = Duration::from_millis(500);
/// Faults wait so long for their page, and for a new link.
const PATIENCE: Duration = Duration::from_millis(2500);
const RECONNECT: Duration = Duration::from_millis(1250);
const LONGEST: Duration = Duration::from_millis(4000);
/// After the faults, whatever they began is over by now.
const SETTLED: Duration = Duration::from_millis(LAST + 3800);
const END: Duration = Duration::from_millis(LAST + 4400);
/// How long the last accesses may take.
const GRACE: Duration = Duration::from_millis(900);

pub fn server(number: usize) -> String {
    format!("server-{number}")
}

/// Where a server can be reached, for the others.
fn address(number: usize) -> Address {
    let last = u8::try_from(number).expect("few servers");
    Address::Tcp(SocketAddr::from((Ipv4Addr::new(10, 0, 0, last), 7000)))
}

/// The host of the server at an address.
fn host_of(address: &Address) -> Option<String> {
    match address {
        Address::Tcp(SocketAddr::V4(address)) => {
            Some(server(usize::from(address.ip().octets()[3])))
        }
        _ => None,
    }
}

/// What a server has from outside of its loop.
fn outside(hub: &Arc<Hub>, messenger: &Arc<Messenger>, mut random: Random) -> Outside {
    let (wakes, dials) = (Arc::clone(hub), Arc::clone(hub));
    Outside {
        clerk: Arc::clone(messenger) as _,
        wake: Arc::new(move || wakes.wake()),
        connect: Box::new(move |links, address, _| {
            let host = host_of(address).ok_or(std::io::ErrorKind::InvalidInput)?;
            links.connect_over(dials.dial(&host))
        }),
        numbers: Box::new(move || random.next().max(1)),
    }
}

/// A server that ends waits so long, in the proportions of its lease; it looks so often; and what a
/// process has sent goes out so long after it has ended.
const WAITS: Waits = Waits {
    programs: Duration::from_millis(400),
    pagers: Duration::from_millis(400),
    peer_servers: Duration::from_millis(600),
    directory: Duration::from_millis(150),
};
const LOOK: Duration = Duration::from_millis(10);
const GOES_OUT: Duration = Duration::from_millis(20);

/// A server, until its host crashes, or it is told to end and has done so.
async fn serve(number: usize, seed: u64, world: Shared, office: Arc<Office>) -> turmoil::Result {
    let host = SERVERS + number;
    let incarnation = world.borrow_mut().session();
    world.borrow_mut().begins_to_serve(host);
    let mut random = Random::new(seed, incarnation << 32);
    let name: Name = server(number).parse()?;
    let mut turn = Turn::new(config(&name, Role::Server))?;
    let mut server = Server::new(name, LEASE);
    let hub = Arc::new(Hub::default());
    world.borrow_mut().hubs.insert(host, Arc::clone(&hub));
    let desk = Rc::new(Desk {
        way: Arc::new(Way::new(&office, self::server(number))),
        messenger: Arc::default(),
        world: Rc::clone(&world),
        host,
    });
    spawn_local(listen(Arc::clone(&hub), Rc::clone(&world)));
    spawn_local(dial(Arc::clone(&hub), Rc::clone(&world)));
    for matter in [Matter::Views, Matter::Names] {
        spawn_local(Rc::clone(&desk).answers(matter, random.next()));
    }
    spawn_local(Rc::clone(&desk).news(random.next()));
    let joining = Joining {
        directory: Arc::clone(&desk.way) as _,
        host: Host::Another,
        address: address(number),
        names: Vec::new(),
        security: Security::Plaintext,
    };
    let outside = outside(&hub, &desk.messenger, random);
    server.join_with(&turn, joining, outside)?;
    let mut turns = Loop::new((&hub, &world, host));
    let is_to_end = |_: &Server| world.borrow().is_to_end(host);
    turns.run(&mut turn, &mut server, is_to_end).await;
    let id = office.member(&self::server(number));
    let mut ending = Ending::begin(&mut server, &mut turn.links, clock(), WAITS);
    loop {
        let is_over = ending.step(&mut server, &mut turn.links, clock());
        if let Some(id) = id.filter(|_| ending.all_is_back()) {
            world.borrow_mut().all_is_back(id, ending.all_is_taken());
        }
        if is_over || !turns.once(&mut turn, &mut server, Some(LOOK)).await {
            break;
        }
    }
    turn.step(&mut server, &[]);
    tokio::time::sleep(GOES_OUT).await;
    world.borrow_mut().has_ended(host);
    std::future::pending().await
}

/// The servers that a client tries: its own, and, where it knows others, those after it.
fn servers_of(host: usize, servers: usize, is_faithful: bool) -> Vec<String> {
    let known = if is_faithful { 1 } else { servers };
    (0..known)
        .map(|next| server((host + next) % servers))
        .collect()
}

/// One run.
pub fn run(seed: u64) -> Outcome {
    quire_dsm::random::repeat_numbers(seed);
    let mut random = Random::new(seed, 7);
    let servers = 2 + random.below(2) as usize;
    let clients = servers + random.below(servers as u64 + 1) as usize;
    let office = Arc::new(Office::new());
    let manner = Manner {
        scheduler: SchedulerKind::Distributed,
        together: 1,
        ahead: random.below(2) as u32 * 2,
        pause: 2 + random.below(25),
        writes: 2 + random.below(3),
        patience: PATIENCE,
        reconnect: RECONNECT,
        servers: Vec::new(),
        joined: Some(Arc::clone(&office)),
    };
    let latency = Duration::from_millis(1 + random.below(12));
    let planned = plan(&mut random, servers, clients);
    let words = format!(
        "{servers} servers, {clients} clients, {manner:?}, latency up to {latency:?}, {planned:?}"
    );

    let mut world = World::new();
    (world.is_joined, world.longest) = (true, LONGEST);
    let world: Shared = Rc::new(world.into());
    let mut sim = crate::network(seed, latency);
    for number in 0..servers {
        let (shared, office) = (Rc::clone(&world), Arc::clone(&office));
        sim.host(server(number), move || {
            serve(number, seed, Rc::clone(&shared), Arc::clone(&office))
        });
    }
    for host in 0..clients {
        let mut manner = manner.clone();
        manner.servers = servers_of(host, servers, random.once_in(2));
        let shared = Rc::clone(&world);
        sim.host(client(host), move || {
            work(host, seed, manner.clone(), Rc::clone(&shared))
        });
    }
    let scene = Scene {
        sim: &mut sim,
        world: &world,
        office: &office,
        servers,
        latency,
    };
    drive(scene, &planned);
    world.borrow_mut().look_at_history();
    drop(sim);
    crate::outcome(&world, words)
}

/// Steps through a run, with its faults.
fn drive(mut scene: Scene<'_, '_>, planned: &[Planned]) {
    let mut ends: Vec<Planned> = Vec::new();
    let mut begins = planned.iter().peekable();
    loop {
        let now = scene.sim.elapsed();
        let millis = now.as_millis() as u64;
        scene.world.borrow_mut().now = now;
        for left in scene.office.tick(now) {
            scene.world.borrow_mut().gone(left);
        }
        ends.sort_by_key(|it| it.end);
        while let Some(over) = ends.first().copied().filter(|it| it.end <= millis) {
            ends.remove(0);
            scene.end(&over);
        }
        while let Some(next) = begins.next_if(|it| it.begin <= millis) {
            scene.begin(next);
            ends.push(*next);
        }
        if !ends.is_empty() {
            scene.world.borrow_mut().troubled = now;
        }
        let times = (SETTLED, END, END + GRACE);
        if scene.world.borrow_mut().look(times) {
            break;
        }
        if let Err(error) = scene.sim.step() {
            return scene.world.borrow_mut().fail(error.to_string());
        }
        scene.clear_away();
    }
    scene.world.borrow_mut().look_at_end();
}
