//! A disk that is soon full.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::thread::{UnshareFlags, unshare_unsafe};
use tempfile::TempDir;

/// A small tmpfs that only this thread sees, and what it starts: it is gone with them, however
/// they end.
pub struct Small(TempDir);

impl Small {
    /// None where that is not allowed.
    pub fn mount(size: &str) -> Option<Small> {
        // SAFETY: nothing that is open refers to a place in the namespace.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.ok()?;
        let place = TempDir::new().unwrap();
        let path = place.path().to_str()?;
        let size = format!("size={size}");
        let does = |args: &[&str]| {
            let mount = Command::new("mount").args(args).status();
            mount.is_ok_and(|status| status.success())
        };
        let mounted =
            does(&["--make-rprivate", "/"]) && does(&["-t", "tmpfs", "-o", &size, "tmpfs", path]);
        mounted.then_some(Small(place))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Fills all that is left of it, with a file.
    pub fn fill(&self) -> PathBuf {
        let ballast = self.path().join("ballast");
        let mut file = File::create(&ballast).unwrap();
        let filled = std::io::copy(&mut std::io::repeat(1), &mut file);
        assert!(filled.is_err());
        ballast
    }
}

impl Drop for Small {
    /// So that the directory can go, too.
    fn drop(&mut self) {
        let unmount = Command::new("umount").arg("-l").arg(self.0.path()).status();
        assert!(unmount.unwrap().success());
    }
}
