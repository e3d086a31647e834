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
    /// The page of an object that is concerned, where it is one.
    pub page: Option<u64>,
    /// The name of the object whose it is, where that is known and can be used.
    pub object: Option<Box<str>>,
}

impl Damage {
    pub(super) fn new(file: &str, bytes: Range<u64>, what: &str) -> Damage {
        Damage {
            file: file.to_owned(),
            bytes,
            what: what.to_owned(),
            page: None,
            object: None,
        }
    }

    pub(super) fn in_page(self, page: u64) -> Damage {
        Damage {
            page: Some(page),
            ..self
        }
    }

    pub(super) fn of(self, object: &str) -> Damage {
        Damage {
            object: Some(object.into()),
            ..self
        }
    }
}

/// So many ranges stand in a line.
const RANGES: usize = 16;

/// Damage of one kind in one file: ranges of pages, or of bytes where no page is known.
struct Group<'a> {
    first: &'a Damage,
    ranges: Vec<Range<u64>>,
    places: usize,
}

impl Group<'_> {
    fn is_of(&self, damage: &Damage) -> bool {
        let key = |it: &Damage| (it.page.is_some(), it.bytes.is_empty());
        let first = self.first;
        let same = first.file == damage.file && first.object == damage.object;
        same && first.what == damage.what && key(first) == key(damage)
    }

    fn add(&mut self, range: Range<u64>) {
        self.places += 1;
        match self.ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.ranges.push(range),
        }
    }
}

impl fmt::Display for Group<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { file, what, .. } = self.first;
        if self.places == 1 {
            return write!(f, "{}", self.first);
        }
        write!(f, "{file}")?;
        if let Some(object) = &self.first.object {
            write!(f, ", of {object}")?;
        }
        let unit = if self.first.page.is_some() {
            "pages"
        } else {
            "bytes"
        };
        let shown = self
            .ranges
            .iter()
            .take(RANGES)
            .map(|range| match range.end - range.start {
                1 => range.start.to_string(),
                _ => format!("{}-{}", range.start, range.end.saturating_sub(1)),
            });
        let shown: Vec<String> = shown.collect();
        write!(f, ": {unit} {}", shown.join(", "))?;
        if let more @ 1.. = self.ranges.len().saturating_sub(RANGES) {
            write!(f, " and {more} ranges more")?;
        }
        write!(f, ": {what} ({} places)", self.places)
    }
}

impl Damage {
    /// A line for each file, and for what is wrong in it: what lies side by side is one range.
    #[must_use]
    pub fn lines(all: &[Damage]) -> Vec<String> {
        let mut groups: Vec<Group<'_>> = Vec::new();
        for damage in all {
            let range = damage
                .page
                .map_or(damage.bytes.clone(), |page| page..page + 1);
            match groups.iter_mut().find(|group| group.is_of(damage)) {
                Some(group) => group.add(range),
                None => groups.push(Group {
                    first: damage,
                    ranges: vec![range],
                    places: 1,
                }),
            }
        }
        groups.iter().map(ToString::to_string).collect()
    }

    /// What is wrong, and with which page.
    #[must_use]
    pub fn words(&self) -> String {
        match self.page {
            Some(page) => format!("page {page}: {}", self.what),
            None => self.what.clone(),
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
        write!(f, ": {}", self.words())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_side_by_side_is_one_line() {
        let at = |page: u64| {
            let bytes = 4096 * page..4096 * (page + 1);
            Damage::new("part", bytes, "wrong checksum").in_page(page)
        };
        let mut all: Vec<Damage> = (3..440).map(|page| at(page).of("grid")).collect();
        assert_eq!(
            Damage::lines(&all),
            ["part, of grid: pages 3-439: wrong checksum (437 places)"]
        );
        assert_eq!(Damage::lines(&all[..1]), [all[0].to_string()]);
        all.extend((0..40).map(|page| at(1000 + 2 * page).of("grid")));
        all.push(Damage::new("other", 0..0, "the file is missing"));
        let lines = Damage::lines(&all);
        assert_eq!(lines.len(), 2);
        assert!(
            lines[0].contains("1028 and 25 ranges more: wrong"),
            "{lines:?}"
        );
        assert_eq!(lines[1], "other: the file is missing");
    }
}
