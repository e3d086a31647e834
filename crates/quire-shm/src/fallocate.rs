//! `posix_fallocate` and `fallocate` of an object's descriptor: they give shared memory its size,
//! as `ftruncate` does, or see to it that there is room. An object has room for all of it. Its
//! file must not get any memory, which nobody would use.

use std::ffi::c_int;

use crate::posix;
use crate::real::Real;
use crate::state::{self, State, answer};
use crate::trouble::{Result, Trouble};

type PosixFallocate = unsafe extern "C-unwind" fn(c_int, libc::off_t, libc::off_t) -> c_int;
type Fallocate = unsafe extern "C-unwind" fn(c_int, c_int, libc::off_t, libc::off_t) -> c_int;

// SAFETY: the types of the C library's functions, here and below.
static POSIX_FALLOCATE: Real<PosixFallocate> = unsafe { Real::new(c"posix_fallocate") };
// SAFETY: as above.
static FALLOCATE: Real<Fallocate> = unsafe { Real::new(c"fallocate") };

/// Looks up the functions behind these.
pub fn start() {
    let (_, _) = (POSIX_FALLOCATE.get(), FALLOCATE.get());
}

/// What is to be there.
#[derive(Clone, Copy)]
struct Call {
    descriptor: c_int,
    mode: c_int,
    offset: libc::off_t,
    len: libc::off_t,
}

impl Call {
    /// Does it, if the descriptor stands for an object.
    fn done(self) -> Option<Result<()>> {
        match posix::is_likely(self.descriptor) {
            true => state::locked(|state| allocate(state, self)).flatten(),
            false => None,
        }
    }

    /// Where it ends.
    fn end(self) -> Result<libc::off_t> {
        if self.offset < 0 || self.len <= 0 {
            return Err(Trouble::new(libc::EINVAL, "no range of an object"));
        }
        let end = self.offset.checked_add(self.len);
        end.ok_or_else(|| Trouble::new(libc::EFBIG, "a range beyond all objects"))
    }
}

/// Nothing where it is no object's file.
fn allocate(state: &mut State, call: Call) -> Option<Result<()>> {
    let (_, opened, size) = posix::find(state, call.descriptor)?;
    let end = match call.end() {
        _ if !opened.writable => return Some(Err(Trouble::new(libc::EBADF, "opened to be read"))),
        Ok(end) => end,
        Err(trouble) => return Some(Err(trouble)),
    };
    let text = match call.mode {
        libc::FALLOC_FL_KEEP_SIZE => return Some(Ok(())),
        0 if end.unsigned_abs() <= size => return Some(Ok(())),
        0 if opened.is_pending => return posix::resize(state, call.descriptor, end),
        0 => {
            let text = "an object is to have room beyond its end: it keeps its size";
            return Some(state.run(move |_| Err(Trouble::new(libc::EFBIG, text))));
        }
        _ => "fallocate of an object with a mode: only FALLOC_FL_KEEP_SIZE is offered",
    };
    Some(state.run(move |_| Err(Trouble::new(libc::EOPNOTSUPP, text))))
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_fallocate(
    descriptor: c_int,
    offset: libc::off_t,
    len: libc::off_t,
) -> c_int {
    let call = Call {
        descriptor,
        mode: 0,
        offset,
        len,
    };
    match (call.done(), POSIX_FALLOCATE.known()) {
        // This one says itself what is wrong.
        (Some(done), _) => done.map_or_else(|trouble| trouble.errno, |()| 0),
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(descriptor, offset, len) },
        (None, None) => libc::ENOSYS,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_fallocate64(
    descriptor: c_int,
    offset: libc::off_t,
    len: libc::off_t,
) -> c_int {
    // SAFETY: the same function by another name.
    unsafe { posix_fallocate(descriptor, offset, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fallocate(
    descriptor: c_int,
    mode: c_int,
    offset: libc::off_t,
    len: libc::off_t,
) -> c_int {
    let call = Call {
        descriptor,
        mode,
        offset,
        len,
    };
    match (call.done(), FALLOCATE.known()) {
        (Some(done), _) => answer(done.map(|()| 0), -1),
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(descriptor, mode, offset, len) },
        (None, None) => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fallocate64(
    descriptor: c_int,
    mode: c_int,
    offset: libc::off_t,
    len: libc::off_t,
) -> c_int {
    // SAFETY: the same function by another name.
    unsafe { fallocate(descriptor, mode, offset, len) }
}
