//! How pagers and the store, which answer from threads of their own, make the event loop
//! look at what they say.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::wire::control::Name;

/// What wakes an event loop.
type Rope = Box<dyn Fn() + Send + Sync>;

/// Who has something to say. A clone is the same bell.
#[derive(Clone, Default)]
pub struct Bell(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Objects whose pagers have said something.
    objects: Mutex<BTreeSet<Name>>,
    /// Until it is here, the loop has to look on its own.
    rope: OnceLock<Rope>,
}

impl Bell {
    /// From now on this is called when there is something to look at.
    pub fn hang(&self, rope: impl Fn() + Send + Sync + 'static) {
        // The first one stays.
        let _ = self.0.rope.set(Box::new(rope));
        if !self.lock().is_empty() {
            self.wake();
        }
    }

    /// Wakes the loop.
    pub fn wake(&self) {
        if let Some(rope) = self.0.rope.get() {
            rope();
        }
    }

    /// The pager of an object has said something.
    fn ring(&self, object: &Name) {
        let mut objects = self.lock();
        let is_first = objects.is_empty();
        objects.insert(object.clone());
        drop(objects);
        if is_first {
            self.wake();
        }
    }

    /// Objects whose pagers have said something since the last time.
    pub fn heard(&self) -> BTreeSet<Name> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<Name>> {
        let objects = self.0.objects.lock();
        objects.unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bell of one object. While the loop itself calls the pager, it makes no noise: the
/// loop looks right after that.
#[derive(Clone)]
pub struct Clapper {
    is_held: Arc<AtomicBool>,
}

impl Clapper {
    /// A bell's clapper for an object, and what a pager's [`crate::pager::Waker`] does.
    pub fn new(bell: Bell, object: Name) -> (Clapper, crate::pager::Waker) {
        let is_held = Arc::new(AtomicBool::new(false));
        let clapper = Clapper {
            is_held: is_held.clone(),
        };
        let wake = move || {
            if !is_held.load(Ordering::SeqCst) {
                bell.ring(&object);
            }
        };
        (clapper, Arc::new(wake))
    }

    /// Does something during which nobody has to be woken. Whoever calls looks at what was
    /// said afterwards: what another thread said meanwhile is there then, too.
    pub fn quietly<T>(&self, act: impl FnOnce() -> T) -> T {
        self.is_held.store(true, Ordering::SeqCst);
        let done = act();
        self.is_held.store(false, Ordering::SeqCst);
        done
    }
}
