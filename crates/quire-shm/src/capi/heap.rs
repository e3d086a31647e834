//! The typed heap of an object, `tmalloc`, for programs in C.
//!
//! Blocks are pointers here, into the memory where the object was mapped when it was opened.
//! A heap counts at its object, so that the object is not closed under it.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use quire_core::dsm::alloc::AllocError;
use quire_core::dsm::types::TypeTag;
use quire_core::units::ObjectOffset;
use quire_dsm::heap::{Heap, HeapError};
use quire_dsm::wire::control::TypeCode;

use super::arguments::bad;
use super::{Object, answer, given, status};
use crate::trouble::{Result, Trouble};

/// `quire_dsm_heap`.
struct OpenHeap {
    /// It goes first: it gives back what it has ready.
    heap: Heap<'static>,
    object: &'static Object,
    _counted: Counted,
}

/// How many heaps of an object are open.
#[derive(Default)]
pub struct Heaps(AtomicUsize);

impl Heaps {
    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }
}

/// A heap that counts at its object until this is dropped. Then the object may be closed at once.
struct Counted(&'static Object);

impl Counted {
    fn at(object: &'static Object) -> Counted {
        object.heaps.0.fetch_add(1, Ordering::SeqCst);
        Counted(object)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.heaps.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl OpenHeap {
    fn open(object: &'static Object) -> Result<OpenHeap> {
        let counted = Counted::at(object);
        Ok(OpenHeap {
            heap: Heap::open(&object.shared)?,
            object,
            _counted: counted,
        })
    }

    fn tmalloc(&self, tag: c_int, count: u64) -> Result<*mut c_void> {
        let at = self.heap.tmalloc(kind(tag)?, count)?;
        Ok((self.object.shared.address().0 + at.0) as *mut c_void)
    }

    /// Where a block is in the object.
    fn offset(&self, block: *const c_void) -> Result<ObjectOffset> {
        let start = self.object.shared.address().0;
        let at = (block as u64).checked_sub(start);
        at.filter(|at| *at < self.object.shared.size().0)
            .map(ObjectOffset)
            .ok_or_else(|| bad("a pointer that is not into the object where it was opened"))
    }

    /// The type of a block, and how many elements have room in it.
    fn block(&self, block: *const c_void) -> Result<(c_int, u64)> {
        let class = self.heap.block(self.offset(block)?)?.class;
        let count = class.size().0 / class.tag().element();
        Ok((class.tag() as c_int, count))
    }
}

/// The type with a number of the header.
fn kind(tag: c_int) -> Result<TypeTag> {
    let code = u16::try_from(tag).ok();
    code.and_then(|code| TypeCode(code).tag())
        .ok_or_else(|| bad("a type: QUIRE_DSM_UNTYPED, QUIRE_DSM_INT8 and so on"))
}

impl From<HeapError> for Trouble {
    fn from(error: HeapError) -> Trouble {
        let errno = match &error {
            HeapError::Client(_) | HeapError::Type { .. } => libc::EINVAL,
            HeapError::ReadOnly => libc::EACCES,
            HeapError::Broken => libc::ESTALE,
            HeapError::Alloc(error) => not_allocated(error),
        };
        match error {
            HeapError::Client(error) => error.into(),
            error => Trouble::new(errno, error.to_string()),
        }
    }
}

fn not_allocated(error: &AllocError) -> c_int {
    match error {
        AllocError::NoRoom(_) | AllocError::TooLarge { .. } => libc::ENOMEM,
        AllocError::Damaged { .. } => libc::EIO,
        AllocError::Refused(_) => libc::EAGAIN,
        AllocError::TakenForDead => libc::ESTALE,
        AllocError::NotEmpty => libc::ENOTEMPTY,
        AllocError::Geometry { .. }
        | AllocError::NoHeap
        | AllocError::NotABlock(_)
        | AllocError::NotInUse(_) => libc::EINVAL,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_heap_open(object: *const c_void) -> *mut c_void {
    // SAFETY: the header asks for an open object, which cannot be closed while it has a heap.
    let object = unsafe { given::<Object>(object.cast()) };
    let opened = object.and_then(OpenHeap::open);
    let opened = opened.map(|heap| Box::into_raw(Box::new(heap)).cast());
    answer(opened, ptr::null_mut())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_heap_close(heap: *mut c_void) -> c_int {
    if heap.is_null() {
        return status(Err(bad("a null pointer")));
    }
    // SAFETY: `quire_dsm_heap_open` gave it, and the program gives it up.
    drop(unsafe { Box::from_raw(heap.cast::<OpenHeap>()) });
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_tmalloc(
    heap: *const c_void,
    kind: c_int,
    count: u64,
) -> *mut c_void {
    // SAFETY: the header asks for an open heap, here and below.
    let heap = unsafe { given::<OpenHeap>(heap.cast()) };
    let block = heap.and_then(|heap| heap.tmalloc(kind, count));
    answer(block, ptr::null_mut())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_tfree(heap: *const c_void, block: *mut c_void) -> c_int {
    // SAFETY: as above.
    let heap = unsafe { given::<OpenHeap>(heap.cast()) };
    status(heap.and_then(|heap| Ok(heap.heap.free(heap.offset(block)?)?)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_block(
    heap: *const c_void,
    block: *const c_void,
    kind: *mut c_int,
    count: *mut u64,
) -> c_int {
    // SAFETY: as above.
    let heap = unsafe { given::<OpenHeap>(heap.cast()) };
    let found = heap.and_then(|heap| heap.block(block));
    if let Ok((is, room)) = &found {
        // SAFETY: the header asks for null pointers, or pointers to what can be written to.
        unsafe {
            if let Some(kind) = kind.as_mut() {
                *kind = *is;
            }
            if let Some(count) = count.as_mut() {
                *count = *room;
            }
        }
    }
    status(found.map(drop))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_free_space(heap: *const c_void) -> i64 {
    // SAFETY: as above.
    let heap = unsafe { given::<OpenHeap>(heap.cast()) };
    let space = heap.and_then(|heap| Ok(heap.heap.free_space()?));
    answer(space.map(|space| space.0.cast_signed()), -1)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_recover(heap: *const c_void) -> c_int {
    // SAFETY: as above.
    let heap = unsafe { given::<OpenHeap>(heap.cast()) };
    let dead = heap.and_then(|heap| Ok(heap.heap.recover()?));
    answer(
        dead.map(|dead| c_int::try_from(dead).unwrap_or(c_int::MAX)),
        -1,
    )
}
