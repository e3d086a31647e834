//! Memory for the contents of pages. It begins at a page boundary, so that it can be handed
//! to the kernel as it is, and it is used again, so that no message has to wait for the
//! allocator. What came in one message lies in one buffer, which its pages share, until
//! whoever keeps pages gives each of them its own part of it ([`Contents::part_with`]).

use std::fmt;
use std::hash::{Hash, Hasher};
use std::io;
use std::iter;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::{Arc, Mutex, Weak};

use quire_core::units::{BASE_PAGE, Bytes, ObjectOffset, PageCount};
use quire_linux::block::{Block, Piece};
use quire_linux::slabs::{self, Slabs};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use super::lent::Lent;

/// A page, in bytes.
const PAGE: usize = BASE_PAGE as usize;

/// Sizes of large buffers: 2^n pages, n below this. The largest holds the largest payload, 32 MiB.
const CLASSES: usize = 14;

/// Buffers of this class and those above, from 1 MiB on, are of superpages.
const LARGE: usize = 8;

/// A pool keeps at most this much memory of large buffers that nobody uses, in bytes.
const KEPT: usize = 64 << 20;

/// Where a buffer's bytes lie.
enum Storage {
    /// Some pages of a slab.
    Run(slabs::Run),
    /// More.
    Large(Piece),
    /// The same where the kernel has no such mapping.
    Allocated {
        bytes: Vec<u8>,
        start: usize,
        length: usize,
    },
}

impl Storage {
    /// Memory for 2^`class` pages, from [`LARGE`] on, and maybe some for others as large.
    fn large(class: usize) -> (Storage, Vec<Storage>) {
        let length = Bytes((PAGE << class) as u64);
        let pieces = Block::new(length).and_then(|block| block.cut(length));
        let mut all = pieces.unwrap_or_default().into_iter().map(Storage::Large);
        match all.next() {
            Some(first) => (first, all.collect()),
            // The allocator knows what to do without memory.
            None => (Storage::allocated(class), Vec::new()),
        }
    }

    fn allocated(class: usize) -> Storage {
        let length = PAGE << class;
        let bytes = vec![0; length + PAGE];
        let start = bytes.as_ptr().align_offset(PAGE);
        Storage::Allocated {
            bytes,
            start,
            length,
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Storage::Run(run) => run,
            Storage::Large(piece) => piece,
            Storage::Allocated {
                bytes,
                start,
                length,
            } => &bytes[*start..*start + *length],
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Storage::Run(run) => run,
            Storage::Large(piece) => piece,
            Storage::Allocated {
                bytes,
                start,
                length,
            } => &mut bytes[*start..*start + *length],
        }
    }
}

/// Large buffers that nobody uses. The others are in their slabs.
#[derive(Default)]
struct Free {
    /// By size.
    storages: [Vec<Storage>; CLASSES],
    /// All of it, in bytes.
    bytes: usize,
}

impl Free {
    fn take(&mut self, class: usize) -> Option<Storage> {
        let storage = self.storages[class].pop()?;
        self.bytes -= PAGE << class;
        Some(storage)
    }

    fn give(&mut self, class: usize, storage: Storage) {
        if self.bytes + (PAGE << class) <= KEPT {
            self.bytes += PAGE << class;
            self.storages[class].push(storage);
        }
    }
}

/// Buffers that are used again. A clone is the same pool.
#[derive(Clone, Default)]
pub struct Pool {
    slabs: Slabs,
    free: Arc<Mutex<Free>>,
}

impl Pool {
    /// An empty pool.
    #[must_use]
    pub fn new() -> Pool {
        Pool::default()
    }

    /// A buffer of at least `length` bytes: whole pages, and from 1 MiB on the next power of two
    /// of them. What it holds is whatever it held before.
    ///
    /// # Panics
    /// If more than 32 MiB are wanted; no message holds more.
    #[must_use]
    pub fn take(&self, length: usize) -> Buffer {
        let pages = length.div_ceil(PAGE).max(1);
        let class = pages.next_power_of_two().ilog2() as usize;
        assert!(class < CLASSES, "a buffer of {length} bytes is too large");
        match class < LARGE {
            true => Buffer::of(self.slabs.run(PageCount(pages as u64))),
            false => Buffer {
                storage: Some(self.large(class)),
                home: Some((class, Arc::downgrade(&self.free))),
            },
        }
    }

