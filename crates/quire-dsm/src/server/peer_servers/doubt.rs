//! Objects that only this server has, and whose names others may have got. A server that was stopped may have
//! been given up by the others, and its names with it. So programs that ask by such a name wait until the
//! server is joined again, and the directory has its objects again; for a lease at most, as objects of one server
//! alone go on where the directory does not answer.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::wire::control::Name;

/// Whether it is known who has these names.
#[derive(Debug, Default)]
pub(super) enum Doubt {
    #[default]
    Nowhere,
    /// This server is not joined; it is waited for until then.
    Everywhere(Instant),
    /// It is, and the directory has not answered for these.
    About(BTreeSet<Name>, Instant),
}

impl Doubt {
    /// This server is not joined any more.
    pub fn begin(&mut self, until: Instant) {
        *self = Doubt::Everywhere(until);
    }

    /// It is joined again, and asks the directory for these.
    pub fn joined(&mut self, keys: BTreeSet<Name>) {
        if let Some(until) = self.deadline() {
            *self = Doubt::About(keys, until);
        }
    }

    /// The directory has answered for one.
    pub fn is_settled(&mut self, key: &Name) {
        if let Doubt::About(keys, _) = self {
            keys.remove(key);
        }
    }

    /// Whether another object may have the name of this one.
    pub fn is_about(&self, key: &Name) -> bool {
        match self {
            Doubt::Nowhere => false,
            Doubt::Everywhere(_) => true,
            Doubt::About(keys, _) => keys.contains(key),
        }
    }

    /// Until when it is waited.
    pub const fn deadline(&self) -> Option<Instant> {
        match self {
            Doubt::Nowhere => None,
            Doubt::Everywhere(until) | Doubt::About(_, until) => Some(*until),
        }
    }

    /// Whether it is not waited any longer, from now on.
    pub fn is_over(&mut self, now: Instant) -> bool {
        let is_over = self.deadline().is_some_and(|until| until <= now);
        if is_over {
            *self = Doubt::Nowhere;
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn names_are_in_doubt_until_the_directory_answers() {
        let [one, other] = ["grid~1", "rows~2"].map(|key| key.parse::<Name>().expect("a key"));
        let (now, lease) = (Instant::now(), Duration::from_secs(4));
        let mut doubt = Doubt::default();
        doubt.joined(BTreeSet::from([one.clone()]));
        assert!(!doubt.is_about(&one), "nobody could get it before");
        doubt.begin(now + lease);
        assert!(doubt.is_about(&one) && doubt.is_about(&other));
        doubt.joined(BTreeSet::from([one.clone()]));
        assert!(doubt.is_about(&one) && !doubt.is_about(&other));
        doubt.is_settled(&one);
        assert!(!doubt.is_about(&one));
    }

    #[test]
    fn without_the_directory_it_ends_with_a_lease() {
        let key: Name = "grid~1".parse().expect("a key");
        let (now, lease) = (Instant::now(), Duration::from_secs(4));
        let mut doubt = Doubt::default();
        doubt.begin(now + lease);
        assert!(!doubt.is_over(now) && doubt.is_about(&key));
        assert_eq!(doubt.deadline(), Some(now + lease));
        assert!(doubt.is_over(now + lease) && !doubt.is_over(now + lease));
        assert!(!doubt.is_about(&key));
    }
}
