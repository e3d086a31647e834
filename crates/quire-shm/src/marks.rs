//! What the memory file of an object says of the object's key: a parent that opened it before it had a
//! size finds the object that a child has made of it, also where that has lost its name meanwhile.
//!
//! Parents and children have the file itself in common, and nothing can be written to it. But the time when
//! it was last read is the library's to set, as nobody can read it: it has bits of the exact spelling of the
//! key. The time of its last change is no such place: the kernel sets that before it refuses to write.

use std::ffi::c_int;

use quire_dsm::wire::control::Name;
use rustix::fd::BorrowedFd;
use rustix::fs::{Timespec, Timestamps, UTIME_OMIT};

use crate::numbers::hashed;

/// What stands for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    seconds: i64,
    nanoseconds: i64,
}

impl Mark {
    /// The mark of a key.
    pub fn of(exact: &Name) -> Mark {
        let hash = hashed(exact);
        Mark {
            seconds: (hash >> 33) as i64,
            nanoseconds: (hash % 1_000_000_000) as i64,
        }
    }

    /// What a file is marked with.
    pub fn read(descriptor: c_int) -> Option<Mark> {
        // SAFETY: nobody closes it meanwhile, or it is the program's mistake, and said to be none.
        let about = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(descriptor) }).ok()?;
        Some(Mark {
            seconds: about.st_atime,
            nanoseconds: about.st_atime_nsec.cast_signed(),
        })
    }

    /// Marks a file. A process that has become another user may not: then the object is found by its name,
    /// as long as it has that.
    pub fn set(self, descriptor: c_int) {
        let times = Timestamps {
            last_access: Timespec {
                tv_sec: self.seconds,
                tv_nsec: self.nanoseconds,
            },
            last_modification: Timespec {
                tv_sec: 0,
                tv_nsec: UTIME_OMIT,
            },
        };
        // SAFETY: as above.
        let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
        if let Err(errno) = rustix::fs::futimens(file, &times) {
            tracing::debug!("a memory file cannot be marked: {errno}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsRawFd as _, FromRawFd as _};

    use super::*;

    #[test]
    fn a_file_keeps_its_mark() {
        // SAFETY: the name is a C string, and nobody else has the descriptor.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"marked".as_ptr(), 0)) };
        let descriptor = file.as_raw_fd();
        let marks = ["grid~", "grid~1", "grid~2", "other~"].map(|exact| {
            let mark = Mark::of(&exact.parse().expect("a spelling"));
            mark.set(descriptor);
            assert_eq!(Mark::read(descriptor), Some(mark));
            mark
        });
        assert!(
            marks
                .iter()
                .all(|mark| marks.iter().filter(|it| *it == mark).count() == 1)
        );
        file.set_len(4096).expect("it has one more page");
        assert_eq!(Mark::read(descriptor), Some(marks[3]));
    }
}
