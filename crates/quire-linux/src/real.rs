//! The functions behind those that a preloaded library takes the place of: the same names in
//! the libraries that were loaded after it, which may be the C library or another preloaded
//! one.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of type `F`, which is a function pointer. It is looked up once, without
/// allocating here; [`Real::get`] may be called in a signal handler after that.
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

    /// The function, if it has been looked up.
    pub fn found(&self) -> Option<F> {
        let found = self.found.load(Ordering::Relaxed);
        // SAFETY: as for `get`.
        (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
    }

    /// The function, looked up if that has not been done. `None` where no library behind this
    /// one has it.
    pub fn get(&self) -> Option<F> {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: the name is a C string.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(found, Ordering::Relaxed);
        }
        // SAFETY: the symbol is a function of type F, as whoever made this vouches, and F has
        // the size of a pointer.
        (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
    }

    /// The function for a call of the program: where there is none, `errno` is `ENOSYS`.
    pub fn known(&self) -> Option<F> {
        let found = self.get();
        if found.is_none() {
            // SAFETY: the C library gives the address of this thread's own variable.
            unsafe { *libc::__errno_location() = libc::ENOSYS };
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_int;
    use std::io;

    use super::*;

    type GetPid = unsafe extern "C" fn() -> c_int;

    #[test]
    fn functions_are_found_or_not() {
        // SAFETY: the type of the C library's function.
        let there = unsafe { Real::<GetPid>::new(c"getpid") };
        for _ in 0..2 {
            let getpid = there.known().expect("the C library has it");
            // SAFETY: it can be called at any time.
            assert_eq!(unsafe { getpid() }.cast_unsigned(), std::process::id());
        }
        // SAFETY: there is no such function.
        let missing = unsafe { Real::<GetPid>::new(c"quire_has_no_such_function") };
        assert!(missing.known().is_none());
        let error = io::Error::last_os_error();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSYS));
        assert!(missing.get().is_none());
    }
}
