//! One server per directory: a lock file with the process in it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::Pid;

use super::StoreError;

/// The name of the lock file.
pub(super) const NAME: &str = "lock";

/// The store is this process's until it is dropped, or the process ends.
///
/// A child of `fork` has the file, too, until it executes another program or ends. So the lock is
/// given up by name when this is dropped, and not just closed; and not by a child.
pub(super) struct Lock {
    file: File,
    process: Pid,
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
        let process = rustix::process::getpid();
        Ok(Lock { file, process })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if rustix::process::getpid() == self.process {
            // Where it fails, it ends with the last who has the file.
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_though_a_child_still_has_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let lock = Lock::take(directory.path()).unwrap();
        // What a child gets by `fork`.
        let childs = lock.file.try_clone().unwrap();
        let pid = std::process::id();
        match Lock::take(directory.path()) {
            Err(StoreError::InUse { pid: holder, .. }) => assert_eq!(holder, pid),
            other => panic!("{:?}", other.map(drop)),
        }
        drop(lock);
        Lock::take(directory.path()).unwrap();
        drop(childs);
    }
}
