//! Who gets a page that all want to write to, and how often: kernels and servers over links
//! with a delay, all of them automata, on a clock that is only counted.
//!
//! Each program writes again and again and keeps no pause. A kernel keeps a page that it was
//! given for as long as `hold_for` says for the round trip of its link.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use quire_core::dsm::kernel::{Action as Act, Kernel, Settings, Space, Time, hold_for};
use quire_core::dsm::message::{Access, FromKernel, KernelId, PageNumber, ServerId, ToKernel};
use quire_core::dsm::scheduler::distributed::{Distributed, Message};
use quire_core::dsm::scheduler::multi::Multi;
use quire_core::dsm::scheduler::options::Options;
use quire_core::dsm::scheduler::simple::Simple;
use quire_core::dsm::scheduler::{Action, Scheduler};

const PAGE: PageNumber = PageNumber(0);
const ME: Space = Space(0);
/// A thread goes on so long after its page has come.
const WAKE: Duration = Duration::from_micros(10);
/// A program writes so often.
const WORK: Duration = Duration::from_micros(5);
/// A message between two programs of one machine takes so long.
const NEAR: Duration = Duration::from_micros(15);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Simple,
    Multi,
    Distributed,
}

enum Server {
    Alone(Box<dyn Scheduler<u32>>),
    Among(Box<Distributed<u32>>),
}

enum Event {
    Up(usize, FromKernel<u32>),
    Down(usize, ToKernel<u32>),
    PeerServer(usize, usize, Message<u32>),
    /// Something is due in a kernel.
    Pass(usize),
    /// A program goes on.
    Run(usize),
}

/// An end of a link: a kernel, or a server.
type End = (bool, usize);

struct World {
    now: Time,
    events: BinaryHeap<Reverse<(Time, u64)>>,
    what: BTreeMap<u64, Event>,
    last: u64,
    /// When the last message of a link arrives, as none overtakes another.
    arrivals: BTreeMap<(End, End), Time>,
    kernels: Vec<Kernel>,
    servers: Vec<Server>,
    /// What each kernel has of the page.
    contents: Vec<u32>,
    writes: Vec<u64>,
    faults: Vec<u64>,
    delay: Duration,
    dice: u64,
}

impl World {
    fn new(kind: Kind, parties: usize, delay: Duration, hold: Duration) -> World {
        let mut settings = Settings::new(1);
        settings.hold = hold;
        let servers = match kind {
            Kind::Simple => vec![Server::Alone(Box::new(Simple::new(Options::new(1))))],
            Kind::Multi => vec![Server::Alone(Box::new(Multi::new(Options::new(1))))],
            Kind::Distributed => (0..parties as u64)
                .map(|me| Distributed::replica(ServerId(me), ServerId(0), 1))
                .map(|server| Server::Among(Box::new(server)))
                .collect(),
        };
        let mut world = World {
            now: Time(0),
            events: BinaryHeap::new(),
            what: BTreeMap::new(),
            last: 0,
            arrivals: BTreeMap::new(),
            kernels: vec![Kernel::new(settings); parties],
            servers,
            contents: vec![0; parties],
            writes: vec![0; parties],
            faults: vec![0; parties],
            delay,
            dice: 88_172_645_463_325_252,
        };
        (0..parties).for_each(|kernel| world.at(Time(kernel as u64), Event::Run(kernel)));
        world
    }

    fn at(&mut self, time: Time, event: Event) {
        self.last += 1;
        self.events.push(Reverse((time, self.last)));
        self.what.insert(self.last, event);
    }

    /// A message under way; it takes up to a tenth longer than the delay.
    fn send(&mut self, from: End, to: End, event: Event) {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        let is_near = self.servers.len() > 1 && from.0 != to.0;
        let delay = if is_near { NEAR } else { self.delay };
        let late = delay / 10 * (self.dice % 1000) as u32 / 1000;
        let before = self.arrivals.get(&(from, to)).copied();
        let arrival = (self.now + delay + late).max(before.unwrap_or_default());
        self.arrivals.insert((from, to), arrival);
        self.at(arrival, event);
    }

