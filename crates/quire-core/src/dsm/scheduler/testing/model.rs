//! The world as a model: the checker tries all orders in which things can happen.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, Model, Property};

use super::world::{Setup, Step, World};
use crate::dsm::scheduler::Scheduler;

/// The world with a scheduler.
pub(crate) struct Checked<S> {
    pub(crate) scheduler: S,
    pub(crate) setup: Setup,
}

/// What a scheduler needs to be checked.
pub(crate) trait Checkable:
    Scheduler<u8> + Clone + Debug + PartialEq + Hash + Send + Sync + 'static
{
}

impl<S: Scheduler<u8> + Clone + Debug + PartialEq + Hash + Send + Sync + 'static> Checkable for S {}

pub(crate) const ONE_WRITER: &str = "one writer or readers";
pub(crate) const CURRENT: &str = "whoever reads, reads what was written last";
pub(crate) const SENSE: &str = "all makes sense";
pub(crate) const ANSWERED: &str = "every fault is answered";

impl<S: Checkable> Model for Checked<S> {
    type State = World<S>;
    type Action = Step;

    fn init_states(&self) -> Vec<World<S>> {
        vec![World::new(self.scheduler.clone(), &self.setup)]
    }

    fn actions(&self, world: &World<S>, steps: &mut Vec<Step>) {
        world.steps(&self.setup, steps);
    }

    fn next_state(&self, world: &World<S>, step: Step) -> Option<World<S>> {
        let mut next = world.clone();
        next.step(step);
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
            Property::always(SENSE, |_: &Self, world: &World<S>| world.all_makes_sense()),
            Property::always(ANSWERED, |_: &Self, world: &World<S>| {
                !world.is_quiet() || !world.somebody_waits()
            }),
            Property::sometimes("all is done", |_: &Self, world: &World<S>| {
                world.is_quiet() && !world.somebody_waits()
            }),
        ]
    }
}

impl<S: Checkable> Checked<S> {
    /// Checks everything, and says how much that was.
    pub(crate) fn check(self, name: &str) {
        let checker = self.checker().spawn_bfs().join();
        println!(
            "{name}: {} different states, {} in all, depth {}",
            checker.unique_state_count(),
            checker.state_count(),
            checker.max_depth()
        );
        checker.assert_properties();
    }

    /// Which of the properties do not hold: the shortest way to each.
    pub(crate) fn violated(self) -> Vec<(&'static str, Vec<Step>)> {
        let always = |name: &str| name != "all is done";
        let checker = self.checker().spawn_bfs().join();
        let found = checker.discoveries().into_iter();
        let found = found.filter(|(name, _)| always(name));
        found
            .map(|(name, path)| (name, path.into_actions()))
            .collect()
    }
}
