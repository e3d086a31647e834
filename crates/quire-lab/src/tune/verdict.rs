//! The confirmation, and what it says.
//!
//! The finalists and the program without quire run again, side by side, in rounds of
//! their own. One of them is better when the interval of its ratio to plain lies wholly
//! below 1, and the ratio is below 1 by more than the threshold. That is looked at after
//! half of the rounds and at the end. The chance of an error, 5 %, is divided among the
//! finalists and the two looks (Bonferroni): where none differs, none is said to with at
//! least 95 %.
//!
//! Where determinism is wanted, a permutation test has to agree, with the same chance of an
//! error ([`interval::chance_of_less_variation`]). And the mean has to be known to be within the tolerance, too:
//! the upper end of its interval, not the mean itself.

use super::facts::{Facts, Series};
use super::interval::{self, Interval};
use super::search::{Basis, Search, State};
use super::{ERROR, FEW, Goal, Rules};
use crate::judge::{self, Judged, Sample, Shift, Values};

/// So often the confirmation is looked at.
const LOOKS: f64 = 2.0;

/// What is executed next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// These, in the search.
    Search(Vec<usize>),
    /// These, in the confirmation.
    Confirmation(Vec<usize>),
    /// Nothing.
    End,
}

/// What it comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// What can be said.
    pub outcome: Outcome,
    /// Every candidate, in its order.
    pub rows: Vec<Row>,
    /// How many rounds the search had.
    pub search_rounds: u64,
    /// How many rounds the confirmation had.
    pub confirmation_rounds: u64,
    /// The finalists, the best of the search first.
    pub finalists: Vec<usize>,
}

/// What can be said.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// This candidate is better than the program without quire.
    Best {
        /// Which.
        candidate: usize,
        /// Others that are, too, and of which it is not known whether they are worse.
        as_good: Vec<usize>,
    },
    /// None is.
    None,
    /// Nothing, for this reason.
    Unknown(String),
}

/// What is known of a candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Where it is.
    pub state: State,
    /// Whether the figures are those of the confirmation.
    pub is_confirmed: bool,
    /// How many executions gave something, in both parts.
    pub executions: usize,
    /// How many failed.
    pub failures: usize,
    /// The mean, with 95 % confidence.
    pub mean: Interval,
    /// The coefficient of variation over all measurements, with 95 % confidence.
    pub variation: Interval,
    /// How many times that of plain the mean is, as confident as the decision.
    pub ratio: Option<Interval>,
    /// The same of the variation.
    pub variation_ratio: Option<Interval>,
}

/// The confirmation after so many rounds.
struct Confirmation<'a> {
    basis: &'a Basis<'a>,
    finalists: &'a [usize],
    rounds: u64,
}

