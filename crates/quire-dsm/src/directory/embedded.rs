//! A directory inside of one server.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::asked::{Answers, Question, Reply};
use super::state::{Ages, Command, Lasting, State};
use super::{Change, DirectoryError, LeaseId, Watcher};
use crate::random::random;
use crate::store::Store;

/// Under which name it is kept in the store.
const KEPT: &str = "directory";

/// The version of its format, which is kept in front of it. What earlier versions kept began with
/// how many names there were: never so many.
const FORMAT: u32 = 0x5144_0002;

/// What errors call it.
const NAME: &str = "of this server";

#[derive(Default)]
struct Inside {
    state: State,
    ages: Ages,
    watchers: Vec<Watcher>,
}

type Clock = Arc<dyn Fn() -> Instant + Send + Sync>;

/// The directory of one server. Names and views are kept in its store, where it has one;
/// members are not, so after a restart all servers must join anew.
pub struct Embedded {
    store: Option<Arc<Store>>,
    inside: Mutex<Inside>,
    clock: Clock,
}

impl Embedded {
    /// A directory; with a store, what was kept there.
    ///
    /// # Errors
    /// Where what was kept cannot be read, or another version of this library kept it.
    pub fn new(store: Option<Arc<Store>>) -> Result<Embedded, DirectoryError> {
        Embedded::with_clock(store, Arc::new(Instant::now))
    }

    /// A directory with a clock of its own.
    ///
    /// # Errors
    /// As [`Embedded::new`].
    pub fn with_clock(store: Option<Arc<Store>>, clock: Clock) -> Result<Embedded, DirectoryError> {
        let lasting = store.as_deref().map(kept).transpose()?;
        let inside = Inside {
            state: State::new(lasting.unwrap_or_default()),
            ..Inside::default()
        };
        Ok(Embedded {
            store,
            inside: Mutex::new(inside),
            clock,
        })
    }

    /// Ends leases that are over, and says when the next one may be. Every other call does
    /// this, too; watchers hear of it then.
    pub fn expire(&self) -> Option<Instant> {
        self.lock().ages.next()
    }

    /// What is inside, without leases that are over.
    fn lock(&self) -> MutexGuard<'_, Inside> {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let now = (self.clock)();
        for over in inside.ages.over(&inside.state, now) {
            inside.apply(Command::Expire(over), now);
        }
        inside
    }

    /// Does what was asked: what lasts is first changed on disk, then for everybody.
    fn obey(&self, command: Command) -> Result<Reply, DirectoryError> {
        let mut inside = self.lock();
        if let Command::Ask(_, Question::Renew(lease)) = command {
            let Inside { state, ages, .. } = &mut *inside;
            ages.renew(state, lease, (self.clock)());
        }
        if let Some(store) = &self.store {
            let mut then = inside.state.clone();
            then.apply(command.clone());
            if then.lasting != inside.state.lasting {
                store.keep(KEPT, &(FORMAT, &then.lasting))?;
            }
        }
        Ok(inside.apply(command, (self.clock)()))
    }
}

/// What was kept in a store.
fn kept(store: &Store) -> Result<Lasting, DirectoryError> {
    // The format alone comes first: what follows may not be ours.
    if store.kept::<u32>(KEPT)?.is_some_and(|it| it != FORMAT) {
        let what =
            "its store has it in the format of another version; use the version that made it";
        return Err(DirectoryError::Refused(NAME.to_owned(), what.to_owned()));
    }
    let kept = store.kept::<(u32, Lasting)>(KEPT)?;
    Ok(kept.map(|(_, lasting)| lasting).unwrap_or_default())
}

impl Inside {
    fn apply(&mut self, command: Command, now: Instant) -> Reply {
        let (reply, change) = self.state.apply(command);
        self.ages.look(&self.state, now);
        if let Some(change) = change {
            self.watchers.retain(|watcher| watcher.tell(change.clone()));
        }
        reply
    }
}

impl Answers for Embedded {
    fn ask(&self, question: Question) -> Result<Reply, DirectoryError> {
        // A server may still hold a lease of an earlier directory at this address. That one
        // must not be a lease of this one.
        let fresh = LeaseId(random());
        self.obey(Command::Ask(fresh, question))
    }

    fn name(&self) -> &str {
        NAME
    }

    fn watch(&self, watcher: Watcher) -> Result<(), DirectoryError> {
        // Nothing changes between what it reads now and what it hears.
        let mut inside = self.lock();
        if watcher.tell(Change::Missed) {
            inside.watchers.push(watcher);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::store::Settings;

    /// What an earlier version kept, as its names and views, is not taken for something else.
    #[test]
    fn what_another_version_kept_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let settings = Settings {
            log: Settings::SMALLEST_LOG,
            ..Settings::default()
        };
        let store = Arc::new(Store::open(place.path(), &settings).unwrap());
        let earlier = [BTreeMap::from([(1u64, 1u64)]), BTreeMap::new()];
        store.keep(KEPT, &earlier).unwrap();
        let refused = Embedded::new(Some(store.clone())).err();
        let text = refused.expect("it is another format").to_string();
        assert!(text.contains("format of another version"), "{text}");
        store.keep(KEPT, &(FORMAT, Lasting::default())).unwrap();
        assert!(Embedded::new(Some(store)).is_ok());
    }
}
