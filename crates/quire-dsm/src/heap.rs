//! The typed heap of a shared object: `tmalloc` (paper 003, Figure 5 and section 7.3).
//!
//! How memory is divided and found is decided by [`quire_core::dsm::alloc`]. Here is what it
//! needs of the world: the words of a mapped object, a mutex of the object's server for each
//! list, and the types of segments, which the server gets as they are made. What is added:
//!
//! - *Who is alive.* Each heap is an owner with a number that the object never had before,
//!   and holds a mutex with this number in its name. The server frees it when the program is
//!   gone. So whoever can lock it knows that this owner is dead, and takes over what it
//!   owned: when a list was left locked, when there is no room, or when asked to.
//! - *Broken links.* When the link breaks, others take this program for dead; so they do when
//!   the one of several servers that keeps mutexes is gone or cut off. From then on
//!   its heap does nothing, also where a thread waited for a page in the midst of a step, and what
//!   it was about to return is not returned, so that no block is given out twice. It is to be
//!   opened anew.
//!
//! A block is passed on to others by its offset, which is the same everywhere; who knows the
//! type gets a [`View`] of it.
//!
//! | module | holds |
//! |---|---|
//! | `alive` | the mark of an owner that is alive |
//! | `lists` | the object as the allocator needs it |
//! | [`view`] | the elements of a block |

use std::collections::BTreeSet;

use quire_core::dsm::alloc::{self, AllocError, Block, Owner, Shared as _};
use quire_core::dsm::sync::{Answer, Request};
use quire_core::dsm::types::TypeTag;
use quire_core::units::{Bytes, ObjectOffset};

use crate::client::{ClientError, Shared};

mod alive;
mod lists;
pub mod view;

use alive::{Alive, mark};

pub(crate) use lists::Lists;
use lists::World;
pub use view::{Element, View};

/// Why memory was not allocated, found or freed.
#[derive(Debug, thiserror::Error)]
pub enum HeapError {
    /// The allocator cannot.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The server cannot.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The object is open to be read only.
    #[error("the object is open to be read only: a heap writes; open it with both rights")]
    ReadOnly,
    /// A link broke since the heap was opened, or a server is gone.
    #[error(
        "the link to the server, or between servers, broke, so others may have taken over the heap: open it anew"
    )]
    Broken,
    /// A block is of another type.
    #[error("the block at {:#x} holds {is}, not {wanted}", at.0)]
    Type {
        /// Where it begins.
        at: ObjectOffset,
        /// What it holds.
        is: TypeTag,
        /// What was asked for.
        wanted: TypeTag,
    },
}

/// The heap of an object, as one program sees it. Its threads share it.
pub struct Heap<'a> {
    shared: &'a Shared,
    heap: alloc::Heap<World<'a>>,
    owner: Owner,
}

impl<'a> Heap<'a> {
    /// The heap of an object. Where there is none yet, it is made; the object must be all
    /// zeros then.
    ///
    /// # Errors
    /// When the object holds something else or is too small, may not be written to, or the
    /// server cannot be reached.
    pub fn open(shared: &'a Shared) -> Result<Heap<'a>, HeapError> {
        if !shared.rights().write {
            return Err(HeapError::ReadOnly);
        }
        let breaks = shared.breaks();
        let mut world = World {
            shared,
            alive: None,
        };
        let owner = match alloc::new_owner(&world) {
            Err(AllocError::NoHeap) => make(&world)?,
            other => other?,
        };
        world.alive = Some(Alive::mark(shared, owner, breaks)?);
        Ok(Heap {
            shared,
            heap: alloc::Heap::attach(world, owner)?,
            owner,
        })
    }

    /// Allocates room for so many elements. What they are at first is left over from
    /// earlier, or zero.
    ///
    /// # Errors
    /// When there is no room, the server cannot be reached, or the heap is damaged.
    pub fn alloc<T: Element>(&self, count: usize) -> Result<View<'a, T>, HeapError> {
        let at = self.tmalloc(T::TAG, count as u64)?;
        Ok(View::new(self.shared, at, count))
    }

