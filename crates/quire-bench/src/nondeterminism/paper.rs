//! What the paper's text says in figures (sections 5 and 6), and what ours are.

use quire_stats::geometric_mean;

use crate::nondeterminism::judge::{Quantity, Study, Triplet};
use crate::nondeterminism::plan::VARIANTS;

/// Strategies by their place in triplets.
const DEFAULT: usize = 0;
const COLOUR: usize = 1;
const BINHOP: usize = 2;

/// Which benchmarks a statement is about.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Of {
    /// Those with several measurements an execution.
    Repeated(Quantity),
    /// Those with one.
    Single(Quantity),
}

/// What a statement counts. Differences below the share `above` do not count.
#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    /// The strategy is best, alone or with others.
    Best { who: usize, above: f64 },
    /// So many others are better than the strategy.
    OutperformedBy { who: usize, others: usize },
    /// One other or both are better than the strategy.
    Outperformed { who: usize },
    /// The one is better than the other.
    Better { who: usize, than: usize, above: f64 },
    /// Nothing can be said about the two.
    Alike { who: usize, than: usize },
    /// The largest significant change for the worse from the default.
    MostMore { who: usize },
    /// The largest significant change for the better from the default.
    MostLess { who: usize },
    /// The mean change from the default.
    MeanChange { who: usize },
    /// Where all three differ, the order by time is that by cache misses.
    OrderOfMisses,
}

/// A figure of the paper.
#[derive(Clone, Copy, Debug)]
struct Statement {
    section: &'static str,
    of: Of,
    what: What,
    /// In percent.
    paper: f64,
}

const fn says(section: &'static str, of: Of, what: What, paper: f64) -> Statement {
    Statement {
        section,
        of,
        what,
        paper,
    }
}

const fn best(who: usize, percent: f64) -> What {
    let above = percent / 100.0;
    What::Best { who, above }
}

const fn better(who: usize, than: usize) -> What {
    What::Better {
        who,
        than,
        above: 0.0,
    }
}

const fn outperformed(who: usize) -> What {
    What::Outperformed { who }
}

const NON_CSIBE: Of = Of::Repeated(Quantity::Mean);
const CSIBE: Of = Of::Single(Quantity::Mean);
const WITHIN: Of = Of::Repeated(Quantity::Within);
const UNCLASSIFIED: Of = Of::Repeated(Quantity::Unclassified);
const CSIBE_UNCLASSIFIED: Of = Of::Single(Quantity::Unclassified);
const IMPACT: Of = Of::Repeated(Quantity::Impact);

