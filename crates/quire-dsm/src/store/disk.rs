//! What the store asks of a disk. The real one is a directory; tests use one that forgets
//! and tears what was not synced.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FallocateFlags, fallocate, fdatasync};
use rustix::io::Errno;

/// Files in directories, named by paths relative to the store. Nothing is durable before
/// `sync` (contents) and `sync_directory` (names) said so.
pub(super) trait Disk: Send + Sync {
    /// The length of a file in bytes; `None` where there is none.
    fn len(&self, file: &str) -> io::Result<Option<u64>>;
    /// Reads up to the end of the file; how many bytes it got. A missing file is an error.
    fn read_at(&self, file: &str, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// Writes, and makes the file where it is missing.
    fn write_at(&self, file: &str, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Makes an empty file, in the place of what was there.
    fn create(&self, file: &str) -> io::Result<()>;
    /// Sees to it that a later write of this range cannot fail for want of space.
    fn reserve(&self, file: &str, offset: u64, length: u64) -> io::Result<()>;
    /// Gives the range's space back; it reads as zeros.
    fn punch(&self, file: &str, offset: u64, length: u64) -> io::Result<()>;
    /// Makes a file's contents durable.
    fn sync(&self, file: &str) -> io::Result<()>;
    /// Renames a file or a directory, over what was there.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a directory and the files in it.
    fn remove_directory(&self, directory: &str) -> io::Result<()>;
    /// Makes a directory; one that is there already is fine.
    fn make_directory(&self, directory: &str) -> io::Result<()>;
    /// The names in a directory.
    fn list(&self, directory: &str) -> io::Result<Vec<String>>;
    /// Makes a directory's names durable.
    fn sync_directory(&self, directory: &str) -> io::Result<()>;
}

/// Puts contents in the place of a small file, at once and durably: a crash leaves the old
/// or the new ones.
///
/// # Errors
/// What the disk said. The old contents are still there then, unless the rename or the sync
/// of the names failed: the next start finds the old or the new ones.
pub(super) fn replace(
    disk: &dyn Disk,
    directory: &str,
    name: &str,
    contents: &[u8],
) -> io::Result<()> {
    let file = join(directory, name);
    let new = format!("{file}.new");
    disk.create(&new)?;
    disk.write_at(&new, 0, contents)?;
    disk.sync(&new)?;
    disk.rename(&new, &file)?;
    disk.sync_directory(directory)
}

/// All of a small file; `None` where there is none.
///
/// # Errors
/// What the disk said.
pub(super) fn read_all(disk: &dyn Disk, file: &str) -> io::Result<Option<Vec<u8>>> {
    let Some(length) = disk.len(file)? else {
        return Ok(None);
    };
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    let got = disk.read_at(file, 0, &mut bytes)?;
    bytes.truncate(got);
    Ok(Some(bytes))
}

/// A name in a directory; the store itself is the empty path.
pub(super) fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() {
        name.to_owned()
    } else {
        format!("{directory}/{name}")
    }
}

/// How many files are kept open, besides those that were written to and not synced. A large
/// object has many.
const OPEN: usize = 128;

/// A directory of the file system.
pub(super) struct Directory {
    root: PathBuf,
    /// Nothing is written: files are opened to be read.
    only_read: bool,
    open: Mutex<HashMap<String, Open>>,
}

/// A file that is open.
struct Open {
    file: Arc<File>,
    /// It was written to, and not synced since. It must stay open: when the system cannot
    /// write that out, it may tell nobody who opens the file later.
    unsynced: bool,
}

/// What a file is opened for.
#[derive(Clone, Copy, PartialEq)]
enum Use {
    /// What is there.
    Found,
    /// What is there, or a new file.
    Made,
    /// The same, and it is written to.
    Written,
}

impl Directory {
    pub(super) fn new(root: &Path) -> Directory {
        Directory {
            root: root.to_owned(),
            only_read: false,
            open: Mutex::default(),
        }
    }

