//! Parts of a file that are read and written whole, however many calls it takes.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;

use rustix::io::{Errno, pread, pwrite};

/// Reads all bytes from an offset on.
///
/// # Errors
/// Those of the system; `UnexpectedEof` where the file is too short.
pub(crate) fn read(file: impl AsFd, bytes: &mut [u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match pread(&file, &mut bytes[done..], at + done as u64) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => done += read,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Writes all bytes from an offset on.
///
/// # Errors
/// Those of the system.
pub(crate) fn write(file: impl AsFd, bytes: &[u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match pwrite(&file, &bytes[done..], at + done as u64) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(wrote) => done += wrote,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
