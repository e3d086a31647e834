//! Memory of an object, allocated by type (paper 003, Figure 5 and section 7.3).
//!
//! The state is inside of the object, so that all machines agree, and pointers are offsets
//! in it. All control words have 8 bytes and lie in pages tagged `int64`, so machines of
//! all kinds read them.
//!
//! Each size class (a type, and a power of two bytes) has a free list of its own, with a
//! lock and a control page of its own: requests for different sizes have nothing in common
//! that is written. A list holds segments: whole pages with blocks of the class, and a
//! control page with a bit for each block. Headers are never among the blocks, so
//! allocating does not drag pages with data from machine to machine.
//!
//! There are two levels, because taking a lock is a message. Blocks that are not too large are
//! allocated in batches: a heap takes a whole segment from the list and then allocates from
//! it alone, without any lock and without touching what other machines touch. Larger blocks
//! are taken from the list one by one. Anyone may free any block, by clearing its bit. A
//! segment that was full is listed again when a worthwhile part of it is free; but the heap that
//! had it, if it is the one that frees, keeps it as a spare one, also without a lock. Pages go from
//! one class to another only when no others are left, or a heap gives back what it has: in
//! between, classes share nothing.
//!
//! A lock can be lost while it is held: whoever waits for a page long enough may be taken for
//! dead, and its locks be given to others. So whatever relies on a lock is written only if nobody
//! can have been taken for dead until then, in one step with that look ([`Shared::change`]), and
//! only over what was known to be there.
//!
//! | module | holds |
//! |---|---|
//! | `batches` | the segments that a heap allocates from without a lock |
//! | [`class`] | the size classes |
//! | `map` | which pages are free, and which belong to which segment |
//! | `segment` | the blocks of a segment |
//! | `directory` | the segments of a class |
//! | `lists` | how segments are taken from the list of a class, put back, made and given up |
//! | `recover` | what becomes of a heap that died |
//! | [`local`] | an object inside of one process |
//! | [`word`] | a word of the object, whatever its order of bytes |

use std::fmt;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use crate::dsm::types::TypeTag;
use crate::units::{Bytes, ObjectOffset};

mod batches;
pub mod class;
mod directory;
mod lists;
pub mod local;
mod map;
mod recover;
mod segment;
pub mod word;

use batches::Batches;
pub use class::Class;
pub use local::Local;
pub use word::Word;

use map::{Geometry, HEADER_WORDS, LEAST_PAGE, PageMap, WORD};
use segment::{Segment, State};

/// The first word of an object with a heap: `quireHP1`, as bytes of a big-endian number.
const MAGIC: u64 = 0x7175_6972_6548_5031;
/// The words of the header: the magic, the page size, the number of pages, the last owner.
const MAGIC_WORD: u64 = 0;
const PAGE_WORD: u64 = 1;
const PAGES_WORD: u64 = 2;
const OWNER_WORD: u64 = 3;
/// Blocks of more pages than this, or than this part of the object, are not allocated in batches.
const BATCHED: u64 = 16;
const BATCHED_PART: u64 = 1024;
/// A full segment is listed again when so large a part of its blocks is free.
const BATCHES_PER_SEGMENT: u64 = 8;

/// What is locked: a list of free memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum List {
    /// The pages of the object. It is locked last, and only when a segment comes or goes.
    Supply,
    /// The segments of a class.
    Class(Class),
}

impl List {
    /// How many there are.
    pub const COUNT: usize = Class::COUNT + 1;

    /// Its number, below [`List::COUNT`], which is the same on all machines.
    #[must_use]
    pub const fn number(self) -> usize {
        match self {
            List::Supply => 0,
            List::Class(class) => 1 + class.number(),
        }
    }
}

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            List::Supply => write!(f, "the free pages"),
            List::Class(class) => write!(f, "the list of {class}"),
        }
    }
}

/// Why a lock or a tag could not be had, in a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// A mapped object, as the allocator needs it.
pub trait Shared {
    /// Holds a lock until it is dropped.
    type Guard<'a>
    where
        Self: 'a;

    /// The size of the object.
    fn size(&self) -> Bytes;

    /// The word at an offset, which is a multiple of 8 inside of the object.
    fn word(&self, at: ObjectOffset) -> Word<'_>;

    /// Waits for the lock of a list, over all machines. The lock of a machine that is known
    /// to be dead is free.
    ///
    /// # Errors
    /// When it cannot be had.
    fn lock(&self, list: List) -> Result<Self::Guard<'_>, Refused>;

    /// Gives whole pages a tag, in place of what they had. Their contents are not needed
    /// any more.
    ///
    /// # Errors
    /// When that is refused.
    fn tag(&self, range: Range<ObjectOffset>, tag: TypeTag) -> Result<(), Refused>;

