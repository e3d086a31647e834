//! What programs built with AddressSanitizer are told.
//!
//! Its runtime ends a program in which another library comes first, since functions that the runtime replaces might
//! be replaced by that library. This one calls the next function of each name, which is the runtime's, so nothing is
//! lost. The runtime asks the function below for its defaults; one of the program's own is found before it.

use std::ffi::{CStr, c_char};

const DEFAULTS: &CStr = c"verify_asan_link_order=0";

#[unsafe(no_mangle)]
extern "C" fn __asan_default_options() -> *const c_char {
    DEFAULTS.as_ptr()
}
