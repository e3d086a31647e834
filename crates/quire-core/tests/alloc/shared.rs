//! Objects that watch, die, are taken for dead or refuse.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, Once};

use quire_core::dsm::alloc::{Changed, List, Local, Refused, Shared, Word};
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

    fn word(&self, at: ObjectOffset) -> Word<'_> {
        self.touched.lock().unwrap().insert(at.0 / self.page);
        self.object.word(at)
    }

    fn lock(&self, list: List) -> Result<Self::Guard<'_>, Refused> {
        self.object.lock(list)
    }

    fn tag(&self, range: Range<ObjectOffset>, tag: TypeTag) -> Result<(), Refused> {
        self.object.tag(range, tag)
    }

    fn publish(&self, range: Range<ObjectOffset>) -> Result<(), Refused> {
        self.object.publish(range)
    }

    fn is_sure(&self) -> bool {
        true
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

    fn word(&self, at: ObjectOffset) -> Word<'_> {
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

    fn publish(&self, range: Range<ObjectOffset>) -> Result<(), Refused> {
        self.object.publish(range)
    }

    fn is_sure(&self) -> bool {
        true
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

    fn word(&self, at: ObjectOffset) -> Word<'_> {
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

    fn publish(&self, range: Range<ObjectOffset>) -> Result<(), Refused> {
        self.object.publish(range)
    }

    fn is_sure(&self) -> bool {
        true
    }
}

/// No lock keeps others away.
pub struct Open<'a>(pub &'a Local);

impl Shared for Open<'_> {
    type Guard<'a>
        = ()
    where
        Self: 'a;

    fn size(&self) -> Bytes {
        self.0.size()
    }

    fn word(&self, at: ObjectOffset) -> Word<'_> {
        self.0.word(at)
    }

    fn lock(&self, _: List) -> Result<(), Refused> {
        Ok(())
    }

    fn tag(&self, range: Range<ObjectOffset>, tag: TypeTag) -> Result<(), Refused> {
        self.0.tag(range, tag)
    }

    fn publish(&self, range: Range<ObjectOffset>) -> Result<(), Refused> {
        self.0.publish(range)
    }

    fn is_sure(&self) -> bool {
        true
    }
}

/// Is taken for dead after so many steps, as it waits for a page, a lock, a tag or the server; what
/// others do then happens at once, whatever lock is held here. It goes on after that.
pub struct Forsaken<'a> {
    pub object: Open<'a>,
    pub steps: AtomicU64,
    pub is_sure: AtomicBool,
    pub meanwhile: &'a (dyn Fn() + Sync),
}

impl Forsaken<'_> {
    fn step(&self) {
        if self.steps.fetch_sub(1, SeqCst) == 0 {
            self.is_sure.store(false, SeqCst);
            (self.meanwhile)();
        }
    }
}

impl Shared for Forsaken<'_> {
    type Guard<'a>
        = ()
    where
        Self: 'a;

    fn size(&self) -> Bytes {
        self.object.size()
    }

    fn word(&self, at: ObjectOffset) -> Word<'_> {
        self.step();
        self.object.word(at)
    }

    fn lock(&self, list: List) -> Result<(), Refused> {
        self.step();
        self.object.lock(list)
    }

    fn tag(&self, range: Range<ObjectOffset>, tag: TypeTag) -> Result<(), Refused> {
        self.object.tag(range, tag)?;
        self.step();
        Ok(())
    }

    fn publish(&self, range: Range<ObjectOffset>) -> Result<(), Refused> {
        self.step();
        self.object.publish(range)
    }

    fn is_sure(&self) -> bool {
        self.is_sure.load(SeqCst)
    }

    fn change(&self, at: ObjectOffset, from: u64, to: u64) -> Changed {
        // It waits for the page, and looks again after that.
        self.step();
        match self.is_sure() {
            true => self.object.change(at, from, to),
            false => Changed::Unsure,
        }
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

    fn word(&self, at: ObjectOffset) -> Word<'_> {
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

    fn publish(&self, range: Range<ObjectOffset>) -> Result<(), Refused> {
        self.object.publish(range)
    }

    fn is_sure(&self) -> bool {
        true
    }
}

/// Two machines with caches of their own: what the first one wrote to a page since the
/// second one last looked at it, or it published it, is lost when it dies.
pub struct Caches<'a> {
    pub object: &'a Local,
    pub page: u64,
    /// What the pages held before the first machine wrote what nobody else has.
    pub before: Mutex<BTreeMap<u64, Vec<u64>>>,
    /// The first machine dies after it has changed so many words.
    pub steps: AtomicU64,
    /// The word that it used last, and what that was before.
    last: Mutex<Option<(ObjectOffset, u64)>>,
    /// At each step, the second machine looks at some pages; which, this decides.
    pub dice: AtomicU64,
}

