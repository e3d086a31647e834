//! Results of this and of other tools, all as a [`Run`].
//!
//! Whose a file is shows in what it holds, not in its name. Several files are joined: the
//! same benchmark and variant in two of them are further executions of it, so that also
//! the users of a tool that executes a program once can see how executions differ.
//!
//! | module | reads |
//! |---|---|
//! | [`csv`] | plain tables; it writes them, too |
//! | `hyperfine` | what `hyperfine --export-json` writes |
//! | `criterion` | directories `target/criterion`, and single files of them |
//! | `google` | what Google Benchmark writes with `--benchmark_format=json` |
//! | `pyperf` | JSON files of pyperf |
//! | `rebench` | data files of ReBench |
//! | `builder` | how executions are put together |

mod builder;
mod criterion;
pub mod csv;
mod google;
mod hyperfine;
mod join;
mod pyperf;
mod rebench;

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::parallel;
use crate::run::{Lines, Run};
pub use join::join;

/// Where in a file something is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On a line, from 1 on.
    Line(usize),
    /// At a place of a JSON document, such as `results[0].times[3]`.
    At(String),
    /// In all of it.
    Whole,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line(line) => write!(f, ":{line}"),
            Place::At(place) => write!(f, ": {place}"),
            Place::Whole => Ok(()),
        }
    }
}

/// What is wrong with a text, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    place: Place,
    why: String,
}

impl Wrong {
    fn line(line: usize, why: impl Into<String>) -> Wrong {
        Wrong {
            place: Place::Line(line),
            why: why.into(),
        }
    }

    fn at(place: impl Into<String>, why: impl Into<String>) -> Wrong {
        Wrong {
            place: Place::At(place.into()),
            why: why.into(),
        }
    }

    fn whole(why: impl Into<String>) -> Wrong {
        Wrong {
            place: Place::Whole,
            why: why.into(),
        }
    }

    fn of(self, path: &Path) -> ImportError {
        ImportError::Content {
            path: path.to_owned(),
            place: self.place,
            why: self.why,
        }
    }
}

/// Why results cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What it holds.
    #[error("{}{place}: {why}", path.display())]
    Content {
        /// Of which file.
        path: PathBuf,
        /// Where.
        place: Place,
        /// What is wrong there.
        why: String,
    },
    /// Files that do not go together.
    #[error("{0}")]
    Join(String),
}

/// Reads a file of any of these tools, a directory of Criterion, or a directory of files.
/// `target/criterion@NAME` is the baseline of that name.
///
/// # Errors
/// When it cannot be read, or is none of these; the file and the place are named.
pub fn read(path: &Path) -> Result<Run, ImportError> {
    let mut run = if path.is_dir() {
        read_directory(path)?
    } else if let Some((directory, baseline)) = baseline_of(path) {
        criterion::directory(&directory, Some(&baseline))?
    } else {
        read_file(path)?
    };
    path.clone_into(&mut run.path);
    if run.header.title.is_empty() {
        let name = path.file_stem().unwrap_or(path.as_os_str());
        run.header.title = name.to_string_lossy().into_owned();
    }
    Ok(run)
}

/// Reads several, and joins them.
///
/// # Errors
/// As of [`read`], and where they do not go together.
pub fn read_all(paths: &[PathBuf]) -> Result<Run, ImportError> {
    let runs = parallel::map(paths.iter().collect(), |path: &PathBuf| read(path));
    join(runs.into_iter().collect::<Result<_, _>>()?)
}

/// What is wrong with a file of anything else.
const NOT_TEXT: &str = "it is not UTF-8, so it is no file of results";

/// The directory and the name in `DIRECTORY@NAME`, where no file has that name.
fn baseline_of(path: &Path) -> Option<(PathBuf, String)> {
    if path.exists() {
        return None;
    }
    let (directory, name) = path.to_str()?.rsplit_once('@')?;
    let directory = PathBuf::from(directory);
    directory.is_dir().then(|| (directory, name.to_owned()))
}

fn read_directory(path: &Path) -> Result<Run, ImportError> {
    if criterion::is_directory(path) {
        return criterion::directory(path, None);
    }
    let failed = |source| ImportError::File {
        path: path.to_owned(),
        source,
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if entry.path().is_file() && !hidden {
            files.push(entry.path());
        }
    }
    files.sort();
    if files.is_empty() {
        let why = "the directory holds no results: give a file of results, a directory of such \
                   files, or target/criterion";
        return Err(Wrong::whole(why).of(path));
    }
    read_all(&files)
}

