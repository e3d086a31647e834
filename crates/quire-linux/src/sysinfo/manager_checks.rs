//! Checks of what making superpages stands on: the page table and `MADV_COLLAPSE` for
//! memory that is advised, `userfaultfd`, `PAGEMAP_SCAN` and files of huge folios for memory
//! that Quire provides. Each tries the very call that Quire makes, so that a kernel, a container or a security module that
//! refuses it is found out whatever the settings say.

use std::fs::{self, File};
use std::hint::black_box;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;

use quire_core::config::Policy;
use quire_core::units::{AddrRange, BASE_PAGE, Bytes, ObjectOffset, SUPERPAGE, VirtAddr};

use super::{Check, bracketed, read_number, read_trimmed};
use crate::huge_file::Effort;
use crate::memory::{self, Advice};
use crate::raw::{Errno, Result, syscall};
use crate::uffd::Scope;
use crate::{huge_file, pagemap, uffd};

const UFFD_FEATURES: [(u64, &str); 3] = [
    (1 << 0, "PAGEFAULT_FLAG_WP"),
    (1 << 12, "WP_HUGETLBFS_SHMEM"),
    (1 << 13, "WP_UNPOPULATED"),
];

/// The bit of an entry of the page table that says that the page is populated.
const ENTRY_PRESENT: u64 = 1 << 63;

/// What it costs when nothing can be held back or reported.
const WITHOUT_UFFD: &str = "under `reserve`, memory stays on the kernel's own pages";

/// All checks of this module.
#[must_use]
pub fn all() -> Vec<Check> {
    vec![
        page_table(),
        pagemap_scan(),
        collapse(),
        userfaultfd(),
        userfaultfd_features(),
        huge_tmpfs(),
    ]
}

/// Whether faults can be handled, and from which mode.
#[must_use]
pub fn userfaultfd() -> Check {
    const NAME: &str = "userfaultfd";
    const REMEDY: &str = "sudo sysctl vm.unprivileged_userfaultfd=1";
    let call = uffd::open_call(Scope::Full);
    let device = File::options()
        .read(true)
        .write(true)
        .open("/dev/userfaultfd");
    let device_text = match &device {
        Ok(_) => "/dev/userfaultfd opens".to_owned(),
        Err(error) => format!("/dev/userfaultfd: {error}"),
    };
    let check = match call {
        Ok(_) => Check::ok(NAME, format!("user and kernel mode; {device_text}")),
        Err(_) if device.is_ok() => {
            Check::ok(NAME, "user and kernel mode, through /dev/userfaultfd")
        }
        Err(_) if uffd::open_call(Scope::UserOnly).is_ok() => Check::limited(
            NAME,
            format!("user mode only; {device_text}"),
            "touched reservations cannot be preempted, and superpages do not come back after a fork",
            REMEDY,
        ),
        Err(Errno(libc::ENOSYS)) => Check::missing(
            NAME,
            "the kernel does not have it",
            WITHOUT_UFFD,
            "boot a kernel with CONFIG_USERFAULTFD=y",
        ),
        Err(errno) => Check::missing(
            NAME,
            format!("refused: {errno}; {device_text}"),
            WITHOUT_UFFD,
            format!(
                "{REMEDY}; in a container, allow the userfaultfd system call (docker run --security-opt seccomp=unconfined)"
            ),
        ),
    };
    check.needed_by(&[Policy::Reserve])
}

/// Whether shared memory can be protected against writes.
#[must_use]
pub fn userfaultfd_features() -> Check {
    const NAME: &str = "userfaultfd write protection";
    let check = match offered_features() {
        Err(errno) => Check::missing(
            NAME,
            format!("cannot be asked: {errno}"),
            WITHOUT_UFFD,
            "see userfaultfd above",
        ),
        Ok(offered) => {
            let absent: Vec<&str> = UFFD_FEATURES
                .iter()
                .filter(|(bit, _)| offered & bit == 0)
                .map(|(_, name)| *name)
                .collect();
            if absent.is_empty() {
                Check::ok(NAME, UFFD_FEATURES.map(|(_, name)| name).join(", "))
            } else {
                let found = format!("the kernel lacks {}", absent.join(", "));
                Check::missing(
                    NAME,
                    found,
                    WITHOUT_UFFD,
                    "boot Linux 6.4 or newer with CONFIG_PTE_MARKER_UFFD_WP=y",
                )
            }
        }
    };
    check.needed_by(&[Policy::Reserve])
}

