//! Every raw memory access of this program, so that the rest is safe code.
//!
//! Workload memory comes from the C library (`posix_memalign`, `mmap`), because that
//! is what a preloaded library takes over. Probes of the kernel itself go
//! through system calls, which no preloaded library sees.

use std::ffi::{CStr, c_void};
use std::fs::File;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, RawFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use quire_core::stat::StatPage;
use quire_core::units::{BASE_PAGE, SUPERPAGE};
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
use rustix::process::{Pid, WaitOptions, waitpid};

const PAGE: usize = BASE_PAGE as usize;
const HUGE: usize = SUPERPAGE as usize;
/// `MADV_COLLAPSE`: make a superpage of the range now.
const MADV_COLLAPSE: i32 = 25;
/// `MADV_DONTNEED_LOCKED`: give pages back although they are locked.
const MADV_DONTNEED_LOCKED: i32 = 24;
/// How often memory is touched at most until it is warm.
const WARM_ROUNDS: usize = 8;
/// Memory is warm when touching it takes the least time that was ever seen,
/// within this factor.
const WARM_RATIO: f64 = 1.4;

/// Where the memory of a [`Block`] came from, and so how it goes back.
#[derive(Clone, Copy, Debug)]
enum Origin {
    Malloc(NonNull<c_void>),
    Map,
}

/// Page-aligned memory that this process owns.
#[derive(Debug)]
pub struct Block {
    origin: Origin,
    start: NonNull<u8>,
    len: usize,
    initialised: bool,
}

