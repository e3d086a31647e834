//! What was asked for: which processes, from how full an extent on, and how
//! much of a processor.

use std::path::PathBuf;
use std::time::Duration;

use globset::GlobMatcher;
pub use quire_advise::advisor::LIVED;
use quire_core::attach::{CpuShare, Threshold};
use quire_core::units::Bytes;

use crate::heat::Accesses;

/// All of it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which processes.
    pub who: Who,
    /// The share of one processor for everything together.
    pub cpu: CpuShare,
    /// The time between two looks at a process that changes.
    pub interval: Duration,
    /// How to find out what is accessed most.
    pub accesses: Accesses,
    /// How long memory must have been full enough before it is copied. One pass over
    /// what is there does not wait.
    pub lived: Duration,
}

/// How soon a process that changes is looked at again.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// Which processes.
#[derive(Clone, Debug)]
pub enum Who {
    /// These, until they end.
    Pids(Vec<u32>, Threshold),
    /// All that are in the control group in this directory, or below it.
    Group(PathBuf, Threshold),
    /// All to which a rule applies.
    Rules(Vec<Rule>),
}

impl Who {
    /// All processes that have at least so much in memory.
    #[must_use]
    pub fn all_above(size: Bytes, threshold: Threshold) -> Who {
        Who::Rules(vec![Rule {
            min_size: size,
            threshold,
            ..Rule::default()
        }])
    }

    /// What holds for the processes that the rule `number` selected.
    #[must_use]
    pub fn treatment(&self, number: usize) -> Treatment {
        match self {
            Who::Pids(_, threshold) | Who::Group(_, threshold) => Treatment {
                threshold: *threshold,
                cpu: None,
            },
            Who::Rules(rules) => {
                rules
                    .get(number)
                    .map_or_else(Treatment::default, |rule| Treatment {
                        threshold: rule.threshold,
                        cpu: rule.cpu,
                    })
            }
        }
    }
}

/// How processes are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Treatment {
    /// From how many populated pages on an extent is promoted.
    pub threshold: Threshold,
    /// The share of one processor for these processes together; without one,
    /// only the share of everything counts.
    pub cpu: Option<CpuShare>,
}

/// A rule: the first one that applies to a process decides. Every condition
/// that is given must hold.
#[derive(Clone, Debug, Default)]
pub struct Rule {
    /// The command name, or the path of the executable where the pattern has a
    /// slash.
    pub program: Option<Pattern>,
    /// The path of a control group that the process is in.
    pub cgroup: Option<Pattern>,
    /// What the process has in memory, at least.
    pub min_size: Bytes,
    /// From how many populated pages on an extent is promoted.
    pub threshold: Threshold,
    /// The share of one processor for the processes of this rule together.
    pub cpu: Option<CpuShare>,
    /// Leave such processes alone.
    pub exclude: bool,
}

/// A pattern with `*`, `?` and `[...]`.
#[derive(Clone, Debug)]
pub struct Pattern(GlobMatcher);

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// When it is none.
    pub fn new(text: &str) -> Result<Pattern, globset::Error> {
        let glob = globset::Glob::new(text)?;
        Ok(Pattern(glob.compile_matcher()))
    }

    /// Whether it fits.
    #[must_use]
    pub fn fits(&self, text: impl AsRef<std::path::Path>) -> bool {
        self.0.is_match(text)
    }

    /// Whether it is about a path.
    #[must_use]
    pub fn has_slash(&self) -> bool {
        self.0.glob().glob().contains('/')
    }
}
