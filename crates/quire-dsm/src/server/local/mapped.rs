//! What programs of this machine map of the objects that they have attached.
//!
//! A program registers each of its mappings, of the whole object or of a part, with the
//! userfaultfd that is registered for it. A mapping keeps a descriptor here for as long as it
//! is known, so there is a bound for each program, and one for all.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use quire_core::dsm::kernel::Space;
use quire_core::units::{AddrRange, BASE_PAGE, VirtAddr};
use quire_linux::uffd::{self, shared};
use rustix::process::{Resource, getrlimit};

use super::super::Around;
use super::super::core::PeerId;
use super::super::object::Refused;
use super::{Cached, KEYS, Local, not_attached};
use crate::node::Part;
use crate::wire::control::{FailureKind, Handle, MappingNumber};

/// So many mappings a program may have registered.
const MOST_OF_ONE: usize = 1024;

/// A mapping of a program.
#[derive(Clone, Copy)]
pub(super) struct Mapped {
    pub space: Space,
    /// The key with which its userfaultfd is watched.
    pub key: u64,
    pub base: VirtAddr,
}

/// A mapping that a program wants to be answered for.
pub(super) struct Wanted {
    pub mapping: MappingNumber,
    pub part: Part,
    pub base: VirtAddr,
}

impl Wanted {
    /// Its addresses, if it can be one of an object.
    fn range(&self, cached: &Cached) -> Option<AddrRange> {
        let aligned = |n: u64| n.is_multiple_of(BASE_PAGE);
        let Part { start, len } = self.part;
        let end = start.0.checked_add(len.0)?;
        let is_part = aligned(start.0) && aligned(len.0) && len.0 > 0 && end <= cached.whole.len.0;
        let is_there = aligned(self.base.0) && self.base.0.checked_add(len.0).is_some();
        (is_part && is_there).then(|| AddrRange::new(self.base, len))
    }
}

impl Local {
    /// A program has mapped something of what it attached.
    pub(super) fn register(
        &mut self,
        around: &mut Around<'_>,
        who: (PeerId, Handle),
        wanted: &Wanted,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Refused> {
        let process = self.processes.get(&who.0).copied();
        let process = process.ok_or_else(not_attached)?;
        let is_room = self.is_room(who.0, process, wanted.base);
        let program = self.programs.get_mut(&who).ok_or_else(not_attached)?;
        let cached = self.caches.get_mut(&program.cache);
        let cached = cached.ok_or_else(not_attached)?;
        let mut descriptors = descriptors.into_iter();
        let (Some(uffd), None) = (descriptors.next(), descriptors.next()) else {
            return Err(invalid("a mapping is registered with one descriptor"));
        };
        if program.mapped.contains_key(&wanted.mapping) {
            return Err(invalid("a mapping is registered once"));
        }
        let range = wanted.range(cached);
        let range = range.ok_or_else(|| invalid("no mapping of the object can be there"))?;
        is_room?;
        if !never_waits(uffd.as_fd())? || uffd::wake(uffd.as_fd(), range).is_err() {
            return Err(invalid(
                "the descriptor is no userfaultfd that can be read without waiting (Linux 6.10)",
            ));
        }
        let (base, part) = (wanted.base, wanted.part);
        let space = cached.cache.add(uffd, base, part);
        self.last_key += 1;
        let key = KEYS + self.last_key;
        if let Some(uffd) = cached.cache.uffd(space)
            && let Err(error) = around.links.watch(uffd, key)
        {
            cached.cache.remove(space);
            return Err((FailureKind::Unavailable, error.to_string()));
        }
        self.watched.insert(key, (program.cache, space));
        let mapped = Mapped { space, key, base };
        program.mapped.insert(wanted.mapping, mapped);
        // It was silent, and is here again.
        cached.forget(|silent| silent.process == process && silent.mapped.base == base);
        Ok(())
    }

    /// Whether a program may have one mapping more, at an address where a silent one of the
    /// same process is none any more.
    fn is_room(&self, peer: PeerId, process: u32, base: VirtAddr) -> Result<(), Refused> {
        let full = |most, remedy| {
            let text = format!("{most} mappings of shared pages are there already; {remedy}");
            Err((FailureKind::Full, text))
        };
        let all = (peer, Handle(0))..=(peer, Handle(u32::MAX));
        let here = self.programs.range(all);
        let here: usize = here.map(|(_, program)| program.mapped.len()).sum();
        let silent = || self.caches.values().flat_map(|cached| &cached.silent);
        let own = silent().filter(|it| it.process == process && it.mapped.base != base);
        if here + own.count() >= MOST_OF_ONE {
            let remedy = "unmap some, or connect with pages of the program's own";
            return full(MOST_OF_ONE, remedy);
        }
        let limit = getrlimit(Resource::Nofile).current;
        // The other half is for links and files.
        let most = limit.map_or(usize::MAX, |limit| limit as usize / 2);
        if self.watched.len() + silent().count() >= most {
            return full(most, "let the server have more descriptors (ulimit -n)");
        }
        Ok(())
    }

    /// A mapping of a program is about to go.
    pub(super) fn unregister(
        &mut self,
        around: &mut Around<'_>,
        who: (PeerId, Handle),
        mapping: MappingNumber,
    ) -> Result<(), Refused> {
        let program = self.programs.get_mut(&who).ok_or_else(not_attached)?;
        let cached = self.caches.get_mut(&program.cache);
        let cached = cached.ok_or_else(not_attached)?;
        let mapped = program.mapped.remove(&mapping);
        let mapped = mapped.ok_or_else(unknown)?;
        self.watched.remove(&mapped.key);
        cached.unwatch(around, &mapped);
        cached.cache.remove(mapped.space);
        Ok(())
    }
}

/// Whether a descriptor of a program is one on which this server waits for nobody.
fn never_waits(uffd: BorrowedFd<'_>) -> Result<bool, Refused> {
    let answer = shared::never_waits(uffd);
    answer.map_err(|error| (FailureKind::Unavailable, format!("/proc: {error}")))
}

/// There is no such mapping.
pub(super) fn unknown() -> Refused {
    invalid("no mapping of this number is registered")
}

fn invalid(text: &str) -> Refused {
    (FailureKind::Invalid, text.to_owned())
}
