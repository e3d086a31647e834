//! The forms of a report: what is in one is in the others, and every plot is drawn.

mod common;

use std::fmt::Write;

use common::{Shape, run};
use quire_lab::report::{Figure, Report, Verdict, data, html, markdown, number};
use quire_lab::run::Better;
use quire_stats::random::SplitMix64;
use quire_stats::{Estimate, Intervals, Settings};
use serde_json::Value;

fn settings() -> Settings {
    Settings {
        resamples: 200,
        ..Settings::default()
    }
}

fn report() -> Report {
    Report::of(run(&Shape::default()), settings())
}

/// A report as JSON, whose members are in the order of their names.
fn json(report: &Report) -> Value {
    let text = data::json(report).unwrap();
    let members = text.lines().filter(|line| line.starts_with("  \""));
    assert!(
        members.clone().count() > 10 && members.is_sorted(),
        "{text}"
    );
    serde_json::from_str(&text).unwrap()
}

/// The text of a page without tags, as a reader sees it.
fn visible(page: &str) -> String {
    let mut text = String::new();
    let mut inside = false;
    for c in page.chars() {
        match c {
            '<' => inside = true,
            '>' if inside => {
                inside = false;
                text.push(' ');
            }
            c if !inside => text.push(c),
            _ => {}
        }
    }
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&amp;", "&")
}

/// An estimate of the JSON form; `None` where it is absent.
fn estimate(value: &Value) -> Option<Estimate> {
    Some(Estimate {
        value: value["value"].as_f64()?,
        ci_low: value["low"].as_f64()?,
        ci_high: value["high"].as_f64()?,
    })
}

#[test]
fn every_number_of_the_json_is_in_the_page_and_in_markdown() {
    let report = report();
    let json = self::json(&report);
    let page = visible(&html::page(&report));
    let text = markdown::text(&report).replace('\\', "");
    let mut seen = 0;
    for one in json["experiments"].as_array().unwrap() {
        let unit = json["metrics"][one["metric"].as_str().unwrap()]["unit"]
            .as_str()
            .unwrap();
        for figure in Figure::ALL {
            let Some(value) = one.get(figure.key()) else {
                continue;
            };
            let shown = match estimate(value) {
                Some(estimate) => figure.text(&estimate, unit),
                None => value["absent"].as_str().unwrap().to_owned(),
            };
            assert!(page.contains(&shown), "{figure:?} {shown}");
            assert!(text.contains(&shown), "{figure:?} {shown}");
            seen += 1;
        }
    }
    for pair in json["pairs"].as_array().unwrap() {
        let shown = number::ratio(&estimate(&pair["ratio"]).unwrap());
        let sentence = pair["sentence"].as_str().unwrap();
        assert!(page.contains(&shown) && text.contains(&shown), "{shown}");
        assert!(
            page.contains(sentence) && text.contains(sentence),
            "{sentence}"
        );
        seen += 1;
    }
    // 2 benchmarks, 3 variants: four figures of the time and one of the misses; 2 pairs.
    assert_eq!(seen, 2 * (3 * 5 + 2));
}

#[test]
fn the_csv_has_a_line_for_each_figure() {
    let report = report();
    let csv = data::csv(&report);
    let cells = csv.lines().next().unwrap().split(',').count();
    assert!(
        csv.lines().all(|line| line.split(',').count() == cells),
        "{csv}"
    );
    assert_eq!(csv.lines().count(), 1 + 2 * (3 * 5 + 2));
}

