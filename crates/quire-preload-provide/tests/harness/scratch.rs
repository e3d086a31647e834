//! A directory for one run, removed after it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The directory; dropping removes it.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a directory, writable by everyone where `open` is set.
    pub fn new(open: bool) -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "quire-test.{}.{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("a scratch directory can be made");
        let mode = if open { 0o777 } else { 0o755 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))
            .expect("the scratch directory is ours");
        Scratch(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the directory of a session in it.
    pub fn session(&self) -> PathBuf {
        let session = self.0.join("session");
        fs::create_dir(&session).expect("the scratch directory is ours");
        session
    }

    /// Copies a file here, for every user to read and run.
    pub fn take_copy(&self, file: &Path) -> PathBuf {
        let copy = self.0.join(file.file_name().expect("a file has a name"));
        fs::copy(file, &copy).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).expect("the copy is ours");
        copy
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
