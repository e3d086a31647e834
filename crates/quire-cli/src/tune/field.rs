//! What is tried, and what cannot be offered on this machine.

use quire_core::config::Policy;
use quire_core::frames::colour::Colours;
use quire_core::frames::spec::StrategySpec;
use quire_lab::tune::candidate::{Candidate, Role, chosen, field};
use quire_linux::sysinfo::{Check, Need, Status, frames_status, policy_status, run_checks};

use crate::args::TuneArgs;
use crate::cache;
use crate::failure::{Failure, Outcome};
use crate::run::frames;

/// The strategies that are tried unless others are chosen.
const STRATEGIES: [&str; 3] = ["colour", "colour:hashed", "binhop"];

/// What is tried, and what not and why.
pub struct Field {
    /// What is tried, the program without quire first.
    pub candidates: Vec<(Candidate, Role)>,
    /// What is not.
    pub left_out: Vec<(Candidate, String)>,
}

/// What the options ask for.
///
/// # Errors
/// When a strategy cannot be used as it is written, on whatever machine.
pub fn of(options: &TuneArgs) -> Outcome<Field> {
    let wanted = match options.candidates.is_empty() {
        true => {
            let (policies, strategies) = wanted(options);
            (policies, strategies, Vec::new())
        }
        false => (Vec::new(), Vec::new(), options.candidates.clone()),
    };
    let (policies, mut strategies, mut candidates) = wanted;
    let of_candidates = candidates.iter_mut().filter_map(|c| c.frames.as_mut());
    for spec in strategies.iter_mut().chain(of_candidates) {
        *spec = frames::checked(spec)?;
    }
    let machine = Machine::look();
    let mut left_out = Vec::new();
    let mut offered = |candidate: &Candidate| match machine.lacks(candidate) {
        None => Ok(true),
        Some(Lack::OfInput(why)) => Err(Failure::bad_usage(why)),
        Some(Lack::OfMachine(why)) => {
            left_out.push((candidate.clone(), why));
            Ok(false)
        }
    };
    let policies = keep(policies, |policy| offered(&Candidate::policy(*policy)))?;
    let strategies = keep(strategies, |spec| {
        offered(&Candidate::both(Policy::Base, spec.clone()))
    })?;
    let candidates = keep(candidates, |candidate| offered(candidate))?;
    let candidates = match options.candidates.is_empty() {
        true => field(&policies, &strategies),
        false => chosen(candidates),
    };
    Ok(Field {
        candidates,
        left_out,
    })
}

fn keep<T>(all: Vec<T>, mut wanted: impl FnMut(&T) -> Outcome<bool>) -> Outcome<Vec<T>> {
    let mut kept = Vec::new();
    for one in all {
        if wanted(&one)? {
            kept.push(one);
        }
    }
    Ok(kept)
}

/// The policies and strategies to try: those that are named, and where none is, all.
fn wanted(options: &TuneArgs) -> (Vec<Policy>, Vec<StrategySpec>) {
    if options.policy.is_empty() && options.frames.is_empty() {
        let strategies = STRATEGIES.iter().filter_map(|name| name.parse().ok());
        return (Policy::ALL.to_vec(), strategies.collect());
    }
    (options.policy.clone(), options.frames.clone())
}

/// Why a candidate cannot be tried.
enum Lack {
    /// Nowhere.
    OfInput(String),
    /// Not here.
    OfMachine(String),
}

/// What this machine offers.
struct Machine {
    checks: Vec<Check>,
    colours: Result<Colours, String>,
}

impl Machine {
    fn look() -> Machine {
        Machine {
            checks: run_checks(),
            colours: cache::needed_colours().map_err(|failure| failure.to_string()),
        }
    }

    fn lacks(&self, candidate: &Candidate) -> Option<Lack> {
        let policy = candidate
            .policy
            .and_then(|policy| self.lacks_policy(policy));
        let frames = candidate.frames.as_ref();
        policy
            .map(Lack::OfMachine)
            .or_else(|| self.lacks_frames(frames?))
    }

    fn lacks_policy(&self, policy: Policy) -> Option<String> {
        let is_missing = policy_status(policy, &self.checks) == Status::Missing;
        let is_needed = |check: &Check| check.needed_by.contains(&policy);
        is_missing.then(|| self.why(is_needed))
    }

    fn lacks_frames(&self, spec: &StrategySpec) -> Option<Lack> {
        if frames_status(&self.checks) == Status::Missing {
            return Some(Lack::OfMachine(
                self.why(|check| check.frames == Need::Needs),
            ));
        }
        match &self.colours {
            Err(why) => Some(Lack::OfMachine(why.clone())),
            Ok(colours) => {
                let error = spec.check(colours).err()?;
                Some(Lack::OfInput(error.to_string()))
            }
        }
    }

    /// What is missing of what is needed, in the words of `quire doctor`.
    fn why(&self, is_needed: impl Fn(&Check) -> bool) -> String {
        let mut missing = self.checks.iter();
        let missing = missing.find(|check| check.status == Status::Missing && is_needed(check));
        missing.map_or_else(
            || "this machine does not offer it (see `quire doctor`)".into(),
            |check| format!("{}: {}; {}", check.name, check.found, check.remedy),
        )
    }
}
