//! Old and new results: whether something got worse, beyond a threshold and beyond noise.
//!
//! What is compared is every primary metric of every benchmark and variant that both have.
//! It is a regression where the new is worse by the rule of all comparisons
//! ([`quire_stats::shift`]), and the ratio is farther from 1 than the threshold. All items are
//! one family: with the stated confidence, none of them is wrong.
//!
//! | module | holds |
//! |---|---|
//! | [`output`] | JSON and Markdown |
//! | [`junit`] | JUnit XML |

pub mod junit;
pub mod output;

use std::collections::{HashMap, HashSet};

use crate::caution::{each_once, listed};
use crate::judge::{Settings, Shift};
use crate::parallel;
use crate::report::experiment::{Experiment, Figure, Group, groups};
use crate::report::{Effect, Verdict, number, pair};
use crate::run::{Better, Metric, Run};

/// What both have.
#[derive(Clone, Debug)]
pub struct Item {
    /// The old measurements.
    pub old: Experiment,
    /// The new ones.
    pub new: Experiment,
    /// Their metric.
    pub metric: Metric,
    /// How they differ.
    pub effect: Effect,
    /// What that means.
    pub outcome: Outcome,
}

/// What came of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It is worse, beyond threshold and noise.
    Regression,
    /// It is better, beyond threshold and noise.
    Improvement,
    /// It differs, but by less than the threshold.
    Small,
    /// No difference can be told from noise.
    Noise,
    /// Nothing could be computed.
    Unknown,
}

impl Outcome {
    /// In a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Regression => "regression",
            Outcome::Improvement => "improvement",
            Outcome::Small => "below the threshold",
            Outcome::Noise => "no difference beyond noise",
            Outcome::Unknown => "unknown",
        }
    }
}

/// What only one has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lone {
    /// Whether the new results have it.
    pub is_new: bool,
    /// The benchmark.
    pub benchmark: String,
    /// The variant.
    pub variant: String,
    /// The metric.
    pub metric: String,
    /// Why the other one lacks it, where it failed there.
    pub failed: Option<String>,
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// What the old results are called.
    pub old: String,
    /// What the new ones are called.
    pub new: String,
    /// The threshold, as a fraction.
    pub threshold: f64,
    /// How intervals are computed.
    pub settings: Settings,
    /// What both have, in the order of the new results.
    pub items: Vec<Item>,
    /// What only one has.
    pub lone: Vec<Lone>,
    /// What readers should know.
    pub warnings: Vec<String>,
}

/// Why results cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompareError {
    /// They have nothing in common.
    #[error(
        "{old} and {new} have no benchmark, variant and metric in common: the first has {first}, \
         and the second has {second}"
    )]
    Nothing {
        /// The name of the old results.
        old: String,
        /// The name of the new ones.
        new: String,
        /// Something that the old ones have.
        first: String,
        /// Something that the new ones have.
        second: String,
    },
    /// They disagree in what a metric is.
    #[error("{metric}: the unit is {old:?} in the old results and {new:?} in the new ones")]
    Unit {
        /// Of which metric.
        metric: String,
        /// Its old unit.
        old: String,
        /// Its new unit.
        new: String,
    },
}

/// A warning names so many of what it holds for.
const NAMED: usize = 3;

/// A benchmark, a variant and a metric.
type Key<'a> = [&'a str; 3];

fn key(group: &Group) -> Key<'_> {
    [&group.benchmark, &group.variant, &group.metric]
}

