//! Races of simulated candidates: what is said is true often enough.

use proptest::prelude::*;
use quire_stats::random::SplitMix64;

use super::candidate::Role;
use super::facts::Facts;
use super::search::{Basis, State};
use super::verdict::{Next, Outcome, Verdict, outcome};
use super::{Goal, Rules};
use crate::run::Better;

/// Random numbers of some distributions.
struct Dice(SplitMix64);

impl Dice {
    fn uniform(&mut self) -> f64 {
        (self.0.below(1 << 40) as f64 + 0.5) / (1u64 << 40) as f64
    }

    /// Of the normal distribution (Box and Muller).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// How measurements are spread.
#[derive(Clone, Copy, Debug)]
enum Spread {
    Normal,
    /// Skewed, as times are.
    LogNormal,
    /// One in ten takes much longer, as on a busy machine.
    Outliers,
}

/// A candidate: its mean and its coefficient of variation.
#[derive(Clone, Copy, Debug)]
struct Sim {
    mean: f64,
    variation: f64,
    spread: Spread,
}

impl Sim {
    fn draw(&self, dice: &mut Dice) -> f64 {
        let Sim {
            mean,
            variation,
            spread,
        } = *self;
        match spread {
            Spread::Normal => mean * (1.0 + variation * dice.normal()),
            Spread::LogNormal => mean * (variation * dice.normal()).exp(),
            Spread::Outliers => {
                let late = if dice.uniform() < 0.1 {
                    5.0 * variation * dice.uniform()
                } else {
                    0.0
                };
                mean * (1.0 + 0.3 * variation * dice.normal() + late)
            }
        }
    }
}

fn rules(goal: Goal) -> Rules {
    Rules {
        goal,
        threshold: 0.01,
        tolerance: 0.05,
        executions: match goal {
            Goal::Mean => 20,
            Goal::Determinism => 30,
        },
    }
}

/// Four policies, three strategies and their combinations, after the program itself.
fn roles() -> Vec<Role> {
    let mut roles = vec![Role::Plain];
    roles.extend([Role::Policy; 4]);
    roles.extend([Role::Strategy; 3]);
    for policy in 2..5 {
        roles.extend((5..8).map(|strategy| Role::Both { policy, strategy }));
    }
    roles
}

/// The facts of a race of candidates to its end.
fn facts(rules: &Rules, roles: &[Role], sims: &[Sim], seed: u64, better: Better) -> Facts {
    let mut dice = Dice(SplitMix64::new(seed));
    let mut facts = Facts {
        better,
        ..Facts::none(roles.len())
    };
    let mut search = None;
    for round in 0.. {
        let basis = Basis {
            rules,
            roles,
            facts: &facts,
        };
        let search = search.get_or_insert_with(|| basis.begin());
        let (members, place) = match basis.next(search, round, facts.confirmed_from) {
            Next::Search(members) => (members, None),
            Next::Confirmation(members) => {
                let from = *facts.confirmed_from.get_or_insert(round);
                (members, Some(round - from))
            }
            Next::End => break,
        };
        for n in members {
            let values = vec![sims[n].draw(&mut dice)];
            match place {
                None => facts.search[n].values.insert(round, values),
                Some(place) => facts.confirmation[n].values.insert(place, values),
            };
        }
    }
    facts
}

fn race(rules: &Rules, roles: &[Role], sims: &[Sim], seed: u64, better: Better) -> Verdict {
    let facts = &facts(rules, roles, sims, seed, better);
    let basis = Basis {
        rules,
        roles,
        facts,
    };
    basis.verdict(facts.confirmed_from)
}

fn alike(variation: f64, spread: Spread) -> Vec<Sim> {
    vec![
        Sim {
            mean: 1.0,
            variation,
            spread
        };
        roles().len()
    ]
}

/// Of so many races, how many end with `wanted`.
fn count(races: u64, goal: Goal, sims: &[Sim], wanted: impl Fn(&Outcome) -> bool) -> u64 {
    let roles = roles();
    let rules = &rules(goal);
    let run = |seed: u64| {
        let facts = &facts(rules, &roles, sims, seed * 7919 + 1, Better::Lower);
        let basis = Basis {
            rules,
            roles: &roles,
            facts,
        };
        outcome(&basis, facts.confirmed_from)
    };
    (0..races).filter(|seed| wanted(&run(*seed))).count() as u64
}

const SPREADS: [Spread; 3] = [Spread::Normal, Spread::LogNormal, Spread::Outliers];

fn none_is_said_to_differ(goal: Goal, spread: Spread) {
    let sims = alike(0.04, spread);
    let none = count(200, goal, &sims, |outcome| *outcome == Outcome::None);
    println!("{goal}, {spread:?}: none differs in {none} of 200");
    assert!(none >= 190, "{goal}, {spread:?}: {none} of 200");
}

#[test]
fn where_no_mean_differs_none_is_said_to() {
    for spread in SPREADS {
        none_is_said_to_differ(Goal::Mean, spread);
    }
}

#[test]
fn where_no_variation_differs_none_is_said_to() {
    none_is_said_to_differ(Goal::Determinism, Spread::Normal);
    none_is_said_to_differ(Goal::Determinism, Spread::LogNormal);
}

#[test]
fn rare_outliers_are_not_taken_for_a_difference_of_variation() {
    none_is_said_to_differ(Goal::Determinism, Spread::Outliers);
}

#[test]
fn the_one_that_is_a_tenth_better_is_found() {
    for spread in SPREADS {
        let mut sims = alike(0.04, spread);
        sims[3].mean = 0.9;
        // What is combined with it gains as much.
        for n in [11, 12, 13] {
            sims[n].mean = 0.9;
        }
        let found = |outcome: &Outcome| match outcome {
            Outcome::Best { candidate, .. } => [3, 11, 12, 13].contains(candidate),
            _ => false,
        };
        let found = count(100, Goal::Mean, &sims, found);
        println!("{spread:?}: found in {found} of 100");
        assert!(found >= 95, "{spread:?}: {found} of 100");
    }
}

#[test]
fn the_combination_is_found_where_it_is_better_than_both_parts() {
    let mut sims = alike(0.03, Spread::Normal);
    sims[3].mean = 0.95;
    sims[6].mean = 0.95;
    sims[12].mean = 0.9;
    let is_it = |outcome: &Outcome| matches!(outcome, Outcome::Best { candidate: 12, .. });
    let found = count(100, Goal::Mean, &sims, is_it);
    assert!(found >= 85, "{found} of 100");
}

#[test]
fn the_one_that_varies_less_is_found() {
    for spread in [Spread::Normal, Spread::LogNormal] {
        let mut sims = alike(0.05, spread);
        sims[5].variation = 0.015;
        let is_it = |outcome: &Outcome| matches!(outcome, Outcome::Best { candidate: 5, .. });
        let found = count(50, Goal::Determinism, &sims, is_it);
        println!("{spread:?}: found in {found} of 50");
        assert!(found >= 45, "{spread:?}: {found} of 50");
    }
}

#[test]
fn determinism_is_not_bought_with_a_mean_beyond_the_tolerance() {
    let mut sims = alike(0.06, Spread::Normal);
    sims[5].variation = 0.01;
    sims[5].mean = 1.2;
    let is_it = |outcome: &Outcome| matches!(outcome, Outcome::Best { candidate: 5, .. });
    let chosen = count(100, Goal::Determinism, &sims, is_it);
    assert_eq!(chosen, 0);
}

#[test]
fn the_worse_leave_early_and_the_best_stays() {
    let mut sims = alike(0.02, Spread::Normal);
    sims[1].mean = 1.3;
    sims[4].mean = 0.9;
    let (mut early, mut lost) = (0, 0);
    for seed in 0..100 {
        let verdict = race(&rules(Goal::Mean), &roles(), &sims, seed, Better::Lower);
        early += u64::from(verdict.rows[1].executions <= 7);
        lost += u64::from(matches!(verdict.rows[4].state, State::Worse { .. }));
        assert!(matches!(verdict.rows[0].state, State::In), "plain stays");
    }
    assert!(early >= 95, "{early}");
    assert!(lost <= 5, "{lost}");
}

#[test]
fn more_can_be_better() {
    let mut sims = alike(0.03, Spread::Normal);
    sims[2].mean = 1.15;
    sims[3].mean = 0.85;
    let verdict = race(&rules(Goal::Mean), &roles(), &sims, 5, Better::Higher);
    assert!(matches!(
        verdict.outcome,
        Outcome::Best { candidate: 2, .. }
    ));
    assert!(
        verdict.rows[2]
            .ratio
            .as_ref()
            .unwrap()
            .as_ref()
            .unwrap()
            .ci_low
            > 1.0
    );
    assert!(matches!(verdict.rows[3].state, State::Worse { .. }));
}

#[test]
fn the_gain_is_that_of_fresh_executions() {
    // All are alike, so whoever leads the search leads by luck. In the confirmation the
    // ratios of the finalists are 1 on average.
    let sims = alike(0.05, Spread::Normal);
    let (mut sum, mut n) = (0.0, 0.0);
    for seed in 0..100 {
        let verdict = race(
            &rules(Goal::Mean),
            &roles(),
            &sims,
            seed + 1000,
            Better::Lower,
        );
        for finalist in &verdict.finalists {
            let row = &verdict.rows[*finalist];
            assert!(row.is_confirmed);
            sum += row.ratio.as_ref().unwrap().as_ref().unwrap().value;
            n += 1.0;
        }
    }
    assert!(n > 40.0, "{n}");
    assert!((sum / n - 1.0f64).abs() < 0.008, "{}", sum / n);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever candidates do, a race ends, executes none too often, and says the same
    /// when it is asked again.
    #[test]
    fn races_end_and_are_repeatable(
        means in prop::collection::vec(0.5f64..2.0, 17),
        variations in prop::collection::vec(0.0f64..0.3, 17),
        executions in 5u64..24,
        seed: u64,
        determinism: bool,
    ) {
        let goal = if determinism { Goal::Determinism } else { Goal::Mean };
        let rules = Rules { executions, ..rules(goal) };
        let sims: Vec<Sim> = means.iter().zip(&variations)
            .map(|(mean, variation)| Sim { mean: *mean, variation: *variation, spread: Spread::LogNormal })
            .collect();
        let verdict = race(&rules, &roles(), &sims, seed, Better::Lower);
        prop_assert!(verdict.search_rounds <= executions);
        prop_assert!(verdict.confirmation_rounds <= executions);
        prop_assert!(verdict.finalists.len() <= 2);
        for (n, row) in verdict.rows.iter().enumerate() {
            prop_assert!(row.executions as u64 <= 2 * executions);
            prop_assert_eq!(row.is_confirmed, verdict.confirmation_rounds > 0 && (n == 0 || verdict.finalists.contains(&n)));
        }
        if let Outcome::Best { candidate, .. } = &verdict.outcome {
            prop_assert!(verdict.finalists.contains(candidate));
            let row = &verdict.rows[*candidate];
            let ratio = if determinism { &row.variation_ratio } else { &row.ratio };
            let ratio = ratio.as_ref().unwrap().as_ref().unwrap();
            prop_assert!(ratio.ci_high < 1.0 && ratio.value < 1.0 - rules.threshold);
        }
        let again = race(&rules, &roles(), &sims, seed, Better::Lower);
        prop_assert_eq!(verdict, again);
    }
}
