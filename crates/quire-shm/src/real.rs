//! The functions that this library stands before: those of the next library that has them.

use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::trouble::set_errno;

/// A function of the type `F`, looked up once.
pub struct Real<F> {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

impl<F: Copy> Real<F> {
    /// The function of this name.
    ///
    /// # Safety
    /// `F` is a function pointer of the function's type.
    pub const unsafe fn new(name: &'static CStr) -> Real<F> {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Real {
            name,
            found: AtomicPtr::new(std::ptr::null_mut()),
            kind: PhantomData,
        }
    }

    /// The function; nothing where no library has it, with `errno` set.
    pub fn get(&self) -> Option<F> {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: the name is a C string.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(found, Ordering::Relaxed);
        }
        if found.is_null() {
            set_errno(libc::ENOSYS);
            return None;
        }
        // SAFETY: whoever made this vouches for the type, which has the size of a pointer.
        Some(unsafe { std::mem::transmute_copy(&found) })
    }
}

pub type Mmap =
    unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, libc::off_t) -> *mut c_void;
pub type Munmap = unsafe extern "C" fn(*mut c_void, usize) -> c_int;

// SAFETY: the types of the C library's functions, here and below.
pub static MMAP: Real<Mmap> = unsafe { Real::new(c"mmap") };
// SAFETY: as above.
pub static MUNMAP: Real<Munmap> = unsafe { Real::new(c"munmap") };