    /// Memory for 2^`class` pages, from [`LARGE`] on.
    fn large(&self, class: usize) -> Storage {
        let used = self.free.lock().ok().and_then(|mut free| free.take(class));
        used.unwrap_or_else(|| {
            let (storage, others) = Storage::large(class);
            if let Ok(mut free) = self.free.lock() {
                others.into_iter().for_each(|it| free.give(class, it));
            }
            storage
        })
    }

    /// A page with these contents.
    #[must_use]
    pub fn copy(&self, contents: &[u8]) -> Contents {
        let mut buffer = self.take(contents.len());
        buffer[..contents.len()].copy_from_slice(contents);
        Contents::whole(buffer, contents.len())
    }

    /// Memory of large buffers that the pool keeps and nobody uses, in bytes.
    #[must_use]
    pub fn idle(&self) -> usize {
        self.free.lock().map_or(0, |free| free.bytes)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} bytes idle)", self.idle())
    }
}

/// Memory of whole pages, at a page boundary. Dropped, it goes back to where it is from.
pub struct Buffer {
    /// Present until it is dropped.
    storage: Option<Storage>,
    /// Where a large one is from, and among which it is there.
    home: Option<(usize, Weak<Mutex<Free>>)>,
}

impl Buffer {
    fn of(run: slabs::Run) -> Buffer {
        Buffer {
            storage: Some(Storage::Run(run)),
            home: None,
        }
    }

    /// Buffers of so many bytes, whole pages, in its place, as many as fit. `None` where it is a
    /// large one.
    fn cut(mut self, length: usize) -> Option<Vec<Buffer>> {
        let Some(Storage::Run(run)) = self.storage.take_if(|it| matches!(it, Storage::Run(_)))
        else {
            return None;
        };
        let runs = run.cut(PageCount((length / PAGE) as u64));
        Some(runs.into_iter().map(Buffer::of).collect())
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.storage.as_ref().map_or(&[], Storage::bytes)
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.storage.as_mut().map_or(&mut [], Storage::bytes_mut)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let (Some(storage), Some((class, free))) = (self.storage.take(), self.home.take())
            && let Some(free) = free.upgrade()
            && let Ok(mut free) = free.lock()
        {
            free.give(class, storage);
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

/// What a page holds. It shares a buffer with the pages that came with it, and a clone is
/// the same memory. Two are equal where their bytes are. Contents that somebody else has in
/// memory of another kind are taken as they are.
#[derive(Clone)]
pub struct Contents {
    memory: Memory,
    start: usize,
    length: usize,
}

/// Where contents lie.
#[derive(Clone)]
enum Memory {
    Buffer(Arc<Buffer>),
    Vector(Arc<Vec<u8>>),
    Lent(Arc<Lent>),
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Buffer(buffer) => buffer,
            Memory::Vector(vector) => vector,
            Memory::Lent(lent) => lent.bytes(),
        }
    }

    /// How many bytes it has.
    fn len(&self) -> usize {
        match self {
            Memory::Lent(lent) => lent.len(),
            other => other.bytes().len(),
        }
    }

    /// A part of it.
    fn part(&self, start: usize, length: usize) -> Contents {
        assert!(start + length <= self.len(), "beyond the memory");
        Contents {
            memory: self.clone(),
            start,
            length,
        }
    }
}

impl From<Vec<u8>> for Contents {
    fn from(vector: Vec<u8>) -> Contents {
        let length = vector.len();
        Memory::Vector(Arc::new(vector)).part(0, length)
    }
}

/// A copy.
impl From<&[u8]> for Contents {
    fn from(slice: &[u8]) -> Contents {
        slice.to_vec().into()
    }
}

impl From<Arc<Lent>> for Contents {
    fn from(lent: Arc<Lent>) -> Contents {
        let length = lent.len();
        Memory::Lent(lent).part(0, length)
    }
}

impl Contents {
    /// The first `length` bytes of a buffer.
    ///
    /// # Panics
    /// If the buffer is shorter.
    #[must_use]
    pub fn whole(buffer: Buffer, length: usize) -> Contents {
        Contents::part(&Arc::new(buffer), 0, length)
    }

