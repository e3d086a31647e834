//! Another file in the place of the one that is mapped, under the hands of the program: after a
//! server was started anew, its memory is another file, and the program's threads wait for
//! pages of the old one.
//!
//! The new file is mapped elsewhere, registered with a userfaultfd of its own, and moved to
//! where the old one is. The kernel takes away what was there and puts the mapping in its place
//! at one stroke. So who touches the memory finds the one or the other, each with somebody who
//! is told, and never zeros.
//!
//! A program may have unmapped parts of its mapping, or changed what others allow. So each
//! mapping that the kernel has of the old file there is replaced for itself, by one that allows
//! the same. Who changes that meanwhile has to hold the addresses for it ([`super::RangeLock`]), as the
//! change would be undone.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread;

use quire_core::units::AddrRange;
use quire_linux::sysinfo::maps::{FileId, Reader};
use quire_linux::uffd::{self, shared};
use quire_linux::{Errno, memory};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::{Hold, Mapped, MappingError, Where, map, set_apart};

/// Whoever reads moves looks so often whether it shall end.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// A mapping that the kernel has.
#[derive(Clone, Copy)]
struct Piece {
    range: AddrRange,
    /// As `mmap` takes it.
    prot: i32,
}

impl Hold {
    /// Puts another file, which is open for writing, in the place of the one that is mapped.
    /// What the program touches from then on is told to the userfaultfd of the hold that is
    /// returned, which is to be used instead of this one; this one's is told of nothing more.
    /// `None` where the mapping is gone.
    ///
    /// # Errors
    /// When the kernel refuses. The mapping may be replaced in part then, and is to be failed.
    pub fn replace(&self, file: BorrowedFd<'_>) -> Result<Option<Hold>, MappingError> {
        let refused = MappingError::Replace;
        let held = &self.mapped.range;
        // Held until all is done, so that nobody unmaps it meanwhile, or changes what it allows.
        let held = held.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(range) = *held else {
            return Ok(None);
        };
        let (uffd, _) = shared::open_to_be_moved().map_err(MappingError::Uffd)?;
        let id = FileId::of(file).map_err(refused)?;
        let pieces = pieces(range, self.mapped.file).map_err(refused)?;
        let staged = map(file, self.part, Where::Anywhere);
        let mut staged = Staged::new(staged.map_err(MappingError::Addresses)?);
        set_apart(staged.range).map_err(refused)?;
        shared::register(uffd.as_fd(), staged.range).map_err(MappingError::Register)?;
        put(&mut staged, range, &pieces, uffd.as_fd()).map_err(refused)?;
        for waits_at in [self.mapped.uffd.as_fd(), uffd.as_fd()] {
            uffd::wake(waits_at, range).map_err(refused)?;
        }
        let mapped = Mapped {
            uffd,
            nothing: Arc::clone(&self.mapped.nothing),
            range: Arc::clone(&self.mapped.range),
            file: id,
        };
        Ok(Some(Hold {
            mapped: Arc::new(mapped),
            part: self.part,
        }))
    }
}

/// The mappings of a file in a range.
fn pieces(range: AddrRange, file: FileId) -> Result<Vec<Piece>, Errno> {
    let mut found = Vec::new();
    let read = Reader::default().own(|mapping, _| {
        if mapping.range.start >= range.end {
            return ControlFlow::Break(());
        }
        if range.contains(mapping.range) && mapping.file == Some(file) {
            found.push(Piece {
                range: mapping.range,
                prot: mapping.prot,
            });
        }
        ControlFlow::Continue(())
    });
    read.map(|()| found).map_err(|error| errno(&error))
}

fn errno(error: &io::Error) -> Errno {
    rustix::io::Errno::from_io_error(error)
        .unwrap_or(rustix::io::Errno::IO)
        .into()
}

/// A new mapping of which parts are moved away; what is left at the end is unmapped.
struct Staged {
    range: AddrRange,
    rest: Vec<AddrRange>,
}

impl Staged {
    fn new(range: AddrRange) -> Staged {
        let rest = vec![range];
        Staged { range, rest }
    }

    /// What becomes the mapping at the addresses of a piece of `of`.
    fn part_for(&self, piece: AddrRange, of: AddrRange) -> AddrRange {
        let start = self.range.start + (piece.start - of.start);
        AddrRange::new(start, piece.len())
    }

    /// A part is not here any more; all that is behind it is.
    fn is_moved(&mut self, part: AddrRange) {
        let Some(last) = self.rest.pop() else { return };
        let (before, behind) = (last.start..part.start, part.end..last.end);
        let rest = [before, behind].map(|rest| AddrRange {
            start: rest.start,
            end: rest.end,
        });
        let rest = rest.into_iter().filter(|rest| !rest.is_empty());
        self.rest.extend(rest);
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        for rest in &self.rest {
            // SAFETY: nobody but this value knows of it.
            let _ = unsafe { memory::unmap(*rest) };
        }
    }
}

/// Moves parts of what is staged to where pieces of the old mapping are, in order of addresses.
fn put(
    staged: &mut Staged,
    range: AddrRange,
    pieces: &[Piece],
    uffd: BorrowedFd<'_>,
) -> Result<(), Errno> {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = thread::Builder::new().name("quire-dsm-moves".to_owned());
        reader
            .spawn_scoped(scope, || read_moves(uffd, &is_done))
            .map_err(|error| errno(&error))?;
        let moved = pieces.iter().try_for_each(|piece| {
            let part = staged.part_for(piece.range, range);
            // SAFETY: what is moved is the staged mapping's own. What is there is a mapping of
            // the old file, in place of which whoever calls wants the new one: it is shared
            // memory, which others may change at any time, and so is what comes.
            unsafe {
                memory::protect(part, piece.prot)?;
                memory::move_over(part, piece.range.start)?;
            }
            staged.is_moved(part);
            Ok(())
        });
        is_done.store(true, Ordering::Release);
        moved
    })
}

/// Reads moves, for each of which somebody waits, until all are done.
fn read_moves(uffd: BorrowedFd<'_>, is_done: &AtomicBool) {
    while !is_done.load(Ordering::Acquire) {
        let mut ready = [PollFd::from_borrowed_fd(uffd, PollFlags::IN)];
        // However it ends, the descriptor is read next.
        let _ = rustix::event::poll(&mut ready, Some(&LOOK));
        let _ = shared::moves(uffd);
    }
}
