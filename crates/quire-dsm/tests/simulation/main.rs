//! A server and several clients on a simulated network and a simulated clock (turmoil): the
//! real server, links with their heartbeats and leases, frames and caches, without sockets,
//! threads, userfaultfd and waiting. A seed decides all: who does what when, how long each
//! packet takes, and what goes wrong. [`joined`] has several servers. See
//! `docs/dsm-simulation.md`.
//!
//! `QUIRE_TEST_SEED=n` runs one seed and prints all that happens; `QUIRE_TEST_SEEDS=n` runs
//! the first n, `QUIRE_TEST_SEEDS=m..n` those from m on that are below n.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quire_dsm::link::turn::{Config, Turn};
use quire_dsm::server::Server;
use quire_dsm::wire::control::{Hello, MachineCode, Name, PageSize, Role, SchedulerKind};

use client::{Manner, Program};
use faults::{Planned, SERVER, begin, client, end, plan};
use net::{Hub, Loop, clock, dial, listen};
use random::Random;
use world::{Counts, Shared, World};

#[path = "../checker/mod.rs"]
mod checker;
mod client;
mod faults;
mod joined;
mod net;
mod random;
mod world;

/// The server's lease. All times of the simulation have its proportions.
const LEASE: Duration = Duration::from_millis(400);
/// After the faults, whatever they began is over by now: leases and their margins have
/// ended, and memory that waited in vain has failed.
const SETTLED: Duration = Duration::from_millis(faults::LAST + 1600);
const END: Duration = Duration::from_millis(faults::LAST + 2200);
/// How long the last accesses may take.
const GRACE: Duration = Duration::from_millis(900);
/// Seeds of a usual run.
const SEEDS: u64 = 60;
const JOINED_SEEDS: u64 = 12;

/// What came of a seed.
struct Outcome {
    wrong: Option<String>,
    hash: u64,
    counts: Counts,
    trace: Vec<String>,
    words: String,
}

fn config(name: &Name, role: Role) -> Config {
    let mut config = Config::new(Hello {
        name: name.clone(),
        role,
        machine: MachineCode(0),
        page_size: PageSize::BASE,
        features: 0,
    });
    config.greeting = Duration::from_millis(300);
    config.clock = clock;
    config
}

/// The server, until its host crashes.
async fn serve(world: Shared) -> turmoil::Result {
    let run = {
        let mut world = world.borrow_mut();
        world.run += 1;
        let run = world.run;
        world.note(format_args!("server {run} begins"));
        run
    };
    let name: Name = format!("server-{run}").parse()?;
    let mut turn = Turn::new(config(&name, Role::Server))?;
    let mut server = Server::new(name, LEASE);
    server.number_from(run << 32);
    let hub = Arc::new(Hub::default());
    world.borrow_mut().hubs.insert(SERVER, Arc::clone(&hub));
    tokio::task::spawn_local(listen(Arc::clone(&hub), Rc::clone(&world)));
    let mut turns = Loop::new((&hub, &world, SERVER));
    turns.run(&mut turn, &mut server, |_| false).await;
    Ok(())
}

/// Processes of a client, one after the other, until its host crashes.
async fn work(host: usize, seed: u64, manner: Manner, world: Shared) -> turmoil::Result {
    let name: Name = client(host).parse()?;
    loop {
        let hub = Arc::new(Hub::default());
        world.borrow_mut().hubs.insert(host, Arc::clone(&hub));
        let dials = tokio::task::spawn_local(dial(Arc::clone(&hub), Rc::clone(&world)));
        let mut turn = Turn::new(config(&name, Role::Kernel))?;
        let mut program = Program::new(host, seed, &manner, &hub, &world);
        let mut turns = Loop::new((&hub, &world, host));
        turns.run(&mut turn, &mut program, Program::is_over).await;
        // What a process has sent before it ends still goes out.
        turn.step(&mut program, &[]);
        drop((turn, program));
        tokio::time::sleep(Duration::from_millis(20)).await;
        dials.abort();
    }
}

