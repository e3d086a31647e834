//! Messages in rounds, between real servers that are joined: in each of them every program
//! writes to the same page once (paper 003, sections 4.1 and 7.2).
//!
//! In the paper's rounds all fault at once, and the server that has the page serves its own
//! program first. So the one that has it writes first, without a fault, for it has the page still;
//! then the servers are stopped until all others have faulted. Each server knows of its own
//! program's fault then before it hears of a peer server's, which is kept behind it. In the first round
//! that is the program at the server where the object was made, which all the others ask: would
//! another one be first, it would take two messages more, for the page and back.
//!
//! Programs that are just released fault in any order, also after others have been served. Their
//! faults pass servers that do not want the page, and are forwarded. That is shown, too, but the
//! paper's numbers say nothing of it.
//!
//! A page is kept for a moment only. A program that gets no processor within it faults again, and
//! such a round is none of the paper's; it also leaves other pointers than those of Figure 8, which
//! stay as they are from then on. So the programs go before all others, and after such a round
//! everything begins anew, with new servers. It is counted how often that was so.

use std::iter;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::dsm::joined::{Joined, PARTIES, Sums};
use crate::dsm::results::{Bound, Results};
use crate::dsm::site::{Attending, Site};
use crate::dsm::{Part, Plan};

/// How many rounds are counted behind first ones.
const ROUNDS: usize = 50;
/// How often it begins anew at most.
const BEGINNINGS: usize = 20;
/// Programs that are released have faulted after this. Where that were not so, it would take
/// more messages, not fewer.
const FAULTED: Duration = Duration::from_millis(5);
/// Nothing is under way where nothing was counted for so long.
const QUIET: Duration = Duration::from_millis(10);

/// What was counted for so many servers: messages between them in each round.
#[derive(Default)]
struct Counted {
    first: Vec<f64>,
    later: Vec<f64>,
    /// Rounds that were played, with those in which a program faulted again.
    played: usize,
    /// Messages and faults of rounds whose programs were released at once.
    at_once: [Vec<f64>; 2],
}

/// Counts them, and judges what was counted.
pub fn measure(site: &Site, plan: Plan, results: &mut Results) -> Result<()> {
    let (mut is_first, mut by_parties) = (Some(true), Some(0.0_f64));
    for parties in PARTIES.filter(|&parties| parties <= plan.size(*PARTIES.end(), 4)) {
        let counted = count(site, plan, parties)
            .with_context(|| format!("rounds of {parties} joined servers"))?;
        let wanted = (3 * parties - 4) as f64;
        is_first = is_first
            .filter(|_| !counted.first.is_empty())
            .map(|is_first| is_first && counted.first.iter().all(|&first| first == wanted));
        let each = mean(&counted.later).map(|mean| mean / parties as f64);
        by_parties = by_parties.zip(each).map(|(most, each)| most.max(each));
        tell(parties, counted, results);
    }
    let part = Part::Messages;
    let text = "real servers, distributed: 3N-4 between servers in the first round; 1 where so";
    let first = is_first.map(|is_first| f64::from(u8::from(is_first)));
    results.judge(part, "", text, first, Bound::AtLeast(1.0));
    let text = "real servers, distributed: at most 2N between servers in a later round; here by N";
    results.judge(part, "", text, by_parties, Bound::AtMost(2.0));
    results.note("Rounds of real servers: the program that has the page writes first, then all others fault before servers hear of each other. Programs that are released at once fault in any order, and again where they get no processor in time; nothing is judged of that.");
    Ok(())
}

