//! An object inside of one process, for tests and for trying things out: its words, its
//! locks and its tags are in ordinary memory.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{List, Refused, Shared, Word};
use crate::dsm::types::{TagMap, TypeTag};
use crate::units::{Bytes, ObjectOffset};

/// The object.
#[derive(Debug)]
pub struct Local {
    words: Vec<AtomicU64>,
    locks: Vec<Mutex<()>>,
    tags: Mutex<TagMap>,
}

impl Local {
    /// An object of this size, rounded up to 8 bytes, all zeros.
    #[must_use]
    pub fn new(size: Bytes) -> Local {
        let words = size.0.div_ceil(8);
        Local {
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            locks: (0..List::COUNT).map(|_| Mutex::new(())).collect(),
            tags: Mutex::new(TagMap::new(Bytes(words * 8))),
        }
    }

    /// The tags that its segments got.
    #[must_use]
    pub fn tags(&self) -> TagMap {
        let tags = self.tags.lock().unwrap_or_else(PoisonError::into_inner);
        tags.clone()
    }
}

impl Shared for Local {
    type Guard<'a> = MutexGuard<'a, ()>;

    fn size(&self) -> Bytes {
        Bytes(self.words.len() as u64 * 8)
    }

    fn word(&self, at: ObjectOffset) -> Word<'_> {
        Word::new(&self.words[(at.0 / 8) as usize])
    }

    fn lock(&self, list: List) -> Result<MutexGuard<'_, ()>, Refused> {
        let lock = &self.locks[list.number()];
        // A thread that died in here left nothing half done.
        Ok(lock.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn tag(&self, range: Range<ObjectOffset>, tag: TypeTag) -> Result<(), Refused> {
        let mut tags = self.tags.lock().unwrap_or_else(PoisonError::into_inner);
        let untyped = tags.tag(range.clone(), TypeTag::Untyped);
        let tagged = untyped.and_then(|()| tags.tag(range, tag));
        tagged.map_err(|error| Refused(error.to_string()))
    }

    fn publish(&self, _: Range<ObjectOffset>) -> Result<(), Refused> {
        // Whoever sees one word sees all.
        Ok(())
    }

    fn is_sure(&self) -> bool {
        // Only who is dead loses a lock.
        true
    }
}
