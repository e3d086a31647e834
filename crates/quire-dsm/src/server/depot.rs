//! The objects of a server in its store: what they are, and who may do what to them. Their
//! pages are the business of their pagers.
//!
//! Nothing here waits for the disk: what became of something is told later, by
//! [`Depot::heard`].

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use quire_core::dsm::types::{Machine, TypeTag};
use quire_core::units::{Bytes, ObjectOffset};

use super::backed::Asker;
use super::backed::bell::Bell;
use super::object::{Object, Refused};
use crate::pager::{Readers, Stored};
use crate::random::random;
use crate::store::{self, Grant, NewObject, ObjectId, Store, StoreError, Tagged};
use crate::wire::control::{
    self, FailureKind, Name, PageSize, Rights, SchedulerKind, Segment, TypeCode,
};

/// Under which name the store's number is kept.
const NUMBER: &str = "number";

/// What became of something that the store was asked for.
pub enum Kept {
    /// An object is made, or not.
    Made(Name, Result<ObjectId, StoreError>),
    /// An object is removed, or not.
    Removed(Name, Result<(), StoreError>),
    /// What an object is has changed, or not.
    Changed(Asker, Result<(), StoreError>),
}

/// The store of a server.
pub struct Depot {
    number: u64,
    readers: Arc<Readers>,
    told: Sender<Kept>,
    heard: Receiver<Kept>,
    bell: Bell,
}

impl Depot {
    /// Puts a store to use. The bell rings when [`Depot::heard`] has something.
    ///
    /// # Errors
    /// Where the threads that read from it cannot be started, or it has no number and gets none.
    pub fn new(store: Store, bell: Bell) -> std::io::Result<Depot> {
        let (told, heard) = mpsc::channel();
        Ok(Depot {
            number: number(&store).map_err(std::io::Error::other)?,
            readers: Arc::new(Readers::start(Arc::new(store))?),
            told,
            heard,
            bell,
        })
    }

    /// The number by which other servers know the store, now and later.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// All objects that are in the store, with what they are; and those that this server
    /// cannot serve, with the reason.
    pub fn objects(&self) -> Vec<Result<(ObjectId, Object), String>> {
        let objects = self.readers.store().objects();
        let restored = objects.iter().map(|kept| {
            let object = restored(&kept.is);
            let object = object.map_err(|why| format!("{}: {why}", kept.is.name))?;
            Ok((kept.id, object))
        });
        restored.collect()
    }

    /// The pager of an object in the store.
    pub fn pager(&self, id: ObjectId) -> Box<Stored> {
        Box::new(Stored::new(self.readers.clone(), id))
    }

    /// Makes an object.
    pub fn make(&self, object: &Object) {
        let name = object.info.name.clone();
        let tell = self.teller();
        let made = move |made: Result<Arc<store::Object>, _>| {
            tell(Kept::Made(name, made.map(|object| object.id)));
        };
        self.readers.store().create_then(record(object), made);
    }

    /// Removes an object with its pages.
    pub fn remove(&self, id: ObjectId, name: Name) {
        let tell = self.teller();
        let removed = move |removed| tell(Kept::Removed(name, removed));
        self.readers.store().remove_then(id, removed);
    }

    /// The same where nobody waits for it. Where it fails, the log says so.
    pub fn drop_later(&self, id: ObjectId, name: Name) {
        let removed = move |removed: Result<(), StoreError>| {
            if let Err(error) = removed {
                tracing::error!("{name} was removed, and is still in the store: {error}");
            }
        };
        self.readers.store().remove_then(id, removed);
    }

    /// Keeps what an object is now.
    pub fn change(&self, id: ObjectId, object: &Object, asker: Asker) {
        let tell = self.teller();
        let changed = move |changed: Result<_, _>| tell(Kept::Changed(asker, changed.map(drop)));
        self.readers
            .store()
            .change_then(id, record(object), changed);
    }

    /// What the store has said since the last time.
    pub fn heard(&self) -> Vec<Kept> {
        self.heard.try_iter().collect()
    }

    fn teller(&self) -> impl FnOnce(Kept) + Send + 'static + use<> {
        let (told, bell) = (self.told.clone(), self.bell.clone());
        move |kept| {
            // A server that has ended listens no more.
            if told.send(kept).is_ok() {
                bell.wake();
            }
        }
    }
}

/// The number of a store, which it gets when it is used for the first time.
fn number(store: &Store) -> Result<u64, StoreError> {
    if let Some(number) = store.kept(NUMBER)? {
        return Ok(number);
    }
    let number = random();
    store.keep(NUMBER, &number)?;
    Ok(number)
}

