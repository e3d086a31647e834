//! The page sizes of another process's mappings, from `/proc/PID/smaps`.
//!
//! The page table scan tells superpages from base pages, not 2 MiB from 1 GiB. Only
//! mappings of a hugetlb pool have pages of 1 GiB, and all their pages are of one size.

use std::fs;
use std::io;

use quire_core::pool::GIGAPAGE;
use quire_core::units::AddrRange;

use super::maps::parse_range;

/// The mappings of process `pid` whose pages have 1 GiB. The kernel walks the whole page
/// table of the process for that.
///
/// # Errors
/// As `open` and `read`.
pub fn gigapage_mappings(pid: u32) -> io::Result<Vec<AddrRange>> {
    let text = fs::read(format!("/proc/{pid}/smaps"))?;
    Ok(parse(&String::from_utf8_lossy(&text)))
}

fn parse(text: &str) -> Vec<AddrRange> {
    let mut found = Vec::new();
    let mut current = None;
    for line in text.lines() {
        match line.strip_prefix("KernelPageSize:") {
            Some(size) => {
                let kib = size.trim().strip_suffix(" kB");
                if kib.and_then(|kib| kib.parse().ok()) == Some(GIGAPAGE >> 10) {
                    found.extend(current);
                }
            }
            None => current = line.split(' ').next().and_then(parse_range).or(current),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use quire_core::units::VirtAddr;

    use super::*;

    #[test]
    fn pages_of_a_gib_are_found() {
        let text = "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nKernelPageSize:        4 kB\n\
                    40000000-80000000 rw-s 00000000 00:0f 5   /anon_hugepage (deleted)\n\
                    Size:            1048576 kB\nKernelPageSize:  1048576 kB\nRss: 0 kB\n\
                    c0000000-c0200000 rw-s 00000000 00:0f 6   /anon_hugepage (deleted)\n\
                    KernelPageSize:     2048 kB\n";
        let range = AddrRange {
            start: VirtAddr(GIGAPAGE),
            end: VirtAddr(2 * GIGAPAGE),
        };
        assert_eq!(parse(text), [range]);
        assert!(gigapage_mappings(std::process::id()).is_ok());
    }
}
