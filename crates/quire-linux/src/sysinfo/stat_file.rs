//! Reads the statistics page of another process from its file in a session
//! directory.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::{io, ptr};

use quire_core::registry::Holding;
use quire_core::stat::{ProcessStat, StatError, StatPage};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A file that could not be read as a statistics page.
#[derive(Debug, thiserror::Error)]
pub enum StatFileError {
    /// The file could not be opened or mapped.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It holds something else.
    #[error(transparent)]
    Content(#[from] StatError),
}

/// Reads the statistics page that the file at `path` holds. The process that
/// writes it is not disturbed.
///
/// # Errors
/// When the file cannot be opened or mapped, is no regular file, is too short,
/// or does not hold a statistics page of this version.
pub fn read_stat_file(path: &Path) -> Result<ProcessStat, StatFileError> {
    Ok(open(path)?.page().read()?)
}

/// Reads only what the process says to others that need memory, and its start
/// time.
///
/// # Errors
/// As [`read_stat_file`].
pub fn read_holding(path: &Path) -> Result<(Holding, u64), StatFileError> {
    Ok(open(path)?.page().holding()?)
}

fn open(path: &Path) -> Result<View, StatFileError> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() || meta.len() < size_of::<StatPage>() as u64 {
        return Err(StatError::NotAPage.into());
    }
    if meta.uid() == rustix::process::geteuid().as_raw() {
        return Ok(View::Mapped(Mapping::new(&file)?));
    }
    // Its owner could make it shorter while it is mapped, which would end this process.
    Ok(View::Copied(copy(&file)?))
}

/// What a file holds, as it is or as it was.
enum View {
    Mapped(Mapping),
    Copied(Box<StatPage>),
}

impl View {
    fn page(&self) -> &StatPage {
        match self {
            View::Mapped(mapping) => mapping.page(),
            View::Copied(page) => page,
        }
    }
}

/// A copy of the page in a file.
fn copy(file: &File) -> io::Result<Box<StatPage>> {
    let mut page = Box::new(StatPage::default());
    let start = ptr::from_mut(&mut *page).cast::<u8>();
    // SAFETY: the page is borrowed for as long as the bytes, and consists of atomic integers and arrays of them
    // only, for which every bit pattern is valid.
    let bytes = unsafe { std::slice::from_raw_parts_mut(start, size_of::<StatPage>()) };
    file.read_exact_at(bytes, 0)?;
    Ok(page)
}

/// A read-only view of the page in a file.
struct Mapping(ptr::NonNull<StatPage>);

impl Mapping {
    fn new(file: &File) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address of the kernel's choice; the
        // caller made sure that the file covers it.
        let address = unsafe {
            mmap(
                ptr::null_mut(),
                size_of::<StatPage>(),
                ProtFlags::READ,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        ptr::NonNull::new(address.cast())
            .map(Mapping)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn page(&self) -> &StatPage {
        // SAFETY: the mapping is as large as the page, page-aligned, and lives
        // as long as `self`. All fields are atomic integers, for which every
        // bit pattern is valid and which others may write; they are only
        // loaded here, and on x86-64 no atomic load writes.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference outlives `self`. A
        // failure leaves it mapped, which is harmless.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), size_of::<StatPage>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn other_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stat.1");
        assert!(matches!(read_stat_file(&path), Err(StatFileError::Io(_))));
        let refused = |path: &Path| {
            matches!(
                read_stat_file(path),
                Err(StatFileError::Content(StatError::NotAPage))
            )
        };
        fs::write(&path, b"short").unwrap();
        assert!(refused(&path));
        fs::write(&path, vec![0; size_of::<StatPage>()]).unwrap();
        assert!(refused(&path));
        assert!(refused(dir.path()));
    }

    #[test]
    fn a_page_is_read() {
        use quire_core::config::Policy;
        let page = Box::new(StatPage::default());
        page.identify(7, 99, "name", Policy::Eager);
        // SAFETY: the page is alive and consists of initialised integers only,
        // without padding (all its fields are aligned to their offsets).
        let bytes = unsafe {
            std::slice::from_raw_parts(ptr::from_ref(&*page).cast::<u8>(), size_of::<StatPage>())
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stat.7");
        fs::write(&path, bytes).unwrap();
        let stat = read_stat_file(&path).unwrap();
        assert_eq!((stat.pid, stat.policy), (7, Policy::Eager));
        let copied = copy(&File::open(&path).unwrap()).unwrap();
        assert_eq!(copied.read(), Ok(stat));
        let short = File::open("/dev/null").unwrap();
        assert!(copy(&short).is_err());
    }
}
