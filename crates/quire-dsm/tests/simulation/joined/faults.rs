//! What goes wrong in a run with several servers, drawn from its seed.

use std::time::Duration;

use turmoil::Sim;

use super::office::{Office, Passage};
use super::{SERVERS, server};
use crate::faults::client;
use crate::random::Random;
use crate::world::Shared;

/// Faults happen in this time, in milliseconds; then all is repaired.
const FIRST: u64 = 400;
pub const LAST: u64 = 3200;
/// A server that is stopped late does not reach the directory for so long.
const STOPPED_LATE: u64 = 1500;

/// To whom it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whom {
    /// A client, and its links to all servers.
    Client(usize),
    /// The links between two servers.
    Between(usize, usize),
    /// A server's process.
    Server(usize),
    /// A server's way to the directory.
    Directory(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// What is sent is kept on the way, in both directions, and comes then.
    Hold,
    /// The same, and the one side's system gives the connection up meanwhile.
    HoldAndBreak,
    /// What is sent is lost, in both directions.
    Cut,
    /// What the first side sends is lost: the client, or the first of two servers.
    CutFrom,
    /// What it would hear is lost.
    CutTo,
    /// Messages take much longer.
    Slow,
    /// The connection breaks; both sides see that soon.
    Break,
    /// The process is stopped.
    Stop,
    /// The process is killed, and started again some time later.
    Kill,
    /// The server is told to end, and started again some time later.
    End,
}

/// Something that goes wrong for a while.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    pub fault: Fault,
    pub whom: Whom,
    /// In milliseconds of the simulation.
    pub begin: u64,
    pub end: u64,
}

/// Of whom the faults of a run are.
fn whom(random: &mut Random, servers: usize, clients: usize) -> Whom {
    let one = random.below(servers as u64) as usize;
    match random.below(9) {
        0..2 => Whom::Client(random.below(clients as u64) as usize),
        2..5 => {
            let other = (one + 1 + random.below(servers as u64 - 1) as usize) % servers;
            Whom::Between(one.min(other), one.max(other))
        }
        5..7 => Whom::Server(one),
        _ => Whom::Directory(one),
    }
}

fn what(random: &mut Random, whom: Whom) -> Fault {
    use Fault::*;
    let of_links = [
        Hold,
        Hold,
        HoldAndBreak,
        HoldAndBreak,
        Cut,
        CutFrom,
        CutTo,
        Slow,
        Break,
        Break,
    ];
    let of_processes = [Stop, Kill];
    let some: &[Fault] = match whom {
        Whom::Client(_) if random.once_in(3) => &of_processes,
        Whom::Client(_) | Whom::Between(..) => &of_links,
        Whom::Server(_) => &[Stop, Kill, End, End],
        Whom::Directory(_) => &[Cut, Cut, CutTo, Slow],
    };
    some[random.below(some.len() as u64) as usize]
}

/// A server does not reach the directory, and is stopped when its lease is nearly over: its
/// programs may use what they have for as long as they ever may.
fn stopped_late(random: &mut Random, servers: usize) -> Vec<Planned> {
    let number = random.below(servers as u64) as usize;
    let begin = FIRST + random.below(LAST - FIRST - STOPPED_LATE);
    let end = begin + STOPPED_LATE;
    let silent = Planned {
        fault: Fault::Cut,
        whom: Whom::Directory(number),
        begin,
        end,
    };
    let stopped = Planned {
        fault: Fault::Stop,
        whom: Whom::Server(number),
        begin: begin + 320 + random.below(160),
        end,
    };
    vec![silent, stopped]
}

/// Something that goes wrong by itself.
fn one(random: &mut Random, servers: usize, clients: usize) -> Planned {
    let whom = whom(random, servers, clients);
    let fault = what(random, whom);
    let begin = FIRST + random.below(LAST - FIRST - 100);
    let lasts = match random.below(3) {
        _ if matches!(whom, Whom::Directory(_)) => 100 + random.below(1900),
        // Most have ended by then.
        _ if fault == Fault::End => 200 + random.below(1300),
        0 => 5 + random.below(100),
        1 => 100 + random.below(500),
        _ => 500 + random.below(1200),
    };
    let end = (begin + lasts).min(LAST);
    Planned {
        fault,
        whom,
        begin,
        end,
    }
}

/// What goes wrong, in the order in which it begins. Everybody has one trouble at a time.
pub fn plan(random: &mut Random, servers: usize, clients: usize) -> Vec<Planned> {
    let mut planned: Vec<Planned> = Vec::new();
    for _ in 0..random.below(9) {
        let next = match random.once_in(8) {
            true => stopped_late(random, servers),
            false => vec![one(random, servers, clients)],
        };
        let is_apart = |one: &Planned| {
            let mut others = planned.iter().filter(|other| other.whom == one.whom);
            others.all(|other| other.end + 2 < one.begin || one.end + 2 < other.begin)
        };
        if next.iter().all(is_apart) {
            planned.extend(next);
        }
    }
    planned.sort_by_key(|it| it.begin);
    planned
}

