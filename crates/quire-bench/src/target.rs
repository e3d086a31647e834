//! What each workload has to reach, and whether it does. A verdict is computed
//! from medians and nothing else, but for "no worse", which allows for noise; a
//! miss is always shown.

use serde::Serialize;

use crate::results::{Results, Summary};
use crate::spec::{Better, Workload};
use crate::variant::Variant;

/// Pairs of samples without which noise is not known.
const FOR_NOISE: usize = 3;

/// How a figure is judged.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// At least this many times as good as another variant.
    Gain {
        /// The other variant.
        over: Variant,
        /// The factor; 2 means twice as fast, or half the memory.
        at_least: f64,
    },
    /// At most so much more than another variant.
    Excess {
        /// The other variant.
        over: Variant,
        /// The difference, in the metric's unit.
        at_most: f64,
    },
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
    /// No worse than another variant: the 95 % interval of the gain, pair by pair
    /// of the same repetition, reaches 1.
    /// Of many such rules one in forty is missed by chance. Fewer than
    /// [`FOR_NOISE`] samples say nothing about the noise.
    NoWorse {
        /// The other variant.
        than: Variant,
    },
}

/// One thing to reach.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Target {
    /// In which workload.
    pub workload: Workload,
    /// By which variant.
    pub variant: Variant,
    /// By which figure.
    pub metric: &'static str,
    /// How it is judged.
    pub rule: Rule,
}

/// Whether a target is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The median reaches it.
    Holds,
    /// The median does not.
    Missed,
    /// A variant that it needs was not measured.
    NotMeasured,
}

/// A target with what was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The target.
    #[serde(flatten)]
    pub target: Target,
    /// The target in words.
    pub text: String,
    /// The figure that is judged, with its 95 % interval.
    pub measured: Option<[f64; 3]>,
    /// Whether the target is reached.
    pub outcome: Outcome,
}

impl Outcome {
    /// In words.
    pub const fn text(self) -> &'static str {
        match self {
            Outcome::Holds => "holds",
            Outcome::Missed => "MISSED",
            Outcome::NotMeasured => "not measured",
        }
    }
}

const fn gain(
    workload: Workload,
    variant: Variant,
    metric: &'static str,
    over: Variant,
    at_least: f64,
) -> Target {
    Target {
        workload,
        variant,
        metric,
        rule: Rule::Gain { over, at_least },
    }
}

const fn at_most(workload: Workload, variant: Variant, metric: &'static str, most: f64) -> Target {
    Target {
        workload,
        variant,
        metric,
        rule: Rule::AtMost(most),
    }
}

const fn at_least(
    workload: Workload,
    variant: Variant,
    metric: &'static str,
    least: f64,
) -> Target {
    Target {
        workload,
        variant,
        metric,
        rule: Rule::AtLeast(least),
    }
}

const fn excess(
    workload: Workload,
    variant: Variant,
    metric: &'static str,
    over: Variant,
    at_most: f64,
) -> Target {
    Target {
        workload,
        variant,
        metric,
        rule: Rule::Excess { over, at_most },
    }
}

