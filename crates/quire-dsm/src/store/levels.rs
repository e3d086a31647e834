//! The directory of a store is made, with those above it that are missing.

use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Makes a directory, durably, where it is missing. Only its owner may look into what is
/// made: rights to objects would mean nothing where anybody can read the files.
///
/// # Errors
/// What the disk said.
pub(super) fn make_directory(directory: &Path) -> io::Result<()> {
    make_levels(directory, &mut |parent| File::open(parent)?.sync_all())
}

/// The same; the names in a directory are made durable by `sync`. Each level is durable
/// before the next one is made in it, so where that was cut off, an empty directory is all
/// that may not be.
pub(super) fn make_levels(
    directory: &Path,
    sync: &mut dyn FnMut(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let levels = directory.ancestors();
    // Nothing is made where a path goes up again: that is there with the level before it.
    let mut missing: Vec<&Path> = levels
        .take_while(|level| !level.as_os_str().is_empty() && !level.is_dir())
        .filter(|level| level.file_name().is_some())
        .collect();
    let there = missing.last().map_or(Some(directory), |top| top.parent());
    if let Some(there) = there.filter(|there| is_empty(there)) {
        match sync(&parent(there)?) {
            // Who may not read the directory above has not made this one.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
            other => other?,
        }
    }
    while let Some(level) = missing.pop() {
        match DirBuilder::new().mode(0o700).create(level) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && level.is_dir() => {}
            other => other?,
        }
        sync(&parent(level)?)?;
    }
    Ok(())
}

/// Whether a directory is known to be empty.
fn is_empty(directory: &Path) -> bool {
    let mut found = std::fs::read_dir(directory).into_iter().flatten();
    found.next().is_none() && directory.is_dir()
}

/// The directory in which one is.
fn parent(directory: &Path) -> io::Result<PathBuf> {
    let mut path = directory.canonicalize()?;
    path.pop();
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a directory below another one; the directories, relative to that, whose names
    /// were synced, in order.
    fn synced(below: &Path, directory: &str) -> Vec<String> {
        let below = below.canonicalize().expect("a directory");
        let mut synced = Vec::new();
        make_levels(&below.join(directory), &mut |parent| {
            let parent = parent.strip_prefix(&below).map(Path::to_path_buf);
            synced.extend(parent.map(|parent| parent.display().to_string()));
            Ok(())
        })
        .expect("directories");
        synced
    }

    #[test]
    fn the_names_of_all_levels_are_synced() {
        let place = tempfile::tempdir().expect("a directory");
        std::fs::write(place.path().join("letter"), "dear").expect("a file");
        assert_eq!(synced(place.path(), "a/b/c"), ["", "a", "a/b"]);
        // What may have been made a moment ago, by a process that was killed.
        assert_eq!(synced(place.path(), "a/b/c"), ["a/b"]);
        assert_eq!(
            synced(place.path(), "a/b/c/d/../e"),
            ["a/b", "a/b/c", "a/b/c"]
        );
        std::fs::write(place.path().join("a/b/c/letter"), "dear").expect("a file");
        assert_eq!(synced(place.path(), "a/b/c"), [""; 0]);
    }

    #[test]
    fn a_failed_sync_is_an_error_and_is_tried_again() {
        let place = tempfile::tempdir().expect("a directory");
        let directory = place.path().join("a/b");
        for _ in 0..2 {
            let mut fails = |_: &Path| Err(io::Error::other("a sector is gone"));
            assert!(make_levels(&directory, &mut fails).is_err());
            assert!(!directory.exists());
        }
    }
}