/// One run.
fn run(seed: u64) -> Outcome {
    quire_dsm::random::repeat_numbers(seed);
    let mut random = Random::new(seed, 0);
    let clients = 2 + random.below(3) as usize;
    let scheduler = match random.below(3) {
        0 => SchedulerKind::Simple,
        1 => SchedulerKind::Multi,
        _ => SchedulerKind::Distributed,
    };
    let several = scheduler == SchedulerKind::Multi;
    let manner = Manner {
        scheduler,
        together: if several && random.once_in(2) { 2 } else { 1 },
        ahead: random.below(2) as u32 * 2,
        pause: 1 + random.below(12),
        writes: 2 + random.below(3),
        patience: Duration::from_millis(1500),
        reconnect: Duration::from_millis(1000),
        servers: vec!["server".into()],
        joined: None,
    };
    let latency = Duration::from_millis(1 + random.below(12));
    let planned = plan(&mut random, clients);
    let words = format!("{clients} clients, {manner:?}, latency up to {latency:?}, {planned:?}");

    let world: Shared = Rc::new(World::new().into());
    let mut sim = network(seed, latency);
    let shared = Rc::clone(&world);
    sim.host("server", move || serve(Rc::clone(&shared)));
    for host in 0..clients {
        let (shared, manner) = (Rc::clone(&world), manner.clone());
        sim.host(client(host), move || {
            work(host, seed, manner.clone(), Rc::clone(&shared))
        });
    }
    drive(&mut sim, &world, &planned, latency);
    // Before those that still run are ended, and lose what they have.
    world.borrow_mut().look_at_history();
    drop(sim);
    outcome(&world, words)
}

fn network<'a>(seed: u64, latency: Duration) -> turmoil::Sim<'a> {
    turmoil::Builder::new()
        .rng_seed(seed)
        .tick_duration(Duration::from_millis(1))
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(latency)
        .simulation_duration(Duration::from_secs(60))
        .tcp_capacity(1 << 14)
        .build()
}

fn outcome(world: &Shared, words: String) -> Outcome {
    let mut world = world.borrow_mut();
    Outcome {
        wrong: world.wrong.take(),
        hash: world.hash(),
        counts: world.counts,
        trace: std::mem::take(&mut world.trace),
        words,
    }
}

/// Steps through a run, with its faults.
fn drive(sim: &mut turmoil::Sim<'_>, world: &Shared, planned: &[Planned], latency: Duration) {
    let mut ends: Vec<Planned> = Vec::new();
    let mut begins = planned.iter().peekable();
    loop {
        let now = sim.elapsed();
        let millis = now.as_millis() as u64;
        ends.sort_by_key(|it| it.end);
        while let Some(over) = ends.first().copied().filter(|it| it.end <= millis) {
            ends.remove(0);
            ends.extend(end(sim, world, &over, latency));
        }
        while let Some(next) = begins.next_if(|it| it.begin <= millis) {
            begin(sim, world, next);
            ends.push(*next);
        }
        world.borrow_mut().now = now;
        if world.borrow_mut().look((SETTLED, END, END + GRACE)) {
            break;
        }
        if let Err(error) = sim.step() {
            return world.borrow_mut().fail(error.to_string());
        }
    }
    world.borrow_mut().look_at_end();
}

