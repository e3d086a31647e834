//! What fault tolerance takes of the server's time: leases, renewed by heartbeats, beside
//! leases so long that none is renewed.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::dsm::orders::Orders;
use crate::dsm::results::{Bound, Results};
use crate::dsm::site::{Attending, Served, Site, Waiting};
use crate::dsm::{Part, Plan};

/// Leases with heartbeats: the usual ones.
const ON: Duration = Duration::from_secs(4);
/// Leases that are not renewed while it is measured.
const OFF: Duration = Duration::from_secs(100_000);
/// Programs that do nothing but keep their leases.
const IDLE: usize = 4;
/// At most so much of the server's time, in percent.
const MOST: f64 = 1.0;
/// How often a few faults are compared in a round, and how many they are.
const PAIRS: usize = 400;
const FAULTS: usize = 100;

/// Measures it over loopback.
pub fn measure(plan: Plan, results: &mut Results) -> Result<()> {
    let Some(site) = Site::new(Duration::ZERO, results) else {
        return Ok(());
    };
    let part = Part::Tolerance;
    let name = "processor time of a server for the same faults with leases, more than without";
    let extra = (0..plan.rounds).map(|round| extra(&site, plan, round));
    let extra = extra.collect::<Result<_>>()?;
    let median = results.add(part, "loopback", name, "%", extra);
    let text = format!("{name}: at most {MOST} %");
    results.judge(part, "loopback", text, median, Bound::AtMost(MOST));
    let rounds = 0..plan.rounds;
    let renewing = rounds.map(|_| Ok(idle(&site, plan)? * 100.0));
    let renewing = renewing.collect::<Result<_>>()?;
    let name = format!("processor time of a server that renews the leases of {IDLE} programs");
    let median = results.add(part, "loopback", &name, "% of time", renewing);
    let text = format!("{name}: at most {MOST} %");
    results.judge(part, "loopback", text, median, Bound::AtMost(MOST));
    Ok(())
}

/// How much more a server takes for the same faults with leases than one without, in percent.
/// Both are there all the time, and have their turns one after the other, a few faults each, so
/// that whatever else slows the machine down does so for both.
fn extra(site: &Site, plan: Plan, round: u32) -> Result<f64> {
    let pairs = plan.size(PAIRS, 20);
    let start = |lease| Loaded::new(site, lease, pairs);
    let mut both = if round.is_multiple_of(2) {
        [start(ON)?, start(OFF)?]
    } else {
        let off = start(OFF)?;
        [start(ON)?, off]
    };
    let mut ratios = Vec::with_capacity(pairs);
    for pair in 0..pairs {
        let mut seconds = [0.0; 2];
        for turn in [pair % 2, 1 - pair % 2] {
            seconds[turn] = both[turn].burst()?;
        }
        let [on, off] = seconds;
        ratios.push(on / off);
    }
    let median = quire_stats::median(&ratios).context("nothing was compared")?;
    Ok((median - 1.0) * 100.0)
}

/// A server and a program that faults when it is told to.
struct Loaded {
    program: Attending,
    server: Served,
}

impl Loaded {
    fn new(site: &Site, lease: Duration, bursts: usize) -> Result<Loaded> {
        let server = site.serve(Orders::serve_leases(Waiting::Sleeping, lease))?;
        // The first of them is for what is done once.
        let orders = Orders::at(&server, "pages", "bursts").with("--room", (bursts + 1) * FAULTS);
        let mut program = site.attend(1, &orders.with("--pages", FAULTS))?;
        let () = program.ask()?;
        Ok(Loaded { program, server })
    }

    /// The processor seconds that the server takes for some faults.
    fn burst(&mut self) -> Result<f64> {
        let before = self.server.processor_seconds()?;
        let () = self.program.ask()?;
        Ok(self.server.processor_seconds()? - before)
    }
}

/// The part of the time for which a server is busy that has idle programs.
fn idle(site: &Site, plan: Plan) -> Result<f64> {
    let mut served = site.serve(Orders::serve_leases(Waiting::Sleeping, ON))?;
    let milliseconds = plan.size(8000, 1500);
    let orders = Orders::at(&served, "x", "idle").with("--milliseconds", milliseconds);
    let before = served.processor_seconds()?;
    let _: Vec<()> = site.together((0..IDLE).map(|_| orders.clone()))?;
    let took = served.processor_seconds()? - before;
    Ok(took / (milliseconds as f64 / 1e3))
}
