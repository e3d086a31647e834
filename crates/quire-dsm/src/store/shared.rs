//! What readers and the writer of a store share: which objects there are, what pages hold,
//! and what is on its way to the disk.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use quire_core::dsm::message::{PageNumber, Pages};
use quire_core::units::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::disk::{Disk, join, read_all, replace};
use super::guard::Guard;
use super::layout::KEPT;
use super::log::Logged;
use super::object::{seal, unseal};
use super::part::{Known, Places};
use super::{Contents, Damage, Object, ObjectId, Page, StoreError};

/// A write-back.
pub(super) struct Request {
    /// Which it is, among all.
    pub(super) ticket: u64,
    pub(super) object: ObjectId,
    pub(super) first: u64,
    pub(super) data: Vec<Option<Contents>>,
}

impl Request {
    /// How much it holds.
    pub(super) fn bytes(&self) -> u64 {
        bytes(&self.data)
    }
}

fn bytes(data: &[Option<Contents>]) -> u64 {
    data.iter()
        .map(|page| page.as_ref().map_or(0, |page| page.len() as u64))
        .sum()
}

/// A page, among all of a store.
pub(super) type Key = (ObjectId, u64);

/// Pages that are not in their places, or not only there.
#[derive(Default)]
pub(super) struct Recent {
    /// Given to be written, by whom, and not durable yet.
    pub(super) queued: HashMap<Key, (u64, Option<Contents>)>,
    /// In the log.
    pub(super) logged: BTreeMap<Key, Logged>,
}

/// Which objects there are.
#[derive(Default)]
pub(super) struct Catalogue {
    pub(super) objects: HashMap<ObjectId, Arc<Object>>,
    pub(super) names: BTreeMap<String, ObjectId>,
    /// Names that several objects claim. None of these can be found; they keep their pages.
    pub(super) contested: BTreeMap<String, Damage>,
}

/// What readers and the writer share. Locks are taken in the order of the fields.
pub(super) struct Shared {
    pub(super) disk: Arc<Guard>,
    pub(super) directory: String,
    pub(super) catalogue: RwLock<Catalogue>,
    /// A reader holds this from before it looks for a page in `recent` until it has read
    /// it; the writer takes it alone to put a page into its place. So no reader meets a
    /// page that is half written.
    pub(super) places: RwLock<Places>,
    pub(super) recent: Mutex<Recent>,
    pub(super) keeping: Mutex<()>,
    pub(super) damage: Vec<Damage>,
    pub(super) tickets: AtomicU64,
    pub(super) backlog: AtomicU64,
}

impl Shared {
    pub(super) fn objects(&self) -> Vec<Arc<Object>> {
        let catalogue = read_lock(&self.catalogue);
        let known = catalogue.names.values();
        known
            .filter_map(|id| catalogue.objects.get(id).cloned())
            .collect()
    }

    pub(super) fn find(&self, name: &str) -> Option<Arc<Object>> {
        let catalogue = read_lock(&self.catalogue);
        let id = catalogue.names.get(name)?;
        catalogue.objects.get(id).cloned()
    }

    pub(super) fn get(&self, id: ObjectId) -> Result<Arc<Object>, StoreError> {
        let catalogue = read_lock(&self.catalogue);
        let found = catalogue.objects.get(&id).cloned();
        found.ok_or_else(|| StoreError::NoObject(id.to_string()))
    }

    /// Whether an object, or a new one, may have a name.
    ///
    /// # Errors
    /// That another one has it.
    pub(super) fn may_have(&self, name: &str, id: Option<ObjectId>) -> Result<(), StoreError> {
        let catalogue = read_lock(&self.catalogue);
        if let Some(damage) = catalogue.contested.get(name) {
            return Err(StoreError::Damaged {
                directory: self.directory.clone(),
                damage: damage.clone(),
            });
        }
        match catalogue.names.get(name) {
            Some(holder) if Some(*holder) != id => Err(StoreError::Exists(name.to_owned())),
            _ => Ok(()),
        }
    }

    pub(super) fn damage(&self) -> &[Damage] {
        &self.damage
    }

    pub(super) fn backlog(&self) -> Bytes {
        Bytes(self.backlog.load(Ordering::Relaxed))
    }