impl Block {
    /// Takes `len` bytes from the allocator, aligned to a page. Exactly so
    /// many: a page more, to align by hand, would be a size class more in some
    /// allocators.
    pub fn malloc(len: usize) -> Result<Block> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the alignment is a power of two, and the result is stored
        // in a place that lives.
        let code = unsafe { libc::posix_memalign(&raw mut raw, PAGE, len) };
        let raw = NonNull::new(raw)
            .filter(|_| code == 0)
            .with_context(|| format!("allocating {len} bytes failed"))?;
        Ok(Block {
            origin: Origin::Malloc(raw),
            start: raw.cast(),
            len,
            initialised: false,
        })
    }

    /// Takes `len` bytes, a whole number of pages, of zeroed private memory
    /// from the C library's `mmap`.
    pub fn map(len: usize) -> Result<Block> {
        ensure!(
            len.is_multiple_of(PAGE) && len > 0,
            "not a whole number of pages"
        );
        // SAFETY: a new private anonymous mapping at an address of the
        // kernel's choice touches no memory that exists.
        let raw = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if raw == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error()).context("mmap failed");
        }
        let start = NonNull::new(raw.cast()).context("mmap returned address zero")?;
        Ok(Block {
            origin: Origin::Map,
            start,
            len,
            initialised: true,
        })
    }

    /// Its size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Its first address.
    pub fn address(&self) -> usize {
        self.start.as_ptr().addr()
    }

    /// The whole superpages inside, as offset and size; empty if there is none.
    fn superpages(&self) -> (usize, usize) {
        let offset = self.start.align_offset(HUGE);
        let len = self.len.saturating_sub(offset) / HUGE * HUGE;
        (offset, len)
    }

    /// Gives the kernel advice about the superpages inside.
    fn advise(&self, advice: i32) -> Result<()> {
        let (offset, len) = self.superpages();
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the range lies in this block, and no advice that is given
        // here changes what it holds.
        let rc = unsafe { libc::madvise(self.start.as_ptr().add(offset).cast(), len, advice) };
        ensure!(rc == 0, "madvise: {}", std::io::Error::last_os_error());
        Ok(())
    }

    /// Asks the kernel for huge pages.
    pub fn advise_huge(&self) -> Result<()> {
        self.advise(libc::MADV_HUGEPAGE)
    }

    /// Asks the kernel for base pages.
    pub fn advise_base(&self) -> Result<()> {
        self.advise(libc::MADV_NOHUGEPAGE)
    }

    /// Offsets of the whole superpages inside.
    pub fn superpage_offsets(&self) -> impl Iterator<Item = usize> + use<> {
        let (offset, len) = self.superpages();
        (offset..offset + len).step_by(HUGE)
    }

    /// Populates every page and keeps it in memory. The kernel does not move
    /// such pages while `vm.compact_unevictable_allowed` is 0.
    pub fn lock(&self) -> Result<()> {
        // SAFETY: locking changes nothing that this block holds.
        unsafe { rustix::mm::mlock(self.start.as_ptr().cast(), self.len) }.context("mlock")
    }

    /// The same, of what is populated.
    pub fn lock_present(&self) -> Result<()> {
        let present = rustix::mm::MlockFlags::ONFAULT;
        // SAFETY: locking changes nothing that this block holds.
        unsafe { rustix::mm::mlock_with(self.start.as_ptr().cast(), self.len, present) }
            .context("mlock2")
    }

    /// Makes base pages of every superpage inside.
    pub fn split_superpages(&mut self) -> Result<()> {
        for offset in self.superpage_offsets() {
            // Advice that concerns a part of a superpage is what splits it.
            // SAFETY: the page lies in this block, and the advice keeps what
            // it holds.
            unsafe {
                let page = self.start.as_ptr().add(offset).cast();
                rustix::mm::madvise(page, PAGE, Advice::LinuxCold).context("MADV_COLD")?;
            }
        }
        Ok(())
    }

    /// Gives every second page back to the kernel, locked or not. Only for a
    /// block from [`Block::map`], whose pages are zero then.
    pub fn release_every_second_page(&mut self) -> Result<()> {
        ensure!(
            matches!(self.origin, Origin::Map),
            "the allocator's memory cannot be given back"
        );
        for offset in (0..self.len).step_by(2 * PAGE) {
            // SAFETY: the page lies in this block, which is borrowed
            // exclusively, and is zero afterwards, which is a value of
            // everything that the block can be read as.
            let rc = unsafe {
                let page = self.start.as_ptr().add(offset);
                libc::madvise(page.cast(), PAGE, MADV_DONTNEED_LOCKED)
            };
            ensure!(
                rc == 0,
                "MADV_DONTNEED_LOCKED: {}",
                std::io::Error::last_os_error()
            );
        }
        Ok(())
    }

    /// Makes one superpage of the pages at `offset`.
    pub fn collapse(&self, offset: usize) -> Result<()> {
        ensure!(offset + HUGE <= self.len, "past the end");
        // SAFETY: the range was checked to lie in this block.
        unsafe { collapse_at(self.start.add(offset)) }
    }

    /// Writes one byte in every `stride` bytes.
    pub fn touch(&mut self, stride: usize) {
        for offset in (0..self.len).step_by(stride) {
            // SAFETY: `offset` is less than the length of the block.
            unsafe { self.start.add(offset).write_volatile(1) };
        }
    }

    /// Writes one byte.
    pub fn touch_at(&mut self, offset: usize) {
        assert!(offset < self.len, "outside of the block");
        // SAFETY: `offset` is less than the length of the block.
        unsafe { self.start.add(offset).write_volatile(1) };
    }

    /// Writes one byte in every page and appends how long each write took, in
    /// nanoseconds.
    pub fn touch_timed(&mut self, out: &mut Vec<u32>) {
        for offset in (0..self.len).step_by(PAGE) {
            let start = Instant::now();
            // SAFETY: `offset` is less than the length of the block.
            unsafe { self.start.add(offset).write_volatile(1) };
            let nanos = start.elapsed().as_nanos();
            out.push(u32::try_from(nanos).unwrap_or(u32::MAX));
        }
    }

    /// Writes zeros everywhere.
    pub fn clear(&mut self) {
        // SAFETY: the whole block belongs to this process and is borrowed
        // exclusively.
        unsafe { self.start.write_bytes(0, self.len) };
        self.initialised = true;
    }

    /// The block as numbers. Clears it first if it never was.
    pub fn words(&mut self) -> &mut [u64] {
        self.slice()
    }

    /// The block as floating-point numbers. Clears it first if it never was.
    pub fn doubles(&mut self) -> &mut [f64] {
        self.slice()
    }

    /// The first `doubles` words of the block as floating-point numbers, and the rest as
    /// numbers. Clears it first if it never was.
    pub fn doubles_and_words(&mut self, doubles: usize) -> (&mut [f64], &mut [u64]) {
        let (first, rest) = self.words().split_at_mut(doubles);
        // SAFETY: a floating-point number has the size and the alignment of a word, every
        // bit pattern is a value of both, and the borrow is exclusive.
        let first = unsafe { std::slice::from_raw_parts_mut(first.as_mut_ptr().cast(), doubles) };
        (first, rest)
    }

    /// The block as numbers that several threads may change. Clears it first
    /// if it never was.
    pub fn cells(&mut self) -> &[AtomicU64] {
        self.slice()
    }

    fn slice<T: Plain>(&mut self) -> &mut [T] {
        if !self.initialised {
            self.clear();
        }
        let len = self.len / size_of::<T>();
        // SAFETY: the block is aligned to a page and initialised, every bit
        // pattern is a valid `T`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast().as_ptr(), len) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        match self.origin {
            // SAFETY: the pointer came from the allocator and is freed once.
            Origin::Malloc(raw) => unsafe { libc::free(raw.as_ptr()) },
            Origin::Map => {
                // SAFETY: the mapping is this block's own, and nothing
                // borrows from it any more.
                unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
            }
        }
    }
}

