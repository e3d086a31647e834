//! What is run, and in which order: in each round every benchmark once under every
//! strategy, all of them in an order at random. So what changes on the machine falls on
//! all of them, and a study that is interrupted has about as many executions of each.

use quire_core::frames::config::FrameConfig;
use quire_core::units::Bytes;
use quire_stats::random::SplitMix64;
use serde::{Deserialize, Serialize};

use crate::cli::{CacheChoice, Nondeterminism};
use crate::colours::allocation::Allocation;
use crate::colours::geometry::Geometry;
use crate::set::{BENCHMARKS, Benchmark, Class, size};

/// The strategies that are compared, in the order of the paper's figures.
pub const VARIANTS: [Allocation; 3] = [Allocation::Default, Allocation::Colour, Allocation::BinHop];

/// What the results depend on. A study goes on only where this is the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// Which kind of experiment this is.
    pub study: String,
    /// The benchmarks, by name.
    pub benchmarks: Vec<String>,
    /// The strategies; reports compare the others with the first one.
    pub variants: Vec<Variant>,
    /// Measurements of an execution, where there are several.
    pub measurements: u32,
    /// Whether they are scheduled first-in, first-out.
    pub realtime: bool,
    /// What the order follows from.
    pub seed: u64,
    /// The size that half, equal and double refer to, in bytes.
    pub cache: u64,
    /// How frames are coloured.
    pub colours: String,
}

/// A strategy, as `quire report` finds it in a header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Variant {
    /// What its executions call it.
    pub name: String,
}

/// All strategies that are compared.
fn variants() -> Vec<Variant> {
    let variant = |allocation: Allocation| Variant {
        name: allocation.name().to_owned(),
    };
    VARIANTS.map(variant).into()
}

/// The study.
#[derive(Debug)]
pub struct Plan {
    /// What its results depend on.
    pub experiment: Experiment,
    /// Executions of each benchmark under each strategy.
    pub executions: u32,
    /// What is left out, each with its remedy.
    pub missing: Vec<String>,
    /// The cache that colours are for.
    pub geometry: Geometry,
    benchmarks: Vec<&'static Benchmark>,
}

/// An execution that is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Of which benchmark.
    pub benchmark: &'static Benchmark,
    /// Under which strategy.
    pub variant: Allocation,
    /// Its place among all.
    pub order: u64,
}

impl Plan {
    /// What the options ask for, as far as it can be had here.
    ///
    /// # Errors
    /// A line with the remedy.
    pub fn of(options: &Nondeterminism) -> Result<Plan, String> {
        let geometry = Geometry::of(&CacheChoice::default(), false)?;
        let cache = match options.cache_size {
            Some(size) => size,
            None => size::of_cache()?,
        };
        let asked = |b: &&Benchmark| options.only.is_empty() || options.only.contains(&b.name);
        let (mut benchmarks, mut missing) = (Vec::new(), Vec::new());
        for benchmark in BENCHMARKS.iter().filter(asked) {
            match benchmark.missing() {
                Some(reason) => missing.push(format!("{}: {reason}", benchmark.name)),
                None => benchmarks.push(benchmark),
            }
        }
        if benchmarks.is_empty() {
            return Err(missing.join("; "));
        }
        let default = |full, quick| if options.quick { quick } else { full };
        Ok(Plan {
            experiment: Experiment {
                study: "nondeterminism".to_owned(),
                benchmarks: benchmarks.iter().map(|b| b.name.clone()).collect(),
                variants: variants(),
                measurements: options.measurements.unwrap_or(default(20, 5)),
                realtime: options.realtime,
                seed: options.seed,
                cache: cache.0,
                colours: geometry.colours.to_string(),
            },
            executions: options.executions.unwrap_or(default(20, 3)),
            missing,
            geometry,
            benchmarks,
        })
    }

    /// How frames are chosen under a strategy.
    ///
    /// # Errors
    /// When there is no such strategy.
    pub fn frames(&self, variant: Allocation) -> Result<FrameConfig, String> {
        let spec = variant.name().parse();
        Ok(FrameConfig {
            default: spec.map_err(|error| format!("{}: {error}", variant.name()))?,
            colours: Some(self.geometry.colours.clone()),
            ..FrameConfig::default()
        })
    }

