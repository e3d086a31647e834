//! Finds the statistics page that a managed process keeps.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quire_core::config::ENV_SESSION;
use quire_core::stat::{ProcessStat, STAT_FILE_PREFIX};

use crate::memory::MappedStatPage;

/// The session directory of this process, if a variant gave it one.
pub fn session() -> Option<PathBuf> {
    std::env::var_os(ENV_SESSION).map(PathBuf::from)
}

/// What the statistics page of process `pid` says, if it keeps one in
/// `session`.
pub fn read(session: &Path, pid: u32) -> Option<ProcessStat> {
    let entries = std::fs::read_dir(session).ok()?;
    entries
        .filter_map(Result::ok)
        .filter(|e| {
            e.file_name()
                .to_string_lossy()
                .starts_with(STAT_FILE_PREFIX)
        })
        .filter_map(|e| MappedStatPage::open(&e.path()).ok()?.page().read().ok())
        .find(|stat| stat.pid == pid)
}

/// Waits until `done` holds of the statistics of process `pid`, at most
/// `limit`. Returns the last statistics.
pub fn wait(
    session: &Path,
    pid: u32,
    limit: Duration,
    done: impl Fn(&ProcessStat) -> bool,
) -> Option<ProcessStat> {
    let start = Instant::now();
    loop {
        let stat = read(session, pid);
        if stat.as_ref().is_none_or(&done) || start.elapsed() > limit {
            return stat;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