/// Of the study without real-time scheduling, in the order of the text.
const STATEMENTS: &[Statement] = &[
    says("5.1, Fig. 4", NON_CSIBE, best(DEFAULT, 0.0), 77.0),
    says(
        "5.1, Fig. 4",
        NON_CSIBE,
        What::OutperformedBy {
            who: DEFAULT,
            others: 1,
        },
        19.0,
    ),
    says(
        "5.1, Fig. 4",
        NON_CSIBE,
        What::OutperformedBy {
            who: DEFAULT,
            others: 2,
        },
        4.0,
    ),
    says("5.1", NON_CSIBE, better(COLOUR, BINHOP), 46.0),
    says("5.1", NON_CSIBE, better(BINHOP, COLOUR), 4.0),
    says("5.1, Fig. 5", CSIBE, outperformed(DEFAULT), 0.0),
    says("5.1", CSIBE, better(COLOUR, BINHOP), 1.0),
    says("5.1", CSIBE, better(BINHOP, COLOUR), 83.0),
    says("Fig. 6", NON_CSIBE, best(COLOUR, 0.0), 63.0),
    says("Fig. 6", NON_CSIBE, best(COLOUR, 1.0), 71.0),
    says("Fig. 6", NON_CSIBE, best(COLOUR, 3.0), 85.0),
    says("Fig. 6", NON_CSIBE, best(COLOUR, 10.0), 88.0),
    says("Fig. 6", NON_CSIBE, best(DEFAULT, 0.0), 77.0),
    says("Fig. 6", NON_CSIBE, best(DEFAULT, 1.0), 81.0),
    says("Fig. 6", NON_CSIBE, best(DEFAULT, 3.0), 83.0),
    says("Fig. 6", NON_CSIBE, best(DEFAULT, 10.0), 88.0),
    says("Fig. 6", NON_CSIBE, best(BINHOP, 0.0), 35.0),
    says("Fig. 6", NON_CSIBE, best(BINHOP, 1.0), 42.0),
    says("Fig. 6", NON_CSIBE, best(BINHOP, 3.0), 48.0),
    says("Fig. 6", NON_CSIBE, best(BINHOP, 10.0), 56.0),
    says("Fig. 6", CSIBE, best(COLOUR, 0.0), 1.0),
    says("Fig. 6", CSIBE, best(COLOUR, 1.0), 13.0),
    says("Fig. 6", CSIBE, best(COLOUR, 3.0), 62.0),
    says("Fig. 6", CSIBE, best(COLOUR, 10.0), 100.0),
    says("Fig. 6", CSIBE, best(DEFAULT, 0.0), 100.0),
    says("Fig. 6", CSIBE, best(DEFAULT, 1.0), 100.0),
    says("Fig. 6", CSIBE, best(DEFAULT, 3.0), 100.0),
    says("Fig. 6", CSIBE, best(DEFAULT, 10.0), 100.0),
    says("Fig. 6", CSIBE, best(BINHOP, 0.0), 51.0),
    says("Fig. 6", CSIBE, best(BINHOP, 1.0), 59.0),
    says("Fig. 6", CSIBE, best(BINHOP, 3.0), 100.0),
    says("Fig. 6", CSIBE, best(BINHOP, 10.0), 100.0),
    says("5.2", WITHIN, outperformed(DEFAULT), 29.0),
    says("5.2", WITHIN, outperformed(BINHOP), 31.0),
    says("5.2", WITHIN, outperformed(COLOUR), 15.0),
    says("5.2", WITHIN, best(COLOUR, 0.0), 75.0),
    says("5.2", WITHIN, better(COLOUR, BINHOP), 44.0),
    says("5.2", WITHIN, better(BINHOP, COLOUR), 2.0),
    says("5.2", WITHIN, better(COLOUR, DEFAULT), 35.0),
    says("5.2", WITHIN, better(DEFAULT, COLOUR), 13.0),
    says("5.3", UNCLASSIFIED, outperformed(DEFAULT), 19.0),
    says("5.3", UNCLASSIFIED, outperformed(BINHOP), 21.0),
    says("5.3", UNCLASSIFIED, outperformed(COLOUR), 6.0),
    says("5.3", UNCLASSIFIED, better(COLOUR, BINHOP), 19.0),
    says("5.3", UNCLASSIFIED, better(BINHOP, COLOUR), 4.0),
    says("5.3", UNCLASSIFIED, better(DEFAULT, COLOUR), 0.0),
    says("5.3", UNCLASSIFIED, better(COLOUR, DEFAULT), 25.0),
    says("5.3", CSIBE_UNCLASSIFIED, outperformed(DEFAULT), 0.0),
    says("5.3", CSIBE_UNCLASSIFIED, better(DEFAULT, COLOUR), 0.0),
    says("5.3", CSIBE_UNCLASSIFIED, better(DEFAULT, BINHOP), 1.0),
    says("5.4, Fig. 7", IMPACT, outperformed(DEFAULT), 54.0),
    says(
        "5.4",
        IMPACT,
        What::Alike {
            who: COLOUR,
            than: BINHOP,
        },
        33.0,
    ),
    says("5.4", IMPACT, better(COLOUR, BINHOP), 33.0),
    says("5.4", IMPACT, better(BINHOP, COLOUR), 33.0),
    says("5.4", IMPACT, better(COLOUR, DEFAULT), 37.0),
    says("5.4", IMPACT, better(DEFAULT, COLOUR), 13.0),
    says("5.4", IMPACT, better(BINHOP, DEFAULT), 40.0),
    says("5.4", IMPACT, better(DEFAULT, BINHOP), 25.0),
    says("Fig. 8", IMPACT, best(COLOUR, 0.0), 63.0),
    says("Fig. 8", IMPACT, best(COLOUR, 50.0), 71.0),
    says("Fig. 8", IMPACT, best(COLOUR, 100.0), 79.0),
    says("Fig. 8", IMPACT, best(COLOUR, 500.0), 94.0),
    says("Fig. 8", IMPACT, best(COLOUR, 800.0), 96.0),
    says("Fig. 8", IMPACT, best(DEFAULT, 0.0), 46.0),
    says("Fig. 8", IMPACT, best(DEFAULT, 50.0), 63.0),
    says("Fig. 8", IMPACT, best(DEFAULT, 100.0), 75.0),
    says("Fig. 8", IMPACT, best(DEFAULT, 500.0), 90.0),
    says("Fig. 8", IMPACT, best(DEFAULT, 800.0), 92.0),
    says("Fig. 8", IMPACT, best(BINHOP, 0.0), 65.0),
    says("Fig. 8", IMPACT, best(BINHOP, 50.0), 79.0),
    says("Fig. 8", IMPACT, best(BINHOP, 100.0), 88.0),
    says("Fig. 8", IMPACT, best(BINHOP, 500.0), 98.0),
    says("Fig. 8", IMPACT, best(BINHOP, 800.0), 98.0),
    says(
        "5.4",
        IMPACT,
        What::Better {
            who: COLOUR,
            than: DEFAULT,
            above: 0.5,
        },
        23.0,
    ),
    says(
        "5.4",
        IMPACT,
        What::Better {
            who: DEFAULT,
            than: COLOUR,
            above: 0.5,
        },
        12.0,
    ),
    says(
        "5.4",
        IMPACT,
        What::Better {
            who: BINHOP,
            than: DEFAULT,
            above: 0.5,
        },
        33.0,
    ),
    says(
        "5.4",
        IMPACT,
        What::Better {
            who: DEFAULT,
            than: BINHOP,
            above: 0.5,
        },
        13.0,
    ),
    says("5.5", NON_CSIBE, What::MostMore { who: COLOUR }, 41.0),
    says("5.5", NON_CSIBE, What::MostLess { who: COLOUR }, 49.0),
    says("5.5", NON_CSIBE, What::MostMore { who: BINHOP }, 275.0),
    says("5.5", NON_CSIBE, What::MostLess { who: BINHOP }, 49.0),
    says("5.5", CSIBE, What::MostLess { who: COLOUR }, 2.0),
    says("5.5", CSIBE, What::MostMore { who: COLOUR }, 6.0),
    says("5.5", CSIBE, What::MostLess { who: BINHOP }, 4.0),
    says("5.5", CSIBE, What::MostMore { who: BINHOP }, 9.0),
    says("5.5", NON_CSIBE, What::MeanChange { who: COLOUR }, 0.0),
    says("5.5", NON_CSIBE, What::MeanChange { who: BINHOP }, 0.0),
    says("5.5", CSIBE, What::MeanChange { who: COLOUR }, 0.0),
    says("5.5", CSIBE, What::MeanChange { who: BINHOP }, 0.0),
    says("5.5", IMPACT, What::MostLess { who: COLOUR }, 54.0),
    says("5.5", IMPACT, What::MostMore { who: COLOUR }, 477.0),
    says("5.5", IMPACT, What::MostLess { who: BINHOP }, 61.0),
    says("5.5", IMPACT, What::MostMore { who: BINHOP }, 62.0),
    says("6, Fig. 10", NON_CSIBE, What::OrderOfMisses, 90.0),
];

