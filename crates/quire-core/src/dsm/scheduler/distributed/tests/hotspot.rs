//! The messages of an N-party write hotspot, as section 4.1 counts them: in each round all
//! servers take a write fault on the same page, and the one that has the page serves its own
//! kernel before it hears of the others.

use super::random::Dice;
use super::world::World;
use crate::dsm::message::{Access, PageNumber};
use crate::dsm::scheduler::distributed::{Counters, Distributed, Owner};

const ROUNDS: usize = 50;

fn counters(world: &World) -> Vec<Counters> {
    let servers = world.servers.iter().flatten();
    servers.map(Distributed::counters).collect()
}

fn remote(world: &World) -> u64 {
    counters(world).iter().map(|c| c.servers.sent).sum()
}

/// The server that has the page.
fn holder(world: &World) -> usize {
    let has = |server: &Distributed<u32>| {
        server.home == server.me && server.known().count() == 0
            || server
                .stat(PageNumber(0))
                .is_some_and(|stat| !matches!(stat.owner, Owner::Server(_)))
    };
    let mut servers = world.servers.iter().flatten();
    servers.position(has).expect("an owner")
}

/// A round: each kernel writes once. How many messages went between servers.
fn round(world: &mut World) -> u64 {
    let before = remote(world);
    let holder = holder(world);
    world.page_out(holder, 0);
    world.fault(holder, 0, Access::Write);
    for server in (0..world.servers.len()).filter(|&server| server != holder) {
        world.fault(server, 0, Access::Write);
    }
    world.drain();
    assert_eq!(world.broken, None);
    remote(world) - before
}

fn hotspot(parties: usize) -> World {
    World::new(&vec![0; parties], parties, 1)
}

#[test]
fn rounds_take_the_papers_number_of_messages() {
    for parties in 2..=16 {
        let mut world = hotspot(parties);
        let n = parties as u64;
        assert_eq!(round(&mut world), 3 * n - 4, "first round of {n}");
        for _ in 0..ROUNDS {
            let messages = round(&mut world);
            // Of two servers, the one before the last is the first: no fault is forwarded.
            let expected = if n == 2 { 2 } else { 2 * n - 1 };
            assert_eq!(messages, expected, "round of {n}");
        }
        assert_eq!(u64::from(world.latest[0]), n * (ROUNDS as u64 + 1));
    }
}

/// Whatever the order in which faults come in, the first round takes as many messages.
#[test]
fn the_first_round_does_not_depend_on_the_order() {
    for seed in 0..400 {
        let mut dice = Dice(seed);
        let parties = 2 + dice.roll(15);
        let mut world = hotspot(parties);
        world.fault(0, 0, Access::Write);
        let mut left: Vec<usize> = (1..parties).collect();
        while !(left.is_empty() && world.links.is_empty()) {
            let busy = world.busy();
            match dice.roll(left.len() + busy.len()) {
                link if link < busy.len() => world.deliver(busy[link]),
                fault => world.fault(left.swap_remove(fault - busy.len()), 0, Access::Write),
            }
        }
        world.check_quiet();
        assert_eq!(world.broken, None);
        assert_eq!(remote(&world), 3 * parties as u64 - 4);
    }
}

/// Two servers that take the page from each other, each of whose faults is remote.
#[test]
fn two_servers_in_turn_take_2n() {
    let mut world = hotspot(2);
    round(&mut world);
    for _ in 0..ROUNDS {
        let before = remote(&world);
        for _ in 0..2 {
            let other = 1 - holder(&world);
            world.fault(other, 0, Access::Write);
            world.drain();
        }
        assert_eq!(remote(&world) - before, 4);
    }
}

/// All write again as soon as they have lost the page, and messages take random times. How
/// often each has written, and how many messages went between servers for each write.
fn without_rounds(parties: usize, near: bool) -> (Vec<u64>, f64) {
    let mut world = hotspot(parties);
    world.near = near;
    let mut dice = Dice(parties as u64);
    let writes = 2000 * parties as u32;
    while world.latest[0] < writes {
        for kernel in 0..parties {
            if world.would_fault(kernel, 0, Access::Write) {
                world.fault(kernel, 0, Access::Write);
            }
        }
        let busy = world.busy();
        world.deliver(busy[dice.roll(busy.len())]);
        assert_eq!(world.broken, None);
    }
    let own = counters(&world).iter().map(|c| c.local.total()).collect();
    (own, remote(&world) as f64 / f64::from(writes))
}

/// Where kernels keep a page about as long as a message takes, all get it equally often.
#[test]
fn who_writes_without_rounds_gets_an_equal_share() {
    for parties in [2, 3, 5, 8, 16] {
        let (own, each) = without_rounds(parties, false);
        println!("{parties} servers, slow kernels: {each:.2} messages for each write");
        assert!(own.iter().all(|own| own.abs_diff(2000) <= 40), "{own:?}");
    }
}

/// Where kernels keep a page for no time at all, it goes up and down a chain of servers: no
/// fault is forwarded, as in Figure 8, and the two ends get the page half as often.
#[test]
fn fast_kernels_take_2n_messages() {
    for parties in [2, 3, 5, 8, 16] {
        let (own, each) = without_rounds(parties, true);
        assert!((1.99..2.01).contains(&each), "{each}");
        assert!(own.iter().all(|&own| own > 1000), "{own:?}");
    }
}

#[test]
fn messages_for_each_fault_and_fairness() {
    for parties in 2..=16 {
        let mut world = hotspot(parties);
        round(&mut world);
        let before = counters(&world);
        for _ in 0..ROUNDS {
            round(&mut world);
        }
        let after = counters(&world);
        let since = |of: fn(&Counters) -> u64| -> Vec<u64> {
            let pairs = before.iter().zip(&after);
            pairs
                .map(|(before, after)| of(after) - of(before))
                .collect()
        };
        let faults: u64 = since(|c| c.local.total() + c.remote.total()).iter().sum();
        let between: u64 = since(|c| c.servers.sent + c.servers.received).iter().sum();
        let local: u64 = since(|c| c.kernels.sent + c.kernels.received - c.completions)
            .iter()
            .sum();
        let (between, all) = (
            between as f64 / faults as f64,
            (between + local) as f64 / faults as f64,
        );
        println!("{parties} servers: {all:.3} messages for each fault, {between:.3} remote");
        assert!(between <= 2.0 && all <= 4.1, "{all} {between}");
        let own = since(|c| c.local.total());
        let mean = own.iter().sum::<u64>() as f64 / parties as f64;
        assert!(
            own.iter()
                .all(|&own| (own as f64 - mean).abs() <= mean * 0.02)
        );
    }
}
