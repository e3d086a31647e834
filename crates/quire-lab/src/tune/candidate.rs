//! What is tried on a program: a policy, a strategy, or both.

use std::fmt;
use std::str::FromStr;

use quire_core::config::Policy;
use quire_core::frames::spec::StrategySpec;

use crate::experiment::Variant;

/// A way to run the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// The page-size policy; without it the program runs without quire.
    pub policy: Option<Policy>,
    /// The frame strategy; without it frames are the kernel's choice.
    pub frames: Option<StrategySpec>,
}

/// When a candidate takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Always: it is what the others are compared with.
    Plain,
    /// From the beginning; it is one of the policies.
    Policy,
    /// From the beginning; it is one of the strategies.
    Strategy,
    /// From the beginning.
    Other,
    /// When these, by number, turned out to be the best policy and the best strategy.
    Both {
        /// The candidate with the policy.
        policy: usize,
        /// The candidate with the strategy.
        strategy: usize,
    },
}

impl Candidate {
    /// The program as it is without quire.
    #[must_use]
    pub fn plain() -> Candidate {
        Candidate::default()
    }

    /// A policy, with frames of the kernel's choice.
    #[must_use]
    pub fn policy(policy: Policy) -> Candidate {
        Candidate {
            policy: Some(policy),
            frames: None,
        }
    }

    /// A policy and a strategy. `default` is the kernel's choice, for which nothing has to
    /// be asked.
    #[must_use]
    pub fn both(policy: Policy, frames: StrategySpec) -> Candidate {
        Candidate {
            policy: Some(policy),
            frames: Some(frames).filter(|frames| *frames != StrategySpec::Default),
        }
    }

    /// What users call it.
    #[must_use]
    pub fn name(&self) -> String {
        match (&self.policy, &self.frames) {
            (None, _) => "plain".into(),
            (Some(policy), None) => policy.name().into(),
            (Some(policy), Some(frames)) => format!("{}+{frames}", policy.name()),
        }
    }

    /// It as a variant of an experiment.
    #[must_use]
    pub fn variant(&self) -> Variant {
        Variant {
            name: self.name(),
            policy: self.policy.map(|policy| policy.name().into()),
            frames: self.frames.as_ref().map(ToString::to_string),
            ..Variant::default()
        }
    }

    /// The words before the program that run it so; none without quire.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let Some(policy) = self.policy else {
            return Vec::new();
        };
        let mut words = ["quire", "run", "--policy", policy.name()]
            .map(String::from)
            .to_vec();
        if let Some(frames) = &self.frames {
            words.extend(["--frames".into(), frames.to_string()]);
        }
        words.push("--".into());
        words
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// A text that names no candidate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CandidateError {
    /// It is tried anyway.
    #[error("the program without quire is always tried; leave `plain` out")]
    Plain,
    /// It is neither a policy nor a strategy.
    #[error(
        "`{0}` is no candidate: write a policy, a strategy or both, such as eager, colour or eager+colour"
    )]
    Unknown(String),
}

impl FromStr for Candidate {
    type Err = CandidateError;

    fn from_str(text: &str) -> Result<Candidate, CandidateError> {
        let unknown = || CandidateError::Unknown(text.into());
        let strategy = |text: &str| text.parse::<StrategySpec>().map_err(|_| unknown());
        if text == "plain" {
            return Err(CandidateError::Plain);
        }
        if let Ok(policy) = text.parse() {
            return Ok(Candidate::policy(policy));
        }
        match text.split_once('+') {
            Some((policy, frames)) if policy.parse::<Policy>().is_ok() => {
                let policy = policy.parse().map_err(|_| unknown())?;
                Ok(Candidate::both(policy, strategy(frames)?))
            }
            _ => Ok(Candidate::both(Policy::Base, strategy(text)?)),
        }
    }
}

/// The field of a race: the program without quire, each policy, each strategy with base
/// pages, and, to be called in when the best of both are known, every policy with every
/// strategy. Nothing is there twice.
#[must_use]
pub fn field(policies: &[Policy], strategies: &[StrategySpec]) -> Vec<(Candidate, Role)> {
    let mut field = vec![(Candidate::plain(), Role::Plain)];
    for policy in policies {
        add(&mut field, Candidate::policy(*policy), Role::Policy);
    }
    for frames in strategies {
        let of = Candidate::both(Policy::Base, frames.clone());
        add(&mut field, of, Role::Strategy);
    }
    let with = |role: Role| {
        let all = field.iter().enumerate();
        let all = all.filter(|(_, (_, own))| *own == role);
        all.map(|(n, (candidate, _))| (n, candidate.clone()))
            .collect()
    };
    let (policies, strategies): (Vec<_>, Vec<_>) = (with(Role::Policy), with(Role::Strategy));
    for (policy, chosen) in &policies {
        for (strategy, coloured) in &strategies {
            let both = Candidate {
                policy: chosen.policy,
                frames: coloured.frames.clone(),
            };
            let (policy, strategy) = (*policy, *strategy);
            add(&mut field, both, Role::Both { policy, strategy });
        }
    }
    field
}

/// The field of chosen candidates.
#[must_use]
pub fn chosen(candidates: Vec<Candidate>) -> Vec<(Candidate, Role)> {
    let mut field = vec![(Candidate::plain(), Role::Plain)];
    for candidate in candidates {
        add(&mut field, candidate, Role::Other);
    }
    field
}

fn add(field: &mut Vec<(Candidate, Role)>, candidate: Candidate, role: Role) {
    if !field.iter().any(|(known, _)| *known == candidate) {
        field.push((candidate, role));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strategies(texts: &[&str]) -> Vec<StrategySpec> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn every_candidate_is_there_once() {
        let policies = [Policy::Base, Policy::Eager, Policy::Base];
        let field = field(&policies, &strategies(&["default", "colour", "binhop"]));
        let names: Vec<String> = field.iter().map(|(c, _)| c.name()).collect();
        let wanted = [
            "plain",
            "base",
            "eager",
            "base+colour",
            "base+binhop",
            "eager+colour",
            "eager+binhop",
        ];
        assert_eq!(names, wanted);
        let both = Role::Both {
            policy: 2,
            strategy: 4,
        };
        assert_eq!(field[6].1, both);
    }

    #[test]
    fn candidates_are_read() {
        let name = |text: &str| text.parse::<Candidate>().map(|c| c.name());
        for (text, wanted) in [
            ("eager", "eager"),
            ("colour:hashed", "base+colour:hashed"),
            ("reserve+binhop", "reserve+binhop"),
            ("base+default", "base"),
            ("./my+own.so:x", "base+./my+own.so:x"),
        ] {
            assert_eq!(name(text).unwrap(), wanted);
        }
        assert_eq!(name("plain"), Err(CandidateError::Plain));
        for wrong in ["", "fast", "eager+", "eager+fast", "fast+colour"] {
            assert!(name(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_command_line_is_that_of_quire_run() {
        let both = Candidate::both(Policy::Reserve, "colour:hashed".parse().unwrap());
        let words = "quire run --policy reserve --frames colour:hashed --";
        assert_eq!(both.words().join(" "), words);
        assert!(both.variant().is_managed());
        assert!(Candidate::plain().words().is_empty());
        assert!(!Candidate::plain().variant().is_managed());
    }
}