/// Of the study with real-time scheduling.
const REALTIME: &[Statement] = &[
    says("5.6", NON_CSIBE, What::MostMore { who: COLOUR }, 0.0),
    says("5.6", NON_CSIBE, What::MostLess { who: COLOUR }, 0.0),
    says("5.6", NON_CSIBE, What::MostMore { who: BINHOP }, 1.0),
    says("5.6", NON_CSIBE, What::MeanChange { who: BINHOP }, 0.0),
    says("5.6", IMPACT, What::MostLess { who: COLOUR }, 27.0),
    says("5.6", IMPACT, What::MostMore { who: COLOUR }, 14.0),
    says("5.6", IMPACT, What::MostLess { who: BINHOP }, 34.0),
    says("5.6", IMPACT, What::MostMore { who: BINHOP }, 17.0),
];

fn name(who: usize) -> &'static str {
    VARIANTS[who].name()
}

/// A condition, where small differences do not count.
fn above(share: f64) -> String {
    match share {
        0.0 => String::new(),
        share => format!(", differences above {:.0} %", share * 100.0),
    }
}

/// The part of triplets that fulfil a condition, in percent; nothing without any.
fn share(triplets: &[&Triplet], holds: impl Fn(&Triplet) -> bool) -> Option<f64> {
    let count = triplets.iter().filter(|triplet| holds(triplet)).count();
    (!triplets.is_empty()).then(|| count as f64 / triplets.len() as f64 * 100.0)
}

