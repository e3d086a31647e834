//! Which page-size policy and which frame strategy suit a program best (paper 002): what
//! `quire tune` tries, in which order, and what can be said in the end.
//!
//! It is a race in two parts. In the *search* all candidates run in interleaved rounds, and
//! those that are significantly worse than the best so far leave. In the *confirmation*
//! the one or two that are left at the front run again, beside the program as it is
//! without quire, and only these fresh executions say whether they are better: who was
//! chosen for being fastest was also lucky, and in fresh executions luck has no part.
//!
//! | module | holds |
//! |---|---|
//! | [`candidate`] | what is tried |
//! | [`facts`] | what executions gave, by candidate and round |
//! | [`interval`] | ratios of means and of variations, with intervals |
//! | [`search`] | who is still in the race, round by round |
//! | [`verdict`] | the confirmation, and what it says |
//! | [`guide`] | the same for the runner, with a limit of time |
//! | [`words`] | the verdict as a sentence, and as JSON |
//!
//! All but `guide` depends on nothing but the facts, so that a run that was interrupted
//! goes on as if it had not been.

pub mod candidate;
pub mod facts;
pub mod guide;
pub mod interval;
pub mod search;
pub mod verdict;
pub mod words;

#[cfg(test)]
mod simulation;

use std::fmt;
use std::time::Duration;

use crate::experiment::{Benchmark, Experiment};
use crate::run::Run;
use candidate::{Candidate, Role};

/// So many rounds are made before anything is concluded from them.
pub const FEW: u64 = 5;
/// The chance that a conclusion is wrong is at most this.
const ERROR: f64 = 0.05;

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The best mean.
    Mean,
    /// The least variation.
    Determinism,
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Goal::Mean => "mean",
            Goal::Determinism => "determinism",
        })
    }
}

/// By which rules the best is found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// What is wanted.
    pub goal: Goal,
    /// A difference of at most this part is none: 0.01 is 1 %.
    pub threshold: f64,
    /// How much worse the mean may be, where determinism is wanted, as a part of it.
    pub tolerance: f64,
    /// How often each candidate is executed at most, in the search and again in the
    /// confirmation.
    pub executions: u64,
}

/// What is tried, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// By which rules.
    pub rules: Rules,
    /// The metric that is judged; the first that the program reports unless given.
    pub metric: Option<String>,
    /// How long all of it may take.
    pub time_limit: Option<Duration>,
    /// What is tried. The first is the program without quire.
    pub candidates: Vec<(Candidate, Role)>,
    /// What is not tried, and why not.
    pub left_out: Vec<(Candidate, String)>,
}

impl Plan {
    /// The experiment that it is: the search and the confirmation are two benchmarks, so
    /// that reports do not mix them. `base` has everything but their names, the title and
    /// the variants; its one benchmark is the program.
    #[must_use]
    pub fn experiment(&self, base: Experiment) -> Experiment {
        let name = |part: &str| {
            let program = base.benchmarks.first().map_or("", |b| &b.name);
            format!("{program} ({part})")
        };
        let benchmarks = ["search", "confirmation"].map(|part| Benchmark {
            name: name(part),
            ..base.benchmarks.first().cloned().unwrap_or_default()
        });
        Experiment {
            title: format!("quire tune --for {}", self.rules.goal),
            executions: self.rules.executions,
            benchmarks: benchmarks.into(),
            variants: self.candidates.iter().map(|(c, _)| c.variant()).collect(),
            ..base
        }
    }

    /// Whether results were begun by the same rules. Who makes more executions because he
    /// did not like what came of fewer, would sooner or later find what is not there.
    ///
    /// # Errors
    /// A line that says what is different, and what to do.
    pub fn resumes(&self, run: &Run) -> Result<(), String> {
        let path = run.path.display();
        let begun = run.header.title.strip_prefix("quire tune --for ");
        let goal = self.rules.goal.to_string();
        let executions = run.header.experiment["executions"].as_u64();
        match (begun, executions) {
            (None, _) => Err(format!(
                "{path} holds no results of `quire tune`; name another file"
            )),
            (Some(begun), _) if begun != goal => Err(format!(
                "{path} was begun with --for {begun}; give that, or name another file"
            )),
            (_, Some(n)) if n != self.rules.executions => Err(format!(
                "{path} was begun with --executions {n}; give that, or name another file"
            )),
            _ => Ok(()),
        }
    }

    /// The names of the candidates.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.candidates.iter().map(|(c, _)| c.name()).collect()
    }

    /// The parts of the race that candidates have.
    #[must_use]
    pub fn roles(&self) -> Vec<Role> {
        self.candidates.iter().map(|(_, role)| *role).collect()
    }
}