impl<'a> Caches<'a> {
    pub fn new(object: &'a Local, page: u64, seed: u64) -> Caches<'a> {
        Caches {
            object,
            page,
            before: Mutex::default(),
            steps: u64::MAX.into(),
            last: Mutex::default(),
            dice: (seed + 1).into(),
        }
    }

    fn words_of(&self, page: u64) -> impl Iterator<Item = Word<'_>> {
        let start = page * self.page;
        let offsets = (start..start + self.page).step_by(8).map(ObjectOffset);
        offsets.map(|at| self.object.word(at))
    }

    /// The second machine has seen a page.
    pub fn seen(&self, page: u64) {
        self.before.lock().unwrap().remove(&page);
    }

    /// Whether the word that the first machine used last was changed by that.
    fn has_written(&self) -> bool {
        let last = self.last.lock().unwrap().take();
        last.is_some_and(|(at, before)| self.object.word(at).load() != before)
    }

    /// A step of the first machine, which uses a word.
    fn step(&self, at: ObjectOffset) {
        if self.has_written() && self.steps.fetch_sub(1, SeqCst) == 0 {
            std::panic::panic_any(END);
        }
        if self.roll(16) == 0 {
            self.look();
        }
        let page = at.0 / self.page;
        let old = || self.words_of(page).map(Word::load).collect();
        let mut before = self.before.lock().unwrap();
        before.entry(page).or_insert_with(old);
        *self.last.lock().unwrap() = Some((at, self.object.word(at).load()));
    }

    /// A random number.
    fn roll(&self, sides: u64) -> u64 {
        let dice = self.dice.load(SeqCst);
        let dice = dice.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        self.dice.store(dice, SeqCst);
        (dice >> 32) % sides
    }

    /// The second machine happens to look at one of the pages that the first one has.
    fn look(&self) {
        let mut before = self.before.lock().unwrap();
        let which = self.roll(before.len().max(1) as u64) as usize;
        let seen = before.keys().nth(which).copied();
        seen.map(|page| before.remove(&page));
    }

    /// The first machine is dead; the last moment of some pages was seen.
    pub fn lose(&self) {
        (0..self.roll(6)).for_each(|_| self.look());
        for (page, words) in std::mem::take(&mut *self.before.lock().unwrap()) {
            let pairs = self.words_of(page).zip(words);
            pairs.for_each(|(word, old)| word.store(old));
        }
    }
}

/// The first machine.
impl Shared for Caches<'_> {
    type Guard<'a>
        = <Local as Shared>::Guard<'a>
    where
        Self: 'a;

    fn size(&self) -> Bytes {
        self.object.size()
    }

    fn word(&self, at: ObjectOffset) -> Word<'_> {
        self.step(at);
        self.object.word(at)
    }

    fn lock(&self, list: List) -> Result<Self::Guard<'_>, Refused> {
        self.object.lock(list)
    }

    fn tag(&self, range: Range<ObjectOffset>, tag: TypeTag) -> Result<(), Refused> {
        self.object.tag(range, tag)
    }

    fn publish(&self, range: Range<ObjectOffset>) -> Result<(), Refused> {
        if self.has_written() && self.steps.fetch_sub(1, SeqCst) == 0 {
            std::panic::panic_any(END);
        }
        let pages = range.start.0 / self.page..range.end.0 / self.page;
        pages.for_each(|page| self.seen(page));
        Ok(())
    }

    fn is_sure(&self) -> bool {
        true
    }
}

/// The second machine, which sees all that the first one has written.
pub struct Other<'a>(pub &'a Caches<'a>);

impl Shared for Other<'_> {
    type Guard<'a>
        = <Local as Shared>::Guard<'a>
    where
        Self: 'a;

    fn size(&self) -> Bytes {
        self.0.object.size()
    }

    fn word(&self, at: ObjectOffset) -> Word<'_> {
        self.0.seen(at.0 / self.0.page);
        self.0.object.word(at)
    }

    fn lock(&self, list: List) -> Result<Self::Guard<'_>, Refused> {
        self.0.object.lock(list)
    }

    fn tag(&self, range: Range<ObjectOffset>, tag: TypeTag) -> Result<(), Refused> {
        self.0.object.tag(range, tag)
    }

    fn publish(&self, _: Range<ObjectOffset>) -> Result<(), Refused> {
        Ok(())
    }

    fn is_sure(&self) -> bool {
        true
    }
}
