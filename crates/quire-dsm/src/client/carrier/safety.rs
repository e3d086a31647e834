//! Whether the server keeps for good what was given back. It is in the server's memory first, and on its
//! disk later: until then whoever gave it back may have to bring it to the next server, and is told when
//! that cannot be. So the server is asked, again and again while something is given back.

use std::time::{Duration, Instant};

use super::asking::Awaited;
use super::{Carrier, Key, Object};
use crate::link::turn::Links;
use crate::wire::control::{Handle, Request};

/// The server is asked so often at most.
const PAUSE: Duration = Duration::from_millis(20);
/// The same where it could not keep something.
const RETRY: Duration = Duration::from_secs(5);

/// When it is asked of an object.
#[derive(Debug, Default)]
pub(super) struct Safety {
    /// The answer is on its way.
    is_asked: bool,
    /// Not before this.
    from: Option<Instant>,
}

impl Object {
    /// Of what the server is to be asked whether it is safe, and when.
    fn asks_whether_safe(&self) -> Option<(Handle, u64, Option<Instant>)> {
        let (given_back, safe) = self.cache.given_back();
        let handle = self.handle.filter(|_| given_back > safe)?;
        (!self.safety.is_asked).then_some((handle, given_back, self.safety.from))
    }
}

impl Carrier {
    /// Asks, where it is time to.
    pub(super) fn ask_what_is_safe(&mut self, links: &mut Links, now: Instant) {
        let mut asked = Vec::new();
        for (key, object) in &mut self.objects {
            if let Some((handle, count, from)) = object.asks_whether_safe()
                && from.is_none_or(|from| from <= now)
            {
                (object.safety.is_asked, object.safety.from) = (true, Some(now + PAUSE));
                asked.push((*key, handle, count));
            }
        }
        for (key, object, count) in asked {
            self.ask(links, Request::Sync { object }, Awaited::Safe(key, count));
        }
    }

    /// When something is to be asked next.
    pub(super) fn asks_at(&self) -> Option<Instant> {
        let objects = self.objects.values();
        let due = objects.filter_map(|object| object.asks_whether_safe()?.2);
        due.min()
    }

    /// The server keeps so many pages of an object that were given back, or could not keep all.
    pub(super) fn is_safe(&mut self, key: Key, count: Option<u64>) {
        let Some(object) = self.objects.get_mut(&key) else {
            return;
        };
        object.safety.is_asked = false;
        match count {
            Some(count) => object.cache.is_safe(count),
            None => object.safety.from = Some(Instant::now() + RETRY),
        }
    }
}
