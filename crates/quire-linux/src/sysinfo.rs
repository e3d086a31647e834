//! What the machine offers and how it stands: readers of `/proc` and `/sys`,
//! and probes that ask the kernel whether a facility can be had.
//!
//! Nothing here changes the machine. The manager reads memory and pressure
//! from here, `quire stat` the state of the machine and of managed processes,
//! and `quire doctor` runs every probe.

pub mod accesses;
pub mod blocks;
pub mod caches;
pub mod cgroup;
pub mod check;
pub mod frame_checks;
pub mod frame_kinds;
pub mod manager_checks;
pub mod maps;
pub mod memory;
pub mod mounts;
pub mod page_sizes;
pub mod process;
pub mod signals;
pub mod stat_file;
pub mod system_checks;
pub mod thp;
pub mod thp_checks;

pub use blocks::FreeBlocks;
pub use cgroup::MemoryGroup;
pub use check::{Check, Need, Status, frames_status, policy_status, run_checks};
pub use memory::{MemInfo, Psi, PsiLine, buddyinfo, max_map_count, meminfo, psi_memory};
pub use process::{Identity, own_identity};
pub use stat_file::{StatFileError, read_holding, read_stat_file};
pub use thp_checks::advised_small_folios;

use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// The text of a small file of `/proc` or `/sys`, which does not say how long it
/// is: read at once, and not in growing pieces. The C library is left out: threads
/// that it does not know read such files, too.
fn read_small(path: impl AsRef<Path>) -> io::Result<String> {
    const USUAL: usize = 4 << 10;
    let how = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path.as_ref(), how, Mode::empty())?;
    let mut text = Vec::with_capacity(USUAL);
    loop {
        text.reserve(USUAL);
        match rustix::io::read(&file, rustix::buffer::spare_capacity(&mut text)) {
            Ok(0) => break,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    String::from_utf8(text).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// The names of what a directory holds; none where it cannot be read. Without the C library, which allocates for that
/// by the program's allocator.
pub(crate) fn names_in(directory: &Path) -> Vec<OsString> {
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = rustix::fs::open(directory, how, Mode::empty()) else {
        return Vec::new();
    };
    let mut buffer = [const { MaybeUninit::uninit() }; 2048];
    let mut entries = rustix::fs::RawDir::new(&directory, &mut buffer);
    let mut names = Vec::new();
    while let Some(Ok(entry)) = entries.next() {
        names.push(OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
    }
    names
}

/// What the kernel says of a thread: `self` is the first one, `thread-self` the calling one.
pub(crate) fn thread_status(thread: &str) -> Option<String> {
    read_small(format!("/proc/{thread}/status")).ok()
}

/// The text of a small file of `/proc` or `/sys` without surrounding white
/// space; nothing where it cannot be read.
fn read_trimmed(path: impl AsRef<Path>) -> Option<String> {
    let text = read_small(path).ok()?;
    Some(text.trim().to_owned())
}

/// The number that a small file of `/proc` or `/sys` holds.
fn read_number<T: std::str::FromStr>(path: impl AsRef<Path>) -> Option<T> {
    read_trimmed(path)?.parse().ok()
}

/// The choice in brackets of a file such as `always [madvise] never`.
fn bracketed(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(choice, _)| choice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_word_is_found() {
        assert_eq!(bracketed("always [madvise] never"), Some("madvise"));
        assert_eq!(bracketed("always madvise"), None);
    }
}