/// Types of which every bit pattern is a value.
trait Plain {}
impl Plain for u64 {}
impl Plain for f64 {}
impl Plain for AtomicU64 {}

/// Touches `bytes` of memory and gives them back, so that a host that hands
/// out memory lazily has done so before anything is measured.
pub fn warm_up(bytes: usize) -> Result<()> {
    /// The least time that a MiB has taken so far, in nanoseconds.
    static BEST: AtomicU64 = AtomicU64::new(u64::MAX);
    for _ in 0..WARM_ROUNDS {
        let start = Instant::now();
        let mut block = Block::map(bytes.next_multiple_of(HUGE))?;
        // Without huge pages it only takes longer.
        let _ = block.advise_huge();
        block.touch(PAGE);
        drop(block);
        let took = start.elapsed().as_nanos() as u64 / (bytes as u64 >> 20).max(1);
        let best = BEST.fetch_min(took, Ordering::Relaxed) as f64;
        if (best / WARM_RATIO..best * WARM_RATIO).contains(&(took as f64)) {
            break;
        }
    }
    Ok(())
}

/// A shared mapping of a file, aligned to a superpage and made by system calls
/// that no preloaded library sees.
#[derive(Debug)]
pub struct SharedMap {
    reserved: NonNull<c_void>,
    reserved_len: usize,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the addresses are the value's own, and belong to no thread.
unsafe impl Send for SharedMap {}

impl SharedMap {
    /// Maps the first `len` bytes of `file` on base pages.
    pub fn on_base_pages(file: impl AsFd, len: usize) -> Result<SharedMap> {
        let reserved_len = len + HUGE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let reserved = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                reserved_len,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .context("reserving addresses")?;
        let reserved = NonNull::new(reserved).context("mmap returned address zero")?;
        let offset = reserved.cast::<u8>().align_offset(HUGE);
        // SAFETY: the offset is less than a superpage, which was reserved in
        // addition to `len`.
        let start = unsafe { reserved.cast::<u8>().add(offset) };
        let map = SharedMap {
            reserved,
            reserved_len,
            start,
            len,
        };
        // SAFETY: the range lies in the addresses that were reserved above
        // and that nothing else uses.
        unsafe {
            rustix::mm::mmap(
                start.as_ptr().cast(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED,
                file,
                0,
            )
        }
        .context("mapping the file")?;
        map.advise(0, len, Advice::LinuxNoHugepage)?;
        Ok(map)
    }

    fn advise(&self, offset: usize, len: usize, advice: Advice) -> Result<()> {
        ensure!(offset + len <= self.len, "past the end");
        // SAFETY: the range lies in this mapping, and the advice that is
        // given here keeps what it holds.
        unsafe { rustix::mm::madvise(self.start.as_ptr().add(offset).cast(), len, advice) }
            .with_context(|| format!("madvise {advice:?}"))
    }

    /// Its first address.
    pub fn address(&self) -> usize {
        self.start.as_ptr().addr()
    }

    /// What it shows of a file that nobody writes to meanwhile, nor shortens.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is as long, readable, writable and this value's own; the file, which
        // is there as long as it, is only the caller's.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Writes one byte in every page.
    pub fn touch(&mut self) {
        for offset in (0..self.len).step_by(PAGE) {
            // SAFETY: `offset` is less than the length of the mapping.
            unsafe { self.start.add(offset).write_volatile(1) };
        }
    }

    /// Promotes the extent at `offset` in place by `MADV_COLLAPSE`.
    pub fn collapse(&self, offset: usize) -> Result<()> {
        self.advise(offset, HUGE, Advice::LinuxHugepage)?;
        // SAFETY: `advise` has checked that the range lies in this mapping.
        unsafe { collapse_at(self.start.add(offset)) }
    }

    /// Promotes the extent at `offset` in place, by the calls that Quire makes:
    /// a new mapping of the same part of `file` is moved over the old one.
    pub fn promote(&self, file: impl AsFd, offset: usize) -> Result<()> {
        ensure!(offset + HUGE <= self.len, "past the end");
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let moved = MremapFlags::MAYMOVE;
        // SAFETY: the new mapping is at an address of the kernel's choice and
        // shows what the old one shows, whose place it takes; the range was
        // checked above.
        unsafe {
            let to = self.start.as_ptr().add(offset).cast();
            let null = std::ptr::null_mut();
            let new = rustix::mm::mmap(null, HUGE, prot, MapFlags::SHARED, file, offset as u64)?;
            rustix::mm::madvise(new, HUGE, Advice::LinuxDontFork)?;
            rustix::mm::madvise(new, HUGE, Advice::LinuxHugepage)?;
            rustix::mm::mremap_fixed(new, HUGE, HUGE, moved, to)?;
            rustix::mm::madvise(to, PAGE, Advice::LinuxPopulateRead)?;
        }
        Ok(())
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: the addresses are this mapping's own, and nothing borrows
        // from them.
        let _ = unsafe { rustix::mm::munmap(self.reserved.as_ptr(), self.reserved_len) };
    }
}

/// Makes one superpage of the pages at `start`, which keep what they hold.
///
/// # Safety
/// The addresses must be the caller's own mapping.
unsafe fn collapse_at(start: NonNull<u8>) -> Result<()> {
    // SAFETY: passed on to the caller.
    let rc = unsafe { libc::madvise(start.as_ptr().cast(), HUGE, MADV_COLLAPSE) };
    let error = std::io::Error::last_os_error();
    ensure!(rc == 0, "MADV_COLLAPSE: {error}");
    Ok(())
}

/// A statistics page of another process, mapped for reading.
#[derive(Debug)]
pub struct MappedStatPage {
    page: NonNull<StatPage>,
    _owned: PhantomData<StatPage>,
}

impl MappedStatPage {
    /// Maps the statistics page in a file.
    pub fn open(path: &Path) -> Result<MappedStatPage> {
        let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        let len = size_of::<StatPage>();
        if file.metadata()?.len() < len as u64 {
            bail!("{} is too short for a statistics page", path.display());
        }
        // SAFETY: a new shared read-only mapping at an address of the
        // kernel's choice.
        let raw = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ,
                MapFlags::SHARED,
                &file,
                0,
            )
        }?;
        let page = NonNull::new(raw.cast()).context("mmap returned address zero")?;
        Ok(MappedStatPage {
            page,
            _owned: PhantomData,
        })
    }

