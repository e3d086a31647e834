//! Three machines and two pages; two machines and four, where pages are asked for ahead.

use super::check::{KEPT, Whole};
use super::machine::Wrong;
use super::mutant::{Flaw, Flawed};
use super::server::Server;
use super::world::Setup;
use crate::dsm::message::ServerId;
use crate::dsm::scheduler::distributed::Distributed;
use crate::dsm::scheduler::multi::Multi;
use crate::dsm::scheduler::options::Options;
use crate::dsm::scheduler::simple::Simple;
use crate::dsm::scheduler::testing::model::{ANSWERED, CURRENT, ONE_WRITER, SENSE};
use crate::dsm::scheduler::testing::mutant::{Deaf, Eager, Hasty};

/// Three machines, two pages, and so many touches; nothing fails.
fn small(accesses: u8) -> Setup {
    Setup {
        pages: 2,
        together: vec![1; 3],
        ahead: 0,
        accesses,
        threads: 1,
        evictions: 0,
        crashes: 0,
        cuts: 0,
        breaks: 0,
        mortal: Vec::new(),
        holds: false,
        near: false,
        late: false,
        alike: true,
        wrong: Wrong::Nothing,
    }
}

fn simple() -> Vec<Simple<u8>> {
    vec![Simple::new(Options::new(2))]
}

fn multi() -> Vec<Multi<u8>> {
    vec![Multi::new(Options::new(2))]
}

/// A server for each machine; of whom each is a replica.
fn distributed(of: [u64; 3]) -> Vec<Distributed<u8>> {
    let servers = of.into_iter().enumerate();
    let server = |(me, of)| Distributed::replica(ServerId(me as u64), ServerId(of), 2);
    servers.map(server).collect()
}

fn check<S: Server>(name: &str, servers: Vec<S>, setup: Setup) {
    Whole { servers, setup }.check(name);
}

/// The same with a server for each machine, which is near.
fn joined(accesses: u8) -> Setup {
    Setup {
        near: true,
        alike: false,
        ..small(accesses)
    }
}

/// One machine crashes, and one session breaks.
fn with_losses(setup: Setup) -> Setup {
    Setup {
        crashes: 1,
        cuts: 1,
        ..setup
    }
}

/// One machine's page is as large as two of the scheduler.
fn of_two_sizes(setup: Setup) -> Setup {
    Setup {
        together: vec![1, 1, 2],
        ..setup
    }
}

#[test]
fn simple_is_right_in_all_orders() {
    let losses = with_losses(small(3));
    check("simple, a crash and a lost session", simple(), losses);
}

#[test]
fn multi_is_right_in_all_orders() {
    let losses = with_losses(of_two_sizes(small(2)));
    check("multi, a crash and a lost session", multi(), losses);
}

#[test]
fn distributed_is_right_in_all_orders() {
    let losses = Setup {
        mortal: vec![0, 1, 2],
        cuts: 1,
        ..joined(2)
    };
    let name = "distributed, a server's crash and a lost session";
    check(name, distributed([0, 0, 0]), losses);
    let breaks = Setup {
        mortal: vec![0, 1],
        breaks: 1,
        ..joined(2)
    };
    let name = "distributed, a server's crash and a lost wire";
    check(name, distributed([0, 0, 0]), breaks);
}

/// Two machines, and pages that are asked for ahead: the third after touches of the first and
/// second, and the fourth after that, which is not the mark of its window.
fn ahead(accesses: u8) -> Setup {
    Setup {
        pages: 4,
        together: vec![1; 2],
        ahead: 2,
        ..small(accesses)
    }
}

fn simple_of_four() -> Vec<Simple<u8>> {
    vec![Simple::new(Options::new(4))]
}

fn multi_of_four() -> Vec<Multi<u8>> {
    vec![Multi::new(Options::new(4))]
}

#[test]
fn pages_ahead_are_right_in_all_orders() {
    check("simple, pages ahead", simple_of_four(), ahead(4));
    check("multi, pages ahead", multi_of_four(), ahead(4));
}

