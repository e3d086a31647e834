//! What a user calls a strategy, and the strategy that is built from it.
//!
//! No file is read here. A strategy that needs one names it, and gets its contents when
//! it is built.

use std::fmt;
use std::str::FromStr;

use super::colour::{Colour, Colours, MAX_COLOUR_BITS};
use super::record::Record;
use super::strategies::{BinHopping, Exact, FirstFree, Modulo, PageColouring, Per};
use super::strategy::Strategy;

/// How the name of a plug-in's file ends.
const PLUGIN_SUFFIX: &str = ".so";

/// The name of a strategy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum StrategySpec {
    /// Any frame: `default`.
    #[default]
    Default,
    /// Page colouring: `colour`, or `colour:hashed`.
    Colour {
        /// Whether each process has its colours moved by a number of its own.
        hashed: bool,
    },
    /// Bin hopping: `binhop`, or `binhop:thread`.
    BinHop(Per),
    /// Modulo, with a list of colours: `modulo:0-3`.
    Modulo(ColourList),
    /// Modulo, with the colours of a recorded mapping: `modulo:@FILE`.
    ModuloFile(String),
    /// The frames of a recorded mapping: `exact:FILE`.
    Exact(String),
    /// A shared library that brings a strategy: `./mine.so`, or `./mine.so:ARGUMENT`.
    Plugin(PluginSpec),
}

/// The name of a plug-in's strategy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PluginSpec {
    /// The library: it has a slash and ends in `.so`.
    pub path: String,
    /// What the user tells the plug-in; empty for nothing.
    pub argument: String,
}

/// Colours in an order, at least one: `0-3`, `0,2,5` or `4,0-3`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ColourList(Vec<Colour>);

/// Why a text names no strategy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// No such strategy.
    #[error(
        "unknown strategy `{0}`: choose one of default, colour, colour:hashed, binhop, binhop:thread, modulo:COLOURS, modulo:@FILE, exact:FILE, or a plug-in by its path, with a slash and {PLUGIN_SUFFIX} at the end, before :ARGUMENT if it takes one"
    )]
    Unknown(String),
    /// No list of colours.
    #[error("`{0}` is no list of colours: write numbers and ranges below {max}, such as 0-3 or 0,2,5", max = 1 << MAX_COLOUR_BITS)]
    NotColours(String),
    /// No file.
    #[error("`{0}` names no file: append the name of a recorded mapping")]
    NoFile(String),
    /// A name that cannot be passed on.
    #[error("{0:?} has a line break, which separates hints: rename the file")]
    LineBreak(String),
}

/// A colour that the machine does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{spec}` asks for colour {colour}, but there are {count} colours: use 0 to {max}", max = count - 1)]
pub struct NoSuchColour {
    /// The strategy.
    pub spec: StrategySpec,
    /// Its first colour that does not exist.
    pub colour: u32,
    /// How many there are.
    pub count: u32,
}

/// Why a strategy was not built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// A colour that does not exist.
    #[error(transparent)]
    NoSuchColour(#[from] NoSuchColour),
    /// The recorded mapping was not given.
    #[error("the recorded mapping {0} was not read: check that the file can be read")]
    NoRecord(String),
    /// A plug-in, which the caller loads.
    #[error("{0} is a plug-in and no built-in strategy: it has to be loaded as a library")]
    Plugin(String),
}

impl StrategySpec {
    /// The file with the recorded mapping that the strategy is built from.
    #[must_use]
    pub fn record_file(&self) -> Option<&str> {
        match self {
            StrategySpec::ModuloFile(file) | StrategySpec::Exact(file) => Some(file),
            _ => None,
        }
    }

    /// Whether the machine has all colours that the strategy asks for by number.
    ///
    /// # Errors
    /// When it has not.
    pub fn check(&self, colours: &Colours) -> Result<(), NoSuchColour> {
        let StrategySpec::Modulo(list) = self else {
            return Ok(());
        };
        let count = colours.count();
        match list.0.iter().find(|colour| colour.0 >= count) {
            None => Ok(()),
            Some(colour) => Err(NoSuchColour {
                spec: self.clone(),
                colour: colour.0,
                count,
            }),
        }
    }
}

/// The strategy that a name stands for.
///
/// `record` is the content of the [file](StrategySpec::record_file) that it names, if
/// any, and `slew` a number of the process's own, which hashed colouring moves the
/// colours by.
///
/// # Errors
/// When it asks for a colour that does not exist, needs a recorded mapping and gets
/// none, or is a plug-in.
pub fn build(
    spec: &StrategySpec,
    colours: &Colours,
    record: Option<Record>,
    slew: u32,
) -> Result<Box<dyn Strategy>, BuildError> {
    spec.check(colours)?;
    let recorded = |file: &String| record.ok_or_else(|| BuildError::NoRecord(file.clone()));
    Ok(match spec {
        StrategySpec::Default => Box::new(FirstFree),
        StrategySpec::Colour { hashed } => {
            Box::new(PageColouring::new(colours, if *hashed { slew } else { 0 }))
        }
        StrategySpec::BinHop(per) => Box::new(BinHopping::new(colours, *per)),
        StrategySpec::Modulo(list) => Box::new(Modulo::cycle(colours, list.0.clone())),
        StrategySpec::ModuloFile(file) => Box::new(Modulo::recorded(colours, recorded(file)?)),
        StrategySpec::Exact(file) => Box::new(Exact::new(recorded(file)?)),
        StrategySpec::Plugin(plugin) => return Err(BuildError::Plugin(plugin.path.clone())),
    })
}

