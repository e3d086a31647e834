//! Prints the tables of `docs/statistics.md`: how often 95 % intervals hold the true value,
//! for normal, skewed and two-modal data, the percentile interval and BCa; and what the search for a steady state says of
//! series whose nature is known.
//!
//! Then what the rule of comparisons does, beside Welch's test and Mann and Whitney's.
//!
//! `cargo run --release -p quire-stats --example coverage [TRIALS]`, 2,000 unless told,
//! each with 1,000 resamples and 10 measurements in an execution; 5,000 of comparisons.

mod compared;
mod simulate;
mod steady;

use compared::{MACHINES, Parts, parts};
use quire_stats::{Absent, Intervals};
use simulate::{Figure, Shape, Size, coverage};
use steady::{Series, verdicts};

const EXECUTIONS: [usize; 5] = [5, 10, 20, 50, 100];
const FIGURES: [Figure; 8] = [
    Figure::Mean,
    Figure::MeanOfSingles,
    Figure::MeanBootstrap,
    Figure::Median,
    Figure::Within,
    Figure::Unclassified,
    Figure::Impact,
    Figure::Ratio,
];

/// Those whose interval may be corrected.
const CORRECTED: [Figure; 2] = [Figure::Unclassified, Figure::Impact];

fn main() -> Result<(), Absent> {
    let trials = std::env::args().nth(1).and_then(|n| n.parse().ok());
    let trials = trials.unwrap_or(2000);
    // These take less time, and are to tell smaller differences.
    print_comparisons(trials * 5 / 2);
    print_coverage(&FIGURES, Intervals::Percentile, trials);
    print_coverage(&CORRECTED, Intervals::Bca, trials);
    print_verdicts(trials as u64)
}

fn print_comparisons(trials: usize) {
    println!("\n| machine | executions | holds 1 | claims of six | finds | Welch | Mann-Whitney |");
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for machine in MACHINES {
        for size in [[5, 1], [10, 1], [20, 1], [50, 1], [10, 10]] {
            let Parts {
                held,
                claimed,
                found,
                welch,
                ranks,
            } = parts(machine, size, trials);
            let [executions, measurements] = size;
            let cells = [held, claimed, found, welch, ranks].map(|p| format!("{:.1}", 100.0 * p));
            let of = if measurements > 1 { " of ten" } else { "" };
            println!("| {machine:?} | {executions}{of} | {} |", cells.join(" | "));
        }
    }
}

fn print_verdicts(trials: u64) -> Result<(), Absent> {
    println!("\n| series | of | flat | after | slows down | never |");
    println!("|---|---:|---:|---:|---:|---:|");
    for series in [
        Series::Noise(Shape::Normal, 1.0),
        Series::Noise(Shape::Skewed, 10.0),
        Series::Carried,
        Series::Modes,
        Series::Warm(3.0),
        Series::Warm(10.0),
        Series::Cycle,
    ] {
        for count in [20, 50, 100, 200] {
            let [flat, after, slows, never] = verdicts(series, count, trials)?;
            println!("| {series:?} | {count} | {flat:.1} | {after:.1} | {slows:.1} | {never:.1} |");
        }
    }
    Ok(())
}

fn print_coverage(figures: &[Figure], intervals: Intervals, trials: usize) {
    let sizes = EXECUTIONS.map(|size| format!(" {size} |")).concat();
    println!("\n{intervals:?}\n\n| data | figure |{sizes}");
    println!("|---|---|{}", "---:|".repeat(EXECUTIONS.len()));
    for shape in [Shape::Normal, Shape::Skewed, Shape::TwoModes] {
        for figure in figures {
            let cell = |executions| {
                let size = Size {
                    executions,
                    measurements: 10,
                };
                let part = coverage(*figure, shape, size, intervals, [trials, 1000]);
                format!(" {:.1} |", 100.0 * part)
            };
            let cells = EXECUTIONS.map(cell).concat();
            println!("| {shape:?} | {figure:?} |{cells}");
        }
    }
}
