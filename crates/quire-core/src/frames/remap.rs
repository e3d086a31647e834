//! What becomes of pages that exist already when they are to get other frames (paper
//! 002, section 3), and how it is asked for and told: in lines of text, over the control
//! socket of the process.

use std::ffi::CStr;
use std::fmt;
use std::str::FromStr;

use super::colour::{Colours, ColoursError};
use super::hints::{HintError, parse_range};
use super::spec::{SpecError, StrategySpec};
use crate::units::{AddrRange, PageCount, VirtAddr};

/// How a line begins that asks for pages to be moved.
const ASK: &str = "remap";
/// How a line begins that asks for how far it is.
const ASK_PROGRESS: &str = "remap-progress";
/// How a line begins that asks for what was left.
const ASK_LEFT: &str = "remap-left";
/// So many ranges are told in a line, at most.
pub const LEFT_AT_ONCE: usize = 8;

/// Why pages stay where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// They are not memory that frames can be chosen for.
    Foreign,
    /// They are on superpages of Quire's.
    Superpages,
    /// A forked process has them as well.
    Shared,
    /// They are in use by the kernel or a device, or were merged with others.
    Busy,
    /// The protection or a lock of the mapping forbids it.
    Protected,
    /// They are in swap.
    Swapped,
    /// There is no free frame that the strategy accepts.
    NoFrame,
    /// The mapping ended or changed meanwhile.
    Changed,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 8] = [
        Reason::Foreign,
        Reason::Superpages,
        Reason::Shared,
        Reason::Busy,
        Reason::Protected,
        Reason::Swapped,
        Reason::NoFrame,
        Reason::Changed,
    ];

    /// Its name, in one word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Foreign => "foreign",
            Reason::Superpages => "superpages",
            Reason::Shared => "shared",
            Reason::Busy => "busy",
            Reason::Protected => "protected",
            Reason::Swapped => "swapped",
            Reason::NoFrame => "no-frame",
            Reason::Changed => "changed",
        }
    }

    /// What it means, for people.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self.c_text().to_str() {
            Ok(text) => text,
            Err(_) => self.name(),
        }
    }

    /// The same for C.
    #[must_use]
    pub const fn c_text(self) -> &'static CStr {
        match self {
            Reason::Foreign => {
                c"no private anonymous memory of the program that frames can be chosen for"
            }
            Reason::Superpages => c"on superpages of Quire's: run the program with --policy base",
            Reason::Shared => c"shared with a forked process until one of them writes",
            Reason::Busy => c"in use by the kernel or a device, or merged with other pages",
            Reason::Protected => c"the mapping is locked, read-only or executable",
            Reason::Swapped => c"in swap",
            Reason::NoFrame => c"no free frame is accepted by the strategy",
            Reason::Changed => c"the mapping ended or changed meanwhile",
        }
    }
}

/// Pages that stay where they are, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Where they lie.
    pub range: AddrRange,
    /// Why.
    pub reason: Reason,
}

/// What became of the pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Pages that were moved to another frame.
    pub moved: PageCount,
    /// Pages whose frame was accepted already.
    pub kept: PageCount,
    /// Pages outside of the range that made way for a demanded frame.
    pub made_way: PageCount,
    /// Pages that the program has not touched; they get their frames when it does.
    pub missing: PageCount,
    /// What could not be moved, in order of address; neighbours with the same reason
    /// are one.
    pub left: Vec<Left>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Pages that were looked at.
    pub done: PageCount,
    /// Pages of the range.
    pub of: PageCount,
    /// Whether it has ended.
    pub ended: bool,
    /// Pages by what became of them, as in [`Outcome`].
    pub moved: PageCount,
    /// As in [`Outcome`].
    pub kept: PageCount,
    /// As in [`Outcome`].
    pub made_way: PageCount,
    /// As in [`Outcome`].
    pub missing: PageCount,
    /// How many ranges were left.
    pub left: usize,
}

/// What is asked of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// To move pages.
    Remap {
        /// Which.
        range: AddrRange,
        /// By which strategy.
        strategy: StrategySpec,
        /// How frames are coloured.
        colours: Colours,
    },
    /// How far it is.
    Progress,
    /// What was left, from this place in the list on.
    Left(usize),
}

