//! A directory inside of one server.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{
    Change, Directory, DirectoryError, Entry, LeaseId, Member, View, Watcher, look_at_epoch,
};
use crate::random::random;
use crate::store::{ObjectId, Store};

/// Under which name it is kept in the store.
const KEPT: &str = "directory";

/// What outlives the server.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Lasting {
    names: BTreeMap<String, Entry>,
    views: BTreeMap<u64, View>,
}

struct Living {
    member: Member,
    length: Duration,
    until: Instant,
}

#[derive(Default)]
struct State {
    lasting: Lasting,
    leases: BTreeMap<u64, Living>,
    watchers: Vec<Watcher>,
}

type Clock = Arc<dyn Fn() -> Instant + Send + Sync>;

/// The directory of one server. Names and views are kept in its store, where it has one;
/// members are not, so after a restart all servers must join anew.
pub struct Embedded {
    store: Option<Arc<Store>>,
    state: Mutex<State>,
    clock: Clock,
}

impl Embedded {
    /// A directory; with a store, what was kept there.
    ///
    /// # Errors
    /// Where what was kept cannot be read.
    pub fn new(store: Option<Arc<Store>>) -> Result<Embedded, DirectoryError> {
        Embedded::with_clock(store, Arc::new(Instant::now))
    }

    /// A directory with a clock of its own.
    ///
    /// # Errors
    /// As [`Embedded::new`].
    pub fn with_clock(store: Option<Arc<Store>>, clock: Clock) -> Result<Embedded, DirectoryError> {
        let kept = store.as_ref().map(|store| store.kept(KEPT)).transpose()?;
        let state = State {
            lasting: kept.flatten().unwrap_or_default(),
            ..State::default()
        };
        Ok(Embedded {
            store,
            state: Mutex::new(state),
            clock,
        })
    }

    /// Ends leases that are over, and says when the next one may be. Every other call does
    /// this, too; watchers hear of it then.
    pub fn expire(&self) -> Option<Instant> {
        let state = self.lock();
        state.leases.values().map(|living| living.until).min()
    }

    /// The state, without leases that are over.
    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = (self.clock)();
        let mut gone = Vec::new();
        state.leases.retain(|_, living| {
            if living.until <= now {
                gone.push(living.member.id);
            }
            living.until > now
        });
        gone.sort_unstable();
        for id in gone {
            state.tell(&Change::Left(id));
        }
        state
    }

    /// Changes what lasts: first on disk, then for everybody.
    fn change(
        &self,
        state: &mut State,
        change: impl FnOnce(&mut Lasting),
    ) -> Result<(), DirectoryError> {
        let mut lasting = state.lasting.clone();
        change(&mut lasting);
        if let Some(store) = &self.store {
            store.keep(KEPT, &lasting)?;
        }
        state.lasting = lasting;
        Ok(())
    }
}

impl State {
    fn tell(&mut self, change: &Change) {
        self.watchers.retain(|watcher| watcher.tell(change.clone()));
    }
}

impl Directory for Embedded {
    fn join(
        &self,
        member: &Member,
        lease: Duration,
    ) -> Result<(LeaseId, Duration), DirectoryError> {
        let mut state = self.lock();
        let mut living = state.leases.values();
        if living.any(|living| living.member.id == member.id) {
            return Err(DirectoryError::Exists(format!("server {}", member.id.0)));
        }
        // A server may still hold a lease of an earlier directory at this address. That one
        // must not be a lease of this one.
        let id = random();
        let living = Living {
            member: member.clone(),
            length: lease,
            until: (self.clock)() + lease,
        };
        state.leases.insert(id, living);
        state.tell(&Change::Joined(member.clone()));
        Ok((LeaseId(id), lease))
    }

    fn renew(&self, lease: LeaseId) -> Result<Duration, DirectoryError> {
        let mut state = self.lock();
        let now = (self.clock)();
        let living = state.leases.get_mut(&lease.0);
        let living = living.ok_or(DirectoryError::LeaseOver)?;
        living.until = now + living.length;
        Ok(living.length)
    }

    fn leave(&self, lease: LeaseId) -> Result<(), DirectoryError> {
        let mut state = self.lock();
        if let Some(living) = state.leases.remove(&lease.0) {
            state.tell(&Change::Left(living.member.id));
        }
        Ok(())
    }

    fn members(&self) -> Result<Vec<Member>, DirectoryError> {
        let state = self.lock();
        let living = state.leases.values();
        let mut members: Vec<_> = living.map(|living| living.member.clone()).collect();
        members.sort_by_key(|member| member.id);
        Ok(members)
    }

    fn publish(&self, entry: &Entry) -> Result<(), DirectoryError> {
        let mut state = self.lock();
        let name = &entry.object.is.name;
        if state.lasting.names.contains_key(name) {
            return Err(DirectoryError::Exists(format!("an object {name}")));
        }
        self.change(&mut state, |lasting| {
            lasting.names.insert(name.clone(), entry.clone());
        })?;
        state.tell(&Change::Published(entry.clone()));
        Ok(())
    }

    fn find(&self, name: &str) -> Result<Option<Entry>, DirectoryError> {
        Ok(self.lock().lasting.names.get(name).cloned())
    }

    fn entries(&self) -> Result<Vec<Entry>, DirectoryError> {
        Ok(self.lock().lasting.names.values().cloned().collect())
    }

    fn withdraw(&self, name: &str) -> Result<(), DirectoryError> {
        let mut state = self.lock();
        let Some(entry) = state.lasting.names.get(name).cloned() else {
            return Err(DirectoryError::Missing(format!("object {name}")));
        };
        self.change(&mut state, |lasting| {
            lasting.names.remove(name);
            lasting.views.remove(&entry.object.id.0);
        })?;
        state.tell(&Change::Withdrawn(name.to_owned()));
        Ok(())
    }

    fn view(&self, object: ObjectId) -> Result<Option<View>, DirectoryError> {
        Ok(self.lock().lasting.views.get(&object.0).cloned())
    }

    fn propose(&self, lease: LeaseId, view: &View) -> Result<(), DirectoryError> {
        let mut state = self.lock();
        let maker = state.leases.get(&lease.0).map(|living| living.member.id);
        if maker != Some(view.by) {
            return Err(DirectoryError::LeaseOver);
        }
        look_at_epoch(state.lasting.views.get(&view.object.0), view)?;
        self.change(&mut state, |lasting| {
            lasting.views.insert(view.object.0, view.clone());
        })?;
        state.tell(&Change::Viewed(view.clone()));
        Ok(())
    }

    fn watch(&self, watcher: Watcher) -> Result<(), DirectoryError> {
        if watcher.tell(Change::Missed) {
            self.lock().watchers.push(watcher);
        }
        Ok(())
    }
}
