//! An object that was made anew, and not as it was, while the link of a program was broken: that
//! object ends in the program, with a reason, and its others go on.

use std::time::{Duration, Instant};

use quire_core::units::{Bytes, ObjectOffset};
use quire_dsm::client::{Client, ClientError};
use quire_dsm::link::Address;
use quire_dsm::server::LEASE;
use quire_dsm::wire::control::{Answer, SchedulerKind};

use super::proxy::Proxy;
use super::served::{BOTH, Served, name, object, open};

/// Everything that is waited for ends within this.
const SOON: Duration = Duration::from_secs(60);

/// Tries until it succeeds.
fn comes<R>(what: &str, mut act: impl FnMut() -> Result<R, ClientError>) -> R {
    let end = Instant::now() + SOON;
    loop {
        match act() {
            Ok(done) => return done,
            Err(why) => assert!(Instant::now() < end, "{what}: {why}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A client whose link can be cut, and the way that this goes.
fn far_from(served: &Served) -> (Client, Proxy) {
    let Address::Tcp(server) = served.addresses[0] else {
        panic!("another address");
    };
    let way = Proxy::start(server);
    let far = served.client_with("far", |options| {
        let address: Address = way.address.to_string().parse().expect("an address");
        options.addresses = address.into();
        options.reconnect = Some(SOON);
    });
    (far, way)
}

#[test]
fn an_object_that_was_made_anew_ends_and_others_go_on() {
    let served = Served::start("127.0.0.1:0");
    let (far, way) = far_from(&served);
    let near = served.client("near");
    let make = |text: &str, pages: u64| {
        near.create(object(text, Bytes(pages * 4096), SchedulerKind::Multi))
    };
    make("kept", 4).expect("it is new");
    make("changed", 4).expect("it is new");
    let [kept, changed] = ["kept", "changed"].map(|text| open(&far, text));
    for shared in [&kept, &changed] {
        shared.write_at(ObjectOffset(0), &[7; 8]);
        shared.flush().expect("it is there");
    }
    way.hold(true, true);
    way.cut();
    // As long as the server may believe that it is open it cannot be removed.
    comes("removing", || near.remove(name("changed")));
    make("changed", 9).expect("it is new again");
    way.hold(false, false);
    comes("what is as it was", || {
        kept.write_at(ObjectOffset(8), &[8; 8]);
        kept.flush()
    });
    let why = changed.flush().expect_err("it is another one");
    assert!(matches!(why, ClientError::Changed(_)), "{why}");
    let mut bytes = [0; 8];
    let why = changed.checked_read_at(ObjectOffset(0), &mut bytes);
    assert!(why.is_err());
    // The link stays.
    let made = way.made();
    std::thread::sleep(Duration::from_secs(1));
    kept.write_at(ObjectOffset(16), &[9; 8]);
    kept.flush().expect("it goes on");
    assert_eq!(way.made(), made);
    let mut bytes = [0; 24];
    let there = near.open(name("kept"), BOTH).expect("it is there");
    there.read_at(ObjectOffset(0), &mut bytes);
    assert_eq!(bytes, [[7; 8], [8; 8], [9; 8]].concat()[..]);
    let again = far.open(name("changed"), BOTH).expect("there is one");
    again.read_at(ObjectOffset(8 * 4096), &mut bytes);
    assert_eq!(bytes, [0; 24]);
}

/// What was removed stays for whoever has it and was cut off for longer than its lease, as it would come
/// back. Another object has its name meanwhile.
#[test]
fn what_was_removed_waits_for_whoever_was_cut_off() {
    comes_back_for_what_was_removed(true);
}

/// The same where nothing says so, and the server hears nothing until the lease is over.
#[test]
fn what_was_removed_waits_for_whoever_fell_silent() {
    comes_back_for_what_was_removed(false);
}

fn comes_back_for_what_was_removed(is_cut: bool) {
    let served = Served::start("127.0.0.1:0");
    let (far, way) = far_from(&served);
    let near = served.client("near");
    let grid = |pages: u64| object("grid", Bytes(pages * 4096), SchedulerKind::Multi);
    near.create(grid(4)).expect("it is new");
    let old = open(&far, "grid");
    old.write_at(ObjectOffset(0), &[7; 8]);
    old.flush().expect("it is there");
    near.discard(name("grid")).expect("it is there");
    near.create(grid(4)).expect("the name is free");
    let living = near.open(name("grid"), BOTH).expect("it was made");
    living.write_at(ObjectOffset(0), &[1; 8]);
    way.hold(true, true);
    if is_cut {
        way.cut();
    }
    comes("its lease is over", || {
        match near.statistics(old.exact().clone(), None)? {
            Answer::Statistics {
                inside: Some(inside),
                ..
            } if inside.open == 0 => Ok(()),
            _ => Err(ClientError::Confused),
        }
    });
    std::thread::sleep(LEASE);
    way.hold(false, false);
    let mut bytes = [0; 8];
    comes("it comes back", || {
        old.write_at(ObjectOffset(4096), &[8; 8]);
        old.flush()
    });
    for (offset, value) in [(0, 7), (4096, 8)] {
        old.checked_read_at(ObjectOffset(offset), &mut bytes)
            .expect("it is there");
        assert_eq!(bytes, [value; 8]);
    }
    living.read_at(ObjectOffset(0), &mut bytes);
    assert_eq!(bytes, [1; 8]);
}