fn tell(parties: usize, counted: Counted, results: &mut Results) {
    let n = parties;
    let later = format!("{} or {}", 2 * n, 2 * n - 1);
    let again = counted.played - counted.first.len() - counted.later.len();
    let again = again as f64 / counted.played as f64 * 100.0;
    let [messages, faults] = counted.at_once;
    for (what, unit, values, paper) in [
        ("first round", "", counted.first, (3 * n - 4).to_string()),
        ("a round", "", counted.later, later.clone()),
        ("rounds with more faults", "%", vec![again], String::new()),
        ("a round, released at once", "", messages, later),
        ("faults, released at once", "", faults, n.to_string()),
    ] {
        let name = format!("{n} real servers, {what}");
        if results
            .add(Part::Messages, "", &name, unit, values)
            .is_some()
            && !paper.is_empty()
        {
            results.paper(paper);
        }
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    let sum: f64 = values.iter().sum();
    (!values.is_empty()).then(|| sum / values.len() as f64)
}

fn count(site: &Site, plan: Plan, parties: usize) -> Result<Counted> {
    let rounds = plan.size(ROUNDS, 10);
    let mut counted = Counted::default();
    for _ in 0..BEGINNINGS {
        if counted.later.len() >= rounds {
            break;
        }
        let mut party = Party::new(site, parties)?;
        counted.played += 1;
        let Some(first) = party.plays(parties)? else {
            continue;
        };
        counted.first.push(first);
        while counted.later.len() < rounds {
            counted.played += 1;
            let Some(later) = party.plays(parties - 1)? else {
                break;
            };
            counted.later.push(later);
        }
    }
    let mut party = Party::new(site, parties)?;
    party.round(Party::at_once)?;
    for _ in 0..rounds {
        let sums = party.round(Party::at_once)?;
        counted.at_once[0].push(sums.sent as f64);
        counted.at_once[1].push(sums.own_faults as f64);
    }
    Ok(counted)
}

/// Joined servers with a program at each.
struct Party {
    /// They end before their servers do.
    programs: Vec<Attending>,
    joined: Joined,
    /// The program that has the page; at first, the one whose server has.
    holder: usize,
    /// How many writes there were.
    done: u64,
}

impl Party {
    /// None of the programs has touched the page.
    fn new(site: &Site, parties: usize) -> Result<Party> {
        let joined = Joined::new(site, parties)?;
        let programs = joined.programs("rounds");
        let programs = programs.map(|orders| site.attend(1, &orders));
        let mut programs: Vec<Attending> = programs.collect::<Result<_>>()?;
        for program in &mut programs {
            let () = program.answer()?;
        }
        Ok(Party {
            joined,
            programs,
            holder: 0,
            done: 0,
        })
    }

    /// The messages between servers in a round of the paper; `None` where programs did not fault
    /// so often, all together.
    fn plays(&mut self, faults: usize) -> Result<Option<f64>> {
        let sums = self.round(Party::in_order)?;
        Ok((sums.own_faults == faults as u64).then_some(sums.sent as f64))
    }

    /// What is counted in a round, in which each program tells how many writes there were before
    /// its own.
    fn round(&mut self, play: impl FnOnce(&mut Party) -> Result<Vec<u64>>) -> Result<Sums> {
        let before = self.quiet()?;
        let told = play(self)?;
        let mut sorted = told.clone();
        sorted.sort_unstable();
        let is_whole = sorted.iter().copied().eq((self.done..).take(told.len()));
        ensure!(is_whole, "{told:?} writes after {}", self.done);
        self.done += told.len() as u64;
        let last = told.iter().position(|&told| told + 1 == self.done);
        self.holder = last.context("nobody was last")?;
        Ok(self.quiet()? - before)
    }

    /// What has been counted when nothing is under way.
    fn quiet(&self) -> Result<Sums> {
        let mut last = self.joined.sums()?;
        loop {
            thread::sleep(QUIET);
            let sums = self.joined.sums()?;
            if sums == last {
                return Ok(sums);
            }
            last = sums;
        }
    }

    /// As in the paper.
    fn in_order(&mut self) -> Result<Vec<u64>> {
        let holder = self.holder;
        let first: u64 = self.programs[holder].ask()?;
        let stopped = self.joined.stop()?;
        for (_, program) in others(&mut self.programs, holder) {
            program.release()?;
        }
        thread::sleep(FAULTED);
        drop(stopped);
        let mut told: Vec<u64> = iter::repeat_n(first, self.programs.len()).collect();
        for (number, program) in others(&mut self.programs, holder) {
            told[number] = program.answer()?;
        }
        Ok(told)
    }

    /// In any order.
    fn at_once(&mut self) -> Result<Vec<u64>> {
        self.programs.iter_mut().try_for_each(Attending::release)?;
        self.programs.iter_mut().map(Attending::answer).collect()
    }
}

/// All programs but one, with their numbers.
fn others(programs: &mut [Attending], but: usize) -> impl Iterator<Item = (usize, &mut Attending)> {
    let all = programs.iter_mut().enumerate();
    all.filter(move |(number, _)| *number != but)
}
