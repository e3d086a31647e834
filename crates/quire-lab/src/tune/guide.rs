//! The race for the runner: it says what each round executes, and minds the time.

use std::time::{Duration, Instant};

use super::candidate::Role;
use super::facts::{self, Facts};
use super::search::{Basis, Search};
use super::verdict::{Next, Outcome, Verdict};
use super::{FEW, Plan};
use crate::run::Run;
use crate::runner::{Guide, Round};

/// The search is closed when this part of the time is over, so that the confirmation has
/// the rest.
const SEARCH_PART: f64 = 0.6;
/// An execution that takes this part of the time is stopped: with so few nothing could be said.
const LONGEST: f64 = 0.25;
/// As many run in the confirmation at most: two finalists, and the program without quire.
const CONFIRMED: u64 = 3;

/// Says what is executed, as a plan has it.
#[derive(Debug)]
pub struct Pilot<'a> {
    plan: &'a Plan,
    names: Vec<String>,
    roles: Vec<Role>,
    /// The search so far.
    search: Option<Search>,
    started: Instant,
    /// When the last round began, to know how long one takes.
    last: Option<Instant>,
    /// The round before which the search was closed for want of time.
    closed: Option<u64>,
    /// Whether the time was over before the end.
    is_late: bool,
}

impl<'a> Pilot<'a> {
    /// Begins; the time counts from now on.
    #[must_use]
    pub fn new(plan: &'a Plan) -> Pilot<'a> {
        Pilot {
            plan,
            names: plan.names(),
            roles: plan.roles(),
            search: None,
            started: Instant::now(),
            last: None,
            closed: None,
            is_late: false,
        }
    }

    /// Whether the time was over before everything was executed.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.is_late || self.closed.is_some()
    }

    /// What the results come to.
    #[must_use]
    pub fn verdict(&self, run: &Run) -> Verdict {
        let metric = facts::metric(run, self.plan.metric.as_deref());
        let facts = self.facts(run);
        let verdict = basis(self.plan, &self.roles, &facts).verdict(self.closed(&facts));
        match metric {
            Ok(_) => verdict,
            Err(why) => Verdict {
                outcome: Outcome::Unknown(why),
                ..verdict
            },
        }
    }

    fn facts(&self, run: &Run) -> Facts {
        let metric = facts::metric(run, self.plan.metric.as_deref());
        Facts::of(run, &self.names, metric.as_deref().unwrap_or_default())
    }

    /// What is confirmed is not searched any more, so that a run that was interrupted goes
    /// on with the same finalists.
    fn closed(&self, facts: &Facts) -> Option<u64> {
        facts.confirmed_from.or(self.closed)
    }

    /// Whether another round fits into a part of the time.
    fn has_time(&self, part: f64) -> bool {
        let round = self.last.map_or(Duration::ZERO, |last| last.elapsed());
        let end = self.plan.time_limit.map(|limit| limit.mul_f64(part));
        end.is_none_or(|end| self.started.elapsed() + round <= end)
    }

    /// What comes next, if the time allows it.
    fn next(&mut self, round: u64, facts: &Facts) -> Next {
        let basis = basis(self.plan, &self.roles, facts);
        let mut search = self.search.take().unwrap_or_else(|| basis.begin());
        let mut next = basis.next(&mut search, round, self.closed(facts));
        if matches!(next, Next::Search(_)) && !self.has_time(SEARCH_PART) {
            self.closed = self.closed.or(Some(round));
            next = basis.next(&mut search, round, self.closed(facts));
        }
        self.search = Some(search);
        next
    }
}

fn basis<'a>(plan: &'a Plan, roles: &'a [Role], facts: &'a Facts) -> Basis<'a> {
    let rules = &plan.rules;
    Basis {
        rules,
        roles,
        facts,
    }
}

impl Guide for Pilot<'_> {
    fn round(&mut self, round: u64, run: &Run) -> Round {
        let facts = self.facts(run);
        let next = self.next(round, &facts);
        let executions = self.plan.rules.executions;
        let (pairs, rest) = match next {
            Next::Search(members) => {
                let left = executions.saturating_sub(round).max(1);
                let rest = members.len() as u64 * left + CONFIRMED * executions;
                (members, rest)
            }
            Next::Confirmation(_) if !self.has_time(1.0) => {
                self.is_late = true;
                (Vec::new(), 0)
            }
            Next::Confirmation(members) => {
                let begun = facts.confirmed_from.unwrap_or(round);
                let left = executions.saturating_sub(round - begun).max(1);
                let rest = members.len() as u64 * left;
                let of_confirmation = |n: usize| n + self.names.len();
                (members.into_iter().map(of_confirmation).collect(), rest)
            }
            Next::End => (Vec::new(), 0),
        };
        self.last = Some(Instant::now());
        let limit = self.plan.time_limit;
        Round {
            pairs,
            rest,
            left: limit.map(|limit| limit.saturating_sub(self.started.elapsed())),
            each: limit.map(|limit| limit.mul_f64(LONGEST)),
        }
    }
}

impl Plan {
    /// What is wrong with it.
    ///
    /// # Errors
    /// A line that says what, and what to do.
    pub fn check(&self) -> Result<(), String> {
        let executions = self.rules.executions;
        match () {
            () if executions < FEW => Err(format!(
                "--executions {executions}: too few to conclude anything; give at least {FEW}"
            )),
            () if self.candidates.len() < 2 => {
                Err("none of the candidates can be offered here (see `quire doctor`)".into())
            }
            () => Ok(()),
        }
    }
}
