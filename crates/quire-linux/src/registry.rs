//! The registry of a user's managed processes: their statistics pages, in the
//! session directories. Others can neither read nor write there, and what lies
//! in directories that belong to somebody else is left alone.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use quire_core::config::{SESSION_PREFIX, SESSION_ROOT};
use quire_core::registry::Holding;
use quire_core::stat::STAT_FILE_PREFIX;

use crate::control::socket_path;
use crate::sysinfo::{names_in, process, read_holding};

/// What the other managed processes of this user hold, and where they can be
/// asked for it. `session` is this process's own directory, `pid` its number.
/// Pages of processes that are gone, and files that are no pages, are skipped.
#[must_use]
pub fn others(session: &str, pid: u32) -> Vec<(Holding, PathBuf)> {
    let mut holdings = Vec::new();
    for directory in directories(Path::new(session)) {
        for name in names_in(&directory) {
            let number =
                (name.to_str()).and_then(|name| name.strip_prefix(STAT_FILE_PREFIX)?.parse().ok());
            let Some(number) = number.filter(|number| *number != pid) else {
                continue;
            };
            let Ok((holding, start)) = read_holding(&directory.join(&name)) else {
                continue;
            };
            if holding.pid == number && process::is_alive(number, start) {
                holdings.push((holding, socket_path(&directory, number)));
            }
        }
    }
    holdings
}

/// The session directories of this user.
fn directories(own: &Path) -> Vec<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let prefix = format!("{SESSION_PREFIX}{user}.");
    let root = Path::new(SESSION_ROOT);
    let mut directories: Vec<PathBuf> = names_in(root)
        .into_iter()
        .filter(|name| name.to_string_lossy().starts_with(&prefix))
        .map(|name| root.join(name))
        .filter(|path| {
            fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir() && meta.uid() == user)
        })
        .collect();
    if !directories.iter().any(|path| path == own) {
        directories.push(own.to_owned());
    }
    directories
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use quire_core::config::Policy;
    use quire_core::stat::{Counter, StatPage};
    use quire_core::units::Bytes;

    use super::*;

    fn write_page(directory: &Path, name: &str, pid: u32, start: u64) {
        let page = Box::new(StatPage::default());
        page.identify(pid, start, "name", Policy::Reserve);
        page.set(Counter::Reserved, 4096);
        page.set_oldest(17, 5);
        // SAFETY: the page is alive and consists of initialised integers only,
        // without padding (all its fields are aligned to their offsets).
        let bytes = unsafe {
            std::slice::from_raw_parts(ptr::from_ref(&*page).cast::<u8>(), size_of::<StatPage>())
        };
        fs::write(directory.join(name), bytes).unwrap();
    }

    #[test]
    fn only_pages_of_living_processes_count() {
        let dir = tempfile::tempdir().unwrap();
        let me = std::process::id();
        let start = process::start_time(me).unwrap();
        write_page(dir.path(), &format!("stat.{me}"), me, start);
        write_page(dir.path(), "stat.1", 1, process::start_time(1).unwrap() + 1);
        write_page(dir.path(), "stat.2", me, start);
        fs::write(dir.path().join("stat.3"), b"half a page").unwrap();
        fs::write(dir.path().join("other"), b"").unwrap();
        let session = dir.path().to_str().unwrap();
        let here = |found: Vec<(Holding, PathBuf)>| -> Vec<(Holding, PathBuf)> {
            let found = found.into_iter();
            found
                .filter(|(_, path)| path.starts_with(dir.path()))
                .collect()
        };
        assert_eq!(here(others(session, me)), []);
        let holding = Holding {
            pid: me,
            reserved: Bytes(4096),
            oldest_ms: 17,
            group: 5,
        };
        let control = dir.path().join(format!("control.{me}"));
        assert_eq!(here(others(session, me + 1)), [(holding, control)]);
    }
}
