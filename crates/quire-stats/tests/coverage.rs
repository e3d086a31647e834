//! Intervals of 95 % hold the true value of normal data in 93 to 97 % of simulated
//! experiments, where there are enough executions. And what the rule of comparisons is chosen for:
//! its intervals hold the true ratio, six equal variants seldom make a claim, and it finds what
//! Welch's test and Mann and Whitney's find.

#[path = "../examples/coverage/compared.rs"]
mod compared;
#[path = "../examples/coverage/simulate.rs"]
mod simulate;

use compared::{MACHINES, Machine, Parts, parts};
use quire_stats::Intervals;
use simulate::{Figure, Shape, Size, coverage};

/// The standard error is 0.8 %, if the truth is 95 %; and the seeds are fixed.
const TRIALS: usize = 800;

fn covered(figure: Figure, shape: Shape, executions: usize) -> f64 {
    let size = size(executions);
    coverage(figure, shape, size, Intervals::Percentile, [TRIALS, 400])
}

fn size(executions: usize) -> Size {
    Size {
        executions,
        measurements: 10,
    }
}

fn assert_covered(figure: Figure, executions: usize) {
    let part = covered(figure, Shape::Normal, executions);
    assert!((0.93..=0.97).contains(&part), "{figure:?}: {part}");
}

#[test]
fn the_two_level_interval_needs_few_executions() {
    for executions in [3, 5, 20] {
        assert_covered(Figure::Mean, executions);
    }
}

#[test]
fn bootstrap_intervals_of_means_and_medians_need_more() {
    for figure in [
        Figure::MeanOfSingles,
        Figure::MeanBootstrap,
        Figure::Median,
        Figure::Ratio,
    ] {
        assert_covered(figure, 60);
    }
}

#[test]
fn bootstrap_intervals_of_variation_need_most() {
    for figure in [Figure::Within, Figure::Unclassified, Figure::Impact] {
        assert_covered(figure, 200);
    }
}

/// With enough executions, means of data that are not normal have intervals as good.
#[test]
fn means_of_skewed_and_two_modal_data_are_covered() {
    for shape in [Shape::Skewed, Shape::TwoModes] {
        let part = covered(Figure::MeanBootstrap, shape, 100);
        assert!((0.92..=0.97).contains(&part), "{shape:?}: {part}");
    }
}

/// The simulation can tell: intervals of too few executions do not hold it often enough.
#[test]
fn too_few_executions_are_told() {
    let part = covered(Figure::Unclassified, Shape::Normal, 5);
    assert!(part < 0.8, "{part}");
}

/// What BCa is for: with 10 executions it holds the variation more often than the percentile
/// interval does.
#[test]
fn corrected_intervals_of_variation_need_fewer_executions() {
    for figure in [Figure::Unclassified, Figure::Impact] {
        let [plain, corrected] = [Intervals::Percentile, Intervals::Bca].map(|intervals| {
            coverage(
                figure,
                Shape::Normal,
                size(10),
                intervals,
                [4 * TRIALS, 400],
            )
        });
        assert!(corrected > plain + 0.01, "{figure:?}: {plain} {corrected}");
    }
}

/// Of 1,000 trials the part is off by more than 2 % with a chance of 0.4 %, if it is 95 % in
/// truth; and the seeds are fixed.
const COMPARED: usize = 1000;
const CHANCE: f64 = 0.02;

#[test]
fn intervals_hold_the_ratio_and_six_equals_make_no_claim() {
    for machine in MACHINES {
        for size in [[5, 1], [10, 1], [20, 1], [50, 1], [10, 10]] {
            let trials = if size[0] > 20 { COMPARED / 2 } else { COMPARED };
            let Parts { held, claimed, .. } = parts(machine, size, trials);
            let chance = CHANCE * (COMPARED as f64 / trials as f64).sqrt();
            assert!(held >= 0.94 - chance, "{machine:?} {size:?}: {held}");
            assert!(claimed <= 0.05 + chance, "{machine:?} {size:?}: {claimed}");
        }
    }
}

#[test]
fn it_finds_what_the_usual_tests_find() {
    for executions in [5, 10, 20] {
        let normal = parts(Machine::Still(Shape::Normal), [executions, 1], COMPARED);
        assert!(normal.found >= normal.welch - 0.01, "{normal:?}");
        let outliers = parts(Machine::Outliers, [executions, 1], COMPARED);
        assert!(outliers.found >= outliers.ranks - 0.02, "{outliers:?}");
        assert!(outliers.found >= outliers.welch - 0.01, "{outliers:?}");
        let drift = parts(Machine::Drift, [executions, 1], COMPARED);
        assert!(drift.found >= drift.welch, "{drift:?}");
    }
}

/// The simulation can tell: outliers do hide a difference from a test of means.
#[test]
fn outliers_hide_differences_from_welchs_test() {
    let outliers = parts(Machine::Outliers, [20, 1], COMPARED);
    assert!(
        outliers.welch < 0.5 && outliers.found > 0.75,
        "{outliers:?}"
    );
}
