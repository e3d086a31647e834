//! Facts about the machine, and kernel settings that are changed for the time
//! of a run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::{guard, procfs};

/// Where transparent huge pages are switched on and off.
pub const THP_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
/// How many superpages the hugetlb pool holds.
pub const HUGETLB_POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// The machine on which the figures were measured.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Kernel release.
    pub kernel: String,
    /// Processor model.
    pub cpu: String,
    /// Processors.
    pub cpus: usize,
    /// Physical memory in bytes.
    pub memory_bytes: u64,
    /// Whether the processor says that it is virtual.
    pub virtual_machine: bool,
    /// Version of the C library.
    pub libc: String,
    /// Settings of transparent huge pages, by name.
    pub thp: Vec<(String, String)>,
}

impl Machine {
    /// Reads the facts; what cannot be read is said to be unknown.
    pub fn read() -> Machine {
        let uname = rustix::system::uname();
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpuinfo.lines().find(|l| l.starts_with("model name"));
        let cpu = cpu
            .and_then(|l| l.split_once(':'))
            .map_or("unknown", |(_, m)| m.trim());
        Machine {
            kernel: uname.release().to_string_lossy().into_owned(),
            cpu: cpu.to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: procfs::meminfo("MemTotal").unwrap_or(0),
            virtual_machine: cpuinfo.contains(" hypervisor"),
            libc: libc_version(),
            thp: thp_settings(),
        }
    }
}

fn libc_version() -> String {
    let output = std::process::Command::new("ldd").arg("--version").output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
    let first = text.ok().and_then(|t| t.lines().next().map(str::to_owned));
    first.unwrap_or_else(|| "unknown".to_owned())
}

fn thp_settings() -> Vec<(String, String)> {
    let dir = Path::new(THP_ENABLED).parent().unwrap_or(Path::new("/"));
    [
        "enabled",
        "defrag",
        "shmem_enabled",
        "khugepaged/defrag",
        "shrink_underused",
    ]
    .into_iter()
    .filter_map(|name| {
        let text = fs::read_to_string(dir.join(name)).ok()?;
        Some((name.to_owned(), chosen(&text).to_owned()))
    })
    .collect()
}

/// The word in brackets, or the whole text where there is none.
fn chosen(text: &str) -> &str {
    let inner = text.split_once('[').and_then(|(_, t)| t.split_once(']'));
    inner.map_or(text.trim(), |(word, _)| word)
}

/// A kernel setting that is put back when this is dropped.
#[derive(Debug)]
pub struct Setting {
    path: PathBuf,
    before: String,
}

impl Setting {
    /// Changes the setting.
    pub fn change(path: &str, value: &str) -> Result<Setting> {
        let text = fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
        let before = chosen(&text).to_owned();
        guard::changes(path, &before);
        let changed = fs::write(path, value);
        if changed.is_err() {
            guard::put_back(path);
        }
        changed.with_context(|| format!("writing {value} to {path}"))?;
        Ok(Setting {
            path: path.into(),
            before,
        })
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.path, &self.before) {
            eprintln!(
                "quire-bench: {} could not be set back to {}: {error}",
                self.path.display(),
                self.before
            );
        }
        guard::put_back(&self.path.display().to_string());
    }
}

/// Whether `program` is found on the search path.
pub fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|d| d.join(program))
        .find(|p| p.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_setting_is_in_brackets() {
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(chosen("512\n"), "512");
    }

    #[test]
    fn settings_are_put_back() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "a [b] c").unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        let setting = Setting::change(&path, "c").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "c");
        drop(setting);
        assert_eq!(fs::read_to_string(&path).unwrap(), "b");
    }
}