    /// What was written to whole pages until now is lost only together with all that is
    /// written later. Without this, a machine that dies takes the last writes to each page
    /// with it that nobody else has seen, be they older than those to other pages.
    ///
    /// # Errors
    /// When that cannot be had.
    fn publish(&self, range: Range<ObjectOffset>) -> Result<(), Refused>;

    /// Whether nobody can have taken this machine for dead and seen a lock as free that it
    /// holds. Before others write to pages that are here, this says no.
    fn is_sure(&self) -> bool;

    /// Changes the word at an offset from one number to another, if it is that and as long as this
    /// machine is sure ([`Shared::is_sure`]). The look and the change are one step: where the
    /// word's page goes away between them, nothing is changed when it comes back, without a
    /// new look. What is here does for objects whose pages do not go away.
    fn change(&self, at: ObjectOffset, from: u64, to: u64) -> Changed {
        match self.is_sure() {
            false => Changed::Unsure,
            true if self.word(at).change(from, to) => Changed::Done,
            true => Changed::Differs,
        }
    }
}

/// What came of [`Shared::change`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It was changed.
    Done,
    /// It was another number.
    Differs,
    /// Others can have taken this machine for dead. Nothing was changed.
    Unsure,
}

impl<S: Shared> Shared for &S {
    type Guard<'a>
        = S::Guard<'a>
    where
        Self: 'a;

    fn size(&self) -> Bytes {
        (**self).size()
    }

    fn word(&self, at: ObjectOffset) -> Word<'_> {
        (**self).word(at)
    }

    fn lock(&self, list: List) -> Result<Self::Guard<'_>, Refused> {
        (**self).lock(list)
    }

    fn tag(&self, range: Range<ObjectOffset>, tag: TypeTag) -> Result<(), Refused> {
        (**self).tag(range, tag)
    }

    fn publish(&self, range: Range<ObjectOffset>) -> Result<(), Refused> {
        (**self).publish(range)
    }

    fn is_sure(&self) -> bool {
        (**self).is_sure()
    }

    fn change(&self, at: ObjectOffset, from: u64, to: u64) -> Changed {
        (**self).change(at, from, to)
    }
}

/// Changes the word at an offset, if it is `from`. Says whether it was.
///
/// # Errors
/// When somebody can have taken this machine for dead.
fn change_if<S: Shared>(
    shared: &S,
    at: ObjectOffset,
    from: u64,
    to: u64,
) -> Result<bool, AllocError> {
    match shared.change(at, from, to) {
        Changed::Done => Ok(true),
        Changed::Differs => Ok(false),
        Changed::Unsure => Err(AllocError::TakenForDead),
    }
}

/// Changes the word at an offset, which is known to be `from`.
///
/// # Errors
/// When it is not any more, because somebody can have taken this machine for dead.
fn change<S: Shared>(shared: &S, at: ObjectOffset, from: u64, to: u64) -> Result<(), AllocError> {
    match change_if(shared, at, from, to)? {
        true => Ok(()),
        false => Err(AllocError::TakenForDead),
    }
}

/// Makes the word at an offset what a function makes of it, if anything, whatever others do to it
/// meanwhile. What it was, where it was changed.
///
/// # Errors
/// When somebody can have taken this machine for dead.
fn update<S: Shared>(
    shared: &S,
    at: ObjectOffset,
    made: impl Fn(u64) -> Option<u64>,
) -> Result<Option<u64>, AllocError> {
    loop {
        let from = shared.word(at).load();
        let Some(to) = made(from) else {
            return Ok(None);
        };
        if change_if(shared, at, from, to)? {
            return Ok(Some(from));
        }
    }
}

/// Makes the word at an offset a number, whatever it is. Only who holds the lock does so.
///
/// # Errors
/// When somebody can have taken this machine for dead.
fn set<S: Shared>(shared: &S, at: ObjectOffset, to: u64) -> Result<(), AllocError> {
    update(shared, at, |_| Some(to)).map(drop)
}

/// Who owns segments: a heap, among all that there ever are in an object. A program that
/// comes back after a crash is another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(u64);