/// Whether the page table can be scanned.
#[must_use]
pub fn pagemap_scan() -> Check {
    const NAME: &str = "PAGEMAP_SCAN";
    let check = match scan_own_page() {
        Ok(()) => Check::ok(NAME, "works on /proc/self/pagemap"),
        Err(errno) => Check::missing(
            NAME,
            format!("refused: {errno}"),
            "under `reserve`, memory stays on the kernel's own pages; `adaptive` reads the entries of /proc/PID/pagemap instead, which takes longer",
            "boot Linux 6.7 or newer with CONFIG_PROC_PAGE_MONITOR=y",
        ),
    };
    check.needed_by(&[Policy::Reserve])
}

/// Whether a process may see which of its pages are populated.
#[must_use]
pub fn page_table() -> Check {
    const NAME: &str = "page table (/proc/self/pagemap)";
    const COST: &str = "`adaptive` does not know what is populated, and advises nothing";
    let word = black_box(1u64);
    let page = VirtAddr((&raw const word) as u64).page_floor();
    let check = match own_entry(page) {
        Ok(entry) if entry & ENTRY_PRESENT != 0 => Check::ok(NAME, "can be read"),
        Ok(_) => Check::missing(
            NAME,
            "does not show pages that are populated",
            COST,
            "run it on a kernel that fills /proc/PID/pagemap in (not in a sandbox such as gVisor)",
        ),
        Err(error) => Check::missing(
            NAME,
            format!("cannot be read: {error}"),
            COST,
            "mount /proc, on a kernel with CONFIG_PROC_PAGE_MONITOR=y",
        ),
    };
    check
        .needed_by(&[Policy::Adaptive])
        .used_by(&[Policy::Eager])
}

/// The entry of the page table for one page of this process.
fn own_entry(page: VirtAddr) -> io::Result<u64> {
    let mut entry = [0; size_of::<u64>()];
    let at = page.0 / BASE_PAGE * entry.len() as u64;
    File::open("/proc/self/pagemap")?.read_exact_at(&mut entry, at)?;
    Ok(u64::from_ne_bytes(entry))
}

/// Whether the kernel makes superpages on request.
#[must_use]
pub fn collapse() -> Check {
    const NAME: &str = "MADV_COLLAPSE";
    const WITHOUT: &str = "`adaptive` leaves full extents to khugepaged, which takes longer";
    let check = match try_collapse() {
        Ok(()) => Check::ok(NAME, "a superpage was made"),
        Err(Errno(libc::ENOMEM | libc::EAGAIN | libc::EBUSY)) => Check::limited(
            NAME,
            "no superpage was made: no block of 2 MiB is free",
            "copies fail until there is one",
            "echo 1 | sudo tee /proc/sys/vm/compact_memory",
        ),
        Err(errno) => Check::missing(
            NAME,
            format!("refused: {errno}"),
            WITHOUT,
            "boot Linux 6.1 or newer with CONFIG_TRANSPARENT_HUGEPAGE=y, and allow transparent huge pages for this process",
        ),
    };
    check
        .needed_by(&[Policy::Reserve])
        .used_by(&[Policy::Adaptive])
}

/// Makes a superpage of new memory in which one page is touched.
fn try_collapse() -> Result<()> {
    let size = Bytes(2 * SUPERPAGE);
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { memory::map_anonymous(VirtAddr(0), size, prot, libc::MAP_PRIVATE)? };
    let start = VirtAddr(at.0.next_multiple_of(SUPERPAGE));
    let extent = AddrRange::new(start, Bytes(SUPERPAGE));
    let touched = AddrRange::new(start, Bytes(BASE_PAGE));
    // SAFETY: the mapping is this function's own, is as large as two extents, so that it holds
    // a whole one, and nobody else uses it.
    unsafe {
        let made = memory::advise(touched, Advice::PopulateWrite)
            .and_then(|()| memory::advise(extent, Advice::Collapse));
        memory::unmap(AddrRange::new(at, size))?;
        made
    }
}