/// Every target that is set for one figure.
const TARGETS: &[Target] = {
    use Variant::{
        Kernel4k as K4, QuireAdaptive, QuireBase, QuireEager, QuireEagerAhead, QuireReserve,
        QuireReserveAhead, QuireStatic, Thp,
    };
    use Workload as W;
    &[
        gain(W::Touch256m, QuireReserveAhead, "wall_ms", Thp, 5.0),
        gain(W::Touch4g, QuireReserve, "wall_ms", Thp, 1.0),
        gain(W::Touch4g, QuireReserve, "wall_ms", K4, 2.0),
        gain(W::Touch4g, QuireReserve, "cpu_ms", Thp, 1.0 / 1.1),
        gain(W::TouchP999, QuireReserveAhead, "p999_ns", Thp, 5.0),
        gain(W::TouchP999, QuireEagerAhead, "p999_ns", Thp, 5.0),
        gain(W::Random1g, QuireReserve, "read_ns", Thp, 0.98),
        gain(W::Random1g, QuireReserve, "chase_ns", Thp, 0.98),
        gain(W::Random1g, QuireReserve, "read_ns", K4, 1.3),
        gain(W::Random1g, QuireReserve, "chase_ns", K4, 1.3),
        gain(W::Sparse4g, QuireReserve, "rss_mib", K4, 1.0 / 1.05),
        excess(W::Failed, QuireReserve, "dense_ns", K4, 1000.0),
        excess(W::Failed, QuireReserve, "sparse_ns", K4, 1000.0),
        at_most(W::Promote, QuireReserve, "promote_us", 20.0),
        at_most(W::Promote, QuireReserve, "moved_pages", 0.0),
        gain(W::Transpose, QuireReserve, "load_mean_ns", Thp, 0.98),
        gain(W::Transpose, QuireReserve, "store_mean_ns", Thp, 0.98),
        gain(W::Transpose, QuireReserve, "load_mean_ns", K4, 1.0),
        gain(W::Transpose, QuireReserve, "store_mean_ns", K4, 1.0),
        gain(W::Matmul, QuireStatic, "ikj_s", K4, 1.0),
        gain(W::Matmul, QuireStatic, "ijk_s", K4, 1.0),
        gain(W::Redis, QuireReserve, "get_rps", K4, 1.0),
        gain(W::Redis, QuireReserve, "set_rps", K4, 1.0),
        gain(W::Redis, QuireReserve, "get_p999_ms", Thp, 1.0),
        gain(W::Redis, QuireReserve, "save_set_p999_ms", Thp, 1.0),
        gain(W::Redis, QuireReserve, "rss_mib", K4, 1.0 / 1.05),
        at_most(W::Redis, QuireReserve, "back_s", 1.0),
        gain(W::Slowdown, QuireReserve, "total_s", K4, 1.0 / 1.02),
        gain(W::Slowdown, QuireEager, "total_s", K4, 1.0 / 1.02),
        gain(W::Slowdown, QuireBase, "total_s", K4, 1.0 / 1.02),
        at_least(W::Compete, QuireReserve, "survivors", 2.0),
        at_least(W::Compete, QuireAdaptive, "survivors", 2.0),
        at_least(W::Compete, QuireReserve, "tight_survivors", 2.0),
        at_least(W::Compete, QuireAdaptive, "tight_survivors", 2.0),
        at_least(W::Compete, QuireReserve, "huge_pct", 90.0),
        at_least(W::Compete, QuireAdaptive, "huge_pct", 90.0),
        gain(W::Fragmented, QuireReserve, "fill_ms", K4, 1.0 / 1.02),
        gain(W::Fragmented, QuireReserve, "read_ns", K4, 1.0 / 1.02),
        gain(W::Fragmented, QuireReserve, "cpu_ms", K4, 1.0 / 1.02),
        at_least(W::Forks, QuireReserve, "kept_pct", 100.0),
        at_least(W::Forks, QuireAdaptive, "kept_pct", 100.0),
        at_least(W::Forks, QuireReserve, "intact", 1.0),
        at_least(W::Forks, QuireAdaptive, "intact", 1.0),
    ]
};

/// The targets of all workloads that were run. The default has to be no worse than
/// the machine without Quire, by any figure that both have.
pub fn of(results: &Results) -> Vec<Target> {
    let workloads = results.workloads();
    let set = TARGETS.iter().filter(|t| workloads.contains(&t.workload));
    let mut all: Vec<Target> = set.copied().collect();
    let (variant, than) = (Variant::QuireAdaptive, Variant::Plain);
    for workload in workloads {
        let compared = workload.metrics().iter().filter(|metric| {
            let measured = |v| results.summary(workload, v, metric.name).is_some();
            metric.better != Better::Neither && measured(variant) && measured(than)
        });
        all.extend(compared.map(|metric| Target {
            workload,
            variant,
            metric: metric.name,
            rule: Rule::NoWorse { than },
        }));
    }
    all
}

impl Target {
    /// The target in words.
    pub fn text(&self) -> String {
        let metric = self.workload.metric(self.metric);
        let (label, unit) = metric.map_or((self.metric, ""), |m| (m.label, m.unit));
        let variant = self.variant.name();
        match self.rule {
            Rule::Gain { over, at_least } => format!(
                "{variant}: {label} at least {} times as good as {}",
                (at_least * 1000.0).round() / 1000.0,
                over.name()
            ),
            Rule::Excess { over, at_most } => format!(
                "{variant}: {label} at most {at_most} {unit} more than {}",
                over.name()
            ),
            Rule::AtMost(most) => format!("{variant}: {label} at most {most} {unit}"),
            Rule::AtLeast(least) => format!("{variant}: {label} at least {least} {unit}"),
            Rule::NoWorse { than } => {
                format!(
                    "{variant}: {label} no worse than {}, within noise",
                    than.name()
                )
            }
        }
    }

    fn measured(&self, results: &Results) -> Option<[f64; 3]> {
        let find = |variant| results.summary(self.workload, variant, self.metric);
        let own = find(self.variant)?;
        match self.rule {
            Rule::AtMost(_) | Rule::AtLeast(_) => Some([own.median, own.ci_low, own.ci_high]),
            Rule::Gain { over, .. } => Summary::gain(own, find(over)?),
            Rule::NoWorse { than } => {
                let variants = [self.variant, than];
                results.paired_gain(self.workload, variants, self.metric, FOR_NOISE)
            }
            Rule::Excess { over, .. } => Summary::excess(own, find(over)?),
        }
    }

