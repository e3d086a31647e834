//! What each workload has to reach, and whether it does. A verdict is computed
//! from medians and nothing else; a miss is always shown.

use serde::Serialize;

use crate::results::{Results, Summary};
use crate::spec::Workload;
use crate::variant::Variant;

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

/// Every target.
pub const TARGETS: &[Target] = {
    use Variant::{
        Kernel4k as K4, QuireBase, QuireEager, QuireEagerAhead, QuireReserve, QuireReserveAhead,
        QuireStatic, Thp,
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
    ]
};

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
        }
    }

    fn measured(&self, results: &Results) -> Option<[f64; 3]> {
        let find = |variant| results.summary(self.workload, variant, self.metric);
        let own = find(self.variant)?;
        match self.rule {
            Rule::AtMost(_) => Some([own.median, own.ci_low, own.ci_high]),
            Rule::Gain { over, .. } => Summary::gain(own, find(over)?),
            Rule::Excess { over, .. } => Summary::excess(own, find(over)?),
        }
    }

    /// Judges it.
    pub fn judge(&self, results: &Results) -> Verdict {
        let measured = self.measured(results);
        let reached = |value: f64| match self.rule {
            Rule::AtMost(most) | Rule::Excess { at_most: most, .. } => value <= most,
            Rule::Gain { at_least, .. } => value >= at_least,
        };
        let outcome = match measured {
            None => Outcome::NotMeasured,
            Some([value, ..]) if reached(value) => Outcome::Holds,
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
