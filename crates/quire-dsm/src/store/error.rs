//! What can be wrong with a store, in words.

use std::fmt;
use std::io::{self, ErrorKind};
use std::ops::Range;

use super::guard::Unsure;

/// A place in a file that does not hold what was written there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file, relative to the store's directory.
    pub file: String,
    /// The bytes in it that are concerned; empty for the file as a whole.
    pub bytes: Range<u64>,
    /// What is wrong there.
    pub what: String,
    /// The name of the object whose it is, where that is known and can be used.
    pub object: Option<String>,
}

impl Damage {
    pub(super) fn new(file: &str, bytes: Range<u64>, what: &str) -> Damage {
        Damage {
            file: file.to_owned(),
            bytes,
            what: what.to_owned(),
            object: None,
        }
    }

    pub(super) fn of(self, object: &str) -> Damage {
        Damage {
            object: Some(object.to_owned()),
            ..self
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if !self.bytes.is_empty() {
            write!(f, ", bytes {} to {}", self.bytes.start, self.bytes.end - 1)?;
        }
        if let Some(object) = &self.object {
            write!(f, ", of {object}")?;
        }
        write!(f, ": {}", self.what)
    }
}

/// Why the store did not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Another server has the directory.
    #[error(
        "{directory} is in use by process {pid}; stop that server, or choose another directory"
    )]
    InUse {
        /// The directory.
        directory: String,
        /// The process that has it; 0 where it is unknown.
        pid: u32,
    },
    /// It is being looked at, and must not change meanwhile.
    #[error(
        "{directory} is being read by `quire object check`; wait until that has ended, then start again"
    )]
    BeingChecked {
        /// The directory.
        directory: String,
    },
    /// A newer version wrote it.
    #[error(
        "{directory} has format {found} and this version knows format {known} only; use the version that made it"
    )]
    Newer {
        /// The directory.
        directory: String,
        /// Its format.
        found: u32,
        /// The newest format that is known.
        known: u32,
    },
    /// It holds something else.
    #[error("{directory} is not a store, and not empty ({found}); choose another directory")]
    Foreign {
        /// The directory.
        directory: String,
        /// What is in it.
        found: String,
    },
    /// It cannot be used as it is.
    #[error("{directory} is damaged: {damage}; bring it back from a copy")]
    Damaged {
        /// The directory.
        directory: String,
        /// What is damaged.
        damage: Damage,
    },
    /// There is no such object.
    #[error("there is no object {0}")]
    NoObject(String),
    /// There is one already.
    #[error("there is an object {0} already; remove it first, or choose another name")]
    Exists(String),
    /// The disk has no space left.
    #[error("the disk is full: {0}; make space, then write again")]
    Full(String),
    /// What was asked for makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The disk refused something.
    #[error("{what}: {reason}")]
    Io {
        /// What was tried.
        what: String,
        /// What the disk said.
        reason: String,
    },
    /// A sync failed, now or earlier, and nothing is written any more. Whether what was
    /// asked for when it failed was done shows when the store is opened anew; an object, or
    /// a page, is changed as a whole or not at all. What was asked for later is not done.
    #[error(
        "nothing more is written, because the disk failed: {0}; look at the disk, then start again"
    )]
    Failed(String),
    /// The store's thread is gone.
    #[error("the store has stopped")]
    Stopped,
}

impl StoreError {
    /// What the disk said, with what was tried.
    pub(super) fn io(what: &str, error: &io::Error) -> StoreError {
        let unsure = error.get_ref().and_then(|inner| inner.downcast_ref());
        if let Some(Unsure(reason)) = unsure {
            return StoreError::Failed(reason.clone());
        }
        if is_full(error) {
            return StoreError::Full(what.to_owned());
        }
        StoreError::Io {
            what: what.to_owned(),
            reason: error.to_string(),
        }
    }
}

/// Whether the disk refused something for want of space only.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded
    )
}
