//! What can be changed in a running process, and how the change travels: as
//! one line of text to the process's control socket, which answers with one
//! line (paper 004, section 3: switches of the running system).

use std::fmt;
use std::str::FromStr;

use crate::attach::{CpuShare, CpuShareError};
use crate::config::{Policy, PolicyError};
use crate::level::{Level, LevelError};
use crate::pool::{PoolPage, PoolPageError};
use crate::units::{Bytes, SizeError};

/// Name of the socket in the session directory, before the process number.
pub const CONTROL_FILE_PREFIX: &str = "control.";
/// The answer to a change that was made.
pub const DONE: &str = "done";
/// The longest line that is sent, in bytes.
pub const MAX_LINE: usize = 512;

/// A change of a running process's settings. What is `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The policy of memory that is mapped from now on, and of extents that
    /// hold nothing yet.
    pub policy: Option<Policy>,
    /// Whether the program's own mappings begin on a superpage boundary.
    pub align: Option<bool>,
    /// Bound of the pool that is zeroed ahead of need.
    pub ahead: Option<Bytes>,
    /// Bound of the memory that is reserved and not used.
    pub reserve_limit: Option<Bytes>,
    /// The largest superpage that reservations make.
    pub largest: Option<Level>,
    /// The largest page that `static` takes from the hugetlb pools.
    pub pool_page: Option<PoolPage>,
    /// The share of one processor that copies may take.
    pub cpu: Option<CpuShare>,
}

/// A change that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// A word without a value.
    #[error("`{0}` is no setting: write NAME=VALUE")]
    NoValue(String),
    /// A name that does not exist.
    #[error(
        "unknown setting `{0}`: choose from policy, align, ahead, reserve-limit, largest, pool-page, cpu"
    )]
    Unknown(String),
    /// A switch that is neither on nor off.
    #[error("`{0}` is neither `on` nor `off`")]
    Switch(String),
    /// The same name twice.
    #[error("`{0}` is given twice")]
    Twice(String),
    /// A policy that does not exist.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A share of a processor that cannot be read.
    #[error(transparent)]
    Cpu(#[from] CpuShareError),
    /// A size that cannot be read.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// A size that superpages do not have.
    #[error(transparent)]
    Level(#[from] LevelError),
    /// A page size that no hugetlb pool has.
    #[error(transparent)]
    PoolPage(#[from] PoolPageError),
}

impl Change {
    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Change::default()
    }

    /// Adds a setting of the form `NAME=VALUE`.
    ///
    /// # Errors
    /// When it cannot be read or its name was there before.
    pub fn add(&mut self, word: &str) -> Result<(), ChangeError> {
        let (name, value) = word
            .split_once('=')
            .ok_or_else(|| ChangeError::NoValue(word.to_owned()))?;
        let before = match name {
            "policy" => self.policy.replace(value.parse()?).is_some(),
            "align" => self.align.replace(switch(value)?).is_some(),
            "ahead" => self.ahead.replace(value.parse()?).is_some(),
            "reserve-limit" => self.reserve_limit.replace(value.parse()?).is_some(),
            "largest" => self.largest.replace(value.parse()?).is_some(),
            "pool-page" => self.pool_page.replace(value.parse()?).is_some(),
            "cpu" => self.cpu.replace(value.parse()?).is_some(),
            _ => return Err(ChangeError::Unknown(name.to_owned())),
        };
        if before {
            return Err(ChangeError::Twice(name.to_owned()));
        }
        Ok(())
    }
}

fn switch(value: &str) -> Result<bool, ChangeError> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(ChangeError::Switch(value.to_owned())),
    }
}

impl FromStr for Change {
    type Err = ChangeError;

    fn from_str(line: &str) -> Result<Change, ChangeError> {
        let mut change = Change::default();
        line.split_whitespace()
            .try_for_each(|word| change.add(word))?;
        Ok(change)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let switch = |on: bool| if on { "on" } else { "off" };
        let words = [
            self.policy.map(|policy| format!("policy={policy}")),
            self.align.map(|on| format!("align={}", switch(on))),
            self.ahead.map(|size| format!("ahead={}", size.0)),
            self.reserve_limit
                .map(|size| format!("reserve-limit={}", size.0)),
            self.largest
                .map(|level| format!("largest={}", level.bytes().0)),
            self.pool_page.map(|page| format!("pool-page={page}")),
            self.cpu.map(|share| format!("cpu={}", share.percent())),
        ];
        f.write_str(&words.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_cannot_be_read_is_explained() {
        let refused = |line: &str| line.parse::<Change>().unwrap_err().to_string();
        assert!(refused("policy").contains("NAME=VALUE"));
        assert!(refused("policy=huge").contains("base, eager"));
        assert!(refused("size=2M").contains("policy, align"));
        assert!(refused("align=yes").contains("neither `on` nor `off`"));
        assert!(refused("align=on align=on").contains("twice"));
        assert!(refused("ahead=lots").contains("lots"));
        assert!(refused("largest=3M").contains("16K to 2M"));
        assert!("".parse::<Change>().is_ok_and(|c| c.is_empty()));
    }

    proptest! {
        #[test]
        fn a_change_survives_the_way(
            policy in option::of((0..Policy::ALL.len()).prop_map(|i| Policy::ALL[i])),
            align in option::of(any::<bool>()),
            ahead in option::of((0u64..1 << 50).prop_map(Bytes)),
            reserve_limit in option::of((0u64..1 << 50).prop_map(Bytes)),
            largest in option::of((0usize..8).prop_map(|i| Level::all().nth(i).unwrap())),
            pool_page in option::of((0..PoolPage::ALL.len()).prop_map(|i| PoolPage::ALL[i])),
            cpu in option::of((1u32..=10_000).prop_map(|n| CpuShare::from_percent(f64::from(n) / 100.0).unwrap())),
        ) {
            let change = Change { policy, align, ahead, reserve_limit, largest, pool_page, cpu };
            let line = change.to_string();
            prop_assert!(line.len() < MAX_LINE);
            prop_assert_eq!(line.parse(), Ok(change));
        }
    }
}
