//! Functions of the C library that this library takes the place of.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the C library of type `F`, which must be a function pointer.
/// It is looked up once; [`Real::get`] may be called in a signal handler after
/// that.
pub struct Real<F> {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

impl<F: Copy> Real<F> {
    /// The function of this name.
    ///
    /// # Safety
    /// `F` must be the type of the function.
    pub const unsafe fn new(name: &'static CStr) -> Real<F> {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Real {
            name,
            found: AtomicPtr::new(std::ptr::null_mut()),
            kind: PhantomData,
        }
    }

    /// Looks the function up, if that has not been done. `None` when the C
    /// library has none.
    pub fn get(&self) -> Option<F> {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: the name is a C string.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(found, Ordering::Relaxed);
        }
        // SAFETY: the symbol is a function of type F, as whoever made this
        // vouches, and F has the size of a pointer.
        (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
    }
}
