//! A pager that a program in C writes: what it is told are its functions, and what it says are
//! functions here, both with the names of paper 003, Figure 1.

use std::ffi::{c_char, c_int, c_void};
use std::{ptr, slice};

use quire_core::dsm::message::{Access, Lock, PageNumber, Pages};
use quire_dsm::pager::{Attributes, Backed, Contents, Control, Pager};

use super::arguments::{self, bad};
use super::{given, status};
use crate::trouble::Result;

/// `QUIRE_DSM_MAY_WRITE`, among attributes.
const MAY_WRITE: c_int = 1;
/// `QUIRE_DSM_KEEPS`.
const KEEPS: c_int = 2;
/// `QUIRE_DSM_FLUSH`, what is asked for by a lock request.
const FLUSH: c_int = 1;
/// `QUIRE_DSM_ALLOW_WRITE`.
const ALLOW_WRITE: c_int = 2;
/// What somebody is told who writes to an object whose pager takes nothing back.
const READ_ONLY: &str = "the pager takes nothing back";

type Told = unsafe extern "C" fn(*mut c_void, u64, u32);

/// `struct quire_dsm_pager`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Callbacks {
    init: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, u64, u64)>,
    data_request: Option<unsafe extern "C" fn(*mut c_void, u64, u32, c_int)>,
    data_unlock: Option<Told>,
    data_write: Option<unsafe extern "C" fn(*mut c_void, u64, u32, *const *const c_void)>,
    lock_completed: Option<Told>,
    terminate: Option<unsafe extern "C" fn(*mut c_void)>,
    pub may_wait: c_int,
}

/// `quire_dsm_control`.
struct Way {
    control: Control,
    /// The size of a page, in bytes.
    page: usize,
}

/// A pager of the program's own.
pub struct CPager {
    callbacks: Callbacks,
    init: unsafe extern "C" fn(*mut c_void, *mut c_void, u64, u64),
    data_request: unsafe extern "C" fn(*mut c_void, u64, u32, c_int),
    context: *mut c_void,
    /// What the program's functions were given.
    way: *mut Way,
}

// SAFETY: the header asks for functions that may be called on another thread, with a context
// for it. What `way` points to can be used by any thread.
unsafe impl Send for CPager {}

impl CPager {
    /// The pager with these functions.
    pub fn new(callbacks: Callbacks, context: *mut c_void) -> Result<CPager> {
        let (Some(init), Some(data_request)) = (callbacks.init, callbacks.data_request) else {
            return Err(bad("a pager needs init and data_request"));
        };
        Ok(CPager {
            callbacks,
            init,
            data_request,
            context,
            way: ptr::null_mut(),
        })
    }

    /// How the pager answers, where it has no function for something.
    fn control(&self) -> Option<&Control> {
        // SAFETY: it is null, or was made by `init` and lives until the pager is dropped.
        unsafe { self.way.as_ref() }.map(|way| &way.control)
    }
}

impl Pager for CPager {
    fn init(&mut self, object: &Backed, control: Control) {
        let way = Way {
            control,
            page: object.page_length(),
        };
        self.way = Box::into_raw(Box::new(way));
        let (size, page) = (object.size.0, object.page_size.0);
        // SAFETY: the program's own function does what the header says, here and below.
        unsafe { (self.init)(self.context, self.way.cast(), size, page) };
    }

    fn data_request(&mut self, pages: Pages, access: Access) {
        let write = c_int::from(access == Access::Write);
        // SAFETY: as above.
        unsafe { (self.data_request)(self.context, pages.first.0, pages.count, write) };
    }

    fn data_unlock(&mut self, pages: Pages) {
        match (self.callbacks.data_unlock, self.control()) {
            // SAFETY: as above.
            (Some(unlock), _) => unsafe { unlock(self.context, pages.first.0, pages.count) },
            (None, Some(control)) => control.data_error(pages, READ_ONLY),
            (None, None) => {}
        }
    }

    fn data_write(&mut self, pages: Pages, data: Vec<Option<Contents>>) {
        let contents = data.iter().map(|page| match page {
            Some(page) => page.as_ptr().cast::<c_void>(),
            None => ptr::null(),
        });
        let contents: Vec<*const c_void> = contents.collect();
        match (self.callbacks.data_write, self.control()) {
            // SAFETY: as above; the contents are there until it returns.
            (Some(write), _) => unsafe {
                write(self.context, pages.first.0, pages.count, contents.as_ptr());
            },
            (None, Some(control)) => control.data_written(pages, Err(READ_ONLY.to_owned())),
            (None, None) => {}
        }
    }

