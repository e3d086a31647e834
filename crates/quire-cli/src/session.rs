//! Session directories: where the processes of one `quire run` keep their
//! statistics pages, and where `quire stat` finds them.
//!
//! A directory is named after the user and the process number of the `quire
//! run` that made it. Pages of processes that are gone stay until that `quire
//! run` has read them.
//!
//! A program may change its user before it executes another one (`su`, `setpriv`).
//! Where the kernel is advised, other users may therefore make files in the directory.
//! They can neither list it nor remove what is not theirs. A page belongs to the user
//! of its process, and only that user and root may read it.
//!
//! Directories are made in `/dev/shm`, or, where that has no room for a page or cannot
//! be written, in the first other place that has ([`places`]).

use std::fmt;
use std::fs::{self, DirEntry};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use quire_attach::pages::ATTACHED_SUFFIX;
use quire_core::config::{SESSION_PREFIX, SESSION_ROOT, Way};
use quire_core::control::CONTROL_FILE_PREFIX;
use quire_core::stat::{ADVICE_SUFFIX, ProcessStat, STAT_FILE_PREFIX, StatPage};
use quire_dsm::attachment::ASKED_PREFIX;
use quire_linux::control::socket_path;
use quire_linux::sysinfo::{StatFileError, process, read_stat_file};
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::failure::{Failure, Outcome};

/// Where directories are made that do not fit into [`SESSION_ROOT`], after the directory
/// that `XDG_RUNTIME_DIR` names.
const LAST_PLACE: &str = "/tmp";
/// Below this each user has the directory that `XDG_RUNTIME_DIR` names.
const RUNTIME_DIRS: &str = "/run/user";
/// Names that are tried where earlier processes had the same number.
const ATTEMPTS: u32 = 9;

/// A session directory.
#[derive(Debug)]
pub struct Session {
    dir: PathBuf,
    /// Open and locked where this process made the directory, which tells others that it
    /// is in use, whether or not they see this process.
    _lock: Option<OwnedFd>,
}

/// Why there is no session directory: what each place refused.
#[derive(Debug)]
pub struct NoSession(pub Vec<(PathBuf, io::Error)>);

impl fmt::Display for NoSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no directory for statistics could be made (")?;
        for (number, (place, error)) in self.0.iter().enumerate() {
            let separator = if number > 0 { "; " } else { "" };
            write!(f, "{separator}{}: {error}", place.display())?;
        }
        f.write_str(")")
    }
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
    /// cannot be read belongs to whom its name says, if that is its owner's process.
    pub fn is_alive(&self) -> bool {
        let is_owners = |pid: &u32| {
            let meta = fs::symlink_metadata(&self.path);
            meta.is_ok_and(|meta| process::owner(*pid) == Some(meta.uid()))
        };
        match &self.stat {
            Ok(stat) => process::is_alive(stat.pid, stat.start_time),
            Err(_) => {
                let pid = self.pid_in_name().filter(is_owners);
                pid.and_then(process::start_time).is_some()
            }
        }
    }

    /// Whether it is another user's, which this user may not read.
    pub fn is_foreign(&self) -> bool {
        let kind = match &self.stat {
            Err(StatFileError::Io(error)) => error.kind(),
            _ => return false,
        };
        kind == io::ErrorKind::PermissionDenied
    }

    /// Whether it was written from outside of its process.
    fn is_attached(&self) -> bool {
        let name = self.path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.ends_with(ATTACHED_SUFFIX))
    }

    /// Whether it was written by the library that advises beside one that provides memory.
    fn is_beside(&self) -> bool {
        let name = self.path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.contains(ADVICE_SUFFIX))
    }

    /// Whether both tell of the same process.
    fn is_same_process(&self, other: &Entry) -> bool {
        let of = |entry: &Entry| {
            let stat = entry.stat.as_ref().ok()?;
            Some((stat.pid, stat.start_time))
        };
        of(self).is_some() && of(self) == of(other)
    }

    fn pid_in_name(&self) -> Option<u32> {
        let name = self.path.file_name()?.to_str()?;
        let number = name.strip_prefix(STAT_FILE_PREFIX)?;
        number.split('.').next()?.parse().ok()
    }
}

