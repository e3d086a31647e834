//! Which objects the program uses by descriptors alone: an object that it has opened stays until it
//! has closed all descriptors of it, as the kernel's shared memory does.
//!
//! Nobody is told when a program closes a descriptor, which it may do in a signal handler, by
//! replacing it, or many at once. So it is looked for: before anything depends on it, and from time
//! to time while an object is open for nothing else. Here the library's thread looks, at the table
//! of the program's first thread.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::ages::Entry;
use crate::posix;
use crate::state::FileId;

/// Files of objects that the program has been given.
#[derive(Debug, Default)]
pub struct Uses {
    files: BTreeMap<Entry, BTreeSet<FileId>>,
}

impl Uses {
    /// The program has a descriptor of an object.
    pub fn add(&mut self, entry: Entry, file: FileId) {
        self.files.entry(entry).or_default().insert(file);
    }

    /// Files of an object do not count any more.
    pub fn take(&mut self, entry: Entry) -> BTreeSet<FileId> {
        self.files.remove(&entry).unwrap_or_default()
    }

    /// They count again.
    pub fn put(&mut self, entry: Entry, files: BTreeSet<FileId>) {
        self.files.insert(entry, files);
    }

    /// Whether the program has a descriptor of an object, as far as is known.
    pub fn has(&self, entry: Entry) -> bool {
        self.files.contains_key(&entry)
    }

    /// Looks which descriptors are there. Where the system does not tell, all are.
    pub fn look(&mut self) {
        if self.files.is_empty() {
            return;
        }
        if let Some(open) = open_files() {
            self.keep(&open);
        }
    }

    fn keep(&mut self, open: &BTreeSet<FileId>) {
        for files in self.files.values_mut() {
            files.retain(|file| open.contains(file));
        }
        self.files.retain(|_, files| !files.is_empty());
    }
}

/// Where the system shows the program's descriptors, whichever thread asks.
const DESCRIPTORS: &str = "/proc/self/fd";

/// The files of objects of which the program has descriptors, if the system tells.
pub fn open_files() -> Option<BTreeSet<FileId>> {
    let all = descriptors()?;
    Some(all.filter_map(|path| file_of(&path)).collect())
}

/// A name of a descriptor that the program has of a file.
pub fn name_of(file: FileId) -> Option<impl AsRef<Path>> {
    descriptors()?.find(|path| file_of(path) == Some(file))
}

/// The descriptors that the program has of files.
pub fn descriptors_of(files: &BTreeSet<FileId>) -> Vec<c_int> {
    let all = descriptors().into_iter().flatten();
    let theirs = all.filter(|path| file_of(path).is_some_and(|file| files.contains(&file)));
    let number = |path: &Path| path.file_name()?.to_str()?.parse().ok();
    theirs.filter_map(|path| number(path.as_ref())).collect()
}

fn descriptors() -> Option<impl Iterator<Item = impl AsRef<Path>>> {
    let all = fs::read_dir(DESCRIPTORS).ok()?;
    Some(all.flatten().map(|found| found.path()))
}

/// Which object's file it is, if it is one.
fn file_of(descriptor: impl AsRef<Path>) -> Option<FileId> {
    let name = fs::read_link(descriptor.as_ref()).ok()?;
    let is_ours = name.as_os_str().as_bytes() == posix::SHOWN;
    let about = fs::metadata(descriptor).ok().filter(|_| is_ours)?;
    Some((about.dev(), about.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ages::entry;

    #[test]
    fn an_object_is_used_as_long_as_one_of_its_files_is_open() {
        let mut uses = Uses::default();
        let (old, new) = (entry(0, 0), entry(0, 1));
        for (entry, file) in [(old, 10), (old, 11), (new, 12)] {
            uses.add(entry, (1, file));
        }
        uses.keep(&BTreeSet::from([(1, 11), (1, 13)]));
        assert!(uses.has(old) && !uses.has(new));
        uses.keep(&BTreeSet::from([(2, 11)]));
        assert!(!uses.has(old));
    }
}
