//! Long random schedules with more servers, kernels and pages than a model checker can
//! exhaust: the same checks after every step.

use super::world::World;
use crate::dsm::message::Access;
use proptest::prelude::*;

/// What a world is made of.
#[derive(Clone, Debug)]
struct Shape {
    /// Of whom each server is a replica; the first is the primary.
    of: Vec<usize>,
    kernels: usize,
    pages: usize,
    near: bool,
    eager: bool,
    /// Of 256 steps, how many are faults; the others mostly bring messages.
    faults: u32,
    /// Of 256 faults, how many are to write.
    writes: u32,
}

fn shape(servers: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Shape> {
    let of = servers.prop_flat_map(|servers| {
        let each: Vec<_> = (0..servers)
            .map(|server| 0..server.max(1))
            .collect::<Vec<_>>();
        each
    });
    let traits = (1..=3usize, any::<bool>(), any::<bool>());
    (of, 1..=2usize, traits, 8..128u32, 16..=256u32).prop_map(
        |(of, each, (pages, near, eager), faults, writes)| Shape {
            kernels: of.len() * each,
            of,
            pages,
            near,
            eager,
            faults,
            writes,
        },
    )
}

/// Numbers that look random, from a seed: a schedule of thousands of steps needs many.
pub struct Dice(pub u64);

impl Dice {
    /// A number below `sides`.
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % sides
    }
}

/// What may go wrong in a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Losses {
    Nothing,
    Kernels,
    Servers,
    /// All but the first server, which keeps what was given back.
    AllButTheHome,
    /// None: servers end in order.
    Endings,
}

fn run(shape: &Shape, seed: u64, steps: usize, losses: Losses) -> World {
    let mut world = World::new(&shape.of, shape.kernels, shape.pages);
    (world.near, world.eager) = (shape.near, shape.eager);
    world.is_orderly = losses == Losses::Endings;
    let first = usize::from(losses == Losses::AllButTheHome);
    if losses == Losses::AllButTheHome {
        world.keep();
    }
    let mut dice = Dice(seed);
    for _ in 0..steps {
        if world.broken.is_some() {
            break;
        }
        step(&mut world, shape, &mut dice);
        if losses == Losses::Kernels && dice.roll(64) == 0 {
            world.lose_kernel(dice.roll(shape.kernels));
        }
        if losses == Losses::Endings {
            end_servers(&mut world, &mut dice);
        }
        if matches!(losses, Losses::Servers | Losses::AllButTheHome) {
            lose_servers(&mut world, &mut dice, first);
            let kernel = dice.roll(shape.kernels);
            if dice.roll(64) == 0 && world.has_written_nothing(kernel) {
                world.lose_kernel(kernel);
            }
        }
    }
    hear_of_views(&mut world);
    world.drain();
    if losses == Losses::Endings {
        all_end(&mut world, &mut dice);
    }
    world
}

fn hear_of_views(world: &mut World) {
    for server in 0..world.servers.len() {
        while world.is_behind(server) {
            world.new_view(server);
        }
    }
}

/// All servers that have begun to end do, and the others have all that was ever written.
fn all_end(world: &mut World, dice: &mut Dice) {
    for _ in 0..100 * world.servers.len() {
        let ending: Vec<usize> = world.ending.keys().copied().collect();
        for server in ending {
            world.go_on_ending(server, dice.roll(world.servers.len()));
        }
        hear_of_views(world);
        world.drain();
    }
    let stays = world.ending.keys().find(|it| world.servers[**it].is_some());
    if let Some(stays) = stays {
        world.break_with(format!("server {stays} cannot end"));
    }
    for page in 0..world.latest.len() {
        for kernel in 0..world.kernels.len() {
            if world.would_fault(kernel, page, Access::Read) {
                world.fault(kernel, page, Access::Read);
                world.drain();
            }
        }
    }
}

/// Now and then a server begins to end, and those that do go on.
fn end_servers(world: &mut World, dice: &mut Dice) {
    if dice.roll(80) == 0 {
        world.end(dice.roll(world.servers.len()));
    }
    if dice.roll(4) == 0 {
        let server = dice.roll(world.servers.len());
        world.go_on_ending(server, dice.roll(world.servers.len()));
    }
    if dice.roll(8) == 0 {
        hear_of_a_view(world, dice);
    }
}

fn step(world: &mut World, shape: &Shape, dice: &mut Dice) {
    let (kernel, page) = (dice.roll(shape.kernels), dice.roll(shape.pages));
    if dice.roll(256) < shape.faults as usize {
        let access = match dice.roll(256) < shape.writes as usize {
            true => Access::Write,
            false => Access::Read,
        };
        if world.would_fault(kernel, page, access) {
            world.fault(kernel, page, access);
        }
        return;
    }
    match dice.roll(32) {
        0 => world.page_out(kernel, page),
        1 => world.forget(kernel, page),
        2..=4 if world.kernels[kernel][page].access == Some(Access::Write) => {
            world.write(kernel, page);
        }
        _ => {
            let busy = world.busy();
            if !busy.is_empty() {
                world.deliver(busy[dice.roll(busy.len())]);
            }
        }
    }
}

/// Now and then a server from `first` on crashes, as long as one is left; the others hear of
/// new views one by one.
fn lose_servers(world: &mut World, dice: &mut Dice, first: usize) {
    if dice.roll(400) == 0 && world.alive().len() > 1 {
        world.crash(first + dice.roll(world.servers.len() - first));
    }
    hear_of_a_view(world, dice);
}

fn hear_of_a_view(world: &mut World, dice: &mut Dice) {
    let behind: Vec<usize> = (0..world.servers.len())
        .filter(|&server| world.is_behind(server))
        .collect();
    if !behind.is_empty() && dice.roll(8) == 0 {
        world.new_view(behind[dice.roll(behind.len())]);
    }
}

fn outcome(world: &World) -> Result<(), String> {
    world.broken.clone().map_or(Ok(()), Err)
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn many_servers_stay_coherent(shape in shape(2..=9), seed: u64) {
        let world = run(&shape, seed, 3000, Losses::Nothing);
        prop_assert_eq!(outcome(&world), Ok(()));
    }

    #[test]
    fn kernels_may_be_lost(shape in shape(2..=6), seed: u64) {
        let world = run(&shape, seed, 2000, Losses::Kernels);
        prop_assert_eq!(outcome(&world), Ok(()));
    }

    #[test]
    fn servers_may_be_lost(shape in shape(2..=7), seed: u64) {
        let world = run(&shape, seed, 3000, Losses::Servers);
        prop_assert_eq!(outcome(&world), Ok(()));
    }

    /// Servers that end in order take no update with them, whoever else ends meanwhile.
    #[test]
    fn servers_may_end(shape in shape(2..=7), seed: u64) {
        let world = run(&shape, seed, 3000, Losses::Endings);
        prop_assert_eq!(outcome(&world), Ok(()));
    }

    /// What was given back, and the home server has, is not lost with whoever owned the page.
    #[test]
    fn what_is_kept_stays(shape in shape(2..=6), seed: u64) {
        let world = run(&shape, seed, 3000, Losses::AllButTheHome);
        prop_assert_eq!(outcome(&world), Ok(()));
    }
}
