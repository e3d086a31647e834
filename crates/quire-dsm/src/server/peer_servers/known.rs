//! An object as the directory has it, and as messages have it.

use std::time::{SystemTime, UNIX_EPOCH};

use quire_core::dsm::message::ServerId;
use quire_core::dsm::types::Machine;

use super::super::depot;
use crate::directory::{Directory, DirectoryError, Entry};
use crate::store::{self, ObjectId};
use crate::wire::control::Object;

/// What the directory is told of an object, who made it, and on which server; with the
/// number of the store that keeps it, if one does.
pub(super) fn entry(
    info: &Object,
    owner: &str,
    id: ObjectId,
    (home, store): (ServerId, Option<u64>),
) -> Entry {
    // No object is made for a machine that is unknown here.
    let machine = info.machine.machine().unwrap_or(Machine::native());
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    Entry {
        object: store::Object {
            id,
            created: since_1970.map_or(0, |since| since.as_secs()),
            is: depot::described(info, machine, owner),
        },
        home,
        store,
        is_removed: false,
    }
}

/// What the directory knows of an object: what it is, and who made it. `None` where that
/// cannot be an object.
pub(super) fn info(entry: &Entry) -> Option<(Object, String)> {
    let is = &entry.object.is;
    Some((depot::info(is).ok()?, is.owner.clone()))
}

/// Makes an object known that was there before: what is begun by its name makes way for it, as if it was
/// removed.
///
/// # Errors
/// As [`Directory::publish`].
pub(super) fn publish_again(
    directory: &dyn Directory,
    entry: &Entry,
) -> Result<(), DirectoryError> {
    match directory.publish(entry) {
        Err(DirectoryError::Begun(key)) => {
            match directory.end_begun(&key) {
                // It has a size by now, or is gone.
                Ok(()) | Err(DirectoryError::Missing(_)) => {}
                failed => return failed,
            }
            directory.publish(entry)
        }
        published => published,
    }
}

#[cfg(test)]
mod tests {
    use quire_core::units::Bytes;

    use super::*;
    use crate::wire::control::{MachineCode, PageSize, SchedulerKind, Segment, TypeCode};

    #[test]
    fn an_object_comes_back_from_the_directory() {
        let made = Object {
            name: "grid".parse().unwrap(),
            size: Bytes::mib(3),
            page_size: PageSize::BASE,
            scheduler: SchedulerKind::Distributed,
            machine: MachineCode(0),
            tags: vec![Segment {
                start: Bytes(0),
                length: Bytes(4096),
                tag: TypeCode(6),
            }],
        };
        let known = entry(&made, "uid:7", ObjectId(3), (ServerId(4), None));
        assert_eq!(info(&known), Some((made, "uid:7".to_owned())));
    }
}
