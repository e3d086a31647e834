//! What goes wrong in a run, drawn from its seed.

use std::time::Duration;

use turmoil::Sim;

use crate::random::Random;
use crate::world::Shared;

/// The server, among the hosts.
pub const SERVER: usize = usize::MAX;

/// Faults happen in this time; then all is repaired.
const FIRST: u64 = 150;
pub const LAST: u64 = 1800;
/// Answers are late for so long, in milliseconds, while a heartbeat arrives; then for at most
/// so long, while none does; they come within so long; and for so long nothing does.
const TILL_LOST: u64 = 90;
const LATER: u64 = 240;
const TILL_CUT: u64 = 3;
const SILENT: u64 = 600;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// What is sent is kept on the way, in both directions, and comes then.
    Hold,
    /// The same, and the server's system gives the connection up meanwhile.
    HoldAndBreak,
    /// What the server sends is kept on the way. It leads to the next.
    LateAnswers,
    /// In addition, what the client sends is lost. It leads to the next.
    LaterAnswers,
    /// What was kept comes. It leads to a [`Fault::Cut`].
    LastAnswers,
    /// What is sent is lost, in both directions.
    Cut,
    /// What the client sends is lost.
    CutFromClient,
    /// What the server sends is lost.
    CutFromServer,
    /// Messages take much longer.
    Slow,
    /// The connection breaks; both sides see that soon.
    Break,
    /// The process is stopped.
    Stop,
    /// The process is killed; its system tells the server.
    Kill,
    /// The machine loses power; nobody tells anybody.
    PowerCut,
    /// The server is killed and started again.
    KillServer,
}

/// Something that goes wrong for a while.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    pub fault: Fault,
    /// Which client.
    pub host: usize,
    /// In milliseconds of the simulation.
    pub begin: u64,
    pub end: u64,
}

impl Planned {
    /// What follows it, for so long.
    fn then(self, fault: Fault, lasts: u64) -> Planned {
        Planned {
            fault,
            begin: self.end,
            end: self.end + lasts,
            ..self
        }
    }
}

/// What goes wrong, in the order in which it begins. A client has one trouble at a time.
pub fn plan(random: &mut Random, clients: usize) -> Vec<Planned> {
    use Fault::*;
    let mut planned = Vec::new();
    let mut free = vec![FIRST; clients];
    for _ in 0..random.below(9) {
        let host = random.below(clients as u64) as usize;
        let begin = free[host] + random.below(500);
        let lasts = match random.below(3) {
            0 => 5 + random.below(50),
            1 => 50 + random.below(300),
            _ => 300 + random.below(700),
        };
        let fault = match random.below(21) {
            0..3 => Hold,
            3 => HoldAndBreak,
            4..6 => LateAnswers,
            6..8 => Cut,
            8..10 => CutFromClient,
            10..12 => CutFromServer,
            12 => Slow,
            13..15 => Break,
            15..17 => Stop,
            17..19 => Kill,
            19 => PowerCut,
            _ => KillServer,
        };
        let (lasts, then) = match fault {
            LateAnswers => (TILL_LOST, LATER + TILL_CUT + SILENT),
            _ => (lasts, 0),
        };
        let end = begin + lasts;
        if end + then < LAST {
            free[host] = end + then + 1;
            planned.push(Planned {
                fault,
                host,
                begin,
                end,
            });
        }
    }
    planned.sort_by_key(|it| it.begin);
    planned
}

pub fn client(host: usize) -> String {
    format!("client-{host}")
}

/// The connections of a host with another break there.
fn break_at(world: &Shared, host: usize, with: &str) {
    let hub = world.borrow().hubs.get(&host).cloned();
    if let Some(hub) = hub {
        hub.break_with(with);
    }
}

/// It begins.
pub fn begin(sim: &mut Sim<'_>, world: &Shared, planned: &Planned) {
    let host = client(planned.host);
    world.borrow_mut().note(format_args!("--- {planned:?}"));
    match planned.fault {
        Fault::Hold => sim.hold(host, "server"),
        Fault::Cut => sim.partition(host, "server"),
        Fault::CutFromClient | Fault::LaterAnswers | Fault::LastAnswers => {
            sim.partition_oneway(host, "server")
        }
        Fault::CutFromServer => sim.partition_oneway("server", host),
        Fault::Slow => {
            let latency = Duration::from_millis(60);
            sim.set_link_max_message_latency(host, "server", latency);
        }
        Fault::LateAnswers => {
            sim.hold(host.as_str(), "server");
            sim.repair_oneway(host, "server");
        }
        Fault::HoldAndBreak => {
            sim.hold(host.as_str(), "server");
            break_at(world, SERVER, &host);
        }
        Fault::Break => break_at(world, planned.host, "server"),
        Fault::Stop => {
            let until = Duration::from_millis(planned.end);
            world.borrow_mut().stop(planned.host, until);
        }
        Fault::Kill => sim.crash(host),
        Fault::PowerCut => {
            sim.partition(host.as_str(), "server");
            sim.crash(host);
        }
        Fault::KillServer => sim.crash("server"),
    }
}

/// It is repaired. What goes wrong instead, if anything.
pub fn end(
    sim: &mut Sim<'_>,
    world: &Shared,
    planned: &Planned,
    latency: Duration,
) -> Option<Planned> {
    let host = client(planned.host);
    world
        .borrow_mut()
        .note(format_args!("--- over: {planned:?}"));
    match planned.fault {
        Fault::LateAnswers => {
            sim.partition_oneway(host, "server");
            return Some(planned.then(Fault::LaterAnswers, LATER - planned.begin % 80));
        }
        Fault::LaterAnswers => {
            sim.release(host.as_str(), "server");
            sim.partition_oneway(host, "server");
            return Some(planned.then(Fault::LastAnswers, TILL_CUT));
        }
        Fault::LastAnswers => {
            sim.partition(host, "server");
            return Some(planned.then(Fault::Cut, SILENT));
        }
        Fault::Hold | Fault::HoldAndBreak => sim.release(host, "server"),
        Fault::Cut => sim.repair(host, "server"),
        Fault::CutFromClient => sim.repair_oneway(host, "server"),
        Fault::CutFromServer => sim.repair_oneway("server", host),
        Fault::Slow => sim.set_link_max_message_latency(host, "server", latency),
        Fault::Break | Fault::Stop => {}
        Fault::Kill => sim.bounce(host),
        Fault::PowerCut => {
            sim.repair(host.as_str(), "server");
            sim.bounce(host);
        }
        Fault::KillServer => sim.bounce("server"),
    }
    None
}