impl Basis<'_> {
    /// What is executed in a round of the run, where the search is closed before round
    /// `closed`, because there is no time or because the confirmation has begun. `search`
    /// is that of the rounds before.
    #[must_use]
    pub fn next(&self, search: &mut Search, round: u64, closed: Option<u64>) -> Next {
        self.go_on(search, round.min(closed.unwrap_or(u64::MAX)));
        if search.rounds == round && !self.is_closed(search, closed) {
            return Next::Search(search.members());
        }
        if self.is_broken(&self.facts.search, search.rounds) || self.is_too_short(search) {
            return Next::End;
        }
        let finalists = self.finalists(search);
        let confirmation = self.confirmation(&finalists, round - search.rounds);
        match confirmation.is_over() {
            true => Next::End,
            false => Next::Confirmation(confirmation.members()),
        }
    }

    fn is_closed(&self, search: &Search, closed: Option<u64>) -> bool {
        self.is_over(search) || closed.is_some_and(|closed| search.rounds >= closed)
    }

    /// Whether the search was closed before anything could be said.
    fn is_too_short(&self, search: &Search) -> bool {
        search.rounds < FEW && search.rivals().len() > 1
    }

    /// The confirmation after so many rounds, or as it ended before that.
    fn confirmation<'a>(&'a self, finalists: &'a [usize], until: u64) -> Confirmation<'a> {
        let mut confirmation = Confirmation {
            basis: self,
            finalists,
            rounds: 0,
        };
        while confirmation.rounds < until && !confirmation.is_over() {
            confirmation.rounds += 1;
        }
        confirmation
    }

    /// What all that there is comes to.
    #[must_use]
    pub fn verdict(&self, closed: Option<u64>) -> Verdict {
        let (search, finalists) = self.searched(closed);
        let confirmation = self.confirmation(&finalists, made(&self.facts.confirmation));
        let candidates = 0..self.roles.len();
        Verdict {
            outcome: self.outcome(&search, &confirmation, closed),
            rows: candidates
                .map(|n| self.row(n, &search, &confirmation))
                .collect(),
            search_rounds: search.rounds,
            confirmation_rounds: confirmation.rounds,
            finalists: finalists.clone(),
        }
    }

    /// The whole search, and its finalists if it is over.
    fn searched(&self, closed: Option<u64>) -> (Search, Vec<usize>) {
        let mut search = self.begin();
        let made = made(&self.facts.search);
        self.go_on(&mut search, made.min(closed.unwrap_or(u64::MAX)));
        let finalists = match self.is_closed(&search, closed) {
            true => self.finalists(&search),
            false => Vec::new(),
        };
        (search, finalists)
    }

    fn outcome(
        &self,
        search: &Search,
        confirmation: &Confirmation,
        closed: Option<u64>,
    ) -> Outcome {
        match self.unknown(search, confirmation, closed) {
            Some(why) => Outcome::Unknown(why),
            None => confirmation.outcome(),
        }
    }

    /// Why nothing can be said, where that is so.
    fn unknown(
        &self,
        search: &Search,
        confirmation: &Confirmation,
        closed: Option<u64>,
    ) -> Option<String> {
        for (series, rounds) in [
            (&self.facts.search, search.rounds),
            (&self.facts.confirmation, confirmation.rounds),
        ] {
            if self.is_broken(series, rounds) {
                return Some(match series[0].failed(rounds) {
                    (0, _) => "the program was not measured without quire".into(),
                    (_, why) => format!("the program fails without quire, too: {why}"),
                });
            }
        }
        if !self.is_closed(search, closed) {
            return Some("it was ended before the search was over".into());
        }
        if self.is_too_short(search) {
            return Some(format!(
                "{} rounds are too few, it takes {FEW}; allow more time",
                search.rounds
            ));
        }
        let rounds = confirmation.rounds;
        (rounds < FEW && !confirmation.is_over()).then(|| {
            format!(
                "{rounds} rounds of the confirmation are too few, it takes {FEW}; allow more time"
            )
        })
    }

    fn row(&self, n: usize, search: &Search, confirmation: &Confirmation) -> Row {
        let Facts {
            search: searched,
            confirmation: confirmed,
            ..
        } = self.facts;
        let is_confirmed =
            confirmation.rounds > 0 && (n == 0 || confirmation.finalists.contains(&n));
        let (series, rounds) = match is_confirmed {
            true => (confirmed, confirmation.rounds),
            false => (searched, search.rounds),
        };
        let from = series[n].first().unwrap_or(0);
        let (own, plain) = (
            series[n].between(0, rounds),
            series[0].between(from, rounds),
        );
        let confidence = match is_confirmed {
            true => confirmation.confidence(),
            false => 1.0 - ERROR / (self.roles.len() as f64 - 1.0).max(1.0),
        };
        let beside = |of: fn(&Values, &Values) -> Result<Shift, String>| {
            (n > 0).then(|| of(&own, &plain).map(|ratio| ratio.interval(confidence)))
        };
        let state = match confirmation.failure(n) {
            Some(why) => State::Failed(why),
            None => search.states[n].clone(),
        };
        Row {
            state,
            is_confirmed,
            executions: searched[n].values.len() + confirmed[n].values.len(),
            failures: searched[n].failures.len() + confirmed[n].failures.len(),
            mean: estimated(&own, judge::mean),
            variation: estimated(&own, judge::unclassified),
            ratio: beside(interval::of_means),
            variation_ratio: beside(interval::of_variations),
        }
    }
}

/// How many rounds there are of a part of the race.
fn made(series: &[Series]) -> u64 {
    let last = |one: &Series| one.values.keys().chain(one.failures.keys()).max().copied();
    let last = series.iter().filter_map(last).max();
    last.map_or(0, |last| last + 1)
}

/// What an estimator says of measurements by execution.
fn estimated(values: &Values, of: fn(&Sample, &judge::Settings) -> Judged) -> Interval {
    let sample = Sample::new(values.clone());
    let estimate = sample.and_then(|sample| of(&sample, &judge::settings(1)));
    estimate.map_err(|absent| absent.to_string())
}

