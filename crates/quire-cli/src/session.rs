//! Session directories: where the processes of one `quire run` keep their
//! statistics pages, and where `quire stat` finds them.
//!
//! A directory is named after the user and the process number of the `quire
//! run` that made it, and belongs to nobody else. Pages of processes that are
//! gone stay until that `quire run` has read them.

use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use quire_core::config::{SESSION_PREFIX, SESSION_ROOT};
use quire_core::stat::{ProcessStat, STAT_FILE_PREFIX};
use quire_dsm::attachment::ASKED_PREFIX;
use quire_linux::control::socket_path;
use quire_linux::sysinfo::{StatFileError, process, read_stat_file};
use rustix::fs::Mode;
use rustix::io::Errno;

use crate::failure::{Failure, Outcome};

/// A session directory.
#[derive(Debug)]
pub struct Session {
    dir: PathBuf,
}

/// A statistics page in a session directory.
#[derive(Debug)]
pub struct Entry {
    /// Its file.
    pub path: PathBuf,
    /// What it says, where it could be read.
    pub stat: Result<ProcessStat, StatFileError>,
}

/// A process that is managed now.
#[derive(Debug)]
pub struct Managed {
    /// What its page says.
    pub stat: ProcessStat,
    dir: PathBuf,
}

impl Managed {
    /// Where its control socket is.
    pub fn control(&self) -> PathBuf {
        socket_path(&self.dir, self.stat.pid)
    }
}

impl Entry {
    /// Whether the process that the page belongs to still runs. A page that
    /// cannot be read belongs to whom its name says.
    pub fn is_alive(&self) -> bool {
        match &self.stat {
            Ok(stat) => process::is_alive(stat.pid, stat.start_time),
            Err(_) => self.pid_in_name().and_then(process::start_time).is_some(),
        }
    }

    fn pid_in_name(&self) -> Option<u32> {
        let name = self.path.file_name()?.to_str()?;
        name.strip_prefix(STAT_FILE_PREFIX)?.parse().ok()
    }
}

impl Session {
    /// Makes the directory of this process.
    pub fn create() -> io::Result<Session> {
        let uid = rustix::process::geteuid().as_raw();
        let pid = std::process::id();
        let name = format!("{SESSION_ROOT}/{SESSION_PREFIX}{uid}.{pid}");
        let mut session = Session { dir: name.into() };
        for attempt in 1..=9 {
            match rustix::fs::mkdir(&session.dir, Mode::RWXU) {
                Ok(()) => return Ok(session),
                // An earlier process had our number. What lives on from then
                // keeps its directory.
                Err(Errno::EXIST) => {
                    let gone = session.is_own() && session.sweep();
                    if !gone {
                        let name = format!("{SESSION_ROOT}/{SESSION_PREFIX}{uid}.{pid}.{attempt}");
                        session.dir = name.into();
                    }
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Every session directory that this user may look into.
    pub fn all() -> Vec<Session> {
        let entries = fs::read_dir(SESSION_ROOT).into_iter().flatten().flatten();
        let mut sessions: Vec<Session> = entries
            .filter(|entry| {
                let name = entry.file_name();
                name.to_string_lossy().starts_with(SESSION_PREFIX)
                    && entry.file_type().is_ok_and(|kind| kind.is_dir())
            })
            .map(|entry| Session { dir: entry.path() })
            .collect();
        sessions.sort_by(|a, b| a.dir.cmp(&b.dir));
        sessions
    }

    /// Its path.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The statistics pages in it, by process number.
    pub fn entries(&self) -> Vec<Entry> {
        let entry = |file: DirEntry| Entry {
            stat: read_stat_file(&file.path()),
            path: file.path(),
        };
        let mut entries: Vec<Entry> = self.files(STAT_FILE_PREFIX).map(entry).collect();
        entries.sort_by_key(Entry::pid_in_name);
        entries
    }

    /// The files in it whose names begin so.
    fn files(&self, prefix: &str) -> impl Iterator<Item = DirEntry> {
        let files = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        files.filter(move |file| file.file_name().to_string_lossy().starts_with(prefix))
    }

    /// Whether the directory belongs to this user.
    fn is_own(&self) -> bool {
        let uid = rustix::process::geteuid().as_raw();
        fs::symlink_metadata(&self.dir).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid)
    }

    /// Whether the `quire run` that made the directory still runs, and so
    /// will read what is in it.
    fn is_awaited(&self) -> bool {
        let name = self.dir.file_name().and_then(|name| name.to_str());
        let owner = name
            .and_then(|name| name.strip_prefix(SESSION_PREFIX)?.split('.').nth(1))
            .and_then(|pid| pid.parse().ok());
        owner.and_then(process::start_time).is_some()
    }

    /// Removes what nobody needs any more, of a session of this user whose
    /// `quire run` is gone.
    pub fn tidy(&self) {
        if self.is_own() && !self.is_awaited() {
            self.sweep();
        }
    }

    /// Removes the pages of processes that are gone, and the directory when
    /// it is empty then. Says whether the directory is gone.
    pub fn sweep(&self) -> bool {
        for entry in self.entries() {
            if !entry.is_alive() {
                if let Some(pid) = entry.pid_in_name() {
                    // Not every process had one.
                    let _ = fs::remove_file(socket_path(&self.dir, pid));
                }
                // What cannot be removed keeps the directory, which the next
                // `quire stat` tries again.
                let _ = fs::remove_file(&entry.path);
            }
        }
        // Where `quire run` was killed, nobody has read what programs asked for.
        for note in self.files(ASKED_PREFIX) {
            let _ = fs::remove_file(note.path());
        }
        fs::remove_dir(&self.dir).is_ok()
    }
}

/// The processes that are managed now, by number. What dead ones left is
/// removed on the way.
pub fn managed_processes() -> Vec<Managed> {
    let mut processes = Vec::new();
    for session in Session::all() {
        for entry in session.entries() {
            if entry.is_alive()
                && let Ok(stat) = entry.stat
            {
                let dir = session.dir.clone();
                processes.push(Managed { stat, dir });
            }
        }
        session.tidy();
    }
    processes.sort_by_key(|process| process.stat.pid);
    processes
}

/// The managed process with a number.
///
/// # Errors
/// When it is not managed; the message says why `quire COMMAND` cannot have it.
pub fn managed_process(pid: u32, command: &str) -> Outcome<Managed> {
    let found = managed_processes().into_iter();
    let mut found = found.filter(|process| process.stat.pid == pid);
    found.next().ok_or_else(|| not_managed(pid, command))
}

fn not_managed(pid: u32, command: &str) -> Failure {
    let user = rustix::process::geteuid();
    Failure::bad_usage(match (process::start_time(pid), process::owner(pid)) {
        (None, _) => {
            format!("there is no process {pid}: `quire stat` lists those that are managed")
        }
        (_, Some(owner)) if owner != user.as_raw() && !user.is_root() => {
            format!("process {pid} belongs to another user: try `sudo quire {command} {pid}`")
        }
        _ => format!("process {pid} is not managed: start it with `quire run -- PROGRAM`"),
    })
}
