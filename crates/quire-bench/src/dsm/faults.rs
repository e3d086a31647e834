//! What each kind of fault takes (paper 003, Table 1), beside the bare round trips that it
//! cannot do without. All variants have their turn in each round.

use anyhow::Result;
use quire_core::units::BASE_PAGE;

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

/// What `multi` costs, for page sizes that differ up to eight times.
const EXTRA_IN_PAPER: &str = "200 us at most";

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

/// A scheduler, and how large its pages and a client's are.
struct Variant {
    scheduler: &'static str,
    page: u64,
    own: u64,
}

/// As large as the paper's largest ratio of page sizes makes them.
const LARGE: u64 = 8 * BASE_PAGE;

const VARIANTS: [Variant; 5] = [
    Variant {
        scheduler: "simple",
        page: BASE_PAGE,
        own: BASE_PAGE,
    },
    Variant {
        scheduler: "multi",
        page: BASE_PAGE,
        own: BASE_PAGE,
    },
    Variant {
        scheduler: "simple",
        page: LARGE,
        own: LARGE,
    },
    Variant {
        scheduler: "multi",
        page: BASE_PAGE,
        own: LARGE,
    },
    Variant {
        scheduler: "multi",
        page: LARGE,
        own: BASE_PAGE,
    },
];
const SIMPLE: usize = 0;
const MULTI: usize = 1;
/// What moves as much as the two behind it, with one page size.
const ALL_LARGE: usize = 2;
/// The client's pages are eight times the scheduler's, as in the paper; and the other way round.
const RATIOS: [(usize, &str); 2] = [
    (3, "multi, a client's pages 8 times the scheduler's"),
    (4, "multi, the scheduler's pages 8 times a client's"),
];

/// The medians of all rounds, in microseconds.
#[derive(Default)]
struct Timed {
    floor: Vec<f64>,
    variants: [Vec<f64>; VARIANTS.len()],
}

impl Timed {
    /// How much longer one took than another one, round by round.
    fn extra(&self, of: usize, over: usize) -> Vec<f64> {
        let pairs = self.variants[of].iter().zip(&self.variants[over]);
        pairs.map(|(of, over)| of - over).collect()
    }

    fn by_floor(&self, of: usize) -> Vec<f64> {
        let pairs = self.variants[of].iter().zip(&self.floor);
        pairs.map(|(fault, floor)| fault / floor).collect()
    }
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
                let mut order: Vec<usize> = (0..VARIANTS.len()).collect();
                order.rotate_left(round as usize % VARIANTS.len());
                for number in order {
                    let took = fault(site, plan, waiting, kind, &VARIANTS[number])?;
                    timed.variants[number].push(took);
                }
            }
        }
        for (kind, timed) in KINDS.iter().zip(timed) {
            tell(site, waiting, kind, &timed, results);
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
fn fault(site: &Site, plan: Plan, waiting: Waiting, kind: &Kind, variant: &Variant) -> Result<f64> {
    let served = site.serve(Orders::serve(waiting))?;
    let step = variant.page.max(variant.own) / BASE_PAGE;
    let all = Orders::at(&served, "pages", "touch").waits(waiting);
    let all = all.with("--scheduler", variant.scheduler);
    let all = all.with("--page-size", variant.page);
    let all = all.with("--own-page-size", variant.own);
    let all = all.with("--room", pages(plan) as u64 * step);
    let all = all.with("--pages", pages(plan));
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

fn tell(site: &Site, waiting: Waiting, kind: &Kind, timed: &Timed, results: &mut Results) {
    let (setting, name, how) = (&site.setting, kind.name, waiting.name());
    let part = Part::Faults;
    let title = |what: &str| format!("{name}, {how}: {what}");
    let of = |number: usize| timed.variants[number].clone();
    results.add(part, setting, &title("simple"), "us", of(SIMPLE));
    results.paper(kind.paper);
    results.add(part, setting, &title("floor"), "us", timed.floor.clone());
    let by_floor = timed.by_floor(SIMPLE);
    let simple = results.add(part, setting, &title("simple by floor"), "", by_floor);
    // What is faster than any packet never went to the server.
    let went = |times: &[f64]| times.iter().all(|time| *time >= site.round_trip_us());
    let simple = simple.filter(|_| went(&timed.variants[SIMPLE]));
    let text = format!("{name}, {how}: at most {MOST} times the floor");
    results.judge(part, setting, text, simple, Bound::AtMost(MOST));
    let extra = timed.extra(MULTI, SIMPLE);
    results.add(part, setting, &title("extra for multi"), "us", extra);
    results.paper(EXTRA_IN_PAPER);
    let by_floor = timed.by_floor(MULTI);
    let multi = results.add(part, setting, &title("multi by floor"), "", by_floor);
    let multi = multi.filter(|_| went(&timed.variants[MULTI]));
    let text = format!("{name} with multi, {how}: at most {MOST} times the floor");
    results.judge(part, setting, text, multi, Bound::AtMost(MOST));
    let large = title("pages of 32 KiB, simple");
    results.add(part, setting, &large, "us", of(ALL_LARGE));
    for (number, what) in RATIOS {
        results.add(part, setting, &title(what), "us", of(number));
        let extra = timed.extra(number, ALL_LARGE);
        let what = format!("extra for {what}");
        results.add(part, setting, &title(&what), "us", extra);
        results.paper(EXTRA_IN_PAPER);
    }
}