#[test]
fn every_plot_is_drawn() {
    let of = |benchmarks: &'static [&'static str]| {
        let shape = Shape {
            benchmarks,
            ..Shape::default()
        };
        html::page(&Report::of(run(&shape), settings()))
    };
    // For each benchmark the executions, the sequence, and the misses.
    assert_eq!(of(&["fft", "lu"]).matches("<svg").count(), 2 * 3);
    let page = of(&["fft", "lu", "mm"]);
    // Of three, ranks by four figures, and the distribution, too.
    assert_eq!(page.matches("<svg").count(), 4 + 1 + 3 * 3);
    assert_eq!(
        page.matches("<details>").count(),
        page.matches("</details>").count()
    );
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert_eq!(
        page.matches("role=\"img\"").count(),
        page.matches("<svg").count()
    );
    assert!(
        !page.contains("NaN") && !page.contains("inf"),
        "a place is no number"
    );
    // Nothing is loaded: neither scripts nor addresses, but for the name space of SVG.
    let rest = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    for word in [
        "http:", "https:", "//", "<script", "url(", "@import", "src=",
    ] {
        assert!(!rest.contains(word), "{word}");
    }
    assert!(page.contains("prefers-color-scheme:dark"));
}

/// The first experiment with times.
fn timed(json: &Value) -> &Value {
    let mut all = json["experiments"].as_array().unwrap().iter();
    all.find(|one| one["metric"] == "time").unwrap()
}

/// What stands in the page and in Markdown about a report.
fn told(report: &Report) -> [String; 2] {
    let text = markdown::text(report).replace('\\', "");
    [visible(&html::page(report)), text]
}

#[test]
fn few_executions_are_told_in_every_form() {
    let report = report();
    let json = self::json(&report);
    let few = &timed(&json)["few_executions"];
    assert_eq!(few["enough"], 50);
    // Six executions, of several measurements: not the mean.
    let holds = few["holds"].as_object().unwrap();
    let keys: Vec<&str> = holds.keys().map(String::as_str).collect();
    assert_eq!(keys, ["cv_unclassified", "cv_within", "impact_factor"]);
    assert!((0.62..0.77).contains(&holds["cv_unclassified"].as_f64().unwrap()));
    let sentence = few["sentence"].as_str().unwrap();
    assert!(sentence.starts_with("6 executions are few: in simulations, about "));
    for text in told(&report) {
        let note = format!("time of plain, even and slow: {sentence}");
        // Once for each benchmark, not for each variant.
        assert_eq!(text.matches(&note).count(), 2, "{text}");
        assert!(text.contains("With few executions they do so less often"));
    }
    let csv = data::csv(&report);
    let line = |figure: &str| {
        let start = format!("fft,plain,time,\"\",{figure},");
        csv.lines().find(|line| line.starts_with(&start)).unwrap()
    };
    assert!(line("impact_factor").ends_with(",50"), "{csv}");
    assert!(csv.contains("fft,plain,time,s,mean,"), "{csv}");
    assert!(
        csv.lines()
            .filter(|l| l.contains(",s,mean,"))
            .all(|l| l.ends_with(",,,"))
    );
}

#[test]
fn enough_executions_are_not_talked_of() {
    let shape = Shape {
        executions: 50,
        ..Shape::default()
    };
    let report = Report::of(run(&shape), settings());
    assert!(
        report
            .experiments
            .iter()
            .filter(|e| e.primary)
            .all(|e| e.few.is_empty())
    );
    for text in told(&report) {
        assert!(!text.contains("executions are few"), "{text}");
        assert!(!text.contains("With few executions"), "{text}");
    }
}

#[test]
fn corrected_intervals_are_named_and_hold_more() {
    let shape = Shape {
        executions: 20,
        ..Shape::default()
    };
    let of = |intervals| {
        let settings = Settings {
            intervals,
            ..settings()
        };
        Report::of(run(&shape), settings)
    };
    let [plain, bca] = [Intervals::Percentile, Intervals::Bca].map(of);
    for (text, has) in told(&plain)
        .iter()
        .map(|t| (t, false))
        .chain(told(&bca).iter().map(|t| (t, true)))
    {
        assert_eq!(text.contains("BCa intervals"), has);
    }
    let json = [&plain, &bca].map(json);
    assert_eq!(
        json.each_ref().map(|j| j["intervals"].clone()),
        ["percentile", "bca"]
    );
    let [plain, bca] = json.each_ref().map(timed);
    for key in ["cv_unclassified", "impact_factor"] {
        assert_ne!(plain[key], bca[key]);
        let holds = [plain, bca].map(|one| one["few_executions"]["holds"][key].as_f64().unwrap());
        assert!(holds[0] + 0.01 < holds[1], "{holds:?}");
    }
    assert_eq!(plain["cv_within"], bca["cv_within"]);
}