    /// A part of a buffer, in bytes.
    ///
    /// # Panics
    /// If the buffer is shorter.
    #[must_use]
    pub fn part(buffer: &Arc<Buffer>, start: usize, length: usize) -> Contents {
        Memory::Buffer(Arc::clone(buffer)).part(start, length)
    }

    /// A part of these contents, in bytes from their beginning. It is the same memory.
    ///
    /// # Panics
    /// If they are shorter.
    #[must_use]
    pub fn slice(&self, start: usize, length: usize) -> Contents {
        assert!(start + length <= self.length, "beyond the contents");
        self.memory.part(self.start + start, length)
    }

    /// Its parts of so many bytes, one after the other; less than that at the end is left out. They are
    /// the same memory.
    pub fn pieces(&self, length: usize) -> impl Iterator<Item = Contents> {
        let count = self.length / length;
        (0..count).map(move |number| self.slice(number * length, length))
    }

    /// How many bytes they have. What is lent is not copied for that.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether they have none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// What they are lent from, if it is not copied yet, and which part of that they are.
    pub(super) fn lent(&self) -> Option<(&Arc<Lent>, Range<usize>)> {
        match &self.memory {
            Memory::Lent(lent) if !lent.is_settled() => {
                Some((lent, self.start..self.start + self.length))
            }
            _ => None,
        }
    }

    /// Whether they lie in a file, from an offset on, and nowhere else yet.
    #[must_use]
    pub fn lie_at(&self, file: &Arc<OwnedFd>, start: ObjectOffset) -> bool {
        let begin = ObjectOffset(start.0.wrapping_sub(self.start as u64));
        matches!(&self.memory, Memory::Lent(lent) if lent.lies_at(file, begin))
    }

    /// Has the bytes in memory from now on, if they are lent.
    ///
    /// # Errors
    /// When they cannot be read; then they must not be sent.
    pub(super) fn settle(&self) -> io::Result<()> {
        match &self.memory {
            Memory::Lent(lent) => lent.settle(),
            _ => Ok(()),
        }
    }

