//! Who is still in the race, round by round.
//!
//! All candidates run in every round, but for those with both a policy and a strategy: of
//! these one is called in after half of the rounds, or when only one rival is left, that of
//! the policy and the strategy that are best by then, if neither is worse than plain.
//! After 5, 7, 10, 14, 20 and so on rounds, each √2 times as many
//! as before, those leave that are significantly worse than the one that is best then.
//!
//! That is a lot of looks at a lot of pairs, so the chance of an error, 5 %, is divided
//! (Bonferroni): look l has 1/(l·(l + 1)) of it, which adds up to 1 over any number of
//! looks, and each pair of candidates has an equal part of that. So the best candidate
//! stays to the end with 95 %, however many there are.

use super::candidate::Role;
use super::facts::{Facts, Series};
use super::interval;
use super::{ERROR, FEW, Goal, Rules};
use crate::judge::{Shift, Values};
use crate::run::Better;

/// No more than this go from the search into the confirmation.
const FINALISTS: usize = 2;

/// Where a candidate is.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// It may be called in.
    Waiting,
    /// It runs in every round.
    In,
    /// More of its executions failed than of the program without quire; why the last did.
    Failed(String),
    /// It is significantly worse than that candidate.
    Worse {
        /// Which.
        than: usize,
    },
    /// Its mean is significantly beyond the tolerance.
    Slow,
}

/// What a decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct Basis<'a> {
    /// By which rules.
    pub rules: &'a Rules,
    /// The parts that candidates have.
    pub roles: &'a [Role],
    /// What there is.
    pub facts: &'a Facts,
}

/// The search after so many rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Search {
    /// Where the candidates are.
    pub states: Vec<State>,
    /// How many rounds were made.
    pub rounds: u64,
    /// Whether it was decided who is called in.
    pub has_called: bool,
}

