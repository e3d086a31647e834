//! What `/proc` says about memory.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use quire_core::units::{BASE_PAGE, PAGES_PER_SUPERPAGE, SUPERPAGE};
use quire_linux::sysinfo::FreeBlocks;

/// One MiB, for figures in reports.
pub const MIB: f64 = (1 << 20) as f64;

/// The value of `key`, in bytes, in a file of lines such as `Key:  12 kB`.
fn kib_line(text: &str, key: &str) -> Option<u64> {
    let rest = text
        .lines()
        .find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
    let number = rest.trim().strip_suffix("kB")?.trim();
    Some(number.parse::<u64>().ok()? << 10)
}

/// A field of `/proc/meminfo`, in bytes.
pub fn meminfo(key: &str) -> Option<u64> {
    kib_line(&fs::read_to_string("/proc/meminfo").ok()?, key)
}

/// Free memory that the host of this virtual machine has taken back since the
/// start, in bytes, where the kernel counts it. Touching such memory again is
/// ten times as slow, which is nobody's merit.
pub fn taken_by_host() -> Option<u64> {
    let text = fs::read_to_string("/sys/module/page_reporting/parameters/reported_kib").ok()?;
    Some(text.trim().parse::<u64>().ok()? << 10)
}

/// Hugetlb pages of a process, in bytes; a memory cgroup does not count them.
pub fn hugetlb(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    kib_line(&status, "HugetlbPages").unwrap_or(0)
}

/// Resident memory of a process, hugetlb pages included, in bytes.
pub fn resident(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/statm");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let pages: u64 = text
        .split_whitespace()
        .nth(1)
        .and_then(|w| w.parse().ok())
        .with_context(|| format!("{path} is not as expected"))?;
    Ok(pages * BASE_PAGE + hugetlb(pid))
}

/// What `smaps_rollup` and `meminfo` call memory that superpages map.
const HUGE_MAPPED: [&str; 3] = ["AnonHugePages", "ShmemPmdMapped", "FilePmdMapped"];

/// Faults of the calling thread so far that needed no disk.
pub fn faults_of_this_thread() -> Result<u64> {
    Ok(minor_and_major_faults()?.0)
}

/// Faults of the calling thread so far, those included that somebody else answered: the
/// kernel counts them as if a disk had.
pub fn all_faults_of_this_thread() -> Result<u64> {
    let (minor, major) = minor_and_major_faults()?;
    Ok(minor + major)
}

fn minor_and_major_faults() -> Result<(u64, u64)> {
    let path = "/proc/thread-self/stat";
    let text = fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
    // The name, in parentheses, may hold anything.
    let rest = text.rsplit_once(')').map(|(_, rest)| rest);
    let mut fields = rest.into_iter().flat_map(str::split_whitespace);
    let mut field = |skip| fields.nth(skip)?.parse().ok();
    let (minor, major) = (field(7), field(1));
    minor
        .zip(major)
        .with_context(|| format!("{path} is not as expected"))
}

/// Memory of a process that is mapped by superpages, in bytes. The kernel walks
/// the page tables for it and keeps the process from mapping memory meanwhile.
pub fn huge_mapped(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let keys = HUGE_MAPPED
        .iter()
        .chain(&["Private_Hugetlb", "Shared_Hugetlb"]);
    Some(keys.filter_map(|k| kib_line(&text, k)).sum())
}

/// Memory of all processes that is mapped by superpages, without the hugetlb
/// pool, in bytes. Reading it disturbs nobody.
pub fn huge_mapped_by_all() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    Some(HUGE_MAPPED.iter().filter_map(|k| kib_line(&text, k)).sum())
}

/// Superpages among the free blocks that programs can have, alone or in larger
/// blocks.
pub fn free_superpages() -> Option<u64> {
    let [_, _, huge] = free_by_size()?;
    Some(huge / SUPERPAGE)
}

/// Free memory that programs can have, in blocks of one page, of 2 to 256 pages,
/// and of a superpage and more, in bytes.
pub fn free_by_size() -> Option<[u64; 3]> {
    let blocks = FreeBlocks::new().ok()?.count().ok()?;
    Some(by_size(&blocks))
}

/// The same, from the numbers of blocks of each order.
fn by_size(blocks: &[u64]) -> [u64; 3] {
    let superpage = PAGES_PER_SUPERPAGE.ilog2() as usize;
    let mut bytes = [0; 3];
    for (order, blocks) in blocks.iter().enumerate() {
        let class = usize::from(order > 0) + usize::from(order >= superpage);
        bytes[class] += blocks * (BASE_PAGE << order);
    }
    bytes
}

/// The frame numbers of `pages` pages from `address` in this process; zero for
/// a page that is not present. `None` where the kernel hides them.
pub fn frames(address: usize, pages: usize) -> Option<Vec<u64>> {
    let file = File::open("/proc/self/pagemap").ok()?;
    let mut raw = vec![0u8; pages * 8];
    let offset = address as u64 / BASE_PAGE * 8;
    file.read_exact_at(&mut raw, offset).ok()?;
    let frames: Vec<u64> = raw.chunks_exact(8).map(frame_of).collect();
    frames.iter().any(|f| *f != 0).then_some(frames)
}

fn frame_of(entry: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(entry);
    let entry = u64::from_le_bytes(word);
    let present = entry >> 63 != 0;
    if present { entry & ((1 << 55) - 1) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let text = "Rss:    12 kB\nAnonHugePages:\t 2048 kB\n";
        assert_eq!(kib_line(text, "AnonHugePages"), Some(2 << 20));
        assert_eq!(kib_line(text, "Anon"), None);
    }

    #[test]
    fn free_memory_is_sorted_by_the_size_of_its_blocks() {
        let blocks = [3, 10, 0, 0, 0, 0, 0, 0, 9, 2, 50];
        let pages = |n: u64| n * BASE_PAGE;
        let sizes = [3, 2 * 10 + 9 * 256, 2 * 512 + 50 * 1024];
        assert_eq!(by_size(&blocks), sizes.map(pages));
        assert!(free_superpages().is_some());
    }

    #[test]
    fn faults_are_counted() {
        let before = faults_of_this_thread().unwrap();
        let memory = std::hint::black_box(vec![1u8; 16 << 20]);
        assert!(faults_of_this_thread().unwrap() > before);
        drop(memory);
    }

    #[test]
    fn this_process_is_resident() {
        assert!(resident(std::process::id()).unwrap() > 1 << 18);
        assert!(meminfo("MemTotal").is_some());
    }
}
