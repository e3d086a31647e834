//! A server that ends, in long random runs of the world: all that kernels wrote and did not
//! lose is with the backer in the end.

use proptest::prelude::*;

use super::model::Checkable;
use super::random::{ENOUGH, holds};
use super::world::{Setup, Step, World};
use crate::dsm::message::PageNumber;
use crate::dsm::scheduler::Recall;

/// Goes where the choices lead. The server begins to end after so many of them.
pub(crate) fn ends<S: Checkable + Recall<u8>>(
    scheduler: S,
    setup: &Setup,
    (choices, after): (&[u16], usize),
) -> Result<(), TestCaseError> {
    let mut world = World::new(scheduler, setup);
    let mut steps = Vec::new();
    let (before, then) = choices.split_at(after.min(choices.len()));
    for choice in before {
        steps.clear();
        world.steps(setup, &mut steps);
        go(&mut world, &steps, usize::from(*choice))?;
    }
    world.server(Recall::recall);
    for choice in then {
        steps.clear();
        world.steps(setup, &mut steps);
        go(&mut world, &steps, usize::from(*choice))?;
    }
    world.calm();
    for turn in 0..ENOUGH {
        steps.clear();
        world.steps(setup, &mut steps);
        steps.retain(|step| !matches!(step, Step::Close(_)));
        if steps.is_empty() {
            break;
        }
        go(&mut world, &steps, turn)?;
    }
    prop_assert!(world.is_quiet(), "it never becomes quiet: {world:?}");
    for page in 0..setup.pages as u64 {
        let owes = world.scheduler.owes(PageNumber(page));
        prop_assert_eq!(owes, None, "page {} is out: {:?}", page, world);
    }
    prop_assert!(world.backer_has_all(), "something is lost: {world:?}");
    Ok(())
}

fn go<S: Checkable>(
    world: &mut World<S>,
    steps: &[Step],
    choice: usize,
) -> Result<(), TestCaseError> {
    if let Some(step) = steps.get(choice % steps.len().max(1)) {
        world.step(*step);
        holds(world, *step)?;
    }
    Ok(())
}