impl Basis<'_> {
    /// How many times the mean of one is that of the other: less than 1 is better,
    /// whatever the metric.
    pub(super) fn cost(&self, new: &Values, old: &Values) -> Result<Shift, String> {
        let ratio = interval::of_means(new, old)?;
        Ok(match self.facts.better {
            Better::Lower => ratio,
            Better::Higher => ratio.inverse(),
        })
    }

    /// How many times as bad the one is as the other, by the goal.
    pub(super) fn score(&self, new: &Values, old: &Values) -> Result<Shift, String> {
        match self.rules.goal {
            Goal::Mean => self.cost(new, old),
            Goal::Determinism => interval::of_variations(new, old),
        }
    }

    /// The search before its first round.
    #[must_use]
    pub fn begin(&self) -> Search {
        let begins = |role: &Role| match role {
            Role::Both { .. } => State::Waiting,
            _ => State::In,
        };
        Search {
            states: self.roles.iter().map(begins).collect(),
            rounds: 0,
            has_called: false,
        }
    }

    /// Goes on with a search until so many rounds were made, or until it is over.
    pub fn go_on(&self, search: &mut Search, until: u64) {
        while search.rounds < until && !self.is_over(search) {
            search.rounds += 1;
            self.judge_failures(search);
            if let Some(look) = look(search.rounds) {
                self.judge(search, look);
            }
            let is_half = search.rounds == self.rules.executions / 2;
            let is_time = is_half || search.rivals().len() < 2;
            if self.can_call(search) && search.rounds >= FEW && is_time {
                self.call(search);
            }
        }
    }

    /// Whether more rounds of the search would say nothing more.
    #[must_use]
    pub fn is_over(&self, search: &Search) -> bool {
        let rivals = search.rivals();
        search.rounds >= self.rules.executions
            || rivals.is_empty()
            || (rivals.len() == 1 && !self.can_call(search))
            || self.is_broken(&self.facts.search, search.rounds)
    }

    /// Whether there is somebody to be called in, and time for it.
    fn can_call(&self, search: &Search) -> bool {
        let has_time = search.rounds + FEW <= self.rules.executions;
        has_time && !search.has_called && self.next_called(search).is_some()
    }

    /// Who would be called in now: the best policy with the best strategy.
    fn next_called(&self, search: &Search) -> Option<usize> {
        let policy = self.best_part(search, Role::Policy)?;
        let strategy = self.best_part(search, Role::Strategy)?;
        let both = Role::Both { policy, strategy };
        self.roles.iter().position(|role| *role == both)
    }

    /// The best of a kind, of which it is not known that it is worse than plain. It may have
    /// left, because another kind gains more.
    fn best_part(&self, search: &Search, role: Role) -> Option<usize> {
        let is_part = |n: &usize| {
            let state = &search.states[*n];
            self.roles[*n] == role && matches!(state, State::In | State::Worse { .. })
        };
        let score = |n: usize| self.beside_plain(n, search.rounds).ok();
        let parts = (0..self.roles.len()).filter(is_part);
        let scored = parts.filter_map(|n| Some((score(n)?, n)));
        let fit = scored.filter(|(score, _)| !score.is_above(1.0, 1.0 - ERROR));
        let best = fit.min_by(|a, b| a.0.ratio().total_cmp(&b.0.ratio()))?;
        Some(best.1)
    }

    /// Whether the program gave nothing without quire: then nothing can be compared.
    pub(super) fn is_broken(&self, series: &[Series], rounds: u64) -> bool {
        rounds > 0 && series[0].between(0, rounds).is_empty()
    }

    fn judge_failures(&self, search: &mut Search) {
        let failed = |n: usize| self.facts.search[n].failed(search.rounds);
        let allowed = failed(0).0;
        for n in search.rivals() {
            let (failures, why) = failed(n);
            if failures > allowed {
                search.states[n] = State::Failed(why.into());
            }
        }
    }

    /// Lets those leave that are significantly worse than the best.
    fn judge(&self, search: &mut Search, look: u64) {
        let all = self.roles.len() as f64;
        let pairs = (all * (all - 1.0) / 2.0).max(1.0);
        let confidence = 1.0 - ERROR / (look * (look + 1)) as f64 / pairs;
        if self.rules.goal == Goal::Determinism {
            for n in search.rivals() {
                let (own, plain) = self.common(n, 0, search.rounds);
                let limit = 1.0 + self.rules.tolerance;
                let cost = self.cost(&own, &plain);
                if cost.is_ok_and(|cost| cost.is_above(limit, confidence)) {
                    search.states[n] = State::Slow;
                }
            }
        }
        let best = self.best(search).unwrap_or(0);
        for n in search.rivals().into_iter().filter(|n| *n != best) {
            let (own, other) = self.common(n, best, search.rounds);
            let score = self.score(&own, &other);
            if score.is_ok_and(|score| score.is_above(1.0, confidence)) {
                search.states[n] = State::Worse { than: best };
            }
        }
    }

    /// What two candidates gave in the rounds in which both were in.
    fn common(&self, a: usize, b: usize, end: u64) -> (Values, Values) {
        let series = &self.facts.search;
        let first = series[a].first().max(series[b].first()).unwrap_or(0);
        (series[a].between(first, end), series[b].between(first, end))
    }

    /// The score of a candidate beside the program without quire.
    fn beside_plain(&self, n: usize, end: u64) -> Result<Shift, String> {
        let (own, plain) = self.common(n, 0, end);
        self.score(&own, &plain)
    }

    /// The best of those that are in, the program without quire included.
    fn best(&self, search: &Search) -> Option<usize> {
        let score = |n: usize| match n {
            0 => Some(1.0),
            _ => self.beside_plain(n, search.rounds).ok().map(|s| s.ratio()),
        };
        let members = search.members().into_iter();
        let scored = members.filter_map(|n| Some((score(n)?, n)));
        let best = scored.min_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(best.1)
    }

    /// Calls in the best policy with the best strategy.
    fn call(&self, search: &mut Search) {
        if let Some(n) = self.next_called(search) {
            search.states[n] = State::In;
        }
        search.has_called = true;
    }

    /// Who goes into the confirmation, the best first: the one or two that are best, and
    /// that may be better than the program without quire by more than the threshold.
    #[must_use]
    pub fn finalists(&self, search: &Search) -> Vec<usize> {
        let rivals = search.rivals();
        if rivals.len() == 1 && search.rounds < FEW {
            return rivals;
        }
        let may_win = |n: usize| {
            let score = self
                .beside_plain(n, search.rounds)
                .ok()?
                .interval(1.0 - ERROR);
            let is_better = score.value < 1.0 && score.ci_low < 1.0 - self.rules.threshold;
            is_better.then_some((score.value, n))
        };
        let mut best: Vec<(f64, usize)> = rivals.into_iter().filter_map(may_win).collect();
        best.sort_by(|a, b| a.0.total_cmp(&b.0));
        best.truncate(FINALISTS);
        best.into_iter().map(|(_, n)| n).collect()
    }
}

impl Search {
    /// Who runs, by number.
    #[must_use]
    pub fn members(&self) -> Vec<usize> {
        let all = 0..self.states.len();
        all.filter(|n| self.states[*n] == State::In).collect()
    }

    /// The same without the program without quire.
    #[must_use]
    pub fn rivals(&self) -> Vec<usize> {
        self.members().into_iter().filter(|n| *n > 0).collect()
    }
}

/// The number of the look that is taken after so many rounds, from 1 on.
fn look(rounds: u64) -> Option<u64> {
    let at = |n: u64| (FEW as f64 * 2f64.powf(n as f64 / 2.0)).round() as u64;
    let found = (0..64).find(|n| at(*n) >= rounds)?;
    (at(found) == rounds).then_some(found + 1)
}

#[cfg(test)]
mod tests {
    use quire_stats::random::SplitMix64;

    use super::*;