    /// As many of the first contents as lie one after the other in memory, as far as that is
    /// known: in the same buffer, or in runs that were taken one after the other. All of that.
    #[must_use]
    pub fn together<'a>(contents: impl IntoIterator<Item = &'a Contents>) -> &'a [u8] {
        let mut contents = contents.into_iter();
        let Some(first) = contents.next() else {
            return &[];
        };
        if let Some(run) = first.run() {
            let more = contents.map_while(Contents::run);
            return slabs::together(iter::once(run).chain(more));
        }
        let bytes = first.memory.bytes();
        let mut end = first.start + first.length;
        for next in contents {
            if !ptr::eq(next.memory.bytes(), bytes) || next.start != end {
                break;
            }
            end += next.length;
        }
        &bytes[first.start..end]
    }

    /// The run of a slab that they fill.
    fn run(&self) -> Option<&slabs::Run> {
        match &self.memory {
            Memory::Buffer(buffer) => match &buffer.storage {
                Some(Storage::Run(run)) if self.length == run.len() => Some(run),
                _ => None,
            },
            _ => None,
        }
    }

    /// Gives pages that came at once, and that nobody else has, memory of their own, where they
    /// are: for who keeps them for different times. Others, and those of large buffers, are left
    /// as they are, and may have to be copied ([`Contents::is_part`]).
    pub fn part_with(contents: &mut [Option<Contents>]) {
        let mut rest = contents;
        while !rest.is_empty() {
            let count = Contents::of_one_buffer(rest);
            let (these, others) = rest.split_at_mut(count.max(1));
            if count > 1 {
                Contents::cut(these);
            }
            rest = others;
        }
    }

    /// How many of the first contents, some of which are none, fill a buffer from its beginning,
    /// one after the other, all of the same length.
    fn of_one_buffer(contents: &[Option<Contents>]) -> usize {
        let Some(Some(Contents {
            memory: Memory::Buffer(buffer),
            start: 0,
            length,
        })) = contents.first()
        else {
            return 0;
        };
        let mut next = 0;
        let mut is_next = |contents: &Option<Contents>| match contents {
            None => true,
            Some(Contents {
                memory: Memory::Buffer(of),
                start,
                length: len,
            }) => {
                let fits = Arc::ptr_eq(of, buffer) && *start == next && len == length;
                next += length;
                fits
            }
            Some(_) => false,
        };
        contents.iter().take_while(|it| is_next(it)).count()
    }

    /// Cuts the buffer of such contents, if nobody else has it.
    fn cut(contents: &mut [Option<Contents>]) {
        let present = || contents.iter().flatten();
        let Some(Contents {
            memory: Memory::Buffer(buffer),
            length,
            ..
        }) = present().next()
        else {
            return;
        };
        let (buffer, length, count) = (Arc::clone(buffer), *length, present().count());
        let is_run = matches!(buffer.storage, Some(Storage::Run(_)));
        if !is_run || !length.is_multiple_of(PAGE) || Arc::strong_count(&buffer) != count + 1 {
            return;
        }
        let mut slots: Vec<_> = contents.iter_mut().filter(|it| it.is_some()).collect();
        slots.iter_mut().for_each(|slot| **slot = None);
        let Some(parts) = Arc::into_inner(buffer).and_then(|buffer| buffer.cut(length)) else {
            unreachable!("nobody else had it");
        };
        for (slot, part) in slots.into_iter().zip(parts) {
            *slot = Some(Contents::whole(part, length));
        }
    }

    /// Whether they keep more memory than they need, as one page of many that came at once
    /// does. Whoever keeps contents for long copies such ones.
    #[must_use]
    pub fn is_part(&self) -> bool {
        self.length * 2 < self.memory.len()
    }
}

impl Deref for Contents {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory.bytes()[self.start..self.start + self.length]
    }
}

impl AsRef<[u8]> for Contents {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Contents {
    fn eq(&self, other: &Contents) -> bool {
        **self == **other
    }
}

impl Eq for Contents {}

impl Hash for Contents {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Contents({} bytes)", self.length)
    }
}

/// Contents are in the payload. Where some are left in a control part, that is a mistake.
impl Serialize for Contents {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(ser::Error::custom("contents go in the payload"))
    }
}

