//! Model checking: all orders in which messages may come, where links keep the order only
//! between the same two parties.

use super::world::{Node, World};
use crate::dsm::message::Access;
use stateright::{Checker, HasDiscoveries, Model, Property};

/// What may happen next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Event {
    Fault(usize, usize, Access),
    PageOut(usize, usize),
    Deliver(Node, Node),
    Crash(usize),
    NewView(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    world: World,
    /// How many faults each kernel may still make.
    reads: Vec<u8>,
    writes: Vec<u8>,
    page_outs: u8,
    crashed: bool,
}

/// What is checked.
struct Setup {
    world: World,
    reads: Vec<u8>,
    writes: Vec<u8>,
    page_outs: u8,
    /// The servers that may crash, one of them at most.
    crashes: Vec<usize>,
}

impl Model for Setup {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            world: self.world.clone(),
            reads: self.reads.clone(),
            writes: self.writes.clone(),
            page_outs: self.page_outs,
            crashed: false,
        }]
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        let world = &state.world;
        if world.broken.is_some() {
            return;
        }
        events.extend(
            world
                .busy()
                .iter()
                .map(|&(from, to)| Event::Deliver(from, to)),
        );
        for kernel in 0..world.kernels.len() {
            for page in 0..world.latest.len() {
                for (access, left) in [(Access::Read, &state.reads), (Access::Write, &state.writes)]
                {
                    if left[kernel] > 0 && world.would_fault(kernel, page, access) {
                        events.push(Event::Fault(kernel, page, access));
                    }
                }
                let cached = world.kernels[kernel][page];
                if state.page_outs > 0 && cached.dirty && cached.wants.is_none() {
                    events.push(Event::PageOut(kernel, page));
                }
            }
        }
        if !state.crashed {
            events.extend(self.crashes.iter().map(|&server| Event::Crash(server)));
        }
        for server in 0..world.servers.len() {
            if world.is_behind(server) {
                events.push(Event::NewView(server));
            }
        }
    }

    fn next_state(&self, last: &State, event: Event) -> Option<State> {
        let mut state = last.clone();
        match event {
            Event::Fault(kernel, page, access) => {
                match access {
                    Access::Read => state.reads[kernel] -= 1,
                    Access::Write => state.writes[kernel] -= 1,
                }
                state.world.fault(kernel, page, access);
            }
            Event::PageOut(kernel, page) => {
                state.page_outs -= 1;
                state.world.page_out(kernel, page);
            }
            Event::Deliver(from, to) => state.world.deliver((from, to)),
            Event::Crash(server) => {
                state.crashed = true;
                state.world.crash(server);
            }
            Event::NewView(server) => state.world.new_view(server),
        }
        let due = (0..state.world.servers.len()).any(|server| state.world.is_behind(server));
        if !due {
            state.world.check_quiet();
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "coherent, and every fault is answered",
                |_, state: &State| state.world.broken.is_none(),
            ),
            Property::sometimes("a write is done", |_, state: &State| {
                state.world.latest.iter().any(|&writes| writes > 0)
            }),
        ]
    }
}

/// Checks all states.
fn check(name: &str, setup: Setup) {
    check_up_to(usize::MAX, name, setup);
}

/// Checks so many states.
fn check_up_to(limit: usize, name: &str, setup: Setup) {
    let checker = setup
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyFailures)
        .target_state_count(limit)
        .spawn_dfs()
        .join();
    println!(
        "{name}: {} states, depth {}",
        checker.unique_state_count(),
        checker.max_depth()
    );
    checker.assert_properties();
}

fn setup(of: &[usize], pages: usize, reads: &[u8], writes: &[u8]) -> Setup {
    Setup {
        world: World::new(of, reads.len(), pages),
        reads: reads.to_vec(),
        writes: writes.to_vec(),
        page_outs: 0,
        crashes: Vec::new(),
    }
}

#[test]
fn two_servers_with_slow_kernels() {
    let mut setup = setup(&[0, 0], 1, &[2, 2], &[2, 2]);
    setup.world.near = false;
    setup.page_outs = 1;
    check("2 servers, 1 page, kernels apart", setup);
}

#[test]
fn three_servers_one_page() {
    check(
        "3 servers, 1 page",
        setup(&[0, 0, 0], 1, &[1, 1, 1], &[2, 2, 1]),
    );
}

#[test]
fn a_replica_of_a_replica() {
    check(
        "3 servers in a row, 1 page",
        setup(&[0, 0, 1], 1, &[1, 1, 2], &[1, 2, 1]),
    );
}

#[test]
fn three_servers_two_pages() {
    check(
        "3 servers, 2 pages",
        setup(&[0, 0, 0], 2, &[1, 1, 1], &[1, 1, 1]),
    );
}

#[test]
fn two_kernels_of_each_of_two_servers() {
    check(
        "2 servers, 4 kernels, 1 page",
        setup(&[0, 0], 1, &[1, 1, 1, 1], &[1, 1, 1, 1]),
    );
}

#[test]
fn larger_ones_in_part() {
    let mut setup = setup(&[0, 0, 1], 2, &[2, 2, 2], &[2, 2, 2]);
    setup.world.near = false;
    setup.page_outs = 2;
    check_up_to(60_000, "3 servers, 2 pages, kernels apart, in part", setup);
}

#[test]
fn a_server_crashes() {
    let mut setup = setup(&[0, 0, 0], 1, &[1, 1, 1], &[1, 1, 1]);
    setup.crashes = vec![0, 1, 2];
    check("3 servers, 1 page, a crash of any", setup);
}

#[test]
fn a_server_crashes_with_two_pages() {
    let mut setup = setup(&[0, 0, 1], 2, &[0, 0, 1], &[1, 1, 1]);
    setup.crashes = vec![0];
    check("3 servers, 2 pages, a crash of the first", setup);
}

#[test]
fn a_server_crashes_whose_kernels_are_apart() {
    let mut setup = setup(&[0, 0], 1, &[1, 1], &[1, 1]);
    setup.world.near = false;
    setup.page_outs = 1;
    setup.crashes = vec![0, 1];
    check("2 servers, 1 page, kernels apart, a crash", setup);
}

/// The check can fail: with the paper's rule, that an invalidation is ignored in WriteWait,
/// a kernel reads an old version beside a writer.
#[test]
fn the_papers_rule_for_invalidations_is_found_to_fail() {
    let mut setup = setup(&[0, 0, 0], 1, &[1, 1, 1], &[1, 1, 1]);
    setup.world.as_the_paper = true;
    let checker = setup
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let path = checker.discovery("coherent, and every fault is answered");
    let last = path.expect("found").last_state().clone();
    let broken = last.world.broken.expect("why");
    assert!(broken.contains("a page has a writer and"), "{broken}");
}
