//! Who is a member, from lists of all and from changes, which come on ways of their own: a
//! list says how it was when the directory read it, and changes after that may be heard of
//! before it. Whoever took the list for the present would think a server gone that has just
//! come. So changes are kept while a list is under way, and made to it again. No I/O.

use std::collections::BTreeMap;

use quire_core::dsm::message::ServerId;

use crate::directory::Member;

/// Lists that are under way, and what has changed since the first of them was asked for.
#[derive(Debug, Default)]
pub(super) struct Roll {
    asked: usize,
    /// A list has come.
    is_known: bool,
    since: Vec<(ServerId, Option<Member>)>,
}

impl Roll {
    /// A list is asked for.
    pub fn asked(&mut self) {
        self.asked += 1;
    }

    /// Whether no list is under way, and one has come.
    pub const fn is_current(&self) -> bool {
        self.is_known && self.asked == 0
    }

    /// A member has come, or gone.
    pub fn changed(&mut self, id: ServerId, member: Option<&Member>) {
        if self.asked > 0 {
            self.since.push((id, member.cloned()));
        }
    }

    /// A list has come. Who is a member now, as far as has been heard.
    pub fn answered(&mut self, list: Vec<Member>) -> BTreeMap<ServerId, Member> {
        let mut all: BTreeMap<ServerId, Member> =
            list.into_iter().map(|member| (member.id, member)).collect();
        for (id, member) in &self.since {
            match member {
                Some(member) => all.insert(*id, member.clone()),
                None => all.remove(id),
            };
        }
        self.asked = self.asked.saturating_sub(1);
        self.is_known = true;
        if self.asked == 0 {
            self.since.clear();
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn member(id: u64) -> Member {
        Member {
            id: ServerId(id),
            address: id.to_string(),
        }
    }

    /// What happens: somebody comes or goes; whoever listens hears the next change; asks for
    /// a list; the directory reads it; the list arrives.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Change(u64),
        Hear,
        Ask,
        Read,
        Arrive,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..4u64).prop_map(Step::Change),
            Just(Step::Hear),
            Just(Step::Ask),
            Just(Step::Read),
            Just(Step::Arrive),
        ]
    }

    /// The directory, and one who listens.
    #[derive(Default)]
    struct World {
        there: BTreeSet<u64>,
        changes: Vec<(u64, bool)>,
        heard: usize,
        unread: usize,
        lists: Vec<Vec<Member>>,
        roll: Roll,
        known: BTreeSet<u64>,
    }

    impl World {
        fn take(&mut self, step: Step) {
            match step {
                Step::Change(id) => {
                    let comes = self.there.insert(id);
                    if !comes {
                        self.there.remove(&id);
                    }
                    self.changes.push((id, comes));
                }
                Step::Hear => {
                    let Some(&(id, comes)) = self.changes.get(self.heard) else {
                        return;
                    };
                    self.heard += 1;
                    let who = member(id);
                    self.roll.changed(who.id, comes.then_some(&who));
                    if comes {
                        self.known.insert(id);
                    } else {
                        self.known.remove(&id);
                    }
                }
                Step::Ask => {
                    self.roll.asked();
                    self.unread += 1;
                }
                Step::Read if self.unread > 0 => {
                    self.unread -= 1;
                    self.lists
                        .push(self.there.iter().map(|id| member(*id)).collect());
                }
                Step::Arrive if !self.lists.is_empty() => {
                    let list = self.lists.remove(0);
                    let all = self.roll.answered(list);
                    self.known = all.keys().map(|id| id.0).collect();
                }
                Step::Read | Step::Arrive => {}
            }
        }
    }

    proptest! {
        /// However lists and changes cross, in the end all is known.
        #[test]
        fn lists_and_changes_may_cross(steps in vec(step(), 0..60)) {
            let mut world = World::default();
            for step in steps {
                world.take(step);
            }
            while world.heard < world.changes.len() {
                world.take(Step::Hear);
            }
            while world.unread > 0 {
                world.take(Step::Read);
            }
            while !world.lists.is_empty() {
                world.take(Step::Arrive);
            }
            prop_assert_eq!(&world.known, &world.there);
            prop_assert!(world.roll.since.is_empty(), "changes are kept for nothing");
        }

        /// The same where the last lists come before the last changes.
        #[test]
        fn changes_may_come_last(steps in vec(step(), 0..60)) {
            let mut world = World::default();
            for step in steps {
                world.take(step);
            }
            while world.unread > 0 {
                world.take(Step::Read);
            }
            while !world.lists.is_empty() {
                world.take(Step::Arrive);
            }
            while world.heard < world.changes.len() {
                world.take(Step::Hear);
            }
            prop_assert_eq!(&world.known, &world.there);
        }
    }
}