fn read_file(path: &Path) -> Result<Run, ImportError> {
    let failed = |source| ImportError::File {
        path: path.to_owned(),
        source,
    };
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    let mut bytes = Vec::new();
    file.read_until(b'\n', &mut bytes).map_err(failed)?;
    if str::from_utf8(&bytes).is_ok_and(|first| is_ours(without_mark(first))) {
        return read_ours(file, bytes, path);
    }
    file.read_to_end(&mut bytes).map_err(failed)?;
    if bytes.starts_with(&[0x1f, 0x8b]) {
        return Err(Wrong::whole("it is compressed: unpack it with gunzip first").of(path));
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Wrong::line(line, NOT_TEXT).of(path)
    })?;
    if let Some(run) = criterion::file(path, &text) {
        return run;
    }
    parse(&text).map_err(|wrong| wrong.of(path))
}

/// Reads results of [`crate::run`] line by line, of which this is the first: all of them together
/// may be large.
fn read_ours(mut file: impl BufRead, first: Vec<u8>, path: &Path) -> Result<Run, ImportError> {
    let of_line = |(line, why): (usize, String)| Wrong::line(line, why).of(path);
    let mut lines = Lines::default();
    let mut bytes = first;
    // What an interruption left of a line has no end.
    for number in 1.. {
        let Some(line) = bytes.strip_suffix(b"\n") else {
            break;
        };
        let line = str::from_utf8(line.strip_suffix(b"\r").unwrap_or(line));
        let line = line.map_err(|_| of_line((number, NOT_TEXT.into())))?;
        let line = if number == 1 {
            without_mark(line)
        } else {
            line
        };
        lines.add(line).map_err(of_line)?;
        bytes.clear();
        let read = file.read_until(b'\n', &mut bytes);
        read.map_err(|source| ImportError::File {
            path: path.to_owned(),
            source,
        })?;
    }
    lines.finish().map_err(of_line)
}

/// The text without the byte order mark that it may begin with.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Reads text of any other format that needs no other file.
fn parse(text: &str) -> Result<Run, Wrong> {
    let text = without_mark(text);
    match text.trim_start().chars().next() {
        None => Err(Wrong::whole("it is empty")),
        Some('{' | '[') => json(text),
        _ if rebench::is(text) => rebench::parse(text),
        _ => csv::parse(text),
    }
}

/// Whether the first line is one of [`crate::run`].
fn is_ours(text: &str) -> bool {
    let first = text.lines().next().unwrap_or("");
    serde_json::from_str::<Value>(first).is_ok_and(|line| line.get("kind").is_some())
}

fn json(text: &str) -> Result<Run, Wrong> {
    let document = document(text).map_err(|e| {
        let place = format!("column {}: {}", e.column(), message(&e));
        Wrong::line(e.line(), place)
    })?;
    let has = |name: &str| document.get(name).is_some();
    if has("results") {
        hyperfine::parse(&document)
    } else if has("benchmarks") && has("context") {
        google::parse(&document)
    } else if has("benchmarks") {
        pyperf::parse(&document)
    } else {
        Err(Wrong::whole(
            "it is JSON of no known tool: results come from quire, hyperfine, Criterion, Google \
             Benchmark, pyperf, ReBench, or a CSV file",
        ))
    }
}

/// A JSON document, in which numbers that are none (`NaN`, `Infinity`, which Google Benchmark
/// and Python write though JSON has no such numbers) become texts. Where a number is needed,
/// the reader of the format names the place.
fn document(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(text).or_else(|error| {
        let without = without_no_numbers(text);
        serde_json::from_str(&without).map_err(|_| error)
    })
}

/// The text with numbers that are none in quotation marks.
fn without_no_numbers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (n, part) in strings_and_rest(text).enumerate() {
        match n % 2 {
            0 => {
                let quoted = part.replace("NaN", "\"NaN\"");
                let quoted = quoted.replace("Infinity", "\"Infinity\"");
                out.push_str(&quoted.replace("-\"Infinity\"", "\"-Infinity\""));
            }
            _ => out.push_str(part),
        }
    }
    out
}

/// What is outside of strings and what is inside, in turns, the first outside.
fn strings_and_rest(text: &str) -> impl Iterator<Item = &str> {
    let (mut rest, mut inside) = (Some(text), false);
    std::iter::from_fn(move || {
        let here = rest?;
        let mut escaped = false;
        let end = here.bytes().position(|byte| {
            let ends = byte == b'"' && !escaped;
            escaped = inside && byte == b'\\' && !escaped;
            ends
        });
        // The quotation mark that ends a part belongs to it.
        let (part, after) = here.split_at(end.map_or(here.len(), |end| end + 1));
        rest = end.map(|_| after);
        inside = !inside;
        Some(part)
    })
}

/// The message of an error without the place, which is named apart.
fn message(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}