#[test]
#[ignore = "takes minutes; meant for an optimised build"]
fn pages_ahead_are_right_in_more_orders() {
    let cut = || Setup {
        cuts: 1,
        ..ahead(4)
    };
    check(
        "simple, pages ahead, a lost session",
        simple_of_four(),
        cut(),
    );
    check("multi, pages ahead, a lost session", multi_of_four(), cut());
    let crash = || Setup {
        crashes: 1,
        ..ahead(4)
    };
    check("multi, pages ahead, a crash", multi_of_four(), crash());
    let holds = Setup {
        holds: true,
        ..ahead(4)
    };
    check("multi, pages ahead, pages are kept", multi_of_four(), holds);
    let evicts = Setup {
        evictions: 1,
        ..ahead(4)
    };
    check("multi, pages ahead, a page-out", multi_of_four(), evicts);
    check(
        "multi, pages ahead, more touches",
        multi_of_four(),
        ahead(5),
    );
}

/// No order of steps goes round in a circle.
#[test]
fn all_orders_end() {
    let (servers, setup) = (simple(), with_losses(small(2)));
    Whole { servers, setup }.ends("simple, a crash and a lost session");
    let setup = Setup {
        cuts: 1,
        ..of_two_sizes(small(2))
    };
    let servers = multi();
    Whole { servers, setup }.ends("multi, a lost session");
    let setup = Setup {
        mortal: vec![0, 1, 2],
        ..joined(2)
    };
    let servers = distributed([0, 0, 1]);
    Whole { servers, setup }.ends("distributed, a server's crash");
}

/// Checks that one of these properties is violated.
fn finds<S: Server>(what: &str, properties: &[&str], servers: Vec<S>, setup: Setup) {
    let (names, steps) = Whole { servers, setup }.violated();
    println!("{what}: {names:?}, after {} steps", steps.len());
    let is_expected = names.iter().any(|name| properties.contains(name));
    assert!(is_expected, "{what}: {names:?}, {steps:?}");
}

#[test]
fn machines_that_are_wrong_are_found() {
    let wrongs: [(_, &[&str], _); 4] = [
        (Wrong::KeepsMemory, &[ONE_WRITER, CURRENT, SENSE], 1),
        (Wrong::KeepsWrites, &[CURRENT, KEPT], 0),
        (Wrong::ForgetsWaiters, &[ANSWERED], 1),
        (Wrong::AnswersFirst, &[ONE_WRITER, CURRENT], 0),
    ];
    for (wrong, property, cuts) in wrongs {
        let with = |setup| Setup {
            wrong,
            cuts,
            ..setup
        };
        let name = |server| format!("{server}, a machine that {wrong:?}");
        finds(&name("simple"), property, simple(), with(small(3)));
        let larger = with(of_two_sizes(small(3)));
        finds(&name("multi"), property, multi(), larger);
        let servers = distributed([0, 0, 0]);
        finds(&name("distributed"), property, servers, with(joined(3)));
    }
}

#[test]
fn servers_that_are_wrong_are_found() {
    let two = [ONE_WRITER, CURRENT];
    let hasty = vec![Hasty::new(Simple::new(Options::new(2)))];
    finds("simple, hasty", &two, hasty, small(3));
    let hasty = vec![Hasty::new(Multi::new(Options::new(2)))];
    finds("multi, hasty", &two, hasty, small(3));
    let crash = || Setup {
        crashes: 1,
        ..small(3)
    };
    let deaf = vec![Deaf(Simple::new(Options::new(2)))];
    finds("simple, deaf", &[ANSWERED], deaf, crash());
    let deaf = vec![Deaf(Multi::new(Options::new(2)))];
    finds("multi, deaf", &[ANSWERED], deaf, crash());
    let evicts = || Setup {
        pages: 1,
        together: vec![1; 2],
        evictions: 1,
        ..small(4)
    };
    let either = [ONE_WRITER, CURRENT, SENSE];
    let eager = vec![Eager(Simple::new(Options::new(1)))];
    finds("simple, eager", &either, eager, evicts());
    let eager = vec![Eager(Multi::new(Options::new(1)))];
    finds("multi, eager", &either, eager, evicts());
}

#[test]
fn servers_with_peer_servers_that_are_wrong_are_found() {
    let anything = [ONE_WRITER, CURRENT, SENSE, ANSWERED];
    let flaws: [(_, &[&str]); 4] = [
        (Flaw::AsThePaper, &[ONE_WRITER, CURRENT]),
        (Flaw::Timeless, &anything),
        (Flaw::Deaf, &[ANSWERED]),
        (Flaw::Stays, &[ANSWERED, SENSE]),
    ];
    for (flaw, property) in flaws {
        let servers = distributed([0, 0, 0]).into_iter();
        let servers = servers.map(|server| Flawed { server, flaw }).collect();
        let setup = Setup {
            breaks: u8::from(matches!(flaw, Flaw::Timeless | Flaw::Stays)),
            cuts: u8::from(flaw == Flaw::Deaf),
            ..joined(if flaw == Flaw::AsThePaper { 3 } else { 2 })
        };
        let name = format!("distributed, {flaw:?}");
        finds(&name, property, servers, setup);
    }
}