impl FromStr for StrategySpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<StrategySpec, SpecError> {
        if text.contains(['\n', '\r']) {
            return Err(SpecError::LineBreak(text.to_owned()));
        }
        let file = |name: &str| match name {
            "" => Err(SpecError::NoFile(text.to_owned())),
            name => Ok(name.to_owned()),
        };
        match text {
            "default" => return Ok(StrategySpec::Default),
            "colour" | "color" => return Ok(StrategySpec::Colour { hashed: false }),
            "colour:hashed" | "color:hashed" => return Ok(StrategySpec::Colour { hashed: true }),
            "binhop" => return Ok(StrategySpec::BinHop(Per::Process)),
            "binhop:thread" => return Ok(StrategySpec::BinHop(Per::Thread)),
            _ => (),
        }
        if let Some(name) = text.strip_prefix("modulo:@") {
            return Ok(StrategySpec::ModuloFile(file(name)?));
        }
        if let Some(list) = text.strip_prefix("modulo:") {
            return Ok(StrategySpec::Modulo(list.parse()?));
        }
        if let Some(name) = text.strip_prefix("exact:") {
            return Ok(StrategySpec::Exact(file(name)?));
        }
        let plugin = PluginSpec::read(text).map(StrategySpec::Plugin);
        plugin.ok_or_else(|| SpecError::Unknown(text.to_owned()))
    }
}

impl fmt::Display for StrategySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StrategySpec::Default => f.write_str("default"),
            StrategySpec::Colour { hashed: false } => f.write_str("colour"),
            StrategySpec::Colour { hashed: true } => f.write_str("colour:hashed"),
            StrategySpec::BinHop(Per::Process) => f.write_str("binhop"),
            StrategySpec::BinHop(Per::Thread) => f.write_str("binhop:thread"),
            StrategySpec::Modulo(list) => write!(f, "modulo:{list}"),
            StrategySpec::ModuloFile(file) => write!(f, "modulo:@{file}"),
            StrategySpec::Exact(file) => write!(f, "exact:{file}"),
            StrategySpec::Plugin(plugin) => write!(f, "{plugin}"),
        }
    }
}

impl PluginSpec {
    /// Reads the path, and what comes after the first colon that follows the suffix.
    fn read(text: &str) -> Option<PluginSpec> {
        let suffixes = text.match_indices(PLUGIN_SUFFIX);
        let mut ends = suffixes.map(|(at, suffix)| at + suffix.len());
        let end = ends.find(|end| matches!(text.as_bytes().get(*end), None | Some(b':')))?;
        let (path, argument) = text.split_at(end);
        path.contains('/').then(|| PluginSpec {
            path: path.to_owned(),
            argument: argument.get(1..).unwrap_or_default().to_owned(),
        })
    }
}

impl fmt::Display for PluginSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.argument.as_str() {
            "" => f.write_str(&self.path),
            argument => write!(f, "{}:{argument}", self.path),
        }
    }
}

impl ColourList {
    /// The colours, in their order.
    #[must_use]
    pub fn colours(&self) -> &[Colour] {
        &self.0
    }
}

impl FromStr for ColourList {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<ColourList, SpecError> {
        let number = |text: &str| {
            let digits = text.bytes().all(|digit| digit.is_ascii_digit());
            let number = digits.then(|| text.parse::<u32>().ok())?;
            number.filter(|number| *number < 1 << MAX_COLOUR_BITS)
        };
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(first..=last)
        };
        let ranges: Option<Vec<_>> = text.split(',').map(|part| range(part.trim())).collect();
        let ranges = ranges.ok_or_else(|| SpecError::NotColours(text.to_owned()))?;
        Ok(ColourList(
            ranges.into_iter().flatten().map(Colour).collect(),
        ))
    }
}