    /// The page.
    pub fn page(&self) -> &StatPage {
        // SAFETY: the mapping is as long as a page, aligned, alive as long as
        // `self`, and holds nothing but atomics, of which every bit pattern is
        // a value; nothing is stored through it.
        unsafe { self.page.as_ref() }
    }
}

impl Drop for MappedStatPage {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing borrows from it.
        let _ = unsafe { rustix::mm::munmap(self.page.as_ptr().cast(), size_of::<StatPage>()) };
    }
}

/// Processor time in seconds that children of this process used which have
/// ended, and the most memory in bytes that one of them had resident.
pub fn used_by_children() -> Result<(f64, u64)> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer leads to room for the result.
    let rc = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) };
    ensure!(rc == 0, "getrusage: {}", std::io::Error::last_os_error());
    // SAFETY: all zeros is a valid value, and the kernel has filled it in.
    let usage = unsafe { usage.assume_init() };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 * 1e-6;
    let peak = u64::try_from(usage.ru_maxrss).unwrap_or(0) << 10;
    Ok((seconds(usage.ru_utime) + seconds(usage.ru_stime), peak))
}

/// A copy of the descriptor of a number, which this process was started with.
pub fn inherited(number: &str) -> Result<File> {
    let number: RawFd = number.parse().context("it is no number")?;
    // SAFETY: the call touches no memory.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    ensure!(copy >= 0, "there is no such descriptor");
    // SAFETY: the copy is open, and nobody else knows of it.
    Ok(unsafe { File::from_raw_fd(copy) })
}

/// A file mapped for reading, privately, by the C library's `mmap`.
#[derive(Debug)]
pub struct FileMap<'a> {
    start: NonNull<u8>,
    len: usize,
    file: PhantomData<&'a File>,
}

