//! Who chooses the frames: the kernel, or one of the strategies of `quire run --frames`.

use clap::ValueEnum;
use quire_core::frames::colour::Colours;
use quire_core::frames::config::FrameConfig;
use quire_core::frames::spec::{self, StrategySpec};
use quire_core::frames::strategy::Strategy;
use serde::{Deserialize, Serialize};

/// A way to choose frames.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize,
)]
pub enum Allocation {
    /// The kernel's own choice, on base pages
    #[value(name = "default")]
    #[serde(rename = "default")]
    Default,
    /// The same where free memory lies in scattered pages
    #[value(name = "default-aged")]
    #[serde(rename = "default-aged")]
    Aged,
    /// Page colouring
    #[value(name = "colour")]
    #[serde(rename = "colour")]
    Colour,
    /// Page colouring with a number of the process's own
    #[value(name = "colour:hashed")]
    #[serde(rename = "colour:hashed")]
    Hashed,
    /// Bin hopping of the process
    #[value(name = "binhop")]
    #[serde(rename = "binhop")]
    BinHop,
    /// Bin hopping of each thread
    #[value(name = "binhop:thread")]
    #[serde(rename = "binhop:thread")]
    BinHopThread,
    /// All colours by turns
    #[value(name = "modulo:all")]
    #[serde(rename = "modulo:all")]
    Modulo,
}

impl Allocation {
    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Allocation::Default => "default",
            Allocation::Aged => "default-aged",
            Allocation::Colour => "colour",
            Allocation::Hashed => "colour:hashed",
            Allocation::BinHop => "binhop",
            Allocation::BinHopThread => "binhop:thread",
            Allocation::Modulo => "modulo:all",
        }
    }

    /// What it does, for people.
    pub const fn description(self) -> &'static str {
        match self {
            Allocation::Default => "the kernel's base pages (PR_SET_THP_DISABLE), without Quire",
            Allocation::Aged => {
                "the same, while free memory lies in single pages at random, as on a machine that has run for long"
            }
            Allocation::Colour => "quire run --frames colour",
            Allocation::Hashed => "quire run --frames colour:hashed",
            Allocation::BinHop => "quire run --frames binhop",
            Allocation::BinHopThread => "quire run --frames binhop:thread",
            Allocation::Modulo => "quire run --frames modulo:0-N, all colours",
        }
    }

    /// Whether Quire chooses.
    pub const fn is_quires(self) -> bool {
        !matches!(self, Allocation::Default | Allocation::Aged)
    }

    /// What populating may cost at most, as a multiple of the kernel's base pages, on a
    /// machine that wakes a thread in 10 us.
    pub const fn cost_limit(self) -> Option<f64> {
        match self {
            Allocation::Default | Allocation::Aged => None,
            Allocation::BinHop | Allocation::BinHopThread => Some(4.0),
            Allocation::Colour | Allocation::Hashed | Allocation::Modulo => Some(2.0),
        }
    }

    /// Whether neighbouring pages surely get different colours, whatever else the
    /// process touches.
    pub const fn goes_by_address(self) -> bool {
        matches!(
            self,
            Allocation::Colour | Allocation::Hashed | Allocation::Modulo
        )
    }

    /// What `quire run --frames` is told. `None` where the kernel chooses.
    pub fn spec(self, colours: &Colours) -> Option<StrategySpec> {
        let all = format!("modulo:0-{}", colours.count() - 1);
        let text = match self {
            Allocation::Modulo => all.as_str(),
            other => other.name(),
        };
        text.parse().ok().filter(|_| self.is_quires())
    }

    /// The choice that a process is started with.
    pub fn config(self, colours: &Colours) -> Option<FrameConfig> {
        Some(FrameConfig {
            default: self.spec(colours)?,
            colours: Some(colours.clone()),
            ..FrameConfig::default()
        })
    }

    /// The strategy itself, for a process whose own number is `slew`.
    pub fn strategy(self, colours: &Colours, slew: u32) -> Option<Box<dyn Strategy>> {
        spec::build(&self.spec(colours)?, colours, None, slew).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_is_parsed_and_written() {
        for allocation in Allocation::value_variants() {
            let name = allocation.name();
            assert_eq!(Allocation::from_str(name, false), Ok(*allocation));
            assert_eq!(serde_json::to_value(allocation).unwrap(), name);
        }
    }

    #[test]
    fn each_of_quires_has_a_strategy() {
        let colours = Colours::plain(16 << 12);
        for allocation in Allocation::value_variants() {
            let strategy = allocation.strategy(&colours, 1);
            assert_eq!(strategy.is_some(), allocation.is_quires(), "{allocation:?}");
            assert_eq!(allocation.cost_limit().is_some(), allocation.is_quires());
        }
        let all = Allocation::Modulo.spec(&colours).unwrap();
        assert_eq!(all.to_string(), "modulo:0-15");
    }
}
