//! One small thing in a directory of its own, durable and always whole: for who has no
//! objects to store.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::StoreError;
use super::disk::{Directory, Disk};
use super::levels::make_directory;
use super::lock::{self, Lock};
use super::slots::Slots;

/// A directory with one file, whose contents are replaced as a whole.
pub(crate) struct Small {
    slots: Slots,
    _lock: Lock,
}

impl Small {
    /// Opens a directory; an empty or a missing one will do. What is in its file, which is to be
    /// replaced before it counts ([`Slots::open`]); `None` where there is none.
    ///
    /// # Errors
    /// Where it is in use, is damaged, or holds something else, or what the disk said.
    pub fn open<T: DeserializeOwned>(
        directory: &Path,
        file: &'static str,
    ) -> Result<(Small, Option<T>), StoreError> {
        make_directory(directory).map_err(|error| {
            StoreError::io(&format!("cannot make {}", directory.display()), &error)
        })?;
        let disk = Directory::new(directory);
        let name = directory.display().to_string();
        let names = disk
            .list("")
            .map_err(|error| StoreError::io(&format!("cannot read {name}"), &error))?;
        let is_ours = |name: &String| {
            name == lock::NAME || name.strip_suffix(".new").unwrap_or(name.as_str()) == file
        };
        if let Some(found) = names.into_iter().find(|name| !is_ours(name)) {
            return Err(StoreError::Foreign {
                directory: name,
                found,
            });
        }
        let lock = Lock::take(directory)?;
        // Who wrote what is there may have ended before it was durable.
        disk.sync_directory("")
            .map_err(|error| StoreError::io(&format!("cannot sync {name}"), &error))?;
        let (slots, found) = Slots::open(Arc::new(disk), &name, file)?;
        Ok((Small { slots, _lock: lock }, found))
    }

    /// Puts something in the place of what is there. This waits for the disk.
    ///
    /// # Errors
    /// What the disk said. Then the old or the new one is there when it is opened anew.
    pub fn replace<T: Serialize>(&mut self, value: &T) -> Result<(), StoreError> {
        self.slots.replace(value)
    }
}
