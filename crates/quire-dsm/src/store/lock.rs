//! One server per directory: a lock file with the process in it. Who only looks shares the lock
//! with others who do, and writes nothing.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::process::Pid;

use super::StoreError;

/// The name of the lock file.
pub(super) const NAME: &str = "lock";

/// What a symbolic link leads to is somebody else's.
const NO_LINK: i32 = OFlags::NOFOLLOW.bits().cast_signed();

/// More than the number of a process takes, in bytes.
const LONGEST: usize = 16;

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
            .custom_flags(NO_LINK)
            .open(&path)
            .map_err(|error| StoreError::io(&format!("cannot open {}", path.display()), &error))?;
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        let holder = holder(&mut file)?;
        let directory = directory.display().to_string();
        match locked {
            // Only others who look at the directory let it be looked at.
            Err(Errno::WOULDBLOCK)
                if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() =>
            {
                return Err(StoreError::BeingChecked { directory });
            }
            // It is not emptied before it is known to be a lock.
            Ok(()) if holder.is_none() => {
                let found = NAME.to_owned();
                return Err(StoreError::Foreign { directory, found });
            }
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                // Without a number in it the line is less clear, and no less true.
                let pid = holder.unwrap_or(0);
                return Err(StoreError::InUse { directory, pid });
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

    /// Keeps servers out of a directory that is looked at; nothing in it changes. `None` where
    /// no server was there ever.
    ///
    /// # Errors
    /// [`StoreError::InUse`] names the process of the server that is there.
    pub(super) fn look(directory: &Path) -> Result<Option<Lock>, StoreError> {
        let path = directory.join(NAME);
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(NO_LINK)
            .open(&path);
        let mut file = match opened {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(|error| {
                StoreError::io(&format!("cannot open {}", path.display()), &error)
            })?,
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(Some(Lock {
                file,
                process: rustix::process::getpid(),
            })),
            Err(Errno::WOULDBLOCK) => Err(StoreError::InUse {
                directory: directory.display().to_string(),
                pid: holder(&mut file)?.unwrap_or(0),
            }),
            Err(error) => Err(StoreError::io("cannot lock the directory", &error.into())),
        }
    }
}

/// The number of the process that has, or had, a lock: 0 where none is written there; `None`
/// where something else is, so that it is no lock.
fn holder(file: &mut File) -> Result<Option<u32>, StoreError> {
    let mut text = [0; LONGEST];
    let count = file.read(&mut text);
    let count = count.map_err(|error| StoreError::io("cannot read the lock file", &error))?;
    let text = str::from_utf8(&text[..count]).ok();
    Ok(text.and_then(|text| match text {
        "" => Some(0),
        text => text.strip_suffix('\n')?.parse().ok(),
    }))
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
    fn what_is_no_lock_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(NAME);
        for text in ["my data", "17 apples\n", "12345678901234567890\n"] {
            std::fs::write(&path, text).unwrap();
            let refused = Lock::take(directory.path()).err().unwrap();
            assert!(matches!(refused, StoreError::Foreign { .. }), "{refused}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        // Nor is what a link leads to.
        let elsewhere = directory.path().join("elsewhere");
        std::fs::write(&elsewhere, "").unwrap();
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert!(Lock::take(directory.path()).is_err());
        assert_eq!(std::fs::read_to_string(&elsewhere).unwrap(), "");
        // A lock of a process that is gone is one.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "4000000\n").unwrap();
        drop(Lock::take(directory.path()).unwrap());
    }

    #[test]
    fn who_looks_keeps_servers_out_and_writes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(NAME);
        assert!(Lock::look(directory.path()).unwrap().is_none());
        assert!(!path.exists());
        std::fs::write(&path, "4000000\n").unwrap();
        let looks = [(); 2].map(|()| Lock::look(directory.path()).unwrap().unwrap());
        let refused = Lock::take(directory.path()).err().unwrap();
        assert!(
            matches!(refused, StoreError::BeingChecked { .. }),
            "{refused}"
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "4000000\n");
        drop(looks);
        let lock = Lock::take(directory.path()).unwrap();
        let refused = Lock::look(directory.path()).err().unwrap();
        assert!(
            matches!(refused, StoreError::InUse { pid, .. } if pid == std::process::id()),
            "{refused}"
        );
        drop(lock);
        assert!(Lock::look(directory.path()).unwrap().is_some());
    }

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
