//! A disk that is changed no more once it is unknown what of it is durable.
//!
//! A sync that fails leaves that open, and the system may have dropped what was to be
//! written, so that a second sync says yes without having done it. A rename that fails may
//! have been carried out, unless the disk was full. Whatever the store asks of its disk goes
//! through here, so none of that can be overlooked: what comes after it is refused, until
//! the store is opened anew. Reading goes on.

use std::io;
use std::sync::{Arc, OnceLock};

use super::StoreError;
use super::disk::{Disk, join};
use super::error::is_full;

/// With this, every change is refused after the first failure: what failed, and why.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unsure(pub(super) String);

impl From<Unsure> for io::Error {
    fn from(unsure: Unsure) -> io::Error {
        io::Error::other(unsure)
    }
}

/// The disk of a store.
pub(super) struct Guard {
    disk: Arc<dyn Disk>,
    directory: String,
    failed: OnceLock<Unsure>,
}

impl Guard {
    /// Guards a disk; the store's directory is for errors.
    pub(super) fn new(disk: Arc<dyn Disk>, directory: &str) -> Guard {
        Guard {
            disk,
            directory: directory.to_owned(),
            failed: OnceLock::new(),
        }
    }

    /// Whether the disk can still be changed.
    ///
    /// # Errors
    /// [`StoreError::Failed`], with what failed.
    pub(super) fn works(&self) -> Result<(), StoreError> {
        match self.failed.get() {
            Some(Unsure(reason)) => Err(StoreError::Failed(reason.clone())),
            None => Ok(()),
        }
    }

    /// Gives a directory its name back that could not be renamed for good, so that what is
    /// in it can be read. Nothing relies on that, so it is done on a failed disk, too.
    pub(super) fn rename_back(&self, from: &str, to: &str) {
        if let Err(error) = self.disk.rename(from, to) {
            tracing::warn!("{}: {from}: {error}", self.directory);
        }
    }

    /// Does something that leaves no doubt where it fails.
    fn change<T>(&self, change: impl FnOnce(&dyn Disk) -> io::Result<T>) -> io::Result<T> {
        match self.failed.get() {
            Some(unsure) => Err(unsure.clone().into()),
            None => change(&*self.disk),
        }
    }

    /// Something failed after which it is unknown what is durable.
    fn fail(&self, what: &str, error: &io::Error) -> io::Error {
        let reason = format!("cannot make {what} durable: {error}");
        let unsure = self.failed.get_or_init(|| {
            tracing::error!("{}: {reason}", self.directory);
            Unsure(reason)
        });
        unsure.clone().into()
    }
}

impl Disk for Guard {
    fn len(&self, file: &str) -> io::Result<Option<u64>> {
        self.disk.len(file)
    }

    fn read_at(&self, file: &str, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.disk.read_at(file, offset, buffer)
    }

    fn write_at(&self, file: &str, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(|disk| disk.write_at(file, offset, data))
    }

    fn create(&self, file: &str) -> io::Result<()> {
        self.change(|disk| disk.create(file))
    }

    fn reserve(&self, file: &str, offset: u64, length: u64) -> io::Result<()> {
        self.change(|disk| disk.reserve(file, offset, length))
    }

    fn punch(&self, file: &str, offset: u64, length: u64) -> io::Result<()> {
        self.change(|disk| disk.punch(file, offset, length))
    }

    fn sync(&self, file: &str) -> io::Result<()> {
        self.change(|disk| disk.sync(file).map_err(|error| self.fail(file, &error)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change(|disk| match disk.rename(from, to) {
            Err(error) if !is_full(&error) => Err(self.fail(&format!("the name {to}"), &error)),
            other => other,
        })
    }

    fn remove_directory(&self, directory: &str) -> io::Result<()> {
        self.change(|disk| disk.remove_directory(directory))
    }

    fn make_directory(&self, directory: &str) -> io::Result<()> {
        self.change(|disk| disk.make_directory(directory))
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        self.disk.list(directory)
    }

    fn sync_directory(&self, directory: &str) -> io::Result<()> {
        self.change(|disk| {
            let what = || format!("the names in {}", join(&self.directory, directory));
            disk.sync_directory(directory)
                .map_err(|error| self.fail(&what(), &error))
        })
    }
}
