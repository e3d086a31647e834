//! The file that says what settings were before they were changed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use quire_linux::sysinfo::process;
use serde::{Deserialize, Serialize};

/// A file of the kernel that was changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Change {
    /// Which.
    pub path: PathBuf,
    /// What it held.
    pub before: String,
    /// What it holds meanwhile.
    pub during: String,
}

/// What a run has changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct State {
    /// The run.
    pub pid: u32,
    /// When its process began, because numbers are used again.
    pub start: u64,
    /// In this order.
    pub changes: Vec<Change>,
}

impl State {
    pub fn of_this_process(changes: Vec<Change>) -> State {
        let pid = std::process::id();
        State {
            pid,
            start: process::start_time(pid).unwrap_or(0),
            changes,
        }
    }

    /// The process that made it, where that is another one and still runs.
    pub fn other_that_runs(&self) -> Option<u32> {
        let other = self.pid != std::process::id();
        (other && process::is_alive(self.pid, self.start)).then_some(self.pid)
    }

    /// Reads it; `None` where there is none.
    pub fn read(path: &Path) -> Result<Option<State>, String> {
        match fs::read_to_string(path) {
            Ok(text) => serde_json::from_str(&text)
                .map(Some)
                .map_err(|e| e.to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Writes it, whole or not at all.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let new = path.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(serde_json::to_string(self)?.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    }
}
