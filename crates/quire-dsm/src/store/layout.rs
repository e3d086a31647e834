//! How a store begins: its format, what is in its directory, and what makes it one.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::disk::{Disk, join, read_all, replace};
use super::guard::Guard;
use super::log::{self, Log, Replay, Tail};
use super::object::unseal;
use super::part::{OBJECTS, Places};
use super::shared::Catalogue;
use super::{Damage, Object, ObjectId, Settings, StoreError, lock};

/// The version of the format.
pub(super) const VERSION: u32 = 1;
/// The file that says it.
pub(super) const FORMAT: &str = "format";
/// What an object is.
pub(super) const META: &str = "meta";
/// The directory of what others keep here.
pub(super) const KEPT: &str = "kept";
/// How the name of a half-made object's directory ends.
pub(super) const NEW: &str = ".new";
/// How the name of a half-removed object's directory ends.
pub(super) const GONE: &str = ".gone";

/// Makes a store where there is none, and refuses what is none of this version.
pub(super) fn prepare(
    disk: &dyn Disk,
    settings: &Settings,
    directory: &str,
) -> Result<(), StoreError> {
    let failed = |error: io::Error| StoreError::io("cannot open the store", &error);
    match version(disk).map_err(failed)? {
        Some(Some(VERSION)) => {
            for part in [OBJECTS, KEPT] {
                if let Some(damage) = without(disk, part).map_err(failed)? {
                    return Err(StoreError::Damaged {
                        directory: directory.to_owned(),
                        damage,
                    });
                }
            }
            return Ok(());
        }
        Some(Some(found)) => {
            return Err(StoreError::Newer {
                directory: directory.to_owned(),
                found,
                known: VERSION,
            });
        }
        Some(None) => {
            return Err(StoreError::Damaged {
                directory: directory.to_owned(),
                damage: Damage::new(FORMAT, 0..0, "it does not say a version"),
            });
        }
        None => {}
    }
    // The format is written last: without it, what has our names is half-made.
    let ours = [lock::NAME, log::NAME, KEPT, OBJECTS, "format.new"];
    let found = disk.list("").map_err(failed)?;
    if let Some(found) = found.into_iter().find(|name| !ours.contains(&&**name)) {
        return Err(StoreError::Foreign {
            directory: directory.to_owned(),
            found,
        });
    }
    // Objects are made after the format was written, so it was there once.
    if disk.list(OBJECTS).is_ok_and(|objects| !objects.is_empty()) {
        return Err(StoreError::Damaged {
            directory: directory.to_owned(),
            damage: Damage::new(FORMAT, 0..0, "the file is missing"),
        });
    }
    make_store(disk, settings).map_err(|error| StoreError::io("cannot make the store", &error))
}

fn make_store(disk: &dyn Disk, settings: &Settings) -> io::Result<()> {
    for directory in [OBJECTS, KEPT] {
        disk.make_directory(directory)?;
    }
    Log::make(disk, settings.log.0)?;
    disk.sync_directory("")?;
    replace(
        disk,
        "",
        FORMAT,
        format!("quire-store {VERSION}\n").as_bytes(),
    )
}

/// The version of a store: `None` where there is none, and where the file does not say one.
pub(super) fn version(disk: &dyn Disk) -> io::Result<Option<Option<u32>>> {
    let Some(bytes) = read_all(disk, FORMAT)? else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&bytes);
    let number = text.strip_prefix("quire-store ").map(str::trim);
    Ok(Some(number.and_then(|number| number.parse().ok())))
}

/// What is wrong where one of a store's directories is missing.
pub(super) fn without(disk: &dyn Disk, directory: &str) -> io::Result<Option<Damage>> {
    match disk.list(directory) {
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some(Damage::new(
            directory,
            0..0,
            "the directory is missing",
        ))),
        Err(error) => Err(error),
    }
}

/// Makes the names durable that are found: who gave them may have ended, or failed, before
/// they were, and what is acknowledged from now on relies on them.
pub(super) fn confirm(disk: &Guard) {
    for directory in ["", KEPT, OBJECTS] {
        confirm_names(disk, directory);
    }
}

/// Where a sync fails, the guard knows, and nothing is written; all can be read.
fn confirm_names(disk: &Guard, directory: &str) {
    let _ = disk.sync_directory(directory);
}

/// The objects of a store, after [`confirm`]. What a crash left half-made or half-removed
/// goes.
pub(super) fn catalogue(
    disk: Arc<Guard>,
    damage: &mut Vec<Damage>,
) -> io::Result<(Catalogue, Places)> {
    let mut places = Places::new(disk.clone());
    let mut found = Vec::new();
    for name in disk.list(OBJECTS)? {
        let directory = join(OBJECTS, &name);
        if is_half(&name) {
            if let Err(error) = disk.remove_directory(&directory) {
                tracing::warn!("{directory}: {error}; the next start removes it");
            }
            continue;
        }
        match object(&*disk, &name)? {
            Ok(object) => {
                confirm_names(&disk, &directory);
                damage.extend(places.admit(object.id, object.is.page_size.0)?);
                found.push(object);
            }
            Err(found) => damage.push(found),
        }
    }
    let contested = contested(&found);
    damage.extend(contested.iter().map(|(_, damage)| damage.clone()));
    let mut catalogue = Catalogue {
        contested: contested.into_iter().collect(),
        ..Catalogue::default()
    };
    for object in found {
        catalogue.admit(Arc::new(object));
    }
    Ok((catalogue, places))
}

/// Whether the directory of an object is half-made or half-removed.
pub(super) fn is_half(name: &str) -> bool {
    name.ends_with(NEW) || name.ends_with(GONE)
}

/// The names that several objects claim, once for each of these, with what is wrong there.
/// Nothing says which of them is the right one.
pub(super) fn contested(objects: &[Object]) -> Vec<(String, Damage)> {
    let mut claims = BTreeMap::<&str, Vec<ObjectId>>::new();
    for object in objects {
        claims.entry(&object.is.name).or_default().push(object.id);
    }
    let mut contested = Vec::new();
    for (name, mut claimants) in claims {
        claimants.sort_unstable();
        for id in &claimants {
            let Some(other) = claimants.iter().find(|other| *other != id) else {
                continue;
            };
            let file = join(&join(OBJECTS, &id.to_string()), META);
            let what = format!("its name, {name}, is also that of {other}; neither can be opened");
            contested.push((name.to_owned(), Damage::new(&file, 0..0, &what)));
        }
    }
    contested
}

/// What the object of a directory is, or what is damaged.
pub(super) fn object(disk: &dyn Disk, name: &str) -> io::Result<Result<Object, Damage>> {
    let file = join(&join(OBJECTS, name), META);
    let Some(bytes) = read_all(disk, &file)? else {
        return Ok(Err(Damage::new(&file, 0..0, "the file is missing")));
    };
    let damaged = Damage::new(&file, 0..bytes.len() as u64, "wrong checksum");
    let found: Option<Object> = unseal(&bytes);
    Ok(found
        .filter(|object| object.id.to_string() == name && object.is.look().is_ok())
        .ok_or(damaged))
}

/// Why a log cannot be used at all.
pub(super) fn beyond_use(replay: &Replay) -> Option<Damage> {
    match &replay.tail {
        Tail::Whole | Tail::Torn(_) => None,
        Tail::Damaged(range) => {
            let what = "damaged batch; which pages it held is unknown";
            Some(Damage::new(log::NAME, range.clone(), what))
        }
    }
}
