//! Looks at all of a store, without changing it.

use std::collections::BTreeSet;
use std::path::Path;

use super::disk::{Directory, Disk};
use super::layout::{FORMAT, VERSION, beyond_use, object, version};
use super::log::{self, Tail};
use super::part::{self, OBJECTS};
use super::{Damage, StoreError, lock};

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How many objects there are.
    pub objects: u64,
    /// How many pages are in their places.
    pub pages: u64,
    /// How many pages wait in the log.
    pub logged: u64,
    /// The last batch of the log, from this byte on, is not whole: a crash cut it off, and
    /// nobody was told that it was written. Or it is damaged; the two look the same.
    pub torn: Option<u64>,
    /// What does not hold what was written there.
    pub damage: Vec<Damage>,
}

/// Reads everything in a store that no server has open, and names what is damaged.
///
/// # Errors
/// Where a server has it open, where it is no store of this version, or what the disk said.
pub fn check(directory: &Path) -> Result<Report, StoreError> {
    check_with(directory, &mut || ())
}

/// The same. A function is told with each page that is looked at in its place.
///
/// # Errors
/// As [`check`].
pub fn check_with(directory: &Path, looks: &mut dyn FnMut()) -> Result<Report, StoreError> {
    let format = directory.join(FORMAT);
    if !format.is_file() {
        return Err(StoreError::Invalid(format!(
            "{}: there is no store",
            directory.display()
        )));
    }
    let _lock = lock::Lock::take(directory)?;
    let disk = Directory::new(directory);
    let failed = |error| StoreError::io("cannot read the store", &error);
    match version(&disk).map_err(failed)? {
        Some(Some(found)) if found > VERSION => Err(StoreError::Newer {
            directory: directory.display().to_string(),
            found,
            known: VERSION,
        }),
        Some(Some(VERSION)) => look(&disk, looks).map_err(failed),
        _ => Ok(Report {
            damage: vec![Damage::new(FORMAT, 0..0, "it does not say a version")],
            ..Report::default()
        }),
    }
}

/// Looks at a store of this version.
pub(super) fn look(disk: &dyn Disk, looks: &mut dyn FnMut()) -> std::io::Result<Report> {
    let mut report = Report::default();
    // What is in the log is written to its place anew at the next start, whatever a crash
    // has left there.
    let mut logged = BTreeSet::new();
    match log::look(disk)? {
        Err(damage) => report.damage.push(damage),
        Ok(replay) => {
            report.damage.extend(beyond_use(&replay));
            report.logged = replay.pages.len() as u64;
            logged.extend(
                replay
                    .pages
                    .iter()
                    .map(|(object, page, _)| (*object, *page)),
            );
            if let Tail::Torn(at) = replay.tail {
                report.torn = Some(at);
            }
            report.damage.extend(replay.damage);
        }
    }
    let mut names = disk.list(OBJECTS)?;
    names.retain(|name| !name.contains('.'));
    names.sort_unstable();
    for name in names {
        match object(disk, &name)? {
            Err(damage) => report.damage.push(damage),
            Ok(found) => {
                report.objects += 1;
                let is_logged = |page| logged.contains(&(found.id, page));
                let (id, page_size) = (found.id, found.is.page_size.0);
                let (held, damage) = part::look(disk, id, page_size, is_logged, looks)?;
                report.pages += held;
                report.damage.extend(damage);
            }
        }
    }
    Ok(report)
}
