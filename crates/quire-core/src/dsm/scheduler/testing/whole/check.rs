//! All orders in which the steps of a world can come, by stateright; and that no such order
//! goes round in a circle.
//!
//! **Every fault is answered** is checked in two parts. In no state in which nothing is due any
//! more does somebody wait. And the graph of all states has no circle: so each order of steps
//! ends, whatever comes first, and ends in such a state. No fairness has to be assumed.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use stateright::{Checker, HasDiscoveries, Model, Property};

use super::server::Server;
use super::world::{Setup, Step, World};
use crate::dsm::scheduler::testing::model::{ANSWERED, CURRENT, ONE_WRITER, SENSE};

pub(super) const KEPT: &str = "what was written last is somewhere";
const DONE: &str = "all is done";

/// Servers, and what may happen to them.
pub(super) struct Whole<S> {
    pub(super) servers: Vec<S>,
    pub(super) setup: Setup,
}

impl<S: Server> Model for Whole<S> {
    type State = World<S>;
    type Action = Step;

    fn init_states(&self) -> Vec<World<S>> {
        vec![World::new(self.servers.clone(), &self.setup)]
    }

    fn actions(&self, world: &World<S>, steps: &mut Vec<Step>) {
        world.steps(&self.setup, steps);
    }

    fn next_state(&self, world: &World<S>, step: Step) -> Option<World<S>> {
        let mut next = world.clone();
        next.step(step, &self.setup);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_WRITER, |_: &Self, world: &World<S>| {
                world.one_writer_or_readers()
            }),
            Property::always(CURRENT, |_: &Self, world: &World<S>| {
                world.copies_are_current()
            }),
            Property::always(SENSE, |_: &Self, world: &World<S>| {
                world.nonsense().is_none()
            }),
            Property::always(ANSWERED, |_: &Self, world: &World<S>| {
                !world.somebody_waits() || !world.is_quiet()
            }),
            Property::always(KEPT, |_: &Self, world: &World<S>| {
                !world.is_quiet() || world.nothing_is_lost()
            }),
            Property::sometimes(DONE, |_: &Self, world: &World<S>| {
                world.is_quiet() && !world.somebody_waits()
            }),
        ]
    }
}

impl<S: Server> Whole<S> {
    /// Checks everything, and says how much that was.
    pub(super) fn check(self, name: &str) {
        let began = std::time::Instant::now();
        let checker = self.checker().threads(2).spawn_bfs().join();
        println!(
            "{name}: {} different states, {} in all, depth {}, {:.1} s",
            checker.unique_state_count(),
            checker.state_count(),
            checker.max_depth(),
            began.elapsed().as_secs_f64(),
        );
        checker.assert_properties();
    }

    /// Which of the properties do not hold, as far as was looked until one was found that does
    /// not, and the shortest way to where it does not.
    pub(super) fn violated(self) -> (Vec<&'static str>, Vec<Step>) {
        let checker = self
            .checker()
            .finish_when(HasDiscoveries::AnyFailures)
            .spawn_bfs()
            .join();
        let mut found = checker.discoveries();
        found.retain(|name, _| *name != DONE);
        let names = found.keys().copied().collect();
        let paths = found.into_values().map(|path| path.into_actions());
        let shortest = paths.min_by_key(Vec::len);
        (names, shortest.unwrap_or_default())
    }

    /// Looks at all states, and says how many there are and how many steps the longest order
    /// of steps has.
    ///
    /// # Panics
    /// When steps lead back to a state that was there before.
    pub(super) fn ends(self, name: &str) {
        let mut known = HashMap::new();
        let mut path: Vec<Visit<S>> = Vec::new();
        for world in self.init_states() {
            path.push(self.visit(world));
        }
        while let Some(last) = path.last_mut() {
            let Some(step) = last.steps.pop() else {
                let (key, length) = (last.key, last.length);
                known.insert(key, Some(length));
                path.pop();
                if let Some(before) = path.last_mut() {
                    before.length = before.length.max(length + 1);
                }
                continue;
            };
            let Some(next) = self.next_state(&last.world, step) else {
                continue;
            };
            match known.get(&key_of(&next)) {
                Some(Some(length)) => last.length = last.length.max(length + 1),
                Some(None) => panic!("{name}: {step:?} leads back to {next:?}"),
                None => {
                    let visit = self.visit(next);
                    known.insert(visit.key, None);
                    path.push(visit);
                }
            }
        }
        let longest = known.values().flatten().max().copied();
        let (states, steps) = (known.len(), longest.unwrap_or(0));
        println!("{name}: no circle in {states} states, at most {steps} steps");
    }

    fn visit(&self, world: World<S>) -> Visit<S> {
        let mut steps = Vec::new();
        self.actions(&world, &mut steps);
        let (key, length) = (key_of(&world), 0);
        Visit {
            key,
            length,
            world,
            steps,
        }
    }
}

/// A state on the way, and what is still to be tried there.
struct Visit<S> {
    key: u64,
    /// The longest way from here that was found.
    length: u32,
    world: World<S>,
    steps: Vec<Step>,
}

fn key_of<S: Hash>(world: &World<S>) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}
