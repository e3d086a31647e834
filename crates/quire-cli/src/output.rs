//! A file that a command writes at its end.
//!
//! It is made beside its place before the work begins, so that a bad path costs nothing,
//! and takes its place when it is whole, so that a full disk does not cost what was there.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Outcome};

/// A file that is going to be written.
#[derive(Debug)]
pub struct Output {
    file: File,
    path: PathBuf,
    /// Where it is until it is whole; nothing for pipes and devices, which have nothing to
    /// lose.
    beside: Option<PathBuf>,
}

impl Output {
    /// Makes the file.
    pub fn create(path: &Path) -> Outcome<Output> {
        let is_device = path.exists() && !path.is_file();
        let beside = (!is_device).then(|| {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".{}.part", std::process::id()));
            PathBuf::from(name)
        });
        let opened = match &beside {
            Some(beside) => File::create(beside),
            None => File::options().write(true).open(path),
        };
        Ok(Output {
            file: opened.map_err(|error| refused(path, &error))?,
            path: path.to_owned(),
            beside,
        })
    }

    /// Writes it, and puts it into its place.
    pub fn write(mut self, text: &str) -> Outcome<()> {
        let written = self.file.write_all(text.as_bytes());
        let placed = written.and_then(|()| match &self.beside {
            Some(beside) => fs::rename(beside, &self.path),
            None => Ok(()),
        });
        placed.map_err(|error| refused(&self.path, &error))?;
        self.beside = None;
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(beside) = &self.beside {
            // What cannot be removed does no harm.
            let _ = fs::remove_file(beside);
        }
    }
}

fn refused(path: &Path, error: &io::Error) -> Failure {
    let path = path.display();
    Failure::bad_usage(format!(
        "cannot write {path}: {error}; name a file in a directory that you may write to"
    ))
}