/// Why a line asks for nothing that is known here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// Another line.
    #[error("`{0}` asks for no pages to be moved")]
    Unknown(String),
    /// The addresses.
    #[error(transparent)]
    Range(#[from] HintError),
    /// The strategy.
    #[error(transparent)]
    Strategy(#[from] SpecError),
    /// The colours.
    #[error(transparent)]
    Colours(#[from] ColoursError),
}

/// A line that tells nothing that is known here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no answer about pages: the program runs under another version of Quire")]
pub struct AnswerError(String);

impl Outcome {
    /// Adds pages that stay where they are, above those that were added before.
    pub fn leave(&mut self, range: AddrRange, reason: Reason) {
        match self.left.last_mut() {
            Some(last) if last.reason == reason && last.range.end == range.start => {
                last.range.end = range.end;
            }
            _ => self.left.push(Left { range, reason }),
        }
    }

    /// How many pages were left.
    #[must_use]
    pub fn pages_left(&self) -> PageCount {
        PageCount(self.left.iter().map(|l| l.range.len().to_pages().0).sum())
    }
}

impl Ask {
    /// Whether a line is one of these, right or wrong.
    #[must_use]
    pub fn is_one(line: &str) -> bool {
        line.starts_with(ASK)
    }
}

impl fmt::Display for Ask {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ask::Remap {
                range,
                strategy,
                colours,
            } => {
                let (start, end) = (range.start.0, range.end.0);
                write!(out, "{ASK} {start:x}-{end:x} {colours} {strategy}")
            }
            Ask::Progress => out.write_str(ASK_PROGRESS),
            Ask::Left(from) => write!(out, "{ASK_LEFT} {from}"),
        }
    }
}

impl FromStr for Ask {
    type Err = AskError;

    fn from_str(line: &str) -> Result<Ask, AskError> {
        let unknown = || AskError::Unknown(line.to_owned());
        if line == ASK_PROGRESS {
            return Ok(Ask::Progress);
        }
        let (word, rest) = line.split_once(' ').ok_or_else(unknown)?;
        match word {
            ASK_LEFT => rest.parse().map(Ask::Left).map_err(|_| unknown()),
            ASK => {
                // Colours may be none, and the name of a file may have spaces.
                let mut words = rest.splitn(3, ' ');
                let mut word = || words.next().ok_or_else(unknown);
                Ok(Ask::Remap {
                    range: parse_range(word()?)?,
                    colours: Colours::try_from(word()?.to_owned())?,
                    strategy: word()?.parse()?,
                })
            }
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ended, left) = (u8::from(self.ended), self.left);
        let [done, of, moved, kept, made_way, missing] = self.counts().map(|pages| pages.0);
        write!(
            out,
            "{ended} {left} {done} {of} {moved} {kept} {made_way} {missing}"
        )
    }
}

impl Progress {
    fn counts(&self) -> [PageCount; 6] {
        let done = [self.done, self.of, self.moved];
        let [a, b, c] = done;
        [a, b, c, self.kept, self.made_way, self.missing]
    }
}

impl FromStr for Progress {
    type Err = AnswerError;

    fn from_str(line: &str) -> Result<Progress, AnswerError> {
        let numbers: Result<Vec<u64>, _> = line.split(' ').map(str::parse).collect();
        match numbers.as_deref() {
            Ok(
                &[
                    ended @ (0 | 1),
                    left,
                    done,
                    of,
                    moved,
                    kept,
                    made_way,
                    missing,
                ],
            ) => Ok(Progress {
                ended: ended == 1,
                left: usize::try_from(left).unwrap_or(usize::MAX),
                done: PageCount(done),
                of: PageCount(of),
                moved: PageCount(moved),
                kept: PageCount(kept),
                made_way: PageCount(made_way),
                missing: PageCount(missing),
            }),
            _ => Err(AnswerError(line.to_owned())),
        }
    }
}

/// The line that tells of some pages that were left, [`LEFT_AT_ONCE`] ranges at most.
#[must_use]
pub fn left_line(left: &[Left]) -> String {
    let some = left.iter().take(LEFT_AT_ONCE).map(|left| {
        let (start, end) = (left.range.start.0, left.range.end.0);
        format!("{start:x}-{end:x} {}", left.reason.name())
    });
    some.collect::<Vec<_>>().join(",")
}

