//! Children of programs that have an object open. A child of `fork` opens it by itself, and its parent may
//! have ended by then: what was removed would be gone. So a parent says before it forks that a forked child comes, and
//! the forked child when it is there. In between the object counts as used.

use std::collections::BTreeMap;

use super::Awaited;

/// Those who come for an object.
#[derive(Debug, Default)]
pub(in crate::server) struct ForkedChildren {
    /// How many, by as whom they count: who says that it has come speaks for its own kind only.
    expected: BTreeMap<String, u32>,
    /// Who has not come when this is over has ended before.
    until: Awaited,
}

impl ForkedChildren {
    /// One more comes, who will count as this.
    pub fn comes(&mut self, identity: &str) {
        let expected = self.expected.entry(identity.to_owned()).or_default();
        *expected = expected.saturating_add(1);
        self.until.begin();
    }

    /// One of them is there.
    pub fn came(&mut self, identity: &str) {
        if let Some(expected) = self.expected.get_mut(identity) {
            *expected -= 1;
            if *expected == 0 {
                self.expected.remove(identity);
            }
        }
        if self.expected.is_empty() {
            self.until.end();
        }
    }

    /// A lease is over.
    pub fn pass(&mut self) {
        self.until.pass();
        if !self.until.is_so() {
            self.expected.clear();
        }
    }

    /// Whether any are to come.
    pub const fn are_awaited(&self) -> bool {
        self.until.is_so()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forked_children_are_awaited_until_all_came() {
        let mut forked_children = ForkedChildren::default();
        forked_children.came("uid:7");
        assert!(!forked_children.are_awaited());
        for identity in ["uid:7", "uid:7", "uid:8"] {
            forked_children.comes(identity);
        }
        for identity in ["uid:7", "uid:9", "uid:7", "uid:7"] {
            forked_children.came(identity);
            assert!(forked_children.are_awaited(), "uid:8 has not come");
        }
        forked_children.came("uid:8");
        assert!(!forked_children.are_awaited());
    }

    #[test]
    fn who_ended_before_does_not_come() {
        let mut forked_children = ForkedChildren::default();
        forked_children.comes("uid:7");
        let leases = (0..20).take_while(|_| {
            forked_children.pass();
            forked_children.are_awaited()
        });
        assert_eq!(leases.count(), 4);
        forked_children.comes("uid:7");
        forked_children.came("uid:7");
        assert!(
            !forked_children.are_awaited(),
            "the one before is forgotten"
        );
    }
}
