//! Changes of users and groups, which are passed on. The C library makes them in all threads that it knows; those of
//! this library follow.

use std::ffi::c_int;

use libc::{gid_t, size_t, uid_t};
use quire_linux::real::Real;

use crate::MANAGER;

/// Functions of the C library that change users or groups, with what they take.
macro_rules! passed_on {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            type Function = unsafe extern "C" fn($($type),*) -> c_int;
            const NAME: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(
                concat!(stringify!($name), "\0").as_bytes(),
            ) {
                Ok(name) => name,
                Err(_) => panic!("a name has no zero byte in it"),
            };
            // SAFETY: this is the type of the C library's function.
            static REAL: Real<Function> = unsafe { Real::new(NAME) };
            let Some(real) = REAL.known() else {
                return -1;
            };
            // SAFETY: passed on as it came.
            let result = unsafe { real($($argument),*) };
            if result == 0 {
                MANAGER.follow_rights();
            }
            result
        }
    )*};
}

passed_on! {
    setuid(user: uid_t);
    seteuid(user: uid_t);
    setreuid(real: uid_t, effective: uid_t);
    setresuid(real: uid_t, effective: uid_t, saved: uid_t);
    setgid(group: gid_t);
    setegid(group: gid_t);
    setregid(real: gid_t, effective: gid_t);
    setresgid(real: gid_t, effective: gid_t, saved: gid_t);
    setgroups(count: size_t, groups: *const gid_t);
}