impl<'de> Deserialize<'de> for Contents {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Contents, D::Error> {
        Err(de::Error::custom("contents come in the payload"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_begin_at_page_boundaries_and_are_used_again() {
        let pool = Pool::new();
        for length in [1, 4096, 4097, 65536, 3 << 20, 32 << 20] {
            let buffer = pool.take(length);
            assert!(buffer.len() >= length);
            assert_eq!(buffer.as_ptr() as usize % PAGE, 0, "{length} bytes");
            let address = buffer.as_ptr();
            drop(buffer);
            assert_eq!(pool.take(length).as_ptr(), address, "{length} bytes");
        }
    }

    #[test]
    fn a_pool_keeps_no_more_than_its_bound() {
        let pool = Pool::new();
        let many: Vec<Buffer> = (0..5).map(|_| pool.take(32 << 20)).collect();
        assert_eq!(pool.idle(), 0);
        drop(many);
        assert_eq!(pool.idle(), KEPT);
    }

    #[test]
    fn contents_take_memory_of_other_kinds_as_it_is() {
        let vector = vec![1, 2, 3];
        let address = vector.as_ptr();
        let contents = Contents::from(vector);
        assert_eq!(contents.as_ptr(), address);
        assert_eq!(Contents::from(&contents[..]), contents);
        assert_eq!(*contents.slice(1, 2), [2, 3]);
        assert!(contents.slice(1, 1).is_part());
        assert!(!contents.is_part());
    }

    #[test]
    fn contents_lie_together_where_they_came_together() {
        let pool = Pool::new();
        let all = pool.copy(&[7; 3 * PAGE]);
        let page = |number| all.slice(number * PAGE, PAGE);
        let other = pool.copy(&[8; PAGE]);
        let together = |pages: &[Contents]| Contents::together(pages).len() / PAGE;
        assert_eq!(together(&[]), 0);
        assert_eq!(together(&[page(0), page(1), page(2)]), 3);
        assert_eq!(together(&[page(0), page(2)]), 1);
        assert_eq!(together(&[page(1), page(0)]), 1);
        assert_eq!(together(&[page(1), page(2), other.clone()]), 2);
        let pages = [page(2), other];
        assert!(ptr::eq(Contents::together(&pages), &*pages[0]));
        let single: Vec<Contents> = (0..5).map(|_| pool.copy(&[9; PAGE])).collect();
        assert_eq!(together(&single), 5);
        assert_eq!(together(&[single[0].clone(), page(0)]), 1);
        assert_eq!(together(&[single[0].slice(0, 8), single[1].clone()]), 0);
    }

    #[test]
    fn a_buffer_goes_back_with_its_last_page() {
        let pool = Pool::new();
        let page = pool.copy(&[7; 2 << 20]);
        let second = page.slice(4096, 4096);
        drop(page);
        assert_eq!(pool.idle(), 0);
        assert!(second.iter().all(|&byte| byte == 7));
        drop(second);
        assert_eq!(pool.idle(), 2 << 20);
    }

    #[test]
    fn pages_that_came_at_once_part_where_they_are() {
        let pool = Pool::new();
        let mut buffer = pool.take(6 * PAGE);
        for (page, number) in buffer.chunks_mut(PAGE).zip(0..) {
            page.fill(number);
        }
        let at = buffer.as_ptr() as usize;
        let buffer = Arc::new(buffer);
        let page = |number| Some(Contents::part(&buffer, number * PAGE, PAGE));
        let single = pool.copy(&[9; PAGE]);
        let mut pages = vec![page(0), None, page(1), page(2), Some(single.clone()), None];
        Contents::part_with(&mut pages);
        assert!(
            pages[0].as_ref().is_some_and(Contents::is_part),
            "somebody else has it"
        );
        drop(buffer);
        Contents::part_with(&mut pages);
        let is_there: Vec<bool> = pages.iter().map(Option::is_some).collect();
        assert_eq!(is_there, [true, false, true, true, true, false]);
        let present: Vec<Contents> = pages.into_iter().flatten().collect();
        for (number, page) in present[..3].iter().enumerate() {
            assert_eq!(page.as_ptr() as usize, at + number * PAGE);
            assert!(page.iter().all(|byte| usize::from(*byte) == number));
            assert!(!page.is_part());
        }
        assert_eq!(present[3], single);
        assert_eq!(Contents::together(&present[..3]).len(), 3 * PAGE);
        // What was left of the buffer is free again, and so is each page with its contents.
        assert_eq!(pool.take(3 * PAGE).as_ptr() as usize, at + 3 * PAGE);
        drop(present);
        assert_eq!(pool.take(3 * PAGE).as_ptr() as usize, at);
    }

    #[test]
    fn pages_of_other_sizes_part_too_and_those_of_large_buffers_stay() {
        let pool = Pool::new();
        let parts = |length: usize, each: usize| {
            let all = pool.copy(&vec![1; length]);
            let mut parts: Vec<_> = all.pieces(each).map(Some).collect();
            drop(all);
            Contents::part_with(&mut parts);
            parts
                .into_iter()
                .flatten()
                .filter(Contents::is_part)
                .count()
        };
        assert_eq!(parts(512 << 10, 64 << 10), 0);
        assert_eq!(parts(96 << 10, 32 << 10), 0);
        assert_eq!(parts(2 << 20, 64 << 10), 32);
    }
}