/// What a line tells of pages that were left.
///
/// # Errors
/// When it cannot be read.
pub fn parse_left(line: &str) -> Result<Vec<Left>, AnswerError> {
    let wrong = || AnswerError(line.to_owned());
    let one = |text: &str| {
        let (range, name) = text.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let at = |hex| u64::from_str_radix(hex, 16).ok().map(VirtAddr);
        let (start, end) = (at(start)?, at(end)?);
        let reason = Reason::ALL.into_iter().find(|r| r.name() == name)?;
        let range = (start < end).then_some(AddrRange { start, end })?;
        Some(Left { range, reason })
    };
    let lines = line.split(',').filter(|text| !text.is_empty());
    lines.map(|text| one(text).ok_or_else(wrong)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::control::MAX_LINE;
    use crate::frames::spec::tests::specs;
    use crate::units::BASE_PAGE;

    fn range() -> impl Strategy<Value = AddrRange> {
        (1u64..1 << 34, 1u64..1 << 20).prop_map(|(start, pages)| AddrRange {
            start: VirtAddr(start * BASE_PAGE),
            end: VirtAddr((start + pages) * BASE_PAGE),
        })
    }

    fn left() -> impl Strategy<Value = Left> {
        let reason = prop::sample::select(&Reason::ALL[..]);
        (range(), reason).prop_map(|(range, reason)| Left { range, reason })
    }

    proptest! {
        #[test]
        fn what_is_asked_is_read_again(
            range in range(),
            strategy in specs(),
            bits in prop::sample::select(&["", "12,13,14", "12^18,13"][..]),
            from in 0usize..5000,
        ) {
            let colours = Colours::try_from(bits.to_owned()).unwrap();
            for ask in [Ask::Remap { range, strategy, colours }, Ask::Progress, Ask::Left(from)] {
                prop_assert!(Ask::is_one(&ask.to_string()));
                prop_assert_eq!(ask.to_string().parse(), Ok(ask));
            }
        }

        #[test]
        fn what_is_told_is_read_again(
            counts in prop::array::uniform6(any::<u64>()),
            ended: bool,
            ranges in prop::collection::vec(left(), 0..20),
        ) {
            let [done, of, moved, kept, made_way, missing] = counts.map(PageCount);
            let left = ranges.len();
            let progress = Progress { done, of, ended, moved, kept, made_way, missing, left };
            prop_assert_eq!(progress.to_string().parse(), Ok(progress));
            let line = left_line(&ranges);
            prop_assert!(line.len() < MAX_LINE);
            let some: Vec<Left> = ranges.into_iter().take(LEFT_AT_ONCE).collect();
            prop_assert_eq!(parse_left(&line), Ok(some));
        }

        /// Joined, they are the same pages with the same reasons.
        #[test]
        fn neighbours_with_the_same_reason_are_one(reasons in prop::collection::vec(0usize..3, 1..40)) {
            let mut outcome = Outcome::default();
            let page = |n: usize| VirtAddr((n as u64 + 1) * BASE_PAGE);
            for (n, reason) in reasons.iter().enumerate() {
                let range = AddrRange { start: page(n), end: page(n + 1) };
                outcome.leave(range, Reason::ALL[*reason]);
            }
            let runs = reasons.chunk_by(|a, b| a == b).count();
            prop_assert_eq!(outcome.left.len(), runs);
            prop_assert_eq!(outcome.pages_left(), PageCount(reasons.len() as u64));
            for (n, reason) in reasons.iter().enumerate() {
                let of = outcome.left.iter().find(|l| l.range.start <= page(n) && page(n) < l.range.end);
                prop_assert_eq!(of.map(|l| l.reason), Some(Reason::ALL[*reason]));
            }
        }
    }

    #[test]
    fn what_is_neither_is_refused() {
        for line in [
            "",
            "policy=eager",
            "remap",
            "remap 1000-2000",
            "remap-left x",
        ] {
            assert!(line.parse::<Ask>().is_err(), "{line}");
        }
        assert!("1 2".parse::<Progress>().is_err());
        assert!("done".parse::<Progress>().is_err());
        assert!(parse_left("1000-2000 nothing").is_err());
        assert!(parse_left("2000-1000 busy").is_err());
    }
}
