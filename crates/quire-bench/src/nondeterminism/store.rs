//! The file of the results. Each execution is written as soon as it has ended, so that
//! an interruption loses nothing but the one that was going on.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use quire_lab::run::{Header, Line, Run};

/// How the first line begins.
const BEGIN: &str = "{\"kind\":\"header\"";

/// Results in memory and in their file.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    file: File,
    run: Run,
    done: BTreeSet<u64>,
}

impl Store {
    /// Opens the file, or makes it. Results that are there have to be of the same
    /// experiment.
    ///
    /// # Errors
    /// A line with the remedy.
    pub fn open(path: &Path, header: Header) -> Result<Store, String> {
        let failed = |what: &str, error| format!("{what} {}: {error}", path.display());
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            let path = path.display();
            return Err(format!("{path} is no file: name one with -o"));
        }
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed("reading", error)),
        };
        let run = before(&text, &header).map_err(|why| {
            let path = path.display();
            format!("{path}: {why}: name another file with -o, or remove this one")
        })?;
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).map_err(|error| failed("making the directory of", error))?;
        }
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(false).write(true);
        let mut file = options
            .open(path)
            .map_err(|error| failed("opening", error))?;
        // What an interruption left of a line goes.
        let end = text.rfind('\n').map_or(0, |at| at as u64 + 1);
        file.set_len(end)
            .and_then(|()| file.seek(SeekFrom::End(0)))
            .map_err(|error| failed("opening", error))?;
        let mut store = Store {
            path: path.to_owned(),
            file,
            done: run.executions.iter().map(|e| e.order).collect(),
            run,
        };
        store
            .add(Line::Header(header))
            .map_err(|error| format!("{error:#}"))?;
        Ok(store)
    }

    /// Whether there is an execution of this place. Where one failed, there is none.
    pub fn has(&self, order: u64) -> bool {
        self.done.contains(&order)
    }

    /// What is there so far.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Adds a line.
    ///
    /// # Errors
    /// When it cannot be written whole, or is none.
    pub fn add(&mut self, line: Line) -> Result<()> {
        let text = line.text().context("a result is no number")?;
        self.file
            .write_all(text.as_bytes())
            .and_then(|()| self.file.sync_data())
            .with_context(|| format!("writing {}", self.path.display()))?;
        match line {
            Line::Header(header) => {
                let mut metrics = std::mem::take(&mut self.run.header.metrics);
                metrics.extend(header.metrics.clone());
                self.run.header = Header { metrics, ..header };
            }
            Line::Failure(failure) => self.run.failures.push(failure),
            Line::Execution(execution) => {
                self.done.insert(execution.order);
                self.run.add(execution).map_err(anyhow::Error::msg)?;
            }
        }
        Ok(())
    }
}

/// What was measured before.
fn before(text: &str, header: &Header) -> Result<Run, String> {
    // An interruption may come in the first line, too.
    let begun = text.starts_with(BEGIN) || BEGIN.starts_with(text);
    if begun && !text.contains('\n') {
        return Ok(Run::default());
    }
    let run = Run::parse(text).map_err(|(line, why)| format!("line {line}: {why}"))?;
    if run.header.experiment != header.experiment {
        return Err("it holds the results of another experiment".to_owned());
    }
    Ok(run)
}

#[cfg(test)]
mod tests {
    use quire_lab::run::{Execution, FORMAT, Failure};

    use super::*;

    fn header(seed: u64) -> Header {
        Header {
            format: FORMAT,
            experiment: serde_json::json!({ "seed": seed }),
            ..Header::default()
        }
    }

    fn execution(order: u64) -> Line {
        Line::Execution(Execution {
            order,
            metrics: [("time".into(), vec![1.5, 2.5])].into(),
            ..Execution::default()
        })
    }

    #[test]
    fn what_was_added_is_there_wherever_it_was_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/run.jsonl");
        let mut store = Store::open(&path, header(1)).unwrap();
        store.add(execution(4)).unwrap();
        store
            .add(Line::Failure(Failure {
                order: 5,
                ..Failure::default()
            }))
            .unwrap();
        store.add(execution(6)).unwrap();
        assert_eq!([4, 5, 6].map(|n| store.has(n)), [true, false, true]);
        let whole = fs::read(&path).unwrap();
        for end in 0..=whole.len() {
            fs::write(&path, &whole[..end]).unwrap();
            let lines = whole[..end].iter().filter(|b| **b == b'\n').count();
            let mut store = Store::open(&path, header(1)).unwrap();
            assert_eq!(
                [4, 6].map(|n| store.has(n)),
                [lines >= 2, lines >= 4],
                "{end}"
            );
            store.add(execution(7)).unwrap();
            let run = Run::read(&path).unwrap();
            assert_eq!(&run.executions, &store.run().executions);
            assert!(run.executions.iter().any(|e| e.order == 7), "{end}");
        }
    }

    #[test]
    fn other_results_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.jsonl");
        drop(Store::open(&path, header(1)).unwrap());
        for (text, words) in [
            (fs::read_to_string(&path).unwrap(), "another experiment"),
            ("notes\nof mine".to_owned(), "line 1"),
            ("notes".to_owned(), "line 1"),
        ] {
            fs::write(&path, &text).unwrap();
            let why = Store::open(&path, header(2)).unwrap_err();
            assert!(why.contains(words) && why.contains("-o"), "{why}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn what_is_no_file_is_refused() {
        for path in ["/dev/full", "/tmp"] {
            let why = Store::open(Path::new(path), header(1)).unwrap_err();
            assert!(why.contains(path) && why.contains("is no file"), "{why}");
        }
    }

    #[test]
    fn a_full_disk_is_said() {
        let path = PathBuf::from("/dev/full");
        let mut store = Store {
            file: OpenOptions::new().write(true).open(&path).unwrap(),
            path,
            run: Run::default(),
            done: BTreeSet::new(),
        };
        let why = format!("{:#}", store.add(execution(1)).unwrap_err());
        assert!(
            why.contains("/dev/full") && why.contains("No space"),
            "{why}"
        );
        assert!(!store.has(1));
    }
}
