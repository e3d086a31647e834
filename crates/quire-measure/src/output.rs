//! A file that a command writes at its end.
//!
//! It is made beside its place before the work begins, so that a bad path costs nothing,
//! and takes its place when it is whole, so that a full disk does not cost what was there.
//! Links are followed, and a file that is replaced keeps its permissions. What has nothing to
//! lose (pipes and devices), and what a program has opened already (`/dev/stdout`), is written
//! to as it is; so is a file of which no other one of the same owner may be made beside it.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::failure::{Failure, Outcome};

/// How many files this process has made beside others.
static MADE: AtomicU32 = AtomicU32::new(0);

/// So many links are followed, one after the other.
const MOST_LINKS: usize = 40;

/// A file that is going to be written.
#[derive(Debug)]
pub struct Output {
    file: File,
    /// What the user calls it.
    path: PathBuf,
    /// Nothing for what is written to as it is.
    beside: Option<Beside>,
}

/// Where a file is until it is whole.
#[derive(Debug)]
struct Beside {
    at: PathBuf,
    /// Where it goes then.
    place: PathBuf,
    /// What is replaced.
    replaced: Option<Metadata>,
}

impl Output {
    /// Makes the file.
    pub fn create(path: &Path) -> Outcome<Output> {
        Output::make(path).map_err(|error| refused(path, &error))
    }

    /// The same, where the error is told otherwise.
    pub fn make(path: &Path) -> io::Result<Output> {
        let (file, beside) = open(path)?;
        Ok(Output {
            file,
            path: path.to_owned(),
            beside,
        })
    }

    /// The file, to be written to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Writes it, and puts it into its place.
    pub fn write(mut self, text: &str) -> Outcome<()> {
        let written = self.file.write_all(text.as_bytes());
        let placed = written.and_then(|()| self.take_place());
        placed.map_err(|error| refused(&self.path, &error))
    }

    /// It is whole: it goes to its place.
    pub fn finish(mut self) -> io::Result<()> {
        self.take_place()
    }

    fn take_place(&mut self) -> io::Result<()> {
        self.beside.as_ref().map_or(Ok(()), Beside::take_place)?;
        self.beside = None;
        Ok(())
    }
}

impl Beside {
    /// Makes it, for what is to be at a place and may replace what is there; `None` where that
    /// cannot be.
    fn make(place: PathBuf, replaced: Option<Metadata>) -> io::Result<Option<(File, Beside)>> {
        let (process, number) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let at = place.with_file_name(format!(".quire-{process}-{number}.part"));
        // Nobody reads there what he may not read when it is whole.
        let mode = if replaced.is_some() { 0o600 } else { 0o666 };
        let mut options = File::options();
        let made = options.write(true).create(true).truncate(true).mode(mode);
        let file = match (made.open(&at), &replaced) {
            (Err(error), Some(_)) if error.kind() == ErrorKind::PermissionDenied => {
                return Ok(None);
            }
            (made, _) => made?,
        };
        let own = file.metadata()?;
        if let Some(replaced) = &replaced {
            let owner = (replaced.uid(), replaced.gid());
            if (own.uid(), own.gid()) != owner
                && fchown(&file, Some(owner.0), Some(owner.1)).is_err()
            {
                fs::remove_file(&at)?;
                return Ok(None);
            }
        }
        let beside = Beside {
            at,
            place,
            replaced,
        };
        Ok(Some((file, beside)))
    }

    fn take_place(&self) -> io::Result<()> {
        if let Some(replaced) = &self.replaced {
            fs::set_permissions(&self.at, replaced.permissions())?;
        }
        fs::rename(&self.at, &self.place)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(Beside { at, .. }) = &self.beside {
            // What cannot be removed does no harm.
            let _ = fs::remove_file(at);
        }
    }
}

/// A file that can be written to, and where it is made if not at its place.
fn open(path: &Path) -> io::Result<(File, Option<Beside>)> {
    let there = match fs::metadata(path) {
        Ok(there) => Some(there),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if there.as_ref().is_some_and(|there| !there.is_file()) {
        return Ok((File::options().write(true).open(path)?, None));
    }
    if let Some(place) = place(path)? {
        if there.is_some() {
            // Who may not write to it may not replace it, either.
            File::options().write(true).open(&place)?;
        }
        if let Some((file, beside)) = Beside::make(place, there)? {
            return Ok((file, Some(beside)));
        }
    }
    Ok((File::create(path)?, None))
}

/// Where a file is, or is going to be, behind all links; nothing for what is open already.
fn place(path: &Path) -> io::Result<Option<PathBuf>> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.canonicalize()?,
            _ => PathBuf::from(".").canonicalize()?,
        };
        let name = path.file_name();
        let name = name.ok_or_else(|| io::Error::from(ErrorKind::IsADirectory))?;
        let whole = directory.join(name);
        if directory.starts_with("/proc") {
            return Ok(None);
        }
        match fs::read_link(&whole) {
            Ok(target) => path = directory.join(target),
            Err(_) => return Ok(Some(whole)),
        }
    }
    Err(io::Error::other("too many links"))
}

fn refused(path: &Path, error: &io::Error) -> Failure {
    let path = path.display();
    Failure::bad_usage(format!(
        "cannot write {path}: {error}; name a file in a directory that you may write to"
    ))
}
