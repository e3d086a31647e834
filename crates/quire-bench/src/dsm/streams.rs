//! What a program gets that goes through memory in order, and so has pages ready ahead: one
//! writes what nobody ever had, another reads that, and the first writes it again. The same with
//! the last page first, and with every seventh page; and with pages in no such order, where nothing
//! is asked for ahead, which shows what that gains.
//!
//! Three ways to be two programs: two machines with a server on a third, two machines with a
//! server each, and one machine, whose programs share its copy of each page.

use std::fmt;

use anyhow::{Context, Result};
use quire_core::units::BASE_PAGE;

use crate::dsm::orders::Orders;
use crate::dsm::results::Results;
use crate::dsm::site::{Fellows, Site, Waiting};
use crate::dsm::worker::Streamed;
use crate::dsm::{Part, Plan};

const OBJECT: &str = "memory";

/// What is done, and how its time is taken from what was measured.
type Step = (&'static str, fn(&Streamed) -> f64);

const STEPS: [Step; 3] = [
    ("write what nobody had", |streamed| streamed.write),
    ("read what another wrote", |streamed| streamed.read),
    ("write what another read", |streamed| streamed.rewrite),
];

/// Where the two programs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// On two machines, with a server on a third one.
    Apart,
    /// On two machines with a server each.
    Joined,
    /// On one machine.
    OneMachine,
}

impl Way {
    /// Those that there are between such nodes.
    fn all(site: &Site) -> &'static [Way] {
        match site.round_trip_us() > 0.0 {
            true => &[Way::Apart, Way::Joined],
            false => &[Way::Apart, Way::Joined, Way::OneMachine],
        }
    }

    const fn scheduler(self) -> &'static str {
        match self {
            Way::Joined => "distributed",
            Way::Apart | Way::OneMachine => "multi",
        }
    }

    /// What is done there; programs of one machine that have pages have them.
    fn steps(self) -> &'static [Step] {
        match self {
            Way::Apart | Way::Joined => &STEPS,
            Way::OneMachine => &STEPS[..2],
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Apart => "",
            Way::Joined => ", a server on each machine",
            Way::OneMachine => ", one machine",
        })
    }
}

/// What it is called, here and by the worker, and how many pages.
type Order = (&'static str, &'static str, usize);

/// Measures all ways in all orders, in turns.
pub fn measure(site: &Site, plan: Plan, results: &mut Results) -> Result<()> {
    // Fewer, where each is waited for.
    let (many, some) = (plan.size(16384, 64), plan.size(2048, 64));
    let orders: [Order; 4] = [
        ("in order", "first-first", many),
        ("last first", "last-first", many),
        ("every seventh", "strides", some),
        ("in no order", "scattered", some),
    ];
    let ways = Way::all(site).iter();
    let variants: Vec<(Way, Order)> = ways
        .flat_map(|way| orders.map(|order| (*way, order)))
        .collect();
    let mut all = vec![Vec::new(); variants.len()];
    for _ in 0..plan.rounds {
        for ((way, order), found) in variants.iter().zip(&mut all) {
            found.push(run(site, *way, *order)?);
        }
    }
    for ((way, (order, _, pages)), found) in variants.iter().zip(&all) {
        for (step, seconds) in way.steps() {
            let bytes = *pages as f64 * BASE_PAGE as f64;
            let rates = found.iter().map(|it| bytes / seconds(it) / 1e6).collect();
            let name = format!("{step}, {order}{way}");
            results.add(Part::Streams, &site.setting, &name, "MB/s", rates);
        }
    }
    Ok(())
}

/// How long both members took, each for its own.
fn run(site: &Site, way: Way, (_, order, pages): Order) -> Result<Streamed> {
    let servers = match way {
        Way::Joined => joined_servers(site)?,
        Way::Apart | Way::OneMachine => {
            Fellows(vec![site.serve(Orders::serve(Waiting::Sleeping))?])
        }
    };
    let member = |me: usize| {
        let server = servers.get(me).or(servers.first()).context("no server")?;
        let orders = Orders::at(server, OBJECT, "stream").with("--me", me);
        let orders = orders.with("--scheduler", way.scheduler());
        let orders = orders.with("--pages", pages).with("--room", pages);
        let orders = orders.with("--order", order);
        Ok(orders.with_flag("--one-copy", way != Way::Apart))
    };
    let members: Vec<Orders> = (0..2).map(member).collect::<Result<_>>()?;
    let found: Vec<Streamed> = site.together(members)?;
    let both = |of: fn(&Streamed) -> f64| found.iter().map(of).sum();
    Ok(Streamed {
        write: both(|it| it.write),
        read: both(|it| it.read),
        rewrite: both(|it| it.rewrite),
    })
}

/// A server at each of the members' nodes.
fn joined_servers(site: &Site) -> Result<Fellows> {
    let addresses: Vec<String> = (1..=2)
        .map(|node| site.free_address(node))
        .collect::<Result<_>>()?;
    let serve = Orders::serve(Waiting::Sleeping).with("--peers", addresses.join(","));
    let nodes = (1..).zip(&addresses);
    let servers = nodes.map(|(node, address)| site.serve_on(node, address, serve.clone()));
    Ok(Fellows(servers.collect::<Result<_>>()?))
}
