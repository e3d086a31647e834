//! Contents that stay in a file until they are sent, so that nobody copies them before the
//! socket does, and those that a socket brings to where they belong in a file. A file is whoever's
//! that has pages to send or to be filled; it must not change what it has lent. So it settles first:
//! what was not sent yet, or has come so far, is copied, and is as good as before.
//!
//! What a socket has taken it may still read from the file's memory, until the other side has
//! read it. So only that may be lent which its owner does not get to write before the other side
//! has said something that it says after reading it: a page that is given back.

use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use quire_core::units::{Bytes, ObjectOffset};

use super::buffer::{Buffer, Pool};
use crate::whole;

/// A part of a file that is to be sent, or to which something comes.
pub struct Lent {
    file: Arc<OwnedFd>,
    start: u64,
    length: usize,
    pool: Pool,
    /// What it holds, once somebody had to have it elsewhere.
    copy: OnceLock<Copy>,
    /// Held while it is read, so that nothing is settled meanwhile.
    reading: Mutex<()>,
}

struct Copy {
    buffer: Buffer,
    /// Why it holds zeros in place of what it should.
    failed: Option<ErrorKind>,
}

impl Lent {
    /// How many bytes there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// What it holds. What cannot be read is zeros, and must not be sent: see [`Lent::settle`].
    pub(super) fn bytes(&self) -> &[u8] {
        &self.copied().buffer[..self.length]
    }

    /// Copies it, if it is not copied yet.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn settle(&self) -> io::Result<()> {
        self.copied().failed.map_or(Ok(()), |why| Err(why.into()))
    }

    /// Whether it is copied. It may be right after.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.copy.get().is_some()
    }

    /// Whether this is a file's part from an offset on, and not copied yet.
    pub(super) fn lies_at(&self, file: &Arc<OwnedFd>, start: ObjectOffset) -> bool {
        Arc::ptr_eq(&self.file, file) && self.start == start.0 && !self.is_settled()
    }

    /// Has a function send a part of it from the file, or bring it there; `None` where it is copied
    /// already.
    ///
    /// The function gets the file, where the part lies in it, and how long it is, in bytes.
    pub fn pass<T>(
        &self,
        part: Range<usize>,
        pass: impl FnOnce(BorrowedFd<'_>, u64, usize) -> T,
    ) -> Option<T> {
        let _reading = self.lock();
        let is_there = !self.is_settled();
        is_there.then(|| {
            pass(
                self.file.as_fd(),
                self.start + part.start as u64,
                part.len(),
            )
        })
    }

    fn copied(&self) -> &Copy {
        let _reading = self.lock();
        self.copy.get_or_init(|| {
            let mut buffer = self.pool.take(self.length);
            let failed = whole::read(&self.file, &mut buffer[..self.length], self.start).err();
            if failed.is_some() {
                buffer[..self.length].fill(0);
            }
            let failed = failed.map(|error| error.kind());
            Copy { buffer, failed }
        })
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn overlaps(&self, start: ObjectOffset, len: Bytes) -> bool {
        self.start < start.0.saturating_add(len.0) && start.0 < self.start + self.length as u64
    }
}

/// What a file has lent, and nobody has sent yet, or has come in full. A clone is the same.
#[derive(Clone, Default)]
pub struct Loans {
    all: Arc<Mutex<Vec<Weak<Lent>>>>,
}

impl Loans {
    /// Lends a part of a file. A copy of it lies in memory of the pool.
    pub fn lend(
        &self,
        file: &Arc<OwnedFd>,
        start: ObjectOffset,
        length: usize,
        pool: &Pool,
    ) -> Arc<Lent> {
        let lent = Arc::new(Lent {
            file: Arc::clone(file),
            start: start.0,
            length,
            pool: pool.clone(),
            copy: OnceLock::new(),
            reading: Mutex::new(()),
        });
        let mut all = self.lock();
        all.retain(|lent| lent.strong_count() > 0);
        all.push(Arc::downgrade(&lent));
        lent
    }

    /// A part of the file is about to change: what is lent of it is copied.
    ///
    /// # Errors
    /// When it cannot be read. Nothing of it is sent then.
    pub fn settle(&self, start: ObjectOffset, len: Bytes) -> io::Result<()> {
        let lent: Vec<Arc<Lent>> = {
            let mut all = self.lock();
            all.retain(|lent| lent.strong_count() > 0);
            all.iter().filter_map(Weak::upgrade).collect()
        };
        let theirs = lent.iter().filter(|lent| lent.overlaps(start, len));
        theirs.map(|lent| lent.settle()).fold(Ok(()), Result::and)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Lent>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::MemfdFlags;

    use super::*;

    fn file(bytes: &[u8]) -> Arc<OwnedFd> {
        let file = rustix::fs::memfd_create(c"lent", MemfdFlags::CLOEXEC).unwrap();
        rustix::io::pwrite(&file, bytes, 0).unwrap();
        Arc::new(file)
    }

    #[test]
    fn what_is_lent_is_copied_before_it_changes() {
        let file = file(b"abcdefgh");
        let (loans, pool) = (Loans::default(), Pool::new());
        let first = loans.lend(&file, ObjectOffset(0), 4, &pool);
        let second = loans.lend(&file, ObjectOffset(4), 4, &pool);
        loans.settle(ObjectOffset(3), Bytes(1)).unwrap();
        assert!(first.is_settled() && !second.is_settled());
        assert_eq!(first.pass(0..4, |_, _, _| ()), None);
        let place = second.pass(1..3, |_, at, length| (at, length));
        assert_eq!(place, Some((5, 2)));
        rustix::io::pwrite(&file, b"ABCDEFGH", 0).unwrap();
        assert_eq!(
            (first.bytes(), second.bytes()),
            (&b"abcd"[..], &b"EFGH"[..])
        );
        drop(second);
        loans.settle(ObjectOffset(0), Bytes(8)).unwrap();
        assert_eq!(loans.lock().len(), 1, "what was sent is forgotten");
    }

    #[test]
    fn what_cannot_be_read_is_not_settled() {
        let file = file(b"abcd");
        let (loans, pool) = (Loans::default(), Pool::new());
        let lent = loans.lend(&file, ObjectOffset(0), 8, &pool);
        let error = loans.settle(ObjectOffset(0), Bytes(8)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        assert_eq!(lent.bytes(), [0; 8]);
        assert!(lent.settle().is_err());
    }
}
