//! Who may do what to an object, as its maker said. No I/O.
//!
//! Where several servers share an object, its maker says it at any of them, and links between
//! them break. So each thing that was said has a stamp: a number larger than all that its server knew
//! of, and that server, where two say something at once. In each view every server tells all
//! others all that it knows, and of what is said of somebody the latest counts, also where that
//! is that a right was taken back. Then all servers of a view know the same.

use std::collections::BTreeMap;

use quire_core::dsm::message::ServerId;
use serde::{Deserialize, Serialize};

use crate::wire::control::Rights;

/// Identities that may have rights to an object; of so many others it is remembered that theirs were
/// taken back.
pub(super) const MOST: usize = 4096;
/// No right at all.
pub(super) const NOTHING: Rights = Rights {
    read: false,
    write: false,
};

/// When something was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Stamp {
    /// Larger than all that its server knew of.
    number: u64,
    /// Where it was said.
    by: ServerId,
}

impl Stamp {
    /// Before all that is said.
    pub const EARLIEST: Stamp = Stamp {
        number: 0,
        by: ServerId(0),
    };
}

/// So many have rights already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// What was said of whom, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Grants {
    all: BTreeMap<String, (Rights, Stamp)>,
    /// How many of them have rights.
    held: usize,
}

impl Grants {
    /// What somebody has.
    pub fn of(&self, who: &str) -> Rights {
        self.all.get(who).map_or(NOTHING, |(rights, _)| *rights)
    }

    /// Who has rights, and which.
    pub fn held(&self) -> impl Iterator<Item = (&String, Rights)> {
        let all = self.all.iter();
        all.filter_map(|(who, (rights, _))| (*rights != NOTHING).then_some((who, *rights)))
    }

    /// All that was said, also of whom it was taken back.
    pub fn said(&self) -> impl Iterator<Item = (&String, Rights, Stamp)> {
        let all = self.all.iter();
        all.map(|(who, (rights, stamp))| (who, *rights, *stamp))
    }

    /// Somebody has rights to a new object, unless something else was said of him.
    pub fn usual(&mut self, who: &str, rights: Rights) {
        if !self.all.contains_key(who) {
            self.set(who.to_owned(), rights, Stamp::EARLIEST);
        }
    }

    /// Something is said at a server. Nothing comes of it where it was so before.
    ///
    /// # Errors
    /// Where too many have rights.
    pub fn say(&mut self, who: String, rights: Rights, by: ServerId) -> Result<Stamp, Full> {
        if let Some((held, stamp)) = self.all.get(&who)
            && *held == rights
        {
            return Ok(*stamp);
        }
        if rights != NOTHING && self.of(&who) == NOTHING && self.held >= MOST {
            return Err(Full);
        }
        let latest = self.all.values().map(|(_, stamp)| stamp.number).max();
        let number = latest.unwrap_or(0) + 1;
        let stamp = Stamp { number, by };
        self.set(who, rights, stamp);
        Ok(stamp)
    }

    /// Something was said at another server. It counts where it is news, and there is room for it.
    pub fn hear(&mut self, who: String, rights: Rights, stamp: Stamp) {
        let is_news = self.all.get(&who).is_none_or(|(_, known)| stamp > *known);
        let is_one_more = rights != NOTHING && self.of(&who) == NOTHING;
        if is_news && !(is_one_more && self.held >= MOST) {
            self.set(who, rights, stamp);
        }
    }

    fn set(&mut self, who: String, rights: Rights, stamp: Stamp) {
        self.held += usize::from(rights != NOTHING);
        let before = self.all.insert(who, (rights, stamp));
        self.held -= usize::from(before.is_some_and(|(rights, _)| rights != NOTHING));
        while self.all.len() - self.held > MOST {
            let taken = self.all.iter().filter(|(_, said)| said.0 == NOTHING);
            let Some((oldest, _)) = taken.min_by_key(|(_, said)| said.1) else {
                break;
            };
            let oldest = oldest.clone();
            self.all.remove(&oldest);
        }
    }
}

/// What was kept of an earlier time: whatever is said now is later.
impl FromIterator<(String, Rights)> for Grants {
    fn from_iter<I: IntoIterator<Item = (String, Rights)>>(kept: I) -> Grants {
        let mut grants = Grants::default();
        for (who, rights) in kept {
            grants.set(who, rights, Stamp::EARLIEST);
        }
        grants
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const READ: Rights = Rights {
        read: true,
        write: false,
    };

    /// Somebody is given rights at a server, or all servers of a part of them tell each other what they
    /// know.
    #[derive(Clone, Debug)]
    enum Step {
        Say(usize, u8, bool),
        View(Vec<usize>),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..3usize, 0..4u8, any::<bool>()).prop_map(|(at, who, may)| Step::Say(at, who, may)),
            vec(0..3usize, 2..4).prop_map(Step::View),
        ]
    }

    fn view(servers: &mut [Grants], members: &[usize]) {
        let told: Vec<Grants> = members.iter().map(|it| servers[*it].clone()).collect();
        for member in members {
            for (who, rights, stamp) in told.iter().flat_map(Grants::said) {
                servers[*member].hear(who.clone(), rights, stamp);
            }
        }
    }

    proptest! {
        /// However views come and go, in one of all servers they know the same, and what was said
        /// last by who knew of all before counts.
        #[test]
        fn all_know_the_same_in_the_end(steps in vec(step(), 0..40), last in 0..3usize) {
            let mut servers = vec![Grants::default(); 3];
            for step in steps {
                match step {
                    Step::Say(at, who, may) => {
                        let rights = if may { READ } else { NOTHING };
                        let by = ServerId(at as u64);
                        prop_assert!(servers[at].say(who.to_string(), rights, by).is_ok());
                    }
                    Step::View(members) => view(&mut servers, &members),
                }
            }
            view(&mut servers, &[0, 1, 2]);
            prop_assert_eq!(&servers[0], &servers[1]);
            prop_assert_eq!(&servers[1], &servers[2]);
            let before = servers[last].of("0");
            let other = if before == READ { NOTHING } else { READ };
            let by = ServerId(last as u64);
            prop_assert!(servers[last].say("0".to_owned(), other, by).is_ok());
            view(&mut servers, &[2, 0, 1]);
            for server in &servers {
                prop_assert_eq!(server.of("0"), other);
                prop_assert_eq!(server.held().count(), server.held);
            }
        }
    }

    #[test]
    fn there_is_an_end_to_what_is_remembered() {
        const ALL: usize = MOST + 16;
        let mut grants = Grants::default();
        let me = ServerId(1);
        for who in 0..ALL {
            assert!(grants.say(who.to_string(), READ, me).is_ok());
            assert!(grants.say(who.to_string(), NOTHING, me).is_ok());
        }
        assert_eq!((grants.said().count(), grants.held().count()), (MOST, 0));
        // The latest are remembered.
        assert!(grants.said().any(|(who, ..)| *who == (ALL - 1).to_string()));
        assert!(!grants.said().any(|(who, ..)| who == "0"));
        for who in 0..MOST {
            assert!(grants.say(format!("more {who}"), READ, me).is_ok());
        }
        assert_eq!(grants.say("one more".to_owned(), READ, me), Err(Full));
        assert!(grants.say("more 0".to_owned(), NOTHING, me).is_ok());
        assert!(grants.say("one more".to_owned(), READ, me).is_ok());
    }
}