/// Says what is wrong with a seed, and how to see it again.
fn complain(seed: u64, outcome: &Outcome, test: &str) -> String {
    let from = outcome.trace.len().saturating_sub(150);
    format!(
        "seed {seed}: {}\n{}\n...\n{}\nseed {seed}: {}\nto repeat it: QUIRE_TEST_SEED={seed} \
         cargo test -p quire-dsm --test simulation {test} -- --exact --nocapture",
        outcome.wrong.as_deref().unwrap_or("nothing is wrong"),
        outcome.words,
        outcome.trace[from..].join("\n"),
        outcome.wrong.as_deref().unwrap_or("nothing is wrong"),
    )
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The seeds that are asked for: a number of them, or a range.
fn wanted() -> Option<Range<u64>> {
    let text = std::env::var("QUIRE_TEST_SEEDS").ok()?;
    let (first, end) = text.split_once("..").unwrap_or(("0", &text));
    let number = |text: &str| text.parse().expect("QUIRE_TEST_SEEDS is n or m..n");
    Some(number(first)..number(end))
}

/// Runs seeds on all processors. What was done in all of them, or what is wrong with one.
fn run_all(seeds: Range<u64>, run: fn(u64) -> Outcome, test: &str) -> Result<Counts, String> {
    let next = AtomicU64::new(seeds.start);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let all = Mutex::new(Ok(Counts::default()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let outcome = run(seed);
            let mut all = all.lock().expect("nobody panicked");
            match &mut *all {
                Ok(counts) if outcome.wrong.is_none() => counts.add(outcome.counts),
                Ok(_) => *all = Err(complain(seed, &outcome, test)),
                Err(_) => return,
            }
        }
    };
    std::thread::scope(|scope| {
        (0..workers).for_each(|_| drop(scope.spawn(work)));
    });
    all.into_inner().expect("nobody panicked")
}

/// Runs the seeds that are wanted. What was done, where there was more than one.
fn run_wanted(usual: u64, run: fn(u64) -> Outcome, test: &str) -> Option<(u64, Counts)> {
    if let Some(seed) = number("QUIRE_TEST_SEED") {
        let outcome = run(seed);
        println!("{}\n{}", outcome.words, outcome.trace.join("\n"));
        println!("{:?}, hash {:#x}", outcome.counts, outcome.hash);
        let complaint = complain(seed, &outcome, test);
        assert!(outcome.wrong.is_none(), "{complaint}");
        return None;
    }
    let seeds = wanted().unwrap_or(0..usual);
    let counts = run_all(seeds.clone(), run, test).unwrap_or_else(|wrong| panic!("{wrong}"));
    println!("seeds {seeds:?}: {counts:?}");
    let seeds = seeds.end - seeds.start;
    (seeds >= usual).then_some((seeds, counts))
}

fn assert_same(seeds: Range<u64>, run: fn(u64) -> Outcome) {
    let mut hashes = BTreeSet::new();
    for seed in seeds.clone() {
        let (first, second) = (run(seed), run(seed));
        hashes.insert(first.hash);
        let differs = first.trace.iter().zip(&second.trace).find(|(a, b)| a != b);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(
            (first.hash, first.counts),
            (second.hash, second.counts),
            "seed {seed}"
        );
    }
    assert_eq!(hashes.len() as u64, seeds.end - seeds.start);
}

#[test]
fn seeds() {
    if let Some((seeds, counts)) = run_wanted(SEEDS, run, "seeds") {
        let enough = counts.failed > 0
            && counts.lost > seeds
            && counts.told > 0
            && counts.told < counts.lost
            && counts.done > 100 * seeds;
        assert!(enough, "too little happens to show anything: {counts:?}");
    }
}

#[test]
fn seeds_of_joined_servers() {
    let done = run_wanted(JOINED_SEEDS, joined::run, "seeds_of_joined_servers");
    if let Some((seeds, counts)) = done {
        let enough = counts.failed > 0
            && counts.lost > seeds
            && counts.ended > 0
            && counts.removed > 0
            && counts.done > 100 * seeds;
        assert!(enough, "too little happens to show anything: {counts:?}");
    }
}

#[test]
fn a_seed_always_gives_the_same_trace() {
    assert_same(0..4, run);
}

#[test]
fn a_seed_of_joined_servers_always_gives_the_same_trace() {
    assert_same(0..2, joined::run);
}