    fn server_of(&self, kernel: usize) -> usize {
        kernel % self.servers.len()
    }

    fn step(&mut self) {
        let Reverse((time, id)) = self.events.pop().expect("somebody always goes on");
        self.now = time;
        match self.what.remove(&id).expect("each event once") {
            Event::Up(kernel, message) => {
                let (server, id) = (self.server_of(kernel), KernelId(kernel as u64));
                let mut actions = Vec::new();
                let said = match &mut self.servers[server] {
                    Server::Alone(alone) => alone.kernel_says(id, message, &mut actions),
                    Server::Among(among) => among.kernel_says(id, message, &mut actions),
                };
                said.expect("kernels make sense");
                self.carry_out(server, actions);
            }
            Event::PeerServer(from, to, message) => {
                let mut actions = Vec::new();
                if let Server::Among(among) = &mut self.servers[to] {
                    let said = among.server_says(ServerId(from as u64), message, &mut actions);
                    said.expect("servers make sense");
                }
                self.carry_out(to, actions);
            }
            Event::Down(kernel, message) => {
                self.kernel(kernel, |it, now, acts| {
                    it.hear(now, message, acts).expect("servers make sense");
                });
            }
            Event::Pass(kernel) => self.kernel(kernel, |it, now, acts| it.pass(now, acts)),
            Event::Run(kernel) => self.run(kernel),
        }
    }

    fn carry_out(&mut self, server: usize, actions: Vec<Action<u32>>) {
        let me = (true, server);
        for action in actions {
            match action {
                Action::Tell(kernel, message) => {
                    let kernel = kernel.0 as usize;
                    self.send(me, (false, kernel), Event::Down(kernel, message));
                }
                Action::TellServer(to, message) => {
                    let to = to.0 as usize;
                    self.send(me, (true, to), Event::PeerServer(server, to, message));
                }
                Action::Load(pages) => {
                    let mut actions = Vec::new();
                    match &mut self.servers[server] {
                        Server::Alone(it) => it.loaded(pages, Some(vec![None]), &mut actions),
                        Server::Among(it) => it.loaded(pages, Some(vec![None]), &mut actions),
                    }
                    self.carry_out(server, actions);
                }
                Action::Save(..) => {}
            }
        }
    }

    fn kernel(&mut self, kernel: usize, act: impl FnOnce(&mut Kernel, Time, &mut Vec<Act<u32>>)) {
        let mut actions = Vec::new();
        act(&mut self.kernels[kernel], self.now, &mut actions);
        let (me, server) = ((false, kernel), (true, self.server_of(kernel)));
        for action in actions {
            match action {
                Act::Send(message) => self.send(me, server, Event::Up(kernel, message)),
                Act::GiveBack(pages) => {
                    let data = vec![Some(self.contents[kernel])];
                    let message = FromKernel::DataWrite { pages, data };
                    self.send(me, server, Event::Up(kernel, message));
                }
                Act::Fill { data, space, .. } => {
                    self.contents[kernel] = data[0].unwrap_or(0);
                    if space.is_some() {
                        self.at(self.now + WAKE, Event::Run(kernel));
                    }
                }
                Act::Show { .. } | Act::Allow { .. } => {
                    self.at(self.now + WAKE, Event::Run(kernel));
                }
                _ => {}
            }
        }
        if let Some(due) = self.kernels[kernel].deadline()
            && due < self.now + Duration::from_secs(1)
        {
            self.at(due, Event::Pass(kernel));
        }
    }

    /// A program writes, if it may; otherwise it waits until it may.
    fn run(&mut self, kernel: usize) {
        if self.kernels[kernel].holds(PAGE) == Some(Access::Write) {
            self.contents[kernel] += 1;
            self.writes[kernel] += 1;
            self.at(self.now + WORK, Event::Run(kernel));
        } else {
            self.faults[kernel] += 1;
            self.kernel(kernel, |it, now, acts| {
                it.fault(now, ME, PAGE, Access::Write, acts);
            });
        }
    }
}

