//! The machine's memory: `/proc/meminfo`, the free blocks of `/proc/buddyinfo`
//! and the pressure of `/proc/pressure/memory`.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::{fs, io};

use quire_core::pool::PoolPage;
use quire_core::units::Bytes;
use serde::{Deserialize, Serialize};

use super::blocks::usable;

/// Where the kernel speaks of its pool of pages of a size.
pub(super) const fn pool_directory(page: PoolPage) -> &'static str {
    match page {
        PoolPage::Superpage => "/sys/kernel/mm/hugepages/hugepages-2048kB",
        PoolPage::Gigapage => "/sys/kernel/mm/hugepages/hugepages-1048576kB",
    }
}

/// The figures of `/proc/meminfo` that decisions are made by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemInfo {
    /// Memory that the kernel manages.
    pub total: Bytes,
    /// Memory that can be had without swapping.
    pub available: Bytes,
    /// Memory that nothing uses.
    pub free: Bytes,
}

/// Whether the machine has swap.
#[must_use]
pub fn has_swap() -> bool {
    rustix::system::sysinfo().totalswap > 0
}

/// Memory pressure: the share of time in which tasks waited for memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Psi {
    /// At least one task waited.
    pub some: PsiLine,
    /// Every task waited.
    pub full: PsiLine,
}

/// One line of a pressure file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PsiLine {
    /// Percentage over the last 10 seconds.
    pub avg10: f64,
    /// Percentage over the last 60 seconds.
    pub avg60: f64,
    /// Percentage over the last 300 seconds.
    pub avg300: f64,
    /// Time waited since boot, microseconds.
    pub total_us: u64,
}

/// Reads `/proc/meminfo`.
///
/// # Errors
/// When the file cannot be read or lacks one of the figures.
pub fn meminfo() -> io::Result<MemInfo> {
    parse_meminfo(&super::read_small("/proc/meminfo")?)
        .ok_or_else(|| malformed("/proc/meminfo lacks MemTotal, MemFree or MemAvailable"))
}

/// Pages of a hugetlb pool that are neither in use nor promised.
#[must_use]
pub fn free_pool_pages(page: PoolPage) -> u64 {
    let pool = pool_directory(page);
    let read = |file| super::read_number::<u64>(format!("{pool}/{file}")).unwrap_or(0);
    read("free_hugepages").saturating_sub(read("resv_hugepages"))
}

/// Free blocks of the whole machine by order, summed over the zones of
/// `/proc/buddyinfo`: entry `n` counts blocks of 2ⁿ base pages.
///
/// # Errors
/// When the file cannot be read.
pub fn buddyinfo() -> io::Result<Vec<u64>> {
    Ok(usable(&super::read_small("/proc/buddyinfo")?, &[]))
}

/// Reads `/proc/pressure/memory`.
///
/// # Errors
/// When the kernel does not keep pressure, or the file says nothing.
pub fn psi_memory() -> io::Result<Psi> {
    parse_psi(&super::read_small("/proc/pressure/memory")?)
        .ok_or_else(|| malformed("/proc/pressure/memory has no `some` line"))
}

/// Whether every private mapping must be backed in advance
/// (`vm.overcommit_memory=2`).
#[must_use]
pub fn strict_overcommit() -> bool {
    super::read_number::<u32>("/proc/sys/vm/overcommit_memory") == Some(2)
}

/// How many mappings a process may have (`vm.max_map_count`).
#[must_use]
pub fn max_map_count() -> u64 {
    /// What the kernel is built with.
    const DEFAULT: u64 = 65_530;
    super::read_number("/proc/sys/vm/max_map_count").unwrap_or(DEFAULT)
}

/// A descriptor that becomes readable by `POLLPRI` when tasks of this machine
/// have waited for memory for 50 ms within one second.
///
/// # Errors
/// When the kernel keeps no pressure or does not let this user set a trigger.
pub fn stall_trigger() -> io::Result<OwnedFd> {
    let mut file = fs::File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/proc/pressure/memory")?;
    file.write_all(b"some 50000 1000000\0")?;
    Ok(file.into())
}

fn malformed(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn parse_meminfo(text: &str) -> Option<MemInfo> {
    let field = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name))?;
        let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(Bytes(kib << 10))
    };
    Some(MemInfo {
        total: field("MemTotal:")?,
        available: field("MemAvailable:")?,
        free: field("MemFree:")?,
    })
}

fn parse_psi(text: &str) -> Option<Psi> {
    let line = |kind: &str| -> Option<PsiLine> {
        let rest = text.lines().find_map(|l| l.strip_prefix(kind))?;
        let field = |name: &str| {
            rest.split_whitespace()
                .filter_map(|f| f.split_once('='))
                .find_map(|(key, value)| (key == name).then_some(value))
        };
        Some(PsiLine {
            avg10: field("avg10")?.parse().ok()?,
            avg60: field("avg60")?.parse().ok()?,
            avg300: field("avg300")?.parse().ok()?,
            total_us: field("total")?.parse().ok()?,
        })
    };
    Some(Psi {
        some: line("some")?,
        full: line("full").unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_summed() {
        let text = "Node 0, zone      DMA      0      1      3 \n\
                    Node 0, zone   Normal    185     47     39      7\n";
        assert_eq!(usable(text, &[]), [185, 48, 42, 7]);
    }

    #[test]
    fn pressure_is_read() {
        let text = "some avg10=1.50 avg60=0.25 avg300=0.00 total=123\n\
                    full avg10=0.10 avg60=0.00 avg300=0.00 total=7\n";
        let psi = parse_psi(text).unwrap();
        assert_eq!((psi.some.avg10, psi.some.total_us), (1.5, 123));
        assert_eq!((psi.full.avg10, psi.full.total_us), (0.1, 7));
        assert_eq!(parse_psi("nonsense"), None);
    }

    #[test]
    fn this_machine_is_read() {
        let info = meminfo().unwrap();
        assert!(info.total >= info.available && info.total >= info.free);
        assert!(info.total > Bytes::ZERO);
    }

    #[test]
    fn a_short_meminfo_is_refused() {
        assert_eq!(parse_meminfo("MemTotal:  10 kB\n"), None);
    }
}