/// The largest significant change of one from the default in a direction, in percent; 0
/// where there is none.
fn most(triplets: &[&Triplet], who: usize, direction: f64) -> Option<f64> {
    let significant = triplets.iter().filter(|t| t.differ(who, DEFAULT));
    let changes = significant.map(|t| (t.of_default(who) - 1.0) * direction * 100.0);
    let most = changes.fold(0.0, f64::max);
    (!triplets.is_empty()).then_some(most)
}

/// The share of those triplets in which all three differ, and whose misses are known,
/// that have the same order by both.
fn order_of_misses(triplets: &[&Triplet]) -> Option<f64> {
    const PAIRS: [(usize, usize); 3] = [(0, 1), (0, 2), (1, 2)];
    let clear = |t: &&&Triplet| t.misses.is_some() && PAIRS.iter().all(|(a, b)| t.differ(*a, *b));
    let clear: Vec<&Triplet> = triplets.iter().filter(clear).copied().collect();
    share(&clear, |triplet| {
        triplet.misses.is_some_and(|misses| {
            let value = |place: usize| triplet.estimates[place].value;
            PAIRS
                .iter()
                .all(|(a, b)| (value(*a) < value(*b)) == (misses[*a] < misses[*b]))
        })
    })
}

impl What {
    fn text(self) -> String {
        match self {
            What::Best { who, above: share } => {
                format!("{} is best or no worse{}", name(who), above(share))
            }
            What::OutperformedBy { who, others: 1 } => {
                format!("{} is outperformed by one of the others", name(who))
            }
            What::OutperformedBy { who, .. } => format!("{} is outperformed by both", name(who)),
            What::Outperformed { who } => format!("{} is outperformed", name(who)),
            What::Better {
                who,
                than,
                above: share,
            } => {
                format!(
                    "{} is better than {}{}",
                    name(who),
                    name(than),
                    above(share)
                )
            }
            What::Alike { who, than } => format!("{} and {} do not differ", name(who), name(than)),
            What::MostMore { who } => format!("{}: largest increase", name(who)),
            What::MostLess { who } => format!("{}: largest reduction", name(who)),
            What::MeanChange { who } => format!("{}: mean change", name(who)),
            What::OrderOfMisses => "order by time is that by cache misses".to_owned(),
        }
    }

    /// Our figure, in percent; nothing where no triplet gives it.
    fn figure(self, triplets: &[&Triplet]) -> Option<f64> {
        match self {
            What::Best { who, above } => share(triplets, |t| t.ranks(above)[who] == 1),
            What::OutperformedBy { who, others } => {
                share(triplets, |t| t.ranks(0.0)[who] == 1 + others)
            }
            What::Outperformed { who } => share(triplets, |t| t.ranks(0.0)[who] > 1),
            What::Better { who, than, above } => share(triplets, |t| t.is_better(who, than, above)),
            What::Alike { who, than } => share(triplets, |t| !t.differ(who, than)),
            What::MostMore { who } => most(triplets, who, 1.0),
            What::MostLess { who } => most(triplets, who, -1.0),
            What::MeanChange { who } => {
                let ratios: Vec<f64> = triplets.iter().map(|t| t.of_default(who)).collect();
                geometric_mean(&ratios).map(|mean| (mean - 1.0) * 100.0)
            }
            What::OrderOfMisses => order_of_misses(triplets),
        }
    }
}

impl Of {
    fn text(self) -> String {
        match self {
            Of::Repeated(quantity) => format!("{}, several an execution", quantity.name()),
            Of::Single(quantity) => format!("{}, one an execution", quantity.name()),
        }
    }

    fn triplets(self, study: &Study) -> Vec<&Triplet> {
        match self {
            Of::Repeated(quantity) => study.repeated.triplets(quantity),
            Of::Single(quantity) => study.single.triplets(quantity),
        }
    }
}

/// A line of the table: section, what it is about, the paper's figure, and ours.
fn rows(study: &Study, realtime: bool) -> Vec<[String; 5]> {
    let statements = if realtime { REALTIME } else { STATEMENTS };
    let row = |statement: &Statement| {
        let triplets = statement.of.triplets(study);
        let ours = match statement.what.figure(&triplets) {
            // Not -0.
            Some(figure) => format!("{:.0}", figure.round() + 0.0),
            None => "absent".to_owned(),
        };
        [
            statement.section.to_owned(),
            statement.of.text(),
            statement.what.text(),
            format!("{:.0}", statement.paper),
            ours,
        ]
    };
    statements.iter().map(row).collect()
}

