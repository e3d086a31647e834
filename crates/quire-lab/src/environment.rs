//! The machine that results come from, to be shown with them.

use std::collections::BTreeMap;
use std::fs;

use quire_core::frames::cache::Cache;
use quire_linux::sysinfo::caches;

use crate::prepare::{self, Places};
use crate::usage;

/// What is known of this machine, by name.
#[must_use]
pub fn of_this_machine(places: &Places) -> BTreeMap<String, String> {
    let system = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    let kernel = format!("{} {}", text(system.sysname()), text(system.release()));
    let mut known = BTreeMap::from([
        ("architecture".to_owned(), text(system.machine())),
        ("caches".to_owned(), describe_caches()),
        ("counters".to_owned(), usage::available()),
        ("kernel".to_owned(), kernel),
        (
            "load".to_owned(),
            load().map_or_else(String::new, |load| format!("{load:.2}")),
        ),
        ("processors".to_owned(), processors().to_string()),
        ("quire".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        (
            "virtual_machine".to_owned(),
            caches::is_virtual_machine().to_string(),
        ),
    ]);
    known.extend(field("/proc/cpuinfo", "model name").map(|name| ("cpu".to_owned(), name)));
    known.extend(field("/proc/meminfo", "MemTotal").map(|size| ("memory".to_owned(), size)));
    let settings = prepare::settings(places).into_iter();
    known.extend(settings.map(|(name, value)| (name.to_owned(), value)));
    known.retain(|_, value| !value.is_empty());
    known
}

/// What makes this machine noisy and no setting mends, each with its remedy.
#[must_use]
pub fn warnings() -> Vec<String> {
    let mut warnings = Vec::new();
    let busy = load().filter(|load| *load > 0.5 * processors() as f64);
    warnings.extend(busy.map(|load| {
        format!("other programs keep the machine busy (load {load:.2}): end them, or wait")
    }));
    if caches::is_virtual_machine() {
        warnings.push(
            "this is a virtual machine, whose host takes time from it unseen: measure on hardware, or make more executions".into(),
        );
    }
    warnings
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// How many programs wanted to run in the last minute, on average.
fn load() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim_start().strip_prefix(':')?.trim().to_owned())
}

fn describe_caches() -> String {
    let caches = caches::of_this_machine();
    let one = |cache: &Cache| format!("{} {}", cache.name(), cache.shape.size());
    caches.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_known() {
        let known = of_this_machine(&Places::default());
        assert!(known["kernel"].starts_with("Linux "), "{known:?}");
        for name in ["cpu", "memory", "aslr", "thp", "load", "counters", "quire"] {
            assert!(known.contains_key(name), "no {name}: {known:?}");
        }
    }
}