impl FileMap<'_> {
    /// Maps `len` bytes of `file`, a whole number of pages. The kernel is told
    /// not to read ahead.
    pub fn new(file: &File, len: usize) -> Result<FileMap<'_>> {
        let size = file.metadata()?.len();
        ensure!(len > 0 && size >= len as u64, "the file is too short");
        // SAFETY: a new mapping at an address of the kernel's choice touches
        // no memory that exists.
        let raw = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            )
        };
        if raw == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error()).context("mmap failed");
        }
        let start = NonNull::new(raw.cast()).context("mmap returned address zero")?;
        // SAFETY: the range is the mapping that was just made, and the advice
        // does not change what it holds.
        let rc = unsafe { libc::madvise(raw, len, libc::MADV_RANDOM) };
        let map = FileMap {
            start,
            len,
            file: PhantomData,
        };
        ensure!(rc == 0, "madvise: {}", std::io::Error::last_os_error());
        Ok(map)
    }

    /// Reads a byte in every `stride` bytes; returns how many that were.
    pub fn read(&self, stride: usize) -> usize {
        let offsets = (0..self.len).step_by(stride);
        offsets.clone().for_each(|offset| {
            // SAFETY: the offset lies in the mapping, which is readable; the
            // file, which nobody shortens, backs all of it.
            unsafe { self.start.as_ptr().add(offset).read_volatile() };
        });
        offsets.count()
    }
}

impl Drop for FileMap<'_> {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing borrows from it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Forks and waits until the child, which does nothing, has ended.
pub fn fork_and_exit() -> Result<()> {
    // SAFETY: the child only calls `_exit`, which is safe after a fork.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(0) };
    }
    wait_for(pid)
}

/// Forks, executes `program` without arguments and waits until it has ended.
pub fn fork_and_exec(program: &CStr) -> Result<()> {
    let args = [program.as_ptr(), std::ptr::null()];
    // SAFETY: the child only calls `execv` and `_exit`, which are safe after
    // a fork.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: the path and the arguments are terminated, and the argument
        // list ends with a null pointer.
        unsafe {
            libc::execv(program.as_ptr(), args.as_ptr());
            libc::_exit(127)
        }
    }
    wait_for(pid)
}

/// Forks a child that does `work` and ends well if that says true; waits for
/// its end. Returns how long the fork took the parent. Where the parent has
/// other threads, `work` must not wait for anything that they hold.
pub fn fork_and_do(work: impl FnOnce() -> bool) -> Result<Duration> {
    let start = Instant::now();
    // SAFETY: the C library keeps its own locks usable in the child, which
    // does only `work` and ends by `_exit`, which runs nothing of the
    // parent's.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = if work() { 0 } else { 1 };
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(code) };
    }
    let took = start.elapsed();
    wait_for(pid)?;
    Ok(took)
}

fn wait_for(pid: libc::pid_t) -> Result<()> {
    let Some(pid) = Pid::from_raw(pid).filter(|_| pid > 0) else {
        bail!("fork: {}", std::io::Error::last_os_error());
    };
    let status = waitpid(Some(pid), WaitOptions::empty())?.map(|(_, status)| status);
    let code = status.and_then(|s| s.exit_status());
    ensure!(code == Some(0), "the child ended with {code:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_hold_what_is_written() {
        let mut block = Block::malloc(3 * PAGE).unwrap();
        assert!(block.address().is_multiple_of(PAGE));
        block.words()[3 * PAGE / 8 - 1] = 7;
        assert_eq!(block.words().iter().sum::<u64>(), 7);
        let mut times = Vec::new();
        block.touch_timed(&mut times);
        assert_eq!((times.len(), block.words()[0]), (3, 1));
        assert!(Block::map(5).is_err());
    }

    #[test]
    fn every_second_page_is_given_back() {
        let mut block = Block::map(8 * PAGE).unwrap();
        block.touch(PAGE);
        block.release_every_second_page().unwrap();
        let kept: Vec<u64> = block.words().iter().step_by(PAGE / 8).copied().collect();
        assert_eq!(kept, [0, 1, 0, 1, 0, 1, 0, 1]);
        assert!(
            Block::malloc(PAGE)
                .unwrap()
                .release_every_second_page()
                .is_err()
        );
    }

    #[test]
    fn a_mapped_file_is_read() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 * PAGE as u64).unwrap();
        assert_eq!(FileMap::new(&file, 3 * PAGE).unwrap().read(PAGE), 3);
        assert!(FileMap::new(&file, 4 * PAGE).is_err());
    }

    #[test]
    fn children_end() {
        fork_and_exit().unwrap();
        fork_and_exec(c"/bin/true").unwrap();
        assert!(fork_and_exec(c"/bin/false").is_err());
        assert!(fork_and_do(|| true).is_ok());
        assert!(fork_and_do(|| false).is_err());
    }
}
