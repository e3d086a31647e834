//! Which strategy memory has: that of the hint for its address, else of the one for its
//! name, else of the one for its kind, else the one for all memory.
//!
//! Strategies are numbered as [`FrameConfig::strategies`] gives them: 0 is the one for all
//! memory, and the hints follow in their order.

use std::ffi::c_int;

use quire_core::frames::config::FrameConfig;
use quire_core::frames::hints::Target;
use quire_core::frames::spec::StrategySpec;
use quire_core::units::AddrRange;
use quire_vm::frames::Which;

use super::{names, overrides};

/// What memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A mapping of the program's own, or static data.
    Mapping,
    /// The allocator's.
    Heap,
    /// The stack of the process or of a thread.
    Stack,
}

impl Kind {
    /// Of a mapping that the program makes: it says itself what is a stack.
    pub fn of_mapping(flags: c_int) -> Kind {
        match flags & libc::MAP_STACK {
            0 => Kind::Mapping,
            _ => Kind::Stack,
        }
    }
}

/// How a mapping is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As without strategies.
    Usual,
    /// By the kernel, with strategies for what of it has one.
    Plain,
    /// By the kernel; but where no hint is for the addresses that it chooses, as without
    /// strategies.
    Tried,
}

/// The number of the strategy for what has no hint for its address.
pub fn number_of(config: &FrameConfig, kind: Kind) -> usize {
    let target = match kind {
        Kind::Mapping => None,
        Kind::Heap => Some(Target::Heap),
        Kind::Stack => Some(Target::Stack),
    };
    let hinted = |target| config.hints.iter().position(|hint| hint.target == target);
    target.and_then(hinted).map_or(0, |n| n + 1)
}

/// The number of the strategy for the first name that is this memory's, if there is a
/// hint for it.
pub fn number_by_name(config: &FrameConfig, is_name: impl Fn(&str) -> bool) -> Option<usize> {
    let named = |target: &Target| matches!(target, Target::Map(name) if is_name(name));
    let hint = config.hints.iter().position(|hint| named(&hint.target))?;
    Some(hint + 1)
}

/// The number of the strategy that memory takes along when it moves: that of its address
/// stays behind.
pub fn number_when_moved(config: &FrameConfig, Which(number): Which) -> usize {
    let hint = number
        .checked_sub(1)
        .and_then(|n| config.hints.iter().nth(n));
    match hint.map(|hint| &hint.target) {
        Some(Target::Range(_)) => number_of(config, Kind::Mapping),
        _ => number,
    }
}

/// Whether a strategy came after the program was started, or is the kernel's choice.
pub fn is_later(config: &FrameConfig, Which(number): Which) -> bool {
    number >= config.strategies().count()
}

/// The strategy of a number, if it is not the kernel's choice. What the program itself
/// asks for all its memory comes before what its user does.
pub fn which(config: &FrameConfig, number: usize) -> Option<Which> {
    if number == 0
        && let Some(which) = overrides::for_all()
    {
        return (which != Which::KERNEL).then_some(which);
    }
    let spec = config.strategies().nth(number)?;
    (*spec != StrategySpec::Default).then_some(Which(number))
}

/// The parts of a range that have a strategy, in falling order; `otherwise` is the number
/// of the one for what has no hint for its address.
pub fn parts(
    config: &FrameConfig,
    range: AddrRange,
    otherwise: usize,
) -> impl Iterator<Item = (AddrRange, Which)> {
    let number = move |hint: Option<usize>| hint.map_or(otherwise, |n| n + 1);
    let parts = config.hints.parts(range);
    parts.filter_map(move |(part, hint)| Some((part, which(config, number(hint))?)))
}

/// Whether a mapping is private anonymous memory that can have a strategy: not pages of
/// the hugetlb pool, nor what grows downward.
pub fn is_placeable(flags: c_int) -> bool {
    let kind = flags & libc::MAP_TYPE;
    let other = libc::MAP_HUGETLB | libc::MAP_GROWSDOWN;
    flags & libc::MAP_ANONYMOUS != 0 && kind == libc::MAP_PRIVATE && flags & other == 0
}

/// How a mapping is to be made.
pub fn way(config: &FrameConfig, target: AddrRange, flags: c_int) -> Way {
    if !is_placeable(flags) {
        return Way::Usual;
    }
    let otherwise = number_of(config, Kind::of_mapping(flags));
    let placed = which(config, otherwise).is_some();
    let fixed = flags & libc::MAP_FIXED != 0;
    let concerns =
        || parts(config, target, 0).next().is_some() || !overrides::parts(target).is_empty();
    if placed || names::may_come() || (fixed && concerns()) {
        Way::Plain
    } else if !fixed && (names_addresses(config) || overrides::name_addresses()) {
        Way::Tried
    } else {
        Way::Usual
    }
}

/// Whether there is a hint for addresses.
pub fn names_addresses(config: &FrameConfig) -> bool {
    let of_range = |target: &Target| matches!(target, Target::Range(_));
    config.hints.iter().any(|hint| of_range(&hint.target))
}