#[test]
fn executions_that_never_settle_are_told() {
    let shape = Shape {
        measurements: 60,
        course: |at| if at / 10 % 2 == 0 { 1.0 } else { 1.4 },
        ..Shape::default()
    };
    let report = Report::of(run(&shape), settings());
    let json = self::json(&report);
    let steady = &timed(&json)["steady"];
    assert_eq!(
        (&steady["executions"], &steady["never"]),
        (&6.into(), &6.into())
    );
    assert_eq!(steady["never_share"], 1.0);
    let sentence = steady["sentence"].as_str().unwrap();
    assert!(sentence.starts_with("Of 6 executions, 6 never become steady (100 %)."));
    for text in told(&report) {
        let note = format!("time of plain, even and slow: {sentence}");
        assert_eq!(text.matches(&note).count(), 2, "{text}");
    }
}

#[test]
fn warm_ups_and_short_executions_are_told() {
    let warm = Shape {
        measurements: 60,
        course: |at| if at < 12 { 1.5 } else { 1.0 },
        ..Shape::default()
    };
    let report = Report::of(run(&warm), settings());
    let json = self::json(&report);
    assert_eq!(timed(&json)["steady"]["warm_up"], Value::from(vec![12; 6]));
    for text in told(&report) {
        assert!(text.contains("6 warm up and are steady after 12 measurements at most"));
    }
    let short = self::report();
    let json = self::json(&short);
    let steady = &timed(&json)["steady"];
    let why = steady["absent"].as_str().unwrap().to_owned();
    assert!(why.contains("it takes 10 measurements"), "{why}");
    for text in told(&short) {
        assert!(text.contains(&format!(
            "Whether executions become steady is not known: {why}."
        )));
    }
    let single = Shape {
        measurements: 1,
        ..Shape::default()
    };
    let report = Report::of(run(&single), settings());
    assert!(timed(&self::json(&report))["steady"].is_null());
    assert!(
        told(&report)
            .iter()
            .all(|text| !text.contains("become steady is not known"))
    );
}

#[test]
fn names_cannot_break_the_page() {
    let shape = Shape {
        benchmarks: &["<script>alert(1)</script>", "a|b\"'&\n"],
        ..Shape::default()
    };
    let report = Report::of(run(&shape), settings());
    let page = html::page(&report);
    assert!(!page.contains("<script"));
    assert!(page.contains("&lt;script&gt;"));
    let text = markdown::text(&report);
    assert!(!text.contains(" <script"), "{text}");
}

#[test]
fn one_measurement_an_execution_has_no_impact_factor_and_says_why() {
    let shape = Shape {
        benchmarks: &["fft", "lu", "mm"],
        measurements: 1,
        ..Shape::default()
    };
    let report = Report::of(run(&shape), settings());
    let json = self::json(&report);
    for one in json["experiments"].as_array().unwrap() {
        if one["metric"] == "time" {
            assert!(estimate(&one["mean"]).is_some());
            assert!(estimate(&one["cv_unclassified"]).is_some());
            for key in ["cv_within", "impact_factor"] {
                let why = one[key]["absent"].as_str().unwrap();
                assert!(why.contains("measurements"), "{why}");
            }
        }
    }
    assert!(report.standings.iter().all(|s| !s.grouped));
    let page = html::page(&report);
    assert!(page.contains("No ranks by impact factor"));
    assert_eq!(page.matches("<svg").count(), 2 + 3 * 3);
}

