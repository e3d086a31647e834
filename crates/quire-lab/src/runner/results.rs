//! Where results go as soon as they are there: into memory, and into a file if one is
//! wanted.
//!
//! Every line is written before the next execution begins, so that it is there whatever becomes of
//! this process, and on the disk a second later at most, should the machine fail. To wait for the
//! disk each time would leave the processor's caches cold, and short programs take a tenth longer then.
//! Where a line cannot be written whole, what was written of it is taken away again.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::run::{Execution, Failure, Header, Line, Run, RunError};

/// Why results cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The file cannot be opened.
    #[error("cannot open {}: {error}; name a file that you may write", path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Another process writes it.
    #[error("{} is being written by another run; wait for its end, or name another file", path.display())]
    Busy {
        /// Which.
        path: PathBuf,
    },
    /// It holds something else.
    #[error("{0}; it is left as it is; name another file")]
    Other(#[from] RunError),
    /// The file cannot be written.
    #[error("cannot write {}: {error}; its {kept} executions are kept: make room and go on with --resume {}", path.display(), path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
        /// How many executions it holds.
        kept: usize,
    },
    /// A result cannot be kept.
    #[error("a result cannot be kept: {0}")]
    Value(String),
}

/// How often what was written is brought to the disk.
const SYNCED_EVERY: Duration = Duration::from_secs(1);

/// Results.
#[derive(Debug)]
pub struct Results {
    run: Run,
    file: Option<File>,
    /// When all that was written was on the disk.
    synced: Option<Instant>,
}

impl Results {
    /// Results in memory only.
    #[must_use]
    pub fn in_memory() -> Results {
        Results {
            run: Run::default(),
            file: None,
            synced: None,
        }
    }

    /// Results that are added to a file, which may be new or empty.
    ///
    /// # Errors
    /// When it cannot be written, is being written, or holds something else.
    pub fn in_file(path: &Path) -> Result<Results, ResultsError> {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path);
        let open = |error| ResultsError::Open {
            path: path.to_owned(),
            error,
        };
        let file = opened.map_err(open)?;
        if !lock(&file) {
            let path = path.to_owned();
            return Err(ResultsError::Busy { path });
        }
        let mut results = Results {
            run: Run {
                path: path.to_owned(),
                ..Run::default()
            },
            file: Some(file),
            synced: None,
        };
        if results.end().map_err(open)? > 0 {
            results.run = Run::read(path)?;
            results.drop_half_a_line().map_err(open)?;
        }
        Ok(results)
    }

    /// All that there is.
    #[must_use]
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Whether there is anything yet.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.run.header.format == 0
    }

    /// Begins, begins again, or says what the metrics are that came.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn begin(&mut self, header: Header) -> Result<(), ResultsError> {
        let mut metrics = self.run.header.metrics.clone();
        metrics.extend(header.metrics.clone());
        self.write(&Line::Header(header.clone()))?;
        self.run.header = Header { metrics, ..header };
        Ok(())
    }

    /// Adds an execution.
    ///
    /// # Errors
    /// When it cannot be written, or holds what is no number.
    pub fn add(&mut self, execution: Execution) -> Result<(), ResultsError> {
        let line = Line::Execution(execution.clone());
        let known = self.run.executions.len();
        self.run.add(execution).map_err(ResultsError::Value)?;
        let written = self.write(&line);
        if written.is_err() {
            self.run.executions.truncate(known);
        }
        written
    }

    /// Adds an execution that failed.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn fail(&mut self, failure: Failure) -> Result<(), ResultsError> {
        self.write(&Line::Failure(failure.clone()))?;
        self.run.fail(failure);
        Ok(())
    }

    /// Brings all of it to the disk.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn sync(&mut self) -> Result<(), ResultsError> {
        let synced = self.file.as_ref().map_or(Ok(()), File::sync_data);
        synced.map_err(|error| ResultsError::Write {
            path: self.run.path.clone(),
            error,
            kept: self.run.executions.len(),
        })
    }

    fn write(&mut self, line: &Line) -> Result<(), ResultsError> {
        let text = line
            .text()
            .map_err(|e| ResultsError::Value(e.to_string()))?;
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let start = file.stream_position();
        let written = file.write_all(text.as_bytes());
        let is_due = self
            .synced
            .is_none_or(|then| then.elapsed() >= SYNCED_EVERY);
        let written = match is_due {
            true => written.and_then(|()| file.sync_data()),
            false => written,
        };
        if is_due {
            self.synced = Some(Instant::now());
        }
        written.map_err(|error| {
            if let Ok(start) = start {
                // Where it fails, half a line is left, which reading passes over.
                let _ = file.set_len(start);
                let _ = file.seek(SeekFrom::Start(start));
            }
            ResultsError::Write {
                path: self.run.path.clone(),
                error,
                kept: self.run.executions.len() - usize::from(matches!(line, Line::Execution(_))),
            }
        })
    }

    /// Goes to the end of the file, and says where that is.
    fn end(&mut self) -> io::Result<u64> {
        self.file
            .as_mut()
            .map_or(Ok(0), |file| file.seek(SeekFrom::End(0)))
    }

    /// Takes away what an interruption left of a line.
    fn drop_half_a_line(&mut self) -> io::Result<()> {
        let text = std::fs::read(&self.run.path)?;
        let whole = text
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        if let Some(file) = self.file.as_mut().filter(|_| whole < text.len()) {
            file.set_len(whole as u64)?;
        }
        self.end().map(drop)
    }
}

/// Locks a file. What a run that was killed has started may hold it a moment longer.
fn lock(file: &File) -> bool {
    (0..20).any(|n| {
        std::thread::sleep(Duration::from_millis(if n > 0 { 50 } else { 0 }));
        flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::run::{FORMAT, TIME};

    fn header() -> Header {
        Header {
            format: FORMAT,
            ..Header::default()
        }
    }

    fn execution(order: u64) -> Execution {
        Execution {
            benchmark: "b".into(),
            variant: "v".into(),
            order,
            metrics: [(TIME.into(), vec![1.0])].into(),
            ..Execution::default()
        }
    }

    #[test]
    fn half_a_line_is_taken_away_before_more_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.jsonl");
        let mut results = Results::in_file(&path).unwrap();
        assert!(results.is_new());
        results.begin(header()).unwrap();
        results.add(execution(0)).unwrap();
        results.add(execution(1)).unwrap();
        drop(results);
        let text = fs::read(&path).unwrap();
        for cut in 1..60 {
            fs::write(&path, &text[..text.len() - cut]).unwrap();
            let mut results = Results::in_file(&path).unwrap();
            assert_eq!(results.run().executions.len(), 1);
            results.add(execution(1)).unwrap();
            drop(results);
            assert_eq!(Run::read(&path).unwrap().executions.len(), 2, "{cut}");
        }
    }

    #[test]
    fn a_file_that_is_used_or_is_something_else_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.jsonl");
        let _one = Results::in_file(&path).unwrap();
        assert!(matches!(
            Results::in_file(&path),
            Err(ResultsError::Busy { .. })
        ));
        let other = dir.path().join("notes");
        fs::write(&other, "my notes\n").unwrap();
        let refused = Results::in_file(&other).unwrap_err().to_string();
        assert!(refused.contains("notes:1"), "{refused}");
        assert_eq!(fs::read_to_string(&other).unwrap(), "my notes\n");
    }
}
