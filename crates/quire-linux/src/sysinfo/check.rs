//! The form of a check of `quire doctor`, the list of them all, and what they
//! add up to for each policy and for frames by strategy.

use quire_core::config::Policy;
use serde::Serialize;

use super::{frame_checks, manager_checks, system_checks, thp_checks};

/// How much of a facility there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// All that Quire can use.
    Ok,
    /// Some of it.
    Limited,
    /// None of it.
    Missing,
}

impl Status {
    /// The word that reports use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Limited => "limited",
            Status::Missing => "missing",
        }
    }
}

/// What was found out about one facility.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Which facility.
    pub name: &'static str,
    /// How much of it there is.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What its absence costs; empty where nothing is absent.
    pub cost: String,
    /// The command that provides it; empty where nothing is absent.
    pub remedy: String,
    /// The policies that need it to work.
    pub needed_by: Vec<Policy>,
    /// The policies that work without it, but not fully.
    pub used_by: Vec<Policy>,
    /// Whether frames by strategy depend on it.
    pub frames: Need,
}

/// How something depends on a facility.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Need {
    /// It does not.
    #[default]
    None,
    /// It works without it, but not fully.
    Uses,
    /// It does not work without it.
    Needs,
}

impl Need {
    /// How well something works that depends on a facility in this way.
    fn status(self, facility: Status) -> Status {
        match self {
            Need::None => Status::Ok,
            Need::Uses => facility.min(Status::Limited),
            Need::Needs => facility,
        }
    }
}

impl Check {
    /// A facility that is there.
    #[must_use]
    pub fn ok(name: &'static str, found: impl Into<String>) -> Check {
        Check {
            name,
            status: Status::Ok,
            found: found.into(),
            cost: String::new(),
            remedy: String::new(),
            needed_by: Vec::new(),
            used_by: Vec::new(),
            frames: Need::None,
        }
    }

    /// A facility that is there in part.
    #[must_use]
    pub fn limited(
        name: &'static str,
        found: impl Into<String>,
        cost: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        Check {
            status: Status::Limited,
            cost: cost.into(),
            remedy: remedy.into(),
            ..Check::ok(name, found)
        }
    }

    /// A facility that is not there.
    #[must_use]
    pub fn missing(
        name: &'static str,
        found: impl Into<String>,
        cost: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        Check {
            status: Status::Missing,
            ..Check::limited(name, found, cost, remedy)
        }
    }

    /// The same check, with the policies that need the facility.
    #[must_use]
    pub fn needed_by(mut self, policies: &[Policy]) -> Check {
        self.needed_by = policies.to_vec();
        self
    }

    /// The same check, with the policies that use the facility where it is.
    #[must_use]
    pub fn used_by(mut self, policies: &[Policy]) -> Check {
        self.used_by = policies.to_vec();
        self
    }

    /// The same check, with what the facility is to frames by strategy.
    #[must_use]
    pub fn for_frames(mut self, need: Need) -> Check {
        self.frames = need;
        self
    }

    /// How well a policy works as far as this facility goes.
    fn status_of(&self, policy: Policy) -> Status {
        let need = if self.needed_by.contains(&policy) {
            Need::Needs
        } else if self.used_by.contains(&policy) {
            Need::Uses
        } else {
            Need::None
        };
        need.status(self.status)
    }
}

/// Runs every check.
#[must_use]
pub fn run_checks() -> Vec<Check> {
    let mut checks = vec![system_checks::kernel_version()];
    checks.extend(manager_checks::all());
    checks.extend(thp_checks::all());
    checks.extend(frame_checks::all());
    checks.extend(system_checks::all());
    checks
}

/// How well `policy` works, given these checks: as well as the worst of the
/// facilities lets it.
#[must_use]
pub fn policy_status(policy: Policy, checks: &[Check]) -> Status {
    checks
        .iter()
        .map(|check| check.status_of(policy))
        .max()
        .unwrap_or(Status::Ok)
}

/// How well frames are given by strategy, in the same way.
#[must_use]
pub fn frames_status(checks: &[Check]) -> Status {
    let worst = checks.iter().map(|check| check.frames.status(check.status));
    worst.max().unwrap_or(Status::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_as_good_as_what_it_needs() {
        let checks = [
            Check::ok("a", "").needed_by(&[Policy::Reserve, Policy::Eager]),
            Check::limited("b", "", "", "").needed_by(&[Policy::Reserve]),
            Check::missing("c", "", "", "").used_by(&[Policy::Static]),
        ];
        assert_eq!(policy_status(Policy::Base, &checks), Status::Ok);
        assert_eq!(policy_status(Policy::Eager, &checks), Status::Ok);
        assert_eq!(policy_status(Policy::Reserve, &checks), Status::Limited);
        assert_eq!(policy_status(Policy::Static, &checks), Status::Limited);
    }

    #[test]
    fn frames_are_as_good_as_what_they_need() {
        let needed = |status: Check| status.for_frames(Need::Needs);
        let used = Check::missing("c", "", "", "").for_frames(Need::Uses);
        let other = Check::missing("d", "", "", "");
        assert_eq!(frames_status(&[]), Status::Ok);
        let good = needed(Check::ok("a", ""));
        assert_eq!(frames_status(&[good.clone(), other]), Status::Ok);
        assert_eq!(frames_status(&[good, used.clone()]), Status::Limited);
        let bad = needed(Check::missing("b", "", "", ""));
        assert_eq!(frames_status(&[used, bad]), Status::Missing);
    }

    #[test]
    fn every_check_says_something() {
        for check in run_checks() {
            assert!(!check.found.is_empty(), "{}", check.name);
            let complete = !check.cost.is_empty() && !check.remedy.is_empty();
            assert_eq!(complete, check.status != Status::Ok, "{}", check.name);
        }
    }
}