/// More in an optimised build, where sessions also bring late what was under way.
#[test]
#[ignore = "takes minutes; meant for an optimised build"]
fn simple_is_right_in_more_orders() {
    let losses = with_losses(small(3));
    let late = Setup {
        late: true,
        ..losses.clone()
    };
    check("simple, a crash and a lost session, late", simple(), late);
    let holds = Setup {
        holds: true,
        ..losses.clone()
    };
    check("simple, the same, pages are kept", simple(), holds);
    let evicts = Setup {
        evictions: 1,
        ..losses.clone()
    };
    check("simple, the same, and a page-out", simple(), evicts);
    let threads = Setup {
        threads: 2,
        ..losses.clone()
    };
    check("simple, the same, two threads", simple(), threads);
    let crash = Setup {
        crashes: 1,
        ..small(4)
    };
    check("simple, a crash", simple(), crash);
    let cut = Setup {
        cuts: 1,
        ..small(4)
    };
    check("simple, a lost session", simple(), cut);
    let (servers, setup) = (simple(), losses);
    Whole { servers, setup }.ends("simple, a crash and a lost session");
}

#[test]
#[ignore = "takes minutes; meant for an optimised build"]
fn multi_is_right_in_more_orders() {
    let losses = with_losses(of_two_sizes(small(3)));
    check("multi, a crash and a lost session", multi(), losses.clone());
    let late = Setup {
        late: true,
        ..with_losses(of_two_sizes(small(2)))
    };
    check("multi, fewer touches, late", multi(), late);
    let holds = Setup {
        holds: true,
        ..losses.clone()
    };
    check("multi, the same, pages are kept", multi(), holds);
    let (servers, setup) = (multi(), losses);
    Whole { servers, setup }.ends("multi, a crash and a lost session");
}

#[test]
#[ignore = "takes many minutes and much memory; meant for an optimised build"]
fn multi_is_right_in_even_more_orders() {
    let late = Setup {
        late: true,
        ..with_losses(of_two_sizes(small(3)))
    };
    check("multi, a crash and a lost session, late", multi(), late);
}

#[test]
#[ignore = "takes minutes; meant for an optimised build"]
fn distributed_is_right_in_more_orders() {
    let mortal = |setup| Setup {
        mortal: vec![0, 1, 2],
        ..setup
    };
    let cut = mortal(Setup {
        cuts: 1,
        ..joined(3)
    });
    let name = "distributed, a server's crash and a lost session";
    check(name, distributed([0, 0, 0]), cut);
    let wire = Setup {
        breaks: 1,
        ..joined(3)
    };
    check("distributed, a lost wire", distributed([0, 0, 0]), wire);
    let broken = mortal(Setup {
        breaks: 1,
        ..joined(2)
    });
    let name = "distributed, a server's crash and a lost wire";
    check(name, distributed([0, 0, 0]), broken.clone());
    let name = "distributed in a row, a server's crash and a lost wire";
    check(name, distributed([0, 0, 1]), broken.clone());
    let apart = mortal(Setup {
        cuts: 1,
        near: false,
        late: true,
        ..joined(2)
    });
    let name = "distributed, machines apart, a server's crash and a lost session";
    check(name, distributed([0, 0, 0]), apart);
    let (servers, setup) = (distributed([0, 0, 0]), broken);
    Whole { servers, setup }.ends("distributed, a server's crash and a lost wire");
}

#[test]
#[ignore = "takes minutes; meant for an optimised build"]
fn distributed_is_right_in_even_more_orders() {
    let broken = Setup {
        mortal: vec![0, 1, 2],
        breaks: 1,
        ..joined(3)
    };
    let name = "distributed, a server's crash and a lost wire, three touches";
    check(name, distributed([0, 0, 0]), broken);
}

#[test]
#[ignore = "takes many minutes and much memory; meant for an optimised build"]
fn distributed_is_right_with_late_messages_in_even_more_orders() {
    let apart = Setup {
        mortal: vec![0, 1, 2],
        cuts: 1,
        near: false,
        late: true,
        ..joined(3)
    };
    let name = "distributed, machines apart, a server's crash, a lost session, late, three touches";
    check(name, distributed([0, 0, 0]), apart);
}
