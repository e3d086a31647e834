//! All that a user chose about frames, and how it travels: as [`crate::config`] does, in
//! environment variables.

use super::colour::{Colours, ColoursError};
use super::hints::{Hints, HintsError};
use super::spec::{NoSuchColour, SpecError, StrategySpec};
use crate::stat::StrategyName;
use crate::units::{Bytes, SizeError};

/// Name of the variable that holds the strategy of memory without a hint.
pub const ENV_STRATEGY: &str = "QUIRE_STRATEGY";
/// Name of the variable that holds the hints, one in a line.
pub const ENV_HINTS: &str = "QUIRE_HINTS";
/// Name of the variable that says how frames are coloured.
pub const ENV_COLOURS: &str = "QUIRE_COLOURS";
/// Name of the variable that keeps the choice from programs that the program starts.
pub const ENV_NO_INHERIT: &str = "QUIRE_NO_INHERIT";
/// Name of the variable that bounds the stock of pages, in bytes.
pub const ENV_STOCK: &str = "QUIRE_STOCK";
/// Every variable that carries a choice about frames.
pub const ENV_FRAMES: [&str; 5] = [
    ENV_STRATEGY,
    ENV_HINTS,
    ENV_COLOURS,
    ENV_STOCK,
    ENV_NO_INHERIT,
];
/// What the stock of pages may hold, where the user names no bound.
pub const STOCK: Bytes = Bytes(64 << 20);

/// What a user chose about a program's frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameConfig {
    /// The strategy of memory without a hint.
    pub default: StrategySpec,
    /// Strategies for parts of the memory.
    pub hints: Hints,
    /// How frames are coloured, where that is not left to the machine's own cache.
    pub colours: Option<Colours>,
    /// What the stock of pages may hold beyond one superpage, where that is not left to
    /// [`STOCK`].
    pub stock: Option<Bytes>,
}

/// A choice about frames that could not be read from the environment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameConfigError {
    /// The strategy does not exist.
    #[error(transparent)]
    Strategy(#[from] SpecError),
    /// The hints could not be read, or do not go together.
    #[error(transparent)]
    Hints(#[from] HintsError),
    /// The colours could not be read.
    #[error(transparent)]
    Colours(#[from] ColoursError),
    /// The bound of the stock could not be read.
    #[error(transparent)]
    Stock(#[from] SizeError),
}

impl FrameConfig {
    /// Reads the choice from environment variables, of which `get` returns the value by
    /// name. What is not set takes its default.
    ///
    /// # Errors
    /// When a variable is set to something that cannot be read.
    pub fn from_env(get: impl Fn(&str) -> Option<String>) -> Result<FrameConfig, FrameConfigError> {
        Ok(FrameConfig {
            default: get(ENV_STRATEGY).map_or(Ok(StrategySpec::default()), |t| t.parse())?,
            hints: get(ENV_HINTS).map_or(Ok(Hints::default()), |t| t.parse())?,
            colours: get(ENV_COLOURS).map(Colours::try_from).transpose()?,
            stock: get(ENV_STOCK).map(|t| t.parse()).transpose()?,
        })
    }

    /// The environment variables that carry this choice.
    #[must_use]
    pub fn to_env(&self) -> Vec<(&'static str, String)> {
        let mut vars = Vec::new();
        if self.default != StrategySpec::default() {
            vars.push((ENV_STRATEGY, self.default.to_string()));
        }
        if !self.hints.is_empty() {
            vars.push((ENV_HINTS, self.hints.to_string()));
        }
        if let Some(colours) = &self.colours {
            vars.push((ENV_COLOURS, colours.to_string()));
        }
        if let Some(stock) = self.stock {
            vars.push((ENV_STOCK, stock.0.to_string()));
        }
        vars
    }

    /// Every strategy that is named, the default first.
    pub fn strategies(&self) -> impl Iterator<Item = &StrategySpec> {
        let of_hints = self.hints.iter().map(|hint| &hint.strategy);
        std::iter::once(&self.default).chain(of_hints)
    }

    /// What they are called in reports, in the same order.
    #[must_use]
    pub fn names(&self) -> Vec<StrategyName> {
        let targets = self.hints.iter().map(|hint| hint.target.to_string());
        std::iter::once("default".to_owned())
            .chain(targets)
            .zip(self.strategies())
            .map(|(target, strategy)| StrategyName {
                target,
                strategy: strategy.to_string(),
            })
            .collect()
    }

    /// Whether there are all colours that the strategies ask for by number.
    ///
    /// # Errors
    /// When one is missing.
    pub fn check(&self, colours: &Colours) -> Result<(), NoSuchColour> {
        self.strategies().try_for_each(|spec| spec.check(colours))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frames::hints::tests::any_hints;
    use crate::frames::spec::tests::specs;

    #[test]
    fn colours_that_do_not_exist_are_refused() {
        let config = FrameConfig {
            hints: "heap=colour\nstack=modulo:0-8".parse().unwrap(),
            ..FrameConfig::default()
        };
        assert_eq!(config.check(&Colours::plain(16 << 12)), Ok(()));
        let error = config.check(&Colours::plain(8 << 12)).unwrap_err();
        assert_eq!((error.colour, error.count), (8, 8));
        assert_eq!(FrameConfig::default().check(&Colours::default()), Ok(()));
    }

    #[test]
    fn strategies_are_named_after_what_they_are_for() {
        let config = FrameConfig {
            hints: "heap=modulo:0-3\nmap:libc=binhop".parse().unwrap(),
            ..FrameConfig::default()
        };
        let names: Vec<(String, String)> = config
            .names()
            .into_iter()
            .map(|name| (name.target, name.strategy))
            .collect();
        let wanted = [
            ("default", "default"),
            ("heap", "modulo:0-3"),
            ("map:libc", "binhop"),
        ];
        assert_eq!(names, wanted.map(|(t, s)| (t.to_owned(), s.to_owned())));
    }

    #[test]
    fn bad_values_are_refused() {
        for (name, value) in [
            (ENV_STRATEGY, "best"),
            (ENV_HINTS, "heap"),
            (ENV_COLOURS, "11"),
        ] {
            let get = |wanted: &str| (wanted == name).then(|| value.to_owned());
            assert!(FrameConfig::from_env(get).is_err());
        }
        assert_eq!(FrameConfig::from_env(|_| None), Ok(FrameConfig::default()));
    }

    proptest! {
        #[test]
        fn environment_round_trip(
            default in specs(),
            hints in any_hints().prop_filter_map("hints that go together", |h| Hints::new(h).ok()),
            colours in prop::sample::select(&[None, Some(""), Some("12,13^18")][..]),
            stock in prop::option::of((0u64..1 << 40).prop_map(Bytes)),
        ) {
            let colours = colours.map(|text| Colours::try_from(text.to_owned()).unwrap());
            let config = FrameConfig { default, hints, colours, stock };
            let vars = config.to_env();
            prop_assert!(vars.iter().all(|(name, _)| ENV_FRAMES.contains(name)));
            let get = |name: &str| vars.iter().find(|v| v.0 == name).map(|v| v.1.clone());
            prop_assert_eq!(FrameConfig::from_env(get), Ok(config));
        }
    }
}
