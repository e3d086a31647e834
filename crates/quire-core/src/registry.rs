//! Preemption over all processes: the reservation that was allocated from least
//! recently goes first, whichever process of the user holds it (paper 000,
//! sections 3.3 and 3.4).
//!
//! The registry is the set of statistics pages of a user's managed processes.
//! Each says how much the process has reserved, and when the oldest of its
//! reservations was last allocated from. A process that needs memory asks those
//! that hold older reservations than its own to yield, in the order of age. There
//! is no lock, so nobody can die holding one, and no room that could run out.

use std::fmt;
use std::str::FromStr;

use crate::units::{Bytes, SUPERPAGE};

/// What a process says about its reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Process number.
    pub pid: u32,
    /// Bytes that are reserved and not populated.
    pub reserved: Bytes,
    /// When the reservation that is preempted first was last allocated from, in
    /// milliseconds of the machine's monotonic clock.
    pub oldest_ms: u64,
    /// The memory control group; zero stands for none with a limit.
    pub group: u64,
}

/// A request to give memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Yield {
    /// How much.
    pub wanted: Bytes,
    /// Only reservations that were last allocated from before this time, in
    /// milliseconds of the machine's monotonic clock.
    pub before_ms: u64,
    /// Only whole ones, of which nothing is in use: it is contiguous blocks that
    /// are short, and the rest of a reservation is none.
    pub whole: bool,
}

/// A line that is no request to yield.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAYield;

impl fmt::Display for Yield {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = u8::from(self.whole);
        write!(f, "yield {} {} {whole}", self.wanted.0, self.before_ms)
    }
}

impl FromStr for Yield {
    type Err = NotAYield;

    fn from_str(line: &str) -> Result<Yield, NotAYield> {
        let mut words = line.strip_prefix("yield ").ok_or(NotAYield)?.split(' ');
        let mut number = || words.next()?.parse().ok();
        match (number(), number(), number(), words.next()) {
            (Some(wanted), Some(before_ms), Some(whole @ 0..=1), None) => Ok(Yield {
                wanted: Bytes(wanted),
                before_ms,
                whole: whole == 1,
            }),
            _ => Err(NotAYield),
        }
    }
}

/// Whom to ask for `wanted` bytes, and for what, when the oldest reservation of
/// the asking process was last allocated from at `own_ms`.
///
/// Only what is older than that is asked for: otherwise it is the asking process
/// that has to yield. Each process is asked for what is older than the oldest
/// reservation of the next one, so that together they give in the order of age.
/// `group` restricts it to a control group, where that is what runs short, and
/// `whole` to reservations of which nothing is in use.
#[must_use]
pub fn whom_to_ask(
    others: &[Holding],
    own_ms: u64,
    group: Option<u64>,
    wanted: Bytes,
    whole: bool,
) -> Vec<(u32, Yield)> {
    let mut holders: Vec<&Holding> = others
        .iter()
        .filter(|h| h.reserved.0 > 0 && h.oldest_ms < own_ms)
        .filter(|h| group.is_none_or(|group| h.group == group))
        .collect();
    holders.sort_by_key(|h| (h.oldest_ms, h.pid));
    let mut missing = wanted;
    let mut asked = Vec::new();
    for (index, holder) in holders.iter().enumerate() {
        if missing == Bytes::ZERO {
            break;
        }
        let next = holders.get(index + 1).map_or(own_ms, |h| h.oldest_ms);
        let request = Yield {
            // A whole superpage at least: its owner gives up no part of one.
            wanted: missing.min(holder.reserved).max(Bytes(SUPERPAGE)),
            before_ms: next.max(holder.oldest_ms + 1),
            whole,
        };
        missing = missing.saturating_sub(holder.reserved);
        asked.push((holder.pid, request));
    }
    asked
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn holding(pid: u32, superpages: u64, oldest_ms: u64) -> Holding {
        Holding {
            pid,
            reserved: Bytes(superpages * SUPERPAGE),
            oldest_ms,
            group: u64::from(pid % 2),
        }
    }

    fn request(superpages: u64, before_ms: u64) -> Yield {
        Yield {
            wanted: Bytes(superpages * SUPERPAGE),
            before_ms,
            whole: false,
        }
    }

    #[test]
    fn the_oldest_yield_first() {
        let others = [holding(1, 2, 50), holding(2, 3, 10), holding(3, 9, 90)];
        let ask = |wanted| whom_to_ask(&others, 70, None, Bytes(wanted * SUPERPAGE), false);
        assert_eq!(ask(1), [(2, request(1, 50))]);
        assert_eq!(ask(4), [(2, request(3, 50)), (1, request(1, 70))]);
        assert_eq!(ask(99), [(2, request(3, 50)), (1, request(2, 70))]);
        assert_eq!(ask(0), []);
    }

    #[test]
    fn a_group_helps_itself() {
        let others = [holding(1, 2, 50), holding(2, 3, 10), holding(3, 9, 60)];
        let asked = whom_to_ask(&others, 70, Some(1), Bytes(3 * SUPERPAGE), false);
        assert_eq!(asked, [(1, request(2, 60)), (3, request(1, 70))]);
    }

    #[test]
    fn other_lines_are_no_requests() {
        for line in [
            "",
            "yield",
            "yield 5",
            "yield a 5",
            "yield 1 2 3",
            "policy=eager",
        ] {
            assert_eq!(line.parse::<Yield>(), Err(NotAYield), "{line}");
        }
    }

    proptest! {
        #[test]
        fn a_request_survives_the_way(
            wanted in any::<u64>(),
            before_ms in any::<u64>(),
            whole in any::<bool>(),
        ) {
            let request = Yield { wanted: Bytes(wanted), before_ms, whole };
            prop_assert_eq!(request.to_string().parse(), Ok(request));
        }

        /// Nobody is asked for what is younger than what somebody else, or the
        /// asking process, could give.
        #[test]
        fn requests_follow_age(
            others in vec((0u64..6, 0u64..100), 0..8),
            own_ms in 0u64..100,
            wanted in 0u64..20,
        ) {
            let others: Vec<Holding> = others
                .iter()
                .enumerate()
                .map(|(pid, (superpages, oldest))| holding(pid as u32, *superpages, *oldest))
                .collect();
            let asked = whom_to_ask(&others, own_ms, None, Bytes(wanted * SUPERPAGE), false);
            let holder = |pid: u32| others[pid as usize];
            for pair in asked.windows(2) {
                prop_assert!(holder(pair[0].0).oldest_ms <= holder(pair[1].0).oldest_ms);
            }
            for (pid, request) in &asked {
                prop_assert!(holder(*pid).oldest_ms < request.before_ms);
                prop_assert!(request.before_ms <= own_ms);
                let older = others.iter().filter(|o| o.reserved.0 > 0);
                let mut skipped = older.filter(|o| {
                    o.oldest_ms < holder(*pid).oldest_ms && !asked.iter().any(|a| a.0 == o.pid)
                });
                prop_assert!(skipped.next().is_none());
            }
            let promised: u64 = asked.iter().map(|(_, r)| r.wanted.0).sum();
            let available: u64 =
                others.iter().filter(|o| o.oldest_ms < own_ms).map(|o| o.reserved.0).sum();
            prop_assert!(promised >= (wanted * SUPERPAGE).min(available));
        }
    }
}