    /// The same, to be read only: its files, and the disk, need not allow more.
    pub(super) fn to_be_read(root: &Path) -> Directory {
        Directory {
            only_read: true,
            ..Directory::new(root)
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        if name.is_empty() {
            self.root.clone()
        } else {
            self.root.join(name)
        }
    }

    fn files(&self) -> MutexGuard<'_, HashMap<String, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, name: &str, to_be: Use) -> io::Result<Arc<File>> {
        let mut open = self.files();
        if let Some(found) = open.get_mut(name) {
            found.unsynced |= to_be == Use::Written;
            return Ok(found.file.clone());
        }
        let file = OpenOptions::new()
            .read(true)
            .write(!self.only_read)
            .create(to_be != Use::Found)
            .truncate(false)
            .open(self.path(name))?;
        let file = Arc::new(file);
        if open.len() >= OPEN {
            let one = open.iter().find(|(_, found)| !found.unsynced);
            let one = one.map(|(name, _)| name.clone());
            one.and_then(|one| open.remove(&one));
        }
        let opened = Open {
            file: file.clone(),
            unsynced: to_be == Use::Written,
        };
        open.insert(name.to_owned(), opened);
        Ok(file)
    }

    /// Closes what is open under a path, because that is to be another file now.
    fn forget(&self, path: &str) {
        let inside = format!("{path}/");
        self.files()
            .retain(|name, _| name != path && !name.starts_with(&inside));
    }
}

impl Disk for Directory {
    fn len(&self, file: &str) -> io::Result<Option<u64>> {
        match fs::metadata(self.path(file)) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn read_at(&self, file: &str, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let file = self.open(file, Use::Found)?;
        let mut got = 0;
        while got < buffer.len() {
            match file.read_at(&mut buffer[got..], offset + got as u64) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(got)
    }

    fn write_at(&self, file: &str, offset: u64, data: &[u8]) -> io::Result<()> {
        self.open(file, Use::Written)?.write_all_at(data, offset)
    }

    fn create(&self, file: &str) -> io::Result<()> {
        self.forget(file);
        File::create(self.path(file)).map(drop)
    }

    fn reserve(&self, file: &str, offset: u64, length: u64) -> io::Result<()> {
        let file = self.open(file, Use::Made)?;
        match fallocate(&*file, FallocateFlags::empty(), offset, length) {
            // Such a file system has to be believed until the page is put in its place.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            other => Ok(other?),
        }
    }

    fn punch(&self, file: &str, offset: u64, length: u64) -> io::Result<()> {
        let file = self.open(file, Use::Made)?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&*file, flags, offset, length)?)
    }

    fn sync(&self, file: &str) -> io::Result<()> {
        // fdatasync also makes durable what is needed to find the data: length and places.
        fdatasync(&*self.open(file, Use::Found)?)?;
        if let Some(synced) = self.files().get_mut(file) {
            synced.unsynced = false;
        }
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.forget(from);
        self.forget(to);
        fs::rename(self.path(from), self.path(to))
    }

    fn remove_directory(&self, directory: &str) -> io::Result<()> {
        self.forget(directory);
        fs::remove_dir_all(self.path(directory))
    }

    fn make_directory(&self, directory: &str) -> io::Result<()> {
        match fs::create_dir(self.path(directory)) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        fs::read_dir(self.path(directory))?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn sync_directory(&self, directory: &str) -> io::Result<()> {
        File::open(self.path(directory))?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that was written to is open until it is synced, however many others are used.
    #[test]
    fn what_is_not_synced_stays_open() {
        let place = tempfile::tempdir().expect("a directory");
        let disk = Directory::new(place.path());
        let read = |file: usize| disk.read_at(&format!("read-{file}"), 0, &mut [0]);
        for file in 0..2 * OPEN {
            std::fs::write(place.path().join(format!("read-{file}")), "x").expect("a file");
        }
        disk.write_at("written", 0, &[1]).expect("written");
        for file in 0..2 * OPEN {
            read(file).expect("read");
        }
        let unsynced = |disk: &Directory| disk.files().get("written").map(|open| open.unsynced);
        assert_eq!(unsynced(&disk), Some(true));
        assert!(disk.files().len() <= OPEN);
        disk.sync("written").expect("synced");
        assert_eq!(unsynced(&disk), Some(false));
    }
}
