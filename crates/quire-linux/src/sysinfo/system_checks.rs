//! Checks of the machine at large: kernel, pressure, limits and counters.

use std::fs::{self, File};
use std::io::Write;

use quire_core::config::{LEAST_DESCRIPTORS, Policy};
use quire_core::units::{Bytes, SUPERPAGE};

use super::{Check, MemoryGroup, meminfo, psi_memory, read_number};

/// The first kernel on which all that `reserve` needs works: it has `PAGEMAP_SCAN`. Memory that is advised needs
/// `MADV_COLLAPSE`, which has a check of its own.
const OLDEST_KERNEL: (u32, u32) = (6, 7);

/// All checks of this module but the kernel's version.
#[must_use]
pub fn all() -> Vec<Check> {
    vec![
        memory_pressure(),
        overcommit(),
        mapping_count(),
        data_limit(),
        descriptor_limit(),
        file_size_limit(),
        control_group(),
        hardware_counters(),
    ]
}

/// Whether the kernel is new enough.
#[must_use]
pub fn kernel_version() -> Check {
    const NAME: &str = "kernel";
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let found = format!("Linux {release}");
    let check = match parse_version(&release) {
        Some(version) if version >= OLDEST_KERNEL => Check::ok(NAME, found),
        _ => Check::limited(
            NAME,
            found,
            "PAGEMAP_SCAN came with Linux 6.7; without it, memory stays on the kernel's own pages under `reserve`",
            "install Linux 6.7 or newer",
        ),
    };
    check.needed_by(&[Policy::Reserve])
}

/// The version of the kernel that runs, if it can be told.
#[must_use]
pub fn running_kernel() -> Option<(u32, u32)> {
    let uname = rustix::system::uname();
    parse_version(&uname.release().to_string_lossy())
}

fn parse_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next()?.parse().ok();
    Some((next()?, next()?))
}

/// Whether the kernel tells memory pressure, and wakes who waits for it.
#[must_use]
pub fn memory_pressure() -> Check {
    const NAME: &str = "memory pressure (PSI)";
    let psi = match psi_memory() {
        Ok(psi) => psi,
        Err(error) => {
            return Check::limited(
                NAME,
                format!("/proc/pressure/memory: {error}"),
                "reservations are given back by the amount of free memory alone, which is later",
                "boot with psi=1 (a kernel with CONFIG_PSI=y)",
            );
        }
    };
    let now = format!("some {:.2} %, full {:.2} %", psi.some.avg10, psi.full.avg10);
    match set_trigger() {
        Ok(()) => Check::ok(NAME, format!("{now}; triggers work")),
        Err(error) => Check::limited(
            NAME,
            format!("{now}; no trigger: {error}"),
            "pressure is looked up from time to time instead of waking Quire at once",
            "run as root, or use Linux 6.6 or newer, which lets every user set a trigger",
        ),
    }
}

/// Sets a trigger that lasts as long as the file is open, with a window that
/// is allowed to everyone.
fn set_trigger() -> std::io::Result<()> {
    let mut file = File::options()
        .read(true)
        .write(true)
        .open("/proc/pressure/memory")?;
    file.write_all(b"some 200000 2000000\0")
}

/// Whether the kernel lets address space be reserved freely.
#[must_use]
pub fn overcommit() -> Check {
    const NAME: &str = "vm.overcommit_memory";
    let check = match read_number::<u32>("/proc/sys/vm/overcommit_memory") {
        Some(2) => Check::limited(
            NAME,
            "2 (strict)",
            "the kernel must account for every mapping, so memory stays on its own pages under `reserve`",
            "sudo sysctl vm.overcommit_memory=0",
        ),
        Some(mode) => Check::ok(NAME, mode.to_string()),
        None => Check::ok(NAME, "unknown"),
    };
    check.needed_by(&[Policy::Reserve])
}

/// Whether a process may have enough mappings: half of them are left to the
/// program, and each superpage among base pages is one.
#[must_use]
pub fn mapping_count() -> Check {
    const NAME: &str = "vm.max_map_count";
    let memory = meminfo().unwrap_or_default().total;
    let wanted = 2 * memory.0 / SUPERPAGE;
    let check = match read_number::<u64>("/proc/sys/vm/max_map_count") {
        Some(count) if count < wanted => Check::limited(
            NAME,
            count.to_string(),
            "under `reserve`, a program gets at most half as many superpages that lie scattered among base pages",
            format!("sudo sysctl vm.max_map_count={wanted}"),
        ),
        Some(count) => Check::ok(NAME, count.to_string()),
        None => Check::ok(NAME, "unknown"),
    };
    check.needed_by(&[Policy::Reserve])
}

