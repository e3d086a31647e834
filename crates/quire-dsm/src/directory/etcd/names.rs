//! Where objects lie in an etcd, and how one is changed that may move meanwhile.

use serde_json::{Value, json};

use super::super::{DirectoryError, Entry, slots};
use super::{Etcd, Tried};

/// What others have changed since it was looked at is tried again, at most so often.
pub(super) const TRIES: usize = 16;

/// An object, at which of etcd's keys it lies, and since when.
pub(super) struct Lying {
    pub entry: Entry,
    pub at: String,
    revision: String,
}

impl Etcd {
    /// The key of a slot.
    pub(super) fn slot(&self, slot: &str) -> String {
        format!("{}names/{slot}", self.prefix)
    }

    /// What lies at a slot.
    pub(super) fn lying_at(&self, slot: &str) -> Result<Option<Lying>, DirectoryError> {
        let at = self.slot(slot);
        let Some(found) = self.get(&at)? else {
            return Ok(None);
        };
        Ok(Some(Lying {
            entry: self.read(&found)?,
            at,
            revision: found.revision,
        }))
    }

    /// What is asked for by a name or an exact spelling. It is looked for in the order in which
    /// objects move, so that none is missed.
    pub(super) fn lying(&self, asked: &str) -> Result<Option<Lying>, DirectoryError> {
        for slot in slots::of(asked) {
            let found = self.lying_at(slot)?;
            if let Some(found) = found.filter(|it| slots::is_meant(asked, &it.entry)) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Makes an object known that lives, for as long as a lease does, if that is not 0.
    pub(super) fn publish_living(&self, entry: &Entry, lease: u64) -> Result<(), DirectoryError> {
        let key = &entry.object.is.name;
        let (name, exact) = (slots::name_of(key), slots::exact(key));
        let at = self.slot(name);
        let key_is_free = Etcd::is_new(&self.slot(&exact));
        let put = json!([self.put(&at, entry, lease)?]);
        let removed = removed(entry);
        let name_is_free = Etcd::is_new(&at);
        for _ in 0..TRIES {
            if self.when(&json!([name_is_free, key_is_free]), &put)? {
                return Ok(());
            }
            let lives = self.lying_at(name)?;
            let other = self.lying_at(&exact)?.map(|it| it.entry);
            let is_it = lives.as_ref().is_some_and(|lives| lives.entry == *entry);
            if is_it || other.as_ref() == Some(&removed) {
                // This request has done it, and its answer was lost.
                return Ok(());
            }
            match lives {
                Some(Lying { entry: lives, .. }) if lives.is_begun() && !entry.is_begun() => {
                    return Err(DirectoryError::Begun(lives.object.is.name));
                }
                Some(_) => return Err(DirectoryError::Exists(format!("an object {name}"))),
                None => {}
            }
            if other.is_some() {
                return Err(DirectoryError::InUse(format!("object {key}")));
            }
        }
        Err(self.restless(name))
    }

    /// Makes an object known that was removed.
    pub(super) fn publish_removed(&self, entry: &Entry) -> Result<(), DirectoryError> {
        let key = &entry.object.is.name;
        let (name, exact) = (slots::name_of(key), slots::exact(key));
        let at = self.slot(&exact);
        let put = json!([self.put(&at, entry, 0)?]);
        let in_use = || Err(DirectoryError::InUse(format!("object {key}")));
        for _ in 0..TRIES {
            let lives = self.lying_at(name)?;
            let unchanged = match &lives {
                Some(lives) if lives.entry.object.is.name == *key => return in_use(),
                Some(lives) => Etcd::is_at(&lives.at, &lives.revision),
                None => Etcd::is_new(&self.slot(name)),
            };
            if self.when(&json!([unchanged, Etcd::is_new(&at)]), &put)? {
                return Ok(());
            }
            match self.lying_at(&exact)? {
                // This request has done it, and its answer was lost.
                Some(other) if other.entry == *entry => return Ok(()),
                Some(_) => return in_use(),
                None => {}
            }
        }
        Err(self.restless(key))
    }

    /// Puts an object in the place of the one that is begun and has its key.
    pub(super) fn put_for_begun(&self, entry: &Entry) -> Result<(), DirectoryError> {
        let key = &entry.object.is.name;
        let (name, exact) = (slots::name_of(key), slots::exact(key));
        for _ in 0..TRIES {
            let lying = match self.lying(&exact)? {
                Some(lying) if lying.entry.is_begun() => lying,
                // This request has done it, and its answer was lost.
                Some(lying) if lying.entry == *entry || lying.entry == removed(entry) => {
                    return Ok(());
                }
                Some(_) => return Err(DirectoryError::Exists(format!("an object {name}"))),
                None => return Err(DirectoryError::Missing(format!("object {key}"))),
            };
            let put = json!([self.put(&lying.at, entry, 0)?]);
            let as_found = Etcd::is_at(&lying.at, &lying.revision);
            if self.when(&json!([as_found]), &put)? {
                return Ok(());
            }
        }
        Err(self.restless(key))
    }

    /// Changes the object with a key, as long as it lies where it was found: `change` says how,
    /// or that nothing is to be done, given what became of the last try. What it was before.
    pub(super) fn change_object(
        &self,
        key: &str,
        change: impl Fn(&Lying, Tried) -> Result<Option<Value>, DirectoryError>,
    ) -> Result<Entry, DirectoryError> {
        let exact = slots::exact(key);
        let missing = || DirectoryError::Missing(format!("object {key}"));
        let mut lying = self.lying(&exact)?.ok_or_else(missing)?;
        let object = lying.entry.object.id;
        let mut tried = Tried::Not;
        for _ in 0..TRIES {
            let Some(success) = change(&lying, tried)? else {
                return Ok(lying.entry);
            };
            let as_found = Etcd::is_at(&lying.at, &lying.revision);
            match (tried, self.tried(&json!([as_found]), &success)?) {
                (_, Tried::Done) => return Ok(lying.entry),
                // It stays unknown, whatever comes of the next try.
                (Tried::Unknown, _) => {}
                (_, now) => tried = now,
            }
            // What is begun gets another number with its size.
            let was_begun = lying.entry.is_begun();
            let is_it = |moved: &Lying| was_begun || moved.entry.object.id == object;
            lying = match self.lying(&exact)?.filter(is_it) {
                Some(moved) => moved,
                // It is gone, by this request, whose answer was lost, or by another's. One that
                // was made since with this key is another object.
                None if tried == Tried::Unknown => return Ok(lying.entry),
                None => return Err(missing()),
            };
        }
        Err(self.restless(key))
    }

    /// What others change is never as it was looked at.
    pub(super) fn restless(&self, key: &str) -> DirectoryError {
        let why = format!("others change {key} again and again");
        DirectoryError::Refused(self.urls.clone(), why)
    }
}

/// An object's entry as it is when it has given its name up.
pub(super) fn removed(entry: &Entry) -> Entry {
    Entry {
        is_removed: true,
        ..entry.clone()
    }
}
