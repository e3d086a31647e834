//! The same with three servers that share the object, each with a program of its own. The
//! first program's link can be disturbed, and the links between the servers; the other
//! programs use Unix sockets. The first server has the directory: without it nobody goes on.

use std::os::unix::process::ExitStatusExt;
use std::thread;
use std::time::Duration;

use quire_dsm::wire::control::SchedulerKind;
use rustix::process::Signal;

use super::proxy::Harm;
use super::{
    Act, Plan, Scene, WAYS, a_link_breaks_and_is_made_anew,
    a_program_is_stopped_for_longer_than_its_lease, assert_all_well, assert_fail, each, harmed,
    held, nothing_happens, signal_to,
};

/// Long enough that a busy machine does not end leases of servers.
const LEASE: Duration = Duration::from_secs(3);

/// A way out of the third server, and into it.
const OUT: [(usize, usize); 2] = [(2, 0), (2, 1)];
const IN: [(usize, usize); 2] = [(0, 2), (1, 2)];
const BOTH: [(usize, usize); 4] = [OUT[0], OUT[1], IN[0], IN[1]];

fn plan() -> Plan {
    Plan {
        scheduler: SchedulerKind::Distributed,
        servers: 3,
        lease: LEASE,
        on_machine: true,
        shares: false,
        reconnect: Duration::from_secs(20),
        hopeless: &[],
    }
}

fn a_program_is_killed() {
    let scene = Scene::planned(&plan());
    scene.when_it_has_all(1, |it| it.signal(1, Signal::KILL));
    scene.go_on(&[0, 2]);
    let (ends, _) = scene.finish(&[1]);
    assert_eq!(ends[1].signal(), Some(9));
    assert!(ends[0].success() && ends[2].success(), "{ends:?}");
}

#[test]
fn nothing_happens_or_a_program_is_killed_or_stopped() {
    let acts: [Act<'_>; 3] = [&|| nothing_happens(&plan()), &a_program_is_killed, &|| {
        a_program_is_stopped_for_longer_than_its_lease(&plan())
    }];
    each(acts, |act| act());
}

/// Its program fails with SIGBUS; the others make a view without it.
fn a_server_is_killed() {
    let mut scene = Scene::planned(&Plan {
        hopeless: &[2],
        ..plan()
    });
    scene.when_it_has_all(2, |it| signal_to(&it.servers[2], Signal::KILL));
    assert_fail(&mut scene, &[2]);
    scene.go_on(&[0, 1]);
    let (ends, _) = scene.finish(&[2]);
    assert_all_well(&ends[..2]);
}

/// The directory is gone with it: all programs fail when the leases of their servers are
/// over. None hangs, and none reads what may be old.
fn the_first_server_is_killed() {
    let mut scene = Scene::planned(&Plan {
        hopeless: &[0, 1, 2],
        ..plan()
    });
    scene.when_it_has_all(2, |it| signal_to(&it.servers[0], Signal::KILL));
    assert_fail(&mut scene, &[0, 1, 2]);
    scene.finish(&[0, 1, 2]);
}

/// The others go on without it, and it starts anew, with its program.
fn a_server_is_stopped_for_longer_than_its_lease() {
    let scene = Scene::planned(&Plan {
        reconnect: Duration::from_secs(60),
        ..plan()
    });
    scene.when_it_has_all(2, |it| signal_to(&it.servers[2], Signal::STOP));
    thread::sleep(LEASE * 3 / 2);
    scene.go_on(&[0, 1]);
    signal_to(&scene.servers[2], Signal::CONT);
    scene.go_on(&[0, 1, 2]);
    assert_all_well(&scene.finish(&[2]).0);
}

#[test]
fn servers_are_killed_or_stopped() {
    let acts: [Act<'_>; 3] = [
        &a_server_is_killed,
        &the_first_server_is_killed,
        &a_server_is_stopped_for_longer_than_its_lease,
    ];
    each(acts, |act| act());
}

#[test]
fn a_link_is_cut_and_goes_on() {
    each(WAYS, |way| held(&plan(), way));
}

#[test]
fn links_break_and_bytes_are_lost_and_spoilt() {
    let plan = plan();
    let acts: [Act<'_>; 3] = [
        &|| a_link_breaks_and_is_made_anew(&plan),
        &|| harmed(&plan, Harm::Lose),
        &|| harmed(&plan, Harm::Spoil),
    ];
    each(acts, |act| act());
}

/// Nothing that the third server says arrives, or nothing that is said to it, or both, for
/// longer than its lease: it has stopped before the others go on, and starts anew when it
/// reaches them again. What was late does not count.
#[test]
fn a_server_is_cut_off_and_comes_back() {
    each([&OUT[..], &IN, &BOTH], |ways| {
        let scene = Scene::planned(&Plan {
            reconnect: Duration::from_secs(60),
            ..plan()
        });
        scene.when_it_has_all(2, |it| it.crossing.hold(ways));
        thread::sleep(LEASE * 3 / 2);
        scene.go_on(&[0, 1]);
        scene.crossing.hold(&[]);
        scene.go_on(&[0, 1, 2]);
        assert_all_well(&scene.finish(&[2]).0);
    });
}

/// Its program fails, be it one with pages of its own or one that shares the server's.
fn a_server_is_cut_off_for_good(shares: bool) {
    let mut scene = Scene::planned(&Plan {
        shares,
        hopeless: &[2],
        ..plan()
    });
    scene.when_it_has_all(2, |it| it.crossing.hold(&BOTH));
    assert_fail(&mut scene, &[2]);
    scene.go_on(&[0, 1]);
    let (ends, _) = scene.finish(&[2]);
    assert_all_well(&ends[..2]);
}

/// Two servers that do not reach each other, but the directory: both live, so nothing is lost
/// when they reach each other again.
fn two_servers_lose_each_other() {
    let scene = Scene::planned(&plan());
    scene.crossing.hold(&[(1, 2), (2, 1)]);
    thread::sleep(LEASE * 3 / 2);
    scene.crossing.hold(&[]);
    scene.go_on(&[0, 1, 2]);
    assert_all_well(&scene.finish(&[]).0);
}

/// All links between servers break, again and again. Each time costs a view, and no more.
fn links_of_servers_break() {
    let scene = Scene::planned(&plan());
    for _ in 0..3 {
        assert!(scene.crossing.cut() > 1, "no links were there");
        thread::sleep(Duration::from_millis(500));
    }
    scene.go_on(&[0, 1, 2]);
    assert_all_well(&scene.finish(&[]).0);
}

#[test]
fn links_between_servers_break_and_are_cut_for_good() {
    let acts: [Act<'_>; 4] = [
        &|| a_server_is_cut_off_for_good(false),
        &|| a_server_is_cut_off_for_good(true),
        &two_servers_lose_each_other,
        &links_of_servers_break,
    ];
    each(acts, |act| act());
}
