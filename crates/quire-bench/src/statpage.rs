//! Finds the statistics page that a managed process keeps.

use std::path::{Path, PathBuf};

use quire_core::config::ENV_SESSION;
use quire_core::stat::{ProcessStat, STAT_FILE_PREFIX};

use crate::memory::MappedStatPage;

/// The session directory of this process, if a variant gave it one.
pub fn session() -> Option<PathBuf> {
    std::env::var_os(ENV_SESSION).map(PathBuf::from)
}

/// The statistics page of process `pid`, if it keeps one in `session`.
pub fn open(session: &Path, pid: u32) -> Option<MappedStatPage> {
    let entries = std::fs::read_dir(session).ok()?;
    entries
        .filter_map(Result::ok)
        .filter(|e| {
            e.file_name()
                .to_string_lossy()
                .starts_with(STAT_FILE_PREFIX)
        })
        .filter_map(|e| MappedStatPage::open(&e.path()).ok())
        .find(|map| map.page().read().is_ok_and(|stat| stat.pid == pid))
}

/// What that page says.
pub fn read(session: &Path, pid: u32) -> Option<ProcessStat> {
    open(session, pid)?.page().read().ok()
}
