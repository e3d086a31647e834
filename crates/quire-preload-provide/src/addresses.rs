//! Calls that take addresses and are made by few programs: those that the kernel would answer
//! otherwise on managed memory than on the private memory that the program sees there. Each
//! either gets what the kernel gives for private memory, or makes the range plain first
//! (`quire_vm`'s `plain`). All of them come by `syscall`, too (`syscalls`).

use std::ffi::{c_int, c_uint, c_ulong, c_void};

use quire_core::units::VirtAddr;
use quire_linux::memory;
use quire_linux::raw::Result;
use quire_vm::Errno;

use crate::mappings::{self, pages, raw, status};
use crate::{MANAGER, set_errno};

/// The most ranges that `process_madvise` takes (`UIO_MAXIOV`).
const MOST_RANGES: usize = 1024;
/// `PIDFD_SELF_THREAD` and `PIDFD_SELF_THREAD_GROUP` (Linux 6.14).
const SELF: [c_int; 2] = [-10_000, -10_001];

/// As a system call answers through the C library.
fn number(result: Result<usize>) -> i64 {
    match result {
        Ok(value) => value as i64,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mseal(at: *mut c_void, len: usize, flags: c_ulong) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { seal(at, len, flags as usize) }
}

pub unsafe fn seal(at: *mut c_void, len: usize, flags: usize) -> c_int {
    let target = pages(at, len);
    // SAFETY: passed on as it came.
    let seal = || unsafe { raw(libc::SYS_mseal, [at as usize, len, flags, 0, 0, 0]) }.map(drop);
    let concerns = flags == 0 && target.start.is_page_aligned() && MANAGER.manages(target);
    status(match concerns && memory::is_mapped(target) {
        true => MANAGER.seal_by(target, seal),
        // It is refused, or is none of our business.
        false => seal(),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn remap_file_pages(
    at: *mut c_void,
    len: usize,
    prot: c_int,
    page: usize,
    flags: c_int,
) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { remap_pages([at as usize, len, prot as usize, page, flags as usize, 0]) }
}

/// For private memory there is no other answer.
pub unsafe fn remap_pages(args: [usize; 6]) -> c_int {
    if MANAGER.manages(pages(args[0] as *mut c_void, args[1])) {
        return status(Err(Errno(libc::EINVAL)));
    }
    // SAFETY: passed on as it came.
    status(unsafe { raw(libc::SYS_remap_file_pages, args) }.map(drop))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mincore(at: *mut c_void, len: usize, into: *mut u8) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { residency(at, len, into) }
}

/// The kernel tells of memory of the object what the page cache has, and of private memory what
/// is mapped.
pub unsafe fn residency(at: *mut c_void, len: usize, into: *mut u8) -> c_int {
    // SAFETY: passed on as it came.
    let told = unsafe {
        raw(
            libc::SYS_mincore,
            [at as usize, len, into as usize, 0, 0, 0],
        )
    };
    if told.is_ok() {
        for (first, resident) in MANAGER.resident_pages(pages(at, len)) {
            for (index, is_resident) in resident.into_iter().enumerate() {
                // SAFETY: the kernel has just written there, one byte for each page.
                unsafe { into.add(first + index).write(u8::from(is_resident)) };
            }
        }
    }
    status(told.map(drop))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn process_madvise(
    process: c_int,
    ranges: *const libc::iovec,
    count: usize,
    advice: c_int,
    flags: c_uint,
) -> isize {
    let args = [
        process as usize,
        ranges as usize,
        count,
        advice as usize,
        flags as usize,
        0,
    ];
    // SAFETY: passed on as it came.
    unsafe { advise_process(args) as isize }
}

/// `process_madvise`, which a process may use for itself: then it is `madvise` of each range.
pub unsafe fn advise_process(args: [usize; 6]) -> i64 {
    // SAFETY: passed on as it came.
    let by_kernel = || number(unsafe { raw(libc::SYS_process_madvise, args) });
    let [process, ranges, count, advice, flags, _] = args;
    if flags != 0 || count > MOST_RANGES || MANAGER.manages_nothing() {
        return by_kernel();
    }
    let Some(ranges) = read_ranges(ranges, count) else {
        return by_kernel();
    };
    let concerns = |(at, len): &(usize, usize)| MANAGER.manages(pages(*at as *mut c_void, *len));
    if !ranges.iter().any(concerns) || !is_own(process as c_int) {
        return by_kernel();
    }
    // Whether the kernel knows the descriptor and takes this advice from it.
    // SAFETY: no range is advised.
    if let Err(errno) = unsafe {
        raw(
            libc::SYS_process_madvise,
            [process, args[1], 0, advice, 0, 0],
        )
    } {
        return number(Err(errno));
    }
    let mut done = 0;
    for (at, len) in ranges {
        // SAFETY: passed on as it came.
        if unsafe { mappings::advise(at as *mut c_void, len, advice as c_int) } != 0 {
            return if done > 0 { done } else { -1 };
        }
        done += len as i64;
    }
    done
}

fn read_ranges(at: usize, count: usize) -> Option<Vec<(usize, usize)>> {
    let mut bytes = vec![0; count * size_of::<libc::iovec>()];
    memory::read_checked(VirtAddr(at as u64), &mut bytes).ok()?;
    let word = |bytes: &[u8]| bytes.try_into().map(usize::from_ne_bytes).ok();
    let pairs = bytes.chunks_exact(size_of::<libc::iovec>());
    pairs
        .map(|pair| Some((word(&pair[..8])?, word(&pair[8..])?)))
        .collect()
}

/// Whether a descriptor stands for this process.
fn is_own(process: c_int) -> bool {
    if SELF.contains(&process) {
        return true;
    }
    let told = std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{process}"));
    let own = quire_linux::thread::process_id();
    told.is_ok_and(|told| {
        let pid = told.lines().find_map(|line| line.strip_prefix("Pid:"));
        pid.and_then(|pid| pid.trim().parse().ok()) == Some(own)
    })
}
