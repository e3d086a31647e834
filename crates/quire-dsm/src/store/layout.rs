//! How a store begins: its format, what is in its directory, and what makes it one.

use std::io;
use std::sync::Arc;

use super::disk::{Disk, join, read_all, replace};
use super::log::{self, Log, Replay, Tail};
use super::object::unseal;
use super::part::{OBJECTS, Places};
use super::shared::Catalogue;
use super::{Damage, Object, Settings, StoreError, lock};

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
        Some(Some(VERSION)) => return Ok(()),
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

/// The objects of a store. What a crash left half-made or half-removed goes.
pub(super) fn catalogue(
    disk: &Arc<dyn Disk>,
    damage: &mut Vec<Damage>,
) -> io::Result<(Catalogue, Places)> {
    let mut catalogue = Catalogue::default();
    let mut places = Places::new(disk.clone());
    for name in disk.list(OBJECTS)? {
        let directory = join(OBJECTS, &name);
        if name.ends_with(NEW) || name.ends_with(GONE) {
            disk.remove_directory(&directory)?;
            continue;
        }
        match object(&**disk, &name)? {
            Ok(object) => {
                damage.extend(places.admit(object.id, object.is.page_size.0)?);
                catalogue.admit(Arc::new(object));
            }
            Err(found) => damage.push(found),
        }
    }
    Ok((catalogue, places))
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