impl Owner {
    /// The owner with a number, which is neither 0 nor one of the two largest.
    #[must_use]
    pub const fn new(number: u64) -> Option<Owner> {
        match number {
            0 | 0xffff_ffff_ffff_fffe | u64::MAX => None,
            _ => Some(Owner(number)),
        }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// A block that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// Where it begins.
    pub start: ObjectOffset,
    /// Its class.
    pub class: Class,
}

/// Why memory was not allocated or freed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// The pages cannot be.
    #[error(
        "cannot make a heap with pages of {page} in {size}: use a page size that is a power of two, from 4 KiB on, and an object of at least 8 pages and at most 128 TiB"
    )]
    Geometry {
        /// The size of a page.
        page: Bytes,
        /// The size of the object.
        size: Bytes,
    },
    /// The object has contents, or a heap.
    #[error("the object is not empty: make the heap in a new one, or attach to the one in it")]
    NotEmpty,
    /// The object has no heap.
    #[error("the object has no heap that fits its size: make one first")]
    NoHeap,
    /// No block is so large.
    #[error("no block holds {count} elements of type {tag}: allocate in parts of at most 64 TiB")]
    TooLarge {
        /// The type of the elements.
        tag: TypeTag,
        /// Their number.
        count: u64,
    },
    /// No pages are left, or the class can have no more segments.
    #[error("no room for {0}: free some, or use a larger object, with larger pages")]
    NoRoom(Class),
    /// No block begins there.
    #[error("no block begins at {:#x}: free only what was allocated, by its first byte", .0.0)]
    NotABlock(ObjectOffset),
    /// A block begins there, but it is free.
    #[error("the block at {:#x} is not in use: it was freed before, or never allocated", .0.0)]
    NotInUse(ObjectOffset),
    /// Something else wrote over the allocator's pages.
    #[error("the heap is damaged at page {page}: something wrote over it; use a new object")]
    Damaged {
        /// Where it was noticed.
        page: u64,
    },
    /// A lock may have been lost while it was held.
    #[error(
        "this program may have been taken for dead, and its memory be given to others: open the heap anew"
    )]
    TakenForDead,
    /// The lock or the tag was refused.
    #[error(transparent)]
    Refused(#[from] Refused),
}

/// The heap of an object, as one program sees it. Its threads share it.
pub struct Heap<S> {
    shared: S,
    geometry: Geometry,
    owner: Owner,
    /// By the number of the class: the segments that this heap owns.
    batches: Vec<Mutex<Batches>>,
    /// How many pages its spare segments have.
    spare: AtomicU64,
}

/// Makes a heap in an object that is all zeros. `page` is the size of a page of its
/// scheduler. Who dies in here can be followed by another call.
///
/// # Errors
/// When pages of this size cannot be, the object is not empty, or tagging is refused.
pub fn format<S: Shared>(shared: &S, page: Bytes) -> Result<(), AllocError> {
    let geometry = Geometry {
        page: page.0,
        pages: shared.size().0.checked_div(page.0).unwrap_or(0),
    };
    if !geometry.is_possible() {
        let size = shared.size();
        return Err(AllocError::Geometry { page, size });
    }
    let header = |index| shared.word(geometry.word(0, index));
    let mut classes = HEADER_WORDS..HEADER_WORDS + Class::COUNT as u64;
    if header(MAGIC_WORD).load() != 0 || classes.any(|index| header(index).load() != 0) {
        return Err(AllocError::NotEmpty);
    }
    PageMap { shared, geometry }.begin()?;
    let control = geometry.start(0)..geometry.start(geometry.reserved());
    shared.tag(control, TypeTag::Int64)?;
    geometry.publish(shared, 1)?;
    header(PAGE_WORD).store(geometry.page);
    header(PAGES_WORD).store(geometry.pages);
    header(MAGIC_WORD).store(MAGIC);
    Ok(geometry.publish(shared, 0)?)
}

/// How the object is divided in which there is a heap.
fn geometry_of<S: Shared>(shared: &S) -> Result<Geometry, AllocError> {
    let header = |index| shared.word(ObjectOffset(index * WORD)).load();
    if shared.size().0 < LEAST_PAGE || header(MAGIC_WORD) != MAGIC {
        return Err(AllocError::NoHeap);
    }
    let geometry = Geometry {
        page: header(PAGE_WORD),
        pages: header(PAGES_WORD),
    };
    let size = geometry.page.checked_mul(geometry.pages);
    if !geometry.is_possible() || size.is_none_or(|size| size > shared.size().0) {
        return Err(AllocError::NoHeap);
    }
    Ok(geometry)
}

/// An owner that this heap has never had.
///
/// # Errors
/// When there is no heap, or its count of owners was written over.
pub fn new_owner<S: Shared>(shared: &S) -> Result<Owner, AllocError> {
    let geometry = geometry_of(shared)?;
    let count = shared.word(geometry.word(0, OWNER_WORD));
    loop {
        let last = count.load();
        let next = last.checked_add(1).and_then(Owner::new);
        let next = next.ok_or(AllocError::Damaged { page: 0 })?;
        if count.change(last, next.number()) {
            geometry.publish(shared, 0)?;
            return Ok(next);
        }
    }
}