#[test]
fn one_execution_is_compared_only_within_itself() {
    let shape = Shape {
        executions: 1,
        ..Shape::default()
    };
    let report = Report::of(run(&shape), settings());
    for pair in &report.pairs {
        assert!(pair.effect.shift.as_ref().unwrap().of_one_execution);
        assert!(
            pair.sentence.contains("these executions only"),
            "{}",
            pair.sentence
        );
    }
    assert!(markdown::text(&report).contains("it takes 2 executions"));
    let single = Shape {
        executions: 1,
        measurements: 1,
        ..Shape::default()
    };
    let report = Report::of(run(&single), settings());
    for pair in &report.pairs {
        assert!(
            pair.sentence.starts_with("Nothing can be concluded"),
            "{}",
            pair.sentence
        );
    }
}

#[test]
fn measurements_that_do_not_vary_are_drawn() {
    let shape = Shape {
        noise: 0.0,
        jumps: 0.0,
        ..Shape::default()
    };
    let page = html::page(&Report::of(run(&shape), settings()));
    assert!(!page.contains("NaN") && !page.contains("inf"));
    assert!(page.contains("absent: "));
}

#[test]
fn the_slow_variant_is_ranked_last_and_said_to_be_worse() {
    let report = report();
    let mean = report.standings[0]
        .rankings
        .iter()
        .find(|r| r.figure == Figure::Mean)
        .unwrap();
    // `slow` takes twice as long as the others.
    assert_eq!(mean.places[2][0], 0);
    let (threshold, best) = mean.best[3].clone();
    assert_eq!((threshold, best[2]), (0.1, 0));
    let worse =
        |pair: &&quire_lab::report::Pair| pair.sentence.contains("slow is worse than plain");
    assert_eq!(report.pairs.iter().filter(worse).count(), 2);
    let change = report.standings[0]
        .changes
        .iter()
        .find(|c| c.variant == "slow")
        .unwrap();
    assert_eq!(change.counts, [0, 2, 0]);
    assert!((change.mean.unwrap() - 2.0).abs() < 0.2, "{change:?}");
}

/// Measurements that do not depend on the execution at all are seldom said to.
#[test]
fn that_executions_differ_is_said_where_they_do() {
    let said = |jumps: f64| -> usize {
        let count = |seed| {
            let shape = Shape {
                jumps,
                executions: 20,
                measurements: 50,
                noise: 0.01,
                seed,
                ..Shape::default()
            };
            let report = Report::of(run(&shape), settings());
            let says = |pair: &&quire_lab::report::Pair| {
                pair.sentence
                    .contains("differ more than the measurements within one")
            };
            report.pairs.iter().filter(says).count()
        };
        (0..5).map(count).sum()
    };
    assert!(said(0.0) <= 2, "of 20 comparisons: {}", said(0.0));
    assert_eq!(said(0.02), 20);
}

/// Of many comparisons of equal variants in one report hardly one is said to differ, and nearly all
/// intervals of the mean hold it.
#[test]
fn equal_variants_are_not_said_to_differ() {
    let mut random = SplitMix64::new(12);
    let mut text = "benchmark,variant,value\n".to_owned();
    for benchmark in 0..200 {
        for variant in ["x", "y"] {
            for _ in 0..10 {
                let uniform = |_| random.below(1 << 30) as f64 / f64::from(1 << 30);
                let noise = (0..12).map(uniform).sum::<f64>() - 6.0;
                let value = 1.0 + 0.02 * noise;
                writeln!(text, "{benchmark},{variant},{value}").unwrap();
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("equal.csv");
    std::fs::write(&path, text).unwrap();
    let report = Report::of(quire_lab::import::read(&path).unwrap(), settings());
    let holds = |one: &&quire_lab::report::Experiment| {
        let mean = one.figure(Figure::Mean).unwrap();
        mean.ci_low <= 1.0 && 1.0 <= mean.ci_high
    };
    let held = report.experiments.iter().filter(holds).count();
    assert!(held >= 372, "{held} of 400");
    assert_eq!(report.pairs.len(), 200);
    let claims = report.pairs.iter().filter(|pair| {
        let verdict = pair.effect.verdict(Better::Lower);
        matches!(verdict, Verdict::Better | Verdict::Worse)
    });
    assert!(claims.count() <= 1);
}

#[test]
fn it_is_the_same_under_the_same_seed() {
    assert_eq!(html::page(&report()), html::page(&report()));
}
