//! Looks at all of a store, without changing it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use super::disk::{Directory, Disk, join, read_all};
use super::layout::{
    FORMAT, KEPT, NEW, VERSION, beyond_use, contested, is_half, object, version, without,
};
use super::log::{self, Tail};
use super::object::{NewObject, Object, ObjectId, sealed};
use super::part::{self, OBJECTS};
use super::{Damage, StoreError, lock};
use crate::directory::{exact, name_of};

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

/// Reads everything in a store that no server has open, and names what is damaged. Nothing is
/// written, so it may be on a disk that can only be read.
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
    let lock = lock::Lock::look(directory)?;
    let disk = Directory::to_be_read(directory);
    let failed = |error| StoreError::io("cannot read the store", &error);
    let report = match version(&disk).map_err(failed)? {
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
    };
    if lock.is_none() {
        // No server had been there. One that has come meanwhile has changed what was read.
        lock::Lock::look(directory)?;
    }
    report
}

/// Looks at a store of this version.
pub(super) fn look(disk: &dyn Disk, looks: &mut dyn FnMut()) -> io::Result<Report> {
    let mut report = Report::default();
    let objects = look_at_objects(disk, &mut report)?;
    // What is in the log is written to its place anew at the next start, whatever a crash
    // has left there.
    let logged = look_at_log(disk, &objects, &mut report)?;
    for object in objects.values() {
        let is_logged = |page| logged.contains(&(object.id, page));
        let page_size = object.is.page_size.0;
        let (held, damage) = part::look(disk, object.id, page_size, is_logged, looks)?;
        report.pages += held;
        let damage = damage.into_iter();
        report
            .damage
            .extend(damage.map(|damage| damage.of(&listed_as(&object.is))));
    }
    report.damage.extend(look_at_kept(disk)?);
    Ok(report)
}

/// The objects that there are, in the order of their numbers.
fn look_at_objects(disk: &dyn Disk, report: &mut Report) -> io::Result<BTreeMap<ObjectId, Object>> {
    let mut objects = Vec::new();
    if let Some(damage) = without(disk, OBJECTS)? {
        report.damage.push(damage);
        return Ok(BTreeMap::new());
    }
    let mut names = disk.list(OBJECTS)?;
    names.retain(|name| !is_half(name));
    names.sort_unstable();
    for name in names {
        match object(disk, &name)? {
            Err(damage) => report.damage.push(damage),
            Ok(found) => objects.push(found),
        }
    }
    report.objects = objects.len() as u64;
    let contested = contested(&objects).into_iter();
    report.damage.extend(contested.map(|(_, damage)| damage));
    let objects = objects.into_iter();
    Ok(objects.map(|object| (object.id, object)).collect())
}

/// Which pages the log has.
fn look_at_log(
    disk: &dyn Disk,
    objects: &BTreeMap<ObjectId, Object>,
    report: &mut Report,
) -> io::Result<BTreeSet<(ObjectId, u64)>> {
    let replay = match log::look(disk)? {
        Err(damage) => {
            report.damage.push(damage);
            return Ok(BTreeSet::new());
        }
        Ok(replay) => replay,
    };
    report.damage.extend(beyond_use(&replay));
    report.logged = replay.pages.len() as u64;
    if let Tail::Torn(at) = replay.tail {
        report.torn = Some(at);
    }
    for (id, damage) in replay.damage {
        report.damage.push(match objects.get(&id) {
            Some(object) => damage.of(&listed_as(&object.is)),
            None => damage,
        });
    }
    let pages = replay.pages.iter();
    Ok(pages.map(|(object, page, _)| (*object, *page)).collect())
}

/// What a server calls an object that a store has by its key: by its name, if it has that still.
fn listed_as(kept: &NewObject) -> String {
    match kept.key() {
        (key, true) => exact(key),
        (key, false) => name_of(key).to_owned(),
    }
}

/// What is damaged of the small things that others keep here.
fn look_at_kept(disk: &dyn Disk) -> io::Result<Vec<Damage>> {
    if let Some(damage) = without(disk, KEPT)? {
        return Ok(vec![damage]);
    }
    let mut names = disk.list(KEPT)?;
    names.retain(|name| !name.ends_with(NEW));
    names.sort_unstable();
    let mut damage = Vec::new();
    for name in names {
        let file = join(KEPT, &name);
        let bytes = read_all(disk, &file)?.unwrap_or_default();
        if sealed(&bytes).is_none() {
            let all = 0..bytes.len() as u64;
            damage.push(Damage::new(&file, all, "wrong checksum"));
        }
    }
    Ok(damage)
}
