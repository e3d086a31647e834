//! What a program gets that goes through memory in order, and so has pages ready ahead: one
//! writes what nobody ever had, another reads that, the first writes it again and gives it back, and the other reads that from the server. The same with
//! the last page first, and with every seventh page; and with pages in no such order, where nothing
//! is asked for ahead, which shows what that gains.
//!
//! In order, an object has pages of 4 KiB or of 2 MiB; each word is touched that begins 4 KiB in either.
//! Beside that stands what a bare TCP stream carries on the same ways in the same round.
//!
//! Three ways to be two programs: two machines with a server on a third, two machines with a
//! server each, and one machine, whose programs share its copy of each page.

use std::fmt;

use anyhow::{Context, Result};
use quire_core::units::{BASE_PAGE, SUPERPAGE};

use crate::dsm::orders::Orders;
use crate::dsm::raw;
use crate::dsm::results::{Bound, Results};
use crate::dsm::site::{PeerServers, Site, Waiting};
use crate::dsm::worker::Streamed;
use crate::dsm::{Part, Plan};

const OBJECT: &str = "memory";

/// What is done, and how its time is taken from what was measured.
type Step = (&'static str, fn(&Streamed) -> f64);

const STEPS: [Step; 4] = [
    ("write what nobody had", |streamed| streamed.write),
    ("read what another wrote", |streamed| streamed.read),
    ("write what another read", |streamed| streamed.rewrite),
    ("read what was given back", |streamed| streamed.read_back),
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

/// In which order, in pages of which size.
#[derive(Clone, Copy)]
struct Order {
    name: &'static str,
    /// For the worker.
    option: &'static str,
    /// How many base pages.
    pages: usize,
    /// How large the object's pages are, in bytes.
    page_size: u64,
}

impl Order {
    const fn new(name: &'static str, option: &'static str, pages: usize) -> Order {
        Order {
            name,
            option,
            pages,
            page_size: BASE_PAGE,
        }
    }

    fn bytes(&self) -> f64 {
        self.pages as f64 * BASE_PAGE as f64
    }
}

/// The order whose two sizes of pages are compared.
const IN_ORDER: &str = "in order";
const LARGE: &str = "in order in pages of 2 MiB";

/// Measures all ways in all orders, in turns.
pub fn measure(site: &Site, plan: Plan, results: &mut Results) -> Result<()> {
    // Fewer, where each is waited for.
    let (many, some) = (plan.size(16384, 1024), plan.size(2048, 64));
    let in_order = Order::new(IN_ORDER, "first-first", many);
    let orders = [
        in_order,
        Order {
            name: LARGE,
            page_size: SUPERPAGE,
            ..in_order
        },
        Order::new("last first", "last-first", many),
        Order::new("every seventh", "strides", some),
        Order::new("in no order", "scattered", some),
    ];
    let ways = Way::all(site).iter();
    // Who has larger pages shares no copy with others of its machine.
    let shares = |way, order: &Order| way != Way::OneMachine || order.page_size == BASE_PAGE;
    let variants: Vec<(Way, Order)> = ways
        .flat_map(|way| orders.map(|order| (*way, order)))
        .filter(|(way, order)| shares(*way, order))
        .collect();
    let mut all = vec![Vec::new(); variants.len()];
    let mut bare = Vec::new();
    for _ in 0..plan.rounds {
        for ((way, order), found) in variants.iter().zip(&mut all) {
            found.push(run(site, *way, *order)?);
        }
        bare.push(raw::measure(site, in_order.bytes() as u64)?);
    }
    tell(site, &variants, &all, results);
    let direct: Vec<f64> = bare.iter().map(|raw| raw.direct).collect();
    let by_way = bare.iter().map(|raw| raw.by_way).collect();
    for (name, seconds) in [
        ("from one node to another", direct),
        ("by way of a process on a third", by_way),
    ] {
        let rates = seconds.iter().map(|it| in_order.bytes() / it / 1e6);
        let name = format!("bare TCP stream, {name}");
        let rates = rates.collect();
        results.add(Part::Streams, &site.setting, &name, "MB/s", rates);
    }
    Ok(())
}

/// The rate of each step of each variant, and what large pages gain.
fn tell(site: &Site, variants: &[(Way, Order)], all: &[Vec<Streamed>], results: &mut Results) {
    let (part, setting) = (Part::Streams, &site.setting);
    for ((way, order), found) in variants.iter().zip(all) {
        for (step, seconds) in way.steps() {
            let rates = found.iter().map(|it| order.bytes() / seconds(it) / 1e6);
            let name = format!("{step}, {}{way}", order.name);
            results.add(part, setting, &name, "MB/s", rates.collect());
        }
    }
    for way in Way::all(site) {
        let read = |name: &str| {
            let mut found = variants.iter().zip(all);
            found.find(|((by, order), _)| by == way && order.name == name)
        };
        let (Some((_, small)), Some((_, large))) = (read(IN_ORDER), read(LARGE)) else {
            continue;
        };
        let pairs = small.iter().zip(large);
        let ratios = pairs.map(|(small, large)| small.read / large.read);
        let name = format!("read what another wrote, in order{way}: 2 MiB by 4 KiB");
        let ratio = results.add(part, setting, &name, "", ratios.collect());
        let text = format!("{name}: at least as fast");
        results.judge(part, setting, text, ratio, Bound::AtLeast(1.0));
    }
}

/// How long both members took, each for its own.
fn run(site: &Site, way: Way, order: Order) -> Result<Streamed> {
    let servers = match way {
        Way::Joined => joined_servers(site)?,
        Way::Apart | Way::OneMachine => {
            PeerServers(vec![site.serve(Orders::serve(Waiting::Sleeping))?])
        }
    };
    let member = |me: usize| {
        let server = servers.get(me).or(servers.first()).context("no server")?;
        let orders = Orders::at(server, OBJECT, "stream").with("--me", me);
        let orders = orders.with("--scheduler", way.scheduler());
        let orders = orders
            .with("--pages", order.pages)
            .with("--room", order.pages);
        let orders = orders.with("--page-size", order.page_size);
        let orders = orders.with("--order", order.option);
        Ok(orders.with_flag("--one-copy", way != Way::Apart))
    };
    let members: Vec<Orders> = (0..2).map(member).collect::<Result<_>>()?;
    let found: Vec<Streamed> = site.together(members)?;
    let both = |of: fn(&Streamed) -> f64| found.iter().map(of).sum();
    Ok(Streamed {
        write: both(|it| it.write),
        read: both(|it| it.read),
        rewrite: both(|it| it.rewrite),
        read_back: both(|it| it.read_back),
    })
}

/// A server at each of the members' nodes.
fn joined_servers(site: &Site) -> Result<PeerServers> {
    let addresses: Vec<String> = (1..=2)
        .map(|node| site.free_address(node))
        .collect::<Result<_>>()?;
    let serve = Orders::serve(Waiting::Sleeping).with("--peers", addresses.join(","));
    let nodes = (1..).zip(&addresses);
    let servers = nodes.map(|(node, address)| site.serve_on(node, address, serve.clone()));
    Ok(PeerServers(servers.collect::<Result<_>>()?))
}