/// Whether `RLIMIT_DATA` binds programs started from here.
#[must_use]
pub fn data_limit() -> Check {
    const NAME: &str = "RLIMIT_DATA";
    let limit = rustix::process::getrlimit(rustix::process::Resource::Data).current;
    let check = match limit {
        None => Check::ok(NAME, "unlimited"),
        Some(bytes) => Check::limited(
            NAME,
            Bytes(bytes).to_string(),
            "under `reserve`, the kernel keeps the mappings that count against it, so they stay on its own pages",
            "ulimit -d unlimited",
        ),
    };
    check.needed_by(&[Policy::Reserve])
}

/// Whether programs started from here may have as many descriptors as Quire needs.
#[must_use]
pub fn descriptor_limit() -> Check {
    const NAME: &str = "RLIMIT_NOFILE";
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let check = match limit {
        Some(few) if few < LEAST_DESCRIPTORS => Check::limited(
            NAME,
            few.to_string(),
            "too few descriptors: under `reserve`, memory stays on the kernel's own pages",
            format!("ulimit -n {LEAST_DESCRIPTORS}"),
        ),
        Some(enough) => Check::ok(NAME, enough.to_string()),
        None => Check::ok(NAME, "unlimited"),
    };
    check.needed_by(&[Policy::Reserve])
}

/// Whether programs started from here may make files as large as Quire's.
#[must_use]
pub fn file_size_limit() -> Check {
    const NAME: &str = "RLIMIT_FSIZE";
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    let check = match limit {
        None => Check::ok(NAME, "unlimited"),
        Some(bytes) => Check::limited(
            NAME,
            Bytes(bytes).to_string(),
            "memory that Quire provides is a file: under `reserve`, memory stays on the kernel's own pages",
            "ulimit -f unlimited",
        ),
    };
    check.needed_by(&[Policy::Reserve])
}

/// How much memory the control groups leave.
#[must_use]
pub fn control_group() -> Check {
    const NAME: &str = "control group memory limit";
    const LITTLE: Bytes = Bytes::mib(64);
    let group = MemoryGroup::of_self();
    let Some((limit, dir)) = group.as_ref().and_then(MemoryGroup::limit) else {
        let machine = meminfo().map(|m| format!("; the machine has {}", m.total));
        return Check::ok(NAME, format!("none{}", machine.unwrap_or_default()));
    };
    let room = group.as_ref().and_then(MemoryGroup::room);
    let headroom = room.map_or(Bytes::ZERO, |r| r.headroom);
    let found = format!("{limit}, {headroom} left ({})", dir.display());
    if headroom < LITTLE {
        let remedy = "raise the limit of the control group (memory.max, memory.limit_in_bytes)";
        Check::limited(NAME, found, "little can be reserved", remedy)
    } else {
        Check::ok(NAME, found)
    }
}

/// Whether TLB misses can be counted.
#[must_use]
pub fn hardware_counters() -> Check {
    const NAME: &str = "hardware counters (PMU)";
    const COST: &str = "TLB misses cannot be counted; programs run the same";
    let devices = "/sys/bus/event_source/devices";
    let device = ["cpu", "cpu_core", "cpu_atom"]
        .into_iter()
        .find(|name| fs::exists(format!("{devices}/{name}")).unwrap_or(false));
    let paranoid: i32 = read_number("/proc/sys/kernel/perf_event_paranoid").unwrap_or(2);
    let root = rustix::process::geteuid().is_root();
    match device {
        None => Check::missing(
            NAME,
            "the machine shows none",
            COST,
            "run on the machine itself, or let the hypervisor pass the PMU (qemu: -cpu host,pmu=on)",
        ),
        Some(device) if paranoid > 2 && !root => Check::limited(
            NAME,
            format!("{device}, but perf_event_paranoid is {paranoid}"),
            COST,
            "sudo sysctl kernel.perf_event_paranoid=2",
        ),
        Some(device) => Check::ok(NAME, format!("{device}, perf_event_paranoid {paranoid}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(parse_version("6.18.44-fc"), Some((6, 18)));
        assert!(parse_version("6.18.44") >= Some(OLDEST_KERNEL));
        assert!(parse_version("6.2.0-39-generic") < Some(OLDEST_KERNEL));
        assert_eq!(parse_version("weird"), None);
    }
}
