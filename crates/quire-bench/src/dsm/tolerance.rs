//! What fault tolerance takes of the server's time: leases, renewed by heartbeats, beside
//! leases so long that none is renewed.

use std::time::Duration;

use anyhow::Result;

use crate::dsm::orders::Orders;
use crate::dsm::results::{Bound, Results};
use crate::dsm::site::{Site, Waiting};
use crate::dsm::{Part, Plan};

/// Leases with heartbeats: the usual ones.
const ON: Duration = Duration::from_secs(4);
/// Leases that are not renewed while it is measured.
const OFF: Duration = Duration::from_secs(100_000);
/// Programs that do nothing but keep their leases.
const IDLE: usize = 4;
/// At most so much of the server's time, in percent.
const MOST: f64 = 1.0;

/// Measures it over loopback.
pub fn measure(plan: Plan, results: &mut Results) -> Result<()> {
    let Some(site) = Site::new(Duration::ZERO, results) else {
        return Ok(());
    };
    let (mut extra, mut renewing) = (Vec::new(), Vec::new());
    for round in 0..plan.rounds {
        let mut order = [ON, OFF];
        order.rotate_left(round as usize % 2);
        let [first, second] = [busy(&site, plan, order[0])?, busy(&site, plan, order[1])?];
        let (on, off) = if order[0] == ON {
            (first, second)
        } else {
            (second, first)
        };
        extra.push((on / off - 1.0) * 100.0);
        renewing.push(idle(&site, plan)? * 100.0);
    }
    let part = Part::Tolerance;
    let name = "time for the same faults with leases, more than without";
    results.add(part, "loopback", name, "%", extra);
    let name = format!("processor time of a server that renews the leases of {IDLE} programs");
    let median = results.add(part, "loopback", &name, "% of time", renewing);
    let text = format!("{name}: at most {MOST} %");
    results.judge(part, "loopback", text, median, Bound::AtMost(MOST));
    results.note("What leases take does not depend on faults, so that it is judged where there are none; beside faults it lies in their spread.");
    Ok(())
}

/// Processor seconds of a server that answers so many faults.
fn busy(site: &Site, plan: Plan, lease: Duration) -> Result<f64> {
    let mut served = site.serve(Orders::serve_leases(Waiting::Sleeping, lease))?;
    let before = served.processor_seconds()?;
    let pages = plan.size(20_000, 500);
    let orders = Orders::at(&served, "pages", "touch").with("--touch", "write");
    let orders = orders.with("--room", pages).with("--pages", pages);
    let _: Vec<f64> = site.run(1, &orders)?;
    Ok(served.processor_seconds()? - before)
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
