//! Which files of a process live in memory only: those of a tmpfs or of a hugetlb pool.
//!
//! A file system without a disk has a device number with the major number 0. Some of
//! them have a disk all the same, several layers below, and are mounted somewhere; the
//! kernel's own mounts for shared memory, and detached ones, are in no list.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use super::maps::FileId;

/// The file systems that keep files in memory.
const IN_MEMORY: [&str; 4] = ["tmpfs", "hugetlbfs", "ramfs", "devtmpfs"];

/// The mounts that a process sees: whether files are in memory, by device.
#[derive(Clone, Debug, Default)]
pub struct Mounts(BTreeMap<(u32, u32), bool>);

impl Mounts {
    /// Reads the mounts of process `pid`.
    ///
    /// # Errors
    /// As `open` and `read`.
    pub fn of(pid: u32) -> io::Result<Mounts> {
        let text = fs::read(format!("/proc/{pid}/mountinfo"))?;
        Ok(Mounts::parse(&String::from_utf8_lossy(&text)))
    }

    fn parse(text: &str) -> Mounts {
        Mounts(text.lines().filter_map(mount).collect())
    }

    /// Whether a file lives in memory only.
    #[must_use]
    pub fn is_in_memory(&self, file: FileId) -> bool {
        let listed = self.0.get(&file.device).copied();
        file.device.0 == 0 && listed.unwrap_or(true)
    }
}

/// Reads `36 35 0:24 / /dev/shm rw shared:4 - tmpfs tmpfs rw`.
fn mount(line: &str) -> Option<((u32, u32), bool)> {
    let (major, minor) = line.split(' ').nth(2)?.split_once(':')?;
    let (_, rest) = line.split_once(" - ")?;
    let kind = rest.split(' ').next()?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    Some((device, IN_MEMORY.contains(&kind)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_told_from_layers_on_a_disk() {
        let mounts = Mounts::parse(
            "29 1 0:26 / / rw,relatime - overlay overlay rw,lowerdir=/a\n\
             30 29 0:24 / /dev/shm rw - tmpfs tmpfs rw\n\
             31 29 254:1 / /mnt rw shared:1 - ext4 /dev/vdb rw\nnonsense\n",
        );
        let is_in_memory = |device| mounts.is_in_memory(FileId { device, inode: 9 });
        assert!(is_in_memory((0, 24)));
        assert!(!is_in_memory((0, 26)));
        assert!(!is_in_memory((254, 1)));
        // The kernel's own mount for shared memory.
        assert!(is_in_memory((0, 1)));
        assert!(!Mounts::of(std::process::id()).unwrap().0.is_empty());
    }
}
