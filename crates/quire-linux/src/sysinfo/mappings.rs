//! The mappings of another process, and what may become superpages of them.
//!
//! `/proc/PID/maps` is read for that: making it takes the kernel no walk of the
//! page table. `/proc/PID/smaps`, which says more, does walk it, and holds the
//! lock of the process's address space meanwhile.

use std::{fs, io};

use quire_core::units::{AddrRange, Bytes, VirtAddr};

/// What a mapping is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Private memory of the program: anonymous mappings, heap and stacks.
    Anonymous,
    /// Shared memory without a file: `memfd`, System V, POSIX, shared anonymous
    /// mappings.
    Shared,
    /// Files, devices, hugetlb pages, and what the kernel provides.
    Other,
}

/// A mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its addresses.
    pub range: AddrRange,
    /// What it is.
    pub kind: Kind,
}

/// The mappings of process `pid`, in order of address.
///
/// # Errors
/// As `open` and `read`: `EACCES` without the right to inspect the process.
pub fn mappings(pid: u32) -> io::Result<Vec<Mapping>> {
    let text = fs::read(format!("/proc/{pid}/maps"))?;
    let text = String::from_utf8_lossy(&text);
    Ok(text.lines().filter_map(parse_mapping).collect())
}

/// A mapping and how much of it was accessed since [`clear_referenced`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Referenced {
    /// Its addresses.
    pub range: AddrRange,
    /// What is mapped.
    pub resident: Bytes,
    /// What was accessed, of that.
    pub referenced: Bytes,
}

/// Clears the accessed marks of all pages of process `pid`. The kernel uses
/// them, too: it takes the pages for idle until they are accessed again.
///
/// # Errors
/// As `open` and `write`.
pub fn clear_referenced(pid: u32) -> io::Result<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), "1")
}

/// How much of each mapping of process `pid` was accessed. The kernel walks
/// the page table of the process for that, under its lock.
///
/// # Errors
/// As `open` and `read`.
pub fn referenced(pid: u32) -> io::Result<Vec<Referenced>> {
    let text = fs::read(format!("/proc/{pid}/smaps"))?;
    Ok(parse_referenced(&String::from_utf8_lossy(&text)))
}

/// One line: `START-END PERMISSIONS OFFSET DEVICE INODE NAME`.
fn parse_mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let range = parse_range(fields.next()?)?;
    let permissions = fields.next()?;
    let name = fields.nth(3).unwrap_or_default().trim_start();
    Some(Mapping {
        range,
        kind: kind_of(permissions.ends_with('s'), name),
    })
}

fn parse_range(text: &str) -> Option<AddrRange> {
    let (start, end) = text.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok().map(VirtAddr);
    Some(AddrRange {
        start: address(start)?,
        end: address(end)?,
    })
}

fn kind_of(shared: bool, name: &str) -> Kind {
    const SHARED: [&str; 5] = [
        "/memfd:",
        "/dev/zero (deleted)",
        "/SYSV",
        "/dev/shm/",
        "[anon_shmem:",
    ];
    let named = |prefixes: &[&str]| prefixes.iter().any(|p| name.starts_with(p));
    match shared {
        false if name.is_empty() || named(&["[heap]", "[stack", "[anon:"]) => Kind::Anonymous,
        true if named(&SHARED) => Kind::Shared,
        _ => Kind::Other,
    }
}

fn parse_referenced(text: &str) -> Vec<Referenced> {
    let mut all: Vec<Referenced> = Vec::new();
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        let kib = || value.trim().strip_suffix(" kB")?.parse().ok();
        let size = || kib().map(|kib: u64| Bytes(kib << 10));
        match (key, all.last_mut()) {
            ("Rss", Some(last)) => last.resident = size().unwrap_or_default(),
            ("Referenced", Some(last)) => last.referenced = size().unwrap_or_default(),
            _ => all.extend(header(line)),
        }
    }
    all
}

/// The line that begins a mapping in `smaps`.
fn header(line: &str) -> Option<Referenced> {
    let range = parse_range(line.split(' ').next()?)?;
    Some(Referenced {
        range,
        resident: Bytes::ZERO,
        referenced: Bytes::ZERO,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_told_apart() {
        let kind = |line| parse_mapping(line).map(|m| m.kind);
        let anonymous = [
            "7f00-8000 rw-p 00000000 00:00 0 ",
            "7f00-8000 rw-p 00000000 00:00 0",
            "7f00-8000 rw-p 00000000 00:00 0                          [heap]",
            "7f00-8000 rw-p 00000000 00:00 0                          [stack]",
            "7f00-8000 rw-p 00000000 00:00 0          [anon:Go: heap]",
        ];
        for line in anonymous {
            assert_eq!(kind(line), Some(Kind::Anonymous), "{line}");
        }
        let shared = [
            "7f00-8000 rw-s 00000000 00:01 1026   /memfd:x (deleted)",
            "7f00-8000 rw-s 00000000 00:01 4  /dev/zero (deleted)",
            "7f00-8000 rw-s 00000000 00:01 5 /SYSV00000000 (deleted)",
        ];
        for line in shared {
            assert_eq!(kind(line), Some(Kind::Shared), "{line}");
        }
        let other = [
            "7f00-8000 rw-p 00000000 fe:00 77   /usr/bin/x y",
            "7f00-8000 rw-s 00000000 00:0f 5 /anon_hugepage (deleted)",
            "7f00-8000 rw-p 00000000 00:0f 5 /anon_hugepage (deleted)",
            "7f00-8000 rw-s 00000000 00:05 99 /dev/nvidia0",
            "7f00-8000 rw-p 00000000 00:01 9 /memfd:private (deleted)",
            "7f00-8000 r--p 00000000 00:00 0 [vvar]",
            "7f00-8000 r-xp 00000000 00:00 0 [vdso]",
        ];
        for line in other {
            assert_eq!(kind(line), Some(Kind::Other), "{line}");
        }
        assert_eq!(kind("nonsense"), None);
    }

    #[test]
    fn accesses_are_read_by_mapping() {
        let text = "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nRss:   8 kB\n\
                    Referenced:  4 kB\nVmFlags: rd wr\n\
                    5000-6000 r-xp 00000000 fe:00 7 /usr/lib/odd:name\nRss: 0 kB\nReferenced: 0 kB\n";
        let all = parse_referenced(text);
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].range.start, VirtAddr(0x1000));
        let sizes = (all[0].resident, all[0].referenced);
        assert_eq!(sizes, (Bytes(8 << 10), Bytes(4 << 10)));
        assert_eq!(all[1].range.end, VirtAddr(0x6000));
    }

    #[test]
    fn this_process_has_a_stack() {
        let here = 0u8;
        let at = VirtAddr((&raw const here) as u64);
        let holds = |range: AddrRange| range.start <= at && at < range.end;
        let all = mappings(std::process::id()).unwrap();
        let own = all.iter().find(|m| holds(m.range)).unwrap();
        assert_eq!(own.kind, Kind::Anonymous);
        let all = referenced(std::process::id()).unwrap();
        assert!(all.iter().any(|r| holds(r.range) && r.referenced.0 > 0));
    }
}
