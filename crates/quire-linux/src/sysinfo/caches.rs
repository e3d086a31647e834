//! The caches of this machine, from the kernel's description in `/sys` and CPUID.
//!
//! The kernel knows sizes and who shares a cache, on every processor; how an index is
//! made only CPUID says. Where the kernel describes nothing, as in some virtual
//! machines, CPUID does alone.

use std::fs;
use std::path::{Path, PathBuf};

use quire_core::frames::cache::cpuid::{Leaf, describe, is_described};
use quire_core::frames::cache::{Cache, Index, Kind, Shape, colour_cache};
use quire_core::frames::colour::Colours;

use super::{read_number, read_trimmed};
use crate::arch::cpuid;

const PROCESSORS: &str = "/sys/devices/system/cpu";
/// More caches of one processor than this are taken for nonsense.
const MOST_CACHES: u32 = 16;

/// The caches of this machine, from the first level up. Processors that have the same
/// ones are not told apart. Empty where nobody describes any.
#[must_use]
pub fn of_this_machine() -> Vec<Cache> {
    let described = described();
    let found = read_all(Path::new(PROCESSORS), &described);
    if found.is_empty() { described } else { found }
}

/// The colours of the cache of this machine that page colouring is for; nothing where
/// no cache has any that are known.
#[must_use]
pub fn own_colours() -> Option<Colours> {
    let caches = of_this_machine();
    colour_cache(&caches).and_then(|cache| cache.colours().ok())
}

/// Whether this is a virtual machine, as far as the hypervisor admits it. Then frame
/// numbers are not those of the machine, and CPUID says what the hypervisor wants.
#[must_use]
pub fn is_virtual_machine() -> bool {
    const FEATURES: u32 = 1;
    const HYPERVISOR: u32 = 1 << 31;
    let [_, _, ecx, _] = cpuid(FEATURES, 0);
    ecx & HYPERVISOR != 0
}

/// What CPUID says on the processor that runs this.
fn described() -> Vec<Cache> {
    const INTEL: u32 = 4;
    const EXTENDED: u32 = 0x8000_0000;
    const AMD_FEATURES: u32 = 0x8000_0001;
    const AMD: u32 = 0x8000_001d;
    const TOPOLOGY_EXTENSIONS: u32 = 1 << 22;
    let highest = |leaf| cpuid(leaf, 0)[0];
    let [_, _, features, _] = cpuid(AMD_FEATURES, 0);
    let has_amd = highest(EXTENDED) >= AMD && features & TOPOLOGY_EXTENSIONS != 0;
    if has_amd {
        describe(Leaf::Amd, &subleaves(AMD))
    } else if highest(0) >= INTEL {
        describe(Leaf::Intel, &subleaves(INTEL))
    } else {
        Vec::new()
    }
}

fn subleaves(leaf: u32) -> Vec<[u32; 4]> {
    (0..MOST_CACHES)
        .map(|subleaf| cpuid(leaf, subleaf))
        .take_while(is_described)
        .collect()
}

/// The caches of all processors whose directories lie in `root`.
fn read_all(root: &Path, described: &[Cache]) -> Vec<Cache> {
    let mut caches: Vec<Cache> = Vec::new();
    for dir in cache_dirs(root) {
        let Some(cache) = read(&dir, described) else {
            continue;
        };
        // Where a processor is offline, those that are left share a cache of the same
        // kind with fewer others.
        let same = caches.iter_mut().find(|other| is_alike(other, &cache));
        match same {
            Some(other) => other.shared_by = other.shared_by.max(cache.shared_by),
            None => caches.push(cache),
        }
    }
    caches.sort_by_key(|cache| (cache.level, cache.kind, cache.shape));
    caches
}

fn is_alike(a: &Cache, b: &Cache) -> bool {
    (a.level, a.kind, a.shape) == (b.level, b.kind, b.shape)
}

/// The directories `cpuN/cache/indexM`.
fn cache_dirs(root: &Path) -> Vec<PathBuf> {
    let processors = numbered(root, "cpu");
    let caches = processors
        .iter()
        .map(|processor| numbered(&processor.join("cache"), "index"));
    caches.flatten().collect()
}

/// What `dir` holds whose name is `prefix` and a number.
fn numbered(dir: &Path, prefix: &str) -> Vec<PathBuf> {
    let is_numbered = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_prefix(prefix));
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(is_numbered)
        .collect()
}

