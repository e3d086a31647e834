//! The view of one object as one server knows it, and when this server wants another one. No
//! I/O, no clock: who is gone and which links are up is said by the caller.
//!
//! A server wants the next view when
//! - it is not a member itself and reaches all that are, to become one: no view is ever complete
//!   whose members do not reach each other;
//! - a member is certainly gone;
//! - a link to a member broke while messages may have been under way in this view, and is
//!   there again. Until the next view comes, nothing more is sent to that member: a message
//!   must not arrive where one before it was lost;
//! - somebody has brought pages, about which a view decides, and it reaches all members.

use std::collections::BTreeMap;

use quire_core::dsm::message::ServerId;

/// What became of a view that was heard of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It is not new.
    Known,
    /// It is the next, and this server is in it.
    Enter,
    /// This server is not in it, and was not before.
    Outside,
    /// Views in between were not heard of, or this server was put out: it must start anew.
    Missed,
}

/// What is to be proposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Nothing; all is well, or has to be waited for.
    Nothing,
    /// These members, in the order in which they came.
    Next(u64, Vec<ServerId>),
    /// All that had the object are gone, and what it held with them.
    Lost,
}

/// A view, and what stands against messages in it.
#[derive(Clone, Debug)]
pub(super) struct Views {
    me: ServerId,
    /// Who has made the object, and makes its first view.
    maker: ServerId,
    epoch: u64,
    members: Vec<ServerId>,
    /// Up to which epoch a peer server gets nothing more, as something was lost on its way.
    barred: BTreeMap<ServerId, u64>,
    /// A view is wanted, whoever is in it.
    is_wanted: bool,
}

impl Views {
    /// Before any view is known.
    pub fn new(me: ServerId, maker: ServerId) -> Views {
        Views {
            me,
            maker,
            epoch: 0,
            members: Vec::new(),
            barred: BTreeMap::new(),
            is_wanted: false,
        }
    }

    /// The next view is wanted, as soon as all members can be reached.
    pub fn want(&mut self) {
        self.is_wanted = true;
    }

