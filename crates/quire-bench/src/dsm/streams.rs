//! What a program gets that goes through memory in order, and so has pages ready ahead: one
//! node writes what nobody ever had, another reads that, and the first writes it again. The
//! same with the last page first, where nothing is asked for ahead, shows what that gains.

use anyhow::Result;
use quire_core::units::BASE_PAGE;

use crate::dsm::orders::Orders;
use crate::dsm::results::Results;
use crate::dsm::site::{Site, Waiting};
use crate::dsm::worker::Streamed;
use crate::dsm::{Part, Plan};

/// What is done, and how its time is taken from what was measured.
type Step = (&'static str, fn(&Streamed) -> f64);

const STEPS: [Step; 3] = [
    ("write what nobody had", |streamed| streamed.write),
    ("read what another wrote", |streamed| streamed.read),
    ("write what another read", |streamed| streamed.rewrite),
];

/// Measures both orders, in turns.
pub fn measure(site: &Site, plan: Plan, results: &mut Results) -> Result<()> {
    // Fewer, where each is waited for.
    let orders = [
        ("in order", plan.size(16384, 64), false),
        ("last first", plan.size(2048, 64), true),
    ];
    let mut all = [Vec::new(), Vec::new()];
    for _ in 0..plan.rounds {
        for ((_, pages, backward), found) in orders.iter().zip(&mut all) {
            found.push(run(site, *pages, *backward)?);
        }
    }
    for (step, seconds) in STEPS {
        for ((order, pages, _), found) in orders.iter().zip(&all) {
            let bytes = *pages as f64 * BASE_PAGE as f64;
            let rates = found.iter().map(|it| bytes / seconds(it) / 1e6).collect();
            let name = format!("{step}, {order}");
            results.add(Part::Streams, &site.setting, &name, "MB/s", rates);
        }
    }
    Ok(())
}

/// How long both members took, each for its own.
fn run(site: &Site, pages: usize, backward: bool) -> Result<Streamed> {
    let served = site.serve(Orders::serve(Waiting::Sleeping))?;
    let all = Orders::at(&served, "memory", "stream").with("--scheduler", "multi");
    let all = all.with("--pages", pages).with("--room", pages);
    let all = all.with_flag("--backward", backward);
    let found: Vec<Streamed> = site.together((0..2).map(|me| all.clone().with("--me", me)))?;
    let both = |of: fn(&Streamed) -> f64| found.iter().map(of).sum();
    Ok(Streamed {
        write: both(|it| it.write),
        read: both(|it| it.read),
        rewrite: both(|it| it.rewrite),
    })
}
