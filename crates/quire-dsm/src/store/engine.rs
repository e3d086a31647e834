//! What a store writes, and in which order. Tests run it over a disk that crashes.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use quire_core::dsm::message::{PageNumber, Pages};

use super::disk::Disk;
use super::guard::Guard;
use super::layout::{beyond_use, catalogue, confirm, prepare};
use super::log::{self, Change, Log, Logged};
use super::part::Places;
use super::shared::{Key, Recent, Request, Shared, right_lengths, write_lock};
use super::{Damage, Object, ObjectId, Settings, StoreError, is_zero};

/// What writes.
pub(super) struct Engine {
    pub(super) shared: Arc<Shared>,
    log: Log,
    batch: u64,
    /// Pages of the commit that is under way that have space in their places. It is theirs
    /// also where the log has older zeros for them.
    promised: HashSet<Key>,
    /// Why the log could not be emptied.
    stuck: Option<StoreError>,
}

impl Engine {
    /// Opens what is on a disk, or makes it, and brings it into order.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        settings: &Settings,
        directory: &str,
    ) -> Result<(Arc<Shared>, Engine), StoreError> {
        let io = |error: io::Error| StoreError::io("cannot open the store", &error);
        let disk = Arc::new(Guard::new(disk, directory));
        prepare(&*disk, settings, directory)?;
        confirm(&disk);
        let mut damage = Vec::new();
        let (catalogue, places) = catalogue(disk.clone(), &mut damage).map_err(io)?;
        let damaged = |damage| StoreError::Damaged {
            directory: directory.to_owned(),
            damage,
        };
        let (log, replay) = Log::open(disk.clone()).map_err(io)?.map_err(damaged)?;
        if let Some(damage) = beyond_use(&replay) {
            return Err(damaged(damage));
        }
        damage.extend(replay.damage.into_iter().map(|(_, damage)| damage));
        for line in Damage::lines(&damage) {
            tracing::error!("{directory}: damaged: {line}");
        }
        let known = |id: &ObjectId| catalogue.objects.contains_key(id);
        let logged = replay.pages.into_iter();
        let logged = logged
            .filter(|(id, ..)| known(id))
            .map(|(id, page, logged)| ((id, page), logged))
            .collect();
        let shared = Arc::new(Shared {
            disk,
            directory: directory.to_owned(),
            catalogue: RwLock::new(catalogue),
            places: RwLock::new(places),
            recent: Mutex::new(Recent {
                queued: HashMap::new(),
                logged,
            }),
            keeping: Mutex::new(()),
            damage,
            tickets: AtomicU64::new(0),
            backlog: AtomicU64::new(0),
        });
        let mut engine = Engine {
            shared: shared.clone(),
            log,
            batch: settings.batch.0,
            promised: HashSet::new(),
            stuck: None,
        };
        // Nothing can be appended before the log begins anew.
        let emptied = engine.empty();
        if let Err(error) = emptied {
            tracing::warn!("{directory}: pages stay in the log: {error}");
            engine.stuck = Some(error);
        }
        Ok((shared, engine))
    }

    /// Empties the log. Where that fails, its pages stay there and are served from there,
    /// and it is tried again later; so a full disk does not keep the store from being read.
    pub(super) fn settle(&mut self) {
        match self.checkpoint() {
            Ok(()) => {}
            Err(error) => {
                if self.stuck.as_ref() != Some(&error) {
                    tracing::warn!("{}: pages stay in the log: {error}", self.shared.directory);
                }
                self.stuck = Some(error);
            }
        }
    }

    /// Whether the log holds nothing.
    pub(super) fn is_at_rest(&self) -> bool {
        let nothing = self.stuck.is_none() && self.shared.recent().logged.is_empty();
        nothing || self.shared.disk.works().is_err()
    }

    /// Writes pages back: what became of each request, in their order. All pages of those
    /// that succeeded are durable.
    pub(super) fn commit(&mut self, requests: &[Request]) -> Vec<Result<(), StoreError>> {
        let mut changes = Vec::new();
        let mut results: Vec<_> = requests
            .iter()
            .map(|request| self.admit(request))
            .enumerate()
            .map(|(index, admitted)| {
                changes.extend(admitted?.into_iter().map(|change| (index, change)));
                Ok(())
            })
            .collect();
        let mut rest = &changes[..];
        while !rest.is_empty() {
            let (batch, left) = rest.split_at(self.batch_of(rest));
            if let Err(error) = self.append(batch) {
                for (index, _) in batch {
                    results[*index] = Err(error.clone());
                }
            }
            rest = left;
        }
        self.promised.clear();
        self.forget(requests);
        results
    }

    /// What a request changes, with the space for it.
    fn admit(&mut self, request: &Request) -> Result<Vec<Change>, StoreError> {
        self.shared.disk.works()?;
        let object = self.shared.get(request.object)?;
        object.look_at(Pages {
            first: PageNumber(request.first),
            count: u32::try_from(request.data.len()).unwrap_or(u32::MAX),
        })?;
        if !right_lengths(&object, &request.data) {
            let size = object.is.page_size.0;
            return Err(StoreError::Invalid(format!("a page has {size} bytes")));
        }
        let changes: Vec<_> = (request.first..)
            .zip(&request.data)
            .map(|(page, contents)| Change {
                object: request.object,
                page,
                contents: contents.clone().filter(|contents| !is_zero(contents)),
            })
            .collect();
        self.reserve(&object, &changes)?;
        Ok(changes)
    }

    /// Gets the space for changes, or for none of them.
    fn reserve(&mut self, object: &Object, changes: &[Change]) -> Result<(), StoreError> {
        let mut places = write_lock(&self.shared.places);
        let mut taken = Vec::new();
        let held = || changes.iter().filter(|change| change.contents.is_some());
        for change in held() {
            let key = (change.object, change.page);
            let logged = self.shared.recent().logged.get(&key).cloned();
            if self.promised.contains(&key) || matches!(logged, Some(Logged::Held(_))) {
                continue;
            }
            match places.reserve(change.object, change.page) {
                Ok(true) => taken.push(key),
                Ok(false) => {}
                Err(error) => {
                    for (object, page) in taken {
                        places.release(object, page);
                    }
                    let what = format!("no place for page {} of {}", change.page, object.is.name);
                    return Err(StoreError::io(&what, &error));
                }
            }
        }
        drop(places);
        let keys = held().map(|change| (change.object, change.page));
        self.promised.extend(keys);
        Ok(())
    }

    /// How many of these changes make the next batch: at least one.
    fn batch_of(&self, changes: &[(usize, Change)]) -> usize {
        let most = self.batch.min(self.log.room());
        let mut count = 0;
        let mut size = log::size(&[]);
        for (_, change) in changes {
            let page = change.contents.as_ref().map_or(0, |page| page.len() as u64);
            size += page + log::ENTRY as u64;
            if count > 0 && size.next_multiple_of(log::BLOCK) > most {
                break;
            }
            count += 1;
        }
        count
    }

    fn append(&mut self, batch: &[(usize, Change)]) -> Result<(), StoreError> {
        self.shared.disk.works()?;
        let changes: Vec<Change> = batch.iter().map(|(_, change)| change.clone()).collect();
        if !self.log.fits(log::size(&changes)) {
            self.empty()?;
        }
        self.log
            .append(&changes)
            .map_err(|error| StoreError::io("cannot write to the log", &error))?;
        let mut recent = self.shared.recent();
        for change in changes {
            let logged = change.contents.map_or(Logged::Zero, Logged::Held);
            recent.logged.insert((change.object, change.page), logged);
        }
        Ok(())
    }

    /// The requests are done: what they wanted is in the log, or does not count.
    fn forget(&self, requests: &[Request]) {
        let mut recent = self.shared.recent();
        for request in requests {
            self.shared
                .backlog
                .fetch_sub(request.bytes(), Ordering::Relaxed);
            for (page, _) in (request.first..).zip(&request.data) {
                let key = (request.object, page);
                if recent
                    .queued
                    .get(&key)
                    .is_some_and(|(ticket, _)| *ticket == request.ticket)
                {
                    recent.queued.remove(&key);
                }
            }
        }
    }

    /// Puts all pages of the log into their places.
    ///
    /// # Errors
    /// Why they stay in the log.
    pub(super) fn checkpoint(&mut self) -> Result<(), StoreError> {
        if self.shared.recent().logged.is_empty() && self.stuck.is_none() {
            return Ok(());
        }
        self.empty()
    }

    /// All pages of the log are put, also those that an earlier try has put: what that one
    /// wrote need not be durable, and a sync of it may have failed.
    fn empty(&mut self) -> Result<(), StoreError> {
        self.shared.disk.works()?;
        self.log
            .confirm()
            .map_err(|error| StoreError::io("cannot make the log durable", &error))?;
        let logged = self.shared.recent().logged.clone();
        // Pages come in the order of their parts: one is synced before the next is begun, so
        // that few files at a time are open and not synced.
        let mut begun = None;
        for (key, contents) in &logged {
            let part = write_lock(&self.shared.places).part_of(key.0, key.1);
            let part = part.map(|part| (key.0, part));
            if part != begun {
                self.sync(begun)?;
            }
            begun = self.put(*key, contents)?;
        }
        self.sync(begun)?;
        self.log
            .begin_anew()
            .map_err(|error| StoreError::io("cannot begin the log anew", &error))?;
        self.shared.recent().logged.clear();
        self.stuck = None;
        Ok(())
    }

    /// Puts a page into its place, and says in which part that is.
    fn put(&self, key: Key, contents: &Logged) -> Result<Option<(ObjectId, u32)>, StoreError> {
        let (object, page) = key;
        let mut places = write_lock(&self.shared.places);
        let keep = self.promised.contains(&key);
        places.put(object, page, contents, keep).map_err(|error| {
            let what = format!("cannot put page {page} of object {object} into its place");
            StoreError::io(&what, &error)
        })?;
        Ok(places.part_of(object, page).map(|part| (object, part)))
    }

    /// Makes a part durable.
    fn sync(&self, part: Option<(ObjectId, u32)>) -> Result<(), StoreError> {
        let Some((object, part)) = part else {
            return Ok(());
        };
        Places::sync(&*self.shared.disk, object, part).map_err(|error| {
            let what = format!("cannot make part {part} of object {object} durable");
            StoreError::io(&what, &error)
        })
    }
}
