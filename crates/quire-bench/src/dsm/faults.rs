//! What each kind of fault takes (paper 003, Table 1), beside the bare round trips that it
//! cannot do without. All variants have their turn in each round.

use anyhow::Result;

use crate::dsm::floor::{Floor, Trip};
use crate::dsm::orders::Orders;
use crate::dsm::results::{Bound, Results};
use crate::dsm::site::{Site, Waiting};
use crate::dsm::{Part, Plan};

/// What needs a round trip takes at most so many times the floor.
pub(super) const MOST: f64 = 2.0;
/// A message without contents, in bytes.
pub(super) const BARE: u32 = 64;
/// A page with what is said about it, in bytes.
pub(super) const WITH_PAGE: u32 = 4096 + BARE;

/// A kind of fault: its name, how it is made, the bytes of an answer, and the paper's time.
struct Kind {
    name: &'static str,
    touch: &'static str,
    reply: u32,
    paper: &'static str,
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "zero-fill fault",
        touch: "write",
        reply: BARE,
        paper: "1500 us",
    },
    Kind {
        name: "protection fault",
        touch: "unlock",
        reply: BARE,
        paper: "1100 us",
    },
    Kind {
        name: "remote read fault",
        touch: "read",
        reply: WITH_PAGE,
        paper: "",
    },
];

/// The medians of all rounds, in microseconds.
#[derive(Default)]
struct Timed {
    floor: Vec<f64>,
    simple: Vec<f64>,
    multi: Vec<f64>,
}

/// Measures all kinds, with all ways to wait.
pub fn measure(site: &Site, plan: Plan, results: &mut Results) -> Result<()> {
    for waiting in site.waits(results) {
        let mut timed: [Timed; 3] = Default::default();
        for round in 0..plan.rounds {
            for (kind, timed) in KINDS.iter().zip(&mut timed) {
                let trip = Trip {
                    request: BARE,
                    reply: kind.reply,
                };
                timed.floor.push(floor(site, waiting, trip, pages(plan))?);
                // Which of them is first changes, too.
                let mut order = ["simple", "multi"];
                order.rotate_left(round as usize % 2);
                for scheduler in order {
                    let took = fault(site, plan, waiting, kind, scheduler)?;
                    match scheduler {
                        "simple" => timed.simple.push(took),
                        _ => timed.multi.push(took),
                    }
                }
            }
        }
        for (kind, timed) in KINDS.iter().zip(timed) {
            tell(site, waiting, kind, timed, results);
        }
    }
    Ok(())
}

fn pages(plan: Plan) -> usize {
    plan.size(200, 80)
}

/// One userfaultfd round trip and one of the socket, medians of so many, in microseconds.
pub(super) fn floor(site: &Site, waiting: Waiting, trip: Trip, count: usize) -> Result<f64> {
    let echo = site.serve(Orders::new("echo").waits(waiting))?;
    let orders = Orders::new("floor").with("--server", &echo.address);
    let orders = orders.waits(waiting).with("--count", count);
    let orders = orders.with("--request", trip.request);
    let found: Floor = site.run(1, &orders.with("--reply", trip.reply))?;
    Ok(usual(&found.fault) + usual(&found.socket))
}

/// The median of touches of one program.
fn fault(site: &Site, plan: Plan, waiting: Waiting, kind: &Kind, scheduler: &str) -> Result<f64> {
    let served = site.serve(Orders::serve(waiting))?;
    let all = Orders::at(&served, "pages", "touch").waits(waiting);
    let all = all.with("--scheduler", scheduler);
    let all = all.with("--room", pages(plan)).with("--pages", pages(plan));
    let touch =
        |node, touch| -> Result<Vec<f64>> { site.run(node, &all.clone().with("--touch", touch)) };
    if kind.touch == "read" {
        // Another node has written them, and given them back.
        touch(2, "write")?;
    }
    Ok(usual(&touch(1, kind.touch)?))
}

fn usual(values: &[f64]) -> f64 {
    quire_stats::median(values).unwrap_or(f64::NAN)
}

fn tell(site: &Site, waiting: Waiting, kind: &Kind, timed: Timed, results: &mut Results) {
    let (setting, name, how) = (&site.setting, kind.name, waiting.name());
    let part = Part::Faults;
    let ratios = |of: &[f64]| -> Vec<f64> {
        let pairs = of.iter().zip(&timed.floor);
        pairs.map(|(fault, floor)| fault / floor).collect()
    };
    let (simple, multi) = (ratios(&timed.simple), ratios(&timed.multi));
    let both = timed.multi.iter().zip(&timed.simple);
    let extra: Vec<f64> = both.map(|(multi, simple)| multi - simple).collect();
    let title = |what: &str| format!("{name}, {how}: {what}");
    results.add(part, setting, &title("simple"), "us", timed.simple.clone());
    results.paper(kind.paper);
    results.add(part, setting, &title("floor"), "us", timed.floor.clone());
    let simple = results.add(part, setting, &title("simple by floor"), "", simple);
    // What is faster than any packet never went to the server.
    let went = |times: &[f64]| times.iter().all(|time| *time >= site.round_trip_us());
    let simple = simple.filter(|_| went(&timed.simple));
    let text = format!("{name}, {how}: at most {MOST} times the floor");
    results.judge(part, setting, text, simple, Bound::AtMost(MOST));
    results.add(part, setting, &title("extra for multi"), "us", extra);
    results.paper("200 us at most");
    let multi = results.add(part, setting, &title("multi by floor"), "", multi);
    let multi = multi.filter(|_| went(&timed.multi));
    let text = format!("{name} with multi, {how}: at most {MOST} times the floor");
    results.judge(part, setting, text, multi, Bound::AtMost(MOST));
}