/// Compares results.
///
/// # Errors
/// When they have nothing in common, or disagree in the unit of a metric.
pub fn compare(
    old: &Run,
    new: &Run,
    threshold: f64,
    settings: Settings,
) -> Result<Comparison, CompareError> {
    check_units(old, new)?;
    let (olds, news) = (primary(old), primary(new));
    let by_key: HashMap<Key, &Group> = olds.iter().map(|group| (key(group), group)).collect();
    let both = news
        .iter()
        .filter_map(|new| Some((*by_key.get(&key(new))?, new)));
    let both: Vec<(&Group, &Group)> = both.collect();
    if both.is_empty() {
        let some = |groups: &[Group]| match groups.first() {
            Some(group) => format!("{}, {}, {}", group.benchmark, group.variant, group.metric),
            None => "nothing".to_owned(),
        };
        return Err(CompareError::Nothing {
            old: name(old),
            new: name(new),
            first: some(&olds),
            second: some(&news),
        });
    }
    let mut items = parallel::map(both, |(before, after)| {
        let metric = new.header.metrics.get(&after.metric).cloned();
        Item::of(before, after, metric.unwrap_or_default(), &settings)
    });
    pair::together(items.iter_mut().map(|item| &mut item.effect));
    for item in &mut items {
        item.outcome = outcome(&item.effect, item.metric.better, threshold);
    }
    let mut lone = lone(&olds, &news, false, &new.failures);
    lone.extend(self::lone(&news, &olds, true, &old.failures));
    let mut warnings = warnings(old, new);
    warnings.extend(cautions(&items));
    Ok(Comparison {
        old: name(old),
        new: name(new),
        threshold,
        settings,
        warnings,
        items,
        lone,
    })
}

fn name(run: &Run) -> String {
    match run.path.as_os_str().is_empty() {
        true => run.header.title.clone(),
        false => run.path.display().to_string(),
    }
}

fn check_units(old: &Run, new: &Run) -> Result<(), CompareError> {
    for (name, metric) in &new.header.metrics {
        let before = old.header.metrics.get(name);
        if let Some(before) = before.filter(|before| before.unit != metric.unit) {
            return Err(CompareError::Unit {
                metric: name.clone(),
                old: before.unit.clone(),
                new: metric.unit.clone(),
            });
        }
    }
    Ok(())
}

/// The measurements in primary metrics.
fn primary(run: &Run) -> Vec<Group> {
    let primary: HashSet<&str> = run.primary_metrics().into_iter().collect();
    let variants = run.all_variants().into_iter().map(str::to_owned).collect();
    let groups = groups(variants, run.executions.iter().cloned());
    groups
        .into_iter()
        .filter(|group| primary.contains(group.metric.as_str()))
        .collect()
}

/// What `of` has and `other` lacks.
fn lone(
    of: &[Group],
    other: &[Group],
    is_new: bool,
    failures: &[crate::run::Failure],
) -> Vec<Lone> {
    let there: HashSet<Key> = other.iter().map(key).collect();
    let of = of.iter().filter(|group| !there.contains(&key(group)));
    of.map(|group| {
        let same =
            |f: &&crate::run::Failure| f.benchmark == group.benchmark && f.variant == group.variant;
        Lone {
            is_new,
            benchmark: group.benchmark.clone(),
            variant: group.variant.clone(),
            metric: group.metric.clone(),
            failed: failures
                .iter()
                .find(same)
                .map(|failure| failure.reason.clone()),
        }
    })
    .collect()
}

/// What is known of both machines, and differs.
fn warnings(old: &Run, new: &Run) -> Vec<String> {
    let mut warnings = Vec::new();
    for (name, value) in &new.header.environment {
        let before = old.header.environment.get(name);
        let matters = ["cpu", "kernel", "host", "governor", "thp"];
        let matters = matters
            .iter()
            .any(|part| name.to_ascii_lowercase().contains(part));
        if let Some(before) = before.filter(|before| *before != value && matters) {
            warnings.push(format!(
                "{name} was {before} and is {value}: a difference may come from that"
            ));
        }
    }
    for warning in old.header.warnings.iter().chain(&new.header.warnings) {
        if !warnings.contains(warning) {
            warnings.push(warning.clone());
        }
    }
    warnings
}