/// What faults are made in.
pub struct Scene<'a, 'b> {
    pub sim: &'a mut Sim<'b>,
    pub world: &'a Shared,
    pub office: &'a Office,
    pub servers: usize,
    pub latency: Duration,
}

impl Scene<'_, '_> {
    /// The two ends of the links that are meant.
    fn links(&self, whom: Whom) -> Vec<(String, String)> {
        match whom {
            Whom::Client(host) => (0..self.servers)
                .map(|number| (client(host), server(number)))
                .collect(),
            Whom::Between(one, other) => vec![(server(one), server(other))],
            Whom::Server(_) | Whom::Directory(_) => Vec::new(),
        }
    }

    /// Connections break at the first of their ends.
    fn break_at(&self, whom: Whom, ends: &[(String, String)]) {
        let host = match whom {
            Whom::Client(host) => host,
            Whom::Between(number, _) | Whom::Server(number) | Whom::Directory(number) => {
                SERVERS + number
            }
        };
        let hub = self.world.borrow().hubs.get(&host).cloned();
        for (_, other) in ends {
            if let Some(hub) = &hub {
                hub.break_with(other);
            }
        }
    }

    fn host(whom: Whom) -> (usize, String) {
        match whom {
            Whom::Client(host) => (host, client(host)),
            Whom::Between(number, _) | Whom::Server(number) | Whom::Directory(number) => {
                (SERVERS + number, server(number))
            }
        }
    }

    /// It begins.
    pub fn begin(&mut self, planned: &Planned) {
        let Planned { fault, whom, .. } = *planned;
        self.world
            .borrow_mut()
            .note(format_args!("--- {planned:?}"));
        let (host, name) = Self::host(whom);
        if let Whom::Directory(_) = whom {
            let passage = match fault {
                Fault::Cut => Passage::Closed,
                Fault::CutTo => Passage::OneWay,
                _ => Passage::Slow,
            };
            return self.office.set(&name, passage);
        }
        let ends = self.links(whom);
        for (one, other) in &ends {
            let (one, other) = (one.as_str(), other.as_str());
            match fault {
                Fault::Hold | Fault::HoldAndBreak => self.sim.hold(one, other),
                Fault::Cut => self.sim.partition(one, other),
                Fault::CutFrom => self.sim.partition_oneway(one, other),
                Fault::CutTo => self.sim.partition_oneway(other, one),
                Fault::Slow => {
                    let latency = Duration::from_millis(60);
                    self.sim.set_link_max_message_latency(one, other, latency);
                }
                Fault::Break | Fault::Stop | Fault::Kill | Fault::End => {}
            }
        }
        match fault {
            Fault::Break | Fault::HoldAndBreak => self.break_at(whom, &ends),
            Fault::Stop => {
                let until = Duration::from_millis(planned.end);
                self.world.borrow_mut().stop(host, until);
            }
            Fault::Kill => {
                // Who is gone cannot be stopped.
                self.world.borrow_mut().goes_on(host);
                self.sim.crash(name);
            }
            Fault::End => self.world.borrow_mut().tell_to_end(host),
            _ => {}
        }
    }

    /// Servers that have ended are gone.
    pub fn clear_away(&mut self) {
        let ended = self.world.borrow_mut().take_ended();
        for host in ended {
            self.world.borrow_mut().goes_on(host);
            self.sim.crash(server(host - SERVERS));
        }
    }

    /// It is repaired.
    pub fn end(&mut self, planned: &Planned) {
        let Planned { fault, whom, .. } = *planned;
        let over = format_args!("--- over: {planned:?}").to_string();
        self.world.borrow_mut().note(format_args!("{over}"));
        let (_, name) = Self::host(whom);
        if let Whom::Directory(_) = whom {
            return self.office.set(&name, Passage::Open);
        }
        for (one, other) in self.links(whom) {
            match fault {
                Fault::Hold | Fault::HoldAndBreak => self.sim.release(one, other),
                Fault::Cut => self.sim.repair(one, other),
                Fault::CutFrom => self.sim.repair_oneway(one, other),
                Fault::CutTo => self.sim.repair_oneway(other, one),
                Fault::Slow => {
                    let latency = self.latency;
                    self.sim.set_link_max_message_latency(one, other, latency);
                }
                Fault::Break | Fault::Stop | Fault::Kill | Fault::End => {}
            }
        }
        if matches!(fault, Fault::Kill | Fault::End) {
            self.sim.bounce(name);
        }
    }
}