/// Whether a private file of huge folios can be had, and whether the kernel
/// gives it one now.
#[must_use]
pub fn huge_tmpfs() -> Check {
    const NAME: &str = "tmpfs with huge=always";
    let check = match try_huge_file() {
        Ok(true) => Check::ok(NAME, "mounted privately; a superpage was given"),
        Ok(false) => {
            let denied = read_trimmed("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
                .is_some_and(|text| bracketed(&text) == Some("deny"));
            let (found, remedy) = if denied {
                (
                    "mounted privately, but shmem_enabled is `deny`",
                    "echo never | sudo tee /sys/kernel/mm/transparent_hugepage/shmem_enabled",
                )
            } else {
                (
                    "mounted privately, but no superpage was given: no block of 2 MiB is free",
                    "echo 1 | sudo tee /proc/sys/vm/compact_memory",
                )
            };
            Check::limited(NAME, found, "superpages fail, base pages are used", remedy)
        }
        Err(errno) => Check::missing(
            NAME,
            format!("refused: {errno}"),
            "under `reserve`, memory stays on the kernel's own pages",
            namespace_remedy(),
        ),
    };
    check.needed_by(&[Policy::Reserve])
}

/// The features that the kernel offers, as bits.
fn offered_features() -> Result<u64> {
    const IOCTL_API: usize = 0xC018_AA3F;
    let fd = match uffd::open_call(Scope::Full).or_else(|_| uffd::open_call(Scope::UserOnly)) {
        Ok(fd) => fd,
        // Only the device may be allowed: then what the manager needs is
        // asked for, and granted or refused as a whole.
        Err(errno) => {
            return match uffd::open() {
                Ok(_) => Ok(u64::MAX),
                Err(_) => Err(errno),
            };
        }
    };
    let mut api = [0xAAu64, 0, 0];
    let arg = (&raw mut api) as usize;
    // SAFETY: the argument is the three words that this ioctl takes.
    unsafe {
        syscall(
            libc::SYS_ioctl,
            [fd.as_raw_fd() as usize, IOCTL_API, arg, 0, 0, 0],
        )?
    };
    Ok(api[1])
}

fn scan_own_page() -> Result<()> {
    let word = black_box(1u64);
    let start = VirtAddr((&raw const word) as u64).page_floor();
    let map = pagemap::open()?;
    let page = AddrRange::new(start, Bytes(BASE_PAGE));
    pagemap::scan(map.as_fd(), page, pagemap::Filter::PRESENT, |_| {})
}

/// Whether the kernel gives a huge folio to a file like the manager's. Where
/// the page table cannot be scanned, the file alone counts.
fn try_huge_file() -> Result<bool> {
    let file = huge_file::create()?;
    let Ok(map) = pagemap::open() else {
        return Ok(true);
    };
    if scan_own_page().is_err() {
        return Ok(true);
    }
    let mut window = huge_file::Window::new()?;
    Ok(window
        .reserve(file.as_fd(), map.as_fd(), ObjectOffset(0), Effort::Compact)
        .unwrap_or(false))
}

/// What lets an unprivileged user mount in a namespace of its own.
fn namespace_remedy() -> &'static str {
    let knob = |path| read_number::<u64>(path);
    if knob("/proc/sys/kernel/unprivileged_userns_clone") == Some(0) {
        "sudo sysctl kernel.unprivileged_userns_clone=1"
    } else if knob("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(1) {
        "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    } else if knob("/proc/sys/user/max_user_namespaces") == Some(0) {
        "sudo sysctl user.max_user_namespaces=10000"
    } else if !fs::exists("/proc/self/ns/user").unwrap_or(false) {
        "boot a kernel with CONFIG_USER_NS=y, or run as root"
    } else {
        "run as root; in a container, docker run --cap-add SYS_ADMIN --security-opt seccomp=unconfined"
    }
}