impl Session {
    /// Makes the directory of this process, for processes that get their superpages in
    /// this way. What dead ones of this user left is removed before.
    ///
    /// # Errors
    /// When it can be made nowhere.
    pub fn create(way: Way) -> Result<Session, NoSession> {
        Session::all().iter().for_each(Session::tidy);
        Session::create_in(&places(), way)
    }

    /// Makes the directory in the first of these places that can hold a page.
    fn create_in(places: &[PathBuf], way: Way) -> Result<Session, NoSession> {
        let mut refused = Vec::new();
        for place in places {
            match Session::make(place, way) {
                Ok(session) => return Ok(session),
                Err(error) => refused.push((place.clone(), error)),
            }
        }
        Err(NoSession(refused))
    }

    /// Makes the directory of this process in this place.
    fn make(place: &Path, way: Way) -> io::Result<Session> {
        let session = Session::make_named(place)?;
        match session.prepare(way) {
            Ok(lock) => Ok(Session {
                _lock: Some(lock),
                ..session
            }),
            Err(errno) => {
                // Nobody knows it yet, so it is empty.
                let _ = fs::remove_dir(&session.dir);
                Err(errno.into())
            }
        }
    }

    /// Makes the directory under the first name that is free.
    fn make_named(place: &Path) -> io::Result<Session> {
        let uid = rustix::process::geteuid().as_raw();
        let pid = std::process::id();
        let mut session = Session::at(place.join(format!("{SESSION_PREFIX}{uid}.{pid}")));
        for attempt in 1..=ATTEMPTS {
            match rustix::fs::mkdir(&session.dir, Mode::RWXU) {
                Ok(()) => return Ok(session),
                // An earlier process had our number. What lives on from then
                // keeps its directory.
                Err(Errno::EXIST) => {
                    let gone = session.is_own() && session.sweep();
                    if !gone {
                        let name = format!("{SESSION_PREFIX}{uid}.{pid}.{attempt}");
                        session.dir = place.join(name);
                    }
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// The directory at a path.
    fn at(dir: PathBuf) -> Session {
        Session { dir, _lock: None }
    }

    /// Locks the new directory and makes sure that it has room for a page. Where the
    /// kernel is advised, others may make files in it from then on.
    fn prepare(&self, way: Way) -> rustix::io::Result<OwnedFd> {
        let lock = open_dir(&self.dir)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        has_room(&self.dir)?;
        if way == Way::Advise {
            let others = Mode::WGRP | Mode::XGRP | Mode::WOTH | Mode::XOTH;
            rustix::fs::fchmod(&lock, Mode::RWXU | others | Mode::SVTX)?;
        }
        Ok(lock)
    }

    /// Every session directory that this user may look into.
    pub fn all() -> Vec<Session> {
        Session::all_in(&all_places())
    }

    fn all_in(places: &[PathBuf]) -> Vec<Session> {
        let mut sessions: Vec<Session> = places
            .iter()
            .flat_map(|place| fs::read_dir(place).into_iter().flatten().flatten())
            .filter(|entry| {
                let name = entry.file_name();
                name.to_string_lossy().starts_with(SESSION_PREFIX)
                    && entry.file_type().is_ok_and(|kind| kind.is_dir())
            })
            .map(|entry| Session::at(entry.path()))
            .collect();
        sessions.sort_by(|a, b| a.dir.cmp(&b.dir));
        sessions
    }

    /// Its path.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What is told of each process, by its number.
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries: Vec<Entry> = Vec::new();
        // A process of which two libraries tell is one.
        let (advised, mut told): (Vec<Entry>, _) =
            self.pages().into_iter().partition(Entry::is_beside);
        for page in advised {
            let same = told.iter_mut().find(|other| other.is_same_process(&page));
            match (same, page.stat) {
                (Some(Entry { stat: Ok(stat), .. }), Ok(advised)) => stat.take_in(advised),
                (_, stat) => entries.push(Entry { stat, ..page }),
            }
        }
        entries.extend(told);
        entries.sort_by_key(Entry::pid_in_name);
        entries
    }

    /// The statistics pages in it, by process number.
    fn pages(&self) -> Vec<Entry> {
        let entry = |file: DirEntry| Entry {
            stat: read(&file),
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
        owner.and_then(process::start_time).is_some() || self.is_locked()
    }

    /// Whether a `quire run` has it open, which may be in another container.
    fn is_locked(&self) -> bool {
        let locked = open_dir(&self.dir)
            .and_then(|dir| rustix::fs::flock(&dir, FlockOperation::NonBlockingLockShared));
        locked == Err(Errno::WOULDBLOCK)
    }

    /// Removes what nobody needs any more, of a session of this user whose
    /// `quire run` is gone. Without `/proc` nobody knows who is.
    pub fn tidy(&self) {
        let knows = || process::start_time(std::process::id()).is_some();
        if self.is_own() && knows() && !self.is_awaited() {
            self.sweep();
        }
    }

    /// Removes the pages of processes that are gone, and the directory when
    /// it is empty then. Says whether the directory is gone.
    pub fn sweep(&self) -> bool {
        let mut is_used = false;
        for entry in self.pages() {
            // From outside, the owner of the directory wrote a page, and it is gone or has ended its work.
            if entry.is_alive() && !entry.is_attached() {
                is_used = true;
            } else {
                if let Some(pid) = entry.pid_in_name() {
                    // Not every process had one.
                    let _ = fs::remove_file(socket_path(&self.dir, pid));
                }
                // What cannot be removed keeps the directory, which the next
                // `quire stat` tries again.
                let _ = fs::remove_file(&entry.path);
            }
        }
        // Without a page nobody finds the socket: a program may make sockets, but no files of a page's size.
        for socket in self.files(CONTROL_FILE_PREFIX) {
            let name = socket.file_name();
            let pid = name
                .to_str()
                .and_then(|name| name.strip_prefix(CONTROL_FILE_PREFIX)?.parse().ok());
            if pid.is_some_and(|pid| process::start_time(pid).is_none()) {
                let _ = fs::remove_file(socket.path());
            }
        }
        // Where `quire run` was killed, nobody has read what programs asked for.
        for note in self.files(ASKED_PREFIX) {
            let _ = fs::remove_file(note.path());
        }
        if !is_used {
            self.remove_foreign();
        }
        fs::remove_dir(&self.dir).is_ok()
    }

    /// Removes what other users made in the directory, which may be anything.
    fn remove_foreign(&self) {
        let user = rustix::process::geteuid().as_raw();
        for file in self.files("") {
            if file.metadata().is_ok_and(|meta| meta.uid() != user) {
                // What cannot be removed keeps the directory.
                let _ = fs::remove_file(file.path());
            }
        }
    }
}

/// Where directories are made, the best place first.
fn places() -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|dir| dir.is_absolute());
    let mut places = vec![PathBuf::from(SESSION_ROOT)];
    places.extend(runtime);
    places.push(LAST_PLACE.into());
    places
}

/// Where directories of all users may be that this user may look into.
fn all_places() -> Vec<PathBuf> {
    let mut all = places();
    if rustix::process::geteuid().is_root() {
        let users = fs::read_dir(RUNTIME_DIRS).into_iter().flatten().flatten();
        all.extend(users.map(|entry| entry.path()));
    }
    all.sort();
    all.dedup();
    all
}

fn open_dir(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

/// Whether a directory has room for a page: makes a file of its size, in the way in which
/// processes make theirs, and removes it.
fn has_room(dir: &Path) -> rustix::io::Result<()> {
    let path = dir.join("room");
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)?;
    let size = size_of::<StatPage>() as u64;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    // Beyond the limit the kernel would end this process by a signal.
    let room = match limit.is_some_and(|most| most < size) {
        true => Err(Errno::FBIG),
        false => rustix::fs::fallocate(file.as_fd(), FallocateFlags::empty(), 0, size),
    };
    rustix::fs::unlink(&path).and(room)
}

/// Reads a page. Of another user's, this one believes nothing, unless it is root: the file
/// may be anybody's, and may change its size while it is read.
fn read(file: &DirEntry) -> Result<ProcessStat, StatFileError> {
    let user = rustix::process::geteuid();
    let meta = fs::symlink_metadata(file.path())?;
    if meta.uid() != user.as_raw() && !user.is_root() {
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        return Err(denied.into());
    }
    read_stat_file(&file.path())
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
        _ => format!(
            "process {pid} is not managed, or has not grown to 64 MiB yet: start it with \
             `quire run -- PROGRAM`"
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(session: &Session) -> u32 {
        fs::metadata(session.dir()).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn others_may_make_files_where_the_kernel_is_advised() {
        let place = tempfile::tempdir().unwrap();
        let places = [place.path().to_owned()];
        let session = Session::create_in(&places, Way::Advise).unwrap();
        assert_eq!(mode(&session), 0o1733);
        assert!(session.entries().is_empty());
        assert!(session.sweep());
        let session = Session::create_in(&places, Way::Provide).unwrap();
        assert_eq!(mode(&session), 0o700);
        assert!(session.sweep());
    }

    #[test]
    fn pages_from_outside_do_not_keep_a_directory() {
        let place = tempfile::tempdir().unwrap();
        let session = Session::create_in(&[place.path().to_owned()], Way::Advise).unwrap();
        let own = std::process::id();
        let page = quire_attach::pages::Pages::new(session.dir())
            .take(own, "test")
            .unwrap();
        assert!(session.entries()[0].is_alive());
        assert!(session.sweep(), "attach was killed");
        drop(page);
    }

    #[test]
    fn the_next_place_is_taken_where_one_cannot_be_had() {
        let place = tempfile::tempdir().unwrap();
        // Root may write everywhere, but not below a file.
        let file = place.path().join("file");
        fs::write(&file, "").unwrap();
        let places = [
            file.clone(),
            place.path().join("absent"),
            place.path().into(),
        ];
        let session = Session::create_in(&places, Way::Advise).unwrap();
        assert_eq!(session.dir().parent(), Some(place.path()));
        let found = Session::all_in(&places);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].dir(), session.dir());
        let refused = Session::create_in(&places[..2], Way::Advise).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("file: Not a directory"), "{text}");
        assert!(text.contains("absent: No such file"), "{text}");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_session_whose_run_was_killed_is_cleared() {
        let place = tempfile::tempdir().unwrap();
        // No process has this number.
        let left = place.path().join(format!(
            "{SESSION_PREFIX}{}.999999999",
            rustix::process::geteuid().as_raw()
        ));
        fs::create_dir(&left).unwrap();
        fs::write(left.join("stat.999999998"), "").unwrap();
        let session = Session::at(left.clone());
        let lock = session.prepare(Way::Advise).unwrap();
        session.tidy();
        assert!(left.exists(), "somebody has it open");
        drop(lock);
        session.tidy();
        assert!(!left.exists());
    }

    #[test]
    fn what_others_may_not_read_is_foreign() {
        let entry = |stat| Entry {
            path: "/s/stat.7.1000".into(),
            stat,
        };
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let foreign = entry(Err(denied.into()));
        assert!(foreign.is_foreign());
        assert_eq!(foreign.pid_in_name(), Some(7));
        let gone = io::Error::from(io::ErrorKind::NotFound);
        assert!(!entry(Err(gone.into())).is_foreign());
    }
}
