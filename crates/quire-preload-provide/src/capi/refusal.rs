//! Why a call of the C interface fails: an error number, and a line for people.

use std::io;

use quire_core::stat::Note;
use quire_linux::Errno;

/// Why a call fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub errno: Errno,
    pub text: String,
}

pub type Result<T> = std::result::Result<T, Refusal>;

impl Refusal {
    pub fn new(errno: i32, text: impl Into<String>) -> Refusal {
        Refusal {
            errno: Errno(errno),
            text: text.into(),
        }
    }

    /// An argument that makes no sense.
    pub fn argument(text: impl Into<String>) -> Refusal {
        Refusal::new(libc::EINVAL, text)
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Refusal {
        let text = io::Error::from_raw_os_error(errno.0).to_string();
        Refusal { errno, text }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Refusal::new(errno, error.to_string())
    }
}

impl From<Note> for Refusal {
    fn from(note: Note) -> Refusal {
        let errno = match note {
            Note::FramesUserMode | Note::FramesHidden => libc::EPERM,
            Note::FramesUnserved => libc::ENOMEM,
            _ => libc::ENOTSUP,
        };
        Refusal::new(errno, note.text())
    }
}
