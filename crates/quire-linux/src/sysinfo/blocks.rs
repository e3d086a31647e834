//! Free blocks that a program can have. `/proc/buddyinfo` counts the blocks of
//! every zone; of some zones the kernel gives nothing to programs while it has
//! little left there: it keeps the lowest ones for devices that reach no other
//! memory (`vm.lowmem_reserve_ratio`), and a watermark for itself. Who counted
//! those would ask for a superpage in vain, again and again.

use std::io;
use std::os::fd::OwnedFd;

use quire_core::units::PageCount;
use rustix::fs::{Mode, OFlags};

/// A reader of the free blocks that programs can have. It keeps its file open, and
/// what it needs to read it, because it is asked often.
#[derive(Debug)]
pub struct FreeBlocks {
    file: OwnedFd,
    kept: Vec<Kept>,
    text: Vec<u8>,
}

/// What the kernel keeps of a zone, free or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// The node, as both files name it: `Node 0`.
    node: String,
    zone: String,
    pages: PageCount,
}

/// Longer than the text is on the largest machines.
const TEXT_MAX: usize = 16 << 10;
/// More than the kernel has orders.
const ORDERS_MAX: usize = 32;

impl FreeBlocks {
    /// Learns what the kernel keeps.
    ///
    /// # Errors
    /// When `/proc/buddyinfo` cannot be read.
    pub fn new() -> io::Result<FreeBlocks> {
        let zones = super::read_small("/proc/zoneinfo").unwrap_or_default();
        let how = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(FreeBlocks {
            file: rustix::fs::open(c"/proc/buddyinfo", how, Mode::empty())?,
            kept: parse_kept(&zones),
            text: vec![0; TEXT_MAX],
        })
    }

    /// How many there are now: entry `n` counts blocks of 2ⁿ base pages.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn count(&mut self) -> io::Result<Vec<u64>> {
        let len = rustix::io::pread(&self.file, &mut *self.text, 0)?;
        let text = std::str::from_utf8(&self.text[..len]).unwrap_or_default();
        Ok(usable(text, &self.kept))
    }
}

/// The node and the zone that a line speaks of, and what follows.
fn split_zone(line: &str) -> Option<(&str, &str, &str)> {
    let (node, rest) = line.split_once(", zone")?;
    let rest = rest.trim_start();
    let (zone, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    Some((node, zone, rest))
}

/// What is kept of each zone of `/proc/zoneinfo`: its low watermark, and what
/// protects it from those who could have memory of the highest zone.
fn parse_kept(text: &str) -> Vec<Kept> {
    let mut kept: Vec<Kept> = Vec::new();
    for line in text.lines() {
        if let Some((node, zone, _)) = split_zone(line) {
            kept.push(Kept {
                node: node.to_owned(),
                zone: zone.to_owned(),
                pages: PageCount(0),
            });
        }
        let Some(last) = kept.last_mut() else {
            continue;
        };
        let mut words = line.split_whitespace();
        match words.next() {
            Some("low") => last.pages.0 += words.next().and_then(|w| w.parse().ok()).unwrap_or(0),
            Some("protection:") => {
                let numbers = line.split(|c: char| !c.is_ascii_digit());
                let most = numbers.filter_map(|n| n.parse::<u64>().ok()).max();
                last.pages.0 += most.unwrap_or(0);
            }
            _ => {}
        }
    }
    kept
}

/// The blocks of `/proc/buddyinfo` that leave each zone what is kept of it; of
/// what may go, the largest first.
pub(super) fn usable(text: &str, kept: &[Kept]) -> Vec<u64> {
    let mut orders = [0; ORDERS_MAX];
    let mut length = 0;
    for (node, zone, rest) in text.lines().filter_map(split_zone) {
        let mut counts = [0u64; ORDERS_MAX];
        let numbers = rest.split_whitespace().map_while(|c| c.parse().ok());
        for (order, (count, number)) in counts.iter_mut().zip(numbers).enumerate() {
            *count = number;
            length = length.max(order + 1);
        }
        let all: u64 = counts.iter().enumerate().map(|(n, c)| c << n).sum();
        let kept = kept.iter().find(|k| k.node == node && k.zone == zone);
        let mut spare = all.saturating_sub(kept.map_or(0, |k| k.pages.0));
        for (order, count) in counts.iter().enumerate().rev() {
            let blocks = (spare >> order).min(*count);
            spare -= blocks << order;
            orders[order] += blocks;
        }
    }
    orders[..length].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZONES: &str = "Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 0
  pages free     3840
        low      13
        protection: (0, 3017, 24088, 24088, 24088)
Node 0, zone    DMA32
        low      2887
        protection: (0, 0, 21071, 21071, 21071)
Node 0, zone   Normal
        low      20164
        protection: (0, 0, 0, 0, 0)
";

    #[test]
    fn what_is_kept_is_a_watermark_and_a_protection() {
        let kept = parse_kept(ZONES);
        let pages: Vec<u64> = kept.iter().map(|k| k.pages.0).collect();
        assert_eq!(pages, [13 + 24088, 2887 + 21071, 20164]);
        assert_eq!((&*kept[2].node, &*kept[2].zone), ("Node 0", "Normal"));
    }

    #[test]
    fn zones_give_what_they_do_not_keep() {
        let kept = parse_kept(ZONES);
        let low = "Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3 \n";
        assert_eq!(usable(low, &kept), [0; 11]);
        // 48 superpages are 24,576 pages, of which 618 may go: one superpage.
        let next = "Node 0, zone    DMA32 0 0 0 0 0 0 0 0 0 48 0\n";
        assert_eq!(usable(next, &kept), [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        let normal = "Node 0, zone   Normal 2164 0 0 0 0 0 0 0 0 4 18\n";
        // Of 22,644 pages 2,480 may go: two blocks of 1,024, and single pages.
        let text = format!("{low}{next}{normal}");
        assert_eq!(usable(&text, &kept), [432, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
    }

    #[test]
    fn a_zone_that_nobody_described_keeps_nothing() {
        let text = "Node 1, zone Movable 1 2 3\n";
        assert_eq!(usable(text, &parse_kept(ZONES)), [1, 2, 3]);
    }

    #[test]
    fn this_machine_has_no_more_than_all_its_blocks() {
        let all = super::super::buddyinfo().unwrap();
        let usable = FreeBlocks::new().unwrap().count().unwrap();
        assert_eq!(usable.len(), all.len());
        let pages = |counts: &[u64]| -> u64 {
            let sizes = counts.iter().enumerate();
            sizes.map(|(n, c)| c << n).sum()
        };
        // Others take and free memory between the two readings.
        assert!(pages(&usable) <= pages(&all) + (1 << 16));
    }
}
