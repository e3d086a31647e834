//! How much of its mappings another process accesses: the kernel's accessed marks,
//! summed by mapping in `/proc/PID/smaps`.

use std::{fs, io};

use quire_core::units::{AddrRange, Bytes};

use super::maps::parse_range;

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
    use quire_core::units::VirtAddr;

    use super::*;

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
    fn the_own_stack_is_accessed() {
        let here = 0u8;
        let at = VirtAddr((&raw const here) as u64);
        let holds = |range: AddrRange| range.start <= at && at < range.end;
        let all = referenced(std::process::id()).unwrap();
        assert!(all.iter().any(|r| holds(r.range) && r.referenced.0 > 0));
    }
}
