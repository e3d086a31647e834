//! Single cases of views.

use super::world::World;
use crate::dsm::message::{Access, PageNumber, ServerId};
use crate::dsm::scheduler::Action;
use crate::dsm::scheduler::distributed::{Distributed, Epoch, MissedView, Owner, Version};
use std::collections::BTreeSet;

fn members(of: &[u64]) -> BTreeSet<ServerId> {
    of.iter().map(|&server| ServerId(server)).collect()
}

pub(super) fn enter_all(world: &mut World) {
    for server in 0..world.servers.len() {
        while world.is_behind(server) {
            world.new_view(server);
        }
    }
    world.drain();
    assert_eq!(world.broken, None);
}

pub(super) fn write(world: &mut World, kernel: usize) {
    world.fault(kernel, 0, Access::Write);
    world.drain();
    assert_eq!(world.broken, None);
}

/// The last writer is lost: the page goes back to what was shipped to it.
#[test]
fn the_newest_copy_that_is_left_wins() {
    let mut world = World::new(&[0, 0, 0, 0], 4, 1);
    for kernel in [0, 1, 2, 3] {
        write(&mut world, kernel);
    }
    world.crash(3);
    enter_all(&mut world);
    assert_eq!(world.latest[0], 3);
    let server = world.servers[0].as_ref().expect("alive");
    let stat = server.stat(PageNumber(0)).expect("known");
    assert_eq!(stat.owner, Owner::Server(ServerId(2)));
    write(&mut world, 1);
    assert_eq!(world.latest[0], 4);
}

/// The last writer is lost, and before there is a view without it, a server ends that has read what
/// was written.
#[test]
fn what_was_read_from_a_lost_server_is_handed_over() {
    let mut world = World::new(&[0, 0, 0], 3, 1);
    write(&mut world, 2);
    write(&mut world, 1);
    world.fault(0, 0, Access::Read);
    world.drain();
    assert_eq!(world.kernels[0][0].value, 2);
    // Nobody has heard of that yet.
    world.servers[1] = None;
    world.end(0);
    for _ in 0..2 {
        world.drain();
        world.go_on_ending(0, 2);
    }
    assert!(world.servers[0].is_none(), "it has left");
    enter_all(&mut world);
    world.fault(2, 0, Access::Read);
    world.drain();
    assert_eq!(world.broken, None);
    assert_eq!(world.kernels[2][0].value, 2);
}

/// A page that only the lost server had is loaded again by the one that takes its place.
#[test]
fn a_page_without_any_copy_is_loaded_again() {
    let mut world = World::new(&[0, 0, 0], 3, 1);
    write(&mut world, 0);
    world.crash(0);
    enter_all(&mut world);
    assert_eq!(world.latest[0], 0);
    write(&mut world, 2);
    assert_eq!(world.latest[0], 1);
}

/// A fault that waits for a lost server is asked again.
#[test]
fn a_waiting_kernel_is_served_after_the_view() {
    let mut world = World::new(&[0, 0, 0], 3, 1);
    write(&mut world, 1);
    world.fault(2, 0, Access::Write);
    world.crash(1);
    enter_all(&mut world);
    assert_eq!(world.kernels[2][0].access, Some(Access::Write));
}

/// The writer is left, and keeps its page.
#[test]
fn a_writer_that_is_left_is_not_disturbed() {
    let mut world = World::new(&[0, 0, 0], 3, 1);
    write(&mut world, 2);
    world.crash(0);
    enter_all(&mut world);
    assert_eq!(world.kernels[2][0].access, Some(Access::Write));
    let server = world.servers[2].as_ref().expect("alive");
    let stat = server.stat(PageNumber(0)).expect("known");
    assert_eq!(stat.version, Version(1));
    assert_eq!(server.counters().views, 1);
}

#[test]
fn a_server_that_missed_a_view_cannot_enter_the_next() {
    let mut actions: Vec<Action<u32>> = Vec::new();
    let mut server = Distributed::primary(ServerId(1), 1);
    let missed = server.new_view(Epoch(2), members(&[1, 2]), &mut actions);
    assert_eq!(missed, Err(MissedView));
    let excluded = server.new_view(Epoch(1), members(&[2, 3]), &mut actions);
    assert_eq!(excluded, Err(MissedView));
    assert_eq!((server.epoch(), actions), (Epoch(0), Vec::new()));
}

/// A server joins by a view, although it has not seen those before.
#[test]
fn a_server_joins() {
    let mut world = World::new(&[0, 0, 0], 3, 1);
    write(&mut world, 1);
    let newcomer = world.servers[2].take();
    world.views.push(members(&[0, 1]));
    enter_all(&mut world);
    write(&mut world, 0);
    world.servers[2] = newcomer;
    world.views.push(members(&[0, 1, 2]));
    let mut actions = Vec::new();
    let server = world.servers[2].as_mut().expect("there");
    server
        .new_view(Epoch(2), members(&[0, 1, 2]), &mut actions)
        .expect("it holds nothing");
    world.carry_out(2, actions);
    enter_all(&mut world);
    write(&mut world, 2);
    assert_eq!(world.latest[0], 3);
}
