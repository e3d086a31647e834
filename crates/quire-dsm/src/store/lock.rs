//! One server per directory: a lock file with the process in it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::StoreError;

/// The name of the lock file.
pub(super) const NAME: &str = "lock";

/// The store is this process's until it is dropped, or the process ends.
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes a directory's lock.
    ///
    /// # Errors
    /// [`StoreError::InUse`] names the process that has it.
    pub(super) fn take(directory: &Path) -> Result<Lock, StoreError> {
        let path = directory.join(NAME);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|error| StoreError::io(&format!("cannot open {}", path.display()), &error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                // Without a number in it the line is less clear, and no less true.
                let _ = file.read_to_string(&mut holder);
                return Err(StoreError::InUse {
                    directory: directory.display().to_string(),
                    pid: holder.trim().parse().unwrap_or(0),
                });
            }
            Err(error) => return Err(StoreError::io("cannot lock the directory", &error.into())),
        }
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        if let Err(error) = written {
            // A full disk must not keep the store from being read.
            tracing::warn!("the lock file does not name this process: {error}");
        }
        Ok(Lock { _file: file })
    }
}
