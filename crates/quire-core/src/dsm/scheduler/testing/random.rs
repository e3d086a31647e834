//! Long random runs of the world, where the checker can only try short ones.

use proptest::prelude::*;

use super::model::Checkable;
use super::world::{Setup, Side, Step, World, pages};
use crate::dsm::message::{Access, Client, FromKernel, KernelId, PageNumber, Pages};
use crate::dsm::scheduler::Scheduler;

/// Steps after which a world of this size is quiet if nobody accesses anything any more.
pub(super) const ENOUGH: usize = 20_000;

/// Six kernels, six pages; each kernel touches ranges of its own page size, in pages.
pub(crate) fn large(sizes: [u32; 6]) -> Setup {
    let ranges = |size: u32| {
        (0..6 / size)
            .map(|at| (u64::from(at * size), size))
            .collect()
    };
    Setup {
        ranges: sizes.into_iter().map(ranges).collect(),
        pages: 6,
        accesses: vec![40; 6],
        threads: 3,
        page_outs: 60,
        crashes: 3,
        ends: 3,
    }
}

/// Goes where the choices lead, checks each world on the way, and then that everybody gets
/// what they wait for when messages are delivered in turn.
pub(crate) fn wander<S: Checkable>(
    scheduler: S,
    setup: &Setup,
    choices: &[u16],
) -> Result<World<S>, TestCaseError> {
    let mut world = World::new(scheduler, setup);
    let mut steps = Vec::new();
    for choice in choices {
        steps.clear();
        world.steps(setup, &mut steps);
        if steps.is_empty() {
            break;
        }
        let step = steps[usize::from(*choice) % steps.len()];
        world.step(step);
        holds(&world, step)?;
    }
    world.calm();
    calm_down(&mut world, setup)?;
    Ok(world)
}

/// Delivers messages in turn until nothing is on its way.
fn calm_down<S: Checkable>(world: &mut World<S>, setup: &Setup) -> Result<(), TestCaseError> {
    let mut steps = Vec::new();
    for turn in 0..ENOUGH {
        steps.clear();
        world.steps(setup, &mut steps);
        steps.retain(|step| !matches!(step, Step::Close(_)));
        if steps.is_empty() {
            prop_assert!(
                !world.somebody_waits(),
                "somebody waits for ever: {world:?}"
            );
            return Ok(());
        }
        let step = steps[turn % steps.len()];
        world.step(step);
        holds(world, step)?;
    }
    Err(TestCaseError::fail("it never becomes quiet"))
}

pub(super) fn holds<S: Checkable>(world: &World<S>, step: Step) -> Result<(), TestCaseError> {
    prop_assert!(world.one_writer_or_readers(), "after {step:?}: {world:?}");
    prop_assert!(world.copies_are_current(), "after {step:?}: {world:?}");
    prop_assert!(world.all_makes_sense(), "after {step:?}: {world:?}");
    Ok(())
}

/// What somebody says who is no honest kernel: mostly about pages that exist.
fn garbage() -> impl Strategy<Value = FromKernel<u8>> {
    let first = prop_oneof![9 => 0..7u64, 1 => any::<u64>()];
    let count = prop_oneof![9 => 1..4u32, 1 => any::<u32>()];
    let pages = (first, count).prop_map(|(first, count)| Pages {
        first: PageNumber(first),
        count,
    });
    let access = prop_oneof![Just(Access::Read), Just(Access::Write)];
    let data = proptest::collection::vec(any::<Option<u8>>(), 0..4);
    (0..20u8, pages, access, data).prop_map(|(kind, pages, access, data)| match kind {
        0..7 => FromKernel::DataRequest { pages, access },
        7..10 => FromKernel::DataUnlock { pages },
        10..13 => FromKernel::DataWrite { pages, data },
        13..19 => FromKernel::LockCompleted { pages },
        _ => FromKernel::Terminate,
    })
}

/// A message of somebody who lies, and how many steps of the honest come before it.
pub(crate) fn lies() -> impl Strategy<Value = Vec<(u16, FromKernel<u8>)>> {
    proptest::collection::vec((any::<u16>(), garbage()), 0..150)
}

/// Among honest kernels one says anything. What makes no sense changes nothing; the honest
/// have one version of each page at any time, and get all that they wait for when the liar
/// is cut off.
pub(crate) fn survives_lies<S: Checkable>(
    scheduler: S,
    setup: &Setup,
    lies: Vec<(u16, FromKernel<u8>)>,
) -> Result<(), TestCaseError> {
    let liar = KernelId(99);
    let mut world = World::new(scheduler, setup);
    let mut steps = Vec::new();
    for (choice, lie) in lies {
        for turn in 0..choice % 7 {
            steps.clear();
            world.steps(setup, &mut steps);
            let choice = usize::from(choice.rotate_left(u32::from(turn)));
            let Some(step) = steps.get(choice % steps.len().max(1)) else {
                continue;
            };
            world.step(*step);
            prop_assert!(world.one_writer_or_readers(), "after {step:?}: {world:?}");
            prop_assert!(world.all_makes_sense(), "after {step:?}: {world:?}");
        }
        let before = world.scheduler.clone();
        let mut outcome = Ok(());
        world.server(|scheduler, actions| {
            outcome = scheduler.kernel_says(liar, lie, actions);
            assert!(
                outcome.is_ok() || actions.is_empty(),
                "nonsense is acted on"
            );
        });
        if outcome.is_err() {
            prop_assert_eq!(&before, &world.scheduler);
        }
    }
    world.server(|scheduler, actions| scheduler.gone(Client::Kernel(liar), actions));
    world.calm();
    for turn in 0..ENOUGH {
        steps.clear();
        world.steps(setup, &mut steps);
        if steps.is_empty() {
            break;
        }
        world.step(steps[turn % steps.len()]);
        prop_assert!(world.one_writer_or_readers() && world.all_makes_sense());
    }
    prop_assert!(world.is_quiet() && !world.somebody_waits());
    prop_assert!(world.links.iter().all(|link| link.side != Side::Dead));
    Ok(())
}

/// Kernels that take turns, as fast as messages travel: each has one program that writes to
/// all of a range, and writes again as soon as it has lost a page of it. After so many
/// faults no more are taken; how many each of them took.
pub(crate) fn hotspot<S: Scheduler<u8>>(
    world: &mut World<S>,
    setup: &Setup,
    faults: u64,
) -> Vec<u64> {
    let mut taken = vec![0; setup.ranges.len()];
    while taken.iter().sum::<u64>() < faults || !world.is_quiet() {
        let goes_on = taken.iter().sum::<u64>() < faults;
        for (at, taken) in taken.iter_mut().enumerate() {
            let range = pages(setup.ranges[at][0]);
            let kernel = &world.kernels[at];
            if goes_on && kernel.wants.is_empty() && !kernel.has(range, Access::Write) {
                let messages = world.kernels[at].fault(range, Access::Write);
                world.link_of(at).up.extend(messages);
                *taken += 1;
            }
        }
        for at in 0..world.links.len() {
            if !world.links[at].up.is_empty() {
                world.step(Step::Up(at));
            }
            world.step(Step::Load);
            world.step(Step::Down(at));
        }
    }
    taken
}
