//! Checks of the kernel's own ways to superpages: transparent huge pages and
//! the hugetlb pool.

use std::fs;

use quire_core::config::Policy;
use quire_core::pool::PoolPage;
use quire_core::units::SUPERPAGE;

use super::memory::pool_directory;
use super::{Check, bracketed, read_number, read_trimmed};

const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// All checks of this module.
#[must_use]
pub fn all() -> Vec<Check> {
    vec![
        transparent_huge_pages(),
        transparent_sizes(),
        allowed_for_process(),
        hugetlb_pool(),
        gigapage_pool(),
    ]
}

/// Whether transparent huge pages are switched on. The setting is for the
/// kernel's own anonymous memory; no policy depends on it.
#[must_use]
pub fn transparent_huge_pages() -> Check {
    const NAME: &str = "transparent huge pages";
    const COST: &str = "memory that Quire leaves to the kernel gets base pages";
    let remedy = format!("echo madvise | sudo tee {THP}/enabled");
    let Some(enabled) = read_trimmed(format!("{THP}/enabled")) else {
        let remedy = "boot a kernel with CONFIG_TRANSPARENT_HUGEPAGE=y";
        let cost = "`eager` and `reserve` get base pages";
        return Check::missing(NAME, "the kernel does not have them", cost, remedy).needed_by(&[
            Policy::Eager,
            Policy::Reserve,
            Policy::Adaptive,
        ]);
    };
    let chosen = |file: &str| {
        read_trimmed(format!("{THP}/{file}"))
            .and_then(|text| bracketed(&text).map(str::to_owned))
            .unwrap_or_else(|| "unknown".to_owned())
    };
    let found = format!(
        "enabled {}, defrag {}, shmem_enabled {}",
        chosen("enabled"),
        chosen("defrag"),
        chosen("shmem_enabled")
    );
    let size = chosen_for_superpages();
    let usable = |word: &str| matches!(word, "always" | "madvise");
    let global = bracketed(&enabled).unwrap_or("never");
    let on = match size.as_deref() {
        None | Some("inherit") => usable(global),
        Some(own) => usable(own),
    };
    if on {
        Check::ok(NAME, found)
    } else {
        Check::limited(NAME, found, COST, remedy)
    }
}

/// The setting of the superpage size alone, where the kernel has one per size.
fn chosen_for_superpages() -> Option<String> {
    let text = read_trimmed(format!("{THP}/hugepages-2048kB/enabled"))?;
    bracketed(&text).map(str::to_owned)
}

/// The sizes of transparent huge pages, in KiB, each with its setting, in order.
fn sizes() -> Vec<(u64, String)> {
    let mut sizes: Vec<(u64, String)> = fs::read_dir(THP)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let size = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
            let enabled = read_trimmed(entry.path().join("enabled"))?;
            Some((size.parse().ok()?, bracketed(&enabled)?.to_owned()))
        })
        .collect();
    sizes.sort();
    sizes
}

/// Whether private memory has folios smaller than a superpage where the kernel is
/// asked for them (`MADV_HUGEPAGE`).
#[must_use]
pub fn advised_small_folios() -> bool {
    let global = read_trimmed(format!("{THP}/enabled")).unwrap_or_default();
    has_advised_small(&sizes(), bracketed(&global).unwrap_or("never"))
}

fn has_advised_small(sizes: &[(u64, String)], global: &str) -> bool {
    sizes
        .iter()
        .filter(|(size, _)| *size < SUPERPAGE >> 10)
        .any(|(_, set)| set == "madvise" || (set == "inherit" && global == "madvise"))
}

/// The sizes of transparent huge pages and which are switched on. The smaller
/// ones serve mappings that are smaller than a superpage.
#[must_use]
pub fn transparent_sizes() -> Check {
    const NAME: &str = "transparent huge page sizes";
    const COST: &str = "mappings below 2 MiB have base pages";
    let sizes = sizes();
    if sizes.is_empty() {
        return Check::ok(NAME, "2048 kB only");
    }
    let text: Vec<String> = sizes
        .iter()
        .map(|(size, enabled)| format!("{size} kB {enabled}"))
        .collect();
    let on = |(size, set): &(u64, String)| *size < SUPERPAGE >> 10 && set != "never";
    if sizes.iter().any(on) {
        Check::ok(NAME, text.join(", "))
    } else {
        let remedy = format!("echo madvise | sudo tee {THP}/hugepages-64kB/enabled");
        Check::limited(NAME, text.join(", "), COST, remedy)
    }
}