/// What to bear in mind of comparisons: each text once, with the names of
/// what it holds for.
fn cautions(items: &[Item]) -> Vec<String> {
    let said = items.iter().filter_map(|item| {
        let name = format!(
            "{}, {}, {}",
            item.new.benchmark, item.new.variant, item.new.metric
        );
        let caveats = item.effect.caveats();
        (!caveats.is_empty()).then(|| (name, caveats.join(" ")))
    });
    let text = |(names, text): (Vec<String>, String)| match names.len() {
        count if count == items.len() => text,
        0..=NAMED => format!("{}: {text}", listed(&names)),
        count => {
            let more = format!("{} more", count - NAMED);
            let named = [&names[..NAMED], &[more]].concat();
            format!("{}: {text}", listed(&named))
        }
    };
    each_once(said).into_iter().map(text).collect()
}

impl Item {
    /// Two samples, compared alone as yet.
    fn of(old: &Group, new: &Group, metric: Metric, settings: &Settings) -> Item {
        Item {
            outcome: Outcome::Unknown,
            effect: Effect::of(&new.sample, &old.sample, false, settings),
            old: Experiment::of(old.clone(), false, metric.better, settings),
            new: Experiment::of(new.clone(), false, metric.better, settings),
            metric,
        }
    }

    /// The old and the new mean as text.
    #[must_use]
    pub fn means(&self) -> [String; 2] {
        [&self.old, &self.new].map(|one| match one.figure(Figure::Mean) {
            Some(mean) => number::estimate(mean, &self.metric.unit),
            None => number::with_unit(one.average, &self.metric.unit),
        })
    }

    /// What can be concluded, in a sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        let (metric, better) = (&self.new.metric, self.metric.better);
        self.effect.sentence(["new", "old"], metric, better)
    }

    /// The ratio with its interval as text, or why there is none.
    #[must_use]
    pub fn ratio(&self) -> String {
        let within_one = |shift: &Shift| shift.of_one_execution;
        match &self.effect.ratio() {
            Ok(ratio) if self.effect.shift.as_ref().is_ok_and(within_one) => {
                format!("{} within one execution", number::ratio(ratio))
            }
            Ok(ratio) => number::ratio(ratio),
            Err(why) => format!("absent: {why}"),
        }
    }
}

fn outcome(effect: &Effect, better: Better, threshold: f64) -> Outcome {
    match (effect.verdict(better), effect.is_beyond(threshold)) {
        (Verdict::Worse, true) => Outcome::Regression,
        (Verdict::Better, true) => Outcome::Improvement,
        (Verdict::Worse | Verdict::Better, false) => Outcome::Small,
        (Verdict::Undecided, _) => Outcome::Noise,
        (Verdict::Unknown, _) => Outcome::Unknown,
    }
}

impl Comparison {
    /// How many have this outcome.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> usize {
        self.items
            .iter()
            .filter(|item| item.outcome == outcome)
            .count()
    }

    /// Whether something got worse.
    #[must_use]
    pub fn has_regression(&self) -> bool {
        self.count(Outcome::Regression) > 0
    }

    /// All of it in a line.
    #[must_use]
    pub fn summary(&self) -> String {
        let counts = [
            (Outcome::Regression, "regressions"),
            (Outcome::Improvement, "improvements"),
            (Outcome::Small, "below the threshold"),
            (Outcome::Noise, "without a difference beyond noise"),
            (Outcome::Unknown, "unknown"),
        ];
        let parts = counts
            .iter()
            .map(|(outcome, name)| (self.count(*outcome), name));
        let parts: Vec<String> = parts
            .filter(|(count, name)| *count > 0 || **name == "regressions")
            .map(|(count, name)| format!("{count} {name}"))
            .collect();
        let lone = match self.lone.len() {
            0 => String::new(),
            n => format!("; {n} in one of them only"),
        };
        format!("{} compared: {}{lone}", self.items.len(), parts.join(", "))
    }
}