    /// Allocates room for so many elements of a type that is known only now.
    ///
    /// # Errors
    /// As [`Heap::alloc`].
    pub fn tmalloc(&self, tag: TypeTag, count: u64) -> Result<ObjectOffset, HeapError> {
        self.attempt(|| self.heap.tmalloc(tag, count))
    }

    /// Frees a block, whoever allocated it, on whatever machine.
    ///
    /// # Errors
    /// When no block begins there, or it is not in use.
    pub fn free(&self, at: ObjectOffset) -> Result<(), HeapError> {
        self.attempt(|| self.heap.free(at))
    }

    /// The block that begins at an offset, whoever allocated it.
    ///
    /// # Errors
    /// When there is none that is in use.
    pub fn block(&self, at: ObjectOffset) -> Result<Block, HeapError> {
        Ok(self.heap.block(at)?)
    }

    /// The elements of a block that begins at an offset, whoever allocated it: as many as
    /// have room, which may be more than were asked for.
    ///
    /// # Errors
    /// When there is no such block, or it has another type.
    pub fn view<T: Element>(&self, at: ObjectOffset) -> Result<View<'a, T>, HeapError> {
        let Block { class, .. } = self.heap.block(at)?;
        if class.tag() != T::TAG {
            let (is, wanted) = (class.tag(), T::TAG);
            return Err(HeapError::Type { at, is, wanted });
        }
        let count = class.size().0 / T::TAG.element();
        Ok(View::new(self.shared, at, count as usize))
    }

    /// The size of all pages that belong to nobody.
    ///
    /// # Errors
    /// When the server cannot be reached, or the heap is damaged.
    pub fn free_space(&self) -> Result<Bytes, HeapError> {
        self.attempt(|| self.heap.free_space())
    }

    /// Takes over what dead programs owned; says how many of them there were. Their blocks
    /// stay in use, because others may use them.
    ///
    /// # Errors
    /// When the server cannot be reached, or the heap is damaged.
    pub fn recover(&self) -> Result<usize, HeapError> {
        self.check()?;
        let mut dead = BTreeSet::new();
        for owner in self.heap.owners()? {
            if owner != self.owner && self.is_dead(owner)? {
                dead.insert(owner);
            }
        }
        let recovered = self.heap.recover(&dead);
        for owner in &dead {
            self.shared.say(Request::Unlock(mark(*owner)));
        }
        recovered?;
        self.check()?;
        Ok(dead.len())
    }

    /// Whether an owner is dead. If so, its mark is held here from now on.
    fn is_dead(&self, owner: Owner) -> Result<bool, HeapError> {
        let answer = self.shared.synchronise(Request::TryLock(mark(owner)))?;
        Ok(matches!(answer, Answer::Done | Answer::Abandoned))
    }

    /// Does something, as long as nobody else can have taken this program for dead; and once
    /// more after what dead programs left was taken over, if there was no room.
    fn attempt<R>(&self, action: impl Fn() -> Result<R, AllocError>) -> Result<R, HeapError> {
        self.check()?;
        let mut outcome = action();
        let is_short = matches!(outcome, Err(AllocError::NoRoom(_)));
        if self.shared.lists().were_abandoned() || is_short {
            let dead = self.recover()?;
            if is_short && dead > 0 {
                outcome = action();
            }
        }
        // Also afterwards: what was done since the link broke counts for nothing.
        self.check()?;
        Ok(outcome?)
    }

    fn check(&self) -> Result<(), HeapError> {
        match self.heap.shared().is_sure() {
            true => Ok(()),
            false => Err(HeapError::Broken),
        }
    }
}

impl Drop for Heap<'_> {
    /// Gives back what it owns, so that others need not find out that it is gone. Its mark goes
    /// after that.
    fn drop(&mut self) {
        if self.check().is_ok()
            && let Err(error) = self.heap.give_back()
        {
            tracing::warn!("memory of a heap is not given back: {error}");
        }
    }
}

/// Makes a heap in an object that has none, unless somebody else was first.
fn make(world: &World) -> Result<Owner, AllocError> {
    let _held = world.lock(alloc::List::Supply)?;
    match alloc::new_owner(world) {
        Err(AllocError::NoHeap) => {}
        other => return other,
    }
    alloc::format(world, world.shared.info().page_size.bytes())?;
    alloc::new_owner(world)
}
