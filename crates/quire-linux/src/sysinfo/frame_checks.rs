//! Checks of what frames by strategy stand on: pages that can be moved, folios whose
//! frames follow each other, frame numbers, and caches with colours. As far as there is
//! a call, it is tried.

use std::hint::black_box;
use std::os::fd::AsFd;

use quire_core::frames::cache::{Cache, colour_cache};
use quire_core::units::{AddrRange, Bytes, SUPERPAGE, VirtAddr};

use super::{Check, Need, bracketed, caches, read_trimmed};
use crate::memory::{self, Advice};
use crate::pagemap;
use crate::raw::{Errno, Result};
use crate::uffd::{self, Scope};

/// What it costs when a strategy cannot be carried out.
const WITHOUT: &str = "frames are the kernel's choice, whatever --frames and --hint say";

/// All checks of this module.
#[must_use]
pub fn all() -> Vec<Check> {
    vec![
        moved_pages(),
        whole_folios(),
        frame_numbers(),
        coloured_caches(&caches::of_this_machine(), caches::is_virtual_machine()),
    ]
}

/// Whether a missing page can be answered with a page of the stock, also where a system
/// call touches it.
#[must_use]
pub fn moved_pages() -> Check {
    const NAME: &str = "userfaultfd that moves pages";
    let check = match uffd::open_for_moves() {
        Ok((_, Scope::Full)) => Check::ok(NAME, "UFFDIO_MOVE, for user and kernel mode"),
        Ok((_, Scope::UserOnly)) => Check::missing(
            NAME,
            "UFFDIO_MOVE, but for user mode only: system calls would fail",
            WITHOUT,
            "run as root, or sudo sysctl vm.unprivileged_userfaultfd=1",
        ),
        Err(Errno(libc::EINVAL)) => Check::missing(
            NAME,
            "the kernel lacks UFFDIO_MOVE",
            WITHOUT,
            "boot Linux 6.8 or newer",
        ),
        Err(errno) => Check::missing(
            NAME,
            format!("refused: {errno}"),
            WITHOUT,
            "see userfaultfd above",
        ),
    };
    check.for_frames(Need::Needs)
}

/// Whether the kernel gives private memory a folio of 2 MiB where it is asked for one:
/// the stock is made of them.
#[must_use]
pub fn whole_folios() -> Check {
    const NAME: &str = "folios for the stock";
    const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
    let setting = read_trimmed(SETTING).unwrap_or_default();
    let check = match gives_folio() {
        Ok(true) => Check::ok(NAME, "a folio of 2 MiB was given"),
        _ if setting.is_empty() => Check::missing(
            NAME,
            "the kernel has no transparent huge pages",
            WITHOUT,
            "boot a kernel with CONFIG_TRANSPARENT_HUGEPAGE=y",
        ),
        _ if bracketed(&setting) == Some("never") => Check::missing(
            NAME,
            "transparent huge pages are `never`",
            WITHOUT,
            format!("echo madvise | sudo tee {SETTING}"),
        ),
        _ => Check::limited(
            NAME,
            "none was given: no block of 2 MiB is free, or they are forbidden here",
            WITHOUT,
            "echo 1 | sudo tee /proc/sys/vm/compact_memory; and see transparent huge pages above",
        ),
    };
    check.for_frames(Need::Needs)
}

/// Whether the page map tells physical addresses.
#[must_use]
pub fn frame_numbers() -> Check {
    const NAME: &str = "pagemap frame numbers";
    let word = black_box(1u64);
    let page = VirtAddr((&raw const word) as u64).page_floor();
    let frame = pagemap::open().map(|map| pagemap::frame(map.as_fd(), page));
    let check = match frame {
        Ok(Some(_)) => Check::ok(NAME, "shown"),
        _ => Check::limited(
            NAME,
            "hidden",
            "no strategy `exact`, colours only by address bits below 21, and `quire map` and measurements cannot tell frames",
            "run as root (CAP_SYS_ADMIN)",
        ),
    };
    check.for_frames(Need::Uses)
}

