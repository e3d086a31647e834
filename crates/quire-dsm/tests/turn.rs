//! How exactly the event loop keeps a deadline: pages are kept for some ten microseconds.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use quire_dsm::link::Established;
use quire_dsm::link::turn::{Closed, Config, Handler, LinkId, Links, Turn};
use quire_dsm::wire::Control;
use quire_dsm::wire::control::{Hello, MachineCode, PageSize, Reason, Refusal, Role, Welcome};

/// Nothing happens, and something is due.
struct Due(Option<Instant>);

impl Handler for Due {
    fn greeted(&mut self, _: &mut Links, _: LinkId, _: &Established) -> Result<Welcome, Refusal> {
        Err(Refusal {
            reason: Reason::Denied,
            text: "nobody is awaited".into(),
        })
    }

    fn welcomed(&mut self, _: &mut Links, _: LinkId, _: &Welcome) {}

    fn message(&mut self, _: &mut Links, _: LinkId, _: Control, _: Vec<OwnedFd>) {}

    fn closed(&mut self, _: &mut Links, _: LinkId, _: &Closed) {}

    fn deadline(&self) -> Option<Instant> {
        self.0
    }
}

/// How late the loop is at best, for something that is due after so long.
fn lateness(after: Duration) -> Duration {
    let mut turn = Turn::new(Config::new(Hello {
        name: "it".parse().expect("a name"),
        role: Role::Kernel,
        machine: MachineCode(0),
        page_size: PageSize::BASE,
        features: 0,
    }))
    .expect("a loop");
    let once = |_| {
        let due = Instant::now() + after;
        let mut handler = Due(Some(due));
        while Instant::now() < due {
            let turned = turn.once(&mut handler, Duration::from_secs(1));
            turned.expect("the loop goes on");
        }
        due.elapsed()
    };
    (0..100).map(once).min().expect("some attempts")
}

#[test]
fn deadlines_are_kept_to_a_part_of_a_millisecond() {
    for after in [100, 500, 1100, 2500].map(Duration::from_micros) {
        let late = lateness(after);
        println!("due after {after:?}: late by {late:?}");
        assert!(late < Duration::from_micros(300), "{after:?}: {late:?}");
    }
}
