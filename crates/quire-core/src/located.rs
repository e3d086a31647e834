//! What is wrong in a file that a user wrote, and where, on one line:
//! `FILE:LINE:COLUMN: KEY: WHY`. Readers of TOML files say what is wrong and at which bytes
//! of the text; this says it to people.

use std::fmt::Display;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Something wrong, and where in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    at: Range<usize>,
    message: String,
}

/// The same, as people find it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}:{line}:{column}: {message}", .path.display())]
pub struct Located {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The character of the line, from 1.
    pub column: usize,
    /// What is wrong, on one line.
    pub message: String,
}

/// A file that could not be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It could not be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// It says something that is not understood.
    #[error(transparent)]
    Content(#[from] Located),
}

impl FileError {
    /// That `path` could not be read.
    pub fn unread(path: &Path) -> impl FnOnce(io::Error) -> FileError {
        let path = path.to_owned();
        move |error| FileError::Read { path, error }
    }
}

impl Wrong {
    /// Something wrong with these bytes of the text.
    pub fn new(at: Range<usize>, message: impl Display) -> Wrong {
        let message = message.to_string();
        Wrong { at, message }
    }

    /// Where it is in `text`, which `path` holds. The message is put on one line, and names
    /// the key of the line of the text (`KEY = VALUE`) where it does not already.
    #[must_use]
    pub fn in_file(&self, path: &Path, text: &str) -> Located {
        let before = &text.as_bytes()[..self.at.start.min(text.len())];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        let own = before
            .rsplit(|byte| *byte == b'\n')
            .next()
            .unwrap_or(before);
        let column = 1 + String::from_utf8_lossy(own).chars().count();
        let there = text.lines().nth(line - 1).unwrap_or_default();
        let key = there.split_once('=').map_or("", |(key, _)| key.trim());
        let message = self.message.lines().collect::<Vec<_>>().join(" ");
        let is_named = key.is_empty() || message.contains(&format!("`{key}`"));
        Located {
            path: path.to_owned(),
            line,
            column,
            message: match is_named {
                true => message,
                false => format!("{key}: {message}"),
            },
        }
    }
}

/// Reads `text`, which stands at these bytes.
///
/// # Errors
/// When it is no such value.
pub fn parse<T>(text: &str, at: Range<usize>) -> Result<T, Wrong>
where
    T: FromStr<Err: Display>,
{
    text.parse().map_err(|error: T::Err| Wrong::new(at, error))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn said(text: &str, at: Range<usize>, message: &str) -> String {
        let wrong = Wrong::new(at, message);
        wrong.in_file(Path::new("a.toml"), text).to_string()
    }

    #[test]
    fn line_column_and_key_are_named() {
        let text = "title = \"ä\"\n[[rule]]\n  cpu = 7\n";
        let of = |word: &str| text.find(word).map(|at| at..at + word.len()).unwrap();
        assert_eq!(said(text, of("7"), "too much"), "a.toml:3:9: cpu: too much");
        let named = "`cpu` is a\npercentage";
        assert_eq!(
            said(text, of("7"), named),
            "a.toml:3:9: `cpu` is a percentage"
        );
        assert_eq!(said(text, of("[[rule]]"), "empty"), "a.toml:2:1: empty");
        assert_eq!(said(text, 11..12, "x"), "a.toml:1:11: title: x");
        assert_eq!(said("", 9..10, "nothing"), "a.toml:1:1: nothing");
        assert_eq!(said("a\n", 2..2, "the end"), "a.toml:2:1: the end");
    }

    #[test]
    fn what_is_no_value_is_told_with_its_place() {
        assert_eq!(parse::<u8>("7", 2..3), Ok(7));
        let wrong = parse::<u8>("x", 4..5).unwrap_err();
        assert_eq!(wrong, Wrong::new(4..5, "invalid digit found in string"));
    }

    proptest! {
        /// Line and column lead back to the place.
        #[test]
        fn the_place_is_found_again(text in "[a-c=\näß ]{0,40}", part in 0.0f64..=1.0) {
            let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
            let at = places[((places.len() - 1) as f64 * part) as usize];
            let found = Wrong::new(at..at, "x").in_file(Path::new("f"), &text);
            let lines: Vec<&str> = text.split('\n').collect();
            let before: usize = lines[..found.line - 1].iter().map(|line| line.len() + 1).sum();
            let own = lines[found.line - 1].chars().take(found.column - 1);
            prop_assert_eq!(before + own.map(char::len_utf8).sum::<usize>(), at);
            prop_assert!(!found.message.contains('\n'));
        }
    }
}