    /// Judges it.
    pub fn judge(&self, results: &Results) -> Verdict {
        let measured = self.measured(results);
        let reached = |[value, _, high]: [f64; 3]| match self.rule {
            Rule::AtMost(most) | Rule::Excess { at_most: most, .. } => value <= most,
            Rule::Gain {
                at_least: least, ..
            }
            | Rule::AtLeast(least) => value >= least,
            Rule::NoWorse { .. } => high >= 1.0,
        };
        let outcome = match measured {
            None => Outcome::NotMeasured,
            Some(figures) if reached(figures) => Outcome::Holds,
            Some(_) => Outcome::Missed,
        };
        Verdict {
            target: *self,
            text: self.text(),
            measured,
            outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Run, Sample, Turn};

    fn results(workload: Workload, metric: &str, of: &[(Variant, [f64; 5])]) -> Results {
        let runs = of.iter().flat_map(|(variant, values)| {
            values.iter().zip(0..).map(|(value, repetition)| {
                let mut sample = Sample::default();
                sample.put(metric, *value);
                Run {
                    turn: Turn {
                        workload,
                        variant: *variant,
                        repetition,
                        position: 0,
                        part: None,
                    },
                    seconds: 0.0,
                    sample,
                    error: None,
                }
            })
        });
        Results::of(runs.collect())
    }

    /// What "no worse" says of these samples under the two policies.
    fn adaptive(workload: Workload, metric: &str, own: [f64; 5], plain: [f64; 5]) -> Outcome {
        let both = [(Variant::QuireAdaptive, own), (Variant::Plain, plain)];
        let results = results(workload, metric, &both);
        let all = of(&results);
        let rules = all
            .iter()
            .filter(|t| matches!(t.rule, Rule::NoWorse { .. }));
        let outcomes: Vec<_> = rules.map(|t| t.judge(&results).outcome).collect();
        assert_eq!(outcomes.len(), 1);
        outcomes[0]
    }

    #[test]
    fn adaptive_is_no_worse_within_noise() {
        let (base, noisy) = ([10., 10.1, 10.2, 10.3, 10.4], [9.9, 10.2, 10.3, 10.5, 10.6]);
        let worse = base.map(|x| x * 1.2);
        for (workload, metric, own, reserve, expected) in [
            (Workload::Cycle, "mmap_4m_ms", noisy, base, Outcome::Holds),
            (Workload::Cycle, "mmap_4m_ms", base, worse, Outcome::Holds),
            (Workload::Cycle, "mmap_4m_ms", worse, base, Outcome::Missed),
            (Workload::Forks, "writes_mps", base, worse, Outcome::Missed),
            (Workload::Forks, "writes_mps", worse, base, Outcome::Holds),
            (
                Workload::Promote,
                "moved_pages",
                [0.; 5],
                [0.; 5],
                Outcome::Holds,
            ),
            (
                Workload::Promote,
                "moved_pages",
                [1.; 5],
                [0.; 5],
                Outcome::Missed,
            ),
        ] {
            assert_eq!(
                adaptive(workload, metric, own, reserve),
                expected,
                "{metric}"
            );
        }
    }

    #[test]
    fn what_slows_the_machine_slows_both_of_a_pair() {
        let reserve = [10., 11., 30., 12., 50.];
        for (factor, expected) in [(1.1, Outcome::Missed), (0.99, Outcome::Holds)] {
            let own = reserve.map(|x: f64| x * factor);
            let outcome = adaptive(Workload::Cycle, "mmap_4m_ms", own, reserve);
            assert_eq!(outcome, expected, "{factor}");
        }
    }

    #[test]
    fn few_samples_say_nothing_about_noise() {
        let both = [Variant::QuireAdaptive, Variant::Plain].map(|v| (v, [1.; 5]));
        let all = results(Workload::Cycle, "mmap_4m_ms", &both);
        let few = Results::of(all.runs.into_iter().step_by(3).collect());
        let judged = of(&few).first().map(|t| t.judge(&few).outcome);
        assert_eq!(judged, Some(Outcome::NotMeasured));
    }

    #[test]
    fn policies_are_compared_only_where_both_ran() {
        let one = [(Variant::QuireAdaptive, [1.; 5])];
        let all = of(&results(Workload::Cycle, "mmap_4m_ms", &one));
        assert_eq!(all, []);
    }

    #[test]
    fn at_least_is_judged_by_the_median() {
        for (kept, expected) in [(100.0, Outcome::Holds), (99.0, Outcome::Missed)] {
            let kept = [(Variant::QuireReserve, [100., 100., kept, kept, kept])];
            let results = results(Workload::Forks, "kept_pct", &kept);
            let all = of(&results);
            let target = all.iter().find(|t| t.metric == "kept_pct").unwrap();
            assert_eq!(target.judge(&results).outcome, expected);
        }
    }

    #[test]
    fn every_target_names_a_metric_and_variants_that_run() {
        for target in TARGETS {
            let ran = target.workload.variants();
            assert!(
                target.workload.metric(target.metric).is_some(),
                "{target:?}"
            );
            assert!(ran.contains(&target.variant), "{target:?}");
            if let Rule::Gain { over, .. } | Rule::Excess { over, .. } = target.rule {
                assert!(ran.contains(&over), "{target:?}");
            }
        }
    }
}