impl fmt::Display for ColourList {
    /// Writes colours that follow each other as a range.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges = self.0.chunk_by(|colour, next| colour.0 + 1 == next.0);
        for (n, range) in ranges.enumerate() {
            let comma = if n > 0 { "," } else { "" };
            match range {
                [first, .., last] => write!(f, "{comma}{}-{}", first.0, last.0)?,
                rest => rest
                    .iter()
                    .try_for_each(|only| write!(f, "{comma}{}", only.0))?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;
    use proptest::strategy::Strategy as Generator;

    use super::*;
    use crate::frames::strategy::Request;
    use crate::units::VirtAddr;

    /// Any strategy that a text can name.
    pub fn specs() -> impl Generator<Value = StrategySpec> {
        let list = prop::collection::vec(0u32..20, 1..12);
        let list = list.prop_map(|list| ColourList(list.into_iter().map(Colour).collect()));
        let file = "[a-z@=:, /-]{1,12}";
        prop_oneof![
            Just(StrategySpec::Default),
            any::<bool>().prop_map(|hashed| StrategySpec::Colour { hashed }),
            Just(StrategySpec::BinHop(Per::Process)),
            Just(StrategySpec::BinHop(Per::Thread)),
            list.prop_map(StrategySpec::Modulo),
            file.prop_map(StrategySpec::ModuloFile),
            file.prop_map(StrategySpec::Exact),
            ("[a-d=: ]{0,5}/[a-z:]{1,5}\\.so", "[a-d=:/ .]{0,5}")
                .prop_map(|(path, argument)| PluginSpec { path, argument })
                .prop_map(StrategySpec::Plugin),
        ]
    }

    fn read(text: &str) -> StrategySpec {
        text.parse().unwrap()
    }

    #[test]
    fn names_are_read() {
        assert_eq!(read("color"), StrategySpec::Colour { hashed: false });
        assert_eq!(read("color:hashed").to_string(), "colour:hashed");
        assert_eq!(read("binhop:thread"), StrategySpec::BinHop(Per::Thread));
        assert_eq!(read("modulo:0,1,2,5").to_string(), "modulo:0-2,5");
        let StrategySpec::Modulo(list) = read("modulo:4,0-2,0") else {
            panic!("a list");
        };
        assert_eq!(list.colours(), [4, 0, 1, 2, 0].map(Colour));
        assert_eq!(
            read("modulo:@a,b"),
            StrategySpec::ModuloFile("a,b".to_owned())
        );
        assert_eq!(
            read("exact:/x/y.so"),
            StrategySpec::Exact("/x/y.so".to_owned())
        );
        let plugin = |text: &str| match read(text) {
            StrategySpec::Plugin(plugin) => (plugin.path, plugin.argument),
            other => panic!("{other:?}"),
        };
        let names = |path: &str, argument: &str| (path.to_owned(), argument.to_owned());
        assert_eq!(plugin("./mine.so"), names("./mine.so", ""));
        assert_eq!(plugin("./mine.so:"), names("./mine.so", ""));
        assert_eq!(plugin("/a.sox/b.so:0-3"), names("/a.sox/b.so", "0-3"));
        assert_eq!(plugin("./b.so:c.so:d"), names("./b.so", "c.so:d"));
        assert_eq!(read("modulo:@f").record_file(), Some("f"));
        assert_eq!(read("exact:f").record_file(), Some("f"));
        assert_eq!(read("default").record_file(), None);
    }

    #[test]
    fn other_names_are_refused() {
        let error = |text: &str| text.parse::<StrategySpec>().unwrap_err();
        for text in [
            "",
            "mine.so",
            "mine.so:/x",
            "./mine.so.1",
            "/mine",
            "binhop:process",
            "modulo",
            "Default",
        ] {
            assert_eq!(error(text), SpecError::Unknown(text.to_owned()));
        }
        for list in ["", "3-0", "1,,2", "-1", "65536", "+1", "x", "0-", "0-1-2"] {
            let text = format!("modulo:{list}");
            assert_eq!(error(&text), SpecError::NotColours(list.to_owned()));
        }
        assert_eq!(error("exact:"), SpecError::NoFile("exact:".to_owned()));
        assert_eq!(error("modulo:@"), SpecError::NoFile("modulo:@".to_owned()));
        assert_eq!(
            error("exact:a\nb"),
            SpecError::LineBreak("exact:a\nb".to_owned())
        );
        let error = error("modulo:x").to_string();
        assert!(error.contains("below 65536"), "{error}");
    }

    #[test]
    fn strategies_are_built() {
        let colours = Colours::plain(16 << 12);
        let built = |text: &str, record| build(&read(text), &colours, record, 3);
        let request = Request {
            page: VirtAddr(0x1000),
            thread: 1,
        };
        let order = |text: &str| built(text, None).unwrap().sequence(&request).is_some();
        assert!(!order("default") && !order("colour:hashed") && !order("modulo:0-15"));
        assert!(order("binhop") && order("binhop:thread"));
        assert!(built("exact:f", Some(Record::default())).is_ok());
        assert!(built("modulo:@f", Some(Record::default())).is_ok());
        let error = |text: &str| built(text, None).err().unwrap().to_string();
        assert!(error("exact:f").starts_with("the recorded mapping f was not read"));
        assert!(error("modulo:@f").starts_with("the recorded mapping f was not read"));
        assert!(error("./p.so").starts_with("./p.so is a plug-in"));
        assert_eq!(
            error("modulo:0,16,17"),
            "`modulo:0,16-17` asks for colour 16, but there are 16 colours: use 0 to 15"
        );
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(spec in specs()) {
            prop_assert_eq!(spec.to_string().parse::<StrategySpec>(), Ok(spec));
        }
    }
}
