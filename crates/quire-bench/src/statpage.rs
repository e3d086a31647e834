//! Finds the statistics page that a managed process keeps.

use std::path::{Path, PathBuf};

use quire_core::config::ENV_SESSION;
use quire_core::stat::{ProcessStat, STAT_FILE_PREFIX};

use crate::memory::MappedStatPage;

/// The session directory of this process, if a variant gave it one.
pub fn session() -> Option<PathBuf> {
    std::env::var_os(ENV_SESSION).map(PathBuf::from)
}

/// What every statistics page in `session` says, also of processes that have
/// ended.
pub fn all(session: &Path) -> Vec<ProcessStat> {
    let pages = maps(session);
    pages.filter_map(|map| map.page().read().ok()).collect()
}

fn maps(session: &Path) -> impl Iterator<Item = MappedStatPage> {
    let entries = std::fs::read_dir(session).into_iter().flatten();
    entries
        .filter_map(Result::ok)
        .filter(|e| {
            e.file_name()
                .to_string_lossy()
                .starts_with(STAT_FILE_PREFIX)
        })
        .filter_map(|e| MappedStatPage::open(&e.path()).ok())
}

/// The statistics page of process `pid`, if it keeps one in `session`.
pub fn open(session: &Path, pid: u32) -> Option<MappedStatPage> {
    maps(session).find(|map| map.page().read().is_ok_and(|stat| stat.pid == pid))
}

/// What that page says.
pub fn read(session: &Path, pid: u32) -> Option<ProcessStat> {
    open(session, pid)?.page().read().ok()
}
