//! What kernels are told about neighbouring pages, gathered while a turn of the loop lasts.
//!
//! Schedulers of several servers speak of one page at a time, so a window of pages that come
//! from a peer server would be so many messages, and so many changes of mappings, each of which
//! interrupts all processors of the machine. For a kernel it is as if the link took a moment
//! longer: what it is told keeps its order.

use std::collections::BTreeMap;

use quire_core::dsm::message::ToKernel;

use super::core::PeerId;
use crate::wire::Contents;
use crate::wire::control::Handle;

/// A message that has so many pages leaves at once: the kernel has something to do while the rest
/// is gathered.
const FULL: u32 = 32;

/// What a kernel of an object is told.
pub(super) type Bundle = (Handle, ToKernel<Contents>);

/// The last message to each peer, as long as it is held.
#[derive(Default)]
pub(super) struct Bundles(BTreeMap<PeerId, Bundle>);

impl Bundles {
    /// A kernel is told something. What is to leave now, in its place or before it.
    pub fn add(&mut self, peer: PeerId, (object, message): Bundle) -> Option<Bundle> {
        let Some((same, held)) = self.0.get_mut(&peer).filter(|(same, _)| *same == object) else {
            return self.0.insert(peer, (object, message));
        };
        let fits = held.pages().count + message.pages().count <= FULL;
        let rest = match fits {
            true => held.append(message),
            false => Some(message),
        };
        match rest {
            Some(message) => Some((*same, std::mem::replace(held, message))),
            None if held.pages().count == FULL => self.take(peer),
            None => None,
        }
    }

    /// What is held for a peer.
    pub fn take(&mut self, peer: PeerId) -> Option<Bundle> {
        self.0.remove(&peer)
    }

    /// What is held for any peer.
    pub fn next(&mut self) -> Option<(PeerId, Bundle)> {
        self.0.pop_first()
    }
}

#[cfg(test)]
mod tests {
    use quire_core::dsm::message::{Access, Lock, PageNumber, Pages};

    use super::*;

    const PEER: PeerId = PeerId(1);
    const OBJECT: Handle = Handle(1);

    fn pages(first: u64, count: u32) -> Pages {
        let first = PageNumber(first);
        Pages { first, count }
    }

    fn provided(pages: Pages, access: Access) -> ToKernel<Contents> {
        ToKernel::DataProvided {
            pages,
            data: vec![None; pages.count as usize],
            access,
        }
    }

    fn lock(pages: Pages, lock: Lock) -> ToKernel<Contents> {
        ToKernel::LockRequest { pages, lock }
    }

    /// What a peer is told one after the other, when these things are said in one turn.
    fn told(said: Vec<ToKernel<Contents>>) -> Vec<ToKernel<Contents>> {
        let mut bundles = Bundles::default();
        let mut told = Vec::new();
        for message in said {
            told.extend(
                bundles
                    .add(PEER, (OBJECT, message))
                    .map(|(_, message)| message),
            );
        }
        told.extend(bundles.take(PEER).map(|(_, message)| message));
        told
    }

    #[test]
    fn neighbours_are_told_together() {
        let read = |first, count| provided(pages(first, count), Access::Read);
        assert_eq!(told(vec![read(3, 1), read(4, 2), read(6, 1)]), [read(3, 4)]);
        let flush = |first, count| lock(pages(first, count), Lock::Flush);
        let allow = |first, count| lock(pages(first, count), Lock::AllowWrite);
        let said = vec![
            flush(0, 1),
            flush(1, 1),
            allow(2, 1),
            allow(3, 1),
            flush(9, 1),
        ];
        assert_eq!(told(said), [flush(0, 2), allow(2, 2), flush(9, 1)]);
        let said = vec![read(3, 1), provided(pages(4, 1), Access::Write), read(5, 1)];
        assert_eq!(told(said.clone()), said, "not what differs");
        let said = vec![read(3, 1), flush(3, 1), read(4, 1)];
        assert_eq!(told(said.clone()), said, "the order stays");
    }

    #[test]
    fn what_is_full_leaves_at_once() {
        let read = |first, count| provided(pages(first, count), Access::Read);
        let mut bundles = Bundles::default();
        for number in 0..u64::from(FULL) - 1 {
            assert_eq!(bundles.add(PEER, (OBJECT, read(number, 1))), None);
        }
        let last = u64::from(FULL) - 1;
        assert_eq!(
            bundles.add(PEER, (OBJECT, read(last, 1))),
            Some((OBJECT, read(0, FULL)))
        );
        assert_eq!(bundles.take(PEER), None);
        assert_eq!(
            told(vec![read(0, FULL), read(32, 8)]),
            [read(0, FULL), read(32, 8)]
        );
    }

    #[test]
    fn objects_and_peers_have_their_own() {
        let read = |first| provided(pages(first, 1), Access::Read);
        let mut bundles = Bundles::default();
        let other = Handle(2);
        assert_eq!(bundles.add(PEER, (OBJECT, read(0))), None);
        assert_eq!(bundles.add(PEER, (other, read(1))), Some((OBJECT, read(0))));
        assert_eq!(bundles.add(PeerId(2), (OBJECT, read(1))), None);
        assert_eq!(bundles.next(), Some((PEER, (other, read(1)))));
        assert_eq!(bundles.next(), Some((PeerId(2), (OBJECT, read(1)))));
        assert_eq!(bundles.next(), None);
    }
}
