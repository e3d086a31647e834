//! Parts of an open object that a program maps beside the whole, where it wants them: an
//! unmodified program chooses addresses, offsets and lengths itself. All mappings of an
//! object share the pages that are here.
//!
//! Those of objects that are attached are registered with the server (`attached`).

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc;

use quire_core::dsm::kernel::Space;
use quire_core::dsm::message::Access;
use quire_core::units::{AddrRange, Bytes, VirtAddr};

use super::carrier::{Command, Key, Object};
use super::{Client, ClientError, Inner, Shared, received};
use crate::link::Links;
use crate::node::{Cache, Mapping, MappingError, Part, RangeLock};

/// Where a part is to be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Where there is room.
    Anywhere,
    /// At an address where nothing is mapped.
    Free(VirtAddr),
}

/// A part that is mapped. It must not outlive the [`Shared`] object: once that is closed,
/// touches fail.
pub struct Region {
    mapping: Mapping,
    number: u64,
    /// The size of the object's pages.
    page: Bytes,
    writable: bool,
    client: Client,
}

impl Region {
    /// Its addresses.
    #[must_use]
    pub const fn range(&self) -> AddrRange {
        self.mapping.range()
    }

    /// Its addresses, for whoever changes what is allowed there.
    #[must_use]
    pub fn addresses(&self) -> RangeLock {
        self.mapping.addresses()
    }

    /// Ends without unmapping the addresses: something else was put there in its place.
    pub fn leave(mut self) {
        self.mapping.leave();
    }

    /// As [`Shared::will_need`], for what lies at some of its addresses.
    pub fn will_need(&self, range: AddrRange, access: Access) {
        let range = self.range().intersect(range);
        if range.is_empty() {
            return;
        }
        let base = self.mapping.part().start + (range.start - self.range().start);
        let part = base..base + range.len();
        let access = access.min(Access::of(self.writable));
        self.client
            .will_need((self.number, self.page), part, access);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let (reply, answer) = mpsc::channel();
        let number = self.number;
        if self
            .client
            .command(Command::Unmap { number, reply })
            .is_ok()
        {
            let _ = answer.recv();
        }
    }
}

impl Shared {
    /// Maps a part of the object once more.
    ///
    /// # Errors
    /// When it cannot be mapped there.
    pub fn map(&self, part: Part, place: Place, writable: bool) -> Result<Region, ClientError> {
        let place = match place {
            Place::Anywhere => Wish::Anywhere,
            Place::Free(at) => Wish::Free(at),
        };
        self.map_as(part, place, writable)
    }

    /// The same, in the place of whatever is mapped at an address.
    ///
    /// # Errors
    /// When it cannot be mapped there.
    ///
    /// # Safety
    /// Nobody needs what is mapped there.
    pub unsafe fn map_over(
        &self,
        part: Part,
        at: VirtAddr,
        writable: bool,
    ) -> Result<Region, ClientError> {
        self.map_as(part, Wish::Over(at), writable)
    }

    fn map_as(&self, part: Part, place: Wish, writable: bool) -> Result<Region, ClientError> {
        let (reply, answer) = mpsc::channel();
        let wanted = Wanted {
            part,
            place,
            writable,
        };
        let key = self.key;
        self.client.command(Command::Map { key, wanted, reply })?;
        let (mapping, number) = received(&answer)??;
        Ok(Region {
            mapping,
            number,
            page: self.is.info.page_size.bytes(),
            writable,
            client: Client {
                inner: Arc::<Inner>::clone(&self.client.inner),
                machine: self.client.machine,
            },
        })
    }
}

/// A part that the thread is to map.
pub(super) struct Wanted {
    part: Part,
    place: Wish,
    writable: bool,
}

impl Wanted {
    /// Maps it.
    pub fn make(self, file: BorrowedFd<'_>) -> Result<Mapping, MappingError> {
        let Wanted { part, writable, .. } = self;
        match self.place {
            Wish::Anywhere => Mapping::new(file, part, None, writable),
            Wish::Free(at) => Mapping::new(file, part, Some(at), writable),
            // SAFETY: whoever called `Shared::map_over` has said that nobody needs it.
            Wish::Over(at) => unsafe { Mapping::over(file, part, at, writable) },
        }
    }
}

/// As [`Place`], or over what nobody needs.
enum Wish {
    Anywhere,
    Free(VirtAddr),
    Over(VirtAddr),
}

/// The parts of all objects that have caches here, by numbers that no object's key has.
#[derive(Default)]
pub(super) struct Regions {
    mapped: BTreeMap<u64, (Key, Space)>,
}

impl Regions {
    /// Whose faults a number stands for.
    pub fn get(&self, number: u64) -> Option<(Key, Space)> {
        self.mapped.get(&number).copied()
    }

    /// Maps a part.
    pub fn map(
        &mut self,
        links: &mut Links,
        objects: &mut BTreeMap<Key, Object>,
        number: u64,
        key: Key,
        wanted: Wanted,
    ) -> Result<(Mapping, u64), ClientError> {
        let object = objects.get_mut(&key).ok_or_else(super::ended)?;
        let cache = &mut object.cache;
        let mapping = wanted.make(cache.file())?;
        let space = cache.add_own(&mapping)?;
        if let Some(uffd) = cache.uffd(space)
            && let Err(error) = links.watch(uffd, number)
        {
            cache.remove(space);
            return Err(error.into());
        }
        self.mapped.insert(number, (key, space));
        Ok((mapping, number))
    }

    /// A part is unmapped next.
    pub fn unmap(&mut self, links: &mut Links, objects: &mut BTreeMap<Key, Object>, number: u64) {
        let Some((key, space)) = self.mapped.remove(&number) else {
            return;
        };
        if let Some(object) = objects.get_mut(&key) {
            unwatch(links, &object.cache, space);
            object.cache.remove(space);
        }
    }

    /// An object is closed.
    pub fn forget(&mut self, links: &mut Links, key: Key, cache: &Cache) {
        self.mapped.retain(|_, (of, space)| {
            if *of == key {
                unwatch(links, cache, *space);
            }
            *of != key
        });
    }
}

fn unwatch(links: &mut Links, cache: &Cache, space: Space) {
    if let Some(uffd) = cache.uffd(space) {
        // The descriptor ends with the cache anyway.
        let _ = links.unwatch(uffd);
    }
}