/// What a client is told when the store refuses.
pub fn refusal(error: &StoreError) -> Refused {
    let kind = match error {
        StoreError::Exists(_) => FailureKind::Exists,
        StoreError::NoObject(_) => FailureKind::NotFound,
        StoreError::Full(_) => FailureKind::Full,
        StoreError::Invalid(_) => FailureKind::Invalid,
        _ => FailureKind::Unavailable,
    };
    (kind, error.to_string())
}

/// An object as the store keeps it.
fn record(object: &Object) -> NewObject {
    let grant = |(who, rights): (&String, Rights)| Grant {
        who: who.clone(),
        read: rights.read,
        write: rights.write,
    };
    let mut kept = described(&object.info, object.machine(), &object.owner);
    kept.rights = object.grants.held().map(grant).collect();
    if object.is_discarded {
        kept.mark_removed();
    }
    kept
}

/// What an object is, in the words of the store and the directory, without rights.
pub(super) fn described(info: &control::Object, machine: Machine, owner: &str) -> NewObject {
    let tagged = |segment: &Segment| Tagged {
        start: ObjectOffset(segment.start.0),
        length: segment.length,
        tag: tag_name(segment.tag).to_owned(),
    };
    NewObject {
        name: info.name.to_string(),
        size: info.size,
        page_size: info.page_size.bytes(),
        scheduler: match info.scheduler {
            SchedulerKind::Simple => store::SchedulerKind::Simple,
            SchedulerKind::Multi | SchedulerKind::Usual => store::SchedulerKind::Multi,
            SchedulerKind::Distributed => store::SchedulerKind::Distributed,
        },
        machine,
        tags: info.tags.iter().map(tagged).collect(),
        owner: owner.to_owned(),
        rights: Vec::new(),
    }
}

/// The name of a type. Objects are made with types that there are.
fn tag_name(tag: TypeCode) -> &'static str {
    tag.tag().unwrap_or_default().name()
}

/// What an object is that the store or the directory has.
///
/// # Errors
/// Why it cannot be an object.
pub(super) fn info(kept: &NewObject) -> Result<control::Object, String> {
    Ok(control::Object {
        name: Name::try_from(kept.name.clone()).map_err(|error| error.to_string())?,
        size: kept.size,
        page_size: PageSize::try_from(kept.page_size).map_err(|error| error.to_string())?,
        scheduler: match kept.scheduler {
            store::SchedulerKind::Simple => SchedulerKind::Simple,
            store::SchedulerKind::Multi => SchedulerKind::Multi,
            store::SchedulerKind::Distributed => SchedulerKind::Distributed,
        },
        machine: kept.machine.into(),
        tags: kept.tags.iter().map(segment).collect::<Result<_, _>>()?,
    })
}

/// The object that the store kept.
fn restored(kept: &NewObject) -> Result<Object, String> {
    let (key, is_removed) = kept.key();
    let is = NewObject {
        name: key.to_owned(),
        ..kept.clone()
    };
    let object = Object::new(info(&is)?, is.owner, None);
    let mut object = object.map_err(|(_, text)| text)?;
    object.is_discarded = is_removed;
    object.missed.begin();
    object.grants = kept
        .rights
        .iter()
        .map(|grant| {
            let rights = Rights {
                read: grant.read,
                write: grant.write,
            };
            (grant.who.clone(), rights)
        })
        .collect();
    Ok(object)
}

fn segment(tagged: &Tagged) -> Result<Segment, String> {
    let tag: TypeTag = tagged.tag.parse().map_err(|error| format!("{error}"))?;
    Ok(Segment {
        start: Bytes(tagged.start.0),
        length: tagged.length,
        tag: tag.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::control::MachineCode;

    #[test]
    fn what_an_object_is_comes_back_as_it_was() {
        let info = control::Object {
            name: "grid".parse().expect("a name"),
            size: Bytes(1 << 20),
            page_size: PageSize::try_from(Bytes(64 << 10)).expect("a size"),
            scheduler: SchedulerKind::Simple,
            machine: MachineCode(2),
            tags: vec![Segment {
                start: Bytes(8192),
                length: Bytes(4096),
                tag: TypeCode(6),
            }],
        };
        let mut object = Object::new(info, "node-1".into(), None)
            .map_err(|(_, text)| text)
            .expect("valid");
        let only = |read, write| Rights { read, write };
        for (who, rights) in [("anyone", only(true, false)), ("uid:7", only(true, true))] {
            object
                .grant(who.into(), rights)
                .map_err(|(_, text)| text)
                .expect("few");
        }
        let again = restored(&record(&object)).expect("valid");
        assert_eq!(again.info, object.info);
        assert_eq!(again.owner, "node-1");
        assert!(again.grants.held().eq(object.grants.held()));
        assert_eq!(again.grants.held().count(), 2);
        assert_eq!(record(&again), record(&object));
    }
}