    fn lock_completed(&mut self, pages: Pages) {
        if let Some(completed) = self.callbacks.lock_completed {
            // SAFETY: as above.
            unsafe { completed(self.context, pages.first.0, pages.count) };
        }
    }
}

impl Drop for CPager {
    /// The object is used no more, or never was: the program gets its context back.
    fn drop(&mut self) {
        if let Some(terminate) = self.callbacks.terminate {
            // SAFETY: as above. Nothing is called after it.
            unsafe { terminate(self.context) };
        }
        if !self.way.is_null() {
            // SAFETY: `init` made it; the program does not use it after `terminate`.
            drop(unsafe { Box::from_raw(self.way) });
        }
    }
}

/// The pages that a program means, and the way to who uses them.
///
/// # Safety
/// The control is null, or that of a pager that was not yet told to terminate.
unsafe fn said<'a>(control: *const c_void, page: u64, count: u32) -> Result<(&'a Way, Pages)> {
    // SAFETY: the caller vouches for it.
    let way = unsafe { given::<Way>(control.cast())? };
    if count == 0 || page.checked_add(count.into()).is_none() {
        return Err(bad("no pages"));
    }
    let first = PageNumber(page);
    Ok((way, Pages { first, count }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_set_attributes(control: *const c_void, attributes: c_int) -> c_int {
    // SAFETY: the header asks for a control that is in use, here and below.
    let way = unsafe { given::<Way>(control.cast()) };
    status(way.map(|way| {
        way.control.set_attributes(Attributes {
            may_write: attributes & MAY_WRITE != 0,
            keeps: attributes & KEEPS != 0,
        });
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_data_provided(
    control: *const c_void,
    page: u64,
    count: u32,
    data: *const c_void,
    write: c_int,
) -> c_int {
    let provide = || {
        // SAFETY: as above.
        let (way, pages) = unsafe { said(control, page, count)? };
        let length = usize::try_from(count).ok();
        let length = length.and_then(|count| count.checked_mul(way.page));
        let length = length.filter(|length| isize::try_from(*length).is_ok());
        let length = length.ok_or_else(|| bad("so many pages"))?;
        if data.is_null() {
            return Err(bad("the data are a null pointer"));
        }
        // SAFETY: the header asks for so many pages of contents.
        let data = unsafe { slice::from_raw_parts(data.cast::<u8>(), length) };
        let contents = data.chunks(way.page).map(Contents::from).collect();
        let access = match write {
            0 => Access::Read,
            _ => Access::Write,
        };
        way.control.data_provided(pages, contents, access);
        Ok(())
    };
    status(provide())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_data_unavailable(
    control: *const c_void,
    page: u64,
    count: u32,
) -> c_int {
    // SAFETY: as above.
    let said = unsafe { said(control, page, count) };
    status(said.map(|(way, pages)| way.control.data_unavailable(pages)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_data_error(
    control: *const c_void,
    page: u64,
    count: u32,
    why: *const c_char,
) -> c_int {
    // SAFETY: as above; and for a C string.
    let error = || unsafe {
        let why = arguments::needed(why, "why")?;
        let (way, pages) = said(control, page, count)?;
        way.control.data_error(pages, &why);
        Ok(())
    };
    status(error())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_data_written(
    control: *const c_void,
    page: u64,
    count: u32,
    why: *const c_char,
) -> c_int {
    // SAFETY: as above; and for a null pointer or a C string.
    let written = || unsafe {
        let why = arguments::text(why)?;
        let (way, pages) = said(control, page, count)?;
        way.control.data_written(pages, why.map_or(Ok(()), Err));
        Ok(())
    };
    status(written())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_lock_request(
    control: *const c_void,
    page: u64,
    count: u32,
    lock: c_int,
) -> c_int {
    let request = || {
        let lock = match lock {
            FLUSH => Lock::Flush,
            ALLOW_WRITE => Lock::AllowWrite,
            _ => return Err(bad("a lock: QUIRE_DSM_FLUSH or QUIRE_DSM_ALLOW_WRITE")),
        };
        // SAFETY: as above.
        let (way, pages) = unsafe { said(control, page, count)? };
        way.control.lock_request(pages, lock);
        Ok(())
    };
    status(request())
}
