//! Pages that are brought by who had written to them, when their owner is lost.

use super::views::{enter_all, write};
use super::world::World;
use crate::dsm::message::{Access, Client, KernelId, PageNumber, ServerId};
use crate::dsm::scheduler::distributed::{Brought, Decided, Owner, Version};
use crate::dsm::scheduler::{Action, Scheduler};

const PAGE: PageNumber = PageNumber(0);

/// Another view of those who are left.
fn view_again(world: &mut World) {
    let left = (0..world.servers.len() as u64).map(ServerId);
    let left = left.filter(|it| world.servers[it.0 as usize].is_some());
    world.views.push(left.collect());
    enter_all(world);
}

fn bring(world: &mut World, server: usize, version: u64, value: u32) -> Brought {
    let mut actions: Vec<Action<u32>> = Vec::new();
    let server = world.servers[server].as_mut().expect("alive");
    server.bring(PAGE, (Version(version), Some(value)), &mut actions)
}

fn decided(world: &mut World, server: usize) -> Vec<(u64, bool)> {
    let server = world.servers[server].as_mut().expect("alive");
    let all = server.decided().into_iter();
    all.map(
        |Decided {
             version, is_taken, ..
         }| (version.0, is_taken),
    )
    .collect()
}

/// Three servers; each kernel has written once, the second one last, and its server is lost.
fn after_a_loss() -> World {
    let mut world = World::new(&[0, 0, 0], 3, 1);
    for kernel in [0, 2, 1] {
        write(&mut world, kernel);
    }
    world.crash(1);
    world
}

#[test]
fn what_is_brought_before_the_view_is_what_the_page_holds_then() {
    let mut world = after_a_loss();
    assert_eq!(bring(&mut world, 0, 9, 3), Brought::Waits);
    assert_eq!(decided(&mut world, 0), []);
    enter_all(&mut world);
    assert_eq!(decided(&mut world, 0), [(9, true)]);
    let server = world.servers[2].as_ref().expect("alive");
    let stat = server.stat(PAGE).expect("known");
    assert_eq!(stat.owner, Owner::Server(ServerId(0)));
    world.latest[0] = 3;
    write(&mut world, 2);
    assert_eq!(world.latest[0], 4);
}

#[test]
fn of_several_versions_the_latest_counts() {
    let mut world = after_a_loss();
    assert_eq!(bring(&mut world, 2, 8, 8), Brought::Waits);
    assert_eq!(bring(&mut world, 0, 7, 7), Brought::Waits);
    assert_eq!(bring(&mut world, 0, 9, 9), Brought::Waits);
    assert_eq!(bring(&mut world, 0, 8, 8), Brought::Refused);
    enter_all(&mut world);
    assert_eq!(decided(&mut world, 0), [(7, false), (9, true)]);
    assert_eq!(decided(&mut world, 2), [(8, false)]);
    world.latest[0] = 9;
    write(&mut world, 2);
}

/// What has come after the view, and before anybody was given the page, is taken in the next.
#[test]
fn what_nobody_was_given_is_replaced_later_too() {
    let mut world = after_a_loss();
    enter_all(&mut world);
    assert_eq!(bring(&mut world, 0, 9, 3), Brought::Waits);
    view_again(&mut world);
    assert_eq!(decided(&mut world, 0), [(9, true)]);
    world.latest[0] = 3;
    write(&mut world, 2);
}

#[test]
fn nothing_replaces_what_somebody_was_given_since() {
    for access in [Access::Read, Access::Write] {
        let mut world = after_a_loss();
        enter_all(&mut world);
        world.fault(0, 0, access);
        world.drain();
        let latest = world.latest[0];
        let brought = bring(&mut world, 0, 9, 70);
        let is_elsewhere = access == Access::Read;
        assert_eq!(brought == Brought::Waits, is_elsewhere, "{brought:?}");
        view_again(&mut world);
        let refused = is_elsewhere.then_some((9, false));
        assert_eq!(decided(&mut world, 0), Vec::from_iter(refused));
        assert_eq!(world.latest[0], latest);
        write(&mut world, 2);
        assert_eq!(world.latest[0], latest + 1);
    }
}

/// An older version than what is left is none to go back to.
#[test]
fn nothing_older_is_taken() {
    let mut world = after_a_loss();
    assert_eq!(bring(&mut world, 0, 1, 70), Brought::Waits);
    enter_all(&mut world);
    assert_eq!(decided(&mut world, 0), [(1, false)]);
    write(&mut world, 2);
    assert_eq!(world.latest[0], 3);
}

/// A kernel that is gone may bring what it had written to its own server, until somebody is given it.
#[test]
fn an_owner_takes_what_its_lost_kernel_brings() {
    for is_given in [false, true] {
        let mut world = World::new(&[0, 0], 2, 1);
        write(&mut world, 0);
        if is_given {
            write(&mut world, 1);
        }
        let server = world.servers[0].as_mut().expect("alive");
        let mut actions = Vec::new();
        server.gone(Client::Kernel(KernelId(0)), &mut actions);
        let brought = bring(&mut world, 0, 1, 1);
        assert_eq!(brought == Brought::Taken, !is_given, "{brought:?}");
    }
}

/// A page that nobody ever had is taken where it would be loaded.
#[test]
fn a_page_that_nobody_left_knows_is_taken() {
    let mut world = World::new(&[0, 0, 0], 3, 1);
    assert_eq!(bring(&mut world, 0, 5, 6), Brought::Taken);
    world.latest[0] = 6;
    write(&mut world, 1);
    assert_eq!(bring(&mut world, 0, 5, 6), Brought::Waits);
}
