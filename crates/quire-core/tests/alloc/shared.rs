//! Objects that watch, die or refuse.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, Once};

use quire_core::dsm::alloc::{List, Local, Refused, Shared};
use quire_core::dsm::types::TypeTag;
use quire_core::units::{Bytes, ObjectOffset};

/// Notes which pages are touched.
pub struct Traced<'a> {
    pub object: &'a Local,
    pub page: u64,
    pub touched: Mutex<BTreeSet<u64>>,
}

impl Traced<'_> {
    /// The pages that were touched since the last call.
    pub fn pages(&self) -> BTreeSet<u64> {
        std::mem::take(&mut self.touched.lock().unwrap())
    }
}

impl Shared for Traced<'_> {
    type Guard<'a>
        = <Local as Shared>::Guard<'a>
    where
        Self: 'a;

    fn size(&self) -> Bytes {
        self.object.size()
    }

    fn word(&self, at: ObjectOffset) -> &AtomicU64 {
        self.touched.lock().unwrap().insert(at.0 / self.page);
        self.object.word(at)
    }

    fn lock(&self, list: List) -> Result<Self::Guard<'_>, Refused> {
        self.object.lock(list)
    }

    fn tag(&self, range: Range<ObjectOffset>, tag: TypeTag) -> Result<(), Refused> {
        self.object.tag(range, tag)
    }
}

/// What a machine that dies panics with.
const END: &str = "the end of this machine";

/// Machines that die say nothing from now on.
pub fn quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if panic.payload().downcast_ref::<&str>() != Some(&END) {
                usual(panic);
            }
        }));
    });
}

/// Panics after so many steps: before a word is used, a lock is taken or a tag given.
pub struct Dying<'a> {
    pub object: &'a Local,
    pub steps: AtomicU64,
}

impl Dying<'_> {
    fn step(&self) {
        let left = self.steps.load(SeqCst);
        if left == 0 {
            std::panic::panic_any(END);
        }
        self.steps.store(left - 1, SeqCst);
    }
}

impl Shared for Dying<'_> {
    type Guard<'a>
        = <Local as Shared>::Guard<'a>
    where
        Self: 'a;

    fn size(&self) -> Bytes {
        self.object.size()
    }

    fn word(&self, at: ObjectOffset) -> &AtomicU64 {
        self.step();
        self.object.word(at)
    }

    fn lock(&self, list: List) -> Result<Self::Guard<'_>, Refused> {
        self.step();
        self.object.lock(list)
    }

    fn tag(&self, range: Range<ObjectOffset>, tag: TypeTag) -> Result<(), Refused> {
        self.step();
        self.object.tag(range, tag)
    }
}

/// Lets something else happen once, after so many words were used, as soon as no lock is
/// held.
pub struct Interrupted<'a> {
    pub object: &'a Local,
    pub steps: AtomicU64,
    pub held: AtomicU64,
    pub meanwhile: &'a (dyn Fn() + Sync),
}

/// A lock that is counted while it is held.
pub struct Counted<'a> {
    held: &'a AtomicU64,
    _guard: <Local as Shared>::Guard<'a>,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.held.fetch_sub(1, SeqCst);
    }
}

impl Shared for Interrupted<'_> {
    type Guard<'a>
        = Counted<'a>
    where
        Self: 'a;

    fn size(&self) -> Bytes {
        self.object.size()
    }

    fn word(&self, at: ObjectOffset) -> &AtomicU64 {
        match self.steps.load(SeqCst) {
            0 => {}
            1 if self.held.load(SeqCst) > 0 => {}
            left => {
                self.steps.store(left - 1, SeqCst);
                if left == 1 {
                    (self.meanwhile)();
                }
            }
        }
        self.object.word(at)
    }

    fn lock(&self, list: List) -> Result<Self::Guard<'_>, Refused> {
        let guard = self.object.lock(list)?;
        self.held.fetch_add(1, SeqCst);
        Ok(Counted {
            held: &self.held,
            _guard: guard,
        })
    }

    fn tag(&self, range: Range<ObjectOffset>, tag: TypeTag) -> Result<(), Refused> {
        self.object.tag(range, tag)
    }
}

/// Refuses locks or tags while it is told to.
pub struct Refusing<'a> {
    pub object: &'a Local,
    pub locks: AtomicBool,
    pub tags: AtomicBool,
}

impl Shared for Refusing<'_> {
    type Guard<'a>
        = <Local as Shared>::Guard<'a>
    where
        Self: 'a;

    fn size(&self) -> Bytes {
        self.object.size()
    }

    fn word(&self, at: ObjectOffset) -> &AtomicU64 {
        self.object.word(at)
    }

    fn lock(&self, list: List) -> Result<Self::Guard<'_>, Refused> {
        if self.locks.load(SeqCst) {
            return Err(Refused(format!("no lock for {list}")));
        }
        self.object.lock(list)
    }

    fn tag(&self, range: Range<ObjectOffset>, tag: TypeTag) -> Result<(), Refused> {
        if self.tags.load(SeqCst) {
            return Err(Refused(format!("no tag {tag}")));
        }
        self.object.tag(range, tag)
    }
}
