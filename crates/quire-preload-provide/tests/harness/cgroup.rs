//! A memory cgroup of either version, for programs that must fit.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The cgroup; dropping removes it.
pub struct MemoryCgroup(PathBuf);

impl MemoryCgroup {
    /// Makes a cgroup that holds `bytes` and swaps nothing; says why where that is not
    /// possible.
    pub fn new(bytes: u64) -> Result<MemoryCgroup, String> {
        let cgroup = MemoryCgroup::with_swap(bytes)?;
        let (file, most) = if is_unified() {
            ("memory.swap.max", 0)
        } else {
            ("memory.memsw.limit_in_bytes", bytes)
        };
        // Present only where swap is accounted.
        let _ = fs::write(cgroup.0.join(file), most.to_string());
        Ok(cgroup)
    }

    /// The same, but what does not fit goes onto swap, if there is some.
    pub fn with_swap(bytes: u64) -> Result<MemoryCgroup, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let root = Path::new(if is_unified() {
            "/sys/fs/cgroup"
        } else {
            "/sys/fs/cgroup/memory"
        });
        let name = format!(
            "quire-test.{}.{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = root.join(name);
        fs::create_dir(&path)
            .map_err(|e| format!("no memory cgroup at {}: {e}", root.display()))?;
        let cgroup = MemoryCgroup(path);
        let limited = cgroup.limit(bytes);
        limited.map_err(|e| format!("the memory cgroup cannot be limited: {e}"))?;
        Ok(cgroup)
    }

    /// From now on it holds `bytes`.
    pub fn limit(&self, bytes: u64) -> io::Result<()> {
        let file = if is_unified() {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        };
        fs::write(self.0.join(file), bytes.to_string())
    }

    /// Bytes of private memory that its processes have.
    pub fn anonymous(&self) -> u64 {
        let text = fs::read_to_string(self.0.join("memory.stat")).unwrap_or_default();
        let names = ["anon", "rss"];
        let line = text.lines().filter_map(|line| line.split_once(' '));
        let number = |(name, value): (&str, &str)| {
            let is_wanted = names.contains(&name);
            is_wanted.then(|| value.parse().unwrap_or(0))
        };
        line.filter_map(number).next().unwrap_or(0)
    }

    /// Writing 0 to this file enters the cgroup.
    pub fn procs_file(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

fn is_unified() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