/// What came of a hotspot.
struct Outcome {
    /// The largest distance from the mean, in parts of it: of faults, and of writes.
    unfair: [f64; 2],
    /// Writes, and faults, in a second.
    speed: [f64; 2],
}

fn hotspot(kind: Kind, parties: usize, delay: Duration, hold: Duration) -> Outcome {
    let mut world = World::new(kind, parties, delay, hold);
    // All have had the page a few times.
    while world.faults.iter().sum::<u64>() < 20 * parties as u64 {
        world.step();
    }
    let (writes, faults) = (world.writes.clone(), world.faults.clone());
    let start = world.now;
    while world.faults.iter().sum::<u64>() < 120 * parties as u64 {
        world.step();
    }
    let all: u64 = world.writes.iter().sum();
    assert!(
        world
            .contents
            .iter()
            .any(|content| u64::from(*content) == all),
        "a lost write"
    );
    let since = |after: &[u64], before: &[u64]| -> Vec<f64> {
        let pairs = after.iter().zip(before);
        pairs
            .map(|(after, before)| (after - before) as f64)
            .collect()
    };
    let counts = [since(&world.faults, &faults), since(&world.writes, &writes)];
    let seconds = (world.now.0 - start.0) as f64 / 1e9;
    let unfair = counts.each_ref().map(|counts| {
        let mean = counts.iter().sum::<f64>() / counts.len() as f64;
        let off = counts.iter().map(|count| (count - mean).abs() / mean);
        off.fold(0.0, f64::max)
    });
    let speed = counts.map(|counts| counts.iter().sum::<f64>() / seconds);
    Outcome {
        unfair,
        speed: [speed[1], speed[0]],
    }
}

const DELAYS: [Duration; 2] = [Duration::from_micros(50), Duration::from_micros(500)];
const SHORT: Duration = Duration::from_micros(50);

/// What a kernel measures on its link.
fn round_trip(kind: Kind, delay: Duration) -> Duration {
    match kind {
        Kind::Simple | Kind::Multi => 2 * delay,
        Kind::Distributed => 2 * NEAR,
    }
}

#[test]
fn all_get_an_equal_share_of_a_hotspot() {
    for kind in [Kind::Simple, Kind::Multi, Kind::Distributed] {
        for delay in DELAYS {
            let hold = hold_for(round_trip(kind, delay));
            for parties in 2..=16 {
                let Outcome { unfair, speed } = hotspot(kind, parties, delay, hold);
                let [faults, writes] = unfair.map(|off| 100.0 * off);
                println!(
                    "{kind:?} {delay:?} {parties}: off by {faults:.2} % of faults, {writes:.2} % \
                     of writes; {:.0} writes/s, {:.0} faults/s",
                    speed[0], speed[1],
                );
                assert!(
                    faults <= 2.0 && writes <= 2.0,
                    "{kind:?} {delay:?} {parties}"
                );
            }
        }
    }
}

/// The farther away the others are, the longer a page is kept, so that more is done with it
/// than to carry it.
#[test]
fn a_page_is_used_about_as_long_as_it_travels() {
    let delay = DELAYS[1];
    for kind in [Kind::Simple, Kind::Multi] {
        let short = hotspot(kind, 4, delay, SHORT);
        let long = hotspot(kind, 4, delay, hold_for(round_trip(kind, delay)));
        println!(
            "{kind:?}: held 50 us {:?}, as long as a delay {:?}",
            short.speed, long.speed
        );
        assert!(long.speed[0] > 5.0 * short.speed[0]);
        assert!(long.speed[1] > 0.6 * short.speed[1]);
    }
}

/// Without any hold the page is gone before a thread that was woken runs, and who gets to
/// write at all is chance: so these tests can fail.
#[test]
fn without_a_hold_shares_are_not_equal() {
    for kind in [Kind::Simple, Kind::Multi, Kind::Distributed] {
        let Outcome { unfair, speed } = hotspot(kind, 8, DELAYS[1], Duration::ZERO);
        println!(
            "{kind:?}: off by {:.0} % of writes, {:.0} writes/s",
            100.0 * unfair[1],
            speed[0]
        );
        assert!(unfair[1] > 0.1, "{kind:?}");
    }
}