/// One cache. What the kernel does not know of it is taken from CPUID.
fn read(dir: &Path, described: &[Cache]) -> Option<Cache> {
    let number = |file: &str| read_number::<u32>(dir.join(file)).filter(|number| *number > 0);
    let level = number("level")?;
    let kind = match read_trimmed(dir.join("type"))?.as_str() {
        "Data" => Kind::Data,
        "Instruction" => Kind::Instruction,
        "Unified" => Kind::Unified,
        _ => return None,
    };
    let same = |cache: &&Cache| (cache.level, cache.kind) == (level, kind);
    let known = described.iter().find(same);
    let or_known = |file: &str, of: fn(&Shape) -> u32| {
        number(file).or_else(|| known.map(|cache| of(&cache.shape)))
    };
    let sets = or_known("number_of_sets", |shape| shape.sets())?;
    let ways = or_known("ways_of_associativity", |shape| shape.ways())?;
    let line = or_known("coherency_line_size", |shape| shape.line().0 as u32)?;
    Some(Cache {
        level,
        kind,
        shape: Shape::new(sets, ways, line)?,
        index: known.map_or_else(|| Index::assumed(level), |cache| cache.index.clone()),
        shared_by: read_trimmed(dir.join("shared_cpu_list")).and_then(|list| count(&list)),
    })
}

/// How many processors a list such as `0-3,8` names.
fn count(list: &str) -> Option<u32> {
    let parts = list.split(',').map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    });
    parts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Describes a cache as the kernel does: level, type, sets, ways and sharers.
    fn write(root: &Path, dir: &str, values: [&str; 5]) {
        let dir = root.join(dir);
        fs::create_dir_all(&dir).unwrap();
        let files = [
            "level",
            "type",
            "number_of_sets",
            "ways_of_associativity",
            "shared_cpu_list",
        ];
        for (file, value) in files.into_iter().zip(values) {
            fs::write(dir.join(file), format!("{value}\n")).unwrap();
        }
        fs::write(dir.join("coherency_line_size"), "64\n").unwrap();
    }

    fn cache(level: u32, kind: Kind, sets: u32, ways: u32, index: Index, by: u32) -> Cache {
        Cache {
            level,
            kind,
            shape: Shape::new(sets, ways, 64).unwrap(),
            index,
            shared_by: Some(by),
        }
    }

    #[test]
    fn this_machine_has_plausible_caches() {
        let caches = of_this_machine();
        println!("{caches:#?} {}", is_virtual_machine());
        if caches.is_empty() {
            println!("SKIP: nobody describes the caches of this machine");
            return;
        }
        assert!(caches.iter().any(|cache| cache.level == 1));
        let levels: Vec<u32> = caches.iter().map(|cache| cache.level).collect();
        assert!(levels.is_sorted());
        let smallest = caches.first().map(|cache| cache.shape.size());
        assert!(smallest <= caches.last().map(|cache| cache.shape.size()));
        assert!(caches.iter().all(|cache| cache.shared_by != Some(0)));
        assert_eq!(of_this_machine(), caches);
    }

    #[test]
    fn processors_are_merged_and_cpuid_says_what_the_index_is() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(root, "cpu0/cache/index0", ["1", "Data", "64", "8", "0,32"]);
        write(root, "cpu1/cache/index0", ["1", "Data", "64", "8", "1"]);
        write(
            root,
            "cpu1/cache/index2",
            ["2", "Unified", "1024", "8", "1"],
        );
        write(
            root,
            "cpu10/cache/index3",
            ["3", "Unified", "53248", "0", "0-9,32-41"],
        );
        write(root, "cpufreq/cache/index0", ["1", "Data", "8", "8", "0"]);
        write(root, "cpu0/cache/power", ["1", "Data", "8", "8", "0"]);
        write(root, "cpu2/cache/index0", ["1", "Loop", "8", "8", "0"]);
        let described = [
            cache(2, Kind::Unified, 4096, 8, Index::Plain, 1),
            cache(3, Kind::Unified, 53248, 11, Index::Hashed, 1),
        ];
        let expected = [
            cache(1, Kind::Data, 64, 8, Index::Plain, 2),
            cache(2, Kind::Unified, 1024, 8, Index::Plain, 1),
            cache(3, Kind::Unified, 53248, 11, Index::Hashed, 20),
        ];
        assert_eq!(read_all(root, &described), expected);
        assert_eq!(read_all(&root.join("nothing"), &described), []);
        let alone = read_all(root, &[]);
        assert_eq!(alone.len(), 2, "ways that nobody knows");
    }

    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!(count("0"), Some(1));
        assert_eq!(count("0-3,8,10-11"), Some(7));
        assert_eq!(count("3-0"), None);
        assert_eq!(count(""), None);
    }
}
