//! Objects are made, changed and removed: rarely, so each step is durable before the next.
//!
//! Each is done by one rename. What fails before it leaves the object as it was. When the
//! rename is not known to be durable, the store has failed (see `guard`): nobody can be told
//! anything that relies on either outcome, and the next start goes by what it finds.

use std::io;
use std::sync::Arc;

use super::disk::{Disk, replace};
use super::engine::Engine;
use super::layout::{GONE, META, NEW};
use super::object::{now, seal};
use super::part::{self, OBJECTS};
use super::shared::write_lock;
use super::{NewObject, Object, ObjectId, StoreError};
use crate::random::secret;

impl Engine {
    pub(super) fn create(&mut self, object: NewObject) -> Result<Arc<Object>, StoreError> {
        object.look()?;
        let shared = self.shared.clone();
        shared.disk.works()?;
        shared.may_have(&object.name, None)?;
        let what = format!("cannot make {}", object.name);
        let failed = |error: io::Error| StoreError::io(&what, &error);
        let object = Arc::new(Object {
            id: ObjectId(secret().map_err(failed)?),
            created: now(),
            is: object,
        });
        let meta = seal(&*object)?;
        if let Err(error) = make_object(&*shared.disk, object.id, &meta) {
            let half = part::directory(object.id) + NEW;
            // What is left over is removed when the store is opened the next time.
            let _ = shared.disk.remove_directory(&half);
            return Err(failed(error));
        }
        // It is durable, so nothing may fail from here on.
        write_lock(&shared.places).admit_new(object.id, object.is.page_size.0);
        write_lock(&shared.catalogue).admit(object.clone());
        Ok(object)
    }

    pub(super) fn change(
        &mut self,
        id: ObjectId,
        object: NewObject,
    ) -> Result<Arc<Object>, StoreError> {
        object.look()?;
        self.shared.disk.works()?;
        let old = self.shared.get(id)?;
        if object.size != old.is.size || object.page_size != old.is.page_size {
            let what = "size and page size stay as they are; make another object";
            return Err(StoreError::Invalid(what.to_owned()));
        }
        self.shared.may_have(&object.name, Some(id))?;
        let new = Arc::new(Object {
            id,
            created: old.created,
            is: object,
        });
        replace(
            &*self.shared.disk,
            &part::directory(id),
            META,
            &seal(&*new)?,
        )
        .map_err(|error| StoreError::io(&format!("cannot change {}", old.is.name), &error))?;
        let mut catalogue = write_lock(&self.shared.catalogue);
        catalogue.names.remove(&old.is.name);
        catalogue.admit(new.clone());
        Ok(new)
    }

    pub(super) fn remove(&mut self, id: ObjectId) -> Result<(), StoreError> {
        self.shared.disk.works()?;
        let object = self.shared.get(id)?;
        let (disk, directory) = (&*self.shared.disk, part::directory(id));
        let gone = format!("{directory}{GONE}");
        // It is found no more from here on. Whoever writes to other objects meanwhile does
        // not wait: the catalogue is free while the disk works.
        write_lock(&self.shared.catalogue).dismiss(&object);
        // Nobody reads from what is being taken away.
        let mut places = write_lock(&self.shared.places);
        let renamed = disk.rename(&directory, &gone);
        if let Err(error) = renamed.and_then(|()| disk.sync_directory(OBJECTS)) {
            // It counts as there until the next start, so its pages must be where they were.
            if disk.works().is_err() {
                disk.rename_back(&gone, &directory);
            }
            drop(places);
            let what = format!("cannot remove {}", object.is.name);
            write_lock(&self.shared.catalogue).admit(object);
            return Err(StoreError::io(&what, &error));
        }
        places.dismiss(id);
        let mut recent = self.shared.recent();
        recent.logged.retain(|(object, _), _| *object != id);
        recent.queued.retain(|(object, _), _| *object != id);
        drop(recent);
        drop(places);
        if let Err(error) = disk.remove_directory(&gone) {
            tracing::warn!("{gone}: {error}; the next start removes it");
        }
        Ok(())
    }
}

/// Makes an object's directory under another name first, so that it is whole or not there.
fn make_object(disk: &dyn Disk, id: ObjectId, meta: &[u8]) -> io::Result<()> {
    let directory = part::directory(id);
    let new = format!("{directory}{NEW}");
    disk.make_directory(&new)?;
    replace(disk, &new, META, meta)?;
    disk.rename(&new, &directory)?;
    disk.sync_directory(OBJECTS)
}
