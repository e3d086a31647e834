//! Checks of the kernel's own ways to superpages: transparent huge pages and
//! the hugetlb pool.

use std::path::Path;

use quire_core::config::Policy;
use quire_core::pool::PoolPage;
use quire_core::units::{PAGES_PER_SUPERPAGE, SUPERPAGE};

use super::memory::pool_directory;
use super::{Check, bracketed, names_in, read_number, read_trimmed};

const THP: &str = "/sys/kernel/mm/transparent_hugepage";
/// As many empty pages in an extent that khugepaged makes a superpage of anything, and so the
/// kernel's shrinker takes no superpage apart.
const MOST_EMPTY: u64 = PAGES_PER_SUPERPAGE as u64 - 1;

/// All checks of this module.
#[must_use]
pub fn all() -> Vec<Check> {
    vec![
        transparent_huge_pages(),
        transparent_sizes(),
        allowed_for_process(),
        shrinker(),
        hugetlb_pool(),
        gigapage_pool(),
    ]
}

/// Whether transparent huge pages are switched on, and what `adaptive` does then.
#[must_use]
pub fn transparent_huge_pages() -> Check {
    const NAME: &str = "transparent huge pages";
    let Some(enabled) = read_trimmed(format!("{THP}/enabled")) else {
        let remedy = "boot a kernel with CONFIG_TRANSPARENT_HUGEPAGE=y";
        let cost = "`adaptive`, `eager` and `reserve` get base pages";
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
    let global = bracketed(&enabled).unwrap_or("never").to_owned();
    let own = chosen_for_superpages().filter(|own| own != "inherit");
    let size = own.as_ref().map(|own| format!(" ({own} for 2 MiB)"));
    let found = format!(
        "enabled {global}{}, defrag {}, shmem_enabled {}",
        size.unwrap_or_default(),
        chosen("defrag"),
        chosen("shmem_enabled")
    );
    under_setting(NAME, own.as_deref().unwrap_or(&global), &found)
}

/// What a setting of transparent huge pages means for the policies that advise.
fn under_setting(name: &'static str, setting: &str, found: &str) -> Check {
    let does = match setting {
        "always" => {
            "`adaptive` leaves the first touch to the kernel, and copies what filled up on base pages"
        }
        "madvise" => "`adaptive` advises what will fill up at the first touch, and copies what did",
        _ => "`adaptive` only copies what filled up",
    };
    let found = format!("{found}: {does}");
    let check = match setting {
        "always" | "madvise" => Check::ok(name, found),
        _ => Check::missing(
            name,
            found,
            "no superpages at the first touch: `adaptive` takes longer to make them, `eager` makes none",
            format!("echo madvise | sudo tee {THP}/enabled"),
        ),
    };
    check
        .needed_by(&[Policy::Eager])
        .used_by(&[Policy::Adaptive])
}

/// Whether the kernel splits superpages that are mostly zeros where memory is short. It does
/// so only where khugepaged would not make them again.
#[must_use]
pub fn shrinker() -> Check {
    let file = |name: &str| read_number::<u64>(format!("{THP}/{name}"));
    under_shrinker(file("shrink_underused"), file("khugepaged/max_ptes_none"))
}

fn under_shrinker(switch: Option<u64>, max_ptes_none: Option<u64>) -> Check {
    const NAME: &str = "shrinker of superpages (khugepaged/max_ptes_none)";
    const COST: &str = "superpages that are mostly zeros stay when memory is short";
    let limit = max_ptes_none.map_or_else(|| "unknown".to_owned(), |none| none.to_string());
    let remedy = format!("echo 409 | sudo tee {THP}/khugepaged/max_ptes_none");
    match (switch, max_ptes_none) {
        (None, _) => Check::limited(
            NAME,
            format!("the kernel has none; max_ptes_none is {limit}"),
            COST,
            "install Linux 6.12 or newer",
        ),
        (Some(0), _) => Check::limited(
            NAME,
            format!("switched off (shrink_underused is 0); max_ptes_none is {limit}"),
            COST,
            format!("echo 1 | sudo tee {THP}/shrink_underused; {remedy}"),
        ),
        (Some(_), Some(none)) if none >= MOST_EMPTY => Check::limited(
            NAME,
            format!("{limit}, so the kernel's shrinker (shrink_underused) does nothing"),
            COST,
            remedy,
        ),
        (Some(_), _) => Check::ok(NAME, format!("works; max_ptes_none is {limit}")),
    }
}

/// The setting of the superpage size alone, where the kernel has one per size.
fn chosen_for_superpages() -> Option<String> {
    let text = read_trimmed(format!("{THP}/hugepages-2048kB/enabled"))?;
    bracketed(&text).map(str::to_owned)
}

/// The sizes of transparent huge pages, in KiB, each with its setting, in order.
fn sizes() -> Vec<(u64, String)> {
    let directory = Path::new(THP);
    let mut sizes: Vec<(u64, String)> = names_in(directory)
        .into_iter()
        .filter_map(|name| {
            let size = name.to_str()?.strip_prefix("hugepages-")?;
            let size = size.strip_suffix("kB")?;
            let enabled = read_trimmed(directory.join(&name).join("enabled"))?;
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
            "`adaptive`, `eager` and `reserve` get base pages",
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
    use super::super::{Status, policy_status};
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

    #[test]
    fn a_setting_says_what_the_default_does() {
        let of = |setting| under_setting("x", setting, "enabled");
        assert!(
            of("always")
                .found
                .contains("leaves the first touch to the kernel")
        );
        assert!(of("madvise").found.contains("advises"));
        let never = of("never");
        assert!(never.found.contains("only copies"));
        let all = [never];
        assert_eq!(policy_status(Policy::Adaptive, &all), Status::Limited);
        assert_eq!(policy_status(Policy::Eager, &all), Status::Missing);
        assert_eq!(policy_status(Policy::Base, &all), Status::Ok);
    }

    #[test]
    fn a_shrinker_that_does_nothing_is_told() {
        let idle = under_shrinker(Some(1), Some(511));
        assert!(idle.found.contains("does nothing"));
        assert!(
            idle.remedy
                .starts_with("echo 409 | sudo tee /sys/kernel/mm/")
        );
        assert_eq!(under_shrinker(Some(1), Some(409)).status, Status::Ok);
        assert_eq!(under_shrinker(Some(0), Some(409)).status, Status::Limited);
        let none = under_shrinker(None, Some(511));
        assert!(none.remedy.contains("install Linux"));
        // No policy works less well without it.
        assert_eq!(policy_status(Policy::Adaptive, &[idle, none]), Status::Ok);
    }
}