impl<S: Shared> Heap<S> {
    /// The heap in an object. No other heap that is alive may have the same owner.
    ///
    /// # Errors
    /// When there is none.
    pub fn attach(shared: S, owner: Owner) -> Result<Heap<S>, AllocError> {
        Ok(Heap {
            geometry: geometry_of(&shared)?,
            shared,
            owner,
            batches: (0..Class::COUNT).map(|_| Mutex::default()).collect(),
            spare: AtomicU64::new(0),
        })
    }

    /// The object.
    #[must_use]
    pub const fn shared(&self) -> &S {
        &self.shared
    }

    /// Allocates a block for so many elements of a type. It begins at a multiple of its
    /// size, or of the page size if that is less. What it holds is left over from earlier.
    ///
    /// # Errors
    /// When there is no room, a lock or a tag is refused, or the object is damaged.
    pub fn tmalloc(&self, tag: TypeTag, count: u64) -> Result<ObjectOffset, AllocError> {
        let class = Class::of(tag, count)?;
        if self.is_batched(class) {
            self.take_from_batch(class)
        } else {
            self.under_lock(class, |directory| self.take_one(directory))
        }
    }

    /// Frees a block, whoever allocated it.
    ///
    /// # Errors
    /// When no block begins there, or it is not in use. When a lock is refused or the
    /// object is damaged, the block is free all the same; but its segment may be missing in
    /// the list of its class until another of its blocks is freed, or room is short.
    pub fn free(&self, at: ObjectOffset) -> Result<(), AllocError> {
        let (segment, index) = self.resolve(at)?;
        if !segment.free(&self.shared, index)? {
            return Err(AllocError::NotInUse(at));
        }
        let full = segment.state(&self.shared) == State::Full;
        let is_worthwhile = full && segment.has_free(&self.shared, self.worthwhile(segment));
        if is_worthwhile && !self.retake(segment)? {
            return self.list(segment);
        }
        Ok(())
    }

    /// The block that begins at an offset.
    ///
    /// # Errors
    /// When there is none that is in use.
    pub fn block(&self, at: ObjectOffset) -> Result<Block, AllocError> {
        let (segment, index) = self.resolve(at)?;
        if segment.is_used(&self.shared, index) {
            Ok(Block {
                start: at,
                class: segment.class,
            })
        } else {
            Err(AllocError::NotInUse(at))
        }
    }

    /// The size of all pages that belong to nobody.
    ///
    /// # Errors
    /// When the lock is refused, or the object is damaged.
    pub fn free_space(&self) -> Result<Bytes, AllocError> {
        let _held = self.shared.lock(List::Supply)?;
        let pages = self.map().free_pages()?;
        Ok(Bytes(pages * self.geometry.page))
    }

    /// Gives back the segments that this heap owns, and segments without blocks in use.
    /// A program does so before it ends, or when it will not allocate for long.
    ///
    /// # Errors
    /// When a lock is refused, or the object is damaged. Then the rest can be given back
    /// by another call.
    pub fn give_back(&self) -> Result<(), AllocError> {
        for class in Class::all() {
            self.give_batch_back(class)?;
        }
        self.reclaim()
    }

    fn map(&self) -> PageMap<'_, S> {
        PageMap {
            shared: &self.shared,
            geometry: self.geometry,
        }
    }

    /// The segment and the number of the block that begins at an offset.
    fn resolve(&self, at: ObjectOffset) -> Result<(Segment, u64), AllocError> {
        let page = at.0 / self.geometry.page;
        let run = (page < self.geometry.pages)
            .then(|| self.map().run_of(page))
            .flatten();
        run.and_then(|run| Segment::of(self.geometry, run))
            .and_then(|segment| Some((segment, segment.index_of(at)?)))
            .ok_or(AllocError::NotABlock(at))
    }

    /// How many blocks of a segment have to be free before it is listed. Taking a batch
    /// with fewer would not be worth the lock.
    fn worthwhile(&self, segment: Segment) -> u64 {
        if self.is_batched(segment.class) {
            segment.blocks.div_ceil(BATCHES_PER_SEGMENT)
        } else {
            1
        }
    }

    /// Whether blocks of a class are allocated in batches: all of less than a page, and others where a
    /// heap that has some free ones for itself has little of the object.
    fn is_batched(&self, class: Class) -> bool {
        let pages = class.size().0 / self.geometry.page;
        pages <= BATCHED.min(self.geometry.pages / BATCHED_PART)
    }
}

impl<S> fmt::Debug for Heap<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heap")
            .field("geometry", &self.geometry)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}