/// Prints the table, and what could not be estimated.
pub fn print(study: &Study, realtime: bool) {
    let head = ["Section", "Of", "Statement", "Paper %", "Ours %"].map(str::to_owned);
    let table: Vec<[String; 5]> = [head].into_iter().chain(rows(study, realtime)).collect();
    let width = |column: usize| table.iter().map(|row| row[column].chars().count()).max();
    let [a, b, c] = [0, 1, 2].map(|column| width(column).unwrap_or(0));
    for [section, of, statement, paper, ours] in &table {
        println!("{section:a$}  {of:b$}  {statement:c$}  {paper:>7}  {ours:>6}");
    }
    let repeated = study.repeated.triplets(Quantity::Mean).len();
    let single = study.single.triplets(Quantity::Mean).len();
    println!(
        "of {repeated} benchmarks with several measurements an execution, and {single} with one"
    );
    println!("absent: no benchmark of the kind gave the estimates that it takes");
    for why in &study.absent {
        println!("not estimated: {why}");
    }
}

#[cfg(test)]
mod tests {
    use quire_stats::Estimate;

    use super::*;

    fn triplet(values: [f64; 3]) -> Triplet {
        let estimates = values.map(|value| Estimate {
            value,
            ci_low: value - 0.01,
            ci_high: value + 0.01,
        });
        Triplet {
            estimates,
            misses: None,
        }
    }

    fn figure(what: What, triplets: &[Triplet]) -> Option<f64> {
        let all: Vec<&Triplet> = triplets.iter().collect();
        what.figure(&all)
    }

    #[test]
    fn triplets_are_counted() {
        let four = [
            triplet([1.0, 2.0, 3.0]),
            triplet([2.0, 1.0, 3.0]),
            triplet([3.0, 1.0, 1.0]),
            triplet([1.0, 1.0, 1.02]),
        ];
        for (what, expected) in [
            (best(DEFAULT, 0.0), 50.0),
            (best(DEFAULT, 110.0), 75.0),
            (best(COLOUR, 0.0), 75.0),
            (outperformed(DEFAULT), 50.0),
            (
                What::OutperformedBy {
                    who: DEFAULT,
                    others: 1,
                },
                25.0,
            ),
            (
                What::OutperformedBy {
                    who: DEFAULT,
                    others: 2,
                },
                25.0,
            ),
            (better(COLOUR, BINHOP), 50.0),
            (better(BINHOP, COLOUR), 0.0),
            (
                What::Alike {
                    who: COLOUR,
                    than: BINHOP,
                },
                50.0,
            ),
            (What::MostMore { who: BINHOP }, 200.0),
            (What::MostLess { who: COLOUR }, 200.0 / 3.0),
        ] {
            let found = figure(what, &four).unwrap();
            assert!((found - expected).abs() < 1e-9, "{what:?} {found}");
            assert_eq!(figure(what, &[]), None, "{what:?}");
        }
        let mean = What::MeanChange { who: COLOUR };
        let two = [triplet([1.0, 2.0, 1.0]), triplet([2.0, 1.0, 1.0])];
        assert!(figure(mean, &two).unwrap().abs() < 1e-9);
    }

    #[test]
    fn misses_have_the_order_of_times_or_not() {
        let with = |misses| Triplet {
            misses,
            ..triplet([1.0, 2.0, 3.0])
        };
        let (like, unlike) = (with(Some([5.0, 6.0, 7.0])), with(Some([5.0, 7.0, 6.0])));
        let what = What::OrderOfMisses;
        assert_eq!(figure(what, &[like.clone(), unlike]), Some(50.0));
        assert_eq!(figure(what, &[like, with(None)]), Some(100.0));
        assert_eq!(figure(what, &[with(None)]), None);
    }

    #[test]
    fn each_statement_has_a_row_and_empty_studies_have_no_figures() {
        for realtime in [false, true] {
            let rows = rows(&Study::default(), realtime);
            assert!(rows.len() >= 8);
            assert!(rows.iter().all(|row| row[4] == "absent"));
        }
    }
}