/// Whether this process, and so those that it starts, may have them.
#[must_use]
pub fn allowed_for_process() -> Check {
    const NAME: &str = "transparent huge pages here";
    // SAFETY: this operation takes no pointer; the arguments must be zero.
    let disabled = unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) };
    let check = if disabled > 0 {
        Check::missing(
            NAME,
            "switched off for this process and its children (PR_SET_THP_DISABLE)",
            "`eager` and `reserve` get base pages",
            "start quire from a process that does not set PR_SET_THP_DISABLE (systemd: MemoryTHP=)",
        )
    } else {
        Check::ok(NAME, "allowed for this process and its children")
    };
    check.needed_by(&[Policy::Eager, Policy::Reserve, Policy::Adaptive])
}

/// What the kernel says of a pool: pages of each kind.
struct Pool {
    total: u64,
    free: u64,
    promised: u64,
    surplus: u64,
    overcommit: u64,
}

impl Pool {
    fn read(page: PoolPage) -> Option<Pool> {
        let pool = pool_directory(page);
        let read = |file: &str| read_number::<u64>(format!("{pool}/{file}"));
        Some(Pool {
            total: read("nr_hugepages")?,
            free: read("free_hugepages").unwrap_or(0),
            promised: read("resv_hugepages").unwrap_or(0),
            surplus: read("surplus_hugepages").unwrap_or(0),
            overcommit: read("nr_overcommit_hugepages").unwrap_or(0),
        })
    }

    fn has_free(&self) -> bool {
        self.free > self.promised || self.overcommit > self.surplus
    }

    fn found(&self) -> String {
        format!(
            "{} pages, {} free, {} promised, {} of {} surplus pages used",
            self.total, self.free, self.promised, self.surplus, self.overcommit
        )
    }
}

/// Whether the pool of 1 GiB pages holds any. Without them, `static` works as
/// well with 2 MiB pages.
#[must_use]
pub fn gigapage_pool() -> Check {
    const NAME: &str = "hugetlb pool of 1 GiB pages";
    const COST: &str = "`static` uses 2 MiB pages for mappings of 1 GiB and more";
    const REMEDY: &str =
        "boot with hugepagesz=1G hugepages=4 (each takes 1 GiB of memory for good)";
    let Some(pool) = Pool::read(PoolPage::Gigapage) else {
        let remedy = "use a processor with 1 GiB pages (flag pdpe1gb)";
        return Check::limited(NAME, "this machine does not have one", COST, remedy);
    };
    let found = pool.found();
    if pool.has_free() {
        Check::ok(NAME, found)
    } else if pool.total > 0 {
        let more = format!("{REMEDY}, a larger number than {}", pool.total);
        Check::limited(NAME, found, COST, more)
    } else {
        Check::limited(NAME, found, COST, REMEDY)
    }
}

/// Whether the pool of 2 MiB pages holds any.
#[must_use]
pub fn hugetlb_pool() -> Check {
    const NAME: &str = "hugetlb pool of 2 MiB pages";
    const COST: &str = "`static` uses base pages";
    const REMEDY: &str = "sudo sysctl vm.nr_hugepages=512";
    let Some(pool) = Pool::read(PoolPage::Superpage) else {
        let remedy = "boot a kernel with CONFIG_HUGETLBFS=y";
        return Check::missing(NAME, "the kernel does not have one", COST, remedy)
            .needed_by(&[Policy::Static]);
    };
    let (found, total) = (pool.found(), pool.total);
    let check = if pool.has_free() {
        Check::ok(NAME, found)
    } else if total > 0 {
        Check::limited(
            NAME,
            found,
            COST,
            format!("{REMEDY} (a larger number than {total})"),
        )
    } else {
        Check::missing(NAME, found, COST, REMEDY)
    };
    check.needed_by(&[Policy::Static])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_folios_are_asked_for_where_that_helps() {
        let helps = |small: &str, global: &str| {
            let sizes = [(64, small.to_owned()), (2048, "madvise".to_owned())];
            has_advised_small(&sizes, global)
        };
        assert!(helps("madvise", "never") && helps("inherit", "madvise"));
        assert!(!helps("never", "madvise") && !helps("always", "madvise"));
        assert!(!helps("inherit", "always") && !helps("inherit", "never"));
        assert!(!has_advised_small(&[], "madvise"));
    }
}