impl Confirmation<'_> {
    fn rules(&self) -> &Rules {
        self.basis.rules
    }

    fn values(&self, n: usize) -> Values {
        self.basis.facts.confirmation[n].between(0, self.rounds)
    }

    /// As confident an interval has to be.
    fn confidence(&self) -> f64 {
        1.0 - ERROR / LOOKS / self.finalists.len().max(1) as f64
    }

    /// Why a finalist is out, where more of its executions failed than of plain.
    fn failure(&self, n: usize) -> Option<String> {
        let failed = |n: usize| self.basis.facts.confirmation[n].failed(self.rounds);
        let (failures, why) = failed(n);
        (n > 0 && failures > failed(0).0).then(|| why.into())
    }

    /// The finalists that are still in.
    fn rivals(&self) -> Vec<usize> {
        let all = self.finalists.iter().copied();
        all.filter(|n| self.failure(*n).is_none()).collect()
    }

    fn members(&self) -> Vec<usize> {
        [0].into_iter().chain(self.rivals()).collect()
    }

    fn score(&self, n: usize) -> Result<Shift, String> {
        self.basis.score(&self.values(n), &self.values(0))
    }

    /// Whether a finalist is better than plain.
    fn wins(&self, n: usize) -> bool {
        let is_better = |score: Shift| {
            score.ratio() < 1.0 - self.rules().threshold
                && score.inverse().is_above(1.0, self.confidence())
        };
        self.score(n).is_ok_and(is_better) && self.is_tolerable(n) && !self.may_be_chance(n)
    }

    /// Whether the mean is known to be within the tolerance, where that matters.
    fn is_tolerable(&self, n: usize) -> bool {
        let cost = || self.basis.cost(&self.values(n), &self.values(0));
        let limit = 1.0 + self.rules().tolerance;
        let is_below = |cost: Shift| cost.interval(self.confidence()).ci_high <= limit;
        self.rules().goal == Goal::Mean || cost().is_ok_and(is_below)
    }

    /// Whether a finalist may vary less by chance, where that matters.
    fn may_be_chance(&self, n: usize) -> bool {
        let chance = || interval::chance_of_less_variation(&self.values(n), &self.values(0));
        self.rules().goal == Goal::Determinism && chance() > (1.0 - self.confidence()) / 2.0
    }

    /// Those that are better than plain, the best first.
    fn winners(&self) -> Vec<usize> {
        let mut winners: Vec<usize> = self.rivals();
        winners.retain(|n| self.wins(*n));
        let value = |n: usize| self.score(n).map_or(f64::INFINITY, |score| score.ratio());
        winners.sort_by(|a, b| value(*a).total_cmp(&value(*b)));
        winners
    }

    /// Whether none can be better than plain by more than the threshold, as it seems. To
    /// stop then is no way to say too much.
    fn is_futile(&self) -> bool {
        let may_win = |n: &usize| {
            let limit = 1.0 - self.rules().threshold;
            self.score(*n)
                .is_ok_and(|score| score.interval(1.0 - ERROR).ci_low < limit)
        };
        !self.rivals().iter().any(may_win)
    }

    fn is_over(&self) -> bool {
        let half = self.rules().executions.div_ceil(2).max(FEW);
        self.rivals().is_empty()
            || self.rounds >= self.rules().executions
            || self
                .basis
                .is_broken(&self.basis.facts.confirmation, self.rounds)
            || (self.rounds == half && (!self.winners().is_empty() || self.is_futile()))
    }

    fn outcome(&self) -> Outcome {
        let winners = self.winners();
        let Some(best) = winners.first().copied() else {
            return Outcome::None;
        };
        let is_as_good = |n: &usize| {
            let score = self.basis.score(&self.values(*n), &self.values(best));
            score.is_ok_and(|score| !score.is_above(1.0, self.confidence()))
        };
        let as_good = winners[1..].iter().copied().filter(is_as_good).collect();
        Outcome::Best {
            candidate: best,
            as_good,
        }
    }
}

/// What a race comes to, without its rows: simulations ask for that often.
#[cfg(test)]
pub(super) fn outcome(basis: &Basis, closed: Option<u64>) -> Outcome {
    let (search, finalists) = basis.searched(closed);
    let confirmation = basis.confirmation(&finalists, made(&basis.facts.confirmation));
    basis.outcome(&search, &confirmation, closed)
}
