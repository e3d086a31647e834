//! Errors of a command: one line for people, and an exit status.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// Exit status for bad input.
pub const BAD_USAGE: u8 = 2;
/// Exit status when the program cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// Exit status when the program does not exist.
pub const NOT_FOUND: u8 = 127;

/// What a command gives.
pub type Outcome<T> = Result<T, Failure>;

/// An error that ends the command.
#[derive(Debug)]
pub struct Failure {
    status: u8,
    message: String,
}

impl Failure {
    /// A failure with the exit status that a shell would give.
    pub fn with_status(status: u8, message: impl Into<String>) -> Failure {
        Failure {
            status,
            message: message.into(),
        }
    }

    /// The input was bad.
    pub fn bad_usage(message: impl Into<String>) -> Failure {
        Failure::with_status(BAD_USAGE, message)
    }

    /// The machine refused.
    pub fn system(message: impl Into<String>) -> Failure {
        Failure::with_status(1, message)
    }

    /// The same, with more to say.
    pub fn and(self, more: &str) -> Failure {
        Failure {
            message: format!("{}; {more}", self.message),
            ..self
        }
    }

    /// The exit status.
    pub fn status(&self) -> u8 {
        self.status
    }

    /// Whether there is anything to print.
    pub fn is_worth_telling(&self) -> bool {
        !self.message.is_empty()
    }
}

/// Whether an error is of who named a file, and not of the machine: a full disk is not.
pub fn is_bad_path(error: &io::Error) -> bool {
    use io::ErrorKind::{
        AlreadyExists, InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound,
        PermissionDenied, ReadOnlyFilesystem,
    };
    matches!(
        error.kind(),
        NotFound
            | PermissionDenied
            | AlreadyExists
            | IsADirectory
            | NotADirectory
            | InvalidFilename
            | InvalidInput
            | ReadOnlyFilesystem
    )
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<io::Error> for Failure {
    /// An error of writing the output. A reader that closed it early, such as
    /// `head`, is not told off.
    fn from(error: io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::system("");
        }
        Failure::system(format!("cannot write the output: {error}"))
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Failure {
        Failure::from(io::Error::from(error))
    }
}

/// The exit status of a command that has ended, with a line where it failed.
pub fn finish(outcome: Outcome<u8>) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => tell(&failure),
    }
}

/// Prints help as it is, and any error of the command line on one line.
pub fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // Nobody is left to be told when the output is closed.
            let _ = error.print();
            ExitCode::from(if error.use_stderr() { BAD_USAGE } else { 0 })
        }
        _ => tell(&Failure::bad_usage(one_line(&error.to_string()))),
    }
}

/// The message of a command line error without the usage that follows it.
fn one_line(all: &str) -> String {
    let message = all.strip_prefix("error: ").unwrap_or(all);
    let mut line = String::new();
    let kept = message
        .lines()
        .map(str::trim)
        .take_while(|part| !part.starts_with("Usage:") && !part.starts_with("For more"))
        // Its advice on how to pass an option as an argument makes a program of it, for `run`.
        .filter(|part| !part.is_empty() && !part.starts_with("tip: to pass '"));
    for part in kept {
        let separator = match part.strip_prefix("tip: ") {
            _ if line.is_empty() => "",
            Some(_) => "; ",
            None => " ",
        };
        line.push_str(separator);
        line.push_str(part.strip_prefix("tip: ").unwrap_or(part));
    }
    let line = line.replace("invalid digit found in string", "write a whole number");
    let command = command_of(all).unwrap_or_else(|| match std::env::args_os().nth(1) {
        // Errors of values come without the usage.
        Some(word) if !word.as_encoded_bytes().starts_with(b"-") => {
            format!("{} {}", called(), word.to_string_lossy())
        }
        _ => called(),
    });
    format!("{line} (see `{command} --help`)")
}

/// The command and its subcommands, from the usage that an error is followed by.
fn command_of(message: &str) -> Option<String> {
    let usage = message
        .lines()
        .find_map(|line| line.trim().strip_prefix("Usage: "))?;
    let is_name = |word: &&str| word.starts_with(|first: char| first.is_ascii_lowercase());
    let words: Vec<&str> = usage.split(' ').take_while(is_name).collect();
    (!words.is_empty()).then(|| words.join(" "))
}

fn tell(failure: &Failure) -> ExitCode {
    if failure.is_worth_telling() {
        // Where standard error is closed the exit status has to do.
        let _ = writeln!(io::stderr(), "{}: {failure}", called());
    }
    ExitCode::from(failure.status())
}

/// What this program was called as, without a directory: `quire`, or `quire-measure`.
#[must_use]
pub fn called() -> String {
    let words = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&words).file_name();
    name.map_or_else(
        || "quire".into(),
        |name| name.to_string_lossy().into_owned(),
    )
}
