//! One small thing in a directory of its own, durable and always whole: for who has no
//! objects to store.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::disk::{Directory, Disk, replace};
use super::lock::{self, Lock};
use super::object::seal;
use super::shared::read_sealed;
use super::{StoreError, make_directory};

/// A directory with one file that is replaced as a whole.
pub(crate) struct Small {
    disk: Directory,
    directory: String,
    file: &'static str,
    _lock: Lock,
}

impl Small {
    /// Opens a directory; an empty or a missing one will do.
    ///
    /// # Errors
    /// Where it is in use, or holds something else, or what the disk said.
    pub fn open(directory: &Path, file: &'static str) -> Result<Small, StoreError> {
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
        Ok(Small {
            _lock: Lock::take(directory)?,
            disk,
            directory: name,
            file,
        })
    }

    /// What is there; `None` where nothing is.
    ///
    /// # Errors
    /// That it is damaged, or what the disk said.
    pub fn read<T: DeserializeOwned>(&self) -> Result<Option<T>, StoreError> {
        read_sealed(&self.disk, &self.directory, self.file)
    }

    /// Puts something in the place of what is there. This waits for the disk.
    ///
    /// # Errors
    /// What the disk said. Then the old or the new one is there.
    pub fn replace<T: Serialize>(&self, value: &T) -> Result<(), StoreError> {
        replace(&self.disk, "", self.file, &seal(value)?).map_err(|error| {
            StoreError::io(
                &format!("cannot write {}/{}", self.directory, self.file),
                &error,
            )
        })
    }
}