    /// Measurements of an execution of a benchmark.
    pub fn measurements(&self, benchmark: &Benchmark) -> u32 {
        match benchmark.class() {
            Class::Repeated => self.experiment.measurements,
            Class::Single => 1,
        }
    }

    /// All executions, in their order.
    pub fn turns(&self) -> impl Iterator<Item = Turn> {
        (0..self.executions).flat_map(|round| self.round(round))
    }

    fn round(&self, round: u32) -> Vec<Turn> {
        let pairs = self.benchmarks.iter();
        let mut pairs: Vec<_> = pairs
            .flat_map(|b| VARIANTS.map(|variant| (*b, variant)))
            .collect();
        let round = u64::from(round);
        // Rounds have numbers of their own, whatever the seed is.
        let mut random = SplitMix64::new(self.experiment.seed ^ (round + 1) << 32);
        for at in (1..pairs.len()).rev() {
            pairs.swap(at, random.below(at + 1));
        }
        let first = round * pairs.len() as u64;
        let turn = |(order, (benchmark, variant))| Turn {
            benchmark,
            variant,
            order,
        };
        (first..).zip(pairs).map(turn).collect()
    }

    /// What is going to happen, in a few lines.
    pub fn describe(&self) -> String {
        let Experiment {
            measurements,
            realtime,
            cache,
            ..
        } = self.experiment;
        let class = if realtime {
            ", first-in, first-out"
        } else {
            ""
        };
        let mut text = format!(
            "{} benchmarks under {} strategies, {} executions each, {measurements} measurements \
             in one where there are several{class}\nhalf, equal and double: of {}; colours: {}",
            self.benchmarks.len(),
            VARIANTS.len(),
            self.executions,
            Bytes(cache),
            self.geometry.describe()
        );
        for missing in &self.missing {
            text += &format!("\nleft out: {missing}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use quire_core::frames::cache::Cache;

    use super::*;
    use crate::cli::SetCache;

    fn plan(seed: u64, executions: u32) -> Plan {
        let benchmarks: Vec<&Benchmark> = BENCHMARKS.iter().take(4).collect();
        let set: SetCache = "level=2,sets=1024,ways=16,line=64".parse().unwrap();
        let mut caches: Vec<Cache> = Vec::new();
        quire_core::frames::cache::apply(&mut caches, &[set.meant]).unwrap();
        let cache = caches.remove(0);
        Plan {
            experiment: Experiment {
                study: "nondeterminism".into(),
                benchmarks: benchmarks.iter().map(|b| b.name.clone()).collect(),
                variants: variants(),
                measurements: 7,
                realtime: false,
                seed,
                cache: 1 << 20,
                colours: String::new(),
            },
            executions,
            missing: Vec::new(),
            geometry: Geometry {
                name: "L2".into(),
                colours: cache.colours().unwrap(),
                size_bytes: cache.shape.size(),
                cache,
            },
            benchmarks,
        }
    }

    fn names(plan: &Plan) -> Vec<(String, &'static str)> {
        let turns = plan.turns();
        let name = |turn: Turn| (turn.benchmark.name.clone(), turn.variant.name());
        turns.map(name).collect()
    }

    #[test]
    fn a_round_has_everything_once_and_no_two_the_same_order() {
        let plan = plan(1, 5);
        let all = names(&plan);
        let rounds: Vec<_> = all.chunks(12).collect();
        for round in &rounds {
            let unique: BTreeSet<_> = round.iter().collect();
            assert_eq!(unique.len(), 12);
        }
        assert!(rounds.windows(2).all(|two| two[0] != two[1]));
        assert!(plan.turns().map(|turn| turn.order).eq(0..60));
    }

    #[test]
    fn the_order_follows_from_the_seed_and_not_from_the_length() {
        assert_eq!(names(&plan(3, 4)), names(&plan(3, 4)));
        assert_ne!(names(&plan(3, 4)), names(&plan(4, 4)));
        assert_eq!(names(&plan(3, 4))[..24], names(&plan(3, 2)));
    }

    #[test]
    fn each_strategy_can_be_asked_for() {
        let plan = plan(1, 1);
        for variant in VARIANTS {
            let frames = plan.frames(variant).unwrap();
            assert_eq!(frames.default.to_string(), variant.name());
            assert!(frames.colours.is_some());
        }
    }
}
