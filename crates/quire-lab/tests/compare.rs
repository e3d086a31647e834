//! Old and new results.

mod common;

use common::{Shape, run};
use quire_lab::compare::{Comparison, Outcome, compare, junit, output};
use quire_lab::run::{Better, Failure, Run, TIME};
use quire_stats::Settings;

fn settings() -> Settings {
    Settings {
        resamples: 500,
        ..Settings::default()
    }
}

/// Results in which the variant `v` of each benchmark takes so long.
fn of(time: f64, seed: u64) -> Run {
    let variants: &'static [(&'static str, f64)] = Box::leak(Box::new([("v", time)]));
    run(&Shape {
        variants,
        executions: 10,
        jumps: 0.01,
        seed,
        ..Shape::default()
    })
}

fn compared(old: &Run, new: &Run, threshold: f64) -> Comparison {
    compare(old, new, threshold, settings()).unwrap()
}

fn outcomes(comparison: &Comparison) -> Vec<Outcome> {
    comparison.items.iter().map(|item| item.outcome).collect()
}

#[test]
fn what_is_slower_is_a_regression_beyond_the_threshold_only() {
    let (old, new) = (of(0.010, 1), of(0.011, 2));
    let worse = compared(&old, &new, 0.03);
    assert_eq!(outcomes(&worse), [Outcome::Regression; 2]);
    assert!(worse.has_regression());
    let small = compared(&old, &new, 0.2);
    assert_eq!(outcomes(&small), [Outcome::Small; 2]);
    assert!(!small.has_regression());
    assert_eq!(
        outcomes(&compared(&new, &old, 0.03)),
        [Outcome::Improvement; 2]
    );
}

#[test]
fn noise_is_no_regression() {
    // With 95 % confidence, one in forty comparisons of equals may look worse; with the
    // threshold none does.
    for seed in 0..20 {
        let same = compared(&of(0.01, seed), &of(0.01, 100 + seed), 0.03);
        assert!(!same.has_regression(), "{seed}");
    }
}

#[test]
fn the_direction_of_a_rate_is_the_other() {
    let (mut old, mut new) = (of(10.0, 1), of(8.0, 2));
    for run in [&mut old, &mut new] {
        run.header.metrics.get_mut(TIME).unwrap().better = Better::Higher;
    }
    assert_eq!(
        outcomes(&compared(&old, &new, 0.03)),
        [Outcome::Regression; 2]
    );
}

#[test]
fn what_only_one_has_is_listed() {
    let old = of(0.01, 1);
    let mut new = of(0.01, 2);
    new.executions.retain(|e| e.benchmark == "fft");
    new.failures.push(Failure {
        benchmark: "lu".into(),
        variant: "v".into(),
        order: 0,
        reason: "exit status 3".into(),
        ..Failure::default()
    });
    let comparison = compared(&old, &new, 0.03);
    assert_eq!(comparison.items.len(), 1);
    let line = output::lone_line(&comparison.lone[0]);
    assert_eq!(
        line,
        "only in old: lu, v, time; it failed in the other: exit status 3"
    );
    let turned = compared(&new, &old, 0.03);
    assert!(turned.lone[0].is_new);
    for text in [output::markdown(&comparison), junit::xml(&comparison)] {
        assert!(text.contains("exit status 3"), "{text}");
    }
    assert_eq!(output::json(&comparison)["in_one_only"][0]["in"], "old");
}

#[test]
fn nothing_in_common_is_an_error() {
    let old = of(0.01, 1);
    let mut new = old.clone();
    for execution in &mut new.executions {
        execution.benchmark = "other".into();
    }
    let error = compare(&old, &new, 0.03, settings())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("in common") && error.contains("fft, v, time"),
        "{error}"
    );
    let mut bytes = old.clone();
    bytes.header.metrics.get_mut(TIME).unwrap().unit = "bytes".into();
    let error = compare(&old, &bytes, 0.03, settings())
        .unwrap_err()
        .to_string();
    assert!(error.contains("\"bytes\""), "{error}");
}

#[test]
fn one_measurement_on_each_side_decides_nothing() {
    let mut old = of(0.01, 1);
    old.executions.truncate(1);
    for values in old.executions[0].metrics.values_mut() {
        values.truncate(1);
    }
    let mut new = old.clone();
    for values in new.executions[0].metrics.values_mut() {
        values[0] *= 10.0;
    }
    let comparison = compared(&old, &new, 0.03);
    assert_eq!(outcomes(&comparison), [Outcome::Unknown]);
    assert!(junit::xml(&comparison).contains("skipped=\"1\""));
    assert!(output::markdown(&comparison).contains("absent: "));
}

#[test]
fn the_forms_agree() {
    let (old, new) = (of(0.010, 1), of(0.011, 2));
    let comparison = compared(&old, &new, 0.03);
    let json = output::json(&comparison);
    assert_eq!(json["regressions"], 2);
    let xml = junit::xml(&comparison);
    assert_eq!(xml.matches("<testcase").count(), 2);
    assert_eq!(xml.matches("<failure").count(), 2);
    assert!(
        xml.contains("tests=\"2\" failures=\"2\" errors=\"0\" skipped=\"0\""),
        "{xml}"
    );
    let markdown = output::markdown(&comparison);
    assert_eq!(markdown.matches("**regression**").count(), 2);
    for item in &comparison.items {
        let ratio = item.ratio();
        let escaped = ratio.replace('[', "\\[").replace(']', "\\]");
        assert!(
            markdown.contains(&escaped) && xml.contains(&ratio),
            "{ratio}"
        );
    }
}

/// One execution of many that is far off does not hide a regression, and is told of in every form.
#[test]
fn outliers_are_set_aside_and_told() {
    let (old, mut new) = (of(0.010, 1), of(0.011, 2));
    let far = new.executions.iter_mut().filter(|e| e.order == 4);
    for values in far.flat_map(|execution| execution.metrics.values_mut()) {
        values.iter_mut().for_each(|value| *value *= 20.0);
    }
    let comparison = compared(&old, &new, 0.03);
    assert_eq!(outcomes(&comparison), [Outcome::Regression; 2]);
    let told = "1 of 20 executions lie far from the others and are left out of this comparison.";
    assert!(
        comparison.warnings.iter().any(|w| w.contains(told)),
        "{:?}",
        comparison.warnings
    );
    assert!(junit::xml(&comparison).contains(told));
    assert!(output::markdown(&comparison).contains(told));
}

/// All comparisons are right together, so each of many is surer than one alone.
#[test]
fn each_of_many_comparisons_is_surer() {
    let (old, new) = (of(0.010, 1), of(0.010, 2));
    let width = |comparison: &Comparison| comparison.items[0].effect.ratio().unwrap().error();
    let two = compared(&old, &new, 0.03);
    let only = |mut run: Run| {
        run.executions.retain(|e| e.benchmark == "fft");
        run
    };
    let one = compared(&only(old), &only(new), 0.03);
    assert_eq!((one.items.len(), two.items.len()), (1, 2));
    assert!(width(&two) > 1.05 * width(&one));
}

#[test]
fn a_machine_that_changed_is_told() {
    let (old, mut new) = (of(0.01, 1), of(0.01, 2));
    new.header
        .environment
        .insert("cpu".into(), "another".into());
    let warnings = compared(&old, &new, 0.03).warnings;
    assert!(
        warnings[0].contains("cpu was none and is another"),
        "{warnings:?}"
    );
}