    #[test]
    fn looks_become_rare() {
        let looks: Vec<(u64, u64)> = (0..60)
            .filter_map(|n| look(n).map(|look| (n, look)))
            .collect();
        let rounds: Vec<u64> = looks.iter().map(|(n, _)| *n).collect();
        let numbers: Vec<u64> = looks.iter().map(|(_, look)| *look).collect();
        assert_eq!(rounds, [5, 7, 10, 14, 20, 28, 40, 57]);
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    fn after(basis: &Basis, rounds: u64) -> Search {
        let mut search = basis.begin();
        basis.go_on(&mut search, rounds);
        search
    }

    fn facts(means: &[f64], rounds: u64) -> Facts {
        let mut facts = Facts::none(means.len());
        for (n, (series, mean)) in facts.search.iter_mut().zip(means).enumerate() {
            // Some noise, of each by itself: what is the same for all would be a drift.
            let mut random = SplitMix64::new(n as u64);
            for round in 0..rounds {
                let noise = [0.99, 1.0, 1.01][random.below(3)];
                series.values.insert(round, vec![mean * noise]);
            }
        }
        facts
    }

    const RULES: Rules = Rules {
        goal: Goal::Mean,
        threshold: 0.01,
        tolerance: 0.05,
        executions: 20,
    };

    #[test]
    fn the_worse_leave_and_the_combination_of_the_best_is_called() {
        use Role::{Both, Plain, Policy, Strategy};
        let both = |policy, strategy| Both { policy, strategy };
        let roles = [
            Plain,
            Policy,
            Policy,
            Strategy,
            Strategy,
            both(1, 3),
            both(2, 3),
            both(2, 4),
        ];
        let mut facts = facts(&[1.0, 1.5, 0.8, 1.001, 1.002, 0.7, 0.7, 0.7], 20);
        // Who is not in has nothing.
        for n in [5, 6, 7] {
            facts.search[n].values.retain(|round, _| *round >= 5);
        }
        let basis = Basis {
            rules: &RULES,
            roles: &roles,
            facts: &facts,
        };
        let after = |rounds| after(&basis, rounds);
        assert_eq!(after(4).members(), [0, 1, 2, 3, 4]);
        assert_eq!(after(5).states[1], State::Worse { than: 2 });
        // The strategies left, too, far behind the policy. As it is the only rival then, it
        // is joined by its combination with the best of them.
        assert_eq!(after(5).states[3], State::Worse { than: 2 });
        assert_eq!(after(5).members(), [0, 2, 6]);
        let search = after(20);
        assert_eq!(search.states[2], State::Worse { than: 6 });
        assert_eq!(basis.finalists(&search), [6]);
        assert!(basis.is_over(&search));
    }

    #[test]
    fn a_combination_is_called_where_its_parts_are_in() {
        use Role::{Both, Plain, Policy, Strategy};
        let both = |policy, strategy| Both { policy, strategy };
        let roles = [Plain, Policy, Policy, Strategy, both(1, 3), both(2, 3)];
        let mut facts = facts(&[1.0, 0.99, 0.995, 0.992, 0.9, 0.9], 20);
        facts.search[4].values.retain(|round, _| *round >= 10);
        let basis = Basis {
            rules: &RULES,
            roles: &roles,
            facts: &facts,
        };
        assert_eq!(after(&basis, 9).members(), [0, 1, 2, 3]);
        assert_eq!(after(&basis, 10).members(), [0, 1, 2, 3, 4]);
        // Where there are few executions, nothing is.
        let few = Rules {
            executions: 9,
            ..RULES
        };
        let basis = Basis {
            rules: &few,
            ..basis
        };
        assert_eq!(after(&basis, 9).members(), [0, 1, 2, 3]);
    }

    #[test]
    fn who_fails_more_often_than_plain_leaves() {
        let roles = [Role::Plain, Role::Other, Role::Other];
        let mut facts = facts(&[1.0, 1.0, 1.0], 20);
        facts.search[0].failures.insert(3, "flaky".into());
        facts.search[1].failures.insert(2, "early".into());
        facts.search[2].failures.insert(4, "once".into());
        facts.search[2].failures.insert(6, "twice".into());
        let basis = Basis {
            rules: &RULES,
            roles: &roles,
            facts: &facts,
        };
        assert_eq!(after(&basis, 3).states[1], State::Failed("early".into()));
        assert_eq!(after(&basis, 6).states[2], State::In);
        // One rival is left after round 3, so nothing is left to be searched.
        assert!(basis.is_over(&after(&basis, 6)));
    }

    #[test]
    fn a_program_that_fails_without_quire_ends_it() {
        let roles = [Role::Plain, Role::Other, Role::Other];
        let mut facts = facts(&[1.0, 1.0, 1.0], 20);
        facts.search[0].values.clear();
        let basis = Basis {
            rules: &RULES,
            roles: &roles,
            facts: &facts,
        };
        assert!(!basis.is_over(&after(&basis, 0)));
        assert_eq!(after(&basis, 20).rounds, 1);
    }
}
