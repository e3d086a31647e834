//! What results say: every experiment with its figures, the variants of each benchmark
//! against each other, and how variants rank over all benchmarks (paper 002, sections 4
//! to 6).
//!
//! | module | holds |
//! |---|---|
//! | [`experiment`] | one benchmark, one variant, one metric: mean, variation, impact factor |
//! | [`pair`] | two variants: the ratio of their means, and what it allows to conclude |
//! | [`standing`] | ranks over all benchmarks, and the tables by threshold |
//! | [`number`] | numbers as people read them |
//! | [`html`], [`markdown`], [`data`] | the forms that a report comes in |
//! | `notes` | what readers of an experiment's figures should bear in mind |

pub mod data;
pub mod experiment;
pub mod html;
pub mod markdown;
pub(crate) mod notes;
pub mod number;
pub mod pair;
pub mod standing;

use quire_stats::Settings;

use crate::parallel;
use crate::run::{Metric, Run, are_in_rounds};
pub use experiment::{Experiment, Figure};
pub use pair::{Effect, Pair, Verdict};
pub use standing::{Change, Ranking, Standing};

/// All that a report says.
#[derive(Clone, Debug)]
pub struct Report {
    /// The results, without the executions, which are in the experiments.
    pub run: Run,
    /// How many executions gave something.
    pub executions: usize,
    /// How intervals are computed.
    pub settings: Settings,
    /// The experiments: benchmarks together, in the order in which they first came.
    pub experiments: Vec<Experiment>,
    /// The variants of each benchmark against the first one, in the primary metrics.
    pub pairs: Vec<Pair>,
    /// How variants rank.
    pub standings: Vec<Standing>,
}

impl Report {
    /// Computes everything.
    #[must_use]
    pub fn of(mut run: Run, settings: Settings) -> Report {
        let primary: Vec<String> = run
            .primary_metrics()
            .into_iter()
            .map(str::to_owned)
            .collect();
        let variants = run.all_variants().into_iter().map(str::to_owned).collect();
        let executions = std::mem::take(&mut run.executions);
        let count = executions.len();
        let groups = experiment::groups(variants, executions);
        let kind = |name: &str| run.header.metrics.get(name).cloned().unwrap_or_default();
        let experiments = parallel::map(groups, |group| {
            let is_primary = primary.contains(&group.metric);
            let better = kind(&group.metric).better;
            Experiment::of(group, is_primary, better, &settings)
        });
        let pairs = pairs(&experiments, kind, &settings);
        let standings = primary
            .iter()
            .flat_map(|metric| standing::standings(metric, &kind(metric), &experiments, &pairs))
            .collect();
        Report {
            executions: count,
            experiments,
            pairs,
            standings,
            settings,
            run,
        }
    }

    /// What is known of a metric.
    #[must_use]
    pub fn metric(&self, name: &str) -> Metric {
        let metrics = &self.run.header.metrics;
        metrics.get(name).cloned().unwrap_or_default()
    }

    /// The experiments of each benchmark.
    pub fn by_benchmark(&self) -> impl Iterator<Item = &[Experiment]> {
        self.experiments.chunk_by(|a, b| a.benchmark == b.benchmark)
    }
}

/// The variants of each benchmark against the first one, in each primary metric.
fn pairs(
    experiments: &[Experiment],
    kind: impl Fn(&str) -> Metric,
    settings: &Settings,
) -> Vec<Pair> {
    let mut couples = Vec::new();
    for rows in experiments.chunk_by(|a, b| a.benchmark == b.benchmark) {
        for (n, old) in rows.iter().enumerate().filter(|(_, one)| one.primary) {
            let same = |one: &&Experiment| one.metric == old.metric;
            if !rows[..n].iter().any(|one| same(&one)) {
                couples.extend(rows[n + 1..].iter().filter(same).map(|new| (new, old)));
            }
        }
    }
    let effect = |(new, old): &(&Experiment, &Experiment)| {
        let in_rounds = are_in_rounds(&new.orders, &old.orders);
        Effect::of(&new.sample, &old.sample, in_rounds, settings)
    };
    let mut effects: Vec<Effect> = couples.iter().map(effect).collect();
    pair::together(effects.iter_mut());
    let pair = |((new, old), effect): (&(&Experiment, &Experiment), Effect)| {
        Pair::of(new, old, &kind(&new.metric), effect)
    };
    couples.iter().zip(effects).map(pair).collect()
}