/// Whether pages have colours in a cache of this machine.
#[must_use]
pub fn coloured_caches(caches: &[Cache], is_virtual: bool) -> Check {
    const NAME: &str = "caches";
    const COST: &str = "strategies by colour need --colour-bits";
    if caches.is_empty() {
        return Check::limited(
            NAME,
            "neither the kernel nor the processor describes any",
            format!("{COST}, and measurements do not know the sizes of caches"),
            "quire run --frames colour --colour-bits 12,13,14,15 (the address bits of your cache), or let the hypervisor pass the caches (qemu: -cpu host,host-cache-info=on)",
        )
        .for_frames(Need::Needs);
    }
    let described: Vec<String> = caches.iter().map(describe).collect();
    let described = described.join(", ");
    let colours = colour_cache(caches).and_then(|cache| Some((cache, cache.colours().ok()?)));
    let check = match colours {
        Some((cache, colours)) => {
            let guest = if is_virtual {
                "; a virtual machine's colours can differ from the host's (see `quire cache`)"
            } else {
                ""
            };
            let (count, name) = (colours.count(), cache.name());
            Check::ok(
                NAME,
                format!("{described}; {count} colours in {name}{guest}"),
            )
        }
        None => Check::limited(
            NAME,
            format!("{described}; none has known colours"),
            COST,
            "quire cache says why; give the address bits, as in quire run --frames colour --colour-bits 12,13,14,15",
        ),
    };
    check.for_frames(Need::Needs)
}

fn describe(cache: &Cache) -> String {
    let (size, ways) = (cache.shape.size(), cache.shape.ways());
    format!("{} {size} {ways}-way", cache.name())
}

/// Asks the kernel for a folio, and gives it back.
fn gives_folio() -> Result<bool> {
    let start = memory::reserve_space(Bytes(SUPERPAGE), 0)?;
    let range = AddrRange::new(start, Bytes(SUPERPAGE));
    // SAFETY: address space that was reserved above, and that nobody else uses.
    let tried = unsafe { touch_huge(range) };
    let map = pagemap::open();
    let mut huge = false;
    let scanned = tried.and(map).and_then(|map| {
        pagemap::scan(map.as_fd(), range, pagemap::Filter::PRESENT, |run| {
            huge |= run.categories & pagemap::HUGE != 0;
        })
    });
    // SAFETY: as above; nothing refers to it any more.
    unsafe { memory::unmap(range)? };
    scanned.map(|()| huge)
}

/// Touches a range whose pages are to be huge.
///
/// # Safety
/// Nobody else may use the range.
unsafe fn touch_huge(range: AddrRange) -> Result<()> {
    // SAFETY: the caller promises it.
    unsafe {
        memory::protect(range, libc::PROT_READ | libc::PROT_WRITE)?;
        memory::advise(range, Advice::HugePage)?;
        range.start.as_ptr().write_volatile(0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use quire_core::frames::cache::{Index, apply};

    use super::super::Status;
    use super::*;

    #[test]
    fn colours_are_told_and_their_absence_has_a_remedy() {
        let caches = [
            "level=2,sets=1024,ways=16,line=64",
            "level=3,sets=32768,ways=16,line=64",
        ];
        let mut plain = Vec::new();
        apply(&mut plain, &caches.map(|cache| cache.parse().unwrap())).unwrap();
        plain[1].index = Index::Hashed;
        let check = coloured_caches(&plain, false);
        assert_eq!(check.status, Status::Ok);
        let wanted = "L2 1 MiB 16-way, L3 32 MiB 16-way; 16 colours in L2";
        assert_eq!(check.found, wanted);
        let guest = coloured_caches(&plain, true);
        assert!(
            guest
                .found
                .starts_with(&format!("{wanted}; a virtual machine"))
        );
        let hashed = coloured_caches(&plain[1..], false);
        assert_eq!(hashed.status, Status::Limited);
        assert!(hashed.found.ends_with("none has known colours"));
        let nothing = coloured_caches(&[], false);
        assert_eq!(nothing.status, Status::Limited);
        for check in [hashed, nothing] {
            assert!(check.remedy.contains("--colour-bits"), "{}", check.remedy);
            assert_eq!(check.frames, Need::Needs);
        }
    }

    #[test]
    fn frames_are_shown_to_administrators_alone() {
        const CAP_SYS_ADMIN: u32 = 21;
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let held = u64::from_str_radix(line.unwrap().trim(), 16).unwrap();
        let expected = match held >> CAP_SYS_ADMIN & 1 {
            1 => Status::Ok,
            _ => Status::Limited,
        };
        assert_eq!(frame_numbers().status, expected);
    }

    #[test]
    fn a_folio_is_given_where_the_setting_allows_it() {
        let check = whole_folios();
        let setting = read_trimmed("/sys/kernel/mm/transparent_hugepage/enabled");
        let never = setting.is_none_or(|text| bracketed(&text) == Some("never"));
        assert!(never || check.status != Status::Missing, "{check:?}");
    }
}
