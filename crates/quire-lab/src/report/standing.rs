//! How variants rank over all benchmarks (paper 002, sections 4.3 and 4.4).
//!
//! Only benchmarks that have the same variants are counted together, and those with
//! several measurements per execution apart from those with one, as in the paper.

use quire_stats::geometric_mean;

use crate::judge::{self, Estimate};
use crate::report::experiment::{Experiment, Figure};
use crate::report::pair::{Pair, Verdict};
use crate::run::{Better, Metric};

/// Benchmarks that have the same variants.
#[derive(Clone, Debug)]
pub struct Standing {
    /// In which metric.
    pub metric: String,
    /// Whether executions have several measurements.
    pub grouped: bool,
    /// The variants, in the order of the tables.
    pub variants: Vec<String>,
    /// The benchmarks.
    pub benchmarks: Vec<String>,
    /// The ranks by each figure that all variants of some benchmark have.
    pub rankings: Vec<Ranking>,
    /// How the variants after the first compare with it.
    pub changes: Vec<Change>,
}

/// Ranks by one figure.
#[derive(Clone, Debug)]
pub struct Ranking {
    /// Which.
    pub figure: Figure,
    /// In how many benchmarks all variants have it.
    pub counted: usize,
    /// For each variant, in how many benchmarks it has the first, second, ... rank.
    pub places: Vec<Vec<usize>>,
    /// For each threshold of difference, in how many benchmarks each variant is the best.
    pub best: Vec<(f64, Vec<usize>)>,
}

/// How a variant compares with the first one.
#[derive(Clone, Debug)]
pub struct Change {
    /// Which.
    pub variant: String,
    /// The geometric mean of the ratios, over all benchmarks that have one.
    pub mean: Option<f64>,
    /// In how many benchmarks it is better, worse, and neither.
    pub counts: [usize; 3],
    /// The least and the largest ratio of those that differ significantly.
    pub extremes: Option<(f64, f64)>,
}

/// The experiments of a benchmark and metric.
type Row<'a> = Vec<&'a Experiment>;

/// The standings of a metric. `experiments` are all of the report, in its order.
pub(crate) fn standings(
    metric: &str,
    kind: &Metric,
    experiments: &[Experiment],
    pairs: &[Pair],
) -> Vec<Standing> {
    let mut found: Vec<(Standing, Vec<Row>)> = Vec::new();
    let of_metric = experiments.iter().filter(|e| e.metric == metric);
    let of_metric: Vec<&Experiment> = of_metric.collect();
    for row in of_metric.chunk_by(|a, b| a.benchmark == b.benchmark) {
        if row.len() < 2 {
            continue;
        }
        let grouped = row.iter().all(|e| e.sample.has_groups());
        let mut variants: Vec<String> = row.iter().map(|e| e.variant.clone()).collect();
        let key = sorted(&variants);
        let same = |(s, _): &&mut (Standing, _)| s.grouped == grouped && sorted(&s.variants) == key;
        let place = match found.iter_mut().find(same) {
            Some(place) => place,
            None => {
                let standing = Standing {
                    metric: metric.to_owned(),
                    grouped,
                    variants: std::mem::take(&mut variants),
                    benchmarks: Vec::new(),
                    rankings: Vec::new(),
                    changes: Vec::new(),
                };
                found.push((standing, Vec::new()));
                let last = found.len() - 1;
                &mut found[last]
            }
        };
        place.0.benchmarks.push(row[0].benchmark.clone());
        place.1.push(in_order(row, &place.0.variants));
    }
    let finish = |(mut standing, rows): (Standing, Vec<Row>)| {
        let ranking = |figure| ranking(figure, kind.better, &rows, standing.variants.len());
        standing.rankings = Figure::ALL.into_iter().filter_map(ranking).collect();
        standing.changes = changes(&standing, kind.better, pairs);
        standing
    };
    found.into_iter().map(finish).collect()
}

fn sorted(names: &[String]) -> Vec<String> {
    let mut names = names.to_vec();
    names.sort();
    names
}

fn in_order<'a>(row: &[&'a Experiment], variants: &[String]) -> Row<'a> {
    let of = |variant: &String| row.iter().find(|e| e.variant == *variant).copied();
    variants.iter().filter_map(of).collect()
}

/// Ranks the variants by a figure in each benchmark. `None` where no benchmark has it for
/// all variants.
fn ranking(figure: Figure, better: Better, rows: &[Row], variants: usize) -> Option<Ranking> {
    let higher = figure == Figure::Mean && better == Better::Higher;
    let estimates = |row: &Row| -> Option<Vec<Estimate>> {
        row.iter().map(|e| e.figure(figure).copied()).collect()
    };
    let rows: Vec<Vec<Estimate>> = rows.iter().filter_map(estimates).collect();
    let mut places = vec![vec![0; variants]; variants];
    for row in &rows {
        for (variant, rank) in judge::ranks(row, 0.0, higher).into_iter().enumerate() {
            places[variant][rank - 1] += 1;
        }
    }
    let best = |threshold: &f64| {
        let mut best = vec![0; variants];
        for row in &rows {
            let ranks = judge::ranks(row, *threshold, higher);
            for (count, rank) in best.iter_mut().zip(ranks) {
                *count += usize::from(rank == 1);
            }
        }
        (*threshold, best)
    };
    (!rows.is_empty()).then(|| Ranking {
        figure,
        counted: rows.len(),
        places,
        best: figure.thresholds().iter().map(best).collect(),
    })
}

/// How the variants after the first compare with it.
fn changes(standing: &Standing, better: Better, pairs: &[Pair]) -> Vec<Change> {
    let Some((first, rest)) = standing.variants.split_first() else {
        return Vec::new();
    };
    let change = |variant: &String| {
        let found = pairs.iter().filter(|pair| {
            pair.metric == standing.metric
                && standing.benchmarks.contains(&pair.benchmark)
                && (&pair.old, &pair.new) == (first, variant)
        });
        let found = found.map(|pair| {
            let ratio = pair.ratio().ok().map(|ratio| ratio.value);
            (ratio, pair.effect.verdict(better))
        });
        summary(variant, &found.collect::<Vec<(Option<f64>, Verdict)>>())
    };
    rest.iter().map(change).collect()
}

fn summary(variant: &str, found: &[(Option<f64>, Verdict)]) -> Change {
    let count = |wanted: &[Verdict]| found.iter().filter(|(_, v)| wanted.contains(v)).count();
    let ratios: Vec<f64> = found.iter().filter_map(|(ratio, _)| *ratio).collect();
    let decided = found
        .iter()
        .filter(|(_, v)| matches!(v, Verdict::Better | Verdict::Worse));
    let decided: Vec<f64> = decided.filter_map(|(ratio, _)| *ratio).collect();
    let least = decided.iter().copied().reduce(f64::min);
    Change {
        variant: variant.to_owned(),
        mean: geometric_mean(&ratios),
        counts: [
            count(&[Verdict::Better]),
            count(&[Verdict::Worse]),
            count(&[Verdict::Undecided, Verdict::Unknown]),
        ],
        extremes: least.zip(decided.into_iter().reduce(f64::max)),
    }
}
