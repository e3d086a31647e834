//! The same with three servers that share the object, each with a program of its own. The
//! first program's link can be disturbed, and the links between the servers; the other
//! programs use Unix sockets. The first server has the directory, and without it nobody goes
//! on, or all have a copy of it.

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
        copies: false,
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

/// All have a copy of the directory.
fn with_copies() -> Plan {
    Plan {
        copies: true,
        reconnect: Duration::from_secs(60),
        ..plan()
    }
}

/// Its program fails, and the other two go on, with the directory.
fn one_of_the_copies_is_killed(server: usize) {
    let hopeless: &[usize] = [&[0], &[1], &[2]][server];
    let mut scene = Scene::planned(&Plan {
        hopeless,
        ..with_copies()
    });
    let who = server as u64;
    scene.when_it_has_all(who, |it| signal_to(&it.servers[server], Signal::KILL));
    assert_fail(&mut scene, hopeless);
    scene.go_on(&[(who + 1) % 3, (who + 2) % 3]);
    let (mut ends, _) = scene.finish(&[who]);
    ends.remove(server);
    assert_all_well(&ends);
}

/// The others go on without it, and it starts anew, with its program.
fn one_of_the_copies_is_away(server: usize, goes: fn(&Scene, usize), comes: fn(&Scene, usize)) {
    let scene = Scene::planned(&with_copies());
    let who = server as u64;
    scene.when_it_has_all(who, |it| goes(it, server));
    thread::sleep(LEASE * 3 / 2);
    scene.go_on(&[(who + 1) % 3, (who + 2) % 3]);
    comes(&scene, server);
    scene.go_on(&[0, 1, 2]);
    assert_all_well(&scene.finish(&[who]).0);
}

#[test]
fn any_server_may_be_killed_where_all_have_copies() {
    each([0, 1, 2], one_of_the_copies_is_killed);
}

#[test]
fn any_server_may_be_away_where_all_have_copies() {
    let stopped = |server| {
        one_of_the_copies_is_away(
            server,
            |scene, server| signal_to(&scene.servers[server], Signal::STOP),
            |scene, server| signal_to(&scene.servers[server], Signal::CONT),
        );
    };
    let cut_off = |server| {
        one_of_the_copies_is_away(
            server,
            |scene, server| {
                let others = [(server + 1) % 3, (server + 2) % 3];
                let ways = others.map(|other| [(server, other), (other, server)]);
                scene.crossing.hold(&ways.concat());
            },
            |scene, _| scene.crossing.hold(&[]),
        );
    };
    let acts: [Act<'_>; 3] = [&|| stopped(0), &|| cut_off(0), &|| cut_off(1)];
    each(acts, |act| act());
}

/// All links between servers break, and with them those that copies speak over.
#[test]
fn links_break_where_all_have_copies() {
    let scene = Scene::planned(&with_copies());
    for _ in 0..5 {
        assert!(scene.crossing.cut() > 1, "no links were there");
        thread::sleep(Duration::from_millis(500));
    }
    scene.go_on(&[0, 1, 2]);
    assert_all_well(&scene.finish(&[]).0);
}