    pub fn me(&self) -> ServerId {
        self.me
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The members, those who came first at the beginning.
    pub fn members(&self) -> &[ServerId] {
        &self.members
    }

    /// Whose end would mean something: the members, and before there are any, the maker.
    pub fn awaited(&self) -> impl Iterator<Item = ServerId> {
        let maker = (self.epoch == 0).then_some(self.maker);
        self.members.iter().copied().chain(maker)
    }

    /// Whether this server is in the view.
    pub fn is_in(&self) -> bool {
        self.members.contains(&self.me)
    }

    /// There is a view.
    pub fn heard(&mut self, epoch: u64, members: Vec<ServerId>) -> Heard {
        if epoch <= self.epoch {
            return Heard::Known;
        }
        let (was_in, is_in) = (self.is_in(), members.contains(&self.me));
        let follows = epoch == self.epoch + 1;
        if was_in && !(is_in && follows) {
            return Heard::Missed;
        }
        self.epoch = epoch;
        self.members = members;
        self.is_wanted = false;
        match is_in {
            true => Heard::Enter,
            false => Heard::Outside,
        }
    }

    /// A link to a peer server broke; what was under way is lost.
    pub fn broke(&mut self, peer_server: ServerId) {
        self.barred.insert(peer_server, self.epoch);
    }

    /// Whether a peer server may get a message of this epoch.
    pub fn may_send(&self, to: ServerId, epoch: u64) -> bool {
        self.barred.get(&to).is_none_or(|barred| epoch > *barred)
    }

    /// What is to be proposed now. Who has left the directory may use what it has for a while, until
    /// it is gone.
    pub fn wish(
        &self,
        (has_left, is_gone): (impl Fn(ServerId) -> bool, impl Fn(ServerId) -> bool),
        is_up: impl Fn(ServerId) -> bool,
    ) -> Wish {
        if self.epoch == 0 && self.maker != self.me {
            // Whoever made the object makes its first view; or it never came to that.
            return match is_gone(self.maker) {
                true => Wish::Lost,
                false => Wish::Nothing,
            };
        }
        let mut next: Vec<ServerId> = self.members.clone();
        next.retain(|member| !is_gone(*member));
        // Nobody comes back who has left: who is not in has no time to wait for.
        let are_left = !self.is_in() && self.members.iter().all(|member| has_left(*member));
        if (next.is_empty() || are_left) && self.epoch > 0 {
            return Wish::Lost;
        }
        if !next.contains(&self.me) {
            if !next.iter().all(|member| is_up(*member)) {
                return Wish::Nothing;
            }
            next.push(self.me);
        }
        let is_cut = |member: &ServerId| !self.may_send(*member, self.epoch) && is_up(*member);
        let is_there = |member: &ServerId| *member == self.me || is_up(*member);
        let is_wanted = self.is_wanted && next.iter().all(is_there);
        match next != self.members || next.iter().any(is_cut) || is_wanted {
            true => Wish::Next(self.epoch + 1, next),
            false => Wish::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ServerId = ServerId(1);
    const B: ServerId = ServerId(2);
    const C: ServerId = ServerId(3);

    fn nobody(_: ServerId) -> bool {
        false
    }

    fn all(_: ServerId) -> bool {
        true
    }

    fn is_a(who: ServerId) -> bool {
        who == A
    }

    #[test]
    fn the_maker_makes_the_first_view_and_others_join() {
        let mut a = Views::new(A, A);
        assert_eq!(a.wish((nobody, nobody), all), Wish::Next(1, vec![A]));
        assert_eq!(a.heard(1, vec![A]), Heard::Enter);
        assert_eq!(a.wish((nobody, nobody), all), Wish::Nothing);
        let mut b = Views::new(B, A);
        assert_eq!(b.wish((nobody, nobody), all), Wish::Nothing);
        assert_eq!(b.heard(1, vec![A]), Heard::Outside);
        assert_eq!(b.wish((nobody, nobody), all), Wish::Next(2, vec![A, B]));
    }

    #[test]
    fn who_does_not_reach_a_member_does_not_join() {
        let mut c = Views::new(C, A);
        c.heard(4, vec![A, B]);
        assert_eq!(c.wish((nobody, nobody), is_a), Wish::Nothing);
        assert_eq!(c.wish((nobody, nobody), all), Wish::Next(5, vec![A, B, C]));
        // Who is gone need not be reached.
        let is_b = |who| who == B;
        assert_eq!(c.wish((is_b, is_b), is_a), Wish::Next(5, vec![A, C]));
        // Who is a member stays one, and the others go on with whom they reach.
        let mut b = Views::new(B, A);
        b.heard(4, vec![A, B]);
        assert_eq!(b.wish((nobody, nobody), nobody), Wish::Nothing);
    }

    #[test]
    fn who_is_gone_is_left_out_and_the_last_takes_all_with_it() {
        let mut b = Views::new(B, A);
        b.heard(1, vec![A]);
        assert_eq!(b.wish((is_a, is_a), all), Wish::Lost);
        assert_eq!(b.heard(2, vec![A, B, C]), Heard::Enter);
        assert_eq!(b.wish((is_a, is_a), all), Wish::Next(3, vec![B, C]));
        // Put out, or told too late: others may own its pages by now.
        assert_eq!(b.clone().heard(3, vec![A, C]), Heard::Missed);
        assert_eq!(b.heard(4, vec![A, B]), Heard::Missed);
    }

    #[test]
    fn an_object_whose_maker_made_no_view_is_gone_with_it() {
        let mut b = Views::new(B, A);
        assert!(b.awaited().eq([A]));
        assert_eq!(b.wish((is_a, nobody), all), Wish::Nothing);
        assert_eq!(b.wish((is_a, is_a), all), Wish::Lost);
        b.heard(1, vec![A, C]);
        assert!(b.awaited().eq([A, C]));
        assert_eq!(b.wish((is_a, is_a), all), Wish::Next(2, vec![C, B]));
    }

    #[test]
    fn nobody_joins_those_who_have_left() {
        let mut b = Views::new(B, A);
        b.heard(1, vec![A]);
        assert_eq!(b.wish((is_a, nobody), all), Wish::Lost);
        b.heard(2, vec![A, C]);
        assert_eq!(b.wish((is_a, nobody), all), Wish::Next(3, vec![A, C, B]));
        // The last one has closed it.
        b.heard(3, Vec::new());
        assert_eq!(b.wish((nobody, nobody), all), Wish::Lost);
        // Who is in waits until A is gone.
        let mut c = Views::new(C, A);
        c.heard(2, vec![A, C]);
        assert_eq!(c.wish((is_a, nobody), all), Wish::Nothing);
    }

    #[test]
    fn a_link_that_broke_needs_a_view_when_it_is_there_again() {
        let mut b = Views::new(B, A);
        b.heard(5, vec![A, B]);
        b.broke(A);
        assert!(!b.may_send(A, 5));
        assert!(b.may_send(A, 6));
        assert_eq!(b.wish((nobody, nobody), nobody), Wish::Nothing);
        assert_eq!(b.wish((nobody, nobody), all), Wish::Next(6, vec![A, B]));
        assert_eq!(b.heard(6, vec![A, B]), Heard::Enter);
        assert_eq!(b.wish((nobody, nobody), all), Wish::Nothing);
    }

    #[test]
    fn a_view_that_is_wanted_has_the_same_members_when_all_are_reached() {
        let mut b = Views::new(B, A);
        b.heard(5, vec![A, B]);
        b.want();
        assert_eq!(b.wish((nobody, nobody), nobody), Wish::Nothing);
        assert_eq!(b.wish((nobody, nobody), all), Wish::Next(6, vec![A, B]));
        assert_eq!(b.heard(6, vec![A, B]), Heard::Enter);
        assert_eq!(b.wish((nobody, nobody), all), Wish::Nothing);
    }
}