    /// Lets readers see what is about to be written.
    pub(super) fn note(&self, object: ObjectId, first: u64, data: &[Option<Contents>]) -> u64 {
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        self.backlog.fetch_add(bytes(data), Ordering::Relaxed);
        let pages = Pages {
            first: PageNumber(first),
            count: u32::try_from(data.len()).unwrap_or(u32::MAX),
        };
        let sound = self.get(object).and_then(|found| {
            found.look_at(pages)?;
            Ok(right_lengths(&found, data))
        });
        if sound == Ok(true) {
            let mut recent = self.recent();
            for (page, contents) in (first..).zip(data) {
                let entry = (ticket, contents.clone());
                recent.queued.insert((object, page), entry);
            }
        }
        ticket
    }

    pub(super) fn read(&self, id: ObjectId, pages: Pages) -> Result<Vec<Page>, StoreError> {
        self.get(id)?.look_at(pages)?;
        pages.iter().map(|page| self.page(id, page.0)).collect()
    }

    /// What pages hold, where that is known without the disk and without waiting for who
    /// uses it.
    pub(super) fn at_hand(&self, id: ObjectId, pages: Pages) -> Option<Vec<Page>> {
        let catalogue = self.catalogue.try_read().ok()?;
        catalogue.objects.get(&id)?.look_at(pages).ok()?;
        let places = self.places.try_read().ok()?;
        let recent = self.recent();
        let known = |page: PageNumber| {
            let zero = || places.is_zero(id, page.0).then_some(Page::Zero);
            recent.find((id, page.0)).or_else(zero)
        };
        pages.iter().map(known).collect()
    }

    fn page(&self, id: ObjectId, page: u64) -> Result<Page, StoreError> {
        loop {
            {
                let places = read_lock(&self.places);
                if let Some(found) = self.recent().find((id, page)) {
                    return Ok(found);
                }
                if let Known::Yes(found) = places.read(id, page) {
                    return Ok(found);
                }
            }
            write_lock(&self.places)
                .load(id, page)
                .map_err(|error| StoreError::io("cannot read a table of pages", &error))?;
        }
    }

    pub(super) fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn keep<T: Serialize>(&self, name: &str, value: &T) -> Result<(), StoreError> {
        look_at_name(name)?;
        let bytes = seal(value)?;
        let _alone = self.keeping.lock().unwrap_or_else(PoisonError::into_inner);
        replace(&*self.disk, KEPT, name, &bytes)
            .map_err(|error| StoreError::io(&format!("cannot keep {name}"), &error))
    }

    pub(super) fn kept<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, StoreError> {
        look_at_name(name)?;
        read_sealed(&*self.disk, &self.directory, &join(KEPT, name))
    }
}

/// What was sealed in a small file of a directory; `None` where there is none.
///
/// # Errors
/// That it is damaged, or what the disk said.
pub(super) fn read_sealed<T: DeserializeOwned>(
    disk: &dyn Disk,
    directory: &str,
    file: &str,
) -> Result<Option<T>, StoreError> {
    let bytes = read_all(disk, file)
        .map_err(|error| StoreError::io(&format!("cannot read {directory}/{file}"), &error))?;
    let Some(bytes) = bytes else {
        return Ok(None);
    };
    unseal(&bytes).map(Some).ok_or_else(|| StoreError::Damaged {
        directory: directory.to_owned(),
        damage: Damage::new(file, 0..bytes.len() as u64, "wrong checksum"),
    })
}

impl Recent {
    fn find(&self, key: Key) -> Option<Page> {
        if let Some((_, contents)) = self.queued.get(&key) {
            return Some(contents.clone().map_or(Page::Zero, Page::Held));
        }
        Some(match self.logged.get(&key)? {
            Logged::Zero => Page::Zero,
            Logged::Held(contents) => Page::Held(contents.clone()),
            Logged::Lost => Page::Lost,
        })
    }
}

impl Catalogue {
    pub(super) fn dismiss(&mut self, object: &Object) {
        self.names.remove(&object.is.name);
        self.objects.remove(&object.id);
    }

    pub(super) fn admit(&mut self, object: Arc<Object>) {
        if !self.contested.contains_key(&object.is.name) {
            self.names.insert(object.is.name.clone(), object.id);
        }
        self.objects.insert(object.id, object);
    }
}

fn look_at_name(name: &str) -> Result<(), StoreError> {
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_lowercase()) {
        let what = format!("{name:?}: such a name has lower-case letters only");
        return Err(StoreError::Invalid(what));
    }
    Ok(())
}

/// Whether all contents are whole pages.
pub(super) fn right_lengths(object: &Object, data: &[Option<Contents>]) -> bool {
    let size = object.is.page_size.0;
    data.iter().flatten().all(|page| page.len() as u64 == size)
}

pub(super) fn read_lock<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn write_lock<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
