//! Everybody increments one word (paper 003, section 7.2): what a cycle takes, from one fault
//! to the next, and whether all get the page equally often.

use anyhow::Result;

use crate::dsm::faults::{self, BARE, MOST, WITH_PAGE};
use crate::dsm::floor::Trip;
use crate::dsm::orders::Orders;
use crate::dsm::results::{Bound, Results};
use crate::dsm::site::{Site, Waiting};
use crate::dsm::worker::Increments;
use crate::dsm::{Part, Plan};

/// How many programs there are.
const MEMBERS: [usize; 2] = [2, 4];
/// Nobody is farther from the mean, in percent.
const APART: f64 = 2.0;

/// The figures of one number of programs, one for each round.
#[derive(Default)]
struct Rounds {
    cycle: Vec<f64>,
    by_floor: Vec<f64>,
    faults_apart: Vec<f64>,
    done_apart: Vec<f64>,
}

/// Measures it with all ways to wait.
pub fn measure(site: &Site, plan: Plan, results: &mut Results) -> Result<()> {
    let waits = site.waits(results).into_iter();
    let variants = waits.flat_map(|how| MEMBERS.map(|members| (how, members)));
    let variants: Vec<(Waiting, usize)> = variants.collect();
    let mut rounds: Vec<Rounds> = variants.iter().map(|_| Rounds::default()).collect();
    for _ in 0..plan.rounds {
        for ((waiting, members), rounds) in variants.iter().zip(&mut rounds) {
            round(site, plan, *waiting, *members, rounds)?;
        }
    }
    for ((waiting, members), rounds) in variants.into_iter().zip(rounds) {
        tell(site, waiting, members, rounds, results);
    }
    Ok(())
}

fn round(
    site: &Site,
    plan: Plan,
    waiting: Waiting,
    members: usize,
    rounds: &mut Rounds,
) -> Result<()> {
    let served = site.serve(Orders::serve(waiting))?;
    // Long enough for programs to change processors, and for all to be equal in the long run.
    let milliseconds = plan.size(12_000, 300);
    let all = Orders::at(&served, "word", "increment").waits(waiting);
    let all = all.with("--milliseconds", milliseconds);
    let found: Vec<Increments> =
        site.together((0..members).map(|me| all.clone().member(me, members)))?;
    let faults: Vec<f64> = found.iter().map(|one| one.faults as f64).collect();
    let done: Vec<f64> = found.iter().map(|one| one.done as f64).collect();
    let seconds = found.iter().map(|one| one.seconds).fold(0.0, f64::max);
    let cycle = seconds * 1e6 / faults.iter().sum::<f64>().max(1.0);
    // The page that was taken from one and given to another, and what is said about it.
    let trip = Trip {
        request: WITH_PAGE + 2 * BARE,
        reply: WITH_PAGE + BARE,
    };
    let floor = faults::floor(site, waiting, trip, plan.size(4000, 80))?;
    rounds.cycle.push(cycle);
    rounds.by_floor.push(cycle / floor);
    rounds.faults_apart.push(apart(&faults));
    rounds.done_apart.push(apart(&done));
    Ok(())
}

/// How far the farthest is from the mean, in percent of it.
fn apart(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let farthest = values
        .iter()
        .map(|value| (value - mean).abs())
        .fold(0.0, f64::max);
    match mean > 0.0 {
        true => farthest / mean * 100.0,
        false => 100.0,
    }
}

fn tell(site: &Site, waiting: Waiting, members: usize, rounds: Rounds, results: &mut Results) {
    let (part, setting) = (Part::Hotspot, &site.setting);
    let title = |what: &str| format!("{members} programs, {}: {what}", waiting.name());
    results.add(part, setting, &title("cycle"), "us", rounds.cycle);
    results.paper("4200 us");
    let by_floor = results.add(part, setting, &title("cycle by floor"), "", rounds.by_floor);
    let text = format!("{}, at most {MOST}", title("cycle by floor"));
    results.judge(part, setting, text, by_floor, Bound::AtMost(MOST));
    for (what, values) in [
        ("faults, farthest from the mean", rounds.faults_apart),
        ("increments, farthest from the mean", rounds.done_apart),
    ] {
        let median = results.add(part, setting, &title(what), "%", values);
        results.paper("2 %");
        let text = format!("{}, at most {APART} %", title(what));
        results.judge(part, setting, text, median, Bound::AtMost(APART));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_farthest_counts() {
        assert_eq!(apart(&[100.0, 100.0]), 0.0);
        assert_eq!(apart(&[90.0, 100.0, 110.0]), 10.0);
        assert_eq!(apart(&[0.0, 0.0]), 100.0);
    }
}
